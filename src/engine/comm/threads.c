/* Every op meets its partners in a place (a group's collectives, or one direction between two members). When all heads have
 * arrived, each member does its part of the data on its own stream; when the last part is done, so is the op.
 *
 * Members in other processes stand in their queues as tickets without a bundle, made when word comes that they have arrived. Each
 * process with members in a place comes to its own conclusion that an op has met: from the same heads, hence to the same. */
#include "engine/comm/internal.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static void place_init(struct ls_hub *h, struct place *p, uint32_t comm, uint32_t group, size_t sides)
{
    *p = (struct place){ .comm = comm, .group = group, .sides = sides, .local = sides, .owner = true, .stage = STAGE_WORK,
                         .queue = LS_NEW(&h->arena, struct queue, sides) };
    for (size_t i = 0; i < sides; i++)
        p->queue[i].tail = &p->queue[i].head;
}

struct ls_hub *ls_hub_open(const struct ls_job *job, struct ls_sched *sched, const struct ls_hub_options *o)
{
    struct ls_hub *h = calloc(1, sizeof *h);
    if (!h)
        ls_out_of_memory(sizeof *h);
    *h = (struct ls_hub){ .job = job, .sched = sched, .o = *o };
    ls_arena_init(&h->arena, 0);
    if (o->world)
        remote_open(h);
    if (o->resident)
        h->slots = LS_NEW(&h->arena, struct slots, job->ranks + 1);
    size_t comms = job->tables->comm.count;
    h->collective = LS_NEW(&h->arena, struct place *, comms + 1);
    h->pair = LS_NEW(&h->arena, struct place **, comms + 1);
    for (uint32_t c = 0; c < comms; c++) {
        const struct ls_groups *g = &job->comm[c];
        h->collective[c] = LS_NEW(&h->arena, struct place, g->groups + 1);
        h->pair[c] = LS_NEW(&h->arena, struct place *, g->groups + 1);
        for (uint32_t i = 0; i < g->groups; i++) {
            place_init(h, &h->collective[c][i], c, i, g->first[i + 1] - g->first[i]);
            if (h->remote)
                remote_lay(h, &h->collective[c][i]);
        }
    }
    return h;
}

void ls_hub_close(struct ls_hub *h)
{
    if (!h)
        return;
    if (h->o.resident)
        slots_close(h);
    if (h->remote)
        remote_close(h);
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

void hub_tell(struct ls_hub *h, struct ticket *t, enum ls_comm_progress progress)
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

static void clash(struct ls_hub *h, struct place *p, enum ls_comm_diff d, size_t a, size_t b, bool passed)
{
    if (!p->owner)
        return;
    struct ls_comm_clash c = { p->comm, p->group, p->p2p, passed, d, { p->queue[a].head->call.tag, p->queue[b].head->call.tag },
                               { (uint32_t)a, (uint32_t)b } };
    if (p->p2p)
        c.member[0] = p->member[0], c.member[1] = p->member[1];
    ls_push(&h->clash, c);
}

/* Word of what is behind may come from another process before word of what is in front. */
static struct ticket *head_of(const struct place *p, size_t side)
{
    struct ticket *t = p->queue[side].head;
    return t && (t->bundle || t->number == p->done) ? t : NULL;
}

void hub_start(struct place *p)
{
    p->worked = 0;
    for (size_t i = 0; i < p->sides; i++) {
        struct ticket *t = p->queue[i].head;
        if (!t->bundle)
            continue;
        t->working = true;
        ls_sched_wake(t->bundle->stream);
    }
}

/* Is the op complete, or wrong? */
void hub_meet(struct ls_hub *h, struct place *p)
{
    size_t first = p->sides, arrived = 0;
    enum ls_comm_diff diff = LS_COMM_SAME;
    size_t other = 0;
    bool noticed = false;
    if (p->buffered)
        slots_post(h, p);
    if (p->met || h->aborted)
        return;
    for (size_t i = 0; i < p->sides; i++) {
        struct ticket *t = head_of(p, i);
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
        clash(h, p, diff, first, other, h->o.nccl_like && !noticed);
        p->bad = true;
    }
    if (arrived < p->sides || (diff != LS_COMM_SAME && (!h->o.nccl_like || noticed)))
        return;
    p->bad = false; /* the next op of the place is judged anew */
    p->met = true;
    for (size_t i = 0; i < p->sides; i++)
        if (p->queue[i].head->bundle)
            hub_tell(h, p->queue[i].head, LS_COMM_PAIRED);
    p->stage = p->process ? STAGE_SEND : STAGE_WORK;
    hub_start(p);
}

static void judge_again(struct ls_hub *h, struct place *p)
{
    if (!p->sides || !p->bad)
        return;
    p->bad = false;
    hub_meet(h, p);
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

/* The last part is done: the op leaves every queue, and what stands behind it may have arrived already. */
void hub_finish(struct ls_hub *h, struct place *p)
{
    p->met = false;
    p->done++;
    h->collectives += !p->p2p && p->owner;
    for (size_t i = 0; i < p->sides; i++) {
        struct ticket *t = p->queue[i].head;
        p->queue[i].head = t->next;
        if (!t->next)
            p->queue[i].tail = &p->queue[i].head;
        if (!t->bundle) {
            remote_free(t);
            continue;
        }
        t->progress = LS_COMM_DONE; /* told when its stream leaves it */
        slots_recheck(h, t->bundle);
        ls_sched_wake(t->bundle->stream);
    }
    hub_meet(h, p);
}

static void do_part(struct ls_hub *h, struct place *p, struct ticket *t)
{
    switch (p->stage) {
    case STAGE_SEND:
        remote_send_inputs(h, p, t);
        return;
    case STAGE_WORK:
        work_run(p, t);
        if (p->process)
            remote_send_result(h, p, t);
        return;
    case STAGE_TAKE:
        work_take(p, t);
        return;
    case STAGE_INPUTS:
    case STAGE_RESULTS:
        break;
    }
    assert(false && "no part in this stage");
}

static bool bundle_ready(struct ls_host_task *task, struct ls_actor *stream)
{
    struct bundle *b = (struct bundle *)task;
    struct ls_hub *h = b->hub;
    b->stream = stream;
    if (!b->started) {
        if (!slots_take(h, b, stream))
            return false;
        b->started = true;
        for (size_t i = 0; i < b->count; i++)
            hub_tell(h, &b->ticket[i], LS_COMM_STARTED);
        for (size_t i = 0; i < b->count; i++)
            if (b->ticket[i].at->process)
                remote_arrived(h, &b->ticket[i]);
        for (size_t i = 0; i < b->count; i++)
            if (b->ticket[i].at->buffered || b->ticket[i].at->queue[b->ticket[i].side].head == &b->ticket[i])
                hub_meet(h, b->ticket[i].at);
        slots_recheck(h, b);
    }
    bool done = true;
    for (size_t i = 0; i < b->count; i++) {
        struct ticket *t = &b->ticket[i];
        if (t->working) {
            t->working = false;
            ls_sched_leave(h->sched);
            do_part(h, t->at, t);
            ls_sched_enter(h->sched);
            if (++t->at->worked == t->at->local)
                t->at->process ? remote_advance(h, t->at) : hub_finish(h, t->at);
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
    slots_give(b->hub, b);
    for (size_t i = 0; i < b->count; i++) {
        hub_tell(b->hub, &b->ticket[i], LS_COMM_DONE);
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

struct place *hub_place(struct ls_hub *h, uint32_t comm, uint32_t group)
{
    return &h->collective[comm][group];
}

struct place *hub_pair(struct ls_hub *h, uint32_t comm, uint32_t group, uint32_t from, uint32_t to)
{
    const struct ls_groups *g = &h->job->comm[comm];
    size_t members = g->first[group + 1] - g->first[group];
    struct place **table = &h->pair[comm][group];
    if (!*table)
        *table = LS_NEW(&h->arena, struct place, members * members);
    struct place *p = &(*table)[from * members + to];
    if (p->sides)
        return p;
    place_init(h, p, comm, group, 2);
    p->p2p = true;
    p->buffered = h->o.resident && !h->o.resident->unbuffered_send;
    p->member[0] = from, p->member[1] = to;
    if (h->remote)
        remote_lay(h, p);
    if (p->buffered)
        p->local = 1; /* the receiver alone has work */
    return p;
}

static struct place *place_of(struct ls_hub *h, const struct comm *c, const struct ls_op *op, size_t *side)
{
    const struct ls_comm_group *g = &c->group;
    if (!ls_op_is_p2p(op)) {
        *side = g->member;
        return hub_place(h, g->comm, g->group);
    }
    bool send = op->kind == LS_OP_SEND;
    *side = send ? 0 : 1;
    return hub_pair(h, g->comm, g->group, send ? g->member : (uint32_t)op->peer, send ? (uint32_t)op->peer : g->member);
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
    ls_host_keep(call->stream, t->call.in.of);
    ls_host_keep(call->stream, t->call.out.of);
    struct queue *q = &t->at->queue[t->side];
    t->number = q->issued++;
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
    c->c.ops = group->hub->remote ? &ls_comm_mpi : &ls_comm_threads;
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
/* The hub knows which members are elsewhere. */
const struct ls_comm_ops ls_comm_mpi = {
    .name = "mpi", .open = threads_open, .issue = threads_issue, .poll = threads_poll, .abort = threads_abort, .close = threads_close,
};
