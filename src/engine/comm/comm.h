/* src/engine/comm/comm.h -- communicators: a group of ranks that issues collectives and point-to-point transfers on streams.
 *
 * A const table of functions; `threads` (ranks of one process, on the host device) and `mpi` (ranks of several, remote.h) are here,
 * NCCL fills in the same one. Calls are asynchronous: issue appends to streams and returns. Each member keeps one queue per
 * communicator, in issue order, whatever the streams; sends and receives have queues of their own per peer.
 *
 * Reductions go element by element in member order, in at least fp32: results are the same bits whatever the schedule. */
#ifndef LS_ENGINE_COMM_COMM_H
#define LS_ENGINE_COMM_COMM_H

#include "engine/comm/world.h"
#include "engine/device/device.h"

struct ls_comm;
struct ls_hub; /* what the ranks of one process share; `threads` and `mpi` */

/* One op, bound to data. Storage may be NULL: then no data moves, only order and the fingerprint. With n members and `count`:
 *   all_gather      in [count]            out [n * count]; in place: in is the member's part of out
 *   reduce_scatter  in [n * count]        out [count]
 *   all_reduce, scan, broadcast           in [count], out [count]; may be the same. scan includes the member itself
 *   reduce          in [count]            out [count] at the root
 *   gather          in [count]            out [n * count] at the root
 *   scatter         in [n * count] at the root   out [count]
 *   all_to_all      in [n * count]        out [n * count], apart; counts: elements to each peer, out in the same order
 *   send, recv      in [count] / out [count] */
struct ls_comm_call {
    struct ls_comm *comm;
    struct ls_stream *stream;
    const struct ls_op *op;       /* kind, dtype, reduce, factor, count, counts, peer, symbol */
    const uint64_t *counts;       /* n entries, or NULL */
    uint64_t fingerprint;         /* of the payload; travels beside the data */
    struct ls_tensor in, out;
    int64_t tag;
};

struct ls_comm_group {
    uint32_t comm, group, member; /* communicator, which of its groups, which member of that */
    const uint32_t *rank; size_t members;
    struct ls_device *device;
    struct ls_hub *hub;           /* threads, mpi */
    const void *unique_id;        /* NCCL: of the group, exchanged before */
};

struct ls_comm_ops {
    const char *name;             /* as in --comm NAME */
    enum ls_code (*open)(struct ls_comm **out, const struct ls_comm_group *group, struct ls_error *err);
    /* Several calls, also on several communicators of this rank, are one NCCL group: each stream waits for all of its own. */
    enum ls_code (*issue)(const struct ls_comm_call *call, size_t count, struct ls_error *err);
    enum ls_code (*poll)(struct ls_comm *c, struct ls_error *err); /* asynchronous errors */
    void (*abort)(struct ls_comm *c);                              /* from any thread; what is in flight never completes */
    void (*close)(struct ls_comm *c);                              /* accepts NULL; safe after any failure */
};
struct ls_comm { const struct ls_comm_ops *ops; };
extern const struct ls_comm_ops ls_comm_threads, ls_comm_mpi;

/* How two calls that met differ; as data, for whoever asks. */
enum ls_comm_diff { LS_COMM_SAME, LS_COMM_KIND, LS_COMM_COUNT, LS_COMM_DTYPE, LS_COMM_REDUCE, LS_COMM_ROOT, LS_COMM_PAYLOAD };
struct ls_comm_clash { uint32_t comm, group; bool p2p, passed; /* nccl_like: it went through */ enum ls_comm_diff diff; int64_t tag[2]; uint32_t member[2]; };

/* How far a call got; the queue's head has arrived when it has started. */
enum ls_comm_progress { LS_COMM_QUEUED, LS_COMM_STARTED, LS_COMM_PAIRED, LS_COMM_DONE };

/* Level L3 of the machine: kernels take slots, and a send is over when it has started, unless it is to wait for its receive. */
struct ls_slot_options {
    unsigned kernels;             /* slots of a rank; 0: no bound */
    bool unbuffered_send;
    /* Kernels start in the order of the program: the tag of the rank's first call that takes slots and has not started, or
     * LS_NO_TAG. With progress_context, under the lock. NULL: in any order. */
    int64_t (*next)(void *context, uint32_t rank);
};
struct ls_hub_options {
    /* Pair by position as NCCL would: a difference that NCCL does not notice goes through and corrupts, others never complete.
     * Otherwise every difference stops the group, and is told. */
    bool nccl_like;
    void (*progress)(void *context, uint32_t rank, int64_t tag, enum ls_comm_progress p); void *progress_context; /* under the lock */
    struct ls_world *world;       /* mpi: the processes, see remote.h; NULL: this one alone */
    const struct ls_slot_options *resident; /* NULL: no bound */
};
struct ls_hub *ls_hub_open(const struct ls_job *job, struct ls_sched *sched, const struct ls_hub_options *o);
void ls_hub_close(struct ls_hub *h); /* after its communicators; accepts NULL */
void ls_hub_abort(struct ls_hub *h); /* all of them */
void ls_hub_recheck(struct ls_hub *h, uint32_t rank); /* resident->next may have another answer; under the lock */
/* After a run; several processes: each difference is told by one of them. Not nccl_like: one for each group or pair that is stuck, with
 * the first arrived call and the first that differs. nccl_like: every difference met, in the order in which they were seen. */
const struct ls_comm_clash *ls_hub_clashes(struct ls_hub *h, size_t *count);
size_t ls_hub_collectives(const struct ls_hub *h);  /* group-level completions; several processes: each is counted in one of them */

/* Each out[k][i] = reduction over members, in member order, of in[member][i], times factor. Outputs may be inputs. Floating
 * types narrower than fp32 are summed in fp32 and rounded once; LS_REDUCE_NONE sums; integers wrap. */
void ls_reduce_run(const struct ls_tensor *in, size_t members, uint64_t elements, enum ls_reduce reduce, struct ls_ratio factor,
                   const struct ls_tensor *out, size_t outs);

#endif
