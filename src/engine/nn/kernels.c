#include "engine/nn/kernels.h"

#include <cblas.h>

void ls_nn_init(void)
{
    openblas_set_num_threads(1);
}
