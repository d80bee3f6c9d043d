/* src/check/reach.h -- what one replica can do: every (driver node, state) with a shortest way there, and runs that take every
 * transition at least once. */
#ifndef LS_CHECK_REACH_H
#define LS_CHECK_REACH_H

#include "ir/system.h"

struct ls_reached { uint32_t driver, state, from, letter, depth; };
struct ls_reach {
    LS_VEC(struct ls_reached) at;
    const struct ls_segment **segment; size_t segments, *role_of; /* distinct segments by role */
    bool complete;
    bool factors;     /* some reduction or step has a factor of its own */
};
/* False in `complete` when there are more than `most` pairs. Owned by `arena` but for `at`: ls_vec_release. */
LS_MUST_USE enum ls_code ls_reach_all(const struct ls_system *s, size_t most, struct ls_arena *arena, struct ls_reach *out,
                                      struct ls_error *err);

/* Runs in which one replica goes a shortest way to a pair, takes a letter there, and goes on to the nearest stop. The other
 * replicas take, in every round, the letter `shift` places further among those that the contract lets them have.
 *   index  counts pairs x letters x shifts; false past the end; *fits is false where driver or contract rule the run out */
bool ls_reach_run(const struct ls_system *s, const struct ls_reach *r, size_t index, const size_t size[LS_FREE_DIMS],
                  struct ls_arena *arena, struct ls_assignment *out, bool *fits);

#endif
