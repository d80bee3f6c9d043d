#include "report/figures.h"

#include "report/template.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FONT = 14, FONT_NARROW = 12, ROW = 40, ROW_TIMELINE = 24, LEGEND_ROW = 20, AXIS = 54, TOP = 8 };

static const struct { const char *policy, *colour; } policy_colour[] = {
    { "root", "#0072b2" }, { "per_layer", "#d55e00" }, { "replicate", "#009e73" }, { "as written", "#cc79a7" } };

/* Categories of memory, in the order of the file; the last for all further ones. */
static const char *const muted[] = { "#332288", "#88ccee", "#44aa99", "#117733", "#999933", "#ddcc77", "#cc6677", "#882255", "#aa4499", "#bbbbbb" };
enum { MUTED = sizeof muted / sizeof *muted };

/* Kinds of work. Communication is warm, compute is cold, what does not advance is grey. */
static const struct { const char *kind, *colour; } kind_colour[] = {
    { "forward", "#56b4e9" }, { "recompute", "#9ad0f0" }, { "backward", "#0072b2" }, { "optimizer", "#009e73" }, { "copy", "#999999" },
    { "all_gather", "#e69f00" }, { "reduce_scatter", "#d55e00" }, { "all_reduce", "#cc79a7" }, { "other", "#000000" },
    { "waiting", "#dcdcdc" } };

const char *ls_policy_colour(const char *policy)
{
    for (size_t i = 0; i < sizeof policy_colour / sizeof *policy_colour; i++)
        if (strcmp(policy_colour[i].policy, policy) == 0)
            return policy_colour[i].colour;
    return "#666666";
}

static const char *colour_of_kind(const char *kind)
{
    for (size_t i = 0; i < sizeof kind_colour / sizeof *kind_colour; i++)
        if (strcmp(kind_colour[i].kind, kind) == 0)
            return kind_colour[i].colour;
    return "#666666";
}

/* Single-quoted strings of gnuplot know no escape but the doubled quote. */
static void quoted(struct ls_str *out, const char *text)
{
    ls_str_add(out, "'");
    for (const char *s = text; *s; s++)
        if (*s == '\'')
            ls_str_add(out, "''");
        else if ((unsigned char)*s < 0x20 || *s == 0x7f)
            ls_str_add(out, " ");
        else
            ls_str_addn(out, s, 1);
    ls_str_add(out, "'");
}

/* Swatches and names below the axis, in columns of equal width: gnuplot's own key does not know where the axis' label is. */
struct legend { const char *name[64], *colour[64]; size_t count; };

static void add_entry(struct legend *l, const char *name, const char *colour)
{
    if (l->count == sizeof l->name / sizeof *l->name)
        return;
    l->name[l->count] = name;
    l->colour[l->count++] = colour;
}

static unsigned legend_columns(unsigned width) { return width > LS_FIGURE_NARROW ? 5 : 2; }
static unsigned legend_height(size_t entries, unsigned width) { return (unsigned)((entries + legend_columns(width) - 1) / legend_columns(width)) * LEGEND_ROW + 4; }

static void draw_legend(const struct legend *l, unsigned width, unsigned height, struct ls_str *out)
{
    unsigned columns = legend_columns(width), rows = (unsigned)((l->count + columns - 1) / columns);
    double column = (width - 16.0) / columns;
    for (size_t i = 0; i < l->count; i++) {
        double x = 8 + column * (double)(i % columns), y = (rows - (double)(i / columns)) * LEGEND_ROW - LEGEND_ROW / 2.0;
        ls_str_printf(out, "set object %zu rect from screen %.5f,screen %.5f to screen %.5f,screen %.5f fc rgb '%s' fs solid noborder\nset label ", i + 1,
                      x / width, (y - 5) / height, (x + 14) / width, (y + 5) / height, l->colour[i]);
        struct ls_str name = { 0 };
        for (const char *c = l->name[i]; *c; c++)
            ls_str_addn(&name, *c == '_' ? " " : c, 1);
        quoted(out, ls_str_text(&name));
        ls_str_release(&name);
        ls_str_printf(out, " at screen %.5f,screen %.5f left textcolor rgb '#1a1a1a'\n", (x + 20) / width, y / height);
    }
}

/* 1, 2 or 5 times a power of ten, so that at most `ticks` steps cover the range. */
static double nice_step(double range, double ticks)
{
    double power = pow(10, floor(log10(range / ticks))), times = range / ticks / power;
    return (times <= 1 ? 1 : times <= 2 ? 2 : times <= 5 ? 5 : 10) * power;
}

/* `bottom`: pixels below the axis; its name is put there by place, as the legend is. */
static void x_axis(double from, double to, const char *label, unsigned width, unsigned height, unsigned bottom, struct ls_str *out)
{
    ls_str_printf(out, "set xrange [%.9g:%.9g]\nset xtics %.9g offset 0,0.2\nset format x '%%g'\nunset key\n", from, to,
                  nice_step(to - from, width > LS_FIGURE_NARROW ? 9 : 4.5));
    ls_str_printf(out, "set label '%s' at graph 0.5,screen %.5f center textcolor rgb '#1a1a1a'\n", label, (bottom - 42.0) / height);
}

static void begin(const char *name, unsigned width, unsigned height, struct ls_str *out)
{
    char w[16], h[16], f[16];
    snprintf(w, sizeof w, "%u", width);
    snprintf(h, sizeof h, "%u", height);
    snprintf(f, sizeof f, "%d", width > LS_FIGURE_NARROW ? FONT : FONT_NARROW);
    const struct ls_slot slot[] = { { "name", name }, { "width", w }, { "height", h }, { "font", f } };
    ls_template_fill(ls_template_figure_gp, slot, sizeof slot / sizeof *slot, out);
}

/* Rows from the top, one per cell, named at the left. `bottom`: pixels below the axis. */
static void rows_of_cells(const struct ls_result *r, const char *name, unsigned width, unsigned bottom, struct ls_str *out)
{
    unsigned height = (unsigned)r->cells * ROW + bottom + TOP;
    double font = width > LS_FIGURE_NARROW ? FONT : FONT_NARROW;
    size_t longest = 0;
    begin(name, width, height, out);
    bool wide = width > LS_FIGURE_NARROW; /* one line, or two */
    for (size_t i = 0; i < r->cells; i++) {
        size_t policy = strlen(r->cell[i].policy), batches = strlen(r->cell[i].batches), n = wide ? policy + batches + 2 : policy > batches ? policy : batches;
        longest = n > longest ? n : longest;
    }
    /* gnuplot does not know the font's widths: 0.54 em is wide for a letter. */
    ls_str_printf(out, "set lmargin at screen %.4f\nset rmargin at screen %.4f\nset tmargin at screen %.4f\nset bmargin at screen %.4f\n",
                  ((double)longest * 0.54 * font + 16) / width, 1 - 22.0 / width, 1 - (double)TOP / height, (double)bottom / height);
    ls_str_printf(out, "set yrange [%zu.5:0.5]\nset ytics scale 0 (", r->cells);
    for (size_t i = 0; i < r->cells; i++) {
        ls_str_add(out, i ? ", " : "");
        /* A line break needs double quotes, which escape. Names of policies are identifiers; others are cut down to that. */
        ls_str_add(out, "\"");
        for (const char *s = r->cell[i].policy; *s; s++)
            ls_str_addn(out, strchr("\\\"\n`", *s) ? " " : s, 1);
        ls_str_add(out, wide ? ", " : "\\n");
        for (const char *s = r->cell[i].batches; *s; s++)
            ls_str_addn(out, strchr("\\\"\n`", *s) ? " " : s, 1);
        ls_str_printf(out, "\" %zu", i + 1);
    }
    ls_str_add(out, ")\n");
    for (size_t i = 1; i < r->cells; i++)
        if (strcmp(r->cell[i].batches, r->cell[i - 1].batches) != 0)
            ls_str_printf(out, "set arrow from graph 0, first %zu.5 to graph 1, first %zu.5 nohead lc rgb '#999999' lw 1\n", i, i);
}

static void not_measured(const struct ls_result *r, struct ls_str *out)
{
    for (size_t i = 0; i < r->cells; i++) {
        if (r->cell[i].runs)
            continue;
        struct ls_str text = { 0 };
        if (r->cell[i].check == LS_SAFE)
            ls_str_add(&text, "not measured");
        else
            ls_str_printf(&text, "not safe: %s", ls_verdict_name(r->cell[i].check));
        ls_str_add(out, "set label ");
        quoted(out, ls_str_text(&text));
        ls_str_printf(out, " at graph 0.02, first %zu left front textcolor rgb '#8a1c1c'\n", i + 1);
        ls_str_release(&text);
    }
}

static bool any_measured(const struct ls_result *r)
{
    for (size_t i = 0; i < r->cells; i++)
        if (r->cell[i].runs)
            return true;
    return false;
}

/* Three significant digits are read at a glance; the scale takes the thousands. */
static double scale_of(double most, const char **prefix)
{
    static const char *const names[] = { "", "thousand ", "million ", "billion " };
    double scale = 1;
    size_t i = 0;
    for (; most / scale >= 2000 && i < 3; i++)
        scale *= 1000;
    *prefix = names[i];
    return scale;
}

void ls_figure_throughput(const struct ls_result *r, const struct ls_summary *s, const char *name, unsigned width, struct ls_str *script)
{
    double least = INFINITY, most = 0;
    const char *prefix;
    for (size_t i = 0; i < r->cells; i++)
        if (s->cell[i].measured) {
            least = fmin(least, s->cell[i].rate.min);
            most = fmax(most, s->cell[i].rate.max);
        }
    double scale = scale_of(most, &prefix);
    rows_of_cells(r, name, width, AXIS, script);
    not_measured(r, script);
    /* A gap of 5 % tells nothing apart on an axis from zero. */
    double from = least > most / 2 ? fmax(0, least - 0.15 * (most - least)) : 0, to = most + 0.05 * (most - from);
    if (!any_measured(r))
        from = 0, to = 1;
    else if (!(most > least)) /* one value */
        from = 0.9 * least, to = most > 0 ? 1.1 * most : 1;
    struct ls_str label = { 0 };
    ls_str_printf(&label, "%stokens per second", prefix);
    x_axis(from / scale, to / scale, ls_str_text(&label), width, (unsigned)r->cells * ROW + AXIS + TOP, AXIS, script);
    ls_str_release(&label);
    for (size_t i = 0; i < r->cells; i++) {
        const struct ls_result_cell *c = &r->cell[i];
        if (!c->runs)
            continue;
        ls_str_printf(script, "$steps%zu << EOD\n", i);
        for (size_t k = 0; k < c->runs; k++)
            for (size_t n = (size_t)r->warmup; n < c->run[k].steps; n++) {
                double rate = (double)(c->run[k].text_tokens[n] + c->run[k].media_tokens[n]) / c->run[k].seconds[n] / scale;
                ls_str_printf(script, "%.6g %.2f\n%.6g %.2f\n\n", rate, (double)i + 0.62, rate, (double)i + 0.84);
            }
        const struct ls_spread *x = &s->cell[i].rate;
        ls_str_printf(script, "EOD\n$box%zu << EOD\n%.6g %.2f %.6g %.6g %.2f %.2f\nEOD\n$median%zu << EOD\n%.6g %.2f\n%.6g %.2f\nEOD\n", i,
                      x->median / scale, (double)i + 1.1, x->low / scale, x->high / scale, (double)i + 0.9, (double)i + 1.3, i, x->median / scale,
                      (double)i + 0.86, x->median / scale, (double)i + 1.34);
    }
    ls_str_add(script, "plot ");
    size_t plots = 0;
    for (size_t i = 0; i < r->cells; i++)
        if (r->cell[i].runs) {
            const char *colour = ls_policy_colour(r->cell[i].policy);
            ls_str_printf(script, "%s$steps%zu with lines lw 1 lc rgb '%s', $box%zu using 1:2:3:4:5:6 with boxxyerror fs solid 0.45 noborder lc rgb '%s', "
                          "$median%zu with lines lw 3 lc rgb '%s'", plots++ ? ", " : "", i, colour, i, colour, i, colour);
        }
    ls_str_add(script, plots ? "\n" : "NaN notitle\n");
}

/* The unit of the largest bar for all bars. */
static double bytes_scale(double most, const char **unit)
{
    static const char *const names[] = { "bytes", "KiB", "MiB", "GiB", "TiB" };
    double scale = 1;
    size_t i = 0;
    for (; most / scale >= 2000 && i < 4; i++)
        scale *= 1024;
    *unit = names[i];
    return scale;
}

static bool category_used(const struct ls_result *r, const struct ls_summary *s, size_t category)
{
    for (size_t i = 0; i < r->cells; i++)
        if (s->cell[i].measured && r->cell[i].memory[s->cell[i].worst].at_peak[category])
            return true;
    return false;
}

void ls_figure_memory(const struct ls_result *r, const struct ls_summary *s, const char *name, unsigned width, struct ls_str *script)
{
    double most = 0;
    const char *unit;
    struct legend legend = { .count = 0 };
    for (size_t i = 0; i < r->cells; i++)
        most = fmax(most, (double)s->cell[i].peak);
    for (size_t k = 0; k < r->categories.count; k++)
        if (category_used(r, s, k))
            add_entry(&legend, r->categories.at[k], muted[k < MUTED ? k : MUTED - 1]);
    double scale = bytes_scale(most, &unit);
    unsigned bottom = AXIS + legend_height(legend.count, width);
    rows_of_cells(r, name, width, bottom, script);
    not_measured(r, script);
    struct ls_str label = { 0 };
    ls_str_printf(&label, "%s at the peak of one rank", unit);
    x_axis(0, most > 0 ? 1.03 * most / scale : 1, ls_str_text(&label), width, (unsigned)r->cells * ROW + bottom + TOP, bottom, script);
    ls_str_release(&label);
    draw_legend(&legend, width, (unsigned)r->cells * ROW + bottom + TOP, script);
    size_t plots = 0;
    for (size_t k = 0; k < r->categories.count; k++) {
        if (!category_used(r, s, k))
            continue;
        ls_str_printf(script, "$category%zu << EOD\n", k);
        for (size_t i = 0; i < r->cells; i++) {
            if (!s->cell[i].measured)
                continue;
            const uint64_t *bytes = r->cell[i].memory[s->cell[i].worst].at_peak;
            double from = 0;
            for (size_t n = 0; n < k; n++)
                from += (double)bytes[n];
            ls_str_printf(script, "%.9g %zu %.9g %.9g %.2f %.2f\n", from / scale, i + 1, from / scale, (from + (double)bytes[k]) / scale,
                          (double)i + 0.72, (double)i + 1.28);
        }
        ls_str_add(script, "EOD\n");
    }
    ls_str_add(script, "plot ");
    for (size_t k = 0; k < r->categories.count; k++) {
        if (!category_used(r, s, k))
            continue;
        ls_str_printf(script, "%s$category%zu using 1:2:3:4:5:6 with boxxyerror lc rgb '%s'", plots++ ? ", " : "", k, muted[k < MUTED ? k : MUTED - 1]);
    }
    ls_str_add(script, plots ? "\n" : "NaN notitle\n");
}

/* ---- timeline ---- */

static int by_row(const void *a, const void *b)
{
    const struct ls_result_span *x = a, *y = b;
    if (x->rank != y->rank)
        return x->rank < y->rank ? -1 : 1;
    if (x->stream != y->stream)
        return x->stream < y->stream ? -1 : 1;
    if (x->kind != y->kind)
        return x->kind < y->kind ? -1 : 1;
    return x->begin_ns < y->begin_ns ? -1 : x->begin_ns > y->begin_ns;
}

static void bars_of_kind(const struct ls_result_span *span, size_t spans, uint32_t kind, const size_t *row, size_t streams, uint64_t pixel_ns,
                         double scale, struct ls_str *out)
{
    for (size_t i = 0, next; i < spans; i = next) {
        uint64_t end = span[i].end_ns;
        next = i + 1;
        if (span[i].kind != kind)
            continue;
        while (next < spans && span[next].rank == span[i].rank && span[next].stream == span[i].stream && span[next].kind == kind &&
               span[next].begin_ns <= end + pixel_ns / 2) {
            end = span[next].end_ns > end ? span[next].end_ns : end;
            next++;
        }
        if (end < span[i].begin_ns + pixel_ns / 2) /* seen all the same */
            end = span[i].begin_ns + pixel_ns / 2;
        size_t y = row[span[i].rank * streams + span[i].stream];
        ls_str_printf(out, "%.6g %zu\n%.6g %zu\n\n", (double)span[i].begin_ns / scale, y, (double)end / scale, y);
    }
}

void ls_figure_timeline(const struct ls_result *r, const struct ls_result_cell *c, const char *name, unsigned width, struct ls_str *script)
{
    const struct ls_result_timeline *t = &c->timeline;
    size_t ranks = r->ranks < LS_TIMELINE_RANKS_MAX ? (size_t)r->ranks : LS_TIMELINE_RANKS_MAX, streams = t->streams.count, spans = 0, rows = 0;
    struct ls_result_span *span = calloc(t->spans + 1, sizeof *span);
    size_t *row = calloc(ranks * streams + 1, sizeof *row);
    bool *used = calloc(t->kinds.count + 1, sizeof *used);
    if (!span || !row || !used)
        ls_out_of_memory(t->spans * sizeof *span);
    uint64_t end = 1;
    for (size_t i = 0; i < t->spans; i++) {
        if (t->span[i].rank >= ranks)
            continue;
        span[spans++] = t->span[i];
        used[t->span[i].kind] = true;
        row[t->span[i].rank * streams + t->span[i].stream] = 1;
        end = t->span[i].end_ns > end ? t->span[i].end_ns : end;
    }
    qsort(span, spans, sizeof *span, by_row);
    size_t longest = 0;
    struct legend legend = { .count = 0 };
    for (size_t i = 0; i < ranks * streams; i++) {
        size_t n = strlen(t->streams.at[i % (streams ? streams : 1)]) + 8;
        longest = row[i] && n > longest ? n : longest;
        row[i] = row[i] ? ++rows : 0;
    }
    for (size_t k = 0; k < t->kinds.count; k++)
        if (used[k])
            add_entry(&legend, t->kinds.at[k], colour_of_kind(t->kinds.at[k]));
    unsigned bottom = AXIS + legend_height(legend.count, width), height = (unsigned)rows * ROW_TIMELINE + bottom + TOP;
    double scale = end >= 2000000000 ? 1e9 : end >= 2000000 ? 1e6 : 1e3;
    begin(name, width, height, script);
    ls_str_printf(script, "set lmargin at screen %.4f\nset rmargin at screen %.4f\nset tmargin at screen %.4f\nset bmargin at screen %.4f\n",
                  ((double)longest * 0.5 * FONT + 14) / width, 1 - 22.0 / width, 1 - (double)TOP / height, (double)bottom / height);
    x_axis(0, (double)end / scale, scale == 1e9   ? "seconds from the beginning of the step"
                                   : scale == 1e6 ? "milliseconds from the beginning of the step"
                                                  : "microseconds from the beginning of the step", width, height, bottom, script);
    draw_legend(&legend, width, height, script);
    ls_str_printf(script, "set yrange [%zu.5:0.5]\nset ytics scale 0 (", rows ? rows : 1);
    for (size_t i = 0, n = 0; i < ranks * streams; i++)
        if (row[i]) {
            struct ls_str label = { 0 };
            ls_str_printf(&label, "rank %zu  %s", i / streams, t->streams.at[i % streams]);
            ls_str_add(script, n++ ? ", " : "");
            quoted(script, ls_str_text(&label));
            ls_str_printf(script, " %zu", row[i]);
            ls_str_release(&label);
        }
    ls_str_add(script, ")\n");
    for (size_t k = 0; k < t->kinds.count; k++) {
        if (!used[k])
            continue;
        ls_str_printf(script, "$kind%zu << EOD\n", k);
        bars_of_kind(span, spans, (uint32_t)k, row, streams, end / width + 1, scale, script);
        ls_str_add(script, "EOD\n");
    }
    ls_str_add(script, "plot ");
    size_t plots = 0;
    for (size_t k = 0; k < t->kinds.count; k++)
        if (used[k]) {
            ls_str_printf(script, "%s$kind%zu with lines lw 14 lc rgb '%s'", plots++ ? ", " : "", k, colour_of_kind(t->kinds.at[k]));
        }
    ls_str_add(script, plots ? "\n" : "NaN notitle\n");
    free(span);
    free(row);
    free(used);
}
