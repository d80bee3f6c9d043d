/* Sizes of units and the memory of a plan, from the units alone.
 *   source  FSDPParam._init_sharded_param (torch.chunk, padded to equal chunks), _fsdp_collectives.py (all_gather dtype) */
#include "plan/plan.h"

#include <assert.h>

static uint64_t add(uint64_t a, uint64_t b)
{
    uint64_t sum;
    return __builtin_add_overflow(a, b, &sum) ? UINT64_MAX : sum;
}
static uint64_t mul(uint64_t a, uint64_t b)
{
    uint64_t product;
    return __builtin_mul_overflow(a, b, &product) ? UINT64_MAX : product;
}

uint64_t ls_param_shard_elements(const struct ls_param *p, size_t shard)
{
    uint64_t rest = 1;
    assert(shard > 0);
    if (p->dims == 0)
        return 1; /* refused at set-up; one copy each */
    for (unsigned i = 1; i < p->dims; i++)
        rest *= p->dim[i];
    return mul(p->dim[0] / shard + (p->dim[0] % shard != 0), rest);
}

uint64_t ls_plan_local_elements(const struct ls_plan *p, uint32_t param)
{
    const uint32_t c = p->model->param[param].canonical;
    const bool expert = p->experts.ep > 1 && p->experts.layer[c] != LS_NO_ID;
    return p->model->param[c].elements / (expert ? p->experts.ep : 1);
}

size_t ls_plan_unit_ranks(const struct ls_plan *p, uint32_t unit, size_t shard)
{
    if (p->unit[unit].mesh == LS_UNIT_DP)
        return shard;
    return p->experts.ep_shard == LS_SIZE_ANY ? shard / p->experts.ep : p->experts.ep_shard;
}

uint64_t ls_plan_shard_elements(const struct ls_plan *p, uint32_t param, size_t shard)
{
    const uint32_t unit = p->owner[param];
    if (unit == LS_NO_ID)
        return ls_plan_local_elements(p, param);
    if (p->unit[unit].mesh == LS_UNIT_EXPERTS) { /* dim 1, evenly */
        const size_t ranks = ls_plan_unit_ranks(p, unit, shard);
        return (ls_plan_local_elements(p, param) + ranks - 1) / ranks;
    }
    return ls_param_shard_elements(&p->model->param[param], shard);
}

static bool is_floating(enum ls_dtype d)
{
    switch (d) {
    case LS_DTYPE_F64: case LS_DTYPE_F32: case LS_DTYPE_F16: case LS_DTYPE_BF16: case LS_DTYPE_F8: return true;
    case LS_DTYPE_NONE: case LS_DTYPE_I64: case LS_DTYPE_I32: case LS_DTYPE_U8: case LS_DTYPE_BOOL: case LS_DTYPE_COUNT: break;
    }
    return false;
}

/* The dtype a parameter is gathered and computed in. */
static enum ls_dtype compute_dtype(const struct ls_unit *u, const struct ls_param *p)
{
    return u->param_dtype != LS_DTYPE_NONE && is_floating(p->dtype) ? u->param_dtype : p->dtype;
}

struct ls_unit_size ls_plan_unit_size(const struct ls_plan *p, uint32_t unit, size_t shard)
{
    const struct ls_unit *u = &p->unit[unit];
    struct ls_unit_size s = { 0 };
    const size_t ranks = ls_plan_unit_ranks(p, unit, shard);
    uint64_t bytes = 0;
    bool mixed = false;
    for (size_t i = 0; i < u->params; i++) {
        const struct ls_param *param = &p->model->param[u->param[i]];
        enum ls_dtype dtype = compute_dtype(u, param);
        uint64_t part = ls_plan_shard_elements(p, u->param[i], shard), all = mul(part, ranks);
        mixed |= i > 0 && dtype != s.gather_dtype;
        s.gather_dtype = dtype;
        s.gather_in = add(s.gather_in, part);
        bytes = add(bytes, mul(part, ls_dtype_bytes(dtype)));
        s.sharded_bytes = add(s.sharded_bytes, mul(part, ls_dtype_bytes(param->dtype)));
        if (p->requires_grad[u->param[i]])
            s.reduce_in = add(s.reduce_in, all);
    }
    if (mixed) { /* one buffer of bytes */
        s.gather_dtype = LS_DTYPE_U8;
        s.gather_in = bytes;
    }
    s.gather_out = mul(s.gather_in, ranks);
    s.unsharded_bytes = mul(bytes, ranks);
    return s;
}

/* Flat items of a container: those that are no containers themselves. */
static bool is_last_item(const struct ls_model *m, uint32_t container, uint32_t item)
{
    const struct ls_module *c = &m->module[container];
    for (size_t i = c->children; i-- > 0;)
        if (m->module[c->child[i]].container == LS_NOT_CONTAINER)
            return c->child[i] == item;
    return false;
}

uint64_t ls_plan_root_bytes(const struct ls_plan *p)
{
    const struct ls_model *m = p->model;
    uint64_t bytes = 0;
    if (p->root == LS_NO_ID || p->item_reshard == LS_RESHARD_FALSE)
        return 0;
    const struct ls_unit *root = &p->unit[p->root];
    for (size_t i = 0; i < root->params; i++) {
        const struct ls_param *param = &m->param[root->param[i]];
        /* The outermost list item around it is the one that would be a unit. */
        uint32_t item = LS_NO_ID, container = LS_NO_ID;
        for (uint32_t at = param->module, above; (above = m->module[at].parent) != LS_NO_ID; at = above)
            if (m->module[above].container != LS_NOT_CONTAINER && m->module[at].container == LS_NOT_CONTAINER)
                item = at, container = above;
        if (item == LS_NO_ID || p->requires_grad[root->param[i]])
            continue;
        if (p->item_reshard != LS_RESHARD_DEFAULT || !is_last_item(m, container, item))
            bytes = add(bytes, mul(param->elements, ls_dtype_bytes(compute_dtype(root, param))));
    }
    return bytes;
}

struct ls_plan_memory ls_plan_memory(const struct ls_plan *p, size_t shard)
{
    struct ls_plan_memory total = { 0 };
    uint64_t before = 0;
    for (uint32_t i = 0; i < p->units; i++) {
        const struct ls_unit *u = &p->unit[i];
        struct ls_unit_size s = ls_plan_unit_size(p, i, shard);
        total.sharded = add(total.sharded, s.sharded_bytes);
        const bool stays = u->reshard == LS_RESHARD_FALSE || (u->reshard == LS_RESHARD_DEFAULT && i == p->root);
        if (stays) {
            total.resident = add(total.resident, s.unsharded_bytes);
            continue;
        }
        if (add(before, s.unsharded_bytes) > total.transient)
            total.transient = add(before, s.unsharded_bytes);
        before = s.unsharded_bytes;
    }
    for (uint32_t i = 0; i < p->model->params; i++)
        if (p->model->param[i].canonical == i && p->owner[i] == LS_NO_ID)
            total.replicated = add(total.replicated, mul(ls_plan_local_elements(p, i), ls_dtype_bytes(p->model->param[i].dtype)));
    return total;
}
