/* sim/budget.h -- where the time of a rank goes: what its compute stream (LS_STREAM_D) does at every moment of the run.
 *
 * A wait for an event is split by what the recording stream did meanwhile: a collective that had all its members is exposed
 * communication of its kind, one that lacked some is waiting for slower ranks. */
#ifndef LS_SIM_BUDGET_H
#define LS_SIM_BUDGET_H

#include "sim/sim.h"

#define LS_BUDGET(X)                                                                                                          \
    X(COMPUTE, "compute") X(OPTIMIZER, "optimizer") X(COPIES, "copies in and out of buffers") X(LAUNCH, "launch")             \
    X(ALL_GATHER, "exposed all_gather") X(REDUCE_SCATTER, "exposed reduce_scatter") X(ALL_REDUCE, "exposed all_reduce")        \
    X(COMMUNICATION, "other exposed communication") X(WAITING, "waiting for slower ranks") X(IDLE, "other waits")
#define LS_BUDGET_ENUM(id, name) LS_BUDGET_##id,
enum ls_budget { LS_BUDGET(LS_BUDGET_ENUM) LS_BUDGET_COUNT };
#undef LS_BUDGET_ENUM
const char *ls_budget_name(enum ls_budget b);

enum { LS_TRACKED = 8 }; /* streams whose collectives are told apart; waits for others are idle time */
struct ls_busy_span { uint64_t ready, start, end; enum ls_budget kind; };
struct ls_track {                            /* of one rank; times in ps */
    uint64_t budget[LS_BUDGET_COUNT];        /* sums to `last` */
    uint64_t last;                           /* end of the compute stream's latest op */
    LS_VEC(struct ls_busy_span) busy[LS_TRACKED]; /* collectives of streams not yet left behind */
    uint8_t *stream_of;                      /* [events] who recorded it last */
};
/* `events`: of the job's tables. */
struct ls_track *ls_track_open(size_t events, struct ls_arena *arena);
void ls_track_note(struct ls_track *t, const struct ls_sim_span *s); /* stream ops of the rank, as ls_sim_hooks.done gives them */
void ls_track_release(struct ls_track *t); /* memory of the arena stays */

#endif
