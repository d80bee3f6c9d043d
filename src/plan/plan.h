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

enum ls_unit_mesh { LS_UNIT_DP, LS_UNIT_EXPERTS }; /* over which ranks: (dp_replicate, dp_shard), or ep_shard */
struct ls_unit {
    enum ls_unit_mesh mesh;
    bool always_reduces;                    /* no accumulation switch reaches it: it reduces and reshards in every microbatch */
    uint32_t name;                          /* FQN of its first module; "root" for the root module */
    uint32_t *module; size_t modules;       /* one, or several grouped ones */
    uint32_t *param; size_t params;         /* owned (canonical), in buffer order: post-order over modules, registration order inside */
    uint32_t *ignored; size_t ignoreds;     /* parameters that ignored_params kept out of it (canonical) */
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
    bool default_group;                     /* the mesh is the default process group, which metrics and the loop use as well */
    unsigned reduce_scatter_max_input_buffers;
    struct ls_loc at;
};
/* Where the tokens of a layer go to their experts and come back: AutoModel's dispatchers. */
#define LS_DISPATCHERS(X) /* id, name */ \
    X(TORCH, "torch") X(DEEPEP, "deepep") X(UCCL_EP, "uccl_ep") X(HYBRIDEP, "hybridep")
#define LS_DISPATCHER_ENUM(id, name) LS_DISPATCH_##id,
enum ls_dispatcher { LS_DISPATCHERS(LS_DISPATCHER_ENUM) LS_DISPATCH_COUNT };
#undef LS_DISPATCHER_ENUM
const char *ls_dispatcher_name(enum ls_dispatcher d);
/* Expert parallelism; ep 1: none, and the rest is empty. */
struct ls_expert_plan {
    size_t ep, ep_shard;                    /* ranks that share the experts of a layer, and that share one rank's experts. ep_shard
                                               LS_SIZE_ANY: two or more */
    enum ls_dispatcher dispatcher;
    bool replays_dispatch;                  /* recomputation knows from forward how many tokens arrive */
    bool agrees_tokens;                     /* ranks of a group agree on the most tokens first, and pad to them */
    bool present_norms;                     /* the gradient norm is reduced over the groups that have a gradient on this rank; else over
                                               all that the plan has */
    bool norm_over_ep;                      /* the norm of experts is also summed over ep */
    bool one_pass_norm;                     /* one reduction per group (sums in f64), not a maximum first */
    uint32_t *layer;                        /* [params] (canonical): index into model->moe, or LS_NO_ID: no expert's */
    bool *scaled;                           /* [moes] the training step divides the gradients of these experts ... */
    bool idle_without_gradient;             /* experts to which no token goes get no gradient at all, rather than zeros */
    struct ls_loc at;
};
struct ls_plan {
    struct ls_expert_plan experts;
    const bool *checkpointed;               /* [modules] calls that are recomputed in backward; NULL: checkpoint_activations decides */
    const struct ls_model *model;
    const bool *requires_grad;              /* [params], while training */
    struct ls_unit *unit; size_t units;
    uint32_t *owner;                        /* [params]: unit, or LS_NO_ID (no unit owns it; alias entries: as canonical) */
    uint32_t root;                          /* unit of module 0, or LS_NO_ID */
    struct ls_entry *entry; size_t entries;
    struct ls_runtime runtime;
    bool checkpoint_activations;            /* policy plans: every flow call marked `checkpoint` by the scope */
    enum ls_reshard item_reshard;           /* policy plans: reshard_after_forward as given, of list items */
    /* A tied parameter that two units own: PyTorch raises at lazy init ("shared with a parameter already managed"). LS_NO_ID:
     * none. owner[] names the first unit; both list it. */
    uint32_t shared_param, shared_unit[2];
    const char **warning; size_t warnings;
};

/* What fully_shard itself refuses when it is called. What PyTorch finds only at lazy init (a tied parameter in two units, mixed
 * original dtypes among the trainable parameters of a unit, a root that is grouped) raises while running: the compiler's affair.
 *   already_in_a_unit             fully_shard twice on one module
 *   outer_unit_first              a nested module after the module around it
 *   container_without_forward     ModuleList or ModuleDict as a unit of its own (a list argument is not checked)
 *   scalar_parameter              a 0-dim parameter
 *   reshard_size                  reshard_after_forward = k that does not divide the shard size
 *   unused_params_version         set_reduce_scatter_unused_params before 2.13
 *   replicate_size                rules automodel: dp_replicate_size equal to dp_size
 *   dtype_islands                 rules automodel, by-dtype units: parameters of the minority dtype beside others in one module
 *   errors  LS_EINPUT is for bad scenarios; a rule of the framework that refuses the plan is *refusal (rule NULL: none), LS_OK.
 *           The plan is then still complete as far as that is possible, for --force */
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
struct ls_moe_policy {                      /* `distributed.moe` and what `model.backend` says about experts */
    bool wrap_outer_model, reshard, lm_head_f32, ignore_router;
    bool has_mp; enum ls_dtype param_dtype, reduce_dtype, output_dtype; bool cast_inputs; /* else as outside */
    enum ls_dispatcher dispatcher;
    bool te_experts, fsdp_optimizations;
    struct ls_loc dispatcher_at;
    bool no_dummy_pass;                     /* experts to which no token goes get no gradient; AutoModel's get zeros */
    struct ls_loc at;
};
struct ls_policy {                          /* `distributed` of a policy plan */
    enum ls_rules rules;
    unsigned automodel;                     /* version, as 6 for 0.6 */
    struct ls_moe_policy moe;
    enum ls_frozen frozen; struct ls_loc frozen_at;
    const struct ls_modality_policy *modality; size_t modalities;
    enum ls_reshard reshard; uint64_t reshard_size;
    bool prefetch; unsigned prefetch_forward, prefetch_backward;
    enum ls_dtype param_dtype, reduce_dtype, output_dtype; bool cast_inputs;
    bool activation_checkpointing;
    struct ls_loc at;
};
/* The dense path (ep = 1): every item of every ModuleList or ModuleDict reachable without crossing another list item, then the
 * root; fully frozen multimodal modules by policy. Takes requires_grad as the parallelizer sees it (`at_sharding`) for decisions
 * and `final` for training.
 *   automodel  names decide, level by level; a ModuleDict inside a ModuleList is taken for a layer; one policy for all
 *              modalities; by-dtype units for Qwen3.5; unused-parameter reduction where cp > 1
 *   proposed   specs decide: the own part of a spec is judged and kept together, modalities may override; both container
 *              kinds nest in either
 *              0.7: trainable, untied `embed_tokens` and `lm_head` are units of their own
 *   errors     LS_EINPUT: a modality section without such modules; an architecture that AutoModel shards in its own way
 *   source     AutoModel components/distributed/parallelizer.py (apply_fsdp2_sharding_recursively), parallelizer_utils.py */
LS_MUST_USE enum ls_code ls_plan_from_policy(const struct ls_model *m, const struct ls_specs *specs, const bool *at_sharding,
                                             const bool *final, const struct ls_mesh *mesh, const struct ls_runtime *runtime,
                                             const struct ls_policy *policy, struct ls_plan *out, struct ls_refusal *refusal,
                                             struct ls_error *err);

/* The expert-parallel path (mesh->ep > 1; AutoModel takes it for every model then), which ls_plan_from_policy calls. In order: for
 * each decoder block its experts (over ep_shard, dim 1, if that has more than one rank), then the block without experts, by dtype;
 * embed_tokens, embed_norm and lm_head of the text model; each multimodal module that trains, whole; of frozen ones list items
 * (per_layer) or nothing; the text model; the outer model. What no unit owns is a full copy on every rank.
 *   refusal  experts_not_divisible, no_experts, uneven_expert_shards (fully_shard cuts dim 1 evenly only),
 *            frozen_outside_inner_root, tied_across_roots, and those of fully_shard
 *   errors   LS_EINPUT: no decoder layers, options that are not modelled
 *   source   AutoModel components/moe/parallelizer.py (apply_fsdp, apply_ep, apply_ac), fsdp_mixin.py (_iter_fsdp_modules) */
LS_MUST_USE enum ls_code ls_plan_experts(const struct ls_model *m, const struct ls_specs *specs, const bool *at_sharding,
                                         const bool *final, const struct ls_mesh *mesh, const struct ls_runtime *runtime,
                                         const struct ls_policy *policy, struct ls_plan *out, struct ls_refusal *refusal,
                                         struct ls_error *err);
/* The module that AutoModel takes for the text model; 0 if it is the model itself. */
uint32_t ls_plan_text_model(const struct ls_model *m);
/* HybridEP since AutoModel 0.7; before, every rank must hold as many tokens as the others.
 *   source  AutoModel components/moe/megatron/token_dispatcher.py (_HybridEPManager.dispatch) */
bool ls_moe_agrees_tokens(const struct ls_policy *p);
/* Whether one accumulation switch of the outer model reaches every unit: it is a unit itself. */
bool ls_plan_outer_root(const struct ls_model *m, const struct ls_moe_policy *moe);

/* Sizes of a unit over `shard` ranks (of an expert unit: over its own): dim 0 is cut into ceil(rows / shard) rows per rank, zero-padded.
 *   units  elements */
struct ls_unit_size {
    uint64_t gather_in, gather_out; /* elements of gather_dtype per rank and in all */
    enum ls_dtype gather_dtype;     /* param_dtype, or the storage dtype; U8 if they differ within the unit: elements are bytes */
    uint64_t unsharded_bytes;       /* padded, in the compute dtype */
    uint64_t reduce_in;             /* padded elements of all trainable parameters together */
    uint64_t sharded_bytes;         /* per rank, padded, in the storage dtype */
};
/* Saturates at UINT64_MAX.  source  torch.chunk, and FSDPParam's padding to equal chunks */
struct ls_unit_size ls_plan_unit_size(const struct ls_plan *p, uint32_t unit, size_t shard);
uint64_t ls_param_shard_elements(const struct ls_param *p, size_t shard); /* padded elements per rank */
/* Padded elements per rank of a parameter of the plan, over `shard` ranks of dp_shard; whole if no unit owns it. Of experts, what is
 * left of the rank's own ones. */
uint64_t ls_plan_shard_elements(const struct ls_plan *p, uint32_t param, size_t shard);
uint64_t ls_plan_local_elements(const struct ls_plan *p, uint32_t param); /* unsharded: all, or of experts the rank's own */
size_t ls_plan_unit_ranks(const struct ls_plan *p, uint32_t unit, size_t shard);
/* Bytes that frozen_sharding: root keeps unsharded from the first forward to the last backward and per_layer does not: the
 * frozen parameters that the root unit owns although they lie in items of a ModuleList or ModuleDict, in the compute dtype,
 * without the last item of every list: under per_layer that one is not resharded after forward either
 * (`index < count - 1`), and a frozen unit has no backward that would free it before the root's final callback. With
 * reshard_after_forward true the last items count too, with false nothing does. The transient of per_layer (two neighbouring
 * tower blocks during the tower's forward) does not show in the difference: the peak comes later, in the backward of the
 * language model, when it is gone. Measured peaks on 8 H100 differ by 0.61 GiB (Qwen3-VL 4B; 0.64 on 2), 0.74 (Gemma3 4B) and
 * 0.72 (Ministral3 3B); this gives 0.641, 0.738 and 0.719. */
uint64_t ls_plan_root_bytes(const struct ls_plan *p);
/* Memory of a plan from units alone, per rank, in bytes: sharded parameters, resident unsharded (root, reshard false),
 * replicated (in no unit), and the largest transient of two neighbouring units in forward. */
struct ls_plan_memory { uint64_t sharded, resident, replicated, transient; };
struct ls_plan_memory ls_plan_memory(const struct ls_plan *p, size_t shard);

#endif
