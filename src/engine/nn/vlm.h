/* src/engine/nn/vlm.h -- a multimodal model that can run (pictures, recordings): every statement of an inventory's flow as an operator.
 *
 * Nothing here knows a family. A statement becomes an operator by the class of the module called or by the name of the op; what
 * an operator needs beyond shapes (positions, windows, epsilon) is read from `config:` of the inventory, under the prefix of
 * the tower it runs in (text_, vision_, audio_). operators.md lists classes, ops and keys. */
#ifndef LS_ENGINE_NN_VLM_H
#define LS_ENGINE_NN_VLM_H

#include "engine/nn/kernels.h"
#include "model/model.h"

enum ls_nn_op { LS_NN_OP_LINEAR, LS_NN_OP_MATMUL, LS_NN_OP_EMBED, LS_NN_OP_POSITIONS, LS_NN_OP_RMS_NORM, LS_NN_OP_LAYER_NORM, LS_NN_OP_ACT,
                LS_NN_OP_AVG_POOL, LS_NN_OP_UNFOLD, LS_NN_OP_PATCHES, LS_NN_OP_ATTENTION, LS_NN_OP_MUL, LS_NN_OP_ADD, LS_NN_OP_MERGE,
                LS_NN_OP_MERGE_ADD, LS_NN_OP_CONV1D, LS_NN_OP_POOL1D, LS_NN_OP_SINUSOIDS };
enum ls_nn_position { LS_NN_POSITION_NONE, LS_NN_POSITION_ROTARY, LS_NN_POSITION_MROTARY, LS_NN_POSITION_GRID,
                      LS_NN_POSITION_GRID_INTERLEAVED };

/* What the operators of one tower share. */
struct ls_nn_tower {
    const char *name;              /* "text", "vision", "audio": the prefix of its keys */
    uint64_t head_dim;
    double eps, scale;             /* of norms; of attention scores */
    enum ls_nn_position position;
    double theta, factor;          /* rotary base; positions are divided by the factor */
    double window_theta;           /* of layers with a window; the factor is not used there */
    bool causal, see_images;       /* see_images: tokens of one image see each other */
    uint64_t window, window_every; /* every window_every-th layer has no window; 0: no layer has one */
    uint64_t section[3];           /* multimodal rotary: angles of time, row, column */
    bool in_turn;                  /* multimodal rotary: time, row, column take turns; else one section after the other */
};

enum { LS_NN_PARAMS_MAX = 4 };     /* weight, bias, lora_A, lora_B */
struct ls_nn_statement {
    const struct ls_flow *flow;    /* NULL for statements that run nothing themselves */
    enum ls_nn_op op;
    const struct ls_nn_tower *tower;
    uint32_t param[LS_NN_PARAMS_MAX]; /* weight, bias, lora_A, lora_B: index in the model or LS_NO_ID */
    enum ls_nn_act act;
    double offset;                 /* rms_norm; embed: the factor */
    bool windowed;                 /* attention */
    bool recordings;               /* merge: at the tokens of recordings, not of pictures */
    uint64_t stride;               /* conv1d, pool1d */
    uint32_t role[3];              /* attention: which inputs are q, k, v; fused: role[0] alone, the others LS_NO_ID */
};

/* Sizes of pictures and what marks them in text. Every picture has the same grid. */
struct ls_nn_picture {
    uint64_t channels, patch, frames; /* a patch is patch x patch pixels, seen `frames` times */
    uint64_t rows, columns;        /* patches of a picture */
    uint64_t merge;                /* merge x merge patches become one token */
    bool blocks;                   /* patches that are merged lie together; else row by row */
    bool interpolate;              /* learned positions: a square table stretched over the grid; else one row per patch */
    uint64_t token;                /* id that stands for one image token */
};

/* Sizes of recordings. Every recording has the same length. */
struct ls_nn_recording {
    uint64_t bins, frames;         /* of a spectrogram */
    uint64_t rows, tokens;         /* after the convolutions; after pooling */
    uint64_t width;                /* of a row after the convolutions */
    uint64_t token;                /* id that stands for one audio token */
};

struct ls_nn_vlm {
    const struct ls_model *model;
    struct ls_nn_statement *statement; size_t statements; /* by ls_flow.id */
    struct ls_nn_tower text, vision, audio;
    struct ls_nn_picture picture; bool pictures;
    struct ls_nn_recording recording; bool recordings;
    uint64_t vocab;
    double lora_alpha;             /* adapters enter with lora_alpha / rank */
    uint32_t ids, pixels, features; /* name ids of the inputs */
    uint32_t logits;               /* name id of what the loss uses */
};
/* Owned by `arena`.
 *   errors  LS_EINPUT at the statement: a class or op that no operator implements, parameters or inputs that do not fit it;
 *           at `config`: a key that is needed and absent, or out of range */
LS_MUST_USE enum ls_code ls_nn_vlm_build(const struct ls_model *m, struct ls_arena *arena, struct ls_nn_vlm *out, struct ls_error *err);

#endif
