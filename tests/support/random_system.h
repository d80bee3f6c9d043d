/* tests/support/random_system.h -- random replicas as finite transducers, for comparing the proof with brute force.
 *
 * A system is drawn from one seed: rounds of collectives on one to three communicators that span replicas and up to two
 * inside a replica, letters and remembered letters that add, drop, swap, postpone or relabel ops, waits and host waits. */
#ifndef LS_TESTS_RANDOM_SYSTEM_H
#define LS_TESTS_RANDOM_SYSTEM_H

#include "ir/system.h"

enum ls_random_contract { LS_RANDOM_ANY, LS_RANDOM_UNIFORM, LS_RANDOM_MODALITY, LS_RANDOM_NODE, LS_RANDOM_NODE_REPLICA, LS_RANDOM_CONTRACTS };
struct ls_random_system {
    struct ls_system system;
    struct ls_tables tables;
    struct ls_arena arena;
    enum ls_random_contract contract;
    unsigned driver;      /* 0 .. 4 */
    const char *features; /* what was drawn, for messages */
};
void ls_random_system_open(struct ls_random_system *r, uint64_t seed);
/* Swaps, drops, repeats or relabels an op of one segment. */
void ls_random_system_mutate(struct ls_random_system *r, uint64_t seed);
void ls_random_system_close(struct ls_random_system *r);

/* A transducer from a table that the caller fills: segment[state][round][letter][role], next[state][round][letter]. */
struct ls_table_transducer {
    struct ls_transducer base;
    size_t states, rounds;
    const struct ls_segment **segment;
    uint32_t *next;
};
void ls_table_transducer_init(struct ls_table_transducer *t, const struct ls_tables *tables, size_t states, size_t rounds,
                              size_t letters, size_t roles, struct ls_arena *arena);
const struct ls_segment **ls_table_segment(struct ls_table_transducer *t, size_t state, size_t round, size_t letter, size_t role);
uint32_t *ls_table_next(struct ls_table_transducer *t, size_t state, size_t round, size_t letter);

#endif
