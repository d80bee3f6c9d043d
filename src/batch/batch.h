/* src/batch/batch.h -- descriptions of batches, the letters they map to, and what a batch contract allows.
 *
 * A *sample* describes a microbatch of one replica. A *letter* is a class of samples that yield the same ops: how often each
 * condition of the flow holds (0, 1, 2), and whether a dummy forward stands in for a missing modality. The map is printed. */
#ifndef LS_BATCH_BATCH_H
#define LS_BATCH_BATCH_H

#include "ir/system.h"
#include "model/model.h"

struct ls_sample {
    uint64_t text, images, videos, audios;
    uint8_t condition[LS_CONDITIONS_MAX]; /* how often conditions of the flow hold that count no media: branches of forward */
    /* Sizes, for the simulator alone: sequences that the text is packed into (0: 1); per call of the tower, 0: from the model. */
    uint64_t sequences, image_patches, video_patches, audio_positions;
    bool idle_experts; /* the gates send no token of any rank to this rank's experts */
    struct ls_loc at;
};

struct ls_letter {
    uint8_t count[LS_CONDITIONS_MAX];   /* how often the flow's condition holds */
    uint32_t dummy;                     /* bit set of conditions that a dummy stands in for: at most one of a modality, and only
                                           if every condition of that modality has count 0 */
    uint64_t tokens;                    /* of text, where the dispatcher asks for equal numbers; else 0 */
    bool idle_experts;                  /* where that makes a difference */
    uint32_t name;                      /* "text only", "1 image", "2 images + 1 video", "text only + vision dummy" */
    uint32_t events;                    /* bit set of what this rank does by itself in the round (loop/loop.h) */
    uint32_t base;                      /* the letter with the same batch and no events; of those: itself */
};
/* What the model's dummy of one modality covers. roles: name ids ("tower", "projector"); linked: its output enters the loss times 0. */
struct ls_dummy_forward { uint32_t modality; uint32_t *role; size_t roles; bool linked; bool active; struct ls_loc at; };

enum ls_execution { LS_EXEC_ANY, LS_EXEC_RANK_UNIFORM, LS_EXEC_NODE_UNIFORM, LS_EXEC_MODALITY_UNIFORM, LS_EXEC_TABLE,
                    LS_EXEC_AT_LEAST_ONE, LS_EXEC_MANIFEST };
/* IDLE issues nothing and keeps the state: a start node before a choice of first rounds. The others belong to a training loop
 * that says more than when its microbatches come (loop/loop.h): SKIPPED, a microbatch whose backward all ranks leave out;
 * EVAL_END, what follows the last validation batch; SAVE; NO_SAVE, all ranks decided against one. */
enum ls_round_kind { LS_ROUND_MICRO, LS_ROUND_STEP, LS_ROUND_EVAL, LS_ROUND_IDLE, LS_ROUND_SKIPPED, LS_ROUND_EVAL_END, LS_ROUND_SAVE,
                     LS_ROUND_NO_SAVE, LS_ROUND_KINDS };
/* One value per microbatch; one value: for all; microbatches `any`: {not last, last}. None: the default, true. */
struct ls_switch { bool *at; size_t count; struct ls_loc where; };
enum { LS_LETTERS_MAX = 64, LS_STEPS_MAX = 4096, LS_MICROBATCHES_MAX = 4096, LS_NODES_MAX = 65536 };

struct ls_batch {
    const struct ls_model *model;
    uint64_t microbatches;          /* 0: any */
    uint64_t steps;                 /* 0: any */
    struct ls_sample *sample; size_t samples;
    bool by_tokens, by_idle_experts; /* letters tell apart how many tokens there are, and whether experts are idle */
    bool apart;                     /* a letter for every sample: ops are equal, sizes are not */
    enum ls_execution execution;
    uint32_t *uniform; size_t uniforms;               /* modalities, MODALITY_UNIFORM */
    uint32_t *table; size_t rows, columns;            /* sample indices [row][replica]; one row per microbatch, repeated
                                                         every step, or one per microbatch of all steps, or one per microbatch
                                                         and evaluation of all steps. Evaluations otherwise use the row of the
                                                         microbatch they precede (the last one after all of them) */
    uint32_t *events;                                 /* [row][replica]: what ranks do by themselves, or NULL: nothing */
    /* MANIFEST: [samples] what ranks hold together is one class, LS_NO_ID free; NULL: any. `class_in_node`: each node its own. */
    const uint32_t *sample_class; bool class_in_node;
    struct ls_dummy_forward *dummy; size_t dummies;
    struct ls_switch gradient_sync, all_reduce, reshard_after_backward, is_last_backward;
    enum ls_round_kind *schedule; size_t rounds;      /* of one step */
    struct ls_loc at, execution_at;
};
struct ls_letters { struct ls_letter *letter; size_t count; uint32_t *of_sample; };
/* Maps samples to letters: equal condition counts and dummies give one letter.
 *   errors  LS_EINPUT: a sample that holds a condition the model's flow lacks, counts above 2, more than LS_LETTERS_MAX letters */
LS_MUST_USE enum ls_code ls_batch_letters(const struct ls_batch *b, struct ls_names *names, struct ls_arena *arena,
                                          struct ls_letters *out, struct ls_error *err);

/* What a round kind of the driver means to the compiler. */
struct ls_round {
    enum ls_round_kind kind;
    bool gradient_sync, all_reduce, reshard_after_backward, is_last_backward;
    bool last;                 /* last microbatch of the step */
    bool after;                /* after the steps of an epoch: also for ranks that left the loop */
    bool ends_epoch;           /* ... and nothing follows it there */
    uint32_t microbatch;
};
struct ls_rounds { struct ls_round *round; size_t count; };
/* A microbatch's round: `which` indexes the switches (microbatches `any`: 0 other, 1 last). */
struct ls_round ls_batch_micro(const struct ls_batch *b, size_t which, size_t microbatch, bool last);
bool ls_batch_same_switches(const struct ls_round *a, const struct ls_round *b);
/* The schedule of one step; owned by the arena when it is the default one. Also checks the numbers of microbatches and steps, and
 * the switches. */
LS_MUST_USE enum ls_code ls_batch_schedule(const struct ls_batch *b, struct ls_arena *arena, enum ls_round_kind **kind, size_t *count,
                                           struct ls_error *err);
/* Driver and rounds. The job may stop only where a step begins. A fixed number of steps is unrolled: node i is round i of the run
 * and the last node has no successor; with steps `any` the last node leads back to the start.
 *   errors  LS_EINPUT: a schedule or a switch that does not fit the number of microbatches, more than LS_NODES_MAX nodes */
LS_MUST_USE enum ls_code ls_batch_driver(const struct ls_batch *b, struct ls_arena *arena, struct ls_rounds *rounds,
                                         struct ls_driver *out, struct ls_error *err);
/* What every use of a table needs: sizes that are fixed, and a column per replica. `replicas` 0: any.
 *   errors  LS_EINPUT, at `execution` */
LS_MUST_USE enum ls_code ls_batch_check_table(const struct ls_batch *b, size_t replicas, struct ls_error *err);
/* `mesh_dims`: the free dimensions that exist; `replicas`: 0 if some size is any. A table's row r holds the letters of the r-th
 * round; with steps `any` the rows repeat.
 *   errors  LS_EINPUT: a contract that the mesh or the samples cannot carry */
LS_MUST_USE enum ls_code ls_batch_contract(const struct ls_batch *b, const struct ls_letters *letters, uint32_t mesh_dims,
                                           size_t replicas, struct ls_arena *arena, struct ls_contract *out,
                                           struct ls_error *err);
/* Rounds without a batch (a step end) take one fixed letter, so that no search branches on it: one that counts as media, if any. */
uint32_t ls_batch_still_letter(const struct ls_letters *letters);
void ls_batch_restrict(const struct ls_letters *letters, const struct ls_rounds *rounds, struct ls_arena *arena,
                       struct ls_driver *driver);
bool ls_letter_has_media(const struct ls_letter *letter);
const char *ls_execution_name(enum ls_execution e); /* "rank_uniform" */

#endif
