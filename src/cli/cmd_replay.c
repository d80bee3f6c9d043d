/* lockstep replay: one run of a scenario on the engine. */
#include "cli/files.h"
#include "cli/processes.h"
#include "cli/training.h"
#include "replay/trace.h"

#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Bytes of parameters, gradients and buffers of all ranks: larger jobs run without data, and train only when told to. */
enum { DATA_MAX = 1 << 30 };
enum { PATTERNS_MAX = 1 << 28 }; /* elements to compare beside a training run; longer runs are compared in their first steps */
enum math { MATH_ANY, MATH_TRAIN, MATH_PATTERNS };

struct options { uint64_t seed, schedule, steps, warmup, blas_threads, replicas, replicate; bool free, nccl_like, witness, against, force;
                 const char *trace; enum math math; };
struct result {
    struct ls_compiled compiled;
    bool is_compiled;
    struct ls_assignment assignment;
    struct ls_job job;
    struct ls_engine_setup setup;
    struct ls_replay seen;
    struct ls_prediction predicted;
    bool accounting, agrees, calls;
    struct ls_str difference;
    bool trained, silent;            /* silent: another process tells the result */
    struct ls_train_options how;
    struct ls_train train;
    struct ls_error untrained;       /* why the model does not train */
    size_t compared;                 /* steps of a training run that ran with patterns too */
};

static volatile sig_atomic_t interrupted;
static void on_signal(int signal_number) { interrupted = signal_number; }

static enum ls_code read_options(const struct ls_cli *cli, struct options *o, struct ls_error *err)
{
    *o = (struct options){ .seed = 1, .free = ls_cli_flag(cli, "free"), .nccl_like = ls_cli_flag(cli, "nccl-like"),
                           .witness = ls_cli_flag(cli, "witness"), .force = ls_cli_flag(cli, "force") };
    const char *against = ls_cli_value(cli, "against");
    if (against && strcmp(against, "check") != 0)
        return ls_fail(err, LS_EUSAGE, LS_NOWHERE, "'--against' is '%s'; a replay is compared with check", against);
    o->against = against != NULL;
    const char *math = ls_cli_value(cli, "math");
    if (math && strcmp(math, "train") != 0 && strcmp(math, "patterns") != 0)
        return ls_fail(err, LS_EUSAGE, LS_NOWHERE, "'--math' is '%s'; it may be train or patterns", math);
    o->trace = ls_cli_value(cli, "trace");
    o->math = !math ? MATH_ANY : *math == 't' ? MATH_TRAIN : MATH_PATTERNS;
    enum ls_code rc = ls_cli_uint(cli, "seed", 0, UINT64_MAX, &o->seed, err);
    o->schedule = o->seed;
    if (rc == LS_OK)
        rc = ls_cli_uint(cli, "schedule", 0, UINT64_MAX, &o->schedule, err);
    if (rc == LS_OK)
        rc = ls_cli_uint(cli, "steps", 1, LS_STEPS_MAX, &o->steps, err);
    if (rc == LS_OK)
        rc = ls_cli_uint(cli, "warmup", 0, LS_STEPS_MAX - 1, &o->warmup, err);
    if (rc == LS_OK)
        rc = ls_cli_uint(cli, "blas-threads", 1, 256, &o->blas_threads, err);
    if (rc == LS_OK)
        rc = ls_cli_uint(cli, "replicas", 1, 64, &o->replicas, err);
    if (rc == LS_OK)
        rc = ls_cli_uint(cli, "replicate", 1, 64, &o->replicate, err);
    if (rc == LS_OK && o->trace && o->math == MATH_PATTERNS)
        rc = ls_fail(err, LS_EUSAGE, LS_NOWHERE, "'--trace' is of a training run; patterns have no times");
    if (o->trace)
        o->math = MATH_TRAIN;
    if (rc == LS_OK && o->nccl_like && o->against)
        rc = ls_fail(err, LS_EUSAGE, LS_NOWHERE, "'--against check' needs differences that stop a group; '--nccl-like' lets them pass");
    return rc;
}

/* Sizes that the scenario leaves open. */
static enum ls_code fix_sizes(struct ls_scenario *s, const struct options *o, struct ls_error *err)
{
    struct ls_loc whole = { s->path, 0, 0 };
    bool any_shard = s->mesh.shard == LS_SIZE_ANY, any_replicate = s->mesh.replicate == LS_SIZE_ANY;
    if (s->kind == LS_PLAN_RAW)
        return o->replicas || o->replicate ? ls_fail(err, LS_EINPUT, whole, "a raw program has its own number of ranks") : LS_OK;
    if (o->replicas && !any_shard && o->replicas != s->mesh.shard)
        return ls_fail(err, LS_EINPUT, whole, "'--replicas' is %" PRIu64 ", but the scenario shards over %zu ranks", o->replicas, s->mesh.shard);
    if (o->replicate && !any_replicate && o->replicate != s->mesh.replicate)
        return ls_fail(err, LS_EINPUT, whole, "'--replicate' is %" PRIu64 ", but the scenario has %zu replicas of the shards", o->replicate,
                       s->mesh.replicate);
    if (any_shard)
        s->mesh.shard = o->replicas ? (size_t)o->replicas : 2;
    if (any_replicate)
        s->mesh.replicate = o->replicate ? (size_t)o->replicate : 2;
    return LS_OK;
}

/* The failing run that check finds, as a scenario of its own. */
static enum ls_code to_witness(struct ls_scenario *s, const struct options *o, struct ls_arena *arena, struct ls_names *names,
                               struct ls_scenario *out, struct ls_error *err)
{
    struct ls_assess_options assess = { .variant = LS_AS_WRITTEN, .force = o->force };
    struct ls_assessment a;
    struct ls_str text = { 0 };
    assess.check.gradients = assess.check.races = true;
    enum ls_code rc = ls_assess(s, &assess, arena, &a, err);
    if (rc != LS_OK)
        return rc;
    rc = ls_witness_scenario(s, &a, arena, &text, err);
    if (rc == LS_OK)
        rc = ls_scenario_read(ls_arena_str(arena, ls_str_text(&text)), text.length, ls_arena_printf(arena, "%s (witness)", s->path), arena,
                              names, out, err);
    ls_str_release(&text);
    ls_assessment_release(&a);
    return rc;
}

/* The first steps of a run, or all of it. */
static struct ls_assignment first_steps(const struct result *r, size_t steps)
{
    struct ls_assignment a = r->assignment;
    size_t seen = 0;
    for (a.rounds = 0; a.rounds < r->assignment.rounds && seen < steps; a.rounds++)
        seen += r->compiled.rounds.round[r->compiled.system.driver.node[a.node[a.rounds]].round].kind == LS_ROUND_STEP;
    return seen < steps ? r->assignment : a;
}

/* Real gradients do not show whose share is missing: the same programs run once more with patterns. */
static enum ls_code compare_patterns(struct ls_scenario *s, const struct options *o, const struct ls_engine_options *e, struct ls_arena *arena,
                                     struct result *r, struct ls_error *err)
{
    size_t all = r->train.ended, fit = (size_t)(PATTERNS_MAX / ((double)ls_model_elements(&s->model) * (double)r->job.ranks + 1));
    r->compared = o->against || fit > all ? all : fit ? fit : 1;
    struct ls_assignment *a = LS_NEW(arena, struct ls_assignment, 1);
    struct ls_job *job = LS_NEW(arena, struct ls_job, 1);
    struct ls_engine_setup setup;
    struct ls_replay seen;
    *a = first_steps(r, r->compared);
    enum ls_code rc = ls_system_job(&r->compiled.system, a, arena, job, err);
    if (rc != LS_OK)
        return rc;
    ls_replay_setup(s, &r->compiled, a, job, o->seed, arena, &setup);
    rc = ls_replay_run(&setup, e, true, arena, &seen, err);
    if (rc != LS_OK)
        return rc;
    r->seen.observed.interrupted = seen.observed.interrupted;
    r->seen.verdict = seen.verdict;
    r->seen.symbolic = seen.symbolic;
    r->seen.share = seen.share;
    return LS_OK;
}

static enum ls_code train(struct ls_scenario *s, const struct options *o, const struct ls_nn_vlm *vlm, const struct ls_engine_options *e,
                          struct ls_arena *arena, struct result *r, struct ls_error *err)
{
    struct ls_train_case c = { s, &r->compiled, &r->assignment, &r->setup, vlm };
    double need = (double)ls_train_bytes(&c), have = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
    if (need > have)
        return ls_fail(err, LS_EBACKEND, s->model.flow.at, "training needs about %.3g GB for parameters, gradients and optimizer; this machine has %.3g GB",
                       1e-9 * need, 1e-9 * have);
    enum ls_code rc = ls_train_run(&c, &r->how, arena, &r->train, err);
    if (rc != LS_OK)
        return rc;
    if (o->trace && !r->silent && !r->train.observed.interrupted) {
        struct ls_str text = { 0 };
        ls_train_trace(&c, &r->train, &text);
        rc = ls_write_file(o->trace, ls_str_text(&text), text.length, err);
        ls_str_release(&text);
        if (rc != LS_OK)
            return rc;
    }
    r->seen = (struct ls_replay){ .verdict = r->train.verdict, .observed = r->train.observed, .program = r->train.program,
                                  .memory_equal = r->train.memory_equal };
    return r->train.verdict == LS_SAFE && !o->nccl_like ? compare_patterns(s, o, e, arena, r, err) : LS_OK;
}

/* Training where the model can run, unless it is too large to do so unasked. */
static enum ls_code choose_math(const struct ls_scenario *s, const struct options *o, double bytes, struct ls_nn_vlm *vlm, struct ls_arena *arena,
                                struct result *r, struct ls_error *err)
{
    if (o->math == MATH_PATTERNS)
        return LS_OK;
    if (o->math == MATH_ANY && bytes > DATA_MAX) {
        ls_fail(&r->untrained, LS_EINPUT, LS_NOWHERE, "%.3g GB of parameters and gradients; --math train trains it all the same", 1e-9 * bytes);
        return LS_OK;
    }
    if (o->math == MATH_ANY && o->nccl_like)
        return LS_OK;
    enum ls_code rc = ls_train_model(s, arena, vlm, o->math == MATH_TRAIN ? err : &r->untrained);
    r->trained = rc == LS_OK;
    return o->math == MATH_TRAIN ? rc : LS_OK;
}

static const char *why_untrained(const struct result *r, const struct options *o)
{
    if (o->math == MATH_PATTERNS)
        return "patterns were asked for";
    return r->untrained.code ? r->untrained.text : "pairing by position corrupts what it meets";
}

static enum ls_code replay(const struct ls_cli *cli, struct ls_scenario *s, const struct options *o, struct ls_processes *p, struct ls_arena *arena,
                           struct result *r, struct ls_error *err)
{
    struct ls_variant as_written = LS_AS_WRITTEN;
    bool gradients = s->kind != LS_PLAN_RAW;
    struct ls_nn_vlm *vlm = LS_NEW(arena, struct ls_nn_vlm, 1);
    size_t steps = o->steps ? (size_t)o->steps : 1;
    /* Sharded parameters once, unsharded ones and gradients on every rank, all in about four bytes. */
    double ranks = (double)s->mesh.shard * (double)s->mesh.replicate;
    double bytes = s->kind == LS_PLAN_RAW ? 0 : 4.0 * (double)ls_model_elements(&s->model) * (1.0 + 2.0 * ranks);
    enum ls_code rc = choose_math(s, o, bytes, vlm, arena, r, err);
    if (rc == LS_OK && !r->trained && (o->warmup || o->blas_threads))
        rc = ls_fail(err, LS_EUSAGE, LS_NOWHERE, "'--%s' is for training, and this run does not train: %s", o->warmup ? "warmup" : "blas-threads",
                     why_untrained(r, o));
    r->how = (struct ls_train_options){ .steps = (size_t)o->steps, .warmup = (size_t)o->warmup, .seed = o->seed, .schedule = o->schedule, .free = o->free,
                                        .blas_threads = (unsigned)o->blas_threads, .force = o->force, .nccl_like = o->nccl_like,
                                        .timeline = o->trace != NULL, .interrupted = &interrupted };
    if (rc == LS_OK && r->trained)
        rc = ls_train_steps(s, &r->how, &steps, err);
    if (rc == LS_OK)
        rc = ls_scenario_compile(s, &as_written, o->force, &r->compiled, err);
    if (rc != LS_OK)
        return rc;
    r->is_compiled = true;
    if (r->compiled.refusal.rule)
        return ls_fail(err, LS_EINPUT, r->compiled.refusal.at, "refused at set-up: %s: %s", r->compiled.refusal.rule, r->compiled.refusal.text);
    rc = ls_replay_assignment(&r->compiled, steps, o->seed, arena, &r->assignment, err);
    if (rc == LS_OK)
        rc = ls_system_job(&r->compiled.system, &r->assignment, arena, &r->job, err);
    if (rc == LS_OK)
        rc = ls_processes_enter(cli, p, r->job.ranks, err);
    if (rc != LS_OK || p->delegated)
        return rc;
    r->how.world = p->world;
    r->silent = p->silent;
    ls_replay_setup(s, &r->compiled, &r->assignment, &r->job, o->seed, arena, &r->setup);
    struct ls_engine_options e = { .free = o->free, .seed = o->schedule, .nccl_like = o->nccl_like, .races = r->trained ? 0 : 1,
                                   .interrupted = &interrupted, .world = p->world, .accounting = !r->trained && bytes > DATA_MAX };
    ls_replay_level(s, &e);
    r->accounting = e.accounting;
    gradients = gradients && !e.accounting && r->setup.params;
    rc = r->trained ? train(s, o, vlm, &e, arena, r, err) : ls_replay_run(&r->setup, &e, gradients, arena, &r->seen, err);
    if (rc != LS_OK || r->seen.observed.interrupted || !o->against || p->silent)
        return rc;
    rc = ls_replay_predict(&r->setup, &e, gradients, arena, &r->predicted, err);
    if (rc != LS_OK)
        return rc;
    r->calls = ls_replay_calls(&r->setup, &r->seen, &r->difference);
    r->agrees = r->calls && ls_replay_agrees(&r->setup, &r->predicted, &r->seen, &r->difference);
    return LS_OK;
}

static const struct ls_op *op_at(const struct result *r, struct ls_at at)
{
    return &r->job.rank[at.rank].segment[at.segment]->op[at.op];
}

static const char *blocked_text(enum ls_blocked why)
{
    switch (why) {
    case LS_BLOCKED_MEMBERS: return "waits for the other members";
    case LS_BLOCKED_PEER: return "waits for its peer";
    case LS_BLOCKED_EVENT: return "waits for an event";
    case LS_BLOCKED_FIFO: return "waits behind another op of its communicator";
    case LS_BLOCKED_SLOT: return "waits for a slot";
    case LS_BLOCKED_HOST: return "holds its host thread";
    case LS_BLOCKED_STREAM:
    case LS_BLOCKED_NONE: break;
    }
    return "waits behind another op of its stream";
}

static void print_at(const struct result *r, struct ls_at at, struct ls_str *out)
{
    if (at.rank == LS_NO_ID || at.segment == LS_NO_ID) {
        ls_str_printf(out, at.rank == LS_NO_ID ? "nothing" : "rank %u has nothing left", at.rank);
        return;
    }
    ls_str_printf(out, "rank %u  ", at.rank);
    ls_op_print(out, &r->compiled.tables, op_at(r, at));
}

/* What is carried: the names of the payloads may be equal. */
static void print_items(const struct result *r, struct ls_at at, struct ls_str *out)
{
    const struct ls_op *o = op_at(r, at);
    const struct ls_payload *p = o->payload == LS_NO_ID ? NULL : &r->compiled.tables.payload.at[o->payload];
    for (size_t i = 0; p && i < p->count && i < 4; i++)
        ls_str_printf(out, "%s%s", i ? ", " : ": ", ls_tables_name(&r->compiled.tables, p->items[i]));
    if (p && p->count > 4)
        ls_str_printf(out, " and %zu more", p->count - 4);
}

/* Waits for events follow from what those events wait for, unless a rank waits for nothing else. */
static void print_pending(const struct result *r, struct ls_str *out)
{
    enum { ROWS_MAX = 16 };
    const struct ls_outcome *x = &r->seen.observed.outcome;
    size_t rows = 0, left = 0;
    for (size_t i = 0; i < x->pending_count; i++) {
        const struct ls_pending *p = &x->pending[i];
        bool other = false;
        for (size_t k = 0; k < x->pending_count; k++)
            other |= x->pending[k].at.rank == p->at.rank && x->pending[k].why != LS_BLOCKED_EVENT && x->pending[k].why != LS_BLOCKED_STREAM;
        if (other && (p->why == LS_BLOCKED_EVENT || p->why == LS_BLOCKED_STREAM))
            continue;
        if (rows == ROWS_MAX) {
            left++;
            continue;
        }
        ls_str_add(out, rows++ ? "              " : "  pending     ");
        print_at(r, p->at, out);
        ls_str_printf(out, ": %s\n", blocked_text(p->why));
    }
    if (left)
        ls_str_printf(out, "              and %zu more\n", left);
}

static uint64_t peak_of(const struct result *r, size_t category)
{
    uint64_t most = 0;
    for (size_t i = 0; i < r->job.ranks; i++) {
        uint64_t p = category == LS_CATEGORY_COUNT ? r->seen.observed.memory[i].total_peak : r->seen.observed.memory[i].peak[category];
        most = p > most ? p : most;
    }
    return most;
}

static void print_verdict(const struct ls_cli *cli, const struct result *r, struct ls_str *out)
{
    const struct ls_outcome *x = &r->seen.observed.outcome;
    const struct ls_tables *t = &r->compiled.tables;
    enum ls_verdict v = r->seen.verdict;
    char name[32];
    snprintf(name, sizeof name, "%s", v == LS_SAFE ? "completed" : ls_verdict_name(v));
    ls_str_printf(out, "  seen        %s%s%s", ls_style(cli->colour_out, v == LS_SAFE ? LS_GREEN : LS_RED), name, ls_style(cli->colour_out, LS_PLAIN));
    if (v == LS_LOST_GRADIENT || v == LS_WRONG_SCALE) {
        const struct ls_share_problem *p = &r->seen.share;
        ls_str_printf(out, ": '%s': the share of rank %u, microbatch %u arrived with weight %u/%u, not %u/%u; %zu of %zu are missing",
                      ls_tables_name(t, p->param), p->rank, p->microbatch, p->found.num, p->found.den, p->expected.num, p->expected.den,
                      p->missing, p->shares);
    } else if (x->comm != LS_NO_ID)
        ls_str_printf(out, " at call %zu of group %u of %s", x->position, x->group, ls_tables_name(t, t->comm.at[x->comm].name));
    ls_str_add(out, "\n");
    if (v != LS_SAFE && v != LS_LOST_GRADIENT && v != LS_WRONG_SCALE)
        for (int i = 0; i < 2; i++) {
            struct ls_at at = i ? x->b : x->a;
            if (at.rank == LS_NO_ID)
                continue;
            ls_str_add(out, "              ");
            print_at(r, at, out);
            if (v == LS_MISPAIRING && at.segment != LS_NO_ID)
                print_items(r, at, out);
            ls_str_add(out, "\n");
        }
    print_pending(r, out);
}

static void print_memory(const struct result *r, struct ls_str *out)
{
    ls_str_add(out, "  memory      peak of a rank, in bytes:");
    for (size_t c = 0; c < LS_CATEGORY_COUNT; c++)
        if (peak_of(r, c))
            ls_str_printf(out, " %s %" PRIu64, ls_category_name((enum ls_category)c), peak_of(r, c));
    ls_str_printf(out, "; total %" PRIu64 "\n              %s\n", peak_of(r, LS_CATEGORY_COUNT),
                  r->seen.memory_equal ? "buffers as the program says, to the byte" : "buffers DIFFER from what the program says");
}

static void print_untrained(const struct result *r, const struct options *o, struct ls_str *out)
{
    ls_str_printf(out, "  training    none%s: %s\n", r->accounting ? "" : ", patterns instead", why_untrained(r, o));
}

static void print_text(const struct ls_cli *cli, const struct ls_scenario *s, const struct options *o, const struct ls_processes *p,
                       const struct result *r)
{
    char processes[48] = "";
    struct ls_str out = { 0 };
    const struct ls_observed *seen = &r->seen.observed;
    size_t calls = 0;
    for (size_t i = 0; i < r->job.ranks; i++)
        calls += seen->call[i].count;
    if (p->on)
        snprintf(processes, sizeof processes, " in %zu process%s", p->processes, p->processes == 1 ? "" : "es");
    ls_str_printf(&out, "%s: %zu ranks%s, %s, seed %" PRIu64 "\n", s->name, r->job.ranks, processes, o->free ? "a thread per queue" : "coroutines",
                  o->seed);
    print_verdict(cli, r, &out);
    ls_str_printf(&out, "  calls       %zu on communicators, %zu collectives completed\n", calls, seen->outcome.collectives);
    if (o->nccl_like)
        ls_str_printf(&out, "  unnoticed   %zu differences met, %zu went through\n", seen->clashes, seen->silent);
    if (s->kind != LS_PLAN_RAW && r->accounting)
        ls_str_add(&out, "  data        none: the model is too large for this machine; order and bytes only\n");
    else if (s->kind != LS_PLAN_RAW && (!r->trained || r->compared)) {
        ls_str_printf(&out, "  %s %zu elements of gathered parameters compared, %zu wrong; %zu of gradients%s", r->trained ? "patterns   " : "data       ",
                      r->seen.symbolic.parameters, r->seen.symbolic.corrupted, r->seen.symbolic.gradients,
                      r->seen.symbolic.problem.present ? ", some wrong" : "");
        if (r->trained && r->compared < r->train.ended)
            ls_str_printf(&out, "; first %zu step%s", r->compared, r->compared == 1 ? "" : "s");
        ls_str_add(&out, "\n");
    }
    if (s->kind != LS_PLAN_RAW && !r->trained)
        print_untrained(r, o, &out);
    if (r->trained)
        ls_training_text(&r->train, &r->how, &out);
    if (peak_of(r, LS_CATEGORY_COUNT))
        print_memory(r, &out);
    if (o->against)
        ls_str_printf(&out, "  check       %s\n", r->agrees ? "predicted this, and the calls made are the program's, op for op" : ls_str_text(&r->difference));
    fputs(ls_str_text(&out), stdout);
    ls_str_release(&out);
}

static void json_at(struct ls_json *j, const char *key, const struct result *r, struct ls_at at)
{
    ls_json_key(j, key);
    if (at.rank == LS_NO_ID) {
        ls_json_null(j);
        return;
    }
    struct ls_str text = { 0 };
    ls_json_object(j);
    ls_json_key(j, "rank");
    ls_json_uint(j, at.rank);
    if (at.segment != LS_NO_ID) {
        ls_json_key(j, "segment");
        ls_json_uint(j, at.segment);
        ls_json_key(j, "op");
        ls_json_uint(j, at.op);
        ls_json_key(j, "text");
        ls_op_print(&text, &r->compiled.tables, op_at(r, at));
        ls_json_text(j, ls_str_text(&text));
    }
    ls_json_end_object(j);
    ls_str_release(&text);
}

static void json_memory(struct ls_json *j, const struct result *r)
{
    ls_json_key(j, "memory_peak_bytes");
    ls_json_array(j);
    for (size_t i = 0; i < r->job.ranks; i++) {
        ls_json_object(j);
        for (size_t c = 0; c < LS_CATEGORY_COUNT; c++) {
            ls_json_key(j, ls_category_name((enum ls_category)c));
            ls_json_uint(j, r->seen.observed.memory[i].peak[c]);
        }
        ls_json_key(j, "total");
        ls_json_uint(j, r->seen.observed.memory[i].total_peak);
        ls_json_end_object(j);
    }
    ls_json_end_array(j);
    ls_json_key(j, "memory_as_program");
    ls_json_bool(j, r->seen.memory_equal);
}

static void print_json(const struct ls_cli *cli, const struct ls_scenario *s, const struct options *o, const struct ls_processes *p,
                       const struct result *r)
{
    struct ls_str text = { 0 };
    struct ls_json j;
    const struct ls_outcome *x = &r->seen.observed.outcome;
    const struct ls_tables *t = &r->compiled.tables;
    ls_cli_json_open(cli, &j, &text);
    ls_json_key(&j, "name");
    ls_json_text(&j, s->name);
    ls_json_key(&j, "file");
    ls_json_text(&j, s->path);
    ls_json_key(&j, "ranks");
    ls_json_uint(&j, r->job.ranks);
    ls_json_key(&j, "processes");
    ls_json_uint(&j, p->processes);
    ls_json_key(&j, "seed");
    ls_json_uint(&j, o->seed);
    ls_json_key(&j, "free");
    ls_json_bool(&j, o->free);
    ls_json_key(&j, "nccl_like");
    ls_json_bool(&j, o->nccl_like);
    ls_json_key(&j, "data");
    ls_json_bool(&j, s->kind != LS_PLAN_RAW && !r->accounting);
    ls_json_key(&j, "verdict");
    ls_json_text(&j, ls_verdict_name(r->seen.verdict));
    ls_json_key(&j, "communicator");
    ls_json_text(&j, x->comm == LS_NO_ID ? NULL : ls_tables_name(t, t->comm.at[x->comm].name));
    ls_json_key(&j, "call");
    if (x->comm == LS_NO_ID)
        ls_json_null(&j);
    else
        ls_json_uint(&j, x->position);
    json_at(&j, "a", r, x->a);
    json_at(&j, "b", r, x->b);
    ls_json_key(&j, "pending");
    ls_json_array(&j);
    for (size_t i = 0; i < x->pending_count; i++) {
        ls_json_object(&j);
        json_at(&j, "at", r, x->pending[i].at);
        ls_json_key(&j, "why");
        ls_json_text(&j, blocked_text(x->pending[i].why));
        ls_json_end_object(&j);
    }
    ls_json_end_array(&j);
    ls_json_key(&j, "lost");
    if (r->seen.verdict == LS_LOST_GRADIENT || r->seen.verdict == LS_WRONG_SCALE) {
        ls_json_object(&j);
        ls_json_key(&j, "parameter");
        ls_json_text(&j, ls_tables_name(t, r->seen.share.param));
        ls_json_key(&j, "rank");
        ls_json_uint(&j, r->seen.share.rank);
        ls_json_key(&j, "microbatch");
        ls_json_uint(&j, r->seen.share.microbatch);
        ls_json_key(&j, "missing");
        ls_json_uint(&j, r->seen.share.missing);
        ls_json_key(&j, "shares");
        ls_json_uint(&j, r->seen.share.shares);
        ls_json_end_object(&j);
    } else
        ls_json_null(&j);
    ls_json_key(&j, "collectives");
    ls_json_uint(&j, x->collectives);
    ls_json_key(&j, "differences");
    ls_json_uint(&j, r->seen.observed.clashes);
    ls_json_key(&j, "gathered_elements");
    ls_json_uint(&j, r->seen.symbolic.parameters);
    ls_json_key(&j, "gathered_elements_wrong");
    ls_json_uint(&j, r->seen.symbolic.corrupted);
    ls_json_key(&j, "gradient_elements");
    ls_json_uint(&j, r->seen.symbolic.gradients);
    ls_json_key(&j, "training");
    if (r->trained)
        ls_training_json(&r->train, &r->how, &j);
    else
        ls_json_null(&j);
    ls_json_key(&j, "untrained");
    ls_json_text(&j, r->untrained.code ? r->untrained.text : NULL);
    json_memory(&j, r);
    ls_json_key(&j, "agrees_with_check");
    if (o->against)
        ls_json_bool(&j, r->agrees);
    else
        ls_json_null(&j);
    ls_json_key(&j, "difference");
    ls_json_text(&j, o->against && !r->agrees ? ls_str_text(&r->difference) : NULL);
    ls_json_key(&j, "seconds");
    ls_json_real(&j, r->seen.observed.seconds);
    ls_cli_json_close(&j);
    ls_str_release(&text);
}

static int exit_code(const struct ls_scenario *s, const struct options *o, const struct result *r)
{
    bool as_expected = r->seen.verdict == LS_SAFE || (s->expect.present && s->expect.verdict == r->seen.verdict);
    /* A witness must fail as it says. */
    if (o->witness && s->expect.present)
        as_expected = s->expect.verdict == r->seen.verdict;
    bool corrupted = o->nccl_like && (r->seen.observed.silent || r->seen.symbolic.corrupted);
    return as_expected && !corrupted && r->seen.memory_equal && (!o->against || r->agrees) ? LS_OK : LS_EVIOLATED;
}

static int run(const struct ls_cli *cli, int argc, char **argv)
{
    struct ls_error err = { 0 };
    struct options o;
    struct result r = { 0 };
    struct ls_processes p;
    struct ls_arena arena;
    struct ls_scenario written, witness, *s = &written;
    if (argc != 1)
        return ls_usage(cli, "replay takes one FILE");
    if (read_options(cli, &o, &err) != LS_OK)
        return ls_report(cli, &err);
    struct sigaction act = { .sa_handler = on_signal }, old_int, old_term;
    sigaction(SIGINT, &act, &old_int);
    sigaction(SIGTERM, &act, &old_term);
    ls_arena_init(&arena, 0);
    struct ls_names *names = ls_names_open();
    enum ls_code rc = ls_processes_open(cli, &p, &interrupted, &err);
    if (rc == LS_OK)
        rc = ls_scenario_load(argv[0], &arena, names, &written, &err);
    if (rc == LS_OK && o.witness) {
        rc = to_witness(&written, &o, &arena, names, &witness, &err);
        s = &witness;
    }
    if (rc == LS_OK)
        rc = fix_sizes(s, &o, &err);
    if (rc == LS_OK)
        rc = replay(cli, s, &o, &p, &arena, &r, &err);
    rc = ls_processes_close(&p, rc, &err);
    int status = (int)rc;
    if (rc != LS_OK && !interrupted && !p.silent)
        status = ls_report(cli, &err);
    else if (!interrupted && !p.silent && !p.delegated) {
        if (cli->json)
            print_json(cli, s, &o, &p, &r);
        else
            print_text(cli, s, &o, &p, &r);
        status = exit_code(s, &o, &r);
    }
    char ended[64] = "";
    if (interrupted && r.trained)
        snprintf(ended, sizeof ended, " after %zu of %zu steps", r.train.ended, r.train.warmup + r.train.steps);
    if (r.is_compiled)
        ls_compiled_release(&r.compiled);
    ls_str_release(&r.difference);
    ls_names_close(names);
    ls_arena_release(&arena);
    sigaction(SIGINT, &old_int, NULL);
    sigaction(SIGTERM, &old_term, NULL);
    if (interrupted) { /* every thread has ended; die of the signal, so that a shell sees it */
        if (p.processes == 1) /* of several, this may be the only one that is told: the others end with mpirun */
            fprintf(stderr, "lockstep: replay: interrupted%s; every rank has ended\n", ended);
        raise(interrupted);
    }
    return ls_processes_status(&p, status);
}

static const struct ls_option options[] = {
    LS_PROCESSES_OPTIONS,
    { "seed", "N", "the run drawn from the contract, weights and batches, and the schedule (default 1)" },
    { "schedule", "N", "the schedule alone (default: the seed; 0: lowest rank first)" },
    { "free", NULL, "a thread per host thread and stream instead of coroutines" },
    { "math", "HOW", "train: the model's operators; patterns: known numbers (default: train where the model can)" },
    { "steps", "N", "steps, where the scenario leaves their number open (default 1; training: 5)" },
    { "warmup", "N", "training: steps before those, left out of times (default 0)" },
    { "trace", "FILE", "training: save the run as a Chrome trace, for ui.perfetto.dev" },
    { "blas-threads", "N", "training: threads of each matrix product (default 1)" },
    { "replicas", "N", "ranks that share parameters, where the scenario says any (default 2)" },
    { "replicate", "N", "replicas of those, where the scenario says any (default 2)" },
    { "witness", NULL, "run the smallest failing run that check finds" },
    { "against", "check", "compare calls and verdict with the program and its check" },
    { "nccl-like", NULL, "pair ops by position, as NCCL does: differences pass unnoticed or hang" },
    { "force", NULL, "run a plan that set-up refuses" },
    { 0 },
};
static const struct ls_example examples[] = {
    { "replay scenarios/mixed-media/per-layer-table-one-off.yaml", "the run that the table describes" },
    { "replay --steps 20 --warmup 5 --free scenarios/training/gemma3-root-uniform.yaml", "losses and step times of real training" },
    { "replay --witness --against check scenarios/conditional-tower/b02-skip.yaml", "does the counterexample fail as predicted?" },
    { "replay --witness --nccl-like scenarios/raw/unagreed-branch.yaml", "what NCCL would make of it" },
    { "replay --ranks-per-process 2 --replicas 4 scenarios/conditional-tower/b03-dummy-linked.yaml", "in two processes" },
    { 0 },
};
const struct ls_command ls_command_replay = {
    .name = "replay", .run = run, .operands = "FILE", .summary = "run a scenario with data, and see what happens",
    .text = "Executes one run of the scenario: every rank's operations on streams, with parameters and gradients that are known patterns, so "
            "that what collectives and copies did is checked element by element. A hang is a state, not a timeout: nothing can move and "
            "nothing is running. Where operators are known for every statement of the model (models/tiny_*, models/*_run), it is trained: "
            "AdamW on batches made from the seed, and losses, norms, tokens a second and step times are printed; losses have the same bits "
            "under every schedule, and with --free. With --comm mpi the ranks are dealt out to processes: those that mpirun has started, or "
            "those that this command starts on this machine; verdict and losses are the same. When one process dies, all end. Exit status: "
            "0 completed, or as the scenario's `expect:` says; 1 not; 3 bad input; 4 a process was killed, or mpirun failed.",
    .options = options, .examples = examples };
