/* Statistics, saved comparisons, summaries, tables, figures and pages. Golden files: tests/data/report/, LS_GOLDEN=write renews them. */
#include "cli/folder.h"
#include "report/figures.h"
#include "report/gnuplot.h"
#include "report/render.h"
#include "report/template.h"
#include "result_case.h"

#include "base/hash.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- statistics ---- */

Test(report, spread_of_known_series)
{
    static const double four[] = { 4, 1, 3, 2 }, one[] = { 7 }, holes[] = { NAN, 2, NAN, 4 };
    struct ls_spread s = ls_spread_of(four, 4);
    cr_assert_eq(s.count, 4u);
    cr_assert_eq(s.median, 2.5);
    cr_assert_eq(s.low, 1.75);
    cr_assert_eq(s.high, 3.25);
    cr_assert_eq(s.mean, 2.5);
    cr_assert_float_eq(s.sd, 1.2909944487358056, 1e-15);
    cr_assert(s.min == 1 && s.max == 4);
    s = ls_spread_of(one, 1);
    cr_assert(s.count == 1 && s.median == 7 && s.low == 7 && s.high == 7 && s.mean == 7 && s.sd == 0 && s.min == 7 && s.max == 7);
    s = ls_spread_of(holes, 4);
    cr_assert(s.count == 2 && s.median == 3 && s.mean == 3);
    s = ls_spread_of(holes, 1);
    cr_assert(s.count == 0 && isnan(s.median) && isnan(s.mean) && isnan(s.sd));
}

/* Half of the values lie on either side of the median, and quartiles do it with a quarter; shifts and scales carry over. */
Test(report, spread_divides_random_series)
{
    for (uint64_t seed = 1; seed <= 300; seed++) {
        double x[40], y[40];
        uint64_t random = seed;
        size_t n = 1 + ls_random_below(&random, 40), under = 0, over = 0, quarter = 0;
        for (size_t i = 0; i < n; i++) {
            x[i] = (double)ls_random_below(&random, 50);
            y[i] = 3 * x[i] - 11;
        }
        struct ls_spread a = ls_spread_of(x, n), b = ls_spread_of(y, n);
        for (size_t i = 0; i < n; i++) {
            under += x[i] < a.median;
            over += x[i] > a.median;
            quarter += x[i] < a.low;
        }
        cr_assert(2 * under <= n && 2 * over <= n && 4 * quarter <= n + 3, "seed %llu", (unsigned long long)seed);
        cr_assert(a.min <= a.low && a.low <= a.median && a.median <= a.high && a.high <= a.max, "seed %llu", (unsigned long long)seed);
        cr_assert_float_eq(b.median, 3 * a.median - 11, 1e-9, "seed %llu", (unsigned long long)seed);
        cr_assert_float_eq(b.high, 3 * a.high - 11, 1e-9, "seed %llu", (unsigned long long)seed);
        cr_assert_float_eq(b.mean, 3 * a.mean - 11, 1e-9, "seed %llu", (unsigned long long)seed);
        cr_assert_float_eq(b.sd, 3 * a.sd, 1e-9, "seed %llu", (unsigned long long)seed);
    }
}

/* A machine that gets slower hits both sides of a pair: their ratio does not see it, whatever the order within pairs. */
Test(report, pairs_do_not_see_drift)
{
    double a[6], b[6];
    for (size_t i = 0; i < 6; i++) {
        double drift = 1 + 0.5 * (double)i;
        a[i] = 1.25 * drift;
        b[i] = drift;
    }
    struct ls_paired p = ls_paired_of(a, b, 6);
    cr_assert(p.ratio.count == 6 && p.above == 6 && p.below == 0);
    cr_assert_float_eq(p.ratio.median, 1.25, 1e-12);
    cr_assert_float_eq(p.ratio.sd, 0, 1e-12);
    cr_assert_gt(ls_spread_of(a, 6).sd, 0.5);
    b[0] = 0, a[1] = NAN; /* left out */
    cr_assert_eq(ls_paired_of(a, b, 6).ratio.count, 4u);
}

/* ---- saved files ---- */

struct saved { struct ls_arena arena; struct ls_result r; struct ls_str text; };

static void open_case(struct saved *s, uint64_t seed)
{
    *s = (struct saved){ 0 };
    ls_arena_init(&s->arena, 0);
    result_case(&s->r, &s->arena, seed);
    ls_result_write(&s->r, &s->text);
}

static void close_case(struct saved *s)
{
    ls_str_release(&s->text);
    ls_arena_release(&s->arena);
}

Test(report, saved_file_reads_back_equal)
{
    for (uint64_t seed = 1; seed <= 3; seed++) {
        struct saved s;
        struct ls_error err = { 0 };
        struct ls_result again;
        struct ls_str text = { 0 };
        open_case(&s, seed);
        s.r.cell[0].run[1].loss[3] = NAN;
        s.r.cell[0].run[1].norm[4] = INFINITY;
        ls_str_clear(&s.text);
        ls_result_write(&s.r, &s.text);
        cr_assert_eq(ls_result_read(s.text.text, s.text.length, "run.json", &s.arena, &again, &err), LS_OK, "%zu:%zu %s", err.input.line, err.input.column,
                     err.text);
        cr_assert_arr_eq(again.cell[2].run[3].seconds, s.r.cell[2].run[3].seconds, s.r.cell[2].run[3].steps * sizeof(double));
        cr_assert_arr_eq(again.cell[2].timeline.span, s.r.cell[2].timeline.span, s.r.cell[2].timeline.spans * sizeof(struct ls_result_span));
        cr_assert(isnan(again.cell[0].run[1].loss[3]) && isnan(again.cell[0].run[1].norm[4]));
        cr_assert(again.cell[4].check == LS_MISMATCH && again.cell[4].replayed == LS_REPLAYED_WITNESS && !again.cell[4].runs);
        ls_result_write(&again, &text);
        cr_assert_str_eq(ls_str_text(&text), ls_str_text(&s.text));
        ls_str_release(&text);
        close_case(&s);
    }
}

/* One place of the saved file changed (its `nth` occurrence, from 1), and what the reader says; line 0: not looked at. */
static const struct bad { const char *from; size_t nth; const char *to, *says; size_t line, column; } bad[] = {
    { "\"lockstep_result\": 1,", 1, "\"lockstep_result\": 2,", "'lockstep_result' is 2; this program reads version 1", 2, 22 },
    { "\"lockstep_result\": 1,", 1, "\"lockstep_result\": \"1\",", "'lockstep_result' is not a whole number", 2, 22 },
    { "\"lockstep_result\": 1,", 1, "", "'the file' is no saved comparison: it has no 'lockstep_result'", 1, 1 },
    { "\"version\": \"0.1.0\",", 1, "", "'lockstep' has no 'version'", 3, 15 },
    { "\"cores\": 2", 1, "\"cores\": -2", "'environment.cores' is not a whole number", 23, 14 },
    { "\"cores\": 2", 1, "\"cores\": 2.5", "'environment.cores' is not a whole number", 23, 14 },
    { "\"cores\": 2", 1, "\"cores\": 99999999", "'environment.cores' is 99999999, more than 1048576", 23, 14 },
    { "name: made-up", 1, "name: changed", "'scenario' has another text than its hash says: the file was changed after the run", 8, 15 },
    { "\"hash\": \"", 1, "\"hash\": \"x", "'scenario.hash' is not a hash: 16 hexadecimal digits", 0, 0 },
    { "\"steps\": 10", 1, "\"steps\": 11", "'cells[0].runs[0].seconds' has 12 entries, and a run has 13 steps", 0, 0 },
    { "\"rounds\": 6", 1, "\"rounds\": 0", "'options' has no ranks, no steps or no rounds", 0, 0 },
    { "\"rounds\": 6", 1, "\"rounds\": 2", "'cells[0].runs[2].round' is 2, more than 1", 0, 0 },
    { "\"round\": 3", 1, "\"round\": 2", "'cells[0].runs[3]' is a second run of round 2", 0, 0 },
    { "\"ranks\": 2", 1, "\"ranks\": 3", "'cells[0].memory' has 2 entries, and there are 3 ranks that ran", 0, 0 },
    { "\"policy\": \"per_layer\"", 1, "\"policy\": \"root\"", "'cells[1]' is a second cell of root and uniform", 0, 0 },
    { "\"verdict\": \"safe\"", 1, "\"verdict\": \"fine\"", "'cells[0].check.verdict' is 'fine', which is no verdict", 0, 0 },
    { "\"run\": \"trained\"", 2, "\"run\": \"ran\"", "'cells[1].replay.run' is 'ran', not one of none, trained, witness", 0, 0 },
    { "\"run\": \"trained\"", 1, "\"run\": \"witness\"", "'cells[0]' has times, but it is not safe or was not trained", 0, 0 },
    { "\"total\": ", 1, "\"total\": 1", "'cells[0].memory[0]' has categories that sum to 6640000, not to its total of 16640000", 0, 0 },
    { "\"at_peak\": [1200000,", 1, "\"at_peak\": [", "'cells[0].memory[0].at_peak' has 7 entries, and there are 8 categories", 0, 0 },
    { "\"seconds\": [", 1, "\"seconds\": [0,", "'cells[0].runs[0].seconds' has 13 entries, and a run has 12 steps", 0, 0 },
    { "\"loss\": [4.125", 1, "\"loss\": [\"4.125\"", "'cells[0].runs[0].loss[0]' is not a number", 0, 0 },
    { "\"kinds\": [\"forward\",", 1, "\"kinds\": [", "'cells[0].timeline.spans[", 0, 0 },
    { "[0,0,0,0,100000,380000]", 1, "[0,0,0,0,100000,99999]", "'cells[0].timeline.spans[0]' ends before it begins", 0, 0 },
    { "[0,0,0,0,100000,380000]", 1, "[0,0,0,0,100000]", "'cells[0].timeline.spans[0]' is not a list of 6 numbers", 0, 0 },
    { "[0,0,0,0,100000,380000]", 1, "[9,0,0,0,100000,380000]", "'cells[0].timeline.spans[0][0]' is 9, more than 1", 0, 0 },
    { "\"cells\": [", 1, "\"cells\": [], \"other\": [", "'cells' is empty", 0, 0 },
    { "\"cells\": [", 1, "\"cells\": [3,", "'cells[0]' is not an object", 0, 0 },
    { "\"warmup\": 2", 1, "\"warmup\": 2, \"warmup\": 2", "not JSON, or cut off: duplicate object key", 0, 0 },
};

static void change(const struct ls_str *text, const struct bad *b, struct ls_str *out)
{
    const char *at = ls_str_text(text) - 1;
    for (size_t i = 0; i < b->nth; i++)
        cr_assert((at = strstr(at + 1, b->from)), "'%s' is not in the file", b->from);
    ls_str_addn(out, text->text, (size_t)(at - text->text));
    ls_str_add(out, b->to);
    ls_str_add(out, at + strlen(b->from));
}

Test(report, bad_files_are_told_where)
{
    struct saved s;
    open_case(&s, 1);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct ls_str text = { 0 };
        struct ls_error err = { 0 };
        struct ls_result r;
        change(&s.text, &bad[i], &text);
        cr_expect_eq(ls_result_read(ls_str_text(&text), text.length, "run.json", &s.arena, &r, &err), LS_EINPUT, "'%s' as '%s' was accepted", bad[i].from,
                     bad[i].to);
        cr_expect_eq(strncmp(err.text, bad[i].says, strlen(bad[i].says)), 0, "'%s' as '%s': %s", bad[i].from, bad[i].to, err.text);
        cr_expect(err.input.line && err.input.column, "%s: no position", err.text);
        if (bad[i].line)
            cr_expect(err.input.line == bad[i].line && err.input.column == bad[i].column, "%s: at %zu:%zu", err.text, err.input.line, err.input.column);
        ls_str_release(&text);
    }
    close_case(&s);
}

/* The position is that of the text that is wrong, wherever it is. */
Test(report, positions_point_at_the_value)
{
    struct saved s;
    open_case(&s, 1);
    for (size_t nth = 1; nth <= 15; nth++) {
        struct ls_str text = { 0 };
        struct ls_error err = { 0 };
        struct ls_result r;
        change(&s.text, &(struct bad){ "\"loss\": [4.125", nth, "\"loss\": [false", NULL, 0, 0 }, &text);
        cr_assert_eq(ls_result_read(ls_str_text(&text), text.length, "run.json", &s.arena, &r, &err), LS_EINPUT);
        const char *at = ls_str_text(&text);
        for (size_t line = 1; line < err.input.line; line++)
            at = strchr(at, '\n') + 1;
        cr_assert_eq(strncmp(at + err.input.column - 1, "false", 5), 0, "occurrence %zu: %zu:%zu", nth, err.input.line, err.input.column);
        ls_str_release(&text);
    }
    close_case(&s);
}

Test(report, every_cut_is_refused)
{
    struct saved s;
    open_case(&s, 1);
    for (size_t length = 0; length + 2 < s.text.length; length += length < 2000 ? 7 : 211) {
        struct ls_error err = { 0 };
        struct ls_result r;
        cr_assert_eq(ls_result_read(s.text.text, length, "run.json", &s.arena, &r, &err), LS_EINPUT, "%zu bytes were accepted", length);
        cr_assert(err.input.line > 0 && err.text[0]);
    }
    close_case(&s);
}

/* ---- what follows ---- */

Test(report, summary_of_the_made_up_case)
{
    struct saved s;
    struct ls_summary m;
    open_case(&s, 1);
    ls_summary_of(&s.r, &s.arena, &m);
    cr_assert(m.policies.count == 3 && m.batches.count == 2);
    for (size_t i = 0; i < s.r.cells; i++) {
        bool unsafe = i == 4;
        cr_expect(m.cell[i].agrees && m.cell[i].measured == !unsafe && m.cell[i].repeats == !unsafe, "cell %zu", i);
        if (unsafe)
            continue;
        cr_expect_eq(m.cell[i].step.count, 60u); /* 6 runs of 10 steps: no warm-up */
        cr_expect_lt(m.cell[i].step.max, 0.0125, "a warm-up step is among those of cell %zu", i);
        cr_expect_eq(m.cell[i].worst, 1u);
        cr_expect(m.cell[i].paired == (i % 3 != 0));
        cr_expect(m.cell[i].like_baseline);
        if (m.cell[i].paired)
            cr_expect_eq(m.cell[i].against.ratio.count, 6u);
    }
    cr_expect_lt(m.cell[1].against.ratio.median, 1); /* per_layer is slower, replicate faster: so the case is made */
    cr_expect_gt(m.cell[2].against.ratio.median, 1);
    cr_expect(strstr(m.answer, "replicate takes 293 KiB more memory and is 4.9 % faster (uniform) and"), "%s", m.answer);
    /* Five pairs are too few to call it a difference, and so are six of which one says otherwise. */
    for (size_t i = 0; i < s.r.cells; i++)
        s.r.cell[i].runs -= s.r.cell[i].runs > 0;
    ls_summary_of(&s.r, &s.arena, &m);
    cr_expect(strstr(m.answer, "and is not clearly faster or slower."), "%s", m.answer);
    for (size_t i = 0; i < s.r.cells; i++)
        s.r.cell[i].runs += s.r.cell[i].runs > 0;
    for (size_t k = 0; k < s.r.cell[2].run[3].steps; k++)
        s.r.cell[2].run[3].seconds[k] *= 2, s.r.cell[5].run[3].seconds[k] *= 2;
    ls_summary_of(&s.r, &s.arena, &m);
    cr_expect(strstr(m.answer, "and is not clearly faster or slower."), "%s", m.answer);
    cr_expect_eq(m.cell[2].against.above, 5u);
    cr_expect_null(strstr(m.answer, "busy"));
    s.r.load = 1.5;
    ls_summary_of(&s.r, &s.arena, &m);
    cr_expect(strstr(m.answer, "; times are from a busy machine (load 1.5 on 2 cores)."), "%s", m.answer);
    /* One bit of one loss is seen. */
    s.r.cell[2].run[3].loss[11] = nextafter(s.r.cell[2].run[3].loss[11], 10);
    ls_summary_of(&s.r, &s.arena, &m);
    cr_expect(!m.cell[2].repeats && m.cell[1].repeats);
    s.r.cell[2].run[0].norm[0] = nextafter(s.r.cell[2].run[0].norm[0], 10);
    ls_summary_of(&s.r, &s.arena, &m);
    cr_expect(!m.cell[2].like_baseline && m.cell[1].like_baseline);
    cr_expect(strstr(m.answer, "losses that should be the same are DIFFERENT") && m.cell[2].wrong && !m.cell[1].wrong, "%s", m.answer);
    s.r.cell[2].run[3].loss[11] = s.r.cell[2].run[2].loss[11], s.r.cell[2].run[1].norm[0] = s.r.cell[2].run[0].norm[0];
    for (size_t i = 2; i < 6; i++)
        s.r.cell[2].run[i].norm[0] = s.r.cell[2].run[0].norm[0];
    s.r.cell[2].other_dtype = 54; /* another dtype explains it */
    ls_summary_of(&s.r, &s.arena, &m);
    cr_expect(strstr(m.answer, "losses differ where a policy computes in another dtype") && !m.cell[2].wrong && !m.cell[2].like_baseline, "%s", m.answer);
    /* So is a replay that saw something else. */
    s.r.cell[4].replay = LS_SAFE;
    ls_summary_of(&s.r, &s.arena, &m);
    cr_expect(!m.cell[4].agrees && strstr(m.answer, "in 1 of 6 cells the replay DISAGREES with check"), "%s", m.answer);
    close_case(&s);
}

Test(report, numbers_have_three_digits)
{
    static const struct { double value; const char *bytes, *seconds; } row[] = {
        { 0, "0 B", "0.00 us" }, { 999, "999 B", "999 s" }, { 1024, "1.00 KiB", "1024 s" }, { 1023 * 1024.0, "1023 KiB", NULL },
        { 1.5 * 1024 * 1024, "1.50 MiB", NULL }, { 12.34 * 1024 * 1024 * 1024, "12.3 GiB", NULL }, { 1e-6, NULL, "1.00 us" },
        { 0.00999, NULL, "9.99 ms" }, { 0.009996, NULL, "10.0 ms" }, { 0.99949, NULL, "999 ms" }, { 0.9996, NULL, "1.00 s" } };
    struct ls_arena arena;
    ls_arena_init(&arena, 0);
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        if (row[i].bytes && row[i].value != 1023 * 1024.0)
            cr_expect_str_eq(ls_bytes_text(row[i].value, &arena), row[i].bytes);
        if (row[i].seconds)
            cr_expect_str_eq(ls_seconds_text(row[i].value, &arena), row[i].seconds);
    }
    ls_arena_release(&arena);
}

/* ---- rendering ---- */

static void golden(const char *name, const struct ls_str *text)
{
    const char *mode = getenv("LS_GOLDEN");
    bool writing = mode && strcmp(mode, "write") == 0;
    struct ls_str path = { 0 }, have = { 0 };
    ls_str_printf(&path, "%s/tests/data/report/%s", LS_SOURCE_DIR, name);
    FILE *f = fopen(ls_str_text(&path), writing ? "wb" : "rb");
    cr_assert(f, "%s", ls_str_text(&path));
    if (writing) {
        cr_assert_eq(fwrite(ls_str_text(text), 1, text->length, f), text->length);
    } else {
        for (int c; (c = getc(f)) != EOF;)
            ls_str_addn(&have, &(char){ (char)c }, 1);
        size_t at = 0;
        while (at < have.length && at < text->length && have.text[at] == text->text[at])
            at++;
        cr_expect(have.length == text->length && at == have.length, "%s differs at byte %zu: '%.60s'; LS_GOLDEN=write renews it", name, at,
                  at < text->length ? text->text + at : "");
    }
    cr_assert_eq(fclose(f), 0);
    ls_str_release(&path);
    ls_str_release(&have);
}

/* Drawings differ between versions of gnuplot: the pages have stand-ins, and the scripts are compared. */
Test(report, pages_and_scripts_are_those_of_the_golden_files)
{
    struct saved s;
    struct ls_summary m;
    struct ls_figures f;
    struct ls_str text = { 0 };
    open_case(&s, 1);
    golden("run.json", &s.text);
    ls_summary_of(&s.r, &s.arena, &m);
    ls_figures_list(&s.r, &s.arena, &f);
    cr_assert_eq(f.count, 7u);
    for (size_t i = 0; i < f.count; i++) {
        ls_str_printf(&f.at[i].broad, "<svg id=\"broad-%zu\"></svg>\n", i);
        ls_str_printf(&f.at[i].narrow, "<svg id=\"narrow-%zu\"></svg>\n", i);
    }
    ls_render_markdown(&s.r, &m, &f, &s.arena, &text);
    golden("report.md", &text);
    ls_str_clear(&text);
    ls_render_html(&s.r, &m, &f, &s.arena, &text);
    golden("report.html", &text);
    ls_str_clear(&text);
    ls_render_text(&s.r, &m, &s.arena, &text);
    golden("report.txt", &text);
    ls_figures_release(&f);
    for (int narrow = 0; narrow < 2; narrow++) {
        unsigned width = narrow ? LS_FIGURE_NARROW : LS_FIGURE_WIDE;
        ls_str_clear(&text);
        ls_figure_throughput(&s.r, &m, "f0", width, &text);
        golden(narrow ? "throughput-narrow.gp" : "throughput.gp", &text);
        ls_str_clear(&text);
        ls_figure_memory(&s.r, &m, "f1", width, &text);
        golden(narrow ? "memory-narrow.gp" : "memory.gp", &text);
    }
    ls_str_clear(&text);
    ls_figure_timeline(&s.r, &s.r.cell[0], "f2", LS_FIGURE_WIDE, &text);
    golden("timeline.gp", &text);
    ls_str_release(&text);
    close_case(&s);
}

Test(report, a_slot_without_text_leaves_out_what_goes_with_it)
{
    struct ls_slot slot[] = { { "a", "A" }, { "part", "" }, { "b", NULL } };
    struct ls_str text = { 0 };
    slot[2].text = "B";
    ls_template_fill("{{a}}-{{part}}x{{b}}y{{/part}}-{{a}}", slot, 3, &text);
    cr_assert_str_eq(ls_str_text(&text), "A-xBy-A");
    slot[1].text = slot[2].text = NULL;
    ls_str_clear(&text);
    ls_template_fill("{{a}}-{{part}}x{{b}}y{{/part}}-{{a}}", slot, 3, &text);
    cr_assert_str_eq(ls_str_text(&text), "A--A");
    ls_str_release(&text);
}

/* No empty tables, no axes without a bar. */
Test(report, nothing_trained_leaves_nothing_to_draw)
{
    struct saved s;
    struct ls_summary m;
    struct ls_figures f;
    struct ls_str text = { 0 };
    open_case(&s, 1);
    for (size_t i = 0; i < s.r.cells; i++) {
        s.r.cell[i].check = LS_MISMATCH;
        s.r.cell[i].replayed = LS_REPLAYED_WITNESS;
        s.r.cell[i].replay = LS_MISMATCH;
        s.r.cell[i].runs = s.r.cell[i].ranks = 0;
        s.r.cell[i].has_timeline = s.r.cell[i].simulated = false;
    }
    ls_summary_of(&s.r, &s.arena, &m);
    ls_figures_list(&s.r, &s.arena, &f);
    cr_assert_eq(f.count, 0u);
    ls_render_markdown(&s.r, &m, &f, &s.arena, &text);
    cr_assert(!strstr(ls_str_text(&text), "## Throughput") && !strstr(ls_str_text(&text), "## Losses") && !strstr(ls_str_text(&text), "{{"));
    cr_assert(strstr(ls_str_text(&text), "**mismatch**") && strstr(ls_str_text(&text), "## What was measured"));
    ls_str_clear(&text);
    ls_render_html(&s.r, &m, &f, &s.arena, &text);
    cr_assert(!strstr(ls_str_text(&text), "<h2>Memory") && !strstr(ls_str_text(&text), "<svg") && !strstr(ls_str_text(&text), "{{"));
    ls_str_release(&text);
    close_case(&s);
}

static bool gnuplot_is_here(void)
{
    struct ls_error err = { 0 };
    return ls_gnuplot_find(&err) == LS_OK;
}

/* Every tag that opens closes, in order; void elements and what SVG closes by itself aside. */
static void check_tags(const char *html)
{
    static const char *const empty[] = { "!DOCTYPE", "meta", "br" };
    char open[64][24];
    size_t depth = 0;
    for (const char *s = html; (s = strchr(s, '<')); s++) {
        bool closes = s[1] == '/';
        size_t n = strcspn(s + 1 + closes, " >/\n\t");
        const char *end = strchr(s, '>');
        bool none = false;
        cr_assert(end && n && n < 24, "at '%.30s'", s);
        for (size_t i = 0; i < 3; i++)
            none |= n == strlen(empty[i]) && strncmp(s + 1, empty[i], n) == 0;
        if (none || end[-1] == '/')
            continue;
        if (closes) {
            cr_assert(depth && strlen(open[depth - 1]) == n && strncmp(open[depth - 1], s + 2, n) == 0, "'%.20s' closes '%s'", s, depth ? open[depth - 1] : "nothing");
            depth--;
        } else {
            cr_assert_lt(depth, 64u);
            snprintf(open[depth++], 24, "%.*s", (int)n, s + 1);
        }
    }
    cr_assert_eq(depth, 0u, "<%s> is open at the end", depth ? open[depth - 1] : "");
}

static int by_text(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

static void check_ids(const char *html)
{
    char *id[4096];
    size_t count = 0;
    for (const char *s = html; (s = strstr(s, " id=")); s++) {
        cr_assert(count < 4096 && (s[4] == '"' || s[4] == '\''));
        id[count++] = strndup(s + 5, strcspn(s + 5, "\"'"));
    }
    qsort(id, count, sizeof *id, by_text);
    for (size_t i = 1; i < count; i++)
        cr_expect_str_neq(id[i - 1], id[i]);
    cr_assert_gt(count, 100u);
    for (const char *s = html; (s = strstr(s, "href=")); s++) { /* references stay inside the page, and lead somewhere */
        char *name = strndup(s + 7, strcspn(s + 7, "\"'"));
        cr_assert(s[6] == '#' && bsearch(&name, id, count, sizeof *id, by_text), "%.40s", s);
        free(name);
    }
    for (size_t i = 0; i < count; i++)
        free(id[i]);
}

Test(report, page_needs_nothing_else)
{
    if (!gnuplot_is_here())
        cr_skip_test("gnuplot is not installed");
    struct saved s;
    struct ls_summary m;
    struct ls_figures f, again;
    struct ls_error err = { 0 };
    struct ls_str html = { 0 };
    open_case(&s, 1);
    ls_summary_of(&s.r, &s.arena, &m);
    cr_assert_eq(ls_figures_draw(&s.r, &m, &s.arena, &f, &err), LS_OK, "%s", err.text);
    cr_assert_eq(ls_figures_draw(&s.r, &m, &s.arena, &again, &err), LS_OK, "%s", err.text);
    for (size_t i = 0; i < f.count; i++) {
        cr_expect_str_eq(ls_str_text(&f.at[i].broad), ls_str_text(&again.at[i].broad), "%s is drawn in two ways", f.at[i].file);
        cr_expect(strstr(ls_str_text(&f.at[i].broad), i == 0 ? ">not safe: mismatch<" : i == 1 ? ">sharded parameters<" : ">rank 0  compute<"), "%s",
                  f.at[i].file);
    }
    ls_render_html(&s.r, &m, &f, &s.arena, &html);
    static const char *const loads[] = { "<script", "<link", "<img", "<iframe", "@import", "src=", "url(", "srcset", "<object", "<embed" };
    for (size_t i = 0; i < sizeof loads / sizeof *loads; i++)
        cr_expect_null(strstr(ls_str_text(&html), loads[i]), "the page has '%s'", loads[i]);
    for (const char *at = ls_str_text(&html); (at = strstr(at, "://")); at++) /* names of SVG's languages, never fetched */
        cr_expect(strncmp(at, "://www.w3.org/2000/svg\"", 23) == 0 || strncmp(at, "://www.w3.org/1999/xlink\"", 25) == 0, "%.40s", at);
    check_tags(ls_str_text(&html));
    check_ids(ls_str_text(&html));
    ls_str_release(&html);
    ls_figures_release(&f);
    ls_figures_release(&again);
    close_case(&s);
}

/* What users name things reaches pages and scripts as text. */
Test(report, names_are_text_everywhere)
{
    struct saved s;
    struct ls_summary m;
    struct ls_figures f;
    struct ls_str text = { 0 };
    struct ls_error err = { 0 };
    static const char nasty[] = "a<b>&\"'|`_*{x}\\n$(reboot)~~~~";
    open_case(&s, 1);
    s.r.name = s.r.question = s.r.cpu = nasty;
    s.r.text = nasty, s.r.text_length = strlen(nasty);
    s.r.cell[0].policy = s.r.cell[3].policy = s.r.baseline = nasty;
    s.r.cell[0].timeline.streams.at[0] = s.r.cell[0].timeline.kinds.at[0] = s.r.categories.at[0] = nasty;
    ls_summary_of(&s.r, &s.arena, &m);
    if (gnuplot_is_here()) {
        cr_assert_eq(ls_figures_draw(&s.r, &m, &s.arena, &f, &err), LS_OK, "%s", err.text);
    } else {
        ls_figures_list(&s.r, &s.arena, &f);
    }
    ls_render_html(&s.r, &m, &f, &s.arena, &text);
    check_tags(ls_str_text(&text));
    cr_assert_null(strstr(ls_str_text(&text), "<b>"));
    cr_assert(strstr(ls_str_text(&text), "<h1>a&lt;b&gt;&amp;&quot;&#39;|`"));
    ls_str_clear(&text);
    ls_render_markdown(&s.r, &m, &f, &s.arena, &text);
    cr_assert(strstr(ls_str_text(&text), "\n~~~~~yaml\na<b>"), "the fence is as short as the text's");
    ls_str_release(&text);
    ls_figures_release(&f);
    close_case(&s);
}

Test(report, tables_line_up)
{
    struct ls_arena arena;
    struct ls_report_table t;
    struct ls_str out = { 0 };
    ls_arena_init(&arena, 0);
    ls_table_init(&t, &arena);
    ls_table_column(&t, "name", false);
    ls_table_column(&t, "n", true);
    for (int i = 0; i < 20; i++) {
        ls_table_row(&t);
        ls_table_cell(&t, "%s", i == 3 ? "gr\xc3\xbc\xc3\x9f|" : "x");
        if (i != 5)
            ls_table_cell(&t, "%d", i * i * 100);
        if (i == 3)
            ls_table_mark(&t);
    }
    ls_table_text(&t, "  ", &out);
    cr_assert_eq(strncmp(ls_str_text(&out), "  name       n\n  x          0\n  x        100\n  x        400\n  gr\xc3\xbc\xc3\x9f|    900\n  x       1600\n  x\n", 92), 0, "%s",
                 ls_str_text(&out));
    ls_str_clear(&out);
    ls_table_markdown(&t, &out);
    cr_assert_eq(strncmp(ls_str_text(&out), "| name | n |\n|---|---:|\n| x | 0 |\n", 34), 0, "%s", ls_str_text(&out));
    cr_assert(strstr(ls_str_text(&out), "\n| gr\xc3\xbc\xc3\x9f\\| | **900** |\n"), "%s", ls_str_text(&out));
    cr_assert(strstr(ls_str_text(&out), "\n| x |  |\n"));
    ls_str_release(&out);
    ls_arena_release(&arena);
}

/* ---- gnuplot ---- */

Test(report, no_gnuplot_names_the_package)
{
    struct ls_error err = { 0 };
    struct ls_str svg = { 0 };
    setenv("PATH", "/nowhere", 1);
    cr_assert_eq(ls_gnuplot_find(&err), LS_EBACKEND);
    cr_assert(strstr(err.text, "not installed") && strstr(err.hint, "gnuplot-nox"), "%s %s", err.text, err.hint);
    cr_assert_eq(ls_gnuplot_run("plot x\n", "f", &svg, NULL), LS_EBACKEND);
    cr_assert_eq(svg.length, 0u);
}

Test(report, gnuplot_errors_are_told)
{
    if (!gnuplot_is_here())
        cr_skip_test("gnuplot is not installed");
    struct ls_error err = { 0 };
    struct ls_str svg = { 0 };
    cr_assert_eq(ls_gnuplot_run("set terminal svg\nplot '/nowhere/at/all'\n", "f", &svg, &err), LS_EBACKEND);
    cr_assert(strstr(err.text, "'gnuplot' "), "%s", err.text);
    ls_str_release(&svg);
}

Test(report, svg_is_made_fit_for_a_page)
{
    static const char svg[] = "<?xml version=\"1.0\"?>\n<svg \n viewBox=\"0 0 9 9\">\n\n<desc>Produced by GNUPLOT 9 </desc>\n\t\t<g id=\"a\"><use xlink:href='#gpPt1' id='p'/>"
                              "<rect filter=\"url(#b)\"/></g>\n</svg>\n";
    struct ls_str out = { 0 };
    ls_svg_clean(svg, strlen(svg), "f3", &out);
    cr_assert_str_eq(ls_str_text(&out), "<svg role=\"img\" width=\"100%\" \n viewBox=\"0 0 9 9\">\n\t\t<g id=\"f3-a\"><use xlink:href='#f3-gpPt1' id='f3-p'/>"
                                        "<rect filter=\"url(#f3-b)\"/></g>\n</svg>\n");
    ls_str_release(&out);
}

/* ---- folders ---- */

static size_t entries(const char *folder)
{
    size_t n = 0;
    DIR *d = opendir(folder);
    cr_assert(d, "%s", folder);
    for (struct dirent *e; (e = readdir(d));)
        n += strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0;
    closedir(d);
    return n;
}

static bool holds(const char *folder, const char *name, const char *text)
{
    char path[600], got[64] = "";
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "rb");
    if (!f)
        return false;
    size_t n = fread(got, 1, sizeof got - 1, f);
    fclose(f);
    return n == strlen(text) && memcmp(got, text, n) == 0;
}

static void put_file(const char *folder, const char *name)
{
    char path[600];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "wb");
    cr_assert(f && fputs("old", f) >= 0 && fclose(f) == 0);
}

Test(report, folders_are_whole_or_not_there)
{
    char base[] = "/tmp/lockstep-report-XXXXXX", path[300], deep[400];
    const struct ls_file files[] = { { "run.json", "{}", 2 }, { "memory.svg", "<svg>", 5 } };
    struct ls_error err = { 0 };
    cr_assert(mkdtemp(base));
    snprintf(path, sizeof path, "%s/out", base);
    /* new; an earlier one needs to be told */
    cr_assert_eq(ls_folder_write(path, files, 2, false, &err), LS_OK, "%s", err.text);
    cr_assert(holds(path, "run.json", "{}") && holds(path, "memory.svg", "<svg>") && entries(path) == 2 && entries(base) == 1);
    cr_assert_eq(ls_folder_write(path, files, 1, false, &err), LS_EINPUT);
    cr_assert(strstr(err.hint, "--overwrite"), "%s", err.hint);
    cr_assert_eq(entries(path), 2u);
    /* replaced: what was there before is gone */
    put_file(path, "timeline-root-mixed.svg");
    cr_assert_eq(ls_folder_write(path, (struct ls_file[]){ { "run.json", "{1}", 3 } }, 1, true, &err), LS_OK, "%s", err.text);
    cr_assert(holds(path, "run.json", "{1}") && entries(path) == 1 && entries(base) == 1);
    /* a file of somebody else is never lost */
    put_file(path, "thesis.txt");
    cr_assert_eq(ls_folder_write(path, files, 2, true, &err), LS_EINPUT);
    cr_assert(strstr(err.text, "thesis.txt"), "%s", err.text);
    cr_assert(holds(path, "thesis.txt", "old") && holds(path, "run.json", "{1}") && entries(base) == 1);
    /* empty, with a slash at the end */
    snprintf(path, sizeof path, "%s/empty/", base);
    cr_assert_eq(mkdir(path, 0755), 0);
    cr_assert_eq(ls_folder_write(path, files, 2, false, &err), LS_OK, "%s", err.text);
    cr_assert(entries(path) == 2 && entries(base) == 2);
    /* a file, and a folder that cannot be */
    put_file(base, "plain");
    snprintf(path, sizeof path, "%s/plain", base);
    cr_assert_eq(ls_folder_check(path, true, &err), LS_EINPUT);
    snprintf(deep, sizeof deep, "%s/no/such/place", base);
    cr_assert_eq(ls_folder_write(deep, files, 2, false, &err), LS_EBACKEND);
    /* a file that cannot be written: nothing stays */
    snprintf(deep, sizeof deep, "%s/half", base);
    cr_assert_eq(ls_folder_write(deep, (struct ls_file[]){ { "run.json", "{}", 2 }, { "no/such.svg", "x", 1 } }, 2, false, &err), LS_EBACKEND);
    cr_assert_eq(entries(base), 3u);
    char command[400];
    snprintf(command, sizeof command, "rm -r '%s'", base);
    cr_assert_eq(system(command), 0);
}
