/* src/check/intern.h -- lists of words, each distinct list kept once. Ids are dense from 0 in order of first use. */
#ifndef LS_CHECK_INTERN_H
#define LS_CHECK_INTERN_H

#include "base/vec.h"

#include <stdint.h>

typedef LS_VEC(uint32_t) ls_word_vec;
struct ls_intern { ls_word_vec word; LS_VEC(size_t) end; uint32_t *slot; size_t room; };

uint32_t ls_intern_put(struct ls_intern *x, const uint32_t *word, size_t count); /* `word` may lie inside x */
/* Valid until the next put. */
const uint32_t *ls_intern_at(const struct ls_intern *x, uint32_t id, size_t *count);
static inline size_t ls_intern_count(const struct ls_intern *x) { return x->end.count; }
void ls_intern_release(struct ls_intern *x);

/* Sorts and drops repeats; returns how many are left. */
size_t ls_words_sort(uint32_t *word, size_t count);

#endif
