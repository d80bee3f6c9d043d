/* Safe plans made unsafe by one change: each is caught with the verdict that its kind calls for. campaign_mutation.c goes on. */
#include "mutation.h"

#include <criterion/criterion.h>
#include <stdio.h>

static const char *const files[] = {
    "dummies/full-automodel.yaml", "policies-17/dense-root-uniform.yaml", "uniformity-check/uniform.yaml", "raw/two-comms-same-order.yaml",
    "conditional-tower/b03-dummy-linked.yaml", "conditional-tower/b08-audio-only.yaml", "ddp/mixed-media-find-unused.yaml",
    "../tests/data/mutation/ddp-metric.yaml",
};
/* DDP plans with what few seeds have: a dummy of two modules that is needed. */
static const uint64_t ddp_seeds[] = { 167, 210 };
enum { FILES = sizeof files / sizeof *files, DDP_SEEDS = sizeof ddp_seeds / sizeof *ddp_seeds, SEEDS = 30, OPS = 180, FILE_OPS = 250 };

Test(mutation, every_change_is_caught)
{
    struct mutations m = { 0 };
    struct ls_str why = { 0 };
    for (size_t i = 0; i < FILES; i++) {
        struct ls_str path = { 0 };
        ls_str_printf(&path, "%s/scenarios/%s", LS_SOURCE_DIR, files[i]);
        cr_assert(mutations_of_file(&m, ls_str_text(&path), 1, 1, FILE_OPS, &why), "%s", ls_str_text(&why));
        ls_str_release(&path);
    }
    printf("%zu of %d files are changed\n", m.bases, FILES);
    for (uint64_t seed = 1; seed <= SEEDS; seed++)
        for (int ddp = 0; ddp < 2; ddp++)
            cr_assert(mutations_of_seed(&m, seed, ddp, 1, OPS, &why), "%s", ls_str_text(&why));
    for (size_t i = 0; i < DDP_SEEDS; i++)
        cr_assert(mutations_of_seed(&m, ddp_seeds[i], true, 3, OPS, &why), "%s", ls_str_text(&why));
    mutations_print(&m);
    cr_assert_geq(mutations_caught(&m), 200);
    for (int k = 0; k < MUTATION_KINDS; k++) {
        cr_expect_gt(m.caught[k], 0, "kind %d was never caught", k);
        if (mutation_on_ddp((enum mutation_kind)k))
            cr_expect_gt(m.part_caught[MUTATION_DDP][k], 0, "kind %d was never caught on a DDP plan", k);
        else
            cr_expect_eq(m.part_caught[MUTATION_DDP][k], 0, "kind %d was caught on a DDP plan, which cannot have it", k);
    }
    ls_str_release(&why);
}
