/* Training runs as `replay` gives them: against one process that does not shard, under every policy, schedule and number of
 * microbatches, and what is told about them. Tolerances, all relative, over 30 steps of AdamW in float:
 *   against one process   loss of each step 1e-5, norm 1e-3: reductions add in another order than one process does; weights at the
 *                         end 3e-2 of what training changed, root mean square: an update whose gradient is rounding noise has a
 *                         sign of its own
 *   policies, schedules   none: the same bits */
#include "replay/trace.h"
#include "training.h"

#include <criterion/criterion.h>
#include <math.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { STEPS = 30 };
static const struct training_worst tolerance = { .loss = 1e-5, .norm = 1e-3, .weight = 3e-2 };

static struct ls_str why; /* of the last failure */
#define MUST(x) cr_assert(x, "%s", ls_str_text(&why))

static void load(struct training *j, const struct training_setting *x) { MUST(training_load(j, x, &why)); }

static void load_file(struct training *j, const char *name)
{
    char path[256];
    snprintf(path, sizeof path, "training/%s", name);
    MUST(training_load_file(j, path, &why));
}

static void go(struct training *j, const struct ls_train_options *o) { MUST(training_go(j, o, &why)); }
static void expect_trained(const struct training *j) { MUST(training_completed(j, &why)); }

static void like_solo(const struct training_setting *x)
{
    struct training j;
    struct training_worst worst = { 0 };
    struct ls_train_options o = x->o;
    o.weights = true;
    load(&j, x);
    go(&j, &o);
    expect_trained(&j);
    MUST(training_like_solo(&j, &tolerance, &worst, &why));
    training_drop(&j);
}

static const char *const models[] = { "tiny_qwen3_vl", "tiny_gemma3", "tiny_ministral3", "tiny_qwen2_5_omni" };
static const char *const tables[] = { "[[1]]", "[[1, 2]]", "[[1, 2, 1, 0]]", "[[1, 2, 1, 0, 3, 2, 1, 1]]" };

Test(train, thirty_steps_of_shards_are_those_of_one_process)
{
    for (unsigned k = 0; k < 4; k++) /* every model at every size: campaign_train */
        like_solo(&(struct training_setting){ .model = models[k], .policy = "root", .ranks = 1u << k, .table = tables[k],
                                     .o = { .steps = STEPS - 2, .warmup = 2, .seed = 3 + k, .schedule = 1 } });
}

Test(train, microbatches_are_a_larger_batch)
{
    for (unsigned k = 0; k < 2; k++)
        like_solo(&(struct training_setting){ .model = models[k], .policy = "root", .ranks = 1 + k, .microbatches = 4, .table = k ? "[[1, 2], [2, 1], [0, 1], [1, 3]]" : "[[1], [2], [0], [3]]",
                                     .o = { .steps = 8, .seed = 5 } });
}

Test(train, no_clipping_where_the_scenario_has_none)
{
    for (unsigned k = 0; k < 2; k++)
        like_solo(&(struct training_setting){ .model = models[2], .policy = "root", .ranks = 1 + k, .table = tables[k], .no_clip = true, .o = { .steps = 4, .seed = 5 } });
}

/* --- the same bits --------------------------------------------------------------------------------------------------- */

static void files_alike(const char *one, const char *other)
{
    struct training a, b;
    struct ls_train_options o = { .steps = 4, .seed = 1, .schedule = 1, .weights = true };
    load_file(&a, one);
    go(&a, &o);
    expect_trained(&a);
    o.schedule = 2;
    load_file(&b, other);
    go(&b, &o);
    expect_trained(&b);
    cr_assert(training_same_bits(&a, &b, &why), "%s and %s: %s", one, other, ls_str_text(&why));
    training_drop(&a), training_drop(&b);
}

Test(train, safe_policies_train_alike)
{
    static const char *const pair[][2] = {
        { "qwen3-vl-root-uniform", "qwen3-vl-per-layer-uniform" },     { "qwen3-vl-root-uniform", "qwen3-vl-replicate-uniform" },
        { "qwen3-vl-root-mixed", "qwen3-vl-replicate-mixed" },         { "qwen3-vl-root-mixed", "qwen3-vl-per-layer-mixed-dummy" },
        { "gemma3-root-uniform", "gemma3-per-layer-uniform" },         { "gemma3-root-uniform", "gemma3-replicate-uniform" },
        { "gemma3-root-mixed-dummy", "gemma3-per-layer-mixed-dummy" }, { "gemma3-root-mixed-dummy", "gemma3-replicate-mixed-dummy" },
        { "gemma3-root-uniform", "gemma3-ddp-uniform" },
        { "ministral3-root-uniform", "ministral3-per-layer-uniform" }, { "ministral3-root-mixed-dummy", "ministral3-per-layer-mixed-dummy" },
    };
    for (size_t i = 0; i < sizeof pair / sizeof *pair; i++)
        files_alike(pair[i][0], pair[i][1]);
}

/* DDP: buckets of a few parameters, rebuilt or not; parameters that some ranks, or all, leave out; unsynced microbatches. */
Test(train, ddp_trains_as_one_process_does)
{
    static const struct training_setting x[] = {
        { .model = "tiny_gemma3", .policy = "ddp", .ranks = 2, .table = "[[1, 2]]", .distributed = "  ddp: {bucket_cap_mb: 0.02}\n" },
        { .model = "tiny_qwen3_vl", .policy = "ddp", .ranks = 4, .no_dummy = true, .table = "[[1, 0, 2, 0]]",
          .distributed = "  ddp: {find_unused_parameters: true, bucket_cap_mb: 0.02}\n" },
        { .model = "tiny_qwen3_vl", .policy = "ddp", .ranks = 2, .no_dummy = true, .table = "[[0, 3]]", .distributed = "  ddp: {find_unused_parameters: true}\n" },
        { .model = "tiny_ministral3", .policy = "ddp", .ranks = 3, .microbatches = 2, .table = "[[1, 0, 2], [2, 1, 3]]",
          .batch = "  accumulation: {gradient_sync: last}\n", .distributed = "  ddp: {static_graph: true}\n" },
    };
    for (size_t i = 0; i < sizeof x / sizeof *x; i++) {
        struct training_setting with = x[i];
        with.o = (struct ls_train_options){ .steps = 8, .seed = 11 + i, .schedule = 1 };
        like_solo(&with);
    }
}

/* What ranks told each other of unused parameters is there before the step reads it, whichever stream is ahead. */
Test(train, ddp_with_unused_parameters_trains_alike_in_every_schedule)
{
    struct training first, j;
    struct training_setting with = { .model = "tiny_qwen3_vl", .policy = "ddp", .ranks = 4, .no_dummy = true, .table = "[[1, 0, 2, 0]]",
                                     .distributed = "  ddp: {find_unused_parameters: true, bucket_cap_mb: 0.02}\n" };
    for (uint64_t schedule = 0; schedule < 12; schedule++) {
        struct training *k = schedule ? &j : &first;
        struct ls_train_options o = { .steps = 2, .seed = 12, .schedule = schedule, .weights = true };
        load(k, &with);
        go(k, &o);
        expect_trained(k);
        cr_assert(training_same_bits(&first, k, &why), "schedule %llu: %s", (unsigned long long)schedule, ls_str_text(&why));
        if (schedule)
            training_drop(k);
    }
    training_drop(&first);
}

/* Gradients add up in the order of ranks either way, and a norm is summed slice by slice: the same bits, clipped too. */
Test(train, ddp_trains_as_shards_do)
{
    for (unsigned ranks = 2; ranks <= 3; ranks++) {
        struct training a, b;
        struct ls_train_options o = { .steps = 6, .seed = 2, .schedule = 1, .weights = true };
        struct training_setting x = { .model = "tiny_gemma3", .policy = "root", .ranks = ranks, .microbatches = 2,
                                      .table = ranks == 2 ? "[[1, 2], [2, 1]]" : "[[1, 2, 0], [2, 1, 3]]" };
        load(&a, &x);
        x.policy = "ddp";
        load(&b, &x);
        go(&a, &o);
        o.schedule = 9;
        o.free = ranks == 3;
        go(&b, &o);
        expect_trained(&a);
        expect_trained(&b);
        MUST(training_same_bits(&a, &b, &why));
        training_drop(&a), training_drop(&b);
    }
}

Test(train, schedules_and_threads_change_nothing)
{
    struct training first, other;
    struct ls_train_options o = { .steps = 3, .warmup = 1, .seed = 2, .weights = true };
    load_file(&first, "ministral3-root-mixed-dummy");
    go(&first, &o);
    expect_trained(&first);
    for (uint64_t schedule = 1; schedule < 5; schedule++) {
        o.schedule = schedule;
        o.free = schedule > 2;
        load_file(&other, "ministral3-root-mixed-dummy");
        go(&other, &o);
        MUST(training_same_bits(&first, &other, &why));
        training_drop(&other);
    }
    o.seed = 3;
    load_file(&other, "ministral3-root-mixed-dummy");
    go(&other, &o);
    cr_assert_neq(first.t.step[0].loss, other.t.step[0].loss);
    training_drop(&first), training_drop(&other);
}

/* --- what is told ---------------------------------------------------------------------------------------------------- */

/* Level L3: one slot in the order of calls, or as many as streams and communicators need, change when, not what. */
Test(train, few_kernel_slots_change_nothing_where_they_suffice)
{
    static const struct { const char *file; unsigned kernels; enum ls_start start; bool threads; } row[] = {
        { "qwen3-vl-root-mixed", 1, LS_START_ISSUE_ORDER, false },       { "gemma3-per-layer-uniform", 1, LS_START_ISSUE_ORDER, true },
        { "ministral3-replicate-mixed-dummy", 2, LS_START_ANY, false },  { "gemma3-ddp-uniform", 1, LS_START_ISSUE_ORDER, false },
        { "qwen2-5-omni-root-mixed-dummy", 2, LS_START_ANY, true },
    };
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        struct training a, b;
        struct ls_train_options o = { .steps = 2, .seed = 1, .schedule = 3, .weights = true };
        load_file(&a, row[i].file);
        load_file(&b, row[i].file);
        go(&a, &o);
        b.s.level = LS_L3, b.s.kernels = row[i].kernels, b.s.start = row[i].start;
        o.free = row[i].threads;
        go(&b, &o);
        expect_trained(&a);
        expect_trained(&b);
        cr_assert(training_same_bits(&a, &b, &why), "%s: %s", row[i].file, ls_str_text(&why));
        training_drop(&a), training_drop(&b);
    }
}

/* Gathers among shards and sums over replicas, one slot for both, any order: some schedules put one first here and the other there. A run
 * that gets through has the bits of a run without a bound. */
Test(train, too_few_kernel_slots_hang_or_change_nothing)
{
    struct training_setting x = { .model = "tiny_gemma3", .policy = "root", .ranks = 4, .replicas = 2, .table = "[[1, 2, 1, 2]]",
                                  .o = { .steps = 1, .seed = 4, .weights = true } };
    struct training whole;
    size_t hangs = 0, ends = 0;
    load(&whole, &x);
    go(&whole, &x.o);
    expect_trained(&whole);
    for (uint64_t schedule = 1; schedule <= 60 && !(hangs && ends); schedule++) {
        struct training j;
        struct ls_train_options o = x.o;
        o.schedule = schedule;
        load(&j, &x);
        j.s.level = LS_L3, j.s.kernels = 1, j.s.start = LS_START_ANY;
        go(&j, &o);
        if (j.t.verdict == LS_SAFE) {
            expect_trained(&j);
            cr_assert(training_same_bits(&whole, &j, &why), "schedule %d: %s", (int)schedule, ls_str_text(&why));
            ends++;
        } else {
            cr_assert(j.t.verdict == LS_HANG && j.t.ended == 0 && j.t.observed.outcome.cycle_count > 1, "schedule %d", (int)schedule);
            hangs++;
        }
        training_drop(&j);
    }
    cr_assert(hangs, "no order of starts was wrong");
    training_drop(&whole);
}

Test(train, a_run_that_hangs_says_how_far_it_came)
{
    struct training j;
    struct ls_train_options o = { .steps = 2, .seed = 1, .timeline = true };
    load_file(&j, "gemma3-root-mixed");
    go(&j, &o);
    cr_assert_eq(j.t.verdict, LS_MISMATCH);
    cr_assert_eq(j.t.ended, 0u);
    cr_assert_eq(j.t.observed.outcome.diff, LS_DIFF_COUNT);
    cr_assert(isnan(j.t.step[0].loss) && isnan(j.t.step[0].seconds));
    cr_assert_gt(j.t.spans, 10u);
    cr_assert_eq(ls_train_seconds(&j.t).count, 0u);
    cr_assert(isnan(ls_train_tokens_per_second(&j.t).text));
    training_drop(&j);
}

Test(train, refused_at_set_up)
{
    struct training j;
    struct ls_error err = { 0 };
    struct ls_variant per_layer = LS_AS_WRITTEN;
    struct ls_train_options o = { .steps = 2 };
    per_layer.frozen_sharding = LS_FROZEN_PER_LAYER;
    load_file(&j, "gemma3-root-mixed");
    j.s.policy.rules = LS_RULES_PROPOSED;
    cr_assert_eq(ls_train_prepare(&j.s, &per_layer, &o, &j.arena, &j.c, &err), LS_OK, "%s", err.text);
    cr_assert_str_eq(j.c.compiled->refusal.rule, "per_layer_needs_uniform_execution");
    cr_assert_eq(ls_train_run(&j.c, &o, &j.arena, &j.t, &err), LS_OK, "%s", err.text);
    cr_assert_eq(j.t.verdict, LS_SETUP_ERROR);
    training_drop(&j);
}

Test(train, models_without_operators_are_refused_with_a_place)
{
    struct ls_error err = { 0 };
    struct ls_nn_vlm vlm;
    struct training j;
    MUST(training_load_file(&j, "mixed-media/root", &why));
    cr_assert_eq(ls_train_model(&j.s, &j.arena, &vlm, &err), LS_EINPUT);
    cr_assert_gt(err.input.line, 0u);
    training_drop(&j);
}

Test(train, a_sample_without_tokens_is_refused_where_it_stands)
{
    struct ls_error err = { 0 };
    struct ls_nn_vlm vlm;
    struct training j;
    MUST(training_load_file(&j, "training/gemma3-root-uniform", &why));
    cr_assert_eq(ls_train_model(&j.s, &j.arena, &vlm, &err), LS_OK, "%s", err.text);
    j.s.batch.sample[1].text = j.s.batch.sample[1].images = 0;
    cr_assert_eq(ls_train_model(&j.s, &j.arena, &vlm, &err), LS_EINPUT);
    cr_assert(err.input.line == j.s.batch.sample[1].at.line && strstr(err.text, "without a token"), "%s", err.text);
    training_drop(&j);
}

Test(train, more_steps_than_the_scenario_has)
{
    struct training j;
    struct ls_error err = { 0 };
    struct ls_train_options o = { .steps = 3, .warmup = 1 };
    size_t steps;
    load(&j, &(struct training_setting){ .model = models[0], .policy = "root", .ranks = 1, .table = "[[1]]", .batch = "  steps: 3\n" });
    cr_assert_eq(ls_train_steps(&j.s, &o, &steps, &err), LS_EINPUT);
    cr_assert_gt(err.input.line, 0u);
    o.steps = 2;
    cr_assert_eq(ls_train_steps(&j.s, &o, &steps, &err), LS_OK, "%s", err.text);
    cr_assert_eq(steps, 3u);
    o = (struct ls_train_options){ .warmup = 1 };
    go(&j, &o);
    cr_assert(j.t.steps == 2 && j.t.warmup == 1 && j.t.ended == 3);
    training_drop(&j);
}

Test(train, tokens_are_those_of_the_table)
{
    /* Samples of one letter differ in text. Pictures of tiny_qwen3_vl: 6 x 4 patches, 2 x 2 to a token. */
    struct training j;
    struct ls_train_options o = { .steps = 2 };
    load(&j, &(struct training_setting){ .model = models[0], .policy = "root", .ranks = 2, .microbatches = 2, .table = "[[0, 3], [2, 1]]" });
    go(&j, &o);
    expect_trained(&j);
    for (size_t i = 0; i < 2; i++) {
        cr_assert_eq(j.t.step[i].text_tokens, 12u + 5 + 7 + 9);
        cr_assert_eq(j.t.step[i].image_tokens, 3u * 6);
    }
    training_drop(&j);
}

Test(train, evaluations_have_losses_of_their_own)
{
    struct training j;
    struct ls_train_options o = { .steps = 2 };
    load(&j, &(struct training_setting){ .model = models[0], .policy = "root", .ranks = 2, .table = "[[0, 1]]", .batch = "  schedule: [micro, eval, step]\n" });
    go(&j, &o);
    expect_trained(&j);
    for (size_t i = 0; i < 2; i++) {
        cr_assert(isfinite(j.t.step[i].eval_loss) && isfinite(j.t.step[i].loss));
        cr_assert_neq(j.t.step[i].eval_loss, j.t.step[i].loss); /* other texts */
        cr_assert_eq(j.t.step[i].text_tokens, 12u + 9);
    }
    training_drop(&j);
}

/* What the interpreter and the mathematics take, from sizes alone; what programs decide is compared by memory_equal. */
Test(train, memory_to_the_byte)
{
    for (unsigned ranks = 1; ranks <= 4; ranks *= 2)
        for (unsigned frozen = 0; frozen < 2; frozen++) {
            struct training j;
            struct ls_train_options o = { .steps = 2 };
            load(&j, &(struct training_setting){ .model = models[1], .policy = "root", .ranks = ranks, .table = tables[ranks / 2],
                                        .freeze = frozen ? "{freeze_vision_tower: true}" : NULL });
            go(&j, &o);
            expect_trained(&j);
            uint64_t sharded = 0, optimizer = 2 * sizeof(double); /* the norm and the factor */
            const struct ls_model *m = j.c.vlm->model;
            for (uint32_t i = 0; i < m->params; i++) {
                uint64_t rows = m->param[i].dim[0], per = (rows + ranks - 1) / ranks * (m->param[i].elements / rows) * sizeof(float);
                if (m->param[i].canonical != i)
                    continue;
                sharded += per;
                optimizer += j.c.setup->param[i].trains ? 2 * per : 0;
            }
            for (unsigned r = 0; r < ranks; r++) {
                const struct ls_memory *x = &j.t.observed.memory[r], *y = &j.t.program[r];
                cr_assert_eq(x->peak[LS_CATEGORY_SHARDED], sharded);
                cr_assert_eq(x->peak[LS_CATEGORY_OPTIMIZER], optimizer);
                cr_assert_eq(x->peak[LS_CATEGORY_UNSHARDED], y->peak[LS_CATEGORY_UNSHARDED]);
                cr_assert_eq(x->peak[LS_CATEGORY_GATHER], y->peak[LS_CATEGORY_GATHER]);
                cr_assert_eq(x->peak[LS_CATEGORY_REDUCE], y->peak[LS_CATEGORY_REDUCE]);
                cr_assert(ranks == 1 || (y->peak[LS_CATEGORY_GATHER] && y->peak[LS_CATEGORY_UNSHARDED] && y->peak[LS_CATEGORY_REDUCE]));
                cr_assert(x->peak[LS_CATEGORY_ACTIVATION] && x->now[LS_CATEGORY_ACTIVATION] == 0);
                cr_assert_eq(x->now[LS_CATEGORY_GRADIENT], 0u);
            }
            training_drop(&j);
        }
}

static size_t occurrences(const char *text, const char *what)
{
    size_t n = 0;
    for (; (text = strstr(text, what)); text += strlen(what))
        n++;
    return n;
}

static void check_timeline(bool free_threads)
{
    struct training j;
    struct ls_train_options o = { .steps = 2, .warmup = 1, .seed = 1, .schedule = 3, .free = free_threads, .timeline = true };
    uint64_t last[2][16] = { 0 };
    load_file(&j, "gemma3-root-mixed-dummy");
    go(&j, &o);
    expect_trained(&j);
    const struct ls_job *job = j.c.setup->job;
    size_t ops = 0, kind[LS_OP_COUNT] = { 0 };
    for (size_t r = 0; r < job->ranks; r++)
        for (size_t s = 0; s < job->rank[r].count; s++)
            for (size_t i = 0; i < job->rank[r].segment[s]->count; i++)
                ops += !ls_op_is_host(&job->rank[r].segment[s]->op[i]);
    cr_assert_eq(j.t.spans, ops, "one span of every op on a stream: %zu, %zu", j.t.spans, ops);
    for (size_t i = 0; i < j.t.spans; i++) {
        const struct ls_train_span *s = &j.t.span[i];
        cr_assert(s->rank < 2 && s->stream < 16 && s->step < 3);
        cr_assert(last[s->rank][s->stream] <= s->begin_ns && s->begin_ns <= s->end_ns && s->busy_ns <= s->end_ns - s->begin_ns,
                  "span %zu of rank %u, stream %u", i, s->rank, s->stream);
        last[s->rank][s->stream] = s->end_ns;
        kind[s->kind]++;
        cr_assert(s->kind != LS_OP_ALL_GATHER || *s->label);
    }
    cr_assert(kind[LS_OP_ALL_GATHER] && kind[LS_OP_REDUCE_SCATTER] && kind[LS_OP_COMPUTE] && kind[LS_OP_WAIT]);
    struct ls_str trace = { 0 };
    ls_train_trace(&j.c, &j.t, &trace);
    cr_assert_eq(occurrences(trace.text, "\"ph\":\"X\""), j.t.spans - kind[LS_OP_RECORD]);
    cr_assert_gt(occurrences(trace.text, "\"all_gather root\",\"cat\":\"communication\""), 0u);
    cr_assert(trace.text[0] == '[' && strcmp(trace.text + trace.length - 2, "]\n") == 0);
    ls_str_release(&trace);
    double sum = 0;
    for (size_t i = 0; i < 3; i++) {
        sum += j.t.step[i].seconds;
        cr_assert_gt(j.t.step[i].seconds, 0.0);
        cr_assert(j.t.rank_busy[2 * i] > 0 && j.t.rank_busy[2 * i + 1] > 0);
    }
    cr_assert_lt(sum, j.t.observed.seconds);
    struct ls_spread seconds = ls_train_seconds(&j.t);
    cr_assert(seconds.count == 2 && seconds.min <= seconds.median && seconds.median <= seconds.max);
    double want = (double)j.t.step[1].text_tokens + (double)j.t.step[2].text_tokens;
    cr_assert_float_eq(ls_train_tokens_per_second(&j.t).text * (j.t.step[1].seconds + j.t.step[2].seconds), want, 1e-6 * want);
    training_drop(&j);
}

Test(train, a_span_of_every_op)
{
    check_timeline(false);
    check_timeline(true);
}

Test(train, spread)
{
    const double x[] = { 5, NAN, 1, 2, 4, 3 };
    struct ls_spread s = ls_spread_of(x, 6);
    cr_assert(s.count == 5 && s.median == 3 && s.low == 2 && s.high == 4 && s.mean == 3 && s.min == 1 && s.max == 5);
    s = ls_spread_of((const double[]){ 1, 2 }, 2);
    cr_assert(s.median == 1.5 && s.low == 1.25 && s.high == 1.75);
    s = ls_spread_of(x + 1, 1);
    cr_assert(s.count == 0 && isnan(s.median));
}

/* --- signals --------------------------------------------------------------------------------------------------------- */

/* Until the program has begun, and has a handler for the signal. */
static void wait_for_handler(pid_t child, int signal_number)
{
    char path[64], line[128];
    for (unsigned tries = 0; tries < 6000; tries++) {
        unsigned long long caught = 0;
        bool begun = false;
        snprintf(path, sizeof path, "/proc/%d/status", (int)child);
        FILE *f = fopen(path, "r");
        while (f && fgets(line, sizeof line, f))
            if (sscanf(line, "SigCgt: %llx", &caught) != 1)
                begun |= strcmp(line, "Name:\tlockstep\n") == 0;
        if (f)
            fclose(f);
        if (begun && caught >> (signal_number - 1) & 1)
            return;
        nanosleep(&(struct timespec){ .tv_nsec = 10 * 1000 * 1000 }, NULL);
    }
    cr_assert(false, "no handler");
}

static void signalled(int signal_number, const char *more)
{
    int out[2], status = 0;
    char text[4096] = "";
    size_t length = 0;
    cr_assert_eq(pipe(out), 0);
    pid_t child = fork();
    if (child == 0) {
        dup2(out[1], 2);
        close(out[0]);
        freopen("/dev/null", "w", stdout);
        execl(LS_BINARY_DIR "/lockstep", "lockstep", "replay", LS_SOURCE_DIR "/scenarios/training/qwen3-vl-root-mixed.yaml", "--steps", "4000", more,
              (char *)NULL);
        _exit(127);
    }
    close(out[1]);
    wait_for_handler(child, signal_number);
    nanosleep(&(struct timespec){ .tv_nsec = 400 * 1000 * 1000 }, NULL);
    kill(child, signal_number);
    for (ssize_t n; length + 1 < sizeof text && (n = read(out[0], text + length, sizeof text - 1 - length)) > 0;)
        length += (size_t)n;
    close(out[0]);
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_assert(WIFSIGNALED(status) && WTERMSIG(status) == signal_number, "status %d: %s", status, text);
    cr_assert(strstr(text, "interrupted") && strstr(text, "every rank has ended"), "%s", text);
    cr_assert(!strstr(text, "Sanitizer"), "%s", text);
}

Test(train, signals_end_every_rank)
{
    signalled(SIGINT, NULL);
    signalled(SIGTERM, "--free");
}

/* While nothing runs yet (compiling, checking, waiting for a comparison), a signal ends the program at once, and leaves no file. */
static void ends_in_setup(int signal_number, char *const *arguments, const char *file)
{
    int status = 0;
    pid_t child = fork();
    if (child == 0) {
        freopen("/dev/null", "w", stdout);
        freopen("/dev/null", "w", stderr);
        execv(LS_BINARY_DIR "/lockstep", arguments);
        _exit(127);
    }
    nanosleep(&(struct timespec){ .tv_nsec = 300 * 1000 * 1000 }, NULL);
    kill(child, signal_number);
    struct rusage used;
    cr_assert_eq(wait4(child, &status, 0, &used), child);
    cr_assert(WIFSIGNALED(status) && WTERMSIG(status) == signal_number, "%s: status %d", arguments[1], status);
    /* CPU time, which other work on the machine does not lengthen. */
    cr_expect_lt((double)used.ru_utime.tv_sec + 1e-6 * (double)used.ru_utime.tv_usec, 2.0, "%s", arguments[1]);
    cr_expect(!file || access(file, F_OK) != 0, "%s left %s", arguments[1], file);
}

#define ARGUMENTS(...) (char *const[]){ (char *)(uintptr_t) "lockstep", __VA_ARGS__, NULL }
#define TEXT(s) (char *)(uintptr_t)(s)

Test(train, signals_end_set_up)
{
    static const char steps[] = LS_SOURCE_DIR "/scenarios/timing/step-of-4096.yaml", out[] = LS_BINARY_DIR "/interrupted";
    ends_in_setup(SIGINT, ARGUMENTS(TEXT("replay"), TEXT(steps)), NULL);
    ends_in_setup(SIGTERM, ARGUMENTS(TEXT("simulate"), TEXT(steps)), NULL);
    ends_in_setup(SIGINT, ARGUMENTS(TEXT("check"), TEXT(LS_SOURCE_DIR "/scenarios")), NULL);
    ends_in_setup(SIGTERM, ARGUMENTS(TEXT("compare"), TEXT("--no-report"), TEXT("--out"), TEXT(out), TEXT(LS_SOURCE_DIR "/scenarios/training/qwen3-vl.yaml")),
                  out);
}
