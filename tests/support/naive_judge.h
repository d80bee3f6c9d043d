/* tests/support/naive_judge.h -- what a naive run that can go no further amounts to: which difference is reported, or who waits for whom. */
#ifndef LS_TESTS_NAIVE_JUDGE_H
#define LS_TESTS_NAIVE_JUDGE_H

#include "naive.h"

/* The difference at the smallest place, if arrived ops differ anywhere; false otherwise. */
bool naive_judge_mismatch(struct naive *n);
/* The place of a hang, or of what a stop leaves waiting: the smallest that lacks a member or waits for itself. */
void naive_judge_hang(struct naive *n);
/* Does op a, unfinished at the end, wait for op b, directly or through others? */
bool naive_waits(const struct naive *n, struct ls_at a, struct ls_at b);

#endif
