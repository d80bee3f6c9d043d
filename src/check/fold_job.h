/* src/check/fold_job.h -- a folded round as a job that the machine can run: one replica per distinct program and scope. */
#ifndef LS_CHECK_FOLD_JOB_H
#define LS_CHECK_FOLD_JOB_H

#include "check/fold.h"

/* Names what decides the round's outcome: equal keys, equal outcomes. `keys` is shared by the rounds of one fold. */
uint32_t ls_fold_key(const struct ls_fold *f, const struct ls_tree *t, struct ls_intern *keys);
/* *out and *leaf are owned by `arena`, programs by the fold. *leaf: the leaf agent that each replica of the job stands for.
 * `absent` [leaf agents], or NULL: those that take no part. */
void ls_fold_job(const struct ls_fold *f, const struct ls_tree *t, const bool *absent, struct ls_arena *arena, struct ls_job *out,
                 const uint32_t **leaf);

#endif
