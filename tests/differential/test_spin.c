/* SPIN and our explorer on the same transition relation: equal state counts, equal verdicts. campaign_spin.c goes on. */
#include "spin.h"
#include "spin_case.h"

#include <criterion/criterion.h>

Test(spin, stores_as_many_states_and_agrees_on_the_verdict, .timeout = 280)
{
    if (!spin_installed())
        cr_skip_test("spin is not installed (Debian package spin)");
    struct spin_sum sum = { 0 };
    struct ls_str why = { 0 };
    for (uint64_t seed = 1; seed <= 6; seed++)
        for (int source = 0; source < SPIN_SOURCES; source++)
            cr_assert(spin_case_run((enum spin_source)source, seed, 20000, &sum, &why), "%s", ls_str_text(&why));
    spin_print(&sum);
    cr_assert(spin_unsafe(&sum) > spin_models(&sum) / 10 && spin_unsafe(&sum) < spin_models(&sum) * 9 / 10, "the generator tells nothing");
    ls_str_release(&why);
}
