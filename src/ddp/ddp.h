/* src/ddp/ddp.h -- what a rank issues under PyTorch's DistributedDataParallel: buckets of gradients, all-reduced as they get ready.
 *
 * A transducer around one that computes without communication (a model in no unit): its backward says in which order gradients are
 * accumulated, this puts the calls of the reducer between.
 *   source  PyTorch 2.12 torch/nn/parallel/distributed.py, torch/csrc/distributed/c10d/reducer.cpp; judged by the recordings in
 *           tests/oracle/ddp/ */
#ifndef LS_DDP_DDP_H
#define LS_DDP_DDP_H

#include "batch/batch.h"
#include "ir/system.h"
#include "model/model.h"

struct ls_ddp {
    bool present;
    uint64_t bucket_bytes;           /* 0: 25 MiB, the first bucket 1 MiB; else of every bucket */
    bool find_unused, static_graph, broadcast_buffers;
    struct ls_loc at;
};
struct ls_ddp_input {
    const struct ls_ddp *ddp;
    const struct ls_model *model;
    const bool *requires_grad;       /* [params] */
    const struct ls_rounds *rounds;
    struct ls_transducer *inner;
    struct ls_tables *tables;
    uint32_t comm;                   /* all ranks; LS_NO_ID: one rank, nothing is said */
};
/* Buckets of parameters, in the order in which they are reduced.
 *   param     bucket b holds param[first[b] .. first[b + 1]) */
struct ls_ddp_buckets { uint32_t *param; size_t *first, count; };
/* compute_bucket_assignment_by_size over `order`: a bucket per dtype grows until it holds `limit` bytes or more; the first one of a dtype
 * has the limit `first_limit`. `sorted`: by their smallest place in the order, as for parameters that are not in gradient order. */
void ls_ddp_assign(const struct ls_model *m, const uint32_t *order, size_t count, uint64_t first_limit, uint64_t limit, bool sorted,
                   struct ls_arena *arena, struct ls_ddp_buckets *out);
/* Letters of `inner` are those of the batches. Buckets are rebuilt in the order in which the fullest batch's gradients get ready: PyTorch
 * takes rank 0's order of its first reduced backward, and broadcasts it. Closing it leaves `inner` open. */
LS_MUST_USE enum ls_code ls_ddp_open(const struct ls_ddp_input *in, struct ls_arena *arena, struct ls_transducer **out, struct ls_error *err);
void ls_ddp_close(struct ls_transducer *t); /* accepts NULL */

#endif
