/* The loader on good and bad files, the contracts of the proposed rules, variants. */
#include "scenario/raw.h"
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

static void setup(void)
{
    ls_arena_init(&arena, 0);
    names = ls_names_open();
    err = (struct ls_error){ 0 };
}

static void teardown(void)
{
    ls_names_close(names);
    ls_arena_release(&arena);
}

TestSuite(scenario, .init = setup, .fini = teardown);

/* Calls visit(path) for every .yaml file below the folder; returns how many there were. */
static size_t each_file(const char *folder, const char *skip, void (*visit)(const char *path))
{
    size_t count = 0;
    struct dirent **entry = NULL;
    int entries = scandir(folder, &entry, NULL, alphasort);
    for (int i = 0; i < entries; i++) {
        const char *name = entry[i]->d_name;
        size_t length = strlen(name);
        char path[1024];
        struct stat st;
        snprintf(path, sizeof path, "%s/%s", folder, name);
        if (name[0] != '.' && !(skip && strstr(skip, name)) && stat(path, &st) == 0) {
            if (S_ISDIR(st.st_mode)) {
                count += each_file(path, skip, visit);
            } else if (length > 5 && strcmp(name + length - 5, ".yaml") == 0) {
                count++;
                visit(path);
            }
        }
        free(entry[i]);
    }
    free(entry);
    return count;
}

static void expect_bad(const char *path)
{
    char want[2][600] = { "", "" }, have[600];
    FILE *f = fopen(path, "r");
    cr_assert(f && fgets(want[0], sizeof want[0], f) && fgets(want[1], sizeof want[1], f), "%s", path);
    fclose(f);
    for (int i = 0; i < 2; i++)
        want[i][strcspn(want[i], "\n")] = 0;
    teardown();
    setup();
    struct ls_scenario s;
    struct ls_compiled c;
    enum ls_code rc = ls_scenario_load(path, &arena, names, &s, &err);
    if (rc == LS_OK) /* some is wrong with the plan, not with the text */
        rc = ls_scenario_compile(&s, &LS_AS_WRITTEN, false, &c, &err);
    cr_assert_eq(rc, LS_EINPUT, "%s: loaded and compiled", path);
    snprintf(have, sizeof have, "# %zu:%zu: %s", err.input.line, err.input.column, err.text);
    cr_expect_str_eq(have, want[0], "%s:\n  have %s\n  want %s", path, have, want[0]);
    snprintf(have, sizeof have, "# %s", err.hint[0] ? err.hint : "no hint");
    cr_expect_str_eq(have, want[1], "%s:\n  have %s\n  want %s", path, have, want[1]);
    cr_expect(err.input.file && strcmp(err.input.file, path) == 0, "%s", path);
}

/* Each file starts with the error it must give, and its hint, as comments. */
Test(scenario, bad_files_say_what_is_wrong_and_where)
{
    size_t count = each_file(LS_SOURCE_DIR "/tests/data/scenario_bad", NULL, expect_bad);
    cr_assert_geq(count, 60, "%zu files", count);
}

static void expect_good(const char *path)
{
    struct ls_scenario s;
    struct ls_compiled c;
    teardown();
    setup();
    cr_assert_eq(ls_scenario_load(path, &arena, names, &s, &err), LS_OK, "%s:%zu:%zu: %s", path, err.input.line, err.input.column,
                 err.text);
    cr_assert_eq(ls_scenario_compile(&s, &LS_AS_WRITTEN, false, &c, &err), LS_OK, "%s: %s", path, err.text);
    if (s.kind != LS_PLAN_RAW && !c.refusal.rule) {
        cr_expect(c.system.replica->letters == c.letters.count && c.letters.count > 0, "%s", path);
        cr_expect((c.plan.units > 0) != s.ddp.present && c.system.driver.nodes > 0, "%s", path);
    }
    ls_compiled_release(&c);
}

Test(scenario, good_files_load_and_compile)
{
    cr_expect_geq(each_file(LS_SOURCE_DIR "/tests/data/scenario_good", NULL, expect_good), 4);
    cr_expect_geq(each_file(LS_SOURCE_DIR "/tests/oracle/fsdp2", NULL, expect_good), 60);
    each_file(LS_SOURCE_DIR "/scenarios", "models platforms", expect_good);
}

static const char automodel[] = LS_SOURCE_DIR "/tests/data/scenario_good/automodel.yaml";
static const char policy[] = LS_SOURCE_DIR "/tests/data/scenario_good/policy.yaml";
static const char units[] = LS_SOURCE_DIR "/tests/data/scenario_good/units.yaml";

Test(scenario, automodels_keys_are_listed)
{
    struct ls_scenario s;
    cr_assert_eq(ls_scenario_load(automodel, &arena, names, &s, &err), LS_OK, "%s", err.text);
    size_t seen[3] = { 0 };
    bool embeddings = false;
    for (size_t i = 0; i < s.notes; i++) {
        seen[s.note[i].effect]++;
        cr_expect(s.note[i].at.line > 0);
        if (strcmp(s.note[i].key, "freeze_config.freeze_embeddings") == 0)
            embeddings = s.note[i].effect == LS_KEY_NO_EFFECT && s.note[i].at.line == 6;
    }
    cr_expect(embeddings);
    cr_expect_gt(seen[LS_KEY_HONOURED], 15);
    cr_expect_gt(seen[LS_KEY_NO_EFFECT], 5);
    cr_expect_eq(seen[LS_KEY_REFUSED], 0);
    cr_expect(s.policy.rules == LS_RULES_AUTOMODEL && s.policy.prefetch && s.policy.prefetch_backward == 1);
    cr_expect(s.policy.param_dtype == LS_DTYPE_BF16 && s.policy.reduce_dtype == LS_DTYPE_F32 && s.policy.output_dtype == LS_DTYPE_NONE);
    cr_expect(s.policy.activation_checkpointing && s.policy.frozen == LS_FROZEN_PER_LAYER);
    cr_expect(s.batch.gradient_sync.count == 0, "false leaves the default: every microbatch");
}

Test(scenario, keys_of_one_section_are_distinct)
{
    size_t count = 0;
    const struct ls_key_row *row = ls_key_rows(&count);
    for (size_t i = 0; i < count; i++) {
        cr_expect_eq(ls_key_find(row[i].section, row[i].key), &row[i], "%s.%s stands twice", row[i].section, row[i].key);
        cr_expect(row[i].why[0] || (row[i].proposed == LS_KEY_HONOURED && row[i].automodel == LS_KEY_HONOURED), "%s.%s has no reason",
                  row[i].section, row[i].key);
    }
}

Test(scenario, every_value_arrives)
{
    struct ls_scenario s;
    cr_assert_eq(ls_scenario_load(policy, &arena, names, &s, &err), LS_OK, "%s", err.text);
    cr_expect(s.kind == LS_PLAN_POLICY && s.mesh.replicate == 2 && s.mesh.shard == 2);
    cr_expect(s.level == LS_L3 && s.kernels == 3 && s.start == LS_START_ISSUE_ORDER);
    cr_expect(s.runtime.version == 212 && s.runtime.lazy_state_guard && s.runtime.uniform_reduce_dtype);
    cr_expect(s.batch.microbatches == 3 && s.batch.steps == 0 && s.batch.samples == 3 && s.batch.rounds == 5);
    cr_expect(s.batch.sample[2].videos == 2 && s.batch.sample[2].audios == 1);
    cr_expect(s.batch.gradient_sync.count == 3 && !s.batch.gradient_sync.at[1] && s.batch.gradient_sync.at[2]);
    cr_expect(s.batch.all_reduce.at[0] && !s.batch.all_reduce.at[1]);
    cr_expect(s.batch.dummies == 2 && s.batch.dummy[0].roles == 2 && s.batch.dummy[1].roles == 1);
    cr_expect(s.step.clip_grad_norm && s.step.metrics == 1 && s.step.validate_rank_uniform == 3);
    cr_expect(s.policy.modalities == 2 && s.policy.modality[0].dummy == LS_DUMMY_TRUE);
    cr_assert_eq(ls_scenario_load(units, &arena, names, &s, &err), LS_OK, "%s", err.text);
    cr_expect_str_eq(s.name, "units");
    cr_expect(s.kind == LS_PLAN_UNITS && s.units == 3 && s.entries == 1 && s.mesh.shard == LS_SIZE_ANY && !s.runtime.lazy_state_guard);
    cr_expect(s.unit[1].reshard == LS_RESHARD_DEFAULT && s.unit[2].reshard == LS_RESHARD_FALSE && s.unit[2].ignoreds == 1);
    cr_expect(s.batch.gradient_sync.count == 2 && !s.batch.gradient_sync.at[0] && s.batch.gradient_sync.at[1]);
    cr_expect(s.freeze.peft_base && s.expect.ranks == 2 && s.expect.verdict == LS_MISMATCH);
    cr_expect_str_eq(s.expect.op, "all_gather");
}

/* A policy plan with some lines of its own. */
static const char *load_text(const char *freeze, const char *distributed, const char *batch, struct ls_scenario *s)
{
    const char *text = ls_arena_printf(&arena, "lockstep: 1\nmodel: {inventory: ../toy_vlm.yaml}\nfreeze_config: {%s}\ndistributed: {%s}\n"
                                 "batch: {microbatches: 1, %s}\n", freeze, distributed, batch);
    cr_assert_eq(ls_scenario_read(text, strlen(text), LS_SOURCE_DIR "/tests/data/scenario_good/inline.yaml", &arena, names, s, &err),
                 LS_OK, "%s: %s (%s)", text, err.text, err.hint);
    return text;
}

/* The text from a position on. */
static const char *text_at(const char *text, struct ls_loc at)
{
    for (size_t line = 1; line < at.line && strchr(text, '\n'); line++)
        text = strchr(text, '\n') + 1;
    return text + (at.column ? at.column - 1 : 0);
}

/* A document with one key of the list, and a value that none of them takes for absent. */
static const char *with_key(const struct ls_key_row *row, bool today)
{
    const char *section = row->section, *rules = today ? "automodel" : "proposed";
    const char *head = "lockstep: 1\nmodel: {inventory: ../toy_vlm.yaml}\n", *tail = "batch: {microbatches: 1, samples: [{text: 8}], execution: any}\n";
    if (strcmp(section, "freeze_config") == 0)
        return ls_arena_printf(&arena, "%sfreeze_config: {%s: true}\ndistributed: {dp_size: 2, rules: %s}\n%s", head, row->key, rules, tail);
    if (strcmp(section, "model.backend") == 0)
        return ls_arena_printf(&arena, "lockstep: 1\nmodel: {inventory: ../toy_vlm.yaml, backend: {%s: true}}\ndistributed: {dp_size: 2, rules: %s}\n%s",
                               row->key, rules, tail);
    const char *open = "", *close = "";
    if (strcmp(section, "distributed.moe") == 0)
        open = "moe: {", close = "}";
    else if (strcmp(section, "distributed.mp_policy") == 0)
        open = "mp_policy: {", close = "}";
    else if (strcmp(section, "distributed.ddp") == 0)
        open = "strategy: ddp, ddp: {", close = "}";
    else if (strcmp(section, "distributed.multimodal") == 0)
        open = "multimodal: {", close = "}";
    else if (strcmp(section, "distributed.multimodal.MODALITY") == 0)
        open = "multimodal: {vision: {", close = "}}";
    else if (strcmp(section, "distributed.multimodal.MODALITY.frame_sharding") == 0)
        open = "multimodal: {vision: {frame_sharding: {", close = "}}}";
    else
        cr_assert_str_eq(section, "distributed", "a section that this test does not know");
    return ls_arena_printf(&arena, "%sdistributed: {dp_size: 2, rules: %s, %s%s: true%s}\n%s", head, rules, open, row->key, close, tail);
}

/* What AutoModel ignores, or is not modelled, is refused with position and advice; what has no effect is accepted and listed. */
Test(scenario, every_key_of_the_list_is_refused_or_listed_as_it_says)
{
    size_t rows, refused = 0, listed = 0;
    const struct ls_key_row *row = ls_key_rows(&rows);
    for (size_t i = 0; i < rows; i++)
        for (int today = 0; today < 2; today++) {
            enum ls_key_effect effect = today ? row[i].automodel : row[i].proposed;
            struct ls_scenario s;
            if (effect == LS_KEY_HONOURED)
                continue;
            teardown();
            setup();
            const char *text = with_key(&row[i], today);
            enum ls_code rc = ls_scenario_read(text, strlen(text), LS_SOURCE_DIR "/tests/data/scenario_good/inline.yaml", &arena, names, &s, &err);
            if (effect == LS_KEY_REFUSED) {
                refused++;
                cr_expect_eq(rc, LS_EINPUT, "%s", text);
                cr_expect(strncmp(text_at(text, err.input), row[i].key, strlen(row[i].key)) == 0, "%s: %s at '%.20s'", row[i].key, err.text,
                          text_at(text, err.input));
                cr_expect(strstr(err.text, "is refused: ") && err.hint[0], "%s: %s (%s)", row[i].key, err.text, err.hint);
                continue;
            }
            listed++;
            cr_expect_eq(rc, LS_OK, "%s: %s", text, err.text);
            bool found = false;
            for (size_t n = 0; rc == LS_OK && n < s.notes; n++) {
                const char *leaf = strrchr(s.note[n].key, '.') + 1;
                found = found || (strcmp(leaf, row[i].key) == 0 && s.note[n].effect == LS_KEY_NO_EFFECT && s.note[n].why[0]);
            }
            cr_expect(found, "%s is not listed", row[i].key);
        }
    cr_expect(refused >= 12 && listed >= 30, "%zu refused, %zu without effect", refused, listed);
}

#define ALL_FROZEN "vision: {tower: true, projector: true}, audio: {tower: true}"
#define PROJECTOR "vision: {tower: true, projector: false}, audio: {tower: true}"
#define NO_AUDIO "audio: {tower: true}, vision: {tower: false, projector: false}"
#define MIXED "samples: [{text: 8}, {images: 1}], execution: any"
#define DUMMY ", dummy_forward: {vision: [tower, projector]}"

static const struct { const char *freeze, *distributed, *batch, *rule, *at; int dummy; } contracts[] = {
    /* Frozen modules in the root need nothing; per layer they need uniform execution. */
    { ALL_FROZEN, "dp_size: 2", MIXED, NULL, NULL, -1 },
    { ALL_FROZEN, "dp_size: 2, multimodal: {frozen_sharding: per_layer}", MIXED, "per_layer_needs_uniform_execution", "per_layer", -1 },
    { ALL_FROZEN, "dp_size: 2, multimodal: {frozen_sharding: replicate}", MIXED, NULL, NULL, -1 },
    { ALL_FROZEN, "dp_size: 2, multimodal: {vision: {frozen_sharding: per_layer}}", MIXED, "per_layer_needs_uniform_execution", "per_layer", -1 },
    { ALL_FROZEN, "dp_size: 2, multimodal: {frozen_sharding: per_layer, vision: {frozen_sharding: root}}", MIXED, NULL, NULL, -1 },
    { ALL_FROZEN, "dp_size: any, multimodal: {frozen_sharding: per_layer}", MIXED, "per_layer_needs_uniform_execution", "per_layer", -1 },
    { ALL_FROZEN, "dp_size: 1, multimodal: {frozen_sharding: per_layer}", MIXED, NULL, NULL, -1 },
    { ALL_FROZEN, "dp_size: 2, multimodal: {frozen_sharding: per_layer}", "samples: [{text: 8}, {images: 1}], execution: rank_uniform", NULL, NULL, -1 },
    { ALL_FROZEN, "dp_size: 2, multimodal: {frozen_sharding: per_layer}", "samples: [{images: 1}, {text: 8, images: 1}], execution: any",
      NULL, NULL, -1 },
    { ALL_FROZEN, "dp_size: 2, multimodal: {frozen_sharding: per_layer}", "samples: [{images: 1}, {videos: 1}], execution: any", NULL, NULL, -1 }, /* the same calls, by another name */
    { ALL_FROZEN, "dp_size: 2, multimodal: {frozen_sharding: per_layer}", "samples: [{images: 1}, {images: 2}], execution: any",
      "per_layer_needs_uniform_execution", "per_layer", -1 },
    { ALL_FROZEN, "dp_size: 2, multimodal: {frozen_sharding: per_layer}", "samples: [{text: 8}, {images: 1}], execution: at_least_one",
      "per_layer_needs_uniform_execution", "per_layer", -1 },
    { ALL_FROZEN, "dp_size: 2, multimodal: {frozen_sharding: per_layer}",
      "samples: [{text: 8}, {images: 1}, {audios: 1}], execution: {uniform: [vision]}", NULL, NULL, -1 },
    { ALL_FROZEN, "dp_size: 2, multimodal: {frozen_sharding: per_layer}",
      "samples: [{text: 8}, {images: 1}, {audios: 1}], execution: {uniform: [audio]}", "per_layer_needs_uniform_execution", "per_layer", -1 },
    { ALL_FROZEN, "dp_size: 2, multimodal: {frozen_sharding: per_layer}", "samples: [{text: 8}, {images: 1}], execution: {table: [[1, 1]]}",
      NULL, NULL, -1 },
    { ALL_FROZEN, "dp_size: 2, multimodal: {frozen_sharding: per_layer}", "samples: [{text: 8}, {images: 1}], execution: {table: [[0, 1]]}",
      "per_layer_needs_uniform_execution", "per_layer", -1 },
    /* Nodes share their all-gathers inside only ... */
    { ALL_FROZEN, "dp_size: 4, dp_replicate_size: 2, multimodal: {frozen_sharding: per_layer}",
      "samples: [{text: 8}, {images: 1}], execution: node_uniform", NULL, NULL, -1 },
    { ALL_FROZEN, "dp_size: 4, dp_replicate_size: 2, multimodal: {frozen_sharding: per_layer}",
      "samples: [{text: 8}, {images: 1}], execution: {table: [[0, 0, 1, 1]]}", NULL, NULL, -1 },
    { ALL_FROZEN, "dp_size: 4, dp_replicate_size: 2, multimodal: {frozen_sharding: per_layer}",
      "samples: [{text: 8}, {images: 1}], execution: {table: [[0, 1, 0, 1]]}", "per_layer_needs_uniform_execution", "per_layer", -1 },
    /* ... but gradients are reduced across nodes. */
    { PROJECTOR, "dp_size: 4, dp_replicate_size: 2", "samples: [{text: 8}, {images: 1}], execution: node_uniform",
      "trainable_conditional_needs_dummy", "node_uniform", -1 },
    { PROJECTOR, "dp_size: 4, dp_replicate_size: 2", "samples: [{text: 8}, {images: 1}], execution: {table: [[0, 0, 1, 1]]}",
      "trainable_conditional_needs_dummy", "table: ", -1 },
    /* Trainable and conditional. */
    { PROJECTOR, "dp_size: 2", MIXED, "trainable_conditional_needs_dummy", "any", -1 },
    { PROJECTOR, "dp_size: 2", "samples: [{text: 8}, {images: 1}], execution: rank_uniform", NULL, NULL, -1 },
    { PROJECTOR, "dp_size: 2, multimodal: {vision: {run_dummy_forward: true}}", MIXED, "dummy_missing", "true", -1 },
    { PROJECTOR, "dp_size: 2, multimodal: {vision: {run_dummy_forward: false}}", MIXED DUMMY, "trainable_conditional_needs_dummy", "false", -1 },
    { PROJECTOR, "dp_size: 2", MIXED DUMMY, NULL, NULL, 1 },
    { PROJECTOR, "dp_size: 2", MIXED ", dummy_forward: {vision: [tower]}", "partial_dummy", "vision: [", -1 },
    { PROJECTOR, "dp_size: 2", MIXED ", dummy_forward: {vision: [projector]}", NULL, NULL, 1 },
    { PROJECTOR, "dp_size: 2", MIXED ", dummy_forward: {vision: {covers: [tower, projector], linked: false}}", "dummy_not_linked", "vision: {covers", -1 },
    { NO_AUDIO, "dp_size: 2", MIXED ", dummy_forward: {vision: [projector]}", "partial_dummy", "vision: [", -1 },
    /* A dummy stands in for none, not for one of two: with units of its own the tower is gathered once more. */
    { NO_AUDIO, "dp_size: 2", "samples: [{images: 1}, {images: 2}], execution: any" DUMMY, "unequal_calls", "any", -1 },
    { NO_AUDIO, "dp_size: 2", "samples: [{images: 1}, {images: 2}], execution: any", "unequal_calls", "any", -1 },
    { NO_AUDIO, "dp_size: 2", "samples: [{text: 8}, {images: 2}], execution: any" DUMMY, "unequal_calls", "any", -1 },
    { PROJECTOR, "dp_size: 2", "samples: [{images: 1}, {images: 2}], execution: any", NULL, NULL, -1 }, /* the root reduces its gradient */
    { PROJECTOR, "dp_size: 2", "samples: [{text: 8}, {images: 2}], execution: any", "trainable_conditional_needs_dummy", "any", -1 },
    /* The check belongs where every rank passes. */
    { ALL_FROZEN, "dp_size: 2, multimodal: {validate_rank_uniform_execution: {microbatches: 2, where: tower}}", MIXED, "check_inside_tower", "tower", -1 },
    { ALL_FROZEN, "dp_size: 2, multimodal: {validate_rank_uniform_execution: {microbatches: 2, where: boundary}}", MIXED, NULL, NULL, -1 },
    /* A dummy runs where it is needed and nowhere else. */
    { ALL_FROZEN, "dp_size: 2", MIXED DUMMY, NULL, NULL, 0 },
    { ALL_FROZEN, "dp_size: 2, multimodal: {vision: {run_dummy_forward: true}}", MIXED DUMMY, NULL, NULL, 1 },
    { ALL_FROZEN, "dp_size: 2, multimodal: {frozen_sharding: per_layer}", MIXED DUMMY, NULL, NULL, 1 },
    { ALL_FROZEN, "dp_size: 2, multimodal: {frozen_sharding: per_layer}", MIXED ", dummy_forward: {vision: [projector]}",
      "per_layer_needs_uniform_execution", "per_layer", -1 },
    { PROJECTOR, "dp_size: 2", "samples: [{text: 8}, {images: 1}], execution: rank_uniform" DUMMY, NULL, NULL, 0 },
    /* A check of the first microbatches is a diagnosis and makes nothing safe. */
    { ALL_FROZEN, "dp_size: 2, multimodal: {frozen_sharding: per_layer, validate_rank_uniform_execution: 4}", MIXED,
      "per_layer_needs_uniform_execution", "per_layer", -1 },
};

Test(scenario, proposed_rules_refuse_at_set_up)
{
    for (size_t i = 0; i < sizeof contracts / sizeof *contracts; i++) {
        struct ls_scenario s;
        struct ls_compiled c;
        teardown();
        setup();
        const char *text = load_text(contracts[i].freeze, contracts[i].distributed, contracts[i].batch, &s);
        cr_assert_eq(ls_scenario_compile(&s, &LS_AS_WRITTEN, false, &c, &err), LS_OK, "case %zu: %s", i, err.text);
        const char *have = c.refusal.rule ? c.refusal.rule : "none", *want = contracts[i].rule ? contracts[i].rule : "none";
        cr_expect_str_eq(have, want, "case %zu (%s; %s): %s, not %s (%s)", i, contracts[i].distributed, contracts[i].batch, have, want,
                         c.refusal.text ? c.refusal.text : "");
        if (contracts[i].rule && c.refusal.rule)
            cr_expect(strncmp(text_at(text, c.refusal.at), contracts[i].at, strlen(contracts[i].at)) == 0, "case %zu: at '%.20s'", i,
                      text_at(text, c.refusal.at));
        if (contracts[i].dummy >= 0)
            cr_expect_eq(c.batch.dummy[0].active, contracts[i].dummy == 1, "case %zu", i);
        ls_compiled_release(&c);
        /* Forced, every plan is compiled all the same. */
        cr_assert_eq(ls_scenario_compile(&s, &LS_AS_WRITTEN, true, &c, &err), LS_OK, "case %zu: %s", i, err.text);
        cr_expect(!c.refusal.rule && c.system.replica, "case %zu", i);
        ls_compiled_release(&c);
    }
}

Test(scenario, todays_rules_refuse_nothing_of_that)
{
    struct ls_scenario s;
    struct ls_compiled c;
    load_text("freeze_vision_tower: true", "dp_size: 2, rules: automodel, multimodal: {frozen_sharding: per_layer}", MIXED, &s);
    cr_assert_eq(ls_scenario_compile(&s, &LS_AS_WRITTEN, false, &c, &err), LS_OK, "%s", err.text);
    cr_expect_null(c.refusal.rule);
    ls_compiled_release(&c);
}

Test(scenario, variants)
{
    struct ls_scenario s;
    struct ls_compiled a, b;
    load_text(ALL_FROZEN, "dp_size: 2, multimodal: {frozen_sharding: per_layer}", MIXED, &s);
    struct ls_variant v = LS_AS_WRITTEN;
    v.frozen_sharding = LS_FROZEN_ROOT;
    cr_assert_eq(ls_scenario_compile(&s, &v, false, &a, &err), LS_OK, "%s", err.text);
    cr_expect_null(a.refusal.rule);
    cr_assert_eq(ls_scenario_compile(&s, &LS_AS_WRITTEN, true, &b, &err), LS_OK, "%s", err.text);
    cr_expect_eq(a.plan.units + 2, b.plan.units, "two blocks of the tower");
    ls_compiled_release(&a);
    ls_compiled_release(&b);
    v = LS_AS_WRITTEN;
    v.execution = LS_EXEC_RANK_UNIFORM;
    cr_assert_eq(ls_scenario_compile(&s, &v, false, &a, &err), LS_OK);
    cr_expect_null(a.refusal.rule);
    cr_expect_str_eq(a.system.contract.name, "rank_uniform");
    ls_compiled_release(&a);
    v = LS_AS_WRITTEN;
    v.run_dummy_forward = 1; /* the model has none: this asks what one would do */
    cr_assert_eq(ls_scenario_compile(&s, &v, false, &a, &err), LS_OK);
    cr_expect_null(a.refusal.rule);
    cr_expect_eq(a.letters.count, 2);
    cr_expect_str_eq(ls_name_text(names, a.letters.letter[0].name), "text only + vision dummy + audio dummy");
    ls_compiled_release(&a);
    v = LS_AS_WRITTEN;
    v.execution = LS_EXEC_MODALITY_UNIFORM;
    cr_assert_eq(ls_scenario_compile(&s, &v, false, &a, &err), LS_OK);
    cr_expect_null(a.refusal.rule);
    ls_compiled_release(&a);
    v.execution = LS_EXEC_TABLE;
    cr_expect_eq(ls_scenario_compile(&s, &v, false, &a, &err), LS_EINPUT);
    cr_assert_eq(ls_scenario_load(units, &arena, names, &s, &err), LS_OK);
    v = LS_AS_WRITTEN;
    v.frozen_sharding = LS_FROZEN_ROOT;
    cr_expect_eq(ls_scenario_compile(&s, &v, false, &a, &err), LS_EINPUT);
    v = LS_AS_WRITTEN;
    v.unused_params = LS_UNUSED_FALLBACK;
    cr_assert_eq(ls_scenario_compile(&s, &v, false, &a, &err), LS_OK, "%s", err.text);
    cr_expect(a.plan.unit[0].unused_params == LS_UNUSED_FALLBACK, "units too");
    ls_compiled_release(&a);
    ls_compiled_release(&a); /* twice is harmless */
}

Test(scenario, inventories_are_found_in_the_scenarios_folder)
{
    static const char text[] = "lockstep: 1\nmodel: {inventory: models/qwen3_vl_4b.yaml}\ndistributed: {dp_size: 2}\n"
                               "batch: {microbatches: 1, samples: [{text: 8}], execution: any}\n";
    static const char *const from[] = { "/scenarios/a.yaml", "/scenarios/topic/deep/a.yaml", "/a.yaml", "/tests/a.yaml" };
    for (size_t i = 0; i < 4; i++) {
        struct ls_scenario s;
        char *path = ls_arena_printf(&arena, "%s%s", LS_SOURCE_DIR, from[i]);
        cr_expect_eq(ls_scenario_read(text, strlen(text), path, &arena, names, &s, &err), LS_OK, "%s: %s", path, err.text);
    }
    struct ls_scenario s;
    cr_assert_eq(chdir("/"), 0); /* `scenarios/` here is looked into as well */
    cr_expect_eq(ls_scenario_read(text, strlen(text), "/nowhere/a.yaml", &arena, names, &s, &err), LS_EINPUT);
}

/* One letter per assignment of the branches; the job of a letter is the job of its choices. */
Test(scenario, raw_programs_are_systems)
{
    struct ls_scenario s;
    struct ls_compiled c;
    cr_assert_eq(ls_scenario_load(LS_SOURCE_DIR "/tests/data/scenario_good/program.yaml", &arena, names, &s, &err), LS_OK, "%s", err.text);
    cr_assert_eq(ls_scenario_compile(&s, &LS_AS_WRITTEN, false, &c, &err), LS_OK, "%s", err.text);
    cr_assert(c.system.replica->roles == 2 && c.system.replica->letters == 8 && c.system.free_dims == 0);
    struct ls_tables tables;
    struct ls_raw raw;
    ls_tables_init(&tables, &arena);
    cr_assert_eq(ls_raw_load(ls_yaml_get(s.document, "program"), &tables, &raw, &err), LS_OK);
    bool choice[4] = { false };
    for (uint32_t letter = 0; letter < 8; letter++) {
        struct ls_job want, have;
        ls_raw_job(&raw, choice, &arena, &want);
        struct ls_assignment a = { .size = { 1, 1 }, .rounds = 1, .node = &(uint32_t){ 0 }, .letter = &letter };
        cr_assert_eq(ls_system_job(&c.system, &a, &arena, &have, &err), LS_OK);
        for (size_t r = 0; r < 2; r++)
            cr_expect(have.rank[r].count == 1 && have.rank[r].segment[0]->hash == want.rank[r].segment[0]->hash, "letter %u rank %zu",
                      letter, r);
        for (size_t k = 0; k < tables.comm.count; k++)
            for (size_t r = 0; r < 2; r++)
                cr_expect(have.comm[k].group[r] == want.comm[k].group[r] && have.comm[k].member[r] == want.comm[k].member[r]);
        ls_raw_next(&raw, choice);
    }
    cr_expect_str_eq(c.system.replica->letter_name(c.system.replica, 0), "no branch");
    cr_expect_str_eq(c.system.replica->letter_name(c.system.replica, 7), "x on ranks 0, 1; y");
    struct ls_variant v = LS_AS_WRITTEN;
    v.execution = LS_EXEC_RANK_UNIFORM;
    struct ls_compiled other;
    cr_expect_eq(ls_scenario_compile(&s, &v, false, &other, &err), LS_EINPUT);
    ls_tables_release(&tables);
    ls_compiled_release(&c);
}
