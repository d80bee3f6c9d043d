/* What the queues look like when nothing moves any more, told as an outcome: by position, not by time. */
#include "engine/run/internal.h"

#include "machine/place.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define NO_AT ((struct ls_at){ LS_NO_ID, LS_NO_ID, LS_NO_ID })
enum { NOTHING = -1 };

/* The wait graph. A node: an op that is to be paired, an op that its stream is to leave, or a meeting. */
enum what { PAIRED, LEFT, MEETING };
struct node { enum what what; uint32_t rank; size_t op; struct ls_meeting_place at; size_t first, count; uint32_t scc, missing; bool lacks; };
struct graph {
    const struct engine *e;
    LS_VEC(struct node) node;
    LS_VEC(uint32_t) edge;
};

static struct ls_at at_of(const struct engine *e, uint32_t rank, size_t op)
{
    const struct rank_op *o = &e->rank[rank].op[op];
    return (struct ls_at){ rank, o->segment, o->index };
}

static const struct ls_op *op_of(const struct engine *e, uint32_t rank, size_t op)
{
    return e->rank[rank].op[op].op;
}

/* What a member of a meeting has its queue of: collectives, or its sends or receives. A rank may send to itself. */
enum side { COLLECTIVES, SENDS, RECEIVES };

static enum side side_of(const struct ls_op *o)
{
    return !ls_op_is_p2p(o) ? COLLECTIVES : o->kind == LS_OP_SEND ? SENDS : RECEIVES;
}

static enum side side_at(const struct ls_meeting_place *m, size_t member) { return !m->p2p ? COLLECTIVES : member == 0 ? SENDS : RECEIVES; }

static bool in_queue(const struct engine *e, uint32_t rank, size_t i, const struct ls_meeting_place *m, enum side side)
{
    const struct ls_op *o = op_of(e, rank, i);
    if (!ls_op_uses_comm(o) || queue_comm(e, o) != m->comm || side_of(o) != side)
        return false;
    if (!m->p2p)
        return true;
    uint32_t me = e->job->comm[m->comm].member[rank];
    return o->kind == LS_OP_SEND ? me == m->sender && (uint32_t)o->peer == m->receiver
                                 : me == m->receiver && (uint32_t)o->peer == m->sender;
}

/* The op at the head of a rank's queue, or NOTHING; *done counts those that have left it. */
static long head_of(const struct engine *e, uint32_t rank, const struct ls_meeting_place *m, enum side side, size_t *done)
{
    const struct ls_rank *r = &e->rank[rank];
    size_t gone = 0;
    long head = NOTHING;
    for (size_t i = 0; i < r->ops && head == NOTHING; i++) {
        if (!in_queue(e, rank, i, m, side) || r->status[i] == OP_SKIPPED || path_of(r, i) == PATH_SKIPPED)
            continue;
        if (r->status[i] >= OP_PAIRED)
            gone++;
        else
            head = (long)i;
    }
    if (done)
        *done = gone;
    return head;
}

static bool has_arrived(const struct engine *e, uint32_t rank, long op)
{
    return op != NOTHING && e->rank[rank].status[op] == OP_STARTED;
}

/* Ranks of a meeting, in member order: the group, or sender and receiver. */
static size_t members(const struct engine *e, const struct ls_meeting_place *m, const uint32_t **rank, uint32_t pair[2])
{
    const struct ls_groups *g = &e->job->comm[m->comm];
    if (m->p2p) {
        pair[0] = g->rank[g->first[m->group] + m->sender];
        pair[1] = g->rank[g->first[m->group] + m->receiver];
        *rank = pair;
        return 2;
    }
    *rank = &g->rank[g->first[m->group]];
    return g->first[m->group + 1] - g->first[m->group];
}

static struct ls_meeting_place meeting_of(const struct engine *e, uint32_t rank, size_t op)
{
    const struct ls_op *o = op_of(e, rank, op);
    const struct ls_groups *g = &e->job->comm[queue_comm(e, o)];
    struct ls_meeting_place m = { .comm = queue_comm(e, o), .group = g->group[rank], .p2p = ls_op_is_p2p(o) };
    if (m.p2p) {
        bool send = o->kind == LS_OP_SEND;
        m.sender = send ? g->member[rank] : (uint32_t)o->peer;
        m.receiver = send ? (uint32_t)o->peer : g->member[rank];
    }
    head_of(e, rank, &m, side_of(o), &m.position);
    return m;
}

static uint32_t add_node(struct graph *g, struct node n)
{
    for (uint32_t i = 0; i < g->node.count; i++) {
        const struct node *o = &g->node.at[i];
        if (o->what != n.what)
            continue;
        if (n.what == MEETING ? !ls_meeting_before(&o->at, &n.at) && !ls_meeting_before(&n.at, &o->at) : o->rank == n.rank && o->op == n.op)
            return i;
    }
    ls_push(&g->node, n);
    return (uint32_t)g->node.count - 1;
}

static void wait_for(struct graph *g, enum what what, uint32_t rank, size_t op)
{
    uint32_t n = add_node(g, (struct node){ .what = what, .rank = rank, .op = op, .missing = LS_NO_ID });
    ls_push(&g->edge, n);
}

/* The first op of a stream that has not left it. */
static long stream_head(const struct ls_rank *r, unsigned stream)
{
    for (size_t i = 0; i < r->ops; i++)
        if (!ls_op_is_host(r->op[i].op) && r->op[i].op->stream == stream && r->status[i] != OP_DONE && r->status[i] != OP_SKIPPED &&
            path_of(r, i) != PATH_SKIPPED)
            return (long)i;
    return NOTHING;
}

static bool same_group(const struct ls_rank *r, size_t a, size_t b)
{
    const struct ls_op *x = r->op[a].op, *y = r->op[b].op;
    return x->fused && x->fused == y->fused && x->thread == y->thread && r->op[a].segment == r->op[b].segment && r->op[a].guard == r->op[b].guard &&
           r->op[a].side == r->op[b].side;
}

/* Ops of one fused group that follow each other on the stream. Any other op of their thread ends a group, memory apart. */
static bool same_bundle(const struct ls_rank *r, size_t a, size_t b)
{
    const struct ls_op *x = r->op[a].op;
    if (a == b)
        return true;
    if (x->stream != r->op[b].op->stream || !same_group(r, a, b))
        return false;
    for (size_t i = (a < b ? a : b); i <= (a < b ? b : a); i++) {
        const struct ls_op *o = r->op[i].op;
        bool memory = o->kind == LS_OP_ALLOC || o->kind == LS_OP_FREE || o->kind == LS_OP_MARK;
        bool matters = o->thread == x->thread ? !memory : !ls_op_is_host(o) && o->stream == x->stream;
        if (matters && !same_group(r, a, i))
            return false;
    }
    return true;
}

static bool bundle_takes_slots(const struct ls_rank *r, size_t op)
{
    for (size_t i = 0; i < r->ops; i++)
        if (takes_slots(r->op[i].op) && (i == op || same_bundle(r, i, op)))
            return true;
    return false;
}

static bool is_blocking(const struct engine *e, const struct ls_op *o)
{
    return !ls_op_is_host(o) && (o->blocking || o->kind == LS_OP_DECIDE || o->kind == LS_OP_COMM_INIT || e->o->blocking);
}

/* What holds a host thread; NOTHING at its end, and at a stop that was reached. */
static long holder(const struct engine *e, const struct host_thread *t)
{
    const struct ls_rank *r = t->rank;
    for (size_t i = t->hold_first; i < t->hold_end; i++)
        if (r->op[i].op->thread == t->number && is_blocking(e, r->op[i].op) && r->status[i] != OP_DONE)
            return (long)i;
    if (t->at >= r->ops)
        return NOTHING;
    const struct ls_op *o = r->op[t->at].op;
    if (path_of(r, t->at) == PATH_OPEN) { /* the innermost open decide */
        uint32_t g = r->op[t->at].guard;
        while (r->decided[g])
            g = r->op[g].guard;
        return (long)g;
    }
    if (o->kind == LS_OP_STOP)
        return r->stopped ? NOTHING : (long)t->at;
    return (long)t->at;
}

static long latest_record(const struct ls_rank *r, size_t op)
{
    for (size_t i = op; i-- > 0;)
        if (r->op[i].op->kind == LS_OP_RECORD && r->op[i].op->event == r->op[op].op->event && r->status[i] != OP_SKIPPED &&
            path_of(r, i) != PATH_SKIPPED)
            return (long)i;
    return NOTHING;
}

static void expand_queue(struct graph *g, uint32_t rank, size_t op)
{
    const struct ls_rank *r = &g->e->rank[rank];
    if (r->status[op] >= OP_PAIRED)
        return;
    struct ls_meeting_place m = meeting_of(g->e, rank, op);
    long head = head_of(g->e, rank, &m, side_of(r->op[op].op), NULL);
    if (head == (long)op && r->status[op] == OP_STARTED) {
        uint32_t n = add_node(g, (struct node){ .what = MEETING, .at = m, .missing = LS_NO_ID });
        ls_push(&g->edge, n);
    } else if (head != (long)op && head != NOTHING)
        wait_for(g, PAIRED, rank, (size_t)head);
}

/* A stream's bundle that has started and not left it: its kernels are resident. */
static void expand_slots(struct graph *g, uint32_t rank, size_t op)
{
    const struct ls_rank *r = &g->e->rank[rank];
    if (!g->e->o->resident || !(g->e->o->kernels || g->e->o->start == LS_START_ISSUE_ORDER) || !bundle_takes_slots(r, op))
        return;
    for (unsigned s = 0; s < g->e->streams; s++) {
        long head = stream_head(r, s);
        if (head != NOTHING && (r->status[head] == OP_STARTED || r->status[head] == OP_PAIRED) && bundle_takes_slots(r, (size_t)head))
            wait_for(g, LEFT, rank, (size_t)head);
    }
    if (g->e->o->start != LS_START_ISSUE_ORDER)
        return;
    for (size_t i = 0; i < r->ops; i++)
        if (takes_slots(r->op[i].op) && r->status[i] < OP_STARTED && r->status[i] != OP_SKIPPED && path_of(r, i) != PATH_SKIPPED) {
            if (!same_bundle(r, i, op))
                wait_for(g, LEFT, rank, i);
            return;
        }
}

static void expand_op(struct graph *g, uint32_t n)
{
    struct node v = g->node.at[n];
    const struct engine *e = g->e;
    const struct ls_rank *r = &e->rank[v.rank];
    const struct ls_op *o = r->op[v.op].op;
    long on;
    if (path_of(r, v.op) == PATH_OPEN) {
        uint32_t d = r->op[v.op].guard;
        while (r->decided[d])
            d = r->op[d].guard;
        wait_for(g, LEFT, v.rank, d);
    }
    if (r->status[v.op] == OP_OPEN) {
        on = holder(e, &r->thread[o->thread]);
        if (on != NOTHING && on != (long)v.op)
            wait_for(g, LEFT, v.rank, (size_t)on);
    }
    if (o->kind == LS_OP_HOST_WAIT || o->kind == LS_OP_WAIT) {
        on = latest_record(r, v.op);
        if (on != NOTHING && r->status[on] != OP_DONE)
            wait_for(g, LEFT, v.rank, (size_t)on);
    }
    if (ls_op_is_host(o))
        return;
    on = stream_head(r, o->stream);
    if (on != NOTHING && !same_bundle(r, (size_t)on, v.op))
        wait_for(g, LEFT, v.rank, (size_t)on);
    if (!ls_op_uses_comm(o))
        return;
    for (size_t i = 0; i < r->ops; i++)
        if (ls_op_uses_comm(r->op[i].op) && (i == v.op || (v.what == LEFT && same_bundle(r, i, v.op))))
            expand_queue(g, v.rank, i);
    if (on != NOTHING && same_bundle(r, (size_t)on, v.op) && r->status[v.op] == OP_ISSUED)
        expand_slots(g, v.rank, v.op);
}

static void expand_meeting(struct graph *g, uint32_t n)
{
    struct ls_meeting_place m = g->node.at[n].at;
    const uint32_t *rank;
    uint32_t pair[2];
    size_t count = members(g->e, &m, &rank, pair);
    for (size_t i = 0; i < count; i++) {
        long head = head_of(g->e, rank[i], &m, side_at(&m, i), NULL);
        if (head == NOTHING) {
            if (!g->node.at[n].lacks)
                g->node.at[n].missing = rank[i];
            g->node.at[n].lacks = true;
        } else if (!has_arrived(g->e, rank[i], head))
            wait_for(g, PAIRED, rank[i], (size_t)head);
    }
}

static void build(struct graph *g)
{
    const struct engine *e = g->e;
    for (uint32_t rank = 0; rank < e->job->ranks; rank++)
        for (size_t i = 0; i < e->rank[rank].ops; i++)
            if (e->rank[rank].status[i] == OP_STARTED) {
                struct ls_meeting_place m = meeting_of(e, rank, i);
                if (head_of(e, rank, &m, side_of(op_of(e, rank, i)), NULL) == (long)i)
                    add_node(g, (struct node){ .what = MEETING, .at = m, .missing = LS_NO_ID });
            }
    for (uint32_t n = 0; n < g->node.count; n++) {
        size_t first = g->edge.count;
        if (g->node.at[n].what == MEETING)
            expand_meeting(g, n);
        else
            expand_op(g, n);
        g->node.at[n].first = first;
        g->node.at[n].count = g->edge.count - first;
    }
}

/* A shortest way from a node back to itself, as nodes after it; 0 if there is none. */
static size_t cycle_through(const struct graph *g, uint32_t root, uint32_t *out)
{
    size_t n = g->node.count, head = 0, end = 0, length = 0;
    uint32_t *from = malloc((n + 1) * sizeof *from), *queue = malloc((n + 1) * sizeof *queue), last = LS_NO_ID;
    if (!from || !queue)
        ls_out_of_memory(n * sizeof *from);
    for (size_t i = 0; i < n; i++)
        from[i] = LS_NO_ID;
    queue[end++] = root;
    while (head < end && last == LS_NO_ID) {
        uint32_t v = queue[head++];
        for (size_t k = 0; k < g->node.at[v].count; k++) {
            uint32_t w = g->edge.at[g->node.at[v].first + k];
            if (w == root) {
                last = v;
                break;
            }
            if (from[w] == LS_NO_ID) {
                from[w] = v;
                queue[end++] = w;
            }
        }
    }
    if (last != LS_NO_ID) {
        for (uint32_t v = last; v != root; v = from[v])
            length++;
        size_t at = length;
        for (uint32_t v = last; v != root; v = from[v])
            out[--at] = v;
        length++; /* a cycle of one node is a cycle */
    }
    free(from);
    free(queue);
    return length;
}

static struct ls_at first_arrived(const struct engine *e, const struct ls_meeting_place *m)
{
    const uint32_t *rank;
    uint32_t pair[2];
    size_t count = members(e, m, &rank, pair);
    for (size_t i = 0; i < count; i++) {
        long head = head_of(e, rank[i], m, side_at(m, i), NULL);
        if (has_arrived(e, rank[i], head))
            return at_of(e, rank[i], (size_t)head);
    }
    return NO_AT;
}

static void read_hang(const struct engine *e, struct ls_arena *arena, struct ls_outcome *out)
{
    struct graph g = { .e = e };
    build(&g);
    uint32_t best = LS_NO_ID, *cycle = LS_NEW(arena, uint32_t, g.node.count + 1);
    for (uint32_t i = 0; i < g.node.count; i++) {
        const struct node *v = &g.node.at[i];
        if (v->what != MEETING || (!v->lacks && out->verdict == LS_HANG && !cycle_through(&g, i, cycle)))
            continue;
        if (best == LS_NO_ID || ls_meeting_before(&v->at, &g.node.at[best].at))
            best = i;
    }
    if (best != LS_NO_ID) {
        const struct node *v = &g.node.at[best];
        ls_meeting_report(&v->at, out);
        struct ls_at waits = first_arrived(e, &v->at);
        if (out->verdict == LS_ERROR)
            out->b = waits;
        else if (v->lacks) {
            out->a = waits;
            out->missing_rank = out->b.rank = v->missing;
        } else {
            size_t n = cycle_through(&g, best, cycle) - 1;
            out->cycle = LS_NEW(arena, struct ls_at, n + 1);
            for (size_t i = 0; i < n; i++) { /* from the arrived op that closes it */
                const struct node *w = &g.node.at[cycle[(i + n - 1) % n]];
                struct ls_at at = w->what == MEETING ? NO_AT : at_of(e, w->rank, w->op);
                const struct ls_at *before = out->cycle_count ? &out->cycle[out->cycle_count - 1] : NULL;
                if (w->what != MEETING && !(before && memcmp(before, &at, sizeof at) == 0))
                    out->cycle[out->cycle_count++] = at;
            }
            out->a = out->cycle_count ? out->cycle[0] : waits;
            out->b = out->cycle_count ? out->cycle[1 % out->cycle_count] : NO_AT;
        }
    }
    ls_vec_release(&g.node);
    ls_vec_release(&g.edge);
}

static bool read_mismatch(const struct engine *e, struct ls_outcome *out)
{
    size_t count = e->clash.count;
    const struct ls_comm_clash *clash = e->clash.at, *best = NULL;
    struct ls_meeting_place at = { 0 };
    uint32_t first = 0, second = 0;
    if (e->o->nccl_like) /* nobody noticed */
        return false;
    for (size_t i = 0; i < count; i++) {
        const struct ls_groups *g = &e->job->comm[clash[i].comm];
        uint32_t a = g->rank[g->first[clash[i].group] + clash[i].member[0]], b = g->rank[g->first[clash[i].group] + clash[i].member[1]];
        /* A buffered send has left its queue. */
        struct ls_meeting_place m = clash[i].p2p ? meeting_of(e, b, (size_t)clash[i].tag[1]) : meeting_of(e, a, (size_t)clash[i].tag[0]);
        if (best && !ls_meeting_before(&m, &at))
            continue;
        best = &clash[i];
        at = m;
        first = a;
        second = b;
    }
    if (!best)
        return false;
    static const enum ls_diff diff[] = { [LS_COMM_SAME] = LS_DIFF_NONE, [LS_COMM_KIND] = LS_DIFF_KIND, [LS_COMM_COUNT] = LS_DIFF_COUNT,
                                         [LS_COMM_DTYPE] = LS_DIFF_DTYPE, [LS_COMM_REDUCE] = LS_DIFF_REDUCE, [LS_COMM_ROOT] = LS_DIFF_ROOT,
                                         [LS_COMM_PAYLOAD] = LS_DIFF_PAYLOAD };
    ls_meeting_report(&at, out);
    out->a = at_of(e, first, (size_t)best->tag[0]);
    out->b = at_of(e, second, (size_t)best->tag[1]);
    out->diff = diff[best->diff];
    out->verdict = out->diff == LS_DIFF_PAYLOAD ? LS_MISPAIRING : LS_MISMATCH;
    return true;
}

/* Every rank's heads: the first unfinished op of each stream, and what its threads are held at. */
static void read_pending(const struct engine *e, struct ls_arena *arena, struct ls_outcome *out)
{
    LS_VEC(struct ls_pending) all = { 0 };
    for (uint32_t rank = 0; rank < e->job->ranks; rank++) {
        const struct ls_rank *r = &e->rank[rank];
        for (unsigned s = 0; s < e->streams; s++) {
            long head = stream_head(r, s);
            if (head == NOTHING || r->status[head] == OP_OPEN)
                continue;
            const struct ls_op *o = r->op[head].op;
            struct ls_pending p = { .at = at_of(e, rank, (size_t)head), .on = NO_AT, .why = LS_BLOCKED_STREAM };
            if (o->kind == LS_OP_WAIT) {
                long record = latest_record(r, (size_t)head);
                p.why = LS_BLOCKED_EVENT;
                if (record != NOTHING)
                    p.on = at_of(e, rank, (size_t)record);
            } else if (ls_op_uses_comm(o)) {
                struct ls_meeting_place m = meeting_of(e, rank, (size_t)head);
                long first = head_of(e, rank, &m, side_of(o), NULL);
                p.why = first != head ? LS_BLOCKED_FIFO : r->status[head] == OP_ISSUED && e->o->resident ? LS_BLOCKED_SLOT : m.p2p ? LS_BLOCKED_PEER : LS_BLOCKED_MEMBERS;
                if (first != head && first != NOTHING)
                    p.on = at_of(e, rank, (size_t)first);
            }
            ls_push(&all, p);
        }
        for (size_t t = 0; t < r->threads; t++) {
            long at = holder(e, &r->thread[t]);
            if (at != NOTHING && (r->op[at].op->kind == LS_OP_HOST_WAIT || r->op[at].op->kind == LS_OP_STOP)) {
                struct ls_pending p = { .at = at_of(e, rank, (size_t)at), .on = NO_AT, .why = LS_BLOCKED_HOST };
                ls_push(&all, p);
            } else if (at == NOTHING && r->thread[t].at < r->ops) {
                struct ls_pending p = { .at = at_of(e, rank, r->thread[t].at), .on = NO_AT, .why = LS_BLOCKED_HOST };
                ls_push(&all, p);
            }
        }
    }
    out->pending = ls_arena_copy(arena, all.at, all.count * sizeof *all.at);
    out->pending_count = all.count;
    ls_vec_release(&all);
}

void observe(struct engine *e, struct ls_arena *arena, struct ls_observed *out)
{
    struct ls_outcome *o = &out->outcome;
    *o = (struct ls_outcome){ .verdict = LS_SAFE, .comm = LS_NO_ID, .group = LS_NO_ID, .a = NO_AT, .b = NO_AT,
                              .missing_rank = LS_NO_ID, .collectives = e->collectives };
    bool finished = true;
    uint32_t stopped = LS_NO_ID;
    for (uint32_t rank = 0; rank < e->job->ranks; rank++) {
        const struct ls_rank *r = &e->rank[rank];
        for (size_t i = 0; i < r->ops; i++) {
            bool skipped = r->status[i] == OP_SKIPPED || path_of(r, i) == PATH_SKIPPED;
            o->issued += r->status[i] >= OP_ISSUED;
            o->completed += r->status[i] == OP_DONE;
            finished = finished && (skipped || r->status[i] == OP_DONE);
        }
        if (r->stopped && stopped == LS_NO_ID)
            stopped = rank;
    }
    if (!finished)
        read_pending(e, arena, o);
    if (read_mismatch(e, o) || finished)
        return;
    o->verdict = LS_HANG;
    if (stopped != LS_NO_ID) {
        o->verdict = LS_ERROR;
        o->missing_rank = stopped;
        o->a = at_of(e, stopped, e->rank[stopped].stop_at);
    }
    read_hang(e, arena, o);
}
