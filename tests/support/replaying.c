#include "replaying.h"

#include "base/hash.h"
#include "processes.h"
#include "random_scenario.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool wrong(struct ls_str *why, const char *what, const char *detail)
{
    ls_str_printf(why, "%s: %s\n", what, detail);
    return false;
}

/* Deals the ranks out to all processes, if that is possible. */
static bool deal_out(struct replaying *t, size_t ranks)
{
    size_t per = (ranks + t->world->processes - 1) / t->world->processes;
    bool fits = (ranks + per - 1) / per == t->world->processes;
    t->world->ranks_per_process = per;
    t->together += fits;
    t->unfit += !fits;
    return fits;
}

static bool run_together(struct replaying *t, const struct ls_engine_setup *setup, const struct ls_engine_options *o, bool gradients,
                         struct ls_arena *arena, const struct ls_replay *one, const struct ls_prediction *p, struct ls_str *why)
{
    struct ls_engine_options again = *o;
    struct ls_replay r;
    struct ls_error err = { 0 };
    if (!deal_out(t, setup->job->ranks))
        return true;
    again.world = t->world;
    if (ls_replay_run(setup, &again, gradients, arena, &r, &err) != LS_OK)
        return wrong(why, "not run together", err.text);
    if (!processes_one_end(o)) /* which of several ends it is, is decided by the order of starts in every process */
        return ls_replay_agrees(setup, p, &r, why);
    return replays_equal(setup, one, &r, why) || wrong(why, "other processes saw something else", "");
}

bool replaying_again(struct replaying *t, const struct ls_engine_setup *setup, const struct ls_engine_options *o, bool gradients,
                     struct ls_arena *arena, const struct ls_replay *r, const struct ls_prediction *p, struct ls_str *why)
{
    struct ls_error err = { 0 };
    if (t->world && !run_together(t, setup, o, gradients, arena, r, p, why))
        return false;
    for (int nccl = 0; nccl < (processes_one_end(o) ? 2 : 1) && t->spread; nccl++) { /* what NCCL would make of any order is not predicted */
        struct ls_engine_options again = *o;
        struct ls_replay one = *r;
        uint64_t random = ls_hash_mix(o->seed, ++t->spreads);
        again.nccl_like = nccl;
        if (nccl && ls_replay_run(setup, &again, gradients, arena, &one, &err) != LS_OK)
            return wrong(why, "not run as NCCL would", err.text);
        if (!processes_replay(setup, &again, gradients, 1 + ls_random_below(&random, setup->job->ranks), random, &one, p, &t->messages, why))
            return wrong(why, "spread over processes", nccl ? "as NCCL would" : "");
    }
    return true;
}

/* One run against its prediction. */
static bool run_once(struct replaying *t, const struct ls_engine_setup *setup, const struct ls_engine_options *o, bool gradients,
                     bool fault, struct ls_arena *arena, struct ls_str *why)
{
    struct ls_prediction p;
    struct ls_replay r;
    struct ls_error err = { 0 };
    gradients = gradients && setup->params && !o->accounting && !fault; /* a fault on one rank leaves it its own idea of its gradients */
    enum ls_code predicted = ls_replay_predict(setup, o, gradients, arena, &p, &err);
    if (predicted != LS_OK)
        return wrong(why, "not predicted", err.text);
    if (ls_replay_run(setup, o, gradients, arena, &r, &err) != LS_OK)
        return wrong(why, "not run", err.text);
    t->seen[t->last = r.verdict]++;
    t->schedules++;
    t->gradients += r.symbolic.gradients;
    t->elements += r.symbolic.parameters;
    if (!ls_replay_agrees(setup, &p, &r, why) || !ls_replay_calls(setup, &r, why)) {
        const struct ls_symbolic_problem *x = &r.symbolic.problem;
        if (x->present)
            ls_str_printf(why, "; rank %u, step %u, '%s'[%llu] is %g, not %g\n", x->rank, x->step, ls_tables_name(setup->job->tables, setup->param[x->param].name),
                          (unsigned long long)x->element, x->found, x->expected);
        return false;
    }
    if (!r.memory_equal)
        return wrong(why, "memory", "the peaks of the program and of the engine differ");
    if (!replaying_again(t, setup, o, gradients, arena, &r, &p, why))
        return false;
    if (r.symbolic.corrupted && !fault) /* a rank that left out a gather computes with what it finds */
        return wrong(why, "data", "a gathered parameter is not what it should be");
    return true;
}

/* One rank leaves something out, does two things in the wrong order, asks for another size, or leaves. */
static void add_fault(struct ls_job *job, uint64_t *random, struct ls_arena *arena)
{
    uint32_t rank = (uint32_t)ls_random_below(random, job->ranks);
    size_t segment = ls_random_below(random, job->rank[rank].count);
    const struct ls_segment *from = job->rank[rank].segment[segment];
    size_t list[4096], n = 0;
    for (size_t i = 0; i < from->count && n < 4096; i++) {
        /* What follows a decide is counted by it: its length stays. */
        if (from->op[i].kind == LS_OP_DECIDE)
            return;
        if (ls_op_is_collective(&from->op[i]))
            list[n++] = i;
    }
    if (!n)
        return;
    struct ls_segment *s = LS_NEW(arena, struct ls_segment, 1);
    struct ls_op *op = LS_NEW(arena, struct ls_op, from->count + 1);
    size_t at = list[ls_random_below(random, n)], other = list[ls_random_below(random, n)];
    memcpy(op, from->op, from->count * sizeof *op);
    s->count = from->count;
    switch (ls_random_below(random, 5)) {
    case 0:
        memmove(&op[at], &op[at + 1], (from->count - at - 1) * sizeof *op);
        s->count--;
        break;
    case 1: {
        struct ls_op keep = op[at];
        op[at] = op[other];
        op[other] = keep;
        break;
    }
    case 2:
        op[at].count += 1 + ls_random_below(random, 3);
        break;
    case 3:
        op[at].payload = op[other].payload;
        break;
    default:
        memmove(&op[at + 1], &op[at], (from->count - at) * sizeof *op);
        op[at] = ls_op_make(LS_OP_STOP);
        s->count++;
        break;
    }
    s->op = op;
    s->hash = ls_segment_hash(s->op, s->count);
    const struct ls_segment **all = ls_arena_copy(arena, job->rank[rank].segment, job->rank[rank].count * sizeof *all);
    all[segment] = s;
    job->rank[rank].segment = all;
}

static void replace(struct ls_str *s, const char *what, const char *with)
{
    struct ls_str out = { 0 };
    const char *from = ls_str_text(s), *at;
    while ((at = strstr(from, what))) {
        ls_str_addn(&out, from, (size_t)(at - from));
        ls_str_add(&out, with);
        from = at + strlen(what);
    }
    ls_str_add(&out, from);
    ls_str_release(s);
    *s = out;
}

/* The random scenarios are of any size; these have sizes, and sometimes dtypes and small reshard groups. */
static void with_sizes(struct ls_str *text, uint64_t *random, struct ls_scenario *s, bool before)
{
    static const size_t shard[] = { 2, 3, 4, 1 }, replicate[] = { 2, 3, 2 };
    static size_t chosen;
    if (before) {
        chosen = ls_random_below(random, 4);
        if (ls_random_below(random, 4) == 0)
            replace(text, "dtype: f32", "dtype: bf16");
        if (shard[chosen] == 4 && ls_random_below(random, 2) == 0)
            replace(text, "reshard: true", "reshard: 2");
        if (!strstr(ls_str_text(text), "all_reduce: last") && ls_random_below(random, 2) == 0) /* partial sums of replicas */
            replace(text, "gradient_sync: last", "gradient_sync: true, all_reduce: last");
        return;
    }
    if (s->mesh.shard == LS_SIZE_ANY)
        s->mesh.shard = shard[chosen];
    if (s->mesh.replicate == LS_SIZE_ANY)
        s->mesh.replicate = replicate[ls_random_below(random, 3)];
}

bool replaying_seed(struct replaying *t, uint64_t seed, unsigned schedules, struct ls_str *why)
{
    struct ls_str text = { 0 };
    uint64_t random = ls_hash_mix(seed, 4711);
    struct ls_arena arena;
    struct ls_error err = { 0 };
    struct ls_scenario s;
    struct ls_compiled c;
    struct ls_assignment a;
    struct ls_job job;
    struct ls_engine_setup setup;
    struct ls_variant as_written = LS_AS_WRITTEN;
    bool ok = true, compiled = false;
    random_scenario(seed, &text);
    ls_arena_init(&arena, 0);
    struct ls_names *names = ls_names_open();
    with_sizes(&text, &random, NULL, true);
    if (ls_scenario_read(text.text, text.length, "random.yaml", &arena, names, &s, &err) != LS_OK) {
        ok = wrong(why, "not read", err.text);
        goto out;
    }
    with_sizes(&text, &random, &s, false);
    if (s.mesh.shard * s.mesh.replicate < 2)
        s.mesh.shard = 2;
    if (ls_scenario_compile(&s, &as_written, true, &c, &err) != LS_OK) {
        ok = wrong(why, "not compiled", err.text);
        goto out;
    }
    compiled = true;
    if (c.refusal.rule) {
        t->refused++;
        goto out;
    }
    if (ls_replay_assignment(&c, 1 + ls_random_below(&random, 2), seed, &arena, &a, &err) != LS_OK ||
        ls_system_job(&c.system, &a, &arena, &job, &err) != LS_OK) {
        ok = wrong(why, "no run", err.text);
        goto out;
    }
    bool fault = ls_random_below(&random, 3) == 0;
    if (fault)
        add_fault(&job, &random, &arena);
    t->faults += fault;
    ls_replay_setup(&s, &c, &a, &job, seed, &arena, &setup);
    for (unsigned i = 0; i < (schedules ? schedules : 1) && ok; i++) {
        struct ls_engine_options o = { .free = !schedules, .seed = i ? ls_hash_mix(seed, i) : 0, .poison = true, .races = 4 };
        ok = run_once(t, &setup, &o, true, fault, &arena, why);
        if (!ok)
            ls_str_printf(why, "schedule %u, %zu ranks, %zu x %zu\n", i, job.ranks, a.size[0], a.size[1]);
    }
out:
    if (!ok)
        ls_str_printf(why, "\n%s", ls_str_text(&text));
    if (compiled)
        ls_compiled_release(&c);
    ls_str_release(&text);
    ls_names_close(names);
    ls_arena_release(&arena);
    return ok;
}

/* Under several schedules; at L3, where the order of starts decides, until one ends as it should. */
static bool run_schedules(struct replaying *t, const struct ls_engine_setup *setup, const struct ls_engine_options *options, bool gradients,
                          enum ls_verdict want, struct ls_arena *arena, struct ls_str *why)
{
    enum { SCHEDULES = 3, STARTS_MAX = 1000 };
    struct ls_engine_options o = *options;
    bool any = o.resident && o.kernels && o.start == LS_START_ANY && want != LS_UNDECIDED && want != LS_SAFE, met = false;
    for (uint64_t seed = 0; seed < (o.accounting ? 1 : SCHEDULES) || (any && !met && seed < STARTS_MAX); seed++) {
        o.seed = seed;
        if (!run_once(t, setup, &o, gradients, false, arena, why))
            return false;
        met = met || t->last == want;
    }
    return !any || met || wrong(why, "no order of starts ended as predicted", ls_verdict_name(want));
}

static bool replay_scenario(struct replaying *t, struct ls_scenario *s, const struct ls_variant *variant, enum ls_verdict want,
                            uint64_t bytes_max, struct ls_arena *arena, struct ls_str *why)
{
    struct ls_compiled c;
    struct ls_assignment a;
    struct ls_job job;
    struct ls_engine_setup setup;
    struct ls_error err = { 0 };
    struct ls_prediction p;
    if (s->kind != LS_PLAN_RAW) {
        if (s->mesh.shard == LS_SIZE_ANY)
            s->mesh.shard = s->mesh.ep > 1 ? 2 * s->mesh.ep : 2; /* two expert groups */
        if (s->mesh.ep_shard == LS_SIZE_ANY)
            s->mesh.ep_shard = 2;
        if (s->mesh.replicate == LS_SIZE_ANY)
            s->mesh.replicate = 2;
    }
    if (ls_scenario_compile(s, variant, true, &c, &err) != LS_OK)
        return wrong(why, "not compiled", err.text);
    bool ok = true, gradients = s->kind != LS_PLAN_RAW;
    uint64_t bytes = s->kind == LS_PLAN_RAW ? 0 : 4 * ls_model_elements(&s->model);
    struct ls_engine_options o = { .poison = true, .races = 4, .accounting = bytes > bytes_max };
    ls_replay_level(s, &o);
    if (c.refusal.rule) {
        t->refused++;
    } else if (ls_replay_assignment(&c, 1, 1, arena, &a, &err) != LS_OK || ls_system_job(&c.system, &a, arena, &job, &err) != LS_OK) {
        ok = wrong(why, "no run", err.text);
    } else {
        ls_replay_setup(s, &c, &a, &job, 1, arena, &setup);
        bool unseen = (o.accounting || !setup.params) && (want == LS_LOST_GRADIENT || want == LS_WRONG_SCALE);
        t->left_out[REPLAYING_NO_DATA] += o.accounting;
        t->left_out[REPLAYING_UNSEEN] += unseen;
        if (want != LS_UNDECIDED && !unseen) {
            ok = ls_replay_predict(&setup, &o, gradients, arena, &p, &err) == LS_OK && p.verdict == want;
            if (!ok)
                wrong(why, ls_verdict_name(want), ls_verdict_name(p.verdict));
        }
        ok = ok && run_schedules(t, &setup, &o, gradients, want, arena, why);
    }
    ls_compiled_release(&c);
    return ok;
}

bool replaying_file(struct replaying *t, const char *path, uint64_t bytes_max, enum replaying_repairs repairs, struct ls_str *why)
{
    struct ls_arena arena;
    struct ls_scenario s, w;
    struct ls_assessment a;
    struct ls_error err = { 0 };
    struct ls_str text = { 0 };
    struct ls_assess_options o = { .variant = LS_AS_WRITTEN, .repairs = repairs != REPLAYING_NONE };
    struct ls_variant as_written = LS_AS_WRITTEN;
    ls_arena_init(&arena, 0);
    struct ls_names *names = ls_names_open();
    o.check.gradients = true;
    o.check.races = true;
    bool ok = true, assessed = false, loaded = ls_scenario_load(path, &arena, names, &s, &err) == LS_OK;
    enum { RANKS_MAX = 64, FEWER = 8 }; /* jobs of thousands of ranks are for the simulator: the same plan on fewer */
    if (loaded && s.batch.execution != LS_EXEC_TABLE && s.mesh.shard > RANKS_MAX) {
        s.mesh.shard = FEWER;
        t->left_out[REPLAYING_OTHERS]++;
    }
    if (loaded && repairs == REPLAYING_SMALL)
        o.repairs = s.kind != LS_PLAN_RAW && 4 * ls_model_elements(&s.model) <= bytes_max;
    if (!loaded || ls_assess(&s, &o, &arena, &a, &err) != LS_OK) {
        ok = wrong(why, path, err.text);
        goto out;
    }
    assessed = true;
    t->files[a.verdict]++;
    if (a.verdict == LS_SETUP_ERROR || a.verdict == LS_UNDECIDED) {
        t->left_out[a.verdict == LS_UNDECIDED ? REPLAYING_UNDECIDED : REPLAYING_REFUSED]++;
        goto out;
    }
    if (a.verdict == LS_SAFE) {
        ok = replay_scenario(t, &s, &as_written, LS_SAFE, bytes_max, &arena, why);
    } else if (!a.check.witness) {
        ok = wrong(why, path, "unsafe, without a run that fails");
    } else if (s.kind != LS_PLAN_RAW) {
        if (ls_witness_scenario(&s, &a, &arena, &text, &err) != LS_OK ||
            ls_scenario_read(text.text, text.length, path, &arena, names, &w, &err) != LS_OK)
            ok = wrong(why, path, err.text);
        else
            ok = replay_scenario(t, &w, &as_written, a.verdict, bytes_max, &arena, why);
    } else {
        struct ls_engine_setup setup;
        struct ls_engine_options run = { .poison = true, .races = 4 };
        ls_replay_level(&s, &run);
        ls_replay_setup(&s, &a.compiled, &a.check.witness->assignment, &a.check.witness->job, 1, &arena, &setup);
        ok = run_schedules(t, &setup, &run, false, a.verdict, &arena, why) && (t->last == a.verdict || run.resident || wrong(why, path, "another verdict"));
    }
    for (size_t i = 0; i < a.repairs && ok; i++) {
        struct ls_scenario again;
        ok = ls_scenario_load(path, &arena, names, &again, &err) == LS_OK &&
             replay_scenario(t, &again, &a.repair[i].variant, LS_SAFE, bytes_max, &arena, why);
        if (!ok)
            wrong(why, a.repair[i].change, err.text);
    }
out:
    if (!ok)
        wrong(why, path, "");
    if (assessed)
        ls_assessment_release(&a);
    ls_str_release(&text);
    ls_names_close(names);
    ls_arena_release(&arena);
    return ok;
}

static bool same_training(const struct ls_train *a, const struct ls_train *b, const struct ls_model *m, struct ls_str *why)
{
    if (a->verdict != LS_SAFE || b->verdict != LS_SAFE || a->ended != b->ended || !a->ended || a->params != b->params)
        return wrong(why, ls_verdict_name(a->verdict), ls_verdict_name(b->verdict));
    for (size_t i = 0; i < a->ended; i++) {
        const struct ls_train_step *x = &a->step[i], *y = &b->step[i];
        if (memcmp(&x->loss, &y->loss, sizeof x->loss) != 0 || memcmp(&x->norm, &y->norm, sizeof x->norm) != 0 || !(y->seconds > 0))
            return wrong(why, "a step", "its loss or norm differ, or it has no time");
    }
    size_t compared = 0;
    for (size_t i = 0; i < a->params; i++) {
        if (!a->weight[i])
            continue;
        compared++;
        if (memcmp(a->weight[i], b->weight[i], (size_t)m->param[i].elements * sizeof **a->weight) != 0)
            return wrong(why, "weights differ", ls_name_text(m->names, m->param[i].name));
    }
    return compared > 0 || wrong(why, "weights", "none was compared");
}

bool replaying_training(struct replaying *t, const char *path, bool free, struct ls_str *why)
{
    struct ls_arena arena;
    struct ls_scenario s;
    struct ls_error err = { 0 };
    struct ls_train_case c = { 0 };
    struct ls_train one, all;
    struct ls_variant as_written = LS_AS_WRITTEN;
    struct ls_train_options o = { .steps = 2, .seed = 5, .free = free, .weights = true };
    ls_arena_init(&arena, 0);
    struct ls_names *names = ls_names_open();
    bool ok = ls_scenario_load(path, &arena, names, &s, &err) == LS_OK && ls_train_prepare(&s, &as_written, &o, &arena, &c, &err) == LS_OK &&
              ls_train_run(&c, &o, &arena, &one, &err) == LS_OK;
    if (ok && deal_out(t, one.ranks)) {
        o.world = t->world;
        o.schedule = 7 + t->world->number;
        ok = ls_train_run(&c, &o, &arena, &all, &err) == LS_OK && same_training(&one, &all, c.vlm->model, why);
    }
    if (!ok)
        wrong(why, path, err.text);
    ls_train_release(&c);
    ls_names_close(names);
    ls_arena_release(&arena);
    return ok;
}

bool replaying_text(struct replaying *t, const char *text, const char *path, struct ls_str *why)
{
    struct ls_arena arena;
    struct ls_scenario s;
    struct ls_error err = { 0 };
    struct ls_variant as_written = LS_AS_WRITTEN;
    ls_arena_init(&arena, 0);
    struct ls_names *names = ls_names_open();
    bool ok = ls_scenario_read(text, strlen(text), path, &arena, names, &s, &err) == LS_OK || wrong(why, "not read", err.text);
    ok = ok && replay_scenario(t, &s, &as_written, LS_SAFE, UINT64_MAX, &arena, why);
    ls_names_close(names);
    ls_arena_release(&arena);
    return ok;
}

#define REPLAYING_TEXT(id, text) text,
void replaying_print(const struct replaying *t, const char *what)
{
    if (t->world)
        printf("%s: %zu runs repeated by %zu processes, %zu that do not fit them\n", what, t->together, t->world->processes, t->unfit);
    if (t->spread)
        printf("%s: %zu runs spread over processes, %zu messages\n", what, t->spreads, t->messages);
    printf("%s: %zu runs agree, %zu with faults, %zu refused, %zu gradient and %zu parameter elements compared;", what, t->schedules,
           t->faults, t->refused, t->gradients, t->elements);
    for (size_t v = 0; v < LS_VERDICT_COUNT; v++)
        if (t->seen[v])
            printf(" %s %zu", ls_verdict_name((enum ls_verdict)v), t->seen[v]);
    printf("\n");
    if (t->bounded)
        printf("  %zu runs at L3, %zu where the order of starts matters; %zu races compared; %zu jobs that the engine does not run\n", t->bounded, t->orders,
               t->races, t->unsupported);
    for (size_t v = 0, any = 0; v < LS_VERDICT_COUNT; v++)
        if (t->files[v])
            printf("%s %s %zu", any++ ? "" : "  files by verdict:", ls_verdict_name((enum ls_verdict)v), t->files[v]);
    static const char *const text[] = { REPLAYING_LEFT_OUT(REPLAYING_TEXT) };
    for (size_t i = 0; i < REPLAYING_LEFT_OUT_COUNT; i++)
        if (t->left_out[i])
            printf("\n  %zu: %s", t->left_out[i], text[i]);
    printf("\n");
    fflush(stdout);
}
