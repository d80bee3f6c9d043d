/* model, freeze_config, freeze, train, multimodal: what is trained. */
#include "scenario/internal.h"

#include <string.h>

static enum ls_code load_peft(struct loader *l, const struct ls_yaml_node *n)
{
    static const char *const keys[] = { "kind", "targets", "rank", "dtype", "moe_rank_scaling", NULL }, *const kinds[] = { "lora", NULL };
    struct ls_peft peft = { .rank = 8, .at = n->at };
    const struct ls_yaml_node *v;
    size_t kind = 0;
    LS_TRY(ls_yaml_check_keys(n, "peft", keys, l->err));
    if (!(v = ls_yaml_get(n, "kind")))
        return ls_fail(l->err, LS_EINPUT, n->at, "'kind' is missing in 'peft'");
    LS_TRY(ls_yaml_choice(v, "kind", kinds, &kind, l->err));
    if (!(v = ls_yaml_get(n, "targets")))
        return ls_fail(l->err, LS_EINPUT, n->at, "'targets' is missing in 'peft'");
    LS_TRY(ls_load_texts(l, v, "targets", &peft.target, &peft.targets));
    if (!peft.targets)
        return ls_fail(l->err, LS_EINPUT, v->at, "'targets' is an empty list");
    if ((v = ls_yaml_get(n, "rank")))
        LS_TRY(ls_yaml_uint(v, "rank", 1, 1 << 16, &peft.rank, l->err));
    if ((v = ls_yaml_get(n, "dtype")))
        LS_TRY(ls_load_dtype(l, v, "dtype", true, &peft.dtype));
    if ((v = ls_yaml_get(n, "moe_rank_scaling")))
        LS_TRY(ls_yaml_bool(v, "moe_rank_scaling", &peft.moe_rank_scaling, l->err));
    l->s->freeze.peft_base = true;
    return ls_model_add_lora(&l->s->model, &peft, l->err);
}

enum ls_code ls_load_model(struct loader *l)
{
    static const char *const keys[] = { "inventory", "checkpoint", "flow", "peft", "backend", NULL };
    struct ls_scenario *s = l->s;
    const struct ls_yaml_node *n = section(l, "model"), *v;
    const char *path = NULL, *flow = NULL;
    LS_TRY(ls_yaml_check_keys(n, "model", keys, l->err));
    const struct ls_yaml_node *inventory = ls_yaml_get(n, "inventory"), *checkpoint = ls_yaml_get(n, "checkpoint");
    if (!inventory == !checkpoint)
        return ls_fail(l->err, LS_EINPUT, n->at, "'model' needs %s", inventory ? "one of 'inventory' and 'checkpoint', not both"
                                                                              : "'inventory' or 'checkpoint'");
    if ((v = ls_yaml_get(n, "flow"))) {
        if (inventory)
            return ls_fail(l->err, LS_EINPUT, v->at, "'flow' goes with 'checkpoint'; an inventory holds its own");
        LS_TRY(ls_load_path(l, v, "flow", false, &flow));
    }
    if (checkpoint) {
        LS_TRY(ls_load_path(l, checkpoint, "checkpoint", true, &path));
        LS_TRY(ls_model_load_checkpoint(path, flow, s->arena, s->names, &s->model, l->err));
    } else if (inventory->kind == LS_YAML_MAP) {
        LS_TRY(ls_model_read(inventory, s->arena, s->names, &s->model, l->err));
    } else {
        LS_TRY(ls_load_path(l, inventory, "inventory", false, &path));
        LS_TRY(ls_model_load(path, s->arena, s->names, &s->model, l->err));
    }
    if (!s->model.has_flow) {
        ls_fail(l->err, LS_EINPUT, (inventory ? inventory : checkpoint)->at, "the model has no flow, so what runs is not known");
        ls_hint(l->err, checkpoint ? "add 'flow:' with a recorded flow" : "add 'flow:' to the inventory");
        return LS_EINPUT;
    }
    bool fake = false;
    const struct ls_yaml_node *backend = ls_yaml_get(n, "backend");
    if (backend && backend->kind == LS_YAML_MAP && (v = ls_yaml_get(backend, "fake_balanced_gate")))
        LS_TRY(ls_yaml_bool(v, "fake_balanced_gate", &fake, l->err));
    /* Gemma 4 has a gate of its own, which it puts in place of whatever AutoModel's layer has made. */
    if (fake && strcmp(ls_name_text(s->names, s->model.architecture), "Gemma4ForConditionalGeneration") != 0)
        ls_model_fake_gates(&s->model);
    return LS_OK;
}

static enum ls_code load_overrides(struct loader *l, const struct ls_yaml_node *n, struct ls_override **out, size_t *count)
{
    static const char *const keys[] = { "modules", NULL };
    static const char *const module_keys[] = { "path", "modality", "role", "conditionally_executed", NULL };
    *out = NULL, *count = 0;
    if (!n)
        return LS_OK;
    LS_TRY(ls_yaml_check_keys(n, "multimodal", keys, l->err));
    const struct ls_yaml_node *list = ls_yaml_get(n, "modules");
    if (!list)
        return LS_OK;
    LS_TRY(ls_yaml_list(list, "modules", l->err));
    struct ls_override *o = LS_NEW(l->s->arena, struct ls_override, list->count ? list->count : 1);
    for (size_t i = 0; i < list->count; i++) {
        const struct ls_yaml_node *m = list->item[i], *v;
        LS_TRY(ls_yaml_check_keys(m, "modules", module_keys, l->err));
        o[i].at = m->at;
        o[i].conditionally_executed = -1;
        if (!(v = ls_yaml_get(m, "path")))
            return ls_fail(l->err, LS_EINPUT, m->at, "'path' is missing");
        LS_TRY(ls_yaml_text(v, "path", &o[i].path, l->err));
        if ((v = ls_yaml_get(m, "modality")))
            LS_TRY(ls_yaml_text(v, "modality", &o[i].modality, l->err));
        if ((v = ls_yaml_get(m, "role")))
            LS_TRY(ls_yaml_text(v, "role", &o[i].role, l->err));
        if ((v = ls_yaml_get(m, "conditionally_executed"))) {
            bool on = false;
            LS_TRY(ls_yaml_bool(v, "conditionally_executed", &on, l->err));
            o[i].conditionally_executed = on;
        }
    }
    *out = o, *count = list->count;
    return LS_OK;
}

static enum ls_code load_freeze_config(struct loader *l, const struct ls_yaml_node *n)
{
    struct ls_freeze *f = &l->s->freeze;
    const struct ls_yaml_node *today = NULL, *proposed = NULL;
    LS_TRY(ls_load_check_keys(l, n, "freeze_config", l->s->policy.rules == LS_RULES_PROPOSED));
    f->present = true;
    f->at = n->at;
    f->vision_tower = true; /* AutoModel's default once the section is there */
    static const char *const names[] = { "freeze_vision_tower", "freeze_audio_tower", "freeze_language_model",
                                         "freeze_video_embedder", "freeze_embeddings" };
    bool ignored = false, *const to[] = { &f->vision_tower, &f->audio_tower, &f->language_model, &f->video_embedder, &ignored };
    for (size_t i = 0; i < n->count; i++) {
        size_t k = 0;
        while (k < 5 && strcmp(n->pair[i].key->text, names[k]) != 0)
            k++;
        if (k == 5) {
            proposed = n->pair[i].key;
            continue;
        }
        today = n->pair[i].key;
        LS_TRY(ls_yaml_bool(n->pair[i].value, names[k], to[k], l->err));
    }
    if (today && proposed) {
        const struct ls_yaml_node *late = today->at.line > proposed->at.line ||
                                          (today->at.line == proposed->at.line && today->at.column > proposed->at.column)
                                              ? today : proposed;
        return ls_fail(l->err, LS_EINPUT, late->at, "'freeze_config' mixes '%s' with '%s': either today's keys or the proposed ones",
                       late == today ? proposed->text : today->text, late->text);
    }
    if (proposed)
        f->proposed = n;
    return LS_OK;
}

enum ls_code ls_load_freeze(struct loader *l)
{
    struct ls_scenario *s = l->s;
    const struct ls_yaml_node *n;
    struct ls_override *override;
    size_t overrides;
    LS_TRY(load_overrides(l, section(l, "multimodal"), &override, &overrides));
    LS_TRY(ls_multimodal_resolve(&s->model, s->policy.rules, override, overrides, &s->specs, l->err));
    if ((n = ls_yaml_get(section(l, "model"), "peft"))) { /* the paths hold; what they are bound to does not */
        LS_TRY(load_peft(l, n));
        LS_TRY(ls_specs_bind(&s->specs, &s->model, l->err));
    }
    if ((n = section(l, "freeze_config")))
        LS_TRY(load_freeze_config(l, n));
    LS_TRY(ls_load_texts(l, section(l, "freeze"), "freeze", &s->freeze.freeze, &s->freeze.freezes));
    LS_TRY(ls_load_texts(l, section(l, "train"), "train", &s->freeze.train, &s->freeze.trains));
    if (!s->freeze.at.line && (n = section(l, "freeze") ? section(l, "freeze") : section(l, "train")))
        s->freeze.at = n->at;
    return ls_multimodal_freeze(&s->model, &s->specs, s->policy.rules, &s->freeze, &s->at_sharding, &s->final, l->err);
}
