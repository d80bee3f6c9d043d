#include "families.h"

#include "base/hash.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void families_release(struct families *x)
{
    ls_tables_release(&x->tables);
    ls_arena_release(&x->arena);
}

static void open_tables(struct families *x)
{
    memset(x, 0, sizeof *x);
    ls_arena_init(&x->arena, 0);
    ls_tables_init(&x->tables, &x->arena);
}

static const struct ls_segment *segment(struct families *x, const ls_op_vec *ops)
{
    struct ls_segment *s = LS_NEW(&x->arena, struct ls_segment, 1);
    *s = (struct ls_segment){ ls_arena_copy(&x->arena, ops->at, ops->count * sizeof *ops->at), ops->count, 0 };
    s->hash = ls_segment_hash(s->op, s->count);
    return s;
}

/* ---- the FSDP-like step ---- */

struct writer { struct families *x; const struct fsdp_like *c; ls_op_vec ops; uint32_t last_event; };

static void collective(struct writer *w, enum ls_op_kind kind, const char *pass, const char *unit, size_t i)
{
    char name[64];
    snprintf(name, sizeof name, "%s.%zu", unit, i);
    struct ls_op op = ls_op_make(kind);
    op.comm = 0;
    op.stream = kind == LS_OP_REDUCE_SCATTER && w->c->two_streams ? 1 : 0;
    op.count = 1024;
    op.dtype = LS_DTYPE_BF16;
    op.payload = ls_tables_payload(&w->x->tables, name, NULL, 0, 1024);
    ls_push(&w->ops, op);
    if (kind != LS_OP_ALL_GATHER)
        return;
    snprintf(name, sizeof name, "%s.%s.%zu", pass, unit, i);
    struct ls_op record = ls_op_make(LS_OP_RECORD), wait = ls_op_make(LS_OP_HOST_WAIT);
    record.event = ls_tables_event(&w->x->tables, name);
    ls_push(&w->ops, record);
    wait.event = w->last_event;
    if (w->last_event != LS_NO_ID) /* wait for the one before: this one is the prefetch */
        ls_push(&w->ops, wait);
    w->last_event = record.event;
}

static void backward(struct writer *w, const char *unit, size_t i)
{
    if (strcmp(unit, "root") != 0)
        collective(w, LS_OP_ALL_GATHER, "backward", unit, i);
    collective(w, LS_OP_REDUCE_SCATTER, "backward", unit, i);
}

static const struct ls_segment *microbatch(struct writer *w, bool image)
{
    const struct fsdp_like *c = w->c;
    size_t towers = image || !c->per_layer ? c->towers : 0;
    w->ops.count = 0;
    w->last_event = LS_NO_ID;
    collective(w, LS_OP_ALL_GATHER, "forward", "root", 0);
    for (size_t i = 0; i < towers; i++)
        collective(w, LS_OP_ALL_GATHER, "forward", "tower", i);
    for (size_t i = 0; i < c->layers; i++)
        collective(w, LS_OP_ALL_GATHER, "forward", "layer", i);
    for (size_t i = c->layers; i-- > 0;)
        backward(w, "layer", i);
    for (size_t i = towers; i-- > 0;)
        backward(w, "tower", i);
    backward(w, "root", 0);
    return segment(w->x, &w->ops);
}

static const struct ls_segment *step_end(struct writer *w)
{
    w->ops.count = 0;
    for (uint8_t s = 0; s < (w->c->two_streams ? 2 : 1); s++) {
        struct ls_op record = ls_op_make(LS_OP_RECORD), wait = ls_op_make(LS_OP_HOST_WAIT);
        record.event = wait.event = ls_tables_event(&w->x->tables, s ? "end.1" : "end.0");
        record.stream = s;
        ls_push(&w->ops, record);
        ls_push(&w->ops, wait);
    }
    return segment(w->x, &w->ops);
}

static struct ls_groups *one_group(struct families *x, size_t ranks)
{
    struct ls_groups *g = LS_NEW(&x->arena, struct ls_groups, 1);
    uint32_t *list = LS_NEW(&x->arena, uint32_t, ranks);
    for (size_t r = 0; r < ranks; r++)
        list[r] = (uint32_t)r;
    if (ls_groups_from_lists(g, &x->arena, ranks, (const uint32_t *const[]){ list }, &ranks, 1, LS_NOWHERE, NULL) != LS_OK)
        abort();
    return g;
}

void families_fsdp(struct families *x, const struct fsdp_like *c)
{
    open_tables(x);
    (void)ls_tables_comm(&x->tables, "shard");
    (void)ls_tables_stream(&x->tables, "gather");
    (void)ls_tables_stream(&x->tables, "reduce");
    struct writer w = { .x = x, .c = c };
    const struct ls_segment *image = microbatch(&w, true), *text = microbatch(&w, false), *end = step_end(&w);
    struct ls_choices *node = LS_NEW(&x->arena, struct ls_choices, c->microbatches + 2);
    for (uint32_t m = 0; m < c->microbatches; m++) {
        struct ls_choice *choice = LS_NEW(&x->arena, struct ls_choice, 2);
        choice[0] = (struct ls_choice){ text, m + 1, 0 };
        choice[1] = (struct ls_choice){ image, m + 1, 1 };
        node[m] = (struct ls_choices){ choice, 2 };
    }
    struct ls_choice *last = LS_NEW(&x->arena, struct ls_choice, 1);
    *last = (struct ls_choice){ end, (uint32_t)c->microbatches + 1, 0 };
    node[c->microbatches] = (struct ls_choices){ last, 1 };
    struct ls_family_rank *rank = LS_NEW(&x->arena, struct ls_family_rank, c->ranks);
    for (size_t r = 0; r < c->ranks; r++)
        rank[r] = (struct ls_family_rank){ node, c->microbatches + 2 };
    x->family = (struct ls_family){ &x->tables, c->ranks, rank, one_group(x, c->ranks) };
    ls_vec_release(&w.ops);
}

/* ---- random families ----
 *
 * Segments of one round are written from a common skeleton and then changed here and there, so that about half of the families
 * are safe: independent random programs hardly ever are. */

struct random_ops { struct families *x; const struct random_family *c; uint64_t seed; size_t comms, streams; };

static size_t below(struct random_ops *g, size_t n)
{
    return n ? (size_t)ls_random_below(&g->seed, n) : 0;
}

static struct ls_op random_op(struct random_ops *g)
{
    static const uint8_t collectives[] = { LS_OP_ALL_GATHER, LS_OP_REDUCE_SCATTER, LS_OP_ALL_REDUCE };
    size_t dice = below(g, 12);
    struct ls_op op = ls_op_make(dice < 6 ? collectives[below(g, 3)] : dice < 8 ? LS_OP_COMPUTE : dice == 8 ? LS_OP_RECORD
                                 : dice == 9 ? LS_OP_WAIT : dice == 10 ? LS_OP_HOST_WAIT : LS_OP_MARK);
    op.stream = (uint8_t)below(g, g->streams);
    if (ls_op_is_collective(&op)) {
        op.comm = (uint16_t)below(g, g->comms);
        op.count = 4;
        op.dtype = LS_DTYPE_F32;
        op.reduce = op.kind == LS_OP_ALL_GATHER ? LS_REDUCE_NONE : LS_REDUCE_SUM;
        op.payload = (uint32_t)below(g, g->x->tables.payload.count);
        op.blocking = below(g, 8) == 0;
    }
    if (op.kind == LS_OP_RECORD || op.kind == LS_OP_WAIT || op.kind == LS_OP_HOST_WAIT)
        op.event = (uint32_t)below(g, g->x->tables.event.count);
    return op;
}

static const struct ls_segment *random_segment(struct random_ops *g, const ls_op_vec *skeleton)
{
    ls_op_vec ops = { 0 };
    for (size_t i = 0; i < skeleton->count; i++) {
        struct ls_op op = skeleton->at[i];
        if (ls_op_is_collective(&op)) {
            size_t dice = below(g, 20);
            if (dice == 0)
                continue;
            if (dice == 1)
                op.stream = (uint8_t)below(g, g->streams);
            if (dice == 2)
                op.payload = (uint32_t)below(g, g->x->tables.payload.count);
            ls_push(&ops, op);
            if (dice == 3 && ops.count > 1) {
                struct ls_op swap = ops.at[ops.count - 2];
                ops.at[ops.count - 2] = ops.at[ops.count - 1];
                ops.at[ops.count - 1] = swap;
            }
        } else {
            ls_push(&ops, below(g, 3) ? op : random_op(g));
            if (ls_op_is_collective(&ops.at[ops.count - 1]))
                ops.count--;
        }
    }
    const struct ls_segment *s = segment(g->x, &ops);
    ls_vec_release(&ops);
    return s;
}

static const struct ls_choices *random_choices(struct random_ops *g, const ls_op_vec *skeleton, size_t rounds)
{
    struct ls_choices *node = LS_NEW(&g->x->arena, struct ls_choices, rounds + 1);
    for (size_t i = 0; i < rounds; i++) {
        size_t n = 1 + below(g, g->c->choices_max);
        struct ls_choice *choice = LS_NEW(&g->x->arena, struct ls_choice, n);
        for (size_t k = 0; k < n; k++)
            choice[k] = (struct ls_choice){ random_segment(g, &skeleton[i]), (uint32_t)i + 1, (uint32_t)k };
        node[i] = (struct ls_choices){ choice, n };
    }
    return node;
}

/* A random partition: each rank joins a random one of `parts` lists. */
static struct ls_groups random_groups(struct random_ops *g, size_t ranks)
{
    size_t parts = 1 + below(g, 3) / 2;
    struct ls_groups out;
    uint32_t *list[2] = { LS_NEW(&g->x->arena, uint32_t, ranks), LS_NEW(&g->x->arena, uint32_t, ranks) };
    size_t length[2] = { 0, 0 };
    for (uint32_t r = 0; r < ranks; r++) {
        size_t to = below(g, parts);
        list[to][length[to]++] = r;
    }
    if (length[0] == 0) { /* no empty group */
        list[0] = list[1];
        length[0] = length[1];
        length[1] = 0;
    }
    const uint32_t *const lists[2] = { list[0], list[1] };
    if (ls_groups_from_lists(&out, &g->x->arena, ranks, lists, length, length[1] ? 2 : 1, LS_NOWHERE, NULL) != LS_OK)
        abort();
    return out;
}

void families_random(struct families *x, const struct random_family *c, uint64_t seed)
{
    open_tables(x);
    struct random_ops g = { .x = x, .c = c, .seed = seed };
    char name[24];
    size_t ranks = 2 + below(&g, c->ranks_max - 1), rounds = 1 + below(&g, c->rounds_max);
    g.comms = 1 + below(&g, c->comms_max);
    g.streams = 1 + below(&g, c->streams_max);
    for (size_t i = 0; i < g.comms; i++) {
        snprintf(name, sizeof name, "c%zu", i);
        (void)ls_tables_comm(&x->tables, name);
    }
    for (size_t i = 0; i < g.streams; i++) {
        snprintf(name, sizeof name, "s%zu", i);
        (void)ls_tables_stream(&x->tables, name);
    }
    for (size_t i = 0; i < 3; i++) {
        snprintf(name, sizeof name, "e%zu", i);
        (void)ls_tables_event(&x->tables, name);
        (void)ls_tables_payload(&x->tables, name, NULL, 0, 4);
    }
    ls_op_vec *skeleton = LS_NEW(&x->arena, ls_op_vec, rounds);
    for (size_t i = 0; i < rounds; i++)
        for (size_t n = 1 + below(&g, c->ops_max); n > 0; n--)
            ls_push(&skeleton[i], random_op(&g));
    struct ls_family_rank *rank = LS_NEW(&x->arena, struct ls_family_rank, ranks);
    const struct ls_choices *shared = random_choices(&g, skeleton, rounds);
    bool alike = below(&g, 2) == 0;
    for (size_t r = 0; r < ranks; r++)
        rank[r] = (struct ls_family_rank){ alike || below(&g, 2) ? shared : random_choices(&g, skeleton, rounds), rounds + 1 };
    struct ls_groups *comm = LS_NEW(&x->arena, struct ls_groups, g.comms);
    for (size_t i = 0; i < g.comms; i++)
        comm[i] = random_groups(&g, ranks);
    x->family = (struct ls_family){ &x->tables, ranks, rank, comm };
    for (size_t i = 0; i < rounds; i++)
        ls_vec_release(&skeleton[i]);
}
