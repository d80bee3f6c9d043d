/* src/check/family.h -- a fixed number of ranks, each choosing its own segments round by round: all the jobs of one batch
 * contract at once.
 *
 * A rank's choices form a finite tree or directed acyclic graph of nodes: leaving a node plays one of its choices. A node
 * holds what the rank's future depends on (round and replica state), so carried state needs nothing else. Node 0 starts; a
 * node without choices ends. Ranks that share the `node` pointer have the same choices. */
#ifndef LS_CHECK_FAMILY_H
#define LS_CHECK_FAMILY_H

#include "ir/program.h"

struct ls_choice { const struct ls_segment *segment; uint32_t next; uint32_t letter; }; /* letter: for reports */
struct ls_choices { const struct ls_choice *choice; size_t count; };
struct ls_family_rank { const struct ls_choices *node; size_t nodes; };
struct ls_family {
    const struct ls_tables *tables;
    size_t ranks;
    const struct ls_family_rank *rank; /* [ranks] */
    const struct ls_groups *comm;      /* [tables->comm.count] */
};

/* The family with the single member `job`. */
void ls_family_of_job(const struct ls_job *job, struct ls_arena *arena, struct ls_family *out);
/* The member in which rank r takes pick[r][i] at its i-th node; past the end of a list it takes choice 0. */
void ls_family_job(const struct ls_family *f, const uint32_t *const *pick, const size_t *picks, struct ls_arena *arena,
                   struct ls_job *out);
/* Steps through all members: *pick is what ls_family_job takes. Start from all zero counts; false when there is none left.
 * `nodes_max` bounds the length of a rank's list and is the room of each pick[r]. */
bool ls_family_next(const struct ls_family *f, uint32_t *const *pick, size_t *picks, size_t nodes_max);
/* The longest chain of nodes of any rank: room for the lists above.
 *   errors  LS_EINPUT: a rank's nodes form a cycle or name a node or segment that does not exist */
LS_MUST_USE enum ls_code ls_family_check(const struct ls_family *f, size_t *nodes_max, struct ls_error *err);

#endif
