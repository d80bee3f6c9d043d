#include "machine/machine.h"

#include "build.h"

#include <criterion/criterion.h>
#include <string.h>

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
        struct ls_outcome out = build_run_at(&b, LS_L2);
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
            cr_assert_eq(build_run_at(&b, LS_L2).verdict, taken ? LS_SAFE : LS_HANG, "taken=%u cut=%d", taken, cut);
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
            cr_assert_eq(build_run_at(&b, LS_L2).verdict, fused0 || fused1 ? LS_SAFE : LS_HANG, "fused %d %d", fused0, fused1);
            struct ls_run_options buffered = { .level = LS_L3 }, rendezvous = { .level = LS_L3, .unbuffered_send = true };
            cr_assert_eq(build_run(&b, &buffered).verdict, LS_SAFE);
            cr_assert_eq(build_run(&b, &rendezvous).verdict, fused0 || fused1 ? LS_SAFE : LS_HANG);
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
    struct ls_outcome out = build_run_at(&b, LS_L2);
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
    struct ls_outcome out = build_run_at(&b, LS_L2);
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
    struct ls_outcome out = build_run_at(&b, LS_L2);
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
    cr_assert_eq(build_run_at(&b, LS_L2).verdict, LS_SAFE);
    cr_assert_eq(build_run_at(&b, LS_L1).verdict, LS_HANG, "L1-safe jobs complete in issue order, so this one must not be");
    for (unsigned k = 0; k <= 8; k++) {
        struct ls_run_options order = { .level = LS_L3, .kernels = k, .start = LS_START_ISSUE_ORDER };
        struct ls_outcome out = build_run(&b, &order);
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
    cr_assert_eq(build_run_at(&b, LS_L1).verdict, LS_SAFE);
    for (unsigned k = 1; k <= 2; k++) {
        struct ls_outcome out;
        size_t runs;
        struct ls_run_options any = { .level = LS_L3, .kernels = k }, order = { .level = LS_L3, .kernels = k, .start = LS_START_ISSUE_ORDER };
        cr_assert_eq(ls_machine_explore_starts(&job, &any, 1000, &b.arena, &out, &runs, NULL), LS_OK);
        cr_assert_eq(out.verdict, k == 1 ? LS_HANG : LS_SAFE, "k=%u after %zu runs", k, runs);
        if (k == 1)
            cr_assert(out.pending_count == 4 && out.cycle_count >= 2);
        cr_assert_eq(build_run(&b, &order).verdict, LS_SAFE);
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
