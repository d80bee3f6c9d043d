/* The same plan under the proposed rules: freeze_config in their keys, and what becomes of every frozen parameter. */
#include "import/internal.h"
#include "multimodal/migrate.h"

#include <assert.h>
#include <string.h>

enum ls_code import_read_back(const struct importer *i, struct ls_arena *scratch, struct ls_names *names, struct ls_scenario *s)
{
    const char *text = import_text(i, i->recipe->inventory->path);
    return ls_scenario_read(text, strlen(text), "imported.yaml", scratch, names, s, i->err);
}

static const char *const *keep_globs(struct ls_arena *arena, const struct ls_subtree *subtree, size_t count)
{
    const char **out = LS_NEW(arena, const char *, count + 1);
    for (size_t k = 0; k < count; k++)
        out[k] = ls_arena_str(arena, subtree[k].glob);
    return out;
}

/* Parameters that differ between the two, one way: "model.embed_vision.** (frozen today, trains)". */
static void add_differences(const struct importer *i, const struct ls_model *m, const bool *today, const bool *then, const char *what,
                            const char **out, size_t *count)
{
    struct ls_subtree *subtree;
    bool *in = LS_NEW(m->arena, bool, m->params + 1);
    for (uint32_t p = 0; p < m->params; p++)
        in[p] = today[m->param[p].canonical] && !then[m->param[p].canonical];
    size_t subtrees = ls_param_subtrees(m, in, m->arena, &subtree);
    for (size_t k = 0; k < subtrees; k++)
        out[(*count)++] = ls_arena_printf(i->arena, "%s (%s)", subtree[k].glob, what);
}

static void list_differences(const struct importer *i, const struct ls_scenario *today, const struct ls_scenario *then,
                             struct ls_import_freeze *f)
{
    const struct ls_model *m = &today->model;
    const char **list = LS_NEW(i->arena, const char *, 4 * m->params + 1);
    assert(then->model.params == m->params);
    add_differences(i, m, then->at_sharding, today->at_sharding, "frozen today, trains when the model is sharded", list, &f->differs_count);
    add_differences(i, m, today->at_sharding, then->at_sharding, "trains today, frozen when the model is sharded", list, &f->differs_count);
    add_differences(i, m, then->final, today->final, "frozen today, trains", list, &f->differs_count);
    add_differences(i, m, today->final, then->final, "trains today, frozen", list, &f->differs_count);
    f->differs = list;
    for (uint32_t p = 0; p < m->params; p++)
        f->frozen += m->param[p].canonical == p && !today->at_sharding[p];
}

static enum ls_code migrate(struct importer *i, struct ls_scenario *today, struct ls_import_freeze *f)
{
    struct ls_specs specs;
    struct ls_migration m;
    enum ls_code rc = ls_multimodal_resolve(&today->model, LS_RULES_PROPOSED, NULL, 0, &specs, i->err);
    if (rc == LS_OK)
        rc = ls_multimodal_migrate(&today->model, &specs, &today->freeze, &m, i->err);
    if (rc != LS_OK)
        return rc;
    *f = (struct ls_import_freeze){ .exact = m.exact ? ls_arena_str(i->arena, m.exact) : NULL, .literal = ls_arena_str(i->arena, m.literal),
                                    .nothing = ls_arena_str(i->arena, m.nothing), .trains_count = m.trains_count,
                                    .freezes_count = m.freezes_count, .trains = keep_globs(i->arena, m.trains, m.trains_count),
                                    .freezes = keep_globs(i->arena, m.freezes, m.freezes_count) };
    f->written = today->freeze.present ? f->exact ? f->exact : f->literal : NULL;
    return LS_OK;
}

enum ls_code import_propose(struct importer *i, enum ls_code (*write_plan)(struct importer *), size_t notes, size_t seens,
                            struct ls_import_freeze *out)
{
    struct ls_arena scratch;
    struct ls_names *names = ls_names_open();
    struct ls_scenario today, then;
    ls_arena_init(&scratch, 0);
    enum ls_code rc = import_read_back(i, &scratch, names, &today);
    if (rc == LS_OK)
        rc = migrate(i, &today, out);
    if (rc == LS_OK) {
        i->proposed = out;
        i->note.count = notes;
        i->seen.count = seens;
        ls_str_clear(&i->text);
        rc = write_plan(i);
    }
    if (rc == LS_OK)
        rc = import_read_back(i, &scratch, names, &then);
    if (rc == LS_OK)
        list_differences(i, &today, &then, out);
    ls_names_close(names);
    ls_arena_release(&scratch);
    return rc;
}

static void write_globs(struct importer *i, const char *title, const char *const *glob, size_t count)
{
    for (size_t k = 0; k < count; k++)
        ls_str_printf(&i->text, "%s%s%s", k ? ", " : title, glob[k], k + 1 == count ? "\n" : "");
}

void import_write_freeze_list(struct importer *i)
{
    const struct ls_import_freeze *f = i->proposed;
    if (!f)
        return;
    ls_str_add(&i->text, "# frozen parameters under the proposed rules:\n");
    if (f->differs_count)
        write_globs(i, "#   against AutoModel's keys: ", f->differs, f->differs_count);
    else
        ls_str_printf(&i->text, "#   those that AutoModel's keys freeze: %zu\n", f->frozen);
    if (!f->written)
        return;
    if (f->exact && strcmp(f->exact, f->literal) != 0) {
        ls_str_printf(&i->text, "#   each key at its word, %s, %s\n", f->literal, f->trains_count + f->freezes_count ? "would change that:" :
                      "freezes the same");
        write_globs(i, "#     trains ", f->trains, f->trains_count);
        write_globs(i, "#     freezes ", f->freezes, f->freezes_count);
    }
    if (f->nothing[0])
        ls_str_printf(&i->text, "#   keys that freeze nothing of this model: %s\n", f->nothing);
}
