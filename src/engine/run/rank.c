/* Host threads of a rank: the ops of its program, in order, to devices and communicators.
 *
 * Streams and queues get their ops in list order, also where several threads feed them: an op behind one that another thread
 * has not issued yet is parked, and appended when that has happened. */
#include "engine/run/internal.h"

#include "base/hash.h"

#include <assert.h>
#include <string.h>

static void lay_guards(struct ls_rank *r, size_t base, const struct ls_segment *s)
{
    /* Sides are nested, so the innermost decide that reaches an op is the last one before it that does. */
    for (size_t i = 0; i < s->count; i++) {
        const struct ls_op *op = &s->op[i];
        if (op->kind != LS_OP_DECIDE)
            continue;
        for (size_t k = 0; k < op->then_count + op->else_count && i + 1 + k < s->count; k++) {
            r->op[base + i + 1 + k].guard = (uint32_t)(base + i);
            r->op[base + i + 1 + k].side = k >= op->then_count;
        }
    }
}

bool rank_layout(struct engine *e, struct ls_rank *r, struct ls_error *err)
{
    const struct ls_rank_program *p = &e->job->rank[r->number];
    for (size_t s = 0; s < p->count; s++)
        r->ops += p->segment[s]->count;
    if (r->ops >= LS_NO_ID) {
        ls_fail(err, LS_EINPUT, LS_NOWHERE, "rank %u has more than %u ops", r->number, LS_NO_ID - 1);
        return false;
    }
    r->op = LS_NEW(&e->arena, struct rank_op, r->ops + 1);
    r->status = LS_NEW(&e->arena, uint8_t, r->ops + 1);
    r->decided = LS_NEW(&e->arena, uint8_t, r->ops + 1);
    size_t n = 0;
    r->threads = 1;
    for (size_t s = 0; s < p->count; s++) {
        size_t base = n;
        for (size_t i = 0; i < p->segment[s]->count; i++) {
            const struct ls_op *op = &p->segment[s]->op[i];
            r->op[n++] = (struct rank_op){ op, (uint32_t)s, (uint32_t)i, LS_NO_ID, false, false };
            r->threads = op->thread >= r->threads ? op->thread + 1u : r->threads;
            bool pool = op->kind == LS_OP_ALLOC || op->kind == LS_OP_FREE;
            if ((pool || !ls_op_is_host(op)) && op->stream >= e->streams)
                e->streams = op->stream + 1u;
            if (ls_op_uses_comm(op) && e->job->comm[queue_comm(e, op)].group[r->number] == LS_NO_ID) {
                ls_fail(err, LS_EINPUT, LS_NOWHERE, "rank %u uses '%s', of which it is no member", r->number,
                        ls_tables_name(e->job->tables, e->job->tables->comm.at[queue_comm(e, op)].name));
                return false;
            }
        }
        lay_guards(r, base, p->segment[s]);
    }
    r->thread = LS_NEW(&e->arena, struct host_thread, r->threads);
    for (size_t t = 0; t < r->threads; t++) {
        r->thread[t].rank = r;
        r->thread[t].number = (unsigned)t;
    }
    if (r->threads > 1)
        r->record = LS_NEW(&e->arena, struct ls_event *, r->ops + 1);
    return true;
}

uint32_t queue_comm(const struct engine *e, const struct ls_op *op)
{
    uint32_t parent = e->job->tables->comm.at[op->comm].parent;
    return op->kind == LS_OP_COMM_INIT && parent != LS_NO_ID ? parent : op->comm;
}

enum path path_of(const struct ls_rank *r, size_t op)
{
    enum path path = PATH_TAKEN;
    for (uint32_t g = r->op[op].guard, at = (uint32_t)op; g != LS_NO_ID; at = g, g = r->op[g].guard) {
        if (!r->decided[g])
            path = PATH_OPEN;
        else if ((r->decided[g] == 2) != r->op[at].side)
            return PATH_SKIPPED;
    }
    return path;
}

void op_done(void *context, int64_t tag)
{
    struct ls_rank *r = context;
    r->status[tag] = OP_DONE;
    ls_sched_wake_all(&r->progress);
}

static struct ls_stream *stream_of(struct ls_rank *r, const struct ls_op *op)
{
    return r->device->ops->stream(r->device, op->stream);
}

static enum ls_turn fail(struct ls_rank *r, const struct ls_error *err)
{
    if (r->e->rc == LS_OK) {
        r->e->rc = err->code;
        r->e->err = *err;
    }
    ls_sched_stop(r->e->sched);
    return LS_TURN_ENDED;
}

/* Does an op of another thread, earlier in the list and still to be appended, stand before it? */
static bool behind_others(const struct ls_rank *r, size_t op)
{
    const struct ls_op *mine = r->op[op].op;
    if (r->threads == 1)
        return false;
    for (size_t i = 0; i < op; i++) {
        const struct ls_op *o = r->op[i].op;
        if (r->op[i].queued || r->status[i] == OP_SKIPPED || path_of(r, i) == PATH_SKIPPED)
            continue;
        if (!ls_op_is_host(o) && !ls_op_is_host(mine) && o->stream == mine->stream)
            return true;
        if (ls_op_uses_comm(o) && ls_op_uses_comm(mine) && queue_comm(r->e, o) == queue_comm(r->e, mine))
            return true;
        if (o->kind == LS_OP_RECORD && (mine->kind == LS_OP_WAIT || mine->kind == LS_OP_HOST_WAIT) && o->event == mine->event)
            return true;
    }
    return false;
}

/* The instance that a wait at `op` means. */
static struct ls_event *latest_event(const struct ls_rank *r, size_t op)
{
    uint32_t event = r->op[op].op->event;
    if (r->threads == 1)
        return r->event[event];
    for (size_t i = op; i-- > 0;)
        if (r->op[i].op->kind == LS_OP_RECORD && r->op[i].op->event == event && path_of(r, i) == PATH_TAKEN)
            return r->record[i];
    return NULL;
}

static uint64_t fingerprint(const struct ls_tables *t, const struct ls_op *op)
{
    if (op->payload == LS_NO_ID)
        return 0;
    const struct ls_payload *p = &t->payload.at[op->payload];
    return ls_hash(p->items, p->count * sizeof *p->items, ls_hash_mix(1, p->name));
}

bool takes_slots(const struct ls_op *op)
{
    return ls_op_uses_comm(op) && (op->slots || op->kind != LS_OP_COMM_INIT);
}

int64_t next_kernel(void *context, uint32_t rank)
{
    struct ls_rank *r = &((struct engine *)context)->rank[rank];
    while (r->kernel < r->ops && (!takes_slots(r->op[r->kernel].op) || r->status[r->kernel] == OP_SKIPPED || r->status[r->kernel] >= OP_STARTED ||
                                  path_of(r, r->kernel) == PATH_SKIPPED))
        r->kernel++;
    return r->kernel < r->ops ? (int64_t)r->kernel : LS_NO_TAG;
}

static enum ls_code bind_call(struct ls_rank *r, size_t op, struct ls_comm_call *call, struct ls_error *err)
{
    const struct ls_tables *t = r->e->job->tables;
    const struct ls_op *o = r->op[op].op;
    *call = (struct ls_comm_call){ .comm = r->comm[queue_comm(r->e, o)], .stream = stream_of(r, o), .op = o,
                                   .counts = o->counts == LS_NO_ID ? NULL : &t->vector.at[o->counts + 1],
                                   .fingerprint = fingerprint(t, o), .tag = (int64_t)op };
    r->op[op].queued = true;
    ls_push(&r->calls, (struct ls_at){ r->number, r->op[op].segment, r->op[op].index });
    return data_before(r, op, call, err);
}

/* A run of fused ops, or one op, of one thread. */
static enum ls_code append_calls(struct ls_rank *r, const size_t *op, size_t count, struct ls_error *err)
{
    struct ls_comm_call one, *call = count == 1 ? &one : LS_NEW(&r->e->arena, struct ls_comm_call, count);
    enum ls_code rc = LS_OK;
    clocks_append(r, op, count);
    for (size_t i = 0; i < count && rc == LS_OK; i++)
        rc = bind_call(r, op[i], &call[i], err);
    if (rc == LS_OK)
        rc = call->comm->ops->issue(call, count, err);
    for (size_t i = 0; i < count && rc == LS_OK; i++)
        rc = data_after(r, op[i], &call[i], err);
    return rc;
}

static enum ls_code append_op(struct ls_rank *r, size_t op, struct ls_error *err)
{
    const struct ls_op *o = r->op[op].op;
    struct ls_device *d = r->device;
    r->op[op].queued = true;
    if (!ls_op_uses_comm(o))
        clocks_append(r, &op, 1);
    switch ((enum ls_op_kind)o->kind) {
    case LS_OP_RECORD:
        r->event[o->event] = d->ops->record(d, stream_of(r, o), (int64_t)op);
        if (r->record)
            r->record[op] = r->event[o->event];
        return LS_OK;
    case LS_OP_WAIT:
        if (latest_event(r, op))
            d->ops->wait(d, stream_of(r, o), latest_event(r, op), (int64_t)op);
        else /* nothing was recorded: nothing to wait for */
            d->ops->move(d, stream_of(r, o), NULL, 0, (int64_t)op);
        return LS_OK;
    case LS_OP_COMPUTE:
    case LS_OP_COPY_IN:
    case LS_OP_COPY_OUT:
        return data_local(r, op, err);
    case LS_OP_ALL_GATHER: case LS_OP_REDUCE_SCATTER: case LS_OP_ALL_REDUCE: case LS_OP_REDUCE: case LS_OP_BROADCAST:
    case LS_OP_ALL_TO_ALL: case LS_OP_GATHER: case LS_OP_SCATTER: case LS_OP_SCAN: case LS_OP_BARRIER: case LS_OP_COMM_INIT:
    case LS_OP_DECIDE: case LS_OP_SEND: case LS_OP_RECV:
        return append_calls(r, &op, 1, err);
    case LS_OP_HOST_WAIT: case LS_OP_ALLOC: case LS_OP_FREE: case LS_OP_MARK: case LS_OP_STOP: case LS_OP_COUNT:
        break;
    }
    assert(false && "not a stream op");
    return LS_OK;
}

static enum ls_code unpark(struct ls_rank *r, struct ls_error *err)
{
    for (size_t i = 0; i < r->parked.count;) {
        size_t op = r->parked.at[i];
        if (behind_others(r, op)) {
            i++;
            continue;
        }
        memmove(&r->parked.at[i], &r->parked.at[i + 1], (r->parked.count - i - 1) * sizeof *r->parked.at);
        r->parked.count--;
        enum ls_code rc = append_op(r, op, err);
        if (rc != LS_OK)
            return rc;
        i = 0;
    }
    return LS_OK;
}

static enum ls_code issue_one(struct ls_rank *r, size_t op, struct ls_error *err)
{
    r->status[op] = OP_ISSUED;
    clocks_issue(r, op);
    if (behind_others(r, op)) {
        ls_push(&r->parked, op);
        return LS_OK;
    }
    enum ls_code rc = append_op(r, op, err);
    /* Behind a decide comes its value's way to the host, before what was parked. */
    return rc == LS_OK && r->parked.count && r->op[op].op->kind != LS_OP_DECIDE ? unpark(r, err) : rc;
}

/* The ops fused with the one at `first`; alloc, free and mark do not interrupt a group, they happen before it. */
static size_t fused_end(const struct ls_rank *r, size_t first, size_t *list, size_t *count)
{
    const struct ls_op *o = r->op[first].op;
    size_t end = first;
    *count = 0;
    for (size_t i = first; i < r->ops && r->op[i].segment == r->op[first].segment; i++) {
        const struct ls_op *k = r->op[i].op;
        bool quiet = k->kind == LS_OP_ALLOC || k->kind == LS_OP_FREE || k->kind == LS_OP_MARK;
        if (k->thread != o->thread || (quiet && r->op[i].guard == r->op[first].guard))
            continue;
        if (!ls_op_uses_comm(k) || k->fused != o->fused || r->op[i].guard != r->op[first].guard || r->op[i].side != r->op[first].side)
            break;
        if (list)
            list[*count] = i;
        ++*count;
        end = i + 1;
    }
    return end;
}

static bool is_blocking(const struct ls_rank *r, const struct ls_op *o)
{
    return !ls_op_is_host(o) && (o->blocking || o->kind == LS_OP_DECIDE || o->kind == LS_OP_COMM_INIT || r->e->o->blocking);
}

static void hold(struct host_thread *t, size_t first, size_t end)
{
    t->hold_first = first;
    t->hold_end = end;
}

/* A decide: the value comes back to the host behind the collective. */
static enum ls_code read_value(struct host_thread *t, size_t op, struct ls_error *err)
{
    struct ls_rank *r = t->rank;
    struct ls_device *d = r->device;
    struct ls_stream *s = stream_of(r, r->op[op].op);
    (void)err;
    d->ops->download(d, s, &t->value, t->scratch, 0, sizeof t->value);
    t->hold = d->ops->record(d, s, LS_NO_TAG);
    d->ops->free(d, s, t->scratch);
    t->scratch = NULL;
    return LS_OK;
}

static enum ls_code issue_group(struct host_thread *t, size_t first, size_t end, size_t count, struct ls_error *err)
{
    struct ls_rank *r = t->rank;
    enum ls_code rc = LS_OK;
    size_t *list = LS_NEW(&r->e->arena, size_t, count);
    fused_end(r, first, list, &count);
    for (size_t i = first; i < end && rc == LS_OK; i++) {
        const struct ls_op *k = r->op[i].op;
        if (k->thread != t->number)
            continue;
        r->status[i] = OP_ISSUED;
        clocks_issue(r, i);
        if (k->kind == LS_OP_ALLOC || k->kind == LS_OP_FREE)
            rc = data_memory(r, i, err);
        if (ls_op_is_host(k))
            r->status[i] = OP_DONE;
    }
    for (size_t i = 0; i < count && rc == LS_OK; i++)
        if (behind_others(r, list[i]))
            rc = ls_fail(err, LS_EINPUT, LS_NOWHERE, "fused ops of one thread stand behind ops of another: not supported by the engine");
    if (rc == LS_OK)
        rc = append_calls(r, list, count, err);
    if (rc == LS_OK && r->parked.count)
        rc = unpark(r, err);
    return rc;
}

/* Is the thread free to go on? */
static bool is_held(struct host_thread *t)
{
    struct ls_rank *r = t->rank;
    if (t->hold) {
        if (!r->device->ops->event_done(r->device, t->hold)) {
            r->device->ops->event_wait(r->device, t->hold, &t->actor);
            return true;
        }
        t->hold = NULL;
        size_t decide = t->hold_first;
        if (t->hold_end && r->op[decide].op->kind == LS_OP_DECIDE) {
            r->decided[decide] = t->value ? 1 : 2;
            r->op[decide].queued = true;
            clocks_pass(r, t->number, decide);
            hold(t, 0, 0);
            ls_hub_recheck(r->e->hub, r->number);
            ls_sched_wake_all(&r->progress);
        }
    }
    for (size_t i = t->hold_first; i < t->hold_end; i++)
        if (r->op[i].op->thread == t->number && is_blocking(r, r->op[i].op) && r->status[i] != OP_DONE) {
            ls_sched_wait(&t->actor, &r->progress);
            return true;
        }
    for (size_t i = t->hold_first; i < t->hold_end && r->clocks; i++)
        if (r->op[i].op->thread == t->number && is_blocking(r, r->op[i].op))
            clocks_pass(r, t->number, i);
    hold(t, 0, 0);
    return false;
}

static enum ls_code begin_segment(struct host_thread *t, struct ls_error *err)
{
    struct ls_rank *r = t->rank;
    if (t->number != 0 || r->op[t->at].segment < t->segment || !r->math)
        return LS_OK;
    t->segment = r->op[t->at].segment + 1;
    return r->math->ops->round(r->math, r, r->op[t->at].segment, err);
}

enum ls_turn thread_step(struct ls_actor *a)
{
    struct host_thread *t = (struct host_thread *)a;
    struct ls_rank *r = t->rank;
    struct ls_error err = { 0 };
    if (is_held(t))
        return LS_TURN_BLOCKED;
    while (t->at < r->ops && r->op[t->at].op->thread != t->number && r->op[t->at].op->kind != LS_OP_STOP)
        t->at++;
    if (t->at == r->ops)
        return LS_TURN_ENDED;
    size_t i = t->at;
    const struct ls_op *o = r->op[i].op;
    switch (path_of(r, i)) {
    case PATH_OPEN:
        ls_sched_wait(a, &r->progress);
        return LS_TURN_BLOCKED;
    case PATH_SKIPPED:
        if (o->thread == t->number)
            r->status[i] = OP_SKIPPED;
        t->at++;
        ls_sched_wake_all(&r->progress);
        if (r->parked.count && unpark(r, &err) != LS_OK)
            return fail(r, &err);
        return LS_TURN_MOVED;
    case PATH_TAKEN:
        break;
    }
    if (begin_segment(t, &err) != LS_OK)
        return fail(r, &err);
    enum ls_code rc = LS_OK;
    switch ((enum ls_op_kind)o->kind) {
    case LS_OP_STOP:
        if (o->thread == t->number) {
            r->status[i] = OP_ISSUED;
            if (!r->stopped || i < r->stop_at)
                r->stop_at = i;
            r->stopped = true;
        }
        return LS_TURN_ENDED;
    case LS_OP_HOST_WAIT:
        if (behind_others(r, i)) {
            ls_sched_wait(a, &r->progress);
            return LS_TURN_BLOCKED;
        }
        r->status[i] = OP_ISSUED;
        if (latest_event(r, i) && !r->device->ops->event_done(r->device, latest_event(r, i))) {
            r->device->ops->event_wait(r->device, latest_event(r, i), a);
            return LS_TURN_BLOCKED;
        }
        clocks_pass(r, t->number, i);
        r->status[i] = OP_DONE;
        break;
    case LS_OP_ALLOC:
    case LS_OP_FREE:
        clocks_issue(r, i);
        rc = data_memory(r, i, &err);
        r->status[i] = OP_DONE;
        break;
    case LS_OP_MARK:
        r->status[i] = OP_DONE;
        break;
    case LS_OP_ALL_GATHER: case LS_OP_REDUCE_SCATTER: case LS_OP_ALL_REDUCE: case LS_OP_REDUCE: case LS_OP_BROADCAST:
    case LS_OP_ALL_TO_ALL: case LS_OP_GATHER: case LS_OP_SCATTER: case LS_OP_SCAN: case LS_OP_BARRIER: case LS_OP_COMM_INIT:
    case LS_OP_DECIDE: case LS_OP_SEND: case LS_OP_RECV: case LS_OP_COMPUTE: case LS_OP_COPY_IN: case LS_OP_COPY_OUT:
    case LS_OP_RECORD: case LS_OP_WAIT: {
        size_t count = 1, end = i + 1;
        if (o->kind == LS_OP_DECIDE && behind_others(r, i)) { /* it holds the thread anyway */
            r->status[i] = OP_ISSUED;
            clocks_issue(r, i);
            ls_sched_wait(a, &r->progress);
            return LS_TURN_BLOCKED;
        }
        if (o->fused)
            end = fused_end(r, i, NULL, &count);
        rc = count > 1 ? issue_group(t, i, end, count, &err) : issue_one(r, i, &err);
        if (count == 1)
            end = i + 1;
        hold(t, i, end);
        if (rc == LS_OK && o->kind == LS_OP_DECIDE)
            rc = read_value(t, i, &err);
        if (rc == LS_OK && o->kind == LS_OP_DECIDE && r->parked.count)
            rc = unpark(r, &err);
        i = end - 1;
        break;
    }
    case LS_OP_COUNT:
        assert(false && "no such op");
    }
    if (rc != LS_OK)
        return fail(r, &err);
    t->at = i + 1;
    if (r->threads > 1)
        ls_sched_wake_all(&r->progress);
    return LS_TURN_MOVED;
}
