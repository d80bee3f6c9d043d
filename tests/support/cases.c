#include "cases.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

void case_open(struct ls_case *c, uint32_t dims, size_t states, size_t rounds, size_t letters, size_t roles)
{
    memset(c, 0, sizeof *c);
    ls_arena_init(&c->arena, 0);
    ls_tables_init(&c->tables, &c->arena);
    c->t = LS_NEW(&c->arena, struct ls_table_transducer, 1);
    ls_table_transducer_init(c->t, &c->tables, states, rounds, letters, roles, &c->arena);
    uint32_t item = ls_name_id(c->tables.names, "p");
    (void)ls_tables_payload(&c->tables, "p", &item, 1, 8);
    c->system = (struct ls_system){ .replica = &c->t->base, .free_dims = dims, .level = 2, .comm = c->comm };
    for (size_t d = 0; d < LS_FREE_DIMS; d++)
        c->system.size[d] = dims >> d & 1 ? 0 : 1;
    uint32_t *one = LS_NEW(&c->arena, uint32_t, letters);
    c->system.contract = (struct ls_contract){ .levels = 2, .dims = { 0, dims }, .class_of = { one, NULL }, .name = "any" };
    case_driver(c, "0*:");
}

void case_close(struct ls_case *c)
{
    ls_tables_release(&c->tables);
    ls_arena_release(&c->arena);
}

void case_comm(struct ls_case *c, char name, uint32_t spans, const char *parts)
{
    char text[2] = { name, 0 };
    uint32_t id = ls_tables_comm(&c->tables, text), *part = LS_NEW(&c->arena, uint32_t, c->t->base.roles);
    assert(id < sizeof c->comm / sizeof *c->comm && strlen(parts) == c->t->base.roles);
    for (size_t y = 0; y < c->t->base.roles; y++)
        part[y] = (uint32_t)(parts[y] - '0');
    c->tables.comm.at[id].free_dims = spans;
    c->comm[id].part = part;
    (void)ls_tables_stream(&c->tables, text);
}

static const struct ls_segment *segment(struct ls_case *c, const char *text)
{
    ls_op_vec ops = { 0 };
    uint32_t wait = LS_NO_ID;
    for (const char *p = text; *p; p++) {
        if (*p == ' ')
            continue;
        assert(*p >= 'A' && *p <= 'Z');
        char name[2] = { *p, 0 };
        struct ls_op op = ls_op_make(LS_OP_ALL_REDUCE);
        op.comm = (uint16_t)ls_tables_comm(&c->tables, name);
        op.stream = (uint8_t)ls_tables_stream(&c->tables, name);
        op.count = 8;
        op.dtype = LS_DTYPE_F32;
        op.reduce = LS_REDUCE_SUM;
        op.payload = 0;
        if (wait != LS_NO_ID) {
            struct ls_op w = ls_op_make(LS_OP_WAIT);
            w.event = wait;
            w.stream = op.stream;
            ls_push(&ops, w);
            wait = LS_NO_ID;
        }
        op.blocking = p[1] == ';';
        ls_push(&ops, op);
        if (p[1] == '>') {
            struct ls_op r = ls_op_make(LS_OP_RECORD);
            r.event = wait = ls_tables_event(&c->tables, name);
            r.stream = op.stream;
            ls_push(&ops, r);
        }
        p += p[1] == '>' || p[1] == ';';
    }
    struct ls_segment *s = LS_NEW(&c->arena, struct ls_segment, 1);
    *s = (struct ls_segment){ ls_arena_copy(&c->arena, ops.at, ops.count * sizeof *ops.at), ops.count, 0 };
    s->hash = ls_segment_hash(s->op, s->count);
    ls_vec_release(&ops);
    return s;
}

void case_step(struct ls_case *c, size_t state, size_t round, size_t letter, uint32_t next, const char *role0, const char *role1)
{
    *ls_table_segment(c->t, state, round, letter, 0) = segment(c, role0);
    if (c->t->base.roles > 1)
        *ls_table_segment(c->t, state, round, letter, 1) = segment(c, role1);
    *ls_table_next(c->t, state, round, letter) = next;
}

void case_driver(struct ls_case *c, const char *nodes)
{
    struct ls_driver *d = &c->system.driver;
    *d = (struct ls_driver){ .node = LS_NEW(&c->arena, struct ls_driver_node, 8) };
    for (const char *p = nodes; *p;) {
        struct ls_driver_node *n = &d->node[d->nodes++];
        *n = (struct ls_driver_node){ .round = (uint32_t)(*p++ - '0'), .name = "round", .next = LS_NEW(&c->arena, uint32_t, 4) };
        if (*p == '*') {
            n->may_stop = true;
            p++;
        }
        assert(*p == ':');
        for (p++; *p && *p != ' '; p++)
            if (*p != ',')
                n->next[n->nexts++] = (uint32_t)(*p - '0');
        while (*p == ' ')
            p++;
    }
}

void case_uniform(struct ls_case *c)
{
    c->system.contract.class_of[0] = NULL;
    c->system.contract.name = "rank_uniform";
}

void case_node_uniform(struct ls_case *c)
{
    struct ls_contract *k = &c->system.contract;
    k->levels = 3;
    k->dims[1] = LS_DIM_REPLICATE;
    k->dims[2] = c->system.free_dims;
    k->class_of[1] = k->class_of[2] = NULL;
    k->name = "node_uniform";
}
