/* src/import/internal.h -- what the files of import/ share.
 *
 *   recipe.c     the recipe, section by section
 *   mesh.c       sizes, and ranks that do the same
 *   proposed.c   freeze_config in the proposed keys
 *   inventory.c  the inventory of a model id, and which modules adapters go to
 *   notes.c      the lists, and the keys without effect */
#ifndef LS_IMPORT_INTERNAL_H
#define LS_IMPORT_INTERNAL_H

#include "base/vec.h"
#include "import/recipe.h"
#include "scenario/scenario.h"
#include "yaml/yaml.h"

struct importer {
    struct ls_arena *arena;
    struct ls_error *err;
    struct ls_recipe *recipe;
    LS_VEC(struct ls_import_note) note;
    LS_VEC(const struct ls_yaml_node *) seen; /* values taken over or judged */
    uint64_t world, dp, ranks, microbatches;  /* dp: ranks with batches of their own; ranks: those of the scenario */
    const char *inventory;                    /* what the scenario calls it */
    const struct ls_import_freeze *proposed;  /* NULL while AutoModel's rules are written */
    struct ls_str text;
};

void import_note(struct importer *i, enum ls_import_kind kind, const char *key, const struct ls_yaml_node *value, const char *format, ...)
    LS_PRINTF(5, 6);
/* Notes every key of the recipe that has not been seen: without effect, or not understood. */
void import_walk(struct importer *i);
/* A part that cannot be a scenario: what it is, as a noun. */
void import_unsupported(struct importer *i, const char *key, const struct ls_yaml_node *value, const char *part);
/* "none", 8, "bfloat16": the scalar as text, "a list", "a mapping". */
const char *import_value(const struct importer *i, const struct ls_yaml_node *n);
/* Text that a comment or an error may hold. */
const char *import_clean(struct ls_arena *arena, const char *text);

uint64_t import_size(const struct ls_yaml_node *n, uint64_t otherwise);
void import_read_mesh(struct importer *i, const struct ls_inventories *known);
/* dp and ranks for the world size.
 *   errors  LS_EINPUT: sizes that do not divide */
LS_MUST_USE enum ls_code import_fit_mesh(struct importer *i);
/* The scenario up to here; `inventory` is what it calls its inventory. */
const char *import_text(const struct importer *i, const char *inventory);
/* Reads the scenario as it is written so far; *s lives in `scratch` and `names`. */
LS_MUST_USE enum ls_code import_read_back(const struct importer *i, struct ls_arena *scratch, struct ls_names *names, struct ls_scenario *s);
/* Writes the plan a second time, under the proposed rules; `notes` and `seens` are how many there were before the first time. */
LS_MUST_USE enum ls_code import_propose(struct importer *i, enum ls_code (*write_plan)(struct importer *), size_t notes, size_t seens,
                                        struct ls_import_freeze *out);
void import_write_freeze_list(struct importer *i);
/* Notes as not modelled what tensor parallelism leaves open.
 *   errors  LS_EINPUT: the scenario so far cannot be read */
LS_MUST_USE enum ls_code import_check_tensor_parallel(struct importer *i);

/* NULL: none. */
const struct ls_inventory *import_find_inventory(const struct ls_inventories *known, const char *model_id, bool context_parallel);
/* The Linear modules that AutoModel's matcher picks, as globs for peft.targets. */
LS_MUST_USE enum ls_code import_peft_targets(struct importer *i, const struct ls_yaml_node *peft, const char ***out, size_t *count);

#endif
