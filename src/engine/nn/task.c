#include "engine/nn/task.h"

#include "engine/nn/bf16.h"

#include <assert.h>

static enum ls_code misfit(const struct ls_nn_vlm *v, const struct ls_nn_statement *s, const char *what, size_t have, struct ls_error *err)
{
    return ls_fail(err, LS_EINPUT, s->flow->at, "statement %u of '%.120s': %s (%zu elements)", s->flow->id,
                   ls_name_text(v->model->names, v->model->module[s->flow->module].name), what, have);
}

static size_t param_dim(const struct ls_nn_vlm *v, const struct ls_nn_statement *s, size_t place, size_t dim)
{
    return (size_t)v->model->param[s->param[place]].dim[dim];
}

static size_t param_columns(const struct ls_nn_vlm *v, const struct ls_nn_statement *s)
{
    const struct ls_param *p = &v->model->param[s->param[0]];
    return (size_t)(p->elements / p->dim[0]);
}

enum ls_code ls_nn_dims_of(const struct ls_nn_vlm *vlm, const struct ls_nn_statement *s, const struct ls_nn_batch *batch,
                           const size_t in[LS_NN_INS_MAX], struct ls_nn_dims *out, struct ls_error *err)
{
    struct ls_nn_dims d = { 0 };
    bool vision = s->tower == &vlm->vision, audio = s->tower == &vlm->audio;
    size_t heard = batch->recordings * batch->audio_rows, scope = vision ? batch->patches : audio ? heard : batch->tokens, head = (size_t)s->tower->head_dim;
    switch (s->op) {
    case LS_NN_OP_LINEAR:
        d.a = param_columns(vlm, s), d.b = param_dim(vlm, s, 0, 0);
        d.c = s->param[2] == LS_NO_ID ? 0 : param_dim(vlm, s, 2, 0);
        d.n = in[0] / d.a, d.count = d.n * d.b, d.kept = d.temp_back = d.n * d.c;
        if (in[0] % d.a)
            return misfit(vlm, s, "its input is not made of rows as wide as its weight", in[0], err);
        break;
    case LS_NN_OP_MATMUL:
        d.a = param_dim(vlm, s, 0, 0), d.b = param_columns(vlm, s);
        d.n = in[0] / d.a, d.count = d.n * d.b;
        if (in[0] % d.a)
            return misfit(vlm, s, "its input is not made of rows as wide as its weight", in[0], err);
        break;
    case LS_NN_OP_EMBED:
        d.n = batch->tokens, d.a = param_columns(vlm, s), d.count = d.n * d.a;
        break;
    case LS_NN_OP_POSITIONS:
        d.n = batch->patches, d.a = param_columns(vlm, s), d.b = batch->corners, d.count = d.n * d.a;
        break;
    case LS_NN_OP_RMS_NORM:
    case LS_NN_OP_LAYER_NORM:
        d.a = param_dim(vlm, s, 0, 0), d.n = in[0] / d.a, d.count = in[0], d.kept = s->op == LS_NN_OP_RMS_NORM ? d.n : 2 * d.n;
        if (in[0] % d.a)
            return misfit(vlm, s, "its input is not made of rows as wide as its weight", in[0], err);
        break;
    case LS_NN_OP_ACT:
        d.n = d.count = in[0];
        break;
    case LS_NN_OP_MUL:
    case LS_NN_OP_ADD:
        d.n = d.count = in[0];
        if (in[0] != in[1])
            return misfit(vlm, s, "its two inputs differ in size", in[1], err);
        break;
    case LS_NN_OP_AVG_POOL:
    case LS_NN_OP_UNFOLD:
        if (!batch->patches || vlm->picture.blocks || in[0] % batch->patches)
            return misfit(vlm, s, "its input is not one row per patch, row by row", in[0], err);
        d.n = batch->patches, d.a = in[0] / batch->patches, d.c = (size_t)vlm->picture.merge;
        d.count = s->op == LS_NN_OP_UNFOLD ? in[0] : in[0] / (d.c * d.c);
        break;
    case LS_NN_OP_PATCHES:
        d.n = batch->patches, d.a = param_columns(vlm, s), d.b = param_dim(vlm, s, 0, 0);
        d.count = d.n * d.b, d.temp = d.temp_back = d.n * d.a;
        break;
    case LS_NN_OP_ATTENTION: {
        bool fused = s->role[1] == LS_NO_ID;
        size_t row = scope * head * (fused ? 3 : 1), q = in[s->role[0]], k = fused ? q : in[s->role[1]], v = fused ? q : in[s->role[2]];
        if (!scope || q % row || k % row || v != k || !k || (q / row) % (k / row))
            return misfit(vlm, s, "queries, keys and values are not heads of the configured size", q, err);
        d.n = scope, d.a = q / row, d.b = k / row, d.c = head;
        d.count = d.n * d.a * head, d.kept = d.a * d.n;
        size_t turned = s->tower->position == LS_NN_POSITION_NONE ? 0 : d.n * (d.a + d.b) * head;
        size_t longest = vision ? batch->rows * batch->columns : audio ? batch->audio_rows : batch->longest;
        d.temp = turned + ls_nn_attention_temp_f32(longest, false);
        d.temp_back = 2 * turned + ls_nn_attention_temp_f32(longest, true);
        break;
    }
    case LS_NN_OP_MERGE:
    case LS_NN_OP_MERGE_ADD:
        if (!batch->tokens || in[0] % batch->tokens)
            return misfit(vlm, s, "its first input is not one row per token", in[0], err);
        d.n = batch->tokens, d.a = in[0] / batch->tokens, d.count = in[0];
        size_t marked = s->recordings ? batch->heard : batch->marked;
        if (d.a && (in[1] % d.a || in[1] / d.a < marked || (marked && in[1] / d.a != marked)))
            return misfit(vlm, s, "its second input is not one row per token of its medium", in[1], err);
        break;
    case LS_NN_OP_CONV1D: {
        size_t channels = param_dim(vlm, s, 0, 1), from = s->flow->in[0] == vlm->features ? batch->recordings * batch->frames * channels : in[0];
        if (!batch->recordings || from % (batch->recordings * channels) ||
            (s->flow->in[0] == vlm->features && channels != vlm->recording.bins))
            return misfit(vlm, s, "its input is not rows of recordings as wide as its weight", from, err);
        d.a = param_columns(vlm, s), d.b = param_dim(vlm, s, 0, 0), d.c = from / (batch->recordings * channels);
        d.n = batch->recordings * ((d.c - 1) / (size_t)s->stride + 1);
        d.count = d.n * d.b, d.temp = d.n * d.a, d.temp_back = 2 * d.n * d.a;
        break;
    }
    case LS_NN_OP_POOL1D:
    case LS_NN_OP_SINUSOIDS:
        if (!heard || in[0] % heard || (s->op == LS_NN_OP_SINUSOIDS && in[0] / heard != vlm->recording.width))
            return misfit(vlm, s, "its input is not one row per row of the convolutions", in[0], err);
        d.n = heard, d.a = in[0] / heard, d.count = s->op == LS_NN_OP_POOL1D ? in[0] / (size_t)s->stride : in[0];
        break;
    }
    *out = d;
    return LS_OK;
}

bool ls_nn_backward_reads_inputs(const struct ls_nn_statement *s, const bool *trains)
{
    switch (s->op) {
    case LS_NN_OP_LINEAR:
    case LS_NN_OP_MATMUL:
    case LS_NN_OP_CONV1D:
        for (size_t i = 0; i < LS_NN_PARAMS_MAX; i++)
            if (i != 1 && s->param[i] != LS_NO_ID && trains[s->param[i]])
                return true;
        return false;
    case LS_NN_OP_RMS_NORM: case LS_NN_OP_LAYER_NORM: case LS_NN_OP_ACT: case LS_NN_OP_MUL: case LS_NN_OP_ATTENTION:
        return true;
    case LS_NN_OP_EMBED: case LS_NN_OP_POSITIONS: case LS_NN_OP_AVG_POOL: case LS_NN_OP_UNFOLD: case LS_NN_OP_PATCHES: case LS_NN_OP_ADD:
    case LS_NN_OP_MERGE: case LS_NN_OP_MERGE_ADD: case LS_NN_OP_POOL1D: case LS_NN_OP_SINUSOIDS:
        return false;
    }
    return true;
}

bool ls_nn_backward_reads_output(const struct ls_nn_statement *s)
{
    return s->op == LS_NN_OP_ATTENTION;
}

size_t ls_nn_convert_temp(const struct ls_nn_view *v)
{
    return v->at && v->dtype != LS_DTYPE_F32 ? (v->count + 15) / 16 * 16 : 0;
}

static float *take(float **temp, size_t count)
{
    float *here = *temp;
    *temp += (count + 15) / 16 * 16;
    return here;
}

static const float *as_float(const struct ls_nn_view *v, float **temp)
{
    if (!v->at || v->dtype == LS_DTYPE_F32)
        return v->at;
    assert(v->dtype == LS_DTYPE_BF16);
    float *to = take(temp, v->count);
    for (size_t i = 0; i < v->count; i++)
        to[i] = ls_bf16_to(((const uint16_t *)v->at)[i]);
    return to;
}

static void store(const struct ls_nn_view *v, const float *from)
{
    if (v->at == from)
        return;
    for (size_t i = 0; i < v->count; i++)
        ((uint16_t *)v->at)[i] = ls_bf16_of(from[i]);
}

struct attention { const float *q, *k, *v; size_t ldq, ldk, ldv; const float *cosine, *sine; struct ls_nn_mask mask; };

static struct attention attention_of(const struct ls_nn_task *t, const float *const x[LS_NN_INS_MAX])
{
    const struct ls_nn_statement *s = t->statement;
    const struct ls_nn_batch *b = &t->batch;
    const struct ls_nn_dims *d = &t->dims;
    bool vision = s->tower == &b->vlm->vision, audio = s->tower == &b->vlm->audio, fused = s->role[1] == LS_NO_ID;
    size_t q = d->a * d->c, k = d->b * d->c;
    struct attention a = { x[s->role[0]], fused ? x[0] + q : x[s->role[1]], fused ? x[0] + q + k : x[s->role[2]],
                           fused ? q + 2 * k : q, fused ? q + 2 * k : k, fused ? q + 2 * k : k,
                           vision ? b->grid_cosine : s->windowed ? b->window_cosine : b->cosine,
                           vision ? b->grid_sine : s->windowed ? b->window_sine : b->sine, { 0 } };
    a.mask = (struct ls_nn_mask){ vision ? b->picture_first : audio ? b->recording_first : b->first,
                                  vision ? b->pictures : audio ? b->recordings : b->sequences, s->tower->causal,
                                  s->windowed ? (size_t)s->tower->window : 0, s->tower->see_images ? b->group : NULL };
    return a;
}

/* Queries and keys as attention sees them: turned by their positions. */
static void turn(const struct ls_nn_task *t, struct attention *a, float **temp)
{
    const struct ls_nn_dims *d = &t->dims;
    if (t->statement->tower->position == LS_NN_POSITION_NONE)
        return;
    float *q = take(temp, d->n * d->a * d->c), *k = take(temp, d->n * d->b * d->c);
    ls_nn_rotate_f32(d->n, d->a, d->c, a->cosine, a->sine, a->q, a->ldq, q);
    ls_nn_rotate_f32(d->n, d->b, d->c, a->cosine, a->sine, a->k, a->ldk, k);
    a->q = q, a->k = k, a->ldq = d->a * d->c, a->ldk = d->b * d->c;
}

static void attention_back(const struct ls_nn_task *t, const float *const x[LS_NN_INS_MAX], const float *y, float *temp)
{
    const struct ls_nn_dims *d = &t->dims;
    const struct ls_nn_statement *s = t->statement;
    struct attention a = attention_of(t, x);
    size_t ldq = a.ldq, ldk = a.ldk;
    bool fused = s->role[1] == LS_NO_ID, turned = s->tower->position != LS_NN_POSITION_NONE;
    float *dq = t->din[s->role[0]], *dk = fused ? dq ? dq + d->a * d->c : NULL : t->din[s->role[1]];
    float *dv = fused ? dq ? dq + (d->a + d->b) * d->c : NULL : t->din[s->role[2]], *turned_dq = dq, *turned_dk = dk;
    turn(t, &a, &temp);
    if (turned && dq) {
        turned_dq = take(&temp, d->n * d->a * d->c);
        memset(turned_dq, 0, d->n * d->a * d->c * sizeof(float));
    }
    if (turned && dk) {
        turned_dk = take(&temp, d->n * d->b * d->c);
        memset(turned_dk, 0, d->n * d->b * d->c * sizeof(float));
    }
    ls_nn_attention_back_f32(&a.mask, d->n, d->a, d->b, d->c, (float)s->tower->scale, a.q, a.ldq, a.k, a.ldk, a.v, a.ldv, y, t->kept, t->dout,
                             temp, turned_dq, turned_dk, dv);
    if (turned && dq)
        ls_nn_rotate_back_f32(d->n, d->a, d->c, a.cosine, a.sine, turned_dq, dq, ldq);
    if (turned && dk)
        ls_nn_rotate_back_f32(d->n, d->b, d->c, a.cosine, a.sine, turned_dk, dk, ldk);
}

static void patches(const struct ls_nn_task *t, float *to)
{
    const struct ls_nn_batch *b = &t->batch;
    const struct ls_nn_picture *p = &b->vlm->picture;
    ls_nn_patches_f32(b->pictures, (size_t)p->channels, b->rows, b->columns, (size_t)p->patch, (size_t)p->frames, p->blocks ? (size_t)p->merge : 1,
                      b->pixel, to);
}

static void frames(const struct ls_nn_task *t, const float *x, float *to)
{
    const struct ls_nn_batch *b = &t->batch;
    const struct ls_param *w = &b->vlm->model->param[t->statement->param[0]];
    ls_nn_frames_f32(b->recordings, t->dims.c, (size_t)w->dim[1], (size_t)w->dim[2], (size_t)t->statement->stride, x ? x : b->feature, to);
}

static void conv1d_back(const struct ls_nn_task *t, const float *x, const float *w, const float *dy, float *temp)
{
    const struct ls_nn_dims *d = &t->dims;
    const struct ls_param *p = &t->batch.vlm->model->param[t->statement->param[0]];
    float *slope = t->din[0] ? temp + d->n * d->a : NULL;
    if (t->dw[0])
        frames(t, x, temp);
    if (slope)
        memset(slope, 0, d->n * d->a * sizeof *slope);
    ls_nn_linear_back_f32(d->n, d->a, d->b, temp, w, dy, slope, t->dw[0], t->dw[1]);
    if (slope)
        ls_nn_frames_back_f32(t->batch.recordings, d->c, (size_t)p->dim[1], (size_t)p->dim[2], (size_t)t->statement->stride, slope, t->din[0]);
}

static void forward(const struct ls_nn_task *t)
{
    const struct ls_nn_statement *s = t->statement;
    const struct ls_nn_dims *d = &t->dims;
    const struct ls_nn_batch *b = &t->batch;
    float *temp = t->temp, *y = t->out.dtype == LS_DTYPE_F32 ? t->out.at : take(&temp, d->count);
    const float *x[LS_NN_INS_MAX], *w[LS_NN_PARAMS_MAX];
    for (size_t i = 0; i < LS_NN_INS_MAX; i++)
        x[i] = as_float(&t->in[i], &temp);
    for (size_t i = 0; i < LS_NN_PARAMS_MAX; i++)
        w[i] = as_float(&t->w[i], &temp);
    switch (s->op) {
    case LS_NN_OP_LINEAR:
        ls_nn_linear_f32(d->n, d->a, d->b, x[0], w[0], w[1], y);
        if (d->c)
            ls_nn_lora_f32(d->n, d->a, d->b, d->c, (float)t->scale, x[0], w[2], w[3], t->kept, y);
        break;
    case LS_NN_OP_MATMUL:
        ls_nn_matmul_f32(d->n, d->a, d->b, x[0], w[0], y);
        break;
    case LS_NN_OP_EMBED:
        ls_nn_embed_f32(d->n, d->a, (float)s->offset, b->id, w[0], y);
        break;
    case LS_NN_OP_POSITIONS:
        ls_nn_positions_f32(d->n, d->a, d->b, b->corner, b->corner_weight, w[0], y);
        break;
    case LS_NN_OP_RMS_NORM:
        ls_nn_rms_norm_f32(d->n, d->a, (float)s->tower->eps, (float)s->offset, x[0], w[0], y, t->kept);
        break;
    case LS_NN_OP_LAYER_NORM:
        ls_nn_layer_norm_f32(d->n, d->a, (float)s->tower->eps, x[0], w[0], w[1], y, t->kept, t->kept + d->n);
        break;
    case LS_NN_OP_ACT:
        ls_nn_act_f32(s->act, d->n, x[0], y);
        break;
    case LS_NN_OP_AVG_POOL:
        ls_nn_avg_pool_f32(b->pictures, b->rows, b->columns, d->c, d->a, x[0], y);
        break;
    case LS_NN_OP_UNFOLD:
        ls_nn_unfold_f32(b->pictures, b->rows, b->columns, d->c, d->a, x[0], y);
        break;
    case LS_NN_OP_PATCHES:
        patches(t, temp);
        ls_nn_linear_f32(d->n, d->a, d->b, temp, w[0], w[1], y);
        break;
    case LS_NN_OP_ATTENTION: {
        struct attention a = attention_of(t, x);
        turn(t, &a, &temp);
        ls_nn_attention_f32(&a.mask, d->n, d->a, d->b, d->c, (float)s->tower->scale, a.q, a.ldq, a.k, a.ldk, a.v, a.ldv, temp, y, t->kept);
        break;
    }
    case LS_NN_OP_MUL:
        ls_nn_mul_f32(d->n, x[0], x[1], y);
        break;
    case LS_NN_OP_ADD:
        ls_nn_add_f32(d->n, x[0], x[1], y);
        break;
    case LS_NN_OP_MERGE:
    case LS_NN_OP_MERGE_ADD:
        ls_nn_merge_f32(d->n, d->a, s->recordings ? b->heard : b->marked, s->recordings ? b->audio_at : b->at, s->op == LS_NN_OP_MERGE_ADD, x[0], x[1],
                        y);
        break;
    case LS_NN_OP_CONV1D:
        frames(t, x[0], temp);
        ls_nn_linear_f32(d->n, d->a, d->b, temp, w[0], w[1], y);
        break;
    case LS_NN_OP_POOL1D:
        ls_nn_pool_rows_f32(d->n / (size_t)s->stride, (size_t)s->stride, d->a, x[0], y);
        break;
    case LS_NN_OP_SINUSOIDS:
        for (size_t i = 0; i < b->recordings; i++)
            ls_nn_add_f32(b->audio_rows * d->a, x[0] + i * b->audio_rows * d->a, b->sinusoid, y + i * b->audio_rows * d->a);
        break;
    }
    store(&t->out, y);
}

static void backward(const struct ls_nn_task *t)
{
    const struct ls_nn_statement *s = t->statement;
    const struct ls_nn_dims *d = &t->dims;
    const struct ls_nn_batch *b = &t->batch;
    float *temp = t->temp, *const *dx = t->din, *const *dw = t->dw;
    const float *x[LS_NN_INS_MAX], *w[LS_NN_PARAMS_MAX], *dy = t->dout, *y = as_float(&t->out, &temp);
    for (size_t i = 0; i < LS_NN_INS_MAX; i++)
        x[i] = as_float(&t->in[i], &temp);
    for (size_t i = 0; i < LS_NN_PARAMS_MAX; i++)
        w[i] = as_float(&t->w[i], &temp);
    switch (s->op) {
    case LS_NN_OP_LINEAR:
        ls_nn_linear_back_f32(d->n, d->a, d->b, x[0], w[0], dy, dx[0], dw[0], dw[1]);
        if (d->c)
            ls_nn_lora_back_f32(d->n, d->a, d->b, d->c, (float)t->scale, x[0], w[2], w[3], t->kept, dy, temp, dx[0], dw[2], dw[3]);
        break;
    case LS_NN_OP_MATMUL:
        ls_nn_matmul_back_f32(d->n, d->a, d->b, x[0], w[0], dy, dx[0], dw[0]);
        break;
    case LS_NN_OP_EMBED:
        ls_nn_embed_back_f32(d->n, d->a, (float)s->offset, b->id, dy, dw[0]);
        break;
    case LS_NN_OP_POSITIONS:
        ls_nn_positions_back_f32(d->n, d->a, d->b, b->corner, b->corner_weight, dy, dw[0]);
        break;
    case LS_NN_OP_RMS_NORM:
        ls_nn_rms_norm_back_f32(d->n, d->a, (float)s->offset, x[0], w[0], t->kept, dy, dx[0], dw[0]);
        break;
    case LS_NN_OP_LAYER_NORM:
        ls_nn_layer_norm_back_f32(d->n, d->a, x[0], w[0], t->kept, t->kept + d->n, dy, dx[0], dw[0], dw[1]);
        break;
    case LS_NN_OP_ACT:
        ls_nn_act_back_f32(s->act, d->n, x[0], dy, dx[0]);
        break;
    case LS_NN_OP_AVG_POOL:
        ls_nn_avg_pool_back_f32(b->pictures, b->rows, b->columns, d->c, d->a, dy, dx[0]);
        break;
    case LS_NN_OP_UNFOLD:
        ls_nn_unfold_back_f32(b->pictures, b->rows, b->columns, d->c, d->a, dy, dx[0]);
        break;
    case LS_NN_OP_PATCHES:
        if (dw[0])
            patches(t, temp);
        ls_nn_linear_back_f32(d->n, d->a, d->b, temp, w[0], dy, NULL, dw[0], dw[1]);
        break;
    case LS_NN_OP_ATTENTION:
        attention_back(t, x, y, temp);
        break;
    case LS_NN_OP_MUL:
        ls_nn_mul_back_f32(d->n, x[0], x[1], dy, dx[0], dx[1]);
        break;
    case LS_NN_OP_ADD:
        ls_nn_add_back_f32(d->n, dy, dx[0], dx[1]);
        break;
    case LS_NN_OP_MERGE:
    case LS_NN_OP_MERGE_ADD:
        ls_nn_merge_back_f32(d->n, d->a, s->recordings ? b->heard : b->marked, s->recordings ? b->audio_at : b->at, s->op == LS_NN_OP_MERGE_ADD, dy,
                             dx[0], dx[1]);
        break;
    case LS_NN_OP_CONV1D:
        conv1d_back(t, x[0], w[0], dy, temp);
        break;
    case LS_NN_OP_POOL1D:
        ls_nn_pool_rows_back_f32(d->n / (size_t)s->stride, (size_t)s->stride, d->a, dy, dx[0]);
        break;
    case LS_NN_OP_SINUSOIDS:
        ls_nn_add_back_f32(d->count, dy, dx[0], NULL);
        break;
    }
}

void ls_nn_fill_run(void *fill, struct ls_stream *stream)
{
    const struct ls_nn_fill *f = fill;
    (void)stream;
    ls_nn_batch_fill(&f->batch, f->sequence);
}

void ls_nn_task_run(void *task, struct ls_stream *stream)
{
    const struct ls_nn_task *t = task;
    const struct ls_nn_batch *b = &t->batch;
    float *temp = t->temp;
    (void)stream;
    switch (t->kind) {
    case LS_NN_TASK_ZERO:
        if (t->out.count)
            memset(t->out.at, 0, t->out.count * sizeof(float));
        break;
    case LS_NN_TASK_FORWARD:
        forward(t);
        break;
    case LS_NN_TASK_BACKWARD:
        backward(t);
        break;
    case LS_NN_TASK_LINK: {
        const float *x = as_float(&t->in[0], &temp), *was = as_float(&t->out, &temp);
        float *y = t->out.dtype == LS_DTYPE_F32 ? t->out.at : temp;
        if (was != y)
            memcpy(y, was, t->out.count * sizeof *y);
        ls_nn_link_zero_f32(t->out.count, t->in[0].count, x, y);
        store(&t->out, y);
        break;
    }
    case LS_NN_TASK_LINK_BACK:
        ls_nn_link_zero_back_f32(t->out.count, t->in[0].count, t->dout, t->din[0]);
        break;
    case LS_NN_TASK_LOSS: {
        double loss = ls_nn_cross_entropy_f32(t->dims.n, t->dims.a, as_float(&t->in[0], &temp), b->target, t->scale, t->kept);
        if (t->loss)
            *t->loss = loss;
        break;
    }
    case LS_NN_TASK_LOSS_BACK:
        ls_nn_cross_entropy_back_f32(t->dims.n, t->dims.a, as_float(&t->in[0], &temp), b->target, t->scale, t->kept, 1, t->din[0]);
        break;
    }
}
