/* tests/support/random_rules.h -- what a random system gets on top, so that every rule of the proof is drawn.
 *
 * Operations that some replica issues in a microbatch and others at the step end, on several communicators: late for as long as there are
 * microbatches. Votes on which both sides depend, whose values are equal or the letters' own. Transfers between the ranks of a replica,
 * fused operations, ranks that raise or are in no group, groups of a fixed number of neighbours (and across them), a driver that starts with
 * a round of no operations, letters that a round does not allow, start in issue order. */
#ifndef LS_TESTS_RANDOM_RULES_H
#define LS_TESTS_RANDOM_RULES_H

#include "random_system.h"

enum random_rule { RULE_LATE_FOR_EVER, RULE_DECIDE, RULE_TRANSFER, RULE_FUSED, RULE_STOP, RULE_ABSENT, RULE_BLOCKS, RULE_START, RULE_ALLOWED,
                   RULE_ISSUE_ORDER, RULE_COUNT };
extern const char *const random_rule_name[RULE_COUNT];
/* Adds some of them (bit set of enum random_rule) to an open system. Its tables are made anew: ls_random_system_mutate still works, but may
 * tear a vote from its sides, or a fused group apart. */
unsigned random_rules_add(struct ls_random_system *r, uint64_t seed);

#endif
