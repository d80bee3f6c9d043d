/* src/check/fold.h -- all replicas at once: joint sets of states (macro-states), and the folded round that they play.
 *
 * A macro-state nests as the contract's tree of agents does. At the last level it is a *leaf*: a replica's state together with
 * its residues, what it has issued on each communicator beyond what everybody in the communicator's scope has issued. At
 * level i it is the set of level-(i+1) macro-states that the agent's sub-agents can be in. Level 0's is the whole job's.
 * The *scope* of a communicator is an agent of the deepest level that all members of a group share.
 *
 * A *tree* is one folded round: one agent per macro-state in its parent's and class that the contract allows. */
#ifndef LS_CHECK_FOLD_H
#define LS_CHECK_FOLD_H

#include "check/words.h"
#include "ir/system.h"
#include "machine/machine.h"

/* A macro-state of a level and where it is: under `parent`, an index one level up. */
struct ls_place { uint32_t parent, macro, first; }; /* first: index of its first sub-place */
struct ls_agent {
    uint32_t parent;        /* agent one level up */
    uint32_t place, klass;  /* macro-state before, and the class that it picks */
    uint32_t child, children;
    uint32_t leaf, leaves;  /* its agents of the last level */
    uint32_t next;          /* macro-state after */
};
enum ls_fold_problem { LS_FOLD_FINE, LS_FOLD_WORDS, LS_FOLD_STOPS };
struct ls_fold_pair { uint32_t leaf, role; };
struct ls_tree {
    struct ls_place *place[LS_LEVELS_MAX]; size_t places[LS_LEVELS_MAX];
    struct ls_agent *agent[LS_LEVELS_MAX]; size_t agents[LS_LEVELS_MAX];
    const struct ls_digest **digest;  /* [leaf agents][roles] */
    uint32_t *state;                  /* [leaf agents]: replica state after */
    uint32_t *cut;                    /* [scope's index at its level][folded comm]: see ls_fold_cut */
    bool late_before, late_after;     /* some residue is not empty */
    bool fused, p2p, decides;
    bool concrete;                    /* a single replica whose ranks agree on values that differ: only the machine decides */
    size_t ops;                       /* over all leaf agents */
    enum ls_fold_problem problem;
    uint32_t comm;                    /* WORDS */
    struct ls_fold_pair a, b;         /* WORDS: a differs from b, or is ahead of it for ever; STOPS: a */
    const char *limit;                /* not foldable, and why */
    bool at_stop;                     /* WORDS: shows only when the job stops after this round */
    bool diverges;                    /* WORDS: shows at whatever stop comes next */
};

struct ls_fold {
    const struct ls_system *system;
    size_t levels, roles, comms;
    uint32_t dims[LS_LEVELS_MAX];
    const uint32_t *class_of[LS_LEVELS_MAX];  /* [letters]; dense; the last level's is the identity */
    size_t classes[LS_LEVELS_MAX];
    bool *class_allowed;   /* [nodes][classes of level 0] */
    bool *crowded[LS_LEVELS_MAX]; /* [nodes][classes of the level]: AT_MOST: more replicas would hold media than may; NULL else */
    uint32_t *folded;      /* [roles][comms]: folded communicator of a role, or LS_NO_ID */
    size_t foldeds;
    uint32_t *comm_of;     /* [foldeds] */
    uint8_t *level_of;     /* [comms] */
    bool *used;            /* [foldeds]: some op was seen on it */
    uint32_t *driver_distance; /* [nodes]: rounds from this node on to the nearest stop, this node's included */
    struct ls_intern leaf, set[LS_LEVELS_MAX];
    struct ls_digests *digests;
    struct ls_arena *arena;
    size_t states;         /* replica states seen: highest id + 1 */
};
/*   errors  LS_EINPUT: a contract that is no tree, a driver without a stop */
LS_MUST_USE enum ls_code ls_fold_open(struct ls_fold *f, const struct ls_system *s, struct ls_arena *arena, struct ls_error *err);
void ls_fold_close(struct ls_fold *f);
uint32_t ls_fold_start(struct ls_fold *f); /* the macro-state before the first round */
bool ls_fold_allowed(const struct ls_fold *f, uint32_t node, uint32_t letter);
bool ls_fold_class_allowed(const struct ls_fold *f, uint32_t node, uint32_t klass); /* of level 0 */
bool ls_fold_may_stop_after(const struct ls_fold *f, uint32_t node);
/* The folded round of `macro` at driver node `node` with level-0 class `klass`. Owned by `arena`. */
LS_MUST_USE enum ls_code ls_fold_round(struct ls_fold *f, uint32_t node, uint32_t macro, uint32_t klass, struct ls_arena *arena,
                                       struct ls_tree *out, struct ls_error *err);
/* Only the places of a round's tree. */
void ls_fold_places(const struct ls_fold *f, uint32_t macro, struct ls_arena *arena, struct ls_tree *out);
/* The residue of a leaf (a macro-state of the last level) on the communicator of a role. Valid until the next round. */
const uint32_t *ls_fold_residue(const struct ls_fold *f, uint32_t leaf, size_t role, size_t comm, size_t *count);
/* How many ops everybody in the scope had issued when the round ended, counted from the round's first unfinished one. */
size_t ls_fold_cut(const struct ls_fold *f, const struct ls_tree *t, uint32_t leaf, size_t role, size_t comm);
uint32_t ls_fold_scope(const struct ls_fold *f, const struct ls_tree *t, uint32_t leaf, size_t level); /* agent of `level` above a leaf agent */
uint32_t ls_fold_leaf_macro(const struct ls_fold *f, const struct ls_tree *t, uint32_t leaf); /* before the round */
/* The place in `next` (the tree of the following round) that `agent` of `level` leads to. */
uint32_t ls_fold_successor(const struct ls_fold *f, const struct ls_tree *t, uint32_t level, uint32_t agent, const struct ls_tree *next);

#endif
