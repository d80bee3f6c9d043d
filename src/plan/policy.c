/* The dense path of both rule sets: which modules become units, in which order, and how they behave. */
#include "plan/planner.h"
#include "plan/policy.h"

#include <string.h>

struct chooser {
    struct ls_planner planner;
    const struct ls_model *m;
    const struct ls_specs *specs;
    const struct ls_policy *policy;
    const bool *at_sharding;
    uint32_t *spec_of_module; /* [modules]: its own spec, or LS_NO_ID */
    uint32_t *spec_of_param;  /* [params]: the innermost spec around */
    bool *frozen_spec;        /* [specs]: own part has parameters and none trains */
    bool *ignored;            /* [params] (canonical): replicated */
    bool by_dtype, any_ignored;
};

static bool automodel(const struct chooser *c) { return c->policy->rules == LS_RULES_AUTOMODEL; }

static const char *name_of(const struct chooser *c, uint32_t module) { return ls_name_text(c->m->names, c->m->module[module].name); }

enum ls_frozen ls_policy_frozen(const struct ls_policy *p, const struct ls_specs *specs, uint32_t spec, struct ls_loc *at)
{
    *at = p->frozen_at;
    if (p->rules == LS_RULES_AUTOMODEL || spec == LS_NO_ID)
        return p->frozen;
    for (size_t i = 0; i < p->modalities; i++)
        if (p->modality[i].has_frozen && p->modality[i].modality == specs->spec[spec].modality) {
            *at = p->modality[i].frozen_at;
            return p->modality[i].frozen;
        }
    return p->frozen;
}

static enum ls_frozen frozen_policy(const struct chooser *c, uint32_t spec, struct ls_loc *at)
{
    return ls_policy_frozen(c->policy, c->specs, spec, at);
}

/* A module whose parameters the policy may keep out of units: automodel goes by name and the whole subtree, the proposed rules by
 * spec and its own part. */
static bool is_frozen_multimodal(const struct chooser *c, uint32_t module)
{
    if (automodel(c))
        return ls_multimodal_name(ls_name_text(c->m->names, c->m->module[module].leaf)) &&
               ls_module_fully_frozen(c->m, module, c->at_sharding);
    return c->spec_of_module[module] != LS_NO_ID && c->frozen_spec[c->spec_of_module[module]];
}

/* Why an item of a container inside `above` is a unit. */
static const char *reason(const struct chooser *c, uint32_t container, struct ls_loc *at)
{
    for (uint32_t m = container; m != LS_NO_ID && m != 0; m = c->m->module[m].parent) {
        const uint32_t spec = c->spec_of_module[m];
        const bool named = automodel(c) ? ls_multimodal_name(ls_name_text(c->m->names, c->m->module[m].leaf)) : spec != LS_NO_ID;
        if (!named)
            continue;
        if (is_frozen_multimodal(c, m)) {
            frozen_policy(c, spec, at);
            return ls_arena_printf(c->m->arena, "frozen_sharding: per_layer, for '%s'", name_of(c, m));
        }
        return ls_arena_printf(c->m->arena, "'%s' is not fully frozen: the items of its lists are units", name_of(c, m));
    }
    return ls_arena_printf(c->m->arena, "items of '%s' are units", name_of(c, container));
}

static struct ls_unit unit_like(const struct chooser *c)
{
    const struct ls_policy *p = c->policy;
    const struct ls_runtime *r = c->planner.runtime;
    struct ls_unit u = { .param_dtype = p->param_dtype, .reduce_dtype = p->reduce_dtype, .output_dtype = p->output_dtype,
                         .cast_inputs = p->cast_inputs, .unshard_in_backward = true, .unused_params = r->unused_params, .at = p->at };
    /* AutoModel turns it on for every unit, by the setter where PyTorch has one. */
    if (automodel(c) && c->planner.mesh->cp > 1)
        u.unused_params = r->version >= 213 ? LS_UNUSED_NATIVE : LS_UNUSED_FALLBACK;
    return u;
}

static bool is_container(const struct chooser *c, uint32_t parent, uint32_t item)
{
    const enum ls_container kind = c->m->module[item].container;
    if (automodel(c) && !c->by_dtype && c->m->module[parent].container == LS_MODULE_LIST)
        return kind == LS_MODULE_LIST;
    return kind != LS_NOT_CONTAINER;
}

/* set_modules_to_forward_prefetch and ..._backward_prefetch along the items of one container. */
static void chain_prefetch(struct chooser *c, const uint32_t *unit, size_t count)
{
    const struct ls_policy *p = c->policy;
    if (!p->prefetch || p->reshard == LS_RESHARD_FALSE)
        return;
    for (size_t i = 0; i < count; i++) {
        struct ls_unit *u = &c->planner.unit.at[unit[i]];
        const size_t after = count - 1 - i, ahead = after < p->prefetch_forward ? after : p->prefetch_forward;
        const size_t behind = i < p->prefetch_backward ? i : p->prefetch_backward;
        u->forward_prefetch = LS_NEW(c->m->arena, uint32_t, ahead);
        for (size_t k = 0; k < ahead; k++)
            u->forward_prefetch[u->forward_prefetches++] = unit[i + 1 + k];
        u->backward_prefetch = LS_NEW(c->m->arena, uint32_t, behind);
        for (size_t k = 0; k < behind; k++)
            u->backward_prefetch[u->backward_prefetches++] = unit[i - 1 - k];
        u->has_backward_prefetch = behind > 0;
    }
}

static void visit(struct chooser *c, uint32_t module);
static void visit_child(struct chooser *c, uint32_t child);

/* Looks for resolved modules nested in a part that is not sharded. */
static void visit_nested(struct chooser *c, uint32_t module)
{
    for (size_t i = 0; i < c->m->module[module].children; i++) {
        uint32_t child = c->m->module[module].child[i];
        if (c->spec_of_module[child] != LS_NO_ID)
            visit_child(c, child);
        else
            visit_nested(c, child);
    }
}

static void ignore(struct chooser *c, uint32_t module)
{
    const struct ls_module *first = &c->m->module[module], *last = first + first->subtree - 1;
    const uint32_t spec = c->spec_of_module[module];
    for (uint32_t i = first->first_param; i < last->first_param + last->params; i++)
        if (automodel(c) || c->spec_of_param[i] == spec)
            c->ignored[c->m->param[i].canonical] = c->any_ignored = true;
}

/* Whether the policy keeps the module's frozen part in the root or out of every unit; if so, that is done. */
static bool keep_out(struct chooser *c, uint32_t module)
{
    struct ls_loc at;
    if (!is_frozen_multimodal(c, module))
        return false;
    switch (frozen_policy(c, c->spec_of_module[module], &at)) {
    case LS_FROZEN_PER_LAYER:
        return false;
    case LS_FROZEN_REPLICATE:
        ignore(c, module);
        break;
    case LS_FROZEN_ROOT:
        break;
    }
    if (!automodel(c))
        visit_nested(c, module);
    return true;
}

static void visit_child(struct chooser *c, uint32_t child)
{
    if (!keep_out(c, child))
        visit(c, child);
}

static void visit_items(struct chooser *c, uint32_t container)
{
    const struct ls_module *list = &c->m->module[container];
    LS_VEC(uint32_t) flat = { 0 };
    for (size_t i = 0; i < list->children; i++) {
        const uint32_t item = list->child[i];
        if (is_container(c, container, item))
            visit(c, item);
    }
    for (size_t i = 0; i < list->children; i++) {
        const uint32_t item = list->child[i];
        if (!is_container(c, container, item) && (automodel(c) || c->spec_of_module[item] == LS_NO_ID || !keep_out(c, item)))
            ls_push(&flat, item);
    }
    struct ls_unit like = unit_like(c);
    like.why = reason(c, container, &like.at);
    for (size_t i = 0; i < flat.count; i++) {
        like.reshard = c->policy->reshard;
        like.reshard_size = c->policy->reshard_size;
        if (like.reshard == LS_RESHARD_DEFAULT) /* the last one is needed first in backward */
            like.reshard = i + 1 < flat.count ? LS_RESHARD_TRUE : LS_RESHARD_FALSE;
        if (c->by_dtype)
            ls_planner_shard_by_dtype(&c->planner, flat.at[i], NULL, &like);
        else
            flat.at[i] = ls_planner_shard(&c->planner, &flat.at[i], 1, false, NULL, &like);
    }
    if (!c->by_dtype)
        chain_prefetch(c, flat.at, flat.count);
    ls_vec_release(&flat);
}

static void visit(struct chooser *c, uint32_t module)
{
    if (c->m->module[module].container != LS_NOT_CONTAINER) {
        visit_items(c, module);
        return;
    }
    for (size_t i = 0; i < c->m->module[module].children; i++)
        visit_child(c, c->m->module[module].child[i]);
}

/* The tables of 0.7: modules without a unit above them, found by the names that the models' getters return. */
static void shard_embeddings(struct chooser *c)
{
    static const char *const leaf[2] = { "embed_tokens", "lm_head" };
    const struct ls_model *m = c->m;
    uint32_t found[2] = { LS_NO_ID, LS_NO_ID };
    for (uint32_t i = 0; i < m->modules; i++)
        for (int k = 0; k < 2; k++)
            if (found[k] == LS_NO_ID && m->module[i].params && strcmp(ls_name_text(m->names, m->module[i].leaf), leaf[k]) == 0)
                found[k] = i;
    if (found[0] != LS_NO_ID && found[1] != LS_NO_ID &&
        m->param[m->module[found[0]].first_param].canonical == m->param[m->module[found[1]].first_param].canonical)
        return;
    for (int k = 0; k < 2; k++) {
        bool trains = false;
        if (found[k] == LS_NO_ID || c->planner.unit_of_module[found[k]] != LS_NO_ID)
            continue;
        for (uint32_t i = 0; i < m->module[found[k]].params; i++)
            trains |= c->at_sharding[m->module[found[k]].first_param + i];
        struct ls_unit like = unit_like(c);
        like.why = k ? "trainable, untied output embedding" : "trainable, untied input embedding";
        like.reshard = k ? LS_RESHARD_FALSE : c->policy->reshard == LS_RESHARD_DEFAULT ? LS_RESHARD_TRUE : c->policy->reshard;
        like.reshard_size = c->policy->reshard_size;
        if (trains)
            ls_planner_shard(&c->planner, &found[k], 1, false, NULL, &like);
    }
}

static enum ls_code check_modalities(const struct chooser *c, struct ls_error *err)
{
    for (size_t i = 0; !automodel(c) && i < c->policy->modalities; i++) {
        const struct ls_modality_policy *p = &c->policy->modality[i];
        bool any = false;
        LS_VEC(const char *) known = { 0 };
        for (size_t s = 0; s < c->specs->count; s++) {
            any |= c->specs->spec[s].modality == p->modality;
            ls_push(&known, ls_name_text(c->m->names, c->specs->spec[s].modality));
        }
        ls_push(&known, NULL);
        const char *text = ls_name_text(c->m->names, p->modality), *near = ls_nearest(text, known.at);
        if (!any && p->has_frozen) {
            ls_fail(err, LS_EINPUT, p->frozen_at, "the model has no modules of the modality '%.60s'", text);
            if (near)
                ls_hint(err, "did you mean '%s'?", near);
        }
        ls_vec_release(&known);
        if (!any && p->has_frozen)
            return LS_EINPUT;
    }
    return LS_OK;
}

/* Architectures for which AutoModel does not take the dense path that is modelled here. */
static enum ls_code check_architecture(struct chooser *c, struct ls_error *err)
{
    static const char *const own_way[] = { "NemotronHForCausalLM", "DeepseekV4ForCausalLM", "WanTransformer3DModel",
                                           "HunyuanVideo15Transformer3DModel", "LTX2VideoTransformer3DModel",
                                           "DiffusionGemmaForBlockDiffusion", NULL };
    static const char *const by_dtype[] = { "Qwen3_5ForConditionalGeneration", "Qwen3_5ForCausalLM", NULL };
    const char *name = ls_name_text(c->m->names, c->m->architecture);
    if (!automodel(c))
        return LS_OK;
    for (const char *const *s = own_way; *s; s++)
        if (strcmp(*s, name) == 0)
            return ls_fail(err, LS_EINPUT, c->policy->at, "AutoModel shards '%s' in a way of its own, which is not modelled", name);
    for (const char *const *s = by_dtype; *s; s++)
        c->by_dtype |= strcmp(*s, name) == 0;
    return LS_OK;
}

void ls_planner_warn_per_layer(struct ls_planner *p, const uint32_t *module, size_t count)
{
    struct ls_str list = { 0 };
    for (size_t i = 0; i < count && list.length < 300; i++)
        ls_str_printf(&list, "%s'%s'", i ? ", " : "", ls_name_text(p->m->names, p->m->module[module[i]].name));
    if (count)
        ls_planner_warn(p, "frozen_sharding: per_layer for %s: every rank must run or skip these the same number of times, in the same "
                        "order, in every microbatch", ls_str_text(&list));
    ls_str_release(&list);
}

static void warn_per_layer(struct chooser *c)
{
    LS_VEC(uint32_t) module = { 0 };
    struct ls_loc at;
    for (uint32_t s = 0; s < c->specs->count; s++)
        if (c->frozen_spec[s] && frozen_policy(c, s, &at) == LS_FROZEN_PER_LAYER)
            ls_push(&module, c->specs->spec[s].module);
    ls_planner_warn_per_layer(&c->planner, module.at, module.count);
    ls_vec_release(&module);
}

static void judge_specs(struct chooser *c)
{
    const struct ls_specs *specs = c->specs;
    bool *has = LS_NEW(&c->planner.scratch, bool, specs->count);
    for (uint32_t s = 0; s < specs->count; s++)
        c->spec_of_module[specs->spec[s].module] = s;
    for (uint32_t s = 0; s < specs->count; s++)
        c->frozen_spec[s] = true;
    for (uint32_t i = 0; i < c->m->params; i++) {
        const uint32_t s = c->spec_of_param[i];
        if (s == LS_NO_ID)
            continue;
        has[s] = true;
        c->frozen_spec[s] &= !c->at_sharding[i];
    }
    for (uint32_t s = 0; s < specs->count; s++)
        c->frozen_spec[s] &= has[s];
}

enum ls_code ls_plan_from_policy(const struct ls_model *m, const struct ls_specs *specs, const bool *at_sharding, const bool *final,
                                 const struct ls_mesh *mesh, const struct ls_runtime *runtime, const struct ls_policy *policy,
                                 struct ls_plan *out, struct ls_refusal *refusal, struct ls_error *err)
{
    struct chooser c = { .m = m, .specs = specs, .policy = policy, .at_sharding = at_sharding };
    if (mesh->ep > 1)
        return ls_plan_experts(m, specs, at_sharding, final, mesh, runtime, policy, out, refusal, err);
    ls_planner_init(&c.planner, m, mesh, runtime);
    c.spec_of_module = LS_NEW(&c.planner.scratch, uint32_t, m->modules);
    memset(c.spec_of_module, 0xff, m->modules * sizeof(uint32_t));
    c.spec_of_param = ls_specs_of_params(m, specs, &c.planner.scratch);
    c.frozen_spec = LS_NEW(&c.planner.scratch, bool, specs->count);
    c.ignored = LS_NEW(&c.planner.scratch, bool, m->params);
    judge_specs(&c);
    enum ls_code rc = check_modalities(&c, err);
    if (rc == LS_OK)
        rc = check_architecture(&c, err);
    if (rc == LS_OK) {
        if (automodel(&c) && mesh->replicate > 1 && mesh->shard == 1)
            ls_planner_refuse(&c.planner, "replicate_size", policy->at, "dp_replicate_size %zu equals dp_size; AutoModel needs a smaller one",
                              mesh->replicate);
        warn_per_layer(&c);
        visit(&c, 0);
        if (policy->automodel >= 7 && automodel(&c))
            shard_embeddings(&c);
        struct ls_unit like = unit_like(&c);
        const uint32_t root = 0;
        like.reshard = LS_RESHARD_FALSE;
        like.why = c.any_ignored ? "the root, without replicated frozen modules" : "the root: every parameter that no other unit owns";
        ls_planner_shard(&c.planner, &root, 1, false, c.any_ignored ? c.ignored : NULL, &like);
        ls_planner_finish(&c.planner, final, out, refusal);
        out->checkpoint_activations = policy->activation_checkpointing;
        out->item_reshard = policy->reshard;
    }
    ls_planner_release(&c.planner);
    return rc;
}
