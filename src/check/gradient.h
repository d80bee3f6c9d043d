/* src/check/gradient.h -- symbolic execution of gradients over a job that completed.
 *
 * The value of a gradient buffer is the multiset of (rank, microbatch) shares with a rational factor. Ops carry what is needed:
 *   compute, pass B, payload P       adds this rank's share of this microbatch to each parameter in P's items; with `sources`, the
 *                                    shares of every member of the rank's group: these are experts, and a rank's place in the group
 *                                    says which ones it has
 *   copy_in, pass B, payload P       moves the accumulated shares of P's items into the reduction buffer of op.unit
 *   reduce_scatter, all_reduce (unit, payload P)   combines the members' buffers of that unit
 *   compute, pass B, factor 0        what was reduced so far of P's items is overwritten
 *   copy_out, pass B, payload P      a unit's buffer that nobody else has a part of; held: what an all_reduce has left in a bucket
 *   compute, pass OPT, factor        scales what the step will find
 *   compute, pass OPT                the step: every share of the parameters in its payload must have arrived
 *                                    (kernel LEFT_OUT: this rank does not update its shards of P's items. Lost where others do,
 *                                    if it holds any of their rows: ls_tables_rows).
 *                                    Of experts that no reduction carries, what has accumulated is there.
 *                                    With factor 0: the optimizer holds other tensors, and nothing arrives.
 *                                    With a symbol: scaled by a factor of the rank's own, here 1 / (rank + 2)
 * Expected: each share once, with factor 1 / replicas (mean) or 1 (sum); of experts, the shares for those of the rank. */
#ifndef LS_CHECK_GRADIENT_H
#define LS_CHECK_GRADIENT_H

#include "check/check.h"

/* SAFE, LOST_GRADIENT or WRONG_SCALE. The job must have completed under ls_machine_run.
 *   share    one per backward compute of a parameter on a rank in a microbatch; counted as often as it is produced
 *   factor   an average over n members is 1/n; op.factor multiplies
 *   mean     expected 1 / ranks of the job, else 1
 *   problem  of the first wrong parameter by rank and program order; `missing` shares have factor 0 */
LS_MUST_USE enum ls_code ls_check_gradients(const struct ls_job *job, bool mean, enum ls_verdict *out,
                                            struct ls_share_problem *problem, struct ls_error *err);

#endif
