/* Letters, drivers and contracts of batch descriptions. */
#include "batch/batch.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

struct fixture { struct ls_arena arena; struct ls_names *names; struct ls_model model; struct ls_batch batch; };

static void open_fixture(struct fixture *f)
{
    *f = (struct fixture){ 0 };
    ls_arena_init(&f->arena, 0);
    f->names = ls_names_open();
    f->model = (struct ls_model){ .arena = &f->arena, .names = f->names, .conditions = 3 };
    uint32_t vision = ls_name_id(f->names, "vision"), audio = ls_name_id(f->names, "audio");
    f->model.condition[0] = (struct ls_condition){ ls_name_id(f->names, "image"), vision };
    f->model.condition[1] = (struct ls_condition){ ls_name_id(f->names, "video"), vision };
    f->model.condition[2] = (struct ls_condition){ ls_name_id(f->names, "audio"), audio };
    f->batch = (struct ls_batch){ .model = &f->model, .microbatches = 1, .steps = 1 };
    f->batch.at = f->batch.execution_at = (struct ls_loc){ "b.yaml", 3, 5 };
}

static void close_fixture(struct fixture *f)
{
    ls_names_close(f->names);
    ls_arena_release(&f->arena);
}

Test(letters, equal_counts_share_a_letter)
{
    struct fixture f;
    open_fixture(&f);
    struct ls_sample sample[] = { { .text = 5 }, { .images = 1 }, { .text = 9, .images = 1 }, { .images = 2, .videos = 1 },
                                  { .audios = 2 }, { .text = 77 } };
    f.batch.sample = sample, f.batch.samples = 6;
    struct ls_letters l;
    cr_assert_eq(ls_batch_letters(&f.batch, f.names, &f.arena, &l, NULL), LS_OK);
    const char *want[] = { "text only", "1 image", "2 images + 1 video", "2 audios" };
    uint32_t of[] = { 0, 1, 1, 2, 3, 0 };
    cr_assert_eq(l.count, 4);
    for (size_t i = 0; i < 4; i++)
        cr_expect_str_eq(ls_name_text(f.names, l.letter[i].name), want[i]);
    for (size_t i = 0; i < 6; i++)
        cr_expect_eq(l.of_sample[i], of[i]);
    cr_expect_eq(ls_batch_still_letter(&l), 1);
    close_fixture(&f);
}

Test(letters, a_dummy_stands_in_for_a_modality_without_media)
{
    struct fixture f;
    open_fixture(&f);
    struct ls_sample sample[] = { { .text = 5 }, { .images = 1 }, { .videos = 1 }, { .audios = 1 } };
    struct ls_dummy_forward dummy[] = { { .modality = f.model.condition[0].modality, .active = true, .linked = true },
                                        { .modality = f.model.condition[2].modality, .active = true } };
    f.batch.sample = sample, f.batch.samples = 4, f.batch.dummy = dummy, f.batch.dummies = 2;
    struct ls_letters l;
    cr_assert_eq(ls_batch_letters(&f.batch, f.names, &f.arena, &l, NULL), LS_OK);
    const char *want[] = { "text only + vision dummy + audio dummy", "1 image + audio dummy", "1 video + audio dummy",
                           "1 audio + vision dummy" };
    uint32_t bits[] = { 5, 4, 4, 1 };
    cr_assert_eq(l.count, 4);
    for (size_t i = 0; i < 4; i++) {
        cr_expect_str_eq(ls_name_text(f.names, l.letter[i].name), want[i]);
        cr_expect_eq(l.letter[i].dummy, bits[i]);
    }
    dummy[1].active = false;
    cr_assert_eq(ls_batch_letters(&f.batch, f.names, &f.arena, &l, NULL), LS_OK);
    cr_expect_eq(l.letter[1].dummy, 0);
    sample[1].images = 0; /* no sample holds images: the dummy stands in for a video */
    cr_assert_eq(ls_batch_letters(&f.batch, f.names, &f.arena, &l, NULL), LS_OK);
    cr_expect_eq(l.letter[0].dummy, 2);
    close_fixture(&f);
}

Test(letters, what_the_flow_lacks_is_an_error)
{
    struct fixture f;
    open_fixture(&f);
    f.model.conditions = 2;
    struct ls_sample sample[] = { { .audios = 1, .at = { "b.yaml", 9, 2 } } };
    f.batch.sample = sample, f.batch.samples = 1;
    struct ls_letters l;
    struct ls_error err = { 0 };
    cr_assert_eq(ls_batch_letters(&f.batch, f.names, &f.arena, &l, &err), LS_EINPUT);
    cr_expect_str_eq(err.text, "'audios' is 1, but the model's flow has no condition 'audio'");
    cr_expect_eq(err.input.line, 9);
    sample[0] = (struct ls_sample){ .images = 3, .at = { "b.yaml", 10, 2 } };
    cr_assert_eq(ls_batch_letters(&f.batch, f.names, &f.arena, &l, &err), LS_EINPUT);
    cr_expect_str_eq(err.text, "'images' is 3, which is not between 0 and 2");
    close_fixture(&f);
}

Test(letters, every_combination_is_one)
{
    struct fixture f;
    open_fixture(&f);
    struct ls_sample sample[27];
    for (size_t i = 0; i < 27; i++)
        sample[i] = (struct ls_sample){ .images = i % 3, .videos = i / 3 % 3, .audios = i / 9 };
    f.batch.sample = sample, f.batch.samples = 27;
    struct ls_letters l;
    cr_assert_eq(ls_batch_letters(&f.batch, f.names, &f.arena, &l, NULL), LS_OK);
    cr_expect_eq(l.count, 27);
    close_fixture(&f);
}

/* The runs of a driver as texts, against a definition by hand: M / m a microbatch with / without gradient sync, S a step end,
 * E an evaluation. A '.' marks where the job may stop. */
struct runs { const struct ls_rounds *rounds; const struct ls_driver *driver; struct ls_str text; size_t longest; };

static void walk(struct runs *r, uint32_t node, char *run, size_t length, size_t stops)
{
    const struct ls_driver_node *n = &r->driver->node[node];
    const struct ls_round *round = &r->rounds->round[n->round];
    if (n->may_stop && (length == 0 || run[length - 1] != '.')) {
        run[length++] = '.';
        stops++;
    }
    if (round->kind != LS_ROUND_IDLE)
        run[length++] = round->kind == LS_ROUND_STEP ? 'S' : round->kind == LS_ROUND_EVAL ? 'E' : round->gradient_sync ? 'M' : 'm';
    bool end = n->nexts == 0 || length - stops >= r->longest;
    if (end) {
        run[length] = 0;
        ls_str_printf(&r->text, "%s ", run);
        return;
    }
    for (size_t i = 0; i < n->nexts; i++)
        walk(r, n->next[i], run, length, stops);
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Sorted, without repeats: two paths may spell one run. */
static char *normal(const char *text)
{
    char *copy = strdup(text), *part[512], *out = calloc(strlen(text) + 2, 1);
    size_t count = 0;
    for (char *p = strtok(copy, " "); p && count < 512; p = strtok(NULL, " "))
        part[count++] = p;
    qsort(part, count, sizeof *part, by_text);
    for (size_t i = 0; i < count; i++)
        if (i == 0 || strcmp(part[i], part[i - 1]) != 0)
            strcat(strcat(out, part[i]), " ");
    free(copy);
    return out;
}

static void expect_runs(const struct ls_batch *b, size_t longest, const char *want)
{
    struct ls_arena arena;
    ls_arena_init(&arena, 0);
    struct ls_rounds rounds;
    struct ls_driver driver;
    struct ls_error err = { 0 };
    cr_assert_eq(ls_batch_driver(b, &arena, &rounds, &driver, &err), LS_OK, "%s", err.text);
    struct runs r = { .rounds = &rounds, .driver = &driver, .longest = longest };
    char run[128];
    walk(&r, 0, run, 0, 0);
    char *have = normal(ls_str_text(&r.text)), *expected = normal(want);
    cr_expect_str_eq(have, expected);
    for (size_t i = 0; i < driver.nodes; i++)
        cr_expect_lt(driver.node[i].round, rounds.count);
    free(have);
    free(expected);
    ls_str_release(&r.text);
    ls_arena_release(&arena);
}

Test(driver, fixed_numbers_make_a_line)
{
    struct fixture f;
    open_fixture(&f);
    f.batch.microbatches = 2;
    f.batch.steps = 2;
    f.batch.gradient_sync = (struct ls_switch){ (bool[]){ false, true }, 2, LS_NOWHERE };
    expect_runs(&f.batch, 99, ".mMS.mMS");
    f.batch.steps = 0;
    expect_runs(&f.batch, 7, ".mMS.mMS.m");
    enum ls_round_kind kinds[] = { LS_ROUND_MICRO, LS_ROUND_EVAL, LS_ROUND_MICRO, LS_ROUND_STEP, LS_ROUND_EVAL };
    f.batch.schedule = kinds, f.batch.rounds = 5, f.batch.steps = 1;
    expect_runs(&f.batch, 99, ".mEMSE");
    close_fixture(&f);
}

Test(driver, any_number_of_microbatches)
{
    struct fixture f;
    open_fixture(&f);
    f.batch.microbatches = 0, f.batch.steps = 0;
    expect_runs(&f.batch, 3, ".MMM .MMS .MS.M");
    f.batch.gradient_sync = (struct ls_switch){ (bool[]){ false, true }, 2, LS_NOWHERE };
    expect_runs(&f.batch, 3, ".mmm .mmM .mMS .MS.m .MS.M");
    f.batch.steps = 1;
    expect_runs(&f.batch, 4, ".mmmm .mmmM .mmMS .mMS .MS");
    enum ls_round_kind kinds[] = { LS_ROUND_EVAL, LS_ROUND_MICRO, LS_ROUND_STEP };
    f.batch.schedule = kinds, f.batch.rounds = 3, f.batch.steps = 0;
    expect_runs(&f.batch, 4, ".Emmm .EmmM .EmMS .EMS.E");
    f.batch.gradient_sync.count = 1;
    f.batch.gradient_sync.at = &(bool){ false };
    f.batch.steps = 2;
    expect_runs(&f.batch, 5, ".Emmmm .EmmmS .EmmS.E .EmS.Em");
    close_fixture(&f);
}

Test(driver, schedules_and_switches_that_do_not_fit)
{
    struct fixture f;
    open_fixture(&f);
    struct ls_rounds rounds;
    struct ls_driver driver;
    struct ls_error err = { 0 };
    enum ls_round_kind kinds[] = { LS_ROUND_MICRO, LS_ROUND_MICRO, LS_ROUND_STEP };
    f.batch.schedule = kinds, f.batch.rounds = 3;
    cr_assert_eq(ls_batch_driver(&f.batch, &f.arena, &rounds, &driver, &err), LS_EINPUT);
    cr_expect_str_eq(err.text, "'schedule' holds 'micro' 2 times, but 'microbatches' is 1");
    f.batch.microbatches = 0;
    cr_assert_eq(ls_batch_driver(&f.batch, &f.arena, &rounds, &driver, &err), LS_EINPUT);
    cr_expect_str_eq(err.text, "'schedule' holds 'micro' 2 times; with microbatches any it stands there once");
    f.batch.rounds = 0, f.batch.microbatches = 3;
    f.batch.all_reduce = (struct ls_switch){ (bool[]){ false, true }, 2, { "b.yaml", 4, 4 } };
    cr_assert_eq(ls_batch_driver(&f.batch, &f.arena, &rounds, &driver, &err), LS_EINPUT);
    cr_expect_str_eq(err.text, "'all_reduce' lists 2 values, but 'microbatches' is 3");
    cr_expect_eq(err.input.line, 4);
    f.batch.all_reduce.count = 0, f.batch.microbatches = LS_MICROBATCHES_MAX, f.batch.steps = LS_STEPS_MAX;
    cr_assert_eq(ls_batch_driver(&f.batch, &f.arena, &rounds, &driver, &err), LS_EINPUT);
    close_fixture(&f);
}

Test(contract, trees_of_agents)
{
    struct fixture f;
    open_fixture(&f);
    struct ls_sample sample[] = { { .text = 5 }, { .images = 1 }, { .audios = 1 }, { .images = 1, .audios = 1 } };
    f.batch.sample = sample, f.batch.samples = 4;
    struct ls_letters l;
    struct ls_contract c;
    struct ls_error err = { 0 };
    uint32_t both = LS_DIM_REPLICATE | LS_DIM_SHARD;
    cr_assert_eq(ls_batch_letters(&f.batch, f.names, &f.arena, &l, NULL), LS_OK);
    f.batch.execution = LS_EXEC_ANY;
    cr_assert_eq(ls_batch_contract(&f.batch, &l, both, 4, &f.arena, &c, NULL), LS_OK);
    cr_expect(c.levels == 2 && c.dims[0] == 0 && c.dims[1] == both && !c.class_of[1]);
    for (size_t i = 0; i < 4; i++)
        cr_expect_eq(c.class_of[0][i], 0);
    f.batch.execution = LS_EXEC_RANK_UNIFORM;
    cr_assert_eq(ls_batch_contract(&f.batch, &l, both, 4, &f.arena, &c, NULL), LS_OK);
    cr_expect(c.levels == 2 && !c.class_of[0] && !c.class_of[1]);
    f.batch.execution = LS_EXEC_NODE_UNIFORM;
    cr_assert_eq(ls_batch_contract(&f.batch, &l, both, 4, &f.arena, &c, NULL), LS_OK);
    cr_expect(c.levels == 3 && c.dims[1] == LS_DIM_REPLICATE && c.dims[2] == both && c.class_of[0] && !c.class_of[1]);
    cr_assert_eq(ls_batch_contract(&f.batch, &l, LS_DIM_REPLICATE, 4, &f.arena, &c, NULL), LS_OK);
    cr_expect(c.levels == 2 && c.dims[1] == LS_DIM_REPLICATE);
    cr_assert_eq(ls_batch_contract(&f.batch, &l, LS_DIM_SHARD, 4, &f.arena, &c, &err), LS_EINPUT);
    f.batch.execution = LS_EXEC_MODALITY_UNIFORM;
    f.batch.uniform = &f.model.condition[2].modality, f.batch.uniforms = 1;
    cr_assert_eq(ls_batch_contract(&f.batch, &l, both, 4, &f.arena, &c, NULL), LS_OK);
    cr_expect_str_eq(c.name, "uniform: audio");
    cr_expect(c.class_of[0][0] == c.class_of[0][1] && c.class_of[0][2] == c.class_of[0][3] && c.class_of[0][0] != c.class_of[0][2]);
    f.batch.execution = LS_EXEC_AT_LEAST_ONE;
    cr_assert_eq(ls_batch_contract(&f.batch, &l, both, 4, &f.arena, &c, NULL), LS_OK);
    cr_expect(c.extra == LS_CONTRACT_AT_LEAST_ONE && c.media == 0xe);
    cr_assert_eq(ls_batch_contract(&f.batch, &l, 0, 1, &f.arena, &c, NULL), LS_OK);
    cr_expect(c.levels == 1 && c.dims[0] == 0 && !c.class_of[0]);
    f.batch.samples = 1;
    cr_assert_eq(ls_batch_letters(&f.batch, f.names, &f.arena, &l, NULL), LS_OK);
    cr_assert_eq(ls_batch_contract(&f.batch, &l, both, 4, &f.arena, &c, &err), LS_EINPUT);
    close_fixture(&f);
}

Test(contract, tables_follow_the_schedule)
{
    struct fixture f;
    open_fixture(&f);
    struct ls_sample sample[] = { { .text = 5 }, { .images = 1 }, { .text = 6 } };
    uint32_t table[] = { 0, 1, 1, 2 };
    f.batch.sample = sample, f.batch.samples = 3, f.batch.microbatches = 2, f.batch.steps = 2;
    f.batch.execution = LS_EXEC_TABLE, f.batch.table = table, f.batch.rows = 2, f.batch.columns = 2;
    struct ls_letters l;
    struct ls_contract c;
    struct ls_error err = { 0 };
    cr_assert_eq(ls_batch_letters(&f.batch, f.names, &f.arena, &l, NULL), LS_OK);
    cr_assert_eq(ls_batch_contract(&f.batch, &l, LS_DIM_SHARD, 2, &f.arena, &c, NULL), LS_OK);
    uint32_t want[] = { 0, 1, 1, 0, 1, 1, 0, 1, 1, 0, 1, 1 }; /* the step end takes letter 1, the first with media */
    cr_assert_eq(c.rows, 6);
    cr_expect(memcmp(c.table, want, sizeof want) == 0);
    enum ls_round_kind kinds[] = { LS_ROUND_MICRO, LS_ROUND_EVAL, LS_ROUND_MICRO, LS_ROUND_STEP, LS_ROUND_EVAL };
    f.batch.schedule = kinds, f.batch.rounds = 5, f.batch.steps = 1;
    cr_assert_eq(ls_batch_contract(&f.batch, &l, LS_DIM_SHARD, 2, &f.arena, &c, NULL), LS_OK);
    uint32_t with_eval[] = { 0, 1, 1, 0, 1, 0, 1, 1, 1, 0 };
    cr_assert_eq(c.rows, 5);
    cr_expect(memcmp(c.table, with_eval, sizeof with_eval) == 0);
    uint32_t each[] = { 0, 1, 1, 1, 0, 0, 1, 0 }; /* micro, eval, micro, eval */
    f.batch.table = each, f.batch.rows = 4;
    cr_assert_eq(ls_batch_contract(&f.batch, &l, LS_DIM_SHARD, 2, &f.arena, &c, NULL), LS_OK);
    uint32_t each_want[] = { 0, 1, 1, 1, 0, 0, 1, 1, 1, 0 };
    cr_expect(memcmp(c.table, each_want, sizeof each_want) == 0);
    f.batch.rows = 3;
    cr_assert_eq(ls_batch_contract(&f.batch, &l, LS_DIM_SHARD, 2, &f.arena, &c, &err), LS_EINPUT);
    cr_expect_str_eq(err.text, "'table' has 3 rows, but 'microbatches' is 2");
    cr_assert_eq(ls_batch_contract(&f.batch, &l, LS_DIM_SHARD, 3, &f.arena, &c, &err), LS_EINPUT);
    cr_expect_str_eq(err.text, "'table' has 2 columns, but 'dp_size' is 3");
    cr_assert_eq(ls_batch_contract(&f.batch, &l, LS_DIM_SHARD, 0, &f.arena, &c, &err), LS_EINPUT);
    f.batch.microbatches = 0;
    cr_assert_eq(ls_batch_contract(&f.batch, &l, LS_DIM_SHARD, 2, &f.arena, &c, &err), LS_EINPUT);
    close_fixture(&f);
}

Test(driver, rounds_without_a_batch_take_one_letter)
{
    struct fixture f;
    open_fixture(&f);
    struct ls_sample sample[] = { { .text = 5 }, { .images = 1 } };
    f.batch.sample = sample, f.batch.samples = 2;
    struct ls_letters l;
    struct ls_rounds rounds;
    struct ls_driver driver;
    cr_assert_eq(ls_batch_letters(&f.batch, f.names, &f.arena, &l, NULL), LS_OK);
    cr_assert_eq(ls_batch_driver(&f.batch, &f.arena, &rounds, &driver, NULL), LS_OK);
    ls_batch_restrict(&l, &rounds, &f.arena, &driver);
    cr_assert_eq(driver.nodes, 2);
    cr_expect_null(driver.node[0].allowed);
    cr_expect_eq(*driver.node[1].allowed, 2);
    cr_expect_str_eq(driver.node[0].name, "microbatch 0");
    cr_expect_str_eq(driver.node[1].name, "step end");
    close_fixture(&f);
}
