/* src/engine/run/internal.h -- what the files of run/ share.
 *
 *   engine.c    ranks, devices, communicators; the run
 *   share.c     several processes: what each of them has seen, told to all
 *   rank.c      host threads: which op is next, what holds it, branches
 *   data.c      which memory an op means
 *   buckets.c   gradients that are all-reduced together
 *   observe.c   the state at the end, as an outcome
 *   races.c     what was known to be done, and accesses without an order
 *   symbolic.c  mathematics that counts */
#ifndef LS_ENGINE_RUN_INTERNAL_H
#define LS_ENGINE_RUN_INTERNAL_H

#include "engine/run/run.h"

enum op_status { OP_OPEN, OP_SKIPPED, OP_ISSUED, OP_STARTED, OP_PAIRED, OP_DONE };
enum path { PATH_TAKEN, PATH_SKIPPED, PATH_OPEN };

struct rank_op { const struct ls_op *op; uint32_t segment, index; uint32_t guard; bool side, queued; };

struct host_thread {
    struct ls_actor actor;       /* first */
    struct ls_rank *rank;
    unsigned number;
    size_t at;                   /* index of the op it is at */
    size_t hold_first, hold_end; /* blocking ops among these keep it */
    struct ls_event *hold;       /* or this event */
    int64_t value;               /* of a decide */
    struct ls_storage *scratch;
    uint32_t segment;            /* last begun, + 1 */
};

/* A gradient of a parameter's shard: a view of a reduction's output, or memory of its own. */
struct shard_grad { struct ls_tensor t; bool own, fresh; /* nothing is in it yet */ struct ls_stream *stream; };
struct bucket { uint32_t payload; struct ls_tensor t; };
struct instance { uint32_t buffer, module; struct ls_storage *s; };
struct unit_data {
    struct ls_storage *gathered; /* the last gather's buffer */
    size_t pieces;               /* how many parts it has */
    uint64_t piece_bytes;
    bool small;                  /* some gather is among fewer ranks than share the parameters */
};
struct param_data {
    struct ls_storage *shard, *full, *grad, *small;
    struct shard_grad reduced, partial;
    bool used, told;             /* had a gradient when its bucket was filled; this rank told the others so, for the step to come */
};

struct engine;
struct ls_rank {
    struct engine *e;
    uint32_t number;
    struct rank_op *op; size_t ops;
    uint8_t *status;             /* [ops] */
    uint8_t *decided;            /* [ops] 0 open, 1 first side, 2 second */
    struct host_thread *thread; size_t threads;
    bool stopped;
    size_t stop_at;
    ls_waiters progress;         /* threads that wait for anything of this rank */
    LS_VEC(size_t) parked;       /* issued, behind ops of other threads that are not */
    struct ls_device *device;
    struct ls_comm **comm;       /* [comms] or NULL */
    struct ls_event **event;     /* [events] the latest record that was appended */
    struct ls_event **record;    /* several threads: [ops] what each record made */
    struct ls_math *math;
    struct unit_data *unit;
    struct param_data *param;
    LS_VEC(struct instance) live;
    LS_VEC(struct bucket) bucket;
    struct ls_tensor used_map; bool used_stale; /* of an earlier step */
    struct ls_event *used_known; /* the map is there; NULL: the step's stream waits for it already */
    LS_VEC(struct ls_move) moves; /* scratch */
    LS_VEC(struct ls_at) calls;   /* handed to communicators */
    struct clocks *clocks;       /* NULL: races are not looked for */
    size_t kernel;               /* L3: the first op that takes slots and has not started is not before it */
    LS_VEC(size_t) ended;         /* calls that the step of a communicator ended, until its span is told */
};

struct engine {
    const struct ls_engine_setup *setup;
    const struct ls_engine_options *o;
    const struct ls_job *job;
    struct ls_arena arena;
    struct ls_sched *sched;
    struct ls_hub *hub;
    struct ls_rank *rank;
    size_t streams, threads;
    LS_VEC(struct ls_comm_clash) clash; /* of all processes */
    size_t collectives;
    LS_VEC(struct ls_race) race;  /* of the ranks of this process, until all have told */
    struct ls_slot_options resident;
    uint32_t *param_of_name, *unit_of_name; size_t names; /* [name id] or LS_NO_ID */
    enum ls_code rc;
    struct ls_error err;
};

/* rank.c */
enum ls_turn thread_step(struct ls_actor *a);
enum path path_of(const struct ls_rank *r, size_t op);
bool rank_layout(struct engine *e, struct ls_rank *r, struct ls_error *err); /* the list of ops, with guards */
uint32_t queue_comm(const struct engine *e, const struct ls_op *op); /* in whose queue it waits */
void op_done(void *context, int64_t tag);
int64_t next_kernel(void *context, uint32_t rank); /* ls_slot_options.next */
bool takes_slots(const struct ls_op *op);

/* data.c: under the lock, in program order */
enum ls_code data_open(struct ls_rank *r, struct ls_error *err);
enum ls_code data_memory(struct ls_rank *r, size_t op, struct ls_error *err);                             /* alloc, free */
enum ls_code data_local(struct ls_rank *r, size_t op, struct ls_error *err);                              /* compute, copies */
/* Before and after a collective is issued: binds its tensors; adds what follows from the result. */
enum ls_code data_before(struct ls_rank *r, size_t op, struct ls_comm_call *call, struct ls_error *err);
enum ls_code data_after(struct ls_rank *r, size_t op, const struct ls_comm_call *call, struct ls_error *err);

/* buckets.c */
bool is_bucket(const struct ls_rank *r, const struct ls_op *o);   /* copy_in, all_reduce, copy_out */
bool is_used_map(const struct ls_rank *r, const struct ls_op *o);
enum ls_code bucket_in(struct ls_rank *r, const struct ls_op *o, struct ls_error *err);
void bucket_bind(struct ls_rank *r, const struct ls_op *o, struct ls_comm_call *call);
void bucket_out(struct ls_rank *r, const struct ls_op *o);
enum ls_code used_map_bind(struct ls_rank *r, const struct ls_op *o, struct ls_comm_call *call, struct ls_error *err);
void used_map_out(struct ls_rank *r, const struct ls_comm_call *call);

/* races.c: nothing, unless races are looked for; under the lock */
void clocks_open(struct ls_rank *r);
void clocks_close(struct ls_rank *r);
void clocks_issue(struct ls_rank *r, size_t op);                          /* its thread gets to it */
void clocks_append(struct ls_rank *r, const size_t *op, size_t count);    /* one op, or those of a fused group */
void clocks_pass(struct ls_rank *r, unsigned thread, size_t op);          /* the thread waited for it: a blocking op, or a host_wait */
void clocks_races(struct ls_rank *r);                                     /* after the run; adds to the engine's */

/* share.c. Without other processes: only what this one knows. */
bool is_here(const struct engine *e, uint32_t rank);
LS_MUST_USE enum ls_code share_job(const struct engine *e, struct ls_error *err);              /* do all run the same? */
/* After the run, however it went (rc, *err): the state of all ranks, clashes, results. Returns the error of the first process that has one. */
LS_MUST_USE enum ls_code share_state(struct engine *e, struct ls_observed *out, bool interrupted, enum ls_code rc, struct ls_error *err);

/* observe.c */
void observe(struct engine *e, struct ls_arena *arena, struct ls_observed *out);

#endif
