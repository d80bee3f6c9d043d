/* batch: what a step consists of, and what the replicas may hold. */
#include "scenario/internal.h"

#include <string.h>

enum { SAMPLES_MAX = 4096 };

/* An integer, or `any` (0). */
static enum ls_code load_number(struct loader *l, const struct ls_yaml_node *n, const char *name, uint64_t max, uint64_t *out)
{
    if (ls_yaml_is_text(n, "any") && !n->quoted) {
        *out = 0;
        return LS_OK;
    }
    enum ls_code rc = ls_yaml_uint(n, name, 1, max, out, l->err);
    if (rc != LS_OK && n->kind == LS_YAML_SCALAR && !ls_yaml_is_null(n) && (n->text[0] < '0' || n->text[0] > '9') && n->text[0] != '-')
        ls_hint(l->err, "write a number, or any");
    return rc;
}

/* Branches of forward that depend on the data, but on no media: {positives: 1}. */
static enum ls_code load_conditions(struct loader *l, const struct ls_yaml_node *n, struct ls_sample *s)
{
    static const char *const media[] = { "image", "video", "audio" };
    const struct ls_model *m = &l->s->model;
    const char *names[LS_CONDITIONS_MAX + 1] = { 0 };
    for (size_t c = 0; c < m->conditions; c++)
        names[c] = ls_name_text(m->names, m->condition[c].name);
    LS_TRY(ls_yaml_check_keys(n, "conditions", names, l->err));
    for (size_t i = 0; i < n->count; i++) {
        uint64_t count = 0;
        for (size_t k = 0; k < sizeof media / sizeof *media; k++)
            if (strcmp(n->pair[i].key->text, media[k]) == 0)
                return ls_fail(l->err, LS_EINPUT, n->pair[i].key->at, "'%s' counts media: write '%ss'", media[k], media[k]);
        LS_TRY(ls_yaml_uint(n->pair[i].value, n->pair[i].key->text, 0, 2, &count, l->err));
        for (size_t c = 0; c < m->conditions; c++)
            if (strcmp(names[c], n->pair[i].key->text) == 0)
                s->condition[c] = (uint8_t)count;
    }
    return LS_OK;
}

static enum ls_code load_samples(struct loader *l, const struct ls_yaml_node *n)
{
    static const char *const keys[] = { "text", "images", "videos", "audios", "sequences", "image_patches", "video_patches",
                                        "audio_positions", "experts", "conditions", NULL };
    static const char *const experts[] = { "busy", "idle", NULL };
    struct ls_batch *b = &l->s->batch;
    LS_TRY(ls_yaml_list(n, "samples", l->err));
    if (n->count == 0 || n->count > SAMPLES_MAX)
        return ls_fail(l->err, LS_EINPUT, n->at, n->count ? "'samples' lists %zu samples; %d are possible" : "'samples' is an empty list",
                       n->count, SAMPLES_MAX);
    b->sample = LS_NEW(l->s->arena, struct ls_sample, n->count);
    b->samples = n->count;
    for (size_t i = 0; i < n->count; i++) {
        struct ls_sample *s = &b->sample[i];
        uint64_t *const to[] = { &s->text, &s->images, &s->videos, &s->audios, &s->sequences, &s->image_patches, &s->video_patches,
                                 &s->audio_positions };
        LS_TRY(ls_yaml_check_keys(n->item[i], "samples", keys, l->err));
        s->at = n->item[i]->at;
        for (size_t k = 0; k < sizeof to / sizeof *to; k++) {
            const struct ls_yaml_node *v = ls_yaml_get(n->item[i], keys[k]);
            if (v)
                LS_TRY(ls_yaml_uint(v, keys[k], 0, k >= 1 && k <= 3 ? 2 : 1u << 30, to[k], l->err));
        }
        const struct ls_yaml_node *v = ls_yaml_get(n->item[i], "experts");
        size_t which = 0;
        if (v)
            LS_TRY(ls_yaml_choice(v, "experts", experts, &which, l->err));
        s->idle_experts = which == 1;
        if (ls_yaml_get(n->item[i], "conditions"))
            LS_TRY(load_conditions(l, ls_yaml_get(n->item[i], "conditions"), s));
    }
    return LS_OK;
}

static enum ls_code load_table(struct loader *l, const struct ls_yaml_node *n)
{
    struct ls_batch *b = &l->s->batch;
    b->execution = LS_EXEC_TABLE;
    LS_TRY(ls_yaml_list(n, "table", l->err));
    if (!n->count)
        return ls_fail(l->err, LS_EINPUT, n->at, "'table' is an empty list");
    for (size_t r = 0; r < n->count; r++) {
        const struct ls_yaml_node *row = n->item[r];
        LS_TRY(ls_yaml_list(row, "table", l->err));
        if (r == 0) {
            b->rows = n->count, b->columns = row->count;
            b->table = LS_NEW(l->s->arena, uint32_t, ls_mul_size(b->rows, b->columns ? b->columns : 1));
        }
        if (row->count != b->columns)
            return ls_fail(l->err, LS_EINPUT, row->at, "this row of 'table' has %zu columns, the first one %zu", row->count, b->columns);
        for (size_t c = 0; c < row->count; c++) {
            static const char *const keys[] = { "sample", "events", NULL };
            const struct ls_yaml_node *cell = row->item[c];
            uint64_t sample = 0;
            if (cell->kind == LS_YAML_MAP) { /* its events are read once the loop is known */
                LS_TRY(ls_yaml_check_keys(cell, "table", keys, l->err));
                if (!(cell = ls_yaml_get(cell, "sample")))
                    return ls_fail(l->err, LS_EINPUT, row->item[c]->at, "'sample' is missing");
            }
            LS_TRY(ls_yaml_uint(cell, "table", 0, UINT32_MAX, &sample, l->err));
            if (sample >= b->samples)
                return ls_fail(l->err, LS_EINPUT, row->item[c]->at, "'table' names sample %u, but there are %zu, counted from 0",
                               (unsigned)sample, b->samples);
            b->table[r * b->columns + c] = (uint32_t)sample;
        }
    }
    return LS_OK;
}

static enum ls_code load_uniform(struct loader *l, const struct ls_yaml_node *n)
{
    struct ls_batch *b = &l->s->batch;
    const char *const *text;
    b->execution = LS_EXEC_MODALITY_UNIFORM;
    LS_TRY(ls_load_texts(l, n, "uniform", &text, &b->uniforms));
    if (!b->uniforms)
        return ls_fail(l->err, LS_EINPUT, n->at, "'uniform' is an empty list");
    b->uniform = LS_NEW(l->s->arena, uint32_t, b->uniforms);
    for (size_t i = 0; i < b->uniforms; i++) {
        if (!ls_load_is_modality(l, text[i])) {
            ls_fail(l->err, LS_EINPUT, n->item[i]->at, "'uniform' names the modality '%.60s', which the model does not have", text[i]);
            ls_load_hint_modality(l, text[i]);
            return LS_EINPUT;
        }
        b->uniform[i] = ls_name_id(l->s->names, text[i]);
    }
    return LS_OK;
}

/* One sample per kind of microbatch that can come up: unions of as many kinds as a microbatch has samples. */
static void samples_of(struct loader *l, const struct ls_manifest *m)
{
    struct ls_batch *b = &l->s->batch;
    bool now[LS_KINDS], next[LS_KINDS];
    for (size_t k = 0; k < LS_KINDS; k++)
        now[k] = m->of_kind[k] > 0;
    for (uint64_t i = 1; i < m->batch_size && i < LS_KINDS; i++) {
        memcpy(next, now, sizeof now);
        for (size_t x = 0; x < LS_KINDS; x++)
            for (size_t y = 0; y < LS_KINDS; y++)
                next[x | y] = next[x | y] || (now[x] && m->of_kind[y]);
        memcpy(now, next, sizeof now);
    }
    b->sample = LS_NEW(l->s->arena, struct ls_sample, LS_KINDS);
    l->s->sample_kind = LS_NEW(l->s->arena, uint8_t, LS_KINDS);
    uint64_t text = m->text / m->samples * m->batch_size;
    for (uint8_t k = 0; k < LS_KINDS; k++)
        if (now[k]) {
            l->s->sample_kind[b->samples] = k;
            b->sample[b->samples++] = (struct ls_sample){ .text = text, .images = k & 1u, .videos = k >> 1 & 1u, .audios = k >> 2 & 1u, .at = m->at };
        }
}

/* A known order in which the ranks of a microbatch always hold one kind is a contract that says so. */
static enum ls_code keep_kinds_together(struct loader *l, const struct ls_manifest *m)
{
    struct ls_batch *b = &l->s->batch;
    struct ls_risk_input in = { .manifest = m, .groups = 1, .members = ls_scenario_replicas(&l->s->mesh), .microbatches = b->microbatches };
    struct ls_risk r;
    if (m->shuffle && !m->by_kind)
        return LS_OK;
    for (uint8_t k = 0; k < LS_KINDS; k++)
        in.class_of[k] = k;
    LS_TRY(ls_manifest_risk(&in, l->s->arena, &r, l->err));
    if (r.first_step)
        return LS_OK;
    uint32_t *each = LS_NEW(l->s->arena, uint32_t, b->samples + 1);
    for (uint32_t i = 0; i < b->samples; i++)
        each[i] = i;
    b->sample_class = each;
    return LS_OK;
}

/* {manifest: FILE, keys: {...}, sampler: {...}} */
static enum ls_code load_manifest(struct loader *l, const struct ls_yaml_node *n)
{
    static const char *const keys[] = { "manifest", "keys", "sampler", NULL }, *const names[] = { "text", "images", "videos", "audios", NULL };
    static const char *const sampler_keys[] = { "batch_size", "shuffle", "seed", "drop_last", "group_by", NULL };
    static const char *const groups[] = { "none", "media", NULL };
    struct ls_batch *b = &l->s->batch;
    struct ls_manifest *m = LS_NEW(l->s->arena, struct ls_manifest, 1);
    const struct ls_yaml_node *v;
    *m = (struct ls_manifest){ .batch_size = 1, .shuffle = true, .at = ls_yaml_get(n, "manifest")->at };
    LS_TRY(ls_yaml_check_keys(n, "execution", keys, l->err));
    b->execution = LS_EXEC_MANIFEST;
    b->execution_at = m->at;
    LS_TRY(ls_load_path(l, ls_yaml_get(n, "manifest"), "manifest", false, &m->path));
    for (size_t i = 0; i < 1 + LS_MEDIA; i++)
        m->key[i] = names[i];
    if ((v = ls_yaml_get(n, "keys"))) {
        LS_TRY(ls_yaml_check_keys(v, "keys", names, l->err));
        for (size_t i = 0; i < 1 + LS_MEDIA; i++)
            if (ls_yaml_get(v, names[i]))
                LS_TRY(ls_yaml_text(ls_yaml_get(v, names[i]), names[i], &m->key[i], l->err));
    }
    const struct ls_yaml_node *s = ls_yaml_get(n, "sampler");
    if (!s)
        return ls_fail(l->err, LS_EINPUT, n->at, "'sampler' is missing beside 'manifest'");
    LS_TRY(ls_yaml_check_keys(s, "sampler", sampler_keys, l->err));
    if (!ls_yaml_get(s, "shuffle"))
        return ls_fail(l->err, LS_EINPUT, s->at, "'shuffle' is missing in 'sampler'");
    LS_TRY(ls_yaml_bool(ls_yaml_get(s, "shuffle"), "shuffle", &m->shuffle, l->err));
    if ((v = ls_yaml_get(s, "batch_size")))
        LS_TRY(ls_yaml_uint(v, "batch_size", 1, 4096, &m->batch_size, l->err));
    if ((v = ls_yaml_get(s, "seed")))
        LS_TRY(ls_yaml_uint(v, "seed", 0, UINT32_MAX, &m->seed, l->err));
    if ((v = ls_yaml_get(s, "drop_last")))
        LS_TRY(ls_yaml_bool(v, "drop_last", &m->drop_last, l->err));
    if ((v = ls_yaml_get(s, "group_by"))) {
        size_t which = 0;
        LS_TRY(ls_yaml_choice(v, "group_by", groups, &which, l->err));
        m->by_kind = which == 1;
    }
    if (!ls_scenario_replicas(&l->s->mesh))
        return ls_fail(l->err, LS_EINPUT, m->at, "'manifest' needs a fixed number of replicas, but 'dp_size' is any");
    if (!b->microbatches)
        return ls_fail(l->err, LS_EINPUT, m->at, "'manifest' needs a fixed number of microbatches, but 'microbatches' is any");
    LS_TRY(ls_manifest_scan(m, l->s->arena, NULL, NULL, l->err));
    l->s->manifest = m;
    samples_of(l, m);
    return keep_kinds_together(l, m);
}

static enum ls_code load_execution(struct loader *l, const struct ls_yaml_node *n)
{
    static const char *const names[] = { "any", "rank_uniform", "node_uniform", "at_least_one", NULL };
    static const enum ls_execution kinds[] = { LS_EXEC_ANY, LS_EXEC_RANK_UNIFORM, LS_EXEC_NODE_UNIFORM, LS_EXEC_AT_LEAST_ONE };
    static const char *const keys[] = { "uniform", "table", "manifest", NULL };
    struct ls_batch *b = &l->s->batch;
    b->execution_at = n->at;
    if (n->kind == LS_YAML_MAP && ls_yaml_get(n, "manifest"))
        return load_manifest(l, n);
    if (n->kind == LS_YAML_MAP) {
        LS_TRY(ls_yaml_check_keys(n, "execution", keys, l->err));
        if (n->count != 1)
            return ls_fail(l->err, LS_EINPUT, n->at, "'execution' needs either 'uniform' or 'table'");
        b->execution_at = n->pair[0].key->at;
        return strcmp(n->pair[0].key->text, "table") == 0 ? load_table(l, n->pair[0].value) : load_uniform(l, n->pair[0].value);
    }
    size_t which = 0;
    enum ls_code rc = ls_yaml_choice(n, "execution", names, &which, l->err);
    if (rc != LS_OK && (ls_yaml_is_text(n, "table") || ls_yaml_is_text(n, "uniform")))
        ls_hint(l->err, ls_yaml_is_text(n, "table") ? "write {table: [[0, 1], ...]}" : "write {uniform: [vision]}, or rank_uniform");
    b->execution = kinds[which];
    return rc;
}

static enum ls_code load_dummy(struct loader *l, const struct ls_yaml_node *key, const struct ls_yaml_node *n, struct ls_dummy_forward *d)
{
    static const char *const keys[] = { "covers", "linked", NULL };
    const struct ls_yaml_node *covers = n, *v;
    const char *const *text;
    *d = (struct ls_dummy_forward){ .modality = ls_name_id(l->s->names, key->text), .linked = true, .active = true, .at = key->at };
    if (!ls_load_is_modality(l, key->text)) {
        ls_fail(l->err, LS_EINPUT, key->at, "'dummy_forward' names the modality '%.60s', which the model does not have", key->text);
        ls_load_hint_modality(l, key->text);
        return LS_EINPUT;
    }
    if (n->kind != LS_YAML_LIST) {
        LS_TRY(ls_yaml_check_keys(n, key->text, keys, l->err));
        if (!(covers = ls_yaml_get(n, "covers")))
            return ls_fail(l->err, LS_EINPUT, n->at, "'covers' is missing");
        if ((v = ls_yaml_get(n, "linked")))
            LS_TRY(ls_yaml_bool(v, "linked", &d->linked, l->err));
    }
    LS_TRY(ls_load_texts(l, covers, "covers", &text, &d->roles));
    if (!d->roles)
        return ls_fail(l->err, LS_EINPUT, covers->at, "'covers' is an empty list");
    d->role = LS_NEW(l->s->arena, uint32_t, d->roles);
    const struct ls_specs *specs = &l->s->specs;
    for (size_t r = 0; r < d->roles; r++) {
        const char *roles[65];
        size_t count = 0;
        d->role[r] = ls_name_id(l->s->names, text[r]);
        bool found = false;
        for (size_t i = 0; i < specs->count; i++)
            if (specs->spec[i].modality == d->modality && specs->spec[i].role) {
                found = found || specs->spec[i].role == d->role[r];
                if (count < 64)
                    roles[count++] = ls_name_text(l->s->names, specs->spec[i].role);
            }
        roles[count] = NULL;
        if (found)
            continue;
        ls_fail(l->err, LS_EINPUT, covers->item[r]->at, "'covers' names the role '%.60s', which no %.60s module of the model has", text[r],
                key->text);
        const char *near = ls_nearest(text[r], roles);
        if (near)
            ls_hint(l->err, "did you mean '%s'?", near);
        return LS_EINPUT;
    }
    return LS_OK;
}

static enum ls_code load_dummies(struct loader *l, const struct ls_yaml_node *n)
{
    struct ls_batch *b = &l->s->batch;
    LS_TRY(ls_yaml_map(n, "dummy_forward", l->err));
    b->dummy = LS_NEW(l->s->arena, struct ls_dummy_forward, n->count ? n->count : 1);
    for (; b->dummies < n->count; b->dummies++)
        LS_TRY(load_dummy(l, n->pair[b->dummies].key, n->pair[b->dummies].value, &b->dummy[b->dummies]));
    return LS_OK;
}

/* `last`: true only in the last microbatch. */
static void last_only(struct loader *l, struct ls_switch *out)
{
    size_t count = l->s->batch.microbatches ? (size_t)l->s->batch.microbatches : 2;
    out->at = LS_NEW(l->s->arena, bool, count);
    out->at[count - 1] = true;
    out->count = count;
}

static enum ls_code load_switch(struct loader *l, const struct ls_yaml_node *n, const char *name, struct ls_switch *out)
{
    out->where = n->at;
    if (ls_yaml_is_text(n, "last")) {
        last_only(l, out);
        return LS_OK;
    }
    out->count = n->kind == LS_YAML_LIST ? n->count : 1;
    if (out->count == 0 || (n->kind == LS_YAML_LIST && !l->s->batch.microbatches))
        return ls_fail(l->err, LS_EINPUT, n->at, out->count ? "'%s' is a list, but 'microbatches' is any" : "'%s' is an empty list", name);
    out->at = LS_NEW(l->s->arena, bool, out->count);
    if (n->kind == LS_YAML_LIST && n->count != l->s->batch.microbatches)
        return ls_fail(l->err, LS_EINPUT, n->at, "'%s' lists %zu values, but 'microbatches' is %zu", name, n->count,
                       (size_t)l->s->batch.microbatches);
    for (size_t i = 0; i < out->count; i++) {
        enum ls_code rc = ls_yaml_bool(n->kind == LS_YAML_LIST ? n->item[i] : n, name, &out->at[i], l->err);
        if (rc != LS_OK && n->kind == LS_YAML_SCALAR && !ls_yaml_is_null(n))
            ls_hint(l->err, "true, false, last, or a list with one value per microbatch");
        if (rc != LS_OK)
            return rc;
    }
    return LS_OK;
}

/* Parameters by globs: their reductions overwrite what earlier microbatches left. */
static enum ls_code load_overwrites(struct loader *l, const struct ls_yaml_node *n)
{
    const struct ls_model *m = &l->s->model;
    struct ls_step_policy *step = &l->s->step;
    const char *const *glob;
    size_t globs;
    LS_TRY(ls_load_texts(l, n, "overwrites", &glob, &globs));
    step->overwritten = LS_NEW(l->s->arena, uint32_t, m->params + 1);
    for (size_t i = 0; i < globs; i++) {
        bool any = false;
        for (size_t p = 0; p < m->params; p++) {
            if (m->param[p].canonical != p || !ls_glob(glob[i], ls_name_text(m->names, m->param[p].name)))
                continue;
            bool old = false;
            for (size_t k = 0; k < step->overwrittens; k++)
                old = old || step->overwritten[k] == p;
            if (!old)
                step->overwritten[step->overwrittens++] = (uint32_t)p;
            any = true;
        }
        if (!any)
            return ls_fail(l->err, LS_EINPUT, n->item[i]->at, "'overwrites': '%.150s' matches no parameter", glob[i]);
    }
    return LS_OK;
}

static enum ls_code load_accumulation(struct loader *l, const struct ls_yaml_node *n)
{
    static const char *const keys[] = { "gradient_sync", "all_reduce", "reshard_after_backward", "is_last_backward", "overwrites", NULL };
    struct ls_batch *b = &l->s->batch;
    struct ls_switch *const to[] = { &b->gradient_sync, &b->all_reduce, &b->reshard_after_backward, &b->is_last_backward };
    const struct ls_yaml_node *v = NULL;
    if (n)
        LS_TRY(ls_yaml_check_keys(n, "accumulation", keys, l->err));
    for (size_t i = 0; n && i < 4; i++)
        if ((v = ls_yaml_get(n, keys[i])))
            LS_TRY(load_switch(l, v, keys[i], to[i]));
    if (n && (v = ls_yaml_get(n, "overwrites")))
        LS_TRY(load_overwrites(l, v));
    /* Without a unit around the model, AutoModel's switch for gradients finds nothing to switch. */
    const bool root = l->s->kind != LS_PLAN_POLICY || l->s->mesh.ep == 1 || ls_plan_outer_root(&l->s->model, &l->s->policy.moe);
    if (l->s->kind == LS_PLAN_POLICY && l->s->model.moes && l->s->policy.moe.fsdp_optimizations) {
        if (!b->reshard_after_backward.count)
            last_only(l, &b->reshard_after_backward);
        if (!b->is_last_backward.count)
            last_only(l, &b->is_last_backward);
        if (!b->gradient_sync.count && (!l->defer || l->defer_value || !root))
            last_only(l, &b->gradient_sync);
    }
    if (!l->defer || !root)
        return LS_OK;
    if (n && (v = ls_yaml_get(n, "gradient_sync")))
        return ls_fail(l->err, LS_EINPUT, v->at, "'gradient_sync' cannot stand beside 'defer_fsdp_grad_sync', which sets it");
    if (l->defer_value) {
        b->gradient_sync.where = l->defer->at;
        last_only(l, &b->gradient_sync);
    }
    return LS_OK;
}

enum ls_code ls_load_rounds(struct loader *l, const struct ls_yaml_node *n, const char *name, bool after, enum ls_round_kind **out, size_t *count)
{
    static const char *const names[] = { "micro", "step", "eval", "skipped", "eval_end", "save", "no_save", NULL };
    static const enum ls_round_kind kinds[] = { LS_ROUND_MICRO, LS_ROUND_STEP, LS_ROUND_EVAL, LS_ROUND_SKIPPED, LS_ROUND_EVAL_END,
                                                LS_ROUND_SAVE, LS_ROUND_NO_SAVE };
    LS_TRY(ls_yaml_list(n, name, l->err));
    if (!n->count)
        return ls_fail(l->err, LS_EINPUT, n->at, "'%s' is an empty list", name);
    *out = LS_NEW(l->s->arena, enum ls_round_kind, n->count);
    *count = n->count;
    for (size_t i = 0; i < n->count; i++) {
        size_t which = 0;
        LS_TRY(ls_yaml_choice(n->item[i], name, names, &which, l->err));
        (*out)[i] = kinds[which];
        if (after && (which < 2 || kinds[which] == LS_ROUND_SKIPPED))
            return ls_fail(l->err, LS_EINPUT, n->item[i]->at, "'%s' lists %s, which belongs to a step", name, names[which]);
    }
    return LS_OK;
}

static enum ls_code load_schedule(struct loader *l, const struct ls_yaml_node *n)
{
    struct ls_batch *b = &l->s->batch;
    LS_TRY(ls_load_rounds(l, n, "schedule", false, &b->schedule, &b->rounds));
    size_t micros = 0;
    for (size_t i = 0; i < b->rounds; i++)
        micros += b->schedule[i] == LS_ROUND_MICRO || b->schedule[i] == LS_ROUND_SKIPPED;
    if (!b->microbatches && micros != 1)
        return ls_fail(l->err, LS_EINPUT, n->at, "'schedule' holds 'micro' %zu times; with microbatches any it stands there once", micros);
    if (b->microbatches && micros != b->microbatches)
        return ls_fail(l->err, LS_EINPUT, n->at, "'schedule' holds 'micro' %zu times, but 'microbatches' is %zu", micros,
                       (size_t)b->microbatches);
    return LS_OK;
}

enum ls_code ls_load_batch(struct loader *l)
{
    static const char *const keys[] = { "microbatches", "samples", "execution", "dummy_forward", "accumulation", "schedule", "steps", NULL };
    struct ls_batch *b = &l->s->batch;
    const struct ls_yaml_node *n = section(l, "batch"), *v;
    LS_TRY(ls_yaml_check_keys(n, "batch", keys, l->err));
    *b = (struct ls_batch){ .model = &l->s->model, .microbatches = 1, .at = n->at, .execution_at = n->at };
    static const char *const needed[] = { "microbatches", "samples", "execution" };
    const struct ls_yaml_node *execution = ls_yaml_get(n, "execution"), *samples = ls_yaml_get(n, "samples");
    bool manifest = execution && execution->kind == LS_YAML_MAP && ls_yaml_get(execution, "manifest");
    for (size_t i = 0; i < 3; i++)
        if (!ls_yaml_get(n, needed[i]) && !(manifest && strcmp(needed[i], "samples") == 0))
            return ls_fail(l->err, LS_EINPUT, n->at, "'%s' is missing in 'batch'", needed[i]);
    if (manifest && samples)
        return ls_fail(l->err, LS_EINPUT, samples->at, "'samples' cannot stand beside 'manifest', which holds them");
    LS_TRY(load_number(l, ls_yaml_get(n, "microbatches"), "microbatches", LS_MICROBATCHES_MAX, &b->microbatches));
    if ((v = ls_yaml_get(n, "steps")))
        LS_TRY(load_number(l, v, "steps", LS_STEPS_MAX, &b->steps));
    const struct ls_moe_policy *moe = &l->s->policy.moe;
    b->by_tokens = l->s->mesh.ep > 1 && moe->dispatcher == LS_DISPATCH_HYBRIDEP && !ls_moe_agrees_tokens(&l->s->policy);
    b->by_idle_experts = l->s->mesh.ep > 1 && moe->no_dummy_pass;
    if (!manifest)
        LS_TRY(load_samples(l, samples));
    LS_TRY(load_execution(l, ls_yaml_get(n, "execution")));
    if ((v = ls_yaml_get(n, "dummy_forward")))
        LS_TRY(load_dummies(l, v));
    LS_TRY(load_accumulation(l, ls_yaml_get(n, "accumulation")));
    return (v = ls_yaml_get(n, "schedule")) ? load_schedule(l, v) : LS_OK;
}
