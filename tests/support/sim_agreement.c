#include "sim_agreement.h"

#include "random_scenario.h"
#include "sim/simulate.h"

#include <math.h>
#include <string.h>

static bool same_at(struct ls_at a, struct ls_at b) { return a.rank == b.rank && a.segment == b.segment && a.op == b.op; }

/* The end states of the machine; what lies beyond them, no simulated run can see. */
static bool of_machine(enum ls_verdict v) { return v == LS_HANG || v == LS_MISMATCH || v == LS_MISPAIRING || v == LS_ERROR; }

static bool same_outcome(const struct ls_outcome *a, const struct ls_outcome *b)
{
    return a->verdict == b->verdict && a->diff == b->diff && a->comm == b->comm && a->group == b->group && a->position == b->position &&
           same_at(a->a, b->a) && same_at(a->b, b->b) && a->missing_rank == b->missing_rank;
}

static bool budget_adds_up(const struct ls_simulation *x, struct ls_str *why)
{
    for (size_t c = 0; c <= x->classes; c++) {
        const double *budget = c < x->classes ? x->rank_class[c].budget_s : x->budget_s;
        double sum = 0;
        for (int b = 0; b < LS_BUDGET_COUNT; b++)
            sum += budget[b];
        if (fabs(sum - x->step_s) > 1e-9 * x->step_s) {
            ls_str_printf(why, "the budget of class %zu sums to %.12g s, the step is %.12g s", c, sum, x->step_s);
            return false;
        }
    }
    return true;
}

static bool witness(struct sim_agreement *a, const struct ls_scenario *s, const struct ls_assessment *v, const struct ls_simulate_options *o,
                    struct ls_arena *arena, struct ls_str *why)
{
    struct ls_error err = { 0 };
    struct ls_simulation x;
    if (ls_simulate_witness(s, v, o, arena, &x, &err) != LS_OK) {
        ls_str_printf(why, "witness: %s", err.text);
        return false;
    }
    const struct ls_outcome *want = &v->check.witness->outcome, *got = &x.run.outcome;
    /* With few slots and any order of starts, check looked for a bad order; a clock takes one order, perhaps a good one. */
    bool some_order = v->compiled.system.level == LS_L3 && v->compiled.system.start_rule == LS_START_ANY && v->compiled.system.kernels;
    bool good = some_order && x.run.complete ? true : of_machine(v->verdict) ? !x.run.complete && got->verdict == v->verdict && same_outcome(want, got) : x.run.complete;
    if (!good)
        ls_str_printf(why, "check: %s, machine %s at %u.%u.%u; simulated: %s at %u.%u.%u", ls_verdict_name(v->verdict),
                      ls_verdict_name(want->verdict), want->a.rank, want->a.segment, want->a.op, ls_verdict_name(got->verdict), got->a.rank,
                      got->a.segment, got->a.op);
    a->witnesses += good;
    return good;
}

enum { REPLICAS_MAX = 64 }; /* runs of thousands of ranks are the bench's */

/* Sizes that simulate chose where the scenario says any: does set-up refuse them in check, too, for the same reason? */
static bool size_refused(const struct ls_scenario *s, const struct ls_simulation *x, struct ls_str *why)
{
    if (s->kind == LS_PLAN_RAW || (s->mesh.shard != LS_SIZE_ANY && s->mesh.replicate != LS_SIZE_ANY))
        return false;
    struct ls_scenario sized = *s;
    struct ls_assessment v;
    struct ls_arena arena;
    struct ls_error err = { 0 };
    ls_arena_init(&arena, 0);
    if (sized.mesh.replicate == LS_SIZE_ANY)
        sized.mesh.replicate = 2;
    const size_t gpus = x->platform.gpus;
    if (sized.mesh.shard == LS_SIZE_ANY)
        sized.mesh.shard = gpus % sized.mesh.replicate ? gpus : gpus / sized.mesh.replicate;
    bool same = ls_mesh_regroup(&sized.mesh, (struct ls_loc){ s->path, 0, 0 }, &err) == LS_OK &&
                ls_assess(&sized, &(struct ls_assess_options){ .variant = LS_AS_WRITTEN }, &arena, &v, &err) == LS_OK;
    if (same) {
        same = v.verdict == LS_SETUP_ERROR && strcmp(v.compiled.refusal.rule, x->refusal.rule) == 0;
        if (!same)
            ls_str_printf(why, "over %zu x %zu ranks check says %s; ", sized.mesh.replicate, sized.mesh.shard, ls_verdict_name(v.verdict));
        ls_assessment_release(&v);
    }
    ls_arena_release(&arena);
    return same;
}

static bool drawn(struct sim_agreement *a, const struct ls_scenario *s, const struct ls_assessment *v, struct ls_simulate_options o,
                  unsigned seeds, struct ls_str *why)
{
    for (unsigned seed = 1; seed <= seeds; seed++) {
        struct ls_arena arena;
        struct ls_error err = { 0 };
        struct ls_simulation x;
        ls_arena_init(&arena, 0);
        o.seed = seed;
        if (s->batch.execution != LS_EXEC_TABLE && s->mesh.replicate * s->mesh.shard > REPLICAS_MAX)
            o.replicas = REPLICAS_MAX;
        enum ls_code rc = ls_simulate(s, &o, &arena, &x, &err);
        if (rc == LS_OK && x.refusal.rule && size_refused(s, &x, why)) {
            a->refused++;
            ls_simulation_release(&x);
            ls_arena_release(&arena);
            return true; /* as every draw of this size */
        }
        bool good = rc == LS_OK && !x.refusal.rule && (x.run.complete || of_machine(v->verdict) || v->verdict == LS_UNDECIDED);
        if (rc != LS_OK)
            ls_str_printf(why, "draw %u: %s", seed, err.text);
        else if (!good)
            ls_str_printf(why, "draw %u: check says %s, simulated %s", seed, ls_verdict_name(v->verdict),
                          x.refusal.rule ? x.refusal.rule : ls_verdict_name(x.run.outcome.verdict));
        if (good && x.run.complete)
            good = budget_adds_up(&x, why);
        if (good)
            *(x.run.complete ? &a->complete : &a->failing) += 1;
        if (rc == LS_OK)
            ls_simulation_release(&x);
        ls_arena_release(&arena);
        if (!good)
            return false;
    }
    return true;
}

static bool agree(struct sim_agreement *a, const struct ls_scenario *s, const char *root, unsigned seeds, struct ls_arena *arena,
                  struct ls_str *why)
{
    struct ls_error err = { 0 };
    struct ls_assessment v;
    struct ls_assess_options ao = { .variant = LS_AS_WRITTEN };
    const char *platform = ls_arena_printf(arena, "%s/scenarios/platforms/h100x8.yaml", root);
    struct ls_simulate_options o = { .variant = LS_AS_WRITTEN, .platform = platform, .fold = true, .seed = 1 };
    if (ls_assess(s, &ao, arena, &v, &err) != LS_OK) {
        ls_str_printf(why, "check: %s", err.text);
        return false;
    }
    bool good = true;
    if (v.verdict == LS_SETUP_ERROR)
        a->refused++;
    else if (v.check.witness)
        good = witness(a, s, &v, &o, arena, why);
    if (good && v.verdict != LS_SETUP_ERROR && s->kind != LS_PLAN_RAW)
        good = drawn(a, s, &v, o, seeds, why);
    ls_assessment_release(&v);
    return good;
}

bool sim_agreement_file(struct sim_agreement *a, const char *path, const char *root, unsigned seeds, struct ls_str *why)
{
    struct ls_arena arena;
    struct ls_names *names = ls_names_open();
    struct ls_scenario s;
    struct ls_error err = { 0 };
    ls_arena_init(&arena, 0);
    bool good = ls_scenario_load(path, &arena, names, &s, &err) == LS_OK;
    if (good)
        good = agree(a, &s, root, seeds, &arena, why);
    else
        ls_str_printf(why, "%s", err.text);
    ls_names_close(names);
    ls_arena_release(&arena);
    return good;
}

bool sim_agreement_random(struct sim_agreement *a, uint64_t seed, const char *root, unsigned seeds, struct ls_str *why)
{
    struct ls_arena arena;
    struct ls_names *names = ls_names_open();
    struct ls_scenario s;
    struct ls_str text = { 0 };
    struct ls_error err = { 0 };
    ls_arena_init(&arena, 0);
    random_scenario(seed, &text);
    bool good = ls_scenario_read(ls_str_text(&text), text.length, "random.yaml", &arena, names, &s, &err) == LS_OK;
    if (good)
        good = agree(a, &s, root, seeds, &arena, why);
    else
        ls_str_printf(why, "%s", err.text);
    if (!good)
        ls_str_printf(why, "\n%s", ls_str_text(&text));
    ls_str_release(&text);
    ls_names_close(names);
    ls_arena_release(&arena);
    return good;
}
