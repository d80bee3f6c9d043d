#include "check/family.h"

#include <assert.h>
#include <stdlib.h>

static bool equal_programs(const struct ls_rank_program *a, const struct ls_rank_program *b)
{
    if (a->count != b->count)
        return false;
    for (size_t i = 0; i < a->count; i++)
        if (a->segment[i] != b->segment[i])
            return false;
    return true;
}

void ls_family_of_job(const struct ls_job *job, struct ls_arena *arena, struct ls_family *out)
{
    struct ls_family_rank *rank = LS_NEW(arena, struct ls_family_rank, job->ranks);
    for (size_t r = 0; r < job->ranks; r++) {
        const struct ls_rank_program *p = &job->rank[r];
        size_t same = 0; /* ranks that run the same segments share their nodes, so that they count as equal */
        while (same < r && !equal_programs(&job->rank[same], p))
            same++;
        if (same < r) {
            rank[r] = rank[same];
            continue;
        }
        struct ls_choices *node = LS_NEW(arena, struct ls_choices, p->count + 1);
        struct ls_choice *choice = LS_NEW(arena, struct ls_choice, p->count);
        for (size_t i = 0; i < p->count; i++) {
            choice[i] = (struct ls_choice){ p->segment[i], (uint32_t)i + 1, 0 };
            node[i] = (struct ls_choices){ &choice[i], 1 };
        }
        rank[r] = (struct ls_family_rank){ node, p->count + 1 };
    }
    *out = (struct ls_family){ job->tables, job->ranks, rank, job->comm };
}

void ls_family_job(const struct ls_family *f, const uint32_t *const *pick, const size_t *picks, struct ls_arena *arena,
                   struct ls_job *out)
{
    *out = (struct ls_job){ .tables = f->tables, .ranks = f->ranks };
    out->rank = LS_NEW(arena, struct ls_rank_program, f->ranks);
    out->comm = ls_arena_copy(arena, f->comm, ls_mul_size(f->tables->comm.count, sizeof *f->comm));
    for (size_t r = 0; r < f->ranks; r++) {
        const struct ls_choices *node = f->rank[r].node;
        size_t n = 0;
        for (uint32_t at = 0; node[at].count > 0; n++)
            at = node[at].choice[n < picks[r] ? pick[r][n] : 0].next;
        const struct ls_segment **list = LS_NEW(arena, const struct ls_segment *, n);
        uint32_t at = 0;
        for (size_t i = 0; i < n; i++) {
            const struct ls_choice *c = &node[at].choice[i < picks[r] ? pick[r][i] : 0];
            list[i] = c->segment;
            at = c->next;
        }
        out->rank[r] = (struct ls_rank_program){ list, n };
    }
}

/* The next list of one rank in order, or false and the first one. */
static bool next_of_rank(const struct ls_choices *node, uint32_t *pick, size_t *picks, bool first)
{
    uint32_t at = 0;
    size_t n = 0, turn = SIZE_MAX; /* the last place where a later choice exists */
    for (; node[at].count > 0; n++) {
        uint32_t p = first || n >= *picks ? 0 : pick[n];
        pick[n] = p;
        if (p + 1 < node[at].count)
            turn = n;
        at = node[at].choice[p].next;
    }
    bool more = !first && turn != SIZE_MAX;
    if (more) {
        pick[turn]++;
        at = 0;
        for (n = 0; node[at].count > 0; n++) {
            if (n > turn)
                pick[n] = 0;
            at = node[at].choice[pick[n]].next;
        }
    } else if (!first) {
        return next_of_rank(node, pick, picks, true), false;
    }
    *picks = n;
    return true;
}

bool ls_family_next(const struct ls_family *f, uint32_t *const *pick, size_t *picks, size_t nodes_max)
{
    (void)nodes_max;
    bool fresh = true;
    for (size_t r = 0; r < f->ranks; r++)
        fresh = fresh && picks[r] == 0;
    if (fresh) {
        bool any = false;
        for (size_t r = 0; r < f->ranks; r++) {
            next_of_rank(f->rank[r].node, pick[r], &picks[r], true);
            any = any || picks[r] > 0;
        }
        return any; /* ranks that issue nothing: no member to run, and nothing to tell the first call by */
    }
    for (size_t r = 0; r < f->ranks; r++)
        if (next_of_rank(f->rank[r].node, pick[r], &picks[r], false))
            return true;
    return false;
}

/* Longest chain from `at`; depth[] is 0 unknown, 1 on the stack, else length + 2. */
static bool longest(const struct ls_family_rank *r, uint32_t at, size_t *depth)
{
    if (at >= r->nodes || depth[at] == 1)
        return false;
    if (depth[at])
        return true;
    depth[at] = 1;
    size_t most = 0;
    for (size_t i = 0; i < r->node[at].count; i++) {
        const struct ls_choice *c = &r->node[at].choice[i];
        if (!c->segment || !longest(r, c->next, depth))
            return false;
        size_t below = depth[c->next] - 2 + 1;
        most = below > most ? below : most;
    }
    depth[at] = most + 2;
    return true;
}

enum ls_code ls_family_check(const struct ls_family *f, size_t *nodes_max, struct ls_error *err)
{
    *nodes_max = 0;
    for (size_t r = 0; r < f->ranks; r++) {
        size_t *depth = calloc(f->rank[r].nodes + 1, sizeof *depth);
        if (!depth)
            ls_out_of_memory(f->rank[r].nodes * sizeof *depth);
        bool fine = longest(&f->rank[r], 0, depth);
        size_t n = fine ? depth[0] - 2 : 0;
        free(depth);
        if (!fine)
            return ls_fail(err, LS_EINPUT, LS_NOWHERE, "the choices of rank %zu do not end", r);
        *nodes_max = n > *nodes_max ? n : *nodes_max;
    }
    return LS_OK;
}
