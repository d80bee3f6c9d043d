/* src/fsdp2/compile.h -- what a rank issues under FSDP2: autograd's ready queue and FSDP2's hooks, compiled to ops.
 *
 * compile(plan, state, round, letter) -> (segment, state'): forward and backward of one microbatch, a step end, or an evaluation
 * forward. The state is what a rank carries over: units gathered, units that ever ran, accumulated gradients, the executed
 * order for prefetch, pending buffers and events; canonical and finite.
 *   source  PyTorch torch/distributed/fsdp/_fully_shard (_fsdp_state.py, _fsdp_param_group.py, _fsdp_collectives.py) and
 *           torch/csrc/autograd/engine.cpp; judged by the recordings in tests/oracle/ */
#ifndef LS_FSDP2_COMPILE_H
#define LS_FSDP2_COMPILE_H

#include "batch/batch.h"
#include "ir/system.h"
#include "plan/plan.h"

/* Fixed streams of a rank. */
enum { LS_STREAM_D, LS_STREAM_CI, LS_STREAM_G, LS_STREAM_S, LS_STREAM_A };

struct ls_step_policy { bool stale_optimizer; /* made before fully_shard: it holds the parameters that sharding replaced */
                        uint32_t *overwritten; size_t overwrittens; /* parameters whose reduced gradients do not add up over microbatches */
                        bool clip_grad_norm, clip_local /* by the norm of the rank's own shards */; uint32_t *metric; size_t metrics; /* collectives after the last microbatch */
                        uint64_t validate_rank_uniform; /* 0: off; N; UINT64_MAX: always */
                        bool validate_in_tower; /* in the hook of a conditional module, not before the microbatch: hangs */
                        const bool *votes; uint32_t vote; /* [modules] whose forward, recomputed or not, begins with an all-reduce of one
                                                             i32 over dp_shard that its host reads; its name. NULL: none do. Without effect with
                                                             replicas. As AutoModel's DeepSeek-V4 asks whether any rank has a complete window */
                        struct ls_loc at; };

struct ls_compile_input {
    const struct ls_plan *plan;
    const struct ls_mesh *mesh;      /* sizes; `any` compiles with size 2: words do not depend on sizes */
    const struct ls_letters *letters;
    const struct ls_rounds *rounds;
    const struct ls_batch *batch;
    const struct ls_specs *specs;    /* what a dummy covers is named by role; may be NULL */
    struct ls_step_policy step;
    struct ls_tables *tables;        /* streams, events, payloads, causes are added here */
};
/* The transducer of one replica (roles = 1 for FSDP and HSDP). Also fills the communicators and how they lie.
 * An op LS_OP_STOP with a cause stands where this rank raises. */
LS_MUST_USE enum ls_code ls_fsdp2_open(const struct ls_compile_input *in, struct ls_arena *arena,
                                       struct ls_transducer **out, struct ls_error *err);
void ls_fsdp2_close(struct ls_transducer *t); /* accepts NULL */

#endif
