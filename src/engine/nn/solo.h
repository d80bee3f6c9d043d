/* src/engine/nn/solo.h -- training in one process without sharding, programs or streams: what sharded runs are compared with.
 *
 * Walks the flow itself, so it shares operators with the engine but neither the compiler's order nor its links. */
#ifndef LS_ENGINE_NN_SOLO_H
#define LS_ENGINE_NN_SOLO_H

#include "engine/nn/adamw.h"
#include "engine/nn/exec.h"

struct ls_nn_solo;
struct ls_nn_solo_options {
    const struct ls_nn_vlm *vlm;
    const bool *trains;             /* [params of the model]; NULL: all */
    enum ls_dtype compute;          /* of parameters in use and of activations; masters and gradients are float */
    uint64_t seed;
    struct ls_nn_adamw adamw;
};
LS_MUST_USE enum ls_code ls_nn_solo_open(struct ls_nn_solo **out, const struct ls_nn_solo_options *o, struct ls_error *err);
void ls_nn_solo_close(struct ls_nn_solo *s); /* accepts NULL */
/* Forward and backward of one batch; gradients add up. *loss = sum over labels * scale. */
LS_MUST_USE enum ls_code ls_nn_solo_microbatch(struct ls_nn_solo *s, const struct ls_nn_sequence *sequence, size_t sequences, double scale,
                                               double *loss, struct ls_error *err);
double ls_nn_solo_update(struct ls_nn_solo *s);                 /* clips, steps, drops the gradients; the norm before clipping */
float *ls_nn_solo_param(struct ls_nn_solo *s, uint32_t param);
const float *ls_nn_solo_grad(const struct ls_nn_solo *s, uint32_t param); /* NULL: none */
const struct ls_memory *ls_nn_solo_memory(const struct ls_nn_solo *s);

#endif
