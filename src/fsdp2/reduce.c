/* Reductions of a unit: which gradients, in which dtype, reduce-scatter and all-reduce, and who frees the buffers when.
 *   source  _fsdp_param_group.py (post_backward), _fsdp_collectives.py (foreach_reduce) */
#include "fsdp2/internal.h"

#include <assert.h>

void free_reduce_in(struct run *r, struct reduce_entry e)
{
    emit_memory(r, LS_OP_FREE, "rs_in", e.unit, LS_STREAM_D, input_buffer(r, e.unit, e.slot), 0);
}

/* The oldest entries go, each waited for and freed, until `keep` are left. */
static void drop_reduces(struct run *r, struct context_state *k, size_t keep)
{
    while (k->reduces.count > keep) {
        struct reduce_entry e = k->reduces.at[0];
        emit_wait(r, "reduced", e.unit, e.slot, LS_STREAM_D);
        free_reduce_in(r, e);
        for (size_t i = 1; i < k->reduces.count; i++)
            k->reduces.at[i - 1] = k->reduces.at[i];
        k->reduces.count--;
    }
}

/* All are waited for, then the list is cleared. *last is freed by the caller: a local variable still holds it. */
bool clear_reduces(struct run *r, struct context_state *k, struct reduce_entry *last)
{
    size_t n = k->reduces.count;
    for (size_t i = 0; i < n; i++)
        emit_wait(r, "reduced", k->reduces.at[i].unit, k->reduces.at[i].slot, LS_STREAM_D);
    for (size_t i = n; i-- > 1;) /* Python clears a list from its end */
        free_reduce_in(r, k->reduces.at[i - 1]);
    if (n)
        *last = k->reduces.at[n - 1];
    k->reduces.count = 0;
    return n > 0;
}

/* The output of a reduction lives while something refers to it: sharded gradients that are views of it, the partial output of
 * hybrid sharding, the kept all-reduce buffer. */
bool output_used(const struct run *r, uint32_t unit, uint32_t slot)
{
    const struct unit_state *s = &r->now.unit[unit];
    if ((s->partial && s->partial_slot == slot) || (s->all_reduce_kept && s->all_reduce_slot == slot))
        return true;
    const struct ls_unit *u = unit_of(r, unit);
    for (size_t i = 0; i < u->params; i++)
        if (r->now.sharded[u->param[i]] == SHARDED_GRAD_VIEW + slot)
            return true;
    return false;
}

void free_output(struct run *r, uint32_t unit, uint32_t slot)
{
    emit_memory(r, LS_OP_FREE, "rs_out", unit, context_stream(r, unit, LS_STREAM_S), output_buffer(r, unit, slot), 0);
}

/* The least number that no live reduction input of the unit has: those listed, and the one that a local variable still holds. */
static uint32_t input_slot(struct run *r, uint32_t unit)
{
    const struct context_state *k = unit_context(r, unit);
    for (uint32_t slot = 0;; slot++) {
        bool used = r->holds && r->held.unit == unit && r->held.slot == slot;
        for (size_t i = 0; i < k->reduces.count; i++)
            used |= k->reduces.at[i].unit == unit && k->reduces.at[i].slot == slot;
        if (!used)
            return slot;
    }
}

static uint32_t new_slot(const struct run *r, uint32_t unit)
{
    uint32_t slot = 0;
    while (output_used(r, unit, slot))
        slot++;
    assert(SHARDED_GRAD_VIEW + slot < UINT8_MAX);
    return slot;
}

void unit_drop_gradient(struct run *r, uint32_t param)
{
    uint32_t unit = r->c->in.plan->owner[param];
    uint8_t had = r->now.sharded[param];
    r->now.sharded[param] = SHARDED_GRAD_NONE;
    if (had >= SHARDED_GRAD_VIEW && !output_used(r, unit, (uint32_t)(had - SHARDED_GRAD_VIEW)))
        free_output(r, unit, (uint32_t)(had - SHARDED_GRAD_VIEW));
}

void emit_reduced(struct run *r, enum ls_unit_mesh mesh, bool write)
{
    for (uint32_t u = 0; u < r->c->in.plan->units; u++) {
        const struct ls_unit *of = unit_of(r, u);
        bool any = false;
        for (size_t i = 0; i < of->params; i++)
            any |= r->now.sharded[of->param[i]] != SHARDED_GRAD_NONE;
        if (any && of->mesh == mesh)
            emit_range(r, r->c->buffer.reduced[u], write);
    }
}

void wait_for_post_backward(struct run *r, uint32_t unit)
{
    struct unit_state *s = &r->now.unit[unit];
    if (s->post_reduce)
        emit_wait(r, "post_reduce", unit, s->post_reduce - 1u, LS_STREAM_D);
    s->post_reduce = 0;
    if (s->all_reduce_kept) {
        emit_wait(r, "all_reduced", unit, 0, LS_STREAM_D);
        s->all_reduce_kept = false;
        if (!output_used(r, unit, s->all_reduce_slot))
            free_output(r, unit, s->all_reduce_slot);
    }
}

/* The end of a reduction on S, or on A after an all-reduce. `writes`: what came out was divided, cast or added to what is there, on the same
 * stream: behind the collective, so that nothing ordered by its communicator alone sees the gradients. */
static void record_post_reduce(struct run *r, uint32_t unit, bool all_reduced, bool writes)
{
    struct context_state *k = unit_context(r, unit);
    emit_record(r, "post_reduce", unit, all_reduced, context_stream(r, unit, all_reduced ? LS_STREAM_A : LS_STREAM_S));
    if (writes)
        emit_range(r, r->c->buffer.reduced[unit], true);
    r->now.unit[unit].post_reduce = 1 + all_reduced;
    if (k->last_reduced[all_reduced] == LS_NO_ID) /* streams are waited for in the order of their first use */
        k->all_reduce_first = all_reduced && k->last_reduced[0] == LS_NO_ID;
    k->last_reduced[all_reduced] = unit;
}

/* The reduce dtype is kept apart only where it differs from the dtype of the gradients. */
static enum ls_dtype grad_dtype(const struct run *r, uint32_t unit, uint32_t param, bool accumulated)
{
    enum ls_dtype own = gather_dtype(r, unit, param), reduce = unit_of(r, unit)->reduce_dtype;
    return accumulated && reduce != LS_DTYPE_NONE ? reduce : own;
}

static bool keeps_reduce_dtype(const struct run *r, uint32_t unit)
{
    const struct ls_unit *u = unit_of(r, unit);
    return u->reduce_dtype != LS_DTYPE_NONE && u->reduce_dtype != u->param_dtype;
}

static void reduce_ops(const struct run *r, uint32_t unit, enum ls_dtype dtype, enum ls_reduce *op, uint32_t *before, uint32_t *after)
{
    size_t ranks = unit_ranks(r, unit) * (unit_hsdp(r, unit) ? r->c->replicate : 1);
    *before = *after = 1;
    if (dtype == LS_DTYPE_F32 || dtype == LS_DTYPE_BF16) {
        *op = ranks == 1 ? LS_REDUCE_SUM : LS_REDUCE_AVG;
        return;
    }
    /* Narrow dtypes: divide by about the square root before and after, to avoid overflow and underflow. */
    *op = LS_REDUCE_SUM;
    while (ranks % *before == 0 && ranks / *before > *before)
        *before *= 2;
    *after = (uint32_t)(ranks / *before);
}

static void view_output(struct run *r, const id_vec *params, enum ls_dtype dtype, uint32_t output)
{
    const struct ls_model *m = r->c->in.plan->model;
    uint64_t cast = 0, all = 0;
    for (size_t i = 0; i < params->count; i++) {
        uint64_t n = padded_shard(r, params->at[i]);
        all += n;
        cast += m->param[params->at[i]].dtype != dtype ? n : 0;
    }
    /* Up to 2.12 there is one dtype. Later, few views are copied out rather than that they keep a large buffer alive. */
    bool copy_rest = cast > all - cast;
    for (size_t i = 0; i < params->count; i++)
        if (r->now.sharded[params->at[i]] == SHARDED_GRAD_NONE) {
            bool own = copy_rest || m->param[params->at[i]].dtype != dtype;
            r->now.sharded[params->at[i]] = (uint8_t)(own ? SHARDED_GRAD_OWN : SHARDED_GRAD_VIEW + output);
        }
}

/* The output is the sharded gradients. */
static bool only_views(const struct run *r, const id_vec *params, enum ls_dtype dtype, uint32_t divided_after)
{
    bool views = divided_after == 1;
    for (size_t i = 0; i < params->count; i++)
        views = views && r->now.sharded[params->at[i]] == SHARDED_GRAD_NONE && r->c->in.plan->model->param[params->at[i]].dtype == dtype;
    return views;
}

/* Since 2.13 a partial output is repacked when another set of parameters comes. */
static void repack_partial(struct run *r, uint32_t unit, const id_vec *params)
{
    struct unit_state *s = &r->now.unit[unit];
    const struct ls_unit *u = unit_of(r, unit);
    if (!s->partial && r->round->all_reduce)
        return;
    if (s->partial)
        emit_wait_stream(r, context_stream(r, unit, LS_STREAM_S), LS_STREAM_D);
    bool same = true;
    uint64_t shard = 0;
    for (size_t i = 0; i < u->params; i++) {
        bool in = false;
        for (size_t k = 0; k < params->count; k++)
            in |= params->at[k] == u->param[i];
        same &= in == (r->now.partial[u->param[i]] != 0);
        r->now.partial[u->param[i]] = in;
        shard += in ? padded_shard(r, u->param[i]) : 0;
    }
    if (s->partial && !same) { /* a new tensor takes its place */
        uint32_t old = s->partial_slot;
        s->partial_slot = PARTIAL_REPACKED;
        s->partial_elements = shard;
        if (old != PARTIAL_REPACKED && !output_used(r, unit, old))
            free_output(r, unit, old);
    }
}

static void reduce(struct run *r, uint32_t unit, const id_vec *params, enum ls_dtype dtype)
{
    struct unit_state *s = &r->now.unit[unit];
    struct context_state *k = unit_context(r, unit);
    const struct ls_unit *u = unit_of(r, unit);
    bool hsdp = unit_hsdp(r, unit), alone = unit_ranks(r, unit) == 1;
    if (u->reduce_dtype != LS_DTYPE_NONE) {
        dtype = u->reduce_dtype;
    } else if (rewritten(r)) { /* the dtype in which gradients accumulate: the parameters' own */
        dtype = r->c->in.plan->model->param[params->at[0]].dtype;
        for (size_t i = 1; i < params->count; i++)
            if (ls_dtype_bytes(r->c->in.plan->model->param[params->at[i]].dtype) > ls_dtype_bytes(dtype))
                dtype = r->c->in.plan->model->param[params->at[i]].dtype;
    }
    enum ls_reduce op_kind;
    uint32_t before, after;
    reduce_ops(r, unit, dtype, &op_kind, &before, &after);
    if (hsdp && rewritten(r))
        repack_partial(r, unit, params);
    uint64_t shard = 0;
    id_vec names = { 0 };
    for (size_t i = 0; i < params->count; i++) {
        shard += padded_shard(r, params->at[i]);
        ls_push(&names, r->c->in.plan->model->param[params->at[i]].name);
    }
    uint32_t payload = ls_tables_payload(r->c->in.tables, ls_name_text(r->c->names, u->name), names.at, names.count, shard);
    ls_vec_release(&names);
    const bool views = only_views(r, params, dtype, after);
    uint32_t slot = input_slot(r, unit), in = input_buffer(r, unit, slot);
    uint32_t output = new_slot(r, unit), out = output_buffer(r, unit, output);
    unsigned stream = context_stream(r, unit, LS_STREAM_S);
    emit_memory(r, LS_OP_ALLOC, "rs_in", unit, LS_STREAM_D, in, shard * unit_ranks(r, unit) * ls_dtype_bytes(dtype));
    struct ls_op *op = emit(r, LS_OP_COPY_IN, LS_STREAM_D, unit);
    op->payload = payload;
    op->bytes = 2 * shard * unit_ranks(r, unit) * ls_dtype_bytes(dtype);
    emit_range(r, in, true);
    emit_wait_stream(r, stream, LS_STREAM_D);
    emit_memory(r, LS_OP_ALLOC, "rs_out", unit, stream, out, shard * ls_dtype_bytes(dtype));
    if (alone) {
        op = emit(r, LS_OP_COPY_OUT, stream, unit); /* a copy instead of a collective */
    } else {
        op = emit(r, LS_OP_REDUCE_SCATTER, stream, unit);
        op->comm = (uint16_t)(u->mesh == LS_UNIT_EXPERTS ? r->c->comm_experts : r->c->comm_reduce);
        op->dtype = (uint8_t)dtype;
        op->reduce = (uint8_t)op_kind;
        op->count = shard;
        if (before != 1)
            op->factor = (struct ls_ratio){ 1, before };
        if (after != 1 && !hsdp)
            op->factor.den = (op->factor.num = 1, before * after);
    }
    op->payload = payload;
    emit_range(r, in, false);
    emit_range(r, out, true);
    if (!hsdp && views)
        emit_range(r, r->c->buffer.reduced[unit], true);
    emit_record(r, "reduced", unit, slot, stream);
    unsigned post = stream;
    if (hsdp && s->partial && s->partial_elements != shard) {
        assert(!rewritten(r) && "repacked before");
        emit_stop(r, unit, "partial_reduce_shape: '%s' has %llu elements to add to a partial output of %llu",
                  ls_name_text(r->c->names, u->name), (unsigned long long)shard, (unsigned long long)s->partial_elements);
        return;
    }
    if (hsdp) {
        bool all = r->round->all_reduce;
        if (!all) {
            record_post_reduce(r, unit, false, false);
            ls_push(&k->reduces, (struct reduce_entry){ unit, slot });
            if (s->partial) { /* added to what is there */
                if (!output_used(r, unit, output))
                    free_output(r, unit, output);
            } else {
                s->partial = true;
                s->partial_slot = output;
                s->partial_elements = shard;
            }
            return;
        }
        post = context_stream(r, unit, LS_STREAM_A);
        emit_wait_stream(r, post, stream);
        op = emit(r, LS_OP_ALL_REDUCE, post, unit);
        op->comm = (uint16_t)r->c->comm_replicate;
        op->dtype = (uint8_t)dtype;
        op->reduce = (uint8_t)op_kind;
        op->count = shard;
        op->payload = payload;
        if (after != 1)
            op->factor = (struct ls_ratio){ 1, after };
        emit_range(r, out, true);
        if (views)
            emit_range(r, r->c->buffer.reduced[unit], true);
        emit_record(r, "all_reduced", unit, 0, post);
        s->all_reduce_kept = true;
        s->all_reduce_slot = output;
    }
    /* Sharded gradients are views of the output, unless it is cast to the parameters' dtype or added to what is there. */
    view_output(r, params, dtype, output);
    /* Up to 2.12 the cast rebinds the only name of the output, unless the all-reduce keeps it. */
    bool early = !rewritten(r) && dtype != r->c->in.plan->model->param[params->at[0]].dtype && !output_used(r, unit, output);
    if (early)
        free_output(r, unit, output);
    record_post_reduce(r, unit, hsdp, !views);
    ls_push(&k->reduces, (struct reduce_entry){ unit, slot });
    bool partial = hsdp && s->partial;
    if (!early && !output_used(r, unit, output))
        free_output(r, unit, output);
    if (partial) {
        s->partial = false;
        if (s->partial_slot != PARTIAL_REPACKED && !output_used(r, unit, s->partial_slot))
            free_output(r, unit, s->partial_slot);
    }
}

/* Gradients kept for later are raised to the reduce dtype; reading a parameter that was never gathered raises. */
static void keep_gradients(struct run *r, uint32_t unit)
{
    const struct ls_unit *u = unit_of(r, unit);
    if (!keeps_reduce_dtype(r, unit) || rewritten(r)) /* later autograd accumulates in the wider dtype itself */
        return;
    for (size_t i = 0; i < u->params; i++) {
        if (!r->now.unit[unit].ever_unsharded) {
            if (r->c->in.plan->runtime.lazy_state_guard)
                return;
            emit_stop(r, unit, "never_unsharded: no '_unsharded_param' in '%s', which never ran on this rank",
                      ls_name_text(r->c->names, u->name));
            return;
        }
        if (r->now.grad[u->param[i]] == GRAD_FRESH) {
            r->now.grad[u->param[i]] = GRAD_NONE;
            r->now.accumulated[u->param[i]] = 1;
        }
    }
}

static bool reduces_now(const struct run *r, uint32_t unit)
{
    return r->round->gradient_sync || unit_of(r, unit)->always_reduces;
}

static void fallback_zeros(struct run *r, uint32_t unit)
{
    const struct ls_unit *u = unit_of(r, unit);
    if (u->unused_params != LS_UNUSED_FALLBACK || r->now.unit[unit].group != PRE_BACKWARD || !reduces_now(r, unit) ||
        !r->now.unit[unit].ever_unsharded)
        return;
    for (size_t i = 0; i < u->params; i++)
        if (r->c->in.plan->requires_grad[u->param[i]] && !r->now.accumulated[u->param[i]])
            r->now.grad[u->param[i]] = GRAD_FRESH;
}

static void collect_one(struct run *r, uint32_t unit, uint32_t p, id_vec *params, enum ls_dtype *dtype, bool *mixed)
{
    const struct ls_unit *u = unit_of(r, unit);
    bool zeros = rewritten(r) && ((u->unused_params == LS_UNUSED_NATIVE && r->c->in.plan->requires_grad[p]) ||
                                  (r->now.unit[unit].partial && r->now.partial[p]));
    if (!r->now.accumulated[p] && r->now.grad[p] == GRAD_NONE && !zeros)
        return;
    enum ls_dtype d = grad_dtype(r, unit, p, r->now.accumulated[p]);
    *mixed |= params->count && d != *dtype;
    if (!params->count || ls_dtype_bytes(d) > ls_dtype_bytes(*dtype))
        *dtype = d;
    ls_push(params, p);
    r->now.accumulated[p] = 0;
    r->now.grad[p] = GRAD_NONE;
}

/* The parameters that have a gradient, in buffer order: the unit's own; since 2.13 sorted by dtype, those first met first.
 * True if gradients of several dtypes are among them, which only versions up to 2.12 mind. */
static bool collect_gradients(struct run *r, uint32_t unit, id_vec *params, enum ls_dtype *dtype)
{
    const struct ls_unit *u = unit_of(r, unit);
    const struct ls_model *m = r->c->in.plan->model;
    bool mixed = false;
    if (!r->now.unit[unit].ever_unsharded)
        return false;
    if (!rewritten(r)) {
        for (size_t i = 0; i < u->params; i++)
            collect_one(r, unit, u->param[i], params, dtype, &mixed);
        return mixed;
    }
    for (size_t first = 0; first < u->params; first++) {
        bool met = false;
        for (size_t i = 0; i < first; i++)
            met |= m->param[u->param[i]].dtype == m->param[u->param[first]].dtype;
        for (size_t i = first; !met && i < u->params; i++)
            if (m->param[u->param[i]].dtype == m->param[u->param[first]].dtype)
                collect_one(r, unit, u->param[i], params, dtype, &mixed);
    }
    return false;
}

void unit_post_backward(struct run *r, uint32_t unit)
{
    struct unit_state *s = &r->now.unit[unit];
    const struct ls_unit *u = unit_of(r, unit);
    const struct ls_runtime *runtime = &r->c->in.plan->runtime;
    struct context_state *k = unit_context(r, unit);
    emit_mark(r, "post_backward", unit);
    fallback_zeros(r, unit);
    bool partly_run = u->modules > 1 && s->group == FORWARD; /* no pre-backward has run */
    s->group = POST_BACKWARD;
    for (size_t i = 0; i < u->params; i++)
        if (r->now.accumulated[u->param[i]])
            r->now.grad[u->param[i]] = GRAD_NONE; /* folded in */
    const bool reshards = r->round->reshard_after_backward || u->always_reduces;
    if (!reduces_now(r, unit)) {
        if (reshards)
            unit_reshard(r, unit);
        keep_gradients(r, unit);
        return;
    }
    id_vec params = { 0 };
    enum ls_dtype dtype = LS_DTYPE_NONE;
    bool mixed = collect_gradients(r, unit, &params, &dtype);
    if (reshards)
        unit_reshard(r, unit);
    r->holds = false;
    if (runtime->version >= 213)
        drop_reduces(r, k, runtime->reduce_scatter_max_input_buffers ? runtime->reduce_scatter_max_input_buffers - 1 : 0);
    else if (runtime->version == 212 || params.count)
        r->holds = clear_reduces(r, k, &r->held);
    if (params.count) {
        wait_for_post_backward(r, unit);
        if (mixed && !runtime->uniform_reduce_dtype)
            emit_stop(r, unit, "mixed_gradient_dtypes: the reduce-scatter of '%s' needs gradients of one dtype",
                      ls_name_text(r->c->names, u->name));
        else
            reduce(r, unit, &params, dtype);
        if (partly_run && rewritten(r))
            emit_wait(r, "post_reduce", unit, s->post_reduce - 1u, LS_STREAM_D);
    }
    if (r->holds && !r->now.stopped)
        free_reduce_in(r, r->held);
    r->holds = false;
    ls_vec_release(&params);
}
