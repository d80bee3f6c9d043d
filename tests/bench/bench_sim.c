/* Speed of the simulator. CSV on stdout. Times are CPU seconds of this process, on one core; an event is one pop of the queue.
 *
 *   queue     hold model: pop the earliest event, push one at a random later time; n pending, all times distinct
 *   core      the whole machine: n ranks that only compute, each op of its own length, so n distinct pending times at any moment. An
 *             event ends a computation: the queue's pop, the machine's rules for the rank (stream, host thread), the issue time and
 *             jittered length of the next op, the push. All of ls_sim_run counts, opening and reading the end state too
 *   step      FSDP2-like step: 80 language layers, 27 tower layers, half of the ranks without images, on 8 x H100 nodes; every
 *             rank simulated by itself, with a speed of its own
 *   scenario  scenarios/timing/step-of-4096.yaml as `lockstep simulate` runs it: reading the files, check with gradients and races,
 *             drawing and compiling the batches, pricing, memory by category, 4,096 distinct ranks by the clock */
#include "sim/simulate.h"

#include "base/hash.h"
#include "base/vec.h"
#include "sim/queue.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

static void expect(bool good, const char *what)
{
    if (good)
        return;
    fprintf(stderr, "bench_sim: %s\n", what);
    exit(1);
}

/* Of this process, which has one thread: other load on the machine does not count. */
static double cpu_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

enum { REPEATS = 5 };
static double row(const char *name, size_t n, uint64_t events, double *seconds, size_t repeats)
{
    struct rusage use;
    getrusage(RUSAGE_SELF, &use);
    qsort(seconds, repeats, sizeof *seconds, by_value);
    double median = seconds[repeats / 2];
    printf("%s,%zu,%" PRIu64 ",%.4f,%.4f,%.4f,%.2f,%.1f,%ld\n", name, n, events, median, seconds[0], seconds[repeats - 1],
           (double)events / median * 1e-6, median / (double)events * 1e9, use.ru_maxrss / 1024);
    fflush(stdout);
    return median / (double)events;
}

static double bench_queue(size_t n)
{
    enum { EVENTS = 2000000 };
    double seconds[REPEATS];
    for (size_t i = 0; i < REPEATS; i++) {
        static struct ls_queue q;
        uint64_t r = 1, last = 0;
        ls_queue_init(&q);
        for (size_t k = 0; k < n; k++)
            ls_queue_push(&q, ls_random(&r) >> 24, k);
        double from = cpu_s();
        for (size_t k = 0; k < EVENTS; k++) {
            struct ls_due e;
            expect(ls_queue_pop(&q, &e) && e.time >= last, "events out of order");
            last = e.time;
            ls_queue_push(&q, e.time + (ls_random(&r) >> 24), e.what);
        }
        seconds[i] = cpu_s() - from;
        ls_queue_release(&q);
    }
    return row("queue", n, EVENTS, seconds, REPEATS);
}

static struct ls_platform platform(struct ls_arena *a, size_t nodes)
{
    struct ls_platform p;
    struct ls_error err = { 0 };
    expect(ls_platform_load(LS_SOURCE_DIR "/scenarios/platforms/h100x8.yaml", nodes, a, &p, &err) == LS_OK, err.text);
    return p;
}

static struct ls_op work(enum ls_op_kind kind, uint8_t stream)
{
    struct ls_op op = ls_op_make(kind);
    op.stream = stream;
    return op;
}

static double bench_core(size_t n, size_t ops)
{
    double seconds[REPEATS];
    uint64_t events = 0;
    for (size_t i = 0; i < REPEATS; i++) {
        struct ls_arena a;
        struct ls_tables t;
        ls_arena_init(&a, 0);
        ls_tables_init(&t, &a);
        struct ls_platform p = platform(&a, 1);
        p.gpus = n;
        p.launch_ps = 0;
        ls_op_vec vec = { 0 };
        for (size_t k = 0; k < ops; k++) {
            struct ls_op op = work(LS_OP_COMPUTE, 0);
            op.flops = 1000000000000u; /* 1.3 ms */
            ls_push(&vec, op);
        }
        struct ls_segment segment = { vec.at, vec.count, 0 };
        const struct ls_segment *list = &segment;
        struct ls_job job = { &t, n, LS_NEW(&a, struct ls_rank_program, n), NULL };
        for (size_t r = 0; r < n; r++)
            job.rank[r] = (struct ls_rank_program){ &list, 1 };
        struct ls_cost cost = { .jitter = 300000, .seed = 1 };
        struct ls_sim_options o = { .run.level = LS_L2 };
        struct ls_sim_result out;
        struct ls_error err = { 0 };
        double from = cpu_s();
        expect(ls_sim_run(&job, &p, &cost, &o, &a, &out, &err) == LS_OK, err.text);
        seconds[i] = cpu_s() - from;
        expect(out.complete && out.events == n * ops, "not every op was an event");
        events = out.events;
        ls_vec_release(&vec);
        ls_tables_release(&t);
        ls_arena_release(&a);
    }
    return row("core", n, events, seconds, REPEATS);
}

struct step { ls_op_vec *op; struct ls_tables *t; uint32_t shard; };

static struct ls_op *add(struct step *s, struct ls_op op)
{
    ls_push(s->op, op);
    return &s->op->at[s->op->count - 1];
}

static void event(struct step *s, enum ls_op_kind kind, uint8_t stream, uint32_t id)
{
    add(s, work(kind, stream))->event = id;
}

enum { COMPUTE, GATHER_IN, GATHER, REDUCE };
static void gather(struct step *s, uint32_t unit, uint64_t shard)
{
    add(s, ls_op_make(LS_OP_ALLOC));
    add(s, work(LS_OP_COPY_IN, GATHER_IN))->bytes = 6 * shard; /* f32 to bf16 */
    event(s, LS_OP_RECORD, GATHER_IN, 4 * unit);
    event(s, LS_OP_WAIT, GATHER, 4 * unit);
    struct ls_op *op = add(s, work(LS_OP_ALL_GATHER, GATHER));
    op->comm = (uint16_t)s->shard;
    op->dtype = LS_DTYPE_BF16;
    op->count = shard;
    op->unit = unit;
    event(s, LS_OP_RECORD, GATHER, 4 * unit + 1);
}

static void compute(struct step *s, uint32_t unit, uint64_t flops, uint64_t shard, size_t ranks)
{
    event(s, LS_OP_WAIT, COMPUTE, 4 * unit + 1);
    add(s, work(LS_OP_COPY_OUT, COMPUTE))->bytes = 4 * shard * ranks;
    for (int k = 0; k < 3; k++)
        add(s, work(LS_OP_COMPUTE, COMPUTE))->flops = flops / 3;
    add(s, ls_op_make(LS_OP_FREE));
}

static void reduce(struct step *s, uint32_t unit, uint64_t shard, size_t ranks)
{
    add(s, ls_op_make(LS_OP_ALLOC));
    add(s, work(LS_OP_COPY_IN, COMPUTE))->bytes = 6 * shard * ranks;
    event(s, LS_OP_RECORD, COMPUTE, 4 * unit + 2);
    event(s, LS_OP_WAIT, REDUCE, 4 * unit + 2);
    struct ls_op *op = add(s, work(LS_OP_REDUCE_SCATTER, REDUCE));
    op->comm = (uint16_t)s->shard;
    op->dtype = LS_DTYPE_F32;
    op->count = shard;
    op->reduce = LS_REDUCE_AVG;
    op->unit = unit;
    add(s, work(LS_OP_COPY_OUT, REDUCE))->bytes = 8 * shard;
    event(s, LS_OP_RECORD, REDUCE, 4 * unit + 3);
    add(s, ls_op_make(LS_OP_FREE));
}

/* Forward, backward and optimizer. A rank without images runs the towers on a dummy input: the same collectives, little work. */
static void fill(struct step *s, size_t ranks, bool images, bool prefetch)
{
    enum { TOWERS = 27, LAYERS = 80 };
    uint64_t shard[TOWERS + LAYERS], flops[TOWERS + LAYERS];
    for (uint32_t u = 0; u < TOWERS + LAYERS; u++) {
        shard[u] = ((u < TOWERS ? 15000000u : 850000000u) + ranks - 1) / ranks;
        flops[u] = u < TOWERS ? (images ? 30000000000000u : 30000000000u) / 10 : 14000000000000u;
    }
    gather(s, 0, shard[0]);
    for (uint32_t u = 0; u < TOWERS + LAYERS; u++) {
        if (prefetch && u + 1 < TOWERS + LAYERS)
            gather(s, u + 1, shard[u + 1]);
        compute(s, u, flops[u], shard[u], ranks);
    }
    for (uint32_t u = TOWERS + LAYERS; u-- > 0;) {
        gather(s, u, shard[u]);
        compute(s, u, 2 * flops[u], shard[u], ranks);
        reduce(s, u, shard[u], ranks);
    }
    for (uint32_t u = 0; u < TOWERS + LAYERS; u++)
        event(s, LS_OP_WAIT, COMPUTE, 4 * u + 3);
    add(s, work(LS_OP_COMPUTE, COMPUTE))->bytes = 28 * shard[TOWERS] * LAYERS;
}

static void bench_step(size_t ranks, bool fold, bool alike)
{
    double seconds[REPEATS];
    size_t repeats = ranks > 1024 ? 3 : REPEATS, ops = 0;
    uint64_t events = 0, end = 0;
    for (size_t i = 0; i < repeats; i++) {
        struct ls_arena a;
        struct ls_tables t;
        ls_arena_init(&a, 0);
        ls_tables_init(&t, &a);
        struct ls_platform p = platform(&a, ranks / 8);
        ls_op_vec vec[2] = { 0 };
        struct ls_segment segment[2];
        const struct ls_segment *list[2] = { &segment[0], &segment[1] };
        uint32_t shard = ls_tables_comm(&t, "dp_shard"), *members = LS_NEW(&a, uint32_t, ranks), *slowness = LS_NEW(&a, uint32_t, ranks);
        for (int image = 0; image < 2; image++) {
            struct step s = { &vec[image], &t, shard };
            fill(&s, ranks, image, true);
            segment[image] = (struct ls_segment){ vec[image].at, vec[image].count, 0 };
        }
        struct ls_job job = { &t, ranks, LS_NEW(&a, struct ls_rank_program, ranks), LS_NEW(&a, struct ls_groups, 1) };
        uint64_t r = 7;
        ops = 0;
        for (size_t k = 0; k < ranks; k++) {
            members[k] = (uint32_t)k;
            slowness[k] = (uint32_t)(alike ? LS_SPEED_ONE : 970000 + ls_random_below(&r, 60000));
            job.rank[k] = (struct ls_rank_program){ &list[k % 2], 1 };
            ops += segment[k % 2].count;
        }
        const uint32_t *lists[] = { members };
        struct ls_error err = { 0 };
        expect(ls_groups_from_lists(&job.comm[0], &a, ranks, lists, &ranks, 1, LS_NOWHERE, &err) == LS_OK, err.text);
        struct ls_cost cost = { .slowness = slowness };
        struct ls_sim_options o = { .run.level = LS_L2, .fold = fold };
        struct ls_sim_result out;
        double from = cpu_s();
        expect(ls_sim_run(&job, &p, &cost, &o, &a, &out, &err) == LS_OK, err.text);
        seconds[i] = cpu_s() - from;
        expect(out.complete, "the step did not complete");
        expect(!end || end == out.end_ps, "two runs differ");
        end = out.end_ps;
        events = out.events;
        ls_vec_release(&vec[0]);
        ls_vec_release(&vec[1]);
        ls_tables_release(&t);
        ls_arena_release(&a);
    }
    char name[64];
    snprintf(name, sizeof name, "step%s%s %.1f ms %zu ops", alike ? " alike" : "", fold ? " folded" : "", (double)end * 1e-9, ops);
    row(name, ranks, events, seconds, repeats);
}

static void bench_scenario(void)
{
    enum { RUNS = 3, RANKS = 4096 };
    double seconds[RUNS];
    uint64_t events = 0, end = 0;
    for (size_t i = 0; i < RUNS; i++) {
        struct ls_arena a;
        struct ls_scenario s;
        struct ls_assessment v;
        struct ls_simulation x;
        struct ls_error err = { 0 };
        struct ls_assess_options ao = { .variant = LS_AS_WRITTEN, .check = { .gradients = true, .races = true } };
        struct ls_simulate_options o = { .variant = LS_AS_WRITTEN, .fold = true, .seed = 1 };
        double from = cpu_s();
        ls_arena_init(&a, 0);
        struct ls_names *names = ls_names_open();
        expect(ls_scenario_load(LS_SOURCE_DIR "/scenarios/timing/step-of-4096.yaml", &a, names, &s, &err) == LS_OK, err.text);
        expect(ls_assess(&s, &ao, &a, &v, &err) == LS_OK, err.text);
        expect(v.verdict == LS_SAFE, "check does not call the scenario safe");
        expect(ls_simulate(&s, &o, &a, &x, &err) == LS_OK, err.text);
        expect(x.run.complete && x.job.ranks == RANKS && x.run.classes == RANKS, "not every rank was simulated by itself");
        expect(!end || end == x.run.end_ps, "two runs differ");
        events = x.run.events;
        end = x.run.end_ps;
        ls_simulation_release(&x);
        ls_assessment_release(&v);
        ls_names_close(names);
        ls_arena_release(&a);
        seconds[i] = cpu_s() - from;
    }
    row("scenario", RANKS, events, seconds, RUNS);
}

int main(void)
{
    printf("case,n,events,median_cpu_s,least_s,most_s,M_events_per_s,ns_per_event,max_rss_MiB\n");
    double few = bench_queue(1024), many = bench_queue(65536);
    printf("# queue: cost per event from 1,024 to 65,536 pending: x %.2f (bound 2)\n", many / few);
    few = bench_core(1024, 2048), many = bench_core(65536, 64);
    printf("# core: cost per event from 1,024 to 65,536 pending: x %.2f (bound 2); %.2f M events/s at 65,536 (bound 2)\n", many / few, 1e-6 / many);
    bench_scenario();
    printf("# scenario: bounds 10 s and 2048 MiB\n");
    for (size_t ranks = 64; ranks <= 4096; ranks *= 8)
        bench_step(ranks, false, false);
    bench_step(4096, false, true);
    bench_step(4096, true, true);
    return 0;
}
