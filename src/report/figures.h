/* src/report/figures.h -- gnuplot scripts of a comparison, data inside. Text only: gnuplot.h runs them.
 *
 *   throughput   a row per cell: every measured step as a tick, a box from the first to the third quartile, the median
 *   memory       a row per cell: categories when the rank with the largest peak had it, stacked
 *   timeline     of one cell: a row per rank and stream, one step
 *
 * A policy has the same colour in every figure: blue, vermilion and green of Okabe and Ito's set, which colour-blind people tell
 * apart. Categories have Paul Tol's muted set. Lengths are pixels of the figure's own width, which is chosen by who shows it. */
#ifndef LS_REPORT_FIGURES_H
#define LS_REPORT_FIGURES_H

#include "report/summary.h"

enum { LS_FIGURE_WIDE = 880, LS_FIGURE_NARROW = 360, LS_TIMELINE_RANKS_MAX = 4 };

const char *ls_policy_colour(const char *policy); /* "#0072b2" */

/* `name` prefixes the ids inside the SVG: different for every figure of a page. */
void ls_figure_throughput(const struct ls_result *r, const struct ls_summary *s, const char *name, unsigned width, struct ls_str *script);
void ls_figure_memory(const struct ls_result *r, const struct ls_summary *s, const char *name, unsigned width, struct ls_str *script);
/* Spans closer than half a pixel become one. Only for cells with a timeline. */
void ls_figure_timeline(const struct ls_result *r, const struct ls_result_cell *c, const char *name, unsigned width, struct ls_str *script);

#endif
