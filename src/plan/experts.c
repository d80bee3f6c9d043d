/* The expert-parallel path of AutoModel: which modules become units, in which order, over which ranks. */
#include "plan/policy.h"

#include <stdio.h>
#include <string.h>

struct expert_path {
    struct ls_planner planner;
    const struct ls_model *m;
    const struct ls_specs *specs;
    const struct ls_policy *policy;
    const bool *at_sharding;
    const struct ls_mesh *mesh;
    uint32_t inner;             /* the text model; 0: the model itself */
    bool *expert;               /* [params] (canonical): an expert's */
    bool *replicated, any_replicated;
    uint32_t *block; size_t blocks; /* decoder layers, then those of multi-token prediction */
    size_t mtp_from;            /* index into block */
    uint32_t *multimodal; size_t multimodals; /* specs with parameters that lie in no other spec */
};

static const char *name_of(const struct ls_model *m, uint32_t module)
{
    const char *name = ls_name_text(m->names, m->module[module].name);
    return name[0] ? name : "the model";
}

/* getattr(module, leaf): a child, or an alias of another module; LS_NO_ID. */
static uint32_t attribute(const struct ls_model *m, uint32_t module, const char *leaf)
{
    char fqn[1200];
    const char *base = ls_name_text(m->names, m->module[module].name);
    snprintf(fqn, sizeof fqn, "%s%s%s", base, base[0] ? "." : "", leaf);
    return ls_model_module(m, fqn);
}

uint32_t ls_plan_text_model(const struct ls_model *m)
{
    static const char *const text[] = { "language_model", "text_model", "text_decoder" };
    const uint32_t model = attribute(m, 0, "model"), from = model == LS_NO_ID ? 0 : model;
    for (size_t i = 0; i < sizeof text / sizeof *text; i++) {
        const uint32_t found = attribute(m, from, text[i]);
        if (found != LS_NO_ID)
            return found;
    }
    return from;
}

bool ls_plan_outer_root(const struct ls_model *m, const struct ls_moe_policy *moe)
{
    return moe->wrap_outer_model || ls_plan_text_model(m) == 0;
}

bool ls_moe_agrees_tokens(const struct ls_policy *p)
{
    return p->moe.dispatcher == LS_DISPATCH_HYBRIDEP && p->automodel >= 7;
}

const char *ls_dispatcher_name(enum ls_dispatcher d)
{
#define DISPATCHER_NAME(id, name) name,
    static const char *const names[] = { LS_DISPATCHERS(DISPATCHER_NAME) };
#undef DISPATCHER_NAME
    return names[d];
}

static const struct ls_moe *moe_of_block(const struct ls_model *m, uint32_t block)
{
    static const char *const leaf[] = { "moe", "mlp" };
    for (size_t k = 0; k < 2; k++) {
        const uint32_t module = attribute(m, block, leaf[k]);
        for (size_t i = 0; module != LS_NO_ID && i < m->moes; i++)
            if (m->moe[i].module == module)
                return &m->moe[i];
    }
    return NULL;
}

static struct ls_unit unit_like(const struct expert_path *e)
{
    const struct ls_policy *p = e->policy;
    const struct ls_moe_policy *moe = &p->moe;
    struct ls_unit u = { .param_dtype = p->param_dtype, .reduce_dtype = p->reduce_dtype, .output_dtype = p->output_dtype,
                         .cast_inputs = p->cast_inputs, .unshard_in_backward = true, .unused_params = e->planner.runtime->unused_params,
                         .reshard = moe->reshard ? LS_RESHARD_TRUE : LS_RESHARD_FALSE, .at = moe->at.line ? moe->at : p->at };
    if (moe->has_mp)
        u.param_dtype = moe->param_dtype, u.reduce_dtype = moe->reduce_dtype, u.output_dtype = moe->output_dtype,
        u.cast_inputs = moe->cast_inputs;
    if (p->reshard != LS_RESHARD_DEFAULT)
        u.reshard = p->reshard;
    return u;
}

static void shard(struct expert_path *e, uint32_t module, const bool *ignored, const struct ls_unit *like)
{
    ls_planner_shard(&e->planner, &module, 1, false, ignored, like);
}

static void mark_params(const struct ls_model *m, uint32_t module, bool *mark)
{
    const struct ls_module *first = &m->module[module], *last = first + first->subtree - 1;
    for (uint32_t i = first->first_param; i < last->first_param + last->params; i++)
        mark[m->param[i].canonical] = true;
}

static bool has_params(const struct ls_model *m, uint32_t module)
{
    const struct ls_module *first = &m->module[module], *last = first + first->subtree - 1;
    return first->first_param < last->first_param + last->params;
}

/* ---------------------------------------------------------------------------------------------- what there is */

static enum ls_code find_blocks(struct expert_path *e, struct ls_error *err)
{
    const uint32_t layers = attribute(e->m, e->inner, "layers"), mtp = attribute(e->m, 0, "mtp");
    const uint32_t more = mtp == LS_NO_ID ? LS_NO_ID : attribute(e->m, mtp, "layers");
    if (layers == LS_NO_ID)
        return ls_fail(err, LS_EINPUT, e->policy->at, "with expert parallelism the decoder layers are '%.200s.layers', which the model lacks",
                       name_of(e->m, e->inner));
    const struct ls_module *a = &e->m->module[layers], *b = more == LS_NO_ID ? NULL : &e->m->module[more];
    e->block = LS_NEW(&e->planner.scratch, uint32_t, a->children + (b ? b->children : 0) + 1);
    for (size_t i = 0; i < a->children; i++)
        e->block[e->blocks++] = a->child[i];
    e->mtp_from = e->blocks;
    for (size_t i = 0; b && i < b->children; i++)
        e->block[e->blocks++] = b->child[i];
    for (size_t i = 0; i < e->m->moes; i++) {
        const uint32_t module = e->m->moe[i].module;
        bool spread = false;
        for (size_t k = 0; k < e->blocks && !spread; k++)
            spread = moe_of_block(e->m, e->block[k]) == &e->m->moe[i];
        if (!spread)
            return ls_fail(err, LS_EINPUT, e->policy->at, "'%.200s' has routed experts, but is no decoder layer's 'moe' or 'mlp', so AutoModel "
                           "leaves them whole on every rank, which is not modelled", name_of(e->m, module));
    }
    return LS_OK;
}

static void find_multimodal(struct expert_path *e)
{
    e->multimodal = LS_NEW(&e->planner.scratch, uint32_t, e->specs->count + 1);
    for (uint32_t s = 0; s < e->specs->count; s++) {
        const uint32_t module = e->specs->spec[s].module;
        bool nested = false;
        for (size_t i = 0; i < e->multimodals; i++)
            nested = nested || ls_module_contains(e->m, e->specs->spec[e->multimodal[i]].module, module);
        if (!nested && has_params(e->m, module))
            e->multimodal[e->multimodals++] = s;
    }
}

static bool frozen_under(const struct expert_path *e, uint32_t spec, enum ls_frozen policy)
{
    struct ls_loc at;
    return ls_module_fully_frozen(e->m, e->specs->spec[spec].module, e->at_sharding) &&
           ls_policy_frozen(e->policy, e->specs, spec, &at) == policy;
}

/* What is refused before anything is sharded. */
static void validate(struct expert_path *e)
{
    const struct ls_model *m = e->m;
    const struct ls_moe_policy *moe = &e->policy->moe;
    struct ls_str list = { 0 };
    struct ls_loc at = e->policy->frozen_at;
    if (!m->moes)
        ls_planner_refuse(&e->planner, "no_experts", e->policy->at, "ep_size is %zu, but the model has no routed experts", e->mesh->ep);
    for (size_t i = 0; i < m->moes; i++)
        if (m->moe[i].count % e->mesh->ep)
            ls_planner_refuse(&e->planner, "experts_not_divisible", e->policy->at, "'%.150s' has %llu routed experts, which ep_size %zu does "
                              "not divide", name_of(m, m->moe[i].module), (unsigned long long)m->moe[i].count, e->mesh->ep);
    for (size_t i = 0; i < e->multimodals && !moe->wrap_outer_model && e->inner; i++) {
        const uint32_t module = e->specs->spec[e->multimodal[i]].module;
        if (!ls_module_contains(m, e->inner, module) && frozen_under(e, e->multimodal[i], LS_FROZEN_ROOT))
            ls_str_printf(&list, "%s'%s'", list.length ? ", " : "", name_of(m, module));
    }
    if (list.length)
        ls_planner_refuse(&e->planner, "frozen_outside_inner_root", at, "frozen_sharding: root needs wrap_outer_model: true, since %.300s lies "
                          "outside the text model '%.100s'", ls_str_text(&list), name_of(m, e->inner));
    ls_str_release(&list);
}

/* ------------------------------------------------------------------------------------------------------ blocks */

static bool splits_evenly(struct expert_path *e, const struct ls_moe *moe)
{
    const size_t ranks = e->mesh->ep_shard;
    const struct ls_module *first = &e->m->module[moe->experts], *last = first + first->subtree - 1;
    for (uint32_t i = first->first_param; ranks != LS_SIZE_ANY && i < last->first_param + last->params; i++)
        if (e->m->param[i].dim[1] % ranks) {
            ls_planner_refuse(&e->planner, "uneven_expert_shards", e->policy->at, "dim 1 of '%.200s' is %llu, which %zu ranks of ep_shard can't "
                              "share evenly; fully_shard cuts no other dimension than 0 unevenly", ls_name_text(e->m->names, e->m->param[i].name),
                              (unsigned long long)e->m->param[i].dim[1], ranks);
            return false;
        }
    return true;
}

static void shard_blocks(struct expert_path *e)
{
    const struct ls_model *m = e->m;
    for (size_t i = 0; i < e->blocks; i++) {
        const struct ls_moe *moe = moe_of_block(m, e->block[i]);
        struct ls_unit like = unit_like(e);
        if (moe && e->mesh->ep_shard != 1 && splits_evenly(e, moe)) {
            struct ls_unit experts = like;
            experts.mesh = LS_UNIT_EXPERTS;
            experts.why = ls_arena_printf(m->arena, "experts of '%s', over ep_shard", name_of(m, e->block[i]));
            if (e->policy->automodel >= 7) /* inside the block: what it returns keeps its dtype */
                experts.output_dtype = LS_DTYPE_NONE;
            if (i >= e->mtp_from)
                experts.reshard = LS_RESHARD_FALSE;
            shard(e, moe->experts, NULL, &experts);
        }
        like.why = moe ? "a decoder layer, without its experts" : "a decoder layer";
        ls_planner_shard_by_dtype(&e->planner, e->block[i], moe ? e->expert : NULL, &like);
    }
}

/* -------------------------------------------------------------------------------------- embeddings and towers */

static bool is_tied(const struct ls_model *m, uint32_t a, uint32_t b)
{
    uint32_t weight[2] = { LS_NO_ID, LS_NO_ID };
    const uint32_t module[2] = { a, b };
    for (size_t k = 0; k < 2 && module[k] != LS_NO_ID; k++) {
        const struct ls_module *at = &m->module[module[k]];
        for (uint32_t i = at->first_param; i < at->first_param + at->params; i++)
            if (strcmp(ls_name_text(m->names, m->param[i].leaf), "weight") == 0)
                weight[k] = m->param[i].canonical;
    }
    return weight[0] != LS_NO_ID && weight[0] == weight[1];
}

/* Whether input and output embedding are one parameter that no root below the outer one holds. */
static bool shard_embeddings(struct expert_path *e)
{
    const struct ls_model *m = e->m;
    const uint32_t embed = attribute(m, e->inner, "embed_tokens"), norm = attribute(m, e->inner, "embed_norm");
    const uint32_t own = attribute(m, e->inner, "lm_head"), outer = e->inner ? attribute(m, 0, "lm_head") : LS_NO_ID;
    const uint32_t head = own != LS_NO_ID ? own : outer;
    const bool tied = is_tied(m, embed, head);
    struct ls_unit like = unit_like(e);
    like.why = "the input embedding";
    if (embed != LS_NO_ID && !tied)
        shard(e, embed, NULL, &like);
    like.why = "the norm of the embeddings";
    if (norm != LS_NO_ID)
        shard(e, norm, NULL, &like);
    like.why = "the output embedding";
    if (head != LS_NO_ID && !tied) {
        if (e->policy->moe.lm_head_f32) {
            like.why = "the output embedding, lm_head_precision: float32";
            like.param_dtype = like.reduce_dtype = like.output_dtype = LS_DTYPE_F32;
            like.cast_inputs = true;
        }
        shard(e, head, NULL, &like);
    } else if (tied && e->policy->moe.lm_head_f32) {
        ls_planner_warn(&e->planner, "lm_head_precision is not applied: the weight of '%s' is that of '%s'", name_of(m, head), name_of(m, embed));
    }
    return tied && own == LS_NO_ID;
}

/* Items of containers inside `module`. A container directly inside a container is looked through like a plain module. */
static bool shard_items(struct expert_path *e, uint32_t module, const struct ls_unit *like)
{
    const struct ls_model *m = e->m;
    bool any = false;
    for (size_t i = 0; i < m->module[module].children; i++) {
        const uint32_t child = m->module[module].child[i];
        if (m->module[child].container == LS_NOT_CONTAINER) {
            any |= shard_items(e, child, like);
            continue;
        }
        for (size_t k = 0; k < m->module[child].children; k++) {
            const uint32_t item = m->module[child].child[k];
            if (m->module[item].container != LS_NOT_CONTAINER) {
                any |= shard_items(e, item, like);
            } else {
                shard(e, item, NULL, like);
                any = true;
            }
        }
    }
    return any;
}

static void shard_multimodal(struct expert_path *e)
{
    for (size_t i = 0; i < e->multimodals; i++) {
        const uint32_t spec = e->multimodal[i], module = e->specs->spec[spec].module;
        struct ls_unit like = unit_like(e);
        struct ls_loc at;
        if (!ls_module_fully_frozen(e->m, module, e->at_sharding)) {
            like.why = ls_arena_printf(e->m->arena, "'%s' trains: one unit, whatever frozen_sharding says", name_of(e->m, module));
            shard(e, module, NULL, &like);
            continue;
        }
        switch (ls_policy_frozen(e->policy, e->specs, spec, &at)) {
        case LS_FROZEN_PER_LAYER:
            like.at = at;
            like.why = ls_arena_printf(e->m->arena, "frozen_sharding: per_layer, for '%s'", name_of(e->m, module));
            if (!shard_items(e, module, &like))
                shard(e, module, NULL, &like);
            break;
        case LS_FROZEN_REPLICATE:
            mark_params(e->m, module, e->replicated);
            e->any_replicated = true;
            break;
        case LS_FROZEN_ROOT:
            break;
        }
    }
}

static void shard_roots(struct expert_path *e, bool tied_outside)
{
    struct ls_unit like = unit_like(e);
    const bool wrap = e->policy->moe.wrap_outer_model;
    const bool *ignored = e->any_replicated ? e->replicated : NULL;
    if (tied_outside && !wrap)
        ls_planner_refuse(&e->planner, "tied_across_roots", like.at, "the output embedding is the input embedding, which lies inside '%.150s'; "
                          "wrap_outer_model: false can't keep it in one root", name_of(e->m, e->inner));
    like.why = e->inner ? "the text model" : "the model: every parameter that no other unit owns";
    if (!(tied_outside && wrap && e->inner))
        shard(e, e->inner, ignored, &like);
    like.why = tied_outside ? "the outer model, which holds the tied embedding" : "wrap_outer_model: every parameter that no other unit owns";
    if (wrap && e->inner)
        shard(e, 0, ignored, &like);
}

/* ------------------------------------------------------------------------------------------------ around units */

/* Units that the switches of MoEFSDPSyncMixin reach where the model itself is none: those that it enumerates, and what they contain. */
static void find_switched(struct expert_path *e, struct ls_plan *out)
{
    const struct ls_model *m = e->m;
    bool *reached = LS_NEW(&e->planner.scratch, bool, m->modules + 1);
    const uint32_t model = attribute(m, 0, "model"), from = model == LS_NO_ID ? 0 : model;
    const uint32_t layers = attribute(m, from, "layers");
    const uint32_t single[] = { model, attribute(m, from, "embed_tokens"), attribute(m, 0, "lm_head") };
    for (size_t i = 0; i < sizeof single / sizeof *single; i++)
        if (single[i] != LS_NO_ID && e->planner.unit_of_module[single[i]] != LS_NO_ID)
            reached[single[i]] = true;
    for (size_t i = 0; i < e->multimodals; i++)
        for (uint32_t at = e->specs->spec[e->multimodal[i]].module, k = 0; k < m->module[e->specs->spec[e->multimodal[i]].module].subtree; k++)
            reached[at + k] = e->planner.unit_of_module[at + k] != LS_NO_ID;
    for (size_t i = 0; layers != LS_NO_ID && i < m->module[layers].children; i++) {
        const struct ls_moe *moe = moe_of_block(m, m->module[layers].child[i]);
        if (moe)
            reached[moe->experts] = e->planner.unit_of_module[moe->experts] != LS_NO_ID;
    }
    for (size_t i = e->mtp_from; i < e->blocks; i++)
        reached[e->block[i]] = true;
    for (size_t u = 0; u < out->units; u++) {
        bool any = false;
        for (uint32_t at = out->unit[u].module[0]; at != LS_NO_ID && !any; at = m->module[at].parent)
            any = reached[at];
        out->unit[u].always_reduces = !any;
    }
}

/* Every decoder layer, and the list items of towers that train. */
static void find_checkpointed(struct expert_path *e, struct ls_plan *out)
{
    const struct ls_model *m = e->m;
    bool *mark = LS_NEW(m->arena, bool, m->modules);
    for (size_t i = 0; i < e->blocks; i++)
        mark[e->block[i]] = true;
    for (size_t s = 0; s < e->multimodals; s++) {
        const struct ls_spec *spec = &e->specs->spec[e->multimodal[s]];
        for (uint32_t at = spec->module + 1; at < spec->module + m->module[spec->module].subtree; at++)
            mark[at] = strcmp(ls_name_text(m->names, spec->role), "tower") == 0 && m->module[at].container == LS_NOT_CONTAINER &&
                       m->module[m->module[at].parent].container != LS_NOT_CONTAINER && has_params(m, at) &&
                       !ls_module_fully_frozen(m, at, e->at_sharding);
    }
    out->checkpointed = mark;
}

static void describe_experts(struct expert_path *e, struct ls_plan *out)
{
    const struct ls_model *m = e->m;
    const struct ls_moe_policy *moe = &e->policy->moe;
    struct ls_expert_plan *x = &out->experts;
    *x = (struct ls_expert_plan){ .ep = e->mesh->ep, .ep_shard = e->mesh->ep_shard, .dispatcher = moe->dispatcher,
                                  /* UCCL-EP's dispatch asks again, as all did up to 0.6. */
                                  .replays_dispatch = moe->ignore_router && e->policy->automodel >= 7 && moe->dispatcher != LS_DISPATCH_UCCL_EP,
                                  .agrees_tokens = ls_moe_agrees_tokens(e->policy), .present_norms = e->policy->automodel < 7,
                                  .one_pass_norm = e->policy->automodel >= 7,
                                  /* Up to 0.6 those of Transformer Engine were taken for whole tensors. */
                                  .norm_over_ep = !moe->te_experts || e->policy->automodel >= 7, .idle_without_gradient = moe->no_dummy_pass,
                                  .at = moe->dispatcher_at.line ? moe->dispatcher_at : moe->at.line ? moe->at : e->policy->at };
    x->layer = LS_NEW(m->arena, uint32_t, m->params + 1);
    memset(x->layer, 0xff, (m->params + 1) * sizeof *x->layer);
    x->scaled = LS_NEW(m->arena, bool, m->moes + 1);
    for (uint32_t i = 0; i < m->moes; i++) {
        const struct ls_module *first = &m->module[m->moe[i].experts], *last = first + first->subtree - 1;
        for (uint32_t p = first->first_param; p < last->first_param + last->params; p++)
            x->layer[m->param[p].canonical] = i;
        /* Up to 0.6 experts that are no DTensors over ep were known by a name, which not every family uses. */
        x->scaled[i] = !moe->te_experts || e->policy->automodel >= 7 ||
                       strcmp(ls_name_text(m->names, m->module[m->moe[i].module].leaf), "mlp") == 0;
    }
}

enum ls_code ls_plan_experts(const struct ls_model *m, const struct ls_specs *specs, const bool *at_sharding, const bool *final,
                             const struct ls_mesh *mesh, const struct ls_runtime *runtime, const struct ls_policy *policy,
                             struct ls_plan *out, struct ls_refusal *refusal, struct ls_error *err)
{
    struct expert_path e = { .m = m, .specs = specs, .policy = policy, .at_sharding = at_sharding, .mesh = mesh,
                             .inner = ls_plan_text_model(m) };
    struct ls_runtime installed = *runtime;
    installed.uniform_reduce_dtype = true;
    if (policy->reshard == LS_RESHARD_SMALL)
        return ls_fail(err, LS_EINPUT, policy->at, "'reshard_after_forward' is %llu; with expert parallelism a number is not modelled yet",
                       (unsigned long long)policy->reshard_size);
    if (strcmp(ls_name_text(m->names, m->architecture), "DeepseekV4ForCausalLM") == 0)
        return ls_fail(err, LS_EINPUT, policy->at, "AutoModel shards 'DeepseekV4ForCausalLM' in a way of its own, which is not modelled");
    ls_planner_init(&e.planner, m, mesh, &installed);
    e.expert = LS_NEW(&e.planner.scratch, bool, m->params + 1);
    e.replicated = LS_NEW(&e.planner.scratch, bool, m->params + 1);
    for (size_t i = 0; i < m->moes; i++)
        mark_params(m, m->moe[i].experts, e.expert);
    enum ls_code rc = find_blocks(&e, err);
    if (rc == LS_OK) {
        find_multimodal(&e);
        validate(&e);
        LS_VEC(uint32_t) per_layer = { 0 };
        for (size_t i = 0; i < e.multimodals; i++)
            if (frozen_under(&e, e.multimodal[i], LS_FROZEN_PER_LAYER))
                ls_push(&per_layer, specs->spec[e.multimodal[i]].module);
        ls_planner_warn_per_layer(&e.planner, per_layer.at, per_layer.count);
        ls_vec_release(&per_layer);
        shard_blocks(&e);
        const bool tied_outside = shard_embeddings(&e);
        shard_multimodal(&e);
        shard_roots(&e, tied_outside);
        ls_planner_finish(&e.planner, final, out, refusal);
        if (policy->moe.fsdp_optimizations && !ls_plan_outer_root(m, &policy->moe))
            find_switched(&e, out);
        if (policy->activation_checkpointing)
            find_checkpointed(&e, out);
        out->item_reshard = policy->moe.reshard ? LS_RESHARD_TRUE : LS_RESHARD_FALSE;
        describe_experts(&e, out);
    }
    ls_planner_release(&e.planner);
    return rc;
}
