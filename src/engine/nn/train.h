/* src/engine/nn/train.h -- real training as the mathematics of an engine run (ls_math_nn).
 *
 * A round holds one sequence per rank, as its sample describes it. Losses are sums over labels divided by the labels of the whole
 * step, over all ranks and microbatches, times the ranks where reductions average: so gradients are those of the mean over all
 * labels of the step, however they are spread. What the text of a sequence holds depends on (seed, round, rank) alone. */
#ifndef LS_ENGINE_NN_TRAIN_H
#define LS_ENGINE_NN_TRAIN_H

#include "engine/nn/adamw.h"
#include "engine/nn/exec.h"
#include "engine/run/math.h"

extern const struct ls_math_ops ls_math_nn;

/* One description of a batch. other: videos, which the models cannot be fed. */
struct ls_nn_sample { uint64_t text, images, other; struct ls_loc at; uint64_t audios; };

/* ls_math_ops.open's context, one for all ranks. */
struct ls_nn_train {
    const struct ls_nn_vlm *vlm;
    const struct ls_nn_sample *sample; size_t samples; /* what ls_engine_setup.sample indexes */
    struct ls_nn_adamw adamw;    /* clip: applied where the norm is known: where the program reduces it, or a rank holds all shards */
    /* Out, written while the run goes on; NULL: not wanted. */
    double *loss;                /* [segments][ranks] sum over the rank's labels times its scale; rounds without a loss are left alone */
    double *norm;                /* [segments][ranks] of a step's gradients before clipping, in the segment of the optimizer */
    double *square;              /* [segments][ranks] where nothing reduces a norm: the sum of squares of what the rank holds, there */
    /* In or out: the parameters' final values in float, each rank its rows; [params of the model] of [elements], or NULL. */
    float *const *weight;
};

/* What a round holds on a rank; what one process would train on to do the same. */
struct ls_nn_sequence ls_nn_train_sequence(const struct ls_engine_setup *setup, const struct ls_nn_train *t, uint32_t segment, uint32_t rank);
bool ls_nn_train_has_loss(const struct ls_engine_setup *setup, uint32_t segment, uint32_t rank);     /* a microbatch or an evaluation */
bool ls_nn_train_has_optimizer(const struct ls_engine_setup *setup, uint32_t segment, uint32_t rank); /* a step ends */
/* Losses of the segments [from, to) of all ranks as one mean over all their labels. */
double ls_nn_train_loss(const struct ls_engine_setup *setup, const struct ls_nn_train *t, uint32_t from, uint32_t to);

#endif
