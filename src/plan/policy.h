/* src/plan/policy.h -- internal to src/plan: units that are uniform in dtype. */
#ifndef LS_PLAN_POLICY_H
#define LS_PLAN_POLICY_H

#include "plan/planner.h"

/* AutoModel's fully_shard_by_dtype on one list item. Group key: (storage dtype, compute dtype) of each parameter. One key: the module
 * is the unit. Two: every maximal subtree uniform in the key with fewer parameters, then the module. More: every maximal uniform
 * subtree. Compute dtype: f32 where the name holds `_fp32_params`; else the policy's for parameters stored as f32; else as stored.
 * Units that compute in f32 also reduce and output f32 and do not cast inputs. */
void ls_planner_shard_by_dtype(struct ls_planner *p, uint32_t module, const struct ls_unit *like);

#endif
