#include "sim/network.h"

#include <string.h>

#ifdef LS_SIMGRID
extern const struct ls_network_ops ls_network_simgrid;
#endif

const struct ls_network_ops *ls_network_find(const char *name)
{
    static const struct ls_network_ops *const network[] = {
        &ls_network_maxmin,
#ifdef LS_SIMGRID
        &ls_network_simgrid,
#endif
    };
    for (size_t i = 0; i < sizeof network / sizeof *network; i++)
        if (strcmp(network[i]->name, name) == 0)
            return network[i];
    return NULL;
}
