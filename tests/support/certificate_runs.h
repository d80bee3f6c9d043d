/* tests/support/certificate_runs.h -- the system that a certificate speaks of, run by brute force. */
#ifndef LS_TESTS_CERTIFICATE_RUNS_H
#define LS_TESTS_CERTIFICATE_RUNS_H

#include "check/certificate.h"

/* Does some run of at most 4 replicas and 3 rounds fail? *runs counts them. */
bool certificate_fails(const struct ls_certificate *c, uint64_t seed, size_t *runs);

#endif
