#include "nccl_like.h"

#include "replay/replay.h"

bool nccl_like_run(const struct ls_scenario *s, const struct ls_assessment *a, uint64_t schedule, bool *completes, size_t *silent, struct ls_str *why)
{
    struct ls_arena arena;
    struct ls_engine_setup setup;
    struct ls_observed seen;
    struct ls_error err = { 0 };
    const struct ls_engine_options o = { .nccl_like = true, .accounting = true, .blocking = s->level == LS_L1, .seed = schedule };
    ls_arena_init(&arena, 0);
    ls_replay_setup(s, &a->compiled, &a->check.witness->assignment, &a->check.witness->job, 1, &arena, &setup);
    bool good = ls_engine_run(&setup, &o, &arena, &seen, &err) == LS_OK;
    if (good) {
        *completes = seen.outcome.verdict == LS_SAFE;
        *silent = seen.silent;
    } else {
        ls_str_printf(why, "%s", err.text);
    }
    ls_arena_release(&arena);
    return good;
}
