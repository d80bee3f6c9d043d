/* sim/platform.h -- the hardware that a job runs on, read from scenarios/platforms/.
 *
 *   units   bytes, bytes per second and picoseconds, as integers; FLOP/s and efficiencies (0 < e <= 1) as reals.
 *           In the files: GB/s = 1e9 bytes/s, GB = 1e9 bytes, GiB = 2^30 bytes, us = 1e6 ps, as each key's name says
 *   strict  unknown and missing keys are errors, with file:line:column */
#ifndef LS_SIM_PLATFORM_H
#define LS_SIM_PLATFORM_H

#include "ir/op.h"
#include "base/arena.h"
#include "base/error.h"

enum { LS_PLATFORM_NODES_MAX = 2048 };
/* NCCL's tuner keeps one set of bandwidth caps for each. */
enum ls_gpu_arch { LS_AMPERE, LS_HOPPER, LS_BLACKWELL };
enum ls_host_cpu { LS_CPU_INTEL, LS_CPU_AMD };

struct ls_platform {
    const char *name;
    size_t nodes, gpus;              /* gpus per node */
    enum ls_gpu_arch arch;
    enum ls_host_cpu cpu;
    uint64_t hbm_bytes, hbm_Bps;     /* per GPU */
    double hbm_efficiency, matmul_efficiency, layer_efficiency; /* of copies, large matrix products, whole layers */
    double flops[LS_DTYPE_COUNT];    /* dense peak; 0: no such units */
    uint64_t reserved_bytes;         /* of HBM, by the driver and the CUDA context */
    uint64_t nvlink_Bps;             /* per GPU, one way: the port that collectives of one GPU share */
    uint64_t nics, nic_Bps;          /* per node; each, one way, as achieved */
    uint64_t nic_latency_ps;         /* what NCCL reads from the device; 0 for InfiniBand */
    /* What NCCL's topology search finds: channels, and bytes per second over all of them. */
    uint64_t ring_channels, ring_Bps;          /* inside a node, and for two nodes */
    uint64_t net_channels, net_Bps;            /* three nodes and more; of all NICs of a node */
    uint64_t nvls_channels, nvls_Bps;          /* 0: no NVLink SHARP */
    bool ll128_net;                            /* LL128 between nodes */
    /* Time that a host thread takes to issue an op. */
    uint64_t launch_ps, collective_ps, event_ps, alloc_ps, sync_ps; /* sync: from an event's completion to the host going on */
    uint64_t comm_init_ps;           /* connecting a communicator, once */
};

/* `nodes` 0: what the file says.
 *   errors  LS_EINPUT: unreadable file, unknown, missing or wrong values; nodes > LS_PLATFORM_NODES_MAX */
LS_MUST_USE enum ls_code ls_platform_load(const char *path, size_t nodes, struct ls_arena *arena, struct ls_platform *out,
                                          struct ls_error *err);

#endif
