#include "engine/nn/solo.h"

#include "base/vec.h"
#include "engine/nn/bf16.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A device that does everything at once. */
struct plain { struct ls_device d; struct ls_memory memory; };

static enum ls_code plain_alloc(struct ls_device *d, struct ls_stream *pool, uint64_t bytes, enum ls_category category, struct ls_storage **out,
                                struct ls_error *err)
{
    (void)pool;
    struct ls_storage *s = malloc(sizeof *s);
    void *at = aligned_alloc(64, (size_t)(bytes + 64) / 64 * 64);
    if (!s || !at) {
        free(s), free(at);
        return ls_fail(err, LS_EBACKEND, LS_NOWHERE, "%llu bytes of memory are not to be had", (unsigned long long)bytes);
    }
    *s = (struct ls_storage){ .at = at, .bytes = bytes, .category = (uint8_t)category, .refs = 1 };
    ls_memory_take(&((struct plain *)d)->memory, category, bytes);
    *out = s;
    return LS_OK;
}

static void plain_free(struct ls_device *d, struct ls_stream *pool, struct ls_storage *s)
{
    (void)pool;
    ls_memory_give(&((struct plain *)d)->memory, (enum ls_category)s->category, s->bytes);
    free(s->at);
    free(s);
}

static void plain_launch(struct ls_device *d, struct ls_stream *s, ls_launch_fn fn, const void *args, size_t args_bytes,
                         struct ls_storage *const *uses, size_t uses_count, int64_t tag)
{
    (void)d, (void)uses, (void)uses_count, (void)tag;
    void *copy = malloc(args_bytes); /* as other devices do, so that nobody relies on the original */
    if (!copy)
        ls_out_of_memory(args_bytes);
    memcpy(copy, args, args_bytes);
    fn(copy, s);
    free(copy);
}

static void plain_move(struct ls_device *d, struct ls_stream *s, const struct ls_move *move, size_t count, int64_t tag)
{
    (void)d, (void)s, (void)tag;
    ls_move_run(move, count);
}

static const struct ls_device_ops plain_ops = { .name = "plain", .host_memory = true, .alloc = plain_alloc, .free = plain_free, .launch = plain_launch,
                                                .move = plain_move };

struct ls_nn_solo {
    struct plain device;
    struct ls_nn_solo_options o;
    bool *trains;
    struct ls_nn_exec *exec;
    struct ls_storage **master, **used, **grad, **mean, **square; /* [params]; used: in the compute dtype, the master itself if that is float;
                                                                      grad: NULL while there is none */
    uint64_t steps;
    size_t params;
};

static struct ls_storage *keep(struct ls_nn_solo *s, uint64_t count, enum ls_dtype dtype, enum ls_category category)
{
    struct ls_storage *out;
    if (plain_alloc(&s->device.d, NULL, count * ls_dtype_bytes(dtype), category, &out, NULL) != LS_OK)
        ls_out_of_memory((size_t)count);
    memset(out->at, 0, (size_t)(count * ls_dtype_bytes(dtype)));
    return out;
}

static uint64_t elements(const struct ls_nn_solo *s, uint32_t param)
{
    return s->o.vlm->model->param[param].elements;
}

static void publish(struct ls_nn_solo *s, uint32_t param)
{
    if (s->used[param] == s->master[param])
        return;
    for (uint64_t i = 0; i < elements(s, param); i++)
        ((uint16_t *)s->used[param]->at)[i] = ls_bf16_of(((const float *)s->master[param]->at)[i]);
}

static struct ls_tensor solo_full(void *context, uint32_t param)
{
    struct ls_nn_solo *s = context;
    return (struct ls_tensor){ s->used[param], 0, elements(s, param), s->o.compute };
}

static enum ls_code solo_grad(void *context, uint32_t param, struct ls_tensor *out, struct ls_error *err)
{
    struct ls_nn_solo *s = context;
    (void)err;
    if (!s->grad[param])
        s->grad[param] = keep(s, elements(s, param), LS_DTYPE_F32, LS_CATEGORY_GRADIENT);
    *out = (struct ls_tensor){ s->grad[param], 0, elements(s, param), LS_DTYPE_F32 };
    return LS_OK;
}

static bool solo_give(void *context, uint32_t param, struct ls_storage *sum)
{
    struct ls_nn_solo *s = context;
    if (s->grad[param])
        return false;
    ls_memory_give(&s->device.memory, (enum ls_category)sum->category, sum->bytes);
    ls_memory_take(&s->device.memory, LS_CATEGORY_GRADIENT, sum->bytes);
    sum->category = LS_CATEGORY_GRADIENT;
    s->grad[param] = sum;
    return true;
}

enum ls_code ls_nn_solo_open(struct ls_nn_solo **out, const struct ls_nn_solo_options *o, struct ls_error *err)
{
    size_t n = o->vlm->model->params;
    struct ls_nn_solo *s = calloc(1, sizeof *s);
    struct ls_storage **all = calloc(5 * n + 1, sizeof *all);
    bool *flags = calloc(n + 1, sizeof *flags);
    *out = NULL;
    if (!s || !all || !flags)
        ls_out_of_memory(sizeof *s);
    s->device.d.ops = &plain_ops;
    s->o = *o, s->params = n;
    s->master = all, s->used = all + n, s->grad = all + 2 * n, s->mean = all + 3 * n, s->square = all + 4 * n;
    s->trains = flags;
    for (uint32_t i = 0; i < n; i++) {
        if (o->vlm->model->param[i].canonical != i)
            continue;
        s->trains[i] = !o->trains || o->trains[i];
        s->master[i] = keep(s, elements(s, i), LS_DTYPE_F32, LS_CATEGORY_SHARDED);
        s->used[i] = o->compute == LS_DTYPE_F32 ? s->master[i] : keep(s, elements(s, i), o->compute, LS_CATEGORY_UNSHARDED);
        ls_nn_init_param(o->vlm, i, o->seed, 0, elements(s, i), s->master[i]->at);
        publish(s, i);
        if (!s->trains[i])
            continue;
        s->mean[i] = keep(s, elements(s, i), LS_DTYPE_F32, LS_CATEGORY_OPTIMIZER);
        s->square[i] = keep(s, elements(s, i), LS_DTYPE_F32, LS_CATEGORY_OPTIMIZER);
    }
    struct ls_nn_source source = { s, solo_full, solo_grad, solo_give };
    enum ls_code rc = ls_nn_exec_open(&s->exec, o->vlm, &s->device.d, s->trains, o->compute, &source, err);
    *out = s;
    if (rc != LS_OK) {
        ls_nn_solo_close(s);
        *out = NULL;
    }
    return rc;
}

void ls_nn_solo_close(struct ls_nn_solo *s)
{
    if (!s)
        return;
    ls_nn_exec_close(s->exec);
    for (size_t i = 0; i < s->params; i++) {
        if (s->used[i] && s->used[i] != s->master[i])
            plain_free(&s->device.d, NULL, s->used[i]);
        struct ls_storage *rest[] = { s->master[i], s->grad[i], s->mean[i], s->square[i] };
        for (size_t k = 0; k < sizeof rest / sizeof *rest; k++)
            if (rest[k])
                plain_free(&s->device.d, NULL, rest[k]);
    }
    free(s->master);
    free(s->trains);
    free(s);
}

/* --- the walk over the flow ------------------------------------------------------------------------------------------ */

struct bound { uint32_t name, instance; bool grad; }; /* instance LS_NO_ID: an input of the flow */
typedef LS_VEC(struct bound) scope;
struct ran { uint32_t statement, link, links; bool grad, reached; };
struct walk {
    const struct ls_nn_solo *s;
    bool images, audios, no_grad;
    LS_VEC(struct ran) ran;             /* by instance */
    LS_VEC(struct ls_link) link;
    LS_VEC(struct ls_kernel) kernel;
};

static const struct bound *find(const scope *in, uint32_t name)
{
    for (size_t i = 0; i < in->count; i++)
        if (in->at[i].name == name)
            return &in->at[i];
    return NULL;
}

static void bind(scope *in, struct bound b)
{
    for (size_t i = 0; i < in->count; i++)
        if (in->at[i].name == b.name) {
            in->at[i] = b;
            return;
        }
    ls_push(in, b);
}

static bool holds(const struct walk *w, uint64_t conditions)
{
    const struct ls_model *m = w->s->o.vlm->model;
    for (size_t i = 0; i < m->conditions; i++)
        if ((conditions >> i & 1) && ((w->images && strcmp(ls_name_text(m->names, m->condition[i].name), "image") == 0) ||
                                      (w->audios && strcmp(ls_name_text(m->names, m->condition[i].name), "audio") == 0)))
            return true;
    return false;
}

static void walk_body(struct walk *w, scope *in, const struct ls_flow *body, size_t count);

static void walk_operation(struct walk *w, scope *in, const struct ls_flow *f)
{
    struct ran r = { .statement = f->id, .link = (uint32_t)w->link.count, .links = (uint32_t)f->ins };
    for (size_t i = 0; i < f->ins; i++) {
        const struct bound *b = find(in, f->in[i]);
        ls_push(&w->link, (struct ls_link){ b ? b->instance : LS_ABSENT, b && b->instance != LS_NO_ID ? 0 : f->in[i] });
        r.grad |= b && b->grad;
    }
    for (size_t i = 0; i < f->params; i++)
        r.grad |= w->s->trains[f->param[i]];
    r.grad = r.grad && !w->no_grad && !f->no_grad;
    uint32_t instance = (uint32_t)w->ran.count;
    ls_push(&w->ran, r);
    ls_push(&w->kernel, (struct ls_kernel){ .what = LS_KERNEL_FORWARD, .statement = f->id, .instance = instance, .link = r.link, .links = r.links });
    for (size_t i = 0; i < f->outs; i++)
        bind(in, (struct bound){ f->out[i], instance, r.grad && !f->detach });
}

static void walk_call(struct walk *w, scope *in, const struct ls_flow *f)
{
    scope inner = { 0 };
    bool no_grad = w->no_grad;
    for (size_t i = 0; i < f->ins; i++) {
        const struct bound *b = find(in, f->in[i]);
        if (b)
            bind(&inner, *b);
    }
    w->no_grad |= f->no_grad;
    walk_body(w, &inner, f->body, f->count);
    w->no_grad = no_grad;
    for (size_t i = 0; i < f->outs; i++) {
        const struct bound *b = find(&inner, f->out[i]);
        if (b)
            bind(in, *b);
    }
    ls_vec_release(&inner);
}

static void walk_body(struct walk *w, scope *in, const struct ls_flow *body, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const struct ls_flow *f = &body[i];
        if (f->kind == LS_FLOW_WHEN) {
            if (f->unless ? !holds(w, f->unless) : holds(w, f->when))
                walk_body(w, in, f->body, f->count);
        } else if (f->kind == LS_FLOW_CALL && !f->leaf) {
            walk_call(w, in, f);
        } else {
            walk_operation(w, in, f);
        }
    }
}

static void walk_back(struct walk *w, const struct bound *loss)
{
    if (!loss || !loss->grad)
        return;
    ls_push(&w->kernel, (struct ls_kernel){ .what = LS_KERNEL_LOSS_BACKWARD, .instance = LS_NO_ID });
    w->ran.at[loss->instance].reached = true;
    for (size_t i = w->ran.count; i-- > 0;) {
        struct ran r = w->ran.at[i];
        if (!r.reached || !r.grad)
            continue;
        ls_push(&w->kernel, (struct ls_kernel){ .what = LS_KERNEL_BACKWARD, .statement = r.statement, .instance = (uint32_t)i });
        for (uint32_t k = r.link; k < r.link + r.links; k++)
            if (w->link.at[k].instance < LS_ABSENT)
                w->ran.at[w->link.at[k].instance].reached = true;
    }
    const struct ls_nn_vlm *v = w->s->o.vlm;
    bool *due = calloc(v->model->params + 1, sizeof *due);
    if (!due)
        ls_out_of_memory(v->model->params);
    for (size_t i = 0; i < w->ran.count; i++)
        for (size_t k = 0; k < LS_NN_PARAMS_MAX && w->ran.at[i].reached && w->ran.at[i].grad; k++)
            if (v->statement[w->ran.at[i].statement].param[k] != LS_NO_ID)
                due[v->statement[w->ran.at[i].statement].param[k]] = true;
    for (uint32_t i = 0; i < v->model->params; i++)
        if (due[i] && w->s->trains[i])
            ls_push(&w->kernel, (struct ls_kernel){ .what = LS_KERNEL_ACCUMULATE, .statement = i, .instance = LS_NO_ID });
    free(due);
}

enum ls_code ls_nn_solo_microbatch(struct ls_nn_solo *s, const struct ls_nn_sequence *sequence, size_t sequences, double scale, double *loss,
                                   struct ls_error *err)
{
    const struct ls_model *m = s->o.vlm->model;
    struct walk w = { .s = s };
    scope top = { 0 };
    for (size_t i = 0; i < sequences; i++)
        w.images |= sequence[i].images > 0, w.audios |= sequence[i].audios > 0;
    for (size_t i = 0; i < m->flow.ins; i++)
        bind(&top, (struct bound){ m->flow.in[i], LS_NO_ID, false });
    walk_call(&w, &top, &m->flow);
    const struct bound *scores = find(&top, s->o.vlm->logits);
    if (scores) {
        ls_push(&w.link, (struct ls_link){ scores->instance, 0 });
        ls_push(&w.kernel, (struct ls_kernel){ .what = LS_KERNEL_LOSS, .instance = LS_NO_ID, .link = (uint32_t)w.link.count - 1, .links = 1 });
    }
    walk_back(&w, scores);
    const struct ls_kernel **list = calloc(w.kernel.count + 1, sizeof *list);
    if (!list)
        ls_out_of_memory(w.kernel.count);
    for (size_t i = 0; i < w.kernel.count; i++)
        list[i] = &w.kernel.at[i];
    struct ls_nn_round round = { sequence, sequences, list, w.kernel.count, w.link.at, scale, loss };
    enum ls_code rc = ls_nn_exec_round(s->exec, NULL, &round, err);
    for (size_t i = 0; i < w.kernel.count && rc == LS_OK; i++)
        rc = ls_nn_exec_kernel(s->exec, NULL, list[i], err);
    struct ls_nn_round none = { 0 };
    if (rc == LS_OK)
        rc = ls_nn_exec_round(s->exec, NULL, &none, err); /* gives everything back while the kernels still exist */
    free(list);
    ls_vec_release(&w.kernel);
    ls_vec_release(&w.ran);
    ls_vec_release(&w.link);
    ls_vec_release(&top);
    return rc;
}

static struct ls_tensor gradient(const struct ls_nn_solo *s, uint32_t param)
{
    return (struct ls_tensor){ s->grad[param], 0, elements(s, param), LS_DTYPE_F32 };
}

double ls_nn_solo_update(struct ls_nn_solo *s)
{
    double square = 0;
    for (uint32_t i = 0; i < s->params; i++)
        square += ls_nn_square_sum(gradient(s, i));
    double norm = sqrt(square), factor = ls_nn_clip_factor(&s->o.adamw, norm);
    s->steps++;
    for (uint32_t i = 0; i < s->params; i++) {
        if (!s->trains[i] || !s->grad[i])
            continue;
        ls_nn_adamw_step(&s->o.adamw, s->steps, factor, gradient(s, i), s->master[i]->at, s->mean[i]->at, s->square[i]->at);
        plain_free(&s->device.d, NULL, s->grad[i]);
        s->grad[i] = NULL;
        publish(s, i);
    }
    return norm;
}

float *ls_nn_solo_param(struct ls_nn_solo *s, uint32_t param) { return s->master[s->o.vlm->model->param[param].canonical]->at; }

const float *ls_nn_solo_grad(const struct ls_nn_solo *s, uint32_t param)
{
    uint32_t at = s->o.vlm->model->param[param].canonical;
    return s->grad[at] ? s->grad[at]->at : NULL;
}

const struct ls_memory *ls_nn_solo_memory(const struct ls_nn_solo *s) { return &s->device.memory; }
