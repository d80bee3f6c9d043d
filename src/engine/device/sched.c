#include "engine/device/sched.h"

#include "base/arena.h"
#include "base/hash.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

struct thread { struct ls_sched *sched; struct ls_actor *actor; pthread_t id; pthread_cond_t woken; };

struct ls_sched {
    struct ls_sched_options o;
    LS_VEC(struct ls_actor *) actor;
    LS_VEC(struct ls_actor *) ready;  /* cooperative: those that may move, in no order */
    uint64_t random;
    bool stopped;
    unsigned turns;                   /* cooperative: since the outside was asked */
    /* free */
    bool over;                        /* nothing can move, nothing will come */
    pthread_mutex_t lock;
    pthread_cond_t ended;
    size_t live;                      /* actors ready or running */
    struct thread *thread;
};

struct ls_sched *ls_sched_open(const struct ls_sched_options *o)
{
    struct ls_sched *s = calloc(1, sizeof *s);
    if (!s)
        ls_out_of_memory(sizeof *s);
    s->o = *o;
    s->random = o->seed;
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->ended, NULL);
    return s;
}

void ls_sched_close(struct ls_sched *s)
{
    if (!s)
        return;
    ls_vec_release(&s->actor);
    ls_vec_release(&s->ready);
    pthread_cond_destroy(&s->ended);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

static void push_ready(struct ls_sched *s, struct ls_actor *a)
{
    a->state = LS_ACTOR_READY;
    a->place = s->ready.count;
    ls_push(&s->ready, a);
}

void ls_sched_add(struct ls_sched *s, struct ls_actor *a, enum ls_turn (*step)(struct ls_actor *self))
{
    *a = (struct ls_actor){ .step = step, .sched = s, .index = s->actor.count };
    ls_push(&s->actor, a);
    if (!s->o.free)
        push_ready(s, a);
}

void ls_sched_wait(struct ls_actor *a, ls_waiters *on)
{
    for (size_t i = 0; i < on->count; i++)
        if (on->at[i] == a)
            return;
    ls_push(on, a);
}

void ls_sched_wake(struct ls_actor *a)
{
    struct ls_sched *s = a->sched;
    if (a->state == LS_ACTOR_RUNNING)
        a->again = true;
    if (a->state != LS_ACTOR_BLOCKED)
        return;
    if (!s->o.free) {
        push_ready(s, a);
        return;
    }
    a->state = LS_ACTOR_READY;
    s->live++;
    if (s->thread)
        pthread_cond_signal(&s->thread[a->index].woken);
}

void ls_sched_wake_all(ls_waiters *on)
{
    for (size_t i = 0; i < on->count; i++)
        ls_sched_wake(on->at[i]);
    on->count = 0;
}

void ls_sched_leave(struct ls_sched *s)
{
    if (s->o.free)
        pthread_mutex_unlock(&s->lock);
}

void ls_sched_enter(struct ls_sched *s)
{
    if (s->o.free)
        pthread_mutex_lock(&s->lock);
}

static void end_run(struct ls_sched *s)
{
    s->over = true;
    pthread_cond_broadcast(&s->ended);
    for (size_t i = 0; s->thread && i < s->actor.count; i++)
        pthread_cond_signal(&s->thread[i].woken);
}

void ls_sched_stop(struct ls_sched *s)
{
    s->stopped = true;
    if (s->o.free)
        end_run(s);
}

static enum ls_turn take_turn(struct ls_actor *a)
{
    a->state = LS_ACTOR_RUNNING;
    a->again = false;
    enum ls_turn turn = a->step(a);
    /* Woken between finding something missing and giving up: what was missing may be there. */
    return turn == LS_TURN_BLOCKED && a->again ? LS_TURN_MOVED : turn;
}

static struct ls_actor *take_ready(struct ls_sched *s)
{
    size_t pick = 0;
    if (s->o.seed)
        pick = (size_t)ls_random_below(&s->random, s->ready.count);
    else
        for (size_t i = 1; i < s->ready.count; i++)
            if (s->ready.at[i]->index < s->ready.at[pick]->index)
                pick = i;
    struct ls_actor *a = s->ready.at[pick], *last = s->ready.at[--s->ready.count];
    s->ready.at[pick] = last;
    last->place = pick;
    return a;
}

/* Is there anything that may move? */
static bool look_outside(struct ls_sched *s)
{
    enum { TURNS = 32 };
    if (!s->o.outside)
        return s->ready.count > 0;
    if (s->ready.count && ++s->turns < TURNS)
        return true;
    s->turns = 0;
    bool more = s->o.outside(s->o.outside_context, s->ready.count == 0);
    return more || s->ready.count > 0;
}

static enum ls_sched_end run_cooperative(struct ls_sched *s)
{
    while (!s->stopped && look_outside(s) && !s->stopped) {
        if (s->o.interrupted && *s->o.interrupted)
            return LS_SCHED_INTERRUPTED;
        if (!s->ready.count)
            continue;
        struct ls_actor *a = take_ready(s);
        switch (take_turn(a)) {
        case LS_TURN_MOVED:
            push_ready(s, a);
            break;
        case LS_TURN_BLOCKED:
            a->state = LS_ACTOR_BLOCKED;
            break;
        case LS_TURN_ENDED:
            a->state = LS_ACTOR_ENDED;
            break;
        }
    }
    return s->stopped ? LS_SCHED_STOPPED : LS_SCHED_QUIET;
}

static void *run_thread(void *argument)
{
    struct thread *t = argument;
    struct ls_sched *s = t->sched;
    struct ls_actor *a = t->actor;
    pthread_mutex_lock(&s->lock);
    while (!s->stopped && !s->over && a->state != LS_ACTOR_ENDED) {
        if (a->state == LS_ACTOR_BLOCKED) {
            pthread_cond_wait(&t->woken, &s->lock);
            continue;
        }
        switch (take_turn(a)) {
        case LS_TURN_MOVED:
            a->state = LS_ACTOR_READY;
            break;
        case LS_TURN_BLOCKED:
            a->state = LS_ACTOR_BLOCKED;
            s->live--;
            break;
        case LS_TURN_ENDED:
            a->state = LS_ACTOR_ENDED;
            s->live--;
            break;
        }
        if (!s->live && s->o.outside)
            pthread_cond_signal(&s->ended); /* who looks outside decides */
        else if (!s->live)
            end_run(s);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

static void nap(struct ls_sched *s, long ns)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += ns;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_cond_timedwait(&s->ended, &s->lock, &until);
}

static enum ls_code run_free(struct ls_sched *s, enum ls_sched_end *end, struct ls_error *err)
{
    size_t n = s->actor.count, started = 0;
    enum ls_code rc = LS_OK;
    bool interrupted = false;
    pthread_mutex_lock(&s->lock);
    s->thread = calloc(n + 1, sizeof *s->thread);
    if (!s->thread)
        ls_out_of_memory(n * sizeof *s->thread);
    s->live = n;
    for (size_t i = 0; i < n; i++)
        pthread_cond_init(&s->thread[i].woken, NULL);
    for (size_t i = 0; i < n && rc == LS_OK; i++) {
        s->thread[i].sched = s;
        s->thread[i].actor = s->actor.at[i];
        if (pthread_create(&s->thread[i].id, NULL, run_thread, &s->thread[i]) != 0)
            rc = ls_fail(err, LS_EBACKEND, LS_NOWHERE, "thread %zu of %zu could not be created", i + 1, n);
        else
            started++;
    }
    s->stopped = s->stopped || rc != LS_OK;
    while (!s->over && !s->stopped) {
        bool idle = !s->live;
        if (idle && !(s->o.outside && (s->o.outside(s->o.outside_context, true) || s->live)))
            break;
        if (!idle && s->o.outside)
            s->o.outside(s->o.outside_context, false);
        /* Only the outside and an interrupt are looked for in between: a signal handler may not wake a condition. */
        if (!idle && !s->stopped && s->live)
            nap(s, s->o.outside ? 100 * 1000 : 50 * 1000 * 1000);
        if (s->o.interrupted && *s->o.interrupted && (s->live || s->o.outside)) {
            interrupted = true;
            s->stopped = true;
        }
    }
    end_run(s);
    *end = interrupted ? LS_SCHED_INTERRUPTED : s->stopped ? LS_SCHED_STOPPED : LS_SCHED_QUIET;
    pthread_mutex_unlock(&s->lock);
    for (size_t i = 0; i < started; i++)
        pthread_join(s->thread[i].id, NULL);
    for (size_t i = 0; i < n; i++)
        pthread_cond_destroy(&s->thread[i].woken);
    free(s->thread);
    s->thread = NULL;
    return rc;
}

enum ls_code ls_sched_run(struct ls_sched *s, enum ls_sched_end *end, struct ls_error *err)
{
    if (s->o.free)
        return run_free(s, end, err);
    *end = run_cooperative(s);
    return LS_OK;
}
