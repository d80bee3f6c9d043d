/* src/check/unfold.h -- several replicas of a system as one replica that makes all their choices.
 *
 * Its roles are all their ranks, its letters the tuples of letters that the contract allows, its states tuples of states. With
 * a whole mesh of given sizes no free dimension is left, so folding is exact: each folded round is the round of one concrete
 * job. With blocks of a fixed number of neighbours, groups of that many become inner, and the number of blocks stays free. */
#ifndef LS_CHECK_UNFOLD_H
#define LS_CHECK_UNFOLD_H

#include "ir/system.h"

struct ls_unfolded {
    struct ls_system system;
    size_t replicas;        /* taken together */
    size_t along;           /* blocks: the dimension, as an index; LS_FREE_DIMS for a mesh */
    const uint32_t *letter; /* [letters][replicas] */
};
/* False when the tuples are more than `letters_max`. Owned by `arena`, except for the transducer's tables: close it. */
bool ls_unfold(const struct ls_system *s, const size_t size[LS_FREE_DIMS], size_t letters_max, struct ls_arena *arena,
               struct ls_unfolded *out);
/* Blocks of `k` neighbours along dimension `d`. `one`: there is a single block, and the dimension is gone.
 * False: too many tuples, or a communicator or contract that blocks do not carry over. */
bool ls_unfold_blocks(const struct ls_system *s, size_t d, size_t k, bool one, size_t letters_max, struct ls_arena *arena,
                      struct ls_unfolded *out);
void ls_unfold_close(struct ls_unfolded *u);
/* A run of the unfolded system as one of the original; `size` of a mesh, ignored for blocks. */
void ls_unfold_assignment(const struct ls_unfolded *u, const size_t size[LS_FREE_DIMS], const struct ls_assignment *a,
                          struct ls_arena *arena, struct ls_assignment *out);

#endif
