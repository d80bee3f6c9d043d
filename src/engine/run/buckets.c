/* Gradients of parameters in no unit, all-reduced together: DDP's buckets.
 *
 *   copy_in      the gradients of its payload's parameters, one after another, into the bucket; zeros where there is none
 *   all_reduce   the bucket
 *   copy_out     what arrived becomes the parameters' reduced gradients, or is added to them
 *   used map     one number per parameter that trains: how many ranks had a gradient for it since the last one. PyTorch leaves .grad of
 *                a parameter that nobody used as it was, so that the optimizer passes it over; only the stream knows
 *
 * A bucket's memory stays for the next step, as in PyTorch's reducer, until another bucket takes one of its parameters. */
#include "engine/run/internal.h"

#include <string.h>

static const struct ls_engine_setup *setup_of(const struct ls_rank *r) { return r->e->setup; }
static uint32_t param_of(const struct ls_rank *r, uint32_t name) { return name < r->e->names ? r->e->param_of_name[name] : LS_NO_ID; }
static const struct ls_payload *payload_of(const struct ls_rank *r, const struct ls_op *o)
{
    return &r->e->job->tables->payload.at[o->payload];
}

bool is_bucket(const struct ls_rank *r, const struct ls_op *o)
{
    return setup_of(r)->buckets && (o->kind == LS_OP_COPY_IN || o->kind == LS_OP_ALL_REDUCE || o->kind == LS_OP_COPY_OUT) && o->unit == LS_NO_ID && o->payload != LS_NO_ID &&
           payload_of(r, o)->count && param_of(r, payload_of(r, o)->items[0]) != LS_NO_ID;
}

bool is_used_map(const struct ls_rank *r, const struct ls_op *o)
{
    return setup_of(r)->buckets && o->kind == LS_OP_ALL_REDUCE && o->dtype == LS_DTYPE_I32 && o->payload != LS_NO_ID &&
           strcmp(ls_tables_name(r->e->job->tables, payload_of(r, o)->name), "used parameters") == 0;
}

static struct bucket *find(struct ls_rank *r, uint32_t payload)
{
    for (size_t i = 0; i < r->bucket.count; i++)
        if (r->bucket.at[i].payload == payload)
            return &r->bucket.at[i];
    return NULL;
}

static bool share_a_parameter(const struct ls_payload *a, const struct ls_payload *b)
{
    for (size_t i = 0; i < a->count; i++)
        for (size_t k = 0; k < b->count; k++)
            if (a->items[i] == b->items[k])
                return true;
    return false;
}

static enum ls_code make(struct ls_rank *r, struct ls_stream *s, const struct ls_op *o, uint64_t elements, enum ls_dtype dtype, struct bucket **out,
                         struct ls_error *err)
{
    struct bucket b = { .payload = o->payload };
    for (size_t i = 0; i < r->bucket.count;) /* rebuilt: everything was reduced before */
        if (share_a_parameter(payload_of(r, o), &r->e->job->tables->payload.at[r->bucket.at[i].payload])) {
            r->device->ops->free(r->device, s, r->bucket.at[i].t.of);
            r->bucket.at[i] = r->bucket.at[--r->bucket.count];
        } else
            i++;
    struct ls_storage *of;
    enum ls_code rc = r->device->ops->alloc(r->device, s, elements * ls_dtype_bytes(dtype), LS_CATEGORY_GRADIENT, &of, err);
    if (rc != LS_OK)
        return rc;
    b.t = (struct ls_tensor){ of, 0, elements, dtype };
    ls_push(&r->bucket, b);
    *out = &r->bucket.at[r->bucket.count - 1];
    return LS_OK;
}

static struct ls_tensor part(const struct bucket *b, uint64_t first, uint64_t elements)
{
    return (struct ls_tensor){ b->t.of, first * ls_dtype_bytes(b->t.dtype), elements, b->t.dtype };
}

static bool is_taken(const struct ls_rank *r, const struct ls_op *o, uint32_t *param)
{
    for (size_t i = 0; i < payload_of(r, o)->count; i++)
        if ((param[i] = param_of(r, payload_of(r, o)->items[i])) == LS_NO_ID)
            return false;
    return true;
}

enum ls_code bucket_in(struct ls_rank *r, const struct ls_op *o, struct ls_error *err)
{
    const struct ls_payload *p = payload_of(r, o);
    struct ls_stream *s = r->device->ops->stream(r->device, o->stream);
    uint32_t *param = LS_NEW(&r->e->arena, uint32_t, p->count);
    uint64_t all = 0, at = 0;
    enum ls_code rc = LS_OK;
    if (!is_taken(r, o, param))
        return ls_fail(err, LS_EINPUT, LS_NOWHERE, "bucket '%s' holds what is no parameter", ls_tables_name(r->e->job->tables, p->name));
    for (size_t i = 0; i < p->count; i++)
        all += ls_param_padded(setup_of(r), param[i]);
    struct bucket *b = find(r, o->payload);
    if (!b)
        rc = make(r, s, o, all, setup_of(r)->param[param[0]].grad, &b, err);
    for (size_t i = 0; i < p->count && rc == LS_OK; i++) {
        struct param_data *v = &r->param[param[i]];
        enum ls_dtype dtype = setup_of(r)->param[param[i]].grad;
        uint64_t n = ls_param_padded(setup_of(r), param[i]);
        struct ls_tensor from = { v->grad, 0, n, dtype };
        ls_push(&r->moves, (struct ls_move){ part(b, at, n), v->grad ? from : (struct ls_tensor){ .dtype = dtype }, false });
        at += n;
        v->used |= v->grad != NULL;
        if (v->reduced.t.of)
            continue;
        struct ls_storage *own; /* its memory is ordered behind what this stream does now, as the reduction is */
        rc = r->device->ops->alloc(r->device, s, n * ls_dtype_bytes(dtype), LS_CATEGORY_GRADIENT, &own, err);
        if (rc == LS_OK)
            v->reduced = (struct shard_grad){ .t = { own, 0, n, dtype }, .own = true, .fresh = true, .stream = s };
    }
    if (rc != LS_OK)
        return rc;
    r->device->ops->move(r->device, s, r->moves.at, r->moves.count, LS_NO_TAG);
    r->moves.count = 0;
    for (size_t i = 0; i < p->count; i++) {
        if (r->param[param[i]].grad)
            r->device->ops->free(r->device, s, r->param[param[i]].grad);
        r->param[param[i]].grad = NULL;
    }
    return LS_OK;
}

void bucket_bind(struct ls_rank *r, const struct ls_op *o, struct ls_comm_call *call)
{
    const struct bucket *b = find(r, o->payload);
    if (b) /* a program with a fault may reduce what it never filled */
        call->in = call->out = b->t;
}

void bucket_out(struct ls_rank *r, const struct ls_op *o)
{
    const struct ls_payload *p = payload_of(r, o);
    const struct bucket *b = find(r, o->payload);
    struct ls_stream *s = r->device->ops->stream(r->device, o->stream);
    uint64_t at = 0;
    for (size_t i = 0; b && i < p->count; i++) {
        uint32_t q = param_of(r, p->items[i]);
        struct shard_grad *g = q == LS_NO_ID ? NULL : &r->param[q].reduced;
        uint64_t n = q == LS_NO_ID ? 0 : ls_param_padded(setup_of(r), q);
        if (g && g->t.of)
            ls_push(&r->moves, (struct ls_move){ g->t, part(b, at, n), !g->fresh });
        if (g)
            g->fresh = false;
        at += n;
    }
    r->device->ops->move(r->device, s, r->moves.at, r->moves.count, LS_NO_TAG);
    r->moves.count = 0;
}

/* Entries are the parameters that train, in the model's order. */
static uint64_t trains_before(const struct ls_engine_setup *s, uint32_t param)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < param; i++)
        n += s->param[i].trains && s->param[i].rows > 0;
    return n;
}

struct flags { struct ls_tensor to; };

static void write_flags(void *args, struct ls_stream *s)
{
    const struct flags *f = args;
    const uint8_t *flag = (const uint8_t *)(f + 1);
    (void)s;
    for (uint64_t i = 0; i < f->to.elements; i++)
        ls_element_set(f->to.of->at, LS_DTYPE_I32, i, flag[i]);
}

enum ls_code used_map_bind(struct ls_rank *r, const struct ls_op *o, struct ls_comm_call *call, struct ls_error *err)
{
    const struct ls_engine_setup *s = setup_of(r);
    struct ls_device *d = r->device;
    struct ls_storage *of;
    enum ls_code rc = d->ops->alloc(d, call->stream, o->count * sizeof(int32_t), LS_CATEGORY_TEMPORARY, &of, err);
    if (rc != LS_OK)
        return rc;
    call->in = call->out = (struct ls_tensor){ of, 0, o->count, LS_DTYPE_I32 };
    struct flags *f = LS_NEW(&r->e->arena, struct flags, 1 + o->count / sizeof *f + 1);
    f->to = call->in;
    for (uint32_t i = 0; i < s->params; i++) {
        uint64_t at = trains_before(s, i);
        bool used = r->param[i].used || r->param[i].grad;
        if (s->param[i].trains && s->param[i].rows && at < o->count)
            ((uint8_t *)(f + 1))[at] = used;
        r->param[i].told = used || (r->param[i].told && !r->used_stale);
        r->param[i].used = false;
    }
    d->ops->launch(d, call->stream, write_flags, f, sizeof *f + o->count, &of, 1, LS_NO_TAG);
    if (r->used_map.of)
        return LS_OK;
    rc = d->ops->alloc(d, call->stream, o->count * sizeof(int32_t), LS_CATEGORY_GRADIENT, &of, err);
    r->used_map = (struct ls_tensor){ of, 0, o->count, LS_DTYPE_I32 };
    r->used_stale = true;
    return rc;
}

void used_map_out(struct ls_rank *r, const struct ls_comm_call *call)
{
    struct ls_move sum = { r->used_map, call->out, !r->used_stale };
    r->used_stale = false;
    r->device->ops->move(r->device, call->stream, &sum, 1, LS_NO_TAG);
    r->device->ops->free(r->device, call->stream, call->out.of);
    r->used_known = r->device->ops->record(r->device, call->stream, LS_NO_TAG);
}

/* As torch does, the step waits for what the ranks told each other only where this rank had no gradient itself. */
struct ls_tensor ls_rank_used(struct ls_rank *r, uint32_t param, struct ls_stream *s)
{
    if (!r->used_map.of || !setup_of(r)->param[param].trains || r->param[param].told)
        return (struct ls_tensor){ 0 };
    if (r->used_known)
        r->device->ops->wait(r->device, s, r->used_known, LS_NO_TAG);
    r->used_known = NULL;
    return (struct ls_tensor){ r->used_map.of, trains_before(setup_of(r), param) * sizeof(int32_t), 1, LS_DTYPE_I32 };
}

struct ls_tensor ls_rank_step_grad(struct ls_rank *r, uint32_t param, struct ls_stream *s)
{
    struct param_data *v = &r->param[param];
    enum ls_dtype dtype = setup_of(r)->param[param].grad;
    struct ls_tensor local = { v->grad, 0, ls_param_padded(setup_of(r), param), dtype };
    if (!v->reduced.t.of || !v->grad)
        return v->grad ? local : v->reduced.t;
    struct ls_move sum = { v->reduced.t, local, true };
    r->device->ops->move(r->device, s, &sum, 1, LS_NO_TAG);
    r->device->ops->free(r->device, s, v->grad);
    v->grad = NULL;
    return v->reduced.t;
}
