/* tests/support/sim_agreement.h -- one scenario: what the simulator does, against what check says. */
#ifndef LS_TESTS_SIM_AGREEMENT_H
#define LS_TESTS_SIM_AGREEMENT_H

#include "base/str.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct sim_agreement { size_t witnesses, complete, failing, refused; };
/* False, and *why, if they disagree. `root` is the project's folder; `seeds` draws are run. */
bool sim_agreement_file(struct sim_agreement *a, const char *path, const char *root, unsigned seeds, struct ls_str *why);
bool sim_agreement_random(struct sim_agreement *a, uint64_t seed, const char *root, unsigned seeds, struct ls_str *why);

#endif
