#include "multimodal/migrate.h"

#include "base/vec.h"

#include <string.h>

/* ------------------------------------------------------------------------------------------------- subtrees */

typedef LS_VEC(struct ls_subtree) subtree_vec;

struct fold {
    const struct ls_model *m;
    const bool *in;
    bool *counts; /* [params]: the first name of a parameter that can train */
    struct ls_arena *arena;
    subtree_vec out;
};

static bool can_train(enum ls_dtype d)
{
    return d == LS_DTYPE_F64 || d == LS_DTYPE_F32 || d == LS_DTYPE_F16 || d == LS_DTYPE_BF16 || d == LS_DTYPE_F8;
}

static void count_in(const struct fold *f, uint32_t module, size_t *all, size_t *in)
{
    const struct ls_module *first = &f->m->module[module], *last = first + first->subtree - 1;
    *all = *in = 0;
    for (uint32_t p = first->first_param; p < last->first_param + last->params; p++)
        if (f->counts[p]) {
            *all += 1;
            *in += f->in[p];
        }
}

static void fold_module(struct fold *f, uint32_t module)
{
    const struct ls_model *m = f->m;
    const struct ls_module *at = &m->module[module];
    const char *name = ls_name_text(m->names, at->name);
    size_t all, in;
    count_in(f, module, &all, &in);
    if (!in)
        return;
    if (all == in) {
        ls_push(&f->out, ((struct ls_subtree){ name[0] ? ls_arena_printf(f->arena, "%s.**", name) : "**", all }));
        return;
    }
    for (uint32_t p = at->first_param; p < at->first_param + at->params; p++)
        if (f->counts[p] && f->in[p])
            ls_push(&f->out, ((struct ls_subtree){ ls_name_text(m->names, m->param[p].name), 1 }));
    for (uint32_t c = module + 1; c < module + at->subtree; c += m->module[c].subtree)
        fold_module(f, c);
}

size_t ls_param_subtrees(const struct ls_model *m, const bool *in, struct ls_arena *arena, struct ls_subtree **out)
{
    struct fold f = { .m = m, .in = in, .counts = LS_NEW(arena, bool, m->params + 1), .arena = arena };
    bool *met = LS_NEW(arena, bool, m->params + 1);
    for (uint32_t p = 0; p < m->params; p++) {
        f.counts[p] = !met[m->param[p].canonical] && can_train(m->param[p].dtype);
        met[m->param[p].canonical] = true;
    }
    fold_module(&f, 0);
    size_t count = f.out.count;
    *out = count ? ls_arena_copy(arena, f.out.at, count * sizeof *f.out.at) : NULL;
    ls_vec_release(&f.out);
    return count;
}

/* ------------------------------------------------------------------------------------------------- migration */

struct migrate {
    const struct ls_model *m;
    const struct ls_specs *specs;
    const uint32_t *spec_of; /* [params] */
    const bool *today;       /* [params]: requires_grad */
    bool *covered;           /* [params]: frozen by what is written so far */
    struct ls_str text;
    bool any;                /* something is written */
};

/* Own parts of the specs of a modality and role: frozen whole, in part, or not at all. */
enum part { PART_NONE, PART_SOME, PART_ALL };

static bool same_role(const struct ls_spec *a, const struct ls_spec *b)
{
    return a->modality == b->modality && a->role == b->role;
}

static bool in_part(const struct migrate *g, uint32_t param, const struct ls_spec *like)
{
    uint32_t s = g->spec_of[param];
    return like ? s != LS_NO_ID && same_role(&g->specs->spec[s], like) : s == LS_NO_ID;
}

/* `like` NULL: everything outside the specs. */
static enum part part_of(const struct migrate *g, const struct ls_spec *like)
{
    size_t frozen = 0, all = 0;
    for (uint32_t p = 0; p < g->m->params; p++)
        if (in_part(g, p, like) && can_train(g->m->param[p].dtype)) {
            all++;
            frozen += !g->today[g->m->param[p].canonical];
        }
    return !frozen ? PART_NONE : frozen == all ? PART_ALL : PART_SOME;
}

static void cover(struct migrate *g, const struct ls_spec *like)
{
    for (uint32_t p = 0; p < g->m->params; p++)
        if (in_part(g, p, like))
            g->covered[g->m->param[p].canonical] = true;
}

static void write_modality(struct migrate *g, uint32_t first)
{
    const struct ls_spec *spec = g->specs->spec;
    bool open = false;
    for (uint32_t s = first; s < g->specs->count; s++) {
        bool before = false;
        for (uint32_t k = first; k < s; k++)
            before = before || same_role(&spec[k], &spec[s]);
        if (before || spec[s].modality != spec[first].modality || !spec[s].role)
            continue; /* what has no role is left to `modules` */
        enum part part = part_of(g, &spec[s]);
        if (part == PART_SOME)
            continue;
        if (!open)
            ls_str_printf(&g->text, "%s%s: {", g->any ? ", " : "", ls_name_text(g->m->names, spec[first].modality));
        ls_str_printf(&g->text, "%s%s: %s", open ? ", " : "", ls_name_text(g->m->names, spec[s].role), part == PART_ALL ? "true" : "false");
        open = g->any = true;
        if (part == PART_ALL)
            cover(g, &spec[s]);
    }
    if (open)
        ls_str_add(&g->text, "}");
}

/* What is left, by module. False if some of it is not a whole module. */
static bool write_modules(struct migrate *g)
{
    const struct ls_model *m = g->m;
    struct ls_subtree *left;
    bool *frozen = LS_NEW(m->arena, bool, m->params + 1), *rest = LS_NEW(m->arena, bool, m->params + 1), whole = true, any = false;
    for (uint32_t p = 0; p < m->params; p++) {
        frozen[p] = !g->today[m->param[p].canonical];
        rest[p] = frozen[p] && can_train(m->param[p].dtype) && !g->covered[m->param[p].canonical];
        any = any || rest[p];
    }
    if (!any)
        return true;
    ls_str_printf(&g->text, "%smodules: [", g->any ? ", " : "");
    size_t count = ls_param_subtrees(m, frozen, m->arena, &left), written = 0;
    for (size_t i = 0; i < count; i++) {
        size_t length = strlen(left[i].glob);
        bool module = length > 3 && strcmp(left[i].glob + length - 3, ".**") == 0, needed = false;
        for (uint32_t p = 0; p < m->params; p++)
            needed = needed || (rest[p] && ls_glob(left[i].glob, ls_name_text(m->names, m->param[p].name)));
        if (!needed)
            continue;
        whole = whole && module;
        ls_str_printf(&g->text, "%s%.*s", written++ ? ", " : "", (int)(module ? length - 3 : length), left[i].glob);
    }
    ls_str_add(&g->text, "]");
    return whole;
}

static const char *write_exact(struct migrate *g)
{
    const struct ls_specs *specs = g->specs;
    ls_str_add(&g->text, "{");
    for (uint32_t s = 0; s < specs->count; s++) {
        bool before = false;
        for (uint32_t k = 0; k < s; k++)
            before = before || specs->spec[k].modality == specs->spec[s].modality;
        if (!before)
            write_modality(g, s);
    }
    enum part language = part_of(g, NULL);
    if (language != PART_SOME) {
        ls_str_printf(&g->text, "%slanguage_model: %s", g->any ? ", " : "", language == PART_ALL ? "true" : "false");
        g->any = true;
        if (language == PART_ALL)
            cover(g, NULL);
    }
    bool whole = write_modules(g);
    ls_str_add(&g->text, "}");
    const char *out = whole ? ls_arena_str(g->m->arena, ls_str_text(&g->text)) : NULL;
    ls_str_release(&g->text);
    return out;
}

static bool has_tower(const struct ls_model *m, const struct ls_specs *specs, const char *modality)
{
    for (size_t i = 0; i < specs->count; i++)
        if (strcmp(ls_name_text(m->names, specs->spec[i].modality), modality) == 0 &&
            strcmp(ls_name_text(m->names, specs->spec[i].role), "tower") == 0)
            return true;
    return false;
}

static const char *write_literal(const struct ls_model *m, const struct ls_specs *specs, const struct ls_freeze *today)
{
    struct ls_str s = { 0 };
    bool vision = today->vision_tower && has_tower(m, specs, "vision"), audio = today->audio_tower && has_tower(m, specs, "audio");
    ls_str_printf(&s, "{%s%slanguage_model: %s", vision ? "vision: {tower: true}, " : "", audio ? "audio: {tower: true}, " : "",
                  today->language_model ? "true" : "false");
    bool any = false;
    for (uint32_t i = 0; today->video_embedder && i < m->modules; i++) {
        static const char end[] = "patch_generator.video_embedder";
        const char *name = ls_name_text(m->names, m->module[i].name);
        size_t length = strlen(name);
        if (length < sizeof end - 1 || strcmp(name + length - (sizeof end - 1), end) != 0)
            continue;
        ls_str_printf(&s, "%s%s", any ? ", " : ", modules: [", name);
        any = true;
    }
    ls_str_add(&s, any ? "]}" : "}");
    const char *out = ls_arena_str(m->arena, ls_str_text(&s));
    ls_str_release(&s);
    return out;
}

/* Does this key alone freeze something? */
static enum ls_code freezes_any(const struct ls_model *m, const struct ls_specs *specs, struct ls_freeze one, bool *any, struct ls_error *err)
{
    bool *early, *late;
    one.present = true;
    enum ls_code rc = ls_multimodal_freeze(m, specs, LS_RULES_AUTOMODEL, &one, &early, &late, err);
    for (uint32_t p = 0; rc == LS_OK && p < m->params; p++)
        *any = *any || (!early[p] && can_train(m->param[p].dtype));
    return rc;
}

static enum ls_code list_nothing(const struct ls_model *m, const struct ls_specs *specs, const struct ls_freeze *today, const char **out,
                                 struct ls_error *err)
{
    const struct { const char *key; bool on; struct ls_freeze alone; } keys[] = {
        { "freeze_vision_tower", today->vision_tower, { .vision_tower = true } },
        { "freeze_audio_tower", today->audio_tower, { .audio_tower = true } },
        { "freeze_language_model", today->language_model, { .language_model = true } },
        { "freeze_video_embedder", today->video_embedder, { .video_embedder = true } },
    };
    struct ls_str s = { 0 };
    enum ls_code rc = LS_OK;
    for (size_t i = 0; i < sizeof keys / sizeof *keys && rc == LS_OK; i++) {
        bool any = false;
        if (!keys[i].on)
            continue;
        rc = freezes_any(m, specs, keys[i].alone, &any, err);
        if (!any)
            ls_str_printf(&s, "%s%s", s.length ? ", " : "", keys[i].key);
    }
    *out = ls_arena_str(m->arena, ls_str_text(&s));
    ls_str_release(&s);
    return rc;
}

enum ls_code ls_multimodal_migrate(const struct ls_model *m, const struct ls_specs *proposed, const struct ls_freeze *today,
                                   struct ls_migration *out, struct ls_error *err)
{
    bool *early, *late, *literal;
    struct ls_freeze keys = { .present = true, .vision_tower = today->vision_tower, .audio_tower = today->audio_tower,
                              .language_model = today->language_model, .video_embedder = today->video_embedder, .at = today->at };
    *out = (struct ls_migration){ 0 };
    enum ls_code rc = ls_multimodal_freeze(m, proposed, LS_RULES_AUTOMODEL, &keys, &early, &late, err);
    if (rc != LS_OK)
        return rc;
    struct migrate g = { .m = m, .specs = proposed, .spec_of = ls_specs_of_params(m, proposed, m->arena), .today = early,
                         .covered = LS_NEW(m->arena, bool, m->params + 1) };
    out->exact = write_exact(&g);
    out->literal = write_literal(m, proposed, today);
    rc = list_nothing(m, proposed, today, &out->nothing, err);
    const struct ls_yaml_node *node = NULL;
    if (rc == LS_OK)
        rc = ls_yaml_load_text(out->literal, strlen(out->literal), "freeze_config", m->arena, &node, err);
    struct ls_freeze taken = { .present = true, .proposed = node, .at = today->at };
    if (rc == LS_OK)
        rc = ls_multimodal_freeze(m, proposed, LS_RULES_PROPOSED, &taken, &literal, &late, err);
    if (rc != LS_OK)
        return rc;
    bool *trains = LS_NEW(m->arena, bool, m->params + 1), *freezes = LS_NEW(m->arena, bool, m->params + 1);
    for (uint32_t p = 0; p < m->params; p++) {
        trains[p] = literal[p] && !early[p];
        freezes[p] = !literal[p] && early[p];
    }
    out->trains_count = ls_param_subtrees(m, trains, m->arena, &out->trains);
    out->freezes_count = ls_param_subtrees(m, freezes, m->arena, &out->freezes);
    return LS_OK;
}
