/* mpi_replay.c's random scenarios and jobs, seed after seed, in LS_PROCESSES processes (default 2). */
#include "campaign.h"
#include "replaying.h"
#include "together.h"

#include <stdio.h>

int main(void)
{
    struct ls_world *w = together_open();
    struct campaign c = campaign_open();
    struct replaying t = { .world = w }, jobs = t;
    struct ls_str why = { 0 };
    /* Process 0 says which seed is next, and when time is up. */
    for (uint64_t seed, next; (next = together_number(w, campaign_next(&c, &seed) ? seed + 1 : 0)) != 0;) {
        seed = next - 1;
        bool ok = replaying_seed(&t, seed, 2, &why) && replaying_seed(&t, seed, 0, &why) && replaying_job(&jobs, seed, &why);
        if (!ok)
            ls_str_printf(&why, "seed %llu\n", (unsigned long long)seed);
        together_agree(w, ok, &why);
    }
    replaying_print(&t, "mpi");
    replaying_print(&jobs, "mpi, jobs");
    ls_str_release(&why);
    campaign_close(&c, "mpi");
    return together_end(w);
}
