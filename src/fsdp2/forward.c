/* One forward pass of the flow: hooks of the units around calls, values that do or do not carry gradient, autograd nodes. */
#include "fsdp2/internal.h"

#include <assert.h>

struct scope { value_vec values; uint32_t module; };

static const struct value *lookup(const struct scope *s, uint32_t name)
{
    for (size_t i = s->values.count; i-- > 0;)
        if (s->values.at[i].name == name)
            return &s->values.at[i];
    return NULL;
}

static void bind(struct scope *s, struct value v)
{
    for (size_t i = 0; i < s->values.count; i++)
        if (s->values.at[i].name == v.name) {
            s->values.at[i] = v;
            return;
        }
    ls_push(&s->values, v);
}

static void gather_in(const struct scope *s, const uint32_t *names, size_t count, value_vec *out)
{
    for (size_t i = 0; i < count; i++) {
        const struct value *v = lookup(s, names[i]);
        if (v)
            ls_push(out, *v);
    }
}

static bool is_side(const struct ls_flow *f, uint32_t name)
{
    for (size_t i = 0; i < f->sides; i++)
        if (f->side[i] == name)
            return true;
    return false;
}

/* What the hooks of a module see: arguments and results, not values that reach its body another way. */
static void without_sides(const struct ls_flow *f, const value_vec *from, value_vec *out)
{
    for (size_t i = 0; i < from->count; i++)
        if (!is_side(f, from->at[i].name))
            ls_push(out, from->at[i]);
}

static void hooked_pre_forward(struct run *r, const struct ls_flow *f, uint32_t unit, value_vec *in)
{
    value_vec arguments = { 0 };
    without_sides(f, in, &arguments);
    unit_pre_forward(r, unit, &arguments);
    for (size_t i = 0, k = 0; i < in->count; i++)
        if (!is_side(f, in->at[i].name))
            in->at[i] = arguments.at[k++];
    ls_vec_release(&arguments);
}

static void hooked_post_forward(struct run *r, const struct scope *s, const struct ls_flow *f, uint32_t unit)
{
    value_vec all = { 0 }, results = { 0 };
    gather_in(s, f->out, f->outs, &all);
    without_sides(f, &all, &results);
    unit_post_forward(r, unit, &results);
    ls_vec_release(&results);
    ls_vec_release(&all);
}

static uint32_t accumulate_node(struct run *r, uint32_t param)
{
    uint32_t *slot = &r->accumulate[param];
    if (*slot == LS_NO_ID) {
        uint32_t node = node_add(r, NODE_ACCUMULATE);
        r->node.at[node].param = param;
        r->node.at[node].region = LS_NO_ID;
        *slot = node;
    }
    return *slot;
}

/* A parameter that is still sharded is not usable: its unit's forward did not run around this computation. */
static bool usable(struct run *r, uint32_t param)
{
    uint32_t unit = r->c->in.plan->owner[param];
    if (unit == LS_NO_ID || r->now.unit[unit].sharding == UNSHARDED)
        return true;
    emit_stop(r, unit, "sharded_parameter_used: '%s' is used while sharded: the forward of unit '%s' does not run around it",
              ls_name_text(r->c->names, r->c->in.plan->model->param[param].name), ls_name_text(r->c->names, unit_of(r, unit)->name));
    return false;
}

/* A leaf or an operation: one node over its inputs and parameters. */
static void run_operation(struct run *r, struct scope *s, const struct ls_flow *f, uint32_t module, const value_vec *in)
{
    uint32_t instance = r->instances++;
    const struct ls_plan *plan = r->c->in.plan;
    bool grad = false;
    for (size_t i = 0; i < in->count; i++)
        grad |= in->at[i].grad;
    for (size_t i = 0; i < f->params; i++) {
        if (!usable(r, f->param[i]))
            return;
        grad |= plan->requires_grad[f->param[i]];
    }
    struct ls_kernel kernel = { .what = r->pass == LS_PASS_R ? LS_KERNEL_RECOMPUTE : LS_KERNEL_FORWARD, .statement = f->id,
                                .instance = instance };
    size_t own = 0;
    for (size_t i = 0; i < f->ins; i++) {
        bool bound = own < in->count && in->at[own].name == f->in[i];
        emit_link(r, &kernel, bound ? in->at[own].instance : LS_ABSENT, bound ? in->at[own].from : f->in[i]);
        own += bound;
    }
    const uint32_t experts = experts_layer(r, f);
    if (experts != LS_NO_ID)
        experts_dispatch(r, experts);
    kernel.zero_linked = own < in->count;
    for (; own < in->count; own++)
        emit_link(r, &kernel, in->at[own].instance, in->at[own].from);
    emit_compute(r, module, kernel, f->param, f->params);
    /* Recomputation stops when all is there that was saved; bringing the outputs back saves nothing. */
    if (experts != LS_NO_ID && r->saved_last != f)
        experts_combine(r, experts);
    grad = grad && r->gradient && !f->no_grad;
    uint32_t node = LS_NO_ID;
    if (grad) {
        node = node_add(r, NODE_LEAF);
        r->node.at[node].module = module;
        r->node.at[node].flow = f;
        r->node.at[node].instance = instance;
        r->node.at[node].tokens_grad = in->count > 0 && in->at[0].grad;
        r->node.at[node].weights_grad = in->count > 1 && in->at[1].grad;
        for (size_t i = 0; i < in->count; i++)
            node_feed(r, node, &in->at[i]);
        for (size_t i = 0; i < f->params; i++)
            if (plan->requires_grad[f->param[i]]) {
                struct value p = { .node = accumulate_node(r, f->param[i]), .grad = true };
                node_feed(r, node, &p);
            }
    }
    bool out_grad = grad && !f->detach;
    for (size_t i = 0; i < f->outs; i++)
        bind(s, (struct value){ f->out[i], out_grad ? node : LS_NO_ID, (uint32_t)i, instance, (uint32_t)i, out_grad });
    if (r->recompute_last == f || (r->saved_last == f && plan->experts.ep > 1))
        r->stop_recompute = true; /* everything the backward needs is there */
}

static void run_body(struct run *r, struct scope *s, const struct ls_flow *body, size_t count);
static void run_dummy_body(struct run *r, struct scope *s, const struct ls_flow *body, size_t count);

static bool registered(const struct run *r, const struct ls_flow *f)
{
    if (f->entry == ls_name_id(r->c->names, "forward"))
        return true;
    for (size_t i = 0; i < r->c->in.plan->entries; i++)
        if (r->c->in.plan->entry[i].module == f->module && r->c->in.plan->entry[i].method == f->entry)
            return true;
    return false;
}

/* The last operation of a flow that runs now: recomputation stops there. `saves`: the last one with parameters. */
static const struct ls_flow *last_operation(const struct run *r, const struct ls_flow *body, size_t count, bool saves)
{
    for (size_t i = count; i-- > 0;) {
        const struct ls_flow *f = &body[i], *in = NULL;
        if (f->kind == LS_FLOW_OP || (f->kind == LS_FLOW_CALL && f->leaf)) {
            if (!saves || f->params)
                return f;
            continue;
        }
        if (f->kind == LS_FLOW_WHEN) {
            bool held = false;
            for (size_t k = 0; k < LS_CONDITIONS_MAX; k++)
                held |= ((f->when | f->unless) >> k & 1) && r->letter->count[k];
            if (f->when ? !held : held)
                continue;
        }
        in = last_operation(r, f->body, f->count, saves);
        if (in)
            return in;
    }
    return NULL;
}

static void run_inside(struct run *r, struct scope *outer, const struct ls_flow *f, value_vec *in)
{
    struct scope inner = { .module = f->module };
    for (size_t i = 0; i < in->count; i++)
        bind(&inner, in->at[i]);
    if (r->dummy && r->c->covered[(size_t)(r->dummy - 1) * r->c->in.plan->model->modules + f->module] == AROUND_COVERED)
        run_dummy_body(r, &inner, f->body, f->count);
    else
        run_body(r, &inner, f->body, f->count);
    if (outer)
        for (size_t i = 0; i < f->outs; i++) {
            const struct value *v = lookup(&inner, f->out[i]);
            if (!v)
                continue;
            struct value out = *v;
            if (f->detach)
                out.node = LS_NO_ID, out.grad = false;
            bind(outer, out);
        }
    ls_vec_release(&inner.values);
}

static void run_call(struct run *r, struct scope *s, const struct ls_flow *f)
{
    uint32_t unit = r->c->own_unit[f->module];
    bool hooks = unit != LS_NO_ID && registered(r, f);
    value_vec in = { 0 };
    gather_in(s, f->in, f->ins, &in);
    bool gradient = r->gradient;
    step_before_call(r, f->module);
    /* no_grad is entered inside the module's forward, after its pre-forward hook. */
    if (hooks)
        hooked_pre_forward(r, f, unit, &in);
    if (!r->now.stopped) {
        step_in_call(r, f->module);
        r->gradient = gradient && !f->no_grad;
        if (f->leaf) {
            run_operation(r, s, f, f->module, &in);
        } else {
            uint32_t region = r->region;
            if ((f->checkpoint || r->c->checkpointed[f->module]) && r->gradient && !r->backward) {
                struct region new = { .call = f, .first = r->instances };
                for (size_t i = 0; i < in.count; i++)
                    ls_push(&new.in, in.at[i]);
                ls_push(&r->regions, new);
                if (region == LS_NO_ID) /* an outer region recomputes the inner one with it */
                    r->region = (uint32_t)r->regions.count - 1;
            }
            run_inside(r, s, f, &in);
            r->region = region;
        }
        r->gradient = gradient;
    }
    if (hooks && !r->now.stopped && !r->stop_recompute) {
        struct unit_state *u = &r->now.unit[unit];
        bool last = true;
        const struct ls_unit *plan = unit_of(r, unit);
        if (plan->modules > 1) {
            for (size_t i = 0; i < plan->modules; i++)
                if (plan->module[i] == f->module)
                    u->modules_left &= ~(UINT64_C(1) << i);
            last = u->modules_left == 0;
        }
        if (last)
            hooked_post_forward(r, s, f, unit);
    }
    ls_vec_release(&in);
}

static void run_when(struct run *r, struct scope *s, const struct ls_flow *f)
{
    unsigned times = 0;
    for (unsigned k = 0; k < LS_CONDITIONS_MAX; k++)
        if (f->when >> k & 1)
            times += r->letter->count[k];
    if (f->unless) {
        bool any = false;
        for (unsigned k = 0; k < LS_CONDITIONS_MAX; k++)
            any |= (f->unless >> k & 1) && r->letter->count[k];
        if (!any)
            run_body(r, s, f->body, f->count);
        return;
    }
    if (f->once)
        times = times > 0;
    for (unsigned i = 0; i < times && !r->now.stopped && !r->stop_recompute; i++)
        run_body(r, s, f->body, f->count);
    if (times)
        return;
    for (unsigned k = 0; k < LS_CONDITIONS_MAX; k++)
        if ((f->when >> k & 1) && (r->letter->dummy >> k & 1)) {
            r->dummy = k + 1;
            run_dummy_body(r, s, f->body, f->count);
            r->dummy = 0;
            return;
        }
}

/* A dummy stands in for a missing modality: calls of covered modules run, what the body computes from them enters the loss
 * with weight zero where the real features would; calls of conditional modules that the dummy leaves out do not run. */
static void run_dummy_body(struct run *r, struct scope *s, const struct ls_flow *body, size_t count)
{
    size_t modules = r->c->in.plan->model->modules;
    const uint8_t *covered = r->c->covered + (size_t)(r->dummy - 1) * modules;
    bool linked = false;
    for (size_t i = 0; i < r->c->in.batch->dummies; i++)
        if (r->c->in.batch->dummy[i].modality == r->c->in.plan->model->condition[r->dummy - 1].modality)
            linked = r->c->in.batch->dummy[i].linked;
    for (size_t i = 0; i < count && !r->now.stopped; i++) {
        const struct ls_flow *f = &body[i];
        switch (f->kind) {
        case LS_FLOW_WHEN:
            run_dummy_body(r, s, f->body, f->count);
            break;
        case LS_FLOW_CALL:
            if (covered[f->module] == COVERED) {
                run_call(r, s, f);
                for (size_t o = 0; o < f->outs; o++) {
                    const struct value *v = lookup(s, f->out[o]);
                    if (v)
                        ls_push(&r->linked, *v);
                }
            } else if (covered[f->module] == AROUND_COVERED && !f->leaf) {
                run_call(r, s, f);
            }
            break;
        case LS_FLOW_OP: {
            if (!linked) /* the result is dropped: what was bound before stays bound, the rest stays absent */
                break;
            value_vec in = { 0 };
            gather_in(s, f->in, f->ins, &in);
            for (size_t k = 0; k < r->linked.count; k++)
                ls_push(&in, r->linked.at[k]);
            r->linked.count = 0;
            run_operation(r, s, f, s->module, &in);
            ls_vec_release(&in);
            break;
        }
        }
    }
    if (!linked)
        r->linked.count = 0;
}

static void run_body(struct run *r, struct scope *s, const struct ls_flow *body, size_t count)
{
    for (size_t i = 0; i < count && !r->now.stopped && !r->stop_recompute; i++) {
        const struct ls_flow *f = &body[i];
        switch (f->kind) {
        case LS_FLOW_WHEN:
            run_when(r, s, f);
            break;
        case LS_FLOW_CALL:
            run_call(r, s, f);
            break;
        case LS_FLOW_OP: {
            value_vec in = { 0 };
            gather_in(s, f->in, f->ins, &in);
            bool gradient = r->gradient;
            run_operation(r, s, f, s->module, &in);
            r->gradient = gradient;
            ls_vec_release(&in);
            break;
        }
        }
    }
}

uint32_t forward_run(struct run *r)
{
    const struct ls_model *m = r->c->in.plan->model;
    r->pass = r->eval ? LS_PASS_EVAL : LS_PASS_F;
    r->gradient = !r->eval;
    struct scope top = { .module = 0 };
    for (size_t i = 0; i < m->flow.ins; i++)
        bind(&top, (struct value){ m->flow.in[i], LS_NO_ID, 0, LS_NO_ID, m->flow.in[i], false });
    for (size_t i = 0; i < m->grad_inputs; i++)
        bind(&top, (struct value){ m->grad_input[i], LS_NO_ID, 0, LS_NO_ID, m->grad_input[i], !r->eval });
    run_call(r, &top, &m->flow);
    uint32_t loss = LS_NO_ID;
    if (!r->now.stopped) {
        struct ls_kernel kernel = { .what = LS_KERNEL_LOSS, .instance = LS_NO_ID };
        for (size_t i = 0; i < m->losses; i++) {
            const struct value *v = lookup(&top, m->loss[i]);
            emit_link(r, &kernel, v ? v->instance : LS_ABSENT, v ? v->from : m->loss[i]);
        }
        emit_compute(r, LS_NO_ID, kernel, NULL, 0);
    }
    if (!r->now.stopped && r->gradient) {
        for (size_t i = 0; i < m->losses + r->linked.count; i++) {
            const struct value *v = i < m->losses ? lookup(&top, m->loss[i]) : &r->linked.at[i - m->losses];
            if (!v || !v->grad)
                continue;
            if (loss == LS_NO_ID)
                loss = node_add(r, NODE_LOSS);
            node_feed(r, loss, v);
        }
    }
    ls_vec_release(&top.values);
    return loss;
}

void forward_recompute(struct run *r, uint32_t at)
{
    r->regions.at[at].recomputed = true;
    const struct ls_flow *f = r->regions.at[at].call;
    enum ls_pass pass = r->pass;
    bool gradient = r->gradient;
    uint32_t region = r->region, instances = r->instances;
    r->instances = r->regions.at[at].first;
    /* The copy of the graph that recomputation builds is never run: its nodes are cut off again. */
    size_t nodes = r->node.count;
    uint32_t *accumulate = r->accumulate;
    uint32_t *spare = LS_NEW(r->c->arena, uint32_t, r->c->in.plan->model->params);
    for (size_t i = 0; i < r->c->in.plan->model->params; i++)
        spare[i] = LS_NO_ID;
    r->accumulate = spare;
    r->pass = LS_PASS_R;
    r->gradient = true;
    r->recompute_last = last_operation(r, f->body, f->count, false);
    r->saved_last = last_operation(r, f->body, f->count, true);
    value_vec in = { 0 };
    for (size_t i = 0; i < r->regions.at[at].in.count; i++) {
        struct value v = r->regions.at[at].in.at[i];
        v.node = LS_NO_ID;
        ls_push(&in, v);
    }
    run_inside(r, NULL, f, &in);
    ls_vec_release(&in);
    r->recompute_last = r->saved_last = NULL;
    r->stop_recompute = false;
    r->accumulate = accumulate;
    while (r->node.count > nodes) {
        r->node.count--;
        ls_vec_release(&r->node.at[r->node.count].next);
        ls_vec_release(&r->node.at[r->node.count].hooks);
    }
    r->instances = instances;
    r->region = region;
    r->gradient = gradient;
    r->pass = pass;
}
