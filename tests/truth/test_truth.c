/* What was measured in public against what is simulated: report.md, written anew by LS_GOLDEN=write, compared otherwise. One constant
 * (the efficiency of matrix products in h100_96x8.yaml) was fixed on one row, the one marked calibration. */
#include "base/str.h"
#include "sim/simulate.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct measure { double tokens_s_rank, reserved_gib, peak_gib, mfu_full; };

static double gib(uint64_t bytes) { return (double)bytes / (1024.0 * 1024 * 1024); }

/* spread: millionths; 0: the scenario's */
static struct measure simulate_spread(const char *name, int policy, size_t replicas, uint32_t spread)
{
    struct ls_arena arena;
    struct ls_names *names = ls_names_open();
    struct ls_scenario s;
    struct ls_error err = { 0 };
    struct ls_simulation x;
    char path[512];
    struct ls_simulate_options o = { .variant = LS_AS_WRITTEN, .fold = true, .seed = 1, .replicas = replicas, .spread = spread };
    o.variant.frozen_sharding = policy;
    snprintf(path, sizeof path, "%s/scenarios/truth/%s.yaml", LS_SOURCE_DIR, name);
    ls_arena_init(&arena, 0);
    cr_assert_eq(ls_scenario_load(path, &arena, names, &s, &err), LS_OK, "%s: %s", path, err.text);
    cr_assert_eq(ls_simulate(&s, &o, &arena, &x, &err), LS_OK, "%s: %s", path, err.text);
    cr_assert(x.run.complete && !x.refusal.rule, "%s", path);
    const struct ls_sim_memory *m = &x.rank_class[x.worst].memory;
    struct measure out = { .tokens_s_rank = x.tokens_s / (double)x.job.ranks, .reserved_gib = gib(m->reserved), .peak_gib = gib(m->peak) };
    /* torchtitan's formula: 6 (N - embeddings) + 12 layers width sequence, for Llama 3.1 8B at 8,192 */
    out.mfu_full = out.tokens_s_rank * (6 * (8030261248.0 - 128256.0 * 4096) + 12.0 * 32 * 4096 * 8192) / 989e12;
    ls_simulation_release(&x);
    ls_names_close(names);
    ls_arena_release(&arena);
    return out;
}

static struct measure simulate(const char *name, int policy, size_t replicas) { return simulate_spread(name, policy, replicas, 0); }

static const char *mark(bool good) { return good ? "yes" : "**no**"; }

/* ---- dense runs of torchtitan ---- */

static const struct dense { const char *name, *scenario; size_t ranks; double tokens, gib, mfu; bool calibration; } dense[] = {
    { "8 GPUs, eager", "llama3-1-8b-eager", 8, 5762, 82.4, 33.7, true },
    { "8 GPUs, compile", "llama3-1-8b-compile", 8, 6667, 77.0, 39.0, false },
    { "128 GPUs, eager", "llama3-1-8b-eager", 128, 5605, 67.0, 32.8, false },
    { "128 GPUs, compile", "llama3-1-8b-compile", 128, 6514, 62.0, 38.1, false },
};

static void report_dense(struct ls_str *out)
{
    struct measure got[4];
    ls_str_add(out, "## Llama 3.1 8B, FSDP2, batch 2 x 8,192, selective recomputation, H100 with 96 GB at 500 W (torchtitan)\n\n"
                    "Throughput in tokens per second and GPU. Memory is what the allocator reserved; the simulated number is a lower bound of it "
                    "(sum of each pool's peak). MFU by torchtitan's formula, 6 (N - embeddings) + 12 layers x width x sequence, of 989 TFLOP/s.\n\n"
                    "| run | measured | simulated | error | MFU measured | simulated | GiB measured | simulated | error |\n"
                    "|---|---:|---:|---:|---:|---:|---:|---:|---:|\n");
    for (size_t i = 0; i < 4; i++) {
        const struct dense *d = &dense[i];
        got[i] = simulate(d->scenario, -1, d->ranks);
        ls_str_printf(out, "| %s%s | %.0f | %.0f | %+.1f %% | %.1f %% | %.1f %% | %.1f | %.1f | %+.1f |\n", d->name, d->calibration ? " (calibration)" : "",
                      d->tokens, got[i].tokens_s_rank, 100 * (got[i].tokens_s_rank / d->tokens - 1), d->mfu, 100 * got[i].mfu_full, d->gib,
                      got[i].reserved_gib, got[i].reserved_gib - d->gib);
    }
    ls_str_add(out, "\n| from 8 to 128 GPUs | measured | simulated | allowed | reached |\n|---|---:|---:|---:|---|\n");
    bool scaling = true, memory = true;
    for (size_t i = 0; i < 2; i++) {
        double want = 100 * (dense[i + 2].tokens / dense[i].tokens - 1), is = 100 * (got[i + 2].tokens_s_rank / got[i].tokens_s_rank - 1);
        bool good = fabs(want - is) <= 1.5;
        scaling &= good;
        ls_str_printf(out, "| throughput, %s | %+.1f %% | %+.1f %% | 1.5 points | %s |\n", i ? "compile" : "eager", want, is, mark(good));
    }
    for (size_t i = 0; i < 2; i++) {
        double is = got[i + 2].reserved_gib - got[i].reserved_gib;
        bool good = fabs(is + 15.0) <= 1;
        memory &= good;
        ls_str_printf(out, "| reserved, %s | %+.1f GiB | %+.1f GiB | -15.0 +- 1 | %s |\n", i ? "compile" : "eager", dense[i + 2].gib - dense[i].gib,
                      is, mark(good));
    }
    double alike[2];
    for (size_t i = 0; i < 2; i++)
        alike[i] = simulate_spread("llama3-1-8b-eager", -1, dense[2 * i].ranks, 1).tokens_s_rank;
    ls_str_printf(out, "\nWhat makes the scaling: with GPUs that are all equally fast, 128 would be %+.1f %% against 8 in eager mode, since communication is hidden "
                       "on either scale and the optimizer's shards shrink. GPUs are not: the fastest and the slowest of a node differ by 5 %% (ml-engineering "
                       "handbook, which says 5 %% and more; 8 %% over whole clusters, arXiv 2208.11035), and a step waits for the slowest of 128, not of 8: "
                       "%+.1f points. %s: *interference*. NCCL's kernels take multiprocessors and memory bandwidth away from products, "
                       "longer so between nodes, and the simulator lets them run there for nothing.\n",
                  100 * (alike[1] / alike[0] - 1), 100 * (got[2].tokens_s_rank / got[0].tokens_s_rank - alike[1] / alike[0]),
                  scaling ? "What is left of the difference" : "At fault for what is missed");
    ls_str_add(out, "\nAt fault for absolute memory: *fragmentation within pools*, which is not modelled. The difference between eager and compile "
                    "(measured -5 GiB, simulated none) is not explained: at the peak, in the loss, both hold the same tensors here.\n"
                    "\nOnly the efficiency of matrix products (0.446) was fitted, on the calibration row. Four more choices were made after rows had been "
                    "seen: torch_compile covers the items of module lists and not the loss, the loss's backward peak holds one bf16 tensor of logits "
                    "less, Llama's units follow torchtitan's older layout, and the speeds of GPUs differ, in all rows of this report alike: that term came "
                    "in after the scaling had been missed without it (+0.3 %), its size from the sources above.\n");
    cr_expect(scaling, "throughput from 8 to 128 GPUs");
    cr_expect(memory, "memory from 8 to 128 GPUs");
    cr_expect(fabs(got[0].tokens_s_rank / dense[0].tokens - 1) < 0.005, "the calibration row");
    cr_expect(fabs(got[1].tokens_s_rank / dense[1].tokens - 1) < 0.05, "compile on 8 GPUs");
}

/* ---- the policies of AutoModel ---- */

enum { ROOT, PER_LAYER, REPLICATE, POLICIES };
static const struct cell { const char *name, *scenario; double percent[POLICIES], gib[POLICIES]; } cells[] = { /* NAN: not run */
    { "Qwen3-VL 4B, 2 GPUs", "policy-qwen3-vl-4b-2", { 0, -5.82, 3.89 }, { 0, -0.64, -0.38 } },
    { "Qwen3-VL 4B, 8 GPUs (replicate: mean of both orders)", "policy-qwen3-vl-4b-8", { 0, 1.11, 2.65 }, { 0, -0.61, -0.07 } },
    { "Gemma3 4B, 8 GPUs", "policy-gemma3-4b", { 0, 1.24, 0.92 }, { 0, -0.74, -0.08 } },
    { "Ministral3 3B, 8 GPUs", "policy-ministral3-3b", { 0, -0.99, 2.91 }, { 0, -0.72, -0.10 } },
};

/* Reported, neither fitted nor judged: what is measured is not quite what can be simulated. */
static void report_others(struct ls_str *out)
{
    static const struct { const char *name, *scenario, *why; double percent[POLICIES], gib[POLICIES]; } other[] = {
        { "Gemma4 31B, joint drafter, text", "policy-gemma4-31b-text", "simulated without the drafter", { 0, 5.45, NAN }, { 0, -1.01, NAN } },
        { "Gemma4 4B, joint drafter, text", "policy-gemma4-e4b-text", "simulated without the drafter", { 0, 25.45, NAN }, { 0, -0.84, NAN } },
        { "Gemma4 26B-A4B, ep8", "policy-gemma4-26b-a4b", "routing taken to be balanced", { 0, 5.70, 4.72 }, { 0, -0.01, -0.28 } },
        { "Gemma4 E4B, earlier run of 15 steps", NULL, "batches unknown", { 0, 0.46, 0.58 }, { 0, -0.84, -0.21 } },
    };
    ls_str_add(out, "\nReported, neither fitted nor judged:\n\n| recipe | policy | measured | simulated | GiB measured | simulated | note |\n"
                    "|---|---|---:|---:|---:|---:|---|\n");
    for (size_t i = 0; i < sizeof other / sizeof *other; i++) {
        struct measure root = { 0 }, got = { 0 };
        if (other[i].scenario)
            root = simulate(other[i].scenario, ROOT, 0);
        for (int p = PER_LAYER; p < POLICIES; p++) {
            if (isnan(other[i].percent[p]))
                continue;
            ls_str_printf(out, "| %s | %s | %+.2f %% | ", other[i].name, p == PER_LAYER ? "per_layer" : "replicate", other[i].percent[p]);
            if (other[i].scenario) {
                got = simulate(other[i].scenario, p, 0);
                ls_str_printf(out, "%+.2f %% | %+.2f | %+.3f", 100 * (got.tokens_s_rank / root.tokens_s_rank - 1), other[i].gib[p], got.peak_gib - root.peak_gib);
            } else {
                ls_str_printf(out, "- | %+.2f | -", other[i].gib[p]);
            }
            ls_str_printf(out, " | %s |\n", other[i].why);
        }
    }
    ls_str_add(out, "\nThe drafters' gains in throughput are missed (a second model's units and launches), and so is the memory of the 4B row: "
                    "the simulated peak is in the root's reduce-scatter in f32, when gathered parameters are gone, and the scenario freezes the vision tower alone; "
                    "both towers together are 0.83 GiB in bf16, so that run probably froze both and peaked in forward.\n");
}

static void report_policies(struct ls_str *out)
{
    static const char *const name[] = { "root", "per_layer", "replicate" };
    const double gap = 4;
    ls_str_add(out, "\n## Policies on H100 with 80 GB (AutoModel), against root\n\n"
                    "Throughput in percent; two orders of one cell differ by 4 points, so only larger gaps are judged. Lengths of texts and images of "
                    "those runs are not published: 64 to 512 tokens and one image are assumed. The host's times per kernel and hook are assumed too, once "
                    "for all rows, after it was seen that without them per_layer comes out ahead of root on two GPUs (+1.7 %).\n\n"
                    "| recipe | policy | measured | simulated | GiB measured | simulated | within 0.1 |\n|---|---|---:|---:|---:|---:|---|\n");
    bool order = true;
    struct ls_str orders = { 0 };
    for (size_t i = 0; i < sizeof cells / sizeof *cells; i++) {
        const struct cell *c = &cells[i];
        struct measure got[POLICIES];
        double percent[POLICIES];
        for (int p = 0; p < POLICIES; p++) {
            got[p] = simulate(c->scenario, p, 0);
            percent[p] = 100 * (got[p].tokens_s_rank / got[ROOT].tokens_s_rank - 1);
            if (p == ROOT)
                continue;
            double is = got[p].peak_gib - got[ROOT].peak_gib;
            bool good = fabs(is - c->gib[p]) <= 0.1;
            ls_str_printf(out, "| %s | %s | %+.2f %% | %+.2f %% | %+.2f | %+.3f | %s |\n", c->name, name[p], c->percent[p], percent[p], c->gib[p], is,
                          mark(good));
            cr_expect(good, "%s, %s: %.3f GiB, measured %.2f", c->name, name[p], is, c->gib[p]);
        }
        for (int a = 0; a < POLICIES; a++)
            for (int b = a + 1; b < POLICIES; b++) {
                double want = c->percent[b] - c->percent[a], is = percent[b] - percent[a];
                if (fabs(want) <= gap)
                    continue;
                bool good = (want > 0) == (is > 0);
                order &= good;
                ls_str_printf(&orders, "| %s | %s against %s | %+.2f | %+.2f | %s |\n", c->name, name[b], name[a], want, is, mark(good));
            }
    }
    ls_str_printf(out, "\n| gaps above 4 points | policies | measured | simulated | same order |\n|---|---|---:|---:|---|\n%s", ls_str_text(&orders));
    ls_str_add(out, "\nThe size of the first gap is missed. At fault: *the host's time per unit and kernel* (8 and 5 us per kernel, 60 us per hook, all "
                    "assumed): on two GPUs the runs were more launch-bound than that. The right order of that cell is worth little: the simulated gap is small.\n");
    report_others(out);
    ls_str_release(&orders);
    cr_expect(order, "order of policies where the measured gap is above 4 points");
}

Test(truth, report)
{
    static const char path[] = LS_SOURCE_DIR "/tests/truth/report.md";
    const char *golden = getenv("LS_GOLDEN");
    struct ls_str out = { 0 };
    ls_str_add(&out, "# Simulated against measured\n\nMade by tests/truth/test_truth.c (`LS_GOLDEN=write` writes it anew); the test compares.\n\n");
    report_dense(&out);
    report_policies(&out);
    if (golden && strcmp(golden, "write") == 0) {
        FILE *f = fopen(path, "w");
        cr_assert(f);
        cr_assert_eq(fwrite(ls_str_text(&out), 1, out.length, f), out.length);
        fclose(f);
    } else {
        FILE *f = fopen(path, "r");
        cr_assert(f, "%s is missing", path);
        char *text = calloc(1, out.length + 2);
        cr_assert(text);
        size_t n = fread(text, 1, out.length + 1, f);
        fclose(f);
        cr_expect(n == out.length && memcmp(text, ls_str_text(&out), n) == 0, "tests/truth/report.md is not what is simulated now:\n%s",
                  ls_str_text(&out));
        free(text);
    }
    ls_str_release(&out);
}
