/* src/base/str.h -- a text buffer that grows, and interned strings.
 *
 * Interned ids are dense from 0; id 0 is always the empty string. Two strings are equal iff their ids are. */
#ifndef LS_BASE_STR_H
#define LS_BASE_STR_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ls_str { char *text; size_t length, room; }; /* text is NUL-terminated, or NULL while empty */

void ls_str_release(struct ls_str *s);
void ls_str_clear(struct ls_str *s); /* keeps the room */
void ls_str_add(struct ls_str *s, const char *text);
void ls_str_addn(struct ls_str *s, const char *text, size_t length);
void ls_str_printf(struct ls_str *s, const char *format, ...) LS_PRINTF(2, 3);
const char *ls_str_text(const struct ls_str *s); /* never NULL */

/* Bytes of the valid UTF-8 character at `text` (1 to 4), or 0 if there is none within `room` bytes. */
size_t ls_utf8_length(const char *text, size_t room);

struct ls_arena;
struct ls_names; /* the interner */
struct ls_names *ls_names_open(void);
void ls_names_close(struct ls_names *n); /* accepts NULL */
uint32_t ls_name_id(struct ls_names *n, const char *text);
uint32_t ls_name_idn(struct ls_names *n, const char *text, size_t length);
bool ls_name_find(const struct ls_names *n, const char *text, uint32_t *id);
const char *ls_name_text(const struct ls_names *n, uint32_t id); /* valid until close */
size_t ls_names_count(const struct ls_names *n);

/* Glob over dotted names: `*` matches any run of characters without a dot, `**` any run, `?` one character but a dot. */
bool ls_glob(const char *pattern, const char *name);
/* Damerau-Levenshtein distance, for suggestions; stops counting above `most`. */
size_t ls_edit_distance(const char *a, const char *b, size_t most);

#endif
