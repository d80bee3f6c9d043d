#include "sim/fate.h"

#include <assert.h>

#define PLAIN_NAME(id, name) name,
static const char *const fate_name[] = { LS_FATES(PLAIN_NAME) };

const char *ls_fate_name(enum ls_fate_kind f)
{
    assert((unsigned)f < LS_FATE_COUNT);
    return fate_name[f];
}

enum ls_code ls_fate_of(const struct ls_job *job, const struct ls_platform *platform, const struct ls_cost *cost,
                        const struct ls_sim_options *options, const struct ls_patience *patience, uint64_t watchdog_ps,
                        struct ls_fate *out, struct ls_error *err)
{
    struct ls_sim_options o = *options;
    struct ls_sim_result watched, unwatched;
    struct ls_arena scratch;
    assert(watchdog_ps);
    *out = (struct ls_fate){ 0 };
    ls_arena_init(&scratch, 0);
    o.network = NULL; /* SimGrid runs once per process */
    o.network_setup = NULL;
    o.fold = false;
    o.hooks = (struct ls_sim_hooks){ 0 };
    o.run.as_nccl = true;
    o.patience = patience;
    o.watchdog_ps = watchdog_ps;
    enum ls_code rc = ls_sim_run(job, platform, cost, &o, &scratch, &watched, err);
    /* Would it have come back, had the watchdog waited longer? Without other limits nothing can change. */
    const struct ls_sim_result *last = &watched;
    if (rc == LS_OK && !watched.complete && patience) {
        o.watchdog_ps = 0;
        rc = ls_sim_run(job, platform, cost, &o, &scratch, &unwatched, err);
        last = &unwatched;
    }
    if (rc == LS_OK) {
        *out = (struct ls_fate){ .kind = !last->complete ? LS_FATE_DEADLOCK : last->given_up ? LS_FATE_STALL : LS_FATE_SILENT,
                                 .end_ps = last->end_ps, .silent = last->silent, .given_up = last->given_up, .gave_up = last->gave_up,
                                 .gave_up_comm = last->gave_up_comm, .gave_up_ps = last->gave_up_ps, .killed = watched.killed,
                                 .killed_at = watched.killed_at, .killed_ps = watched.killed_ps };
    }
    ls_arena_release(&scratch);
    return rc;
}
