/* tests/support/spin.h -- runs SPIN on a Promela model: spin -a, the C compiler, pan. */
#ifndef LS_TESTS_SPIN_H
#define LS_TESTS_SPIN_H

#include <stdbool.h>
#include <stddef.h>

struct spin_result {
    size_t states, transitions, errors, depth;
    double seconds;          /* wall time of pan alone */
    double megabytes;        /* pan's own figure */
};
bool spin_installed(void);
const char *spin_version(void); /* "Spin Version 6.5.2 ..."; "" if it is not installed */
/* `cflags` for pan.c, e.g. "-O2 -DSAFETY -DNOREDUCE"; `pan` its options, e.g. "-m100000 -c0". False, with the reason in `why`,
 * when a step fails or the search was not exhaustive. */
bool spin_run(const char *model, const char *cflags, const char *pan, struct spin_result *out, char *why, size_t why_room);

#endif
