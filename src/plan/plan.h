/* src/plan/plan.h -- which parameters each sharding unit owns and how it behaves: the one list that everything uses.
 *
 * Explicit units and both rule sets (AutoModel's of today, the proposed ones) compile into this list; nothing below asks which
 * it was. Units are in creation order (the order of the fully_shard calls); the root unit, if any, comes last. */
#ifndef LS_PLAN_PLAN_H
#define LS_PLAN_PLAN_H

#include "mesh/mesh.h"
#include "model/model.h"
#include "multimodal/multimodal.h"

enum ls_reshard { LS_RESHARD_DEFAULT, LS_RESHARD_TRUE, LS_RESHARD_FALSE, LS_RESHARD_SMALL };
enum ls_unused { LS_UNUSED_OFF, LS_UNUSED_NATIVE, LS_UNUSED_FALLBACK };

struct ls_unit {
    uint32_t name;                          /* FQN of its first module; "root" for the root module */
    uint32_t *module; size_t modules;       /* one, or several grouped ones */
    uint32_t *param; size_t params;         /* owned, in buffer order: post-order over modules, registration order inside */
    uint32_t *ignored; size_t ignoreds;     /* parameters handed to ignored_params */
    enum ls_reshard reshard; uint64_t reshard_size;   /* SMALL: k */
    enum ls_dtype param_dtype, reduce_dtype, output_dtype; /* NONE: not set */
    bool cast_inputs;
    bool unshard_in_backward;
    enum ls_unused unused_params;
    uint32_t *forward_prefetch; size_t forward_prefetches;   /* units, explicit lists */
    uint32_t *backward_prefetch; size_t backward_prefetches;
    bool has_backward_prefetch;             /* an explicit list, even an empty one, turns the implicit prefetch off */
    struct ls_loc at;
    const char *why;                        /* the decision behind it: "frozen_sharding: per_layer" */
};
struct ls_entry { uint32_t module, method; }; /* register_fsdp_forward_method */
struct ls_runtime {                         /* the framework being modelled; schema.md `runtime.fsdp2` */
    unsigned version;                       /* 212 for "2.12" */
    enum ls_unused unused_params;
    bool lazy_state_guard, uniform_reduce_dtype, separate_reduce_scatter_group;
    unsigned reduce_scatter_max_input_buffers;
    struct ls_loc at;
};
struct ls_plan {
    const struct ls_model *model;
    const bool *requires_grad;              /* [params], while training */
    struct ls_unit *unit; size_t units;
    uint32_t *owner;                        /* [params]: unit, or LS_NO_ID (no unit owns it; alias entries: as canonical) */
    uint32_t root;                          /* unit of module 0, or LS_NO_ID */
    struct ls_entry *entry; size_t entries;
    struct ls_runtime runtime;
    bool checkpoint_activations;            /* policy plans: every flow call marked `checkpoint` by the scope */
    const char **warning; size_t warnings;
};

/* Set-up rules of fully_shard itself: containers rejected, a module in two units, a tied parameter in two groups, scalars,
 * Shard on empty modules, ModuleList without forward, mixed original or reduce dtypes among trainable parameters, a root that is not
 * alone in its unit, reshard k that does not divide the shard size, ...
 *   errors  LS_EINPUT is for bad scenarios; a rule of the framework that refuses the plan is *refused = text, LS_OK */
struct ls_refusal { const char *rule; const char *text; struct ls_loc at; };

struct ls_unit_input {                      /* one entry of `units:` */
    const char *const *glob; size_t globs;
    bool grouped;
    enum ls_reshard reshard; uint64_t reshard_size;
    const char *const *ignored; size_t ignoreds;
    enum ls_dtype param_dtype, reduce_dtype, output_dtype; bool cast_inputs;
    const char *const *forward_prefetch; size_t forward_prefetches;
    const char *const *backward_prefetch; size_t backward_prefetches; bool has_backward_prefetch;
    bool unshard_in_backward;
    enum ls_unused unused_params;
    struct ls_loc at;
};
LS_MUST_USE enum ls_code ls_plan_from_units(const struct ls_model *m, const bool *requires_grad, const struct ls_mesh *mesh,
                                            const struct ls_runtime *runtime, const struct ls_unit_input *in, size_t count,
                                            struct ls_plan *out, struct ls_refusal *refusal, struct ls_error *err);

enum ls_frozen { LS_FROZEN_ROOT, LS_FROZEN_PER_LAYER, LS_FROZEN_REPLICATE };
enum ls_dummy { LS_DUMMY_AUTO, LS_DUMMY_TRUE, LS_DUMMY_FALSE };
struct ls_modality_policy { uint32_t modality; bool has_frozen; enum ls_frozen frozen; struct ls_loc frozen_at;
                            enum ls_dummy dummy; struct ls_loc dummy_at; };
struct ls_policy {                          /* `distributed` of a policy plan */
    enum ls_rules rules;
    enum ls_frozen frozen; struct ls_loc frozen_at;
    const struct ls_modality_policy *modality; size_t modalities;
    enum ls_reshard reshard; uint64_t reshard_size;
    bool prefetch; unsigned prefetch_forward, prefetch_backward;
    enum ls_dtype param_dtype, reduce_dtype, output_dtype; bool cast_inputs;
    bool activation_checkpointing;
    struct ls_loc at;
};
/* The dense path (ep = 1): every item of every ModuleList or ModuleDict reachable without crossing another list item, then the
 * root; fully frozen multimodal modules by policy. Takes requires_grad as the parallelizer sees it for decisions and `final`
 * for training. */
LS_MUST_USE enum ls_code ls_plan_from_policy(const struct ls_model *m, const struct ls_specs *specs, const bool *at_sharding,
                                             const bool *final, const struct ls_mesh *mesh, const struct ls_runtime *runtime,
                                             const struct ls_policy *policy, struct ls_plan *out, struct ls_refusal *refusal,
                                             struct ls_error *err);

/* Sizes of a unit over `shard` ranks: dim 0 is cut into ceil(rows / shard) rows per rank, zero-padded.
 *   units  elements */
struct ls_unit_size { uint64_t gather_in, gather_out, unsharded_bytes, reduce_in; };
uint64_t ls_param_shard_elements(const struct ls_param *p, size_t shard); /* padded elements per rank */
/* Bytes of frozen parameters that stay unsharded while the root is: what `root` holds and `per_layer` does not. */
uint64_t ls_plan_root_bytes(const struct ls_plan *p);
/* Memory of a plan from units alone, per rank, in bytes: sharded parameters, resident unsharded (root, reshard false),
 * replicated (in no unit), and the largest transient of two neighbouring units in forward. */
struct ls_plan_memory { uint64_t sharded, resident, replicated, transient; };
struct ls_plan_memory ls_plan_memory(const struct ls_plan *p, size_t shard);

#endif
