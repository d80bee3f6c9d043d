/* The simulator's memory against what our engine holds when it trains the same scenario: `runtime.activations: lockstep`. */
#include "sim/simulate.h"
#include "trained_memory.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>

/* Small pictures: the simulator is told how many patches they have. Inputs of the engine's batches (token ids, pixels, positions) count as
 * activations there and are not simulated; the simulator's peaks of activations and of the loss need not be at one time. */
static const struct { const char *name; uint64_t patches; } run[] = {
    { "training/gemma3-root-uniform", 16 },      { "training/gemma3-per-layer-uniform", 16 }, { "training/ministral3-root-uniform", 24 },
    { "training/ministral3-replicate-uniform", 24 }, { "training/qwen3-vl-root-uniform", 24 }, { "training/qwen3-vl-per-layer-uniform", 24 },
};
static const double tolerance = 0.05;

Test(sim_memory, as_the_engine_trains)
{
    double worst = 0;
    for (size_t i = 0; i < sizeof run / sizeof *run; i++) {
        struct ls_arena arena;
        struct ls_names *names = ls_names_open();
        struct ls_scenario s;
        struct ls_simulation x;
        struct ls_error err = { 0 };
        struct ls_str why = { 0 };
        uint64_t peak[LS_CATEGORY_COUNT];
        char path[512];
        const struct ls_simulate_options o = { .variant = LS_AS_WRITTEN, .fold = true, .seed = 1,
                                               .platform = LS_SOURCE_DIR "/scenarios/platforms/h100x8.yaml" };
        snprintf(path, sizeof path, "%s/scenarios/%s.yaml", LS_SOURCE_DIR, run[i].name);
        ls_arena_init(&arena, 0);
        cr_assert_eq(ls_scenario_load(path, &arena, names, &s, &err), LS_OK, "%s", err.text);
        s.activations = LS_STYLE_LOCKSTEP;
        struct ls_sample *sample = ls_arena_copy(&arena, s.batch.sample, s.batch.samples * sizeof *sample);
        for (size_t k = 0; k < s.batch.samples; k++)
            sample[k].image_patches = sample[k].images * run[i].patches;
        s.batch.sample = sample;
        cr_assert_eq(ls_simulate(&s, &o, &arena, &x, &err), LS_OK, "%s", err.text);
        /* Two ranks with 20 tokens and a picture, then 12 and two, which one call of the tower takes; four patches become a token. */
        cr_expect_eq(x.tokens, (double)(2 * (20 + 12 + 3 * run[i].patches / 4)), "%s", run[i].name);
        cr_assert(trained_memory(run[i].name, peak, &why), "%s", ls_str_text(&why));
        const uint64_t *most = x.rank_class[x.class_of[0]].memory.most;
        cr_expect_eq(most[LS_MEMORY_SHARDED] + most[LS_MEMORY_REPLICATED], peak[LS_CATEGORY_SHARDED], "%s", run[i].name);
        cr_expect_eq(most[LS_MEMORY_UNSHARDED], peak[LS_CATEGORY_UNSHARDED], "%s", run[i].name);
        cr_expect_eq(most[LS_MEMORY_GATHER], peak[LS_CATEGORY_GATHER], "%s", run[i].name);
        const uint64_t clip = 2 * sizeof(double); /* the engine's clipping keeps two sums with the optimizer */
        cr_expect_eq(most[LS_MEMORY_OPTIMIZER] + clip, peak[LS_CATEGORY_OPTIMIZER], "%s", run[i].name);
        double ours = (double)(most[LS_MEMORY_ACTIVATIONS] + most[LS_MEMORY_LOGITS]), off = ours / (double)peak[LS_CATEGORY_ACTIVATION] - 1;
        cr_expect(fabs(off) < tolerance, "%s: activations %.0f, the engine held %llu (%+.1f %%)", run[i].name, ours,
                  (unsigned long long)peak[LS_CATEGORY_ACTIVATION], 100 * off);
        worst = fabs(off) > worst ? fabs(off) : worst;
        ls_simulation_release(&x);
        ls_str_release(&why);
        ls_names_close(names);
        ls_arena_release(&arena);
    }
    printf("memory of %zu training runs: parameters, gathered buffers and optimizer to the byte, activations within %.1f %%\n", sizeof run / sizeof *run, 100 * worst);
}
