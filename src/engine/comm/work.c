/* Each member's part of the data of an op that has met. */
#include "engine/comm/internal.h"

#include <assert.h>

void work_part(const struct ticket *t, size_t j, uint64_t *first, uint64_t *count)
{
    *first = j * t->op.count;
    *count = t->op.count;
    if (!t->call.counts)
        return;
    *first = 0;
    for (size_t i = 0; i < j; i++)
        *first += t->call.counts[i];
    *count = t->call.counts[j];
}

struct ls_tensor work_slice(struct ls_tensor t, uint64_t first, uint64_t count)
{
    t.offset_bytes += first * ls_dtype_bytes(t.dtype);
    t.elements = count;
    return t;
}

static void copy(struct ls_tensor to, struct ls_tensor from)
{
    struct ls_move m = { .to = to, .from = from };
    bool same = to.of == from.of && to.offset_bytes == from.offset_bytes;
    if (to.of && from.of && !same)
        ls_move_run(&m, 1);
}

bool work_has_data(const struct ticket *t)
{
    return t->call.in.of && t->call.in.of->at;
}

static bool has_room(const struct ticket *t)
{
    return t->call.out.of && t->call.out.of->at;
}

/* Inputs of other processes begin where this one needs them. */
static struct ls_tensor input(const struct ticket *t, uint64_t first, uint64_t count)
{
    return work_slice(t->call.in, first - t->base, count);
}

static uint64_t elements(const struct ticket *t) { return t->op.kind == LS_OP_DECIDE ? 1 : t->op.count; }

void work_share(const struct place *p, const struct ticket *t, size_t j, uint64_t *first, uint64_t *count)
{
    uint64_t n = elements(t);
    *first = n * j / p->sides;
    *count = n * (j + 1) / p->sides - *first;
}

/* Members share the elements: each reduces some of them, for all outputs. */
static void reduce_part(struct place *p, struct ticket *t, size_t me, bool to_all)
{
    struct ls_tensor in[MEMBERS_MAX], out[MEMBERS_MAX + 1];
    uint64_t first, count;
    size_t outs = 0;
    work_share(p, t, me, &first, &count);
    for (size_t i = 0; i < p->sides; i++) {
        const struct ticket *from = p->queue[i].head;
        if (!count || !work_has_data(from))
            return;
        in[i] = input(from, first, count);
        if (from->bundle && (to_all || (int32_t)i == t->op.peer) && has_room(from))
            out[outs++] = work_slice(from->call.out, first, count);
    }
    if (remote_makes_result(p, t)) {
        remote_make_result(t, count);
        out[outs++] = t->result;
    }
    if (outs)
        ls_reduce_run(in, p->sides, count, (enum ls_reduce)t->op.reduce, t->op.factor, out, outs);
}

/* The members that are here share the elements: what others need, they make themselves. */
static void scan_part(struct place *p, struct ticket *t, size_t me)
{
    struct ls_tensor in[MEMBERS_MAX];
    size_t before = 0;
    for (size_t i = 0; i < me; i++)
        before += p->queue[i].head->bundle != NULL;
    uint64_t n = t->op.count, first = n * before / p->local, count = n * (before + 1) / p->local - first;
    for (size_t i = 0; i < p->sides; i++)
        if (!work_has_data(p->queue[i].head))
            return;
        else
            in[i] = input(p->queue[i].head, first, count);
    for (size_t i = p->sides; count && i-- > 0;) { /* from the last: an output in place is not read again */
        struct ls_tensor out = work_slice(p->queue[i].head->call.out, first, count);
        if (p->queue[i].head->bundle)
            ls_reduce_run(in, i + 1, count, (enum ls_reduce)t->op.reduce, t->op.factor, &out, 1);
    }
}

static void scatter_reduce_part(struct place *p, struct ticket *t, size_t me)
{
    struct ls_tensor in[MEMBERS_MAX];
    uint64_t first, count;
    work_part(t, me, &first, &count);
    for (size_t i = 0; i < p->sides; i++)
        if (!count || !work_has_data(p->queue[i].head))
            return;
        else
            in[i] = input(p->queue[i].head, first, count);
    if (has_room(t))
        ls_reduce_run(in, p->sides, count, (enum ls_reduce)t->op.reduce, t->op.factor, &t->call.out, 1);
}

static void exchange_part(struct place *p, struct ticket *t, size_t me)
{
    uint64_t at = 0, first, count;
    for (size_t i = 0; i < p->sides; i++) {
        const struct ticket *from = p->queue[i].head;
        work_part(from, me, &first, &count);
        if (work_has_data(from) && has_room(t))
            copy(work_slice(t->call.out, at, count), input(from, first, count));
        at += count;
    }
}

void work_take(struct place *p, struct ticket *t)
{
    bool to_all = t->op.kind != LS_OP_REDUCE;
    for (size_t i = 0; i < p->sides && has_room(t) && (to_all || (int32_t)t->side == t->op.peer); i++) {
        const struct ticket *from = p->queue[i].head;
        uint64_t first, count;
        work_share(p, from, i, &first, &count);
        if (!from->bundle && count)
            copy(work_slice(t->call.out, first, count), from->result);
    }
}

size_t work_root(const struct place *p, const struct ticket *t)
{
    return t->op.peer >= 0 && (size_t)t->op.peer < p->sides ? (size_t)t->op.peer : 0;
}

/* This member's share of the data. Nobody else writes what it reads or reads what it writes. */
void work_run(struct place *p, struct ticket *t)
{
    size_t me = t->side;
    uint64_t first, count;
    size_t root = work_root(p, t);
    assert(p->sides <= MEMBERS_MAX);
    switch ((enum ls_op_kind)t->op.kind) {
    case LS_OP_ALL_GATHER:
    case LS_OP_GATHER:
        if (!has_room(t) || (t->op.kind == LS_OP_GATHER && me != root))
            return;
        for (size_t i = 0; i < p->sides; i++) {
            work_part(t, i, &first, &count);
            if (work_has_data(p->queue[i].head))
                copy(work_slice(t->call.out, first, count), input(p->queue[i].head, 0, count));
        }
        return;
    case LS_OP_REDUCE_SCATTER:
        scatter_reduce_part(p, t, me);
        return;
    case LS_OP_ALL_REDUCE:
    case LS_OP_DECIDE:
        reduce_part(p, t, me, true);
        return;
    case LS_OP_REDUCE:
        reduce_part(p, t, me, false);
        return;
    case LS_OP_SCAN:
        scan_part(p, t, me);
        return;
    case LS_OP_BROADCAST:
        if (has_room(t) && work_has_data(p->queue[root].head) && me != root)
            copy(work_slice(t->call.out, 0, t->op.count), input(p->queue[root].head, 0, t->op.count));
        else if (me == root && has_room(t) && work_has_data(t))
            copy(work_slice(t->call.out, 0, t->op.count), work_slice(t->call.in, 0, t->op.count));
        return;
    case LS_OP_SCATTER:
        work_part(t, me, &first, &count);
        if (has_room(t) && work_has_data(p->queue[root].head))
            copy(work_slice(t->call.out, 0, count), input(p->queue[root].head, first, count));
        return;
    case LS_OP_ALL_TO_ALL:
        exchange_part(p, t, me);
        return;
    case LS_OP_RECV:
        if (has_room(t) && work_has_data(p->queue[0].head))
            copy(work_slice(t->call.out, 0, t->op.count), input(p->queue[0].head, 0, t->op.count));
        return;
    case LS_OP_SEND:
    case LS_OP_BARRIER:
    case LS_OP_COMM_INIT:
        return;
    case LS_OP_COMPUTE: case LS_OP_COPY_IN: case LS_OP_COPY_OUT: case LS_OP_RECORD: case LS_OP_WAIT: case LS_OP_HOST_WAIT:
    case LS_OP_ALLOC: case LS_OP_FREE: case LS_OP_MARK: case LS_OP_STOP: case LS_OP_COUNT:
        break;
    }
    assert(false && "not communication");
}

