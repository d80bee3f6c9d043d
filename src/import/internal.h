/* src/import/internal.h -- what the files of import/ share.
 *
 *   recipe.c     the recipe, section by section
 *   inventory.c  the inventory of a model id, and which modules adapters go to
 *   notes.c      the lists, and the keys without effect */
#ifndef LS_IMPORT_INTERNAL_H
#define LS_IMPORT_INTERNAL_H

#include "base/vec.h"
#include "import/recipe.h"
#include "yaml/yaml.h"

struct importer {
    struct ls_arena *arena;
    struct ls_error *err;
    struct ls_recipe *recipe;
    LS_VEC(struct ls_import_note) note;
    LS_VEC(const struct ls_yaml_node *) seen; /* values taken over or judged */
    uint64_t world, dp, microbatches;
    const char *inventory;                    /* what the scenario calls it */
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

const struct ls_inventory *import_find_inventory(const struct ls_inventories *known, const char *model_id); /* NULL: none */
/* The Linear modules that AutoModel's matcher picks, as globs for peft.targets. */
LS_MUST_USE enum ls_code import_peft_targets(struct importer *i, const struct ls_yaml_node *peft, const char ***out, size_t *count);

#endif
