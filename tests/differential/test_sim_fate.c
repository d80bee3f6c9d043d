/* What the simulator says becomes of a failing run, against the engine whose communicators pair by position as NCCL does: the runs that
 * check found to fail in random scenarios and in the catalogue. Without time limits a run is silent or dead, whatever the clock. */
#include "cli/files.h"
#include "nccl_like.h"
#include "random_scenario.h"
#include "sim/simulate.h"

#include <criterion/criterion.h>
#include <stdio.h>

static size_t silent, dead;

static void compare(const struct ls_scenario *s, const char *what, struct ls_arena *arena)
{
    struct ls_error err = { 0 };
    struct ls_assessment v;
    const struct ls_assess_options ao = { .variant = LS_AS_WRITTEN };
    const struct ls_simulate_options o = { .variant = LS_AS_WRITTEN, .platform = LS_SOURCE_DIR "/scenarios/platforms/h100x8.yaml", .seed = 1 };
    cr_assert_eq(ls_assess(s, &ao, arena, &v, &err), LS_OK, "%s: %s", what, err.text);
    struct ls_simulation x;
    struct ls_str why = { 0 };
    bool completes = false;
    size_t passed = 0;
    if (v.check.witness && s->level != LS_L3 && !s->timing.timeouts) {
        cr_assert_eq(ls_simulate_witness(s, &v, &o, arena, &x, &err), LS_OK, "%s: %s", what, err.text);
        if (!x.run.complete) {
            cr_assert(nccl_like_run(s, &v, 0, &completes, &passed, &why), "%s: %s", what, ls_str_text(&why));
            cr_expect_eq(x.fate.kind, completes ? LS_FATE_SILENT : LS_FATE_DEADLOCK, "%s: simulated %s, the engine %s", what, ls_fate_name(x.fate.kind),
                         completes ? "completes" : "does not");
            cr_expect_eq(x.fate.silent.pairs > 0, passed > 0, "%s: %zu pairs that differ passed, %zu in the engine", what, x.fate.silent.pairs, passed);
            silent += completes;
            dead += !completes;
        }
    }
    ls_str_release(&why);
    ls_assessment_release(&v);
}

Test(sim_fate, random_scenarios)
{
    enum { SEEDS = 400 };
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        struct ls_arena arena;
        struct ls_names *names = ls_names_open();
        struct ls_scenario s;
        struct ls_str text = { 0 };
        struct ls_error err = { 0 };
        char what[40];
        snprintf(what, sizeof what, "seed %llu", (unsigned long long)seed);
        ls_arena_init(&arena, 0);
        random_scenario(seed, &text);
        cr_assert_eq(ls_scenario_read(ls_str_text(&text), text.length, "random.yaml", &arena, names, &s, &err), LS_OK, "%s", err.text);
        compare(&s, what, &arena);
        ls_str_release(&text);
        ls_names_close(names);
        ls_arena_release(&arena);
    }
    printf("fates of random scenarios, as on the engine: %zu silent, %zu dead\n", silent, dead);
    cr_expect(dead > 50);
}

Test(sim_fate, catalogue)
{
    struct ls_arena list;
    ls_paths paths = { 0 };
    bool folder;
    struct ls_error err = { 0 };
    ls_arena_init(&list, 0);
    cr_assert_eq(ls_paths_add(&paths, &list, LS_SOURCE_DIR "/scenarios", &folder, &err), LS_OK, "%s", err.text);
    for (size_t i = 0; i < paths.count; i++) {
        struct ls_arena arena;
        struct ls_names *names = ls_names_open();
        struct ls_scenario s;
        ls_arena_init(&arena, 0);
        cr_assert_eq(ls_scenario_load(paths.at[i], &arena, names, &s, &err), LS_OK, "%s", err.text);
        if (s.expect.verdict != LS_SAFE && s.expect.verdict != LS_SETUP_ERROR)
            compare(&s, paths.at[i], &arena);
        ls_names_close(names);
        ls_arena_release(&arena);
    }
    printf("fates in the catalogue, as on the engine: %zu silent, %zu dead\n", silent, dead);
    cr_expect(silent > 0 && dead > 50);
    ls_vec_release(&paths);
    ls_arena_release(&list);
}
