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
    for (uint64_t seed; rc == 0 && campaign_next(&c, &seed);)
        if (!agreement_add(&a, seed, &why)) {
            printf("seed %llu: %s\n", (unsigned long long)seed, ls_str_text(&why));
            rc = 1;
        }
    printf("proved but brute force fails %zu, refuted without an executable witness %zu, undecided %zu (proved %zu, refuted %zu, runs %zu)\n",
           a.proved_but_fails, a.refuted_without_run, a.undecided, a.proved, a.refuted, a.runs);
    ls_str_release(&why);
    campaign_close(&c, "agreement");
    return rc;
}
