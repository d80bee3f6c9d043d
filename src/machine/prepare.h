/* src/machine/prepare.h -- a job turned into tables that the machine walks without looking at ops again.
 *
 * Private to src/machine. One table per distinct segment, shared by every rank that runs it:
 *   step    a stream op; steps are sorted by stream, so a stream is a range of steps and its head is one index
 *   bundle  consecutive steps of one stream that belong to one fused group; they start together, unordered
 *   fifo    the steps of one communicator, or of one p2p port, in list order
 *   point   where a host thread may have to stop: a blocking step, a host_wait, a stop, a branch that another thread decides
 *   guard   the decide, and the side of it, that an op depends on
 * Two steps get the same `sig` iff they are compatible, so pairing compares integers. */
#ifndef LS_MACHINE_PREPARE_H
#define LS_MACHINE_PREPARE_H

#include "machine/machine.h"

enum ls_task_class { LS_TASK_RUN, LS_TASK_WAIT, LS_TASK_MEET, LS_TASK_PASS };

struct ls_task {
    uint32_t op;      /* index in the segment */
    uint32_t sig;
    uint32_t fifo;    /* MEET: communicator whose FIFO it is in; PASS: port id */
    uint32_t place;   /* index into fifo_step */
    uint32_t record;  /* WAIT, RECORD: step of the latest earlier record of the event in this segment, or LS_NO_ID */
    uint32_t event;
    uint32_t guard;   /* 2 * decide + side, or LS_NO_ID */
    uint32_t bundle;  /* first step of a bundle: its length; inside one: 0 */
    uint32_t slots;   /* first step of a bundle: kernel slots it takes at L3 */
    uint8_t class, thread, stream;
    bool send;        /* PASS */
    bool joined;      /* in a fused group, and not the first op of it */
};
enum ls_point_kind { LS_POINT_STEP, LS_POINT_EVENT, LS_POINT_STOP, LS_POINT_PATH };
struct ls_point {
    uint32_t op, step, record, event, guard;
    uint8_t kind, thread; /* thread: STOP, the one that runs it */
};
struct ls_record { uint32_t event, step; }; /* the last record of an event in a segment */
struct ls_decide { uint32_t op, guard; };   /* guard: the decide it is inside of */

struct ls_table {
    const struct ls_segment *from;
    struct ls_task *step;
    uint32_t *step_of_op;               /* [ops], LS_NO_ID for host ops */
    uint32_t *guard_of_op;              /* [ops] */
    uint32_t *stream_first;             /* [streams + 1] */
    uint32_t *fifo_step;
    uint32_t *comm_first;               /* [comms + 1] into fifo_step */
    uint32_t *port, *port_first, ports; /* ports used here, ascending; [ports + 1] into fifo_step */
    uint32_t *comm, comms;              /* communicators used here, including those of ports */
    struct ls_point *point;
    uint32_t *point_first;              /* [threads + 1] */
    uint32_t *thread_step, *thread_first; /* stream ops of each thread, in list order */
    uint32_t *kernel, kernels;          /* first steps of bundles that take slots, in list order */
    struct ls_record *record; uint32_t records; /* by event */
    struct ls_decide *decide; uint32_t decides;
};

struct ls_port_key { uint32_t comm, peer; bool send; };
struct ls_port_ref { uint32_t id, rank, partner; }; /* partner: index of the other side's port, or LS_NO_ID */

struct ls_prepared {
    const struct ls_job *job;
    size_t streams, threads, comms;
    struct ls_table *table;
    uint32_t *table_of;      /* [rank_first[ranks]]: table of each rank's segments */
    size_t *rank_first;      /* [ranks + 1] */
    uint32_t *group_base;    /* [comms + 1]: group g of communicator c has id group_base[c] + g */
    struct ls_port_key *port_key;
    struct ls_port_ref *port; /* [port_first[ranks]], by rank then id */
    size_t *port_first;      /* [ranks + 1] */
    size_t *decide_first;    /* per rank's segment, into the agreed values; NULL without decides */
    size_t decides;
};

/* Tables are owned by `arena`.
 *   errors  LS_EINPUT: an op that no machine could run (see semantics.md, well-formed jobs) */
LS_MUST_USE enum ls_code ls_prepare(const struct ls_job *job, enum ls_level level, struct ls_arena *arena,
                                    struct ls_prepared *out, struct ls_error *err);

/* The communicator in whose FIFO an op waits: that of the parent for a comm_init that has one. */
uint32_t ls_fifo_comm(const struct ls_tables *t, const struct ls_op *op);
/* Index into p->port, or LS_NO_ID when the rank never uses it. */
uint32_t ls_port_find(const struct ls_prepared *p, uint32_t rank, uint32_t port_id);

#endif
