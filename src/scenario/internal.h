/* src/scenario/internal.h -- what the files of scenario/ share: one file being loaded.
 *
 *   load.c         the document, the kind of plan, contradictions between sections
 *   modelling.c    model, freeze_config, freeze, train, multimodal
 *   distributed.c  distributed: mesh and policy
 *   experts.c      distributed.moe, model.backend: expert parallelism
 *   units.c        units, registered_forward_methods
 *   batching.c     batch
 *   runtime.c      runtime, loss, platform, expect
 *   looping.c      step, loop
 *   timing.c       simulate
 *   contracts.c    what set-up refuses under the proposed rules
 *   compile.c      plan, letters, system
 *   raw.c          program, with raw_op.c for its ops; program.c makes a system of it
 *   keys.c         AutoModel's own keys */
#ifndef LS_SCENARIO_INTERNAL_H
#define LS_SCENARIO_INTERNAL_H

#include "base/vec.h"
#include "scenario/keys.h"
#include "scenario/scenario.h"

struct loader {
    struct ls_scenario *s;
    const struct ls_yaml_node *root;
    struct ls_error *err;
    LS_VEC(struct ls_key_note) note;
    const struct ls_yaml_node *defer;      /* distributed.defer_fsdp_grad_sync */
    bool defer_value;
};

static inline const struct ls_yaml_node *section(const struct loader *l, const char *key)
{
    return ls_yaml_get(l->root, key);
}
/* Every key of `map` must be in the table under `section`, or (modalities) name a modality of the model; notes AutoModel's. */
LS_MUST_USE enum ls_code ls_load_check_keys(struct loader *l, const struct ls_yaml_node *map, const char *section, bool modalities);
void ls_load_note(struct loader *l, const char *key, enum ls_key_effect effect, const char *why, struct ls_loc at);
/* A list of texts; NULL nodes give an empty list. */
LS_MUST_USE enum ls_code ls_load_texts(struct loader *l, const struct ls_yaml_node *n, const char *name, const char *const **out,
                                    size_t *count);
/* none, bf16, ...; with `torch` also bfloat16 and torch.bfloat16. Null is NONE. */
LS_MUST_USE enum ls_code ls_load_dtype(struct loader *l, const struct ls_yaml_node *n, const char *name, bool torch, enum ls_dtype *out);
/* null, none, true, false or a size */
LS_MUST_USE enum ls_code ls_load_reshard(struct loader *l, const struct ls_yaml_node *n, const char *name, enum ls_reshard *kind,
                                      uint64_t *size);
LS_MUST_USE enum ls_code ls_load_unused(struct loader *l, const struct ls_yaml_node *n, const char *name, enum ls_unused *out);
/* A file named in the scenario: relative to its folder, then to `scenarios/` beside or above it, then to `scenarios/` here. */
LS_MUST_USE enum ls_code ls_load_path(struct loader *l, const struct ls_yaml_node *n, const char *name, bool folder, const char **out);
bool ls_load_is_modality(const struct loader *l, const char *name);
/* "vision, audio" into the error's hint, or the nearest. */
void ls_load_hint_modality(const struct loader *l, const char *name);

LS_MUST_USE enum ls_code ls_load_rules(struct loader *l);
LS_MUST_USE enum ls_code ls_load_model(struct loader *l);
LS_MUST_USE enum ls_code ls_load_freeze(struct loader *l);
LS_MUST_USE enum ls_code ls_load_distributed(struct loader *l);
LS_MUST_USE enum ls_code ls_load_experts(struct loader *l);
/* A mapping of dtypes; null or NULL: AutoModel's default. */
LS_MUST_USE enum ls_code ls_load_mp_policy(struct loader *l, const struct ls_yaml_node *n, enum ls_dtype *param, enum ls_dtype *reduce,
                                        enum ls_dtype *output, bool *cast_inputs);
LS_MUST_USE enum ls_code ls_load_units(struct loader *l);
LS_MUST_USE enum ls_code ls_load_batch(struct loader *l);
LS_MUST_USE enum ls_code ls_load_runtime(struct loader *l);
LS_MUST_USE enum ls_code ls_load_step(struct loader *l);
/* Rounds, by their names in a schedule. */
LS_MUST_USE enum ls_code ls_load_rounds(struct loader *l, const struct ls_yaml_node *n, const char *name, bool after,
                                        enum ls_round_kind **out, size_t *count);
LS_MUST_USE enum ls_code ls_load_events(struct loader *l); /* those of batch.execution.table, once the loop is known */
LS_MUST_USE enum ls_code ls_load_raw(struct loader *l);
LS_MUST_USE enum ls_code ls_compile_raw(const struct ls_scenario *s, struct ls_compiled *c, struct ls_error *err);
LS_MUST_USE enum ls_code ls_load_rest(struct loader *l); /* loss, platform, simulate, expect */

/* Sizes of the free dimensions, and which exist. */
uint32_t ls_scenario_free_dims(const struct ls_mesh *m);
size_t ls_scenario_replicas(const struct ls_mesh *m); /* 0: any */

/* The proposed rules (contracts.c): decides which dummies of `batch` are active, and refuses what set-up must refuse. */
struct setup {
    const struct ls_scenario *s;
    const struct ls_policy *policy;
    struct ls_batch *batch;
    bool dummy_forced;   /* a variant runs the dummy, whatever the policy says */
};
LS_MUST_USE enum ls_code ls_setup_contracts(const struct setup *in, struct ls_arena *arena, struct ls_refusal *refusal,
                                            struct ls_error *err);

#endif
