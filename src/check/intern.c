#include "check/intern.h"

#include "base/arena.h"
#include "base/hash.h"

#include <stdlib.h>
#include <string.h>

static uint64_t hash_of(const uint32_t *word, size_t count)
{
    return ls_hash(word, count * sizeof *word, count);
}

const uint32_t *ls_intern_at(const struct ls_intern *x, uint32_t id, size_t *count)
{
    size_t first = id ? x->end.at[id - 1] : 0;
    *count = x->end.at[id] - first;
    return x->word.at ? x->word.at + first : NULL;
}

static void grow(struct ls_intern *x)
{
    free(x->slot);
    x->room = x->room ? 2 * x->room : 64;
    x->slot = calloc(x->room, sizeof *x->slot);
    if (!x->slot)
        ls_out_of_memory(x->room * sizeof *x->slot);
    for (uint32_t id = 0; id < x->end.count; id++) {
        size_t count;
        const uint32_t *word = ls_intern_at(x, id, &count);
        size_t at = hash_of(word, count) & (x->room - 1);
        while (x->slot[at])
            at = (at + 1) & (x->room - 1);
        x->slot[at] = id + 1;
    }
}

uint32_t ls_intern_put(struct ls_intern *x, const uint32_t *word, size_t count)
{
    if (2 * (x->end.count + 1) > x->room)
        grow(x);
    size_t at = hash_of(word, count) & (x->room - 1);
    for (; x->slot[at]; at = (at + 1) & (x->room - 1)) {
        size_t have;
        const uint32_t *old = ls_intern_at(x, x->slot[at] - 1, &have);
        if (have == count && (count == 0 || memcmp(old, word, count * sizeof *word) == 0))
            return x->slot[at] - 1;
    }
    /* The list may be part of the storage that is about to move. */
    size_t inside = x->word.at && word >= x->word.at && word < x->word.at + x->word.count ? (size_t)(word - x->word.at) : SIZE_MAX;
    ls_reserve(&x->word, count);
    if (inside != SIZE_MAX)
        word = x->word.at + inside;
    if (count)
        memcpy(x->word.at + x->word.count, word, count * sizeof *word);
    x->word.count += count;
    ls_push(&x->end, x->word.count);
    x->slot[at] = (uint32_t)x->end.count;
    return (uint32_t)(x->end.count - 1);
}

void ls_intern_release(struct ls_intern *x)
{
    ls_vec_release(&x->word);
    ls_vec_release(&x->end);
    free(x->slot);
    *x = (struct ls_intern){ 0 };
}

static int compare(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

size_t ls_words_sort(uint32_t *word, size_t count)
{
    size_t kept = 0;
    if (count > 1)
        qsort(word, count, sizeof *word, compare);
    for (size_t i = 0; i < count; i++)
        if (kept == 0 || word[kept - 1] != word[i])
            word[kept++] = word[i];
    return kept;
}
