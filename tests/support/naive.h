/* tests/support/naive.h -- a second implementation of semantics.md, written to be checked by eye.
 *
 * It keeps one record per op, looks at the whole state to find everything that may happen next, and lets chance pick one.
 * It shares no code with src/machine beyond the names of its types. The rules: naive_rules.h; what the end amounts to: naive_judge.h. */
#ifndef LS_TESTS_NAIVE_H
#define LS_TESTS_NAIVE_H

#include "machine/machine.h"

enum { NAIVE_RANKS = 16 };
struct naive_op {
    const struct ls_op *op;
    struct ls_at at;
    uint32_t index;                 /* in the rank's whole program */
    size_t segment_first, segment_end;
    bool issued, started, paired, done;
    int agreed;                     /* decide: 0 open, 1 non-zero, 2 zero */
};
struct naive_rank { struct naive_op *op; size_t count; bool stopped, decides; /* a decide is in the program */ };
struct naive {
    const struct ls_job *job;
    const struct ls_run_options *o;
    struct naive_rank rank[NAIVE_RANKS];
    /* the end */
    enum ls_verdict verdict;
    enum ls_diff diff;
    uint32_t comm, group, missing_rank;
    size_t position;
    struct ls_at a, b;              /* mismatch, mispairing */
    size_t completed, issued, collectives;
};
/* Memory comes from the arena. options->seed picks the schedule. */
void naive_run(struct naive *n, const struct ls_job *job, const struct ls_run_options *options, struct ls_arena *arena);

#endif
