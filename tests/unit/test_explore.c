#include "build.h"
#include "families.h"
#include "random_jobs.h"

#include "check/explore.h"
#include "check/resident.h"

#include <criterion/criterion.h>
#include <string.h>

static struct ls_explored explore(struct families *x, struct ls_explore_options o)
{
    struct ls_explored e;
    struct ls_error err = { 0 };
    cr_assert_eq(ls_explore(&x->family, &o, &x->arena, &e, &err), LS_OK, "%s", err.text);
    return e;
}

static enum ls_verdict run_job(const struct ls_job *job, enum ls_level level, struct ls_arena *arena)
{
    struct ls_run_options o = { .level = level };
    struct ls_outcome out;
    struct ls_error err = { 0 };
    cr_assert_eq(ls_machine_run(job, &o, arena, &out, &err), LS_OK, "%s", err.text);
    return out.verdict;
}

static struct ls_explored explore_job(const struct ls_job *job, struct ls_explore_options o, struct ls_arena *arena)
{
    struct ls_family f;
    struct ls_explored e;
    struct ls_error err = { 0 };
    ls_family_of_job(job, arena, &f);
    cr_assert_eq(ls_explore(&f, &o, arena, &e, &err), LS_OK, "%s", err.text);
    return e;
}

/* Mismatch and mispairing can occur in one job; which of them is named depends on the place that is looked at first. */
static enum ls_verdict kind(enum ls_verdict v)
{
    return v == LS_MISPAIRING ? LS_MISMATCH : v;
}

/* ---- by hand ---- */

Test(explore, counts_the_states_of_two_ranks_and_one_collective)
{
    /* Each rank issues (2 states), then both complete: (0,0) (1,0) (0,1) (1,1) (done, done). */
    struct job_builder b;
    build_open(&b, 2);
    uint32_t g = build_world(&b, "g");
    for (uint32_t r = 0; r < 2; r++)
        build_op(&b, r, LS_OP_ALL_REDUCE, g);
    struct ls_job job = build_job(&b);
    struct ls_explored e = explore_job(&job, (struct ls_explore_options){ .run.level = LS_L2 }, &b.arena);
    cr_assert_eq(e.verdict, LS_SAFE);
    cr_assert_eq(e.states, 5);
    cr_assert_eq(e.transitions, 5);
    cr_assert_eq(e.depth, 3);
    build_close(&b);
}

Test(explore, counts_the_interleavings_of_independent_ops)
{
    /* Without collectives the ranks do not meet: 4 ops in a row on each of 3 ranks, issued and then run, 0 <= run <= issued <= 4. */
    struct job_builder b;
    build_open(&b, 3);
    for (uint32_t r = 0; r < 3; r++)
        for (int i = 0; i < 4; i++)
            build_op(&b, r, LS_OP_COMPUTE, 0);
    struct ls_job job = build_job(&b);
    struct ls_explored e = explore_job(&job, (struct ls_explore_options){ .run.level = LS_L2 }, &b.arena);
    cr_assert_eq(e.states, 15 * 15 * 15);
    cr_assert_eq(e.depth, 24);
    e = explore_job(&job, (struct ls_explore_options){ .run.level = LS_L1 }, &b.arena); /* one op at a time: 9 places */
    cr_assert_eq(e.states, 9 * 9 * 9);
    e = explore_job(&job, (struct ls_explore_options){ .run = { .level = LS_L2, .run_ahead = 1 } }, &b.arena);
    cr_assert_eq(e.states, 9 * 9 * 9);
    build_close(&b);
}

Test(explore, finds_the_violation_of_the_mixed_batch_and_its_choices)
{
    for (size_t ranks = 2; ranks <= 3; ranks++)
        for (int reduce = 0; reduce <= 1; reduce++)
            for (int per_layer = 0; per_layer <= 1; per_layer++) {
                struct families x;
                families_fsdp(&x, &(struct fsdp_like){ ranks, 1, 1, 1, per_layer, true });
                struct ls_explored e = explore(&x, (struct ls_explore_options){ .run.level = LS_L2, .reduce = reduce });
                cr_assert_eq(e.verdict != LS_SAFE, per_layer, "ranks=%zu reduce=%d", ranks, reduce);
                if (per_layer) {
                    bool image = false, text = false;
                    cr_assert_not_null(e.pick);
                    for (size_t r = 0; r < ranks; r++) {
                        image = image || e.pick[r][0] == 1;
                        text = text || e.pick[r][0] == 0;
                    }
                    cr_assert(image && text, "only a mixed batch fails");
                    cr_assert_gt(e.steps, 0);
                }
                families_release(&x);
            }
}

Test(explore, reaches_limits_without_a_verdict)
{
    struct families x;
    families_fsdp(&x, &(struct fsdp_like){ 3, 1, 2, 1, false, false });
    struct ls_explored e = explore(&x, (struct ls_explore_options){ .run.level = LS_L2, .states_max = 1000 });
    cr_assert_eq(e.verdict, LS_UNDECIDED);
    cr_assert_str_eq(e.limit, "states");
    e = explore(&x, (struct ls_explore_options){ .run.level = LS_L2, .reduce = true, .states_max = 2 });
    cr_assert_eq(e.verdict, LS_UNDECIDED);
    e = explore(&x, (struct ls_explore_options){ .run.level = LS_L2, .bytes_max = 4096 });
    cr_assert_str_eq(e.limit, "memory");
    families_release(&x);
}

Test(explore, refuses_what_it_does_not_cover)
{
    struct { uint32_t fused; uint8_t thread; enum ls_op_kind kind; } cases[] = { { 1, 0, LS_OP_ALL_REDUCE }, { 0, 1, LS_OP_ALL_REDUCE },
                                                                                { 0, 0, LS_OP_SEND } };
    for (size_t i = 0; i < 3; i++) {
        struct job_builder b;
        build_open(&b, 2);
        uint32_t g = build_world(&b, "g");
        struct ls_op *op = build_op(&b, 0, cases[i].kind, g);
        op->fused = cases[i].fused;
        op->thread = cases[i].thread;
        op->peer = cases[i].kind == LS_OP_SEND ? 1 : -1;
        struct ls_job job = build_job(&b);
        struct ls_family f;
        struct ls_explored e;
        struct ls_error err = { 0 };
        ls_family_of_job(&job, &b.arena, &f);
        cr_assert_eq(ls_explore(&f, &(struct ls_explore_options){ .run = { .level = LS_L3, .kernels = 1 } }, &b.arena, &e, &err), LS_EINPUT);
        cr_assert(strstr(err.text, "does not cover"), "%s", err.text);
        build_close(&b);
    }
}

Test(explore, sends_meet_receives)
{
    for (int swapped = 0; swapped <= 1; swapped++) { /* both receive first: rendezvous at L1 hangs */
        struct job_builder b;
        build_open(&b, 2);
        uint32_t g = build_world(&b, "g");
        for (uint32_t r = 0; r < 2; r++)
            for (int i = 0; i < 2; i++) {
                bool send = (i == 0) == (r == 0 && !swapped);
                build_op(&b, r, send ? LS_OP_SEND : LS_OP_RECV, g)->peer = (int32_t)(1 - r);
            }
        struct ls_job job = build_job(&b);
        for (int reduce = 0; reduce <= 1; reduce++) {
            struct ls_explored e = explore_job(&job, (struct ls_explore_options){ .run.level = LS_L1, .reduce = reduce }, &b.arena);
            cr_assert_eq(e.verdict, swapped ? LS_HANG : LS_SAFE);
        }
        build_close(&b);
    }
}

/* ---- kernels that must fit ---- */

static void two_streams(struct job_builder *b)
{
    build_open(b, 2);
    uint32_t c[2] = { build_world(b, "a"), build_world(b, "b") };
    for (uint32_t r = 0; r < 2; r++)
        for (uint32_t i = 0; i < 2; i++)
            build_op(b, r, LS_OP_ALL_REDUCE, c[i])->stream = (uint8_t)i;
}

Test(resident, one_slot_and_free_start_order_can_hang)
{
    struct job_builder b;
    struct ls_family f;
    struct ls_resident k;
    two_streams(&b);
    struct ls_job job = build_job(&b);
    ls_family_of_job(&job, &b.arena, &f);
    for (int reduce = 0; reduce <= 1; reduce++) {
        struct ls_explore_options o = { .reduce = reduce };
        cr_assert_eq(ls_resident_least(&f, LS_START_ANY, &o, &b.arena, &k, NULL), LS_OK);
        cr_assert_eq(k.bound, 2);
        cr_assert_eq(k.least, 2);
        cr_assert_eq(k.verdict, LS_SAFE);
        cr_assert_eq(ls_resident_least(&f, LS_START_ISSUE_ORDER, &o, &b.arena, &k, NULL), LS_OK);
        cr_assert_eq(k.least, 1);
        o.run = (struct ls_run_options){ .level = LS_L3, .kernels = 1 };
        struct ls_explored e = explore_job(&job, o, &b.arena);
        cr_assert_eq(e.verdict, LS_HANG);
        cr_assert(e.slots, "a kernel waits for a slot");
    }
    build_close(&b);
}

/* Rank 0: A before B, then C on its own stream. Rank 1: C before A, then B on its own stream. L2-safe (C, A, B), but kernels
 * that start in issue order are stuck however many fit. */
Test(resident, issue_order_can_hang_with_any_number_of_slots)
{
    struct job_builder b;
    struct ls_family f;
    struct ls_resident k;
    build_open(&b, 2);
    uint32_t c[3] = { build_world(&b, "a"), build_world(&b, "b"), build_world(&b, "c") };
    const uint32_t order[2][3] = { { 0, 1, 2 }, { 2, 0, 1 } };
    for (uint32_t r = 0; r < 2; r++)
        for (uint32_t i = 0; i < 3; i++)
            build_op(&b, r, LS_OP_ALL_REDUCE, c[order[r][i]])->stream = i == 2;
    struct ls_job job = build_job(&b);
    ls_family_of_job(&job, &b.arena, &f);
    cr_assert_eq(run_job(&job, LS_L2, &b.arena), LS_SAFE);
    struct ls_explore_options o = { .reduce = true };
    cr_assert_eq(ls_resident_least(&f, LS_START_ISSUE_ORDER, &o, &b.arena, &k, NULL), LS_OK);
    cr_assert_eq(k.least, 0);
    cr_assert_eq(k.verdict, LS_HANG);
    cr_assert_eq(ls_resident_least(&f, LS_START_ANY, &o, &b.arena, &k, NULL), LS_OK);
    cr_assert_eq(k.verdict, LS_SAFE);
    cr_assert_eq(k.least, 2);
    build_close(&b);
}

/* FSDP: all-gather and reduce-scatter streams share a communicator, all-reduce and context parallelism have their own: 3. */
Test(resident, bound_is_a_matching_of_streams_and_communicators)
{
    struct job_builder b;
    struct ls_family f;
    build_open(&b, 1);
    uint32_t shard = build_world(&b, "shard"), replicate = build_world(&b, "replicate"), cp = build_world(&b, "cp");
    build_op(&b, 0, LS_OP_ALL_GATHER, shard)->stream = 0;
    build_op(&b, 0, LS_OP_REDUCE_SCATTER, shard)->stream = 1;
    build_op(&b, 0, LS_OP_ALL_REDUCE, replicate)->stream = 2;
    build_op(&b, 0, LS_OP_ALL_GATHER, cp)->stream = 3;
    struct ls_job job = build_job(&b);
    ls_family_of_job(&job, &b.arena, &f);
    cr_assert_eq(ls_resident_bound_of_family(&f, &b.arena), 3);
    uint32_t second = build_world(&b, "reduce_scatter");
    build_op(&b, 0, LS_OP_REDUCE_SCATTER, second)->stream = 1;
    job = build_job(&b);
    ls_family_of_job(&job, &b.arena, &f);
    cr_assert_eq(ls_resident_bound_of_family(&f, &b.arena), 4);
    build_close(&b);
}

/* ---- random ---- */

static const struct random_family small = { .ranks_max = 3, .rounds_max = 2, .choices_max = 2, .ops_max = 4, .comms_max = 3, .streams_max = 3 };

static const struct random_family tiny = { .ranks_max = 3, .rounds_max = 1, .choices_max = 2, .ops_max = 4, .comms_max = 3, .streams_max = 3 };

/* Every member of the family by the machine: is there an unsafe one? */
static bool unsafe_member(struct families *x, enum ls_level level, struct ls_arena *arena)
{
    size_t nodes;
    bool unsafe = false;
    cr_assert_eq(ls_family_check(&x->family, &nodes, NULL), LS_OK);
    uint32_t **pick = LS_NEW(arena, uint32_t *, x->family.ranks);
    size_t *picks = LS_NEW(arena, size_t, x->family.ranks);
    for (size_t r = 0; r < x->family.ranks; r++)
        pick[r] = LS_NEW(arena, uint32_t, nodes);
    while (!unsafe && ls_family_next(&x->family, pick, picks, nodes)) {
        struct ls_job job;
        ls_family_job(&x->family, (const uint32_t *const *)pick, picks, arena, &job);
        unsafe = run_job(&job, level, arena) != LS_SAFE;
    }
    return unsafe;
}

Test(explore, agrees_with_the_machine_on_every_member_of_random_families)
{
    size_t unsafe = 0, cases = 150;
    for (uint64_t seed = 1; seed <= cases; seed++)
        for (int level = LS_L1; level <= LS_L2; level++) {
            struct families x;
            families_random(&x, &small, seed);
            bool bad = unsafe_member(&x, (enum ls_level)level, &x.arena);
            for (int reduce = 0; reduce <= 2; reduce++) {
                struct ls_explored e = explore(&x, (struct ls_explore_options){ .run.level = (enum ls_level)level, .reduce = reduce > 0,
                                                                                .no_symmetry = reduce > 1 });
                cr_assert_neq(e.verdict, LS_UNDECIDED);
                cr_assert_eq(e.verdict != LS_SAFE, bad, "seed=%llu level=%d reduce=%d: %s", (unsigned long long)seed, level, reduce,
                             ls_verdict_name(e.verdict));
                if (bad) { /* the choices that are reported fail when the machine runs them */
                    struct ls_job job;
                    cr_assert_not_null(e.pick);
                    ls_family_job(&x.family, (const uint32_t *const *)e.pick, e.picks, &x.arena, &job);
                    cr_assert_neq(run_job(&job, (enum ls_level)level, &x.arena), LS_SAFE, "seed=%llu", (unsigned long long)seed);
                }
            }
            unsafe += bad;
            families_release(&x);
        }
    cr_assert(unsafe > cases / 4 && unsafe < cases * 7 / 4, "%zu of %zu unsafe: the generator tells nothing", unsafe, 2 * cases);
}

Test(explore, names_the_same_kind_of_violation_as_the_machine)
{
    size_t seen[LS_VERDICT_COUNT] = { 0 };
    for (uint64_t seed = 1; seed <= 400; seed++) {
        struct job_builder b;
        random_job(&b, &(struct random_wish){ .p2p = seed % 3 == 0, 
                                              .decide = seed % 4 == 0, .stop = seed % 2 == 0, .mutations = 4, .steps = 6 },
                   seed);
        struct ls_job job = build_job(&b);
        for (int level = LS_L1; level <= LS_L2; level++) {
            enum ls_verdict want = run_job(&job, (enum ls_level)level, &b.arena);
            seen[want]++;
            struct ls_explored e = explore_job(&job, (struct ls_explore_options){ .run.level = (enum ls_level)level, .reduce = true }, &b.arena);
            cr_assert_eq(kind(e.verdict), kind(want), "seed=%llu level=%d: %s, the machine says %s\n%s", (unsigned long long)seed, level,
                         ls_verdict_name(e.verdict), ls_verdict_name(want), build_text(&b));
        }
        build_close(&b);
    }
    cr_assert(seen[LS_SAFE] > 50 && seen[LS_HANG] > 20 && seen[LS_MISMATCH] > 20 && seen[LS_ERROR] > 2, "safe %zu hang %zu mismatch %zu error %zu",
              seen[LS_SAFE], seen[LS_HANG], seen[LS_MISMATCH], seen[LS_ERROR]);
}

Test(explore, reductions_keep_the_verdict_with_few_slots)
{
    size_t differ = 0;
    for (uint64_t seed = 1; seed <= 120; seed++) {
        struct families x;
        families_random(&x, &tiny, seed);
        bool l2 = explore(&x, (struct ls_explore_options){ .run.level = LS_L2, .reduce = true }).verdict != LS_SAFE;
        for (unsigned k = 1; k <= 2; k++)
            for (int start = LS_START_ANY; start <= LS_START_ISSUE_ORDER; start++) {
                struct ls_explore_options o = { .run = { .level = LS_L3, .kernels = k, .start = (enum ls_start)start } };
                enum ls_verdict plain = explore(&x, o).verdict;
                o.reduce = true;
                enum ls_verdict reduced = explore(&x, o).verdict;
                o.no_symmetry = true;
                enum ls_verdict asymmetric = explore(&x, o).verdict;
                cr_assert(plain != LS_UNDECIDED && reduced != LS_UNDECIDED);
                cr_assert_eq(plain != LS_SAFE, reduced != LS_SAFE, "seed=%llu k=%u start=%d", (unsigned long long)seed, k, start);
                cr_assert_eq(plain != LS_SAFE, asymmetric != LS_SAFE, "seed=%llu k=%u start=%d", (unsigned long long)seed, k, start);
                cr_assert(!l2 || plain != LS_SAFE, "slots cannot help: seed=%llu", (unsigned long long)seed);
                differ += !l2 && plain != LS_SAFE;
            }
        families_release(&x);
    }
    cr_assert_geq(differ, 3, "L3 hardly ever differs from L2: %zu", differ);
}

Test(resident, enough_slots_make_l3_equal_l2)
{
    for (uint64_t seed = 1; seed <= 60; seed++) {
        struct families x;
        families_random(&x, &tiny, seed);
        bool l2 = explore(&x, (struct ls_explore_options){ .run.level = LS_L2 }).verdict != LS_SAFE;
        unsigned bound = ls_resident_bound_of_family(&x.family, &x.arena);
        for (unsigned k = bound ? bound : 1; k <= bound + 1; k++) {
            struct ls_explored e = explore(&x, (struct ls_explore_options){ .run = { .level = LS_L3, .kernels = k } });
            cr_assert_eq(e.verdict != LS_SAFE, l2, "seed=%llu k=%u bound=%u", (unsigned long long)seed, k, bound);
        }
        families_release(&x);
    }
}

/* What is reported as stuck is stuck: following the steps from the start leads there, and every step counts once. */
Test(explore, schedules_are_as_long_as_the_depth_of_their_end)
{
    for (uint64_t seed = 1; seed <= 100; seed++) {
        struct families x;
        families_random(&x, &small, seed);
        struct ls_explored e = explore(&x, (struct ls_explore_options){ .run.level = LS_L2 });
        if (e.verdict != LS_SAFE)
            cr_assert_eq(e.steps, e.depth, "seed=%llu: %zu steps, depth %zu", (unsigned long long)seed, e.steps, e.depth);
        families_release(&x);
    }
}
