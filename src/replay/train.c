#include "replay/train.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { STEPS_DEFAULT = 5 };

/* --- what can be computed -------------------------------------------------------------------------------------------- */

static bool is_computed(enum ls_dtype d) { return d == LS_DTYPE_F32 || d == LS_DTYPE_BF16; }

enum ls_code ls_train_model(const struct ls_scenario *s, struct ls_arena *arena, struct ls_nn_vlm *out, struct ls_error *err)
{
    if (s->kind == LS_PLAN_RAW)
        return ls_fail(err, LS_EINPUT, (struct ls_loc){ s->path, 0, 0 }, "a raw program has no model");
    if (s->step.clip_local)
        return ls_fail(err, LS_EINPUT, s->step.at, "'clip_grad_norm' is local, which training does not do");
    enum ls_code rc = ls_nn_vlm_build(&s->model, arena, out, err);
    for (size_t i = 0; i < s->model.params && rc == LS_OK; i++)
        if (!is_computed(s->model.param[i].dtype))
            rc = ls_fail(err, LS_EINPUT, s->model.param[i].at, "parameters in %s cannot be trained: f32 and bf16 can",
                         ls_dtype_name(s->model.param[i].dtype));
    for (size_t i = 0; i < s->batch.samples && rc == LS_OK; i++) {
        const struct ls_sample *x = &s->batch.sample[i];
        if (x->videos || (x->audios && !out->recordings) || (x->images && !out->pictures))
            rc = ls_fail(err, LS_EINPUT, x->at, "a sample holds media that the model cannot be fed: it takes %s%s, no videos",
                         out->pictures ? "pictures" : "text alone", out->recordings ? " and recordings" : "");
        else if (!x->text && !x->images && !x->audios)
            rc = ls_fail(err, LS_EINPUT, x->at, "a sample without a token has no loss to train on");
    }
    return rc;
}

static enum ls_code check_dtypes(const struct ls_train_case *c, struct ls_error *err)
{
    for (size_t i = 0; i < c->setup->params; i++) {
        const struct ls_engine_param *p = &c->setup->param[i];
        if (!is_computed(p->compute) || !is_computed(p->grad))
            return ls_fail(err, LS_EINPUT, c->vlm->model->param[i].at, "'%s' is used in %s and reduced in %s: f32 and bf16 can be computed",
                           ls_name_text(c->vlm->model->names, p->name), ls_dtype_name(p->compute), ls_dtype_name(p->grad));
    }
    return LS_OK;
}

enum ls_code ls_train_steps(const struct ls_scenario *s, const struct ls_train_options *o, size_t *out, struct ls_error *err)
{
    size_t fixed = (size_t)s->batch.steps, most = fixed ? fixed : LS_STEPS_MAX;
    size_t steps = o->steps ? o->steps : !fixed ? STEPS_DEFAULT : fixed > o->warmup ? fixed - o->warmup : 1;
    if (o->warmup >= most || steps > most - o->warmup)
        return ls_fail(err, LS_EINPUT, s->batch.at, "%zu step%s after %zu of warm-up: %s %zu in all", steps, steps == 1 ? "" : "s", o->warmup,
                       fixed ? "the scenario has" : "there may be", most);
    *out = o->warmup + steps;
    return LS_OK;
}

static enum ls_code prepare(const struct ls_scenario *s, const struct ls_variant *variant, const struct ls_train_options *o,
                            struct ls_arena *arena, struct ls_train_case *out, struct ls_error *err)
{
    size_t steps;
    struct ls_nn_vlm *vlm = LS_NEW(arena, struct ls_nn_vlm, 1);
    struct ls_compiled *compiled = LS_NEW(arena, struct ls_compiled, 1);
    struct ls_assignment *a = LS_NEW(arena, struct ls_assignment, 1);
    struct ls_job *job = LS_NEW(arena, struct ls_job, 1);
    struct ls_engine_setup *setup = LS_NEW(arena, struct ls_engine_setup, 1);
    enum ls_code rc = ls_train_model(s, arena, vlm, err);
    if (rc == LS_OK)
        rc = ls_train_steps(s, o, &steps, err);
    if (rc != LS_OK)
        return rc;
    *out = (struct ls_train_case){ s, NULL, a, setup, vlm };
    rc = ls_scenario_compile(s, variant, o->force, compiled, err);
    if (rc != LS_OK)
        return rc;
    out->compiled = compiled;
    if (compiled->refusal.rule)
        return LS_OK;
    rc = ls_replay_assignment(compiled, steps, o->seed, arena, a, err);
    if (rc == LS_OK)
        rc = ls_system_job(&compiled->system, a, arena, job, err);
    if (rc != LS_OK)
        return rc;
    ls_replay_setup(s, compiled, a, job, o->seed, arena, setup);
    return check_dtypes(out, err);
}

enum ls_code ls_train_prepare(const struct ls_scenario *s, const struct ls_variant *variant, const struct ls_train_options *o,
                              struct ls_arena *arena, struct ls_train_case *out, struct ls_error *err)
{
    *out = (struct ls_train_case){ 0 };
    return prepare(s, variant, o, arena, out, err);
}

void ls_train_release(struct ls_train_case *c)
{
    if (c->compiled)
        ls_compiled_release(c->compiled);
    *c = (struct ls_train_case){ 0 };
}

uint64_t ls_train_bytes(const struct ls_train_case *c)
{
    const struct ls_engine_setup *s = c->setup;
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < s->params; i++) {
        const struct ls_engine_param *p = &s->param[i];
        uint64_t shard = ls_param_padded(s, i), full = p->unit == LS_NO_ID ? 0 : shard * ls_param_ranks(s, i);
        bytes += shard * ls_dtype_bytes(p->dtype) + full * ls_dtype_bytes(p->compute);
        if (p->trains)
            bytes += (full ? full : shard) * ls_dtype_bytes(p->grad) + shard * (p->dtype == LS_DTYPE_F32 ? 2 : 3) * sizeof(float);
    }
    return bytes * s->job->ranks;
}

/* --- the run --------------------------------------------------------------------------------------------------------- */

struct clock {
    const struct ls_train_case *c;
    struct ls_train *out;
    const uint32_t *step_of;     /* [segments] */
    size_t steps, ranks;
    uint64_t first;              /* when the first op began */
    uint64_t *end;               /* [steps][ranks] */
    bool *updated;               /* [steps][ranks] the optimizer has run */
    bool timeline;
    LS_VEC(struct ls_train_span) span;
};

static bool is_update(const struct ls_tables *t, const struct ls_op *o)
{
    for (uint32_t k = 0; o->kind == LS_OP_COMPUTE && k < o->kernels; k++)
        if (t->kernel.at[o->kernel + k].what == LS_KERNEL_OPTIMIZER)
            return true;
    return false;
}

static void on_span(void *context, struct ls_at at, const struct ls_span *s)
{
    struct clock *k = context;
    const struct ls_job *job = k->c->setup->job;
    const struct ls_op *o = &job->rank[at.rank].segment[at.segment]->op[at.op];
    uint32_t step = k->step_of[at.segment];
    if (!k->first || s->begin_ns < k->first)
        k->first = s->begin_ns;
    if (step < k->steps) {
        size_t i = step * k->ranks + at.rank;
        k->end[i] = s->end_ns > k->end[i] ? s->end_ns : k->end[i];
        k->out->rank_busy[i] += 1e-9 * (double)s->busy_ns;
        k->updated[i] |= is_update(job->tables, o);
    }
    if (k->timeline)
        ls_push(&k->span, (struct ls_train_span){ .rank = at.rank, .stream = o->stream, .step = step, .at = at, .kind = (enum ls_op_kind)o->kind,
                                                  .pass = (enum ls_pass)o->pass, .begin_ns = s->begin_ns, .end_ns = s->end_ns, .busy_ns = s->busy_ns });
}

static enum ls_round_kind kind_of(const struct ls_train_case *c, size_t round)
{
    uint32_t r = c->compiled->system.driver.node[c->assignment->node[round]].round;
    return c->compiled->rounds.round[r].kind;
}

/* A round belongs to the step whose end comes next; those after the last end to none. */
static uint32_t *steps_of(const struct ls_train_case *c, struct ls_arena *arena, size_t *steps)
{
    uint32_t *step_of = LS_NEW(arena, uint32_t, c->assignment->rounds + 1);
    *steps = 0;
    for (size_t i = 0; i < c->assignment->rounds; i++) {
        step_of[i] = (uint32_t)*steps;
        *steps += kind_of(c, i) == LS_ROUND_STEP;
    }
    return step_of;
}

static double *nans(struct ls_arena *arena, size_t n)
{
    double *x = LS_NEW(arena, double, n + 1);
    for (size_t i = 0; i < n; i++)
        x[i] = NAN;
    return x;
}

/* known: [name ids] copies made so far */
static const char *label_of(const struct ls_tables *t, const struct ls_op *o, const char **known, struct ls_arena *arena)
{
    uint32_t name = o->unit;
    if (name == LS_NO_ID)
        name = o->module;
    if (name == LS_NO_ID && o->payload != LS_NO_ID)
        name = t->payload.at[o->payload].name;
    if (name == LS_NO_ID)
        return "";
    if (!known[name])
        known[name] = ls_arena_str(arena, ls_tables_name(t, name));
    return known[name];
}

static void take_times(struct clock *k, struct ls_arena *arena)
{
    struct ls_train *out = k->out;
    uint64_t before = k->first;
    while (out->ended < k->steps) {
        size_t n = 0;
        for (size_t r = 0; r < k->ranks; r++)
            n += k->updated[out->ended * k->ranks + r];
        if (n < k->ranks)
            break;
        out->ended++;
    }
    for (size_t s = 0; s < out->ended; s++) {
        uint64_t last = 0;
        for (size_t r = 0; r < k->ranks; r++) {
            uint64_t end = k->end[s * k->ranks + r], from = s ? k->end[(s - 1) * k->ranks + r] : k->first;
            out->rank_seconds[s * k->ranks + r] = 1e-9 * (double)(end - from);
            last = end > last ? end : last;
        }
        out->step[s].seconds = 1e-9 * (double)(last - before);
        before = last;
    }
    out->spans = k->span.count;
    out->span = ls_arena_copy(arena, k->span.at, k->span.count * sizeof *k->span.at);
    const struct ls_job *job = k->c->setup->job;
    const char **known = calloc(ls_names_count(job->tables->names) + 1, sizeof *known);
    if (!known)
        ls_out_of_memory(sizeof *known);
    for (size_t i = 0; i < out->spans; i++) {
        struct ls_train_span *s = &out->span[i];
        s->begin_ns -= k->first, s->end_ns -= k->first;
        s->label = label_of(job->tables, &job->rank[s->at.rank].segment[s->at.segment]->op[s->at.op], known, arena);
    }
    free(known);
}

/* --- several processes ----------------------------------------------------------------------------------------------- */

static uint64_t clock_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* A moment that all processes share, as far as a message takes: machines have clocks of their own. */
static enum ls_code start_together(struct ls_world *w, uint64_t *zero, struct ls_error *err)
{
    struct ls_message *all = calloc(w->processes, sizeof *all);
    if (!all)
        ls_out_of_memory(w->processes * sizeof *all);
    enum ls_code rc = ls_world_exchange(w, NULL, 0, all, err);
    *zero = clock_ns();
    ls_world_drop(w, all);
    free(all);
    return rc;
}

static void put(struct ls_str *out, const void *at, size_t bytes) { ls_str_addn(out, at, bytes); }

static void get(const char **from, void *to, size_t bytes)
{
    if (bytes)
        memcpy(to, *from, bytes);
    *from += bytes;
}

static void put_clock(const struct clock *k, uint64_t zero, size_t first, size_t ranks, struct ls_str *out)
{
    uint64_t begun = k->first - zero;
    put(out, &begun, sizeof begun);
    for (size_t s = 0; s < k->steps; s++)
        for (size_t r = first; r < first + ranks; r++) {
            size_t i = s * k->ranks + r;
            uint64_t end = k->end[i] ? k->end[i] - zero : 0;
            put(out, &end, sizeof end);
            put(out, &k->updated[i], sizeof k->updated[i]);
            put(out, &k->out->rank_busy[i], sizeof k->out->rank_busy[i]);
        }
    put(out, &k->span.count, sizeof k->span.count);
    for (size_t i = 0; i < k->span.count; i++) {
        struct ls_train_span s = k->span.at[i];
        s.begin_ns -= zero, s.end_ns -= zero;
        put(out, &s, sizeof s);
    }
}

static void get_clock(struct clock *k, uint64_t zero, size_t first, size_t ranks, const char *from)
{
    uint64_t begun;
    size_t spans;
    get(&from, &begun, sizeof begun);
    k->first = zero + begun < k->first ? zero + begun : k->first;
    for (size_t s = 0; s < k->steps; s++)
        for (size_t r = first; r < first + ranks; r++) {
            size_t i = s * k->ranks + r;
            get(&from, &k->end[i], sizeof k->end[i]);
            k->end[i] += k->end[i] ? zero : 0;
            get(&from, &k->updated[i], sizeof k->updated[i]);
            get(&from, &k->out->rank_busy[i], sizeof k->out->rank_busy[i]);
        }
    get(&from, &spans, sizeof spans);
    for (size_t i = 0; i < spans; i++) {
        struct ls_train_span s;
        get(&from, &s, sizeof s);
        s.begin_ns += zero, s.end_ns += zero;
        ls_push(&k->span, s);
    }
}

static int by_end(const void *a, const void *b)
{
    const struct ls_train_span *x = a, *y = b;
    if (x->end_ns != y->end_ns)
        return x->end_ns < y->end_ns ? -1 : 1;
    return x->rank != y->rank ? (x->rank < y->rank ? -1 : 1) : (x->stream > y->stream) - (x->stream < y->stream);
}

static enum ls_code share_clock(struct clock *k, struct ls_world *w, uint64_t zero, struct ls_error *err)
{
    size_t per = w->ranks_per_process;
    struct ls_str mine = { 0 };
    struct ls_message *all = calloc(w->processes, sizeof *all);
    if (!all)
        ls_out_of_memory(w->processes * sizeof *all);
    size_t first = w->number * per;
    put_clock(k, zero, first, k->ranks - first < per ? k->ranks - first : per, &mine);
    enum ls_code rc = ls_world_exchange(w, mine.text, mine.length, all, err);
    for (size_t p = 0; p < w->processes && rc == LS_OK; p++)
        if (p != w->number)
            get_clock(k, zero, p * per, k->ranks - p * per < per ? k->ranks - p * per : per, all[p].at);
    if (k->span.count)
        qsort(k->span.at, k->span.count, sizeof *k->span.at, by_end);
    ls_str_release(&mine);
    ls_world_drop(w, all);
    free(all);
    return rc;
}

/* Where the program reduces no norm: from what the ranks hold, added up as a reduction would. */
static double norm_of_shards(const struct ls_train_case *c, const struct ls_nn_train *t, uint32_t segment, size_t ranks)
{
    float sum = 0;
    for (size_t r = 0; r < c->setup->shard && r < ranks; r++)
        sum += (float)t->square[segment * ranks + r];
    return sqrt((double)sum);
}

/* Losses, norm and tokens of the steps that ended. */
static void take_numbers(const struct ls_train_case *c, const struct ls_nn_train *t, const uint32_t *step_of, struct ls_train *out)
{
    const struct ls_nn_picture *p = &c->vlm->picture;
    size_t merge = p->merge ? (size_t)p->merge : 1, per_image = c->vlm->pictures ? (size_t)(p->rows / merge) * (size_t)(p->columns / merge) : 0;
    double sum[2] = { 0 };
    size_t labels[2] = { 0 };
    for (uint32_t g = 0; g < c->assignment->rounds && step_of[g] < out->ended; g++) {
        struct ls_train_step *step = &out->step[step_of[g]];
        enum ls_round_kind kind = kind_of(c, g);
        if (kind == LS_ROUND_STEP) {
            step->loss = labels[0] ? sum[0] / (double)labels[0] : NAN;
            step->eval_loss = labels[1] ? sum[1] / (double)labels[1] : NAN;
            step->norm = t->norm[g * out->ranks];
            if (isnan(step->norm))
                step->norm = norm_of_shards(c, t, g, out->ranks);
            memset(sum, 0, sizeof sum);
            memset(labels, 0, sizeof labels);
        }
        if (kind != LS_ROUND_MICRO && kind != LS_ROUND_EVAL)
            continue;
        size_t own = 0;
        for (uint32_t r = 0; r < out->ranks; r++) {
            struct ls_nn_sequence q = ls_nn_train_sequence(c->setup, t, g, r);
            own += ls_nn_labels(c->vlm, &q, 1);
            if (kind == LS_ROUND_MICRO) {
                step->text_tokens += q.text;
                step->image_tokens += q.images * per_image;
                step->audio_tokens += q.audios * c->vlm->recording.tokens;
            }
        }
        sum[kind == LS_ROUND_EVAL] += (double)own * ls_nn_train_loss(c->setup, t, g, g + 1);
        labels[kind == LS_ROUND_EVAL] += own;
    }
}

static float **take_weights(const struct ls_train_case *c, struct ls_arena *arena)
{
    const struct ls_model *m = c->vlm->model;
    float **weight = LS_NEW(arena, float *, m->params + 1);
    for (uint32_t i = 0; i < m->params; i++)
        if (m->param[i].canonical == i && c->setup->param[i].trains)
            weight[i] = LS_NEW(arena, float, (size_t)m->param[i].elements + 1);
    return weight;
}

enum ls_code ls_train_run(const struct ls_train_case *c, const struct ls_train_options *o, struct ls_arena *arena, struct ls_train *out,
                          struct ls_error *err)
{
    *out = (struct ls_train){ .verdict = LS_SETUP_ERROR, .warmup = o->warmup };
    if (c->compiled->refusal.rule)
        return LS_OK;
    size_t ranks = c->setup->job->ranks, rounds = c->assignment->rounds, steps;
    const struct ls_batch *b = &c->compiled->batch;
    const uint32_t *step_of = steps_of(c, arena, &steps);
    struct ls_nn_sample *sample = LS_NEW(arena, struct ls_nn_sample, b->samples + 1);
    for (size_t i = 0; i < b->samples; i++)
        sample[i] = (struct ls_nn_sample){ b->sample[i].text, b->sample[i].images, b->sample[i].videos, b->sample[i].at, b->sample[i].audios };
    struct ls_nn_train t = { .vlm = c->vlm, .sample = sample, .samples = b->samples, .adamw = ls_nn_adamw_default,
                             .loss = nans(arena, rounds * ranks), .norm = nans(arena, rounds * ranks),
                             .square = nans(arena, rounds * ranks) };
    if (o->adamw)
        t.adamw = *o->adamw;
    else if (!c->scenario->step.clip_grad_norm)
        t.adamw.clip = 0;
    out->ranks = ranks;
    out->params = c->vlm->model->params;
    out->warmup = o->warmup < steps ? o->warmup : steps;
    out->steps = steps - out->warmup;
    out->step = LS_NEW(arena, struct ls_train_step, steps + 1);
    for (size_t i = 0; i < steps; i++)
        out->step[i] = (struct ls_train_step){ .loss = NAN, .eval_loss = NAN, .norm = NAN, .seconds = NAN };
    out->rank_seconds = nans(arena, steps * ranks);
    out->rank_busy = LS_NEW(arena, double, steps * ranks + 1);
    if (o->weights) {
        out->weight = take_weights(c, arena);
        t.weight = out->weight;
    }
    struct clock k = { .c = c, .out = out, .step_of = step_of, .steps = steps, .ranks = ranks, .end = LS_NEW(arena, uint64_t, steps * ranks + 1),
                       .updated = LS_NEW(arena, bool, steps * ranks + 1), .timeline = o->timeline };
    struct ls_engine_options e = { .free = o->free, .seed = o->schedule, .nccl_like = o->nccl_like,
                                   .interrupted = o->interrupted, .world = o->world, .math = &ls_math_nn, .math_context = &t, .span = on_span, .span_context = &k };
    ls_replay_level(c->scenario, &e);
    ls_nn_set_threads(o->blas_threads);
    uint64_t zero = 0;
    enum ls_code rc = o->world ? start_together(o->world, &zero, err) : LS_OK;
    if (rc == LS_OK)
        rc = ls_engine_run(c->setup, &e, arena, &out->observed, err);
    if (rc == LS_OK && o->world && !out->observed.interrupted)
        rc = share_clock(&k, o->world, zero, err);
    if (rc == LS_OK) {
        out->verdict = out->observed.interrupted ? LS_UNDECIDED : out->observed.outcome.verdict;
        out->program = ls_replay_memory(c->setup, &out->observed, arena, &out->memory_equal);
        take_times(&k, arena);
        take_numbers(c, &t, step_of, out);
    }
    ls_vec_release(&k.span);
    return rc;
}

/* --- what to make of it ---------------------------------------------------------------------------------------------- */

struct ls_spread ls_train_seconds(const struct ls_train *t)
{
    double *x = calloc(t->steps + 1, sizeof *x);
    if (!x)
        ls_out_of_memory((t->steps + 1) * sizeof *x);
    for (size_t i = 0; i < t->steps; i++)
        x[i] = t->step[t->warmup + i].seconds;
    struct ls_spread s = ls_spread_of(x, t->steps);
    free(x);
    return s;
}

struct ls_train_rate ls_train_tokens_per_second(const struct ls_train *t)
{
    double seconds = 0;
    uint64_t text = 0, image = 0, audio = 0;
    for (size_t i = t->warmup; i < t->ended; i++) {
        seconds += t->step[i].seconds;
        text += t->step[i].text_tokens;
        image += t->step[i].image_tokens;
        audio += t->step[i].audio_tokens;
    }
    return seconds > 0 ? (struct ls_train_rate){ (double)text / seconds, (double)image / seconds, (double)audio / seconds }
                       : (struct ls_train_rate){ NAN, NAN, NAN };
}
