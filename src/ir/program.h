/* src/ir/program.h -- tables shared by the ops of one scenario, segments of ops, and concrete jobs.
 *
 *   tables    names, communicators, payloads, events, buffers, causes that ops refer to by index
 *   segment   what one rank issues in one round (a microbatch, a step end): a run of ops
 *   job       a concrete number of ranks, each with its list of segments, and the groups of each communicator */
#ifndef LS_IR_PROGRAM_H
#define LS_IR_PROGRAM_H

#include "base/arena.h"
#include "base/error.h"
#include "base/str.h"
#include "base/vec.h"
#include "ir/op.h"

/* A named partition of ranks. On a mesh: `free_dims` is the set of free mesh dimensions that it spans (bit 0 = dp_replicate,
 * bit 1 = dp_shard), so groups can be built for any size; raw programs list their groups (`parts`). */
struct ls_comm_info {
    uint32_t name;
    uint32_t free_dims;
    uint32_t small;          /* > 0: groups of this many consecutive members of free_dims (reshard_after_forward = k, expert parallelism) */
    uint32_t across;         /* > 0: across blocks of this many consecutive members, those with the same place in theirs (expert sharding) */
    uint32_t parent;         /* communicator whose members create it together (lazy or split), or LS_NO_ID: exists from the start */
    struct ls_loc at;
};
struct ls_payload { uint32_t name; uint32_t *items; size_t count; uint64_t elements; }; /* items: name ids, in buffer order */
struct ls_cause { uint32_t text; struct ls_loc at; };  /* "frozen_sharding: per_layer", scenario.yaml:14:5 */
/* Who owns memory: what peaks are told by. */
#define LS_CATEGORIES(X)                                                                                              \
    X(OTHER, "other") X(SHARDED, "sharded_parameters") X(UNSHARDED, "unsharded_parameters") X(GRADIENT, "gradients")   \
    X(GATHER, "gather_buffers") X(REDUCE, "reduce_buffers") X(ACTIVATION, "activations") X(OPTIMIZER, "optimizer")     \
    X(TEMPORARY, "temporary")
#define LS_CATEGORY_ENUM(id, name) LS_CATEGORY_##id,
enum ls_category { LS_CATEGORIES(LS_CATEGORY_ENUM) LS_CATEGORY_COUNT };
#undef LS_CATEGORY_ENUM
const char *ls_category_name(enum ls_category c);

struct ls_buffer { uint32_t name; uint8_t pool; uint8_t category; uint64_t bytes; }; /* pool = allocating stream */

struct ls_tables {
    struct ls_arena *arena; /* owns what the tables point to */
    struct ls_names *names;
    LS_VEC(struct ls_comm_info) comm;
    LS_VEC(struct ls_payload) payload;
    LS_VEC(struct ls_cause) cause;
    LS_VEC(struct ls_buffer) buffer;
    LS_VEC(struct ls_range) range;
    LS_VEC(struct ls_kernel) kernel;
    LS_VEC(struct ls_link) link;
    LS_VEC(uint64_t) vector;    /* per-peer counts: length first, then the counts */
    LS_VEC(uint32_t) stream;    /* name ids of streams; index = op.stream */
    LS_VEC(uint32_t) event;     /* name ids of events; index = op.event */
    LS_VEC(uint64_t) rows;      /* index = name id; dim 0 of a parameter that reductions share out in ceil(rows / ranks) each; 0: not known */
    struct ls_table_index *index; /* private: finds rows of comm, stream, event, payload and cause again */
};
void ls_tables_init(struct ls_tables *t, struct ls_arena *arena);
void ls_tables_release(struct ls_tables *t);
uint32_t ls_tables_comm(struct ls_tables *t, const char *name);  /* finds or adds by name */
uint32_t ls_tables_stream(struct ls_tables *t, const char *name);
uint32_t ls_tables_event(struct ls_tables *t, const char *name);
/* Finds or adds a payload: equal name and equal item list give the equal index, so payload identity is index equality. */
uint32_t ls_tables_payload(struct ls_tables *t, const char *name, const uint32_t *items, size_t count, uint64_t elements);
uint32_t ls_tables_cause(struct ls_tables *t, const char *text, struct ls_loc at);
void ls_tables_set_rows(struct ls_tables *t, uint32_t name, uint64_t rows);
uint64_t ls_tables_rows(const struct ls_tables *t, uint32_t name);
const char *ls_tables_name(const struct ls_tables *t, uint32_t id); /* "" for LS_NO_ID */

struct ls_segment { const struct ls_op *op; size_t count; uint64_t hash; };
typedef LS_VEC(struct ls_op) ls_op_vec;
uint64_t ls_segment_hash(const struct ls_op *op, size_t count); /* over every field that the machine compares */

/* The groups of one communicator in a job: group[rank] and member[rank] are LS_NO_ID for ranks outside every group. */
struct ls_groups {
    uint32_t *group, *member;   /* [ranks] */
    uint32_t *first;            /* [groups + 1], offsets into rank */
    uint32_t *rank;             /* members of each group, in member order */
    size_t groups;
};
struct ls_rank_program { const struct ls_segment *const *segment; size_t count; };
struct ls_job {
    const struct ls_tables *tables;
    size_t ranks;
    struct ls_rank_program *rank;  /* [ranks]; segments may be shared between ranks */
    struct ls_groups *comm;        /* [tables->comm.count] */
};
/* Builds the groups of communicator `comm` from explicit lists; a rank may occur at most once. Owned by the arena. */
LS_MUST_USE enum ls_code ls_groups_from_lists(struct ls_groups *out, struct ls_arena *arena, size_t ranks,
                                              const uint32_t *const *lists, const size_t *lengths, size_t lists_count,
                                              struct ls_loc at, struct ls_error *err);

/* One op as a line a person reads: "all_gather dp_shard model.layers.0 bf16 x 1024 (forward, mb 0) on G". */
void ls_op_print(struct ls_str *out, const struct ls_tables *t, const struct ls_op *op);
/* The text form of a program: every field, one op a line; for tests, --json's neighbour and bug reports. */
void ls_segment_print(struct ls_str *out, const struct ls_tables *t, const struct ls_op *op, size_t count);

#endif
