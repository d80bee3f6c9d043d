/* Which run of a driver is unrolled, and for which sizes. What the families are good for: test_spin.c. */
#include "check/unroll.h"

#include "check/promela.h"
#include "families.h"
#include "scenario/scenario.h"

#include <criterion/criterion.h>
#include <string.h>

struct plan { struct ls_arena arena; struct ls_names *names; struct ls_scenario s; struct ls_compiled c; };

static void open_plan(struct plan *p, const char *file)
{
    struct ls_str path = { 0 };
    struct ls_variant as_written = LS_AS_WRITTEN;
    struct ls_error err = { 0 };
    ls_arena_init(&p->arena, 0);
    p->names = ls_names_open();
    ls_str_printf(&path, "%s/scenarios/%s", LS_SOURCE_DIR, file);
    cr_assert_eq(ls_scenario_load(ls_str_text(&path), &p->arena, p->names, &p->s, &err), LS_OK, "%s", err.text);
    cr_assert_eq(ls_scenario_compile(&p->s, &as_written, true, &p->c, &err), LS_OK, "%s", err.text);
    ls_str_release(&path);
}

static void close_plan(struct plan *p)
{
    ls_compiled_release(&p->c);
    ls_names_close(p->names);
    ls_arena_release(&p->arena);
}

static size_t ops_of_first_rank(const struct ls_family *f)
{
    size_t n = 0;
    for (size_t i = 0; i < f->rank[0].nodes; i++)
        for (size_t c = 0; c < f->rank[0].node[i].count; c++)
            n += f->rank[0].node[i].choice[c].segment->count;
    return n;
}

/* A loop's driver starts with a round without operations, after which the job may stop: that run says nothing. */
Test(unroll, a_loop_plays_a_whole_step)
{
    struct plan p;
    struct ls_unrolled u;
    struct ls_error err = { 0 };
    open_plan(&p, "own-decisions/b14-agreed.yaml");
    cr_assert_eq(ls_family_of_system(&p.c.system, (const size_t[]){ 1, 2 }, 0, &p.arena, &u, &err), LS_OK, "%s", err.text);
    cr_assert_gt(ops_of_first_rank(&u.family), 0);
    bool step = false;
    for (size_t i = 0; i < u.rounds; i++)
        step = step || strcmp(p.c.system.driver.node[u.node[i]].name, "step end") == 0;
    cr_assert(step);
    close_plan(&p);
}

Test(unroll, a_run_is_as_long_as_asked)
{
    struct plan p;
    open_plan(&p, "expert-parallel/any-size.yaml");
    for (size_t rounds = 0; rounds < 9; rounds++) {
        struct ls_unrolled u;
        struct ls_error err = { 0 };
        cr_assert_eq(ls_family_of_system(&p.c.system, (const size_t[]){ 1, 4 }, rounds, &p.arena, &u, &err), LS_OK, "%s", err.text);
        cr_assert_eq(u.rounds, rounds < 2 ? 2 : rounds, "%zu asked, %zu rounds", rounds, u.rounds);
        const struct ls_driver_node *last = &p.c.system.driver.node[u.node[u.rounds - 1]];
        bool stops = last->nexts == 0;
        for (size_t i = 0; i < last->nexts; i++)
            stops = stops || p.c.system.driver.node[last->next[i]].may_stop;
        cr_assert(stops);
    }
    close_plan(&p);
}

/* Expert groups of two, and shards across them: two of them at least. */
Test(unroll, sizes_fit_the_groups)
{
    struct plan p;
    struct ls_unrolled u;
    struct ls_error err;
    open_plan(&p, "expert-parallel/any-size.yaml");
    for (size_t n = 2; n <= 8; n++) {
        enum ls_code want = n >= 4 && n % 2 == 0 ? LS_OK : LS_EINPUT;
        cr_assert_eq(ls_family_of_system(&p.c.system, (const size_t[]){ 1, n }, 0, &p.arena, &u, &err), want, "%zu ranks", n);
        cr_assert(want != LS_OK || u.family.ranks == n);
    }
    close_plan(&p);
}

Test(unroll, replicas_that_do_not_choose_freely_are_refused)
{
    static const char *const files[] = { "uniformity-check/uniform.yaml", "expert-parallel/any-size-at-least-one.yaml", "raw/agreed-branch.yaml" };
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        struct plan p;
        struct ls_unrolled u;
        struct ls_error err = { 0 };
        open_plan(&p, files[i]);
        size_t shard = p.c.system.free_dims ? 4 : 1;
        cr_assert_eq(ls_family_of_system(&p.c.system, (const size_t[]){ 1, shard }, 0, &p.arena, &u, &err), LS_EINPUT, "%s", files[i]);
        cr_assert(strstr(err.text, "cannot be unrolled") && err.input.line > 0, "%s", err.text);
        close_plan(&p);
    }
}

Test(promela, a_name_does_not_end_its_comment)
{
    struct families x;
    struct ls_run_options run = { .level = LS_L2 };
    struct ls_str text = { 0 };
    struct ls_error err = { 0 };
    families_fsdp(&x, &(struct fsdp_like){ .ranks = 2, .layers = 1, .microbatches = 1 });
    cr_assert_eq(ls_promela_write(&x.family, &run, "a */ b", &text, &err), LS_OK, "%s", err.text);
    cr_assert_eq(strncmp(ls_str_text(&text), "/* a * / b: 2 ranks", 19), 0, "%.40s", ls_str_text(&text));
    ls_str_release(&text);
    families_release(&x);
}
