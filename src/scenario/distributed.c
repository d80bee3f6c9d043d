/* distributed: the mesh, and the policy that decides the units. */
#include "scenario/internal.h"

#include <inttypes.h>
#include <string.h>

enum ls_code ls_load_rules(struct loader *l)
{
    static const char *const names[] = { "proposed", "automodel", NULL };
    const struct ls_yaml_node *n = section(l, "distributed"), *v;
    size_t which = 0;
    LS_TRY(ls_yaml_map(n, "distributed", l->err));
    if ((v = ls_yaml_get(n, "rules")))
        LS_TRY(ls_yaml_choice(v, "rules", names, &which, l->err));
    l->s->policy.rules = which ? LS_RULES_AUTOMODEL : LS_RULES_PROPOSED;
    return LS_OK;
}

static enum ls_code load_strategy(struct loader *l, const struct ls_yaml_node *n)
{
    static const char *const names[] = { "fsdp2", "ddp", "megatron_fsdp", NULL };
    const struct ls_yaml_node *strategy = ls_yaml_get(n, "strategy"), *target = ls_yaml_get(n, "_target_");
    if (strategy) {
        size_t which = 0;
        LS_TRY(ls_yaml_choice(strategy, "strategy", names, &which, l->err));
        if (which == 1 && l->s->kind == LS_PLAN_UNITS)
            return ls_fail(l->err, LS_EINPUT, strategy->at, "'strategy' is ddp, but 'units' lists what FSDP2 shards");
        if (which > 1)
            return ls_fail(l->err, LS_EINPUT, strategy->at, "'strategy' is %s, which is not modelled yet", names[which]);
        l->s->ddp = (struct ls_ddp){ .present = which == 1, .broadcast_buffers = true, .at = strategy->at };
    }
    if (target) {
        const char *text;
        LS_TRY(ls_yaml_text(target, "_target_", &text, l->err));
        const char *leaf = strrchr(text, '.') ? strrchr(text, '.') + 1 : text;
        if (strcmp(leaf, "FSDP2Manager") != 0 && strcmp(leaf, "FSDP2Config") != 0)
            return ls_fail(l->err, LS_EINPUT, target->at, "'_target_' is '%.100s', which is not modelled; FSDP2Manager is", text);
    }
    return LS_OK;
}

static enum ls_code load_size(struct loader *l, const struct ls_yaml_node *n, const char *key, uint64_t *out, bool *any)
{
    const struct ls_yaml_node *v = ls_yaml_get(n, key);
    if (!v)
        return LS_OK;
    if (any && ls_yaml_is_text(v, "any") && !v->quoted) {
        *any = true;
        return LS_OK;
    }
    if (any && (ls_yaml_is_null(v) || ls_yaml_is_text(v, "none") || ls_yaml_is_text(v, "auto"))) {
        ls_fail(l->err, LS_EINPUT, v->at, "'%s' is left to the world size, which a scenario does not have", key);
        ls_hint(l->err, "write a number, or any");
        return LS_EINPUT;
    }
    enum ls_code rc = ls_yaml_uint(v, key, 1, 1 << 20, out, l->err);
    if (rc != LS_OK && any && v->kind == LS_YAML_SCALAR && (v->text[0] < '0' || v->text[0] > '9') && v->text[0] != '-')
        ls_hint(l->err, "write a number, or any");
    return rc;
}

static enum ls_code load_mesh(struct loader *l, const struct ls_yaml_node *n)
{
    static const struct { const char *key, *what; } later[] = { { "cp_size", "context" }, { "tp_size", "tensor" },
                                                                { "pp_size", "pipeline" } };
    struct ls_mesh_input in = { .dp_replicate = 1, .cp = 1, .tp = 1, .pp = 1, .ep = 1, .at = n->at };
    const struct ls_yaml_node *dp = ls_yaml_get(n, "dp_size"), *replicate = ls_yaml_get(n, "dp_replicate_size");
    if (!dp) {
        ls_fail(l->err, LS_EINPUT, n->at, "'dp_size' is missing in 'distributed'");
        ls_hint(l->err, "write a number, or any to prove it for every size");
        return LS_EINPUT;
    }
    LS_TRY(load_size(l, n, "dp_size", &in.dp, &in.dp_any));
    LS_TRY(load_size(l, n, "dp_replicate_size", &in.dp_replicate, &in.replicate_any));
    in.dp_given = true;
    in.at = dp->at;
    if (in.replicate_any && !in.dp_any)
        return ls_fail(l->err, LS_EINPUT, replicate->at, "'dp_replicate_size' is any, but 'dp_size' is %" PRIu64, in.dp);
    if (!in.dp_any && in.dp % in.dp_replicate)
        return ls_fail(l->err, LS_EINPUT, replicate->at, "'dp_replicate_size' %" PRIu64 " does not divide 'dp_size' %" PRIu64,
                       in.dp_replicate, in.dp);
    for (size_t i = 0; i < sizeof later / sizeof *later; i++) {
        uint64_t size = 1;
        LS_TRY(load_size(l, n, later[i].key, &size, NULL));
        if (size > 1)
            return ls_fail(l->err, LS_EINPUT, ls_yaml_get(n, later[i].key)->at, "'%s' is %" PRIu64 ", but %s parallelism is not modelled yet",
                           later[i].key, size, later[i].what);
    }
    LS_TRY(load_size(l, n, "ep_size", &in.ep, NULL));
    if (in.ep > 1) {
        in.at = ls_yaml_get(n, "ep_size")->at;
        if (l->s->ddp.present)
            return ls_fail(l->err, LS_EINPUT, in.at, "'ep_size' is %" PRIu64 ", but DDP knows no expert groups", in.ep);
        if (l->s->kind == LS_PLAN_UNITS)
            return ls_fail(l->err, LS_EINPUT, in.at, "'ep_size' decides over which ranks units are cut, but 'units' lists them");
    }
    return ls_mesh_make(&in, &l->s->mesh, l->err);
}

enum ls_code ls_load_mp_policy(struct loader *l, const struct ls_yaml_node *n, enum ls_dtype *param, enum ls_dtype *reduce,
                               enum ls_dtype *output, bool *cast_inputs)
{
    static const struct { const char *ours, *theirs; } names[] = { { "param", "param_dtype" }, { "reduce", "reduce_dtype" },
                                                                   { "output", "output_dtype" }, { "cast_inputs", "cast_forward_inputs" } };
    enum ls_dtype *const to[] = { param, reduce, output };
    *cast_inputs = true;
    if (!n || ls_yaml_is_null(n)) {
        *param = LS_DTYPE_BF16, *reduce = LS_DTYPE_F32, *output = LS_DTYPE_BF16;
        return LS_OK;
    }
    LS_TRY(ls_load_check_keys(l, n, "distributed.mp_policy", false));
    for (size_t i = 0; i < 4; i++) {
        const struct ls_yaml_node *a = ls_yaml_get(n, names[i].ours), *b = ls_yaml_get(n, names[i].theirs), *v = a ? a : b;
        if (a && b)
            return ls_fail(l->err, LS_EINPUT, b->at, "'%s' and '%s' say the same thing twice", names[i].ours, names[i].theirs);
        if (v && i < 3)
            LS_TRY(ls_load_dtype(l, v, a ? names[i].ours : names[i].theirs, true, to[i]));
        else if (v)
            LS_TRY(ls_yaml_bool(v, a ? names[i].ours : names[i].theirs, cast_inputs, l->err));
    }
    return LS_OK;
}

static enum ls_code load_depth(struct loader *l, const struct ls_yaml_node *n, const char *key, unsigned *out)
{
    uint64_t depth = *out;
    if (n)
        LS_TRY(ls_yaml_uint(n, key, 0, 1024, &depth, l->err));
    *out = (unsigned)depth;
    return LS_OK;
}

static enum ls_code load_prefetch(struct loader *l, const struct ls_yaml_node *n)
{
    static const char *const keys[] = { "enabled", "forward", "backward", NULL };
    static const char *const flat[] = { "enable_fsdp2_prefetch", "fsdp2_forward_prefetch_depth", "fsdp2_backward_prefetch_depth" };
    struct ls_policy *p = &l->s->policy;
    const struct ls_yaml_node *own = ls_yaml_get(n, "prefetch"), *v[3];
    p->prefetch_forward = 1, p->prefetch_backward = 2;
    if (own)
        LS_TRY(ls_yaml_check_keys(own, "prefetch", keys, l->err));
    for (size_t i = 0; i < 3; i++) {
        v[i] = ls_yaml_get(n, flat[i]);
        if (own && v[i])
            return ls_fail(l->err, LS_EINPUT, v[i]->at, "'%s' cannot stand beside 'prefetch'", flat[i]);
        if (own)
            v[i] = ls_yaml_get(own, keys[i]);
    }
    if (v[0])
        LS_TRY(ls_yaml_bool(v[0], own ? keys[0] : flat[0], &p->prefetch, l->err));
    LS_TRY(load_depth(l, v[1], own ? keys[1] : flat[1], &p->prefetch_forward));
    return load_depth(l, v[2], own ? keys[2] : flat[2], &p->prefetch_backward);
}

static enum ls_code load_checkpointing(struct loader *l, const struct ls_yaml_node *n)
{
    const struct ls_yaml_node *v = ls_yaml_get(n, "activation_checkpointing"), *scope = ls_yaml_get(n, "activation_checkpointing_scope");
    if (v && ls_yaml_is_text(v, "full")) {
        l->s->policy.activation_checkpointing = true;
    } else if (v && ls_yaml_is_text(v, "selective")) {
        return ls_fail(l->err, LS_EINPUT, v->at, "'activation_checkpointing' is selective, which is not modelled yet; true is");
    } else if (v) {
        LS_TRY(ls_yaml_bool(v, "activation_checkpointing", &l->s->policy.activation_checkpointing, l->err));
    }
    if (!scope || ls_yaml_is_null(scope))
        return LS_OK;
    const struct ls_yaml_node *one = scope->kind == LS_YAML_LIST && scope->count == 1 ? scope->item[0] : scope;
    if (!ls_yaml_is_text(one, "all"))
        return ls_fail(l->err, LS_EINPUT, scope->at, "'activation_checkpointing_scope' other than all is not modelled yet");
    return LS_OK;
}

static enum ls_code load_frozen(struct loader *l, const struct ls_yaml_node *n, enum ls_frozen *out, struct ls_loc *at)
{
    static const char *const names[] = { "root", "per_layer", "replicate", NULL };
    size_t which = 0;
    LS_TRY(ls_yaml_choice(n, "frozen_sharding", names, &which, l->err));
    *out = (enum ls_frozen)which;
    *at = n->at;
    return LS_OK;
}

static enum ls_code load_modality(struct loader *l, const char *name, const struct ls_yaml_node *n, struct ls_modality_policy *out)
{
    static const char *const dummies[] = { "auto", "true", "false", NULL };
    const struct ls_yaml_node *v;
    *out = (struct ls_modality_policy){ .modality = ls_name_id(l->s->names, name), .dummy = LS_DUMMY_AUTO, .dummy_at = n->at };
    LS_TRY(ls_yaml_map(n, name, l->err));
    LS_TRY(ls_load_check_keys(l, n, "distributed.multimodal.MODALITY", false));
    if ((v = ls_yaml_get(n, "frozen_sharding"))) {
        out->has_frozen = true;
        LS_TRY(load_frozen(l, v, &out->frozen, &out->frozen_at));
    }
    if ((v = ls_yaml_get(n, "run_dummy_forward"))) {
        size_t which = 0;
        LS_TRY(ls_yaml_choice(v, "run_dummy_forward", dummies, &which, l->err));
        out->dummy = (enum ls_dummy)which;
        out->dummy_at = v->at;
    }
    if ((v = ls_yaml_get(n, "frame_sharding"))) {
        bool on = false;
        const struct ls_yaml_node *enabled;
        LS_TRY(ls_load_check_keys(l, v, "distributed.multimodal.MODALITY.frame_sharding", false));
        if ((enabled = ls_yaml_get(v, "enabled")))
            LS_TRY(ls_yaml_bool(enabled, "enabled", &on, l->err));
        if (on)
            return ls_fail(l->err, LS_EINPUT, enabled->at, "'frame_sharding' cuts frames over cp, but 'cp_size' is 1");
    }
    return LS_OK;
}

static enum ls_code load_multimodal(struct loader *l, const struct ls_yaml_node *n)
{
    struct ls_policy *p = &l->s->policy;
    const struct ls_yaml_node *v;
    p->frozen = LS_FROZEN_ROOT;
    p->frozen_at = n ? n->at : p->at;
    if (!n || ls_yaml_is_null(n))
        return LS_OK;
    LS_TRY(ls_load_check_keys(l, n, "distributed.multimodal", true));
    if ((v = ls_yaml_get(n, "frozen_sharding")))
        LS_TRY(load_frozen(l, v, &p->frozen, &p->frozen_at));
    if ((v = ls_yaml_get(n, "validate_rank_uniform_execution"))) {
        bool on = false;
        uint64_t *rounds = &l->s->step.validate_rank_uniform;
        l->s->step.at = v->at;
        if (v->kind == LS_YAML_MAP) {
            static const char *const keys[] = { "microbatches", "where", NULL }, *const places[] = { "boundary", "tower", NULL };
            const struct ls_yaml_node *where = ls_yaml_get(v, "where");
            size_t place = 0;
            LS_TRY(ls_yaml_check_keys(v, "validate_rank_uniform_execution", keys, l->err));
            if (where)
                LS_TRY(ls_yaml_choice(where, "where", places, &place, l->err));
            l->s->step.validate_in_tower = place == 1;
            l->s->step.at = where ? where->at : v->at;
            if (!ls_yaml_get(v, "microbatches"))
                return ls_fail(l->err, LS_EINPUT, v->at, "'microbatches' is missing in 'validate_rank_uniform_execution'");
            v = ls_yaml_get(v, "microbatches");
        }
        if (ls_yaml_is_text(v, "always"))
            *rounds = UINT64_MAX;
        else if (ls_yaml_bool(v, "", &on, NULL) != LS_OK || on) {
            enum ls_code rc = ls_yaml_uint(v, "validate_rank_uniform_execution", 1, 1 << 20, rounds, l->err);
            if (rc != LS_OK)
                ls_hint(l->err, "false, always, or the number of first microbatches that are checked");
            LS_TRY(rc);
        }
    }
    struct ls_modality_policy *m = LS_NEW(l->s->arena, struct ls_modality_policy, n->count ? n->count : 1);
    for (size_t i = 0; i < n->count; i++)
        if (!ls_key_find("distributed.multimodal", n->pair[i].key->text))
            LS_TRY(load_modality(l, n->pair[i].key->text, n->pair[i].value, &m[p->modalities++]));
    p->modality = m;
    return LS_OK;
}

static enum ls_code load_ddp(struct loader *l, const struct ls_yaml_node *distributed)
{
    static const char *const shards[] = { "multimodal", "reshard_after_forward", "prefetch", "enable_fsdp2_prefetch", "fsdp2_forward_prefetch_depth",
                                          "fsdp2_backward_prefetch_depth", "mp_policy", "activation_checkpointing",
                                          "activation_checkpointing_scope" };
    const struct ls_yaml_node *n = ls_yaml_get(distributed, "ddp"), *v;
    struct ls_ddp *d = &l->s->ddp;
    if (n && !d->present)
        return ls_fail(l->err, LS_EINPUT, n->at, "'ddp' needs 'strategy: ddp'");
    if (!d->present)
        return LS_OK;
    for (size_t k = 0; k < sizeof shards / sizeof *shards; k++)
        if ((v = ls_yaml_get(distributed, shards[k])))
            return ls_fail(l->err, LS_EINPUT, v->at, "'%s' is FSDP2's; with 'strategy: ddp' it has no meaning", shards[k]);
    if (l->s->mesh.replicate != 1)
        return ls_fail(l->err, LS_EINPUT, ls_yaml_get(distributed, "dp_replicate_size")->at, "with 'strategy: ddp' every rank is a replica: 'dp_size' says how many");
    if (!n)
        return LS_OK;
    LS_TRY(ls_yaml_map(n, "ddp", l->err));
    LS_TRY(ls_load_check_keys(l, n, "distributed.ddp", false));
    if ((v = ls_yaml_get(n, "bucket_cap_mb"))) {
        double mib = 0;
        LS_TRY(ls_yaml_real(v, "bucket_cap_mb", &mib, l->err));
        if (!(mib > 0 && mib <= 1 << 20))
            return ls_fail(l->err, LS_EINPUT, v->at, "'bucket_cap_mb' is not above 0 and at most %d", 1 << 20);
        d->bucket_bytes = (uint64_t)(mib * 1048576);
        d->bucket_bytes += d->bucket_bytes == 0;
    }
    static const char *const keys[] = { "find_unused_parameters", "static_graph", "broadcast_buffers", "gradient_as_bucket_view" };
    bool view = false, *const to[] = { &d->find_unused, &d->static_graph, &d->broadcast_buffers, &view };
    for (size_t i = 0; i < 4; i++)
        if ((v = ls_yaml_get(n, keys[i])))
            LS_TRY(ls_yaml_bool(v, keys[i], to[i], l->err));
    return LS_OK;
}

/* With explicit units only the sizes and the rules of freezing are left to say. */
static enum ls_code check_beside_units(struct loader *l, const struct ls_yaml_node *n)
{
    static const char *const decide[] = { "multimodal", "reshard_after_forward", "prefetch", "enable_fsdp2_prefetch",
                                          "fsdp2_forward_prefetch_depth", "fsdp2_backward_prefetch_depth", "mp_policy",
                                          "activation_checkpointing", "activation_checkpointing_scope", "moe" };
    for (size_t i = 0; i < n->count; i++)
        for (size_t k = 0; k < sizeof decide / sizeof *decide; k++)
            if (strcmp(n->pair[i].key->text, decide[k]) == 0)
                return ls_fail(l->err, LS_EINPUT, n->pair[i].key->at, "'%s' decides how units are made, but 'units' lists them", decide[k]);
    return LS_OK;
}

enum ls_code ls_load_distributed(struct loader *l)
{
    const struct ls_yaml_node *n = section(l, "distributed"), *v;
    struct ls_policy *p = &l->s->policy;
    p->at = n->at;
    p->automodel = l->s->automodel;
    p->cast_inputs = true;
    LS_TRY(ls_load_check_keys(l, n, "distributed", false));
    LS_TRY(load_strategy(l, n));
    LS_TRY(load_mesh(l, n));
    LS_TRY(load_ddp(l, n));
    if ((v = ls_yaml_get(n, "defer_fsdp_grad_sync"))) {
        LS_TRY(ls_yaml_bool(v, "defer_fsdp_grad_sync", &l->defer_value, l->err));
        l->defer = v;
    }
    if (l->s->kind == LS_PLAN_UNITS)
        return check_beside_units(l, n);
    if ((v = ls_yaml_get(n, "reshard_after_forward")))
        LS_TRY(ls_load_reshard(l, v, "reshard_after_forward", &p->reshard, &p->reshard_size));
    LS_TRY(ls_load_mp_policy(l, ls_yaml_get(n, "mp_policy"), &p->param_dtype, &p->reduce_dtype, &p->output_dtype, &p->cast_inputs));
    LS_TRY(load_prefetch(l, n));
    LS_TRY(load_checkpointing(l, n));
    LS_TRY(load_multimodal(l, ls_yaml_get(n, "multimodal")));
    return ls_load_experts(l);
}
