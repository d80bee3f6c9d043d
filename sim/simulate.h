/* sim/simulate.h -- one step of a scenario in simulated time: how long, where the time goes, how much memory, or when it hangs.
 *
 * Draws what every replica holds (draw.h) and compiles with a letter per sample, prices each round (work.h), walks memory (memory.h), runs the
 * machine by the clock (sim.h).
 *
 *   step       from 0 until every rank has done its last op; microbatches `any` are 2, sizes `any` fill one node
 *   tokens     text and soft tokens of all samples (work.h)
 *   MFU        operations of forward and backward as the model is defined, nothing recomputed, causal attention counted by half, frozen
 *              parts without the gradients that they do not need / (step x ranks x peak of the compute dtype)
 *   budget     budget.h; its entries sum to the step exactly
 *   determined by (scenario, options); nothing depends on addresses or clocks */
#ifndef LS_SIM_SIMULATE_H
#define LS_SIM_SIMULATE_H

#include "advise/advise.h"
#include "scenario/scenario.h"
#include "sim/budget.h"
#include "sim/draw.h"
#include "sim/fate.h"
#include "sim/memory.h"
#include "sim/profile.h"
#include "sim/sim.h"

struct ls_simulate_options {
    struct ls_variant variant;
    bool force;                          /* go on where a contract refuses the plan */
    enum ls_draw draw;
    uint64_t seed;                       /* of the draws and the jitter */
    size_t replicas;                     /* 0: as the scenario says */
    uint64_t steps;                      /* 0: 1 */
    const char *platform;                /* path; NULL: the scenario's, which must then have one */
    const struct ls_network_ops *network;
    const struct ls_nccl_tests *measured;
    const struct ls_profile *profile;    /* measured times of modules; NULL: none */
    bool fold;
    uint32_t jitter, spread;             /* millionths: per op; of GPUs, ls_speeds_draw. 0: the scenario's */
    bool trace;
    double watchdog_s;                   /* 0: the scenario's, or 600, the default of c10d's NCCL backend */
};

struct ls_sim_class {                    /* ranks that issue the same segments */
    uint32_t first, ranks;
    double budget_s[LS_BUDGET_COUNT];    /* mean of its ranks; sums to the step */
    struct ls_sim_memory memory;
    uint64_t peak_ps;                    /* when the host of `first` got to the peak; 0 if it never did */
    double tokens;                       /* per rank */
    const char *samples;                 /* what they hold, by microbatch: "1 image | text only" */
};
struct ls_simulation {
    struct ls_refusal refusal;           /* rule != NULL: nothing was run */
    struct ls_compiled *compiled;
    struct ls_job job;
    struct ls_platform platform;
    struct ls_sim_result run;
    const char *branches;                /* of a raw program: those that the draw takes, and on which ranks; NULL: it has none */
    double watchdog_s;                   /* the limit that holds */
    struct ls_fate fate;                 /* of a run that does not complete */
    struct ls_sim_span longest;              /* the collective or message that waited longest for others; op NULL: none waited */
    double step_s, tokens, tokens_s, model_flops, mfu;
    double budget_s[LS_BUDGET_COUNT];    /* mean over all ranks */
    struct ls_sim_class *rank_class; size_t classes;
    uint32_t *class_of;                  /* [ranks] */
    struct ls_memory_input *memory_input; /* [classes] */
    size_t worst;                        /* the class with the highest peak */
    bool oom;
    struct ls_sim_span *span; size_t spans; /* with `trace`; of the first rank of each folded class */
};
/* Draws and runs. *out is owned by `arena`, but for compiled: ls_simulation_release.
 *   errors  LS_EINPUT: no platform, a scenario whose sizes or contract cannot be drawn; what compiling and running refuse */
LS_MUST_USE enum ls_code ls_simulate(const struct ls_scenario *s, const struct ls_simulate_options *o, struct ls_arena *arena,
                                     struct ls_simulation *out, struct ls_error *err);
/* Runs the failing run that a check found, at its own size. `a` must outlive *out. */
LS_MUST_USE enum ls_code ls_simulate_witness(const struct ls_scenario *s, const struct ls_assessment *a, const struct ls_simulate_options *o,
                                             struct ls_arena *arena, struct ls_simulation *out, struct ls_error *err);
void ls_simulation_release(struct ls_simulation *x);

/* Chrome trace (JSON array format of Perfetto's and chrome://tracing's importers): a process per rank, a thread per stream, a
 * counter of allocated memory. */
void ls_trace_write(const struct ls_scenario *s, const struct ls_simulation *x, struct ls_str *out);
/* What the watchdog reports: the op, and its number on its communicator, from 1. False: no watchdog fires. */
struct ls_watchdog { struct ls_at at; uint64_t sequence, fires_ps; };
bool ls_watchdog_first(const struct ls_simulation *x, struct ls_watchdog *out);

#endif
