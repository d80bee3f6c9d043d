/* tests/support/processes.h -- a run in several processes that are threads of this one, with messages that are late at random; and
 * whether two runs of a job showed the same. */
#ifndef LS_TESTS_PROCESSES_H
#define LS_TESTS_PROCESSES_H

#include "engine/comm/world.h"
#include "replay/replay.h"

/* A post office for `processes`; each thread opens its world and closes it. Delays depend on the seed and on the machine. */
struct post;
struct post *post_open(size_t processes, size_t ranks_per_process, uint64_t seed);
void post_close(struct post *p);
struct ls_world *post_world(struct post *p, size_t number);
size_t post_messages(const struct post *p);

/* ls_replay_run in every process: all must see what `want` says, which one process saw; where kernels start in any
 * order, one of the ends that `p` predicts, the same in all. False, and *why, if not. */
bool processes_replay(const struct ls_engine_setup *setup, const struct ls_engine_options *o, bool gradients, size_t ranks_per_process, uint64_t seed,
                      const struct ls_replay *want, const struct ls_prediction *p, size_t *messages, struct ls_str *why);
bool processes_one_end(const struct ls_engine_options *o); /* whoever goes first: a run ends in one state */

/* Everything but times: verdict, place, pending ops, calls, memory, what was compared. Of a rank with several threads, calls in any order, and no
 * memory; of a race, no data. */
bool replays_equal(const struct ls_engine_setup *setup, const struct ls_replay *a, const struct ls_replay *b, struct ls_str *why);

#endif
