/* src/check/proof.h -- safe for every number of replicas and rounds: search the jointly reachable sets of replica states and
 * run one folded round of the machine per set and schedule letter (semantics.md, theorems 1 to 3). */
#ifndef LS_CHECK_PROOF_H
#define LS_CHECK_PROOF_H

#include "ir/system.h"
#include "machine/machine.h"

enum ls_proof_end { LS_PROOF_SAFE, LS_PROOF_VIOLATED, LS_PROOF_LIMIT };
struct ls_proof {
    enum ls_proof_end end;
    size_t states, macro_states, folded_rounds;
    const char *limit;                      /* LIMIT: which */
    struct ls_assignment candidate;         /* VIOLATED: a concrete run built from the folded violation, not yet executed */
};
LS_MUST_USE enum ls_code ls_prove(const struct ls_system *s, size_t macro_states_max, struct ls_arena *arena,
                                  struct ls_proof *out, struct ls_error *err);

#endif
