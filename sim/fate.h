/* sim/fate.h -- what becomes of a run that the machine stops: does it die, or does the step only take a timeout longer?
 *
 * The machine ends where a violation absorbs what follows. Real jobs go on: NCCL does not notice that ops differ if they move as many
 * bytes, and ranks that wait on the host (Gloo, stores) give up after a time limit and, where the framework catches the error, go on to
 * the next phase. So the run is done again as NCCL does it (ls_run_options.as_nccl) and with the time limits that the scenario names:
 *
 *   silent     everything is done, with no time limit reached: only the data are wrong
 *   stall      everything is done, but only since somebody gave up waiting: ranks whose later ops happened to pair. The step takes a
 *              time limit longer. If the watchdog's limit is shorter than that, the job dies all the same
 *   deadlock   ranks wait for what never comes, whatever the limits; the watchdog ends it, if a collective of NCCL is pending
 *
 *   limits     a rank gives up when it has waited `after` in an op of that communicator since it got there. With Gloo this closes the
 *              connections of the whole group: members that wait there, and those that come later, fail at once. go_on: the op is
 *              left undone and the rank continues; raise (and every decide): the rank does nothing more
 *   watchdog   c10d's counts from the enqueue of each collective, ours from its start (the time that the host runs ahead, less than a
 *              step, is left out); what is over the limit kills the job
 *   source     PyTorch ProcessGroupNCCL.cpp (watchdog; 600 s), ProcessGroupGloo (1,800 s); radixark/miles issue 2406: text-only
 *              microbatches, a job that dies with the default limit and takes 30 minutes per step with a longer one */
#ifndef LS_SIM_FATE_H
#define LS_SIM_FATE_H

#include "sim/sim.h"

#define LS_FATES(X) X(NONE, "none") X(SILENT, "silent") X(STALL, "stall") X(DEADLOCK, "deadlock")
#define LS_FATE_ENUM(id, name) LS_FATE_##id,
enum ls_fate_kind { LS_FATES(LS_FATE_ENUM) LS_FATE_COUNT };
#undef LS_FATE_ENUM
const char *ls_fate_name(enum ls_fate_kind f);

struct ls_fate {
    enum ls_fate_kind kind;          /* NONE: the run completes */
    uint64_t end_ps;                 /* silent, stall: when everything is done, if the watchdog lets it */
    struct ls_silent silent;         /* pairs that differed and passed, until end_ps, or until nothing moved */
    size_t given_up; uint32_t gave_up, gave_up_comm; uint64_t gave_up_ps; /* as in ls_sim_result */
    bool killed;                     /* by the watchdog, at killed_ps, for killed_at */
    struct ls_at killed_at;
    uint64_t killed_ps;
};
/* `options`: of the run that stood still. patience: [comms], or NULL; watchdog_ps > 0.
 *   errors  as ls_sim_run */
LS_MUST_USE enum ls_code ls_fate_of(const struct ls_job *job, const struct ls_platform *platform, const struct ls_cost *cost,
                                    const struct ls_sim_options *options, const struct ls_patience *patience, uint64_t watchdog_ps,
                                    struct ls_fate *out, struct ls_error *err);

#endif
