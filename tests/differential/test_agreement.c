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
    printf("agreement, seeds 1 to %d: ", SCENARIOS);
    agreement_print(&a);
    cr_assert(a.proved > SCENARIOS / 5 && a.refuted > SCENARIOS / 5, "the generator gives both kinds");
    ls_str_release(&why);
}

/* Inputs of the campaign that once failed, or took long. */
Test(agreement, kept_inputs)
{
    static const uint64_t seeds[] = {
        408725, /* hybrid sharding, own numbers of microbatches: reductions of two groups may stay late for ever, in one common order */
        3239, /* 1,296 choices of four replicas: thousands of runs fail in the same round, and each was made a candidate for the smallest */
    };
    struct agreement a = { 0 };
    struct ls_str why = { 0 };
    for (size_t i = 0; i < sizeof seeds / sizeof *seeds; i++)
        cr_assert(agreement_add(&a, seeds[i], &why), "seed %llu: %s", (unsigned long long)seeds[i], ls_str_text(&why));
    cr_assert_eq(a.minimal, a.refuted, "a bound ended a search for the smallest run");
    ls_str_release(&why);
}
