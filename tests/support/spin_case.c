#include "spin_case.h"

#include "check/explore.h"
#include "check/promela.h"
#include "families.h"
#include "spin.h"

#include <stdio.h>

bool spin_case_run(uint64_t seed, struct spin_case *out, char *why, size_t why_room)
{
    static const struct random_family size = { .ranks_max = 4, .rounds_max = 2, .choices_max = 2, .ops_max = 3, .comms_max = 3, .streams_max = 3 };
    struct ls_explore_options o = { .run.level = seed % 4 == 0 ? LS_L1 : LS_L2, .all = true, .no_path = true, .states_max = 20000 };
    struct families x;
    struct ls_explored ours, reduced;
    struct spin_result theirs;
    struct ls_str model = { 0 };
    struct ls_error err = { 0 };
    families_random(&x, &size, seed);
    bool fine = ls_explore(&x.family, &o, &x.arena, &ours, &err) == LS_OK;
    for (uint64_t again = 1; fine && ours.limit; again++) { /* too large for a quick test: another one */
        families_release(&x);
        families_random(&x, &size, seed + (again << 32));
        fine = ls_explore(&x.family, &o, &x.arena, &ours, &err) == LS_OK;
    }
    o.reduce = true;
    fine = fine && ls_explore(&x.family, &o, &x.arena, &reduced, &err) == LS_OK
           && ls_promela_write(&x.family, &o.run, "random family", &model, &err) == LS_OK;
    if (!fine)
        snprintf(why, why_room, "%s", err.text);
    else
        fine = spin_run(ls_str_text(&model), "-O0 -DSAFETY -DNOREDUCE -DMEMLIM=4000", "-m100000 -w18 -c0", &theirs, why, why_room);
    if (fine) {
        *out = (struct spin_case){ ours.verdict != LS_SAFE, ours.states };
        fine = ours.states == theirs.states && out->unsafe == (theirs.errors > 0) && out->unsafe == (reduced.verdict != LS_SAFE);
        snprintf(why, why_room, "states %zu, SPIN %zu; %s, reduced %s, SPIN %zu errors", ours.states, theirs.states,
                 ls_verdict_name(ours.verdict), ls_verdict_name(reduced.verdict), theirs.errors);
    }
    ls_str_release(&model);
    families_release(&x);
    return fine;
}
