#include "advise/internal.h"

#include <string.h>
#include <time.h>

static double now_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static const char *seen_as(const struct ls_assessment *a)
{
    const struct ls_witness *w = a->check.witness;
    switch (a->verdict) {
    case LS_MISMATCH:
        return ls_diff_seen_as(w->outcome.diff, op_at(&w->job, w->outcome.a), op_at(&w->job, w->outcome.b));
    case LS_MISPAIRING:
    case LS_LOST_GRADIENT:
    case LS_WRONG_SCALE:
    case LS_LAYOUT:
    case LS_RACE:
        return "silent";
    case LS_HANG:
        return "hang";
    case LS_ERROR:
    case LS_OOM:
        return "crash"; /* the ranks that raised; their peers then hang */
    case LS_SAFE:
    case LS_SETUP_ERROR:
    case LS_UNDECIDED:
    case LS_VERDICT_COUNT:
        break;
    }
    return NULL;
}

enum ls_code assess_once(const struct ls_scenario *s, const struct ls_assess_options *o, const struct ls_variant *variant,
                                struct ls_arena *arena, struct ls_assessment *out, struct ls_error *err)
{
    *out = (struct ls_assessment){ .verdict = LS_UNDECIDED };
    double start = now_seconds();
    enum ls_code rc = ls_scenario_compile(s, variant, o->force, &out->compiled, err);
    if (rc != LS_OK)
        return rc;
    if (out->compiled.refusal.rule) {
        out->verdict = LS_SETUP_ERROR;
    } else {
        struct ls_check_options check = o->check;
        check.gradients = check.gradients && s->kind != LS_PLAN_RAW;
        check.mean = s->mean;
        rc = ls_check_system(&out->compiled.system, &check, arena, &out->check, err);
        if (rc != LS_OK) {
            ls_compiled_release(&out->compiled);
            return rc;
        }
        out->verdict = out->check.verdict;
        out->seen_as = seen_as(out);
    }
    out->seconds = now_seconds() - start;
    return LS_OK;
}

/* What might be changed, in the order in which it is told: policies first, guarantees last. */
static size_t candidates(const struct ls_scenario *s, const struct ls_variant *given, struct ls_repair *out)
{
    size_t n = 0;
    struct ls_variant base = *given;
    if (s->kind == LS_PLAN_POLICY) {
        static const char *const name[] = { "frozen_sharding: root", NULL, "frozen_sharding: replicate" };
        for (int frozen = LS_FROZEN_ROOT; frozen <= LS_FROZEN_REPLICATE; frozen++) {
            if (!name[frozen])
                continue;
            out[n] = (struct ls_repair){ .variant = base, .change = name[frozen] };
            out[n++].variant.frozen_sharding = frozen;
        }
    }
    if (s->kind != LS_PLAN_RAW) {
        out[n] = (struct ls_repair){ .variant = base, .change = "run_dummy_forward: true",
                                     .note = "the dummy must cover every conditional module and enter the loss with weight 0" };
        out[n++].variant.run_dummy_forward = 1;
        bool native = s->runtime.version >= 213;
        if (s->ddp.present && !s->ddp.find_unused && base.unused_params < 0) {
            out[n] = (struct ls_repair){ .variant = base, .change = "ddp.find_unused_parameters: true",
                                         .note = "one more all-reduce a step, and a walk over the graph" };
            out[n++].variant.unused_params = LS_UNUSED_NATIVE;
        }
        if (!s->ddp.present && s->runtime.unused_params == LS_UNUSED_OFF && base.unused_params < 0) {
            out[n] = (struct ls_repair){ .variant = base, .change = native ? "unused_params: native" : "unused_params: fallback",
                                         .note = "parameters that no rank used get zero gradients: weight decay moves them" };
            out[n++].variant.unused_params = native ? LS_UNUSED_NATIVE : LS_UNUSED_FALLBACK;
        }
        if (s->batch.execution != LS_EXEC_RANK_UNIFORM && base.execution != LS_EXEC_RANK_UNIFORM) {
            out[n] = (struct ls_repair){ .variant = base, .change = "execution: rank_uniform",
                                         .note = "your sampler must guarantee it" };
            out[n++].variant.execution = LS_EXEC_RANK_UNIFORM;
        }
    }
    /* What ranks decide by themselves in the loop: each of it agreed, then all. */
    uint32_t own = s->kind == LS_PLAN_RAW || s->batch.execution == LS_EXEC_TABLE ? 0 : ls_loop_own(&s->loop) & ~base.agree;
    for (int f = 0; f < LS_LOOP_FEATURE_COUNT; f++)
        if (own >> f & 1) {
            out[n] = (struct ls_repair){ .variant = base, .change = ls_loop_repair((enum ls_loop_feature)f) };
            out[n++].variant.agree |= UINT32_C(1) << f;
        }
    if (own & (own - 1)) {
        out[n] = (struct ls_repair){ .variant = base, .change = "the loop: every decision agreed",
                                     .note = "each key of 'step' and 'loop' that lets ranks decide by themselves" };
        out[n++].variant.agree |= own;
    }
    return n;
}

/* Gradients that earlier microbatches left in another type, or unreduced, cannot meet those of the last. */
static bool could_sync(const struct ls_scenario *s, const struct ls_variant *base)
{
    bool switched = s->kind != LS_PLAN_POLICY || s->mesh.ep == 1 || ls_plan_outer_root(&s->model, &s->policy.moe);
    return s->kind != LS_PLAN_RAW && s->batch.gradient_sync.count > 1 && switched && !base->sync_every;
}

static struct ls_repair syncing(const struct ls_scenario *s, const struct ls_variant *base)
{
    struct ls_repair r = { .variant = *base, .note = "gradients are reduced in every microbatch",
                           .change = s->kind == LS_PLAN_POLICY && !s->ddp.present ? "defer_fsdp_grad_sync: false" : "accumulation.gradient_sync: true" };
    r.variant.sync_every = true;
    return r;
}

/* Two changes at once, for plans that no single one makes safe. */
static size_t pairs(const struct ls_scenario *s, const struct ls_variant *base, struct ls_arena *arena, struct ls_repair *out)
{
    size_t n = 0;
    bool agree = s->kind != LS_PLAN_RAW && s->batch.execution != LS_EXEC_RANK_UNIFORM && base->execution != LS_EXEC_RANK_UNIFORM;
    if (!could_sync(s, base))
        return 0;
    struct ls_repair sync = syncing(s, base);
    for (int with = 0; with < 2; with++) {
        if (with == 0 && !agree)
            continue;
        out[n] = sync;
        out[n].change = ls_arena_printf(arena, "%s and %s", with ? "run_dummy_forward: true" : "execution: rank_uniform", sync.change);
        out[n].note = with ? "the dummy must cover every conditional module and enter the loss with weight 0" : "your sampler must guarantee it";
        if (with)
            out[n++].variant.run_dummy_forward = 1;
        else
            out[n++].variant.execution = LS_EXEC_RANK_UNIFORM;
    }
    return n;
}

enum { CANDIDATES_MAX = 9 + LS_LOOP_FEATURE_COUNT, PAIRS_MAX = 2 };

static enum ls_code try_repair(const struct ls_scenario *s, const struct ls_assess_options *o, struct ls_arena *arena, struct ls_repair *r,
                               struct ls_assessment *a, struct ls_error *err)
{
    struct ls_assessment other;
    struct ls_assess_options plain = *o;
    struct ls_error ignored;
    plain.force = false; /* a repair that set-up refuses is none */
    enum ls_code rc = assess_once(s, &plain, &r->variant, arena, &other, &ignored);
    if (rc == LS_EBACKEND && err)
        *err = ignored;
    if (rc != LS_OK) /* a change that does not fit this scenario is no repair */
        return rc == LS_EBACKEND ? rc : LS_OK;
    r->verdict = other.verdict;
    r->proved = other.verdict == LS_SAFE && other.check.known == LS_KNOWN_PROVED;
    if (other.verdict == LS_SAFE)
        a->repair[a->repairs++] = *r;
    ls_compiled_release(&other.compiled);
    return LS_OK;
}

static enum ls_code find_repairs(const struct ls_scenario *s, const struct ls_assess_options *o, struct ls_arena *arena,
                                 struct ls_assessment *a, struct ls_error *err)
{
    struct ls_repair tried[CANDIDATES_MAX], both[PAIRS_MAX];
    size_t n = candidates(s, &o->variant, tried);
    if (a->verdict == LS_ERROR && could_sync(s, &o->variant))
        tried[n++] = syncing(s, &o->variant);
    a->repair = LS_NEW(arena, struct ls_repair, n + PAIRS_MAX);
    enum ls_code rc = LS_OK;
    for (size_t i = 0; i < n && rc == LS_OK; i++)
        rc = try_repair(s, o, arena, &tried[i], a, err);
    size_t more = a->repairs ? 0 : pairs(s, &o->variant, arena, both);
    for (size_t i = 0; i < more && rc == LS_OK; i++)
        rc = try_repair(s, o, arena, &both[i], a, err);
    return rc;
}

enum ls_code ls_assess(const struct ls_scenario *s, const struct ls_assess_options *o, struct ls_arena *arena,
                       struct ls_assessment *out, struct ls_error *err)
{
    enum ls_code rc = assess_once(s, o, &o->variant, arena, out, err);
    if (rc != LS_OK)
        return rc;
    out->variant = o->variant;
    if (s->manifest && !out->compiled.refusal.rule)
        rc = assess_data(s, o, arena, out, err);
    if (rc == LS_OK && o->repairs && out->verdict != LS_SAFE && out->verdict != LS_UNDECIDED && s->kind != LS_PLAN_RAW)
        rc = find_repairs(s, o, arena, out, err);
    if (rc != LS_OK)
        ls_assessment_release(out);
    return rc;
}

void ls_assessment_release(struct ls_assessment *a)
{
    ls_compiled_release(&a->compiled);
    *a = (struct ls_assessment){ 0 };
}

static size_t witness_ranks(const struct ls_assessment *a)
{
    return a->check.witness ? a->check.witness->job.ranks : 0;
}

enum op_text { OP_KIND, OP_PAYLOAD, OP_UNIT };

static const char *op_text(const struct ls_tables *t, const struct ls_op *op, enum op_text which)
{
    switch (which) {
    case OP_KIND:
        return ls_op_kind_name((enum ls_op_kind)op->kind);
    case OP_PAYLOAD:
        return op->payload == LS_NO_ID ? "" : ls_tables_name(t, t->payload.at[op->payload].name);
    case OP_UNIT:
        return op->unit == LS_NO_ID ? "" : ls_tables_name(t, op->unit);
    }
    return "";
}

/* The ops that the verdict is about: does the text of one of them match? */
static bool any_matches(const struct ls_assessment *a, const char *want, enum op_text which)
{
    const struct ls_witness *w = a->check.witness;
    const struct ls_tables *t = &a->compiled.tables;
    const struct ls_at ats[] = { w->outcome.a, w->outcome.b };
    for (size_t i = 0; i < 2; i++) {
        if (ats[i].segment == LS_NO_ID) /* a missing partner has a rank, but no op */
            continue;
        const struct ls_op *op = op_at(&w->job, ats[i]);
        if (strcmp(op_text(t, op, which), want) == 0)
            return true;
    }
    return false;
}

bool ls_as_expected(const struct ls_scenario *s, const struct ls_assessment *a, struct ls_str *why)
{
    const struct ls_expect *e = &s->expect;
    enum ls_verdict want = e->present ? e->verdict : LS_SAFE;
    if (a->verdict != want) {
        ls_str_printf(why, "verdict is %s, expected %s", ls_verdict_name(a->verdict), ls_verdict_name(want));
        return false;
    }
    if (!e->present)
        return true;
    if (e->rule && (!a->compiled.refusal.rule || strcmp(a->compiled.refusal.rule, e->rule) != 0)) {
        ls_str_printf(why, "rule is %s, expected %s", a->compiled.refusal.rule ? a->compiled.refusal.rule : "none", e->rule);
        return false;
    }
    if (e->seen_as && (!a->seen_as || strcmp(a->seen_as, e->seen_as) != 0)) {
        ls_str_printf(why, "seen as %s, expected %s", a->seen_as ? a->seen_as : "nothing", e->seen_as);
        return false;
    }
    if (e->ranks && witness_ranks(a) != e->ranks) {
        ls_str_printf(why, "the witness has %zu ranks, expected %llu", witness_ranks(a), (unsigned long long)e->ranks);
        return false;
    }
    if (e->microbatches && witness_microbatches(a) != e->microbatches) {
        ls_str_printf(why, "the witness has %zu microbatches, expected %llu", witness_microbatches(a),
                      (unsigned long long)e->microbatches);
        return false;
    }
    if ((e->op || e->payload || e->unit) && !a->check.witness) {
        ls_str_add(why, "there is no witness");
        return false;
    }
    if (e->op && !any_matches(a, e->op, OP_KIND)) {
        ls_str_printf(why, "no op of the violation is '%s'", e->op);
        return false;
    }
    if (e->payload && !any_matches(a, e->payload, OP_PAYLOAD)) {
        ls_str_printf(why, "no op of the violation carries '%s'", e->payload);
        return false;
    }
    if (e->unit && !any_matches(a, e->unit, OP_UNIT)) {
        ls_str_printf(why, "no op of the violation belongs to unit '%s'", e->unit);
        return false;
    }
    return true;
}
