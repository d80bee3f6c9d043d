#include "engine/nn/exec.h"

#include "base/vec.h"
#include "engine/nn/task.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define NEVER SIZE_MAX
/* Links that are no value of the round. */
#define INPUT_FLOW 0xfffffffdu
#define INPUT_ABSENT 0xfffffffcu

/* One run of a statement; a recomputation is another one of the same instance. */
struct made {
    const struct ls_nn_statement *statement;
    const struct ls_kernel *kernel;
    uint32_t instance;
    size_t last, kept_last;       /* the kernels after which its output and what it kept are given back; NEVER: not kept */
    struct ls_storage *out, *kept;
    struct ls_nn_dims dims;
};
/* One kernel of the round: what it makes or differentiates, and what its links stand for. */
struct step { uint32_t made, input, inputs; };

struct ls_nn_exec {
    const struct ls_nn_vlm *vlm;
    struct ls_device *device;
    const bool *trains;
    enum ls_dtype activation;
    struct ls_nn_source source;

    struct ls_nn_round round;
    struct ls_nn_batch batch;
    struct ls_storage *batch_storage;
    size_t next;                  /* kernel of the round */
    LS_VEC(struct made) made;
    LS_VEC(struct step) step;
    LS_VEC(uint32_t) input;       /* indices into made, or INPUT_* */
    uint32_t *dies, *dies_next, *kept_dies, *kept_dies_next; /* lists of what ends with a kernel: [kernels], [made] */
    uint32_t *current;            /* [instances] made, LS_NO_ID */
    bool *differentiated;         /* [instances] a BACKWARD follows */
    struct ls_storage **grad;     /* [instances] */
    size_t instances;
    struct ls_storage **param_grad; /* [params of the model] */
    struct ls_storage *loss_kept;
    uint32_t logits;              /* made that the loss reads */
    struct ls_stream *stream;     /* of the open round */
};

enum ls_code ls_nn_exec_open(struct ls_nn_exec **out, const struct ls_nn_vlm *vlm, struct ls_device *device, const bool *trains,
                             enum ls_dtype activation, const struct ls_nn_source *source, struct ls_error *err)
{
    *out = NULL;
    if (activation != LS_DTYPE_F32 && activation != LS_DTYPE_BF16)
        return ls_fail(err, LS_EINPUT, vlm->model->flow.at, "activations in %s are not supported: f32 and bf16 are", ls_dtype_name(activation));
    ls_nn_init();
    struct ls_nn_exec *e = calloc(1, sizeof *e);
    if (!e || !(e->param_grad = calloc(vlm->model->params + 1, sizeof *e->param_grad)))
        ls_out_of_memory(sizeof *e);
    e->vlm = vlm, e->device = device, e->trains = trains, e->activation = activation, e->source = *source;
    *out = e;
    return LS_OK;
}

static void give_back(struct ls_nn_exec *e, struct ls_storage **s)
{
    if (*s)
        e->device->ops->free(e->device, e->stream, *s);
    *s = NULL;
}

static void end_round(struct ls_nn_exec *e)
{
    for (size_t i = 0; i < e->made.count; i++) {
        give_back(e, &e->made.at[i].out);
        give_back(e, &e->made.at[i].kept);
    }
    for (size_t i = 0; i < e->instances; i++)
        give_back(e, &e->grad[i]);
    for (size_t i = 0; i < e->vlm->model->params; i++)
        give_back(e, &e->param_grad[i]);
    give_back(e, &e->loss_kept);
    give_back(e, &e->batch_storage);
    e->made.count = e->step.count = e->input.count = e->instances = e->next = 0;
    free(e->dies), free(e->dies_next), free(e->kept_dies), free(e->kept_dies_next), free(e->current), free(e->differentiated), free(e->grad);
    e->dies = e->dies_next = e->kept_dies = e->kept_dies_next = e->current = NULL;
    e->differentiated = NULL, e->grad = NULL;
    e->logits = LS_NO_ID;
}

void ls_nn_exec_close(struct ls_nn_exec *e)
{
    if (!e)
        return;
    end_round(e);
    ls_vec_release(&e->made);
    ls_vec_release(&e->step);
    ls_vec_release(&e->input);
    free(e->param_grad);
    free(e);
}

static void *array(size_t count, size_t bytes)
{
    void *at = calloc(count + 1, bytes);
    if (!at)
        ls_out_of_memory(count * bytes);
    return at;
}

/* --- before the round: what reads what, and for how long -------------------------------------------------------------- */

static void reads(struct ls_nn_exec *e, uint32_t made, size_t kernel)
{
    if (made < INPUT_ABSENT)
        e->made.at[made].last = kernel; /* kernels come in order, so the latest is the last */
}

/* What the links of a kernel stand for at this point of the round. */
static void link_inputs(struct ls_nn_exec *e, const struct ls_kernel *k, struct step *s)
{
    s->input = (uint32_t)e->input.count, s->inputs = k->links;
    for (uint32_t i = 0; i < k->links; i++) {
        struct ls_link l = e->round.link[k->link + i];
        uint32_t made = l.instance == LS_NO_ID ? INPUT_FLOW : l.instance == LS_ABSENT ? INPUT_ABSENT : e->current[l.instance];
        ls_push(&e->input, made);
    }
}

static bool known(const struct ls_nn_exec *e, const struct ls_kernel *k)
{
    return k->statement > 0 && k->statement < e->vlm->statements && e->vlm->statement[k->statement].flow;
}

static enum ls_code look_over(struct ls_nn_exec *e, struct ls_error *err)
{
    struct ls_loc at = e->vlm->model->flow.at;
    for (size_t i = 0; i < e->round.kernels; i++) {
        const struct ls_kernel *k = e->round.kernel[i];
        if (k->instance < LS_ABSENT && k->instance + 1u > e->instances)
            e->instances = k->instance + 1u;
    }
    e->current = array(e->instances, sizeof *e->current);
    e->differentiated = array(e->instances, sizeof *e->differentiated);
    e->grad = array(e->instances, sizeof *e->grad);
    memset(e->current, 0xff, e->instances * sizeof *e->current);
    for (size_t i = 0; i < e->round.kernels; i++) {
        const struct ls_kernel *k = e->round.kernel[i];
        struct step s = { .made = LS_NO_ID };
        switch ((enum ls_kernel_what)k->what) {
        case LS_KERNEL_FORWARD:
        case LS_KERNEL_RECOMPUTE: {
            if (!known(e, k) || k->instance >= e->instances)
                return ls_fail(err, LS_EINPUT, at, "kernel %zu of the round runs statement %u, which is no operation", i, k->statement);
            link_inputs(e, k, &s);
            for (uint32_t in = s.input; in < s.input + s.inputs; in++) {
                if (e->input.at[in] == LS_NO_ID)
                    return ls_fail(err, LS_EINPUT, at, "kernel %zu of the round reads a value that nothing made", i);
                reads(e, e->input.at[in], i);
            }
            s.made = (uint32_t)e->made.count;
            ls_push(&e->made, (struct made){ .statement = &e->vlm->statement[k->statement], .kernel = k, .instance = k->instance, .last = i,
                                             .kept_last = NEVER });
            e->current[k->instance] = s.made;
            break;
        }
        case LS_KERNEL_LOSS:
            link_inputs(e, k, &s);
            if (s.inputs != 1 || e->input.at[s.input] >= INPUT_ABSENT)
                return ls_fail(err, LS_EINPUT, at, "the loss does not read one value of the round");
            e->logits = e->input.at[s.input];
            reads(e, e->logits, i);
            break;
        case LS_KERNEL_LOSS_BACKWARD:
            if (e->logits == LS_NO_ID)
                return ls_fail(err, LS_EINPUT, at, "kernel %zu of the round differentiates a loss that it does not compute", i);
            reads(e, e->logits, i);
            break;
        case LS_KERNEL_BACKWARD: {
            if (k->instance >= e->instances || e->current[k->instance] == LS_NO_ID)
                return ls_fail(err, LS_EINPUT, at, "kernel %zu of the round differentiates what did not run", i);
            s.made = e->current[k->instance];
            struct made *m = &e->made.at[s.made];
            link_inputs(e, m->kernel, &s);
            m->kept_last = i;
            if (ls_nn_backward_reads_output(m->statement))
                reads(e, s.made, i);
            if (ls_nn_backward_reads_inputs(m->statement, e->trains))
                for (uint32_t in = s.input; in < s.input + s.inputs; in++)
                    reads(e, e->input.at[in], i);
            e->differentiated[k->instance] = true;
            break;
        }
        case LS_KERNEL_ACCUMULATE:
            if (k->statement >= e->vlm->model->params)
                return ls_fail(err, LS_EINPUT, at, "kernel %zu of the round accumulates parameter %u of %zu", i, k->statement, e->vlm->model->params);
            break;
        case LS_KERNEL_OPTIMIZER:
        case LS_KERNEL_LEFT_OUT:
            break;
        }
        ls_push(&e->step, s);
    }
    e->dies = array(e->round.kernels, sizeof *e->dies), e->kept_dies = array(e->round.kernels, sizeof *e->kept_dies);
    e->dies_next = array(e->made.count, sizeof *e->dies_next), e->kept_dies_next = array(e->made.count, sizeof *e->kept_dies_next);
    memset(e->dies, 0xff, e->round.kernels * sizeof *e->dies);
    memset(e->kept_dies, 0xff, e->round.kernels * sizeof *e->kept_dies);
    for (uint32_t m = 0; m < e->made.count; m++) {
        struct made *v = &e->made.at[m];
        e->dies_next[m] = e->dies[v->last], e->dies[v->last] = m;
        if (v->kept_last != NEVER)
            e->kept_dies_next[m] = e->kept_dies[v->kept_last], e->kept_dies[v->kept_last] = m;
    }
    return LS_OK;
}

/* --- work ------------------------------------------------------------------------------------------------------------ */

enum { USES_MAX = 24 };
struct work { struct ls_nn_task task; struct ls_storage *uses[USES_MAX]; size_t count; };

static void uses(struct work *w, struct ls_storage *s)
{
    if (!s)
        return;
    assert(w->count < USES_MAX);
    w->uses[w->count++] = s;
}

static struct work work_of(struct ls_nn_exec *e, enum ls_nn_task_kind kind)
{
    struct work w = { .task = { .kind = kind, .batch = e->batch } };
    uses(&w, e->batch_storage);
    return w;
}

static void launch(struct ls_nn_exec *e, struct ls_stream *s, const struct work *w)
{
    e->device->ops->launch(e->device, s, ls_nn_task_run, &w->task, sizeof w->task, w->uses, w->count, LS_NO_TAG);
}

static enum ls_code take(struct ls_nn_exec *e, struct ls_stream *s, uint64_t bytes, enum ls_category category, struct ls_storage **out,
                         struct ls_error *err)
{
    return e->device->ops->alloc(e->device, s, bytes, category, out, err);
}

static void zero(struct ls_nn_exec *e, struct ls_stream *s, struct ls_storage *what, size_t floats)
{
    struct work w = { .task = { .kind = LS_NN_TASK_ZERO, .out = { what->at, LS_DTYPE_F32, floats } } };
    uses(&w, what);
    launch(e, s, &w);
}

static enum ls_code zeroed(struct ls_nn_exec *e, struct ls_stream *s, size_t floats, enum ls_category category, struct ls_storage **out,
                           struct ls_error *err)
{
    enum ls_code rc = *out ? LS_OK : take(e, s, floats * sizeof(float), category, out, err);
    if (rc == LS_OK)
        zero(e, s, *out, floats);
    return rc;
}

static struct ls_nn_view out_view(const struct ls_nn_exec *e, const struct made *m)
{
    return (struct ls_nn_view){ m->out ? m->out->at : NULL, e->activation, m->dims.count };
}

/* The gradient of an input, if its backward will read one. */
static enum ls_code wanted(struct ls_nn_exec *e, struct ls_stream *s, uint32_t input, float **at, struct work *w, struct ls_error *err)
{
    *at = NULL;
    if (input >= INPUT_ABSENT)
        return LS_OK;
    const struct made *m = &e->made.at[input];
    if (!e->differentiated[m->instance] || m->statement->flow->detach)
        return LS_OK;
    enum ls_code rc = e->grad[m->instance] ? LS_OK : zeroed(e, s, m->dims.count, LS_CATEGORY_TEMPORARY, &e->grad[m->instance], err);
    if (rc == LS_OK) {
        *at = e->grad[m->instance]->at;
        uses(w, e->grad[m->instance]);
    }
    return rc;
}

static enum ls_code bind_params(struct ls_nn_exec *e, const struct ls_nn_statement *st, struct work *w, struct ls_error *err)
{
    for (size_t i = 0; i < LS_NN_PARAMS_MAX; i++) {
        if (st->param[i] == LS_NO_ID)
            continue;
        const struct ls_param *p = &e->vlm->model->param[st->param[i]];
        struct ls_tensor t = e->source.full(e->source.context, st->param[i]);
        if (!t.of || t.elements < p->elements)
            return ls_fail(err, LS_EBACKEND, st->flow->at, "'%.120s' is used while it is not gathered", ls_name_text(e->vlm->model->names, p->name));
        if (t.dtype != LS_DTYPE_F32 && t.dtype != LS_DTYPE_BF16)
            return ls_fail(err, LS_EINPUT, p->at, "'%.120s' is computed in %s: f32 and bf16 are supported", ls_name_text(e->vlm->model->names, p->name),
                           ls_dtype_name(t.dtype));
        w->task.w[i] = (struct ls_nn_view){ (char *)t.of->at + t.offset_bytes, t.dtype, (size_t)p->elements };
        uses(w, t.of);
    }
    return LS_OK;
}

/* Memory that only this piece of work uses: given back at once, in stream order. */
static enum ls_code with_temp(struct ls_nn_exec *e, struct ls_stream *s, struct work *w, size_t floats, struct ls_error *err)
{
    struct ls_storage *temp = NULL;
    /* Pieces are rounded up to 16 floats each. */
    floats += 16 * 8;
    floats += ls_nn_convert_temp(&w->task.out);
    for (size_t i = 0; i < LS_NN_INS_MAX; i++)
        floats += ls_nn_convert_temp(&w->task.in[i]);
    for (size_t i = 0; i < LS_NN_PARAMS_MAX; i++)
        floats += ls_nn_convert_temp(&w->task.w[i]);
    enum ls_code rc = take(e, s, floats * sizeof(float), LS_CATEGORY_TEMPORARY, &temp, err);
    if (rc != LS_OK)
        return rc;
    w->task.temp = temp->at;
    uses(w, temp);
    launch(e, s, w);
    give_back(e, &temp);
    return LS_OK;
}

static enum ls_code run_forward(struct ls_nn_exec *e, struct ls_stream *s, const struct step *step, struct ls_error *err)
{
    struct made *m = &e->made.at[step->made];
    const struct ls_nn_statement *st = m->statement;
    struct work w = work_of(e, LS_NN_TASK_FORWARD);
    size_t own = st->flow->ins, in[LS_NN_INS_MAX] = { 0 };
    for (size_t i = 0; i < own && i < LS_NN_INS_MAX; i++) {
        uint32_t input = e->input.at[step->input + i];
        if (input == INPUT_FLOW)
            continue;
        if (input == INPUT_ABSENT)
            return ls_fail(err, LS_EINPUT, st->flow->at, "statement %u reads '%.80s', which is absent in this round", st->flow->id,
                           ls_name_text(e->vlm->model->names, st->flow->in[i]));
        w.task.in[i] = out_view(e, &e->made.at[input]);
        in[i] = w.task.in[i].count;
        uses(&w, e->made.at[input].out);
    }
    enum ls_code rc = ls_nn_dims_of(e->vlm, st, &e->batch, in, &m->dims, err);
    if (rc == LS_OK)
        rc = bind_params(e, st, &w, err);
    if (rc == LS_OK)
        rc = take(e, s, m->dims.count * ls_dtype_bytes(e->activation), LS_CATEGORY_ACTIVATION, &m->out, err);
    if (rc == LS_OK && m->dims.kept)
        rc = take(e, s, m->dims.kept * sizeof(float), LS_CATEGORY_ACTIVATION, &m->kept, err);
    if (rc != LS_OK)
        return rc;
    uses(&w, m->out);
    uses(&w, m->kept);
    w.task.statement = st, w.task.dims = m->dims, w.task.out = out_view(e, m), w.task.kept = m->kept ? m->kept->at : NULL;
    w.task.scale = m->dims.c ? e->vlm->lora_alpha / (double)m->dims.c : 0;
    rc = with_temp(e, s, &w, m->dims.temp, err);
    if (m->kept_last == NEVER)
        give_back(e, &m->kept);
    for (uint32_t i = (uint32_t)own; i < step->inputs && rc == LS_OK; i++) {
        uint32_t input = e->input.at[step->input + i];
        if (input >= INPUT_ABSENT)
            continue;
        struct work link = work_of(e, LS_NN_TASK_LINK);
        link.task.in[0] = out_view(e, &e->made.at[input]), link.task.out = out_view(e, m);
        uses(&link, e->made.at[input].out);
        uses(&link, m->out);
        rc = with_temp(e, s, &link, e->activation == LS_DTYPE_F32 ? 0 : m->dims.count, err);
    }
    return rc;
}

static enum ls_code run_backward(struct ls_nn_exec *e, struct ls_stream *s, const struct step *step, struct ls_error *err)
{
    struct made *m = &e->made.at[step->made];
    const struct ls_nn_statement *st = m->statement;
    struct work w = work_of(e, LS_NN_TASK_BACKWARD);
    enum ls_code rc = bind_params(e, st, &w, err);
    if (rc == LS_OK && !e->grad[m->instance])
        rc = zeroed(e, s, m->dims.count, LS_CATEGORY_TEMPORARY, &e->grad[m->instance], err);
    if (rc != LS_OK)
        return rc;
    uses(&w, e->grad[m->instance]);
    w.task.dout = e->grad[m->instance]->at;
    size_t own = st->flow->ins;
    for (size_t i = 0; i < own && rc == LS_OK; i++) {
        uint32_t input = e->input.at[step->input + i];
        if (ls_nn_backward_reads_inputs(st, e->trains) && input < INPUT_ABSENT) {
            w.task.in[i] = out_view(e, &e->made.at[input]);
            uses(&w, e->made.at[input].out);
        }
        rc = wanted(e, s, input, &w.task.din[i], &w, err);
    }
    for (size_t i = 0; i < LS_NN_PARAMS_MAX && rc == LS_OK; i++) {
        uint32_t p = st->param[i];
        if (p == LS_NO_ID || !e->trains[p])
            continue;
        if (!e->param_grad[p])
            rc = zeroed(e, s, (size_t)e->vlm->model->param[p].elements, LS_CATEGORY_TEMPORARY, &e->param_grad[p], err);
        if (rc == LS_OK) {
            w.task.dw[i] = e->param_grad[p]->at;
            uses(&w, e->param_grad[p]);
        }
    }
    if (rc != LS_OK)
        return rc;
    if (ls_nn_backward_reads_output(st)) {
        w.task.out = out_view(e, m);
        uses(&w, m->out);
    }
    uses(&w, m->kept);
    w.task.statement = st, w.task.dims = m->dims, w.task.kept = m->kept ? m->kept->at : NULL;
    w.task.scale = m->dims.c ? e->vlm->lora_alpha / (double)m->dims.c : 0;
    rc = with_temp(e, s, &w, m->dims.temp_back, err);
    for (uint32_t i = (uint32_t)own; i < step->inputs && rc == LS_OK; i++) {
        uint32_t input = e->input.at[step->input + i];
        struct work link = work_of(e, LS_NN_TASK_LINK_BACK);
        rc = wanted(e, s, input, &link.task.din[0], &link, err);
        if (rc != LS_OK || !link.task.din[0])
            continue;
        link.task.dout = e->grad[m->instance]->at, link.task.out.count = m->dims.count, link.task.in[0].count = e->made.at[input].dims.count;
        uses(&link, e->grad[m->instance]);
        launch(e, s, &link);
    }
    give_back(e, &e->grad[m->instance]);
    return rc;
}

static enum ls_code run_loss(struct ls_nn_exec *e, struct ls_stream *s, bool back, struct ls_error *err)
{
    const struct made *m = &e->made.at[e->logits];
    struct work w = work_of(e, back ? LS_NN_TASK_LOSS_BACK : LS_NN_TASK_LOSS);
    size_t n = e->batch.tokens, vocab = n ? m->dims.count / n : 0;
    if (n && (m->dims.count % n || vocab < e->vlm->vocab))
        return ls_fail(err, LS_EINPUT, m->statement->flow->at, "the loss reads %zu elements, which are not scores of %zu tokens over %zu words",
                       m->dims.count, n, (size_t)e->vlm->vocab);
    enum ls_code rc = e->loss_kept ? LS_OK : take(e, s, (n + 1) * sizeof(float), LS_CATEGORY_ACTIVATION, &e->loss_kept, err);
    if (rc == LS_OK && back)
        rc = wanted(e, s, e->logits, &w.task.din[0], &w, err);
    if (rc != LS_OK || (back && !w.task.din[0]))
        return rc;
    w.task.in[0] = out_view(e, m), w.task.dims.n = n, w.task.dims.a = vocab, w.task.kept = e->loss_kept->at;
    w.task.scale = e->round.loss_scale, w.task.loss = e->round.loss;
    uses(&w, m->out);
    uses(&w, e->loss_kept);
    return with_temp(e, s, &w, 0, err);
}

static enum ls_code run_accumulate(struct ls_nn_exec *e, struct ls_stream *s, uint32_t param, struct ls_error *err)
{
    struct ls_tensor to;
    if (e->param_grad[param] && e->source.give && e->source.give(e->source.context, param, e->param_grad[param])) {
        e->param_grad[param] = NULL;
        return LS_OK;
    }
    enum ls_code rc = e->source.grad(e->source.context, param, &to, err);
    if (rc != LS_OK || !e->param_grad[param])
        return rc;
    uint64_t count = e->vlm->model->param[param].elements;
    assert(to.elements >= count);
    to.elements = count;
    struct ls_move move = { to, { e->param_grad[param], 0, count, LS_DTYPE_F32 }, true };
    e->device->ops->move(e->device, s, &move, 1, LS_NO_TAG);
    give_back(e, &e->param_grad[param]);
    return LS_OK;
}

enum ls_code ls_nn_exec_round(struct ls_nn_exec *e, struct ls_stream *s, const struct ls_nn_round *round, struct ls_error *err)
{
    end_round(e);
    e->stream = s;
    e->round = *round;
    enum ls_code rc = look_over(e, err);
    if (rc != LS_OK || !round->sequences)
        return rc;
    size_t bytes = ls_nn_batch_measure(&e->batch, e->vlm, round->sequence, round->sequences);
    rc = take(e, s, bytes, LS_CATEGORY_ACTIVATION, &e->batch_storage, err);
    if (rc != LS_OK)
        return rc;
    ls_nn_batch_place(&e->batch, e->batch_storage->at);
    size_t list = round->sequences * sizeof *round->sequence;
    struct ls_nn_fill *fill = calloc(1, sizeof *fill + list);
    if (!fill)
        ls_out_of_memory(sizeof *fill + list);
    fill->batch = e->batch;
    memcpy(fill->sequence, round->sequence, list);
    e->device->ops->launch(e->device, s, ls_nn_fill_run, fill, sizeof *fill + list, &e->batch_storage, 1, LS_NO_TAG);
    free(fill);
    return LS_OK;
}

enum ls_code ls_nn_exec_kernel(struct ls_nn_exec *e, struct ls_stream *s, const struct ls_kernel *kernel, struct ls_error *err)
{
    if (e->next >= e->round.kernels || e->round.kernel[e->next] != kernel)
        return ls_fail(err, LS_EBACKEND, e->vlm->model->flow.at, "kernels come in another order than the round says (kernel %zu of %zu)", e->next,
                       e->round.kernels);
    assert(e->stream == s && "one stream computes");
    size_t at = e->next++;
    struct step step = e->step.at[at];
    enum ls_code rc = LS_OK;
    switch ((enum ls_kernel_what)kernel->what) {
    case LS_KERNEL_FORWARD:
    case LS_KERNEL_RECOMPUTE:
        rc = run_forward(e, s, &step, err);
        break;
    case LS_KERNEL_BACKWARD:
        rc = run_backward(e, s, &step, err);
        break;
    case LS_KERNEL_LOSS:
    case LS_KERNEL_LOSS_BACKWARD:
        rc = run_loss(e, s, kernel->what == LS_KERNEL_LOSS_BACKWARD, err);
        break;
    case LS_KERNEL_ACCUMULATE:
        rc = run_accumulate(e, s, kernel->statement, err);
        break;
    case LS_KERNEL_OPTIMIZER:
    case LS_KERNEL_LEFT_OUT:
        break;
    }
    for (uint32_t m = e->dies[at]; m != LS_NO_ID; m = e->dies_next[m])
        give_back(e, &e->made.at[m].out);
    for (uint32_t m = e->kept_dies[at]; m != LS_NO_ID; m = e->kept_dies_next[m])
        give_back(e, &e->made.at[m].kept);
    return rc;
}
