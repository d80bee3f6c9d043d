#include "check/fold.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static size_t last(const struct ls_fold *f)
{
    return f->levels - 1;
}

bool ls_fold_allowed(const struct ls_fold *f, uint32_t node, uint32_t letter)
{
    const uint64_t *set = f->system->driver.node[node].allowed;
    return !set || (set[letter / 64] >> letter % 64 & 1);
}

bool ls_fold_class_allowed(const struct ls_fold *f, uint32_t node, uint32_t klass)
{
    return f->class_allowed[node * f->classes[0] + klass];
}

/* At most so many replicas hold media: no agent takes a class that has nothing else, if more replicas than that are under it. */
static void find_crowds(struct ls_fold *f)
{
    const struct ls_system *s = f->system;
    const size_t nodes = s->driver.nodes;
    for (size_t i = 0; i < f->levels && s->contract.extra == LS_CONTRACT_AT_MOST; i++) {
        size_t replicas = 1;
        for (size_t d = 0; d < LS_FREE_DIMS; d++)
            if (s->free_dims >> d & 1 && !(f->dims[i] >> d & 1))
                replicas = ls_mul_size(replicas, s->size[d] ? s->size[d] : 2);
        f->crowded[i] = LS_NEW(f->arena, bool, nodes * f->classes[i]);
        for (size_t k = 0; k < nodes * f->classes[i]; k++)
            f->crowded[i][k] = replicas > s->contract.bound;
        for (uint32_t n = 0; n < nodes; n++)
            for (uint32_t z = 0; z < s->replica->letters; z++)
                if (ls_fold_allowed(f, n, z) && !(z < 64 && (s->contract.media >> z & 1)))
                    f->crowded[i][n * f->classes[i] + f->class_of[i][z]] = false;
    }
}

/* A schedule letter under which nobody can hold what somebody must hold does not occur. */
static void allow_classes(struct ls_fold *f)
{
    const struct ls_contract *c = &f->system->contract;
    size_t nodes = f->system->driver.nodes;
    bool *counted = LS_NEW(f->arena, bool, nodes * f->classes[0]);
    f->class_allowed = LS_NEW(f->arena, bool, nodes * f->classes[0]);
    for (uint32_t n = 0; n < nodes; n++) {
        bool media = false;
        for (uint32_t z = 0; z < f->system->replica->letters; z++) {
            if (!ls_fold_allowed(f, n, z))
                continue;
            size_t at = n * f->classes[0] + f->class_of[0][z];
            f->class_allowed[at] = true;
            counted[at] = counted[at] || (z < 64 && (c->media >> z & 1));
            media = media || counted[at];
        }
        for (size_t k = 0; k < f->classes[0] && media && c->extra == LS_CONTRACT_AT_LEAST_ONE; k++)
            f->class_allowed[n * f->classes[0] + k] = counted[n * f->classes[0] + k];
        for (size_t k = 0; k < f->classes[0] && f->crowded[0]; k++)
            f->class_allowed[n * f->classes[0] + k] &= !f->crowded[0][n * f->classes[0] + k];
    }
}

bool ls_fold_may_stop_after(const struct ls_fold *f, uint32_t node)
{
    const struct ls_driver_node *n = &f->system->driver.node[node];
    for (size_t i = 0; i < n->nexts; i++)
        if (f->system->driver.node[n->next[i]].may_stop)
            return true;
    return n->nexts == 0;
}

/* Level i's class as the contract means it: together with those of the levels above. Dense, by first letter. */
static enum ls_code add_level(struct ls_fold *f, uint32_t dims, const uint32_t *class_of, size_t letters, bool merge)
{
    uint32_t *dense = LS_NEW(f->arena, uint32_t, letters), classes = 0;
    const uint32_t *above = f->levels ? f->class_of[f->levels - 1] : NULL;
    for (size_t a = 0; a < letters; a++) {
        dense[a] = LS_NO_ID;
        for (size_t b = 0; b < a && dense[a] == LS_NO_ID; b++)
            if ((class_of ? class_of[a] == class_of[b] : a == b) && (!above || above[a] == above[b]))
                dense[a] = dense[b];
        if (dense[a] == LS_NO_ID)
            dense[a] = classes++;
    }
    if (merge)
        f->levels--;
    f->dims[f->levels] = dims;
    f->class_of[f->levels] = dense;
    f->classes[f->levels] = classes;
    f->levels++;
    return LS_OK;
}

static enum ls_code normalise_contract(struct ls_fold *f, struct ls_error *err)
{
    const struct ls_system *s = f->system;
    const struct ls_contract *c = &s->contract;
    size_t letters = s->replica->letters;
    for (size_t i = 0; i < c->levels; i++) {
        uint32_t dims = c->dims[i] & s->free_dims;
        if (i == 0 && dims)
            return ls_fail(err, LS_EINPUT, c->at, "level 0 of a contract is the whole job, but it has coordinates");
        if (i > 0 && (f->dims[f->levels - 1] & ~dims))
            return ls_fail(err, LS_EINPUT, c->at, "level %zu of a contract does not refine the level above", i);
        (void)add_level(f, dims, c->class_of[i], letters, i > 0 && dims == f->dims[f->levels - 1]);
    }
    if (f->levels == 0 || f->dims[f->levels - 1] != s->free_dims || f->classes[f->levels - 1] != letters) {
        bool merge = f->levels > 0 && f->dims[f->levels - 1] == s->free_dims;
        if (f->levels == 0 && s->free_dims) { /* no levels given: every replica chooses */
            uint32_t *one = LS_NEW(f->arena, uint32_t, letters);
            (void)add_level(f, 0, one, letters, false);
        }
        (void)add_level(f, s->free_dims, NULL, letters, merge);
    }
    assert(f->levels <= LS_LEVELS_MAX && f->classes[f->levels - 1] == letters);
    return LS_OK;
}

static void fold_comms(struct ls_fold *f)
{
    const struct ls_system *s = f->system;
    f->folded = LS_NEW(f->arena, uint32_t, f->roles * f->comms);
    f->comm_of = LS_NEW(f->arena, uint32_t, f->roles * f->comms);
    f->level_of = LS_NEW(f->arena, uint8_t, f->comms);
    for (size_t c = 0; c < f->comms; c++) {
        uint32_t spans = s->replica->tables->comm.at[c].free_dims & s->free_dims;
        for (size_t i = 0; i < f->levels; i++)
            if (!(f->dims[i] & spans))
                f->level_of[c] = (uint8_t)i;
        const uint32_t *part = s->comm[c].part;
        for (size_t y = 0; y < f->roles; y++) {
            uint32_t *at = &f->folded[y * f->comms + c];
            *at = LS_NO_ID;
            if (part[y] == LS_NO_ID)
                continue;
            for (size_t z = 0; z < y && *at == LS_NO_ID; z++)
                if (part[z] == part[y])
                    *at = f->folded[z * f->comms + c];
            if (*at == LS_NO_ID) {
                f->comm_of[f->foldeds] = (uint32_t)c;
                *at = (uint32_t)f->foldeds++;
            }
        }
    }
    f->used = LS_NEW(f->arena, bool, f->foldeds);
}

/* Rounds from each node to the nearest stop; from every node a stop must be reachable. */
static enum ls_code driver_distances(struct ls_fold *f, struct ls_error *err)
{
    const struct ls_driver *d = &f->system->driver;
    f->driver_distance = LS_NEW(f->arena, uint32_t, d->nodes);
    for (size_t n = 0; n < d->nodes; n++)
        f->driver_distance[n] = ls_fold_may_stop_after(f, (uint32_t)n) ? 1 : LS_NO_ID;
    for (bool again = true; again;) {
        again = false;
        for (size_t n = 0; n < d->nodes; n++)
            for (size_t i = 0; i < d->node[n].nexts; i++) {
                uint32_t next = f->driver_distance[d->node[n].next[i]];
                if (next != LS_NO_ID && next + 1 < f->driver_distance[n]) {
                    f->driver_distance[n] = next + 1;
                    again = true;
                }
            }
    }
    for (size_t n = 0; n < d->nodes; n++) {
        bool some = false;
        for (uint32_t z = 0; z < f->system->replica->letters && !some; z++)
            some = ls_fold_allowed(f, (uint32_t)n, z);
        if (f->driver_distance[n] == LS_NO_ID || !some)
            return ls_fail(err, LS_EINPUT, f->system->contract.at, "round '%s' %s", d->node[n].name ? d->node[n].name : "",
                           some ? "never leads to an end of the job" : "allows no batch at all");
    }
    return LS_OK;
}

enum ls_code ls_fold_open(struct ls_fold *f, const struct ls_system *s, struct ls_arena *arena, struct ls_error *err)
{
    *f = (struct ls_fold){ .system = s, .roles = s->replica->roles, .comms = s->replica->tables->comm.count, .arena = arena };
    enum ls_code rc = normalise_contract(f, err);
    if (rc == LS_OK)
        rc = driver_distances(f, err);
    if (rc != LS_OK)
        return rc;
    fold_comms(f);
    find_crowds(f);
    allow_classes(f);
    f->digests = ls_digests_open(s->replica->tables, arena);
    return LS_OK;
}

void ls_fold_close(struct ls_fold *f)
{
    ls_digests_close(f->digests);
    ls_intern_release(&f->leaf);
    for (size_t i = 0; i < LS_LEVELS_MAX; i++)
        ls_intern_release(&f->set[i]);
}

uint32_t ls_fold_start(struct ls_fold *f)
{
    uint32_t macro = ls_intern_put(&f->leaf, &f->system->replica->start, 1);
    for (size_t i = last(f); i-- > 0;)
        macro = ls_intern_put(&f->set[i], &macro, 1);
    return macro;
}

/* A leaf is [state, then for each residue: role * comms + comm, length, words...]. */
const uint32_t *ls_fold_residue(const struct ls_fold *f, uint32_t leaf, size_t role, size_t comm, size_t *count)
{
    size_t n;
    const uint32_t *word = ls_intern_at(&f->leaf, leaf, &n);
    for (size_t i = 1; i < n; i += 2 + word[i + 1])
        if (word[i] == role * f->comms + comm) {
            *count = word[i + 1];
            return word + i + 2;
        }
    *count = 0;
    return NULL;
}

uint32_t ls_fold_scope(const struct ls_fold *f, const struct ls_tree *t, uint32_t leaf, size_t level)
{
    uint32_t at = leaf;
    for (size_t i = last(f); i > level; i--)
        at = t->agent[i][at].parent;
    return at;
}

uint32_t ls_fold_leaf_macro(const struct ls_fold *f, const struct ls_tree *t, uint32_t leaf)
{
    return t->place[last(f)][t->agent[last(f)][leaf].place].macro;
}

size_t ls_fold_cut(const struct ls_fold *f, const struct ls_tree *t, uint32_t leaf, size_t role, size_t comm)
{
    return t->cut[ls_fold_scope(f, t, leaf, f->level_of[comm]) * f->foldeds + f->folded[role * f->comms + comm]];
}

uint32_t ls_fold_successor(const struct ls_fold *f, const struct ls_tree *t, uint32_t level, uint32_t agent, const struct ls_tree *next)
{
    if (level == 0)
        return 0;
    const struct ls_agent *a = &t->agent[level][agent];
    uint32_t up = ls_fold_successor(f, t, level - 1, a->parent, next);
    const struct ls_place *p = &next->place[level - 1][up];
    size_t n;
    const uint32_t *sub = ls_intern_at(&f->set[level - 1], p->macro, &n);
    size_t lo = 0, hi = n;
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (sub[mid] < a->next)
            lo = mid + 1;
        else
            hi = mid;
    }
    assert(lo < n && sub[lo] == a->next);
    return p->first + (uint32_t)lo;
}

void ls_fold_places(const struct ls_fold *f, uint32_t macro, struct ls_arena *arena, struct ls_tree *t)
{
    t->place[0] = LS_NEW(arena, struct ls_place, 1);
    t->places[0] = 1;
    t->place[0][0].macro = macro;
    for (size_t i = 1; i < f->levels; i++) {
        size_t count = 0, n;
        for (size_t p = 0; p < t->places[i - 1]; p++) {
            (void)ls_intern_at(&f->set[i - 1], t->place[i - 1][p].macro, &n);
            count += n;
        }
        t->place[i] = LS_NEW(arena, struct ls_place, count);
        for (uint32_t p = 0; p < t->places[i - 1]; p++) {
            const uint32_t *sub = ls_intern_at(&f->set[i - 1], t->place[i - 1][p].macro, &n);
            t->place[i - 1][p].first = (uint32_t)t->places[i];
            for (size_t k = 0; k < n; k++)
                t->place[i][t->places[i]++] = (struct ls_place){ .parent = p, .macro = sub[k] };
        }
    }
}

static void make_agents(const struct ls_fold *f, uint32_t node, uint32_t klass, struct ls_arena *arena, struct ls_tree *t)
{
    size_t letters = f->system->replica->letters;
    t->agent[0] = LS_NEW(arena, struct ls_agent, 1);
    t->agents[0] = 1;
    t->agent[0][0] = (struct ls_agent){ .klass = klass };
    for (size_t i = 1; i < f->levels; i++) {
        /* classes of level i inside each class of level i - 1 that some allowed letter has */
        uint32_t *inside = LS_NEW(arena, uint32_t, f->classes[i]);
        for (size_t k = 0; k < f->classes[i]; k++)
            inside[k] = LS_NO_ID;
        for (uint32_t z = 0; z < letters; z++)
            if (ls_fold_allowed(f, node, z))
                inside[f->class_of[i][z]] = f->class_of[i - 1][z];
        size_t count = 0;
        for (int fill = 0; fill < 2; fill++) {
            if (fill)
                t->agent[i] = LS_NEW(arena, struct ls_agent, count);
            for (uint32_t a = 0; a < t->agents[i - 1]; a++) {
                struct ls_agent *up = &t->agent[i - 1][a];
                const struct ls_place *p = &t->place[i - 1][up->place];
                size_t n;
                (void)ls_intern_at(&f->set[i - 1], p->macro, &n);
                if (fill)
                    up->child = (uint32_t)t->agents[i];
                for (uint32_t k = 0; k < n; k++)
                    for (uint32_t q = 0; q < f->classes[i]; q++) {
                        if (inside[q] != up->klass || (f->crowded[i] && f->crowded[i][node * f->classes[i] + q]))
                            continue;
                        if (fill)
                            t->agent[i][t->agents[i]++] = (struct ls_agent){ .parent = a, .place = p->first + k, .klass = q };
                        else
                            count++;
                    }
                if (fill)
                    up->children = (uint32_t)t->agents[i] - up->child;
            }
        }
    }
    size_t l = last(f);
    for (uint32_t a = 0; a < t->agents[l]; a++) {
        t->agent[l][a].leaf = a;
        t->agent[l][a].leaves = 1;
    }
    for (size_t i = l; i-- > 0;)
        for (uint32_t a = 0; a < t->agents[i]; a++) {
            struct ls_agent *up = &t->agent[i][a];
            up->leaf = t->agent[i + 1][up->child].leaf;
            for (uint32_t k = 0; k < up->children; k++)
                up->leaves += t->agent[i + 1][up->child + k].leaves;
        }
}

/* A word in two pieces: what was left over, and what this round adds. */
struct split { const uint32_t *old, *new; size_t olds, news; };

static struct split word_at(const struct ls_fold *f, const struct ls_tree *t, uint32_t leaf, size_t role, size_t comm)
{
    const struct ls_digest *g = t->digest[leaf * f->roles + role];
    struct split w = { .new = g->word + g->first[comm], .news = g->first[comm + 1] - g->first[comm] };
    w.old = ls_fold_residue(f, ls_fold_leaf_macro(f, t, leaf), role, comm, &w.olds);
    return w;
}

static uint32_t word_get(const struct split *w, size_t i)
{
    return i < w->olds ? w->old[i] : w->new[i - w->olds];
}

static bool comparable(const struct split *a, const struct split *b)
{
    size_t na = a->olds + a->news, nb = b->olds + b->news, n = na < nb ? na : nb;
    if (a->olds == 0 && b->olds == 0)
        return a->new == b->new || n == 0 || memcmp(a->new, b->new, n * sizeof *a->new) == 0;
    for (size_t i = 0; i < n; i++)
        if (word_get(a, i) != word_get(b, i))
            return false;
    return true;
}

/* Compares the words of one folded communicator in one scope; the shortest is what everybody has issued. */
static void compare_scope(const struct ls_fold *f, struct ls_tree *t, size_t level, uint32_t scope, uint32_t folded, bool stop)
{
    uint32_t comm = f->comm_of[folded];
    const struct ls_agent *s = &t->agent[level][scope];
    struct split longest = { 0 }, shortest = { 0 };
    struct ls_fold_pair most = { 0 }, least = { 0 };
    bool first = true;
    for (uint32_t leaf = s->leaf; leaf < s->leaf + s->leaves; leaf++)
        for (uint32_t y = 0; y < f->roles; y++) {
            if (f->folded[y * f->comms + comm] != folded)
                continue;
            struct split w = word_at(f, t, leaf, y, comm);
            size_t n = w.olds + w.news;
            if (!first && !comparable(&w, &longest)) {
                if (t->problem == LS_FOLD_FINE) {
                    t->problem = LS_FOLD_WORDS;
                    t->comm = comm;
                    t->a = most;
                    t->b = (struct ls_fold_pair){ leaf, y };
                }
                return;
            }
            if (first || n > longest.olds + longest.news) {
                longest = w;
                most = (struct ls_fold_pair){ leaf, y };
            }
            if (first || n < shortest.olds + shortest.news) {
                shortest = w;
                least = (struct ls_fold_pair){ leaf, y };
            }
            first = false;
        }
    size_t cut = shortest.olds + shortest.news, end = longest.olds + longest.news;
    if (end > 0)
        f->used[folded] = true;
    t->cut[scope * f->foldeds + folded] = (uint32_t)cut;
    if (end == cut)
        return;
    t->late_after = true;
    if (stop && t->problem == LS_FOLD_FINE) {
        t->problem = LS_FOLD_WORDS;
        t->at_stop = true;
        t->comm = comm;
        t->a = most;
        t->b = least;
    }
}

/* Same state and two residues in one scope: the same future cannot make different pasts equal. */
static void compare_residues(const struct ls_fold *f, struct ls_tree *t, struct ls_arena *arena)
{
    size_t l = last(f);
    if (t->agents[l] < 2)
        return;
    uint32_t *seen = LS_NEW(arena, uint32_t, f->states); /* leaf agent + 1, by state; states are many, leaves few */
    for (size_t c = 0; c < f->comms; c++) {
        size_t level = f->level_of[c];
        for (uint32_t s = 0; s < t->agents[level]; s++) {
            const struct ls_agent *scope = &t->agent[level][s];
            for (uint32_t leaf = scope->leaf; leaf < scope->leaf + scope->leaves; leaf++) {
                uint32_t *other = &seen[t->state[leaf]];
                if (!*other) {
                    *other = leaf + 1;
                    continue;
                }
                for (uint32_t y = 0; y < f->roles; y++) {
                    if (f->folded[y * f->comms + c] == LS_NO_ID)
                        continue;
                    size_t na, nb;
                    (void)ls_fold_residue(f, t->agent[l][leaf].next, y, c, &na);
                    (void)ls_fold_residue(f, t->agent[l][*other - 1].next, y, c, &nb);
                    if (na != nb && t->problem == LS_FOLD_FINE) {
                        t->problem = LS_FOLD_WORDS;
                        t->diverges = true;
                        t->comm = (uint32_t)c;
                        t->a = (struct ls_fold_pair){ na > nb ? leaf : *other - 1, y };
                        t->b = (struct ls_fold_pair){ na > nb ? *other - 1 : leaf, y };
                    }
                }
            }
            for (uint32_t leaf = scope->leaf; leaf < scope->leaf + scope->leaves; leaf++)
                seen[t->state[leaf]] = 0;
        }
    }
}

static uint32_t next_leaf(struct ls_fold *f, const struct ls_tree *t, uint32_t leaf, ls_word_vec *key)
{
    key->count = 0;
    ls_push(key, t->state[leaf]);
    for (uint32_t y = 0; t->late_after && y < f->roles; y++)
        for (uint32_t c = 0; c < f->comms; c++) {
            if (f->folded[y * f->comms + c] == LS_NO_ID)
                continue;
            struct split w = word_at(f, t, leaf, y, c);
            size_t cut = ls_fold_cut(f, t, leaf, y, c), n = w.olds + w.news;
            if (cut >= n)
                continue;
            ls_push(key, (uint32_t)(y * f->comms + c));
            ls_push(key, (uint32_t)(n - cut));
            for (size_t i = cut; i < n; i++)
                ls_push(key, word_get(&w, i));
        }
    return ls_intern_put(&f->leaf, key->at, key->count);
}

static void next_macros(struct ls_fold *f, struct ls_tree *t)
{
    ls_word_vec key = { 0 };
    size_t l = last(f);
    for (uint32_t a = 0; a < t->agents[l]; a++)
        t->agent[l][a].next = next_leaf(f, t, a, &key);
    for (size_t i = l; i-- > 0;)
        for (uint32_t a = 0; a < t->agents[i]; a++) {
            key.count = 0;
            for (uint32_t k = 0; k < t->agent[i][a].children; k++)
                ls_push(&key, t->agent[i + 1][t->agent[i][a].child + k].next);
            key.count = ls_words_sort(key.at, key.count);
            t->agent[i][a].next = ls_intern_put(&f->set[i], key.at, key.count);
        }
    ls_vec_release(&key);
}

static const char *refusal(const struct ls_fold *f, const struct ls_tree *t, uint32_t leaf, uint32_t role)
{
    const struct ls_digest *g = t->digest[leaf * f->roles + role];
    if (g->threads > 1)
        return "several host threads per rank";
    const struct ls_tables *tables = f->system->replica->tables;
    for (size_t i = 0; g->p2p && i < g->count; i++)
        if (ls_op_is_p2p(g->op[i]) && (tables->comm.at[g->op[i]->comm].free_dims & f->system->free_dims))
            return "point-to-point operations between replicas";
    static const char outside[] = "an operation on a communicator that its rank is not part of";
    for (size_t i = 0; g->p2p && i < g->count; i++)
        if (ls_op_is_p2p(g->op[i]) && f->folded[role * f->comms + g->op[i]->comm] == LS_NO_ID)
            return outside;
    for (size_t c = 0; c < f->comms; c++)
        if (g->first[c] < g->first[c + 1] && f->folded[role * f->comms + c] == LS_NO_ID)
            return outside;
    return NULL;
}

/* Do two members of some group contribute different values to the same decide? What is agreed then depends on who is there,
 * and so do the ops that follow. */
static bool values_differ(const struct ls_fold *f, const struct ls_tree *t)
{
    for (uint32_t folded = 0; folded < f->foldeds; folded++) {
        uint32_t comm = f->comm_of[folded];
        size_t level = f->level_of[comm];
        for (uint32_t s = 0; s < t->agents[level]; s++) {
            const struct ls_agent *scope = &t->agent[level][s];
            struct split first = { 0 };
            bool have = false;
            for (uint32_t leaf = scope->leaf; leaf < scope->leaf + scope->leaves; leaf++)
                for (uint32_t y = 0; y < f->roles; y++) {
                    if (f->folded[y * f->comms + comm] != folded)
                        continue;
                    struct split w = word_at(f, t, leaf, y, comm);
                    if (!have)
                        first = w;
                    have = true;
                    for (size_t i = 0; i < w.olds + w.news && i < first.olds + first.news; i++) {
                        uint32_t a = word_get(&w, i), b = word_get(&first, i);
                        if (a == b)
                            continue;
                        const struct ls_op *x = ls_digests_op(f->digests, a), *z = ls_digests_op(f->digests, b);
                        if (x->kind == LS_OP_DECIDE && z->kind == LS_OP_DECIDE &&
                            ls_op_diff(f->system->replica->tables, x, z) == LS_DIFF_NONE)
                            return true;
                        break;
                    }
                }
        }
    }
    return false;
}

enum ls_code ls_fold_round(struct ls_fold *f, uint32_t node, uint32_t macro, uint32_t klass, struct ls_arena *arena,
                           struct ls_tree *t, struct ls_error *err)
{
    struct ls_transducer *replica = f->system->replica;
    size_t l = last(f);
    *t = (struct ls_tree){ 0 };
    ls_fold_places(f, macro, arena, t);
    make_agents(f, node, klass, arena, t);
    t->digest = LS_NEW(arena, const struct ls_digest *, t->agents[l] * f->roles);
    t->state = LS_NEW(arena, uint32_t, t->agents[l]);
    for (uint32_t a = 0; a < t->agents[l]; a++) {
        size_t n;
        uint32_t leaf = ls_fold_leaf_macro(f, t, a);
        const uint32_t *word = ls_intern_at(&f->leaf, leaf, &n);
        t->late_before = t->late_before || n > 1;
        uint32_t letter = t->agent[l][a].klass; /* the last level's classes are the letters */
        struct ls_step step = { 0 };
        enum ls_code rc = replica->step(replica, word[0], f->system->driver.node[node].round, letter, &step, err);
        if (rc != LS_OK)
            return rc;
        t->state[a] = step.next;
        if (step.next >= f->states)
            f->states = (size_t)step.next + 1;
        for (uint32_t y = 0; y < f->roles; y++) {
            const struct ls_digest *g = ls_digest_of(f->digests, step.role[y]);
            t->digest[a * f->roles + y] = g;
            t->ops += g->count;
            t->fused = t->fused || g->fused;
            t->p2p = t->p2p || g->p2p;
            t->decides = t->decides || g->decides;
            if (g->stops && t->problem == LS_FOLD_FINE) {
                t->problem = LS_FOLD_STOPS;
                t->a = t->b = (struct ls_fold_pair){ a, y };
            }
            if (!t->limit)
                t->limit = refusal(f, t, a, y);
        }
    }
    if (t->problem == LS_FOLD_STOPS && t->decides && t->agents[l] == 1 && !t->late_before) {
        t->problem = LS_FOLD_FINE; /* whether it stops may depend on an agreed value */
        t->concrete = true;
    }
    if (t->problem || t->limit)
        return LS_OK;
    size_t scopes = 0;
    for (size_t i = 0; i < f->levels; i++)
        scopes = t->agents[i] > scopes ? t->agents[i] : scopes;
    t->cut = LS_NEW(arena, uint32_t, scopes * f->foldeds);
    bool stop = ls_fold_may_stop_after(f, node);
    for (uint32_t c = 0; c < f->foldeds; c++) {
        size_t level = f->level_of[f->comm_of[c]];
        for (uint32_t s = 0; s < t->agents[level]; s++)
            compare_scope(f, t, level, s, c, stop);
    }
    if (t->concrete) {
        t->problem = LS_FOLD_FINE;
        t->late_after = false;
    } else if (t->problem == LS_FOLD_WORDS && t->decides && values_differ(f, t)) {
        t->problem = LS_FOLD_FINE;
        t->late_after = false;
        if (t->agents[l] > 1 || t->late_before)
            t->limit = "an agreed value that depends on the letters of several replicas";
        else
            t->concrete = true;
    }
    if (t->problem || t->limit)
        return LS_OK;
    next_macros(f, t);
    if (t->late_after)
        compare_residues(f, t, arena);
    return LS_OK;
}
