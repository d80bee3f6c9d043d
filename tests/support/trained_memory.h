/* tests/support/trained_memory.h -- what a rank of a training run held. */
#ifndef LS_TESTS_TRAINED_MEMORY_H
#define LS_TESTS_TRAINED_MEMORY_H

#include "base/str.h"
#include "ir/program.h"

/* Trains scenarios/NAME.yaml for two steps; the peak of each category over rank 0's run. False, and *why. */
bool trained_memory(const char *name, uint64_t peak[LS_CATEGORY_COUNT], struct ls_str *why);

#endif
