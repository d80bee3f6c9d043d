/* Checkpoint folders: the module tree from the names and shapes of the tensors. */
#include "model/build.h"
#include "model/model.h"
#include "model/safetensors.h"

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { INDEX_BYTES_MAX = 256 << 20 };

struct place { const char *name, *file; };

static int by_file(const void *x, const void *y)
{
    const struct place *a = x, *b = y;
    int c = strcmp(a->file, b->file);
    return c ? c : strcmp(a->name, b->name);
}

static bool is_number(const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!isdigit((unsigned char)s[i]))
            return false;
    return n > 0;
}

/* Component by component; numbers by value and before texts; a module's own tensors before those of its children. */
static int by_name(const void *x, const void *y)
{
    const char *a = ((const struct ls_safetensor *)x)->name, *b = ((const struct ls_safetensor *)y)->name;
    for (;;) {
        size_t na = strcspn(a, "."), nb = strcspn(b, ".");
        bool la = !a[na], lb = !b[nb]; /* the last component: the tensor itself */
        if (la != lb)
            return la ? -1 : 1;
        bool da = is_number(a, na), db = is_number(b, nb);
        int c = 0;
        if (da && db && na != nb)
            c = na < nb ? -1 : 1;
        else if (da != db)
            c = da ? -1 : 1;
        else
            c = strncmp(a, b, na < nb ? na : nb), c = c ? c : (na > nb) - (na < nb);
        if (c || la)
            return c;
        a += na + 1, b += nb + 1;
    }
}

static json_t *load_json(const char *path, struct ls_loc at, struct ls_error *err, enum ls_code *rc)
{
    json_error_t problem;
    FILE *f = fopen(path, "rb");
    *rc = LS_OK;
    if (!f) {
        *rc = ls_fail(err, LS_EINPUT, at, "cannot open the file: %s", strerror(errno));
        return NULL;
    }
    long size = fseek(f, 0, SEEK_END) == 0 ? ftell(f) : -1;
    json_t *root = NULL;
    if (size < 0 || size > INDEX_BYTES_MAX || fseek(f, 0, SEEK_SET) != 0)
        *rc = ls_fail(err, LS_EINPUT, at, "the file cannot be read, or is larger than %d MiB", INDEX_BYTES_MAX >> 20);
    else {
        root = json_loadf(f, JSON_REJECT_DUPLICATES, &problem);
        at.line = problem.line > 0 ? (size_t)problem.line : 0;
        at.column = problem.column > 0 ? (size_t)problem.column : 0;
        if (!root)
            *rc = ls_fail(err, LS_EINPUT, at, "not JSON: %s", problem.text);
    }
    fclose(f);
    return root;
}

/* The tensors that model.safetensors.index.json names, each from the file that it names. */
static enum ls_code read_indexed(const char *folder, const char *index, struct ls_arena *arena, ls_tensor_vec *out, struct ls_error *err)
{
    struct ls_loc at = { ls_arena_str(arena, index), 0, 0 };
    enum ls_code rc = LS_OK;
    json_t *root = load_json(index, at, err, &rc);
    if (!root)
        return rc;
    json_t *map = json_is_object(root) ? json_object_get(root, "weight_map") : NULL;
    LS_VEC(struct place) wanted = { 0 };
    ls_tensor_vec got = { 0 };
    if (!json_is_object(map) || json_object_size(map) == 0 || json_object_size(map) > LS_PARAMS_MAX)
        rc = ls_fail(err, LS_EINPUT, at, "there is no 'weight_map' with 1 to %d tensors", LS_PARAMS_MAX);
    const char *name = NULL;
    json_t *value = NULL;
    if (rc == LS_OK)
        json_object_foreach(map, name, value) {
            const char *file = json_string_value(value);
            if (!file || !file[0] || strchr(file, '/') || strchr(file, '\\') || strlen(file) > LS_COMPONENT_MAX || file[0] == '.') {
                rc = ls_fail(err, LS_EINPUT, at, "tensor '%.200s' is in a file whose name is not a plain one", name);
                break;
            }
            ls_push(&wanted, (struct place){ ls_arena_str(arena, name), ls_arena_str(arena, file) });
        }
    if (rc == LS_OK)
        qsort(wanted.at, wanted.count, sizeof *wanted.at, by_file);
    for (size_t i = 0; rc == LS_OK && i < wanted.count;) {
        size_t end = i;
        while (end < wanted.count && strcmp(wanted.at[end].file, wanted.at[i].file) == 0)
            end++;
        const char *path = ls_arena_printf(arena, "%s/%s", folder, wanted.at[i].file);
        got.count = 0;
        rc = ls_safetensors_read(path, arena, &got, err);
        size_t found = 0;
        for (size_t k = 0; rc == LS_OK && k < got.count; k++) {
            struct place key = { got.at[k].name, wanted.at[i].file };
            if (bsearch(&key, wanted.at + i, end - i, sizeof *wanted.at, by_file)) {
                ls_push(out, got.at[k]);
                found++;
            }
        }
        if (rc == LS_OK && found != end - i)
            rc = ls_fail(err, LS_EINPUT, at, "the index places %zu tensors in '%.100s', which has %zu of them", end - i,
                         wanted.at[i].file, found);
        i = end;
    }
    ls_vec_release(&wanted);
    ls_vec_release(&got);
    json_decref(root);
    return rc;
}

/* Opens the modules on the way to a tensor, sharing those that the tensor before it opened. */
static enum ls_code open_modules(struct ls_build *b, const char *name, struct ls_loc at, uint32_t *stack, unsigned *depth)
{
    ls_str_clear(&b->fqn);
    unsigned level = 0;
    bool shared = true;
    for (const char *s = name, *dot; (dot = strchr(s, '.')); s = dot + 1) {
        char leaf[LS_COMPONENT_MAX + 1];
        size_t n = (size_t)(dot - s);
        if (n == 0 || n > LS_COMPONENT_MAX || ++level > LS_MODULE_DEPTH_MAX)
            return ls_fail(b->err, LS_EINPUT, at, "tensor '%.200s' has an empty or too long part, or too many parts", name);
        memcpy(leaf, s, n);
        leaf[n] = 0;
        if (b->fqn.length)
            ls_str_add(&b->fqn, ".");
        ls_str_add(&b->fqn, leaf);
        shared = shared && level <= *depth &&
                 strcmp(ls_str_text(&b->fqn), ls_name_text(b->names, b->module.at[stack[level]].name)) == 0;
        if (shared)
            continue;
        enum ls_code rc = ls_check_component(leaf, at, b->err);
        if (rc == LS_OK)
            rc = ls_build_module(b, stack[level - 1], leaf, at, &stack[level]);
        if (rc != LS_OK)
            return rc;
        *depth = level;
    }
    *depth = level;
    return LS_OK;
}

static bool is_buffer(enum ls_dtype d)
{
    return d == LS_DTYPE_I64 || d == LS_DTYPE_I32 || d == LS_DTYPE_BOOL;
}

static enum ls_code build_tree(struct ls_build *b, ls_tensor_vec *tensors, struct ls_loc at)
{
    uint32_t stack[LS_MODULE_DEPTH_MAX + 1] = { 0 };
    unsigned depth = 0;
    ls_str_clear(&b->fqn);
    enum ls_code rc = ls_build_module(b, LS_NO_ID, "", at, &stack[0]);
    qsort(tensors->at, tensors->count, sizeof *tensors->at, by_name);
    for (size_t i = 0; rc == LS_OK && i < tensors->count; i++) {
        const struct ls_safetensor *t = &tensors->at[i];
        if (i > 0 && strcmp(t->name, t[-1].name) == 0) {
            rc = ls_fail(b->err, LS_EINPUT, at, "tensor '%.200s' is there twice", t->name);
            break;
        }
        const char *dot = strrchr(t->name, '.'), *leaf = dot ? dot + 1 : t->name;
        rc = open_modules(b, t->name, at, stack, &depth);
        if (rc == LS_OK)
            rc = ls_check_component(leaf, at, b->err);
        if (rc != LS_OK)
            break;
        struct ls_module *module = &b->module.at[stack[depth]];
        if (is_buffer(t->dtype)) {
            if ((module->buffers & (module->buffers - 1)) == 0) { /* full: the room is the next power of two */
                struct ls_buffer_info *grown = LS_NEW(b->arena, struct ls_buffer_info, module->buffers ? 2 * module->buffers : 1);
                if (module->buffers)
                    memcpy(grown, module->buffer, module->buffers * sizeof *grown);
                module->buffer = grown;
            }
            module->buffer[module->buffers++] = (struct ls_buffer_info){ ls_name_id(b->names, leaf), t->dtype, t->elements };
            continue;
        }
        assert(stack[depth] == b->module.count - 1 && "own tensors are sorted before the children's");
        struct ls_param p = { .dtype = t->dtype, .dims = t->dims, .elements = t->elements, .at = at };
        memcpy(p.dim, t->dim, sizeof p.dim);
        rc = ls_build_param(b, leaf, &p);
    }
    return rc;
}

static void find_containers(struct ls_model *m)
{
    for (size_t i = 0; i < m->modules; i++) {
        bool numbers = m->module[i].children > 0;
        for (size_t k = 0; numbers && k < m->module[i].children; k++) {
            const char *leaf = ls_name_text(m->names, m->module[m->module[i].child[k]].leaf);
            numbers = is_number(leaf, strlen(leaf));
        }
        if (numbers)
            m->module[i].container = LS_MODULE_LIST;
    }
}

static enum ls_code read_architecture(const char *path, struct ls_model *m, struct ls_error *err)
{
    FILE *f = fopen(path, "rb");
    if (!f)
        return LS_OK;
    fclose(f);
    enum ls_code rc = LS_OK;
    json_t *root = load_json(path, (struct ls_loc){ ls_arena_str(m->arena, path), 0, 0 }, err, &rc);
    const json_t *list = root && json_is_object(root) ? json_object_get(root, "architectures") : NULL;
    const char *name = list ? json_string_value(json_array_get(list, 0)) : NULL;
    if (name)
        m->architecture = m->module[0].class_name = ls_name_id(m->names, name);
    json_decref(root);
    return rc;
}

static enum ls_code read_flow_file(const char *path, struct ls_model *m, struct ls_error *err)
{
    static const char *const known[] = { "lockstep_inventory", "name", "architecture", "model_ids", "source", "parameters", "config",
                                         "aliases", "ties", "multimodal", "conditions", "flow", NULL };
    const struct ls_yaml_node *node = NULL;
    enum ls_code rc = ls_yaml_load_file(path, m->arena, &node, err);
    if (rc == LS_OK)
        rc = ls_yaml_map(node, "flow file", err);
    if (rc == LS_OK)
        rc = ls_yaml_check_keys(node, "flow file", known, err);
    return rc == LS_OK ? ls_inventory_read_parts(node, m, err) : rc;
}

enum ls_code ls_model_load_checkpoint(const char *folder, const char *flow_path, struct ls_arena *arena, struct ls_names *names,
                                      struct ls_model *out, struct ls_error *err)
{
    const char *index = ls_arena_printf(arena, "%s/model.safetensors.index.json", folder);
    const char *single = ls_arena_printf(arena, "%s/model.safetensors", folder);
    struct ls_loc at = { ls_arena_str(arena, folder), 0, 0 };
    struct ls_model m = { .arena = arena, .names = names, .path = at.file };
    ls_tensor_vec tensors = { 0 };
    enum ls_code rc = LS_OK;
    FILE *f = fopen(index, "rb");
    if (f) {
        fclose(f);
        rc = read_indexed(folder, index, arena, &tensors, err);
    } else {
        f = fopen(single, "rb");
        if (f) {
            fclose(f);
            rc = ls_safetensors_read(single, arena, &tensors, err);
        } else {
            rc = ls_fail(err, LS_EINPUT, at, "the folder has neither model.safetensors.index.json nor model.safetensors");
        }
    }
    if (rc == LS_OK && tensors.count == 0)
        rc = ls_fail(err, LS_EINPUT, at, "the checkpoint has no tensors");
    struct ls_build b;
    ls_build_init(&b, arena, names, err);
    if (rc == LS_OK)
        rc = build_tree(&b, &tensors, at);
    if (rc == LS_OK) {
        const char *slash = strrchr(folder, '/');
        ls_build_finish(&b, &m);
        find_containers(&m);
        m.name = ls_name_id(names, slash && slash[1] ? slash + 1 : folder);
        rc = read_architecture(ls_arena_printf(arena, "%s/config.json", folder), &m, err);
    }
    if (rc == LS_OK && flow_path)
        rc = read_flow_file(flow_path, &m, err);
    if (rc == LS_OK)
        *out = m;
    ls_build_release(&b);
    ls_vec_release(&tensors);
    return rc;
}
