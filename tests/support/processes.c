#include "processes.h"

#include "base/hash.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct letter { struct letter *next; void *at; size_t bytes; };
struct box { struct letter *head, **tail; };
struct post {
    pthread_mutex_t lock;
    size_t processes, per, messages;
    uint64_t seed;
    struct box *box; /* [from][to] */
};
struct world { struct ls_world w; struct post *post; uint64_t random; };

static void *take(size_t bytes)
{
    void *p = calloc(1, bytes + 1);
    if (!p)
        ls_out_of_memory(bytes);
    return p;
}

struct post *post_open(size_t processes, size_t ranks_per_process, uint64_t seed)
{
    struct post *p = take(sizeof *p);
    *p = (struct post){ .processes = processes, .per = ranks_per_process, .seed = seed, .box = take(processes * processes * sizeof *p->box) };
    pthread_mutex_init(&p->lock, NULL);
    for (size_t i = 0; i < processes * processes; i++)
        p->box[i].tail = &p->box[i].head;
    return p;
}

void post_close(struct post *p)
{
    for (size_t i = 0; i < p->processes * p->processes; i++)
        for (struct letter *l = p->box[i].head, *next; l; l = next) {
            next = l->next;
            free(l->at);
            free(l);
        }
    pthread_mutex_destroy(&p->lock);
    free(p->box);
    free(p);
}

size_t post_messages(const struct post *p) { return p->messages; }

static enum ls_code post_send(struct ls_world *w, size_t to, void *at, size_t bytes, struct ls_error *err)
{
    struct post *p = ((struct world *)w)->post;
    struct letter *l = take(sizeof *l);
    (void)err;
    *l = (struct letter){ NULL, at, bytes };
    pthread_mutex_lock(&p->lock);
    struct box *b = &p->box[w->number * p->processes + to];
    *b->tail = l;
    b->tail = &l->next;
    p->messages++;
    pthread_mutex_unlock(&p->lock);
    return LS_OK;
}

static enum ls_code post_receive(struct ls_world *w, struct ls_message *out, struct ls_error *err)
{
    struct world *x = (struct world *)w;
    struct post *p = x->post;
    size_t from = ls_random_below(&x->random, p->processes);
    struct letter *l = NULL;
    (void)err;
    pthread_mutex_lock(&p->lock);
    struct box *b = &p->box[from * p->processes + w->number];
    if (b->head && ls_random_below(&x->random, 4)) {
        l = b->head;
        b->head = l->next;
        if (!b->head)
            b->tail = &b->head;
    }
    pthread_mutex_unlock(&p->lock);
    *out = (struct ls_message){ from, l ? l->at : NULL, l ? l->bytes : 0 };
    free(l);
    return LS_OK;
}

static void post_leave(struct ls_world *w)
{
    ls_world_release(w);
    free(w);
}

static const struct ls_world_ops ops = { "post", post_send, post_receive, post_leave };

struct ls_world *post_world(struct post *p, size_t number)
{
    struct world *x = take(sizeof *x);
    *x = (struct world){ .w = { .ops = &ops, .processes = p->processes, .number = number, .ranks_per_process = p->per }, .post = p,
                         .random = ls_hash_mix(p->seed, number) };
    return &x->w;
}

struct job {
    pthread_t id;
    struct post *post;
    size_t number;
    const struct ls_engine_setup *setup;
    const struct ls_engine_options *o;
    bool gradients;
    struct ls_arena arena;
    struct ls_replay out;
    enum ls_code rc;
    struct ls_error err;
};

static void *run_process(void *argument)
{
    struct job *j = argument;
    struct ls_engine_options o = *j->o;
    struct ls_world *w = post_world(j->post, j->number);
    o.world = w;
    o.seed = o.seed ? ls_hash_mix(o.seed, j->number) : 0;
    j->rc = ls_replay_run(j->setup, &o, j->gradients, &j->arena, &j->out, &j->err);
    w->ops->close(w);
    return NULL;
}

static bool same_memory(const struct ls_memory *a, const struct ls_memory *b)
{
    return memcmp(a, b, sizeof *a) == 0;
}

static bool same_at(struct ls_at a, struct ls_at b)
{
    return a.rank == b.rank && a.segment == b.segment && a.op == b.op;
}

#define SAME(what, x, y)                                                                                     \
    do                                                                                                       \
        if ((x) != (y)) {                                                                                    \
            ls_str_printf(why, "%s: %llu and %llu\n", what, (unsigned long long)(x), (unsigned long long)(y)); \
            return false;                                                                                    \
        }                                                                                                    \
    while (0)

static bool has_threads(const struct ls_job *job, size_t rank)
{
    for (size_t s = 0; s < job->rank[rank].count; s++)
        for (size_t i = 0; i < job->rank[rank].segment[s]->count; i++)
            if (job->rank[rank].segment[s]->op[i].thread)
                return true;
    return false;
}

static bool same_calls(const struct ls_calls *a, const struct ls_calls *b, bool any_order)
{
    bool same = a->count == b->count;
    for (size_t i = 0; i < a->count && same; i++) {
        size_t found = 0;
        for (size_t k = 0; k < b->count && any_order; k++)
            found += same_at(a->at[i], b->at[k]);
        same = any_order ? found == 1 : same_at(a->at[i], b->at[i]);
    }
    return same;
}

bool replays_equal(const struct ls_engine_setup *setup, const struct ls_replay *a, const struct ls_replay *b, struct ls_str *why)
{
    const struct ls_outcome *x = &a->observed.outcome, *y = &b->observed.outcome;
    SAME("verdict", a->verdict, b->verdict);
    SAME("outcome", x->verdict, y->verdict);
    SAME("difference", x->diff, y->diff);
    SAME("communicator", x->comm, y->comm);
    SAME("group", x->group, y->group);
    SAME("position", x->position, y->position);
    SAME("missing rank", x->missing_rank, y->missing_rank);
    SAME("a", same_at(x->a, y->a), true);
    SAME("b", same_at(x->b, y->b), true);
    SAME("completed", x->completed, y->completed);
    SAME("issued", x->issued, y->issued);
    SAME("collectives", x->collectives, y->collectives);
    SAME("clashes", a->observed.clashes, b->observed.clashes);
    SAME("silent", a->observed.silent, b->observed.silent);
    SAME("races", a->observed.races, b->observed.races);
    for (size_t i = 0; i < a->observed.races; i++)
        SAME("race", memcmp(&a->observed.race[i], &b->observed.race[i], sizeof a->observed.race[i]), 0);
    SAME("pending ops", x->pending_count, y->pending_count);
    for (size_t i = 0; i < x->pending_count; i++) {
        SAME("pending op", same_at(x->pending[i].at, y->pending[i].at), true);
        SAME("what it waits for", same_at(x->pending[i].on, y->pending[i].on), true);
        SAME("why", x->pending[i].why, y->pending[i].why);
    }
    SAME("cycle", x->cycle_count, y->cycle_count);
    for (size_t i = 0; i < x->cycle_count; i++)
        SAME("op of the cycle", same_at(x->cycle[i], y->cycle[i]), true);
    bool same_peaks = true;
    for (size_t r = 0; r < setup->job->ranks; r++) {
        bool threads = has_threads(setup->job, r); /* of one rank take memory and make calls in an order of their own */
        SAME("memory", threads || same_memory(&a->observed.memory[r], &b->observed.memory[r]), true);
        SAME("calls", same_calls(&a->observed.call[r], &b->observed.call[r], threads), true);
        same_peaks = same_peaks && !threads;
    }
    SAME("memory as the program says", !same_peaks || a->memory_equal == b->memory_equal, true);
    if (a->verdict == LS_RACE) /* what is read where nothing waits depends on the schedule */
        return true;
    const struct ls_symbolic *s = &a->symbolic, *t = &b->symbolic;
    SAME("gradients compared", s->gradients, t->gradients);
    SAME("parameters compared", s->parameters, t->parameters);
    SAME("corrupted", s->corrupted, t->corrupted);
    SAME("wrong gradient", s->problem.present, t->problem.present);
    SAME("its parameter", s->problem.param, t->problem.param);
    SAME("its rank", s->problem.rank, t->problem.rank);
    SAME("its element", s->problem.element, t->problem.element);
    SAME("its value", s->problem.found == t->problem.found, true);
    SAME("missing shares", a->share.missing, b->share.missing);
    SAME("share of rank", a->share.rank, b->share.rank);
    SAME("share of microbatch", a->share.microbatch, b->share.microbatch);
    SAME("weight", (uint64_t)a->share.found.num * b->share.found.den, (uint64_t)b->share.found.num * a->share.found.den);
    return true;
}

bool processes_one_end(const struct ls_engine_options *o) { return !o->resident || !o->kernels || o->start == LS_START_ISSUE_ORDER; }

bool processes_replay(const struct ls_engine_setup *setup, const struct ls_engine_options *o, bool gradients, size_t ranks_per_process, uint64_t seed,
                      const struct ls_replay *want, const struct ls_prediction *p, size_t *messages, struct ls_str *why)
{
    size_t n = (setup->job->ranks + ranks_per_process - 1) / ranks_per_process;
    struct post *post = post_open(n, ranks_per_process, seed);
    struct job *j = take(n * sizeof *j);
    bool ok = true;
    for (size_t i = 0; i < n; i++) {
        j[i] = (struct job){ .post = post, .number = i, .setup = setup, .o = o, .gradients = gradients };
        ls_arena_init(&j[i].arena, 0);
        if (pthread_create(&j[i].id, NULL, run_process, &j[i]) != 0)
            abort();
    }
    for (size_t i = 0; i < n; i++)
        pthread_join(j[i].id, NULL);
    for (size_t i = 0; i < n; i++) {
        if (ok && j[i].rc != LS_OK)
            ls_str_printf(why, "process %zu: %s\n", i, j[i].err.text);
        ok = ok && j[i].rc == LS_OK && (processes_one_end(o) || ls_replay_agrees(setup, p, &j[i].out, why)) &&
             replays_equal(setup, processes_one_end(o) ? want : &j[0].out, &j[i].out, why);
        if (!ok)
            ls_str_printf(why, "process %zu of %zu, %zu ranks each\n", i, n, ranks_per_process);
    }
    for (size_t i = 0; i < n; i++)
        ls_arena_release(&j[i].arena);
    *messages += post_messages(post);
    post_close(post);
    free(j);
    return ok;
}
