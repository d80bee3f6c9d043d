/* Traces of simulate and of replay against what the Trace Event Format asks of a JSON array: fields and types of each phase, metadata for every
 * process and thread, times in order on each track, slices of a thread one after the other or one inside the other, counters of
 * one set of series. Perfetto and chrome://tracing read that format; neither is run here.
 *   source  Trace Event Format (Chromium), sections on JSON array format, metadata, complete and counter events */
#include "sim/simulate.h"

#include <criterion/criterion.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct slice { int64_t pid, tid; long long begin, end; size_t index; }; /* picoseconds: sums of microseconds in double are not exact */
typedef LS_VEC(struct slice) slice_vec;
struct track { int64_t pid, tid; bool named; double last; };
typedef LS_VEC(struct track) track_vec;

static struct track *track_of(track_vec *v, int64_t pid, int64_t tid)
{
    for (size_t i = 0; i < v->count; i++)
        if (v->at[i].pid == pid && v->at[i].tid == tid)
            return &v->at[i];
    ls_push(v, (struct track){ pid, tid, false, 0 });
    return &v->at[v->count - 1];
}

static double number_of(const json_t *e, const char *key, size_t i)
{
    const json_t *v = json_object_get(e, key);
    cr_assert(json_is_number(v), "event %zu has no number '%s'", i, key);
    cr_assert(isfinite(json_number_value(v)) && json_number_value(v) >= 0, "event %zu: '%s' is %g", i, key, json_number_value(v));
    return json_number_value(v);
}

static int64_t id_of(const json_t *e, const char *key, size_t i)
{
    const json_t *v = json_object_get(e, key);
    cr_assert(json_is_integer(v) && json_integer_value(v) >= 0, "event %zu: '%s' is no whole number", i, key);
    return json_integer_value(v);
}

static void check_metadata(const json_t *e, size_t i, track_vec *tracks)
{
    static const char *const known[][2] = { { "process_name", "name" }, { "process_labels", "labels" }, { "thread_name", "name" } };
    const char *name = json_string_value(json_object_get(e, "name")), *key = NULL;
    for (size_t k = 0; k < sizeof known / sizeof *known; k++)
        if (strcmp(known[k][0], name) == 0)
            key = known[k][1];
    cr_assert(key, "event %zu: '%s' is no metadata that the format knows", i, name);
    const json_t *args = json_object_get(e, "args");
    cr_assert(json_is_object(args) && json_is_string(json_object_get(args, key)) && json_string_length(json_object_get(args, key)), "event %zu: %s has no '%s'", i, name,
              key);
    if (strcmp(name, "thread_name") == 0)
        track_of(tracks, id_of(e, "pid", i), id_of(e, "tid", i))->named = true;
    else if (strcmp(name, "process_name") == 0)
        track_of(tracks, id_of(e, "pid", i), -1)->named = true;
}

static int by_track(const void *a, const void *b)
{
    const struct slice *x = a, *y = b;
    if (x->pid != y->pid)
        return x->pid < y->pid ? -1 : 1;
    if (x->tid != y->tid)
        return x->tid < y->tid ? -1 : 1;
    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    return x->end > y->end ? -1 : x->end < y->end;
}

/* What complete events stand for: a begin and an end each, which match like brackets. */
static void check_nesting(slice_vec *v)
{
    long long open[256];
    size_t depth = 0;
    qsort(v->at, v->count, sizeof *v->at, by_track);
    for (size_t i = 0; i < v->count; i++) {
        if (i && (v->at[i].pid != v->at[i - 1].pid || v->at[i].tid != v->at[i - 1].tid))
            depth = 0;
        while (depth && open[depth - 1] <= v->at[i].begin)
            depth--;
        cr_assert(!depth || v->at[i].end <= open[depth - 1], "event %zu of process %lld, thread %lld: %lld to %lld ps crosses the end of another at %lld ps", v->at[i].index,
                  (long long)v->at[i].pid, (long long)v->at[i].tid, v->at[i].begin, v->at[i].end, open[depth - 1]);
        cr_assert_lt(depth, 256u);
        open[depth++] = v->at[i].end;
    }
}

static void check_counter(const json_t *e, size_t i, track_vec *counters)
{
    const json_t *args = json_object_get(e, "args"), *value;
    const char *key;
    double ts = number_of(e, "ts", i);
    struct track *t = track_of(counters, id_of(e, "pid", i), 0);
    cr_assert(json_is_object(args) && json_object_size(args), "event %zu: a counter without values", i);
    json_object_foreach((json_t *)args, key, value)
        cr_assert(json_is_number(value) && json_number_value(value) >= 0, "event %zu: '%s' is no number", i, key);
    cr_assert_geq(ts, t->last, "event %zu: the counter of process %lld goes back in time", i, (long long)t->pid);
    t->last = ts;
}

static void check_trace(const char *text, size_t length, size_t ranks, bool counts)
{
    json_error_t wrong;
    json_t *root = json_loadb(text, length, JSON_REJECT_DUPLICATES, &wrong);
    cr_assert(root, "%d:%d %s", wrong.line, wrong.column, wrong.text);
    cr_assert(json_is_array(root));
    slice_vec slices = { 0 };
    track_vec tracks = { 0 }, counters = { 0 };
    size_t counted = 0;
    for (size_t i = 0; i < json_array_size(root); i++) {
        const json_t *e = json_array_get(root, i);
        cr_assert(json_is_object(e), "event %zu", i);
        const char *ph = json_string_value(json_object_get(e, "ph"));
        cr_assert(ph && json_string_length(json_object_get(e, "name")), "event %zu has no phase or no name", i);
        cr_assert_lt(id_of(e, "pid", i), (int64_t)ranks);
        if (strcmp(ph, "M") == 0) {
            check_metadata(e, i, &tracks);
        } else if (strcmp(ph, "X") == 0) {
            double ts = number_of(e, "ts", i), dur = number_of(e, "dur", i);
            const json_t *args = json_object_get(e, "args");
            struct slice s = { id_of(e, "pid", i), id_of(e, "tid", i), llround(ts * 1e6), llround(ts * 1e6) + llround(dur * 1e6), i };
            cr_assert(json_is_string(json_object_get(e, "cat")) && (!args || json_is_object(args)), "event %zu", i);
            cr_assert(track_of(&tracks, s.pid, s.tid)->named, "event %zu: thread %lld of process %lld has no name", i, (long long)s.tid, (long long)s.pid);
            cr_assert(track_of(&tracks, s.pid, -1)->named, "event %zu: process %lld has no name", i, (long long)s.pid);
            ls_push(&slices, s);
        } else if (strcmp(ph, "C") == 0) {
            check_counter(e, i, &counters);
            counted++;
        } else {
            cr_assert(false, "event %zu: phase '%s' is not one that is written", i, ph);
        }
    }
    cr_assert(slices.count > 0, "no slices");
    cr_assert((counted > 0) == counts, "%zu counters", counted);
    check_nesting(&slices);
    ls_vec_release(&slices);
    ls_vec_release(&tracks);
    ls_vec_release(&counters);
    json_decref(root);
}

static void simulate(const char *file, enum ls_frozen policy, size_t replicas, bool fails)
{
    struct ls_arena arena;
    struct ls_names *names = ls_names_open();
    struct ls_error err = { 0 };
    struct ls_scenario s;
    struct ls_simulation x;
    struct ls_str text = { 0 };
    struct ls_simulate_options o = { .variant = LS_AS_WRITTEN, .draw = LS_DRAW_MIXED, .seed = 1, .replicas = replicas, .steps = 2, .trace = true,
                                     .platform = LS_SOURCE_DIR "/scenarios/platforms/h100x8.yaml", .spread = LS_SPEED_ONE / 20, .force = true };
    ls_arena_init(&arena, 0);
    o.variant.frozen_sharding = (int)policy;
    cr_assert_eq(ls_scenario_load(file, &arena, names, &s, &err), LS_OK, "%s: %s", file, err.text);
    cr_assert_eq(ls_simulate(&s, &o, &arena, &x, &err), LS_OK, "%s: %s", file, err.text);
    cr_assert_eq(x.run.complete, !fails, "%s", file);
    ls_trace_write(&s, &x, &text);
    check_trace(ls_str_text(&text), text.length, x.job.ranks, true);
    ls_str_release(&text);
    ls_simulation_release(&x);
    ls_names_close(names);
    ls_arena_release(&arena);
}

Test(trace, follows_the_trace_event_format)
{
    simulate(LS_SOURCE_DIR "/scenarios/training/qwen3-vl.yaml", LS_FROZEN_ROOT, 0, false);
    simulate(LS_SOURCE_DIR "/scenarios/training/qwen3-vl.yaml", LS_FROZEN_REPLICATE, 0, false);
    simulate(LS_SOURCE_DIR "/scenarios/timing/qwen3-vl-4b.yaml", LS_FROZEN_ROOT, 0, false);
}

/* Of a run that stands still, too: what is in flight has no end, and is not written. */
Test(trace, of_a_run_that_hangs)
{
    simulate(LS_SOURCE_DIR "/scenarios/timing/qwen3-vl-4b.yaml", LS_FROZEN_PER_LAYER, 0, true);
}

/* Measured: with coroutines on one thread, and with a thread per queue. By way of the program: headers of the engine and of the
 * simulator name some of their structs alike. */
Test(trace, of_a_training_run)
{
    for (int threads = 0; threads < 2; threads++) {
        char base[] = "/tmp/lockstep-trace-XXXXXX", path[100], command[700];
        struct ls_str text = { 0 };
        cr_assert(mkdtemp(base));
        snprintf(path, sizeof path, "%s/t.json", base);
        snprintf(command, sizeof command, "cd '%s' && '%s/lockstep' replay --steps 2 --warmup 1 %s --trace '%s' scenarios/training/qwen3-vl.yaml >/dev/null", LS_SOURCE_DIR,
                 LS_BINARY_DIR, threads ? "--free" : "", path);
        cr_assert_eq(system(command), 0, "%s", command);
        FILE *f = fopen(path, "rb");
        cr_assert(f);
        for (int c; (c = getc(f)) != EOF;)
            ls_str_addn(&text, &(char){ (char)c }, 1);
        fclose(f);
        check_trace(ls_str_text(&text), text.length, 2, false);
        ls_str_release(&text);
        cr_assert(unlink(path) == 0 && rmdir(base) == 0);
    }
}
