/* src/machine/machine.h -- the abstract machine: what may happen next, and what went wrong. semantics.md defines it.
 *
 * Pure functions over a job: check explores it, sim adds time, the engine adds data. At L1 and L2 the machine is confluent:
 * whatever the schedule, the same ops complete, so one run decides. */
#ifndef LS_MACHINE_MACHINE_H
#define LS_MACHINE_MACHINE_H

#include "ir/program.h"

enum ls_level { LS_L1 = 1, LS_L2 = 2, LS_L3 = 3 };
enum ls_start { LS_START_ANY, LS_START_ISSUE_ORDER }; /* L3: which ready kernel may take a slot */

#define LS_VERDICTS(X)                       \
    X(SAFE,          "safe")                 \
    X(HANG,          "hang")                 \
    X(MISMATCH,      "mismatch")             \
    X(MISPAIRING,    "mispairing")           \
    X(LOST_GRADIENT, "lost_gradient")        \
    X(WRONG_SCALE,   "wrong_scale")          \
    X(LAYOUT,        "layout")               \
    X(RACE,          "race")                 \
    X(ERROR,         "error")                \
    X(OOM,           "oom")                  \
    X(SETUP_ERROR,   "setup_error")          \
    X(UNDECIDED,     "undecided")
#define LS_VERDICT_ENUM(id, name) LS_##id,
enum ls_verdict { LS_VERDICTS(LS_VERDICT_ENUM) LS_VERDICT_COUNT };
#undef LS_VERDICT_ENUM
const char *ls_verdict_name(enum ls_verdict v);
bool ls_verdict_find(const char *name, enum ls_verdict *out);

/* How two ops that meet differ; NCCL reacts differently to each. */
#define LS_DIFFS(X) \
    X(NONE, "none") X(KIND, "op") X(COUNT, "count") X(DTYPE, "dtype") X(REDUCE, "reduce") X(ROOT, "root") X(PAYLOAD, "payload")
#define LS_DIFF_ENUM(id, name) LS_DIFF_##id,
enum ls_diff { LS_DIFFS(LS_DIFF_ENUM) LS_DIFF_END };
#undef LS_DIFF_ENUM
const char *ls_diff_name(enum ls_diff d);
/* The first difference in the order above between two ops of one communicator at the same position. */
enum ls_diff ls_op_diff(const struct ls_tables *t, const struct ls_op *a, const struct ls_op *b);
/* What users see with NCCL when two ops that differ by `d` meet: "hang", "silent" or "crash". */
const char *ls_diff_seen_as(enum ls_diff d, const struct ls_op *a, const struct ls_op *b);

struct ls_run_options {
    enum ls_level level;
    unsigned kernels;      /* L3: collective kernels resident per rank; 0: no bound */
    enum ls_start start;
    bool unbuffered_send;  /* L3: a send completes with its receive; otherwise when it is issued */
    size_t run_ahead;      /* host may be at most this many unfinished stream ops ahead; 0: no bound */
    bool as_nccl;          /* goes on as NCCL does: ops that differ and pass unnoticed (ls_diff_seen_as silent) are paired and counted */
    uint64_t seed;         /* schedule; 0: the canonical one (lowest rank first) */
    /* L3 with LS_START_ANY: which of `count` startable kernels (by rank, then stream) takes its slots next, in [0, count).
     * Asked when nothing else can move. NULL: as soon as they fit; with a seed, by chance. */
    size_t (*choose)(void *context, size_t count);
    void *choose_context;
};

/* as_nccl: how many ops differed from what they were paired with, and passed; the first of them. */
struct ls_silent { size_t pairs; const struct ls_op *a, *b; uint32_t rank_a, rank_b; };
/* A member that waited too long gives up: it goes on without the op, or raises (sim/fate.h). */
enum ls_lost { LS_LOST_NOT, LS_LOST_GO_ON, LS_LOST_RAISE };

struct ls_at { uint32_t rank; uint32_t segment, op; }; /* an op of a job */

/* Why an unfinished op waits. */
enum ls_blocked { LS_BLOCKED_NONE, LS_BLOCKED_MEMBERS, LS_BLOCKED_STREAM, LS_BLOCKED_EVENT, LS_BLOCKED_FIFO, LS_BLOCKED_PEER,
                  LS_BLOCKED_SLOT, LS_BLOCKED_HOST };
struct ls_pending { struct ls_at at; enum ls_blocked why; struct ls_at on; }; /* on: the op it waits for, if one exists */

struct ls_outcome {
    enum ls_verdict verdict;   /* SAFE (everything completed), HANG, MISMATCH, MISPAIRING, RACE, ERROR */
    enum ls_diff diff;         /* MISMATCH */
    /* The violation at the smallest (communicator, k) that no other precedes in the ready-after relation. */
    uint32_t comm, group;      /* LS_NO_ID when the hang is not at a collective */
    size_t position;           /* k, from 0, on that group */
    struct ls_at a, b;         /* the two ops that meet (mismatch, mispairing), or the first waiting op and what it lacks */
    uint32_t missing_rank;     /* HANG: a member that never issues op k on this group, or LS_NO_ID (a wait cycle) */
    struct ls_pending *pending; size_t pending_count;   /* every rank's head ops at the end, by rank */
    struct ls_at *cycle; size_t cycle_count;            /* HANG by a wait cycle: op i waits for op i + 1, cyclically */
    size_t completed, issued;  /* ops */
    size_t collectives;        /* group-level completions */
};

/* Runs a job to its end state. Everything in *out is owned by `arena`. */
LS_MUST_USE enum ls_code ls_machine_run(const struct ls_job *job, const struct ls_run_options *options,
                                        struct ls_arena *arena, struct ls_outcome *out, struct ls_error *err);

/* L3 with LS_START_ANY: runs every order in which kernels can take slots, at most `runs_max` of them. *out is that of the first
 * run that is not safe; safe if none is; UNDECIDED if the limit came first. *runs counts them. For small jobs. */
LS_MUST_USE enum ls_code ls_machine_explore_starts(const struct ls_job *job, const struct ls_run_options *options, size_t runs_max,
                                                   struct ls_arena *arena, struct ls_outcome *out, size_t *runs,
                                                   struct ls_error *err);

/* The same, told of every run, until `see` says no. The outcome is the arena's until the next. *all: there are no more. */
LS_MUST_USE enum ls_code ls_machine_each_start(const struct ls_job *job, const struct ls_run_options *options, size_t runs_max,
                                               struct ls_arena *arena, bool (*see)(void *context, const struct ls_outcome *outcome),
                                               void *context, size_t *runs, bool *all, struct ls_error *err);

#define LS_RACE_KINDS(X)            \
    X(CONFLICT,   "conflict")       /* two accesses, one a write, unordered */                                     \
    X(FREED,      "freed")          /* a: access; b: free of memory that is reused before it */                    \
    X(EARLY,      "early")          /* a: alloc; b: access on another stream that does not come after it */        \
    X(AFTER_FREE, "after_free")     /* a: free; b: access */
#define LS_RACE_ENUM(id, name) LS_RACE_##id,
enum ls_race_kind { LS_RACE_KINDS(LS_RACE_ENUM) LS_RACE_COUNT };
#undef LS_RACE_ENUM
const char *ls_race_kind_name(enum ls_race_kind kind);
struct ls_race { enum ls_race_kind kind; uint32_t buffer; struct ls_at a, b; /* a is listed before b, on the same rank */ };

/* Looks for races among the ops that a run at L2 issues: by rank, then by b; at most `most`, owned by the arena. */
LS_MUST_USE enum ls_code ls_machine_races(const struct ls_job *job, size_t most, struct ls_arena *arena, struct ls_race **out,
                                          size_t *count, struct ls_error *err);

#endif
