#include "sim/queue.h"

#include "base/arena.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { BITS = 6, SOON = 48 }; /* SOON: so few that their memory is not driven out of the cache again */

void ls_queue_init(struct ls_queue *q)
{
    memset(q, 0, sizeof *q);
}

void ls_queue_release(struct ls_queue *q)
{
    for (size_t level = 0; level < LS_QUEUE_LEVELS; level++)
        for (size_t s = 0; s < LS_QUEUE_SLOTS; s++)
            free(q->slot[level][s].at);
    ls_queue_init(q);
}

static void put(struct ls_queue *q, struct ls_due e)
{
    uint64_t differ = e.time ^ q->now;
    unsigned level = differ ? (63u - (unsigned)__builtin_clzll(differ)) / BITS : 0;
    unsigned s = (unsigned)(e.time >> (BITS * level)) & (LS_QUEUE_SLOTS - 1);
    struct ls_queue_slot *slot = &q->slot[level][s];
    if (slot->count == slot->room) {
        uint32_t room = slot->room ? 2 * slot->room : 8;
        struct ls_due *at = slot->room < UINT32_MAX / 2 ? realloc(slot->at, room * sizeof *at) : NULL;
        if (!at)
            ls_out_of_memory(room * sizeof *at);
        slot->at = at;
        slot->room = room;
    }
    slot->at[slot->count++] = e;
    q->mask[level] |= (uint64_t)1 << s;
}

void ls_queue_push(struct ls_queue *q, uint64_t time, uint64_t what)
{
    assert(time >= q->now);
    put(q, (struct ls_due){ time, what });
    q->count++;
    if (q->next_known && time < q->next)
        q->next = time;
}

bool ls_queue_next(struct ls_queue *q, uint64_t *time)
{
    if (q->count == 0)
        return false;
    if (!q->next_known) {
        unsigned level = 0;
        while (!q->mask[level])
            level++;
        const struct ls_queue_slot *slot = &q->slot[level][__builtin_ctzll(q->mask[level])];
        uint64_t least = UINT64_MAX;
        for (uint32_t i = slot->first; i < slot->count; i++) {
            uint64_t t = slot->at[i].time;
            least = t < least ? t : least;
        }
        q->next = least;
        q->next_known = true;
    }
    *time = q->next;
    return true;
}

bool ls_queue_pop(struct ls_queue *q, struct ls_due *out)
{
    uint64_t time;
    if (!ls_queue_next(q, &time))
        return false;
    /* The earliest time is known, so the levels above 0 are opened from the top in one go. */
    while (!q->mask[0]) {
        unsigned level = 1;
        while (!q->mask[level])
            level++;
        unsigned s = (unsigned)__builtin_ctzll(q->mask[level]);
        struct ls_queue_slot *slot = &q->slot[level][s];
        q->mask[level] &= ~((uint64_t)1 << s);
        q->now = time;
        /* Order is kept: equal times are in one slot, in the order of their pushes. Nothing comes back to this slot. */
        uint32_t count = slot->count;
        slot->count = 0;
        for (uint32_t i = 0; q->soon && count <= SOON && i < count; i++)
            q->soon(q->soon_context, slot->at[i].what);
        for (uint32_t i = 0; i < count; i++)
            put(q, slot->at[i]);
    }
    q->now = time;
    unsigned s = (unsigned)__builtin_ctzll(q->mask[0]);
    struct ls_queue_slot *slot = &q->slot[0][s];
    *out = slot->at[slot->first++];
    assert(out->time == time);
    q->count--;
    if (slot->first == slot->count) {
        slot->first = slot->count = 0;
        q->mask[0] &= ~((uint64_t)1 << s);
        q->next_known = false;
    }
    return true;
}
