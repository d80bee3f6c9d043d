/* sim/memory.h -- one rank's memory over its program, by category and by pool.
 *
 * The caching allocator hands out and takes back memory when the host thread gets there (FSDP2 records no streams), so what is allocated is a
 * function of the program, not of time: this walks the ops in host order. Read from the ops: gather and reduce buffers, unsharded
 * parameters; from the plan: shards; from sim/work.h: what kernels keep. Gradients of unsharded parameters are added here: from the
 * first AccumulateGrad of a parameter to the copy-in of its reduction, raised to the reduce dtype where they wait for a later microbatch.
 *
 *   state     optimizer states exist from the start: a steady step, not the first. AdamW keeps two tensors of the parameter's
 *             dtype (torch.optim.AdamW); with `master`, and half-precision parameters, three of f32
 *   reserved  estimate: the sum over pools (one per allocating stream) of the pool's own peak. Blocks do not move between pools;
 *             fragmentation within a pool is not modelled, so it is a lower bound of what the allocator reserves
 *   oom       allocated at its peak + what driver and context take > the device's memory
 *   units     bytes
 *   source    PyTorch _fsdp_collectives.py, _fsdp_param.py (who holds what until when), c10/cuda/CUDACachingAllocator.cpp (pools) */
#ifndef LS_SIM_MEMORY_H
#define LS_SIM_MEMORY_H

#include "scenario/timing.h"
#include "sim/work.h"

#define LS_MEMORIES(X)                                                                                                             \
    X(SHARDED, "sharded parameters") X(REPLICATED, "parameters in no unit") X(OPTIMIZER, "optimizer states")                        \
    X(SHARDED_GRADIENTS, "sharded gradients") X(UNSHARDED, "unsharded parameters") X(UNSHARDED_GRADIENTS, "unsharded gradients")    \
    X(GATHER, "gather buffers") X(REDUCE, "reduce buffers") X(ACTIVATIONS, "activations")                                          \
    X(ACTIVATION_GRADIENTS, "activation gradients") X(LOGITS, "logits and loss") X(TEMPORARY, "temporaries") X(OTHER, "other buffers")
#define LS_MEMORY_ENUM(id, name) LS_MEMORY_##id,
enum ls_memory_kind { LS_MEMORIES(LS_MEMORY_ENUM) LS_MEMORY_COUNT };
#undef LS_MEMORY_ENUM
const char *ls_memory_name(enum ls_memory_kind k);

enum { LS_POOLS_MAX = 256 };
struct ls_sim_memory {
    uint64_t peak, at_peak[LS_MEMORY_COUNT], most[LS_MEMORY_COUNT]; /* most: of each category by itself */
    uint32_t peak_segment, peak_op;
    uint64_t reserved, persistent; /* persistent: before the first op */
};
struct ls_memory_input {
    const struct ls_plan *plan;
    const struct ls_tables *tables;
    size_t shard;
    enum ls_optimizer optimizer;
    const struct ls_round_work *const *work; /* [segments of the rank]; NULL where nothing is known */
    /* After every op that changed something. May be NULL. */
    void (*sample)(void *context, uint32_t segment, uint32_t op, const uint64_t now[LS_MEMORY_COUNT]);
    void *sample_context;
};
/* plan->model NULL: a raw program, of which only buffers are known. */
void ls_memory_of_rank(const struct ls_memory_input *in, const struct ls_rank_program *rank, struct ls_sim_memory *out);
/* Elements that the optimizer of one rank updates, and their bytes in the parameters' dtypes. */
uint64_t ls_memory_trained(const struct ls_plan *p, size_t shard, uint64_t *bytes);

#endif
