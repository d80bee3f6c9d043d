#include "check/check.h"

#include "agree.h"
#include "brute.h"
#include "cases.h"
#include "check/proof.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>

enum { R = LS_DIM_REPLICATE, S = LS_DIM_SHARD, RS = LS_DIM_REPLICATE | LS_DIM_SHARD };

Test(proof, agrees_with_brute_force)
{
    struct agree_sum sum = { 0 };
    struct agree_options o = { .runs_max = 16, .total_max = 100, .brute_percent = 10 };
    char why[512];
    for (uint64_t seed = 1; seed <= 500; seed++)
        cr_assert(agree_once(seed, &o, &sum, why, sizeof why), "%s", why);
    agree_print(&sum);
    cr_assert_eq(sum.undecided, 0);
    cr_assert(sum.refuted * 5 >= sum.systems && sum.refuted * 2 <= sum.systems, "%zu of %zu unsafe", sum.refuted, sum.systems);
    cr_assert(sum.verdict[LS_HANG] > 20 && sum.verdict[LS_MISMATCH] > 20 && sum.verdict[LS_MISPAIRING] > 20);
}

Test(proof, agrees_with_brute_force_by_every_rule)
{
    struct agree_sum sum = { 0 };
    struct agree_options o = { .runs_max = 12, .total_max = 60, .brute_percent = 10, .rules = true };
    char why[512];
    for (uint64_t seed = 1; seed <= 160; seed++)
        cr_assert(agree_once(seed, &o, &sum, why, sizeof why), "%s", why);
    agree_print(&sum);
    cr_assert(sum.undecided * 25 < sum.systems, "%zu of %zu undecided", sum.undecided, sum.systems);
    for (int i = 0; i < RULE_COUNT; i++) {
        cr_expect(sum.rule[i].proved > 1 || i == RULE_STOP, "%s", random_rule_name[i]);
        cr_expect_gt(sum.rule[i].refuted, 1, "%s", random_rule_name[i]);
    }
}

/* Inputs of campaign_proof at which something disagreed: folded rounds with transfers that differ, and with fused operations in two orders. */
Test(proof, kept_inputs)
{
    static const uint64_t seeds[] = { 1019, 5018, 20788, 30092 };
    struct agree_sum sum = { 0 };
    struct agree_options o = { .runs_max = 16, .total_max = 100, .brute_percent = 100, .rules = true };
    char why[512];
    for (size_t i = 0; i < sizeof seeds / sizeof *seeds; i++)
        cr_assert(agree_once(seeds[i], &o, &sum, why, sizeof why), "%s", why);
}

static struct ls_check_result check_with(struct ls_case *c, const struct ls_check_options *o)
{
    struct ls_check_result r;
    struct ls_error err;
    cr_assert_eq(ls_check_system(&c->system, o, &c->arena, &r, &err), LS_OK, "%s", err.text);
    return r;
}

static struct ls_check_result check(struct ls_case *c)
{
    struct ls_check_options o = { .seed = 1 };
    return check_with(c, &o);
}

static void proved(struct ls_case *c)
{
    struct ls_check_result r = check(c);
    cr_assert_eq(r.verdict, LS_SAFE, "%s (%s)", ls_verdict_name(r.verdict), r.limit ? r.limit : "");
    cr_assert_eq(r.known, LS_KNOWN_PROVED);
    cr_assert(r.every_length);
    struct ls_brute_options b = { .replicas_max = 6, .rounds_max = 3, .runs_max = 300, .total_max = 3000, .seed = 1 };
    struct ls_brute found;
    ls_brute_force(&c->system, &b, &c->arena, &found);
    cr_assert(!found.failed);
}

/* The smallest failing run is this one, and every smaller one is safe by brute force. */
static void refuted(struct ls_case *c, enum ls_verdict verdict, size_t replicate, size_t shard, size_t rounds)
{
    struct ls_check_result r = check(c);
    cr_assert_eq(r.verdict, verdict, "%s (%s)", ls_verdict_name(r.verdict), r.limit ? r.limit : "");
    const struct ls_assignment *a = &r.witness->assignment;
    cr_assert(a->size[0] == replicate && a->size[1] == shard && a->rounds == rounds, "%zu x %zu, %zu rounds", a->size[0], a->size[1], a->rounds);
    cr_assert(r.witness->minimal);
    cr_assert(ls_brute_allowed(&c->system, a));
    cr_assert_eq(ls_brute_run(&c->system, a), verdict);
    struct ls_brute_options b = { .replicas_max = replicate * shard, .rounds_max = 4, .below_replicas = replicate * shard, .below_rounds = rounds };
    struct ls_brute found;
    ls_brute_force(&c->system, &b, &c->arena, &found);
    cr_assert(!found.failed && found.complete);
}

Test(cases, c01_states_after_the_first_round_matter)
{
    struct ls_case c;
    case_open(&c, S, 2, 1, 2, 1);
    case_comm(&c, 'A', S, "0");
    case_driver(&c, "0*:0");
    for (size_t z = 0; z < 2; z++) {
        case_step(&c, 0, 0, z, (uint32_t)z, "A", NULL);
        case_step(&c, 1, 0, z, 1, "A A", NULL);
    }
    refuted(&c, LS_HANG, 1, 2, 2);
    case_close(&c);
}

Test(cases, c02_states_that_never_meet)
{
    struct ls_case c;
    case_open(&c, S, 2, 1, 2, 1);
    case_comm(&c, 'A', S, "0");
    case_driver(&c, "0*:0");
    for (size_t z = 0; z < 2; z++) {
        case_step(&c, 0, 0, z, 1, "A A", NULL);
        case_step(&c, 1, 0, z, 1, "A", NULL);
    }
    proved(&c);
    case_close(&c);
}

Test(cases, c03_a_late_op_is_fine)
{
    struct ls_case c;
    for (int repeat = 0; repeat < 2; repeat++) {
        case_open(&c, S, 2, 2, 2, 1);
        case_comm(&c, 'A', S, "0");
        case_comm(&c, 'B', S, "0");
        case_driver(&c, repeat ? "0*:1 1:0" : "0*:1 1:");
        for (size_t z = 0; z < 2; z++) {
            case_step(&c, 0, 0, z, (uint32_t)z, z ? "A" : "A B", NULL);
            case_step(&c, 1, 0, z, 0, "A", NULL); /* not reached */
            case_step(&c, 0, 1, z, 0, "", NULL);
            case_step(&c, 1, 1, z, 0, "B", NULL);
        }
        proved(&c);
        case_close(&c);
    }
}

Test(cases, c04_words_agree_and_the_order_does_not)
{
    struct ls_case c;
    case_open(&c, S, 1, 1, 2, 1);
    case_comm(&c, 'A', S, "0");
    case_comm(&c, 'B', S, "0");
    case_step(&c, 0, 0, 0, 0, "A;B", NULL);
    case_step(&c, 0, 0, 1, 0, "B;A", NULL);
    refuted(&c, LS_HANG, 1, 2, 1);
    case_uniform(&c);
    proved(&c);
    case_close(&c);
}

Test(cases, c05_no_two_ranks_conflict)
{
    struct ls_case c;
    /* A dimension of size one is a plan of its own: its groups have one member. */
    for (uint32_t dims = R; dims <= RS; dims++) {
        case_open(&c, dims, 1, 1, 2, 1);
        case_comm(&c, 'A', S, "0");
        case_comm(&c, 'B', R, "0");
        case_step(&c, 0, 0, 0, 0, "A;B", NULL);
        case_step(&c, 0, 0, 1, 0, "B;A", NULL);
        if (dims != RS) {
            proved(&c);
        } else {
            refuted(&c, LS_HANG, 2, 2, 1);
            case_node_uniform(&c);
            proved(&c);
        }
        case_close(&c);
    }
}

static void three_types(struct ls_case *c, uint32_t dims, uint32_t a, uint32_t b, uint32_t w)
{
    case_open(c, dims, 1, 1, 3, 1);
    case_comm(c, 'A', a, "0");
    case_comm(c, 'B', b, "0");
    case_comm(c, 'C', w, "0");
    case_step(c, 0, 0, 0, 0, "A>B C", NULL);
    case_step(c, 0, 0, 1, 0, "B>C A", NULL);
    case_step(c, 0, 0, 2, 0, "C>A B", NULL);
}

Test(cases, c06_pairs_of_types_are_not_enough)
{
    struct ls_case c;
    three_types(&c, S, S, S, S);
    refuted(&c, LS_HANG, 1, 3, 1);
    case_close(&c);
    three_types(&c, RS, S, R, RS);
    refuted(&c, LS_HANG, 2, 2, 1);
    case_close(&c);
}

Test(cases, c07_host_order_is_no_stream_order)
{
    struct ls_case c;
    case_open(&c, S, 1, 1, 2, 1);
    case_comm(&c, 'A', S, "0");
    case_comm(&c, 'B', S, "0");
    case_step(&c, 0, 0, 0, 0, "A B", NULL);
    case_step(&c, 0, 0, 1, 0, "B A", NULL);
    proved(&c);
    c.system.level = 1;
    refuted(&c, LS_HANG, 1, 2, 1);
    case_close(&c);
    three_types(&c, S, S, S, S);
    case_step(&c, 0, 0, 2, 0, "B>C A", NULL); /* two of the three types */
    proved(&c);
    c.system.level = 1;
    refuted(&c, LS_HANG, 1, 2, 1);
    case_close(&c);
}

static void at_least_one(struct ls_case *c)
{
    case_open(c, S, 3, 2, 2, 1);
    case_comm(c, 'A', S, "0");
    case_comm(c, 'B', S, "0");
    case_driver(c, "0*:1 1:");
    for (size_t s = 0; s < 3; s++)
        for (size_t z = 0; z < 2; z++) {
            case_step(c, s, 0, z, z ? 1 : 2, "A B", NULL);
            case_step(c, s, 1, z, (uint32_t)s, z ? "A B" : s == 1 ? "A>B" : "B>A", NULL);
        }
    c->system.contract.extra = LS_CONTRACT_AT_LEAST_ONE;
    c->system.contract.media = 2;
}

Test(cases, c08_at_least_one_needs_a_third_replica)
{
    struct ls_case c;
    at_least_one(&c);
    refuted(&c, LS_HANG, 1, 3, 2);
    case_close(&c);
    at_least_one(&c);
    c.system.size[1] = 2;
    proved(&c);
    case_close(&c);
}

Test(cases, c09_cycles_inside_pairs)
{
    struct ls_case c;
    for (size_t size = 0; size <= 4; size += 2) {
        three_types(&c, S, S, S, S);
        for (size_t k = 0; k < 3; k++)
            c.tables.comm.at[k].small = 2;
        c.system.size[1] = size;
        proved(&c);
        case_close(&c);
    }
}

Test(cases, c10_a_ring_of_groups)
{
    struct ls_case c;
    case_open(&c, RS, 1, 1, 2, 1);
    case_comm(&c, 'A', S, "0"); /* experts over pairs */
    case_comm(&c, 'B', R, "0"); /* their shards */
    c.system.size[1] = 2;
    case_step(&c, 0, 0, 0, 0, "A;B", NULL);
    case_step(&c, 0, 0, 1, 0, "B;A", NULL);
    refuted(&c, LS_HANG, 2, 2, 1);
    case_close(&c);
}

Test(cases, c11_context_parallel_before_or_after_shard)
{
    struct ls_case c;
    case_open(&c, S, 1, 1, 2, 2);
    case_comm(&c, 'A', S, "01"); /* one group per cp index */
    case_comm(&c, 'I', 0, "00");
    case_step(&c, 0, 0, 0, 0, "A;I", "I;A");
    case_step(&c, 0, 0, 1, 0, "I;A", "A;I");
    refuted(&c, LS_HANG, 1, 2, 1);
    case_close(&c);
    case_open(&c, S, 1, 1, 2, 2);
    case_comm(&c, 'A', S, "00"); /* flattened over cp */
    case_comm(&c, 'I', 0, "00");
    case_step(&c, 0, 0, 0, 0, "I;A", "I;A");
    case_step(&c, 0, 0, 1, 0, "A;I", "A;I");
    proved(&c);
    case_close(&c);
}

/* Choice 1 issues B in a microbatch, the others at the step end. */
static void late_for_ever(struct ls_case *c, const char *driver, bool with_a)
{
    case_open(c, S, 2, 2, 2, 1);
    case_comm(c, 'A', S, "0");
    case_comm(c, 'B', S, "0");
    case_driver(c, driver);
    for (size_t z = 0; z < 2; z++) {
        case_step(c, 0, 0, z, (uint32_t)z, z ? (with_a ? "A B" : "B") : with_a ? "A" : "", NULL);
        case_step(c, 1, 0, z, 1, with_a ? "A" : "", NULL);
        case_step(c, 0, 1, z, 0, "B", NULL);
        case_step(c, 1, 1, z, 0, "", NULL);
    }
}

Test(cases, c12_late_for_ever)
{
    struct ls_case c;
    late_for_ever(&c, "0:0,1 1:2 0*:0,1", true);
    struct ls_check_result r = check(&c);
    cr_assert_eq(r.verdict, LS_UNDECIDED);
    cr_assert_str_eq(r.limit, "an operation that may stay late for ever");
    cr_assert(r.explored > 0);
    case_close(&c);
    late_for_ever(&c, "0*:1 0:2 0:3 1:", true); /* three microbatches: late for three rounds at most */
    proved(&c);
    case_close(&c);
    late_for_ever(&c, "0:0,1 1:2 0*:0,1", false); /* one communicator: order is a matter of each replica alone */
    proved(&c);
    case_close(&c);
}

/* Choice 1 issues both A and B in a microbatch, the others at the step end: late for ever, too. */
static void late_pair(struct ls_case *c, const char *early, const char *at_end, bool apart)
{
    case_open(c, RS, 2, 2, 2, 1);
    case_comm(c, 'A', apart ? S : RS, "0");
    case_comm(c, 'B', apart ? R : RS, "0");
    case_driver(c, "0:0,1 1:2 0*:0,1");
    for (size_t z = 0; z < 2; z++) {
        case_step(c, 0, 0, z, (uint32_t)z, z ? early : "", NULL);
        case_step(c, 1, 0, z, 1, "", NULL);
        case_step(c, 0, 1, z, 0, at_end, NULL);
        case_step(c, 1, 1, z, 0, "", NULL);
    }
}

Test(cases, late_for_ever_in_one_order)
{
    struct ls_case c;
    for (int apart = 0; apart < 2; apart++) {
        late_pair(&c, "A;B", "A;B", apart);
        proved(&c);
        case_close(&c);
        late_pair(&c, "A B", "A B", apart);
        proved(&c);
        case_close(&c);
        late_pair(&c, "A;B", "B;A", apart);
        refuted(&c, LS_HANG, 2, 2, 2);
        case_close(&c);
        late_pair(&c, "A B", "B A", apart); /* no order at all: safe, but there is no common one */
        struct ls_check_options few = { .seed = 1, .replicas_max = 1 }; /* proofs alone: no mesh is that small */
        struct ls_check_result r = check_with(&c, &few);
        cr_assert_eq(r.verdict, LS_UNDECIDED);
        case_close(&c);
    }
}

/* One communicator that spans replicas, late for ever, and a cycle inside a replica that no round without late operations shows. */
Test(cases, late_for_ever_and_stuck_alone)
{
    for (unsigned small = 0; small <= 4; small += 2) { /* groups of neighbours: the replicas of a witness come in blocks */
        struct ls_case c;
        case_open(&c, S, 2, 2, 2, 2);
        case_comm(&c, 'A', S, "00");
        case_comm(&c, 'I', 0, "00");
        case_driver(&c, "0:0,1 1:2 0*:0,1");
        c.tables.comm.at[0].small = small;
        for (size_t z = 0; z < 2; z++) {
            case_step(&c, 0, 0, z, (uint32_t)z, z ? "A;I" : "", z ? "I;A" : "");
            case_step(&c, 1, 0, z, 1, "", "");
            case_step(&c, 0, 1, z, 0, "A;I", "A;I");
            case_step(&c, 1, 1, z, 0, "", "");
        }
        refuted(&c, LS_HANG, 1, small > 2 ? small : 2, 2);
        case_close(&c);
    }
}

/* Late within a node: nodes that came from different states, and are behind in the same way, are one from then on, with what they began. */
Test(cases, nodes_that_become_alike)
{
    for (int wrong = 0; wrong < 2; wrong++) {
        struct ls_case c;
        case_open(&c, RS, 4, 3, 3, 1);
        case_comm(&c, 'A', S, "0");
        case_comm(&c, 'B', S, "0");
        case_driver(&c, "0*:1 1:2 2:");
        case_node_uniform(&c);
        uint32_t *text_or_media = LS_NEW(&c.arena, uint32_t, 3);
        text_or_media[1] = text_or_media[2] = 1;
        c.system.contract.class_of[1] = text_or_media; /* a node's replicas all have media, or none has */
        for (uint32_t z = 0; z < 3; z++) {
            case_step(&c, 0, 0, z, z > 0, "", NULL);
            for (size_t state = 0; state < 2; state++)
                case_step(&c, state, 1, z, z == 2 ? 3 : 2, z == 2 ? "" : "A;B", NULL);
            case_step(&c, 2, 2, z, 2, "", NULL);
            case_step(&c, 3, 2, z, 2, wrong ? "B;A" : "A;B", NULL);
        }
        if (wrong)
            refuted(&c, LS_HANG, 2, 2, 3);
        else
            proved(&c);
        case_close(&c);
    }
}

/* As c11, with the communicator inside the replica first: a cycle may be found from there. */
Test(cases, a_cycle_that_starts_inside)
{
    struct ls_case c;
    case_open(&c, S, 1, 1, 2, 2);
    case_comm(&c, 'I', 0, "00");
    case_comm(&c, 'A', S, "01");
    case_step(&c, 0, 0, 0, 0, "A;I", "I;A");
    case_step(&c, 0, 0, 1, 0, "I;A", "A;I");
    refuted(&c, LS_HANG, 1, 2, 1);
    case_close(&c);
    case_open(&c, S, 1, 1, 1, 2);
    case_comm(&c, 'I', 0, "00");
    case_comm(&c, 'A', S, "00");
    case_step(&c, 0, 0, 0, 0, "A;I", "I;A");
    refuted(&c, LS_HANG, 1, 2, 1);
    case_close(&c);
}

/* Pairs of neighbours meet on A, everybody on B: what hangs needs two pairs, and no two replicas outside of a pair have A in common. */
Test(cases, pairs_and_all)
{
    struct ls_case c;
    for (int across = 0; across < 2; across++) {
        case_open(&c, S, 1, 1, 2, 1);
        case_comm(&c, 'A', S, "0");
        case_comm(&c, 'B', S, "0");
        c.tables.comm.at[0].small = 2;
        c.tables.comm.at[1].across = across ? 2 : 0;
        case_step(&c, 0, 0, 0, 0, "A;B", NULL);
        case_step(&c, 0, 0, 1, 0, "B;A", NULL);
        refuted(&c, LS_HANG, 1, across ? 4 : 2, 1);
        case_close(&c);
    }
}

static void at_most(struct ls_case *c, size_t bound, uint64_t media)
{
    case_open(c, S, 1, 1, 3, 1);
    case_comm(c, 'A', S, "0");
    case_comm(c, 'B', S, "0");
    case_step(c, 0, 0, 0, 0, "A B", NULL);
    case_step(c, 0, 0, 1, 0, "A;B", NULL);
    case_step(c, 0, 0, 2, 0, "B;A", NULL);
    c->system.contract.extra = LS_CONTRACT_AT_MOST;
    c->system.contract.bound = bound;
    c->system.contract.media = media;
}

/* Choices 1 and 2 hang each other; where one replica at most takes either, they never meet, at any size. */
Test(cases, at_most_so_many)
{
    struct ls_case c;
    at_most(&c, 1, 6);
    proved(&c);
    case_close(&c);
    at_most(&c, 2, 6);
    refuted(&c, LS_HANG, 1, 2, 1);
    case_close(&c);
    at_most(&c, 1, 4); /* only the third choice is counted: one replica that takes it is enough */
    refuted(&c, LS_HANG, 1, 2, 1);
    case_close(&c);
    at_most(&c, 0, 6);
    proved(&c);
    case_close(&c);
}

Test(cases, c13_start_order)
{
    struct ls_case c;
    case_open(&c, S, 1, 1, 2, 1);
    case_comm(&c, 'A', S, "0");
    case_comm(&c, 'B', S, "0");
    case_comm(&c, 'C', S, "0");
    case_step(&c, 0, 0, 0, 0, "A>B C", NULL);
    case_step(&c, 0, 0, 1, 0, "C>A B", NULL);
    proved(&c);
    c.system.level = 3;
    for (unsigned k = 1; k <= 4; k++) {
        c.system.kernels = k;
        c.system.start_rule = LS_START_ISSUE_ORDER;
        struct ls_check_result r = check(&c);
        cr_assert_eq(r.verdict, LS_HANG, "k = %u: %s", k, ls_verdict_name(r.verdict));
        c.system.start_rule = LS_START_ANY;
        r = check(&c);
        cr_assert_eq(r.kernels_needed, 3);
        cr_assert(k < 3 || r.verdict == LS_SAFE);
    }
    case_close(&c);
    case_open(&c, S, 1, 1, 1, 1);
    case_comm(&c, 'A', S, "0");
    case_comm(&c, 'B', S, "0");
    case_step(&c, 0, 0, 0, 0, "A B", NULL);
    c.system.level = 3;
    c.system.kernels = 1;
    cr_assert_eq(check(&c).verdict, LS_HANG);
    c.system.start_rule = LS_START_ISSUE_ORDER;
    proved(&c);
    c.system.start_rule = LS_START_ANY;
    c.system.kernels = 2;
    proved(&c);
    case_close(&c);
}
