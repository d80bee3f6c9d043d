#include "engine/comm/world.h"

#include "base/arena.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

void ls_world_nap(unsigned rounds)
{
    enum { YIELDS = 100, NS_MAX = 500 * 1000 };
    if (rounds < YIELDS) {
        sched_yield();
        return;
    }
    long ns = 10L * 1000 * (long)(rounds - YIELDS + 1);
    nanosleep(&(struct timespec){ .tv_nsec = ns < NS_MAX ? ns : NS_MAX }, NULL);
}

enum ls_code ls_world_receive(struct ls_world *w, struct ls_message *out, struct ls_error *err)
{
    *out = (struct ls_message){ 0 };
    if (!w->later.count)
        return w->ops->receive(w, out, err);
    *out = w->later.at[0];
    memmove(w->later.at, w->later.at + 1, --w->later.count * sizeof *w->later.at);
    return LS_OK;
}

static enum ls_wire wire_of(const struct ls_message *m)
{
    uint32_t kind;
    memcpy(&kind, m->at, sizeof kind);
    return (enum ls_wire)kind;
}

static void *copy_of(const void *bytes, size_t count, size_t head)
{
    char *at = malloc(head + count + 1);
    if (!at)
        ls_out_of_memory(head + count);
    if (count)
        memcpy(at + head, bytes, count);
    return at;
}

enum { HEAD = 8 };

enum ls_code ls_world_exchange(struct ls_world *w, const void *mine, size_t bytes, struct ls_message *all, struct ls_error *err)
{
    enum ls_code rc = LS_OK;
    size_t missing = 0;
    struct ls_message *held = NULL;
    size_t held_count = 0, held_room = 0;
    for (size_t i = 0; i < w->processes && rc == LS_OK; i++) {
        uint32_t kind = LS_WIRE_EXCHANGE;
        void *message = copy_of(mine, bytes, HEAD);
        memset(message, 0, HEAD);
        memcpy(message, &kind, sizeof kind);
        if (i == w->number)
            all[i] = (struct ls_message){ i, message, HEAD + bytes };
        else {
            missing += !all[i].at;
            rc = w->ops->send(w, i, message, HEAD + bytes, err);
        }
    }
    for (unsigned rounds = 0; rc == LS_OK && missing;) {
        struct ls_message m;
        rc = ls_world_receive(w, &m, err);
        if (rc == LS_OK && w->interrupted && *w->interrupted)
            rc = ls_fail(err, LS_EBACKEND, LS_NOWHERE, "interrupted");
        if (!m.at) {
            ls_world_nap(rounds++);
            continue;
        }
        rounds = 0;
        if (all[m.from].at) { /* of what comes next */
            if (held_count == held_room)
                held = ls_vec_grow(held, &held_room, held_count + 1, sizeof *held);
            held[held_count++] = m;
        } else if (wire_of(&m) == LS_WIRE_EXCHANGE) {
            all[m.from] = m;
            missing--;
        } else
            free(m.at);
    }
    /* What is still in `later` came after what was taken out of it. */
    for (size_t i = 0; i < w->later.count; i++) {
        if (held_count == held_room)
            held = ls_vec_grow(held, &held_room, held_count + 1, sizeof *held);
        held[held_count++] = w->later.at[i];
    }
    ls_vec_release(&w->later);
    w->later.at = held;
    w->later.count = held_count;
    w->later.room = held_room;
    for (size_t i = 0; i < w->processes && rc == LS_OK; i++) {
        memmove(all[i].at, (char *)all[i].at + HEAD, all[i].bytes - HEAD);
        all[i].bytes -= HEAD;
    }
    return rc;
}

void ls_world_drop(const struct ls_world *w, struct ls_message *all)
{
    for (size_t i = 0; i < w->processes; i++) {
        free(all[i].at);
        all[i] = (struct ls_message){ 0 };
    }
}

void ls_world_release(struct ls_world *w)
{
    for (size_t i = 0; i < w->later.count; i++)
        free(w->later.at[i].at);
    ls_vec_release(&w->later);
}
