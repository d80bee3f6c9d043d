/* The autograd engine of one device thread: a node runs when every gradient it waits for has come; of the nodes that can run,
 * the one created last goes first, and AccumulateGrad before all others.
 *   source  torch/csrc/autograd/engine.cpp: compute_dependencies, ReadyQueue's order by sequence number, AccumulateGrad at
 *           UINT64_MAX; tensor hooks run as pre-hooks of the node that made the tensor */
#include "fsdp2/internal.h"

uint32_t node_add(struct run *r, enum node_kind kind)
{
    struct node n = { .kind = kind, .unit = LS_NO_ID, .param = LS_NO_ID, .module = LS_NO_ID, .region = r->region,
                      .order = kind == NODE_ACCUMULATE ? UINT64_MAX : r->node.count };
    ls_push(&r->node, n);
    return (uint32_t)r->node.count - 1;
}

void node_feed(struct run *r, uint32_t node, const struct value *in)
{
    if (in->grad && in->node != LS_NO_ID)
        ls_push(&r->node.at[node].next, (struct edge){ in->node, in->out });
}

static bool earlier(const struct run *r, uint32_t a, uint32_t b)
{
    uint64_t x = r->node.at[a].order, y = r->node.at[b].order;
    return x != y ? x > y : a > b;
}

/* A binary heap of node indices, the next to run on top. */
static void heap_push(struct run *r, id_vec *heap, uint32_t node)
{
    ls_push(heap, node);
    for (size_t i = heap->count - 1; i > 0;) {
        size_t parent = (i - 1) / 2;
        if (!earlier(r, heap->at[i], heap->at[parent]))
            break;
        uint32_t t = heap->at[i];
        heap->at[i] = heap->at[parent], heap->at[parent] = t;
        i = parent;
    }
}

static uint32_t heap_pop(struct run *r, id_vec *heap)
{
    uint32_t top = heap->at[0];
    heap->at[0] = heap->at[--heap->count];
    for (size_t i = 0;;) {
        size_t best = i;
        for (size_t child = 2 * i + 1; child <= 2 * i + 2; child++)
            if (child < heap->count && earlier(r, heap->at[child], heap->at[best]))
                best = child;
        if (best == i)
            break;
        uint32_t t = heap->at[i];
        heap->at[i] = heap->at[best], heap->at[best] = t;
        i = best;
    }
    return top;
}

static void count_needs(struct run *r, uint32_t loss)
{
    id_vec todo = { 0 };
    ls_push(&todo, loss);
    r->node.at[loss].reached = true;
    while (todo.count) {
        const struct node *n = &r->node.at[todo.at[--todo.count]];
        for (size_t i = 0; i < n->next.count; i++) {
            struct node *m = &r->node.at[n->next.at[i].node];
            m->needs++;
            if (!m->reached) {
                m->reached = true;
                ls_push(&todo, n->next.at[i].node);
            }
        }
    }
    ls_vec_release(&todo);
}

/* No token of any rank went to this rank's experts, and their pass does not put zeros in place of a gradient. */
static bool idle_expert(const struct run *r, uint32_t param)
{
    const struct ls_expert_plan *x = &r->c->in.plan->experts;
    return x->ep > 1 && x->idle_without_gradient && r->letter->idle_experts && x->layer[param] != LS_NO_ID;
}

static void run_node(struct run *r, uint32_t at)
{
    /* Hooks and recomputation may add nodes, so node pointers do not survive them. */
    for (size_t i = 0; i < r->node.at[at].hooks.count && !r->now.stopped; i++)
        if (r->node.at[at].defined >> r->node.at[at].hooks.at[i].out & 1) /* no hook fires on an undefined gradient */
            unit_pre_backward(r, r->node.at[at].hooks.at[i].node);
    uint32_t region = r->node.at[at].region;
    /* Recomputation starts at the first node that saved something: the sum over an expert group comes before, and so do additions
     * (elsewhere every operation is taken to save something). */
    const struct ls_flow *flow = r->node.at[at].kind == NODE_LEAF ? r->node.at[at].flow : NULL;
    const uint32_t layer = flow && !r->now.stopped ? experts_layer(r, flow) : LS_NO_ID;
    if (layer != LS_NO_ID)
        experts_combine_backward(r, layer);
    const bool saved = flow && (r->c->in.plan->experts.ep <= 1 || flow->params || flow->kind != LS_FLOW_OP);
    if (region != LS_NO_ID && !r->regions.at[region].recomputed && saved && !r->now.stopped)
        forward_recompute(r, region);
    if (r->now.stopped)
        return;
    const struct node *n = &r->node.at[at];
    switch (n->kind) {
    case NODE_LEAF: {
        emit_compute(r, n->module, (struct ls_kernel){ .what = LS_KERNEL_BACKWARD, .statement = n->flow->id, .instance = n->instance },
                     n->flow->param, n->flow->params);
        if (layer != LS_NO_ID)
            experts_dispatch_backward(r, layer, n->tokens_grad, n->weights_grad);
        break;
    }
    case NODE_POST_BACKWARD:
        unit_post_backward(r, n->unit);
        break;
    case NODE_ACCUMULATE:
        if (!n->defined || idle_expert(r, n->param))
            break;
        r->now.grad[n->param] = GRAD_FRESH;
        emit_share(r, n->param);
        break;
    case NODE_LOSS:
        if (n->next.count) /* the loss itself, not an input of the graph */
            emit_compute(r, LS_NO_ID, (struct ls_kernel){ .what = LS_KERNEL_LOSS_BACKWARD, .instance = LS_NO_ID }, NULL, 0);
        break;
    }
}

void backward_run(struct run *r, uint32_t loss)
{
    id_vec ready = { 0 };
    if (!r->c->in.plan->units) /* no hook stands between the passes, and who reduces by itself needs to see where backward begins */
        emit_close_compute(r);
    r->backward = true;
    r->pass = LS_PASS_B;
    count_needs(r, loss);
    r->node.at[loss].defined = 1;
    heap_push(r, &ready, loss);
    while (ready.count && !r->now.stopped) {
        uint32_t at = heap_pop(r, &ready);
        run_node(r, at);
        const struct node *n = &r->node.at[at];
        for (size_t i = 0; i < n->next.count; i++) {
            struct edge next = n->next.at[i];
            /* The identity passes each gradient on by itself, everything else yields all of them. */
            if (n->kind == NODE_POST_BACKWARD ? n->defined >> i & 1 : n->defined != 0)
                r->node.at[next.node].defined |= UINT64_C(1) << next.out;
            if (--r->node.at[next.node].needs == 0)
                heap_push(r, &ready, next.node);
        }
    }
    ls_vec_release(&ready);
    for (size_t i = 0; i < r->callbacks.count && !r->now.stopped; i++)
        unit_final_callback(r, r->callbacks.at[i]);
    r->callbacks.count = 0;
    r->backward = false;
}
