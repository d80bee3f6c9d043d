/* Elements of every dtype, and the copy between them. */
#include "engine/device/device.h"

#include <assert.h>
#include <math.h>
#include <string.h>
#if defined(__SSE2__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) /* which do not see such stores */
#include <emmintrin.h>
#define STREAMS
#endif

static float half_to_float(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, exponent = h >> 10 & 31u, fraction = h & 1023u;
    float f;
    if (exponent == 31) {
        uint32_t bits = sign | 0x7f800000u | fraction << 13;
        memcpy(&f, &bits, sizeof f);
        return f;
    }
    f = exponent ? ldexpf((float)(fraction | 1024u), (int)exponent - 25) : ldexpf((float)fraction, -24);
    return sign ? -f : f;
}

static uint16_t float_to_half(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    uint16_t sign = (uint16_t)(bits >> 16 & 0x8000u);
    if (isnan(f))
        return (uint16_t)(sign | 0x7e00u);
    float a = fabsf(f);
    if (a >= 65520.0f)
        return (uint16_t)(sign | 0x7c00u);
    if (a < 6.103515625e-05f) /* subnormal: multiples of 2^-24; the current rounding mode is to nearest even */
        return (uint16_t)(sign | (uint16_t)lrintf(ldexpf(a, 24)));
    memcpy(&bits, &a, sizeof bits);
    bits += 0xfffu + (bits >> 13 & 1u);
    return (uint16_t)(sign | (uint16_t)((bits >> 13) - (112u << 10)));
}

static float bf16_to_float(uint16_t b)
{
    uint32_t bits = (uint32_t)b << 16;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static uint16_t float_to_bf16(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    if (isnan(f))
        return (uint16_t)(bits >> 16 | 0x40u);
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

double ls_element_get(const void *at, enum ls_dtype dtype, uint64_t i)
{
    switch (dtype) {
    case LS_DTYPE_F64: return ((const double *)at)[i];
    case LS_DTYPE_F32: return (double)((const float *)at)[i];
    case LS_DTYPE_F16: return (double)half_to_float(((const uint16_t *)at)[i]);
    case LS_DTYPE_BF16: return (double)bf16_to_float(((const uint16_t *)at)[i]);
    case LS_DTYPE_I64: return (double)((const int64_t *)at)[i];
    case LS_DTYPE_I32: return (double)((const int32_t *)at)[i];
    case LS_DTYPE_F8: /* bytes: nothing is computed in it */
    case LS_DTYPE_U8:
    case LS_DTYPE_BOOL: return (double)((const uint8_t *)at)[i];
    case LS_DTYPE_NONE:
    case LS_DTYPE_COUNT: break;
    }
    assert(false && "no such dtype");
    return 0.0;
}

void ls_element_set(void *at, enum ls_dtype dtype, uint64_t i, double value)
{
    switch (dtype) {
    case LS_DTYPE_F64: ((double *)at)[i] = value; return;
    case LS_DTYPE_F32: ((float *)at)[i] = (float)value; return;
    case LS_DTYPE_F16: ((uint16_t *)at)[i] = float_to_half((float)value); return;
    case LS_DTYPE_BF16: ((uint16_t *)at)[i] = float_to_bf16((float)value); return;
    case LS_DTYPE_I64: ((int64_t *)at)[i] = (int64_t)value; return;
    case LS_DTYPE_I32: ((int32_t *)at)[i] = (int32_t)value; return;
    case LS_DTYPE_F8:
    case LS_DTYPE_U8:
    case LS_DTYPE_BOOL: ((uint8_t *)at)[i] = (uint8_t)value; return;
    case LS_DTYPE_NONE:
    case LS_DTYPE_COUNT: break;
    }
    assert(false && "no such dtype");
}

void ls_elements_load(const void *at, enum ls_dtype dtype, uint64_t first, uint64_t n, float *to)
{
    if (dtype == LS_DTYPE_F32) {
        memcpy(to, (const float *)at + first, n * sizeof *to);
    } else if (dtype == LS_DTYPE_BF16) {
        const uint16_t *from = (const uint16_t *)at + first;
        for (uint64_t i = 0; i < n; i++)
            to[i] = bf16_to_float(from[i]);
    } else {
        for (uint64_t i = 0; i < n; i++)
            to[i] = (float)ls_element_get(at, dtype, first + i);
    }
}

void ls_elements_store(void *at, enum ls_dtype dtype, uint64_t first, uint64_t n, const float *from)
{
    if (dtype == LS_DTYPE_F32) {
        memcpy((float *)at + first, from, n * sizeof *from);
    } else if (dtype == LS_DTYPE_BF16) {
        uint16_t *to = (uint16_t *)at + first;
        for (uint64_t i = 0; i < n; i++)
            to[i] = float_to_bf16(from[i]);
    } else {
        for (uint64_t i = 0; i < n; i++)
            ls_element_set(at, dtype, first + i, (double)from[i]);
    }
}

void ls_bytes_pass(void *to, const void *from, uint64_t n)
{
    char *out = to;
    const char *in = from;
    uint64_t i = 0;
#ifdef STREAMS
    enum { LINE = 64, AHEAD = 512 };
    uint64_t head = (LINE - (uintptr_t)out % LINE) % LINE;
    i = head < n ? head : n;
    memcpy(out, in, i);
    for (; i + LINE <= n; i += LINE) {
        __m128i v[LINE / 16];
        _mm_prefetch(in + i + AHEAD, _MM_HINT_NTA);
        for (size_t k = 0; k < LINE / 16; k++)
            v[k] = _mm_loadu_si128((const __m128i *)(const void *)(in + i) + k);
        for (size_t k = 0; k < LINE / 16; k++)
            _mm_stream_si128((__m128i *)(void *)(out + i) + k, v[k]);
    }
    _mm_sfence(); /* before whoever is told that it is there */
#endif
    memcpy(out + i, in + i, n - i);
}

static void *place(const struct ls_tensor *t)
{
    return t->of && t->of->at ? (char *)t->of->at + t->offset_bytes : NULL;
}

/* Parts of a buffer that holds several dtypes lie anywhere. */
static void move_unaligned(const struct ls_move *m, char *to, const char *from)
{
    size_t size = ls_dtype_bytes(m->to.dtype), from_size = ls_dtype_bytes(m->from.dtype);
    for (uint64_t i = 0; i < m->to.elements; i++) {
        _Alignas(8) char a[8], b[8];
        memcpy(a, to + i * size, size);
        memcpy(b, from + i * from_size, from_size);
        double v = ls_element_get(b, m->from.dtype, 0);
        ls_element_set(a, m->to.dtype, 0, m->add ? v + ls_element_get(a, m->to.dtype, 0) : v);
        memcpy(to + i * size, a, size);
    }
}

/* Large copies leave the caches alone: what they write is read when it would have left them anyway, and no line is read only to be
 * overwritten. */
static void copy(char *to, const char *from, uint64_t n)
{
    enum { LARGE = 1 << 18 };
    if (n >= LARGE && (to + n <= from || from + n <= to))
        ls_bytes_pass(to, from, n);
    else
        memmove(to, from, n);
}

static void move_one(const struct ls_move *m)
{
    uint64_t n = m->to.elements;
    char *to = place(&m->to);
    const char *from = place(&m->from);
    if (!to || !n || (m->from.of && !from)) /* accounted, without data */
        return;
    size_t size = ls_dtype_bytes(m->to.dtype);
    if (m->from.of && ((uintptr_t)to % size || (uintptr_t)from % ls_dtype_bytes(m->from.dtype)) && (m->add || m->to.dtype != m->from.dtype)) {
        move_unaligned(m, to, from);
        return;
    }
    if (!m->from.of) {
        if (!m->add)
            memset(to, 0, n * size);
        return;
    }
    if (!m->add && m->to.dtype == m->from.dtype) {
        copy(to, from, n * size);
    } else if (m->add && m->to.dtype == LS_DTYPE_F32 && m->from.dtype == LS_DTYPE_F32) {
        for (uint64_t i = 0; i < n; i++)
            ((float *)(void *)to)[i] += ((const float *)(const void *)from)[i];
    } else if (!m->add && m->to.dtype == LS_DTYPE_BF16 && m->from.dtype == LS_DTYPE_F32) {
        for (uint64_t i = 0; i < n; i++)
            ((uint16_t *)(void *)to)[i] = float_to_bf16(((const float *)(const void *)from)[i]);
    } else if (!m->add && m->to.dtype == LS_DTYPE_F32 && m->from.dtype == LS_DTYPE_BF16) {
        for (uint64_t i = 0; i < n; i++)
            ((float *)(void *)to)[i] = bf16_to_float(((const uint16_t *)(const void *)from)[i]);
    } else {
        for (uint64_t i = 0; i < n; i++) {
            double v = ls_element_get(from, m->from.dtype, i);
            ls_element_set(to, m->to.dtype, i, m->add ? v + ls_element_get(to, m->to.dtype, i) : v);
        }
    }
}

void ls_move_run(const struct ls_move *move, size_t count)
{
    for (size_t i = 0; i < count; i++)
        move_one(&move[i]);
}
