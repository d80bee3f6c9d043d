/* src/report/render.h -- a comparison for people: Markdown, and one HTML page that needs nothing else.
 *
 * Both are filled from reports/templates/ with the same sentences and tables. Same result and figures, same bytes. */
#ifndef LS_REPORT_RENDER_H
#define LS_REPORT_RENDER_H

#include "report/summary.h"
#include "report/table.h"

/* A figure in a size for broad windows, and (but for timelines) one for phones. */
struct ls_figure { const char *file;      /* "throughput.svg": what Markdown shows */
                   const char *label;     /* for readers that do not see it */
                   const struct ls_result_cell *cell; /* of a timeline, else NULL */
                   struct ls_str broad, narrow; };
struct ls_figures { struct ls_figure at[2 + LS_RESULT_CELLS_MAX]; size_t count; }; /* throughput, memory, timelines */

/* Draws all figures. Owned by the caller: ls_figures_release, also after an error.
 *   errors  LS_EBACKEND: gnuplot.h */
LS_MUST_USE enum ls_code ls_figures_draw(const struct ls_result *r, const struct ls_summary *s, struct ls_arena *arena,
                                         struct ls_figures *out, struct ls_error *err);
/* The figures that there are, with empty drawings: enough for Markdown. */
void ls_figures_list(const struct ls_result *r, struct ls_arena *arena, struct ls_figures *out);
void ls_figures_release(struct ls_figures *f);

void ls_render_markdown(const struct ls_result *r, const struct ls_summary *s, const struct ls_figures *f, struct ls_arena *arena,
                        struct ls_str *out);
void ls_render_html(const struct ls_result *r, const struct ls_summary *s, const struct ls_figures *f, struct ls_arena *arena,
                    struct ls_str *out);
/* The overview alone, for a terminal. */
void ls_render_text(const struct ls_result *r, const struct ls_summary *s, struct ls_arena *arena, struct ls_str *out);

#endif
