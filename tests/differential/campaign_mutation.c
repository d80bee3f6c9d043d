/* The mutations of test_mutation.c: first those of every scenario below scenarios/, then of random ones, seed after seed, each seed also as a DDP plan.
 *
 *     LS_MUTATIONS      changes per kind and plan (default 3)
 *     LS_MUTATIONS_OPS  plans of which a rank has more operations are left out (default 600): the naive machine takes cubic time
 *     LS_MUTATIONS_RANDOM  any value: only the random ones */
#include "campaign.h"
#include "mutation.h"

#include "base/vec.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static size_t wished(const char *name, size_t otherwise)
{
    const char *wish = getenv(name);
    return wish ? strtoul(wish, NULL, 10) : otherwise;
}

static bool mutate_folder(struct mutations *m, const char *folder, unsigned per_kind, size_t ops_max, struct ls_str *why)
{
    struct dirent **entry;
    bool ok = true;
    int n = scandir(folder, &entry, NULL, alphasort);
    for (int i = 0; i < n; i++) {
        struct ls_str path = { 0 };
        size_t length = strlen(entry[i]->d_name);
        ls_str_printf(&path, "%s/%s", folder, entry[i]->d_name);
        if (ok && entry[i]->d_type == DT_DIR && entry[i]->d_name[0] != '.')
            ok = mutate_folder(m, ls_str_text(&path), per_kind, ops_max, why);
        else if (ok && length > 5 && strcmp(entry[i]->d_name + length - 5, ".yaml") == 0 && !strstr(folder, "/models") && !strstr(folder, "/platforms"))
            ok = mutations_of_file(m, ls_str_text(&path), 1, per_kind, ops_max, why);
        ls_str_release(&path);
        free(entry[i]);
    }
    if (n >= 0)
        free(entry);
    printf("%s: %zu plans so far, %zu changes caught\n", folder + strlen(LS_SOURCE_DIR) + 1, m->bases, mutations_caught(m));
    fflush(stdout);
    return ok;
}

int main(void)
{
    struct campaign c = campaign_open();
    struct mutations m = { 0 };
    struct ls_str why = { 0 };
    unsigned per_kind = (unsigned)wished("LS_MUTATIONS", 3);
    size_t ops_max = wished("LS_MUTATIONS_OPS", 600);
    bool ok = getenv("LS_MUTATIONS_RANDOM") || mutate_folder(&m, LS_SOURCE_DIR "/scenarios", per_kind, ops_max, &why);
    if (ok)
        printf("catalogue: %zu plans, %zu changes caught\n", m.bases, mutations_caught(&m));
    for (uint64_t seed; ok && campaign_next(&c, &seed);)
        ok = mutations_of_seed(&m, seed, false, per_kind, ops_max, &why) && mutations_of_seed(&m, seed, true, per_kind, ops_max, &why);
    if (!ok)
        printf("%s", ls_str_text(&why));
    mutations_print(&m);
    ls_str_release(&why);
    campaign_close(&c, "mutation");
    return ok ? 0 : 1;
}
