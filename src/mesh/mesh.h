/* src/mesh/mesh.h -- the device mesh: sizes of its dimensions, and how ranks lie in it.
 *
 * Shape (pp, dp_replicate, dp_shard, cp, tp), row-major over ranks, tp fastest. A free dimension may be `any` (0): proved for
 * every size. FSDP shards over dp_shard; with dp_replicate > 1 (HSDP) it also all-reduces over dp_replicate.
 *
 * Expert parallelism regroups the ranks of a pipeline stage as (ep_shard, ep), ep fastest: an expert group is ep consecutive ranks,
 * each of which holds 1 / ep of the experts; ranks with the same place in their groups shard those among each other. */
#ifndef LS_MESH_MESH_H
#define LS_MESH_MESH_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { LS_SIZE_ANY = 0 };
struct ls_mesh_input { uint64_t dp, dp_replicate, cp, tp, pp, ep, world; bool dp_any, replicate_any, dp_given; struct ls_loc at; };
struct ls_mesh {
    size_t replicate, shard;   /* 1: the dimension does not exist; LS_SIZE_ANY */
    size_t cp, tp, pp, ep;
    size_t ep_shard;           /* LS_SIZE_ANY: two or more */
};
/* dp_size is replicate x shard; absent, it is world / (cp tp pp).
 * Absent sizes (0) are 1. `dp_replicate_size` may equal `dp_size` (every shard group has one rank): FSDP2 allows it; AutoModel
 * does not, which its rule set checks. `any` beside ep: every multiple of ep from 2 ep on.
 *   errors  LS_EINPUT: sizes that do not divide (dp by dp_replicate, world by cp tp pp, non-pp ranks by ep), contradict the
 *           world size or `any`, or exceed 2^20 */
LS_MUST_USE enum ls_code ls_mesh_make(const struct ls_mesh_input *in, struct ls_mesh *out, struct ls_error *err);
/* Expert groups again, after sizes that were `any`, or others, have been chosen.
 *   errors  LS_EINPUT: ep does not divide the ranks of a pipeline stage */
LS_MUST_USE enum ls_code ls_mesh_regroup(struct ls_mesh *m, struct ls_loc at, struct ls_error *err);
size_t ls_mesh_ranks(const struct ls_mesh *m); /* 0 if a size is any */

#endif
