/* src/check/stateset.h -- an exact set of fixed-size keys: open addressing, linear probing, keys stored in place.
 *
 * Keys are `words` 64-bit words whose first word is never 0 (0 marks a free slot). Inlined with a constant `words`, a lookup
 * is a hash, one cache line and a compare. Tables come from mmap with huge pages where the system has them: a large table is
 * read at random, and would miss the TLB on every lookup. */
#ifndef LS_CHECK_STATESET_H
#define LS_CHECK_STATESET_H

#include "base/hash.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct ls_stateset { uint64_t *slot; size_t room, count, words; unsigned shift; }; /* room: a power of two */

void ls_stateset_init(struct ls_stateset *s, size_t words);
void ls_stateset_release(struct ls_stateset *s);
void ls_stateset_grow(struct ls_stateset *s, size_t keys); /* room for so many keys */
size_t ls_stateset_bytes(const struct ls_stateset *s);

static inline uint64_t ls_stateset_hash(const uint64_t *key, size_t words)
{
    uint64_t h = key[0] * 0x9e3779b97f4a7c15u;
    for (size_t i = 1; i < words; i++)
        h = ls_hash_mix(h, key[i]);
    h ^= h >> 32;
    h *= 0xd6e8feb86659fd93u;
    return h;
}
/* The slot where the search for a key of this hash begins: the hash's high bits, so that growing keeps the order. */
static inline uint64_t *ls_stateset_home(const struct ls_stateset *s, uint64_t hash, size_t words)
{
    return s->slot + (size_t)(hash >> s->shift) * words;
}
/* Adds a key; false if it was there. There must be room. */
static inline bool ls_stateset_put(struct ls_stateset *s, const uint64_t *key, uint64_t hash, size_t words)
{
    size_t at = (size_t)(hash >> s->shift);
    for (;; at = (at + 1) & (s->room - 1)) {
        uint64_t *slot = s->slot + at * words;
        if (slot[0] == 0) {
            for (size_t i = 0; i < words; i++)
                slot[i] = key[i];
            s->count++;
            return true;
        }
        bool equal = slot[0] == key[0];
        for (size_t i = 1; i < words && equal; i++)
            equal = slot[i] == key[i];
        if (equal)
            return false;
    }
}
/* Full when more than 5/8 of the slots are taken: probes stay within a cache line on average. */
static inline bool ls_stateset_full(const struct ls_stateset *s, size_t more)
{
    return (s->count + more) * 8 > s->room * 5;
}
bool ls_stateset_add(struct ls_stateset *s, const uint64_t *key); /* grows as needed */

#endif
