/* src/engine/nn/bf16.h -- float to bfloat16, rounded to the nearest, ties to even; and back. */
#ifndef LS_ENGINE_NN_BF16_H
#define LS_ENGINE_NN_BF16_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

static inline uint16_t ls_bf16_of(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    if ((u & 0x7fffffff) > 0x7f800000)
        return (uint16_t)(u >> 16 | 0x40); /* stays not-a-number */
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

static inline float ls_bf16_to(uint16_t x)
{
    uint32_t u = (uint32_t)x << 16;
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

#endif
