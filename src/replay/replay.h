/* src/replay/replay.h -- a scenario on the engine: which run, with which parameters, and what was seen in the checker's words. */
#ifndef LS_REPLAY_REPLAY_H
#define LS_REPLAY_REPLAY_H

#include "advise/advise.h"
#include "engine/run/run.h"

/* A run that the contract allows: sizes as compiled, the table's letters or letters drawn with the seed; `steps` repetitions of
 * the schedule where its number is free. Owned by the arena.
 *   errors  LS_EINPUT: a size is `any` (compile with sizes given), or no run of the contract was found */
LS_MUST_USE enum ls_code ls_replay_assignment(const struct ls_compiled *c, size_t steps, uint64_t seed, struct ls_arena *arena,
                                              struct ls_assignment *out, struct ls_error *err);
/* What the engine must know beside the job. Letters become samples: those that a table names, else drawn with the seed. Owned by
 * the arena. */
void ls_replay_setup(const struct ls_scenario *s, const struct ls_compiled *c, const struct ls_assignment *a, const struct ls_job *job,
                     uint64_t seed, struct ls_arena *arena, struct ls_engine_setup *out);

/* L1, L2 or L3, as the scenario says. */
void ls_replay_level(const struct ls_scenario *s, struct ls_engine_options *o);

struct ls_replay {
    enum ls_verdict verdict;         /* seen: as outcome.verdict; RACE from the order of accesses (options.races), LOST_GRADIENT and
                                        WRONG_SCALE from the reduced gradients */
    struct ls_observed observed;
    struct ls_symbolic symbolic;     /* not for raw programs */
    struct ls_share_problem share;   /* LOST_GRADIENT, WRONG_SCALE */
    struct ls_memory *program;       /* [ranks] what the program's own alloc and free ops take, as far as they were issued */
    bool memory_equal;               /* the categories that the program decides, to the byte */
};
/* Runs the job with counting mathematics. After a run with wrong gradients it is repeated, one share at a time, until it is known
 * which one is missing or weighs too much. options.math and math_context are ignored. */
LS_MUST_USE enum ls_code ls_replay_run(const struct ls_engine_setup *setup, const struct ls_engine_options *o, bool gradients,
                                       struct ls_arena *arena, struct ls_replay *out, struct ls_error *err);

/* What the programs' own alloc and free ops took in a run, [ranks]. *equal: to the byte what the device counted, in the categories
 * that programs decide: unsharded parameters, gather and reduce buffers, and others of raw programs. Sharded parameters, gradients
 * and optimizer states are the interpreter's, activations and temporary memory the mathematics'. Owned by the arena. */
struct ls_memory *ls_replay_memory(const struct ls_engine_setup *setup, const struct ls_observed *seen, struct ls_arena *arena, bool *equal);

/* What the machine, its search for races (o->races) and the gradient check say of the same job. */
struct ls_prediction {
    enum ls_verdict verdict;         /* of the outcome that is told: the first unsafe one, if there is any */
    struct ls_outcome outcome;
    struct ls_race race;             /* RACE: the first one */
    struct ls_share_problem share;
    /* L3, where kernels may start in any order: every way in which a run can end, without those told already. */
    struct ls_outcome *other; size_t others;
    bool complete;                   /* there are no more; always, where the order does not matter */
};
LS_MUST_USE enum ls_code ls_replay_predict(const struct ls_engine_setup *setup, const struct ls_engine_options *o, bool gradients,
                                           struct ls_arena *arena, struct ls_prediction *out, struct ls_error *err);
/* The same verdict at the same place: op, unit and rank. *why: the first difference. At L3 with any order of starts: one of the ends
 * predicted; what was predicted incompletely, nothing contradicts. */
bool ls_replay_agrees(const struct ls_engine_setup *setup, const struct ls_prediction *p, const struct ls_replay *r, struct ls_str *why);
/* Were the calls made those of the program, op for op? After a run that completed, all of them. */
bool ls_replay_calls(const struct ls_engine_setup *setup, const struct ls_replay *r, struct ls_str *why);

#endif
