#include "engine/nn/adamw.h"

#include "engine/nn/bf16.h"

#include <assert.h>
#include <math.h>

const struct ls_nn_adamw ls_nn_adamw_default = { .rate = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .decay = 1e-2, .clip = 1 };

static float element(struct ls_tensor t, size_t i)
{
    const char *at = (const char *)t.of->at + t.offset_bytes;
    return t.dtype == LS_DTYPE_F32 ? ((const float *)(const void *)at)[i] : ls_bf16_to(((const uint16_t *)(const void *)at)[i]);
}

double ls_nn_square_sum(struct ls_tensor gradient)
{
    double sum = 0;
    assert(!gradient.of || gradient.dtype == LS_DTYPE_F32 || gradient.dtype == LS_DTYPE_BF16);
    for (size_t i = 0; gradient.of && i < gradient.elements; i++)
        sum += (double)element(gradient, i) * (double)element(gradient, i);
    return sum;
}

double ls_nn_clip_factor(const struct ls_nn_adamw *o, double norm)
{
    double factor = o->clip > 0 ? o->clip / (norm + 1e-6) : 1;
    return factor < 1 ? factor : 1;
}

void ls_nn_adamw_step(const struct ls_nn_adamw *o, uint64_t step, double factor, struct ls_tensor gradient, float *master, float *mean,
                      float *square)
{
    if (!gradient.of)
        return;
    float keep = (float)(1 - o->rate * o->decay), part1 = (float)(1 - o->beta1), beta2 = (float)o->beta2, part2 = (float)(1 - o->beta2);
    float size = (float)(o->rate / (1 - pow(o->beta1, (double)step))), root = (float)sqrt(1 - pow(o->beta2, (double)step));
    float eps = (float)o->eps, scale = (float)factor;
    for (size_t i = 0; i < gradient.elements; i++) {
        float g = element(gradient, i) * scale;
        mean[i] += part1 * (g - mean[i]);
        square[i] = square[i] * beta2 + part2 * g * g;
        master[i] = master[i] * keep - size * mean[i] / (sqrtf(square[i]) / root + eps);
    }
}
