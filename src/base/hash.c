#include "base/hash.h"

#include <xxhash.h>

uint64_t ls_hash(const void *data, size_t bytes, uint64_t seed)
{
    return XXH3_64bits_withSeed(data, bytes, seed);
}
