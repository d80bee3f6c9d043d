/* Random scenarios with a thread per host thread and stream; a plain program, since Criterion does not start under ThreadSanitizer. */
#include "replaying.h"

#include <stdio.h>
#include <stdlib.h>

int main(void)
{
    const char *campaign = getenv("LS_CAMPAIGN");
    uint64_t scenarios = campaign && *campaign ? strtoull(campaign, NULL, 10) : 100;
    struct replaying t = { 0 };
    struct ls_str why = { 0 };
    for (uint64_t seed = 1; seed <= scenarios; seed++)
        if (!replaying_seed(&t, seed, 0, &why)) {
            printf("seed %llu: %s\n", (unsigned long long)seed, ls_str_text(&why));
            return EXIT_FAILURE;
        }
    replaying_print(&t, "random scenarios, a thread per queue");
    ls_str_release(&why);
    return t.seen[LS_SAFE] && t.seen[LS_MISMATCH] ? EXIT_SUCCESS : EXIT_FAILURE;
}
