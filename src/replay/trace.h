/* src/replay/trace.h -- a training run as a Chrome trace, for ui.perfetto.dev: a process per rank, a thread per stream.
 *
 * Names and categories are those of `simulate --trace`, so that a measured step can be laid beside a simulated one. */
#ifndef LS_REPLAY_TRACE_H
#define LS_REPLAY_TRACE_H

#include "replay/train.h"

/* Of a run with a timeline. A hang's unfinished ops are not in it: no span of theirs ended. */
void ls_train_trace(const struct ls_train_case *c, const struct ls_train *t, struct ls_str *out);

#endif
