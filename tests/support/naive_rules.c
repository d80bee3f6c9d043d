#include "naive_rules.h"

uint32_t naive_queue_comm(const struct naive *n, const struct naive_op *a)
{
    uint32_t parent = a->op->kind == LS_OP_COMM_INIT ? n->job->tables->comm.at[a->op->comm].parent : LS_NO_ID;
    return parent != LS_NO_ID ? parent : a->op->comm;
}

const struct naive_op *naive_inside(const struct naive_rank *r, size_t i, int *side)
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

enum naive_path naive_path_of(const struct naive_rank *r, size_t i)
{
    int side = 0;
    const struct naive_op *d = naive_inside(r, i, &side);
    if (!d)
        return NAIVE_TAKEN;
    if (d->agreed)
        return d->agreed == side ? NAIVE_TAKEN : NAIVE_SKIPPED;
    return naive_path_of(r, d->index) == NAIVE_SKIPPED ? NAIVE_SKIPPED : NAIVE_OPEN;
}

static bool blocks(const struct naive *n, const struct naive_op *a)
{
    return naive_is_stream(a) && (n->o->level == LS_L1 || a->op->blocking || a->op->kind == LS_OP_DECIDE || a->op->kind == LS_OP_COMM_INIT);
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
    if (naive_inside(r, i, &side_i) != naive_inside(r, j, &side_j) || side_i != side_j)
        return false;
    for (size_t k = i + 1; k < j; k++) {
        const struct ls_op *o = r->op[k].op;
        if (o->thread != a->op->thread || o->kind == LS_OP_ALLOC || o->kind == LS_OP_FREE || o->kind == LS_OP_MARK)
            continue;
        int side = 0;
        if (o->fused != a->op->fused || naive_inside(r, k, &side) != naive_inside(r, i, &side_i) || side != side_i)
            return false;
    }
    return true;
}

bool naive_same_bundle(const struct naive_rank *r, size_t i, size_t j)
{
    if (i == j)
        return true;
    if (r->op[i].op->stream != r->op[j].op->stream || !same_fused(r, i, j))
        return false;
    size_t low = i < j ? i : j, high = i < j ? j : i;
    for (size_t k = low + 1; k < high; k++)
        if (naive_is_stream(&r->op[k]) && r->op[k].op->stream == r->op[i].op->stream && !same_fused(r, i, k))
            return false;
    return true;
}

const struct naive_op *naive_record_of(const struct naive_rank *r, size_t i)
{
    for (size_t j = i; j-- > 0;)
        if (r->op[j].op->kind == LS_OP_RECORD && r->op[j].op->event == r->op[i].op->event && naive_path_of(r, j) != NAIVE_SKIPPED)
            return &r->op[j];
    return NULL;
}

bool naive_event_done(const struct naive_rank *r, size_t i)
{
    const struct naive_op *rec = naive_record_of(r, i);
    return !rec || rec->done;
}

const struct naive_op *naive_holds(const struct naive *n, const struct naive_rank *r, size_t to)
{
    for (size_t j = 0; j <= to; j++) {
        const struct naive_op *a = &r->op[j];
        enum naive_path p = naive_path_of(r, j);
        if (p == NAIVE_SKIPPED)
            continue;
        int side;
        if (a->op->kind == LS_OP_STOP && j < to)
            return p == NAIVE_OPEN ? naive_inside(r, j, &side) : a;
        if (a->op->thread != r->op[to].op->thread)
            continue;
        if (p == NAIVE_OPEN)
            return naive_inside(r, j, &side);
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
        count += r->op[j].op->thread == thread && naive_is_stream(&r->op[j]) && r->op[j].issued && !r->op[j].done;
    return count;
}

bool naive_is_bounded(const struct naive *n, const struct naive_rank *r, size_t i)
{
    if (!n->o->run_ahead || !naive_is_stream(&r->op[i]))
        return false;
    for (size_t j = 0; j < i; j++)
        if (same_fused(r, i, j))
            return false;
    return unfinished(r, r->op[i].op->thread) >= n->o->run_ahead;
}

bool naive_may_issue(const struct naive *n, const struct naive_rank *r, size_t i)
{
    if (r->op[i].issued || naive_path_of(r, i) != NAIVE_TAKEN)
        return false;
    for (size_t j = 0; j < i; j++)
        if (r->op[j].op->thread == r->op[i].op->thread && naive_path_of(r, j) == NAIVE_TAKEN && !r->op[j].issued)
            return false;
    return !naive_holds(n, r, i) && !naive_is_bounded(n, r, i);
}

const struct naive_op *naive_stream_head(const struct naive_rank *r, uint8_t stream)
{
    for (size_t j = 0; j < r->count; j++)
        if (naive_is_stream(&r->op[j]) && r->op[j].op->stream == stream && !r->op[j].done && naive_path_of(r, j) != NAIVE_SKIPPED)
            return &r->op[j];
    return NULL;
}

static bool same_queue(const struct naive *n, const struct naive_op *a, const struct naive_op *b)
{
    if (naive_is_coll(a) && naive_is_coll(b))
        return naive_queue_comm(n, a) == naive_queue_comm(n, b);
    return ls_op_is_p2p(a->op) && a->op->kind == b->op->kind && a->op->comm == b->op->comm && a->op->peer == b->op->peer;
}

const struct naive_op *naive_queue_head(const struct naive *n, const struct naive_rank *r, const struct naive_op *like)
{
    for (size_t j = 0; j < r->count; j++)
        if (naive_is_comm(&r->op[j]) && same_queue(n, &r->op[j], like) && !r->op[j].paired && naive_path_of(r, j) != NAIVE_SKIPPED)
            return &r->op[j];
    return NULL;
}

bool naive_is_ready(const struct naive *n, const struct naive_rank *r, size_t i)
{
    const struct naive_op *a = &r->op[i];
    (void)n;
    if (!naive_is_stream(a) || !a->issued || a->done || naive_path_of(r, i) != NAIVE_TAKEN)
        return false;
    const struct naive_op *head = naive_stream_head(r, a->op->stream);
    return naive_same_bundle(r, head->index, i);
}

uint32_t naive_slots_of(const struct naive *n, const struct naive_rank *r, size_t i)
{
    uint32_t sum = 0;
    for (size_t c = 0; c < n->job->tables->comm.count; c++) {
        uint32_t most = 0;
        for (size_t j = 0; j < r->count; j++)
            if (naive_is_comm(&r->op[j]) && naive_queue_comm(n, &r->op[j]) == c && naive_same_bundle(r, i, j)) {
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
        if (naive_same_bundle(r, i, j))
            return false;
    return true;
}

static uint32_t slots_used(const struct naive *n, const struct naive_rank *r)
{
    uint32_t used = 0;
    for (size_t j = 0; j < r->count; j++)
        if (naive_is_comm(&r->op[j]) && r->op[j].started && !r->op[j].done && is_first_of_bundle(r, j))
            used += naive_slots_of(n, r, j);
    return used;
}

bool naive_bounded_slots(const struct naive *n)
{
    return n->o->level == LS_L3 && (n->o->kernels || n->o->start == LS_START_ISSUE_ORDER);
}

const struct naive_op *naive_next_kernel(const struct naive *n, const struct naive_rank *r)
{
    for (size_t j = 0; j < r->count; j++)
        if (naive_is_comm(&r->op[j]) && !r->op[j].started && naive_path_of(r, j) != NAIVE_SKIPPED && is_first_of_bundle(r, j) && naive_slots_of(n, r, j))
            return &r->op[j];
    return NULL;
}

bool naive_may_start(const struct naive *n, const struct naive_rank *r, size_t i)
{
    const struct naive_op *a = &r->op[i];
    if (!naive_is_comm(a) || a->started || !is_first_of_bundle(r, i) || !naive_is_ready(n, r, i))
        return false;
    if (!naive_bounded_slots(n) || naive_slots_of(n, r, i) == 0)
        return true;
    for (size_t j = i; j < r->count; j++)
        if (naive_same_bundle(r, i, j)) {
            const struct naive_op *head = naive_queue_head(n, r, &r->op[j]);
            if (!naive_same_bundle(r, i, head->index))
                return false;
        }
    if (n->o->kernels && slots_used(n, r) + naive_slots_of(n, r, i) > n->o->kernels)
        return false;
    return n->o->start == LS_START_ANY || naive_next_kernel(n, r) == a;
}

bool naive_arrived(const struct naive *n, const struct naive_rank *r, const struct naive_op *a)
{
    return a && a->started && !a->paired && naive_queue_head(n, r, a) == a;
}

enum ls_diff naive_compare(const struct naive *n, const struct ls_op *a, const struct ls_op *b)
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

struct naive_op *naive_next_of(struct naive *n, uint32_t rank, uint32_t comm)
{
    struct naive_rank *r = &n->rank[rank];
    for (size_t j = 0; j < r->count; j++)
        if (naive_is_coll(&r->op[j]) && naive_queue_comm(n, &r->op[j]) == comm && !r->op[j].paired && naive_path_of(r, j) != NAIVE_SKIPPED)
            return &r->op[j];
    return NULL;
}

struct naive_op *naive_next_p2p(struct naive *n, uint32_t rank, enum ls_op_kind kind, uint32_t comm, uint32_t peer)
{
    struct naive_rank *r = &n->rank[rank];
    for (size_t j = 0; j < r->count; j++)
        if (r->op[j].op->kind == kind && r->op[j].op->comm == comm && (uint32_t)r->op[j].op->peer == peer && !r->op[j].paired &&
            naive_path_of(r, j) != NAIVE_SKIPPED)
            return &r->op[j];
    return NULL;
}

size_t naive_ordinal(const struct naive *n, const struct naive_rank *r, const struct naive_op *a)
{
    size_t k = 0;
    for (size_t j = 0; j < a->index; j++)
        k += naive_is_comm(&r->op[j]) && same_queue(n, a, &r->op[j]) && naive_path_of(r, j) == NAIVE_TAKEN;
    return k;
}

bool naive_buffered(const struct naive *n) { return n->o->level == LS_L3 && !n->o->unbuffered_send; }

struct naive_op *naive_send_for(struct naive *n, uint32_t receiver, const struct naive_op *recv)
{
    const struct ls_groups *g = &n->job->comm[recv->op->comm];
    uint32_t from = g->rank[g->first[g->group[receiver]] + (uint32_t)recv->op->peer];
    struct naive_rank *s = &n->rank[from];
    size_t k = naive_ordinal(n, &n->rank[receiver], recv);
    for (size_t j = 0; j < s->count; j++)
        if (s->op[j].op->kind == LS_OP_SEND && s->op[j].op->comm == recv->op->comm &&
            (uint32_t)s->op[j].op->peer == g->member[receiver] && naive_path_of(s, j) == NAIVE_TAKEN && naive_ordinal(n, s, &s->op[j]) == k)
            return &s->op[j];
    return NULL;
}

struct naive_op *naive_partner_send(struct naive *n, uint32_t rank, const struct naive_op *recv)
{
    struct naive_op *s = naive_send_for(n, rank, recv);
    const struct ls_groups *g = &n->job->comm[recv->op->comm];
    uint32_t from = g->rank[g->first[g->group[rank]] + (uint32_t)recv->op->peer];
    if (!s)
        return NULL;
    return naive_buffered(n) ? (s->paired ? s : NULL) : (naive_arrived(n, &n->rank[from], s) ? s : NULL);
}
