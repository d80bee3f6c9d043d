#include "check/merged.h"

#include "check/intern.h"

#include <assert.h>
#include <string.h>

struct merged_transducer {
    struct ls_transducer base; /* first: step() gets this address */
    const struct ls_system *system;
    struct ls_tables tables;   /* the original's, and one communicator more */
    size_t comms;              /* of the original; the new one's id */
    uint32_t *symbol;          /* [comms]: tells what was on which communicator; LS_NO_ID: it does not span replicas */
    struct ls_intern segments, roles; /* addresses of the original's */
    LS_VEC(const struct ls_segment *) segment;
    LS_VEC(const struct ls_segment *const *) role;
    struct ls_arena *arena;
};

/* The original may have added to its tables, and moved them. */
static void refresh(struct merged_transducer *m)
{
    struct ls_tables now = *m->system->replica->tables;
    assert(now.comm.count == m->comms);
    now.comm = m->tables.comm;
    m->tables = now;
}

static uint32_t number(struct ls_intern *known, const void *address)
{
    const uint64_t a = (uint64_t)(uintptr_t)address;
    const uint32_t word[2] = { (uint32_t)a, (uint32_t)(a >> 32) };
    return ls_intern_put(known, word, 2);
}

/* NULL: it holds something that cannot be merged. */
static const struct ls_segment *merge(struct merged_transducer *m, const struct ls_segment *s)
{
    uint32_t id = number(&m->segments, s);
    if (id < m->segment.count)
        return m->segment.at[id];
    struct ls_op *op = LS_NEW(m->arena, struct ls_op, s->count + 1);
    bool fits = true;
    for (size_t i = 0; i < s->count; i++) {
        op[i] = s->op[i];
        if (!ls_op_uses_comm(&op[i]) || m->symbol[op[i].comm] == LS_NO_ID)
            continue;
        fits = fits && ls_op_is_collective(&op[i]) && op[i].kind != LS_OP_COMM_INIT && !op[i].fused && op[i].counts == LS_NO_ID &&
               op[i].symbol == LS_NO_ID;
        op[i].symbol = m->symbol[op[i].comm];
        op[i].comm = (uint16_t)m->comms;
    }
    struct ls_segment *made = LS_NEW(m->arena, struct ls_segment, 1);
    *made = (struct ls_segment){ op, s->count, ls_segment_hash(op, s->count) };
    ls_push(&m->segment, fits ? made : NULL);
    return m->segment.at[id];
}

static enum ls_code step(struct ls_transducer *self, uint32_t state, uint32_t round, uint32_t letter, struct ls_step *out,
                         struct ls_error *err)
{
    struct merged_transducer *m = (struct merged_transducer *)self;
    struct ls_transducer *replica = m->system->replica;
    struct ls_step plain = { 0 };
    enum ls_code rc = replica->step(replica, state, round, letter, &plain, err);
    if (rc != LS_OK)
        return rc;
    refresh(m);
    uint32_t id = number(&m->roles, plain.role);
    if (id == m->role.count) {
        const struct ls_segment **role = LS_NEW(m->arena, const struct ls_segment *, m->base.roles);
        bool fits = true;
        for (size_t y = 0; y < m->base.roles; y++)
            fits = (role[y] = merge(m, plain.role[y])) && fits;
        ls_push(&m->role, fits ? role : NULL);
    }
    if (!m->role.at[id])
        return LS_EUNDECIDED;
    *out = (struct ls_step){ m->role.at[id], plain.next };
    return LS_OK;
}

static const char *letter_name(const struct ls_transducer *self, uint32_t letter)
{
    const struct ls_transducer *replica = ((const struct merged_transducer *)self)->system->replica;
    return replica->letter_name(replica, letter);
}

void ls_merge(const struct ls_system *s, struct ls_arena *arena, struct ls_merged *out)
{
    struct merged_transducer *m = LS_NEW(arena, struct merged_transducer, 1);
    const struct ls_transducer *r = s->replica;
    const size_t comms = r->tables->comm.count;
    *m = (struct merged_transducer){ .system = s, .tables = *r->tables, .comms = comms, .arena = arena };
    m->symbol = LS_NEW(arena, uint32_t, comms + 1);
    struct ls_comm_info *info = LS_NEW(arena, struct ls_comm_info, comms + 1);
    struct ls_comm_roles *roles = LS_NEW(arena, struct ls_comm_roles, comms + 1);
    for (size_t c = 0; c < comms; c++) {
        info[c] = r->tables->comm.at[c];
        roles[c] = s->comm[c];
        const char *name = ls_arena_printf(arena, "on %s", ls_name_text(r->tables->names, info[c].name));
        m->symbol[c] = info[c].free_dims & s->free_dims ? ls_name_id(r->tables->names, name) : LS_NO_ID;
    }
    info[comms] = (struct ls_comm_info){ .name = ls_name_id(r->tables->names, "all that span replicas"), .free_dims = s->free_dims, .parent = LS_NO_ID };
    roles[comms] = (struct ls_comm_roles){ LS_NEW(arena, uint32_t, r->roles), NULL }; /* one part: every role is a member */
    m->tables.comm.at = info;
    m->tables.comm.count = comms + 1;
    m->base = (struct ls_transducer){ .tables = &m->tables, .roles = r->roles, .letters = r->letters, .start = r->start, .step = step,
                                      .letter_name = letter_name, .states_max = r->states_max };
    out->system = *s;
    out->system.replica = &m->base;
    out->system.comm = roles;
}

void ls_merged_close(struct ls_merged *x)
{
    struct merged_transducer *m = (struct merged_transducer *)x->system.replica;
    ls_intern_release(&m->segments);
    ls_intern_release(&m->roles);
    ls_vec_release(&m->segment);
    ls_vec_release(&m->role);
}
