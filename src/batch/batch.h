/* src/batch/batch.h -- descriptions of batches, the letters they map to, and what a batch contract allows.
 *
 * A *sample* describes a microbatch of one replica. A *letter* is a class of samples that yield the same ops: how often each
 * condition of the flow holds (0, 1, 2), and whether a dummy forward stands in for a missing modality. The map is printed. */
#ifndef LS_BATCH_BATCH_H
#define LS_BATCH_BATCH_H

#include "ir/system.h"
#include "model/model.h"

struct ls_sample { uint64_t text; uint64_t images, videos, audios; struct ls_loc at; };

struct ls_letter {
    uint8_t count[LS_CONDITIONS_MAX];   /* how often the flow's condition holds */
    uint32_t dummy;                     /* bit set of conditions whose modality runs a dummy here (count is 0) */
    uint32_t name;                      /* "text only", "1 image", "2 images + 1 video", "text only + vision dummy" */
};
/* What the model's dummy of one modality covers. roles: name ids ("tower", "projector"); linked: its output enters the loss times 0. */
struct ls_dummy_forward { uint32_t modality; uint32_t *role; size_t roles; bool linked; bool active; struct ls_loc at; };

enum ls_execution { LS_EXEC_ANY, LS_EXEC_RANK_UNIFORM, LS_EXEC_NODE_UNIFORM, LS_EXEC_MODALITY_UNIFORM, LS_EXEC_TABLE,
                    LS_EXEC_AT_LEAST_ONE };
enum ls_round_kind { LS_ROUND_MICRO, LS_ROUND_STEP, LS_ROUND_EVAL };
struct ls_switch { bool *at; size_t count; };  /* one value per microbatch; microbatches `any`: {not last, last} */

struct ls_batch {
    const struct ls_model *model;
    uint64_t microbatches;          /* 0: any */
    uint64_t steps;                 /* 0: any */
    struct ls_sample *sample; size_t samples;
    enum ls_execution execution;
    uint32_t *uniform; size_t uniforms;               /* modalities, MODALITY_UNIFORM */
    uint32_t *table; size_t rows, columns;            /* sample indices [microbatch][replica] */
    struct ls_dummy_forward *dummy; size_t dummies;
    struct ls_switch gradient_sync, all_reduce, reshard_after_backward, is_last_backward;
    enum ls_round_kind *schedule; size_t rounds;      /* of one step */
    struct ls_loc at, execution_at;
};
struct ls_letters { struct ls_letter *letter; size_t count; uint32_t *of_sample; };
/* Maps samples to letters: equal condition counts and dummies give one letter.
 *   errors  LS_EINPUT: a sample that holds a condition the model's flow lacks, counts above 2 */
LS_MUST_USE enum ls_code ls_batch_letters(const struct ls_batch *b, struct ls_names *names, struct ls_arena *arena,
                                          struct ls_letters *out, struct ls_error *err);

/* What a round kind of the driver means to the compiler. */
struct ls_round {
    enum ls_round_kind kind;
    bool gradient_sync, all_reduce, reshard_after_backward, is_last_backward;
    bool last;                 /* last microbatch of the step */
    uint32_t microbatch;
};
struct ls_rounds { struct ls_round *round; size_t count; };
/* Driver, rounds and contract of a batch description. `mesh_dims`: the free dimensions that exist. */
LS_MUST_USE enum ls_code ls_batch_driver(const struct ls_batch *b, struct ls_arena *arena, struct ls_rounds *rounds,
                                         struct ls_driver *out, struct ls_error *err);
LS_MUST_USE enum ls_code ls_batch_contract(const struct ls_batch *b, const struct ls_letters *letters, uint32_t mesh_dims,
                                           struct ls_arena *arena, struct ls_contract *out, struct ls_error *err);
/* The same contract under another name ("rank_uniform"), for trying contracts from weak to strong. */

#endif
