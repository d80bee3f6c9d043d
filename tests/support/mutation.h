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
 * Some changes are of what DDP does not have: units, their dtypes, resharding and policies, parameters in no unit; and its programs name no
 * buffers, so that no race can show.
 * A change that leaves all words equal, and that the naive machine completes, is *equivalent*: the checker has to call it safe. */
#ifndef LS_TESTS_MUTATION_H
#define LS_TESTS_MUTATION_H

#include "base/str.h"
#include "machine/machine.h"

#define MUTATIONS(X) /* id, family, what must follow, can a DDP plan have it, name */             \
    X(COUNT,        RANK,     MISMATCH,      YES, "wrong size")                                   \
    X(DTYPE,        RANK,     MISMATCH,      YES, "wrong dtype")                                  \
    X(REDUCE,       RANK,     MISMATCH,      YES, "wrong reduction on one rank")                  \
    X(FACTOR,       RANK,     MISMATCH,      YES, "wrong divisor on one rank")                    \
    X(KIND,         RANK,     MISMATCH,      YES, "wrong collective")                             \
    X(PAYLOAD,      RANK,     MISPAIRING,    YES, "wrong tensor of the same size")                \
    X(LEAVE,        RANK,     ERROR,         YES, "rank leaves")                                  \
    X(GROUP,        RANK,     WORDS,         YES, "wrong group")                                  \
    X(DROP,         RANK,     WORDS,         YES, "collective left out")                          \
    X(REPEAT,       RANK,     WORDS,         YES, "collective issued twice")                      \
    X(SWAP,         RANK,     WORDS,         YES, "collectives in another order")                 \
    X(POSTPONE,     RANK,     WORDS,         YES, "collective a round late")                      \
    X(SKIP,         RANK,     WORDS,         NO,  "unit skipped (tower, layer or root)")          \
    X(NO_COPY,      RANK,     LOST_GRADIENT, YES, "gradient not copied into its reduction")       \
    X(NO_WAIT,      RANK,     RACE,          NO,  "missing wait")                                 \
    X(ALL_DROP,     ALL,      LOST_GRADIENT, YES, "reduction left out on every rank")             \
    X(ALL_DIVISOR,  ALL,      WRONG_SCALE,   YES, "wrong divisor on every rank")                  \
    X(OTHER_BATCH,  PLAN,     WORDS,         YES, "one rank's batch skips or adds a medium")      \
    X(OTHER_DTYPE,  PLAN,     WORDS,         NO,  "one rank gathers or reduces in another dtype") \
    X(OTHER_RESHARD, PLAN,    WORDS,         NO,  "one rank reshards differently")                \
    X(OTHER_FROZEN, PLAN,     WORDS,         YES, "one rank freezes one more unit")               \
    X(OTHER_UNITS,  PLAN,     WORDS,         NO,  "one rank lacks a unit")                        \
    X(OTHER_POLICY, PLAN,     WORDS,         NO,  "one rank has another policy")                  \
    X(OTHER_SYNC,   PLAN,     WORDS,         YES, "one rank defers its reductions")               \
    X(OTHER_UNUSED, PLAN,     WORDS,         YES, "one rank fills in zero gradients")             \
    X(ANY_COUNT,    LETTER,   MISMATCH,      YES, "wrong size, any number of ranks")              \
    X(ANY_PAYLOAD,  LETTER,   MISPAIRING,    YES, "wrong tensor, any number of ranks")            \
    X(ANY_DROP,     LETTER,   WORDS,         YES, "collective left out, any number of ranks")     \
    X(ANY_LEAVE,    LETTER,   ERROR,         YES, "rank leaves, any number of ranks")             \
    X(ANY_NO_COPY,  LETTER,   LOST_GRADIENT, YES, "gradient not copied, any number of ranks")     \
    X(NO_GUARANTEE, SCENARIO, BRUTE,         YES, "uniform batches no longer guaranteed")         \
    X(NO_DUMMY,     SCENARIO, BRUTE,         YES, "missing dummy")                                \
    X(PART_DUMMY,   SCENARIO, BRUTE,         YES, "dummy that leaves out a module")               \
    X(LOOSE_DUMMY,  SCENARIO, BRUTE,         YES, "dummy that does not enter the loss")           \
    X(UNOWNED,      SCENARIO, LOST_GRADIENT, NO,  "unowned parameter")                            \
    X(SUM,          SCENARIO, WRONG_SCALE,   YES, "mean where a sum is wanted, or the reverse")   \
    X(NEVER,        SCENARIO, LOST_GRADIENT, YES, "gradients never reduced")
#define MUTATION_ENUM(id, family, follows, ddp, name) MUTATE_##id,
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
/* Those of random_scenario.h; `ddp`: of a plan that is replicated. */
bool mutations_of_seed(struct mutations *m, uint64_t seed, bool ddp, unsigned per_kind, size_t ops_max, struct ls_str *why);
bool mutation_on_ddp(enum mutation_kind kind); /* a DDP plan can have it */
size_t mutations_caught(const struct mutations *m);
void mutations_print(const struct mutations *m);

#endif
