#include "sim/traffic.h"

#include "base/hash.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { OUT = 0, IN = 1 };

static uint32_t nic_link(const struct ls_traffic *t, uint32_t rank, int way)
{
    const struct ls_platform *p = t->platform;
    size_t node = rank / p->gpus, nic = rank % p->gpus * p->nics / p->gpus;
    return (uint32_t)(2 * (node * p->nics + nic)) + (uint32_t)way;
}

static uint32_t port_link(const struct ls_traffic *t, uint32_t rank, int way)
{
    const struct ls_platform *p = t->platform;
    size_t nodes = (t->job->ranks + p->gpus - 1) / p->gpus;
    return (uint32_t)(2 * (nodes * p->nics + rank)) + (uint32_t)way;
}

/* NICs of one node that a group spreads over. */
static uint32_t spread(const struct ls_traffic *t, struct ls_placement at)
{
    uint64_t k = (at.ranks_per_node * t->platform->nics + t->platform->gpus - 1) / t->platform->gpus;
    return at.nodes < 2 ? 1 : (uint32_t)(k < t->platform->nics ? k : t->platform->nics);
}

/* LL stores a flag beside every word of data, so its wires carry twice the bytes; LL128 one in sixteen, left out. */
static uint32_t wire_weight(const struct ls_collective_cost *c)
{
    return c->protocol == LS_PROTOCOL_LL ? 2 : 1;
}

/* Tables of small structs found by content; `slot` holds index + 1. */
static uint32_t *find(uint32_t **slot, size_t *room, size_t count, uint64_t hash, const void *at, size_t size, const void *key, size_t key_size)
{
    if (2 * (count + 1) > *room) {
        size_t bigger = *room ? 2 * *room : 256;
        uint32_t *next = calloc(bigger, sizeof *next);
        if (!next)
            ls_out_of_memory(bigger * sizeof *next);
        free(*slot);
        *slot = next;
        *room = bigger;
        for (uint32_t i = 0; i < count; i++) {
            uint64_t h = ls_hash((const char *)at + i * size, key_size, 0);
            while (next[h & (bigger - 1)])
                h++;
            next[h & (bigger - 1)] = i + 1;
        }
    }
    for (;; hash++) {
        uint32_t *s = &(*slot)[hash & (*room - 1)];
        if (!*s || memcmp((const char *)at + (*s - 1) * size, key, key_size) == 0)
            return s;
    }
}

static const struct ls_charge *charge(struct ls_traffic *t, uint32_t placed, const struct ls_op *op)
{
    struct ls_placement at = t->placement.at[placed];
    uint32_t kind = op->kind == LS_OP_RECV ? LS_OP_SEND : op->kind;
    struct ls_charge c = { .placed = placed, .kind = kind, .bytes = ls_collective_bytes(t->job->tables, op, at.ranks) };
    if (op->symbol != LS_NO_ID)
        c.bytes *= t->tokens;
    if (kind == LS_OP_BARRIER || kind == LS_OP_DECIDE)
        c.bytes = sizeof(uint64_t);
    size_t key = offsetof(struct ls_charge, cost);
    uint32_t *slot = find(&t->charge_slot, &t->charge_room, t->charge.count, ls_hash(&c, key, 0), t->charge.at, sizeof c, &c, key);
    if (!*slot) {
        ls_collective_choose(t->platform, t->measured, (enum ls_op_kind)kind, at, c.bytes, &c.cost);
        ls_push(&t->charge, c);
        *slot = (uint32_t)t->charge.count;
    }
    return &t->charge.at[*slot - 1];
}

static uint32_t place(struct ls_traffic *t, struct ls_placement at)
{
    for (uint32_t i = 0; i < t->placement.count; i++)
        if (memcmp(&t->placement.at[i], &at, sizeof at) == 0)
            return i;
    ls_push(&t->placement, at);
    return (uint32_t)t->placement.count - 1;
}

static struct ls_placement pair_placement(const struct ls_traffic *t, uint32_t a, uint32_t b)
{
    if (a == b)
        return (struct ls_placement){ 1, 1, 1 };
    return a / t->platform->gpus == b / t->platform->gpus ? (struct ls_placement){ 2, 1, 2 } : (struct ls_placement){ 2, 2, 1 };
}

static int by_link(const void *a, const void *b)
{
    const struct ls_net_use *x = a, *y = b;
    return x->link < y->link ? -1 : x->link > y->link;
}

typedef LS_VEC(struct ls_net_use) use_vec;

/* Each link once: NICs that several GPUs share come once per GPU. */
static struct ls_net_kind uses(struct ls_traffic *t, use_vec *use)
{
    size_t n = 0;
    qsort(use->at, use->count, sizeof *use->at, by_link);
    for (size_t i = 0; i < use->count; i++)
        if (!n || use->at[n - 1].link != use->at[i].link)
            use->at[n++] = use->at[i];
    return (struct ls_net_kind){ .use = ls_arena_copy(t->arena, use->at, n * sizeof *use->at), .uses = (uint32_t)n };
}

/* The distinct nodes of a group in member order: `at` gets the first member of each; a ring passes them in this order. */
static uint32_t ring_nodes(const struct ls_traffic *t, const uint32_t *rank, size_t ranks, uint32_t *at)
{
    uint32_t nodes = 0;
    for (uint32_t i = 0; i < ranks; i++) {
        bool seen = false;
        if (i && rank[i] / t->platform->gpus == rank[i - 1] / t->platform->gpus)
            continue;
        for (uint32_t j = 0; j < nodes && !seen; j++)
            seen = rank[at[j]] / t->platform->gpus == rank[i] / t->platform->gpus;
        if (!seen)
            at[nodes++] = i;
    }
    return nodes;
}

static uint32_t hops(const struct ls_traffic *t, struct ls_placement at)
{
    return !t->uncoupled ? 1 : at.nodes > 1 ? at.nodes : at.ranks;
}

/* The first k NICs of the members on the node of `rank[of]`. */
static void add_nics(const struct ls_traffic *t, use_vec *use, const uint32_t *rank, size_t ranks, uint32_t of, uint32_t k, uint32_t weight, int way)
{
    size_t before = use->count;
    for (size_t i = 0; i < ranks && use->count - before < k; i++) {
        uint32_t link = nic_link(t, rank[i], way);
        bool seen = rank[i] / t->platform->gpus != rank[of] / t->platform->gpus;
        for (size_t j = before; j < use->count && !seen; j++)
            seen = use->at[j].link == link;
        if (!seen)
            ls_push(use, (struct ls_net_use){ link, weight });
    }
}

static struct ls_net_kind group_kind(struct ls_traffic *t, const uint32_t *rank, size_t ranks, struct ls_placement at, uint32_t weight,
                                     uint32_t hop)
{
    use_vec use = { 0 };
    uint32_t *first = calloc(ranks, sizeof *first), k = spread(t, at);
    if (!first)
        ls_out_of_memory(ranks * sizeof *first);
    uint32_t nodes = ring_nodes(t, rank, ranks, first);
    if (t->uncoupled && nodes > 1) {
        add_nics(t, &use, rank, ranks, first[hop], k, weight, OUT);
        add_nics(t, &use, rank, ranks, first[(hop + 1) % nodes], k, weight, IN);
    } else if (t->uncoupled) {
        ls_push(&use, (struct ls_net_use){ port_link(t, rank[hop], OUT), weight });
        ls_push(&use, (struct ls_net_use){ port_link(t, rank[(hop + 1) % ranks], IN), weight });
    } else {
        for (uint32_t i = 0; i < nodes && nodes > 1; i++) {
            /* A run of members on one node, mostly: look no further than needed. */
            uint32_t end = i + 1 < nodes ? first[i + 1] : (uint32_t)ranks;
            bool run = true;
            for (uint32_t j = first[i]; j < end && run; j++)
                run = rank[j] / t->platform->gpus == rank[first[i]] / t->platform->gpus;
            const uint32_t *from = run ? rank + first[i] : rank;
            size_t count = run ? end - first[i] : ranks;
            add_nics(t, &use, from, count, run ? 0 : first[i], k, weight, OUT);
            add_nics(t, &use, from, count, run ? 0 : first[i], k, weight, IN);
        }
        for (size_t i = 0; i < ranks && at.ranks_per_node > 1; i++) {
            ls_push(&use, (struct ls_net_use){ port_link(t, rank[i], OUT), weight * k });
            ls_push(&use, (struct ls_net_use){ port_link(t, rank[i], IN), weight * k });
        }
    }
    struct ls_net_kind out = uses(t, &use);
    ls_vec_release(&use);
    free(first);
    return out;
}

static uint32_t find_channel(struct ls_traffic *t, struct ls_channel key, bool *fresh)
{
    uint32_t *slot = find(&t->channel_slot, &t->channel_room, t->channel.count, ls_hash(&key, sizeof key, 0), t->channel.at, sizeof key, &key,
                          sizeof key);
    *fresh = !*slot;
    if (!*slot) {
        ls_push(&t->channel, key);
        *slot = (uint32_t)t->channel.count;
    }
    return *slot - 1;
}

static uint64_t scaled(uint64_t amount, uint32_t k)
{
    return amount * (LS_AMOUNT / k);
}

static struct ls_channel channel_of(uint32_t owner, const struct ls_collective_cost *c, uint32_t k, uint32_t hop)
{
    return (struct ls_channel){ .owner = owner, .weight = wire_weight(c), .hop = hop, .cap = scaled(c->bus_Bps, k) };
}

static uint32_t pair_owner(struct ls_traffic *t, uint32_t sender, uint32_t receiver)
{
    uint64_t key = (uint64_t)sender << 32 | receiver;
    uint32_t *slot = find(&t->pair_slot, &t->pair_room, t->pair.count, ls_hash(&key, sizeof key, 0), t->pair.at, sizeof key, &key, sizeof key);
    if (!*slot) {
        ls_push(&t->pair, key);
        *slot = (uint32_t)t->pair.count;
    }
    return t->group_base[t->job->tables->comm.count] + *slot - 1;
}

static void add_group(struct ls_traffic *t, uint32_t comm, uint32_t group, const struct ls_op *op)
{
    const struct ls_groups *g = &t->job->comm[comm];
    uint32_t owner = t->group_base[comm] + group, placed = t->placed[owner];
    struct ls_placement at = t->placement.at[placed];
    const struct ls_collective_cost c = charge(t, placed, op)->cost;
    if (!c.bus_bytes)
        return;
    for (uint32_t hop = 0; hop < hops(t, at); hop++) {
        bool fresh;
        struct ls_channel key = channel_of(owner, &c, spread(t, at), hop);
        find_channel(t, key, &fresh);
        if (!fresh)
            continue;
        struct ls_net_kind kind = { 0 };
        for (size_t i = t->channel.count - 1; i-- > 0 && t->channel.at[i].owner == owner;) /* the same links at another rate */
            if (t->channel.at[i].weight == key.weight && t->channel.at[i].hop == hop)
                kind = t->kind.at[i];
        if (!kind.uses)
            kind = group_kind(t, g->rank + g->first[group], g->first[group + 1] - g->first[group], at, key.weight, hop);
        kind.cap_Bps = key.cap;
        ls_push(&t->kind, kind);
    }
}

static void add_pair(struct ls_traffic *t, uint32_t sender, uint32_t receiver, const struct ls_op *op)
{
    struct ls_placement at = pair_placement(t, sender, receiver);
    const struct ls_collective_cost c = charge(t, place(t, at), op)->cost;
    bool fresh;
    if (!c.bus_bytes)
        return;
    struct ls_channel key = channel_of(pair_owner(t, sender, receiver), &c, 1, 0);
    find_channel(t, key, &fresh);
    if (!fresh)
        return;
    use_vec use = { 0 };
    ls_push(&use, (struct ls_net_use){ at.nodes > 1 ? nic_link(t, sender, OUT) : port_link(t, sender, OUT), key.weight });
    ls_push(&use, (struct ls_net_use){ at.nodes > 1 ? nic_link(t, receiver, IN) : port_link(t, receiver, IN), key.weight });
    struct ls_net_kind kind = uses(t, &use);
    kind.cap_Bps = key.cap;
    ls_vec_release(&use);
    ls_push(&t->kind, kind);
}

/* The communicator in whose groups an op waits. */
static uint32_t waits_in(const struct ls_tables *t, const struct ls_op *op)
{
    uint32_t parent = op->kind == LS_OP_COMM_INIT ? t->comm.at[op->comm].parent : LS_NO_ID;
    return parent == LS_NO_ID ? op->comm : parent;
}

static void read_ops(struct ls_traffic *t)
{
    const struct ls_job *job = t->job;
    /* Segments are shared: an op of a segment is looked at once per group that some rank runs it in. */
    size_t comms = job->tables->comm.count;
    uint32_t *slot = NULL;
    size_t room = 0;
    LS_VEC(struct seen { const struct ls_segment *s; uint64_t group; }) key = { 0 };
    for (uint32_t r = 0; r < job->ranks; r++)
        for (size_t j = 0; j < job->rank[r].count; j++) {
            const struct ls_segment *s = job->rank[r].segment[j];
            for (uint32_t c = 0; c < comms; c++) {
                if (!job->comm[c].groups || job->comm[c].group[r] == LS_NO_ID)
                    continue;
                struct seen k = { s, t->group_base[c] + job->comm[c].group[r] };
                uint32_t *at = find(&slot, &room, key.count, ls_hash(&k, sizeof k, 0), key.at, sizeof k, &k, sizeof k);
                if (*at)
                    continue;
                ls_push(&key, k);
                *at = (uint32_t)key.count;
                for (size_t i = 0; i < s->count; i++)
                    if (ls_op_is_collective(&s->op[i]) && waits_in(job->tables, &s->op[i]) == c)
                        add_group(t, c, job->comm[c].group[r], &s->op[i]);
            }
            for (size_t i = 0; i < s->count; i++) {
                const struct ls_op *op = &s->op[i];
                if (op->kind != LS_OP_RECV)
                    continue;
                const struct ls_groups *g = &job->comm[op->comm];
                uint32_t group = g->group[r], size = g->first[group + 1] - g->first[group];
                if (op->peer >= 0 && (uint32_t)op->peer < size)
                    add_pair(t, g->rank[g->first[group] + (uint32_t)op->peer], r, op);
            }
        }
    ls_vec_release(&key);
    free(slot);
}

void ls_traffic_open(struct ls_traffic *t, const struct ls_job *job, const struct ls_platform *p, const struct ls_nccl_tests *measured,
                     uint64_t tokens, bool uncoupled, struct ls_arena *arena, struct ls_net_plan *plan)
{
    size_t comms = job->tables->comm.count, nodes = (job->ranks + p->gpus - 1) / p->gpus;
    *t = (struct ls_traffic){ .job = job, .platform = p, .measured = measured, .uncoupled = uncoupled,
                              .tokens = tokens ? tokens : 1, .arena = arena };
    t->group_base = LS_NEW(arena, uint32_t, comms + 1);
    for (size_t c = 0; c < comms; c++)
        t->group_base[c + 1] = t->group_base[c] + (uint32_t)job->comm[c].groups;
    t->placed = LS_NEW(arena, uint32_t, t->group_base[comms]);
    for (size_t c = 0; c < comms; c++)
        for (size_t g = 0; g < job->comm[c].groups; g++) {
            const struct ls_groups *x = &job->comm[c];
            t->placed[t->group_base[c] + g] = place(t, ls_placement_of(p, x->rank + x->first[g], x->first[g + 1] - x->first[g]));
        }
    for (size_t i = 0; i < 2 * nodes * p->nics; i++)
        ls_push(&t->link_Bps, scaled(p->nic_Bps, 1));
    for (size_t i = 0; i < 2 * job->ranks; i++)
        ls_push(&t->link_Bps, scaled(p->nvlink_Bps, 1));
    read_ops(t);
    *plan = (struct ls_net_plan){ .link_Bps = t->link_Bps.at, .links = t->link_Bps.count, .kind = t->kind.at, .kinds = t->kind.count };
}

void ls_traffic_close(struct ls_traffic *t)
{
    ls_vec_release(&t->placement);
    ls_vec_release(&t->charge);
    ls_vec_release(&t->channel);
    ls_vec_release(&t->kind);
    ls_vec_release(&t->link_Bps);
    ls_vec_release(&t->pair);
    free(t->charge_slot);
    free(t->channel_slot);
    free(t->pair_slot);
}

uint64_t ls_traffic_latency_ps(struct ls_traffic *t, uint32_t comm, uint32_t group, const struct ls_op *op)
{
    return charge(t, t->placed[t->group_base[comm] + group], op)->cost.latency_ps;
}

uint64_t ls_traffic_latency_pair_ps(struct ls_traffic *t, uint32_t sender, uint32_t receiver, const struct ls_op *op)
{
    return charge(t, place(t, pair_placement(t, sender, receiver)), op)->cost.latency_ps;
}

static void start(struct ls_traffic *t, struct ls_channel key, uint64_t bytes, const struct ls_network_ops *ops, struct ls_network *net,
                  uint64_t tag)
{
    bool fresh;
    uint32_t kind = find_channel(t, key, &fresh);
    assert(!fresh);
    ops->start(net, kind, bytes, tag);
}

uint32_t ls_traffic_start(struct ls_traffic *t, uint32_t comm, uint32_t group, const struct ls_op *op, const struct ls_network_ops *ops,
                          struct ls_network *net, uint64_t tag)
{
    uint32_t owner = t->group_base[comm] + group;
    struct ls_placement at = t->placement.at[t->placed[owner]];
    const struct ls_collective_cost *c = &charge(t, t->placed[owner], op)->cost;
    if (!c->bus_bytes)
        return 0;
    uint32_t k = spread(t, at), n = hops(t, at);
    for (uint32_t hop = 0; hop < n; hop++)
        start(t, channel_of(owner, c, k, hop), scaled(c->bus_bytes, k), ops, net, tag);
    return n;
}

uint32_t ls_traffic_start_pair(struct ls_traffic *t, uint32_t sender, uint32_t receiver, const struct ls_op *op,
                               const struct ls_network_ops *ops, struct ls_network *net, uint64_t tag)
{
    const struct ls_collective_cost *c = &charge(t, place(t, pair_placement(t, sender, receiver)), op)->cost;
    if (!c->bus_bytes)
        return 0;
    start(t, channel_of(pair_owner(t, sender, receiver), c, 1, 0), scaled(c->bus_bytes, 1), ops, net, tag);
    return 1;
}
