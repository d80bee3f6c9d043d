#include "yaml/write.h"

#include <stdio.h>
#include <string.h>

const struct ls_yaml_node *ls_yaml_new_scalar(struct ls_arena *a, const char *text, bool quoted)
{
    struct ls_yaml_node *n = LS_NEW(a, struct ls_yaml_node, 1);
    *n = (struct ls_yaml_node){ .kind = LS_YAML_SCALAR, .quoted = quoted, .text = ls_arena_str(a, text) };
    return n;
}

const struct ls_yaml_node *ls_yaml_new_uint(struct ls_arena *a, uint64_t value)
{
    char text[24];
    snprintf(text, sizeof text, "%llu", (unsigned long long)value);
    return ls_yaml_new_scalar(a, text, false);
}

const struct ls_yaml_node *ls_yaml_new_list(struct ls_arena *a, const struct ls_yaml_node *const *item, size_t count)
{
    struct ls_yaml_node *n = LS_NEW(a, struct ls_yaml_node, 1);
    *n = (struct ls_yaml_node){ .kind = LS_YAML_LIST, .count = count, .item = ls_arena_copy(a, item, count * sizeof *item) };
    return n;
}

const struct ls_yaml_node *ls_yaml_new_map(struct ls_arena *a)
{
    struct ls_yaml_node *n = LS_NEW(a, struct ls_yaml_node, 1);
    n->kind = LS_YAML_MAP;
    return n;
}

const struct ls_yaml_node *ls_yaml_with(struct ls_arena *a, const struct ls_yaml_node *map, const char *path,
                                        const struct ls_yaml_node *value)
{
    size_t length = strcspn(path, ".");
    size_t count = map && map->kind == LS_YAML_MAP ? map->count : 0, at = count;
    for (size_t i = 0; i < count; i++)
        if (strlen(map->pair[i].key->text) == length && strncmp(map->pair[i].key->text, path, length) == 0)
            at = i;
    if (path[length] == '.') {
        if (!value && at == count)
            return map;
        value = ls_yaml_with(a, at < count ? map->pair[at].value : NULL, path + length + 1, value);
    }
    struct ls_yaml_pair *pair = LS_NEW(a, struct ls_yaml_pair, count + 1);
    size_t n = 0;
    for (size_t i = 0; i < count; i++)
        if (i != at)
            pair[n++] = map->pair[i];
        else if (value)
            pair[n++] = (struct ls_yaml_pair){ map->pair[i].key, value };
    if (at == count && value)
        pair[n++] = (struct ls_yaml_pair){ ls_yaml_new_scalar(a, ls_arena_strn(a, path, length), false), value };
    struct ls_yaml_node *out = LS_NEW(a, struct ls_yaml_node, 1);
    *out = map && map->kind == LS_YAML_MAP ? *map : (struct ls_yaml_node){ .kind = LS_YAML_MAP };
    out->pair = pair;
    out->count = n;
    return out;
}

/* Plain scalars of these characters only read back as themselves whatever stands around them. */
static bool plain(const struct ls_yaml_node *n)
{
    if (n->quoted || !n->text[0])
        return false;
    if (strchr("-?:.*&!|>'\"%@`", n->text[0]) && !(n->text[0] == '-' && n->text[1] >= '0' && n->text[1] <= '9'))
        return false;
    return strspn(n->text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./+") == strlen(n->text);
}

/* Characters that the reader refuses as they are, or takes for line breaks: C1 controls, U+2028, U+2029, the byte order mark,
 * U+FFFE and U+FFFF. Every other one above ASCII stands for itself. */
static bool needs_escape(uint32_t c)
{
    return (c >= 0x80 && c < 0xa0) || c == 0x2028 || c == 0x2029 || c == 0xfeff || c == 0xfffe || c == 0xffff;
}

static void write_quoted(const char *text, struct ls_str *out)
{
    ls_str_add(out, "\"");
    const char *end = text + strlen(text);
    for (const char *s = text; s < end;) {
        size_t n = ls_utf8_length(s, (size_t)(end - s));
        unsigned char first = (unsigned char)*s;
        uint32_t c = n <= 1 ? first : first & (0xffu >> (n + 1));
        for (size_t i = 1; i < n; i++)
            c = c << 6 | ((unsigned char)s[i] & 0x3fu);
        if (c == '"' || c == '\\')
            ls_str_printf(out, "\\%c", (int)c);
        else if (c == '\n')
            ls_str_add(out, "\\n");
        else if (c < 0x20 || c == 0x7f || n == 0)
            ls_str_printf(out, "\\x%02x", c);
        else if (needs_escape(c))
            ls_str_printf(out, "\\u%04x", c);
        else
            ls_str_addn(out, s, n);
        s += n ? n : 1;
    }
    ls_str_add(out, "\"");
}

static void write_scalar(const struct ls_yaml_node *n, struct ls_str *out)
{
    if (ls_yaml_is_null(n))
        ls_str_add(out, "null");
    else if (plain(n))
        ls_str_add(out, n->text);
    else
        write_quoted(n->text, out);
}

enum { SIMPLE_KEY_BYTES = 250 }; /* YAML ends a key before ':' at 1024 characters; each takes four at most when escaped */

/* A key is its text: `~` and `null` are two keys, so neither may be written as the other. */
static void write_key(const struct ls_yaml_node *n, struct ls_str *out)
{
    bool explicit_key = strlen(n->text) > SIMPLE_KEY_BYTES;
    if (explicit_key)
        ls_str_add(out, "? ");
    if (plain(n) && !ls_yaml_is_null(n))
        ls_str_add(out, n->text);
    else
        write_quoted(n->text, out);
    if (explicit_key)
        ls_str_add(out, " ");
}

static void write_flow(const struct ls_yaml_node *n, struct ls_str *out)
{
    switch (n->kind) {
    case LS_YAML_SCALAR:
        write_scalar(n, out);
        return;
    case LS_YAML_LIST:
        ls_str_add(out, "[");
        for (size_t i = 0; i < n->count; i++) {
            ls_str_add(out, i ? ", " : "");
            write_flow(n->item[i], out);
        }
        ls_str_add(out, "]");
        return;
    case LS_YAML_MAP:
        ls_str_add(out, "{");
        for (size_t i = 0; i < n->count; i++) {
            ls_str_add(out, i ? ", " : "");
            write_key(n->pair[i].key, out);
            ls_str_add(out, ": ");
            write_flow(n->pair[i].value, out);
        }
        ls_str_add(out, "}");
        return;
    }
}

enum { FLOW_COLUMNS = 100 };

static void write_block(const struct ls_yaml_node *n, size_t indent, struct ls_str *out)
{
    struct ls_str line = { 0 };
    write_flow(n, &line);
    bool one_line = n->kind == LS_YAML_SCALAR || n->count == 0 || (indent && line.length + 2 * indent <= FLOW_COLUMNS);
    if (one_line) {
        ls_str_add(out, " ");
        ls_str_add(out, ls_str_text(&line));
        ls_str_add(out, "\n");
    }
    ls_str_release(&line);
    if (one_line)
        return;
    if (indent)
        ls_str_add(out, "\n");
    for (size_t i = 0; i < n->count; i++) {
        for (size_t k = 0; k < indent; k++)
            ls_str_add(out, "  ");
        if (n->kind == LS_YAML_LIST) {
            ls_str_add(out, "-");
            write_block(n->item[i], indent + 1, out);
        } else {
            write_key(n->pair[i].key, out);
            if (strlen(n->pair[i].key->text) > SIMPLE_KEY_BYTES) {
                ls_str_add(out, "\n");
                for (size_t k = 0; k < indent; k++)
                    ls_str_add(out, "  ");
            }
            ls_str_add(out, ":");
            write_block(n->pair[i].value, indent + 1, out);
        }
    }
}

void ls_yaml_write(const struct ls_yaml_node *n, struct ls_str *out)
{
    if (n->kind == LS_YAML_SCALAR || n->count == 0) {
        write_flow(n, out);
        ls_str_add(out, "\n");
        return;
    }
    write_block(n, 0, out);
}
