/* A comparison as JSON. Objects are laid out for people, series on one line. */
#include "report/result.h"

#include "base/hash.h"
#include "base/json.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>

const char *ls_replayed_name(enum ls_replayed r)
{
#define REPLAYED_NAME(id, name) name,
    static const char *const name[] = { LS_REPLAYED(REPLAYED_NAME) };
    assert((size_t)r < sizeof name / sizeof *name);
    return name[r];
}

static void hash(struct ls_json *j, uint64_t value)
{
    struct ls_str s = { 0 };
    ls_str_printf(&s, "%016" PRIx64, value);
    ls_json_add_text(j, "hash", ls_str_text(&s));
    ls_str_release(&s);
}

/* On one line, whatever is around it. */
static void open_line(struct ls_json *j, const char *key)
{
    ls_json_key(j, key);
    j->pretty = false;
    ls_json_array(j);
}

static void close_line(struct ls_json *j)
{
    ls_json_end_array(j);
    j->pretty = true;
}

static void names(struct ls_json *j, const char *key, const struct ls_result_names *n)
{
    open_line(j, key);
    for (size_t i = 0; i < n->count; i++)
        ls_json_text(j, n->at[i]);
    close_line(j);
}

static void reals(struct ls_json *j, const char *key, const double *value, size_t count)
{
    open_line(j, key);
    for (size_t i = 0; i < count; i++)
        ls_json_real(j, value[i]);
    close_line(j);
}

static void numbers(struct ls_json *j, const char *key, const uint64_t *value, size_t count)
{
    open_line(j, key);
    for (size_t i = 0; i < count; i++)
        ls_json_uint(j, value[i]);
    close_line(j);
}

static void write_timeline(struct ls_json *j, const struct ls_result_timeline *t)
{
    ls_json_object(j);
    ls_json_add_uint(j, "step", t->step);
    names(j, "streams", &t->streams);
    names(j, "kinds", &t->kinds);
    names(j, "labels", &t->labels);
    open_line(j, "spans");
    for (size_t i = 0; i < t->spans; i++) {
        const struct ls_result_span *s = &t->span[i];
        ls_json_array(j);
        ls_json_uint(j, s->rank);
        ls_json_uint(j, s->stream);
        ls_json_uint(j, s->kind);
        ls_json_uint(j, s->label);
        ls_json_uint(j, s->begin_ns);
        ls_json_uint(j, s->end_ns);
        ls_json_end_array(j);
    }
    close_line(j);
    ls_json_end_object(j);
}

static void write_verdicts(struct ls_json *j, const struct ls_result_cell *c)
{
    ls_json_key(j, "check");
    ls_json_object(j);
    ls_json_add_text(j, "verdict", ls_verdict_name(c->check));
    ls_json_add_text(j, "text", c->check_text);
    ls_json_end_object(j);
    ls_json_key(j, "replay");
    ls_json_object(j);
    ls_json_add_text(j, "run", ls_replayed_name(c->replayed));
    ls_json_add_text(j, "verdict", c->replayed == LS_REPLAYED_NONE ? NULL : ls_verdict_name(c->replay));
    ls_json_add_text(j, "text", c->replay_text);
    ls_json_end_object(j);
    ls_json_key(j, "simulated");
    if (!c->simulated) {
        ls_json_null(j);
        return;
    }
    ls_json_object(j);
    ls_json_add_real(j, "step_s", c->sim_step_s);
    ls_json_add_real(j, "tokens_per_s", c->sim_tokens_s);
    ls_json_add_uint(j, "peak_bytes", c->sim_peak_bytes);
    ls_json_end_object(j);
}

static void write_cell(struct ls_json *j, const struct ls_result *r, const struct ls_result_cell *c)
{
    ls_json_object(j);
    ls_json_add_text(j, "policy", c->policy);
    ls_json_add_text(j, "batches", c->batches);
    names(j, "units", &c->units);
    ls_json_add_uint(j, "other_dtype", c->other_dtype);
    write_verdicts(j, c);
    ls_json_key(j, "runs");
    ls_json_array(j);
    for (size_t i = 0; i < c->runs; i++) {
        const struct ls_result_run *x = &c->run[i];
        ls_json_object(j);
        ls_json_add_uint(j, "round", x->round);
        ls_json_add_uint(j, "order", x->order);
        reals(j, "seconds", x->seconds, x->steps);
        reals(j, "loss", x->loss, x->steps);
        reals(j, "norm", x->norm, x->steps);
        numbers(j, "text_tokens", x->text_tokens, x->steps);
        numbers(j, "media_tokens", x->media_tokens, x->steps);
        ls_json_end_object(j);
    }
    ls_json_end_array(j);
    ls_json_key(j, "memory");
    ls_json_array(j);
    for (size_t i = 0; i < c->ranks; i++) {
        ls_json_object(j);
        ls_json_add_uint(j, "total", c->memory[i].total);
        numbers(j, "at_peak", c->memory[i].at_peak, r->categories.count);
        ls_json_end_object(j);
    }
    ls_json_end_array(j);
    ls_json_key(j, "timeline");
    if (c->has_timeline)
        write_timeline(j, &c->timeline);
    else
        ls_json_null(j);
    ls_json_end_object(j);
}

void ls_result_write(const struct ls_result *r, struct ls_str *out)
{
    struct ls_json json, *j = &json;
    ls_json_init(j, out, true);
    ls_json_object(j);
    ls_json_add_uint(j, "lockstep_result", LS_RESULT_VERSION);
    ls_json_key(j, "lockstep");
    ls_json_object(j);
    ls_json_add_text(j, "version", r->version);
    ls_json_add_text(j, "build", r->build);
    ls_json_add_text(j, "compiler", r->compiler);
    ls_json_end_object(j);
    ls_json_key(j, "scenario");
    ls_json_object(j);
    ls_json_add_text(j, "name", r->name);
    ls_json_add_text(j, "question", r->question);
    ls_json_add_text(j, "file", r->file);
    hash(j, ls_hash(r->text, r->text_length, 0));
    ls_json_add_text(j, "text", r->text);
    ls_json_end_object(j);
    ls_json_key(j, "model");
    ls_json_object(j);
    ls_json_add_text(j, "file", r->model_file);
    hash(j, r->model_hash);
    ls_json_add_uint(j, "parameters", r->parameters);
    ls_json_add_uint(j, "trained", r->trained);
    ls_json_end_object(j);
    ls_json_key(j, "environment");
    ls_json_object(j);
    ls_json_add_text(j, "cpu", r->cpu);
    ls_json_add_uint(j, "cores", r->cores);
    ls_json_add_real(j, "load", r->load);
    ls_json_add_uint(j, "memory_bytes", r->memory_bytes);
    ls_json_add_text(j, "system", r->system);
    ls_json_add_text(j, "blas", r->blas);
    ls_json_add_uint(j, "blas_threads", r->blas_threads);
    ls_json_add_text(j, "schedule", r->schedule);
    ls_json_end_object(j);
    ls_json_key(j, "options");
    ls_json_object(j);
    ls_json_add_uint(j, "seed", r->seed);
    ls_json_add_uint(j, "ranks", r->ranks);
    ls_json_add_uint(j, "warmup", r->warmup);
    ls_json_add_uint(j, "steps", r->steps);
    ls_json_add_uint(j, "rounds", r->rounds);
    ls_json_add_text(j, "baseline", r->baseline);
    ls_json_end_object(j);
    ls_json_add_text(j, "platform", r->platform);
    names(j, "categories", &r->categories);
    ls_json_key(j, "cells");
    ls_json_array(j);
    for (size_t i = 0; i < r->cells; i++)
        write_cell(j, r, &r->cell[i]);
    ls_json_end_array(j);
    ls_json_end_object(j);
    ls_str_add(out, "\n");
}

const struct ls_result_run *ls_result_run_of(const struct ls_result_cell *cell, uint32_t round)
{
    for (size_t i = 0; i < cell->runs; i++)
        if (cell->run[i].round == round)
            return &cell->run[i];
    return NULL;
}

const struct ls_result_cell *ls_result_cell_of(const struct ls_result *r, const char *policy, const char *batches)
{
    for (size_t i = 0; i < r->cells; i++)
        if (strcmp(r->cell[i].policy, policy) == 0 && strcmp(r->cell[i].batches, batches) == 0)
            return &r->cell[i];
    return NULL;
}
