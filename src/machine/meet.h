/* src/machine/meet.h -- what happens where ranks meet: ops arrive at their group or port, complete there, and their streams go on; or
 * a member gives up and the rest with it. Private to src/machine and to sim/. */
#ifndef LS_MACHINE_MEET_H
#define LS_MACHINE_MEET_H

#include "machine/run.h"

/* A started step reached the head of its FIFO. What can complete then is in x->full, or given to the clock. */
void ls_run_arrive(struct ls_run *x, uint32_t r, const struct ls_table *t, const struct ls_task *s);
void ls_run_complete(struct ls_run *x, uint64_t item); /* an item of x->full, or of clock->met */
/* A member of the group does not wait any longer: its connections close, and with them the group. All members that have arrived, and each
 * that arrives later, leave what they wait for undone; with LS_LOST_RAISE, or at a decide, they raise and move no more. */
void ls_run_give_up(struct ls_run *x, uint32_t group_id, enum ls_lost how);

#endif
