/* What is frozen, before sharding and while training.
 *   source  AutoModel apply_parameter_freezing, LinearLoRA, and apply_model_infrastructure (PEFT freezes the base after sharding) */
#include "multimodal/multimodal.h"

#include "base/vec.h"

#include <assert.h>
#include <ctype.h>
#include <string.h>

static void set_subtree(const struct ls_model *m, uint32_t module, bool value, bool *grad)
{
    const struct ls_module *first = &m->module[module], *last = first + first->subtree - 1;
    for (uint32_t i = first->first_param; i < last->first_param + last->params; i++)
        grad[m->param[i].canonical] = value;
}

/* Whether one of the patterns occurs in the lower-cased name. */
static bool occurs(const char *name, const char *const *pattern)
{
    for (; *pattern; pattern++) {
        size_t n = strlen(*pattern);
        for (const char *s = name; *s; s++) {
            size_t k = 0;
            while (k < n && tolower((unsigned char)s[k]) == (*pattern)[k])
                k++;
            if (k == n)
                return true;
        }
    }
    return false;
}

static void freeze_names(const struct ls_model *m, const char *attribute, const char *const *pattern, bool *grad)
{
    uint32_t at = ls_model_module(m, attribute); /* an attribute of the root, aliases included */
    if (at != LS_NO_ID)
        set_subtree(m, at, false, grad);
    for (uint32_t i = 1; i < m->modules; i++)
        if (occurs(ls_name_text(m->names, m->module[i].name), pattern)) {
            set_subtree(m, i, false, grad);
            i += m->module[i].subtree - 1; /* the names below hold this one */
        }
}

static void freeze_today(const struct ls_model *m, const struct ls_freeze *f, bool *grad)
{
    static const char *const vision[] = { "vision", "visual", "image_encoder", NULL };
    static const char *const audio[] = { "audio", "audio_encoder", "speech", "sound", NULL };
    static const char *const language[] = { "language", "text", "llm", NULL };
    if (f->vision_tower)
        freeze_names(m, "vision_tower", vision, grad);
    if (f->audio_tower)
        freeze_names(m, "audio_tower", audio, grad);
    if (f->language_model)
        freeze_names(m, "language_model", language, grad);
    for (uint32_t i = 0; f->video_embedder && i < m->params; i++)
        if (strstr(ls_name_text(m->names, m->param[i].name), "patch_generator.video_embedder"))
            grad[m->param[i].canonical] = false;
}

static uint64_t config_number(const struct ls_model *m, const char *key)
{
    const char *const prefix[] = { "text_", "" };
    for (size_t k = 0; m->config && k < 2; k++)
        for (size_t i = 0; i < m->config->count; i++) {
            const char *name = m->config->pair[i].key->text;
            uint64_t value;
            if (strncmp(name, prefix[k], strlen(prefix[k])) == 0 && strcmp(name + strlen(prefix[k]), key) == 0)
                return ls_yaml_uint(m->config->pair[i].value, key, 0, 1 << 20, &value, NULL) == LS_OK ? value : 0;
        }
    return 0;
}

/* AutoModel freezes keys and values of the last text layers, which take them from earlier layers. It goes by the layer's number alone:
 * of Gemma4 E2B, where transformers no longer builds them, that hits a layer of the vision tower that has such a number.
 *   source  AutoModel components/utils/model_utils.py, freeze_unused_kv_sharing_params */
static void freeze_shared_keys_and_values(const struct ls_model *m, bool *grad)
{
    static const char *const part[] = { "k_proj", "v_proj", "k_norm", "v_norm" };
    const uint64_t layers = config_number(m, "num_hidden_layers"), shared = config_number(m, "num_kv_shared_layers");
    if (!shared || !layers || shared > layers)
        return;
    for (uint32_t i = 0; i < m->params; i++) {
        for (const char *at = ls_name_text(m->names, m->param[i].name); (at = strstr(at, "layers.")); at++) {
            const char *number = at + strlen("layers."), *after = number + strspn(number, "0123456789");
            const size_t digits = (size_t)(after - number);
            uint64_t layer = 0;
            for (size_t d = 0; d < digits && digits < 8; d++)
                layer = layer * 10 + (uint64_t)(number[d] - '0');
            if (!digits || digits >= 8 || (number[0] == '0' && digits > 1) || layer < layers - shared || layer >= layers ||
                strncmp(after, ".self_attn.", strlen(".self_attn.")) != 0)
                continue;
            for (size_t k = 0; k < sizeof part / sizeof *part; k++)
                if (strncmp(after + strlen(".self_attn."), part[k], strlen(part[k])) == 0)
                    grad[m->param[i].canonical] = false;
        }
    }
}

struct proposed {
    const struct ls_model *m;
    const struct ls_specs *specs;
    const uint32_t *spec_of; /* [params] */
    struct ls_error *err;
    bool *grad;
    bool *chosen; /* [specs]: own part is frozen */
};

/* Chooses the specs of a modality; role NULL: of every role. LS_EINPUT when there is none. */
static enum ls_code choose_role(const struct proposed *p, const struct ls_yaml_node *key, const char *modality, const char *role)
{
    const struct ls_model *m = p->m;
    bool any = false;
    for (uint32_t s = 0; s < p->specs->count; s++) {
        const struct ls_spec *spec = &p->specs->spec[s];
        if (strcmp(ls_name_text(m->names, spec->modality), modality) != 0 ||
            (role && strcmp(ls_name_text(m->names, spec->role), role) != 0))
            continue;
        p->chosen[s] = any = true;
    }
    if (any)
        return LS_OK;
    ls_fail(p->err, LS_EINPUT, key->at, "'freeze_config' freezes %s %s, but the model has no such module", modality, role ? role : "modules");
    LS_VEC(const char *) known = { 0 };
    for (uint32_t s = 0; s < p->specs->count; s++) {
        const struct ls_spec *spec = &p->specs->spec[s];
        if (!role || strcmp(ls_name_text(m->names, spec->modality), modality) == 0)
            ls_push(&known, ls_name_text(m->names, role ? spec->role : spec->modality));
    }
    ls_push(&known, NULL);
    const char *near = ls_nearest(role ? role : modality, known.at);
    if (near)
        ls_hint(p->err, "did you mean '%s'?", near);
    ls_vec_release(&known);
    return LS_EINPUT;
}

static enum ls_code freeze_modality(const struct proposed *p, const struct ls_yaml_node *key, const struct ls_yaml_node *value)
{
    bool on = false;
    enum ls_code rc = LS_OK;
    if (value->kind == LS_YAML_SCALAR) {
        rc = ls_yaml_bool(value, key->text, &on, p->err);
        return rc == LS_OK && on ? choose_role(p, key, key->text, NULL) : rc;
    }
    rc = ls_yaml_map(value, key->text, p->err);
    for (size_t i = 0; rc == LS_OK && i < value->count; i++) {
        on = false;
        rc = ls_yaml_bool(value->pair[i].value, value->pair[i].key->text, &on, p->err);
        if (rc == LS_OK && on)
            rc = choose_role(p, value->pair[i].key, key->text, value->pair[i].key->text);
    }
    return rc;
}

static enum ls_code freeze_modules(const struct proposed *p, const struct ls_yaml_node *list)
{
    enum ls_code rc = ls_yaml_list(list, "modules", p->err);
    for (size_t i = 0; rc == LS_OK && i < list->count; i++) {
        const char *path = NULL;
        rc = ls_yaml_text(list->item[i], "modules", &path, p->err);
        if (rc != LS_OK)
            break;
        uint32_t module = ls_module_unwrapped(p->m, path);
        if (module == LS_NO_ID)
            return ls_fail_module(p->m, path, "'freeze_config.modules' names", list->item[i]->at, p->err);
        set_subtree(p->m, module, false, p->grad);
    }
    return rc;
}

static enum ls_code freeze_proposed(const struct proposed *p, const struct ls_yaml_node *config)
{
    enum ls_code rc = LS_OK;
    bool language = false;
    for (size_t i = 0; rc == LS_OK && i < config->count; i++) {
        const struct ls_yaml_node *key = config->pair[i].key, *value = config->pair[i].value;
        if (strcmp(key->text, "modules") == 0) {
            rc = freeze_modules(p, value);
        } else if (strcmp(key->text, "language_model") == 0) {
            rc = ls_yaml_bool(value, key->text, &language, p->err);
        } else {
            rc = freeze_modality(p, key, value);
        }
    }
    for (uint32_t i = 0; i < p->m->params; i++)
        if (p->spec_of[i] == LS_NO_ID ? language : p->chosen[p->spec_of[i]])
            p->grad[p->m->param[i].canonical] = false;
    return rc;
}

static enum ls_code apply_globs(const struct ls_model *m, const char *const *glob, size_t count, const char *what, bool value,
                                struct ls_loc at, bool *grad, struct ls_error *err)
{
    for (size_t g = 0; g < count; g++) {
        bool any = false;
        for (uint32_t i = 0; i < m->params; i++)
            if (ls_glob(glob[g], ls_name_text(m->names, m->param[i].name)))
                grad[m->param[i].canonical] = value, any = true;
        if (any)
            continue;
        enum ls_code rc = ls_fail(err, LS_EINPUT, at, "'%s': '%.200s' matches no parameter", what, glob[g]);
        uint32_t module = ls_model_module(m, glob[g]);
        if (module != LS_NO_ID)
            ls_hint(err, "that is a module; its parameters are '%.100s.**'", glob[g]);
        return rc;
    }
    return LS_OK;
}

/* An adapted Linear freezes its own weight and bias when the adapter is inserted; the rest of the base is frozen later. */
static void freeze_adapted(const struct ls_model *m, bool *grad)
{
    for (uint32_t i = 0; i < m->params; i++) {
        if (!m->param[i].adapter)
            continue;
        const struct ls_module *linear = &m->module[m->module[m->param[i].module].parent];
        for (uint32_t k = linear->first_param; k < linear->first_param + linear->params; k++)
            grad[m->param[k].canonical] = false;
    }
}

static bool can_train(enum ls_dtype d)
{
    return d == LS_DTYPE_F64 || d == LS_DTYPE_F32 || d == LS_DTYPE_F16 || d == LS_DTYPE_BF16 || d == LS_DTYPE_F8;
}

static enum ls_code finish(const struct ls_model *m, const struct ls_freeze *f, bool *grad, struct ls_error *err)
{
    enum ls_code rc = apply_globs(m, f->freeze, f->freezes, "freeze", false, f->at, grad, err);
    if (rc == LS_OK)
        rc = apply_globs(m, f->train, f->trains, "train", true, f->at, grad, err);
    for (uint32_t i = 0; i < m->params; i++)
        grad[i] = grad[m->param[i].canonical] && can_train(m->param[i].dtype);
    return rc;
}

enum ls_code ls_multimodal_freeze(const struct ls_model *m, const struct ls_specs *specs, enum ls_rules rules,
                                  const struct ls_freeze *freeze, bool **at_sharding, bool **final, struct ls_error *err)
{
    bool *early = LS_NEW(m->arena, bool, m->params), *late = LS_NEW(m->arena, bool, m->params);
    enum ls_code rc = LS_OK;
    memset(early, true, m->params);
    if (freeze->present && freeze->proposed && rules == LS_RULES_AUTOMODEL) {
        rc = ls_fail(err, LS_EINPUT, freeze->at, "'freeze_config' goes by modality and role, which AutoModel's rules do not know");
        ls_hint(err, "use freeze_vision_tower and its like, or 'rules: proposed'");
    } else if (freeze->present && freeze->proposed) {
        struct ls_arena scratch;
        ls_arena_init(&scratch, 0);
        struct proposed p = { m, specs, ls_specs_of_params(m, specs, &scratch), err, early,
                              LS_NEW(&scratch, bool, specs->count) };
        rc = freeze_proposed(&p, freeze->proposed);
        ls_arena_release(&scratch);
    } else if (freeze->present) {
        freeze_today(m, freeze, early);
    }
    if (rules == LS_RULES_AUTOMODEL)
        freeze_shared_keys_and_values(m, early);
    if (freeze->peft_base)
        freeze_adapted(m, early);
    for (uint32_t i = 0; i < m->params; i++)
        late[i] = early[m->param[i].canonical] && (!freeze->peft_base || m->param[m->param[i].canonical].adapter);
    if (rc == LS_OK)
        rc = finish(m, freeze, early, err);
    if (rc == LS_OK)
        rc = finish(m, freeze, late, err);
    if (rc == LS_OK)
        *at_sharding = early, *final = late;
    return rc;
}
