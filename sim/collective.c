#include "sim/collective.h"

#include "sim/measured.h"
#include "sim/wide.h"

#include <assert.h>

#define PLAIN_NAME(id, name) name,
static const char *const algorithm_name[] = { LS_ALGORITHMS(PLAIN_NAME) };
static const char *const protocol_name[] = { LS_PROTOCOLS(PLAIN_NAME) };

const char *ls_algorithm_name(enum ls_algorithm a)
{
    assert((unsigned)a < LS_ALGORITHM_COUNT);
    return algorithm_name[a];
}

const char *ls_protocol_name(enum ls_protocol p)
{
    assert((unsigned)p < LS_PROTOCOL_COUNT);
    return protocol_name[p];
}

/* Constants of NCCL's tuner (src/graph/tuning.cc, 2.30.7), in nanoseconds and MB/s; by protocol LL, LL128, Simple. */
static const uint64_t base_ring_ns[] = { 6600, 14000, 8400 }, base_tree_ns[] = { 6800, 14000, 8400 };
static const uint64_t hop_ring_ns[] = { 600, 1900, 3400 }, hop_tree_ns[] = { 600, 1250, 4000 };          /* NVLink */
static const uint64_t hop_ring_net_ns[] = { 2700, 4000, 14000 }, hop_tree_net_ns[] = { 5000, 8500, 14000 };
enum { BASE_PAT_NS = 8000, HOP_PAT_NS = 14000, RANK_PAT_NS = 2800, BASE_NVLS_NS = 25000, HOP_NVLS_TREE_NS = 20900 };
/* Caps by architecture (Ampere, Hopper, Blackwell), then by 1, 2, more nodes. */
static const uint64_t ll_total_MBps[] = { 87700, 141000, 282000 };
static const uint64_t ll_net_MBps[2][2] = { { 39000, 20400 }, { 22500, 19000 } }; /* by CPU, then 2, more nodes */
static const uint64_t ll128_channel_MBps[] = { 20000, 36700, 40000 };
static const uint64_t tree_channel_MBps[3][3] = { { 24000, 23600, 17800 }, { 38700, 41400, 36000 }, { 70000, 42800, 24000 } };
static const uint64_t tree_ll128_channel_MBps[3][3] = { { 20000, 20000, 20000 }, { 36700, 36700, 29000 }, { 55600, 31700, 20000 } };
static const uint64_t nvls_tree_channel_MBps[3][3] = { { 24000, 23600, 17800 }, { 0, 57700, 45500 }, { 0, 96000, 80000 } };
static const uint64_t nvls_efficiency_percent[] = { 0, 85, 74 };

enum { PS_PER_NS = 1000, MB = 1000000 };

static unsigned log2_floor(uint32_t n)
{
    return n ? 31u - (unsigned)__builtin_clz(n) : 0;
}

static uint64_t least(uint64_t a, uint64_t b) { return a < b ? a : b; }

struct ls_placement ls_placement_of(const struct ls_platform *p, const uint32_t *rank, size_t ranks)
{
    struct ls_placement out = { .ranks = (uint32_t)ranks };
    /* Groups are small or list ranks by node; counting per node without an order would need memory. */
    for (size_t i = 0; i < ranks; i++) {
        uint32_t here = 0;
        bool first = true;
        if (i && rank[i] / p->gpus == rank[i - 1] / p->gpus)
            continue;
        for (size_t j = 0; j < i && first; j++)
            first = rank[j] / p->gpus != rank[i] / p->gpus;
        if (!first)
            continue;
        out.nodes++;
        for (size_t j = i; j < ranks; j++)
            here += rank[j] / p->gpus == rank[i] / p->gpus;
        out.ranks_per_node = here > out.ranks_per_node ? here : out.ranks_per_node;
    }
    return out;
}

uint64_t ls_collective_bytes(const struct ls_tables *t, const struct ls_op *op, size_t ranks)
{
    uint64_t item = ls_dtype_bytes((enum ls_dtype)op->dtype), count = op->count;
    if (op->counts != LS_NO_ID) {
        count = 0;
        for (uint64_t i = 0; i < t->vector.at[op->counts]; i++)
            count += t->vector.at[op->counts + 1 + i];
    } else if (op->kind == LS_OP_ALL_GATHER || op->kind == LS_OP_REDUCE_SCATTER || op->kind == LS_OP_GATHER ||
               op->kind == LS_OP_SCATTER)
        count *= ranks;
    return count * item;
}

static bool is_pipeline(enum ls_op_kind kind) /* every byte passes every link once */
{
    return kind == LS_OP_BROADCAST || kind == LS_OP_REDUCE || kind == LS_OP_SCAN;
}

static bool is_all_reduce(enum ls_op_kind kind)
{
    return kind == LS_OP_ALL_REDUCE || kind == LS_OP_BARRIER || kind == LS_OP_DECIDE;
}

static uint64_t ring_latency_ns(const struct ls_platform *p, enum ls_op_kind kind, struct ls_placement at, enum ls_protocol protocol,
                                uint64_t bytes)
{
    uint64_t laps = is_all_reduce(kind) ? 2 : 1, steps = laps * (at.ranks - 1), inter = laps * (at.nodes - 1);
    uint64_t hop = hop_ring_ns[protocol], net = hop_ring_net_ns[protocol], nic = p->nic_latency_ps / PS_PER_NS;
    if (at.nodes > 1) {
        /* Posting to a proxy thread costs the host about this much a step, thrice that with Simple. */
        uint64_t overhead = (p->cpu == LS_CPU_AMD ? 2000u : 1000u) * (protocol == LS_PROTOCOL_SIMPLE ? 3u : 1u);
        hop = hop > overhead ? hop : overhead;
        net += nic * (protocol == LS_PROTOCOL_SIMPLE ? 2 : 1);
        if (at.ranks_per_node == 1)
            net = hop_tree_net_ns[protocol] + nic;
    }
    uint64_t ns = base_ring_ns[protocol] + (steps - inter) * hop + inter * net;
    if (at.nodes > 1 && is_all_reduce(kind) && protocol == LS_PROTOCOL_SIMPLE && bytes / p->net_channels / at.ranks >= 64)
        ns = ns * 7 / 5;
    return ns;
}

uint64_t ls_collective_latency_ps(const struct ls_platform *p, enum ls_op_kind kind, struct ls_placement at, enum ls_algorithm a,
                                  enum ls_protocol protocol, uint64_t bytes)
{
    uint64_t ns = UINT64_MAX;
    bool gather = kind == LS_OP_ALL_GATHER || kind == LS_OP_REDUCE_SCATTER, reduce = is_all_reduce(kind);
    if (at.ranks < 2)
        return UINT64_MAX;
    switch (a) {
    case LS_ALGORITHM_RING:
        if (protocol == LS_PROTOCOL_LL128 && at.nodes > 1 && !p->ll128_net)
            break;
        ns = ring_latency_ns(p, kind, at, protocol, bytes);
        break;
    case LS_ALGORITHM_TREE:
        if (!reduce || (protocol == LS_PROTOCOL_LL128 && at.nodes > 1 && !p->ll128_net))
            break;
        ns = base_tree_ns[protocol] +
             2 * ((at.ranks_per_node - 1) * hop_tree_ns[protocol] + log2_floor(at.nodes) * hop_tree_net_ns[protocol]);
        break;
    case LS_ALGORITHM_NVLS:
        if (p->nvls_Bps && at.nodes == 1 && protocol == LS_PROTOCOL_SIMPLE && (gather || reduce))
            ns = BASE_NVLS_NS;
        break;
    case LS_ALGORITHM_NVLS_TREE:
        if (p->nvls_Bps && at.nodes > 1 && at.ranks_per_node > 1 && protocol == LS_PROTOCOL_SIMPLE && reduce)
            ns = BASE_NVLS_NS + 2 * log2_floor(at.nodes) * (uint64_t)HOP_NVLS_TREE_NS;
        break;
    case LS_ALGORITHM_PAT:
        if (at.nodes > 1 && at.ranks_per_node == 1 && protocol == LS_PROTOCOL_SIMPLE && gather)
            ns = BASE_PAT_NS + log2_floor(at.nodes) * (uint64_t)HOP_PAT_NS * 2 / 7 + at.ranks * (uint64_t)RANK_PAT_NS;
        break;
    case LS_ALGORITHM_DIRECT: /* point to point, or as many of them at once: no steps, one network hop */
        if (protocol == LS_PROTOCOL_SIMPLE)
            ns = base_ring_ns[protocol] + (at.nodes > 1 ? hop_ring_net_ns[protocol] + 2 * p->nic_latency_ps / PS_PER_NS
                                                        : hop_ring_ns[protocol]);
        break;
    case LS_ALGORITHM_MEASURED:
    case LS_ALGORITHM_COUNT:
        break;
    }
    return ns == UINT64_MAX ? ns : ns * PS_PER_NS;
}

/* NICs that a group of this placement reaches, of the whole node's. */
static uint64_t net_share(const struct ls_platform *p, struct ls_placement at, uint64_t Bps)
{
    uint64_t nics = (at.ranks_per_node * p->nics + p->gpus - 1) / p->gpus;
    return Bps / p->nics * least(nics, p->nics);
}

/* NCCL's "bus bandwidth" of a choice, in bytes per second over one link of the ring. */
static uint64_t bus_Bps(const struct ls_platform *p, enum ls_op_kind kind, struct ls_placement at, enum ls_algorithm a,
                        enum ls_protocol protocol, uint64_t bytes)
{
    size_t column = at.nodes < 3 ? at.nodes - 1 : 2;
    bool net = at.nodes > 2; /* the intra search still holds for two nodes */
    uint64_t channels = net ? p->net_channels : p->ring_channels, full = net ? net_share(p, at, p->net_Bps) : p->ring_Bps;
    if (at.nodes == 2)
        full = least(full, net_share(p, at, p->nics * p->nic_Bps));
    uint64_t Bps = 0;
    switch (a) {
    case LS_ALGORITHM_RING:
        Bps = full;
        if (protocol == LS_PROTOCOL_LL)
            Bps = least(full / 2, (at.nodes == 1 ? ll_total_MBps[p->arch] : ll_net_MBps[p->cpu][at.nodes > 2]) * MB);
        if (protocol == LS_PROTOCOL_LL128)
            Bps = least(full / 100 * 92, channels * ll128_channel_MBps[p->arch] * MB);
        break;
    case LS_ALGORITHM_TREE:
        Bps = least(full / 100 * 92, channels * tree_channel_MBps[p->arch][column] * MB);
        if (protocol == LS_PROTOCOL_LL)
            Bps = Bps * 10 / 38;
        if (protocol == LS_PROTOCOL_LL128)
            Bps = least(at.nodes == 1 ? Bps / 9 * 7 : Bps / 128 * 120, channels * tree_ll128_channel_MBps[p->arch][column] * MB);
        /* NCCL corrects trees by a table over sizes that dips around a megabyte; a line in log2 bytes through its ends. */
        if (bytes >= 65536 && bytes < 2097152)
            Bps /= 2;
        else if (bytes >= 2097152 && bytes < 67108864)
            Bps = Bps / 100 * (50 + 8 * (log2_floor((uint32_t)(bytes >> 21)) + 1));
        break;
    case LS_ALGORITHM_NVLS:
        if (!p->nvls_Bps)
            break;
        Bps = p->nvls_Bps / 100 * nvls_efficiency_percent[p->arch] / p->nvls_channels * (p->nvls_channels - 1);
        Bps = is_all_reduce(kind) ? 2 * Bps : Bps / at.ranks * (at.ranks - 1);
        break;
    case LS_ALGORITHM_NVLS_TREE:
        Bps = least(net_share(p, at, p->net_Bps), p->nvls_channels * nvls_tree_channel_MBps[p->arch][column] * MB);
        break;
    case LS_ALGORITHM_PAT:
        Bps = full / 4 * 3;
        break;
    case LS_ALGORITHM_DIRECT:
        Bps = at.nodes == 1 ? p->nvlink_Bps : net_share(p, at, p->nics * p->nic_Bps);
        break;
    case LS_ALGORITHM_MEASURED:
    case LS_ALGORITHM_COUNT:
        break;
    }
    return Bps;
}

/* Bytes that cross one link of the ring, or what loads the most loaded link of other algorithms. */
static uint64_t bus_bytes(enum ls_op_kind kind, struct ls_placement at, enum ls_algorithm a, uint64_t bytes)
{
    ls_wide n = at.ranks, b = bytes, k = at.ranks_per_node;
    if (a == LS_ALGORITHM_TREE || a == LS_ALGORITHM_NVLS_TREE)
        return 2 * bytes;
    if (is_all_reduce(kind))
        return (uint64_t)(2 * b * (n - 1) / n);
    if (is_pipeline(kind) || kind == LS_OP_SEND || kind == LS_OP_RECV)
        return bytes;
    if (kind == LS_OP_ALL_TO_ALL && at.nodes > 1) /* of all ranks of a node, what leaves it */
        return (uint64_t)(k * b * (n - k) / n);
    return (uint64_t)(b * (n - 1) / n);
}

uint64_t ls_collective_cost_ps(const struct ls_collective_cost *c)
{
    if (!c->bus_bytes)
        return c->latency_ps;
    ls_wide ps = (ls_wide)c->bus_bytes * 1000000000000u;
    return c->latency_ps + (uint64_t)((ps + c->bus_Bps / 2) / c->bus_Bps);
}

static bool measured_cost(const struct ls_nccl_tests *m, enum ls_op_kind kind, struct ls_placement at, uint64_t bytes,
                          struct ls_collective_cost *out)
{
    uint64_t ps, floor_ps;
    if (!m || !ls_nccl_tests_find(m, kind, at, bytes, &ps) || !ls_nccl_tests_find(m, kind, at, 0, &floor_ps))
        return false;
    /* What the smallest call takes is taken as latency; only the rest shares links. */
    uint64_t bus = bus_bytes(kind, at, LS_ALGORITHM_RING, bytes);
    *out = (struct ls_collective_cost){ LS_ALGORITHM_MEASURED, LS_PROTOCOL_SIMPLE, ps, 0, 0 };
    if (ps > floor_ps && bus) {
        uint64_t Bps = (uint64_t)((ls_wide)bus * 1000000000000u / (ps - floor_ps));
        if (Bps) {
            out->bus_bytes = bus;
            out->bus_Bps = Bps;
            out->latency_ps = 0;
            out->latency_ps = ps - ls_collective_cost_ps(out);
        }
    }
    return true;
}

void ls_collective_choose(const struct ls_platform *p, const struct ls_nccl_tests *measured, enum ls_op_kind kind,
                          struct ls_placement at, uint64_t bytes, struct ls_collective_cost *out)
{
    if (kind == LS_OP_COMM_INIT) {
        *out = (struct ls_collective_cost){ LS_ALGORITHM_DIRECT, LS_PROTOCOL_SIMPLE, p->comm_init_ps, 0, 0 };
        return;
    }
    if (at.ranks < 2) { /* a copy on the device, read and written */
        ls_wide copy = (ls_wide)(2 * bytes) * 1000000000000u;
        *out = (struct ls_collective_cost){ LS_ALGORITHM_DIRECT, LS_PROTOCOL_SIMPLE,
                                            (uint64_t)(copy / (uint64_t)((double)p->hbm_Bps * p->hbm_efficiency)), 0, 0 };
        return;
    }
    if (measured_cost(measured, kind, at, bytes, out))
        return;
    bool direct = kind == LS_OP_ALL_TO_ALL || kind == LS_OP_GATHER || kind == LS_OP_SCATTER || kind == LS_OP_SEND || kind == LS_OP_RECV;
    uint64_t best = UINT64_MAX;
    for (enum ls_algorithm a = LS_ALGORITHM_RING; a < LS_ALGORITHM_MEASURED; a++)
        for (enum ls_protocol protocol = LS_PROTOCOL_LL; protocol < LS_PROTOCOL_COUNT; protocol++) {
            if ((a == LS_ALGORITHM_DIRECT) != direct)
                continue;
            struct ls_collective_cost c = { a, protocol, ls_collective_latency_ps(p, kind, at, a, protocol, bytes),
                                            bus_bytes(kind, at, a, bytes), bus_Bps(p, kind, at, a, protocol, bytes) };
            if (c.latency_ps == UINT64_MAX || c.bus_Bps == 0)
                continue;
            uint64_t ps = ls_collective_cost_ps(&c);
            if (ps < best) {
                best = ps;
                *out = c;
            }
        }
    assert(best != UINT64_MAX); /* ring or direct is always there */
}
