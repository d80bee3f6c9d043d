/* What FSDP2 does around forward and backward of a unit, in host order.
 *   source  _fsdp_state.py (_pre_forward, _post_forward, _pre_backward, _root_post_backward_final_callback) and
 *           _fsdp_param_group.py (unshard, wait_for_unshard, reshard, post_backward, finalize_backward) */
#include "fsdp2/internal.h"

#include <assert.h>
#include <stdio.h>

unsigned context_stream(const struct run *r, uint32_t unit, unsigned stream)
{
    /* The compute stream is shared; every root has communication streams of its own. */
    uint32_t k = r->now.unit[unit].context;
    return stream == LS_STREAM_D || k == LS_NO_ID ? stream : stream + 4 * k;
}

static struct context_state *context_of(struct run *r, uint32_t unit)
{
    assert(r->now.unit[unit].context != LS_NO_ID);
    return &r->now.context[r->now.unit[unit].context];
}

static bool sharded_alone(const struct run *r, uint32_t unit)
{
    /* A shard group of one rank issues no collective. The small mesh has at least two ranks. */
    return r->c->shard == 1 && r->now.unit[unit].sharding != SHARDED_SMALL;
}

static uint64_t padded(const struct run *r, uint32_t param, size_t ranks)
{
    return ls_param_shard_elements(&r->c->in.plan->model->param[param], ranks);
}

static enum ls_reshard reshard_of(const struct run *r, uint32_t unit)
{
    const struct ls_unit *u = unit_of(r, unit);
    switch (u->reshard) {
    case LS_RESHARD_DEFAULT: {
        /* None: true, except that the root is set to false at lazy init. */
        bool root = r->now.unit[unit].context != LS_NO_ID && r->now.context[r->now.unit[unit].context].root == unit;
        return root ? LS_RESHARD_FALSE : LS_RESHARD_TRUE;
    }
    case LS_RESHARD_SMALL:
        return u->reshard_size == 1 ? LS_RESHARD_FALSE : u->reshard_size == r->c->shard ? LS_RESHARD_TRUE : LS_RESHARD_SMALL;
    case LS_RESHARD_TRUE:
        /* Up to 2.7 the root never freed its parameters after forward, whatever was asked for. */
        if (r->c->in.plan->runtime.version <= 207 && r->now.context[r->now.unit[unit].context].root == unit)
            return LS_RESHARD_FALSE;
        return LS_RESHARD_TRUE;
    case LS_RESHARD_FALSE:
        break;
    }
    return LS_RESHARD_FALSE;
}

static enum ls_dtype gather_dtype(const struct run *r, uint32_t unit, uint32_t param)
{
    const struct ls_unit *u = unit_of(r, unit);
    enum ls_dtype own = r->c->in.plan->model->param[param].dtype;
    bool floating = own == LS_DTYPE_F64 || own == LS_DTYPE_F32 || own == LS_DTYPE_F16 || own == LS_DTYPE_BF16;
    return floating && u->param_dtype != LS_DTYPE_NONE ? u->param_dtype : own;
}

static void wait_gather_streams(struct run *r, uint32_t unit, const char *event, uint32_t of)
{
    emit_wait(r, event, of, 0, context_stream(r, unit, LS_STREAM_CI));
    emit_wait(r, event, of, 0, context_stream(r, unit, LS_STREAM_G));
}

/* 2.13 rewrote what follows a backward. What is modelled is 2.15, the version recorded. */
static bool rewritten(const struct run *r)
{
    return r->c->in.plan->runtime.version >= 213;
}

/* Up to 2.12 a local variable of the Python function held the buffer that was just given up until the function returned. */
static bool keeps_locals(const struct run *r)
{
    return !rewritten(r);
}

/* One original and one reduce dtype among the trainable parameters of a group, judged at lazy init. */
static void check_dtypes(struct run *r, uint32_t unit)
{
    const struct ls_unit *u = unit_of(r, unit);
    const struct ls_model *m = r->c->in.plan->model;
    uint32_t first = LS_NO_ID;
    for (size_t i = 0; i < u->params && !r->now.stopped; i++) {
        if (!r->c->in.plan->requires_grad[u->param[i]])
            continue;
        if (first == LS_NO_ID)
            first = u->param[i];
        else if (m->param[first].dtype != m->param[u->param[i]].dtype)
            emit_stop(r, unit, "mixed_original_dtypes: trainable parameters '%s' (%s) and '%s' (%s) are in one unit",
                      ls_name_text(r->c->names, m->param[first].name), ls_dtype_name(m->param[first].dtype),
                      ls_name_text(r->c->names, m->param[u->param[i]].name), ls_dtype_name(m->param[u->param[i]].dtype));
    }
}

/* A tied parameter belongs to one unit; older versions did not look, and untied it. */
static void check_shared(struct run *r, uint32_t context)
{
    const struct ls_plan *plan = r->c->in.plan;
    if (plan->runtime.version < 212)
        return;
    uint32_t *unit = LS_NEW(r->c->arena, uint32_t, plan->model->params);
    for (uint32_t i = 0; i < plan->units; i++)
        for (size_t p = 0; p < plan->unit[i].params && r->now.unit[i].context == context; p++) {
            uint32_t at = plan->model->param[plan->unit[i].param[p]].canonical;
            if (unit[at] && unit[at] != i + 1) {
                emit_stop(r, i, "shared_parameter_two_units: '%s' is in units '%s' and '%s'", ls_name_text(r->c->names, plan->model->param[at].name),
                          ls_name_text(r->c->names, plan->unit[unit[at] - 1].name), ls_name_text(r->c->names, plan->unit[i].name));
                return;
            }
            unit[at] = i + 1;
        }
}

static void lazy_init(struct run *r, uint32_t unit)
{
    if (r->now.unit[unit].context != LS_NO_ID)
        return;
    const struct ls_plan *plan = r->c->in.plan;
    const struct ls_unit *u = &plan->unit[unit];
    if (u->modules > 1) {
        emit_stop(r, unit, "grouped_root: '%s' runs first but is one unit of several modules: the root must be a single module",
                  ls_name_text(r->c->names, u->name));
        return;
    }
    uint32_t k = (uint32_t)r->now.contexts;
    if (LS_STREAM_A + 4 * k > UINT8_MAX) {
        r->rc = ls_fail(r->err, LS_EUNDECIDED, u->at, "more than 60 roots run forward on one rank");
        r->now.stopped = true;
        return;
    }
    for (uint32_t i = 0; i < plan->units; i++) {
        uint32_t below = r->c->preorder[i];
        bool inside = false;
        for (size_t m = 0; m < plan->unit[below].modules; m++)
            inside |= ls_module_contains(plan->model, u->module[0], plan->unit[below].module[m]);
        if (!inside)
            continue;
        if (below != unit && r->now.unit[below].context != LS_NO_ID) {
            emit_stop(r, unit, "child_ran_before_root: '%s' ran forward before its root '%s': requires running forward through the root module first",
                      ls_name_text(r->c->names, plan->unit[below].name), ls_name_text(r->c->names, u->name));
            return;
        }
        r->now.unit[below].context = k;
    }
    r->now.contexts++;
    check_shared(r, k);
    for (uint32_t i = 0; i < plan->units && !r->now.stopped; i++)
        if (r->now.unit[i].context == k)
            check_dtypes(r, i);
    for (unsigned s = LS_STREAM_CI; k && s <= LS_STREAM_A; s++) {
        static const char *const name[] = { "D", "CI", "G", "S", "A" };
        char text[24];
        snprintf(text, sizeof text, "%s%u", name[s], k + 1);
        uint32_t id = ls_tables_stream(r->c->in.tables, text);
        assert(id == s + 4 * k && "contexts are numbered in order, so their streams are too");
        (void)id;
    }
    r->now.context[k] = (struct context_state){ .root = unit, .forward_root = LS_NO_ID, .kept_gather = LS_NO_ID,
                                                .last_forward = LS_NO_ID, .last_reduced = { LS_NO_ID, LS_NO_ID } };
}

static void root_pre_forward(struct run *r, uint32_t unit)
{
    lazy_init(r, unit);
    if (r->now.stopped || context_of(r, unit)->forward_root != LS_NO_ID)
        return;
    context_of(r, unit)->forward_root = unit;
    emit_wait_stream(r, context_stream(r, unit, LS_STREAM_CI), LS_STREAM_D);
    emit_wait_stream(r, context_stream(r, unit, LS_STREAM_G), LS_STREAM_D);
}

static void unshard(struct run *r, uint32_t unit, enum training training)
{
    struct unit_state *s = &r->now.unit[unit];
    const struct ls_unit *u = unit_of(r, unit);
    if (!u->params || s->gather_pending || s->sharding == UNSHARDED)
        return;
    if (!u->unshard_in_backward && training == PRE_BACKWARD)
        return;
    if (s->small_event) {
        wait_gather_streams(r, unit, "reshard", unit);
        s->small_event = false;
    }
    s->gather_pending = true;
    if (sharded_alone(r, unit)) { /* an event is recorded all the same; nothing waits for it */
        emit_record(r, "gathered", unit, 0, LS_STREAM_D);
        return;
    }
    /* Any other training state uses the current stream, as a call outside forward and backward does. */
    bool apart = training == FORWARD || training == PRE_BACKWARD;
    unsigned ci = apart ? context_stream(r, unit, LS_STREAM_CI) : LS_STREAM_D;
    unsigned g = apart ? context_stream(r, unit, LS_STREAM_G) : LS_STREAM_D;
    bool small = s->sharding == SHARDED_SMALL;
    size_t ranks = small ? u->reshard_size : r->c->shard;
    uint64_t in = 0, in_bytes = 0;
    enum ls_dtype dtype = gather_dtype(r, unit, u->param[0]);
    bool mixed = false;
    for (size_t i = 0; i < u->params; i++) {
        uint64_t n = padded(r, u->param[i], r->c->shard);
        if (small)
            n = n * r->c->shard / u->reshard_size;
        enum ls_dtype d = gather_dtype(r, unit, u->param[i]);
        mixed |= d != dtype;
        in += n;
        in_bytes += n * ls_dtype_bytes(d);
    }
    if (mixed) { /* one buffer of bytes */
        dtype = LS_DTYPE_U8;
        in = in_bytes;
    }
    emit_memory(r, LS_OP_ALLOC, "ag_out", unit, ci, r->c->buffer.gathered[unit], in * ranks * ls_dtype_bytes(dtype));
    emit(r, LS_OP_COPY_IN, ci, unit)->bytes = 2 * in_bytes;
    emit_range(r, r->c->buffer.gathered[unit], true);
    emit_wait_stream(r, g, ci);
    struct ls_op *op = emit(r, LS_OP_ALL_GATHER, g, unit);
    op->comm = (uint16_t)(small ? r->c->comm_small[unit] : r->c->comm_shard);
    op->dtype = (uint8_t)dtype;
    op->count = in;
    op->payload = r->c->gather_payload[unit];
    emit_range(r, r->c->buffer.gathered[unit], true);
    emit_record(r, "gathered", unit, 0, g);
}

static void free_gathered(struct run *r, uint32_t unit)
{
    if (!sharded_alone(r, unit))
        emit_memory(r, LS_OP_FREE, "ag_out", unit, context_stream(r, unit, LS_STREAM_CI), r->c->buffer.gathered[unit], 0);
}

static uint64_t full_bytes(const struct run *r, uint32_t unit, uint32_t param)
{
    return padded(r, param, r->c->shard) * r->c->shard * ls_dtype_bytes(gather_dtype(r, unit, param));
}

static void resize(struct run *r, uint32_t unit, bool full)
{
    const struct ls_unit *u = unit_of(r, unit);
    for (size_t i = 0; i < u->params; i++) {
        emit_memory(r, full ? LS_OP_ALLOC : LS_OP_FREE, ls_name_text(r->c->names, r->c->in.plan->model->param[u->param[i]].name),
                    unit, LS_STREAM_D, r->c->buffer.full[unit], full ? full_bytes(r, unit, u->param[i]) : 0);
        r->ops.at[r->ops.count - 1].module = r->c->in.plan->model->param[u->param[i]].name;
    }
}

static void wait_for_unshard(struct run *r, uint32_t unit, enum training training)
{
    struct unit_state *s = &r->now.unit[unit];
    if (!s->gather_pending)
        return;
    struct context_state *k = context_of(r, unit);
    uint32_t old = LS_NO_ID;
    if (training == FORWARD && k->kept_gather != LS_NO_ID) {
        wait_gather_streams(r, unit, "copied_out", k->kept_gather);
        old = k->kept_gather;
        k->kept_gather = LS_NO_ID;
        if (!keeps_locals(r))
            free_gathered(r, old);
    }
    bool alone = sharded_alone(r, unit);
    if (!alone)
        emit_wait(r, "gathered", unit, 0, LS_STREAM_D);
    resize(r, unit, true);
    uint64_t bytes = 0;
    for (size_t i = 0; i < unit_of(r, unit)->params; i++)
        bytes += full_bytes(r, unit, unit_of(r, unit)->param[i]);
    emit(r, LS_OP_COPY_OUT, LS_STREAM_D, unit)->bytes = 2 * bytes;
    if (!alone)
        emit_range(r, r->c->buffer.gathered[unit], false);
    emit_range(r, r->c->buffer.full[unit], true);
    s->ever_unsharded = true;
    s->sharding = UNSHARDED;
    emit_record(r, "copied_out", unit, 0, LS_STREAM_D);
    if (training == FORWARD && !alone) {
        k->kept_gather = unit;
    } else {
        wait_gather_streams(r, unit, "copied_out", unit);
        if (!alone)
            free_gathered(r, unit);
    }
    s->gather_pending = false;
    if (old != LS_NO_ID && keeps_locals(r))
        free_gathered(r, old);
}

static void reshard_full(struct run *r, uint32_t unit)
{
    struct unit_state *s = &r->now.unit[unit];
    if (s->sharding == UNSHARDED)
        resize(r, unit, false);
    s->sharding = SHARDED;
}

static void reshard_after_forward(struct run *r, uint32_t unit)
{
    struct unit_state *s = &r->now.unit[unit];
    switch (reshard_of(r, unit)) {
    case LS_RESHARD_FALSE:
    case LS_RESHARD_DEFAULT:
        return;
    case LS_RESHARD_TRUE:
        reshard_full(r, unit);
        return;
    case LS_RESHARD_SMALL:
        if (s->sharding != SHARDED_SMALL) {
            resize(r, unit, false);
            s->sharding = SHARDED_SMALL;
        }
        emit_record(r, "reshard", unit, 0, LS_STREAM_D);
        s->small_event = true;
        return;
    }
}

/* Where gradients of graph inputs go. */
static uint32_t graph_input(struct run *r)
{
    uint32_t node = node_add(r, NODE_LOSS);
    r->node.at[node].region = LS_NO_ID;
    return node;
}

static void register_post_backward(struct run *r, uint32_t unit, value_vec *in)
{
    if (!r->gradient)
        return;
    uint32_t node = LS_NO_ID, out = 0;
    for (size_t i = 0; i < in->count; i++) {
        if (!in->at[i].grad)
            continue;
        if (node == LS_NO_ID) {
            node = node_add(r, NODE_POST_BACKWARD);
            r->node.at[node].unit = unit;
        }
        /* A graph input gets an edge too, so that inputs and outputs have the same places. */
        if (in->at[i].node == LS_NO_ID)
            in->at[i].node = graph_input(r);
        node_feed(r, node, &in->at[i]);
        in->at[i].node = node;
        in->at[i].out = out++;
    }
}

/* Grouped units run their hook before the first of their modules; since 2.13 before each, where most of it happens once. */
static bool hook_runs(struct run *r, uint32_t unit)
{
    size_t modules = unit_of(r, unit)->modules;
    struct unit_state *s = &r->now.unit[unit];
    if (modules == 1)
        return true;
    if (s->modules_left)
        return rewritten(r);
    s->modules_left = modules == 64 ? UINT64_MAX : (UINT64_C(1) << modules) - 1;
    return true;
}

void unit_pre_forward(struct run *r, uint32_t unit, value_vec *in)
{
    if (!hook_runs(r, unit))
        return;
    struct unit_state *s = &r->now.unit[unit];
    const struct ls_unit *u = unit_of(r, unit);
    emit_mark(r, "pre_forward", unit);
    if (s->state == PRE_BACKWARD) { /* recomputation: the pre-backward hook has gathered, unless resharded since */
        if (s->sharding != UNSHARDED) {
            unshard(r, unit, s->group);
            wait_for_unshard(r, unit, s->group);
        }
        return;
    }
    bool first = !rewritten(r) || s->state != FORWARD;
    s->state = FORWARD;
    if (first)
        root_pre_forward(r, unit);
    if (r->now.stopped)
        return;
    if (u->params) {
        bool entering = !rewritten(r) || s->group != FORWARD;
        s->group = FORWARD;
        unshard(r, unit, FORWARD);
        wait_for_unshard(r, unit, FORWARD);
        if (entering)
            register_post_backward(r, unit, in);
    }
    for (size_t i = 0; first && i < u->forward_prefetches; i++) {
        uint32_t target = u->forward_prefetch[i];
        if (r->now.unit[target].context == LS_NO_ID) /* before its lazy init it has no communication streams */
            continue;
        unshard(r, target, FORWARD);
    }
}

static void record_forward(struct run *r, uint32_t unit)
{
    struct context_state *k = context_of(r, unit);
    reshard_after_forward(r, unit);
    ls_push(&r->now.unit[unit].before, k->last_forward);
    k->last_forward = unit;
}

static void hook_outputs(struct run *r, uint32_t unit, const value_vec *out)
{
    for (size_t i = 0; r->gradient && i < out->count; i++)
        if (out->at[i].grad && out->at[i].node != LS_NO_ID)
            ls_push(&r->node.at[out->at[i].node].hooks, (struct edge){ unit, out->at[i].out });
}

/* Since 2.13 the root's post-forward completes groups of which some module did not run, the deepest first. */
static void complete_groups(struct run *r, uint32_t root, const value_vec *out)
{
    for (size_t i = r->c->in.plan->units; i-- > 0;) {
        uint32_t unit = r->c->preorder[i];
        struct unit_state *s = &r->now.unit[unit];
        if (s->context != r->now.unit[root].context || unit == root || !s->modules_left)
            continue;
        if (unit_of(r, unit)->params) {
            if (!r->backward)
                record_forward(r, unit);
            s->group = IDLE;
        }
        hook_outputs(r, unit, out);
        s->state = IDLE;
        s->modules_left = 0;
    }
}

void unit_post_forward(struct run *r, uint32_t unit, const value_vec *out)
{
    struct unit_state *s = &r->now.unit[unit];
    const struct ls_unit *u = unit_of(r, unit);
    emit_mark(r, "post_forward", unit);
    if (s->state == PRE_BACKWARD)
        return;
    struct context_state *k = context_of(r, unit);
    if (u->params) {
        if (!r->backward)
            record_forward(r, unit);
        s->group = IDLE;
    }
    hook_outputs(r, unit, out);
    s->state = IDLE;
    if (k->forward_root == unit) {
        if (rewritten(r))
            complete_groups(r, unit, out);
        if (k->kept_gather != LS_NO_ID) {
            wait_gather_streams(r, unit, "copied_out", k->kept_gather);
            free_gathered(r, k->kept_gather);
            k->kept_gather = LS_NO_ID;
        }
        k->forward_root = LS_NO_ID;
    }
}

static void backward_prefetch(struct run *r, uint32_t unit)
{
    struct unit_state *s = &r->now.unit[unit];
    if (!s->before.count) /* cleared when several backwards run */
        return;
    uint32_t target = s->before.at[--s->before.count];
    if (target != LS_NO_ID)
        unshard(r, target, PRE_BACKWARD);
}

void unit_pre_backward(struct run *r, uint32_t unit)
{
    struct unit_state *s = &r->now.unit[unit];
    const struct ls_unit *u = unit_of(r, unit);
    emit_mark(r, "pre_backward", unit);
    s->state = PRE_BACKWARD;
    struct context_state *k = context_of(r, unit);
    if (!k->callback_queued) {
        k->callback_queued = true;
        ls_push(&r->callbacks, unit);
    }
    if (u->params && s->group != PRE_BACKWARD) {
        s->group = PRE_BACKWARD;
        unshard(r, unit, PRE_BACKWARD);
        wait_for_unshard(r, unit, PRE_BACKWARD);
        if (!u->backward_prefetches)
            backward_prefetch(r, unit);
    }
    for (size_t i = 0; i < u->backward_prefetches; i++)
        if (r->now.unit[u->backward_prefetch[i]].context != LS_NO_ID)
            unshard(r, u->backward_prefetch[i], PRE_BACKWARD);
}

static void free_reduce_in(struct run *r, struct reduce_entry e)
{
    emit_memory(r, LS_OP_FREE, "rs_in", e.unit, LS_STREAM_D, r->c->buffer.reduce_in[e.unit], 0);
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
static bool clear_reduces(struct run *r, struct context_state *k, struct reduce_entry *last)
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
static bool output_used(const struct run *r, uint32_t unit, uint32_t slot)
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

static void free_output(struct run *r, uint32_t unit)
{
    emit_memory(r, LS_OP_FREE, "rs_out", unit, context_stream(r, unit, LS_STREAM_S), r->c->buffer.reduce_out[unit], 0);
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
        free_output(r, unit);
}

static void wait_for_post_backward(struct run *r, uint32_t unit)
{
    struct unit_state *s = &r->now.unit[unit];
    if (s->post_reduce)
        emit_wait(r, "post_reduce", unit, s->post_reduce - 1u, LS_STREAM_D);
    s->post_reduce = 0;
    if (s->all_reduce_kept) {
        emit_wait(r, "all_reduced", unit, 0, LS_STREAM_D);
        s->all_reduce_kept = false;
        if (!output_used(r, unit, s->all_reduce_slot))
            free_output(r, unit);
    }
}

/* The end of a reduction on S, or on A after an all-reduce. */
static void record_post_reduce(struct run *r, uint32_t unit, bool all_reduced)
{
    struct context_state *k = context_of(r, unit);
    emit_record(r, "post_reduce", unit, all_reduced, context_stream(r, unit, all_reduced ? LS_STREAM_A : LS_STREAM_S));
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

static void reduce_ops(const struct run *r, enum ls_dtype dtype, bool hsdp, enum ls_reduce *op, uint32_t *before, uint32_t *after)
{
    size_t ranks = r->c->shard * (hsdp ? r->c->replicate : 1);
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
        uint64_t n = padded(r, params->at[i], r->c->shard);
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
        shard += in ? padded(r, u->param[i], r->c->shard) : 0;
    }
    if (s->partial && !same) { /* a new tensor takes its place */
        uint32_t old = s->partial_slot;
        s->partial_slot = PARTIAL_REPACKED;
        s->partial_elements = shard;
        if (old != PARTIAL_REPACKED && !output_used(r, unit, old))
            free_output(r, unit);
    }
}

static void reduce(struct run *r, uint32_t unit, const id_vec *params, enum ls_dtype dtype)
{
    struct unit_state *s = &r->now.unit[unit];
    struct context_state *k = context_of(r, unit);
    const struct ls_unit *u = unit_of(r, unit);
    bool hsdp = r->c->replicate > 1, alone = r->c->shard == 1;
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
    reduce_ops(r, dtype, hsdp, &op_kind, &before, &after);
    if (hsdp && rewritten(r))
        repack_partial(r, unit, params);
    uint64_t shard = 0;
    id_vec names = { 0 };
    for (size_t i = 0; i < params->count; i++) {
        shard += padded(r, params->at[i], r->c->shard);
        ls_push(&names, r->c->in.plan->model->param[params->at[i]].name);
    }
    uint32_t payload = ls_tables_payload(r->c->in.tables, ls_name_text(r->c->names, u->name), names.at, names.count, shard);
    ls_vec_release(&names);
    uint32_t in = r->c->buffer.reduce_in[unit], out = r->c->buffer.reduce_out[unit], output = new_slot(r, unit);
    unsigned stream = context_stream(r, unit, LS_STREAM_S);
    emit_memory(r, LS_OP_ALLOC, "rs_in", unit, LS_STREAM_D, in, shard * r->c->shard * ls_dtype_bytes(dtype));
    struct ls_op *op = emit(r, LS_OP_COPY_IN, LS_STREAM_D, unit);
    op->payload = payload;
    op->bytes = 2 * shard * r->c->shard * ls_dtype_bytes(dtype);
    emit_range(r, in, true);
    emit_wait_stream(r, stream, LS_STREAM_D);
    emit_memory(r, LS_OP_ALLOC, "rs_out", unit, stream, out, shard * ls_dtype_bytes(dtype));
    if (alone) {
        op = emit(r, LS_OP_COPY_OUT, stream, unit); /* a copy instead of a collective */
    } else {
        op = emit(r, LS_OP_REDUCE_SCATTER, stream, unit);
        op->comm = (uint16_t)r->c->comm_reduce;
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
    uint32_t slot = 0;
    for (size_t i = 0; i < k->reduces.count; i++)
        slot += k->reduces.at[i].unit == unit;
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
            record_post_reduce(r, unit, false);
            ls_push(&k->reduces, (struct reduce_entry){ unit, slot });
            if (s->partial) { /* added to what is there */
                if (!output_used(r, unit, output))
                    free_output(r, unit);
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
        emit_record(r, "all_reduced", unit, 0, post);
        s->all_reduce_kept = true;
        s->all_reduce_slot = output;
    }
    /* Sharded gradients are views of the output, unless it is cast to the parameters' dtype or added to what is there. */
    view_output(r, params, dtype, output);
    /* Up to 2.12 the cast rebinds the only name of the output, unless the all-reduce keeps it. */
    bool early = !rewritten(r) && dtype != r->c->in.plan->model->param[params->at[0]].dtype && !output_used(r, unit, output);
    if (early)
        free_output(r, unit);
    record_post_reduce(r, unit, hsdp);
    ls_push(&k->reduces, (struct reduce_entry){ unit, slot });
    bool partial = hsdp && s->partial;
    if (!early && !output_used(r, unit, output))
        free_output(r, unit);
    if (partial) {
        s->partial = false;
        if (s->partial_slot != PARTIAL_REPACKED && !output_used(r, unit, s->partial_slot))
            free_output(r, unit);
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

static void fallback_zeros(struct run *r, uint32_t unit)
{
    const struct ls_unit *u = unit_of(r, unit);
    if (u->unused_params != LS_UNUSED_FALLBACK || r->now.unit[unit].group != PRE_BACKWARD || !r->round->gradient_sync ||
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
    struct context_state *k = context_of(r, unit);
    emit_mark(r, "post_backward", unit);
    fallback_zeros(r, unit);
    bool partly_run = u->modules > 1 && s->group == FORWARD; /* no pre-backward has run */
    s->group = POST_BACKWARD;
    for (size_t i = 0; i < u->params; i++)
        if (r->now.accumulated[u->param[i]])
            r->now.grad[u->param[i]] = GRAD_NONE; /* folded in */
    if (!r->round->gradient_sync) {
        if (r->round->reshard_after_backward)
            reshard_full(r, unit);
        keep_gradients(r, unit);
        return;
    }
    id_vec params = { 0 };
    enum ls_dtype dtype = LS_DTYPE_NONE;
    bool mixed = collect_gradients(r, unit, &params, &dtype);
    if (r->round->reshard_after_backward)
        reshard_full(r, unit);
    struct reduce_entry last = { 0 };
    bool holds = false;
    if (runtime->version >= 213)
        drop_reduces(r, k, runtime->reduce_scatter_max_input_buffers ? runtime->reduce_scatter_max_input_buffers - 1 : 0);
    else if (runtime->version == 212 || params.count)
        holds = clear_reduces(r, k, &last);
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
    if (holds && !r->now.stopped)
        free_reduce_in(r, last);
    ls_vec_release(&params);
}

static void finalize(struct run *r, uint32_t unit)
{
    struct unit_state *s = &r->now.unit[unit];
    s->modules_left = 0;
    if (!rewritten(r)) {
        wait_for_post_backward(r, unit);
    } else { /* waited for once per stream */
        s->post_reduce = 0;
        bool kept = s->all_reduce_kept;
        s->all_reduce_kept = false;
        if (kept && !output_used(r, unit, s->all_reduce_slot))
            free_output(r, unit);
    }
    if (s->gather_pending) { /* a prefetch that nothing consumed */
        if (!sharded_alone(r, unit))
            emit_wait(r, "gathered", unit, 0, LS_STREAM_D);
        free_gathered(r, unit);
        s->gather_pending = false;
    }
    s->before.count = 0;
}

/* What 2.13 and later keep for the end: the last reduction on each stream, then every unit, then the buffers. */
static void end_iteration(struct run *r, uint32_t context)
{
    struct context_state *k = &r->now.context[context];
    for (unsigned i = 0; i < 2; i++) {
        unsigned a = k->all_reduce_first ? !i : i;
        if (k->last_reduced[a] != LS_NO_ID)
            emit_wait(r, "post_reduce", k->last_reduced[a], a, LS_STREAM_D);
        k->last_reduced[a] = LS_NO_ID;
    }
    k->all_reduce_first = false;
    for (size_t i = 0; i < r->c->in.plan->units; i++)
        if (r->now.unit[r->c->preorder[i]].context == context)
            finalize(r, r->c->preorder[i]);
}

static void release_kept_gather(struct run *r, uint32_t context)
{
    struct context_state *k = &r->now.context[context];
    if (k->kept_gather == LS_NO_ID)
        return;
    emit_wait(r, "copied_out", k->kept_gather, 0, LS_STREAM_D);
    free_gathered(r, k->kept_gather);
    k->kept_gather = LS_NO_ID;
}

void unit_final_callback(struct run *r, uint32_t queued_by)
{
    uint32_t context = r->now.unit[queued_by].context;
    struct context_state *k = &r->now.context[context];
    const struct ls_plan *plan = r->c->in.plan;
    bool last_backward = r->round->is_last_backward;
    emit_mark(r, "final_backward", queued_by);
    if (rewritten(r))
        k->forward_root = LS_NO_ID;
    for (size_t i = 0; i < plan->units && !r->now.stopped; i++) {
        uint32_t unit = r->c->preorder[i];
        struct unit_state *s = &r->now.unit[unit];
        if (s->context != context)
            continue;
        if (rewritten(r))
            s->modules_left = 0;
        if (plan->unit[unit].params) {
            if (s->group != POST_BACKWARD)
                unit_post_backward(r, unit);
            s->group = IDLE;
        }
        s->state = IDLE;
        if (last_backward && !r->now.stopped && !rewritten(r))
            finalize(r, unit);
    }
    if (r->now.stopped)
        return;
    if (last_backward && rewritten(r))
        end_iteration(r, context);
    if (rewritten(r))
        release_kept_gather(r, context);
    if (last_backward) {
        struct reduce_entry last;
        k->last_forward = LS_NO_ID;
        if (clear_reduces(r, k, &last))
            free_reduce_in(r, last);
    }
    k->callback_queued = false;
}
