/* src/base/vec.h -- growable arrays as plain structs: LS_VEC(struct ls_op) ops = { 0 };
 *
 * Items move when the vector grows: keep indices, not pointers. Out of memory ends the process, as in arena.h. */
#ifndef LS_BASE_VEC_H
#define LS_BASE_VEC_H

#include <stddef.h>

#define LS_VEC(type) struct { type *at; size_t count, room; }

/* Appends one item by value. */
#define ls_push(v, ...)                                                                            \
    do {                                                                                           \
        ls_reserve((v), 1);                                                                        \
        (v)->at[(v)->count++] = (__VA_ARGS__);                                                     \
    } while (0)
/* Makes room for `more` items. */
#define ls_reserve(v, more)                                                                        \
    ((v)->count + (more) > (v)->room                                                               \
         ? (void)((v)->at = ls_vec_grow((v)->at, &(v)->room, (v)->count + (more), sizeof *(v)->at)) \
         : (void)0)
#define ls_vec_release(v) ls_vec_free((void **)&(v)->at, &(v)->count, &(v)->room)

void *ls_vec_grow(void *at, size_t *room, size_t need, size_t item_bytes);
void ls_vec_free(void **at, size_t *count, size_t *room);

#endif
