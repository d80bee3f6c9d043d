/* src/check/resident.h -- how many collective kernels must fit on a device.
 *
 * Two answers. The *bound*: ready and resident kernels of a rank head distinct streams and distinct communicators, so no rank
 * ever waits for a slot if there are as many slots as the largest matching of (stream, communicator) pairs that the rank
 * uses; an L2-safe plan then completes. The *least*: the smallest number for which exploration finds no stuck state; it may be
 * lower. Slots are counted with each op's own need (ls_op.slots, 1 by default). */
#ifndef LS_CHECK_RESIDENT_H
#define LS_CHECK_RESIDENT_H

#include "check/family.h"
#include "machine/machine.h"

/* Slots that are enough for a rank, whatever it chooses and whichever ready kernel starts first. */
unsigned ls_resident_bound(const struct ls_family_rank *rank, const struct ls_tables *tables, struct ls_arena *arena);
unsigned ls_resident_bound_of_family(const struct ls_family *f, struct ls_arena *arena); /* largest over the ranks */

struct ls_explore_options;
struct ls_resident {
    unsigned bound;    /* safe for every k >= bound if kernels may start in any order and the family is L2-safe */
    unsigned least;    /* safe for k = least and every k above it that was explored; 0: unsafe at every k explored */
    enum ls_verdict verdict; /* SAFE: `least` is known; HANG, ...: unsafe whatever the number of slots; UNDECIDED: limits */
    size_t states;     /* explored, over all k */
};
/* Explores k = bound, bound - 1, ... until a stuck state is found. More slots never hurt when kernels start in any order:
 * every schedule of k slots ... is explored anew for each k, so `least` does not rest on that. With issue order a plan that
 * is not safe at k = bound may be unsafe for every k; then `verdict` says so. */
LS_MUST_USE enum ls_code ls_resident_least(const struct ls_family *f, enum ls_start start, const struct ls_explore_options *o,
                                           struct ls_arena *arena, struct ls_resident *out, struct ls_error *err);

#endif
