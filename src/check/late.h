/* src/check/late.h -- plans in which one replica may issue an op rounds later than another: how many rounds must be looked at
 * together (Theorem 3), and whether their order graphs have a cycle. */
#ifndef LS_CHECK_LATE_H
#define LS_CHECK_LATE_H

#include "check/witness.h"

/* What a proof has visited: (driver node, macro-state) pairs, each with the round that first led to it. */
struct ls_search_node { uint32_t driver, macro, from, klass, depth; size_t ops; };
struct ls_search {
    LS_VEC(struct ls_search_node) node;
    bool late, fused, p2p; /* seen in some round */
};
/* The rounds from the start to search node `at`, and then one more with `klass` (LS_NO_ID: none). */
LS_MUST_USE enum ls_code ls_search_path(struct ls_fold *f, const struct ls_search *s, uint32_t at, uint32_t klass,
                                        struct ls_arena *arena, struct ls_path *out, struct ls_error *err);

struct ls_late {
    bool bounded;       /* no op can stay late for ever */
    size_t window;      /* rounds; if bounded */
    size_t spanning;    /* folded communicators in use that span replicas */
    size_t rounds[LS_LEVELS_MAX]; /* by level: round boundaries that an op can stay late */
};
LS_MUST_USE enum ls_code ls_late_window(struct ls_fold *f, const struct ls_search *s, struct ls_arena *arena, struct ls_late *out,
                                        struct ls_error *err);

struct ls_late_found {
    bool cyclic;
    struct ls_path path; size_t first; /* the window starts at this round of the path */
    struct ls_cycle cycle;
    const char *limit;                 /* not all windows were looked at, and why */
};
struct ls_late_options {
    size_t window;       /* rounds to look at together */
    size_t rounds_max;   /* only runs of at most this many rounds; 0: all */
    bool blocking;       /* every op blocks its host thread (L1) */
    bool fewest;         /* the cycle in the run with the fewest rounds */
    size_t nodes_max;    /* of all order graphs together; 0: 100 million */
    double until;        /* ls_clock() at which to give up; 0: never */
};
LS_MUST_USE enum ls_code ls_late_check(struct ls_fold *f, const struct ls_search *s, const struct ls_late_options *o,
                                       struct ls_arena *arena, struct ls_late_found *out, struct ls_error *err);

#endif
