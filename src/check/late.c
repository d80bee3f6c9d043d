#include "check/late.h"

#include "check/proof.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum ls_code ls_search_path(struct ls_fold *f, const struct ls_search *s, uint32_t at, uint32_t klass, struct ls_arena *arena,
                            struct ls_path *out, struct ls_error *err)
{
    size_t rounds = s->node.at[at].depth + (klass != LS_NO_ID);
    uint32_t *node = LS_NEW(arena, uint32_t, rounds);
    const struct ls_tree **tree = LS_NEW(arena, const struct ls_tree *, rounds);
    uint32_t now = at, with = klass;
    if (klass == LS_NO_ID && rounds) {
        with = s->node.at[at].klass;
        now = s->node.at[at].from;
    }
    for (size_t r = rounds; r-- > 0;) {
        const struct ls_search_node *n = &s->node.at[now];
        struct ls_tree *t = LS_NEW(arena, struct ls_tree, 1);
        enum ls_code rc = ls_fold_round(f, n->driver, n->macro, with, arena, t, err);
        if (rc != LS_OK)
            return rc;
        node[r] = n->driver;
        tree[r] = t;
        with = n->klass;
        now = n->from;
    }
    *out = (struct ls_path){ node, tree, rounds };
    return LS_OK;
}

/* Vertices: an op in a residue at a round boundary, as (search node, place of the leaf, role, communicator, position). */
struct vertices { uint32_t **first; size_t count; LS_VEC(uint8_t) level; };
struct arc { uint32_t from, to; };

static enum ls_code make_vertices(struct ls_fold *f, const struct ls_search *s, struct ls_arena *arena, struct vertices *v)
{
    size_t l = f->levels - 1, width = f->roles * f->comms;
    v->first = LS_NEW(arena, uint32_t *, s->node.count);
    for (uint32_t i = 0; i < s->node.count; i++) {
        struct ls_tree t = { 0 };
        ls_fold_places(f, s->node.at[i].macro, arena, &t);
        v->first[i] = LS_NEW(arena, uint32_t, t.places[l] * width);
        for (size_t p = 0; p < t.places[l]; p++)
            for (size_t y = 0; y < f->roles; y++)
                for (size_t c = 0; c < f->comms; c++) {
                    size_t n;
                    (void)ls_fold_residue(f, t.place[l][p].macro, y, c, &n);
                    v->first[i][p * width + y * f->comms + c] = (uint32_t)v->count;
                    v->count += n;
                    for (size_t k = 0; k < n; k++)
                        ls_push(&v->level, f->level_of[c]);
                }
    }
    return LS_OK;
}

typedef LS_VEC(struct arc) arc_vec;

static void add_arcs(struct ls_fold *f, const struct vertices *v, uint32_t at, const struct ls_tree *t, uint32_t to,
                     const struct ls_tree *next, arc_vec *arcs)
{
    size_t l = f->levels - 1, width = f->roles * f->comms;
    for (uint32_t leaf = 0; leaf < t->agents[l]; leaf++) {
        uint32_t macro = ls_fold_leaf_macro(f, t, leaf), place = t->agent[l][leaf].place;
        for (size_t y = 0; y < f->roles; y++)
            for (size_t c = 0; c < f->comms; c++) {
                size_t n;
                (void)ls_fold_residue(f, macro, y, c, &n);
                if (!n)
                    continue;
                size_t cut = ls_fold_cut(f, t, leaf, y, c);
                uint32_t then = ls_fold_successor(f, t, (uint32_t)l, leaf, next);
                for (size_t k = cut; k < n; k++)
                    ls_push(arcs, (struct arc){ v->first[at][place * width + y * f->comms + c] + (uint32_t)k,
                                                v->first[to][then * width + y * f->comms + c] + (uint32_t)(k - cut) });
            }
    }
}

/* The longest chain of vertices of each level; false if some chain never ends. */
static bool longest_chains(const struct vertices *v, const arc_vec *arcs, struct ls_arena *arena, size_t longest[LS_LEVELS_MAX])
{
    size_t n = v->count, taken = 0;
    uint32_t *degree = LS_NEW(arena, uint32_t, n), *queue = LS_NEW(arena, uint32_t, n), *length = LS_NEW(arena, uint32_t, n);
    uint32_t *first = LS_NEW(arena, uint32_t, n + 2), *to = LS_NEW(arena, uint32_t, arcs->count);
    for (size_t i = 0; i < arcs->count; i++) {
        first[arcs->at[i].from + 2]++;
        degree[arcs->at[i].to]++;
    }
    for (size_t i = 0; i < n; i++)
        first[i + 1] += first[i];
    for (size_t i = 0; i < arcs->count; i++)
        to[first[arcs->at[i].from + 1]++] = arcs->at[i].to;
    for (uint32_t i = 0; i < n; i++)
        if (!degree[i]) {
            queue[taken++] = i;
            length[i] = 1;
        }
    for (size_t head = 0; head < taken; head++) {
        uint32_t u = queue[head];
        if (length[u] > longest[v->level.at[u]])
            longest[v->level.at[u]] = length[u];
        for (uint32_t e = first[u]; e < first[u + 1]; e++) {
            uint32_t w = to[e];
            length[w] = length[u] + 1 > length[w] ? length[u] + 1 : length[w];
            if (--degree[w] == 0)
                queue[taken++] = w;
        }
    }
    return taken == n;
}

static uint32_t find_node(const struct ls_intern *ids, uint32_t driver, uint32_t macro, size_t count)
{
    uint32_t pair[2] = { driver, macro };
    uint32_t id = ls_intern_put((struct ls_intern *)ids, pair, 2);
    assert(id < count && "the search visited every successor");
    (void)count;
    return id;
}

static struct ls_intern index_of(const struct ls_search *s)
{
    struct ls_intern ids = { 0 };
    for (uint32_t i = 0; i < s->node.count; i++) {
        uint32_t pair[2] = { s->node.at[i].driver, s->node.at[i].macro };
        (void)ls_intern_put(&ids, pair, 2);
    }
    return ids;
}

enum ls_code ls_late_window(struct ls_fold *f, const struct ls_search *s, struct ls_arena *arena, struct ls_late *out,
                            struct ls_error *err)
{
    struct ls_arena scratch, step;
    struct vertices v = { 0 };
    arc_vec arcs = { 0 };
    struct ls_intern ids = index_of(s);
    ls_arena_init(&scratch, 0);
    ls_arena_init(&step, 0);
    (void)arena;
    *out = (struct ls_late){ 0 };
    enum ls_code rc = make_vertices(f, s, &scratch, &v);
    for (uint32_t at = 0; at < s->node.count && rc == LS_OK; at++)
        for (uint32_t k = 0; k < f->classes[0] && rc == LS_OK; k++) {
            const struct ls_search_node *n = &s->node.at[at];
            struct ls_arena_mark mark = ls_arena_mark(&step);
            if (!ls_fold_class_allowed(f, n->driver, k))
                continue;
            struct ls_tree t, next = { 0 };
            rc = ls_fold_round(f, n->driver, n->macro, k, &step, &t, err);
            if (rc == LS_OK && t.late_before && t.late_after) {
                const struct ls_driver_node *d = &f->system->driver.node[n->driver];
                ls_fold_places(f, t.agent[0][0].next, &step, &next);
                for (size_t i = 0; i < d->nexts; i++)
                    add_arcs(f, &v, at, &t, find_node(&ids, d->next[i], t.agent[0][0].next, s->node.count), &next, &arcs);
            }
            ls_arena_rewind(&step, mark);
        }
    size_t fifos[LS_LEVELS_MAX] = { 0 };
    for (size_t c = 0; c < f->foldeds; c++)
        if (f->used[c]) {
            fifos[f->level_of[f->comm_of[c]]]++;
            out->spanning += (f->system->replica->tables->comm.at[f->comm_of[c]].free_dims & f->system->free_dims) != 0;
        }
    if (rc == LS_OK)
        out->bounded = longest_chains(&v, &arcs, &scratch, out->rounds);
    /* Joints at level i of a shortest cycle: H_0 = FIFOs of level 0, H_i = max(1, H_0 + ... + H_(i-1)) * FIFOs of level i. */
    size_t joints = 0;
    out->window = 1;
    for (size_t i = 0; i < f->levels; i++) {
        size_t here = i == 0 ? fifos[0] : (joints > 1 ? joints : 1) * fifos[i];
        out->window += out->rounds[i] * here;
        joints += here;
    }
    ls_intern_release(&ids);
    ls_vec_release(&v.level);
    ls_vec_release(&arcs);
    ls_arena_release(&step);
    ls_arena_release(&scratch);
    return rc;
}

enum { ORDER_NODES_MAX = 100000000 };
struct windows {
    struct ls_fold *f;
    const struct ls_search *s;
    const struct ls_late_options *o;
    size_t nodes;          /* of all order graphs */
    uint32_t at;           /* search node where the window starts */
    uint32_t *driver, *klass; const struct ls_tree **tree;
    struct ls_arena scratch, *arena;
    size_t best;           /* rounds of the best run with a cycle, without the way to a stop */
    uint32_t best_at, *best_klass; size_t best_rounds;
    struct ls_late_found *out;
    struct ls_error *err;
};

static bool enough(const struct windows *w)
{
    return w->out->limit || (w->out->cyclic && !w->o->fewest);
}

static void check_window(struct windows *w, size_t rounds)
{
    struct ls_order order;
    ls_order_check(w->f, w->tree, rounds, w->o->blocking, w->arena, &order);
    w->nodes += order.nodes;
    if (w->nodes > (w->o->nodes_max ? w->o->nodes_max : ORDER_NODES_MAX))
        w->out->limit = "more windows of consecutive rounds than the limit";
    if (w->o->until > 0 && ls_clock() > w->o->until)
        w->out->limit = "the time limit";
    if (!order.cyclic)
        return;
    size_t end = 0;
    for (size_t i = 0; i < order.cycle.count; i++)
        end = order.cycle.stretch[i].last + 1 > end ? order.cycle.stretch[i].last + 1 : end;
    end = end ? end : rounds;
    size_t total = w->s->node.at[w->at].depth + end + w->f->driver_distance[w->driver[end - 1]] - 1;
    /* A cycle that no history has must not hide one that some history has. */
    bool better = !w->out->cyclic || (w->out->cycle.count == 0 && order.cycle.count > 0) ||
                  (order.cycle.count > 0 && total < w->best);
    if (!better)
        return;
    w->out->cyclic = true;
    w->out->cycle = order.cycle;
    w->best = total;
    w->best_at = w->at;
    w->best_rounds = end;
    memcpy(w->best_klass, w->klass, end * sizeof *w->klass);
    for (size_t r = 0; r < end; r++)
        w->best_klass[w->o->window + r] = w->driver[r];
}

static bool fits(const struct windows *w, size_t rounds, uint32_t driver)
{
    return !w->o->rounds_max || w->s->node.at[w->at].depth + rounds + w->f->driver_distance[driver] <= w->o->rounds_max;
}

static enum ls_code extend_window(struct windows *w, size_t rounds, uint32_t driver, uint32_t macro)
{
    const struct ls_driver_node *d = &w->f->system->driver.node[driver];
    enum ls_code rc = LS_OK;
    w->driver[rounds] = driver;
    for (uint32_t k = 0; k < w->f->classes[0] && rc == LS_OK && !enough(w); k++) {
        if (!ls_fold_class_allowed(w->f, driver, k))
            continue;
        struct ls_arena_mark mark = ls_arena_mark(&w->scratch);
        struct ls_tree *t = LS_NEW(&w->scratch, struct ls_tree, 1);
        rc = ls_fold_round(w->f, driver, macro, k, &w->scratch, t, w->err);
        w->klass[rounds] = k;
        w->tree[rounds] = t;
        if (rc == LS_OK && (t->problem || t->limit)) { /* known already; what comes before it may still have a cycle */
            if (rounds > 0)
                check_window(w, rounds);
        } else if (rc == LS_OK) {
            bool more = false;
            for (size_t i = 0; i < d->nexts && t->late_after && rounds + 1 < w->o->window && rc == LS_OK && !enough(w); i++) {
                if (!fits(w, rounds + 1, d->next[i]))
                    continue;
                more = true;
                rc = extend_window(w, rounds + 1, d->next[i], t->agent[0][0].next);
                w->driver[rounds] = driver;
                w->klass[rounds] = k;
                w->tree[rounds] = t;
            }
            if (!more && (rounds > 0 || t->late_before || t->late_after))
                check_window(w, rounds + 1);
        }
        ls_arena_rewind(&w->scratch, mark);
    }
    return rc;
}

/* The path to the window, then the window. */
static enum ls_code rebuild(struct windows *w)
{
    struct ls_path before;
    enum ls_code rc = ls_search_path(w->f, w->s, w->best_at, LS_NO_ID, w->arena, &before, w->err);
    if (rc != LS_OK)
        return rc;
    size_t rounds = before.rounds + w->best_rounds;
    uint32_t *node = LS_NEW(w->arena, uint32_t, rounds), macro = w->s->node.at[w->best_at].macro;
    const struct ls_tree **tree = LS_NEW(w->arena, const struct ls_tree *, rounds);
    if (before.rounds) {
        memcpy(node, before.node, before.rounds * sizeof *node);
        memcpy(tree, before.tree, before.rounds * sizeof *tree);
    }
    for (size_t r = 0; r < w->best_rounds && rc == LS_OK; r++) {
        struct ls_tree *t = LS_NEW(w->arena, struct ls_tree, 1);
        node[before.rounds + r] = w->best_klass[w->o->window + r];
        rc = ls_fold_round(w->f, node[before.rounds + r], macro, w->best_klass[r], w->arena, t, w->err);
        tree[before.rounds + r] = t;
        if (rc == LS_OK)
            macro = t->agent[0][0].next;
    }
    w->out->path = (struct ls_path){ node, tree, rounds };
    w->out->first = before.rounds;
    return rc;
}

enum ls_code ls_late_check(struct ls_fold *f, const struct ls_search *s, const struct ls_late_options *o, struct ls_arena *arena,
                           struct ls_late_found *out, struct ls_error *err)
{
    struct windows w = { .f = f, .s = s, .o = o, .arena = arena, .out = out, .err = err };
    *out = (struct ls_late_found){ 0 };
    ls_arena_init(&w.scratch, 0);
    w.driver = LS_NEW(&w.scratch, uint32_t, o->window);
    w.klass = LS_NEW(&w.scratch, uint32_t, o->window);
    w.best_klass = LS_NEW(&w.scratch, uint32_t, 2 * o->window);
    w.tree = LS_NEW(&w.scratch, const struct ls_tree *, o->window);
    enum ls_code rc = LS_OK;
    for (w.at = 0; w.at < s->node.count && rc == LS_OK && !enough(&w); w.at++)
        if (fits(&w, 0, s->node.at[w.at].driver))
            rc = extend_window(&w, 0, s->node.at[w.at].driver, s->node.at[w.at].macro);
    if (rc == LS_OK && out->cyclic && !out->limit)
        rc = rebuild(&w);
    ls_arena_release(&w.scratch);
    return rc;
}
