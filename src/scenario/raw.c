#include "scenario/raw.h"

#include "base/vec.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* Programs of this size are for people to read; the bounds keep reading and checking fast on any input. */
enum { RANKS_MAX = 4096, BRANCHES_MAX = 64, NESTING_MAX = 32, GROUPS_MAX = 1024, BUFFERS_MAX = 4096, OPS_MAX = 1 << 22 };

struct ls_raw_item {
    struct ls_op op;
    uint32_t when, unless, choice; /* branches, or LS_NO_ID */
    struct ls_raw_list then_list, else_list;
};

typedef LS_VEC(struct ls_raw_item) item_vec;

struct loader {
    struct ls_raw *raw;
    struct ls_tables *t;
    struct ls_arena *arena;
    struct ls_error *err;
    unsigned depth;
    bool *pooled;  /* [buffers] an alloc has named its pool */
    size_t pooled_room;
};

#define TRY(call)                                                                                                               \
    do {                                                                                                                        \
        enum ls_code try_rc = (call);                                                                                           \
        if (try_rc != LS_OK)                                                                                                    \
            return try_rc;                                                                                                      \
    } while (0)

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

static enum ls_code find_leader(struct loader *l, const struct ls_yaml_node *n, size_t *out)
{
    const char *names[LEADERS + 1];
    for (size_t i = 0; i < LEADERS; i++)
        names[i] = leader[i].name;
    names[LEADERS] = NULL;
    TRY(ls_yaml_map(n, "op", l->err));
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

static enum ls_code check_keys(struct loader *l, const struct ls_yaml_node *n, size_t lead)
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

static enum ls_code read_name(struct loader *l, const struct ls_yaml_node *n, const char *key, const char **out)
{
    TRY(ls_yaml_text(n, key, out, l->err));
    return **out ? LS_OK : ls_fail(l->err, LS_EINPUT, n->at, "'%s' is empty", key);
}

static enum ls_code find_comm(struct loader *l, const struct ls_yaml_node *n, const char *key, uint32_t *out)
{
    const char *name, *names[GROUPS_MAX + 1];
    size_t k = 0;
    TRY(read_name(l, n, key, &name));
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

static enum ls_code find_branch(struct loader *l, const struct ls_yaml_node *n, const char *key, uint32_t *out)
{
    const char *name, *names[BRANCHES_MAX + 1];
    TRY(read_name(l, n, key, &name));
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

static enum ls_code find_stream(struct loader *l, const struct ls_yaml_node *n, uint8_t *out)
{
    const char *name;
    TRY(read_name(l, n, "stream", &name));
    if (l->t->stream.count > UINT8_MAX)
        return ls_fail(l->err, LS_EINPUT, n->at, "more than %d streams", UINT8_MAX);
    *out = (uint8_t)ls_tables_stream(l->t, name);
    return LS_OK;
}

static enum ls_code find_event(struct loader *l, const struct ls_yaml_node *n, const char *key, uint32_t *out)
{
    const char *name;
    TRY(read_name(l, n, key, &name));
    *out = ls_tables_event(l->t, name);
    return LS_OK;
}

static enum ls_code find_buffer(struct loader *l, const struct ls_yaml_node *n, const char *key, uint32_t *out)
{
    const char *name;
    TRY(read_name(l, n, key, &name));
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

static enum ls_code read_payload(struct loader *l, const struct ls_yaml_node *n, uint32_t *out)
{
    const char *name;
    if (n->kind != LS_YAML_LIST) {
        TRY(read_name(l, n, "payload", &name));
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
static enum ls_code read_count(struct loader *l, const struct ls_yaml_node *n, struct ls_op *op)
{
    op->count = 0;
    if (n->kind == LS_YAML_LIST) {
        if (n->count == 0)
            return ls_fail(l->err, LS_EINPUT, n->at, "'count' is an empty list");
        op->counts = (uint32_t)l->t->vector.count;
        ls_push(&l->t->vector, n->count);
        for (size_t i = 0; i < n->count; i++) {
            uint64_t value;
            TRY(ls_yaml_uint(n->item[i], "count", 0, UINT64_MAX / 2, &value, l->err));
            ls_push(&l->t->vector, value);
        }
        return LS_OK;
    }
    const char *text;
    TRY(read_name(l, n, "count", &text));
    bool letter = (*text >= 'a' && *text <= 'z') || (*text >= 'A' && *text <= 'Z') || *text == '_';
    if (!letter)
        return ls_yaml_uint(n, "count", 0, UINT64_MAX / 2, &op->count, l->err);
    op->symbol = ls_name_id(l->t->names, text);
    return LS_OK;
}

static enum ls_code read_ranges(struct loader *l, const struct ls_yaml_node *n, const char *key, bool write, struct ls_op *op)
{
    for (size_t i = 0; i < names_count(n); i++) {
        uint32_t buffer = LS_NO_ID; /* read only where the name is found, which gcc does not see */
        TRY(find_buffer(l, names_at(n, i), key, &buffer));
        if (op->ranges++ == 0)
            op->range = (uint32_t)l->t->range.count;
        ls_push(&l->t->range, (struct ls_range){ .buffer = buffer, .write = write });
    }
    return LS_OK;
}

static enum ls_code read_buffer_op(struct loader *l, const struct ls_yaml_node *n, size_t lead, struct ls_op *op)
{
    const struct ls_yaml_node *value = n->pair[0].value, *v;
    const char *name = leader[lead].name;
    TRY(read_ranges(l, value, name, op->kind != LS_OP_COMPUTE || strcmp(name, "write") == 0, op));
    if (op->kind != LS_OP_COMPUTE && op->ranges != 1)
        return ls_fail(l->err, LS_EINPUT, value->at, "'%s' takes one buffer", name);
    if (op->kind != LS_OP_ALLOC)
        return LS_OK;
    uint32_t b = l->t->range.at[op->range].buffer;
    uint8_t pool = 0;
    uint64_t bytes = 0;
    if ((v = ls_yaml_get(n, "stream")))
        TRY(find_stream(l, v, &pool));
    if ((v = ls_yaml_get(n, "bytes")))
        TRY(ls_yaml_uint(v, "bytes", 0, UINT64_MAX / 2, &bytes, l->err));
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

static enum ls_code read_list(struct loader *l, const struct ls_yaml_node *n, const char *name, struct ls_raw_list *out);

static enum ls_code read_decide(struct loader *l, const struct ls_yaml_node *n, struct ls_raw_item *item)
{
    const struct ls_yaml_node *value = ls_yaml_get(n, "value"), *choice = ls_yaml_get(n, "choice"), *v;
    uint64_t number = 0;
    if (value && choice)
        return ls_fail(l->err, LS_EINPUT, choice->at, "'choice' and 'value' both say what the rank contributes");
    if (value)
        TRY(ls_yaml_uint(value, "value", 0, UINT32_MAX - 1, &number, l->err));
    if (choice)
        TRY(find_branch(l, choice, "choice", &item->choice));
    item->op.value = (uint32_t)number;
    if ((v = ls_yaml_get(n, "then")))
        TRY(read_list(l, v, "then", &item->then_list));
    if ((v = ls_yaml_get(n, "else")))
        TRY(read_list(l, v, "else", &item->else_list));
    return LS_OK;
}

static enum ls_code read_comm_op(struct loader *l, const struct ls_yaml_node *n, size_t lead, struct ls_raw_item *item)
{
    struct ls_op *op = &item->op;
    const struct ls_yaml_node *v;
    uint32_t comm = 0;
    uint64_t number;
    size_t index;
    unsigned has = leader[lead].has;
    TRY(find_comm(l, n->pair[0].value, leader[lead].name, &comm));
    op->comm = (uint16_t)comm;
    if (has & SIZED) {
        op->count = 1;
        op->dtype = LS_DTYPE_F32;
        if ((v = ls_yaml_get(n, "count")))
            TRY(read_count(l, v, op));
        if ((v = ls_yaml_get(n, "dtype"))) {
            TRY(ls_yaml_choice(v, "dtype", dtypes, &index, l->err));
            op->dtype = (uint8_t)index;
        }
        if ((v = ls_yaml_get(n, "payload")))
            TRY(read_payload(l, v, &op->payload));
    }
    if (has & REDUCES) {
        const char *key = op->kind == LS_OP_REDUCE ? "operator" : "reduce";
        op->reduce = op->kind == LS_OP_DECIDE ? LS_REDUCE_MAX : LS_REDUCE_SUM;
        if ((v = ls_yaml_get(n, key))) {
            TRY(ls_yaml_choice(v, key, reduces, &index, l->err));
            op->reduce = (uint8_t)index;
        }
    }
    if (has & (ROOTED | PEER)) {
        const char *key = has & PEER ? "peer" : "root";
        number = 0;
        if ((v = ls_yaml_get(n, key)))
            TRY(ls_yaml_uint(v, key, 0, RANKS_MAX, &number, l->err));
        else if (has & PEER)
            return ls_fail(l->err, LS_EINPUT, n->at, "'%s' needs a 'peer', a member of the group", leader[lead].name);
        op->peer = (int32_t)number;
    }
    if ((v = ls_yaml_get(n, "fused"))) {
        TRY(ls_yaml_uint(v, "fused", 1, UINT32_MAX - 1, &number, l->err));
        op->fused = (uint32_t)number;
    }
    if ((v = ls_yaml_get(n, "slots"))) {
        TRY(ls_yaml_uint(v, "slots", 1, UINT16_MAX, &number, l->err));
        op->slots = (uint16_t)number;
    }
    if ((v = ls_yaml_get(n, "parent"))) {
        uint32_t parent = 0, *have = &l->t->comm.at[comm].parent;
        TRY(find_comm(l, v, "parent", &parent));
        if (parent == comm || (*have != LS_NO_ID && *have != parent))
            return ls_fail(l->err, LS_EINPUT, v->at, parent == comm ? "'%s' cannot create itself" : "'%s' has another parent elsewhere",
                           ls_tables_name(l->t, l->t->comm.at[comm].name));
        *have = parent;
    }
    return has & DECIDES ? read_decide(l, n, item) : LS_OK;
}

static enum ls_code read_op(struct loader *l, const struct ls_yaml_node *n, item_vec *out)
{
    struct ls_raw_item item = { .when = LS_NO_ID, .unless = LS_NO_ID, .choice = LS_NO_ID };
    const struct ls_yaml_node *v, *value;
    size_t lead = 0;
    uint64_t number;
    TRY(find_leader(l, n, &lead));
    TRY(check_keys(l, n, lead));
    unsigned has = leader[lead].has;
    value = n->pair[0].value;
    item.op = ls_op_make(leader[lead].kind);
    struct ls_op *op = &item.op;
    op->cause = ls_tables_cause(l->t, leader[lead].name, n->at);
    if ((v = ls_yaml_get(n, "when")))
        TRY(find_branch(l, v, "when", &item.when));
    if ((v = ls_yaml_get(n, "unless")))
        TRY(find_branch(l, v, "unless", &item.unless));
    if ((v = ls_yaml_get(n, "thread"))) {
        TRY(ls_yaml_uint(v, "thread", 0, 15, &number, l->err));
        op->thread = (uint8_t)number;
    }
    if (has & RUNS) {
        if ((v = ls_yaml_get(n, "stream")))
            TRY(find_stream(l, v, &op->stream));
        if ((v = ls_yaml_get(n, "blocking")))
            TRY(ls_yaml_bool(v, "blocking", &op->blocking, l->err));
    }
    if (has & COMM)
        TRY(read_comm_op(l, n, lead, &item));
    else if (has & BUFFER)
        TRY(read_buffer_op(l, n, lead, op));
    else {
        const char *name;
        TRY(read_name(l, value, leader[lead].name, &name));
        if (op->kind == LS_OP_COMPUTE || op->kind == LS_OP_STOP)
            op->module = ls_name_id(l->t->names, name);
        else
            op->event = ls_tables_event(l->t, name);
    }
    if (has & TOUCHES) {
        if ((v = ls_yaml_get(n, "reads")))
            TRY(read_ranges(l, v, "reads", false, op));
        if ((v = ls_yaml_get(n, "writes")))
            TRY(read_ranges(l, v, "writes", true, op));
    }
    struct ls_raw_item beside = { .when = item.when, .unless = item.unless, .choice = LS_NO_ID };
    if (has & RUNS && op->kind != LS_OP_WAIT && (v = ls_yaml_get(n, "wait")))
        for (size_t i = 0; i < names_count(v); i++) {
            beside.op = ls_op_make(LS_OP_WAIT);
            beside.op.thread = op->thread, beside.op.stream = op->stream, beside.op.cause = op->cause;
            TRY(find_event(l, names_at(v, i), "wait", &beside.op.event));
            ls_push(out, beside);
        }
    ls_push(out, item);
    if (has & RUNS && op->kind != LS_OP_RECORD && (v = ls_yaml_get(n, "record")))
        for (size_t i = 0; i < names_count(v); i++) {
            beside.op = ls_op_make(LS_OP_RECORD);
            beside.op.thread = op->thread, beside.op.stream = op->stream, beside.op.cause = op->cause;
            TRY(find_event(l, names_at(v, i), "record", &beside.op.event));
            ls_push(out, beside);
        }
    return LS_OK;
}

static enum ls_code read_list(struct loader *l, const struct ls_yaml_node *n, const char *name, struct ls_raw_list *out)
{
    item_vec items = { 0 };
    TRY(ls_yaml_list(n, name, l->err));
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

static enum ls_code read_group(struct loader *l, const char *name, const struct ls_yaml_node *n, struct ls_groups *out)
{
    TRY(ls_yaml_list(n, name, l->err));
    if (n->count == 0)
        return ls_fail(l->err, LS_EINPUT, n->at, "'%s' has no group", name);
    bool flat = n->item[0]->kind != LS_YAML_LIST;
    size_t count = flat ? 1 : n->count;
    const uint32_t **list = ls_arena_alloc(l->arena, count * sizeof *list);
    size_t *length = LS_NEW(l->arena, size_t, count);
    for (size_t g = 0; g < count; g++) {
        const struct ls_yaml_node *of = flat ? n : n->item[g];
        TRY(ls_yaml_list(of, name, l->err));
        uint32_t *member = LS_NEW(l->arena, uint32_t, of->count ? of->count : 1);
        for (size_t m = 0; m < of->count; m++) {
            uint64_t rank = 0;
            TRY(ls_yaml_uint(of->item[m], name, 0, l->raw->ranks - 1, &rank, l->err));
            member[m] = (uint32_t)rank;
        }
        list[g] = member;
        length[g] = of->count;
    }
    return ls_groups_from_lists(out, l->arena, l->raw->ranks, list, length, count, n->at, l->err);
}

static enum ls_code read_groups(struct loader *l, const struct ls_yaml_node *n)
{
    TRY(ls_yaml_map(n, "groups", l->err));
    if (n->count > GROUPS_MAX)
        return ls_fail(l->err, LS_EINPUT, n->at, "more than %d groups", GROUPS_MAX);
    l->raw->comm = LS_NEW(l->arena, struct ls_groups, n->count ? n->count : 1);
    for (size_t i = 0; i < n->count; i++) {
        const struct ls_yaml_node *key = n->pair[i].key;
        uint32_t comm = ls_tables_comm(l->t, key->text);
        assert(comm == i && "tables are fresh, and YAML keys differ");
        l->t->comm.at[comm].at = key->at;
        TRY(read_group(l, key->text, n->pair[i].value, &l->raw->comm[comm]));
    }
    return LS_OK;
}

static enum ls_code read_branches(struct loader *l, const struct ls_yaml_node *n)
{
    static const char *const keys[] = { "agreed", NULL };
    TRY(ls_yaml_map(n, "branches", l->err));
    if (n->count > BRANCHES_MAX)
        return ls_fail(l->err, LS_EINPUT, n->at, "more than %d branches", BRANCHES_MAX);
    l->raw->branch = LS_NEW(l->arena, struct ls_raw_branch, n->count ? n->count : 1);
    for (size_t i = 0; i < n->count; i++) {
        const struct ls_yaml_node *v = n->pair[i].value, *agreed;
        struct ls_raw_branch *b = &l->raw->branch[l->raw->branches++];
        *b = (struct ls_raw_branch){ .name = ls_arena_str(l->arena, n->pair[i].key->text), .at = n->pair[i].key->at };
        if (ls_yaml_is_null(v))
            continue;
        TRY(ls_yaml_map(v, b->name, l->err));
        TRY(ls_yaml_check_keys(v, b->name, keys, l->err));
        if ((agreed = ls_yaml_get(v, "agreed")))
            TRY(ls_yaml_bool(agreed, "agreed", &b->agreed, l->err));
    }
    return LS_OK;
}

/* Every rank that may issue an op is in its group, and the group has the root or peer. Notes which branches matter. */
static enum ls_code check_list(struct loader *l, uint32_t r, struct ls_raw_list list)
{
    const struct ls_raw *raw = l->raw;
    for (size_t i = 0; i < list.count; i++) {
        const struct ls_raw_item *item = &list.item[i];
        const struct ls_op *op = &item->op;
        struct ls_loc at = l->t->cause.at[op->cause].at;
        uint32_t branch[] = { item->when, item->unless, item->choice };
        for (size_t k = 0; k < 3; k++)
            if (branch[k] != LS_NO_ID)
                raw->matters[r * raw->branches + branch[k]] = true;
        if (ls_op_uses_comm(op)) {
            uint32_t parent = op->kind == LS_OP_COMM_INIT ? l->t->comm.at[op->comm].parent : LS_NO_ID;
            uint32_t comm = parent == LS_NO_ID ? op->comm : parent;
            const struct ls_groups *g = &raw->comm[comm];
            const char *name = ls_tables_name(l->t, l->t->comm.at[comm].name);
            if (g->group[r] == LS_NO_ID)
                return ls_fail(l->err, LS_EINPUT, at, "rank %" PRIu32 " issues %s, but is in no group of '%s'", r,
                               ls_op_kind_name(op->kind), name);
            uint32_t size = g->first[g->group[r] + 1] - g->first[g->group[r]];
            if (op->peer >= 0 && (uint32_t)op->peer >= size)
                return ls_fail(l->err, LS_EINPUT, at, "'%s' is member %" PRId32 ", but the group of rank %" PRIu32 " in '%s' has %" PRIu32
                               " members (from 0)", ls_op_is_p2p(op) ? "peer" : "root", op->peer, r, name, size);
            if (op->counts != LS_NO_ID && l->t->vector.at[op->counts] != size)
                return ls_fail(l->err, LS_EINPUT, at, "'count' lists %" PRIu64 " numbers, but the group of rank %" PRIu32 " in '%s' has %"
                               PRIu32 " members", l->t->vector.at[op->counts], r, name, size);
        }
        TRY(check_list(l, r, item->then_list));
        TRY(check_list(l, r, item->else_list));
    }
    return LS_OK;
}

static enum ls_code read_ranks(struct loader *l, const struct ls_yaml_node *n)
{
    TRY(ls_yaml_map(n, "rank", l->err));
    for (size_t i = 0; i < n->count; i++) {
        uint64_t r = 0;
        TRY(ls_yaml_uint(n->pair[i].key, "rank", 0, l->raw->ranks - 1, &r, l->err));
        for (size_t k = 0; k < i; k++) { /* "1" and "01" are different keys, but one rank */
            uint64_t before = 0;
            TRY(ls_yaml_uint(n->pair[k].key, "rank", 0, l->raw->ranks - 1, &before, l->err));
            if (before == r)
                return ls_fail(l->err, LS_EINPUT, n->pair[i].key->at, "rank %" PRIu64 " is listed twice", r);
        }
        TRY(read_list(l, n->pair[i].value, "rank", &l->raw->rank[r]));
    }
    return LS_OK;
}

static size_t list_ops(struct ls_raw_list list)
{
    size_t ops = list.count;
    for (size_t i = 0; i < list.count; i++)
        ops += list_ops(list.item[i].then_list) + list_ops(list.item[i].else_list);
    return ops;
}

static enum ls_code load(struct loader *l, const struct ls_yaml_node *program)
{
    static const char *const keys[] = { "ranks", "groups", "branches", "body", "rank", NULL };
    const struct ls_yaml_node *n;
    uint64_t ranks = 0;
    TRY(ls_yaml_map(program, "program", l->err));
    TRY(ls_yaml_check_keys(program, "program", keys, l->err));
    if (!(n = ls_yaml_get(program, "ranks")))
        return ls_fail(l->err, LS_EINPUT, program->at, "'ranks' is missing in 'program'");
    TRY(ls_yaml_uint(n, "ranks", 1, RANKS_MAX, &ranks, l->err));
    l->raw->ranks = (size_t)ranks;
    l->raw->rank = LS_NEW(l->arena, struct ls_raw_list, l->raw->ranks);
    ls_tables_stream(l->t, "main");
    if ((n = ls_yaml_get(program, "groups")))
        TRY(read_groups(l, n));
    if ((n = ls_yaml_get(program, "branches")))
        TRY(read_branches(l, n));
    if (!ls_yaml_get(program, "body") && !ls_yaml_get(program, "rank"))
        return ls_fail(l->err, LS_EINPUT, program->at, "'program' has neither 'body' nor 'rank', so nothing happens");
    if ((n = ls_yaml_get(program, "body")))
        TRY(read_list(l, n, "body", &l->raw->body));
    if ((n = ls_yaml_get(program, "rank")))
        TRY(read_ranks(l, n));
    size_t ops = l->raw->ranks * list_ops(l->raw->body);
    for (size_t r = 0; r < l->raw->ranks; r++)
        ops += list_ops(l->raw->rank[r]);
    if (ops > OPS_MAX)
        return ls_fail(l->err, LS_EINPUT, program->at, "%zu ops on all ranks together; at most %d", ops, OPS_MAX);
    l->raw->matters = LS_NEW(l->arena, bool, l->raw->ranks * l->raw->branches + 1);
    for (uint32_t r = 0; r < l->raw->ranks; r++) {
        TRY(check_list(l, r, l->raw->body));
        TRY(check_list(l, r, l->raw->rank[r]));
    }
    return LS_OK;
}

enum ls_code ls_raw_load(const struct ls_yaml_node *program, struct ls_tables *tables, struct ls_raw *out, struct ls_error *err)
{
    *out = (struct ls_raw){ .tables = tables };
    struct loader l = { .raw = out, .t = tables, .arena = tables->arena, .err = err };
    assert(tables->comm.count == 0 && tables->stream.count == 0 && "tables are fresh");
    return load(&l, program);
}

static void emit(struct ls_raw_list list, const bool *choice, ls_op_vec *out)
{
    for (size_t i = 0; i < list.count; i++) {
        const struct ls_raw_item *item = &list.item[i];
        if ((item->when != LS_NO_ID && !choice[item->when]) || (item->unless != LS_NO_ID && choice[item->unless]))
            continue;
        size_t at = out->count, then_end;
        ls_push(out, item->op);
        if (item->op.kind != LS_OP_DECIDE)
            continue;
        emit(item->then_list, choice, out);
        then_end = out->count;
        emit(item->else_list, choice, out);
        out->at[at].then_count = (uint32_t)(then_end - at - 1);
        out->at[at].else_count = (uint32_t)(out->count - then_end);
        if (item->choice != LS_NO_ID)
            out->at[at].value = choice[item->choice];
    }
}

void ls_raw_segment(const struct ls_raw *raw, uint32_t rank, const bool *choice, struct ls_arena *arena, struct ls_segment *out)
{
    ls_op_vec ops = { 0 };
    emit(raw->body, choice, &ops);
    emit(raw->rank[rank], choice, &ops);
    out->count = ops.count;
    out->op = ops.count ? ls_arena_copy(arena, ops.at, ops.count * sizeof *ops.at) : NULL;
    out->hash = ls_segment_hash(out->op, out->count);
    ls_vec_release(&ops);
}

void ls_raw_job(const struct ls_raw *raw, const bool *choice, struct ls_arena *arena, struct ls_job *out)
{
    *out = (struct ls_job){ .tables = raw->tables, .ranks = raw->ranks, .comm = raw->comm };
    out->rank = LS_NEW(arena, struct ls_rank_program, raw->ranks);
    for (uint32_t r = 0; r < raw->ranks; r++) {
        struct ls_segment *segment = LS_NEW(arena, struct ls_segment, 1);
        const struct ls_segment **list = ls_arena_alloc(arena, sizeof *list);
        ls_raw_segment(raw, r, choice + r * raw->branches, arena, segment);
        list[0] = segment;
        out->rank[r] = (struct ls_rank_program){ list, 1 };
    }
}

static bool agreed_matters(const struct ls_raw *raw, size_t branch)
{
    for (size_t r = 0; r < raw->ranks; r++)
        if (raw->matters[r * raw->branches + branch])
            return true;
    return false;
}

bool ls_raw_next(const struct ls_raw *raw, bool *choice)
{
    for (size_t b = 0; b < raw->branches; b++) {
        if (raw->branch[b].agreed) {
            if (!agreed_matters(raw, b))
                continue;
            bool now = !choice[b];
            for (size_t r = 0; r < raw->ranks; r++)
                choice[r * raw->branches + b] = now;
            if (now)
                return true;
            continue;
        }
        for (size_t r = 0; r < raw->ranks; r++) {
            if (!raw->matters[r * raw->branches + b])
                continue;
            choice[r * raw->branches + b] = !choice[r * raw->branches + b];
            if (choice[r * raw->branches + b])
                return true;
        }
    }
    return false;
}

uint64_t ls_raw_assignments(const struct ls_raw *raw)
{
    unsigned bits = 0;
    for (size_t b = 0; b < raw->branches; b++) {
        if (raw->branch[b].agreed)
            bits += agreed_matters(raw, b);
        else
            for (size_t r = 0; r < raw->ranks; r++)
                bits += raw->matters[r * raw->branches + b];
    }
    return bits < 64 ? (uint64_t)1 << bits : UINT64_MAX;
}
