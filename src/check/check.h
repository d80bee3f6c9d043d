/* src/check/check.h -- one system in, one verdict out: proof, exploration, gradients, smallest witness.
 *
 * What is proved, why it is true and where it stops: src/machine/semantics.md. No policy is known here. */
#ifndef LS_CHECK_CHECK_H
#define LS_CHECK_CHECK_H

#include "ir/system.h"
#include "machine/machine.h"

struct ls_check_options {
    size_t macro_states_max;     /* joint sets visited by the proof; 0: default */
    size_t explore_states_max;   /* 0: default */
    size_t replicas_max;         /* exploration of assignments and witness minimisation; 0: default (6) */
    size_t rounds_max;
    double seconds_max;          /* 0: none */
    uint64_t seed;
    bool gradients;              /* also check gradient shares and factors ... */
    bool mean;                   /* ... whose expected sum is a mean over replicas */
    bool races;
    void (*progress)(void *self, const char *stage, size_t done, size_t total); void *progress_self;
};

/* How a `safe` is known. */
enum ls_known { LS_KNOWN_PROVED, LS_KNOWN_EXPLORED, LS_KNOWN_EXECUTED };

struct ls_share_problem {        /* LOST_GRADIENT, WRONG_SCALE */
    uint32_t param;              /* name id */
    struct ls_ratio found, expected;
    uint32_t rank, microbatch;   /* the first missing share */
    size_t missing, shares;
};
struct ls_witness {              /* a concrete run that was executed and failed */
    struct ls_assignment assignment;
    struct ls_job job;
    struct ls_outcome outcome;
    struct ls_share_problem share;
    struct ls_race race;         /* RACE: also outcome.a and outcome.b */
    bool minimal;                /* everything smaller was explored and is safe */
};
struct ls_check_result {
    enum ls_verdict verdict;
    enum ls_known known;
    bool every_size, every_length;       /* proved for all sizes of the free dimensions, all numbers of rounds */
    size_t states, macro_states, folded_rounds;  /* of the proof */
    size_t explored;                     /* assignments or states executed */
    size_t runs_checked;                 /* runs whose gradients and buffers were checked; 0: not asked for */
    bool runs_complete;                  /* they take every transition of a replica (reach.h) */
    unsigned kernels_needed;             /* L3: safe if at least this many collective kernels fit on a device */
    const char *limit;                   /* UNDECIDED: which limit; otherwise NULL */
    struct ls_witness *witness;          /* unsafe verdicts */
    double seconds;
};
LS_MUST_USE enum ls_code ls_check_system(const struct ls_system *s, const struct ls_check_options *o, struct ls_arena *arena,
                                         struct ls_check_result *out, struct ls_error *err);

#endif
