/* lockstep simulate: a step in simulated time. */
#include "cli/cli.h"
#include "cli/files.h"
#include "cli/simulated.h"
#include "sim/measured.h"

#include <string.h>

enum { ROWS_MAX = (LS_SIM_POLICIES + 1) * LS_DRAW_COUNT };

struct options {
    struct ls_simulate_options sim;
    struct ls_nccl_tests measured;
    struct ls_profile profile;
    const char *trace;
    bool no_check;
    unsigned policy[LS_SIM_POLICIES + 1]; size_t policies;   /* LS_SIM_AS_WRITTEN, or index */
    enum ls_draw draw[LS_DRAW_COUNT]; size_t draws;
};

static enum ls_code read_options(const struct ls_cli *cli, struct options *o, struct ls_arena *arena, struct ls_error *err)
{
    static const char *const draws[] = { "contract", "uniform", "mixed" };
    uint64_t seed = 1, replicas = 0, steps = 1, jitter = 0, spread = 0, watchdog = 0;
    unsigned draw[LS_DRAW_COUNT];
    *o = (struct options){ .sim = { .variant = LS_AS_WRITTEN, .force = ls_cli_flag(cli, "force"), .fold = !ls_cli_flag(cli, "no-fold"),
                                    .platform = ls_cli_value(cli, "platform") },
                           .trace = ls_cli_value(cli, "trace"), .no_check = ls_cli_flag(cli, "no-check") };
    enum ls_code rc = ls_cli_uint(cli, "seed", 0, UINT64_MAX, &seed, err);
    if (rc == LS_OK)
        rc = ls_cli_uint(cli, "replicas", 1, 1 << 20, &replicas, err);
    if (rc == LS_OK)
        rc = ls_cli_uint(cli, "steps", 1, 64, &steps, err);
    if (rc == LS_OK)
        rc = ls_cli_uint(cli, "jitter", 0, 50, &jitter, err);
    if (rc == LS_OK)
        rc = ls_cli_uint(cli, "spread", 0, 100, &spread, err);
    if (rc == LS_OK)
        rc = ls_cli_uint(cli, "watchdog", 1, 1000000, &watchdog, err);
    if (rc == LS_OK)
        rc = ls_cli_list(cli, "policies", ls_sim_policy, LS_SIM_POLICIES, o->policy, &o->policies, err);
    if (rc == LS_OK)
        rc = ls_cli_list(cli, "batches", draws, LS_DRAW_COUNT, draw, &o->draws, err);
    if (rc != LS_OK)
        return rc;
    for (size_t i = 0; i < o->draws; i++)
        o->draw[i] = (enum ls_draw)draw[i];
    if (!o->policies)
        o->policy[o->policies++] = LS_SIM_AS_WRITTEN;
    if (!o->draws)
        o->draw[o->draws++] = LS_DRAW_CONTRACT;
    o->sim.seed = seed;
    o->sim.replicas = (size_t)replicas;
    o->sim.steps = steps;
    o->sim.jitter = (uint32_t)jitter * (LS_SPEED_ONE / 100);
    o->sim.spread = (uint32_t)spread * (LS_SPEED_ONE / 100);
    o->sim.trace = o->trace != NULL;
    o->sim.watchdog_s = (double)watchdog;
    const char *network = ls_cli_value(cli, "network"), *collectives = ls_cli_value(cli, "collectives"), *profile = ls_cli_value(cli, "profile");
    if (network && !(o->sim.network = ls_network_find(network))) {
        if (strcmp(network, "simgrid") != 0)
            return ls_fail(err, LS_EUSAGE, LS_NOWHERE, "'--network' is '%.40s'; there are 'maxmin' and 'simgrid'", network);
        ls_fail(err, LS_EBACKEND, LS_NOWHERE, "this build leaves out SimGrid, which was not there, or switched off, when it was configured");
        ls_hint(err, "Debian: libsimgrid-dev");
        return LS_EBACKEND;
    }
    if (profile) {
        o->sim.profile = &o->profile;
        rc = ls_profile_load(profile, arena, &o->profile, err);
        if (rc != LS_OK)
            return rc;
    }
    if (collectives) {
        o->sim.measured = &o->measured;
        return ls_nccl_tests_load(collectives, NULL, arena, &o->measured, err);
    }
    return LS_OK;
}

static enum ls_code run_row(const struct ls_scenario *s, const struct options *o, struct ls_simulated *r, struct ls_error *err)
{
    struct ls_simulate_options so = o->sim;
    ls_arena_init(&r->arena, 0);
    if (r->policy < LS_SIM_POLICIES)
        so.variant.frozen_sharding = (int)r->policy;
    so.draw = r->draw;
    enum ls_code rc = LS_OK;
    if (!o->no_check) {
        struct ls_assess_options ao = { .variant = so.variant, .force = so.force };
        ao.check.gradients = ao.check.races = true;
        if (r->draw != LS_DRAW_CONTRACT && s->kind != LS_PLAN_RAW)
            ao.variant.execution = r->draw == LS_DRAW_UNIFORM ? LS_EXEC_RANK_UNIFORM : LS_EXEC_ANY;
        rc = ls_assess(s, &ao, &r->arena, &r->assessment, err);
        if (rc != LS_OK)
            return rc;
        r->assessed = true;
        so.variant.execution = ao.variant.execution;
    }
    bool raw_branches = s->kind == LS_PLAN_RAW && r->assessed && r->assessment.check.witness;
    if (!raw_branches) {
        rc = ls_simulate(s, &so, &r->arena, &r->sim, err);
        r->ran = rc == LS_OK;
    }
    if (rc != LS_OK || r->sim.refusal.rule)
        return rc;
    /* The draw may miss what check found. */
    if (r->assessed && r->assessment.check.witness && (!r->ran || r->sim.run.complete)) {
        struct ls_simulation failing;
        rc = ls_simulate_witness(s, &r->assessment, &so, &r->arena, &failing, err);
        if (rc != LS_OK)
            return rc;
        if (!failing.run.complete || !r->ran) {
            if (r->ran)
                ls_simulation_release(&r->sim);
            r->sim = failing;
            r->ran = r->witness = true;
        }
    }
    return LS_OK;
}

static void release_row(struct ls_simulated *r)
{
    if (r->ran)
        ls_simulation_release(&r->sim);
    if (r->assessed)
        ls_assessment_release(&r->assessment);
    ls_arena_release(&r->arena);
}

static enum ls_code exit_code(const struct ls_scenario *s, const struct options *o, const struct ls_simulated *rows, size_t count)
{
    enum ls_code worst = LS_OK;
    for (size_t i = 0; i < count; i++) {
        enum ls_verdict v = ls_simulated_verdict(&rows[i]);
        bool as_written = rows[i].policy == LS_SIM_AS_WRITTEN && rows[i].draw == LS_DRAW_CONTRACT && s->expect.present && !o->no_check;
        bool fine = as_written ? v == s->expect.verdict : v == LS_SAFE || v == LS_UNDECIDED;
        if (!fine)
            worst = LS_EVIOLATED;
        else if (v == LS_UNDECIDED && worst == LS_OK && !as_written)
            worst = LS_EUNDECIDED;
    }
    return worst;
}

static enum ls_code run_all(const struct ls_cli *cli, const struct ls_scenario *s, const struct options *o, struct ls_simulated *rows, size_t *count,
                            struct ls_error *err)
{
    struct ls_progress progress;
    enum ls_code rc = LS_OK;
    ls_progress_open(cli, &progress);
    for (size_t d = 0; d < o->draws && rc == LS_OK; d++)
        for (size_t p = 0; p < o->policies && rc == LS_OK; p++) {
            struct ls_simulated *r = &rows[(*count)++];
            *r = (struct ls_simulated){ .policy = o->policy[p], .draw = o->draw[d] };
            ls_progress_show(&progress, "%s %s", ls_simulated_policy(r), ls_draw_name(r->draw));
            rc = run_row(s, o, r, err);
        }
    ls_progress_close(&progress);
    return rc;
}

static int run(const struct ls_cli *cli, int argc, char **argv)
{
    struct ls_error err = { 0 };
    struct options o;
    if (argc != 1)
        return ls_usage(cli, "simulate takes one FILE");
    struct ls_arena arena;
    ls_arena_init(&arena, 0);
    struct ls_names *names = ls_names_open();
    struct ls_scenario s;
    struct ls_simulated rows[ROWS_MAX];
    size_t count = 0;
    enum ls_code rc = read_options(cli, &o, &arena, &err);
    if (rc == LS_OK && o.trace && o.policies * o.draws > 1)
        rc = ls_fail(&err, LS_EUSAGE, LS_NOWHERE, "'--trace' goes with one policy and one kind of batches");
    if (rc == LS_OK && o.trace)
        rc = ls_write_check(o.trace, &err);
    if (rc == LS_OK)
        rc = ls_scenario_load(argv[0], &arena, names, &s, &err);
    if (rc == LS_OK)
        rc = run_all(cli, &s, &o, rows, &count, &err);
    if (rc == LS_OK && o.trace && !rows[0].sim.refusal.rule) {
        struct ls_str text = { 0 };
        ls_trace_write(&s, &rows[0].sim, &text);
        rc = ls_write_file(o.trace, ls_str_text(&text), text.length, &err);
        ls_str_release(&text);
    }
    if (rc == LS_OK && cli->json) {
        struct ls_json j;
        struct ls_str text = { 0 };
        ls_cli_json_open(cli, &j, &text);
        ls_json_add_text(&j, "name", s.name);
        ls_json_add_text(&j, "file", s.path);
        ls_json_add_uint(&j, "seed", o.sim.seed);
        ls_json_key(&j, "runs");
        ls_json_array(&j);
        for (size_t i = 0; i < count; i++)
            ls_simulated_json(&j, &rows[i]);
        ls_json_end_array(&j);
        ls_cli_json_close(&j);
    } else if (rc == LS_OK && count == 1) {
        ls_simulated_text(cli, &s, &rows[0]);
    } else if (rc == LS_OK) {
        ls_simulated_table(&s, rows, count);
    }
    if (rc == LS_OK)
        rc = exit_code(&s, &o, rows, count);
    else
        ls_report(cli, &err);
    for (size_t i = 0; i < count; i++)
        release_row(&rows[i]);
    ls_names_close(names);
    ls_arena_release(&arena);
    return (int)rc;
}

static const struct ls_option options[] = {
    { "platform", "FILE", "the hardware, found like one that a scenario names; default: the scenario's `platform:`" },
    { "replicas", "N", "data-parallel ranks; default: the scenario's, or one node where it says any" },
    { "policies", "LIST", "of root, per_layer, replicate: one table, with differences against root" },
    { "batches", "LIST", "of contract (as `execution:` says; the default), uniform (all ranks alike), mixed (each its own)" },
    { "seed", "N", "of what the ranks hold and of the jitter (default 1)" },
    { "steps", "N", "steps to simulate (default 1)" },
    { "spread", "PERCENT", "fastest and slowest of 8 GPUs differ by so much, normally distributed; default: the scenario's `spread:`" },
    { "jitter", "PERCENT", "each computation takes up to this much more or less, by chance; default: the scenario's `jitter:`" },
    { "collectives", "FILE", "measured collectives, as nccl-tests prints them; override the formula" },
    { "profile", "FILE", "measured times of modules (sim/profile.h); override the roofline" },
    { "network", "NAME", "maxmin (default) or simgrid" },
    { "trace", "FILE", "save the run as a Chrome trace, for ui.perfetto.dev" },
    { "watchdog", "SECONDS", "limit of PyTorch's watchdog; default: the scenario's `watchdog:`, else 600" },
    { "force", NULL, "simulate a plan that set-up refuses" },
    { "no-check", NULL, "do not look for a failing run first" },
    { "no-fold", NULL, "simulate every rank, also those that behave alike" },
    { 0 },
};
static const struct ls_example examples[] = {
    { "simulate scenarios/timing/qwen3-vl-4b.yaml", "one step: time, budget, memory" },
    { "simulate --policies root,per_layer,replicate --batches uniform,mixed scenarios/timing/qwen3-vl-4b.yaml", "what each safe policy costs" },
    { "simulate --trace step.json --replicas 64 scenarios/timing/qwen3-vl-4b.yaml", "a timeline of 64 ranks" },
    { "simulate --platform scenarios/platforms/h100x8.yaml scenarios/mixed-media/per-layer.yaml", "when it hangs, and what the watchdog reports" },
    { 0 },
};
const struct ls_command ls_command_simulate = {
    .name = "simulate", .run = run, .operands = "FILE", .summary = "how long does a step take, and how much memory?",
    .text = "Runs the operations of every rank by the clock: compute from the model's shapes and the platform, collectives by NCCL's "
            "cost model or measured times, memory op by op. A plan that check refutes runs until nothing moves any more. The budget "
            "sums to the step.\n\nWhat a step holds beyond the scenario's samples, the optimizer and whose activations are kept is said in its section "
            "`simulate:`. With expert parallelism routing is assumed to be balanced: every rank's experts get as many tokens as an average rank "
            "holds, times top_k; `routing_skew:` makes the busiest rank's share larger. Exit status: 0 safe and fits, or as the scenario's `expect:` says; 1 not; 3 bad input; 5 undecided.",
    .options = options, .examples = examples };
