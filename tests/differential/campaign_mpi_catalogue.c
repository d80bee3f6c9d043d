/* Every scenario of the catalogue, in LS_PROCESSES processes (default 2) under mpirun: witnesses fail as predicted, safe plans complete,
 * and each process sees what one alone sees. LS_SEED is the first file's number; a whole round goes on until the files end or time is up. */
#include "campaign.h"
#include "cli/files.h"
#include "replaying.h"
#include "together.h"

#include <stdio.h>

int main(void)
{
    struct ls_world *w = together_open();
    struct campaign c = campaign_open();
    struct replaying t = { .world = w };
    struct ls_str why = { 0 };
    struct ls_arena arena;
    struct ls_error err = { 0 };
    ls_paths files = { 0 };
    bool folder;
    ls_arena_init(&arena, 0);
    if (ls_paths_add(&files, &arena, LS_SOURCE_DIR "/scenarios", &folder, &err) != LS_OK)
        ls_str_add(&why, err.text);
    together_agree(w, files.count > 0, &why);
    /* Process 0 says when time is up. */
    for (uint64_t seed, next; (next = together_number(w, campaign_next(&c, &seed) && seed <= files.count ? seed : 0)) != 0;) {
        bool ok = replaying_file(&t, files.at[next - 1], 1 << 20, REPLAYING_NONE, &why);
        together_agree(w, ok, &why);
    }
    replaying_print(&t, "catalogue in several processes");
    printf("%zu files in all\n", files.count);
    ls_str_release(&why);
    ls_vec_release(&files);
    ls_arena_release(&arena);
    campaign_close(&c, "mpi catalogue");
    return together_end(w);
}
