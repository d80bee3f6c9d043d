/* lockstep report: a saved comparison, rendered again. */
#include "cli/cli.h"
#include "cli/comparison.h"
#include "cli/files.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

/* run.json of a folder, or the file itself. */
static enum ls_code saved_file(const char *operand, struct ls_arena *arena, const char **file, const char **folder, struct ls_error *err)
{
    struct stat st;
    struct ls_loc at = { operand, 0, 0 };
    if (stat(operand, &st) != 0)
        return ls_fail(err, LS_EINPUT, at, "cannot read '%s': %s", operand, strerror(errno));
    const char *slash = strrchr(operand, '/');
    if (S_ISDIR(st.st_mode)) {
        *folder = operand;
        *file = ls_arena_printf(arena, "%s%srun.json", operand, operand[strlen(operand) - 1] == '/' ? "" : "/");
        if (stat(*file, &st) != 0)
            return ls_fail(err, LS_EINPUT, at, "the folder '%s' holds no saved comparison: cannot read 'run.json': %s", operand, strerror(errno));
    } else {
        *file = operand;
        *folder = !slash ? "." : slash == operand ? "/" : ls_arena_strn(arena, operand, (size_t)(slash - operand));
    }
    return LS_OK;
}

static enum ls_code render(const struct ls_result *r, const struct ls_summary *s, const char *folder, const char *out, bool overwrite, struct ls_arena *arena,
                           struct ls_comparison_files *files, struct ls_error *err)
{
    enum ls_code rc = out ? ls_folder_check(out, overwrite, err) : LS_OK;
    if (rc == LS_OK)
        rc = ls_comparison_render(r, s, out != NULL, true, arena, files, err);
    if (rc == LS_OK && out)
        return ls_folder_write(out, files->at, files->count, overwrite, err);
    /* Beside the saved run: everything is drawn before the first file changes. */
    for (size_t i = 0; i < files->count && rc == LS_OK; i++)
        rc = ls_write_file(ls_arena_printf(arena, "%s/%s", folder, files->at[i].name), files->at[i].text, files->at[i].length, err);
    return rc;
}

static int run(const struct ls_cli *cli, int argc, char **argv)
{
    struct ls_error err = { 0 };
    struct ls_arena arena;
    struct ls_result r;
    struct ls_summary s;
    struct ls_comparison_files files = { 0 };
    const char *file = NULL, *folder = NULL, *out = ls_cli_value(cli, "out");
    bool markdown = ls_cli_flag(cli, "markdown");
    if (argc != 1)
        return ls_usage(cli, "report takes one FOLDER or FILE");
    if (markdown && (out || cli->json))
        return ls_usage(cli, "'--markdown' prints to standard output: it goes with neither '--out' nor '--json'");
    ls_arena_init(&arena, 0);
    enum ls_code rc = saved_file(argv[0], &arena, &file, &folder, &err);
    if (rc == LS_OK)
        rc = ls_result_load(file, &arena, &r, &err);
    if (rc == LS_OK) {
        ls_summary_of(&r, &arena, &s);
        if (!markdown)
            rc = render(&r, &s, folder, out, ls_cli_flag(cli, "overwrite"), &arena, &files, &err);
    }
    int status = rc == LS_OK ? LS_OK : ls_report(cli, &err);
    struct ls_str text = { 0 };
    if (rc == LS_OK && markdown) {
        struct ls_figures f;
        ls_figures_list(&r, &arena, &f);
        ls_render_markdown(&r, &s, &f, &arena, &text);
        fputs(ls_str_text(&text), stdout);
    } else if (rc == LS_OK && cli->json) {
        struct ls_json j;
        struct ls_str json = { 0 };
        ls_cli_json_open(cli, &j, &json);
        ls_json_add_text(&j, "folder", out ? out : folder);
        ls_comparison_json(&r, &s, &j);
        ls_cli_json_close(&j);
    } else if (rc == LS_OK) {
        ls_render_text(&r, &s, &arena, &text);
        fputs(ls_str_text(&text), stdout);
        printf("  written  %s: report.html, report.md, %zu figures\n", out ? out : folder, files.count - 2 - (out != NULL));
    }
    ls_str_release(&text);
    ls_arena_release(&arena);
    return status;
}

static const struct ls_option options[] = {
    { "out", "FOLDER", "write there, with a copy of the saved run, instead of beside it" },
    { "overwrite", NULL, "replace an earlier comparison in that folder" },
    { "markdown", NULL, "print the Markdown report and write nothing; needs no gnuplot" },
    { 0 },
};
static const struct ls_example examples[] = {
    { "report results", "render results/run.json again" },
    { "report --out pages run.json", "a saved run from another machine" },
    { "report --markdown results", "the report on a terminal or for a pull request" },
    { 0 },
};
const struct ls_command ls_command_report = {
    .name = "report", .run = run, .operands = "FOLDER|FILE", .summary = "render a saved comparison again",
    .text = "Reads what `lockstep compare` saved (run.json) and writes report.md, report.html and the figures. The page holds its figures and needs no "
            "other file or network. Nothing is measured: the same file gives the same report, on any machine.\n\nFigures are drawn by gnuplot (Debian: gnuplot-nox). "
            "Exit status: 0 rendered; 3 bad input; 4 gnuplot is missing, or the files cannot be written.",
    .options = options, .examples = examples };
