#include "ir/program.h"

#include "build.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

Test(op, every_name_is_found_again)
{
    for (int k = 0; k < LS_OP_COUNT; k++) {
        enum ls_op_kind found;
        cr_assert(ls_op_kind_find(ls_op_kind_name((enum ls_op_kind)k), &found));
        cr_assert_eq((int)found, k);
        struct ls_op op = ls_op_make((enum ls_op_kind)k);
        cr_assert_eq(ls_op_is_collective(&op) + ls_op_is_p2p(&op) + ls_op_is_host(&op) <= 1, true);
        cr_assert_eq(ls_op_uses_comm(&op), ls_op_is_collective(&op) || ls_op_is_p2p(&op));
    }
    for (int d = 0; d < LS_DTYPE_COUNT; d++) {
        enum ls_dtype found;
        cr_assert(ls_dtype_find(ls_dtype_name((enum ls_dtype)d), &found));
        cr_assert_eq((int)found, d);
    }
    for (int r = 0; r < LS_REDUCE_COUNT; r++) {
        enum ls_reduce found;
        cr_assert(ls_reduce_find(ls_reduce_name((enum ls_reduce)r), &found));
        cr_assert_eq((int)found, r);
    }
    enum ls_op_kind kind;
    cr_assert_not(ls_op_kind_find("all_gathers", &kind));
    cr_assert_eq(ls_dtype_bytes(LS_DTYPE_BF16), 2u);
}

Test(tables, rows_are_found_again)
{
    struct ls_arena arena;
    struct ls_tables t;
    ls_arena_init(&arena, 0);
    ls_tables_init(&t, &arena);
    char name[16];
    for (uint32_t round = 0; round < 2; round++)
        for (uint32_t i = 0; i < 300; i++) {
            snprintf(name, sizeof name, "n%u", i);
            cr_assert_eq(ls_tables_comm(&t, name), i);
            cr_assert_eq(ls_tables_event(&t, name), i);
            if (i < 200)
                cr_assert_eq(ls_tables_stream(&t, name), i);
            cr_assert_eq(ls_tables_cause(&t, "same", (struct ls_loc){ "f.yaml", i, 1 }), i);
        }
    cr_assert_eq(t.comm.at[0].parent, LS_NO_ID);
    uint32_t x[] = { 1, 2, 3 }, y[] = { 1, 3, 2 };
    uint32_t a = ls_tables_payload(&t, "p", x, 3, 7), b = ls_tables_payload(&t, "p", y, 3, 7), c = ls_tables_payload(&t, "p", x, 2, 7),
             d = ls_tables_payload(&t, "q", x, 3, 7), e = ls_tables_payload(&t, "p", NULL, 0, 7);
    uint32_t all[] = { a, b, c, d, e };
    for (size_t i = 0; i < 5; i++)
        for (size_t j = 0; j < i; j++)
            cr_assert_neq(all[i], all[j], "payloads %zu and %zu", i, j);
    x[0] = 9; /* the table keeps its own copy */
    cr_assert_eq(ls_tables_payload(&t, "p", (uint32_t[]){ 1, 2, 3 }, 3, 7), a);
    cr_assert_eq(ls_tables_payload(&t, "p", NULL, 0, 0), e);
    cr_assert_str_eq(ls_tables_name(&t, LS_NO_ID), "");
    ls_tables_release(&t);
    ls_arena_release(&arena);
}

Test(groups, members_and_ranks_agree)
{
    struct ls_arena arena;
    struct ls_groups g;
    ls_arena_init(&arena, 0);
    const uint32_t a[] = { 3, 1 }, b[] = { 0 };
    const uint32_t *lists[] = { a, b };
    cr_assert_eq(ls_groups_from_lists(&g, &arena, 5, lists, (size_t[]){ 2, 1 }, 2, LS_NOWHERE, NULL), LS_OK);
    cr_assert_eq(g.groups, 2u);
    for (uint32_t r = 0; r < 5; r++)
        if (g.group[r] == LS_NO_ID)
            cr_assert_eq(g.member[r], LS_NO_ID);
        else
            cr_assert_eq(g.rank[g.first[g.group[r]] + g.member[r]], r);
    cr_assert_eq(g.member[1], 1u);
    cr_assert_eq(g.group[2], LS_NO_ID);
    struct { const uint32_t *list[2]; size_t length[2], count; const char *says; } bad[] = {
        { { a, a }, { 2, 1 }, 2, "twice" }, { { (const uint32_t[]){ 5 } }, { 1 }, 1, "only 5 ranks" }, { { a }, { 0 }, 1, "empty" },
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct ls_error err = { 0 };
        struct ls_groups out = g;
        size_t bytes = arena.bytes;
        cr_assert_eq(ls_groups_from_lists(&out, &arena, 5, bad[i].list, bad[i].length, bad[i].count, (struct ls_loc){ "f", 3, 4 }, &err),
                     LS_EINPUT);
        cr_assert(strstr(err.text, bad[i].says), "%s", err.text);
        cr_assert_eq(err.input.line, 3u);
        cr_assert_eq(memcmp(&out, &g, sizeof g), 0, "a failure leaves the result alone");
        cr_assert_eq(arena.bytes, bytes, "a failure leaves the arena as it was");
    }
    ls_arena_release(&arena);
}

/* Every field that the machine compares changes the hash; those that it does not see leave it. */
Test(segment, hash_sees_what_the_machine_sees)
{
    struct ls_op base = ls_op_make(LS_OP_ALL_REDUCE);
    uint64_t h = ls_segment_hash(&base, 1);
#define CHANGES(field, value)                                                                   \
    do {                                                                                        \
        struct ls_op op = base;                                                                 \
        op.field = value;                                                                       \
        cr_assert_neq(ls_segment_hash(&op, 1), h, #field " does not change the hash");         \
    } while (0)
    CHANGES(kind, LS_OP_REDUCE);
    CHANGES(dtype, LS_DTYPE_F16);
    CHANGES(reduce, LS_REDUCE_MAX);
    CHANGES(thread, 1);
    CHANGES(stream, 1);
    CHANGES(blocking, true);
    CHANGES(comm, 1);
    CHANGES(slots, 1);
    CHANGES(fused, 1);
    CHANGES(peer, 1);
    CHANGES(count, 1);
    CHANGES(counts, 1);
    CHANGES(symbol, 1);
    CHANGES(payload, 1);
    CHANGES(event, 1);
    CHANGES(range, 1);
    CHANGES(ranges, 1);
    CHANGES(factor.num, 1);
    CHANGES(factor.den, 1);
    CHANGES(value, 1);
    CHANGES(then_count, 1);
    CHANGES(else_count, 1);
    struct ls_op op = base;
    op.flops = 1, op.bytes = 1, op.unit = 1, op.module = 1, op.cause = 1, op.microbatch = 1;
    cr_assert_eq(ls_segment_hash(&op, 1), h);
    cr_assert_neq(ls_segment_hash(NULL, 0), h);
}

Test(op, prints_as_people_read_it)
{
    struct job_builder b;
    struct ls_str out = { 0 };
    build_open(&b, 2);
    uint32_t g = build_world(&b, "dp_shard");
    ls_tables_stream(&b.tables, "D");
    ls_tables_stream(&b.tables, "G");
    struct ls_op *op = build_op(&b, 0, LS_OP_ALL_GATHER, g);
    op->dtype = LS_DTYPE_BF16, op->count = 1024, op->pass = LS_PASS_F, op->stream = 1;
    build_payload(&b, op, "model.layers.0");
    ls_op_print(&out, &b.tables, op);
    cr_assert_str_eq(ls_str_text(&out), "all_gather dp_shard model.layers.0 bf16 x 1024 (forward, mb 0) on G");
    ls_str_clear(&out);
    ls_segment_print(&out, &b.tables, op, 1);
    cr_assert(strstr(ls_str_text(&out), "stream=1"));
    ls_str_release(&out);
    build_close(&b);
}
