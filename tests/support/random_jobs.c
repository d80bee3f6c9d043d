#include "random_jobs.h"

#include "base/hash.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

struct maker {
    struct job_builder *b;
    const struct random_wish *wish;
    uint64_t random;
    uint32_t streams, threads, events, fused;
    LS_VEC(unsigned char) locked[BUILD_RANKS]; /* inside a branch: may not be moved */
    bool lock;
    bool follow; /* streams are the same on all ranks */
};

static uint32_t below(struct maker *m, uint32_t n) { return (uint32_t)ls_random_below(&m->random, n); }
static bool chance(struct maker *m, uint32_t percent) { return below(m, 100) < percent; }

static void add_comm(struct maker *m, uint32_t i)
{
    uint32_t member[BUILD_RANKS], n = (uint32_t)m->b->ranks;
    size_t length[BUILD_RANKS], groups = 0;
    char name[16];
    snprintf(name, sizeof name, "c%u", i);
    for (uint32_t r = 0; r < n; r++)
        member[r] = r;
    for (uint32_t r = n; chance(m, 40) && r > 1; r--) { /* another member order */
        uint32_t o = below(m, r), t = member[o];
        member[o] = member[r - 1], member[r - 1] = t;
    }
    uint32_t used = 0;
    while (used < n) {
        uint32_t left = n - used, size = i == 0 || chance(m, 50) ? left : 1 + below(m, left);
        length[groups++] = size;
        used += size;
    }
    if (groups > 1 && chance(m, 30)) /* some ranks are in no group */
        groups--;
    build_comm(m->b, name, groups, member, length);
}

static struct ls_op *put(struct maker *m, uint32_t rank, const struct ls_op *op)
{
    ls_push(&m->b->op[rank], *op);
    ls_push(&m->locked[rank], m->lock);
    return &m->b->op[rank].at[m->b->op[rank].count - 1];
}

static const struct ls_groups *some_group(struct maker *m, uint32_t *comm, uint32_t *group)
{
    *comm = below(m, (uint32_t)m->b->groups.count);
    const struct ls_groups *g = &m->b->groups.at[*comm];
    *group = below(m, (uint32_t)g->groups);
    return g;
}

static void local_ops(struct maker *m, uint32_t rank)
{
    static const enum ls_op_kind kind[] = { LS_OP_COMPUTE, LS_OP_RECORD, LS_OP_WAIT, LS_OP_HOST_WAIT, LS_OP_RECORD, LS_OP_WAIT, LS_OP_MARK };
    struct ls_op op = ls_op_make(kind[below(m, 7)]);
    op.stream = (uint8_t)below(m, m->streams);
    op.thread = (uint8_t)below(m, m->threads);
    op.blocking = chance(m, 5);
    if (op.kind == LS_OP_RECORD || op.kind == LS_OP_WAIT || op.kind == LS_OP_HOST_WAIT)
        op.event = below(m, m->events);
    put(m, rank, &op);
}

static void collective(struct maker *m, uint32_t comm, uint32_t group, enum ls_op_kind kind, uint32_t fused)
{
    const struct ls_groups *g = &m->b->groups.at[comm];
    struct ls_op op = ls_op_make(kind);
    uint32_t size = g->first[group + 1] - g->first[group];
    op.comm = (uint16_t)comm;
    op.count = 1 + below(m, 2);
    op.dtype = chance(m, 50) ? LS_DTYPE_F32 : LS_DTYPE_BF16;
    op.stream = (uint8_t)(chance(m, 60) ? comm % m->streams : below(m, m->streams));
    op.blocking = chance(m, 25);
    op.fused = fused;
    op.slots = m->wish->slots && chance(m, 15) ? 2 : 0;
    if (kind == LS_OP_REDUCE || kind == LS_OP_BROADCAST || kind == LS_OP_GATHER || kind == LS_OP_SCATTER)
        op.peer = (int32_t)below(m, size);
    if (kind == LS_OP_ALL_REDUCE || kind == LS_OP_REDUCE || kind == LS_OP_REDUCE_SCATTER || kind == LS_OP_DECIDE)
        op.reduce = chance(m, 50) ? LS_REDUCE_SUM : LS_REDUCE_MAX;
    char name[16];
    snprintf(name, sizeof name, "p%u", below(m, 3));
    build_payload(m->b, &op, name);
    bool vectors = kind != LS_OP_DECIDE && chance(m, 8), alike = chance(m, 80);
    uint64_t entry = below(m, 2);
    for (uint32_t i = g->first[group]; i < g->first[group + 1]; i++) {
        if (vectors) { /* the same content, at another index */
            op.counts = (uint32_t)m->b->tables.vector.count;
            ls_push(&m->b->tables.vector, 2);
            ls_push(&m->b->tables.vector, 3);
            ls_push(&m->b->tables.vector, alike ? entry : below(m, 2));
        }
        struct ls_op *o = put(m, g->rank[i], &op);
        o->thread = (uint8_t)below(m, m->threads);
        if (!m->follow && chance(m, 30))
            o->stream = (uint8_t)below(m, m->streams);
        if (kind == LS_OP_DECIDE)
            o->value = chance(m, 40);
    }
}

/* What a member of a group just issued is recorded, and something else of that rank waits for it. */
static void hand_over(struct maker *m, uint32_t comm, uint32_t group)
{
    const struct ls_groups *g = &m->b->groups.at[comm];
    uint32_t event = below(m, m->events), stream = below(m, m->streams);
    bool all = chance(m, 60);
    for (uint32_t i = g->first[group]; i < g->first[group + 1]; i++) {
        ls_op_vec *v = &m->b->op[g->rank[i]];
        if (v->count == 0 || !(all || chance(m, 50)))
            continue;
        struct ls_op op = ls_op_make(LS_OP_RECORD);
        op.event = event;
        op.stream = v->at[v->count - 1].stream;
        op.thread = v->at[v->count - 1].thread;
        put(m, g->rank[i], &op);
        if (chance(m, 15))
            local_ops(m, g->rank[i]);
        op.kind = chance(m, 25) ? LS_OP_HOST_WAIT : LS_OP_WAIT;
        op.stream = (uint8_t)stream;
        put(m, g->rank[i], &op);
    }
}

static enum ls_op_kind some_kind(struct maker *m)
{
    static const enum ls_op_kind kind[] = { LS_OP_ALL_GATHER, LS_OP_REDUCE_SCATTER, LS_OP_ALL_REDUCE, LS_OP_REDUCE, LS_OP_BROADCAST,
                                            LS_OP_ALL_TO_ALL, LS_OP_GATHER, LS_OP_SCATTER, LS_OP_SCAN, LS_OP_BARRIER, LS_OP_COMM_INIT };
    return kind[below(m, 11)];
}

static void p2p(struct maker *m, uint32_t comm, uint32_t group, uint32_t from, uint32_t to, uint32_t fused)
{
    const struct ls_groups *g = &m->b->groups.at[comm];
    struct ls_op op = ls_op_make(LS_OP_SEND);
    op.comm = (uint16_t)comm;
    op.count = 1 + below(m, 2);
    op.fused = fused;
    op.peer = (int32_t)to;
    op.stream = (uint8_t)below(m, m->streams);
    op.blocking = chance(m, 25);
    put(m, g->rank[g->first[group] + from], &op)->thread = (uint8_t)below(m, m->threads);
    op.kind = LS_OP_RECV;
    op.peer = (int32_t)from;
    put(m, g->rank[g->first[group] + to], &op)->thread = (uint8_t)below(m, m->threads);
}

static void branch(struct maker *m, uint32_t depth)
{
    uint32_t comm, group, length[2];
    const struct ls_groups *g = some_group(m, &comm, &group);
    uint32_t first = g->first[group], end = g->first[group + 1];
    uint32_t at[BUILD_RANKS], before[BUILD_RANKS];
    bool was = m->lock;
    m->lock = true;
    collective(m, comm, group, LS_OP_DECIDE, 0);
    for (uint32_t i = first; i < end; i++)
        at[i - first] = (uint32_t)m->b->op[g->rank[i]].count - 1;
    for (uint32_t side = 0; side < 2; side++) {
        for (uint32_t i = first; i < end; i++)
            before[i - first] = (uint32_t)m->b->op[g->rank[i]].count;
        length[side] = below(m, 3);
        for (uint32_t k = 0; k < length[side]; k++)
            if (chance(m, 50)) /* one number on both sides: two groups */
                collective(m, comm, group, some_kind(m), m->wish->fused && chance(m, 40) ? 1000000 : 0);
            else if (chance(m, 30))
                hand_over(m, comm, group);
            else
                for (uint32_t i = first; i < end; i++)
                    if (chance(m, 50))
                        local_ops(m, g->rank[i]);
        if (depth == 0 && chance(m, 20)) { /* a decide inside of a side, alone */
            struct ls_op op = ls_op_make(LS_OP_DECIDE);
            op.comm = (uint16_t)comm;
            op.reduce = LS_REDUCE_MAX;
            op.then_count = 1;
            bool value = chance(m, 50);
            for (uint32_t i = first; i < end; i++) {
                op.value = value;
                put(m, g->rank[i], &op);
                struct ls_op in = ls_op_make(LS_OP_BARRIER);
                in.comm = (uint16_t)comm;
                put(m, g->rank[i], &in);
            }
        }
        for (uint32_t i = first; i < end; i++) {
            struct ls_op *d = &m->b->op[g->rank[i]].at[at[i - first]];
            uint32_t n = (uint32_t)m->b->op[g->rank[i]].count - before[i - first];
            if (side == 0)
                d->then_count = n;
            else
                d->else_count = n;
        }
    }
    m->lock = was;
}

static void step(struct maker *m)
{
    uint32_t comm, group, pick = below(m, 100);
    const struct ls_groups *g = some_group(m, &comm, &group);
    uint32_t size = g->first[group + 1] - g->first[group];
    if (pick < 35)
        local_ops(m, below(m, (uint32_t)m->b->ranks));
    else if (pick < 50 && m->wish->p2p) {
        uint32_t from = below(m, size), to = below(m, size), fused = m->wish->fused && chance(m, 50) ? ++m->fused : 0;
        if (from == to && !fused)
            return;
        p2p(m, comm, group, from, to, fused);
        if (fused)
            p2p(m, comm, group, to, from, fused);
    } else if (pick < 57 && m->wish->fused) {
        uint32_t fused = ++m->fused, other, other_group;
        collective(m, comm, group, some_kind(m), fused);
        some_group(m, &other, &other_group);
        collective(m, other, other_group, some_kind(m), fused);
    } else if (pick < 64 && m->wish->decide)
        branch(m, 0);
    else {
        collective(m, comm, group, some_kind(m), 0);
        if (chance(m, 25) && !m->wish->order)
            hand_over(m, comm, group);
    }
}

static void mutate(struct maker *m)
{
    uint32_t rank = below(m, (uint32_t)m->b->ranks);
    ls_op_vec *v = &m->b->op[rank];
    if (v->count < 2)
        return;
    uint32_t i = below(m, (uint32_t)v->count), what = below(m, 9);
    struct ls_op *op = &v->at[i];
    bool locked = m->locked[rank].at[i];
    if (m->wish->order) {
        what = 0;
        if (i + 1 >= v->count || !ls_op_uses_comm(op) || !ls_op_uses_comm(op + 1) || op->comm == op[1].comm)
            return;
    }
    switch (what) {
    case 0:
    case 1:
        if (i + 1 < v->count && !locked && !m->locked[rank].at[i + 1]) {
            struct ls_op t = v->at[i];
            v->at[i] = v->at[i + 1];
            v->at[i + 1] = t;
        }
        return;
    case 2:
        if (!locked) {
            memmove(op, op + 1, (v->count - i - 1) * sizeof *op);
            memmove(&m->locked[rank].at[i], &m->locked[rank].at[i + 1], v->count - i - 1);
            v->count--;
            m->locked[rank].count--;
        }
        return;
    case 3:
        op->count++;
        return;
    case 4:
        if (ls_op_uses_comm(op))
            build_payload(m->b, op, "other");
        return;
    case 5:
        op->blocking = !op->blocking;
        return;
    case 6:
        op->dtype = LS_DTYPE_F16;
        return;
    case 7:
        if (ls_op_is_collective(op) && op->kind != LS_OP_DECIDE)
            op->kind = (uint8_t)some_kind(m);
        return;
    default:
        if (m->wish->stop && !locked) {
            struct ls_op stop = ls_op_make(LS_OP_STOP);
            stop.thread = op->thread;
            *op = stop;
        }
        return;
    }
}

void random_job(struct job_builder *b, const struct random_wish *wish, uint64_t seed)
{
    struct maker m = { .b = b, .wish = wish, .random = seed };
    build_open(b, 2 + (chance(&m, 40) ? 0 : below(&m, 5)));
    uint32_t comms = 1 + below(&m, 3), steps = 1 + below(&m, wish->steps);
    for (uint32_t c = 0; c < comms; c++)
        add_comm(&m, c);
    if (comms > 1 && chance(&m, 30))
        b->tables.comm.at[comms - 1].parent = 0; /* c0 holds every rank */
    m.streams = 1 + below(&m, 3);
    m.threads = wish->threads && chance(&m, 50) ? 2 : 1;
    m.events = chance(&m, 60) ? 1 : 2;
    m.follow = chance(&m, 60);
    for (uint32_t i = 0; i < steps; i++)
        step(&m);
    for (uint32_t i = chance(&m, 40) ? 0 : below(&m, wish->mutations + 1); i > 0; i--)
        mutate(&m);
    for (uint32_t r = 0; r < b->ranks; r++) {
        uint32_t last = 0;
        for (uint32_t i = 1; i < b->op[r].count; i++)
            if (!(m.locked[r].at[i] && m.locked[r].at[i - 1]) && i > last && chance(&m, 20)) {
                ls_push(&b->cut[r], i);
                last = i;
            }
        ls_vec_release(&m.locked[r]);
    }
}
