/* SPIN and our explorer on the same transition relation: equal state counts, equal verdicts. */
#include "spin.h"
#include "spin_case.h"

#include <criterion/criterion.h>

Test(spin, stores_as_many_states_and_agrees_on_the_verdict, .timeout = 280)
{
    if (!spin_installed())
        cr_skip_test("spin is not installed (Debian package spin)");
    size_t unsafe = 0, cases = 50;
    for (uint64_t seed = 1; seed <= cases; seed++) {
        struct spin_case c;
        char why[256];
        cr_assert(spin_case_run(seed, &c, why, sizeof why), "seed %llu: %s", (unsigned long long)seed, why);
        unsafe += c.unsafe;
    }
    cr_assert(unsafe > cases / 10 && unsafe < cases * 9 / 10, "%zu of %zu unsafe: the generator tells nothing", unsafe, cases);
}
