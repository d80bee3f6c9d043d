/* Every collective against its definition, written out in loops, in one process and in several (threads with mailboxes, processes.h).
 * Small integers: sums are exact, bits are compared. */
#include "engine/comm/remote.h"

#include "base/hash.h"
#include "processes.h"

#include <criterion/criterion.h>
#include <pthread.h>
#include <string.h>

enum { RANKS_MAX = 7, COUNT_MAX = 9 };

static size_t per_process; /* ranks; 0: all in one */
static const struct ls_slot_options *resident;

struct process { struct ls_sched *sched; struct ls_hub *hub; struct ls_world *world; enum ls_sched_end end; enum ls_code rc; };
struct world {
    size_t ranks, processes;
    struct process process[RANKS_MAX];
    struct post *post;
    struct ls_tables tables;
    struct ls_arena arena;
    struct ls_job job;
    struct ls_hub *hub;          /* of the first process */
    struct ls_device *device[RANKS_MAX];
    struct ls_comm *comm[RANKS_MAX];
    struct ls_groups groups;
    struct ls_storage *in[RANKS_MAX], *out[RANKS_MAX];
};

static bool look_outside(void *context, bool idle)
{
    return ls_hub_outside(((struct process *)context)->hub, idle);
}

static void world_open(struct world *w, size_t ranks, uint64_t seed, bool free_running, bool nccl_like)
{
    static const uint32_t member[RANKS_MAX] = { 0, 1, 2, 3, 4, 5, 6 };
    const uint32_t *list = member;
    *w = (struct world){ .ranks = ranks };
    ls_arena_init(&w->arena, 0);
    ls_tables_init(&w->tables, &w->arena);
    ls_tables_comm(&w->tables, "world");
    w->tables.comm.at[0].parent = LS_NO_ID;
    cr_assert_eq(ls_groups_from_lists(&w->groups, &w->arena, ranks, &list, &ranks, 1, LS_NOWHERE, NULL), LS_OK);
    w->job = (struct ls_job){ .tables = &w->tables, .ranks = ranks, .comm = &w->groups };
    size_t per = per_process ? per_process : ranks;
    w->processes = (ranks + per - 1) / per;
    w->post = w->processes > 1 ? post_open(w->processes, per, seed) : NULL;
    for (size_t i = 0; i < w->processes; i++) {
        struct process *p = &w->process[i];
        struct ls_sched_options o = { .free = free_running, .seed = seed };
        p->world = w->post ? post_world(w->post, i) : NULL;
        if (p->world)
            o.outside = look_outside, o.outside_context = p;
        p->sched = ls_sched_open(&o);
        p->hub = ls_hub_open(&w->job, p->sched, &(struct ls_hub_options){ .nccl_like = nccl_like, .world = p->world, .resident = resident });
    }
    w->hub = w->process[0].hub;
    for (uint32_t r = 0; r < ranks; r++) {
        struct process *p = &w->process[r / per];
        struct ls_device_options o = { .sched = p->sched, .streams = 2, .poison = true };
        struct ls_comm_group g = { .member = r, .rank = member, .members = ranks, .hub = p->hub };
        cr_assert_eq(ls_device_host.open(&w->device[r], &o, NULL), LS_OK);
        g.device = w->device[r];
        cr_assert_eq(ls_comm_threads.open(&w->comm[r], &g, NULL), LS_OK);
    }
}

static void world_close(struct world *w)
{
    for (size_t r = 0; r < w->ranks; r++) {
        ls_comm_threads.close(w->comm[r]);
        ls_device_host.close(w->device[r]);
    }
    for (size_t i = 0; i < w->processes; i++) {
        struct process *p = &w->process[i];
        ls_hub_close(p->hub);
        ls_sched_close(p->sched);
        if (p->world)
            p->world->ops->close(p->world);
    }
    if (w->post)
        post_close(w->post);
    ls_tables_release(&w->tables);
    ls_arena_release(&w->arena);
}

static int64_t value(uint64_t seed, size_t rank, size_t i)
{
    return (int64_t)(ls_hash_mix(ls_hash_mix(seed, rank), i) % 7) + 1;
}

static struct ls_stream *stream(struct world *w, size_t r) { return w->device[r]->ops->stream(w->device[r], 0); }

static void fill(struct world *w, size_t r, size_t in, size_t out, enum ls_dtype dtype, uint64_t seed)
{
    cr_assert_eq(ls_device_host.alloc(w->device[r], stream(w, r), in * 8, LS_CATEGORY_TEMPORARY, &w->in[r], NULL), LS_OK);
    cr_assert_eq(ls_device_host.alloc(w->device[r], stream(w, r), out * 8, LS_CATEGORY_TEMPORARY, &w->out[r], NULL), LS_OK);
    for (size_t i = 0; i < in; i++)
        ls_element_set(w->in[r]->at, dtype, i, (double)value(seed, r, i));
}

static void issue(struct world *w, size_t r, const struct ls_op *op, const uint64_t *counts, size_t in, size_t out, bool in_place)
{
    enum ls_dtype dtype = (enum ls_dtype)op->dtype;
    struct ls_comm_call c = { .comm = w->comm[r], .stream = stream(w, r), .op = op, .counts = counts, .tag = LS_NO_TAG };
    c.in = (struct ls_tensor){ w->in[r], 0, in, dtype };
    c.out = (struct ls_tensor){ in_place ? w->in[r] : w->out[r], 0, out, dtype };
    cr_assert_eq(ls_comm_threads.issue(&c, 1, NULL), LS_OK);
}

static void *run_process(void *argument)
{
    struct process *p = argument;
    p->rc = ls_sched_run(p->sched, &p->end, NULL);
    return NULL;
}

static void run(struct world *w, enum ls_sched_end want)
{
    pthread_t id[RANKS_MAX];
    for (size_t i = 0; i < w->processes; i++)
        cr_assert_eq(w->post ? pthread_create(&id[i], NULL, run_process, &w->process[i]) : (run_process(&w->process[i]), 0), 0);
    for (size_t i = 0; i < w->processes; i++) {
        if (w->post)
            pthread_join(id[i], NULL);
        cr_assert_eq(w->process[i].rc, LS_OK);
        cr_assert_eq(w->process[i].end, want);
    }
}

/* The reduction of element i over ranks 0 .. n-1, exact. */
static double reduced(uint64_t seed, size_t n, size_t i, enum ls_reduce how, struct ls_ratio f)
{
    int64_t v = value(seed, 0, i);
    for (size_t r = 1; r < n; r++) {
        int64_t x = value(seed, r, i);
        v = how == LS_REDUCE_MAX ? (x > v ? x : v) : how == LS_REDUCE_MIN ? (x < v ? x : v) : how == LS_REDUCE_PROD ? v * x : v + x;
    }
    double d = (double)v;
    if (how == LS_REDUCE_AVG)
        d = (double)((float)v / (float)n);
    return f.num ? (double)((float)d * (float)f.num / (float)f.den) : d;
}

static void expect(const struct ls_storage *s, enum ls_dtype dtype, size_t i, double want, const char *what, size_t ranks, size_t r)
{
    char exact[8] = { 0 }, found[8] = { 0 };
    size_t size = ls_dtype_bytes(dtype);
    ls_element_set(memset(exact, 0, sizeof exact), dtype, 0, want);
    memcpy(found, (const char *)s->at + i * size, size);
    cr_assert_arr_eq(found, exact, size, "%s, %zu ranks, rank %zu, element %zu, %s: %g is not %g", what, ranks, r, i, ls_dtype_name(dtype),
                     ls_element_get(s->at, dtype, i), want);
}

static const enum ls_dtype dtypes[] = { LS_DTYPE_F32, LS_DTYPE_F64, LS_DTYPE_I64, LS_DTYPE_I32 };

static void each_case(void (*one)(size_t ranks, size_t count, enum ls_dtype dtype, uint64_t seed, bool free_running))
{
    for (size_t ranks = 1; ranks <= RANKS_MAX; ranks++)
        for (size_t count = 1; count <= COUNT_MAX; count += 4)
            for (size_t d = 0; d < sizeof dtypes / sizeof dtypes[0]; d++)
                for (uint64_t seed = 0; seed < 3; seed++)
                    one(ranks, count, dtypes[d], seed, seed == 2 && ranks <= 3);
    for (size_t ranks = 2; ranks <= 5; ranks++)
        for (per_process = 1; per_process < ranks; per_process++)
            for (size_t count = 1; count <= COUNT_MAX; count += 8)
                one(ranks, count, dtypes[(ranks + count + per_process) % (sizeof dtypes / sizeof dtypes[0])], ranks + count, ranks == 3);
    per_process = 0;
}

static void gather_case(size_t ranks, size_t count, enum ls_dtype dtype, uint64_t seed, bool free_running)
{
    for (int kind = 0; kind < 2; kind++) {
        struct world w;
        struct ls_op op = ls_op_make(kind ? LS_OP_GATHER : LS_OP_ALL_GATHER);
        size_t root = seed % ranks;
        world_open(&w, ranks, seed, free_running, false);
        op.dtype = (uint8_t)dtype;
        op.count = count;
        op.peer = kind ? (int32_t)root : -1;
        for (size_t r = 0; r < ranks; r++) {
            fill(&w, r, count, count * ranks, dtype, seed);
            issue(&w, r, &op, NULL, count, count * ranks, false);
        }
        run(&w, LS_SCHED_QUIET);
        for (size_t r = 0; r < ranks; r++)
            for (size_t i = 0; (kind == 0 || r == root) && i < ranks * count; i++)
                expect(w.out[r], dtype, i, (double)value(seed, i / count, i % count), kind ? "gather" : "all_gather", ranks, r);
        world_close(&w);
    }
}
Test(engine_comm, gather) { each_case(gather_case); }

static void reduce_case(size_t ranks, size_t count, enum ls_dtype dtype, uint64_t seed, bool free_running)
{
    static const enum ls_reduce how[] = { LS_REDUCE_SUM, LS_REDUCE_AVG, LS_REDUCE_MAX, LS_REDUCE_MIN, LS_REDUCE_PREMUL, LS_REDUCE_PROD };
    static const enum ls_op_kind kind[] = { LS_OP_ALL_REDUCE, LS_OP_REDUCE, LS_OP_SCAN, LS_OP_REDUCE_SCATTER };
    bool integer = dtype == LS_DTYPE_I64 || dtype == LS_DTYPE_I32;
    for (size_t h = 0; h < (integer ? 4u : 6u); h++)
        for (size_t k = 0; k < 4; k++)
            for (int in_place = 0; in_place < 2; in_place++) {
                struct world w;
                struct ls_op op = ls_op_make(kind[k]);
                struct ls_ratio factor = how[h] == LS_REDUCE_PREMUL ? (struct ls_ratio){ 1, 4 } : (struct ls_ratio){ 0, 0 };
                size_t root = (seed + 1) % ranks, in = kind[k] == LS_OP_REDUCE_SCATTER ? count * ranks : count;
                if ((integer && how[h] == LS_REDUCE_AVG) || (dtype == LS_DTYPE_F64 && how[h] == LS_REDUCE_AVG))
                    continue;
                world_open(&w, ranks, seed, free_running, false);
                op.dtype = (uint8_t)dtype;
                op.count = count;
                op.reduce = (uint8_t)how[h];
                op.factor = factor;
                op.peer = kind[k] == LS_OP_REDUCE ? (int32_t)root : -1;
                bool same = in_place && kind[k] != LS_OP_REDUCE_SCATTER;
                for (size_t r = 0; r < ranks; r++) {
                    fill(&w, r, in, count, dtype, seed);
                    issue(&w, r, &op, NULL, in, count, same);
                }
                run(&w, LS_SCHED_QUIET);
                for (size_t r = 0; r < ranks; r++)
                    for (size_t i = 0; i < count; i++) {
                        const struct ls_storage *s = same ? w.in[r] : w.out[r];
                        size_t n = kind[k] == LS_OP_SCAN ? r + 1 : ranks, at = kind[k] == LS_OP_REDUCE_SCATTER ? r * count + i : i;
                        double want = reduced(seed, n, at, how[h], factor);
                        if (kind[k] == LS_OP_SCAN && how[h] == LS_REDUCE_AVG)
                            want = (double)((float)reduced(seed, n, at, LS_REDUCE_SUM, factor) / (float)n);
                        if (kind[k] != LS_OP_REDUCE || r == root)
                            expect(s, dtype, i, want, ls_op_kind_name(kind[k]), ranks, r);
                    }
                world_close(&w);
            }
}
Test(engine_comm, reduce) { each_case(reduce_case); }

static void spread_case(size_t ranks, size_t count, enum ls_dtype dtype, uint64_t seed, bool free_running)
{
    static const enum ls_op_kind kind[] = { LS_OP_BROADCAST, LS_OP_SCATTER, LS_OP_ALL_TO_ALL };
    for (size_t k = 0; k < 3; k++) {
        struct world w;
        struct ls_op op = ls_op_make(kind[k]);
        size_t root = seed % ranks, in = k ? count * ranks : count, out = k == 2 ? count * ranks : count;
        world_open(&w, ranks, seed, free_running, false);
        op.dtype = (uint8_t)dtype;
        op.count = count;
        op.peer = k == 2 ? -1 : (int32_t)root;
        for (size_t r = 0; r < ranks; r++) {
            fill(&w, r, in, out, dtype, seed);
            issue(&w, r, &op, NULL, in, out, false);
        }
        run(&w, LS_SCHED_QUIET);
        for (size_t r = 0; r < ranks; r++)
            for (size_t i = 0; i < out; i++)
                expect(w.out[r], dtype, i,
                       (double)(k == 0 ? value(seed, root, i) : k == 1 ? value(seed, root, r * count + i)
                                                                       : value(seed, i / count, r * count + i % count)),
                       ls_op_kind_name(kind[k]), ranks, r);
        world_close(&w);
    }
}
Test(engine_comm, spread) { each_case(spread_case); }

Test(engine_comm, all_to_all_with_counts_of_each_member)
{
    for (size_t ranks = 1; ranks <= 5; ranks++) {
        struct world w;
        struct ls_op op[RANKS_MAX];
        per_process = ranks % 3; /* 0: one process */
        uint64_t counts[RANKS_MAX][RANKS_MAX];
        world_open(&w, ranks, 3, false, false);
        for (size_t r = 0; r < ranks; r++)
            for (size_t k = 0; k < ranks; k++)
                counts[r][k] = (r * 3 + k * 5) % 4;
        for (size_t r = 0; r < ranks; r++) {
            op[r] = ls_op_make(LS_OP_ALL_TO_ALL);
            op[r].dtype = LS_DTYPE_F32;
            fill(&w, r, 64, 64, LS_DTYPE_F32, 9);
            issue(&w, r, &op[r], counts[r], 64, 64, false);
        }
        run(&w, LS_SCHED_QUIET);
        for (size_t r = 0; r < ranks; r++) {
            size_t at = 0;
            for (size_t from = 0; from < ranks; from++) {
                size_t first = 0;
                for (size_t k = 0; k < r; k++)
                    first += counts[from][k];
                for (size_t i = 0; i < counts[from][r]; i++)
                    expect(w.out[r], LS_DTYPE_F32, at++, (double)value(9, from, first + i), "all_to_all", ranks, r);
            }
        }
        world_close(&w);
    }
}

/* Several messages between one pair match in issue order; directions and pairs do not disturb each other. */
Test(engine_comm, messages_match_in_issue_order)
{
    for (uint64_t seed = 0; seed < 20; seed++) {
        struct world w;
        per_process = seed % 2;
        struct ls_op send = ls_op_make(LS_OP_SEND), recv = ls_op_make(LS_OP_RECV);
        struct ls_storage *got[2][3];
        world_open(&w, 2, seed, seed >= 15, false);
        send.dtype = recv.dtype = LS_DTYPE_F32;
        send.count = recv.count = 2;
        for (size_t r = 0; r < 2; r++) {
            send.peer = recv.peer = (int32_t)(1 - r);
            fill(&w, r, 8, 8, LS_DTYPE_F32, 5);
            for (size_t i = 0; i < 3; i++) {
                struct ls_op ops[2] = { send, recv };
                struct ls_comm_call c[2];
                cr_assert_eq(ls_device_host.alloc(w.device[r], stream(&w, r), 8, LS_CATEGORY_TEMPORARY, &got[r][i], NULL), LS_OK);
                for (size_t k = 0; k < 2; k++)
                    c[k] = (struct ls_comm_call){ .comm = w.comm[r], .stream = stream(&w, r), .op = &ops[k], .tag = LS_NO_TAG };
                c[0].in = (struct ls_tensor){ w.in[r], i * 8, 2, LS_DTYPE_F32 };
                c[1].out = (struct ls_tensor){ got[r][i], 0, 2, LS_DTYPE_F32 };
                cr_assert_eq(ls_comm_threads.issue(c, 2, NULL), LS_OK); /* fused: neither waits for the other */
            }
        }
        run(&w, LS_SCHED_QUIET);
        for (size_t r = 0; r < 2; r++)
            for (size_t i = 0; i < 3; i++)
                for (size_t k = 0; k < 2; k++)
                    expect(got[r][i], LS_DTYPE_F32, k, (double)value(5, 1 - r, 2 * i + k), "recv", 2, r);
        world_close(&w);
    }
}

/* Level L3: a send is over before anybody receives it, and carries what it was given then, although its memory is written again. */
Test(engine_comm, buffered_sends_carry_what_they_were_given)
{
    enum { RANKS = 3, MESSAGES = 4 };
    for (unsigned kernels = 0; kernels < 3; kernels++)
        for (uint64_t seed = 0; seed < 8; seed++) {
            struct world w;
            struct ls_slot_options slots = { .kernels = kernels };
            struct ls_op send = ls_op_make(LS_OP_SEND), recv = ls_op_make(LS_OP_RECV);
            struct ls_storage *got[RANKS][MESSAGES], *zero[RANKS];
            per_process = seed % 3; /* 0: one process */
            resident = &slots;
            world_open(&w, RANKS, seed, seed >= 6, false);
            send.dtype = recv.dtype = LS_DTYPE_F32;
            send.count = recv.count = 2;
            for (size_t r = 0; r < RANKS; r++) { /* to the next rank, from the one before; all sends come first */
                send.peer = (int32_t)((r + 1) % RANKS);
                recv.peer = (int32_t)((r + RANKS - 1) % RANKS);
                fill(&w, r, 2 * MESSAGES, 2 * MESSAGES, LS_DTYPE_F32, 7);
                cr_assert_eq(ls_device_host.alloc(w.device[r], stream(&w, r), 8, LS_CATEGORY_TEMPORARY, &zero[r], NULL), LS_OK);
                memset(zero[r]->at, 0, 8);
                for (size_t i = 0; i < MESSAGES; i++) {
                    struct ls_comm_call c = { .comm = w.comm[r], .stream = stream(&w, r), .op = &send, .tag = LS_NO_TAG };
                    struct ls_move erase = { .to = { w.in[r], i * 8, 2, LS_DTYPE_F32 }, .from = { zero[r], 0, 2, LS_DTYPE_F32 } };
                    c.in = erase.to;
                    cr_assert_eq(ls_comm_threads.issue(&c, 1, NULL), LS_OK);
                    ls_device_host.move(w.device[r], stream(&w, r), &erase, 1, LS_NO_TAG);
                }
                for (size_t i = 0; i < MESSAGES; i++) {
                    struct ls_comm_call c = { .comm = w.comm[r], .stream = stream(&w, r), .op = &recv, .tag = LS_NO_TAG };
                    cr_assert_eq(ls_device_host.alloc(w.device[r], stream(&w, r), 8, LS_CATEGORY_TEMPORARY, &got[r][i], NULL), LS_OK);
                    c.out = (struct ls_tensor){ got[r][i], 0, 2, LS_DTYPE_F32 };
                    cr_assert_eq(ls_comm_threads.issue(&c, 1, NULL), LS_OK);
                }
            }
            run(&w, LS_SCHED_QUIET);
            for (size_t r = 0; r < RANKS; r++)
                for (size_t k = 0; k < 2 * MESSAGES; k++) {
                    expect(got[r][k / 2], LS_DTYPE_F32, k % 2, (double)value(7, (r + RANKS - 1) % RANKS, k), "recv", RANKS, r);
                    expect(w.in[r], LS_DTYPE_F32, k, 0, "what was sent", RANKS, r);
                }
            world_close(&w);
        }
    per_process = 0;
    resident = NULL;
}

/* A buffered send that nobody receives is no hang and leaks nothing; one whose receive differs is told by the receiver's process. */
Test(engine_comm, buffered_sends_that_meet_nothing_or_the_wrong_receive)
{
    static const struct ls_slot_options slots = { 0 };
    for (int wrong = 0; wrong < 2; wrong++)
        for (per_process = 0; per_process < 2; per_process++) {
            struct world w;
            struct ls_op send = ls_op_make(LS_OP_SEND), recv = ls_op_make(LS_OP_RECV);
            size_t told[2] = { 0 };
            resident = &slots;
            world_open(&w, 2, 3, false, false);
            send.dtype = recv.dtype = LS_DTYPE_F32;
            send.count = 4, recv.count = 3;
            send.peer = 1, recv.peer = 0;
            for (size_t r = 0; r < 2; r++)
                fill(&w, r, 8, 8, LS_DTYPE_F32, 1);
            issue(&w, 0, &send, NULL, 4, 4, false);
            issue(&w, 0, &send, NULL, 4, 4, false);
            if (wrong)
                issue(&w, 1, &recv, NULL, 4, 4, false);
            run(&w, LS_SCHED_QUIET);
            for (size_t i = 0; i < w.processes; i++) {
                const struct ls_comm_clash *c = ls_hub_clashes(w.process[i].hub, &told[i]);
                cr_assert(!told[i] || (c->p2p && c->diff == LS_COMM_COUNT && c->member[0] == 0 && c->member[1] == 1));
            }
            cr_assert(told[w.processes - 1] == (size_t)wrong && told[0] + told[1] == (size_t)wrong);
            world_close(&w);
        }
    per_process = 0;
    resident = NULL;
}

/* The first process has the first member: it is the one that tells. */
static size_t clash(bool nccl_like, struct ls_op a, struct ls_op b, struct ls_comm_clash *out, size_t *completed)
{
    struct world w;
    size_t n;
    world_open(&w, 2, 0, false, nccl_like);
    fill(&w, 0, 64, 64, LS_DTYPE_F32, 1);
    fill(&w, 1, 64, 64, LS_DTYPE_F32, 1);
    issue(&w, 0, &a, NULL, 64, 64, false);
    issue(&w, 1, &b, NULL, 64, 64, false);
    run(&w, LS_SCHED_QUIET);
    *completed = ls_hub_collectives(w.hub);
    const struct ls_comm_clash *c = ls_hub_clashes(w.hub, &n);
    if (n)
        *out = c[0];
    world_close(&w);
    return n;
}

Test(engine_comm, differences_are_told_or_behave_as_nccl)
{
    struct { enum ls_comm_diff diff; bool unnoticed; } want[] = { { LS_COMM_KIND, false }, { LS_COMM_COUNT, false }, { LS_COMM_REDUCE, true },
                                                                   { LS_COMM_ROOT, false }, { LS_COMM_DTYPE, false }, { LS_COMM_DTYPE, true } };
    for (size_t n = 0; n < 2 * (sizeof want / sizeof want[0]); n++) {
        size_t i = n / 2;
        per_process = n % 2;
        struct ls_op a = ls_op_make(i == 3 ? LS_OP_BROADCAST : LS_OP_ALL_REDUCE), b;
        struct ls_comm_clash c;
        size_t completed;
        a.dtype = LS_DTYPE_F32;
        a.count = 4;
        a.peer = i == 3 ? 0 : -1;
        b = a;
        switch (i) {
        case 0: b.kind = LS_OP_ALL_GATHER; break;
        case 1: b.count = 5; break;
        case 2: b.reduce = LS_REDUCE_AVG; break;
        case 3: b.peer = 1; break;
        case 4: b.dtype = LS_DTYPE_BF16; break;
        default: b.dtype = LS_DTYPE_I32; break;
        }
        cr_assert_eq(clash(false, a, b, &c, &completed), 1);
        cr_assert_eq(c.diff, want[i].diff, "case %zu", i);
        cr_assert_eq(completed, 0, "a difference stops the group");
        cr_assert_eq(clash(true, a, b, &c, &completed), 1);
        cr_assert_eq(completed, want[i].unnoticed, "case %zu: NCCL %s", i, want[i].unnoticed ? "goes on" : "hangs");
    }
}

Test(engine_comm, narrow_types_are_summed_in_fp32_and_rounded_once)
{
    float x[3] = { 1.0f, 0.00390625f, 0.00390625f }; /* 1 + 2^-8 is halfway in bf16: summed there, both small ones would vanish */
    uint16_t v[3];
    struct ls_storage s[3], o = { 0 };
    struct ls_tensor in[3], out;
    uint16_t result = 0;
    for (size_t i = 0; i < 3; i++) {
        ls_element_set(&v[i], LS_DTYPE_BF16, 0, (double)x[i]);
        s[i] = (struct ls_storage){ .at = &v[i], .bytes = 2 };
        in[i] = (struct ls_tensor){ &s[i], 0, 1, LS_DTYPE_BF16 };
    }
    o.at = &result;
    out = (struct ls_tensor){ &o, 0, 1, LS_DTYPE_BF16 };
    ls_reduce_run(in, 3, 1, LS_REDUCE_SUM, (struct ls_ratio){ 0, 0 }, &out, 1);
    cr_assert_eq(ls_element_get(&result, LS_DTYPE_BF16, 0), 1.0078125);
}

/* Every finite half and bfloat16 survives the way through double; what lies between is rounded to nearest even. */
Test(engine_comm, elements_round_trip)
{
    for (unsigned b = 0; b < 0x10000; b++) {
        uint16_t half = (uint16_t)b, back = 0;
        if ((b & 0x7c00u) != 0x7c00u) {
            ls_element_set(&back, LS_DTYPE_F16, 0, ls_element_get(&half, LS_DTYPE_F16, 0));
            cr_assert_eq(back, half, "half %04x became %04x", b, back);
        }
        if ((b & 0x7f80u) != 0x7f80u) {
            ls_element_set(&back, LS_DTYPE_BF16, 0, ls_element_get(&half, LS_DTYPE_BF16, 0));
            cr_assert_eq(back, half, "bf16 %04x became %04x", b, back);
        }
    }
    uint16_t h;
    ls_element_set(&h, LS_DTYPE_F16, 0, 2049.0); /* between 2048 and 2050: even */
    cr_assert_eq(ls_element_get(&h, LS_DTYPE_F16, 0), 2048.0);
    ls_element_set(&h, LS_DTYPE_F16, 0, 2051.0);
    cr_assert_eq(ls_element_get(&h, LS_DTYPE_F16, 0), 2052.0);
    ls_element_set(&h, LS_DTYPE_F16, 0, 65519.0);
    cr_assert_eq(ls_element_get(&h, LS_DTYPE_F16, 0), 65504.0);
}
