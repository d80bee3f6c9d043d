/* tests/support/result_case.h -- a made-up comparison: six cells, one of them unsafe, with times from a generator. */
#ifndef LS_TESTS_RESULT_CASE_H
#define LS_TESTS_RESULT_CASE_H

#include "report/result.h"

/* Owned by `arena`. The same for the same seed. */
void result_case(struct ls_result *out, struct ls_arena *arena, uint64_t seed);

#endif
