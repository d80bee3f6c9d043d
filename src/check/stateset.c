#include "check/stateset.h"

#include "base/arena.h"

#include <sys/mman.h>

enum { FIRST_ROOM = 512 };

static uint64_t *table_open(size_t bytes)
{
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED)
        ls_out_of_memory(bytes);
    if (bytes >= (size_t)4 << 20)
        (void)madvise(at, bytes, MADV_HUGEPAGE); /* a hint: refused on systems without huge pages */
    return at;
}

size_t ls_stateset_bytes(const struct ls_stateset *s)
{
    return s->room * s->words * sizeof *s->slot;
}

void ls_stateset_init(struct ls_stateset *s, size_t words)
{
    *s = (struct ls_stateset){ .room = FIRST_ROOM, .words = words, .shift = 64 - 9 };
    s->slot = table_open(ls_stateset_bytes(s));
}

void ls_stateset_release(struct ls_stateset *s)
{
    if (s->slot)
        munmap(s->slot, ls_stateset_bytes(s));
    *s = (struct ls_stateset){ 0 };
}

void ls_stateset_grow(struct ls_stateset *s, size_t keys)
{
    struct ls_stateset next = *s;
    next.count = 0;
    while (ls_stateset_full(&next, keys)) {
        next.room *= 2;
        next.shift--;
    }
    if (next.room == s->room)
        return;
    next.slot = table_open(ls_mul_size(next.room, s->words * sizeof *s->slot));
    for (size_t i = 0; i < s->room; i++) {
        const uint64_t *key = s->slot + i * s->words;
        if (key[0])
            ls_stateset_put(&next, key, ls_stateset_hash(key, s->words), s->words);
    }
    ls_stateset_release(s);
    *s = next;
}

bool ls_stateset_add(struct ls_stateset *s, const uint64_t *key)
{
    if (ls_stateset_full(s, 1))
        ls_stateset_grow(s, s->count + 1);
    return ls_stateset_put(s, key, ls_stateset_hash(key, s->words), s->words);
}
