/* Inventory files (inventory.md): everything but the flow. */
#include "model/build.h"
#include "model/model.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct reader {
    struct ls_build build;
    enum ls_dtype dtype; /* NONE: every parameter says its own */
    struct ls_error *err;
};

static enum ls_code read_dtype(const struct ls_yaml_node *n, enum ls_dtype *out, struct ls_error *err)
{
    static const char *const names[] = { "f64", "f32", "f16", "bf16", "f8", "i64", "i32", "u8", "bool", NULL };
    size_t choice = 0;
    enum ls_code rc = ls_yaml_choice(n, "dtype", names, &choice, err);
    bool known = rc == LS_OK && ls_dtype_find(names[choice], out);
    assert(known || rc != LS_OK);
    (void)known;
    return rc;
}

bool ls_parse_range(const char *text, uint64_t *first, uint64_t *last)
{
    uint64_t bound[2];
    for (int i = 0; i < 2; i++) {
        size_t digits = strspn(text, "0123456789");
        if (digits == 0 || digits > 9 || (digits > 1 && text[0] == '0'))
            return false;
        bound[i] = strtoull(text, NULL, 10);
        text += digits;
        if (i == 0 && strncmp(text, "..", 2) != 0)
            return false;
        text += i == 0 ? 2 : 0;
    }
    *first = bound[0], *last = bound[1];
    return !*text;
}

/* `[8, 12]` or `{shape: [8, 12], dtype: f32}`. */
static enum ls_code read_tensor(struct reader *r, const char *name, const struct ls_yaml_node *n, struct ls_param *out)
{
    static const char *const known[] = { "shape", "dtype", NULL };
    const struct ls_yaml_node *shape = n, *dtype = NULL;
    enum ls_code rc = LS_OK;
    *out = (struct ls_param){ .at = n->at, .dtype = r->dtype };
    if (n->kind == LS_YAML_MAP) {
        rc = ls_yaml_check_keys(n, name, known, r->err);
        shape = ls_yaml_get(n, "shape");
        dtype = ls_yaml_get(n, "dtype");
        if (rc == LS_OK && !shape)
            rc = ls_fail(r->err, LS_EINPUT, n->at, "'%.200s' has no 'shape'", name);
    }
    if (rc == LS_OK)
        rc = ls_yaml_list(shape, name, r->err);
    if (rc == LS_OK && dtype)
        rc = read_dtype(dtype, &out->dtype, r->err);
    if (rc == LS_OK && out->dtype == LS_DTYPE_NONE) {
        rc = ls_fail(r->err, LS_EINPUT, n->at, "'%.200s' has no dtype", name);
        ls_hint(r->err, "write {shape: [...], dtype: bf16}, or give the inventory a 'dtype'");
    }
    if (rc == LS_OK && shape->count > LS_DIMS_MAX)
        rc = ls_fail(r->err, LS_EINPUT, shape->at, "'%.200s' has %zu dimensions, more than %d", name, shape->count, LS_DIMS_MAX);
    for (size_t i = 0; rc == LS_OK && i < shape->count; i++)
        rc = ls_yaml_uint(shape->item[i], name, 0, LS_ELEMENTS_MAX, &out->dim[out->dims++], r->err);
    if (rc == LS_OK)
        rc = ls_shape_elements(out->dim, out->dims, name, shape->at, &out->elements, r->err);
    return rc;
}

static enum ls_code read_params(struct reader *r, const struct ls_yaml_node *map)
{
    enum ls_code rc = ls_yaml_map(map, "params", r->err);
    for (size_t i = 0; rc == LS_OK && i < map->count; i++) {
        const struct ls_yaml_node *key = map->pair[i].key;
        struct ls_param p;
        rc = ls_check_component(key->text, key->at, r->err);
        if (rc == LS_OK)
            rc = read_tensor(r, key->text, map->pair[i].value, &p);
        if (rc != LS_OK)
            break;
        p.at = key->at;
        rc = ls_build_param(&r->build, key->text, &p);
    }
    return rc;
}

static enum ls_code read_buffers(struct reader *r, const struct ls_yaml_node *map, uint32_t module)
{
    enum ls_code rc = ls_yaml_map(map, "buffers", r->err);
    if (rc != LS_OK)
        return rc;
    struct ls_buffer_info *buffer = LS_NEW(r->build.arena, struct ls_buffer_info, map->count);
    for (size_t i = 0; rc == LS_OK && i < map->count; i++) {
        const struct ls_yaml_node *key = map->pair[i].key;
        struct ls_param p;
        rc = ls_check_component(key->text, key->at, r->err);
        if (rc == LS_OK)
            rc = read_tensor(r, key->text, map->pair[i].value, &p);
        if (rc == LS_OK)
            buffer[i] = (struct ls_buffer_info){ ls_name_id(r->build.names, key->text), p.dtype, p.elements };
    }
    r->build.module.at[module].buffer = buffer;
    r->build.module.at[module].buffers = map->count;
    return rc;
}

static enum ls_code read_module(struct reader *r, const struct ls_yaml_node *n, uint32_t parent, const char *leaf, struct ls_loc at,
                                unsigned depth);

static enum ls_code read_child(struct reader *r, const struct ls_yaml_node *n, uint32_t parent, const char *leaf, struct ls_loc at,
                               unsigned depth)
{
    struct ls_str *fqn = &r->build.fqn;
    size_t length = fqn->length;
    ls_str_printf(fqn, "%s%s", length ? "." : "", leaf);
    enum ls_code rc = read_module(r, n, parent, leaf, at, depth);
    fqn->length = length;
    fqn->text[length] = 0;
    return rc;
}

static enum ls_code read_children(struct reader *r, const struct ls_yaml_node *map, uint32_t parent, unsigned depth)
{
    enum ls_code rc = ls_yaml_map(map, "children", r->err);
    for (size_t i = 0; rc == LS_OK && i < map->count; i++) {
        const struct ls_yaml_node *key = map->pair[i].key, *value = map->pair[i].value;
        uint64_t first = 0, last = 0;
        if (!strstr(key->text, "..")) {
            rc = ls_check_component(key->text, key->at, r->err);
            if (rc == LS_OK)
                rc = read_child(r, value, parent, key->text, key->at, depth);
        } else if (!ls_parse_range(key->text, &first, &last) || first > last) {
            rc = ls_fail(r->err, LS_EINPUT, key->at, "'%.60s' is not a range of item names", key->text);
            ls_hint(r->err, "ranges are written \"0..35\", both ends included");
        } else {
            for (uint64_t item = first; rc == LS_OK && item <= last; item++) {
                char name[24];
                snprintf(name, sizeof name, "%llu", (unsigned long long)item);
                rc = read_child(r, value, parent, name, key->at, depth);
            }
        }
    }
    return rc;
}

static enum ls_code read_module(struct reader *r, const struct ls_yaml_node *n, uint32_t parent, const char *leaf, struct ls_loc at,
                                unsigned depth)
{
    static const char *const known[] = { "class", "kind", "params", "buffers", "children", NULL };
    static const char *const kinds[] = { "module", "list", "dict", NULL };
    uint32_t index = 0;
    const char *name = parent == LS_NO_ID ? "modules" : ls_str_text(&r->build.fqn), *class_name = "";
    if (depth > LS_MODULE_DEPTH_MAX)
        return ls_fail(r->err, LS_EINPUT, at, "modules are nested more than %d deep", LS_MODULE_DEPTH_MAX);
    enum ls_code rc = ls_yaml_map(n, name, r->err);
    if (rc == LS_OK)
        rc = ls_yaml_check_keys(n, name, known, r->err);
    if (rc == LS_OK)
        rc = ls_build_module(&r->build, parent, leaf, at, &index);
    const struct ls_yaml_node *key = rc == LS_OK ? ls_yaml_get(n, "class") : NULL;
    if (key)
        rc = ls_yaml_text(key, "class", &class_name, r->err);
    if (rc != LS_OK)
        return rc;
    struct ls_module *module = &r->build.module.at[index];
    module->class_name = ls_name_id(r->build.names, class_name);
    module->container = strcmp(class_name, "ModuleList") == 0   ? LS_MODULE_LIST
                        : strcmp(class_name, "ModuleDict") == 0 ? LS_MODULE_DICT
                                                                : LS_NOT_CONTAINER;
    key = ls_yaml_get(n, "kind");
    if (key) {
        size_t kind = 0;
        rc = ls_yaml_choice(key, "kind", kinds, &kind, r->err);
        module->container = kind == 1 ? LS_MODULE_LIST : kind == 2 ? LS_MODULE_DICT : LS_NOT_CONTAINER;
    }
    if (rc == LS_OK && (key = ls_yaml_get(n, "params")))
        rc = read_params(r, key);
    if (rc == LS_OK && (key = ls_yaml_get(n, "buffers")))
        rc = read_buffers(r, key, index);
    if (rc == LS_OK && (key = ls_yaml_get(n, "children")))
        rc = read_children(r, key, index, depth + 1);
    return rc;
}

static enum ls_code read_aliases(const struct ls_yaml_node *map, struct ls_model *m, struct ls_error *err)
{
    enum ls_code rc = ls_yaml_map(map, "aliases", err);
    if (rc != LS_OK)
        return rc;
    m->alias = LS_NEW(m->arena, uint32_t, map->count);
    m->alias_of = LS_NEW(m->arena, uint32_t, map->count);
    for (size_t i = 0; i < map->count; i++) {
        const struct ls_yaml_node *key = map->pair[i].key;
        const char *of = NULL;
        rc = ls_yaml_text(map->pair[i].value, key->text, &of, err);
        if (rc != LS_OK)
            return rc;
        if (strlen(key->text) > LS_FQN_MAX || !key->text[0])
            return ls_fail(err, LS_EINPUT, key->at, "an alias must have 1 to %d characters", LS_FQN_MAX);
        if (ls_model_module(m, key->text) != LS_NO_ID)
            return ls_fail(err, LS_EINPUT, key->at, "alias '%.200s' is a module of its own", key->text);
        uint32_t target = ls_model_module(m, of);
        if (target == LS_NO_ID)
            return ls_fail_module(m, of, "alias of", map->pair[i].value->at, err);
        m->alias[i] = ls_name_id(m->names, key->text);
        m->alias_of[i] = m->module[target].name;
        m->aliases = i + 1;
    }
    return LS_OK;
}

static enum ls_code read_tie(const struct ls_yaml_node *list, struct ls_model *m, bool *tied, struct ls_error *err)
{
    enum ls_code rc = ls_yaml_list(list, "ties", err);
    uint32_t first = LS_NO_ID;
    if (rc == LS_OK && list->count < 2)
        rc = ls_fail(err, LS_EINPUT, list->at, "a tie names two parameters or more");
    for (size_t i = 0; rc == LS_OK && i < list->count; i++) {
        const char *fqn = NULL;
        rc = ls_yaml_text(list->item[i], "ties", &fqn, err);
        if (rc != LS_OK)
            break;
        uint32_t index = ls_model_param(m, fqn);
        if (index == LS_NO_ID)
            return ls_fail_param(m, fqn, "tied", list->item[i]->at, err);
        struct ls_param *p = &m->param[index];
        if (tied[index])
            return ls_fail(err, LS_EINPUT, list->item[i]->at, "'%.200s' is tied twice", fqn);
        tied[index] = true;
        if (i == 0)
            first = index;
        const struct ls_param *c = &m->param[first];
        bool same = p->dims == c->dims && p->dtype == c->dtype;
        for (unsigned d = 0; same && d < p->dims; d++)
            same = p->dim[d] == c->dim[d];
        if (!same)
            return ls_fail(err, LS_EINPUT, list->item[i]->at, "'%.150s' and '%.150s' are tied but differ in shape or dtype",
                           ls_name_text(m->names, c->name), fqn);
        p->canonical = first;
    }
    return rc;
}

static enum ls_code read_ties(const struct ls_yaml_node *list, struct ls_model *m, struct ls_error *err)
{
    enum ls_code rc = ls_yaml_list(list, "ties", err);
    struct ls_arena scratch;
    ls_arena_init(&scratch, 0);
    bool *tied = LS_NEW(&scratch, bool, m->params);
    for (size_t i = 0; rc == LS_OK && i < list->count; i++)
        rc = read_tie(list->item[i], m, tied, err);
    ls_arena_release(&scratch);
    return rc;
}

static enum ls_code read_declared(const struct ls_yaml_node *n, struct ls_model *m, struct ls_declared *out, struct ls_error *err)
{
    static const char *const known[] = { "path", "modality", "role", "conditionally_executed", NULL };
    const char *path = NULL, *modality = NULL, *role = "";
    enum ls_code rc = ls_yaml_map(n, "multimodal", err);
    if (rc == LS_OK)
        rc = ls_yaml_check_keys(n, "multimodal", known, err);
    if (rc != LS_OK)
        return rc;
    const struct ls_yaml_node *key = ls_yaml_get(n, "path");
    rc = key ? ls_yaml_text(key, "path", &path, err) : ls_fail(err, LS_EINPUT, n->at, "the entry of 'multimodal' has no 'path'");
    if (rc != LS_OK)
        return rc;
    *out = (struct ls_declared){ .module = ls_model_module(m, path), .conditionally_executed = true, .at = n->at };
    if (out->module == LS_NO_ID)
        return ls_fail_module(m, path, "multimodal path", key->at, err);
    key = ls_yaml_get(n, "modality");
    rc = key ? ls_yaml_text(key, "modality", &modality, err) : ls_fail(err, LS_EINPUT, n->at, "'%.200s' has no 'modality'", path);
    if (rc == LS_OK && (key = ls_yaml_get(n, "role")))
        rc = ls_yaml_text(key, "role", &role, err);
    if (rc == LS_OK && (key = ls_yaml_get(n, "conditionally_executed")))
        rc = ls_yaml_bool(key, "conditionally_executed", &out->conditionally_executed, err);
    if (rc == LS_OK) {
        out->modality = ls_name_id(m->names, modality);
        out->role = ls_name_id(m->names, role);
    }
    for (size_t i = 0; rc == LS_OK && i < m->declared_count; i++)
        if (m->declared[i].module == out->module)
            rc = ls_fail(err, LS_EINPUT, n->at, "'%.200s' is declared twice", path);
    return rc;
}

static enum ls_code read_multimodal(const struct ls_yaml_node *list, struct ls_model *m, struct ls_error *err)
{
    enum ls_code rc = ls_yaml_list(list, "multimodal", err);
    if (rc != LS_OK)
        return rc;
    if (list->count > 1024)
        return ls_fail(err, LS_EINPUT, list->at, "'multimodal' has %zu entries, more than 1024", list->count);
    m->declared = LS_NEW(m->arena, struct ls_declared, list->count);
    for (size_t i = 0; rc == LS_OK && i < list->count; i++) {
        rc = read_declared(list->item[i], m, &m->declared[i], err);
        m->declared_count = i + (rc == LS_OK);
    }
    return rc;
}

/* The child called as `key` says (by default like the key itself), or LS_NO_ID. */
static enum ls_code find_moe_child(const struct ls_yaml_node *n, const char *key, const struct ls_model *m, uint32_t layer, uint32_t *out,
                                   struct ls_error *err)
{
    const struct ls_yaml_node *v = ls_yaml_get(n, key);
    const char *leaf = key;
    enum ls_code rc = v ? ls_yaml_text(v, key, &leaf, err) : LS_OK;
    *out = LS_NO_ID;
    for (size_t i = 0; rc == LS_OK && i < m->module[layer].children; i++)
        if (strcmp(ls_name_text(m->names, m->module[m->module[layer].child[i]].leaf), leaf) == 0)
            *out = m->module[layer].child[i];
    return rc;
}

static enum ls_code check_stacked(const struct ls_model *m, const struct ls_moe *e, struct ls_error *err)
{
    const struct ls_module *first = &m->module[e->experts], *last = first + first->subtree - 1;
    const uint32_t end = last->first_param + last->params;
    if (first->first_param == end)
        return ls_fail(err, LS_EINPUT, e->at, "the experts '%.200s' have no parameters", ls_name_text(m->names, first->name));
    for (uint32_t i = first->first_param; i < end; i++)
        if (m->param[i].dims < 2 || m->param[i].dim[0] != e->count)
            return ls_fail(err, LS_EINPUT, m->param[i].at, "'%.200s' belongs to %llu stacked experts, so its shape must be [%llu, ...]",
                           ls_name_text(m->names, m->param[i].name), (unsigned long long)e->count, (unsigned long long)e->count);
    return LS_OK;
}

static enum ls_code read_moe_layer(const struct ls_yaml_node *n, struct ls_model *m, uint32_t layer, const struct ls_moe *like,
                                   struct ls_error *err)
{
    struct ls_moe e = *like;
    const struct ls_yaml_node *bias = ls_yaml_get(n, "gate_bias");
    e.module = layer;
    enum ls_code rc = find_moe_child(n, "experts", m, layer, &e.experts, err);
    if (rc != LS_OK || e.experts == LS_NO_ID) /* a dense layer among those that the glob matches */
        return rc;
    rc = find_moe_child(n, "gate", m, layer, &e.gate, err);
    if (rc == LS_OK && e.gate == LS_NO_ID)
        rc = ls_fail(err, LS_EINPUT, n->at, "the MoE layer '%.200s' has no gate", ls_name_text(m->names, m->module[layer].name));
    if (rc == LS_OK)
        rc = check_stacked(m, &e, err);
    if (rc == LS_OK && bias) {
        const char *name = NULL;
        rc = ls_yaml_text(bias, "gate_bias", &name, err);
        for (size_t i = 0; rc == LS_OK && i < m->module[e.gate].buffers; i++)
            e.gate_bias |= strcmp(ls_name_text(m->names, m->module[e.gate].buffer[i].leaf), name) == 0;
        if (rc == LS_OK && !e.gate_bias)
            rc = ls_fail(err, LS_EINPUT, bias->at, "'%.200s' has no buffer '%.60s'", ls_name_text(m->names, m->module[e.gate].name), name);
    }
    for (size_t i = 0; rc == LS_OK && i < m->moes; i++)
        if (m->moe[i].module == layer)
            rc = ls_fail(err, LS_EINPUT, n->at, "'%.200s' is an MoE layer twice", ls_name_text(m->names, m->module[layer].name));
    if (rc == LS_OK)
        m->moe[m->moes++] = e;
    return rc;
}

static enum ls_code read_moe_entry(const struct ls_yaml_node *n, struct ls_model *m, struct ls_error *err)
{
    static const char *const known[] = { "modules", "experts", "gate", "count", "top_k", "gate_bias", "bias_update", NULL };
    const struct ls_yaml_node *glob = NULL, *v;
    const char *text = NULL;
    struct ls_moe like = { .top_k = 1, .at = n->at };
    enum ls_code rc = ls_yaml_map(n, "moe", err);
    if (rc == LS_OK)
        rc = ls_yaml_check_keys(n, "moe", known, err);
    for (size_t i = 0; rc == LS_OK && i < 2; i++)
        if (!ls_yaml_get(n, i ? "count" : "modules"))
            rc = ls_fail(err, LS_EINPUT, n->at, "the entry of 'moe' has no '%s'", i ? "count" : "modules");
    if (rc == LS_OK)
        rc = ls_yaml_text(glob = ls_yaml_get(n, "modules"), "modules", &text, err);
    if (rc == LS_OK)
        rc = ls_yaml_uint(ls_yaml_get(n, "count"), "count", 1, 1 << 20, &like.count, err);
    if (rc == LS_OK && (v = ls_yaml_get(n, "top_k")))
        rc = ls_yaml_uint(v, "top_k", 1, like.count, &like.top_k, err);
    if (rc == LS_OK && (v = ls_yaml_get(n, "bias_update")))
        rc = ls_yaml_bool(v, "bias_update", &like.bias_update, err);
    if (rc == LS_OK && like.bias_update && !ls_yaml_get(n, "gate_bias"))
        rc = ls_fail(err, LS_EINPUT, ls_yaml_get(n, "bias_update")->at, "'bias_update' needs 'gate_bias', the buffer that is updated");
    const size_t before = m->moes;
    for (uint32_t i = 1; rc == LS_OK && i < m->modules; i++)
        if (ls_glob(text, ls_name_text(m->names, m->module[i].name)))
            rc = read_moe_layer(n, m, i, &like, err);
    if (rc == LS_OK && m->moes == before)
        rc = ls_fail(err, LS_EINPUT, glob->at, "'%.200s' matches no module that has experts", text);
    return rc;
}

static int by_module(const void *x, const void *y)
{
    const struct ls_moe *a = x, *b = y;
    return (a->module > b->module) - (a->module < b->module);
}

static enum ls_code read_moe(const struct ls_yaml_node *list, struct ls_model *m, struct ls_error *err)
{
    enum ls_code rc = ls_yaml_list(list, "moe", err);
    if (rc == LS_OK)
        m->moe = LS_NEW(m->arena, struct ls_moe, m->modules);
    for (size_t i = 0; rc == LS_OK && i < list->count; i++)
        rc = read_moe_entry(list->item[i], m, err);
    if (rc == LS_OK && m->moes)
        qsort(m->moe, m->moes, sizeof *m->moe, by_module);
    return rc;
}

static enum ls_code read_conditions(const struct ls_yaml_node *map, struct ls_model *m, struct ls_error *err)
{
    static const char *const known[] = { "modality", NULL };
    enum ls_code rc = ls_yaml_map(map, "conditions", err);
    if (rc == LS_OK && map->count > LS_CONDITIONS_MAX)
        rc = ls_fail(err, LS_EINPUT, map->at, "there are %zu conditions, more than %d", map->count, LS_CONDITIONS_MAX);
    for (size_t i = 0; rc == LS_OK && i < map->count; i++) {
        const struct ls_yaml_node *key = map->pair[i].key, *value = map->pair[i].value;
        const char *modality = NULL;
        rc = ls_check_component(key->text, key->at, err);
        if (rc == LS_OK)
            rc = ls_yaml_map(value, key->text, err);
        if (rc == LS_OK)
            rc = ls_yaml_check_keys(value, key->text, known, err);
        if (rc == LS_OK && !ls_yaml_get(value, "modality"))
            rc = ls_fail(err, LS_EINPUT, key->at, "condition '%s' has no 'modality'", key->text);
        if (rc == LS_OK)
            rc = ls_yaml_text(ls_yaml_get(value, "modality"), "modality", &modality, err);
        if (rc == LS_OK)
            m->condition[m->conditions++] = (struct ls_condition){ ls_name_id(m->names, key->text), ls_name_id(m->names, modality) };
    }
    return rc;
}

static enum ls_code read_model_ids(const struct ls_yaml_node *list, struct ls_model *m, struct ls_error *err)
{
    enum ls_code rc = ls_yaml_list(list, "model_ids", err);
    if (rc != LS_OK)
        return rc;
    m->model_id = LS_NEW(m->arena, uint32_t, list->count);
    for (size_t i = 0; rc == LS_OK && i < list->count; i++) {
        const char *id = NULL;
        rc = ls_yaml_text(list->item[i], "model_ids", &id, err);
        if (rc == LS_OK)
            m->model_id[m->model_ids++] = ls_name_id(m->names, id);
    }
    return rc;
}

static enum ls_code read_config(const struct ls_yaml_node *map, struct ls_model *m, struct ls_error *err)
{
    enum ls_code rc = ls_yaml_map(map, "config", err);
    for (size_t i = 0; rc == LS_OK && i < map->count; i++)
        if (map->pair[i].value->kind != LS_YAML_SCALAR)
            rc = ls_fail(err, LS_EINPUT, map->pair[i].value->at, "'%.60s' in 'config' is not a single value", map->pair[i].key->text);
    m->config = map;
    return rc;
}

enum ls_code ls_inventory_read_parts(const struct ls_yaml_node *node, struct ls_model *m, struct ls_error *err)
{
    const struct ls_yaml_node *key = NULL;
    const char *text = NULL;
    enum ls_code rc = LS_OK;
    if ((key = ls_yaml_get(node, "name"))) {
        rc = ls_yaml_text(key, "name", &text, err);
        m->name = rc == LS_OK ? ls_name_id(m->names, text) : 0;
    }
    if (rc == LS_OK && (key = ls_yaml_get(node, "architecture"))) {
        rc = ls_yaml_text(key, "architecture", &text, err);
        m->architecture = rc == LS_OK ? ls_name_id(m->names, text) : 0;
    }
    if (rc == LS_OK && (key = ls_yaml_get(node, "source")))
        rc = ls_yaml_text(key, "source", &text, err);
    if (rc == LS_OK && (key = ls_yaml_get(node, "model_ids")))
        rc = read_model_ids(key, m, err);
    if (rc == LS_OK && (key = ls_yaml_get(node, "context_parallel")))
        rc = ls_yaml_bool(key, "context_parallel", &(bool){ false }, err); /* import/ reads it, to choose a file */
    if (rc == LS_OK && (key = ls_yaml_get(node, "config")))
        rc = read_config(key, m, err);
    if (rc == LS_OK && (key = ls_yaml_get(node, "aliases")))
        rc = read_aliases(key, m, err);
    if (rc == LS_OK && (key = ls_yaml_get(node, "ties")))
        rc = read_ties(key, m, err);
    if (rc == LS_OK && (key = ls_yaml_get(node, "parameters"))) {
        uint64_t want = 0, have = ls_model_elements(m);
        rc = ls_yaml_uint(key, "parameters", 0, LS_TOTAL_ELEMENTS_MAX, &want, err);
        if (rc == LS_OK && want != have)
            rc = ls_fail(err, LS_EINPUT, key->at, "'parameters' is %llu, but the modules below have %llu (tied ones counted once)",
                         (unsigned long long)want, (unsigned long long)have);
    }
    if (rc == LS_OK && (key = ls_yaml_get(node, "multimodal")))
        rc = read_multimodal(key, m, err);
    if (rc == LS_OK && (key = ls_yaml_get(node, "moe")))
        rc = read_moe(key, m, err);
    if (rc == LS_OK && (key = ls_yaml_get(node, "conditions")))
        rc = read_conditions(key, m, err);
    if (rc == LS_OK && (key = ls_yaml_get(node, "flow")))
        rc = ls_flow_read(key, m, err);
    if (rc == LS_OK)
        ls_flow_number(m);
    return rc;
}

enum ls_code ls_model_read(const struct ls_yaml_node *node, struct ls_arena *arena, struct ls_names *names, struct ls_model *out,
                           struct ls_error *err)
{
    static const char *const known[] = { "lockstep_inventory", "name", "architecture", "model_ids", "source", "context_parallel", "parameters", "dtype",
                                         "config", "modules", "aliases", "ties", "multimodal", "moe", "conditions", "flow", NULL };
    struct reader r = { .err = err };
    struct ls_model m = { .arena = arena, .names = names, .path = node->at.file };
    uint64_t version = 0;
    enum ls_code rc = ls_yaml_map(node, "inventory", err);
    if (rc == LS_OK)
        rc = ls_yaml_check_keys(node, "inventory", known, err);
    if (rc != LS_OK)
        return rc;
    const struct ls_yaml_node *key = ls_yaml_get(node, "lockstep_inventory");
    rc = key ? ls_yaml_uint(key, "lockstep_inventory", 1, 1, &version, err)
             : ls_fail(err, LS_EINPUT, node->at, "not an inventory: the key 'lockstep_inventory: 1' is missing");
    if (rc == LS_OK && !ls_yaml_get(node, "name"))
        rc = ls_fail(err, LS_EINPUT, node->at, "the inventory has no 'name'");
    if (rc == LS_OK && !ls_yaml_get(node, "modules"))
        rc = ls_fail(err, LS_EINPUT, node->at, "the inventory has no 'modules'");
    if (rc == LS_OK && (key = ls_yaml_get(node, "dtype")))
        rc = read_dtype(key, &r.dtype, err);
    if (rc != LS_OK)
        return rc;
    const struct ls_arena_mark mark = ls_arena_mark(arena);
    ls_build_init(&r.build, arena, names, err);
    key = ls_yaml_get(node, "modules");
    rc = read_module(&r, key, LS_NO_ID, "", key->at, 0);
    if (rc == LS_OK) {
        ls_build_finish(&r.build, &m);
        m.architecture = m.module[0].class_name;
        rc = ls_inventory_read_parts(node, &m, err);
    }
    ls_build_release(&r.build);
    if (rc == LS_OK)
        *out = m;
    else
        ls_arena_rewind(arena, mark);
    return rc;
}

enum ls_code ls_model_load(const char *path, struct ls_arena *arena, struct ls_names *names, struct ls_model *out, struct ls_error *err)
{
    const struct ls_yaml_node *node = NULL;
    enum ls_code rc = ls_yaml_load_file(path, arena, &node, err);
    return rc == LS_OK ? ls_model_read(node, arena, names, out, err) : rc;
}
