#include "check/witness.h"

#include <assert.h>
#include <string.h>

static size_t last(const struct ls_fold *f)
{
    return f->levels - 1;
}

/* Fills an agent's timeline: agent[round] is given for some rounds, and the rest follows: backwards any agent that leads
 * there, forwards any agent that starts there. `up` is the timeline one level up. False if two given rounds do not fit. */
static bool extend(const struct ls_fold *f, const struct ls_path *p, uint32_t level, const uint32_t *up, uint32_t *agent)
{
    size_t known = p->rounds;
    for (size_t r = 0; r < p->rounds && known == p->rounds; r++)
        if (agent[r] != LS_NO_ID)
            known = r;
    if (known == p->rounds)
        known = 0;
    if (agent[known] == LS_NO_ID)
        agent[known] = p->tree[known]->agent[level - 1][up[known]].child;
    if (p->tree[known]->agent[level][agent[known]].parent != up[known])
        return false;
    for (size_t r = known; r-- > 0;) {
        const struct ls_tree *t = p->tree[r];
        const struct ls_agent *above = &t->agent[level - 1][up[r]];
        uint32_t want = p->tree[r + 1]->agent[level][agent[r + 1]].place;
        for (uint32_t k = 0; k < above->children && agent[r] == LS_NO_ID; k++)
            if (ls_fold_successor(f, t, level, above->child + k, p->tree[r + 1]) == want)
                agent[r] = above->child + k;
        if (agent[r] == LS_NO_ID)
            return false;
    }
    for (size_t r = known; r + 1 < p->rounds; r++) {
        const struct ls_tree *next = p->tree[r + 1];
        const struct ls_agent *above = &next->agent[level - 1][up[r + 1]];
        uint32_t place = ls_fold_successor(f, p->tree[r], level, agent[r], next);
        for (uint32_t k = 0; k < above->children && agent[r + 1] == LS_NO_ID; k++)
            if (next->agent[level][above->child + k].place == place)
                agent[r + 1] = above->child + k;
        if (agent[r + 1] == LS_NO_ID || next->agent[level][agent[r + 1]].place != place ||
            next->agent[level][agent[r + 1]].parent != up[r + 1])
            return false;
    }
    return true;
}

static uint32_t *unknown(size_t rounds, struct ls_arena *arena)
{
    uint32_t *line = LS_NEW(arena, uint32_t, rounds);
    memset(line, 0xff, rounds * sizeof *line);
    return line;
}

/* The timelines of one replica, by level; line[last] is the leaf's. */
struct history { uint32_t *line[LS_LEVELS_MAX]; };

/* Completes a replica's history: it shares `with`'s agents down to `level`, and has the leaf agents given in `leaf`. */
static bool make_history(const struct ls_fold *f, const struct ls_path *p, const struct history *with, size_t level, const uint32_t *leaf,
                         struct ls_arena *arena, struct history *out)
{
    out->line[0] = LS_NEW(arena, uint32_t, p->rounds); /* the whole job: agent 0 in every round */
    for (uint32_t i = 1; i < f->levels; i++) {
        out->line[i] = unknown(p->rounds, arena);
        if (with && i <= level) {
            memcpy(out->line[i], with->line[i], p->rounds * sizeof *out->line[i]);
            continue;
        }
        for (size_t r = 0; r < p->rounds; r++)
            if (leaf[r] != LS_NO_ID)
                out->line[i][r] = ls_fold_scope(f, p->tree[r], leaf[r], i);
        if (!extend(f, p, i, out->line[i - 1], out->line[i]))
            return false;
    }
    for (size_t r = 0; r < p->rounds; r++)
        if (leaf[r] != LS_NO_ID && out->line[last(f)][r] != leaf[r])
            return false;
    return true;
}

static uint32_t letter_of(const struct ls_fold *f, const struct ls_path *p, const struct history *h, size_t round)
{
    return p->tree[round]->agent[last(f)][h->line[last(f)][round]].klass;
}

/* Is there a letter at this node that the contract counts? */
static uint32_t media_letter(const struct ls_system *s, uint32_t node)
{
    const uint64_t *set = s->driver.node[node].allowed;
    for (uint32_t z = 0; z < s->replica->letters && z < 64; z++)
        if ((s->contract.media >> z & 1) && (!set || (set[0] >> z & 1)))
            return z;
    return LS_NO_ID;
}

bool ls_contract_allows(const struct ls_system *s, const struct ls_assignment *a)
{
    size_t replicas = a->size[0] * a->size[1];
    const struct ls_contract *c = &s->contract;
    for (size_t r = 0; r < a->rounds; r++) {
        const uint32_t *letter = a->letter + r * replicas;
        size_t media = 0;
        for (size_t x = 0; x < replicas; x++)
            media += letter[x] < 64 && (c->media >> letter[x] & 1);
        if (c->extra == LS_CONTRACT_AT_LEAST_ONE && !media && media_letter(s, a->node[r]) != LS_NO_ID)
            return false;
        if (c->extra == LS_CONTRACT_AT_MOST && media > c->bound)
            return false;
        for (size_t i = 0; i < c->levels; i++)
            for (size_t x = 0; x < replicas; x++)
                for (size_t y = 0; y < x; y++) {
                    uint32_t differ = (x / a->size[1] != y / a->size[1] ? LS_DIM_REPLICATE : 0) |
                                      (x % a->size[1] != y % a->size[1] ? LS_DIM_SHARD : 0);
                    const uint32_t *k = c->class_of[i];
                    if (!(differ & c->dims[i]) && (k ? k[letter[x]] != k[letter[y]] : letter[x] != letter[y]))
                        return false;
                }
    }
    return true;
}

/* Replica positions with a history each; the others copy the one that shares their deepest agent. */
struct spot { size_t at[LS_FREE_DIMS]; const struct history *history; };

/* Sizes: what the spots need, at least two in a dimension that exists, exactly the given size where one is given. */
static bool choose_sizes(const struct ls_fold *f, const size_t need[LS_FREE_DIMS], size_t size[LS_FREE_DIMS])
{
    for (size_t d = 0; d < LS_FREE_DIMS; d++) {
        uint32_t dim = 1u << d;
        size[d] = 1;
        if (!(f->system->free_dims & dim))
            continue;
        size_t step, least;
        ls_system_sizes(f->system, d, &step, &least);
        size[d] = need[d] > least ? need[d] : least;
        if (size[d] % step)
            size[d] += step - size[d] % step;
        if (f->system->size[d] && need[d] > f->system->size[d])
            return false;
        if (f->system->size[d])
            size[d] = f->system->size[d];
    }
    return true;
}

/* The nearest end of the job after the last round: everybody takes the same letter, which every contract allows. */
static size_t completion(const struct ls_fold *f, uint32_t node, uint32_t *out)
{
    const struct ls_driver *d = &f->system->driver;
    size_t n = 0;
    while (!ls_fold_may_stop_after(f, node)) {
        uint32_t best = d->node[node].next[0];
        for (size_t i = 1; i < d->node[node].nexts; i++)
            if (f->driver_distance[d->node[node].next[i]] < f->driver_distance[best])
                best = d->node[node].next[i];
        if (out)
            out[n] = best;
        n++;
        node = best;
    }
    return n;
}

static uint32_t first_allowed(const struct ls_fold *f, uint32_t node)
{
    uint32_t z = f->system->contract.extra == LS_CONTRACT_AT_LEAST_ONE ? media_letter(f->system, node) : LS_NO_ID;
    if (z != LS_NO_ID)
        return z;
    z = 0;
    while (!ls_fold_allowed(f, node, z) ||
           (f->system->contract.extra == LS_CONTRACT_AT_MOST && z < 64 && (f->system->contract.media >> z & 1) &&
            z + 1 < f->system->replica->letters))
        z++;
    return z;
}

static const struct history *history_at(const struct ls_fold *f, const struct spot *spot, size_t spots, const size_t at[LS_FREE_DIMS])
{
    for (size_t level = f->levels; level-- > 0;)
        for (size_t i = 0; i < spots; i++) {
            bool shares = true;
            for (size_t d = 0; d < LS_FREE_DIMS; d++)
                shares = shares && (!(f->dims[level] >> d & 1) || spot[i].at[d] == at[d]);
            if (shares)
                return spot[i].history;
        }
    return spot[0].history;
}

static bool assign(const struct ls_fold *f, const struct ls_path *p, const struct spot *spot, size_t spots,
                   const size_t need[LS_FREE_DIMS], struct ls_arena *arena, struct ls_assignment *out)
{
    const struct ls_system *s = f->system;
    size_t size[LS_FREE_DIMS], extra[LS_FREE_DIMS] = { SIZE_MAX, SIZE_MAX };
    if (!choose_sizes(f, need, size))
        return false;
    uint32_t end = p->node[p->rounds - 1];
    size_t more = completion(f, end, NULL), rounds = p->rounds + more;
    for (int attempt = 0; attempt < 2; attempt++) {
        size_t replicas = ls_mul_size(size[0], size[1]);
        uint32_t *node = LS_NEW(arena, uint32_t, rounds), *letter = LS_NEW(arena, uint32_t, ls_mul_size(rounds, replicas));
        memcpy(node, p->node, p->rounds * sizeof *node);
        (void)completion(f, end, node + p->rounds);
        for (size_t x = 0; x < replicas; x++) {
            size_t at[LS_FREE_DIMS] = { x / size[1], x % size[1] };
            const struct history *h = history_at(f, spot, spots, at);
            bool special = at[0] == extra[0] || at[1] == extra[1];
            for (size_t r = 0; r < rounds; r++)
                letter[r * replicas + x] = r >= p->rounds || special ? first_allowed(f, node[r]) : letter_of(f, p, h, r);
        }
        *out = (struct ls_assignment){ { size[0], size[1] }, rounds, node, letter };
        if (s->contract.extra == LS_CONTRACT_FREE || ls_contract_allows(s, out))
            return true;
        if (s->contract.extra != LS_CONTRACT_AT_LEAST_ONE || attempt)
            return false;
        /* One more coordinate whose replicas always hold media: it only adds members to groups. */
        bool found = false;
        for (size_t d = LS_FREE_DIMS; d-- > 0 && !found;) {
            if (!(s->free_dims >> d & 1) || (s->size[d] && need[d] >= s->size[d]))
                continue;
            found = true;
            if (!s->size[d]) {
                size_t step, least;
                ls_system_sizes(s, d, &step, &least);
                extra[d] = need[d] > 1 ? need[d] : 1;
                while (size[d] <= extra[d])
                    size[d] += step;
            } else {
                extra[d] = need[d];
            }
        }
        if (!found)
            return false;
    }
    return false;
}

bool ls_witness_of_problem(const struct ls_fold *f, const struct ls_path *p, struct ls_arena *arena, struct ls_assignment *out)
{
    const struct ls_tree *t = p->tree[p->rounds - 1];
    struct history h[2];
    uint32_t *leaf = unknown(p->rounds, arena);
    leaf[p->rounds - 1] = t->a.leaf;
    if (!make_history(f, p, NULL, 0, leaf, arena, &h[0]))
        return false;
    size_t need[LS_FREE_DIMS] = { 1, 1 };
    uint32_t other = t->b.leaf;
    size_t level = t->problem == LS_FOLD_WORDS ? f->level_of[t->comm] : 0;
    if (t->problem == LS_FOLD_STOPS && last(f) > 0) {
        /* A peer that goes on shows what the others do then. */
        for (uint32_t b = 0; b < t->agents[last(f)] && other == t->a.leaf; b++) {
            bool stops = false;
            for (size_t y = 0; y < f->roles; y++)
                stops = stops || t->digest[b * f->roles + y]->stops;
            if (!stops)
                other = b;
        }
    }
    struct spot spot[2] = { { { 0, 0 }, &h[0] }, { { 0, 0 }, &h[0] } };
    size_t spots = 1;
    if (other != t->a.leaf) {
        leaf[p->rounds - 1] = other;
        if (!make_history(f, p, &h[0], level, leaf, arena, &h[1]))
            return false;
        uint32_t spans = t->problem == LS_FOLD_WORDS ? f->system->replica->tables->comm.at[t->comm].free_dims : ~0u;
        assert(level + 1 < f->levels); /* members of a group inside one replica have one leaf */
        uint32_t dims = spans & f->dims[level + 1] & f->system->free_dims;
        size_t d = dims & LS_DIM_SHARD ? 1 : 0;
        assert(dims);
        spot[1].at[d] = 1;
        spot[1].history = &h[1];
        need[d] = 2;
        spots = 2;
    }
    return assign(f, p, spot, spots, need, arena, out);
}

bool ls_witness_of_leaf(const struct ls_fold *f, const struct ls_path *p, uint32_t leaf, struct ls_arena *arena, struct ls_assignment *out)
{
    uint32_t *line = unknown(p->rounds, arena);
    struct history h;
    line[p->rounds - 1] = leaf;
    struct spot spot = { { 0, 0 }, &h };
    return make_history(f, p, NULL, 0, line, arena, &h) && assign(f, p, &spot, 1, (size_t[LS_FREE_DIMS]){ 1, 1 }, arena, out);
}

bool ls_witness_of_cycle(const struct ls_fold *f, const struct ls_path *p, size_t first, const struct ls_cycle *c, struct ls_arena *arena,
                         struct ls_assignment *out)
{
    size_t m = c->count;
    if (m == 0)
        return false;
    /* Start after a collective of the least level: all others then lie within what the first stretch shares. */
    size_t start = 0;
    for (size_t i = 0; i < m && m > 1; i++)
        if (f->level_of[c->stretch[(i + m - 1) % m].comm] < f->level_of[c->stretch[(start + m - 1) % m].comm])
            start = i;
    struct history *h = LS_NEW(arena, struct history, m);
    for (size_t i = 0; i < m;) {
        /* Stretches joined below level 0 share agents: fix those of all of them before any one is extended. */
        size_t end = i + 1;
        while (end < m && f->level_of[c->stretch[(start + end - 1) % m].comm] > 0)
            end++;
        struct history shared = { 0 };
        shared.line[0] = LS_NEW(arena, uint32_t, p->rounds);
        size_t deepest = last(f) > 0 ? last(f) - 1 : 0;
        for (uint32_t level = 1; level <= deepest; level++) {
            shared.line[level] = unknown(p->rounds, arena);
            for (size_t k = i; k < end; k++) {
                const struct ls_stretch *s = &c->stretch[(start + k) % m];
                for (uint32_t r = s->first; r <= s->last; r++) {
                    if (s->leaf[r] == LS_NO_ID)
                        continue;
                    uint32_t at = ls_fold_scope(f, p->tree[first + r], s->leaf[r], level), *slot = &shared.line[level][first + r];
                    if (*slot != LS_NO_ID && *slot != at)
                        return false;
                    *slot = at;
                }
            }
            if (!extend(f, p, level, shared.line[level - 1], shared.line[level]))
                return false;
        }
        for (size_t k = i; k < end; k++) {
            const struct ls_stretch *s = &c->stretch[(start + k) % m];
            uint32_t *leaf = unknown(p->rounds, arena);
            for (uint32_t r = s->first; r <= s->last; r++)
                leaf[first + r] = s->leaf[r];
            if (!make_history(f, p, &shared, deepest, leaf, arena, &h[k]))
                return false;
        }
        i = end;
    }
    size_t dims = (size_t)__builtin_popcount(f->system->free_dims);
    size_t laps = m > 1 && dims > 1 ? 2 : 1, moves = m > 1 ? m * laps : 1;
    struct spot *spot = LS_NEW(arena, struct spot, moves);
    size_t need[LS_FREE_DIMS] = { 1, 1 };
    for (size_t i = 0; i < moves; i++)
        spot[i].history = &h[i % m];
    for (size_t d = 0; d < LS_FREE_DIMS && m > 1; d++) {
        /* A coordinate is its latest move: 0 if there is none, else the moves of the walk in order, cyclically. */
        size_t count = 0;
        for (size_t i = 0; i < moves; i++) {
            uint32_t comm = c->stretch[(start + i) % m].comm;
            count += (f->system->replica->tables->comm.at[comm].free_dims & f->system->free_dims) >> d & 1;
        }
        size_t now = 0;
        for (size_t i = 0; i < moves; i++) {
            spot[i].at[d] = count ? now % count : 0;
            uint32_t comm = c->stretch[(start + i) % m].comm;
            now += (f->system->replica->tables->comm.at[comm].free_dims & f->system->free_dims) >> d & 1;
        }
        need[d] = count ? count : 1;
    }
    return assign(f, p, spot, moves, need, arena, out);
}
