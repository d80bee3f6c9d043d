/* Ops, events and buffers. Consecutive computations of one pass are one op, so programs stay short. */
#include "fsdp2/internal.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void emit_close_compute(struct run *r)
{
    if (!r->open_compute)
        return;
    r->open_compute = false;
    struct ls_op *op = &r->ops.at[r->ops.count - 1];
    if (r->shares.count) {
        op->payload = ls_tables_payload(r->c->in.tables, "gradients", r->shares.at, r->shares.count, 0);
        r->shares.count = 0;
    }
}

struct ls_op *emit(struct run *r, enum ls_op_kind kind, unsigned stream, uint32_t unit)
{
    emit_close_compute(r);
    struct ls_op op = ls_op_make(kind);
    op.pass = (uint8_t)r->pass;
    op.stream = (uint8_t)stream;
    op.microbatch = r->round ? r->round->microbatch : 0;
    op.range = (uint32_t)r->c->in.tables->range.count;
    if (unit != LS_NO_ID) {
        op.unit = unit_of(r, unit)->name;
        op.cause = r->c->unit_cause[unit];
    }
    ls_push(&r->ops, op);
    return &r->ops.at[r->ops.count - 1];
}

void emit_range(struct run *r, uint32_t buffer, bool write)
{
    struct ls_op *op = &r->ops.at[r->ops.count - 1];
    struct ls_tables *t = r->c->in.tables;
    /* The ranges of an op are contiguous: only the newest op may still grow. */
    assert(op->range + op->ranges == t->range.count);
    for (uint32_t i = op->range; i < op->range + op->ranges; i++)
        if (t->range.at[i].buffer == buffer) {
            t->range.at[i].write |= write;
            return;
        }
    ls_push(&t->range, (struct ls_range){ .buffer = buffer, .write = write });
    op->ranges++;
}

void emit_mark(struct run *r, const char *what, uint32_t unit)
{
    struct ls_op *op = emit(r, LS_OP_MARK, LS_STREAM_D, unit);
    op->module = ls_name_id(r->c->names, what);
}

static uint32_t event_id(struct run *r, const char *event, uint32_t unit, uint32_t slot)
{
    char text[256];
    snprintf(text, sizeof text, slot ? "%s %s %u" : "%s %s", event,
             unit == LS_NO_ID ? "" : ls_name_text(r->c->names, unit_of(r, unit)->name), slot);
    return ls_tables_event(r->c->in.tables, text);
}

void emit_record(struct run *r, const char *event, uint32_t unit, uint32_t slot, unsigned stream)
{
    uint32_t id = event_id(r, event, unit, slot);
    emit(r, LS_OP_RECORD, stream, unit)->event = id;
}

void emit_wait(struct run *r, const char *event, uint32_t unit, uint32_t slot, unsigned stream)
{
    uint32_t id = event_id(r, event, unit, slot);
    emit(r, LS_OP_WAIT, stream, unit)->event = id;
}

void emit_wait_stream(struct run *r, unsigned stream, unsigned on)
{
    emit_record(r, "stream", LS_NO_ID, on, on);
    emit_wait(r, "stream", LS_NO_ID, on, stream);
}

void emit_link(struct run *r, struct ls_kernel *kernel, uint32_t instance, uint32_t out)
{
    struct ls_tables *t = r->c->in.tables;
    if (!kernel->links++)
        kernel->link = (uint32_t)t->link.count;
    ls_push(&t->link, (struct ls_link){ instance, out });
}

void emit_compute(struct run *r, uint32_t module, struct ls_kernel kernel, const uint32_t *params, size_t count)
{
    struct ls_tables *t = r->c->in.tables;
    const bool experts = kernel.what == LS_KERNEL_ACCUMULATE && r->c->comm_dispatch != LS_NO_ID &&
                         r->c->in.plan->experts.layer[kernel.statement] != LS_NO_ID;
    if (r->open_compute && r->open_experts != experts)
        emit_close_compute(r);
    r->open_experts = experts;
    if (!r->open_compute) {
        struct ls_op *op = emit(r, LS_OP_COMPUTE, LS_STREAM_D, LS_NO_ID);
        op->module = module == LS_NO_ID ? LS_NO_ID : r->c->in.plan->model->module[module].name;
        op->kernel = (uint32_t)t->kernel.count;
        if (experts)
            op->sources = (uint16_t)r->c->comm_dispatch;
        r->open_compute = true;
    }
    ls_push(&t->kernel, kernel);
    r->ops.at[r->ops.count - 1].kernels++;
    for (size_t i = 0; i < count; i++) {
        uint32_t unit = r->c->in.plan->owner[params[i]];
        if (unit != LS_NO_ID)
            emit_range(r, r->c->buffer.full[unit], false);
    }
}

void emit_share(struct run *r, uint32_t param)
{
    emit_compute(r, LS_NO_ID, (struct ls_kernel){ .what = LS_KERNEL_ACCUMULATE, .statement = param, .instance = LS_NO_ID }, NULL, 0);
    ls_push(&r->shares, r->c->in.plan->model->param[param].name);
}

void emit_memory(struct run *r, enum ls_op_kind kind, const char *what, uint32_t unit, unsigned pool, uint32_t buffer, uint64_t bytes)
{
    struct ls_op *op = emit(r, kind, pool, unit);
    op->module = ls_name_id(r->c->names, what);
    op->bytes = bytes;
    emit_range(r, buffer, true);
}

void emit_stop(struct run *r, uint32_t unit, const char *format, ...)
{
    char text[320];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    struct ls_op *op = emit(r, LS_OP_STOP, LS_STREAM_D, unit);
    op->module = ls_name_id(r->c->names, text);
    r->now.stopped = true;
}

static enum ls_category category_of(const char *what)
{
    return strcmp(what, "full") == 0 ? LS_CATEGORY_UNSHARDED : strcmp(what, "ag_out") == 0 ? LS_CATEGORY_GATHER :
           strcmp(what, "gradients") == 0 ? LS_CATEGORY_GRADIENT : LS_CATEGORY_REDUCE;
}

static uint32_t add_buffer(struct compiler *c, const char *what, uint32_t unit, uint8_t pool)
{
    char text[256];
    snprintf(text, sizeof text, "%s %s", what, ls_name_text(c->names, c->in.plan->unit[unit].name));
    ls_push(&c->in.tables->buffer, (struct ls_buffer){ .name = ls_name_id(c->names, text), .pool = pool, .category = (uint8_t)category_of(what) });
    return (uint32_t)c->in.tables->buffer.count - 1;
}

static uint32_t pooled(struct compiler *c, const char *what, uint32_t unit, uint32_t slot, unsigned pool)
{
    for (size_t i = 0; i < c->buffer.pooled.count; i++) {
        const struct pool_buffer *b = &c->buffer.pooled.at[i];
        if (b->unit == unit && b->slot == slot && b->pool == pool)
            return b->id;
    }
    ls_push(&c->buffer.pooled, (struct pool_buffer){ unit, slot, add_buffer(c, what, unit, (uint8_t)pool), (uint8_t)pool });
    return c->buffer.pooled.at[c->buffer.pooled.count - 1].id;
}

uint32_t gather_buffer(const struct run *r, uint32_t unit, uint32_t slot)
{
    return pooled(r->c, "ag_out", unit, slot, context_stream(r, unit, LS_STREAM_CI));
}

uint32_t input_buffer(const struct run *r, uint32_t unit, uint32_t slot)
{
    return pooled(r->c, "rs_in", unit, slot, LS_STREAM_D);
}

uint32_t output_buffer(const struct run *r, uint32_t unit, uint32_t slot)
{
    return pooled(r->c, "rs_out", unit, slot, context_stream(r, unit, LS_STREAM_S));
}

void emit_open(struct compiler *c)
{
    const struct ls_plan *plan = c->in.plan;
    size_t n = plan->units;
    c->buffer = (struct buffers){ .full = LS_NEW(c->arena, uint32_t, n), .reduced = LS_NEW(c->arena, uint32_t, n) };
    c->unit_cause = LS_NEW(c->arena, uint32_t, n);
    c->gather_payload = LS_NEW(c->arena, uint32_t, n);
    for (uint32_t i = 0; i < n; i++) {
        const struct ls_unit *u = &plan->unit[i];
        c->buffer.full[i] = add_buffer(c, "full", i, LS_STREAM_D);
        c->buffer.reduced[i] = add_buffer(c, "gradients", i, LS_STREAM_D);
        c->unit_cause[i] = ls_tables_cause(c->in.tables, u->why ? u->why : "units", u->at);
        uint32_t *names = LS_NEW(c->arena, uint32_t, u->params);
        uint64_t shard = 0;
        for (size_t p = 0; p < u->params; p++) {
            names[p] = plan->model->param[u->param[p]].name;
            shard += ls_plan_shard_elements(plan, u->param[p], c->shard);
        }
        /* Told apart from the reduction of the same parameters by its name: ops of different kinds never pair anyway. */
        c->gather_payload[i] = ls_tables_payload(c->in.tables, ls_name_text(c->names, u->name), names, u->params, shard);
    }
}
