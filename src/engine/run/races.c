/* Races as a run shows them. What is known to be done when an op begins is told by what the run did: in which order streams and
 * queues got their ops, which record a wait really meant, what host threads had waited for when they went on. A clock says, for each
 * stream, how many of its ops are known to be done. Which accesses need an order is defined in semantics.md, "Races"; the machine's
 * own search (machine/races.c) is not asked.
 *
 * Accesses are the ranges that ops declare, in list order: with several host threads the order of allocs and frees is a schedule's. */
#include "engine/run/internal.h"

#include <stdlib.h>
#include <string.h>

struct queue_clock { uint32_t comm, peer; bool p2p, send; const uint32_t *known; };
struct clocks {
    size_t streams;
    const uint32_t **host, **start, **end; /* [ops] what its thread knew when it issued it; before it; when it is done */
    uint32_t *place;             /* [ops] on its stream, from 1 */
    uint32_t *thread;            /* [threads][streams] */
    uint32_t *after, *count;     /* [streams][streams] when all appended is done; [streams] ops appended */
    size_t *record;              /* [events] the latest record appended, + 1; one thread only */
    LS_VEC(struct queue_clock) queue;
};

static void join(const struct clocks *c, uint32_t *into, const uint32_t *with)
{
    for (size_t s = 0; with && s < c->streams; s++)
        into[s] = into[s] > with[s] ? into[s] : with[s];
}

static uint32_t *copy(struct ls_rank *r, const uint32_t *of)
{
    return ls_arena_copy(&r->e->arena, of, r->clocks->streams * sizeof *of);
}

void clocks_open(struct ls_rank *r)
{
    struct ls_arena *a = &r->e->arena;
    size_t n = r->e->streams;
    if (!r->e->o->races)
        return;
    struct clocks *c = r->clocks = LS_NEW(a, struct clocks, 1);
    *c = (struct clocks){ .streams = n, .host = LS_NEW(a, const uint32_t *, r->ops + 1), .start = LS_NEW(a, const uint32_t *, r->ops + 1),
                          .end = LS_NEW(a, const uint32_t *, r->ops + 1), .place = LS_NEW(a, uint32_t, r->ops + 1),
                          .thread = LS_NEW(a, uint32_t, r->threads * n), .after = LS_NEW(a, uint32_t, n * n), .count = LS_NEW(a, uint32_t, n),
                          .record = LS_NEW(a, size_t, r->e->job->tables->event.count + 1) };
}

void clocks_close(struct ls_rank *r)
{
    if (r->clocks)
        ls_vec_release(&r->clocks->queue);
}

void clocks_issue(struct ls_rank *r, size_t op)
{
    if (r->clocks)
        r->clocks->host[op] = copy(r, r->clocks->thread + r->op[op].op->thread * r->clocks->streams);
}

/* The end of the record that a wait means; NULL: there is none. */
static const uint32_t *recorded(const struct ls_rank *r, size_t op)
{
    uint32_t event = r->op[op].op->event;
    size_t record = r->threads == 1 ? r->clocks->record[event] : 0;
    for (size_t i = op; r->threads > 1 && i-- > 0 && !record;)
        if (r->op[i].op->kind == LS_OP_RECORD && r->op[i].op->event == event && path_of(r, i) == PATH_TAKEN)
            record = i + 1;
    return record ? r->clocks->end[record - 1] : NULL;
}

static const uint32_t **queue_of(struct ls_rank *r, const struct ls_op *o)
{
    struct clocks *c = r->clocks;
    struct queue_clock q = { .comm = queue_comm(r->e, o), .p2p = ls_op_is_p2p(o) };
    if (q.p2p)
        q.peer = (uint32_t)o->peer, q.send = o->kind == LS_OP_SEND;
    for (size_t i = 0; i < c->queue.count; i++)
        if (c->queue.at[i].comm == q.comm && c->queue.at[i].p2p == q.p2p && c->queue.at[i].peer == q.peer && c->queue.at[i].send == q.send)
            return &c->queue.at[i].known;
    ls_push(&c->queue, q);
    return &c->queue.at[c->queue.count - 1].known;
}

void clocks_append(struct ls_rank *r, const size_t *op, size_t count)
{
    struct clocks *c = r->clocks;
    if (!c)
        return;
    size_t n = c->streams;
    uint32_t *before = ls_arena_copy(&r->e->arena, c->after, n * n * sizeof *before), *last = copy(r, c->count);
    for (size_t i = 0; i < count; i++)
        last[r->op[op[i]].op->stream]++;
    for (size_t i = 0; i < count; i++) { /* in the order of queues, which several streams may share */
        const struct ls_op *o = r->op[op[i]].op;
        size_t s = o->stream, bundle = 0;
        uint32_t *start = copy(r, before + s * n);
        const uint32_t **queue = ls_op_uses_comm(o) ? queue_of(r, o) : NULL;
        for (size_t k = 0; k < count; k++)
            bundle += r->op[op[k]].op->stream == s;
        join(c, start, c->host[op[i]]);
        if (o->kind == LS_OP_WAIT)
            join(c, start, recorded(r, op[i]));
        if (queue)
            join(c, start, *queue);
        uint32_t *end = copy(r, start);
        end[s] = last[s]; /* it is done with its whole bundle */
        join(c, c->after + s * n, end);
        c->place[op[i]] = ++c->count[s];
        c->start[op[i]] = start;
        c->end[op[i]] = end;
        if (queue) /* that it is paired is what the next one knows; of bundles of one, that it is done */
            *queue = bundle == 1 ? end : start;
        if (o->kind == LS_OP_RECORD)
            c->record[o->event] = op[i] + 1;
    }
}

void clocks_pass(struct ls_rank *r, unsigned thread, size_t op)
{
    if (!r->clocks)
        return;
    const struct ls_op *o = r->op[op].op;
    join(r->clocks, r->clocks->thread + thread * r->clocks->streams, o->kind == LS_OP_HOST_WAIT ? recorded(r, op) : r->clocks->end[op]);
}

struct access { size_t op; bool write; uint64_t from, to; };
struct use { LS_VEC(struct access) access; bool allocated, freed; size_t alloc, free; uint32_t pool_ops; };
struct look {
    struct ls_rank *r;
    const struct clocks *c;
    const struct ls_tables *t;
    struct use *use;             /* [buffers] */
    uint32_t *after, *count;     /* as in clocks, of what is listed before */
    LS_VEC(uint32_t) given_back; /* freed, the memory not yet handed out again */
};

static void found(struct look *k, enum ls_race_kind kind, uint32_t buffer, size_t a, size_t b)
{
    const struct rank_op *x = &k->r->op[a], *y = &k->r->op[b];
    if (k->r->e->race.count < k->r->e->o->races)
        ls_push(&k->r->e->race, (struct ls_race){ kind, buffer, { k->r->number, x->segment, x->index }, { k->r->number, y->segment, y->index } });
}

/* Is `first` known to be done when `then` begins? */
static bool ordered(const struct look *k, size_t first, const uint32_t *then)
{
    return then[k->r->op[first].op->stream] >= k->c->place[first];
}

static void look_at_access(struct look *k, size_t op, const struct ls_range *g)
{
    struct use *u = &k->use[g->buffer];
    uint8_t pool = k->t->buffer.at[g->buffer].pool;
    struct access now = { op, g->write, g->bytes ? g->offset : 0, g->bytes ? g->offset + g->bytes : UINT64_MAX };
    if (u->freed)
        found(k, LS_RACE_AFTER_FREE, g->buffer, u->free, op);
    if (u->allocated && k->r->op[op].op->stream != pool && pool < k->c->streams && k->c->start[op][pool] < u->pool_ops)
        found(k, LS_RACE_EARLY, g->buffer, u->alloc, op);
    for (size_t i = 0; i < u->access.count; i++) {
        const struct access *old = &u->access.at[i];
        bool meet = old->from < now.to && now.from < old->to && (old->write || now.write) && old->op != op;
        if (meet && !ordered(k, old->op, k->c->start[op]))
            found(k, LS_RACE_CONFLICT, g->buffer, old->op, op);
    }
    ls_push(&u->access, now);
}

static void look_at_alloc(struct look *k, size_t op)
{
    uint32_t buffer = k->t->range.at[k->r->op[op].op->range].buffer;
    struct use *u = &k->use[buffer];
    uint8_t pool = k->t->buffer.at[buffer].pool;
    uint32_t *clock = copy(k->r, k->c->host[op]);
    size_t kept = 0;
    if (pool < k->c->streams)
        join(k->c, clock, k->after + pool * k->c->streams);
    for (size_t i = 0; i < k->given_back.count; i++) {
        uint32_t old = k->given_back.at[i];
        if (k->t->buffer.at[old].pool != pool) {
            k->given_back.at[kept++] = old;
            continue;
        }
        for (size_t a = 0; a < k->use[old].access.count; a++)
            if (!ordered(k, k->use[old].access.at[a].op, clock))
                found(k, LS_RACE_FREED, old, k->use[old].access.at[a].op, k->use[old].free);
    }
    k->given_back.count = kept;
    u->access.count = 0;
    u->freed = false;
    u->allocated = true;
    u->alloc = op;
    u->pool_ops = pool < k->c->streams ? k->count[pool] : 0;
}

void clocks_races(struct ls_rank *r)
{
    size_t n = r->e->streams, buffers = r->e->job->tables->buffer.count;
    if (!r->clocks)
        return;
    for (size_t i = 0; i < r->ops; i++) /* issued behind ops that never came */
        if (r->clocks->host[i] && !r->clocks->start[i] && !ls_op_is_host(r->op[i].op))
            clocks_append(r, &i, 1);
    struct look k = { .r = r, .c = r->clocks, .t = r->e->job->tables, .use = calloc(buffers + 1, sizeof *k.use),
                      .after = LS_NEW(&r->e->arena, uint32_t, n * n), .count = LS_NEW(&r->e->arena, uint32_t, n) };
    if (!k.use)
        ls_out_of_memory(buffers * sizeof *k.use);
    for (size_t i = 0; i < r->ops; i++) {
        const struct ls_op *o = r->op[i].op;
        if (k.c->start[i]) {
            join(k.c, k.after + o->stream * n, k.c->end[i]);
            k.count[o->stream]++;
            for (uint32_t g = 0; g < o->ranges; g++)
                look_at_access(&k, i, &k.t->range.at[o->range + g]);
        } else if (o->kind == LS_OP_FREE && o->ranges && k.c->host[i]) {
            struct use *u = &k.use[k.t->range.at[o->range].buffer];
            if (!u->freed)
                ls_push(&k.given_back, k.t->range.at[o->range].buffer);
            u->freed = true;
            u->free = i;
        } else if (o->kind == LS_OP_ALLOC && o->ranges && k.c->host[i])
            look_at_alloc(&k, i);
    }
    for (size_t b = 0; b < buffers; b++)
        ls_vec_release(&k.use[b].access);
    ls_vec_release(&k.given_back);
    free(k.use);
}
