/* Low-rank adapters: a new module tree with two more children under every adapted Linear, and more parameters in adapted experts. */
#include "model/build.h"
#include "model/model.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

struct adapted { uint32_t module, weight, a, b; }; /* new indices: the Linear, its (canonical) weight, the two adapter weights */

struct rebuild {
    struct ls_model *m;
    uint32_t *module_to, *param_to; /* old index -> new */
    LS_VEC(struct adapted) adapted; /* in module order, then sorted by weight */
    struct ls_build build;
};

static bool is_linear(const struct ls_model *m, const struct ls_module *module)
{
    static const char suffix[] = "Linear";
    const char *name = ls_name_text(m->names, module->class_name);
    size_t length = strlen(name);
    /* Classes are unknown in checkpoints: there the shape of the weight decides. */
    return !length || (length >= sizeof suffix - 1 && strcmp(name + length - (sizeof suffix - 1), suffix) == 0);
}

/* The index of the weight of a module that can be adapted, or LS_NO_ID. */
static uint32_t weight_of(const struct ls_model *m, const struct ls_module *module)
{
    if (module->children || !is_linear(m, module))
        return LS_NO_ID;
    for (uint32_t i = module->first_param; i < module->first_param + module->params; i++)
        if (strcmp(ls_name_text(m->names, m->param[i].leaf), "weight") == 0 && m->param[i].dims == 2)
            return i;
    return LS_NO_ID;
}

/* In targets `*` crosses dots, as in recipes: "*.layers.0.*.q_proj". */
static bool matches(const char *target, const char *fqn)
{
    size_t t = strlen(target), n = strlen(fqn), length = 0;
    if (t <= n && strcmp(fqn + n - t, target) == 0 && (t == n || fqn[n - t - 1] == '.'))
        return true;
    char glob[2 * LS_COMPONENT_MAX + 1];
    if (t > LS_COMPONENT_MAX)
        return false;
    for (const char *s = target; *s; s++) {
        glob[length++] = *s;
        if (*s == '*' && s[1] != '*' && (s == target || s[-1] != '*'))
            glob[length++] = '*';
    }
    glob[length] = 0;
    return ls_glob(glob, fqn);
}

static enum ls_code add_adapter(struct rebuild *r, uint32_t parent, const char *leaf, uint64_t rows, uint64_t columns,
                                enum ls_dtype dtype, struct ls_loc at, uint32_t *param)
{
    struct ls_build *b = &r->build;
    uint32_t index = 0;
    struct ls_param p = { .dtype = dtype, .dims = 2, .dim = { rows, columns }, .adapter = true, .at = at };
    enum ls_code rc = ls_shape_elements(p.dim, p.dims, leaf, at, &p.elements, b->err);
    if (rc != LS_OK)
        return rc;
    ls_str_clear(&b->fqn);
    ls_str_printf(&b->fqn, "%s.%s", ls_name_text(b->names, b->module.at[parent].name), leaf);
    rc = ls_build_module(b, parent, leaf, at, &index);
    if (rc != LS_OK)
        return rc;
    b->module.at[index].class_name = ls_name_id(b->names, "Linear");
    *param = (uint32_t)b->param.count;
    return ls_build_param(b, "weight", &p);
}

static uint32_t own_param(const struct ls_model *m, const struct ls_module *module, const char *leaf)
{
    for (uint32_t i = module->first_param; i < module->first_param + module->params; i++)
        if (strcmp(ls_name_text(m->names, m->param[i].leaf), leaf) == 0 && m->param[i].dims == 3)
            return i;
    return LS_NO_ID;
}

static const struct ls_moe *experts_of(const struct ls_model *m, uint32_t module)
{
    for (size_t i = 0; i < m->moes; i++)
        if (m->moe[i].experts == module)
            return &m->moe[i];
    return NULL;
}

static enum ls_code add_stacked(struct rebuild *r, const char *leaf, uint64_t count, uint64_t rows, uint64_t columns, enum ls_dtype dtype,
                                struct ls_loc at, uint32_t *param)
{
    struct ls_param p = { .dtype = dtype, .dims = 3, .dim = { count, rows, columns }, .adapter = true, .at = at };
    enum ls_code rc = ls_shape_elements(p.dim, p.dims, leaf, at, &p.elements, r->build.err);
    *param = (uint32_t)r->build.param.count;
    return rc == LS_OK ? ls_build_param(&r->build, leaf, &p) : rc;
}

/* The stacked experts of a layer: an adapter for each expert, in the experts' own module. */
static enum ls_code adapt_experts(struct rebuild *r, uint32_t old, uint32_t index, const struct ls_peft *peft)
{
    const struct ls_model *m = r->m;
    const struct ls_module *module = &m->module[old];
    static const char *const weight[2] = { "gate_and_up_projs", "down_projs" };
    static const char *const leaf[2][2] = { { "lora_gate_and_up_A", "lora_gate_and_up_B" }, { "lora_down_A", "lora_down_B" } };
    const struct ls_moe *moe = experts_of(m, old);
    const uint64_t rank = peft->moe_rank_scaling ? peft->rank / moe->top_k : peft->rank;
    enum ls_code rc = LS_OK;
    if (!rank)
        return ls_fail(r->build.err, LS_EINPUT, peft->at, "'moe_rank_scaling' divides the rank %llu by the %llu experts of a token, which leaves "
                       "none", (unsigned long long)peft->rank, (unsigned long long)moe->top_k);
    for (size_t k = 0; rc == LS_OK && k < 2; k++) {
        const uint32_t at = own_param(m, module, weight[k]);
        if (at == LS_NO_ID)
            return ls_fail(r->build.err, LS_EINPUT, peft->at, "the experts '%.200s' have no '%s' of three dimensions, so their adapters are not "
                           "known", ls_name_text(m->names, module->name), weight[k]);
        const struct ls_param *w = &m->param[at];
        const enum ls_dtype dtype = peft->dtype == LS_DTYPE_NONE ? w->dtype : peft->dtype;
        struct adapted a = { .module = index, .weight = w->canonical };
        rc = add_stacked(r, leaf[k][0], w->dim[0], w->dim[1], rank, dtype, peft->at, &a.a);
        if (rc == LS_OK)
            rc = add_stacked(r, leaf[k][1], w->dim[0], rank, w->dim[2], dtype, peft->at, &a.b);
        ls_push(&r->adapted, a);
    }
    return rc;
}

static enum ls_code copy_module(struct rebuild *r, uint32_t old, bool *hit, const struct ls_peft *peft)
{
    const struct ls_model *m = r->m;
    const struct ls_module *module = &m->module[old];
    struct ls_build *b = &r->build;
    const char *fqn = ls_name_text(m->names, module->name);
    uint32_t index = 0, parent = module->parent == LS_NO_ID ? LS_NO_ID : r->module_to[module->parent];
    ls_str_clear(&b->fqn);
    ls_str_add(&b->fqn, fqn);
    enum ls_code rc = ls_build_module(b, parent, ls_name_text(m->names, module->leaf), module->at, &index);
    if (rc != LS_OK)
        return rc;
    r->module_to[old] = index;
    struct ls_module *now = &b->module.at[index];
    now->class_name = module->class_name;
    now->container = module->container;
    now->buffer = module->buffer;
    now->buffers = module->buffers;
    for (uint32_t i = module->first_param; rc == LS_OK && i < module->first_param + module->params; i++) {
        r->param_to[i] = (uint32_t)b->param.count;
        rc = ls_build_param(b, ls_name_text(m->names, m->param[i].leaf), &m->param[i]);
    }
    uint32_t weight = weight_of(m, module);
    const bool experts = experts_of(m, old) != NULL;
    bool wanted = false;
    for (size_t t = 0; (experts || weight != LS_NO_ID) && t < peft->targets; t++)
        if (matches(peft->target[t], fqn))
            wanted = hit[t] = true;
    if (rc != LS_OK || !wanted)
        return rc;
    if (experts)
        return adapt_experts(r, old, index, peft);
    const struct ls_param *w = &m->param[weight];
    enum ls_dtype dtype = peft->dtype == LS_DTYPE_NONE ? w->dtype : peft->dtype;
    struct adapted a = { .module = index, .weight = w->canonical }; /* old index; mapped when the walk is done */
    rc = add_adapter(r, index, "lora_A", peft->rank, w->dim[1], dtype, peft->at, &a.a);
    if (rc == LS_OK)
        rc = add_adapter(r, index, "lora_B", w->dim[0], peft->rank, dtype, peft->at, &a.b);
    ls_push(&r->adapted, a);
    return rc;
}

static int by_weight(const void *x, const void *y)
{
    const struct adapted *a = x, *b = y;
    return a->weight != b->weight ? (a->weight > b->weight) - (a->weight < b->weight) : (a->module > b->module) - (a->module < b->module);
}

/* Adds the adapters of the weights that a leaf uses, or (list NULL) counts them. A tied weight may have several. */
static size_t add_adapters(const struct rebuild *r, const struct ls_model *m, const struct ls_flow *f, uint32_t *list)
{
    size_t added = 0;
    for (size_t k = 0; k < f->params; k++) {
        size_t low = 0, high = r->adapted.count;
        while (low < high) {
            size_t middle = low + (high - low) / 2;
            if (r->adapted.at[middle].weight < f->param[k])
                low = middle + 1;
            else
                high = middle;
        }
        for (; low < r->adapted.count && r->adapted.at[low].weight == f->param[k]; low++) {
            const struct adapted *a = &r->adapted.at[low];
            if (!ls_module_contains(m, f->module, a->module))
                continue;
            if (list)
                list[added] = a->a, list[added + 1] = a->b;
            added += 2;
        }
    }
    return added;
}

static void adapt_leaf(const struct rebuild *r, const struct ls_model *m, struct ls_flow *f)
{
    size_t more = add_adapters(r, m, f, NULL);
    if (!more)
        return;
    uint32_t *list = LS_NEW(m->arena, uint32_t, f->params + more);
    memcpy(list, f->param, f->params * sizeof *list);
    add_adapters(r, m, f, list + f->params);
    f->param = list;
    f->params += more;
}

static void map_flow(const struct rebuild *r, const struct ls_model *m, struct ls_flow *f)
{
    if (f->kind != LS_FLOW_WHEN)
        f->module = r->module_to[f->module];
    for (size_t i = 0; i < f->params; i++)
        f->param[i] = r->param_to[f->param[i]];
    if (f->kind == LS_FLOW_CALL && f->leaf)
        adapt_leaf(r, m, f);
    for (size_t i = 0; i < f->count; i++)
        map_flow(r, m, &f->body[i]);
}

enum ls_code ls_model_add_lora(struct ls_model *m, const struct ls_peft *peft, struct ls_error *err)
{
    struct ls_arena scratch;
    ls_arena_init(&scratch, 0);
    struct rebuild r = { .m = m };
    r.module_to = LS_NEW(&scratch, uint32_t, m->modules);
    r.param_to = LS_NEW(&scratch, uint32_t, m->params);
    bool *hit = LS_NEW(&scratch, bool, peft->targets);
    ls_build_init(&r.build, m->arena, m->names, err);
    enum ls_code rc = LS_OK;
    if (peft->rank == 0 || peft->rank > LS_ELEMENTS_MAX)
        rc = ls_fail(err, LS_EINPUT, peft->at, "the rank of the adapters is %llu", (unsigned long long)peft->rank);
    for (uint32_t i = 0; rc == LS_OK && i < m->modules; i++)
        rc = copy_module(&r, i, hit, peft);
    for (size_t t = 0; rc == LS_OK && t < peft->targets; t++)
        if (!hit[t]) {
            rc = ls_fail(err, LS_EINPUT, peft->at, "the adapter target '%.200s' matches no Linear and no experts", peft->target[t]);
            LS_VEC(const char *) leaves = { 0 };
            for (size_t i = 0; i < m->modules && i < 4096; i++)
                if (weight_of(m, &m->module[i]) != LS_NO_ID)
                    ls_push(&leaves, ls_name_text(m->names, m->module[i].leaf));
            ls_push(&leaves, NULL);
            const char *near = ls_nearest(peft->target[t], leaves.at);
            if (near)
                ls_hint(err, "did you mean '%s'?", near);
            ls_vec_release(&leaves);
        }
    if (rc == LS_OK) {
        struct ls_model now = *m;
        ls_build_finish(&r.build, &now);
        for (uint32_t i = 0; i < m->params; i++)
            now.param[r.param_to[i]].canonical = r.param_to[m->param[i].canonical];
        for (size_t i = 0; i < r.adapted.count; i++)
            r.adapted.at[i].weight = r.param_to[r.adapted.at[i].weight];
        if (r.adapted.count)
            qsort(r.adapted.at, r.adapted.count, sizeof *r.adapted.at, by_weight);
        for (size_t i = 0; i < now.declared_count; i++)
            now.declared[i].module = r.module_to[now.declared[i].module];
        for (size_t i = 0; i < now.moes; i++) {
            now.moe[i].module = r.module_to[now.moe[i].module];
            now.moe[i].experts = r.module_to[now.moe[i].experts];
            now.moe[i].gate = r.module_to[now.moe[i].gate];
        }
        if (now.has_flow)
            map_flow(&r, &now, &now.flow);
        *m = now;
    }
    ls_vec_release(&r.adapted);
    ls_build_release(&r.build);
    ls_arena_release(&scratch);
    return rc;
}
