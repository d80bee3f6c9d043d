#include "cli/comparison.h"

#include <string.h>

static void add(struct ls_comparison_files *f, const char *name, struct ls_str *text, struct ls_arena *arena)
{
    f->at[f->count++] = (struct ls_file){ name, ls_arena_strn(arena, ls_str_text(text), text->length), text->length };
    ls_str_release(text);
}

enum ls_code ls_comparison_render(const struct ls_result *r, const struct ls_summary *s, bool run, bool figures, struct ls_arena *arena,
                                  struct ls_comparison_files *out, struct ls_error *err)
{
    struct ls_figures f = { 0 };
    struct ls_str text = { 0 };
    enum ls_code rc = LS_OK;
    *out = (struct ls_comparison_files){ 0 };
    if (run) {
        ls_result_write(r, &text);
        add(out, "run.json", &text, arena);
    }
    if (!figures)
        return LS_OK;
    rc = ls_figures_draw(r, s, arena, &f, err);
    if (rc == LS_OK) {
        ls_render_html(r, s, &f, arena, &text);
        add(out, "report.html", &text, arena);
        ls_render_markdown(r, s, &f, arena, &text);
        add(out, "report.md", &text, arena);
        for (size_t i = 0; i < f.count; i++)
            add(out, f.at[i].file, &f.at[i].broad, arena);
    }
    ls_figures_release(&f);
    return rc;
}

static void spread(struct ls_json *j, const char *key, const struct ls_spread *s)
{
    ls_json_key(j, key);
    ls_json_object(j);
    ls_json_add_uint(j, "count", s->count);
    ls_json_add_real(j, "median", s->median);
    ls_json_add_real(j, "q1", s->low);
    ls_json_add_real(j, "q3", s->high);
    ls_json_add_real(j, "mean", s->mean);
    ls_json_add_real(j, "sd", s->sd);
    ls_json_add_real(j, "least", s->min);
    ls_json_add_real(j, "most", s->max);
    ls_json_end_object(j);
}

static void cell(struct ls_json *j, const struct ls_result_cell *c, const struct ls_cell_summary *s)
{
    ls_json_object(j);
    ls_json_add_text(j, "policy", c->policy);
    ls_json_add_text(j, "batches", c->batches);
    ls_json_add_text(j, "check", ls_verdict_name(c->check));
    ls_json_add_text(j, "replay", c->replayed == LS_REPLAYED_NONE ? NULL : ls_verdict_name(c->replay));
    ls_json_add_text(j, "replayed", ls_replayed_name(c->replayed));
    ls_json_add_uint(j, "other_dtype", c->other_dtype);
    ls_json_add_bool(j, "agrees", s->agrees);
    if (s->measured) {
        spread(j, "step_s", &s->step);
        spread(j, "tokens_per_s", &s->rate);
        ls_json_key(j, "throughput_against_baseline");
        if (s->paired) {
            ls_json_object(j);
            ls_json_add_real(j, "median", s->against.ratio.median);
            ls_json_add_real(j, "least", s->against.ratio.min);
            ls_json_add_real(j, "most", s->against.ratio.max);
            ls_json_add_uint(j, "pairs", s->against.ratio.count);
            ls_json_add_uint(j, "faster_in", s->against.above);
            ls_json_end_object(j);
        } else {
            ls_json_null(j);
        }
        ls_json_add_uint(j, "peak_bytes", s->peak);
        ls_json_add_bool(j, "losses_repeat", s->repeats);
        ls_json_key(j, "losses_of_baseline");
        if (s->paired)
            ls_json_bool(j, s->like_baseline);
        else
            ls_json_null(j);
        ls_json_add_real(j, "loss_first", s->loss_first);
        ls_json_add_real(j, "loss_last", s->loss_last);
    }
    if (c->simulated) {
        ls_json_add_real(j, "simulated_step_s", c->sim_step_s);
        ls_json_add_real(j, "simulated_tokens_per_s", c->sim_tokens_s);
        ls_json_add_uint(j, "simulated_peak_bytes", c->sim_peak_bytes);
    }
    ls_json_end_object(j);
}

void ls_comparison_json(const struct ls_result *r, const struct ls_summary *s, struct ls_json *j)
{
    ls_json_add_text(j, "name", r->name);
    ls_json_add_text(j, "answer", s->answer);
    ls_json_add_text(j, "baseline", r->baseline);
    ls_json_key(j, "cells");
    ls_json_array(j);
    for (size_t i = 0; i < r->cells; i++)
        cell(j, &r->cell[i], &s->cell[i]);
    ls_json_end_array(j);
}
