/* src/engine/nn/adamw.h -- the update of parameters: AdamW on float masters, and the norm that gradients are clipped to.
 *
 *   source  torch/optim/adamw.py (single tensor) and torch/nn/utils/clip_grad.py */
#ifndef LS_ENGINE_NN_ADAMW_H
#define LS_ENGINE_NN_ADAMW_H

#include "engine/device/device.h"

struct ls_nn_adamw { double rate, beta1, beta2, eps, decay, clip; }; /* clip: largest norm, 0: none */
extern const struct ls_nn_adamw ls_nn_adamw_default;                 /* PyTorch's defaults; clip 1 */

/* `gradient`: f32 or bf16. In order of elements, in double. */
double ls_nn_square_sum(struct ls_tensor gradient);
double ls_nn_clip_factor(const struct ls_nn_adamw *o, double norm); /* what gradients are multiplied by; 1 if they are short enough */
/* Step number `step`, from 1: master, mean and square [gradient.elements]; gradient.of NULL: nothing to do. */
void ls_nn_adamw_step(const struct ls_nn_adamw *o, uint64_t step, double factor, struct ls_tensor gradient, float *master, float *mean,
                      float *square);

#endif
