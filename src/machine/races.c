/* Races: vector clocks over the local edges of one rank at a time. A clock says, for each stream, how many of its ops are known
 * to be done. semantics.md, "Races", defines what is ordered. */
#include "machine/move.h"

#include "base/hash.h"

#include <stdlib.h>
#include <string.h>

#define PLAIN_NAME(id, name) name,
static const char *const kind_name[] = { LS_RACE_KINDS(PLAIN_NAME) };

const char *ls_race_kind_name(enum ls_race_kind kind)
{
    assert((unsigned)kind < LS_RACE_COUNT);
    return kind_name[kind];
}

struct access { struct ls_at at; const uint32_t *start; uint32_t pos; uint8_t stream; bool write; uint64_t from, to; };
struct instance {
    LS_VEC(struct access) access;
    bool allocated, freed;
    struct ls_at alloc, free;
    uint32_t pool_ops; /* ops of the pool's stream before the alloc */
};

struct checker {
    const struct ls_run *x;
    const struct ls_tables *t;
    size_t streams, threads;
    struct ls_arena scratch;
    uint32_t rank;
    uint32_t *host;       /* [threads] clocks */
    uint32_t *before, *after; /* [streams] clocks: before the stream's current bundle, and once it is done */
    uint32_t *ops;        /* [streams] ops so far */
    uint32_t **fifo, **port;  /* [comms], [ports of the rank]: the clock that the next op of the queue knows */
    uint32_t ***end;      /* [segment][step]: clock when done */
    uint32_t *passed;     /* [threads] points passed in this segment */
    struct instance *instance; /* [buffers] */
    LS_VEC(uint32_t) given_back; /* buffers freed, their memory not yet given to another */
    LS_VEC(struct ls_race) race;
    size_t most;
};

static void join(const struct checker *c, uint32_t *into, const uint32_t *with)
{
    for (size_t s = 0; with && s < c->streams; s++)
        into[s] = into[s] > with[s] ? into[s] : with[s];
}

static void add_race(struct checker *c, enum ls_race_kind kind, uint32_t buffer, struct ls_at a, struct ls_at b)
{
    if (c->race.count < c->most)
        ls_push(&c->race, (struct ls_race){ kind, buffer, a, b });
}

/* The clock of the record that a wait means, or NULL. */
static const uint32_t *record_clock(struct checker *c, uint32_t segment, uint32_t record, uint32_t event)
{
    for (;;) {
        const struct ls_table *t = ls_table_at(c->x, c->rank, segment);
        for (; record != LS_NO_ID; record = t->step[record].record)
            if (ls_guard_state(c->x, c->rank, segment, t->step[record].guard) == LS_BRANCH_TAKEN)
                return c->end[segment][record];
        if (segment-- == 0)
            return NULL;
        t = ls_table_at(c->x, c->rank, segment);
        for (uint32_t i = 0; i < t->records; i++)
            if (t->record[i].event == event)
                record = t->record[i].step;
    }
}

/* What the host thread knows once it is past its points before op `to`. */
static void pass_points(struct checker *c, uint32_t thread, uint32_t segment, uint64_t to)
{
    const struct ls_table *t = ls_table_at(c->x, c->rank, segment);
    uint32_t *clock = c->host + thread * c->streams;
    for (; t->point_first[thread] + c->passed[thread] < t->point_first[thread + 1]; c->passed[thread]++) {
        const struct ls_point *q = &t->point[t->point_first[thread] + c->passed[thread]];
        if (q->op >= to)
            return;
        if (ls_guard_state(c->x, c->rank, segment, q->guard) != LS_BRANCH_TAKEN)
            continue;
        if (q->kind == LS_POINT_STEP)
            join(c, clock, c->end[segment][q->step]);
        else if (q->kind == LS_POINT_EVENT)
            join(c, clock, record_clock(c, segment, q->record, q->event));
    }
}

static void do_access(struct checker *c, const struct ls_range *g, struct access now)
{
    struct instance *i = &c->instance[g->buffer];
    uint8_t pool = c->t->buffer.at[g->buffer].pool;
    now.write = g->write;
    now.from = g->bytes ? g->offset : 0;
    now.to = g->bytes ? g->offset + g->bytes : UINT64_MAX;
    if (i->freed)
        add_race(c, LS_RACE_AFTER_FREE, g->buffer, i->free, now.at);
    if (i->allocated && now.stream != pool && pool < c->streams && now.start[pool] < i->pool_ops)
        add_race(c, LS_RACE_EARLY, g->buffer, i->alloc, now.at);
    for (size_t k = 0; k < i->access.count; k++) {
        const struct access *old = &i->access.at[k];
        bool meet = old->from < now.to && now.from < old->to && (old->write || now.write);
        bool self = old->at.segment == now.at.segment && old->at.op == now.at.op;
        if (meet && !self && now.start[old->stream] < old->pos)
            add_race(c, LS_RACE_CONFLICT, g->buffer, old->at, now.at);
    }
    ls_push(&i->access, now);
}

static void do_stream_op(struct checker *c, uint32_t segment, const struct ls_table *t, uint32_t op)
{
    const struct ls_op *o = &t->from->op[op];
    const struct ls_task *s = &t->step[t->step_of_op[op]], *first = ls_bundle_of(s);
    size_t n = c->streams;
    uint32_t *before = c->before + s->stream * n, *after = c->after + s->stream * n;
    if (s == first)
        memcpy(before, after, n * sizeof *before);
    uint32_t *start = ls_arena_copy(&c->scratch, before, n * sizeof *start);
    join(c, start, c->host + s->thread * n);
    if (s->class == LS_TASK_WAIT)
        join(c, start, record_clock(c, segment, s->record, s->event));
    uint32_t **queue = s->class == LS_TASK_MEET ? &c->fifo[s->fifo] : s->class == LS_TASK_PASS ?
                       &c->port[ls_port_find(&c->x->p, c->rank, s->fifo) - c->x->p.port_first[c->rank]] : NULL;
    if (queue)
        join(c, start, *queue);
    uint32_t pos = ++c->ops[s->stream];
    uint32_t *end = ls_arena_copy(&c->scratch, start, n * sizeof *end);
    end[s->stream] = pos + first->bundle - 1 - (uint32_t)(s - first); /* done with its whole bundle */
    join(c, after, end);
    c->end[segment][s - t->step] = end;
    if (queue) /* the next op of the queue knows that this one is paired; that is being done for bundles of one only */
        *queue = first->bundle == 1 ? end : start;
    for (uint32_t i = 0; i < o->ranges; i++)
        do_access(c, &c->t->range.at[o->range + i],
                  (struct access){ .at = { c->rank, segment, op }, .start = start, .pos = pos, .stream = s->stream });
}

/* The memory of a freed buffer goes to another: all accesses must be known to be done. */
static void reuse(struct checker *c, uint32_t buffer, const uint32_t *clock)
{
    const struct instance *i = &c->instance[buffer];
    for (size_t k = 0; k < i->access.count; k++)
        if (clock[i->access.at[k].stream] < i->access.at[k].pos)
            add_race(c, LS_RACE_FREED, buffer, i->access.at[k].at, i->free);
}

static void do_free(struct checker *c, uint32_t segment, uint32_t op, const struct ls_op *o)
{
    uint32_t buffer = c->t->range.at[o->range].buffer;
    struct instance *i = &c->instance[buffer];
    if (!i->freed)
        ls_push(&c->given_back, buffer);
    i->freed = true;
    i->free = (struct ls_at){ c->rank, segment, op };
}

static void do_alloc(struct checker *c, uint32_t segment, uint32_t op, const struct ls_op *o)
{
    uint32_t buffer = c->t->range.at[o->range].buffer;
    struct instance *i = &c->instance[buffer];
    uint8_t pool = c->t->buffer.at[buffer].pool;
    uint32_t *clock = ls_arena_copy(&c->scratch, c->host + o->thread * c->streams, c->streams * sizeof *clock);
    size_t kept = 0;
    if (pool < c->streams)
        join(c, clock, c->after + pool * c->streams);
    for (size_t k = 0; k < c->given_back.count; k++) {
        uint32_t old = c->given_back.at[k];
        if (c->t->buffer.at[old].pool == pool)
            reuse(c, old, clock);
        else
            c->given_back.at[kept++] = old;
    }
    c->given_back.count = kept;
    i->access.count = 0;
    i->freed = false;
    i->allocated = true;
    i->alloc = (struct ls_at){ c->rank, segment, op };
    i->pool_ops = pool < c->streams ? c->ops[pool] : 0;
}

static void check_rank(struct checker *c, uint32_t rank)
{
    const struct ls_run *x = c->x;
    size_t n = c->streams, segments = ls_segments(x, rank), ports = x->p.port_first[rank + 1] - x->p.port_first[rank];
    c->rank = rank;
    c->host = LS_NEW(&c->scratch, uint32_t, c->threads * n);
    c->before = LS_NEW(&c->scratch, uint32_t, n * n);
    c->after = LS_NEW(&c->scratch, uint32_t, n * n);
    c->ops = LS_NEW(&c->scratch, uint32_t, n);
    c->fifo = LS_NEW(&c->scratch, uint32_t *, x->p.comms);
    c->port = LS_NEW(&c->scratch, uint32_t *, ports);
    c->end = LS_NEW(&c->scratch, uint32_t **, segments);
    c->passed = LS_NEW(&c->scratch, uint32_t, c->threads);
    for (uint32_t j = 0; j < segments; j++) {
        const struct ls_table *t = ls_table_at(x, rank, j);
        c->end[j] = LS_NEW(&c->scratch, uint32_t *, t->stream_first[n]);
        memset(c->passed, 0, c->threads * sizeof *c->passed);
        for (uint32_t i = 0; i < t->from->count; i++) {
            const struct ls_op *o = &t->from->op[i];
            pass_points(c, o->thread, j, i);
            if (x->until[rank * c->threads + o->thread] <= ls_key(j, i) ||
                ls_guard_state(x, rank, j, t->guard_of_op[i]) != LS_BRANCH_TAKEN)
                continue;
            if (t->step_of_op[i] != LS_NO_ID)
                do_stream_op(c, j, t, i);
            else if (o->kind == LS_OP_FREE && o->ranges)
                do_free(c, j, i, o);
            else if (o->kind == LS_OP_ALLOC && o->ranges)
                do_alloc(c, j, i, o);
        }
        for (uint32_t k = 0; k < c->threads; k++)
            pass_points(c, k, j, UINT64_MAX);
    }
    for (size_t b = 0; b < c->t->buffer.count; b++) {
        ls_vec_release(&c->instance[b].access);
        c->instance[b] = (struct instance){ 0 };
    }
    c->given_back.count = 0;
}

static enum ls_code check_ranges(const struct ls_run *x, struct ls_error *err)
{
    const struct ls_tables *t = x->p.job->tables;
    for (size_t j = 0; j < x->p.rank_first[x->p.job->ranks]; j++) {
        const struct ls_segment *s = x->p.table[x->p.table_of[j]].from;
        for (size_t i = 0; i < s->count; i++) {
            const struct ls_op *o = &s->op[i];
            if (o->ranges && ((uint64_t)o->range + o->ranges > t->range.count))
                return ls_fail(err, LS_EINPUT, LS_NOWHERE, "op %zu (%s): no such buffer range", i, ls_op_kind_name(o->kind));
            for (uint32_t k = 0; k < o->ranges; k++)
                if (t->range.at[o->range + k].buffer >= t->buffer.count)
                    return ls_fail(err, LS_EINPUT, LS_NOWHERE, "op %zu (%s): no such buffer", i, ls_op_kind_name(o->kind));
        }
    }
    return LS_OK;
}

enum ls_code ls_machine_races(const struct ls_job *job, size_t most, struct ls_arena *arena, struct ls_race **out, size_t *count,
                              struct ls_error *err)
{
    struct ls_arena state;
    struct ls_run run;
    struct ls_run_options options = { .level = LS_L2 };
    ls_arena_init(&state, 0);
    enum ls_code rc = ls_run_open(&run, job, &options, &state, err);
    if (rc == LS_OK)
        rc = check_ranges(&run, err);
    if (rc == LS_OK) {
        struct checker c = { .x = &run, .t = job->tables, .streams = run.p.streams, .threads = run.p.threads, .most = most };
        ls_run_to_end(&run);
        ls_arena_init(&c.scratch, 0);
        c.instance = calloc(job->tables->buffer.count + 1, sizeof *c.instance);
        if (!c.instance)
            ls_out_of_memory(job->tables->buffer.count * sizeof *c.instance);
        for (uint32_t r = 0; r < job->ranks && c.race.count < most; r++) {
            check_rank(&c, r);
            ls_arena_release(&c.scratch);
        }
        *count = c.race.count;
        *out = c.race.count ? ls_arena_copy(arena, c.race.at, c.race.count * sizeof *c.race.at) : NULL;
        ls_vec_release(&c.race);
        ls_vec_release(&c.given_back);
        free(c.instance);
    }
    ls_run_close(&run);
    ls_arena_release(&state);
    return rc;
}
