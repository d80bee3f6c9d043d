/* src/engine/nn/task.h -- one piece of work of the executor, as it is appended to a stream: pointers and sizes only. */
#ifndef LS_ENGINE_NN_TASK_H
#define LS_ENGINE_NN_TASK_H

#include "engine/device/device.h"
#include "engine/nn/data.h"

enum ls_nn_task_kind { LS_NN_TASK_ZERO, LS_NN_TASK_FORWARD, LS_NN_TASK_BACKWARD, LS_NN_TASK_LINK,
                       LS_NN_TASK_LINK_BACK, LS_NN_TASK_LOSS, LS_NN_TASK_LOSS_BACK };
enum { LS_NN_INS_MAX = 3 };

/* n rows, from width a to width b; attention: a heads, b key heads; adapters: rank c. kept and temp in floats. */
struct ls_nn_dims { size_t n, a, b, c, count, kept, temp, temp_back; };
struct ls_nn_view { void *at; enum ls_dtype dtype; size_t count; };

struct ls_nn_task {
    enum ls_nn_task_kind kind;
    const struct ls_nn_statement *statement;
    struct ls_nn_batch batch;
    struct ls_nn_dims dims;
    struct ls_nn_view in[LS_NN_INS_MAX], w[LS_NN_PARAMS_MAX], out;
    float *kept, *temp, *dout, *din[LS_NN_INS_MAX], *dw[LS_NN_PARAMS_MAX];
    double scale, *loss;           /* adapters, the loss */
};

/* Sizes of a statement's work from the elements of its inputs and parameters.
 *   errors  LS_EINPUT at the statement: inputs that do not fit */
LS_MUST_USE enum ls_code ls_nn_dims_of(const struct ls_nn_vlm *vlm, const struct ls_nn_statement *s, const struct ls_nn_batch *batch,
                                       const size_t in[LS_NN_INS_MAX], struct ls_nn_dims *out, struct ls_error *err);
bool ls_nn_backward_reads_inputs(const struct ls_nn_statement *s, const bool *trains);
bool ls_nn_backward_reads_output(const struct ls_nn_statement *s);
size_t ls_nn_convert_temp(const struct ls_nn_view *v); /* floats needed to see it as float */
/* Fills a batch. */
struct ls_nn_fill { struct ls_nn_batch batch; struct ls_nn_sequence sequence[]; };
void ls_nn_fill_run(void *fill, struct ls_stream *stream);
void ls_nn_task_run(void *task, struct ls_stream *stream); /* an ls_launch_fn */

#endif
