/* sim/traffic.h -- which links a job's collectives and messages use, and what each costs. Private to sim/.
 *
 * Links: every NIC, out and in; every GPU's NVLink port, out and in. GPU g of a node uses NIC g * nics / gpus. A group over several nodes
 * spreads over k NICs of each of them, so its rate is counted per NIC, and its NVLink ports carry k times as much. Amounts are
 * bytes x LS_AMOUNT, which makes bytes / k whole. */
#ifndef LS_SIM_TRAFFIC_H
#define LS_SIM_TRAFFIC_H

#include "base/vec.h"
#include "ir/program.h"
#include "sim/collective.h"
#include "sim/measured.h"
#include "sim/network.h"

enum { LS_AMOUNT = 840, LS_NICS_MAX = 8 }; /* 840: divisible by 1 to 8 */

struct ls_charge { uint32_t placed, kind; uint64_t bytes; struct ls_collective_cost cost; }; /* of one kind of call on one kind of group */
struct ls_channel { uint64_t cap; uint32_t owner, weight, hop, zero; };                     /* a kind of flow: whose, and how; zero: no padding */
struct ls_traffic {
    const struct ls_job *job;
    const struct ls_platform *platform;
    const struct ls_nccl_tests *measured;
    bool uncoupled;
    uint64_t tokens;                   /* of messages that have a symbol */
    struct ls_arena *arena;
    uint32_t *group_base;              /* [comms + 1] */
    uint32_t *placed;                  /* [groups] index into placement */
    LS_VEC(struct ls_placement) placement;
    LS_VEC(struct ls_charge) charge;
    uint32_t *charge_slot, *channel_slot;
    size_t charge_room, channel_room;
    LS_VEC(struct ls_channel) channel; /* index = kind of the network */
    LS_VEC(struct ls_net_kind) kind;
    LS_VEC(uint64_t) link_Bps;
    LS_VEC(uint64_t) pair;             /* sender << 32 | receiver; owner = groups + index */
    uint32_t *pair_slot;
    size_t pair_room;
};
/* Reads every op of the job, so that all kinds of flows are known. What *t and *plan point to is owned by `arena` and t. */
void ls_traffic_open(struct ls_traffic *t, const struct ls_job *job, const struct ls_platform *p, const struct ls_nccl_tests *measured,
                     uint64_t tokens, bool uncoupled, struct ls_arena *arena, struct ls_net_plan *plan);
void ls_traffic_close(struct ls_traffic *t);
uint64_t ls_traffic_latency_ps(struct ls_traffic *t, uint32_t comm, uint32_t group, const struct ls_op *op);
uint64_t ls_traffic_latency_pair_ps(struct ls_traffic *t, uint32_t sender, uint32_t receiver, const struct ls_op *op);
/* Start the flows of one call; how many there are. */
uint32_t ls_traffic_start(struct ls_traffic *t, uint32_t comm, uint32_t group, const struct ls_op *op, const struct ls_network_ops *ops,
                          struct ls_network *net, uint64_t tag);
uint32_t ls_traffic_start_pair(struct ls_traffic *t, uint32_t sender, uint32_t receiver, const struct ls_op *op,
                               const struct ls_network_ops *ops, struct ls_network *net, uint64_t tag);

#endif
