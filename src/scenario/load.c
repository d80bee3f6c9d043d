/* The document: which sections stand together, and the reads that several sections share. */
#include "scenario/internal.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const char *const sections[] = { "lockstep", "name", "question", "model", "freeze_config", "freeze", "train", "multimodal",
                                        "distributed", "units", "registered_forward_methods", "program", "runtime", "batch", "step", "loop",
                                        "loss", "platform", "simulate", "expect", NULL };
enum { VERSION = 1 };

void ls_load_note(struct loader *l, const char *key, enum ls_key_effect effect, const char *why, struct ls_loc at)
{
    ls_push(&l->note, ((struct ls_key_note){ ls_arena_str(l->s->arena, key), effect, why, at }));
}

bool ls_load_is_modality(const struct loader *l, const char *name)
{
    const struct ls_model *m = &l->s->model;
    for (size_t i = 0; i < m->conditions; i++)
        if (strcmp(ls_name_text(m->names, m->condition[i].modality), name) == 0)
            return true;
    for (size_t i = 0; i < l->s->specs.count; i++)
        if (strcmp(ls_name_text(m->names, l->s->specs.spec[i].modality), name) == 0)
            return true;
    return false;
}

/* The model's modalities, NULL-terminated. */
static size_t modality_names(const struct loader *l, const char **names, size_t room)
{
    const struct ls_model *m = &l->s->model;
    size_t count = 0;
    for (size_t i = 0; i < m->conditions + l->s->specs.count; i++) {
        uint32_t id = i < m->conditions ? m->condition[i].modality : l->s->specs.spec[i - m->conditions].modality;
        const char *name = ls_name_text(m->names, id);
        size_t k = 0;
        while (k < count && strcmp(names[k], name) != 0)
            k++;
        if (k == count && count + 1 < room)
            names[count++] = name;
    }
    names[count] = NULL;
    return count;
}

void ls_load_hint_modality(const struct loader *l, const char *name)
{
    const char *names[16];
    size_t count = modality_names(l, names, 16);
    const char *near = ls_nearest(name, names);
    struct ls_str text = { 0 };
    if (near) {
        ls_hint(l->err, "did you mean '%s'?", near);
    } else if (count == 0) {
        ls_hint(l->err, "the model has no modality beside text");
    } else {
        for (size_t i = 0; i < count; i++)
            ls_str_printf(&text, "%s%s", i ? ", " : "", names[i]);
        ls_hint(l->err, "the model has: %s", ls_str_text(&text));
    }
    ls_str_release(&text);
}

enum ls_code ls_load_check_keys(struct loader *l, const struct ls_yaml_node *map, const char *section, bool modalities)
{
    bool today = l->s->policy.rules == LS_RULES_AUTOMODEL;
    const char *title = strrchr(section, '.') ? strrchr(section, '.') + 1 : section;
    LS_TRY(ls_yaml_map(map, title, l->err));
    for (size_t i = 0; i < map->count; i++) {
        const struct ls_yaml_node *key = map->pair[i].key;
        const struct ls_key_row *row = ls_key_find(section, key->text);
        if (!row && modalities && ls_load_is_modality(l, key->text))
            continue;
        if (!row) {
            const char *names[96];
            size_t count = ls_key_names(section, names, 64);
            if (modalities)
                modality_names(l, names + count, 96 - count);
            ls_fail(l->err, LS_EINPUT, key->at, "unknown key '%.60s' in '%s'", key->text, title);
            const char *near = ls_nearest(key->text, names);
            if (near)
                ls_hint(l->err, "did you mean '%s'?", near);
            else if (modalities)
                ls_load_hint_modality(l, key->text);
            return LS_EINPUT;
        }
        enum ls_key_effect effect = today ? row->automodel : row->proposed;
        if (effect == LS_KEY_REFUSED && ls_yaml_is_null(map->pair[i].value))
            effect = LS_KEY_NO_EFFECT;
        if (effect == LS_KEY_REFUSED) {
            const char *instead = strstr(row->why, "; ");
            ls_fail(l->err, LS_EINPUT, key->at, "'%s' is refused: %.*s", key->text,
                    (int)(instead ? (size_t)(instead - row->why) : strlen(row->why)), row->why);
            if (instead)
                ls_hint(l->err, "%s", instead + 2);
            return LS_EINPUT;
        }
        if (!row->ours) {
            char full[160];
            snprintf(full, sizeof full, "%s.%s", section, key->text);
            ls_load_note(l, full, effect, row->why, key->at);
        }
    }
    return LS_OK;
}

enum ls_code ls_load_texts(struct loader *l, const struct ls_yaml_node *n, const char *name, const char *const **out, size_t *count)
{
    *out = NULL, *count = 0;
    if (!n)
        return LS_OK;
    LS_TRY(ls_yaml_list(n, name, l->err));
    const char **text = LS_NEW(l->s->arena, const char *, n->count ? n->count : 1);
    for (size_t i = 0; i < n->count; i++)
        LS_TRY(ls_yaml_text(n->item[i], name, &text[i], l->err));
    *out = text, *count = n->count;
    return LS_OK;
}

enum ls_code ls_load_dtype(struct loader *l, const struct ls_yaml_node *n, const char *name, bool torch, enum ls_dtype *out)
{
    static const struct { const char *text; enum ls_dtype dtype; } ours[] = { { "f32", LS_DTYPE_F32 }, { "bf16", LS_DTYPE_BF16 },
                                                                              { "f16", LS_DTYPE_F16 }, { "f64", LS_DTYPE_F64 } };
    static const struct { const char *text; enum ls_dtype dtype; } theirs[] = {
        { "float32", LS_DTYPE_F32 }, { "bfloat16", LS_DTYPE_BF16 }, { "float16", LS_DTYPE_F16 }, { "float64", LS_DTYPE_F64 } };
    static const char *const names[] = { "f32", "bf16", "f16", "f64", "null", NULL };
    size_t which = 0;
    if (ls_yaml_is_null(n)) {
        *out = LS_DTYPE_NONE;
        return LS_OK;
    }
    if (torch && n->kind == LS_YAML_SCALAR) {
        const char *text = strncmp(n->text, "torch.", 6) == 0 ? n->text + 6 : n->text;
        for (size_t i = 0; i < sizeof theirs / sizeof *theirs; i++)
            if (strcmp(text, theirs[i].text) == 0) {
                *out = theirs[i].dtype;
                return LS_OK;
            }
    }
    enum ls_code rc = ls_yaml_choice(n, name, names, &which, l->err);
    for (size_t i = 0; rc != LS_OK && i < sizeof theirs / sizeof *theirs; i++)
        if (ls_yaml_is_text(n, theirs[i].text))
            ls_hint(l->err, "write %s", names[i]);
    *out = ours[which].dtype;
    return rc;
}

enum ls_code ls_load_reshard(struct loader *l, const struct ls_yaml_node *n, const char *name, enum ls_reshard *kind, uint64_t *size)
{
    *kind = LS_RESHARD_DEFAULT, *size = 0;
    if (ls_yaml_is_null(n) || ls_yaml_is_text(n, "none"))
        return LS_OK;
    if (n->kind == LS_YAML_SCALAR && n->text[0] >= '0' && n->text[0] <= '9') {
        *kind = LS_RESHARD_SMALL;
        return ls_yaml_uint(n, name, 1, UINT32_MAX, size, l->err);
    }
    bool on = false;
    if (ls_yaml_bool(n, name, &on, NULL) != LS_OK)
        return ls_fail(l->err, LS_EINPUT, n->at, "'%s' is neither null, true, false nor an integer", name);
    *kind = on ? LS_RESHARD_TRUE : LS_RESHARD_FALSE;
    return LS_OK;
}

enum ls_code ls_load_unused(struct loader *l, const struct ls_yaml_node *n, const char *name, enum ls_unused *out)
{
    static const char *const names[] = { "off", "native", "fallback", NULL };
    size_t which = 0;
    LS_TRY(ls_yaml_choice(n, name, names, &which, l->err));
    *out = (enum ls_unused)which;
    return LS_OK;
}

static bool there(const char *path, bool folder)
{
    struct stat st;
    /* A device or a pipe would block, or never end. */
    return stat(path, &st) == 0 && (S_ISREG(st.st_mode) || (folder && S_ISDIR(st.st_mode)));
}

/* The folder part of a path without its last slash: "" for a bare name, "/" for the top. */
static const char *parent_of(struct ls_arena *arena, const char *path)
{
    const char *slash = strrchr(path, '/');
    if (!slash)
        return "";
    while (slash > path && slash[-1] == '/')
        slash--;
    return slash == path ? "/" : ls_arena_strn(arena, path, (size_t)(slash - path));
}

static bool try_path(struct loader *l, const char *base, const char *middle, const char *text, bool folder, const char **out)
{
    *out = ls_arena_printf(l->s->arena, "%s%s%s%s", base, base[0] && base[strlen(base) - 1] != '/' ? "/" : "", middle, text);
    return there(*out, folder);
}

enum ls_code ls_load_path(struct loader *l, const struct ls_yaml_node *n, const char *name, bool folder, const char **out)
{
    const char *text;
    LS_TRY(ls_yaml_text(n, name, &text, l->err));
    if (text[0] == '/') {
        *out = text;
        if (there(text, folder))
            return LS_OK;
        return ls_fail(l->err, LS_EINPUT, n->at, "'%s' names '%.200s', which is not there", name, text);
    }
    const char *base = parent_of(l->s->arena, l->s->path);
    if (try_path(l, base, "", text, folder, out))
        return LS_OK;
    for (;; base = parent_of(l->s->arena, base)) {
        const char *leaf = strrchr(base, '/') ? strrchr(base, '/') + 1 : base;
        if (strcmp(leaf, "scenarios") == 0 && try_path(l, base, "", text, folder, out))
            return LS_OK;
        if (try_path(l, base, "scenarios/", text, folder, out))
            return LS_OK;
        if (!base[0] || strcmp(base, "/") == 0)
            break;
    }
    if (try_path(l, "", "scenarios/", text, folder, out))
        return LS_OK;
    const char *installed = getenv("LOCKSTEP_SCENARIOS"); /* set by the lockstep script: the folder that ships with it */
    if (installed && installed[0] && try_path(l, installed, "", text, folder, out))
        return LS_OK;
    ls_fail(l->err, LS_EINPUT, n->at, "'%s' names '%.200s', which is not there", name, text);
    ls_hint(l->err, "looked beside this file, in scenarios/ above it and here, and in $LOCKSTEP_SCENARIOS");
    return LS_EINPUT;
}

const char *ls_scenario_find(const char *path, const char *folder, struct ls_arena *arena)
{
    const char *installed = getenv("LOCKSTEP_SCENARIOS"), *base[] = { "scenarios", installed && installed[0] ? installed : NULL };
    if (there(path, false) || path[0] == '/')
        return there(path, false) ? path : NULL;
    for (size_t i = 0; i < 2; i++)
        for (int below = 0; base[i] && below < 2; below++) {
            const char *at = ls_arena_printf(arena, "%s/%s%s%s", base[i], below ? folder : "", below ? "/" : "", path);
            if (there(at, false))
                return at;
        }
    return NULL;
}

uint32_t ls_scenario_free_dims(const struct ls_mesh *m)
{
    return (m->replicate != 1 ? LS_DIM_REPLICATE : 0u) | (m->shard != 1 ? LS_DIM_SHARD : 0u);
}

size_t ls_scenario_replicas(const struct ls_mesh *m)
{
    return m->replicate * m->shard; /* any is 0 */
}

static enum ls_code refuse_beside(struct loader *l, const char *const *keys, const char *leader, const char *why)
{
    for (size_t i = 0; i < l->root->count; i++) {
        const struct ls_yaml_node *key = l->root->pair[i].key;
        for (size_t k = 0; keys[k]; k++)
            if (strcmp(key->text, keys[k]) == 0)
                return ls_fail(l->err, LS_EINPUT, key->at, "'%s' cannot stand beside '%s': %s", key->text, leader, why);
    }
    return LS_OK;
}

/* Which kind of plan, and nothing of another kind beside it. */
static enum ls_code load_kind(struct loader *l)
{
    static const char *const not_raw[] = { "model", "freeze_config", "freeze", "train", "multimodal", "distributed", "units",
                                           "registered_forward_methods", "batch", "step", "loop", "loss", NULL };
    const struct ls_yaml_node *distributed = section(l, "distributed");
    if (section(l, "program")) {
        l->s->kind = LS_PLAN_RAW;
        return refuse_beside(l, not_raw, "program", "a raw program lists its ops itself");
    }
    if (!distributed && !section(l, "units"))
        return ls_fail(l->err, LS_EINPUT, l->root->at, "no plan: one of 'distributed', 'units' or 'program' is needed");
    l->s->kind = section(l, "units") ? LS_PLAN_UNITS : LS_PLAN_POLICY;
    static const char *const needed[] = { "model", "distributed", "batch" };
    for (size_t i = 0; i < sizeof needed / sizeof *needed; i++)
        if (!section(l, needed[i]))
            return ls_fail(l->err, LS_EINPUT, l->root->at, "'%s' is missing", needed[i]);
    return LS_OK;
}

/* The other files that people have at hand. */
static enum ls_code refuse_others(struct loader *l)
{
    static const struct { const char *key, *what, *hint; } other[] = {
        { "lockstep_inventory", "an inventory of a model", "a scenario names it: 'model: {inventory: FILE}'" },
        { "gpus_per_node", "a platform", "a scenario names it: 'platform: FILE'" },
        { "recipe", "a training recipe", "'lockstep import recipe FILE --world-size N' makes a scenario of it" },
        { "step_scheduler", "a training recipe", "'lockstep import recipe FILE --world-size N' makes a scenario of it" },
    };
    if (l->root->kind != LS_YAML_MAP || section(l, "lockstep"))
        return LS_OK;
    for (size_t i = 0; i < sizeof other / sizeof *other; i++)
        for (size_t k = 0; k < l->root->count; k++) {
            if (strcmp(l->root->pair[k].key->text, other[i].key) != 0)
                continue;
            ls_fail(l->err, LS_EINPUT, l->root->pair[k].key->at, "this is %s, not a scenario", other[i].what);
            ls_hint(l->err, "%s", other[i].hint);
            return LS_EINPUT;
        }
    return LS_OK;
}

static enum ls_code load_head(struct loader *l)
{
    struct ls_scenario *s = l->s;
    uint64_t version = 0;
    LS_TRY(refuse_others(l));
    LS_TRY(ls_yaml_check_keys(l->root, "scenario", sections, l->err));
    const struct ls_yaml_node *n = section(l, "lockstep");
    if (!n) {
        ls_fail(l->err, LS_EINPUT, l->root->at, "'lockstep' is missing");
        ls_hint(l->err, "a scenario starts with 'lockstep: %d'", VERSION);
        return LS_EINPUT;
    }
    LS_TRY(ls_yaml_uint(n, "lockstep", 1, UINT32_MAX, &version, l->err));
    if (version != VERSION)
        return ls_fail(l->err, LS_EINPUT, n->at, "'lockstep' is %u, but this program reads version %d", (unsigned)version, VERSION);
    if ((n = section(l, "name"))) {
        LS_TRY(ls_yaml_text(n, "name", &s->name, l->err));
    } else {
        const char *base = strrchr(s->path, '/') ? strrchr(s->path, '/') + 1 : s->path, *dot = strrchr(base, '.');
        s->name = ls_arena_strn(s->arena, base, dot && dot != base ? (size_t)(dot - base) : strlen(base));
    }
    if ((n = section(l, "question")))
        LS_TRY(ls_yaml_text(n, "question", &s->question, l->err));
    return LS_OK;
}

/* Letters, driver and contract once, so that what cannot work is said when the file is read. */
static enum ls_code try_batch(struct loader *l)
{
    struct ls_scenario *s = l->s;
    struct ls_arena scratch;
    ls_arena_init(&scratch, 0);
    struct ls_letters letters, all;
    struct ls_rounds rounds;
    struct ls_loop_rounds loop_rounds;
    struct ls_driver driver;
    struct ls_contract contract;
    uint32_t dims = ls_scenario_free_dims(&s->mesh);
    size_t replicas = ls_scenario_replicas(&s->mesh);
    enum ls_code rc = ls_batch_letters(&s->batch, s->names, &scratch, &letters, l->err);
    if (s->loop.present) {
        if (rc == LS_OK)
            rc = ls_loop_letters(&s->loop, &s->batch, &letters, s->names, &scratch, &all, l->err);
        if (rc == LS_OK)
            rc = ls_loop_driver(&s->loop, &s->batch, &all, &scratch, &loop_rounds, &driver, l->err);
        if (rc == LS_OK)
            rc = ls_loop_contract(&s->loop, &s->batch, &letters, &all, &loop_rounds.rounds, &driver, dims, replicas, &scratch, &contract, l->err);
    } else {
        if (rc == LS_OK)
            rc = ls_batch_driver(&s->batch, &scratch, &rounds, &driver, l->err);
        if (rc == LS_OK)
            rc = ls_batch_contract(&s->batch, &letters, dims, replicas, &scratch, &contract, l->err);
    }
    ls_arena_release(&scratch);
    return rc;
}

static enum ls_code load(struct loader *l)
{
    LS_TRY(load_head(l));
    LS_TRY(load_kind(l));
    LS_TRY(ls_load_runtime(l));
    if (l->s->kind != LS_PLAN_RAW) {
        LS_TRY(ls_load_rules(l));
        LS_TRY(ls_load_model(l));
        LS_TRY(ls_load_freeze(l));
        LS_TRY(ls_load_distributed(l));
        if (l->s->runtime.default_group && (l->s->mesh.replicate != 1 || l->s->mesh.ep > 1))
            return ls_fail(l->err, LS_EINPUT, l->s->runtime.at, "'default_group' needs a mesh of one axis: with several, each has a group of its own");
        LS_TRY(ls_load_units(l));
        LS_TRY(ls_load_batch(l));
        LS_TRY(ls_load_step(l));
        LS_TRY(ls_load_events(l));
        LS_TRY(try_batch(l));
    } else {
        LS_TRY(ls_load_raw(l));
    }
    return ls_load_rest(l);
}

static enum ls_code from_document(const struct ls_yaml_node *root, const char *path, struct ls_arena *arena, struct ls_names *names,
                                  struct ls_scenario *out, struct ls_error *err)
{
    *out = (struct ls_scenario){ .arena = arena, .names = names, .path = ls_arena_str(arena, path), .document = root, .mean = true };
    struct loader l = { .s = out, .root = root, .err = err };
    enum ls_code rc = load(&l);
    out->notes = l.note.count;
    out->note = l.note.count ? ls_arena_copy(arena, l.note.at, l.note.count * sizeof *l.note.at) : NULL;
    ls_vec_release(&l.note);
    return rc;
}

enum ls_code ls_scenario_load(const char *path, struct ls_arena *arena, struct ls_names *names, struct ls_scenario *out,
                              struct ls_error *err)
{
    const struct ls_yaml_node *root;
    enum ls_code rc = ls_yaml_load_file(path, arena, &root, err);
    return rc == LS_OK ? from_document(root, path, arena, names, out, err) : rc;
}

enum ls_code ls_scenario_read(const char *text, size_t length, const char *path, struct ls_arena *arena, struct ls_names *names,
                              struct ls_scenario *out, struct ls_error *err)
{
    const struct ls_yaml_node *root;
    enum ls_code rc = ls_yaml_load_text(text, length, path, arena, &root, err);
    return rc == LS_OK ? from_document(root, path, arena, names, out, err) : rc;
}
