/* The proof against brute force on random systems, plain and with more rules (random_rules.h), as long as LS_CAMPAIGN_SECONDS allows. */
#include "agree.h"
#include "campaign.h"

#include <stdio.h>

int main(void)
{
    struct campaign c = campaign_open();
    struct agree_sum plain = { 0 }, rules = { 0 };
    struct agree_options o = { .runs_max = 500, .total_max = 5000, .brute_percent = 10 };
    char why[512];
    uint64_t seed;
    bool fine = true;
    while (fine && campaign_next(&c, &seed))
        for (int more = 0; more < 2 && fine; more++) {
            o.rules = more;
            fine = agree_once(seed, &o, more ? &rules : &plain, why, sizeof why);
        }
    if (!fine)
        printf("%s%s\n", o.rules ? "with rules: " : "", why);
    agree_print(&plain);
    agree_print(&rules);
    campaign_close(&c, "systems decided by the proof and by brute force");
    return fine ? 0 : 1;
}
