/* tests/support/agree.h -- one random system, decided by the library and by brute force. */
#ifndef LS_TESTS_AGREE_H
#define LS_TESTS_AGREE_H

#include "machine/machine.h"
#include "random_rules.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct agree_sum {
    size_t systems, proved, refuted, undecided, mutants;
    size_t proved_but_fails, refuted_without_witness, witness_not_smallest, rounds_differ; /* all must be 0 */
    size_t not_minimal;        /* witnesses for which the search for smaller ones hit a limit */
    size_t beyond;             /* refuted, but brute force found nothing within its bounds */
    size_t runs, rounds;       /* of brute force; folded rounds compared with the word and cycle check */
    size_t verdict[LS_VERDICT_COUNT];
    size_t late, windows;      /* proofs over several rounds */
    size_t replicas[32];       /* of witnesses */
    struct agree_rule { size_t systems, proved, refuted; } rule[RULE_COUNT]; /* systems that have it */
    struct agree_limit { const char *text; size_t count; } limit[16];        /* why systems are undecided */
    size_t undecided_but_fails; /* brute force finds a run that the search of small meshes does not reach */
};
struct agree_options {
    size_t runs_max, total_max;
    unsigned brute_percent;    /* of refuted systems that brute force looks at, too */
    bool rules;                /* with what random_rules.h adds */
};
/* False if something disagrees; `why` (at least 400 bytes) then says what. */
bool agree_once(uint64_t seed, const struct agree_options *o, struct agree_sum *sum, char *why, size_t room);
void agree_print(const struct agree_sum *sum);

#endif
