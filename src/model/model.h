/* src/model/model.h -- a model without weights: module tree, parameters, flow. Read from inventories (inventory.md).
 *
 * Modules are in named_modules() order (depth first, pre-order, registration order); module 0 is the root. Parameters are in
 * the order of a walk over the modules in that order, each module's own parameters in registration order. */
#ifndef LS_MODEL_MODEL_H
#define LS_MODEL_MODEL_H

#include "base/arena.h"
#include "base/error.h"
#include "base/str.h"
#include "ir/op.h"
#include "yaml/yaml.h"

enum ls_container { LS_NOT_CONTAINER, LS_MODULE_LIST, LS_MODULE_DICT };
enum { LS_DIMS_MAX = 6, LS_CONDITIONS_MAX = 8 };

struct ls_param {
    uint32_t name, leaf;     /* FQN and last component */
    uint32_t module;
    uint32_t canonical;      /* index of the parameter object; differs from the own index for a tied alias */
    enum ls_dtype dtype;
    unsigned dims; uint64_t dim[LS_DIMS_MAX];
    uint64_t elements;
    bool adapter;            /* added by PEFT */
    struct ls_loc at;
};
struct ls_buffer_info { uint32_t leaf; enum ls_dtype dtype; uint64_t elements; };
struct ls_module {
    uint32_t name, leaf, class_name;
    enum ls_container container;
    uint32_t parent;                        /* LS_NO_ID for the root */
    uint32_t *child; size_t children;       /* registration order */
    uint32_t subtree;                       /* modules [own index, own index + subtree) are this subtree */
    uint32_t first_param, params;           /* own (non-recursive) parameters: param[first_param .. first_param + params) */
    struct ls_buffer_info *buffer; size_t buffers;
    struct ls_loc at;
};
struct ls_condition { uint32_t name, modality; };
/* One mixture-of-experts layer: `experts` holds the routed experts stacked (every parameter is [count, ...]), `gate` picks top_k of
 * them for each token. With expert parallelism the experts are cut into equal runs over ranks. */
struct ls_moe {
    uint32_t module, experts, gate;
    uint64_t count, top_k;
    bool gate_bias, bias_update; /* the gate has a score-correction bias; it follows the load after every optimizer step */
    struct ls_loc at;
};
struct ls_declared { uint32_t module; uint32_t modality, role; bool conditionally_executed; struct ls_loc at; }; /* role 0: none */

enum ls_flow_kind { LS_FLOW_CALL, LS_FLOW_OP, LS_FLOW_WHEN };
struct ls_flow {             /* `each` is expanded when the inventory is read */
    uint32_t id;             /* number in pre-order; the root call is 0 */
    enum ls_flow_kind kind;
    uint32_t module;         /* CALL; OP: the enclosing module */
    uint32_t name;           /* OP */
    uint32_t entry;          /* CALL: method, "forward" unless given */
    bool leaf;               /* CALL without body */
    bool no_grad, detach, checkpoint;
    uint32_t when, unless;   /* WHEN: bit sets of conditions; exactly one is non-zero */
    bool once;               /* WHEN: a list: runs once if any is held (`unless`: if none is); else as often as the one is held */
    uint32_t *in; size_t ins;      /* value names */
    uint32_t *out; size_t outs;
    uint32_t *side; size_t sides;  /* CALL with body: names under `in` that are no arguments and under `out` that are no results;
                                      hooks of the module do not see them */
    uint32_t *param; size_t params; /* leaf CALL, OP: parameters used (indices; tied ones as canonical) */
    struct ls_flow *body; size_t count;
    struct ls_loc at;
};

struct ls_model {
    struct ls_arena *arena;
    struct ls_names *names;
    const char *path;
    uint32_t name, architecture;
    uint32_t *model_id; size_t model_ids;
    struct ls_module *module; size_t modules;
    struct ls_param *param; size_t params;
    struct ls_condition condition[LS_CONDITIONS_MAX]; size_t conditions;
    struct ls_declared *declared; size_t declared_count;
    struct ls_moe *moe; size_t moes;             /* in module order */
    uint32_t *alias, *alias_of; size_t aliases;  /* name ids: alias FQN, canonical FQN */
    const struct ls_yaml_node *config;           /* free-form scalars, or NULL */
    uint32_t *module_of_name, *param_of_name; size_t known_names; /* [name id]: index or LS_NO_ID, for the lookups below */
    struct ls_flow flow;      /* a CALL of the root with body; outs = its outputs */
    const struct ls_flow **statement; size_t statements; /* by id; NULL for 0, the root call */
    bool has_flow;
    uint32_t *grad_input; size_t grad_inputs;    /* value names */
    uint32_t *loss; size_t losses;               /* value names among flow.out */
};

/* Reads an inventory from a file, or from a node inside another document. Everything is owned by `arena` and `names`.
 *   errors  LS_EINPUT with the position: unknown keys, bad shapes, modules or values that do not exist, totals that differ */
LS_MUST_USE enum ls_code ls_model_load(const char *path, struct ls_arena *arena, struct ls_names *names,
                                       struct ls_model *out, struct ls_error *err);
LS_MUST_USE enum ls_code ls_model_read(const struct ls_yaml_node *node, struct ls_arena *arena, struct ls_names *names,
                                       struct ls_model *out, struct ls_error *err);
/* A checkpoint folder: model.safetensors.index.json and the headers of its *.safetensors files, or model.safetensors alone.
 * Weights are never read. Classes are unknown but for the root's, taken from config.json if that is there; children that are
 * all numbers make their parent a ModuleList. Registration order is unknown too: names are sorted, numbers by value. Integer
 * and boolean tensors are buffers. `flow_path` is an inventory without `modules`, or NULL.
 *   errors  LS_EINPUT: no such files, headers that are truncated, too large, overlapping, with holes or duplicate names */
LS_MUST_USE enum ls_code ls_model_load_checkpoint(const char *folder, const char *flow_path, struct ls_arena *arena,
                                                  struct ls_names *names, struct ls_model *out, struct ls_error *err);

/* LS_NO_ID when there is none. Aliases resolve to their canonical module. */
uint32_t ls_model_module(const struct ls_model *m, const char *fqn);
uint32_t ls_model_param(const struct ls_model *m, const char *fqn);
/* LS_EINPUT, "<what> '<fqn>': the model has no such module"; the hint names the nearest child of the deepest part that exists. */
enum ls_code ls_fail_module(const struct ls_model *m, const char *fqn, const char *what, struct ls_loc at, struct ls_error *err);
enum ls_code ls_fail_param(const struct ls_model *m, const char *fqn, const char *what, struct ls_loc at, struct ls_error *err);
bool ls_module_contains(const struct ls_model *m, uint32_t outer, uint32_t inner); /* a module contains itself */
const struct ls_moe *ls_model_moe(const struct ls_model *m, uint32_t experts); /* the layer of an experts module, or NULL */
uint64_t ls_model_elements(const struct ls_model *m); /* tied parameters once */

/* FakeBalancedGate for every gate: its parameters, buffers and bias are gone, and routing weights carry no gradient. Indices of
 * parameters change.
 *   source  AutoModel components/moe/layers.py (FakeBalancedGate) */
void ls_model_fake_gates(struct ls_model *m);

/* Low-rank adapters: the experts of a layer and each Linear without children whose name matches a target (its last component, a suffix at a dot, or a
 * pattern over the whole FQN in which `*` stands for any run of characters, dots too) gets children lora_A [rank, in] and lora_B [out, rank]
 * (registered after its own parameters); experts get lora_gate_and_up_A [count, hidden, rank], lora_gate_and_up_B [count, rank, up],
 * lora_down_A and lora_down_B of their own (AutoModel components/_peft/lora_experts.py), with moe_rank_scaling of rank / top_k. Leaf calls of the flow that use its weight then use them too. Rebuilds *m in place:
 * every module and parameter index changes.
 *   errors  LS_EINPUT when a target matches no module, or experts without these weights */
struct ls_peft { const char *const *target; size_t targets; uint64_t rank; enum ls_dtype dtype; struct ls_loc at; bool moe_rank_scaling; };
LS_MUST_USE enum ls_code ls_model_add_lora(struct ls_model *m, const struct ls_peft *peft, struct ls_error *err);

#endif
