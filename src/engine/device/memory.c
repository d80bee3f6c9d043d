/* Accounting of memory by owner. */
#include "engine/device/device.h"

#include <assert.h>
#include <string.h>

void ls_memory_take(struct ls_memory *m, enum ls_category category, uint64_t bytes)
{
    m->now[category] += bytes;
    m->total += bytes;
    if (m->now[category] > m->peak[category])
        m->peak[category] = m->now[category];
    if (m->total > m->total_peak) {
        m->total_peak = m->total;
        memcpy(m->at_peak, m->now, sizeof m->now);
    }
}

void ls_memory_give(struct ls_memory *m, enum ls_category category, uint64_t bytes)
{
    assert(m->now[category] >= bytes && "given back more than was taken");
    m->now[category] -= bytes;
    m->total -= bytes;
}
