/* src/report/compare.h -- policies compared on the engine: judged, replayed, trained and timed.
 *
 * A cell is a policy with a kind of batches. Check judges it first. A safe cell is trained: in every round all safe policies of
 * the same batches run one after the other, in the order given in even rounds and backwards in odd ones, with the same weights,
 * samples and contents (all follow from the seed). A cell that is not safe is not timed: the smallest failing run that check found
 * is replayed (at level L3 with free starts, under schedules until one shows what check says). A timeline is recorded in a run of its own, since recording costs time. */
#ifndef LS_REPORT_COMPARE_H
#define LS_REPORT_COMPARE_H

#include "report/result.h"
#include "scenario/scenario.h"

#include <signal.h>

#define LS_COMPARED_BATCHES(X) /* id, name, execution; -1: as the scenario says */ \
    X(CONTRACT, "contract", -1) X(UNIFORM, "uniform", LS_EXEC_RANK_UNIFORM) X(MIXED, "mixed", LS_EXEC_ANY)
#define LS_COMPARED_BATCHES_ENUM(id, name, execution) LS_COMPARED_##id,
enum ls_compared_batches { LS_COMPARED_BATCHES(LS_COMPARED_BATCHES_ENUM) LS_COMPARED_BATCHES_COUNT };
#undef LS_COMPARED_BATCHES_ENUM
const char *ls_compared_batches_name(enum ls_compared_batches b);

/* The policies of frozen modules, as enum ls_frozen counts them; and DDP in place of FSDP2 (ls_scenario_as_ddp). */
enum ls_compared_policy { LS_COMPARED_ROOT = LS_FROZEN_ROOT, LS_COMPARED_PER_LAYER = LS_FROZEN_PER_LAYER, LS_COMPARED_REPLICATE = LS_FROZEN_REPLICATE,
                          LS_COMPARED_DDP, LS_COMPARED_POLICIES };
extern const char *const ls_compared_policy[LS_COMPARED_POLICIES];

struct ls_compare_options {
    enum ls_compared_policy policy[LS_COMPARED_POLICIES]; size_t policies;     /* in order; the first is the baseline, unless root is among them */
    enum ls_compared_batches batches[LS_COMPARED_BATCHES_COUNT]; size_t kinds;
    uint64_t seed, steps, warmup, rounds;  /* rounds: runs of each safe cell */
    unsigned blas_threads;
    bool free, force, timelines;           /* free: a thread per queue; force: also plans that set-up refuses */
    const volatile sig_atomic_t *interrupted;
    void (*progress)(void *self, const char *what); void *progress_self; /* may be NULL */
};
/* A cell's plan: the scenario, or in *ddp the same under DDP; and its variant. */
struct ls_variant ls_compared_variant(enum ls_compared_policy policy, enum ls_compared_batches batches);
const struct ls_scenario *ls_compared_scenario(const struct ls_scenario *s, enum ls_compared_policy policy, struct ls_scenario *ddp);

/* Fills all of *out but version, build, compiler, platform and what is simulated. Sizes of the mesh must be given. Owned by `arena`.
 * Interrupted: LS_OK, and *interrupted says so; *out is then incomplete.
 *   errors  LS_EINPUT: a scenario that has no policies, DDP beside replicas of shards (whose sums have another order), a model that the engine cannot compute; LS_EBACKEND: memory, threads; runs of
 *           one cell that disagree about memory, or policies that would be given different batches */
LS_MUST_USE enum ls_code ls_compare_run(const struct ls_scenario *s, const struct ls_compare_options *o, struct ls_arena *arena,
                                        struct ls_result *out, struct ls_error *err);
/* What the result says of this machine: processor, cores this process may use, load, memory, kernel, BLAS. */
void ls_compare_environment(struct ls_arena *arena, struct ls_result *out);

#endif
