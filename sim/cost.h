/* sim/cost.h -- how long ops take on their own: compute by a roofline or a measured profile, collectives in collective.h.
 *
 * Roofline of COMPUTE, COPY_IN, COPY_OUT: max(flops / (efficiency x peak), bytes / (efficiency x HBM bandwidth)), from
 * ls_op.flops, ls_op.bytes (read and written) and the dtype that the unit computes in (ls_op.dtype; NONE counts as bf16). The
 * efficiency is the platform's for matrix products (flops only), copies (bytes only) or whole layers (both). An op with neither
 * takes no time. */
#ifndef LS_SIM_COST_H
#define LS_SIM_COST_H

#include "ir/program.h"
#include "sim/platform.h"

enum { LS_SPEED_ONE = 1000000 };
struct ls_nccl_tests; /* measured collectives; collective.h */

struct ls_cost {
    const struct ls_nccl_tests *measured; /* overrides the formula of the collectives that it covers; NULL: none */
    /* A measured profile: true if it knows this compute or copy op and has set *ps, at nominal speed. NULL: none. */
    bool (*profile)(void *context, const struct ls_tables *t, const struct ls_op *op, uint64_t *ps);
    /* True if it knows what this op costs the host thread that issues it, and has set *ps. NULL: the platform's launch times. */
    bool (*issue)(void *context, const struct ls_tables *t, const struct ls_op *op, uint64_t *ps);
    void *profile_context;      /* of both */
    const uint32_t *slowness;   /* [ranks] factor on compute time in millionths: LS_SPEED_ONE is nominal, 1100000 is 10 % slower. NULL: all nominal */
    uint32_t jitter;            /* each compute op takes up to this many millionths more or less, uniformly; < LS_SPEED_ONE */
    uint64_t tokens;            /* that a message of so many elements per token stands for: the routing decides; 0: one */
    uint64_t seed;              /* of the jitter: a function of (seed, rank, segment, op), not of the order of events */
};

/* At nominal speed. */
uint64_t ls_cost_compute_ps(const struct ls_cost *c, const struct ls_platform *p, const struct ls_tables *t, const struct ls_op *op);
/* On one rank, with its speed and jitter. */
uint64_t ls_cost_scale_ps(const struct ls_cost *c, uint64_t nominal_ps, uint32_t rank, uint32_t segment, uint32_t op);
/* Time for its host thread to issue it, work of the device not included. */
uint64_t ls_cost_issue_ps(const struct ls_cost *c, const struct ls_platform *p, const struct ls_tables *t, const struct ls_op *op);

#endif
