/* What set-up refuses under the proposed rules, on the dense and on the expert-parallel path. The facts stay apart: the resolver says which modules are conditional, freezing
 * what trains, the batch contract whether ranks may differ, the policy what to do about it; here they are compared. */
#include "base/hash.h"
#include "scenario/internal.h"

#include <assert.h>

struct facts {
    const struct setup *in;
    const struct ls_model *model;
    struct ls_arena *arena;
    struct ls_letters letters;
    struct ls_contract contract;
    uint32_t dims;
};

static const struct ls_modality_policy *policy_of(const struct facts *f, uint32_t modality)
{
    for (size_t i = 0; i < f->in->policy->modalities; i++)
        if (f->in->policy->modality[i].modality == modality)
            return &f->in->policy->modality[i];
    return NULL;
}

static struct ls_dummy_forward *dummy_of(const struct facts *f, uint32_t modality)
{
    for (size_t i = 0; i < f->in->batch->dummies; i++)
        if (f->in->batch->dummy[i].modality == modality)
            return &f->in->batch->dummy[i];
    return NULL;
}

static bool covers(const struct ls_dummy_forward *d, uint32_t role)
{
    for (size_t i = 0; d && i < d->roles; i++)
        if (d->role[i] == role)
            return true;
    return false;
}

/* What a letter runs inside a module: a hash of the calls, in order. */
struct run { const struct facts *f; const struct ls_letter *letter; uint32_t module; uint32_t dummy; uint64_t hash; };

static void run_flow(struct run *r, const struct ls_flow *flow, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const struct ls_flow *s = &flow[i];
        unsigned times = 1;
        if (s->kind == LS_FLOW_WHEN) {
            unsigned held = 0, conditions = 0;
            for (unsigned c = 0; c < LS_CONDITIONS_MAX; c++)
                if ((s->when | s->unless) >> c & 1) {
                    conditions++;
                    held += r->letter->count[c];
                }
            times = s->unless ? held == 0 : conditions > 1 ? held > 0 : held;
            if (s->when && !held && (s->when & r->dummy))
                times = 1;
        } else if (s->kind == LS_FLOW_CALL && ls_module_contains(r->f->model, r->module, s->module)) {
            r->hash = ls_hash_mix(r->hash, s->module);
        }
        for (unsigned t = 0; t < times; t++)
            run_flow(r, s->body, s->count);
    }
}

/* AS_IS: the dummies that run. WISHED: as if the modality had one that covers the module. */
enum dummies { WITHOUT, AS_IS, WISHED };

/* The condition of the module's modality that a dummy would stand in for. */
static uint32_t wished_dummy(const struct facts *f, uint32_t letter, uint32_t module)
{
    const struct ls_specs *specs = &f->in->s->specs;
    uint32_t modality = 0, mask = 0;
    for (size_t i = 0; i < specs->count; i++)
        if (specs->spec[i].module == module)
            modality = specs->spec[i].modality;
    for (uint32_t c = 0; c < f->model->conditions; c++) {
        bool any = false;
        if (f->model->condition[c].modality != modality)
            continue;
        if (f->letters.letter[letter].count[c])
            return 0;
        for (size_t l = 0; l < f->letters.count; l++)
            any = any || f->letters.letter[l].count[c];
        mask = any && !mask ? UINT32_C(1) << c : mask;
    }
    return mask;
}

static uint64_t run_letter(const struct facts *f, uint32_t letter, uint32_t module, enum dummies dummy)
{
    const struct ls_letter *l = &f->letters.letter[letter];
    struct run r = { f, l, module, dummy == WISHED ? wished_dummy(f, letter, module) : dummy == AS_IS ? l->dummy : 0, 1 };
    run_flow(&r, &f->model->flow, 1);
    return r.hash;
}

/* May members of a group over `dims` hold the two letters in one round? */
static bool may_meet(const struct facts *f, uint32_t dims, uint32_t a, uint32_t b)
{
    size_t level = 0;
    for (size_t i = 1; i < f->contract.levels; i++)
        if (!(f->contract.dims[i] & dims))
            level = i;
    const uint32_t *class_of = f->contract.class_of[level];
    return class_of ? class_of[a] == class_of[b] : a == b;
}

/* May two ranks of a group over `dims` run different things inside the module? `presence`: is one of them without any? */
static bool may_differ_in(const struct facts *f, uint32_t module, uint32_t dims, enum dummies dummy, bool presence)
{
    const struct ls_contract *c = &f->contract;
    if (!(dims & f->dims))
        return false;
    uint64_t *hash = LS_NEW(f->arena, uint64_t, f->letters.count);
    for (uint32_t i = 0; i < f->letters.count; i++)
        hash[i] = run_letter(f, i, module, dummy);
    for (uint32_t i = 0; presence && i < f->letters.count; i++)
        hash[i] = hash[i] != 1; /* nothing was mixed in */
    if (c->extra == LS_CONTRACT_TABLE) {
        size_t shard = f->in->s->mesh.shard;
        for (size_t r = 0; r < c->rows; r++)
            for (size_t x = 1; x < c->columns; x++) {
                size_t other = dims & LS_DIM_REPLICATE ? 0 : x - x % shard;
                if (hash[c->table[r * c->columns + x]] != hash[c->table[r * c->columns + other]])
                    return true;
            }
        return false;
    }
    for (uint32_t a = 0; a < f->letters.count; a++)
        for (uint32_t b = 0; b < a; b++)
            if (hash[a] != hash[b] && may_meet(f, dims, a, b))
                return true;
    return false;
}

static bool may_differ(const struct facts *f, uint32_t module, uint32_t dims, bool dummy)
{
    return may_differ_in(f, module, dims, dummy ? AS_IS : WITHOUT, false);
}

/* Trainable parameters of a module, those of specs nested in it left out: they answer for themselves. */
static bool trains(const struct facts *f, const struct ls_spec *spec)
{
    const struct ls_specs *specs = &f->in->s->specs;
    const struct ls_model *m = f->model;
    for (uint32_t at = spec->module; at < spec->module + m->module[spec->module].subtree; at++) {
        bool nested = false;
        for (size_t i = 0; i < specs->count; i++)
            nested = nested || (specs->spec[i].module != spec->module && ls_module_contains(m, spec->module, specs->spec[i].module) &&
                                ls_module_contains(m, specs->spec[i].module, at));
        for (uint32_t p = m->module[at].first_param; !nested && p < m->module[at].first_param + m->module[at].params; p++)
            if (f->in->s->final[m->param[p].canonical])
                return true;
    }
    return false;
}

/* Some item of a list lies in it: those are units of their own, unless it is frozen and the policy keeps it together. */
static bool has_items(const struct facts *f, const struct ls_spec *spec)
{
    const struct ls_model *m = f->model;
    for (uint32_t at = spec->module + 1; at < spec->module + m->module[spec->module].subtree; at++)
        if (m->module[m->module[at].parent].container != LS_NOT_CONTAINER)
            return true;
    return false;
}

static bool expert_path(const struct facts *f) { return f->in->s->mesh.ep > 1; }

/* The expert-parallel path looks at the outermost modules only; what lies inside shares their fate. */
static const struct ls_spec *outermost(const struct facts *f, const struct ls_spec *spec)
{
    const struct ls_specs *specs = &f->in->s->specs;
    for (size_t i = 0; expert_path(f) && i < specs->count; i++)
        if (specs->spec[i].module < spec->module && ls_module_contains(f->model, specs->spec[i].module, spec->module))
            return &specs->spec[i]; /* in tree order: the first that contains it is the outermost */
    return spec;
}

/* Frozen, and made into units of its own by `per_layer`: its list items; on the expert-parallel path the whole module if it has none. */
static bool frozen_per_layer(const struct facts *f, const struct ls_spec *spec)
{
    const struct ls_spec *outer = outermost(f, spec);
    const struct ls_modality_policy *p = policy_of(f, outer->modality);
    return (p && p->has_frozen ? p->frozen : f->in->policy->frozen) == LS_FROZEN_PER_LAYER &&
           (has_items(f, spec) || (expert_path(f) && outer == spec)) &&
           ls_module_fully_frozen(f->model, outer->module, f->in->s->at_sharding);
}

/* On the expert-parallel path whatever is not fully frozen when it is sharded is a unit, even if it is frozen later. */
static bool unit_of_its_own(const struct facts *f, const struct ls_spec *spec)
{
    return expert_path(f) ? !ls_module_fully_frozen(f->model, outermost(f, spec)->module, f->in->s->at_sharding) : has_items(f, spec);
}

/* The number of the first call inside a module, in the flow's order. */
static size_t first_call(const struct facts *f, uint32_t module)
{
    for (size_t i = 1; i < f->model->statements; i++)
        if (f->model->statement[i]->kind == LS_FLOW_CALL && ls_module_contains(f->model, module, f->model->statement[i]->module))
            return i;
    return f->model->statements;
}

/* Does something of the modality that trains run before it, and so hand it values with gradient? */
static bool is_fed_gradient(const struct facts *f, const struct ls_spec *spec)
{
    const struct ls_specs *specs = &f->in->s->specs;
    for (size_t i = 0; i < specs->count; i++)
        if (&specs->spec[i] != spec && specs->spec[i].modality == spec->modality && trains(f, &specs->spec[i]) &&
            first_call(f, specs->spec[i].module) < first_call(f, spec->module))
            return true;
    return false;
}

/* Does it show how often a unit is called in a microbatch? Not if its first call leaves it gathered, and no call's backward frees it, which
 * happens where gradient goes through it. */
static bool calls_show(const struct facts *f, const struct ls_spec *spec)
{
    const struct ls_policy *p = f->in->policy;
    return !expert_path(f) || is_fed_gradient(f, spec) ||
           (p->reshard == LS_RESHARD_DEFAULT ? p->moe.reshard : p->reshard != LS_RESHARD_FALSE);
}

/* May ranks run a trainable module unequally, in a way that its collectives show? With units of its own the number of its calls counts;
 * in the root only whether there is a gradient. */
static bool trains_unequally(const struct facts *f, const struct ls_spec *spec, enum dummies dummy)
{
    const bool own = unit_of_its_own(f, spec), training = trains(f, spec); /* not training: only gathered, over dp_shard */
    return (training || (expert_path(f) && own)) &&
           may_differ_in(f, spec->module, training ? f->dims : LS_DIM_SHARD, dummy, !own || !calls_show(f, spec));
}

static bool per_layer_unequally(const struct facts *f, const struct ls_spec *spec, bool dummy)
{
    return frozen_per_layer(f, spec) && may_differ_in(f, spec->module, LS_DIM_SHARD, dummy ? AS_IS : WITHOUT, !calls_show(f, spec));
}

static const char *spec_text(const struct facts *f, const struct ls_spec *spec)
{
    const struct ls_names *names = f->model->names;
    return ls_arena_printf(f->arena, "'%s' (%s%s%s)", ls_name_text(names, f->model->module[spec->module].name),
                           ls_name_text(names, spec->modality), spec->role ? " " : "", ls_name_text(names, spec->role));
}

static bool refuse(struct ls_refusal *out, const char *rule, struct ls_loc at, const char *text)
{
    *out = (struct ls_refusal){ rule, text, at };
    return true;
}

/* One conditional module against the contracts. True if refused. */
static bool check_spec(const struct facts *f, const struct ls_spec *spec, struct ls_refusal *refusal)
{
    const struct ls_modality_policy *p = policy_of(f, spec->modality);
    const struct ls_dummy_forward *d = dummy_of(f, spec->modality);
    bool active = d && d->active, covered = active && covers(d, spec->role);
    const char *what = spec_text(f, spec), *execution = f->contract.name, *modality = ls_name_text(f->model->names, spec->modality);
    if (f->in->s->step.validate_in_tower && f->in->s->step.validate_rank_uniform && may_differ(f, spec->module, f->dims, covered))
        return refuse(refusal, "check_inside_tower", f->in->s->step.at,
                      ls_arena_printf(f->arena, "ranks that do not run %s, which execution '%s' allows, do not take part in the check: it hangs",
                                      what, execution));
    if (per_layer_unequally(f, spec, covered))
        return refuse(refusal, "per_layer_needs_uniform_execution", p && p->has_frozen ? p->frozen_at : f->in->policy->frozen_at,
                      ls_arena_printf(f->arena, "%s is frozen and sharded per layer, but execution '%s' lets ranks run it unequally",
                                      what, execution));
    if (!trains_unequally(f, spec, WITHOUT))
        return false;
    if (trains_unequally(f, spec, WISHED)) /* what no dummy evens out */
        return refuse(refusal, "unequal_calls", f->in->batch->execution_at,
                      ls_arena_printf(f->arena, "%s is trainable, and execution '%s' lets ranks call it different numbers of times, which a dummy "
                                      "forward does not even out", what, execution));
    if (!active)
        return refuse(refusal, "trainable_conditional_needs_dummy",
                      p && p->dummy == LS_DUMMY_FALSE ? p->dummy_at : f->in->batch->execution_at,
                      ls_arena_printf(f->arena, "%s is trainable and conditional, execution '%s' lets ranks run it unequally, and %s", what,
                                      execution, d ? "its dummy forward is off" : "the model has no dummy forward for it"));
    if (!covered)
        return refuse(refusal, "partial_dummy", d->at,
                      ls_arena_printf(f->arena, "the dummy forward of '%s' leaves out %s, which is trainable", modality, what));
    if (!d->linked && trains(f, spec))
        return refuse(refusal, "dummy_not_linked", d->at,
                      ls_arena_printf(f->arena, "the dummy forward of '%s' does not enter the loss, so %s gets no gradient from it", modality,
                                      what));
    return false;
}

/* run_dummy_forward: auto runs it where it is needed and the model has one. */
static void decide_dummies(const struct facts *f)
{
    const struct ls_specs *specs = &f->in->s->specs;
    for (size_t k = 0; k < f->in->batch->dummies; k++) {
        struct ls_dummy_forward *d = &f->in->batch->dummy[k];
        const struct ls_modality_policy *p = policy_of(f, d->modality);
        enum ls_dummy wanted = f->in->dummy_forced ? LS_DUMMY_TRUE : p ? p->dummy : LS_DUMMY_AUTO;
        d->active = wanted == LS_DUMMY_TRUE;
        for (size_t i = 0; wanted == LS_DUMMY_AUTO && i < specs->count; i++) {
            const struct ls_spec *spec = &specs->spec[i];
            if (spec->modality != d->modality || !spec->conditionally_executed)
                continue;
            d->active = d->active || trains_unequally(f, spec, WITHOUT) ||
                        per_layer_unequally(f, spec, false);
        }
    }
}

enum ls_code ls_setup_contracts(const struct setup *in, struct ls_arena *arena, struct ls_refusal *refusal, struct ls_error *err)
{
    const struct ls_scenario *s = in->s;
    struct facts f = { .in = in, .model = &s->model, .arena = arena, .dims = ls_scenario_free_dims(&s->mesh) };
    struct ls_batch batch = *in->batch; /* shares the dummies */
    batch.apart = false;
    LS_TRY(ls_batch_letters(&batch, s->names, arena, &f.letters, err));
    LS_TRY(ls_batch_contract(&batch, &f.letters, f.dims, ls_scenario_replicas(&s->mesh), arena, &f.contract, err));
    decide_dummies(&f);
    /* With the dummies decided the letters are others. */
    LS_TRY(ls_batch_letters(&batch, s->names, arena, &f.letters, err));
    LS_TRY(ls_batch_contract(&batch, &f.letters, f.dims, ls_scenario_replicas(&s->mesh), arena, &f.contract, err));
    for (size_t i = 0; i < in->policy->modalities; i++) {
        const struct ls_modality_policy *p = &in->policy->modality[i];
        if (p->dummy == LS_DUMMY_TRUE && !dummy_of(&f, p->modality)) {
            refuse(refusal, "dummy_missing", p->dummy_at,
                   ls_arena_printf(arena, "'run_dummy_forward' is true, but the model has no dummy forward for '%s'",
                                   ls_name_text(s->names, p->modality)));
            return LS_OK;
        }
    }
    for (size_t i = 0; i < s->specs.count; i++)
        if (s->specs.spec[i].conditionally_executed && check_spec(&f, &s->specs.spec[i], refusal))
            return LS_OK;
    return LS_OK;
}
