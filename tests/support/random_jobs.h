/* tests/support/random_jobs.h -- random small jobs: a script that every rank follows, then a few changes on single ranks. */
#ifndef LS_TESTS_RANDOM_JOBS_H
#define LS_TESTS_RANDOM_JOBS_H

#include "build.h"

#include "machine/machine.h"

struct random_wish {
    bool p2p, fused, decide, stop, threads, slots; /* which of these may occur */
    bool order;                                    /* changes only swap ops of different communicators: words stay equal */
    unsigned mutations;                            /* at most this many changes */
    unsigned steps;                                /* length of the script, at most */
};
/* 2 to 6 ranks, 1 to 3 communicators, 1 to 3 streams. Close with build_close. */
void random_job(struct job_builder *b, const struct random_wish *wish, uint64_t seed);

#endif
