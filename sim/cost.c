#include "sim/cost.h"

#include "base/hash.h"
#include "sim/wide.h"

uint64_t ls_cost_compute_ps(const struct ls_cost *c, const struct ls_platform *p, const struct ls_tables *t, const struct ls_op *op)
{
    uint64_t ps;
    if (c->profile && c->profile(c->profile_context, t, op, &ps))
        return ps;
    enum ls_dtype dtype = op->dtype == LS_DTYPE_NONE ? LS_DTYPE_BF16 : (enum ls_dtype)op->dtype;
    double peak = p->flops[dtype] > 0 ? p->flops[dtype] : p->flops[LS_DTYPE_F32];
    /* Flops and bytes together are those of a layer, many kernels one after the other, bound by one or the other in turn. */
    bool layer = op->flops && op->bytes;
    double flops_s = (double)op->flops / (peak * (layer ? p->layer_efficiency : p->matmul_efficiency));
    double bytes_s = (double)op->bytes / ((double)p->hbm_Bps * (layer ? p->layer_efficiency : p->hbm_efficiency));
    return (uint64_t)((flops_s > bytes_s ? flops_s : bytes_s) * 1e12 + 0.5);
}

static uint64_t scale(uint64_t ps, uint64_t millionths)
{
    return (uint64_t)(((ls_wide)ps * millionths + LS_SPEED_ONE / 2) / LS_SPEED_ONE);
}

uint64_t ls_cost_scale_ps(const struct ls_cost *c, uint64_t nominal_ps, uint32_t rank, uint32_t segment, uint32_t op)
{
    uint64_t ps = c->slowness ? scale(nominal_ps, c->slowness[rank]) : nominal_ps;
    if (!c->jitter)
        return ps;
    uint64_t random = ls_hash_mix(ls_hash_mix(ls_hash_mix(c->seed, rank), segment), op);
    return scale(ps, LS_SPEED_ONE - c->jitter + ls_random_below(&random, 2 * (uint64_t)c->jitter + 1));
}

uint64_t ls_cost_issue_ps(const struct ls_cost *c, const struct ls_platform *p, const struct ls_tables *t, const struct ls_op *op)
{
    uint64_t ps;
    if (c->issue && c->issue(c->profile_context, t, op, &ps))
        return ps;
    switch ((enum ls_op_kind)op->kind) {
    case LS_OP_ALL_GATHER: case LS_OP_REDUCE_SCATTER: case LS_OP_ALL_REDUCE: case LS_OP_REDUCE: case LS_OP_BROADCAST:
    case LS_OP_ALL_TO_ALL: case LS_OP_GATHER: case LS_OP_SCATTER: case LS_OP_SCAN: case LS_OP_BARRIER: case LS_OP_DECIDE:
    case LS_OP_SEND: case LS_OP_RECV:
        return p->collective_ps;
    case LS_OP_COMPUTE: case LS_OP_COPY_IN: case LS_OP_COPY_OUT:
        return p->launch_ps;
    case LS_OP_RECORD: case LS_OP_WAIT:
        return p->event_ps;
    case LS_OP_ALLOC: case LS_OP_FREE:
        return p->alloc_ps;
    case LS_OP_COMM_INIT: case LS_OP_HOST_WAIT: case LS_OP_MARK: case LS_OP_STOP: case LS_OP_COUNT:
        return 0;
    }
    return 0;
}
