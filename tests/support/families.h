/* tests/support/families.h -- families of ranks for tests and benchmarks: an FSDP-like step, and random small ones. */
#ifndef LS_TESTS_FAMILIES_H
#define LS_TESTS_FAMILIES_H

#include "check/family.h"

struct families { struct ls_arena arena; struct ls_tables tables; struct ls_family family; };
void families_release(struct families *x);

/* `microbatches` rounds in which every rank holds an image or not, and a step end. Forward: one all_gather per unit (root,
 * towers, layers), each waited for by the host when the next one has been issued. Backward, in reverse: all_gather (not of
 * the root) and reduce_scatter; the step end waits for everything. With per_layer a rank without image skips the towers. */
struct fsdp_like { size_t ranks, towers, layers, microbatches; bool per_layer, two_streams; };
void families_fsdp(struct families *x, const struct fsdp_like *c);

/* What a random family may contain. */
struct random_family {
    size_t ranks_max, rounds_max, choices_max, ops_max, comms_max, streams_max;
};
void families_random(struct families *x, const struct random_family *c, uint64_t seed);

#endif
