/* The collectives around forward and backward: the uniformity check before a microbatch; clipping, metrics and the optimizer at
 * a step end. */
#include "fsdp2/internal.h"

#include <stdio.h>

struct ls_op *scalar_all_reduce(struct run *r, uint32_t comm, const char *payload, enum ls_reduce reduce, uint64_t count)
{
    struct ls_op *op = emit(r, LS_OP_ALL_REDUCE, LS_STREAM_D, LS_NO_ID);
    op->comm = (uint16_t)comm;
    op->dtype = LS_DTYPE_F32;
    op->reduce = (uint8_t)reduce;
    op->count = count;
    op->payload = ls_tables_payload(r->c->in.tables, payload, NULL, 0, count);
    op->cause = r->c->step_cause;
    return op;
}

/* One vote of every rank: is `value` set on any of them? What follows depends on the agreed answer. */
static void vote(struct run *r, const char *payload, bool value, uint32_t then_count)
{
    struct ls_op *op = emit(r, LS_OP_DECIDE, LS_STREAM_D, LS_NO_ID);
    op->comm = (uint16_t)r->c->comm_dp;
    op->dtype = LS_DTYPE_I32;
    op->reduce = LS_REDUCE_MAX;
    op->count = 1;
    op->value = value;
    op->then_count = then_count;
    op->payload = ls_tables_payload(r->c->in.tables, payload, NULL, 0, 1);
    op->cause = r->c->step_cause;
}

/* Raises on every rank if some run a condition `a` times and others `b` times: if both votes find somebody. */
static void check_counts(struct run *r, unsigned condition, unsigned a, unsigned b)
{
    const struct ls_model *m = r->c->in.plan->model;
    const char *name = ls_name_text(r->c->names, m->condition[condition].name);
    char text[160];
    unsigned count = r->letter->count[condition];
    snprintf(text, sizeof text, "uniform execution: %s, %u", name, a);
    vote(r, text, count == a, 2);
    snprintf(text, sizeof text, "uniform execution: %s, %u", name, b);
    vote(r, text, count == b, 1);
    snprintf(text, sizeof text, "rank_uniform_execution: ranks run '%s' %u and %u times in this microbatch", name, a, b);
    emit(r, LS_OP_STOP, LS_STREAM_D, LS_NO_ID)->module = ls_name_id(r->c->names, text);
}

static void check_uniform(struct run *r)
{
    if (r->now.checks_left != UINT64_MAX)
        r->now.checks_left--;
    unsigned most[LS_CONDITIONS_MAX] = { 0 };
    for (size_t l = 0; l < r->c->in.letters->count; l++)
        for (unsigned k = 0; k < LS_CONDITIONS_MAX; k++)
            if (r->c->in.letters->letter[l].count[k] > most[k])
                most[k] = r->c->in.letters->letter[l].count[k];
    for (unsigned k = 0; k < r->c->in.plan->model->conditions; k++)
        for (unsigned a = 0; a < most[k]; a++)
            for (unsigned b = a + 1; b <= most[k]; b++)
                check_counts(r, k, a, b);
}

static bool checks(const struct run *r, bool in_tower)
{
    return r->now.checks_left && !r->eval && r->c->comm_dp != LS_NO_ID && r->c->in.step.validate_in_tower == in_tower;
}

/* What earlier microbatches left in the reduced gradients is gone: this one's reduction will not add to it. */
static void overwrite(struct run *r)
{
    const struct ls_step_policy *policy = &r->c->in.step;
    id_vec names = { 0 };
    for (size_t i = 0; i < policy->overwrittens; i++) {
        ls_push(&names, r->c->in.plan->model->param[policy->overwritten[i]].name);
        if (r->now.sharded[policy->overwritten[i]])
            unit_drop_gradient(r, policy->overwritten[i]);
    }
    struct ls_op *op = emit(r, LS_OP_COMPUTE, LS_STREAM_D, LS_NO_ID);
    op->payload = ls_tables_payload(r->c->in.tables, "overwritten gradients", names.at, names.count, 0);
    op->module = ls_name_id(r->c->names, "overwritten gradients");
    op->factor = (struct ls_ratio){ 0, 1 };
    op->cause = r->c->step_cause;
    ls_vec_release(&names);
}

void step_begin(struct run *r)
{
    if (r->c->in.step.overwrittens && !r->eval) {
        r->pass = LS_PASS_B;
        overwrite(r);
    }
    /* At a boundary that every rank reaches, before any conditional module. */
    if (checks(r, false)) {
        r->pass = LS_PASS_F;
        check_uniform(r);
    }
}

void step_before_call(struct run *r, uint32_t module)
{
    const struct ls_specs *specs = r->c->in.specs;
    if (!r->c->in.step.validate_in_tower || r->pass != LS_PASS_F || !checks(r, true))
        return;
    for (size_t i = 0; specs && i < specs->count; i++)
        if (specs->spec[i].module == module && specs->spec[i].conditionally_executed) {
            check_uniform(r);
            return;
        }
}

void step_in_call(struct run *r, uint32_t module)
{
    const struct ls_step_policy *policy = &r->c->in.step;
    if (!policy->votes || !policy->votes[module] || r->c->comm_shard == LS_NO_ID || r->c->comm_replicate != LS_NO_ID)
        return;
    char text[1200];
    snprintf(text, sizeof text, "%s of %s", ls_name_text(r->c->names, policy->vote), ls_name_text(r->c->names, r->c->in.plan->model->module[module].name));
    struct ls_op *op = scalar_all_reduce(r, r->c->comm_shard, text, LS_REDUCE_MAX, 1);
    op->dtype = LS_DTYPE_I32;
    op->blocking = true;
}

/* The step of the parameters that the optimizer holds, or of those that it holds as they were before sharding. */
static void optimizer(struct run *r, bool stale)
{
    const struct ls_plan *plan = r->c->in.plan;
    const struct ls_step_policy *policy = &r->c->in.step;
    id_vec names = { 0 };
    for (uint32_t i = 0; i < plan->model->params; i++)
        if (plan->requires_grad[i] && plan->model->param[i].canonical == i && stale == (policy->stale_optimizer && plan->owner[i] != LS_NO_ID))
            ls_push(&names, plan->model->param[i].name);
    emit_compute(r, LS_NO_ID, (struct ls_kernel){ .what = LS_KERNEL_OPTIMIZER, .instance = LS_NO_ID }, NULL, 0);
    r->open_compute = false; /* an op of its own, with a payload of its own */
    struct ls_op *op = &r->ops.at[r->ops.count - 1];
    op->payload = ls_tables_payload(r->c->in.tables, "optimizer", names.at, names.count, 0);
    op->module = ls_name_id(r->c->names, "optimizer");
    if (stale)
        op->factor = (struct ls_ratio){ 0, 1 };
    if (policy->clip_local && r->c->shard > 1) /* nobody's norm but its own: shards of one tensor are scaled differently */
        op->symbol = ls_name_id(r->c->names, "own norm");
    if (stale || (policy->clip_local && r->c->shard > 1))
        op->cause = r->c->step_cause;
    for (int mesh = LS_UNIT_DP; !stale && mesh <= LS_UNIT_EXPERTS; mesh++) /* not waited for after a backward that is not the last one */
        emit_reduced(r, (enum ls_unit_mesh)mesh, false);
    ls_vec_release(&names);
}

void step_end(struct run *r)
{
    const struct ls_plan *plan = r->c->in.plan;
    const struct ls_step_policy *policy = &r->c->in.step;
    r->pass = LS_PASS_OPT;
    if (plan->experts.ep > 1)
        experts_step(r);
    if (policy->clip_grad_norm && plan->experts.ep > 1)
        experts_clip(r);
    else if (policy->clip_grad_norm && r->c->shard > 1)
        scalar_all_reduce(r, r->c->comm_shard, "grad norm", LS_REDUCE_SUM, 1);
    if (policy->stale_optimizer)
        optimizer(r, true);
    optimizer(r, false);
    if (plan->experts.ep > 1)
        experts_update_bias(r);
    for (size_t i = 0; i < policy->metrics; i++) {
        /* Logged as a Python number: the host waits for the result. */
        scalar_all_reduce(r, r->c->comm_dp, ls_name_text(r->c->names, policy->metric[i]), LS_REDUCE_SUM, 1)->blocking = true;
    }
    for (uint32_t i = 0; i < plan->model->params; i++) /* zero_grad(set_to_none) */
        if (r->now.sharded[i])
            unit_drop_gradient(r, i);
}
