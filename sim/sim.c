#include "sim/sim.h"

#include "base/hash.h"
#include "base/vec.h"
#include "machine/meet.h"
#include "machine/move.h"
#include "machine/outcome.h"
#include "sim/collective.h"
#include "sim/fold.h"
#include "sim/queue.h"
#include "sim/traffic.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* Upper bits of an event's `what`: the rank to look at; the item whose latency is over; rank * streams + stream, whose patience may be. */
enum { EVENT_WAKE, EVENT_LATENCY, EVENT_PATIENCE };

struct timing { /* of one table */
    uint64_t *work_ps;  /* [steps] nominal */
    uint64_t **until;   /* [threads][ops + 1] what the thread needs to issue its ops before this one */
    uint32_t *host, hosts; /* alloc, free, mark, in list order */
    uint32_t *last;     /* [ops] the last op of the fused group that it is in, or itself */
};
struct stream { uint64_t head_ps, ready_ps, busy_ps, alarm_ps; bool waits; }; /* busy: end of the work at its head, 0: none */
struct thread { /* its issue times count from `base_ps`, when it got to op `op` of `segment` */
    uint64_t base_ps, alarm_ps, reach_ps;
    uint32_t segment, op;
    uint32_t told_segment, told_op; /* host-only ops before it were reported */
};
struct meeting { uint64_t met_ps, end_ps, latency_ps; uint32_t flows; bool uneven; };

struct sim {
    struct ls_run run;
    const struct ls_job *full;
    const struct ls_platform *platform;
    const struct ls_cost *cost;
    const struct ls_sim_options *o;
    const struct ls_sim_fold *fold; /* NULL: unfolded */
    struct ls_traffic traffic;
    struct timing *timing;      /* [tables] */
    struct stream *stream;      /* [ranks * streams] */
    struct thread *thread;      /* [ranks * threads] */
    uint64_t *moved_ps;         /* [ranks] */
    struct meeting *meeting;    /* [groups], then [ports] */
    struct ls_queue queue;
    uint64_t now, events;
    uint64_t watch_ps;          /* nothing can be over the watchdog's limit before */
    struct ls_sim_result *result; /* what gives up and what is killed is written here */
    bool uneven;                /* folded groups ended at different times */
    struct ls_net_counts net;
};

static uint32_t full_rank(const struct sim *x, uint32_t r)
{
    return x->fold ? x->fold->first[r] : r;
}

static struct timing *timing_of(const struct sim *x, const struct ls_table *t)
{
    return &x->timing[t - x->run.p.table];
}

/* What the thread needs to issue its ops [from, to) of one segment; branches not taken cost nothing. */
static uint64_t issue_cost(const struct sim *x, uint32_t r, uint32_t thread, uint32_t segment, uint32_t from, uint32_t to)
{
    const struct ls_table *t = ls_table_at(&x->run, r, segment);
    const uint64_t *until = timing_of(x, t)->until[thread];
    if (!t->decides)
        return until[to] - until[from];
    uint64_t ps = 0;
    for (uint32_t i = from; i < to; i++)
        if (ls_guard_state(&x->run, r, segment, t->guard_of_op[i]) == LS_BRANCH_TAKEN)
            ps += until[i + 1] - until[i];
    return ps;
}

/* When the thread has issued what comes before op `to` of `segment`, if nothing holds it. */
static uint64_t issue_time(const struct sim *x, uint32_t r, uint32_t thread, uint32_t segment, uint32_t to)
{
    const struct thread *h = &x->thread[r * x->run.p.threads + thread];
    uint64_t ps = h->base_ps;
    uint32_t from = h->op;
    for (uint32_t j = h->segment; j < segment; j++, from = 0)
        ps += issue_cost(x, r, thread, j, from, (uint32_t)ls_table_at(&x->run, r, j)->from->count);
    return ps + issue_cost(x, r, thread, segment, from, to);
}

static void alarm_at(struct sim *x, uint64_t *alarm, uint64_t time, uint32_t r)
{
    if (*alarm == time)
        return;
    *alarm = time;
    ls_queue_push(&x->queue, time, (uint64_t)EVENT_WAKE << 62 | r);
}

static void report(struct sim *x, void (*hook)(void *, const struct ls_sim_span *), uint32_t r, uint32_t segment, const struct ls_table *t,
                   uint32_t op, uint64_t head, uint64_t ready, uint64_t start, uint64_t end)
{
    struct ls_sim_span span = { { full_rank(x, r), segment, op }, &t->from->op[op], head, ready, start, end };
    hook(x->o->hooks.context, &span);
}

static void done(struct sim *x, uint32_t r, uint32_t segment, const struct ls_table *t, uint32_t op, uint64_t head, uint64_t ready,
                 uint64_t start)
{
    x->moved_ps[r] = x->now;
    if (x->o->hooks.done)
        report(x, x->o->hooks.done, r, segment, t, op, head, ready, start, x->now);
}

/* Host-only ops before op `to`, each with the time at which the host gets there. */
static void tell_host(struct sim *x, uint32_t r, uint32_t thread, uint32_t segment, uint32_t to)
{
    struct thread *h = &x->thread[r * x->run.p.threads + thread];
    if (!x->o->hooks.host)
        return;
    for (; h->told_segment < segment || (h->told_segment == segment && h->told_op < to); h->told_segment++, h->told_op = 0) {
        uint32_t j = h->told_segment;
        const struct ls_table *t = ls_table_at(&x->run, r, j);
        const struct timing *w = timing_of(x, t);
        uint32_t end = j < segment ? (uint32_t)t->from->count : to, low = 0, high = w->hosts;
        while (low < high) { /* the first host-only op that was not told */
            uint32_t mid = low + (high - low) / 2;
            if (w->host[mid] < h->told_op)
                low = mid + 1;
            else
                high = mid;
        }
        for (; low < w->hosts && w->host[low] < end; low++) {
            uint32_t i = w->host[low];
            if (t->from->op[i].thread != thread || ls_guard_state(&x->run, r, j, t->guard_of_op[i]) != LS_BRANCH_TAKEN)
                continue;
            bool past = j < h->segment || (j == h->segment && i < h->op);
            uint64_t time = past ? h->base_ps : issue_time(x, r, thread, j, i + 1);
            report(x, x->o->hooks.host, r, j, t, i, time, time, time, time);
        }
        if (j == segment) {
            h->told_op = to;
            return;
        }
    }
}

/* The clock of struct ls_run. */

static bool issued(void *context, uint32_t r, uint32_t segment, const struct ls_table *t, const struct ls_task *s)
{
    struct sim *x = context;
    struct stream *q = &x->stream[r * x->run.p.streams + s->stream];
    const struct thread *h = &x->thread[r * x->run.p.threads + s->thread];
    if (q->alarm_ps > x->now) /* asked before, of the same op: nothing makes the host faster */
        return false;
    if (q->busy_ps || segment < h->segment || (segment == h->segment && s->op < h->op))
        return true;
    uint64_t time = issue_time(x, r, s->thread, segment, timing_of(x, t)->last[s->op] + 1);
    if (time <= x->now)
        return true;
    alarm_at(x, &q->alarm_ps, time, r);
    return false;
}

static bool worked(void *context, uint32_t r, uint32_t segment, const struct ls_table *t, const struct ls_task *s)
{
    struct sim *x = context;
    struct stream *q = &x->stream[r * x->run.p.streams + s->stream];
    if (!q->busy_ps) {
        uint64_t ps = timing_of(x, t)->work_ps[s - t->step];
        if (ps)
            ps = ls_cost_scale_ps(x->cost, ps, full_rank(x, r), segment, s->op);
        q->ready_ps = x->now;
        if (ps) {
            q->busy_ps = x->now + ps;
            ls_queue_push(&x->queue, q->busy_ps, (uint64_t)EVENT_WAKE << 62 | r);
            return false;
        }
    } else if (q->busy_ps > x->now)
        return false;
    q->busy_ps = 0;
    done(x, r, segment, t, s->op, q->head_ps, q->ready_ps, q->ready_ps);
    q->head_ps = x->now;
    return true;
}

static void waiting(void *context, uint32_t r, uint32_t segment, const struct ls_table *t, const struct ls_task *s)
{
    struct sim *x = context;
    struct stream *q = &x->stream[r * x->run.p.streams + s->stream];
    (void)segment, (void)t, (void)s;
    if (!q->waits)
        q->ready_ps = x->now;
    q->waits = true;
}

static void waited(void *context, uint32_t r, uint32_t segment, const struct ls_table *t, const struct ls_task *s)
{
    struct sim *x = context;
    struct stream *q = &x->stream[r * x->run.p.streams + s->stream];
    done(x, r, segment, t, s->op, q->head_ps, q->waits ? q->ready_ps : x->now, x->now);
    q->head_ps = x->now;
    q->waits = false;
}

static void started(void *context, uint32_t r, uint32_t segment, const struct ls_table *t, const struct ls_task *first)
{
    struct sim *x = context;
    size_t at = r * x->run.p.streams + first->stream;
    (void)segment;
    x->stream[at].ready_ps = x->now;
    for (uint32_t i = 0; x->o->patience && i < first->bundle; i++) {
        uint64_t ps = x->o->patience[t->from->op[first[i].op].comm].ps;
        if (ps && first[i].class == LS_TASK_MEET)
            ls_queue_push(&x->queue, x->now + ps, (uint64_t)EVENT_PATIENCE << 62 | at);
    }
}

static size_t meeting_of_step(const struct sim *x, uint32_t r, const struct ls_task *s)
{
    const struct ls_run *m = &x->run;
    if (s->class == LS_TASK_MEET)
        return m->p.group_base[s->fifo] + m->p.job->comm[s->fifo].group[r];
    return m->p.group_base[m->p.comms] + ls_port_find(&m->p, r, s->fifo);
}

static void left(void *context, uint32_t r, uint32_t segment, const struct ls_table *t, const struct ls_task *first)
{
    struct sim *x = context;
    struct stream *q = &x->stream[r * x->run.p.streams + first->stream];
    for (uint32_t i = 0; i < first->bundle; i++) {
        uint64_t met = x->meeting[meeting_of_step(x, r, first + i)].met_ps;
        done(x, r, segment, t, first[i].op, q->head_ps, q->ready_ps, met > q->ready_ps ? met : q->ready_ps);
    }
    q->head_ps = x->now;
}

static bool reached(void *context, uint32_t r, uint32_t thread, uint32_t segment, const struct ls_table *t, const struct ls_point *p)
{
    struct sim *x = context;
    struct thread *h = &x->thread[r * x->run.p.threads + thread];
    uint32_t to = p->op + (p->kind != LS_POINT_PATH);
    (void)t;
    if (h->alarm_ps > x->now)
        return false;
    if (segment < h->segment || (segment == h->segment && to <= h->op))
        return true;
    tell_host(x, r, thread, segment, to);
    h->reach_ps = issue_time(x, r, thread, segment, to);
    if (h->reach_ps <= x->now)
        return true;
    alarm_at(x, &h->alarm_ps, h->reach_ps, r);
    return false;
}

static void resumed(void *context, uint32_t r, uint32_t thread, uint32_t segment, uint32_t op, const struct ls_point *p)
{
    struct sim *x = context;
    struct thread *h = &x->thread[r * x->run.p.threads + thread];
    const struct ls_table *t = ls_table_at(&x->run, r, segment);
    uint64_t base = x->now;
    if (segment < h->segment || (segment == h->segment && op < h->op))
        return;
    if (p && p->kind == LS_POINT_EVENT)
        done(x, r, segment, t, p->op, h->reach_ps, h->reach_ps, x->now);
    if (!p) { /* the bound was lifted: it may not have got there yet */
        tell_host(x, r, thread, segment, op);
        uint64_t reach = issue_time(x, r, thread, segment, op);
        base = reach > base ? reach : base;
    } else if (p->kind == LS_POINT_EVENT || p->kind == LS_POINT_STEP)
        base += x->now > h->reach_ps ? x->platform->sync_ps : 0;
    h->base_ps = base;
    h->segment = segment;
    h->op = op;
    h->reach_ps = base;
}

/* A place where ops meet: the group, or the receiver's port. */
static struct meeting *meeting_of(struct sim *x, uint64_t item)
{
    return &x->meeting[(item >> 32 == LS_ITEM_MEETING ? 0 : x->run.p.group_base[x->run.p.comms]) + (uint32_t)item];
}

static const struct ls_op *head_op(const struct ls_run *m, uint32_t r, uint64_t key)
{
    const struct ls_table *t = ls_table_at(m, r, ls_key_segment(key));
    return &t->from->op[t->step[t->fifo_step[ls_key_index(key)]].op];
}

/* Starts what follows the latency: flows of every group that this one stands for, or the end. */
static void latency_over(struct sim *x, uint64_t item, struct ls_network *net)
{
    struct ls_run *m = &x->run;
    struct meeting *meeting = meeting_of(x, item);
    meeting->flows = 0;
    if (item >> 32 == LS_ITEM_MEETING) {
        uint32_t c = ls_comm_of_group(m, (uint32_t)item), g = (uint32_t)item - m->p.group_base[c];
        uint32_t r = m->p.job->comm[c].rank[m->p.job->comm[c].first[g]];
        const struct ls_op *op = head_op(m, r, m->fifo[r * m->p.comms + c]);
        size_t i = x->fold ? x->fold->group_first[c][g] : g, end = x->fold ? x->fold->group_first[c][g + 1] : (size_t)g + 1;
        for (; i < end; i++)
            meeting->flows += ls_traffic_start(&x->traffic, c, x->fold ? x->fold->group_list[c][i] : (uint32_t)i, op, x->o->network, net, item);
    } else {
        uint32_t receiver = (uint32_t)item, sender = m->p.port[receiver].partner;
        const struct ls_op *op = head_op(m, m->p.port[receiver].rank, m->port[receiver].next);
        meeting->flows += ls_traffic_start_pair(&x->traffic, m->p.port[sender].rank, m->p.port[receiver].rank, op, x->o->network, net, item);
    }
    if (!meeting->flows)
        ls_run_complete(m, item);
}

static void met(void *context, uint64_t item)
{
    struct sim *x = context;
    struct ls_run *m = &x->run;
    struct meeting *meeting = meeting_of(x, item);
    uint64_t latency = 0;
    meeting->met_ps = x->now;
    meeting->end_ps = 0;
    if (item >> 32 == LS_ITEM_MEETING) {
        uint32_t c = ls_comm_of_group(m, (uint32_t)item), g = (uint32_t)item - m->p.group_base[c];
        uint32_t r = m->p.job->comm[c].rank[m->p.job->comm[c].first[g]];
        uint32_t full = x->fold ? x->fold->group_list[c][x->fold->group_first[c][g]] : g;
        latency = ls_traffic_latency_ps(&x->traffic, c, full, head_op(m, r, m->fifo[r * m->p.comms + c]));
    } else if (item >> 32 == LS_ITEM_PAIR) {
        uint32_t receiver = (uint32_t)item, sender = m->p.port[receiver].partner;
        uint64_t from = m->buffered ? m->port[sender].match : m->port[sender].next;
        const struct ls_op *send = head_op(m, m->p.port[sender].rank, from), *recv = head_op(m, m->p.port[receiver].rank, m->port[receiver].next);
        x->meeting[m->p.group_base[m->p.comms] + sender].met_ps = x->now;
        enum ls_diff d = ls_op_diff(m->p.job->tables, send, recv);
        if (d != LS_DIFF_NONE && !(x->o->run.as_nccl && strcmp(ls_diff_seen_as(d, send, recv), "silent") == 0)) { /* they never pair: the machine notes it, in no time */
            ls_push(&m->full, item);
            return;
        }
        latency = ls_traffic_latency_pair_ps(&x->traffic, m->p.port[sender].rank, m->p.port[receiver].rank, recv);
    } else { /* a buffered send is done when it is handed over */
        ls_push(&m->full, item);
        return;
    }
    ls_queue_push(&x->queue, x->now + latency, (uint64_t)EVENT_LATENCY << 62 | item);
}

static void flow_ended(struct sim *x, uint64_t item)
{
    struct meeting *m = meeting_of(x, item);
    assert(m->flows);
    /* Groups that one stands for must end together, or their members are not alike after all. */
    if (x->fold && m->end_ps && m->end_ps != x->now && !x->o->uncoupled)
        x->uneven = true;
    m->end_ps = x->now;
    if (--m->flows == 0)
        ls_run_complete(&x->run, item);
}

/* The bundle that this stream waits in: its first task, or NULL. */
static const struct ls_task *waiting_bundle(const struct sim *x, size_t at, uint32_t *r, const struct ls_table **t)
{
    *r = (uint32_t)(at / x->run.p.streams);
    if (!x->run.left[at])
        return NULL;
    *t = ls_table_at(&x->run, *r, ls_key_segment(x->run.head[at]));
    return &(*t)->step[ls_key_index(x->run.head[at])];
}

/* Those whose patience may be over: still the same op, and not all of its members have come? */
static void patience_over(struct sim *x, size_t at)
{
    struct ls_run *m = &x->run;
    const struct ls_table *t;
    uint32_t r;
    const struct ls_task *first = waiting_bundle(x, at, &r, &t);
    for (uint32_t i = 0; first && i < first->bundle; i++) {
        uint16_t comm = t->from->op[first[i].op].comm;
        const struct ls_patience *p = &x->o->patience[comm];
        bool paired;
        if (first[i].class != LS_TASK_MEET || !p->ps || x->stream[at].ready_ps + p->ps != x->now ||
            !ls_heads_fifo(m, r, ls_key_segment(m->head[at]), &first[i], &paired))
            continue;
        const struct ls_groups *g = &m->p.job->comm[first[i].fifo];
        uint32_t group = g->group[r], id = m->p.group_base[first[i].fifo] + group;
        if (m->meeting[id].lost || (m->meeting[id].arrived == g->first[group + 1] - g->first[group] && !m->meeting[id].bad))
            continue;
        if (!x->result->given_up++) {
            x->result->gave_up = r;
            x->result->gave_up_comm = comm;
            x->result->gave_up_ps = x->now;
        }
        ls_run_give_up(m, id, p->how);
        return;
    }
}

/* Looks for collectives over the watchdog's limit. False: the job ends here. */
static bool watch(struct sim *x, bool pending)
{
    uint64_t oldest = UINT64_MAX;
    size_t streams = x->run.p.job->ranks * x->run.p.streams;
    for (size_t at = 0; at < streams; at++) {
        const struct ls_table *t;
        uint32_t r;
        const struct ls_task *first = waiting_bundle(x, at, &r, &t);
        for (uint32_t i = 0; first && i < first->bundle; i++)
            if ((!x->o->patience || !x->o->patience[t->from->op[first[i].op].comm].ps) && x->stream[at].ready_ps < oldest) {
                oldest = x->stream[at].ready_ps;
                x->result->killed_at = (struct ls_at){ r, ls_key_segment(x->run.head[at]), first[i].op };
            }
    }
    if (oldest != UINT64_MAX && oldest + x->o->watchdog_ps <= x->now) {
        x->result->killed = true;
        x->result->killed_ps = oldest + x->o->watchdog_ps;
        return false;
    }
    x->watch_ps = (oldest == UINT64_MAX ? x->now : oldest) + x->o->watchdog_ps;
    return oldest != UINT64_MAX || pending;
}

/* An event touches a few words in each of a dozen arrays. */
static void soon(void *context, uint64_t what)
{
    const struct sim *x = context;
    const struct ls_run *m = &x->run;
    if (what >> 62 != EVENT_WAKE)
        return;
    size_t r = (uint32_t)what, at = r * m->p.streams, thread = r * m->p.threads;
    __builtin_prefetch(&x->stream[at], 1);
    __builtin_prefetch(&x->stream[at].waits, 1); /* may lie on the next line */
    __builtin_prefetch(&x->thread[thread], 1);
    __builtin_prefetch(&x->thread[thread].op, 1);
    __builtin_prefetch(&m->head[at], 1);
    __builtin_prefetch(&m->left[at], 1);
    __builtin_prefetch(&m->until[thread], 1);
    __builtin_prefetch(&m->point[thread], 1);
    __builtin_prefetch(&m->in_queue[r], 1);
    __builtin_prefetch(&m->steps_done[r], 1);
    __builtin_prefetch(&m->p.table_of[m->p.rank_first[r]]);
    __builtin_prefetch(&x->moved_ps[r], 1);
}

static void body(void *context, struct ls_network *net)
{
    struct sim *x = context;
    const struct ls_network_ops *ops = x->o->network;
    ls_run_to_end(&x->run);
    x->watch_ps = x->o->watchdog_ps ? x->o->watchdog_ps : UINT64_MAX;
    while (!x->uneven) {
        uint64_t time = UINT64_MAX, item;
        bool pending = ls_queue_next(&x->queue, &time), look = x->watch_ps < time;
        if (ops->advance(net, look ? x->watch_ps : time, &x->now, &item)) {
            x->events++;
            flow_ended(x, item);
        } else if (look) {
            if (!watch(x, pending))
                break;
            continue;
        } else if (pending) {
            struct ls_due e;
            assert(x->now == time);
            do { /* all of this instant, in the order in which they were scheduled */
                ls_queue_pop(&x->queue, &e);
                x->events++;
                if (e.what >> 62 == EVENT_WAKE)
                    ls_run_wake(&x->run, (uint32_t)e.what);
                else if (e.what >> 62 == EVENT_LATENCY)
                    latency_over(x, e.what & (((uint64_t)1 << 62) - 1), net);
                else
                    patience_over(x, e.what & (((uint64_t)1 << 62) - 1));
            } while (ls_queue_next(&x->queue, &time) && time == x->now);
        } else
            break;
        ls_run_to_end(&x->run);
    }
    x->net = ops->counts(net);
}

static void set_timing(struct sim *x, struct ls_arena *a)
{
    const struct ls_prepared *p = &x->run.p;
    size_t tables = 0;
    for (size_t i = 0; i < p->rank_first[p->job->ranks]; i++)
        tables = p->table_of[i] + (size_t)1 > tables ? p->table_of[i] + (size_t)1 : tables;
    x->timing = LS_NEW(a, struct timing, tables);
    for (size_t k = 0; k < tables; k++) {
        const struct ls_table *t = &p->table[k];
        struct timing *w = &x->timing[k];
        size_t n = t->from->count, steps = t->stream_first[p->streams];
        w->work_ps = LS_NEW(a, uint64_t, steps);
        w->host = LS_NEW(a, uint32_t, n);
        w->last = LS_NEW(a, uint32_t, n);
        w->until = LS_NEW(a, uint64_t *, p->threads);
        for (size_t s = 0; s < steps; s++) {
            const struct ls_op *op = &t->from->op[t->step[s].op];
            if (op->kind == LS_OP_COMPUTE || op->kind == LS_OP_COPY_IN || op->kind == LS_OP_COPY_OUT)
                w->work_ps[s] = ls_cost_compute_ps(x->cost, x->platform, p->job->tables, op);
        }
        for (size_t h = 0; h < p->threads; h++) {
            w->until[h] = LS_NEW(a, uint64_t, n + 1);
            for (size_t i = 0; i < n; i++)
                w->until[h][i + 1] = w->until[h][i] + (t->from->op[i].thread == h ? ls_cost_issue_ps(x->cost, x->platform, p->job->tables,
                                                                                                     &t->from->op[i]) : 0);
            /* A fused group is launched at its end. */
            for (uint32_t i = t->thread_first[h + 1], end = LS_NO_ID; i-- > t->thread_first[h];) {
                const struct ls_task *s = &t->step[t->thread_step[i]];
                w->last[s->op] = end == LS_NO_ID ? s->op : end;
                end = s->joined ? w->last[s->op] : LS_NO_ID;
            }
        }
        for (uint32_t i = 0; i < n; i++)
            if (t->from->op[i].kind == LS_OP_ALLOC || t->from->op[i].kind == LS_OP_FREE || t->from->op[i].kind == LS_OP_MARK)
                w->host[w->hosts++] = i;
    }
}

/* Threads that got to their ends: when they issued their last ops. */
static void end_threads(struct sim *x)
{
    for (uint32_t r = 0; r < x->run.p.job->ranks; r++)
        for (uint32_t h = 0; h < x->run.p.threads; h++) {
            size_t n = ls_segments(&x->run, r);
            if (n == 0 || ls_key_segment(x->run.point[r * x->run.p.threads + h]) < n)
                continue;
            uint32_t last = (uint32_t)n - 1, ops = (uint32_t)ls_table_at(&x->run, r, last)->from->count;
            if (x->thread[r * x->run.p.threads + h].segment <= last) {
                tell_host(x, r, h, last, ops);
                uint64_t end = issue_time(x, r, h, last, ops);
                x->moved_ps[r] = end > x->moved_ps[r] ? end : x->moved_ps[r];
            }
        }
}

/* Ops of a rank, those on sides not taken left out. */
static size_t count_ops(const struct sim *x, uint32_t r)
{
    size_t ops = 0;
    for (uint32_t j = 0; j < ls_segments(&x->run, r); j++) {
        const struct ls_table *t = ls_table_at(&x->run, r, j);
        for (size_t i = 0; t->decides && i < t->from->count; i++)
            ops += ls_guard_state(&x->run, r, j, t->guard_of_op[i]) == LS_BRANCH_TAKEN;
        ops += t->decides ? 0 : t->from->count;
    }
    return ops;
}

static enum ls_code finish(struct sim *x, struct ls_arena *arena, struct ls_sim_result *out, struct ls_error *err)
{
    const struct ls_job *job = x->run.p.job;
    out->silent = x->run.silent;
    if (x->o->run.as_nccl || x->o->patience || x->o->watchdog_ps) /* verdicts are about runs of the machine alone */
        out->outcome = (struct ls_outcome){ .verdict = ls_outcome_finished(&x->run) ? LS_SAFE : LS_HANG };
    else
        ls_outcome_read(&x->run, arena, &out->outcome);
    out->complete = out->outcome.verdict == LS_SAFE;
    out->rank_end_ps = LS_NEW(arena, uint64_t, x->full->ranks);
    out->class_of = LS_NEW(arena, uint32_t, x->full->ranks);
    out->classes = job->ranks;
    out->end_ps = 0;
    end_threads(x);
    for (uint32_t r = 0; r < x->full->ranks; r++) {
        uint32_t q = x->fold ? x->fold->class_of[r] : r;
        out->class_of[r] = full_rank(x, q);
        out->rank_end_ps[r] = x->moved_ps[q];
        out->end_ps = x->moved_ps[q] > out->end_ps ? x->moved_ps[q] : out->end_ps;
    }
    out->events = x->events;
    out->flows = x->net.flows;
    out->solves = x->net.solves;
    if (!x->fold)
        return LS_OK;
    if (!out->complete) /* the places, and every rank's ops, are those of the whole job */
        return ls_machine_run(x->full, &x->o->run, arena, &out->outcome, err);
    size_t completed = 0, collectives = 0;
    for (uint32_t q = 0; q < job->ranks; q++)
        completed += count_ops(x, q) * x->fold->size[q];
    for (uint32_t c = 0; c < x->run.p.comms; c++)
        for (size_t g = 0; g < job->comm[c].groups; g++)
            collectives += x->run.meeting[x->run.p.group_base[c] + g].done * (x->fold->group_first[c][g + 1] - x->fold->group_first[c][g]);
    out->outcome.completed = out->outcome.issued = completed;
    out->outcome.collectives = collectives;
    return LS_OK;
}

static enum ls_code simulate(struct sim *x, const struct ls_job *job, struct ls_arena *arena, struct ls_sim_result *out, struct ls_error *err)
{
    struct ls_arena scratch;
    ls_arena_init(&scratch, 0);
    struct ls_run_clock clock = { .context = x, .issued = issued, .worked = worked, .waiting = waiting, .waited = waited,
                                  .started = started, .left = left, .reached = reached, .resumed = resumed, .met = met };
    enum ls_code rc = ls_run_open(&x->run, job, &x->o->run, &scratch, err);
    if (rc == LS_OK) {
        const struct ls_prepared *p = &x->run.p;
        x->run.clock = &clock;
        ls_queue_init(&x->queue);
        x->queue.soon = soon;
        x->queue.soon_context = x;
        x->stream = LS_NEW(&scratch, struct stream, ls_mul_size(job->ranks, p->streams));
        x->thread = LS_NEW(&scratch, struct thread, ls_mul_size(job->ranks, p->threads));
        x->moved_ps = LS_NEW(&scratch, uint64_t, job->ranks);
        x->meeting = LS_NEW(&scratch, struct meeting, p->group_base[p->comms] + p->port_first[job->ranks]);
        set_timing(x, &scratch);
        struct ls_net_plan plan;
        ls_traffic_open(&x->traffic, x->full, x->platform, x->cost->measured, x->cost->tokens, x->o->uncoupled, &scratch, &plan);
        plan.setup = x->o->network_setup;
        rc = x->o->network->run(&plan, body, x, err);
        if (rc == LS_OK && !x->uneven)
            rc = finish(x, arena, out, err);
        ls_traffic_close(&x->traffic);
        ls_queue_release(&x->queue);
        ls_run_close(&x->run);
    }
    ls_arena_release(&scratch);
    return rc;
}

enum ls_code ls_sim_run(const struct ls_job *job, const struct ls_platform *platform, const struct ls_cost *cost,
                        const struct ls_sim_options *options, struct ls_arena *arena, struct ls_sim_result *out, struct ls_error *err)
{
    struct ls_sim_options o = *options;
    struct ls_sim_fold fold;
    struct ls_arena scratch;
    *out = (struct ls_sim_result){ 0 };
    if (job->ranks > platform->nodes * platform->gpus)
        return ls_fail(err, LS_EINPUT, LS_NOWHERE, "%zu ranks need more GPUs than the %zu x %zu of platform '%s'", job->ranks,
                       platform->nodes, platform->gpus, platform->name);
    if (!o.network)
        o.network = &ls_network_maxmin;
    o.run.seed = 0;
    o.run.choose = NULL;
    ls_arena_init(&scratch, 0);
    struct sim x = { .full = job, .platform = platform, .cost = cost, .o = &o };
    enum ls_code rc = LS_OK;
    x.result = out;
    if (o.fold && !o.patience && !o.watchdog_ps && !o.run.as_nccl && ls_sim_fold_job(job, platform, cost, &scratch, &fold)) {
        x.fold = &fold;
        rc = simulate(&x, &fold.job, arena, out, err);
    } else
        x.uneven = true;
    if (rc == LS_OK && x.uneven) {
        x = (struct sim){ .full = job, .platform = platform, .cost = cost, .o = &o, .result = out };
        rc = simulate(&x, job, arena, out, err);
    }
    ls_arena_release(&scratch);
    return rc;
}
