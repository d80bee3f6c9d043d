#include "base/spread.h"

#include "base/arena.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>

static double *room_for(size_t n)
{
    size_t bytes = ls_mul_size(n + 1, sizeof(double));
    double *x = malloc(bytes);
    if (!x)
        ls_out_of_memory(bytes);
    return x;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double ls_quantile(const double *sorted, size_t n, double p)
{
    assert(n && p >= 0 && p <= 1);
    double at = (double)(n - 1) * p;
    size_t low = (size_t)at;
    return low + 1 < n ? sorted[low] + (at - (double)low) * (sorted[low + 1] - sorted[low]) : sorted[n - 1];
}

struct ls_spread ls_spread_of(const double *value, size_t n)
{
    struct ls_spread s = { 0, NAN, NAN, NAN, NAN, NAN, NAN, NAN };
    double *x = room_for(n), sum = 0, squares = 0;
    for (size_t i = 0; i < n; i++)
        if (!isnan(value[i])) {
            x[s.count++] = value[i];
            sum += value[i];
        }
    if (s.count) {
        qsort(x, s.count, sizeof *x, by_value);
        s.mean = sum / (double)s.count;
        for (size_t i = 0; i < s.count; i++)
            squares += (x[i] - s.mean) * (x[i] - s.mean);
        s.sd = s.count > 1 ? sqrt(squares / (double)(s.count - 1)) : 0;
        s.median = ls_quantile(x, s.count, 0.5);
        s.low = ls_quantile(x, s.count, 0.25);
        s.high = ls_quantile(x, s.count, 0.75);
        s.min = x[0];
        s.max = x[s.count - 1];
    }
    free(x);
    return s;
}

struct ls_paired ls_paired_of(const double *a, const double *b, size_t n)
{
    struct ls_paired p = { 0 };
    double *ratio = room_for(n);
    size_t pairs = 0;
    for (size_t i = 0; i < n; i++)
        if (b[i] > 0 && !isnan(a[i])) {
            ratio[pairs] = a[i] / b[i];
            p.above += ratio[pairs] > 1;
            p.below += ratio[pairs] < 1;
            pairs++;
        }
    p.ratio = ls_spread_of(ratio, pairs);
    free(ratio);
    return p;
}
