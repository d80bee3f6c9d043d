#include "machine/machine.h"

#include "build.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

/* The generated suite: two ranks, two ops of every kind, in every arrangement; what must come out is known from how a case is
 * made. `expected` below never looks at a run. */
enum arrangement { EQUAL, INVERTED, ONE_MISSING };
enum variant { SAME, OTHER_COUNT, OTHER_ROOT, OTHER_REDUCE, OTHER_DTYPE, OTHER_PAYLOAD, OTHER_COMM, VARIANTS };
static const char *const arrangement_name[] = { "equal order", "inverted", "one missing" };
static const char *const variant_name[] = { "same", "count", "root", "reduce", "dtype", "payload", "communicator" };
enum waiting { BLOCKING, STREAM, HOST_WAITS, STREAM_WAITS, WAITINGS };
static const char *const waiting_name[] = { "blocking", "one stream", "event and host wait", "event and stream wait" };

static const enum ls_op_kind kinds[] = { LS_OP_ALL_GATHER, LS_OP_REDUCE_SCATTER, LS_OP_ALL_REDUCE, LS_OP_REDUCE, LS_OP_BROADCAST,
                                         LS_OP_ALL_TO_ALL, LS_OP_GATHER, LS_OP_SCATTER, LS_OP_BARRIER, LS_OP_SCAN, LS_OP_COMM_INIT,
                                         LS_OP_SEND };
enum { KINDS = sizeof kinds / sizeof *kinds };

struct suite_case { enum ls_op_kind kind; enum arrangement arrangement; enum variant variant; enum waiting waiting; bool two_comms; };

static bool is_rooted(enum ls_op_kind k) { return k == LS_OP_REDUCE || k == LS_OP_BROADCAST || k == LS_OP_GATHER || k == LS_OP_SCATTER; }
static bool reduces(enum ls_op_kind k)
{
    return k == LS_OP_ALL_REDUCE || k == LS_OP_REDUCE || k == LS_OP_REDUCE_SCATTER || k == LS_OP_SCAN;
}

/* Does the variant mean anything for the kind? */
static bool applies(enum ls_op_kind k, enum variant v)
{
    switch (v) {
    case OTHER_COUNT:
    case OTHER_DTYPE:
    case OTHER_PAYLOAD:
        return k != LS_OP_BARRIER && k != LS_OP_COMM_INIT;
    case OTHER_ROOT:
        return is_rooted(k);
    case OTHER_REDUCE:
        return reduces(k);
    case SAME:
    case OTHER_COMM:
    case VARIANTS:
        break;
    }
    return true;
}

static void wait_after(struct job_builder *b, uint32_t rank, const struct ls_op *op, enum waiting w, uint32_t event)
{
    if (w != HOST_WAITS && w != STREAM_WAITS)
        return;
    build_event(b, rank, LS_OP_RECORD, event, op->stream);
    if (w == HOST_WAITS)
        build_event(b, rank, LS_OP_HOST_WAIT, event, 0);
    else { /* everything that follows waits, whatever its stream */
        for (uint8_t s = 0; s < 3; s++)
            build_event(b, rank, LS_OP_WAIT, event, s);
    }
}

/* The nth op (0, 1) of a case on one rank. */
static void add_suite_op(struct job_builder *b, const struct suite_case *c, uint32_t rank, uint32_t nth, const uint32_t *comm)
{
    bool changed = rank == 1 && nth == 0;
    uint32_t on = comm[c->two_comms ? nth : 0];
    if (changed && c->variant == OTHER_COMM)
        on = comm[2];
    enum ls_op_kind kind = c->kind;
    if (kind == LS_OP_SEND && (rank ^ nth)) /* op 0 goes from rank 0 to 1, op 1 back */
        kind = LS_OP_RECV;
    struct ls_op *op = build_op(b, rank, kind, on);
    op->stream = (uint8_t)(1 + nth);
    op->blocking = c->waiting == BLOCKING;
    if (c->waiting == STREAM)
        op->stream = 1;
    if (ls_op_is_p2p(op))
        op->peer = (int32_t)(1 - rank);
    if (is_rooted(kind))
        op->peer = 0;
    if (reduces(kind))
        op->reduce = LS_REDUCE_SUM;
    if (kind != LS_OP_BARRIER && kind != LS_OP_COMM_INIT) {
        op->count = 8;
        op->dtype = LS_DTYPE_F32;
        build_payload(b, op, "x");
    }
    if (changed)
        switch (c->variant) {
        case OTHER_COUNT:
            op->count = 9;
            break;
        case OTHER_ROOT:
            op->peer = 1;
            break;
        case OTHER_REDUCE:
            op->reduce = LS_REDUCE_MAX;
            break;
        case OTHER_DTYPE:
            op->dtype = LS_DTYPE_BF16;
            break;
        case OTHER_PAYLOAD:
            build_payload(b, op, "y");
            break;
        case SAME:
        case OTHER_COMM:
        case VARIANTS:
            break;
        }
    struct ls_op copy = *op;
    wait_after(b, rank, &copy, c->waiting, nth);
}

struct want { enum ls_verdict verdict; enum ls_diff diff; bool cycle; };

/* By construction. Let a, b be the two ops; rank 0 issues a b, rank 1 issues a' b (or b a', or a' alone). Every kind of waiting
 * in the suite finishes one op before the next of the rank may start, so the verdict does not depend on it. */
static struct want expected(const struct suite_case *c)
{
    const struct want safe = { LS_SAFE, LS_DIFF_NONE, false }, missing = { LS_HANG, LS_DIFF_NONE, false }, cycle = { LS_HANG, LS_DIFF_NONE, true };
    bool p2p = c->kind == LS_OP_SEND, apart = c->two_comms || p2p; /* a and b never meet in one queue */
    static const enum ls_diff diff[] = { LS_DIFF_NONE, LS_DIFF_COUNT, LS_DIFF_ROOT, LS_DIFF_REDUCE, LS_DIFF_DTYPE, LS_DIFF_PAYLOAD,
                                         LS_DIFF_NONE };
    const struct want differ = { c->variant == OTHER_PAYLOAD ? LS_MISPAIRING : LS_MISMATCH, diff[c->variant], false };
    switch (c->arrangement) {
    case EQUAL:
        if (c->variant == SAME)
            return safe;
        return c->variant == OTHER_COMM ? missing : differ; /* a has no partner on its communicator */
    case INVERTED: /* rank 0: a b; rank 1: b a' */
        if (apart) /* a waits for a', which is behind b, which waits for b, which is behind a */
            return c->variant == OTHER_COMM ? missing : cycle;
        if (c->variant == SAME) /* a and b are equal but for their name */
            return safe;
        if (c->variant != OTHER_COMM)
            return differ; /* a pairs with b, then b meets a' */
        return missing;
    case ONE_MISSING: /* rank 0: a b; rank 1: a' */
        if (c->variant == SAME)
            return missing;
        return c->variant == OTHER_COMM ? missing : differ;
    }
    return safe;
}

Test(suite, two_ranks_every_kind)
{
    size_t cases = 0, safe = 0, right = 0;
    for (size_t k = 0; k < KINDS; k++)
        for (enum arrangement a = EQUAL; a <= ONE_MISSING; a++)
            for (enum variant v = SAME; v < VARIANTS; v++)
                for (enum waiting w = BLOCKING; w < WAITINGS; w++)
                    for (int two = 0; two < 2; two++)
                        for (int where = 0; where < 2; where++) { /* at L1 every wait is blocking */
                            struct suite_case c = { kinds[k], a, v, w, two };
                            if (!applies(c.kind, v))
                                continue;
                            struct job_builder b;
                            build_open(&b, 2);
                            uint32_t comm[] = { build_world(&b, "A"), build_world(&b, "B"), build_world(&b, "C") };
                            for (uint32_t nth = 0; nth < 2; nth++)
                                add_suite_op(&b, &c, 0, nth, comm);
                            for (uint32_t i = 0; i < (a == ONE_MISSING ? 1u : 2u); i++)
                                add_suite_op(&b, &c, 1, a == INVERTED ? 1 - i : i, comm);
                            struct want want = expected(&c);
                            struct ls_outcome got = build_run_at(&b, where ? LS_L1 : LS_L2);
                            cr_expect(got.verdict == want.verdict && got.diff == want.diff && (got.cycle_count != 0) == want.cycle,
                                      "%s, %s, %s, %s, %d communicators, L%d: expected %s (%s, %s), got %s (%s, %zu)",
                                      ls_op_kind_name(c.kind), arrangement_name[a], variant_name[v], waiting_name[w], two + 1, where ? 1 : 2,
                                      ls_verdict_name(want.verdict), ls_diff_name(want.diff), want.cycle ? "cycle" : "no cycle",
                                      ls_verdict_name(got.verdict), ls_diff_name(got.diff), got.cycle_count);
                            right += got.verdict == want.verdict;
                            safe += want.verdict == LS_SAFE;
                            cases++;
                            build_close(&b);
                        }
    printf("suite: %zu cases of two ranks (%zu of them safe), %zu right\n", cases, safe, right);
}

/* Two ops on two streams, nothing between them: order does not matter at L2 unless they share a queue. */
Test(suite, independent_streams)
{
    size_t cases = 0;
    for (size_t k = 0; k < KINDS; k++)
        for (int two = 0; two < 2; two++)
            for (enum arrangement a = EQUAL; a <= INVERTED; a++) {
                struct job_builder b;
                struct suite_case c = { kinds[k], a, SAME, WAITINGS, two };
                build_open(&b, 2);
                uint32_t comm[] = { build_world(&b, "A"), build_world(&b, "B"), build_world(&b, "C") };
                for (uint32_t i = 0; i < 2; i++) {
                    add_suite_op(&b, &c, 0, i, comm);
                    add_suite_op(&b, &c, 1, a == INVERTED ? 1 - i : i, comm);
                }
                bool blocks = c.kind == LS_OP_COMM_INIT && two && a == INVERTED;
                cr_expect_eq(build_run_at(&b, LS_L2).verdict, blocks ? LS_HANG : LS_SAFE, "%s two=%d %s", ls_op_kind_name(c.kind), two, arrangement_name[a]);
                bool l1_hang = a == INVERTED && (two || c.kind == LS_OP_SEND);
                cr_expect_eq(build_run_at(&b, LS_L1).verdict, l1_hang ? LS_HANG : LS_SAFE, "L1 %s two=%d %s", ls_op_kind_name(c.kind), two,
                             arrangement_name[a]);
                cases += 2;
                build_close(&b);
            }
    printf("suite: %zu cases on independent streams\n", cases);
}

/* Every pair of different kinds at one position is a difference of op (send and recv belong together, so they are apart). */
Test(suite, other_kinds_meet)
{
    size_t cases = 0;
    for (size_t i = 0; i + 1 < KINDS; i++)
        for (size_t j = 0; j + 1 < KINDS; j++) {
            struct job_builder b;
            build_open(&b, 2);
            uint32_t g = build_world(&b, "A");
            build_op(&b, 0, kinds[i], g);
            build_op(&b, 1, kinds[j], g);
            struct ls_outcome out = build_run_at(&b, LS_L2);
            cr_expect_eq(out.verdict, i == j ? LS_SAFE : LS_MISMATCH, "%s with %s", ls_op_kind_name(kinds[i]), ls_op_kind_name(kinds[j]));
            cr_expect_eq(out.diff, i == j ? LS_DIFF_NONE : LS_DIFF_KIND);
            cases++;
            build_close(&b);
        }
    printf("suite: %zu pairs of kinds\n", cases);
}

/* A split whose members come in reversed order: roots and peers count in the new order. */
Test(suite, split_with_reversed_members)
{
    for (int right = 0; right < 2; right++) {
        struct job_builder b;
        build_open(&b, 2);
        uint32_t world = build_world(&b, "world"), rev = build_comm(&b, "rev", 1, (const uint32_t[]){ 1, 0 }, (const size_t[]){ 2 });
        b.tables.comm.at[rev].parent = world;
        for (uint32_t r = 0; r < 2; r++) {
            build_op(&b, r, LS_OP_COMM_INIT, rev);
            build_op(&b, r, LS_OP_BROADCAST, rev)->peer = right ? 0 : (int32_t)r; /* "my rank" is not "my member" */
            struct ls_op *op = build_op(&b, r, r == 1 ? LS_OP_SEND : LS_OP_RECV, rev);
            op->peer = r == 1 ? 1 : 0; /* rank 1 is member 0 */
            op->blocking = true;
        }
        struct ls_outcome out = build_run_at(&b, LS_L2);
        cr_assert_eq(out.verdict, right ? LS_SAFE : LS_MISMATCH);
        cr_assert_eq(out.diff, right ? LS_DIFF_NONE : LS_DIFF_ROOT);
        build_close(&b);
    }
}

/* Creating a communicator takes all of the parent, also those who are not in it. */
Test(suite, split_needs_all_of_the_parent)
{
    for (int all = 0; all < 2; all++) {
        struct job_builder b;
        build_open(&b, 3);
        uint32_t world = build_world(&b, "world"), pair = build_comm(&b, "pair", 1, (const uint32_t[]){ 0, 2 }, (const size_t[]){ 2 });
        b.tables.comm.at[pair].parent = world;
        for (uint32_t r = 0; r < 3; r++)
            if (all || r != 1)
                build_op(&b, r, LS_OP_COMM_INIT, pair);
        for (uint32_t r = 0; r < 3; r += 2)
            build_op(&b, r, LS_OP_ALL_REDUCE, pair);
        struct ls_outcome out = build_run_at(&b, LS_L2);
        cr_assert_eq(out.verdict, all ? LS_SAFE : LS_HANG);
        cr_assert(all || out.missing_rank == 1);
        build_close(&b);
    }
}

Test(suite, three_groups_in_a_ring)
{
    struct job_builder b;
    build_open(&b, 3);
    uint32_t g[3];
    for (uint32_t i = 0; i < 3; i++)
        g[i] = build_comm(&b, (const char *[]){ "ab", "bc", "ca" }[i], 1, (const uint32_t[]){ i, (i + 1) % 3 }, (const size_t[]){ 2 });
    for (uint32_t r = 0; r < 3; r++) { /* everyone first with the next, then with the one before */
        build_op(&b, r, LS_OP_ALL_REDUCE, g[r])->blocking = true;
        build_op(&b, r, LS_OP_ALL_REDUCE, g[(r + 2) % 3])->blocking = true;
    }
    struct ls_outcome out = build_run_at(&b, LS_L2);
    cr_assert_eq(out.verdict, LS_HANG);
    cr_assert_eq(out.cycle_count, 6u, "three ops that wait, and the three they wait for");
    cr_assert_eq(out.missing_rank, LS_NO_ID);
    cr_assert(out.comm == g[0] && out.position == 0 && out.a.rank == 0);
    cr_assert_eq(out.pending_count, 3u);
    for (uint32_t i = 0; i < 3; i++)
        cr_assert(out.pending[i].at.rank == i && out.pending[i].why == LS_BLOCKED_MEMBERS && out.pending[i].on.rank == (i + 1) % 3);
    build_close(&b);
}

/* A branch on a rank's own data whose sides issue the same calls is correct; one that differs is not. */
Test(suite, agreed_branches)
{
    for (uint32_t v0 = 0; v0 < 2; v0++)
        for (uint32_t v1 = 0; v1 < 2; v1++)
            for (int max = 0; max < 2; max++)
                for (int same = 0; same < 2; same++) {
                    struct job_builder b;
                    build_open(&b, 2);
                    uint32_t g = build_world(&b, "A");
                    for (uint32_t r = 0; r < 2; r++) {
                        struct ls_op *d = build_op(&b, r, LS_OP_DECIDE, g);
                        d->reduce = max ? LS_REDUCE_MAX : LS_REDUCE_MIN;
                        d->value = r ? v1 : v0;
                        d->then_count = 2, d->else_count = 1;
                        build_op(&b, r, LS_OP_ALL_REDUCE, g);
                        build_op(&b, r, LS_OP_ALL_REDUCE, g);
                        build_op(&b, r, same || r == 0 ? LS_OP_ALL_GATHER : LS_OP_BARRIER, g);
                        build_op(&b, r, LS_OP_ALL_TO_ALL, g);
                    }
                    bool then = max ? v0 || v1 : v0 && v1;
                    struct ls_outcome out = build_run_at(&b, LS_L2);
                    cr_assert_eq(out.verdict, same || then ? LS_SAFE : LS_MISMATCH);
                    cr_assert_eq(out.collectives, then ? 4u : same ? 3u : 1u);
                    build_close(&b);
                }
}
