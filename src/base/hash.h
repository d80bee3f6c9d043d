/* src/base/hash.h -- hashing of byte strings (XXH3) word mixing, and the seeded generator. */
#ifndef LS_BASE_HASH_H
#define LS_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

uint64_t ls_hash(const void *data, size_t bytes, uint64_t seed);

/* Mixes one word into a running hash; for short keys built field by field. */
static inline uint64_t ls_hash_mix(uint64_t h, uint64_t v)
{
    h ^= v + 0x9e3779b97f4a7c15u + (h << 6) + (h >> 2);
    h *= 0xff51afd7ed558ccdu;
    return h ^ (h >> 33);
}

/* A small deterministic generator (splitmix64): tests and schedules print its seed. */
static inline uint64_t ls_random(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}
/* Uniform enough in [0, n); 0 < n < 2^32. */
static inline uint64_t ls_random_below(uint64_t *state, uint64_t n)
{
    return ((ls_random(state) >> 32) * n) >> 32;
}

#endif
