/* AutoModel's freeze_config in the proposed keys; and the list of what changes for the recipes of AutoModel, tests/oracle/frozen/migration.md.
 * LS_GOLDEN=write writes it anew. */
#include "base/vec.h"
#include "import/recipe.h"
#include "multimodal/migrate.h"
#include "scenario/scenario.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FROZEN LS_SOURCE_DIR "/tests/oracle/frozen"

static struct ls_arena arena;
static struct ls_names *names;
static struct ls_error err;

static void setup(void)
{
    ls_arena_init(&arena, 0);
    names = ls_names_open();
}

static void teardown(void)
{
    ls_names_close(names);
    ls_arena_release(&arena);
}

TestSuite(migration, .init = setup, .fini = teardown);

static void model(const char *rest, struct ls_model *m, struct ls_specs *specs)
{
    const struct ls_yaml_node *node = NULL;
    const char *text = ls_arena_printf(&arena, "lockstep_inventory: 1\nname: t\ndtype: f32\nmodules:\n  class: Toy\n%s", rest);
    cr_assert_eq(ls_yaml_load_text(text, strlen(text), "m.yaml", &arena, &node, &err), LS_OK, "%s", err.text);
    cr_assert_eq(ls_model_read(node, &arena, names, m, &err), LS_OK, "%s", err.text);
    cr_assert_eq(ls_multimodal_resolve(m, LS_RULES_PROPOSED, NULL, 0, specs, &err), LS_OK, "%s", err.text);
}

static struct ls_migration migrate(const struct ls_model *m, const struct ls_specs *specs, struct ls_freeze today)
{
    struct ls_migration out;
    cr_assert_eq(ls_multimodal_migrate(m, specs, &today, &out, &err), LS_OK, "%s", err.text);
    return out;
}

#define VLM                                                                                                                           \
    "  children:\n    vision_tower: {class: T, children: {blk: {class: B, params: {w: [2]}}, merger: {class: P, params: {w: [2]}}}}\n" \
    "    embed_vision: {class: E, params: {w: [2]}}\n    multi_modal_projector: {class: P, params: {w: [2]}}\n"                        \
    "    my_vision_adapter: {class: A, children: {a: {class: X, params: {w: [2]}}}}\n    language_model: {class: L, params: {w: [2]}}\n" \
    "multimodal:\n  - {path: vision_tower, modality: vision, role: tower}\n  - {path: vision_tower.merger, modality: vision, role: projector}\n" \
    "  - {path: multi_modal_projector, modality: vision, role: projector}\n  - {path: embed_vision, modality: vision, role: embedder}\n"

Test(migration, what_is_frozen_in_part_is_named_by_module)
{
    struct ls_model m;
    struct ls_specs specs;
    model(VLM, &m, &specs);
    struct ls_migration x = migrate(&m, &specs, (struct ls_freeze){ .vision_tower = true, .audio_tower = true });
    /* The merger is frozen, the other projector is not; the adapter has no spec. Modules are whole subtrees. */
    cr_assert_str_eq(x.exact, "{vision: {tower: true, embedder: true}, modules: [vision_tower, my_vision_adapter]}");
    cr_assert_str_eq(x.literal, "{vision: {tower: true}, language_model: false}");
    cr_assert_str_eq(x.nothing, "freeze_audio_tower");
    cr_assert_eq(x.trains_count, 3);
    cr_expect_str_eq(x.trains[0].glob, "vision_tower.merger.**");
    cr_expect_str_eq(x.trains[1].glob, "embed_vision.**");
    cr_expect_str_eq(x.trains[2].glob, "my_vision_adapter.**");
    cr_expect_eq(x.freezes_count, 0);
    x = migrate(&m, &specs, (struct ls_freeze){ .language_model = true });
    cr_assert_str_eq(x.exact, "{vision: {tower: false, projector: false, embedder: false}, modules: [language_model]}");
    cr_assert_str_eq(x.literal, "{language_model: true}");
    cr_assert_eq(x.trains_count, 0);
    cr_assert_eq(x.freezes_count, 1);
    cr_expect_str_eq(x.freezes[0].glob, "my_vision_adapter.**"); /* outside all specs */
    x = migrate(&m, &specs, (struct ls_freeze){ 0 });
    cr_assert_str_eq(x.exact, "{vision: {tower: false, projector: false, embedder: false}, language_model: false}");
}

/* Random trees and keys: the migrated config freezes the same, always. */
Test(migration, the_exact_config_freezes_the_same)
{
    static const char *const leaf[] = { "vision_tower", "visual", "embed_vision", "multi_modal_projector", "language_model", "text", "audio_tower",
                                        "sound_x", "layers", "mlp1", "patch_generator", "video_embedder" };
    uint64_t random = 7;
    for (int round = 0; round < 400; round++) {
        struct ls_model m;
        struct ls_specs specs;
        struct ls_str s = { 0 };
        teardown();
        setup();
        ls_str_add(&s, "  children:\n");
        for (int i = 0; i < 12; i++) { /* two levels, with parameters on both */
            random = random * 6364136223846793005u + 1442695040888963407u;
            unsigned r = (unsigned)(random >> 33);
            if (r % 3 == 0)
                continue;
            ls_str_printf(&s, "    %s: {class: A, params: {w: [2]%s}, children: {%s: {class: B, params: {w: [2]}}, x: {class: C, params: {w: [2]}}}}\n",
                          leaf[i], r % 5 == 0 ? ", v: [3]" : "", leaf[r / 16 % 12]);
        }
        ls_str_add(&s, "    last: {class: Z, params: {w: [2]}}\n");
        model(ls_str_text(&s), &m, &specs);
        struct ls_freeze today = { .present = true, .vision_tower = random >> 40 & 1, .audio_tower = random >> 41 & 1,
                                   .language_model = random >> 42 & 1, .video_embedder = random >> 43 & 1 };
        struct ls_migration x = migrate(&m, &specs, today);
        cr_assert(x.exact, "%s", ls_str_text(&s));
        const struct ls_yaml_node *node = NULL;
        cr_assert_eq(ls_yaml_load_text(x.exact, strlen(x.exact), "f.yaml", &arena, &node, &err), LS_OK, "%s: %s", x.exact, err.text);
        struct ls_freeze again = { .present = true, .proposed = node };
        bool *a, *b, *late;
        cr_assert_eq(ls_multimodal_freeze(&m, &specs, LS_RULES_AUTOMODEL, &today, &a, &late, &err), LS_OK);
        cr_assert_eq(ls_multimodal_freeze(&m, &specs, LS_RULES_PROPOSED, &again, &b, &late, &err), LS_OK, "%s: %s", x.exact, err.text);
        cr_assert(memcmp(a, b, m.params * sizeof *a) == 0, "%s\n%s", x.exact, ls_str_text(&s));
        ls_str_release(&s);
    }
}

/* ------------------------------------------------------------------------------------------------- the recipes */

struct entry { const char *recipe, *model_id, *config; const struct ls_inventory *inventory; };
typedef LS_VEC(struct entry) entry_vec;

static void read_recipes(entry_vec *out, const struct ls_inventories *known)
{
    char line[1024];
    FILE *f = fopen(FROZEN "/recipes.tsv", "r");
    cr_assert(f, "recipes.tsv");
    while (fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = 0;
        char *id = strchr(line, '\t'), *config = id ? strchr(id + 1, '\t') : NULL;
        cr_assert(config, "%s", line);
        *id++ = 0, *config++ = 0;
        struct entry e = { ls_arena_str(&arena, line), ls_arena_str(&arena, id), ls_arena_str(&arena, config), NULL };
        for (size_t i = 0; i < known->count; i++)
            for (size_t k = 0; k < known->entry[i].model_ids; k++)
                if (strcmp(known->entry[i].model_id[k], e.model_id) == 0 && !e.inventory)
                    e.inventory = &known->entry[i];
        if (e.inventory) { /* a recording says that its freezing was compared */
            const char *base = strrchr(e.inventory->path, '/') + 1;
            const char *rec = ls_arena_printf(&arena, FROZEN "/%.*s.nemo-0.6.0.rec", (int)strlen(base) - 5, base);
            e.inventory = access(rec, R_OK) == 0 ? e.inventory : NULL;
        }
        ls_push(out, e);
    }
    fclose(f);
}

static struct ls_freeze keys_of(const char *config, const char **ignored)
{
    struct ls_freeze f = { .present = true, .vision_tower = !strstr(config, "freeze_vision_tower=false"),
                           .audio_tower = strstr(config, "freeze_audio_tower=true"), .language_model = strstr(config, "freeze_language_model=true"),
                           .video_embedder = strstr(config, "freeze_video_embedder=true") };
    *ignored = strstr(config, "freeze_embeddings=true") ? "freeze_embeddings: true" : strstr(config, "freeze_embeddings") ? "freeze_embeddings: false" : NULL;
    return f;
}

static void add_subtrees(struct ls_str *out, const struct ls_subtree *tree, size_t count)
{
    for (size_t i = 0; i < count; i++)
        ls_str_printf(out, "%s`%s` (%zu)", i ? ", " : "", tree[i].glob, tree[i].params);
    if (!count)
        ls_str_add(out, "nothing");
}

static void add_group(struct ls_str *out, const struct entry *e)
{
    struct ls_model m;
    struct ls_specs specs;
    struct ls_subtree *tree;
    const char *ignored;
    bool *early, *late;
    struct ls_freeze today = keys_of(e->config, &ignored);
    cr_assert_eq(ls_model_load(e->inventory->path, &arena, names, &m, &err), LS_OK, "%s", err.text);
    cr_assert_eq(ls_multimodal_resolve(&m, LS_RULES_PROPOSED, NULL, 0, &specs, &err), LS_OK, "%s", err.text);
    if (strcmp(e->config, "none") == 0) {
        ls_str_add(out, "\nNothing is frozen, under either rule set.\n");
        return;
    }
    cr_assert_eq(ls_multimodal_freeze(&m, &specs, LS_RULES_AUTOMODEL, &today, &early, &late, &err), LS_OK);
    bool *frozen = LS_NEW(&arena, bool, m.params + 1);
    for (uint32_t p = 0; p < m.params; p++)
        frozen[p] = !early[p];
    struct ls_migration x = migrate(&m, &specs, today);
    size_t count = ls_param_subtrees(&m, frozen, &arena, &tree);
    ls_str_add(out, "\n- frozen today: ");
    add_subtrees(out, tree, count);
    ls_str_printf(out, "\n- refused: %s%s\n", ignored ? ignored : "nothing", ignored ? ", which AutoModel never reads" : "");
    ls_str_printf(out, "- true, and freezes nothing: %s\n- each key at its word, `%s`, ", x.nothing[0] ? x.nothing : "no key", x.literal);
    if (!x.trains_count && !x.freezes_count)
        ls_str_add(out, "freezes the same");
    if (x.trains_count) {
        ls_str_add(out, "trains in addition: ");
        add_subtrees(out, x.trains, x.trains_count);
    }
    if (x.freezes_count) {
        ls_str_printf(out, "%sfreezes in addition: ", x.trains_count ? "; " : "");
        add_subtrees(out, x.freezes, x.freezes_count);
    }
    ls_str_printf(out, "\n- keeps today's: `%s`\n", x.exact);
}

Test(migration, the_list_of_the_recipes)
{
    struct ls_inventories known;
    entry_vec e = { 0 };
    struct ls_str out = { 0 }, have = { 0 };
    size_t recorded = 0, changed = 0;
    char block[4096];
    cr_assert_eq(ls_inventories_read(LS_SOURCE_DIR "/scenarios/models", &arena, &known, &err), LS_OK, "%s", err.text);
    read_recipes(&e, &known);
    for (size_t i = 0; i < e.count; i++)
        recorded += e.at[i].inventory != NULL;
    ls_str_printf(&out, "# What `rules: proposed` changes in the freeze_config of AutoModel's recipes\n\n"
                  "Written by tests/unit/test_migration.c (`LS_GOLDEN=write`). Today's frozen sets are those that AutoModel's own freezing gives on the\n"
                  "model (`*.rec` beside this file; oracle_frozen compares). Numbers in brackets count parameters. %zu of %zu recipes have a model that\n"
                  "was recorded; the last section lists the others.\n", recorded, e.count);
    bool *done = LS_NEW(&arena, bool, e.count + 1);
    for (size_t k = 0; k < known.count; k++)
        for (size_t i = 0; i < e.count; i++) {
            if (done[i] || e.at[i].inventory != &known.entry[k])
                continue;
            const char *base = strrchr(known.entry[k].path, '/') + 1;
            ls_str_printf(&out, "\n## %.*s: %s\n\nIn", (int)strlen(base) - 5, base, strcmp(e.at[i].config, "none") == 0 ? "no freeze_config" : e.at[i].config);
            size_t listed = 0;
            for (size_t j = i; j < e.count; j++)
                if (e.at[j].inventory == e.at[i].inventory && strcmp(e.at[j].config, e.at[i].config) == 0) {
                    done[j] = true;
                    ls_str_printf(&out, "%s `%s`", listed++ ? "," : "", e.at[j].recipe);
                }
            ls_str_add(&out, "\n");
            add_group(&out, &e.at[i]);
            changed++;
        }
    ls_str_add(&out, "\n## Models that were not recorded\n\n");
    for (size_t i = 0; i < e.count; i++)
        if (!e.at[i].inventory)
            ls_str_printf(&out, "- `%s` (%s): %s%s\n", e.at[i].recipe, e.at[i].model_id, e.at[i].config,
                          strstr(e.at[i].config, "freeze_embeddings") ? "; refuses freeze_embeddings" : "");
    const char *mode = getenv("LS_GOLDEN");
    FILE *f = fopen(FROZEN "/migration.md", mode && strcmp(mode, "write") == 0 ? "w" : "r");
    cr_assert(f, "migration.md");
    if (mode && strcmp(mode, "write") == 0) {
        fputs(ls_str_text(&out), f);
    } else {
        for (size_t n; (n = fread(block, 1, sizeof block, f)) > 0;)
            ls_str_addn(&have, block, n);
        cr_expect(strcmp(ls_str_text(&have), ls_str_text(&out)) == 0, "migration.md is not what the recipes and inventories give; LS_GOLDEN=write");
    }
    fclose(f);
    cr_expect(recorded >= 30 && changed >= 6, "%zu, %zu", recorded, changed);
    ls_str_release(&out);
    ls_str_release(&have);
    ls_vec_release(&e);
}
