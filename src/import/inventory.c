/* The inventory of a model id; adapters by AutoModel's matcher. */
#include "import/internal.h"
#include "model/model.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

static int by_name(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* The *.yaml files of the folder, sorted. */
static enum ls_code list_folder(const char *folder, struct ls_arena *arena, const char ***out, size_t *count, struct ls_error *err)
{
    LS_VEC(const char *) names = { 0 };
    DIR *dir = opendir(folder);
    if (!dir)
        return ls_fail(err, LS_EINPUT, (struct ls_loc){ ls_arena_str(arena, folder), 0, 0 }, "cannot open the folder of inventories: %s",
                       strerror(errno));
    for (struct dirent *e; (e = readdir(dir));) {
        size_t length = strlen(e->d_name);
        if (length > 5 && strcmp(e->d_name + length - 5, ".yaml") == 0)
            ls_push(&names, ls_arena_printf(arena, "%s/%s", folder, e->d_name));
    }
    closedir(dir);
    if (names.count)
        qsort(names.at, names.count, sizeof *names.at, by_name);
    *count = names.count;
    *out = names.count ? ls_arena_copy(arena, names.at, names.count * sizeof *names.at) : NULL;
    ls_vec_release(&names);
    return LS_OK;
}

static enum ls_code read_inventory(const char *path, struct ls_arena *arena, struct ls_inventory *out, struct ls_error *err)
{
    const struct ls_yaml_node *root;
    struct ls_arena scratch; /* the tree is large, and two lists are kept */
    ls_arena_init(&scratch, 0);
    enum ls_code rc = ls_yaml_load_file(path, &scratch, &root, err);
    *out = (struct ls_inventory){ .path = ls_arena_str(arena, path) };
    if (rc != LS_OK && err)
        err->input.file = out->path;
    bool map = rc == LS_OK && root->kind == LS_YAML_MAP;
    const struct ls_yaml_node *ids = map ? ls_yaml_get(root, "model_ids") : NULL, *conditions = map ? ls_yaml_get(root, "conditions") : NULL;
    const struct ls_yaml_node *cut = map ? ls_yaml_get(root, "context_parallel") : NULL;
    if (cut && ls_yaml_bool(cut, "context_parallel", &out->context_parallel, NULL) != LS_OK)
        out->context_parallel = false; /* said when the model is read */
    if (map && ls_yaml_get(root, "architecture") && ls_yaml_get(root, "architecture")->kind == LS_YAML_SCALAR)
        out->architecture = ls_arena_str(arena, ls_yaml_get(root, "architecture")->text);
    if (ids && ids->kind == LS_YAML_LIST) {
        const char **id = LS_NEW(arena, const char *, ids->count + 1);
        for (size_t k = 0; k < ids->count; k++)
            if (ids->item[k]->kind == LS_YAML_SCALAR)
                id[out->model_ids++] = ls_arena_str(arena, ids->item[k]->text);
        out->model_id = id;
    }
    if (conditions && conditions->kind == LS_YAML_MAP) {
        const char **condition = LS_NEW(arena, const char *, conditions->count + 1);
        for (size_t k = 0; k < conditions->count; k++)
            condition[out->conditions++] = ls_arena_str(arena, conditions->pair[k].key->text);
        out->condition = condition;
    }
    ls_arena_release(&scratch);
    return rc;
}

static enum ls_code read_inventories(const char **path, size_t count, struct ls_arena *arena, struct ls_inventories *out, struct ls_error *err)
{
    struct ls_inventory *entry = LS_NEW(arena, struct ls_inventory, count + 1);
    enum ls_code rc = LS_OK;
    for (size_t k = 0; k < count && rc == LS_OK; k++)
        rc = read_inventory(path[k], arena, &entry[k], err);
    *out = (struct ls_inventories){ .entry = entry, .count = rc == LS_OK ? count : 0 };
    return rc;
}

enum ls_code ls_inventories_read(const char *folder, struct ls_arena *arena, struct ls_inventories *out, struct ls_error *err)
{
    const char **path = NULL;
    size_t count = 0;
    *out = (struct ls_inventories){ 0 };
    enum ls_code rc = list_folder(folder, arena, &path, &count, err);
    return rc == LS_OK ? read_inventories(path, count, arena, out, err) : rc;
}

enum ls_code ls_inventories_only(const char *path, struct ls_arena *arena, struct ls_inventories *out, struct ls_error *err)
{
    enum ls_code rc = read_inventories(&path, 1, arena, out, err);
    out->any_model = true;
    return rc;
}

const struct ls_inventory *import_find_inventory(const struct ls_inventories *known, const char *model_id, bool context_parallel)
{
    for (size_t f = 0; f < known->count; f++) {
        if (known->any_model)
            return &known->entry[f];
        for (size_t k = 0; k < known->entry[f].model_ids; k++)
            if (known->entry[f].context_parallel == context_parallel && strcmp(known->entry[f].model_id[k], model_id) == 0)
                return &known->entry[f];
    }
    return NULL;
}

/* `*` matches anything, dots included; a dot any one character, as in the regular expressions it becomes. */
static bool wildcard(const char *pattern, const char *text)
{
    const char *p = pattern, *s = text, *star = NULL, *star_at = NULL;
    for (;;) {
        if (p[0] == '*' || (p[0] == '.' && p[1] == '*')) {
            p += p[0] == '.' ? 2 : 1;
            star = p, star_at = s;
        } else if (*s && (*p == *s || *p == '.')) {
            p++, s++;
        } else if (!*s && !*p) {
            return true;
        } else if (star && *star_at) {
            p = star, s = ++star_at;
        } else {
            return false;
        }
    }
}

static enum ls_code pattern_list(struct importer *i, const struct ls_yaml_node *peft, const char *key, const char ***out, size_t *count)
{
    const struct ls_yaml_node *n = ls_yaml_get(peft, key);
    *out = NULL, *count = 0;
    if (!n || ls_yaml_is_null(n))
        return LS_OK;
    *count = n->kind == LS_YAML_LIST ? n->count : 1;
    *out = LS_NEW(i->arena, const char *, *count + 1);
    for (size_t k = 0; k < *count; k++) {
        enum ls_code rc = ls_yaml_text(n->kind == LS_YAML_LIST ? n->item[k] : n, key, &(*out)[k], i->err);
        if (rc != LS_OK)
            return rc;
    }
    return LS_OK;
}

static bool any_matches(const char **pattern, size_t count, const char *leaf, const char *fqn)
{
    for (size_t k = 0; k < count; k++)
        if (strcmp(pattern[k], leaf) == 0 || wildcard(pattern[k], fqn))
            return true;
    return false;
}

/* A Linear whose adapters could be added. */
static bool adaptable(const struct ls_model *m, const struct ls_module *module)
{
    const char *class_name = ls_name_text(m->names, module->class_name);
    size_t length = strlen(class_name);
    if (module->children || length < 6 || strcmp(class_name + length - 6, "Linear") != 0)
        return false;
    for (uint32_t p = module->first_param; p < module->first_param + module->params; p++)
        if (m->param[p].dims == 2 && strcmp(ls_name_text(m->names, m->param[p].leaf), "weight") == 0)
            return true;
    return false;
}

static bool is_experts(const struct ls_model *m, uint32_t module)
{
    for (size_t i = 0; i < m->moes; i++)
        if (m->moe[i].experts == module)
            return true;
    return false;
}

/* The name with list indices as `*`. */
static const char *without_indices(struct ls_arena *arena, const char *fqn)
{
    struct ls_str s = { 0 };
    for (const char *p = fqn; *p;) {
        size_t length = strcspn(p, "."), digits = strspn(p, "0123456789");
        if (p != fqn)
            ls_str_add(&s, ".");
        if (length && digits == length)
            ls_str_add(&s, "*");
        else
            ls_str_addn(&s, p, length);
        p += length + (p[length] == '.');
    }
    const char *out = ls_arena_str(arena, ls_str_text(&s));
    ls_str_release(&s);
    return out;
}

/* A target matches what ends with it at a dot. */
static bool ends_with_name(const char *fqn, const char *end)
{
    size_t n = strlen(fqn), e = strlen(end);
    return n > e && strcmp(fqn + n - e, end) == 0 && fqn[n - e - 1] == '.';
}

static void add_target(struct importer *i, const char **target, size_t *count, const char *text)
{
    for (size_t k = 0; k < *count; k++)
        if (strcmp(target[k], text) == 0)
            return;
    target[(*count)++] = ls_arena_str(i->arena, text);
}

enum ls_code import_peft_targets(struct importer *i, const struct ls_yaml_node *peft, const char ***out, size_t *count)
{
    const char **include, **exclude, **target;
    size_t includes, excludes, targets = 0;
    bool all = false;
    const struct ls_yaml_node *every = ls_yaml_get(peft, "match_all_linear");
    enum ls_code rc = pattern_list(i, peft, "target_modules", &include, &includes);
    if (rc == LS_OK)
        rc = pattern_list(i, peft, "exclude_modules", &exclude, &excludes);
    if (rc == LS_OK && every && !ls_yaml_is_null(every))
        rc = ls_yaml_bool(every, "match_all_linear", &all, i->err);
    if (rc != LS_OK)
        return rc;
    if ((includes && excludes) || (all && (includes || excludes)))
        return ls_fail(i->err, LS_EINPUT, peft->at, "'target_modules', 'exclude_modules' and 'match_all_linear' exclude each other");
    static const char *fallback[] = { "*_proj" };
    if (!all && !includes && !excludes)
        include = fallback, includes = 1;
    struct ls_names *names = ls_names_open();
    struct ls_model m;
    rc = ls_model_load(i->recipe->inventory->path, i->arena, names, &m, i->err);
    bool *wanted = rc == LS_OK ? LS_NEW(i->arena, bool, m.modules) : NULL;
    target = rc == LS_OK ? LS_NEW(i->arena, const char *, m.modules) : NULL;
    for (size_t k = 0; rc == LS_OK && k < m.modules; k++) {
        const char *leaf = ls_name_text(names, m.module[k].leaf), *fqn = ls_name_text(names, m.module[k].name);
        if (includes && is_experts(&m, (uint32_t)k)) /* by name only, not as a Linear */
            wanted[k] = any_matches(include, includes, leaf, fqn);
        if (adaptable(&m, &m.module[k]))
            wanted[k] = all || (includes ? any_matches(include, includes, leaf, fqn) : !any_matches(exclude, excludes, leaf, fqn));
    }
    for (size_t k = 0; rc == LS_OK && k < m.modules; k++) {
        if (!wanted[k])
            continue;
        const char *fqn = ls_name_text(names, m.module[k].name), *glob = without_indices(i->arena, fqn);
        bool exact = true; /* the glob may say more than the recipe: in targets `*` crosses dots */
        for (size_t o = 0; o < m.modules && rc == LS_OK; o++) {
            if (wanted[o] || (!adaptable(&m, &m.module[o]) && !is_experts(&m, (uint32_t)o)))
                continue;
            const char *other = ls_name_text(names, m.module[o].name);
            exact = exact && !wildcard(glob, other);
            if (ends_with_name(other, fqn))
                rc = ls_fail(i->err, LS_EINPUT, peft->at, "'peft' adapts '%.150s' and not '%.150s': targets cannot tell them apart", fqn, other);
        }
        add_target(i, target, &targets, exact ? glob : fqn);
    }
    if (rc == LS_OK && !targets)
        rc = ls_fail(i->err, LS_EINPUT, peft->at, "'peft' matches no Linear of the model");
    ls_names_close(names);
    *out = target, *count = targets;
    return rc;
}
