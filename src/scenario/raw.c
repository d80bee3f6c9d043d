#include "scenario/raw.h"

#include "base/vec.h"
#include "scenario/raw_op.h"

#include <assert.h>
#include <inttypes.h>

enum { OPS_MAX = 1 << 22 }; /* of all ranks together */

static enum ls_code read_group(struct ls_raw_reader *l, const char *name, const struct ls_yaml_node *n, struct ls_groups *out)
{
    LS_TRY(ls_yaml_list(n, name, l->err));
    if (n->count == 0)
        return ls_fail(l->err, LS_EINPUT, n->at, "'%s' has no group", name);
    bool flat = n->item[0]->kind != LS_YAML_LIST;
    size_t count = flat ? 1 : n->count;
    const uint32_t **list = ls_arena_alloc(l->arena, count * sizeof *list);
    size_t *length = LS_NEW(l->arena, size_t, count);
    for (size_t g = 0; g < count; g++) {
        const struct ls_yaml_node *of = flat ? n : n->item[g];
        LS_TRY(ls_yaml_list(of, name, l->err));
        uint32_t *member = LS_NEW(l->arena, uint32_t, of->count ? of->count : 1);
        for (size_t m = 0; m < of->count; m++) {
            uint64_t rank = 0;
            LS_TRY(ls_yaml_uint(of->item[m], name, 0, l->raw->ranks - 1, &rank, l->err));
            member[m] = (uint32_t)rank;
        }
        list[g] = member;
        length[g] = of->count;
    }
    return ls_groups_from_lists(out, l->arena, l->raw->ranks, list, length, count, n->at, l->err);
}

static enum ls_code read_groups(struct ls_raw_reader *l, const struct ls_yaml_node *n)
{
    LS_TRY(ls_yaml_map(n, "groups", l->err));
    if (n->count > LS_RAW_GROUPS_MAX)
        return ls_fail(l->err, LS_EINPUT, n->at, "more than %d groups", LS_RAW_GROUPS_MAX);
    l->raw->comm = LS_NEW(l->arena, struct ls_groups, n->count ? n->count : 1);
    for (size_t i = 0; i < n->count; i++) {
        const struct ls_yaml_node *key = n->pair[i].key;
        uint32_t comm = ls_tables_comm(l->t, key->text);
        assert(comm == i && "tables are fresh, and YAML keys differ");
        l->t->comm.at[comm].at = key->at;
        LS_TRY(read_group(l, key->text, n->pair[i].value, &l->raw->comm[comm]));
    }
    return LS_OK;
}

static enum ls_code read_branches(struct ls_raw_reader *l, const struct ls_yaml_node *n)
{
    static const char *const keys[] = { "agreed", NULL };
    LS_TRY(ls_yaml_map(n, "branches", l->err));
    if (n->count > LS_RAW_BRANCHES_MAX)
        return ls_fail(l->err, LS_EINPUT, n->at, "more than %d branches", LS_RAW_BRANCHES_MAX);
    l->raw->branch = LS_NEW(l->arena, struct ls_raw_branch, n->count ? n->count : 1);
    for (size_t i = 0; i < n->count; i++) {
        const struct ls_yaml_node *v = n->pair[i].value, *agreed;
        struct ls_raw_branch *b = &l->raw->branch[l->raw->branches++];
        *b = (struct ls_raw_branch){ .name = ls_arena_str(l->arena, n->pair[i].key->text), .at = n->pair[i].key->at };
        if (ls_yaml_is_null(v))
            continue;
        LS_TRY(ls_yaml_map(v, b->name, l->err));
        LS_TRY(ls_yaml_check_keys(v, b->name, keys, l->err));
        if ((agreed = ls_yaml_get(v, "agreed")))
            LS_TRY(ls_yaml_bool(agreed, "agreed", &b->agreed, l->err));
    }
    return LS_OK;
}

/* Every rank that may issue an op is in its group, and the group has the root or peer. Notes which branches matter. */
static enum ls_code check_list(struct ls_raw_reader *l, uint32_t r, struct ls_raw_list list)
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
        LS_TRY(check_list(l, r, item->then_list));
        LS_TRY(check_list(l, r, item->else_list));
    }
    return LS_OK;
}

static enum ls_code read_ranks(struct ls_raw_reader *l, const struct ls_yaml_node *n)
{
    LS_TRY(ls_yaml_map(n, "rank", l->err));
    for (size_t i = 0; i < n->count; i++) {
        uint64_t r = 0;
        LS_TRY(ls_yaml_uint(n->pair[i].key, "rank", 0, l->raw->ranks - 1, &r, l->err));
        for (size_t k = 0; k < i; k++) { /* "1" and "01" are different keys, but one rank */
            uint64_t before = 0;
            LS_TRY(ls_yaml_uint(n->pair[k].key, "rank", 0, l->raw->ranks - 1, &before, l->err));
            if (before == r)
                return ls_fail(l->err, LS_EINPUT, n->pair[i].key->at, "rank %" PRIu64 " is listed twice", r);
        }
        LS_TRY(ls_raw_read_list(l, n->pair[i].value, "rank", &l->raw->rank[r]));
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

static enum ls_code load(struct ls_raw_reader *l, const struct ls_yaml_node *program)
{
    static const char *const keys[] = { "ranks", "groups", "branches", "body", "rank", NULL };
    const struct ls_yaml_node *n;
    uint64_t ranks = 0;
    LS_TRY(ls_yaml_map(program, "program", l->err));
    LS_TRY(ls_yaml_check_keys(program, "program", keys, l->err));
    if (!(n = ls_yaml_get(program, "ranks")))
        return ls_fail(l->err, LS_EINPUT, program->at, "'ranks' is missing in 'program'");
    LS_TRY(ls_yaml_uint(n, "ranks", 1, LS_RAW_RANKS_MAX, &ranks, l->err));
    l->raw->ranks = (size_t)ranks;
    l->raw->rank = LS_NEW(l->arena, struct ls_raw_list, l->raw->ranks);
    ls_tables_stream(l->t, "main");
    if ((n = ls_yaml_get(program, "groups")))
        LS_TRY(read_groups(l, n));
    if ((n = ls_yaml_get(program, "branches")))
        LS_TRY(read_branches(l, n));
    if (!ls_yaml_get(program, "body") && !ls_yaml_get(program, "rank"))
        return ls_fail(l->err, LS_EINPUT, program->at, "'program' has neither 'body' nor 'rank', so nothing happens");
    if ((n = ls_yaml_get(program, "body")))
        LS_TRY(ls_raw_read_list(l, n, "body", &l->raw->body));
    if ((n = ls_yaml_get(program, "rank")))
        LS_TRY(read_ranks(l, n));
    size_t ops = l->raw->ranks * list_ops(l->raw->body);
    for (size_t r = 0; r < l->raw->ranks; r++)
        ops += list_ops(l->raw->rank[r]);
    if (ops > OPS_MAX)
        return ls_fail(l->err, LS_EINPUT, program->at, "%zu ops on all ranks together; at most %d", ops, OPS_MAX);
    l->raw->matters = LS_NEW(l->arena, bool, l->raw->ranks * l->raw->branches + 1);
    for (uint32_t r = 0; r < l->raw->ranks; r++) {
        LS_TRY(check_list(l, r, l->raw->body));
        LS_TRY(check_list(l, r, l->raw->rank[r]));
    }
    return LS_OK;
}

enum ls_code ls_raw_load(const struct ls_yaml_node *program, struct ls_tables *tables, struct ls_raw *out, struct ls_error *err)
{
    *out = (struct ls_raw){ .tables = tables };
    struct ls_raw_reader l = { .raw = out, .t = tables, .arena = tables->arena, .err = err };
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
