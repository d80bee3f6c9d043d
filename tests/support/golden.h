/* tests/support/golden.h -- runs the lockstep binary and compares what it says with a committed file.
 *
 * A case is the file tests/golden/cases/NAME.txt: the arguments, the exit status, stdout and stderr. LS_GOLDEN=write writes it
 * anew; review reads the diff. The program runs in the project's root with NO_COLOR=1, its stdin empty, for 60 s at most.
 *
 * What may differ between two right runs is replaced, and nothing else:
 *   - a decimal number before " ns", " us", " ms" or " s" becomes <time> (unit included)
 *   - the value of the JSON key "seconds" becomes <time>
 *   - the line number in a name src/....c:NUMBER becomes <line>
 *   - the project's root becomes <root> */
#ifndef LS_TESTS_GOLDEN_H
#define LS_TESTS_GOLDEN_H

#include "base/str.h"

#include <stdbool.h>

struct golden_run { int status; struct ls_str out, err; };

/* `args` is split at spaces; 'single quotes' keep them. Status 128 + n: killed by signal n. */
void golden_run(const char *binary, const char *root, const char *args, struct golden_run *run);
void golden_release(struct golden_run *run);
void golden_normalise(struct ls_str *text, const char *root);
/* True if the case is equal, or was written. Otherwise *why says where they differ. */
bool golden_check(const char *binary, const char *root, const char *name, const char *args, struct ls_str *why);

#endif
