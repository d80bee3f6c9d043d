/* sim/sim.h -- the machine in simulated time.
 *
 * src/machine says what may happen (semantics.md), this says when: ops take time on their streams, hosts take time to issue
 * them, collectives pay a latency and then move bytes over links that they share. The end state and the verdict are the
 * machine's own: the same struct ls_run is driven, step by step, by a clock.
 *
 *   units   picoseconds since the start, in integers. A run is a function of (job, platform, cost, options): bit for bit
 *   order   what happens at one instant happens in the order in which it was scheduled
 *   ranks   rank r is GPU r % gpus of node r / gpus */
#ifndef LS_SIM_SIM_H
#define LS_SIM_SIM_H

#include "machine/machine.h"
#include "sim/cost.h"
#include "sim/network.h"
#include "sim/platform.h"

/* One op that is done.
 *   head   it got to the head of its stream; host-only ops: their thread got there
 *   ready  it was issued as well: ready - head is time that the stream lost to the host
 *   start  compute, copies: = ready. Collectives, send, recv: the last one that takes part arrived, so start - ready is
 *          waiting for others. wait, host_wait: = end, so start - ready is waiting for the event
 *   end    it was done, for its stream and its communicator (in a fused bundle the stream goes on when all are)
 * head <= ready <= start <= end, and on one stream head is the end of the op (or bundle) before. */
struct ls_sim_span {
    struct ls_at at;
    const struct ls_op *op;
    uint64_t head_ps, ready_ps, start_ps, end_ps;
};
struct ls_sim_hooks {
    void *context;
    /* Every op but alloc, free and mark, when it is done: in order of end_ps. Ops of a folded run come once per class, for
     * its first rank; ls_sim_result.class_of tells which ranks it stands for. NULL: not wanted. */
    void (*done)(void *context, const struct ls_sim_span *span);
    /* alloc, free, mark, in the order of each host thread, with head = ready = start = end: the time at which the host gets
     * there. They come when that time is known, which is not later, and often earlier, than the time itself. */
    void (*host)(void *context, const struct ls_sim_span *span);
};

struct ls_sim_options {
    struct ls_run_options run;             /* level, kernels, start, unbuffered_send, run_ahead; seed and choose: 0 and NULL */
    const struct ls_network_ops *network;  /* NULL: ls_network_maxmin */
    const char *network_setup;             /* handed to its open; NULL: default. SimGrid: context factory, "raw" or "thread" */
    bool fold;                             /* simulate ranks that behave alike once; the result does not change */
    bool uncoupled;                        /* each hop of a collective is a flow of its own; it ends with the slowest (tests) */
    /* Time limits of the framework, for runs that otherwise stand still; such a run is not folded.
     *   patience  [comms] how long a rank waits in an op of this communicator before it gives up; ps 0: for ever. NULL: all for ever
     *   watchdog  how long a collective or message of any other communicator may take from its start; then the job is killed. 0: no limit */
    const struct ls_patience { uint64_t ps; enum ls_lost how; } *patience;
    uint64_t watchdog_ps;
    struct ls_sim_hooks hooks;
};

struct ls_sim_result {
    uint64_t end_ps;             /* complete: the last op is done and every host thread has issued its last op.
                                    Otherwise: the last time that anything moved */
    bool complete;
    struct ls_outcome outcome;   /* as ls_machine_run reports it, pending ops of every rank included; with as_nccl, patience or a
                                    watchdog only the verdict is set, SAFE or HANG */
    uint64_t *rank_end_ps;       /* [ranks] the last time that the rank moved */
    uint32_t *class_of;          /* [ranks] the rank that stands for it: itself, unless folded */
    size_t classes;
    struct ls_silent silent;     /* run.as_nccl: pairs that differ and passed */
    size_t given_up;             /* groups on which somebody ran out of patience; the first of them, by rank `gave_up` on `gave_up_comm`: */
    uint32_t gave_up, gave_up_comm;
    uint64_t gave_up_ps;
    bool killed;                 /* by the watchdog, at killed_ps, for the op `killed_at` */
    struct ls_at killed_at;
    uint64_t killed_ps;
    uint64_t events, flows, solves; /* events handled; flows started; max-min systems solved */
};

/* *out is owned by `arena`. Rank r's speed and jitter are in `cost`.
 *   errors  LS_EINPUT: what ls_machine_run refuses; more ranks than the platform has GPUs
 *           LS_EBACKEND: the network cannot be opened */
LS_MUST_USE enum ls_code ls_sim_run(const struct ls_job *job, const struct ls_platform *platform, const struct ls_cost *cost,
                                    const struct ls_sim_options *options, struct ls_arena *arena, struct ls_sim_result *out,
                                    struct ls_error *err);

#endif
