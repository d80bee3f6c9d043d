/* src/report/result.h -- a saved comparison: every time, loss and byte it took, so that a report can be rendered again.
 *
 * One JSON file, `run.json`. It holds what was measured, never what follows from it: medians, ratios and sentences are computed when
 * it is rendered. Readers refuse another `lockstep_result` than their own; it grows when a field changes its meaning or goes.
 *
 *   {"lockstep_result": 1,
 *    "lockstep": {version, build, compiler},
 *    "scenario": {name, question, file, hash: XXH3-64 of the text, as 16 hexadecimal digits, text},
 *    "model": {file, hash, parameters, trained},
 *    "environment": {cpu, cores, load, memory_bytes, system, blas, blas_threads, schedule},   load: average of the minute before
 *    "options": {seed, ranks, warmup, steps, rounds, baseline},
 *    "platform": a name or null,
 *    "categories": [name, ...]                      of memory
 *    "cells": [{
 *      policy, batches, units: [name, ...],
 *      other_dtype: parameters that are computed in another dtype than under the baseline,
 *      check: {verdict, text},                      text: where, and how it is known
 *      replay: {verdict, text, run},                run: "trained", "witness", or "none" with the reason in text
 *      simulated: {step_s, tokens_per_s, peak_bytes} or null,
 *      runs: [{round, order, seconds: [...], loss: [...], norm: [...], text_tokens: [...], media_tokens: [...]}, ...],
 *      memory: [{total, at_peak: [bytes of each category]}, ... by rank],
 *      timeline: {step, streams: [name], kinds: [name], labels: [name], spans: [[rank, stream, kind, label, begin, end], ...]} or null
 *    }, ...]}
 *
 *   units   seconds; bytes; tokens of all ranks in a step; spans in nanoseconds from the beginning of their step
 *   series  one entry per step, warm-up first; null: not a finite number (a loss that is NaN) */
#ifndef LS_REPORT_RESULT_H
#define LS_REPORT_RESULT_H

#include "base/arena.h"
#include "base/str.h"
#include "machine/machine.h"

#include <stdbool.h>
#include <stdint.h>

enum { LS_RESULT_VERSION = 1, LS_RESULT_CELLS_MAX = 64, LS_RESULT_RUNS_MAX = 1000, LS_RESULT_STEPS_MAX = 100000,
       LS_RESULT_RANKS_MAX = 4096, LS_RESULT_NAMES_MAX = 65536, LS_RESULT_SPANS_MAX = 1 << 20 };

struct ls_result_names { const char **at; size_t count; };

#define LS_REPLAYED(X) X(NONE, "none") X(TRAINED, "trained") X(WITNESS, "witness")
#define LS_REPLAYED_ENUM(id, name) LS_REPLAYED_##id,
enum ls_replayed { LS_REPLAYED(LS_REPLAYED_ENUM) LS_REPLAYED_COUNT };
#undef LS_REPLAYED_ENUM
const char *ls_replayed_name(enum ls_replayed r);

struct ls_result_run {
    uint32_t round, order;             /* order: its place in time among the runs of these batches, from 0 */
    size_t steps;                      /* warm-up included */
    double *seconds, *loss, *norm;     /* [steps] */
    uint64_t *text_tokens, *media_tokens;
};
struct ls_result_memory { uint64_t total, *at_peak; }; /* at_peak [categories]: when the total was largest; sums to it */
struct ls_result_span { uint32_t rank, stream, kind, label; uint64_t begin_ns, end_ns; };
struct ls_result_timeline { uint64_t step; struct ls_result_names streams, kinds, labels; struct ls_result_span *span; size_t spans; };

struct ls_result_cell {
    const char *policy, *batches;
    struct ls_result_names units;
    uint64_t other_dtype;
    enum ls_verdict check; const char *check_text;
    enum ls_replayed replayed; enum ls_verdict replay; const char *replay_text; /* NONE: no verdict, SAFE in its place */
    bool simulated; double sim_step_s, sim_tokens_s; uint64_t sim_peak_bytes;
    struct ls_result_run *run; size_t runs;            /* none unless safe */
    struct ls_result_memory *memory; size_t ranks;     /* of the first run */
    bool has_timeline; struct ls_result_timeline timeline;
};
struct ls_result {
    const char *version, *build, *compiler;
    const char *name, *question, *file, *text; size_t text_length;
    const char *model_file; uint64_t model_hash, parameters, trained;
    const char *cpu, *system, *blas, *schedule; uint64_t cores, memory_bytes, blas_threads; double load;
    uint64_t seed, ranks, warmup, steps, rounds;       /* steps: measured ones of each run */
    const char *baseline;                              /* the policy that others are compared with */
    const char *platform;                              /* simulated on; NULL: not simulated */
    struct ls_result_names categories;
    struct ls_result_cell *cell; size_t cells;
};

void ls_result_write(const struct ls_result *r, struct ls_str *out);
/* Everything in *out is owned by `arena`.
 *   errors  LS_EINPUT with the position: no JSON, another version, fields that are missing, of another type, out of range, or that
 *           contradict each other */
LS_MUST_USE enum ls_code ls_result_read(const char *text, size_t length, const char *path, struct ls_arena *arena,
                                        struct ls_result *out, struct ls_error *err);
/* Reads the file. errors  also LS_EINPUT: no such file, too large (256 MiB) */
LS_MUST_USE enum ls_code ls_result_load(const char *path, struct ls_arena *arena, struct ls_result *out, struct ls_error *err);

/* Runs are paired by round: the run of `cell` in that round, or NULL. */
const struct ls_result_run *ls_result_run_of(const struct ls_result_cell *cell, uint32_t round);
const struct ls_result_cell *ls_result_cell_of(const struct ls_result *r, const char *policy, const char *batches);

#endif
