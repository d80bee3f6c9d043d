/* The audit of every real recipe, with all verdicts, at several world sizes: against the committed table, which holds the reason of each
 * row, and against `import recipe` and `check`. LS_GOLDEN=write renews the table, and needs time for all of it. */
#include "auditing.h"
#include "campaign.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const uint64_t worlds[] = { 0, 8, 64 };
enum { WORLDS = sizeof worlds / sizeof *worlds };

int main(void)
{
    struct campaign c = campaign_open();
    struct auditing a;
    struct audit_sum sum = { 0 };
    uint64_t seed;
    size_t differ = 0;
    const char *golden = getenv("LS_GOLDEN");
    const bool write = golden && strcmp(golden, "write") == 0;
    if (!auditing_open(&a)) {
        printf("skipped: no recipes at ../shared/data/recipes\n");
        return 0;
    }
    struct ls_str line = { 0 }, why = { 0 };
    /* First every recipe at the first size; a seed beyond the last begins again. */
    for (size_t done = 0; done < a.paths * WORLDS && campaign_next(&c, &seed); done++) {
        size_t i = (size_t)((seed - 1) % (a.paths * WORLDS)), recipe = i % a.paths;
        const uint64_t world = worlds[i / a.paths];
        ls_str_clear(&line);
        ls_str_clear(&why);
        if (!auditing_row(&a, recipe, world, !write, &sum, &line, &why)) {
            printf("seed %" PRIu64 ": %s, %" PRIu64 " ranks (0: auto):\n%s", seed, a.path[recipe], world, ls_str_text(&why));
            differ++;
        }
        fflush(stdout);
        if (write && line.length && !auditing_write(&a, ls_str_text(&line)))
            return 1;
    }
    printf("%zu rows of %zu recipes: %zu judged, %zu without a verdict; %zu imported and checked to the same; %zu repairs checked, %zu rows where none "
           "was found; %zu differ\n", sum.rows, a.paths, sum.judged, sum.without, sum.imported, sum.repaired, sum.no_repair, differ);
    campaign_close(&c, "audited rows");
    ls_str_release(&line);
    ls_str_release(&why);
    auditing_close(&a);
    return differ ? 1 : 0;
}
