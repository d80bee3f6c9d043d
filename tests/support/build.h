/* tests/support/build.h -- small jobs written in a few lines.
 *
 *   struct job_builder b; build_open(&b, 2);
 *   uint32_t g = build_comm(&b, "g", 1, (const uint32_t[]){0, 1}, (const size_t[]){2});
 *   build_op(&b, 0, LS_OP_ALL_REDUCE, g)->blocking = true;
 *   struct ls_job job = build_job(&b); */
#ifndef LS_TESTS_BUILD_H
#define LS_TESTS_BUILD_H

#include "machine/machine.h"

enum { BUILD_RANKS = 16 };
struct job_builder {
    struct ls_arena arena;
    struct ls_tables tables;
    size_t ranks;
    ls_op_vec op[BUILD_RANKS];
    LS_VEC(size_t) cut[BUILD_RANKS];  /* where segments end, before the last */
    LS_VEC(struct ls_groups) groups;
};
void build_open(struct job_builder *b, size_t ranks);
void build_close(struct job_builder *b);
/* `member` lists the groups one after another. */
uint32_t build_comm(struct job_builder *b, const char *name, size_t groups, const uint32_t *member, const size_t *length);
uint32_t build_world(struct job_builder *b, const char *name); /* one group of all ranks */
/* Valid until the next op of the same rank. comm is ignored by kinds without one. */
struct ls_op *build_op(struct job_builder *b, uint32_t rank, enum ls_op_kind kind, uint32_t comm);
struct ls_op *build_event(struct job_builder *b, uint32_t rank, enum ls_op_kind kind, uint32_t event, uint8_t stream);
struct ls_op *build_payload(struct job_builder *b, struct ls_op *op, const char *payload);
void build_cut(struct job_builder *b, uint32_t rank); /* a segment ends here */
struct ls_job build_job(struct job_builder *b);
/* Runs it; the machine accepts the job. */
struct ls_outcome build_run(struct job_builder *b, const struct ls_run_options *o);
struct ls_outcome build_run_at(struct job_builder *b, enum ls_level level);
/* Every op of every rank, for failure messages. Valid until the builder closes. */
const char *build_text(struct job_builder *b);

#endif
