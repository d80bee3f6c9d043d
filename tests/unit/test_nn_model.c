/* Whole small models against PyTorch in double precision: losses, every parameter's gradient, 30 steps of AdamW
 * (tests/oracle/record_nn.py). Ours is float with float sums, so the tolerances are those of float arithmetic:
 *   loss        2e-6 of its value
 *   gradient    norm and projection on a pseudo-random direction: 2e-5 of the norm, at least 2e-6; single elements the same
 *   30 steps    loss and gradient norm 2e-3 of their value: AdamW divides by the square root of the mean square, so a
 *               rounding error in a tiny gradient moves a weight as far as a large gradient does */
#include "engine/nn/solo.h"

#include "base/hash.h"
#include "yaml/yaml.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct model { struct ls_arena arena; struct ls_names *names; struct ls_model m; struct ls_nn_vlm v; };

static void load(struct model *k, const char *name, bool lora)
{
    char path[512];
    struct ls_error err = { 0 };
    memset(k, 0, sizeof *k);
    ls_arena_init(&k->arena, 0);
    k->names = ls_names_open();
    snprintf(path, sizeof path, "%s/scenarios/models/%s.yaml", LS_SOURCE_DIR, name);
    cr_assert_eq(ls_model_load(path, &k->arena, k->names, &k->m, &err), LS_OK, "%s", err.text);
    if (lora) {
        static const char *const nested[] = { "model.language_model.layers.0.self_attn.q_proj", "model.language_model.layers.1.mlp.down_proj" },
                                *const flat[] = { "model.layers.0.self_attn.q_proj", "model.layers.1.mlp.down_proj" };
        struct ls_peft peft = { .target = strstr(name, "omni") ? flat : nested, .targets = 2, .rank = 2, .dtype = LS_DTYPE_F32 };
        cr_assert_eq(ls_model_add_lora(&k->m, &peft, &err), LS_OK, "%s", err.text);
    }
    cr_assert_eq(ls_nn_vlm_build(&k->m, &k->arena, &k->v, &err), LS_OK, "%zu: %s", err.input.line, err.text);
}

static void unload(struct model *k)
{
    ls_names_close(k->names);
    ls_arena_release(&k->arena);
}

static uint64_t fnv1a(const char *text)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (; *text; text++)
        h = (h ^ (unsigned char)*text) * 0x100000001b3u;
    return h;
}

static double uniform(uint64_t seed, uint64_t stream, uint64_t i)
{
    uint64_t state = seed * 0x9e3779b97f4a7c15u + stream * 0xbf58476d1ce4e5b9u + i * 0x94d049bb133111ebu;
    return (double)(ls_random(&state) >> 40) / 8388608.0 - 1;
}

static struct ls_nn_solo *open_solo(const struct model *k, const bool *trains, enum ls_dtype compute)
{
    struct ls_nn_solo *s;
    struct ls_error err = { 0 };
    struct ls_nn_solo_options o = { .vlm = &k->v, .trains = trains, .compute = compute, .seed = 1, .adamw = ls_nn_adamw_default };
    cr_assert_eq(ls_nn_solo_open(&s, &o, &err), LS_OK, "%s", err.text);
    return s;
}

static size_t sequences_of(const char *text, struct ls_nn_sequence *out)
{
    size_t n = 0;
    unsigned long long a, b, c, d;
    int used;
    while (sscanf(text, " %llu,%llu,%llu,%llu%n", &a, &b, &c, &d, &used) == 4) {
        out[n++] = (struct ls_nn_sequence){ a, b, c, d };
        text += used;
    }
    return n;
}

static double batch_loss(struct ls_nn_solo *s, const struct model *k, const struct ls_nn_sequence *q, size_t n)
{
    struct ls_error err = { 0 };
    double loss = -1;
    size_t labels = ls_nn_labels(&k->v, q, n);
    cr_assert_eq(ls_nn_solo_microbatch(s, q, n, 1 / (double)(labels ? labels : 1), &loss, &err), LS_OK, "%zu: %s", err.input.line, err.text);
    return loss;
}

static void check_grad(struct ls_nn_solo *s, const struct model *k, const char *file, const char *name, double norm, double along, double e0, double e1)
{
    uint32_t p = ls_model_param(&k->m, name);
    cr_assert_neq(p, LS_NO_ID, "%s: %s", file, name);
    const float *g = ls_nn_solo_grad(s, p);
    cr_assert(g, "%s: no gradient of %s", file, name);
    double square = 0, dot = 0, room = 2e-5 * norm + 2e-6;
    for (uint64_t i = 0; i < k->m.param[p].elements; i++) {
        square += (double)g[i] * (double)g[i];
        dot += (double)g[i] * uniform(77, fnv1a(name), i);
    }
    cr_assert_float_eq(sqrt(square), norm, room, "%s: norm of %s: %.9g, PyTorch %.9g", file, name, sqrt(square), norm);
    cr_assert_float_eq(dot, along, room, "%s: projection of %s: %.9g, PyTorch %.9g", file, name, dot, along);
    cr_assert_float_eq((double)g[0], e0, room, "%s: %s[0]: %.9g, PyTorch %.9g", file, name, (double)g[0], e0);
    if (k->m.param[p].elements > 1)
        cr_assert_float_eq((double)g[1], e1, room, "%s: %s[1]: %.9g, PyTorch %.9g", file, name, (double)g[1], e1);
}

static void compare(const char *family)
{
    char path[512], line[1024], name[256], current[64] = "";
    snprintf(path, sizeof path, "%s/tests/oracle/nn/%s.txt", LS_SOURCE_DIR, family);
    FILE *f = fopen(path, "r");
    cr_assert(f, "%s", path);
    struct model k, adapted;
    load(&k, family, false);
    load(&adapted, family, true);
    bool *trains = calloc(adapted.m.params + k.m.params, sizeof *trains);
    struct ls_nn_solo *s = NULL, *steps = open_solo(&k, NULL, LS_DTYPE_F32);
    const struct model *now = &k;
    struct ls_nn_sequence q[8];
    size_t n = 0, grads = 0, wanted = 0, cases = 0, step_lines = 0, weights = 0;
    while (fgets(line, sizeof line, f)) {
        double a, b, c, d = 0;
        unsigned step;
        int used;
        if (sscanf(line, "case %63s%n", current, &used) == 1) {
            cr_assert_eq(grads, wanted, "%s: %zu gradients, PyTorch has %zu", current, wanted, grads);
            ls_nn_solo_close(s);
            now = strcmp(current, "lora") == 0 ? &adapted : &k;
            for (uint32_t i = 0; i < now->m.params; i++) {
                trains[i] = now == &k || now->m.param[i].adapter;
                for (size_t t = 0; strcmp(current, "frozen_tower") == 0 && t < k.m.declared_count; t++)
                    if (strcmp(ls_name_text(k.names, k.m.declared[t].role), "tower") == 0 &&
                        ls_module_contains(&k.m, k.m.declared[t].module, k.m.param[i].module))
                        trains[i] = false;
            }
            s = open_solo(now, trains, LS_DTYPE_F32);
            for (uint32_t i = 0; i < now->m.params && now == &adapted; i++)
                for (uint64_t e = 0; strstr(ls_name_text(now->names, now->m.param[i].name), "lora_B") && e < now->m.param[i].elements; e++)
                    ls_nn_solo_param(s, i)[e] = (float)(0.1 * uniform(2, fnv1a(ls_name_text(now->names, now->m.param[i].name)), e));
            n = sequences_of(line + used, q);
            cases++;
        } else if (sscanf(line, "loss %lf", &a) == 1) {
            double loss = batch_loss(s, now, q, n);
            cr_assert_float_eq(loss, a, 2e-6 * fabs(a), "%s %s: loss %.9g, PyTorch %.9g", family, current, loss, a);
            grads = wanted = 0;
            for (uint32_t i = 0; i < now->m.params; i++)
                wanted += now->m.param[i].canonical == i && ls_nn_solo_grad(s, i);
        } else if (sscanf(line, "grad %255s %lf %lf %lf %lf", name, &a, &b, &c, &d) >= 4) {
            check_grad(s, now, current, name, a, b, c, d);
            grads++;
        } else if (sscanf(line, "step %u %lf %lf", &step, &a, &b) == 3) {
            struct ls_nn_sequence batch[3] = { { 12 + step % 3, 1, 100 + step, 0 }, { 9, 0, 200 + step, k.v.recordings }, { 6 + step % 5, 2, 300 + step, 0 } };
            double loss = batch_loss(steps, &k, batch, 3), norm = ls_nn_solo_update(steps);
            cr_assert_float_eq(loss, a, 2e-3 * a, "%s step %u: loss %.9g, PyTorch %.9g", family, step, loss, a);
            cr_assert_float_eq(norm, b, 2e-3 * b, "%s step %u: norm %.9g, PyTorch %.9g", family, step, norm, b);
            step_lines++;
        } else if (sscanf(line, "weight %255s %lf", name, &a) == 2) {
            uint32_t p = ls_model_param(&k.m, name);
            double square = 0;
            for (uint64_t i = 0; i < k.m.param[p].elements; i++)
                square += pow((double)ls_nn_solo_param(steps, p)[i], 2);
            /* The bias of keys shifts all scores of a query alike, which softmax takes out: its gradient is 0 but for rounding, and AdamW
             * makes of rounding up to a whole step of 1e-3, in every element. */
            size_t length = strlen(name), tail = strlen("k_proj.bias");
            double moved = length > tail && strcmp(name + length - tail, "k_proj.bias") == 0 ? 30 * 1e-3 * sqrt((double)k.m.param[p].elements) : 0;
            cr_assert_float_eq(sqrt(square), a, 1e-3 * a + moved, "%s: %s after the steps: %.9g, PyTorch %.9g", family, name, sqrt(square), a);
            weights++;
        } else {
            cr_assert(strncmp(line, "lockstep_nn 1 ", 14) == 0, "%s: unread line %s", family, line);
        }
    }
    cr_assert(cases == (k.v.recordings ? 9 : 7) && step_lines == 30 && weights > 30, "%s: %zu cases, %zu steps, %zu weights", family, cases, step_lines, weights);
    cr_assert_eq(grads, wanted);
    cr_assert_eq(ls_nn_solo_memory(steps)->now[LS_CATEGORY_ACTIVATION] + ls_nn_solo_memory(steps)->now[LS_CATEGORY_TEMPORARY], 0);
    ls_nn_solo_close(s);
    ls_nn_solo_close(steps);
    free(trains);
    fclose(f);
    unload(&k);
    unload(&adapted);
}

Test(nn_model, qwen3_vl_as_pytorch) { compare("tiny_qwen3_vl"); }
Test(nn_model, gemma3_as_pytorch) { compare("tiny_gemma3"); }
Test(nn_model, ministral3_as_pytorch) { compare("tiny_ministral3"); }
Test(nn_model, qwen2_5_omni_as_pytorch) { compare("tiny_qwen2_5_omni"); }

/* One change to an inventory that runs, and what is said of it. */
static void refused(const char *family, const char *from, const char *to, const char *says)
{
    char path[512], text[40000];
    snprintf(path, sizeof path, "%s/scenarios/models/%s.yaml", LS_SOURCE_DIR, family);
    FILE *f = fopen(path, "r");
    cr_assert(f);
    size_t length = fread(text, 1, sizeof text - 1, f);
    text[length] = 0;
    fclose(f);
    char *at = strstr(text, from);
    cr_assert(at, "'%s' is not in %s", from, family);
    struct ls_str changed = { 0 };
    ls_str_addn(&changed, text, (size_t)(at - text));
    ls_str_add(&changed, to);
    ls_str_add(&changed, at + strlen(from));
    size_t line = 1;
    for (char *c = text; c < at; c++)
        line += *c == '\n';
    struct ls_arena arena;
    struct ls_model m = { 0 };
    struct ls_nn_vlm v;
    struct ls_error err = { 0 };
    const struct ls_yaml_node *node;
    ls_arena_init(&arena, 0);
    struct ls_names *names = ls_names_open();
    cr_assert_eq(ls_yaml_load_text(changed.text, changed.length, family, &arena, &node, &err), LS_OK, "%s", err.text);
    cr_assert_eq(ls_model_read(node, &arena, names, &m, &err), LS_OK, "%s: %s", from, err.text);
    cr_assert_eq(ls_nn_vlm_build(&m, &arena, &v, &err), LS_EINPUT, "'%s' was not refused", to);
    cr_assert(strstr(err.text, says), "'%s' does not say '%s'", err.text, says);
    cr_assert_gt(err.input.line, 0u);
    if (strncmp(says, "statement", 9) == 0)
        cr_assert_leq(err.input.line, line + 1, "'%s' is said of line %zu, the change is in line %zu", err.text, err.input.line, line);
    ls_names_close(names);
    ls_arena_release(&arena);
    ls_str_release(&changed);
}

Test(nn_model, what_cannot_run_is_refused_with_its_place)
{
    refused("tiny_gemma3", "op: masked_scatter,", "op: index_put,", "no operator runs op 'index_put' of 'model'");
    refused("tiny_gemma3", "activation_fn: {class: GELUTanh}", "activation_fn: {class: Mish}", "no operator runs class 'Mish' of 'model.vision_tower.encoder.layers.0.mlp.activation_fn'");
    refused("tiny_gemma3", "in: [v_proj, q_norm, k_norm]", "in: [v_proj, q_norm]", "statement");
    refused("tiny_gemma3", "text_head_dim: 8", "text_head: 8", "'text_head_dim'");
    refused("tiny_gemma3", "text_position: rotary", "text_position: alibi", "text_position");
    refused("tiny_gemma3", "vision_grid_rows: 4", "vision_grid_rows: 5", "does not divide");
    refused("tiny_gemma3", "image_token_id: 5", "image_token_id: 61", "image_token_id");
    refused("tiny_qwen3_vl", "text_mrope_section_row: 1", "text_mrope_section_row: 2", "sections");
    refused("tiny_qwen3_vl", "vision_temporal_patch_size: 2", "vision_temporal_patch_size: 1", "patches");
    refused("tiny_ministral3", "{op: mul, in: [act_fn, up_proj]", "{op: mul, in: [act_fn]", "statement");
}

Test(nn_model, full_sizes_can_run_and_have_the_recorded_parameters)
{
    static const char *const name[] = { "qwen3_vl_4b", "gemma3_4b", "ministral3_3b" };
    for (size_t i = 0; i < 3; i++) {
        char run_name[64], path[512];
        struct model run;
        struct ls_model recorded = { 0 };
        struct ls_error err = { 0 };
        snprintf(run_name, sizeof run_name, "%s_run", name[i]);
        load(&run, run_name, false);
        snprintf(path, sizeof path, "%s/scenarios/models/%s.yaml", LS_SOURCE_DIR, name[i]);
        cr_assert_eq(ls_model_load(path, &run.arena, run.names, &recorded, &err), LS_OK, "%s", err.text);
        cr_assert_eq(recorded.params, run.m.params);
        cr_assert_eq(recorded.modules, run.m.modules);
        for (size_t p = 0; p < recorded.params; p++)
            cr_assert(recorded.param[p].name == run.m.param[p].name && recorded.param[p].elements == run.m.param[p].elements, "%s: parameter %zu", name[i], p);
        /* Every size fits: a batch with a picture, statement by statement, without data. */
        struct ls_nn_batch batch;
        struct ls_nn_sequence one = { 20, 1, 1, 0 };
        cr_assert_gt(ls_nn_batch_measure(&batch, &run.v, &one, 1), 0u);
        cr_assert_gt(batch.marked, 16u);
        unload(&run);
    }
}
