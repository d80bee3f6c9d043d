/* tests/support/nccl_like.h -- the failing run of a check on the engine, whose communicators pair by position as NCCL does. */
#ifndef LS_TESTS_NCCL_LIKE_H
#define LS_TESTS_NCCL_LIKE_H

#include "advise/advise.h"
#include "base/str.h"

/* False, and *why, if it cannot run. */
bool nccl_like_run(const struct ls_scenario *s, const struct ls_assessment *a, uint64_t schedule, bool *completes, size_t *silent, struct ls_str *why);

#endif
