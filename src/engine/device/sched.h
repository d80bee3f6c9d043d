/* src/engine/device/sched.h -- actors under one scheduler: host threads of ranks, and the queues of a host device.
 *
 *   cooperative  one thread; a seeded generator picks the next actor that may move: a run is a function of the seed
 *   free         one POSIX thread per actor
 *
 * Either way the end is a state, not a timeout: no actor can move and none is running (and nothing comes from other processes,
 * comm/remote.h). An actor that cannot move says so (LS_TURN_BLOCKED) after it has left itself in the waiting list of whatever it
 * lacks; who provides that wakes the list.
 *
 * One lock guards everything that steps share. A step is called with the lock held and drops it (ls_sched_leave) around long
 * work on data that only it may touch. */
#ifndef LS_ENGINE_DEVICE_SCHED_H
#define LS_ENGINE_DEVICE_SCHED_H

#include "base/error.h"
#include "base/vec.h"

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ls_sched;
struct ls_actor;
enum ls_turn { LS_TURN_MOVED, LS_TURN_BLOCKED, LS_TURN_ENDED };
typedef LS_VEC(struct ls_actor *) ls_waiters;

/* First member of whatever acts. Filled by ls_sched_add. */
struct ls_actor {
    enum ls_turn (*step)(struct ls_actor *self);
    struct ls_sched *sched;
    size_t index;          /* among the actors */
    size_t place;          /* cooperative: in the list of those that may move */
    enum { LS_ACTOR_READY, LS_ACTOR_RUNNING, LS_ACTOR_BLOCKED, LS_ACTOR_ENDED } state;
    bool again;            /* woken while running */
};

struct ls_sched_options {
    bool free;                                /* a thread per actor */
    uint64_t seed;                            /* cooperative: 0 takes the lowest actor that can move */
    const volatile sig_atomic_t *interrupted; /* set by a signal handler: the run ends soon. May be NULL */
    /* What comes from outside of the process wakes actors, too. Called by the thread of ls_sched_run, under the lock: now and then
     * while actors move, and when none can, with `idle`, until it returns false: nothing will come any more. It may drop the lock
     * to sleep. NULL: nothing comes from outside. */
    bool (*outside)(void *context, bool idle); void *outside_context;
};
struct ls_sched *ls_sched_open(const struct ls_sched_options *o);
void ls_sched_close(struct ls_sched *s); /* accepts NULL; not while it runs */
void ls_sched_add(struct ls_sched *s, struct ls_actor *a, enum ls_turn (*step)(struct ls_actor *self)); /* ready; before the run */

enum ls_sched_end { LS_SCHED_QUIET, LS_SCHED_STOPPED, LS_SCHED_INTERRUPTED };
/* Returns when nothing can move (QUIET), somebody called ls_sched_stop, or the flag was set. No actor runs then.
 *   errors  LS_EBACKEND: threads could not be created */
LS_MUST_USE enum ls_code ls_sched_run(struct ls_sched *s, enum ls_sched_end *end, struct ls_error *err);
void ls_sched_stop(struct ls_sched *s);            /* under the lock */

/* Under the lock. */
void ls_sched_wait(struct ls_actor *a, ls_waiters *on);  /* joins the list; the step then returns LS_TURN_BLOCKED */
void ls_sched_wake(struct ls_actor *a);
void ls_sched_wake_all(ls_waiters *on);                  /* and empties the list */
void ls_sched_leave(struct ls_sched *s);                 /* drops the lock ... */
void ls_sched_enter(struct ls_sched *s);                 /* ... and takes it again; also for those outside of steps */

#endif
