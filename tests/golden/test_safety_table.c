/* The safety table of scenarios/policies-17/cells as Markdown, scenarios/policies-17/safety.md: which kind of conditional module is safe under
 * which policy when ranks hold different media, cell by cell what `check` says of the cell's scenario. LS_GOLDEN=write writes it anew.
 *
 * Beside it stands what a reading of AutoModel's parallelizers by hand says; where the two differ, a reason is given here, and a
 * reason without a difference is an error, too. */
#include "advise/advise.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FOLDER LS_SOURCE_DIR "/scenarios/policies-17"
enum { COLUMNS = 6 };
static const char *const column[COLUMNS] = { "root", "per-layer", "replicate", "ep-root", "ep-per-layer", "ep-replicate" };
static const char *const column_title[COLUMNS] = { "dense root", "dense per_layer", "dense replicate", "EP root", "EP per_layer", "EP replicate" };

enum written { SAFE, UNSAFE, REDUCTION, LOST, NOT_WRITTEN }; /* REDUCTION: forward agrees, a reduce-scatter has another size */
static const char *const written_text[] = { "safe", "unsafe", "reduce-scatter of another size", "gradients not reduced", "" };

static const struct { const char *name, *title; enum written by_hand[COLUMNS]; } rows[] = {
    { "frozen", "fully frozen", { SAFE, UNSAFE, SAFE, SAFE, UNSAFE, SAFE } },
    { "projector", "trainable, no lists", { REDUCTION, REDUCTION, REDUCTION, UNSAFE, UNSAFE, UNSAFE } },
    { "tower", "trainable, with lists", { UNSAFE, UNSAFE, UNSAFE, UNSAFE, UNSAFE, UNSAFE } },
    { "lora", "frozen, with adapters, no freeze_config", { UNSAFE, UNSAFE, UNSAFE, UNSAFE, UNSAFE, UNSAFE } },
    { "unlisted-flat", "unknown name, no lists, frozen", { SAFE, SAFE, SAFE, SAFE, SAFE, SAFE } },
    { "unlisted-list", "unknown name, with lists, frozen", { UNSAFE, UNSAFE, UNSAFE, SAFE, SAFE, SAFE } },
    { "unlisted-train", "unknown name, with lists, trainable", { UNSAFE, UNSAFE, UNSAFE, REDUCTION, REDUCTION, REDUCTION } },
    { "unlisted-inner", "the same, wrap_outer_model: false", { NOT_WRITTEN, NOT_WRITTEN, NOT_WRITTEN, LOST, LOST, LOST } },
};
enum { ROWS = sizeof rows / sizeof *rows };

static const struct { const char *row; int column; const char *why; } reasons[] = { { NULL, 0, NULL } };

struct cell { bool exists; enum ls_verdict verdict; const char *text; bool reduction; };

static void judge(const char *path, struct ls_arena *arena, struct cell *out)
{
    struct ls_names *names = ls_names_open();
    struct ls_error err = { 0 };
    struct ls_scenario s;
    struct ls_assessment a;
    struct ls_assess_options o = { .variant = LS_AS_WRITTEN };
    *out = (struct cell){ .exists = access(path, R_OK) == 0 };
    if (!out->exists)
        goto out;
    o.check.gradients = o.check.races = true;
    cr_assert_eq(ls_scenario_load(path, arena, names, &s, &err), LS_OK, "%s: %s", path, err.text);
    cr_assert_eq(ls_assess(&s, &o, arena, &a, &err), LS_OK, "%s: %s", path, err.text);
    out->verdict = a.verdict;
    if (a.verdict == LS_SAFE) {
        out->text = a.check.known == LS_KNOWN_PROVED ? "safe, proved" : "safe, executed";
    } else if (a.verdict == LS_SETUP_ERROR) {
        out->text = ls_arena_printf(arena, "refused: %s", a.compiled.refusal.rule);
    } else if (a.verdict == LS_LOST_GRADIENT) {
        out->text = ls_arena_printf(arena, "lost_gradient: %s", ls_name_text(names, a.check.witness->share.param));
    } else if (a.check.witness) {
        const struct ls_witness *w = a.check.witness;
        const struct ls_op *op = &w->job.rank[w->outcome.a.rank].segment[w->outcome.a.segment]->op[w->outcome.a.op], *other = op;
        if (w->outcome.b.segment != LS_NO_ID && w->outcome.missing_rank == LS_NO_ID)
            other = &w->job.rank[w->outcome.b.rank].segment[w->outcome.b.segment]->op[w->outcome.b.op];
        const char *name = op->payload == LS_NO_ID ? "" : ls_tables_name(&a.compiled.tables, a.compiled.tables.payload.at[op->payload].name);
        const char *with = other->payload == LS_NO_ID ? "" : ls_tables_name(&a.compiled.tables, a.compiled.tables.payload.at[other->payload].name);
        bool same = strcmp(name, with) == 0 && op->kind == other->kind;
        out->reduction = op->kind == LS_OP_REDUCE_SCATTER && other->kind == LS_OP_REDUCE_SCATTER;
        const char *kind = ls_op_kind_name((enum ls_op_kind)op->kind);
        out->text = same ? ls_arena_printf(arena, "%s: %s of `%s`", ls_verdict_name(a.verdict), kind, name)
                    : op->kind == other->kind ? ls_arena_printf(arena, "%s: %s of `%s` against `%s`", ls_verdict_name(a.verdict), kind, name, with)
                         : ls_arena_printf(arena, "%s: %s of `%s` against %s of `%s`", ls_verdict_name(a.verdict),
                                           kind, name, ls_op_kind_name((enum ls_op_kind)other->kind), with);
    } else {
        out->text = ls_verdict_name(a.verdict);
    }
    ls_assessment_release(&a);
out:
    ls_names_close(names);
}

static bool agrees(enum written w, const struct cell *c)
{
    switch (w) {
    case SAFE: return c->verdict == LS_SAFE;
    case UNSAFE: return c->verdict == LS_MISMATCH || c->verdict == LS_MISPAIRING || c->verdict == LS_HANG;
    case REDUCTION: return c->verdict == LS_MISMATCH && c->reduction;
    case LOST: return c->verdict == LS_LOST_GRADIENT;
    case NOT_WRITTEN: break;
    }
    return true;
}

static const char *reason(const char *row, int col)
{
    for (size_t i = 0; i < sizeof reasons / sizeof *reasons; i++)
        if (reasons[i].row && strcmp(reasons[i].row, row) == 0 && reasons[i].column == col)
            return reasons[i].why;
    return NULL;
}

static void add_head(struct ls_str *out, const char *first)
{
    ls_str_printf(out, "| %s |", first);
    for (int c = 0; c < COLUMNS; c++)
        ls_str_printf(out, " %s |", column_title[c]);
    ls_str_add(out, "\n|---|---|---|---|---|---|---|\n");
}

static void compare_golden(const struct ls_str *out)
{
    const char *mode = getenv("LS_GOLDEN");
    bool write = mode && strcmp(mode, "write") == 0;
    struct ls_str have = { 0 };
    char block[4096];
    FILE *f = fopen(FOLDER "/safety.md", write ? "w" : "r");
    cr_assert(f, "safety.md");
    if (write)
        fputs(ls_str_text(out), f);
    for (size_t n; !write && (n = fread(block, 1, sizeof block, f)) > 0;)
        ls_str_addn(&have, block, n);
    fclose(f);
    cr_expect(write || strcmp(ls_str_text(&have), ls_str_text(out)) == 0, "safety.md is not what the cells say; LS_GOLDEN=write");
    ls_str_release(&have);
}

Test(safety_table, generated_cell_by_cell_and_compared_with_the_one_written_by_hand)
{
    static struct cell mixed[ROWS][COLUMNS], uniform[ROWS][COLUMNS];
    struct ls_arena arena;
    struct ls_str out = { 0 };
    size_t cells = 0, same = 0, differ = 0;
    ls_arena_init(&arena, 0);
    for (size_t r = 0; r < ROWS; r++)
        for (int c = 0; c < COLUMNS; c++) {
            judge(ls_arena_printf(&arena, FOLDER "/cells/%s-%s.yaml", rows[r].name, column[c]), &arena, &mixed[r][c]);
            judge(ls_arena_printf(&arena, FOLDER "/cells/%s-%s-symmetric.yaml", rows[r].name, column[c]), &arena, &uniform[r][c]);
            cr_expect_eq(mixed[r][c].exists, uniform[r][c].exists, "%s-%s has one of two scenarios", rows[r].name, column[c]);
            cr_expect(!uniform[r][c].exists || uniform[r][c].verdict == LS_SAFE || uniform[r][c].verdict == LS_LOST_GRADIENT ||
                      uniform[r][c].verdict == LS_SETUP_ERROR, "%s-%s: equal batches are %s", rows[r].name, column[c], uniform[r][c].text);
            cr_expect(mixed[r][c].exists || rows[r].by_hand[c] == NOT_WRITTEN, "%s-%s is missing", rows[r].name, column[c]);
            cells += mixed[r][c].exists;
        }
    ls_str_add(&out, "# What is safe under which policy\n\nWritten by tests/golden/test_safety_table.c (`LS_GOLDEN=write`) from the scenarios in `cells/`; the FSDP group spans ranks that hold an\n"
               "image and ranks that do not. `-`: not modelled, or no such plan.\n\n");
    add_head(&out, "conditional module");
    for (size_t r = 0; r < ROWS; r++) {
        ls_str_printf(&out, "| %s |", rows[r].title);
        for (int c = 0; c < COLUMNS; c++)
            ls_str_printf(&out, " %s |", mixed[r][c].exists ? mixed[r][c].text : "-");
        ls_str_add(&out, "\n");
    }
    ls_str_add(&out, "\nWith equal batches on all ranks:\n\n");
    add_head(&out, "conditional module");
    for (size_t r = 0; r < ROWS; r++) {
        ls_str_printf(&out, "| %s |", rows[r].title);
        for (int c = 0; c < COLUMNS; c++)
            ls_str_printf(&out, " %s |", uniform[r][c].exists ? uniform[r][c].text : "-");
        ls_str_add(&out, "\n");
    }
    ls_str_add(&out, "\nWhat a reading by hand of AutoModel's parallelizers says (a trainable module without lists: unless cp is above 1, where unused gradients\n"
               "are filled with zeros, `dense-root-zero-filled.yaml`):\n\n");
    add_head(&out, "conditional module");
    for (size_t r = 0; r < ROWS; r++) {
        ls_str_printf(&out, "| %s |", rows[r].title);
        for (int c = 0; c < COLUMNS; c++) {
            bool ok = !mixed[r][c].exists || agrees(rows[r].by_hand[c], &mixed[r][c]);
            same += mixed[r][c].exists && ok;
            differ += !ok;
            ls_str_printf(&out, " %s%s |", written_text[rows[r].by_hand[c]], ok ? "" : " **differs**");
            cr_expect(ok || reason(rows[r].name, c), "%s-%s: by hand %s, found %s, and no reason is given", rows[r].name, column[c],
                      written_text[rows[r].by_hand[c]], mixed[r][c].text);
            cr_expect(!ok || !reason(rows[r].name, c), "%s-%s: a reason for a difference that is none", rows[r].name, column[c]);
        }
        ls_str_add(&out, "\n");
    }
    ls_str_printf(&out, "\n%zu cells: %zu as written, %zu differ.\n", cells, same, differ);
    for (size_t r = 0; r < ROWS; r++)
        for (int c = 0; c < COLUMNS; c++)
            if (reason(rows[r].name, c))
                ls_str_printf(&out, "\n- %s, %s: %s\n", rows[r].title, column_title[c], reason(rows[r].name, c));
    compare_golden(&out);
    cr_expect_eq(cells, 45);
    ls_str_release(&out);
    ls_arena_release(&arena);
}
