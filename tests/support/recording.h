/* tests/support/recording.h -- a compiled rank as the lines of a recording (tests/oracle/format.md). */
#ifndef LS_TESTS_RECORDING_H
#define LS_TESTS_RECORDING_H

#include "scenario/scenario.h"

/* Appends the lines of one rank: the driver's rounds in order, letters from the contract's table.
 *   errors  what the compiler returns */
LS_MUST_USE enum ls_code recording_of_rank(const struct ls_compiled *c, size_t shard, size_t replica, struct ls_str *out,
                                           struct ls_error *err);

#endif
