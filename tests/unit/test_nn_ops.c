/* Every operator of src/engine/nn/kernels.h: its gradient against central differences in double precision, and the float
 * version against the double one; odd sizes, single rows, single heads, nothing marked, nothing valid. */
#include "base/hash.h"
#include "engine/nn/kernels.h"
#include "engine/nn/vector.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum op { LINEAR, MATMUL, LORA, EMBED, POSITIONS, RMS_NORM, LAYER_NORM, ROTATE, ATTENTION, ATTENTION_FUSED, ACT, MUL, ADD, LINK_ZERO,
          MERGE, AVG_POOL, UNFOLD, FRAMES, POOL_ROWS, CROSS_ENTROPY };
enum { MAX_IN = 4 };
/* flag: linear: bias; rms_norm: offset; act: kind; merge: keep; cross_entropy: every flag-th label is ignored.
 * frames: n recordings of a rows, b channels, c taps, stride d; pool_rows: a rows of width b become one
 * attention: a heads, b key heads, c width of a head, d bits: 1 causal, 2 window of 3, 4 an image, 8 three sequences */
struct shape { enum op op; size_t n, a, b, c, d; int flag; };

static const int32_t test_ids[64] = { 2, 0, 4, 2, 2, 1, 3, 0, 4, 4, 1, 2, 0, 3, 3, 1, 2, 4, 0, 1, 4, 3, 2, 1, 0, 0, 1, 2, 3, 4, 2, 2 };

static struct ls_nn_mask test_mask(const struct shape *s)
{
    static size_t first[4];
    static int32_t group[256];
    size_t n = s->n;
    bool three = s->d & 8;
    first[0] = 0, first[1] = three ? n / 3 : n, first[2] = three ? n / 2 : n, first[3] = n;
    for (size_t i = 0; i < n; i++) /* an image in each sequence */
        group[i] = (int32_t)(i < first[1] ? i >= 1 && i < 4 : i < first[2] ? 0 : 2 * (i > first[2]));
    return (struct ls_nn_mask){ first, three ? 3 : 1, s->d & 1, s->d & 2 ? 3 : 0, s->d & 4 ? group : NULL };
}

#define LS_REAL double
#define LS_NN(name) ls_nn_##name##_f64
#define LS_CASE(name) name##_f64
#include "nn_cases.inc"
#undef LS_REAL
#undef LS_NN
#undef LS_CASE
#define LS_REAL float
#define LS_NN(name) ls_nn_##name##_f32
#define LS_CASE(name) name##_f32
#include "nn_cases.inc"

static void sizes(const struct shape *s, size_t in[MAX_IN], size_t *out)
{
    size_t n = s->n, a = s->a, b = s->b, c = s->c;
    memset(in, 0, MAX_IN * sizeof *in);
    switch (s->op) {
    case LINEAR: in[0] = n * a, in[1] = a * b, in[2] = s->flag ? b : 0, *out = n * b; break;
    case MATMUL: in[0] = n * a, in[1] = a * b, *out = n * b; break;
    case LORA: in[0] = n * a, in[1] = a * b, in[2] = a * c, in[3] = b * c, *out = n * b; break;
    case EMBED: case POSITIONS: in[0] = 5 * a, *out = n * a; break;
    case RMS_NORM: in[0] = n * a, in[1] = a, *out = n * a; break;
    case LAYER_NORM: in[0] = n * a, in[1] = in[2] = a, *out = n * a; break;
    case ROTATE: in[0] = n * (a * b + c), *out = n * a * b; break;
    case ATTENTION: in[0] = n * a * c, in[1] = in[2] = n * b * c, *out = n * a * c; break;
    case ATTENTION_FUSED: in[0] = n * (a + 2 * b) * c, *out = n * a * c; break;
    case ACT: in[0] = *out = n; break;
    case MUL: case ADD: in[0] = in[1] = *out = n; break;
    case LINK_ZERO: in[0] = *out = n, in[1] = a; break;
    case MERGE: in[0] = *out = n * a, in[1] = b * a; break;
    case AVG_POOL: in[0] = n * a * b * s->d, *out = n * (a / c) * (b / c) * s->d; break;
    case UNFOLD: in[0] = n * a * b * s->d, *out = n * (a / c) * (b / c) * c * c * s->d; break;
    case FRAMES: in[0] = n * a * b, *out = n * ((a - 1) / s->d + 1) * b * c; break;
    case POOL_ROWS: in[0] = n * a * b, *out = n * b; break;
    case CROSS_ENTROPY: in[0] = n * a, *out = 1; break;
    }
}

static double uniform(uint64_t *seed)
{
    return (double)(ls_random(seed) >> 11) / 4503599627370496.0 - 1; /* [-1, 1) */
}

static double weighed(const struct shape *s, double *const x[MAX_IN], double *y, const double *dy, size_t out)
{
    double sum = 0;
    run_f64(s, x, y, NULL, NULL);
    for (size_t i = 0; i < out; i++)
        sum += dy[i] * y[i];
    return sum;
}

static void check(const struct shape *s)
{
    size_t in[MAX_IN], out = 0;
    sizes(s, in, &out);
    uint64_t seed = s->op * 1000 + s->n * 100 + s->a * 10 + s->b + s->d;
    double *x[MAX_IN], *dx[MAX_IN], *y = calloc(out + 1, sizeof *y), *dy = calloc(out + 1, sizeof *dy);
    float *fx[MAX_IN], *fdx[MAX_IN], *fy = calloc(out + 1, sizeof *fy), *fdy = calloc(out + 1, sizeof *fdy);
    for (size_t k = 0; k < MAX_IN; k++) {
        x[k] = calloc(in[k] + 1, sizeof(double)), dx[k] = calloc(in[k] + 1, sizeof(double));
        fx[k] = calloc(in[k] + 1, sizeof(float)), fdx[k] = calloc(in[k] + 1, sizeof(float));
        for (size_t i = 0; i < in[k]; i++) {
            fx[k][i] = (float)uniform(&seed);
            x[k][i] = (double)fx[k][i];
            fdx[k][i] = 0.5f, dx[k][i] = 0.5; /* a backward adds */
        }
    }
    for (size_t i = 0; i < out; i++) {
        fdy[i] = (float)uniform(&seed);
        dy[i] = (double)fdy[i];
    }
    run_f64(s, x, y, dy, dx);
    run_f32(s, fx, fy, fdy, fdx);
    for (size_t i = 0; i < out; i++)
        cr_assert_float_eq((double)fy[i], y[i], 1e-4, "op %d n %zu a %zu b %zu c %zu d %zu flag %d: y[%zu] float %g double %g", (int)s->op, s->n,
                           s->a, s->b, s->c, s->d, s->flag, i, (double)fy[i], y[i]);
    for (size_t k = 0; k < MAX_IN; k++)
        for (size_t i = 0; i < in[k]; i++) {
            double was = x[k][i], h = 1e-5, up, down;
            x[k][i] = was + h;
            up = weighed(s, x, y, dy, out);
            x[k][i] = was - h;
            down = weighed(s, x, y, dy, out);
            x[k][i] = was;
            /* Error of a central difference: h^2 times the third derivative, and rounding over h. */
            double want = (up - down) / (2 * h), got = dx[k][i] - 0.5;
            cr_assert_float_eq(got, want, 1e-8 + 1e-7 * fabs(want), "op %d n %zu a %zu b %zu c %zu d %zu flag %d: input %zu [%zu] %.12g, difference %.12g",
                               (int)s->op, s->n, s->a, s->b, s->c, s->d, s->flag, k, i, got, want);
            cr_assert_float_eq((double)fdx[k][i], dx[k][i], 2e-4, "op %d input %zu [%zu]: float %g double %g", (int)s->op, k, i, (double)fdx[k][i],
                               dx[k][i]);
        }
    for (size_t k = 0; k < MAX_IN; k++)
        free(x[k]), free(dx[k]), free(fx[k]), free(fdx[k]);
    free(y), free(dy), free(fy), free(fdy);
}

static void check_all(const struct shape *s, size_t count)
{
    ls_nn_init();
    for (size_t i = 0; i < count; i++)
        check(&s[i]);
}
#define CHECK(...) check_all((const struct shape[]){ __VA_ARGS__ }, sizeof((const struct shape[]){ __VA_ARGS__ }) / sizeof(struct shape))

Test(nn_ops, matrix_products)
{
    CHECK({ LINEAR, 1, 1, 1, 0, 0, 0 }, { LINEAR, 1, 1, 1, 0, 0, 1 }, { LINEAR, 5, 3, 7, 0, 0, 1 }, { LINEAR, 4, 8, 2, 0, 0, 0 },
          { LINEAR, 1, 9, 5, 0, 0, 1 }, { MATMUL, 1, 1, 1, 0, 0, 0 }, { MATMUL, 3, 5, 7, 0, 0, 0 }, { LORA, 1, 1, 1, 1, 0, 0 },
          { LORA, 5, 6, 7, 3, 0, 0 }, { LORA, 2, 4, 4, 8, 0, 0 });
}

Test(nn_ops, tables)
{
    CHECK({ EMBED, 1, 1, 0, 0, 0, 0 }, { EMBED, 17, 3, 0, 0, 0, 0 }, { POSITIONS, 1, 2, 1, 0, 0, 0 }, { POSITIONS, 7, 3, 4, 0, 0, 0 });
}

Test(nn_ops, norms)
{
    CHECK({ RMS_NORM, 1, 1, 0, 0, 0, 0 }, { RMS_NORM, 3, 7, 0, 0, 0, 1 }, { RMS_NORM, 5, 8, 0, 0, 0, 0 }, { LAYER_NORM, 1, 1, 0, 0, 0, 0 },
          { LAYER_NORM, 1, 2, 0, 0, 0, 0 }, { LAYER_NORM, 4, 9, 0, 0, 0, 0 });
}

Test(nn_ops, attention)
{
    CHECK({ ROTATE, 1, 1, 2, 0, 0, 0 }, { ROTATE, 3, 3, 6, 5, 0, 0 });
    for (size_t bits = 0; bits < 16; bits++)
        CHECK({ ATTENTION, 9, 4, 2, 3, bits, 0 }, { ATTENTION, 6, 1, 1, 2, bits, 0 }, { ATTENTION_FUSED, 7, 3, 3, 2, bits, 0 });
    CHECK({ ATTENTION, 1, 1, 1, 1, 0, 0 }, { ATTENTION, 1, 2, 1, 3, 1, 0 }, { ATTENTION, 7, 6, 1, 1, 1, 0 });
    for (size_t bits = 0; bits < 16; bits++) /* more rows than one block of queries */
        CHECK({ ATTENTION, 70, 2, 1, 1, bits, 0 });
}

Test(nn_ops, element_by_element)
{
    for (int kind = LS_NN_SILU; kind <= LS_NN_GELU_TANH; kind++)
        CHECK({ ACT, 1, 0, 0, 0, 0, kind }, { ACT, 33, 0, 0, 0, 0, kind });
    CHECK({ MUL, 1, 0, 0, 0, 0, 0 }, { MUL, 13, 0, 0, 0, 0, 0 }, { ADD, 13, 0, 0, 0, 0, 0 }, { LINK_ZERO, 5, 7, 0, 0, 0, 0 }, { LINK_ZERO, 5, 0, 0, 0, 0, 0 });
}

Test(nn_ops, rows)
{
    for (int keep = 0; keep < 2; keep++)
        CHECK({ MERGE, 1, 1, 0, 0, 0, keep }, { MERGE, 1, 3, 1, 0, 0, keep }, { MERGE, 7, 3, 4, 0, 0, keep }, { MERGE, 6, 2, 2, 0, 0, keep });
    CHECK({ AVG_POOL, 2, 4, 6, 2, 3, 0 }, { AVG_POOL, 1, 5, 3, 2, 1, 0 }, { AVG_POOL, 1, 3, 3, 1, 2, 0 }, { UNFOLD, 2, 4, 6, 2, 3, 0 },
          { UNFOLD, 1, 3, 5, 1, 2, 0 }, { UNFOLD, 1, 3, 3, 3, 1, 0 });
    CHECK({ FRAMES, 2, 6, 3, 3, 1, 0 }, { FRAMES, 2, 6, 2, 3, 2, 0 }, { FRAMES, 1, 5, 2, 3, 2, 0 }, { FRAMES, 1, 1, 2, 3, 1, 0 }, { FRAMES, 3, 4, 1, 1, 1, 0 },
          { FRAMES, 1, 2, 2, 5, 2, 0 }, { POOL_ROWS, 3, 2, 4, 0, 0, 0 }, { POOL_ROWS, 1, 1, 1, 0, 0, 0 }, { POOL_ROWS, 2, 5, 3, 0, 0, 0 });
}

/* Every 997th float against the C library in double: what vector.h promises. */
Test(nn_ops, vector_exp_and_tanh)
{
    double ulps = 0, off = 0;
    for (uint64_t b = 0; b < (uint64_t)1 << 32; b += 997) {
        uint32_t bits = (uint32_t)b;
        float x;
        memcpy(&x, &bits, sizeof x);
        if (!(x <= 88.37f && x >= -87.33f))
            continue;
        double exact = exp((double)x);
        float near = (float)exact;
        ulps = fmax(ulps, fabs((double)ls_vector_exp(x) - exact) / (double)(nextafterf(near, INFINITY) - near));
        off = fmax(off, fabs((double)ls_vector_tanh(x) - tanh((double)x)));
    }
    cr_assert_leq(ulps, 1.0, "%g units in the last place", ulps);
    cr_assert_leq(off, 2e-7, "tanh is off by %g", off);
    cr_assert_eq(ls_vector_exp(-INFINITY), 0.0f);
    cr_assert_eq(ls_vector_exp(-88.0f), 0.0f);
    cr_assert_gt(ls_vector_exp(INFINITY), 2e38f);
    cr_assert(isnan(ls_vector_exp(NAN)));
    cr_assert_eq(ls_vector_tanh(100.0f), 1.0f);
    cr_assert_eq(ls_vector_tanh(-100.0f), -1.0f);
}

Test(nn_ops, loss)
{
    CHECK({ CROSS_ENTROPY, 1, 1, 0, 0, 0, 0 }, { CROSS_ENTROPY, 1, 5, 0, 0, 0, 0 }, { CROSS_ENTROPY, 1, 5, 0, 0, 0, 1 }, { CROSS_ENTROPY, 7, 3, 0, 0, 0, 1 },
          { CROSS_ENTROPY, 9, 11, 0, 0, 0, 3 });
}

Test(nn_ops, patches_lie_in_blocks)
{
    /* One channel, 4 x 4 patches of 1 x 1 pixel, numbered row by row; merged 2 x 2. */
    double pixel[16], y[16];
    for (int i = 0; i < 16; i++)
        pixel[i] = i;
    static const double want[16] = { 0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15 };
    ls_nn_patches_f64(1, 1, 4, 4, 1, 1, 2, pixel, y);
    cr_assert_arr_eq(y, want, sizeof want);
    ls_nn_patches_f64(1, 1, 4, 4, 1, 1, 1, pixel, y);
    cr_assert_arr_eq(y, pixel, sizeof pixel);
    /* 2 x 2 pixels a patch, two frames of the same picture, two channels */
    double two[16], z[16], first[8] = { 0, 1, 2, 3, 0, 1, 2, 3 };
    for (int i = 0; i < 16; i++)
        two[i] = i % 8;
    ls_nn_patches_f64(1, 2, 1, 1, 2, 2, 1, two, z);
    cr_assert_arr_eq(z, first, sizeof first);
    for (int i = 8; i < 16; i++)
        cr_assert_eq(z[i], (double)(4 + i % 4));
}
