/* tests/support/cases.h -- small systems written in a few lines: the counterexamples to simpler rules.
 *
 * A segment is a string: a capital letter is a collective on the communicator of that name, on a stream of its own; `A>B`
 * makes B's stream wait for A, `A;` blocks the host until A is done. Rounds, states and letters count from 0. */
#ifndef LS_TESTS_CASES_H
#define LS_TESTS_CASES_H

#include "random_system.h"

struct ls_case {
    struct ls_system system;
    struct ls_tables tables;
    struct ls_arena arena;
    struct ls_table_transducer *t;
    struct ls_comm_roles comm[8];
};
/* `dims`: free dimensions, any size >= 2. The contract is `any`, the driver a single round. Communicators are added next. */
void case_open(struct ls_case *c, uint32_t dims, size_t states, size_t rounds, size_t letters, size_t roles);
void case_close(struct ls_case *c);
/* `parts`: one digit per role. */
void case_comm(struct ls_case *c, char name, uint32_t spans, const char *parts);
void case_step(struct ls_case *c, size_t state, size_t round, size_t letter, uint32_t next, const char *role0, const char *role1);
/* Nodes as "round:next,next" separated by spaces; `*` after the round: the job may stop before it. "0*:0" is any number of round 0. */
void case_driver(struct ls_case *c, const char *nodes);
void case_uniform(struct ls_case *c);
void case_node_uniform(struct ls_case *c);

#endif
