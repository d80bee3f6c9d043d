/* The agreement of test_sim_agreement.c, seed after seed. */
#include "campaign.h"
#include "sim_agreement.h"

#include <stdio.h>

int main(void)
{
    struct campaign c = campaign_open();
    struct sim_agreement a = { 0 };
    struct ls_str why = { 0 };
    int rc = 0;
    for (uint64_t seed; rc == 0 && campaign_next(&c, &seed);)
        if (!sim_agreement_random(&a, seed, LS_SOURCE_DIR, 2, &why)) {
            printf("seed %llu: %s\n", (unsigned long long)seed, ls_str_text(&why));
            rc = 1;
        }
    printf("simulator and check: failing runs equal %zu, drawn runs complete %zu, drawn runs fail where check refutes %zu, refused %zu\n", a.witnesses,
           a.complete, a.failing, a.refused);
    ls_str_release(&why);
    campaign_close(&c, "sim_agreement");
    return rc;
}
