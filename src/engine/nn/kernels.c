#include "engine/nn/kernels.h"

#include <cblas.h>

static unsigned blas_threads = 1;

void ls_nn_set_threads(unsigned threads)
{
    blas_threads = threads ? threads : 1;
    ls_nn_init();
}

void ls_nn_init(void)
{
    openblas_set_num_threads((int)blas_threads);
}
