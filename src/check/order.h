/* src/check/order.h -- the order graph of consecutive folded rounds, and its shortest cycle.
 *
 * Nodes are the ops of every agent of the last level and the collectives of every scope; edges are the local ones of a rank
 * (stream, communicator, event, host) and from each op to its collective to every member. Histories that reach the same place
 * are one node: a path between two collectives stays in one replica and only moves forward, so some history has it. With
 * late ops below level 0 the merged graph may have a cycle that no run has; without a cycle it proves order in any case.
 *
 * This is the dependency graph of Lemma 1 (semantics.md); that it agrees with the machine is tested, not assumed. */
#ifndef LS_CHECK_ORDER_H
#define LS_CHECK_ORDER_H

#include "check/fold.h"

/* A stretch of a cycle inside one replica, over rounds first .. last: the leaf agent in each. It leaves by a collective on
 * `comm` into another replica (LS_NO_ID: the cycle stays in one replica). */
struct ls_stretch { uint32_t first, last; uint32_t *leaf; uint32_t comm; }; /* leaf[round]; LS_NO_ID: any */
/* count 0: the merged graph has a cycle, but no single history has all of it. */
struct ls_cycle { struct ls_stretch *stretch; size_t count; };
struct ls_order { bool cyclic; struct ls_cycle cycle; size_t nodes; };
/* `blocking`: every op blocks its host thread (L1). */
void ls_order_check(const struct ls_fold *f, const struct ls_tree *const *tree, size_t rounds, bool blocking, struct ls_arena *arena,
                    struct ls_order *out);

#endif
