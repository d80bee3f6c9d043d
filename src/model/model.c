#include "model/model.h"

#include "model/build.h"

#include <assert.h>
#include <string.h>

const struct ls_moe *ls_model_moe(const struct ls_model *m, uint32_t experts)
{
    for (size_t i = 0; i < m->moes; i++)
        if (m->moe[i].experts == experts)
            return &m->moe[i];
    return NULL;
}

uint64_t ls_model_elements(const struct ls_model *m)
{
    uint64_t total = 0;
    for (uint32_t i = 0; i < m->params; i++)
        if (m->param[i].canonical == i)
            total += m->param[i].elements;
    return total;
}

bool ls_module_contains(const struct ls_model *m, uint32_t outer, uint32_t inner)
{
    return inner >= outer && inner - outer < m->module[outer].subtree;
}

static uint32_t find(const struct ls_model *m, const uint32_t *of_name, const char *fqn, size_t length)
{
    uint32_t id = 0;
    char name[LS_FQN_MAX + 1];
    if (length > LS_FQN_MAX)
        return LS_NO_ID;
    memcpy(name, fqn, length);
    name[length] = 0;
    return ls_name_find(m->names, name, &id) && id < m->known_names ? of_name[id] : LS_NO_ID;
}

/* The index of an FQN, through the longest alias that is a prefix of it if it has no entry of its own. */
static uint32_t resolve(const struct ls_model *m, const uint32_t *of_name, const char *fqn)
{
    uint32_t at = find(m, of_name, fqn, strlen(fqn));
    size_t best = 0;
    const char *base = NULL;
    for (size_t i = 0; at == LS_NO_ID && i < m->aliases; i++) {
        const char *alias = ls_name_text(m->names, m->alias[i]);
        size_t n = strlen(alias);
        if (strncmp(fqn, alias, n) == 0 && (!fqn[n] || fqn[n] == '.') && n > best)
            best = n, base = ls_name_text(m->names, m->alias_of[i]);
    }
    if (!base)
        return at;
    char joined[2 * LS_FQN_MAX + 2];
    size_t head = strlen(base), tail = strlen(fqn + best);
    if (head + tail > LS_FQN_MAX)
        return LS_NO_ID;
    memcpy(joined, base, head);
    memcpy(joined + head, fqn + best, tail + 1);
    const char *name = head ? joined : joined + (tail > 0); /* an alias of the root leaves a leading dot */
    return find(m, of_name, name, strlen(name));
}

uint32_t ls_model_module(const struct ls_model *m, const char *fqn) { return resolve(m, m->module_of_name, fqn); }
uint32_t ls_model_param(const struct ls_model *m, const char *fqn) { return resolve(m, m->param_of_name, fqn); }

void ls_build_init(struct ls_build *b, struct ls_arena *arena, struct ls_names *names, struct ls_error *err)
{
    *b = (struct ls_build){ .arena = arena, .names = names, .err = err };
}

void ls_build_release(struct ls_build *b)
{
    ls_vec_release(&b->module);
    ls_vec_release(&b->param);
    ls_vec_release(&b->module_of_name);
    ls_vec_release(&b->param_of_name);
    ls_str_release(&b->fqn);
}

/* Makes both maps cover every name there is. */
static void cover_names(struct ls_build *b)
{
    size_t count = ls_names_count(b->names);
    ls_reserve(&b->module_of_name, count > b->module_of_name.count ? count - b->module_of_name.count : 0);
    ls_reserve(&b->param_of_name, count > b->param_of_name.count ? count - b->param_of_name.count : 0);
    while (b->module_of_name.count < count)
        b->module_of_name.at[b->module_of_name.count++] = LS_NO_ID;
    while (b->param_of_name.count < count)
        b->param_of_name.at[b->param_of_name.count++] = LS_NO_ID;
}

enum ls_code ls_check_component(const char *name, struct ls_loc at, struct ls_error *err)
{
    size_t length = strlen(name);
    if (length == 0 || length > LS_COMPONENT_MAX)
        return ls_fail(err, LS_EINPUT, at, "a name must have 1 to %d characters", LS_COMPONENT_MAX);
    for (const unsigned char *s = (const unsigned char *)name; *s; s++)
        if (*s == '.' || *s < 0x20 || *s == 0x7f)
            return ls_fail(err, LS_EINPUT, at, "the name '%.60s' holds a dot or a control character", name);
    return LS_OK;
}

/* Interns `name` as the FQN of a new module or parameter. */
static enum ls_code new_name(struct ls_build *b, const char *name, struct ls_loc at, uint32_t *out)
{
    size_t length = strlen(name);
    if (length > LS_FQN_MAX)
        return ls_fail(b->err, LS_EINPUT, at, "the full name '%.60s...' has more than %d characters", name, LS_FQN_MAX);
    b->name_bytes += length + 1;
    if (b->name_bytes > LS_NAME_BYTES_MAX)
        return ls_fail(b->err, LS_EINPUT, at, "the names of modules and parameters need more than %d MiB", LS_NAME_BYTES_MAX >> 20);
    *out = ls_name_id(b->names, name);
    cover_names(b);
    if (b->module_of_name.at[*out] != LS_NO_ID)
        return ls_fail(b->err, LS_EINPUT, at, "there are two modules '%.200s', or a module and a parameter of that name", name);
    if (b->param_of_name.at[*out] != LS_NO_ID)
        return ls_fail(b->err, LS_EINPUT, at, "there are two parameters '%.200s', or a module and a parameter of that name", name);
    return LS_OK;
}

enum ls_code ls_build_module(struct ls_build *b, uint32_t parent, const char *leaf, struct ls_loc at, uint32_t *out)
{
    uint32_t name = 0;
    if (b->module.count >= LS_MODULES_MAX)
        return ls_fail(b->err, LS_EINPUT, at, "the model has more than %d modules", LS_MODULES_MAX);
    enum ls_code rc = new_name(b, ls_str_text(&b->fqn), at, &name);
    if (rc != LS_OK)
        return rc;
    uint32_t index = (uint32_t)b->module.count;
    struct ls_module module = { .name = name, .leaf = ls_name_id(b->names, leaf), .parent = parent, .at = at,
                                .first_param = (uint32_t)b->param.count };
    ls_push(&b->module, module);
    cover_names(b);
    b->module_of_name.at[name] = index;
    *out = index;
    return LS_OK;
}

enum ls_code ls_build_param(struct ls_build *b, const char *leaf, const struct ls_param *like)
{
    assert(b->module.count);
    struct ls_param p = *like;
    if (b->param.count >= LS_PARAMS_MAX)
        return ls_fail(b->err, LS_EINPUT, like->at, "the model has more than %d parameters", LS_PARAMS_MAX);
    b->elements += p.elements;
    if (b->elements > LS_TOTAL_ELEMENTS_MAX)
        return ls_fail(b->err, LS_EINPUT, like->at, "the model has more than 2^48 parameter elements");
    size_t length = b->fqn.length;
    ls_str_printf(&b->fqn, "%s%s", length ? "." : "", leaf);
    enum ls_code rc = new_name(b, ls_str_text(&b->fqn), like->at, &p.name);
    b->fqn.length = length;
    b->fqn.text[length] = 0;
    if (rc != LS_OK)
        return rc;
    p.leaf = ls_name_id(b->names, leaf);
    p.module = (uint32_t)b->module.count - 1;
    p.canonical = (uint32_t)b->param.count;
    cover_names(b);
    b->param_of_name.at[p.name] = p.canonical;
    ls_push(&b->param, p);
    b->module.at[p.module].params++;
    return LS_OK;
}

void ls_build_finish(struct ls_build *b, struct ls_model *m)
{
    cover_names(b);
    size_t n = b->module.count;
    m->modules = n;
    m->module = ls_arena_copy(b->arena, b->module.at, n * sizeof *m->module);
    m->params = b->param.count;
    m->param = ls_arena_copy(b->arena, b->param.at, m->params * sizeof *m->param);
    m->known_names = b->module_of_name.count;
    m->module_of_name = ls_arena_copy(b->arena, b->module_of_name.at, m->known_names * sizeof(uint32_t));
    m->param_of_name = ls_arena_copy(b->arena, b->param_of_name.at, m->known_names * sizeof(uint32_t));
    for (size_t i = 0; i < n; i++)
        m->module[i].subtree = 1, m->module[i].children = 0, m->module[i].child = NULL;
    for (size_t i = n; i-- > 1;) {
        struct ls_module *parent = &m->module[m->module[i].parent];
        parent->subtree += m->module[i].subtree;
        parent->children++;
    }
    uint32_t *child = LS_NEW(b->arena, uint32_t, n);
    for (size_t i = 0; i < n; i++) { /* pre-order: a module's slot is handed out before any of its children fills it */
        struct ls_module *module = &m->module[i];
        module->child = child;
        child += module->children;
        module->children = 0;
        if (i > 0) {
            struct ls_module *parent = &m->module[module->parent];
            parent->child[parent->children++] = (uint32_t)i;
        }
    }
}

enum ls_code ls_shape_elements(const uint64_t *dim, unsigned dims, const char *name, struct ls_loc at, uint64_t *out,
                               struct ls_error *err)
{
    uint64_t product = 1, bound = 1;
    for (unsigned i = 0; i < dims; i++) {
        product *= dim[i];
        /* A zero must not hide the size of the other dims: strides and paddings are computed from them. */
        if (dim[i] > LS_ELEMENTS_MAX || __builtin_mul_overflow(bound, dim[i] ? dim[i] : 1, &bound) || bound > LS_ELEMENTS_MAX)
            return ls_fail(err, LS_EINPUT, at, "'%.200s' has more than 2^40 elements", name);
    }
    *out = product;
    return LS_OK;
}

enum ls_code ls_fail_module(const struct ls_model *m, const char *fqn, const char *what, struct ls_loc at, struct ls_error *err)
{
    ls_fail(err, LS_EINPUT, at, "%s '%.200s': the model has no such module", what, fqn);
    char part[LS_FQN_MAX + 1];
    size_t length = strlen(fqn);
    if (!err || length > LS_FQN_MAX)
        return LS_EINPUT;
    memcpy(part, fqn, length + 1);
    char *dot;
    do {
        dot = strrchr(part, '.');
        if (dot)
            *dot = 0;
        else
            part[0] = 0;
    } while (part[0] && ls_model_module(m, part) == LS_NO_ID);
    uint32_t base = ls_model_module(m, part);
    size_t skip = strlen(part) + (part[0] != 0);
    size_t rest = strcspn(fqn + skip, ".");
    if (base == LS_NO_ID || m->module[base].children > 4096)
        return LS_EINPUT;
    char wanted[LS_FQN_MAX + 1];
    memcpy(wanted, fqn + skip, rest);
    wanted[rest] = 0;
    LS_VEC(const char *) names = { 0 };
    for (size_t i = 0; i < m->module[base].children; i++)
        ls_push(&names, ls_name_text(m->names, m->module[m->module[base].child[i]].leaf));
    for (size_t i = 0; base == 0 && i < m->aliases; i++)
        ls_push(&names, ls_name_text(m->names, m->alias[i]));
    ls_push(&names, NULL);
    const char *near = ls_nearest(wanted, names.at);
    if (near)
        ls_hint(err, "did you mean '%s%s%s%s'?", part, part[0] ? "." : "", near, fqn + skip + rest);
    ls_vec_release(&names);
    return LS_EINPUT;
}

enum ls_code ls_fail_param(const struct ls_model *m, const char *fqn, const char *what, struct ls_loc at, struct ls_error *err)
{
    ls_fail(err, LS_EINPUT, at, "%s '%.200s': the model has no such parameter", what, fqn);
    const char *dot = strrchr(fqn, '.');
    size_t head = dot ? (size_t)(dot - fqn) : 0;
    char part[LS_FQN_MAX + 1];
    if (!err || head > LS_FQN_MAX)
        return LS_EINPUT;
    memcpy(part, fqn, head);
    part[head] = 0;
    uint32_t base = ls_model_module(m, part);
    if (base == LS_NO_ID) {
        enum ls_code rc = ls_fail_module(m, part, what, at, err);
        return rc;
    }
    LS_VEC(const char *) names = { 0 };
    for (uint32_t i = 0; i < m->module[base].params && i < 4096; i++)
        ls_push(&names, ls_name_text(m->names, m->param[m->module[base].first_param + i].leaf));
    ls_push(&names, NULL);
    const char *near = ls_nearest(dot ? dot + 1 : fqn, names.at);
    if (near)
        ls_hint(err, "did you mean '%s%s%s'?", part, part[0] ? "." : "", near);
    ls_vec_release(&names);
    return LS_EINPUT;
}
