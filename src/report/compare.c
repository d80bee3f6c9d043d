#include "report/compare.h"

#include "advise/advise.h"
#include "base/hash.h"
#include "replay/train.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

const char *const ls_compared_policy[LS_COMPARED_POLICIES] = { [LS_COMPARED_ROOT] = "root", [LS_COMPARED_PER_LAYER] = "per_layer",
                                                               [LS_COMPARED_REPLICATE] = "replicate", [LS_COMPARED_DDP] = "ddp" };

#define NAME(id, name, execution) name,
#define EXECUTION(id, name, execution) execution,
static const char *const batches_name[] = { LS_COMPARED_BATCHES(NAME) };
static const int batches_execution[] = { LS_COMPARED_BATCHES(EXECUTION) };

const char *ls_compared_batches_name(enum ls_compared_batches b) { return batches_name[b]; }

const struct ls_scenario *ls_compared_scenario(const struct ls_scenario *s, enum ls_compared_policy policy, struct ls_scenario *ddp)
{
    if (policy != LS_COMPARED_DDP)
        return s;
    ls_scenario_as_ddp(s, ddp);
    return ddp;
}

struct ls_variant ls_compared_variant(enum ls_compared_policy policy, enum ls_compared_batches batches)
{
    struct ls_variant v = LS_AS_WRITTEN;
    v.frozen_sharding = policy == LS_COMPARED_DDP ? -1 : (int)policy;
    v.execution = batches_execution[batches];
    return v;
}

enum { SCHEDULES_MAX = 200 };

/* A safe cell made ready to train; its storage lives until the comparison ends. */
struct trainee { struct ls_train_case c; bool ready; };
struct comparison {
    const struct ls_scenario *s;
    struct ls_scenario ddp;
    const struct ls_compare_options *o;
    struct ls_arena *arena;
    struct ls_result *out;
    struct ls_error *err;
    struct trainee trainee[LS_RESULT_CELLS_MAX];
    uint32_t order;                   /* runs of these batches so far */
};

static bool stopped(const struct comparison *x) { return x->o->interrupted && *x->o->interrupted; }

static void tell(const struct comparison *x, const struct ls_result_cell *c, const char *what)
{
    if (!x->o->progress)
        return;
    struct ls_str text = { 0 };
    ls_str_printf(&text, "%s %s: %s", c->policy, c->batches, what);
    x->o->progress(x->o->progress_self, ls_str_text(&text));
    ls_str_release(&text);
}

static const char *kept(struct ls_arena *arena, struct ls_str *s)
{
    const char *text = ls_arena_strn(arena, ls_str_text(s), s->length);
    ls_str_release(s);
    return text;
}

/* ---- cells that are not safe ---- */

static void add_op(struct ls_str *out, const struct ls_job *job, struct ls_at at)
{
    if (at.rank == LS_NO_ID)
        return;
    ls_str_printf(out, "rank %u ", at.rank);
    if (at.segment == LS_NO_ID)
        ls_str_add(out, "has nothing left");
    else
        ls_op_print(out, job->tables, &job->rank[at.rank].segment[at.segment]->op[at.op]);
}

static const char *text_of_outcome(struct comparison *x, const struct ls_replay *r, const struct ls_job *job)
{
    const struct ls_outcome *o = &r->observed.outcome;
    struct ls_str text = { 0 };
    ls_str_printf(&text, "%s on %zu ranks", ls_verdict_name(r->verdict), job->ranks);
    if (r->verdict == LS_LOST_GRADIENT || r->verdict == LS_WRONG_SCALE) {
        ls_str_printf(&text, ", parameter %s", ls_tables_name(job->tables, r->share.param));
        return kept(x->arena, &text);
    }
    if (o->comm != LS_NO_ID)
        ls_str_printf(&text, " at call %zu of %s", o->position + 1, ls_tables_name(job->tables, job->tables->comm.at[o->comm].name));
    if (o->a.rank != LS_NO_ID)
        ls_str_add(&text, ": ");
    add_op(&text, job, o->a);
    if (o->b.rank != LS_NO_ID)
        ls_str_add(&text, r->verdict == LS_HANG ? ", and " : " meets ");
    add_op(&text, job, o->b);
    return kept(x->arena, &text);
}

/* The run as check executed it: its plan is the variant's, which the file does not say. At L3, where some order of starts is wrong and others
 * may not be, schedules are tried until one shows what check found. */
static enum ls_code replay_witness(struct comparison *x, const struct ls_scenario *s, const struct ls_assessment *a, struct ls_result_cell *c)
{
    const struct ls_witness *w = a->check.witness;
    struct ls_engine_setup setup;
    struct ls_replay seen;
    struct ls_engine_options e = { .seed = x->o->seed, .races = 1, .interrupted = x->o->interrupted };
    ls_replay_level(s, &e);
    ls_replay_setup(s, &a->compiled, &w->assignment, &w->job, x->o->seed, x->arena, &setup);
    size_t most = e.resident && e.kernels && e.start == LS_START_ANY ? SCHEDULES_MAX : 1, tried = 0;
    enum ls_code rc = LS_OK;
    struct ls_arena_mark mark = ls_arena_mark(x->arena);
    for (bool met = false; tried < most && rc == LS_OK && !met && !stopped(x); tried++) {
        ls_arena_rewind(x->arena, mark);
        e.seed = tried ? ls_hash_mix(x->o->seed, tried) : x->o->seed;
        rc = ls_replay_run(&setup, &e, true, x->arena, &seen, x->err);
        met = rc == LS_OK && seen.verdict == a->verdict;
    }
    if (rc == LS_OK && tried && !seen.observed.interrupted) {
        c->replayed = LS_REPLAYED_WITNESS;
        c->replay = seen.verdict;
        c->replay_text = text_of_outcome(x, &seen, &w->job);
        if (most > 1)
            c->replay_text = ls_arena_printf(x->arena, "%s (in %zu schedule%s tried; which kernel starts first decides)", c->replay_text, tried,
                                             tried > 1 ? "s" : "");
    }
    return rc;
}

static enum ls_code judge(struct comparison *x, struct ls_result_cell *c, enum ls_compared_policy policy, enum ls_compared_batches batches)
{
    const struct ls_scenario *s = ls_compared_scenario(x->s, policy, &x->ddp);
    struct ls_assessment a;
    struct ls_str line = { 0 };
    struct ls_assess_options o = { .variant = ls_compared_variant(policy, batches), .force = x->o->force };
    o.check.gradients = o.check.races = true;
    *c = (struct ls_result_cell){ .policy = ls_compared_policy[policy], .batches = ls_compared_batches_name(batches), .replay_text = "" };
    tell(x, c, "check");
    enum ls_code rc = ls_assess(s, &o, x->arena, &a, x->err);
    if (rc != LS_OK)
        return rc;
    c->check = a.verdict;
    ls_assessment_line(s, &a, &line);
    c->check_text = kept(x->arena, &line);
    const struct ls_plan *plan = &a.compiled.plan;
    c->units.at = LS_NEW(x->arena, const char *, plan->units + 1);
    for (size_t i = 0; i < plan->units; i++)
        c->units.at[c->units.count++] = ls_arena_str(x->arena, ls_name_text(x->s->names, plan->unit[i].name));
    tell(x, c, "replay");
    switch (a.verdict) {
    case LS_SAFE:
        break;
    case LS_SETUP_ERROR:
        c->replay_text = ls_arena_printf(x->arena, "refused at set-up: %s", a.compiled.refusal.text ? a.compiled.refusal.text : "");
        break;
    case LS_UNDECIDED:
        c->replay_text = "check reached its limits without a verdict";
        break;
    case LS_HANG: case LS_RACE: case LS_MISMATCH: case LS_MISPAIRING: case LS_LOST_GRADIENT: case LS_WRONG_SCALE: case LS_LAYOUT: case LS_ERROR: case LS_OOM:
        if (a.check.witness)
            rc = replay_witness(x, s, &a, c);
        break;
    case LS_VERDICT_COUNT:
        break;
    }
    ls_assessment_release(&a);
    return rc;
}

/* ---- cells that are ---- */

static struct ls_train_options training(const struct comparison *x)
{
    return (struct ls_train_options){ .steps = (size_t)x->o->steps, .warmup = (size_t)x->o->warmup, .seed = x->o->seed, .schedule = x->o->seed,
                                      .free = x->o->free, .blas_threads = x->o->blas_threads, .force = x->o->force, .interrupted = x->o->interrupted };
}

/* The policies of the same batches hold the same samples: letters follow from samples, not from plans. */
static bool same_samples(const struct ls_train_case *a, const struct ls_train_case *b)
{
    size_t n = a->assignment->rounds * a->assignment->size[0] * a->assignment->size[1];
    return a->assignment->rounds == b->assignment->rounds && memcmp(a->setup->sample, b->setup->sample, n * sizeof *a->setup->sample) == 0;
}

static enum ls_code get_ready(struct comparison *x, size_t first, size_t index, enum ls_compared_policy policy, enum ls_compared_batches batches)
{
    struct ls_loc whole = { x->s->path, 0, 0 };
    struct trainee *t = &x->trainee[index];
    struct ls_variant v = ls_compared_variant(policy, batches);
    struct ls_train_options o = training(x);
    enum ls_code rc = ls_train_prepare(ls_compared_scenario(x->s, policy, &x->ddp), &v, &o, x->arena, &t->c, x->err);
    t->ready = true; /* released in any case */
    if (rc != LS_OK)
        return rc;
    for (size_t i = first; i < index; i++)
        if (x->trainee[i].ready && x->out->cell[i].check == LS_SAFE && !same_samples(&x->trainee[i].c, &t->c))
            return ls_fail(x->err, LS_EBACKEND, whole, "'%s' and '%s' would be given different batches", x->out->cell[i].policy, x->out->cell[index].policy);
    uint64_t bytes = ls_train_bytes(&t->c);
    if (bytes > x->out->memory_bytes / 10 * 8)
        return ls_fail(x->err, LS_EINPUT, whole, "training holds about %" PRIu64 " MiB on %zu ranks, and this machine has %" PRIu64 " MiB", bytes >> 20,
                       t->c.setup->job->ranks, x->out->memory_bytes >> 20);
    return LS_OK;
}

/* Where the plan leaves parameters in no unit, nothing casts them: such a policy trains with other numbers. */
static void compare_dtypes(struct comparison *x, size_t first)
{
    const struct ls_engine_setup *base = NULL;
    for (size_t i = first; i < x->out->cells; i++)
        if (x->trainee[i].ready && strcmp(x->out->cell[i].policy, x->out->baseline) == 0)
            base = x->trainee[i].c.setup;
    for (size_t i = first; base && i < x->out->cells; i++)
        for (size_t k = 0; x->trainee[i].ready && k < base->params; k++)
            x->out->cell[i].other_dtype += x->trainee[i].c.setup->param[k].compute != base->param[k].compute;
}

static void take_memory(struct comparison *x, struct ls_result_cell *c, const struct ls_train *t)
{
    c->ranks = t->ranks;
    c->memory = LS_NEW(x->arena, struct ls_result_memory, t->ranks + 1);
    for (size_t r = 0; r < t->ranks; r++) {
        const struct ls_memory *m = &t->observed.memory[r];
        c->memory[r] = (struct ls_result_memory){ m->total_peak, LS_NEW(x->arena, uint64_t, LS_CATEGORY_COUNT) };
        for (size_t k = 0; k < LS_CATEGORY_COUNT; k++)
            c->memory[r].at_peak[k] = m->at_peak[k];
    }
}

static bool same_memory(const struct ls_result_cell *c, const struct ls_train *t)
{
    for (size_t r = 0; r < t->ranks; r++)
        if (t->observed.memory[r].total_peak != c->memory[r].total ||
            memcmp(t->observed.memory[r].at_peak, c->memory[r].at_peak, LS_CATEGORY_COUNT * sizeof *c->memory[r].at_peak) != 0)
            return false;
    return true;
}

static enum ls_code take_run(struct comparison *x, struct ls_result_cell *c, uint32_t round, const struct ls_train *t)
{
    struct ls_loc whole = { x->s->path, 0, 0 };
    struct ls_result_run *run = &c->run[c->runs];
    size_t n = t->warmup + t->steps;
    *run = (struct ls_result_run){ .round = round, .order = x->order++, .steps = n, .seconds = LS_NEW(x->arena, double, n), .loss = LS_NEW(x->arena, double, n),
                                   .norm = LS_NEW(x->arena, double, n), .text_tokens = LS_NEW(x->arena, uint64_t, n),
                                   .media_tokens = LS_NEW(x->arena, uint64_t, n) };
    for (size_t i = 0; i < n; i++) {
        run->seconds[i] = t->step[i].seconds;
        run->loss[i] = t->step[i].loss;
        run->norm[i] = t->step[i].norm;
        run->text_tokens[i] = t->step[i].text_tokens;
        run->media_tokens[i] = t->step[i].image_tokens + t->step[i].audio_tokens;
        if (!(run->seconds[i] > 0))
            return ls_fail(x->err, LS_EBACKEND, whole, "the clock shows no time for step %zu of '%s'", i + 1, c->policy);
    }
    if (!t->memory_equal)
        return ls_fail(x->err, LS_EBACKEND, whole, "'%s' took other memory than its programs say", c->policy);
    if (!c->runs)
        take_memory(x, c, t);
    else if (!same_memory(c, t))
        return ls_fail(x->err, LS_EBACKEND, whole, "runs of '%s' with %s batches differ in the memory that they took", c->policy, c->batches);
    c->runs++;
    return LS_OK;
}

static const char *const kind_name[] = { "forward", "recompute", "backward", "optimizer", "copy", "all_gather", "reduce_scatter", "all_reduce",
                                         "other", "waiting" };
enum kind { KIND_FORWARD, KIND_RECOMPUTE, KIND_BACKWARD, KIND_OPTIMIZER, KIND_COPY, KIND_ALL_GATHER, KIND_REDUCE_SCATTER, KIND_ALL_REDUCE,
            KIND_OTHER, KIND_WAITING, KINDS };

static enum kind kind_of(const struct ls_train_span *s)
{
    if (s->kind == LS_OP_ALL_GATHER)
        return KIND_ALL_GATHER;
    if (s->kind == LS_OP_REDUCE_SCATTER)
        return KIND_REDUCE_SCATTER;
    if (s->kind == LS_OP_ALL_REDUCE)
        return KIND_ALL_REDUCE;
    if (s->kind == LS_OP_COPY_IN || s->kind == LS_OP_COPY_OUT)
        return KIND_COPY;
    if (s->kind != LS_OP_COMPUTE)
        return KIND_OTHER;
    switch (s->pass) {
    case LS_PASS_F: case LS_PASS_EVAL: return KIND_FORWARD;
    case LS_PASS_B: case LS_PASS_W: return KIND_BACKWARD;
    case LS_PASS_R: return KIND_RECOMPUTE;
    case LS_PASS_OPT: return KIND_OPTIMIZER;
    case LS_PASS_NONE: case LS_PASS_SETUP: case LS_PASS_COUNT: break;
    }
    return KIND_OTHER;
}

/* What FSDP2's streams are for; programs name them by letters. */
static const char *stream_text(struct ls_arena *arena, const char *name)
{
    static const char *const known[][2] = { { "D", "compute" }, { "CI", "copy in" }, { "G", "all_gather" }, { "S", "reduce_scatter" }, { "A", "all_reduce" } };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(known[i][0], name) == 0)
            return known[i][1];
    return ls_arena_str(arena, name);
}

static uint32_t label_index(struct ls_result_names *labels, const char *label)
{
    for (size_t i = labels->count; i-- > 0;)
        if (strcmp(labels->at[i], label) == 0)
            return (uint32_t)i;
    labels->at[labels->count] = label;
    return (uint32_t)labels->count++;
}

/* What is done last of an op is its work; what comes before, it waited for. Waits of collectives are kept: they are what is exposed. */
static void take_timeline(struct comparison *x, const struct ls_train_case *tc, struct ls_result_cell *c, const struct ls_train *t)
{
    struct ls_result_timeline *to = &c->timeline;
    const struct ls_tables *tables = tc->setup->job->tables;
    uint64_t first = UINT64_MAX;
    to->step = t->warmup;
    to->streams.at = LS_NEW(x->arena, const char *, tables->stream.count + 1);
    for (size_t i = 0; i < tables->stream.count; i++)
        to->streams.at[to->streams.count++] = stream_text(x->arena, ls_tables_name(tables, tables->stream.at[i]));
    to->kinds.at = LS_NEW(x->arena, const char *, KINDS);
    for (size_t i = 0; i < KINDS; i++)
        to->kinds.at[to->kinds.count++] = kind_name[i];
    to->labels.at = LS_NEW(x->arena, const char *, t->spans + 1);
    to->span = LS_NEW(x->arena, struct ls_result_span, 2 * t->spans + 1);
    for (size_t i = 0; i < t->spans; i++)
        if (t->span[i].step == t->warmup && t->span[i].begin_ns < first)
            first = t->span[i].begin_ns;
    for (size_t i = 0; i < t->spans && to->spans + 2 <= LS_RESULT_SPANS_MAX; i++) {
        const struct ls_train_span *s = &t->span[i];
        uint64_t work = s->end_ns - s->begin_ns < s->busy_ns ? s->begin_ns : s->end_ns - s->busy_ns;
        enum kind kind = kind_of(s);
        bool collective = kind == KIND_ALL_GATHER || kind == KIND_REDUCE_SCATTER || kind == KIND_ALL_REDUCE;
        if (s->step != t->warmup || s->kind == LS_OP_WAIT || s->kind == LS_OP_RECORD)
            continue;
        uint32_t label = label_index(&to->labels, s->label);
        if (collective && work > s->begin_ns)
            to->span[to->spans++] = (struct ls_result_span){ s->rank, s->stream, KIND_WAITING, label, s->begin_ns - first, work - first };
        if (s->end_ns > work)
            to->span[to->spans++] = (struct ls_result_span){ s->rank, s->stream, (uint32_t)kind, label, work - first, s->end_ns - first };
    }
    c->has_timeline = true;
}

/* One run in an arena of its own: only what the result keeps outlives it. round < 0: for the timeline. */
static enum ls_code train(struct comparison *x, size_t index, int round)
{
    struct ls_result_cell *c = &x->out->cell[index];
    struct ls_loc whole = { x->s->path, 0, 0 };
    struct ls_arena own;
    struct ls_train t;
    struct ls_train_options o = training(x);
    o.timeline = round < 0;
    ls_arena_init(&own, 0);
    tell(x, c, round < 0 ? "timeline" : ls_arena_printf(&own, "run %d of %" PRIu64, round + 1, x->o->rounds));
    enum ls_code rc = ls_train_run(&x->trainee[index].c, &o, &own, &t, x->err);
    if (rc == LS_OK && !t.observed.interrupted && !stopped(x)) {
        c->replayed = LS_REPLAYED_TRAINED;
        c->replay = t.verdict;
        c->replay_text = t.verdict == LS_SAFE ? "completed" : "a training run did not end";
        if (t.verdict == LS_SAFE && t.ended < t.warmup + t.steps)
            rc = ls_fail(x->err, LS_EBACKEND, whole, "'%s' ended %zu of %zu steps", c->policy, t.ended, t.warmup + t.steps);
        else if (t.verdict == LS_SAFE && round >= 0)
            rc = take_run(x, c, (uint32_t)round, &t);
        else if (t.verdict == LS_SAFE)
            take_timeline(x, &x->trainee[index].c, c, &t);
        /* Labels point into the run's arena. */
        for (size_t i = 0; round < 0 && c->has_timeline && i < c->timeline.labels.count; i++)
            c->timeline.labels.at[i] = ls_arena_str(x->arena, c->timeline.labels.at[i]);
    }
    ls_arena_release(&own);
    return rc;
}

static enum ls_code train_cells(struct comparison *x, size_t first)
{
    enum ls_code rc = LS_OK;
    size_t cells = x->o->policies;
    for (size_t i = 0; i < cells; i++)
        x->out->cell[first + i].run = LS_NEW(x->arena, struct ls_result_run, (size_t)x->o->rounds);
    for (uint32_t round = 0; round < x->o->rounds && rc == LS_OK; round++)
        for (size_t i = 0; i < cells && rc == LS_OK && !stopped(x); i++) {
            size_t index = first + (round % 2 ? cells - 1 - i : i);
            struct ls_result_cell *c = &x->out->cell[index];
            if (c->check == LS_SAFE && !(c->replayed == LS_REPLAYED_TRAINED && c->replay != LS_SAFE))
                rc = train(x, index, (int)round);
        }
    for (size_t i = 0; i < cells && rc == LS_OK && x->o->timelines && !stopped(x); i++)
        if (x->out->cell[first + i].runs)
            rc = train(x, first + i, -1);
    for (size_t i = 0; i < cells; i++) /* a cell whose runs did not all end has no times */
        if (x->out->cell[first + i].replay != LS_SAFE)
            x->out->cell[first + i].runs = x->out->cell[first + i].ranks = 0;
    return rc;
}

/* ---- the scenario ---- */

static enum ls_code read_file(const char *path, struct ls_str *out, struct ls_error *err)
{
    struct ls_loc at = { path, 0, 0 };
    char block[1 << 14];
    size_t got;
    FILE *f = fopen(path, "rb");
    if (!f)
        return ls_fail(err, LS_EINPUT, at, "cannot read '%s': %s", path, strerror(errno));
    while ((got = fread(block, 1, sizeof block, f)) > 0)
        ls_str_addn(out, block, got);
    fclose(f);
    return LS_OK;
}

static enum ls_code describe(struct comparison *x)
{
    struct ls_result *r = x->out;
    const struct ls_scenario *s = x->s;
    struct ls_str text = { 0 };
    enum ls_code rc = read_file(s->path, &text, x->err);
    if (rc != LS_OK)
        return rc;
    r->text_length = text.length;
    r->text = kept(x->arena, &text);
    r->name = s->name, r->question = s->question ? s->question : "", r->file = s->path;
    r->model_file = s->model.path ? s->model.path : s->path;
    rc = read_file(r->model_file, &text, x->err);
    r->model_hash = ls_hash(ls_str_text(&text), text.length, 0);
    ls_str_release(&text);
    r->parameters = ls_model_elements(&s->model);
    for (size_t i = 0; i < s->model.params; i++)
        if (s->model.param[i].canonical == i && s->final[i])
            r->trained += s->model.param[i].elements;
    r->ranks = s->mesh.shard * s->mesh.replicate;
    r->seed = x->o->seed, r->warmup = x->o->warmup, r->steps = x->o->steps, r->rounds = x->o->rounds;
    r->blas_threads = x->o->blas_threads ? x->o->blas_threads : 1;
    r->schedule = x->o->free ? "a thread per host thread and stream" : "coroutines on one thread";
    r->baseline = ls_compared_policy[x->o->policy[0]];
    for (size_t i = 0; i < x->o->policies; i++)
        if (x->o->policy[i] == LS_COMPARED_ROOT)
            r->baseline = ls_compared_policy[LS_COMPARED_ROOT];
    r->categories.at = LS_NEW(x->arena, const char *, LS_CATEGORY_COUNT);
    for (size_t i = 0; i < LS_CATEGORY_COUNT; i++)
        r->categories.at[r->categories.count++] = ls_category_name((enum ls_category)i);
    return rc;
}

enum ls_code ls_compare_run(const struct ls_scenario *s, const struct ls_compare_options *o, struct ls_arena *arena, struct ls_result *out,
                            struct ls_error *err)
{
    static const struct comparison none;
    struct comparison x = none;
    struct ls_loc whole = { s->path, 0, 0 };
    *out = (struct ls_result){ .cell = LS_NEW(arena, struct ls_result_cell, o->policies * o->kinds) };
    if (s->kind != LS_PLAN_POLICY)
        return ls_fail(err, LS_EINPUT, whole, "this scenario lists its %s itself: there are no policies to compare", s->kind == LS_PLAN_RAW ? "operations" : "units");
    for (size_t i = 0; i < o->policies; i++)
        if (o->policy[i] == LS_COMPARED_DDP && s->mesh.replicate > 1)
            return ls_fail(err, LS_EINPUT, whole, "ddp is compared with one set of shards: over %zu replicas gradients are summed in another order", s->mesh.replicate);
        else if (o->policy[i] != LS_COMPARED_DDP && s->ddp.present)
            return ls_fail(err, LS_EINPUT, whole, "this scenario has 'strategy: ddp', which has no '%s': only ddp can be measured", ls_compared_policy[o->policy[i]]);
    x.s = s, x.o = o, x.arena = arena, x.out = out, x.err = err;
    ls_compare_environment(arena, out);
    struct ls_nn_vlm *vlm = LS_NEW(arena, struct ls_nn_vlm, 1);
    enum ls_code rc = ls_train_model(s, arena, vlm, err); /* before the time that check takes */
    if (rc == LS_OK)
        rc = describe(&x);
    for (size_t b = 0; b < o->kinds && rc == LS_OK && !stopped(&x); b++) {
        size_t first = out->cells;
        x.order = 0;
        for (size_t p = 0; p < o->policies && rc == LS_OK && !stopped(&x); p++) {
            rc = judge(&x, &out->cell[out->cells], o->policy[p], o->batches[b]);
            out->cells++;
            if (rc == LS_OK && out->cell[first + p].check == LS_SAFE)
                rc = get_ready(&x, first, first + p, o->policy[p], o->batches[b]);
        }
        if (rc == LS_OK && !stopped(&x)) {
            compare_dtypes(&x, first);
            rc = train_cells(&x, first);
        }
        for (size_t i = first; i < out->cells; i++)
            if (x.trainee[i].ready)
                ls_train_release(&x.trainee[i].c);
    }
    return rc;
}
