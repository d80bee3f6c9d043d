#include "random_rules.h"

#include "base/hash.h"
#include "machine/machine.h"

#include <string.h>

const char *const random_rule_name[RULE_COUNT] = { "late for ever", "decide", "transfers", "fused", "stop", "rank in no group", "blocks", "start round",
                                                   "letters not allowed", "issue order" };

enum { ONCE_MAX = 3, SIDE_MAX = 2 };
enum { SAME_VALUE, OWN_VALUE };
struct adding {
    struct ls_random_system *r;
    struct ls_table_transducer *from;
    uint64_t s;
    unsigned rules;
    size_t letters, roles, rounds;
    /* once in a step: early for some letters, else at its end */
    struct ls_op once[ONCE_MAX];
    size_t onces;
    uint32_t early, flush;          /* letters; the round of the step end */
    bool other_order;               /* at the step end */
    /* one vote in a round */
    struct ls_op vote, side[2][SIDE_MAX];
    size_t sides[2];
    uint32_t vote_round, yes;       /* letters that say yes, if the value is theirs */
    bool vote_last;
    struct ls_op transfer; uint32_t transfer_round; bool both_ways, wrong;
    uint32_t fused_round, stop_round, stop_letter;
    uint32_t absent_comm;
};

static size_t below(struct adding *a, size_t n)
{
    return (size_t)ls_random_below(&a->s, n);
}

static bool chance(struct adding *a, unsigned percent)
{
    return below(a, 100) < percent;
}

static bool has(const struct adding *a, enum random_rule rule)
{
    return a->rules >> rule & 1;
}

static uint32_t some_letters(struct adding *a)
{
    return (uint32_t)(1 + below(a, (1u << a->letters) - 1));
}

static struct ls_op collective(struct adding *a, uint32_t comm)
{
    static const uint8_t kinds[] = { LS_OP_ALL_GATHER, LS_OP_REDUCE_SCATTER, LS_OP_ALL_REDUCE };
    struct ls_op op = ls_op_make((enum ls_op_kind)kinds[below(a, 3)]);
    op.comm = (uint16_t)comm;
    op.payload = (uint32_t)below(a, a->r->tables.payload.count);
    op.stream = (uint8_t)below(a, a->r->tables.stream.count);
    op.count = 8;
    op.dtype = LS_DTYPE_F32;
    op.reduce = op.kind == LS_OP_ALL_GATHER ? LS_REDUCE_NONE : LS_REDUCE_SUM;
    op.blocking = chance(a, 30);
    return op;
}

static uint32_t spanning(struct adding *a)
{
    uint32_t c;
    do
        c = (uint32_t)below(a, a->r->tables.comm.count);
    while (!a->r->tables.comm.at[c].free_dims);
    return c;
}

/* A communicator inside the replica in which the two ranks are together; LS_NO_ID: none. */
static uint32_t shared_inside(const struct adding *a)
{
    for (uint32_t c = 0; a->roles == 2 && c < a->r->tables.comm.count; c++)
        if (!a->r->tables.comm.at[c].free_dims && a->r->system.comm[c].part[0] == a->r->system.comm[c].part[1])
            return c;
    return LS_NO_ID;
}

static void draw_once(struct adding *a)
{
    const uint32_t flush[] = { LS_NO_ID, 1, LS_NO_ID, 1, 2 }; /* by driver */
    a->flush = flush[a->r->driver];
    if (a->flush == LS_NO_ID || !chance(a, 45))
        return;
    a->rules |= 1u << RULE_LATE_FOR_EVER;
    a->onces = 1 + below(a, ONCE_MAX);
    uint32_t same = spanning(a);
    for (size_t i = 0; i < a->onces; i++)
        a->once[i] = collective(a, chance(a, 40) ? same : spanning(a));
    a->early = some_letters(a);
    a->other_order = chance(a, 15);
}

static void draw_vote(struct adding *a)
{
    static const uint8_t reduces[] = { LS_REDUCE_MAX, LS_REDUCE_MIN, LS_REDUCE_SUM, LS_REDUCE_PROD };
    if (!chance(a, 25))
        return;
    a->rules |= 1u << RULE_DECIDE;
    a->vote = ls_op_make(LS_OP_DECIDE);
    a->vote.comm = (uint16_t)(chance(a, 60) ? spanning(a) : below(a, a->r->tables.comm.count));
    a->vote.stream = (uint8_t)below(a, a->r->tables.stream.count);
    a->vote.count = 1;
    a->vote.dtype = LS_DTYPE_I32;
    a->vote.reduce = reduces[below(a, 4)];
    a->vote.payload = (uint32_t)below(a, a->r->tables.payload.count);
    a->yes = chance(a, 60) ? chance(a, 50) ? UINT32_MAX : 0 : some_letters(a);
    a->vote_round = (uint32_t)below(a, a->rounds);
    a->vote_last = chance(a, 50);
    for (int side = 0; side < 2; side++) {
        a->sides[side] = below(a, SIDE_MAX + 1);
        for (size_t i = 0; i < a->sides[side]; i++)
            a->side[side][i] = side == 1 && i < a->sides[0] && chance(a, 50) ? a->side[0][i] : collective(a, (uint32_t)below(a, a->r->tables.comm.count));
        if (chance(a, 8) && a->sides[side] < SIDE_MAX)
            a->side[side][a->sides[side]++] = ls_op_make(LS_OP_STOP);
    }
}

static void draw_inside(struct adding *a)
{
    uint32_t inside = shared_inside(a);
    if (inside != LS_NO_ID && chance(a, 50)) {
        a->rules |= 1u << RULE_TRANSFER;
        a->transfer = collective(a, inside);
        a->transfer.kind = LS_OP_SEND;
        a->transfer.reduce = LS_REDUCE_NONE;
        a->transfer_round = (uint32_t)below(a, a->rounds);
        a->both_ways = chance(a, 40);
        a->wrong = chance(a, 20);
    }
    if (a->roles == 2 && chance(a, 25)) {
        a->absent_comm = spanning(a);
        a->rules |= 1u << RULE_ABSENT;
        struct ls_comm_roles *roles = ls_arena_copy(&a->r->arena, a->r->system.comm, a->r->tables.comm.count * sizeof *roles);
        uint32_t *part = ls_arena_copy(&a->r->arena, roles[a->absent_comm].part, a->roles * sizeof *part);
        part[1] = LS_NO_ID;
        roles[a->absent_comm].part = part;
        a->r->system.comm = roles;
    }
}

/* Along the shards, or in some systems along the replicas. */
static void draw_blocks(struct adding *a, uint64_t seed)
{
    struct ls_system *s = &a->r->system;
    uint64_t own = ls_hash_mix(seed, 0x626c6f63);
    size_t d = s->free_dims == LS_DIM_REPLICATE || (s->free_dims & LS_DIM_REPLICATE && ls_random_below(&own, 3) == 0) ? 0 : 1;
    uint32_t c = spanning(a), dim = 1u << d;
    if (s->size[d] % 2 || s->contract.extra == LS_CONTRACT_AT_MOST || !chance(a, 25))
        return;
    a->rules |= 1u << RULE_BLOCKS;
    a->r->tables.comm.at[c].free_dims = dim;
    a->r->tables.comm.at[c].small = 2;
    for (uint32_t k = 0; k < a->r->tables.comm.count; k++)
        if (k != c && a->r->tables.comm.at[k].free_dims == dim && chance(a, 40) && (!s->size[d] || s->size[d] >= 4))
            a->r->tables.comm.at[k].across = 2;
}

static void draw(struct adding *a, uint64_t seed)
{
    draw_once(a);
    draw_vote(a);
    draw_inside(a);
    draw_blocks(a, seed);
    if (chance(a, 12)) {
        a->rules |= 1u << RULE_FUSED;
        a->fused_round = (uint32_t)below(a, a->rounds);
    }
    if (chance(a, 5)) {
        a->rules |= 1u << RULE_STOP;
        a->stop_round = (uint32_t)below(a, a->rounds);
        a->stop_letter = (uint32_t)below(a, a->letters);
    }
    if (chance(a, 25))
        a->rules |= 1u << RULE_START;
    if (chance(a, 15))
        a->rules |= 1u << RULE_ALLOWED;
    if (!has(a, RULE_TRANSFER) && !has(a, RULE_FUSED) && chance(a, 10)) {
        a->rules |= 1u << RULE_ISSUE_ORDER;
        a->r->system.level = LS_L3;
        a->r->system.kernels = 1 + (unsigned)below(a, 3);
        a->r->system.start_rule = LS_START_ISSUE_ORDER;
    }
}

/* An op of its rank, unless the rank is in no group of it. */
static void put(const struct adding *a, ls_op_vec *out, struct ls_op op, size_t role)
{
    if (!ls_op_uses_comm(&op) || a->r->system.comm[op.comm].part[role] != LS_NO_ID)
        ls_push(out, op);
}

static void put_vote(const struct adding *a, ls_op_vec *out, size_t letter, size_t role)
{
    struct ls_op vote = a->vote;
    if (a->r->system.comm[vote.comm].part[role] == LS_NO_ID)
        return;
    size_t at = out->count, middle;
    vote.value = a->yes >> letter & 1;
    ls_push(out, vote);
    for (size_t i = 0; i < a->sides[0]; i++)
        put(a, out, a->side[0][i], role);
    middle = out->count;
    for (size_t i = 0; i < a->sides[1]; i++)
        put(a, out, a->side[1][i], role);
    out->at[at].then_count = (uint32_t)(middle - at - 1);
    out->at[at].else_count = (uint32_t)(out->count - middle);
}

static void put_transfer(const struct adding *a, ls_op_vec *out, size_t role)
{
    for (int way = 0; way < (a->both_ways ? 2 : 1); way++) {
        struct ls_op op = a->transfer;
        op.kind = role == (size_t)way ? LS_OP_SEND : LS_OP_RECV;
        op.peer = role == 0 ? 1 : 0;
        op.fused = a->both_ways ? 7 : 0;
        op.blocking = op.blocking && !a->both_ways;
        op.count += a->wrong && role == 1;
        put(a, out, op, role);
    }
}

static void fuse_first_pair(ls_op_vec *ops)
{
    for (size_t i = 0; i + 1 < ops->count; i++) {
        struct ls_op *x = &ops->at[i], *y = &ops->at[i + 1];
        if (x->kind == LS_OP_DECIDE) { /* not across the sides of a vote */
            i += x->then_count + x->else_count;
            continue;
        }
        if (ls_op_is_collective(x) && ls_op_is_collective(y) && y->kind != LS_OP_DECIDE && !x->fused && !y->fused) {
            x->fused = y->fused = 3;
            return;
        }
    }
}

/* State: twice that of the base, plus one if this step's early ops are out. */
static void build(const struct adding *a, size_t state, size_t round, size_t letter, size_t role, ls_op_vec *out)
{
    const struct ls_segment *base = *ls_table_segment(a->from, state / 2, round, letter, role);
    bool early = a->early >> letter & 1;
    if (has(a, RULE_DECIDE) && round == a->vote_round && !a->vote_last)
        put_vote(a, out, letter, role);
    if (has(a, RULE_TRANSFER) && round == a->transfer_round && role == 0)
        put_transfer(a, out, role);
    for (size_t i = 0; i < base->count; i++)
        put(a, out, base->op[i], role);
    if (has(a, RULE_TRANSFER) && round == a->transfer_round && role == 1)
        put_transfer(a, out, role);
    for (size_t i = 0; i < a->onces && !(state & 1) && (round == 0 ? early : round == a->flush); i++)
        put(a, out, a->once[round == a->flush && a->other_order ? a->onces - 1 - i : i], role);
    if (has(a, RULE_DECIDE) && round == a->vote_round && a->vote_last)
        put_vote(a, out, letter, role);
    if (has(a, RULE_FUSED) && round == a->fused_round)
        fuse_first_pair(out);
    if (has(a, RULE_STOP) && round == a->stop_round && letter == a->stop_letter && role == 0)
        ls_push(out, ls_op_make(LS_OP_STOP));
}

static size_t next_state(const struct adding *a, size_t state, size_t round, size_t letter)
{
    size_t base = *ls_table_next(a->from, state / 2, round, letter), done = state & 1;
    if (a->onces && round == 0 && (a->early >> letter & 1))
        done = 1;
    if (a->onces && round == a->flush)
        done = 0;
    return 2 * base + done;
}

static const struct ls_segment *segment(struct ls_arena *arena, const ls_op_vec *ops)
{
    struct ls_segment *s = LS_NEW(arena, struct ls_segment, 1);
    *s = (struct ls_segment){ ls_arena_copy(arena, ops->at, ops->count * sizeof *ops->at), ops->count, 0 };
    s->hash = ls_segment_hash(s->op, s->count);
    return s;
}

static void make_tables(struct adding *a)
{
    struct ls_arena *arena = &a->r->arena;
    struct ls_table_transducer *t = LS_NEW(arena, struct ls_table_transducer, 1);
    size_t states = a->from->states * 2, idle = a->rounds;
    uint32_t *id = LS_NEW(arena, uint32_t, states), *state = LS_NEW(arena, uint32_t, states), count = 0;
    memset(id, 0xff, states * sizeof *id);
    state[count++] = 0;
    id[0] = 0;
    for (uint32_t i = 0; i < count; i++) /* dense, in order of discovery */
        for (size_t k = 0; k < a->rounds; k++)
            for (size_t z = 0; z < a->letters; z++) {
                size_t to = next_state(a, state[i], k, z);
                if (id[to] == LS_NO_ID) {
                    id[to] = count;
                    state[count++] = (uint32_t)to;
                }
            }
    ls_table_transducer_init(t, &a->r->tables, count, a->rounds + 1, a->letters, a->roles, arena);
    ls_op_vec ops = { 0 };
    for (size_t i = 0; i < count; i++)
        for (size_t k = 0; k <= idle; k++)
            for (size_t z = 0; z < a->letters; z++) {
                *ls_table_next(t, i, k, z) = k == idle ? (uint32_t)i : id[next_state(a, state[i], k, z)];
                for (size_t y = 0; y < a->roles; y++) {
                    ops.count = 0;
                    if (k != idle)
                        build(a, state[i], k, z, y, &ops);
                    *ls_table_segment(t, i, k, z, y) = segment(arena, &ops);
                }
            }
    ls_vec_release(&ops);
    a->r->system.replica = &t->base;
}

static void make_driver(struct adding *a)
{
    struct ls_driver *d = &a->r->system.driver;
    struct ls_arena *arena = &a->r->arena;
    size_t shift = has(a, RULE_START);
    struct ls_driver_node *node = LS_NEW(arena, struct ls_driver_node, d->nodes + shift);
    for (size_t n = 0; n < d->nodes; n++) {
        node[n + shift] = d->node[n];
        node[n + shift].next = LS_NEW(arena, uint32_t, d->node[n].nexts);
        for (size_t i = 0; i < d->node[n].nexts; i++)
            node[n + shift].next[i] = d->node[n].next[i] + (uint32_t)shift;
    }
    uint64_t *only = LS_NEW(arena, uint64_t, 2);
    only[0] = 1; /* the start plays one letter */
    if (shift) {
        node[0] = (struct ls_driver_node){ .round = (uint32_t)a->rounds, .name = "start", .may_stop = true, .allowed = &only[0], .nexts = 1 };
        node[0].next = LS_NEW(arena, uint32_t, 1);
        node[0].next[0] = 1;
    }
    if (has(a, RULE_ALLOWED)) {
        only[1] = some_letters(a);
        node[shift + below(a, d->nodes)].allowed = &only[1];
    }
    *d = (struct ls_driver){ node, d->nodes + shift };
}

unsigned random_rules_add(struct ls_random_system *r, uint64_t seed)
{
    struct ls_table_transducer *t = (struct ls_table_transducer *)r->system.replica;
    struct adding a = { .r = r, .from = t, .s = ls_hash_mix(seed, 0x72756c65), .letters = t->base.letters, .roles = t->base.roles, .rounds = t->rounds };
    draw(&a, seed);
    make_tables(&a);
    make_driver(&a);
    for (int i = 0; i < RULE_COUNT; i++)
        if (has(&a, (enum random_rule)i))
            r->features = ls_arena_printf(&r->arena, "%s, %s", r->features, random_rule_name[i]);
    return a.rules;
}
