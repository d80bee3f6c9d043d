/* lockstep replay: one run of a scenario on the engine. */
#include "cli/files.h"
#include "cli/interrupt.h"
#include "cli/replayed.h"
#include "replay/trace.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Bytes of parameters, gradients and buffers of all ranks: larger jobs run without data, and train only when told to. */
enum { DATA_MAX = 1 << 30 };
enum { PATTERNS_MAX = 1 << 28 }; /* elements to compare beside a training run; longer runs are compared in their first steps */
static enum ls_code read_options(const struct ls_cli *cli, struct ls_replay_wish *o, struct ls_error *err)
{
    *o = (struct ls_replay_wish){ .seed = 1, .free = ls_cli_flag(cli, "free"), .nccl_like = ls_cli_flag(cli, "nccl-like"),
                           .witness = ls_cli_flag(cli, "witness"), .force = ls_cli_flag(cli, "force") };
    const char *against = ls_cli_value(cli, "against");
    if (against && strcmp(against, "check") != 0)
        return ls_fail(err, LS_EUSAGE, LS_NOWHERE, "'--against' is '%s'; a replay is compared with check", against);
    o->against = against != NULL;
    const char *math = ls_cli_value(cli, "math");
    if (math && strcmp(math, "train") != 0 && strcmp(math, "patterns") != 0)
        return ls_fail(err, LS_EUSAGE, LS_NOWHERE, "'--math' is '%s'; it may be train or patterns", math);
    o->trace = ls_cli_value(cli, "trace");
    o->math = !math ? LS_REPLAY_ANY : *math == 't' ? LS_REPLAY_TRAIN : LS_REPLAY_PATTERNS;
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
    if (rc == LS_OK && o->trace && o->math == LS_REPLAY_PATTERNS)
        rc = ls_fail(err, LS_EUSAGE, LS_NOWHERE, "'--trace' is of a training run; patterns have no times");
    if (rc == LS_OK && o->trace)
        rc = ls_write_check(o->trace, err);
    if (o->trace)
        o->math = LS_REPLAY_TRAIN;
    if (rc == LS_OK && o->nccl_like && o->against)
        rc = ls_fail(err, LS_EUSAGE, LS_NOWHERE, "'--against check' needs differences that stop a group; '--nccl-like' lets them pass");
    return rc;
}

/* A number of steps is honoured where it is free. */
static enum ls_code check_steps(const struct ls_scenario *s, const struct ls_replay_wish *o, struct ls_error *err)
{
    struct ls_loc whole = { s->path, 0, 0 };
    if (o->steps && s->kind == LS_PLAN_RAW)
        return ls_fail(err, LS_EINPUT, whole, "a raw program has no steps: '--steps' does not go with it");
    if (o->steps && s->batch.steps && o->steps > s->batch.steps)
        return ls_fail(err, LS_EINPUT, s->batch.at, "'--steps' is %" PRIu64 ", but the scenario has %" PRIu64, o->steps, (uint64_t)s->batch.steps);
    return LS_OK;
}

/* Sizes that the scenario leaves open. */
static enum ls_code fix_sizes(struct ls_scenario *s, const struct ls_replay_wish *o, struct ls_error *err)
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
        s->mesh.shard = o->replicas ? (size_t)o->replicas : s->mesh.ep > 1 ? 2 * s->mesh.ep : 2;
    if (any_replicate)
        s->mesh.replicate = o->replicate ? (size_t)o->replicate : 2;
    return ls_mesh_regroup(&s->mesh, whole, err);
}

/* The failing run that check finds, as a scenario of its own. */
static enum ls_code to_witness(struct ls_scenario *s, const struct ls_replay_wish *o, struct ls_arena *arena, struct ls_names *names,
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
static struct ls_assignment first_steps(const struct ls_replay_result *r, size_t steps)
{
    struct ls_assignment a = r->assignment;
    size_t seen = 0;
    for (a.rounds = 0; a.rounds < r->assignment.rounds && seen < steps; a.rounds++)
        seen += r->compiled.rounds.round[r->compiled.system.driver.node[a.node[a.rounds]].round].kind == LS_ROUND_STEP;
    return seen < steps ? r->assignment : a;
}

/* Real gradients do not show whose share is missing: the same programs run once more with patterns. */
static enum ls_code compare_patterns(struct ls_scenario *s, const struct ls_replay_wish *o, const struct ls_engine_options *e, struct ls_arena *arena,
                                     struct ls_replay_result *r, struct ls_error *err)
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

static enum ls_code train(struct ls_scenario *s, const struct ls_replay_wish *o, const struct ls_nn_vlm *vlm, const struct ls_engine_options *e,
                          struct ls_arena *arena, struct ls_replay_result *r, struct ls_error *err)
{
    struct ls_train_case c = { s, &r->compiled, &r->assignment, &r->setup, vlm };
    double need = (double)ls_train_bytes(&c), have = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
    if (need > have)
        return ls_fail(err, LS_EBACKEND, ((struct ls_loc){ s->path, 0, 0 }), "training needs about %.3g GB for parameters, gradients and optimizer; this machine has %.3g GB",
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
static enum ls_code choose_math(const struct ls_scenario *s, const struct ls_replay_wish *o, struct ls_nn_vlm *vlm, struct ls_arena *arena,
                                struct ls_replay_result *r, struct ls_error *err)
{
    bool asked = o->math == LS_REPLAY_TRAIN;
    if (o->math == LS_REPLAY_PATTERNS || (!asked && o->nccl_like))
        return LS_OK;
    enum ls_code rc = ls_train_model(s, arena, vlm, asked ? err : &r->untrained);
    r->trained = rc == LS_OK && (asked || r->bytes <= DATA_MAX);
    if (rc == LS_OK && !r->trained)
        ls_fail(&r->untrained, LS_EINPUT, LS_NOWHERE, "it is large; --math train trains it where memory suffices");
    return asked ? rc : LS_OK;
}

static enum ls_code replay(const struct ls_cli *cli, struct ls_scenario *s, const struct ls_replay_wish *o, struct ls_processes *p, struct ls_arena *arena,
                           struct ls_replay_result *r, struct ls_error *err)
{
    struct ls_variant as_written = LS_AS_WRITTEN;
    bool gradients = s->kind != LS_PLAN_RAW;
    struct ls_nn_vlm *vlm = LS_NEW(arena, struct ls_nn_vlm, 1);
    size_t steps = o->steps ? (size_t)o->steps : 1;
    /* Sharded parameters once, unsharded ones and gradients on every rank, all in about four bytes. */
    double ranks = (double)s->mesh.shard * (double)s->mesh.replicate;
    r->bytes = s->kind == LS_PLAN_RAW ? 0 : 4.0 * (double)ls_model_elements(&s->model) * (1.0 + 2.0 * ranks);
    enum ls_code rc = choose_math(s, o, vlm, arena, r, err);
    if (rc == LS_OK && !r->trained && (o->warmup || o->blas_threads))
        rc = ls_fail(err, LS_EUSAGE, LS_NOWHERE, "'--%s' is for training, and this run does not train: %s", o->warmup ? "warmup" : "blas-threads",
                     ls_replay_untrained(r, o));
    r->how = (struct ls_train_options){ .steps = (size_t)o->steps, .warmup = (size_t)o->warmup, .seed = o->seed, .schedule = o->schedule, .free = o->free,
                                        .blas_threads = (unsigned)o->blas_threads, .force = o->force, .nccl_like = o->nccl_like,
                                        .timeline = o->trace != NULL, .interrupted = &ls_interrupted };
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
    ls_interrupts_hold();
    if (rc == LS_OK)
        rc = ls_processes_enter(cli, p, r->job.ranks, err);
    if (rc != LS_OK || p->delegated)
        return rc;
    r->how.world = p->world;
    r->silent = p->silent;
    ls_replay_setup(s, &r->compiled, &r->assignment, &r->job, o->seed, arena, &r->setup);
    struct ls_engine_options e = { .free = o->free, .seed = o->schedule, .nccl_like = o->nccl_like, .races = r->trained ? 0 : 1,
                                   .interrupted = &ls_interrupted, .world = p->world, .accounting = !r->trained && r->bytes > DATA_MAX };
    ls_replay_level(s, &e);
    r->accounting = e.accounting;
    gradients = gradients && !e.accounting && r->setup.params;
    rc = r->trained ? train(s, o, vlm, &e, arena, r, err) : ls_replay_run(&r->setup, &e, gradients, arena, &r->seen, err);
    if (rc != LS_OK || r->seen.observed.interrupted || !o->against || p->silent)
        return rc;
    ls_interrupts_release(); /* no rank runs any more */
    rc = ls_replay_predict(&r->setup, &e, gradients, arena, &r->predicted, err);
    if (rc != LS_OK)
        return rc;
    r->calls = ls_replay_calls(&r->setup, &r->seen, &r->difference);
    r->agrees = r->calls && ls_replay_agrees(&r->setup, &r->predicted, &r->seen, &r->difference);
    return LS_OK;
}

static int exit_code(const struct ls_scenario *s, const struct ls_replay_wish *o, const struct ls_replay_result *r)
{
    bool corrupted = o->nccl_like && (r->seen.observed.silent || r->seen.symbolic.corrupted);
    return ls_replay_as_expected(s, o, r) && !corrupted && r->seen.memory_equal && (!o->against || r->agrees) ? LS_OK : LS_EVIOLATED;
}

static int run(const struct ls_cli *cli, int argc, char **argv)
{
    struct ls_error err = { 0 };
    struct ls_replay_wish o;
    struct ls_replay_result r = { 0 };
    struct ls_processes p;
    struct ls_arena arena;
    struct ls_scenario written, witness, *s = &written;
    if (argc != 1)
        return ls_usage(cli, "replay takes one FILE");
    if (read_options(cli, &o, &err) != LS_OK)
        return ls_report(cli, &err);
    ls_arena_init(&arena, 0);
    struct ls_names *names = ls_names_open();
    enum ls_code rc = ls_processes_open(cli, &p, &ls_interrupted, &err);
    if (rc == LS_OK)
        rc = ls_scenario_load(argv[0], &arena, names, &written, &err);
    if (rc == LS_OK && o.witness) {
        rc = to_witness(&written, &o, &arena, names, &witness, &err);
        s = &witness;
    }
    if (rc == LS_OK)
        rc = fix_sizes(s, &o, &err);
    if (rc == LS_OK)
        rc = check_steps(s, &o, &err);
    if (rc == LS_OK)
        rc = replay(cli, s, &o, &p, &arena, &r, &err);
    rc = ls_processes_close(&p, rc, &err);
    int status = (int)rc;
    if (rc != LS_OK && !ls_interrupted && !p.silent)
        status = ls_report(cli, &err);
    else if (!ls_interrupted && !p.silent && !p.delegated) {
        if (cli->json)
            ls_replay_json(cli, s, &o, &p, &r);
        else
            ls_replay_text(cli, s, &o, &p, &r);
        status = exit_code(s, &o, &r);
    }
    char ended[64] = "";
    if (ls_interrupted && r.train.steps)
        snprintf(ended, sizeof ended, " after %zu of %zu steps", r.train.ended, r.train.warmup + r.train.steps);
    if (r.is_compiled)
        ls_compiled_release(&r.compiled);
    ls_str_release(&r.difference);
    ls_names_close(names);
    ls_arena_release(&arena);
    if (ls_interrupted && p.processes == 1) /* every thread has ended; of several processes, this may be the only one that is told: the others end with mpirun */
        fprintf(stderr, "lockstep: replay: interrupted%s; every rank has ended\n", ended);
    ls_interrupts_end();
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
            "nothing is running. Where operators are known for every statement of the model (models/tiny_*, small_* and *_run), it is trained: "
            "AdamW on batches made from the seed, and losses, norms, tokens a second and step times are printed; losses have the same bits "
            "under every schedule, and with --free. With --comm mpi the ranks are dealt out to processes: those that mpirun has started, or "
            "those that this command starts on this machine; verdict and losses are the same. When one process dies, all end. Exit status: "
            "0 completed, or as the scenario's `expect:` says; 1 not; 3 bad input; 4 a process was killed, or mpirun failed.\n\nText counts the calls of a "
            "communicator from 1, as NCCL's sequence numbers do; in JSON `call`, `segment` and `op` are indices, from 0.",
    .options = options, .examples = examples };
