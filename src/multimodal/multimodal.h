/* src/multimodal/multimodal.h -- which modules belong to a modality, what role they play, and what is frozen.
 *
 * Facts only: which modules are conditional is resolved here, what to do about it is decided in plan/. Sources in order: the
 * model's own declaration (inventory `multimodal:`), a table per architecture, the leaf-name heuristic of the two rule sets
 * (with a warning). Overrides from the scenario win for the same canonical path. */
#ifndef LS_MULTIMODAL_MULTIMODAL_H
#define LS_MULTIMODAL_MULTIMODAL_H

#include "model/model.h"

enum ls_rules { LS_RULES_PROPOSED, LS_RULES_AUTOMODEL };
enum ls_source { LS_SOURCE_DECLARED, LS_SOURCE_TABLE, LS_SOURCE_NAME, LS_SOURCE_OVERRIDE };

struct ls_spec {               /* stable: names a path; `module` is where that is in the model it is bound to */
    uint32_t path;             /* name id of the canonical FQN */
    uint32_t module;
    uint32_t modality, role;   /* name ids; role 0: none ("tower", "projector", "embedder", "resampler", ...) */
    bool conditionally_executed;
    enum ls_source source;
    struct ls_loc at;
};
struct ls_specs { struct ls_spec *spec; size_t count; const char **warning; size_t warnings; };

/* One entry of `multimodal.modules`. path must exist. */
struct ls_override { const char *path, *modality, *role; int conditionally_executed; struct ls_loc at; }; /* -1: not given */

/* Resolves the specs of a model, in tree order. Under LS_RULES_AUTOMODEL only the leaf names count (17 names, maximal selection
 * by prefix) and overrides are refused. Under LS_RULES_PROPOSED paths are canonical (aliases give the same module), and a module
 * inside another resolved one stays only if its modality, role or conditional execution differs, or an override names it.
 *   errors  LS_EINPUT: an override whose path does not exist, or that names a module twice */
LS_MUST_USE enum ls_code ls_multimodal_resolve(const struct ls_model *m, enum ls_rules rules,
                                               const struct ls_override *override, size_t overrides,
                                               struct ls_specs *out, struct ls_error *err);

/* Binds the specs to the model as it is now: after a change of its structure (adapters) the modules have other numbers. Nothing else
 * is kept: whether a module is frozen is read from requires_grad when it is sharded.
 *   errors  LS_EINPUT: a path is gone; *specs is then as before */
LS_MUST_USE enum ls_code ls_specs_bind(struct ls_specs *specs, const struct ls_model *m, struct ls_error *err);
/* The module of a path in which wrappers may stand (`_orig_mod`, `_checkpoint_wrapped_module`, `_fsdp_wrapped_module`, a leading
 * `module`), or LS_NO_ID. A module that is really called so comes first. */
uint32_t ls_module_unwrapped(const struct ls_model *m, const char *path);

bool ls_multimodal_name(const char *leaf); /* one of the 17 leaf names of AutoModel's taxonomy */
/* [params]: index of the innermost spec around the parameter's module, or LS_NO_ID: a spec's own part is its subtree without the
 * subtrees of specs nested in it. */
uint32_t *ls_specs_of_params(const struct ls_model *m, const struct ls_specs *specs, struct ls_arena *arena);

/* Freezing. requires_grad[params] starts true for floating-point parameters. AutoModel's keys freeze by substrings of
 * module names under both rule sets; the proposed keys freeze own parts of specs by modality and role, and `language_model`
 * there means every parameter outside all specs. A tied parameter is one object: frozen under any of its names. */
struct ls_freeze {
    bool present;                       /* freeze_config given */
    bool vision_tower, audio_tower, language_model, video_embedder;  /* automodel's keys */
    const struct ls_yaml_node *proposed; /* the freeze_config mapping itself when it uses (modality, role) keys, else NULL */
    const char *const *freeze, *const *train; size_t freezes, trains; /* parameter globs, applied last (also after peft_base) */
    bool peft_base;                     /* PEFT: adapted Linears are frozen at once, all but adapters after sharding */
    struct ls_loc at;
};
/* *at_sharding: what the parallelizer sees; *final: what training sees (PEFT freezes the rest of the base only afterwards).
 *   shape   both bool[m->params], owned by m->arena */
LS_MUST_USE enum ls_code ls_multimodal_freeze(const struct ls_model *m, const struct ls_specs *specs, enum ls_rules rules,
                                              const struct ls_freeze *freeze, bool **at_sharding, bool **final,
                                              struct ls_error *err);
/* Has parameters, and none of them requires gradient (recursively). */
bool ls_module_fully_frozen(const struct ls_model *m, uint32_t module, const bool *requires_grad);

#endif
