/* src/check/promela.h -- writes a family as a Promela model, for SPIN.
 *
 * The model has the states and steps of ls_explore without reductions, and shares no code with it: tables of each rank's ops
 * along each sequence of choices and agreed values, counters of what was issued and what each stream has done, one `do` loop with an option
 * per kind of step. Every option is a d_step, so SPIN stores as many states as ls_explore counts when it is compiled without
 * partial-order reduction (pan -DNOREDUCE).
 * A state in which nothing can move although not everything is done is an invalid end state; the model has no other errors.
 *
 * Not exported: L3 (the model has no slots), a bounded run-ahead, several host threads of a rank (it has one place per rank), fused ops
 * (they are done together), and what is no family: replicas that do not choose freely, or ranks that choose together (unroll.h).
 * Exported is one run of the driver: what it decides, and how often, is fixed; so a plan may be unsafe whose model is safe. */
#ifndef LS_CHECK_PROMELA_H
#define LS_CHECK_PROMELA_H

#include "base/str.h"
#include "check/family.h"
#include "machine/machine.h"

/*   errors  LS_EINPUT: L3, a bounded run-ahead, several host threads on a rank, fused ops, a decide whose sides are not in its
 *           segment, or more than 30,000 ops along all choices */
LS_MUST_USE enum ls_code ls_promela_write(const struct ls_family *f, const struct ls_run_options *run, const char *name,
                                          struct ls_str *out, struct ls_error *err);

#endif
