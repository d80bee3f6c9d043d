/* The proof against brute force on random systems, as long as LS_CAMPAIGN_SECONDS allows. */
#include "agree.h"
#include "campaign.h"

#include <stdio.h>

int main(void)
{
    struct campaign c = campaign_open();
    struct agree_sum sum = { 0 };
    struct agree_options o = { .runs_max = 500, .total_max = 5000, .brute_percent = 10 };
    char why[512];
    uint64_t seed;
    while (campaign_next(&c, &seed))
        if (!agree_once(seed, &o, &sum, why, sizeof why)) {
            printf("%s\n", why);
            agree_print(&sum);
            return 1;
        }
    agree_print(&sum);
    campaign_close(&c, "systems decided by the proof and by brute force");
    return 0;
}
