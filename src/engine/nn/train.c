#include "engine/nn/train.h"

#include "base/hash.h"
#include "base/vec.h"
#include "engine/nn/task.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct held { struct ls_storage *master, *mean, *square; };  /* of a shard; master NULL: the shard is float itself */

struct train {
    struct ls_math m;             /* first */
    const struct ls_engine_setup *setup;
    const struct ls_nn_train *c;
    struct ls_device *device;
    uint32_t rank;
    struct ls_rank *of;           /* the rank, once it has begun a round */
    bool *trains, *stale; /* stale: the optimizer holds another tensor instead */
    struct ls_nn_exec *exec;
    struct ls_nn_sequence sequence;
    LS_VEC(const struct ls_kernel *) kernel; /* of the open round */
    struct held *held;            /* [params] */
    uint64_t steps;
    struct ls_storage *clip;      /* two doubles: the norm, the factor */
    bool norm_reduced;            /* in this step */
    uint32_t segment;
};

/* --- what a round is ------------------------------------------------------------------------------------------------- */

static bool has_kernel(const struct ls_engine_setup *s, uint32_t segment, uint32_t rank, enum ls_kernel_what what)
{
    const struct ls_tables *t = s->job->tables;
    const struct ls_segment *g = s->job->rank[rank].segment[segment];
    for (size_t i = 0; i < g->count; i++)
        for (uint32_t k = g->op[i].kernel; g->op[i].kind == LS_OP_COMPUTE && k < g->op[i].kernel + g->op[i].kernels; k++)
            if (t->kernel.at[k].what == what)
                return true;
    return false;
}

bool ls_nn_train_has_loss(const struct ls_engine_setup *setup, uint32_t segment, uint32_t rank)
{
    return has_kernel(setup, segment, rank, LS_KERNEL_LOSS);
}

bool ls_nn_train_has_optimizer(const struct ls_engine_setup *setup, uint32_t segment, uint32_t rank)
{
    return has_kernel(setup, segment, rank, LS_KERNEL_OPTIMIZER);
}

struct ls_nn_sequence ls_nn_train_sequence(const struct ls_engine_setup *setup, const struct ls_nn_train *t, uint32_t segment, uint32_t rank)
{
    uint32_t sample = setup->sample ? setup->sample[segment * setup->job->ranks + rank] : 0;
    struct ls_nn_sequence s = { .text = 16, .seed = ls_hash_mix(ls_hash_mix(setup->seed, segment), rank) };
    if (sample < t->samples) {
        s.text = t->sample[sample].text;
        s.images = t->sample[sample].images;
        s.audios = t->sample[sample].audios;
    }
    return s;
}

/* Labels of the step that a segment belongs to, over all ranks; evaluations: of the segment alone. */
static size_t step_labels(const struct ls_engine_setup *s, const struct ls_nn_train *t, uint32_t segment, uint32_t rank)
{
    bool back = has_kernel(s, segment, rank, LS_KERNEL_LOSS_BACKWARD);
    uint32_t from = segment, to = segment + 1;
    while (back && from > 0 && !ls_nn_train_has_optimizer(s, from - 1, rank))
        from--;
    while (back && to < s->job->rank[rank].count && !ls_nn_train_has_optimizer(s, to - 1, rank))
        to++;
    size_t labels = 0;
    for (uint32_t r = 0; r < s->job->ranks; r++)
        for (uint32_t g = from; g < to && g < s->job->rank[r].count; g++) {
            struct ls_nn_sequence q = ls_nn_train_sequence(s, t, g, r);
            if (ls_nn_train_has_loss(s, g, r) && has_kernel(s, g, r, LS_KERNEL_LOSS_BACKWARD) == back)
                labels += ls_nn_labels(t->vlm, &q, 1);
        }
    return labels;
}

static double loss_scale(const struct ls_engine_setup *s, const struct ls_nn_train *t, uint32_t segment, uint32_t rank)
{
    size_t labels = step_labels(s, t, segment, rank);
    return labels ? (s->mean ? (double)s->job->ranks : 1) / (double)labels : 0;
}

double ls_nn_train_loss(const struct ls_engine_setup *setup, const struct ls_nn_train *t, uint32_t from, uint32_t to)
{
    double sum = 0;
    size_t labels = 0;
    for (uint32_t g = from; g < to; g++)
        for (uint32_t r = 0; r < setup->job->ranks; r++) {
            if (g >= setup->job->rank[r].count || !ls_nn_train_has_loss(setup, g, r))
                continue;
            struct ls_nn_sequence q = ls_nn_train_sequence(setup, t, g, r);
            size_t own = ls_nn_labels(t->vlm, &q, 1);
            double scale = loss_scale(setup, t, g, r);
            sum += scale > 0 ? t->loss[g * setup->job->ranks + r] / scale : 0;
            labels += own;
        }
    return labels ? sum / (double)labels : 0;
}

/* --- a rank ---------------------------------------------------------------------------------------------------------- */

static struct ls_tensor full(void *context, uint32_t param)
{
    return ls_rank_full(((struct train *)context)->of, param);
}

static enum ls_code grad(void *context, uint32_t param, struct ls_tensor *out, struct ls_error *err)
{
    return ls_rank_grad(((struct train *)context)->of, param, out, err);
}

static bool give_sum(void *context, uint32_t param, struct ls_storage *sum)
{
    return ls_rank_take_grad(((struct train *)context)->of, param, sum);
}

static void train_close(struct ls_math *m)
{
    struct train *x = (struct train *)m;
    struct ls_stream *s = x->device->ops->stream(x->device, 0);
    ls_nn_exec_close(x->exec);
    for (size_t i = 0; i < x->setup->params; i++) {
        struct ls_storage *all[] = { x->held[i].master, x->held[i].mean, x->held[i].square };
        for (size_t k = 0; k < sizeof all / sizeof *all; k++)
            if (all[k])
                x->device->ops->free(x->device, s, all[k]);
    }
    if (x->clip)
        x->device->ops->free(x->device, s, x->clip);
    ls_vec_release(&x->kernel);
    free(x->held);
    free(x->trains);
    free(x->stale);
    free(x);
}

static enum ls_code train_open(struct ls_math **out, const struct ls_engine_setup *setup, uint32_t rank, struct ls_device *device, void *context,
                               struct ls_error *err)
{
    const struct ls_nn_train *c = context;
    struct ls_loc at = c->vlm->model->flow.at;
    *out = NULL;
    if (!device->ops->host_memory)
        return ls_fail(err, LS_EBACKEND, at, "operators for the device '%s' are not built in", device->ops->name);
    if (setup->params != c->vlm->model->params)
        return ls_fail(err, LS_EINPUT, at, "the run's parameters are not those of the model");
    for (size_t i = 0; i < c->samples; i++)
        if (c->sample[i].other || (c->sample[i].images && !c->vlm->pictures) || (c->sample[i].audios && !c->vlm->recordings))
            return ls_fail(err, LS_EINPUT, c->sample[i].at, "a sample holds media that the model cannot be fed: it takes %s%s, no videos",
                           c->vlm->pictures ? "pictures" : "text alone", c->vlm->recordings ? " and recordings" : "");
    struct train *x = calloc(1, sizeof *x);
    if (!x || !(x->trains = calloc(setup->params + 1, sizeof *x->trains)) ||
        !(x->stale = calloc(setup->params + 1, sizeof *x->stale)) || !(x->held = calloc(setup->params + 1, sizeof *x->held)))
        ls_out_of_memory(sizeof *x);
    x->m.ops = &ls_math_nn;
    x->setup = setup, x->c = c, x->device = device, x->rank = rank;
    enum ls_dtype activation = LS_DTYPE_F32;
    for (size_t i = 0; i < setup->params; i++) {
        x->trains[i] = setup->param[i].trains;
        if (setup->param[i].compute == LS_DTYPE_BF16)
            activation = LS_DTYPE_BF16;
    }
    struct ls_nn_source source = { x, full, grad, give_sum };
    enum ls_code rc = ls_nn_exec_open(&x->exec, c->vlm, device, x->trains, activation, &source, err);
    if (rc != LS_OK) {
        train_close(&x->m);
        return rc;
    }
    *out = &x->m;
    return LS_OK;
}

struct first { const struct ls_nn_vlm *vlm; uint32_t param; uint64_t seed, from, count; struct ls_tensor to; };

static void run_first(void *args, struct ls_stream *s)
{
    const struct first *f = args;
    char *at = (char *)f->to.of->at + f->to.offset_bytes;
    (void)s;
    if (f->to.dtype == LS_DTYPE_F32) {
        ls_nn_init_param(f->vlm, f->param, f->seed, f->from, f->count, (float *)(void *)at);
        return;
    }
    enum { PIECE = 256 };
    float piece[PIECE];
    for (uint64_t i = 0; i < f->count; i += PIECE) {
        uint64_t n = f->count - i < PIECE ? f->count - i : PIECE;
        ls_nn_init_param(f->vlm, f->param, f->seed, f->from + i, n, piece);
        for (uint64_t k = 0; k < n; k++)
            ls_element_set(at, f->to.dtype, i + k, (double)piece[k]);
    }
}

static enum ls_code train_init(struct ls_math *m, struct ls_stream *s, uint32_t param, struct ls_tensor shard, uint64_t first_row, uint64_t rows,
                               struct ls_error *err)
{
    struct train *x = (struct train *)m;
    struct ls_loc at = x->c->vlm->model->param[param].at;
    uint64_t row = x->setup->param[param].row;
    if (x->c->vlm->model->param[param].canonical != param || !rows)
        return LS_OK;
    if (!shard.of->at)
        return ls_fail(err, LS_EBACKEND, at, "training needs memory, and the device only counts it");
    if (x->setup->param[param].dtype != LS_DTYPE_F32 && x->setup->param[param].dtype != LS_DTYPE_BF16)
        return ls_fail(err, LS_EINPUT, at, "parameters in %s cannot be trained: f32 and bf16 can", ls_dtype_name(x->setup->param[param].dtype));
    struct first f = { x->c->vlm, param, x->setup->seed, first_row * row, rows * row, shard };
    x->device->ops->launch(x->device, s, run_first, &f, sizeof f, &shard.of, 1, LS_NO_TAG);
    return LS_OK;
}

static enum ls_code train_round(struct ls_math *m, struct ls_rank *rank, uint32_t segment, struct ls_error *err)
{
    struct train *x = (struct train *)m;
    const struct ls_segment *g = x->setup->job->rank[x->rank].segment[segment];
    const struct ls_tables *t = x->setup->job->tables;
    x->of = rank;
    x->segment = segment;
    x->kernel.count = 0;
    for (size_t i = 0; i < g->count; i++)
        for (uint32_t k = 0; g->op[i].kind == LS_OP_COMPUTE && k < g->op[i].kernels; k++)
            ls_push(&x->kernel, &t->kernel.at[g->op[i].kernel + k]);
    bool has_loss = ls_nn_train_has_loss(x->setup, segment, x->rank);
    x->sequence = ls_nn_train_sequence(x->setup, x->c, segment, x->rank);
    struct ls_nn_round round = { &x->sequence, has_loss, x->kernel.at, x->kernel.count, t->link.at, 0,
                                 x->c->loss && has_loss ? &x->c->loss[segment * x->setup->job->ranks + x->rank] : NULL };
    if (has_loss)
        round.loss_scale = loss_scale(x->setup, x->c, segment, x->rank);
    return ls_nn_exec_round(x->exec, x->device->ops->stream(x->device, 0), &round, err);
}

/* --- the step -------------------------------------------------------------------------------------------------------- */

static struct ls_tensor step_gradient(struct train *x, struct ls_stream *s, uint32_t param, struct ls_error *err)
{
    struct ls_tensor t = { 0 };
    if (x->c->vlm->model->param[param].canonical != param || !x->trains[param])
        return t;
    if (x->setup->param[param].unit != LS_NO_ID)
        return ls_rank_shard_grad(x->of, param);
    if (x->setup->buckets)
        return ls_rank_step_grad(x->of, param, s);
    return ls_rank_grad(x->of, param, &t, err) == LS_OK ? t : (struct ls_tensor){ 0 };
}

/* slices: gradients that are whole are summed as if so many ranks held a slice each, so that the norm has the bits of a sharded run. */
struct squares { float *to; double *norm; size_t count, slices; struct { struct ls_tensor t; uint64_t row; double weight; } of[]; };

static struct ls_tensor slice_of(struct ls_tensor t, uint64_t row, size_t slice, size_t slices)
{
    uint64_t rows = t.elements / row, per = (rows + slices - 1) / slices, first = slice * per < rows ? slice * per : rows;
    uint64_t last = rows - first < per ? rows : first + per;
    return (struct ls_tensor){ t.of, t.offset_bytes + first * row * ls_dtype_bytes(t.dtype), (last - first) * row, t.dtype };
}

/* Sum of squares of what this rank holds; every parameter by itself, in the model's order. */
static void run_squares(void *args, struct ls_stream *s)
{
    const struct squares *q = args;
    double sum = 0;
    float all = 0;
    (void)s;
    for (size_t k = 0; k < q->slices; k++, sum = 0) {
        for (size_t i = 0; i < q->count; i++)
            sum += q->of[i].weight * ls_nn_square_sum(slice_of(q->of[i].t, q->of[i].row, k, q->slices));
        if (q->slices > 1)
            all += (float)sum;
        else if (q->to)
            *q->to = (float)sum;
        else
            *q->norm = sum;
    }
    if (q->slices > 1)
        *q->norm = (double)all;
}

/* to: where a collective will read the sum; NULL: into *norm. */
static enum ls_code launch_squares(struct train *x, struct ls_stream *s, struct ls_tensor to, double *norm, struct ls_error *err)
{
    size_t n = x->setup->params, bytes = sizeof(struct squares) + n * sizeof *((struct squares *)0)->of;
    struct squares *q = calloc(1, bytes);
    struct ls_storage **uses = calloc(n + 1, sizeof *uses);
    if (!q || !uses)
        ls_out_of_memory(bytes);
    for (uint32_t i = 0; i < n; i++) {
        struct ls_tensor t = step_gradient(x, s, i, err);
        if (!t.of)
            continue;
        /* Whole on every rank: counted once in the sum over ranks. */
        q->of[q->count].weight = x->setup->param[i].unit == LS_NO_ID ? 1 / (double)x->setup->shard : 1;
        q->of[q->count].row = x->setup->param[i].row;
        q->of[q->count].t = t;
        uses[q->count++] = t.of;
    }
    q->slices = x->setup->buckets && !to.of ? x->setup->job->ranks : 1;
    q->to = to.of ? (float *)(void *)((char *)to.of->at + to.offset_bytes) : NULL;
    q->norm = norm;
    uses[q->count] = to.of ? to.of : x->clip; /* may be NULL */
    x->device->ops->launch(x->device, s, run_squares, q, bytes, uses, q->count + 1, LS_NO_TAG);
    free(q);
    free(uses);
    return LS_OK;
}

struct factor { const struct ls_nn_adamw *o; const float *from; double *clip, *norm; };

static void run_factor(void *args, struct ls_stream *s)
{
    const struct factor *f = args;
    (void)s;
    double norm = sqrt(f->from ? (double)*f->from : f->clip[0]);
    f->clip[0] = norm;
    f->clip[1] = ls_nn_clip_factor(f->o, norm);
    if (f->norm)
        *f->norm = norm;
}

static void launch_factor(struct train *x, struct ls_stream *s, struct ls_tensor from)
{
    struct factor f = { &x->c->adamw, from.of ? (const float *)(const void *)((const char *)from.of->at + from.offset_bytes) : NULL, x->clip->at,
                        x->c->norm ? &x->c->norm[x->segment * x->setup->job->ranks + x->rank] : NULL };
    struct ls_storage *uses[2] = { x->clip, from.of };
    x->device->ops->launch(x->device, s, run_factor, &f, sizeof f, uses, from.of ? 2 : 1, LS_NO_TAG);
}

static enum ls_code need_clip(struct train *x, struct ls_stream *s, struct ls_error *err)
{
    return x->clip ? LS_OK : x->device->ops->alloc(x->device, s, 2 * sizeof(double), LS_CATEGORY_OPTIMIZER, &x->clip, err);
}

struct update { const struct ls_nn_adamw *o; uint64_t step; const double *factor; struct ls_tensor gradient, shard;
                float *master, *mean, *square; float *out; uint64_t out_count; bool fresh; struct ls_tensor used; };

static void run_update(void *args, struct ls_stream *s)
{
    const struct update *u = args;
    (void)s;
    struct ls_tensor master = u->shard;
    if (u->fresh) {
        memset(u->mean, 0, (size_t)u->shard.elements * sizeof(float));
        memset(u->square, 0, (size_t)u->shard.elements * sizeof(float));
        for (uint64_t i = 0; u->shard.dtype != LS_DTYPE_F32 && i < u->shard.elements; i++)
            u->master[i] = (float)ls_element_get((const char *)master.of->at + master.offset_bytes, master.dtype, i);
    }
    bool used = !u->used.of || ls_element_get((const char *)u->used.of->at + u->used.offset_bytes, u->used.dtype, 0) > 0;
    if (used)
        ls_nn_adamw_step(u->o, u->step, u->factor ? u->factor[1] : 1, u->gradient, u->master, u->mean, u->square);
    for (uint64_t i = 0; used && u->shard.dtype != LS_DTYPE_F32 && i < u->shard.elements; i++)
        ls_element_set((char *)u->shard.of->at + u->shard.offset_bytes, u->shard.dtype, i, (double)u->master[i]);
    if (u->out)
        memcpy(u->out, u->master, (size_t)u->out_count * sizeof *u->out);
}

/* A parameter that has had no gradient yet keeps its first value. */
static void run_keep(void *args, struct ls_stream *s)
{
    const struct update *u = args;
    (void)s;
    ls_elements_load((const char *)u->shard.of->at + u->shard.offset_bytes, u->shard.dtype, 0, u->out_count, u->out);
}

/* The part of a parameter's final values that this rank is to report. */
static void report_to(const struct train *x, uint32_t param, struct update *u)
{
    const struct ls_engine_param *p = &x->setup->param[param];
    uint64_t first = p->unit == LS_NO_ID ? 0 : x->rank % x->setup->shard * u->shard.elements, all = p->rows * p->row;
    if (!x->c->weight || !x->c->weight[param] || first >= all || (p->unit == LS_NO_ID ? x->rank != 0 : x->rank >= x->setup->shard))
        return;
    u->out = x->c->weight[param] + first;
    u->out_count = all - first < u->shard.elements ? all - first : u->shard.elements;
}

static enum ls_code update_param(struct train *x, struct ls_stream *s, uint32_t param, bool clipped, struct ls_error *err)
{
    struct held *h = &x->held[param];
    struct update u = { .o = &x->c->adamw, .step = x->steps, .factor = clipped ? x->clip->at : NULL, .gradient = step_gradient(x, s, param, err),
                        .shard = ls_rank_shard(x->of, param), .fresh = !h->mean, .used = ls_rank_used(x->of, param, s) };
    if (!u.shard.of || !u.shard.elements)
        return LS_OK;
    report_to(x, param, &u);
    if (!u.gradient.of) {
        if (u.out && u.fresh)
            x->device->ops->launch(x->device, s, run_keep, &u, sizeof u, &u.shard.of, 1, LS_NO_TAG);
        return LS_OK;
    }
    uint64_t bytes = u.shard.elements * sizeof(float);
    enum ls_code rc = LS_OK;
    if (u.fresh && u.shard.dtype != LS_DTYPE_F32)
        rc = x->device->ops->alloc(x->device, s, bytes, LS_CATEGORY_OPTIMIZER, &h->master, err);
    if (rc == LS_OK && u.fresh)
        rc = x->device->ops->alloc(x->device, s, bytes, LS_CATEGORY_OPTIMIZER, &h->mean, err);
    if (rc == LS_OK && u.fresh)
        rc = x->device->ops->alloc(x->device, s, bytes, LS_CATEGORY_OPTIMIZER, &h->square, err);
    if (rc != LS_OK)
        return rc;
    assert(u.gradient.elements == u.shard.elements);
    u.master = h->master ? h->master->at : (float *)(void *)((char *)u.shard.of->at + u.shard.offset_bytes);
    u.mean = h->mean->at, u.square = h->square->at;
    struct ls_storage *uses[7] = { u.gradient.of, u.shard.of, h->mean, h->square };
    size_t count = 4;
    if (h->master)
        uses[count++] = h->master;
    if (clipped)
        uses[count++] = x->clip;
    if (u.used.of)
        uses[count++] = u.used.of;
    x->device->ops->launch(x->device, s, run_update, &u, sizeof u, uses, count, LS_NO_TAG);
    return LS_OK;
}

static enum ls_code run_step(struct train *x, struct ls_stream *s, struct ls_error *err)
{
    bool clipped = x->norm_reduced;
    enum ls_code rc = LS_OK;
    x->norm_reduced = false;
    if (!clipped && x->setup->shard == 1) { /* all there is of the gradients is here */
        rc = need_clip(x, s, err);
        if (rc == LS_OK)
            rc = launch_squares(x, s, (struct ls_tensor){ 0 }, x->clip->at, err);
        if (rc == LS_OK)
            launch_factor(x, s, (struct ls_tensor){ 0 });
        clipped = rc == LS_OK;
    } else if (!clipped && x->c->square) /* the program says nothing of a norm: whoever watches adds up */
        rc = launch_squares(x, s, (struct ls_tensor){ 0 }, &x->c->square[x->segment * x->setup->job->ranks + x->rank], err);
    x->steps++;
    for (uint32_t i = 0; i < x->setup->params && rc == LS_OK; i++)
        if (x->trains[i] && !x->stale[i] && x->c->vlm->model->param[i].canonical == i)
            rc = update_param(x, s, i, clipped, err);
    return rc;
}

static enum ls_code train_issue(struct ls_math *m, const struct ls_math_call *call, struct ls_error *err)
{
    struct train *x = (struct train *)m;
    x->of = call->rank;
    if (call->kernel->what == LS_KERNEL_OPTIMIZER && ls_op_gives_nothing(call->op)) { /* it holds other tensors than these */
        const struct ls_payload *p = &x->setup->job->tables->payload.at[call->op->payload];
        for (uint32_t i = 0; i < x->setup->params; i++)
            for (size_t k = 0; k < p->count; k++)
                x->stale[i] = x->stale[i] || x->setup->param[i].name == p->items[k];
    } else if (call->kernel->what == LS_KERNEL_OPTIMIZER) {
        enum ls_code rc = run_step(x, call->stream, err);
        if (rc != LS_OK)
            return rc;
    }
    return ls_nn_exec_kernel(x->exec, call->stream, call->kernel, err);
}

struct say { float *to; size_t count; float value; const double *loss; double scale; };

static void run_say(void *args, struct ls_stream *s)
{
    const struct say *y = args;
    (void)s;
    for (size_t i = 0; i < y->count; i++)
        y->to[i] = y->loss ? (float)(*y->loss * y->scale) : y->value;
}

static enum ls_code train_scalar(struct ls_math *m, struct ls_rank *rank, struct ls_stream *s, const struct ls_op *op, bool result,
                                 struct ls_tensor value, struct ls_error *err)
{
    struct train *x = (struct train *)m;
    const struct ls_tables *t = x->setup->job->tables;
    const char *what = op->payload == LS_NO_ID ? "" : ls_tables_name(t, t->payload.at[op->payload].name);
    enum ls_code rc = LS_OK;
    x->of = rank;
    if (strcmp(what, "grad norm") == 0) {
        rc = need_clip(x, s, err);
        if (rc == LS_OK && !result)
            return launch_squares(x, s, value, NULL, err);
        if (rc == LS_OK) {
            launch_factor(x, s, value);
            x->norm_reduced = true;
        }
        return rc;
    }
    if (result)
        return LS_OK;
    /* A metric: this rank's loss of the last round before the step. A vote on what the batch holds: pictures, recordings. */
    struct say y = { .to = (float *)(void *)((char *)value.of->at + value.offset_bytes), .count = (size_t)value.elements, .scale = 1 };
    if (strcmp(what, "uniform execution") == 0) {
        struct ls_nn_sequence q = ls_nn_train_sequence(x->setup, x->c, x->segment, x->rank);
        y.value = (q.images > 0 ? 1.0f : 0.0f) + (q.audios > 0 ? 2.0f : 0.0f);
    }
    for (uint32_t g = x->segment + 1; g-- > 0 && strcmp(what, "loss") == 0 && x->c->loss;)
        if (ls_nn_train_has_loss(x->setup, g, x->rank)) {
            y.loss = &x->c->loss[g * x->setup->job->ranks + x->rank];
            break;
        }
    x->device->ops->launch(x->device, s, run_say, &y, sizeof y, &value.of, 1, LS_NO_TAG);
    return LS_OK;
}

/* --- several processes ----------------------------------------------------------------------------------------------- */

/* Which of a parameter's final values a rank writes, as update_param does. */
static uint64_t own_values(const struct ls_engine_setup *s, uint32_t param, uint32_t rank, uint64_t *first)
{
    const struct ls_engine_param *p = &s->param[param];
    uint64_t shard = ls_param_padded(s, param), all = p->rows * p->row;
    *first = p->unit == LS_NO_ID ? 0 : rank % s->shard * shard;
    if (*first >= all || (p->unit == LS_NO_ID ? rank > 0 : rank >= s->shard))
        return 0;
    return all - *first < shard ? all - *first : shard;
}

/* Walks over all that ranks leave in the context, in one order for who gives and who gets. */
static void each_result(const struct ls_engine_setup *s, const struct ls_nn_train *c, uint32_t first, uint32_t ranks,
                        void (*see)(void *context, void *at, size_t bytes), void *context)
{
    for (uint32_t r = first; r < first + ranks; r++) {
        for (size_t g = 0; g < s->job->rank[r].count; g++) {
            if (c->loss)
                see(context, &c->loss[g * s->job->ranks + r], sizeof *c->loss);
            if (c->norm)
                see(context, &c->norm[g * s->job->ranks + r], sizeof *c->norm);
            if (c->square)
                see(context, &c->square[g * s->job->ranks + r], sizeof *c->square);
        }
        for (uint32_t i = 0; i < s->params && c->weight; i++) {
            uint64_t from, count = own_values(s, i, r, &from);
            if (c->weight[i] && count)
                see(context, c->weight[i] + from, (size_t)count * sizeof **c->weight);
        }
    }
}

static void give_bytes(void *context, void *at, size_t bytes) { ls_str_addn(context, at, bytes); }

static void get_bytes(void *context, void *at, size_t bytes)
{
    const char **from = context;
    memcpy(at, *from, bytes);
    *from += bytes;
}

static void train_give(const struct ls_engine_setup *setup, void *context, uint32_t first, uint32_t ranks, struct ls_str *out)
{
    each_result(setup, context, first, ranks, give_bytes, out);
}

static void train_get(const struct ls_engine_setup *setup, void *context, uint32_t first, uint32_t ranks, const void *bytes, size_t count)
{
    const char *from = bytes;
    each_result(setup, context, first, ranks, get_bytes, &from);
    assert(from == (const char *)bytes + count);
}

const struct ls_math_ops ls_math_nn = {
    .name = "nn", .open = train_open, .close = train_close, .init = train_init, .round = train_round, .issue = train_issue, .scalar = train_scalar,
    .give = train_give, .get = train_get,
};
