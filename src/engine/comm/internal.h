/* src/engine/comm/internal.h -- what the files of comm/ share.
 *
 *   threads.c   the hub: queues, who meets whom, progress
 *   work.c      each member's part of the data
 *   slots.c     level L3: kernels that are resident, buffered sends
 *   remote.c    members in other processes */
#ifndef LS_ENGINE_COMM_INTERNAL_H
#define LS_ENGINE_COMM_INTERNAL_H

#include "base/arena.h"
#include "engine/comm/comm.h"

enum { MEMBERS_MAX = 1024 };

struct bundle;
struct place;
struct ticket {
    struct ls_comm_call call;
    struct ls_op op;             /* a copy: programs may go before the queues do */
    enum ls_comm_progress progress;
    bool working;                /* its part of the data is to be done */
    struct place *at;
    size_t side;                 /* which queue of the place: the member, or 0 send, 1 recv */
    uint64_t number;             /* in its queue */
    struct bundle *bundle;       /* NULL: a member in another process, arrived there; or a buffered send's copy */
    struct ticket *next;
    /* Of another process: */
    bool data;                   /* there is data to send */
    uint64_t base;               /* call.in begins at this element of the member's input */
    struct ls_storage input;     /* call.in.of: inside of input_message */
    void *input_message, *result_message;
    struct ls_tensor result; struct ls_storage result_storage; /* the part of the result that this member made */
};
struct bundle { /* the calls of one issue on one stream: they start together */
    struct ls_host_task task;
    struct ls_hub *hub;
    struct ls_stream *first;     /* the stream */
    struct ls_actor *stream;     /* its actor, once the bundle heads it */
    struct ticket *ticket; size_t count;
    bool started;
    unsigned slots;              /* that it holds; L3 */
    struct bundle *next, *before;
};
struct queue { struct ticket *head, **tail; uint64_t issued; };

/* Where an op that has met is, if its members are in several processes; otherwise it is all WORK. The members of one process go
 * from stage to stage together, on their streams. */
enum stage {
    STAGE_SEND,                  /* inputs go to other processes */
    STAGE_INPUTS,                /* inputs of other processes are still to come */
    STAGE_WORK,                  /* each member's part of the data */
    STAGE_RESULTS,               /* parts of the result are still to come */
    STAGE_TAKE                   /* and are put in place */
};
struct place {
    uint32_t comm, group;
    bool p2p, bad, met;
    bool buffered;               /* sends leave when they have started */
    size_t sides, worked;
    uint32_t member[2];          /* p2p: sender, receiver */
    struct queue *queue;
    uint64_t done;               /* ops that have left it */
    enum stage stage;
    size_t local;                /* sides of this process */
    uint32_t *process;           /* [sides]; NULL: all are here */
    bool owner;                  /* tells what is to be told once: the process of the first side; buffered: of the receiver */
};
struct comm { struct ls_comm c; struct ls_comm_group group; };

struct slots { unsigned used; ls_waiters waiting; };

struct mail { size_t to; void *at; size_t bytes; };
struct tally { bool known; uint64_t sent, received; };
struct remote {
    struct ls_world *world;
    LS_VEC(struct mail) out;
    uint64_t sent, received;     /* messages of ops */
    struct ls_message *end;      /* [processes] what those left that have ended the run */
    unsigned rounds;             /* in which nothing came */
    struct tally told;           /* to process 0 */
    bool asked, quiet;
    enum ls_code rc; struct ls_error err;
    /* process 0 */
    struct tally *first, *summed, *second; /* [processes] what was told, what was equal when everybody was asked, the answers */
    bool asking;
};

struct ls_hub {
    const struct ls_job *job;
    struct ls_sched *sched;
    struct ls_hub_options o;
    struct ls_arena arena;
    struct place **collective;   /* [comms][groups] */
    struct place ***pair;        /* [comms][groups] -> [members * members], made when first used */
    LS_VEC(struct ls_comm_clash) clash;
    size_t collectives;
    bool aborted;
    struct bundle *bundles;      /* in flight */
    struct remote *remote;       /* several processes */
    struct slots *slots;         /* [ranks] L3 */
};

/* threads.c */
void hub_tell(struct ls_hub *h, struct ticket *t, enum ls_comm_progress progress);
void hub_meet(struct ls_hub *h, struct place *p);                /* somebody new stands at the head of a queue */
void hub_finish(struct ls_hub *h, struct place *p);
void hub_start(struct place *p);                                 /* the members that are here do their part of the stage */
struct place *hub_place(struct ls_hub *h, uint32_t comm, uint32_t group);
struct place *hub_pair(struct ls_hub *h, uint32_t comm, uint32_t group, uint32_t from, uint32_t to); /* members; made if need be */

/* slots.c: nothing, without a bound */
bool slots_take(struct ls_hub *h, struct bundle *b, struct ls_actor *stream); /* false: `stream` will be woken */
void slots_give(struct ls_hub *h, const struct bundle *b);
void slots_recheck(struct ls_hub *h, const struct bundle *b);   /* something that starts of its rank wait for has changed */
void slots_post(struct ls_hub *h, struct place *p);             /* buffered: sends that have arrived leave their queue, and a copy in it or, for another process, a message */
void slots_close(struct ls_hub *h);

/* work.c: without the lock; nobody else writes what a part reads or reads what it writes */
void work_run(struct place *p, struct ticket *t);
void work_take(struct place *p, struct ticket *t);               /* parts of the result that other processes made */
size_t work_root(const struct place *p, const struct ticket *t);
void work_part(const struct ticket *t, size_t j, uint64_t *first, uint64_t *count); /* where member j's part lies in a tensor of all, in elements */
void work_share(const struct place *p, const struct ticket *t, size_t j, uint64_t *first, uint64_t *count); /* what member j reduces for all */
bool work_has_data(const struct ticket *t);                      /* here */
struct ls_tensor work_slice(struct ls_tensor t, uint64_t first, uint64_t count);

/* remote.c */
void remote_open(struct ls_hub *h);
void remote_close(struct ls_hub *h);
void remote_lay(struct ls_hub *h, struct place *p);              /* who is where */
void remote_arrived(struct ls_hub *h, const struct ticket *t);   /* a ticket of this process */
void remote_send_buffered(struct ls_hub *h, struct place *p, struct ticket *t); /* under the lock; behind remote_arrived */
void remote_send_inputs(struct ls_hub *h, struct place *p, struct ticket *t); /* without the lock, as work */
void remote_send_result(struct ls_hub *h, struct place *p, struct ticket *t);
void remote_advance(struct ls_hub *h, struct place *p);          /* all local members have done their part of the stage */
bool remote_makes_result(const struct place *p, const struct ticket *t); /* of reductions for all: others need this member's share */
void remote_make_result(struct ticket *t, uint64_t count);       /* t->result, in a message */
void remote_free(struct ticket *t);

#endif
