#include "check/words.h"

#include "base/hash.h"
#include "machine/machine.h"

#include <stdlib.h>
#include <string.h>

struct ls_digests {
    const struct ls_tables *tables;
    struct ls_arena *arena;
    LS_VEC(const struct ls_op *) op;           /* by word */
    uint32_t *slot; size_t room;               /* ops by what is compared; word + 1 */
    struct ls_intern meaning;
    const struct ls_digest **seen; size_t seen_room, seen_count; /* by address */
    ls_word_vec scratch;
    LS_VEC(const struct ls_op *) ops;
};

struct ls_digests *ls_digests_open(const struct ls_tables *tables, struct ls_arena *arena)
{
    struct ls_digests *d = LS_NEW(arena, struct ls_digests, 1);
    d->tables = tables;
    d->arena = arena;
    return d;
}

void ls_digests_close(struct ls_digests *d)
{
    if (!d)
        return;
    ls_vec_release(&d->op);
    ls_vec_release(&d->scratch);
    ls_vec_release(&d->ops);
    ls_intern_release(&d->meaning);
    free(d->slot);
    free(d->seen);
}

static uint64_t op_hash(const struct ls_op *op)
{
    bool own_counts = op->kind == LS_OP_ALL_TO_ALL && op->counts != LS_NO_ID; /* each member has counts of its own */
    return ls_hash_mix(ls_hash_mix(ls_hash_mix(op->comm, op->kind), own_counts ? 0 : op->count),
                       ls_hash_mix(op->payload, op->kind == LS_OP_DECIDE ? op->value : 0));
}

/* Ops that may meet get one number. Values of a decide count: a decide that agrees on nothing has no single outcome. */
static uint32_t word_of(struct ls_digests *d, const struct ls_op *op)
{
    if (2 * (d->op.count + 1) > d->room) {
        free(d->slot);
        d->room = d->room ? 2 * d->room : 64;
        d->slot = calloc(d->room, sizeof *d->slot);
        if (!d->slot)
            ls_out_of_memory(d->room * sizeof *d->slot);
        for (uint32_t w = 0; w < d->op.count; w++) {
            size_t at = op_hash(d->op.at[w]) & (d->room - 1);
            while (d->slot[at])
                at = (at + 1) & (d->room - 1);
            d->slot[at] = w + 1;
        }
    }
    size_t at = op_hash(op) & (d->room - 1);
    for (; d->slot[at]; at = (at + 1) & (d->room - 1)) {
        const struct ls_op *old = d->op.at[d->slot[at] - 1];
        if (old->comm == op->comm && old->payload == op->payload && (op->kind != LS_OP_DECIDE || old->value == op->value) &&
            ls_op_diff(d->tables, old, op) == LS_DIFF_NONE)
            return d->slot[at] - 1;
    }
    ls_push(&d->op, op);
    d->slot[at] = (uint32_t)d->op.count;
    return (uint32_t)(d->op.count - 1);
}

const struct ls_op *ls_digests_op(const struct ls_digests *d, uint32_t word)
{
    return d->op.at[word];
}

/* Resolves decides; false once a stop was reached. */
static bool resolve(struct ls_digests *d, const struct ls_op *op, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        ls_push(&d->ops, &op[i]);
        if (op[i].kind == LS_OP_STOP)
            return false;
        if (op[i].kind != LS_OP_DECIDE)
            continue;
        size_t then = op[i].then_count, other = op[i].else_count;
        if (op[i].value ? !resolve(d, op + i + 1, then) : !resolve(d, op + i + 1 + then, other))
            return false;
        i += then + other;
    }
    return true;
}

static const struct ls_digest *digest(struct ls_digests *d, const struct ls_segment *segment)
{
    struct ls_digest *g = LS_NEW(d->arena, struct ls_digest, 1);
    size_t comms = d->tables->comm.count;
    g->segment = segment;
    d->ops.count = 0;
    d->scratch.count = 0;
    g->stops = !resolve(d, segment->op, segment->count);
    g->count = d->ops.count;
    g->op = ls_arena_copy(d->arena, d->ops.at, g->count * sizeof *d->ops.at);
    g->first = LS_NEW(d->arena, uint32_t, comms + 1);
    g->threads = 1;
    for (size_t i = 0; i < g->count; i++) {
        const struct ls_op *op = g->op[i];
        uint32_t word = ls_op_uses_comm(op) ? word_of(d, op) : LS_NO_ID;
        uint32_t key[] = { op->kind, op->thread, op->stream, op->blocking, word, op->slots, op->fused, (uint32_t)op->peer,
                           op->event, op->kind == LS_OP_STOP ? op->cause : 0 };
        for (size_t k = 0; k < sizeof key / sizeof *key; k++)
            ls_push(&d->scratch, key[k]);
        g->fused = g->fused || op->fused;
        g->p2p = g->p2p || ls_op_is_p2p(op);
        g->decides = g->decides || op->kind == LS_OP_DECIDE;
        if (op->thread >= g->threads)
            g->threads = (uint8_t)(op->thread + 1);
        if (ls_op_is_collective(op))
            g->first[ls_word_comm(d->tables, op) + 1]++;
    }
    g->id = ls_intern_put(&d->meaning, d->scratch.at, d->scratch.count);
    for (size_t c = 0; c < comms; c++)
        g->first[c + 1] += g->first[c];
    g->word = LS_NEW(d->arena, uint32_t, g->first[comms]);
    uint32_t *filled = ls_arena_copy(d->arena, g->first, comms * sizeof *g->first);
    for (size_t i = 0; i < g->count; i++)
        if (ls_op_is_collective(g->op[i]))
            g->word[filled[ls_word_comm(d->tables, g->op[i])]++] = word_of(d, g->op[i]);
    return g;
}

static size_t seen_at(const struct ls_digests *d, const struct ls_segment *segment)
{
    size_t at = ls_hash_mix(1, (uint64_t)(uintptr_t)segment) & (d->seen_room - 1);
    while (d->seen[at] && d->seen[at]->segment != segment)
        at = (at + 1) & (d->seen_room - 1);
    return at;
}

const struct ls_digest *ls_digest_of(struct ls_digests *d, const struct ls_segment *segment)
{
    if (2 * (d->seen_count + 1) > d->seen_room) {
        const struct ls_digest **old = d->seen;
        size_t room = d->seen_room;
        d->seen_room = room ? 2 * room : 64;
        d->seen = calloc(d->seen_room, sizeof *d->seen);
        if (!d->seen)
            ls_out_of_memory(d->seen_room * sizeof *d->seen);
        for (size_t i = 0; i < room; i++)
            if (old[i])
                d->seen[seen_at(d, old[i]->segment)] = old[i];
        free(old);
    }
    size_t at = seen_at(d, segment);
    if (!d->seen[at]) {
        d->seen[at] = digest(d, segment);
        d->seen_count++;
    }
    return d->seen[at];
}
