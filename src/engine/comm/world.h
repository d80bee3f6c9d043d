/* src/engine/comm/world.h -- the processes that share a run, and messages between them.
 *
 * A const table of functions, as for devices and communicators: mpi.c fills it in. Assumed is only that a message arrives whole,
 * once, and behind those that the same process sent to the same one before. All processes run the same program on machines of one
 * kind: structs travel as they are.
 *
 * Ranks are dealt out in order: process p holds ranks p * n to p * n + n - 1, the last one may hold fewer. */
#ifndef LS_ENGINE_COMM_WORLD_H
#define LS_ENGINE_COMM_WORLD_H

#include "base/error.h"
#include "base/vec.h"

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

struct ls_world;
struct ls_message { size_t from; void *at; size_t bytes; }; /* `at` is from malloc, and the receiver's */

struct ls_world_ops {
    const char *name;
    /* By the thread that opened the world. send returns at once and takes `at` over, also when it fails; receive leaves out->at
     * NULL when nothing has come.
     *   errors  LS_EBACKEND */
    enum ls_code (*send)(struct ls_world *w, size_t to, void *at, size_t bytes, struct ls_error *err);
    enum ls_code (*receive)(struct ls_world *w, struct ls_message *out, struct ls_error *err);
    void (*close)(struct ls_world *w);       /* accepts NULL */
};
struct ls_world {                            /* first member of each world's struct */
    const struct ls_world_ops *ops;
    size_t processes, number;
    size_t ranks_per_process;                /* of the runs to come */
    const volatile sig_atomic_t *interrupted; /* set by a signal handler: waiting ends. May be NULL */
    LS_VEC(struct ls_message) later;         /* came before their time */
    bool broken;                             /* messages fail: the others cannot be told of it */
};
/* The first word of each message. */
enum ls_wire { LS_WIRE_EXCHANGE, LS_WIRE_ARRIVED, LS_WIRE_INPUT, LS_WIRE_RESULT, LS_WIRE_IDLE, LS_WIRE_ASK, LS_WIRE_ANSWER, LS_WIRE_QUIET };

static inline size_t ls_world_of_rank(const struct ls_world *w, size_t rank) { return rank / w->ranks_per_process; }

/* Every process gives bytes and gets those of all: all[p] of processes, from malloc. Entries that are there already are kept (they
 * came during a run); messages of the run that the giver has ended are dropped.
 *   errors  LS_EBACKEND: a message failed, or the interrupt flag is set; *all then holds what has come */
LS_MUST_USE enum ls_code ls_world_exchange(struct ls_world *w, const void *mine, size_t bytes, struct ls_message *all, struct ls_error *err);
void ls_world_drop(const struct ls_world *w, struct ls_message *all); /* frees what all[] holds */
/* The next message, those held back first; out->at is NULL when there is none. */
LS_MUST_USE enum ls_code ls_world_receive(struct ls_world *w, struct ls_message *out, struct ls_error *err);
/* Nothing came for the `rounds`-th time in a row: lets others run, then sleeps, at most half a millisecond. */
void ls_world_nap(unsigned rounds);
void ls_world_release(struct ls_world *w); /* what the struct above holds; for close */

#endif
