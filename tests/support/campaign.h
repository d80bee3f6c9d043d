/* tests/support/campaign.h -- the convention of long tests.
 *
 * A long test is a plain program campaign_NAME.c in any folder of tests/ (a main, no Criterion). The target `campaign` builds
 * and runs them all:
 *     cmake --build build/release --target campaign
 *     LS_CAMPAIGN_SECONDS   how long each may go on starting new cases (default 600)
 *     LS_SEED               the first seed (default 1)
 * It prints `seed N` for its first case, and at the end `next seed N`, which resumes it; it stops at the first failure with the
 * seed that repeats it and a status other than 0. Case i uses seed LS_SEED + i and nothing else that changes from run to run.
 *
 * `bench` does the same with the programs tests/bench/bench_NAME.c. Each checks its result, then prints CSV. */
#ifndef LS_TESTS_CAMPAIGN_H
#define LS_TESTS_CAMPAIGN_H

#include <stdbool.h>
#include <stdint.h>

struct campaign { uint64_t first, next; double until_s; };

struct campaign campaign_open(void);                  /* reads the environment; a bad value ends the process with status 2 */
bool campaign_next(struct campaign *c, uint64_t *seed); /* false: time is up */
void campaign_close(const struct campaign *c, const char *what); /* prints `what`, the number of cases and the next seed */
double campaign_clock_s(void);                        /* monotonic */
double campaign_cpu_s(void);                          /* of this process */

#endif
