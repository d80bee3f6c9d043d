/* src/check/unfold.h -- a system on a mesh of given sizes, as one replica that makes all the choices.
 *
 * Its roles are all ranks, its letters the tuples of letters that the contract allows, its states tuples of states. No free
 * dimension is left, so folding it is exact: each folded round is the round of one concrete job. */
#ifndef LS_CHECK_UNFOLD_H
#define LS_CHECK_UNFOLD_H

#include "ir/system.h"

struct ls_unfolded {
    struct ls_system system;
    size_t replicas;
    const uint32_t *letter; /* [letters][replicas] */
};
/* False when the tuples are more than `letters_max`. Owned by `arena`, except for the transducer's tables: close it. */
bool ls_unfold(const struct ls_system *s, const size_t size[LS_FREE_DIMS], size_t letters_max, struct ls_arena *arena,
               struct ls_unfolded *out);
void ls_unfold_close(struct ls_unfolded *u);
/* A run of the unfolded system as one of the original. */
void ls_unfold_assignment(const struct ls_unfolded *u, const size_t size[LS_FREE_DIMS], const struct ls_assignment *a,
                          struct ls_arena *arena, struct ls_assignment *out);

#endif
