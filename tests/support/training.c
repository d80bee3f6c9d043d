#include "training.h"

#include "engine/nn/solo.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static bool ok(enum ls_code rc, const struct ls_error *err, const struct training *j, struct ls_str *why)
{
    if (rc != LS_OK)
        ls_str_printf(why, "%zu:%zu: %s\n%s", err->input.line, err->input.column, err->text, ls_str_text(&j->text));
    return rc == LS_OK;
}

static void open_training(struct training *j)
{
    *j = (struct training){ .names = ls_names_open() };
    ls_arena_init(&j->arena, 0);
}

bool training_load(struct training *j, const struct training_setting *x, struct ls_str *why)
{
    struct ls_error err = { 0 };
    struct ls_str *s = &j->text;
    bool hears = strstr(x->model, "omni") != NULL;
    open_training(j);
    ls_str_printf(s, "lockstep: 1\nname: train\nquestion: q\nmodel: {inventory: %s/scenarios/models/%s.yaml%s%s}\n", LS_SOURCE_DIR, x->model,
                  x->peft ? ", peft: " : "", x->peft ? x->peft : "");
    if (x->freeze)
        ls_str_printf(s, "freeze_config: %s\n", x->freeze);
    if (strcmp(x->policy, "ddp") == 0)
        ls_str_printf(s, "distributed:\n  strategy: ddp\n  dp_size: %u\n%s", x->ranks ? x->ranks : 1, x->distributed ? x->distributed : "");
    else
        ls_str_printf(s, "distributed:\n  strategy: fsdp2\n  rules: automodel\n  dp_size: %u\n  dp_replicate_size: %u\n  mp_policy: %s\n%s"
                  "  multimodal: {frozen_sharding: %s}\n",
                  x->ranks ? x->ranks : 1, x->replicas ? x->replicas : 1, x->dtypes ? x->dtypes : "{param: f32, reduce: f32, output: f32}",
                  x->distributed ? x->distributed : "", x->policy);
    ls_str_printf(s, "batch:\n  microbatches: %u\n  samples: [{text: 12}, {text: 9, images: 1}, {text: 7, images: 2}, {text: 5%s}]\n"
                  "  execution: {table: %s}\n%s", x->microbatches ? x->microbatches : 1, hears ? ", audios: 1" : "", x->table, x->batch ? x->batch : "");
    if (!x->no_dummy) /* Qwen's projector is inside its tower */
        ls_str_printf(s, "  dummy_forward: {vision: [tower%s]%s}\n", strstr(x->model, "qwen") ? "" : ", projector", hears ? ", audio: [tower]" : "");
    ls_str_printf(s, "step: {clip_grad_norm: %s, metrics: [loss]}\n", x->no_clip ? "false" : "true");
    return ok(ls_scenario_read(s->text, s->length, "train.yaml", &j->arena, j->names, &j->s, &err), &err, j, why);
}

bool training_load_file(struct training *j, const char *name, struct ls_str *why)
{
    struct ls_error err = { 0 };
    open_training(j);
    return ok(ls_scenario_load(ls_arena_printf(&j->arena, "%s/scenarios/%s.yaml", LS_SOURCE_DIR, name), &j->arena, j->names, &j->s, &err), &err, j,
              why);
}

bool training_go(struct training *j, const struct ls_train_options *o, struct ls_str *why)
{
    struct ls_error err = { 0 };
    struct ls_variant as_written = LS_AS_WRITTEN;
    if (!ok(ls_train_prepare(&j->s, &as_written, o, &j->arena, &j->c, &err), &err, j, why))
        return false;
    if (j->c.compiled->refusal.rule) {
        ls_str_printf(why, "refused: %s: %s\n%s", j->c.compiled->refusal.rule, j->c.compiled->refusal.text, ls_str_text(&j->text));
        return false;
    }
    return ok(ls_train_run(&j->c, o, &j->arena, &j->t, &err), &err, j, why);
}

bool training_completed(const struct training *j, struct ls_str *why)
{
    if (j->t.verdict == LS_SAFE && j->t.ended == j->t.warmup + j->t.steps && j->t.memory_equal)
        return true;
    ls_str_printf(why, "%s, %zu of %zu steps ended, memory %s\n%s", ls_verdict_name(j->t.verdict), j->t.ended, j->t.warmup + j->t.steps,
                  j->t.memory_equal ? "as the program says" : "other than the program says", ls_str_text(&j->text));
    return false;
}

void training_drop(struct training *j)
{
    ls_train_release(&j->c);
    ls_str_release(&j->text);
    ls_names_close(j->names);
    ls_arena_release(&j->arena);
}

/* --- one process ----------------------------------------------------------------------------------------------------- */

static bool near(double found, double want, double tolerance, double *worst)
{
    double off = found == want ? 0 : fabs(found - want) / fabs(want); /* nothing that trains is used: both norms are 0 */
    *worst = off > *worst ? off : *worst;
    return off <= tolerance; /* false for NAN */
}

static bool follow(struct training *j, struct ls_nn_solo *solo, const struct ls_nn_train *t, const struct training_worst *tolerance,
                   struct training_worst *worst, struct ls_str *why)
{
    const struct ls_engine_setup *setup = j->c.setup;
    struct ls_nn_sequence q[256];
    size_t step = 0, n = 0;
    for (uint32_t g = 0; g < j->c.assignment->rounds; g++) {
        for (uint32_t r = 0; r < setup->job->ranks && n < 256 && ls_nn_train_has_loss(setup, g, r); r++)
            q[n++] = ls_nn_train_sequence(setup, t, g, r);
        if (!ls_nn_train_has_optimizer(setup, g, 0))
            continue;
        double loss, norm;
        struct ls_error err = { 0 };
        if (!ok(ls_nn_solo_microbatch(solo, q, n, 1 / (double)ls_nn_labels(t->vlm, q, n), &loss, &err), &err, j, why))
            return false;
        norm = ls_nn_solo_update(solo);
        const struct ls_train_step *x = &j->t.step[step];
        bool same = near(x->loss, loss, tolerance->loss, &worst->loss);
        if (!same || !near(x->norm, norm, tolerance->norm, &worst->norm)) {
            ls_str_printf(why, "step %zu: loss %.9g, norm %.9g; one process %.9g, %.9g\n%s", step, x->loss, x->norm, loss, norm, ls_str_text(&j->text));
            return false;
        }
        step++;
        n = 0;
    }
    return step == j->t.ended;
}

/* Only a dummy used it, with weight zero: its gradients are zeros, and AdamW decays it. One process without a dummy has no gradient
 * and leaves it alone, as PyTorch does. */
static bool only_decayed(const float *found, const float *first, size_t n, const struct ls_nn_adamw *o, size_t steps)
{
    double left = pow(1 - o->rate * o->decay, (double)steps);
    for (size_t k = 0; k < n; k++) {
        double want = (double)first[k] * left;
        if (!(fabs((double)found[k] - want) <= 1e-5 * fabs(want)))
            return false;
    }
    return true;
}

/* An update whose gradient is rounding noise has a sign of its own, so single weights say little. */
static bool weights_alike(const struct training *j, struct ls_nn_solo *solo, const struct ls_nn_adamw *o, const struct training_worst *tolerance,
                          struct training_worst *worst, struct ls_str *why)
{
    double differences = 0, changes = 0;
    for (uint32_t i = 0; j->t.weight && i < j->t.params; i++) {
        if (!j->t.weight[i])
            continue;
        size_t n = (size_t)j->c.vlm->model->param[i].elements;
        const float *other = ls_nn_solo_param(solo, i);
        float *first = calloc(n + 1, sizeof *first);
        if (!first)
            ls_out_of_memory(n * sizeof *first);
        ls_nn_init_param(j->c.vlm, i, j->c.setup->seed, 0, n, first);
        bool left = memcmp(first, other, n * sizeof *first) == 0 && only_decayed(j->t.weight[i], first, n, o, j->t.ended);
        for (size_t k = 0; k < n && !left; k++) {
            double a = (double)j->t.weight[i][k], b = (double)other[k], c = (double)first[k];
            differences += (a - b) * (a - b);
            changes += (b - c) * (b - c);
        }
        free(first);
    }
    if (changes == 0 && differences == 0)
        return true;
    if (near(sqrt(changes) + sqrt(differences), sqrt(changes), tolerance->weight, &worst->weight))
        return true;
    ls_str_printf(why, "weights differ by %.3g of what training changed\n%s", sqrt(differences / changes), ls_str_text(&j->text));
    return false;
}

bool training_like_solo(struct training *j, const struct training_worst *tolerance, struct training_worst *worst, struct ls_str *why)
{
    const struct ls_engine_setup *setup = j->c.setup;
    struct ls_error err = { 0 };
    struct ls_nn_solo *solo;
    struct ls_nn_sample sample[TRAINING_SAMPLES];
    struct ls_nn_train t = { .vlm = j->c.vlm, .sample = sample, .samples = TRAINING_SAMPLES, .adamw = ls_nn_adamw_default };
    bool *trains = LS_NEW(&j->arena, bool, setup->params + 1);
    enum ls_dtype compute = LS_DTYPE_F32;
    for (size_t i = 0; i < setup->params; i++) {
        trains[i] = setup->param[i].trains;
        compute = setup->param[i].compute == LS_DTYPE_BF16 ? LS_DTYPE_BF16 : compute;
    }
    for (size_t i = 0; i < TRAINING_SAMPLES; i++)
        sample[i] = (struct ls_nn_sample){ .text = j->s.batch.sample[i].text, .images = j->s.batch.sample[i].images,
                                           .audios = j->s.batch.sample[i].audios };
    if (!j->s.step.clip_grad_norm)
        t.adamw.clip = 0;
    struct ls_nn_solo_options o = { j->c.vlm, trains, compute, setup->seed, t.adamw };
    if (!ok(ls_nn_solo_open(&solo, &o, &err), &err, j, why))
        return false;
    bool same = follow(j, solo, &t, tolerance, worst, why) && weights_alike(j, solo, &t.adamw, tolerance, worst, why);
    ls_nn_solo_close(solo);
    return same;
}

/* --- two runs -------------------------------------------------------------------------------------------------------- */

bool training_same_bits(const struct training *a, const struct training *b, struct ls_str *why)
{
    if (a->t.ended != b->t.ended || a->t.params != b->t.params) {
        ls_str_printf(why, "%zu and %zu steps ended", a->t.ended, b->t.ended);
        return false;
    }
    for (size_t i = 0; i < a->t.ended; i++) {
        const struct ls_train_step *x = &a->t.step[i], *y = &b->t.step[i];
        if (!isfinite(x->loss) || memcmp(&x->loss, &y->loss, sizeof x->loss) != 0 || memcmp(&x->norm, &y->norm, sizeof x->norm) != 0 ||
            x->text_tokens != y->text_tokens || x->image_tokens != y->image_tokens) {
            ls_str_printf(why, "step %zu: losses %.17g and %.17g, norms %.17g and %.17g", i, x->loss, y->loss, x->norm, y->norm);
            return false;
        }
    }
    for (size_t i = 0; a->t.weight && b->t.weight && i < a->t.params; i++) {
        const float *x = a->t.weight[i], *y = b->t.weight[i];
        if (!x != !y || (x && memcmp(x, y, (size_t)a->c.vlm->model->param[i].elements * sizeof *x) != 0)) {
            ls_str_printf(why, "weights of parameter %zu differ", i);
            return false;
        }
    }
    return true;
}
