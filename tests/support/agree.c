#include "agree.h"

#include "base/hash.h"
#include "brute.h"
#include "check/check.h"
#include "check/fold_job.h"
#include "check/order.h"
#include "check/proof.h"
#include "random_system.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* Folded rounds along random walks: one run of the machine against words and cycles. */
static bool rounds_agree(const struct ls_system *s, uint64_t seed, struct ls_arena *arena, struct agree_sum *sum)
{
    struct ls_fold f;
    bool same = true;
    uint64_t random = seed;
    if (ls_fold_open(&f, s, arena, NULL) != LS_OK)
        return false;
    for (int walk = 0; walk < 3; walk++) {
        uint32_t node = 0, macro = ls_fold_start(&f);
        for (int r = 0; r < 5; r++) {
            struct ls_tree t;
            uint32_t k = (uint32_t)ls_random_below(&random, f.classes[0]);
            if (!ls_fold_class_allowed(&f, node, k) || ls_fold_round(&f, node, macro, k, arena, &t, NULL) != LS_OK)
                break;
            if (t.problem || t.limit || t.late_before || t.late_after || t.concrete)
                break;
            struct ls_job job;
            const uint32_t *leaf;
            struct ls_outcome outcome;
            struct ls_order order;
            const struct ls_tree *one = &t;
            struct ls_run_options run = { .level = (enum ls_level)s->level };
            ls_fold_job(&f, &t, NULL, arena, &job, &leaf);
            if (ls_machine_run(&job, &run, arena, &outcome, NULL) != LS_OK)
                return false;
            ls_order_check(&f, &one, 1, s->level == LS_L1, arena, &order);
            sum->rounds++;
            bool transfer = t.p2p && (outcome.verdict == LS_MISMATCH || outcome.verdict == LS_MISPAIRING); /* neither words nor cycles show it */
            bool fused = t.fused && order.cyclic; /* the graph keeps the order in which a fused group is listed */
            same = same && (transfer || fused || (outcome.verdict == LS_SAFE) == !order.cyclic);
            const struct ls_driver_node *d = &s->driver.node[node];
            if (!d->nexts)
                break;
            node = d->next[ls_random_below(&random, d->nexts)];
            macro = t.agent[0][0].next;
        }
    }
    ls_fold_close(&f);
    return same;
}

static bool smaller_exists(const struct ls_system *s, const struct ls_assignment *w, const struct agree_options *o, uint64_t seed,
                           struct ls_arena *arena, struct agree_sum *sum)
{
    size_t replicas = w->size[0] * w->size[1];
    struct ls_brute_options b = { .replicas_max = replicas < 6 ? replicas : 6, .rounds_max = w->rounds < 4 ? w->rounds : 4,
                                  .runs_max = o->runs_max, .total_max = o->total_max, .seed = seed, .below_replicas = replicas,
                                  .below_rounds = w->rounds };
    struct ls_brute found;
    ls_brute_force(s, &b, arena, &found);
    sum->runs += found.runs;
    return found.failed;
}

static bool mutants_agree(struct ls_random_system *r, uint64_t seed, const struct agree_options *o, struct ls_arena *arena,
                          struct agree_sum *sum)
{
    for (uint64_t i = 0; i < 2; i++) {
        struct ls_proof p;
        ls_random_system_mutate(r, seed * 31 + i);
        if (ls_prove(&r->system, 0, arena, &p, NULL) != LS_OK)
            return false;
        sum->mutants++;
        if (p.end == LS_PROOF_VIOLATED && (!ls_brute_allowed(&r->system, &p.candidate) || ls_brute_run(&r->system, &p.candidate) == LS_SAFE)) {
            sum->refuted_without_witness++;
            return false;
        }
        if (p.end != LS_PROOF_SAFE)
            return true; /* a second mutation would start from an unsafe system */
        struct ls_brute_options b = { .replicas_max = 6, .rounds_max = 3, .runs_max = o->runs_max, .total_max = o->total_max, .seed = seed };
        struct ls_brute found;
        ls_brute_force(&r->system, &b, arena, &found);
        sum->runs += found.runs;
        if (found.failed) {
            sum->proved_but_fails++;
            return false;
        }
    }
    return true;
}

static void count_limit(struct agree_sum *sum, const char *text)
{
    for (size_t i = 0; i < sizeof sum->limit / sizeof *sum->limit; i++)
        if (!sum->limit[i].text || strcmp(sum->limit[i].text, text) == 0) {
            sum->limit[i].text = text;
            sum->limit[i].count++;
            return;
        }
}

static void count_rules(struct agree_sum *sum, unsigned rules, enum ls_verdict v)
{
    for (int i = 0; i < RULE_COUNT; i++)
        if (rules >> i & 1) {
            sum->rule[i].systems++;
            sum->rule[i].proved += v == LS_SAFE;
            sum->rule[i].refuted += v != LS_SAFE && v != LS_UNDECIDED;
        }
}

bool agree_once(uint64_t seed, const struct agree_options *o, struct agree_sum *sum, char *why, size_t room)
{
    struct ls_random_system r;
    struct ls_arena arena;
    struct ls_check_options options = { .seed = seed };
    struct ls_check_result c;
    struct ls_error err;
    bool fine = true;
    ls_random_system_open(&r, seed);
    unsigned rules = o->rules ? random_rules_add(&r, seed) : 0;
    const unsigned whole = 1u << RULE_DECIDE | 1u << RULE_TRANSFER | 1u << RULE_FUSED; /* not to be torn by a mutation */
    ls_arena_init(&arena, 0);
    why[0] = '\0';
    sum->systems++;
    if (ls_check_system(&r.system, &options, &arena, &c, &err) != LS_OK) {
        snprintf(why, room, "seed %" PRIu64 ": %s (%s)", seed, err.text, r.features);
        fine = false;
        goto done;
    }
    sum->verdict[c.verdict]++;
    count_rules(sum, rules, c.verdict);
    if (c.limit)
        count_limit(sum, c.limit);
    struct ls_brute found = { 0 };
    struct ls_brute_options b = { .replicas_max = 6, .rounds_max = 4, .runs_max = o->runs_max, .total_max = o->total_max, .seed = seed };
    if (c.verdict == LS_SAFE || c.verdict == LS_UNDECIDED) {
        sum->proved += c.verdict == LS_SAFE;
        sum->undecided += c.verdict == LS_UNDECIDED;
        ls_brute_force(&r.system, &b, &arena, &found);
        sum->runs += found.runs;
        sum->undecided_but_fails += c.verdict == LS_UNDECIDED && found.failed;
        if (c.verdict == LS_SAFE && found.failed) {
            sum->proved_but_fails++;
            fine = false;
            snprintf(why, room, "seed %" PRIu64 ": proved, but %s on %zu x %zu replicas in %zu rounds (%s)", seed,
                     ls_verdict_name(found.verdict), found.worst.size[0], found.worst.size[1], found.worst.rounds, r.features);
        }
    } else {
        const struct ls_assignment *w = &c.witness->assignment;
        size_t replicas = w->size[0] * w->size[1];
        sum->refuted++;
        sum->replicas[replicas < 31 ? replicas : 31]++;
        sum->not_minimal += !c.witness->minimal;
        if (!ls_brute_allowed(&r.system, w) || ls_brute_run(&r.system, w) != c.verdict) {
            sum->refuted_without_witness++;
            fine = false;
            snprintf(why, room, "seed %" PRIu64 ": %s, but the witness does not show it (%s)", seed, ls_verdict_name(c.verdict), r.features);
        } else if (c.witness->minimal && smaller_exists(&r.system, w, o, seed, &arena, sum)) {
            sum->witness_not_smallest++;
            fine = false;
            snprintf(why, room, "seed %" PRIu64 ": there is a run smaller than %zu x %zu replicas and %zu rounds (%s)", seed, w->size[0],
                     w->size[1], w->rounds, r.features);
        }
        uint64_t random = seed;
        if (fine && ls_random_below(&random, 100) < o->brute_percent) {
            ls_brute_force(&r.system, &b, &arena, &found);
            sum->runs += found.runs;
            sum->beyond += !found.failed;
        }
    }
    if (fine && r.system.level != LS_L3 && !rounds_agree(&r.system, seed, &arena, sum)) {
        sum->rounds_differ++;
        fine = false;
        snprintf(why, room, "seed %" PRIu64 ": a folded round and its words and cycles differ (%s)", seed, r.features);
    }
    if (fine && c.verdict == LS_SAFE && !(rules & whole) && !mutants_agree(&r, seed, o, &arena, sum)) {
        fine = false;
        snprintf(why, room, "seed %" PRIu64 ": a mutant of a proved system (%s)", seed, r.features);
    }
done:
    ls_arena_release(&arena);
    ls_random_system_close(&r);
    return fine;
}

void agree_print(const struct agree_sum *sum)
{
    printf("agreement of %zu random systems: proved but brute force fails %zu, refuted without an executable witness %zu, undecided %zu\n",
           sum->systems, sum->proved_but_fails, sum->refuted_without_witness, sum->undecided);
    printf("  proved %zu, refuted %zu (hang %zu, mismatch %zu, mispairing %zu; %zu beyond brute force; %zu not shown minimal), mutants %zu\n",
           sum->proved, sum->refuted, sum->verdict[LS_HANG], sum->verdict[LS_MISMATCH], sum->verdict[LS_MISPAIRING], sum->beyond,
           sum->not_minimal, sum->mutants);
    printf("  %zu runs by brute force, %zu folded rounds compared; replicas of witnesses:", sum->runs, sum->rounds);
    for (size_t i = 0; i < 32; i++)
        if (sum->replicas[i])
            printf(" %zu: %zu", i, sum->replicas[i]);
    printf("\n");
    for (int i = 0; i < RULE_COUNT; i++)
        if (sum->rule[i].systems)
            printf("  with %-20s %6zu systems, %6zu proved, %6zu refuted\n", random_rule_name[i], sum->rule[i].systems, sum->rule[i].proved,
                   sum->rule[i].refuted);
    for (size_t i = 0; i < sizeof sum->limit / sizeof *sum->limit && sum->limit[i].text; i++)
        printf("  undecided: %zu, %s\n", sum->limit[i].count, sum->limit[i].text);
    if (sum->undecided_but_fails)
        printf("  of the undecided, brute force finds a run that fails in %zu\n", sum->undecided_but_fails);
    fflush(stdout);
}
