/* tests/fuzz/fuzz.h -- the entry point that a target fuzz_NAME.c defines; its seeds are the files of corpus/NAME/.
 *
 * ctest replays the seeds with replay.c, with any compiler. With LS_FUZZ (preset fuzz) each target is also a libFuzzer program:
 *     build/fuzz/tests/fuzz_yaml NEW_INPUTS tests/fuzz/corpus/yaml
 * An input that found a bug stays in the corpus. */
#ifndef LS_TESTS_FUZZ_H
#define LS_TESTS_FUZZ_H

#include <stddef.h>
#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#endif
