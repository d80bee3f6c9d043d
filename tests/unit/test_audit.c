/* Recipes as rows: written ones against files, 110 real ones against a reading by hand where both are at hand. */
#include "audit/audit.h"
#include "auditing.h"
#include "cli/cli.h"

#include <criterion/criterion.h>
#include <criterion/redirect.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define DATA LS_SOURCE_DIR "/tests/data/audit"

static struct ls_arena arena;
static struct ls_error err;
static struct ls_inventories toys;

static void setup(void)
{
    ls_arena_init(&arena, 0);
    err = (struct ls_error){ 0 };
    cr_assert_eq(ls_inventories_read(LS_SOURCE_DIR "/tests/data", &arena, &toys, &err), LS_OK, "%s", err.text);
}

static void teardown(void)
{
    ls_arena_release(&arena);
}

TestSuite(audit, .init = setup, .fini = teardown, .timeout = 280);

static const char *read_text(const char *path)
{
    FILE *f = fopen(path, "rb");
    struct ls_str text = { 0 };
    cr_assert(f, "%s", path);
    for (int c; (c = getc(f)) != EOF;)
        ls_str_addn(&text, &(char){ (char)c }, 1);
    fclose(f);
    const char *copy = ls_arena_str(&arena, ls_str_text(&text));
    ls_str_release(&text);
    return copy;
}

/* LS_GOLDEN=write renews the file; review reads the diff. */
static void expect_file(const char *name, const struct ls_str *text)
{
    const char *path = ls_arena_printf(&arena, DATA "/%s", name), *mode = getenv("LS_GOLDEN");
    if (mode && strcmp(mode, "write") == 0) {
        FILE *f = fopen(path, "wb");
        cr_assert(f && fwrite(text->text, 1, text->length, f) == text->length && fclose(f) == 0, "%s", path);
        return;
    }
    cr_expect_str_eq(read_text(path), ls_str_text(text), "%s differs; LS_GOLDEN=write renews it:\n%s", path, ls_str_text(text));
}

static struct ls_audit_row audit(const char *path, const struct ls_inventories *known, struct ls_audit_options o, struct ls_audit_memo *memo)
{
    struct ls_audit_row row;
    cr_assert_eq(ls_audit_recipe(path, known, &o, memo, &arena, &row, &err), LS_OK, "%s: %s", path, err.text);
    return row;
}

static struct ls_audit_row toy(const char *name, uint64_t world)
{
    return audit(ls_arena_printf(&arena, DATA "/recipes/%s.yaml", name), &toys, (struct ls_audit_options){ .world_size = world }, NULL);
}

static const char *const names[] = { "broken", "experts", "frozen", "hostile", "models/trainable", "no_inventory", "not_a_recipe",
                                     "one_replica", "per_layer" };
enum { NAMES = sizeof names / sizeof *names };

Test(audit, tables)
{
    struct ls_audit_row row[NAMES];
    struct ls_audit_memo *memo = ls_audit_memo_open();
    for (size_t i = 0; i < NAMES; i++) {
        row[i] = audit(ls_arena_printf(&arena, DATA "/recipes/%s.yaml", names[i]), &toys, (struct ls_audit_options){ 0 }, memo);
        row[i].path = names[i];
        row[i].inventory = row[i].inventory ? "toy_vlm.yaml" : NULL; /* no paths of this machine */
        row[i].seconds = 0;
    }
    ls_audit_memo_close(memo);
    struct ls_str text = { 0 };
    ls_audit_markdown(row, NAMES, &text);
    expect_file("expected.md", &text);
    ls_str_clear(&text);
    ls_audit_csv(row, NAMES, &text);
    expect_file("expected.csv", &text);
    ls_str_clear(&text);
    struct ls_json j;
    ls_json_init(&j, &text, true);
    ls_json_object(&j);
    ls_audit_json(row, NAMES, &j);
    ls_json_end_object(&j);
    ls_str_add(&text, "\n");
    expect_file("expected.json", &text);
    ls_str_release(&text);
}

Test(audit, one_line_and_equally_many_cells_per_row)
{
    struct ls_audit_row row[] = { toy("hostile", 0), toy("broken", 0) };
    row[0].path = "a|b\nc\x1b[31m<script>";
    struct ls_str text = { 0 };
    ls_audit_markdown(row, 2, &text);
    size_t lines = 0, want = 0;
    const char *table = strstr(ls_str_text(&text), "\n| recipe ");
    cr_assert(table);
    for (const char *s = table + 1; *s && *s != '\n'; s += strcspn(s, "\n") + 1, lines++) {
        size_t bars = 0, end = strcspn(s, "\n");
        for (size_t i = 0; i < end; i++)
            bars += s[i] == '|' && (i == 0 || s[i - 1] != '\\');
        want = lines ? want : bars;
        cr_expect_eq(bars, want, "line %zu", lines);
    }
    cr_expect_eq(lines, 4);
    cr_expect(!strstr(ls_str_text(&text), "\x1b") && !strstr(ls_str_text(&text), " <script"));
    ls_str_release(&text);
}

/* Verdicts do not depend on what the memo has seen. */
Test(audit, the_memo_changes_nothing)
{
    struct ls_audit_memo *memo = ls_audit_memo_open();
    for (size_t twice = 0; twice < 2; twice++)
        for (size_t i = 0; i < NAMES; i++) {
            struct ls_audit_row a = toy(names[i], 0), b = audit(a.path, &toys, (struct ls_audit_options){ 0 }, memo);
            cr_expect(a.uniform.given == b.uniform.given && a.uniform.verdict == b.uniform.verdict, "%s", names[i]);
            cr_expect(a.mixed.given == b.mixed.given && a.mixed.verdict == b.mixed.verdict, "%s", names[i]);
            cr_expect(a.assumed.given == b.assumed.given && a.assumed.verdict == b.assumed.verdict, "%s", names[i]);
            cr_expect(!a.repair == !b.repair && (!a.repair || strcmp(a.repair, b.repair) == 0), "%s", names[i]);
        }
    ls_audit_memo_close(memo);
}

static const struct { const char *distributed; unsigned global, local; uint64_t want; } sizes[] = {
    { "{}", 8, 1, 2 },
    { "{tp_size: 4, pp_size: 2}", 8, 1, 16 },
    { "{ep_size: 8}", 8, 1, 8 },
    { "{ep_size: 8, cp_size: 2, tp_size: 2}", 8, 1, 8 },
    { "{ep_size: 8, pp_size: 4}", 8, 1, 32 },
    { "{dp_size: 3, cp_size: 2}", 8, 1, 6 },
    { "{dp_replicate_size: 2}", 8, 1, 4 },
    { "{dp_replicate_size: 3}", 18, 1, 6 },
    { "{}", 9, 1, 3 },
    { "{}", 9, 3, 3 },
    { "{cp_size: 16}", 1, 1, 16 },                 /* one data-parallel rank: context parallelism alone */
    { "{cp_size: none, tp_size: 0}", 2, 1, 2 },
    { "{dp_replicate_size: 2}", 7, 1, 4 },         /* the batch fits no size: the mesh alone */
    { "{cp_size: 4096, tp_size: 4096}", 8, 1, 0 },
    { "{cp_size: 536870912, tp_size: 536870912, pp_size: 64}", 8, 1, 0 }, /* the product is 0 in 64 bits */
};

Test(audit, the_smallest_world_size)
{
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        char path[] = LS_BINARY_DIR "/audit_XXXXXX";
        int fd = mkstemp(path);
        const char *text = ls_arena_printf(&arena, "model: {pretrained_model_name_or_path: example/toy-vlm}\ndistributed: %s\n"
                                           "step_scheduler: {global_batch_size: %u, local_batch_size: %u}\n", sizes[i].distributed,
                                           sizes[i].global, sizes[i].local);
        cr_assert(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text) && close(fd) == 0);
        struct ls_recipe r;
        const char *why;
        cr_assert_eq(ls_recipe_load(path, &toys, &arena, &r, &err), LS_OK, "%s", err.text);
        cr_expect_eq(ls_audit_world_size(&r, &arena, &why), sizes[i].want, "%s: %zu", sizes[i].distributed,
                     (size_t)ls_audit_world_size(&r, &arena, &why));
        cr_expect(!sizes[i].want == !why, "%s", sizes[i].distributed);
        static const uint64_t given[] = { 0, 1, 2, 64, 1 << 20 };
        for (size_t k = 0; k < sizeof given / sizeof *given; k++) { /* whatever the size: a row, and a reason without a verdict */
            struct ls_audit_options o = { .world_size = given[k], .no_verdicts = true };
            struct ls_audit_row row = audit(path, &toys, o, NULL);
            cr_expect(row.err.code == LS_OK && (row.whys || row.facts), "%s", sizes[i].distributed);
            cr_expect(!sizes[i].want || row.facts, "%s: the modules do not depend on the number of ranks", sizes[i].distributed);
        }
        unlink(path);
    }
}

Test(audit, a_size_that_does_not_fit_is_said)
{
    struct ls_audit_row row = toy("frozen", 3);
    cr_expect(row.err.code == LS_OK && !row.uniform.given && row.facts && row.frozens == 2 && row.whys == 1);
    cr_expect(strstr(row.why[0], "'global_batch_size' 4 is not a multiple"), "%s", row.why[0]);
    row = toy("models/trainable", 8);
    cr_expect(row.whys == 1 && strstr(row.why[0], "is not the world size 8"), "%s", row.why[0]);
}

/* Meshes beside plain FSDP, on a small Qwen3-VL. */
static const struct { const char *distributed; uint64_t world; bool given; const char *parallelizer, *policy, *together, *why; enum ls_verdict mixed; } meshes[] = {
    { "{cp_size: 2}", 4, true, "dense", "root", "(2 of a context-parallel group)", NULL, LS_SAFE },
    { "{cp_size: 2, tp_size: 2}", 8, true, "dense", "root", "(2 of a context-parallel group, 2 of a tensor-parallel group)", NULL, LS_SAFE },
    { "{cp_size: 2, multimodal: {frozen_sharding: per_layer}}", 4, true, "dense", "per_layer", "(2 of a context-parallel group)", NULL, LS_MISMATCH },
    { "{cp_size: 2, multimodal: {frozen_sharding: per_layer}}", 2, true, "dense", "per_layer", "(2 of a context-parallel group)", NULL, LS_SAFE },
    { "{strategy: ddp}", 2, true, "ddp", "n/a", NULL, NULL, LS_SAFE },
    { "{strategy: ddp, cp_size: 2}", 4, false, "ddp", "n/a", NULL, "(distributed.cp_size: 2, line 3)", LS_SAFE },
    { "{pp_size: 2}", 4, false, "dense+pp", "root", NULL, "pipeline parallelism is not modelled yet (distributed.pp_size: 2, line 3)", LS_SAFE },
    { "{strategy: fsdp2}", 2, true, "dense", "root", NULL, NULL, LS_SAFE },
};

Test(audit, meshes_that_are_judged_and_those_that_are_not)
{
    struct ls_inventories small;
    cr_assert_eq(ls_inventories_only(LS_SOURCE_DIR "/scenarios/models/tiny_qwen3_vl.yaml", &arena, &small, &err), LS_OK, "%s", err.text);
    for (size_t i = 0; i < sizeof meshes / sizeof *meshes; i++) {
        char path[] = LS_BINARY_DIR "/audit_XXXXXX";
        int fd = mkstemp(path);
        const char *text = ls_arena_printf(&arena, "step_scheduler: {global_batch_size: 4, local_batch_size: 1}\nmodel: {pretrained_model_name_or_path: x}\n"
                                           "distributed: %s\nfreeze_config: {}\n", meshes[i].distributed);
        cr_assert(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text) && close(fd) == 0);
        struct ls_audit_row row = audit(path, &small, (struct ls_audit_options){ .world_size = meshes[i].world }, NULL);
        const char *d = meshes[i].distributed;
        cr_assert_eq(row.mixed.given, meshes[i].given, "%s: %s", d, row.whys ? row.why[0] : "");
        cr_expect(!row.mixed.given || (row.uniform.verdict == LS_SAFE && row.mixed.verdict == meshes[i].mixed), "%s", d);
        cr_expect_eq(row.mixed.cause != NULL, meshes[i].mixed != LS_SAFE, "%s", d);
        cr_expect_str_eq(row.parallelizer, meshes[i].parallelizer);
        cr_expect_str_eq(row.policy, meshes[i].policy);
        cr_expect(!row.mixed.given || !row.together == !meshes[i].together, "%s", d);
        cr_expect(!meshes[i].together || strstr(row.together, meshes[i].together), "%s: %s", d, row.together);
        cr_expect(!meshes[i].why || strstr(row.why[0], meshes[i].why), "%s: %s", d, row.whys ? row.why[0] : "");
        unlink(path);
    }
}

/* Under the proposed rules the same recipe may be refused at set-up; the row says which contract. */
Test(audit, proposed_rules)
{
    const char *path = DATA "/recipes/per_layer.yaml";
    struct ls_audit_row today = audit(path, &toys, (struct ls_audit_options){ 0 }, NULL);
    struct ls_audit_row then = audit(path, &toys, (struct ls_audit_options){ .proposed = true }, NULL);
    cr_assert(today.mixed.given && then.mixed.given && then.uniform.given);
    cr_expect(today.mixed.verdict == LS_MISMATCH && then.mixed.verdict == LS_SETUP_ERROR);
    cr_expect(then.mixed.cause && strstr(then.mixed.cause, "per_layer_needs_uniform_execution"), "%s", then.mixed.cause);
    cr_expect_eq(then.uniform.verdict, LS_SAFE);
}

static int run(const char *const *arg, size_t args)
{
    struct ls_cli cli = { .command = &ls_command_audit };
    char *argv[8];
    int argc = (int)args;
    for (size_t i = 0; i < args; i++)
        argv[i] = ls_arena_str(&arena, arg[i]);
    enum ls_code rc = ls_cli_parse(&cli, &argc, argv, &err);
    return rc == LS_OK ? cli.command->run(&cli, argc, argv) : (int)rc;
}

#define MODELS "--models=" LS_SOURCE_DIR "/tests/data"
static const struct { const char *arg[5]; int status; } runs[] = {
    { { MODELS, DATA "/recipes/frozen.yaml" }, LS_OK },
    { { MODELS, DATA "/recipes/per_layer.yaml", "--csv" }, LS_OK },          /* fails only if batches differ */
    { { MODELS, DATA "/recipes/frozen.yaml", "--world-size", "auto" }, LS_OK },
    { { MODELS, DATA "/recipes", "--no-verdicts" }, LS_EINPUT },             /* two of them are no recipes */
    { { MODELS, DATA "/recipes/deferred.yml" }, LS_EVIOLATED },
    { { MODELS, DATA "/recipes/nowhere.yaml" }, LS_EINPUT },
    { { "--models", DATA "/nowhere", DATA "/recipes/frozen.yaml" }, LS_EINPUT },
    { { MODELS, DATA "/recipes/frozen.yaml", "--world-size", "many" }, LS_EUSAGE },
    { { MODELS, DATA "/recipes/frozen.yaml", "--json", "--csv" }, LS_EUSAGE },
    { { MODELS }, LS_EUSAGE },
};

Test(audit, exit_status)
{
    cr_redirect_stdout();
    cr_redirect_stderr();
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        size_t args = 0;
        while (args < 5 && runs[i].arg[args])
            args++;
        int status = run(runs[i].arg, args);
        cr_expect_eq(status, runs[i].status, "run %zu (%s): %d", i, runs[i].arg[args - 1], status);
    }
}

Test(audit, an_unreadable_file_among_good_ones)
{
    char folder[] = LS_BINARY_DIR "/audit_XXXXXX";
    cr_assert(mkdtemp(folder));
    const char *bad = ls_arena_printf(&arena, "%s/a.yaml", folder), *gone = ls_arena_printf(&arena, "%s/b.yaml", folder);
    cr_assert(mkdir(bad, 0700) == 0);
    struct ls_audit_row row[] = { audit(bad, &toys, (struct ls_audit_options){ 0 }, NULL),
                                  audit(gone, &toys, (struct ls_audit_options){ 0 }, NULL), toy("frozen", 0) };
    cr_expect(row[0].err.code == LS_EINPUT && row[1].err.code == LS_EINPUT && row[2].err.code == LS_OK && row[2].mixed.given);
    struct ls_str text = { 0 };
    ls_audit_markdown(row, 3, &text);
    cr_expect(strstr(ls_str_text(&text), "3 recipes: 1 judged") && strstr(ls_str_text(&text), "2 not read"), "%s", ls_str_text(&text));
    ls_str_release(&text);
    rmdir(bad);
    rmdir(folder);
}

/* The real recipes. */
enum { LINES_MAX = 256, CELLS_MAX = 48 };
static const char *head[CELLS_MAX], *cell[LINES_MAX][CELLS_MAX];
static size_t heads, lines;

static void read_table(const char *path)
{
    char *text = ls_arena_str(&arena, read_text(path));
    for (size_t n = 0; *text; n++) {
        char *end = text + strcspn(text, "\n"), *next = *end ? end + 1 : end;
        *end = 0;
        for (size_t c = 0; c < CELLS_MAX; c++) {
            char *tab = text + strcspn(text, "\t"), more = *tab;
            *tab = 0;
            *(n ? &cell[n - 1][c] : &head[c]) = text;
            heads = n ? heads : c + 1;
            if (!more)
                break;
            text = tab + 1;
        }
        lines = n;
        text = next;
        cr_assert(n < LINES_MAX);
    }
}

static const char *by_hand(size_t line, const char *column)
{
    for (size_t c = 0; c < heads; c++)
        if (strcmp(head[c], column) == 0)
            return cell[line][c] ? cell[line][c] : "";
    cr_assert_fail("no column '%s'", column);
    return "";
}

static const char *joined(const char *const *text, size_t count)
{
    struct ls_str s = { 0 };
    for (size_t i = 0; i < count; i++)
        ls_str_printf(&s, "%s%s", i ? "," : "", text[i]);
    const char *out = ls_arena_str(&arena, ls_str_text(&s));
    ls_str_release(&s);
    return out;
}

static const char *differences;
static size_t differ;

static void same(const char *recipe, const char *column, const char *want, const char *have)
{
    if (strcmp(want, have) == 0)
        return;
    const char *row = ls_arena_printf(&arena, "| %s | %s | %s | %s | ", recipe, column, want, have);
    cr_expect(strstr(differences, row), "not in tests/data/audit/differences.md: %s", row);
    differ++;
}

static const char *media_by_hand(const char *text_only)
{
    return strcmp(text_only, "yes") == 0 ? "none" : strcmp(text_only, "audio+text") == 0 ? "audio" : strncmp(text_only, "mixed", 5) == 0 ?
           "mixed" : "image";
}

static const char *parallelizer_by_hand(const char *path)
{
    static const char *const names_of[][2] = { { "dense_fsdp2", "dense" }, { "dense_fsdp2+pp", "dense+pp" }, { "moe_ep", "ep" },
                                               { "moe_ep+pp", "ep+pp" } };
    for (size_t i = 0; i < 4; i++)
        if (strcmp(names_of[i][0], path) == 0)
            return names_of[i][1];
    return path;
}

static void compare(size_t line, const struct ls_audit_row *row)
{
    static const char *const axis[] = { "cp_size", "tp_size", "pp_size", "ep_size" };
    const uint64_t size[] = { row->cp, row->tp, row->pp, row->ep };
    const char *name = strrchr(row->path, '/') + 1, *dp = by_hand(line, "dp_size");
    same(name, "model", by_hand(line, "model_id"), row->model_id ? row->model_id : "(none)");
    for (size_t i = 0; i < 4; i++)
        same(name, axis[i], by_hand(line, axis[i]), ls_arena_printf(&arena, "%zu", (size_t)size[i]));
    if (strcmp(dp, "auto") != 0)
        same(name, "dp_size", dp, ls_arena_printf(&arena, "%zu", (size_t)row->dp));
    same(name, "parallelizer", parallelizer_by_hand(by_hand(line, "parallelizer_path")), row->parallelizer);
    same(name, "data", media_by_hand(by_hand(line, "dataset_text_only")), ls_media_name(row->data.media));
    same(name, "fake images", strncmp(by_hand(line, "inject_fake_images"), "true", 4) == 0 ? "yes" : "no",
         row->data.fake_images ? "yes" : "no");
    if (!row->facts)
        return;
    same(name, "frozen", by_hand(line, "frozen_units"), joined(row->frozen, row->frozens));
    same(name, "trainable", by_hand(line, "trainable_units"), joined(row->trainable, row->trainables));
    const char *outside = joined(row->outside, row->outsides); /* "a (frozen)" there is "a(frozen)" by hand */
    char *tight = ls_arena_str(&arena, outside), *to = tight;
    for (const char *c = outside; *c; c++)
        if (*c != ' ')
            *to++ = *c;
    *to = 0;
    same(name, "outside", by_hand(line, "outside_taxonomy"), tight);
    same(name, "policy", by_hand(line, "frozen_sharding_effective"), row->policy);
}

static void read_real(struct ls_inventories *known)
{
    if (access(LS_SOURCE_DIR "/../shared/data/recipes", R_OK) != 0 || access(LS_SOURCE_DIR "/../shared/reference/recipes.tsv", R_OK) != 0)
        cr_skip_test("no recipes at ../shared/data/recipes, or no ../shared/reference/recipes.tsv");
    cr_assert_eq(ls_inventories_read(LS_SOURCE_DIR "/scenarios/models", &arena, known, &err), LS_OK, "%s", err.text);
    read_table(LS_SOURCE_DIR "/../shared/reference/recipes.tsv");
}

Test(audit, every_real_recipe_has_a_row_as_by_hand)
{
    struct ls_inventories known;
    read_real(&known);
    differences = read_text(DATA "/differences.md");
    size_t facts = 0, listed = 0;
    for (size_t i = 0; i < lines; i++) {
        const char *path = ls_arena_printf(&arena, LS_SOURCE_DIR "/../shared/data/recipes/%s", by_hand(i, "path") + strlen("examples/"));
        struct ls_audit_row row = audit(path, &known, (struct ls_audit_options){ .no_verdicts = true }, NULL);
        cr_assert_eq(row.err.code, LS_OK, "%s: %s", path, row.err.text);
        cr_expect(row.world > 0 && row.parallelizer && row.policy && row.data.says, "%s", path);
        cr_expect(row.facts == (row.inventory != NULL), "%s: %s", path, row.whys ? row.why[0] : "");
        cr_expect(row.facts || row.whys, "%s: nothing is said", path);
        cr_expect(row.pp == 1 || row.parts, "%s: why is there no verdict?", path);
        facts += row.facts;
        compare(i, &row);
    }
    for (const char *s = differences; (s = strstr(s, "\n| ")); s++)
        listed += strncmp(s, "\n| recipe |", 11) != 0;
    cr_expect_eq(lines, 110);
    cr_expect_eq(differ, listed, "%zu differences, %zu listed", differ, listed);
    fprintf(stderr, "%zu recipes, %zu with an inventory, %zu values differ\n", lines, facts, differ);
}

/* Quick ones of each kind, with all verdicts, against the committed table, and against import and check; campaign_audit does all. */
static const char *const quick[] = {
    "vlm_finetune/gemma4/gemma4_31b_ffpa_mock_packing_cp8_16k.yaml", /* context parallelism over all ranks */
    "vlm_finetune/mistral/ministral3_3b_medpix.yaml",                /* a projector trains, gradients are accumulated: as 14 recipes do */
    "vlm_finetune/qwen3_5/qwen3_5_27b_tp4pp4.yaml",                  /* not modelled */
    "vlm_finetune/phi4/phi4_mm_cv17.yaml",                           /* no inventory */
};

Test(audit, real_recipes_as_in_the_table)
{
    struct auditing a;
    struct audit_sum sum = { 0 };
    struct ls_str line = { 0 }, why = { 0 };
    if (!auditing_open(&a))
        cr_skip_test("no recipes at ../shared/data/recipes");
    for (size_t q = 0; q < sizeof quick / sizeof *quick; q++) {
        size_t i = 0;
        while (i < a.paths && strcmp(a.path[i], quick[q]) != 0)
            i++;
        cr_assert_lt(i, a.paths, "%s", quick[q]);
        ls_str_clear(&line);
        cr_expect(auditing_row(&a, i, 0, true, &sum, &line, &why), "%s: %s", quick[q], ls_str_text(&why));
        ls_str_clear(&why);
    }
    cr_expect(sum.judged == 2 && sum.without == 2 && sum.imported == 2 && sum.repaired == 1);
    /* A row that the table does not have is said. */
    a.lines = 0;
    cr_expect(!auditing_row(&a, a.paths - 1, 0, true, &sum, &line, &why) && strstr(ls_str_text(&why), "not in the table"));
    ls_str_release(&line);
    ls_str_release(&why);
    auditing_close(&a);
}
