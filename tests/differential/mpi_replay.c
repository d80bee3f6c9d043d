/* Random scenarios and jobs, scenarios of the catalogue and trainings, run by several processes under mpirun: each sees what one process alone
 * sees. */
#include "replaying.h"
#include "together.h"

#include <stdio.h>

int main(void)
{
    static const char *const catalogue[] = {
        "conditional-tower/b02-skip", "conditional-tower/b03-dummy-linked", "gradients/b42-ignored-trainable", "raw/unagreed-branch",
        "raw/three-groups-ring", "mixed-media/per-layer", "hsdp/frozen-per-layer-any",
        "races/reduce-input-reused", "raw/two-comms-opposite", "raw/issue-order-free", "expert-parallel/te-experts-moe", "hazards/h9-inner-root-text-last",
    };
    static const char *const trained[] = { "training/gemma3-per-layer-mixed-dummy", "training/ministral3-root-uniform" };
    struct ls_world *w = together_open();
    struct replaying t = { .world = w };
    struct ls_str why = { 0 }, path = { 0 };
    for (uint64_t seed = 1; seed <= 45; seed++) {
        bool ok = replaying_seed(&t, seed, seed % 5 ? 1 : 0, &why);
        if (!ok)
            ls_str_printf(&why, "seed %llu\n", (unsigned long long)seed);
        together_agree(w, ok, &why);
    }
    struct replaying jobs = { .world = w };
    for (uint64_t seed = 1; seed <= 60; seed++) {
        bool ok = replaying_job(&jobs, seed, &why);
        if (!ok)
            ls_str_printf(&why, "job %llu\n", (unsigned long long)seed);
        together_agree(w, ok, &why);
    }
    replaying_print(&jobs, "jobs in several processes");
    for (size_t i = 0; i < sizeof catalogue / sizeof *catalogue; i++) {
        ls_str_clear(&path);
        ls_str_printf(&path, "%s/scenarios/%s.yaml", LS_SOURCE_DIR, catalogue[i]);
        together_agree(w, replaying_file(&t, path.text, 1 << 20, REPLAYING_NONE, &why), &why);
    }
    for (size_t i = 0; i < sizeof trained / sizeof *trained; i++) {
        ls_str_clear(&path);
        ls_str_printf(&path, "%s/scenarios/%s.yaml", LS_SOURCE_DIR, trained[i]);
        together_agree(w, replaying_training(&t, path.text, i == 1, &why), &why);
    }
    replaying_print(&t, "in several processes");
    bool all = t.seen[LS_SAFE] && t.seen[LS_MISMATCH] && t.seen[LS_HANG] && t.seen[LS_LOST_GRADIENT] && t.seen[LS_RACE] && t.together > 8 &&
               jobs.seen[LS_SAFE] && jobs.seen[LS_HANG] && jobs.bounded && jobs.together > 60;
    if (!all)
        ls_str_add(&why, "not every kind of outcome occurred\n");
    together_agree(w, all, &why);
    ls_str_release(&why);
    ls_str_release(&path);
    return together_end(w);
}
