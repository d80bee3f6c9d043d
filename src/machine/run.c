#include "machine/run.h"

#include <string.h>

enum ls_branch ls_guard_state(const struct ls_run *x, uint32_t r, uint32_t segment, uint32_t guard)
{
    if (guard == LS_NO_ID)
        return LS_BRANCH_TAKEN;
    const struct ls_table *t = ls_table_at(x, r, segment);
    unsigned char value = x->decided[x->p.decide_first[x->p.rank_first[r] + segment] + guard / 2];
    if (value)
        return (guard % 2 == 0) == (value == 1) ? LS_BRANCH_TAKEN : LS_BRANCH_SKIPPED;
    return ls_guard_state(x, r, segment, t->decide[guard / 2].guard) == LS_BRANCH_SKIPPED ? LS_BRANCH_SKIPPED : LS_BRANCH_OPEN;
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
            enum ls_branch taken = ls_guard_state(x, r, segment, s->guard);
            if (taken == LS_BRANCH_SKIPPED)
                continue;
            if (taken == LS_BRANCH_TAKEN && ls_step_done(x, r, segment, t, record))
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

uint64_t ls_fifo_skip(const struct ls_run *x, uint32_t r, uint32_t comm, uint64_t key)
{
    uint32_t j = ls_key_segment(key), i = ls_key_index(key);
    for (size_t n = ls_segments(x, r); j < n;) {
        const struct ls_table *t = ls_table_at(x, r, j);
        for (; i < t->comm_first[comm + 1]; i++) {
            uint32_t guard = t->step[t->fifo_step[i]].guard;
            if (guard == LS_NO_ID || ls_guard_state(x, r, j, guard) != LS_BRANCH_SKIPPED)
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

uint64_t ls_port_skip(const struct ls_run *x, uint32_t r, uint32_t id, uint64_t key)
{
    uint32_t j = ls_key_segment(key), i = ls_key_index(key), first, end;
    for (size_t n = ls_segments(x, r); j < n; j++, i = 0) {
        const struct ls_table *t = ls_table_at(x, r, j);
        if (!port_range(t, id, &first, &end))
            continue;
        for (i = i < first ? first : i; i < end; i++)
            if (ls_guard_state(x, r, j, t->step[t->fifo_step[i]].guard) != LS_BRANCH_SKIPPED)
                return ls_key(j, i);
    }
    return ls_key(j, 0);
}

const struct ls_task *ls_fifo_head(const struct ls_run *x, uint32_t r, uint32_t comm, uint64_t *key)
{
    *key = ls_fifo_skip(x, r, comm, x->fifo[r * x->p.comms + comm]);
    if (ls_is_end(x, r, *key))
        return NULL;
    const struct ls_table *t = ls_table_at(x, r, ls_key_segment(*key));
    return &t->step[t->fifo_step[ls_key_index(*key)]];
}

const struct ls_task *ls_port_head(const struct ls_run *x, uint32_t port, uint64_t *key)
{
    const struct ls_port_ref *ref = &x->p.port[port];
    *key = ls_port_skip(x, ref->rank, ref->id, x->port[port].next);
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

bool ls_has_arrived(const struct ls_run *x, uint32_t r, const struct ls_task *s, uint64_t key)
{
    return s && ls_guard_state(x, r, ls_key_segment(key), s->guard) == LS_BRANCH_TAKEN &&
           ls_is_started(x, r, ls_key_segment(key), s);
}

bool ls_host_waits_for(const struct ls_run *x, uint32_t r, uint32_t thread, struct ls_at *on)
{
    size_t at = r * x->p.threads + thread;
    if (ls_is_end(x, r, x->point[at]))
        return false;
    uint32_t j = ls_key_segment(x->point[at]);
    const struct ls_table *t = ls_table_at(x, r, j);
    if (ls_key_index(x->point[at]) >= t->point_first[thread + 1])
        return false;
    const struct ls_point *q = &t->point[ls_key_index(x->point[at])];
    enum ls_branch path = ls_guard_state(x, r, j, q->guard);
    if (path == LS_BRANCH_OPEN) {
        *on = (struct ls_at){ r, j, t->decide[q->guard / 2].op };
        return true;
    }
    *on = (struct ls_at){ r, j, q->kind == LS_POINT_STEP ? t->step[q->step].op : q->op };
    return q->kind != LS_POINT_STOP || !x->stopped[r];
}

bool ls_is_bounded(const struct ls_run *x, uint32_t r, uint32_t thread)
{
    size_t at = r * x->p.threads + thread;
    return x->o->run_ahead && !ls_is_end(x, r, x->ahead[at]) && x->out_now[at] >= x->o->run_ahead;
}

static void set_heads(struct ls_run *x, uint32_t r)
{
    size_t n = ls_segments(x, r);
    const struct ls_table *t = n ? ls_table_at(x, r, 0) : NULL;
    for (size_t s = 0; s < x->p.streams; s++)
        x->head[r * x->p.streams + s] = ls_key(0, t ? t->stream_first[s] : 0);
    for (uint32_t c = 0; c < x->p.comms; c++)
        x->fifo[r * x->p.comms + c] = ls_fifo_skip(x, r, c, ls_key(0, t ? t->comm_first[c] : 0));
    for (size_t k = 0; k < x->p.threads; k++) {
        x->point[r * x->p.threads + k] = ls_key(0, t ? t->point_first[k] : 0);
        if (x->ahead)
            x->ahead[r * x->p.threads + k] = ls_key(0, t ? t->thread_first[k] : 0);
    }
    for (size_t i = x->p.port_first[r]; i < x->p.port_first[r + 1]; i++)
        x->port[i].next = x->port[i].match = ls_port_skip(x, r, x->p.port[i].id, 0);
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
