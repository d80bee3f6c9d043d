/* src/engine/nn/kernels.h -- the arithmetic of one operator and of its gradient, on plain arrays.
 *
 * Everything exists twice from one text: ls_nn_*_f32 is what training uses; ls_nn_*_f64 lets tests compare a gradient with
 * central differences. Matrices are row-major. A forward overwrites its result. A backward *adds* to the gradients it is
 * given and leaves out those that are NULL. Sums run in a fixed order and matrix products go to OpenBLAS, so results are
 * bitwise reproducible on one machine if OpenBLAS runs one thread (ls_nn_init).
 *   units   n: rows (tokens or patches); every other size is elements */
#ifndef LS_ENGINE_NN_KERNELS_H
#define LS_ENGINE_NN_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

void ls_nn_init(void); /* BLAS threads per caller as set; any number of times */
void ls_nn_set_threads(unsigned threads); /* 1 until set; for the whole process, and not while anything computes */

enum ls_nn_act { LS_NN_SILU, LS_NN_GELU, LS_NN_GELU_TANH };

/* Which keys a query sees. Rows [first[s], first[s + 1]) are one sequence (or one image) and never see another one. Causal:
 * the own position and the `window` - 1 before it (0: all before it), and every row of the same non-zero `group` (an image
 * whose tokens see each other). Not causal: the whole sequence. */
struct ls_nn_mask { const size_t *first; size_t sequences; bool causal; size_t window; const int32_t *group; };

enum { LS_NN_IGNORE = -100 }; /* a label that does not count */

#define LS_REAL float
#define LS_NN(name) ls_nn_##name##_f32
#include "engine/nn/kernels_declare.inc"
#undef LS_REAL
#undef LS_NN
#define LS_REAL double
#define LS_NN(name) ls_nn_##name##_f64
#include "engine/nn/kernels_declare.inc"
#undef LS_REAL
#undef LS_NN

#endif
