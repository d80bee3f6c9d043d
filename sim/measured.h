/* sim/measured.h -- measured collectives, read from the text that nccl-tests prints (all_gather_perf and its siblings).
 *
 *   units   bytes, picoseconds
 *   source  github.com/NVIDIA/nccl-tests */
#ifndef LS_SIM_MEASURED_H
#define LS_SIM_MEASURED_H

#include "sim/collective.h"

struct ls_nccl_point { uint64_t bytes, ps; };
struct ls_nccl_curve { enum ls_op_kind kind; uint32_t ranks, nodes; struct ls_nccl_point *point; size_t points; }; /* ascending bytes */
struct ls_nccl_tests { struct ls_nccl_curve *curve; size_t curves; };
/* Adds the tables of one file to *out. The number of ranks and nodes comes from its "# Rank" lines, the collective from the
 * "# Collective test starting:" line or, if there is none, from `kind_name` ("all_gather", "all_gather_perf"; may be NULL).
 * Sizes are those of the table: of all ranks together. Out-of-place time is used.
 *   errors  LS_EINPUT with the position: no table, ranks or collective not told, a line that is no row, bytes not ascending */
LS_MUST_USE enum ls_code ls_nccl_tests_read(const char *text, const char *path, const char *kind_name, struct ls_arena *arena,
                                            struct ls_nccl_tests *out, struct ls_error *err);
LS_MUST_USE enum ls_code ls_nccl_tests_load(const char *path, const char *kind_name, struct ls_arena *arena,
                                            struct ls_nccl_tests *out, struct ls_error *err);
/* Interpolated between measured sizes: linearly in bytes; beyond the largest, at its bandwidth. False when not covered. */
bool ls_nccl_tests_find(const struct ls_nccl_tests *m, enum ls_op_kind kind, struct ls_placement at, uint64_t bytes, uint64_t *ps);

#endif
