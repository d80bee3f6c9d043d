/* Which memory an op means. Everything is decided when the op is issued, in program order, as a framework's host side does;
 * streams get pointers.
 *
 *   gather   copy_in puts this rank's rows of every parameter of the unit into its part of the buffer, the all_gather fills in
 *            the others', copy_out lays each parameter's rows together in its unsharded storage, block by block
 *   reduce   copy_in lays the gradients out as [rank][parameter][rows of that rank], the reduce_scatter leaves this rank's rows;
 *            they become the sharded gradient, or are added to it, after an all_reduce over replicas where there are some */
#include "engine/run/internal.h"

#include <assert.h>
#include <string.h>

static const struct ls_engine_setup *setup_of(const struct ls_rank *r) { return r->e->setup; }
static struct ls_stream *stream_of(struct ls_rank *r, unsigned stream) { return r->device->ops->stream(r->device, stream); }

size_t ls_param_ranks(const struct ls_engine_setup *s, uint32_t param)
{
    return s->param[param].unit == LS_NO_ID ? 1 : s->unit[s->param[param].unit].shard;
}

size_t ls_param_place(const struct ls_engine_setup *s, uint32_t param, uint32_t rank)
{
    return s->param[param].unit == LS_NO_ID ? 0 : rank / s->unit[s->param[param].unit].apart % ls_param_ranks(s, param);
}

static uint64_t rows_per_rank(const struct ls_engine_setup *s, uint32_t param)
{
    uint64_t rows = s->param[param].rows;
    size_t ranks = ls_param_ranks(s, param);
    return rows / ranks + (rows % ranks != 0);
}

uint64_t ls_param_padded(const struct ls_engine_setup *s, uint32_t param)
{
    return s->param[param].blocks * rows_per_rank(s, param) * s->param[param].row;
}

struct ls_param_cut ls_param_cut(const struct ls_engine_setup *s, uint32_t param, uint32_t rank, bool whole)
{
    const struct ls_engine_param *p = &s->param[param];
    uint64_t rows = rows_per_rank(s, param), first = whole ? 0 : ls_param_place(s, param, rank) * rows;
    uint64_t left = first < p->rows ? p->rows - first : 0;
    rows *= whole ? ls_param_ranks(s, param) : 1;
    return (struct ls_param_cut){ .first = (rank % p->parts * p->blocks * p->rows + first) * p->row, .run = rows * p->row,
                                  .block = p->rows * p->row, .valid = (left < rows ? left : rows) * p->row };
}

static uint64_t padded(const struct ls_rank *r, uint32_t param) { return ls_param_padded(setup_of(r), param); }
static size_t ranks_of(const struct ls_rank *r, uint32_t param) { return ls_param_ranks(setup_of(r), param); }
static uint32_t param_of(const struct ls_rank *r, uint32_t name) { return name < r->e->names ? r->e->param_of_name[name] : LS_NO_ID; }
static uint32_t unit_of(const struct ls_rank *r, const struct ls_op *op)
{
    return op->unit != LS_NO_ID && op->unit < r->e->names ? r->e->unit_of_name[op->unit] : LS_NO_ID;
}
static const struct ls_payload *payload_of(const struct ls_rank *r, const struct ls_op *op)
{
    return op->payload == LS_NO_ID ? NULL : &r->e->job->tables->payload.at[op->payload];
}
static struct ls_tensor whole(struct ls_storage *s, uint64_t elements, enum ls_dtype dtype)
{
    return (struct ls_tensor){ s, 0, elements, dtype };
}

static enum ls_code take(struct ls_rank *r, struct ls_stream *s, uint64_t bytes, enum ls_category c, struct ls_storage **out,
                         struct ls_error *err)
{
    return r->device->ops->alloc(r->device, s, bytes, c, out, err);
}

static void give(struct ls_rank *r, struct ls_stream *s, struct ls_storage **what)
{
    if (*what)
        r->device->ops->free(r->device, s, *what);
    *what = NULL;
}

/* A program with a fault may say more than its buffers hold. */
static uint64_t room(const struct ls_tensor *t)
{
    return t->of && t->dtype != LS_DTYPE_NONE && t->of->bytes > t->offset_bytes ? (t->of->bytes - t->offset_bytes) / ls_dtype_bytes(t->dtype) : 0;
}

static struct ls_tensor inside(struct ls_tensor t)
{
    if (t.elements > room(&t))
        t.elements = room(&t);
    return t;
}

static void add_move(struct ls_rank *r, struct ls_tensor to, struct ls_tensor from, bool add)
{
    if (r->e->o->accounting) /* no data: and a gathered unit would take a move for each rank and parameter, on every rank */
        return;
    to = inside(to);
    if (from.of) {
        from = inside(from);
        to.elements = from.elements < to.elements ? from.elements : to.elements;
    }
    ls_push(&r->moves, (struct ls_move){ to, from, add });
}

static void flush_moves(struct ls_rank *r, struct ls_stream *s, int64_t tag)
{
    r->device->ops->move(r->device, s, r->moves.at, r->moves.count, tag);
    r->moves.count = 0;
}

/* Between a parameter gathered by `pieces` ranks and what one of them holds of it, of `n` elements: a run of each block. */
static void add_piece(struct ls_rank *r, uint32_t param, struct ls_tensor whole, struct ls_tensor piece, size_t k, size_t pieces, uint64_t n, bool gather)
{
    uint64_t blocks = setup_of(r)->param[param].blocks, run = n / blocks;
    whole.elements = piece.elements = run;
    for (uint64_t b = 0; b < blocks; b++) {
        struct ls_tensor w = whole, p = piece;
        w.offset_bytes += (b * pieces + k) * run * ls_dtype_bytes(w.dtype);
        p.offset_bytes += b * run * ls_dtype_bytes(p.dtype);
        if (gather)
            add_move(r, w, p, false);
        else
            add_move(r, p, w, false);
    }
}

/* The parameters as they start. */
enum ls_code data_open(struct ls_rank *r, struct ls_error *err)
{
    const struct ls_engine_setup *s = setup_of(r);
    enum ls_code rc = LS_OK;
    struct ls_stream *stream = r->e->streams ? stream_of(r, 0) : NULL;
    r->unit = LS_NEW(&r->e->arena, struct unit_data, s->units + 1);
    r->param = LS_NEW(&r->e->arena, struct param_data, s->params + 1);
    for (uint32_t p = 0; p < s->params && rc == LS_OK; p++) {
        const struct ls_engine_param *q = &s->param[p];
        uint64_t n = padded(r, p), per = rows_per_rank(s, p), first = ls_param_place(s, p, r->number) * per;
        uint64_t rows = first >= q->rows ? 0 : q->rows - first < per ? q->rows - first : per;
        rc = take(r, stream, n * ls_dtype_bytes(q->dtype), LS_CATEGORY_SHARDED, &r->param[p].shard, err);
        if (rc != LS_OK)
            break;
        struct ls_tensor t = whole(r->param[p].shard, n, q->dtype);
        add_move(r, t, (struct ls_tensor){ 0 }, false);
        flush_moves(r, stream, LS_NO_TAG);
        if (r->math)
            rc = r->math->ops->init(r->math, stream, p, t, first, rows, err);
    }
    /* Which units are gathered among fewer ranks? */
    for (size_t i = 0; i < r->ops; i++) {
        const struct ls_op *op = r->op[i].op;
        uint32_t u = op->kind == LS_OP_ALL_GATHER ? unit_of(r, op) : LS_NO_ID;
        if (u == LS_NO_ID)
            continue;
        const struct ls_groups *g = &r->e->job->comm[op->comm];
        uint32_t at = g->group[r->number];
        r->unit[u].small |= at != LS_NO_ID && g->first[at + 1] - g->first[at] < s->unit[u].shard;
    }
    return rc;
}

static const struct ls_op *next_gather(const struct ls_rank *r, size_t op, uint32_t unit_name)
{
    for (size_t i = op; i < r->ops; i++)
        if (r->op[i].op->kind == LS_OP_ALL_GATHER && r->op[i].op->unit == unit_name)
            return r->op[i].op;
    return NULL;
}

static size_t group_size(const struct ls_rank *r, uint32_t comm)
{
    const struct ls_groups *g = &r->e->job->comm[comm];
    uint32_t at = g->group[r->number];
    return g->first[at + 1] - g->first[at];
}

static struct ls_storage *newest(const struct ls_rank *r, const struct ls_op *op, bool write)
{
    const struct ls_tables *t = r->e->job->tables;
    for (uint32_t k = op->range; k < op->range + op->ranges; k++)
        if (t->range.at[k].write == write)
            for (size_t i = r->live.count; i-- > 0;)
                if (r->live.at[i].buffer == t->range.at[k].buffer)
                    return r->live.at[i].s;
    return NULL;
}

/* Resharded to fewer ranks than before: this rank's part of what is about to go. */
static enum ls_code keep_small(struct ls_rank *r, size_t op, uint32_t param, struct ls_error *err)
{
    const struct ls_op *o = r->op[op].op, *next = next_gather(r, op, o->unit);
    const struct ls_engine_param *p = &setup_of(r)->param[param];
    size_t pieces = next ? group_size(r, next->comm) : 0;
    if (!next || pieces >= ranks_of(r, param))
        return LS_OK;
    uint64_t n = padded(r, param) * ranks_of(r, param) / pieces;
    struct ls_stream *s = stream_of(r, o->stream);
    give(r, s, &r->param[param].small);
    enum ls_code rc = take(r, s, n * ls_dtype_bytes(p->compute), LS_CATEGORY_SHARDED, &r->param[param].small, err);
    if (rc != LS_OK)
        return rc;
    add_piece(r, param, whole(r->param[param].full, n, p->compute), whole(r->param[param].small, n, p->compute),
              r->e->job->comm[next->comm].member[r->number], pieces, n, false);
    flush_moves(r, s, LS_NO_TAG);
    return LS_OK;
}

/* The output goes while sharded gradients are views of it: they get memory of their own. */
static enum ls_code detach(struct ls_rank *r, struct shard_grad *g, enum ls_dtype dtype, struct ls_error *err)
{
    struct ls_storage *own;
    enum ls_code rc = take(r, g->stream, g->t.elements * ls_dtype_bytes(dtype), LS_CATEGORY_GRADIENT, &own, err);
    if (rc != LS_OK)
        return rc;
    struct ls_tensor to = whole(own, g->t.elements, dtype);
    add_move(r, to, g->t, false);
    flush_moves(r, g->stream, LS_NO_TAG);
    g->t = to;
    g->own = true;
    return LS_OK;
}

static enum ls_code free_buffer(struct ls_rank *r, size_t op, struct ls_error *err)
{
    const struct ls_op *o = r->op[op].op;
    uint32_t buffer = r->e->job->tables->range.at[o->range].buffer, param = param_of(r, o->module);
    enum ls_code rc = LS_OK;
    size_t i = 0; /* the oldest goes first */
    while (i < r->live.count && (r->live.at[i].buffer != buffer || r->live.at[i].module != o->module))
        i++;
    if (i == r->live.count)
        return LS_OK; /* never allocated here: a race check's affair */
    struct ls_storage *s = r->live.at[i].s;
    if (param != LS_NO_ID && r->param[param].full == s) {
        uint32_t unit = setup_of(r)->param[param].unit;
        if (unit != LS_NO_ID && r->unit[unit].small)
            rc = keep_small(r, op, param, err);
        r->param[param].full = NULL;
    }
    for (uint32_t p = 0; p < setup_of(r)->params && rc == LS_OK && s->category == LS_CATEGORY_REDUCE; p++) {
        if (r->param[p].reduced.t.of == s)
            rc = detach(r, &r->param[p].reduced, setup_of(r)->param[p].dtype, err);
        if (rc == LS_OK && r->param[p].partial.t.of == s)
            rc = detach(r, &r->param[p].partial, r->param[p].partial.t.dtype, err);
    }
    for (size_t u = 0; u < setup_of(r)->units; u++)
        if (r->unit[u].gathered == s)
            r->unit[u].gathered = NULL;
    memmove(&r->live.at[i], &r->live.at[i + 1], (r->live.count - i - 1) * sizeof *r->live.at);
    r->live.count--;
    r->device->ops->free(r->device, stream_of(r, o->stream), s);
    return rc;
}

enum ls_code data_memory(struct ls_rank *r, size_t op, struct ls_error *err)
{
    const struct ls_op *o = r->op[op].op;
    if (!o->ranges)
        return LS_OK;
    if (o->kind == LS_OP_FREE)
        return free_buffer(r, op, err);
    const struct ls_buffer *b = &r->e->job->tables->buffer.at[r->e->job->tables->range.at[o->range].buffer];
    struct instance i = { r->e->job->tables->range.at[o->range].buffer, o->module, NULL };
    enum ls_code rc = take(r, stream_of(r, o->stream), o->bytes, (enum ls_category)b->category, &i.s, err);
    if (rc != LS_OK)
        return rc;
    ls_push(&r->live, i);
    uint32_t param = param_of(r, o->module);
    if (param != LS_NO_ID && b->category == LS_CATEGORY_UNSHARDED)
        r->param[param].full = i.s;
    return LS_OK;
}

static void gather_in(struct ls_rank *r, size_t op, uint32_t unit)
{
    const struct ls_op *o = r->op[op].op, *next = next_gather(r, op, o->unit);
    const struct ls_engine_unit *u = &setup_of(r)->unit[unit];
    struct unit_data *d = &r->unit[unit];
    struct ls_storage *out = newest(r, o, true);
    if (!next || !out)
        return;
    d->gathered = out;
    d->pieces = group_size(r, next->comm);
    d->piece_bytes = out->bytes / d->pieces;
    uint64_t at = r->e->job->comm[next->comm].member[r->number] * d->piece_bytes;
    for (size_t i = 0; i < u->params; i++) {
        const struct ls_engine_param *p = &setup_of(r)->param[u->param[i]];
        struct param_data *v = &r->param[u->param[i]];
        bool small = d->pieces < u->shard;
        uint64_t n = small ? padded(r, u->param[i]) * u->shard / d->pieces : padded(r, u->param[i]);
        struct ls_tensor to = { out, at, n, p->compute }, from = whole(small ? v->small : v->shard, n, small ? p->compute : p->dtype);
        if (from.of) /* a program with a fault may gather what it never kept */
            add_move(r, to, from, false);
        at += n * ls_dtype_bytes(p->compute);
    }
}

static void gather_out(struct ls_rank *r, uint32_t unit)
{
    const struct ls_engine_unit *u = &setup_of(r)->unit[unit];
    struct unit_data *d = &r->unit[unit];
    bool alone = u->shard == 1 && !d->gathered;
    uint64_t first = 0;
    for (size_t i = 0; i < u->params; i++) {
        const struct ls_engine_param *p = &setup_of(r)->param[u->param[i]];
        struct param_data *v = &r->param[u->param[i]];
        uint64_t all = padded(r, u->param[i]) * u->shard;
        if (!v->full)
            continue;
        if (alone) {
            add_move(r, whole(v->full, all, p->compute), whole(v->shard, all, p->dtype), false);
            continue;
        }
        if (!d->gathered)
            continue;
        uint64_t n = all / d->pieces, bytes = n * ls_dtype_bytes(p->compute);
        for (size_t k = 0; k < d->pieces; k++)
            add_piece(r, u->param[i], whole(v->full, n, p->compute), (struct ls_tensor){ d->gathered, k * d->piece_bytes + first, n, p->compute },
                      k, d->pieces, n, true);
        first += bytes;
    }
}

/* The dtype of a reduction's buffers: that of the collective that follows; without one, of the gradients, if it has that size. */
static enum ls_dtype reduce_dtype(const struct ls_rank *r, size_t op, const struct ls_storage *buffer, uint64_t elements)
{
    const struct ls_op *o = r->op[op].op;
    for (size_t i = op + 1; i < r->ops && r->op[i].segment == r->op[op].segment; i++) {
        const struct ls_op *k = r->op[i].op;
        if (k->unit == o->unit && k->kind == LS_OP_COPY_IN)
            break;
        if (k->unit == o->unit && k->payload == o->payload && (k->kind == LS_OP_REDUCE_SCATTER || k->kind == LS_OP_ALL_REDUCE))
            return (enum ls_dtype)k->dtype;
    }
    const struct ls_payload *p = payload_of(r, o);
    enum ls_dtype dtype = p->count ? setup_of(r)->param[param_of(r, p->items[0])].grad : LS_DTYPE_F32;
    uint64_t size = elements ? buffer->bytes / elements : 0;
    return ls_dtype_bytes(dtype) == size ? dtype : size == 2 ? LS_DTYPE_BF16 : size == 8 ? LS_DTYPE_F64 : LS_DTYPE_F32;
}

static uint64_t payload_shard(const struct ls_rank *r, const struct ls_payload *p)
{
    uint64_t n = 0;
    for (size_t i = 0; i < p->count; i++)
        n += padded(r, param_of(r, p->items[i]));
    return n;
}

static void reduce_in(struct ls_rank *r, size_t op, uint32_t unit)
{
    const struct ls_op *o = r->op[op].op;
    const struct ls_payload *p = payload_of(r, o);
    struct ls_storage *in = newest(r, o, true);
    size_t shard = setup_of(r)->unit[unit].shard;
    uint64_t row = payload_shard(r, p);
    if (!in)
        return;
    enum ls_dtype dtype = reduce_dtype(r, op, in, row * shard);
    size_t size = ls_dtype_bytes(dtype);
    uint64_t at = 0;
    for (size_t i = 0; i < p->count; i++) {
        uint32_t q = param_of(r, p->items[i]);
        uint64_t n = padded(r, q);
        enum ls_dtype from = setup_of(r)->param[q].grad;
        struct ls_storage *grad = r->param[q].grad;
        for (size_t k = 0; k < shard; k++) /* zeros where there is no gradient */
            add_piece(r, q, whole(grad, n, from), (struct ls_tensor){ in, (k * row + at) * size, n, dtype }, k, shard, n, false);
        at += n;
    }
    struct ls_stream *s = stream_of(r, o->stream);
    flush_moves(r, s, LS_NO_TAG);
    for (size_t i = 0; i < p->count; i++)
        give(r, s, &r->param[param_of(r, p->items[i])].grad);
}

static void drop(struct ls_rank *r, struct ls_stream *s, struct shard_grad *g)
{
    if (g->own)
        r->device->ops->free(r->device, s, g->t.of);
    *g = (struct shard_grad){ 0 };
}

/* Does an all_reduce over replicas complete this reduction? */
static bool all_reduce_follows(const struct ls_rank *r, size_t op)
{
    const struct ls_op *o = r->op[op].op;
    for (size_t i = op + 1; i < r->ops && r->op[i].segment == r->op[op].segment; i++) {
        const struct ls_op *k = r->op[i].op;
        if (k->unit != o->unit)
            continue;
        if (k->kind == LS_OP_ALL_REDUCE)
            return k->payload == o->payload;
        if (k->kind == LS_OP_COPY_IN && k->payload != LS_NO_ID)
            break;
    }
    return false;
}

/* Is the output given back before the step that would use it? Then its gradients need memory of their own at once. */
static bool freed_early(const struct ls_rank *r, size_t op, uint32_t buffer)
{
    for (size_t i = op + 1; i < r->ops; i++) {
        const struct ls_op *k = r->op[i].op;
        if (k->kind == LS_OP_COMPUTE && k->pass == LS_PASS_OPT)
            return false;
        if (k->kind == LS_OP_FREE && k->ranges && r->e->job->tables->range.at[k->range].buffer == buffer)
            return true;
    }
    return false;
}

static uint32_t buffer_of(const struct ls_rank *r, const struct ls_storage *s)
{
    for (size_t i = 0; i < r->live.count; i++)
        if (r->live.at[i].s == s)
            return r->live.at[i].buffer;
    return LS_NO_ID;
}

/* The result of a reduction becomes, or is added to, what the optimizer will see; or the partial sum of the replica. */
static enum ls_code reduced(struct ls_rank *r, size_t op, uint32_t unit, struct ls_error *err)
{
    const struct ls_op *o = r->op[op].op;
    const struct ls_payload *p = payload_of(r, o);
    struct ls_storage *out = newest(r, o, true);
    struct ls_stream *s = stream_of(r, o->stream);
    enum ls_code rc = LS_OK;
    if (!out || (o->kind != LS_OP_ALL_REDUCE && all_reduce_follows(r, op)))
        return LS_OK;
    uint64_t row = payload_shard(r, p), at = 0;
    enum ls_dtype dtype = o->kind == LS_OP_COPY_OUT ? reduce_dtype(r, op, out, row) : (enum ls_dtype)o->dtype;
    bool partial = setup_of(r)->unit[unit].hybrid && o->kind != LS_OP_ALL_REDUCE, early = !partial && freed_early(r, op, buffer_of(r, out));
    for (size_t i = 0; i < p->count && rc == LS_OK; i++) {
        uint32_t q = param_of(r, p->items[i]);
        uint64_t n = padded(r, q);
        struct shard_grad *g = partial ? &r->param[q].partial : &r->param[q].reduced;
        struct ls_tensor from = inside((struct ls_tensor){ out, at * ls_dtype_bytes(dtype), n, dtype });
        if (g->t.of) {
            add_move(r, g->t, from, true);
            flush_moves(r, s, LS_NO_TAG);
            g->stream = s;
        } else {
            *g = (struct shard_grad){ .t = from, .stream = s };
            if (early)
                rc = detach(r, g, setup_of(r)->param[q].dtype, err);
        }
        at += n;
    }
    return rc;
}

/* What earlier microbatches left, before the all_reduce over replicas. */
static void add_partial(struct ls_rank *r, const struct ls_op *o)
{
    const struct ls_payload *p = payload_of(r, o);
    struct ls_storage *out = newest(r, o, true);
    struct ls_stream *s = stream_of(r, o->stream);
    uint64_t at = 0;
    for (size_t i = 0; out && i < p->count; i++) {
        uint32_t q = param_of(r, p->items[i]);
        uint64_t n = padded(r, q);
        struct shard_grad *g = &r->param[q].partial;
        if (g->t.of) {
            add_move(r, (struct ls_tensor){ out, at * ls_dtype_bytes((enum ls_dtype)o->dtype), n, (enum ls_dtype)o->dtype }, g->t, true);
            flush_moves(r, s, LS_NO_TAG);
            drop(r, s, g);
        }
        at += n;
    }
}

/* What a library that does not add up leaves of earlier reductions. */
static void overwrite_gradients(struct ls_rank *r, const struct ls_op *o)
{
    const struct ls_payload *p = payload_of(r, o);
    for (size_t i = 0; i < p->count; i++) {
        uint32_t param = param_of(r, p->items[i]);
        struct param_data *q = &r->param[param];
        drop(r, stream_of(r, o->stream), &q->reduced);
        drop(r, stream_of(r, o->stream), &q->partial);
        if (setup_of(r)->param[param].local)
            give(r, stream_of(r, o->stream), &q->grad);
    }
}

/* A factor of the step's own, on whatever it will find. */
static enum ls_code scale_gradients(struct ls_rank *r, const struct ls_op *o, struct ls_error *err)
{
    const struct ls_payload *p = payload_of(r, o);
    enum ls_code rc = LS_OK;
    assert(r->math->ops->scale && "a program that this mathematics does not compute");
    for (size_t i = 0; i < p->count && rc == LS_OK; i++) {
        uint32_t q = param_of(r, p->items[i]);
        struct ls_tensor of[2] = { ls_rank_shard_grad(r, q), ls_rank_partial(r, q) };
        for (size_t k = 0; k < 2 && rc == LS_OK; k++)
            if (of[k].of)
                rc = r->math->ops->scale(r->math, stream_of(r, o->stream), of[k], o->factor, err);
    }
    return rc;
}

/* zero_grad(set_to_none) */
static void drop_gradients(struct ls_rank *r, const struct ls_op *o)
{
    struct ls_stream *s = stream_of(r, o->stream);
    r->used_stale = true;
    for (uint32_t p = 0; p < setup_of(r)->params; p++) {
        drop(r, s, &r->param[p].reduced);
        if (setup_of(r)->param[p].unit == LS_NO_ID)
            give(r, s, &r->param[p].grad);
    }
}

static enum ls_code compute(struct ls_rank *r, size_t op, struct ls_error *err)
{
    const struct ls_op *o = r->op[op].op;
    enum ls_code rc = LS_OK;
    bool step = false;
    for (uint32_t i = 0; i < o->kernels && rc == LS_OK && r->math; i++) {
        struct ls_math_call call = { .rank = r, .op = o, .kernel = &r->e->job->tables->kernel.at[o->kernel + i],
                                     .stream = stream_of(r, o->stream), .segment = r->op[op].segment };
        step |= (call.kernel->what == LS_KERNEL_OPTIMIZER || call.kernel->what == LS_KERNEL_LEFT_OUT) && !ls_op_gives_nothing(o);
        rc = r->math->ops->issue(r->math, &call, err);
    }
    if (rc == LS_OK && r->math && o->pass == LS_PASS_OPT && o->payload != LS_NO_ID && o->factor.num)
        rc = scale_gradients(r, o, err);
    if (step)
        drop_gradients(r, o);
    if (o->pass == LS_PASS_B && ls_op_gives_nothing(o))
        overwrite_gradients(r, o);
    return rc;
}

enum ls_code data_local(struct ls_rank *r, size_t op, struct ls_error *err)
{
    const struct ls_op *o = r->op[op].op;
    uint32_t unit = unit_of(r, o);
    enum ls_code rc = LS_OK;
    r->moves.count = 0;
    if (o->kind == LS_OP_COMPUTE)
        rc = compute(r, op, err);
    else if (is_bucket(r, o) && o->kind == LS_OP_COPY_IN)
        rc = bucket_in(r, o, err);
    else if (is_bucket(r, o))
        bucket_out(r, o);
    else if (unit != LS_NO_ID && o->payload == LS_NO_ID && o->kind == LS_OP_COPY_IN)
        gather_in(r, op, unit);
    else if (unit != LS_NO_ID && o->payload == LS_NO_ID)
        gather_out(r, unit);
    else if (unit != LS_NO_ID && o->kind == LS_OP_COPY_IN)
        reduce_in(r, op, unit);
    else if (unit != LS_NO_ID) {
        struct ls_storage *in = newest(r, o, false), *out = newest(r, o, true);
        if (in && out)
            add_move(r, whole(out, out->bytes, LS_DTYPE_U8), whole(in, out->bytes, LS_DTYPE_U8), false);
        flush_moves(r, stream_of(r, o->stream), LS_NO_TAG);
        rc = reduced(r, op, unit, err);
    }
    flush_moves(r, stream_of(r, o->stream), (int64_t)op);
    return rc;
}

static bool is_scalar(const struct ls_op *o)
{
    return o->kind == LS_OP_ALL_REDUCE && o->unit == LS_NO_ID && o->dtype == LS_DTYPE_F32 && o->count <= 64 && o->symbol == LS_NO_ID;
}

static enum ls_code bind_data(struct ls_rank *r, size_t op, struct ls_comm_call *call, struct ls_error *err)
{
    const struct ls_op *o = r->op[op].op;
    uint32_t unit = unit_of(r, o);
    enum ls_dtype dtype = (enum ls_dtype)o->dtype;
    size_t members = ls_op_uses_comm(o) ? group_size(r, queue_comm(r->e, o)) : 1;
    if (o->kind == LS_OP_DECIDE) {
        struct host_thread *t = &r->thread[o->thread];
        enum ls_code rc = take(r, call->stream, sizeof t->value, LS_CATEGORY_TEMPORARY, &t->scratch, err);
        if (rc != LS_OK)
            return rc;
        t->value = (int64_t)o->value;
        r->device->ops->upload(r->device, call->stream, t->scratch, 0, &t->value, sizeof t->value);
        call->in = call->out = whole(t->scratch, 1, LS_DTYPE_I64);
        return LS_OK;
    }
    if (unit != LS_NO_ID && o->kind == LS_OP_ALL_GATHER) {
        struct ls_storage *s = newest(r, o, true);
        if (!s)
            return LS_OK;
        call->out = whole(s, o->count * members, dtype);
        call->in = (struct ls_tensor){ s, call->comm ? r->e->job->comm[o->comm].member[r->number] * o->count * ls_dtype_bytes(dtype) : 0,
                                       o->count, dtype };
    } else if (unit != LS_NO_ID && o->kind == LS_OP_REDUCE_SCATTER) {
        call->in = whole(newest(r, o, false), o->count * members, dtype);
        call->out = whole(newest(r, o, true), o->count, dtype);
    } else if (unit != LS_NO_ID && o->kind == LS_OP_ALL_REDUCE) {
        add_partial(r, o);
        call->in = call->out = whole(newest(r, o, true), o->count, dtype);
    } else if (is_bucket(r, o)) {
        bucket_bind(r, o, call);
    } else if (is_used_map(r, o)) {
        return used_map_bind(r, o, call, err);
    } else if (is_scalar(o) && r->math) {
        struct ls_storage *s;
        enum ls_code rc = take(r, call->stream, o->count * sizeof(float), LS_CATEGORY_TEMPORARY, &s, err);
        if (rc != LS_OK)
            return rc;
        call->in = call->out = whole(s, o->count, LS_DTYPE_F32);
        return r->math->ops->scalar(r->math, r, call->stream, o, false, call->in, err);
    }
    return LS_OK;
}

/* A call that its buffers are too small for moves no data: what it meets is seen from its count. */
enum ls_code data_before(struct ls_rank *r, size_t op, struct ls_comm_call *call, struct ls_error *err)
{
    enum ls_code rc = bind_data(r, op, call, err);
    if (rc == LS_OK && call->in.elements > room(&call->in))
        call->in = (struct ls_tensor){ 0 };
    if (rc == LS_OK && call->out.elements > room(&call->out))
        call->out = (struct ls_tensor){ 0 };
    return rc;
}

enum ls_code data_after(struct ls_rank *r, size_t op, const struct ls_comm_call *call, struct ls_error *err)
{
    const struct ls_op *o = r->op[op].op;
    if (unit_of(r, o) != LS_NO_ID && (o->kind == LS_OP_REDUCE_SCATTER || o->kind == LS_OP_ALL_REDUCE))
        return reduced(r, op, unit_of(r, o), err);
    if (is_used_map(r, o))
        used_map_out(r, call);
    else if (!is_bucket(r, o) && is_scalar(o) && r->math) {
        enum ls_code rc = r->math->ops->scalar(r->math, r, call->stream, o, true, call->out, err);
        r->device->ops->free(r->device, call->stream, call->out.of);
        return rc;
    }
    return LS_OK;
}

struct ls_tensor ls_rank_full(const struct ls_rank *r, uint32_t param)
{
    const struct ls_engine_param *p = &setup_of(r)->param[param];
    if (p->unit == LS_NO_ID)
        return whole(r->param[param].shard, padded(r, param), p->dtype);
    return r->param[param].full ? whole(r->param[param].full, padded(r, param) * ranks_of(r, param), p->compute)
                                : (struct ls_tensor){ 0 };
}

struct ls_tensor ls_rank_shard(const struct ls_rank *r, uint32_t param)
{
    return whole(r->param[param].shard, padded(r, param), setup_of(r)->param[param].dtype);
}

enum ls_code ls_rank_grad(struct ls_rank *r, uint32_t param, struct ls_tensor *out, struct ls_error *err)
{
    const struct ls_engine_param *p = &setup_of(r)->param[param];
    uint64_t n = padded(r, param) * ranks_of(r, param);
    struct ls_stream *s = stream_of(r, 0);
    enum ls_code rc = LS_OK;
    if (!r->param[param].grad) {
        rc = take(r, s, n * ls_dtype_bytes(p->grad), LS_CATEGORY_GRADIENT, &r->param[param].grad, err);
        if (rc == LS_OK) {
            add_move(r, whole(r->param[param].grad, n, p->grad), (struct ls_tensor){ 0 }, false);
            flush_moves(r, s, LS_NO_TAG);
        }
    }
    *out = whole(r->param[param].grad, n, p->grad);
    return rc;
}

bool ls_rank_take_grad(struct ls_rank *r, uint32_t param, struct ls_storage *sum)
{
    const struct ls_engine_param *p = &setup_of(r)->param[param];
    if (r->param[param].grad || p->grad != LS_DTYPE_F32 || sum->bytes != padded(r, param) * ranks_of(r, param) * sizeof(float))
        return false;
    r->device->ops->recount(r->device, sum, LS_CATEGORY_GRADIENT);
    r->param[param].grad = sum;
    return true;
}

struct ls_tensor ls_rank_shard_grad(const struct ls_rank *r, uint32_t param)
{
    const struct ls_engine_param *p = &setup_of(r)->param[param];
    struct ls_storage *grad = r->param[param].grad;
    return !p->local ? r->param[param].reduced.t : grad ? whole(grad, padded(r, param), p->grad) : (struct ls_tensor){ 0 };
}
struct ls_tensor ls_rank_partial(const struct ls_rank *r, uint32_t param) { return r->param[param].partial.t; }
struct ls_device *ls_rank_device(const struct ls_rank *r) { return r->device; }
