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

bool ls_unfold(const struct ls_system *s, const size_t size[LS_FREE_DIMS], size_t letters_max, struct ls_arena *arena,
               struct ls_unfolded *out)
{
    const uint32_t *letter = NULL;
    size_t letters = 0, replicas = size[0] * size[1];
    if (!list_tuples(s, size, letters_max, arena, &letter, &letters))
        return false;
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
    struct ls_comm_roles *comm = LS_NEW(arena, struct ls_comm_roles, r->tables->comm.count);
    for (uint32_t c = 0; c < r->tables->comm.count; c++) {
        struct ls_groups groups = { 0 };
        ls_system_groups(s, c, size, arena, &groups);
        comm[c] = (struct ls_comm_roles){ groups.group, groups.member };
        u->tables.comm.at[c].free_dims = u->tables.comm.at[c].small = 0;
    }
    *out = (struct ls_unfolded){ .system = *s, .replicas = replicas, .letter = letter };
    out->system.replica = &u->base;
    out->system.comm = comm;
    out->system.free_dims = 0;
    out->system.size[0] = out->system.size[1] = 1;
    out->system.contract = (struct ls_contract){ .levels = 1, .name = s->contract.name, .at = s->contract.at };
    copy_driver(s, size, letter, letters, arena, &out->system.driver);
    return true;
}

void ls_unfold_close(struct ls_unfolded *u)
{
    ls_intern_release(&((struct unfolded_transducer *)u->system.replica)->state);
}

void ls_unfold_assignment(const struct ls_unfolded *u, const size_t size[LS_FREE_DIMS], const struct ls_assignment *a,
                          struct ls_arena *arena, struct ls_assignment *out)
{
    assert(u->replicas == size[0] * size[1] && a->size[0] * a->size[1] == 1);
    uint32_t *letter = LS_NEW(arena, uint32_t, ls_mul_size(a->rounds, u->replicas));
    for (size_t r = 0; r < a->rounds; r++)
        memcpy(letter + r * u->replicas, u->letter + a->letter[r] * u->replicas, u->replicas * sizeof *letter);
    *out = (struct ls_assignment){ { size[0], size[1] }, a->rounds, a->node, letter };
}
