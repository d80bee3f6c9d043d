/* src/engine/nn/vector.h -- what lets the compiler use a machine's vector registers in loops over elements.
 *
 * A function marked LS_CLONES exists twice, for AVX2 and for every x86-64; the loader picks one. */
#ifndef LS_ENGINE_NN_VECTOR_H
#define LS_ENGINE_NN_VECTOR_H

#include <stdint.h>
#include <string.h>

/* The loader asks before sanitizers are ready. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define LS_CLONES __attribute__((target_clones("avx2", "default")))
#else
#define LS_CLONES
#endif

/* e to the x without a call or a branch, so that loops over it become vector code. At most 1 unit in the last place off where
 * the result is a normal number; 0 below that, and 2.4e38, as for 88.37, above. NaN stays NaN. After Cephes: x = n ln 2 + r,
 * |r| <= ln 2 / 2, and a polynomial of degree 7 in r. */
static inline float ls_vector_exp(float x)
{
    float in = x > 88.3762626f ? 88.3762626f : x;
    in = in < -87.3365448f ? -87.3365448f : in;
    float n = in * 1.44269504f + 12582912.0f; /* 1.5 * 2^23: the sum is rounded to an integer */
    n -= 12582912.0f;
    float r = in - n * 0.693359375f;
    r -= n * -2.12194440e-4f;
    float y = 1.9875691500e-4f;
    y = y * r + 1.3981999507e-3f;
    y = y * r + 8.3334519073e-3f;
    y = y * r + 4.1665795894e-2f;
    y = y * r + 1.6666665459e-1f;
    y = y * r + 5.0000001201e-1f;
    y = y * r * r + r + 1.0f;
    int32_t bits = ((int32_t)n + 127) << 23;
    float power;
    memcpy(&power, &bits, sizeof power);
    y *= power;
    return x < -87.3365448f ? 0.0f : y;
}

/* Off by at most 2e-7, absolute: for use beside 1. */
static inline float ls_vector_tanh(float x)
{
    return 1.0f - 2.0f / (ls_vector_exp(2.0f * x) + 1.0f);
}

#endif
