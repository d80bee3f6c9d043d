/* src/check/proof.h -- safe for every number of replicas and rounds: search the jointly reachable sets of replica states and
 * run one folded round of the machine per set and schedule letter (semantics.md, theorems 1 to 3).
 *
 * SAFE holds for the free contract that contains the system's, for all sizes of the free dimensions (at least two each), and
 * for all numbers of rounds. VIOLATED comes with a run that fits the contract and the given sizes, to be executed by the caller. */
#ifndef LS_CHECK_PROOF_H
#define LS_CHECK_PROOF_H

#include "ir/system.h"
#include "machine/machine.h"

enum ls_proof_end { LS_PROOF_SAFE, LS_PROOF_VIOLATED, LS_PROOF_LIMIT };
struct ls_proof {
    enum ls_proof_end end;
    size_t states, macro_states, folded_rounds;
    size_t machine_runs;                    /* folded rounds with programs that were not seen before */
    size_t window;                          /* consecutive rounds whose order had to be looked at together; 1: aligned */
    const char *limit;                      /* LIMIT: which */
    struct ls_assignment candidate;         /* VIOLATED: a concrete run built from the folded violation, not yet executed */
    bool cut;                               /* SAFE: rounds_max left longer runs out */
    bool stopped;                           /* VIOLATED: a bound ended the search for a run with fewer rounds */
};
struct ls_prove_options {
    size_t macro_states_max;                /* 0: 200,000 */
    size_t rounds_max;                      /* runs of at most this many rounds; 0: all */
    bool fewest;                            /* the violation with the fewest rounds, in the earliest round, with few ops */
    size_t work_max;                        /* ops looked at in folded rounds and order graphs; 0: no bound */
    double until;                           /* ls_clock() at which to give up; 0: never */
};
LS_MUST_USE enum ls_code ls_prove(const struct ls_system *s, size_t macro_states_max, struct ls_arena *arena,
                                  struct ls_proof *out, struct ls_error *err);
LS_MUST_USE enum ls_code ls_prove_with(const struct ls_system *s, const struct ls_prove_options *o, struct ls_arena *arena,
                                       struct ls_proof *out, struct ls_error *err);
double ls_clock(void); /* monotonic seconds */

#endif
