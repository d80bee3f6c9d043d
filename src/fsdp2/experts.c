/* Expert parallelism: what a rank issues around the experts of a layer, and what the training step does for them.
 *
 * `torch` gathers the tokens of all ranks, computes its own experts' part of every token's output, and adds the parts up. Gradients
 * go the same way: the sum of the output's gradient, then of what the gathers yield. The fused dispatchers send each token to the
 * ranks of its experts and fetch the results, one exchange each, and the transposes in backward. How many tokens go where is decided
 * by the gate at run time; counts are elements per token of a rank.
 * Per layer: one exchange out and one back, in forward; in backward the transposes, from what forward learnt; in recomputation the one
 * out again, the one back only if something behind it is saved.
 *   source  AutoModel components/moe: experts.py (GroupedExperts, _AllGatherConcatVarlenFn, GroupedExpertsDeepEP), layers.py
 *           (Gate.update_bias), megatron/fused_a2a.py (FusedDispatch, FusedCombine and those of UCCL-EP and HybridEP),
 *           megatron/token_dispatcher.py (_HybridEPManager.dispatch), parallelizer.py (_replay_deepep_dispatch_on_recompute); components/training/utils.py (scale_grads_and_clip_grad_norm) */
#include "fsdp2/internal.h"

#include <stdio.h>

static const struct ls_expert_plan *experts_of(const struct run *r) { return &r->c->in.plan->experts; }

void experts_open(struct compiler *c)
{
    const struct ls_expert_plan *x = &c->in.plan->experts;
    const struct ls_mesh *mesh = c->in.mesh;
    c->comm_experts = c->comm_dispatch = c->comm_ep = LS_NO_ID;
    if (x->ep <= 1)
        return;
    /* Expert groups are runs of ranks in mesh order: a dimension, a part of dp_shard, or across replicas. */
    const uint32_t all = (c->shard > 1 ? LS_DIM_SHARD : 0u) | (c->replicate > 1 ? LS_DIM_REPLICATE : 0u);
    uint32_t dims = all, small = (uint32_t)x->ep, shard_dims = all, across = small;
    /* An expert group of all ranks is the default group, which `dp` is, too. */
    const bool everyone = mesh->shard != LS_SIZE_ANY && x->ep == c->shard * c->replicate;
    if (everyone)
        small = 0;
    else if (mesh->shard != LS_SIZE_ANY && x->ep == c->shard)
        dims = LS_DIM_SHARD, small = 0, shard_dims = LS_DIM_REPLICATE, across = 0;
    else if (mesh->shard == LS_SIZE_ANY || c->shard % x->ep == 0)
        dims = LS_DIM_SHARD;
    if (x->dispatcher == LS_DISPATCH_TORCH || x->agrees_tokens || c->in.step.clip_grad_norm)
        c->comm_ep = add_comm(c, everyone ? "dp" : "ep", dims, small);
    /* The fused dispatchers exchange through buffers of their own, not through the group's communicator. */
    c->comm_dispatch = x->dispatcher == LS_DISPATCH_TORCH ? c->comm_ep : add_comm(c, "ep_buffer", dims, small);
    if (x->ep_shard != 1) {
        c->comm_experts = add_comm(c, "ep_shard", shard_dims, 0);
        c->in.tables->comm.at[c->comm_experts].across = across;
    }
}

uint32_t experts_layer(const struct run *r, const struct ls_flow *f)
{
    const struct ls_model *m = r->c->in.plan->model;
    if (r->c->comm_dispatch == LS_NO_ID || f->kind != LS_FLOW_CALL)
        return LS_NO_ID;
    const struct ls_moe *moe = ls_model_moe(m, f->module);
    return moe ? (uint32_t)(moe - m->moe) : LS_NO_ID;
}

static uint64_t hidden(const struct run *r, uint32_t layer)
{
    const struct ls_model *m = r->c->in.plan->model;
    return m->param[m->module[m->moe[layer].experts].first_param].dim[1]; /* [experts, hidden, ...] */
}

static enum ls_dtype token_dtype(const struct run *r, uint32_t layer)
{
    const struct ls_plan *plan = r->c->in.plan;
    const uint32_t param = plan->model->module[plan->model->moe[layer].experts].first_param, unit = plan->owner[param];
    return unit == LS_NO_ID ? plan->model->param[param].dtype : gather_dtype(r, unit, param);
}

static struct ls_op *exchange(struct run *r, uint32_t layer, enum ls_op_kind kind, const char *what, enum ls_dtype dtype, uint64_t per_token)
{
    const struct ls_model *m = r->c->in.plan->model;
    const uint32_t experts = m->module[m->moe[layer].experts].name;
    char text[1200];
    snprintf(text, sizeof text, "%s of %s", what, ls_name_text(r->c->names, experts));
    struct ls_op *op = emit(r, kind, LS_STREAM_D, LS_NO_ID);
    op->comm = (uint16_t)r->c->comm_dispatch;
    op->dtype = (uint8_t)dtype;
    op->reduce = kind == LS_OP_ALL_REDUCE ? LS_REDUCE_SUM : LS_REDUCE_NONE;
    op->count = per_token;
    op->symbol = ls_name_id(r->c->names, "tokens");
    op->module = experts;
    op->payload = ls_tables_payload(r->c->in.tables, text, NULL, 0, 0);
    op->cause = r->c->expert_cause;
    return op;
}

/* HybridEP's exchange has one size for all ranks: their own number of tokens, or the one that they agreed on. */
static void bind_tokens(struct run *r, struct ls_op *op)
{
    if (experts_of(r)->dispatcher != LS_DISPATCH_HYBRIDEP || experts_of(r)->agrees_tokens || !r->letter->tokens)
        return;
    op->count *= r->letter->tokens;
    op->symbol = LS_NO_ID;
}

void experts_dispatch(struct run *r, uint32_t layer)
{
    const struct ls_expert_plan *x = experts_of(r);
    const uint64_t k = r->c->in.plan->model->moe[layer].top_k;
    if (x->agrees_tokens) {
        struct ls_op *most = exchange(r, layer, LS_OP_ALL_REDUCE, "token count", LS_DTYPE_I64, 1);
        most->comm = (uint16_t)r->c->comm_ep;
        most->reduce = LS_REDUCE_MAX;
        most->symbol = LS_NO_ID;
        most->blocking = true;
    }
    if (x->dispatcher != LS_DISPATCH_TORCH) {
        struct ls_op *op = exchange(r, layer, LS_OP_ALL_TO_ALL, "tokens", token_dtype(r, layer), hidden(r, layer) * k);
        bind_tokens(r, op);
        /* The host waits for the number of tokens that arrive; recomputation may know it from forward. */
        op->blocking = r->pass != LS_PASS_R || !x->replays_dispatch;
        return;
    }
    struct ls_op *op = exchange(r, layer, LS_OP_ALL_GATHER, "token counts", LS_DTYPE_I64, 1);
    op->symbol = LS_NO_ID;
    op->blocking = true; /* read by the host: they are the sizes of what follows */
    exchange(r, layer, LS_OP_ALL_GATHER, "tokens", token_dtype(r, layer), hidden(r, layer));
    exchange(r, layer, LS_OP_ALL_GATHER, "routing weights", LS_DTYPE_F32, k);
    exchange(r, layer, LS_OP_ALL_GATHER, "expert indices", LS_DTYPE_I64, k);
    exchange(r, layer, LS_OP_ALL_GATHER, "token mask", LS_DTYPE_BOOL, 1);
}

void experts_combine(struct run *r, uint32_t layer)
{
    if (experts_of(r)->dispatcher == LS_DISPATCH_TORCH)
        exchange(r, layer, LS_OP_ALL_REDUCE, "outputs", LS_DTYPE_F32, hidden(r, layer) * experts_of(r)->ep);
    else
        bind_tokens(r, exchange(r, layer, LS_OP_ALL_TO_ALL, "outputs", token_dtype(r, layer),
                                hidden(r, layer) * r->c->in.plan->model->moe[layer].top_k));
}

void experts_combine_backward(struct run *r, uint32_t layer)
{
    if (experts_of(r)->dispatcher == LS_DISPATCH_TORCH)
        exchange(r, layer, LS_OP_ALL_REDUCE, "output gradients", LS_DTYPE_F32, hidden(r, layer) * experts_of(r)->ep);
    else
        bind_tokens(r, exchange(r, layer, LS_OP_ALL_TO_ALL, "output gradients", token_dtype(r, layer),
                                hidden(r, layer) * r->c->in.plan->model->moe[layer].top_k));
}

void experts_dispatch_backward(struct run *r, uint32_t layer, bool tokens_grad, bool weights_grad)
{
    const uint64_t k = r->c->in.plan->model->moe[layer].top_k, all = experts_of(r)->ep;
    if (experts_of(r)->dispatcher != LS_DISPATCH_TORCH) {
        if (tokens_grad || weights_grad)
            bind_tokens(r, exchange(r, layer, LS_OP_ALL_TO_ALL, "token gradients", token_dtype(r, layer), hidden(r, layer) * k));
        return;
    }
    /* Gathered gradients are summed whole and cut to the rank's own part; the last gather first. */
    if (weights_grad)
        exchange(r, layer, LS_OP_ALL_REDUCE, "routing weight gradients", LS_DTYPE_F32, k * all);
    if (tokens_grad)
        exchange(r, layer, LS_OP_ALL_REDUCE, "token gradients", token_dtype(r, layer), hidden(r, layer) * all);
}

/* ---------------------------------------------------------------------------------------------- the training step */

/* A rank's experts see the tokens of ep ranks, and fully_shard averages over ep_shard only: dividing by (ranks / ep_shard) makes the
 * mean over all ranks of it. */
void experts_step(struct run *r)
{
    const struct ls_plan *plan = r->c->in.plan;
    const struct ls_expert_plan *x = &plan->experts;
    id_vec names = { 0 };
    for (uint32_t i = 0; i < plan->model->params; i++)
        if (plan->model->param[i].canonical == i && plan->requires_grad[i] && x->layer[i] != LS_NO_ID && x->scaled[x->layer[i]])
            ls_push(&names, plan->model->param[i].name);
    if (names.count) {
        struct ls_op *op = emit(r, LS_OP_COMPUTE, LS_STREAM_D, LS_NO_ID);
        op->payload = ls_tables_payload(r->c->in.tables, "expert gradients", names.at, names.count, 0);
        op->module = ls_name_id(r->c->names, "expert gradients");
        op->factor = (struct ls_ratio){ 1, (uint32_t)x->ep };
        op->cause = r->c->step_cause;
        emit_reduced(r, LS_UNIT_EXPERTS, true);
    }
    ls_vec_release(&names);
}

/* Parameters whose gradients lie alike: over which ranks they are cut decides over which their norm is summed. Groups go by the
 * identity of a mesh. fully_shard makes a mesh of its own for every parameter that is cut over ep already; DTensor's cache then
 * hands parameters of equal shape the first one's. */
enum norm_group { NORM_WHOLE, NORM_DP, NORM_EXPERTS };

static enum norm_group norm_group(const struct ls_plan *plan, uint32_t param)
{
    if (plan->experts.layer[param] != LS_NO_ID)
        return NORM_EXPERTS;
    return plan->owner[param] == LS_NO_ID ? NORM_WHOLE : NORM_DP;
}

static bool norm_together(const struct ls_plan *plan, uint32_t a, uint32_t b)
{
    const struct ls_param *p = &plan->model->param[a], *q = &plan->model->param[b];
    const enum norm_group g = norm_group(plan, a);
    bool same = p->dims == q->dims && p->dtype == q->dtype;
    for (unsigned d = 0; same && d < p->dims; d++)
        same = p->dim[d] == q->dim[d];
    return g == norm_group(plan, b) && (g != NORM_EXPERTS || plan->owner[a] == LS_NO_ID || !plan->experts.norm_over_ep || same);
}

static bool norm_counts(const struct run *r, uint32_t param)
{
    const struct ls_plan *plan = r->c->in.plan;
    return plan->model->param[param].canonical == param && plan->requires_grad[param] &&
           (!plan->experts.present_norms || r->now.sharded[param]);
}

static void reduce_norm(struct run *r, enum norm_group g, const char *payload, enum ls_reduce reduce)
{
    uint32_t comm[2] = { LS_NO_ID, LS_NO_ID };
    if (g == NORM_DP)
        comm[0] = r->c->comm_shard;
    else if (g == NORM_EXPERTS)
        comm[0] = r->c->comm_experts, comm[1] = r->c->in.plan->experts.norm_over_ep ? r->c->comm_ep : LS_NO_ID;
    for (size_t i = 0; i < 2; i++)
        if (comm[i] != LS_NO_ID)
            scalar_all_reduce(r, comm[i], payload, reduce, 1)->dtype = LS_DTYPE_F64;
}

void experts_clip(struct run *r)
{
    static const char *const what[][2] = { { "", "" }, { "grad norm maximum", "grad norm" },
                                           { "expert grad norm maximum", "expert grad norm" } };
    const struct ls_plan *plan = r->c->in.plan;
    for (uint32_t i = 0; i < plan->model->params; i++) {
        const enum norm_group g = norm_group(plan, i);
        bool first = norm_counts(r, i) && g != NORM_WHOLE;
        for (uint32_t k = 0; k < i && first; k++)
            first = !norm_counts(r, k) || !norm_together(plan, i, k);
        if (!first)
            continue;
        if (!plan->experts.one_pass_norm)
            reduce_norm(r, g, what[g][0], LS_REDUCE_MAX);
        reduce_norm(r, g, what[g][1], LS_REDUCE_SUM);
    }
}

void experts_update_bias(struct run *r)
{
    const struct ls_model *m = r->c->in.plan->model;
    for (size_t i = 0; i < m->moes; i++) {
        char text[1200];
        if (!m->moe[i].bias_update)
            continue;
        snprintf(text, sizeof text, "expert load of %s", ls_name_text(r->c->names, m->module[m->moe[i].gate].name));
        /* Two mesh dimensions are reduced at once where a communicator over both exists, which AutoModel's mesh has. */
        const uint32_t comm = r->c->comm_replicate == LS_NO_ID ? r->c->comm_shard : r->c->comm_dp;
        scalar_all_reduce(r, comm, text, LS_REDUCE_SUM, m->moe[i].count)->dtype = LS_DTYPE_I64;
    }
}
