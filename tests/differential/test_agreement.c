/* Random scenarios of real FSDP2 programs: the checker against every run within bounds. campaign_agreement.c goes on. */
#include "agreement.h"

#include <criterion/criterion.h>
#include <stdio.h>

enum { SCENARIOS = 500 };

Test(agreement, check_agrees_with_every_small_run)
{
    struct agreement a = { 0 };
    struct ls_str why = { 0 };
    for (uint64_t seed = 1; seed <= SCENARIOS; seed++)
        cr_assert(agreement_add(&a, seed, &why), "seed %llu: %s", (unsigned long long)seed, ls_str_text(&why));
    printf("agreement, seeds 1 to %d: proved but brute force fails %zu, refuted without an executable witness %zu, undecided %zu "
           "(proved %zu, refuted %zu, refused by set-up %zu, runs %zu)\n",
           SCENARIOS, a.proved_but_fails, a.refuted_without_run, a.undecided, a.proved, a.refuted, a.refused, a.runs);
    cr_assert(a.proved > SCENARIOS / 5 && a.refuted > SCENARIOS / 5, "the generator gives both kinds");
    ls_str_release(&why);
}
