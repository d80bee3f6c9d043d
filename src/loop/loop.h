/* src/loop/loop.h -- the training loop around forward and backward: what it reduces, and what ranks decide by themselves.
 *
 * A decision is either *agreed* (a reduced value that all ranks read: every rank takes the same way, so it is the driver's) or a
 * rank's own. A rank's own decision is an *event*: a bit of the letter that it takes in a round. So the proof covers both: agreed
 * ones as edges of the driver, own ones as letters of a free contract.
 *
 *   loop.c     events, letters, contract
 *   rounds.c   which sequences of rounds exist
 *   around.c   the transducer around the one of the framework */
#ifndef LS_LOOP_LOOP_H
#define LS_LOOP_LOOP_H

#include "batch/batch.h"
#include "ir/system.h"

enum ls_agree { LS_AGREE_NONE, LS_AGREE_ALL_REDUCE, LS_AGREE_JOIN };
enum ls_who { LS_WHO_ALL, LS_WHO_MAIN, LS_WHO_OWN };
enum ls_when { LS_WHEN_ALWAYS, LS_WHEN_HELD, LS_WHEN_ANY }; /* HELD: the rank's batches held one of the conditions */
enum ls_scaler { LS_SCALER_NONE, LS_SCALER_SHARDED, LS_SCALER_LOCAL };

/* A value that is all-reduced under a name of its own. */
struct ls_named { uint32_t name; enum ls_when when; uint32_t conditions; struct ls_loc at; };

/* One that ranks take part in by their own decision; `features` are what can be made agreed. */
#define LS_LOOP_FEATURES(X) /* id, the change that makes it agreed */                                                              \
    X(MICROBATCHES,   "loop.microbatches.agree: all_reduce")                                                                       \
    X(DATA,           "loop.data.agree: all_reduce")                                                                               \
    X(EVAL_BATCHES,   "loop.validation.agree: all_reduce")                                                                         \
    X(EVAL_RANKS,     "loop.validation.ranks: all")                                                                                \
    X(EARLY_STOP,     "loop.early_stop.agree: all_reduce")                                                                         \
    X(SAVE,           "loop.save: all ranks save, or none")                                                                        \
    X(NON_FINITE,     "step.non_finite.agree: all_reduce")                                                                         \
    X(SCALER,         "step.grad_scaler: sharded")                                                                                 \
    X(METRICS,        "step.metric_names: agreed")                                                                                 \
    X(FORWARD,        "step.forward_reduce: on every rank, whatever its batch")
#define LS_LOOP_ENUM(id, text) LS_LOOP_##id,
enum ls_loop_feature { LS_LOOP_FEATURES(LS_LOOP_ENUM) LS_LOOP_FEATURE_COUNT };
#undef LS_LOOP_ENUM

/* A rank's own decision in rounds of some kinds. */
struct ls_event {
    enum ls_loop_feature feature;
    uint32_t name;        /* as a table of batches writes it: "out_of_data", "logs acc" */
    uint32_t says;        /* as a witness tells it: "has no more data" */
    uint32_t rounds;      /* bit set of round kinds */
    uint32_t item;        /* which metric or forward value */
    struct ls_loc at;
};

struct ls_loop {
    bool present;                    /* the loop says more than clipping and metrics of all ranks */
    struct ls_loc at;
    /* step: */
    struct ls_named *token; size_t tokens;       /* reduced before the first microbatch of a step */
    struct ls_named *forward; size_t forwards;   /* reduced inside forward, as its last operations */
    struct ls_named *metric; size_t metrics;     /* reduced after the optimizer; only if one has a `when`, else the step has them */
    bool names_agreed;                           /* the names are gathered first, and all ranks reduce the union */
    enum ls_scaler scaler; struct ls_loc scaler_at;
    bool non_finite, raise; enum ls_agree non_finite_agree; struct ls_loc non_finite_at;  /* the loss is looked at before backward */
    /* loop: */
    bool own_microbatches; enum ls_agree microbatches_agree; struct ls_loc microbatches_at;
    bool own_data; enum ls_agree data_agree; struct ls_loc data_at;
    bool own_eval_batches; enum ls_agree eval_agree; enum ls_who eval_ranks; struct ls_loc eval_at;
    struct ls_named *eval_metric; size_t eval_metrics;
    bool early_stop; enum ls_agree stop_agree; struct ls_loc stop_at;
    bool save_full; enum ls_who save_ranks; enum ls_agree save_agree; struct ls_loc save_at;
    enum ls_round_kind *after; size_t afters;    /* rounds at the end of an epoch */
    struct ls_event *event; size_t events;       /* made by ls_loop_events */
};

/* The loop with these features agreed (bit set of enum ls_loop_feature). */
struct ls_loop ls_loop_agreed(const struct ls_loop *from, uint32_t features, struct ls_arena *arena);
/* Features in which ranks decide by themselves. */
uint32_t ls_loop_own(const struct ls_loop *loop);
const char *ls_loop_repair(enum ls_loop_feature feature);
/* Fills loop->event; names are added. Events are owned by `arena`. */
void ls_loop_events(struct ls_loop *loop, struct ls_names *names, struct ls_arena *arena);

/* Letters with events: those of `in` first, then each of them with every combination of events that one round can have.
 *   errors  LS_EINPUT: more than LS_LETTERS_MAX of them */
LS_MUST_USE enum ls_code ls_loop_letters(const struct ls_loop *loop, const struct ls_batch *b, const struct ls_letters *in,
                                         struct ls_names *names, struct ls_arena *arena, struct ls_letters *out, struct ls_error *err);
/* Index of the letter with this batch and these events, LS_NO_ID if there is none. */
uint32_t ls_loop_letter(const struct ls_letters *l, uint32_t base, uint32_t events);
/* The contract of the batches, extended to events: a replica takes its events by itself. A table also holds them.
 *   errors  as ls_batch_contract; a table whose rows fit neither the rounds with batches nor all rounds */
LS_MUST_USE enum ls_code ls_loop_contract(const struct ls_loop *loop, const struct ls_batch *b, const struct ls_letters *base,
                                          const struct ls_letters *letters, const struct ls_rounds *rounds, const struct ls_driver *driver,
                                          uint32_t mesh_dims, size_t replicas, struct ls_arena *arena, struct ls_contract *out,
                                          struct ls_error *err);

/* Rounds, driver and which letters a node allows. A table, or letters that stand apart, need one line of rounds: what the
 * schedule says, without the ways that an agreed decision might take.
 *   early     [rounds] the round of the same microbatch with the switches of a last one
 *   skipped   [rounds] the same microbatch, forward only
 *   errors    as ls_batch_driver */
struct ls_loop_rounds { struct ls_rounds rounds; uint32_t *early, *skipped; };
LS_MUST_USE enum ls_code ls_loop_driver(const struct ls_loop *loop, const struct ls_batch *b, const struct ls_letters *letters,
                                        struct ls_arena *arena, struct ls_loop_rounds *rounds, struct ls_driver *out, struct ls_error *err);

/* A full state dict: one all-gather per entry on the communicator of its shards; LS_NO_ID: not sharded, nothing is gathered. */
struct ls_saved { uint32_t payload, comm; uint64_t count; enum ls_dtype dtype; };
struct ls_around_input {
    const struct ls_loop *loop;
    const struct ls_letters *letters;      /* with events */
    const struct ls_loop_rounds *rounds;
    struct ls_transducer *inner;           /* takes the letters without events, and the rounds MICRO, SKIPPED, STEP, EVAL, IDLE */
    struct ls_tables *tables;
    uint32_t comm;                         /* of all data-parallel ranks, LS_NO_ID if there is one rank */
    const struct ls_saved *saved; size_t saves;
    bool sharded_save_talks;               /* the sharded checkpoint's planner gathers and scatters */
};
/* The transducer of a replica with its loop. Closing it leaves `inner` open. */
LS_MUST_USE enum ls_code ls_around_open(const struct ls_around_input *in, struct ls_arena *arena, struct ls_transducer **out,
                                        struct ls_error *err);
void ls_around_close(struct ls_transducer *t); /* accepts NULL */

#endif
