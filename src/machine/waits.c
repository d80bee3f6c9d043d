#include "machine/waits.h"

#include "base/hash.h"

#include <stdlib.h>

static uint64_t node_hash(const struct ls_wait_node *n)
{
    return ls_hash_mix(ls_hash_mix(ls_hash_mix(n->what, n->id), n->segment), n->op);
}

static uint32_t *find_slot(const struct ls_waits *g, const struct ls_wait_node *n)
{
    for (uint64_t h = node_hash(n);; h++) {
        uint32_t *slot = &g->slot[h & (g->room - 1)];
        if (!*slot)
            return slot;
        const struct ls_wait_node *o = &g->node.at[*slot - 1];
        if (o->what == n->what && o->id == n->id && o->segment == n->segment && o->op == n->op)
            return slot;
    }
}

static uint32_t add_node(struct ls_waits *g, enum ls_wait what, uint32_t id, uint32_t segment, uint32_t op)
{
    struct ls_wait_node n = { .what = (uint8_t)what, .id = id, .segment = segment, .op = op, .missing = LS_NO_ID };
    if (2 * (g->node.count + 1) > g->room) {
        free(g->slot);
        g->room = g->room ? 2 * g->room : 1024;
        g->slot = calloc(g->room, sizeof *g->slot);
        if (!g->slot)
            ls_out_of_memory(g->room * sizeof *g->slot);
        for (uint32_t i = 0; i < g->node.count; i++)
            *find_slot(g, &g->node.at[i]) = i + 1;
    }
    uint32_t *slot = find_slot(g, &n);
    if (!*slot) {
        ls_push(&g->node, n);
        *slot = (uint32_t)g->node.count;
    }
    return *slot - 1;
}

static void wait_for(struct ls_waits *g, enum ls_wait what, uint32_t id, uint32_t segment, uint32_t op)
{
    uint32_t n = add_node(g, what, id, segment, op);
    ls_push(&g->edge, n);
}

static void expand_meeting(struct ls_waits *g, uint32_t n)
{
    const struct ls_run *x = g->x;
    uint32_t id = g->node.at[n].id, comm = ls_comm_of_group(x, id), group = id - x->p.group_base[comm];
    const struct ls_groups *of = &x->p.job->comm[comm];
    for (uint32_t i = of->first[group]; i < of->first[group + 1]; i++) {
        uint64_t key;
        uint32_t r = of->rank[i];
        const struct ls_task *s = ls_fifo_head(x, r, comm, &key);
        if (!s) {
            if (!g->node.at[n].lacks)
                g->node.at[n].missing = r;
            g->node.at[n].lacks = true;
        } else if (!ls_has_arrived(x, r, s, key))
            wait_for(g, LS_WAIT_PAIRED, r, ls_key_segment(key), s->op);
    }
}

static void expand_port(struct ls_waits *g, uint32_t n)
{
    const struct ls_run *x = g->x;
    uint32_t mine = g->node.at[n].id, other = x->p.port[mine].partner;
    uint64_t key = 0;
    const struct ls_task *s = other == LS_NO_ID ? NULL : ls_port_head(x, other, &key);
    if (!s) {
        const struct ls_port_key *k = &x->p.port_key[x->p.port[mine].id];
        const struct ls_groups *of = &x->p.job->comm[k->comm];
        g->node.at[n].lacks = true;
        g->node.at[n].missing = of->rank[of->first[of->group[x->p.port[mine].rank]] + k->peer];
    } else
        wait_for(g, LS_WAIT_PAIRED, x->p.port[other].rank, ls_key_segment(key), s->op);
}

/* What an unpaired step of a communicator waits for there: its FIFO's head, or the others once it has arrived. */
static void expand_fifo(struct ls_waits *g, uint32_t r, uint32_t segment, const struct ls_task *s, bool started)
{
    const struct ls_run *x = g->x;
    bool paired, heads = ls_heads_fifo(x, r, segment, s, &paired);
    uint32_t port = s->class == LS_TASK_PASS ? ls_port_find(&x->p, r, s->fifo) : LS_NO_ID;
    if (paired)
        return;
    if (heads && started) {
        if (port == LS_NO_ID)
            wait_for(g, LS_WAIT_MEETING, x->p.group_base[s->fifo] + x->p.job->comm[s->fifo].group[r], 0, 0);
        else
            wait_for(g, LS_WAIT_PORT, port, 0, 0);
    } else if (!heads) {
        uint64_t key;
        const struct ls_task *head = port == LS_NO_ID ? ls_fifo_head(x, r, s->fifo, &key) : ls_port_head(x, port, &key);
        if (head != s)
            wait_for(g, LS_WAIT_PAIRED, r, ls_key_segment(key), head->op);
    }
}

static void expand_unissued(struct ls_waits *g, uint32_t r, uint32_t thread)
{
    const struct ls_run *x = g->x;
    struct ls_at on;
    if (ls_is_bounded(x, r, thread)) {
        for (uint32_t s = 0; s < x->p.streams; s++) {
            uint64_t head = x->head[r * x->p.streams + s];
            if (ls_is_end(x, r, head))
                continue;
            const struct ls_task *h = &ls_table_at(x, r, ls_key_segment(head))->step[ls_key_index(head)];
            if (h->thread == thread && ls_key(ls_key_segment(head), h->op) < x->until[r * x->p.threads + thread])
                wait_for(g, LS_WAIT_DONE, r, ls_key_segment(head), h->op);
        }
    } else if (ls_host_waits_for(x, r, thread, &on))
        wait_for(g, LS_WAIT_DONE, on.rank, on.segment, on.op);
}

static void expand_slots(struct ls_waits *g, uint32_t r, uint32_t segment, const struct ls_task *first)
{
    const struct ls_run *x = g->x;
    if (!x->slots || first->slots == 0)
        return;
    for (uint32_t s = 0; s < x->p.streams; s++)
        if (x->held[r * x->p.streams + s]) {
            uint64_t head = x->head[r * x->p.streams + s];
            wait_for(g, LS_WAIT_DONE, r, ls_key_segment(head),
                     ls_table_at(x, r, ls_key_segment(head))->step[ls_key_index(head)].op);
        }
    if (x->o->start == LS_START_ISSUE_ORDER && !ls_is_end(x, r, x->kernel[r])) {
        uint32_t j = ls_key_segment(x->kernel[r]);
        const struct ls_table *t = ls_table_at(x, r, j);
        if (ls_key_index(x->kernel[r]) < t->kernels) {
            const struct ls_task *next = &t->step[t->kernel[ls_key_index(x->kernel[r])]];
            if (j != segment || next != first)
                wait_for(g, LS_WAIT_DONE, r, j, next->op);
        }
    }
}

static void expand_host_wait(struct ls_waits *g, uint32_t r, uint32_t segment, const struct ls_table *t, uint32_t op)
{
    const struct ls_point *q = t->point + t->point_first[t->from->op[op].thread];
    struct ls_at on;
    while (q->op != op || q->kind != LS_POINT_EVENT)
        q++;
    if (!ls_event_done(g->x, r, segment, q->record, q->event, &on))
        wait_for(g, LS_WAIT_DONE, on.rank, on.segment, on.op);
}

static void expand_op(struct ls_waits *g, uint32_t n)
{
    const struct ls_run *x = g->x;
    struct ls_wait_node v = g->node.at[n];
    uint32_t r = v.id, guard;
    const struct ls_table *t = ls_table_at(x, r, v.segment);
    uint8_t thread = t->from->op[v.op].thread;
    bool issued = x->until[r * x->p.threads + thread] > ls_key(v.segment, v.op), started = false;
    guard = t->guard_of_op[v.op];
    enum ls_branch path = ls_guard_state(x, r, v.segment, guard);
    if (path == LS_BRANCH_OPEN)
        wait_for(g, LS_WAIT_DONE, r, v.segment, t->decide[guard / 2].op);
    if (!issued)
        expand_unissued(g, r, thread);
    if (t->step_of_op[v.op] == LS_NO_ID) {
        if (t->from->op[v.op].kind == LS_OP_HOST_WAIT)
            expand_host_wait(g, r, v.segment, t, v.op);
        return;
    }
    const struct ls_task *s = &t->step[t->step_of_op[v.op]], *first = ls_bundle_of(s);
    uint64_t head = x->head[r * x->p.streams + s->stream];
    bool heads = head == ls_key(v.segment, (uint64_t)(first - t->step));
    struct ls_at on;
    if (!heads)
        wait_for(g, LS_WAIT_DONE, r, ls_key_segment(head), ls_table_at(x, r, ls_key_segment(head))->step[ls_key_index(head)].op);
    if (s->class == LS_TASK_WAIT && !ls_event_done(x, r, v.segment, s->record, s->event, &on))
        wait_for(g, LS_WAIT_DONE, on.rank, on.segment, on.op);
    if (s->class != LS_TASK_MEET && s->class != LS_TASK_PASS)
        return;
    started = ls_is_started(x, r, v.segment, s);
    for (uint32_t i = 0; i < first->bundle; i++)
        if (v.what == LS_WAIT_DONE || first + i == s)
            expand_fifo(g, r, v.segment, first + i, started);
    if (heads && issued && path == LS_BRANCH_TAKEN && !started)
        expand_slots(g, r, v.segment, first);
}

void ls_waits_build(struct ls_waits *g, const struct ls_run *x)
{
    *g = (struct ls_waits){ .x = x };
    for (uint32_t i = 0; i < x->p.group_base[x->p.comms]; i++)
        if (x->meeting[i].arrived)
            add_node(g, LS_WAIT_MEETING, i, 0, 0);
    for (uint32_t i = 0; i < x->p.port_first[x->p.job->ranks]; i++)
        if (x->port[i].arrived)
            add_node(g, LS_WAIT_PORT, i, 0, 0);
    for (uint32_t n = 0; n < g->node.count; n++) {
        g->node.at[n].first = g->edge.count;
        if (g->node.at[n].what == LS_WAIT_MEETING)
            expand_meeting(g, n);
        else if (g->node.at[n].what == LS_WAIT_PORT)
            expand_port(g, n);
        else
            expand_op(g, n);
        g->node.at[n].count = g->edge.count - g->node.at[n].first;
    }
}

/* Tarjan's algorithm, without recursion. */
void ls_waits_components(struct ls_waits *g, uint32_t *size)
{
    size_t n = g->node.count;
    uint32_t *index = calloc(n + 1, sizeof *index), *low = calloc(n + 1, sizeof *low), *stack = calloc(n + 1, sizeof *stack);
    uint32_t *call = calloc(n + 1, sizeof *call);
    size_t *next = calloc(n + 1, sizeof *next);
    bool *on = calloc(n + 1, sizeof *on);
    if (!index || !low || !stack || !call || !next || !on)
        ls_out_of_memory(n);
    uint32_t time = 0, sccs = 0, top = 0;
    for (uint32_t root = 0; root < n; root++) {
        size_t depth = 0;
        if (index[root])
            continue;
        call[depth++] = root;
        while (depth) {
            uint32_t v = call[depth - 1];
            if (!index[v]) {
                index[v] = low[v] = ++time;
                stack[top++] = v;
                on[v] = true;
            }
            if (next[v] < g->node.at[v].count) {
                uint32_t w = g->edge.at[g->node.at[v].first + next[v]++];
                if (!index[w])
                    call[depth++] = w;
                else if (on[w] && index[w] < low[v])
                    low[v] = index[w];
                continue;
            }
            depth--;
            if (depth && low[v] < low[call[depth - 1]])
                low[call[depth - 1]] = low[v];
            if (low[v] != index[v])
                continue;
            for (uint32_t w = LS_NO_ID; w != v;) {
                w = stack[--top];
                on[w] = false;
                g->node.at[w].scc = sccs;
                size[sccs]++;
            }
            sccs++;
        }
    }
    free(index);
    free(low);
    free(stack);
    free(call);
    free(next);
    free(on);
}

void ls_waits_release(struct ls_waits *g)
{
    free(g->slot);
    ls_vec_release(&g->node);
    ls_vec_release(&g->edge);
}
