#include "base/str.h"

#include "base/arena.h"
#include "base/hash.h"
#include "base/vec.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void ls_str_release(struct ls_str *s)
{
    free(s->text);
    *s = (struct ls_str){ 0 };
}

void ls_str_clear(struct ls_str *s)
{
    s->length = 0;
    if (s->text)
        s->text[0] = 0;
}

static void reserve(struct ls_str *s, size_t more)
{
    if (s->length + more + 1 > s->room)
        s->text = ls_vec_grow(s->text, &s->room, s->length + more + 1, 1);
}

void ls_str_addn(struct ls_str *s, const char *text, size_t length)
{
    reserve(s, length);
    if (length)
        memcpy(s->text + s->length, text, length);
    s->length += length;
    s->text[s->length] = 0;
}

void ls_str_add(struct ls_str *s, const char *text)
{
    ls_str_addn(s, text, strlen(text));
}

void ls_str_printf(struct ls_str *s, const char *format, ...)
{
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    int length = vsnprintf(NULL, 0, format, args);
    va_end(args);
    assert(length >= 0);
    reserve(s, (size_t)length);
    vsnprintf(s->text + s->length, (size_t)length + 1, format, again);
    va_end(again);
    s->length += (size_t)length;
}

const char *ls_str_text(const struct ls_str *s)
{
    return s->text ? s->text : "";
}

size_t ls_utf8_length(const char *text, size_t room)
{
    const unsigned char *s = (const unsigned char *)text;
    size_t n = 0;
    if (room == 0)
        return 0;
    if (s[0] < 0x80)
        return 1;
    if (s[0] >= 0xc2 && s[0] < 0xe0)
        n = 2;
    else if (s[0] >= 0xe0 && s[0] < 0xf0)
        n = 3;
    else if (s[0] >= 0xf0 && s[0] < 0xf5)
        n = 4;
    if (n > room)
        return 0;
    for (size_t i = 1; i < n; i++)
        if ((s[i] & 0xc0) != 0x80)
            return 0;
    /* Overlong forms, surrogates, beyond U+10FFFF. */
    if ((s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xed && s[1] > 0x9f) || (s[0] == 0xf0 && s[1] < 0x90) ||
        (s[0] == 0xf4 && s[1] > 0x8f))
        return 0;
    return n;
}

/* Open addressing over ids + 1; the strings live in an arena, so their addresses are stable. */
struct ls_names {
    struct ls_arena arena;
    LS_VEC(const char *) text;
    uint32_t *slot;
    size_t slots;
};

struct ls_names *ls_names_open(void)
{
    struct ls_names *n = calloc(1, sizeof *n);
    if (!n)
        ls_out_of_memory(sizeof *n);
    ls_arena_init(&n->arena, 0);
    ls_name_id(n, "");
    return n;
}

void ls_names_close(struct ls_names *n)
{
    if (!n)
        return;
    ls_arena_release(&n->arena);
    ls_vec_release(&n->text);
    free(n->slot);
    free(n);
}

static size_t probe(const struct ls_names *n, const char *text, size_t length)
{
    size_t i = (size_t)ls_hash(text, length, 0) & (n->slots - 1);
    while (n->slot[i]) {
        const char *have = n->text.at[n->slot[i] - 1];
        if (strncmp(have, text, length) == 0 && have[length] == 0)
            break;
        i = (i + 1) & (n->slots - 1);
    }
    return i;
}

static void grow(struct ls_names *n)
{
    size_t slots = n->slots ? n->slots * 2 : 64;
    free(n->slot);
    n->slot = calloc(slots, sizeof *n->slot);
    if (!n->slot)
        ls_out_of_memory(slots * sizeof *n->slot);
    n->slots = slots;
    for (size_t i = 0; i < n->text.count; i++)
        n->slot[probe(n, n->text.at[i], strlen(n->text.at[i]))] = (uint32_t)i + 1;
}

uint32_t ls_name_idn(struct ls_names *n, const char *text, size_t length)
{
    if ((n->text.count + 1) * 2 > n->slots)
        grow(n);
    size_t i = probe(n, text, length);
    if (!n->slot[i]) {
        ls_push(&n->text, ls_arena_strn(&n->arena, text, length));
        n->slot[i] = (uint32_t)n->text.count;
    }
    return n->slot[i] - 1;
}

uint32_t ls_name_id(struct ls_names *n, const char *text)
{
    return ls_name_idn(n, text, strlen(text));
}

bool ls_name_find(const struct ls_names *n, const char *text, uint32_t *id)
{
    size_t i = probe(n, text, strlen(text));
    if (!n->slot[i])
        return false;
    *id = n->slot[i] - 1;
    return true;
}

const char *ls_name_text(const struct ls_names *n, uint32_t id)
{
    assert(id < n->text.count);
    return n->text.at[id];
}

size_t ls_names_count(const struct ls_names *n)
{
    return n->text.count;
}

bool ls_glob(const char *pattern, const char *name)
{
    /* Two pointers with one remembered star each: linear for `*` alone; `**` may restart it, so keep both. */
    const char *p = pattern, *s = name, *star = NULL, *star_at = NULL, *deep = NULL, *deep_at = NULL;
    for (;;) {
        if (p[0] == '*' && p[1] == '*') {
            p += 2;
            deep = p, deep_at = s, star = NULL;
        } else if (p[0] == '*') {
            p += 1;
            star = p, star_at = s;
        } else if (*s && (*p == *s || (*p == '?' && *s != '.'))) {
            p++, s++;
        } else if (!*s && !*p) {
            return true;
        } else if (star && *star_at && *star_at != '.') {
            s = ++star_at, p = star;
        } else if (deep && *deep_at) {
            s = ++deep_at, p = deep, star = NULL;
        } else {
            return false;
        }
    }
}

size_t ls_edit_distance(const char *a, const char *b, size_t most)
{
    size_t la = strlen(a), lb = strlen(b);
    if (la > 63 || lb > 63 || (la > lb ? la - lb : lb - la) > most)
        return most + 1;
    size_t row[3][64]; /* rows i-2, i-1, i of the table */
    for (size_t j = 0; j <= lb; j++)
        row[0][j] = j;
    for (size_t i = 1; i <= la; i++) {
        size_t *now = row[i % 3], *before = row[(i + 2) % 3], *two = row[(i + 1) % 3];
        now[0] = i;
        for (size_t j = 1; j <= lb; j++) {
            size_t best = before[j - 1] + (a[i - 1] != b[j - 1]);
            if (before[j] + 1 < best)
                best = before[j] + 1;
            if (now[j - 1] + 1 < best)
                best = now[j - 1] + 1;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] && two[j - 2] + 1 < best)
                best = two[j - 2] + 1;
            now[j] = best;
        }
    }
    return row[la % 3][lb];
}
