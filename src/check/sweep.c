#include "check/sweep.h"

#include "base/hash.h"
#include "check/intern.h"
#include "check/proof.h"
#include "check/witness.h"

#include <string.h>

struct sweep {
    const struct ls_system *s;
    const struct ls_sweep_options *o;
    size_t size[LS_FREE_DIMS], replicas;
    uint32_t *node, *letter;
    uint64_t random;
    struct ls_arena *arena;
    struct ls_sweep *out;
    bool starts;   /* some run was not tried in every order of starts */
    size_t orders; /* of starts, in all runs */
    struct ls_error *err;
};

/* Orders of starts: of one run; of all runs of a sweep, and of each run when those are spent; one more by chance for so many. */
enum { STARTS_MAX = 2000, STARTS_OF_SWEEP = 20000, STARTS_LEAST = 4, RANDOM_SHARE = 4 };

static enum ls_code run_orders(const struct ls_system *s, const struct ls_job *job, size_t most, struct ls_arena *arena, struct ls_outcome *out,
                               size_t *orders, bool *complete, struct ls_error *err)
{
    struct ls_run_options o = { .level = (enum ls_level)s->level, .kernels = s->kernels, .start = (enum ls_start)s->start_rule };
    *complete = true;
    *orders = 1;
    if (o.level != LS_L3 || !o.kernels || o.start != LS_START_ANY)
        return ls_machine_run(job, &o, arena, out, err);
    enum ls_code rc = ls_machine_explore_starts(job, &o, most, arena, out, orders, err);
    if (rc != LS_OK || out->verdict != LS_UNDECIDED)
        return rc;
    /* The orders tried differ in their last starts only: a few of any kind. */
    out->verdict = LS_SAFE;
    *complete = false;
    struct ls_arena_mark mark = ls_arena_mark(arena);
    for (o.seed = 1; o.seed <= most / RANDOM_SHARE + 1 && rc == LS_OK && out->verdict == LS_SAFE; o.seed++, ++*orders) {
        ls_arena_rewind(arena, mark);
        rc = ls_machine_run(job, &o, arena, out, err);
    }
    return rc;
}

enum ls_code ls_system_run(const struct ls_system *s, const struct ls_job *job, struct ls_arena *arena, struct ls_outcome *out,
                           bool *complete, struct ls_error *err)
{
    size_t orders;
    bool all;
    enum ls_code rc = run_orders(s, job, STARTS_MAX, arena, out, &orders, &all, err);
    if (complete)
        *complete = all;
    return rc;
}

static bool allowed(const struct sweep *w, size_t round)
{
    struct ls_assignment a = { { w->size[0], w->size[1] }, 1, w->node + round, w->letter + round * w->replicas };
    const uint64_t *set = w->s->driver.node[w->node[round]].allowed;
    for (size_t x = 0; x < w->replicas; x++)
        if (set && !(set[a.letter[x] / 64] >> a.letter[x] % 64 & 1))
            return false;
    return ls_contract_allows(w->s, &a);
}

static enum ls_code run(struct sweep *w, size_t rounds)
{
    struct ls_arena scratch;
    struct ls_job job;
    struct ls_outcome outcome = { 0 };
    struct ls_assignment a = { { w->size[0], w->size[1] }, rounds, w->node, w->letter };
    bool complete = true;
    size_t orders = 0, left = w->orders < STARTS_OF_SWEEP ? STARTS_OF_SWEEP - w->orders : 0;
    size_t most = left > STARTS_MAX ? STARTS_MAX : left > STARTS_LEAST ? left : STARTS_LEAST;
    ls_arena_init(&scratch, 0);
    enum ls_code rc = ls_system_job(w->s, &a, &scratch, &job, w->err);
    if (rc == LS_OK)
        rc = run_orders(w->s, &job, most, &scratch, &outcome, &orders, &complete, w->err);
    w->orders += orders;
    w->starts = w->starts || !complete;
    ls_arena_release(&scratch);
    w->out->runs++;
    if (rc == LS_OK && outcome.verdict != LS_SAFE) {
        w->out->failed = true;
        a.node = ls_arena_copy(w->arena, w->node, rounds * sizeof *w->node);
        a.letter = ls_arena_copy(w->arena, w->letter, rounds * w->replicas * sizeof *w->letter);
        w->out->assignment = a;
    }
    return rc;
}

static bool enough(const struct sweep *w)
{
    return w->out->failed || (w->o->runs_max && w->out->runs >= w->o->runs_max) ||
           (w->o->until > 0 && w->out->runs % 16 == 0 && ls_clock() > w->o->until);
}

/* The next row in lexicographic order that is allowed; false after the last. */
static bool next_row(struct sweep *w, size_t round, bool first)
{
    uint32_t *row = w->letter + round * w->replicas;
    if (first)
        memset(row, 0, w->replicas * sizeof *row);
    for (bool more = true; more; first = false) {
        if (!first) {
            size_t x = w->replicas;
            while (x > 0 && ++row[x - 1] == w->s->replica->letters)
                row[--x] = 0;
            if (x == 0)
                return false;
        }
        if (allowed(w, round))
            return true;
    }
    return false;
}

static enum ls_code in_order(struct sweep *w, size_t rounds, size_t round)
{
    enum ls_code rc = LS_OK;
    if (round == rounds)
        return run(w, rounds);
    for (bool more = next_row(w, round, true); more && rc == LS_OK && !enough(w); more = next_row(w, round, false))
        rc = in_order(w, rounds, round + 1);
    return rc;
}

static enum ls_code at_random(struct sweep *w, size_t rounds)
{
    for (size_t r = 0; r < rounds; r++) {
        size_t tries = 0;
        do
            for (size_t x = 0; x < w->replicas; x++)
                w->letter[r * w->replicas + x] = (uint32_t)ls_random_below(&w->random, w->s->replica->letters);
        while (!allowed(w, r) && ++tries < 1000);
        if (tries == 1000 && !next_row(w, r, true))
            return LS_OK;
    }
    return run(w, rounds);
}

static enum ls_code paths(struct sweep *w, size_t rounds, size_t length, uint32_t node, bool random)
{
    const struct ls_driver_node *d = &w->s->driver.node[node];
    bool stop = d->nexts == 0;
    enum ls_code rc = LS_OK;
    w->node[length] = node;
    for (size_t i = 0; i < d->nexts; i++)
        stop = stop || w->s->driver.node[d->next[i]].may_stop;
    if (length + 1 == rounds)
        return !stop ? LS_OK : random ? at_random(w, rounds) : in_order(w, rounds, 0);
    for (size_t i = 0; i < d->nexts && rc == LS_OK && !enough(w); i++)
        rc = paths(w, rounds, length + 1, d->next[i], random);
    return rc;
}

enum ls_code ls_sweep(const struct ls_system *s, const size_t size[LS_FREE_DIMS], const struct ls_sweep_options *o,
                      struct ls_arena *arena, struct ls_sweep *out, struct ls_error *err)
{
    struct ls_sweep_options half = *o;
    struct sweep w = { .s = s, .o = &half, .size = { size[0], size[1] }, .replicas = size[0] * size[1], .random = o->seed,
                       .arena = arena, .out = out, .err = err };
    *out = (struct ls_sweep){ 0 };
    half.runs_max = o->runs_max / 2;
    w.node = LS_NEW(arena, uint32_t, o->rounds_max);
    w.letter = LS_NEW(arena, uint32_t, ls_mul_size(o->rounds_max, w.replicas));
    enum ls_code rc = LS_OK;
    for (size_t rounds = 1; rounds <= o->rounds_max && rc == LS_OK && !enough(&w); rounds++)
        rc = paths(&w, rounds, 0, 0, false);
    bool all = !enough(&w);
    out->complete = all && !w.starts;
    half.runs_max = o->runs_max;
    for (bool more = !all; more && rc == LS_OK && !enough(&w);) {
        size_t before = out->runs;
        for (size_t rounds = 1; rounds <= o->rounds_max && rc == LS_OK && !enough(&w); rounds++)
            rc = paths(&w, rounds, 0, 0, true);
        more = out->runs > before;
    }
    return rc;
}
