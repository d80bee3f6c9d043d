/* tests/support/certificate_valid.h -- a second checker of certificates, beside lockstep-verify.
 *
 * Written from semantics.md and certificate.md on the plain data: ops pair by pair, ranks pair by pair, agents listed level by level. */
#ifndef LS_TESTS_CERTIFICATE_VALID_H
#define LS_TESTS_CERTIFICATE_VALID_H

#include "check/certificate.h"

bool certificate_valid(const struct ls_certificate *c);
/* The step that is listed for these; NULL: none is. */
const struct ls_cert_step *certificate_step(const struct ls_certificate *c, uint32_t state, uint32_t round, uint32_t letter);

#endif
