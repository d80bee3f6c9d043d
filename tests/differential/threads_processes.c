/* Random scenarios, and random jobs at every level, spread over processes that are threads, each with its ranks as coroutines or in threads of their own: every process sees what
 * one process alone sees. A plain program, for ThreadSanitizer. */
#include "replaying.h"

#include <stdio.h>
#include <stdlib.h>

int main(void)
{
    const char *campaign = getenv("LS_CAMPAIGN");
    uint64_t scenarios = campaign && *campaign ? strtoull(campaign, NULL, 10) : 60;
    struct replaying t = { .spread = true };
    struct ls_str why = { 0 };
    for (uint64_t seed = 1; seed <= scenarios; seed++)
        if (!replaying_seed(&t, seed, seed % 4 ? 1 : 0, &why)) {
            printf("seed %llu: %s\n", (unsigned long long)seed, ls_str_text(&why));
            return EXIT_FAILURE;
        }
    replaying_print(&t, "random scenarios in several processes");
    struct replaying jobs = { .spread = true };
    for (uint64_t seed = 1; seed <= scenarios; seed++)
        if (!replaying_job(&jobs, seed, &why)) {
            printf("job %llu: %s\n", (unsigned long long)seed, ls_str_text(&why));
            return EXIT_FAILURE;
        }
    replaying_print(&jobs, "random jobs in several processes");
    ls_str_release(&why);
    bool scenarios_told = t.seen[LS_SAFE] && t.seen[LS_MISMATCH] && t.messages > 1000;
    bool jobs_told = jobs.seen[LS_SAFE] && jobs.seen[LS_HANG] && jobs.bounded && jobs.messages > 500;
    return scenarios_told && jobs_told ? EXIT_SUCCESS : EXIT_FAILURE;
}
