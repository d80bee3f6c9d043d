/* src/base/arena.h -- memory that is released all at once.
 *
 * A growing arena: blocks from malloc, never moved, so pointers stay valid until the arena is rewound or released.
 * Allocation never returns NULL: out of host memory, or over `limit_bytes`, ends the process through ls_out_of_memory with
 * exit status LS_EBACKEND: no caller could do better. Input is bounded before it is stored, so bad input never gets here.
 *   units   bytes; every pointer is aligned to 16 */
#ifndef LS_BASE_ARENA_H
#define LS_BASE_ARENA_H

#include "base/error.h"

#include <stddef.h>

struct ls_arena_block;
struct ls_arena { struct ls_arena_block *head; size_t bytes, limit_bytes; };
struct ls_arena_mark { struct ls_arena_block *head; size_t used, bytes; };

void ls_arena_init(struct ls_arena *a, size_t limit_bytes); /* limit 0: none */
void ls_arena_release(struct ls_arena *a);                  /* frees everything; the arena is empty and usable again */
struct ls_arena_mark ls_arena_mark(const struct ls_arena *a);
void ls_arena_rewind(struct ls_arena *a, struct ls_arena_mark mark); /* frees what was taken since */

void *ls_arena_alloc(struct ls_arena *a, size_t bytes); /* zeroed */
void *ls_arena_copy(struct ls_arena *a, const void *from, size_t bytes);
char *ls_arena_str(struct ls_arena *a, const char *text);
char *ls_arena_strn(struct ls_arena *a, const char *text, size_t length);
char *ls_arena_printf(struct ls_arena *a, const char *format, ...) LS_PRINTF(2, 3);

#define LS_NEW(arena, type, count) ((type *)ls_arena_alloc((arena), ls_mul_size((count), sizeof(type))))
_Noreturn void ls_out_of_memory(size_t bytes); /* the one place of the library that prints and exits */
size_t ls_mul_size(size_t a, size_t b); /* a * b; dies on overflow */

#endif
