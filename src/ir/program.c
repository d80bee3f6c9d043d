#include "ir/program.h"

#include "base/hash.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define CATEGORY_NAME(id, name) name,
static const char *const category_name[] = { LS_CATEGORIES(CATEGORY_NAME) };
const char *ls_category_name(enum ls_category c)
{
    assert((unsigned)c < LS_CATEGORY_COUNT);
    return category_name[c];
}

/* Finding table rows again by name or content. `slots` maps a hash to row + 1; 0 is empty. */
struct index { uint32_t *slot; size_t room, used; };
struct ls_table_index { struct index comm, stream, event, payload, cause; };

static size_t probe(const struct index *x, uint64_t hash, size_t step)
{
    return (size_t)(hash + step) & (x->room - 1);
}

static void index_put(struct index *x, uint64_t hash, uint32_t row)
{
    size_t step = 0;
    while (x->slot[probe(x, hash, step)])
        step++;
    x->slot[probe(x, hash, step)] = row + 1;
    x->used++;
}

static uint64_t payload_hash(uint32_t name, const uint32_t *items, size_t count)
{
    return ls_hash(items, count * sizeof *items, name);
}

static uint64_t cause_hash(const struct ls_cause *c)
{
    return ls_hash_mix(ls_hash_mix(c->text, c->at.line), c->at.column);
}

static uint64_t id_hash(uint32_t id)
{
    return ls_hash_mix(0, id);
}

/* Doubles the index when it is half full; `rehash` gives the hash of a row. */
#define GROW(x, rehash)                                                             \
    do {                                                                            \
        if (2 * ((x)->used + 1) > (x)->room) {                                      \
            size_t rows_ = (x)->used;                                               \
            free((x)->slot);                                                        \
            (x)->room = (x)->room ? 2 * (x)->room : 64;                             \
            (x)->slot = calloc((x)->room, sizeof *(x)->slot);                       \
            if (!(x)->slot)                                                         \
                ls_out_of_memory((x)->room * sizeof *(x)->slot);                    \
            (x)->used = 0;                                                          \
            for (uint32_t row = 0; row < rows_; row++)                              \
                index_put((x), (rehash), row);                                      \
        }                                                                           \
    } while (0)

void ls_tables_init(struct ls_tables *t, struct ls_arena *arena)
{
    *t = (struct ls_tables){ .arena = arena, .names = ls_names_open() };
    t->index = calloc(1, sizeof *t->index);
    if (!t->index)
        ls_out_of_memory(sizeof *t->index);
}

void ls_tables_release(struct ls_tables *t)
{
    ls_names_close(t->names);
    ls_vec_release(&t->comm);
    ls_vec_release(&t->payload);
    ls_vec_release(&t->rows);
    ls_vec_release(&t->cause);
    ls_vec_release(&t->buffer);
    ls_vec_release(&t->range);
    ls_vec_release(&t->kernel);
    ls_vec_release(&t->link);
    ls_vec_release(&t->vector);
    ls_vec_release(&t->stream);
    ls_vec_release(&t->event);
    if (t->index) {
        free(t->index->comm.slot);
        free(t->index->stream.slot);
        free(t->index->event.slot);
        free(t->index->payload.slot);
        free(t->index->cause.slot);
        free(t->index);
    }
    *t = (struct ls_tables){ 0 };
}

uint32_t ls_tables_comm(struct ls_tables *t, const char *name)
{
    uint32_t id = ls_name_id(t->names, name);
    struct index *x = &t->index->comm;
    GROW(x, id_hash(t->comm.at[row].name));
    for (size_t i = 0; x->slot[probe(x, id_hash(id), i)]; i++) {
        uint32_t row = x->slot[probe(x, id_hash(id), i)] - 1;
        if (t->comm.at[row].name == id)
            return row;
    }
    assert(t->comm.count == x->used && "communicators are added through ls_tables_comm only");
    assert(t->comm.count < UINT16_MAX && "an op's communicator has 16 bits");
    ls_push(&t->comm, (struct ls_comm_info){ .name = id, .parent = LS_NO_ID });
    index_put(x, id_hash(id), (uint32_t)(t->comm.count - 1));
    return (uint32_t)(t->comm.count - 1);
}

uint32_t ls_tables_stream(struct ls_tables *t, const char *name)
{
    uint32_t id = ls_name_id(t->names, name);
    struct index *x = &t->index->stream;
    GROW(x, id_hash(t->stream.at[row]));
    for (size_t i = 0; x->slot[probe(x, id_hash(id), i)]; i++) {
        uint32_t row = x->slot[probe(x, id_hash(id), i)] - 1;
        if (t->stream.at[row] == id)
            return row;
    }
    assert(t->stream.count == x->used && "streams are added through ls_tables_stream only");
    assert(t->stream.count <= UINT8_MAX && "an op's stream has 8 bits");
    ls_push(&t->stream, id);
    index_put(x, id_hash(id), (uint32_t)(t->stream.count - 1));
    return (uint32_t)(t->stream.count - 1);
}

uint32_t ls_tables_event(struct ls_tables *t, const char *name)
{
    uint32_t id = ls_name_id(t->names, name);
    struct index *x = &t->index->event;
    GROW(x, id_hash(t->event.at[row]));
    for (size_t i = 0; x->slot[probe(x, id_hash(id), i)]; i++) {
        uint32_t row = x->slot[probe(x, id_hash(id), i)] - 1;
        if (t->event.at[row] == id)
            return row;
    }
    assert(t->event.count == x->used && "events are added through ls_tables_event only");
    ls_push(&t->event, id);
    index_put(x, id_hash(id), (uint32_t)(t->event.count - 1));
    return (uint32_t)(t->event.count - 1);
}

void ls_tables_set_rows(struct ls_tables *t, uint32_t name, uint64_t rows)
{
    while (t->rows.count <= name)
        ls_push(&t->rows, 0);
    t->rows.at[name] = rows;
}

uint64_t ls_tables_rows(const struct ls_tables *t, uint32_t name) { return name < t->rows.count ? t->rows.at[name] : 0; }

uint32_t ls_tables_payload(struct ls_tables *t, const char *name, const uint32_t *items, size_t count, uint64_t elements)
{
    struct ls_payload want = { .name = ls_name_id(t->names, name), .count = count, .elements = elements };
    uint64_t hash = payload_hash(want.name, items, count);
    struct index *x = &t->index->payload;
    GROW(x, payload_hash(t->payload.at[row].name, t->payload.at[row].items, t->payload.at[row].count));
    for (size_t i = 0; x->slot[probe(x, hash, i)]; i++) {
        uint32_t row = x->slot[probe(x, hash, i)] - 1;
        const struct ls_payload *p = &t->payload.at[row];
        if (p->name == want.name && p->count == count &&
            (count == 0 || memcmp(p->items, items, count * sizeof *items) == 0))
            return row;
    }
    assert(t->payload.count == x->used && "payloads are added through ls_tables_payload only");
    want.items = count ? ls_arena_copy(t->arena, items, ls_mul_size(count, sizeof *items)) : NULL;
    ls_push(&t->payload, want);
    index_put(x, hash, (uint32_t)(t->payload.count - 1));
    return (uint32_t)(t->payload.count - 1);
}

uint32_t ls_tables_cause(struct ls_tables *t, const char *text, struct ls_loc at)
{
    struct ls_cause want = { ls_name_id(t->names, text), at };
    uint64_t hash = cause_hash(&want);
    struct index *x = &t->index->cause;
    GROW(x, cause_hash(&t->cause.at[row]));
    for (size_t i = 0; x->slot[probe(x, hash, i)]; i++) {
        uint32_t row = x->slot[probe(x, hash, i)] - 1;
        const struct ls_cause *c = &t->cause.at[row];
        bool same_file = c->at.file == at.file || (c->at.file && at.file && strcmp(c->at.file, at.file) == 0);
        if (c->text == want.text && same_file && c->at.line == at.line && c->at.column == at.column)
            return row;
    }
    assert(t->cause.count == x->used && "causes are added through ls_tables_cause only");
    ls_push(&t->cause, want);
    index_put(x, hash, (uint32_t)(t->cause.count - 1));
    return (uint32_t)(t->cause.count - 1);
}

const char *ls_tables_name(const struct ls_tables *t, uint32_t id)
{
    return id == LS_NO_ID ? "" : ls_name_text(t->names, id);
}

uint64_t ls_segment_hash(const struct ls_op *op, size_t count)
{
    uint64_t h = ls_hash_mix(0, count);
    for (size_t i = 0; i < count; i++, op++) {
        h = ls_hash_mix(h, (uint64_t)op->kind | (uint64_t)op->dtype << 8 | (uint64_t)op->reduce << 16 |
                               (uint64_t)op->thread << 24 | (uint64_t)op->stream << 32 | (uint64_t)op->blocking << 40 | (uint64_t)op->held << 41 |
                               (uint64_t)op->comm << 48);
        h = ls_hash_mix(h, (uint64_t)op->slots | (uint64_t)op->layout << 16 | (uint64_t)op->fused << 32);
        h = ls_hash_mix(h, op->count);
        h = ls_hash_mix(h, (uint64_t)(uint32_t)op->peer | (uint64_t)op->counts << 32);
        h = ls_hash_mix(h, (uint64_t)op->symbol | (uint64_t)op->payload << 32);
        h = ls_hash_mix(h, (uint64_t)op->event | (uint64_t)op->value << 32);
        h = ls_hash_mix(h, (uint64_t)op->range | (uint64_t)op->ranges << 32);
        h = ls_hash_mix(h, (uint64_t)op->factor.num | (uint64_t)op->factor.den << 32);
        h = ls_hash_mix(h, (uint64_t)op->then_count | (uint64_t)op->else_count << 32);
    }
    return h;
}

enum ls_code ls_groups_from_lists(struct ls_groups *out, struct ls_arena *arena, size_t ranks,
                                  const uint32_t *const *lists, const size_t *lengths, size_t lists_count,
                                  struct ls_loc at, struct ls_error *err)
{
    struct ls_arena_mark mark = ls_arena_mark(arena);
    size_t members = 0;
    for (size_t g = 0; g < lists_count; g++) {
        if (lengths[g] == 0)
            return ls_fail(err, LS_EINPUT, at, "group %zu is empty", g);
        members += lengths[g];
    }
    struct ls_groups made = { .groups = lists_count };
    made.group = LS_NEW(arena, uint32_t, ranks ? ranks : 1);
    made.member = LS_NEW(arena, uint32_t, ranks ? ranks : 1);
    made.first = LS_NEW(arena, uint32_t, lists_count + 1);
    made.rank = LS_NEW(arena, uint32_t, members ? members : 1);
    for (size_t r = 0; r < ranks; r++)
        made.group[r] = made.member[r] = LS_NO_ID;
    enum ls_code rc = LS_OK;
    uint32_t next = 0;
    for (size_t g = 0; g < lists_count && rc == LS_OK; g++) {
        made.first[g] = next;
        for (size_t m = 0; m < lengths[g] && rc == LS_OK; m++) {
            uint32_t r = lists[g][m];
            if (r >= ranks)
                rc = ls_fail(err, LS_EINPUT, at, "rank %" PRIu32 " in group %zu, but there are only %zu ranks", r, g, ranks);
            else if (made.group[r] != LS_NO_ID)
                rc = ls_fail(err, LS_EINPUT, at, "rank %" PRIu32 " is listed twice (groups %" PRIu32 " and %zu)", r,
                             made.group[r], g);
            else {
                made.group[r] = (uint32_t)g;
                made.member[r] = (uint32_t)m;
                made.rank[next++] = r;
            }
        }
    }
    made.first[lists_count] = next;
    if (rc == LS_OK)
        *out = made;
    else
        ls_arena_rewind(arena, mark);
    return rc;
}

static const char *comm_text(const struct ls_tables *t, uint16_t comm)
{
    return comm < t->comm.count ? ls_tables_name(t, t->comm.at[comm].name) : "?";
}

static const char *event_text(const struct ls_tables *t, uint32_t event)
{
    return event < t->event.count ? ls_tables_name(t, t->event.at[event]) : "?";
}

static void print_buffer(struct ls_str *out, const struct ls_tables *t, const struct ls_op *op)
{
    if (op->ranges && op->range < t->range.count) {
        uint32_t b = t->range.at[op->range].buffer;
        ls_str_printf(out, " %s", b < t->buffer.count ? ls_tables_name(t, t->buffer.at[b].name) : "?");
    }
}

static void print_size(struct ls_str *out, const struct ls_tables *t, const struct ls_op *op)
{
    if (op->dtype != LS_DTYPE_NONE)
        ls_str_printf(out, " %s", ls_dtype_name(op->dtype));
    if (op->symbol != LS_NO_ID)
        ls_str_printf(out, " x %s", ls_tables_name(t, op->symbol));
    else if (op->counts != LS_NO_ID && op->counts < t->vector.count) {
        ls_str_add(out, " x [");
        for (uint64_t i = 0; i < t->vector.at[op->counts]; i++)
            ls_str_printf(out, i ? ", %" PRIu64 : "%" PRIu64, t->vector.at[op->counts + 1 + i]);
        ls_str_add(out, "]");
    } else if (op->count)
        ls_str_printf(out, " x %" PRIu64, op->count);
    if (op->reduce != LS_REDUCE_NONE)
        ls_str_printf(out, " %s", ls_reduce_name(op->reduce));
}

static void print_when(struct ls_str *out, const struct ls_tables *t, const struct ls_op *op)
{
    if (op->pass != LS_PASS_NONE)
        ls_str_printf(out, " (%s, mb %" PRIu32 ")", ls_pass_name(op->pass), op->microbatch);
    if (!ls_op_is_host(op) && op->stream < t->stream.count && t->stream.count > 1)
        ls_str_printf(out, " on %s", ls_tables_name(t, t->stream.at[op->stream]));
}

void ls_op_print(struct ls_str *out, const struct ls_tables *t, const struct ls_op *op)
{
    ls_str_add(out, ls_op_kind_name(op->kind));
    if (ls_op_uses_comm(op)) {
        ls_str_printf(out, " %s", comm_text(t, op->comm));
        if (op->payload != LS_NO_ID && op->payload < t->payload.count)
            ls_str_printf(out, " %s", ls_tables_name(t, t->payload.at[op->payload].name));
        print_size(out, t, op);
        if (op->peer >= 0)
            ls_str_printf(out, op->kind == LS_OP_SEND ? " to member %" PRId32 : op->kind == LS_OP_RECV ?
                          " from member %" PRId32 : " root %" PRId32, op->peer);
    } else if (op->event != LS_NO_ID)
        ls_str_printf(out, " %s", event_text(t, op->event));
    else if (op->kind == LS_OP_ALLOC || op->kind == LS_OP_FREE)
        print_buffer(out, t, op);
    else if (op->module != LS_NO_ID)
        ls_str_printf(out, " %s", ls_tables_name(t, op->module));
    print_when(out, t, op);
}

/* The extra fields, as key=value, only where they differ from ls_op_make's. */
static void print_rest(struct ls_str *out, const struct ls_tables *t, const struct ls_op *op)
{
    if (op->thread)
        ls_str_printf(out, " thread=%u", op->thread);
    if (!ls_op_is_host(op))
        ls_str_printf(out, " stream=%u", op->stream);
    if (op->blocking)
        ls_str_add(out, " blocking");
    if (op->slots)
        ls_str_printf(out, " slots=%u", op->slots);
    if (op->fused)
        ls_str_printf(out, " fused=%" PRIu32, op->fused);
    if (op->layout)
        ls_str_printf(out, " layout=%s", ls_layout_name(op->layout));
    if (op->factor.num || op->factor.den)
        ls_str_printf(out, " factor=%" PRIu32 "/%" PRIu32, op->factor.num, op->factor.den);
    if (op->kind == LS_OP_DECIDE)
        ls_str_printf(out, " value=%" PRIu32 " then=%" PRIu32 " else=%" PRIu32, op->value, op->then_count, op->else_count);
    if (op->flops)
        ls_str_printf(out, " flops=%" PRIu64, op->flops);
    if (op->bytes)
        ls_str_printf(out, " bytes=%" PRIu64, op->bytes);
    if (op->stage || op->chunk)
        ls_str_printf(out, " stage=%u chunk=%u", op->stage, op->chunk);
    if (op->unit != LS_NO_ID)
        ls_str_printf(out, " unit=%s", ls_tables_name(t, op->unit));
    if (op->module != LS_NO_ID)
        ls_str_printf(out, " module=%s", ls_tables_name(t, op->module));
    for (uint32_t i = 0; i < op->ranges && op->range + i < t->range.count; i++) {
        const struct ls_range *r = &t->range.at[op->range + i];
        ls_str_printf(out, " %s=%s", r->write ? "writes" : "reads",
                      r->buffer < t->buffer.count ? ls_tables_name(t, t->buffer.at[r->buffer].name) : "?");
        if (r->bytes)
            ls_str_printf(out, "[%" PRIu64 "+%" PRIu64 "]", r->offset, r->bytes);
    }
    if (op->cause != LS_NO_ID && op->cause < t->cause.count) {
        const struct ls_cause *c = &t->cause.at[op->cause];
        ls_str_printf(out, " cause=\"%s\"", ls_tables_name(t, c->text));
        if (c->at.line)
            ls_str_printf(out, "@%zu:%zu", c->at.line, c->at.column);
    }
}

void ls_segment_print(struct ls_str *out, const struct ls_tables *t, const struct ls_op *op, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        ls_str_printf(out, "%4zu  ", i);
        ls_op_print(out, t, &op[i]);
        print_rest(out, t, &op[i]);
        ls_str_add(out, "\n");
    }
}
