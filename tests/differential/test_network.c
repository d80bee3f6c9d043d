/* Our max-min network against SimGrid: random flows over random links, and whole simulations. Ends agree within a nanosecond.
 *
 * SimGrid runs once per process, so it runs in a child. LS_SIMGRID_FACTORY picks its context factory; ctest runs both. */
#include "sim/simulate.h"

#include "base/hash.h"
#include "build.h"
#include "cli/files.h"

#include <criterion/criterion.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LINKS = 8, KINDS = 12, FLOWS = 24, NS = 1000 };

struct shot { uint64_t at_ps, bytes; uint32_t kind; };
struct story {
    struct ls_net_plan plan;
    uint64_t link_Bps[LINKS];
    struct ls_net_use use[KINDS][LINKS];
    struct ls_net_kind kind[KINDS];
    struct shot shot[FLOWS];
    size_t shots;
    uint64_t end_ps[FLOWS];
    struct ls_net_counts counts;
};

static const struct ls_network_ops *story_ops; /* what `play` plays on */

static const char *factory(void)
{
    const char *f = getenv("LS_SIMGRID_FACTORY");
    return f && *f ? f : NULL;
}

static void play(void *context, struct ls_network *net)
{
    struct story *s = context;
    size_t next = 0, ended = 0;
    uint64_t now = 0, tag;
    while (ended < s->shots) {
        uint64_t until = next < s->shots ? s->shot[next].at_ps : UINT64_MAX;
        if (story_ops->advance(net, until, &now, &tag)) {
            s->end_ps[tag] = now;
            ended++;
            continue;
        }
        if (next == s->shots) /* nothing left, yet flows did not end */
            break;
        for (; next < s->shots && s->shot[next].at_ps <= now; next++)
            story_ops->start(net, s->shot[next].kind, s->shot[next].bytes, next);
    }
    s->counts = story_ops->counts(net);
}

static void run_here(struct story *s, const struct ls_network_ops *ops)
{
    struct ls_error err = { 0 };
    story_ops = ops;
    s->plan.setup = ops == &ls_network_maxmin ? NULL : factory();
    cr_assert_eq(ops->run(&s->plan, play, s, &err), LS_OK, "%s", err.text);
}

/* Runs `body` in a child, and gets `bytes` bytes at `at` back from it. */
static void in_child(void (*body)(void *context), void *context, void *at, size_t bytes)
{
    int pipes[2], status;
    cr_assert_eq(pipe(pipes), 0);
    fflush(NULL);
    pid_t child = fork();
    cr_assert(child >= 0);
    if (child == 0) {
        body(context);
        size_t done = 0;
        while (done < bytes) {
            ssize_t n = write(pipes[1], (const char *)at + done, bytes - done);
            if (n <= 0)
                _exit(1);
            done += (size_t)n;
        }
        _exit(0);
    }
    close(pipes[1]);
    size_t done = 0;
    for (ssize_t n; done < bytes && (n = read(pipes[0], (char *)at + done, bytes - done)) > 0;)
        done += (size_t)n;
    close(pipes[0]);
    waitpid(child, &status, 0);
    cr_assert(done == bytes && WIFEXITED(status) && WEXITSTATUS(status) == 0, "the child with SimGrid ended with status %d", status);
}

static void simgrid_story(void *context)
{
    struct story *s = context;
    struct ls_error err = { 0 };
    story_ops = ls_network_find("simgrid");
    s->plan.setup = factory();
    if (story_ops->run(&s->plan, play, s, &err) != LS_OK) {
        fprintf(stderr, "%s\n", err.text);
        _exit(3);
    }
}

static void link_up(struct story *s, size_t links, size_t kinds)
{
    for (size_t k = 0; k < kinds; k++)
        s->kind[k].use = s->use[k];
    s->plan = (struct ls_net_plan){ s->link_Bps, links, s->kind, kinds, NULL };
}

static int by_time(const void *a, const void *b)
{
    const struct shot *x = a, *y = b;
    return x->at_ps < y->at_ps ? -1 : x->at_ps > y->at_ps;
}

static void random_story(struct story *s, uint64_t seed)
{
    uint64_t r = seed * 0x9e3779b97f4a7c15u;
    size_t links = 1 + ls_random_below(&r, LINKS), kinds = 1 + ls_random_below(&r, KINDS);
    memset(s, 0, sizeof *s);
    for (size_t l = 0; l < links; l++)
        s->link_Bps[l] = ls_random_below(&r, 3) ? 1000000000u * (1 + ls_random_below(&r, 50)) : 50000000000u;
    for (size_t k = 0; k < kinds; k++) {
        for (size_t l = 0; l < links; l++)
            if (ls_random_below(&r, 100) < 40)
                s->use[k][s->kind[k].uses++] = (struct ls_net_use){ (uint32_t)l, (uint32_t)(ls_random_below(&r, 3) ? 1 : 1 + ls_random_below(&r, 8)) };
        if (!s->kind[k].uses)
            s->use[k][s->kind[k].uses++] = (struct ls_net_use){ (uint32_t)ls_random_below(&r, links), 1 };
        if (!ls_random_below(&r, 3))
            s->kind[k].cap_Bps = 1000000000u * (1 + ls_random_below(&r, 40));
    }
    link_up(s, links, kinds);
    bool capped[KINDS] = { 0 };
    size_t want = 1 + ls_random_below(&r, FLOWS);
    for (size_t i = 0; i < want; i++) {
        struct shot x = { .kind = (uint32_t)ls_random_below(&r, kinds), .bytes = 1000 + ls_random_below(&r, 100000000),
                          .at_ps = ls_random_below(&r, 5) * 1000000000u };
        if (ls_random_below(&r, 2))
            x.at_ps = ls_random_below(&r, 4000000) * 1000u;
        if (ls_random_below(&r, 3) == 0)
            x.bytes = 10000000; /* equal sizes: classes, and ends that meet */
        if (s->kind[x.kind].cap_Bps && capped[x.kind])
            continue; /* SimGrid shares a cap */
        capped[x.kind] = true;
        s->shot[s->shots++] = x;
    }
    qsort(s->shot, s->shots, sizeof *s->shot, by_time);
}

static size_t stories(size_t quick)
{
    const char *campaign = getenv("LS_CAMPAIGN");
    return campaign && *campaign ? (size_t)strtoull(campaign, NULL, 10) : quick;
}

static uint64_t apart(uint64_t a, uint64_t b) { return a > b ? a - b : b - a; }

#ifdef LS_SIMGRID
Test(network, random_flows)
{
    size_t count = stories(100), flows = 0;
    uint64_t worst = 0;
    for (uint64_t seed = 1; seed <= count; seed++) {
        static struct story ours, theirs;
        random_story(&ours, seed);
        theirs = ours;
        link_up(&theirs, ours.plan.links, ours.plan.kinds);
        run_here(&ours, &ls_network_maxmin);
        in_child(simgrid_story, &theirs, theirs.end_ps, sizeof theirs.end_ps);
        for (size_t i = 0; i < ours.shots; i++) {
            uint64_t d = apart(ours.end_ps[i], theirs.end_ps[i]);
            cr_assert(d <= NS, "seed %" PRIu64 " flow %zu (kind %" PRIu32 ", %" PRIu64 " bytes, from %" PRIu64 " ps): ours %" PRIu64
                      " ps, SimGrid %" PRIu64 " ps", seed, i, ours.shot[i].kind, ours.shot[i].bytes, ours.shot[i].at_ps, ours.end_ps[i],
                      theirs.end_ps[i]);
            worst = d > worst ? d : worst;
        }
        flows += ours.shots;
    }
    printf("network: seeds 1 .. %zu, %zu flows, at most %" PRIu64 " ps apart (%s contexts)\n", count, flows, worst,
           factory() ? factory() : "default");
}

/* Whole jobs: rings that share NICs, staggered by work of different lengths, groups inside nodes beside groups across them. */
struct whole { uint64_t seed; uint64_t end_ps, rank_end_ps[BUILD_RANKS], uncoupled_ps; bool simgrid; const char *factory; };

static void simulate(void *context)
{
    struct whole *w = context;
    struct job_builder b;
    struct ls_error err = { 0 };
    struct ls_platform p;
    uint64_t r = w->seed * 0x9e3779b97f4a7c15u;
    uint32_t comm[4];
    build_open(&b, 8);
    comm[0] = build_world(&b, "world");
    comm[1] = build_comm(&b, "node", 2, (const uint32_t[]){ 0, 1, 2, 3, 4, 5, 6, 7 }, (const size_t[]){ 4, 4 });
    comm[2] = build_comm(&b, "rail", 4, (const uint32_t[]){ 0, 4, 1, 5, 2, 6, 3, 7 }, (const size_t[]){ 2, 2, 2, 2 });
    comm[3] = build_comm(&b, "half", 2, (const uint32_t[]){ 0, 1, 4, 5, 2, 3, 6, 7 }, (const size_t[]){ 4, 4 });
    for (int step = 0; step < 12; step++) {
        uint32_t c = comm[ls_random_below(&r, 4)];
        static const enum ls_op_kind kinds[] = { LS_OP_ALL_GATHER, LS_OP_REDUCE_SCATTER, LS_OP_ALL_REDUCE, LS_OP_ALL_TO_ALL };
        enum ls_op_kind kind = kinds[ls_random_below(&r, 4)];
        uint64_t count = 1000 + ls_random_below(&r, 20000000);
        for (uint32_t rank = 0; rank < 8; rank++) {
            struct ls_op *op = build_op(&b, rank, LS_OP_COMPUTE, 0);
            op->flops = (uint64_t)1 << (25 + ls_random_below(&r, 12));
            op->stream = (uint8_t)c;
            op = build_op(&b, rank, kind, c);
            op->stream = (uint8_t)c; /* one stream per communicator: they overlap */
            op->dtype = LS_DTYPE_BF16;
            op->count = count;
            op->reduce = kind == LS_OP_ALL_REDUCE || kind == LS_OP_REDUCE_SCATTER ? LS_REDUCE_SUM : LS_REDUCE_NONE;
        }
    }
    struct ls_job job = build_job(&b);
    if (ls_platform_load(LS_SOURCE_DIR "/scenarios/platforms/h100x8.yaml", 2, &b.arena, &p, &err) != LS_OK)
        _exit(4);
    p.gpus = 4;
    p.nics = w->seed % 2 ? 4 : 2;
    struct ls_cost cost = { 0 };
    struct ls_sim_options o = { .run.level = LS_L2, .uncoupled = w->seed % 3 == 0 };
    struct ls_sim_result out;
    if (w->simgrid) {
        o.network = ls_network_find("simgrid");
        o.network_setup = w->factory ? w->factory : factory();
    }
    if (ls_sim_run(&job, &p, &cost, &o, &b.arena, &out, &err) != LS_OK || !out.complete) {
        fprintf(stderr, "%s\n", err.text);
        _exit(5);
    }
    w->end_ps = out.end_ps;
    memcpy(w->rank_end_ps, out.rank_end_ps, job.ranks * sizeof *w->rank_end_ps);
    build_close(&b);
}

Test(network, whole_simulations)
{
    size_t count = stories(40);
    uint64_t worst = 0;
    for (uint64_t seed = 1; seed <= count; seed++) {
        struct whole ours = { .seed = seed }, theirs = { .seed = seed, .simgrid = true };
        simulate(&ours);
        in_child(simulate, &theirs, &theirs, sizeof theirs);
        for (size_t r = 0; r < 8; r++) {
            uint64_t d = apart(ours.rank_end_ps[r], theirs.rank_end_ps[r]);
            cr_assert(d <= NS, "seed %" PRIu64 " rank %zu: ours %" PRIu64 " ps, SimGrid %" PRIu64 " ps", seed, r, ours.rank_end_ps[r],
                      theirs.rank_end_ps[r]);
            worst = d > worst ? d : worst;
        }
    }
    printf("whole simulations: seeds 1 .. %zu, ranks end at most %" PRIu64 " ps apart\n", count, worst);
}

struct shipped { char path[512]; bool simgrid; uint64_t end_ps, complete, refused, ranks; };

static void simulate_file(void *context)
{
    struct shipped *w = context;
    enum { RANKS_MAX = 16 };
    struct ls_arena arena;
    struct ls_names *names = ls_names_open();
    struct ls_scenario s;
    struct ls_simulation x;
    struct ls_error err = { 0 };
    struct ls_simulate_options o = { .variant = LS_AS_WRITTEN, .fold = true, .seed = 1, .platform = LS_SOURCE_DIR "/scenarios/platforms/h100x8.yaml" };
    ls_arena_init(&arena, 0);
    if (ls_scenario_load(w->path, &arena, names, &s, &err) != LS_OK)
        _exit(4);
    if (s.kind != LS_PLAN_RAW && s.batch.execution != LS_EXEC_TABLE && s.mesh.replicate * s.mesh.shard > RANKS_MAX)
        o.replicas = RANKS_MAX;
    if (s.platform)
        o.platform = NULL;
    if (w->simgrid)
        o.network = ls_network_find("simgrid");
    if (ls_simulate(&s, &o, &arena, &x, &err) != LS_OK) {
        fprintf(stderr, "%s: %s\n", w->path, err.text);
        _exit(5);
    }
    w->refused = x.refusal.rule != NULL;
    if (!w->refused) {
        w->end_ps = x.run.end_ps;
        w->complete = x.run.complete;
        w->ranks = x.job.ranks;
    }
    ls_simulation_release(&x);
    ls_names_close(names);
    ls_arena_release(&arena);
}

/* Every scenario on both networks; LS_CAMPAIGN: all of them, else one in FEW. */
Test(network, shipped_scenarios)
{
    enum { FEW = 12 };
    struct ls_arena arena;
    ls_paths paths = { 0 };
    bool folder;
    struct ls_error err = { 0 };
    uint64_t worst = 0, stuck = 0;
    size_t seen = 0;
    ls_arena_init(&arena, 0);
    cr_assert_eq(ls_paths_add(&paths, &arena, LS_SOURCE_DIR "/scenarios", &folder, &err), LS_OK, "%s", err.text);
    for (size_t i = 0; i < paths.count; i++) {
        struct shipped ours = { .simgrid = false }, theirs;
        if (i % FEW && !getenv("LS_CAMPAIGN") && !strstr(paths.at[i], "timing/qwen") && !strstr(paths.at[i], "truth/llama"))
            continue;
        snprintf(ours.path, sizeof ours.path, "%s", paths.at[i]);
        theirs = ours;
        theirs.simgrid = true;
        in_child(simulate_file, &ours, &ours, sizeof ours);
        in_child(simulate_file, &theirs, &theirs, sizeof theirs);
        uint64_t d = apart(ours.end_ps, theirs.end_ps);
        cr_expect(ours.refused == theirs.refused && ours.complete == theirs.complete && d <= NS, "%s: ours %" PRIu64 " ps, SimGrid %" PRIu64 " ps", ours.path,
                  ours.end_ps, theirs.end_ps);
        worst = d > worst ? d : worst;
        stuck += !ours.refused && !ours.complete;
        seen += !ours.refused;
    }
    cr_expect(seen >= 20 && stuck > 0);
    printf("shipped scenarios: %zu on both networks, %" PRIu64 " of them stand still, ends at most %" PRIu64 " ps apart\n", seen, stuck, worst);
    ls_vec_release(&paths);
    ls_arena_release(&arena);
}

/* Clocks do not depend on how SimGrid switches contexts, nor on the run: bit for bit. */
Test(network, context_factories_agree_bit_for_bit)
{
    size_t count = stories(10);
    for (uint64_t seed = 1; seed <= count; seed++) {
        struct whole run[3];
#ifdef __SANITIZE_ADDRESS__ /* raw contexts and sanitizers do not go together */
        static const char *const factories[] = { "thread", "thread", "thread" };
#else
        static const char *const factories[] = { "thread", "raw", "raw" };
#endif
        for (size_t i = 0; i < 3; i++) {
            run[i] = (struct whole){ .seed = seed, .simgrid = true, .factory = factories[i] };
            in_child(simulate, &run[i], &run[i], sizeof run[i]);
            cr_assert(run[i].end_ps && run[i].end_ps == run[0].end_ps, "seed %" PRIu64 ": %s %" PRIu64 " ps, %s %" PRIu64 " ps", seed, factories[0],
                      run[0].end_ps, factories[i], run[i].end_ps);
            cr_assert_arr_eq(run[i].rank_end_ps, run[0].rank_end_ps, sizeof run[0].rank_end_ps, "seed %" PRIu64, seed);
        }
    }
}
#else
Test(network, no_simgrid) { cr_skip_test("this build has no SimGrid"); }
#endif

static void one_link(struct story *s, uint64_t Bps, size_t kinds)
{
    memset(s, 0, sizeof *s);
    s->link_Bps[0] = Bps;
    for (size_t k = 0; k < kinds; k++) {
        s->use[k][0] = (struct ls_net_use){ 0, 1 };
        s->kind[k].uses = 1;
    }
    link_up(s, 1, kinds);
}

/* A: 400 MB from 0, B: 200 MB from 0.25 ms, over 400 GB/s. By hand: B ends at 1.25 ms, A at 1.5 ms, to the picosecond. */
Test(network, staggered_starts_by_hand)
{
    struct story s;
    one_link(&s, 400000000000u, 2);
    s.shot[0] = (struct shot){ 0, 400000000, 0 };
    s.shot[1] = (struct shot){ 250000000, 200000000, 1 };
    s.shots = 2;
    run_here(&s, &ls_network_maxmin);
    cr_assert_eq(s.end_ps[0], 1500000000);
    cr_assert_eq(s.end_ps[1], 1250000000);
}

/* A ring over nodes 0 to 3; B and B2 load nodes 0 and 1, C shares nodes 2 and 3 with the ring, which B and B2 hold back. As one variable the
 * ring leaves C two thirds of its links: 1.5 ms; A 3, B and B2 5 ms with the sizes below. */
Test(network, coupled_ring)
{
    struct story s = { 0 };
    for (int l = 0; l < 4; l++)
        s.link_Bps[l] = 300000000000u;
    for (uint32_t l = 0; l < 4; l++)
        s.use[0][l] = (struct ls_net_use){ l, 1 };
    s.kind[0].uses = 4;
    for (uint32_t k = 1; k <= 2; k++) {
        s.use[k][0] = (struct ls_net_use){ 0, 1 };
        s.use[k][1] = (struct ls_net_use){ 1, 1 };
        s.kind[k].uses = 2;
    }
    s.use[3][0] = (struct ls_net_use){ 2, 1 };
    s.use[3][1] = (struct ls_net_use){ 3, 1 };
    s.kind[3].uses = 2;
    link_up(&s, 4, 4);
    s.shot[0] = (struct shot){ 0, 300000000, 0 };
    s.shot[1] = (struct shot){ 0, 600000000, 1 };
    s.shot[2] = (struct shot){ 0, 600000000, 2 };
    s.shot[3] = (struct shot){ 0, 300000000, 3 };
    s.shots = 4;
    run_here(&s, &ls_network_maxmin);
    cr_assert_eq(s.end_ps[0], 3000000000, "%" PRIu64, s.end_ps[0]);
    cr_assert_eq(s.end_ps[1], 5000000000, "%" PRIu64, s.end_ps[1]);
    cr_assert_eq(s.end_ps[2], 5000000000, "%" PRIu64, s.end_ps[2]);
    cr_assert_eq(s.end_ps[3], 1500000000, "%" PRIu64, s.end_ps[3]);
}

/* A flow whose rate others do not touch ends at the same picosecond, however many come and go. */
Test(network, others_leave_no_trace)
{
    for (uint64_t seed = 1; seed <= 200; seed++) {
        uint64_t r = seed, alone;
        struct story s = { 0 };
        s.link_Bps[0] = 7000000000u + ls_random_below(&r, 1000000);
        s.link_Bps[1] = 50000000000u;
        s.use[0][0] = (struct ls_net_use){ 0, 3 };
        s.use[0][1] = (struct ls_net_use){ 1, 1 };
        s.kind[0].uses = 2;
        s.use[1][0] = (struct ls_net_use){ 1, 1 };
        s.kind[1].uses = 1;
        link_up(&s, 2, 2);
        s.shot[0] = (struct shot){ 0, 100000001 + ls_random_below(&r, 1000), 0 };
        s.shots = 1;
        run_here(&s, &ls_network_maxmin);
        alone = s.end_ps[0];
        for (s.shots = 1; s.shots < FLOWS; s.shots++)
            s.shot[s.shots] = (struct shot){ s.shots * 1000000007u, 1 + ls_random_below(&r, 10000000), 1 };
        run_here(&s, &ls_network_maxmin);
        cr_assert_eq(s.end_ps[0], alone, "seed %" PRIu64 ": alone %" PRIu64 ", with others %" PRIu64, seed, alone, s.end_ps[0]);
    }
}

/* Equal flows of one instant are one variable, whatever their number. */
Test(network, equal_flows_are_one_class)
{
    struct story s;
    one_link(&s, 100000000000u, 1);
    for (s.shots = 0; s.shots < FLOWS; s.shots++)
        s.shot[s.shots] = (struct shot){ 0, 1000000, 0 };
    run_here(&s, &ls_network_maxmin);
    for (size_t i = 0; i < FLOWS; i++)
        cr_assert_eq(s.end_ps[i], FLOWS * (uint64_t)10000000);
    cr_assert_eq(s.counts.solves, 1);
}

/* Weighted max-min by its definition: on random systems no flow can be faster without slowing one that is not faster than it. */
Test(network, fair_by_definition)
{
    for (uint64_t seed = 1; seed <= 500; seed++) {
        static struct story s;
        random_story(&s, seed);
        /* All at once, and so large that the first end tells every rate: end of i = bytes / rate until the first ends. */
        for (size_t i = 0; i < s.shots; i++)
            s.shot[i].at_ps = 0;
        for (size_t i = 0; i < s.shots; i++) {
            /* The flow measured has a thousandth of the bytes of the others, so it ends first. */
            for (size_t j = 0; j < s.shots; j++)
                s.shot[j].bytes = j == i ? 1000000 : 100000000000u;
            run_here(&s, &ls_network_maxmin);
            uint64_t mine = s.end_ps[i];
            double rate = 1000000.0 / ((double)mine * 1e-12);
            bool full = s.kind[s.shot[i].kind].cap_Bps && rate >= (double)s.kind[s.shot[i].kind].cap_Bps * (1 - 1e-6);
            for (uint32_t u = 0; u < s.kind[s.shot[i].kind].uses && !full; u++) {
                /* No link may carry more than it can if all its flows were at least as fast as this one; a bottleneck carries that. */
                double load = 0;
                for (size_t j = 0; j < s.shots; j++)
                    for (uint32_t v = 0; v < s.kind[s.shot[j].kind].uses; v++)
                        if (s.use[s.shot[j].kind][v].link == s.use[s.shot[i].kind][u].link)
                            load += rate * s.use[s.shot[j].kind][v].weight;
                full = load >= (double)s.link_Bps[s.use[s.shot[i].kind][u].link] * (1 - 1e-6);
            }
            cr_assert(full, "seed %" PRIu64 ": flow %zu could be faster", seed, i);
        }
    }
}
