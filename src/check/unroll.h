/* src/check/unroll.h -- a system with fixed sizes, through one run of its driver, as a family of ranks that choose. */
#ifndef LS_CHECK_UNROLL_H
#define LS_CHECK_UNROLL_H

#include "check/family.h"
#include "ir/system.h"

/* The shortest run of the driver that plays at least one round with a choice and may stop; every replica chooses its letters freely,
 * or as the table says.
 *   size    ranks per free dimension, as in ls_assignment; ranks of the family = product x roles
 *   errors  LS_EINPUT: a contract in which replicas do not choose freely, several roles per replica, a driver that never stops */
LS_MUST_USE enum ls_code ls_family_of_system(const struct ls_system *s, const size_t size[LS_FREE_DIMS], struct ls_arena *arena,
                                             struct ls_family *out, struct ls_error *err);

#endif
