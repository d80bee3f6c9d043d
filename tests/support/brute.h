/* tests/support/brute.h -- runs every assignment of a system up to a size, one by one, on the machine. Knows nothing of folds. */
#ifndef LS_TESTS_BRUTE_H
#define LS_TESTS_BRUTE_H

#include "ir/system.h"
#include "machine/machine.h"

struct ls_brute_options {
    size_t replicas_max, rounds_max;
    size_t runs_max;        /* per mesh and driver path; beyond it, as many in order and as many at random */
    size_t total_max;       /* 0: none */
    uint64_t seed;
    size_t below_replicas, below_rounds; /* not 0: only runs smaller than this (replicas, then rounds) */
};
struct ls_brute {
    bool failed, complete;  /* complete: every assignment within the bounds was run */
    size_t runs;
    struct ls_assignment worst; /* the first failing run: fewest replicas, then fewest rounds */
    enum ls_verdict verdict;
};
void ls_brute_force(const struct ls_system *s, const struct ls_brute_options *o, struct ls_arena *arena, struct ls_brute *out);
/* Does the contract allow it? Written from the contract's definition, without the library's judgement. */
bool ls_brute_allowed(const struct ls_system *s, const struct ls_assignment *a);
enum ls_verdict ls_brute_run(const struct ls_system *s, const struct ls_assignment *a);

#endif
