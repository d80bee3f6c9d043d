/* src/check/minimise.h -- the smallest failing run: fewest replicas, then fewest rounds, then few ops. */
#ifndef LS_CHECK_MINIMISE_H
#define LS_CHECK_MINIMISE_H

#include "check/check.h"

struct ls_minimise_options {
    size_t replicas_max;   /* meshes up to this many replicas are tried */
    size_t rounds_max;     /* 0: all runs of smaller meshes */
    size_t macro_states_max, work_max; /* per mesh, as in proof.h; 0: a default */
    double until;          /* ls_clock(); 0: never */
};
/* Meshes that the system's sizes allow, by replicas, up to `most`. Owned by `arena`. */
size_t ls_meshes(const struct ls_system *s, size_t most, struct ls_arena *arena, size_t (**out)[LS_FREE_DIMS]);
/* Searches all meshes with fewer replicas than *best, and runs with fewer rounds on as many. *minimal: nothing was left out.
 * With best->rounds = 0 there is no failing run yet; *found tells whether there is one now. */
LS_MUST_USE enum ls_code ls_minimise(const struct ls_system *s, const struct ls_minimise_options *o, struct ls_arena *arena,
                                     struct ls_assignment *best, bool *found, bool *minimal, size_t *explored, struct ls_error *err);

#endif
