/* src/ir/system.h -- what a checker is given: replicas as finite transducers, a driver, a batch contract, a mesh.
 *
 * A *replica* is what makes choices: one data-parallel coordinate with all its inner ranks (context, tensor, pipeline
 * coordinates: its *roles*). In each *round* (a microbatch, the last microbatch, a step end, an evaluation forward) it takes a
 * *letter* (a class of batches that yield the same ops), moves to another *state* and issues one segment per role.
 *
 *   free dimensions  bit 0 dp_replicate, bit 1 dp_shard. Their sizes are given, or 0: any size >= 2
 *   source           the definitions are those of semantics.md, section "Systems" */
#ifndef LS_IR_SYSTEM_H
#define LS_IR_SYSTEM_H

#include "ir/program.h"

enum { LS_DIM_REPLICATE = 1, LS_DIM_SHARD = 2, LS_FREE_DIMS = 2, LS_LEVELS_MAX = 4 };

struct ls_step { const struct ls_segment *const *role; uint32_t next; }; /* role[roles]: stable pointers, owned by the transducer */

/* compile(state, round, letter) -> (segments, state'). States are dense ids from 0 in order of discovery; equal states have
 * equal ids (the implementation keeps them canonical), and equal arguments give the identical result. */
struct ls_transducer {
    const struct ls_tables *tables;
    size_t roles;    /* ranks of one replica */
    size_t letters;  /* of the whole system; a driver node may allow only some */
    uint32_t start;  /* state */
    enum ls_code (*step)(struct ls_transducer *self, uint32_t state, uint32_t round, uint32_t letter, struct ls_step *out,
                         struct ls_error *err);
    /* One line for people: "text only", "1 image". */
    const char *(*letter_name)(const struct ls_transducer *self, uint32_t letter);
    size_t states_max; /* more distinct states than this: LS_EUNDECIDED from step */
};

/* The driver: which sequences of rounds exist. A run starts in node 0; leaving a node plays its round with any allowed letter. */
struct ls_driver_node {
    uint32_t round;               /* passed to step(); several nodes may share one */
    const char *name;             /* "microbatch 0", "last microbatch", "step end" */
    uint32_t microbatch;          /* for reports */
    bool may_stop;                /* the job may end before this node's round */
    uint32_t *next; size_t nexts; /* nodes that may follow */
    uint64_t *allowed;            /* bit set of letters, or NULL: all */
};
struct ls_driver { struct ls_driver_node *node; size_t nodes; };

/* A free contract: a tree of agents. Level i's agents are the sets of replicas with equal coordinates in dims[i]; dims[0] = 0
 * (the whole job), dims[levels - 1] = every free dimension (one agent per replica). A replica's letter is fixed step by step:
 * the level-i agent picks a class, class_of[i][letter], inside its parent's class. class_of of the last level is the identity
 * (NULL). `any` has two levels with one class at level 0; `rank_uniform` is the identity at level 0 already.
 * Contracts that are not free carry the kind and bound of what they add to the smallest free contract that contains them. */
enum ls_contract_extra { LS_CONTRACT_FREE, LS_CONTRACT_AT_LEAST_ONE, LS_CONTRACT_AT_MOST, LS_CONTRACT_TABLE };
struct ls_contract {
    size_t levels;
    uint32_t dims[LS_LEVELS_MAX];
    const uint32_t *class_of[LS_LEVELS_MAX]; /* [letters], or NULL: identity */
    enum ls_contract_extra extra;
    size_t bound;                 /* AT_MOST: replicas */
    uint64_t media;               /* AT_LEAST_ONE, AT_MOST: bit set of the letters counted */
    const uint32_t *table; size_t rows, columns; /* TABLE: letter [round][replica]; nothing beyond it is claimed */
    const uint32_t *sample;       /* TABLE: [rows][columns] the sample meant, where sizes matter */
    const char *name;             /* as the scenario says it: "any" */
    struct ls_loc at;
};

/* How a communicator lies over one replica's roles: two roles with equal `part` are in one group (of equal free coordinates
 * outside free_dims, see ls_comm_info); LS_NO_ID: that role is in no group. */
struct ls_comm_roles {
    const uint32_t *part;  /* [roles] */
    const uint32_t *order; /* [roles], or NULL: members of a group come by free coordinates, then by order, then by role */
};

struct ls_system {
    struct ls_transducer *replica;
    struct ls_driver driver;
    struct ls_contract contract;
    const struct ls_comm_roles *comm;  /* [tables->comm.count] */
    uint32_t free_dims;                /* dimensions that exist (size is not 1) */
    size_t size[LS_FREE_DIMS];         /* 0: any size >= 2; 1 if the dimension does not exist */
    int level;                         /* 1, 2, 3 (enum ls_level) */
    unsigned kernels; int start_rule;  /* L3 */
};

/* A concrete run: sizes, and the letter of every replica in every round. */
struct ls_assignment {
    size_t size[LS_FREE_DIMS];   /* replicas = product; replica index = replicate * size[1] + shard */
    size_t rounds;
    const uint32_t *node;        /* [rounds] driver nodes */
    const uint32_t *letter;      /* [rounds][replicas] */
};
/* Builds the job of an assignment. Rank = replica * roles + role. */
LS_MUST_USE enum ls_code ls_system_job(const struct ls_system *s, const struct ls_assignment *a, struct ls_arena *arena,
                                       struct ls_job *out, struct ls_error *err);
/* What a free dimension of any size may be: a multiple of `step` that is at least `least`. Groups of a fixed number of members
 * need multiples of it; groups across such blocks need two blocks, since without them the plan is another. */
void ls_system_sizes(const struct ls_system *s, size_t dim, size_t *step, size_t *least);
/* Groups of a mesh communicator for given sizes (free_dims, small, across, roles). */
void ls_system_groups(const struct ls_system *s, uint32_t comm, const size_t size[LS_FREE_DIMS], struct ls_arena *arena,
                      struct ls_groups *out);

#endif
