/* Ranks of one process: every op meets its partners in a place (a group's collectives, or one direction between two members).
 * When all heads have arrived, each member does its part of the data on its own stream; when the last part is done, so is the op. */
#include "engine/comm/comm.h"

#include "base/arena.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

struct bundle;
struct place;
struct ticket {
    struct ls_comm_call call;
    struct ls_op op;             /* a copy: programs may go before the queues do */
    enum ls_comm_progress progress;
    bool working, worked;        /* its part of the data */
    struct place *at;
    size_t side;                 /* which queue of the place: the member, or 0 send, 1 recv */
    struct bundle *bundle;
    struct ticket *next;
};
struct bundle { /* the calls of one issue on one stream: they start together */
    struct ls_host_task task;
    struct ls_hub *hub;
    struct ls_stream *first;     /* the stream */
    struct ls_actor *stream;     /* its actor, once the bundle heads it */
    struct ticket *ticket; size_t count;
    bool started;
    struct bundle *next, *before;
};
struct queue { struct ticket *head, **tail; };
struct place {
    uint32_t comm, group;
    bool p2p, bad, met;
    size_t sides, worked;
    uint32_t member[2];          /* p2p: sender, receiver */
    struct queue *queue;
};
struct comm { struct ls_comm c; struct ls_comm_group group; };

struct ls_hub {
    const struct ls_job *job;
    struct ls_sched *sched;
    struct ls_hub_options o;
    struct ls_arena arena;
    struct place **collective;   /* [comms][groups] */
    struct place ***pair;        /* [comms][groups] -> [members * members], made when first used */
    LS_VEC(struct ls_comm_clash) clash;
    size_t collectives;
    bool aborted;
    struct bundle *bundles;      /* in flight */
};

static struct place *place_make(struct ls_hub *h, uint32_t comm, uint32_t group, size_t sides)
{
    struct place *p = LS_NEW(&h->arena, struct place, 1);
    *p = (struct place){ .comm = comm, .group = group, .sides = sides, .queue = LS_NEW(&h->arena, struct queue, sides) };
    for (size_t i = 0; i < sides; i++)
        p->queue[i].tail = &p->queue[i].head;
    return p;
}

struct ls_hub *ls_hub_open(const struct ls_job *job, struct ls_sched *sched, const struct ls_hub_options *o)
{
    struct ls_hub *h = calloc(1, sizeof *h);
    if (!h)
        ls_out_of_memory(sizeof *h);
    *h = (struct ls_hub){ .job = job, .sched = sched, .o = *o };
    ls_arena_init(&h->arena, 0);
    size_t comms = job->tables->comm.count;
    h->collective = LS_NEW(&h->arena, struct place *, comms + 1);
    h->pair = LS_NEW(&h->arena, struct place **, comms + 1);
    for (uint32_t c = 0; c < comms; c++) {
        const struct ls_groups *g = &job->comm[c];
        h->collective[c] = LS_NEW(&h->arena, struct place, g->groups + 1);
        h->pair[c] = LS_NEW(&h->arena, struct place *, g->groups + 1);
        for (uint32_t i = 0; i < g->groups; i++)
            h->collective[c][i] = *place_make(h, c, i, g->first[i + 1] - g->first[i]);
        for (uint32_t i = 0; i < g->groups; i++)
            for (size_t k = 0; k < h->collective[c][i].sides; k++)
                h->collective[c][i].queue[k].tail = &h->collective[c][i].queue[k].head;
    }
    return h;
}

void ls_hub_close(struct ls_hub *h)
{
    if (!h)
        return;
    for (struct bundle *b = h->bundles, *next; b; b = next) {
        next = b->next;
        free(b);
    }
    ls_vec_release(&h->clash);
    ls_arena_release(&h->arena);
    free(h);
}

void ls_hub_abort(struct ls_hub *h)
{
    ls_sched_enter(h->sched);
    h->aborted = true;
    ls_sched_leave(h->sched);
}

size_t ls_hub_collectives(const struct ls_hub *h)
{
    return h->collectives;
}

static struct ls_ratio lowest(struct ls_ratio r)
{
    return r.num == 0 && r.den == 0 ? (struct ls_ratio){ 1, 1 } : r;
}

static bool same_counts(const struct ticket *a, const struct ticket *b, size_t members)
{
    const struct ls_comm_call *x = &a->call, *y = &b->call;
    if (a->op.symbol != b->op.symbol || !x->counts != !y->counts)
        return false;
    if (!x->counts)
        return a->op.count == b->op.count;
    if (a->op.kind == LS_OP_ALL_TO_ALL) /* each member has counts of its own */
        return true;
    return a->op.count == b->op.count && memcmp(x->counts, y->counts, members * sizeof *x->counts) == 0;
}

static enum ls_comm_diff compare(const struct place *p, const struct ticket *a, const struct ticket *b)
{
    struct ls_ratio f = lowest(a->op.factor), g = lowest(b->op.factor);
    if (!p->p2p && (a->op.kind != b->op.kind || (a->op.kind == LS_OP_COMM_INIT && a->op.comm != b->op.comm)))
        return LS_COMM_KIND;
    if (!same_counts(a, b, p->p2p ? 0 : p->sides))
        return LS_COMM_COUNT;
    if (a->op.dtype != b->op.dtype)
        return LS_COMM_DTYPE;
    if (a->op.reduce != b->op.reduce || (uint64_t)f.num * g.den != (uint64_t)g.num * f.den)
        return LS_COMM_REDUCE;
    if (!p->p2p && a->op.peer != b->op.peer)
        return LS_COMM_ROOT;
    return a->call.fingerprint == b->call.fingerprint ? LS_COMM_SAME : LS_COMM_PAYLOAD;
}

/* NCCL compares nothing: what takes the same number of transfer steps goes through. */
static bool unnoticed(enum ls_comm_diff d, const struct ticket *a, const struct ticket *b)
{
    switch (d) {
    case LS_COMM_SAME:
    case LS_COMM_REDUCE:
    case LS_COMM_PAYLOAD:
        return true;
    case LS_COMM_DTYPE:
        return a->op.count * ls_dtype_bytes((enum ls_dtype)a->op.dtype) == b->op.count * ls_dtype_bytes((enum ls_dtype)b->op.dtype);
    case LS_COMM_KIND:
    case LS_COMM_COUNT:
    case LS_COMM_ROOT:
        break;
    }
    return false;
}

static void tell(struct ls_hub *h, struct ticket *t, enum ls_comm_progress progress)
{
    const struct comm *c = (const struct comm *)t->call.comm;
    t->progress = progress;
    if (h->o.progress)
        h->o.progress(h->o.progress_context, c->group.rank[c->group.member], t->call.tag, progress);
}

static bool has_arrived(const struct ticket *t)
{
    return t && t->progress != LS_COMM_QUEUED;
}

static void clash(struct ls_hub *h, struct place *p, enum ls_comm_diff d, size_t a, size_t b)
{
    struct ls_comm_clash c = { p->comm, p->group, p->p2p, d, { p->queue[a].head->call.tag, p->queue[b].head->call.tag },
                               { (uint32_t)a, (uint32_t)b } };
    if (p->p2p)
        c.member[0] = p->member[0], c.member[1] = p->member[1];
    ls_push(&h->clash, c);
}

/* Somebody new stands at the head of a queue: is the op complete, or wrong? */
static void meet(struct ls_hub *h, struct place *p)
{
    size_t first = p->sides, arrived = 0;
    enum ls_comm_diff diff = LS_COMM_SAME;
    size_t other = 0;
    bool noticed = false;
    if (p->met || h->aborted)
        return;
    for (size_t i = 0; i < p->sides; i++) {
        struct ticket *t = p->queue[i].head;
        if (!has_arrived(t))
            continue;
        arrived++;
        if (first == p->sides) {
            first = i;
            continue;
        }
        enum ls_comm_diff d = compare(p, p->queue[first].head, t);
        if (d != LS_COMM_SAME && diff == LS_COMM_SAME)
            diff = d, other = i;
        noticed |= !unnoticed(d, p->queue[first].head, t);
    }
    if (diff != LS_COMM_SAME && !p->bad && (!h->o.nccl_like || arrived == p->sides)) {
        clash(h, p, diff, first, other);
        p->bad = true;
    }
    if (arrived < p->sides || (diff != LS_COMM_SAME && (!h->o.nccl_like || noticed)))
        return;
    p->bad = false; /* the next op of the place is judged anew */
    p->met = true;
    p->worked = 0;
    for (size_t i = 0; i < p->sides; i++) {
        tell(h, p->queue[i].head, LS_COMM_PAIRED);
        p->queue[i].head->working = true;
        ls_sched_wake(p->queue[i].head->bundle->stream);
    }
}

static void judge_again(struct ls_hub *h, struct place *p)
{
    if (!p->sides || !p->bad)
        return;
    p->bad = false;
    meet(h, p);
}

const struct ls_comm_clash *ls_hub_clashes(struct ls_hub *h, size_t *count)
{
    if (!h->o.nccl_like) { /* who has arrived since changes which ops are named */
        h->clash.count = 0;
        for (uint32_t c = 0; c < h->job->tables->comm.count; c++)
            for (uint32_t g = 0; g < h->job->comm[c].groups; g++) {
                size_t n = h->collective[c][g].sides;
                judge_again(h, &h->collective[c][g]);
                for (size_t i = 0; h->pair[c][g] && i < n * n; i++)
                    judge_again(h, &h->pair[c][g][i]);
            }
    }
    *count = h->clash.count;
    return h->clash.at;
}

/* Where member j's part lies in a tensor of all parts, in elements. */
static void part_of(const struct ticket *t, size_t j, uint64_t *first, uint64_t *count)
{
    *first = j * t->op.count;
    *count = t->op.count;
    if (!t->call.counts)
        return;
    *first = 0;
    for (size_t i = 0; i < j; i++)
        *first += t->call.counts[i];
    *count = t->call.counts[j];
}

static struct ls_tensor slice(struct ls_tensor t, uint64_t first, uint64_t count)
{
    t.offset_bytes += first * ls_dtype_bytes(t.dtype);
    t.elements = count;
    return t;
}

static void copy(struct ls_tensor to, struct ls_tensor from)
{
    struct ls_move m = { .to = to, .from = from };
    bool same = to.of == from.of && to.offset_bytes == from.offset_bytes;
    if (to.of && from.of && !same)
        ls_move_run(&m, 1);
}

static bool has_data(const struct ticket *t)
{
    return t->call.in.of && t->call.in.of->at;
}

static bool has_room(const struct ticket *t)
{
    return t->call.out.of && t->call.out.of->at;
}

enum { MEMBERS_MAX = 1024 };

/* Members share the elements: each reduces some of them, for all outputs. */
static void reduce_part(struct place *p, struct ticket *t, size_t me, bool to_all)
{
    struct ls_tensor in[MEMBERS_MAX], out[MEMBERS_MAX];
    uint64_t n = t->op.kind == LS_OP_DECIDE ? 1 : t->op.count, first = n * me / p->sides, count = n * (me + 1) / p->sides - first;
    size_t outs = 0;
    for (size_t i = 0; i < p->sides; i++) {
        const struct ls_comm_call *c = &p->queue[i].head->call;
        if (!has_data(p->queue[i].head))
            return;
        in[i] = slice(c->in, first, count);
        if ((to_all || (int32_t)i == t->op.peer) && has_room(p->queue[i].head))
            out[outs++] = slice(c->out, first, count);
    }
    if (count && outs)
        ls_reduce_run(in, p->sides, count, (enum ls_reduce)t->op.reduce, t->op.factor, out, outs);
}

static void scan_part(struct place *p, struct ticket *t, size_t me)
{
    struct ls_tensor in[MEMBERS_MAX];
    uint64_t n = t->op.count, first = n * me / p->sides, count = n * (me + 1) / p->sides - first;
    for (size_t i = 0; i < p->sides; i++)
        if (!has_data(p->queue[i].head))
            return;
        else
            in[i] = slice(p->queue[i].head->call.in, first, count);
    for (size_t i = p->sides; count && i-- > 0;) { /* from the last: an output in place is not read again */
        struct ls_tensor out = slice(p->queue[i].head->call.out, first, count);
        ls_reduce_run(in, i + 1, count, (enum ls_reduce)t->op.reduce, t->op.factor, &out, 1);
    }
}

static void scatter_reduce_part(struct place *p, struct ticket *t, size_t me)
{
    struct ls_tensor in[MEMBERS_MAX];
    uint64_t first, count;
    part_of(t, me, &first, &count);
    for (size_t i = 0; i < p->sides; i++)
        if (!has_data(p->queue[i].head))
            return;
        else
            in[i] = slice(p->queue[i].head->call.in, first, count);
    if (count && has_room(t))
        ls_reduce_run(in, p->sides, count, (enum ls_reduce)t->op.reduce, t->op.factor, &t->call.out, 1);
}

static void exchange_part(struct place *p, struct ticket *t, size_t me)
{
    uint64_t at = 0, first, count;
    for (size_t i = 0; i < p->sides; i++) {
        const struct ticket *from = p->queue[i].head;
        part_of(from, me, &first, &count);
        if (has_data(from) && has_room(t))
            copy(slice(t->call.out, at, count), slice(from->call.in, first, count));
        at += count;
    }
}

/* This member's share of the data. Nobody else writes what it reads or reads what it writes. */
static void work(struct place *p, struct ticket *t)
{
    size_t me = t->side;
    uint64_t first, count;
    size_t root = t->op.peer >= 0 && (size_t)t->op.peer < p->sides ? (size_t)t->op.peer : 0;
    assert(p->sides <= MEMBERS_MAX);
    switch ((enum ls_op_kind)t->op.kind) {
    case LS_OP_ALL_GATHER:
    case LS_OP_GATHER:
        if (!has_room(t) || (t->op.kind == LS_OP_GATHER && me != root))
            return;
        for (size_t i = 0; i < p->sides; i++) {
            part_of(t, i, &first, &count);
            if (has_data(p->queue[i].head))
                copy(slice(t->call.out, first, count), slice(p->queue[i].head->call.in, 0, count));
        }
        return;
    case LS_OP_REDUCE_SCATTER:
        scatter_reduce_part(p, t, me);
        return;
    case LS_OP_ALL_REDUCE:
    case LS_OP_DECIDE:
        reduce_part(p, t, me, true);
        return;
    case LS_OP_REDUCE:
        reduce_part(p, t, me, false);
        return;
    case LS_OP_SCAN:
        scan_part(p, t, me);
        return;
    case LS_OP_BROADCAST:
        if (has_room(t) && has_data(p->queue[root].head) && me != root)
            copy(slice(t->call.out, 0, t->op.count), slice(p->queue[root].head->call.in, 0, t->op.count));
        else if (me == root && has_room(t) && has_data(t))
            copy(slice(t->call.out, 0, t->op.count), slice(t->call.in, 0, t->op.count));
        return;
    case LS_OP_SCATTER:
        part_of(t, me, &first, &count);
        if (has_room(t) && has_data(p->queue[root].head))
            copy(slice(t->call.out, 0, count), slice(p->queue[root].head->call.in, first, count));
        return;
    case LS_OP_ALL_TO_ALL:
        exchange_part(p, t, me);
        return;
    case LS_OP_RECV:
        if (has_room(t) && has_data(p->queue[0].head))
            copy(slice(t->call.out, 0, t->op.count), slice(p->queue[0].head->call.in, 0, t->op.count));
        return;
    case LS_OP_SEND:
    case LS_OP_BARRIER:
    case LS_OP_COMM_INIT:
        return;
    case LS_OP_COMPUTE: case LS_OP_COPY_IN: case LS_OP_COPY_OUT: case LS_OP_RECORD: case LS_OP_WAIT: case LS_OP_HOST_WAIT:
    case LS_OP_ALLOC: case LS_OP_FREE: case LS_OP_MARK: case LS_OP_STOP: case LS_OP_COUNT:
        break;
    }
    assert(false && "not communication");
}

/* The last part is done: the op leaves every queue, and what stands behind it may have arrived already. */
static void finish(struct ls_hub *h, struct place *p)
{
    p->met = false;
    h->collectives += !p->p2p;
    for (size_t i = 0; i < p->sides; i++) {
        struct ticket *t = p->queue[i].head;
        p->queue[i].head = t->next;
        if (!t->next)
            p->queue[i].tail = &p->queue[i].head;
        t->progress = LS_COMM_DONE; /* told when its stream leaves it */
        ls_sched_wake(t->bundle->stream);
    }
    meet(h, p);
}

static bool bundle_ready(struct ls_host_task *task, struct ls_actor *stream)
{
    struct bundle *b = (struct bundle *)task;
    struct ls_hub *h = b->hub;
    b->stream = stream;
    if (!b->started) {
        b->started = true;
        for (size_t i = 0; i < b->count; i++)
            tell(h, &b->ticket[i], LS_COMM_STARTED);
        for (size_t i = 0; i < b->count; i++)
            if (b->ticket[i].at->queue[b->ticket[i].side].head == &b->ticket[i])
                meet(h, b->ticket[i].at);
    }
    bool done = true;
    for (size_t i = 0; i < b->count; i++) {
        struct ticket *t = &b->ticket[i];
        if (t->working) {
            t->working = false;
            ls_sched_leave(h->sched);
            work(t->at, t);
            ls_sched_enter(h->sched);
            if (++t->at->worked == t->at->sides)
                finish(h, t->at);
        }
        done = done && t->progress == LS_COMM_DONE;
    }
    for (size_t i = 0; done && i < b->count; i++) /* a bundle's later op may have met while its first one worked */
        done = b->ticket[i].progress == LS_COMM_DONE;
    return done;
}

static void bundle_finished(struct ls_host_task *task)
{
    struct bundle *b = (struct bundle *)task;
    for (size_t i = 0; i < b->count; i++) {
        tell(b->hub, &b->ticket[i], LS_COMM_DONE);
        ls_host_drop(b->ticket[i].call.in.of);
        ls_host_drop(b->ticket[i].call.out.of);
    }
    if (b->before)
        b->before->next = b->next;
    else
        b->hub->bundles = b->next;
    if (b->next)
        b->next->before = b->before;
    free(b);
}

static struct place *place_of(struct ls_hub *h, const struct comm *c, const struct ls_op *op, size_t *side)
{
    const struct ls_comm_group *g = &c->group;
    if (!ls_op_is_p2p(op)) {
        *side = g->member;
        return &h->collective[g->comm][g->group];
    }
    bool send = op->kind == LS_OP_SEND;
    size_t from = send ? g->member : (size_t)op->peer, to = send ? (size_t)op->peer : g->member;
    struct place ***table = &h->pair[g->comm];
    *side = send ? 0 : 1;
    if (!(*table)[g->group])
        (*table)[g->group] = LS_NEW(&h->arena, struct place, g->members * g->members);
    struct place *p = &(*table)[g->group][from * g->members + to];
    if (!p->sides) {
        *p = (struct place){ .comm = g->comm, .group = g->group, .p2p = true, .sides = 2, .member = { (uint32_t)from, (uint32_t)to },
                             .queue = LS_NEW(&h->arena, struct queue, 2) };
        p->queue[0].tail = &p->queue[0].head;
        p->queue[1].tail = &p->queue[1].head;
    }
    return p;
}

static struct bundle *make_bundle(struct ls_hub *h, size_t count)
{
    size_t tickets = (sizeof(struct bundle) + 15) / 16 * 16;
    struct bundle *b = calloc(1, tickets + count * sizeof(struct ticket));
    if (!b)
        ls_out_of_memory(count * sizeof(struct ticket));
    *b = (struct bundle){ .task = { bundle_ready, bundle_finished }, .hub = h, .next = h->bundles };
    b->ticket = (struct ticket *)(void *)((char *)b + tickets);
    if (b->next)
        b->next->before = b;
    h->bundles = b;
    return b;
}

static void fill_ticket(struct ls_hub *h, struct bundle *b, const struct ls_comm_call *call)
{
    struct ticket *t = &b->ticket[b->count++];
    *t = (struct ticket){ .call = *call, .op = *call->op, .bundle = b };
    t->call.op = NULL;
    t->at = place_of(h, (const struct comm *)call->comm, &t->op, &t->side);
    ls_host_keep(t->call.in.of);
    ls_host_keep(t->call.out.of);
    struct queue *q = &t->at->queue[t->side];
    *q->tail = t;
    q->tail = &t->next;
}

/* One bundle for each stream: ops of a group that follow each other directly there. Queues are filled in the order of calls. */
static enum ls_code threads_issue(const struct ls_comm_call *call, size_t count, struct ls_error *err)
{
    (void)err;
    struct ls_hub *h = ((const struct comm *)call->comm)->group.hub;
    struct bundle *newest = h->bundles;
    for (size_t i = 0; i < count; i++) {
        struct bundle *b = h->bundles;
        while (b != newest && b->first != call[i].stream)
            b = b->next;
        if (b == newest) {
            size_t n = 0;
            for (size_t k = i; k < count; k++)
                n += call[k].stream == call[i].stream;
            b = make_bundle(h, n);
            b->first = call[i].stream;
            ls_host_append(call[i].stream, &b->task);
        }
        fill_ticket(h, b, &call[i]);
    }
    return LS_OK;
}

static enum ls_code threads_open(struct ls_comm **out, const struct ls_comm_group *group, struct ls_error *err)
{
    if (group->members > MEMBERS_MAX)
        return ls_fail(err, LS_EBACKEND, LS_NOWHERE, "'threads' has at most %d ranks in a group", MEMBERS_MAX);
    struct comm *c = calloc(1, sizeof *c);
    if (!c)
        ls_out_of_memory(sizeof *c);
    c->c.ops = &ls_comm_threads;
    c->group = *group;
    *out = &c->c;
    return LS_OK;
}

static enum ls_code threads_poll(struct ls_comm *c, struct ls_error *err)
{
    if (((struct comm *)c)->group.hub->aborted)
        return ls_fail(err, LS_EBACKEND, LS_NOWHERE, "the communicator was aborted");
    return LS_OK;
}

static void threads_abort(struct ls_comm *c)
{
    ls_hub_abort(((struct comm *)c)->group.hub);
}

static void threads_close(struct ls_comm *c)
{
    free(c);
}

const struct ls_comm_ops ls_comm_threads = {
    .name = "threads", .open = threads_open, .issue = threads_issue, .poll = threads_poll, .abort = threads_abort,
    .close = threads_close,
};
