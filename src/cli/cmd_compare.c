/* lockstep compare: what each policy costs, measured on the engine, and which of them are safe. */
#include "cli/cli.h"
#include "cli/comparison.h"
#include "cli/interrupt.h"
#include "report/compare.h"
#include "report/gnuplot.h"
#include "sim/simulate.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#ifdef __clang__
#define COMPILER "Clang " __clang_version__
#else
#define COMPILER "GCC " __VERSION__
#endif

struct options { struct ls_compare_options compare; uint64_t replicas, replicate; const char *out, *platform; bool overwrite, no_report; };

static enum ls_code read_lists(const struct ls_cli *cli, struct ls_compare_options *c, struct ls_error *err)
{
    const char *kind[LS_COMPARED_BATCHES_COUNT];
    unsigned policy[LS_COMPARED_POLICIES], batches[LS_COMPARED_BATCHES_COUNT];
    for (int i = 0; i < LS_COMPARED_BATCHES_COUNT; i++)
        kind[i] = ls_compared_batches_name((enum ls_compared_batches)i);
    enum ls_code rc = ls_cli_list(cli, "policies", ls_compared_policy, LS_COMPARED_POLICIES, policy, &c->policies, err);
    if (rc == LS_OK)
        rc = ls_cli_list(cli, "batches", kind, LS_COMPARED_BATCHES_COUNT, batches, &c->kinds, err);
    for (size_t i = 0; i < c->policies; i++)
        c->policy[i] = (enum ls_compared_policy)policy[i];
    for (size_t i = 0; i < c->kinds; i++)
        c->batches[i] = (enum ls_compared_batches)batches[i];
    if (!c->kinds) {
        c->batches[c->kinds++] = LS_COMPARED_UNIFORM;
        c->batches[c->kinds++] = LS_COMPARED_MIXED;
    }
    return rc;
}

static enum ls_code read_options(const struct ls_cli *cli, struct options *o, struct ls_error *err)
{
    uint64_t threads = 1;
    *o = (struct options){ .compare = { .seed = 1, .steps = 10, .warmup = 3, .rounds = LS_PAIRS_LEAST, .free = ls_cli_flag(cli, "free"), .force = ls_cli_flag(cli, "force"),
                                        .timelines = !ls_cli_flag(cli, "no-timelines"), .interrupted = &ls_interrupted },
                           .out = ls_cli_value(cli, "out"), .platform = ls_cli_value(cli, "platform"), .overwrite = ls_cli_flag(cli, "overwrite"),
                           .no_report = ls_cli_flag(cli, "no-report") };
    struct ls_compare_options *c = &o->compare;
    if (!o->out || !o->out[0])
        return ls_fail(err, LS_EUSAGE, LS_NOWHERE, "compare needs '--out FOLDER', where the results go");
    enum ls_code rc = ls_cli_uint(cli, "seed", 0, INT64_MAX, &c->seed, err);
    if (rc == LS_OK)
        rc = ls_cli_uint(cli, "steps", 1, 1000, &c->steps, err);
    if (rc == LS_OK)
        rc = ls_cli_uint(cli, "warmup", 0, 1000, &c->warmup, err);
    if (rc == LS_OK)
        rc = ls_cli_uint(cli, "rounds", 1, LS_RESULT_RUNS_MAX, &c->rounds, err);
    if (rc == LS_OK)
        rc = ls_cli_uint(cli, "blas-threads", 1, 256, &threads, err);
    if (rc == LS_OK)
        rc = ls_cli_uint(cli, "replicas", 1, 64, &o->replicas, err);
    if (rc == LS_OK)
        rc = ls_cli_uint(cli, "replicate", 1, 64, &o->replicate, err);
    if (rc == LS_OK)
        rc = read_lists(cli, c, err);
    c->blas_threads = (unsigned)threads;
    return rc;
}

/* Policies of frozen modules where parameters are sharded; DDP has none. */
static void choose_policies(const struct ls_scenario *s, struct ls_compare_options *c)
{
    if (c->policies)
        return;
    for (unsigned i = LS_COMPARED_ROOT; i <= LS_COMPARED_REPLICATE && !s->ddp.present; i++)
        c->policy[c->policies++] = (enum ls_compared_policy)i;
    if (s->ddp.present)
        c->policy[c->policies++] = LS_COMPARED_DDP;
}

/* A size that the scenario leaves open, or the same as it says. */
static enum ls_code fix_size(const struct ls_scenario *s, const char *option, uint64_t given, size_t *size, struct ls_error *err)
{
    struct ls_loc whole = { s->path, 0, 0 };
    if (*size == LS_SIZE_ANY)
        *size = given ? (size_t)given : 2;
    else if (given && given != *size)
        return ls_fail(err, LS_EINPUT, whole, "'--%s' is %" PRIu64 ", but the scenario says %zu", option, given, *size);
    return LS_OK;
}

/* The same policy and kind of batches in simulated time. Runs that do not complete or are refused leave the cell as it is. */
static enum ls_code simulate(const struct ls_scenario *s, const struct options *o, struct ls_result *r, struct ls_error *err)
{
    static const enum ls_draw draw[LS_COMPARED_BATCHES_COUNT] = { [LS_COMPARED_CONTRACT] = LS_DRAW_CONTRACT, [LS_COMPARED_UNIFORM] = LS_DRAW_UNIFORM,
                                                                  [LS_COMPARED_MIXED] = LS_DRAW_MIXED };
    const struct ls_compare_options *c = &o->compare;
    enum ls_code rc = LS_OK;
    for (size_t i = 0; i < r->cells && rc == LS_OK && !ls_interrupted; i++) {
        struct ls_result_cell *cell = &r->cell[i];
        enum ls_compared_batches batches = c->batches[i / c->policies];
        struct ls_simulate_options so = { .variant = ls_compared_variant(c->policy[i % c->policies], batches), .force = c->force, .draw = draw[batches],
                                          .seed = c->seed, .steps = 1, .platform = o->platform, .fold = true };
        struct ls_arena arena;
        struct ls_simulation x;
        struct ls_scenario ddp;
        if (cell->check != LS_SAFE)
            continue;
        ls_arena_init(&arena, 0);
        rc = ls_simulate(ls_compared_scenario(s, c->policy[i % c->policies], &ddp), &so, &arena, &x, err);
        if (rc == LS_OK && !x.refusal.rule && x.run.complete) {
            cell->simulated = true;
            cell->sim_step_s = x.step_s;
            cell->sim_tokens_s = x.tokens_s;
            cell->sim_peak_bytes = x.rank_class[x.worst].memory.peak;
            r->platform = ls_arena_str(s->arena, x.platform.name);
        }
        if (rc == LS_OK)
            ls_simulation_release(&x);
        ls_arena_release(&arena);
    }
    return rc;
}

/* Read once before anything is measured. */
static enum ls_code check_platform(const struct ls_scenario *s, const struct options *o, struct ls_arena *arena, struct ls_error *err)
{
    struct ls_platform platform;
    const char *found = o->platform ? ls_scenario_find(o->platform, "platforms", arena) : s->platform;
    const char *path = found ? found : o->platform;
    return path ? ls_platform_load(path, 1, arena, &platform, err) : LS_OK;
}

static void show(void *self, const char *what) { ls_progress_show(self, "%s", what); }

static enum ls_code compare(const struct ls_cli *cli, const char *path, struct options *o, struct ls_arena *arena, struct ls_names *names, struct ls_result *r,
                            struct ls_summary *summary, struct ls_error *err)
{
    struct ls_scenario *s = LS_NEW(arena, struct ls_scenario, 1);
    struct ls_progress progress;
    struct ls_comparison_files files;
    /* What would make the run useless is found before it. */
    enum ls_code rc = ls_folder_check(o->out, o->overwrite, err);
    if (rc == LS_OK && !o->no_report)
        rc = ls_gnuplot_find(err);
    if (rc == LS_OK)
        rc = ls_scenario_load(path, arena, names, s, err);
    if (rc == LS_OK)
        rc = fix_size(s, "replicas", o->replicas, &s->mesh.shard, err);
    if (rc == LS_OK)
        rc = fix_size(s, "replicate", o->replicate, &s->mesh.replicate, err);
    if (rc == LS_OK)
        rc = check_platform(s, o, arena, err);
    if (rc != LS_OK)
        return rc;
    choose_policies(s, &o->compare);
    ls_progress_open(cli, &progress);
    o->compare.progress = show, o->compare.progress_self = &progress;
    rc = ls_compare_run(s, &o->compare, arena, r, err);
    ls_progress_close(&progress);
    r->version = LS_VERSION, r->build = LS_BUILD, r->compiler = COMPILER;
    if (rc == LS_OK && !ls_interrupted && (o->platform || s->platform))
        rc = simulate(s, o, r, err);
    if (rc != LS_OK || ls_interrupted)
        return rc;
    ls_interrupts_hold(); /* up to here nothing exists but memory */
    ls_summary_of(r, arena, summary);
    rc = ls_comparison_render(r, summary, true, !o->no_report, arena, &files, err);
    return rc != LS_OK || ls_interrupted ? rc : ls_folder_write(o->out, files.at, files.count, o->overwrite, err);
}

/* What was asked is which policies are safe; that some are not is an answer. That check and engine disagree, or losses do not repeat, is not. */
static int exit_code(const struct ls_result *r, const struct ls_summary *s)
{
    for (size_t i = 0; i < r->cells; i++)
        if (!s->cell[i].agrees || s->cell[i].wrong)
            return LS_EVIOLATED;
    return LS_OK;
}

static int run(const struct ls_cli *cli, int argc, char **argv)
{
    struct ls_error err = { 0 };
    struct options o;
    struct ls_arena arena;
    struct ls_result r = { 0 };
    struct ls_summary s;
    if (argc != 1)
        return ls_usage(cli, "compare takes one FILE");
    if (read_options(cli, &o, &err) != LS_OK)
        return ls_report(cli, &err);
    ls_arena_init(&arena, 0);
    struct ls_names *names = ls_names_open();
    enum ls_code rc = compare(cli, argv[0], &o, &arena, names, &r, &s, &err);
    int status = (int)rc;
    struct ls_str text = { 0 };
    if (rc != LS_OK && !ls_interrupted) {
        status = ls_report(cli, &err);
    } else if (!ls_interrupted && cli->json) {
        struct ls_json j;
        ls_cli_json_open(cli, &j, &text);
        ls_json_add_text(&j, "file", argv[0]);
        ls_json_add_text(&j, "folder", o.out);
        ls_comparison_json(&r, &s, &j);
        ls_cli_json_close(&j);
    } else if (!ls_interrupted) {
        ls_render_text(&r, &s, &arena, &text);
        ls_str_printf(&text, "  written  %s: run.json%s\n", o.out, o.no_report ? "" : ", report.html, report.md, figures");
        fputs(ls_str_text(&text), stdout);
    }
    if (rc == LS_OK && !ls_interrupted)
        status = exit_code(&r, &s);
    ls_str_release(&text);
    ls_names_close(names);
    ls_arena_release(&arena);
    if (ls_interrupted)
        fprintf(stderr, "lockstep: compare: interrupted; nothing was written\n");
    ls_interrupts_end();
    return status;
}

static const struct ls_option options[] = {
    { "out", "FOLDER", "where the results go; it must be new or empty" },
    { "overwrite", NULL, "replace an earlier comparison in that folder" },
    { "policies", "LIST", "of root, per_layer, replicate (default: these), ddp (replicated data parallelism instead of FSDP2); root is what others are compared with" },
    { "batches", "LIST", "of contract (as `execution:` says), uniform (all ranks alike), mixed (each its own); default uniform,mixed" },
    { "steps", "N", "measured steps of each run (default 10)" },
    { "warmup", "N", "steps before them, left out of every time (default 3)" },
    { "rounds", "N", "runs of each safe cell, in alternating order (default 6; even numbers weigh both orders alike)" },
    { "seed", "N", "of weights, batches and schedules (default 1)" },
    { "replicas", "N", "ranks that share parameters, where the scenario says any (default 2)" },
    { "replicate", "N", "replicas of those, where the scenario says any (default 2)" },
    { "free", NULL, "a thread per host thread and stream instead of coroutines on one" },
    { "blas-threads", "N", "threads of each matrix product (default 1)" },
    { "platform", "FILE", "hardware on which the same cells are simulated; default: the scenario's `platform:`, if any" },
    { "force", NULL, "also plans that set-up refuses" },
    { "no-timelines", NULL, "leave out the run that records what every stream did" },
    { "no-report", NULL, "save the run alone; needs no gnuplot" },
    { 0 },
};
static const struct ls_example examples[] = {
    { "compare --out results scenarios/training/qwen3-vl.yaml", "all policies, uniform and mixed batches" },
    { "compare --policies root,replicate --batches contract --rounds 10 --out results FILE", "two policies, more pairs" },
    { "compare --policies root,ddp --out results scenarios/training/qwen3-vl.yaml", "what sharding costs against replicas" },
    { "compare --no-report --out results FILE", "on a machine without gnuplot; `lockstep report results` on another" },
    { 0 },
};
const struct ls_command ls_command_compare = {
    .name = "compare", .run = run, .operands = "FILE", .summary = "which policies are safe, and what does each cost, measured?",
    .text = "Judges every policy with every kind of batches, trains the safe ones on the engine in paired runs, replays the smallest failing run of "
            "the others, and saves everything in a folder: run.json (every step), report.html and report.md. Median, quartiles and mean are of "
            "the measured steps; policies are compared pair by pair, so that a drift of the machine hits both sides.\n\nThe scenario needs a model that the engine "
            "computes (scenarios/models/tiny_*, small_* and *_run) and policies. Nothing is written if the run fails or is interrupted. Exit status: 0 check and "
            "engine agree, and losses are the same in every run and under every policy that computes in the same dtypes; 1 not; 3 bad input; 4 gnuplot is missing, or the folder cannot be written.",
    .options = options, .examples = examples };
