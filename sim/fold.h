/* sim/fold.h -- ranks that behave alike, and the small job in which one stands for all of them.
 *
 * Ranks are alike if they have the same segments and speed, and lie, on every communicator, in groups of equal placement whose members
 * are alike, as many of each kind. The machine then does the same to all of them at the same time, as long as the network does;
 * ls_sim_run watches that and starts anew, unfolded, if it does not. */
#ifndef LS_SIM_FOLD_H
#define LS_SIM_FOLD_H

#include "sim/sim.h"

struct ls_sim_fold {
    struct ls_job job;         /* one rank per class, by first rank; groups that are alike are one group */
    uint32_t *first;           /* [job.ranks] the first rank of each class */
    uint32_t *size;            /* [job.ranks] */
    uint32_t *class_of;        /* [ranks of the full job], index into first */
    size_t **group_first;      /* [comms][groups + 1] into group_list */
    uint32_t **group_list;     /* [comms] full groups, by folded group */
};
/* False, and *out unset, when nothing can be folded: jitter, point-to-point ops, or no two ranks alike. */
bool ls_sim_fold_job(const struct ls_job *full, const struct ls_platform *p, const struct ls_cost *cost, struct ls_arena *arena,
                     struct ls_sim_fold *out);

#endif
