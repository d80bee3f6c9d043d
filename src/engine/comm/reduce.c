/* Reductions, element by element in member order. */
#include "engine/comm/comm.h"

#include <assert.h>

enum { CHUNK = 512, LARGE = 1 << 16 };

static const void *place(const struct ls_tensor *t) { return (const char *)t->of->at + t->offset_bytes; }

static bool is_integer(enum ls_dtype d)
{
    switch (d) {
    case LS_DTYPE_I64: case LS_DTYPE_I32: case LS_DTYPE_U8: case LS_DTYPE_BOOL: return true;
    case LS_DTYPE_F64: case LS_DTYPE_F32: case LS_DTYPE_F16: case LS_DTYPE_BF16: case LS_DTYPE_F8: case LS_DTYPE_NONE:
    case LS_DTYPE_COUNT: break;
    }
    return false;
}

static int64_t get_integer(const void *at, enum ls_dtype d, uint64_t i)
{
    return d == LS_DTYPE_I64 ? ((const int64_t *)at)[i] : d == LS_DTYPE_I32 ? ((const int32_t *)at)[i] : ((const uint8_t *)at)[i];
}

static void set_integer(void *at, enum ls_dtype d, uint64_t i, int64_t v)
{
    if (d == LS_DTYPE_I64)
        ((int64_t *)at)[i] = v;
    else if (d == LS_DTYPE_I32)
        ((int32_t *)at)[i] = (int32_t)v;
    else
        ((uint8_t *)at)[i] = (uint8_t)v;
}

static int64_t join_integers(int64_t a, int64_t b, enum ls_reduce how)
{
    switch (how) {
    case LS_REDUCE_MAX: return a > b ? a : b;
    case LS_REDUCE_MIN: return a < b ? a : b;
    case LS_REDUCE_PROD: return (int64_t)((uint64_t)a * (uint64_t)b);
    case LS_REDUCE_NONE: case LS_REDUCE_SUM: case LS_REDUCE_AVG: case LS_REDUCE_PREMUL: case LS_REDUCE_COUNT: break;
    }
    return (int64_t)((uint64_t)a + (uint64_t)b);
}

static void reduce_integers(const struct ls_tensor *in, size_t members, uint64_t i, enum ls_reduce how, struct ls_ratio factor,
                            const struct ls_tensor *out, size_t outs)
{
    int64_t v = get_integer(place(&in[0]), in[0].dtype, i);
    for (size_t m = 1; m < members; m++)
        v = join_integers(v, get_integer(place(&in[m]), in[m].dtype, i), how);
    if (how == LS_REDUCE_AVG)
        v /= (int64_t)members;
    if (factor.num)
        v = v * (int64_t)factor.num / (int64_t)(factor.den ? factor.den : 1);
    for (size_t k = 0; k < outs; k++)
        set_integer((void *)place(&out[k]), out[k].dtype, i, v);
}

/* Narrower types are exact in float; f64 keeps its own width. */
#define REDUCE_FLOATS(name, type)                                                                                              \
    static void name(type *sum, const struct ls_tensor *in, uint64_t first, uint64_t n, enum ls_reduce how)                     \
    {                                                                                                                          \
        const void *at = place(in);                                                                                            \
        for (uint64_t i = 0; i < n; i++) {                                                                                     \
            type v = (type)ls_element_get(at, in->dtype, first + i);                                                           \
            switch (how) {                                                                                                     \
            case LS_REDUCE_MAX: sum[i] = v > sum[i] ? v : sum[i]; break;                                                       \
            case LS_REDUCE_MIN: sum[i] = v < sum[i] ? v : sum[i]; break;                                                       \
            case LS_REDUCE_PROD: sum[i] *= v; break;                                                                           \
            case LS_REDUCE_NONE: case LS_REDUCE_SUM: case LS_REDUCE_AVG: case LS_REDUCE_PREMUL: case LS_REDUCE_COUNT:          \
                sum[i] += v;                                                                                                   \
            }                                                                                                                  \
        }                                                                                                                      \
    }
REDUCE_FLOATS(join_floats, float)
REDUCE_FLOATS(join_doubles, double)

static bool is_sum(enum ls_reduce how)
{
    return how != LS_REDUCE_MAX && how != LS_REDUCE_MIN && how != LS_REDUCE_PROD;
}

static void reduce_floats(const struct ls_tensor *in, size_t members, uint64_t first, uint64_t n, enum ls_reduce how,
                          struct ls_ratio factor, const struct ls_tensor *out, size_t outs)
{
    float sum[CHUNK];
    ls_elements_load(place(&in[0]), in[0].dtype, first, n, sum);
    for (size_t m = 1; m < members; m++) {
        if (in[m].dtype == LS_DTYPE_F32 && is_sum(how)) {
            const float *at = (const float *)place(&in[m]) + first;
            for (uint64_t i = 0; i < n; i++)
                sum[i] += at[i];
        } else if (is_sum(how)) {
            float more[CHUNK];
            ls_elements_load(place(&in[m]), in[m].dtype, first, n, more);
            for (uint64_t i = 0; i < n; i++)
                sum[i] += more[i];
        } else
            join_floats(sum, &in[m], first, n, how);
    }
    for (uint64_t i = 0; how == LS_REDUCE_AVG && i < n; i++)
        sum[i] /= (float)members;
    for (uint64_t i = 0; factor.num && i < n; i++)
        sum[i] = sum[i] * (float)factor.num / (float)(factor.den ? factor.den : 1);
    for (size_t k = 0; k < outs; k++)
        if (out[k].dtype == LS_DTYPE_F32 && out[k].elements >= LARGE)
            ls_bytes_pass((float *)place(&out[k]) + first, sum, n * sizeof *sum);
        else
            ls_elements_store((void *)place(&out[k]), out[k].dtype, first, n, sum);
}

static void reduce_doubles(const struct ls_tensor *in, size_t members, uint64_t first, uint64_t n, enum ls_reduce how,
                           struct ls_ratio factor, const struct ls_tensor *out, size_t outs)
{
    double sum[CHUNK];
    for (uint64_t i = 0; i < n; i++)
        sum[i] = ls_element_get(place(&in[0]), in[0].dtype, first + i);
    for (size_t m = 1; m < members; m++)
        join_doubles(sum, &in[m], first, n, how);
    for (uint64_t i = 0; i < n; i++) {
        if (how == LS_REDUCE_AVG)
            sum[i] /= (double)members;
        if (factor.num)
            sum[i] = sum[i] * factor.num / (factor.den ? factor.den : 1);
    }
    for (size_t k = 0; k < outs; k++)
        for (uint64_t i = 0; i < n; i++)
            ls_element_set((void *)place(&out[k]), out[k].dtype, first + i, sum[i]);
}

void ls_reduce_run(const struct ls_tensor *in, size_t members, uint64_t elements, enum ls_reduce reduce, struct ls_ratio factor,
                   const struct ls_tensor *out, size_t outs)
{
    assert(members);
    if (is_integer(in[0].dtype)) {
        for (uint64_t i = 0; i < elements; i++)
            reduce_integers(in, members, i, reduce, factor, out, outs);
        return;
    }
    for (uint64_t first = 0; first < elements; first += CHUNK) {
        uint64_t n = elements - first < CHUNK ? elements - first : CHUNK;
        if (in[0].dtype == LS_DTYPE_F64)
            reduce_doubles(in, members, first, n, reduce, factor, out, outs);
        else
            reduce_floats(in, members, first, n, reduce, factor, out, outs);
    }
}
