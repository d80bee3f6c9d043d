#include "naive_judge.h"

#include "base/vec.h"
#include "naive_rules.h"

#include <assert.h>
#include <stdlib.h>

/* Nodes of the wait graph: 2i an op to be paired, 2i + 1 an op to be done; i counts over all ranks. Then one per meeting and
 * one per op that waits in a p2p queue. */
static size_t node_of(const struct naive *n, uint32_t rank, uint32_t index, bool done)
{
    size_t base = 0;
    for (uint32_t r = 0; r < rank; r++)
        base += n->rank[r].count;
    return 2 * (base + index) + done;
}

static size_t ops_total(const struct naive *n)
{
    return node_of(n, (uint32_t)n->job->ranks, 0, false) / 2;
}

struct waits { LS_VEC(size_t) to; uint32_t missing; };

static void from_meeting(struct naive *n, uint32_t comm, uint32_t group, struct waits *w)
{
    const struct ls_groups *g = &n->job->comm[comm];
    for (uint32_t i = g->first[group]; i < g->first[group + 1]; i++) {
        const struct naive_op *a = naive_next_of(n, g->rank[i], comm);
        if (!a)
            w->missing = w->missing == LS_NO_ID ? g->rank[i] : w->missing;
        else if (!naive_arrived(n, &n->rank[g->rank[i]], a))
            ls_push(&w->to, node_of(n, g->rank[i], a->index, false));
    }
}

static void from_p2p(struct naive *n, uint32_t rank, const struct naive_op *a, struct waits *w)
{
    const struct ls_groups *g = &n->job->comm[a->op->comm];
    uint32_t other = g->rank[g->first[g->group[rank]] + (uint32_t)a->op->peer];
    const struct naive_op *b = naive_next_p2p(n, other, a->op->kind == LS_OP_SEND ? LS_OP_RECV : LS_OP_SEND, a->op->comm, g->member[rank]);
    if (!b)
        w->missing = other;
    else
        ls_push(&w->to, node_of(n, other, b->index, false));
}

static size_t meetings_before(const struct naive *n, uint32_t comm)
{
    size_t base = 0;
    for (uint32_t c = 0; c < comm; c++)
        base += n->job->comm[c].groups;
    return base;
}

static void from_op(struct naive *n, uint32_t rank, size_t i, bool done, struct waits *w)
{
    struct naive_rank *r = &n->rank[rank];
    const struct naive_op *a = &r->op[i];
    int side;
    if (naive_path_of(r, i) == NAIVE_OPEN)
        ls_push(&w->to, node_of(n, rank, naive_inside(r, i, &side)->index, true));
    if (!a->issued) {
        const struct naive_op *h = NULL;
        size_t next = 0; /* the thread's next op to issue: what holds it now */
        for (next = 0; next < r->count; next++)
            if (r->op[next].op->thread == a->op->thread && !r->op[next].issued && naive_path_of(r, next) != NAIVE_SKIPPED)
                break;
        if (next < r->count && !(h = naive_holds(n, r, next)) && naive_is_bounded(n, r, next)) {
            for (unsigned s = 0; s < 256; s++) {
                const struct naive_op *x = naive_stream_head(r, (uint8_t)s);
                if (x && x->issued && x->op->thread == a->op->thread)
                    ls_push(&w->to, node_of(n, rank, x->index, true));
            }
        } else if (h && !(h->op->kind == LS_OP_STOP && h->issued))
            ls_push(&w->to, node_of(n, rank, h->index, true));
    }
    if ((a->op->kind == LS_OP_WAIT || a->op->kind == LS_OP_HOST_WAIT) && !naive_event_done(r, i))
        ls_push(&w->to, node_of(n, rank, naive_record_of(r, i)->index, true));
    if (!naive_is_stream(a))
        return;
    const struct naive_op *head = naive_stream_head(r, a->op->stream);
    bool heads = naive_same_bundle(r, head->index, i);
    if (!heads)
        ls_push(&w->to, node_of(n, rank, head->index, true));
    if (!naive_is_comm(a))
        return;
    for (size_t j = 0; j < r->count; j++) {
        const struct naive_op *b = &r->op[j];
        if ((j != i && !(done && naive_same_bundle(r, i, j))) || b->paired)
            continue;
        const struct naive_op *q = naive_queue_head(n, r, b);
        if (q != b)
            ls_push(&w->to, node_of(n, rank, q->index, false));
        else if (b->started && naive_is_coll(b)) {
            uint32_t c = naive_queue_comm(n, b);
            ls_push(&w->to, 2 * ops_total(n) + meetings_before(n, c) + n->job->comm[c].group[rank]);
        } else if (b->started)
            ls_push(&w->to, 2 * ops_total(n) + meetings_before(n, (uint32_t)n->job->tables->comm.count) + node_of(n, rank, b->index, false) / 2);
    }
    if (naive_bounded_slots(n) && heads && a->issued && naive_path_of(r, i) == NAIVE_TAKEN && !a->started && naive_slots_of(n, r, i)) {
        for (size_t j = 0; j < r->count; j++)
            if (naive_is_comm(&r->op[j]) && r->op[j].started && !r->op[j].done && naive_slots_of(n, r, j))
                ls_push(&w->to, node_of(n, rank, r->op[j].index, true));
        const struct naive_op *k = naive_next_kernel(n, r);
        if (n->o->start == LS_START_ISSUE_ORDER && k && !naive_same_bundle(r, k->index, i))
            ls_push(&w->to, node_of(n, rank, k->index, true));
    }
}

static void successors(struct naive *n, size_t node, struct waits *w)
{
    size_t ops = ops_total(n), comms = n->job->tables->comm.count, meetings = meetings_before(n, (uint32_t)comms);
    w->to.count = 0;
    w->missing = LS_NO_ID;
    if (node >= 2 * ops && node < 2 * ops + meetings) {
        uint32_t c = 0;
        while (meetings_before(n, c + 1) <= node - 2 * ops)
            c++;
        from_meeting(n, c, (uint32_t)(node - 2 * ops - meetings_before(n, c)), w);
        return;
    }
    size_t i = node < 2 * ops ? node / 2 : node - 2 * ops - meetings;
    uint32_t rank = 0;
    while (i >= n->rank[rank].count)
        i -= n->rank[rank++].count;
    if (node < 2 * ops)
        from_op(n, rank, i, node % 2, w);
    else
        from_p2p(n, rank, &n->rank[rank].op[i], w);
}

/* Which nodes can be reached from `node` by one or more edges? */
static bool *reach(struct naive *n, size_t node)
{
    size_t total = 3 * ops_total(n) + meetings_before(n, (uint32_t)n->job->tables->comm.count);
    bool *seen = calloc(total + 1, sizeof *seen);
    LS_VEC(size_t) stack = { 0 };
    struct waits w = { 0 };
    assert(seen);
    ls_push(&stack, node);
    while (stack.count) {
        successors(n, stack.at[--stack.count], &w);
        for (size_t i = 0; i < w.to.count; i++)
            if (!seen[w.to.at[i]]) {
                seen[w.to.at[i]] = true;
                ls_push(&stack, w.to.at[i]);
            }
    }
    ls_vec_release(&stack);
    ls_vec_release(&w.to);
    return seen;
}

static uint32_t index_of(const struct naive *n, struct ls_at at)
{
    for (uint32_t i = 0; i < n->rank[at.rank].count; i++)
        if (n->rank[at.rank].op[i].at.segment == at.segment && n->rank[at.rank].op[i].at.op == at.op)
            return i;
    assert(0 && "no such op");
    return 0;
}

bool naive_waits(const struct naive *n, struct ls_at a, struct ls_at b)
{
    struct naive copy = *n;
    uint32_t ib = index_of(n, b);
    bool *seen = reach(&copy, node_of(n, a.rank, index_of(n, a), true));
    bool found = seen[node_of(n, b.rank, ib, true)] || seen[node_of(n, b.rank, ib, false)];
    free(seen);
    return found;
}

struct spot { bool set; uint32_t comm; size_t position; uint32_t group, p2p, sender, receiver; };

static bool before(const struct spot *a, const struct spot *b)
{
    uint64_t x[] = { a->comm, a->position, a->group, a->p2p, a->sender, a->receiver };
    uint64_t y[] = { b->comm, b->position, b->group, b->p2p, b->sender, b->receiver };
    if (!b->set)
        return true;
    for (size_t i = 0; i < 6; i++)
        if (x[i] != y[i])
            return x[i] < y[i];
    return false;
}

static struct spot p2p_spot(const struct naive *n, uint32_t rank, const struct naive_op *a)
{
    const struct ls_groups *g = &n->job->comm[a->op->comm];
    uint32_t me = g->member[rank], peer = (uint32_t)a->op->peer;
    bool send = a->op->kind == LS_OP_SEND;
    return (struct spot){ true, a->op->comm, naive_ordinal(n, &n->rank[rank], a), g->group[rank], 1, send ? me : peer, send ? peer : me };
}

static void take(struct naive *n, struct spot *best, struct spot s)
{
    *best = s;
    n->comm = s.comm, n->group = s.group, n->position = s.position;
}

bool naive_judge_mismatch(struct naive *n)
{
    struct spot best = { 0 };
    for (uint32_t c = 0; c < n->job->tables->comm.count; c++)
        for (uint32_t group = 0; group < n->job->comm[c].groups; group++) {
            const struct ls_groups *g = &n->job->comm[c];
            const struct naive_op *first = NULL;
            for (uint32_t i = g->first[group]; i < g->first[group + 1]; i++) {
                const struct naive_op *a = naive_next_of(n, g->rank[i], c);
                if (!naive_arrived(n, &n->rank[g->rank[i]], a))
                    continue;
                if (!first)
                    first = a;
                enum ls_diff d = naive_compare(n, first->op, a->op);
                struct spot s = { true, c, naive_ordinal(n, &n->rank[g->rank[i]], a), group, 0, 0, 0 };
                if (d == LS_DIFF_NONE || !before(&s, &best))
                    continue;
                take(n, &best, s);
                n->diff = d, n->a = first->at, n->b = a->at;
            }
        }
    for (uint32_t i = 0; i < n->job->ranks; i++)
        for (size_t j = 0; j < n->rank[i].count; j++) {
            const struct naive_op *a = &n->rank[i].op[j];
            if (a->op->kind != LS_OP_RECV || !naive_arrived(n, &n->rank[i], a))
                continue;
            const struct naive_op *s = naive_partner_send(n, i, a);
            struct spot at = p2p_spot(n, i, a);
            if (!s || naive_compare(n, s->op, a->op) == LS_DIFF_NONE || !before(&at, &best))
                continue;
            take(n, &best, at);
            n->diff = naive_compare(n, s->op, a->op), n->a = s->at, n->b = a->at;
        }
    if (best.set)
        n->verdict = n->diff == LS_DIFF_PAYLOAD ? LS_MISPAIRING : LS_MISMATCH;
    return best.set;
}

void naive_judge_hang(struct naive *n)
{
    size_t ops = ops_total(n), comms = n->job->tables->comm.count, meetings = meetings_before(n, (uint32_t)comms);
    struct spot best = { 0 };
    struct waits w = { 0 };
    for (uint32_t i = 0; i < n->job->ranks; i++)
        for (size_t j = 0; j < n->rank[i].count; j++) {
            const struct naive_op *a = &n->rank[i].op[j];
            if (!naive_is_comm(a) || !naive_arrived(n, &n->rank[i], a))
                continue;
            uint32_t c = naive_queue_comm(n, a), group = n->job->comm[c].group[i];
            size_t node = naive_is_coll(a) ? 2 * ops + meetings_before(n, c) + group : 2 * ops + meetings + node_of(n, i, (uint32_t)j, false) / 2;
            struct spot s = naive_is_coll(a) ? (struct spot){ true, c, naive_ordinal(n, &n->rank[i], a), group, 0, 0, 0 } : p2p_spot(n, i, a);
            successors(n, node, &w);
            uint32_t missing = w.missing;
            bool *seen = reach(n, node);
            if ((missing != LS_NO_ID || seen[node] || n->verdict == LS_ERROR) && before(&s, &best)) {
                take(n, &best, s);
                if (n->verdict == LS_HANG)
                    n->missing_rank = missing;
            }
            free(seen);
        }
    ls_vec_release(&w.to);
}
