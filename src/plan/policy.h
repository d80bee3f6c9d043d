/* src/plan/policy.h -- internal to src/plan: what the dense and the expert-parallel path share. */
#ifndef LS_PLAN_POLICY_H
#define LS_PLAN_POLICY_H

#include "plan/planner.h"

/* AutoModel's fully_shard_by_dtype on one list item. Group key: (storage dtype, compute dtype) of each parameter. One key: the module
 * is the unit. Two: every maximal subtree uniform in the key with fewer parameters, then the module. More: every maximal uniform
 * subtree. Compute dtype: f32 where the name holds `_fp32_params`; else the policy's for parameters stored as f32; else as stored.
 * Units that compute in f32 also reduce and output f32 and do not cast inputs. Parameters in `ignored` (bool[params] by canonical
 * index, or NULL) have no key and go to no unit; a module with nothing else is a unit without parameters. */
void ls_planner_shard_by_dtype(struct ls_planner *p, uint32_t module, const bool *ignored, const struct ls_unit *like);

/* The policy for a fully frozen module of spec `spec` (LS_NO_ID: of none), and where it was written. */
enum ls_frozen ls_policy_frozen(const struct ls_policy *p, const struct ls_specs *specs, uint32_t spec, struct ls_loc *at);
/* The warning that per_layer gives for these modules; nothing without any. */
void ls_planner_warn_per_layer(struct ls_planner *p, const uint32_t *module, size_t count);

#endif
