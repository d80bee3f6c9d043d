#include "check/unfold.h"

#include "check/intern.h"
#include "check/witness.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

struct memo { uint32_t state, round, letter; bool used; struct ls_step step; };
struct unfolded_transducer {
    struct ls_transducer base; /* first: step() gets this address */
    const struct ls_system *system;
    struct ls_tables tables;   /* the original's, with communicators that span nothing */
    size_t replicas;
    const uint32_t *letter;
    struct ls_intern state;    /* tuples of states */
    struct memo *memo; size_t room;
    struct ls_arena *arena;
};

static void refresh(struct unfolded_transducer *u)
{
    struct ls_tables now = *u->system->replica->tables;
    assert(now.comm.count == u->tables.comm.count);
    now.comm.at = u->tables.comm.at;
    u->tables = now;
}

static enum ls_code step(struct ls_transducer *self, uint32_t state, uint32_t round, uint32_t letter, struct ls_step *out,
                         struct ls_error *err)
{
    struct unfolded_transducer *u = (struct unfolded_transducer *)self;
    struct ls_transducer *replica = u->system->replica;
    struct memo *m = &u->memo[((size_t)state * 0x9e3779b1u + (size_t)round * 0x85ebca6bu + letter) & (u->room - 1)];
    if (!m->used || m->state != state || m->round != round || m->letter != letter) {
        uint32_t *next = LS_NEW(u->arena, uint32_t, u->replicas);
        const struct ls_segment **role = LS_NEW(u->arena, const struct ls_segment *, u->base.roles);
        for (size_t x = 0; x < u->replicas; x++) {
            size_t n;
            struct ls_step one = { 0 };
            const uint32_t *from = ls_intern_at(&u->state, state, &n);
            enum ls_code rc = replica->step(replica, from[x], round, u->letter[letter * u->replicas + x], &one, err);
            if (rc != LS_OK)
                return rc;
            next[x] = one.next;
            refresh(u); /* the original may have added to its tables, and moved them */
            memcpy(role + x * replica->roles, one.role, replica->roles * sizeof *role);
        }
        *m = (struct memo){ state, round, letter, true, { role, ls_intern_put(&u->state, next, u->replicas) } };
    }
    *out = m->step;
    return LS_OK;
}

static const char *letter_name(const struct ls_transducer *self, uint32_t letter)
{
    (void)self;
    (void)letter;
    return "letters of all replicas";
}

/* Tuples in lexicographic order; false when there are too many. */
static bool list_tuples(const struct ls_system *s, const size_t size[LS_FREE_DIMS], size_t most, struct ls_arena *arena,
                        const uint32_t **out, size_t *count)
{
    size_t replicas = size[0] * size[1], letters = s->replica->letters;
    /* At most and at least are judged at the driver node, since a node may rule letters out. */
    struct ls_system plain = *s;
    plain.contract.extra = LS_CONTRACT_FREE;
    uint32_t node = 0, *now = LS_NEW(arena, uint32_t, replicas);
    ls_word_vec all = { 0 };
    double tuples = 1;
    for (size_t x = 0; x < replicas; x++)
        tuples *= (double)letters;
    if (tuples > 1e6)
        return false;
    *count = 0;
    for (bool more = true; more;) {
        struct ls_assignment a = { { size[0], size[1] }, 1, &node, now };
        if (ls_contract_allows(&plain, &a)) {
            for (size_t x = 0; x < replicas; x++)
                ls_push(&all, now[x]);
            if (++*count > most)
                break;
        }
        size_t x = replicas;
        while (x > 0 && ++now[x - 1] == letters)
            now[--x] = 0;
        more = x > 0;
    }
    *out = ls_arena_copy(arena, all.at, all.count * sizeof *all.at);
    ls_vec_release(&all);
    return *count <= most;
}

static void copy_driver(const struct ls_system *s, const size_t size[LS_FREE_DIMS], const uint32_t *letter, size_t letters,
                        struct ls_arena *arena, struct ls_driver *out)
{
    size_t replicas = size[0] * size[1];
    *out = (struct ls_driver){ ls_arena_copy(arena, s->driver.node, s->driver.nodes * sizeof *s->driver.node), s->driver.nodes };
    for (uint32_t n = 0; n < out->nodes; n++) {
        const uint64_t *old = s->driver.node[n].allowed;
        uint64_t *set = LS_NEW(arena, uint64_t, letters / 64 + 1);
        for (size_t i = 0; i < letters; i++) {
            struct ls_assignment a = { { size[0], size[1] }, 1, &n, letter + i * replicas };
            bool fine = ls_contract_allows(s, &a);
            for (size_t x = 0; x < replicas && fine && old; x++)
                fine = old[a.letter[x] / 64] >> a.letter[x] % 64 & 1;
            if (fine)
                set[i / 64] |= UINT64_C(1) << i % 64;
        }
        out->node[n].allowed = set;
    }
}

/* The transducer of `replicas` replicas that step together. */
static struct unfolded_transducer *open_transducer(const struct ls_system *s, size_t replicas, const uint32_t *letter, size_t letters,
                                                   struct ls_arena *arena)
{
    struct unfolded_transducer *u = LS_NEW(arena, struct unfolded_transducer, 1);
    const struct ls_transducer *r = s->replica;
    *u = (struct unfolded_transducer){ .system = s, .tables = *r->tables, .replicas = replicas, .letter = letter, .room = 1u << 12,
                                       .arena = arena };
    u->memo = LS_NEW(arena, struct memo, u->room);
    u->tables.comm.at = ls_arena_copy(arena, r->tables->comm.at, r->tables->comm.count * sizeof *r->tables->comm.at);
    uint32_t *start = LS_NEW(arena, uint32_t, replicas);
    for (size_t x = 0; x < replicas; x++)
        start[x] = r->start;
    u->base = (struct ls_transducer){ .tables = &u->tables, .roles = replicas * r->roles, .letters = letters, .step = step,
                                      .letter_name = letter_name, .states_max = r->states_max };
    u->base.start = ls_intern_put(&u->state, start, replicas);
    return u;
}

bool ls_unfold(const struct ls_system *s, const size_t size[LS_FREE_DIMS], size_t letters_max, struct ls_arena *arena,
               struct ls_unfolded *out)
{
    const uint32_t *letter = NULL;
    size_t letters = 0, replicas = size[0] * size[1];
    if (!list_tuples(s, size, letters_max, arena, &letter, &letters))
        return false;
    struct unfolded_transducer *u = open_transducer(s, replicas, letter, letters, arena);
    struct ls_comm_roles *comm = LS_NEW(arena, struct ls_comm_roles, u->tables.comm.count);
    for (uint32_t c = 0; c < u->tables.comm.count; c++) {
        struct ls_groups groups = { 0 };
        ls_system_groups(s, c, size, arena, &groups);
        comm[c] = (struct ls_comm_roles){ groups.group, groups.member };
        u->tables.comm.at[c].free_dims = u->tables.comm.at[c].small = u->tables.comm.at[c].across = 0;
    }
    *out = (struct ls_unfolded){ .system = *s, .replicas = replicas, .along = LS_FREE_DIMS, .letter = letter };
    out->system.replica = &u->base;
    out->system.comm = comm;
    out->system.free_dims = 0;
    out->system.size[0] = out->system.size[1] = 1;
    out->system.contract = (struct ls_contract){ .levels = 1, .name = s->contract.name, .at = s->contract.at };
    copy_driver(s, size, letter, letters, arena, &out->system.driver);
    return true;
}

/* Classes of tuples: the tuple of their members' classes. */
static const uint32_t *tuple_classes(const uint32_t *class_of, const uint32_t *letter, size_t letters, size_t k, struct ls_arena *arena)
{
    struct ls_intern ids = { 0 };
    uint32_t *out = LS_NEW(arena, uint32_t, letters), *tuple = LS_NEW(arena, uint32_t, k);
    for (size_t i = 0; i < letters; i++) {
        for (size_t x = 0; x < k; x++)
            tuple[x] = class_of ? class_of[letter[i * k + x]] : letter[i * k + x];
        out[i] = ls_intern_put(&ids, tuple, k);
    }
    ls_intern_release(&ids);
    return out;
}

bool ls_unfold_blocks(const struct ls_system *s, size_t d, size_t k, bool one, size_t letters_max, struct ls_arena *arena,
                      struct ls_unfolded *out)
{
    const uint32_t *letter = NULL;
    size_t letters = 0, block[LS_FREE_DIMS] = { 1, 1 }, roles = s->replica->roles;
    uint32_t dim = 1u << d;
    block[d] = k;
    if (s->contract.extra != LS_CONTRACT_FREE || !list_tuples(s, block, letters_max, arena, &letter, &letters))
        return false;
    for (uint32_t c = 0; c < s->replica->tables->comm.count; c++) {
        const struct ls_comm_info *info = &s->replica->tables->comm.at[c];
        if (info->small && (info->small != k || (info->free_dims & s->free_dims) != dim))
            return false;
        if (info->across && (info->across != k || !(info->free_dims & dim)))
            return false;
    }
    struct unfolded_transducer *u = open_transducer(s, k, letter, letters, arena);
    struct ls_comm_roles *comm = LS_NEW(arena, struct ls_comm_roles, u->tables.comm.count);
    for (uint32_t c = 0; c < u->tables.comm.count; c++) {
        struct ls_comm_info *info = &u->tables.comm.at[c];
        const uint32_t *old = s->comm[c].order;
        uint32_t *part = LS_NEW(arena, uint32_t, k * roles), *order = LS_NEW(arena, uint32_t, k * roles), most = 0, latest = 0;
        bool spans = (info->free_dims & dim) && !info->across;
        for (size_t y = 0; y < roles; y++) {
            most = s->comm[c].part[y] != LS_NO_ID && s->comm[c].part[y] > most ? s->comm[c].part[y] : most;
            latest = old && old[y] != LS_NO_ID && old[y] > latest ? old[y] : latest;
        }
        for (size_t x = 0; x < k; x++)
            for (size_t y = 0; y < roles; y++) {
                uint32_t p = s->comm[c].part[y];
                part[x * roles + y] = p == LS_NO_ID ? p : spans ? p : (uint32_t)x * (most + 1) + p;
                order[x * roles + y] = old && old[y] != LS_NO_ID ? (uint32_t)x * (latest + 1) + old[y] : 0;
            }
        comm[c] = (struct ls_comm_roles){ part, old ? order : NULL };
        if (info->small || one)
            info->free_dims &= ~dim;
        info->small = info->across = 0;
    }
    *out = (struct ls_unfolded){ .system = *s, .replicas = k, .along = d, .letter = letter };
    out->system.replica = &u->base;
    out->system.comm = comm;
    if (one)
        out->system.free_dims &= ~dim;
    out->system.size[d] = one ? 1 : s->size[d] / k;
    for (size_t i = 0; i < s->contract.levels; i++)
        out->system.contract.class_of[i] = tuple_classes(s->contract.class_of[i], letter, letters, k, arena);
    copy_driver(s, block, letter, letters, arena, &out->system.driver);
    return true;
}

void ls_unfold_close(struct ls_unfolded *u)
{
    ls_intern_release(&((struct unfolded_transducer *)u->system.replica)->state);
}

void ls_unfold_assignment(const struct ls_unfolded *u, const size_t size[LS_FREE_DIMS], const struct ls_assignment *a,
                          struct ls_arena *arena, struct ls_assignment *out)
{
    size_t whole[LS_FREE_DIMS] = { a->size[0], a->size[1] }, count = a->size[0] * a->size[1], k = u->replicas;
    if (u->along == LS_FREE_DIMS) {
        assert(k == size[0] * size[1] && count == 1);
        whole[0] = size[0];
        whole[1] = size[1];
    } else {
        whole[u->along] *= k;
    }
    uint32_t *letter = LS_NEW(arena, uint32_t, ls_mul_size(a->rounds, count * k));
    for (size_t r = 0; r < a->rounds; r++)
        for (size_t b = 0; b < count; b++)
            for (size_t x = 0; x < k; x++) {
                size_t at = x; /* the place of member x of block b in the whole mesh */
                if (u->along == 0)
                    at = (b / a->size[1] * k + x) * whole[1] + b % a->size[1];
                else if (u->along == 1)
                    at = b / a->size[1] * whole[1] + b % a->size[1] * k + x;
                letter[r * count * k + at] = u->letter[a->letter[r * count + b] * k + x];
            }
    *out = (struct ls_assignment){ { whole[0], whole[1] }, a->rounds, a->node, letter };
}
