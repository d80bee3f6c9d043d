/* lockstep audit: one row per training recipe. */
#include "audit/audit.h"
#include "cli/cli.h"
#include "cli/files.h"

#include <string.h>

/* What is wrong with a file says more about the run than a verdict. */
static enum ls_code exit_code(const struct ls_audit_row *row, size_t rows)
{
    enum ls_code code = LS_OK;
    for (size_t i = 0; i < rows; i++) {
        if (row[i].err.code != LS_OK)
            return LS_EINPUT;
        if (row[i].uniform.given && row[i].uniform.verdict == LS_UNDECIDED && code == LS_OK)
            code = LS_EUNDECIDED;
        else if (row[i].uniform.given && row[i].uniform.verdict != LS_SAFE && row[i].uniform.verdict != LS_UNDECIDED)
            code = LS_EVIOLATED;
    }
    return code;
}

static void print_rows(const struct ls_cli *cli, const struct ls_audit_row *row, size_t rows)
{
    struct ls_str text = { 0 };
    if (cli->json) {
        struct ls_json j;
        ls_cli_json_open(cli, &j, &text);
        ls_audit_json(row, rows, &j);
        ls_cli_json_close(&j);
        return;
    }
    if (ls_cli_flag(cli, "csv"))
        ls_audit_csv(row, rows, &text);
    else
        ls_audit_markdown(row, rows, &text);
    const char *line = ls_str_text(&text);
    for (const char *end; (end = strchr(line, '\n')); line = end + 1) {
        ls_print_clean(stdout, line, (size_t)(end - line));
        putchar('\n');
    }
    ls_str_release(&text);
}

static enum ls_code audit(const struct ls_cli *cli, int argc, char **argv, struct ls_arena *arena, ls_paths *paths, int *status,
                          struct ls_error *err)
{
    struct ls_audit_options o = { 0 };
    struct ls_inventories known;
    static const char *const rules[] = { "automodel", "proposed", NULL };
    unsigned proposed = 0;
    uint64_t seconds = 60;
    const char *world = ls_cli_value(cli, "world-size"), *models = ls_cli_value(cli, "models");
    enum ls_code rc = ls_cli_uint(cli, "seconds", 1, 1000000, &seconds, err);
    if (rc == LS_OK && world && strcmp(world, "auto") != 0)
        rc = ls_cli_uint(cli, "world-size", 1, 1 << 20, &o.world_size, err);
    if (rc == LS_OK)
        rc = ls_cli_choice(cli, "rules", rules, &proposed, err);
    o.proposed = proposed == 1;
    o.seconds_max = (double)seconds;
    o.no_verdicts = ls_cli_flag(cli, "no-verdicts");
    for (int i = 0; i < argc && rc == LS_OK; i++) {
        bool folder;
        rc = ls_paths_add_all(paths, arena, argv[i], &folder, err);
    }
    if (rc == LS_OK)
        rc = ls_inventories_read(models ? models : ls_models_folder(arena), arena, &known, err);
    if (rc != LS_OK)
        return rc;
    struct ls_audit_row *row = LS_NEW(arena, struct ls_audit_row, paths->count);
    struct ls_audit_memo *memo = ls_audit_memo_open();
    struct ls_progress progress;
    ls_progress_open(cli, &progress);
    for (size_t i = 0; i < paths->count && rc == LS_OK; i++) {
        ls_progress_show(&progress, "%zu/%zu %s", i + 1, paths->count, paths->at[i]);
        rc = ls_audit_recipe(paths->at[i], &known, &o, memo, arena, &row[i], err);
    }
    ls_progress_close(&progress);
    ls_audit_memo_close(memo);
    if (rc != LS_OK)
        return rc;
    print_rows(cli, row, paths->count);
    for (size_t i = 0; i < paths->count && !cli->json; i++)
        if (row[i].err.code != LS_OK)
            ls_report_text(cli, stderr, &row[i].err);
    *status = (int)exit_code(row, paths->count);
    return LS_OK;
}

static int run(const struct ls_cli *cli, int argc, char **argv)
{
    struct ls_error err = { 0 };
    int status = LS_OK;
    if (argc < 1)
        return ls_usage(cli, "audit takes one or more folders or files");
    if (cli->json && ls_cli_flag(cli, "csv"))
        return ls_usage(cli, "'--csv' and '--json' exclude each other");
    struct ls_arena arena;
    ls_arena_init(&arena, 0);
    ls_paths paths = { 0 };
    if (audit(cli, argc, argv, &arena, &paths, &status, &err) != LS_OK)
        status = ls_report(cli, &err);
    ls_vec_release(&paths);
    ls_arena_release(&arena);
    return status;
}

static const struct ls_option options[] = {
    { "world-size", "N", "number of ranks of every recipe, or auto (default): the smallest that satisfies its mesh with dp >= 2" },
    { "rules", "RULES", "automodel (default), or proposed: as import recipe --rules proposed" },
    { "csv", NULL, "comma-separated values instead of Markdown" },
    { "no-verdicts", NULL, "mesh, modules and policy alone" },
    { "models", "DIR", "folder of inventories, searched by model id (default scenarios/models)" },
    { "seconds", "N", "give up on a verdict after N seconds (default 60)" },
    { 0 },
};
static const struct ls_example examples[] = {
    { "audit recipes > audit.md", "a Markdown table of every recipe below a folder" },
    { "audit --world-size 64 recipes", "each started with 64 ranks" },
    { "audit --csv recipe.yaml", "one row, for a spreadsheet" },
    { "audit --json recipes", "for programs" },
    { 0 },
};
const struct ls_command ls_command_audit = {
    .name = "audit", .run = run, .operands = "FILE|FOLDER...", .summary = "which training recipes of AutoModel can hang, why, and what to change",
    .text = "One row per recipe: mesh, frozen and trainable modules that run only when a batch holds their medium, the policy in "
            "effect, the verdict if batches are uniform (all ranks of a microbatch hold the same media), the verdict if they may "
            "differ, the verdict if every sample holds what the name of the data set says, and the first repair that is proved for "
            "batches that may differ. Where there is no verdict the note says why. What a data set holds is an assumption, and is "
            "called one. Exit status: 0; 1 if a recipe fails even though batches are uniform; 3 if a file is no "
            "recipe; 5 if a verdict on uniform batches is undecided.",
    .options = options, .examples = examples };
