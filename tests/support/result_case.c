#include "result_case.h"

#include "base/hash.h"

#include <math.h>
#include <string.h>

enum { RANKS = 2, WARMUP = 2, STEPS = 10, ROUNDS = 6, CATEGORIES = 8 };

static struct ls_result_names names(struct ls_arena *arena, const char *const *text, size_t count)
{
    struct ls_result_names n = { LS_NEW(arena, const char *, count + 1), count };
    for (size_t i = 0; i < count; i++)
        n.at[i] = ls_arena_str(arena, text[i]);
    return n;
}

static void fill_run(struct ls_result_run *x, uint32_t round, uint32_t order, double step_s, uint64_t *random, struct ls_arena *arena)
{
    x->round = round, x->order = order, x->steps = WARMUP + STEPS;
    x->seconds = LS_NEW(arena, double, x->steps), x->loss = LS_NEW(arena, double, x->steps), x->norm = LS_NEW(arena, double, x->steps);
    x->text_tokens = LS_NEW(arena, uint64_t, x->steps), x->media_tokens = LS_NEW(arena, uint64_t, x->steps);
    for (size_t k = 0; k < x->steps; k++) {
        double noise = (double)ls_random_below(random, 1000) / 1000;
        x->seconds[k] = step_s * (1 + 0.08 * noise * noise + (k < WARMUP ? 0.5 : 0));
        x->loss[k] = 4.125 - 0.03125 * (double)k;
        x->norm[k] = 1.5 + 0.0625 * (double)(k % 3);
        x->text_tokens[k] = 96;
        x->media_tokens[k] = 24;
    }
}

static void fill_timeline(struct ls_result_timeline *t, struct ls_arena *arena)
{
    static const char *const streams[] = { "compute", "all_gather", "reduce_scatter" };
    static const char *const kinds[] = { "forward", "backward", "optimizer", "copy", "all_gather", "reduce_scatter" };
    static const char *const labels[] = { "model.visual", "model.layers.0", "model.layers.1", "" };
    t->step = WARMUP;
    t->streams = names(arena, streams, 3);
    t->kinds = names(arena, kinds, 6);
    t->labels = names(arena, labels, 4);
    t->span = LS_NEW(arena, struct ls_result_span, 200);
    for (uint32_t r = 0; r < RANKS; r++)
        for (uint32_t i = 0; i < 12; i++) {
            uint64_t at = 400000u * i + 50000u * r;
            t->span[t->spans++] = (struct ls_result_span){ r, 0, i < 6 ? 0u : 1u, i % 3, at + 100000, at + 380000 };
            t->span[t->spans++] = (struct ls_result_span){ r, 1, 4, i % 3, at, at + 90000 };
            t->span[t->spans++] = (struct ls_result_span){ r, 1, 3, i % 3, at + 90000, at + 100000 };
            if (i >= 6)
                t->span[t->spans++] = (struct ls_result_span){ r, 2, 5, i % 3, at + 300000, at + 400000 };
        }
    for (uint32_t r = 0; r < RANKS; r++)
        t->span[t->spans++] = (struct ls_result_span){ r, 0, 2, 3, 4900000, 5200000 };
}

static void fill_cell(struct ls_result_cell *c, size_t policy, size_t batches, uint64_t *random, struct ls_arena *arena)
{
    static const char *const policies[] = { "root", "per_layer", "replicate" }, *const kinds[] = { "uniform", "mixed" };
    static const char *const units[][4] = { { "", "model.layers.0", "model.layers.1" }, { "", "model.layers.0", "model.layers.1", "model.visual.blocks.0" },
                                            { "", "model.layers.0", "model.layers.1" } };
    static const uint64_t bytes[3][CATEGORIES] = { { 1200000, 900000, 150000, 300000, 250000, 1400000, 2400000, 40000 },
                                                   { 1200000, 500000, 150000, 350000, 250000, 1400000, 2400000, 40000 },
                                                   { 1900000, 500000, 150000, 300000, 250000, 1400000, 2400000, 40000 } };
    static const double step_s[] = { 0.0100, 0.0104, 0.0096 };
    c->policy = policies[policy], c->batches = kinds[batches];
    c->units = names(arena, units[policy], policy == 1 ? 4 : 3);
    bool unsafe = policy == 1 && batches == 1;
    c->check = c->replay = unsafe ? LS_MISMATCH : LS_SAFE;
    c->check_text = unsafe ? "mismatch at call 2 of dp_shard: all_gather of 'model.visual.blocks.0' meets all_gather of 'model.layers.0'" : "proved";
    c->replayed = unsafe ? LS_REPLAYED_WITNESS : LS_REPLAYED_TRAINED;
    c->replay_text = unsafe ? "mismatch at the same op: rank 1 never leaves call 2" : "completed";
    if (unsafe)
        return;
    c->simulated = true;
    c->sim_step_s = step_s[policy] / 7, c->sim_tokens_s = 120 * 7 / step_s[policy], c->sim_peak_bytes = 9000000 + 300000 * policy;
    c->run = LS_NEW(arena, struct ls_result_run, ROUNDS);
    for (uint32_t k = 0; k < ROUNDS; k++)
        fill_run(&c->run[c->runs++], k, k % 2 ? (uint32_t)(3 * k + 2 - policy) : (uint32_t)(3 * k + policy), step_s[policy], random, arena);
    c->memory = LS_NEW(arena, struct ls_result_memory, RANKS);
    c->ranks = RANKS;
    for (size_t i = 0; i < RANKS; i++) {
        c->memory[i].at_peak = LS_NEW(arena, uint64_t, CATEGORIES);
        for (size_t k = 0; k < CATEGORIES; k++)
            c->memory[i].total += c->memory[i].at_peak[k] = bytes[policy][k] + (i == 1 && k == 6 ? 2048 : 0);
    }
    c->has_timeline = true;
    fill_timeline(&c->timeline, arena);
}

void result_case(struct ls_result *out, struct ls_arena *arena, uint64_t seed)
{
    static const char *const categories[] = { "sharded_parameters", "unsharded_parameters", "gradients", "gather_buffers", "reduce_buffers", "activations",
                                              "optimizer", "temporary" };
    static const char text[] = "lockstep: 1\nname: made-up\nquestion: What does <each> policy cost?\n";
    *out = (struct ls_result){ .version = "0.1.0", .build = "Release", .compiler = "GCC 12.2.0", .name = "made-up",
                               .question = "What does <each> policy cost | when ranks' batches differ?", .file = "scenarios/made-up.yaml", .text = text,
                               .text_length = strlen(text), .model_file = "models/made_up.yaml", .model_hash = 0x0123456789abcdef, .parameters = 68288,
                               .trained = 51200, .cpu = "An Invented CPU", .system = "Linux 6.1 x86_64", .blas = "OpenBLAS 0.3.21",
                               .schedule = "a thread per queue", .cores = 2, .load = 0.25, .memory_bytes = 16ull << 30, .blas_threads = 1, .seed = seed, .ranks = RANKS,
                               .warmup = WARMUP, .steps = STEPS, .rounds = ROUNDS, .baseline = "root", .platform = "invented x8" };
    out->categories = names(arena, categories, CATEGORIES);
    out->cell = LS_NEW(arena, struct ls_result_cell, 6);
    uint64_t random = seed;
    for (size_t b = 0; b < 2; b++)
        for (size_t p = 0; p < 3; p++)
            fill_cell(&out->cell[out->cells++], p, b, &random, arena);
}
