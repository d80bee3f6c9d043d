#include "machine/place.h"

bool ls_meeting_before(const struct ls_meeting_place *a, const struct ls_meeting_place *b)
{
    if (a->comm != b->comm)
        return a->comm < b->comm;
    if (a->position != b->position)
        return a->position < b->position;
    if (a->group != b->group)
        return a->group < b->group;
    if (a->p2p != b->p2p)
        return a->p2p < b->p2p;
    return a->sender != b->sender ? a->sender < b->sender : a->receiver < b->receiver;
}

void ls_meeting_report(const struct ls_meeting_place *p, struct ls_outcome *out)
{
    out->comm = p->comm;
    out->group = p->group;
    out->position = p->position;
}
