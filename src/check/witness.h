/* src/check/witness.h -- a concrete mesh and letters from a folded violation (the constructions of Theorem 1).
 *
 * Replicas that differ in one dimension for words; a walk around the cycle, one fresh coordinate per move, for order. */
#ifndef LS_CHECK_WITNESS_H
#define LS_CHECK_WITNESS_H

#include "check/order.h"

/* The rounds of a run of the fold: driver nodes and trees from the start. */
struct ls_path { const uint32_t *node; const struct ls_tree *const *tree; size_t rounds; };

/* The last round's problem (tree.problem). False if no run within the given sizes and the contract shows it. */
bool ls_witness_of_problem(const struct ls_fold *f, const struct ls_path *p, struct ls_arena *arena, struct ls_assignment *out);
/* A run in which some replica is `leaf` (an agent of the last round's tree). */
bool ls_witness_of_leaf(const struct ls_fold *f, const struct ls_path *p, uint32_t leaf, struct ls_arena *arena, struct ls_assignment *out);
/* A cycle over the rounds from `first` on. */
bool ls_witness_of_cycle(const struct ls_fold *f, const struct ls_path *p, size_t first, const struct ls_cycle *c, struct ls_arena *arena,
                         struct ls_assignment *out);
/* Does the contract, with what it adds to a free one, allow the run? */
bool ls_contract_allows(const struct ls_system *s, const struct ls_assignment *a);

#endif
