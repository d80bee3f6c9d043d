/* All-gathers of a unit: issue, copy-out, reshard, and who frees the buffers when.
 *   source  _fsdp_param_group.py (unshard, wait_for_unshard, reshard), _fsdp_collectives.py (foreach_all_gather) */
#include "fsdp2/internal.h"

#include <assert.h>

unsigned context_stream(const struct run *r, uint32_t unit, unsigned stream)
{
    /* The compute stream is shared; every root has communication streams of its own. */
    uint32_t k = r->now.unit[unit].context;
    return stream == LS_STREAM_D || k == LS_NO_ID ? stream : stream + 4 * k;
}

struct context_state *unit_context(struct run *r, uint32_t unit)
{
    assert(r->now.unit[unit].context != LS_NO_ID);
    return &r->now.context[r->now.unit[unit].context];
}

bool unit_alone(const struct run *r, uint32_t unit)
{
    /* A shard group of one rank issues no collective. The small mesh has at least two ranks. */
    return unit_ranks(r, unit) == 1 && r->now.unit[unit].sharding != SHARDED_SMALL;
}

size_t unit_ranks(const struct run *r, uint32_t unit)
{
    return ls_plan_unit_ranks(r->c->in.plan, unit, r->c->shard);
}

bool unit_hsdp(const struct run *r, uint32_t unit)
{
    return r->c->replicate > 1 && unit_of(r, unit)->mesh == LS_UNIT_DP;
}

uint64_t padded_shard(const struct run *r, uint32_t param)
{
    return ls_plan_shard_elements(r->c->in.plan, param, r->c->shard);
}

static enum ls_reshard reshard_of(const struct run *r, uint32_t unit)
{
    const struct ls_unit *u = unit_of(r, unit);
    switch (u->reshard) {
    case LS_RESHARD_DEFAULT: {
        /* None: true, except that the root is set to false at lazy init. */
        bool root = r->now.unit[unit].context != LS_NO_ID && r->now.context[r->now.unit[unit].context].root == unit;
        return root ? LS_RESHARD_FALSE : LS_RESHARD_TRUE;
    }
    case LS_RESHARD_SMALL:
        return u->reshard_size == 1 ? LS_RESHARD_FALSE : u->reshard_size == unit_ranks(r, unit) ? LS_RESHARD_TRUE : LS_RESHARD_SMALL;
    case LS_RESHARD_TRUE:
        /* Up to 2.7 the root never freed its parameters after forward, whatever was asked for. */
        if (r->c->in.plan->runtime.version <= 207 && r->now.context[r->now.unit[unit].context].root == unit)
            return LS_RESHARD_FALSE;
        return LS_RESHARD_TRUE;
    case LS_RESHARD_FALSE:
        break;
    }
    return LS_RESHARD_FALSE;
}

enum ls_dtype gather_dtype(const struct run *r, uint32_t unit, uint32_t param)
{
    const struct ls_unit *u = unit_of(r, unit);
    enum ls_dtype own = r->c->in.plan->model->param[param].dtype;
    bool floating = own == LS_DTYPE_F64 || own == LS_DTYPE_F32 || own == LS_DTYPE_F16 || own == LS_DTYPE_BF16;
    return floating && u->param_dtype != LS_DTYPE_NONE ? u->param_dtype : own;
}

void wait_gather_streams(struct run *r, uint32_t unit, const char *event, uint32_t of)
{
    emit_wait(r, event, of, 0, context_stream(r, unit, LS_STREAM_CI));
    emit_wait(r, event, of, 0, context_stream(r, unit, LS_STREAM_G));
}

/* 2.13 rewrote what follows a backward. What is modelled is 2.15, the version recorded. */
bool rewritten(const struct run *r)
{
    return r->c->in.plan->runtime.version >= 213;
}

/* Up to 2.12 a local variable of the Python function held the buffer that was just given up until the function returned. */
static bool keeps_locals(const struct run *r)
{
    return !rewritten(r);
}

void unit_unshard(struct run *r, uint32_t unit, enum training training)
{
    struct unit_state *s = &r->now.unit[unit];
    const struct ls_unit *u = unit_of(r, unit);
    if (!u->params || s->gather_pending || s->sharding == UNSHARDED)
        return;
    if (!u->unshard_in_backward && training == PRE_BACKWARD)
        return;
    if (s->small_event) {
        wait_gather_streams(r, unit, "reshard", unit);
        s->small_event = false;
    }
    const struct context_state *k = unit_context(r, unit);
    uint32_t slot = k->kept_gather == unit && k->kept_slot == 0;
    s->gather_pending = 1 + slot;
    if (unit_alone(r, unit)) { /* an event is recorded all the same; nothing waits for it */
        emit_record(r, "gathered", unit, 0, LS_STREAM_D);
        return;
    }
    /* Any other training state uses the current stream, as a call outside forward and backward does. */
    bool apart = training == FORWARD || training == PRE_BACKWARD;
    unsigned ci = apart ? context_stream(r, unit, LS_STREAM_CI) : LS_STREAM_D;
    unsigned g = apart ? context_stream(r, unit, LS_STREAM_G) : LS_STREAM_D;
    bool small = s->sharding == SHARDED_SMALL;
    size_t ranks = small ? u->reshard_size : unit_ranks(r, unit);
    uint64_t in = 0, in_bytes = 0;
    enum ls_dtype dtype = gather_dtype(r, unit, u->param[0]);
    bool mixed = false;
    for (size_t i = 0; i < u->params; i++) {
        uint64_t n = padded_shard(r, u->param[i]);
        if (small)
            n = n * unit_ranks(r, unit) / u->reshard_size;
        enum ls_dtype d = gather_dtype(r, unit, u->param[i]);
        mixed |= d != dtype;
        in += n;
        in_bytes += n * ls_dtype_bytes(d);
    }
    if (mixed) { /* one buffer of bytes */
        dtype = LS_DTYPE_U8;
        in = in_bytes;
    }
    emit_memory(r, LS_OP_ALLOC, "ag_out", unit, ci, gather_buffer(r, unit, slot), in * ranks * ls_dtype_bytes(dtype));
    emit(r, LS_OP_COPY_IN, ci, unit)->bytes = 2 * in_bytes;
    emit_range(r, gather_buffer(r, unit, slot), true);
    emit_wait_stream(r, g, ci);
    struct ls_op *op = emit(r, LS_OP_ALL_GATHER, g, unit);
    op->comm = (uint16_t)(small ? r->c->comm_small[unit] : u->mesh == LS_UNIT_EXPERTS ? r->c->comm_experts : r->c->comm_shard);
    op->dtype = (uint8_t)dtype;
    op->count = in;
    op->payload = r->c->gather_payload[unit];
    emit_range(r, gather_buffer(r, unit, slot), true);
    emit_record(r, "gathered", unit, 0, g);
}

void free_gathered(struct run *r, uint32_t unit, uint32_t slot)
{
    if (!unit_alone(r, unit))
        emit_memory(r, LS_OP_FREE, "ag_out", unit, context_stream(r, unit, LS_STREAM_CI), gather_buffer(r, unit, slot), 0);
}

static uint64_t full_bytes(const struct run *r, uint32_t unit, uint32_t param)
{
    return padded_shard(r, param) * unit_ranks(r, unit) * ls_dtype_bytes(gather_dtype(r, unit, param));
}

static void resize(struct run *r, uint32_t unit, bool full)
{
    const struct ls_unit *u = unit_of(r, unit);
    for (size_t i = 0; i < u->params; i++) {
        emit_memory(r, full ? LS_OP_ALLOC : LS_OP_FREE, ls_name_text(r->c->names, r->c->in.plan->model->param[u->param[i]].name),
                    unit, LS_STREAM_D, r->c->buffer.full[unit], full ? full_bytes(r, unit, u->param[i]) : 0);
        r->ops.at[r->ops.count - 1].module = r->c->in.plan->model->param[u->param[i]].name;
    }
}

void unit_wait_for_unshard(struct run *r, uint32_t unit, enum training training)
{
    struct unit_state *s = &r->now.unit[unit];
    if (!s->gather_pending)
        return;
    struct context_state *k = unit_context(r, unit);
    uint32_t old = LS_NO_ID, old_slot = 0, slot = s->gather_pending - 1;
    if (training == FORWARD && k->kept_gather != LS_NO_ID) {
        wait_gather_streams(r, unit, "copied_out", k->kept_gather);
        old = k->kept_gather, old_slot = k->kept_slot;
        k->kept_gather = LS_NO_ID;
        if (!keeps_locals(r))
            free_gathered(r, old, old_slot);
    }
    bool alone = unit_alone(r, unit);
    if (!alone)
        emit_wait(r, "gathered", unit, 0, LS_STREAM_D);
    resize(r, unit, true);
    uint64_t bytes = 0;
    for (size_t i = 0; i < unit_of(r, unit)->params; i++)
        bytes += full_bytes(r, unit, unit_of(r, unit)->param[i]);
    emit(r, LS_OP_COPY_OUT, LS_STREAM_D, unit)->bytes = 2 * bytes;
    if (!alone)
        emit_range(r, gather_buffer(r, unit, slot), false);
    emit_range(r, r->c->buffer.full[unit], true);
    s->ever_unsharded = true;
    s->sharding = UNSHARDED;
    emit_record(r, "copied_out", unit, 0, LS_STREAM_D);
    if (training == FORWARD && !alone) {
        k->kept_gather = unit, k->kept_slot = slot;
    } else {
        wait_gather_streams(r, unit, "copied_out", unit);
        if (!alone)
            free_gathered(r, unit, slot);
    }
    s->gather_pending = 0;
    if (old != LS_NO_ID && keeps_locals(r))
        free_gathered(r, old, old_slot);
}

void unit_reshard(struct run *r, uint32_t unit)
{
    struct unit_state *s = &r->now.unit[unit];
    if (s->sharding == UNSHARDED)
        resize(r, unit, false);
    s->sharding = SHARDED;
}

void unit_reshard_after_forward(struct run *r, uint32_t unit)
{
    struct unit_state *s = &r->now.unit[unit];
    switch (reshard_of(r, unit)) {
    case LS_RESHARD_FALSE:
    case LS_RESHARD_DEFAULT:
        return;
    case LS_RESHARD_TRUE:
        unit_reshard(r, unit);
        return;
    case LS_RESHARD_SMALL:
        if (s->sharding != SHARDED_SMALL) {
            resize(r, unit, false);
            s->sharding = SHARDED_SMALL;
        }
        emit_record(r, "reshard", unit, 0, LS_STREAM_D);
        s->small_event = true;
        return;
    }
}
