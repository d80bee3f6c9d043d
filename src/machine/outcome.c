#include "machine/outcome.h"

#include "machine/place.h"
#include "machine/waits.h"

#include <stdlib.h>
#include <string.h>

#define NO_AT ((struct ls_at){ LS_NO_ID, LS_NO_ID, LS_NO_ID })

static struct ls_meeting_place meeting_place(const struct ls_run *x, uint32_t id)
{
    uint32_t comm = ls_comm_of_group(x, id);
    return (struct ls_meeting_place){ .comm = comm, .group = id - x->p.group_base[comm], .position = x->meeting[id].done };
}

static struct ls_meeting_place port_place(const struct ls_run *x, uint32_t port)
{
    const struct ls_port_ref *ref = &x->p.port[port];
    const struct ls_port_key *k = &x->p.port_key[ref->id];
    uint32_t member = x->p.job->comm[k->comm].member[ref->rank];
    return (struct ls_meeting_place){ .comm = k->comm, .group = x->p.job->comm[k->comm].group[ref->rank],
                           .position = x->port[port].done, .p2p = 1, .sender = k->send ? member : k->peer,
                           .receiver = k->send ? k->peer : member };
}

/* The first arrived op of a meeting by member order, and the first arrived one that differs from it (or NO_AT). */
static void arrived_ops(const struct ls_run *x, const struct ls_meeting_place *p, struct ls_at *a, struct ls_at *b)
{
    const struct ls_groups *of = &x->p.job->comm[p->comm];
    uint32_t sig = 0;
    *a = *b = NO_AT;
    for (uint32_t i = of->first[p->group]; i < of->first[p->group + 1]; i++) {
        uint64_t key;
        const struct ls_task *s = ls_fifo_head(x, of->rank[i], p->comm, &key);
        if (!ls_has_arrived(x, of->rank[i], s, key))
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
    struct ls_meeting_place best = { 0 };
    for (uint32_t i = 0; i < x->p.group_base[x->p.comms]; i++)
        if (x->meeting[i].bad) {
            struct ls_meeting_place p = meeting_place(x, i);
            if (!found || ls_meeting_before(&p, &best)) {
                best = p;
                arrived_ops(x, &p, &out->a, &out->b);
            }
            found = true;
        }
    for (uint32_t i = 0; i < x->p.port_first[x->p.job->ranks]; i++) {
        if (!x->port[i].bad || x->p.port_key[x->p.port[i].id].send)
            continue;
        struct ls_meeting_place p = port_place(x, i);
        if (!found || ls_meeting_before(&p, &best)) {
            uint32_t from = x->p.port[i].partner;
            best = p;
            out->a = port_at(x, from, x->buffered ? x->port[from].match : x->port[from].next);
            out->b = port_at(x, i, x->port[i].next);
        }
        found = true;
    }
    if (!found)
        return false;
    ls_meeting_report(&best, out);
    out->diff = ls_op_diff(x->p.job->tables, op_at(x, out->a), op_at(x, out->b));
    assert(out->diff != LS_DIFF_NONE && "steps with different signatures differ");
    out->verdict = out->diff == LS_DIFF_PAYLOAD ? LS_MISPAIRING : LS_MISMATCH;
    return true;
}

static bool is_op(const struct ls_wait_node *n)
{
    return n->what == LS_WAIT_PAIRED || n->what == LS_WAIT_DONE;
}

/* A shortest cycle through `root`, written as its ops, the arrived op of the root first. */
static void read_cycle(const struct ls_waits *g, uint32_t root, struct ls_arena *arena, struct ls_outcome *out)
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
        const struct ls_wait_node *v = &g->node.at[queue[(i + length - 1) % length]];
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
    struct ls_waits g;
    ls_waits_build(&g, x);
    uint32_t *size = calloc(g.node.count + 1, sizeof *size), best_node = LS_NO_ID;
    if (!size)
        ls_out_of_memory(g.node.count);
    ls_waits_components(&g, size);
    struct ls_meeting_place best = { 0 };
    for (uint32_t i = 0; i < g.node.count; i++) {
        const struct ls_wait_node *v = &g.node.at[i];
        if (is_op(v) || (!v->lacks && size[v->scc] < 2 && out->verdict == LS_HANG))
            continue;
        struct ls_meeting_place p = v->what == LS_WAIT_MEETING ? meeting_place(x, v->id) : port_place(x, v->id);
        if (best_node == LS_NO_ID || ls_meeting_before(&p, &best)) {
            best = p;
            best_node = i;
        }
    }
    if (best_node != LS_NO_ID) {
        const struct ls_wait_node *v = &g.node.at[best_node];
        struct ls_at waits = NO_AT, differs;
        if (v->what == LS_WAIT_MEETING)
            arrived_ops(x, &best, &waits, &differs);
        else
            waits = port_at(x, v->id, x->port[v->id].next);
        ls_meeting_report(&best, out);
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
    ls_waits_release(&g);
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
        else if (!ls_has_arrived(x, of->rank[i], o, key) || o->sig != s->sig)
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
                ls_guard_state(x, r, ls_key_segment(head), step->guard) == LS_BRANCH_TAKEN)
                ls_push(&all, pending_head(x, r, ls_key_segment(head), step));
        }
        for (uint32_t t = 0; t < x->p.threads; t++) {
            struct ls_pending p = { .why = LS_BLOCKED_HOST, .on = NO_AT };
            if (!ls_host_waits_for(x, r, t, &p.at) || listed(&all, from, &p.at) || ls_is_bounded(x, r, t))
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
                                              ls_guard_state(x, r, j, t->guard_of_op[i]) != LS_BRANCH_TAKEN))
                    continue;
                out->issued++;
                if (t->step_of_op[i] != LS_NO_ID)
                    continue;
                struct ls_at on;
                bool held = op->kind == LS_OP_HOST_WAIT && ls_host_waits_for(x, r, op->thread, &on) && on.segment == j &&
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
            if (!ls_host_waits_for(x, stopped, t, &at) && !ls_is_end(x, stopped, x->point[stopped * x->p.threads + t]) &&
                op_at(x, at)->kind == LS_OP_STOP)
                out->a = at;
        }
    }
    read_hang(x, arena, out);
}
