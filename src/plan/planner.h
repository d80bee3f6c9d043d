/* src/plan/planner.h -- internal to src/plan: a sequence of fully_shard calls. */
#ifndef LS_PLAN_PLANNER_H
#define LS_PLAN_PLANNER_H

#include "base/vec.h"
#include "plan/plan.h"

struct ls_planner {
    const struct ls_model *m;
    const struct ls_mesh *mesh;
    const struct ls_runtime *runtime;
    struct ls_arena *arena;          /* of the model: results */
    struct ls_arena scratch;
    LS_VEC(struct ls_unit) unit;
    LS_VEC(const char *) warning;
    uint32_t *unit_of_module;        /* [modules]: unit whose list holds it, or LS_NO_ID */
    uint32_t *listed;                /* [modules]: 1 + call that listed it last */
    uint32_t *owner, *first_index;   /* [params], by canonical index: unit; own index of the entry it was found under */
    uint32_t *seen;                  /* [params]: 1 + unit that met it last */
    uint32_t shared_param, shared_unit[2];
    struct ls_refusal refusal;
    LS_VEC(uint32_t) found, kept_out; /* of the call in progress */
};

void ls_planner_init(struct ls_planner *p, const struct ls_model *m, const struct ls_mesh *mesh, const struct ls_runtime *runtime);
void ls_planner_release(struct ls_planner *p);
/* fully_shard(module list, ignored_params = `ignored` (bool[params] by canonical index, or NULL)). `like` gives the rest of the
 * unit. Returns the unit's index. */
uint32_t ls_planner_shard(struct ls_planner *p, const uint32_t *module, size_t modules, bool grouped, const bool *ignored,
                          const struct ls_unit *like);
/* Keeps the first refusal. */
void ls_planner_refuse(struct ls_planner *p, const char *rule, struct ls_loc at, const char *format, ...) LS_PRINTF(4, 5);
void ls_planner_warn(struct ls_planner *p, const char *format, ...) LS_PRINTF(2, 3);
void ls_planner_finish(struct ls_planner *p, const bool *requires_grad, struct ls_plan *out, struct ls_refusal *refusal);

#endif
