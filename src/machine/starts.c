/* Every start order at L3, by replaying: a script of choices, then the first option; the next script counts up the last
 * choice that has options left. Only starts are choices (semantics.md), so this covers all schedules. */
#include "machine/machine.h"

#include "base/vec.h"

#include <assert.h>

struct choice { size_t taken, count; };
struct script { LS_VEC(struct choice) at; size_t next; };

static size_t choose(void *context, size_t count)
{
    struct script *s = context;
    if (s->next == s->at.count)
        ls_push(&s->at, (struct choice){ 0, count });
    assert(s->at.at[s->next].count == count && "a replay is deterministic");
    return s->at.at[s->next++].taken;
}

static bool next_script(struct script *s)
{
    while (s->at.count && s->at.at[s->at.count - 1].taken + 1 == s->at.at[s->at.count - 1].count)
        s->at.count--;
    if (s->at.count == 0)
        return false;
    s->at.at[s->at.count - 1].taken++;
    s->next = 0;
    return true;
}

enum ls_code ls_machine_each_start(const struct ls_job *job, const struct ls_run_options *options, size_t runs_max, struct ls_arena *arena,
                                   bool (*see)(void *context, const struct ls_outcome *outcome), void *context, size_t *runs, bool *all,
                                   struct ls_error *err)
{
    struct script script = { 0 };
    struct ls_run_options o = *options;
    o.seed = 0;
    o.choose = choose;
    o.choose_context = &script;
    *runs = 0;
    *all = false;
    enum ls_code rc = LS_OK;
    struct ls_arena_mark mark = ls_arena_mark(arena);
    for (bool more = true; more;) {
        struct ls_outcome outcome;
        ls_arena_rewind(arena, mark);
        rc = ls_machine_run(job, &o, arena, &outcome, err);
        ++*runs;
        if (rc != LS_OK || !see(context, &outcome))
            break;
        *all = !next_script(&script);
        more = !*all && *runs < runs_max;
    }
    ls_vec_release(&script.at);
    return rc;
}

static bool is_safe(void *context, const struct ls_outcome *outcome)
{
    *(struct ls_outcome *)context = *outcome;
    return outcome->verdict == LS_SAFE;
}

enum ls_code ls_machine_explore_starts(const struct ls_job *job, const struct ls_run_options *options, size_t runs_max,
                                       struct ls_arena *arena, struct ls_outcome *out, size_t *runs, struct ls_error *err)
{
    bool all;
    enum ls_code rc = ls_machine_each_start(job, options, runs_max, arena, is_safe, out, runs, &all, err);
    if (rc == LS_OK && out->verdict == LS_SAFE && !all)
        out->verdict = LS_UNDECIDED;
    return rc;
}
