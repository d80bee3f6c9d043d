/* What FSDP2 does around forward and backward of a unit, in host order.
 *   source  _fsdp_state.py (_lazy_init, _pre_forward, _post_forward, _pre_backward, _root_post_backward_final_callback) and
 *           _fsdp_param_group.py (pre_forward, post_forward, pre_backward, finalize_backward) */
#include "fsdp2/internal.h"

#include <assert.h>
#include <stdio.h>

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
                                                .last_forward = LS_NO_ID, .last_reduced = { LS_NO_ID, LS_NO_ID },
                                                .last_backward = plan->unit[unit].always_reduces || r->round->is_last_backward };
}

static void root_pre_forward(struct run *r, uint32_t unit)
{
    lazy_init(r, unit);
    if (r->now.stopped || unit_context(r, unit)->forward_root != LS_NO_ID)
        return;
    unit_context(r, unit)->forward_root = unit;
    emit_wait_stream(r, context_stream(r, unit, LS_STREAM_CI), LS_STREAM_D);
    emit_wait_stream(r, context_stream(r, unit, LS_STREAM_G), LS_STREAM_D);
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
            unit_unshard(r, unit, s->group);
            unit_wait_for_unshard(r, unit, s->group);
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
        unit_unshard(r, unit, FORWARD);
        unit_wait_for_unshard(r, unit, FORWARD);
        if (entering)
            register_post_backward(r, unit, in);
    }
    for (size_t i = 0; first && i < u->forward_prefetches; i++) {
        uint32_t target = u->forward_prefetch[i];
        if (r->now.unit[target].context == LS_NO_ID) /* before its lazy init it has no communication streams */
            continue;
        unit_unshard(r, target, FORWARD);
    }
}

static void record_forward(struct run *r, uint32_t unit)
{
    struct context_state *k = unit_context(r, unit);
    unit_reshard_after_forward(r, unit);
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
    struct context_state *k = unit_context(r, unit);
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
            free_gathered(r, k->kept_gather, k->kept_slot);
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
        unit_unshard(r, target, PRE_BACKWARD);
}

void unit_pre_backward(struct run *r, uint32_t unit)
{
    struct unit_state *s = &r->now.unit[unit];
    const struct ls_unit *u = unit_of(r, unit);
    emit_mark(r, "pre_backward", unit);
    s->state = PRE_BACKWARD;
    struct context_state *k = unit_context(r, unit);
    if (!k->callback_queued) {
        k->callback_queued = true;
        ls_push(&r->callbacks, unit);
    }
    if (u->params && s->group != PRE_BACKWARD) {
        s->group = PRE_BACKWARD;
        unit_unshard(r, unit, PRE_BACKWARD);
        unit_wait_for_unshard(r, unit, PRE_BACKWARD);
        if (!u->backward_prefetches)
            backward_prefetch(r, unit);
    }
    for (size_t i = 0; i < u->backward_prefetches; i++)
        if (r->now.unit[u->backward_prefetch[i]].context != LS_NO_ID)
            unit_unshard(r, u->backward_prefetch[i], PRE_BACKWARD);
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
            free_output(r, unit, s->all_reduce_slot);
    }
    if (s->gather_pending) { /* a prefetch that nothing consumed */
        if (!unit_alone(r, unit))
            emit_wait(r, "gathered", unit, 0, LS_STREAM_D);
        free_gathered(r, unit, s->gather_pending - 1);
        s->gather_pending = 0;
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
    free_gathered(r, k->kept_gather, k->kept_slot);
    k->kept_gather = LS_NO_ID;
}

void unit_final_callback(struct run *r, uint32_t queued_by)
{
    uint32_t context = r->now.unit[queued_by].context;
    struct context_state *k = &r->now.context[context];
    const struct ls_plan *plan = r->c->in.plan;
    bool last_backward = k->last_backward;
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
