/* src/model/build.h -- internal to src/model: a model under construction.
 *
 * Modules must be added in pre-order and each module's parameters right after it; ls_build_finish derives children and
 * subtrees. Bounds keep hostile input from growing without end. */
#ifndef LS_MODEL_BUILD_H
#define LS_MODEL_BUILD_H

#include "base/vec.h"
#include "model/model.h"

enum { LS_MODULES_MAX = 1 << 19, LS_PARAMS_MAX = 1 << 19, LS_STATEMENTS_MAX = 1 << 19, LS_PARAM_USES_MAX = 1 << 24,
       LS_COMPONENT_MAX = 255, LS_FQN_MAX = 1023, LS_NAME_BYTES_MAX = 256 << 20, LS_MODULE_DEPTH_MAX = 60 };
#define LS_ELEMENTS_MAX (UINT64_C(1) << 40)       /* of one tensor */
#define LS_TOTAL_ELEMENTS_MAX (UINT64_C(1) << 48) /* of a model */

struct ls_build {
    struct ls_arena *arena;
    struct ls_names *names;
    struct ls_error *err;
    LS_VEC(struct ls_module) module;
    LS_VEC(struct ls_param) param;
    LS_VEC(uint32_t) module_of_name, param_of_name;
    uint64_t elements;
    size_t name_bytes;
    struct ls_str fqn; /* of the module being read */
};

void ls_build_init(struct ls_build *b, struct ls_arena *arena, struct ls_names *names, struct ls_error *err);
void ls_build_release(struct ls_build *b);
/* Adds a module whose FQN is b->fqn. */
LS_MUST_USE enum ls_code ls_build_module(struct ls_build *b, uint32_t parent, const char *leaf, struct ls_loc at, uint32_t *out);
/* Adds a parameter to the last module. dims and elements must be right already (ls_shape_elements). */
LS_MUST_USE enum ls_code ls_build_param(struct ls_build *b, const char *leaf, const struct ls_param *like);
/* Moves everything into *m. */
void ls_build_finish(struct ls_build *b, struct ls_model *m);

/* Product of the dims. LS_EINPUT beyond LS_ELEMENTS_MAX. */
LS_MUST_USE enum ls_code ls_shape_elements(const uint64_t *dim, unsigned dims, const char *name, struct ls_loc at, uint64_t *out,
                                           struct ls_error *err);
LS_MUST_USE enum ls_code ls_check_component(const char *name, struct ls_loc at, struct ls_error *err);

/* The parts of an inventory beside its modules: name, aliases, ties, multimodal, conditions, flow. */
LS_MUST_USE enum ls_code ls_inventory_read_parts(const struct ls_yaml_node *node, struct ls_model *m, struct ls_error *err);
LS_MUST_USE enum ls_code ls_flow_read(const struct ls_yaml_node *node, struct ls_model *m, struct ls_error *err);
void ls_flow_number(struct ls_model *m); /* ids and the table of statements; again after every rebuild */
/* "0..35", a single name, or (NULL) every item, in order. */
bool ls_parse_range(const char *text, uint64_t *first, uint64_t *last);
#endif
