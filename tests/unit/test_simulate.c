/* Work, memory and budget of a simulated step against closed forms. */
#include "sim/collective.h"
#include "sim/simulate.h"

#include <criterion/criterion.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct ran { struct ls_arena arena; struct ls_names *names; struct ls_scenario s; struct ls_simulation x; };

static void run(struct ran *r, const char *name, const struct ls_simulate_options *o)
{
    char path[512];
    struct ls_error err = { 0 };
    snprintf(path, sizeof path, "%s/scenarios/%s.yaml", LS_SOURCE_DIR, name);
    ls_arena_init(&r->arena, 0);
    r->names = ls_names_open();
    cr_assert_eq(ls_scenario_load(path, &r->arena, r->names, &r->s, &err), LS_OK, "%s", err.text);
    cr_assert_eq(ls_simulate(&r->s, o, &r->arena, &r->x, &err), LS_OK, "%s", err.text);
    cr_assert(r->x.run.complete);
}

static void release(struct ran *r)
{
    ls_simulation_release(&r->x);
    ls_names_close(r->names);
    ls_arena_release(&r->arena);
}

static const struct ls_simulate_options plain = { .variant = { -1, -1, -1, -1, 0, NULL, false, false }, .fold = true, .seed = 1 };

Test(simulate, llama_closed_forms)
{
    struct ran r;
    run(&r, "truth/llama3-1-8b-eager", &plain);
    const double tokens = 16384, sequence = 8192, width = 4096, layers = 32, vocabulary = 128256;
    const double products = layers * (2 * width * width + 2 * width * 1024 + 3 * width * 14336) + vocabulary * width;
    /* Three passes of two operations, and of causal scores: two products of T x S / 2 x W each. */
    double want = 8 * (6 * products * tokens + 3 * layers * 4 * tokens * sequence / 2 * width);
    cr_expect(fabs(r.x.model_flops / want - 1) < 1e-12, "%g, not %g", r.x.model_flops, want);
    cr_expect_eq(r.x.tokens, 8 * tokens);
    const struct ls_sim_memory *m = &r.x.rank_class[0].memory;
    const uint64_t parameters = UINT64_C(8030261248);
    cr_expect_eq(m->most[LS_MEMORY_SHARDED], parameters * 4 / 8);
    cr_expect_eq(m->most[LS_MEMORY_OPTIMIZER], 2 * parameters * 4 / 8);
    cr_expect_eq(m->most[LS_MEMORY_SHARDED_GRADIENTS], parameters * 4 / 8);
    cr_expect_eq(m->persistent, 3 * parameters * 4 / 8);
    /* log-softmax in f32 and the gradient in bf16 */
    cr_expect_eq(m->most[LS_MEMORY_LOGITS], (uint64_t)(tokens * vocabulary * 6));
    /* All reduce-scatters in f32 and all-gathers in bf16 of the largest unit, the root: embeddings, final norm, head. */
    cr_expect_eq(m->most[LS_MEMORY_GATHER], (uint64_t)((2 * vocabulary * width + width) * 2 + 2 * (products - vocabulary * width) / layers + 4 * width));
    release(&r);
}

/* Balanced routing: the experts of a rank get T top_k rows, and so many leave and arrive in an exchange, whichever way it goes. */
Test(simulate, experts_closed_forms)
{
    struct ran r;
    struct ls_simulate_options o = plain;
    o.trace = true;
    run(&r, "timing/qwen3-vl-30b-a3b", &o);
    const double tokens = 4096, width = 2048, heads = 4096, layers = 48, vocabulary = 151936, top_k = 8, inner = 768, experts = 128;
    const double products = layers * (2 * width * heads + 2 * width * 512 + width * experts + top_k * 3 * width * inner) + vocabulary * width;
    double want = 8 * (6 * products * tokens + 3 * layers * 4 * tokens * tokens / 2 * heads);
    cr_expect(fabs(r.x.model_flops / want - 1) < 1e-12, "%g, not %g", r.x.model_flops, want);
    const uint32_t all[8] = { 0, 1, 2, 3, 4, 5, 6, 7 };
    struct ls_collective_cost cost;
    const uint64_t bytes = (uint64_t)(tokens * width * top_k * 2);
    ls_collective_choose(&r.x.platform, NULL, LS_OP_ALL_TO_ALL, ls_placement_of(&r.x.platform, all, 8), bytes, &cost);
    uint64_t shortest = UINT64_MAX;
    size_t exchanges = 0;
    for (size_t i = 0; i < r.x.spans; i++) {
        const struct ls_sim_span *s = &r.x.span[i];
        if (s->op->kind != LS_OP_ALL_TO_ALL || s->at.rank)
            continue;
        exchanges++;
        shortest = s->end_ps - s->start_ps < shortest ? s->end_ps - s->start_ps : shortest;
    }
    cr_expect_eq(exchanges, 5 * (size_t)layers, "%zu: out and back, out again in recomputation, and the two transposes", exchanges);
    cr_expect(shortest >= ls_collective_cost_ps(&cost) && shortest < ls_collective_cost_ps(&cost) + 1000, "%" PRIu64 " ps, not %" PRIu64, shortest,
              ls_collective_cost_ps(&cost));
    const struct ls_sim_memory *m = &r.x.rank_class[0].memory;
    cr_expect_eq(m->most[LS_MEMORY_REPLICATED], (uint64_t)(layers * experts / 8 * 3 * width * inner * 2), "the rank's own experts");
    const double step = r.x.step_s;
    release(&r);
    /* Twice the tokens on the busiest rank: exchanges and experts' products take longer, the rest does not. */
    struct ls_error err = { 0 };
    ls_arena_init(&r.arena, 0);
    r.names = ls_names_open();
    cr_assert_eq(ls_scenario_load(LS_SOURCE_DIR "/scenarios/timing/qwen3-vl-30b-a3b.yaml", &r.arena, r.names, &r.s, &err), LS_OK, "%s", err.text);
    r.s.timing.routing_skew = 2;
    cr_assert_eq(ls_simulate(&r.s, &plain, &r.arena, &r.x, &err), LS_OK, "%s", err.text);
    ls_collective_choose(&r.x.platform, NULL, LS_OP_ALL_TO_ALL, ls_placement_of(&r.x.platform, all, 8), 2 * bytes, &cost);
    cr_expect(r.x.step_s > step && r.x.step_s < 2 * step, "%g s and %g s", step, r.x.step_s);
    release(&r);
}

struct last { uint64_t now[LS_MEMORY_COUNT]; };
static void keep_last(void *context, uint32_t segment, uint32_t op, const uint64_t now[LS_MEMORY_COUNT])
{
    struct last *l = context;
    (void)segment, (void)op;
    memcpy(l->now, now, sizeof l->now);
}

Test(simulate, everything_that_a_step_takes_it_gives_back)
{
    static const char *const name[] = { "truth/llama3-1-8b-eager", "timing/qwen3-vl-4b", "truth/policy-gemma3-4b", "truth/policy-qwen3-vl-4b-2" };
    for (size_t i = 0; i < sizeof name / sizeof *name; i++) {
        struct ran r;
        run(&r, name[i], &plain);
        for (size_t c = 0; c < r.x.classes; c++) {
            struct last last = { 0 };
            struct ls_sim_memory m;
            struct ls_memory_input in = r.x.memory_input[c];
            in.sample = keep_last;
            in.sample_context = &last;
            ls_memory_of_rank(&in, &r.x.job.rank[r.x.rank_class[c].first], &m);
            cr_expect_eq(m.peak, r.x.rank_class[c].memory.peak);
            for (int k = LS_MEMORY_SHARDED_GRADIENTS; k < LS_MEMORY_COUNT; k++)
                if (k != LS_MEMORY_UNSHARDED) /* the root stays, as reshard_after_backward frees it only at its next use */
                    cr_expect_eq(last.now[k], 0, "%s: %" PRIu64 " bytes of %s are left", name[i], last.now[k], ls_memory_name((enum ls_memory_kind)k));
            uint64_t sum = 0;
            for (int k = 0; k < LS_MEMORY_COUNT; k++)
                sum += m.at_peak[k];
            cr_expect_eq(sum, m.peak);
            cr_expect_geq(m.reserved, m.peak);
        }
        release(&r);
    }
}

Test(simulate, same_seed_same_run_folded_or_not)
{
    struct ls_simulate_options o = plain;
    struct ran a, b, c;
    o.draw = LS_DRAW_UNIFORM;
    run(&a, "timing/qwen3-vl-4b", &o);
    run(&b, "timing/qwen3-vl-4b", &o);
    o.fold = false;
    run(&c, "timing/qwen3-vl-4b", &o);
    cr_expect_eq(a.x.run.end_ps, b.x.run.end_ps);
    cr_expect_eq(a.x.run.end_ps, c.x.run.end_ps);
    cr_expect(a.x.run.classes < c.x.run.classes);
    for (int k = 0; k < LS_BUDGET_COUNT; k++)
        cr_expect(fabs(a.x.budget_s[k] - c.x.budget_s[k]) < 1e-12, "%s", ls_budget_name((enum ls_budget)k));
    release(&a);
    release(&b);
    release(&c);
}

/* The fixed cost of a call, once per block or once for all: the step is longer by what 27 calls of a block's bytes cost, less what the
 * tower's bytes add to the root's call, and what the blocks compute meanwhile. */
Test(simulate, a_tower_in_27_units_on_1024_ranks)
{
    enum { BLOCKS = 27 };
    struct ls_simulate_options o = plain;
    struct ran r[3];
    for (int policy = 0; policy < 3; policy++) {
        o.variant.frozen_sharding = policy;
        run(&r[policy], "timing/tower-of-27", &o);
    }
    const struct ls_platform *p = &r[0].x.platform;
    const struct ls_placement at = { 1024, 128, 8 };
    struct ls_collective_cost block, with, without;
    const uint64_t block_bytes = 2 * (4 * (1152 * 1152 + 1152) + 2 * UINT64_C(1152) * 4304 + 4304 + 1152 + 4 * 1152), root_bytes = 2 * UINT64_C(2162000000);
    ls_collective_choose(p, NULL, LS_OP_ALL_GATHER, at, block_bytes, &block);
    ls_collective_choose(p, NULL, LS_OP_ALL_GATHER, at, root_bytes + BLOCKS * block_bytes, &with);
    ls_collective_choose(p, NULL, LS_OP_ALL_GATHER, at, root_bytes, &without);
    double more = (double)ls_collective_cost_ps(&with) * 1e-12 - (double)ls_collective_cost_ps(&without) * 1e-12;
    double units = BLOCKS * (double)ls_collective_cost_ps(&block) * 1e-12, got = r[1].x.step_s - r[0].x.step_s;
    cr_expect(block.latency_ps >= UINT64_C(1246) * 1000000 * 99 / 100);
    cr_expect(units > 0.0336 && got > 0.0336 && got < units - more + 0.005 && got > units - more - 0.005, "%g s longer; 27 calls %g s, root's bytes %g s", got, units, more);
    double exposed = r[1].x.budget_s[LS_BUDGET_ALL_GATHER] - r[0].x.budget_s[LS_BUDGET_ALL_GATHER];
    cr_expect(fabs(exposed - got) < 0.002, "%g s more exposed", exposed);
    cr_expect(r[2].x.step_s <= r[0].x.step_s);
    for (int policy = 0; policy < 3; policy++)
        release(&r[policy]);
}

static const char profile_text[] = "profile: 1\ntimes:\n"
    "  - {pass: forward, module: \"model.layers.*\", us: 20000}\n"
    "  - {pass: backward, module: \"model.layers.*\", us: 40000}\n"
    "  - {pass: backward, module: \"model.layers.7\", us: 50000}\n"
    "  - {pass: step, us: 3000}\n";

static void write_profile(const char *path, const char *text)
{
    FILE *f = fopen(path, "w");
    cr_assert(f && fputs(text, f) >= 0 && fclose(f) == 0);
}

/* 32 layers of measured times: what computes is them and the embeddings, head and loss, which keep their roofline. */
Test(simulate, a_measured_profile_overrides_the_roofline)
{
    struct ls_simulate_options o = plain;
    struct ls_profile p;
    struct ls_arena arena;
    struct ls_error err = { 0 };
    struct ran with, without, half;
    char path[] = "/tmp/lockstep-profile-XXXXXX";
    int fd = mkstemp(path);
    cr_assert(fd >= 0);
    close(fd);
    ls_arena_init(&arena, 0);
    write_profile(path, profile_text);
    cr_assert_eq(ls_profile_load(path, &arena, &p, &err), LS_OK, "%s", err.text);
    cr_assert_eq(p.rows, 4);
    o.spread = 1; /* millionths: as good as none */
    run(&without, "truth/llama3-1-8b-compile", &o);
    o.profile = &p;
    run(&with, "truth/llama3-1-8b-compile", &o);
    cr_expect(fabs(with.x.budget_s[LS_BUDGET_OPTIMIZER] - 0.003) < 1e-6, "%g", with.x.budget_s[LS_BUDGET_OPTIMIZER]);
    for (size_t i = 0; i < p.rows; i++)
        p.row[i].us *= i < 3 ? 2 : 1;
    run(&half, "truth/llama3-1-8b-compile", &o);
    double layers = 32 * 0.020 + 31 * 0.040 + 0.050, more = half.x.budget_s[LS_BUDGET_COMPUTE] - with.x.budget_s[LS_BUDGET_COMPUTE];
    cr_expect(fabs(more / layers - 1) < 1e-4, "%g s more, not %g", more, layers);
    cr_expect(with.x.budget_s[LS_BUDGET_COMPUTE] > layers && with.x.budget_s[LS_BUDGET_COMPUTE] < layers + without.x.budget_s[LS_BUDGET_COMPUTE] / 4);
    release(&with);
    release(&without);
    release(&half);
    /* What no module is called; what is no time; what is unknown. */
    static const struct { const char *text, *says; size_t line; } bad[] = {
        { "profile: 1\ntimes:\n  - {pass: forward, module: model.layer, us: 3}\n", "no module of the model is 'model.layer'", 3 },
        { "profile: 1\ntimes:\n  - {pass: forward, module: model, us: -3}\n", "'us' is -3, not a time in microseconds", 3 },
        { "profile: 1\ntimes:\n  - {pass: forward, us: 3}\n", "'module' is missing", 3 },
        { "profile: 1\ntimes:\n  - {pass: step, module: model, us: 3}\n", "the step of the optimizer has no module", 3 },
        { "profile: 1\ntimes:\n  - {pass: foward, module: model, us: 3}\n", "'pass' is 'foward', not one of forward, backward, recompute, step", 3 },
        { "profile: 2\ntimes: []\n", "'profile' is 2, which is not between 1 and 1", 1 },
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct ran r;
        char scenario[512];
        write_profile(path, bad[i].text);
        enum ls_code rc = ls_profile_load(path, &arena, &p, &err);
        if (rc == LS_OK) {
            snprintf(scenario, sizeof scenario, "%s/scenarios/truth/llama3-1-8b-compile.yaml", LS_SOURCE_DIR);
            ls_arena_init(&r.arena, 0);
            r.names = ls_names_open();
            cr_assert_eq(ls_scenario_load(scenario, &r.arena, r.names, &r.s, &err), LS_OK);
            rc = ls_simulate(&r.s, &o, &r.arena, &r.x, &err);
            ls_names_close(r.names);
            ls_arena_release(&r.arena);
        }
        cr_expect(rc == LS_EINPUT && strcmp(err.text, bad[i].says) == 0 && err.input.line == bad[i].line, "%s: %s", bad[i].says, err.text);
    }
    remove(path);
    ls_arena_release(&arena);
}

Test(simulate, speeds_are_a_normal_sample_without_luck)
{
    enum { MOST = 4096 };
    static uint32_t slow[MOST], again[MOST];
    const double want[] = { 1.424, 2.594, 3.61 }; /* the largest of 8, 128, 4096 standard normals, on average */
    const size_t ranks[] = { 8, 128, MOST };
    for (size_t i = 0; i < 3; i++) {
        double sum = 0, most = 0, least = 9;
        ls_speeds_draw(50000, 1, ranks[i], slow);
        ls_speeds_draw(50000, 2, ranks[i], again);
        for (size_t r = 0; r < ranks[i]; r++) {
            double z = ((double)slow[r] / LS_SPEED_ONE - 1) * 2.847 / 0.05;
            sum += z;
            most = z > most ? z : most;
            least = z < least ? z : least;
        }
        cr_expect(fabs(sum) < 0.001 * (double)ranks[i] + 0.01 && fabs(most + least) < 0.01 && fabs(most - want[i]) < 0.05, "%zu: %g %g %g", ranks[i], sum, least, most);
        uint64_t a = 0, b = 0; /* another seed deals out the same speeds */
        for (size_t r = 0; r < ranks[i]; r++)
            a += (uint64_t)slow[r] * slow[r], b += (uint64_t)again[r] * again[r];
        cr_expect(a == b && memcmp(slow, again, ranks[i] * sizeof *slow) != 0);
    }
}

Test(simulate, slower_ranks_are_waited_for)
{
    struct ls_simulate_options o = plain;
    struct ran equal, spread;
    run(&equal, "truth/policy-ministral3-3b", &o);
    o.spread = 200000;
    run(&spread, "truth/policy-ministral3-3b", &o);
    cr_expect(spread.x.step_s > 1.02 * equal.x.step_s && spread.x.step_s < 1.21 * equal.x.step_s);
    cr_expect(spread.x.budget_s[LS_BUDGET_WAITING] > 2 * equal.x.budget_s[LS_BUDGET_WAITING] + 1e-4);
    release(&equal);
    release(&spread);
}

Test(simulate, trace_holds_every_collective_once)
{
    struct ls_simulate_options o = plain;
    struct ran r;
    struct ls_str text = { 0 };
    o.trace = true;
    run(&r, "timing/qwen3-vl-4b", &o);
    ls_trace_write(&r.s, &r.x, &text);
    size_t want = 0, found = 0;
    for (uint32_t rank = 0; rank < r.x.job.ranks; rank++)
        for (size_t i = 0; r.x.run.class_of[rank] == rank && i < r.x.job.rank[rank].count; i++)
            for (size_t k = 0; k < r.x.job.rank[rank].segment[i]->count; k++)
                want += ls_op_uses_comm(&r.x.job.rank[rank].segment[i]->op[k]);
    for (const char *at = ls_str_text(&text); (at = strstr(at, "\"cat\":\"communication\"")); at++)
        found++;
    cr_expect_eq(found, want);
    ls_str_release(&text);
    release(&r);
}
