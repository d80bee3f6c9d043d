/* Concrete jobs of a system: sizes and letters in, programs and groups out. */
#include "ir/system.h"

#include "base/hash.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static size_t replicas_of(const size_t size[LS_FREE_DIMS])
{
    return ls_mul_size(size[0], size[1]);
}

void ls_system_sizes(const struct ls_system *s, size_t dim, size_t *step, size_t *least)
{
    const struct ls_tables *t = s->replica->tables;
    *step = 1;
    *least = 2;
    for (size_t c = 0; c < t->comm.count; c++) {
        const struct ls_comm_info *info = &t->comm.at[c];
        if (!(info->free_dims >> dim & 1))
            continue;
        if (info->small > *step)
            *step = info->small;
        if (info->across > *step)
            *step = info->across;
        if (2 * (size_t)info->across > *least)
            *least = 2 * (size_t)info->across;
    }
    if (*least < *step)
        *least = *step;
}

/* A group is found by the coordinates outside the communicator's dimensions, the block along them, and the part. */
struct layout {
    size_t keep[LS_FREE_DIMS], span[LS_FREE_DIMS]; /* sizes of the dimensions outside and inside */
    size_t block, blocks;                          /* members along the spanned dimensions that form one group */
    size_t across;                                 /* > 0: blocks are of this size, and a group has one member of each */
};

static size_t group_along(const struct layout *l, size_t along)
{
    return l->across ? along % l->across : along / l->block;
}

static struct layout layout_of(const struct ls_comm_info *info, const size_t size[LS_FREE_DIMS])
{
    struct layout l = { .block = 1 };
    for (size_t d = 0; d < LS_FREE_DIMS; d++) {
        bool inside = info->free_dims >> d & 1;
        l.keep[d] = inside ? 1 : size[d];
        l.span[d] = inside ? size[d] : 1;
        l.block *= l.span[d];
    }
    size_t all = l.block;
    if (info->small && info->small < all)
        l.block = info->small;
    l.blocks = (all + l.block - 1) / l.block;
    if (info->across)
        l.across = l.blocks = info->across < all ? info->across : all;
    return l;
}

/* Dense numbers for the parts that occur, by first occurrence. */
static size_t parts_of(const uint32_t *part, size_t roles, uint32_t *dense)
{
    size_t parts = 0;
    for (size_t y = 0; y < roles; y++) {
        dense[y] = LS_NO_ID;
        if (part[y] == LS_NO_ID)
            continue;
        for (size_t z = 0; z < y && dense[y] == LS_NO_ID; z++)
            if (part[z] == part[y])
                dense[y] = dense[z];
        if (dense[y] == LS_NO_ID)
            dense[y] = (uint32_t)parts++;
    }
    return parts;
}

/* Roles in member order. */
static void order_roles(const uint32_t *order, size_t roles, uint32_t *sorted)
{
    for (size_t y = 0; y < roles; y++) {
        size_t at = y;
        if (order)
            for (; at > 0 && order[sorted[at - 1]] > order[y]; at--)
                sorted[at] = sorted[at - 1];
        sorted[at] = (uint32_t)y;
    }
}

void ls_system_groups(const struct ls_system *s, uint32_t comm, const size_t size[LS_FREE_DIMS], struct ls_arena *arena,
                      struct ls_groups *out)
{
    const struct ls_comm_info *info = &s->replica->tables->comm.at[comm];
    size_t roles = s->replica->roles, replicas = replicas_of(size), ranks = ls_mul_size(replicas, roles);
    struct layout l = layout_of(info, size);
    uint32_t *dense = LS_NEW(arena, uint32_t, roles), *sorted = LS_NEW(arena, uint32_t, roles);
    size_t parts = parts_of(s->comm[comm].part, roles, dense);
    order_roles(s->comm[comm].order, roles, sorted);
    size_t cells = l.keep[0] * l.keep[1] * l.blocks * parts;
    uint32_t *name = LS_NEW(arena, uint32_t, cells + 1); /* cell -> group + 1, by lowest rank */
    out->group = LS_NEW(arena, uint32_t, ranks);
    out->member = LS_NEW(arena, uint32_t, ranks);
    out->groups = 0;
    for (size_t x = 0; x < replicas; x++) {
        size_t at[LS_FREE_DIMS] = { x / size[1], x % size[1] }, keep = 0, along = 0;
        for (size_t d = 0; d < LS_FREE_DIMS; d++) {
            keep = keep * l.keep[d] + (l.keep[d] > 1 ? at[d] : 0);
            along = along * l.span[d] + (l.span[d] > 1 ? at[d] : 0);
        }
        for (size_t y = 0; y < roles; y++) {
            size_t rank = x * roles + y;
            out->group[rank] = out->member[rank] = LS_NO_ID;
            if (dense[y] == LS_NO_ID)
                continue;
            size_t cell = (keep * l.blocks + group_along(&l, along)) * parts + dense[y];
            if (!name[cell])
                name[cell] = (uint32_t)++out->groups;
            out->group[rank] = name[cell] - 1;
        }
    }
    out->first = LS_NEW(arena, uint32_t, out->groups + 1);
    for (size_t r = 0; r < ranks; r++)
        if (out->group[r] != LS_NO_ID)
            out->first[out->group[r] + 1]++;
    for (size_t g = 0; g < out->groups; g++)
        out->first[g + 1] += out->first[g];
    out->rank = LS_NEW(arena, uint32_t, out->first[out->groups]);
    uint32_t *filled = LS_NEW(arena, uint32_t, out->groups + 1);
    for (size_t x = 0; x < replicas; x++)
        for (size_t i = 0; i < roles; i++) {
            size_t rank = x * roles + sorted[i];
            uint32_t g = out->group[rank];
            if (g == LS_NO_ID)
                continue;
            out->member[rank] = filled[g]++;
            out->rank[out->first[g] + out->member[rank]] = (uint32_t)rank;
        }
}

/* Steps already taken in this round: many replicas share state and letter. */
struct step_memo { uint64_t key; bool used; struct ls_step step; };

static enum ls_code memo_step(struct ls_transducer *t, struct step_memo *memo, size_t room, uint32_t state, uint32_t round,
                              uint32_t letter, struct ls_step *out, struct ls_error *err)
{
    uint64_t key = (uint64_t)state << 32 | letter;
    struct step_memo *m = &memo[ls_hash_mix(round, key) & (room - 1)];
    if (!m->used || m->key != key) {
        enum ls_code rc = t->step(t, state, round, letter, &m->step, err);
        m->used = rc == LS_OK;
        m->key = key;
        if (rc != LS_OK)
            return rc;
    }
    *out = m->step;
    return LS_OK;
}

enum ls_code ls_system_job(const struct ls_system *s, const struct ls_assignment *a, struct ls_arena *arena, struct ls_job *out,
                           struct ls_error *err)
{
    enum { MEMO_ROOM = 256 };
    struct ls_transducer *t = s->replica;
    size_t roles = t->roles, replicas = replicas_of(a->size), ranks = ls_mul_size(replicas, roles);
    assert(ranks < LS_NO_ID);
    const struct ls_segment **segment = LS_NEW(arena, const struct ls_segment *, ls_mul_size(ranks, a->rounds));
    uint32_t *state = LS_NEW(arena, uint32_t, replicas);
    for (size_t x = 0; x < replicas; x++)
        state[x] = t->start;
    for (size_t i = 0; i < a->rounds; i++) {
        struct step_memo memo[MEMO_ROOM] = { 0 };
        assert(a->node[i] < s->driver.nodes);
        uint32_t round = s->driver.node[a->node[i]].round;
        for (size_t x = 0; x < replicas; x++) {
            struct ls_step step = { 0 };
            enum ls_code rc = memo_step(t, memo, MEMO_ROOM, state[x], round, a->letter[i * replicas + x], &step, err);
            if (rc != LS_OK)
                return rc;
            for (size_t y = 0; y < roles; y++)
                segment[(x * roles + y) * a->rounds + i] = step.role[y];
            state[x] = step.next;
        }
    }
    *out = (struct ls_job){ .tables = t->tables, .ranks = ranks };
    out->rank = LS_NEW(arena, struct ls_rank_program, ranks);
    for (size_t r = 0; r < ranks; r++)
        out->rank[r] = (struct ls_rank_program){ segment + r * a->rounds, a->rounds };
    size_t comms = t->tables->comm.count;
    out->comm = LS_NEW(arena, struct ls_groups, comms);
    for (size_t c = 0; c < comms; c++)
        ls_system_groups(s, (uint32_t)c, a->size, arena, &out->comm[c]);
    return LS_OK;
}
