/* src/check/unroll.h -- one run of a system's driver with fixed sizes, as a family of ranks that choose. */
#ifndef LS_CHECK_UNROLL_H
#define LS_CHECK_UNROLL_H

#include "check/family.h"
#include "ir/system.h"

struct ls_unrolled {
    struct ls_family family;
    const uint32_t *node; size_t rounds; /* the driver's nodes that the run plays, in order */
};
/* The shortest run of at least `rounds_min` rounds in which some replica issues an operation, and after which the job may stop; a
 * table's run is as long as the table. What the driver decides is fixed by that; every replica chooses its letters freely, or as
 * the table says.
 *   size    ranks per free dimension, as in ls_assignment; ranks of the family = product x roles
 *   errors  LS_EINPUT: a contract in which replicas do not choose freely, or several ranks per replica, unless no round of the run leaves
 *           a choice; sizes that groups of the plan do not divide; no such run */
LS_MUST_USE enum ls_code ls_family_of_system(const struct ls_system *s, const size_t size[LS_FREE_DIMS], size_t rounds_min,
                                             struct ls_arena *arena, struct ls_unrolled *out, struct ls_error *err);

#endif
