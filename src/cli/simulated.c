#include "cli/simulated.h"

#include <inttypes.h>
#include <stdio.h>

const char *const ls_sim_policy[LS_SIM_POLICIES] = { "root", "per_layer", "replicate" };

static double gib(uint64_t bytes) { return (double)bytes / (1024.0 * 1024 * 1024); }

enum ls_verdict ls_simulated_verdict(const struct ls_simulated *r)
{
    if (r->sim.refusal.rule)
        return LS_SETUP_ERROR;
    if (r->assessed && r->assessment.verdict != LS_SAFE && r->assessment.verdict != LS_UNDECIDED)
        return r->assessment.verdict;
    if (!r->sim.run.complete)
        return r->sim.run.outcome.verdict;
    return r->sim.oom ? LS_OOM : r->assessed ? r->assessment.verdict : LS_SAFE;
}

const char *ls_simulated_policy(const struct ls_simulated *r) { return r->policy < LS_SIM_POLICIES ? ls_sim_policy[r->policy] : "as written"; }

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

static void print_check(const struct ls_cli *cli, const struct ls_scenario *s, const struct ls_simulated *r)
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

void ls_simulated_text(const struct ls_cli *cli, const struct ls_scenario *s, const struct ls_simulated *r)
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

static const struct ls_simulated *row_of(const struct ls_simulated *rows, size_t count, unsigned policy, enum ls_draw draw)
{
    for (size_t i = 0; i < count; i++)
        if (rows[i].policy == policy && rows[i].draw == draw && rows[i].ran && rows[i].sim.run.complete && !rows[i].witness)
            return &rows[i];
    return NULL;
}

void ls_simulated_table(const struct ls_scenario *s, const struct ls_simulated *rows, size_t count)
{
    printf("%s\n%-11s %-9s %-13s %12s %11s %9s %8s %10s %10s %12s\n", s->name, "policy", "batches", "verdict", "step", "tokens/s", "vs. root",
           "MFU", "peak GiB", "vs. root", "exposed");
    for (size_t i = 0; i < count; i++) {
        const struct ls_simulated *r = &rows[i], *root = row_of(rows, count, LS_FROZEN_ROOT, r->draw);
        const struct ls_simulation *x = &r->sim;
        printf("%-11s %-9s %-13s ", ls_simulated_policy(r), ls_draw_name(r->draw), ls_verdict_name(ls_simulated_verdict(r)));
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

static void json_budget(struct ls_json *j, const double *budget_s)
{
    ls_json_key(j, "budget_ms");
    ls_json_object(j);
    for (int b = 0; b < LS_BUDGET_COUNT; b++)
        ls_json_add_real(j, ls_budget_name((enum ls_budget)b), budget_s[b] * 1e3);
    ls_json_end_object(j);
}

static void json_memory(struct ls_json *j, const struct ls_sim_class *k)
{
    ls_json_key(j, "memory");
    ls_json_object(j);
    ls_json_add_uint(j, "peak_bytes", k->memory.peak);
    ls_json_add_uint(j, "reserved_bytes_at_least", k->memory.reserved);
    ls_json_add_real(j, "peak_at_ms", (double)k->peak_ps * 1e-9);
    for (int all = 0; all < 2; all++) {
        ls_json_key(j, all ? "most_bytes" : "at_peak_bytes");
        ls_json_object(j);
        for (int c = 0; c < LS_MEMORY_COUNT; c++)
            ls_json_add_uint(j, ls_memory_name((enum ls_memory_kind)c), all ? k->memory.most[c] : k->memory.at_peak[c]);
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
    ls_json_add_text(j, "kind", ls_fate_name(f->kind));
    ls_json_add_bool(j, "dies", !ends || f->killed);
    if (ends)
        ls_json_add_real(j, "done_at_ms", (double)f->end_ps * 1e-9);
    if (f->killed)
        ls_json_add_real(j, "killed_at_ms", (double)f->killed_ps * 1e-9);
    if (f->given_up) {
        ls_json_add_uint(j, "gave_up_rank", f->gave_up);
        ls_json_add_text(j, "gave_up_on", comm_name(x, f->gave_up_comm));
        ls_json_add_real(j, "gave_up_at_ms", (double)f->gave_up_ps * 1e-9);
    }
    ls_json_add_uint(j, "pairs_that_differ", f->silent.pairs);
    ls_json_add_text(j, "text", ls_str_text(&text));
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
        ls_json_add_uint(j, "rank", p->at.rank);
        ls_json_add_real(j, "since_ms", (double)x->run.rank_end_ps[p->at.rank] * 1e-9);
        ls_json_add_text(j, "op", ls_str_text(&text));
        ls_json_add_text(j, "why", blocked(p->why));
        ls_json_end_object(j);
    }
    ls_json_end_array(j);
    ls_str_clear(&text);
    json_fate(j, x);
    if (x->fate.killed)
        print_watchdog(x, &text);
    ls_json_add_text(j, "watchdog", x->fate.killed ? ls_str_text(&text) : NULL);
    ls_str_release(&text);
}

void ls_simulated_json(struct ls_json *j, const struct ls_simulated *r)
{
    const struct ls_simulation *x = &r->sim;
    ls_json_object(j);
    ls_json_add_text(j, "policy", r->policy < LS_SIM_POLICIES ? ls_sim_policy[r->policy] : NULL);
    ls_json_add_text(j, "batches", ls_draw_name(r->draw));
    ls_json_add_text(j, "verdict", ls_verdict_name(ls_simulated_verdict(r)));
    ls_json_add_text(j, "check", r->assessed ? ls_verdict_name(r->assessment.verdict) : NULL);
    ls_json_add_text(j, "refused_by", x->refusal.rule);
    if (x->refusal.rule) {
        ls_json_end_object(j);
        return;
    }
    ls_json_add_text(j, "platform", x->platform.name);
    ls_json_add_uint(j, "ranks", x->job.ranks);
    ls_json_add_bool(j, "complete", x->run.complete);
    ls_json_add_bool(j, "smallest_failing_run", r->witness);
    ls_json_add_uint(j, "end_ps", x->run.end_ps);
    ls_json_add_uint(j, "events", x->run.events);
    if (!x->run.complete) {
        json_stuck(j, x);
        ls_json_end_object(j);
        return;
    }
    ls_json_add_real(j, "step_ms", x->step_s * 1e3);
    ls_json_add_real(j, "tokens", x->tokens);
    ls_json_add_real(j, "tokens_per_s", x->tokens_s);
    ls_json_add_real(j, "model_flops", x->model_flops);
    ls_json_add_real(j, "mfu", x->mfu);
    ls_json_add_bool(j, "outlasts_watchdog", outlasts_watchdog(x));
    json_budget(j, x->budget_s);
    ls_json_add_bool(j, "oom", x->oom);
    ls_json_key(j, "rank_classes");
    ls_json_array(j);
    for (size_t c = 0; c < x->classes; c++) {
        const struct ls_sim_class *k = &x->rank_class[c];
        ls_json_object(j);
        ls_json_add_uint(j, "first", k->first);
        ls_json_add_uint(j, "ranks", k->ranks);
        ls_json_add_text(j, "samples", k->samples);
        ls_json_add_real(j, "tokens", k->tokens);
        json_budget(j, k->budget_s);
        json_memory(j, k);
        ls_json_end_object(j);
    }
    ls_json_end_array(j);
    ls_json_end_object(j);
}
