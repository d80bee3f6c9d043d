#include "recording.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { TOKENS = 3 };

struct printer {
    const struct ls_compiled *c;
    size_t shard;
    uint32_t *number;  /* [events] of the latest record */
    size_t events, records;
    struct ls_str *out;
};

static const char *name(const struct printer *p, uint32_t id)
{
    return ls_tables_name(&p->c->tables, id);
}

static const char *stream(const struct printer *p, const struct ls_op *op)
{
    return name(p, p->c->tables.stream.at[op->stream]);
}

static bool is_stream_event(const struct printer *p, uint32_t event)
{
    return strncmp(name(p, p->c->tables.event.at[event]), "stream ", 7) == 0;
}

static void print_params(const struct printer *p, const struct ls_op *op)
{
    const struct ls_payload *payload = &p->c->tables.payload.at[op->payload];
    ls_str_add(p->out, " params=");
    for (size_t i = 0; i < payload->count; i++)
        ls_str_printf(p->out, "%s%s", i ? "," : "", name(p, payload->items[i]));
}

static void print_op(struct printer *p, const struct ls_op *op, const struct ls_op *next)
{
    const struct ls_tables *t = &p->c->tables;
    const char *unit = name(p, op->unit), *what = name(p, op->module);
    const char *group = ls_op_uses_comm(op) ? name(p, t->comm.at[op->comm].name) : "";
    int group_length = (int)strcspn(group, " ");
    bool buffer = strcmp(what, "ag_out") == 0 || strcmp(what, "rs_in") == 0 || strcmp(what, "rs_out") == 0;
    unsigned long long count = op->count, bytes = op->bytes;
    size_t ranks = p->shard;
    if (op->symbol != LS_NO_ID) /* expert routing: every rank of a recording has this many tokens */
        count *= TOKENS;
    if (strcmp(group, "ep_shard") == 0)
        ranks = p->c->plan.experts.ep_shard;
    if (strncmp(group, "reshard_", 8) == 0)
        ranks = (size_t)strtoull(group + 8, NULL, 10);
    switch ((enum ls_op_kind)op->kind) {
    case LS_OP_MARK:
        ls_str_printf(p->out, "%s unit=%s\n", what, unit);
        break;
    case LS_OP_ALLOC:
        if (buffer)
            ls_str_printf(p->out, "alloc buf=%s unit=%s stream=%s bytes=%llu\n", what, unit, stream(p, op), bytes);
        else
            ls_str_printf(p->out, "resize unit=%s param=%s bytes=%llu\n", unit, what, bytes);
        break;
    case LS_OP_FREE:
        if (buffer)
            ls_str_printf(p->out, "free buf=%s unit=%s\n", what, unit);
        else
            ls_str_printf(p->out, "resize unit=%s param=%s bytes=0\n", unit, what);
        break;
    case LS_OP_COPY_IN:
        ls_str_printf(p->out, "%s unit=%s stream=%s\n", op->payload == LS_NO_ID ? "copy_in" : "rs_copy_in", unit, stream(p, op));
        break;
    case LS_OP_COPY_OUT:
        if (op->payload == LS_NO_ID && p->shard > 1) /* groups of one rank copy without FSDP2's operator */
            ls_str_printf(p->out, "copy_out unit=%s stream=%s\n", unit, stream(p, op));
        break;
    case LS_OP_RECORD:
        if (is_stream_event(p, op->event)) {
            assert(next && next->kind == LS_OP_WAIT && next->event == op->event);
            ls_str_printf(p->out, "wait_stream %s on=%s\n", name(p, t->stream.at[next->stream]), stream(p, op));
            break;
        }
        p->number[op->event] = (uint32_t)++p->records;
        ls_str_printf(p->out, "record e%zu stream=%s\n", p->records, stream(p, op));
        break;
    case LS_OP_WAIT:
        if (!is_stream_event(p, op->event))
            ls_str_printf(p->out, "wait e%u stream=%s\n", p->number[op->event], stream(p, op));
        break;
    case LS_OP_HOST_WAIT:
        ls_str_printf(p->out, "host_wait e%u\n", p->number[op->event]);
        break;
    case LS_OP_ALL_GATHER:
        if (op->unit == LS_NO_ID) {
            ls_str_printf(p->out, "gather group=%s n=%llu dtype=%s stream=%s\n", group, count, ls_dtype_name(op->dtype), stream(p, op));
            break;
        }
        ls_str_printf(p->out, "ag unit=%s group=%.*s in=%llu out=%llu dtype=%s stream=%s", unit, group_length, group, count,
                      count * ranks, ls_dtype_name(op->dtype), stream(p, op));
        print_params(p, op);
        ls_str_add(p->out, "\n");
        break;
    case LS_OP_REDUCE_SCATTER:
        ls_str_printf(p->out, "rs unit=%s group=%.*s in=%llu out=%llu dtype=%s op=%s stream=%s", unit, group_length, group,
                      count * ranks, count, ls_dtype_name(op->dtype), ls_reduce_name(op->reduce), stream(p, op));
        print_params(p, op);
        ls_str_add(p->out, "\n");
        break;
    case LS_OP_ALL_REDUCE:
        if (op->unit == LS_NO_ID) {
            ls_str_printf(p->out, "reduce group=%s n=%llu dtype=%s op=%s stream=%s\n", group, count, ls_dtype_name(op->dtype),
                          ls_reduce_name(op->reduce), stream(p, op));
            break;
        }
        ls_str_printf(p->out, "ar unit=%s group=%.*s n=%llu dtype=%s op=%s stream=%s\n", unit, group_length, group, count,
                      ls_dtype_name(op->dtype), ls_reduce_name(op->reduce), stream(p, op));
        break;
    case LS_OP_STOP:
        ls_str_printf(p->out, "error %.*s\n", (int)strcspn(what, ":"), what);
        break;
    case LS_OP_COMPUTE:
        break; /* no business of FSDP2 */
    case LS_OP_REDUCE: case LS_OP_BROADCAST: case LS_OP_ALL_TO_ALL: case LS_OP_GATHER: case LS_OP_SCATTER: case LS_OP_SCAN:
    case LS_OP_BARRIER: case LS_OP_COMM_INIT: case LS_OP_DECIDE: case LS_OP_SEND: case LS_OP_RECV: case LS_OP_COUNT:
        ls_str_printf(p->out, "unexpected %s\n", ls_op_kind_name(op->kind));
        break;
    }
}

enum ls_code recording_of_rank(const struct ls_compiled *c, size_t shard, size_t replica, struct ls_str *out, struct ls_error *err)
{
    const struct ls_driver *driver = &c->system.driver;
    const struct ls_contract *contract = &c->system.contract;
    struct ls_transducer *t = c->system.replica;
    assert(contract->extra == LS_CONTRACT_TABLE);
    /* step() may add events while it compiles, so the map grows from round to round. */
    struct printer p = { .c = c, .shard = shard, .out = out };
    size_t seen[4] = { 0 };
    uint32_t state = t->start, node = 0;
    bool stopped = false;
    enum ls_code rc = LS_OK;
    for (size_t row = 0; row < contract->rows && !stopped && rc == LS_OK; row++) {
        const struct ls_driver_node *n = &driver->node[node];
        enum ls_round_kind kind = c->rounds.round[n->round].kind;
        static const char *const kinds[] = { "micro", "step", "eval", "idle" };
        struct ls_step s;
        rc = t->step(t, state, n->round, contract->table[row * contract->columns + replica], &s, err);
        if (rc != LS_OK)
            break;
        p.number = realloc(p.number, (c->tables.event.count + 1) * sizeof *p.number);
        assert(p.number);
        if (kind != LS_ROUND_IDLE)
            ls_str_printf(out, "round %s %zu\n", kinds[kind], seen[kind]++);
        const struct ls_segment *segment = s.role[0];
        for (size_t i = 0; i < segment->count; i++) {
            print_op(&p, &segment->op[i], i + 1 < segment->count ? &segment->op[i + 1] : NULL);
            stopped |= segment->op[i].kind == LS_OP_STOP;
        }
        state = s.next;
        if (n->nexts)
            node = n->next[0];
    }
    free(p.number);
    return rc;
}
