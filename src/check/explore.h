/* src/check/explore.h -- explores every choice and every interleaving of a fixed number of ranks.
 *
 * Without reductions it visits the machine's transition relation as it is, one state per combination of choices, places and
 * pending ops: what SPIN visits on the model that promela.h exports. With reductions it visits few representatives and gives
 * the same verdict; explore.c argues each reduction.
 *
 *   bounds  states, bytes and seconds; when one is reached the verdict is UNDECIDED and `limit` names it
 *   memory  every state is stored exactly (no hash compaction). Without reductions only two layers are held at a time */
#ifndef LS_CHECK_EXPLORE_H
#define LS_CHECK_EXPLORE_H

#include "check/family.h"
#include "machine/machine.h"

struct ls_explore_options {
    struct ls_run_options run;  /* seed: unused */
    bool reduce;                /* partial-order and symmetry reduction, pasts forgotten */
    bool no_symmetry;           /* with reduce: without the symmetry */
    bool all;                   /* go on after a violation, to count every state */
    bool no_path;               /* do not look for a schedule */
    size_t states_max, bytes_max; double seconds_max; /* 0: 200 million, 8 GiB, none */
};

enum ls_did { LS_DID_ISSUE, LS_DID_CHOOSE, LS_DID_RUN, LS_DID_START, LS_DID_MEET };
struct ls_explored_step {
    enum ls_did did;
    struct ls_at at;            /* CHOOSE: op is the choice. MEET: the op of the first member */
    uint32_t comm, group;       /* MEET; group is LS_NO_ID for a send with its receive */
};

struct ls_explored {
    enum ls_verdict verdict;    /* SAFE, HANG, MISMATCH, MISPAIRING, ERROR, UNDECIDED: of the first violation found */
    enum ls_diff diff;          /* MISMATCH */
    struct ls_at a, b;          /* the two ops that meet; HANG: a is some op that cannot go on */
    bool slots;                 /* HANG: some kernel waits for a slot */
    size_t states, transitions, depth; /* depth: longest distance from the start */
    size_t states_bits;         /* of one stored state */
    size_t local_states, classes;      /* of the ranks' automata; groups of interchangeable ranks */
    size_t peak;                /* states held at the same time */
    size_t bytes;               /* peak memory of tables and automata */
    size_t violations;          /* states found in violation (with `all`) */
    double seconds;
    const char *limit;          /* UNDECIDED: which; otherwise NULL */
    /* A violation's run; all NULL or 0 when there is none or none was asked for. */
    uint32_t *const *pick; size_t *picks;          /* choices, as ls_family_job takes them */
    struct ls_explored_step *step; size_t steps;   /* a schedule that leads to it, from the start */
};
/* Everything in *out is owned by `arena`.
 *   errors  LS_EINPUT: the family is malformed, or holds what exploration does not cover (fused ops, several
 *           host threads on a rank, buffered sends) */
LS_MUST_USE enum ls_code ls_explore(const struct ls_family *f, const struct ls_explore_options *o, struct ls_arena *arena,
                                    struct ls_explored *out, struct ls_error *err);

#endif
