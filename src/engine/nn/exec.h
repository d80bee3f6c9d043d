/* src/engine/nn/exec.h -- runs the kernels of one round after another on a device: values, gradients, and who frees them when.
 *
 * Values live from the kernel that makes them to the last kernel of the round that reads them, which a look over the round's
 * kernels finds beforehand; what a recomputation makes again is dropped in between. Gradients of values are float and live from
 * their first contribution to the backward that reads them. A gradient that never came is zero. */
#ifndef LS_ENGINE_NN_EXEC_H
#define LS_ENGINE_NN_EXEC_H

#include "engine/device/device.h"
#include "engine/nn/data.h"

/* Where parameters and their gradients are. `full` may hold more elements than the parameter (padding at the end). */
struct ls_nn_source {
    void *context;
    struct ls_tensor (*full)(void *context, uint32_t param);
    enum ls_code (*grad)(void *context, uint32_t param, struct ls_tensor *out, struct ls_error *err); /* zeros if there was none */
    /* Takes a round's sum, floats, for the gradient where there was none: nothing is added to zeros. False: not taken. May be NULL. */
    bool (*give)(void *context, uint32_t param, struct ls_storage *sum);
};

struct ls_nn_exec;
struct ls_nn_round {
    const struct ls_nn_sequence *sequence; size_t sequences; /* the batch */
    const struct ls_kernel *const *kernel; size_t kernels;   /* all that will be issued, in order; lives as long as the round */
    const struct ls_link *link;                              /* ls_tables.link */
    double loss_scale;                                       /* the loss is the sum over labels times this */
    double *loss;                                            /* written when the stream passes LOSS; may be NULL */
};
/* `trains`: [params of the model]; `activation`: what values are stored in, f32 or bf16. All outlive the executor. */
LS_MUST_USE enum ls_code ls_nn_exec_open(struct ls_nn_exec **out, const struct ls_nn_vlm *vlm, struct ls_device *device,
                                         const bool *trains, enum ls_dtype activation, const struct ls_nn_source *source,
                                         struct ls_error *err);
void ls_nn_exec_close(struct ls_nn_exec *e); /* accepts NULL */
/* Ends the round before, if one is open. */
LS_MUST_USE enum ls_code ls_nn_exec_round(struct ls_nn_exec *e, struct ls_stream *s, const struct ls_nn_round *round, struct ls_error *err);
/* The next kernel of the round; any kernel but OPTIMIZER.
 *   errors  LS_EINPUT: values that do not fit the operator; LS_EBACKEND: out of memory */
LS_MUST_USE enum ls_code ls_nn_exec_kernel(struct ls_nn_exec *e, struct ls_stream *s, const struct ls_kernel *kernel, struct ls_error *err);

#endif
