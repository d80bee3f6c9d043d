#include "check/order.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* What a rank remembers of its past: its last op on each stream and communicator, its latest record of each event, and the
 * op that last blocked its host thread. */
struct node { uint32_t round, leaf, comm; }; /* leaf LS_NO_ID: a collective, or memory between rounds */
struct edge { uint32_t from, to; };
struct graph {
    const struct ls_fold *f;
    const struct ls_tree *const *tree;
    size_t rounds, streams, events, memory;
    bool blocking;
    struct ls_arena *arena;
    LS_VEC(struct node) node;
    LS_VEC(struct edge) edge;
    LS_VEC(struct edge) merge; /* collectives that merged histories share */
};

static uint32_t add(struct graph *g, uint32_t round, uint32_t leaf, uint32_t comm)
{
    assert(g->node.count < LS_NO_ID);
    ls_push(&g->node, (struct node){ round, leaf, comm });
    return (uint32_t)(g->node.count - 1);
}

static void link(struct graph *g, uint32_t from, uint32_t to)
{
    if (from != LS_NO_ID && to != LS_NO_ID && from != to)
        ls_push(&g->edge, (struct edge){ from, to });
}

enum { MEM_HOST, MEM_FIRST };
static size_t mem_stream(const struct ls_op *op) { return MEM_FIRST + (size_t)op->stream; }
static size_t mem_event(const struct graph *g, uint32_t event) { return MEM_FIRST + g->streams + event; }
static size_t mem_comm(const struct graph *g, uint32_t comm) { return MEM_FIRST + g->streams + g->events + comm; }

static void count_memory(struct graph *g)
{
    g->streams = g->events = 0;
    size_t l = g->f->levels - 1;
    for (size_t r = 0; r < g->rounds; r++)
        for (size_t i = 0; i < g->tree[r]->agents[l] * g->f->roles; i++) {
            const struct ls_digest *d = g->tree[r]->digest[i];
            for (size_t k = 0; k < d->count; k++) {
                if (d->op[k]->stream >= g->streams)
                    g->streams = (size_t)d->op[k]->stream + 1;
                if (d->op[k]->event != LS_NO_ID && d->op[k]->event >= g->events)
                    g->events = (size_t)d->op[k]->event + 1;
            }
        }
    g->memory = MEM_FIRST + g->streams + g->events + g->f->comms;
}

/* Collectives of a round by scope and folded communicator. */
struct meets { uint32_t *first; uint32_t *node; }; /* node[first[scope * foldeds + folded] + k] */

/* Point-to-point pairs of one leaf agent: the k-th send from a to b meets the k-th receive. */
struct transfer { uint32_t comm, from, to, k, node; };

static bool on_stream(const struct ls_op *op)
{
    return !ls_op_is_host(op);
}

static uint32_t transfer_node(struct graph *g, struct transfer **list, size_t *count, size_t *room, struct transfer want)
{
    for (size_t i = 0; i < *count; i++) {
        struct transfer *t = &(*list)[i];
        if (t->comm == want.comm && t->from == want.from && t->to == want.to && t->k == want.k)
            return t->node;
    }
    want.node = add(g, LS_NO_ID, LS_NO_ID, want.comm);
    if (*count == *room)
        *list = ls_vec_grow(*list, room, *count + 1, sizeof **list);
    (*list)[(*count)++] = want;
    return want.node;
}

/* The member index of a role in its inner group. */
static uint32_t member_of(const struct ls_fold *f, size_t comm, size_t role)
{
    const uint32_t *order = f->system->comm[comm].order;
    uint32_t folded = f->folded[role * f->comms + comm], before = 0;
    for (size_t y = 0; y < f->roles; y++)
        if (f->folded[y * f->comms + comm] == folded)
            before += order ? order[y] < order[role] || (order[y] == order[role] && y < role) : y < role;
    return before;
}

struct pairs { struct transfer *list; size_t count, room; uint32_t *next; };

static void walk_ops(struct graph *g, uint32_t round, uint32_t leaf, uint32_t role, uint32_t *mem, const struct meets *m,
                     uint32_t *at, struct pairs *pairs)
{
    const struct ls_fold *f = g->f;
    const struct ls_tree *t = g->tree[round];
    const struct ls_digest *d = t->digest[leaf * f->roles + role];
    for (size_t i = 0; i < d->count; i++) {
        const struct ls_op *op = d->op[i];
        uint32_t done;
        if (ls_op_uses_comm(op)) {
            uint32_t comm = ls_word_comm(f->system->replica->tables, op), issue = add(g, round, leaf, comm), meet;
            done = add(g, round, leaf, comm);
            link(g, mem[mem_stream(op)], issue);
            link(g, mem[MEM_HOST], issue);
            link(g, issue, done);
            if (ls_op_is_collective(op)) {
                size_t scope = ls_fold_scope(f, t, leaf, f->level_of[comm]);
                link(g, mem[mem_comm(g, comm)], issue);
                meet = m->node[m->first[scope * f->foldeds + f->folded[role * f->comms + comm]] + at[comm]++];
                mem[mem_comm(g, comm)] = done;
            } else {
                uint32_t me = member_of(f, op->comm, role), peer = (uint32_t)op->peer, k = 0;
                struct transfer want = { op->comm, op->kind == LS_OP_SEND ? me : peer, op->kind == LS_OP_SEND ? peer : me, 0, 0 };
                for (size_t j = 0; j < i; j++)
                    k += d->op[j]->kind == op->kind && d->op[j]->comm == op->comm && d->op[j]->peer == op->peer;
                want.k = k;
                /* parts of one communicator are different groups */
                want.comm = f->folded[role * f->comms + op->comm];
                meet = transfer_node(g, &pairs->list, &pairs->count, &pairs->room, want);
            }
            link(g, issue, meet);
            link(g, meet, done);
        } else if (op->kind == LS_OP_HOST_WAIT) {
            done = add(g, round, leaf, LS_NO_ID);
            link(g, mem[MEM_HOST], done);
            if (op->event != LS_NO_ID)
                link(g, mem[mem_event(g, op->event)], done);
            mem[MEM_HOST] = done;
            continue;
        } else if (!on_stream(op)) {
            continue;
        } else {
            done = add(g, round, leaf, LS_NO_ID);
            link(g, mem[mem_stream(op)], done);
            link(g, mem[MEM_HOST], done);
            if (op->kind == LS_OP_WAIT && op->event != LS_NO_ID)
                link(g, mem[mem_event(g, op->event)], done);
            if (op->kind == LS_OP_RECORD && op->event != LS_NO_ID)
                mem[mem_event(g, op->event)] = done;
        }
        mem[mem_stream(op)] = done;
        if (g->blocking || op->blocking || op->kind == LS_OP_DECIDE || op->kind == LS_OP_COMM_INIT)
            mem[MEM_HOST] = done;
    }
}

static size_t word_length(const struct graph *g, const struct ls_tree *t, uint32_t leaf, size_t role, size_t comm, size_t *residue)
{
    const struct ls_digest *d = t->digest[leaf * g->f->roles + role];
    (void)ls_fold_residue(g->f, ls_fold_leaf_macro(g->f, t, leaf), role, comm, residue);
    return *residue + d->first[comm + 1] - d->first[comm];
}

/* Makes the collectives of a round; those begun in an earlier one are taken from `open`, [place of the scope][folded]. */
struct open { uint32_t *first, *count; uint32_t *node; };

static struct meets make_meets(struct graph *g, uint32_t round, const struct open *open)
{
    const struct ls_fold *f = g->f;
    const struct ls_tree *t = g->tree[round];
    struct meets m = { 0 };
    size_t scopes = 0, total = 0, l = f->levels - 1;
    for (size_t i = 0; i < f->levels; i++)
        scopes = t->agents[i] > scopes ? t->agents[i] : scopes;
    uint32_t *length = LS_NEW(g->arena, uint32_t, scopes * f->foldeds);
    m.first = LS_NEW(g->arena, uint32_t, scopes * f->foldeds);
    for (uint32_t leaf = 0; leaf < t->agents[l]; leaf++)
        for (size_t y = 0; y < f->roles; y++)
            for (size_t c = 0; c < f->comms; c++) {
                uint32_t folded = f->folded[y * f->comms + c];
                if (folded == LS_NO_ID)
                    continue;
                size_t residue, n = word_length(g, t, leaf, y, c, &residue);
                uint32_t *at = &length[ls_fold_scope(f, t, leaf, f->level_of[c]) * f->foldeds + folded];
                if (n > *at)
                    *at = (uint32_t)n;
            }
    for (size_t i = 0; i < scopes * f->foldeds; i++) {
        m.first[i] = (uint32_t)total;
        total += length[i];
    }
    m.node = LS_NEW(g->arena, uint32_t, total);
    for (uint32_t folded = 0; folded < f->foldeds; folded++) {
        size_t level = f->level_of[f->comm_of[folded]];
        for (uint32_t s = 0; s < t->agents[level]; s++) {
            size_t from = 0, i = s * f->foldeds + folded;
            if (open) {
                size_t o = (size_t)t->agent[level][s].place * f->foldeds + folded;
                for (; from < open->count[o] && from < length[i]; from++)
                    m.node[m.first[i] + from] = open->node[open->first[o] + from];
            }
            for (; from < length[i]; from++)
                m.node[m.first[i] + from] = add(g, LS_NO_ID, LS_NO_ID, f->comm_of[folded]);
        }
    }
    return m;
}

/* Collectives that not everybody has issued yet, by the place that their scope leads to. */
static struct open make_open(struct graph *g, uint32_t round, const struct meets *m)
{
    const struct ls_fold *f = g->f;
    const struct ls_tree *t = g->tree[round], *next = g->tree[round + 1];
    struct open o = { 0 };
    size_t places = 0, l = f->levels - 1, total = 0;
    for (size_t i = 0; i < f->levels; i++)
        places = next->places[i] > places ? next->places[i] : places;
    o.first = LS_NEW(g->arena, uint32_t, places * f->foldeds);
    o.count = LS_NEW(g->arena, uint32_t, places * f->foldeds);
    for (int fill = 0; fill < 2; fill++) {
        for (uint32_t leaf = 0; leaf < t->agents[l]; leaf++)
            for (size_t y = 0; y < f->roles; y++)
                for (size_t c = 0; c < f->comms; c++) {
                    uint32_t folded = f->folded[y * f->comms + c];
                    if (folded == LS_NO_ID)
                        continue;
                    size_t residue, n = word_length(g, t, leaf, y, c, &residue), level = f->level_of[c];
                    uint32_t scope = ls_fold_scope(f, t, leaf, level);
                    size_t cut = t->cut[scope * f->foldeds + folded];
                    size_t at = ls_fold_successor(f, t, (uint32_t)level, scope, next) * f->foldeds + folded;
                    if (!fill && n > cut && n - cut > o.count[at])
                        o.count[at] = (uint32_t)(n - cut);
                    for (size_t k = cut; fill && k < n; k++) {
                        uint32_t node = m->node[m->first[scope * f->foldeds + folded] + k];
                        uint32_t *slot = &o.node[o.first[at] + k - cut];
                        if (*slot != LS_NO_ID && *slot != node)
                            ls_push(&g->merge, (struct edge){ *slot, node });
                        *slot = node;
                    }
                }
        if (fill)
            break;
        for (size_t i = 0; i < places * f->foldeds; i++) {
            o.first[i] = (uint32_t)total;
            total += o.count[i];
        }
        o.node = LS_NEW(g->arena, uint32_t, total);
        memset(o.node, 0xff, total * sizeof *o.node);
    }
    return o;
}

static void build(struct graph *g)
{
    const struct ls_fold *f = g->f;
    size_t l = f->levels - 1, width = f->roles * g->memory;
    uint32_t *before = NULL; /* [places of the last level][roles][memory] */
    struct open open = { 0 };
    for (uint32_t r = 0; r < g->rounds; r++) {
        const struct ls_tree *t = g->tree[r];
        bool more = r + 1 < g->rounds;
        struct meets m = make_meets(g, r, r ? &open : NULL);
        uint32_t *after = NULL;
        if (more) {
            size_t n = g->tree[r + 1]->places[l] * width;
            after = LS_NEW(g->arena, uint32_t, n);
            memset(after, 0xff, n * sizeof *after);
        }
        uint32_t *mem = LS_NEW(g->arena, uint32_t, g->memory), *at = LS_NEW(g->arena, uint32_t, f->comms);
        struct pairs pairs = { 0 };
        for (uint32_t leaf = 0; leaf < t->agents[l]; leaf++) {
            pairs.count = 0;
            for (uint32_t y = 0; y < f->roles; y++) {
                if (before)
                    memcpy(mem, before + t->agent[l][leaf].place * width + y * g->memory, g->memory * sizeof *mem);
                else
                    memset(mem, 0xff, g->memory * sizeof *mem);
                for (size_t c = 0; c < f->comms; c++) {
                    size_t residue;
                    (void)ls_fold_residue(f, ls_fold_leaf_macro(f, t, leaf), y, c, &residue);
                    at[c] = (uint32_t)residue;
                }
                walk_ops(g, r, leaf, y, mem, &m, at, &pairs);
                if (!more)
                    continue;
                uint32_t *to = after + ls_fold_successor(f, t, (uint32_t)l, leaf, g->tree[r + 1]) * width + y * g->memory;
                for (size_t k = 0; k < g->memory; k++) {
                    if (mem[k] == LS_NO_ID)
                        continue;
                    if (to[k] == LS_NO_ID)
                        to[k] = add(g, LS_NO_ID, LS_NO_ID, LS_NO_ID);
                    link(g, mem[k], to[k]);
                }
            }
        }
        free(pairs.list);
        if (more)
            open = make_open(g, r, &m);
        before = after;
    }
}

static uint32_t find(uint32_t *same, uint32_t x)
{
    while (same[x] != x)
        x = same[x] = same[same[x]];
    return x;
}

struct csr { uint32_t *first, *to; };

static struct csr csr_of(const struct graph *g)
{
    struct csr c = { LS_NEW(g->arena, uint32_t, g->node.count + 2), LS_NEW(g->arena, uint32_t, g->edge.count) };
    for (size_t i = 0; i < g->edge.count; i++)
        c.first[g->edge.at[i].from + 2]++;
    for (size_t i = 0; i <= g->node.count; i++)
        c.first[i + 1] += c.first[i];
    for (size_t i = 0; i < g->edge.count; i++)
        c.to[c.first[g->edge.at[i].from + 1]++] = g->edge.at[i].to;
    return c;
}

/* Kahn: marks what is left when nodes without predecessors are taken away again and again. */
static size_t trim(const struct graph *g, const struct csr *c, bool *left)
{
    size_t n = g->node.count, taken = 0, head = 0;
    uint32_t *degree = LS_NEW(g->arena, uint32_t, n), *queue = LS_NEW(g->arena, uint32_t, n);
    for (size_t i = 0; i < n; i++)
        for (uint32_t e = c->first[i]; e < c->first[i + 1]; e++)
            degree[c->to[e]]++;
    for (uint32_t i = 0; i < n; i++)
        if (!degree[i])
            queue[taken++] = i;
    for (; head < taken; head++)
        for (uint32_t e = c->first[queue[head]]; e < c->first[queue[head] + 1]; e++)
            if (--degree[c->to[e]] == 0)
                queue[taken++] = c->to[e];
    for (size_t i = 0; i < n; i++)
        left[i] = degree[i] > 0;
    return n - taken;
}

/* Fewest changes of replica from `start` back to itself: a collective is left into any member at the price of one. */
struct search { uint32_t *from, *cost, *deque; };

static uint32_t shortest(const struct graph *g, const struct csr *c, const bool *left, uint32_t start, uint32_t bound, struct search *s)
{
    size_t n = g->node.count;
    memset(s->cost, 0xff, n * sizeof *s->cost);
    size_t lo = n * 2, hi = n * 2; /* deque[lo .. hi), grows both ways; a node enters at most twice */
    s->deque[hi++] = start;
    uint32_t best = LS_NO_ID;
    s->cost[start] = 0;
    bool first = true;
    while (lo < hi) {
        uint32_t u = s->deque[lo++];
        if (u == start && !first)
            continue;
        first = false;
        uint32_t step = g->node.at[u].leaf == LS_NO_ID && g->node.at[u].comm != LS_NO_ID ? 1 : 0;
        if (s->cost[u] + step > bound)
            continue;
        for (uint32_t e = c->first[u]; e < c->first[u + 1]; e++) {
            uint32_t v = c->to[e];
            if (!left[v])
                continue;
            uint32_t cost = s->cost[u] + step;
            if (v == start) {
                if (cost < best) {
                    best = cost;
                    s->from[start] = u;
                }
                continue;
            }
            if (cost >= s->cost[v])
                continue;
            s->cost[v] = cost;
            s->from[v] = u;
            if (step)
                s->deque[hi++] = v;
            else
                s->deque[--lo] = v;
        }
    }
    return best;
}

/* Two pieces of one replica become one, unless they want different ops of it in one round. */
static bool join(struct ls_stretch *to, const struct ls_stretch *from)
{
    for (uint32_t r = from->first; r <= from->last; r++)
        if (from->leaf[r] != LS_NO_ID && to->leaf[r] != LS_NO_ID && to->leaf[r] != from->leaf[r])
            return false;
    for (uint32_t r = from->first; r <= from->last; r++)
        if (from->leaf[r] != LS_NO_ID)
            to->leaf[r] = from->leaf[r];
    to->first = from->first < to->first ? from->first : to->first;
    to->last = from->last > to->last ? from->last : to->last;
    return true;
}

static struct ls_stretch begin(const struct graph *g, const struct node *u, uint32_t comm, struct ls_arena *arena)
{
    struct ls_stretch s = { u->round, u->round, LS_NEW(arena, uint32_t, g->rounds), comm };
    memset(s.leaf, 0xff, g->rounds * sizeof *s.leaf);
    s.leaf[u->round] = u->leaf;
    return s;
}

/* Cuts a path that starts with a collective into stretches of one replica. A collective between two ops of the same leaf
 * agent is no move, since some history of that agent has both; nor is one inside a replica. */
static void cut_into_stretches(const struct graph *g, const uint32_t *path, size_t length, struct ls_arena *arena, struct ls_cycle *out)
{
    const uint8_t *level = g->f->level_of;
    size_t inner = g->f->levels - 1;
    uint32_t close = g->node.at[path[0]].comm, through = LS_NO_ID;
    bool fine = true;
    out->stretch = LS_NEW(arena, struct ls_stretch, length);
    out->count = 0;
    struct ls_stretch *now = NULL;
    for (size_t i = 1; i < length; i++) {
        const struct node *u = &g->node.at[path[i]];
        if (u->leaf == LS_NO_ID) {
            through = u->comm != LS_NO_ID ? u->comm : through;
            continue;
        }
        if (!now || (through != LS_NO_ID && level[through] != inner && now->leaf[u->round] != u->leaf)) {
            if (now)
                now->comm = through;
            now = &out->stretch[out->count++];
            *now = begin(g, u, close, arena);
        } else {
            struct ls_stretch more = begin(g, u, close, arena);
            fine = fine && join(now, &more);
        }
        through = LS_NO_ID;
    }
    struct ls_stretch *a = &out->stretch[0], *z = &out->stretch[out->count - 1];
    if (out->count > 1 && level[close] == inner) {
        fine = fine && join(a, z);
        out->count--;
    } else if (out->count > 1 && z->last == a->first && z->leaf[z->last] == a->leaf[a->first] && join(a, z)) {
        out->count--;
    }
    if (out->count == 1)
        out->stretch[0].comm = LS_NO_ID;
    if (!fine)
        out->count = 0;
}

static void find_cycle(const struct graph *g, const struct csr *c, const bool *left, struct ls_arena *arena, struct ls_cycle *out)
{
    enum { SOURCES_MAX = 4000 };
    size_t n = g->node.count, tried = 0, length = 0;
    struct search s = { LS_NEW(g->arena, uint32_t, n), LS_NEW(g->arena, uint32_t, n), LS_NEW(g->arena, uint32_t, 4 * n + 4) };
    uint32_t best = LS_NO_ID, *path = LS_NEW(g->arena, uint32_t, n + 1);
    for (uint32_t i = 0; i < n && tried < SOURCES_MAX && best > 1; i++) {
        if (!left[i] || g->node.at[i].leaf != LS_NO_ID || g->node.at[i].comm == LS_NO_ID)
            continue; /* every cycle passes a collective: local edges only go forward */
        tried++;
        uint32_t cost = shortest(g, c, left, i, best == LS_NO_ID ? best : best - 1, &s);
        if (cost >= best)
            continue;
        best = cost;
        length = 0;
        for (uint32_t u = s.from[i]; u != i; u = s.from[u])
            path[length++] = u;
        path[length++] = i; /* backwards, the collective last */
    }
    assert(best != LS_NO_ID);
    for (size_t i = 0; i < length / 2; i++) {
        uint32_t u = path[i];
        path[i] = path[length - 1 - i];
        path[length - 1 - i] = u;
    }
    cut_into_stretches(g, path, length, arena, out);
}

void ls_order_check(const struct ls_fold *f, const struct ls_tree *const *tree, size_t rounds, bool blocking, struct ls_arena *arena,
                    struct ls_order *out)
{
    struct ls_arena scratch;
    ls_arena_init(&scratch, 0);
    struct graph g = { .f = f, .tree = tree, .rounds = rounds, .blocking = blocking, .arena = &scratch };
    count_memory(&g);
    build(&g);
    size_t n = g.node.count;
    if (g.merge.count) {
        uint32_t *same = LS_NEW(&scratch, uint32_t, n);
        for (uint32_t i = 0; i < n; i++)
            same[i] = i;
        for (size_t i = 0; i < g.merge.count; i++)
            same[find(same, g.merge.at[i].to)] = find(same, g.merge.at[i].from);
        for (size_t i = 0; i < g.edge.count; i++) {
            g.edge.at[i].from = find(same, g.edge.at[i].from);
            g.edge.at[i].to = find(same, g.edge.at[i].to);
        }
    }
    struct csr c = csr_of(&g);
    bool *left = LS_NEW(&scratch, bool, n);
    *out = (struct ls_order){ .nodes = n };
    out->cyclic = trim(&g, &c, left) > 0;
    if (out->cyclic)
        find_cycle(&g, &c, left, arena, &out->cycle);
    ls_vec_release(&g.node);
    ls_vec_release(&g.edge);
    ls_vec_release(&g.merge);
    ls_arena_release(&scratch);
}
