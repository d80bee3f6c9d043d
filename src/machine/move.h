/* src/machine/move.h -- moves a machine until nothing can: host threads issue, streams start and leave ops, and a schedule picks who is
 * next (the ranks in turn, or by chance with a seed). Private to src/machine and to sim/. */
#ifndef LS_MACHINE_MOVE_H
#define LS_MACHINE_MOVE_H

#include "machine/run.h"

void ls_run_to_end(struct ls_run *x);

#endif
