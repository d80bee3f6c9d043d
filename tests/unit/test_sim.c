#include "sim/sim.h"

#include "base/hash.h"
#include "build.h"
#include "sim/collective.h"
#include "sim/measured.h"
#include "sim/queue.h"

#include <criterion/criterion.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { US = 1000000 };

static struct ls_platform load(struct ls_arena *a, const char *name, size_t nodes)
{
    struct ls_platform p;
    struct ls_error err = { 0 };
    char path[512];
    snprintf(path, sizeof path, LS_SOURCE_DIR "/scenarios/platforms/%s.yaml", name);
    cr_assert_eq(ls_platform_load(path, nodes, a, &p, &err), LS_OK, "%s: %s", name, err.text);
    return p;
}

/* A host that costs nothing, so that times are those of the device. */
static struct ls_platform quiet(struct ls_arena *a, const char *name, size_t nodes)
{
    struct ls_platform p = load(a, name, nodes);
    p.launch_ps = p.collective_ps = p.event_ps = p.alloc_ps = p.sync_ps = 0;
    return p;
}

Test(queue, order_of_time_then_of_push)
{
    for (uint64_t seed = 1; seed <= 50; seed++) {
        struct ls_queue q;
        uint64_t r = seed, now = 0, nth = 0, next;
        uint64_t last_nth = 0, last_time = 0;
        ls_queue_init(&q);
        for (int i = 0; i < 3000; i++) {
            if (ls_random_below(&r, 2)) {
                uint64_t shift = ls_random_below(&r, 50);
                ls_queue_push(&q, now + (ls_random_below(&r, 4) ? ls_random(&r) >> (63 - shift) : 0), nth++);
                continue;
            }
            struct ls_due e;
            bool some = ls_queue_next(&q, &next);
            cr_assert_eq(some, q.count != 0);
            cr_assert_eq(ls_queue_pop(&q, &e), some);
            if (!some)
                continue;
            cr_assert(e.time == next && e.time >= last_time && (e.time > last_time || i == 0 || e.what > last_nth || last_nth == 0),
                      "seed %" PRIu64, seed);
            now = last_time = e.time;
            last_nth = e.what;
        }
        ls_queue_release(&q);
    }
}

Test(platform, all_load_at_every_size)
{
    static const char *const names[] = { "a100x8", "h100x8", "h200x8", "b200x8" };
    struct ls_arena a;
    ls_arena_init(&a, 0);
    for (size_t i = 0; i < 4; i++) {
        struct ls_platform p = load(&a, names[i], 0);
        cr_assert_str_eq(p.name, names[i]);
        cr_assert(p.nodes == 1 && p.gpus == 8 && p.flops[LS_DTYPE_BF16] > 3e14);
        cr_assert_eq(load(&a, names[i], 2048).nodes, 2048);
        cr_assert_eq(p.nvls_Bps != 0, i != 0);
    }
    ls_arena_release(&a);
}

Test(platform, errors_name_their_place)
{
    static const struct { const char *from, *to, *says; size_t line; } wrong[] = {
        { "hbm_TBps: 3.35", "hbm_TBs: 3.35", "unknown key 'hbm_TBs'", 10 },
        { "  nics: 8", "  nics: 3", "neither divides", 23 },
        { "  nics: 8", "  nics: 9", "'nics'", 23 },
        { "arch: hopper", "arch: kepler", "'arch'", 7 },
        { "matmul: 0.80", "matmul: 1.80", "between", 13 },
        { "  ll128: true", "", "'ll128' is missing", 23 },
        { "reserved_MiB: 600 ", "reserved_MiB: 90000 ", "leaves nothing", 9 },
        { "platform: 1", "platform: 2", "'platform'", 2 },
    };
    struct ls_arena a;
    ls_arena_init(&a, 0);
    FILE *f = fopen(LS_SOURCE_DIR "/scenarios/platforms/h100x8.yaml", "r");
    static char text[8192], bad[8192];
    cr_assert(f);
    size_t n = fread(text, 1, sizeof text - 1, f);
    fclose(f);
    text[n] = '\0';
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        char path[] = "/tmp/lockstep-platform-XXXXXX";
        struct ls_platform p;
        struct ls_error err = { 0 };
        const char *at = strstr(text, wrong[i].from);
        cr_assert(at, "%s", wrong[i].from);
        snprintf(bad, sizeof bad, "%.*s%s%s", (int)(at - text), text, wrong[i].to, at + strlen(wrong[i].from));
        int fd = mkstemp(path);
        FILE *out = fdopen(fd, "w");
        cr_assert(out);
        fputs(bad, out);
        fclose(out);
        cr_assert_eq(ls_platform_load(path, 0, &a, &p, &err), LS_EINPUT);
        remove(path);
        cr_assert(strstr(err.text, wrong[i].says), "'%s' does not say '%s'", err.text, wrong[i].says);
        cr_assert_eq(err.input.line, wrong[i].line, "%s: line %zu", err.text, err.input.line);
        cr_assert(err.input.column);
    }
    struct ls_platform p;
    cr_assert_eq(ls_platform_load(LS_SOURCE_DIR "/scenarios/platforms/h100x8.yaml", 2049, &a, &p, NULL), LS_EINPUT);
    ls_arena_release(&a);
}

/* Fixed cost of ring all_gather and reduce_scatter by NCCL's tuner, microseconds; Intel and AMD hosts. */
Test(collective, fixed_cost_from_8_to_4096_ranks)
{
    static const struct { uint32_t ranks; double us[2][3]; } row[] = {
        { 8, { { 11, 27, 32 }, { 11, 27, 32 } } },
        { 64, { { 82, 148, 297 }, { 138, 154, 442 } } },
        { 256, { { 314, 564, 1204 }, { 538, 586, 1786 } } },
        { 1024, { { 1246, 2224, 4833 }, { 2142, 2314, 7162 } } },
        { 4096, { { 4970, 8868, 19348 }, { 8554, 9226, 28666 } } },
    };
    struct ls_arena a;
    ls_arena_init(&a, 0);
    for (size_t i = 0; i < sizeof row / sizeof *row; i++)
        for (int cpu = 0; cpu < 2; cpu++)
            for (enum ls_protocol protocol = LS_PROTOCOL_LL; protocol < LS_PROTOCOL_COUNT; protocol++) {
                struct ls_platform p = load(&a, "h100x8", row[i].ranks / 8);
                struct ls_placement at = { row[i].ranks, row[i].ranks / 8, 8 };
                p.cpu = cpu ? LS_CPU_AMD : LS_CPU_INTEL;
                uint64_t ag = ls_collective_latency_ps(&p, LS_OP_ALL_GATHER, at, LS_ALGORITHM_RING, protocol, 1 << 20);
                uint64_t rs = ls_collective_latency_ps(&p, LS_OP_REDUCE_SCATTER, at, LS_ALGORITHM_RING, protocol, 1 << 20);
                cr_assert_eq(ag, rs);
                cr_assert(fabs((double)ag * 1e-6 - row[i].us[cpu][protocol]) <= 0.55, "%u ranks, %s: %g us", (unsigned)row[i].ranks,
                          ls_protocol_name(protocol), (double)ag * 1e-6);
            }
    ls_arena_release(&a);
}

/* The whole model of all_gather on 8 H100, microseconds. */
Test(collective, all_gather_on_one_h100_node)
{
    static const struct { uint64_t KiB; double us; enum ls_protocol protocol; } row[] = {
        { 256, 12.4, LS_PROTOCOL_LL },      { 512, 14.1, LS_PROTOCOL_LL },     { 1024, 17.3, LS_PROTOCOL_LL },
        { 2048, 23.8, LS_PROTOCOL_LL },     { 16384, 71.6, LS_PROTOCOL_LL128 }, { 32768, 114, LS_PROTOCOL_SIMPLE },
        { 65536, 195, LS_PROTOCOL_SIMPLE }, { 131072, 358, LS_PROTOCOL_SIMPLE }, { 524288, 1337, LS_PROTOCOL_SIMPLE },
        { 1048576, 2642, LS_PROTOCOL_SIMPLE }, { 2097152, 5252, LS_PROTOCOL_SIMPLE },
    };
    struct ls_arena a;
    ls_arena_init(&a, 0);
    struct ls_platform p = load(&a, "h100x8", 1);
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        struct ls_collective_cost c;
        ls_collective_choose(&p, NULL, LS_OP_ALL_GATHER, (struct ls_placement){ 8, 1, 8 }, row[i].KiB << 10, &c);
        cr_assert(c.algorithm == LS_ALGORITHM_RING && c.protocol == row[i].protocol, "%" PRIu64 " KiB: %s %s", row[i].KiB,
                  ls_algorithm_name(c.algorithm), ls_protocol_name(c.protocol));
        double us = (double)ls_collective_cost_ps(&c) * 1e-6;
        cr_assert(fabs(us - row[i].us) <= row[i].us * 0.002 + 0.05, "%" PRIu64 " KiB: %g us", row[i].KiB, us);
    }
    /* Plateaus that were measured: NVLS all_reduce on H200 480 GB/s, on B200 840; no NVLS on A100, ring 235. */
    static const struct { const char *name; enum ls_algorithm algorithm; double busbw, within; } plateau[] = {
        { "h200x8", LS_ALGORITHM_NVLS, 480, 10 }, { "b200x8", LS_ALGORITHM_NVLS, 842, 12 }, { "a100x8", LS_ALGORITHM_RING, 235, 6 } };
    for (size_t i = 0; i < 3; i++) {
        struct ls_collective_cost c;
        p = load(&a, plateau[i].name, 1);
        ls_collective_choose(&p, NULL, LS_OP_ALL_REDUCE, (struct ls_placement){ 8, 1, 8 }, (uint64_t)16 << 30, &c);
        double busbw = (double)((uint64_t)16 << 30) * 1.75 / ((double)ls_collective_cost_ps(&c) * 1e-12) * 1e-9;
        cr_assert_eq(c.algorithm, plateau[i].algorithm);
        cr_assert(fabs(busbw - plateau[i].busbw) <= plateau[i].within, "%s: %g GB/s", plateau[i].name, busbw);
    }
    ls_arena_release(&a);
}

/* 27 units of a tower on 1,024 ranks: the fixed cost of a pass, by units, as one unit, and in shard groups of 64. */
Test(collective, tower_units_on_1024_ranks)
{
    struct ls_arena a;
    ls_arena_init(&a, 0);
    struct ls_platform p = load(&a, "h100x8", 128);
    uint64_t all = ls_collective_latency_ps(&p, LS_OP_ALL_GATHER, (struct ls_placement){ 1024, 128, 8 }, LS_ALGORITHM_RING, LS_PROTOCOL_LL, 1);
    uint64_t some = ls_collective_latency_ps(&p, LS_OP_ALL_GATHER, (struct ls_placement){ 64, 8, 8 }, LS_ALGORITHM_RING, LS_PROTOCOL_LL, 1);
    cr_assert(fabs((double)all * 27e-9 - 33.6) < 0.2 && fabs((double)all * 1e-9 - 1.25) < 0.01 && fabs((double)some * 27e-9 - 2.2) < 0.05);
    ls_arena_release(&a);
}

static const char nccl_text[] =
    "# Collective test starting: all_gather_perf\n"
    "# nThread 1 nGpus 1 minBytes 1048576 maxBytes 16777216 step: 2(factor) warmup iters: 5 iters: 20\n"
    "#\n# Using devices\n"
    "#  Rank  0 Group  0 Pid  1 on   host-a device  0 [0x8d] NVIDIA H100\n"
    "#  Rank  1 Group  0 Pid  2 on   host-b device  0 [0x91] NVIDIA H100\n"
    "#\n"
    "#                                                              out-of-place                       in-place\n"
    "#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong\n"
    "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)\n"
    "     1048576        131072     float    none      -1    20.00   52.43   26.21      0    20.00   52.43   26.21      0\n"
    "     2097152        262144     float    none      -1    30.00   69.91   34.95      0    30.00   69.91   34.95      0\n"
    "    16777216       2097152     float    none      -1   100.50  167.77   83.89      0   100.50  167.77   83.89      0\n"
    "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 48.35\n";

Test(measured, nccl_tests_override_the_formula)
{
    struct ls_arena a;
    struct ls_nccl_tests m = { 0 };
    struct ls_error err = { 0 };
    uint64_t ps;
    ls_arena_init(&a, 0);
    cr_assert_eq(ls_nccl_tests_read(nccl_text, "ag.txt", NULL, &a, &m, &err), LS_OK, "%s", err.text);
    cr_assert(m.curves == 1 && m.curve[0].kind == LS_OP_ALL_GATHER && m.curve[0].ranks == 2 && m.curve[0].nodes == 2 && m.curve[0].points == 3);
    struct ls_placement at = { 2, 2, 1 };
    cr_assert(ls_nccl_tests_find(&m, LS_OP_ALL_GATHER, at, 1, &ps) && ps == 20 * US);
    cr_assert(ls_nccl_tests_find(&m, LS_OP_ALL_GATHER, at, 1572864, &ps) && ps == 25 * US);
    cr_assert(ls_nccl_tests_find(&m, LS_OP_ALL_GATHER, at, 33554432, &ps) && ps == 201 * US);
    cr_assert(!ls_nccl_tests_find(&m, LS_OP_REDUCE_SCATTER, at, 1, &ps));
    cr_assert(!ls_nccl_tests_find(&m, LS_OP_ALL_GATHER, (struct ls_placement){ 2, 1, 2 }, 1, &ps));
    struct ls_platform p = load(&a, "h100x8", 2);
    struct ls_collective_cost c;
    ls_collective_choose(&p, &m, LS_OP_ALL_GATHER, at, 16777216, &c);
    cr_assert(c.algorithm == LS_ALGORITHM_MEASURED && ls_collective_cost_ps(&c) == 100500000 && c.bus_bytes == 8388608);
    ls_collective_choose(&p, &m, LS_OP_REDUCE_SCATTER, at, 16777216, &c);
    cr_assert_neq(c.algorithm, LS_ALGORITHM_MEASURED);

    static const struct { const char *text, *kind, *says; size_t line; } bad[] = {
        { "nothing here\n", NULL, "no table", 0 },
        { "     1048576  131072  float none -1 20.00 52.43 26.21 0\n", NULL, "which collective", 1 },
        { "     1048576  131072  float none -1 20.00 52.43 26.21 0\n", "all_gather", "no '# Rank'", 1 },
        { "     1048576  131072\n", "all_gather", "no out-of-place time", 1 },
        { "\n     8 2 float none -1 20.00 52.43 26.21 0\n     4 1 float none -1 20.00 52.43 26.21 0\n", "all_gather", "ascend", 3 },
        { "x\n", "all_together", "no collective", 0 },
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct ls_nccl_tests none = { 0 };
        cr_assert_eq(ls_nccl_tests_read(bad[i].text, "bad.txt", bad[i].kind, &a, &none, &err), LS_EINPUT);
        cr_assert(strstr(err.text, bad[i].says) && err.input.line == bad[i].line, "%s, line %zu", err.text, err.input.line);
    }
    ls_arena_release(&a);
}

/* Closed forms. */

struct spans { struct ls_sim_span at[64]; size_t count; };
static void keep(void *context, const struct ls_sim_span *s)
{
    struct spans *k = context;
    if (k->count < sizeof k->at / sizeof *k->at)
        k->at[k->count++] = *s;
}

static struct ls_sim_result simulate(struct job_builder *b, const struct ls_platform *p, struct spans *k)
{
    static const struct ls_cost nominal;
    struct ls_job job = build_job(b);
    struct ls_sim_options o = { .run.level = LS_L2, .hooks = { .context = k, .done = k ? keep : NULL, .host = k ? keep : NULL } };
    struct ls_sim_result out;
    struct ls_error err = { 0 };
    cr_assert_eq(ls_sim_run(&job, p, &nominal, &o, &b->arena, &out, &err), LS_OK, "%s", err.text);
    return out;
}

/* bytes / (GB/s) in picoseconds, to the nearest. */
static uint64_t moved(double bytes, double GBps) { return (uint64_t)(bytes / GBps * 1000 + 0.5); }

/* One large call of each kind on 16 ranks of two H100 nodes: latency by steps of the ring, bytes over a bus of 360 GB/s. */
Test(sim, each_collective_alone)
{
    enum { N = 16, COUNT = 100000000 };
    const double ring_us = 8.4 + 14 * 3.4 + 14, bytes = 4e8; /* Simple, 15 steps of which one crosses nodes */
    const double twice_us = 1.4 * (8.4 + 28 * 3.4 + 2 * 14); /* all_reduce: 30 steps, of which two cross; a plateau of 1.4 between nodes */
    const double direct_us = 8.4 + 14, tree_us = 6.8 + 2 * (7 * 0.6 + 5.0); /* of a few bytes: LL */
    const struct { enum ls_op_kind kind; double us, bytes, GBps; } row[] = {
        { LS_OP_ALL_GATHER, ring_us, 15, 360 },                /* 16 shards in all, 15 pass each link */
        { LS_OP_REDUCE_SCATTER, ring_us, 15, 360 },
        { LS_OP_ALL_REDUCE, twice_us, 2 * 15 / 16.0, 360 },
        { LS_OP_BROADCAST, ring_us, 1, 360 },
        { LS_OP_REDUCE, ring_us, 1, 360 },
        { LS_OP_SCAN, ring_us, 1, 360 },
        { LS_OP_ALL_TO_ALL, direct_us, 8 * 8 / 16.0, 368 },    /* of eight ranks of a node, half leaves it, by 8 NICs of 46 */
        { LS_OP_GATHER, direct_us, 15, 368 },                  /* the root's node takes all in */
        { LS_OP_SCATTER, direct_us, 15, 368 },
        { LS_OP_BARRIER, tree_us, 0, 1 },
        { LS_OP_DECIDE, tree_us, 0, 1 },
    };
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        struct job_builder b;
        build_open(&b, N);
        uint32_t world = build_world(&b, "world");
        for (uint32_t r = 0; r < N; r++) {
            struct ls_op *op = build_op(&b, r, row[i].kind, world);
            bool rooted = row[i].kind == LS_OP_BROADCAST || row[i].kind == LS_OP_REDUCE || row[i].kind == LS_OP_GATHER || row[i].kind == LS_OP_SCATTER;
            op->dtype = row[i].bytes > 0 ? LS_DTYPE_F32 : LS_DTYPE_NONE;
            op->count = row[i].bytes > 0 ? COUNT : 0;
            op->peer = rooted ? 0 : -1;
        }
        struct ls_platform p = quiet(&b.arena, "h100x8", 2);
        struct ls_sim_result out = simulate(&b, &p, NULL);
        uint64_t want = (uint64_t)(row[i].us * 1e6 + 0.5) + moved(bytes * row[i].bytes, row[i].GBps);
        uint64_t within = row[i].bytes > 0 ? 1 : 1000; /* the 8 bytes of a barrier */
        cr_assert(out.complete && out.end_ps - want + within <= 2 * within, "%s: %" PRIu64 " ps, by hand %" PRIu64, ls_op_kind_name(row[i].kind), out.end_ps, want);
        build_close(&b);
    }
}

Test(sim, send_and_receive)
{
    static const struct { uint32_t to; double us, GBps; } row[] = { { 1, 8.4 + 3.4, 450 }, { 9, 8.4 + 14, 46 } };
    for (size_t i = 0; i < 2; i++) {
        struct job_builder b;
        build_open(&b, 16);
        uint32_t world = build_world(&b, "world");
        struct ls_op *op = build_op(&b, 0, LS_OP_SEND, world);
        op->peer = (int32_t)row[i].to, op->count = 1000000000, op->dtype = LS_DTYPE_U8;
        op = build_op(&b, row[i].to, LS_OP_RECV, world);
        op->peer = 0, op->count = 1000000000, op->dtype = LS_DTYPE_U8;
        struct ls_platform p = quiet(&b.arena, "h100x8", 2);
        uint64_t want = (uint64_t)(row[i].us * 1e6 + 0.5) + moved(1e9, row[i].GBps);
        struct ls_sim_result out = simulate(&b, &p, NULL);
        cr_assert(out.complete && out.end_ps - want + 1 <= 2, "%" PRIu64 " ps, by hand %" PRIu64, out.end_ps, want);
        build_close(&b);
    }
}

/* 989 TFLOP/s at 0.8: 0.7912 flops a picosecond make 1 ms. */
static void work(struct job_builder *b, uint32_t r, uint8_t stream, double ms)
{
    struct ls_op *op = build_op(b, r, LS_OP_COMPUTE, 0);
    op->flops = (uint64_t)(989e12 * 0.8 * ms * 1e-3);
    op->stream = stream;
}

static uint64_t off(uint64_t ps, double ms) { return (uint64_t)fabs((double)ps - ms * 1e9); }

Test(sim, chains_and_overlap)
{
    struct job_builder b;
    struct spans k = { 0 };
    build_open(&b, 1);
    work(&b, 0, 0, 2);
    build_event(&b, 0, LS_OP_RECORD, 0, 0);
    work(&b, 0, 0, 3);                       /* overlaps with the 4 ms below */
    build_event(&b, 0, LS_OP_WAIT, 0, 1);
    work(&b, 0, 1, 4);
    build_event(&b, 0, LS_OP_RECORD, 1, 1);
    build_event(&b, 0, LS_OP_WAIT, 1, 0);
    work(&b, 0, 0, 1);
    struct ls_platform p = quiet(&b.arena, "h100x8", 1);
    struct ls_sim_result out = simulate(&b, &p, &k);
    cr_assert(out.complete && off(out.end_ps, 7) <= 2, "%" PRIu64, out.end_ps);
    for (size_t i = 0; i < k.count; i++)
        if (k.at[i].op->kind == LS_OP_WAIT) /* stream 1 waits from 0 to 2 ms, stream 0 from 5 to 6 ms */
            cr_assert(k.at[i].op->stream ? k.at[i].ready_ps == 0 && off(k.at[i].end_ps, 2) <= 2
                                         : off(k.at[i].ready_ps, 5) <= 2 && off(k.at[i].end_ps, 6) <= 2);
    build_close(&b);
}

/* Two groups across two nodes, of one GPU each, over one NIC or over two: bandwidth halves, latency stays. */
Test(sim, two_groups_on_one_nic)
{
    uint64_t end[2];
    for (int nics = 1; nics <= 2; nics++) {
        struct job_builder b;
        build_open(&b, 4);
        uint32_t rail = build_comm(&b, "rail", 2, (const uint32_t[]){ 0, 2, 1, 3 }, (const size_t[]){ 2, 2 });
        for (uint32_t r = 0; r < 4; r++) {
            struct ls_op *op = build_op(&b, r, LS_OP_BROADCAST, rail);
            op->dtype = LS_DTYPE_F32, op->count = 100000000, op->peer = 0;
        }
        struct ls_platform p = quiet(&b.arena, "h100x8", 2);
        p.gpus = 2;
        p.nics = (uint64_t)nics;
        p.net_Bps = p.nics * p.nic_Bps;
        end[nics - 1] = simulate(&b, &p, NULL).end_ps;
        build_close(&b);
    }
    uint64_t latency = (uint64_t)(8.4e6 + 14e6), alone = moved(4e8, 46);
    cr_assert_eq(end[1], latency + alone, "%" PRIu64 " %" PRIu64, end[1], latency + alone);
    cr_assert_eq(end[0], latency + 2 * alone, "%" PRIu64 " %" PRIu64, end[0], latency + 2 * alone);
}

/* A late rank holds its group back; another group that starts meanwhile takes half of the NIC until the first one ends. */
Test(sim, staggered_starts)
{
    struct job_builder b;
    struct spans k = { 0 };
    build_open(&b, 4);
    uint32_t rail = build_comm(&b, "rail", 2, (const uint32_t[]){ 0, 2, 1, 3 }, (const size_t[]){ 2, 2 });
    work(&b, 3, 0, 5);
    for (uint32_t r = 0; r < 4; r++) {
        struct ls_op *op = build_op(&b, r, LS_OP_BROADCAST, rail);
        op->dtype = LS_DTYPE_F32, op->count = 100000000, op->peer = 0;
    }
    struct ls_platform p = quiet(&b.arena, "h100x8", 2);
    p.gpus = 2;
    p.nics = 1;
    p.net_Bps = p.nic_Bps;
    simulate(&b, &p, &k);
    /* Alone 0.4 GB / 46 GB/s = 8.6957 ms. From 5 ms both: 3.6957 ms are left of the first, and take 7.3913 ms. */
    const double latency = 0.0224, alone = 400.0 / 46;
    size_t seen = 0;
    for (size_t i = 0; i < k.count; i++) {
        const struct ls_sim_span *s = &k.at[i];
        if (s->op->kind != LS_OP_BROADCAST)
            continue;
        seen++;
        if (s->at.rank % 2 == 0)
            cr_assert(s->start_ps == 0 && off(s->end_ps, latency + 5 + 2 * (alone - 5)) <= 3, "%" PRIu64, s->end_ps);
        else
            cr_assert(off(s->start_ps, 5) <= 2 && off(s->end_ps, latency + 2 * alone) <= 3 && s->ready_ps == (s->at.rank == 1 ? 0 : s->start_ps),
                      "%" PRIu64, s->end_ps);
    }
    cr_assert_eq(seen, 4);
    build_close(&b);
}

/* Short kernels: the host is the bottleneck, and spans say so; alloc and free come at the host's time. */
Test(sim, launch_bound)
{
    struct job_builder b;
    struct spans k = { 0 };
    build_open(&b, 1);
    build_op(&b, 0, LS_OP_ALLOC, 0);
    for (int i = 0; i < 10; i++)
        work(&b, 0, 0, 0.002);
    build_op(&b, 0, LS_OP_FREE, 0);
    build_event(&b, 0, LS_OP_RECORD, 0, 0);
    build_event(&b, 0, LS_OP_HOST_WAIT, 0, 0);
    work(&b, 0, 0, 0.002);
    struct ls_platform p = quiet(&b.arena, "h100x8", 1);
    p.launch_ps = 7 * US;
    p.alloc_ps = 3 * US;
    p.sync_ps = 5 * US;
    struct ls_sim_result out = simulate(&b, &p, &k);
    /* alloc 3, ten launches of 7: the last kernel starts at 73 and ends at 75; free at 76, the record after it; then sync, launch, kernel. */
    cr_assert(off(out.end_ps, 0.076 + 0.007 + 0.002) <= 25, "%" PRIu64, out.end_ps);
    size_t kernels = 0;
    for (size_t i = 0; i < k.count; i++) {
        const struct ls_sim_span *s = &k.at[i];
        if (s->op->kind == LS_OP_ALLOC)
            cr_assert_eq(s->end_ps, 3 * US);
        if (s->op->kind == LS_OP_FREE)
            cr_assert_eq(s->end_ps, 76 * US);
        if (s->op->kind == LS_OP_COMPUTE && kernels++ < 10)
            cr_assert(s->ready_ps == (3 + 7 * kernels) * US && (kernels == 1 || s->ready_ps - s->head_ps >= 4999980), "%" PRIu64, s->ready_ps);
    }
    build_close(&b);
}

/* Folding. */

static uint64_t pick(uint64_t *r, uint64_t n) { return ls_random_below(r, n); }

struct big { struct ls_arena arena; struct ls_tables t; struct ls_job job; struct ls_segment segment[3]; const struct ls_segment *list[3]; uint32_t *slowness; };

/* HSDP on nodes of 8: shard groups are nodes, replicate groups rails; random segments of three kinds of rank, by pattern. */
static void random_big(struct big *b, uint64_t seed, size_t ranks)
{
    uint64_t r = seed * 0x9e3779b97f4a7c15u;
    ls_arena_init(&b->arena, 0);
    ls_tables_init(&b->t, &b->arena);
    uint32_t comm[3] = { ls_tables_comm(&b->t, "shard"), ls_tables_comm(&b->t, "replicate"), ls_tables_comm(&b->t, "world") };
    struct ls_groups *groups = LS_NEW(&b->arena, struct ls_groups, 3);
    for (int c = 0; c < 3; c++) {
        size_t count = c == 0 ? ranks / 8 : c == 1 ? 8 : 1, size = ranks / count;
        const uint32_t **list = LS_NEW(&b->arena, const uint32_t *, count);
        size_t *length = LS_NEW(&b->arena, size_t, count);
        for (size_t g = 0; g < count; g++) {
            uint32_t *member = LS_NEW(&b->arena, uint32_t, size);
            for (size_t i = 0; i < size; i++)
                member[i] = (uint32_t)(c == 1 ? i * 8 + g : g * size + i);
            list[g] = member;
            length[g] = size;
        }
        cr_assert_eq(ls_groups_from_lists(&groups[c], &b->arena, ranks, list, length, count, LS_NOWHERE, NULL), LS_OK);
    }
    enum { STEPS = 30 };
    struct ls_op common[STEPS];
    for (int i = 0; i < STEPS; i++) {
        static const enum ls_op_kind kinds[] = { LS_OP_ALL_GATHER, LS_OP_REDUCE_SCATTER, LS_OP_ALL_REDUCE, LS_OP_COMPUTE, LS_OP_COMPUTE };
        common[i] = ls_op_make(kinds[pick(&r, 5)]);
        common[i].comm = (uint16_t)comm[pick(&r, 3)];
        common[i].stream = (uint8_t)(common[i].kind == LS_OP_COMPUTE ? 0 : 1 + pick(&r, 2));
        common[i].count = 1 + pick(&r, 2000000);
        common[i].dtype = common[i].kind == LS_OP_COMPUTE ? LS_DTYPE_NONE : LS_DTYPE_BF16;
        common[i].flops = (uint64_t)1 << (25 + pick(&r, 12));
    }
    for (int kind = 0; kind < 3; kind++) {
        ls_op_vec op = { 0 };
        for (int i = 0; i < STEPS; i++) {
            struct ls_op x = common[i];
            if (x.kind == LS_OP_COMPUTE)
                x.flops >>= kind;
            if (seed % 4 == 0 && kind == 1 && i == STEPS / 2)
                continue; /* an op that one kind of rank lacks: most such jobs get stuck */
            ls_push(&op, x);
            if (x.kind != LS_OP_COMPUTE && pick(&r, 3) == 0) {
                struct ls_op e = ls_op_make(LS_OP_RECORD);
                e.stream = x.stream, e.event = (uint32_t)i;
                ls_push(&op, e);
                e.kind = pick(&r, 4) ? LS_OP_WAIT : LS_OP_HOST_WAIT;
                e.stream = 0;
                ls_push(&op, e);
            }
        }
        b->segment[kind] = (struct ls_segment){ ls_arena_copy(&b->arena, op.at, op.count * sizeof *op.at), op.count, 0 };
        b->list[kind] = &b->segment[kind];
        ls_vec_release(&op);
    }
    b->slowness = LS_NEW(&b->arena, uint32_t, ranks);
    b->job = (struct ls_job){ &b->t, ranks, LS_NEW(&b->arena, struct ls_rank_program, ranks), groups };
    uint64_t pattern = pick(&r, 5);
    for (size_t k = 0; k < ranks; k++) {
        size_t few = k < 3, kind = pattern == 0 ? 0 : pattern == 1 ? k % 2 : pattern == 2 ? k / 8 % 3 : pattern == 3 ? (size_t)pick(&r, 2) : few;
        b->job.rank[k] = (struct ls_rank_program){ &b->list[kind], 1 };
        b->slowness[k] = (uint32_t)(LS_SPEED_ONE + (pattern == 2 ? 1000 * (k % 2) : 0));
    }
}

Test(sim, folded_is_bit_identical)
{
    size_t folded = 0, stuck = 0, whole = 0;
    for (uint64_t seed = 1; seed <= 120; seed++) {
        size_t ranks = seed % 3 ? 32 : 64;
        struct big b;
        random_big(&b, seed, ranks);
        struct ls_platform p = load(&b.arena, "h100x8", ranks / 8);
        if (seed % 2)
            p.nics = 4;
        struct ls_cost cost = { .slowness = b.slowness };
        struct ls_sim_result out[2];
        for (int fold = 0; fold < 2; fold++) {
            struct ls_sim_options o = { .run.level = LS_L2, .fold = fold };
            struct ls_error err = { 0 };
            cr_assert_eq(ls_sim_run(&b.job, &p, &cost, &o, &b.arena, &out[fold], &err), LS_OK, "%s", err.text);
        }
        cr_assert(out[0].end_ps == out[1].end_ps && out[0].complete == out[1].complete, "seed %" PRIu64 ": %" PRIu64 ", folded %" PRIu64, seed,
                  out[0].end_ps, out[1].end_ps);
        cr_assert_eq(memcmp(out[0].rank_end_ps, out[1].rank_end_ps, ranks * sizeof *out[0].rank_end_ps), 0, "seed %" PRIu64, seed);
        const struct ls_outcome *x = &out[0].outcome, *y = &out[1].outcome;
        cr_assert(x->verdict == y->verdict && x->comm == y->comm && x->group == y->group && x->position == y->position &&
                      x->completed == y->completed && x->issued == y->issued && x->collectives == y->collectives &&
                      x->pending_count == y->pending_count &&
                      (!x->pending_count || memcmp(x->pending, y->pending, x->pending_count * sizeof *x->pending) == 0), "seed %" PRIu64, seed);
        folded += out[1].classes < ranks;
        stuck += !out[0].complete;
        whole += out[1].classes == 1;
        ls_tables_release(&b.t);
        ls_arena_release(&b.arena);
    }
    printf("folded: 120 jobs, %zu folded (%zu to one rank), %zu stuck\n", folded, whole, stuck);
    cr_assert(folded > 60 && stuck > 5 && whole > 5);
}

Test(sim, refuses_more_ranks_than_gpus)
{
    struct job_builder b;
    struct ls_error err = { 0 };
    struct ls_sim_result out;
    build_open(&b, 9);
    struct ls_platform p = load(&b.arena, "h100x8", 1);
    struct ls_job job = build_job(&b);
    cr_assert_eq(ls_sim_run(&job, &p, &(struct ls_cost){ 0 }, &(struct ls_sim_options){ .run.level = LS_L2 }, &b.arena, &out, &err), LS_EINPUT);
    cr_assert(strstr(err.text, "9 ranks"), "%s", err.text);
    build_close(&b);
}
