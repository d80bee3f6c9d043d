/* src/replay/train.h -- a scenario trained for real: losses, norms, tokens, times and memory of one run on the engine.
 *
 * The programs are those that check judges; every kernel computes (engine/nn). What is trained on and what comes out is a function
 * of (scenario, seed): neither the schedule nor threads change a bit of it, times apart. For what the model must look like, see
 * engine/nn/operators.md. */
#ifndef LS_REPLAY_TRAIN_H
#define LS_REPLAY_TRAIN_H

#include "base/spread.h"
#include "engine/nn/train.h"
#include "replay/replay.h"

struct ls_train_options {
    size_t steps, warmup;        /* steps that count, and steps before them; 0 steps: what the scenario fixes, less the warm-up, or else 5 */
    uint64_t seed;               /* weights, text and pictures; the run drawn where the contract leaves a choice */
    uint64_t schedule;           /* of the coroutines; 0: lowest rank first */
    bool free;                   /* a thread per host thread and stream instead of coroutines on one */
    unsigned blas_threads;       /* of each matrix product; 0: 1 */
    bool timeline, weights;      /* wanted in the result */
    bool force;                  /* compile what set-up refuses */
    bool nccl_like;              /* see ls_engine_options */
    const struct ls_nn_adamw *adamw;          /* NULL: PyTorch's defaults, clipped to 1 where the scenario clips */
    const volatile sig_atomic_t *interrupted; /* may be NULL */
    struct ls_world *world;      /* several processes: see ls_engine_options; every process gets the whole result. NULL: this one alone */
};

/* A scenario made ready. Points to storage of the caller, or of ls_train_prepare's arena. */
struct ls_train_case {
    const struct ls_scenario *scenario;
    struct ls_compiled *compiled;         /* refusal.rule set: refused at set-up, the rest is empty */
    const struct ls_assignment *assignment;
    const struct ls_engine_setup *setup;
    const struct ls_nn_vlm *vlm;
};
/* Can the engine compute this scenario? Builds the model's operators; owned by the arena.
 *   errors  LS_EINPUT with the reason: no model, a statement that no operator implements, media that the model cannot be fed, dtypes
 *           other than f32 and bf16 */
LS_MUST_USE enum ls_code ls_train_model(const struct ls_scenario *s, struct ls_arena *arena, struct ls_nn_vlm *out, struct ls_error *err);
/* Steps in all, warm-up included.
 *   errors  LS_EINPUT: more than the scenario fixes, or than LS_STEPS_MAX */
LS_MUST_USE enum ls_code ls_train_steps(const struct ls_scenario *s, const struct ls_train_options *o, size_t *out, struct ls_error *err);
/* Compiles, draws the run, builds the job. The scenario's sizes must be given (set mesh.shard, mesh.replicate before).
 *   errors  LS_EINPUT: as ls_train_model; more steps than the scenario fixes; see ls_scenario_compile */
LS_MUST_USE enum ls_code ls_train_prepare(const struct ls_scenario *s, const struct ls_variant *variant, const struct ls_train_options *o,
                                          struct ls_arena *arena, struct ls_train_case *out, struct ls_error *err);
void ls_train_release(struct ls_train_case *c); /* of ls_train_prepare; also after its failure */
/* About what all ranks together hold without activations: parameters sharded and all gathered, gradients, optimizer states. */
uint64_t ls_train_bytes(const struct ls_train_case *c);

/* A step of all ranks. NAN: not known, as everything of a step that did not end on every rank, times included. */
struct ls_train_step {
    double loss;                 /* mean over all labels of the step: every rank, every microbatch */
    double eval_loss;            /* the same of the evaluations that the schedule has between the step before and this one's end */
    double norm;                 /* of the gradients, before clipping: as the program reduces it, else added up from what ranks hold */
    double seconds;              /* from when the last rank was through with the step before to when the last one is with this */
    uint64_t text_tokens, image_tokens, audio_tokens; /* that enter the decoder, over ranks and microbatches; no padding exists. image_tokens,
                                           audio_tokens: those that stand for pictures, recordings. A dummy's are not among them */
};
/* An op on a stream of a rank; ns since the run's first op began. busy_ns: of the time in between, what computed or copied; the
 * rest waited: for an event, for the other members, or (coroutines) for a turn. */
struct ls_train_span {
    uint32_t rank, stream, step; /* step: of warm-up and steps together */
    struct ls_at at;             /* the op's place in the job */
    enum ls_op_kind kind;
    enum ls_pass pass;
    const char *label;           /* unit, else module, else what it carries, else "" */
    uint64_t begin_ns, end_ns, busy_ns;
};
struct ls_train {
    enum ls_verdict verdict;     /* SAFE: all steps ended; else as ls_observed, or SETUP_ERROR: refused (compiled->refusal), nothing ran.
                                    Gradients that are lost or weigh wrong are not seen here: ls_replay_run shows them */
    struct ls_observed observed; /* pending ops, peaks by category and rank, seconds in all; points into the case */
    struct ls_memory *program;   /* [ranks] what the programs decide; see ls_replay_memory */
    bool memory_equal;
    size_t ranks, warmup, steps; /* as asked */
    size_t ended;                /* steps, of warm-up and steps together, that ended on every rank */
    struct ls_train_step *step;  /* [warmup + steps] */
    double *rank_seconds;        /* [warmup + steps][ranks] between a rank's own ends of steps */
    double *rank_busy;           /* [warmup + steps][ranks] of them, seconds that computed or copied, over all streams */
    struct ls_train_span *span; size_t spans; /* timeline: by end */
    float **weight; size_t params; /* weights: [params of the model] float values after the last step; NULL: does not train, or a tied alias */
};
/* Everything in *out is owned by the arena. An interrupted run is no error: observed.interrupted, verdict UNDECIDED, and what the
 * steps that ended gave.
 *   errors  LS_EINPUT: what cannot be executed; LS_EBACKEND: memory, threads */
LS_MUST_USE enum ls_code ls_train_run(const struct ls_train_case *c, const struct ls_train_options *o, struct ls_arena *arena,
                                      struct ls_train *out, struct ls_error *err);

struct ls_spread ls_train_seconds(const struct ls_train *t); /* of the steps that count */
/* Tokens of the steps that count and ended, through their seconds. NAN: none ended. */
struct ls_train_rate { double text, image, audio; };
struct ls_train_rate ls_train_tokens_per_second(const struct ls_train *t);

#endif
