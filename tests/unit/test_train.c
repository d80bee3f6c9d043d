/* Training runs as `replay` gives them: against one process that does not shard, under every policy, schedule and number of
 * microbatches, and what is told about them. Tolerances, all relative, over 30 steps of AdamW in float:
 *   against one process   loss of each step 1e-4, norm 1e-2: reductions add in another order than one process does, and an update
 *                         whose gradient is rounding noise has a sign of its own
 *   policies, schedules   none: the same bits */
#include "engine/nn/solo.h"
#include "replay/train.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS = 30 };

struct setting {
    const char *model, *policy, *table, *freeze, *more; /* more: keys of `batch` */
    unsigned ranks, replicas, microbatches;
    bool no_clip;
    struct ls_train_options o;
};
struct job {
    struct ls_arena arena;
    struct ls_names *names;
    struct ls_str text;
    struct ls_scenario s;
    struct ls_train_case c;
    struct ls_train t;
};

static void check(enum ls_code rc, const struct ls_error *err, const struct ls_str *text)
{
    cr_assert_eq(rc, LS_OK, "%zu:%zu %s\n%s", err->input.line, err->input.column, err->text, ls_str_text(text));
}

static void load(struct job *j, const struct setting *x)
{
    struct ls_error err = { 0 };
    *j = (struct job){ .names = ls_names_open() };
    ls_arena_init(&j->arena, 0);
    ls_str_printf(&j->text, "lockstep: 1\nname: train\nquestion: q\nmodel: {inventory: %s/scenarios/models/%s.yaml}\n", LS_SOURCE_DIR, x->model);
    if (x->freeze)
        ls_str_printf(&j->text, "freeze_config: %s\n", x->freeze);
    ls_str_printf(&j->text, "distributed:\n  strategy: fsdp2\n  dp_size: %u\n  dp_replicate_size: %u\n"
                  "  mp_policy: {param: f32, reduce: f32, output: f32}\n  multimodal: {frozen_sharding: %s}\n",
                  x->ranks, x->replicas ? x->replicas : 1, x->policy);
    ls_str_printf(&j->text, "batch:\n  microbatches: %u\n  samples: [{text: 12}, {text: 9, images: 1}, {text: 7, images: 2}, {text: 5}]\n"
                  "  execution: {table: %s}\n%s", x->microbatches ? x->microbatches : 1, x->table, x->more ? x->more : "");
    ls_str_printf(&j->text, "  dummy_forward: {vision: [tower%s]}\nstep: {clip_grad_norm: %s, metrics: [loss]}\n",
                  strstr(x->model, "qwen") ? "" : ", projector", x->no_clip ? "false" : "true"); /* Qwen's projector is inside its tower */
    check(ls_scenario_read(j->text.text, j->text.length, "train.yaml", &j->arena, j->names, &j->s, &err), &err, &j->text);
}

static void train(struct job *j, const struct setting *x)
{
    struct ls_error err = { 0 };
    struct ls_variant as_written = LS_AS_WRITTEN;
    load(j, x);
    check(ls_train_prepare(&j->s, &as_written, &x->o, &j->arena, &j->c, &err), &err, &j->text);
    cr_assert(!j->c.compiled->refusal.rule);
    check(ls_train_run(&j->c, &x->o, &j->arena, &j->t, &err), &err, &j->text);
    cr_assert_eq(j->t.verdict, LS_SAFE, "%s\n%s", ls_verdict_name(j->t.verdict), j->text.text);
    cr_assert_eq(j->t.ended, j->t.steps + j->t.warmup);
    cr_assert(j->t.memory_equal);
}

static void drop(struct job *j)
{
    ls_train_release(&j->c);
    ls_str_release(&j->text);
    ls_names_close(j->names);
    ls_arena_release(&j->arena);
}

/* --- one process ----------------------------------------------------------------------------------------------------- */

static void like_solo(const struct setting *x, double tolerance)
{
    struct job j;
    struct ls_error err = { 0 };
    struct ls_nn_solo *solo;
    struct ls_nn_sequence q[64];
    train(&j, x);
    const struct ls_engine_setup *setup = j.c.setup;
    bool *trains = LS_NEW(&j.arena, bool, setup->params + 1);
    for (size_t i = 0; i < setup->params; i++)
        trains[i] = setup->param[i].trains;
    struct ls_nn_sample sample[4];
    for (size_t i = 0; i < 4; i++)
        sample[i] = (struct ls_nn_sample){ .text = j.s.batch.sample[i].text, .images = j.s.batch.sample[i].images };
    struct ls_nn_train t = { .vlm = j.c.vlm, .sample = sample, .samples = 4 };
    struct ls_nn_solo_options o = { j.c.vlm, trains, LS_DTYPE_F32, setup->seed, ls_nn_adamw_default };
    o.adamw.clip = x->no_clip ? 0 : o.adamw.clip;
    check(ls_nn_solo_open(&solo, &o, &err), &err, &j.text);
    size_t step = 0, n = 0;
    for (uint32_t g = 0; g < j.c.assignment->rounds; g++) {
        for (uint32_t r = 0; r < setup->job->ranks && ls_nn_train_has_loss(setup, g, r); r++)
            q[n++] = ls_nn_train_sequence(setup, &t, g, r);
        if (!ls_nn_train_has_optimizer(setup, g, 0))
            continue;
        double loss, norm;
        check(ls_nn_solo_microbatch(solo, q, n, 1 / (double)ls_nn_labels(t.vlm, q, n), &loss, &err), &err, &j.text);
        norm = ls_nn_solo_update(solo);
        cr_assert_float_eq(j.t.step[step].loss, loss, tolerance * loss, "%s %s, %zu ranks, step %zu: loss %.9g, one process %.9g", x->model, x->policy,
                           j.t.ranks, step, j.t.step[step].loss, loss);
        if (!isnan(j.t.step[step].norm))
            cr_assert_float_eq(j.t.step[step].norm, norm, 100 * tolerance * norm, "%s %s, %zu ranks, step %zu: norm %.9g, one process %.9g", x->model,
                               x->policy, j.t.ranks, step, j.t.step[step].norm, norm);
        cr_assert_eq(isnan(j.t.step[step].norm), x->no_clip && setup->shard > 1);
        step++;
        n = 0;
    }
    cr_assert_eq(step, j.t.ended);
    ls_nn_solo_close(solo);
    drop(&j);
}

static const char *const models[] = { "tiny_qwen3_vl", "tiny_gemma3", "tiny_ministral3" };
static const char *const tables[] = { "[[1]]", "[[1, 2]]", "[[1, 2, 1, 0]]", "[[1, 2, 1, 0, 3, 2, 1, 1]]" };

Test(train, thirty_steps_of_shards_are_those_of_one_process)
{
    for (unsigned k = 0; k < 4; k++) /* every model at every size: campaign_train */
        like_solo(&(struct setting){ .model = models[k % 3], .policy = "root", .ranks = 1u << k, .table = tables[k],
                                     .o = { .steps = STEPS - 2, .warmup = 2, .seed = 3 + k, .schedule = 1 } }, 1e-4);
}
