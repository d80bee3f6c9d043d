/* What becomes of runs that stand still: sim/fate.h. */
#include "sim/simulate.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

struct ran { struct ls_arena arena; struct ls_names *names; struct ls_scenario s; struct ls_simulation x; };

/* Rank 0's and rank 1's ops; what stands in `simulate:`. */
static enum ls_code run_pair(struct ran *r, const char *groups, const char *zero, const char *one, const char *simulate, struct ls_error *err)
{
    struct ls_str text = { 0 };
    const struct ls_simulate_options o = { .variant = { -1, -1, -1, -1, 0, NULL, false, false }, .fold = true, .platform = LS_SOURCE_DIR "/scenarios/platforms/h100x8.yaml" };
    ls_str_printf(&text, "lockstep: 1\nname: pair\nprogram:\n  ranks: 2\n  groups: {%s}\n  rank:\n    0: [%s]\n    1: [%s]\nsimulate: {%s}\n", groups, zero, one,
                  simulate);
    ls_arena_init(&r->arena, 0);
    r->names = ls_names_open();
    enum ls_code rc = ls_scenario_read(ls_str_text(&text), text.length, "pair.yaml", &r->arena, r->names, &r->s, err);
    if (rc == LS_OK)
        rc = ls_simulate(&r->s, &o, &r->arena, &r->x, err);
    ls_str_release(&text);
    return rc;
}

static void release(struct ran *r, bool ran)
{
    if (ran)
        ls_simulation_release(&r->x);
    ls_names_close(r->names);
    ls_arena_release(&r->arena);
}

#define GROUPS "dp: [0, 1], log: [0, 1]"
#define V "{all_gather: dp, payload: vision, count: 64, blocking: true}"
#define L "{all_gather: dp, payload: language, count: 64, blocking: true}"
#define LONG "{all_gather: dp, payload: language, count: 65, blocking: true}"
#define LOG "{gather: log, count: 16, blocking: true}"

static struct ls_fate fate(const char *zero, const char *one, const char *simulate)
{
    struct ran r;
    struct ls_error err = { 0 };
    cr_assert_eq(run_pair(&r, GROUPS, zero, one, simulate, &err), LS_OK, "%s", err.text);
    struct ls_fate f = r.x.fate;
    cr_assert_eq(r.x.run.complete, f.kind == LS_FATE_NONE);
    f.silent.a = f.silent.b = NULL; /* of the arena */
    release(&r, true);
    return f;
}

static const uint64_t second = UINT64_C(1000000000000);

Test(fate, a_safe_run_has_none) { cr_expect_eq(fate(V ", " L ", " LOG, V ", " L ", " LOG, "").kind, LS_FATE_NONE); }

Test(fate, equal_sizes_pass_unnoticed)
{
    struct ls_fate f = fate(V ", " L, L ", " V, "");
    cr_expect_eq(f.kind, LS_FATE_SILENT);
    cr_expect_eq(f.silent.pairs, 2);
    cr_expect(f.end_ps < second && !f.killed && !f.given_up);
}

Test(fate, other_sizes_do_not)
{
    struct ls_fate f = fate(V ", " LONG, LONG ", " V, "");
    cr_expect_eq(f.kind, LS_FATE_DEADLOCK);
    cr_expect_eq(f.silent.pairs, 0);
    cr_expect(f.killed);
    cr_expect(f.killed_ps > 600 * second && f.killed_ps < 600 * second + second / 1000);
    cr_expect_eq(f.killed_at.op, 0);
}

Test(fate, a_missing_call_is_a_deadlock_without_limits)
{
    struct ls_fate f = fate(V ", " L ", " LOG ", " L, L ", " LOG ", " V ", " L, "watchdog: 30");
    cr_expect_eq(f.kind, LS_FATE_DEADLOCK);
    cr_expect(f.killed && f.killed_at.rank == 0 && f.killed_at.op == 1);
    cr_expect(f.killed_ps > 30 * second && f.killed_ps < 30 * second + second / 1000);
}

Test(fate, later_calls_pair_once_a_rank_gives_up)
{
    struct ls_fate f = fate(V ", " L ", " LOG ", " L, L ", " LOG ", " V ", " L, "watchdog: 3600, timeouts: {log: {after: 1800, then: go_on}}");
    cr_expect_eq(f.kind, LS_FATE_STALL);
    cr_expect(!f.killed);
    cr_expect_eq(f.given_up, 1);
    cr_expect(f.gave_up == 1 && f.gave_up_comm == 1);
    cr_expect_eq(f.silent.pairs, 2); /* the call after the stall, too */
    cr_expect(f.gave_up_ps > 1800 * second && f.gave_up_ps < f.end_ps && f.end_ps < 1801 * second);
}

Test(fate, the_watchdog_may_come_first)
{
    struct ls_fate f = fate(V ", " L ", " LOG ", " L, L ", " LOG ", " V ", " L, "timeouts: {log: {after: 1800, then: go_on}}");
    cr_expect_eq(f.kind, LS_FATE_STALL);
    cr_expect(f.killed && f.killed_ps < 601 * second && f.end_ps > 1800 * second);
}

Test(fate, a_rank_that_raises_leaves_the_others_waiting)
{
    struct ls_fate f = fate(V ", " L ", " LOG ", " L, L ", " LOG ", " V ", " L, "timeouts: {log: {after: 100, then: raise}}");
    cr_expect_eq(f.kind, LS_FATE_DEADLOCK);
    cr_expect(f.given_up == 1 && f.gave_up == 1);
    cr_expect(f.killed && f.killed_at.rank == 0);
}

Test(fate, giving_up_does_not_help_where_nothing_pairs_later)
{
    struct ls_fate f = fate(V ", " L ", " LOG, L ", " LOG, "timeouts: {log: {after: 100, then: go_on}}");
    cr_expect_eq(f.kind, LS_FATE_DEADLOCK);
    cr_expect_eq(f.given_up, 1);
    /* All that is pending is on the host: no watchdog fires. */
    f = fate(LOG ", " V, V ", " LOG, "timeouts: {log: {after: 100, then: raise}}");
    cr_expect_eq(f.kind, LS_FATE_DEADLOCK);
    f = fate(LOG ", {send: log, peer: 1}", LOG, "timeouts: {log: {after: 100}}");
    cr_expect(f.kind == LS_FATE_DEADLOCK && !f.killed);
}

Test(fate, those_who_come_later_fail_at_once)
{
    /* Rank 0 gets to the log only after rank 1 gave up, and does not wait another 100 s. */
    struct ls_fate f = fate(V ", " L ", " LOG ", " L, L ", " LOG ", " V ", " L, "timeouts: {log: {after: 100, then: go_on}}");
    cr_expect_eq(f.kind, LS_FATE_STALL);
    cr_expect(f.end_ps < 101 * second);
}

Test(fate, limits_name_communicators)
{
    struct ran r;
    struct ls_error err = { 0 };
    cr_expect_eq(run_pair(&r, GROUPS, V, V, "timeouts: {lgo: {after: 3}}", &err), LS_EINPUT);
    cr_expect_str_eq(err.text, "the program has no communicator 'lgo'");
    cr_expect_eq(err.input.line, 9);
    cr_expect_eq(err.input.column, 23);
    release(&r, false);
}
