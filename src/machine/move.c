#include "machine/move.h"

#include "base/hash.h"
#include "machine/meet.h"

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
            ls_run_arrive(x, r, t, first + i);
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
            if (ls_guard_state(x, r, j, t->step[t->kernel[i]].guard) != LS_BRANCH_SKIPPED)
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
        ls_guard_state(x, r, j, first->guard) != LS_BRANCH_TAKEN)
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
            enum ls_branch taken = ls_guard_state(x, r, j, step->guard);
            if (taken == LS_BRANCH_OPEN)
                break;
            if (taken == LS_BRANCH_SKIPPED) {
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
        enum ls_branch taken = ls_guard_state(x, r, j, s->guard);
        if (taken == LS_BRANCH_OPEN || (taken == LS_BRANCH_TAKEN && !s->joined && x->out_now[at] >= x->o->run_ahead)) {
            x->until[at] = here;
            x->bounded[at] = taken == LS_BRANCH_TAKEN;
            return false;
        }
        if (x->clock && x->bounded[at])
            x->clock->resumed(x->clock->context, r, thread, j, s->op, NULL);
        x->bounded[at] = false;
        x->out_now[at] += taken == LS_BRANCH_TAKEN;
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
        enum ls_branch taken = ls_guard_state(x, r, j, q->guard);
        if (taken == LS_BRANCH_SKIPPED) {
            x->point[at]++;
            moved = true;
            continue;
        }
        bool holds = taken == LS_BRANCH_TAKEN && q->kind != LS_POINT_PATH; /* then the op itself is issued, too */
        bool there = issue_to(x, r, thread, ls_key(j, (uint64_t)q->op + holds));
        moved |= x->until[at] != before;
        if (!there || taken == LS_BRANCH_OPEN)
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
