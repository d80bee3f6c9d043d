#include "base/json.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void ls_json_init(struct ls_json *j, struct ls_str *out, bool pretty)
{
    *j = (struct ls_json){ .out = out, .pretty = pretty };
    j->first[0] = true;
}

static void new_line(struct ls_json *j)
{
    if (!j->pretty)
        return;
    ls_str_add(j->out, "\n");
    for (unsigned i = 0; i < j->depth; i++)
        ls_str_add(j->out, "  ");
}

static void lead(struct ls_json *j)
{
    if (j->key) {
        j->key = false;
        return;
    }
    if (!j->first[j->depth])
        ls_str_add(j->out, ",");
    j->first[j->depth] = false;
    if (j->depth)
        new_line(j);
}

static void open(struct ls_json *j, const char *bracket)
{
    lead(j);
    ls_str_add(j->out, bracket);
    assert(j->depth + 1 < sizeof j->first / sizeof j->first[0]);
    j->first[++j->depth] = true;
}

static void close(struct ls_json *j, const char *bracket)
{
    assert(j->depth && !j->key);
    bool empty = j->first[j->depth--];
    if (!empty)
        new_line(j);
    ls_str_add(j->out, bracket);
}

void ls_json_object(struct ls_json *j) { open(j, "{"); }
void ls_json_array(struct ls_json *j) { open(j, "["); }
void ls_json_end_object(struct ls_json *j) { close(j, "}"); }
void ls_json_end_array(struct ls_json *j) { close(j, "]"); }

static void quoted(struct ls_str *out, const char *text)
{
    ls_str_add(out, "\"");
    const unsigned char *end = (const unsigned char *)text + strlen(text);
    for (const unsigned char *s = (const unsigned char *)text; *s;) {
        size_t n = ls_utf8_length((const char *)s, (size_t)(end - s));
        if (n == 0) {
            ls_str_add(out, "\\ufffd");
            s++;
        } else if (n > 1) {
            ls_str_addn(out, (const char *)s, n);
            s += n;
        } else {
            if (*s == '"' || *s == '\\')
                ls_str_printf(out, "\\%c", *s);
            else if (*s == '\n')
                ls_str_add(out, "\\n");
            else if (*s == '\t')
                ls_str_add(out, "\\t");
            else if (*s < 0x20 || *s == 0x7f)
                ls_str_printf(out, "\\u%04x", *s);
            else
                ls_str_addn(out, (const char *)s, 1);
            s++;
        }
    }
    ls_str_add(out, "\"");
}

void ls_json_key(struct ls_json *j, const char *name)
{
    lead(j);
    quoted(j->out, name);
    ls_str_add(j->out, j->pretty ? ": " : ":");
    j->key = true;
}

void ls_json_text(struct ls_json *j, const char *text)
{
    lead(j);
    if (text)
        quoted(j->out, text);
    else
        ls_str_add(j->out, "null");
}

void ls_json_uint(struct ls_json *j, uint64_t value)
{
    lead(j);
    ls_str_printf(j->out, "%llu", (unsigned long long)value);
}

void ls_json_int(struct ls_json *j, int64_t value)
{
    lead(j);
    ls_str_printf(j->out, "%lld", (long long)value);
}

void ls_json_real(struct ls_json *j, double value)
{
    lead(j);
    if (!isfinite(value)) {
        ls_str_add(j->out, "null");
        return;
    }
    char text[40];
    for (int digits = 6; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, value);
        if (strtod(text, NULL) == value)
            break;
    }
    ls_str_add(j->out, text);
}

void ls_json_bool(struct ls_json *j, bool value)
{
    lead(j);
    ls_str_add(j->out, value ? "true" : "false");
}

void ls_json_null(struct ls_json *j)
{
    lead(j);
    ls_str_add(j->out, "null");
}

void ls_json_add_text(struct ls_json *j, const char *key, const char *value)
{
    ls_json_key(j, key);
    ls_json_text(j, value);
}

void ls_json_add_uint(struct ls_json *j, const char *key, uint64_t value)
{
    ls_json_key(j, key);
    ls_json_uint(j, value);
}

void ls_json_add_real(struct ls_json *j, const char *key, double value)
{
    ls_json_key(j, key);
    ls_json_real(j, value);
}

void ls_json_add_bool(struct ls_json *j, const char *key, bool value)
{
    ls_json_key(j, key);
    ls_json_bool(j, value);
}

