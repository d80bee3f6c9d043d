/* Comparisons on the engine: what a cell is judged and seen to be, the order of runs, and what must be the same in all of them. The
 * committed comparison in reports/ is held against what this build gives: verdicts, units, tokens and memory
 * exactly, losses within 1e-3 (matrix products round differently from machine to machine); its times are data of the run it names. */
#include "report/compare.h"
#include "report/render.h"

#include <criterion/criterion.h>
#include <jansson.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define SCENARIO LS_SOURCE_DIR "/scenarios/training/qwen3-vl.yaml"
#define COMMITTED LS_SOURCE_DIR "/reports/training-qwen3-vl"

struct job { struct ls_arena arena; struct ls_names *names; struct ls_scenario s; struct ls_result r; };

static enum ls_code compare(struct job *j, const char *path, const struct ls_compare_options *o, struct ls_error *err)
{
    *j = (struct job){ .names = ls_names_open() };
    ls_arena_init(&j->arena, 0);
    enum ls_code rc = ls_scenario_load(path, &j->arena, j->names, &j->s, err);
    return rc == LS_OK ? ls_compare_run(&j->s, o, &j->arena, &j->r, err) : rc;
}

static void drop(struct job *j)
{
    ls_names_close(j->names);
    ls_arena_release(&j->arena);
}

static struct ls_compare_options all(uint64_t steps, uint64_t warmup, uint64_t rounds)
{
    return (struct ls_compare_options){ .policy = { LS_COMPARED_ROOT, LS_COMPARED_PER_LAYER, LS_COMPARED_REPLICATE }, .policies = 3,
                                        .batches = { LS_COMPARED_UNIFORM, LS_COMPARED_MIXED }, .kinds = 2, .seed = 1, .steps = steps, .warmup = warmup,
                                        .rounds = rounds, .blas_threads = 1 };
}

Test(compare, cells_orders_losses_and_memory)
{
    struct job j;
    struct ls_error err = { 0 };
    struct ls_summary m;
    struct ls_compare_options o = all(2, 1, 2);
    o.timelines = true;
    cr_assert_eq(compare(&j, SCENARIO, &o, &err), LS_OK, "%s", err.text);
    ls_summary_of(&j.r, &j.arena, &m);
    cr_assert_eq(j.r.cells, 6u);
    cr_assert_str_eq(j.r.baseline, "root");
    for (size_t i = 0; i < 6; i++) {
        const struct ls_result_cell *c = &j.r.cell[i];
        size_t place = i % 3, safe = i < 3 ? 3 : 2; /* per_layer with mixed batches is not safe, and takes no turn */
        bool unsafe = i == 4;
        cr_assert_str_eq(c->policy, ls_compared_policy[place]);
        cr_assert_str_eq(c->batches, i < 3 ? "uniform" : "mixed");
        cr_expect_eq(c->check, unsafe ? LS_MISMATCH : LS_SAFE);
        cr_expect_eq(c->replay, c->check, "%s %s: %s", c->policy, c->batches, c->replay_text);
        cr_expect_eq(c->replayed, unsafe ? LS_REPLAYED_WITNESS : LS_REPLAYED_TRAINED);
        cr_expect_eq(c->runs, unsafe ? 0u : 2u);
        cr_expect_eq(c->has_timeline, !unsafe);
        if (unsafe) {
            cr_expect(strstr(c->replay_text, "mismatch on 2 ranks at call 2 of dp_shard: rank 0 all_gather") || strstr(c->replay_text, "at call "), "%s", c->replay_text);
            continue;
        }
        size_t turn = i < 3 ? place : place == 2;
        cr_expect(c->run[0].round == 0 && c->run[0].order == turn, "%s: %u", c->policy, c->run[0].order);
        cr_expect(c->run[1].round == 1 && c->run[1].order == 2 * safe - 1 - turn, "%s: %u, backwards", c->policy, c->run[1].order);
        cr_expect(m.cell[i].repeats && (place == 0 || m.cell[i].like_baseline), "%s %s", c->policy, c->batches);
        cr_expect_eq(m.cell[i].step.count, 4u);
        for (size_t k = 0; k < 3; k++) {
            cr_expect(c->run[0].seconds[k] > 0 && isfinite(c->run[0].loss[k]) && c->run[0].loss[k] > 1 && c->run[0].norm[k] > 0);
            cr_expect_eq(c->run[0].text_tokens[k], j.r.cell[i - place].run[0].text_tokens[k], "policies were given different batches");
            cr_expect_eq(c->run[0].media_tokens[k], j.r.cell[i - place].run[0].media_tokens[k]);
        }
        cr_expect_eq(c->ranks, 2u);
        cr_expect_eq(c->timeline.step, 1u);
        cr_expect_gt(c->timeline.spans, 50u);
        for (size_t k = 0; k < c->timeline.spans; k++)
            cr_assert_leq(c->timeline.span[k].begin_ns, c->timeline.span[k].end_ns);
    }
    cr_expect_neq(j.r.cell[0].run[0].loss[2], j.r.cell[3].run[0].loss[2], "uniform and mixed batches are the same");
    /* per_layer cuts the tower into units and holds less at its peak; replicate leaves it in none and holds more shards. */
    cr_expect_gt(j.r.cell[1].units.count, j.r.cell[0].units.count);
    cr_expect_lt(m.cell[1].peak, m.cell[0].peak);
    drop(&j);
}

/* DDP beside the policies: the same batches, the same bits, whole parameters on every rank; what it shows unsafe is replayed. */
Test(compare, ddp)
{
    struct job j;
    struct ls_error err = { 0 };
    struct ls_summary m;
    struct ls_compare_options o = all(2, 1, 2);
    o.policy[1] = LS_COMPARED_DDP;
    o.policies = 2;
    cr_assert_eq(compare(&j, SCENARIO, &o, &err), LS_OK, "%s", err.text);
    ls_summary_of(&j.r, &j.arena, &m);
    cr_assert_eq(j.r.cells, 4u);
    for (size_t i = 1; i < 4; i += 2) {
        const struct ls_result_cell *c = &j.r.cell[i];
        cr_assert_str_eq(c->policy, "ddp");
        cr_expect(c->check == LS_SAFE && c->replay == LS_SAFE && c->replayed == LS_REPLAYED_TRAINED && c->runs == 2, "%s", c->replay_text);
        cr_expect(m.cell[i].agrees && m.cell[i].repeats && m.cell[i].like_baseline && !m.cell[i].wrong && c->other_dtype == 0);
        cr_expect_gt(m.cell[i].peak, m.cell[i - 1].peak);
        cr_expect_eq(c->units.count, 0u);
    }
    drop(&j);
    o = all(1, 0, 1);
    o.policy[0] = LS_COMPARED_DDP;
    o.policies = 1;
    cr_assert_eq(compare(&j, LS_SOURCE_DIR "/scenarios/hsdp/root-any.yaml", &o, &err), LS_EINPUT); /* replicas of shards */
    drop(&j);
}

static void write_l3(const char *path, const char *sizes, const char *slots)
{
    FILE *f = fopen(path, "w");
    cr_assert(f);
    fprintf(f, "lockstep: 1\nname: slots\nquestion: q\nmodel: {inventory: %s/scenarios/models/tiny_qwen3_vl.yaml}\nfreeze_config: {freeze_vision_tower: true}\n"
               "distributed: {strategy: fsdp2, rules: automodel, %s, multimodal: {frozen_sharding: root}}\n"
               "batch: {microbatches: 1, samples: [{text: 12}, {text: 9, images: 1}], execution: any}\nstep: {clip_grad_norm: true, metrics: [loss]}\n%s",
            LS_SOURCE_DIR, sizes, slots);
    cr_assert_eq(fclose(f), 0);
}

/* Level L3. In issue order one slot is enough: verdicts and losses are those of L2. In any order it is not, where gathers among shards and
 * sums over replicas want it: check finds an order, and the engine hangs in it. */
Test(compare, kernel_slots)
{
    char base[] = "/tmp/lockstep-compare-XXXXXX", path[100];
    struct job a, b;
    struct ls_error err = { 0 };
    struct ls_compare_options o = all(2, 0, 1);
    cr_assert(mkdtemp(base));
    snprintf(path, sizeof path, "%s/s.yaml", base);
    write_l3(path, "dp_size: 2", "");
    cr_assert_eq(compare(&a, path, &o, &err), LS_OK, "%s", err.text);
    write_l3(path, "dp_size: 2", "runtime: {level: L3, l3: {kernels: 1, start: issue_order}}\n");
    cr_assert_eq(compare(&b, path, &o, &err), LS_OK, "%s", err.text);
    for (size_t i = 0; i < 6; i++) {
        const struct ls_result_cell *x = &a.r.cell[i], *y = &b.r.cell[i];
        cr_expect(x->check == y->check && y->replay == y->check && x->replayed == y->replayed && x->runs == y->runs, "%s %s: %s", y->policy, y->batches, y->check_text);
        cr_expect((y->check == LS_SAFE) == (i != 4), "%s %s", y->policy, y->batches);
        if (y->runs) {
            cr_assert_arr_eq(x->run[0].loss, y->run[0].loss, 2 * sizeof(double));
            cr_assert_arr_eq(x->run[0].norm, y->run[0].norm, 2 * sizeof(double));
        }
    }
    drop(&a), drop(&b);
    write_l3(path, "dp_size: 4, dp_replicate_size: 2", "runtime: {level: L3, l3: {kernels: 1, start: any}}\n");
    o.policies = o.kinds = 1;
    cr_assert_eq(compare(&a, path, &o, &err), LS_OK, "%s", err.text);
    const struct ls_result_cell *c = &a.r.cell[0];
    cr_expect(c->check == LS_HANG && c->replay == LS_HANG && c->replayed == LS_REPLAYED_WITNESS && c->runs == 0, "%s; %s", c->check_text, c->replay_text);
    cr_expect(strstr(c->check_text, "HANG") && strstr(c->replay_text, "hang on 4 ranks at call") && strstr(c->replay_text, "which kernel starts first decides"), "%s",
              c->replay_text);
    drop(&a);
    cr_assert_eq(unlink(path), 0);
    cr_assert_eq(rmdir(base), 0);
}

/* A tower in no unit is cast by nobody: under replicate it computes as it is stored, and the losses are told to be its own. */
Test(compare, dtypes_that_differ_explain_losses_that_do)
{
    char base[] = "/tmp/lockstep-compare-XXXXXX", path[100];
    cr_assert(mkdtemp(base));
    snprintf(path, sizeof path, "%s/s.yaml", base);
    FILE *f = fopen(path, "w");
    cr_assert(f);
    fprintf(f, "lockstep: 1\nname: bf16\nquestion: q\nmodel: {inventory: %s/scenarios/models/tiny_gemma3.yaml}\nfreeze_config: {freeze_vision_tower: true}\n"
               "distributed: {strategy: fsdp2, rules: automodel, dp_size: 2, mp_policy: {param: bf16, reduce: f32, output: bf16}, multimodal: {frozen_sharding: root}}\n"
               "batch: {microbatches: 1, samples: [{text: 12, images: 1}], execution: any}\nstep: {clip_grad_norm: true, metrics: [loss]}\n", LS_SOURCE_DIR);
    cr_assert_eq(fclose(f), 0);
    struct job j;
    struct ls_error err = { 0 };
    struct ls_summary m;
    struct ls_compare_options o = all(2, 0, 1);
    o.kinds = 1;
    cr_assert_eq(compare(&j, path, &o, &err), LS_OK, "%s", err.text);
    ls_summary_of(&j.r, &j.arena, &m);
    cr_expect(j.r.cell[1].other_dtype == 0 && m.cell[1].like_baseline, "per_layer casts its tower");
    cr_expect(j.r.cell[2].other_dtype > 20 && !m.cell[2].like_baseline && !m.cell[2].wrong);
    cr_expect(strstr(m.answer, "losses differ where a policy computes in another dtype"), "%s", m.answer);
    drop(&j);
    cr_assert_eq(unlink(path), 0);
    cr_assert_eq(rmdir(base), 0);
}

/* Threads change times, nothing else. */
Test(compare, threads_give_the_same_bits)
{
    struct job a, b;
    struct ls_error err = { 0 };
    struct ls_compare_options o = all(2, 0, 1);
    o.policies = 1, o.kinds = 1;
    cr_assert_eq(compare(&a, SCENARIO, &o, &err), LS_OK, "%s", err.text);
    o.free = true;
    cr_assert_eq(compare(&b, SCENARIO, &o, &err), LS_OK, "%s", err.text);
    cr_assert_arr_eq(a.r.cell[0].run[0].loss, b.r.cell[0].run[0].loss, 2 * sizeof(double));
    cr_assert_arr_eq(a.r.cell[0].run[0].norm, b.r.cell[0].run[0].norm, 2 * sizeof(double));
    for (size_t r = 0; r < 2; r++)
        cr_assert_eq(a.r.cell[0].memory[r].total, b.r.cell[0].memory[r].total);
    drop(&a);
    drop(&b);
}

Test(compare, what_cannot_be_compared_is_refused)
{
    static const struct { const char *path, *says; } row[] = {
        { LS_SOURCE_DIR "/scenarios/raw/agreed-branch.yaml", "lists its operations itself" },
        { LS_SOURCE_DIR "/scenarios/partly-used-unit/b09-any.yaml", "lists its units itself" },
        { LS_SOURCE_DIR "/scenarios/mixed-media/root.yaml", "" }, /* the operators of a full model are not all there */
    };
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        struct job j;
        struct ls_error err = { 0 };
        struct ls_compare_options o = all(1, 0, 1);
        cr_expect_eq(compare(&j, row[i].path, &o, &err), LS_EINPUT, "%s", row[i].path);
        cr_expect(err.text[0] && strstr(err.text, row[i].says), "%s: %s", row[i].path, err.text);
        drop(&j);
    }
}

Test(compare, an_interrupted_comparison_stops)
{
    struct job j;
    struct ls_error err = { 0 };
    volatile sig_atomic_t interrupted = SIGINT;
    struct ls_compare_options o = all(2, 0, 2);
    o.interrupted = &interrupted;
    cr_assert_eq(compare(&j, SCENARIO, &o, &err), LS_OK, "%s", err.text);
    for (size_t i = 0; i < j.r.cells; i++)
        cr_assert_eq(j.r.cell[i].runs, 0u);
    drop(&j);
}

/* ---- the program ---- */

static pid_t start(char *const argv[])
{
    pid_t child = fork();
    cr_assert(child >= 0);
    if (child == 0) {
        if (chdir(LS_SOURCE_DIR) != 0 || !freopen("/dev/null", "w", stdout) || !freopen("/dev/null", "w", stderr))
            _exit(126);
        execv(LS_BINARY_DIR "/lockstep", argv);
        _exit(127);
    }
    return child;
}

/* Ctrl-C in the middle: the program dies of the signal, and nothing of the comparison stays. */
Test(compare, a_signal_leaves_nothing)
{
    for (int delay_ms = 200; delay_ms <= 1800; delay_ms += 800) {
        char base[] = "/tmp/lockstep-compare-XXXXXX", out[100];
        int status = 0;
        cr_assert(mkdtemp(base));
        snprintf(out, sizeof out, "%s/out", base);
        pid_t child = start((char *[]){ "lockstep", "compare", "--no-report", "--steps", "500", "--out", out, "scenarios/training/qwen3-vl.yaml", NULL });
        nanosleep(&(struct timespec){ delay_ms / 1000, delay_ms % 1000 * 1000000L }, NULL);
        kill(child, SIGINT);
        cr_assert_eq(waitpid(child, &status, 0), child);
        cr_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGINT, "after %d ms: status %x", delay_ms, (unsigned)status);
        cr_assert_eq(rmdir(base), 0, "after %d ms: something is left in %s", delay_ms, base);
    }
}

static int status_of(pid_t child)
{
    int status = 0;
    cr_assert_eq(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}

/* Without gnuplot nothing is measured, nothing is written, and Markdown still works. */
Test(compare, without_gnuplot)
{
    char base[] = "/tmp/lockstep-compare-XXXXXX", out[100];
    cr_assert(mkdtemp(base));
    snprintf(out, sizeof out, "%s/out", base);
    setenv("PATH", "/nowhere", 1);
    cr_expect_eq(status_of(start((char *[]){ "lockstep", "compare", "--out", out, "scenarios/training/qwen3-vl.yaml", NULL })), LS_EBACKEND);
    cr_expect_eq(status_of(start((char *[]){ "lockstep", "report", "--out", out, "tests/data/report", NULL })), LS_EBACKEND);
    cr_expect_eq(status_of(start((char *[]){ "lockstep", "report", "--markdown", "tests/data/report", NULL })), LS_OK);
    cr_expect_eq(rmdir(base), 0, "something is left in %s", base);
}

/* One object with a version, either the cells or the error. */
static void check_json(const char *folder, bool drawn)
{
    char command[600];
    snprintf(command, sizeof command, "'%s/lockstep' report --json '%s'", LS_BINARY_DIR, folder);
    FILE *f = popen(command, "r");
    cr_assert(f);
    json_error_t wrong;
    json_t *root = json_loadf(f, JSON_REJECT_DUPLICATES, &wrong);
    cr_assert(root, "%d:%d %s", wrong.line, wrong.column, wrong.text);
    cr_assert_eq(WEXITSTATUS(pclose(f)), drawn ? LS_OK : LS_EBACKEND);
    cr_assert_eq(json_integer_value(json_object_get(root, "version")), 1);
    cr_assert_str_eq(json_string_value(json_object_get(root, "command")), "report");
    const json_t *cells = json_object_get(root, "cells"), *cell = json_array_get(cells, 0);
    if (drawn) {
        cr_assert_eq(json_array_size(cells), 2u);
        cr_assert_str_eq(json_string_value(json_object_get(cell, "policy")), "replicate");
        cr_assert_str_eq(json_string_value(json_object_get(cell, "check")), "safe");
        cr_assert(json_is_true(json_object_get(cell, "agrees")) && json_is_true(json_object_get(cell, "losses_repeat")));
        cr_assert_eq(json_integer_value(json_object_get(json_object_get(cell, "step_s"), "count")), 4);
        cr_assert_eq(json_integer_value(json_object_get(json_object_get(cell, "throughput_against_baseline"), "pairs")), 2);
    } else {
        cr_assert(json_is_object(json_object_get(root, "error")));
    }
    json_decref(root);
}

/* A saved run is measured on one machine and rendered on another. */
Test(compare, save_then_report)
{
    char base[] = "/tmp/lockstep-compare-XXXXXX", out[100], html[140];
    struct ls_arena arena;
    struct ls_result r;
    struct ls_error err = { 0 };
    struct stat st;
    cr_assert(mkdtemp(base));
    snprintf(out, sizeof out, "%s/out", base);
    snprintf(html, sizeof html, "%s/report.html", out);
    ls_arena_init(&arena, 0);
    cr_assert_eq(status_of(start((char *[]){ "lockstep", "compare", "--no-report", "--steps", "2", "--warmup", "1", "--rounds", "2", "--policies", "replicate,root", "--batches",
                                             "contract", "--out", out, "scenarios/training/qwen3-vl.yaml", NULL })), LS_OK);
    snprintf(html, sizeof html, "%s/run.json", out);
    cr_assert_eq(ls_result_load(html, &arena, &r, &err), LS_OK, "%s", err.text);
    cr_assert(r.cells == 2 && strcmp(r.cell[0].policy, "replicate") == 0 && strcmp(r.baseline, "root") == 0 && r.cell[1].runs == 2 && r.cell[0].simulated);
    snprintf(html, sizeof html, "%s/report.html", out);
    cr_assert_neq(stat(html, &st), 0);
    int status = status_of(start((char *[]){ "lockstep", "report", out, NULL }));
    if (status == LS_OK) /* gnuplot is here */
        cr_assert(stat(html, &st) == 0 && st.st_size > 10000);
    else
        cr_assert_eq(status, LS_EBACKEND);
    check_json(out, status == LS_OK);
    char command[160];
    snprintf(command, sizeof command, "rm -r '%s'", base);
    cr_assert_eq(system(command), 0);
    ls_arena_release(&arena);
}

/* ---- the committed comparison ---- */

static void load(const char *path, struct ls_arena *arena, struct ls_result *r)
{
    struct ls_error err = { 0 };
    cr_assert_eq(ls_result_load(path, arena, r, &err), LS_OK, "%s:%zu:%zu %s", path, err.input.line, err.input.column, err.text);
}

Test(compare, committed_comparison_is_what_this_build_gives)
{
    struct job j;
    struct ls_error err = { 0 };
    struct ls_result was;
    struct ls_arena arena;
    ls_arena_init(&arena, 0);
    load(COMMITTED "/run.json", &arena, &was);
    struct ls_compare_options o = all(was.steps, was.warmup, 1);
    o.seed = was.seed;
    cr_assert_eq(compare(&j, SCENARIO, &o, &err), LS_OK, "%s", err.text);
    cr_expect_str_eq(j.r.text, was.text, "the scenario changed: compare it again");
    cr_expect_eq(j.r.model_hash, was.model_hash, "the model changed: compare it again");
    cr_assert(j.r.cells == was.cells && j.r.ranks == was.ranks && j.r.categories.count == was.categories.count);
    for (size_t i = 0; i < was.cells; i++) {
        const struct ls_result_cell *a = &was.cell[i], *b = &j.r.cell[i];
        cr_assert(strcmp(a->policy, b->policy) == 0 && strcmp(a->batches, b->batches) == 0);
        cr_expect(a->check == b->check && a->replayed == b->replayed && a->replay == b->replay, "%s %s", a->policy, a->batches);
        cr_expect_str_eq(a->check_text, b->check_text);
        cr_expect_str_eq(a->replay_text, b->replay_text);
        cr_assert_eq(a->units.count, b->units.count);
        for (size_t k = 0; k < a->units.count; k++)
            cr_expect_str_eq(a->units.at[k], b->units.at[k]);
        cr_assert(a->ranks == b->ranks && (a->runs > 0) == (b->runs > 0));
        for (size_t r = 0; r < a->ranks; r++)
            for (size_t k = 0; k < was.categories.count; k++)
                cr_expect_eq(a->memory[r].at_peak[k], b->memory[r].at_peak[k], "%s %s, rank %zu, %s: %llu and %llu", a->policy, a->batches, r,
                             was.categories.at[k], (unsigned long long)a->memory[r].at_peak[k], (unsigned long long)b->memory[r].at_peak[k]);
        for (size_t k = 0; a->runs && k < a->run[0].steps; k++) {
            cr_expect(a->run[0].text_tokens[k] == b->run[0].text_tokens[k] && a->run[0].media_tokens[k] == b->run[0].media_tokens[k]);
            cr_expect_float_eq(a->run[0].loss[k], b->run[0].loss[k], 1e-3 * b->run[0].loss[k], "%s %s, step %zu: %.9g and %.9g", a->policy, a->batches, k,
                               a->run[0].loss[k], b->run[0].loss[k]);
        }
    }
    drop(&j);
    ls_arena_release(&arena);
}

static void read_text(const char *path, struct ls_str *out)
{
    FILE *f = fopen(path, "rb");
    cr_assert(f, "%s", path);
    for (int c; (c = getc(f)) != EOF;)
        ls_str_addn(out, &(char){ (char)c }, 1);
    fclose(f);
}

static void without_figures(struct ls_str *text)
{
    struct ls_str out = { 0 };
    const char *at = ls_str_text(text);
    for (const char *open; (open = strstr(at, "<svg")); at = strstr(open, "</svg>\n") + 7)
        ls_str_addn(&out, at, (size_t)(open - at));
    ls_str_add(&out, at);
    ls_str_release(text);
    *text = out;
}

Test(compare, committed_report_is_rendered_from_its_run)
{
    struct ls_result r;
    struct ls_summary s;
    struct ls_figures f;
    struct ls_arena arena;
    struct ls_str have = { 0 }, want = { 0 };
    ls_arena_init(&arena, 0);
    load(COMMITTED "/run.json", &arena, &r);
    ls_summary_of(&r, &arena, &s);
    ls_figures_list(&r, &arena, &f);
    ls_render_markdown(&r, &s, &f, &arena, &want);
    read_text(COMMITTED "/report.md", &have);
    cr_expect(strcmp(ls_str_text(&have), ls_str_text(&want)) == 0, "reports/ is stale: lockstep report renews it");
    ls_str_clear(&want);
    ls_str_clear(&have);
    ls_render_html(&r, &s, &f, &arena, &want);
    read_text(COMMITTED "/report.html", &have);
    without_figures(&have);
    cr_expect(strcmp(ls_str_text(&have), ls_str_text(&want)) == 0, "reports/ is stale: lockstep report renews it");
    for (size_t i = 0; i < f.count; i++) {
        char path[600];
        struct stat st;
        snprintf(path, sizeof path, COMMITTED "/%s", f.at[i].file);
        cr_expect(stat(path, &st) == 0 && st.st_size > 1000, "%s", path);
    }
    ls_str_release(&have);
    ls_str_release(&want);
    ls_figures_release(&f);
    ls_arena_release(&arena);
}
