/* tests/support/agreement.h -- one random scenario: what `check` says against every run within bounds. */
#ifndef LS_TESTS_AGREEMENT_H
#define LS_TESTS_AGREEMENT_H

#include "base/str.h"

#include <stdbool.h>

#include <stdint.h>

struct agreement { /* counts; the first three have to stay 0 */
    size_t proved_but_fails, refuted_without_run, undecided;
    size_t proved, refuted, not_minimal, gradients_checked, runs, refused;
    size_t minimal;              /* of the refuted: the library says that no smaller run fails */
    size_t exhausted;            /* of the proved: brute force ran every assignment within its bounds */
    struct agreement_part {      /* of those that were decided, in which these are on */
        size_t scenarios, proved;
    } around, experts, experts_around, ddp, hybrid; /* around: `loop`, metrics, or other reductions of the step */
};
/* Adds one scenario. False, and *why with the scenario's text, if they disagree. */
bool agreement_add(struct agreement *a, uint64_t seed, struct ls_str *why);
void agreement_print(const struct agreement *a);

#endif
