#include "check/reach.h"

#include "check/intern.h"
#include "check/witness.h"

#include <assert.h>
#include <string.h>

static bool allowed(const struct ls_system *s, uint32_t node, uint32_t letter)
{
    const uint64_t *set = s->driver.node[node].allowed;
    return !set || (set[letter / 64] >> letter % 64 & 1);
}

enum ls_code ls_reach_all(const struct ls_system *s, size_t most, struct ls_arena *arena, struct ls_reach *out, struct ls_error *err)
{
    struct ls_transducer *t = s->replica;
    struct ls_intern ids = { 0 }, seen = { 0 };
    LS_VEC(const struct ls_segment *) segment = { 0 };
    LS_VEC(size_t) role = { 0 };
    uint32_t start[2] = { 0, t->start };
    enum ls_code rc = LS_OK;
    *out = (struct ls_reach){ .complete = true };
    (void)ls_intern_put(&ids, start, 2);
    ls_push(&out->at, (struct ls_reached){ 0, t->start, LS_NO_ID, 0, 0 });
    for (uint32_t i = 0; i < out->at.count && rc == LS_OK; i++)
        for (uint32_t z = 0; z < t->letters && rc == LS_OK; z++) {
            const struct ls_reached from = out->at.at[i];
            const struct ls_driver_node *d = &s->driver.node[from.driver];
            struct ls_step step = { 0 };
            if (!allowed(s, from.driver, z))
                continue;
            rc = t->step(t, from.state, d->round, z, &step, err);
            if (rc != LS_OK)
                break;
            for (uint32_t y = 0; y < t->roles; y++) {
                uintptr_t p = (uintptr_t)step.role[y];
                uint32_t key[3] = { y, (uint32_t)p, (uint32_t)((uint64_t)p >> 32) };
                if (ls_intern_put(&seen, key, 3) < segment.count)
                    continue;
                ls_push(&segment, step.role[y]);
                ls_push(&role, y);
                for (size_t k = 0; k < step.role[y]->count; k++)
                    out->factors = out->factors || step.role[y]->op[k].factor.num;
            }
            for (size_t n = 0; n < d->nexts; n++) {
                uint32_t pair[2] = { d->next[n], step.next };
                if (out->at.count >= most && ls_intern_count(&ids) >= most) {
                    out->complete = false;
                    break;
                }
                if (ls_intern_put(&ids, pair, 2) == out->at.count)
                    ls_push(&out->at, (struct ls_reached){ pair[0], pair[1], i, z, from.depth + 1 });
            }
        }
    if (rc == LS_EUNDECIDED) { /* more states than the transducer keeps */
        out->complete = false;
        rc = LS_OK;
    }
    out->segments = segment.count;
    out->segment = ls_arena_copy(arena, segment.at, segment.count * sizeof *segment.at);
    out->role_of = ls_arena_copy(arena, role.at, role.count * sizeof *role.at);
    ls_vec_release(&segment);
    ls_vec_release(&role);
    ls_intern_release(&ids);
    ls_intern_release(&seen);
    return rc;
}

static bool may_stop_after(const struct ls_system *s, uint32_t node)
{
    const struct ls_driver_node *d = &s->driver.node[node];
    bool stop = d->nexts == 0;
    for (size_t i = 0; i < d->nexts; i++)
        stop = stop || s->driver.node[d->next[i]].may_stop;
    return stop;
}

/* Rounds from each node to the nearest stop, this node's included. */
static uint32_t *distances(const struct ls_system *s, struct ls_arena *arena)
{
    uint32_t *distance = LS_NEW(arena, uint32_t, s->driver.nodes);
    for (uint32_t n = 0; n < s->driver.nodes; n++)
        distance[n] = may_stop_after(s, n) ? 1 : LS_NO_ID;
    for (bool again = true; again;) {
        again = false;
        for (size_t n = 0; n < s->driver.nodes; n++)
            for (size_t i = 0; i < s->driver.node[n].nexts; i++) {
                uint32_t next = distance[s->driver.node[n].next[i]];
                if (next != LS_NO_ID && next + 1 < distance[n]) {
                    distance[n] = next + 1;
                    again = true;
                }
            }
    }
    return distance;
}

/* The letter `shift` places after `letter` among those that agree with it on the classes of every level that spans none of `apart`. */
static uint32_t shifted(const struct ls_system *s, uint32_t node, uint32_t letter, uint32_t apart, size_t shift)
{
    const struct ls_contract *c = &s->contract;
    uint32_t z = letter;
    size_t letters = s->replica->letters;
    while (shift > 0) {
        bool fine;
        do {
            z = (uint32_t)((z + 1) % letters);
            fine = allowed(s, node, z);
            for (size_t i = 0; i < c->levels && fine; i++)
                if (!(c->dims[i] & apart))
                    fine = c->class_of[i] ? c->class_of[i][z] == c->class_of[i][letter] : z == letter;
        } while (!fine && z != letter);
        shift--;
    }
    return z;
}

bool ls_reach_run(const struct ls_system *s, const struct ls_reach *r, size_t index, const size_t size[LS_FREE_DIMS],
                  struct ls_arena *arena, struct ls_assignment *out, bool *fits)
{
    size_t letters = s->replica->letters, replicas = size[0] * size[1];
    size_t shifts = replicas > 1 ? letters : 1, shift = index % shifts;
    uint32_t letter = (uint32_t)(index / shifts % letters);
    size_t pair = index / shifts / letters;
    *fits = false;
    if (pair >= r->at.count)
        return false;
    const struct ls_reached *to = &r->at.at[pair];
    if (!allowed(s, to->driver, letter))
        return true;
    uint32_t *distance = distances(s, arena);
    size_t rounds = to->depth + distance[to->driver];
    uint32_t *node = LS_NEW(arena, uint32_t, rounds), *own = LS_NEW(arena, uint32_t, rounds);
    node[to->depth] = to->driver;
    own[to->depth] = letter;
    for (const struct ls_reached *p = to; p->depth > 0;) {
        const struct ls_reached *up = &r->at.at[p->from];
        node[up->depth] = up->driver;
        own[up->depth] = p->letter;
        p = up;
    }
    for (size_t i = to->depth + 1; i < rounds; i++) {
        const struct ls_driver_node *d = &s->driver.node[node[i - 1]];
        node[i] = d->next[0];
        for (size_t k = 1; k < d->nexts; k++)
            if (distance[d->next[k]] < distance[node[i]])
                node[i] = d->next[k];
        while (!allowed(s, node[i], own[i]))
            own[i]++;
    }
    uint32_t *all = LS_NEW(arena, uint32_t, ls_mul_size(rounds, replicas));
    for (size_t i = 0; i < rounds; i++)
        for (size_t x = 0; x < replicas; x++) {
            /* Coordinates beyond 0 behave alike: first another node, then another replica of the node. */
            uint32_t apart = x / size[1] ? LS_DIM_REPLICATE : x % size[1] ? LS_DIM_SHARD : 0;
            bool odd = (x / size[1] ? x / size[1] : x % size[1]) & 1;
            all[i * replicas + x] = apart && odd ? shifted(s, node[i], own[i], apart, shift) : own[i];
        }
    *out = (struct ls_assignment){ { size[0], size[1] }, rounds, node, all };
    *fits = ls_contract_allows(s, out);
    return true;
}
