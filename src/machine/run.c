#include "machine/run.h"

#include "base/hash.h"

#include <stdlib.h>
#include <string.h>

enum ls_path ls_guard_state(const struct ls_run *x, uint32_t r, uint32_t segment, uint32_t guard)
{
    if (guard == LS_NO_ID)
        return LS_PATH_TAKEN;
    const struct ls_table *t = ls_table_at(x, r, segment);
    unsigned char value = x->decided[x->p.decide_first[x->p.rank_first[r] + segment] + guard / 2];
    if (value)
        return (guard % 2 == 0) == (value == 1) ? LS_PATH_TAKEN : LS_PATH_SKIPPED;
    return ls_guard_state(x, r, segment, t->decide[guard / 2].guard) == LS_PATH_SKIPPED ? LS_PATH_SKIPPED : LS_PATH_OPEN;
}

static uint32_t find_record(const struct ls_table *t, uint32_t event)
{
    uint32_t low = 0, high = t->records;
    while (low < high) {
        uint32_t mid = low + (high - low) / 2;
        if (t->record[mid].event < event)
            low = mid + 1;
        else
            high = mid;
    }
    return low < t->records && t->record[low].event == event ? t->record[low].step : LS_NO_ID;
}

bool ls_event_done(const struct ls_run *x, uint32_t r, uint32_t segment, uint32_t record, uint32_t event, struct ls_at *on)
{
    for (;;) {
        const struct ls_table *t = ls_table_at(x, r, segment);
        for (; record != LS_NO_ID; record = t->step[record].record) {
            const struct ls_task *s = &t->step[record];
            enum ls_path taken = ls_guard_state(x, r, segment, s->guard);
            if (taken == LS_PATH_SKIPPED)
                continue;
            if (taken == LS_PATH_TAKEN && ls_step_done(x, r, segment, t, record))
                return true;
            if (on)
                *on = (struct ls_at){ r, segment, s->op };
            return false;
        }
        if (segment == 0)
            return true; /* never recorded: nothing to wait for */
        record = find_record(ls_table_at(x, r, --segment), event);
    }
}

static uint64_t skip_fifo(const struct ls_run *x, uint32_t r, uint32_t comm, uint64_t key)
{
    uint32_t j = ls_key_segment(key), i = ls_key_index(key);
    for (size_t n = ls_segments(x, r); j < n;) {
        const struct ls_table *t = ls_table_at(x, r, j);
        for (; i < t->comm_first[comm + 1]; i++) {
            uint32_t guard = t->step[t->fifo_step[i]].guard;
            if (guard == LS_NO_ID || ls_guard_state(x, r, j, guard) != LS_PATH_SKIPPED)
                return ls_key(j, i);
        }
        if (++j < n)
            i = ls_table_at(x, r, j)->comm_first[comm];
    }
    return ls_key(j, 0);
}

static bool port_range(const struct ls_table *t, uint32_t id, uint32_t *first, uint32_t *end)
{
    uint32_t low = 0, high = t->ports;
    while (low < high) {
        uint32_t mid = low + (high - low) / 2;
        if (t->port[mid] < id)
            low = mid + 1;
        else
            high = mid;
    }
    if (low == t->ports || t->port[low] != id)
        return false;
    *first = t->port_first[low], *end = t->port_first[low + 1];
    return true;
}

static uint64_t skip_port(const struct ls_run *x, uint32_t r, uint32_t id, uint64_t key)
{
    uint32_t j = ls_key_segment(key), i = ls_key_index(key), first, end;
    for (size_t n = ls_segments(x, r); j < n; j++, i = 0) {
        const struct ls_table *t = ls_table_at(x, r, j);
        if (!port_range(t, id, &first, &end))
            continue;
        for (i = i < first ? first : i; i < end; i++)
            if (ls_guard_state(x, r, j, t->step[t->fifo_step[i]].guard) != LS_PATH_SKIPPED)
                return ls_key(j, i);
    }
    return ls_key(j, 0);
}

const struct ls_task *ls_fifo_head(const struct ls_run *x, uint32_t r, uint32_t comm, uint64_t *key)
{
    *key = skip_fifo(x, r, comm, x->fifo[r * x->p.comms + comm]);
    if (ls_is_end(x, r, *key))
        return NULL;
    const struct ls_table *t = ls_table_at(x, r, ls_key_segment(*key));
    return &t->step[t->fifo_step[ls_key_index(*key)]];
}

const struct ls_task *ls_port_head(const struct ls_run *x, uint32_t port, uint64_t *key)
{
    const struct ls_port_ref *ref = &x->p.port[port];
    *key = skip_port(x, ref->rank, ref->id, x->port[port].next);
    if (ls_is_end(x, ref->rank, *key))
        return NULL;
    const struct ls_table *t = ls_table_at(x, ref->rank, ls_key_segment(*key));
    return &t->step[t->fifo_step[ls_key_index(*key)]];
}

bool ls_is_started(const struct ls_run *x, uint32_t r, uint32_t segment, const struct ls_task *s)
{
    size_t at = r * x->p.streams + s->stream;
    const struct ls_table *t = ls_table_at(x, r, segment);
    uint64_t first = ls_key(segment, (uint64_t)(ls_bundle_of(s) - t->step));
    return x->left[at] && x->head[at] == first;
}

bool ls_heads_fifo(const struct ls_run *x, uint32_t r, uint32_t segment, const struct ls_task *s, bool *paired)
{
    uint64_t mine = ls_key(segment, s->place), next;
    if (s->class == LS_TASK_MEET)
        next = x->fifo[r * x->p.comms + s->fifo];
    else
        next = x->port[ls_port_find(&x->p, r, s->fifo)].next;
    *paired = next > mine;
    return next == mine;
}

void ls_run_wake(struct ls_run *x, uint32_t r)
{
    if (x->in_queue[r])
        return;
    x->in_queue[r] = true;
    x->queue[(x->queue_head + x->queued++) % x->p.job->ranks] = r;
}

static uint64_t contribute(enum ls_reduce reduce, uint64_t a, uint64_t b)
{
    switch (reduce) {
    case LS_REDUCE_MAX:
        return a > b ? a : b;
    case LS_REDUCE_MIN:
        return a < b ? a : b;
    case LS_REDUCE_PROD: /* only zero or not matters */
        return a && b;
    case LS_REDUCE_NONE:
    case LS_REDUCE_SUM:
    case LS_REDUCE_AVG:
    case LS_REDUCE_PREMUL:
    case LS_REDUCE_COUNT:
        return a + b;
    }
    return a;
}

static uint32_t group_size(const struct ls_groups *g, uint32_t group)
{
    return g->first[group + 1] - g->first[group];
}

static void complete_later(struct ls_run *x, unsigned what, uint32_t which)
{
    uint64_t item = (uint64_t)what << 32 | which;
    if (x->clock)
        x->clock->met(x->clock->context, item);
    else
        ls_push(&x->full, item);
}

static void arrive_port(struct ls_run *x, uint32_t r, const struct ls_task *s)
{
    uint32_t mine = ls_port_find(&x->p, r, s->fifo), other = x->p.port[mine].partner;
    x->port[mine].arrived = true;
    if (x->buffered && s->send) {
        complete_later(x, LS_ITEM_SENT, mine);
        return;
    }
    if (other == LS_NO_ID)
        return;
    uint32_t receiver = s->send ? other : mine, sender = s->send ? mine : other;
    bool can = x->buffered ? x->port[sender].sent > x->port[sender].taken : x->port[other].arrived;
    if (can && !x->port[receiver].queued) {
        x->port[receiver].queued = true;
        complete_later(x, LS_ITEM_PAIR, receiver);
    }
}

static bool passes(const struct ls_run *x, struct ls_silent *silent, const struct ls_op *a, uint32_t rank_a, const struct ls_op *b, uint32_t rank_b)
{
    if (!x->o->as_nccl || strcmp(ls_diff_seen_as(ls_op_diff(x->p.job->tables, a, b), a, b), "silent") != 0)
        return false;
    if (!silent->pairs++)
        *silent = (struct ls_silent){ 1, a, b, rank_a, rank_b };
    return true;
}

/* What passed unnoticed has gone through. */
static void add_silent(struct ls_run *x, struct ls_silent *passed)
{
    size_t pairs = x->silent.pairs + passed->pairs;
    if (!x->silent.pairs)
        x->silent = *passed;
    x->silent.pairs = pairs;
    *passed = (struct ls_silent){ 0 };
}

/* A started step reached the head of its FIFO. */
static void arrive(struct ls_run *x, uint32_t r, const struct ls_table *t, const struct ls_task *s)
{
    if (s->class == LS_TASK_PASS) {
        arrive_port(x, r, s);
        return;
    }
    const struct ls_groups *g = &x->p.job->comm[s->fifo];
    uint32_t group = g->group[r], id = x->p.group_base[s->fifo] + group;
    struct ls_meeting *m = &x->meeting[id];
    const struct ls_op *op = &t->from->op[s->op];
    if (m->lost) {
        ls_push(&x->full, (uint64_t)LS_ITEM_LOST << 32 | (r * x->p.comms + s->fifo));
        return;
    }
    if (m->arrived++ == 0) {
        m->sig = s->sig;
        m->agreed = op->value;
        m->first = op;
        m->first_rank = r;
    } else {
        m->bad |= m->sig != s->sig && !passes(x, &m->silent, m->first, m->first_rank, op, r);
        if (op->kind == LS_OP_DECIDE)
            m->agreed = contribute(op->reduce, m->agreed, op->value);
    }
    if (m->arrived == group_size(g, group) && !m->bad)
        complete_later(x, LS_ITEM_MEETING, id);
}

static void leave_bundle(struct ls_run *x, uint32_t r, const struct ls_task *s)
{
    size_t at = r * x->p.streams + s->stream;
    assert(x->left[at]);
    if (--x->left[at] == 0) {
        uint32_t j = ls_key_segment(x->head[at]);
        const struct ls_table *t = ls_table_at(x, r, j);
        const struct ls_task *first = &t->step[ls_key_index(x->head[at])];
        if (x->clock)
            x->clock->left(x->clock->context, r, j, t, first);
        x->head[at] += first->bundle;
        x->steps_done[r] += first->bundle;
        x->used[r] -= x->held[at];
        x->held[at] = 0;
        if (x->out_now)
            x->out_now[r * x->p.threads + first->thread] -= first->bundle;
    }
    ls_run_wake(x, r);
}

static void arrive_if_started(struct ls_run *x, uint32_t r, uint64_t key)
{
    if (ls_is_end(x, r, key))
        return;
    uint32_t j = ls_key_segment(key);
    const struct ls_table *t = ls_table_at(x, r, j);
    const struct ls_task *s = &t->step[t->fifo_step[ls_key_index(key)]];
    if (x->left[r * x->p.streams + s->stream] && ls_is_started(x, r, j, s) &&
        (s->guard == LS_NO_ID || ls_guard_state(x, r, j, s->guard) == LS_PATH_TAKEN))
        arrive(x, r, t, s);
}

/* A decide of rank r got its value: FIFOs whose heads are on the side not taken move on. */
static void settle_fifos(struct ls_run *x, uint32_t r)
{
    for (uint32_t c = 0; c < x->p.comms; c++) {
        uint64_t *next = &x->fifo[r * x->p.comms + c], now = skip_fifo(x, r, c, *next);
        if (now != *next) {
            *next = now;
            arrive_if_started(x, r, now);
        }
    }
    for (size_t i = x->p.port_first[r]; i < x->p.port_first[r + 1]; i++) {
        uint64_t now = skip_port(x, r, x->p.port[i].id, x->port[i].next);
        x->port[i].match = skip_port(x, r, x->p.port[i].id, x->port[i].match);
        if (now != x->port[i].next) {
            x->port[i].next = now;
            arrive_if_started(x, r, now);
        }
    }
}

uint32_t ls_comm_of_group(const struct ls_run *x, uint32_t id)
{
    uint32_t low = 0, high = (uint32_t)x->p.comms;
    while (low < high) { /* the last with group_base <= id */
        uint32_t mid = low + (high - low) / 2;
        if (x->p.group_base[mid + 1] <= id)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

static void complete_meeting(struct ls_run *x, uint32_t id)
{
    struct ls_meeting *m = &x->meeting[id];
    uint32_t comm = ls_comm_of_group(x, id);
    const struct ls_groups *g = &x->p.job->comm[comm];
    uint32_t group = id - x->p.group_base[comm];
    unsigned char value = m->agreed ? 1 : 2;
    m->arrived = 0;
    if (m->silent.pairs)
        add_silent(x, &m->silent);
    m->done++;
    x->collectives++;
    for (uint32_t i = g->first[group]; i < g->first[group + 1]; i++) {
        uint32_t r = g->rank[i];
        uint64_t *next = &x->fifo[r * x->p.comms + comm];
        uint32_t j = ls_key_segment(*next);
        const struct ls_table *t = ls_table_at(x, r, j);
        const struct ls_task *s = &t->step[t->fifo_step[ls_key_index(*next)]];
        bool decide = t->from->op[s->op].kind == LS_OP_DECIDE;
        leave_bundle(x, r, s);
        if (decide) {
            const struct ls_decide *d = t->decide;
            while (d->op != s->op)
                d++;
            x->decided[x->p.decide_first[x->p.rank_first[r] + j] + (size_t)(d - t->decide)] = value;
        }
        *next = skip_fifo(x, r, comm, *next + 1);
        arrive_if_started(x, r, *next);
        if (decide)
            settle_fifos(x, r);
    }
}

static const struct ls_task *step_at(const struct ls_run *x, uint32_t r, uint64_t fifo_key)
{
    const struct ls_table *t = ls_table_at(x, r, ls_key_segment(fifo_key));
    return &t->step[t->fifo_step[ls_key_index(fifo_key)]];
}

/* The step at the port's head is paired: its stream and its queue go on. */
static void leave_port(struct ls_run *x, uint32_t port)
{
    struct ls_port *q = &x->port[port];
    uint32_t r = x->p.port[port].rank;
    const struct ls_task *s = step_at(x, r, q->next);
    q->arrived = false;
    q->done++;
    leave_bundle(x, r, s);
    q->next = skip_port(x, r, x->p.port[port].id, q->next + 1);
    arrive_if_started(x, r, q->next);
}

static void complete_pair(struct ls_run *x, uint32_t receiver)
{
    uint32_t sender = x->p.port[receiver].partner;
    struct ls_port *from = &x->port[sender], *to = &x->port[receiver];
    const struct ls_task *a = step_at(x, x->p.port[sender].rank, x->buffered ? from->match : from->next);
    const struct ls_task *b = step_at(x, x->p.port[receiver].rank, to->next);
    to->queued = false;
    const struct ls_op *send = &ls_table_at(x, x->p.port[sender].rank, ls_key_segment(x->buffered ? from->match : from->next))->from->op[a->op];
    const struct ls_op *recv = &ls_table_at(x, x->p.port[receiver].rank, ls_key_segment(to->next))->from->op[b->op];
    if (a->sig != b->sig && !passes(x, &x->silent, send, x->p.port[sender].rank, recv, x->p.port[receiver].rank)) {
        from->bad = to->bad = true;
        return;
    }
    if (x->buffered) {
        from->taken++;
        from->match = skip_port(x, x->p.port[sender].rank, x->p.port[sender].id, from->match + 1);
    } else {
        /* Both queues move before either side's next op may arrive and pair with the one that is leaving. */
        from->arrived = to->arrived = false;
        leave_port(x, sender);
    }
    leave_port(x, receiver);
}

static void complete_sent(struct ls_run *x, uint32_t port)
{
    uint32_t other = x->p.port[port].partner;
    x->port[port].sent++;
    leave_port(x, port);
    if (other != LS_NO_ID && x->port[other].arrived && !x->port[other].queued && !x->port[other].bad) {
        x->port[other].queued = true;
        complete_later(x, LS_ITEM_PAIR, other);
    }
}

/* The rank's op at the head of this FIFO fails: the framework goes on without it, or the rank raises. */
static void lose(struct ls_run *x, uint32_t r, uint32_t comm)
{
    uint64_t *next = &x->fifo[r * x->p.comms + comm];
    const struct ls_table *t = ls_table_at(x, r, ls_key_segment(*next));
    const struct ls_task *s = &t->step[t->fifo_step[ls_key_index(*next)]];
    const struct ls_meeting *m = &x->meeting[x->p.group_base[comm] + x->p.job->comm[comm].group[r]];
    if (m->lost == LS_LOST_RAISE || t->from->op[s->op].kind == LS_OP_DECIDE) {
        if (!x->dead)
            x->dead = LS_NEW(x->arena, bool, x->p.job->ranks);
        x->dead[r] = true;
        return;
    }
    leave_bundle(x, r, s);
    *next = skip_fifo(x, r, comm, *next + 1);
    arrive_if_started(x, r, *next);
}

void ls_run_give_up(struct ls_run *x, uint32_t id, enum ls_lost how)
{
    uint32_t comm = ls_comm_of_group(x, id);
    const struct ls_groups *g = &x->p.job->comm[comm];
    struct ls_meeting *m = &x->meeting[id];
    uint32_t group = id - x->p.group_base[comm];
    m->lost = (uint8_t)how;
    m->arrived = 0;
    m->bad = false;
    m->silent = (struct ls_silent){ 0 };
    for (uint32_t i = g->first[group]; i < g->first[group + 1]; i++)
        arrive_if_started(x, g->rank[i], x->fifo[g->rank[i] * x->p.comms + comm]);
}

void ls_run_complete(struct ls_run *x, uint64_t item)
{
    switch (item >> 32) {
    case LS_ITEM_LOST:
        lose(x, (uint32_t)item / (uint32_t)x->p.comms, (uint32_t)item % (uint32_t)x->p.comms);
        break;
    case LS_ITEM_MEETING:
        complete_meeting(x, (uint32_t)item);
        break;
    case LS_ITEM_PAIR:
        complete_pair(x, (uint32_t)item);
        break;
    default:
        complete_sent(x, (uint32_t)item);
        break;
    }
}

/* The stream's head is at the bundle; its kernels start. */
static void start(struct ls_run *x, uint32_t r, uint32_t s)
{
    size_t at = r * x->p.streams + s;
    uint32_t j = ls_key_segment(x->head[at]);
    const struct ls_table *t = ls_table_at(x, r, j);
    const struct ls_task *first = &t->step[ls_key_index(x->head[at])];
    bool paired;
    x->left[at] = first->bundle;
    if (x->clock)
        x->clock->started(x->clock->context, r, j, t, first);
    for (uint32_t i = 0; i < first->bundle; i++)
        if (ls_heads_fifo(x, r, j, first + i, &paired))
            arrive(x, r, t, first + i);
}

static uint32_t need(const struct ls_run *x, const struct ls_task *first)
{
    return x->o->kernels && first->slots > x->o->kernels ? x->o->kernels : first->slots;
}

/* L3: every op of the bundle heads its FIFO, or is behind ops of the bundle only. */
static bool bundle_ready(const struct ls_run *x, uint32_t r, uint32_t j, const struct ls_table *t, const struct ls_task *first)
{
    for (uint32_t i = 0; i < first->bundle; i++) {
        const struct ls_task *s = first + i;
        uint64_t next = s->class == LS_TASK_MEET ? x->fifo[r * x->p.comms + s->fifo]
                                                 : x->port[ls_port_find(&x->p, r, s->fifo)].next;
        if (ls_key_segment(next) != j)
            return false;
        const struct ls_task *head = &t->step[t->fifo_step[ls_key_index(next)]];
        if (head < first || head >= first + first->bundle)
            return false;
    }
    return true;
}

static uint64_t skip_kernel(const struct ls_run *x, uint32_t r, uint64_t key)
{
    uint32_t j = ls_key_segment(key), i = ls_key_index(key);
    for (size_t n = ls_segments(x, r); j < n; j++, i = 0) {
        const struct ls_table *t = ls_table_at(x, r, j);
        for (; i < t->kernels; i++)
            if (ls_guard_state(x, r, j, t->step[t->kernel[i]].guard) != LS_PATH_SKIPPED)
                return ls_key(j, i);
    }
    return ls_key(j, 0);
}

/* L3: may the bundle at this stream's head, already issued, take its slots now? */
static bool may_start(struct ls_run *x, uint32_t r, uint32_t j, const struct ls_table *t, const struct ls_task *first)
{
    if (first->slots == 0)
        return true;
    if (!bundle_ready(x, r, j, t, first))
        return false;
    if (x->o->kernels && need(x, first) > x->o->kernels - x->used[r])
        return false;
    if (x->o->start == LS_START_ANY)
        return true;
    x->kernel[r] = skip_kernel(x, r, x->kernel[r]);
    return ls_key_segment(x->kernel[r]) == j && &t->step[t->kernel[ls_key_index(x->kernel[r])]] == first;
}

static void take_slots(struct ls_run *x, uint32_t r, uint32_t s, const struct ls_task *first)
{
    if (first->slots == 0)
        return;
    x->held[r * x->p.streams + s] = need(x, first);
    x->used[r] += need(x, first);
    if (x->o->start == LS_START_ISSUE_ORDER)
        x->kernel[r]++;
}

/* The stream's head when it is a bundle that could start but for slots; else NULL. */
static const struct ls_task *startable(struct ls_run *x, uint32_t r, uint32_t s, uint32_t *segment)
{
    size_t at = r * x->p.streams + s;
    if (x->left[at] || ls_is_end(x, r, x->head[at]))
        return NULL;
    uint32_t j = *segment = ls_key_segment(x->head[at]);
    const struct ls_table *t = ls_table_at(x, r, j);
    if (ls_key_index(x->head[at]) >= t->stream_first[s + 1])
        return NULL;
    const struct ls_task *first = &t->step[ls_key_index(x->head[at])];
    if ((first->class != LS_TASK_MEET && first->class != LS_TASK_PASS) ||
        x->until[r * x->p.threads + first->thread] <= ls_key(j, first->op) ||
        ls_guard_state(x, r, j, first->guard) != LS_PATH_TAKEN)
        return NULL;
    return first;
}

/* Moves one stream of a rank: one step if `once`, else as far as it goes. */
static bool move_stream(struct ls_run *x, uint32_t r, uint32_t s, bool once)
{
    size_t at = r * x->p.streams + s, n = ls_segments(x, r);
    bool moved = false;
    while (!(once && moved) && !x->left[at]) {
        uint32_t j = ls_key_segment(x->head[at]), i = ls_key_index(x->head[at]);
        if (j >= n)
            break;
        const struct ls_table *t = ls_table_at(x, r, j);
        if (i >= t->stream_first[s + 1]) {
            do
                j++;
            while (j < n && ls_table_at(x, r, j)->stream_first[s] == ls_table_at(x, r, j)->stream_first[s + 1]);
            x->head[at] = ls_key(j, j < n ? ls_table_at(x, r, j)->stream_first[s] : 0);
            continue;
        }
        const struct ls_task *step = &t->step[i];
        if (step->guard != LS_NO_ID) {
            enum ls_path taken = ls_guard_state(x, r, j, step->guard);
            if (taken == LS_PATH_OPEN)
                break;
            if (taken == LS_PATH_SKIPPED) {
                x->head[at] += step->bundle;
                moved = true;
                continue;
            }
        }
        if (x->until[r * x->p.threads + step->thread] <= ls_key(j, step->op))
            break;
        if (x->clock && !x->clock->issued(x->clock->context, r, j, t, step))
            break;
        if (step->class == LS_TASK_MEET || step->class == LS_TASK_PASS) {
            if (x->slots) {
                if ((x->defer && step->slots) || !may_start(x, r, j, t, step))
                    break;
                take_slots(x, r, s, step);
            }
            start(x, r, s);
            moved = true;
            break;
        }
        if (step->class == LS_TASK_WAIT) {
            if (!ls_event_done(x, r, j, step->record, step->event, NULL)) {
                if (x->clock)
                    x->clock->waiting(x->clock->context, r, j, t, step);
                break;
            }
            if (x->clock)
                x->clock->waited(x->clock->context, r, j, t, step);
        } else if (x->clock && !x->clock->worked(x->clock->context, r, j, t, step))
            break;
        x->head[at]++;
        x->steps_done[r]++;
        if (x->out_now)
            x->out_now[r * x->p.threads + step->thread]--;
        moved = true;
    }
    return moved;
}

/* Bounded run-ahead: issues stream ops up to the key. False when the bound holds the host back before it. */
static bool issue_to(struct ls_run *x, uint32_t r, uint32_t thread, uint64_t to)
{
    size_t at = r * x->p.threads + thread, n = ls_segments(x, r);
    while (x->o->run_ahead) {
        uint32_t j = ls_key_segment(x->ahead[at]), i = ls_key_index(x->ahead[at]);
        if (j >= n)
            break;
        const struct ls_table *t = ls_table_at(x, r, j);
        if (i >= t->thread_first[thread + 1]) {
            j++;
            x->ahead[at] = ls_key(j, j < n ? ls_table_at(x, r, j)->thread_first[thread] : 0);
            continue;
        }
        const struct ls_task *s = &t->step[t->thread_step[i]];
        uint64_t here = ls_key(j, s->op);
        if (here >= to)
            break;
        enum ls_path taken = ls_guard_state(x, r, j, s->guard);
        if (taken == LS_PATH_OPEN || (taken == LS_PATH_TAKEN && !s->joined && x->out_now[at] >= x->o->run_ahead)) {
            x->until[at] = here;
            x->bounded[at] = taken == LS_PATH_TAKEN;
            return false;
        }
        if (x->clock && x->bounded[at])
            x->clock->resumed(x->clock->context, r, thread, j, s->op, NULL);
        x->bounded[at] = false;
        x->out_now[at] += taken == LS_PATH_TAKEN;
        x->ahead[at]++;
    }
    x->until[at] = to;
    return true;
}

static bool move_host(struct ls_run *x, uint32_t r, uint32_t thread, bool once)
{
    size_t at = r * x->p.threads + thread, n = ls_segments(x, r);
    bool moved = false;
    while (!(once && moved)) {
        uint32_t j = ls_key_segment(x->point[at]), i = ls_key_index(x->point[at]);
        uint64_t before = x->until[at];
        if (j >= n) {
            if (!issue_to(x, r, thread, ls_key(n, 0)) || x->until[at] == before)
                return moved || x->until[at] != before;
            moved = true;
            continue;
        }
        const struct ls_table *t = ls_table_at(x, r, j);
        if (i >= t->point_first[thread + 1]) {
            j++;
            x->point[at] = ls_key(j, j < n ? ls_table_at(x, r, j)->point_first[thread] : 0);
            moved = true;
            continue;
        }
        const struct ls_point *q = &t->point[i];
        enum ls_path taken = ls_guard_state(x, r, j, q->guard);
        if (taken == LS_PATH_SKIPPED) {
            x->point[at]++;
            moved = true;
            continue;
        }
        bool holds = taken == LS_PATH_TAKEN && q->kind != LS_POINT_PATH; /* then the op itself is issued, too */
        bool there = issue_to(x, r, thread, ls_key(j, (uint64_t)q->op + holds));
        moved |= x->until[at] != before;
        if (!there || taken == LS_PATH_OPEN)
            return moved;
        if (x->clock && !x->clock->reached(x->clock->context, r, thread, j, t, q))
            return moved;
        bool pass = false;
        switch ((enum ls_point_kind)q->kind) {
        case LS_POINT_STEP:
            pass = ls_step_done(x, r, j, t, q->step);
            break;
        case LS_POINT_EVENT:
            pass = ls_event_done(x, r, j, q->record, q->event, NULL);
            break;
        case LS_POINT_PATH:
            pass = true;
            break;
        case LS_POINT_STOP:
            moved |= q->thread == thread && !x->stopped[r];
            x->stopped[r] |= q->thread == thread;
            break;
        }
        if (!pass)
            return moved;
        if (x->clock)
            x->clock->resumed(x->clock->context, r, thread, j, q->op + (q->kind != LS_POINT_PATH), q);
        x->point[at]++;
        moved = true;
    }
    return moved;
}

static void move_rank(struct ls_run *x, uint32_t r)
{
    bool moved = !x->dead || !x->dead[r];
    while (moved) {
        moved = false;
        for (uint32_t t = 0; t < x->p.threads; t++)
            moved |= move_host(x, r, t, false);
        for (uint32_t s = 0; s < x->p.streams; s++)
            moved |= move_stream(x, r, s, false);
    }
}

/* Random schedules: one step of one thread or stream, taken in an order of chance. */
static bool move_once(struct ls_run *x, uint32_t r)
{
    uint32_t parts = (uint32_t)(x->p.threads + x->p.streams), first = (uint32_t)ls_random_below(&x->random, parts);
    for (uint32_t i = 0; i < parts; i++) {
        uint32_t part = (first + i) % parts;
        if (part < x->p.threads ? move_host(x, r, part, true) : move_stream(x, r, part - (uint32_t)x->p.threads, true))
            return true;
    }
    return false;
}

/* L3, free start order: nothing else can move, so one of the kernels that fit starts. False when there is none. */
static bool choose_start(struct ls_run *x)
{
    LS_VEC(uint64_t) can = { 0 }; /* rank, stream */
    uint32_t j;
    for (uint32_t r = 0; r < x->p.job->ranks; r++)
        for (uint32_t s = 0; s < x->p.streams; s++) {
            const struct ls_task *first = startable(x, r, s, &j);
            if (first && may_start(x, r, j, ls_table_at(x, r, j), first))
                ls_push(&can, (uint64_t)r << 32 | s);
        }
    size_t count = can.count;
    if (count) {
        size_t pick = x->o->choose ? x->o->choose(x->o->choose_context, count) : ls_random_below(&x->random, count);
        assert(pick < count);
        uint32_t r = (uint32_t)(can.at[pick] >> 32), s = (uint32_t)can.at[pick];
        take_slots(x, r, s, startable(x, r, s, &j));
        start(x, r, s);
    }
    ls_vec_release(&can);
    return count != 0;
}

static void run_random(struct ls_run *x)
{
    for (;;) {
        size_t items = x->full.count + x->queued;
        if (items == 0) {
            if (!x->defer || !choose_start(x))
                return;
            continue;
        }
        size_t pick = ls_random_below(&x->random, items);
        if (pick < x->full.count) {
            uint64_t item = x->full.at[pick];
            x->full.at[pick] = x->full.at[--x->full.count];
            ls_run_complete(x, item);
            continue;
        }
        size_t ranks = x->p.job->ranks, slot = (x->queue_head + pick - x->full.count) % ranks;
        uint32_t r = x->queue[slot];
        if (!move_once(x, r)) {
            x->queue[slot] = x->queue[(x->queue_head + --x->queued) % ranks];
            x->in_queue[r] = false;
        }
    }
}

void ls_run_to_end(struct ls_run *x)
{
    if (x->o->seed) {
        run_random(x);
        return;
    }
    for (;;) {
        if (x->full.count) {
            ls_run_complete(x, x->full.at[--x->full.count]);
        } else if (x->queued) {
            uint32_t r = x->queue[x->queue_head];
            x->queue_head = (x->queue_head + 1) % x->p.job->ranks;
            x->queued--;
            x->in_queue[r] = false;
            move_rank(x, r);
        } else if (!x->defer || !choose_start(x))
            return;
    }
}

static void set_heads(struct ls_run *x, uint32_t r)
{
    size_t n = ls_segments(x, r);
    const struct ls_table *t = n ? ls_table_at(x, r, 0) : NULL;
    for (size_t s = 0; s < x->p.streams; s++)
        x->head[r * x->p.streams + s] = ls_key(0, t ? t->stream_first[s] : 0);
    for (uint32_t c = 0; c < x->p.comms; c++)
        x->fifo[r * x->p.comms + c] = skip_fifo(x, r, c, ls_key(0, t ? t->comm_first[c] : 0));
    for (size_t k = 0; k < x->p.threads; k++) {
        x->point[r * x->p.threads + k] = ls_key(0, t ? t->point_first[k] : 0);
        if (x->ahead)
            x->ahead[r * x->p.threads + k] = ls_key(0, t ? t->thread_first[k] : 0);
    }
    for (size_t i = x->p.port_first[r]; i < x->p.port_first[r + 1]; i++)
        x->port[i].next = x->port[i].match = skip_port(x, r, x->p.port[i].id, 0);
    ls_run_wake(x, r);
}

enum ls_code ls_run_open(struct ls_run *x, const struct ls_job *job, const struct ls_run_options *options,
                         struct ls_arena *arena, struct ls_error *err)
{
    *x = (struct ls_run){ .o = options, .arena = arena, .random = options->seed };
    enum ls_code rc = ls_prepare(job, options->level, arena, &x->p, err);
    if (rc != LS_OK)
        return rc;
    x->slots = options->level == LS_L3 && (options->kernels || options->start == LS_START_ISSUE_ORDER);
    x->defer = x->slots && options->start == LS_START_ANY && (options->choose || options->seed);
    x->buffered = options->level == LS_L3 && !options->unbuffered_send;
    size_t streams = ls_mul_size(job->ranks, x->p.streams), threads = ls_mul_size(job->ranks, x->p.threads);
    x->head = LS_NEW(arena, uint64_t, streams);
    x->left = LS_NEW(arena, uint32_t, streams);
    x->held = LS_NEW(arena, uint32_t, streams);
    x->used = LS_NEW(arena, uint32_t, job->ranks);
    x->kernel = LS_NEW(arena, uint64_t, job->ranks);
    x->fifo = LS_NEW(arena, uint64_t, ls_mul_size(job->ranks, x->p.comms));
    x->until = LS_NEW(arena, uint64_t, threads);
    x->point = LS_NEW(arena, uint64_t, threads);
    if (options->run_ahead) {
        x->ahead = LS_NEW(arena, uint64_t, threads);
        x->out_now = LS_NEW(arena, size_t, threads);
        x->bounded = LS_NEW(arena, bool, threads);
    }
    x->meeting = LS_NEW(arena, struct ls_meeting, x->p.group_base[x->p.comms]);
    x->port = LS_NEW(arena, struct ls_port, x->p.port_first[job->ranks]);
    x->decided = LS_NEW(arena, unsigned char, x->p.decides);
    x->stopped = LS_NEW(arena, bool, job->ranks);
    x->steps_done = LS_NEW(arena, size_t, job->ranks);
    x->queue = LS_NEW(arena, uint32_t, job->ranks);
    x->in_queue = LS_NEW(arena, bool, job->ranks);
    for (uint32_t r = 0; r < job->ranks; r++)
        set_heads(x, r);
    return LS_OK;
}

void ls_run_close(struct ls_run *x)
{
    ls_vec_release(&x->full);
}
