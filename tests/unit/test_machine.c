#include "machine/machine.h"

#include "build.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

static struct ls_outcome run_as(struct job_builder *b, const struct ls_run_options *o)
{
    struct ls_job job = build_job(b);
    struct ls_outcome out;
    struct ls_error err = { 0 };
    cr_assert_eq(ls_machine_run(&job, o, &b->arena, &out, &err), LS_OK, "%s", err.text);
    return out;
}

static struct ls_outcome run(struct job_builder *b, enum ls_level level)
{
    return run_as(b, &(struct ls_run_options){ .level = level });
}

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
                            struct ls_outcome got = run(&b, where ? LS_L1 : LS_L2);
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
                cr_expect_eq(run(&b, LS_L2).verdict, blocks ? LS_HANG : LS_SAFE, "%s two=%d %s", ls_op_kind_name(c.kind), two, arrangement_name[a]);
                bool l1_hang = a == INVERTED && (two || c.kind == LS_OP_SEND);
                cr_expect_eq(run(&b, LS_L1).verdict, l1_hang ? LS_HANG : LS_SAFE, "L1 %s two=%d %s", ls_op_kind_name(c.kind), two,
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
            struct ls_outcome out = run(&b, LS_L2);
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
        struct ls_outcome out = run(&b, LS_L2);
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
        struct ls_outcome out = run(&b, LS_L2);
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
    struct ls_outcome out = run(&b, LS_L2);
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
                    struct ls_outcome out = run(&b, LS_L2);
                    cr_assert_eq(out.verdict, same || then ? LS_SAFE : LS_MISMATCH);
                    cr_assert_eq(out.collectives, then ? 4u : same ? 3u : 1u);
                    build_close(&b);
                }
}

Test(machine, a_wait_means_the_latest_record_before_it)
{
    struct job_builder b;
    build_open(&b, 2);
    uint32_t g = build_world(&b, "A"), h = build_world(&b, "B");
    /* rank 0: e is recorded behind B on stream 1, then again on stream 2; the wait before the second record means the first. */
    for (int late = 0; late < 2; late++) {
        ls_vec_release(&b.op[0]);
        ls_vec_release(&b.op[1]);
        build_op(&b, 0, LS_OP_ALL_REDUCE, h)->stream = 1;
        build_event(&b, 0, LS_OP_RECORD, 7, 1);
        if (late)
            build_event(&b, 0, LS_OP_RECORD, 7, 2);
        build_event(&b, 0, LS_OP_WAIT, 7, 0);
        build_event(&b, 0, LS_OP_RECORD, 7, 2);
        build_op(&b, 0, LS_OP_ALL_REDUCE, g);
        build_op(&b, 1, LS_OP_ALL_REDUCE, g)->blocking = true;
        build_op(&b, 1, LS_OP_ALL_REDUCE, h)->blocking = true;
        struct ls_outcome out = run(&b, LS_L2);
        cr_assert_eq(out.verdict, late ? LS_SAFE : LS_HANG, "late=%d", late);
    }
    build_close(&b);
}

/* The record that a wait means may lie in an earlier segment, or in a side of a branch that is not taken. */
Test(machine, records_across_segments_and_branches)
{
    for (uint32_t taken = 0; taken < 2; taken++)
        for (int cut = 0; cut < 2; cut++) {
            struct job_builder b;
            build_open(&b, 2);
            uint32_t g = build_world(&b, "A"), h = build_world(&b, "B"), own = build_comm(&b, "own", 2, (const uint32_t[]){ 0, 1 }, (const size_t[]){ 1, 1 });
            build_op(&b, 0, LS_OP_ALL_REDUCE, h)->stream = 1;
            build_event(&b, 0, LS_OP_RECORD, 0, 1);
            if (cut)
                build_cut(&b, 0);
            struct ls_op *d = build_op(&b, 0, LS_OP_DECIDE, own);
            d->stream = 2, d->value = taken, d->then_count = 1;
            build_event(&b, 0, LS_OP_RECORD, 0, 2);
            if (cut)
                build_cut(&b, 0);
            build_event(&b, 0, LS_OP_WAIT, 0, 0);
            build_op(&b, 0, LS_OP_ALL_REDUCE, g);
            build_op(&b, 1, LS_OP_ALL_REDUCE, g)->blocking = true;
            build_op(&b, 1, LS_OP_ALL_REDUCE, h)->blocking = true;
            cr_assert_eq(run(&b, LS_L2).verdict, taken ? LS_SAFE : LS_HANG, "taken=%u cut=%d", taken, cut);
            build_close(&b);
        }
}

Test(machine, fused_pairs_meet_partners_one_by_one)
{
    for (int fused0 = 0; fused0 < 2; fused0++)
        for (int fused1 = 0; fused1 < 2; fused1++) {
            struct job_builder b;
            build_open(&b, 2);
            uint32_t g = build_world(&b, "A");
            for (uint32_t r = 0; r < 2; r++)
                for (int i = 0; i < 2; i++) {
                    struct ls_op *op = build_op(&b, r, i ? LS_OP_RECV : LS_OP_SEND, g);
                    op->peer = (int32_t)(1 - r), op->blocking = true;
                    op->fused = (r ? fused1 : fused0) ? 1 : 0;
                }
            cr_assert_eq(run(&b, LS_L2).verdict, fused0 || fused1 ? LS_SAFE : LS_HANG, "fused %d %d", fused0, fused1);
            struct ls_run_options buffered = { .level = LS_L3 }, rendezvous = { .level = LS_L3, .unbuffered_send = true };
            cr_assert_eq(run_as(&b, &buffered).verdict, LS_SAFE);
            cr_assert_eq(run_as(&b, &rendezvous).verdict, fused0 || fused1 ? LS_SAFE : LS_HANG);
            build_close(&b);
        }
}

Test(machine, a_stop_is_an_error_and_names_who_waits)
{
    struct job_builder b;
    build_open(&b, 2);
    uint32_t g = build_world(&b, "A");
    build_op(&b, 0, LS_OP_ALL_REDUCE, g);
    build_op(&b, 0, LS_OP_ALL_REDUCE, g);
    build_op(&b, 1, LS_OP_ALL_REDUCE, g);
    build_op(&b, 1, LS_OP_STOP, 0);
    build_op(&b, 1, LS_OP_ALL_REDUCE, g);
    struct ls_outcome out = run(&b, LS_L2);
    cr_assert_eq(out.verdict, LS_ERROR);
    cr_assert(out.a.rank == 1 && out.a.op == 1 && out.b.rank == 0 && out.b.op == 1 && out.missing_rank == 1);
    cr_assert(out.comm == g && out.position == 1);
    build_close(&b);
}

/* A thread held by a stop that its own thread never reaches waits for that thread: the cycle leads through the stop. */
Test(machine, a_stop_that_is_not_reached)
{
    struct job_builder b;
    build_open(&b, 2);
    uint32_t g = build_world(&b, "A"), h = build_world(&b, "B");
    build_op(&b, 0, LS_OP_ALL_REDUCE, g)->blocking = true;
    build_op(&b, 0, LS_OP_STOP, 0);
    struct ls_op *op = build_op(&b, 0, LS_OP_ALL_REDUCE, h);
    op->thread = 1, op->stream = 1;
    build_op(&b, 1, LS_OP_ALL_REDUCE, h)->blocking = true;
    build_op(&b, 1, LS_OP_ALL_REDUCE, g);
    struct ls_outcome out = run(&b, LS_L2);
    cr_assert(out.verdict == LS_HANG && out.missing_rank == LS_NO_ID && out.comm == g);
    bool through = false;
    for (size_t i = 0; i < out.cycle_count; i++)
        through |= out.cycle[i].rank == 0 && out.cycle[i].op == 1;
    cr_assert(through);
    build_close(&b);
}

/* Of several violations the one at the smallest (communicator, k) is reported, and what depends on a violation is not one. */
Test(machine, the_smallest_place_is_reported)
{
    struct job_builder b;
    build_open(&b, 2);
    uint32_t x = build_world(&b, "A"), y = build_world(&b, "B");
    for (uint32_t r = 0; r < 2; r++) {
        build_op(&b, r, LS_OP_BARRIER, x)->stream = 1;
        build_op(&b, r, LS_OP_ALL_GATHER, y)->count = 1 + r;    /* violation B 0 on stream 0 */
        build_op(&b, r, r ? LS_OP_SCAN : LS_OP_GATHER, x);      /* behind it: absorbed */
        struct ls_op *op = build_op(&b, r, LS_OP_ALL_REDUCE, x);
        op->stream = 1, op->count = 5 + r;
    }
    struct ls_outcome out = run(&b, LS_L2);
    cr_assert(out.verdict == LS_MISMATCH && out.diff == LS_DIFF_COUNT && out.comm == y && out.position == 0 && out.completed == 2,
              "%s comm %u k %zu", ls_verdict_name(out.verdict), out.comm, out.position);
    build_close(&b);
}

Test(machine, seen_as_follows_what_nccl_does)
{
    struct ls_op a = ls_op_make(LS_OP_ALL_GATHER), c = a;
    a.count = c.count = 4, a.dtype = LS_DTYPE_BF16, c.dtype = LS_DTYPE_F16;
    cr_assert_str_eq(ls_diff_seen_as(LS_DIFF_DTYPE, &a, &c), "silent");
    c.dtype = LS_DTYPE_F32;
    cr_assert_str_eq(ls_diff_seen_as(LS_DIFF_DTYPE, &a, &c), "hang");
    cr_assert_str_eq(ls_diff_seen_as(LS_DIFF_COUNT, &a, &c), "hang");
    cr_assert_str_eq(ls_diff_seen_as(LS_DIFF_PAYLOAD, &a, &c), "silent");
    c.kind = LS_OP_COMM_INIT;
    cr_assert_str_eq(ls_diff_seen_as(LS_DIFF_KIND, &a, &c), "crash");
}

Test(machine, malformed_jobs_are_refused)
{
    struct { int what; const char *says; } bad[] = { { 0, "no peer" }, { 1, "beyond the segment" }, { 2, "cannot be part" }, { 3, "in no group" },
                                                     { 4, "no event" }, { 5, "has 2 members" }, { 6, "beyond the branch" }, { 7, "only communication" } };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct job_builder b;
        struct ls_outcome out;
        struct ls_error err = { 0 };
        build_open(&b, 3);
        uint32_t g = build_comm(&b, "pair", 1, (const uint32_t[]){ 0, 1 }, (const size_t[]){ 2 });
        switch (bad[i].what) {
        case 0:
            build_op(&b, 0, LS_OP_SEND, g);
            break;
        case 1:
            build_op(&b, 0, LS_OP_DECIDE, g)->then_count = 1;
            break;
        case 2:
            build_op(&b, 0, LS_OP_DECIDE, g)->fused = 1;
            break;
        case 3:
            build_op(&b, 2, LS_OP_BARRIER, g);
            break;
        case 4:
            build_op(&b, 0, LS_OP_WAIT, 0);
            break;
        case 5:
            build_op(&b, 0, LS_OP_RECV, g)->peer = 2;
            break;
        case 6:
            build_op(&b, 0, LS_OP_DECIDE, g)->then_count = 1;
            build_op(&b, 0, LS_OP_DECIDE, g)->else_count = 1;
            build_op(&b, 0, LS_OP_BARRIER, g);
            break;
        default:
            build_op(&b, 0, LS_OP_COMPUTE, 0)->fused = 1;
            break;
        }
        struct ls_job job = build_job(&b);
        cr_expect_eq(ls_machine_run(&job, &(struct ls_run_options){ .level = LS_L2 }, &b.arena, &out, &err), LS_EINPUT);
        cr_expect(strstr(err.text, bad[i].says), "case %zu: '%s' does not say '%s'", i, err.text, bad[i].says);
        build_close(&b);
    }
}

/* L3. Case 13: choice 0 is "A before B, then C on its own stream", choice 1 "C before A, then B on its own stream". */
static void case_13(struct job_builder *b)
{
    build_open(b, 2);
    uint32_t a = build_world(b, "A"), bb = build_world(b, "B"), c = build_world(b, "C");
    build_op(b, 0, LS_OP_ALL_REDUCE, a)->stream = 1;
    build_op(b, 0, LS_OP_ALL_REDUCE, bb)->stream = 1;
    build_op(b, 0, LS_OP_ALL_REDUCE, c)->stream = 2;
    build_op(b, 1, LS_OP_ALL_REDUCE, c)->stream = 1;
    build_op(b, 1, LS_OP_ALL_REDUCE, a)->stream = 1;
    build_op(b, 1, LS_OP_ALL_REDUCE, bb)->stream = 2;
}

Test(level3, case_13_is_stuck_in_issue_order_for_every_k)
{
    struct job_builder b;
    case_13(&b);
    cr_assert_eq(run(&b, LS_L2).verdict, LS_SAFE);
    cr_assert_eq(run(&b, LS_L1).verdict, LS_HANG, "L1-safe jobs complete in issue order, so this one must not be");
    for (unsigned k = 0; k <= 8; k++) {
        struct ls_run_options order = { .level = LS_L3, .kernels = k, .start = LS_START_ISSUE_ORDER };
        struct ls_outcome out = run_as(&b, &order);
        cr_assert_eq(out.verdict, LS_HANG, "k=%u", k);
        cr_assert(out.cycle_count >= 2);
    }
    struct ls_outcome out;
    size_t runs;
    struct ls_job job = build_job(&b);
    struct ls_run_options any = { .level = LS_L3, .kernels = 2 };
    cr_assert_eq(ls_machine_explore_starts(&job, &any, 1000000, &b.arena, &out, &runs, NULL), LS_OK);
    cr_assert_eq(out.verdict, LS_SAFE, "two streams: a slot for each");
    build_close(&b);
}

/* Conversely A|B in one common host order: safe at L1, so in issue order for every k; stuck for k = 1 when starts are free. */
Test(level3, free_start_order_needs_a_slot_for_each)
{
    struct job_builder b;
    build_open(&b, 2);
    uint32_t g[] = { build_world(&b, "A"), build_world(&b, "B") };
    for (uint32_t r = 0; r < 2; r++)
        for (uint8_t i = 0; i < 2; i++)
            build_op(&b, r, LS_OP_ALL_REDUCE, g[i])->stream = i;
    struct ls_job job = build_job(&b);
    cr_assert_eq(run(&b, LS_L1).verdict, LS_SAFE);
    for (unsigned k = 1; k <= 2; k++) {
        struct ls_outcome out;
        size_t runs;
        struct ls_run_options any = { .level = LS_L3, .kernels = k }, order = { .level = LS_L3, .kernels = k, .start = LS_START_ISSUE_ORDER };
        cr_assert_eq(ls_machine_explore_starts(&job, &any, 1000, &b.arena, &out, &runs, NULL), LS_OK);
        cr_assert_eq(out.verdict, k == 1 ? LS_HANG : LS_SAFE, "k=%u after %zu runs", k, runs);
        if (k == 1)
            cr_assert(out.pending_count == 4 && out.cycle_count >= 2);
        cr_assert_eq(run_as(&b, &order).verdict, LS_SAFE);
    }
    struct ls_outcome out;
    size_t runs;
    struct ls_run_options any = { .level = LS_L3, .kernels = 2 };
    cr_assert_eq(ls_machine_explore_starts(&job, &any, 1, &b.arena, &out, &runs, NULL), LS_OK);
    cr_assert_eq(out.verdict, LS_UNDECIDED, "one run is not all of them");
    build_close(&b);
}

/* Ops that take two slots: two of them do not fit into three. */
Test(level3, slots_are_counted)
{
    struct job_builder b;
    build_open(&b, 2);
    uint32_t g[] = { build_world(&b, "A"), build_world(&b, "B") };
    for (uint32_t r = 0; r < 2; r++)
        for (uint8_t i = 0; i < 2; i++) {
            uint8_t which = r ? (uint8_t)(1 - i) : i;
            struct ls_op *op = build_op(&b, r, LS_OP_ALL_REDUCE, g[which]);
            op->stream = which, op->slots = 2;
        }
    for (unsigned k = 1; k <= 5; k++) {
        struct ls_job job = build_job(&b);
        struct ls_outcome out;
        size_t runs;
        struct ls_run_options any = { .level = LS_L3, .kernels = k };
        cr_assert_eq(ls_machine_explore_starts(&job, &any, 1000, &b.arena, &out, &runs, NULL), LS_OK);
        cr_assert_eq(out.verdict, k < 4 ? LS_HANG : LS_SAFE, "k=%u", k);
    }
    build_close(&b);
}

/* Races. Stream 0 computes, stream 1 communicates; the buffer belongs to stream 0. */
enum { ALLOC_WAIT = 1, READ_WAIT = 2, FREE_WAIT = 4 };
/* What comes after the free: nothing, or another buffer of the same pool, of another, or of the same after a wait. */
enum then { THEN_NOTHING, THEN_SAME_POOL, THEN_OTHER_POOL, THEN_WAIT };
static size_t races_of(unsigned waits, bool host, enum then then, struct ls_race *first)
{
    struct job_builder b;
    build_open(&b, 1);
    uint32_t g = build_world(&b, "A");
    ls_push(&b.tables.buffer, (struct ls_buffer){ .pool = 0, .bytes = 64 });
    ls_push(&b.tables.buffer, (struct ls_buffer){ .pool = then == THEN_OTHER_POOL ? 1 : 0, .bytes = 64 });
    ls_push(&b.tables.range, (struct ls_range){ .buffer = 0, .write = true });
    ls_push(&b.tables.range, (struct ls_range){ .buffer = 0, .write = false });
    ls_push(&b.tables.range, (struct ls_range){ .buffer = 1, .write = true });
    build_op(&b, 0, LS_OP_COMPUTE, 0);
    struct ls_op *op = build_op(&b, 0, LS_OP_ALLOC, 0);
    op->range = 0, op->ranges = 1;
    if (waits & ALLOC_WAIT) {
        build_event(&b, 0, LS_OP_RECORD, 0, 0);
        build_event(&b, 0, LS_OP_WAIT, 0, 1);
    }
    op = build_op(&b, 0, LS_OP_ALL_GATHER, g);
    op->stream = 1, op->range = 0, op->ranges = 1;
    build_event(&b, 0, LS_OP_RECORD, 1, 1);
    if (waits & READ_WAIT)
        build_event(&b, 0, LS_OP_WAIT, 1, 0);
    op = build_op(&b, 0, LS_OP_COMPUTE, 0);
    op->range = 1, op->ranges = 1;
    op = build_op(&b, 0, LS_OP_REDUCE_SCATTER, g);
    op->stream = 1, op->range = 1, op->ranges = 1;
    build_event(&b, 0, LS_OP_RECORD, 2, 1);
    if (waits & FREE_WAIT)
        build_event(&b, 0, host ? LS_OP_HOST_WAIT : LS_OP_WAIT, 2, 0);
    op = build_op(&b, 0, LS_OP_FREE, 0);
    op->range = 0, op->ranges = 1;
    if (then == THEN_WAIT)
        build_event(&b, 0, host ? LS_OP_HOST_WAIT : LS_OP_WAIT, 2, 0);
    if (then != THEN_NOTHING) {
        op = build_op(&b, 0, LS_OP_ALLOC, 0);
        op->range = 2, op->ranges = 1;
    }
    struct ls_job job = build_job(&b);
    struct ls_race *race;
    size_t count;
    cr_assert_eq(ls_machine_races(&job, 16, &b.arena, &race, &count, NULL), LS_OK);
    if (count)
        *first = race[0];
    build_close(&b);
    return count;
}

Test(races, every_missing_edge_is_found_and_no_other)
{
    for (unsigned waits = 0; waits < 8; waits++)
        for (int host = 0; host < 2; host++) {
            struct ls_race first = { 0 };
            size_t count = races_of(waits, host, THEN_SAME_POOL, &first);
            /* A wait of the free covers both ops on stream 1; the read's wait covers the gather. */
            size_t want = !(waits & ALLOC_WAIT) * 2u + !(waits & READ_WAIT) + !(waits & FREE_WAIT) * (1u + !(waits & READ_WAIT));
            cr_assert_eq(count, want, "waits %u host %d: %zu races, expected %zu", waits, host, count, want);
            if (waits == (READ_WAIT | FREE_WAIT))
                cr_assert(first.kind == LS_RACE_EARLY && first.a.op == 1 && first.b.op == 2);
            if (waits == (ALLOC_WAIT | FREE_WAIT))
                cr_assert_eq(first.kind, LS_RACE_CONFLICT);
            if (waits == (ALLOC_WAIT | READ_WAIT))
                cr_assert(first.kind == LS_RACE_FREED && first.buffer == 0);
        }
}

/* Memory given back does no harm before the pool hands it out again: FSDP2 drops a gather that nobody consumed at the end of a
 * backward, and its pool's stream waits for everything before the next gather. */
Test(races, memory_is_reused_by_the_next_alloc_of_its_pool)
{
    for (int host = 0; host < 2; host++) {
        struct ls_race first = { 0 };
        cr_assert_eq(races_of(ALLOC_WAIT | READ_WAIT, host, THEN_SAME_POOL, &first), 1);
        cr_assert_eq(races_of(ALLOC_WAIT | READ_WAIT, host, THEN_NOTHING, &first), 0);
        cr_assert_eq(races_of(ALLOC_WAIT | READ_WAIT, host, THEN_OTHER_POOL, &first), 0);
        cr_assert_eq(races_of(ALLOC_WAIT | READ_WAIT, host, THEN_WAIT, &first), 0);
    }
}

Test(races, ranges_instances_and_bundles)
{
    struct { uint64_t offset; bool write; bool fused; size_t races; } c[] = {
        { 0, true, false, 1 }, { 8, true, false, 0 }, { 4, true, false, 1 }, { 0, false, false, 1 }, { 0, true, true, 1 }, { 8, true, true, 0 },
    };
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        struct job_builder b;
        build_open(&b, 1);
        uint32_t g = build_world(&b, "A");
        ls_push(&b.tables.buffer, (struct ls_buffer){ .pool = 0, .bytes = 64 });
        ls_push(&b.tables.range, (struct ls_range){ 0, true, 0, 8 });
        ls_push(&b.tables.range, (struct ls_range){ 0, c[i].write, c[i].offset, 8 });
        for (uint32_t k = 0; k < 2; k++) { /* a send to itself and its receive are apart in every queue */
            struct ls_op *op = build_op(&b, 0, k ? LS_OP_RECV : LS_OP_SEND, g);
            op->peer = 0, op->range = k, op->ranges = 1;
            op->stream = c[i].fused ? 0 : (uint8_t)k;
            op->fused = c[i].fused;
        }
        struct ls_job job = build_job(&b);
        struct ls_race *race;
        size_t count;
        cr_assert_eq(ls_machine_races(&job, 16, &b.arena, &race, &count, NULL), LS_OK);
        cr_assert_eq(count, c[i].races, "case %zu: %zu", i, count);
        build_close(&b);
    }
    struct job_builder b;
    build_open(&b, 1);
    build_world(&b, "A");
    ls_push(&b.tables.buffer, (struct ls_buffer){ .pool = 0, .bytes = 64 });
    ls_push(&b.tables.range, (struct ls_range){ .buffer = 0, .write = true });
    enum ls_op_kind kind[] = { LS_OP_ALLOC, LS_OP_COMPUTE, LS_OP_FREE, LS_OP_COMPUTE, LS_OP_ALLOC, LS_OP_COMPUTE, LS_OP_FREE };
    for (size_t i = 0; i < sizeof kind / sizeof *kind; i++) {
        struct ls_op *op = build_op(&b, 0, kind[i], 0);
        op->range = 0, op->ranges = 1;
    }
    struct ls_job job = build_job(&b);
    struct ls_race *race;
    size_t count;
    cr_assert_eq(ls_machine_races(&job, 16, &b.arena, &race, &count, NULL), LS_OK);
    cr_assert(count == 1 && race[0].kind == LS_RACE_AFTER_FREE && race[0].a.op == 2 && race[0].b.op == 3);
    build_close(&b);
}
