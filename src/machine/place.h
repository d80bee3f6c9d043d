/* src/machine/place.h -- where ops meet, and which of several violations is reported: the one at the smallest place. */
#ifndef LS_MACHINE_PLACE_H
#define LS_MACHINE_PLACE_H

#include "machine/machine.h"

/* position: k, from 0, on the group, or on the sender's queue to the receiver; sender, receiver: members, for p2p. */
struct ls_meeting_place { uint32_t comm, group; size_t position; uint32_t p2p, sender, receiver; };
/* By communicator, then k, then group, then collectives before p2p, then members. */
bool ls_meeting_before(const struct ls_meeting_place *a, const struct ls_meeting_place *b);
void ls_meeting_report(const struct ls_meeting_place *p, struct ls_outcome *out);

#endif
