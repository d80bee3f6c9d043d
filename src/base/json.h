/* src/base/json.h -- writes JSON into a text buffer; commas, escapes and nesting are kept right. */
#ifndef LS_BASE_JSON_H
#define LS_BASE_JSON_H

#include "base/str.h"

#include <stdbool.h>
#include <stdint.h>

struct ls_json { struct ls_str *out; unsigned depth; bool first[64]; bool key; bool pretty; };

void ls_json_init(struct ls_json *j, struct ls_str *out, bool pretty);
void ls_json_object(struct ls_json *j);
void ls_json_array(struct ls_json *j);
void ls_json_end_object(struct ls_json *j);
void ls_json_end_array(struct ls_json *j);
void ls_json_key(struct ls_json *j, const char *name);
void ls_json_text(struct ls_json *j, const char *text); /* NULL writes null; invalid UTF-8 becomes U+FFFD */
void ls_json_uint(struct ls_json *j, uint64_t value);
void ls_json_int(struct ls_json *j, int64_t value);
void ls_json_real(struct ls_json *j, double value);     /* shortest text that reads back equal; NaN, inf: null */
void ls_json_bool(struct ls_json *j, bool value);
void ls_json_null(struct ls_json *j);

/* A key and its value. */
void ls_json_add_text(struct ls_json *j, const char *key, const char *value);
void ls_json_add_uint(struct ls_json *j, const char *key, uint64_t value);
void ls_json_add_real(struct ls_json *j, const char *key, double value);
void ls_json_add_bool(struct ls_json *j, const char *key, bool value);

#endif
