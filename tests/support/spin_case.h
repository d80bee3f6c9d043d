/* tests/support/spin_case.h -- one random family, explored by us and by SPIN. */
#ifndef LS_TESTS_SPIN_CASE_H
#define LS_TESTS_SPIN_CASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct spin_case { bool unsafe; size_t states; };
/* False, with what differs in `why`. L1 or L2 by the seed; at most 20,000 states. */
bool spin_case_run(uint64_t seed, struct spin_case *out, char *why, size_t why_room);

#endif
