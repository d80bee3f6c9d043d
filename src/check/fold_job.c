#include "check/fold_job.h"

#include <string.h>

/* What decides the outcome of an agent's part of a round: a program, or a set of such keys. LS_NO_ID: all its leaves are absent. */
static uint32_t key_of(const struct ls_fold *f, const struct ls_tree *t, size_t level, uint32_t agent, const bool *absent, struct ls_intern *keys)
{
    ls_word_vec word = { 0 };
    if (level == f->levels - 1) {
        if (absent && absent[agent])
            return LS_NO_ID;
        ls_push(&word, UINT32_MAX); /* told apart from sets */
        for (size_t y = 0; y < f->roles; y++)
            ls_push(&word, t->digest[agent * f->roles + y]->id);
    } else {
        const struct ls_agent *a = &t->agent[level][agent];
        for (uint32_t k = 0; k < a->children; k++) {
            uint32_t key = key_of(f, t, level + 1, a->child + k, absent, keys);
            if (key != LS_NO_ID)
                ls_push(&word, key);
        }
        word.count = ls_words_sort(word.at, word.count);
    }
    uint32_t id = word.count ? ls_intern_put(keys, word.at, word.count) : LS_NO_ID;
    ls_vec_release(&word);
    return id;
}

uint32_t ls_fold_key(const struct ls_fold *f, const struct ls_tree *t, struct ls_intern *keys)
{
    return key_of(f, t, 0, 0, NULL, keys);
}

struct kept { uint32_t *agent[LS_LEVELS_MAX]; size_t count[LS_LEVELS_MAX]; };

/* Keeps one agent of each key below a kept parent. */
static void keep(const struct ls_fold *f, const struct ls_tree *t, size_t level, uint32_t agent, const bool *absent, struct ls_intern *keys,
                 struct kept *k)
{
    k->agent[level][k->count[level]++] = agent;
    if (level == f->levels - 1)
        return;
    const struct ls_agent *a = &t->agent[level][agent];
    ls_word_vec seen = { 0 };
    for (uint32_t i = 0; i < a->children; i++) {
        uint32_t key = key_of(f, t, level + 1, a->child + i, absent, keys);
        bool old = key == LS_NO_ID;
        for (size_t j = 0; j < seen.count && !old; j++)
            old = seen.at[j] == key;
        if (old)
            continue;
        ls_push(&seen, key);
        keep(f, t, level + 1, a->child + i, absent, keys, k);
    }
    ls_vec_release(&seen);
}

void ls_fold_job(const struct ls_fold *f, const struct ls_tree *t, const bool *absent, struct ls_arena *arena, struct ls_job *out,
                 const uint32_t **leaf)
{
    struct ls_intern keys = { 0 };
    struct kept k = { 0 };
    size_t l = f->levels - 1;
    for (size_t i = 0; i <= l; i++)
        k.agent[i] = LS_NEW(arena, uint32_t, t->agents[i]);
    keep(f, t, 0, 0, absent, &keys, &k);
    ls_intern_release(&keys);
    size_t leaves = k.count[l], ranks = leaves * f->roles;
    *leaf = k.agent[l];
    *out = (struct ls_job){ .tables = f->system->replica->tables, .ranks = ranks };
    out->rank = LS_NEW(arena, struct ls_rank_program, ranks);
    out->comm = LS_NEW(arena, struct ls_groups, f->comms);
    for (size_t r = 0; r < ranks; r++) {
        const struct ls_segment **one = LS_NEW(arena, const struct ls_segment *, 1);
        one[0] = t->digest[k.agent[l][r / f->roles] * f->roles + r % f->roles]->segment;
        out->rank[r] = (struct ls_rank_program){ one, 1 };
    }
    for (size_t c = 0; c < f->comms; c++) {
        struct ls_groups *g = &out->comm[c];
        const uint32_t *order = f->system->comm[c].order;
        g->group = LS_NEW(arena, uint32_t, ranks);
        g->member = LS_NEW(arena, uint32_t, ranks);
        g->rank = LS_NEW(arena, uint32_t, ranks);
        g->first = LS_NEW(arena, uint32_t, ranks + 1);
        memset(g->group, 0xff, ranks * sizeof *g->group);
        memset(g->member, 0xff, ranks * sizeof *g->member);
        uint32_t *sorted = LS_NEW(arena, uint32_t, f->roles), filled = 0;
        for (uint32_t y = 0; y < f->roles; y++) {
            uint32_t at = y;
            for (; order && at > 0 && order[sorted[at - 1]] > order[y]; at--)
                sorted[at] = sorted[at - 1];
            sorted[at] = y;
        }
        /* Leaves of one scope are consecutive, since agents are kept depth first. */
        for (size_t x = 0, end; x < leaves; x = end) {
            uint32_t scope = ls_fold_scope(f, t, k.agent[l][x], f->level_of[c]);
            for (end = x; end < leaves && ls_fold_scope(f, t, k.agent[l][end], f->level_of[c]) == scope;)
                end++;
            for (uint32_t p = 0; p < f->foldeds; p++) {
                if (f->comm_of[p] != c)
                    continue;
                uint32_t members = 0;
                for (size_t i = x; i < end; i++)
                    for (size_t y = 0; y < f->roles; y++) {
                        size_t rank = i * f->roles + sorted[y];
                        if (f->folded[sorted[y] * f->comms + c] != p)
                            continue;
                        g->group[rank] = (uint32_t)g->groups;
                        g->member[rank] = members++;
                        g->rank[filled++] = (uint32_t)rank;
                    }
                g->first[++g->groups] = filled;
            }
        }
    }
}
