#include "base/vec.h"

#include "base/arena.h"

#include <stdlib.h>
#include <string.h>

void *ls_vec_grow(void *at, size_t *room, size_t need, size_t item_bytes)
{
    size_t next = *room ? *room * 2 : 8;
    if (next < need)
        next = need;
    void *out = realloc(at, ls_mul_size(next, item_bytes));
    if (!out)
        ls_out_of_memory(next * item_bytes);
    *room = next;
    return out;
}

void ls_vec_free(void **at, size_t *count, size_t *room)
{
    void *block;
    memcpy(&block, at, sizeof block); /* *at has another pointer type in the caller */
    free(block);
    block = NULL;
    memcpy(at, &block, sizeof block);
    *count = *room = 0;
}
