/* A saved comparison from JSON. The first thing wrong ends it: later reads return something harmless. */
#include "report/result.h"

#include "base/hash.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEPTH_MAX = 12, BYTES_MAX = 256 << 20 };

struct step { const char *key; size_t index; }; /* key NULL: an index */
struct reader {
    const char *path, *text; size_t length;
    struct ls_arena *arena;
    struct ls_error *err;
    enum ls_code rc;
    struct step at[DEPTH_MAX]; size_t depth;
};

/* ---- where a value is: jansson does not keep positions, so the text is walked again; it is known to be JSON ---- */

static size_t space(const char *s, size_t i, size_t n)
{
    while (i < n && (s[i] == ' ' || s[i] == '\n' || s[i] == '\r' || s[i] == '\t'))
        i++;
    return i;
}

static size_t after_string(const char *s, size_t i, size_t n)
{
    for (i++; i < n && s[i] != '"'; i++)
        i += s[i] == '\\';
    return i < n ? i + 1 : n;
}

static size_t after_value(const char *s, size_t i, size_t n)
{
    size_t level = 0;
    while (i < n) {
        if (s[i] == '"')
            i = after_string(s, i, n);
        else if (s[i] == '{' || s[i] == '[')
            level++, i++;
        else if (s[i] == '}' || s[i] == ']') {
            if (level == 0)
                return i;
            level--, i++;
        } else if (level == 0 && s[i] == ',')
            return i;
        else
            i++;
        if (level == 0 && (s[i - 1] == '"' || s[i - 1] == '}' || s[i - 1] == ']'))
            return i;
    }
    return n;
}

/* The member `want` of the object or array at i; i itself if there is none. */
static size_t member(const char *s, size_t i, size_t n, struct step want)
{
    size_t at = space(s, i + 1, n);
    for (size_t k = 0; at < n && s[at] != '}' && s[at] != ']'; k++) {
        bool found = !want.key && k == want.index;
        if (want.key) {
            size_t end = after_string(s, at, n), length = strlen(want.key);
            found = end - at == length + 2 && memcmp(s + at + 1, want.key, length) == 0;
            at = space(s, end, n);
            at = space(s, at + 1, n); /* the colon */
        }
        if (found)
            return at;
        at = space(s, after_value(s, at, n), n);
        if (at < n && s[at] == ',')
            at = space(s, at + 1, n);
    }
    return i;
}

static struct ls_loc position(const struct reader *r)
{
    struct ls_loc at = { r->path, 1, 1 };
    size_t i = space(r->text, 0, r->length);
    for (size_t k = 0; k < r->depth && i < r->length && (r->text[i] == '{' || r->text[i] == '['); k++)
        i = member(r->text, i, r->length, r->at[k]);
    for (size_t k = 0; k < i && k < r->length; k++) {
        at.column += ((unsigned char)r->text[k] & 0xc0) != 0x80;
        if (r->text[k] == '\n')
            at.line++, at.column = 1;
    }
    return at;
}

static void fail(struct reader *r, const char *format, ...) LS_PRINTF(2, 3);
static void fail(struct reader *r, const char *format, ...)
{
    if (r->rc != LS_OK)
        return;
    char what[200];
    struct ls_str where = { 0 };
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    for (size_t i = 0; i < r->depth; i++)
        if (r->at[i].key)
            ls_str_printf(&where, "%s%s", i ? "." : "", r->at[i].key);
        else
            ls_str_printf(&where, "[%zu]", r->at[i].index);
    r->rc = ls_fail(r->err, LS_EINPUT, position(r), "'%s' %s", where.length ? ls_str_text(&where) : "the file", what);
    ls_str_release(&where);
}

/* ---- typed reads ---- */

static void enter(struct reader *r, const char *key, size_t index)
{
    if (r->depth < DEPTH_MAX)
        r->at[r->depth] = (struct step){ key, index };
    r->depth++;
}

static void leave(struct reader *r) { r->depth--; }

static const json_t *get(struct reader *r, const json_t *object, const char *key, json_type type, const char *wanted)
{
    const json_t *v = r->rc == LS_OK ? json_object_get(object, key) : NULL;
    if (r->rc == LS_OK && !v)
        fail(r, "has no '%s'", key);
    else if (r->rc == LS_OK && json_typeof(v) != type) {
        enter(r, key, 0);
        fail(r, "is not %s", wanted);
        leave(r);
    }
    return r->rc == LS_OK ? v : NULL;
}

static const json_t *object(struct reader *r, const json_t *o, const char *key) { return get(r, o, key, JSON_OBJECT, "an object"); }

static const json_t *list(struct reader *r, const json_t *o, const char *key, size_t most)
{
    const json_t *v = get(r, o, key, JSON_ARRAY, "a list");
    if (v && json_array_size(v) > most) {
        enter(r, key, 0);
        fail(r, "has %zu entries; at most %zu are read", json_array_size(v), most);
        leave(r);
        return NULL;
    }
    return v;
}

static const char *text(struct reader *r, const json_t *o, const char *key)
{
    const json_t *v = get(r, o, key, JSON_STRING, "a string");
    return v ? ls_arena_strn(r->arena, json_string_value(v), json_string_length(v)) : "";
}

static bool is_null(struct reader *r, const json_t *o, const char *key)
{
    return r->rc == LS_OK && json_is_null(json_object_get(o, key));
}

static uint64_t number_at(struct reader *r, const json_t *v, uint64_t most)
{
    if (r->rc != LS_OK)
        return 0;
    if (!json_is_integer(v) || json_integer_value(v) < 0)
        fail(r, "is not a whole number");
    else if ((uint64_t)json_integer_value(v) > most)
        fail(r, "is %" JSON_INTEGER_FORMAT ", more than %" PRIu64, json_integer_value(v), most);
    return r->rc == LS_OK ? (uint64_t)json_integer_value(v) : 0;
}

static uint64_t number(struct reader *r, const json_t *o, const char *key, uint64_t most)
{
    const json_t *v = get(r, o, key, JSON_INTEGER, "a whole number");
    enter(r, key, 0);
    uint64_t x = v ? number_at(r, v, most) : 0;
    leave(r);
    return x;
}

/* null is no finite number. */
static double real_at(struct reader *r, const json_t *v, bool may_be_null)
{
    if (r->rc == LS_OK && !json_is_number(v) && !(may_be_null && json_is_null(v)))
        fail(r, "is not a number");
    return r->rc != LS_OK ? 0 : json_is_null(v) ? NAN : json_number_value(v);
}

static double positive(struct reader *r, const json_t *o, const char *key)
{
    const json_t *v = r->rc == LS_OK ? json_object_get(o, key) : NULL;
    if (r->rc == LS_OK && !v)
        fail(r, "has no '%s'", key);
    enter(r, key, 0);
    double x = v ? real_at(r, v, false) : 0;
    if (r->rc == LS_OK && x < 0)
        fail(r, "is negative");
    leave(r);
    return x;
}

static uint64_t hash(struct reader *r, const json_t *o)
{
    const char *s = text(r, o, "hash");
    uint64_t x = 0;
    if (r->rc == LS_OK && (strlen(s) != 16 || strspn(s, "0123456789abcdef") != 16)) {
        enter(r, "hash", 0);
        fail(r, "is not a hash: 16 hexadecimal digits");
        leave(r);
    }
    if (r->rc == LS_OK)
        x = strtoull(s, NULL, 16);
    return x;
}

static struct ls_result_names names(struct reader *r, const json_t *o, const char *key)
{
    struct ls_result_names n = { 0 };
    const json_t *v = list(r, o, key, LS_RESULT_NAMES_MAX);
    if (!v)
        return n;
    n.at = LS_NEW(r->arena, const char *, json_array_size(v) + 1);
    enter(r, key, 0);
    for (size_t i = 0; i < json_array_size(v) && r->rc == LS_OK; i++) {
        const json_t *x = json_array_get(v, i);
        enter(r, NULL, i);
        if (!json_is_string(x))
            fail(r, "is not a string");
        else
            n.at[n.count++] = ls_arena_strn(r->arena, json_string_value(x), json_string_length(x));
        leave(r);
    }
    leave(r);
    return n;
}

static double *series(struct reader *r, const json_t *o, const char *key, size_t count, bool may_be_null)
{
    const json_t *v = list(r, o, key, LS_RESULT_STEPS_MAX);
    double *x = LS_NEW(r->arena, double, count + 1);
    if (!v)
        return x;
    enter(r, key, 0);
    if (json_array_size(v) != count)
        fail(r, "has %zu entries, and a run has %zu steps", json_array_size(v), count);
    for (size_t i = 0; i < count && r->rc == LS_OK; i++) {
        enter(r, NULL, i);
        x[i] = real_at(r, json_array_get(v, i), may_be_null);
        if (r->rc == LS_OK && !may_be_null && !(x[i] > 0))
            fail(r, "is no time: it must be above 0");
        leave(r);
    }
    leave(r);
    return x;
}

static uint64_t *numbers(struct reader *r, const json_t *o, const char *key, size_t count, const char *of)
{
    const json_t *v = list(r, o, key, LS_RESULT_STEPS_MAX);
    uint64_t *x = LS_NEW(r->arena, uint64_t, count + 1);
    if (!v)
        return x;
    enter(r, key, 0);
    if (json_array_size(v) != count)
        fail(r, "has %zu entries, and there are %zu %s", json_array_size(v), count, of);
    for (size_t i = 0; i < count && r->rc == LS_OK; i++) {
        enter(r, NULL, i);
        x[i] = number_at(r, json_array_get(v, i), INT64_MAX / LS_RESULT_STEPS_MAX);
        leave(r);
    }
    leave(r);
    return x;
}

/* ---- the parts ---- */

static void read_run(struct reader *r, const json_t *o, const struct ls_result *result, struct ls_result_cell *c)
{
    struct ls_result_run *x = &c->run[c->runs];
    if (!json_is_object(o)) {
        fail(r, "is not an object");
        return;
    }
    x->steps = (size_t)(result->warmup + result->steps);
    x->round = (uint32_t)number(r, o, "round", result->rounds - 1);
    x->order = (uint32_t)number(r, o, "order", LS_RESULT_RUNS_MAX * LS_RESULT_CELLS_MAX);
    for (size_t i = 0; i < c->runs && r->rc == LS_OK; i++)
        if (c->run[i].round == x->round)
            fail(r, "is a second run of round %u", x->round);
    x->seconds = series(r, o, "seconds", x->steps, false);
    x->loss = series(r, o, "loss", x->steps, true);
    x->norm = series(r, o, "norm", x->steps, true);
    x->text_tokens = numbers(r, o, "text_tokens", x->steps, "steps");
    x->media_tokens = numbers(r, o, "media_tokens", x->steps, "steps");
    c->runs++;
}

static void read_runs(struct reader *r, const json_t *o, const struct ls_result *result, struct ls_result_cell *c)
{
    const json_t *runs = list(r, o, "runs", LS_RESULT_RUNS_MAX), *memory = list(r, o, "memory", LS_RESULT_RANKS_MAX);
    if (!runs || !memory)
        return;
    c->run = LS_NEW(r->arena, struct ls_result_run, json_array_size(runs) + 1);
    enter(r, "runs", 0);
    for (size_t i = 0; i < json_array_size(runs) && r->rc == LS_OK; i++) {
        enter(r, NULL, i);
        read_run(r, json_array_get(runs, i), result, c);
        leave(r);
    }
    leave(r);
    enter(r, "memory", 0);
    c->memory = LS_NEW(r->arena, struct ls_result_memory, json_array_size(memory) + 1);
    if (r->rc == LS_OK && json_array_size(memory) != (c->runs ? result->ranks : 0))
        fail(r, "has %zu entries, and there are %" PRIu64 " ranks that ran", json_array_size(memory), c->runs ? result->ranks : 0);
    for (size_t i = 0; i < json_array_size(memory) && r->rc == LS_OK; i++) {
        const json_t *m = json_array_get(memory, i);
        uint64_t sum = 0;
        enter(r, NULL, i);
        if (!json_is_object(m))
            fail(r, "is not an object");
        c->memory[i].total = number(r, m, "total", INT64_MAX);
        c->memory[i].at_peak = numbers(r, m, "at_peak", result->categories.count, "categories");
        for (size_t k = 0; k < result->categories.count && r->rc == LS_OK; k++)
            sum += c->memory[i].at_peak[k];
        if (r->rc == LS_OK && sum != c->memory[i].total)
            fail(r, "has categories that sum to %" PRIu64 ", not to its total of %" PRIu64, sum, c->memory[i].total);
        leave(r);
        c->ranks++;
    }
    leave(r);
}

static void read_span(struct reader *r, const json_t *v, const struct ls_result *result, struct ls_result_timeline *t)
{
    const uint64_t most[6] = { result->ranks - 1, t->streams.count - 1, t->kinds.count - 1, t->labels.count - 1, INT64_MAX, INT64_MAX };
    uint64_t x[6] = { 0 };
    if (!json_is_array(v) || json_array_size(v) != 6) {
        fail(r, "is not a list of 6 numbers");
        return;
    }
    for (size_t k = 0; k < 6 && r->rc == LS_OK; k++) {
        enter(r, NULL, k);
        x[k] = number_at(r, json_array_get(v, k), most[k]);
        leave(r);
    }
    if (r->rc == LS_OK && x[5] < x[4])
        fail(r, "ends before it begins");
    t->span[t->spans++] = (struct ls_result_span){ (uint32_t)x[0], (uint32_t)x[1], (uint32_t)x[2], (uint32_t)x[3], x[4], x[5] };
}

static void read_timeline(struct reader *r, const json_t *o, const struct ls_result *result, struct ls_result_cell *c)
{
    struct ls_result_timeline *t = &c->timeline;
    if (r->rc != LS_OK || is_null(r, o, "timeline"))
        return;
    o = object(r, o, "timeline");
    if (!o)
        return;
    enter(r, "timeline", 0);
    c->has_timeline = true;
    t->step = number(r, o, "step", result->warmup + result->steps - 1);
    t->streams = names(r, o, "streams");
    t->kinds = names(r, o, "kinds");
    t->labels = names(r, o, "labels");
    const json_t *spans = list(r, o, "spans", LS_RESULT_SPANS_MAX);
    size_t count = spans ? json_array_size(spans) : 0;
    if (count && (!t->streams.count || !t->kinds.count || !t->labels.count))
        fail(r, "has spans, but no names of streams, kinds or labels");
    t->span = LS_NEW(r->arena, struct ls_result_span, count + 1);
    enter(r, "spans", 0);
    for (size_t i = 0; i < count && r->rc == LS_OK; i++) {
        enter(r, NULL, i);
        read_span(r, json_array_get(spans, i), result, t);
        leave(r);
    }
    leave(r);
    leave(r);
}

static enum ls_verdict verdict(struct reader *r, const json_t *o)
{
    enum ls_verdict v = LS_SAFE;
    const char *name = text(r, o, "verdict");
    if (r->rc == LS_OK && !ls_verdict_find(name, &v)) {
        enter(r, "verdict", 0);
        fail(r, "is '%.40s', which is no verdict", name);
        leave(r);
    }
    return v;
}

static void read_verdicts(struct reader *r, const json_t *o, struct ls_result_cell *c)
{
    const json_t *check = object(r, o, "check"), *replay = object(r, o, "replay");
    if (!check || !replay)
        return;
    enter(r, "check", 0);
    c->check = verdict(r, check);
    c->check_text = text(r, check, "text");
    leave(r);
    enter(r, "replay", 0);
    const char *run = text(r, replay, "run");
    size_t kind = 0;
    while (kind < LS_REPLAYED_COUNT && strcmp(ls_replayed_name((enum ls_replayed)kind), run) != 0)
        kind++;
    if (r->rc == LS_OK && kind == LS_REPLAYED_COUNT) {
        enter(r, "run", 0);
        fail(r, "is '%.40s', not one of none, trained, witness", run);
        leave(r);
    }
    c->replayed = (enum ls_replayed)(r->rc == LS_OK ? kind : 0);
    c->replay = c->replayed == LS_REPLAYED_NONE ? LS_SAFE : verdict(r, replay);
    c->replay_text = text(r, replay, "text");
    leave(r);
}

static void read_cell(struct reader *r, const json_t *o, struct ls_result *result)
{
    struct ls_result_cell *c = &result->cell[result->cells];
    if (!json_is_object(o)) {
        fail(r, "is not an object");
        return;
    }
    c->policy = text(r, o, "policy");
    c->batches = text(r, o, "batches");
    if (r->rc == LS_OK && ls_result_cell_of(result, c->policy, c->batches))
        fail(r, "is a second cell of %.40s and %.40s", c->policy, c->batches);
    result->cells++;
    c->units = names(r, o, "units");
    c->other_dtype = number(r, o, "other_dtype", INT64_MAX);
    read_verdicts(r, o, c);
    if (r->rc == LS_OK && !is_null(r, o, "simulated")) {
        const json_t *sim = object(r, o, "simulated");
        enter(r, "simulated", 0);
        c->simulated = true;
        c->sim_step_s = sim ? positive(r, sim, "step_s") : 0;
        c->sim_tokens_s = sim ? positive(r, sim, "tokens_per_s") : 0;
        c->sim_peak_bytes = sim ? number(r, sim, "peak_bytes", INT64_MAX) : 0;
        leave(r);
    }
    read_runs(r, o, result, c);
    if (r->rc == LS_OK && c->runs && (c->check != LS_SAFE || c->replayed != LS_REPLAYED_TRAINED))
        fail(r, "has times, but it is not safe or was not trained");
    read_timeline(r, o, result, c);
}

static void read_head(struct reader *r, const json_t *root, struct ls_result *out)
{
    const json_t *o = object(r, root, "lockstep");
    enter(r, "lockstep", 0);
    out->version = text(r, o, "version");
    out->build = text(r, o, "build");
    out->compiler = text(r, o, "compiler");
    leave(r);
    o = object(r, root, "scenario");
    enter(r, "scenario", 0);
    out->name = text(r, o, "name");
    out->question = text(r, o, "question");
    out->file = text(r, o, "file");
    out->text = text(r, o, "text");
    out->text_length = strlen(out->text);
    uint64_t stated = hash(r, o), found = ls_hash(out->text, out->text_length, 0);
    if (r->rc == LS_OK && stated != found)
        fail(r, "has another text than its hash says: the file was changed after the run");
    leave(r);
    o = object(r, root, "model");
    enter(r, "model", 0);
    out->model_file = text(r, o, "file");
    out->model_hash = hash(r, o);
    out->parameters = number(r, o, "parameters", INT64_MAX);
    out->trained = number(r, o, "trained", INT64_MAX);
    leave(r);
    o = object(r, root, "environment");
    enter(r, "environment", 0);
    out->cpu = text(r, o, "cpu");
    out->cores = number(r, o, "cores", 1 << 20);
    out->load = positive(r, o, "load");
    out->memory_bytes = number(r, o, "memory_bytes", INT64_MAX);
    out->system = text(r, o, "system");
    out->blas = text(r, o, "blas");
    out->blas_threads = number(r, o, "blas_threads", 1 << 20);
    out->schedule = text(r, o, "schedule");
    leave(r);
    o = object(r, root, "options");
    enter(r, "options", 0);
    out->seed = number(r, o, "seed", INT64_MAX);
    out->ranks = number(r, o, "ranks", LS_RESULT_RANKS_MAX);
    out->warmup = number(r, o, "warmup", LS_RESULT_STEPS_MAX / 2);
    out->steps = number(r, o, "steps", LS_RESULT_STEPS_MAX / 2);
    out->rounds = number(r, o, "rounds", LS_RESULT_RUNS_MAX);
    out->baseline = text(r, o, "baseline");
    if (r->rc == LS_OK && (!out->ranks || !out->steps || !out->rounds))
        fail(r, "has no ranks, no steps or no rounds");
    leave(r);
    out->platform = is_null(r, root, "platform") ? NULL : text(r, root, "platform");
    out->categories = names(r, root, "categories");
}

enum ls_code ls_result_read(const char *text_of, size_t length, const char *path, struct ls_arena *arena, struct ls_result *out,
                            struct ls_error *err)
{
    struct reader reader = { .path = path, .text = text_of, .length = length, .arena = arena, .err = err }, *r = &reader;
    json_error_t wrong;
    *out = (struct ls_result){ 0 };
    json_t *root = json_loadb(text_of, length, JSON_REJECT_DUPLICATES, &wrong);
    if (!root) {
        struct ls_loc at = { path, wrong.line > 0 ? (size_t)wrong.line : 1, wrong.column > 0 ? (size_t)wrong.column : 1 };
        return ls_fail(err, LS_EINPUT, at, "not JSON, or cut off: %.150s", wrong.text);
    }
    if (!json_is_object(root) || !json_object_get(root, "lockstep_result")) {
        fail(r, "is no saved comparison: it has no 'lockstep_result'");
    } else {
        uint64_t version = number(r, root, "lockstep_result", INT64_MAX);
        enter(r, "lockstep_result", 0);
        if (r->rc == LS_OK && version != LS_RESULT_VERSION)
            fail(r, "is %" PRIu64 "; this program reads version %d", version, LS_RESULT_VERSION);
        leave(r);
        read_head(r, root, out);
        const json_t *cells = list(r, root, "cells", LS_RESULT_CELLS_MAX);
        out->cell = LS_NEW(arena, struct ls_result_cell, LS_RESULT_CELLS_MAX);
        enter(r, "cells", 0);
        for (size_t i = 0; cells && i < json_array_size(cells) && r->rc == LS_OK; i++) {
            enter(r, NULL, i);
            read_cell(r, json_array_get(cells, i), out);
            leave(r);
        }
        if (r->rc == LS_OK && !out->cells)
            fail(r, "is empty");
        leave(r);
    }
    json_decref(root);
    if (r->rc != LS_OK)
        *out = (struct ls_result){ 0 };
    return r->rc;
}

enum ls_code ls_result_load(const char *path, struct ls_arena *arena, struct ls_result *out, struct ls_error *err)
{
    struct ls_loc at = { path, 0, 0 };
    struct ls_str content = { 0 };
    char block[1 << 16];
    size_t got;
    FILE *f = fopen(path, "rb");
    if (!f)
        return ls_fail(err, LS_EINPUT, at, "cannot read '%s': %s", path, strerror(errno));
    while ((got = fread(block, 1, sizeof block, f)) > 0 && content.length <= BYTES_MAX)
        ls_str_addn(&content, block, got);
    bool bad = ferror(f) != 0;
    int why = errno;
    fclose(f);
    enum ls_code rc = bad ? ls_fail(err, LS_EINPUT, at, "cannot read '%s': %s", path, strerror(why))
                      : content.length > BYTES_MAX
                          ? ls_fail(err, LS_EINPUT, at, "'%s' is too large: at most %d MiB are read", path, BYTES_MAX >> 20)
                          : ls_result_read(ls_str_text(&content), content.length, path, arena, out, err);
    ls_str_release(&content);
    return rc;
}
