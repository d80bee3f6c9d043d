#include "scenario/raw.h"

#include "machine/machine.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct loaded { struct ls_arena arena; struct ls_tables tables; const struct ls_yaml_node *root; struct ls_raw raw; };

static void unload(struct loaded *l)
{
    ls_tables_release(&l->tables);
    ls_arena_release(&l->arena);
}

static enum ls_code load_text(struct loaded *l, const char *text, struct ls_error *err)
{
    ls_arena_init(&l->arena, 0);
    ls_tables_init(&l->tables, &l->arena);
    enum ls_code rc = ls_yaml_load_text(text, strlen(text), "t.yaml", &l->arena, &l->root, err);
    return rc == LS_OK ? ls_raw_load(l->root, &l->tables, &l->raw, err) : rc;
}

/* The worst of all assignments: the first that is not safe. */
static enum ls_verdict check_all(struct loaded *l, const struct ls_run_options *o, size_t *assignments)
{
    struct ls_arena scratch;
    bool *choice = LS_NEW(&l->arena, bool, l->raw.ranks * l->raw.branches + 1);
    enum ls_verdict verdict = LS_SAFE;
    *assignments = 0;
    do {
        struct ls_job job;
        struct ls_outcome out;
        struct ls_error err = { 0 };
        size_t runs;
        ls_arena_init(&scratch, 0);
        ls_raw_job(&l->raw, choice, &scratch, &job);
        enum ls_code rc = o->level == LS_L3 && o->start == LS_START_ANY
                              ? ls_machine_explore_starts(&job, o, 1000000, &scratch, &out, &runs, &err)
                              : ls_machine_run(&job, o, &scratch, &out, &err);
        cr_assert_eq(rc, LS_OK, "%s", err.text);
        if (verdict == LS_SAFE)
            verdict = out.verdict;
        ++*assignments;
        ls_arena_release(&scratch);
    } while (ls_raw_next(&l->raw, choice));
    cr_assert_eq(*assignments, ls_raw_assignments(&l->raw));
    return verdict;
}

static struct ls_run_options level_of(const struct ls_yaml_node *root)
{
    struct ls_run_options o = { .level = LS_L2 };
    const struct ls_yaml_node *n = ls_yaml_get(root, "runtime"), *v;
    if (n && (v = ls_yaml_get(n, "level")))
        o.level = (enum ls_level)(v->text[1] - '0');
    if (n && (v = ls_yaml_get(n, "l3"))) {
        o.kernels = (unsigned)atoi(ls_yaml_get(v, "kernels")->text);
        o.start = ls_yaml_is_text(ls_yaml_get(v, "start"), "any") ? LS_START_ANY : LS_START_ISSUE_ORDER;
    }
    return o;
}

Test(raw, shipped_scenarios_come_out_as_expected)
{
    const char *folder = LS_SOURCE_DIR "/scenarios/raw";
    struct dirent **entry;
    int count = scandir(folder, &entry, NULL, alphasort);
    size_t files = 0, jobs = 0, safe = 0;
    cr_assert(count > 0, "no folder %s", folder);
    for (int i = 0; i < count; i++) {
        if (strstr(entry[i]->d_name, ".yaml")) {
            struct loaded l;
            struct ls_error err = { 0 };
            char path[1024];
            snprintf(path, sizeof path, "%s/%s", folder, entry[i]->d_name);
            ls_arena_init(&l.arena, 0);
            ls_tables_init(&l.tables, &l.arena);
            cr_assert_eq(ls_yaml_load_file(path, &l.arena, &l.root, &err), LS_OK, "%s: %s", path, err.text);
            cr_assert_eq(ls_raw_load(ls_yaml_get(l.root, "program"), &l.tables, &l.raw, &err), LS_OK, "%s:%zu:%zu: %s", path, err.input.line,
                         err.input.column, err.text);
            cr_expect(ls_yaml_get(l.root, "question"), "%s asks nothing", path);
            struct ls_run_options o = level_of(l.root);
            enum ls_verdict want;
            size_t assignments;
            cr_assert(ls_verdict_find(ls_yaml_get(ls_yaml_get(l.root, "expect"), "verdict")->text, &want), "%s", path);
            enum ls_verdict got = check_all(&l, &o, &assignments);
            cr_expect_eq(got, want, "%s: %s, expected %s", entry[i]->d_name, ls_verdict_name(got), ls_verdict_name(want));
            files++;
            jobs += assignments;
            safe += want == LS_SAFE;
            unload(&l);
        }
        free(entry[i]);
    }
    free(entry);
    printf("raw scenarios: %zu files (%zu safe), %zu assignments\n", files, safe, jobs);
    cr_assert_geq(files, 12u);
}

Test(raw, mistakes_are_named_with_their_place)
{
#define HEAD "ranks: 2\ngroups: {world: [[0, 1]]}\nbranches: {x: {agreed: false}}\n"
    struct { const char *text; size_t line, column; const char *says, *hint; } bad[] = {
        { "groups: {}\nbody: []\n", 1, 1, "'ranks' is missing", "" },
        { "ranks: 2\n", 1, 1, "neither 'body' nor 'rank'", "" },
        { "ranks: 0\nbody: []\n", 1, 8, "'ranks'", "" },
        { "ranks: 2\nbodies: []\n", 2, 1, "bodies", "body" },
        { "ranks: 2\ngroups: {w: [0, 2]}\nbody: []\n", 2, 17, "'w'", "" },
        { "ranks: 2\ngroups: {w: [[0, 1], [1]]}\nbody: []\n", 2, 13, "listed twice", "" },
        { "ranks: 2\ngroups: {w: [[]]}\nbody: []\n", 2, 13, "empty", "" },
        { "ranks: 2\ngroups: {w: []}\nbody: []\n", 2, 13, "no group", "" },
        { HEAD "body: [{all_gathr: world}]\n", 4, 9, "'all_gathr' is no kind of op", "all_gather" },
        { HEAD "body: [{all_gather: wold}]\n", 4, 21, "no group 'wold'", "world" },
        { HEAD "body: [{all_gather: world, counts: 3}]\n", 4, 28, "counts", "count" },
        { HEAD "body: [{all_gather: world, count: -3}]\n", 4, 35, "'count'", "" },
        { HEAD "body: [{all_gather: world, dtype: bf61}]\n", 4, 35, "dtype", "bf16" },
        { HEAD "body: [{all_gather: world, reduce: sum}]\n", 4, 28, "reduce", "" },
        { HEAD "body: [{all_reduce: world, root: 1}]\n", 4, 28, "root", "" },
        { HEAD "body: [{broadcast: world, root: 2}]\n", 4, 8, "'root' is member 2", "" },
        { HEAD "body: [{send: world}]\n", 4, 8, "needs a 'peer'", "" },
        { HEAD "body: [{send: world, peer: 2}]\n", 4, 8, "'peer' is member 2", "" },
        { HEAD "body: [{barrier: world, when: y}]\n", 4, 31, "no branch 'y'", "" },
        { HEAD "body: [{decide: world, value: 1, choice: x}]\n", 4, 42, "both say", "" },
        { HEAD "body: [{decide: world, fused: 1}]\n", 4, 24, "fused", "" },
        { HEAD "body: [{compute: f, fused: 1}]\n", 4, 21, "fused", "" },
        { HEAD "body: [{all_to_all: world, count: [1, 2, 3]}]\n", 4, 8, "lists 3 numbers", "" },
        { HEAD "body: [{comm_init: world, parent: world}]\n", 4, 35, "cannot create itself", "" },
        { HEAD "body: [{}]\n", 4, 8, "empty", "" },
        { HEAD "body: [barrier]\n", 4, 8, "op", "" },
        { HEAD "rank: {2: []}\n", 4, 8, "'rank'", "" },
        { HEAD "rank: {1: [], 01: []}\n", 4, 15, "", "" },
        { "ranks: 3\ngroups: {w: [0, 1]}\nbody: [{barrier: w}]\n", 3, 8, "rank 2 issues barrier, but is in no group of 'w'", "" },
        { HEAD "body: [{alloc: b, stream: s1}, {free: b}, {alloc: b, stream: s2}]\n", 4, 43, "allocated on two streams", "" },
        { HEAD "body: [{free: [b, c]}]\n", 4, 15, "takes one buffer", "" },
        { "ranks: 2\nbranches: {x: {agree: true}}\nbody: []\n", 2, 16, "agree", "agreed" },
        { "ranks: 4096\nbody:\n- &a {decide: w}\n", 3, 15, "no group 'w'", "" },
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct loaded l;
        struct ls_error err = { 0 };
        cr_expect_eq(load_text(&l, bad[i].text, &err), LS_EINPUT, "case %zu is accepted:\n%s", i, bad[i].text);
        cr_expect(err.input.line == bad[i].line && err.input.column == bad[i].column, "case %zu: %zu:%zu, expected %zu:%zu: %s", i,
                  err.input.line, err.input.column, bad[i].line, bad[i].column, err.text);
        cr_expect(strstr(err.text, bad[i].says), "case %zu: '%s' does not say '%s'", i, err.text, bad[i].says);
        cr_expect(strstr(err.hint, bad[i].hint), "case %zu: hint '%s' does not say '%s'", i, err.hint, bad[i].hint);
        unload(&l);
    }
}

Test(raw, every_key_reaches_its_field)
{
    struct loaded l;
    struct ls_error err = { 0 };
    const char *text = HEAD "body:\n"
        "- {reduce: world, operator: max, root: 1, count: 7, dtype: bf16, payload: [a, b], stream: s1, thread: 1, slots: 2,\n"
        "   fused: 3, reads: in, writes: [out, in], wait: e0, record: [e1, e2], blocking: true}\n"
        "- {all_to_all: world, count: [1, 2]}\n"
        "- {all_to_all: world, count: tokens}\n"
        "- {alloc: buf, stream: s2, bytes: 64}\n"
        "- {write: buf}\n"
        "- {stop: raised, unless: x}\n";
    cr_assert_eq(load_text(&l, text, &err), LS_OK, "%zu:%zu: %s", err.input.line, err.input.column, err.text);
    struct ls_segment s;
    bool choice[1] = { false };
    ls_raw_segment(&l.raw, 0, choice, &l.arena, &s);
    cr_assert_eq(s.count, 9u);
    enum ls_op_kind kind[] = { LS_OP_WAIT, LS_OP_REDUCE, LS_OP_RECORD, LS_OP_RECORD, LS_OP_ALL_TO_ALL, LS_OP_ALL_TO_ALL, LS_OP_ALLOC,
                               LS_OP_COMPUTE, LS_OP_STOP };
    for (size_t i = 0; i < 9; i++)
        cr_assert_eq(s.op[i].kind, kind[i], "op %zu", i);
    const struct ls_op *op = &s.op[1];
    cr_assert(op->reduce == LS_REDUCE_MAX && op->peer == 1 && op->count == 7 && op->dtype == LS_DTYPE_BF16 && op->thread == 1 &&
              op->slots == 2 && op->fused == 3 && op->blocking && op->ranges == 3);
    cr_assert_eq(l.tables.payload.at[op->payload].count, 2u);
    cr_assert(!l.tables.range.at[op->range].write && l.tables.range.at[op->range + 1].write);
    for (size_t i = 0; i < 4; i++)
        cr_assert(s.op[i].stream == op->stream && s.op[i].thread == 1);
    cr_assert_str_eq(ls_tables_name(&l.tables, l.tables.event.at[s.op[3].event]), "e2");
    cr_assert(s.op[4].counts != LS_NO_ID && l.tables.vector.at[s.op[4].counts] == 2);
    cr_assert_str_eq(ls_tables_name(&l.tables, s.op[5].symbol), "tokens");
    cr_assert(s.op[6].bytes == 64 && l.tables.buffer.at[l.tables.range.at[s.op[6].range].buffer].pool != 0);
    cr_assert(s.op[7].ranges == 1 && l.tables.range.at[s.op[7].range].write);
    cr_assert_eq(l.tables.cause.at[op->cause].at.line, 5u);
    choice[0] = true;
    ls_raw_segment(&l.raw, 0, choice, &l.arena, &s);
    cr_assert_eq(s.count, 8u, "`unless` leaves the op out");
    unload(&l);
}

Test(raw, assignments_are_all_different)
{
    struct loaded l;
    struct ls_error err = { 0 };
    const char *text = "ranks: 3\ngroups: {w: [0, 1, 2]}\nbranches: {own: {}, all: {agreed: true}, unused: {}}\n"
                       "body: [{barrier: w, when: all}]\nrank: {0: [{compute: f, when: own}], 2: [{compute: f, unless: own}]}\n";
    cr_assert_eq(load_text(&l, text, &err), LS_OK, "%s", err.text);
    bool choice[9] = { false };
    unsigned char seen[512] = { 0 };
    size_t count = 0;
    do {
        unsigned key = 0;
        for (size_t i = 0; i < 9; i++)
            key |= (unsigned)choice[i] << i;
        cr_assert_not(seen[key]);
        seen[key] = 1;
        cr_assert(choice[1] == choice[4] && choice[4] == choice[7], "agreed");
        count++;
    } while (ls_raw_next(&l.raw, choice));
    cr_assert_eq(count, 8u); /* own on ranks 0 and 2, all */
    unload(&l);
}
