#include "base/arena.h"

#include "base/error.h"

#include <assert.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FIRST_BLOCK_BYTES = 4096, LARGEST_BLOCK_BYTES = 1 << 22 };

struct ls_arena_block {
    struct ls_arena_block *next;
    size_t size, used;
    _Alignas(16) unsigned char data[];
};

_Noreturn void ls_out_of_memory(size_t bytes)
{
    fprintf(stderr, "lockstep: out of memory (%zu bytes asked for)\n", bytes);
    exit(LS_EBACKEND);
}

size_t ls_mul_size(size_t a, size_t b)
{
    size_t product;
    if (__builtin_mul_overflow(a, b, &product))
        ls_out_of_memory(SIZE_MAX);
    return product;
}

void ls_arena_init(struct ls_arena *a, size_t limit_bytes)
{
    *a = (struct ls_arena){ .limit_bytes = limit_bytes };
}

struct ls_arena_mark ls_arena_mark(const struct ls_arena *a)
{
    return (struct ls_arena_mark){ a->head, a->head ? a->head->used : 0, a->bytes };
}

void ls_arena_rewind(struct ls_arena *a, struct ls_arena_mark mark)
{
    while (a->head != mark.head) {
        assert(a->head && "mark is not of this arena");
        struct ls_arena_block *next = a->head->next;
        free(a->head);
        a->head = next;
    }
    if (a->head)
        a->head->used = mark.used;
    a->bytes = mark.bytes;
}

void ls_arena_release(struct ls_arena *a)
{
    ls_arena_rewind(a, (struct ls_arena_mark){ 0 });
}

void *ls_arena_alloc(struct ls_arena *a, size_t bytes)
{
    if (bytes > SIZE_MAX / 2)
        ls_out_of_memory(bytes);
    size_t need = (bytes + 15) & ~(size_t)15;
    struct ls_arena_block *b = a->head;
    if (!b || b->size - b->used < need) {
        size_t size = b ? b->size * 2 : FIRST_BLOCK_BYTES;
        if (size > LARGEST_BLOCK_BYTES)
            size = LARGEST_BLOCK_BYTES;
        if (size < need)
            size = need;
        b = malloc(sizeof *b + size);
        if (!b)
            ls_out_of_memory(bytes);
        *b = (struct ls_arena_block){ .next = a->head, .size = size };
        a->head = b;
    }
    void *out = b->data + b->used;
    b->used += need;
    a->bytes += need;
    if (a->limit_bytes && a->bytes > a->limit_bytes)
        ls_out_of_memory(bytes);
    memset(out, 0, need);
    return out;
}

void *ls_arena_copy(struct ls_arena *a, const void *from, size_t bytes)
{
    void *out = ls_arena_alloc(a, bytes);
    if (bytes)
        memcpy(out, from, bytes);
    return out;
}

char *ls_arena_strn(struct ls_arena *a, const char *text, size_t length)
{
    char *out = ls_arena_alloc(a, length + 1);
    if (length)
        memcpy(out, text, length);
    return out;
}

char *ls_arena_str(struct ls_arena *a, const char *text)
{
    return ls_arena_strn(a, text, strlen(text));
}

char *ls_arena_printf(struct ls_arena *a, const char *format, ...)
{
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    int length = vsnprintf(NULL, 0, format, args);
    va_end(args);
    assert(length >= 0);
    char *out = ls_arena_alloc(a, (size_t)length + 1);
    vsnprintf(out, (size_t)length + 1, format, again);
    va_end(again);
    return out;
}
