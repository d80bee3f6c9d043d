/* src/engine/run/run.h -- runs a job with data, and tells what was seen.
 *
 * The program is the whole instruction set: every rank's ops go to a device and to communicators as they are listed. What a run
 * shows is told in the words of machine.h, from the state of the queues at the end; the machine is not asked. */
#ifndef LS_ENGINE_RUN_RUN_H
#define LS_ENGINE_RUN_RUN_H

#include "engine/comm/comm.h"
#include "engine/run/math.h"
#include "machine/machine.h"

struct ls_engine_options {
    bool free;                   /* threads instead of coroutines */
    uint64_t seed;               /* schedule of the coroutines; 0: lowest actor first */
    bool nccl_like;              /* pair by position */
    bool blocking;               /* L1: every stream op holds its thread */
    bool resident;               /* L3: collective kernels take slots of their rank ... */
    unsigned kernels;            /* ... which are so many, 0: no bound; send is buffered */
    enum ls_start start;
    size_t races;                /* look for at most so many */
    bool poison;                 /* new memory holds NaNs */
    bool accounting;             /* no data: only order, and bytes counted; for models larger than this machine */
    const volatile sig_atomic_t *interrupted; /* may be NULL */
    struct ls_world *world;      /* several processes run this job together, with equal options; NULL: this one alone */
    const struct ls_device_ops *device;       /* NULL: host */
    const struct ls_math_ops *math;           /* NULL: nothing computes */
    void *math_context;
    /* An op's work on its stream is over; by the device's host threads, under the lock. What follows from a collective's result
     * counts for the next op of that stream. NULL: no clock is read. */
    void (*span)(void *context, struct ls_at at, const struct ls_span *span); void *span_context;
};
struct ls_calls { struct ls_at *at; size_t count; };
struct ls_observed {
    struct ls_outcome outcome;   /* verdict SAFE, HANG, MISMATCH, MISPAIRING or ERROR, as in machine.h; owned by the arena */
    bool interrupted;            /* nothing else is known then */
    struct ls_memory *memory;    /* [ranks] */
    size_t clashes, silent;      /* nccl_like: differences that were met, and those that went through */
    bool **issued;               /* [ranks][ops in list order] */
    struct ls_race *race; size_t races; /* as ls_machine_races, from what the run did; verdicts do not count them */
    struct ls_calls *call;       /* [ranks] what was handed to communicators, in that order */
    double seconds;
};
/* Several processes: each runs its own ranks, then all of them know what every rank has shown: the same outcome, memory, calls and
 * results of the mathematics in each (`seconds` apart).
 *   errors  LS_EINPUT: an op that cannot run (see ls_machine_run); LS_EBACKEND: memory, threads, the device, messages, or processes
 *           that do not run the same job; one process' error is everybody's */
LS_MUST_USE enum ls_code ls_engine_run(const struct ls_engine_setup *setup, const struct ls_engine_options *o,
                                       struct ls_arena *arena, struct ls_observed *out, struct ls_error *err);

/* What the program's alloc and free ops take: the categories that the program decides. taken: [ops of the rank in list order],
 * or NULL: all. */
void ls_program_memory(const struct ls_job *job, uint32_t rank, const bool *taken, struct ls_memory *out);

/* ls_math_symbolic's context, one for all ranks. Share (rank, microbatch, step) of a parameter's gradient is a known pattern of
 * small integers; or, for one share alone, 1 for that share and 0 for all others, so that what arrives is its coefficient.
 *   segment  where any number of microbatches is allowed, segments share a label
 *   part     of the parameter that it is for: a rank's experts see the samples of its whole group, so that a sample has shares in all
 *            parts, made by other ranks */
struct ls_share { uint32_t rank, segment, microbatch, step, part; size_t times; };
struct ls_symbolic_problem {
    bool present;
    uint32_t param, rank, step;  /* the first wrong one: by rank, then step, then order in the optimizer's payload */
    uint64_t element;            /* of the parameter, over all its parts */
    double found, expected;
};
struct ls_symbolic_shares;
struct ls_symbolic {
    bool alone; struct ls_share share;  /* in: one share alone */
    uint32_t param, rank, step;         /* in, with `alone`: the value noted */
    bool noted; double found;           /* out */
    struct ls_symbolic_problem problem; /* out */
    size_t gradients, corrupted;        /* out: elements compared; elements of gathered parameters that were wrong */
    size_t parameters;                  /* out: elements of gathered parameters compared */
    struct ls_symbolic_shares *shares;  /* private */
};
/* The shares that a job's programs produce in a step for what `rank` has of a parameter, by producing rank, then program order. Owned by
 * the arena. */
size_t ls_job_shares(const struct ls_engine_setup *s, uint32_t param, uint32_t rank, uint32_t step, struct ls_arena *arena, struct ls_share **out);

#endif
