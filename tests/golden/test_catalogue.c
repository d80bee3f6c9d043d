/* Every scenario below scenarios/: it says what it asks and what to expect, the verdict is as expected, its witness is a scenario
 * that fails alike, nothing smaller than a witness called smallest fails, and each repair that is offered holds. */
#include "advise/advise.h"
#include "brute.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SHARDS = 4, LEAST = 250 };
typedef LS_VEC(char *) path_vec;

static bool is_data(const char *name)
{
    return name[0] == '.' || strcmp(name, "models") == 0 || strcmp(name, "platforms") == 0;
}

static void find_files(const char *folder, path_vec *out)
{
    struct dirent **entry;
    int n = scandir(folder, &entry, NULL, alphasort);
    cr_assert(n >= 0, "%s", folder);
    for (int i = 0; i < n; i++) {
        struct ls_str path = { 0 };
        size_t length = strlen(entry[i]->d_name);
        ls_str_printf(&path, "%s/%s", folder, entry[i]->d_name);
        if (is_data(entry[i]->d_name)) {
        } else if (entry[i]->d_type == DT_DIR) {
            find_files(ls_str_text(&path), out);
        } else if (length > 5 && strcmp(entry[i]->d_name + length - 5, ".yaml") == 0) {
            char *copy = strdup(ls_str_text(&path));
            ls_push(out, copy);
        }
        ls_str_release(&path);
        free(entry[i]);
    }
    free(entry);
}

static void release_files(path_vec *files)
{
    for (size_t i = 0; i < files->count; i++)
        free(files->at[i]);
    ls_vec_release(files);
}

static struct ls_assess_options as_written(void)
{
    struct ls_assess_options o = { .variant = LS_AS_WRITTEN };
    o.check.gradients = o.check.races = true;
    return o;
}

static bool has_witness(enum ls_verdict v)
{
    return v != LS_SAFE && v != LS_SETUP_ERROR && v != LS_UNDECIDED;
}

/* What the machine alone finds; gradients and races are judged beside it. */
static bool of_machine(enum ls_verdict v)
{
    return v == LS_HANG || v == LS_MISMATCH || v == LS_MISPAIRING || v == LS_ERROR;
}

static void check_witness(const char *path, const struct ls_scenario *s, const struct ls_assessment *a)
{
    struct ls_arena arena;
    struct ls_names *names = ls_names_open();
    struct ls_error err = { 0 };
    struct ls_scenario again;
    struct ls_assessment b;
    struct ls_str text = { 0 }, why = { 0 };
    struct ls_assess_options o = as_written();
    ls_arena_init(&arena, 0);
    cr_assert(a->check.witness, "%s: no witness", path);
    cr_assert_eq(ls_witness_scenario(s, a, &arena, &text, &err), LS_OK, "%s: %s", path, err.text);
    cr_assert_eq(ls_scenario_read(ls_str_text(&text), text.length, path, &arena, names, &again, &err), LS_OK, "%s: %s\n%s", path,
                 err.text, ls_str_text(&text));
    cr_assert_eq(ls_assess(&again, &o, &arena, &b, &err), LS_OK, "%s: %s", path, err.text);
    cr_expect(ls_as_expected(&again, &b, &why), "%s: its witness: %s\n%s", path, ls_str_text(&why), ls_str_text(&text));
    cr_expect_eq(b.verdict, a->verdict, "%s: its witness is %s", path, ls_verdict_name(b.verdict));
    ls_assessment_release(&b);
    ls_str_release(&text);
    ls_str_release(&why);
    ls_names_close(names);
    ls_arena_release(&arena);
}

static void check_smallest(const char *path, const struct ls_assessment *a)
{
    const struct ls_assignment *w = &a->check.witness->assignment;
    struct ls_brute_options o = { .replicas_max = w->size[0] * w->size[1], .rounds_max = w->rounds, .runs_max = 500, .total_max = 500,
                                  .seed = 1, .below_replicas = w->size[0] * w->size[1], .below_rounds = w->rounds };
    struct ls_brute found = { 0 };
    struct ls_arena arena;
    ls_arena_init(&arena, 0);
    ls_brute_force(&a->compiled.system, &o, &arena, &found);
    cr_expect(!found.failed, "%s: a run of %zu x %zu replicas and %zu rounds fails, too", path, found.worst.size[0], found.worst.size[1],
              found.worst.rounds);
    ls_arena_release(&arena);
}

/* The repaired plan is executed on small meshes, without the proof that found it safe. */
static void check_repair(const char *path, const struct ls_scenario *s, const struct ls_repair *repair)
{
    struct ls_brute_options o = { .replicas_max = 4, .rounds_max = 8, .runs_max = 8, .total_max = 24, .seed = 2 };
    struct ls_brute found = { 0 };
    struct ls_compiled compiled;
    struct ls_error err = { 0 };
    struct ls_arena arena;
    ls_arena_init(&arena, 0);
    cr_assert_eq(ls_scenario_compile(s, &repair->variant, false, &compiled, &err), LS_OK, "%s: %s: %s", path, repair->change, err.text);
    cr_expect_null(compiled.refusal.rule, "%s: %s is refused", path, repair->change);
    cr_expect_eq(repair->verdict, LS_SAFE, "%s: %s is %s", path, repair->change, ls_verdict_name(repair->verdict));
    if (compiled.system.contract.extra == LS_CONTRACT_TABLE) { /* of which there is one run: it was executed */
        cr_expect(!repair->proved, "%s: %s", path, repair->change);
    } else {
        ls_brute_force(&compiled.system, &o, &arena, &found);
        cr_expect(found.runs > 0, "%s: %s: nothing was run", path, repair->change);
        cr_expect(!found.failed, "%s: %s fails with %zu x %zu replicas and %zu rounds", path, repair->change, found.worst.size[0],
                  found.worst.size[1], found.worst.rounds);
    }
    ls_compiled_release(&compiled);
    ls_arena_release(&arena);
}

enum { WITNESS_LINES = 25 };

/* What a person reads: printed whole for every kind of violation, and short. */
static void check_text(const char *path, const struct ls_scenario *s, const struct ls_assessment *a)
{
    struct ls_str text = { 0 };
    size_t lines = 0;
    ls_assessment_print(s, a, "replay", "", "", &text);
    for (const char *p = ls_str_text(&text); *p; p++)
        lines += *p == '\n';
    cr_expect_eq(strncmp(ls_str_text(&text), s->name, strlen(s->name)), 0, "%s: %s", path, ls_str_text(&text));
    cr_expect(lines <= WITNESS_LINES || a->verdict == LS_SAFE, "%s: %zu lines\n%s", path, lines, ls_str_text(&text));
    ls_str_clear(&text);
    ls_assessment_line(s, a, &text);
    cr_expect(text.length > 0 && !strchr(ls_str_text(&text), '\n'), "%s: '%s'", path, ls_str_text(&text));
    ls_str_release(&text);
}

static void check_file(const char *path)
{
    struct ls_arena arena;
    struct ls_names *names = ls_names_open();
    struct ls_error err = { 0 };
    struct ls_scenario s;
    struct ls_assessment a;
    struct ls_str why = { 0 };
    struct ls_assess_options o = as_written();
    o.repairs = true;
    ls_arena_init(&arena, 0);
    cr_assert_eq(ls_scenario_load(path, &arena, names, &s, &err), LS_OK, "%s: %s", path, err.text);
    cr_assert_eq(ls_assess(&s, &o, &arena, &a, &err), LS_OK, "%s: %s", path, err.text);
    cr_expect(ls_as_expected(&s, &a, &why), "%s: %s", path, ls_str_text(&why));
    check_text(path, &s, &a);
    if (has_witness(a.verdict))
        check_witness(path, &s, &a);
    if (of_machine(a.verdict) && a.check.witness->minimal)
        check_smallest(path, &a);
    for (size_t i = 0; i < a.repairs; i++)
        check_repair(path, &s, &a.repair[i]);
    ls_assessment_release(&a);
    ls_str_release(&why);
    ls_names_close(names);
    ls_arena_release(&arena);
}

static void check_shard(size_t shard)
{
    path_vec files = { 0 };
    find_files(LS_SOURCE_DIR "/scenarios", &files);
    for (size_t i = shard; i < files.count; i += SHARDS)
        check_file(files.at[i]);
    release_files(&files);
}

/* Four programs' worth of work, so that they can run side by side. */
Test(catalogue, first_quarter) { check_shard(0); }
Test(catalogue, second_quarter) { check_shard(1); }
Test(catalogue, third_quarter) { check_shard(2); }
Test(catalogue, fourth_quarter) { check_shard(3); }

/* A policy tried instead of the one written fails in its witness, too. */
Test(catalogue, witness_of_another_policy)
{
    static const char *const file[] = { "mixed-media/root.yaml", "mixed-media/ministral3-projector-frozen.yaml", "training/qwen3-vl.yaml" };
    for (size_t i = 0; i < sizeof file / sizeof *file; i++) {
        struct ls_arena arena;
        struct ls_names *names = ls_names_open();
        struct ls_error err = { 0 };
        struct ls_scenario s;
        struct ls_assessment a;
        struct ls_str path = { 0 };
        struct ls_assess_options o = as_written();
        ls_arena_init(&arena, 0);
        ls_str_printf(&path, "%s/scenarios/%s", LS_SOURCE_DIR, file[i]);
        o.variant.frozen_sharding = LS_FROZEN_PER_LAYER;
        cr_assert_eq(ls_scenario_load(ls_str_text(&path), &arena, names, &s, &err), LS_OK, "%s: %s", file[i], err.text);
        cr_assert_eq(ls_assess(&s, &o, &arena, &a, &err), LS_OK, "%s: %s", file[i], err.text);
        cr_assert_eq(a.verdict, LS_MISMATCH, "%s", file[i]);
        check_witness(ls_str_text(&path), &s, &a);
        ls_assessment_release(&a);
        ls_str_release(&path);
        ls_names_close(names);
        ls_arena_release(&arena);
    }
}

Test(catalogue, every_file_asks_and_expects)
{
    path_vec files = { 0 };
    size_t verdict[LS_VERDICT_COUNT] = { 0 };
    struct ls_names *seen = ls_names_open();
    find_files(LS_SOURCE_DIR "/scenarios", &files);
    for (size_t i = 0; i < files.count; i++) {
        struct ls_arena arena;
        struct ls_names *names = ls_names_open();
        struct ls_error err = { 0 };
        struct ls_scenario s;
        ls_arena_init(&arena, 0);
        cr_assert_eq(ls_scenario_load(files.at[i], &arena, names, &s, &err), LS_OK, "%s: %s", files.at[i], err.text);
        cr_expect(s.question && strchr(s.question, '?'), "%s asks nothing", files.at[i]);
        cr_expect(s.expect.present, "%s expects nothing", files.at[i]);
        size_t before = ls_names_count(seen);
        ls_name_id(seen, s.name);
        cr_expect_eq(ls_names_count(seen), before + 1, "%s: another scenario is called '%s', too", files.at[i], s.name);
        verdict[s.expect.verdict]++;
        ls_names_close(names);
        ls_arena_release(&arena);
    }
    printf("catalogue: %zu scenarios", files.count);
    for (size_t v = 0; v < LS_VERDICT_COUNT; v++)
        if (verdict[v])
            printf(", %s %zu", ls_verdict_name((enum ls_verdict)v), verdict[v]);
    printf("\n");
    cr_expect_geq(files.count, LEAST, "only %zu", files.count);
    release_files(&files);
    ls_names_close(seen);
}
