#include "machine/meet.h"

#include <string.h>

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

void ls_run_arrive(struct ls_run *x, uint32_t r, const struct ls_table *t, const struct ls_task *s)
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
        (s->guard == LS_NO_ID || ls_guard_state(x, r, j, s->guard) == LS_BRANCH_TAKEN))
        ls_run_arrive(x, r, t, s);
}

/* A decide of rank r got its value: FIFOs whose heads are on the side not taken move on. */
static void settle_fifos(struct ls_run *x, uint32_t r)
{
    for (uint32_t c = 0; c < x->p.comms; c++) {
        uint64_t *next = &x->fifo[r * x->p.comms + c], now = ls_fifo_skip(x, r, c, *next);
        if (now != *next) {
            *next = now;
            arrive_if_started(x, r, now);
        }
    }
    for (size_t i = x->p.port_first[r]; i < x->p.port_first[r + 1]; i++) {
        uint64_t now = ls_port_skip(x, r, x->p.port[i].id, x->port[i].next);
        x->port[i].match = ls_port_skip(x, r, x->p.port[i].id, x->port[i].match);
        if (now != x->port[i].next) {
            x->port[i].next = now;
            arrive_if_started(x, r, now);
        }
    }
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
        *next = ls_fifo_skip(x, r, comm, *next + 1);
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
    q->next = ls_port_skip(x, r, x->p.port[port].id, q->next + 1);
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
        from->match = ls_port_skip(x, x->p.port[sender].rank, x->p.port[sender].id, from->match + 1);
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
    *next = ls_fifo_skip(x, r, comm, *next + 1);
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
