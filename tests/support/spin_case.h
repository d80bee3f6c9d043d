/* tests/support/spin_case.h -- one random model, explored by us and by SPIN: equally many states, the same verdict. */
#ifndef LS_TESTS_SPIN_CASE_H
#define LS_TESTS_SPIN_CASE_H

#include "base/str.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum spin_source {
    SPIN_FAMILY,    /* families.h: ranks that choose */
    SPIN_JOB,       /* random_jobs.h: one program per rank, with decides, transfers, stops */
    SPIN_SYSTEM,    /* random_system.h: rounds, states, late ops; through one run of the driver */
    SPIN_SCENARIO,  /* random_scenario.h: FSDP2 and DDP, loops, expert groups; through one run of the driver */
    SPIN_SOURCES
};
enum spin_part { SPIN_LOOP, SPIN_EXPERTS, SPIN_DDP, SPIN_HYBRID, SPIN_DECIDE, SPIN_LATE, SPIN_TABLE, SPIN_PARTS };
struct spin_count { size_t models, unsafe, states; };
struct spin_sum {
    struct spin_count of[SPIN_SOURCES], part[SPIN_PARTS], level[3];
    size_t refused[SPIN_SOURCES], large[SPIN_SOURCES], set_up; /* not exported, rightly so; more states than the limit; no plan */
    size_t proved;           /* systems and scenarios that the proof calls safe for every size: SPIN finds no error in them */
};
/* One model; several are tried, by numbers derived from the seed, until one can be exported and has at most `states_max` states.
 * False, with what differs (and the scenario's text) in `why`. Checks on the way that L3, a bounded run-ahead, and what a run of free
 * choices does not show are refused. */
bool spin_case_run(enum spin_source source, uint64_t seed, size_t states_max, struct spin_sum *sum, struct ls_str *why);
size_t spin_models(const struct spin_sum *sum);
size_t spin_unsafe(const struct spin_sum *sum);
void spin_print(const struct spin_sum *sum);

#endif
