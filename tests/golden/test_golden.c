/* What the program says, word for word: one file per case in tests/golden/cases. */
#include "golden.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* name of the file, arguments. Paths are relative to the project's root. */
static const char *const cases[][2] = {
    { "no_command", "" },
    { "help", "--help" },
    { "help_command", "help help" },
    { "help_option", "version --help" },
    { "help_unknown_command", "help vresion" },
    { "version", "--version" },
    { "unknown_command", "verzion" },
    { "unknown_command_far", "zzzzzzzz" },
    { "unknown_command_json", "--json verzion" },
    { "unknown_option", "version --jsn" },
    { "unknown_option_short", "-x" },
    { "unknown_option_escape", "'--\033[31mred'" },
    { "option_with_argument", "version --json=yes" },
    { "option_without_argument", "version --color" },
    { "option_twice", "help --man --man" },
    { "color_unknown", "--color=allways version" },
    { "operand_too_many", "version extra" },
    { "check_unsafe", "check scenarios/mixed-media/per-layer.yaml" },
    { "check_safe", "check scenarios/mixed-media/root.yaml" },
    { "check_step_end", "check scenarios/ddp/mixed-media.yaml" },
    { "check_lost_gradient", "check scenarios/gradients/b42-ignored-trainable.yaml" },
    { "check_refused", "check scenarios/mixed-media/per-layer-proposed-refused.yaml" },
    { "check_forced", "check --force scenarios/mixed-media/per-layer-proposed-refused.yaml" },
    { "check_in_tower", "check --force scenarios/uniformity-check/in-tower.yaml" },
    { "check_raw_cycle", "check scenarios/raw/three-groups-ring.yaml" },
    { "check_policy", "check --policy replicate --no-repairs scenarios/mixed-media/per-layer.yaml" },
    { "check_folder", "check scenarios/partly-used-unit" },
    { "check_json", "check --json scenarios/mixed-media/per-layer.yaml" },
    { "import_recipe", "import recipe tests/data/golden/recipe.yaml --world-size 8 --inventory scenarios/models/tiny_qwen3_vl.yaml" },
    { "import_proposed", "import recipe tests/data/golden/recipe.yaml --world-size 8 --inventory scenarios/models/tiny_qwen3_vl.yaml --rules proposed" },
    { "import_rules_unknown", "import recipe tests/data/golden/recipe.yaml --world-size 8 --rules propsed" },
    { "replay_witness", "replay --witness --against check scenarios/conditional-tower/b02-skip.yaml" },
    { "replay_safe", "replay --against check --replicas 4 --seed 3 scenarios/conditional-tower/b03-dummy-linked.yaml" },
    { "replay_nccl_like", "replay --witness --nccl-like scenarios/raw/unagreed-branch.yaml" },
    { "replay_training_hang", "replay --against check scenarios/training/gemma3-root-mixed.yaml" },
    { "replay_patterns", "replay --math patterns --against check scenarios/training/gemma3-root-mixed-dummy.yaml" },
    { "replay_math_unknown", "replay --math real scenarios/training/gemma3-root-mixed.yaml" },
    { "replay_warmup_untrained", "replay --warmup 2 scenarios/conditional-tower/b03-dummy-linked.yaml" },
    { "replay_math_impossible", "replay --math train scenarios/conditional-tower/b03-dummy-linked.yaml" },
    { "replay_too_large", "replay scenarios/mixed-media/per-layer-table-one-off.yaml" },
    { "replay_steps_raw", "replay --steps 3 scenarios/raw/unagreed-branch.yaml" },
    { "replay_trace_nowhere", "replay --trace /nowhere/t.json scenarios/training/gemma3-root-mixed.yaml" },
    { "replay_refused", "replay scenarios/mixed-media/per-layer-proposed-refused.yaml" },
    { "check_bad_key", "check tests/data/golden/bad_key.yaml" },
    { "check_missing_inventory", "check tests/data/golden/missing_inventory.yaml" },
    { "check_missing_file", "check tests/data/golden/no_such_file.yaml" },
    { "check_unwritable_witness", "check --witness /nowhere/w.yaml scenarios/mixed-media/per-layer.yaml" },
    { "export_together", "check --export-promela /nowhere/m.pml scenarios/raw/agreed-branch.yaml" },
    { "export_contract", "check --export-promela /nowhere/m.pml scenarios/uniformity-check/uniform.yaml" },
    { "export_start_order", "check --export-promela /nowhere/m.pml scenarios/raw/issue-order-free.yaml" },
    { "export_size", "check --export-promela /nowhere/m.pml --replicas 3 scenarios/expert-parallel/any-size.yaml" },
    { "export_refused", "check --export-promela /nowhere/m.pml scenarios/uniformity-check/in-tower.yaml" },
    { "export_rounds_alone", "check --rounds 2 scenarios/mixed-media/root.yaml" },
    { "check_bad_option", "check --policy rooot scenarios/mixed-media/root.yaml" },
    { "explain_units", "explain scenarios/hazards/h4-trainable-projector.yaml" },
    { "explain_json", "explain --json scenarios/policies-17/dense-root-projector-frozen.yaml" },
    { "operand_after_dashes", "help -- --man" },
    { "simulate_hang", "simulate --platform scenarios/platforms/h100x8.yaml scenarios/raw/ring-of-groups.yaml" },
    { "simulate_mismatch", "simulate --platform scenarios/platforms/h100x8.yaml --replicas 2 scenarios/mixed-media/per-layer.yaml" },
    { "simulate_no_platform", "simulate scenarios/mixed-media/root.yaml" },
    { "simulate_one", "simulate scenarios/truth/policy-ministral3-3b.yaml" },
    { "simulate_table", "simulate --policies root,per_layer,replicate --batches uniform,mixed scenarios/timing/qwen3-vl-4b.yaml" },
    { "simulate_policy_unknown", "simulate --policies root,layers scenarios/timing/qwen3-vl-4b.yaml" },
    { "simulate_two_files", "simulate a.yaml b.yaml" },
    { "simulate_trace_of_many", "simulate --trace t.json --batches uniform,mixed scenarios/timing/qwen3-vl-4b.yaml" },
    { "simulate_tower_units", "simulate --policies root,per_layer,replicate scenarios/timing/tower-of-27.yaml" },
    { "simulate_stall", "simulate scenarios/raw/stall-and-recover.yaml" },
    { "simulate_stall_killed", "simulate --watchdog 600 scenarios/raw/stall-and-recover.yaml" },
    { "simulate_help", "simulate --help" },
    { "compare_help", "compare --help" },
    { "compare_no_out", "compare scenarios/training/qwen3-vl.yaml" },
    { "compare_policy_twice", "compare --policies root,root --out build/no-such scenarios/training/qwen3-vl.yaml" },
    { "compare_not_empty", "compare --out tests/data scenarios/training/qwen3-vl.yaml" },
    { "compare_ddp_units", "compare --policies ddp,root --out build/no-such --no-report scenarios/ddp/accumulation.yaml" },
    { "compare_ddp_hybrid", "compare --policies ddp --out build/no-such --no-report scenarios/hsdp/frozen-per-layer-any.yaml" },
    { "compare_raw_program", "compare --out build/no-such --no-report scenarios/raw/agreed-branch.yaml" },
    { "compare_no_operator", "compare --out build/no-such --no-report scenarios/mixed-media/root.yaml" },
    { "report_help", "report --help" },
    { "report_markdown", "report --markdown tests/data/report" },
    { "report_missing", "report tests/data/no-such-folder" },
    { "report_no_run", "report tests/data/golden" },
    { "report_version", "report tests/data/golden/run_version.json" },
    { "report_cut", "report --json tests/data/golden/run_cut.json" },
};
/* The same of a build that has found neither Open MPI nor SimGrid. */
static const char *const cases_without[][2] = {
    { "without_mpi", "replay --comm mpi scenarios/raw/agreed-branch.yaml" },
    { "without_mpi_threads", "replay --comm threads scenarios/raw/agreed-branch.yaml" },
    { "without_simgrid", "simulate --network simgrid --platform scenarios/platforms/h100x8.yaml scenarios/raw/agreed-branch.yaml" },
};
enum { CASES = sizeof cases / sizeof *cases, CASES_WITHOUT = sizeof cases_without / sizeof *cases_without };

static const char binary[] = LS_BINARY_DIR "/lockstep", without[] = LS_BINARY_DIR "/tests/lockstep_without", root[] = LS_SOURCE_DIR;

Test(golden, cases)
{
    for (size_t i = 0; i < CASES; i++) {
        struct ls_str why = { 0 };
        cr_expect(golden_check(binary, root, cases[i][0], cases[i][1], &why), "%s", ls_str_text(&why));
        ls_str_release(&why);
    }
}

Test(golden, cases_without_mpi_and_simgrid)
{
    for (size_t i = 0; i < CASES_WITHOUT; i++) {
        struct ls_str why = { 0 };
        cr_expect(golden_check(without, root, cases_without[i][0], cases_without[i][1], &why), "%s", ls_str_text(&why));
        ls_str_release(&why);
    }
}

static bool is_case(const char *file, const char *name)
{
    size_t length = strlen(name);
    return strncmp(file, name, length) == 0 && strcmp(file + length, ".txt") == 0;
}

Test(golden, every_file_has_its_case)
{
    DIR *d = opendir(LS_SOURCE_DIR "/tests/golden/cases");
    cr_assert(d);
    for (struct dirent *e; (e = readdir(d));) {
        bool known = false;
        if (e->d_name[0] == '.')
            continue;
        for (size_t i = 0; i < CASES && !known; i++)
            known = is_case(e->d_name, cases[i][0]);
        for (size_t i = 0; i < CASES_WITHOUT && !known; i++)
            known = is_case(e->d_name, cases_without[i][0]);
        cr_expect(known, "tests/golden/cases/%s belongs to no case", e->d_name);
    }
    closedir(d);
}

Test(golden, rules_replace_times_lines_and_root_only)
{
    struct ls_str text = { 0 };
    ls_str_add(&text,
               "(0.8 ms) 12 s, 3 seconds, x12 s 1.5 s. v1.2 s {\"seconds\": 1.25e-05,\"seconds\":3} src/a/b_c.c:88: "
               "src/a.h:3 a.yaml:12 /r/x.yaml");
    golden_normalise(&text, "/r/");
    cr_assert_str_eq(ls_str_text(&text),
                     "(<time>) <time>, 3 seconds, x12 s <time>. v1.2 s {\"seconds\": <time>,\"seconds\":<time>} "
                     "src/a/b_c.c:<line>: src/a.h:3 a.yaml:12 <root>x.yaml");
    ls_str_release(&text);
}

Test(golden, json_is_one_object_with_a_version)
{
    static const char *const args[] = { "--json version", "--json verzion", "version --json --no-such",
                                        "--json --version" };
    for (size_t i = 0; i < sizeof args / sizeof *args; i++) {
        struct golden_run run;
        golden_run(binary, root, args[i], &run);
        cr_expect_eq(strncmp(ls_str_text(&run.out), "{\n  \"version\": 1,\n  \"command\": ", 30), 0, "%s: %s", args[i],
                     ls_str_text(&run.out));
        cr_expect_eq(run.err.length, 0, "%s: %s", args[i], ls_str_text(&run.err));
        golden_release(&run);
    }
}

Test(golden, man_page_is_up_to_date)
{
    struct golden_run run;
    golden_run(binary, root, "help --man", &run);
    cr_assert_eq(run.status, 0);
    static const char path[] = LS_SOURCE_DIR "/src/cli/lockstep.1";
    const char *mode = getenv("LS_GOLDEN");
    bool writing = mode && strcmp(mode, "write") == 0;
    FILE *f = fopen(path, writing ? "wb" : "rb");
    cr_assert(f, "%s", path);
    if (writing) {
        cr_assert_eq(fwrite(run.out.text, 1, run.out.length, f), run.out.length);
    } else {
        struct ls_str have = { 0 };
        for (int c; (c = getc(f)) != EOF;)
            ls_str_addn(&have, &(char){ (char)c }, 1);
        cr_assert_str_eq(ls_str_text(&have), ls_str_text(&run.out),
                         "src/cli/lockstep.1 is stale; LS_GOLDEN=write renews it");
        ls_str_release(&have);
    }
    cr_assert_eq(fclose(f), 0);
    golden_release(&run);
}

Test(golden, failed_write_is_an_error)
{
    FILE *full = fopen("/dev/full", "w");
    if (!full)
        cr_skip_test("this system has no /dev/full");
    fclose(full);
    struct ls_str command = { 0 };
    ls_str_printf(&command, "'%s' --help > /dev/full 2> /dev/null", binary);
    int status = system(ls_str_text(&command));
    cr_assert_eq(status >> 8 & 255, LS_EBACKEND);
    ls_str_release(&command);
}
