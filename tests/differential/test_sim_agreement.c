/* The simulator against check: the run that check found to fail ends in the same verdict at the same op, and what check calls safe
 * runs to its end, whatever is drawn. The whole catalogue, and random scenarios; campaign_sim_agreement.c goes on. */
#include "sim_agreement.h"

#include "cli/files.h"

#include <criterion/criterion.h>
#include <stdio.h>

enum { SCENARIOS = 500, SEEDS = 2, CATALOGUE_SEEDS = 1 };

Test(sim_agreement, catalogue)
{
    struct ls_arena arena;
    ls_paths paths = { 0 };
    bool folder;
    struct ls_error err = { 0 };
    struct sim_agreement a = { 0 };
    ls_arena_init(&arena, 0);
    cr_assert_eq(ls_paths_add(&paths, &arena, LS_SOURCE_DIR "/scenarios", &folder, &err), LS_OK, "%s", err.text);
    for (size_t i = 0; i < paths.count; i++) {
        struct ls_str why = { 0 };
        cr_expect(sim_agreement_file(&a, paths.at[i], LS_SOURCE_DIR, CATALOGUE_SEEDS, &why), "%s: %s", paths.at[i], ls_str_text(&why));
        ls_str_release(&why);
    }
    printf("simulator and check on the catalogue: %zu files, %zu failing runs equal, %zu drawn runs complete, %zu drawn runs fail where check "
           "refutes, %zu refused by set-up\n", paths.count, a.witnesses, a.complete, a.failing, a.refused);
    cr_expect(a.witnesses > 20 && a.complete > 50);
    ls_vec_release(&paths);
    ls_arena_release(&arena);
}

Test(sim_agreement, random_scenarios)
{
    struct sim_agreement a = { 0 };
    for (uint64_t seed = 1; seed <= SCENARIOS; seed++) {
        struct ls_str why = { 0 };
        cr_assert(sim_agreement_random(&a, seed, LS_SOURCE_DIR, SEEDS, &why), "seed %llu: %s", (unsigned long long)seed, ls_str_text(&why));
        ls_str_release(&why);
    }
    printf("simulator and check, seeds 1 to %d: %zu failing runs equal, %zu drawn runs complete, %zu drawn runs fail where check refutes, "
           "%zu refused by set-up\n", SCENARIOS, a.witnesses, a.complete, a.failing, a.refused);
    cr_expect(a.witnesses > SCENARIOS / 5 && a.complete > SCENARIOS / 5);
}
