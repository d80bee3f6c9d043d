/* src/check/sweep.h -- runs concrete assignments of one mesh one after the other: what is left when neither folding nor
 * unfolding decides. All of them within the bounds if they are few, else the first ones and as many drawn at random. */
#ifndef LS_CHECK_SWEEP_H
#define LS_CHECK_SWEEP_H

#include "ir/system.h"
#include "machine/machine.h"

struct ls_sweep_options {
    size_t rounds_max, runs_max;
    uint64_t seed;
    double until;      /* ls_clock(); 0: never */
};
struct ls_sweep {
    bool failed, complete;           /* complete: every assignment within rounds_max was run,
                                        in every order of starts (L3: of which so many are tried in all, then a few of each) */
    size_t runs;
    struct ls_assignment assignment; /* failed: a run with the fewest rounds */
};
/* Runs a job as the system says: its level, slots and start rule. With few slots and free start order every order of starts
 * is tried, up to a limit; the outcome is then SAFE only as far as they were (*complete, which may be NULL). */
LS_MUST_USE enum ls_code ls_system_run(const struct ls_system *s, const struct ls_job *job, struct ls_arena *arena,
                                       struct ls_outcome *out, bool *complete, struct ls_error *err);
LS_MUST_USE enum ls_code ls_sweep(const struct ls_system *s, const size_t size[LS_FREE_DIMS], const struct ls_sweep_options *o,
                                  struct ls_arena *arena, struct ls_sweep *out, struct ls_error *err);

#endif
