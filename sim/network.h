/* sim/network.h -- links shared by flows, behind one table: our solver, or SimGrid.
 *
 * A *kind* of flow uses links, each with a weight: at rate x it takes weight * x of the link. It is at most `cap` fast. Flows share by
 * weighted max-min: all rates grow together, and a flow stops growing when one of its links is full or it reaches its cap. Every
 * kind is known at open, since SimGrid needs its routes then. Latency is the caller's: bytes start to move when a flow starts.
 *
 *   units   any unit of amount ("bytes" here), amounts per second, picoseconds. link_Bps, cap_Bps, bytes < 2^56
 *   source  SimGrid's CM02 model with links of zero latency is the same max-min, and the oracle of ours */
#ifndef LS_SIM_NETWORK_H
#define LS_SIM_NETWORK_H

#include "base/arena.h"
#include "base/error.h"

#include <stdbool.h>
#include <stdint.h>

struct ls_net_use { uint32_t link, weight; };
struct ls_net_kind {
    const struct ls_net_use *use; /* by ascending link, each once */
    uint32_t uses;
    uint64_t cap_Bps;             /* 0: none; then uses > 0. SimGrid shares it among the flows of one kind: run one at a time */
};
struct ls_net_plan {
    const uint64_t *link_Bps;     /* [links] each > 0 */
    size_t links;
    const struct ls_net_kind *kind;
    size_t kinds;
    const char *setup;            /* as in ls_sim_options.network_setup */
};
struct ls_net_counts { uint64_t flows, solves; };

struct ls_network;
struct ls_network_ops {
    const char *name; /* as in --network NAME */
    /* Calls body(context) with the network open and the clock at 0, and returns when body has returned. */
    enum ls_code (*run)(const struct ls_net_plan *plan, void (*body)(void *context, struct ls_network *net), void *context,
                        struct ls_error *err);
    /* A flow starts now. Flows of equal uses, cap and bytes that start at one instant are one class: they end together. `tag` comes
     * back when it ends. bytes > 0. */
    void (*start)(struct ls_network *net, uint32_t kind, uint64_t bytes, uint64_t tag);
    /* Lets time pass until the next flow ends, and returns true with its tag; or until `until_ps`, and returns false. *now_ps is then
     * the time. Flows that end at one instant come in the order of their start, one per call. With no flow and until_ps = UINT64_MAX,
     * false at once. */
    bool (*advance)(struct ls_network *net, uint64_t until_ps, uint64_t *now_ps, uint64_t *tag);
    struct ls_net_counts (*counts)(const struct ls_network *net);
};
extern const struct ls_network_ops ls_network_maxmin;
/* By name; NULL if there is none, or this build lacks it ("simgrid" without SimGrid). */
const struct ls_network_ops *ls_network_find(const char *name);

#endif
