/* tests/support/together.h -- programs that mpirun runs: tests/(folder)/mpi_NAME.c, and campaigns of their kind.
 *
 * Started plainly, such a program has mpirun start it again as LS_PROCESSES processes (default 2). Process 0 alone prints. */
#ifndef LS_TESTS_TOGETHER_H
#define LS_TESTS_TOGETHER_H

#include "base/str.h"
#include "engine/comm/world.h"

/* Ends the process with status 0 and a line where MPI was left out, with status 4 where it does not start. */
struct ls_world *together_open(void);
/* Is it well with all? The first that is not says why, and the process ends with status 1. */
void together_agree(struct ls_world *w, bool ok, const struct ls_str *why);
int together_end(struct ls_world *w); /* waits for the others; what main returns */
/* A number of process 0's, for all. */
uint64_t together_number(struct ls_world *w, uint64_t number);

#endif
