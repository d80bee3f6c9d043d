/* src/import/recipe.h -- an AutoModel training recipe -> a scenario.
 *
 *   inventories   which models are known, read once
 *   recipe        one file, read once: what does not depend on the number of ranks
 *   import        the recipe started with so many ranks: the scenario, and what became of every key
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

struct ls_yaml_node;
struct ls_inventory {
    const char *path, *architecture; /* NULL: not given */
    bool context_parallel;           /* its flow is that of a context-parallel rank */
    const char *const *model_id, *const *condition; size_t model_ids, conditions; /* "image", "video", ... */
};
struct ls_inventories { const struct ls_inventory *entry; size_t count; bool any_model; }; /* any_model: whatever the model is called */
/* The *.yaml files of a folder, by name.
 *   errors  LS_EINPUT: a folder or a file that cannot be read */
LS_MUST_USE enum ls_code ls_inventories_read(const char *folder, struct ls_arena *arena, struct ls_inventories *out, struct ls_error *err);
/* One file, for every model. */
LS_MUST_USE enum ls_code ls_inventories_only(const char *path, struct ls_arena *arena, struct ls_inventories *out, struct ls_error *err);

enum ls_import_kind { LS_IMPORT_TAKEN, LS_IMPORT_NO_EFFECT, LS_IMPORT_UNKNOWN, LS_IMPORT_UNSUPPORTED };
struct ls_import_note {
    enum ls_import_kind kind;
    const char *key, *what;    /* key: dotted path in the recipe */
    const char *part, *value;  /* UNSUPPORTED: "expert parallelism", "8"; value NULL: no single value */
    struct ls_loc at;
};
const char *ls_import_kind_title(enum ls_import_kind k); /* "taken over" */

struct ls_recipe {
    const char *path;
    const struct ls_yaml_node *root;
    const char *model_id;                      /* NULL: a model that is put together */
    const struct ls_inventory *inventory;      /* NULL: none has the model */
    uint64_t dp, dp_replicate, cp, tp, pp, ep; /* dp 0: left to the world size; the others are 1 unless given */
    uint64_t global_batch, local_batch;        /* 0: not given, or no positive integer */
    bool ddp;                                  /* strategy ddp; else fsdp2, or one that is not modelled */
    const char *frozen_sharding;               /* as AutoModel reads it (PER-LAYER is per_layer); NULL: not given */
    const struct ls_import_note *note; size_t notes;
    const struct ls_yaml_node *const *seen; size_t seens; /* values taken over or judged by then */
};
/* Everything in *out is owned by `arena`, but the inventory by that of `known`.
 *   errors  LS_EINPUT: not readable, no recipe */
LS_MUST_USE enum ls_code ls_recipe_load(const char *path, const struct ls_inventories *known, struct ls_arena *arena,
                                        struct ls_recipe *out, struct ls_error *err);
/* A value at a dotted path, or NULL. */
const struct ls_yaml_node *ls_recipe_get(const struct ls_recipe *r, const char *path);

/* AutoModel's freeze_config in the proposed keys. Globs of parameters, as ls_param_subtrees gives them. */
struct ls_import_freeze {
    const char *written;               /* what the scenario got: `exact`, or `literal` where the keys cannot say it; NULL: the recipe has none */
    const char *exact, *literal, *nothing; /* as struct ls_migration */
    const char *const *trains, *const *freezes; size_t trains_count, freezes_count; /* under `literal` against today */
    const char *const *differs; size_t differs_count; /* "model.embed_vision.** (frozen today, trains)": what is written against today */
    size_t frozen;                     /* parameters frozen today when the model is sharded */
};
struct ls_import {
    const char *text;               /* the scenario, NULL if a part is not modelled */
    const char *part;               /* the scenario without the parts that are not modelled: for facts about the model, never for a
                                       verdict; NULL without an inventory, or when the mesh does not fit the world size */
    struct ls_import_note *note; size_t notes; /* in the order of the recipe */
    const struct ls_import_freeze *freeze; /* NULL under AutoModel's rules */
};
struct ls_import_options {
    uint64_t world_size;
    const char *inventory;          /* what the scenario calls it; NULL: models/NAME */
    bool proposed;                  /* rules: proposed, with freeze_config in its keys */
};
/* *out holds the notes also when a part is not modelled.
 *   errors  LS_EINPUT at the first part that is not modelled, or that contradicts the world size */
LS_MUST_USE enum ls_code ls_recipe_import(const struct ls_recipe *r, const struct ls_import_options *o, struct ls_arena *arena,
                                          struct ls_import *out, struct ls_error *err);

#endif
