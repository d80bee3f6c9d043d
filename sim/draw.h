/* sim/draw.h -- what chance decides in a simulated step: what every replica holds in each round, and how fast each GPU is. */
#ifndef LS_SIM_DRAW_H
#define LS_SIM_DRAW_H

#include "scenario/scenario.h"

#define LS_DRAWS(X) X(CONTRACT, "contract") X(UNIFORM, "uniform") X(MIXED, "mixed")
#define LS_DRAW_ENUM(id, name) LS_DRAW_##id,
enum ls_draw { LS_DRAWS(LS_DRAW_ENUM) LS_DRAW_COUNT }; /* CONTRACT: as batch.execution says; UNIFORM: all replicas alike; MIXED: each its own */
#undef LS_DRAW_ENUM
const char *ls_draw_name(enum ls_draw d);

/* Fixes the sizes of *s that a scenario may leave open (`gpus`: of a node), draws a sample for every replica and round that takes a batch,
 * compiles, and says in *a who holds what in each round. Rows are drawn before compiling, since samples that are drawn become letters of
 * the plan. A refused plan (out->refusal) leaves *a alone. *s and *a live in `arena`; *out is the caller's to release.
 *   errors  LS_EINPUT: a table of another size; what compiling refuses */
struct ls_simulate_options;
LS_MUST_USE enum ls_code ls_draw_batches(struct ls_scenario *s, const struct ls_simulate_options *o, size_t gpus, struct ls_arena *arena,
                                         struct ls_compiled *out, struct ls_assignment *a, struct ls_error *err);

/* How much slower than nominal each rank computes, in millionths (LS_SPEED_ONE: nominal; some are faster). GPUs of one model differ in
 * speed about normally; `spread` is by how much the fastest and the slowest of 8, a node, differ on average. Ranks get the expected order
 * statistics of such a sample, so that a job's slowest GPU is as slow as it should be whatever the seed, which only deals them out.
 *   source  5 % and more within a node (ml-engineering handbook); 8 % over a cluster (Sinha et al., SC22, arXiv 2208.11035) */
void ls_speeds_draw(uint32_t spread, uint64_t seed, size_t ranks, uint32_t *slowness);

#endif
