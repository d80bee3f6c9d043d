/* sim/queue.h -- pending events by time; those of one instant in the order in which they were pushed.
 *
 * A monotone radix queue: an event lies in the slot of the highest 6-bit digit in which its time differs from the last popped
 * time, and moves to a lower level when time gets to that slot. Push is O(1); an event moves at most 11 times, and as often as
 * log64(spread of the pending times) in practice, whatever their number. */
#ifndef LS_SIM_QUEUE_H
#define LS_SIM_QUEUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { LS_QUEUE_LEVELS = 11, LS_QUEUE_SLOTS = 64 };
struct ls_due { uint64_t time, what; };
struct ls_queue_slot { struct ls_due *at; uint32_t first, count, room; };
struct ls_queue {
    uint64_t now;        /* time of the last pop */
    size_t count;
    uint64_t mask[LS_QUEUE_LEVELS]; /* slots in use */
    struct ls_queue_slot slot[LS_QUEUE_LEVELS][LS_QUEUE_SLOTS];
    uint64_t next;       /* the earliest time, if known */
    bool next_known;
    /* Told of events that come up soon, some more than once, so that what they need is in the cache by then. May be NULL. */
    void (*soon)(void *context, uint64_t what);
    void *soon_context;
};

void ls_queue_init(struct ls_queue *q);
void ls_queue_release(struct ls_queue *q);
void ls_queue_push(struct ls_queue *q, uint64_t time, uint64_t what); /* time >= q->now */
bool ls_queue_next(struct ls_queue *q, uint64_t *time);               /* false: empty. Does not move q->now */
bool ls_queue_pop(struct ls_queue *q, struct ls_due *out);

#endif
