#include "brute.h"

#include "base/hash.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum ls_verdict ls_brute_run(const struct ls_system *s, const struct ls_assignment *a)
{
    struct ls_arena arena;
    struct ls_job job;
    struct ls_outcome outcome = { 0 };
    struct ls_run_options o = { .level = (enum ls_level)s->level, .kernels = s->kernels, .start = (enum ls_start)s->start_rule };
    ls_arena_init(&arena, 0);
    enum ls_code rc = ls_system_job(s, a, &arena, &job, NULL);
    if (rc == LS_OK)
        rc = ls_machine_run(&job, &o, &arena, &outcome, NULL);
    assert(rc == LS_OK);
    (void)rc;
    ls_arena_release(&arena);
    return outcome.verdict;
}

/* Given sizes are as given, a dimension that does not exist has one place, and groups of neighbours fill the others. */
static bool sizes_fit(const struct ls_system *s, const size_t size[LS_FREE_DIMS])
{
    for (size_t d = 0; d < LS_FREE_DIMS; d++) {
        if (!(s->free_dims >> d & 1) ? size[d] != 1 : size[d] < 2 || (s->size[d] && s->size[d] != size[d]))
            return false;
        for (size_t c = 0; c < s->replica->tables->comm.count; c++) {
            const struct ls_comm_info *i = &s->replica->tables->comm.at[c];
            if (!(s->free_dims >> d & 1) || s->size[d] || !(i->free_dims >> d & 1))
                continue;
            if ((i->small && size[d] % i->small) || (i->across && (size[d] % i->across || size[d] < 2 * (size_t)i->across)))
                return false;
        }
    }
    return true;
}

bool ls_brute_allowed(const struct ls_system *s, const struct ls_assignment *a)
{
    size_t replicas = a->size[0] * a->size[1];
    const struct ls_contract *c = &s->contract;
    if (!sizes_fit(s, a->size))
        return false;
    for (size_t r = 0; r < a->rounds; r++) {
        size_t media = 0, media_possible = 0;
        const uint64_t *set = s->driver.node[a->node[r]].allowed;
        for (uint32_t z = 0; z < s->replica->letters; z++)
            media_possible += (!set || (set[z / 64] >> z % 64 & 1)) && (c->media >> z & 1);
        for (size_t x = 0; x < replicas; x++) {
            uint32_t z = a->letter[r * replicas + x];
            if (set && !(set[z / 64] >> z % 64 & 1))
                return false;
            media += c->media >> z & 1;
            for (size_t y = 0; y < x; y++)
                for (size_t i = 0; i < c->levels; i++) {
                    bool same = true;
                    if (c->dims[i] & LS_DIM_REPLICATE)
                        same = same && x / a->size[1] == y / a->size[1];
                    if (c->dims[i] & LS_DIM_SHARD)
                        same = same && x % a->size[1] == y % a->size[1];
                    uint32_t w = a->letter[r * replicas + y];
                    if (same && (c->class_of[i] ? c->class_of[i][z] != c->class_of[i][w] : z != w))
                        return false;
                }
        }
        if (c->extra == LS_CONTRACT_AT_LEAST_ONE && media_possible && !media)
            return false;
        if (c->extra == LS_CONTRACT_AT_MOST && media > c->bound)
            return false;
    }
    return true;
}

struct brute {
    const struct ls_system *s;
    const struct ls_brute_options *o;
    struct ls_arena *arena;
    struct ls_brute *out;
    uint64_t random;
    size_t size[LS_FREE_DIMS];
    uint32_t *node, *letter;
};

static void run(struct brute *b, size_t rounds)
{
    struct ls_assignment a = { { b->size[0], b->size[1] }, rounds, b->node, b->letter };
    size_t replicas = b->size[0] * b->size[1];
    if (!ls_brute_allowed(b->s, &a))
        return;
    b->out->runs++;
    enum ls_verdict v = ls_brute_run(b->s, &a);
    if (v == LS_SAFE || b->out->failed)
        return;
    b->out->failed = true;
    b->out->verdict = v;
    a.node = ls_arena_copy(b->arena, b->node, rounds * sizeof *b->node);
    a.letter = ls_arena_copy(b->arena, b->letter, rounds * replicas * sizeof *b->letter);
    b->out->worst = a;
}

/* A random assignment that the contract may allow: letters copied along the coordinates of each level. */
static void draw(struct brute *b, size_t rounds)
{
    size_t replicas = b->size[0] * b->size[1], letters = b->s->replica->letters;
    for (size_t r = 0; r < rounds; r++) {
        struct ls_assignment a = { { b->size[0], b->size[1] }, 1, b->node + r, b->letter + r * replicas };
        size_t tries = 0;
        do
            for (size_t x = 0; x < replicas; x++)
                b->letter[r * replicas + x] = (uint32_t)ls_random_below(&b->random, letters);
        while (!ls_brute_allowed(b->s, &a) && ++tries < 200);
    }
}

/* All rows (one round) that the contract allows, then all sequences of rows. */
static void all_letters(struct brute *b, size_t rounds)
{
    size_t replicas = b->size[0] * b->size[1], letters = b->s->replica->letters;
    struct ls_arena scratch;
    ls_arena_init(&scratch, 0);
    uint32_t **row = LS_NEW(&scratch, uint32_t *, rounds);
    size_t *rows = LS_NEW(&scratch, size_t, rounds), *at = LS_NEW(&scratch, size_t, rounds);
    double total = 1;
    for (size_t r = 0; r < rounds; r++) {
        LS_VEC(uint32_t) list = { 0 };
        uint32_t *now = LS_NEW(&scratch, uint32_t, replicas);
        for (bool more = true; more;) {
            struct ls_assignment a = { { b->size[0], b->size[1] }, 1, b->node + r, now };
            if (ls_brute_allowed(b->s, &a)) {
                for (size_t x = 0; x < replicas; x++)
                    ls_push(&list, now[x]);
                rows[r]++;
            }
            size_t x = replicas;
            while (x > 0 && ++now[x - 1] == letters)
                now[--x] = 0;
            more = x > 0;
        }
        row[r] = ls_arena_copy(&scratch, list.at, list.count * sizeof *list.at);
        ls_vec_release(&list);
        total *= (double)rows[r];
    }
    size_t limit = b->o->runs_max, done = 0;
    for (bool more = total > 0; more && !b->out->failed;) {
        if (limit && done >= limit) {
            b->out->complete = false;
            for (size_t i = 0; i < limit && !b->out->failed; i++) {
                draw(b, rounds);
                run(b, rounds);
            }
            break;
        }
        for (size_t r = 0; r < rounds; r++)
            memcpy(b->letter + r * replicas, row[r] + at[r] * replicas, replicas * sizeof *b->letter);
        run(b, rounds);
        done++;
        size_t r = rounds;
        while (r > 0 && ++at[r - 1] == rows[r - 1])
            at[--r] = 0;
        more = r > 0;
    }
    ls_arena_release(&scratch);
}

static void all_paths(struct brute *b, size_t rounds, size_t length, uint32_t node)
{
    const struct ls_driver_node *d = &b->s->driver.node[node];
    bool stop = d->nexts == 0;
    b->node[length] = node;
    for (size_t i = 0; i < d->nexts; i++)
        stop = stop || b->s->driver.node[d->next[i]].may_stop;
    if (length + 1 == rounds) {
        if (stop)
            all_letters(b, rounds);
        return;
    }
    for (size_t i = 0; i < d->nexts && !b->out->failed; i++)
        all_paths(b, rounds, length + 1, d->next[i]);
}

void ls_brute_force(const struct ls_system *s, const struct ls_brute_options *o, struct ls_arena *arena, struct ls_brute *out)
{
    struct brute b = { .s = s, .o = o, .arena = arena, .out = out, .random = o->seed };
    *out = (struct ls_brute){ .complete = true };
    b.node = LS_NEW(arena, uint32_t, o->rounds_max);
    b.letter = LS_NEW(arena, uint32_t, o->rounds_max * o->replicas_max);
    for (size_t replicas = 1; replicas <= o->replicas_max && !out->failed; replicas++)
        for (size_t rounds = 1; rounds <= o->rounds_max && !out->failed; rounds++)
            for (size_t r = 1; r <= replicas && !out->failed; r++) {
                if (replicas % r)
                    continue;
                b.size[0] = r;
                b.size[1] = replicas / r;
                if (!sizes_fit(s, b.size) || (o->below_replicas && !(replicas < o->below_replicas || (replicas == o->below_replicas && rounds < o->below_rounds))))
                    continue;
                if (o->total_max && out->runs >= o->total_max) {
                    out->complete = false;
                    return;
                }
                all_paths(&b, rounds, 0, 0);
            }
}
