/* What is predicted is what happens: random scenarios and the catalogue, executed with data. LS_CAMPAIGN=N runs N random ones. */
#include "replaying.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static size_t scenarios(size_t quick)
{
    const char *campaign = getenv("LS_CAMPAIGN");
    return campaign && *campaign ? (size_t)strtoull(campaign, NULL, 10) : quick;
}

Test(replay, random_scenarios_under_seeded_schedules)
{
    struct replaying t = { 0 };
    struct ls_str why = { 0 };
    /* Three roundings to bf16, one way; a rank without rows leaves its step out, or is alone in taking it; a faulty program says more than
     * its buffers hold; a scaler leaves out the step, not the division of gradients of experts before it; a step after a backward that is
     * not the last one, which waits for nothing: an all-reduce; a cast behind a reduce-scatter. */
    static const uint64_t found[] = { 31101406, 77001485, 1054, 1156, 78001234, 183, 2001454, 15647 };
    for (size_t i = 0; i < sizeof found / sizeof *found; i++)
        cr_assert(replaying_seed(&t, found[i], 1, &why), "seed %llu: %s", (unsigned long long)found[i], ls_str_text(&why));
    for (uint64_t seed = 1; seed <= scenarios(500); seed++)
        cr_assert(replaying_seed(&t, seed, 2, &why), "seed %llu: %s", (unsigned long long)seed, ls_str_text(&why));
    /* Not vacuous: every kind of outcome occurred, and data was looked at. */
    cr_assert(t.seen[LS_SAFE] && t.seen[LS_MISMATCH] && t.seen[LS_MISPAIRING] && t.seen[LS_LOST_GRADIENT] && t.seen[LS_ERROR]);
    cr_assert(t.gradients > 1000 && t.elements > 1000 && t.faults > 10);
    replaying_print(&t, "random scenarios, two schedules each");
    ls_str_release(&why);
}

/* Jobs without a model: what kernels that are resident, and accesses without an order, do. */
Test(replay, random_jobs_at_every_level)
{
    struct replaying t = { 0 };
    struct ls_str why = { 0 };
    /* Ops parked behind those of a thread that never went on; two threads that use one number for their groups; a group that another op ends. */
    static const uint64_t found[] = { 2001244, 3000026, 3001647, 3003966, 2002327 };
    for (size_t i = 0; i < sizeof found / sizeof *found; i++)
        cr_assert(replaying_job(&t, found[i], &why), "seed %llu: %s", (unsigned long long)found[i], ls_str_text(&why));
    for (uint64_t seed = 1; seed <= scenarios(600); seed++)
        cr_assert(replaying_job(&t, seed, &why), "seed %llu: %s", (unsigned long long)seed, ls_str_text(&why));
    replaying_print(&t, "random jobs");
    cr_assert(t.seen[LS_RACE] > 100 && t.seen[LS_SAFE] > 100 && t.seen[LS_HANG] > 100 && t.seen[LS_MISMATCH] > 10);
    cr_assert(t.races > 1000 && t.bounded > 1000 && t.orders > 10 && t.unsupported < t.schedules / 100);
    ls_str_release(&why);
}

/* The same jobs dealt out to processes: sends that are buffered, slots and queues between them; also as NCCL would pair. */
Test(replay, random_jobs_in_several_processes)
{
    struct replaying t = { .spread = true };
    struct ls_str why = { 0 };
    for (uint64_t seed = 1; seed <= scenarios(200); seed++)
        cr_assert(replaying_job(&t, seed, &why), "seed %llu: %s", (unsigned long long)seed, ls_str_text(&why));
    replaying_print(&t, "random jobs in several processes");
    cr_assert(t.seen[LS_SAFE] > 50 && t.seen[LS_HANG] > 10 && t.seen[LS_MISMATCH] > 10 && t.seen[LS_RACE] > 10);
    cr_assert(t.bounded > 300 && t.orders && t.spreads > 500 && t.messages > 5000);
    ls_str_release(&why);
}

/* Partial sums of three microbatches, added before the all_reduce over replicas; small reshard groups; dtypes that differ between
 * units and between gathering and reducing. Random scenarios meet these seldom. */
Test(replay, data_of_rare_plans)
{
    static const char *const plan[] = {
        "  - {modules: [\"model.language_model.layers.*\"]}\n  - {modules: [\"\"]}\n",
        "  - {modules: [\"model.language_model.layers.*\"], reshard: 2}\n  - {modules: [\"\"], reshard: 2}\n",
        "  - {modules: [\"model.language_model.layers.*\"], dtypes: {param: bf16, reduce: f32}}\n  - {modules: [\"\"], dtypes: {reduce: f16}}\n",
    };
    static const char *const accumulation[] = { "{}", "{all_reduce: last}", "{gradient_sync: last}", "{reshard_after_backward: last}" };
    struct replaying t = { 0 };
    for (size_t p = 0; p < 3; p++)
        for (size_t a = 0; a < 4; a++)
            for (size_t hybrid = 0; hybrid < 2; hybrid++)
                for (size_t v = 0; v < 2; v++) {
                    struct ls_str text = { 0 }, why = { 0 };
                    ls_str_printf(&text, "lockstep: 1\nname: rare\nmodel: {inventory: models/toy_vlm.yaml}\n"
                                         "distributed: {dp_size: %d%s}\nunits:\n%sruntime: {fsdp2: {version: \"%s\"}}\n"
                                         "batch:\n  microbatches: 3\n  steps: 2\n  samples: [{text: 8, images: 1}]\n"
                                         "  execution: rank_uniform\n  accumulation: %s\n", hybrid ? 8 : 4, hybrid ? ", dp_replicate_size: 2" : "", plan[p],
                                  v ? "2.15" : "2.12", accumulation[a]);
                    cr_assert(replaying_text(&t, text.text, LS_SOURCE_DIR "/scenarios/rare.yaml", &why), "%s\n%s", text.text, ls_str_text(&why));
                    ls_str_release(&text);
                }
    cr_assert_eq(t.seen[LS_SAFE], t.schedules);
    replaying_print(&t, "rare plans");
}

enum { PARTS = 4 }; /* of the catalogue, side by side */

static void walk(const char *folder, struct replaying *t, size_t part, size_t *files)
{
    struct dirent **list = NULL;
    int n = scandir(folder, &list, NULL, alphasort);
    cr_assert(n >= 0, "%s", folder);
    for (int i = 0; i < n; i++) {
        char path[1024];
        struct stat st;
        const char *name = list[i]->d_name, *dot = strrchr(name, '.');
        snprintf(path, sizeof path, "%s/%s", folder, name);
        bool skip = name[0] == '.' || strcmp(name, "models") == 0 || strcmp(name, "platforms") == 0 || stat(path, &st) != 0;
        if (!skip && S_ISDIR(st.st_mode)) {
            walk(path, t, part, files);
        } else if (!skip && dot && strcmp(dot, ".yaml") == 0 && (*files)++ % PARTS == part) {
            struct ls_str why = { 0 };
            cr_expect(replaying_file(t, path, 1 << 20, getenv("LS_CAMPAIGN") ? REPLAYING_ALL : REPLAYING_SMALL, &why), "%s", ls_str_text(&why));
            ls_str_release(&why);
        }
        free(list[i]);
    }
    free(list);
}

/* Unsafe scenarios fail as predicted, from their witnesses; safe ones and every repair complete. Models that do not fit run
 * without data: order and bytes only. */
static void catalogue(size_t part)
{
    struct replaying t = { 0 };
    size_t files = 0;
    walk(LS_SOURCE_DIR "/scenarios", &t, part, &files);
    cr_assert(files > 500);
    /* Whatever check calls unsafe was seen to fail that way, gradients included; nothing but a refusal at set-up is left out. */
    static const enum ls_verdict kind[] = { LS_HANG, LS_MISMATCH, LS_MISPAIRING, LS_LOST_GRADIENT, LS_WRONG_SCALE, LS_RACE, LS_ERROR };
    for (size_t i = 0; i < sizeof kind / sizeof *kind; i++)
        cr_expect(t.seen[kind[i]] >= t.files[kind[i]], "%s", ls_verdict_name(kind[i]));
    cr_expect(t.files[LS_SAFE] > 50 && t.files[LS_HANG] && t.files[LS_MISMATCH] && t.files[LS_MISPAIRING] && t.files[LS_LOST_GRADIENT] && t.files[LS_RACE] && t.files[LS_ERROR]);
    cr_expect(t.left_out[REPLAYING_UNSEEN] == 0);
    cr_expect(t.left_out[REPLAYING_UNDECIDED] == 0 && t.left_out[REPLAYING_REFUSED] == t.files[LS_SETUP_ERROR]);
    replaying_print(&t, "a fourth of the catalogue");
}

Test(replay, catalogue_1) { catalogue(0); }
Test(replay, catalogue_2) { catalogue(1); }
Test(replay, catalogue_3) { catalogue(2); }
Test(replay, catalogue_4) { catalogue(3); }
