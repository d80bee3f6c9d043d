#include "scenario/raw_op.h"

#include "base/vec.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>

enum { NESTING_MAX = 32, BUFFERS_MAX = 4096 };

typedef LS_VEC(struct ls_raw_item) item_vec;

/* What leads an op, and the keys that may follow. */
enum { RUNS = 1, COMM = 2, SIZED = 4, REDUCES = 8, ROOTED = 16, PEER = 32, TOUCHES = 64, DECIDES = 128, CREATES = 256, BUFFER = 512,
       SLOTS = 1024, NOT_FUSED = 2048 };
static const struct { const char *name; enum ls_op_kind kind; unsigned has; } leader[] = {
    { "all_gather", LS_OP_ALL_GATHER, RUNS | COMM | SIZED | TOUCHES | SLOTS },
    { "reduce_scatter", LS_OP_REDUCE_SCATTER, RUNS | COMM | SIZED | REDUCES | TOUCHES | SLOTS },
    { "all_reduce", LS_OP_ALL_REDUCE, RUNS | COMM | SIZED | REDUCES | TOUCHES | SLOTS },
    { "reduce", LS_OP_REDUCE, RUNS | COMM | SIZED | REDUCES | ROOTED | TOUCHES | SLOTS },
    { "broadcast", LS_OP_BROADCAST, RUNS | COMM | SIZED | ROOTED | TOUCHES | SLOTS },
    { "all_to_all", LS_OP_ALL_TO_ALL, RUNS | COMM | SIZED | TOUCHES | SLOTS },
    { "gather", LS_OP_GATHER, RUNS | COMM | SIZED | ROOTED | TOUCHES | SLOTS },
    { "scatter", LS_OP_SCATTER, RUNS | COMM | SIZED | ROOTED | TOUCHES | SLOTS },
    { "scan", LS_OP_SCAN, RUNS | COMM | SIZED | REDUCES | TOUCHES | SLOTS },
    { "barrier", LS_OP_BARRIER, RUNS | COMM | SLOTS },
    { "comm_init", LS_OP_COMM_INIT, RUNS | COMM | CREATES },
    { "decide", LS_OP_DECIDE, RUNS | COMM | REDUCES | DECIDES | SLOTS | NOT_FUSED },
    { "send", LS_OP_SEND, RUNS | COMM | SIZED | PEER | TOUCHES | SLOTS },
    { "recv", LS_OP_RECV, RUNS | COMM | SIZED | PEER | TOUCHES | SLOTS },
    { "compute", LS_OP_COMPUTE, RUNS | TOUCHES },
    { "read", LS_OP_COMPUTE, RUNS | BUFFER },
    { "write", LS_OP_COMPUTE, RUNS | BUFFER },
    { "record", LS_OP_RECORD, RUNS },
    { "wait", LS_OP_WAIT, RUNS },
    { "host_wait", LS_OP_HOST_WAIT, 0 },
    { "alloc", LS_OP_ALLOC, BUFFER },
    { "free", LS_OP_FREE, BUFFER },
    { "stop", LS_OP_STOP, 0 },
};
enum { LEADERS = sizeof leader / sizeof *leader };

#define NAME2(id, name) name,
#define NAME3(id, name, bytes) name,
static const char *const dtypes[] = { LS_DTYPES(NAME3) NULL };
static const char *const reduces[] = { LS_REDUCES(NAME2) NULL };

static enum ls_code find_leader(struct ls_raw_reader *l, const struct ls_yaml_node *n, size_t *out)
{
    const char *names[LEADERS + 1];
    for (size_t i = 0; i < LEADERS; i++)
        names[i] = leader[i].name;
    names[LEADERS] = NULL;
    LS_TRY(ls_yaml_map(n, "op", l->err));
    if (n->count == 0)
        return ls_fail(l->err, LS_EINPUT, n->at, "an op is empty");
    const struct ls_yaml_node *key = n->pair[0].key;
    for (size_t i = 0; i < LEADERS; i++)
        if (strcmp(key->text, names[i]) == 0) {
            *out = i;
            return LS_OK;
        }
    ls_fail(l->err, LS_EINPUT, key->at, "'%s' is no kind of op; an op is led by its kind", key->text);
    const char *near = ls_nearest(key->text, names);
    if (near)
        ls_hint(l->err, "did you mean '%s'?", near);
    return LS_EINPUT;
}

static enum ls_code check_keys(struct ls_raw_reader *l, const struct ls_yaml_node *n, size_t lead)
{
    unsigned has = leader[lead].has;
    const char *known[32];
    size_t k = 0;
    known[k++] = leader[lead].name;
    known[k++] = "when";
    known[k++] = "unless";
    known[k++] = "thread";
    if (has & RUNS) {
        known[k++] = "stream";
        known[k++] = "blocking";
        if (leader[lead].kind != LS_OP_WAIT)
            known[k++] = "wait";
        if (leader[lead].kind != LS_OP_RECORD)
            known[k++] = "record";
    }
    if (has & COMM && !(has & NOT_FUSED))
        known[k++] = "fused";
    if (has & SLOTS)
        known[k++] = "slots";
    if (has & SIZED) {
        known[k++] = "count";
        known[k++] = "dtype";
        known[k++] = "payload";
    }
    if (has & REDUCES && leader[lead].kind != LS_OP_REDUCE)
        known[k++] = "reduce";
    if (has & ROOTED)
        known[k++] = "root";
    if (has & PEER)
        known[k++] = "peer";
    if (has & TOUCHES) {
        known[k++] = "reads";
        known[k++] = "writes";
    }
    if (has & DECIDES) {
        known[k++] = "value";
        known[k++] = "choice";
        known[k++] = "then";
        known[k++] = "else";
    }
    if (has & CREATES)
        known[k++] = "parent";
    if (leader[lead].kind == LS_OP_REDUCE)
        known[k++] = "operator"; /* `reduce` already names the group */
    if (leader[lead].kind == LS_OP_ALLOC) {
        known[k++] = "bytes";
        known[k++] = "stream";
    }
    known[k] = NULL;
    return ls_yaml_check_keys(n, leader[lead].name, known, l->err);
}

static enum ls_code read_name(struct ls_raw_reader *l, const struct ls_yaml_node *n, const char *key, const char **out)
{
    LS_TRY(ls_yaml_text(n, key, out, l->err));
    return **out ? LS_OK : ls_fail(l->err, LS_EINPUT, n->at, "'%s' is empty", key);
}

static enum ls_code find_comm(struct ls_raw_reader *l, const struct ls_yaml_node *n, const char *key, uint32_t *out)
{
    const char *name, *names[LS_RAW_GROUPS_MAX + 1];
    size_t k = 0;
    LS_TRY(read_name(l, n, key, &name));
    for (uint32_t c = 0; c < l->t->comm.count; c++) {
        names[k] = ls_tables_name(l->t, l->t->comm.at[c].name);
        if (strcmp(names[k++], name) == 0) {
            *out = c;
            return LS_OK;
        }
    }
    names[k] = NULL;
    ls_fail(l->err, LS_EINPUT, n->at, "no group '%s' in 'groups'", name);
    const char *near = ls_nearest(name, names);
    if (near)
        ls_hint(l->err, "did you mean '%s'?", near);
    return LS_EINPUT;
}

static enum ls_code find_branch(struct ls_raw_reader *l, const struct ls_yaml_node *n, const char *key, uint32_t *out)
{
    const char *name, *names[LS_RAW_BRANCHES_MAX + 1];
    LS_TRY(read_name(l, n, key, &name));
    for (uint32_t i = 0; i < l->raw->branches; i++) {
        names[i] = l->raw->branch[i].name;
        if (strcmp(names[i], name) == 0) {
            *out = i;
            return LS_OK;
        }
    }
    names[l->raw->branches] = NULL;
    ls_fail(l->err, LS_EINPUT, n->at, "no branch '%s' in 'branches'", name);
    const char *near = ls_nearest(name, names);
    if (near)
        ls_hint(l->err, "did you mean '%s'?", near);
    return LS_EINPUT;
}

static enum ls_code find_stream(struct ls_raw_reader *l, const struct ls_yaml_node *n, uint8_t *out)
{
    const char *name;
    LS_TRY(read_name(l, n, "stream", &name));
    if (l->t->stream.count > UINT8_MAX)
        return ls_fail(l->err, LS_EINPUT, n->at, "more than %d streams", UINT8_MAX);
    *out = (uint8_t)ls_tables_stream(l->t, name);
    return LS_OK;
}

static enum ls_code find_event(struct ls_raw_reader *l, const struct ls_yaml_node *n, const char *key, uint32_t *out)
{
    const char *name;
    LS_TRY(read_name(l, n, key, &name));
    *out = ls_tables_event(l->t, name);
    return LS_OK;
}

static enum ls_code find_buffer(struct ls_raw_reader *l, const struct ls_yaml_node *n, const char *key, uint32_t *out)
{
    const char *name;
    LS_TRY(read_name(l, n, key, &name));
    uint32_t id = ls_name_id(l->t->names, name);
    for (uint32_t b = 0; b < l->t->buffer.count; b++)
        if (l->t->buffer.at[b].name == id) {
            *out = b;
            return LS_OK;
        }
    if (l->t->buffer.count >= BUFFERS_MAX)
        return ls_fail(l->err, LS_EINPUT, n->at, "more than %d buffers", BUFFERS_MAX);
    ls_push(&l->t->buffer, (struct ls_buffer){ .name = id });
    *out = (uint32_t)l->t->buffer.count - 1;
    return LS_OK;
}

/* A name or a list of names. */
static size_t names_count(const struct ls_yaml_node *n) { return n->kind == LS_YAML_LIST ? n->count : 1; }
static const struct ls_yaml_node *names_at(const struct ls_yaml_node *n, size_t i) { return n->kind == LS_YAML_LIST ? n->item[i] : n; }

static enum ls_code read_payload(struct ls_raw_reader *l, const struct ls_yaml_node *n, uint32_t *out)
{
    const char *name;
    if (n->kind != LS_YAML_LIST) {
        LS_TRY(read_name(l, n, "payload", &name));
        *out = ls_tables_payload(l->t, name, NULL, 0, 0);
        return LS_OK;
    }
    if (n->count == 0)
        return ls_fail(l->err, LS_EINPUT, n->at, "'payload' is an empty list");
    struct ls_str joined = { 0 };
    LS_VEC(uint32_t) items = { 0 };
    enum ls_code rc = LS_OK;
    for (size_t i = 0; i < n->count && rc == LS_OK; i++) {
        rc = read_name(l, n->item[i], "payload", &name);
        if (rc == LS_OK) {
            ls_str_printf(&joined, i ? "+%s" : "%s", name);
            ls_push(&items, ls_name_id(l->t->names, name));
        }
    }
    if (rc == LS_OK)
        *out = ls_tables_payload(l->t, ls_str_text(&joined), items.at, items.count, 0);
    ls_str_release(&joined);
    ls_vec_release(&items);
    return rc;
}

/* A number; a list with one number per member; or a name for a count that is known at run time only. */
static enum ls_code read_count(struct ls_raw_reader *l, const struct ls_yaml_node *n, struct ls_op *op)
{
    op->count = 0;
    if (n->kind == LS_YAML_LIST) {
        if (n->count == 0)
            return ls_fail(l->err, LS_EINPUT, n->at, "'count' is an empty list");
        op->counts = (uint32_t)l->t->vector.count;
        ls_push(&l->t->vector, n->count);
        for (size_t i = 0; i < n->count; i++) {
            uint64_t value;
            LS_TRY(ls_yaml_uint(n->item[i], "count", 0, UINT64_MAX / 2, &value, l->err));
            ls_push(&l->t->vector, value);
        }
        return LS_OK;
    }
    const char *text;
    LS_TRY(read_name(l, n, "count", &text));
    bool letter = (*text >= 'a' && *text <= 'z') || (*text >= 'A' && *text <= 'Z') || *text == '_';
    if (!letter)
        return ls_yaml_uint(n, "count", 0, UINT64_MAX / 2, &op->count, l->err);
    op->symbol = ls_name_id(l->t->names, text);
    return LS_OK;
}

static enum ls_code read_ranges(struct ls_raw_reader *l, const struct ls_yaml_node *n, const char *key, bool write, struct ls_op *op)
{
    for (size_t i = 0; i < names_count(n); i++) {
        uint32_t buffer = LS_NO_ID; /* read only where the name is found, which gcc does not see */
        LS_TRY(find_buffer(l, names_at(n, i), key, &buffer));
        if (op->ranges++ == 0)
            op->range = (uint32_t)l->t->range.count;
        ls_push(&l->t->range, (struct ls_range){ .buffer = buffer, .write = write });
    }
    return LS_OK;
}

static enum ls_code read_buffer_op(struct ls_raw_reader *l, const struct ls_yaml_node *n, size_t lead, struct ls_op *op)
{
    const struct ls_yaml_node *value = n->pair[0].value, *v;
    const char *name = leader[lead].name;
    LS_TRY(read_ranges(l, value, name, op->kind != LS_OP_COMPUTE || strcmp(name, "write") == 0, op));
    if (op->kind != LS_OP_COMPUTE && op->ranges != 1)
        return ls_fail(l->err, LS_EINPUT, value->at, "'%s' takes one buffer", name);
    if (op->kind != LS_OP_ALLOC)
        return LS_OK;
    uint32_t b = l->t->range.at[op->range].buffer;
    uint8_t pool = 0;
    uint64_t bytes = 0;
    if ((v = ls_yaml_get(n, "stream")))
        LS_TRY(find_stream(l, v, &pool));
    if ((v = ls_yaml_get(n, "bytes")))
        LS_TRY(ls_yaml_uint(v, "bytes", 0, UINT64_MAX / 2, &bytes, l->err));
    if (l->pooled_room <= b) {
        size_t room = 2 * (size_t)b + 16;
        bool *more = LS_NEW(l->arena, bool, room);
        if (l->pooled_room)
            memcpy(more, l->pooled, l->pooled_room);
        l->pooled = more;
        l->pooled_room = room;
    }
    struct ls_buffer *buffer = &l->t->buffer.at[b];
    if (l->pooled[b] && buffer->pool != pool)
        return ls_fail(l->err, LS_EINPUT, n->at, "buffer '%s' is allocated on two streams, '%s' and '%s'",
                       ls_tables_name(l->t, buffer->name), ls_tables_name(l->t, l->t->stream.at[buffer->pool]),
                       ls_tables_name(l->t, l->t->stream.at[pool]));
    l->pooled[b] = true;
    buffer->pool = pool;
    buffer->bytes = op->bytes = bytes;
    return LS_OK;
}

static enum ls_code read_decide(struct ls_raw_reader *l, const struct ls_yaml_node *n, struct ls_raw_item *item)
{
    const struct ls_yaml_node *value = ls_yaml_get(n, "value"), *choice = ls_yaml_get(n, "choice"), *v;
    uint64_t number = 0;
    if (value && choice)
        return ls_fail(l->err, LS_EINPUT, choice->at, "'choice' and 'value' both say what the rank contributes");
    if (value)
        LS_TRY(ls_yaml_uint(value, "value", 0, UINT32_MAX - 1, &number, l->err));
    if (choice)
        LS_TRY(find_branch(l, choice, "choice", &item->choice));
    item->op.value = (uint32_t)number;
    if ((v = ls_yaml_get(n, "then")))
        LS_TRY(ls_raw_read_list(l, v, "then", &item->then_list));
    if ((v = ls_yaml_get(n, "else")))
        LS_TRY(ls_raw_read_list(l, v, "else", &item->else_list));
    return LS_OK;
}

static enum ls_code read_comm_op(struct ls_raw_reader *l, const struct ls_yaml_node *n, size_t lead, struct ls_raw_item *item)
{
    struct ls_op *op = &item->op;
    const struct ls_yaml_node *v;
    uint32_t comm = 0;
    uint64_t number;
    size_t index;
    unsigned has = leader[lead].has;
    LS_TRY(find_comm(l, n->pair[0].value, leader[lead].name, &comm));
    op->comm = (uint16_t)comm;
    if (has & SIZED) {
        op->count = 1;
        op->dtype = LS_DTYPE_F32;
        if ((v = ls_yaml_get(n, "count")))
            LS_TRY(read_count(l, v, op));
        if ((v = ls_yaml_get(n, "dtype"))) {
            LS_TRY(ls_yaml_choice(v, "dtype", dtypes, &index, l->err));
            op->dtype = (uint8_t)index;
        }
        if ((v = ls_yaml_get(n, "payload")))
            LS_TRY(read_payload(l, v, &op->payload));
    }
    if (has & REDUCES) {
        const char *key = op->kind == LS_OP_REDUCE ? "operator" : "reduce";
        op->reduce = op->kind == LS_OP_DECIDE ? LS_REDUCE_MAX : LS_REDUCE_SUM;
        if ((v = ls_yaml_get(n, key))) {
            LS_TRY(ls_yaml_choice(v, key, reduces, &index, l->err));
            op->reduce = (uint8_t)index;
        }
    }
    if (has & (ROOTED | PEER)) {
        const char *key = has & PEER ? "peer" : "root";
        number = 0;
        if ((v = ls_yaml_get(n, key)))
            LS_TRY(ls_yaml_uint(v, key, 0, LS_RAW_RANKS_MAX, &number, l->err));
        else if (has & PEER)
            return ls_fail(l->err, LS_EINPUT, n->at, "'%s' needs a 'peer', a member of the group", leader[lead].name);
        op->peer = (int32_t)number;
    }
    if ((v = ls_yaml_get(n, "fused"))) {
        LS_TRY(ls_yaml_uint(v, "fused", 1, UINT32_MAX - 1, &number, l->err));
        op->fused = (uint32_t)number;
    }
    if ((v = ls_yaml_get(n, "slots"))) {
        LS_TRY(ls_yaml_uint(v, "slots", 1, UINT16_MAX, &number, l->err));
        op->slots = (uint16_t)number;
    }
    if ((v = ls_yaml_get(n, "parent"))) {
        uint32_t parent = 0, *have = &l->t->comm.at[comm].parent;
        LS_TRY(find_comm(l, v, "parent", &parent));
        if (parent == comm || (*have != LS_NO_ID && *have != parent))
            return ls_fail(l->err, LS_EINPUT, v->at, parent == comm ? "'%s' cannot create itself" : "'%s' has another parent elsewhere",
                           ls_tables_name(l->t, l->t->comm.at[comm].name));
        *have = parent;
    }
    return has & DECIDES ? read_decide(l, n, item) : LS_OK;
}

static enum ls_code read_op(struct ls_raw_reader *l, const struct ls_yaml_node *n, item_vec *out)
{
    struct ls_raw_item item = { .when = LS_NO_ID, .unless = LS_NO_ID, .choice = LS_NO_ID };
    const struct ls_yaml_node *v, *value;
    size_t lead = 0;
    uint64_t number;
    LS_TRY(find_leader(l, n, &lead));
    LS_TRY(check_keys(l, n, lead));
    unsigned has = leader[lead].has;
    value = n->pair[0].value;
    item.op = ls_op_make(leader[lead].kind);
    struct ls_op *op = &item.op;
    op->cause = ls_tables_cause(l->t, leader[lead].name, n->at);
    if ((v = ls_yaml_get(n, "when")))
        LS_TRY(find_branch(l, v, "when", &item.when));
    if ((v = ls_yaml_get(n, "unless")))
        LS_TRY(find_branch(l, v, "unless", &item.unless));
    if ((v = ls_yaml_get(n, "thread"))) {
        LS_TRY(ls_yaml_uint(v, "thread", 0, 15, &number, l->err));
        op->thread = (uint8_t)number;
    }
    if (has & RUNS) {
        if ((v = ls_yaml_get(n, "stream")))
            LS_TRY(find_stream(l, v, &op->stream));
        if ((v = ls_yaml_get(n, "blocking")))
            LS_TRY(ls_yaml_bool(v, "blocking", &op->blocking, l->err));
    }
    if (has & COMM)
        LS_TRY(read_comm_op(l, n, lead, &item));
    else if (has & BUFFER)
        LS_TRY(read_buffer_op(l, n, lead, op));
    else {
        const char *name;
        LS_TRY(read_name(l, value, leader[lead].name, &name));
        if (op->kind == LS_OP_COMPUTE || op->kind == LS_OP_STOP)
            op->module = ls_name_id(l->t->names, name);
        else
            op->event = ls_tables_event(l->t, name);
    }
    if (has & TOUCHES) {
        if ((v = ls_yaml_get(n, "reads")))
            LS_TRY(read_ranges(l, v, "reads", false, op));
        if ((v = ls_yaml_get(n, "writes")))
            LS_TRY(read_ranges(l, v, "writes", true, op));
    }
    struct ls_raw_item beside = { .when = item.when, .unless = item.unless, .choice = LS_NO_ID };
    if (has & RUNS && op->kind != LS_OP_WAIT && (v = ls_yaml_get(n, "wait")))
        for (size_t i = 0; i < names_count(v); i++) {
            beside.op = ls_op_make(LS_OP_WAIT);
            beside.op.thread = op->thread, beside.op.stream = op->stream, beside.op.cause = op->cause;
            LS_TRY(find_event(l, names_at(v, i), "wait", &beside.op.event));
            ls_push(out, beside);
        }
    ls_push(out, item);
    if (has & RUNS && op->kind != LS_OP_RECORD && (v = ls_yaml_get(n, "record")))
        for (size_t i = 0; i < names_count(v); i++) {
            beside.op = ls_op_make(LS_OP_RECORD);
            beside.op.thread = op->thread, beside.op.stream = op->stream, beside.op.cause = op->cause;
            LS_TRY(find_event(l, names_at(v, i), "record", &beside.op.event));
            ls_push(out, beside);
        }
    return LS_OK;
}

enum ls_code ls_raw_read_list(struct ls_raw_reader *l, const struct ls_yaml_node *n, const char *name, struct ls_raw_list *out)
{
    item_vec items = { 0 };
    LS_TRY(ls_yaml_list(n, name, l->err));
    if (l->depth >= NESTING_MAX)
        return ls_fail(l->err, LS_EINPUT, n->at, "decides are nested more than %d deep", NESTING_MAX);
    l->depth++;
    enum ls_code rc = LS_OK;
    for (size_t i = 0; i < n->count && rc == LS_OK; i++)
        rc = read_op(l, n->item[i], &items);
    l->depth--;
    if (rc == LS_OK && items.count)
        *out = (struct ls_raw_list){ ls_arena_copy(l->arena, items.at, items.count * sizeof *items.at), items.count };
    ls_vec_release(&items);
    return rc;
}
