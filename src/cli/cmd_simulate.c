/* lockstep simulate: a step in simulated time. */
#include "cli/cli.h"
#include "cli/files.h"
#include "sim/measured.h"
#include "sim/simulate.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *const policy_name[] = { "root", "per_layer", "replicate" };
enum { POLICIES = 3, AS_WRITTEN = POLICIES, ROWS_MAX = 4 * LS_DRAW_COUNT };

struct options {
    struct ls_simulate_options sim;
    struct ls_nccl_tests measured;
    struct ls_profile profile;
    const char *trace;
    bool no_check;
    unsigned policy[POLICIES + 1]; size_t policies;   /* AS_WRITTEN, or index */
    enum ls_draw draw[LS_DRAW_COUNT]; size_t draws;
};

/* One run of one policy and draw. Its memory is an arena of its own. */
struct row {
    struct ls_arena arena;
    unsigned policy;
    enum ls_draw draw;
    struct ls_assessment assessment;
    bool assessed;
    struct ls_simulation sim;
    bool ran, witness; /* witness: sim is the failing run that check found, since the drawn one completes or cannot be drawn */
};

static double gib(uint64_t bytes) { return (double)bytes / (1024.0 * 1024 * 1024); }

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
        rc = ls_cli_list(cli, "policies", policy_name, POLICIES, o->policy, &o->policies, err);
    if (rc == LS_OK)
        rc = ls_cli_list(cli, "batches", draws, LS_DRAW_COUNT, draw, &o->draws, err);
    if (rc != LS_OK)
        return rc;
    for (size_t i = 0; i < o->draws; i++)
        o->draw[i] = (enum ls_draw)draw[i];
    if (!o->policies)
        o->policy[o->policies++] = AS_WRITTEN;
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
    if (network && !(o->sim.network = ls_network_find(network)))
        return ls_fail(err, LS_EUSAGE, LS_NOWHERE, "'--network' is '%.40s', which this build does not have (maxmin, simgrid)", network);
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

static enum ls_code run_row(const struct ls_scenario *s, const struct options *o, struct row *r, struct ls_error *err)
{
    struct ls_simulate_options so = o->sim;
    ls_arena_init(&r->arena, 0);
    if (r->policy < POLICIES)
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

static void release_row(struct row *r)
{
    if (r->ran)
        ls_simulation_release(&r->sim);
    if (r->assessed)
        ls_assessment_release(&r->assessment);
    ls_arena_release(&r->arena);
}

/* The verdict: what check says if it does, with what time and memory add. */
static enum ls_verdict verdict_of(const struct row *r)
{
    if (r->sim.refusal.rule)
        return LS_SETUP_ERROR;
    if (r->assessed && r->assessment.verdict != LS_SAFE && r->assessment.verdict != LS_UNDECIDED)
        return r->assessment.verdict;
    if (!r->sim.run.complete)
        return r->sim.run.outcome.verdict;
    return r->sim.oom ? LS_OOM : r->assessed ? r->assessment.verdict : LS_SAFE;
}

static const char *policy_of(const struct row *r) { return r->policy < POLICIES ? policy_name[r->policy] : "as written"; }

static const struct ls_op *op_at(const struct ls_simulation *x, struct ls_at at) { return &x->job.rank[at.rank].segment[at.segment]->op[at.op]; }

static const char *blocked(enum ls_blocked why)
{
    switch (why) {
    case LS_BLOCKED_MEMBERS: return "lacks members";
    case LS_BLOCKED_STREAM: return "is behind another op of its stream";
    case LS_BLOCKED_EVENT: return "waits for an event";
    case LS_BLOCKED_FIFO: return "is behind another op of its communicator";
    case LS_BLOCKED_PEER: return "waits for its peer";
    case LS_BLOCKED_SLOT: return "waits for a kernel slot";
    case LS_BLOCKED_HOST: return "waits on the host";
    case LS_BLOCKED_NONE: break;
    }
    return "";
}

static const char *comm_name(const struct ls_simulation *x, uint32_t comm) { return ls_tables_name(x->job.tables, x->job.tables->comm.at[comm].name); }

static void print_watchdog(const struct ls_simulation *x, struct ls_str *out)
{
    struct ls_watchdog w;
    if (!ls_watchdog_first(x, &w)) {
        ls_str_printf(out, "does not fire: no collective of NCCL is pending for %.0f s", x->watchdog_s);
        return;
    }
    const struct ls_op *op = op_at(x, w.at);
    static const char *const type[LS_OP_COUNT] = { [LS_OP_ALL_GATHER] = "_ALLGATHER_BASE", [LS_OP_REDUCE_SCATTER] = "_REDUCE_SCATTER_BASE",
        [LS_OP_ALL_REDUCE] = "ALLREDUCE", [LS_OP_REDUCE] = "REDUCE", [LS_OP_BROADCAST] = "BROADCAST", [LS_OP_ALL_TO_ALL] = "ALLTOALL_BASE",
        [LS_OP_GATHER] = "GATHER", [LS_OP_SCATTER] = "SCATTER", [LS_OP_BARRIER] = "BARRIER" };
    const struct ls_groups *g = &x->job.comm[op->comm];
    uint32_t group = g->group[w.at.rank];
    uint64_t members = group == LS_NO_ID ? 1 : g->first[group + 1] - g->first[group];
    uint64_t in = op->kind == LS_OP_REDUCE_SCATTER ? op->count * members : op->count;
    uint64_t all = op->kind == LS_OP_ALL_GATHER ? op->count * members : op->count;
    ls_str_printf(out, "%.3f s after the start: [Rank %u] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=%" PRIu64
                  ", OpType=%s, NumelIn=%" PRIu64 ", NumelOut=%" PRIu64 ", Timeout(ms)=%.0f)", (double)w.fires_ps * 1e-12, w.at.rank,
                  w.sequence, type[op->kind] ? type[op->kind] : "UNKNOWN", in, all, x->watchdog_s * 1e3);
}

/* What becomes of a run that the machine stops (sim/fate.h), as a sentence. */
static void print_fate(const struct ls_simulation *x, struct ls_str *out)
{
    const struct ls_fate *f = &x->fate;
    double end_s = (double)f->end_ps * 1e-12, still_s = (double)x->run.end_ps * 1e-12;
    switch (f->kind) {
    case LS_FATE_NONE:
        return;
    case LS_FATE_SILENT:
        ls_str_printf(out, "silent: NCCL does not notice, and the step ends at %.6f ms", end_s * 1e3);
        break;
    case LS_FATE_STALL:
        ls_str_printf(out, "%s: rank %u gives up on '%s' at %.3f s and goes on; its later calls pair, and everything is done at %.3f s, %.3f s after the run stood still",
                      f->killed ? "a stall, which would recover" : "stalls and recovers", f->gave_up, comm_name(x, f->gave_up_comm),
                      (double)f->gave_up_ps * 1e-12, end_s, end_s - still_s);
        if (f->killed)
            ls_str_printf(out, "; but the watchdog comes first, at %.3f s", (double)f->killed_ps * 1e-12);
        break;
    case LS_FATE_DEADLOCK:
        ls_str_add(out, "deadlock: what the ranks wait for never comes");
        if (f->given_up)
            ls_str_printf(out, ", also after rank %u gave up on '%s' at %.3f s", f->gave_up, comm_name(x, f->gave_up_comm), (double)f->gave_up_ps * 1e-12);
        break;
    case LS_FATE_COUNT:
        return;
    }
    if (!f->silent.pairs)
        return;
    ls_str_printf(out, "; before that NCCL pairs %zu call%s that differ, first rank %u ", f->silent.pairs, f->silent.pairs == 1 ? "" : "s", f->silent.rank_a);
    ls_op_print(out, x->job.tables, f->silent.a);
    ls_str_printf(out, " with rank %u ", f->silent.rank_b);
    ls_op_print(out, x->job.tables, f->silent.b);
}

/* ---- text ---- */

enum { CLASSES_SHOWN = 8, PENDING_SHOWN = 8 };

static void print_memory(const struct ls_simulation *x)
{
    const struct ls_sim_class *k = &x->rank_class[x->worst];
    const struct ls_sim_memory *m = &k->memory;
    const struct ls_op *op = op_at(x, (struct ls_at){ k->first, m->peak_segment, m->peak_op });
    struct ls_str text = { 0 };
    ls_op_print(&text, x->job.tables, op);
    printf("  memory        %.2f GiB allocated at the peak, on rank %u (%s), whose host gets there at %.3f ms; at least %.2f GiB reserved; device %.1f GiB%s\n",
           gib(m->peak), k->first, k->samples, (double)k->peak_ps * 1e-9, gib(m->reserved), gib(x->platform.hbm_bytes),
           x->oom ? ": OUT OF MEMORY" : "");
    printf("                during %s\n", ls_str_text(&text));
    for (int c = 0; c < LS_MEMORY_COUNT; c++)
        if (m->most[c])
            printf("                %-26s %9.3f GiB at the peak, at most %9.3f\n", ls_memory_name((enum ls_memory_kind)c), gib(m->at_peak[c]),
                   gib(m->most[c]));
    ls_str_release(&text);
}

static void print_budget(const struct ls_simulation *x)
{
    printf("  budget        mean over ranks\n");
    for (int b = 0; b < LS_BUDGET_COUNT; b++)
        if (x->budget_s[b] > 0)
            printf("                %-30s %10.3f ms %6.2f %%\n", ls_budget_name((enum ls_budget)b), x->budget_s[b] * 1e3,
                   100 * x->budget_s[b] / x->step_s);
    if (x->classes < 2)
        return;
    printf("  rank classes  %zu\n                first  ranks    compute  exposed comm.   waiting   peak GiB  samples\n", x->classes);
    for (size_t c = 0; c < x->classes && c < CLASSES_SHOWN; c++) {
        const struct ls_sim_class *k = &x->rank_class[c];
        double exposed = k->budget_s[LS_BUDGET_ALL_GATHER] + k->budget_s[LS_BUDGET_REDUCE_SCATTER] + k->budget_s[LS_BUDGET_ALL_REDUCE] +
                         k->budget_s[LS_BUDGET_COMMUNICATION];
        printf("                %5u  %5u %7.2f ms     %7.2f ms %6.2f ms  %9.3f  %s\n", k->first, k->ranks, k->budget_s[LS_BUDGET_COMPUTE] * 1e3,
               exposed * 1e3, k->budget_s[LS_BUDGET_WAITING] * 1e3, gib(k->memory.peak), k->samples);
    }
    if (x->classes > CLASSES_SHOWN)
        printf("                and %zu more\n", x->classes - CLASSES_SHOWN);
}

static void print_stuck(const struct ls_simulation *x)
{
    struct ls_str text = { 0 };
    size_t ranks = 0;
    printf("  pending\n");
    for (size_t i = 0, end; i < x->run.outcome.pending_count; i = end, ranks++) { /* by rank; the collective says most */
        const struct ls_pending *p = &x->run.outcome.pending[i];
        for (end = i; end < x->run.outcome.pending_count && x->run.outcome.pending[end].at.rank == x->run.outcome.pending[i].at.rank; end++)
            if (x->run.outcome.pending[end].why == LS_BLOCKED_MEMBERS && p->why != LS_BLOCKED_MEMBERS)
                p = &x->run.outcome.pending[end];
        if (ranks >= PENDING_SHOWN)
            continue;
        ls_str_clear(&text);
        ls_op_print(&text, x->job.tables, op_at(x, p->at));
        printf("                rank %u since %.6f ms: %s, which %s\n", p->at.rank, (double)x->run.rank_end_ps[p->at.rank] * 1e-9,
               ls_str_text(&text), blocked(p->why));
    }
    if (ranks > PENDING_SHOWN)
        printf("                and %zu more ranks\n", ranks - PENDING_SHOWN);
    ls_str_clear(&text);
    print_fate(x, &text);
    printf("  then          %s\n", ls_str_text(&text));
    ls_str_clear(&text);
    if (x->fate.kind != LS_FATE_SILENT && (x->fate.kind != LS_FATE_STALL || x->fate.killed)) {
        print_watchdog(x, &text);
        printf("  watchdog      %s\n", ls_str_text(&text));
    }
    ls_str_release(&text);
}

static void print_check(const struct ls_cli *cli, const struct ls_scenario *s, const struct row *r)
{
    struct ls_str line = { 0 };
    if (!r->assessed)
        return;
    ls_assessment_line(s, &r->assessment, &line);
    printf("  check         %s%s%s\n", ls_style(cli->colour_out, r->assessment.verdict == LS_SAFE ? LS_GREEN : LS_RED), ls_str_text(&line),
           ls_style(cli->colour_out, LS_PLAIN));
    ls_str_release(&line);
}

/* Slower ranks come in the end, but not in time. */
static bool outlasts_watchdog(const struct ls_simulation *x)
{
    return x->longest.op && (double)(x->longest.end_ps - x->longest.ready_ps) * 1e-12 > x->watchdog_s;
}

static void print_longest(const struct ls_simulation *x)
{
    if (!outlasts_watchdog(x))
        return;
    struct ls_str text = { 0 };
    ls_op_print(&text, x->job.tables, x->longest.op);
    printf("  watchdog      fires although nothing is wrong: rank %u waits %.3f s for slower ranks in %s, and the limit is %.0f s\n", x->longest.at.rank,
           (double)(x->longest.start_ps - x->longest.ready_ps) * 1e-12, ls_str_text(&text), x->watchdog_s);
    ls_str_release(&text);
}

/* Then the clock's schedule is one of several, and only check tries the others. */
static bool one_of_many_orders(const struct ls_scenario *s) { return s->level == LS_L3 && s->kernels && s->start == LS_START_ANY; }

static void print_one(const struct ls_cli *cli, const struct ls_scenario *s, const struct row *r)
{
    const struct ls_simulation *x = &r->sim;
    if (x->refusal.rule) {
        printf("%s: refused at set-up: %s: %s\n", s->name, x->refusal.rule, x->refusal.text ? x->refusal.text : "");
        return;
    }
    printf("%s on %s: %zu ranks, %s%s%s\n", s->name, x->platform.name, x->job.ranks,
           r->witness ? "the smallest run that check found to fail" : s->kind == LS_PLAN_RAW ? "raw program" : ls_draw_name(r->draw),
           x->branches ? ", branches as drawn: " : "", x->branches ? x->branches : "");
    if (one_of_many_orders(s))
        printf("  level         L3 with %u kernel slot%s and free starts: this is one order of starts, as early as they fit; check looks for a bad one\n", s->kernels,
               s->kernels == 1 ? "" : "s");
    print_check(cli, s, r);
    if (!x->run.complete) {
        printf("  %s%s%s at %.6f ms: from then on nothing moves\n", ls_style(cli->colour_out, LS_RED), ls_verdict_name(x->run.outcome.verdict),
               ls_style(cli->colour_out, LS_PLAIN), (double)x->run.end_ps * 1e-9);
        print_stuck(x);
        return;
    }
    printf("  step          %.3f ms", x->step_s * 1e3);
    if (x->tokens > 0)
        printf(", %.0f tokens/s, %.1f per rank, MFU %.2f %%", x->tokens_s, x->tokens_s / (double)x->job.ranks, 100 * x->mfu);
    printf("\n");
    print_budget(x);
    print_longest(x);
    if (s->kind != LS_PLAN_RAW)
        print_memory(x);
}

static const struct row *row_of(const struct row *rows, size_t count, unsigned policy, enum ls_draw draw)
{
    for (size_t i = 0; i < count; i++)
        if (rows[i].policy == policy && rows[i].draw == draw && rows[i].ran && rows[i].sim.run.complete && !rows[i].witness)
            return &rows[i];
    return NULL;
}

static void print_table(const struct ls_scenario *s, const struct row *rows, size_t count)
{
    printf("%s\n%-11s %-9s %-13s %12s %11s %9s %8s %10s %10s %12s\n", s->name, "policy", "batches", "verdict", "step", "tokens/s", "vs. root",
           "MFU", "peak GiB", "vs. root", "exposed");
    for (size_t i = 0; i < count; i++) {
        const struct row *r = &rows[i], *root = row_of(rows, count, LS_FROZEN_ROOT, r->draw);
        const struct ls_simulation *x = &r->sim;
        printf("%-11s %-9s %-13s ", policy_of(r), ls_draw_name(r->draw), ls_verdict_name(verdict_of(r)));
        if (x->refusal.rule || !x->run.complete) {
            if (x->refusal.rule)
                printf("%s\n", x->refusal.rule);
            else
                printf("stands still at %.6f ms%s\n", (double)x->run.end_ps * 1e-9, r->witness ? " (smallest failing run)" : "");
            continue;
        }
        uint64_t peak = x->rank_class[x->worst].memory.peak;
        double exposed = x->budget_s[LS_BUDGET_ALL_GATHER] + x->budget_s[LS_BUDGET_REDUCE_SCATTER] + x->budget_s[LS_BUDGET_ALL_REDUCE] +
                         x->budget_s[LS_BUDGET_COMMUNICATION];
        printf("%9.3f ms %11.0f ", x->step_s * 1e3, x->tokens_s);
        if (root && root != r)
            printf("%+7.2f %% ", 100 * (x->tokens_s / root->sim.tokens_s - 1));
        else
            printf("%9s ", "");
        printf("%6.2f %% %10.3f ", 100 * x->mfu, gib(peak));
        if (root && root != r)
            printf("%+10.3f ", gib(peak) - gib(root->sim.rank_class[root->sim.worst].memory.peak));
        else
            printf("%10s ", "");
        printf("%9.3f ms\n", exposed * 1e3);
    }
}

/* ---- JSON ---- */

static void json_real(struct ls_json *j, const char *key, double value)
{
    ls_json_key(j, key);
    ls_json_real(j, value);
}

static void json_uint(struct ls_json *j, const char *key, uint64_t value)
{
    ls_json_key(j, key);
    ls_json_uint(j, value);
}

static void json_text(struct ls_json *j, const char *key, const char *value)
{
    ls_json_key(j, key);
    ls_json_text(j, value);
}

static void json_budget(struct ls_json *j, const double *budget_s)
{
    ls_json_key(j, "budget_ms");
    ls_json_object(j);
    for (int b = 0; b < LS_BUDGET_COUNT; b++)
        json_real(j, ls_budget_name((enum ls_budget)b), budget_s[b] * 1e3);
    ls_json_end_object(j);
}

static void json_memory(struct ls_json *j, const struct ls_sim_class *k)
{
    ls_json_key(j, "memory");
    ls_json_object(j);
    json_uint(j, "peak_bytes", k->memory.peak);
    json_uint(j, "reserved_bytes_at_least", k->memory.reserved);
    json_real(j, "peak_at_ms", (double)k->peak_ps * 1e-9);
    for (int all = 0; all < 2; all++) {
        ls_json_key(j, all ? "most_bytes" : "at_peak_bytes");
        ls_json_object(j);
        for (int c = 0; c < LS_MEMORY_COUNT; c++)
            json_uint(j, ls_memory_name((enum ls_memory_kind)c), all ? k->memory.most[c] : k->memory.at_peak[c]);
        ls_json_end_object(j);
    }
    ls_json_end_object(j);
}

static void json_fate(struct ls_json *j, const struct ls_simulation *x)
{
    const struct ls_fate *f = &x->fate;
    struct ls_str text = { 0 };
    bool ends = f->kind == LS_FATE_SILENT || f->kind == LS_FATE_STALL;
    print_fate(x, &text);
    ls_json_key(j, "fate");
    ls_json_object(j);
    json_text(j, "kind", ls_fate_name(f->kind));
    ls_json_key(j, "dies");
    ls_json_bool(j, !ends || f->killed);
    if (ends)
        json_real(j, "done_at_ms", (double)f->end_ps * 1e-9);
    if (f->killed)
        json_real(j, "killed_at_ms", (double)f->killed_ps * 1e-9);
    if (f->given_up) {
        json_uint(j, "gave_up_rank", f->gave_up);
        json_text(j, "gave_up_on", comm_name(x, f->gave_up_comm));
        json_real(j, "gave_up_at_ms", (double)f->gave_up_ps * 1e-9);
    }
    json_uint(j, "pairs_that_differ", f->silent.pairs);
    json_text(j, "text", ls_str_text(&text));
    ls_json_end_object(j);
    ls_str_release(&text);
}

static void json_stuck(struct ls_json *j, const struct ls_simulation *x)
{
    struct ls_str text = { 0 };
    ls_json_key(j, "pending");
    ls_json_array(j);
    for (size_t i = 0; i < x->run.outcome.pending_count; i++) {
        const struct ls_pending *p = &x->run.outcome.pending[i];
        ls_str_clear(&text);
        ls_op_print(&text, x->job.tables, op_at(x, p->at));
        ls_json_object(j);
        json_uint(j, "rank", p->at.rank);
        json_real(j, "since_ms", (double)x->run.rank_end_ps[p->at.rank] * 1e-9);
        json_text(j, "op", ls_str_text(&text));
        json_text(j, "why", blocked(p->why));
        ls_json_end_object(j);
    }
    ls_json_end_array(j);
    ls_str_clear(&text);
    json_fate(j, x);
    if (x->fate.killed)
        print_watchdog(x, &text);
    json_text(j, "watchdog", x->fate.killed ? ls_str_text(&text) : NULL);
    ls_str_release(&text);
}

static void json_row(struct ls_json *j, const struct row *r)
{
    const struct ls_simulation *x = &r->sim;
    ls_json_object(j);
    json_text(j, "policy", r->policy < POLICIES ? policy_name[r->policy] : NULL);
    json_text(j, "batches", ls_draw_name(r->draw));
    json_text(j, "verdict", ls_verdict_name(verdict_of(r)));
    json_text(j, "check", r->assessed ? ls_verdict_name(r->assessment.verdict) : NULL);
    json_text(j, "refused_by", x->refusal.rule);
    if (x->refusal.rule) {
        ls_json_end_object(j);
        return;
    }
    json_text(j, "platform", x->platform.name);
    json_uint(j, "ranks", x->job.ranks);
    ls_json_key(j, "complete");
    ls_json_bool(j, x->run.complete);
    ls_json_key(j, "smallest_failing_run");
    ls_json_bool(j, r->witness);
    json_uint(j, "end_ps", x->run.end_ps);
    json_uint(j, "events", x->run.events);
    if (!x->run.complete) {
        json_stuck(j, x);
        ls_json_end_object(j);
        return;
    }
    json_real(j, "step_ms", x->step_s * 1e3);
    json_real(j, "tokens", x->tokens);
    json_real(j, "tokens_per_s", x->tokens_s);
    json_real(j, "model_flops", x->model_flops);
    json_real(j, "mfu", x->mfu);
    ls_json_key(j, "outlasts_watchdog");
    ls_json_bool(j, outlasts_watchdog(x));
    json_budget(j, x->budget_s);
    ls_json_key(j, "oom");
    ls_json_bool(j, x->oom);
    ls_json_key(j, "rank_classes");
    ls_json_array(j);
    for (size_t c = 0; c < x->classes; c++) {
        const struct ls_sim_class *k = &x->rank_class[c];
        ls_json_object(j);
        json_uint(j, "first", k->first);
        json_uint(j, "ranks", k->ranks);
        json_text(j, "samples", k->samples);
        json_real(j, "tokens", k->tokens);
        json_budget(j, k->budget_s);
        json_memory(j, k);
        ls_json_end_object(j);
    }
    ls_json_end_array(j);
    ls_json_end_object(j);
}

static enum ls_code exit_code(const struct ls_scenario *s, const struct options *o, const struct row *rows, size_t count)
{
    enum ls_code worst = LS_OK;
    for (size_t i = 0; i < count; i++) {
        enum ls_verdict v = verdict_of(&rows[i]);
        bool as_written = rows[i].policy == AS_WRITTEN && rows[i].draw == LS_DRAW_CONTRACT && s->expect.present && !o->no_check;
        bool fine = as_written ? v == s->expect.verdict : v == LS_SAFE || v == LS_UNDECIDED;
        if (!fine)
            worst = LS_EVIOLATED;
        else if (v == LS_UNDECIDED && worst == LS_OK && !as_written)
            worst = LS_EUNDECIDED;
    }
    return worst;
}

static enum ls_code run_all(const struct ls_cli *cli, const struct ls_scenario *s, const struct options *o, struct row *rows, size_t *count,
                            struct ls_error *err)
{
    struct ls_progress progress;
    enum ls_code rc = LS_OK;
    ls_progress_open(cli, &progress);
    for (size_t d = 0; d < o->draws && rc == LS_OK; d++)
        for (size_t p = 0; p < o->policies && rc == LS_OK; p++) {
            struct row *r = &rows[(*count)++];
            *r = (struct row){ .policy = o->policy[p], .draw = o->draw[d] };
            ls_progress_show(&progress, "%s %s", policy_of(r), ls_draw_name(r->draw));
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
    struct row rows[ROWS_MAX];
    size_t count = 0;
    enum ls_code rc = read_options(cli, &o, &arena, &err);
    if (rc == LS_OK && o.trace && o.policies * o.draws > 1)
        rc = ls_fail(&err, LS_EUSAGE, LS_NOWHERE, "'--trace' goes with one policy and one kind of batches");
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
        json_text(&j, "name", s.name);
        json_text(&j, "file", s.path);
        json_uint(&j, "seed", o.sim.seed);
        ls_json_key(&j, "runs");
        ls_json_array(&j);
        for (size_t i = 0; i < count; i++)
            json_row(&j, &rows[i]);
        ls_json_end_array(&j);
        ls_cli_json_close(&j);
    } else if (rc == LS_OK && count == 1) {
        print_one(cli, &s, &rows[0]);
    } else if (rc == LS_OK) {
        print_table(&s, rows, count);
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
