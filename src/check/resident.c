#include "check/resident.h"

#include "check/explore.h"

#include <string.h>

struct pair { uint32_t stream, fifo; };
struct graph { LS_VEC(struct pair) pair; LS_VEC(struct ls_op) fifo; size_t streams; };

static uint32_t fifo_index(struct graph *g, const struct ls_tables *t, const struct ls_op *o)
{
    struct ls_op key = ls_op_make(LS_OP_BARRIER);
    uint32_t parent = o->kind == LS_OP_COMM_INIT ? t->comm.at[o->comm].parent : LS_NO_ID;
    key.comm = parent == LS_NO_ID ? o->comm : (uint16_t)parent;
    if (ls_op_is_p2p(o)) {
        key.kind = o->kind;
        key.peer = o->peer;
    }
    for (size_t i = 0; i < g->fifo.count; i++)
        if (g->fifo.at[i].comm == key.comm && g->fifo.at[i].kind == key.kind && g->fifo.at[i].peer == key.peer)
            return (uint32_t)i;
    ls_push(&g->fifo, key);
    return (uint32_t)g->fifo.count - 1;
}

static void add_pair(struct graph *g, const struct ls_tables *t, const struct ls_op *o)
{
    struct pair p = { o->stream, fifo_index(g, t, o) };
    for (size_t i = 0; i < g->pair.count; i++)
        if (g->pair.at[i].stream == p.stream && g->pair.at[i].fifo == p.fifo)
            return;
    ls_push(&g->pair, p);
    g->streams = p.stream + 1u > g->streams ? p.stream + 1u : g->streams;
}

/* One augmenting path from a stream (Kuhn). partner[fifo]: 1 + stream, or 0. */
static bool augment(const struct graph *g, uint32_t stream, uint32_t *partner, bool *seen)
{
    for (size_t i = 0; i < g->pair.count; i++) {
        uint32_t f = g->pair.at[i].fifo;
        if (g->pair.at[i].stream != stream || seen[f])
            continue;
        seen[f] = true;
        if (partner[f] == 0 || augment(g, partner[f] - 1, partner, seen)) {
            partner[f] = stream + 1;
            return true;
        }
    }
    return false;
}

unsigned ls_resident_bound(const struct ls_family_rank *rank, const struct ls_tables *tables, struct ls_arena *arena)
{
    struct graph g = { 0 };
    unsigned need = 1, size = 0;
    for (size_t v = 0; v < rank->nodes; v++)
        for (size_t c = 0; c < rank->node[v].count; c++) {
            const struct ls_segment *s = rank->node[v].choice[c].segment;
            for (size_t i = 0; i < s->count; i++)
                if (ls_op_uses_comm(&s->op[i]) && (s->op[i].kind != LS_OP_COMM_INIT || s->op[i].slots)) {
                    add_pair(&g, tables, &s->op[i]);
                    need = s->op[i].slots > need ? s->op[i].slots : need;
                }
        }
    uint32_t *partner = LS_NEW(arena, uint32_t, g.fifo.count + 1);
    bool *seen = LS_NEW(arena, bool, g.fifo.count + 1);
    for (uint32_t stream = 0; stream < g.streams; stream++) {
        memset(seen, 0, g.fifo.count * sizeof *seen);
        size += augment(&g, stream, partner, seen);
    }
    ls_vec_release(&g.pair);
    ls_vec_release(&g.fifo);
    return size * need; /* with unequal needs this is more than enough */
}

unsigned ls_resident_bound_of_family(const struct ls_family *f, struct ls_arena *arena)
{
    unsigned most = 0;
    for (size_t r = 0; r < f->ranks; r++) {
        bool done = false;
        for (size_t q = 0; q < r && !done; q++)
            done = f->rank[q].node == f->rank[r].node;
        unsigned k = done ? 0 : ls_resident_bound(&f->rank[r], f->tables, arena);
        most = k > most ? k : most;
    }
    return most;
}

enum ls_code ls_resident_least(const struct ls_family *f, enum ls_start start, const struct ls_explore_options *o,
                               struct ls_arena *arena, struct ls_resident *out, struct ls_error *err)
{
    *out = (struct ls_resident){ .bound = ls_resident_bound_of_family(f, arena), .verdict = LS_SAFE };
    unsigned top = out->bound ? out->bound : 1;
    for (unsigned k = top; k > 0; k--) {
        struct ls_explore_options at = *o;
        struct ls_explored found;
        at.run.level = LS_L3;
        at.run.kernels = k;
        at.run.start = start;
        enum ls_code rc = ls_explore(f, &at, arena, &found, err);
        if (rc != LS_OK)
            return rc;
        out->states += found.states;
        if (found.verdict != LS_SAFE) {
            if (k == top || found.verdict == LS_UNDECIDED)
                out->verdict = found.verdict;
            break;
        }
        out->least = k;
    }
    return LS_OK;
}
