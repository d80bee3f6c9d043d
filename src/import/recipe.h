/* src/import/recipe.h -- an AutoModel training recipe -> a scenario.
 *
 * What was taken over, what has no effect on what FSDP issues, what was not understood and what is not modelled yet is listed
 * key by key. A recipe with a part that is not modelled yields no scenario. The scenario asks the weakest question: any replica
 * may hold text only, or one of each medium that the model knows. */
#ifndef LS_IMPORT_RECIPE_H
#define LS_IMPORT_RECIPE_H

#include "base/arena.h"
#include "base/error.h"
#include "base/str.h"

#include <stdint.h>

enum ls_import_kind { LS_IMPORT_TAKEN, LS_IMPORT_NO_EFFECT, LS_IMPORT_UNKNOWN, LS_IMPORT_UNSUPPORTED };
struct ls_import_note { enum ls_import_kind kind; const char *key, *what; struct ls_loc at; }; /* key: dotted path in the recipe */
/* `models` and `inventory` are paths; the scenario repeats `inventory` as it is. */
struct ls_import_options {
    uint64_t world_size;
    const char *models;    /* folder of inventories (*.yaml), searched by `model_ids`; the scenario says models/NAME */
    const char *inventory; /* or this one, whatever the model is called; NULL: search */
};
struct ls_import {
    const char *text;               /* the scenario, NULL if a part is not modelled */
    struct ls_import_note *note; size_t notes; /* in the order of the recipe */
    const char *model_id, *inventory; /* NULL: none found */
};
const char *ls_import_kind_title(enum ls_import_kind k); /* "taken over" */

/* Everything in *out is owned by `arena`. *out holds the notes also when a part is not modelled.
 *   errors  LS_EINPUT at the first part that is not modelled, that contradicts the world size, or that is no recipe */
LS_MUST_USE enum ls_code ls_import_recipe(const char *path, const struct ls_import_options *o, struct ls_arena *arena,
                                          struct ls_import *out, struct ls_error *err);

#endif
