/* The simulator's end state is the machine's, on random jobs, at every level that has one end state; and folding changes nothing. */
#include "sim/sim.h"

#include "base/hash.h"
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

static struct ls_platform platform(struct ls_arena *a, size_t gpus)
{
    struct ls_platform p;
    struct ls_error err = { 0 };
    cr_assert_eq(ls_platform_load(LS_SOURCE_DIR "/scenarios/platforms/h100x8.yaml", 4, a, &p, &err), LS_OK, "%s", err.text);
    p.gpus = p.nics = gpus;
    return p;
}

static bool same_at(struct ls_at a, struct ls_at b) { return a.rank == b.rank && a.segment == b.segment && a.op == b.op; }

static void expect_same(const struct ls_outcome *a, const struct ls_outcome *b, uint64_t seed, const char *text)
{
    cr_assert(a->verdict == b->verdict && a->diff == b->diff && a->comm == b->comm && a->group == b->group && a->position == b->position &&
                  same_at(a->a, b->a) && same_at(a->b, b->b) && a->missing_rank == b->missing_rank && a->completed == b->completed &&
                  a->issued == b->issued && a->collectives == b->collectives && a->pending_count == b->pending_count,
              "seed %" PRIu64 ": machine %s, %zu done, %zu pending; simulator %s, %zu done, %zu pending\n%s", seed,
              ls_verdict_name(a->verdict), a->completed, a->pending_count, ls_verdict_name(b->verdict), b->completed, b->pending_count, text);
    for (size_t i = 0; i < a->pending_count; i++)
        cr_assert(same_at(a->pending[i].at, b->pending[i].at) && a->pending[i].why == b->pending[i].why &&
                      same_at(a->pending[i].on, b->pending[i].on), "seed %" PRIu64 ": pending %zu\n%s", seed, i, text);
}

struct watch { uint64_t last, spans, hash; };
static void watch_done(void *context, const struct ls_sim_span *s)
{
    struct watch *w = context;
    cr_assert(s->end_ps >= w->last && s->head_ps <= s->ready_ps && s->ready_ps <= s->start_ps && s->start_ps <= s->end_ps);
    w->last = s->end_ps;
    w->spans++;
    w->hash = ls_hash_mix(ls_hash_mix(ls_hash_mix(w->hash, s->at.rank), (uint64_t)s->at.segment << 32 | s->at.op),
                          s->head_ps ^ s->ready_ps << 13 ^ s->start_ps << 26 ^ s->end_ps << 39);
}

static void campaign(const char *name, struct random_wish wish, struct ls_run_options run, size_t count, uint64_t first)
{
    size_t verdict[LS_VERDICT_COUNT] = { 0 };
    for (uint64_t seed = first; seed < first + count; seed++) {
        struct job_builder b;
        random_job(&b, &wish, seed * 0x9e3779b97f4a7c15u);
        uint64_t random = seed;
        uint32_t slowness[BUILD_RANKS];
        for (size_t r = 0; r < b.ranks; r++) {
            slowness[r] = (uint32_t)(900000 + ls_random_below(&random, 300000));
            for (size_t i = 0; i < b.op[r].count; i++) { /* work of chance, so that every order occurs */
                struct ls_op *op = &b.op[r].at[i];
                if (op->kind == LS_OP_COMPUTE || op->kind == LS_OP_COPY_IN || op->kind == LS_OP_COPY_OUT)
                    op->flops = ls_random_below(&random, 3) ? (uint64_t)1 << (20 + ls_random_below(&random, 20)) : 0;
            }
        }
        struct ls_job job = build_job(&b);
        struct ls_platform p = platform(&b.arena, 1 + seed % 4);
        struct ls_cost cost = { .slowness = slowness, .jitter = 50000, .seed = seed };
        struct watch w[2] = { 0 };
        struct ls_outcome want;
        struct ls_sim_result got[2];
        struct ls_error err = { 0 };
        p.nodes = 16;
        cr_assert_eq(ls_machine_run(&job, &run, &b.arena, &want, &err), LS_OK, "%s", err.text);
        for (int i = 0; i < 2; i++) {
            struct ls_sim_options o = { .run = run, .uncoupled = seed % 5 == 0, .hooks = { .context = &w[i], .done = watch_done } };
            cr_assert_eq(ls_sim_run(&job, &p, &cost, &o, &b.arena, &got[i], &err), LS_OK, "seed %" PRIu64 ": %s", seed, err.text);
        }
        expect_same(&want, &got[0].outcome, seed, build_text(&b));
        cr_assert_eq(got[0].complete, want.verdict == LS_SAFE);
        cr_assert(w[0].hash == w[1].hash && w[0].spans == w[1].spans && got[0].end_ps == got[1].end_ps &&
                      got[0].events == got[1].events &&
                      memcmp(got[0].rank_end_ps, got[1].rank_end_ps, b.ranks * sizeof *got[0].rank_end_ps) == 0,
                  "seed %" PRIu64 ": two runs differ", seed);
        verdict[want.verdict]++;
        build_close(&b);
    }
    printf("%s: seeds %" PRIu64 " .. %" PRIu64 " equal;", name, first, first + count - 1);
    for (size_t v = 0; v < LS_VERDICT_COUNT; v++)
        if (verdict[v])
            printf(" %s %zu", ls_verdict_name((enum ls_verdict)v), verdict[v]);
    printf("\n");
    for (enum ls_verdict v = LS_SAFE; v <= LS_MISPAIRING; v++)
        cr_assert(verdict[v] * 200 > count, "%s: hardly any %s, so little is tested", name, ls_verdict_name(v));
}

static const struct random_wish everything = { .p2p = true, .fused = true, .decide = true, .stop = true, .threads = true, .mutations = 3,
                                               .steps = 10 };
static const struct random_wish slots = { .p2p = true, .fused = true, .decide = true, .threads = true, .slots = true, .mutations = 2,
                                          .steps = 10 };

Test(sim_machine, l2) { campaign("L2", everything, (struct ls_run_options){ .level = LS_L2 }, systems(500), 1); }
Test(sim_machine, l1) { campaign("L1", everything, (struct ls_run_options){ .level = LS_L1 }, systems(500), 1000001); }
Test(sim_machine, run_ahead)
{
    for (size_t ahead = 1; ahead <= 3; ahead++)
        campaign("run-ahead", slots, (struct ls_run_options){ .level = LS_L2, .run_ahead = ahead }, systems(250), 2000001 + 10000 * ahead);
}
Test(sim_machine, issue_order_l3)
{
    for (unsigned k = 0; k <= 2; k++)
        for (int unbuffered = 0; unbuffered < 2; unbuffered++)
            campaign(unbuffered ? "L3, unbuffered" : "L3, buffered", slots,
                     (struct ls_run_options){ .level = LS_L3, .kernels = k, .start = LS_START_ISSUE_ORDER, .unbuffered_send = unbuffered },
                     systems(250), 3000001 + 10000 * k);
}
