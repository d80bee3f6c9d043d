/* src/report/gnuplot.h -- runs gnuplot on a script and makes its SVG fit for a page. The one place that starts a program. */
#ifndef LS_REPORT_GNUPLOT_H
#define LS_REPORT_GNUPLOT_H

#include "base/str.h"

/* errors  LS_EBACKEND: gnuplot is not installed (the hint names the package) or does not start */
LS_MUST_USE enum ls_code ls_gnuplot_find(struct ls_error *err);
/* The script's SVG, cleaned. No file of the user's is read (gnuplot -d).
 *   errors  LS_EBACKEND: as above, or gnuplot failed: its first line of complaint */
LS_MUST_USE enum ls_code ls_gnuplot_run(const char *script, const char *name, struct ls_str *svg, struct ls_error *err);
/* Without the XML head and the version of gnuplot; ids and references to them begin with `name`, so that several figures can stand
 * in one page; fills the width it is given. */
void ls_svg_clean(const char *svg, size_t length, const char *name, struct ls_str *out);

#endif
