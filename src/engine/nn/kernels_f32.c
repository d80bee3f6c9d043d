#include "engine/nn/kernels.h"

#include "engine/nn/vector.h"

#include <assert.h>
#include <cblas.h>
#include <limits.h>
#include <math.h>
#include <string.h>

#define LS_REAL float
#define LS_NN(name) ls_nn_##name##_f32
#define LS_GEMM cblas_sgemm
#define LS_MATH(name) name##f
#define LS_EXP ls_vector_exp
#define LS_TANH ls_vector_tanh
#include "engine/nn/kernels_define.inc"
