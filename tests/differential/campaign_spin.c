/* SPIN and our explorer on random families, until 1,000 are compared or the time is up. */
#include "campaign.h"
#include "spin.h"
#include "spin_case.h"

#include <inttypes.h>
#include <stdio.h>

int main(void)
{
    struct campaign c = campaign_open();
    size_t cases = 0, unsafe = 0, states = 0;
    uint64_t seed;
    char why[256], what[160];
    if (!spin_installed()) {
        puts("skipped: spin is not installed (Debian package spin)");
        return 0;
    }
    while (cases < 1000 && campaign_next(&c, &seed)) {
        struct spin_case x;
        if (!spin_case_run(seed, &x, why, sizeof why)) {
            printf("seed %" PRIu64 ": %s\n", seed, why);
            return 1;
        }
        cases++;
        unsafe += x.unsafe;
        states += x.states;
    }
    snprintf(what, sizeof what, "models explored by us and by SPIN, %zu of %zu unsafe, %zu states", unsafe, cases, states);
    campaign_close(&c, what);
    return 0;
}
