/* src/cli/replayed.h -- what a replay was asked to do and what it saw, shown as text or JSON. */
#ifndef LS_CLI_REPLAYED_H
#define LS_CLI_REPLAYED_H

#include "cli/processes.h"
#include "replay/replay.h"
#include "replay/train.h"
#include "scenario/scenario.h"

enum ls_replay_math { LS_REPLAY_ANY, LS_REPLAY_TRAIN, LS_REPLAY_PATTERNS };
struct ls_replay_wish {              /* the command line */
    uint64_t seed, schedule, steps, warmup, blas_threads, replicas, replicate; /* 0: not given, for steps and what follows */
    bool free, nccl_like, witness, against, force;
    const char *trace;               /* path, or NULL */
    enum ls_replay_math math;
};
struct ls_replay_result {
    struct ls_compiled compiled;
    bool is_compiled;
    struct ls_assignment assignment;
    struct ls_job job;
    struct ls_engine_setup setup;
    struct ls_replay seen;
    struct ls_prediction predicted;
    double bytes;                    /* of parameters and gradients, all ranks, about */
    bool accounting;                 /* order and bytes only: those are too many for data */
    bool agrees, calls;              /* with `against`: verdict and calls are those predicted; the calls alone are */
    struct ls_str difference;
    bool trained, silent;            /* silent: another process tells the result */
    struct ls_train_options how;
    struct ls_train train;
    struct ls_error untrained;       /* why the model does not train */
    size_t compared;                 /* steps of a training run that ran with patterns too */
};

/* Fine by the scenario: the verdict it expects, or completed. Without an expectation: completed. */
bool ls_replay_as_expected(const struct ls_scenario *s, const struct ls_replay_wish *o, const struct ls_replay_result *r);
const char *ls_replay_untrained(const struct ls_replay_result *r, const struct ls_replay_wish *o); /* why it does not train */
/* On stdout. */
void ls_replay_text(const struct ls_cli *cli, const struct ls_scenario *s, const struct ls_replay_wish *o, const struct ls_processes *p,
                    const struct ls_replay_result *r);
void ls_replay_json(const struct ls_cli *cli, const struct ls_scenario *s, const struct ls_replay_wish *o, const struct ls_processes *p,
                    const struct ls_replay_result *r);

#endif
