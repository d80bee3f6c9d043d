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
    const struct ls_import_options *options;
    struct ls_import *out;
    const struct ls_yaml_node *root;
    LS_VEC(struct ls_import_note) note;
    LS_VEC(const struct ls_yaml_node *) seen; /* values taken over or judged */
    const char *conditions[16]; /* of the inventory: "image", ... */
    uint64_t dp, dp_replicate, microbatches;
    struct ls_str text;
};

void import_note(struct importer *i, enum ls_import_kind kind, const char *key, const struct ls_yaml_node *value, const char *format, ...)
    LS_PRINTF(5, 6);
/* Notes every key of the recipe that has not been seen: without effect, or not understood. */
void import_walk(struct importer *i);
/* A value at a dotted path, or NULL. */
const struct ls_yaml_node *import_get(const struct importer *i, const char *path);
/* "none", 8, "bfloat16": the scalar as text, "a list", "a mapping". */
const char *import_value(const struct importer *i, const struct ls_yaml_node *n);
/* Text that a comment or an error may hold. */
const char *import_clean(struct ls_arena *arena, const char *text);

/* Finds the inventory whose model_ids name the model; fills out->inventory (its path) and the conditions. */
LS_MUST_USE enum ls_code import_find_inventory(struct importer *i);
/* The Linear modules that AutoModel's matcher picks, as globs for peft.targets. */
LS_MUST_USE enum ls_code import_peft_targets(struct importer *i, const struct ls_yaml_node *peft, const char ***out, size_t *count);

#endif
