/* SPIN and our explorer on random families, jobs, systems and scenarios in turn, until 1,000 are compared or the time is up. */
#include "campaign.h"
#include "spin.h"
#include "spin_case.h"

#include <stdio.h>

enum { MODELS = 1000, STATES = 50000 };

int main(void)
{
    struct campaign c = campaign_open();
    struct spin_sum sum = { 0 };
    struct ls_str why = { 0 };
    uint64_t seed;
    bool ok = true;
    if (!spin_installed()) {
        puts("skipped: spin is not installed (Debian package spin)");
        return 0;
    }
    while (ok && spin_models(&sum) < MODELS && campaign_next(&c, &seed))
        for (int source = 0; source < SPIN_SOURCES && ok; source++)
            for (int i = 0; i < (source == SPIN_SCENARIO ? 2 : 1) && ok; i++)
                ok = spin_case_run((enum spin_source)source, 2 * seed + (uint64_t)i, STATES, &sum, &why);
    if (!ok)
        printf("%s", ls_str_text(&why));
    printf("%zu models explored by us and by SPIN, %zu unsafe\n", spin_models(&sum), spin_unsafe(&sum));
    spin_print(&sum);
    ls_str_release(&why);
    campaign_close(&c, "rounds of five models");
    return ok ? 0 : 1;
}
