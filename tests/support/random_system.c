#include "random_system.h"

#include "base/hash.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static enum ls_code table_step(struct ls_transducer *self, uint32_t state, uint32_t round, uint32_t letter, struct ls_step *out,
                               struct ls_error *err)
{
    struct ls_table_transducer *t = (struct ls_table_transducer *)self;
    (void)err;
    assert(state < t->states && round < t->rounds && letter < t->base.letters);
    *out = (struct ls_step){ ls_table_segment(t, state, round, letter, 0), *ls_table_next(t, state, round, letter) };
    return LS_OK;
}

static const char *table_letter_name(const struct ls_transducer *self, uint32_t letter)
{
    static const char *const name[] = { "letter 0", "letter 1", "letter 2", "letter 3" };
    (void)self;
    return name[letter % 4];
}

void ls_table_transducer_init(struct ls_table_transducer *t, const struct ls_tables *tables, size_t states, size_t rounds,
                              size_t letters, size_t roles, struct ls_arena *arena)
{
    *t = (struct ls_table_transducer){ .states = states, .rounds = rounds };
    t->base = (struct ls_transducer){ .tables = tables, .roles = roles, .letters = letters, .step = table_step,
                                      .letter_name = table_letter_name, .states_max = states };
    t->segment = LS_NEW(arena, const struct ls_segment *, states * rounds * letters * roles);
    t->next = LS_NEW(arena, uint32_t, states * rounds * letters);
}

const struct ls_segment **ls_table_segment(struct ls_table_transducer *t, size_t state, size_t round, size_t letter, size_t role)
{
    return &t->segment[((state * t->rounds + round) * t->base.letters + letter) * t->base.roles + role];
}

uint32_t *ls_table_next(struct ls_table_transducer *t, size_t state, size_t round, size_t letter)
{
    return &t->next[(state * t->rounds + round) * t->base.letters + letter];
}

/* One collective of a round, and when and how it is issued. */
enum { SYNC_NONE, SYNC_HOST, SYNC_OTHER, SYNC_BLOCK };
struct item {
    uint32_t comm, payload, stream, event;
    uint8_t kind, sync;
    uint32_t letters;  /* issued for these letters */
    uint8_t memory;    /* and: 0 always, 1 only if remembered, 2 only if not remembered */
    uint32_t late;     /* for these letters it is issued in the next round instead (round permitting) */
    uint8_t other;     /* SYNC_OTHER: the stream that waits */
};
enum { ITEMS_MAX = 5, ROUNDS_MAX = 3, LATE_MAX = 2 };
struct draw {
    struct ls_random_system *r;
    uint64_t s;
    size_t rounds, letters, roles, streams;
    struct item item[ROUNDS_MAX][ITEMS_MAX];
    size_t items[ROUNDS_MAX];
    uint32_t swap[ROUNDS_MAX];     /* letters for which the first two items change places */
    uint32_t swap_roles;           /* roles that swap the other way round */
    uint32_t remember, forget;     /* letters that set and clear the memory */
    bool may_delay[ROUNDS_MAX];    /* items of this round may be late */
    uint8_t delay_to[ROUNDS_MAX];
};

static bool chance(struct draw *d, unsigned percent)
{
    return ls_random_below(&d->s, 100) < percent;
}

static uint32_t some_letters(struct draw *d)
{
    uint32_t all = (1u << d->letters) - 1;
    return (uint32_t)(1 + ls_random_below(&d->s, all));
}

typedef LS_VEC(struct ls_op) op_list;

static void emit(const struct draw *d, op_list *out, const struct item *x)
{
    (void)d;
    struct ls_op op = ls_op_make((enum ls_op_kind)x->kind);
    op.comm = (uint16_t)x->comm;
    op.payload = x->payload;
    op.stream = (uint8_t)x->stream;
    op.count = 8;
    op.dtype = LS_DTYPE_F32;
    op.reduce = x->kind == LS_OP_ALL_GATHER ? LS_REDUCE_NONE : LS_REDUCE_SUM;
    op.blocking = x->sync == SYNC_BLOCK;
    ls_push(out, op);
    if (x->sync == SYNC_NONE || x->sync == SYNC_BLOCK)
        return;
    struct ls_op record = ls_op_make(LS_OP_RECORD), wait = ls_op_make(x->sync == SYNC_HOST ? LS_OP_HOST_WAIT : LS_OP_WAIT);
    record.stream = (uint8_t)x->stream;
    record.event = wait.event = x->event;
    wait.stream = x->other;
    ls_push(out, record);
    ls_push(out, wait);
}

/* State: memory bit + 2 * (owed item + 1, of the round before). */
static void build_segment(const struct draw *d, size_t state, size_t round, size_t letter, size_t role, op_list *out)
{
    bool memory = state & 1;
    size_t owed = state / 2;
    const struct item *order[ITEMS_MAX];
    size_t n = 0;
    if (owed) {
        size_t from = (owed - 1) / ITEMS_MAX, which = (owed - 1) % ITEMS_MAX;
        emit(d, out, &d->item[from][which]);
    }
    for (size_t i = 0; i < d->items[round]; i++) {
        const struct item *x = &d->item[round][i];
        if (!(x->letters >> letter & 1) || (x->memory == 1 && !memory) || (x->memory == 2 && memory))
            continue;
        if (d->may_delay[round] && i + 1 == d->items[round] && (x->late >> letter & 1))
            continue;
        order[n++] = x;
    }
    bool swap = d->swap[round] >> letter & 1;
    if (d->swap_roles >> role & 1)
        swap = !swap && d->swap[round];
    if (swap && n >= 2) {
        const struct item *x = order[0];
        order[0] = order[1];
        order[1] = x;
    }
    for (size_t i = 0; i < n; i++)
        emit(d, out, order[i]);
}

static size_t next_state(const struct draw *d, size_t state, size_t round, size_t letter)
{
    bool memory = state & 1;
    if (d->remember >> letter & 1)
        memory = true;
    if (d->forget >> letter & 1)
        memory = false;
    size_t owed = 0;
    if (d->items[round]) {
        size_t i = d->items[round] - 1;
        const struct item *x = &d->item[round][i];
        bool present = (x->letters >> letter & 1) && !(x->memory == 1 && !(state & 1)) && !(x->memory == 2 && (state & 1));
        if (d->may_delay[round] && present && (x->late >> letter & 1))
            owed = round * ITEMS_MAX + i + 1;
    }
    return (size_t)memory + 2 * owed;
}

static void add_node(struct ls_random_system *r, uint32_t round, bool may_stop, uint32_t next0, uint32_t next1)
{
    struct ls_driver_node *n = &r->system.driver.node[r->system.driver.nodes++];
    *n = (struct ls_driver_node){ .round = round, .name = "round", .may_stop = may_stop };
    n->next = LS_NEW(&r->arena, uint32_t, 2);
    if (next0 != LS_NO_ID)
        n->next[n->nexts++] = next0;
    if (next1 != LS_NO_ID)
        n->next[n->nexts++] = next1;
}

/* Five drivers: one round; two kinds of round in a row; any number of one kind; many of one kind, then a step end, repeated;
 * the same with an optional third kind. Late ops are allowed where another round follows. */
static void draw_driver(struct draw *d)
{
    struct ls_random_system *r = d->r;
    r->driver = (unsigned)ls_random_below(&d->s, 5);
    r->system.driver.node = LS_NEW(&r->arena, struct ls_driver_node, 4);
    switch (r->driver) {
    case 0:
        d->rounds = 1;
        add_node(r, 0, true, LS_NO_ID, LS_NO_ID);
        break;
    case 1:
        d->rounds = 2;
        add_node(r, 0, true, 1, LS_NO_ID);
        add_node(r, 1, false, LS_NO_ID, LS_NO_ID);
        break;
    case 2:
        d->rounds = 1;
        add_node(r, 0, true, 0, LS_NO_ID);
        break;
    case 3:
        d->rounds = 2;
        add_node(r, 0, true, 0, 1);
        r->system.driver.node[0].may_stop = false;
        add_node(r, 1, false, 2, LS_NO_ID);
        add_node(r, 0, true, 0, 1);
        r->system.driver.node[0].next[0] = 0;
        break;
    default:
        d->rounds = 3;
        add_node(r, 0, true, 1, 2);
        add_node(r, 1, false, 2, LS_NO_ID);
        add_node(r, 2, false, 0, LS_NO_ID);
        break;
    }
}

static void draw_contract(struct draw *d)
{
    struct ls_random_system *r = d->r;
    struct ls_contract *c = &r->system.contract;
    uint32_t dims = r->system.free_dims;
    r->contract = (enum ls_random_contract)ls_random_below(&d->s, dims == 3 ? 5 : 3);
    uint32_t *one = LS_NEW(&r->arena, uint32_t, d->letters), *two = LS_NEW(&r->arena, uint32_t, d->letters);
    for (size_t z = 0; z < d->letters; z++)
        two[z] = z > 0;
    *c = (struct ls_contract){ .levels = 2, .dims = { 0, dims }, .class_of = { one, NULL }, .name = "any" };
    switch (r->contract) {
    case LS_RANDOM_ANY:
    case LS_RANDOM_CONTRACTS:
        break;
    case LS_RANDOM_UNIFORM:
        c->class_of[0] = NULL;
        c->name = "rank_uniform";
        break;
    case LS_RANDOM_MODALITY:
        c->class_of[0] = two;
        c->name = "modality";
        break;
    case LS_RANDOM_NODE:
    case LS_RANDOM_NODE_REPLICA:
        c->levels = 3;
        c->dims[1] = LS_DIM_REPLICATE;
        c->dims[2] = dims;
        c->class_of[1] = r->contract == LS_RANDOM_NODE ? NULL : two;
        c->class_of[2] = NULL;
        c->name = r->contract == LS_RANDOM_NODE ? "node" : "node and replica";
        break;
    }
}

static void draw_comms(struct draw *d, uint32_t *outer, uint32_t *inner)
{
    struct ls_random_system *r = d->r;
    static const char *const outer_name[] = { "A", "B", "C" }, *const inner_name[] = { "I", "J" };
    *outer = (uint32_t)(1 + ls_random_below(&d->s, 3));
    *inner = d->roles > 1 ? (uint32_t)ls_random_below(&d->s, 3) : (uint32_t)ls_random_below(&d->s, 2);
    struct ls_comm_roles *roles = LS_NEW(&r->arena, struct ls_comm_roles, *outer + *inner);
    for (uint32_t c = 0; c < *outer + *inner; c++) {
        uint32_t id = ls_tables_comm(&r->tables, c < *outer ? outer_name[c] : inner_name[c - *outer]);
        uint32_t spans = 0;
        if (c < *outer)
            do
                spans = (uint32_t)(1 + ls_random_below(&d->s, 3)) & r->system.free_dims;
            while (!spans);
        r->tables.comm.at[id].free_dims = spans;
        uint32_t *part = LS_NEW(&r->arena, uint32_t, d->roles);
        bool flat = c >= *outer || chance(d, 50);
        for (uint32_t y = 0; y < d->roles; y++)
            part[y] = flat ? 0 : y;
        roles[id].part = part;
    }
    r->system.comm = roles;
}

static void mutate(uint64_t *random, size_t payloads, op_list *ops)
{
    if (!ops->count)
        return;
    size_t i = ls_random_below(random, ops->count), j = ls_random_below(random, ops->count);
    struct ls_op x = ops->at[i];
    switch (ls_random_below(random, 4)) {
    case 0:
        ops->at[i] = ops->at[j];
        ops->at[j] = x;
        break;
    case 1:
        memmove(&ops->at[i], &ops->at[i + 1], (ops->count - i - 1) * sizeof x);
        ops->count--;
        break;
    case 2:
        ls_push(ops, x);
        break;
    default:
        if (ls_op_uses_comm(&x))
            ops->at[i].payload = (uint32_t)ls_random_below(random, payloads);
        break;
    }
}

void ls_random_system_open(struct ls_random_system *r, uint64_t seed)
{
    *r = (struct ls_random_system){ 0 };
    ls_arena_init(&r->arena, 0);
    ls_tables_init(&r->tables, &r->arena);
    struct draw d = { .r = r, .s = seed * 0x9e3779b97f4a7c15u + 17 };
    uint32_t outer, inner;
    r->system.free_dims = chance(&d, 50) ? 3 : chance(&d, 80) ? LS_DIM_SHARD : LS_DIM_REPLICATE;
    for (size_t k = 0; k < LS_FREE_DIMS; k++)
        r->system.size[k] = r->system.free_dims >> k & 1 ? 0 : 1;
    d.letters = chance(&d, 70) ? 2 : 3;
    d.roles = chance(&d, 35) ? 2 : 1;
    d.streams = 1 + ls_random_below(&d.s, 3);
    draw_driver(&d);
    draw_contract(&d);
    draw_comms(&d, &outer, &inner);
    uint32_t payloads = 3;
    for (uint32_t i = 0; i < payloads; i++) {
        const char *name = i == 0 ? "p" : i == 1 ? "q" : "r";
        uint32_t id = ls_name_id(r->tables.names, name);
        (void)ls_tables_payload(&r->tables, name, &id, 1, 8);
    }
    for (size_t k = 0; k < d.streams; k++)
        (void)ls_tables_stream(&r->tables, k == 0 ? "s0" : k == 1 ? "s1" : "s2");
    uint32_t all = (1u << d.letters) - 1;
    bool memory = chance(&d, 40), late = chance(&d, 25);
    d.remember = memory ? some_letters(&d) : 0;
    d.forget = memory && chance(&d, 50) ? all & ~d.remember : 0;
    unsigned wild = (unsigned)ls_random_below(&d.s, 3) * 10; /* how often an item depends on something */
    char events = 'a';
    for (size_t k = 0; k < d.rounds; k++) {
        d.items[k] = 1 + ls_random_below(&d.s, ITEMS_MAX - 1);
        for (size_t i = 0; i < d.items[k]; i++) {
            struct item *x = &d.item[k][i];
            bool in = inner && chance(&d, 25);
            static const uint8_t kinds[] = { LS_OP_ALL_GATHER, LS_OP_REDUCE_SCATTER, LS_OP_ALL_REDUCE };
            x->comm = in ? outer + (uint32_t)ls_random_below(&d.s, inner) : (uint32_t)ls_random_below(&d.s, outer);
            x->payload = (uint32_t)ls_random_below(&d.s, payloads);
            x->stream = (uint32_t)(chance(&d, 70) ? x->comm % d.streams : ls_random_below(&d.s, d.streams));
            x->kind = kinds[ls_random_below(&d.s, 3)];
            static const uint8_t syncs[] = { SYNC_NONE, SYNC_NONE, SYNC_HOST, SYNC_OTHER, SYNC_BLOCK };
            x->sync = syncs[ls_random_below(&d.s, 5)];
            x->other = (uint8_t)ls_random_below(&d.s, d.streams);
            char name[2] = { events++, 0 };
            x->event = ls_tables_event(&r->tables, name);
            x->letters = chance(&d, in ? 40 : wild) ? some_letters(&d) : all;
            x->memory = memory && chance(&d, in ? 40 : wild) ? (uint8_t)(1 + ls_random_below(&d.s, 2)) : 0;
            x->late = late ? some_letters(&d) : 0;
        }
        d.swap[k] = chance(&d, 40) ? some_letters(&d) : 0;
        bool last_of_all = (r->driver == 1 && k == 1) || r->driver == 0;
        bool stops = r->driver == 2 || (r->driver >= 3 && k + 1 == d.rounds);
        d.may_delay[k] = late && !last_of_all && (!stops || chance(&d, 10));
    }
    d.swap_roles = d.roles > 1 && chance(&d, 30) ? 2 : 0;
    /* Dense states by discovery. */
    size_t states_max = 2 * (ROUNDS_MAX * ITEMS_MAX + 1), count = 1;
    uint32_t *id = LS_NEW(&r->arena, uint32_t, states_max), *state = LS_NEW(&r->arena, uint32_t, states_max);
    memset(id, 0xff, states_max * sizeof *id);
    id[0] = 0;
    for (size_t i = 0; i < count; i++)
        for (size_t k = 0; k < d.rounds; k++)
            for (size_t z = 0; z < d.letters; z++) {
                size_t to = next_state(&d, state[i], k, z);
                if (id[to] == LS_NO_ID) {
                    id[to] = (uint32_t)count;
                    state[count++] = (uint32_t)to;
                }
            }
    struct ls_table_transducer *t = LS_NEW(&r->arena, struct ls_table_transducer, 1);
    ls_table_transducer_init(t, &r->tables, count, d.rounds, d.letters, d.roles, &r->arena);
    bool mutated = chance(&d, 15);
    size_t total = count * d.rounds * d.letters * d.roles, victim = mutated ? ls_random_below(&d.s, total) : total, at = 0;
    op_list ops = { 0 };
    for (size_t i = 0; i < count; i++)
        for (size_t k = 0; k < d.rounds; k++)
            for (size_t z = 0; z < d.letters; z++) {
                *ls_table_next(t, i, k, z) = id[next_state(&d, state[i], k, z)];
                for (size_t y = 0; y < d.roles; y++, at++) {
                    ops.count = 0;
                    build_segment(&d, state[i], k, z, y, &ops);
                    if (at == victim)
                        mutate(&d.s, r->tables.payload.count, &ops);
                    struct ls_segment *s = LS_NEW(&r->arena, struct ls_segment, 1);
                    *s = (struct ls_segment){ ls_arena_copy(&r->arena, ops.at, ops.count * sizeof *ops.at), ops.count, 0 };
                    s->hash = ls_segment_hash(s->op, s->count);
                    *ls_table_segment(t, i, k, z, y) = s;
                }
            }
    ls_vec_release(&ops);
    r->system.replica = &t->base;
    r->system.level = chance(&d, 15) ? 1 : 2;
    if (chance(&d, 12)) /* a dimension of given size: a witness may not fit */
        for (size_t k = 0; k < LS_FREE_DIMS; k++)
            if ((r->system.free_dims >> k & 1) && chance(&d, 70))
                r->system.size[k] = 2 + ls_random_below(&d.s, 2);
    if (r->contract == LS_RANDOM_ANY ? chance(&d, 20) : chance(&d, 3)) {
        r->system.contract.extra = chance(&d, 60) ? LS_CONTRACT_AT_LEAST_ONE : LS_CONTRACT_AT_MOST;
        r->system.contract.media = all & ~UINT64_C(1);
        r->system.contract.bound = 1 + ls_random_below(&d.s, 2);
    }
    r->features = ls_arena_printf(&r->arena, "dims %u roles %zu letters %zu outer %u inner %u driver %u contract %s%s%s%s level %d",
                                  r->system.free_dims, d.roles, d.letters, outer, inner, r->driver, r->system.contract.name,
                                  memory ? " memory" : "", late ? " late" : "", mutated ? " mutated" : "", r->system.level);
    if (r->system.size[0] > 1 || r->system.size[1] > 1)
        r->features = ls_arena_printf(&r->arena, "%s given %zux%zu", r->features, r->system.size[0], r->system.size[1]);
    if (r->system.contract.extra)
        r->features = ls_arena_printf(&r->arena, "%s %s", r->features,
                                      r->system.contract.extra == LS_CONTRACT_AT_MOST ? "at most" : "at least one");
}

void ls_random_system_mutate(struct ls_random_system *r, uint64_t seed)
{
    struct ls_table_transducer *t = (struct ls_table_transducer *)r->system.replica;
    size_t total = t->states * t->rounds * t->base.letters * t->base.roles;
    uint64_t random = seed;
    const struct ls_segment **victim = &t->segment[ls_random_below(&random, total)];
    op_list ops = { 0 };
    for (size_t i = 0; i < (*victim)->count; i++)
        ls_push(&ops, (*victim)->op[i]);
    mutate(&random, r->tables.payload.count, &ops);
    struct ls_segment *s = LS_NEW(&r->arena, struct ls_segment, 1);
    *s = (struct ls_segment){ ls_arena_copy(&r->arena, ops.at, ops.count * sizeof *ops.at), ops.count, 0 };
    s->hash = ls_segment_hash(s->op, s->count);
    *victim = s;
    ls_vec_release(&ops);
}

void ls_random_system_close(struct ls_random_system *r)
{
    ls_tables_release(&r->tables);
    ls_arena_release(&r->arena);
}
