#include "sim/memory.h"

#include "base/vec.h"
#include "fsdp2/compile.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define PLAIN_NAME(id, name) name,
static const char *const memory_name[] = { LS_MEMORIES(PLAIN_NAME) };

const char *ls_memory_name(enum ls_memory_kind k)
{
    assert((unsigned)k < LS_MEMORY_COUNT);
    return memory_name[k];
}

struct block { uint32_t buffer, what; uint8_t pool; enum ls_memory_kind kind; uint64_t bytes; };
struct walk {
    const struct ls_memory_input *in;
    struct ls_sim_memory *out;
    uint64_t now[LS_MEMORY_COUNT], total, pool[LS_POOLS_MAX], pool_peak[LS_POOLS_MAX];
    LS_VEC(struct block) block;
    uint64_t *gradient, *own; /* [params] bytes held: of the unsharded gradient; of a sharded one that is no view */
    uint64_t start[LS_MEMORY_COUNT];
    uint32_t segment, op;
    bool changed;
};

static void take(struct walk *w, enum ls_memory_kind k, unsigned pool, uint64_t bytes)
{
    struct ls_sim_memory *m = w->out;
    if (!bytes)
        return;
    w->changed = true;
    w->now[k] += bytes;
    w->total += bytes;
    w->pool[pool] += bytes;
    if (w->pool[pool] > w->pool_peak[pool])
        w->pool_peak[pool] = w->pool[pool];
    if (w->now[k] > m->most[k])
        m->most[k] = w->now[k];
    if (w->total > m->peak) {
        m->peak = w->total;
        memcpy(m->at_peak, w->now, sizeof w->now);
        m->peak_segment = w->segment;
        m->peak_op = w->op;
    }
}

static void give(struct walk *w, enum ls_memory_kind k, unsigned pool, uint64_t bytes)
{
    assert(w->now[k] >= bytes && w->pool[pool] >= bytes);
    w->changed |= bytes > 0;
    w->now[k] -= bytes;
    w->total -= bytes;
    w->pool[pool] -= bytes;
}

static enum ls_memory_kind kind_of_buffer(const struct walk *w, const struct ls_op *op, uint32_t buffer)
{
    const char *name = ls_tables_name(w->in->tables, w->in->tables->buffer.at[buffer].name);
    if (!w->in->plan->model)
        return LS_MEMORY_OTHER;
    if (strncmp(name, "ag_out ", 7) == 0)
        return LS_MEMORY_GATHER;
    if (strncmp(name, "full ", 5) == 0)
        return LS_MEMORY_UNSHARDED;
    if (strncmp(name, "rs_in ", 6) == 0)
        return LS_MEMORY_REDUCE;
    /* The output becomes the sharded gradients, unless they are cast from it. */
    for (size_t u = 0; u < w->in->plan->units; u++)
        if (w->in->plan->unit[u].name == op->unit && w->in->plan->unit[u].params) {
            const struct ls_unit *x = &w->in->plan->unit[u];
            enum ls_dtype own = w->in->plan->model->param[x->param[0]].dtype;
            enum ls_dtype reduce = x->reduce_dtype != LS_DTYPE_NONE ? x->reduce_dtype : x->param_dtype != LS_DTYPE_NONE ? x->param_dtype : own;
            return reduce == own ? LS_MEMORY_SHARDED_GRADIENTS : LS_MEMORY_REDUCE;
        }
    return LS_MEMORY_REDUCE;
}

static void buffer_op(struct walk *w, const struct ls_op *op)
{
    uint32_t buffer = w->in->tables->range.at[op->range].buffer;
    if (op->kind == LS_OP_ALLOC) {
        struct block b = { buffer, op->module, op->stream, kind_of_buffer(w, op, buffer), op->bytes };
        ls_push(&w->block, b);
        take(w, b.kind, b.pool, b.bytes);
        return;
    }
    for (size_t i = 0; i < w->block.count; i++) /* the oldest of its name */
        if (w->block.at[i].buffer == buffer && w->block.at[i].what == op->module) {
            struct block b = w->block.at[i];
            memmove(&w->block.at[i], &w->block.at[i + 1], (w->block.count - i - 1) * sizeof b);
            w->block.count--;
            give(w, b.kind, b.pool, b.bytes);
            return;
        }
}

static const struct ls_unit *unit_of(const struct ls_plan *p, uint32_t param)
{
    return p->owner[param] == LS_NO_ID ? NULL : &p->unit[p->owner[param]];
}

static uint64_t full_gradient_bytes(const struct ls_memory_input *in, uint32_t param, bool kept)
{
    const struct ls_unit *u = unit_of(in->plan, param);
    const struct ls_param *p = &in->plan->model->param[param];
    const uint64_t elements = ls_plan_local_elements(in->plan, param);
    if (!u)
        return elements * ls_dtype_bytes(p->dtype);
    enum ls_dtype d = u->param_dtype != LS_DTYPE_NONE ? u->param_dtype : p->dtype;
    if (kept && u->reduce_dtype != LS_DTYPE_NONE && u->reduce_dtype != u->param_dtype)
        d = u->reduce_dtype;
    return elements * ls_dtype_bytes(d);
}

static uint32_t param_of(const struct walk *w, uint32_t name)
{
    const struct ls_model *m = w->in->plan->model;
    return name < m->known_names ? m->param_of_name[name] : LS_NO_ID;
}

/* The gradients were copied into a reduction's input. */
static void drop_gradients(struct walk *w, const struct ls_op *op)
{
    const struct ls_payload *p = &w->in->tables->payload.at[op->payload];
    for (size_t i = 0; i < p->count; i++) {
        uint32_t param = param_of(w, p->items[i]);
        if (param == LS_NO_ID)
            continue;
        give(w, LS_MEMORY_UNSHARDED_GRADIENTS, LS_STREAM_D, w->gradient[param]);
        w->gradient[param] = 0;
    }
}

/* Sharded gradients of another dtype than the reduction's are tensors of their own. */
static void own_gradients(struct walk *w, const struct ls_op *op, enum ls_dtype reduced)
{
    const struct ls_payload *p = &w->in->tables->payload.at[op->payload];
    for (size_t i = 0; i < p->count; i++) {
        uint32_t param = param_of(w, p->items[i]);
        if (param == LS_NO_ID || w->own[param] || w->in->plan->model->param[param].dtype == reduced)
            continue;
        w->own[param] = ls_plan_shard_elements(w->in->plan, param, w->in->shard) *
                        ls_dtype_bytes(w->in->plan->model->param[param].dtype);
        take(w, LS_MEMORY_SHARDED_GRADIENTS, LS_STREAM_S, w->own[param]);
    }
}

static void zero_grad(struct walk *w)
{
    for (size_t i = 0; i < w->in->plan->model->params; i++) {
        give(w, LS_MEMORY_SHARDED_GRADIENTS, LS_STREAM_S, w->own[i]);
        w->own[i] = 0;
        if (w->in->plan->owner[i] != LS_NO_ID)
            continue;
        give(w, LS_MEMORY_UNSHARDED_GRADIENTS, LS_STREAM_D, w->gradient[i]);
        w->gradient[i] = 0;
    }
}

static void optimizer_step(struct walk *w)
{
    uint64_t bytes;
    ls_memory_trained(w->in->plan, w->in->shard, &bytes);
    uint64_t temporary = w->in->optimizer == LS_OPT_ADAMW ? bytes : 0; /* foreach: the denominators of all parameters */
    take(w, LS_MEMORY_TEMPORARY, LS_STREAM_D, temporary);
    give(w, LS_MEMORY_TEMPORARY, LS_STREAM_D, temporary);
    zero_grad(w);
}

static void compute_op(struct walk *w, const struct ls_op *op, const struct ls_round_work *work)
{
    static const enum ls_memory_kind kept[] = { LS_MEMORY_ACTIVATIONS, LS_MEMORY_ACTIVATION_GRADIENTS, LS_MEMORY_LOGITS };
    for (uint32_t k = 0; k < op->kernels; k++) {
        const struct ls_kernel *kernel = &w->in->tables->kernel.at[op->kernel + k];
        const struct ls_kernel_work *x = &work->of[work->first[w->op] + k];
        for (size_t c = 0; c < LS_KEPTS; c++)
            take(w, kept[c], LS_STREAM_D, x->alloc[c]);
        take(w, LS_MEMORY_TEMPORARY, LS_STREAM_D, x->temporary);
        give(w, LS_MEMORY_TEMPORARY, LS_STREAM_D, x->temporary);
        for (size_t c = 0; c < LS_KEPTS; c++)
            give(w, kept[c], LS_STREAM_D, x->free[c]);
        if (kernel->what == LS_KERNEL_ACCUMULATE) {
            uint32_t param = kernel->statement;
            uint64_t bytes = w->gradient[param] ? 0 : full_gradient_bytes(w->in, param, false);
            w->gradient[param] += bytes;
            take(w, LS_MEMORY_UNSHARDED_GRADIENTS, LS_STREAM_D, bytes);
        }
        if (kernel->what == LS_KERNEL_OPTIMIZER || kernel->what == LS_KERNEL_LEFT_OUT)
            optimizer_step(w);
    }
}

/* Gradients that wait for a later microbatch are kept in the reduce dtype. */
static void keep_gradients(struct walk *w)
{
    for (uint32_t i = 0; i < w->in->plan->model->params; i++) {
        if (!w->gradient[i] || w->in->plan->owner[i] == LS_NO_ID)
            continue;
        uint64_t bytes = full_gradient_bytes(w->in, i, true);
        if (bytes > w->gradient[i])
            take(w, LS_MEMORY_UNSHARDED_GRADIENTS, LS_STREAM_D, bytes - w->gradient[i]);
        w->gradient[i] = bytes > w->gradient[i] ? bytes : w->gradient[i];
    }
}

uint64_t ls_memory_trained(const struct ls_plan *p, size_t shard, uint64_t *bytes)
{
    uint64_t elements = 0;
    *bytes = 0;
    for (uint32_t i = 0; i < p->model->params; i++) {
        const struct ls_param *x = &p->model->param[i];
        if (x->canonical != i || !p->requires_grad[i])
            continue;
        uint64_t n = ls_plan_shard_elements(p, i, shard);
        elements += n;
        *bytes += n * ls_dtype_bytes(x->dtype);
    }
    return elements;
}

static void begin(struct walk *w)
{
    const struct ls_plan *p = w->in->plan;
    uint64_t bytes, elements = ls_memory_trained(p, w->in->shard, &bytes);
    for (uint32_t i = 0; i < p->model->params; i++) {
        const struct ls_param *x = &p->model->param[i];
        bool free_standing = p->owner[i] == LS_NO_ID;
        if (x->canonical == i)
            take(w, free_standing ? LS_MEMORY_REPLICATED : LS_MEMORY_SHARDED, LS_STREAM_D,
                 ls_plan_shard_elements(p, i, w->in->shard) * ls_dtype_bytes(x->dtype));
    }
    switch (w->in->optimizer) {
    case LS_OPT_ADAMW: case LS_OPT_ADAMW_FUSED:
        take(w, LS_MEMORY_OPTIMIZER, LS_STREAM_D, 2 * bytes);
        break;
    case LS_OPT_ADAMW_MASTER:
        take(w, LS_MEMORY_OPTIMIZER, LS_STREAM_D, bytes < 4 * elements ? 12 * elements : 2 * bytes);
        break;
    case LS_OPT_NO_OPTIMIZER: case LS_OPT_COUNT:
        break;
    }
    w->out->persistent = w->total;
}

void ls_memory_of_rank(const struct ls_memory_input *in, const struct ls_rank_program *rank, struct ls_sim_memory *out)
{
    struct walk w = { .in = in, .out = out };
    size_t params = in->plan->model ? in->plan->model->params : 0;
    *out = (struct ls_sim_memory){ 0 };
    w.gradient = calloc(params + 1, sizeof *w.gradient);
    w.own = calloc(params + 1, sizeof *w.own);
    if (!w.gradient || !w.own)
        ls_out_of_memory(params * sizeof *w.own);
    if (params)
        begin(&w);
    for (w.segment = 0; w.segment < rank->count; w.segment++) {
        const struct ls_segment *s = rank->segment[w.segment];
        for (w.op = 0; w.op < s->count; w.op++) {
            const struct ls_op *op = &s->op[w.op];
            bool reduced = params && op->payload != LS_NO_ID && op->unit != LS_NO_ID && op->pass == LS_PASS_B;
            w.changed = false;
            if (op->kind == LS_OP_ALLOC || op->kind == LS_OP_FREE)
                buffer_op(&w, op);
            if (op->kind == LS_OP_COMPUTE && params && in->work && in->work[w.segment])
                compute_op(&w, op, in->work[w.segment]);
            if (op->kind == LS_OP_COPY_IN && reduced)
                drop_gradients(&w, op);
            if (reduced && (op->kind == LS_OP_REDUCE_SCATTER || op->kind == LS_OP_ALL_REDUCE))
                own_gradients(&w, op, (enum ls_dtype)op->dtype);
            if (w.changed && in->sample)
                in->sample(in->sample_context, w.segment, w.op, w.now);
        }
        if (params)
            keep_gradients(&w);
    }
    for (size_t i = 0; i < LS_POOLS_MAX; i++)
        out->reserved += w.pool_peak[i];
    free(w.gradient);
    free(w.own);
    ls_vec_release(&w.block);
}
