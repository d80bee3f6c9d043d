#include "certificate_runs.h"

#include "brute.h"
#include "certificate_valid.h"

#include <stdio.h>

struct rebuilt {
    struct ls_transducer base; /* first */
    const struct ls_certificate *c;
    const struct ls_segment **segment; /* [programs] */
    const struct ls_segment ***role;   /* [steps] */
};

static enum ls_code rebuilt_step(struct ls_transducer *self, uint32_t state, uint32_t round, uint32_t letter, struct ls_step *out,
                                 struct ls_error *err)
{
    struct rebuilt *b = (struct rebuilt *)self;
    const struct ls_cert_step *s = certificate_step(b->c, state, round, letter);
    if (!s)
        return ls_fail(err, LS_EINPUT, LS_NOWHERE, "no such step");
    *out = (struct ls_step){ b->role[s - b->c->step], s->next };
    return LS_OK;
}

static const char *rebuilt_letter(const struct ls_transducer *self, uint32_t letter)
{
    (void)self;
    (void)letter;
    return "letter";
}

/* Collectives with equal signatures become all_reduces of one payload. False: some round allows no letter at all. */
static bool rebuild(const struct ls_certificate *c, struct ls_arena *arena, struct ls_tables *tables, struct ls_system *out)
{
    struct rebuilt *b = LS_NEW(arena, struct rebuilt, 1);
    struct ls_comm_roles *comm = LS_NEW(arena, struct ls_comm_roles, c->comms + 1);
    char name[32];
    *b = (struct rebuilt){ .c = c, .segment = LS_NEW(arena, const struct ls_segment *, c->programs + 1),
                           .role = LS_NEW(arena, const struct ls_segment **, c->steps + 1) };
    b->base = (struct ls_transducer){ tables, c->roles, c->letters, c->start, rebuilt_step, rebuilt_letter, 10000 };
    for (size_t i = 0; i < c->comms; i++) {
        snprintf(name, sizeof name, "c%zu", i);
        uint32_t id = ls_tables_comm(tables, name);
        tables->comm.at[id].free_dims = c->comm[i].dims & c->dims;
        tables->comm.at[id].parent = LS_NO_ID;
        comm[i].part = c->comm[i].part;
    }
    for (size_t i = 0; i < c->sigs; i++) {
        snprintf(name, sizeof name, "s%zu", i);
        (void)ls_tables_payload(tables, name, NULL, 0, 1);
    }
    for (size_t i = 0; i < c->programs; i++) {
        struct ls_op *op = LS_NEW(arena, struct ls_op, c->program[i].ops + 1);
        for (size_t k = 0; k < c->program[i].ops; k++) {
            static const enum ls_op_kind kinds[] = { LS_OP_ALL_REDUCE, LS_OP_SEND, LS_OP_RECV, LS_OP_COMPUTE, LS_OP_RECORD, LS_OP_WAIT,
                                                     LS_OP_HOST_WAIT };
            const struct ls_cert_op *o = &c->program[i].op[k];
            op[k] = ls_op_make(kinds[o->kind]);
            op[k].stream = (uint8_t)(o->stream == LS_NO_ID ? 0 : o->stream);
            op[k].blocking = o->blocking;
            op[k].fused = o->fused;
            if (o->kind <= LS_CERT_RECV) {
                const uint32_t *part = c->comm[o->object].part;
                op[k].comm = (uint16_t)o->object;
                op[k].payload = o->sig;
                op[k].count = 1;
                if (o->kind != LS_CERT_COLLECTIVE) /* a role, as its place in its group */
                    op[k].peer = 0;
                for (uint32_t y = 0; o->kind != LS_CERT_COLLECTIVE && y < o->peer; y++)
                    op[k].peer += part[y] == part[o->peer];
            } else {
                op[k].event = o->object;
            }
        }
        struct ls_segment *s = LS_NEW(arena, struct ls_segment, 1);
        *s = (struct ls_segment){ op, c->program[i].ops, ls_segment_hash(op, c->program[i].ops) };
        b->segment[i] = s;
    }
    for (size_t i = 0; i < c->steps; i++) {
        b->role[i] = LS_NEW(arena, const struct ls_segment *, c->roles);
        for (size_t y = 0; y < c->roles; y++)
            b->role[i][y] = b->segment[c->step[i].program[y]];
    }
    struct ls_driver_node *node = LS_NEW(arena, struct ls_driver_node, c->nodes);
    for (size_t i = 0; i < c->nodes; i++) {
        node[i] = (struct ls_driver_node){ c->node[i].round, "round", 0, true, c->node[i].next, c->node[i].nexts,
                                           LS_NEW(arena, uint64_t, c->letters / 64 + 1) };
        for (size_t k = 0; k < c->node[i].letters; k++)
            node[i].allowed[c->node[i].letter[k] / 64] |= UINT64_C(1) << c->node[i].letter[k] % 64;
        if (!c->node[i].letters)
            return false;
    }
    *out = (struct ls_system){ .replica = &b->base, .driver = { node, c->nodes }, .comm = comm, .free_dims = c->dims,
                               .level = (int)c->level };
    out->contract.levels = c->levels;
    out->contract.name = "as certified";
    for (size_t d = 0; d < LS_FREE_DIMS; d++)
        out->size[d] = c->dims >> d & 1 ? 0 : 1;
    for (size_t i = 0; i < c->levels; i++) {
        out->contract.dims[i] = c->tier[i].dims;
        out->contract.class_of[i] = c->tier[i].class_of;
    }
    return true;
}

bool certificate_fails(const struct ls_certificate *c, uint64_t seed, size_t *runs)
{
    struct ls_arena arena;
    struct ls_tables tables;
    struct ls_system s;
    struct ls_brute found = { 0 };
    ls_arena_init(&arena, 0);
    ls_tables_init(&tables, &arena);
    if (rebuild(c, &arena, &tables, &s)) {
        struct ls_brute_options o = { .replicas_max = 4, .rounds_max = 3, .runs_max = 20, .total_max = 60, .seed = seed };
        ls_brute_force(&s, &o, &arena, &found);
    }
    *runs += found.runs;
    ls_tables_release(&tables);
    ls_arena_release(&arena);
    return found.failed;
}
