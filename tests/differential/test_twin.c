#include "machine/machine.h"

#include "base/hash.h"
#include "build.h"
#include "naive.h"
#include "naive_judge.h"
#include "naive_words.h"
#include "random_jobs.h"

#include <criterion/criterion.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static size_t systems(size_t quick)
{
    const char *campaign = getenv("LS_CAMPAIGN");
    return campaign && *campaign ? (size_t)strtoull(campaign, NULL, 10) : quick;
}

static bool same_at(struct ls_at a, struct ls_at b) { return a.rank == b.rank && a.segment == b.segment && a.op == b.op; }

struct tally { size_t verdict[LS_VERDICT_COUNT]; size_t cycles, missing; };

static void report(const char *name, const struct tally *t)
{
    size_t total = 0;
    for (size_t v = 0; v < LS_VERDICT_COUNT; v++)
        total += t->verdict[v];
    printf("%s: %zu systems equal;", name, total);
    for (size_t v = 0; v < LS_VERDICT_COUNT; v++)
        if (t->verdict[v])
            printf(" %s %zu", ls_verdict_name((enum ls_verdict)v), t->verdict[v]);
    printf(" (wait cycles %zu, missing partners %zu)\n", t->cycles, t->missing);
    fflush(stdout);
}

/* One job under one set of options: the machine, with the canonical and with a random schedule, and the twin agree. */
static void compare(struct job_builder *b, const struct ls_run_options *options, uint64_t seed, struct tally *tally)
{
    struct ls_job job = build_job(b);
    struct ls_outcome out;
    struct ls_error err;
    struct naive twin;
    struct ls_run_options o = *options;
    o.seed = 0;
    cr_assert_eq(ls_machine_run(&job, &o, &b->arena, &out, &err), LS_OK, "seed %" PRIu64 ": %s", seed, err.text);
    o.seed = seed | 1;
    naive_run(&twin, &job, &o, &b->arena);
    const char *text = build_text(b);
#define SAME(field, format)                                                                                                 \
    cr_assert_eq(out.field, twin.field, "seed %" PRIu64 " level %d: " #field ": machine " format ", twin " format "\n%s"        \
                 "machine %s, twin %s", seed, (int)o.level, out.field, twin.field, text, ls_verdict_name(out.verdict),           \
                 ls_verdict_name(twin.verdict))
    SAME(verdict, "%u");
    SAME(completed, "%zu");
    SAME(issued, "%zu");
    SAME(collectives, "%zu");
    SAME(comm, "%u");
    SAME(group, "%u");
    SAME(position, "%zu");
    SAME(missing_rank, "%u");
    SAME(diff, "%u");
    if (out.verdict == LS_MISMATCH || out.verdict == LS_MISPAIRING)
        cr_assert(same_at(out.a, twin.a) && same_at(out.b, twin.b), "seed %" PRIu64 ": other ops\n%s", seed, text);
    for (size_t i = 0; i < out.cycle_count; i++) {
        struct ls_at from = out.cycle[i], to = out.cycle[(i + 1) % out.cycle_count];
        cr_assert(naive_waits(&twin, from, to), "seed %" PRIu64 ": (%u,%u,%u) does not wait for (%u,%u,%u)\n%s", seed, from.rank,
                  from.segment, from.op, to.rank, to.segment, to.op, text);
    }
    cr_assert(out.verdict != LS_HANG || (out.missing_rank != LS_NO_ID) != (out.cycle_count != 0), "seed %" PRIu64 ": hang without a reason\n%s",
              seed, text);
    cr_assert(out.verdict == LS_SAFE || out.pending_count || out.verdict == LS_ERROR, "seed %" PRIu64, seed);
    struct ls_outcome again;
    cr_assert_eq(ls_machine_run(&job, &o, &b->arena, &again, &err), LS_OK);
    cr_assert(again.verdict == out.verdict && again.comm == out.comm && again.position == out.position && again.group == out.group &&
                  same_at(again.a, out.a) && same_at(again.b, out.b) && again.completed == out.completed &&
                  again.issued == out.issued && again.collectives == out.collectives && again.diff == out.diff &&
                  again.missing_rank == out.missing_rank && again.cycle_count == out.cycle_count &&
                  again.pending_count == out.pending_count &&
                  (out.pending_count == 0 || memcmp(again.pending, out.pending, out.pending_count * sizeof *out.pending) == 0),
              "seed %" PRIu64 ": the schedule changes the outcome\n%s", seed, text);
    tally->verdict[out.verdict]++;
    tally->cycles += out.cycle_count != 0;
    tally->missing += out.verdict == LS_HANG && out.missing_rank != LS_NO_ID;
}

static void campaign(const char *name, const struct random_wish *wish, const struct ls_run_options *options, size_t count, uint64_t first)
{
    struct tally tally = { 0 };
    for (uint64_t seed = first; seed < first + count; seed++) {
        struct job_builder b;
        random_job(&b, wish, seed * 0x9e3779b97f4a7c15u);
        compare(&b, options, seed, &tally);
        build_close(&b);
    }
    report(name, &tally);
    for (enum ls_verdict v = LS_SAFE; v <= LS_MISPAIRING; v++)
        cr_assert(tally.verdict[v] * 200 > count, "%s: hardly any %s, so little is tested", name, ls_verdict_name(v));
}

Test(twin, plain_l2)
{
    struct random_wish wish = { .p2p = true, .mutations = 3, .steps = 10 };
    campaign("plain L2", &wish, &(struct ls_run_options){ .level = LS_L2 }, systems(6000), 1);
}

Test(twin, plain_l1)
{
    struct random_wish wish = { .p2p = true, .mutations = 3, .steps = 10 };
    campaign("plain L1", &wish, &(struct ls_run_options){ .level = LS_L1 }, systems(3000), 1000001);
}

Test(twin, everything_l2)
{
    struct random_wish wish = { .p2p = true, .fused = true, .decide = true, .stop = true, .threads = true, .mutations = 3, .steps = 10 };
    campaign("everything L2", &wish, &(struct ls_run_options){ .level = LS_L2 }, systems(6000), 2000001);
}

Test(twin, everything_l1)
{
    struct random_wish wish = { .p2p = true, .fused = true, .decide = true, .stop = true, .threads = true, .mutations = 3, .steps = 10 };
    campaign("everything L1", &wish, &(struct ls_run_options){ .level = LS_L1 }, systems(2000), 3000001);
}

Test(twin, bounded_run_ahead)
{
    struct random_wish wish = { .p2p = true, .fused = true, .decide = true, .threads = true, .mutations = 3, .steps = 10 };
    for (size_t ahead = 1; ahead <= 3; ahead++)
        campaign("run-ahead", &wish, &(struct ls_run_options){ .level = LS_L2, .run_ahead = ahead }, systems(700), 4000001 + 10000 * ahead);
}

Test(twin, issue_order_l3)
{
    struct random_wish wish = { .p2p = true, .fused = true, .decide = true, .stop = true, .threads = true, .slots = true,
                                .mutations = 2, .steps = 10 };
    for (unsigned k = 0; k <= 3; k++)
        for (int unbuffered = 0; unbuffered < 2; unbuffered++)
            campaign(unbuffered ? "issue order L3, unbuffered" : "issue order L3, buffered", &wish,
                     &(struct ls_run_options){ .level = LS_L3, .kernels = k, .start = LS_START_ISSUE_ORDER,
                                               .unbuffered_send = unbuffered }, systems(300), 5000001 + 10000 * k);
}

/* A slot for every stream and communicator: nobody ever waits for one, and L3 is L2. */
Test(twin, enough_slots_is_l2)
{
    struct random_wish wish = { .p2p = true, .fused = true, .decide = true, .stop = true, .threads = true, .mutations = 3, .steps = 10 };
    campaign("enough slots", &wish, &(struct ls_run_options){ .level = LS_L3, .kernels = 64, .unbuffered_send = true }, systems(600),
             6000001);
}

/* Lemma: at L1 and L2 every maximal schedule ends in one state. Thirty-two schedules of each system. */
Test(twin, confluence)
{
    struct random_wish wish = { .p2p = true, .fused = true, .decide = true, .stop = true, .threads = true, .mutations = 3, .steps = 12 };
    size_t count = systems(300), runs = 0;
    for (uint64_t seed = 7000001; seed < 7000001 + count; seed++)
        for (enum ls_level level = LS_L1; level <= LS_L2; level++) {
            struct job_builder b;
            random_job(&b, &wish, seed * 0x9e3779b97f4a7c15u);
            struct ls_job job = build_job(&b);
            struct ls_outcome first = { 0 };
            for (uint64_t s = 0; s < 32; s++) {
                struct ls_run_options o = { .level = level, .seed = s };
                struct ls_outcome out;
                cr_assert_eq(ls_machine_run(&job, &o, &b.arena, &out, NULL), LS_OK);
                if (s == 0)
                    first = out;
                cr_assert(out.verdict == first.verdict && out.completed == first.completed && out.issued == first.issued &&
                              out.collectives == first.collectives && out.comm == first.comm && out.group == first.group &&
                              out.position == first.position && same_at(out.a, first.a) && same_at(out.b, first.b) &&
                              out.pending_count == first.pending_count &&
                              (out.pending_count == 0 ||
                               memcmp(out.pending, first.pending, out.pending_count * sizeof *out.pending) == 0),
                          "seed %" PRIu64 " level %d schedule %" PRIu64 "\n%s", seed, (int)level, s, build_text(&b));
                runs++;
            }
            build_close(&b);
        }
    printf("confluence: %zu systems, %zu schedules, one end state each\n", 2 * count, runs);
}

/* Lemma: a job completes iff its words are equal and the graph of its ops is acyclic. */
Test(twin, completes_iff_words_equal_and_acyclic)
{
    struct random_wish wish = { .p2p = true, .mutations = 2, .steps = 12 };
    size_t count = systems(3000), complete = 0, words = 0, cyclic = 0;
    struct random_wish order = { .order = true, .mutations = 12, .steps = 14 };
    for (uint64_t seed = 8000001; seed < 8000001 + count; seed++)
        for (enum ls_level level = LS_L1; level <= LS_L2; level++) {
            struct job_builder b;
            random_job(&b, seed % 3 ? &order : &wish, seed * 0x9e3779b97f4a7c15u);
            for (uint32_t c = 0; c < b.tables.comm.count; c++)
                b.tables.comm.at[c].parent = LS_NO_ID;
            struct ls_job job = build_job(&b);
            struct ls_run_options o = { .level = level };
            struct ls_outcome out;
            cr_assert_eq(ls_machine_run(&job, &o, &b.arena, &out, NULL), LS_OK);
            bool equal = naive_words_equal(&job), acyclic = equal && naive_graph_acyclic(&job, level);
            cr_assert_eq(out.verdict == LS_SAFE, equal && acyclic, "seed %" PRIu64 " level %d: %s, words %d, acyclic %d\n%s", seed,
                         (int)level, ls_verdict_name(out.verdict), equal, acyclic, build_text(&b));
            complete += out.verdict == LS_SAFE;
            words += !equal;
            cyclic += equal && !acyclic;
            build_close(&b);
        }
    printf("lemma: %zu complete, %zu with unequal words, %zu cyclic\n", complete, words, cyclic);
    cr_assert(complete * 20 > count && words * 20 > count && cyclic * 20 > count, "one side of the lemma is hardly tested");
}
