/* The agreement of test_agreement.c, seed after seed. */
#include "agreement.h"
#include "campaign.h"

#include <stdio.h>

int main(void)
{
    struct campaign c = campaign_open();
    struct agreement a = { 0 };
    struct ls_str why = { 0 };
    int rc = 0;
    uint64_t slowest = 0;
    double longest = 0;
    for (uint64_t seed; rc == 0 && campaign_next(&c, &seed);) {
        double start = campaign_cpu_s();
        if (!agreement_add(&a, seed, &why)) {
            printf("seed %llu: %s\n", (unsigned long long)seed, ls_str_text(&why));
            rc = 1;
        }
        double took = campaign_cpu_s() - start;
        if (took > longest) {
            longest = took;
            slowest = seed;
        }
    }
    agreement_print(&a);
    printf("  slowest: seed %llu, %.1f s of CPU time\n", (unsigned long long)slowest, longest);
    ls_str_release(&why);
    campaign_close(&c, "agreement");
    return rc;
}
