/* Units: ownership, refusals, policies of both rule sets, sizes and memory. */
#include "plan/plan.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static struct ls_arena arena;
static struct ls_names *names;
static struct ls_error err;
static struct ls_model m;
static struct ls_specs specs;
static bool *early, *final;
static struct ls_plan plan;
static struct ls_refusal refusal;
static struct ls_mesh mesh = { .replicate = 1, .shard = 2, .cp = 1, .tp = 1, .pp = 1, .ep = 1, .ep_shard = 1 };
static struct ls_runtime runtime = { .version = 212, .lazy_state_guard = true };

static void setup(void)
{
    ls_arena_init(&arena, 0);
    names = ls_names_open();
}

static void teardown(void)
{
    ls_names_close(names);
    ls_arena_release(&arena);
}

TestSuite(plan, .init = setup, .fini = teardown);

static void load(const char *file)
{
    char path[400];
    snprintf(path, sizeof path, "%s/%s", LS_SOURCE_DIR, file);
    cr_assert_eq(ls_model_load(path, &arena, names, &m, &err), LS_OK, "%s:%zu:%zu: %s", file, err.input.line, err.input.column, err.text);
}

static void model(const char *class_name, const char *rest)
{
    const struct ls_yaml_node *node = NULL;
    const char *text = ls_arena_printf(&arena, "lockstep_inventory: 1\nname: t\ndtype: f32\nmodules:\n  class: %s\n%s", class_name, rest);
    cr_assert_eq(ls_yaml_load_text(text, strlen(text), "m.yaml", &arena, &node, &err), LS_OK, "%s", err.text);
    cr_assert_eq(ls_model_read(node, &arena, names, &m, &err), LS_OK, "%zu:%zu: %s", err.input.line, err.input.column, err.text);
}

static void freeze_globs(const char *const *glob, size_t count, enum ls_rules rules)
{
    struct ls_freeze f = { .freeze = glob, .freezes = count };
    cr_assert_eq(ls_multimodal_resolve(&m, rules, NULL, 0, &specs, &err), LS_OK, "%s", err.text);
    cr_assert_eq(ls_multimodal_freeze(&m, &specs, rules, &f, &early, &final, &err), LS_OK, "%s", err.text);
}

static void freeze(const char *glob, enum ls_rules rules) { freeze_globs(&glob, glob != NULL, rules); }

static const char *name_of(uint32_t id) { return ls_name_text(names, id); }

/* "L0(T) L1(F) R(F)": units in creation order with their reshard choice. */
static const char *shown(void)
{
    static const char *const reshard[] = { "-", "T", "F", "k" };
    struct ls_str s = { 0 };
    for (size_t i = 0; i < plan.units; i++)
        ls_str_printf(&s, "%s%s(%s)", i ? " " : "", name_of(plan.unit[i].name), reshard[plan.unit[i].reshard]);
    const char *out = ls_arena_str(&arena, ls_str_text(&s));
    ls_str_release(&s);
    return out;
}

static const char *list(const uint32_t *param, size_t count)
{
    struct ls_str s = { 0 };
    for (size_t i = 0; i < count; i++)
        ls_str_printf(&s, "%s%s", i ? " " : "", name_of(m.param[param[i]].name));
    const char *out = ls_arena_str(&arena, ls_str_text(&s));
    ls_str_release(&s);
    return out;
}

static const char *owned(uint32_t unit) { return list(plan.unit[unit].param, plan.unit[unit].params); }

/* Every parameter is in exactly the units that list it, and owner[] agrees. */
static void check_owners(void)
{
    for (uint32_t i = 0; i < m.params; i++) {
        size_t listed = 0;
        for (uint32_t u = 0; u < plan.units; u++)
            for (size_t k = 0; k < plan.unit[u].params; k++)
                if (plan.unit[u].param[k] == m.param[i].canonical) {
                    listed++;
                    cr_assert_eq(plan.owner[i], u, "%s", name_of(m.param[i].name));
                }
        cr_assert_eq(listed, plan.owner[i] != LS_NO_ID, "%s is in %zu units", name_of(m.param[i].name), listed);
    }
}

static void policy(struct ls_policy p)
{
    cr_assert_eq(ls_plan_from_policy(&m, &specs, early, final, &mesh, &runtime, &p, &plan, &refusal, &err), LS_OK, "%s", err.text);
    cr_assert(!refusal.rule, "%s", refusal.text);
    check_owners();
}

static enum ls_code units(const struct ls_unit_input *in, size_t count)
{
    refusal = (struct ls_refusal){ 0 };
    return ls_plan_from_units(&m, final, &mesh, &runtime, in, count, &plan, &refusal, &err);
}

/* ------------------------------------------------------------------------------------------------- policies */

Test(plan, worked_lists_of_the_dense_path)
{
    static const struct { enum ls_frozen frozen; const char *units, *root, *ignored; } rows[] = {
        { LS_FROZEN_ROOT, "model.language_model.layers.0(T) model.language_model.layers.1(F) root(F)",
          "model.visual.patch.weight model.visual.blocks.0.weight model.visual.blocks.0.bias model.visual.blocks.1.weight "
          "model.visual.blocks.1.bias model.visual.blocks.2.weight model.visual.blocks.2.bias model.visual.merger.weight "
          "model.multi_modal_projector.l1.weight model.multi_modal_projector.l2.weight model.language_model.embed_tokens.weight "
          "model.language_model.norm.weight lm_head.weight", "" },
        { LS_FROZEN_PER_LAYER, "model.visual.blocks.0(T) model.visual.blocks.1(T) model.visual.blocks.2(F) "
          "model.language_model.layers.0(T) model.language_model.layers.1(F) root(F)",
          "model.visual.patch.weight model.visual.merger.weight model.multi_modal_projector.l1.weight "
          "model.multi_modal_projector.l2.weight model.language_model.embed_tokens.weight model.language_model.norm.weight lm_head.weight", "" },
        { LS_FROZEN_REPLICATE, "model.language_model.layers.0(T) model.language_model.layers.1(F) root(F)",
          "model.multi_modal_projector.l1.weight model.multi_modal_projector.l2.weight model.language_model.embed_tokens.weight "
          "model.language_model.norm.weight lm_head.weight",
          "model.visual.patch.weight model.visual.blocks.0.weight model.visual.blocks.0.bias model.visual.blocks.1.weight "
          "model.visual.blocks.1.bias model.visual.blocks.2.weight model.visual.blocks.2.bias model.visual.merger.weight" },
    };
    load("tests/data/model/fixture_v.yaml");
    for (int rules = LS_RULES_PROPOSED; rules <= LS_RULES_AUTOMODEL; rules++) {
        freeze("model.visual.**", (enum ls_rules)rules);
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
            policy((struct ls_policy){ .rules = (enum ls_rules)rules, .frozen = rows[i].frozen });
            cr_assert_str_eq(shown(), rows[i].units);
            cr_assert_str_eq(owned(plan.root), rows[i].root);
            cr_assert_str_eq(list(plan.unit[plan.root].ignored, plan.unit[plan.root].ignoreds), rows[i].ignored);
            cr_assert_eq(plan.root, plan.units - 1);
            cr_assert_eq(plan.warnings, rows[i].frozen == LS_FROZEN_PER_LAYER);
        }
    }
}

Test(plan, trainable_towers_are_split_under_every_policy)
{
    load("tests/data/model/fixture_v.yaml");
    for (int rules = LS_RULES_PROPOSED; rules <= LS_RULES_AUTOMODEL; rules++)
        for (int frozen = LS_FROZEN_ROOT; frozen <= LS_FROZEN_REPLICATE; frozen++) {
            freeze("model.visual.blocks.0.weight", (enum ls_rules)rules);
            policy((struct ls_policy){ .rules = (enum ls_rules)rules, .frozen = (enum ls_frozen)frozen });
            cr_assert_str_eq(shown(), "model.visual.blocks.0(T) model.visual.blocks.1(T) model.visual.blocks.2(F) "
                                      "model.language_model.layers.0(T) model.language_model.layers.1(F) root(F)");
            cr_assert_eq(plan.warnings, 0);
        }
}

Test(plan, explicit_reshard_replaces_the_rule_of_the_last_item)
{
    load("tests/data/model/fixture_v.yaml");
    freeze("model.visual.**", LS_RULES_PROPOSED);
    policy((struct ls_policy){ .reshard = LS_RESHARD_TRUE });
    cr_assert_str_eq(shown(), "model.language_model.layers.0(T) model.language_model.layers.1(T) root(F)");
    policy((struct ls_policy){ .reshard = LS_RESHARD_FALSE });
    cr_assert_str_eq(shown(), "model.language_model.layers.0(F) model.language_model.layers.1(F) root(F)");
    mesh.shard = 8;
    policy((struct ls_policy){ .reshard = LS_RESHARD_SMALL, .reshard_size = 4 });
    cr_assert_str_eq(shown(), "model.language_model.layers.0(k) model.language_model.layers.1(k) root(F)");
    mesh.shard = 2;
}

#define CONTAINERS                                                                                                                 \
    "  children:\n"                                                                                                                \
    "    one: {class: ModuleList, children: {\"0\": {class: L, params: {w: [4]}}}}\n"                                              \
    "    nest: {class: ModuleList, children: {\"0\": {class: ModuleList, children: {\"0..1\": {class: L, params: {w: [4]}}}}, "    \
    "\"1..2\": {class: L, params: {w: [4]}}, \"3\": {class: ModuleDict, children: {a: {class: L, params: {w: [4]}}}}}}\n"           \
    "    dict: {class: ModuleDict, children: {x: {class: ModuleDict, children: {y: {class: L, params: {w: [4]}}}}, z: {class: L, params: {w: [4]}, " \
    "children: {inner: {class: ModuleList, children: {\"0\": {class: L, params: {w: [4]}}}}}}}}\n"                                 \
    "    seq: {class: Sequential, children: {\"0\": {class: L, params: {w: [4]}}}}\n"                                              \
    "    sub: {class: ListOfBlocks, kind: list, children: {\"0\": {class: L, params: {w: [4]}}}}\n"

Test(plan, containers)
{
    model("Toy", CONTAINERS);
    freeze(NULL, LS_RULES_PROPOSED);
    policy((struct ls_policy){ .rules = LS_RULES_PROPOSED });
    cr_assert_str_eq(shown(), "one.0(F) nest.0.0(T) nest.0.1(F) nest.3.a(F) nest.1(T) nest.2(F) dict.x.y(F) dict.z(F) sub.0(F) root(F)");
    cr_assert_str_eq(owned(plan.root), "seq.0.w");
    /* AutoModel takes a ModuleDict inside a ModuleList for a layer, which fully_shard refuses. */
    struct ls_policy p = { .rules = LS_RULES_AUTOMODEL };
    cr_assert_eq(ls_plan_from_policy(&m, &specs, early, final, &mesh, &runtime, &p, &plan, &refusal, &err), LS_OK);
    cr_assert_str_eq(refusal.rule, "container_without_forward");
    cr_assert(strstr(refusal.text, "'nest.3'"), "%s", refusal.text);
    cr_assert_str_eq(shown(), "one.0(F) nest.0.0(T) nest.0.1(F) nest.1(T) nest.2(T) nest.3(F) dict.x.y(F) dict.z(F) sub.0(F) root(F)");
    check_owners();
}

Test(plan, no_descent_into_list_items)
{
    model("Toy", "  children: {layers: {class: ModuleList, children: {\"0..1\": {class: L, params: {w: [4]}, children: {vision_tower: {class: V, "
                 "children: {blocks: {class: ModuleList, children: {\"0..1\": {class: B, params: {w: [4]}}}}}}}}}}}\n");
    for (int rules = LS_RULES_PROPOSED; rules <= LS_RULES_AUTOMODEL; rules++) {
        freeze("layers.*.vision_tower.**", (enum ls_rules)rules);
        policy((struct ls_policy){ .rules = (enum ls_rules)rules, .frozen = LS_FROZEN_REPLICATE });
        cr_assert_str_eq(shown(), "layers.0(T) layers.1(F) root(F)");
        cr_assert_str_eq(owned(0), "layers.0.vision_tower.blocks.0.w layers.0.vision_tower.blocks.1.w layers.0.w", "post-order");
    }
}

/* A partly trainable tower with a frozen part of another name: AutoModel keeps that part in the root, level by level. */
#define PARTLY                                                                                                                     \
    "  children: {vision_tower: {class: T, children: {vision_model: {class: V, children: {blocks: {class: ModuleList, children: {\"0..1\": {class: B, params: {w: [4]}}}}}}, " \
    "adapters: {class: ModuleList, children: {\"0..1\": {class: A, params: {w: [4]}}}}, mm_projector: {class: ModuleList, children: {\"0..1\": {class: P, params: {w: [4]}}}}}}}\n"

Test(plan, frozen_part_of_a_partly_trainable_tower)
{
    model("Toy", PARTLY);
    freeze("vision_tower.vision_model.**", LS_RULES_AUTOMODEL);
    policy((struct ls_policy){ .rules = LS_RULES_AUTOMODEL, .frozen = LS_FROZEN_ROOT });
    cr_assert_str_eq(shown(), "vision_tower.adapters.0(T) vision_tower.adapters.1(F) vision_tower.mm_projector.0(T) vision_tower.mm_projector.1(F) root(F)");
    policy((struct ls_policy){ .rules = LS_RULES_AUTOMODEL, .frozen = LS_FROZEN_REPLICATE });
    cr_assert_str_eq(list(plan.unit[plan.root].ignored, plan.unit[plan.root].ignoreds), "vision_tower.vision_model.blocks.0.w vision_tower.vision_model.blocks.1.w");
}

Test(plan, proposed_judges_own_parts)
{
    static const char *const tower[] = { "vision_tower.vision_model.**", "vision_tower.adapters.**" };
    model("Toy", PARTLY "multimodal: [{path: vision_tower, modality: vision, role: tower}, {path: vision_tower.mm_projector, modality: vision, role: projector}]\n");
    freeze_globs(tower, 2, LS_RULES_PROPOSED);
    /* The tower's own part is frozen and kept together; the trainable projector inside it is sharded as always. */
    policy((struct ls_policy){ .frozen = LS_FROZEN_ROOT });
    cr_assert_str_eq(shown(), "vision_tower.mm_projector.0(T) vision_tower.mm_projector.1(F) root(F)");
    policy((struct ls_policy){ .frozen = LS_FROZEN_REPLICATE });
    cr_assert_str_eq(shown(), "vision_tower.mm_projector.0(T) vision_tower.mm_projector.1(F) root(F)");
    cr_assert_str_eq(list(plan.unit[plan.root].ignored, plan.unit[plan.root].ignoreds),
                     "vision_tower.vision_model.blocks.0.w vision_tower.vision_model.blocks.1.w vision_tower.adapters.0.w vision_tower.adapters.1.w");
    policy((struct ls_policy){ .frozen = LS_FROZEN_PER_LAYER });
    cr_assert_eq(plan.units, 7);
    /* Under AutoModel's rules the tower trains, because its projector does. */
    freeze_globs(tower, 2, LS_RULES_AUTOMODEL);
    policy((struct ls_policy){ .rules = LS_RULES_AUTOMODEL, .frozen = LS_FROZEN_ROOT });
    cr_assert_str_eq(shown(), "vision_tower.adapters.0(T) vision_tower.adapters.1(F) vision_tower.mm_projector.0(T) vision_tower.mm_projector.1(F) root(F)");
}

#define OMNI                                                                                                                       \
    "  children: {visual: {class: V, children: {b: {class: ModuleList, children: {\"0..1\": {class: B, params: {w: [4]}}}}}}, "     \
    "audio_tower: {class: A, children: {b: {class: ModuleList, children: {\"0..1\": {class: B, params: {w: [4]}}}}}}, "            \
    "lm: {class: ModuleList, children: {\"0..3\": {class: L, params: {w: [4]}}}}}\n"

Test(plan, modalities_may_override)
{
    static const char *const towers[] = { "visual.**", "audio_tower.**" };
    model("Toy", OMNI);
    struct ls_loc here = { "s.yaml", 7, 3 }, there = { "s.yaml", 9, 5 };
    struct ls_modality_policy audio = { ls_name_id(names, "audio"), true, LS_FROZEN_PER_LAYER, there, LS_DUMMY_AUTO, LS_NOWHERE };
    freeze_globs(towers, 2, LS_RULES_PROPOSED);
    policy((struct ls_policy){ .frozen = LS_FROZEN_REPLICATE, .frozen_at = here, .modality = &audio, .modalities = 1 });
    cr_assert_str_eq(shown(), "audio_tower.b.0(T) audio_tower.b.1(F) lm.0(T) lm.1(T) lm.2(T) lm.3(F) root(F)");
    cr_assert_str_eq(plan.unit[0].why, "frozen_sharding: per_layer, for 'audio_tower'");
    cr_assert_eq(plan.unit[0].at.line, 9, "the decision behind the unit");
    cr_assert_eq(plan.unit[plan.root].ignoreds, 2);
    cr_assert(plan.warnings == 1 && strstr(plan.warning[0], "'audio_tower'") && !strstr(plan.warning[0], "visual"));
    /* AutoModel has one value for all. */
    freeze_globs(towers, 2, LS_RULES_AUTOMODEL);
    policy((struct ls_policy){ .rules = LS_RULES_AUTOMODEL, .frozen = LS_FROZEN_REPLICATE, .modality = &audio, .modalities = 1 });
    cr_assert_str_eq(shown(), "lm.0(T) lm.1(T) lm.2(T) lm.3(F) root(F)");
    audio.modality = ls_name_id(names, "aduio");
    struct ls_policy p = { .modality = &audio, .modalities = 1 };
    freeze_globs(towers, 2, LS_RULES_PROPOSED);
    cr_assert_eq(ls_plan_from_policy(&m, &specs, early, final, &mesh, &runtime, &p, &plan, &refusal, &err), LS_EINPUT);
    cr_assert_str_eq(err.hint, "did you mean 'audio'?");
    cr_assert_eq(err.input.line, 9);
}

/* "0>1,2<" per unit: forward targets, backward targets. */
static const char *chains(void)
{
    struct ls_str s = { 0 };
    for (size_t i = 0; i < plan.units; i++) {
        const struct ls_unit *u = &plan.unit[i];
        ls_str_printf(&s, "%s%zu>", i ? " " : "", i);
        for (size_t k = 0; k < u->forward_prefetches; k++)
            ls_str_printf(&s, "%u", u->forward_prefetch[k]);
        ls_str_add(&s, "<");
        for (size_t k = 0; k < u->backward_prefetches; k++)
            ls_str_printf(&s, "%u", u->backward_prefetch[k]);
        cr_assert_eq(u->has_backward_prefetch, u->backward_prefetches > 0);
    }
    const char *out = ls_arena_str(&arena, ls_str_text(&s));
    ls_str_release(&s);
    return out;
}

Test(plan, prefetch_chains_stay_in_their_container)
{
    model("Toy", OMNI);
    freeze(NULL, LS_RULES_AUTOMODEL);
    struct ls_policy p = { .rules = LS_RULES_AUTOMODEL, .prefetch = true, .prefetch_forward = 1, .prefetch_backward = 2 };
    policy(p);
    cr_assert_str_eq(chains(), "0>1< 1><0 2>3< 3><2 4>5< 5>6<4 6>7<54 7><65 8><");
    p.prefetch_forward = 3, p.prefetch_backward = 0;
    policy(p);
    cr_assert_str_eq(chains(), "0>1< 1>< 2>3< 3>< 4>567< 5>67< 6>7< 7>< 8><");
    p.reshard = LS_RESHARD_FALSE;
    policy(p);
    cr_assert_str_eq(chains(), "0>< 1>< 2>< 3>< 4>< 5>< 6>< 7>< 8><");
    p.reshard = LS_RESHARD_TRUE, p.prefetch = false;
    policy(p);
    cr_assert_str_eq(chains(), "0>< 1>< 2>< 3>< 4>< 5>< 6>< 7>< 8><");
}

Test(plan, adapters_make_a_tower_trainable_when_it_is_sharded)
{
    static const char *const target[] = { "q" };
    struct ls_peft peft = { target, 1, 2, LS_DTYPE_F32, LS_NOWHERE, false };
    model("Toy", "  children: {visual: {class: V, children: {b: {class: ModuleList, children: {\"0..1\": {class: B, children: {q: {class: Linear, params: {weight: [4, 4]}}}}}}}}}\n");
    cr_assert_eq(ls_model_add_lora(&m, &peft, &err), LS_OK);
    struct ls_freeze f = { .peft_base = true };
    cr_assert_eq(ls_multimodal_resolve(&m, LS_RULES_AUTOMODEL, NULL, 0, &specs, &err), LS_OK);
    cr_assert_eq(ls_multimodal_freeze(&m, &specs, LS_RULES_AUTOMODEL, &f, &early, &final, &err), LS_OK);
    policy((struct ls_policy){ .rules = LS_RULES_AUTOMODEL });
    cr_assert_str_eq(shown(), "visual.b.0(T) visual.b.1(F) root(F)");
    cr_assert_str_eq(owned(0), "visual.b.0.q.lora_A.weight visual.b.0.q.lora_B.weight visual.b.0.q.weight");
    cr_assert_eq(ls_plan_unit_size(&plan, 0, 2).reduce_in, 8 + 8, "adapters alone are reduced");
    f.present = f.vision_tower = true;
    cr_assert_eq(ls_multimodal_freeze(&m, &specs, LS_RULES_AUTOMODEL, &f, &early, &final, &err), LS_OK);
    policy((struct ls_policy){ .rules = LS_RULES_AUTOMODEL });
    cr_assert_str_eq(shown(), "root(F)");
}

Test(plan, automodel_alone)
{
    struct ls_policy p = { .rules = LS_RULES_AUTOMODEL };
    load("tests/data/model/fixture_v.yaml");
    freeze("model.visual.**", LS_RULES_AUTOMODEL);
    mesh = (struct ls_mesh){ .replicate = 2, .shard = 1, .cp = 1, .tp = 1, .pp = 1, .ep = 1, .ep_shard = 1 };
    cr_assert_eq(ls_plan_from_policy(&m, &specs, early, final, &mesh, &runtime, &p, &plan, &refusal, &err), LS_OK);
    cr_assert_str_eq(refusal.rule, "replicate_size");
    mesh = (struct ls_mesh){ .replicate = 1, .shard = 2, .cp = 2, .tp = 1, .pp = 1, .ep = 1, .ep_shard = 1 };
    policy(p);
    cr_assert_eq(plan.unit[0].unused_params, LS_UNUSED_FALLBACK, "context parallelism fills unused parameters");
    runtime.version = 213;
    policy(p);
    cr_assert_eq(plan.unit[0].unused_params, LS_UNUSED_NATIVE);
    mesh.cp = 1;
    policy(p);
    cr_assert_eq(plan.unit[0].unused_params, LS_UNUSED_OFF);
    runtime.version = 212;
    /* 0.7: the tables, if they are untied and train. */
    p.automodel = 7;
    policy(p);
    cr_assert_str_eq(shown(), "model.language_model.layers.0(T) model.language_model.layers.1(F) model.language_model.embed_tokens(T) lm_head(F) root(F)");
    freeze("lm_head.weight", LS_RULES_AUTOMODEL);
    policy(p);
    cr_assert_str_eq(shown(), "model.visual.blocks.0(T) model.visual.blocks.1(T) model.visual.blocks.2(F) model.language_model.layers.0(T) "
                              "model.language_model.layers.1(F) model.language_model.embed_tokens(T) root(F)"); /* a frozen table stays in the root */
    model("NemotronHForCausalLM", "  params: {w: [4]}\n");
    freeze(NULL, LS_RULES_AUTOMODEL);
    cr_assert_eq(ls_plan_from_policy(&m, &specs, early, final, &mesh, &runtime, &p, &plan, &refusal, &err), LS_EINPUT);
}

/* ------------------------------------------------------------------------------------------------- by-dtype units */

#define DELTA(child, own, extra)                                                                                                               \
    "  children: {layers: {class: ModuleList, children: {\"0..1\": {class: L, children: {mlp: {class: P, params: {a: {shape: [4], dtype: bf16}, b: {shape: [4], dtype: bf16}}}, " \
    "attn: {class: A, " own ", children: {" child "_fp32_params: {class: H, params: {A_log: [4], dt: [4]}}}}" extra "}}}}}\n"

Test(plan, units_by_dtype)
{
    struct ls_policy p = { .rules = LS_RULES_AUTOMODEL, .param_dtype = LS_DTYPE_BF16, .reduce_dtype = LS_DTYPE_F32, .output_dtype = LS_DTYPE_BF16,
                           .cast_inputs = true, .prefetch = true, .prefetch_forward = 1, .prefetch_backward = 1 };
    model("Qwen3_5ForConditionalGeneration", DELTA("", "params: {q: {shape: [4], dtype: bf16}}", ""));
    freeze(NULL, LS_RULES_AUTOMODEL);
    policy(p);
    cr_assert_str_eq(shown(), "layers.0.attn._fp32_params(T) layers.0(T) layers.1.attn._fp32_params(F) layers.1(F) root(F)");
    cr_assert_str_eq(owned(0), "layers.0.attn._fp32_params.A_log layers.0.attn._fp32_params.dt");
    cr_assert(plan.unit[0].param_dtype == LS_DTYPE_F32 && plan.unit[0].output_dtype == LS_DTYPE_F32 && !plan.unit[0].cast_inputs);
    cr_assert(plan.unit[1].param_dtype == LS_DTYPE_BF16 && plan.unit[1].output_dtype == LS_DTYPE_BF16 && plan.unit[1].cast_inputs);
    cr_assert(!plan.unit[1].forward_prefetches && !plan.unit[1].has_backward_prefetch, "no prefetch chains");
    /* f32 master weights compute in bf16, but what is stored keeps groups apart: three keys, so every uniform subtree is a unit. */
    model("Qwen3_5ForConditionalGeneration", DELTA("q: {class: Q, params: {w: {shape: [4], dtype: bf16}}}, ", "params: {}", ", norm: {class: N, params: {w: [4]}}"));
    freeze(NULL, LS_RULES_AUTOMODEL);
    policy(p);
    cr_assert_str_eq(shown(), "layers.0.mlp(T) layers.0.attn.q(T) layers.0.attn._fp32_params(T) layers.0.norm(T) "
                              "layers.1.mlp(F) layers.1.attn.q(F) layers.1.attn._fp32_params(F) layers.1.norm(F) root(F)");
    cr_assert_eq(plan.unit[3].param_dtype, LS_DTYPE_BF16);
    cr_assert(plan.unit[plan.root].params == 0, "%s", owned(plan.root));
    /* A parameter whose module holds another dtype lies in no uniform subtree. */
    model("Qwen3_5ForConditionalGeneration", DELTA("", "params: {q: {shape: [4], dtype: bf16}}", ", norm: {class: N, params: {w: [4]}}"));
    freeze(NULL, LS_RULES_AUTOMODEL);
    cr_assert_eq(ls_plan_from_policy(&m, &specs, early, final, &mesh, &runtime, &p, &plan, &refusal, &err), LS_OK);
    cr_assert_str_eq(refusal.rule, "dtype_islands");
    cr_assert(strstr(refusal.text, "'layers.0.attn.q' (bf16)"), "%s", refusal.text);
    /* One key: the item is the unit. */
    model("Qwen3_5ForConditionalGeneration", "  children: {layers: {class: ModuleList, children: {\"0..1\": {class: L, params: {w: [4]}, children: {m: {class: N, params: {w: [4]}}}}}}}\n");
    freeze(NULL, LS_RULES_AUTOMODEL);
    policy(p);
    cr_assert_str_eq(shown(), "layers.0(T) layers.1(F) root(F)");
    cr_assert_eq(plan.unit[0].param_dtype, LS_DTYPE_BF16);
}

/* ------------------------------------------------------------------------------------------------- explicit units */

#define PLAIN                                                                                                                      \
    "  params: {scale: [4]}\n"                                                                                                     \
    "  children:\n"                                                                                                                \
    "    embed: {class: E, params: {weight: [6, 4]}}\n"                                                                            \
    "    layers: {class: ModuleList, children: {\"0..2\": {class: L, params: {w: [5, 4], b: [4]}, children: {n: {class: N, params: {w: [4]}}}}}}\n" \
    "    head: {class: H, params: {weight: [6, 4]}}\n"

static const char *const root_glob[] = { "" }, *const layers_glob[] = { "layers.*" }, *const embed_glob[] = { "embed" },
                  *const pair_glob[] = { "head", "embed" }, *const norms_glob[] = { "layers.*.n" }, *const list_glob[] = { "layers" };

Test(plan, ownership_is_bottom_up_and_in_post_order)
{
    const struct ls_unit_input in[] = { { .glob = norms_glob, .globs = 1 }, { .glob = layers_glob, .globs = 1 }, { .glob = root_glob, .globs = 1 } };
    model("Toy", PLAIN);
    freeze(NULL, LS_RULES_PROPOSED);
    cr_assert_eq(units(in, 3), LS_OK, "%s", err.text);
    cr_assert(!refusal.rule);
    check_owners();
    cr_assert_str_eq(shown(), "layers.0.n(-) layers.1.n(-) layers.2.n(-) layers.0(-) layers.1(-) layers.2(-) root(-)");
    cr_assert_str_eq(owned(3), "layers.0.w layers.0.b");
    cr_assert_str_eq(owned(6), "embed.weight head.weight scale");
    cr_assert_eq(units(in + 1, 2), LS_OK);
    cr_assert_str_eq(owned(0), "layers.0.n.w layers.0.w layers.0.b");
    cr_assert_eq(units(in + 1, 1), LS_OK);
    cr_assert_eq(plan.root, LS_NO_ID);
    cr_assert_eq(plan.owner[ls_model_param(&m, "embed.weight")], LS_NO_ID);
}

Test(plan, lists_are_reduced_to_their_outermost_modules)
{
    const char *const both[] = { "layers.0.n", "layers.0", "layers.1" };
    const struct ls_unit_input in[] = { { .glob = both, .globs = 3, .grouped = true }, { .glob = root_glob, .globs = 1 } };
    model("Toy", PLAIN);
    freeze(NULL, LS_RULES_PROPOSED);
    cr_assert_eq(units(in, 2), LS_OK);
    cr_assert_eq(plan.unit[0].modules, 2);
    cr_assert_str_eq(owned(0), "layers.0.n.w layers.0.w layers.0.b layers.1.n.w layers.1.w layers.1.b");
    check_owners();
}

Test(plan, tied_parameters)
{
    const struct ls_unit_input apart[] = { { .glob = embed_glob, .globs = 1 }, { .glob = root_glob, .globs = 1 } };
    const struct ls_unit_input together[] = { { .glob = pair_glob, .globs = 2, .grouped = true }, { .glob = root_glob, .globs = 1 } };
    model("Toy", PLAIN "ties: [[embed.weight, head.weight]]\n");
    freeze(NULL, LS_RULES_PROPOSED);
    cr_assert_eq(units(together, 2), LS_OK);
    cr_assert_eq(plan.shared_param, LS_NO_ID);
    cr_assert_str_eq(owned(0), "embed.weight", "once, under its canonical name, where it is met first");
    cr_assert_eq(plan.owner[ls_model_param(&m, "head.weight")], 0);
    check_owners();
    cr_assert_eq(units(apart, 2), LS_OK);
    cr_assert(!refusal.rule, "PyTorch notices at lazy init only");
    cr_assert_eq(plan.shared_param, ls_model_param(&m, "embed.weight"));
    cr_assert(plan.shared_unit[0] == 0 && plan.shared_unit[1] == 1);
}

Test(plan, ignored_parameters)
{
    const char *const biases[] = { "**.b", "scale" };
    const struct ls_unit_input in[] = { { .glob = layers_glob, .globs = 1, .ignored = biases, .ignoreds = 2 },
                                        { .glob = root_glob, .globs = 1, .ignored = biases, .ignoreds = 2 } };
    model("Toy", PLAIN);
    freeze(NULL, LS_RULES_PROPOSED);
    cr_assert_eq(units(in, 2), LS_OK);
    cr_assert_str_eq(owned(0), "layers.0.n.w layers.0.w");
    cr_assert_str_eq(list(plan.unit[0].ignored, plan.unit[0].ignoreds), "layers.0.b");
    cr_assert_str_eq(list(plan.unit[3].ignored, plan.unit[3].ignoreds), "scale");
    cr_assert_eq(plan.owner[ls_model_param(&m, "scale")], LS_NO_ID);
    check_owners();
}

static void refused(const struct ls_unit_input *in, size_t count, const char *rule, const char *text)
{
    cr_assert_eq(units(in, count), LS_OK, "%s", err.text);
    cr_assert(refusal.rule, "not refused: %s", rule);
    cr_assert_str_eq(refusal.rule, rule);
    cr_assert(strstr(refusal.text, text), "'%s' is not in '%s'", text, refusal.text);
    cr_assert_eq(plan.units >= 1, 1, "the plan is there for --force");
}

Test(plan, what_fully_shard_refuses)
{
    const struct ls_loc at = { "s.yaml", 3, 1 };
    model("Toy", PLAIN);
    freeze(NULL, LS_RULES_PROPOSED);
    refused((struct ls_unit_input[]){ { .glob = embed_glob, .globs = 1 }, { .glob = embed_glob, .globs = 1, .at = at } }, 2, "already_in_a_unit", "'embed'");
    cr_assert_eq(refusal.at.line, 3);
    refused((struct ls_unit_input[]){ { .glob = layers_glob, .globs = 1 }, { .glob = norms_glob, .globs = 1 } }, 2, "outer_unit_first", "'layers.0.n'");
    refused((struct ls_unit_input[]){ { .glob = list_glob, .globs = 1 } }, 1, "container_without_forward", "'layers'");
    cr_assert_eq(units((struct ls_unit_input[]){ { .glob = list_glob, .globs = 1, .grouped = true } }, 1), LS_OK);
    cr_assert(!refusal.rule, "a list argument is not checked");
    mesh.shard = 6;
    refused((struct ls_unit_input[]){ { .glob = layers_glob, .globs = 1, .reshard = LS_RESHARD_SMALL, .reshard_size = 4 } }, 1, "reshard_size", "4, which does not divide the shard size 6");
    refused((struct ls_unit_input[]){ { .glob = layers_glob, .globs = 1, .reshard = LS_RESHARD_SMALL, .reshard_size = 12 } }, 1, "reshard_size", "12");
    cr_assert_eq(units((struct ls_unit_input[]){ { .glob = embed_glob, .globs = 1, .reshard = LS_RESHARD_SMALL, .reshard_size = 6 } }, 1), LS_OK);
    cr_assert_str_eq(shown(), "embed(T)");
    cr_assert_eq(units((struct ls_unit_input[]){ { .glob = embed_glob, .globs = 1, .reshard = LS_RESHARD_SMALL, .reshard_size = 1 } }, 1), LS_OK);
    cr_assert_str_eq(shown(), "embed(F)");
    cr_assert_eq(plan.warnings, 1);
    mesh.shard = 2;
    refused((struct ls_unit_input[]){ { .glob = embed_glob, .globs = 1, .unused_params = LS_UNUSED_NATIVE } }, 1, "unused_params_version", "2.13");
    model("Toy", "  children: {a: {class: A, params: {w: [], v: [2]}}}\n");
    freeze(NULL, LS_RULES_PROPOSED);
    refused((struct ls_unit_input[]){ { .glob = root_glob, .globs = 1 } }, 1, "scalar_parameter", "'a.w'");
}

Test(plan, bad_unit_lists)
{
    const char *const typo[] = { "layers.3" }, *const none[] = { "blocks.*" }, *const bias[] = { "**.bias" }, *const not_unit[] = { "embed" };
    const struct ls_unit_input *in;
    model("Toy", PLAIN);
    freeze(NULL, LS_RULES_PROPOSED);
    in = &(struct ls_unit_input){ .glob = typo, .globs = 1, .at = { "s.yaml", 5, 7 } };
    cr_assert_eq(units(in, 1), LS_EINPUT);
    cr_assert(strstr(err.text, "'layers.3': the model has no such module") && err.input.line == 5, "%s", err.text);
    in = &(struct ls_unit_input){ .glob = none, .globs = 1 };
    cr_assert_eq(units(in, 1), LS_EINPUT);
    cr_assert(strstr(err.text, "'blocks.*' matches no module"), "%s", err.text);
    in = &(struct ls_unit_input){ .glob = layers_glob, .globs = 1, .ignored = bias, .ignoreds = 1 };
    cr_assert_eq(units(in, 1), LS_EINPUT);
    cr_assert(strstr(err.text, "'**.bias' matches no parameter"), "%s", err.text);
    in = &(struct ls_unit_input){ .glob = layers_glob, .globs = 1, .forward_prefetch = not_unit, .forward_prefetches = 1 };
    cr_assert_eq(units(in, 1), LS_EINPUT);
    cr_assert(strstr(err.text, "for units with one match"), "%s", err.text);
    in = &(struct ls_unit_input){ .glob = root_glob, .globs = 1, .forward_prefetch = not_unit, .forward_prefetches = 1 };
    cr_assert_eq(units(in, 1), LS_EINPUT);
    cr_assert(strstr(err.text, "'embed', which is not a unit"), "%s", err.text);
}

Test(plan, explicit_prefetch_lists_may_look_ahead)
{
    const char *const zero[] = { "layers.0" }, *const one[] = { "layers.1", "layers.2" }, *const rest[] = { "layers.1", "layers.2" };
    const struct ls_unit_input in[] = { { .glob = zero, .globs = 1, .forward_prefetch = one, .forward_prefetches = 2, .has_backward_prefetch = true },
                                        { .glob = rest, .globs = 2 }, { .glob = root_glob, .globs = 1, .backward_prefetch = zero, .backward_prefetches = 1, .has_backward_prefetch = true } };
    model("Toy", PLAIN);
    freeze(NULL, LS_RULES_PROPOSED);
    cr_assert_eq(units(in, 3), LS_OK, "%s", err.text);
    cr_assert(plan.unit[0].forward_prefetches == 2 && plan.unit[0].forward_prefetch[1] == 2);
    cr_assert(plan.unit[0].has_backward_prefetch && !plan.unit[0].backward_prefetches, "an empty list turns the implicit one off");
    cr_assert(plan.unit[3].backward_prefetch[0] == 0);
}

/* ------------------------------------------------------------------------------------------------- sizes */

Test(plan, shards_are_chunks_of_rows_padded_to_one_size)
{
    for (uint64_t rows = 1; rows <= 64; rows++)
        for (size_t ranks = 1; ranks <= 9; ranks++)
            for (uint64_t columns = 1; columns <= 3; columns++) {
                struct ls_param p = { .dims = 2, .dim = { rows, columns }, .elements = rows * columns };
                const uint64_t part = ls_param_shard_elements(&p, ranks);
                /* torch.chunk: every rank but the last ones holds ceil(rows / ranks) rows, and together they hold all. */
                uint64_t held = 0, most = 0;
                for (size_t rank = 0; rank < ranks; rank++) {
                    uint64_t begin = part / columns * rank, end = begin + part / columns;
                    begin = begin < rows ? begin : rows, end = end < rows ? end : rows;
                    held += end - begin;
                    most = end - begin > most ? end - begin : most;
                }
                cr_assert_eq(held, rows, "rows=%zu ranks=%zu", (size_t)rows, ranks);
                cr_assert_eq(part, most * columns, "no more padding than the fullest rank needs");
            }
    struct ls_param empty = { .dims = 2, .dim = { 0, 4 } };
    cr_assert_eq(ls_param_shard_elements(&empty, 3), 0);
}

Test(plan, sizes_of_units)
{
    const struct ls_unit_input in[] = { { .glob = layers_glob, .globs = 1, .param_dtype = LS_DTYPE_BF16 }, { .glob = root_glob, .globs = 1 } };
    model("Toy", "  children: {layers: {class: ModuleList, children: {\"0\": {class: L, params: {w: [5, 4], b: {shape: [3], dtype: bf16}, i: {shape: [2], dtype: u8}}}}}, "
                 "h: {class: H, params: {w: [5, 4], b: {shape: [3], dtype: bf16}}}}\n");
    freeze("layers.0.b", LS_RULES_PROPOSED);
    cr_assert_eq(units(in, 2), LS_OK);
    struct ls_unit_size s = ls_plan_unit_size(&plan, 0, 2);
    cr_assert_eq(s.gather_dtype, LS_DTYPE_U8, "a byte tensor beside bf16: one buffer of bytes");
    cr_assert_eq(s.gather_in, 12 * 2 + 2 * 2 + 1);
    cr_assert_eq(s.gather_out, 2 * s.gather_in);
    cr_assert_eq(s.unsharded_bytes, 2 * s.gather_in);
    cr_assert_eq(s.reduce_in, 24, "neither the frozen bias nor the bytes");
    cr_assert_eq(s.sharded_bytes, 12 * 4 + 2 * 2 + 1);
    s = ls_plan_unit_size(&plan, 1, 2);
    cr_assert_eq(s.gather_dtype, LS_DTYPE_U8, "f32 beside bf16");
    cr_assert_eq(s.gather_in, 12 * 4 + 2 * 2);
}

Test(plan, sizes_saturate)
{
    const struct ls_unit_input in[] = { { .glob = root_glob, .globs = 1 } };
    model("Toy", "  params: {w: [1, 1099511627776], v: [1, 1099511627776]}\n");
    freeze(NULL, LS_RULES_PROPOSED);
    cr_assert_eq(units(in, 1), LS_OK);
    struct ls_unit_size s = ls_plan_unit_size(&plan, 0, (size_t)1 << 24);
    cr_assert_eq(s.gather_out, UINT64_MAX);
    cr_assert_eq(ls_plan_memory(&plan, (size_t)1 << 24).sharded, (UINT64_C(1) << 41) * 4);
}

/* What `root` holds unsharded beside `per_layer` was measured on 8 H100 (2 for the last row), paired runs of 30 steps. */
Test(plan, memory_of_root_beside_per_layer_as_measured)
{
    static const struct { const char *file; size_t gpus; double gib; } rows[] = {
        { "scenarios/models/qwen3_vl_4b.yaml", 8, 0.61 },
        { "scenarios/models/gemma3_4b.yaml", 8, 0.74 },
        { "scenarios/models/ministral3_3b.yaml", 8, 0.72 },
        { "scenarios/models/qwen3_vl_4b.yaml", 2, 0.64 },
    };
    const double gib = 1024.0 * 1024.0 * 1024.0;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int rules = LS_RULES_PROPOSED; rules <= LS_RULES_AUTOMODEL; rules++) {
            struct ls_freeze f = { .present = true, .vision_tower = true };
            struct ls_policy p = { .rules = (enum ls_rules)rules, .param_dtype = LS_DTYPE_BF16, .reduce_dtype = LS_DTYPE_F32, .output_dtype = LS_DTYPE_BF16 };
            load(rows[i].file);
            cr_assert_eq(ls_multimodal_resolve(&m, p.rules, NULL, 0, &specs, &err), LS_OK);
            cr_assert_eq(ls_multimodal_freeze(&m, &specs, p.rules, &f, &early, &final, &err), LS_OK);
            policy(p);
            const uint64_t bytes = ls_plan_root_bytes(&plan), root = ls_plan_memory(&plan, rows[i].gpus).resident;
            cr_assert_float_eq((double)bytes / gib, rows[i].gib, 0.05, "%s: %.3f GiB", rows[i].file, (double)bytes / gib);
            /* The same from the two plans: what each keeps unsharded. */
            p.frozen = LS_FROZEN_PER_LAYER;
            policy(p);
            cr_assert_eq(root - ls_plan_memory(&plan, rows[i].gpus).resident, bytes, "%s", rows[i].file);
            cr_assert_eq(ls_plan_root_bytes(&plan), 0, "nothing is left to win");
            p.reshard = LS_RESHARD_FALSE, p.frozen = LS_FROZEN_ROOT;
            policy(p);
            cr_assert_eq(ls_plan_root_bytes(&plan), 0, "per_layer would not reshard either");
        }
}

Test(plan, memory_of_a_plan)
{
    const struct ls_unit_input in[] = { { .glob = layers_glob, .globs = 1, .reshard = LS_RESHARD_TRUE }, { .glob = root_glob, .globs = 1 } };
    model("Toy", PLAIN);
    freeze(NULL, LS_RULES_PROPOSED);
    cr_assert_eq(units(in, 2), LS_OK);
    struct ls_plan_memory with = ls_plan_memory(&plan, 2);
    /* A layer: w 5x4 -> 12 per rank, b 4 -> 2, n.w 4 -> 2. The root: two 6x4 -> 12 each, scale -> 2. */
    cr_assert_eq(with.sharded, 4 * (3 * 16 + 26));
    cr_assert_eq(with.resident, 4 * 52);
    cr_assert_eq(with.transient, 4 * (32 + 32));
    cr_assert_eq(with.replicated, 0);
    cr_assert_eq(units(in, 1), LS_OK);
    cr_assert_eq(ls_plan_memory(&plan, 2).replicated, 4 * 52);
}
