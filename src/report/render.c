#include "report/render.h"

#include "base/hash.h"
#include "report/figures.h"
#include "report/gnuplot.h"
#include "report/template.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

/* One text in either form: sentences are plain, and escaped where they are put. */
enum form { MARKDOWN, HTML };
struct page { const struct ls_result *r; const struct ls_summary *s; const struct ls_figures *f; struct ls_arena *arena; enum form form; };

static void escaped(const struct page *p, struct ls_str *out, const char *text)
{
    p->form == HTML ? ls_html_escape(out, text) : ls_markdown_escape(out, text);
}

static const char *kept(struct ls_arena *arena, struct ls_str *s)
{
    const char *text = ls_arena_strn(arena, ls_str_text(s), s->length);
    ls_str_release(s);
    return text;
}

static const char *plain(const struct page *p, const char *text)
{
    struct ls_str out = { 0 };
    escaped(p, &out, text);
    return kept(p->arena, &out);
}

static const char *table(const struct page *p, const struct ls_report_table *t, const char *label)
{
    struct ls_str out = { 0 };
    if (p->form == HTML)
        ls_table_html(t, label, &out);
    else
        ls_table_markdown(t, &out);
    return kept(p->arena, &out);
}

static const char *percent(double ratio, struct ls_arena *arena) { return ls_arena_printf(arena, "%+.1f %%", 100 * (ratio - 1)); }

static bool any_measured(const struct ls_result *r)
{
    bool any = false;
    for (size_t i = 0; i < r->cells; i++)
        any |= r->cell[i].runs > 0;
    return any;
}

static bool all_measured(const struct ls_result *r)
{
    bool all = true;
    for (size_t i = 0; i < r->cells; i++)
        all &= r->cell[i].runs > 0;
    return all;
}

/* ---- tables ---- */

static const char *replay_verdict(const struct ls_result_cell *c)
{
    return c->replayed == LS_REPLAYED_NONE ? "not run" : c->replay == LS_SAFE ? "completed" : ls_verdict_name(c->replay);
}

static void overview(const struct ls_result *r, const struct ls_summary *s, struct ls_arena *arena, struct ls_report_table *t)
{
    ls_table_init(t, arena);
    ls_table_column(t, "batches", false);
    ls_table_column(t, "policy", false);
    ls_table_column(t, "check", false);
    ls_table_column(t, "replay", false);
    ls_table_column(t, "step, median", true);
    ls_table_column(t, "tokens/s, median", true);
    bool pairs = false;
    for (size_t i = 0; i < r->cells; i++)
        pairs |= s->cell[i].paired;
    if (pairs)
        ls_table_column(t, ls_arena_printf(arena, "against %s, paired", r->baseline), true);
    ls_table_column(t, "peak memory", true);
    if (pairs)
        ls_table_column(t, ls_arena_printf(arena, "against %s", r->baseline), true);
    for (size_t i = 0; i < r->cells; i++) {
        const struct ls_result_cell *c = &r->cell[i], *base = ls_result_cell_of(r, r->baseline, c->batches);
        const struct ls_cell_summary *x = &s->cell[i];
        ls_table_row(t);
        ls_table_cell(t, "%s", c->batches);
        ls_table_cell(t, "%s", c->policy);
        ls_table_cell(t, "%s", ls_verdict_name(c->check));
        if (c->check != LS_SAFE)
            ls_table_mark(t);
        ls_table_cell(t, "%s%s", replay_verdict(c), x->agrees ? "" : ", DISAGREES");
        if (!x->agrees || (c->replayed != LS_REPLAYED_NONE && c->replay != LS_SAFE))
            ls_table_mark(t);
        if (!x->measured)
            continue;
        ls_table_cell(t, "%s", ls_seconds_text(x->step.median, arena));
        ls_table_cell(t, "%.0f", x->rate.median);
        if (x->paired)
            ls_table_cell(t, "%s, faster in %zu of %zu", percent(x->against.ratio.median, arena), x->against.above, x->against.ratio.count);
        else if (pairs)
            ls_table_cell(t, "%s", "");
        ls_table_cell(t, "%s", ls_bytes_text((double)x->peak, arena));
        if (pairs && base && base != c && base->runs)
            ls_table_cell(t, "%s", percent((double)x->peak / (double)s->cell[base - r->cell].peak, arena));
    }
}

/* "9.6 to 10.4 ms": the unit once, where both have the same. */
static const char *seconds_range(double from, double to, struct ls_arena *arena)
{
    const char *a = ls_seconds_text(from, arena), *b = ls_seconds_text(to, arena), *unit_a = strchr(a, ' '), *unit_b = strchr(b, ' ');
    bool same = unit_a && unit_b && strcmp(unit_a, unit_b) == 0;
    return ls_arena_printf(arena, "%.*s to %s", same ? (int)(unit_a - a) : (int)strlen(a), a, b);
}

static void spread_table(const struct page *p, struct ls_report_table *t)
{
    ls_table_init(t, p->arena);
    ls_table_column(t, "batches", false);
    ls_table_column(t, "policy", false);
    ls_table_column(t, "steps", true);
    ls_table_column(t, "median", true);
    ls_table_column(t, "quartiles", true);
    ls_table_column(t, "mean", true);
    ls_table_column(t, "sd", true);
    ls_table_column(t, "range", true);
    ls_table_column(t, ls_arena_printf(p->arena, "against %s: median", p->r->baseline), true);
    ls_table_column(t, "least and most", true);
    ls_table_column(t, "pairs faster", true);
    for (size_t i = 0; i < p->r->cells; i++) {
        const struct ls_cell_summary *x = &p->s->cell[i];
        const struct ls_spread *w = &x->step, *g = &x->against.ratio;
        if (!x->measured)
            continue;
        ls_table_row(t);
        ls_table_cell(t, "%s", p->r->cell[i].batches);
        ls_table_cell(t, "%s", p->r->cell[i].policy);
        ls_table_cell(t, "%zu", w->count);
        ls_table_cell(t, "%s", ls_seconds_text(w->median, p->arena));
        ls_table_cell(t, "%s", seconds_range(w->low, w->high, p->arena));
        ls_table_cell(t, "%s", ls_seconds_text(w->mean, p->arena));
        ls_table_cell(t, "%s", ls_seconds_text(w->sd, p->arena));
        ls_table_cell(t, "%s", seconds_range(w->min, w->max, p->arena));
        if (!x->paired)
            continue;
        ls_table_cell(t, "%s", percent(g->median, p->arena));
        ls_table_cell(t, "%s to %s", percent(g->min, p->arena), percent(g->max, p->arena));
        ls_table_cell(t, "%zu of %zu", x->against.above, g->count);
    }
}

static void memory_table(const struct page *p, struct ls_report_table *t)
{
    const struct ls_result *r = p->r;
    size_t column[LS_TABLE_COLUMNS_MAX], columns = 0;
    ls_table_init(t, p->arena);
    ls_table_column(t, "category", false);
    for (size_t i = 0; i < r->cells && columns + 1 < LS_TABLE_COLUMNS_MAX; i++)
        if (p->s->cell[i].measured) {
            ls_table_column(t, ls_arena_printf(p->arena, "%s, %s", r->cell[i].policy, r->cell[i].batches), true);
            column[columns++] = i;
        }
    for (size_t k = 0; k <= r->categories.count; k++) {
        bool total = k == r->categories.count, any = total;
        for (size_t n = 0; n < columns && !any; n++)
            any = r->cell[column[n]].memory[p->s->cell[column[n]].worst].at_peak[k] > 0;
        if (!any)
            continue;
        struct ls_str name = { 0 };
        for (const char *c = total ? "total" : r->categories.at[k]; *c; c++)
            ls_str_addn(&name, *c == '_' ? " " : c, 1);
        ls_table_row(t);
        ls_table_cell(t, "%s", ls_str_text(&name));
        ls_str_release(&name);
        for (size_t n = 0; n < columns; n++) {
            const struct ls_result_memory *m = &r->cell[column[n]].memory[p->s->cell[column[n]].worst];
            ls_table_cell(t, "%s", ls_bytes_text((double)(total ? m->total : m->at_peak[k]), p->arena));
        }
    }
}

enum { LOSSES_SHOWN = 12 };

static void losses_table(const struct page *p, struct ls_report_table *t)
{
    const struct ls_result *r = p->r;
    size_t column[LS_TABLE_COLUMNS_MAX], columns = 0, steps = (size_t)(r->warmup + r->steps);
    ls_table_init(t, p->arena);
    ls_table_column(t, "step", true);
    for (size_t i = 0; i < r->cells && columns + 1 < LS_TABLE_COLUMNS_MAX; i++)
        if (p->s->cell[i].measured) {
            ls_table_column(t, ls_arena_printf(p->arena, "%s, %s", r->cell[i].policy, r->cell[i].batches), true);
            column[columns++] = i;
        }
    for (size_t k = 0; k < steps; k++) {
        if (steps > LOSSES_SHOWN + 2 && k >= LOSSES_SHOWN / 2 && k < steps - LOSSES_SHOWN / 2) {
            if (k == LOSSES_SHOWN / 2) {
                ls_table_row(t);
                ls_table_cell(t, "...");
            }
            continue;
        }
        ls_table_row(t);
        ls_table_cell(t, "%zu%s", k + 1, k < r->warmup ? " (warm-up)" : "");
        for (size_t n = 0; n < columns; n++) {
            double loss = r->cell[column[n]].run[0].loss[k];
            if (isfinite(loss))
                ls_table_cell(t, "%.7f", loss);
            else
                ls_table_cell(t, "not finite");
            if (!isfinite(loss))
                ls_table_mark(t);
        }
    }
}

static const char *losses_note(const struct page *p)
{
    size_t repeat = 0, measured = 0, pairs = 0, like = 0;
    for (size_t i = 0; i < p->r->cells; i++) {
        measured += p->s->cell[i].measured;
        repeat += p->s->cell[i].repeats;
        pairs += p->s->cell[i].paired;
        like += p->s->cell[i].paired && p->s->cell[i].like_baseline;
    }
    if (!measured)
        return "No cell was trained.";
    struct ls_str out = { 0 };
    ls_str_printf(&out, "Mean over the labels of all ranks, of each step. The %" PRIu64 " runs of a cell gave the same losses and gradient norms, bit for bit, in %zu of %zu cells. ",
                  p->r->rounds, repeat, measured);
    if (pairs)
        ls_str_printf(&out, "With the same batches, losses and norms are those of %s, bit for bit, in %zu of %zu cells.", p->r->baseline, like, pairs);
    for (size_t i = 0; i < p->r->cells; i++)
        if (p->s->cell[i].paired && p->r->cell[i].other_dtype)
            ls_str_printf(&out, " With %s batches, %s computes %" PRIu64 " parameters in another dtype than %s, since no unit casts them: its losses are its own.", p->r->cell[i].batches,
                          p->r->cell[i].policy, p->r->cell[i].other_dtype, p->r->baseline);
    return plain(p, kept(p->arena, &out));
}

static const char *signed_bytes(double more, struct ls_arena *arena)
{
    return ls_arena_printf(arena, "%s%s", more > 0 ? "+" : "", ls_bytes_text(more, arena));
}

static void simulated_table(const struct page *p, struct ls_report_table *t)
{
    const struct ls_result *r = p->r;
    ls_table_init(t, p->arena);
    ls_table_column(t, "batches", false);
    ls_table_column(t, "policy", false);
    ls_table_column(t, "simulated step", true);
    ls_table_column(t, "simulated tokens/s", true);
    ls_table_column(t, ls_arena_printf(p->arena, "against %s", r->baseline), true);
    ls_table_column(t, "measured", true);
    ls_table_column(t, "simulated peak", true);
    ls_table_column(t, "measured", true);
    ls_table_column(t, ls_arena_printf(p->arena, "against %s", r->baseline), true);
    ls_table_column(t, "measured", true);
    for (size_t i = 0; i < r->cells; i++) {
        const struct ls_result_cell *c = &r->cell[i], *base = ls_result_cell_of(r, r->baseline, c->batches);
        const struct ls_cell_summary *x = &p->s->cell[i];
        if (!c->simulated)
            continue;
        ls_table_row(t);
        ls_table_cell(t, "%s", c->batches);
        ls_table_cell(t, "%s", c->policy);
        ls_table_cell(t, "%s", ls_seconds_text(c->sim_step_s, p->arena));
        ls_table_cell(t, "%.0f", c->sim_tokens_s);
        ls_table_cell(t, "%s", x->sim_paired ? percent(x->sim_against, p->arena) : "");
        ls_table_cell(t, "%s", x->paired ? percent(x->against.ratio.median, p->arena) : "");
        ls_table_cell(t, "%s", ls_bytes_text((double)c->sim_peak_bytes, p->arena));
        ls_table_cell(t, "%s", x->measured ? ls_bytes_text((double)x->peak, p->arena) : "");
        ls_table_cell(t, "%s", x->sim_paired ? signed_bytes(x->sim_peak_more, p->arena) : "");
        if (x->paired && base)
            ls_table_cell(t, "%s", signed_bytes((double)x->peak - (double)p->s->cell[base - r->cell].peak, p->arena));
    }
}

static const char *simulated(const struct page *p)
{
    struct ls_report_table t;
    simulated_table(p, &t);
    if (!t.rows)
        return "";
    struct ls_str out = { 0 }, note = { 0 };
    ls_str_printf(&note, "Simulated on %s, measured on the machine below: compare the differences between policies, not the times. The simulator draws its batches by itself",
                  p->r->platform ? p->r->platform : "?");
    for (size_t i = 0; i < p->r->cells; i++)
        if (p->s->cell[i].measured && p->r->cell[i].simulated) {
            ls_str_printf(&note, " (%.0f tokens in a step of %s batches, %.0f measured on average)", p->s->cell[i].sim_tokens, p->r->cell[i].batches,
                          p->s->cell[i].text_tokens + p->s->cell[i].media_tokens);
            break;
        }
    ls_str_add(&note, "; what its activations take follows the scenario's runtime.activations.");
    ls_str_add(&out, p->form == HTML ? "\n<h2>Simulated against measured</h2>\n<p class=\"note\">" : "\n## Simulated against measured\n\n");
    escaped(p, &out, ls_str_text(&note));
    ls_str_printf(&out, "%s%s", p->form == HTML ? "</p>\n" : "\n\n", table(p, &t, "Simulated against measured"));
    ls_str_release(&note);
    return kept(p->arena, &out);
}

/* ---- figures ---- */

static const char *figure(const struct page *p, size_t index)
{
    const struct ls_figure *f = &p->f->at[index];
    struct ls_str out = { 0 };
    if (p->form == MARKDOWN) {
        ls_str_printf(&out, "![%s](%s)", f->label, f->file);
    } else if (f->cell) {
        ls_str_printf(&out, "<figure class=\"scroll\" tabindex=\"0\" aria-label=\"%s\">\n%s</figure>", f->label, ls_str_text(&f->broad));
    } else {
        ls_str_printf(&out, "<figure class=\"broad\" aria-label=\"%s\">\n%s</figure>\n<figure class=\"narrow\" aria-label=\"%s\">\n%s</figure>", f->label,
                      ls_str_text(&f->broad), f->label, ls_str_text(&f->narrow));
    }
    return kept(p->arena, &out);
}

static const char *throughput(const struct page *p)
{
    struct ls_report_table t;
    spread_table(p, &t);
    return ls_arena_printf(p->arena, "%s\n\n%s", figure(p, 0), table(p, &t, "Step times with their spread"));
}

static const char *timelines(const struct page *p)
{
    struct ls_str out = { 0 };
    if (p->f->count <= 2)
        return "";
    ls_str_add(&out, p->form == HTML ? "\n<h2>Timelines</h2>\n<p class=\"note\">" : "\n## Timelines\n\n");
    escaped(p, &out, ls_arena_printf(p->arena, "One step of each safe cell, in a run of its own, since recording costs time: what every stream of every rank ran, and when%s. "
                                     "A collective waits (light grey) for the other ranks to arrive, or for its turn. White: nothing was ready.",
                                     p->r->ranks > LS_TIMELINE_RANKS_MAX ? " (the first ranks only)" : ""));
    ls_str_add(&out, p->form == HTML ? "</p>\n" : "\n\n");
    for (size_t i = 2; i < p->f->count; i++) {
        const struct ls_result_cell *c = p->f->at[i].cell;
        if (p->form == HTML)
            ls_str_printf(&out, "<details%s><summary>%s, %s batches: step %" PRIu64 "</summary>\n%s\n</details>\n", i == 2 ? " open" : "", plain(p, c->policy),
                          plain(p, c->batches), c->timeline.step + 1, figure(p, i));
        else
            ls_str_printf(&out, "%s, %s batches, step %" PRIu64 ":\n\n%s\n\n", plain(p, c->policy), plain(p, c->batches), c->timeline.step + 1, figure(p, i));
    }
    return kept(p->arena, &out);
}

/* ---- sentences ---- */

static const char *overview_note(const struct page *p)
{
    struct ls_str out = { 0 };
    for (size_t i = 0; i < p->r->cells; i++) {
        const struct ls_result_cell *c = &p->r->cell[i];
        if (c->check == LS_SAFE && p->s->cell[i].agrees)
            continue;
        struct ls_str text = { 0 };
        ls_str_printf(&text, "%s, %s batches: check: %s. Replay: %s.", c->policy, c->batches, c->check_text, c->replay_text);
        ls_str_add(&out, out.length ? (p->form == HTML ? "<br>\n" : "  \n") : "");
        escaped(p, &out, ls_str_text(&text));
        ls_str_release(&text);
    }
    if (!out.length)
        escaped(p, &out, "Every cell is safe, and its replay completed.");
    return kept(p->arena, &out);
}

static const char *throughput_note(const struct page *p)
{
    struct ls_str out = { 0 };
    ls_str_printf(&out, "In the figure, a tick is one measured step, the box reaches from the first to the third quartile, the thick line is the median. The axis need not "
                  "begin at zero. Mean with sample standard deviation (sd). A pair is one round: the same batches, one policy after the other, in the order given and then "
                  "backwards; its value is the ratio of the two runs' median steps, and the column shows the median of the pairs. A policy is called faster or slower only if all of at least %d "
                  "pairs say so; chance alone does that once in 32.", LS_PAIRS_LEAST);
    return plain(p, kept(p->arena, &out));
}

static const char *memory_note(const struct page *p)
{
    return plain(p, "The rank with the largest peak, at the moment of its peak: the categories sum to it. Bytes as the engine's pools handed them out, without "
                    "what an allocator rounds up or keeps; the same in every run.");
}

static void fact(const struct page *p, struct ls_str *out, const char *name, const char *value)
{
    ls_str_add(out, p->form == HTML ? "<dt>" : "- ");
    escaped(p, out, name);
    ls_str_add(out, p->form == HTML ? "</dt><dd>" : ": ");
    escaped(p, out, value);
    ls_str_add(out, p->form == HTML ? "</dd>\n" : "\n");
}

static const char *measured(const struct page *p)
{
    const struct ls_result *r = p->r;
    struct ls_arena *a = p->arena;
    struct ls_str out = { 0 };
    ls_str_add(&out, p->form == HTML ? "<dl>\n" : "");
    fact(p, &out, "runs", ls_arena_printf(a, "%" PRIu64 " of each safe cell, in alternating order; %" PRIu64 " step%s of warm-up left out, then %" PRIu64 " measured; seed %" PRIu64,
                                          r->rounds, r->warmup, r->warmup == 1 ? "" : "s", r->steps, r->seed));
    fact(p, &out, "model", ls_arena_printf(a, "%s: %" PRIu64 " parameters, %" PRIu64 " of them train", r->model_file, r->parameters, r->trained));
    fact(p, &out, "ranks", ls_arena_printf(a, "%" PRIu64 " in one process; %s", r->ranks, r->schedule));
    for (size_t i = 0; i < r->cells; i++)
        if (p->s->cell[i].measured) {
            fact(p, &out, "tokens of a step", ls_arena_printf(a, "%.0f of text and %.0f of images and audio on average, all ranks (%s batches)", p->s->cell[i].text_tokens,
                                                             p->s->cell[i].media_tokens, r->cell[i].batches));
            while (i + 1 < r->cells && strcmp(r->cell[i + 1].batches, r->cell[i].batches) == 0)
                i++;
        }
    for (size_t i = 0; i < p->s->policies.count; i++)
        for (size_t k = 0; k < r->cells; k++)
            if (strcmp(r->cell[k].policy, p->s->policies.at[i]) == 0) {
                fact(p, &out, ls_arena_printf(a, "units of %s", r->cell[k].policy), ls_arena_printf(a, "%zu", r->cell[k].units.count));
                break;
            }
    fact(p, &out, "machine", ls_arena_printf(a, "%s, %" PRIu64 " cores, %s of memory; %s; load average before the run %.1f", r->cpu, r->cores,
                                             ls_bytes_text((double)r->memory_bytes, a), r->system, r->load));
    fact(p, &out, "matrix products", ls_arena_printf(a, "%s, %" PRIu64 " thread%s for each caller", r->blas, r->blas_threads, r->blas_threads == 1 ? "" : "s"));
    fact(p, &out, "program", ls_arena_printf(a, "lockstep %s, %s build, %s", r->version, r->build, r->compiler));
    ls_str_add(&out, p->form == HTML ? "</dl>" : "");
    while (p->form == MARKDOWN && out.length && out.text[out.length - 1] == '\n')
        out.text[--out.length] = 0;
    return kept(a, &out);
}

static void caveat(const struct page *p, struct ls_str *out, const char *text)
{
    ls_str_add(out, p->form == HTML ? "<li>" : out->length ? "\n- " : "- ");
    escaped(p, out, text);
    ls_str_add(out, p->form == HTML ? "</li>\n" : "");
}

static const char *caveats(const struct page *p)
{
    const struct ls_result *r = p->r;
    struct ls_str out = { 0 };
    if (p->form == HTML)
        ls_str_add(&out, "<ul>\n");
    caveat(p, &out, "Times are those of this host, where all ranks share its cores and memory: they do not transfer to GPUs or to a network. Which policy is safe, what is "
                    "gathered and reduced, and the losses do.");
    if (r->ranks > r->cores)
        caveat(p, &out, ls_arena_printf(p->arena, "%" PRIu64 " ranks on %" PRIu64 " cores take turns: communication is not overlapped with compute as it would be on devices of their own.",
                                        r->ranks, r->cores));
    if (ls_result_is_busy(r))
        caveat(p, &out, ls_arena_printf(p->arena, "The machine was busy with other work (load average %.1f on %" PRIu64 " cores): much of the spread is theirs, and differences between "
                                        "policies that are smaller than it mean nothing.", r->load, r->cores));
    if (r->parameters < 1000000)
        caveat(p, &out, "The model is small enough that handling operations, not arithmetic, takes most of a step.");
    if (!all_measured(r))
        caveat(p, &out, "A cell that is not safe has no times: the smallest failing run that check found was replayed instead.");
    caveat(p, &out, "One machine on one day. The pairs show how far its speed drifted; steps of one run are not independent.");
    if (!r->platform)
        caveat(p, &out, "Nothing was simulated: neither the scenario nor --platform names the hardware.");
    ls_str_add(&out, p->form == HTML ? "</ul>" : "");
    return kept(p->arena, &out);
}

static const char *scenario(const struct page *p)
{
    struct ls_str out = { 0 };
    if (p->form == HTML) {
        ls_str_add(&out, "<details><summary>The file</summary>\n<pre>");
        ls_html_escape(&out, p->r->text);
        ls_str_add(&out, "</pre>\n</details>");
    } else {
        /* A fence longer than any run of tildes in the text cannot be closed by it. */
        size_t longest = 2;
        for (const char *s = p->r->text; *s;) {
            size_t n = strspn(s, "~");
            longest = n > longest ? n : longest;
            s += n ? n : 1;
        }
        const char *end = p->r->text_length && p->r->text[p->r->text_length - 1] == '\n' ? "" : "\n";
        for (size_t i = 0; i <= longest; i++)
            ls_str_add(&out, "~");
        ls_str_printf(&out, "yaml\n%s%s", p->r->text, end);
        for (size_t i = 0; i <= longest; i++)
            ls_str_add(&out, "~");
    }
    return kept(p->arena, &out);
}

static void render(const struct page *p, const char *template, struct ls_str *out)
{
    const struct ls_result *r = p->r;
    struct ls_report_table over, memory, losses;
    overview(r, p->s, p->arena, &over);
    memory_table(p, &memory);
    losses_table(p, &losses);
    const struct ls_slot slot[] = {
        { "trained", any_measured(r) ? "" : NULL },
        { "name", plain(p, r->name) },
        { "question", plain(p, r->question) },
        { "answer", plain(p, p->s->answer) },
        { "overview", table(p, &over, "Verdicts and costs") },
        { "overview_note", overview_note(p) },
        { "throughput", any_measured(r) ? throughput(p) : NULL },
        { "throughput_note", throughput_note(p) },
        { "memory", any_measured(r) ? figure(p, 1) : NULL },
        { "memory_note", memory_note(p) },
        { "memory_table", table(p, &memory, "Memory by category") },
        { "losses_note", losses_note(p) },
        { "losses", table(p, &losses, "Losses") },
        { "simulated", simulated(p) },
        { "timelines", timelines(p) },
        { "measured", measured(p) },
        { "caveats", caveats(p) },
        { "scenario_note", plain(p, ls_arena_printf(p->arena, "%s, hash %016" PRIx64 ". The saved run holds every step: 'lockstep report' on this folder renders it again.", r->file,
                                                    ls_hash(r->text, r->text_length, 0))) },
        { "scenario", scenario(p) },
    };
    ls_template_fill(template, slot, sizeof slot / sizeof *slot, out);
}

void ls_render_markdown(const struct ls_result *r, const struct ls_summary *s, const struct ls_figures *f, struct ls_arena *arena,
                        struct ls_str *out)
{
    render(&(struct page){ r, s, f, arena, MARKDOWN }, ls_template_report_md, out);
}

void ls_render_html(const struct ls_result *r, const struct ls_summary *s, const struct ls_figures *f, struct ls_arena *arena,
                    struct ls_str *out)
{
    render(&(struct page){ r, s, f, arena, HTML }, ls_template_page_html, out);
}

void ls_render_text(const struct ls_result *r, const struct ls_summary *s, struct ls_arena *arena, struct ls_str *out)
{
    struct ls_report_table t;
    overview(r, s, arena, &t);
    ls_str_printf(out, "%s:\n  ", r->name);
    for (const char *clause = s->answer; *clause;) { /* a line each */
        const char *end = strstr(clause, "; ");
        size_t length = end ? (size_t)(end - clause) + 1 : strlen(clause);
        ls_str_addn(out, clause, length);
        ls_str_add(out, end ? "\n  " : "\n");
        clause += length + (end != NULL);
    }
    ls_table_text(&t, "  ", out);
}

/* ---- drawing ---- */

/* A name for files and ids: letters, digits and dashes. */
static const char *file_name(const char *text, struct ls_arena *arena)
{
    char *name = ls_arena_str(arena, text);
    for (char *s = name; *s; s++)
        if (!strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789", *s))
            *s = '-';
    return name;
}

void ls_figures_list(const struct ls_result *r, struct ls_arena *arena, struct ls_figures *out)
{
    *out = (struct ls_figures){ .count = any_measured(r) ? 2 : 0 };
    if (!out->count)
        return;
    out->at[0] = (struct ls_figure){ .file = "throughput.svg", .label = "Throughput of each policy, every measured step" };
    out->at[1] = (struct ls_figure){ .file = "memory.svg", .label = "Memory of each policy by category" };
    for (size_t i = 0; i < r->cells; i++)
        if (r->cell[i].has_timeline) {
            const char *name = file_name(ls_arena_printf(arena, "%s %s", r->cell[i].policy, r->cell[i].batches), arena);
            out->at[out->count++] = (struct ls_figure){ .file = ls_arena_printf(arena, "timeline-%s.svg", name),
                                                        .label = ls_arena_printf(arena, "Timeline of %s", name), .cell = &r->cell[i] };
        }
}

static enum ls_code draw(const struct ls_result *r, const struct ls_summary *s, size_t index, unsigned width, const char *name, const struct ls_figure *f,
                         struct ls_str *svg, struct ls_error *err)
{
    struct ls_str script = { 0 };
    if (f->cell)
        ls_figure_timeline(r, f->cell, name, width, &script);
    else if (index == 0)
        ls_figure_throughput(r, s, name, width, &script);
    else
        ls_figure_memory(r, s, name, width, &script);
    enum ls_code rc = ls_gnuplot_run(ls_str_text(&script), name, svg, err);
    ls_str_release(&script);
    return rc;
}

enum ls_code ls_figures_draw(const struct ls_result *r, const struct ls_summary *s, struct ls_arena *arena, struct ls_figures *out,
                             struct ls_error *err)
{
    enum ls_code rc = LS_OK;
    ls_figures_list(r, arena, out);
    for (size_t i = 0; i < out->count && rc == LS_OK; i++) {
        struct ls_figure *f = &out->at[i];
        rc = draw(r, s, i, LS_FIGURE_WIDE, ls_arena_printf(arena, "f%zu", i), f, &f->broad, err);
        if (rc == LS_OK && !f->cell)
            rc = draw(r, s, i, LS_FIGURE_NARROW, ls_arena_printf(arena, "f%zun", i), f, &f->narrow, err);
    }
    return rc;
}

void ls_figures_release(struct ls_figures *f)
{
    for (size_t i = 0; i < f->count; i++) {
        ls_str_release(&f->at[i].broad);
        ls_str_release(&f->at[i].narrow);
    }
}
