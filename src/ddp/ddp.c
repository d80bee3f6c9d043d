#include "ddp/ddp.h"

#include "base/str.h"
#include "base/vec.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

enum { D, S = 3 }; /* streams: of the computation, of the reducer's process group */
enum { MIB = 1 << 20, FIRST_MIB = 1, BUCKET_MIB = 25, BROADCAST_MIB = 250 };

typedef LS_VEC(struct ls_op) op_vec;
typedef LS_VEC(uint32_t) id_vec;

struct state {
    uint32_t inner;
    bool stopped, constructed, sync_buffers;
    bool unfinished;      /* the last reduced backward left a bucket that never got ready */
    uint8_t rebuild;      /* 0: not yet; 1: seen once (static graphs look twice); 2: at the next forward; 3: done */
    uint32_t graph;       /* static: 1 + letter of the first reduced backward, 0 before */
};
struct memo { uint32_t state, round, letter; struct ls_step step; };
struct compiler {
    struct ls_transducer t; /* first */
    struct ls_ddp_input in;
    struct ls_arena *arena;
    struct ls_ddp_buckets initial, *rebuilt; /* rebuilt: by letter of the graph, the last one for graphs that may change */
    uint32_t *trained; size_t trains;  /* parameters in registration order */
    bool **used;                       /* [letters][params]: accumulates a gradient */
    LS_VEC(struct state) state;
    LS_VEC(struct memo) memo;
    uint32_t cause;
};

void ls_ddp_assign(const struct ls_model *m, const uint32_t *order, size_t count, uint64_t first_limit, uint64_t limit, bool sorted,
                   struct ls_arena *arena, struct ls_ddp_buckets *out)
{
    uint32_t *bucket = LS_NEW(arena, uint32_t, count + 1); /* number of the bucket by place in the order */
    size_t *least = LS_NEW(arena, size_t, count + 1), buckets = 0;
    uint32_t *rank = LS_NEW(arena, uint32_t, count + 1);   /* when it was closed; open ones come last */
    struct { uint32_t open; uint64_t bytes; bool later, any; } of[LS_DTYPE_COUNT];
    size_t closed = 0;
    memset(of, 0, sizeof of);
    for (size_t i = 0; i < count; i++) {
        const struct ls_param *p = &m->param[order[i]];
        if (!of[p->dtype].any) {
            of[p->dtype].any = true;
            of[p->dtype].open = (uint32_t)buckets;
            of[p->dtype].bytes = 0;
            least[buckets++] = i;
        }
        bucket[i] = of[p->dtype].open;
        of[p->dtype].bytes += p->elements * ls_dtype_bytes(p->dtype);
        if (of[p->dtype].bytes >= (of[p->dtype].later ? limit : first_limit)) {
            rank[of[p->dtype].open] = (uint32_t)++closed;
            of[p->dtype].any = false;
            of[p->dtype].later = true;
        }
    }
    for (size_t b = 0; b < buckets; b++)
        if (!rank[b])
            rank[b] = (uint32_t)++closed; /* several dtypes: PyTorch leaves the order of the last ones to a hash table */
    out->param = LS_NEW(arena, uint32_t, count + 1);
    out->first = LS_NEW(arena, size_t, buckets + 2);
    out->count = buckets;
    size_t n = 0;
    for (size_t place = 0; place < buckets; place++) {
        size_t pick = 0;
        for (size_t b = 0; b < buckets; b++) {
            size_t before = 0; /* buckets that come first */
            for (size_t o = 0; o < buckets; o++)
                before += sorted ? least[o] < least[b] : rank[o] < rank[b];
            if (before == place)
                pick = b;
        }
        out->first[place] = n;
        for (size_t i = 0; i < count; i++)
            if (bucket[i] == pick)
                out->param[n++] = order[i];
    }
    out->first[buckets] = n;
}

static void reverse(struct ls_ddp_buckets *b, struct ls_arena *arena)
{
    struct ls_ddp_buckets r = { LS_NEW(arena, uint32_t, b->first[b->count] + 1), LS_NEW(arena, size_t, b->count + 1), b->count };
    size_t n = 0;
    for (size_t i = b->count; i-- > 0;) {
        r.first[b->count - 1 - i] = n;
        for (size_t k = b->first[i]; k < b->first[i + 1]; k++)
            r.param[n++] = b->param[k];
    }
    r.first[b->count] = n;
    *b = r;
}

/* ---- one round ---- */

struct making {
    struct compiler *c;
    const struct ls_round *round;
    uint32_t letter;
    struct state now;
    op_vec ops;
    enum ls_pass pass;
    const struct ls_ddp_buckets *bucket;
    size_t *pending;         /* [buckets] */
    size_t next;             /* bucket to be reduced next */
};

static struct ls_op *emit(struct making *m, enum ls_op_kind kind, unsigned stream)
{
    struct ls_op op = ls_op_make(kind);
    op.pass = (uint8_t)m->pass;
    op.stream = (uint8_t)stream;
    op.microbatch = m->round->microbatch;
    op.range = (uint32_t)m->c->in.tables->range.count;
    op.cause = m->c->cause;
    ls_push(&m->ops, op);
    return &m->ops.at[m->ops.count - 1];
}

static void talk(struct making *m, enum ls_op_kind kind, unsigned stream, enum ls_dtype dtype, uint64_t count, const char *payload,
                 const uint32_t *item, size_t items)
{
    struct ls_op *op = emit(m, kind, stream);
    op->comm = (uint16_t)m->c->in.comm;
    op->dtype = (uint8_t)dtype;
    op->count = count;
    op->reduce = kind == LS_OP_ALL_REDUCE ? (items ? LS_REDUCE_AVG : LS_REDUCE_SUM) : LS_REDUCE_NONE;
    op->peer = kind == LS_OP_BROADCAST ? 0 : -1;
    op->payload = ls_tables_payload(m->c->in.tables, payload, item, items, count);
}

static void record_and_wait(struct making *m, const char *event, unsigned from, unsigned to)
{
    uint32_t id = ls_tables_event(m->c->in.tables, event);
    emit(m, LS_OP_RECORD, from)->event = id;
    emit(m, LS_OP_WAIT, to)->event = id;
}

/* _broadcast_coalesced: tensors of one dtype together, up to 250 MiB. */
struct coalesced { uint64_t elements[LS_DTYPE_COUNT]; int order[LS_DTYPE_COUNT], kinds; };

static void broadcast_dtype(struct making *m, enum ls_dtype dtype, uint64_t elements, const char *what)
{
    talk(m, LS_OP_BROADCAST, D, dtype, elements, what, NULL, 0);
}

struct piece { enum ls_dtype dtype; uint64_t elements; size_t first; bool open; };

static void broadcast_coalesced(struct making *m, bool params, const char *what)
{
    const struct ls_model *model = m->c->in.model;
    LS_VEC(struct piece) piece = { 0 };
    size_t at = 0;
    for (int pass = params ? 0 : 1; pass < (m->c->in.ddp->broadcast_buffers ? 2 : 1); pass++)
        for (size_t i = 0; i < model->modules; i++) {
            const struct ls_module *x = &model->module[i];
            size_t count = pass == 0 ? x->params : x->buffers;
            for (size_t k = 0; k < count; k++) {
                const struct ls_param *p = pass == 0 ? &model->param[x->first_param + k] : NULL;
                if (p && p->canonical != x->first_param + k)
                    continue;
                enum ls_dtype dtype = p ? p->dtype : x->buffer[k].dtype;
                uint64_t elements = p ? p->elements : x->buffer[k].elements;
                size_t b = 0;
                while (b < piece.count && (!piece.at[b].open || piece.at[b].dtype != dtype))
                    b++;
                if (b == piece.count)
                    ls_push(&piece, (struct piece){ dtype, 0, at, true });
                piece.at[b].elements += elements;
                piece.at[b].open = piece.at[b].elements * ls_dtype_bytes(dtype) < (uint64_t)BROADCAST_MIB * MIB;
                at++;
            }
        }
    for (size_t b = 0; b < piece.count; b++) /* opened in the order of their first tensors */
        broadcast_dtype(m, piece.at[b].dtype, piece.at[b].elements, what);
    ls_vec_release(&piece);
}

static size_t buffers_of(const struct ls_model *m)
{
    size_t n = 0;
    for (size_t i = 0; i < m->modules; i++)
        n += m->module[i].buffers;
    return n;
}

/* The constructor: shapes are compared, the state of rank 0 is everybody's. */
static void construct(struct making *m)
{
    struct compiler *c = m->c;
    uint64_t metadata = 0;
    m->pass = LS_PASS_SETUP;
    for (size_t i = 0; i < c->trains; i++)
        metadata += 2u * c->in.model->param[c->trained[i]].dims; /* sizes and strides */
    talk(m, LS_OP_ALL_GATHER, D, LS_DTYPE_I64, 1, "number of parameters", NULL, 0);
    talk(m, LS_OP_BROADCAST, D, LS_DTYPE_I64, metadata, "parameter shapes", NULL, 0);
    broadcast_coalesced(m, true, "module states");
    m->now.constructed = true;
}

static void stop(struct making *m, const char *text)
{
    emit(m, LS_OP_STOP, D)->module = ls_name_id(m->c->in.tables->names, text);
    m->now.stopped = true;
}

/* A static graph has the order of its first batch; otherwise a rank gets here only when its batch used everything. */
static const struct ls_ddp_buckets *rebuilt_of(const struct making *m)
{
    const struct compiler *c = m->c;
    return &c->rebuilt[c->in.ddp->static_graph ? m->now.graph - 1 : c->in.inner->letters];
}

static bool rebuilds(const struct compiler *c) { return c->in.ddp->static_graph || !c->in.ddp->find_unused; }

static void pre_forward(struct making *m, bool gradient)
{
    struct compiler *c = m->c;
    m->pass = gradient ? LS_PASS_F : LS_PASS_EVAL;
    if (gradient && m->now.unfinished) {
        stop(m, "unfinished_reduction: some parameters got no gradient in the last backward, so their bucket was not reduced");
        return;
    }
    if (gradient && m->now.rebuild == 2) {
        talk(m, LS_OP_BROADCAST, D, LS_DTYPE_I32, c->trains + 1, "bucket indices", NULL, 0);
        talk(m, LS_OP_BROADCAST, D, LS_DTYPE_I32, rebuilt_of(m)->count, "bucket sizes", NULL, 0);
        m->now.rebuild = 3;
    }
    if (m->now.sync_buffers && c->in.ddp->broadcast_buffers && buffers_of(c->in.model))
        broadcast_coalesced(m, false, "buffers");
    m->now.sync_buffers = gradient && m->round->gradient_sync;
}

/* Which parameters a bucket holds, by name, and how many elements. */
static const uint32_t *bucket_items(struct making *m, size_t b, size_t *count, uint64_t *elements)
{
    const struct ls_ddp_buckets *all = m->bucket;
    *count = all->first[b + 1] - all->first[b];
    *elements = 0;
    uint32_t *name = LS_NEW(m->c->arena, uint32_t, *count);
    for (size_t i = 0; i < *count; i++) {
        const struct ls_param *p = &m->c->in.model->param[all->param[all->first[b] + i]];
        name[i] = p->name;
        *elements += p->elements;
    }
    return name;
}

static uint32_t bucket_payload(struct making *m, size_t b)
{
    size_t count;
    uint64_t elements;
    char text[48];
    const uint32_t *name = bucket_items(m, b, &count, &elements);
    snprintf(text, sizeof text, "bucket %zu", b);
    return ls_tables_payload(m->c->in.tables, text, name, count, elements);
}

static void reduce_bucket(struct making *m, size_t b)
{
    struct compiler *c = m->c;
    size_t count;
    uint64_t elements;
    char text[48];
    const uint32_t *name = bucket_items(m, b, &count, &elements);
    emit(m, LS_OP_COPY_IN, D)->payload = bucket_payload(m, b);
    snprintf(text, sizeof text, "bucket ready %zu", b);
    record_and_wait(m, text, D, S);
    snprintf(text, sizeof text, "bucket %zu", b);
    talk(m, LS_OP_ALL_REDUCE, S, c->in.model->param[m->bucket->param[m->bucket->first[b]]].dtype, elements, text, name, count);
    m->ops.at[m->ops.count - 1].held = true;
    snprintf(text, sizeof text, "bucket reduced %zu", b);
    emit(m, LS_OP_RECORD, S)->event = ls_tables_event(c->in.tables, text);
}

static void used_map(struct making *m)
{
    talk(m, LS_OP_ALL_REDUCE, S, LS_DTYPE_I32, m->c->trains, "used parameters", NULL, 0);
}

static void reduce_ready(struct making *m)
{
    bool dynamic = m->c->in.ddp->find_unused && !m->c->in.ddp->static_graph;
    while (m->next < m->bucket->count && m->pending[m->next] == 0) {
        reduce_bucket(m, m->next++);
        if (m->next == m->bucket->count && dynamic)
            used_map(m);
    }
}

static void mark_ready(struct making *m, uint32_t param)
{
    const struct ls_ddp_buckets *b = m->bucket;
    for (size_t k = 0; k < b->count; k++)
        for (size_t i = b->first[k]; i < b->first[k + 1]; i++)
            if (b->param[i] == param)
                m->pending[k]--;
}

/* The end of backward: the computation waits for every reduction, and gradients are what arrived. */
static void finalize(struct making *m)
{
    for (size_t b = 0; b < m->bucket->count; b++) {
        char text[48];
        snprintf(text, sizeof text, "bucket reduced %zu", b);
        emit(m, LS_OP_WAIT, D)->event = ls_tables_event(m->c->in.tables, text);
        uint32_t payload = bucket_payload(m, b);
        struct ls_op *op = emit(m, LS_OP_COPY_OUT, D);
        op->payload = payload;
        op->held = true;
    }
}

/* The ops of a backward computation, cut where a bucket gets ready. */
static void computation(struct making *m, const struct ls_op *op, bool eager)
{
    struct ls_tables *t = m->c->in.tables;
    id_vec share = { 0 };
    uint32_t from = op->kernel;
    size_t next = m->next;
    for (uint32_t k = op->kernel; k < op->kernel + op->kernels; k++) {
        const struct ls_kernel *kernel = &t->kernel.at[k];
        if (kernel->what != LS_KERNEL_ACCUMULATE)
            continue;
        ls_push(&share, m->c->in.model->param[kernel->statement].name);
        mark_ready(m, kernel->statement);
        bool ready = eager && next < m->bucket->count && m->pending[next] == 0;
        if (!ready)
            continue;
        ls_push(&m->ops, *op);
        struct ls_op *part = &m->ops.at[m->ops.count - 1];
        part->kernel = from;
        part->kernels = k + 1 - from;
        part->payload = ls_tables_payload(t, "gradients", share.at, share.count, 0);
        from = k + 1;
        share.count = 0;
        reduce_ready(m);
        next = m->next;
    }
    if (from < op->kernel + op->kernels) {
        ls_push(&m->ops, *op);
        struct ls_op *part = &m->ops.at[m->ops.count - 1];
        part->kernel = from;
        part->kernels = op->kernel + op->kernels - from;
        part->payload = share.count ? ls_tables_payload(t, "gradients", share.at, share.count, 0) : LS_NO_ID;
    }
    ls_vec_release(&share);
}

static bool raises(const struct ls_segment *s)
{
    return s->count && s->op[s->count - 1].kind == LS_OP_STOP;
}

static void training(struct making *m, const struct ls_segment *s)
{
    struct compiler *c = m->c;
    const struct ls_ddp *ddp = c->in.ddp;
    size_t backward = 0;
    while (backward < s->count && s->op[backward].pass != LS_PASS_B)
        backward++;
    for (size_t i = 0; i < backward; i++)
        ls_push(&m->ops, s->op[i]);
    if (raises(s))
        m->now.stopped = true;
    if (!m->round->gradient_sync || m->round->kind != LS_ROUND_MICRO || raises(s)) {
        for (size_t i = backward; i < s->count; i++)
            ls_push(&m->ops, s->op[i]);
        return;
    }
    m->pass = LS_PASS_B;
    m->bucket = m->now.rebuild == 3 ? rebuilt_of(m) : &c->initial;
    m->pending = LS_NEW(c->arena, size_t, m->bucket->count + 1);
    m->next = 0;
    for (size_t b = 0; b < m->bucket->count; b++)
        m->pending[b] = m->bucket->first[b + 1] - m->bucket->first[b];
    bool first = ddp->static_graph && !m->now.graph;
    const bool *used = c->used[m->letter], *expected = ddp->static_graph ? c->used[first ? m->letter : m->now.graph - 1] : used;
    if (ddp->static_graph && first)
        m->now.graph = m->letter + 1;
    for (size_t i = 0; i < c->trains; i++) {
        uint32_t p = c->trained[i];
        if (!expected[p] && used[p]) {
            stop(m, "training_graph_changed: a parameter gets a gradient that the static graph of the first iteration did not use");
            return;
        }
        if (!expected[p] && (ddp->find_unused || ddp->static_graph))
            mark_ready(m, p);
    }
    if (!first)
        reduce_ready(m); /* buckets of unused parameters alone: before backward begins */
    for (size_t i = backward; i < s->count; i++)
        if (s->op[i].kind == LS_OP_COMPUTE && s->op[i].pass == LS_PASS_B)
            computation(m, &s->op[i], !first);
        else
            ls_push(&m->ops, s->op[i]);
    if (first) { /* nobody knows yet how often each gradient comes: everything is reduced at the end */
        used_map(m);
        reduce_ready(m);
    }
    m->now.unfinished = m->next < m->bucket->count;
    if (!m->now.unfinished)
        finalize(m);
    if (rebuilds(c) && m->now.rebuild < 2 && !m->now.unfinished)
        m->now.rebuild = (uint8_t)(ddp->static_graph && m->now.rebuild == 0 ? 1 : 2);
}

static uint32_t intern(struct compiler *c, struct state s)
{
    if (s.stopped)
        s = (struct state){ .inner = c->in.inner->start, .stopped = true };
    for (uint32_t i = 0; i < c->state.count; i++) {
        const struct state *o = &c->state.at[i];
        if (o->inner == s.inner && o->stopped == s.stopped && o->constructed == s.constructed && o->sync_buffers == s.sync_buffers &&
            o->unfinished == s.unfinished && o->rebuild == s.rebuild && o->graph == s.graph)
            return i;
    }
    ls_push(&c->state, s);
    return (uint32_t)c->state.count - 1;
}

static enum ls_code step(struct ls_transducer *t, uint32_t state, uint32_t round, uint32_t letter, struct ls_step *out, struct ls_error *err)
{
    struct compiler *c = (struct compiler *)t;
    assert(state < c->state.count && round < c->in.rounds->count);
    for (size_t i = 0; i < c->memo.count; i++)
        if (c->memo.at[i].state == state && c->memo.at[i].round == round && c->memo.at[i].letter == letter) {
            *out = c->memo.at[i].step;
            return LS_OK;
        }
    struct making m = { .c = c, .round = &c->in.rounds->round[round], .letter = letter, .now = c->state.at[state] };
    enum ls_round_kind kind = m.round->kind;
    bool forward = kind == LS_ROUND_MICRO || kind == LS_ROUND_SKIPPED || kind == LS_ROUND_EVAL;
    if (!m.now.stopped) {
        struct ls_step got;
        enum ls_code rc = c->in.inner->step(c->in.inner, m.now.inner, round, letter, &got, err);
        if (rc != LS_OK)
            return rc;
        m.now.inner = got.next;
        bool talks = c->in.comm != LS_NO_ID;
        if (forward && talks && !m.now.constructed)
            construct(&m);
        if (forward && talks)
            pre_forward(&m, kind != LS_ROUND_EVAL);
        if (!m.now.stopped && forward && talks && kind != LS_ROUND_EVAL) {
            training(&m, got.role[0]);
        } else if (!m.now.stopped) {
            m.now.stopped = raises(got.role[0]);
            for (size_t i = 0; i < got.role[0]->count; i++)
                ls_push(&m.ops, got.role[0]->op[i]);
        }
    }
    struct ls_segment *s = LS_NEW(c->arena, struct ls_segment, 1);
    const struct ls_segment **role = LS_NEW(c->arena, const struct ls_segment *, 1);
    s->op = m.ops.count ? ls_arena_copy(c->arena, m.ops.at, m.ops.count * sizeof *m.ops.at) : NULL;
    s->count = m.ops.count;
    s->hash = ls_segment_hash(s->op, s->count);
    role[0] = s;
    ls_vec_release(&m.ops);
    *out = (struct ls_step){ .role = role, .next = intern(c, m.now) };
    if (c->state.count > c->t.states_max)
        return ls_fail(err, LS_EUNDECIDED, LS_NOWHERE, "a rank has more than %zu states: the plan does not settle", c->t.states_max);
    ls_push(&c->memo, (struct memo){ state, round, letter, *out });
    return LS_OK;
}

static const char *letter_name(const struct ls_transducer *t, uint32_t letter)
{
    const struct compiler *c = (const struct compiler *)t;
    return c->in.inner->letter_name(c->in.inner, letter);
}

static void rebuild(struct compiler *c, uint32_t which, const id_vec *seen)
{
    uint32_t *order = LS_NEW(c->arena, uint32_t, c->trains + 1);
    size_t n = 0;
    for (size_t i = 0; i < seen->count; i++)
        order[n++] = seen->at[i];
    for (size_t i = 0; i < c->trains; i++) { /* never used: with a static graph they end the list */
        bool there = false;
        for (size_t k = 0; k < seen->count; k++)
            there |= seen->at[k] == c->trained[i];
        if (!there)
            order[n++] = c->trained[i];
    }
    uint64_t limit = c->in.ddp->bucket_bytes ? c->in.ddp->bucket_bytes : (uint64_t)BUCKET_MIB * MIB;
    uint64_t first = c->in.ddp->bucket_bytes ? c->in.ddp->bucket_bytes : (uint64_t)FIRST_MIB * MIB;
    ls_ddp_assign(c->in.model, order, n, first, limit, false, c->arena, &c->rebuilt[which]);
}

/* Which parameters a batch uses, and the order in which the gradients of each, and of the fullest one, come. */
static enum ls_code look(struct compiler *c, struct ls_error *err)
{
    size_t most = 0;
    c->rebuilt = LS_NEW(c->arena, struct ls_ddp_buckets, c->in.inner->letters + 1);
    const struct ls_tables *t = c->in.tables;
    uint32_t round = 0;
    while (round < c->in.rounds->count && c->in.rounds->round[round].kind != LS_ROUND_MICRO)
        round++;
    c->used = LS_NEW(c->arena, bool *, c->in.inner->letters);
    for (uint32_t l = 0; l < c->in.inner->letters; l++) {
        struct ls_step got;
        id_vec seen = { 0 };
        c->used[l] = LS_NEW(c->arena, bool, c->in.model->params + 1);
        if (round == c->in.rounds->count)
            continue;
        enum ls_code rc = c->in.inner->step(c->in.inner, c->in.inner->start, round, l, &got, err);
        if (rc != LS_OK)
            return rc;
        for (size_t i = 0; i < got.role[0]->count; i++)
            for (uint32_t k = got.role[0]->op[i].kernel; got.role[0]->op[i].kernels && k < got.role[0]->op[i].kernel + got.role[0]->op[i].kernels; k++)
                if (t->kernel.at[k].what == LS_KERNEL_ACCUMULATE) {
                    c->used[l][t->kernel.at[k].statement] = true;
                    ls_push(&seen, t->kernel.at[k].statement);
                }
        if (c->in.ddp->static_graph)
            rebuild(c, l, &seen);
        if (l == 0 || seen.count > most) {
            most = seen.count;
            rebuild(c, (uint32_t)c->in.inner->letters, &seen);
        }
        ls_vec_release(&seen);
    }
    return LS_OK;
}

enum ls_code ls_ddp_open(const struct ls_ddp_input *in, struct ls_arena *arena, struct ls_transducer **out, struct ls_error *err)
{
    struct compiler *c = LS_NEW(arena, struct compiler, 1);
    const struct ls_model *m = in->model;
    assert(in->inner->roles == 1);
    c->in = *in;
    c->arena = arena;
    c->trained = LS_NEW(arena, uint32_t, m->params + 1);
    for (uint32_t i = 0; i < m->params; i++)
        if (m->param[i].canonical == i && in->requires_grad[i])
            c->trained[c->trains++] = i;
    if (!c->trains)
        return ls_fail(err, LS_EINPUT, in->ddp->at, "DDP is not needed: nothing of the model requires a gradient");
    uint64_t limit = in->ddp->bucket_bytes ? in->ddp->bucket_bytes : (uint64_t)BUCKET_MIB * MIB;
    uint64_t first = in->ddp->bucket_bytes ? in->ddp->bucket_bytes : (uint64_t)FIRST_MIB * MIB;
    bool whole = rebuilds(c); /* one bucket until the order of gradients is known */
    ls_ddp_assign(m, c->trained, c->trains, whole ? UINT64_MAX : first, whole ? UINT64_MAX : limit, true, arena, &c->initial);
    reverse(&c->initial, arena);
    c->cause = ls_tables_cause(in->tables, "strategy: ddp", in->ddp->at);
    c->t = (struct ls_transducer){ .tables = in->tables, .roles = 1, .letters = in->inner->letters, .step = step, .letter_name = letter_name,
                                   .states_max = in->inner->states_max };
    enum ls_code rc = look(c, err);
    c->t.start = intern(c, (struct state){ .inner = in->inner->start, .sync_buffers = true });
    *out = &c->t;
    return rc;
}

void ls_ddp_close(struct ls_transducer *t)
{
    if (!t)
        return;
    struct compiler *c = (struct compiler *)t;
    ls_vec_release(&c->state);
    ls_vec_release(&c->memo);
}
