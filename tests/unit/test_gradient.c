#include "check/gradient.h"

#include "build.h"

#include <criterion/criterion.h>

/* Two or four ranks, parameters p and q of one unit; `shard` and `replicate` groups. */
struct step { struct job_builder b; uint32_t shard, replicate; };

static void open_step(struct step *s, size_t ranks)
{
    build_open(&s->b, ranks);
    if (ranks == 2) {
        s->shard = build_world(&s->b, "shard");
    } else {
        s->shard = build_comm(&s->b, "shard", 2, (const uint32_t[]){ 0, 1, 2, 3 }, (const size_t[]){ 2, 2 });
        s->replicate = build_comm(&s->b, "replicate", 2, (const uint32_t[]){ 0, 2, 1, 3 }, (const size_t[]){ 2, 2 });
    }
}

static struct ls_op *add(struct step *s, uint32_t rank, enum ls_op_kind kind, uint32_t comm, enum ls_pass pass, const char *params, uint32_t microbatch)
{
    struct ls_op *op = build_op(&s->b, rank, kind, comm);
    uint32_t items[8], n = 0;
    for (const char *p = params; *p; p++) {
        char name[2] = { *p, 0 };
        items[n++] = ls_name_id(s->b.tables.names, name);
    }
    op->pass = (uint8_t)pass;
    op->payload = ls_tables_payload(&s->b.tables, params, items, n, n);
    op->microbatch = microbatch;
    return op;
}

static void share(struct step *s, uint32_t rank, const char *params, uint32_t mb) { add(s, rank, LS_OP_COMPUTE, 0, LS_PASS_B, params, mb); }
static void reduce(struct step *s, uint32_t rank, const char *params, enum ls_reduce how)
{
    add(s, rank, LS_OP_COPY_IN, 0, LS_PASS_B, params, 0);
    add(s, rank, LS_OP_REDUCE_SCATTER, s->shard, LS_PASS_B, params, 0)->reduce = (uint8_t)how;
}
static void all_reduce(struct step *s, uint32_t rank, const char *params)
{
    add(s, rank, LS_OP_ALL_REDUCE, s->replicate, LS_PASS_B, params, 0)->reduce = LS_REDUCE_AVG;
}
static void optimizer(struct step *s, uint32_t rank) { add(s, rank, LS_OP_COMPUTE, 0, LS_PASS_OPT, "pq", 0); }

static enum ls_verdict judge(struct step *s, bool mean, struct ls_share_problem *p)
{
    struct ls_job job = build_job(&s->b);
    struct ls_run_options run = { .level = LS_L2 };
    struct ls_outcome out;
    struct ls_error err;
    enum ls_verdict v;
    cr_assert_eq(ls_machine_run(&job, &run, &s->b.arena, &out, &err), LS_OK, "%s", err.text);
    cr_assert_eq(out.verdict, LS_SAFE, "%s", ls_verdict_name(out.verdict));
    cr_assert_eq(ls_check_gradients(&job, mean, &v, p, &err), LS_OK, "%s", err.text);
    return v;
}

static bool is(struct ls_ratio r, uint32_t num, uint32_t den) { return (uint64_t)r.num * den == (uint64_t)num * r.den && r.den; }

/* A rank that leaves its step out loses what its shards hold: of one row nothing, if another rank has it. */
Test(gradient, steps_left_out_lose_what_the_rank_holds)
{
    static const struct { uint64_t rows; uint32_t rank; enum ls_verdict v; } of[] = {
        { 0, 1, LS_LOST_GRADIENT }, { 2, 1, LS_LOST_GRADIENT }, { 1, 1, LS_SAFE }, { 1, 0, LS_LOST_GRADIENT } };
    for (size_t i = 0; i < sizeof of / sizeof of[0]; i++) {
        struct step s;
        struct ls_share_problem p;
        open_step(&s, 2);
        for (uint32_t r = 0; r < 2; r++) {
            share(&s, r, "p", 0);
            reduce(&s, r, "p", LS_REDUCE_AVG);
            struct ls_op *op = add(&s, r, LS_OP_COMPUTE, 0, LS_PASS_OPT, "p", 0);
            if (r != of[i].rank)
                continue;
            op->kernel = (uint32_t)s.b.tables.kernel.count;
            op->kernels = 1;
            ls_push(&s.b.tables.kernel, (struct ls_kernel){ .what = LS_KERNEL_LEFT_OUT, .instance = LS_NO_ID });
        }
        ls_tables_set_rows(&s.b.tables, ls_name_id(s.b.tables.names, "p"), of[i].rows);
        cr_expect_eq(judge(&s, true, &p), of[i].v, "%zu", i);
        cr_expect(of[i].v == LS_SAFE || (p.rank == 0 && p.missing == 2), "%zu: rank %u, %zu missing", i, p.rank, p.missing);
        build_close(&s.b);
    }
}

Test(gradient, averages_over_two_ranks_and_two_microbatches)
{
    struct step s;
    struct ls_share_problem p;
    for (int accumulate = 0; accumulate < 2; accumulate++) {
        open_step(&s, 2);
        for (uint32_t r = 0; r < 2; r++) {
            for (uint32_t mb = 0; mb < 2; mb++) {
                share(&s, r, "p", mb);
                share(&s, r, "q", mb);
                if (mb == 1 || !accumulate)
                    reduce(&s, r, "pq", LS_REDUCE_AVG);
            }
            optimizer(&s, r);
        }
        cr_assert_eq(judge(&s, true, &p), LS_SAFE);
        cr_assert_eq(judge(&s, false, &p), LS_WRONG_SCALE);
        cr_assert(is(p.found, 1, 2) && is(p.expected, 1, 1) && p.missing == 0 && p.shares == 4);
        build_close(&s.b);
    }
}

Test(gradient, a_share_that_is_not_reduced_is_lost)
{
    struct step s;
    struct ls_share_problem p;
    open_step(&s, 2);
    for (uint32_t r = 0; r < 2; r++) {
        share(&s, r, "p", 0);
        reduce(&s, r, "p", LS_REDUCE_AVG);
        if (r == 1)
            share(&s, r, "q", 0); /* only rank 1 uses q, and q is in no reduction */
        optimizer(&s, r);
    }
    cr_assert_eq(judge(&s, true, &p), LS_LOST_GRADIENT);
    cr_assert_str_eq(ls_name_text(s.b.tables.names, p.param), "q");
    cr_assert(p.rank == 1 && p.microbatch == 0 && p.missing == 1 && p.shares == 1 && is(p.found, 0, 1) && is(p.expected, 1, 2));
    build_close(&s.b);
}

Test(gradient, a_share_computed_after_the_reduction_is_lost)
{
    struct step s;
    struct ls_share_problem p;
    open_step(&s, 2);
    for (uint32_t r = 0; r < 2; r++) {
        share(&s, r, "pq", 0);
        reduce(&s, r, "pq", LS_REDUCE_AVG);
        if (r == 0)
            share(&s, r, "p", 1);
        optimizer(&s, r);
    }
    cr_assert_eq(judge(&s, true, &p), LS_LOST_GRADIENT);
    cr_assert(p.rank == 0 && p.microbatch == 1 && p.missing == 1 && p.shares == 3);
    build_close(&s.b);
}

/* `microbatches: any` compiles all but the last microbatch to one round: its segments carry the same number. */
Test(gradient, a_share_of_one_of_two_segments_with_one_number_is_lost)
{
    struct step s;
    struct ls_share_problem p;
    open_step(&s, 2);
    for (uint32_t r = 0; r < 2; r++) {
        share(&s, r, "pq", 0);
        reduce(&s, r, "pq", LS_REDUCE_AVG);
        build_cut(&s.b, r);
        share(&s, r, "pq", 0);
        reduce(&s, r, "pq", LS_REDUCE_AVG);
        build_cut(&s.b, r);
        if (r == 0)
            share(&s, r, "p", 0);
        optimizer(&s, r);
    }
    cr_assert_eq(judge(&s, true, &p), LS_LOST_GRADIENT);
    cr_assert(p.rank == 0 && p.microbatch == 0 && p.missing == 1 && p.shares == 5 && is(p.found, 0, 1));
    build_close(&s.b);
}

Test(gradient, a_factor_changes_the_scale)
{
    struct step s;
    struct ls_share_problem p;
    for (uint32_t den = 1; den <= 4; den++) {
        open_step(&s, 2);
        for (uint32_t r = 0; r < 2; r++) {
            share(&s, r, "pq", 0);
            reduce(&s, r, "pq", LS_REDUCE_SUM);
            s.b.op[r].at[s.b.op[r].count - 1].factor = (struct ls_ratio){ 1, den };
            optimizer(&s, r);
        }
        cr_assert_eq(judge(&s, true, &p), den == 2 ? LS_SAFE : LS_WRONG_SCALE);
        cr_assert(den == 2 || (is(p.found, 1, den) && is(p.expected, 1, 2)));
        cr_assert_eq(judge(&s, false, &p), den == 1 ? LS_SAFE : LS_WRONG_SCALE);
        build_close(&s.b);
    }
}

Test(gradient, hybrid_sharding_reduces_twice)
{
    /* 0: all-reduced every microbatch; 1: only in the last, with what the first left; 2: never; 3: only on one reduction */
    for (int how = 0; how < 4; how++) {
        struct step s;
        struct ls_share_problem p;
        open_step(&s, 4);
        for (uint32_t r = 0; r < 4; r++) {
            for (uint32_t mb = 0; mb < 2; mb++) {
                share(&s, r, "pq", mb);
                reduce(&s, r, "pq", LS_REDUCE_AVG);
                if (how == 0 || (how == 1 && mb == 1) || (how == 3 && mb == 0))
                    all_reduce(&s, r, "pq");
            }
            optimizer(&s, r);
        }
        enum ls_verdict v = judge(&s, true, &p);
        cr_assert_eq(v, how < 2 ? LS_SAFE : LS_LOST_GRADIENT, "%d: %s", how, ls_verdict_name(v));
        if (how == 2)
            cr_assert(p.missing == 4 && p.shares == 8 && is(p.found, 0, 1) && p.rank == 2);
        if (how == 3)
            cr_assert(p.missing == 2 && p.shares == 8 && p.rank == 2 && p.microbatch == 1);
        build_close(&s.b);
    }
}

Test(gradient, steps_are_told_apart)
{
    for (int late = 0; late < 2; late++) {
        struct step s;
        struct ls_share_problem p;
        open_step(&s, 2);
        for (uint32_t r = 0; r < 2; r++)
            for (uint32_t step = 0; step < 3; step++) {
                share(&s, r, "pq", 0);
                if (!late || step != 1)
                    reduce(&s, r, "pq", LS_REDUCE_AVG);
                optimizer(&s, r);
                build_cut(&s.b, r);
            }
        enum ls_verdict v = judge(&s, true, &p);
        cr_assert_eq(v, late ? LS_LOST_GRADIENT : LS_SAFE);
        cr_assert(!late || (p.missing == 2 && p.shares == 2)); /* the second step; the third gets them, too late */
        build_close(&s.b);
    }
}

/* Reductions of one unit may be issued while those of another wait: data is ordered by issue, not by completion. */
Test(gradient, units_in_flight)
{
    struct step s;
    struct ls_share_problem p;
    open_step(&s, 4);
    for (uint32_t r = 0; r < 4; r++) {
        share(&s, r, "p", 0);
        add(&s, r, LS_OP_COPY_IN, 0, LS_PASS_B, "p", 0);
        share(&s, r, "q", 0);
        add(&s, r, LS_OP_COPY_IN, 0, LS_PASS_B, "q", 0);
        struct ls_op *a = add(&s, r, LS_OP_REDUCE_SCATTER, s.shard, LS_PASS_B, "p", 0);
        a->reduce = LS_REDUCE_AVG;
        a->stream = 1;
        struct ls_op *b = add(&s, r, LS_OP_REDUCE_SCATTER, s.shard, LS_PASS_B, "q", 0);
        b->reduce = LS_REDUCE_AVG;
        b->stream = 1;
        all_reduce(&s, r, "q");
        all_reduce(&s, r, "p");
        optimizer(&s, r);
    }
    cr_assert_eq(judge(&s, true, &p), LS_SAFE);
    build_close(&s.b);
}
