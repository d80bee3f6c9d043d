/* distributed.moe and model.backend: what expert parallelism adds. */
#include "scenario/internal.h"

#include <string.h>

static enum ls_code load_moe(struct loader *l, const struct ls_yaml_node *n)
{
    struct ls_moe_policy *m = &l->s->policy.moe;
    const struct ls_yaml_node *v;
    LS_TRY(ls_load_check_keys(l, n, "distributed.moe", false));
    m->at = n->at;
    if ((v = ls_yaml_get(n, "wrap_outer_model")))
        LS_TRY(ls_yaml_bool(v, "wrap_outer_model", &m->wrap_outer_model, l->err));
    if ((v = ls_yaml_get(n, "reshard_after_forward")))
        LS_TRY(ls_yaml_bool(v, "reshard_after_forward", &m->reshard, l->err));
    if ((v = ls_yaml_get(n, "ignore_router_for_ac")))
        LS_TRY(ls_yaml_bool(v, "ignore_router_for_ac", &m->ignore_router, l->err));
    if ((v = ls_yaml_get(n, "lm_head_precision"))) {
        enum ls_dtype dtype;
        LS_TRY(ls_load_dtype(l, v, "lm_head_precision", true, &dtype));
        m->lm_head_f32 = dtype == LS_DTYPE_F32; /* no other one has an effect */
    }
    if ((v = ls_yaml_get(n, "mp_policy")) && !ls_yaml_is_null(v)) {
        m->has_mp = true;
        LS_TRY(ls_load_mp_policy(l, v, &m->param_dtype, &m->reduce_dtype, &m->output_dtype, &m->cast_inputs));
    }
    return LS_OK;
}

static enum ls_code load_backend(struct loader *l, const struct ls_yaml_node *n)
{
    static const char *const dispatchers[] = { "torch", "deepep", "uccl_ep", "hybridep", "mok", NULL };
    static const char *const experts[] = { "torch", "te", "gmm", "torch_mm", "torch_mm_mxfp8", NULL };
    struct ls_moe_policy *m = &l->s->policy.moe;
    const struct ls_yaml_node *v;
    size_t which = 0;
    bool dummy = true, fake = false, pinned = false;
    LS_TRY(ls_load_check_keys(l, n, "model.backend", false));
    if ((v = ls_yaml_get(n, "dispatcher"))) {
        LS_TRY(ls_yaml_choice(v, "dispatcher", dispatchers, &which, l->err));
        if (which == LS_DISPATCH_COUNT)
            return ls_fail(l->err, LS_EINPUT, v->at, "'dispatcher' is mok; what its kernels exchange, and when, is decided in a library outside "
                           "AutoModel, and is not modelled");
        m->dispatcher = (enum ls_dispatcher)which;
        m->dispatcher_at = v->at;
    }
    if ((v = ls_yaml_get(n, "experts"))) {
        LS_TRY(ls_yaml_choice(v, "experts", experts, &which, l->err));
        m->te_experts = which <= 1; /* a fused dispatcher takes those of Transformer Engine for `torch` too */
    }
    if ((v = ls_yaml_get(n, "enable_fsdp_optimizations")))
        LS_TRY(ls_yaml_bool(v, "enable_fsdp_optimizations", &m->fsdp_optimizations, l->err));
    if ((v = ls_yaml_get(n, "fake_balanced_gate")))
        LS_TRY(ls_yaml_bool(v, "fake_balanced_gate", &fake, l->err));
    if ((v = ls_yaml_get(n, "benchmark_static_routing")))
        LS_TRY(ls_yaml_bool(v, "benchmark_static_routing", &pinned, l->err));
    if (pinned && !fake)
        return ls_fail(l->err, LS_EINPUT, v->at, "'benchmark_static_routing' needs fake_balanced_gate: true; AutoModel refuses it otherwise");
    if (pinned && ls_moe_agrees_tokens(&l->s->policy))
        return ls_fail(l->err, LS_EINPUT, v->at, "'benchmark_static_routing' lets each rank leave out the agreement on token counts while its "
                       "own count does not grow, which is not modelled");
    if ((v = ls_yaml_get(n, "dummy_expert_pass")))
        LS_TRY(ls_yaml_bool(v, "dummy_expert_pass", &dummy, l->err));
    m->no_dummy_pass = !dummy;
    return LS_OK;
}

/* Adapters of experts that AutoModel lacks, or that issue other collectives than the experts alone. */
static enum ls_code check_adapters(struct loader *l)
{
    const struct ls_model *m = &l->s->model;
    for (size_t i = 0; i < m->moes; i++) {
        const struct ls_module *experts = &m->module[m->moe[i].experts];
        for (uint32_t p = experts->first_param; p < experts->first_param + experts->params; p++) {
            if (!m->param[p].adapter)
                continue;
            if (l->s->policy.moe.te_experts)
                return ls_fail(l->err, LS_EINPUT, m->param[p].at, "AutoModel has no adapters for experts of Transformer Engine; choose experts: "
                               "torch_mm, or other targets");
            if (l->s->mesh.ep > 1 && l->s->policy.moe.dispatcher == LS_DISPATCH_TORCH && l->s->policy.automodel < 7)
                return ls_fail(l->err, LS_EINPUT, m->param[p].at, "adapted experts of AutoModel 0.6 gather by DTensor, unlike all others, which is "
                               "not modelled; choose runtime.automodel: \"0.7\", or another dispatcher");
        }
    }
    return LS_OK;
}

enum ls_code ls_load_experts(struct loader *l)
{
    const struct ls_yaml_node *moe = ls_yaml_get(section(l, "distributed"), "moe"), *backend = ls_yaml_get(section(l, "model"), "backend");
    struct ls_moe_policy *m = &l->s->policy.moe;
    *m = (struct ls_moe_policy){ .wrap_outer_model = true, .ignore_router = true };
    if (moe && !ls_yaml_is_null(moe))
        LS_TRY(load_moe(l, moe));
    if (backend && !ls_yaml_is_null(backend))
        LS_TRY(load_backend(l, backend));
    m->te_experts = m->te_experts && m->dispatcher != LS_DISPATCH_TORCH;
    return check_adapters(l);
}
