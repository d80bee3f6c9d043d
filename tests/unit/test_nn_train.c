/* Sharded training with real mathematics against one process that does not shard: losses, norms and final weights; the same bits
 * under every safe policy and schedule. Sums are float: a reduction adds up in another order than one process does.
 *   against one process   losses 1e-5, norms 1e-4 of their value over the steps taken; weights 1e-4 of the largest, after AdamW
 *   policies, schedules   bit for bit */
#include "engine/nn/solo.h"
#include "engine/nn/train.h"
#include "replay/replay.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { STEPS = 4, LOSSES_MAX = 1024 };

struct setting {
    const char *model, *policy, *table, *freeze, *more; /* more: further keys of the file */
    const char *dtypes, *distributed;
    bool recompute;                /* every decoder layer is a checkpointed call */
    unsigned ranks, replicas, microbatches;
    uint64_t schedule;             /* seed of the schedule */
    bool free;
};
struct result {
    size_t steps, params, segments, ranks;
    double loss[STEPS], norm[STEPS];
    float **weight; size_t *elements;
    double solo_loss[STEPS], solo_norm[STEPS];
    float **solo_weight;
    uint64_t activation_peak;
};

/* A copy of an inventory in which the calls of decoder layers are checkpointed. */
static void checkpointed(const char *model, const char *path)
{
    char from[512], line[512];
    snprintf(from, sizeof from, "%s/scenarios/models/%s.yaml", LS_SOURCE_DIR, model);
    FILE *in = fopen(from, "r"), *out = fopen(path, "w");
    cr_assert(in && out, "%s", path);
    size_t marked = 0;
    for (bool call = false; fgets(line, sizeof line, in); call = strstr(line, "- call: $\n") != NULL) {
        if (call && strstr(line, " in: [h]\n")) {
            fprintf(out, "%*scheckpoint: true\n", (int)(strstr(line, "in:") - line), "");
            marked++;
        }
        fputs(line, out);
    }
    cr_assert_gt(marked, 0u);
    fclose(in);
    fclose(out);
}

static void text_of(const struct setting *x, struct ls_str *s)
{
    char path[512];
    snprintf(path, sizeof path, x->recompute ? "%s/nn_train_%s_%d.yaml" : "%s/scenarios/models/%s.yaml", x->recompute ? LS_BINARY_DIR : LS_SOURCE_DIR,
             x->model, (int)getpid());
    if (x->recompute)
        checkpointed(x->model, path);
    ls_str_printf(s, "lockstep: 1\nname: train\nquestion: q\nmodel: {inventory: %s%s}\n", path, x->more ? x->more : "");
    if (x->freeze)
        ls_str_printf(s, "freeze_config: %s\n", x->freeze);
    ls_str_printf(s, "distributed:\n  strategy: fsdp2\n  dp_size: %u\n  dp_replicate_size: %u\n  mp_policy: %s\n%s  multimodal: {frozen_sharding: %s}\n",
                  x->ranks, x->replicas ? x->replicas : 1, x->dtypes ? x->dtypes : "{param: f32, reduce: f32, output: f32}",
                  x->distributed ? x->distributed : "", x->policy);
    ls_str_printf(s, "batch:\n  microbatches: %u\n  samples: [{text: 12}, {text: 9, images: 1}, {text: 7, images: 2}%s]\n  execution: {table: %s}\n",
                  x->microbatches, strstr(x->model, "omni") ? ", {text: 8, audios: 1}, {text: 10, images: 1, audios: 2}" : "", x->table);
    ls_str_printf(s, "  dummy_forward: {vision: [tower%s]%s}\n  steps: %u\nstep: {clip_grad_norm: true, metrics: [loss]}\n",
                  strstr(x->model, "qwen") ? "" : ", projector", strstr(x->model, "omni") ? ", audio: [tower]" : "", STEPS); /* Qwen's projector is inside its tower */
}

static void check(enum ls_code rc, const struct ls_error *err, const struct ls_str *text)
{
    cr_assert_eq(rc, LS_OK, "%zu:%zu %s\n%s", err->input.line, err->input.column, err->text, ls_str_text(text));
}

/* The same sequences in one process: one batch per step, of all ranks and microbatches. */
static void run_solo(const struct ls_engine_setup *setup, const struct ls_nn_train *t, const bool *trains, enum ls_dtype compute, struct result *out)
{
    struct ls_nn_solo *s;
    struct ls_error err = { 0 };
    struct ls_nn_sequence q[64];
    struct ls_nn_solo_options o = { t->vlm, trains, compute, setup->seed, t->adamw };
    struct ls_str none = { 0 };
    check(ls_nn_solo_open(&s, &o, &err), &err, &none);
    size_t step = 0, n = 0;
    for (uint32_t g = 0; g < setup->job->rank[0].count; g++) {
        for (uint32_t r = 0; r < setup->job->ranks && ls_nn_train_has_loss(setup, g, r); r++)
            q[n++] = ls_nn_train_sequence(setup, t, g, r);
        if (!ls_nn_train_has_optimizer(setup, g, 0))
            continue;
        check(ls_nn_solo_microbatch(s, q, n, 1 / (double)ls_nn_labels(t->vlm, q, n), &out->solo_loss[step], &err), &err, &none);
        out->solo_norm[step++] = ls_nn_solo_update(s);
        n = 0;
    }
    cr_assert_eq(step, (size_t)STEPS);
    for (uint32_t i = 0; i < out->params; i++)
        if (out->weight[i])
            memcpy(out->solo_weight[i], ls_nn_solo_param(s, i), out->elements[i] * sizeof(float));
    ls_nn_solo_close(s);
}

static struct result run(const struct setting *x, bool solo)
{
    struct result out = { 0 };
    struct ls_str text = { 0 };
    struct ls_arena arena;
    struct ls_error err = { 0 };
    struct ls_scenario s;
    struct ls_compiled c;
    struct ls_assignment a;
    struct ls_job job;
    struct ls_engine_setup setup;
    struct ls_observed seen;
    struct ls_nn_vlm vlm;
    struct ls_variant as_written = LS_AS_WRITTEN;
    static double loss[LOSSES_MAX], norm[LOSSES_MAX];
    ls_arena_init(&arena, 0);
    struct ls_names *names = ls_names_open();
    text_of(x, &text);
    check(ls_scenario_read(text.text, text.length, "train.yaml", &arena, names, &s, &err), &err, &text);
    if (x->recompute)
        remove(s.model.path);
    check(ls_nn_vlm_build(&s.model, &arena, &vlm, &err), &err, &text);
    check(ls_scenario_compile(&s, &as_written, true, &c, &err), &err, &text);
    cr_assert(!c.refusal.rule, "%s\n%s", c.refusal.rule, text.text);
    check(ls_replay_assignment(&c, STEPS, 1, &arena, &a, &err), &err, &text);
    check(ls_system_job(&c.system, &a, &arena, &job, &err), &err, &text);
    ls_replay_setup(&s, &c, &a, &job, 7, &arena, &setup);
    out.params = setup.params, out.ranks = job.ranks, out.segments = job.rank[0].count;
    cr_assert_lt(out.segments * out.ranks, (size_t)LOSSES_MAX);
    out.weight = calloc(out.params + 1, sizeof *out.weight), out.solo_weight = calloc(out.params + 1, sizeof *out.solo_weight);
    out.elements = calloc(out.params + 1, sizeof *out.elements);
    bool *trains = calloc(out.params + 1, sizeof *trains);
    for (uint32_t i = 0; i < out.params; i++) {
        trains[i] = setup.param[i].trains;
        if (!trains[i] || vlm.model->param[i].canonical != i)
            continue;
        out.elements[i] = (size_t)vlm.model->param[i].elements;
        out.weight[i] = calloc(out.elements[i] + 1, sizeof(float)), out.solo_weight[i] = calloc(out.elements[i] + 1, sizeof(float));
    }
    struct ls_nn_sample *sample = LS_NEW(&arena, struct ls_nn_sample, c.batch.samples + 1);
    for (size_t i = 0; i < c.batch.samples; i++)
        sample[i] = (struct ls_nn_sample){ c.batch.sample[i].text, c.batch.sample[i].images, c.batch.sample[i].videos, c.batch.sample[i].at,
                                           c.batch.sample[i].audios };
    struct ls_nn_train t = { .vlm = &vlm, .sample = sample, .samples = c.batch.samples, .adamw = ls_nn_adamw_default, .loss = loss, .norm = norm,
                             .weight = out.weight };
    struct ls_engine_options o = { .free = x->free, .seed = x->schedule, .poison = true, .math = &ls_math_nn, .math_context = &t };
    check(ls_engine_run(&setup, &o, &arena, &seen, &err), &err, &text);
    cr_assert_eq(seen.outcome.verdict, LS_SAFE, "%s\n%s", ls_verdict_name(seen.outcome.verdict), text.text);
    uint32_t from = 0;
    for (uint32_t g = 0; g < out.segments; g++)
        if (ls_nn_train_has_optimizer(&setup, g, 0)) {
            out.loss[out.steps] = ls_nn_train_loss(&setup, &t, from, g);
            for (uint32_t r = 1; r < out.ranks; r++)
                cr_assert_eq(norm[g * out.ranks + r], norm[g * out.ranks], "ranks do not agree on the norm");
            out.norm[out.steps++] = norm[g * out.ranks];
            from = g + 1;
        }
    cr_assert_eq(out.steps, (size_t)STEPS);
    out.activation_peak = seen.memory[0].peak[LS_CATEGORY_ACTIVATION];
    if (solo)
        run_solo(&setup, &t, trains, x->dtypes ? LS_DTYPE_BF16 : LS_DTYPE_F32, &out);
    free(trains);
    ls_compiled_release(&c);
    ls_str_release(&text);
    ls_names_close(names);
    ls_arena_release(&arena);
    return out;
}

static void drop(struct result *r)
{
    for (size_t i = 0; i < r->params; i++)
        free(r->weight[i]), free(r->solo_weight[i]);
    free(r->weight), free(r->solo_weight), free(r->elements);
}

static void like_solo(const struct setting *x, double tolerance)
{
    struct result r = run(x, true);
    for (size_t i = 0; i < STEPS; i++) {
        cr_assert_float_eq(r.loss[i], r.solo_loss[i], tolerance * r.solo_loss[i], "%s %s, %u ranks, step %zu: loss %.9g, one process %.9g", x->model,
                           x->policy, x->ranks, i, r.loss[i], r.solo_loss[i]);
        cr_assert_float_eq(r.norm[i], r.solo_norm[i], 10 * tolerance * r.solo_norm[i], "%s %s, %u ranks, step %zu: norm %.9g, one process %.9g", x->model,
                           x->policy, x->ranks, i, r.norm[i], r.solo_norm[i]);
    }
    cr_assert_lt(r.loss[STEPS - 1], 6.0);
    size_t compared = 0;
    for (size_t i = 0; i < r.params; i++) {
        double largest = 0, worst = 0;
        for (size_t k = 0; k < r.elements[i]; k++) {
            largest = fmax(largest, fabs((double)r.solo_weight[i][k]));
            worst = fmax(worst, fabs((double)r.weight[i][k] - (double)r.solo_weight[i][k]));
        }
        /* A gradient that is rounding noise moves its weight by a whole step, either way. */
        cr_assert_leq(worst, 10 * tolerance * largest + 2e-3, "%s, parameter %zu: off by %g of %g", x->model, i, worst, largest);
        compared += r.elements[i];
    }
    cr_assert_gt(compared, 100u);
    drop(&r);
}

static void same_bits(const struct setting *a, const struct setting *b)
{
    struct result x = run(a, false), y = run(b, false);
    cr_assert_arr_eq(x.loss, y.loss, sizeof x.loss, "losses of %s and %s differ: %.17g and %.17g", a->policy, b->policy, x.loss[1], y.loss[1]);
    cr_assert_arr_eq(x.norm, y.norm, sizeof x.norm, "norms of %s and %s differ: %.17g and %.17g", a->policy, b->policy, x.norm[0], y.norm[0]);
    for (size_t i = 0; i < x.params; i++)
        cr_assert(x.elements[i] == y.elements[i] && (!x.elements[i] || memcmp(x.weight[i], y.weight[i], x.elements[i] * sizeof(float)) == 0),
                  "weights %zu of %s and %s differ", i, a->policy, b->policy);
    drop(&x), drop(&y);
}

static const char *const models[] = { "tiny_qwen3_vl", "tiny_gemma3", "tiny_ministral3" };
#define FROZEN "{freeze_vision_tower: true}"

Test(nn_train, one_rank_is_one_process)
{
    for (size_t m = 0; m < 3; m++)
        like_solo(&(struct setting){ .model = models[m], .policy = "root", .ranks = 1, .microbatches = 1, .table = "[[1]]" }, 1e-5);
}

Test(nn_train, shards_of_two_and_four)
{
    for (size_t m = 0; m < 3; m++) {
        like_solo(&(struct setting){ .model = models[m], .policy = "root", .ranks = 2, .microbatches = 1, .table = "[[1, 2]]" }, 1e-5);
        like_solo(&(struct setting){ .model = models[m], .policy = "root", .ranks = 4, .microbatches = 1, .table = "[[1, 2, 1, 1]]" }, 1e-5);
    }
}

Test(nn_train, some_ranks_without_pictures)
{
    for (size_t m = 0; m < 3; m++) /* the tower is frozen, or a dummy stands in where it trains */
        for (size_t frozen = 0; frozen < 2; frozen++)
            like_solo(&(struct setting){ .model = models[m], .policy = "root", .freeze = frozen ? FROZEN : NULL, .ranks = 2, .microbatches = 1,
                                         .table = "[[0, 1]]" }, 1e-5);
}

Test(nn_train, pictures_here_recordings_there)
{
    static const char *const freeze[] = { NULL, "{freeze_vision_tower: true, freeze_audio_tower: true}", "{freeze_audio_tower: true}" };
    for (size_t f = 0; f < 3; f++) {
        struct setting x = { .model = "tiny_qwen2_5_omni", .policy = "root", .freeze = freeze[f], .ranks = 2, .microbatches = 2, .table = "[[1, 3], [0, 4]]" };
        like_solo(&x, 1e-5);
        struct setting free = x;
        free.free = true;
        same_bits(&x, &free);
    }
    struct setting same = { .model = "tiny_qwen2_5_omni", .policy = "root", .freeze = freeze[1], .ranks = 2, .microbatches = 1, .table = "[[4, 4]]" };
    like_solo(&same, 1e-5);
    for (size_t p = 0; p < 2; p++) {
        struct setting other = same;
        other.policy = p ? "replicate" : "per_layer";
        same_bits(&same, &other);
    }
}

Test(nn_train, accumulation_is_a_larger_batch)
{
    for (size_t m = 0; m < 3; m++) {
        like_solo(&(struct setting){ .model = models[m], .policy = "root", .ranks = 1, .microbatches = 3, .table = "[[1], [2], [0]]" }, 1e-5);
        like_solo(&(struct setting){ .model = models[m], .policy = "root", .ranks = 2, .microbatches = 2, .table = "[[1, 2], [2, 1]]" }, 1e-5);
        like_solo(&(struct setting){ .model = models[m], .policy = "root", .ranks = 2, .microbatches = 2, .table = "[[1, 2], [2, 1]]",
                                     .distributed = "  defer_fsdp_grad_sync: true\n" }, 1e-5);
    }
}

Test(nn_train, replicas_of_shards)
{
    like_solo(&(struct setting){ .model = models[0], .policy = "root", .ranks = 4, .replicas = 2, .microbatches = 2, .table = "[[1, 2, 2, 1], [1, 1, 1, 2]]" }, 1e-5);
}

Test(nn_train, policies_give_the_same_bits)
{
    for (size_t m = 0; m < 3; m++) {
        struct setting root = { .model = models[m], .policy = "root", .freeze = FROZEN, .ranks = 2, .microbatches = 2, .table = "[[1, 2], [2, 1]]" };
        struct setting layer = root, replicate = root;
        layer.policy = "per_layer", replicate.policy = "replicate";
        same_bits(&root, &layer);
        same_bits(&root, &replicate);
    }
}

Test(nn_train, schedules_and_threads_give_the_same_bits)
{
    struct setting first = { .model = models[1], .policy = "root", .ranks = 3, .microbatches = 2, .table = "[[0, 1, 2], [1, 1, 0]]" }, other = first;
    for (uint64_t seed = 1; seed < 4; seed++) {
        other.schedule = seed;
        same_bits(&first, &other);
    }
    other.free = true;
    same_bits(&first, &other);
}

Test(nn_train, recomputation_gives_the_same_bits_in_less_memory)
{
    for (size_t m = 0; m < 3; m++) {
        struct setting plain = { .model = models[m], .policy = "root", .ranks = 2, .microbatches = 1, .table = "[[1, 2]]" }, again = plain;
        again.recompute = true;
        same_bits(&plain, &again);
        struct result x = run(&plain, false), y = run(&again, false);
        cr_assert_lt(y.activation_peak, x.activation_peak);
        drop(&x), drop(&y);
    }
}

Test(nn_train, adapters)
{
    for (size_t m = 0; m < 3; m++)
        like_solo(&(struct setting){ .model = models[m], .policy = "root", .ranks = 2, .microbatches = 1, .table = "[[1, 2]]",
                                     .more = ", peft: {kind: lora, targets: [q_proj, down_proj], rank: 2}" }, 1e-5);
}

Test(nn_train, bf16_parameters_and_activations)
{
    /* Eight bits of precision: losses within 2 %, norms within 20 % of a process that rounds elsewhere. */
    for (size_t m = 0; m < 3; m++)
        like_solo(&(struct setting){ .model = models[m], .policy = "root", .ranks = 2, .microbatches = 1, .table = "[[1, 2]]",
                                     .dtypes = "{param: bf16, reduce: f32, output: bf16}" }, 2e-2);
}
