/* src/cli/comparison.h -- what compare and report share: the files of a comparison, and its JSON form on stdout. */
#ifndef LS_CLI_COMPARISON_H
#define LS_CLI_COMPARISON_H

#include "base/json.h"
#include "cli/folder.h"
#include "report/render.h"

enum { LS_COMPARISON_FILES_MAX = LS_RESULT_CELLS_MAX + 8 };
struct ls_comparison_files { struct ls_file at[LS_COMPARISON_FILES_MAX]; size_t count; };

/* report.html, report.md and the figures; `run` also run.json. Texts are owned by `arena`.
 *   errors  LS_EBACKEND: gnuplot */
LS_MUST_USE enum ls_code ls_comparison_render(const struct ls_result *r, const struct ls_summary *s, bool run, bool figures,
                                              struct ls_arena *arena, struct ls_comparison_files *out, struct ls_error *err);
/* Keys of an open object: "name", "answer", "cells" and what is measured of each. */
void ls_comparison_json(const struct ls_result *r, const struct ls_summary *s, struct ls_json *j);

#endif
