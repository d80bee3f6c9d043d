/* src/check/merged.h -- a system whose communicators across replicas are one.
 *
 * The one queue orders what they carry, and their meetings are merged, so the dependency graph of the original is part of the
 * new one, with some nodes contracted: where the new system is safe, the old one is. It asks for more: all replicas must issue
 * these collectives in one common order. In return one communicator needs no bound on how far replicas are behind each other. */
#ifndef LS_CHECK_MERGED_H
#define LS_CHECK_MERGED_H

#include "ir/system.h"

struct ls_merged { struct ls_system system; };
/* Owned by `arena`, except for what ls_merged_close releases. Its step gives LS_EUNDECIDED for what cannot be merged: fused
 * operations, transfers, counts per member, the creation of a communicator. */
void ls_merge(const struct ls_system *s, struct ls_arena *arena, struct ls_merged *out);
void ls_merged_close(struct ls_merged *m);

#endif
