/* Recipes: 110 real ones where they are at hand, and written ones for the rules. */
#include "advise/advise.h"
#include "import/recipe.h"
#include "scenario/scenario.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static struct ls_arena arena;
static struct ls_names *names;
static struct ls_error err;
static struct ls_import import;
static struct ls_scenario scenario;
static bool proposed; /* rules of what is imported */
static uint64_t tensor; /* tp_size of what was imported */

static void setup(void)
{
    ls_arena_init(&arena, 0);
    names = ls_names_open();
    err = (struct ls_error){ 0 };
    proposed = false;
}

static void teardown(void)
{
    ls_names_close(names);
    ls_arena_release(&arena);
}

TestSuite(import, .init = setup, .fini = teardown);

static enum ls_code load(void)
{
    return ls_scenario_read(import.text, strlen(import.text), LS_SOURCE_DIR "/scenarios/imported.yaml", &arena, names, &scenario, &err);
}

static enum ls_code import_file(const char *path, const char *models, uint64_t world)
{
    static struct ls_arena kept; /* inventories are large: read once per folder */
    static const char *of;
    static struct ls_inventories known;
    if (of != models) {
        ls_arena_release(&kept);
        cr_assert_eq(ls_inventories_read(models, &kept, &known, &err), LS_OK, "%s", err.text);
        of = models;
    }
    struct ls_recipe recipe;
    enum ls_code rc = ls_recipe_load(path, &known, &arena, &recipe, &err);
    import = (struct ls_import){ 0 };
    tensor = rc == LS_OK ? recipe.tp : 1;
    return rc == LS_OK ? ls_recipe_import(&recipe, &(struct ls_import_options){ world, NULL, proposed }, &arena, &import, &err) : rc;
}

static size_t recipes, loaded, refused;

/* It loads and compiles, or the error names a key of the recipe or says what does not fit. */
static void try_recipe(const char *path)
{
    uint64_t world[] = { 8, 64, 256 };
    bool any = false;
    recipes++;
    for (size_t i = 0; i < 3; i++) {
        teardown();
        setup();
        enum ls_code rc = import_file(path, LS_SOURCE_DIR "/scenarios/models", world[i]);
        if (rc != LS_OK) {
            cr_expect_eq(rc, LS_EINPUT, "%s", path);
            cr_expect(err.text[0] && err.input.line > 0 && !import.text, "%s: %s", path, err.text);
            bool named = strstr(err.text, "is not modelled yet") || strstr(err.text, "world size") || strstr(err.text, "global_batch_size");
            cr_expect(named, "%s: %s", path, err.text);
            continue;
        }
        any = true;
        cr_assert_eq(load(), LS_OK, "%s: %zu:%zu: %s (%s)", path, err.input.line, err.input.column, err.text, err.hint);
        cr_expect(scenario.mesh.shard * scenario.mesh.replicate * tensor == world[i], "%s", path);
        struct ls_compiled c;
        cr_assert_eq(ls_scenario_compile(&scenario, &LS_AS_WRITTEN, false, &c, &err), LS_OK, "%s: %s", path, err.text);
        cr_expect_null(c.refusal.rule, "%s: %s", path, c.refusal.text ? c.refusal.text : "");
        ls_compiled_release(&c);
        size_t kinds[4] = { 0 };
        for (size_t k = 0; k < import.notes; k++)
            kinds[import.note[k].kind]++;
        cr_expect(kinds[LS_IMPORT_TAKEN] > 4 && kinds[LS_IMPORT_NO_EFFECT] > 4 && kinds[LS_IMPORT_UNSUPPORTED] == 0, "%s", path);
        cr_expect_leq(kinds[LS_IMPORT_UNKNOWN], 4, "%s: %zu keys not understood", path, kinds[LS_IMPORT_UNKNOWN]);
    }
    any ? loaded++ : refused++;
}

static void each_recipe(const char *folder)
{
    struct dirent **entry = NULL;
    int entries = scandir(folder, &entry, NULL, alphasort);
    for (int i = 0; i < entries; i++) {
        char path[1024];
        struct stat st;
        size_t length = strlen(entry[i]->d_name);
        snprintf(path, sizeof path, "%s/%s", folder, entry[i]->d_name);
        if (entry[i]->d_name[0] != '.' && stat(path, &st) == 0) {
            if (S_ISDIR(st.st_mode))
                each_recipe(path);
            else if (length > 5 && strcmp(entry[i]->d_name + length - 5, ".yaml") == 0)
                try_recipe(path);
        }
        free(entry[i]);
    }
    free(entry);
}

Test(import, every_recipe_loads_or_says_why_not, .timeout = 250)
{
    static const char folder[] = LS_SOURCE_DIR "/../shared/data/recipes";
    if (access(folder, R_OK) != 0)
        cr_skip_test("no recipes at ../shared/data/recipes");
    each_recipe(folder);
    fprintf(stderr, "%zu recipes: %zu become scenarios, %zu name a part that is not modelled\n", recipes, loaded, refused);
    cr_expect_eq(recipes, 110);
    cr_expect_geq(loaded, 64);
}

static const char head[] = "recipe: FinetuneRecipeForVLM\nstep_scheduler: {global_batch_size: 32, local_batch_size: 2, max_steps: 5}\n"
                           "model:\n  _target_: nemo_automodel.NeMoAutoModelForImageTextToText.from_pretrained\n"
                           "  pretrained_model_name_or_path: example/toy-vlm\n";

static enum ls_code import_text(const char *text, uint64_t world)
{
    char path[] = LS_BINARY_DIR "/recipe_XXXXXX";
    int fd = mkstemp(path);
    cr_assert(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text) && close(fd) == 0);
    enum ls_code rc = import_file(path, LS_SOURCE_DIR "/tests/data", world);
    unlink(path);
    return rc;
}

/* The scenario refers to models/toy_vlm.yaml, which lies elsewhere here. */
static void load_toy(void)
{
    const char *at = strstr(import.text, "models/toy_vlm.yaml");
    cr_assert(at);
    char *text = ls_arena_printf(&arena, "%.*s%s", (int)(at - import.text), import.text, at + strlen("models/"));
    cr_assert_eq(ls_scenario_read(text, strlen(text), LS_SOURCE_DIR "/tests/data/x.yaml", &arena, names, &scenario, &err), LS_OK,
                 "%s\n%s", err.text, text);
}

static enum ls_import_kind kind_of(const char *key)
{
    for (size_t i = 0; i < import.notes; i++)
        if (strcmp(import.note[i].key, key) == 0)
            return import.note[i].kind;
    cr_assert_fail("'%s' is in no list", key);
    return LS_IMPORT_UNKNOWN;
}

Test(import, every_key_is_in_one_list)
{
    char *text = ls_arena_printf(&arena, "%s  torch_dtype: bfloat16\n  new_flag: 3\n"
        "distributed:\n  strategy: fsdp2\n  dp_size: none\n  tp_size: 1\n  dp_replicate_size: 2\n  sequence_parallel: false\n"
        "  defer_fsdp_grad_sync: false\n  activation_checkpointing: selective\n  shiny: 1\n  mp_policy: {param_dtype: bfloat16, fancy: 2}\n"
        "  multimodal: {frozen_sharding: PER-LAYER, vision: {frame_sharding: {enabled: false, min_tokens: 0}}}\n"
        "freeze_config: {freeze_embeddings: true, freeze_vision_tower: true, freeze_audio_tower: true}\n"
        "clip_grad_norm: {max_norm: 0.5}\noptimizer: {lr: 1}\nunheard_of: {a: 1}\n", head);
    cr_assert_eq(import_text(text, 8), LS_OK, "%s", err.text);
    load_toy();
    static const struct { const char *key; enum ls_import_kind kind; } want[] = {
        { "distributed.strategy", LS_IMPORT_TAKEN }, { "distributed.dp_size", LS_IMPORT_TAKEN }, { "distributed.tp_size", LS_IMPORT_TAKEN },
        { "distributed.dp_replicate_size", LS_IMPORT_TAKEN }, { "distributed.sequence_parallel", LS_IMPORT_NO_EFFECT },
        { "distributed.defer_fsdp_grad_sync", LS_IMPORT_TAKEN }, { "distributed.activation_checkpointing", LS_IMPORT_TAKEN },
        { "distributed.shiny", LS_IMPORT_UNKNOWN }, { "distributed.mp_policy.param_dtype", LS_IMPORT_TAKEN },
        { "distributed.mp_policy.fancy", LS_IMPORT_UNKNOWN }, { "distributed.multimodal.frozen_sharding", LS_IMPORT_TAKEN },
        { "freeze_config.freeze_embeddings", LS_IMPORT_NO_EFFECT }, { "freeze_config.freeze_vision_tower", LS_IMPORT_TAKEN },
        { "clip_grad_norm.max_norm", LS_IMPORT_TAKEN }, { "optimizer", LS_IMPORT_NO_EFFECT }, { "unheard_of", LS_IMPORT_UNKNOWN },
        { "model.new_flag", LS_IMPORT_UNKNOWN }, { "model.torch_dtype", LS_IMPORT_NO_EFFECT },
        { "step_scheduler.max_steps", LS_IMPORT_NO_EFFECT }, { "step_scheduler.global_batch_size", LS_IMPORT_TAKEN },
        { "model.pretrained_model_name_or_path", LS_IMPORT_TAKEN },
    };
    for (size_t i = 0; i < sizeof want / sizeof *want; i++)
        cr_expect_eq(kind_of(want[i].key), want[i].kind, "%s", want[i].key);
    for (size_t i = 0; i < import.notes; i++)
        for (size_t k = 0; k < i; k++)
            cr_expect(strcmp(import.note[i].key, import.note[k].key) != 0, "%s is listed twice", import.note[i].key);
    cr_expect(scenario.mesh.replicate == 2 && scenario.mesh.shard == 4 && scenario.batch.microbatches == 2);
    cr_expect(scenario.batch.gradient_sync.count == 0 && scenario.step.clip_grad_norm && scenario.policy.activation_checkpointing);
    cr_expect(scenario.policy.frozen == LS_FROZEN_PER_LAYER && scenario.policy.rules == LS_RULES_AUTOMODEL);
    cr_expect_eq(scenario.batch.samples, 4, "text, and one of each condition");
    cr_expect(scenario.freeze.present && scenario.freeze.audio_tower && !scenario.freeze.language_model);
}

Test(import, defaults_are_automodels)
{
    char *text = ls_arena_printf(&arena, "%sdistributed: {_target_: nemo_automodel.components.distributed.fsdp2.FSDP2Manager}\n", head);
    cr_assert_eq(import_text(text, 4), LS_OK, "%s", err.text);
    load_toy();
    cr_expect(scenario.batch.microbatches == 4 && scenario.batch.gradient_sync.count == 4 && !scenario.batch.gradient_sync.at[0]);
    cr_expect(!scenario.freeze.present && scenario.policy.frozen == LS_FROZEN_ROOT && scenario.policy.param_dtype == LS_DTYPE_BF16);
}

Test(import, ddp_has_automodels_defaults)
{
    char *text = ls_arena_printf(&arena, "%sdistributed: {strategy: ddp, bucket_cap_mb: null, find_unused_parameters: true, activation_checkpointing: true}\n"
                                 "freeze_config: {freeze_audio_tower: true}\n", head);
    cr_assert_eq(import_text(text, 4), LS_OK, "%s", err.text);
    load_toy();
    cr_expect(scenario.ddp.present && scenario.ddp.find_unused && !scenario.ddp.broadcast_buffers && !scenario.ddp.bucket_bytes);
    cr_expect(scenario.batch.microbatches == 4 && scenario.batch.gradient_sync.count == 4);
    cr_expect(!scenario.batch.gradient_sync.at[0] && scenario.batch.gradient_sync.at[3], "no_sync() but in the last");
    cr_expect(scenario.freeze.present && scenario.freeze.vision_tower && scenario.freeze.audio_tower);
    cr_expect_eq(kind_of("distributed.activation_checkpointing"), LS_IMPORT_NO_EFFECT);
    struct ls_compiled c;
    cr_assert_eq(ls_scenario_compile(&scenario, &LS_AS_WRITTEN, false, &c, &err), LS_OK, "%s", err.text);
    ls_compiled_release(&c);
}

Test(import, tensor_parallel_ranks_are_left_out)
{
    char *text = ls_arena_printf(&arena, "%sdistributed: {tp_size: 4, sequence_parallel: true}\n"
                                 "freeze_config: {freeze_audio_tower: true}\n", head);
    cr_expect_eq(import_text(text, 16), LS_EINPUT);
    cr_expect(strstr(err.text, "where 'multi_modal_projector' trains"), "%s", err.text);
    text = ls_arena_printf(&arena, "%sdistributed: {tp_size: 4, sequence_parallel: true}\npeft: {target_modules: ['*q_proj'], dim: 4}\n", head);
    cr_assert_eq(import_text(text, 16), LS_OK, "adapters of the text model alone: %s", err.text);
    load_toy();
    cr_expect(scenario.mesh.shard == 4 && scenario.batch.microbatches == 4 && scenario.batch.execution == LS_EXEC_ANY);
}

/* Qwen3-VL, small: cut over cp. */
static const char *const shardings[] = { "root", "per_layer", "replicate" };

static enum ls_verdict judged(const struct ls_scenario *s)
{
    struct ls_assessment a;
    struct ls_assess_options o = { .variant = LS_AS_WRITTEN };
    o.check.gradients = o.check.races = true;
    cr_assert_eq(ls_assess(s, &o, &arena, &a, &err), LS_OK, "%s", err.text);
    enum ls_verdict v = a.verdict;
    ls_assessment_release(&a);
    return v;
}

static void import_small(const char *sharding, uint64_t world, bool frozen)
{
    static const char path[] = LS_BINARY_DIR "/recipe_cp.yaml";
    struct ls_inventories known;
    struct ls_recipe recipe;
    char *text = ls_arena_printf(&arena, "step_scheduler: {global_batch_size: 4, local_batch_size: 2}\nmodel: {pretrained_model_name_or_path: any}\n"
                                 "distributed: {cp_size: 2, multimodal: {frozen_sharding: %s, vision: {frame_sharding: {enabled: true}}}}\n"
                                 "freeze_config: {freeze_vision_tower: %s}\n", sharding, frozen ? "true" : "false");
    FILE *f = fopen(path, "w");
    cr_assert(f && fputs(text, f) >= 0 && fclose(f) == 0);
    cr_assert_eq(ls_inventories_only(LS_SOURCE_DIR "/scenarios/models/tiny_qwen3_vl.yaml", &arena, &known, &err), LS_OK, "%s", err.text);
    cr_assert_eq(ls_recipe_load(path, &known, &arena, &recipe, &err), LS_OK, "%s", err.text);
    cr_assert_eq(ls_recipe_import(&recipe, &(struct ls_import_options){ .world_size = world }, &arena, &import, &err), LS_OK, "%s", err.text);
    remove(path);
    cr_assert_eq(load(), LS_OK, "%s\n%s", err.text, import.text);
}

/* dp 2 x cp 2, where ranks 0 and 1, and 2 and 3, hold one batch: any on four ranks says the same as all that they can hold. */
Test(import, context_parallel_ranks_share_batches)
{
    for (size_t k = 0; k < 6; k++) {
        import_small(shardings[k / 2], 4, k % 2 == 0);
        cr_assert(scenario.mesh.shard == 4 && scenario.batch.microbatches == 1 && scenario.batch.execution == LS_EXEC_ANY);
        cr_expect_eq(scenario.runtime.unused_params, LS_UNUSED_FALLBACK);
        cr_expect(scenario.runtime.uniform_reduce_dtype);
        enum ls_verdict any = judged(&scenario), worst = LS_SAFE;
        for (uint32_t a = 0; a < scenario.batch.samples; a++)
            for (uint32_t b = 0; b < scenario.batch.samples; b++) {
                char *table = ls_arena_printf(&arena, "execution: {table: [[%u, %u, %u, %u]]}", (unsigned)a, (unsigned)a, (unsigned)b, (unsigned)b);
                const char *at = strstr(import.text, "execution: any"), *text = import.text;
                char *fixed = ls_arena_printf(&arena, "%.*s%s%s", (int)(at - text), text, table, at + strlen("execution: any"));
                struct ls_scenario one;
                cr_assert_eq(ls_scenario_read(fixed, strlen(fixed), LS_SOURCE_DIR "/scenarios/imported.yaml", &arena, names, &one, &err), LS_OK,
                             "%s", err.text);
                enum ls_verdict v = judged(&one);
                worst = v != LS_SAFE ? v : worst;
                cr_expect(a != b || v == LS_SAFE, "%s: equal batches", shardings[k / 2]);
            }
        cr_expect_eq(any, worst, "%s, %zu: %s and %s", shardings[k / 2], k % 2, ls_verdict_name(any), ls_verdict_name(worst));
        cr_expect_eq(any == LS_SAFE, k % 2 == 0 && strcmp(shardings[k / 2], "per_layer") != 0, "%s, %zu", shardings[k / 2], k % 2);
    }
    import_small("per_layer", 2, true); /* one data-parallel rank */
    cr_expect(scenario.mesh.shard == 2 && scenario.batch.microbatches == 2 && scenario.batch.execution == LS_EXEC_RANK_UNIFORM);
    cr_expect_eq(judged(&scenario), LS_SAFE);
}

/* Qwen3.5's mixture of experts calls its parts in another order with context parallelism. */
Test(import, context_parallelism_beside_experts_has_a_flow_of_its_own, .timeout = 250)
{
    static const char path[] = LS_BINARY_DIR "/recipe_cp_ep.yaml";
    static const struct { const char *mesh, *model, *file; size_t ranks; } cases[] = {
        { "{ep_size: 8}", "Qwen/Qwen3.5-35B-A3B", "/qwen3_5_35b_a3b.yaml", 16 },
        { "{ep_size: 8, cp_size: 2}", "Qwen/Qwen3.5-35B-A3B", "/qwen3_5_35b_a3b_cp.yaml", 16 },
        { "{ep_size: 8, cp_size: 2}", "google/gemma-4-26B-A4B-it", "/gemma4_26b_a4b.yaml", 16 }, /* the same order */
        { "{cp_size: 2}", "Qwen/Qwen3.5-4B", "/qwen3_5_4b.yaml", 16 },                           /* no unit depends on it */
    };
    struct ls_inventories known;
    cr_assert_eq(ls_inventories_read(LS_SOURCE_DIR "/scenarios/models", &arena, &known, &err), LS_OK, "%s", err.text);
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        struct ls_recipe recipe;
        FILE *f = fopen(path, "w");
        cr_assert(f && fprintf(f, "step_scheduler: {global_batch_size: 16, local_batch_size: 1}\nmodel: {pretrained_model_name_or_path: %s}\n"
                                  "distributed: %s\n", cases[k].model, cases[k].mesh) > 0 && fclose(f) == 0);
        cr_assert_eq(ls_recipe_load(path, &known, &arena, &recipe, &err), LS_OK, "%s", err.text);
        cr_assert(recipe.inventory && strstr(recipe.inventory->path, cases[k].file), "%s", recipe.inventory ? recipe.inventory->path : "none");
        cr_assert_eq(ls_recipe_import(&recipe, &(struct ls_import_options){ .world_size = 16 }, &arena, &import, &err), LS_OK, "%s", err.text);
        cr_expect(strstr(import.text, cases[k].file), "%s", import.text);
        cr_assert_eq(load(), LS_OK, "%s", err.text);
        cr_expect_eq(scenario.mesh.shard, cases[k].ranks);
        cr_expect_eq(scenario.mesh.ep, recipe.ep);
    }
    remove(path);
}

static bool *frozen_now(void)
{
    bool *out = LS_NEW(&arena, bool, scenario.model.params);
    for (size_t p = 0; p < scenario.model.params; p++)
        out[p] = !scenario.at_sharding[p];
    return out;
}

static const struct { const char *freeze, *written, *nothing; } migrations[] = {
    { "{freeze_vision_tower: true, freeze_audio_tower: true, freeze_embeddings: true}", "{vision: {tower: true, projector: false}, "
      "audio: {tower: true}, language_model: false}", "" },
    { "{freeze_vision_tower: true, freeze_video_embedder: true}", "{vision: {tower: true, projector: false}, audio: {tower: false}, "
      "language_model: false}", "freeze_video_embedder" },
    { "{freeze_vision_tower: false, freeze_language_model: true}", "{vision: {tower: false, projector: false}, audio: {tower: false}, "
      "modules: [language_model]}", "" },
};

Test(import, proposed_rules_freeze_the_same)
{
    for (size_t i = 0; i < sizeof migrations / sizeof *migrations; i++) {
        char *text = ls_arena_printf(&arena, "%sdistributed: {strategy: fsdp2}\nfreeze_config: %s\n", head, migrations[i].freeze);
        proposed = false;
        cr_assert_eq(import_text(text, 4), LS_OK, "%s", err.text);
        cr_expect_null(import.freeze);
        load_toy();
        bool *today = frozen_now();
        proposed = true;
        cr_assert_eq(import_text(text, 4), LS_OK, "%s", err.text);
        load_toy();
        cr_expect_eq(memcmp(today, frozen_now(), scenario.model.params), 0, "%s", import.text);
        cr_expect(scenario.policy.rules == LS_RULES_PROPOSED && scenario.freeze.proposed);
        cr_assert(import.freeze && import.freeze->differs_count == 0);
        cr_expect_str_eq(import.freeze->written, migrations[i].written);
        cr_expect_str_eq(import.freeze->nothing, migrations[i].nothing);
        cr_expect(strstr(import.text, "those that AutoModel's keys freeze: "), "%s", import.text);
    }
}

/* The Linears of the toy: patch, audio_tower, multi_modal_projector, 3 x (q_proj, up_proj, down_proj), lm_head. */
static const struct { const char *peft; size_t adapters; const char *target; } matchers[] = {
    { "{target_modules: ['*q_proj'], dim: 4}", 3, "language_model.layers.*.q_proj" },
    { "{target_modules: q_proj, dim: 4}", 3, "language_model.layers.*.q_proj" },
    { "{target_modules: ['language_model.layers.0.*'], dim: 4}", 3, "language_model.layers.0.q_proj" },
    { "{exclude_modules: ['*visual*', '*audio*', 'multi_modal_projector', '*lm_head*']}", 9, "language_model.layers.*.down_proj" },
    { "{match_all_linear: true}", 13, "lm_head" },
    { "{dim: 2}", 9, "language_model.layers.*.up_proj" }, /* *_proj unless told otherwise */
};

Test(import, adapters_go_where_the_matcher_puts_them)
{
    for (size_t i = 0; i < sizeof matchers / sizeof *matchers; i++) {
        teardown();
        setup();
        char *text = ls_arena_printf(&arena, "%sdistributed: {strategy: fsdp2}\npeft: %s\n", head, matchers[i].peft);
        cr_assert_eq(import_text(text, 4), LS_OK, "%s: %s", matchers[i].peft, err.text);
        load_toy();
        size_t adapters = 0;
        for (size_t k = 0; k < scenario.model.params; k++)
            adapters += scenario.model.param[k].adapter;
        cr_expect_eq(adapters, 2 * matchers[i].adapters, "%s: %zu adapter weights", matchers[i].peft, adapters);
        cr_expect(strstr(import.text, ls_arena_printf(&arena, "\"%s\"", matchers[i].target)), "%s:\n%s", matchers[i].peft, import.text);
    }
}

static const struct { const char *more, *text; uint64_t world; } wrong[] = {
    { "distributed: {pp_size: 4}", "'distributed.pp_size' is not modelled yet: 4: pipeline parallelism", 8 },
    { "distributed: {cp_size: 2}", "'distributed.cp_size' is not modelled yet: 2: context parallelism of ToyForConditionalGeneration", 8 },
    { "distributed: {cp_size: 2, ep_size: 2}", "'distributed.cp_size' is not modelled yet: 2: expert groups inside a context-parallel group", 8 },
    { "distributed: {cp_size: 2, ep_size: 4}", "'distributed.cp_size' is not modelled yet: 2: context parallelism beside expert parallelism: the order of "
      "calls of ToyForConditionalGeneration", 8 },
    { "distributed: {tp_size: 2, ep_size: 2}", "'distributed.tp_size' is not modelled yet: 2: tensor parallelism beside expert parallelism", 8 },
    { "distributed: {tp_size: 2}", "'distributed.tp_size' is not modelled yet: 2: gradient norms of tensor parallelism where 'visual' trains", 8 },
    { "distributed: {strategy: ddp, tp_size: 2}", "'distributed.tp_size' is not modelled yet: 2: DDP beside another parallelism, which AutoModel refuses", 8 },
    { "distributed: {strategy: megatron_fsdp}", "'distributed.strategy' is not modelled yet: megatron_fsdp: a strategy other than fsdp2 and ddp", 8 },
    { "distributed: {strategy: fsdp2}\nteacher_model: {}", "'teacher_model' is not modelled yet: a mapping: a second, frozen model beside the trained one", 8 },
    { "distributed: {dp_size: 2}", "'dp_size' 2 with cp x tp x pp = 1 is not the world size 8", 8 },
    { "distributed: {strategy: fsdp2}", "'global_batch_size' 32 is not a multiple of 'local_batch_size' 2 x 5 data-parallel ranks", 5 },
    { "distributed: {dp_replicate_size: 3}", "'dp_replicate_size' 3 does not divide 'dp_size' 8, or is not smaller", 8 },
    { "distributed: {strategy: fsdp2}\npeft: {target_modules: [a], exclude_modules: [b]}",
      "'target_modules', 'exclude_modules' and 'match_all_linear' exclude each other", 8 },
    { "distributed: {strategy: fsdp2}\npeft: {target_modules: [nothing]}", "'peft' matches no Linear of the model", 8 },
    { "distributed: {strategy: fsdp2}\nlockstep: 1", "this is a scenario of Lockstep, not a recipe", 8 },
    { "nothing: 1", "this is no AutoModel recipe: 'distributed' is missing", 8 },
};

Test(import, what_does_not_work_is_said)
{
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        teardown();
        setup();
        cr_expect_eq(import_text(ls_arena_printf(&arena, "%s%s\n", head, wrong[i].more), wrong[i].world), LS_EINPUT, "%s", wrong[i].more);
        cr_expect_str_eq(err.text, wrong[i].text, "%s: %s", wrong[i].more, err.text);
        cr_expect(err.input.line > 0 && !import.text);
    }
}

Test(import, a_hostile_recipe_cannot_write_yaml)
{
    char *text = ls_arena_printf(&arena, "%sdistributed:\n  strategy: fsdp2\n  \"evil\\n  dp_size: 3 #\": 1\n"
                                 "freeze_config: {freeze_vision_tower: \"true\\nunits: []\"}\n", head);
    enum ls_code rc = import_text(text, 8);
    cr_assert_eq(rc, LS_OK, "%s", err.text);
    cr_expect_null(strstr(import.text, "\nunits"));
    cr_expect_null(strstr(import.text, "\n  dp_size: 3"));
}
