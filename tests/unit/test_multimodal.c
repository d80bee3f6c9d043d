/* Which modules belong to a modality, and what is frozen. */
#include "multimodal/multimodal.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

static struct ls_arena arena;
static struct ls_names *names;
static struct ls_error err;
static struct ls_model m;
static struct ls_specs specs;
static bool *early, *final;

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

TestSuite(multimodal, .init = setup, .fini = teardown);

static const struct ls_yaml_node *yaml(const char *text)
{
    const struct ls_yaml_node *node = NULL;
    cr_assert_eq(ls_yaml_load_text(text, strlen(text), "m.yaml", &arena, &node, &err), LS_OK, "%s", err.text);
    return node;
}

static void model(const char *class_name, const char *rest)
{
    const char *text = ls_arena_printf(&arena, "lockstep_inventory: 1\nname: t\ndtype: f32\nmodules:\n  class: %s\n%s", class_name, rest);
    cr_assert_eq(ls_model_read(yaml(text), &arena, names, &m, &err), LS_OK, "%zu:%zu: %s", err.input.line, err.input.column, err.text);
}

static enum ls_code resolve(enum ls_rules rules, const struct ls_override *o, size_t count)
{
    return ls_multimodal_resolve(&m, rules, o, count, &specs, &err);
}

/* "path modality role source" of every spec, one per line. */
static const char *shown(void)
{
    static const char *const source[] = { "declared", "table", "name", "override" };
    struct ls_str s = { 0 };
    for (size_t i = 0; i < specs.count; i++)
        ls_str_printf(&s, "%s %s %s %s%s\n", ls_name_text(names, m.module[specs.spec[i].module].name), ls_name_text(names, specs.spec[i].modality),
                      specs.spec[i].role ? ls_name_text(names, specs.spec[i].role) : "-", source[specs.spec[i].source],
                      specs.spec[i].conditionally_executed ? "" : " always");
    const char *out = ls_arena_str(&arena, ls_str_text(&s));
    ls_str_release(&s);
    return out;
}

static void expect(enum ls_rules rules, const char *want)
{
    cr_assert_eq(resolve(rules, NULL, 0), LS_OK, "%s", err.text);
    cr_assert_str_eq(shown(), want);
}

#define NESTED                                                                                                                     \
    "  children:\n"                                                                                                                \
    "    vision_tower: {class: T, children: {vision_model: {class: V, params: {w: [2]}}, mm_projector: {class: P, params: {w: [2]}}}}\n" \
    "    layers: {class: ModuleList, children: {\"0\": {class: L, children: {audio_encoder: {class: A, params: {w: [2]}}}}}}\n"   \
    "    Visual: {class: X, params: {w: [2]}}\n"                                                                                   \
    "    visual_x: {class: X, params: {w: [2]}}\n"

Test(multimodal, automodel_selects_maximal_modules_by_exact_leaf_name)
{
    model("Toy", NESTED);
    expect(LS_RULES_AUTOMODEL, "vision_tower vision tower name\nlayers.0.audio_encoder audio tower name\n");
    cr_assert_eq(specs.warnings, 0);
}

Test(multimodal, names_are_the_last_source_and_warn)
{
    model("Toy", NESTED);
    expect(LS_RULES_PROPOSED, "vision_tower vision tower name\n" /* vision_model says the same: dropped */
                              "vision_tower.mm_projector vision projector name\n"
                              "layers.0.audio_encoder audio tower name\n");
    cr_assert_eq(specs.warnings, 1);
    cr_assert(strstr(specs.warning[0], "'Toy' declares no multimodal modules"), "%s", specs.warning[0]);
}

Test(multimodal, seventeen_names)
{
    static const char *const name[] = { "visual", "vision_tower", "vision_model", "vit_model", "image_encoder", "vision_encoder", "audio_tower",
                                        "audio_encoder", "audio_model", "embed_vision", "embed_audio", "mm_projector", "multi_modal_projector",
                                        "multimodal_projector", "vision_projector", "vit_large_projector", "audio_projector" };
    for (size_t i = 0; i < 17; i++)
        cr_assert(ls_multimodal_name(name[i]), "%s", name[i]);
    static const char *const other[] = { "", "Visual", "vision", "connector", "mlp1", "sound_encoder", "vision_adapter", "visual.", "vision_towers" };
    for (size_t i = 0; i < sizeof other / sizeof *other; i++)
        cr_assert(!ls_multimodal_name(other[i]), "%s", other[i]);
}

#define QWEN3VL                                                                                                                    \
    "  children: {model: {class: M, children: {visual: {class: V, children: {blocks: {class: ModuleList, children: {\"0..1\": {class: B, params: {w: [2]}}}}, " \
    "merger: {class: P, params: {w: [2]}}, deepstack_merger_list: {class: ModuleList, children: {\"0..1\": {class: P, params: {w: [2]}}}}}}, " \
    "language_model: {class: L, params: {w: [2]}}}}}\n"

Test(multimodal, table_before_names)
{
    model("Qwen3VLForConditionalGeneration", QWEN3VL);
    expect(LS_RULES_PROPOSED, "model.visual vision tower table\nmodel.visual.merger vision projector table\n"
                              "model.visual.deepstack_merger_list vision projector table\n");
    cr_assert_eq(specs.warnings, 0);
    expect(LS_RULES_AUTOMODEL, "model.visual vision tower name\n");
    const uint32_t *of = ls_specs_of_params(&m, &specs, &arena);
    cr_assert_eq(of[ls_model_param(&m, "model.visual.merger.w")], 0);
    cr_assert_eq(of[ls_model_param(&m, "model.language_model.w")], LS_NO_ID);
}

Test(multimodal, declaration_before_table)
{
    model("Qwen3VLForConditionalGeneration",
          QWEN3VL "aliases: {visual: model.visual}\nmultimodal: [{path: visual, modality: vision, role: encoder, conditionally_executed: false}]\n");
    expect(LS_RULES_PROPOSED, "model.visual vision encoder declared always\n");
}

Test(multimodal, overrides_correct_and_add)
{
    model("Qwen3VLForConditionalGeneration", QWEN3VL "aliases: {visual: model.visual}\n");
    struct ls_override o[] = {
        { "visual", NULL, NULL, 0, LS_NOWHERE },                               /* metadata only */
        { "model.visual.merger", NULL, "tower", 0, LS_NOWHERE },               /* same as its parent now, but named: it stays */
        { "model.language_model", "structure", NULL, -1, LS_NOWHERE },         /* a new path, without a role */
    };
    cr_assert_eq(resolve(LS_RULES_PROPOSED, o, 3), LS_OK, "%s", err.text);
    cr_assert_str_eq(shown(), "model.visual vision tower override always\nmodel.visual.merger vision tower override always\n"
                              "model.visual.deepstack_merger_list vision projector table\nmodel.language_model structure - override\n");
    o[1].path = "model.visual";
    cr_assert_eq(resolve(LS_RULES_PROPOSED, o, 3), LS_EINPUT);
    cr_assert(strstr(err.text, "named twice"), "an alias is the same module: %s", err.text);
    o[1].path = "model.visaul";
    cr_assert_eq(resolve(LS_RULES_PROPOSED, o, 3), LS_EINPUT);
    cr_assert_str_eq(err.hint, "did you mean 'model.visual'?");
    cr_assert_eq(resolve(LS_RULES_AUTOMODEL, o, 1), LS_EINPUT, "names alone count there");
}

/* ------------------------------------------------------------------------------------------------- the resolver's contracts */

/* Paths are canonical: whatever wraps a module on the way, the spec names the module. */
Test(multimodal, contract_1_paths_are_canonical_and_unwrapped)
{
    static const char *const path[] = { "model.visual", "visual", "_orig_mod.model.visual", "module.model.visual", "model._orig_mod.visual._orig_mod",
                                        "model.visual._checkpoint_wrapped_module", "_fsdp_wrapped_module.model._fsdp_wrapped_module.visual",
                                        "module._orig_mod.visual" };
    model("Qwen3VLForConditionalGeneration", QWEN3VL "aliases: {visual: model.visual}\n");
    for (size_t i = 0; i < sizeof path / sizeof *path; i++) {
        struct ls_override o = { path[i], NULL, "encoder", -1, LS_NOWHERE };
        cr_assert_eq(resolve(LS_RULES_PROPOSED, &o, 1), LS_OK, "%s: %s", path[i], err.text);
        cr_expect_str_eq(ls_name_text(names, specs.spec[0].path), "model.visual", "%s", path[i]);
        cr_expect_str_eq(ls_name_text(names, specs.spec[0].role), "encoder", "%s", path[i]);
        cr_expect_eq(specs.count, 3, "%s", path[i]);
    }
    cr_expect_eq(ls_module_unwrapped(&m, "_orig_mod"), LS_NO_ID);
    cr_expect_eq(ls_module_unwrapped(&m, ""), 0, "the root");
    cr_expect_eq(ls_module_unwrapped(&m, "model.module.visual"), LS_NO_ID, "only around the root is `module` a wrapper");
    model("Toy", "  children: {module: {class: M, children: {visual: {class: V, params: {w: [2]}}}}, visual: {class: W, params: {w: [2]}}}\n");
    cr_expect_eq(ls_module_unwrapped(&m, "module.visual"), ls_model_module(&m, "module.visual"), "a module that is called so is no wrapper");
}

/* The same module reached by two paths is one module, in every source and under every rule set. */
Test(multimodal, contract_2_one_module_with_two_paths_is_one_module)
{
    model("Toy", "  children: {model: {class: M, children: {vision_tower: {class: V, params: {w: [2]}}}}}\n"
                 "aliases: {vision_tower: model.vision_tower, visual: model.vision_tower}\n"
                 "multimodal: [{path: visual, modality: vision, role: tower}]\n");
    expect(LS_RULES_PROPOSED, "model.vision_tower vision tower declared\n");
    expect(LS_RULES_AUTOMODEL, "model.vision_tower vision tower name\n");
    struct ls_override o[] = { { "visual", NULL, NULL, 0, LS_NOWHERE }, { "_orig_mod.vision_tower", NULL, NULL, 0, LS_NOWHERE } };
    cr_assert_eq(resolve(LS_RULES_PROPOSED, o, 1), LS_OK, "%s", err.text);
    cr_assert_str_eq(shown(), "model.vision_tower vision tower override always\n");
    cr_assert_eq(resolve(LS_RULES_PROPOSED, o, 2), LS_EINPUT);
    cr_assert(strstr(err.text, "named twice"), "%s", err.text);
}

/* Inside a selected module another one stays if a policy would treat it differently; else it says nothing new. */
Test(multimodal, contract_3_a_child_stays_if_its_role_differs)
{
    static const struct { const char *child, *stays; } cases[] = {
        { "{path: t.c, modality: vision, role: tower}", NULL },
        { "{path: t.c, modality: vision, role: projector}", "t.c vision projector declared\n" },
        { "{path: t.c, modality: audio, role: tower}", "t.c audio tower declared\n" },
        { "{path: t.c, modality: vision}", "t.c vision - declared\n" }, /* no role is not the parent's */
        { "{path: t.c, modality: vision, role: tower, conditionally_executed: false}", "t.c vision tower declared always\n" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        model("Toy", ls_arena_printf(&arena, "  children: {t: {class: T, params: {w: [2]}, children: {c: {class: C, params: {w: [2]}}}}}\n"
                                     "multimodal: [{path: t, modality: vision, role: tower}, %s]\n", cases[i].child));
        expect(LS_RULES_PROPOSED, ls_arena_printf(&arena, "t vision tower declared\n%s", cases[i].stays ? cases[i].stays : ""));
        const uint32_t *of = ls_specs_of_params(&m, &specs, &arena);
        cr_expect_eq(of[ls_model_param(&m, "t.c.w")], cases[i].stays ? 1 : 0, "case %zu: whose own part", i);
        cr_expect_eq(of[ls_model_param(&m, "t.w")], 0, "case %zu", i);
    }
}

/* Specs outlive a change of the model's structure, and hold no state of parameters. */
Test(multimodal, contract_4_specs_are_bound_again_and_frozen_state_is_read_late)
{
    static const char *const target[] = { "q" };
    struct ls_peft peft = { target, 1, 2, LS_DTYPE_F32, LS_NOWHERE, false };
    model("Toy", "  children:\n    lm: {class: L, children: {q: {class: Linear, params: {weight: [2, 2]}}}}\n"
                 "    visual: {class: V, params: {n: [2]}, children: {q: {class: Linear, params: {weight: [2, 2]}}, merger: {class: P, params: {w: [2]}}}}\n"
                 "multimodal: [{path: visual, modality: vision, role: tower}, {path: visual.merger, modality: vision, role: projector}]\n");
    cr_assert_eq(resolve(LS_RULES_PROPOSED, NULL, 0), LS_OK, "%s", err.text);
    struct ls_specs kept = specs;
    kept.spec = ls_arena_copy(&arena, specs.spec, specs.count * sizeof *specs.spec);
    cr_assert_eq(ls_model_add_lora(&m, &peft, &err), LS_OK, "%s", err.text);
    cr_assert_neq(kept.spec[0].module, ls_model_module(&m, "visual"), "adapters moved it");
    cr_assert_eq(ls_specs_bind(&kept, &m, &err), LS_OK, "%s", err.text);
    cr_assert_eq(resolve(LS_RULES_PROPOSED, NULL, 0), LS_OK, "%s", err.text);
    cr_assert_eq(kept.count, specs.count);
    for (size_t i = 0; i < kept.count; i++)
        cr_expect(memcmp(&kept.spec[i], &specs.spec[i], sizeof *specs.spec) == 0, "spec %zu: as if resolved now", i);
    /* The same specs, three times: what is frozen is a question to requires_grad. */
    static const struct { const char *config; bool tower, merger; } cases[] = {
        { "vision: {tower: true}", false, false }, { "vision: {tower: true, projector: true}", true, true }, { "vision: {projector: true}", false, true },
    };
    for (size_t i = 0; i < 3; i++) {
        struct ls_freeze f = { .present = true, .proposed = yaml(cases[i].config) };
        cr_assert_eq(ls_multimodal_freeze(&m, &kept, LS_RULES_PROPOSED, &f, &early, &final, &err), LS_OK, "%s", err.text);
        cr_expect_eq(ls_module_fully_frozen(&m, kept.spec[0].module, early), cases[i].tower, "case %zu", i);
        cr_expect_eq(ls_module_fully_frozen(&m, kept.spec[1].module, early), cases[i].merger, "case %zu", i);
    }
    model("Toy", "  children: {lm: {class: L, params: {w: [2]}}}\n");
    struct ls_spec before = kept.spec[0];
    cr_assert_eq(ls_specs_bind(&kept, &m, &err), LS_EINPUT, "the path is gone");
    cr_expect_eq(kept.spec[0].module, before.module);
}

/* ------------------------------------------------------------------------------------------------- freezing */

#define FREEZABLE                                                                                                                  \
    "  children:\n"                                                                                                                \
    "    model:\n"                                                                                                                 \
    "      class: M\n"                                                                                                             \
    "      children:\n"                                                                                                            \
    "        vision_tower: {class: T, children: {blk: {class: B, params: {w: [2]}}, merger: {class: P, params: {w: [2]}}}}\n"      \
    "        vit_model: {class: T, params: {w: [2]}}\n"                                                                            \
    "        multi_modal_projector: {class: P, params: {w: [2]}}\n"                                                                \
    "        MyVisionAdapter: {class: P, params: {w: [2]}}\n"                                                                      \
    "        sound_encoder: {class: P, params: {w: [2]}}\n"                                                                        \
    "        language_model: {class: L, params: {w: [2], vision_bias: [2], index: {shape: [2], dtype: i64}}}\n"                    \
    "        patch_generator: {class: G, children: {video_embedder: {class: E, params: {w: [2]}}}}\n"                              \
    "    lm_head: {class: H, params: {w: [2]}}\n"

/* The frozen parameters, by name. */
static const char *frozen(const bool *grad)
{
    struct ls_str s = { 0 };
    for (size_t i = 0; i < m.params; i++)
        if (!grad[i] && m.param[i].dtype == LS_DTYPE_F32)
            ls_str_printf(&s, "%s\n", ls_name_text(names, m.param[i].name));
    const char *out = ls_arena_str(&arena, ls_str_text(&s));
    ls_str_release(&s);
    return out;
}

static enum ls_code freeze(enum ls_rules rules, struct ls_freeze f)
{
    cr_assert_eq(resolve(rules, NULL, 0), LS_OK, "%s", err.text);
    return ls_multimodal_freeze(&m, &specs, rules, &f, &early, &final, &err);
}

static void expect_frozen(enum ls_rules rules, struct ls_freeze f, const char *want)
{
    cr_assert_eq(freeze(rules, f), LS_OK, "%s", err.text);
    cr_assert_str_eq(frozen(early), want);
    cr_assert_str_eq(frozen(final), want);
}

Test(multimodal, automodel_freezes_by_substring_of_module_names)
{
    model("Toy", FREEZABLE);
    expect_frozen(LS_RULES_AUTOMODEL, (struct ls_freeze){ 0 }, "");
    expect_frozen(LS_RULES_AUTOMODEL, (struct ls_freeze){ .present = true }, "");
    cr_assert(!final[ls_model_param(&m, "model.language_model.index")], "integers never train");
    /* Neither vit_model nor the projector, but the adapter, whatever its case; no parameter's own name counts. */
    expect_frozen(LS_RULES_AUTOMODEL, (struct ls_freeze){ .present = true, .vision_tower = true },
                  "model.vision_tower.blk.w\nmodel.vision_tower.merger.w\nmodel.MyVisionAdapter.w\n");
    expect_frozen(LS_RULES_AUTOMODEL, (struct ls_freeze){ .present = true, .audio_tower = true }, "model.sound_encoder.w\n");
    expect_frozen(LS_RULES_AUTOMODEL, (struct ls_freeze){ .present = true, .language_model = true },
                  "model.language_model.w\nmodel.language_model.vision_bias\n");
    expect_frozen(LS_RULES_AUTOMODEL, (struct ls_freeze){ .present = true, .video_embedder = true }, "model.patch_generator.video_embedder.w\n");
}

Test(multimodal, automodel_freezes_attributes_of_the_root)
{
    model("Toy", "  children: {inner: {class: M, children: {enc: {class: E, params: {w: [2]}}, dec: {class: D, params: {w: [2]}}}}}\n"
                 "aliases: {vision_tower: inner.enc, language_model: inner.dec}\n");
    expect_frozen(LS_RULES_AUTOMODEL, (struct ls_freeze){ .present = true, .vision_tower = true }, "inner.enc.w\n");
    expect_frozen(LS_RULES_AUTOMODEL, (struct ls_freeze){ .present = true, .language_model = true }, "inner.dec.w\n");
}

Test(multimodal, a_tied_parameter_is_one_object)
{
    model("Toy", "  children: {language_model: {class: E, params: {w: [2]}}, head: {class: H, params: {w: [2]}}}\nties: [[head.w, language_model.w]]\n");
    expect_frozen(LS_RULES_AUTOMODEL, (struct ls_freeze){ .present = true, .language_model = true }, "language_model.w\nhead.w\n");
}

Test(multimodal, globs_come_last_in_order)
{
    static const char *const off[] = { "model.**" }, *const on[] = { "model.vision_tower.merger.*", "model.vit_model.w" }, *const typo[] = { "model.vit_model" };
    model("Toy", FREEZABLE);
    expect_frozen(LS_RULES_AUTOMODEL, (struct ls_freeze){ .freeze = off, .freezes = 1, .train = on, .trains = 2 },
                  "model.vision_tower.blk.w\nmodel.multi_modal_projector.w\nmodel.MyVisionAdapter.w\nmodel.sound_encoder.w\n"
                  "model.language_model.w\nmodel.language_model.vision_bias\nmodel.patch_generator.video_embedder.w\n");
    cr_assert_eq(freeze(LS_RULES_AUTOMODEL, (struct ls_freeze){ .freeze = typo, .freezes = 1 }), LS_EINPUT);
    cr_assert_str_eq(err.hint, "that is a module; its parameters are 'model.vit_model.**'");
}

#define PROPOSED                                                                                                                   \
    FREEZABLE "multimodal:\n  - {path: model.vision_tower, modality: vision, role: tower}\n"                                       \
              "  - {path: model.vision_tower.merger, modality: vision, role: projector}\n"                                         \
              "  - {path: model.sound_encoder, modality: audio}\n"

Test(multimodal, proposed_freezes_own_parts)
{
    model("Toy", PROPOSED);
    expect_frozen(LS_RULES_PROPOSED, (struct ls_freeze){ .present = true, .proposed = yaml("vision: {tower: true, projector: false}") }, "model.vision_tower.blk.w\n");
    expect_frozen(LS_RULES_PROPOSED, (struct ls_freeze){ .present = true, .proposed = yaml("vision: {projector: true}") }, "model.vision_tower.merger.w\n");
    expect_frozen(LS_RULES_PROPOSED, (struct ls_freeze){ .present = true, .proposed = yaml("vision: true\naudio: true") },
                  "model.vision_tower.blk.w\nmodel.vision_tower.merger.w\nmodel.sound_encoder.w\n");
    expect_frozen(LS_RULES_PROPOSED, (struct ls_freeze){ .present = true, .proposed = yaml("language_model: true") },
                  "model.vit_model.w\nmodel.multi_modal_projector.w\nmodel.MyVisionAdapter.w\nmodel.language_model.w\nmodel.language_model.vision_bias\n"
                  "model.patch_generator.video_embedder.w\nlm_head.w\n");
    expect_frozen(LS_RULES_PROPOSED, (struct ls_freeze){ .present = true, .proposed = yaml("modules: [model.patch_generator.video_embedder]\nvideo: false") },
                  "model.patch_generator.video_embedder.w\n");
    expect_frozen(LS_RULES_PROPOSED, (struct ls_freeze){ .present = true, .vision_tower = true },
                  "model.vision_tower.blk.w\nmodel.vision_tower.merger.w\nmodel.MyVisionAdapter.w\n"); /* AutoModel's keys keep their meaning */
    cr_assert_eq(freeze(LS_RULES_PROPOSED, (struct ls_freeze){ .present = true, .proposed = yaml("\nvision: {towre: true}") }), LS_EINPUT);
    cr_assert(err.input.line == 2 && err.input.column == 10);
    cr_assert_str_eq(err.hint, "did you mean 'tower'?");
    cr_assert_eq(freeze(LS_RULES_PROPOSED, (struct ls_freeze){ .present = true, .proposed = yaml("visoin: true") }), LS_EINPUT);
    cr_assert_str_eq(err.hint, "did you mean 'vision'?");
    cr_assert_eq(freeze(LS_RULES_PROPOSED, (struct ls_freeze){ .present = true, .proposed = yaml("modules: [model.vitmodel]") }), LS_EINPUT);
    cr_assert_str_eq(err.hint, "did you mean 'model.vit_model'?");
    cr_assert_eq(freeze(LS_RULES_AUTOMODEL, (struct ls_freeze){ .present = true, .proposed = yaml("vision: true") }), LS_EINPUT);
}

Test(multimodal, adapters_train_after_sharding_only)
{
    static const char *const target[] = { "q" };
    struct ls_peft peft = { target, 1, 2, LS_DTYPE_F32, LS_NOWHERE, false };
    model("Toy", "  children: {visual: {class: V, params: {n: [2]}, children: {q: {class: Linear, params: {weight: [2, 2]}}}}, lm: {class: L, children: {q: {class: Linear, params: {weight: [2, 2]}}}}}\n");
    cr_assert_eq(ls_model_add_lora(&m, &peft, &err), LS_OK);
    cr_assert_eq(freeze(LS_RULES_AUTOMODEL, (struct ls_freeze){ .peft_base = true }), LS_OK);
    cr_assert_str_eq(frozen(early), "visual.q.weight\nlm.q.weight\n", "the rest of the base still trains when the tower is judged");
    cr_assert_str_eq(frozen(final), "visual.n\nvisual.q.weight\nlm.q.weight\n");
    cr_assert_eq(freeze(LS_RULES_AUTOMODEL, (struct ls_freeze){ .peft_base = true, .present = true, .vision_tower = true }), LS_OK);
    cr_assert(ls_module_fully_frozen(&m, ls_model_module(&m, "visual"), early), "the substring covers the adapters too");
    cr_assert_str_eq(frozen(final), "visual.n\nvisual.q.weight\nvisual.q.lora_A.weight\nvisual.q.lora_B.weight\nlm.q.weight\n");
    cr_assert(!ls_module_fully_frozen(&m, ls_model_module(&m, "lm"), final));
}

Test(multimodal, a_module_without_parameters_is_not_frozen)
{
    model("Toy", "  children: {visual: {class: V, children: {x: {class: X}}}, lm: {class: L, params: {w: [2]}}}\n");
    cr_assert_eq(freeze(LS_RULES_AUTOMODEL, (struct ls_freeze){ .present = true, .vision_tower = true }), LS_OK);
    cr_assert(!ls_module_fully_frozen(&m, ls_model_module(&m, "visual"), early));
}
