/* The agreement of test_replay.c, seed after seed, each under LS_SCHEDULES seeded schedules (default 10) and once in threads. */
#include "campaign.h"
#include "replaying.h"

#include <stdio.h>
#include <stdlib.h>

int main(void)
{
    struct campaign c = campaign_open();
    struct replaying t = { 0 };
    struct ls_str why = { 0 };
    const char *wanted = getenv("LS_SCHEDULES");
    unsigned schedules = wanted && *wanted ? (unsigned)strtoul(wanted, NULL, 10) : 10;
    int rc = 0;
    for (uint64_t seed; rc == 0 && campaign_next(&c, &seed);)
        if (!replaying_seed(&t, seed, schedules, &why) || !replaying_seed(&t, seed, 0, &why) || !replaying_job(&t, seed, &why)) {
            printf("seed %llu: %s\n", (unsigned long long)seed, ls_str_text(&why));
            rc = 1;
        }
    replaying_print(&t, "replay");
    ls_str_release(&why);
    campaign_close(&c, "replay");
    return rc;
}
