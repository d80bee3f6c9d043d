/* src/base/spread.h -- what a series of measurements says: middle and spread, and paired ratios.
 *
 *   median, quartiles   order statistics, linear between neighbours: the value at (n - 1) p, counted from 0 (type 7 of Hyndman and
 *                       Fan, 1996; the default of R and NumPy)
 *   sd                  sample standard deviation, n - 1; 0 for one value */
#ifndef LS_BASE_SPREAD_H
#define LS_BASE_SPREAD_H

#include <stddef.h>

/* low, high: quartiles. NANs are left out; count 0: all NAN. */
struct ls_spread { size_t count; double median, low, high, mean, sd, min, max; };
struct ls_spread ls_spread_of(const double *value, size_t n);
/* The value at fraction p of a sorted series, 0 <= p <= 1, n > 0. */
double ls_quantile(const double *sorted, size_t n, double p);

/* a[i] / b[i] for pairs that were measured one after the other: a drift of the machine hits both sides of a pair. `above` counts
 * ratios over 1, `below` those under 1. Pairs with b[i] <= 0 or a NAN are left out. */
struct ls_paired { struct ls_spread ratio; size_t above, below; };
struct ls_paired ls_paired_of(const double *a, const double *b, size_t n);

#endif
