#include "engine/nn/kernels.h"

#include "engine/nn/vector.h"

#include <assert.h>
#include <cblas.h>
#include <limits.h>
#include <math.h>
#include <string.h>

#define LS_REAL double
#define LS_NN(name) ls_nn_##name##_f64
#define LS_GEMM cblas_dgemm
#define LS_MATH(name) name
#define LS_EXP exp
#define LS_TANH tanh
#include "engine/nn/kernels_define.inc"
