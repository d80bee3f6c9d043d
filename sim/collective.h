/* sim/collective.h -- what a collective costs by itself: NCCL's choice of algorithm and protocol, or measured times.
 *
 * time = latency + bus_bytes / bus_Bps. The bandwidth part is what it shares with others: the same bytes cross every link of
 * the ring, so bus_bytes are those of one link (all_gather and reduce_scatter of S bytes in total: S (n - 1) / n).
 *
 *   source  NCCL src/graph/tuning.cc (2.30.7): constants and formulas; see collective.c
 *   units   bytes, bytes per second, picoseconds */
#ifndef LS_SIM_COLLECTIVE_H
#define LS_SIM_COLLECTIVE_H

#include "ir/program.h"
#include "sim/platform.h"

#define LS_ALGORITHMS(X) X(RING, "ring") X(TREE, "tree") X(NVLS, "nvls") X(NVLS_TREE, "nvls_tree") X(PAT, "pat") X(DIRECT, "direct") X(MEASURED, "measured")
#define LS_ALGORITHM_ENUM(id, name) LS_ALGORITHM_##id,
enum ls_algorithm { LS_ALGORITHMS(LS_ALGORITHM_ENUM) LS_ALGORITHM_COUNT };
#undef LS_ALGORITHM_ENUM
#define LS_PROTOCOLS(X) X(LL, "ll") X(LL128, "ll128") X(SIMPLE, "simple")
#define LS_PROTOCOL_ENUM(id, name) LS_PROTOCOL_##id,
enum ls_protocol { LS_PROTOCOLS(LS_PROTOCOL_ENUM) LS_PROTOCOL_COUNT };
#undef LS_PROTOCOL_ENUM
const char *ls_algorithm_name(enum ls_algorithm a);
const char *ls_protocol_name(enum ls_protocol p);

/* Where the members of a group sit. */
struct ls_placement { uint32_t ranks, nodes, ranks_per_node; /* the most on one node */ };
struct ls_placement ls_placement_of(const struct ls_platform *p, const uint32_t *rank, size_t ranks);

struct ls_collective_cost {
    enum ls_algorithm algorithm;
    enum ls_protocol protocol;
    uint64_t latency_ps, bus_bytes, bus_Bps; /* bus_bytes 0: latency only */
};
uint64_t ls_collective_cost_ps(const struct ls_collective_cost *c); /* alone on its links */

/* All bytes of one call: what a rank holds after an all_gather, or before a reduce_scatter or all_reduce. */
uint64_t ls_collective_bytes(const struct ls_tables *t, const struct ls_op *op, size_t ranks);
/* The fixed cost of one algorithm and protocol; UINT64_MAX when it is not available there. */
uint64_t ls_collective_latency_ps(const struct ls_platform *p, enum ls_op_kind kind, struct ls_placement at, enum ls_algorithm a,
                                  enum ls_protocol protocol, uint64_t bytes);
/* The cheapest choice, or the measured time if `measured` covers (kind, ranks, nodes); measured may be NULL.
 * Kinds: all of class C. send, recv: between two ranks, `at` being that of the pair. */
struct ls_nccl_tests;
void ls_collective_choose(const struct ls_platform *p, const struct ls_nccl_tests *measured, enum ls_op_kind kind,
                          struct ls_placement at, uint64_t bytes, struct ls_collective_cost *out);

#endif
