/* tests/support/replaying.h -- what is predicted of a scenario, against what happens when it runs with data. */
#ifndef LS_TESTS_REPLAYING_H
#define LS_TESTS_REPLAYING_H

#include "replay/train.h"

/* Why a scenario file was not run, or not as far as it could be. */
#define REPLAYING_LEFT_OUT(X)                                                                                                     \
    X(REFUSED, "refused at set-up: no program exists")                                                                            \
    X(UNDECIDED, "check has no verdict")                                                                                          \
    X(OTHERS, "the run is of thousands of ranks: replayed on fewer")                                                              \
    X(NO_DATA, "runs of models that do not fit: order and bytes only")                                                             \
    X(UNSEEN, "of those, with gradients that are wrong: not seen")
#define REPLAYING_ENUM(id, text) REPLAYING_##id,
enum replaying_left_out { REPLAYING_LEFT_OUT(REPLAYING_ENUM) REPLAYING_LEFT_OUT_COUNT };

struct replaying {
    size_t seen[LS_VERDICT_COUNT], refused, schedules, gradients, faults, elements;
    size_t files[LS_VERDICT_COUNT];  /* scenario files by check's verdict */
    size_t left_out[REPLAYING_LEFT_OUT_COUNT];
    enum ls_verdict last;            /* of the last run */
    size_t races, bounded, orders, unsupported; /* replaying_job: races compared, runs at L3, those where the order of starts matters */
    /* In: each run once more, spread over several processes (processes.h) that all must see the same; once under nccl_like, too. */
    bool spread;
    size_t spreads, messages;
    /* In: the processes that this one belongs to; each run is repeated by all of them together. unfit: it could not be dealt out to
     * so many. */
    struct ls_world *world;
    size_t together, unfit;
};

/* A random scenario with sizes, a random run of it, sometimes with a fault in one rank's program; under `schedules` seeded
 * schedules (0: in threads). False, and *why, if something predicted was not seen. */
bool replaying_seed(struct replaying *t, uint64_t seed, unsigned schedules, struct ls_str *why);

/* A random job without a model, with buffers: at L1, L2 (races compared one by one) or L3, under several schedules. */
bool replaying_job(struct replaying *t, uint64_t seed, struct ls_str *why);

/* A scenario file: its witness if it has one, else a run of it; then every repair found. Models above `bytes_max` run without data. */
enum replaying_repairs { REPLAYING_NONE, REPLAYING_SMALL /* of models that run with data */, REPLAYING_ALL };
bool replaying_file(struct replaying *t, const char *path, uint64_t bytes_max, enum replaying_repairs repairs, struct ls_str *why);

/* A scenario as text that is to be safe. `path`: where its inventory is looked for. */
bool replaying_text(struct replaying *t, const char *text, const char *path, struct ls_str *why);

/* A scenario file trained: by this process alone, then by those of t->world; losses, norms, final weights bit for bit. */
bool replaying_training(struct replaying *t, const char *path, bool free, struct ls_str *why);

/* A run repeated as t->spread and t->world ask; `r` and `p`: what it showed, and what was predicted of it. */
bool replaying_again(struct replaying *t, const struct ls_engine_setup *setup, const struct ls_engine_options *o, bool gradients,
                     struct ls_arena *arena, const struct ls_replay *r, const struct ls_prediction *p, struct ls_str *why);

void replaying_print(const struct replaying *t, const char *what);

#endif
