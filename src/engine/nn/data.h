/* src/engine/nn/data.h -- batches and initial weights, made from a seed.
 *
 * Nothing is read from disk: every element is a function of (seed, what, index), so that any rank, any process and the
 * recordings of PyTorch hold the same numbers without sending them. A sequence is one text token, its pictures, its recordings, the
 * rest of the text; the first quarter of the text and all tokens of media carry no label. */
#ifndef LS_ENGINE_NN_DATA_H
#define LS_ENGINE_NN_DATA_H

#include "engine/nn/vlm.h"

struct ls_nn_sequence { uint64_t text, images, seed, audios; }; /* tokens beside those of media; pictures; recordings */

/* Sizes are known before the contents are: `measure` fills the first group, `place` the pointers, `fill` what they point to. A
 * batch without pictures (recordings) holds one of the smallest size, all zeros, for a tower that runs as a dummy. */
struct ls_nn_batch {
    const struct ls_nn_vlm *vlm;
    size_t sequences, longest, tokens, images, marked; /* longest: tokens of a sequence; marked: image tokens, images * rows / merge * columns / merge */
    size_t pictures, rows, columns, patches;  /* of the tower's input */
    size_t audios, heard;                     /* heard: audio tokens, audios * recording.tokens */
    size_t recordings, frames, audio_rows;    /* of that tower's input; rows of a recording after the convolutions */
    size_t corners;                           /* rows of the position table that one patch mixes */

    struct ls_nn_sequence *sequence;          /* [sequences] */
    size_t *first, *picture_first, *at;       /* [sequences + 1], [pictures + 1], [marked]: rows of image tokens */
    size_t *recording_first, *audio_at;       /* [recordings + 1], [heard]: rows of audio tokens */
    int32_t *id, *target, *group;             /* [tokens]; target: the next token's label, LS_NN_IGNORE where there is none */
    float *cosine, *sine;                     /* [tokens, head / 2] */
    float *window_cosine, *window_sine;       /* the same for layers with a window */
    float *grid_cosine, *grid_sine;           /* [patches, head / 2] */
    int32_t *corner; float *corner_weight;    /* [patches, corners] */
    float *pixel;                             /* [pictures, channels, rows patch, columns patch] */
    float *feature;                           /* [recordings, frames, bins] */
    float *sinusoid;                          /* [audio_rows, width] */
};
size_t ls_nn_batch_measure(struct ls_nn_batch *out, const struct ls_nn_vlm *vlm, const struct ls_nn_sequence *sequence, size_t count); /* bytes */
void ls_nn_batch_place(struct ls_nn_batch *b, void *at);
void ls_nn_batch_fill(const struct ls_nn_batch *b, const struct ls_nn_sequence *sequence);
size_t ls_nn_labels(const struct ls_nn_vlm *vlm, const struct ls_nn_sequence *sequence, size_t count); /* targets that count */

/* Elements [from, from + count) of a parameter. Matrices are uniform with variance 1 / columns, norms near the identity, biases
 * small, the second adapter matrix zero. */
void ls_nn_init_param(const struct ls_nn_vlm *vlm, uint32_t param, uint64_t seed, uint64_t from, uint64_t count, float *to);

#endif
