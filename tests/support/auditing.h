/* tests/support/auditing.h -- the audit of the real recipes, against a committed table and against the other way to a verdict.
 *
 * The recipes lie beside the project, at ../shared/data/recipes, and may be absent. The table is tests/data/audit/verdicts.tsv: a line per
 * recipe and world size, with the reason beside each verdict. The other way is what a user does by hand: `import recipe`, then `check` of
 * the scenario; and each repair is written into the scenario and checked again. */
#ifndef LS_TESTS_AUDITING_H
#define LS_TESTS_AUDITING_H

#include "audit/audit.h"
#include "base/vec.h"

#define AUDIT_RECIPES LS_SOURCE_DIR "/../shared/data/recipes"

struct judged_plan { const char *plan, *repair; bool known; enum ls_verdict uniform, mixed; };
struct auditing {
    struct ls_arena arena;          /* of what lives as long as this */
    struct ls_inventories known;
    struct ls_audit_memo *memo;
    const char **path; size_t paths; /* recipes below the folder, sorted, relative to it */
    const char **line; size_t lines; /* of the table */
    LS_VEC(struct judged_plan) judged;
};
struct audit_sum { size_t rows, judged, without, imported, repaired, no_repair; };

bool auditing_open(struct auditing *a); /* false: the recipes are not there */
void auditing_close(struct auditing *a);
/* One recipe with so many ranks (0: auto). `out` gets the table's line. False: `why` says what is wrong, in the difference to the table
 * (unless `table` is false), to import and check, or in a repair. */
bool auditing_row(struct auditing *a, size_t recipe, uint64_t world, bool table, struct audit_sum *sum, struct ls_str *out, struct ls_str *why);

bool auditing_write(struct auditing *a, const char *line); /* replaces the line of that recipe and world size, or adds it, in the file too */

#endif
