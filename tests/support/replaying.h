/* tests/support/replaying.h -- what is predicted of a scenario, against what happens when it runs with data. */
#ifndef LS_TESTS_REPLAYING_H
#define LS_TESTS_REPLAYING_H

#include "replay/train.h"

struct replaying {
    size_t seen[LS_VERDICT_COUNT], refused, schedules, gradients, faults, elements;
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

/* A scenario file: its witness if it has one, else a run of it; then every repair found. Models above `bytes_max` run without data. */
enum replaying_repairs { REPLAYING_NONE, REPLAYING_SMALL /* of models that run with data */, REPLAYING_ALL };
bool replaying_file(struct replaying *t, const char *path, uint64_t bytes_max, enum replaying_repairs repairs, struct ls_str *why);

/* A scenario as text that is to be safe. `path`: where its inventory is looked for. */
bool replaying_text(struct replaying *t, const char *text, const char *path, struct ls_str *why);

/* A scenario file trained: by this process alone, then by those of t->world; losses, norms, final weights bit for bit. */
bool replaying_training(struct replaying *t, const char *path, bool free, struct ls_str *why);

void replaying_print(const struct replaying *t, const char *what);

#endif
