#include "naive.h"

#include "base/hash.h"
#include "base/vec.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum path { TAKEN, SKIPPED, OPEN };

static bool is_stream(const struct naive_op *a) { return !ls_op_is_host(a->op); }
static bool is_coll(const struct naive_op *a) { return ls_op_is_collective(a->op); }
static bool is_p2p(const struct naive_op *a) { return ls_op_is_p2p(a->op); }
static bool is_comm(const struct naive_op *a) { return is_coll(a) || is_p2p(a); }

static uint32_t queue_comm(const struct naive *n, const struct naive_op *a)
{
    uint32_t parent = a->op->kind == LS_OP_COMM_INIT ? n->job->tables->comm.at[a->op->comm].parent : LS_NO_ID;
    return parent != LS_NO_ID ? parent : a->op->comm;
}

/* The innermost decide around an op, and its side; NULL for none. */
static const struct naive_op *inside(const struct naive_rank *r, size_t i, int *side)
{
    for (size_t d = i; r->decides && d-- > r->op[i].segment_first;) {
        const struct ls_op *o = r->op[d].op;
        if (o->kind != LS_OP_DECIDE || i > d + o->then_count + o->else_count)
            continue;
        *side = i <= d + o->then_count ? 1 : 2;
        return &r->op[d];
    }
    return NULL;
}

static enum path path_of(const struct naive_rank *r, size_t i)
{
    int side = 0;
    const struct naive_op *d = inside(r, i, &side);
    if (!d)
        return TAKEN;
    if (d->agreed)
        return d->agreed == side ? TAKEN : SKIPPED;
    return path_of(r, d->index) == SKIPPED ? SKIPPED : OPEN;
}

static bool blocks(const struct naive *n, const struct naive_op *a)
{
    return is_stream(a) && (n->o->level == LS_L1 || a->op->blocking || a->op->kind == LS_OP_DECIDE || a->op->kind == LS_OP_COMM_INIT);
}

/* In one fused group: same thread, number, branch and segment, with nothing but alloc, free and mark of the thread between. */
static bool same_fused(const struct naive_rank *r, size_t i, size_t j)
{
    int side_i = 0, side_j = 0;
    if (i > j) {
        size_t k = i;
        i = j, j = k;
    }
    const struct naive_op *a = &r->op[i], *b = &r->op[j];
    if (!a->op->fused || a->op->fused != b->op->fused || a->op->thread != b->op->thread || a->segment_first != b->segment_first)
        return false;
    if (inside(r, i, &side_i) != inside(r, j, &side_j) || side_i != side_j)
        return false;
    for (size_t k = i + 1; k < j; k++) {
        const struct ls_op *o = r->op[k].op;
        if (o->thread != a->op->thread || o->kind == LS_OP_ALLOC || o->kind == LS_OP_FREE || o->kind == LS_OP_MARK)
            continue;
        int side = 0;
        if (o->fused != a->op->fused || inside(r, k, &side) != inside(r, i, &side_i) || side != side_i)
            return false;
    }
    return true;
}

/* In one bundle: of one fused group, on one stream, with only ops of the group between them on the stream. */
static bool same_bundle(const struct naive_rank *r, size_t i, size_t j)
{
    if (i == j)
        return true;
    if (r->op[i].op->stream != r->op[j].op->stream || !same_fused(r, i, j))
        return false;
    size_t low = i < j ? i : j, high = i < j ? j : i;
    for (size_t k = low + 1; k < high; k++)
        if (is_stream(&r->op[k]) && r->op[k].op->stream == r->op[i].op->stream && !same_fused(r, i, k))
            return false;
    return true;
}

/* The record that a wait means: the latest one before it that is not skipped. */
static const struct naive_op *record_of(const struct naive_rank *r, size_t i)
{
    for (size_t j = i; j-- > 0;)
        if (r->op[j].op->kind == LS_OP_RECORD && r->op[j].op->event == r->op[i].op->event && path_of(r, j) != SKIPPED)
            return &r->op[j];
    return NULL;
}

static bool event_done(const struct naive_rank *r, size_t i)
{
    const struct naive_op *rec = record_of(r, i);
    return !rec || rec->done;
}

/* The op at which a thread is held before it may issue op `to`; NULL when nothing holds it. */
static const struct naive_op *holds(const struct naive *n, const struct naive_rank *r, size_t to)
{
    for (size_t j = 0; j <= to; j++) {
        const struct naive_op *a = &r->op[j];
        enum path p = path_of(r, j);
        if (p == SKIPPED)
            continue;
        int side;
        if (a->op->kind == LS_OP_STOP && j < to)
            return p == OPEN ? inside(r, j, &side) : a;
        if (a->op->thread != r->op[to].op->thread)
            continue;
        if (p == OPEN)
            return inside(r, j, &side);
        if (j == to || same_fused(r, j, to))
            continue;
        if ((blocks(n, a) || a->op->kind == LS_OP_HOST_WAIT) && !a->done) {
            /* a fused group holds its thread only once it is issued as a whole, and then in list order */
            return a;
        }
    }
    return NULL;
}

static size_t unfinished(const struct naive_rank *r, uint8_t thread)
{
    size_t count = 0;
    for (size_t j = 0; j < r->count; j++)
        count += r->op[j].op->thread == thread && is_stream(&r->op[j]) && r->op[j].issued && !r->op[j].done;
    return count;
}

static bool is_bounded(const struct naive *n, const struct naive_rank *r, size_t i)
{
    if (!n->o->run_ahead || !is_stream(&r->op[i]))
        return false;
    for (size_t j = 0; j < i; j++)
        if (same_fused(r, i, j))
            return false;
    return unfinished(r, r->op[i].op->thread) >= n->o->run_ahead;
}

static bool may_issue(const struct naive *n, const struct naive_rank *r, size_t i)
{
    if (r->op[i].issued || path_of(r, i) != TAKEN)
        return false;
    for (size_t j = 0; j < i; j++)
        if (r->op[j].op->thread == r->op[i].op->thread && path_of(r, j) == TAKEN && !r->op[j].issued)
            return false;
    return !holds(n, r, i) && !is_bounded(n, r, i);
}

/* The first unfinished op of a stream; that of a FIFO or p2p queue. */
static const struct naive_op *stream_head(const struct naive_rank *r, uint8_t stream)
{
    for (size_t j = 0; j < r->count; j++)
        if (is_stream(&r->op[j]) && r->op[j].op->stream == stream && !r->op[j].done && path_of(r, j) != SKIPPED)
            return &r->op[j];
    return NULL;
}

static bool same_queue(const struct naive *n, const struct naive_op *a, const struct naive_op *b)
{
    if (is_coll(a) && is_coll(b))
        return queue_comm(n, a) == queue_comm(n, b);
    return is_p2p(a) && a->op->kind == b->op->kind && a->op->comm == b->op->comm && a->op->peer == b->op->peer;
}

static const struct naive_op *queue_head(const struct naive *n, const struct naive_rank *r, const struct naive_op *like)
{
    for (size_t j = 0; j < r->count; j++)
        if (is_comm(&r->op[j]) && same_queue(n, &r->op[j], like) && !r->op[j].paired && path_of(r, j) != SKIPPED)
            return &r->op[j];
    return NULL;
}

static bool is_ready(const struct naive *n, const struct naive_rank *r, size_t i)
{
    const struct naive_op *a = &r->op[i];
    (void)n;
    if (!is_stream(a) || !a->issued || a->done || path_of(r, i) != TAKEN)
        return false;
    const struct naive_op *head = stream_head(r, a->op->stream);
    return same_bundle(r, head->index, i);
}

static uint32_t slots_of(const struct naive *n, const struct naive_rank *r, size_t i)
{
    uint32_t sum = 0;
    for (size_t c = 0; c < n->job->tables->comm.count; c++) {
        uint32_t most = 0;
        for (size_t j = 0; j < r->count; j++)
            if (is_comm(&r->op[j]) && queue_comm(n, &r->op[j]) == c && same_bundle(r, i, j)) {
                uint32_t want = r->op[j].op->slots ? r->op[j].op->slots : r->op[j].op->kind != LS_OP_COMM_INIT;
                most = want > most ? want : most;
            }
        sum += most;
    }
    return n->o->kernels && sum > n->o->kernels ? n->o->kernels : sum;
}

static bool is_first_of_bundle(const struct naive_rank *r, size_t i)
{
    for (size_t j = 0; j < i; j++)
        if (same_bundle(r, i, j))
            return false;
    return true;
}

static uint32_t slots_used(const struct naive *n, const struct naive_rank *r)
{
    uint32_t used = 0;
    for (size_t j = 0; j < r->count; j++)
        if (is_comm(&r->op[j]) && r->op[j].started && !r->op[j].done && is_first_of_bundle(r, j))
            used += slots_of(n, r, j);
    return used;
}

static bool bounded_slots(const struct naive *n)
{
    return n->o->level == LS_L3 && (n->o->kernels || n->o->start == LS_START_ISSUE_ORDER);
}

static const struct naive_op *next_kernel(const struct naive *n, const struct naive_rank *r)
{
    for (size_t j = 0; j < r->count; j++)
        if (is_comm(&r->op[j]) && !r->op[j].started && path_of(r, j) != SKIPPED && is_first_of_bundle(r, j) && slots_of(n, r, j))
            return &r->op[j];
    return NULL;
}

/* May the bundle of which op i is the first start? */
static bool may_start(const struct naive *n, const struct naive_rank *r, size_t i)
{
    const struct naive_op *a = &r->op[i];
    if (!is_comm(a) || a->started || !is_first_of_bundle(r, i) || !is_ready(n, r, i))
        return false;
    if (!bounded_slots(n) || slots_of(n, r, i) == 0)
        return true;
    for (size_t j = i; j < r->count; j++)
        if (same_bundle(r, i, j)) {
            const struct naive_op *head = queue_head(n, r, &r->op[j]);
            if (!same_bundle(r, i, head->index))
                return false;
        }
    if (n->o->kernels && slots_used(n, r) + slots_of(n, r, i) > n->o->kernels)
        return false;
    return n->o->start == LS_START_ANY || next_kernel(n, r) == a;
}

static bool arrived(const struct naive *n, const struct naive_rank *r, const struct naive_op *a)
{
    return a && a->started && !a->paired && queue_head(n, r, a) == a;
}

static enum ls_diff compare(const struct naive *n, const struct ls_op *a, const struct ls_op *b)
{
    const struct ls_tables *t = n->job->tables;
    bool p2p = a->kind == LS_OP_SEND || a->kind == LS_OP_RECV;
    if (!p2p && a->kind != b->kind)
        return LS_DIFF_KIND;
    if (a->kind == LS_OP_COMM_INIT && a->comm != b->comm)
        return LS_DIFF_KIND;
    if (a->symbol != b->symbol || (a->counts == LS_NO_ID) != (b->counts == LS_NO_ID))
        return LS_DIFF_COUNT;
    bool vectors = a->counts != LS_NO_ID, free_counts = vectors && a->kind == LS_OP_ALL_TO_ALL;
    if (!free_counts && a->count != b->count)
        return LS_DIFF_COUNT;
    if (vectors) {
        const uint64_t *x = &t->vector.at[a->counts], *y = &t->vector.at[b->counts];
        if (x[0] != y[0])
            return LS_DIFF_COUNT;
        for (uint64_t i = 1; i <= x[0] && !free_counts; i++)
            if (x[i] != y[i])
                return LS_DIFF_COUNT;
    }
    if (a->dtype != b->dtype)
        return LS_DIFF_DTYPE;
    double fa = a->factor.den ? (double)a->factor.num / a->factor.den : 1, fb = b->factor.den ? (double)b->factor.num / b->factor.den : 1;
    if (a->reduce != b->reduce || fa != fb)
        return LS_DIFF_REDUCE;
    if (!p2p && a->peer != b->peer)
        return LS_DIFF_ROOT;
    return a->payload != b->payload ? LS_DIFF_PAYLOAD : LS_DIFF_NONE;
}

/* The member's next op of a group, or NULL. */
static struct naive_op *next_of(struct naive *n, uint32_t rank, uint32_t comm)
{
    struct naive_rank *r = &n->rank[rank];
    for (size_t j = 0; j < r->count; j++)
        if (is_coll(&r->op[j]) && queue_comm(n, &r->op[j]) == comm && !r->op[j].paired && path_of(r, j) != SKIPPED)
            return &r->op[j];
    return NULL;
}

static struct naive_op *next_p2p(struct naive *n, uint32_t rank, enum ls_op_kind kind, uint32_t comm, uint32_t peer)
{
    struct naive_rank *r = &n->rank[rank];
    for (size_t j = 0; j < r->count; j++)
        if (r->op[j].op->kind == kind && r->op[j].op->comm == comm && (uint32_t)r->op[j].op->peer == peer && !r->op[j].paired &&
            path_of(r, j) != SKIPPED)
            return &r->op[j];
    return NULL;
}

static size_t ordinal(const struct naive *n, const struct naive_rank *r, const struct naive_op *a)
{
    size_t k = 0;
    for (size_t j = 0; j < a->index; j++)
        k += is_comm(&r->op[j]) && same_queue(n, a, &r->op[j]) && path_of(r, j) == TAKEN;
    return k;
}

static bool buffered(const struct naive *n) { return n->o->level == LS_L3 && !n->o->unbuffered_send; }

/* The send that a receive gets: the one with its ordinal on the queue. */
static struct naive_op *send_for(struct naive *n, uint32_t receiver, const struct naive_op *recv)
{
    const struct ls_groups *g = &n->job->comm[recv->op->comm];
    uint32_t from = g->rank[g->first[g->group[receiver]] + (uint32_t)recv->op->peer];
    struct naive_rank *s = &n->rank[from];
    size_t k = ordinal(n, &n->rank[receiver], recv);
    for (size_t j = 0; j < s->count; j++)
        if (s->op[j].op->kind == LS_OP_SEND && s->op[j].op->comm == recv->op->comm &&
            (uint32_t)s->op[j].op->peer == g->member[receiver] && path_of(s, j) == TAKEN && ordinal(n, s, &s->op[j]) == k)
            return &s->op[j];
    return NULL;
}

static uint64_t agree(const struct ls_op *op, uint64_t so_far, uint64_t value, bool first)
{
    if (first)
        return value;
    if (op->reduce == LS_REDUCE_MAX)
        return so_far > value ? so_far : value;
    if (op->reduce == LS_REDUCE_MIN)
        return so_far < value ? so_far : value;
    if (op->reduce == LS_REDUCE_PROD)
        return so_far != 0 && value != 0;
    return so_far + value;
}

static void pair(struct naive *n, uint32_t rank, struct naive_op *a)
{
    struct naive_rank *r = &n->rank[rank];
    bool all = true;
    a->paired = true;
    for (size_t j = 0; j < r->count; j++)
        all &= !same_bundle(r, a->index, j) || r->op[j].paired;
    for (size_t j = 0; j < r->count && all; j++)
        if (same_bundle(r, a->index, j))
            r->op[j].done = true;
}

static bool group_can(struct naive *n, uint32_t comm, uint32_t group)
{
    const struct ls_groups *g = &n->job->comm[comm];
    const struct naive_op *first = NULL;
    for (uint32_t i = g->first[group]; i < g->first[group + 1]; i++) {
        const struct naive_op *a = next_of(n, g->rank[i], comm);
        if (!arrived(n, &n->rank[g->rank[i]], a))
            return false;
        if (!first)
            first = a;
        if (compare(n, first->op, a->op) != LS_DIFF_NONE)
            return false;
    }
    return true;
}

static void group_do(struct naive *n, uint32_t comm, uint32_t group)
{
    const struct ls_groups *g = &n->job->comm[comm];
    uint64_t value = 0;
    struct naive_op *op[NAIVE_RANKS];
    uint32_t first = g->first[group], end = g->first[group + 1];
    for (uint32_t i = first; i < end; i++) {
        op[i - first] = next_of(n, g->rank[i], comm);
        value = agree(op[i - first]->op, value, op[i - first]->op->value, i == first);
    }
    for (uint32_t i = first; i < end; i++) {
        if (op[i - first]->op->kind == LS_OP_DECIDE)
            op[i - first]->agreed = value ? 1 : 2;
        pair(n, g->rank[i], op[i - first]);
    }
    n->collectives++;
}

static struct naive_op *partner_send(struct naive *n, uint32_t rank, const struct naive_op *recv)
{
    struct naive_op *s = send_for(n, rank, recv);
    const struct ls_groups *g = &n->job->comm[recv->op->comm];
    uint32_t from = g->rank[g->first[g->group[rank]] + (uint32_t)recv->op->peer];
    if (!s)
        return NULL;
    return buffered(n) ? (s->paired ? s : NULL) : (arrived(n, &n->rank[from], s) ? s : NULL);
}

enum act { ISSUE, RUN, START, MEET, RECEIVE, SEND };
struct action { enum act act; uint32_t rank, index; };
typedef LS_VEC(struct action) action_vec;

static void find_actions(struct naive *n, action_vec *v)
{
    v->count = 0;
    for (uint32_t i = 0; i < n->job->ranks; i++) {
        struct naive_rank *r = &n->rank[i];
        for (uint32_t j = 0; j < r->count; j++) {
            const struct naive_op *a = &r->op[j];
            if (may_issue(n, r, j))
                ls_push(v, (struct action){ ISSUE, i, j });
            if (a->op->kind == LS_OP_HOST_WAIT && a->issued && !a->done && event_done(r, j))
                ls_push(v, (struct action){ RUN, i, j });
            if (is_stream(a) && !is_comm(a) && is_ready(n, r, j) && (a->op->kind != LS_OP_WAIT || event_done(r, j)))
                ls_push(v, (struct action){ RUN, i, j });
            if (may_start(n, r, j))
                ls_push(v, (struct action){ START, i, j });
            if (a->op->kind == LS_OP_RECV && arrived(n, r, a)) {
                const struct naive_op *s = partner_send(n, i, a);
                if (s && compare(n, s->op, a->op) == LS_DIFF_NONE)
                    ls_push(v, (struct action){ RECEIVE, i, j });
            }
            if (a->op->kind == LS_OP_SEND && buffered(n) && arrived(n, r, a))
                ls_push(v, (struct action){ SEND, i, j });
        }
    }
    for (uint32_t c = 0; c < n->job->tables->comm.count; c++)
        for (uint32_t g = 0; g < n->job->comm[c].groups; g++)
            if (group_can(n, c, g))
                ls_push(v, (struct action){ MEET, c, g });
}

static void act(struct naive *n, struct action a)
{
    struct naive_rank *r = &n->rank[a.act == MEET ? 0 : a.rank];
    struct naive_op *op = a.act == MEET ? NULL : &r->op[a.index];
    switch (a.act) {
    case ISSUE:
        op->issued = true;
        if (ls_op_is_host(op->op) && op->op->kind != LS_OP_HOST_WAIT)
            op->done = true;
        r->stopped |= op->op->kind == LS_OP_STOP;
        break;
    case RUN:
        op->done = true;
        break;
    case START:
        for (size_t j = 0; j < r->count; j++)
            if (same_bundle(r, a.index, j))
                r->op[j].started = true;
        break;
    case MEET:
        group_do(n, a.rank, a.index);
        break;
    case RECEIVE:
        if (!buffered(n)) {
            const struct ls_groups *g = &n->job->comm[op->op->comm];
            struct naive_op *s = send_for(n, a.rank, op);
            pair(n, g->rank[g->first[g->group[a.rank]] + (uint32_t)op->op->peer], s);
        }
        pair(n, a.rank, op);
        break;
    case SEND:
        pair(n, a.rank, op);
        break;
    }
}

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
        const struct naive_op *a = next_of(n, g->rank[i], comm);
        if (!a)
            w->missing = w->missing == LS_NO_ID ? g->rank[i] : w->missing;
        else if (!arrived(n, &n->rank[g->rank[i]], a))
            ls_push(&w->to, node_of(n, g->rank[i], a->index, false));
    }
}

static void from_p2p(struct naive *n, uint32_t rank, const struct naive_op *a, struct waits *w)
{
    const struct ls_groups *g = &n->job->comm[a->op->comm];
    uint32_t other = g->rank[g->first[g->group[rank]] + (uint32_t)a->op->peer];
    const struct naive_op *b = next_p2p(n, other, a->op->kind == LS_OP_SEND ? LS_OP_RECV : LS_OP_SEND, a->op->comm, g->member[rank]);
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
    if (path_of(r, i) == OPEN)
        ls_push(&w->to, node_of(n, rank, inside(r, i, &side)->index, true));
    if (!a->issued) {
        const struct naive_op *h = NULL;
        size_t next = 0; /* the thread's next op to issue: what holds it now */
        for (next = 0; next < r->count; next++)
            if (r->op[next].op->thread == a->op->thread && !r->op[next].issued && path_of(r, next) != SKIPPED)
                break;
        if (next < r->count && !(h = holds(n, r, next)) && is_bounded(n, r, next)) {
            for (unsigned s = 0; s < 256; s++) {
                const struct naive_op *x = stream_head(r, (uint8_t)s);
                if (x && x->issued && x->op->thread == a->op->thread)
                    ls_push(&w->to, node_of(n, rank, x->index, true));
            }
        } else if (h && !(h->op->kind == LS_OP_STOP && h->issued))
            ls_push(&w->to, node_of(n, rank, h->index, true));
    }
    if ((a->op->kind == LS_OP_WAIT || a->op->kind == LS_OP_HOST_WAIT) && !event_done(r, i))
        ls_push(&w->to, node_of(n, rank, record_of(r, i)->index, true));
    if (!is_stream(a))
        return;
    const struct naive_op *head = stream_head(r, a->op->stream);
    bool heads = same_bundle(r, head->index, i);
    if (!heads)
        ls_push(&w->to, node_of(n, rank, head->index, true));
    if (!is_comm(a))
        return;
    for (size_t j = 0; j < r->count; j++) {
        const struct naive_op *b = &r->op[j];
        if ((j != i && !(done && same_bundle(r, i, j))) || b->paired)
            continue;
        const struct naive_op *q = queue_head(n, r, b);
        if (q != b)
            ls_push(&w->to, node_of(n, rank, q->index, false));
        else if (b->started && is_coll(b)) {
            uint32_t c = queue_comm(n, b);
            ls_push(&w->to, 2 * ops_total(n) + meetings_before(n, c) + n->job->comm[c].group[rank]);
        } else if (b->started)
            ls_push(&w->to, 2 * ops_total(n) + meetings_before(n, (uint32_t)n->job->tables->comm.count) + node_of(n, rank, b->index, false) / 2);
    }
    if (bounded_slots(n) && heads && a->issued && path_of(r, i) == TAKEN && !a->started && slots_of(n, r, i)) {
        for (size_t j = 0; j < r->count; j++)
            if (is_comm(&r->op[j]) && r->op[j].started && !r->op[j].done && slots_of(n, r, j))
                ls_push(&w->to, node_of(n, rank, r->op[j].index, true));
        const struct naive_op *k = next_kernel(n, r);
        if (n->o->start == LS_START_ISSUE_ORDER && k && !same_bundle(r, k->index, i))
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
    return (struct spot){ true, a->op->comm, ordinal(n, &n->rank[rank], a), g->group[rank], 1, send ? me : peer, send ? peer : me };
}

static void take(struct naive *n, struct spot *best, struct spot s)
{
    *best = s;
    n->comm = s.comm, n->group = s.group, n->position = s.position;
}

static bool judge_mismatch(struct naive *n)
{
    struct spot best = { 0 };
    for (uint32_t c = 0; c < n->job->tables->comm.count; c++)
        for (uint32_t group = 0; group < n->job->comm[c].groups; group++) {
            const struct ls_groups *g = &n->job->comm[c];
            const struct naive_op *first = NULL;
            for (uint32_t i = g->first[group]; i < g->first[group + 1]; i++) {
                const struct naive_op *a = next_of(n, g->rank[i], c);
                if (!arrived(n, &n->rank[g->rank[i]], a))
                    continue;
                if (!first)
                    first = a;
                enum ls_diff d = compare(n, first->op, a->op);
                struct spot s = { true, c, ordinal(n, &n->rank[g->rank[i]], a), group, 0, 0, 0 };
                if (d == LS_DIFF_NONE || !before(&s, &best))
                    continue;
                take(n, &best, s);
                n->diff = d, n->a = first->at, n->b = a->at;
            }
        }
    for (uint32_t i = 0; i < n->job->ranks; i++)
        for (size_t j = 0; j < n->rank[i].count; j++) {
            const struct naive_op *a = &n->rank[i].op[j];
            if (a->op->kind != LS_OP_RECV || !arrived(n, &n->rank[i], a))
                continue;
            const struct naive_op *s = partner_send(n, i, a);
            struct spot at = p2p_spot(n, i, a);
            if (!s || compare(n, s->op, a->op) == LS_DIFF_NONE || !before(&at, &best))
                continue;
            take(n, &best, at);
            n->diff = compare(n, s->op, a->op), n->a = s->at, n->b = a->at;
        }
    if (best.set)
        n->verdict = n->diff == LS_DIFF_PAYLOAD ? LS_MISPAIRING : LS_MISMATCH;
    return best.set;
}

static void judge_hang(struct naive *n)
{
    size_t ops = ops_total(n), comms = n->job->tables->comm.count, meetings = meetings_before(n, (uint32_t)comms);
    struct spot best = { 0 };
    struct waits w = { 0 };
    for (uint32_t i = 0; i < n->job->ranks; i++)
        for (size_t j = 0; j < n->rank[i].count; j++) {
            const struct naive_op *a = &n->rank[i].op[j];
            if (!is_comm(a) || !arrived(n, &n->rank[i], a))
                continue;
            uint32_t c = queue_comm(n, a), group = n->job->comm[c].group[i];
            size_t node = is_coll(a) ? 2 * ops + meetings_before(n, c) + group : 2 * ops + meetings + node_of(n, i, (uint32_t)j, false) / 2;
            struct spot s = is_coll(a) ? (struct spot){ true, c, ordinal(n, &n->rank[i], a), group, 0, 0, 0 } : p2p_spot(n, i, a);
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

void naive_run(struct naive *n, const struct ls_job *job, const struct ls_run_options *options, struct ls_arena *arena)
{
    *n = (struct naive){ .job = job, .o = options, .comm = LS_NO_ID, .group = LS_NO_ID, .missing_rank = LS_NO_ID };
    assert(job->ranks <= NAIVE_RANKS);
    for (uint32_t r = 0; r < job->ranks; r++) {
        size_t total = 0;
        for (size_t s = 0; s < job->rank[r].count; s++)
            total += job->rank[r].segment[s]->count;
        n->rank[r].op = LS_NEW(arena, struct naive_op, total);
        for (uint32_t s = 0; s < job->rank[r].count; s++) {
            const struct ls_segment *seg = job->rank[r].segment[s];
            size_t first = n->rank[r].count;
            for (uint32_t i = 0; i < seg->count; i++, n->rank[r].count++) {
                n->rank[r].decides |= seg->op[i].kind == LS_OP_DECIDE;
                n->rank[r].op[n->rank[r].count] = (struct naive_op){ .op = &seg->op[i], .at = { r, s, i }, .index = (uint32_t)n->rank[r].count,
                    .segment_first = first, .segment_end = first + seg->count };
            }
        }
    }
    uint64_t random = options->seed ^ 0x5bd1e995;
    action_vec v = { 0 };
    for (;;) {
        find_actions(n, &v);
        if (v.count == 0)
            break;
        act(n, v.at[ls_random_below(&random, v.count)]);
    }
    ls_vec_release(&v);
    bool all = true, stopped = false;
    for (uint32_t r = 0; r < job->ranks; r++) {
        for (size_t i = 0; i < n->rank[r].count; i++) {
            all &= n->rank[r].op[i].done || path_of(&n->rank[r], i) == SKIPPED;
            n->completed += n->rank[r].op[i].done;
            n->issued += n->rank[r].op[i].issued;
        }
        if (n->rank[r].stopped && !stopped)
            n->missing_rank = r;
        stopped |= n->rank[r].stopped;
    }
    uint32_t first_stopped = n->missing_rank;
    n->missing_rank = LS_NO_ID;
    if (judge_mismatch(n) || (all && !stopped))
        return;
    n->verdict = stopped ? LS_ERROR : LS_HANG;
    n->missing_rank = first_stopped;
    judge_hang(n);
}

/* Lemma 1, read off the programs. A word is what a member issues on one queue. */
static size_t flatten(const struct ls_job *job, uint32_t rank, const struct ls_op **out)
{
    size_t n = 0;
    for (size_t s = 0; s < job->rank[rank].count; s++)
        for (size_t i = 0; i < job->rank[rank].segment[s]->count; i++)
            out[n++] = &job->rank[rank].segment[s]->op[i];
    return n;
}

enum { FLAT = 512 };

static size_t word(const struct ls_job *job, uint32_t rank, uint32_t comm, const struct ls_op **out)
{
    const struct ls_op *all[FLAT];
    size_t n = flatten(job, rank, all), k = 0;
    for (size_t i = 0; i < n; i++)
        if (ls_op_is_collective(all[i]) && all[i]->comm == comm)
            out[k++] = all[i];
    return k;
}

static size_t p2p_word(const struct ls_job *job, uint32_t rank, uint32_t comm, enum ls_op_kind kind, uint32_t peer, const struct ls_op **out)
{
    const struct ls_op *all[FLAT];
    size_t n = flatten(job, rank, all), k = 0;
    for (size_t i = 0; i < n; i++)
        if (all[i]->kind == kind && all[i]->comm == comm && (uint32_t)all[i]->peer == peer)
            out[k++] = all[i];
    return k;
}

static bool words_match(const struct naive *n, const struct ls_op **x, size_t nx, const struct ls_op **y, size_t ny)
{
    if (nx != ny)
        return false;
    for (size_t i = 0; i < nx; i++)
        if (compare(n, x[i], y[i]) != LS_DIFF_NONE)
            return false;
    return true;
}

bool naive_words_equal(const struct ls_job *job)
{
    struct naive n = { .job = job };
    const struct ls_op *x[FLAT], *y[FLAT];
    for (uint32_t c = 0; c < job->tables->comm.count; c++) {
        const struct ls_groups *g = &job->comm[c];
        for (uint32_t group = 0; group < g->groups; group++)
            for (uint32_t i = g->first[group]; i < g->first[group + 1]; i++) {
                size_t nx = word(job, g->rank[g->first[group]], c, x), ny = word(job, g->rank[i], c, y);
                if (!words_match(&n, x, nx, y, ny))
                    return false;
                for (uint32_t j = g->first[group]; j < g->first[group + 1]; j++) {
                    nx = p2p_word(job, g->rank[i], c, LS_OP_SEND, j - g->first[group], x);
                    ny = p2p_word(job, g->rank[j], c, LS_OP_RECV, i - g->first[group], y);
                    if (!words_match(&n, x, nx, y, ny))
                        return false;
                }
            }
    }
    return true;
}

/* Kahn's algorithm over ops, where the ops that pair are one node (found by union). Words must be equal. */
bool naive_graph_acyclic(const struct ls_job *job, enum ls_level level)
{
    const struct ls_op *op[NAIVE_RANKS][FLAT];
    size_t count[NAIVE_RANKS], base[NAIVE_RANKS + 1] = { 0 };
    for (uint32_t r = 0; r < job->ranks; r++) {
        count[r] = flatten(job, r, op[r]);
        base[r + 1] = base[r] + count[r];
    }
    size_t total = base[job->ranks];
    size_t *same = malloc((total + 1) * sizeof *same);
    unsigned char *edge = calloc(total * total + 1, 1);
    assert(same && edge);
    for (size_t i = 0; i < total; i++)
        same[i] = i;
    for (uint32_t r = 0; r < job->ranks; r++)
        for (size_t i = 0; i < count[r]; i++) {
            const struct ls_op *a = op[r][i];
            if (!ls_op_uses_comm(a))
                continue;
            const struct ls_groups *g = &job->comm[a->comm];
            size_t k = 0;
            for (size_t j = 0; j < i; j++)
                k += op[r][j]->comm == a->comm && (ls_op_is_p2p(a) ? op[r][j]->kind == a->kind && op[r][j]->peer == a->peer
                                                                  : ls_op_is_collective(op[r][j]));
            uint32_t o = g->rank[g->first[g->group[r]] + (ls_op_is_p2p(a) ? (uint32_t)a->peer : 0)];
            enum ls_op_kind kind = a->kind == LS_OP_SEND ? LS_OP_RECV : LS_OP_SEND;
            for (size_t j = 0; j < count[o]; j++) {
                const struct ls_op *b = op[o][j];
                bool like = ls_op_is_p2p(a) ? b->kind == kind && b->comm == a->comm && (uint32_t)b->peer == g->member[r]
                                            : ls_op_is_collective(b) && b->comm == a->comm;
                if (like && k-- == 0) {
                    size_t x = base[r] + i, y = base[o] + j;
                    while (same[x] != x)
                        x = same[x];
                    while (same[y] != y)
                        y = same[y];
                    same[x > y ? x : y] = x > y ? y : x;
                    break;
                }
            }
        }
    for (uint32_t r = 0; r < job->ranks; r++)
        for (size_t i = 0; i < count[r]; i++)
            for (size_t j = 0; j < i; j++) {
                const struct ls_op *a = op[r][i], *b = op[r][j];
                bool streams = !ls_op_is_host(a) && !ls_op_is_host(b) && a->stream == b->stream;
                bool queue = ls_op_is_collective(a) ? ls_op_is_collective(b) && a->comm == b->comm
                                                    : ls_op_is_p2p(a) && b->kind == a->kind && b->comm == a->comm && b->peer == a->peer;
                bool host = level == LS_L1 || b->blocking || b->kind == LS_OP_HOST_WAIT || b->kind == LS_OP_COMM_INIT;
                bool event = (a->kind == LS_OP_WAIT || a->kind == LS_OP_HOST_WAIT) && b->kind == LS_OP_RECORD && b->event == a->event;
                for (size_t k = j + 1; k < i; k++)
                    event &= !(op[r][k]->kind == LS_OP_RECORD && op[r][k]->event == a->event);
                if (!streams && !queue && !host && !event)
                    continue;
                size_t x = base[r] + j, y = base[r] + i;
                while (same[x] != x)
                    x = same[x];
                while (same[y] != y)
                    y = same[y];
                edge[x * total + y] = 1;
            }
    bool *gone = calloc(total + 1, sizeof *gone), moved = true;
    assert(gone);
    size_t left = 0;
    for (size_t i = 0; i < total; i++)
        gone[i] = same[i] != i;
    while (moved) {
        moved = false;
        for (size_t y = 0; y < total; y++) {
            bool can = !gone[y];
            for (size_t x = 0; x < total && can; x++)
                can = gone[x] || !edge[x * total + y];
            if (can)
                gone[y] = moved = true;
        }
    }
    for (size_t i = 0; i < total; i++)
        left += !gone[i];
    free(same);
    free(edge);
    free(gone);
    return left == 0;
}
