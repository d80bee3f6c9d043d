/* units, registered_forward_methods: the plan written out. */
#include "scenario/internal.h"

#include <string.h>

static enum ls_code load_dtypes(struct loader *l, const struct ls_yaml_node *n, struct ls_unit_input *u)
{
    static const char *const keys[] = { "param", "reduce", "output", "cast_inputs", NULL };
    enum ls_dtype *const to[] = { &u->param_dtype, &u->reduce_dtype, &u->output_dtype };
    const struct ls_yaml_node *v;
    LS_TRY(ls_yaml_check_keys(n, "dtypes", keys, l->err));
    for (size_t i = 0; i < 3; i++)
        if ((v = ls_yaml_get(n, keys[i])))
            LS_TRY(ls_load_dtype(l, v, keys[i], false, to[i]));
    return (v = ls_yaml_get(n, "cast_inputs")) ? ls_yaml_bool(v, "cast_inputs", &u->cast_inputs, l->err) : LS_OK;
}

static enum ls_code load_unit(struct loader *l, const struct ls_yaml_node *n, struct ls_unit_input *u)
{
    static const char *const keys[] = { "modules", "grouped", "reshard", "ignored", "dtypes", "forward_prefetch", "backward_prefetch",
                                        "unshard_in_backward", "unused_params", NULL };
    const struct ls_yaml_node *v;
    *u = (struct ls_unit_input){ .cast_inputs = true, .unshard_in_backward = true, .unused_params = l->s->runtime.unused_params, .at = n->at };
    LS_TRY(ls_yaml_check_keys(n, "units", keys, l->err));
    if (!(v = ls_yaml_get(n, "modules")))
        return ls_fail(l->err, LS_EINPUT, n->at, "'modules' is missing in 'units'");
    LS_TRY(ls_load_texts(l, v, "modules", &u->glob, &u->globs));
    if (!u->globs)
        return ls_fail(l->err, LS_EINPUT, v->at, "'modules' is an empty list");
    if ((v = ls_yaml_get(n, "grouped")))
        LS_TRY(ls_yaml_bool(v, "grouped", &u->grouped, l->err));
    if ((v = ls_yaml_get(n, "reshard")))
        LS_TRY(ls_load_reshard(l, v, "reshard", &u->reshard, &u->reshard_size));
    LS_TRY(ls_load_texts(l, ls_yaml_get(n, "ignored"), "ignored", &u->ignored, &u->ignoreds));
    if ((v = ls_yaml_get(n, "dtypes")))
        LS_TRY(load_dtypes(l, v, u));
    LS_TRY(ls_load_texts(l, ls_yaml_get(n, "forward_prefetch"), "forward_prefetch", &u->forward_prefetch, &u->forward_prefetches));
    v = ls_yaml_get(n, "backward_prefetch");
    u->has_backward_prefetch = v != NULL;
    LS_TRY(ls_load_texts(l, v, "backward_prefetch", &u->backward_prefetch, &u->backward_prefetches));
    if ((v = ls_yaml_get(n, "unshard_in_backward")))
        LS_TRY(ls_yaml_bool(v, "unshard_in_backward", &u->unshard_in_backward, l->err));
    if ((v = ls_yaml_get(n, "unused_params")))
        LS_TRY(ls_load_unused(l, v, "unused_params", &u->unused_params));
    return LS_OK;
}

static enum ls_code load_entries(struct loader *l, const struct ls_yaml_node *n)
{
    static const char *const keys[] = { "module", "method", NULL };
    struct ls_scenario *s = l->s;
    LS_TRY(ls_yaml_list(n, "registered_forward_methods", l->err));
    s->entry = LS_NEW(s->arena, struct ls_entry, n->count ? n->count : 1);
    for (size_t i = 0; i < n->count; i++) {
        const struct ls_yaml_node *e = n->item[i], *module, *method;
        const char *fqn, *name;
        LS_TRY(ls_yaml_check_keys(e, "registered_forward_methods", keys, l->err));
        module = ls_yaml_get(e, "module"), method = ls_yaml_get(e, "method");
        if (!module || !method)
            return ls_fail(l->err, LS_EINPUT, e->at, "'%s' is missing in 'registered_forward_methods'", module ? "method" : "module");
        LS_TRY(ls_yaml_text(module, "module", &fqn, l->err));
        LS_TRY(ls_yaml_text(method, "method", &name, l->err));
        uint32_t at = ls_model_module(&s->model, fqn);
        if (at == LS_NO_ID)
            return ls_fail(l->err, LS_EINPUT, module->at, "'module' names '%.200s', which the model does not have", fqn);
        s->entry[s->entries++] = (struct ls_entry){ at, ls_name_id(s->names, name) };
    }
    return LS_OK;
}

enum ls_code ls_load_units(struct loader *l)
{
    struct ls_scenario *s = l->s;
    const struct ls_yaml_node *n = section(l, "units"), *entries = section(l, "registered_forward_methods");
    if (n) {
        LS_TRY(ls_yaml_list(n, "units", l->err));
        if (!n->count)
            return ls_fail(l->err, LS_EINPUT, n->at, "'units' is an empty list");
        s->unit = LS_NEW(s->arena, struct ls_unit_input, n->count);
        s->units = n->count;
        for (size_t i = 0; i < n->count; i++)
            LS_TRY(load_unit(l, n->item[i], &s->unit[i]));
    }
    return entries ? load_entries(l, entries) : LS_OK;
}
