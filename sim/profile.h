/* sim/profile.h -- measured times of modules; they override the roofline.
 *
 *   profile: 1
 *   times:
 *     - {pass: forward, module: "model.language_model.layers.*", us: 812.5}
 *     - {pass: backward, module: "model.language_model.layers.*", us: 1650}
 *     - {pass: step, us: 5200}                     # the optimizer of one rank
 *
 *   module  a glob of module names (ls_glob). The time is that of everything below one such module, at nominal speed, each time it runs; its
 *           kernels share it in proportion to their roofline times (equally if those are zero)
 *   pass    forward | backward | recompute | step. Later rows win
 *   loss    has no module: it keeps its roofline
 *   A time holds for every sample. Measure with the lengths that are simulated. */
#ifndef LS_SIM_PROFILE_H
#define LS_SIM_PROFILE_H

#include "sim/work.h"

struct ls_profile_row { enum ls_pass pass; const char *module; double us; struct ls_loc at; };
struct ls_profile { struct ls_profile_row *row; size_t rows; };
/* errors  LS_EINPUT with the position: unreadable file, unknown or missing keys, times that are not positive */
LS_MUST_USE enum ls_code ls_profile_load(const char *path, struct ls_arena *arena, struct ls_profile *out, struct ls_error *err);
/* errors  LS_EINPUT: a row whose glob matches no module of the model */
LS_MUST_USE enum ls_code ls_profile_check(const struct ls_profile *p, const struct ls_model *m, struct ls_error *err);
/* Replaces times that rows cover. ps: [w->kernels], nominal roofline times of the segment's kernels in order. */
void ls_profile_apply(const struct ls_profile *p, const struct ls_model *m, const struct ls_tables *t, const struct ls_segment *s,
                      const struct ls_round_work *w, double *ps);
/* The optimizer's time, if a row gives it. */
bool ls_profile_step(const struct ls_profile *p, uint64_t *ps);

#endif
