/* src/machine/run.h -- the state of a running machine, and what can be read off it: who is where, what is done, what waits.
 *
 * meet.h and move.h change it. Private to src/machine and to sim/, which adds time. A place in a rank's program is a key: its segment in the high half, an index into one of that
 * segment's tables in the low half, so "is done" is one comparison. The key of the end is (number of segments, 0). */
#ifndef LS_MACHINE_RUN_H
#define LS_MACHINE_RUN_H

#include "machine/prepare.h"

#include <assert.h>

struct ls_meeting { /* of one group */
    uint32_t arrived, sig;
    bool bad;            /* two arrived members differ: it never completes */
    uint64_t agreed;     /* decide: what the arrived members contributed, reduced */
    size_t done;         /* ops completed on this group: k of the one that is next */
    const struct ls_op *first; uint32_t first_rank; /* of those that arrived */
    struct ls_silent silent; /* as_nccl: of these that differ from the first and pass */
    uint8_t lost;        /* enum ls_lost: a member gave up waiting here */
};
struct ls_port {         /* one direction of p2p, seen from one rank */
    uint64_t next;       /* key into fifo_step */
    uint64_t match;      /* buffered sends: key of the first one that no receive took yet */
    size_t done, sent, taken;
    bool arrived, queued, bad;
};
enum ls_branch { LS_BRANCH_TAKEN, LS_BRANCH_SKIPPED, LS_BRANCH_OPEN };

/* Time, for runs that have it: the machine says what may happen, the clock when. A question answered with false means "not
 * yet"; the clock then calls ls_run_wake when the answer changes, and ls_run_to_end again. */
struct ls_run_clock {
    void *context;
    /* The step heads its stream, and its thread may issue it: has it? */
    bool (*issued)(void *context, uint32_t r, uint32_t segment, const struct ls_table *t, const struct ls_task *s);
    /* A step of class RUN that is ready: is its work done? */
    bool (*worked)(void *context, uint32_t r, uint32_t segment, const struct ls_table *t, const struct ls_task *s);
    /* A wait that is ready, but its event is not done; one whose event is done. */
    void (*waiting)(void *context, uint32_t r, uint32_t segment, const struct ls_table *t, const struct ls_task *s);
    void (*waited)(void *context, uint32_t r, uint32_t segment, const struct ls_table *t, const struct ls_task *s);
    /* A bundle starts. */
    void (*started)(void *context, uint32_t r, uint32_t segment, const struct ls_table *t, const struct ls_task *first);
    /* A bundle is done, and left behind. */
    void (*left)(void *context, uint32_t r, uint32_t segment, const struct ls_table *t, const struct ls_task *first);
    /* Has the host thread got to this point? */
    bool (*reached)(void *context, uint32_t r, uint32_t thread, uint32_t segment, const struct ls_table *t, const struct ls_point *q);
    /* It goes on from there. q is NULL when a bound on run-ahead, not a point, held it: before op `op`. */
    void (*resumed)(void *context, uint32_t r, uint32_t thread, uint32_t segment, uint32_t op, const struct ls_point *q);
    /* Everything that a meeting or pair needs is there; the clock calls ls_run_complete(x, item) when it is done. */
    void (*met)(void *context, uint64_t item);
};
enum { LS_ITEM_MEETING = 0, LS_ITEM_PAIR = 1, LS_ITEM_SENT = 2,
       LS_ITEM_LOST = 3 /* rank * comms + comm */ }; /* high half of an item; low half: group id, or port (PAIR: the receiver's) */

struct ls_run {
    struct ls_prepared p;
    const struct ls_run_options *o;
    const struct ls_run_clock *clock; /* NULL: nothing takes time. Set it after ls_run_open */
    bool buffered;       /* sends complete when they start */
    bool slots;          /* kernels take slots, or start in issue order */
    bool defer;          /* starts are chosen when nothing else can move */
    uint64_t *head;      /* [ranks * streams] key into step */
    uint32_t *left;      /* [ranks * streams] unpaired steps of the started bundle at the head; 0: not started */
    uint32_t *held;      /* [ranks * streams] slots that it holds */
    uint32_t *used;      /* [ranks] */
    uint64_t *kernel;    /* [ranks] key into kernel: the next to start in issue order */
    uint64_t *fifo;      /* [ranks * comms] key into fifo_step */
    uint64_t *until;     /* [ranks * threads] key into ops: what lies before is issued */
    uint64_t *point;     /* [ranks * threads] key into point: where the host thread is */
    uint64_t *ahead;     /* [ranks * threads] key into thread_step: the first not issued; bounded run-ahead only */
    size_t *out_now;     /* [ranks * threads] stream ops issued and not done; bounded run-ahead only */
    bool *bounded;       /* [ranks * threads] held by the bound; bounded run-ahead only */
    struct ls_meeting *meeting; /* [groups] */
    struct ls_port *port;       /* as p.port */
    unsigned char *decided;     /* 0 open, 1 non-zero, 2 zero */
    bool *stopped;       /* [ranks] reached a stop */
    size_t *steps_done;  /* [ranks] */
    size_t collectives;
    struct ls_silent silent;
    bool *dead;          /* [ranks] raised while it waited; NULL: none did */

    uint32_t *queue;     /* ranks that may be able to move: a ring */
    size_t queue_head, queued;
    bool *in_queue;
    LS_VEC(uint64_t) full; /* meetings and ports to complete */
    uint64_t random;
    struct ls_arena *arena;
};

LS_MUST_USE enum ls_code ls_run_open(struct ls_run *x, const struct ls_job *job, const struct ls_run_options *options,
                                     struct ls_arena *arena, struct ls_error *err);
void ls_run_close(struct ls_run *x); /* memory of the arena stays */
void ls_run_wake(struct ls_run *x, uint32_t r); /* ls_run_to_end (move.h) looks at this rank again */
uint32_t ls_comm_of_group(const struct ls_run *x, uint32_t id); /* of a group id, as in group_base */

static inline uint64_t ls_key(uint64_t segment, uint64_t index) { return segment << 32 | index; }
static inline uint32_t ls_key_segment(uint64_t key) { return (uint32_t)(key >> 32); }
static inline uint32_t ls_key_index(uint64_t key) { return (uint32_t)key; }
static inline size_t ls_segments(const struct ls_run *x, uint32_t r) { return x->p.rank_first[r + 1] - x->p.rank_first[r]; }
static inline const struct ls_table *ls_table_at(const struct ls_run *x, uint32_t r, size_t segment)
{
    return &x->p.table[x->p.table_of[x->p.rank_first[r] + segment]];
}
static inline bool ls_is_end(const struct ls_run *x, uint32_t r, uint64_t key) { return ls_key_segment(key) >= ls_segments(x, r); }

enum ls_branch ls_guard_state(const struct ls_run *x, uint32_t r, uint32_t segment, uint32_t guard);
/* Has the step, and with it the bundle that it is part of, been left behind by its stream? */
static inline bool ls_step_done(const struct ls_run *x, uint32_t r, uint32_t segment, const struct ls_table *t, uint32_t step)
{
    return x->head[r * x->p.streams + t->step[step].stream] > ls_key(segment, step);
}
/* Is the event that a wait at `segment` means done? If not, *on is the record, or the decide that it hangs on. */
bool ls_event_done(const struct ls_run *x, uint32_t r, uint32_t segment, uint32_t record, uint32_t event, struct ls_at *on);
/* The step at a FIFO's head, or NULL at its end; *key is brought up to date past skipped steps. */
const struct ls_task *ls_fifo_head(const struct ls_run *x, uint32_t r, uint32_t comm, uint64_t *key);
const struct ls_task *ls_port_head(const struct ls_run *x, uint32_t port, uint64_t *key);
/* The first place from `key` on whose step is not on a side of a branch that the rank did not take. `id`: of a port key. */
uint64_t ls_fifo_skip(const struct ls_run *x, uint32_t r, uint32_t comm, uint64_t key);
uint64_t ls_port_skip(const struct ls_run *x, uint32_t r, uint32_t id, uint64_t key);
/* Is this step part of a started bundle at its stream's head? */
bool ls_is_started(const struct ls_run *x, uint32_t r, uint32_t segment, const struct ls_task *s);
/* Is the step at the head of its FIFO? `paired` tells whether it has left it already. */
bool ls_heads_fifo(const struct ls_run *x, uint32_t r, uint32_t segment, const struct ls_task *s, bool *paired);
/* Has the head of a FIFO (ls_fifo_head, ls_port_head), NULL or not, arrived? */
bool ls_has_arrived(const struct ls_run *x, uint32_t r, const struct ls_task *s, uint64_t key);
/* What holds the host thread back; false at the end, and at a stop that was reached. */
bool ls_host_waits_for(const struct ls_run *x, uint32_t r, uint32_t thread, struct ls_at *on);
/* Is the host thread held back by the bound on run-ahead, not by its program? */
bool ls_is_bounded(const struct ls_run *x, uint32_t r, uint32_t thread);
/* The first step of the bundle that a step is in. */
static inline const struct ls_task *ls_bundle_of(const struct ls_task *s)
{
    while (s->bundle == 0)
        s--;
    return s;
}

#endif
