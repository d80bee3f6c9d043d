#include "machine/outcome.h"

#include "base/hash.h"

#include <stdlib.h>
#include <string.h>

#define NO_AT ((struct ls_at){ LS_NO_ID, LS_NO_ID, LS_NO_ID })

/* The wait graph over what is unfinished. A node waits for each of its successors.
 *   MEETING  the next op of a group, where some member has arrived: waits for the members that have not
 *   PORT     the same for a send or receive that has arrived
 *   PAIRED   an op: waits for what keeps it from being paired
 *   DONE     an op whose stream must leave it behind: waits for every op of its bundle */
enum what { MEETING, PORT, PAIRED, DONE };
struct node { uint8_t what; bool lacks; uint32_t id, segment, op, missing; size_t first, count; uint32_t scc; };

struct graph {
    const struct ls_run *x;
    LS_VEC(struct node) node;
    LS_VEC(uint32_t) edge;
    uint32_t *slot;
    size_t room;
};

static uint64_t node_hash(const struct node *n)
{
    return ls_hash_mix(ls_hash_mix(ls_hash_mix(n->what, n->id), n->segment), n->op);
}

static uint32_t *find_slot(const struct graph *g, const struct node *n)
{
    for (uint64_t h = node_hash(n);; h++) {
        uint32_t *slot = &g->slot[h & (g->room - 1)];
        if (!*slot)
            return slot;
        const struct node *o = &g->node.at[*slot - 1];
        if (o->what == n->what && o->id == n->id && o->segment == n->segment && o->op == n->op)
            return slot;
    }
}

static uint32_t add_node(struct graph *g, enum what what, uint32_t id, uint32_t segment, uint32_t op)
{
    struct node n = { .what = (uint8_t)what, .id = id, .segment = segment, .op = op, .missing = LS_NO_ID };
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

static void wait_for(struct graph *g, enum what what, uint32_t id, uint32_t segment, uint32_t op)
{
    uint32_t n = add_node(g, what, id, segment, op);
    ls_push(&g->edge, n);
}

static bool has_arrived(const struct ls_run *x, uint32_t r, const struct ls_task *s, uint64_t key)
{
    return s && ls_guard_state(x, r, ls_key_segment(key), s->guard) == LS_PATH_TAKEN &&
           ls_is_started(x, r, ls_key_segment(key), s);
}

static uint32_t comm_of_meeting(const struct ls_run *x, uint32_t id)
{
    uint32_t c = 0;
    while (x->p.group_base[c + 1] <= id)
        c++;
    return c;
}

static void expand_meeting(struct graph *g, uint32_t n)
{
    const struct ls_run *x = g->x;
    uint32_t id = g->node.at[n].id, comm = comm_of_meeting(x, id), group = id - x->p.group_base[comm];
    const struct ls_groups *of = &x->p.job->comm[comm];
    for (uint32_t i = of->first[group]; i < of->first[group + 1]; i++) {
        uint64_t key;
        uint32_t r = of->rank[i];
        const struct ls_task *s = ls_fifo_head(x, r, comm, &key);
        if (!s) {
            if (!g->node.at[n].lacks)
                g->node.at[n].missing = r;
            g->node.at[n].lacks = true;
        } else if (!has_arrived(x, r, s, key))
            wait_for(g, PAIRED, r, ls_key_segment(key), s->op);
    }
}

static void expand_port(struct graph *g, uint32_t n)
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
        wait_for(g, PAIRED, x->p.port[other].rank, ls_key_segment(key), s->op);
}

/* What an unpaired step of a communicator waits for there: its FIFO's head, or the others once it has arrived. */
static void expand_fifo(struct graph *g, uint32_t r, uint32_t segment, const struct ls_task *s, bool started)
{
    const struct ls_run *x = g->x;
    bool paired, heads = ls_heads_fifo(x, r, segment, s, &paired);
    uint32_t port = s->class == LS_TASK_PASS ? ls_port_find(&x->p, r, s->fifo) : LS_NO_ID;
    if (paired)
        return;
    if (heads && started) {
        if (port == LS_NO_ID)
            wait_for(g, MEETING, x->p.group_base[s->fifo] + x->p.job->comm[s->fifo].group[r], 0, 0);
        else
            wait_for(g, PORT, port, 0, 0);
    } else if (!heads) {
        uint64_t key;
        const struct ls_task *head = port == LS_NO_ID ? ls_fifo_head(x, r, s->fifo, &key) : ls_port_head(x, port, &key);
        if (head != s)
            wait_for(g, PAIRED, r, ls_key_segment(key), head->op);
    }
}

/* What holds the host thread back; false at the end, and at a stop that was reached. */
static bool host_waits_for(const struct ls_run *x, uint32_t r, uint32_t thread, struct ls_at *on)
{
    size_t at = r * x->p.threads + thread;
    if (ls_is_end(x, r, x->point[at]))
        return false;
    uint32_t j = ls_key_segment(x->point[at]);
    const struct ls_table *t = ls_table_at(x, r, j);
    if (ls_key_index(x->point[at]) >= t->point_first[thread + 1])
        return false;
    const struct ls_point *q = &t->point[ls_key_index(x->point[at])];
    enum ls_path path = ls_guard_state(x, r, j, q->guard);
    if (path == LS_PATH_OPEN) {
        *on = (struct ls_at){ r, j, t->decide[q->guard / 2].op };
        return true;
    }
    *on = (struct ls_at){ r, j, q->kind == LS_POINT_STEP ? t->step[q->step].op : q->op };
    return q->kind != LS_POINT_STOP || !x->stopped[r];
}

/* A host thread held back by the bound on run-ahead, not by its program. */
static bool is_bounded(const struct ls_run *x, uint32_t r, uint32_t thread)
{
    size_t at = r * x->p.threads + thread;
    return x->o->run_ahead && !ls_is_end(x, r, x->ahead[at]) && x->out_now[at] >= x->o->run_ahead;
}

static void expand_unissued(struct graph *g, uint32_t r, uint32_t thread)
{
    const struct ls_run *x = g->x;
    struct ls_at on;
    if (is_bounded(x, r, thread)) {
        for (uint32_t s = 0; s < x->p.streams; s++) {
            uint64_t head = x->head[r * x->p.streams + s];
            if (ls_is_end(x, r, head))
                continue;
            const struct ls_task *h = &ls_table_at(x, r, ls_key_segment(head))->step[ls_key_index(head)];
            if (h->thread == thread && ls_key(ls_key_segment(head), h->op) < x->until[r * x->p.threads + thread])
                wait_for(g, DONE, r, ls_key_segment(head), h->op);
        }
    } else if (host_waits_for(x, r, thread, &on))
        wait_for(g, DONE, on.rank, on.segment, on.op);
}

static void expand_slots(struct graph *g, uint32_t r, uint32_t segment, const struct ls_task *first)
{
    const struct ls_run *x = g->x;
    if (!x->slots || first->slots == 0)
        return;
    for (uint32_t s = 0; s < x->p.streams; s++)
        if (x->held[r * x->p.streams + s]) {
            uint64_t head = x->head[r * x->p.streams + s];
            wait_for(g, DONE, r, ls_key_segment(head),
                     ls_table_at(x, r, ls_key_segment(head))->step[ls_key_index(head)].op);
        }
    if (x->o->start == LS_START_ISSUE_ORDER && !ls_is_end(x, r, x->kernel[r])) {
        uint32_t j = ls_key_segment(x->kernel[r]);
        const struct ls_table *t = ls_table_at(x, r, j);
        if (ls_key_index(x->kernel[r]) < t->kernels) {
            const struct ls_task *next = &t->step[t->kernel[ls_key_index(x->kernel[r])]];
            if (j != segment || next != first)
                wait_for(g, DONE, r, j, next->op);
        }
    }
}

static void expand_host_wait(struct graph *g, uint32_t r, uint32_t segment, const struct ls_table *t, uint32_t op)
{
    const struct ls_point *q = t->point + t->point_first[t->from->op[op].thread];
    struct ls_at on;
    while (q->op != op || q->kind != LS_POINT_EVENT)
        q++;
    if (!ls_event_done(g->x, r, segment, q->record, q->event, &on))
        wait_for(g, DONE, on.rank, on.segment, on.op);
}

static void expand_op(struct graph *g, uint32_t n)
{
    const struct ls_run *x = g->x;
    struct node v = g->node.at[n];
    uint32_t r = v.id, guard;
    const struct ls_table *t = ls_table_at(x, r, v.segment);
    uint8_t thread = t->from->op[v.op].thread;
    bool issued = x->until[r * x->p.threads + thread] > ls_key(v.segment, v.op), started = false;
    guard = t->guard_of_op[v.op];
    enum ls_path path = ls_guard_state(x, r, v.segment, guard);
    if (path == LS_PATH_OPEN)
        wait_for(g, DONE, r, v.segment, t->decide[guard / 2].op);
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
        wait_for(g, DONE, r, ls_key_segment(head), ls_table_at(x, r, ls_key_segment(head))->step[ls_key_index(head)].op);
    if (s->class == LS_TASK_WAIT && !ls_event_done(x, r, v.segment, s->record, s->event, &on))
        wait_for(g, DONE, on.rank, on.segment, on.op);
    if (s->class != LS_TASK_MEET && s->class != LS_TASK_PASS)
        return;
    started = ls_is_started(x, r, v.segment, s);
    for (uint32_t i = 0; i < first->bundle; i++)
        if (v.what == DONE || first + i == s)
            expand_fifo(g, r, v.segment, first + i, started);
    if (heads && issued && path == LS_PATH_TAKEN && !started)
        expand_slots(g, r, v.segment, first);
}

static void build_graph(struct graph *g)
{
    const struct ls_run *x = g->x;
    for (uint32_t i = 0; i < x->p.group_base[x->p.comms]; i++)
        if (x->meeting[i].arrived)
            add_node(g, MEETING, i, 0, 0);
    for (uint32_t i = 0; i < x->p.port_first[x->p.job->ranks]; i++)
        if (x->port[i].arrived)
            add_node(g, PORT, i, 0, 0);
    for (uint32_t n = 0; n < g->node.count; n++) {
        g->node.at[n].first = g->edge.count;
        if (g->node.at[n].what == MEETING)
            expand_meeting(g, n);
        else if (g->node.at[n].what == PORT)
            expand_port(g, n);
        else
            expand_op(g, n);
        g->node.at[n].count = g->edge.count - g->node.at[n].first;
    }
}

/* Tarjan's components, without recursion. Nodes of one component get one number; `size` counts its nodes. */
static void find_components(struct graph *g, uint32_t *size)
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

/* Where a violation is reported: by communicator, then k, then group, then collectives before p2p, then members. */
struct place { uint32_t comm, group; size_t position; uint32_t p2p, sender, receiver, node; };

static struct place meeting_place(const struct ls_run *x, uint32_t id)
{
    uint32_t comm = comm_of_meeting(x, id);
    return (struct place){ .comm = comm, .group = id - x->p.group_base[comm], .position = x->meeting[id].done };
}

static struct place port_place(const struct ls_run *x, uint32_t port)
{
    const struct ls_port_ref *ref = &x->p.port[port];
    const struct ls_port_key *k = &x->p.port_key[ref->id];
    uint32_t member = x->p.job->comm[k->comm].member[ref->rank];
    return (struct place){ .comm = k->comm, .group = x->p.job->comm[k->comm].group[ref->rank],
                           .position = x->port[port].done, .p2p = 1, .sender = k->send ? member : k->peer,
                           .receiver = k->send ? k->peer : member };
}

static bool earlier(const struct place *a, const struct place *b)
{
    if (a->comm != b->comm)
        return a->comm < b->comm;
    if (a->position != b->position)
        return a->position < b->position;
    if (a->group != b->group)
        return a->group < b->group;
    if (a->p2p != b->p2p)
        return a->p2p < b->p2p;
    return a->sender != b->sender ? a->sender < b->sender : a->receiver < b->receiver;
}

static void set_place(struct ls_outcome *out, const struct place *p)
{
    out->comm = p->comm;
    out->group = p->group;
    out->position = p->position;
}

/* The first arrived op of a meeting by member order, and the first arrived one that differs from it (or NO_AT). */
static void arrived_ops(const struct ls_run *x, const struct place *p, struct ls_at *a, struct ls_at *b)
{
    const struct ls_groups *of = &x->p.job->comm[p->comm];
    uint32_t sig = 0;
    *a = *b = NO_AT;
    for (uint32_t i = of->first[p->group]; i < of->first[p->group + 1]; i++) {
        uint64_t key;
        const struct ls_task *s = ls_fifo_head(x, of->rank[i], p->comm, &key);
        if (!has_arrived(x, of->rank[i], s, key))
            continue;
        struct ls_at at = { of->rank[i], ls_key_segment(key), s->op };
        if (a->rank == LS_NO_ID) {
            *a = at;
            sig = s->sig;
        } else if (s->sig != sig) {
            *b = at;
            return;
        }
    }
}

static const struct ls_op *op_at(const struct ls_run *x, struct ls_at at)
{
    return &x->p.job->rank[at.rank].segment[at.segment]->op[at.op];
}

static struct ls_at port_at(const struct ls_run *x, uint32_t port, uint64_t key)
{
    uint32_t r = x->p.port[port].rank;
    const struct ls_table *t = ls_table_at(x, r, ls_key_segment(key));
    return (struct ls_at){ r, ls_key_segment(key), t->step[t->fifo_step[ls_key_index(key)]].op };
}

static bool read_mismatch(const struct ls_run *x, struct ls_outcome *out)
{
    bool found = false;
    struct place best = { 0 };
    for (uint32_t i = 0; i < x->p.group_base[x->p.comms]; i++)
        if (x->meeting[i].bad) {
            struct place p = meeting_place(x, i);
            if (!found || earlier(&p, &best)) {
                best = p;
                arrived_ops(x, &p, &out->a, &out->b);
            }
            found = true;
        }
    for (uint32_t i = 0; i < x->p.port_first[x->p.job->ranks]; i++) {
        if (!x->port[i].bad || x->p.port_key[x->p.port[i].id].send)
            continue;
        struct place p = port_place(x, i);
        if (!found || earlier(&p, &best)) {
            uint32_t from = x->p.port[i].partner;
            best = p;
            out->a = port_at(x, from, x->buffered ? x->port[from].match : x->port[from].next);
            out->b = port_at(x, i, x->port[i].next);
        }
        found = true;
    }
    if (!found)
        return false;
    set_place(out, &best);
    out->diff = ls_op_diff(x->p.job->tables, op_at(x, out->a), op_at(x, out->b));
    assert(out->diff != LS_DIFF_NONE && "steps with different signatures differ");
    out->verdict = out->diff == LS_DIFF_PAYLOAD ? LS_MISPAIRING : LS_MISMATCH;
    return true;
}

static bool is_op(const struct node *n)
{
    return n->what == PAIRED || n->what == DONE;
}

/* A shortest cycle through `root`, written as its ops, the arrived op of the root first. */
static void read_cycle(const struct graph *g, uint32_t root, struct ls_arena *arena, struct ls_outcome *out)
{
    size_t n = g->node.count, queue_head = 0, queue_end = 0, length = 0;
    uint32_t *from = malloc(n * sizeof *from), *queue = malloc(n * sizeof *queue), last = LS_NO_ID;
    if (!from || !queue)
        ls_out_of_memory(n * sizeof *from);
    for (size_t i = 0; i < n; i++)
        from[i] = LS_NO_ID;
    queue[queue_end++] = root;
    while (queue_head < queue_end && last == LS_NO_ID) {
        uint32_t v = queue[queue_head++];
        for (size_t e = 0; e < g->node.at[v].count && last == LS_NO_ID; e++) {
            uint32_t w = g->edge.at[g->node.at[v].first + e];
            if (w == root)
                last = v;
            else if (from[w] == LS_NO_ID && g->node.at[w].scc == g->node.at[root].scc) {
                from[w] = v;
                queue[queue_end++] = w;
            }
        }
    }
    assert(last != LS_NO_ID && "a component of more than one node has a cycle through each");
    for (uint32_t v = last; v != root; v = from[v])
        length++;
    out->cycle = LS_NEW(arena, struct ls_at, length);
    for (uint32_t v = last, at = (uint32_t)length; v != root; v = from[v])
        queue[--at] = v;
    for (size_t i = 0; i < length; i++) { /* path order is root, queue[0..length); start from its last op */
        const struct node *v = &g->node.at[queue[(i + length - 1) % length]];
        struct ls_at at = { v->id, v->segment, v->op };
        const struct ls_at *before = out->cycle_count ? &out->cycle[out->cycle_count - 1] : NULL;
        if (is_op(v) && !(before && memcmp(before, &at, sizeof at) == 0))
            out->cycle[out->cycle_count++] = at;
    }
    free(from);
    free(queue);
}

static void read_hang(const struct ls_run *x, struct ls_arena *arena, struct ls_outcome *out)
{
    struct graph g = { .x = x };
    build_graph(&g);
    uint32_t *size = calloc(g.node.count + 1, sizeof *size), best_node = LS_NO_ID;
    if (!size)
        ls_out_of_memory(g.node.count);
    find_components(&g, size);
    struct place best = { 0 };
    for (uint32_t i = 0; i < g.node.count; i++) {
        const struct node *v = &g.node.at[i];
        if (is_op(v) || (!v->lacks && size[v->scc] < 2 && out->verdict == LS_HANG))
            continue;
        struct place p = v->what == MEETING ? meeting_place(x, v->id) : port_place(x, v->id);
        if (best_node == LS_NO_ID || earlier(&p, &best)) {
            best = p;
            best_node = i;
        }
    }
    if (best_node != LS_NO_ID) {
        const struct node *v = &g.node.at[best_node];
        struct ls_at waits = NO_AT, differs;
        if (v->what == MEETING)
            arrived_ops(x, &best, &waits, &differs);
        else
            waits = port_at(x, v->id, x->port[v->id].next);
        set_place(out, &best);
        if (out->verdict == LS_ERROR) { /* out->a is the stop */
            out->b = waits;
        } else if (v->lacks) {
            out->a = waits;
            out->missing_rank = out->b.rank = v->missing;
        } else {
            read_cycle(&g, best_node, arena, out);
            out->a = out->cycle[0];
            out->b = out->cycle[1 % out->cycle_count];
        }
    }
    free(size);
    free(g.slot);
    ls_vec_release(&g.node);
    ls_vec_release(&g.edge);
}

/* Why the head of a stream does not move. */
static struct ls_pending pending_head(const struct ls_run *x, uint32_t r, uint32_t segment, const struct ls_task *s)
{
    struct ls_pending p = { .at = { r, segment, s->op }, .on = NO_AT };
    bool paired;
    uint64_t key;
    if (s->class == LS_TASK_WAIT) {
        p.why = LS_BLOCKED_EVENT;
        ls_event_done(x, r, segment, s->record, s->event, &p.on);
        return p;
    }
    bool started = ls_is_started(x, r, segment, s);
    const struct ls_task *first = s;
    for (uint32_t i = 0; started && i < first->bundle; i++) { /* the first unpaired op of the bundle */
        s = first + i;
        ls_heads_fifo(x, r, segment, s, &paired);
        if (!paired)
            break;
    }
    p.at.op = s->op;
    if (!ls_heads_fifo(x, r, segment, s, &paired)) {
        const struct ls_task *head = s->class == LS_TASK_MEET ? ls_fifo_head(x, r, s->fifo, &key)
                                                             : ls_port_head(x, ls_port_find(&x->p, r, s->fifo), &key);
        p.why = LS_BLOCKED_FIFO;
        p.on = (struct ls_at){ r, ls_key_segment(key), head->op };
        return p;
    }
    if (!started) {
        p.why = LS_BLOCKED_SLOT;
        for (uint32_t i = 0; i < x->p.streams; i++)
            if (x->held[r * x->p.streams + i]) {
                uint64_t head = x->head[r * x->p.streams + i];
                const struct ls_table *t = ls_table_at(x, r, ls_key_segment(head));
                p.on = (struct ls_at){ r, ls_key_segment(head), t->step[ls_key_index(head)].op };
                break;
            }
        return p;
    }
    if (s->class == LS_TASK_PASS) {
        uint32_t mine = ls_port_find(&x->p, r, s->fifo), other = x->p.port[mine].partner;
        p.why = LS_BLOCKED_PEER;
        const struct ls_task *o = other == LS_NO_ID ? NULL : ls_port_head(x, other, &key);
        if (o)
            p.on = (struct ls_at){ x->p.port[other].rank, ls_key_segment(key), o->op };
        return p;
    }
    p.why = LS_BLOCKED_MEMBERS;
    const struct ls_groups *of = &x->p.job->comm[s->fifo];
    uint32_t group = of->group[r];
    for (uint32_t i = of->first[group]; i < of->first[group + 1]; i++) {
        const struct ls_task *o = ls_fifo_head(x, of->rank[i], s->fifo, &key);
        if (!o)
            p.on = (struct ls_at){ of->rank[i], LS_NO_ID, LS_NO_ID };
        else if (!has_arrived(x, of->rank[i], o, key) || o->sig != s->sig)
            p.on = (struct ls_at){ of->rank[i], ls_key_segment(key), o->op };
        else
            continue;
        break;
    }
    return p;
}

typedef LS_VEC(struct ls_pending) pending_vec;

static bool listed(const pending_vec *v, size_t from, const struct ls_at *at)
{
    for (size_t i = from; i < v->count; i++)
        if (memcmp(&v->at[i].at, at, sizeof *at) == 0)
            return true;
    return false;
}

static void read_pending(const struct ls_run *x, struct ls_arena *arena, struct ls_outcome *out)
{
    pending_vec all = { 0 };
    for (uint32_t r = 0; r < x->p.job->ranks; r++) {
        size_t from = all.count;
        for (uint32_t s = 0; s < x->p.streams; s++) {
            uint64_t head = x->head[r * x->p.streams + s];
            if (ls_is_end(x, r, head))
                continue;
            const struct ls_task *step = &ls_table_at(x, r, ls_key_segment(head))->step[ls_key_index(head)];
            if (x->until[r * x->p.threads + step->thread] > ls_key(ls_key_segment(head), step->op) &&
                ls_guard_state(x, r, ls_key_segment(head), step->guard) == LS_PATH_TAKEN)
                ls_push(&all, pending_head(x, r, ls_key_segment(head), step));
        }
        for (uint32_t t = 0; t < x->p.threads; t++) {
            struct ls_pending p = { .why = LS_BLOCKED_HOST, .on = NO_AT };
            if (!host_waits_for(x, r, t, &p.at) || listed(&all, from, &p.at) || is_bounded(x, r, t))
                continue;
            const struct ls_table *tab = ls_table_at(x, r, p.at.segment);
            uint32_t step = tab->step_of_op[p.at.op];
            if (op_at(x, p.at)->kind == LS_OP_STOP) {
                p.on = p.at; /* listed before the thread's next op, and not reached by its own thread */
            } else if (step == LS_NO_ID) {
                const struct ls_point *q = &tab->point[ls_key_index(x->point[r * x->p.threads + t])];
                p.why = LS_BLOCKED_EVENT;
                ls_event_done(x, r, p.at.segment, q->record, q->event, &p.on);
            } else {
                uint64_t head = x->head[r * x->p.streams + tab->step[step].stream];
                p.why = LS_BLOCKED_STREAM;
                p.on = (struct ls_at){ r, ls_key_segment(head),
                                       ls_table_at(x, r, ls_key_segment(head))->step[ls_key_index(head)].op };
            }
            ls_push(&all, p);
        }
    }
    out->pending_count = all.count;
    out->pending = all.count ? ls_arena_copy(arena, all.at, all.count * sizeof *all.at) : NULL;
    ls_vec_release(&all);
}

/* Ops issued and done. Stream ops done were counted on the way; host ops are done when their thread is past them. */
static void count_ops(const struct ls_run *x, struct ls_outcome *out)
{
    for (uint32_t r = 0; r < x->p.job->ranks; r++) {
        out->completed += x->steps_done[r];
        for (uint32_t j = 0; j < ls_segments(x, r); j++) {
            const struct ls_table *t = ls_table_at(x, r, j);
            bool whole = t->decides == 0; /* issued as a whole, and the host is beyond it */
            for (size_t k = 0; k < x->p.threads && whole; k++)
                whole = ls_key_segment(x->until[r * x->p.threads + k]) > j && ls_key_segment(x->point[r * x->p.threads + k]) > j;
            if (whole) {
                out->issued += t->from->count;
                out->completed += t->from->count - t->stream_first[x->p.streams];
                continue;
            }
            for (uint32_t i = 0; i < t->from->count; i++) {
                const struct ls_op *op = &t->from->op[i];
                uint64_t until = x->until[r * x->p.threads + op->thread];
                if (until <= ls_key(j, i) || (t->guard_of_op[i] != LS_NO_ID &&
                                              ls_guard_state(x, r, j, t->guard_of_op[i]) != LS_PATH_TAKEN))
                    continue;
                out->issued++;
                if (t->step_of_op[i] != LS_NO_ID)
                    continue;
                struct ls_at on;
                bool held = op->kind == LS_OP_HOST_WAIT && host_waits_for(x, r, op->thread, &on) && on.segment == j &&
                            on.op == i;
                out->completed += !held;
            }
        }
    }
}

bool ls_outcome_finished(const struct ls_run *x)
{
    for (uint32_t r = 0; r < x->p.job->ranks; r++) {
        for (size_t s = 0; s < x->p.streams; s++)
            if (!ls_is_end(x, r, x->head[r * x->p.streams + s]))
                return false;
        for (size_t t = 0; t < x->p.threads; t++)
            if (!ls_is_end(x, r, x->point[r * x->p.threads + t]))
                return false;
    }
    return true;
}

void ls_outcome_read(const struct ls_run *x, struct ls_arena *arena, struct ls_outcome *out)
{
    *out = (struct ls_outcome){ .verdict = LS_SAFE, .comm = LS_NO_ID, .group = LS_NO_ID, .a = NO_AT, .b = NO_AT,
                                .missing_rank = LS_NO_ID, .collectives = x->collectives };
    count_ops(x, out);
    uint32_t stopped = LS_NO_ID;
    for (uint32_t r = 0; r < x->p.job->ranks && stopped == LS_NO_ID; r++)
        if (x->stopped[r])
            stopped = r;
    bool finished = stopped == LS_NO_ID && ls_outcome_finished(x);
    if (!finished)
        read_pending(x, arena, out);
    if (read_mismatch(x, out) || finished)
        return;
    out->verdict = LS_HANG;
    if (stopped != LS_NO_ID) {
        out->verdict = LS_ERROR;
        out->missing_rank = stopped;
        for (uint32_t t = 0; t < x->p.threads && out->a.rank == LS_NO_ID; t++) {
            struct ls_at at;
            if (!host_waits_for(x, stopped, t, &at) && !ls_is_end(x, stopped, x->point[stopped * x->p.threads + t]) &&
                op_at(x, at)->kind == LS_OP_STOP)
                out->a = at;
        }
    }
    read_hang(x, arena, out);
}
