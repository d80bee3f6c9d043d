/* src/machine/outcome.h -- reads the end state of a run: the verdict, and what waits for what. Private to src/machine and to
 * sim/. */
#ifndef LS_MACHINE_OUTCOME_H
#define LS_MACHINE_OUTCOME_H

#include "machine/run.h"

bool ls_outcome_finished(const struct ls_run *x); /* every stream and thread got to its end */
void ls_outcome_read(const struct ls_run *x, struct ls_arena *arena, struct ls_outcome *out);

#endif
