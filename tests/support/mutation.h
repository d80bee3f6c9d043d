/* tests/support/mutation.h -- safe plans made unsafe by one change: is each of them caught, with the right verdict?
 *
 * Three families. *rank*: one op, or one unit, of one rank's program in one run is changed. *all*: the same op of every rank.
 * *plan*: one rank follows another plan than its peers. *scenario*: the plan or the contract itself is changed, for the sizes
 * that the scenario claims. *letter*: as rank, for every size: a batch that looks like another one, with a program that is not.
 *
 * What must follow comes from the kind of change, not from the checker:
 *   a fixed verdict    an op that differs in size or dtype at a position that everybody reaches can only be a mismatch, ...
 *   words              what the members of each group issue is compared, op by op: at the first difference two ops meet that differ
 *                      (mismatch), two that differ in payload only (mispairing), or one side has nothing left (hang). Where a rank cannot
 *                      get there, since it waits for something behind the change, it hangs: the naive machine (naive.h) says which
 *   brute              every run within small bounds is executed: does one fail?
 * A change that leaves all words equal, and that the naive machine completes, is *equivalent*: the checker has to call it safe. */
#ifndef LS_TESTS_MUTATION_H
#define LS_TESTS_MUTATION_H

#include "base/str.h"
#include "machine/machine.h"

#define MUTATIONS(X) /* id, family, what must follow, name */                            \
    X(COUNT,        RANK,     MISMATCH,      "wrong size")                               \
    X(DTYPE,        RANK,     MISMATCH,      "wrong dtype")                              \
    X(REDUCE,       RANK,     MISMATCH,      "wrong reduction on one rank")              \
    X(FACTOR,       RANK,     MISMATCH,      "wrong divisor on one rank")                \
    X(KIND,         RANK,     MISMATCH,      "wrong collective")                         \
    X(PAYLOAD,      RANK,     MISPAIRING,    "wrong tensor of the same size")            \
    X(LEAVE,        RANK,     ERROR,         "rank leaves")                              \
    X(GROUP,        RANK,     WORDS,         "wrong group")                              \
    X(DROP,         RANK,     WORDS,         "collective left out")                      \
    X(REPEAT,       RANK,     WORDS,         "collective issued twice")                  \
    X(SWAP,         RANK,     WORDS,         "collectives in another order")             \
    X(POSTPONE,     RANK,     WORDS,         "collective a round late")                  \
    X(SKIP,         RANK,     WORDS,         "unit skipped (tower, layer or root)")      \
    X(NO_COPY,      RANK,     LOST_GRADIENT, "gradient not copied into its reduction")   \
    X(NO_WAIT,      RANK,     RACE,          "missing wait")                             \
    X(ALL_DROP,     ALL,      LOST_GRADIENT, "reduction left out on every rank")         \
    X(ALL_DIVISOR,  ALL,      WRONG_SCALE,   "wrong divisor on every rank")              \
    X(OTHER_BATCH,  PLAN,     WORDS,         "one rank's batch skips or adds a medium")  \
    X(OTHER_DTYPE,  PLAN,     WORDS,         "one rank gathers or reduces in another dtype") \
    X(OTHER_RESHARD, PLAN,    WORDS,         "one rank reshards differently")            \
    X(OTHER_FROZEN, PLAN,     WORDS,         "one rank freezes one more unit")           \
    X(OTHER_UNITS,  PLAN,     WORDS,         "one rank lacks a unit")                    \
    X(OTHER_POLICY, PLAN,     WORDS,         "one rank has another policy")              \
    X(OTHER_SYNC,   PLAN,     WORDS,         "one rank defers its reductions")           \
    X(OTHER_UNUSED, PLAN,     WORDS,         "one rank fills in zero gradients")         \
    X(ANY_COUNT,    LETTER,   MISMATCH,      "wrong size, any number of ranks")          \
    X(ANY_PAYLOAD,  LETTER,   MISPAIRING,    "wrong tensor, any number of ranks")        \
    X(ANY_DROP,     LETTER,   WORDS,         "collective left out, any number of ranks") \
    X(ANY_LEAVE,    LETTER,   ERROR,         "rank leaves, any number of ranks")         \
    X(ANY_NO_COPY,  LETTER,   LOST_GRADIENT, "gradient not copied, any number of ranks") \
    X(NO_GUARANTEE, SCENARIO, BRUTE,         "uniform batches no longer guaranteed")     \
    X(NO_DUMMY,     SCENARIO, BRUTE,         "missing dummy")                            \
    X(PART_DUMMY,   SCENARIO, BRUTE,         "dummy that leaves out a module")           \
    X(LOOSE_DUMMY,  SCENARIO, BRUTE,         "dummy that does not enter the loss")       \
    X(UNOWNED,      SCENARIO, LOST_GRADIENT, "unowned parameter")                        \
    X(SUM,          SCENARIO, WRONG_SCALE,   "mean where a sum is wanted, or the reverse") \
    X(NEVER,        SCENARIO, LOST_GRADIENT, "gradients never reduced")
#define MUTATION_ENUM(id, family, follows, name) MUTATE_##id,
enum mutation_kind { MUTATIONS(MUTATION_ENUM) MUTATION_KINDS };
#undef MUTATION_ENUM

/* Plans of some kinds are counted apart, too. */
enum mutation_part { MUTATION_LOOP, MUTATION_EXPERTS, MUTATION_DDP, MUTATION_PARTS };
struct mutations { /* counts */
    size_t part_bases[MUTATION_PARTS], part_caught[MUTATION_PARTS][MUTATION_KINDS];
    size_t bases;                       /* safe plans that were changed */
    size_t made[MUTATION_KINDS], caught[MUTATION_KINDS], equal[MUTATION_KINDS];
    size_t verdict[MUTATION_KINDS][LS_VERDICT_COUNT];
    size_t unreached;                   /* hangs before the first difference */
};
/* Adds the mutations of one plan, at most `per_kind` of each kind, chosen by the seed. Plans that are not safe, or whose run is longer
 * than `ops_max` on a rank, add nothing. False, and *why, when a change is not caught, or with another verdict. */
bool mutations_of_file(struct mutations *m, const char *path, uint64_t seed, unsigned per_kind, size_t ops_max, struct ls_str *why);
bool mutations_of_seed(struct mutations *m, uint64_t seed, unsigned per_kind, size_t ops_max, struct ls_str *why); /* random_scenario.h */
size_t mutations_caught(const struct mutations *m);
void mutations_print(const struct mutations *m);

#endif
