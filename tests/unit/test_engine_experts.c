/* Experts on the engine: which elements of a parameter a rank has, and a job of four ranks written by hand (two groups of two; experts
 * are shared over ranks 0, 2 and 1, 3), right and with one thing wrong at a time. */
#include "build.h"
#include "replay/replay.h"

#include "check/gradient.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

/* Every element lies on one rank per copy of the unit, at its place; what is gathered holds the rank's part, block by block. */
Test(engine_experts, shards_tile_the_parameter)
{
    size_t cases = 0;
    for (uint32_t parts = 1; parts <= 4; parts++)
        for (uint64_t blocks = 1; blocks <= 3; blocks++)
            for (uint64_t rows = 1; rows <= 6; rows++)
                for (size_t shard = 1; shard <= 4; shard++)
                    for (uint64_t row = 1; row <= 2; row++) {
                        if (blocks > 1 && rows % shard)
                            continue;
                        struct ls_engine_param p = { .unit = 0, .parts = parts, .blocks = blocks, .rows = rows, .row = row };
                        struct ls_engine_unit u = { .shard = shard, .apart = parts };
                        struct ls_engine_setup s = { .param = &p, .params = 1, .unit = &u, .units = 1 };
                        uint64_t all = parts * blocks * rows * row, met = 0;
                        bool *seen = calloc(all, sizeof *seen);
                        for (uint32_t r = 0; r < parts * shard; r++) {
                            struct ls_param_cut mine = ls_param_cut(&s, 0, r, false), whole = ls_param_cut(&s, 0, r, true);
                            uint64_t n = ls_param_padded(&s, 0), run = n / blocks, place = ls_param_place(&s, 0, r);
                            cr_assert(ls_param_ranks(&s, 0) == shard && place == r / parts);
                            for (uint64_t i = 0; i < n; i++) {
                                /* where the all-gather puts it */
                                uint64_t k = (i / run * shard + place) * run + i % run;
                                bool valid = i % mine.run < mine.valid;
                                cr_assert_eq(valid, k % whole.run < whole.valid);
                                if (!valid)
                                    continue;
                                uint64_t e = mine.first + i / mine.run * mine.block + i % mine.run;
                                cr_assert_eq(e, whole.first + k / whole.run * whole.block + k % whole.run);
                                cr_assert(e < all && !seen[e], "element %llu", (unsigned long long)e);
                                cr_assert_eq(e / (blocks * rows * row), r % parts);
                                seen[e] = true;
                                met++;
                            }
                        }
                        cr_assert_eq(met, all);
                        free(seen);
                        cases++;
                    }
    cr_assert(cases > 300);
}

enum { RANKS = 4, EP = 2 };
enum fault { NONE, NOT_DIVIDED, WRONG_DIVISOR, OWN_TOKENS, REDUCED_WRONG, GATHERED_WRONG, LEFT_OUT_ONE, LEFT_OUT_PART, FAULTS };
enum { W, LOCAL, PARAMS };          /* experts of groups of two, shared by two ranks; experts of a group of all, whole on theirs */

struct world { struct job_builder b; uint32_t experts, groups, all, name[PARAMS], unit; };

static void range(struct world *w, struct ls_op *o, uint32_t buffer, bool write)
{
    if (!o->ranges)
        o->range = (uint32_t)w->b.tables.range.count;
    ls_push(&w->b.tables.range, (struct ls_range){ .buffer = buffer, .write = write });
    o->ranges++;
}

static uint32_t buffer(struct world *w, const char *name, enum ls_category category)
{
    ls_push(&w->b.tables.buffer, (struct ls_buffer){ .name = ls_name_id(w->b.tables.names, name), .category = (uint8_t)category });
    return (uint32_t)w->b.tables.buffer.count - 1;
}

static struct ls_op *op(struct world *w, uint32_t rank, enum ls_op_kind kind, uint32_t comm, enum ls_pass pass, bool of_unit)
{
    struct ls_op *o = build_op(&w->b, rank, kind, comm);
    o->pass = (uint8_t)pass;
    o->dtype = LS_DTYPE_F32;
    o->unit = of_unit ? w->unit : LS_NO_ID;
    return o;
}

static void memory(struct world *w, uint32_t rank, enum ls_op_kind kind, uint32_t b, uint64_t bytes, uint32_t module)
{
    struct ls_op *o = op(w, rank, kind, 0, LS_PASS_NONE, true);
    o->bytes = bytes;
    o->module = module;
    range(w, o, b, true);
}

static uint32_t items(struct world *w, const char *name, uint32_t first, size_t count)
{
    return ls_tables_payload(&w->b.tables, name, &w->name[first], count, 0);
}

static void kernel(struct world *w, struct ls_op *o, enum ls_kernel_what what, uint32_t statement)
{
    if (!o->kernels++)
        o->kernel = (uint32_t)w->b.tables.kernel.count;
    ls_push(&w->b.tables.kernel, (struct ls_kernel){ .what = (uint8_t)what, .statement = statement, .instance = LS_NO_ID });
}

/* One step: gathered, backward, reduced, divided by the size of a group, taken. W has 2 x 4 x 3 elements on a rank, half of them sharded. */
static void program(struct world *w, uint32_t rank, enum fault fault, const uint32_t *buffers)
{
    const uint32_t wrong = w->groups, full = buffers[0], ag = buffers[1], in = buffers[2], out = buffers[3];
    const uint64_t shard = 12, bytes = shard * 4;
    memory(w, rank, LS_OP_ALLOC, ag, 2 * bytes, LS_NO_ID);
    range(w, op(w, rank, LS_OP_COPY_IN, 0, LS_PASS_F, true), ag, true);
    struct ls_op *o = op(w, rank, LS_OP_ALL_GATHER, fault == GATHERED_WRONG ? wrong : w->experts, LS_PASS_F, true);
    o->count = shard;
    range(w, o, ag, true);
    memory(w, rank, LS_OP_ALLOC, full, 2 * bytes, w->name[W]);
    o = op(w, rank, LS_OP_COPY_OUT, 0, LS_PASS_F, true);
    range(w, o, ag, false);
    range(w, o, full, true);
    memory(w, rank, LS_OP_FREE, ag, 0, LS_NO_ID);
    for (uint32_t mb = 0; mb < 2; mb++) {
        for (uint32_t p = W; p < PARAMS; p++) {
            o = op(w, rank, LS_OP_COMPUTE, 0, LS_PASS_B, false);
            o->microbatch = mb;
            o->payload = items(w, "gradients", p, 1);
            o->sources = (uint16_t)(p == LOCAL ? w->all : fault == OWN_TOKENS && rank == 3 ? LS_NO_COMM : w->groups);
            kernel(w, o, LS_KERNEL_ACCUMULATE, p);
            if (p == W)
                range(w, o, full, false);
        }
    }
    memory(w, rank, LS_OP_FREE, full, 0, w->name[W]);
    memory(w, rank, LS_OP_ALLOC, in, 2 * bytes, LS_NO_ID);
    o = op(w, rank, LS_OP_COPY_IN, 0, LS_PASS_B, true);
    o->payload = items(w, "unit", W, 1);
    range(w, o, in, true);
    memory(w, rank, LS_OP_ALLOC, out, bytes, LS_NO_ID);
    o = op(w, rank, LS_OP_REDUCE_SCATTER, fault == REDUCED_WRONG ? wrong : w->experts, LS_PASS_B, true);
    o->payload = items(w, "unit", W, 1);
    o->reduce = LS_REDUCE_AVG;
    o->count = shard;
    range(w, o, in, false);
    range(w, o, out, true);
    if (fault != NOT_DIVIDED) { /* W: 1/2 by the average; LOCAL: by nobody else */
        for (uint32_t p = W; p < PARAMS; p++) {
            o = op(w, rank, LS_OP_COMPUTE, 0, LS_PASS_OPT, false);
            o->payload = items(w, p == W ? "shared" : "local", p, 1);
            o->factor = (struct ls_ratio){ 1, p == W ? EP : fault == WRONG_DIVISOR ? EP : RANKS };
        }
    }
    o = op(w, rank, LS_OP_COMPUTE, 0, LS_PASS_OPT, false);
    o->payload = items(w, "optimizer", W, PARAMS);
    kernel(w, o, (fault == LEFT_OUT_ONE && rank == 2) || (fault == LEFT_OUT_PART && rank % EP) ? LS_KERNEL_LEFT_OUT : LS_KERNEL_OPTIMIZER, LS_NO_ID);
    memory(w, rank, LS_OP_FREE, in, 0, LS_NO_ID);
    memory(w, rank, LS_OP_FREE, out, 0, LS_NO_ID);
}

static void run(enum fault fault, struct ls_prediction *p, struct ls_replay *r, struct world *w, struct ls_engine_setup *s, struct ls_str *why)
{
    struct ls_error err = { 0 };
    build_open(&w->b, RANKS);
    w->experts = build_comm(&w->b, "ep_shard", 2, (const uint32_t[]){ 0, 2, 1, 3 }, (const size_t[]){ 2, 2 });
    w->groups = build_comm(&w->b, "ep", 2, (const uint32_t[]){ 0, 1, 2, 3 }, (const size_t[]){ 2, 2 });
    w->all = build_world(&w->b, "all");
    w->name[W] = ls_name_id(w->b.tables.names, "w");
    w->name[LOCAL] = ls_name_id(w->b.tables.names, "local");
    w->unit = ls_name_id(w->b.tables.names, "unit");
    const uint32_t buffers[] = { buffer(w, "full unit", LS_CATEGORY_UNSHARDED), buffer(w, "ag", LS_CATEGORY_GATHER), buffer(w, "in", LS_CATEGORY_REDUCE),
                                 buffer(w, "out", LS_CATEGORY_REDUCE) };
    for (uint32_t rank = 0; rank < RANKS; rank++)
        program(w, rank, fault, buffers);
    struct ls_job *job = LS_NEW(&w->b.arena, struct ls_job, 1);
    *job = build_job(&w->b);
    struct ls_engine_param *param = LS_NEW(&w->b.arena, struct ls_engine_param, PARAMS);
    struct ls_engine_unit *unit = LS_NEW(&w->b.arena, struct ls_engine_unit, 1);
    static const uint32_t of_unit[] = { W };
    for (uint32_t i = 0; i < PARAMS; i++) /* [4 experts, 4, 3], cut along dim 1; [4 experts x 4, 3] */
        param[i] = (struct ls_engine_param){ .name = w->name[i], .unit = i == W ? 0 : LS_NO_ID, .parts = i == W ? EP : RANKS, .blocks = i == W ? 2 : 1, .rows = 4, .row = 3,
                                             .dtype = LS_DTYPE_F32, .compute = LS_DTYPE_F32, .grad = LS_DTYPE_F32, .trains = true, .local = i == LOCAL };
    *unit = (struct ls_engine_unit){ .name = w->unit, .param = of_unit, .params = 1, .shard = 2, .apart = EP };
    *s = (struct ls_engine_setup){ .job = job, .param = param, .params = PARAMS, .unit = unit, .units = 1, .shard = RANKS, .mean = true, .seed = 3 };
    struct ls_engine_options o = { .poison = true };
    cr_assert_eq(ls_replay_predict(s, &o, true, &w->b.arena, p, &err), LS_OK, "%s", err.text);
    cr_assert_eq(ls_replay_run(s, &o, true, &w->b.arena, r, &err), LS_OK, "%s", err.text);
    cr_assert(ls_replay_agrees(s, p, r, why), "fault %d: %s", fault, ls_str_text(why));
    cr_assert(ls_replay_calls(s, r, why), "fault %d: %s", fault, ls_str_text(why));
}

static bool is(struct ls_ratio r, uint32_t num, uint32_t den) { return r.num == num && r.den == den; }

Test(engine_experts, one_thing_wrong_at_a_time)
{
    static const struct { enum ls_verdict verdict; uint32_t param, num, den; size_t shares, missing; bool corrupted; } want[FAULTS] = {
        [NONE] = { LS_SAFE, 0, 0, 0, 0, 0, false },
        [NOT_DIVIDED] = { LS_WRONG_SCALE, W, 1, 2, 8, 0, false },
        [WRONG_DIVISOR] = { LS_WRONG_SCALE, LOCAL, 1, 2, 8, 0, false },
        /* rank 3's part lacks the tokens of rank 2, but nobody produces them either: what is left is right */
        [OWN_TOKENS] = { LS_SAFE, 0, 0, 0, 0, 0, false },
        /* the shares of its own group once for its own part, and those for the other part instead of the other group's */
        [REDUCED_WRONG] = { LS_LOST_GRADIENT, W, 0, 1, 8, 4, false },
        [GATHERED_WRONG] = { LS_SAFE, 0, 0, 0, 0, 0, true },
        [LEFT_OUT_ONE] = { LS_LOST_GRADIENT, W, 0, 1, 8, 8, false },
        /* nobody with these experts takes the step */
        [LEFT_OUT_PART] = { LS_SAFE, 0, 0, 0, 0, 0, false },
    };
    for (int f = NONE; f < FAULTS; f++) {
        struct world w;
        struct ls_prediction p;
        struct ls_replay r;
        struct ls_engine_setup s;
        struct ls_str why = { 0 };
        run((enum fault)f, &p, &r, &w, &s, &why);
        cr_expect_eq(r.verdict, want[f].verdict, "fault %d: %s", f, ls_verdict_name(r.verdict));
        cr_expect_eq(r.symbolic.corrupted > 0, want[f].corrupted, "fault %d: %zu", f, r.symbolic.corrupted);
        cr_expect(r.symbolic.gradients > 0 && r.symbolic.parameters > 0);
        if (r.verdict != LS_SAFE)
            cr_expect(r.share.param == w.name[want[f].param] && is(r.share.found, want[f].num, want[f].den) && r.share.shares == want[f].shares &&
                      r.share.missing == want[f].missing, "fault %d: param %u, %u/%u, %zu of %zu missing", f, r.share.param, r.share.found.num,
                      r.share.found.den, r.share.missing, r.share.shares);
        ls_str_release(&why);
        build_close(&w.b);
    }
}
