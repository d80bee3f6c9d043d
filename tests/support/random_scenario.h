/* tests/support/random_scenario.h -- random scenarios as YAML text: small multimodal models, policies or explicit units, freezing,
 * accumulation, dummies, contracts, hybrid sharding. One seed, one text. */
#ifndef LS_TESTS_RANDOM_SCENARIO_H
#define LS_TESTS_RANDOM_SCENARIO_H

#include "base/str.h"

#include <stdint.h>

void random_scenario(uint64_t seed, struct ls_str *out);
void random_scenario_ddp(uint64_t seed, struct ls_str *out); /* always DDP, which few of the others are */

#endif
