#include "engine/nn/adamw.h"

#include "engine/nn/bf16.h"
#include "engine/nn/vector.h"

#include <assert.h>
#include <math.h>

const struct ls_nn_adamw ls_nn_adamw_default = { .rate = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .decay = 1e-2, .clip = 1 };

enum { LANES = 8, CHUNK = 256 };

/* Elements [from, from + count) of a gradient in float: where they lie, or converted into `room`. */
static const float *elements(struct ls_tensor t, size_t from, size_t count, float room[static CHUNK])
{
    const char *at = (const char *)t.of->at + t.offset_bytes;
    if (t.dtype == LS_DTYPE_F32)
        return (const float *)(const void *)at + from;
    const uint16_t *half = (const uint16_t *)(const void *)at + from;
    for (size_t i = 0; i < count; i++)
        room[i] = ls_bf16_to(half[i]);
    return room;
}

static size_t chunk(size_t from, size_t elements)
{
    return elements - from < CHUNK ? elements - from : CHUNK;
}

LS_CLONES double ls_nn_square_sum(struct ls_tensor gradient)
{
    double lane[LANES] = { 0 };
    float room[CHUNK];
    assert(!gradient.of || gradient.dtype == LS_DTYPE_F32 || gradient.dtype == LS_DTYPE_BF16);
    for (size_t from = 0; gradient.of && from < gradient.elements; from += CHUNK) {
        size_t count = chunk(from, gradient.elements), i = 0;
        const float *g = elements(gradient, from, count, room);
        while (i + LANES <= count)
            for (size_t l = 0; l < LANES; l++, i++)
                lane[l] += (double)g[i] * (double)g[i];
        for (size_t l = 0; i < count; l++, i++)
            lane[l] += (double)g[i] * (double)g[i];
    }
    return ((lane[0] + lane[4]) + (lane[2] + lane[6])) + ((lane[1] + lane[5]) + (lane[3] + lane[7]));
}

double ls_nn_clip_factor(const struct ls_nn_adamw *o, double norm)
{
    double factor = o->clip > 0 ? o->clip / (norm + 1e-6) : 1;
    return factor < 1 ? factor : 1;
}

LS_CLONES void ls_nn_adamw_step(const struct ls_nn_adamw *o, uint64_t step, double factor, struct ls_tensor gradient, float *restrict master,
                                float *restrict mean, float *restrict square)
{
    if (!gradient.of)
        return;
    float keep = (float)(1 - o->rate * o->decay), part1 = (float)(1 - o->beta1), beta2 = (float)o->beta2, part2 = (float)(1 - o->beta2);
    float size = (float)(o->rate / (1 - pow(o->beta1, (double)step))), root = (float)sqrt(1 - pow(o->beta2, (double)step));
    float eps = (float)o->eps, scale = (float)factor;
    float room[CHUNK];
    for (size_t from = 0; from < gradient.elements; from += CHUNK) {
        size_t count = chunk(from, gradient.elements);
        const float *restrict in = elements(gradient, from, count, room);
        float *restrict p = master + from, *restrict m = mean + from, *restrict v = square + from;
        for (size_t i = 0; i < count; i++) {
            float g = in[i] * scale;
            m[i] += part1 * (g - m[i]);
            v[i] = v[i] * beta2 + part2 * g * g;
            p[i] = p[i] * keep - size * m[i] / (sqrtf(v[i]) / root + eps);
        }
    }
}
