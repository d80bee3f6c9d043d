/* Typed reads of nodes: the second half of yaml.h. */
#include "base/str.h"
#include "yaml/yaml.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SHOWN = 60 }; /* bytes of a wrong value that an error repeats */

static char fold(char c)
{
    return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c == '-' ? '_' : c;
}

/* `DP-Size` is near `dp_size` though five characters differ. */
static void fold_into(char *out, size_t room, const char *text)
{
    size_t i = 0;
    for (; text[i] && i + 1 < room; i++)
        out[i] = fold(text[i]);
    out[i] = 0;
}

const char *ls_nearest(const char *text, const char *const *names)
{
    char have[72], want[72];
    const char *best = NULL;
    size_t best_distance = 0;
    fold_into(have, sizeof have, text);
    for (; *names; names++) {
        fold_into(want, sizeof want, *names);
        size_t a = strlen(have), b = strlen(want), longer = a > b ? a : b, most = longer / 3 ? longer / 3 : 1;
        size_t distance = ls_edit_distance(have, want, most);
        if (distance <= most && distance < longer && (!best || distance < best_distance))
            best = *names, best_distance = distance;
    }
    return best;
}

static const char *kind_text(const struct ls_yaml_node *n)
{
    switch (n->kind) {
    case LS_YAML_LIST: return "a list";
    case LS_YAML_MAP: return "a mapping";
    case LS_YAML_SCALAR: break;
    }
    return ls_yaml_is_null(n) ? "empty" : "a single value";
}

/* Names of known keys or choices for an error, as far as they fit. */
static void list_names(struct ls_str *out, const char *const *names)
{
    for (size_t i = 0; names[i]; i++) {
        if (out->length > 200) {
            ls_str_add(out, ", ...");
            return;
        }
        ls_str_printf(out, "%s%s", i ? ", " : "", names[i]);
    }
}

static enum ls_code wrong(const struct ls_yaml_node *n, const char *name, const char *wanted, struct ls_error *err)
{
    if (n->kind != LS_YAML_SCALAR || ls_yaml_is_null(n))
        return ls_fail(err, LS_EINPUT, n->at, "'%s' is %s, not %s", name, kind_text(n), wanted);
    return ls_fail(err, LS_EINPUT, n->at, "'%s' is '%.*s', not %s", name, SHOWN, n->text, wanted);
}

bool ls_yaml_is_null(const struct ls_yaml_node *n)
{
    if (n->kind != LS_YAML_SCALAR || n->quoted)
        return false;
    const char *t = n->text;
    return !t[0] || strcmp(t, "~") == 0 || strcmp(t, "null") == 0 || strcmp(t, "Null") == 0 || strcmp(t, "NULL") == 0;
}

bool ls_yaml_is_text(const struct ls_yaml_node *n, const char *text)
{
    return n->kind == LS_YAML_SCALAR && strcmp(n->text, text) == 0;
}

enum ls_code ls_yaml_map(const struct ls_yaml_node *n, const char *name, struct ls_error *err)
{
    return n->kind == LS_YAML_MAP ? LS_OK : wrong(n, name, "a mapping", err);
}

enum ls_code ls_yaml_list(const struct ls_yaml_node *n, const char *name, struct ls_error *err)
{
    return n->kind == LS_YAML_LIST ? LS_OK : wrong(n, name, "a list", err);
}

enum ls_code ls_yaml_check_keys(const struct ls_yaml_node *map, const char *what, const char *const *known,
                                struct ls_error *err)
{
    enum ls_code rc = ls_yaml_map(map, what, err);
    for (size_t i = 0; rc == LS_OK && i < map->count; i++) {
        const struct ls_yaml_node *key = map->pair[i].key;
        size_t k = 0;
        while (known[k] && strcmp(known[k], key->text) != 0)
            k++;
        if (known[k])
            continue;
        rc = ls_fail(err, LS_EINPUT, key->at, "unknown key '%.*s' in '%s'", SHOWN, key->text, what);
        const char *near = ls_nearest(key->text, known);
        struct ls_str names = { 0 };
        if (near) {
            ls_hint(err, "did you mean '%s'?", near);
        } else if (known[0]) {
            list_names(&names, known);
            ls_hint(err, "known: %s", ls_str_text(&names));
        }
        ls_str_release(&names);
    }
    return rc;
}

enum ls_code ls_yaml_text(const struct ls_yaml_node *n, const char *name, const char **out, struct ls_error *err)
{
    if (n->kind != LS_YAML_SCALAR || ls_yaml_is_null(n))
        return wrong(n, name, "a text", err);
    *out = n->text;
    return LS_OK;
}

enum ls_code ls_yaml_bool(const struct ls_yaml_node *n, const char *name, bool *out, struct ls_error *err)
{
    static const char *const yes[] = { "true", "True", "TRUE" }, *const no[] = { "false", "False", "FALSE" };
    static const char *const yes_11[] = { "yes", "on", "y", "1" }, *const no_11[] = { "no", "off", "n", "0" };
    if (n->kind == LS_YAML_SCALAR && !n->quoted)
        for (size_t i = 0; i < sizeof yes / sizeof *yes; i++) {
            if (strcmp(n->text, yes[i]) == 0 || strcmp(n->text, no[i]) == 0) {
                *out = strcmp(n->text, yes[i]) == 0;
                return LS_OK;
            }
        }
    enum ls_code rc = wrong(n, name, "true or false", err);
    if (n->kind != LS_YAML_SCALAR)
        return rc;
    char text[8];
    fold_into(text, sizeof text, n->text);
    for (size_t i = 0; i < sizeof yes_11 / sizeof *yes_11; i++) {
        if (strcmp(text, yes_11[i]) == 0 || (n->quoted && strcmp(text, "true") == 0))
            ls_hint(err, "write true");
        if (strcmp(text, no_11[i]) == 0 || (n->quoted && strcmp(text, "false") == 0))
            ls_hint(err, "write false");
    }
    return rc;
}

static size_t digits(const char *text)
{
    return strspn(text, "0123456789");
}

/* Explains spellings that YAML 1.1, YAML 1.2 and Python read differently. */
static void hint_number(const struct ls_yaml_node *n, struct ls_error *err)
{
    const char *t = n->text;
    if (n->kind != LS_YAML_SCALAR || !t[0])
        return;
    size_t d = digits(t);
    if (n->quoted && !t[d])
        ls_hint(err, "remove the quotes");
    else if (t[0] == '0' && (t[1] == 'x' || t[1] == 'o' || t[1] == 'b' || d > 1))
        ls_hint(err, "write it in decimal, without leading zeros");
    else if (d && t[d] == '_')
        ls_hint(err, "write it without underscores");
    else if (d && t[d] == '.' && t[d + 1 + strspn(t + d + 1, "0")] && t[d + 1 + digits(t + d + 1)] == '\0')
        ls_hint(err, "write a whole number");
    else if (d && (t[d] == 'e' || t[d] == 'E' || t[d] == '.'))
        ls_hint(err, "write out all digits");
}

enum ls_code ls_yaml_uint(const struct ls_yaml_node *n, const char *name, uint64_t min, uint64_t max, uint64_t *out,
                          struct ls_error *err)
{
    const char *t = n->kind == LS_YAML_SCALAR && !n->quoted ? n->text : "";
    bool negative = t[0] == '-' && t[1] != '0' && t[1] && !t[1 + digits(t + 1)];
    bool plain = t[0] && !t[digits(t)] && (t[0] != '0' || !t[1]);
    if (!plain && !negative) {
        enum ls_code rc = wrong(n, name, "an integer", err);
        hint_number(n, err);
        return rc;
    }
    errno = 0;
    unsigned long long value = negative ? 0 : strtoull(t, NULL, 10);
    bool over = !negative && errno == ERANGE;
    if (negative || over || value < min || value > max) {
        if (max == UINT64_MAX && !over)
            return ls_fail(err, LS_EINPUT, n->at, "'%s' is %.*s, which is less than %" PRIu64, name, SHOWN, t, min);
        return ls_fail(err, LS_EINPUT, n->at, "'%s' is %.*s, which is not between %" PRIu64 " and %" PRIu64, name,
                       SHOWN, t, min, max);
    }
    *out = value;
    return LS_OK;
}

enum ls_code ls_yaml_real(const struct ls_yaml_node *n, const char *name, double *out, struct ls_error *err)
{
    const char *t = n->kind == LS_YAML_SCALAR && !n->quoted ? n->text : "", *s = t;
    s += *s == '-' || *s == '+';
    const char *whole = s;
    size_t before = digits(s), after = 0;
    s += before;
    if (*s == '.') {
        after = digits(s + 1);
        s += 1 + after;
    }
    bool ok = before + after > 0 && !(before > 1 && whole[0] == '0');
    if (ok && (*s == 'e' || *s == 'E')) {
        s += 1 + (s[1] == '-' || s[1] == '+');
        ok = digits(s) > 0;
        s += digits(s);
    }
    if (!ok || *s) {
        enum ls_code rc = wrong(n, name, "a number", err);
        hint_number(n, err);
        return rc;
    }
    double value = strtod(t, NULL);
    if (!isfinite(value))
        return ls_fail(err, LS_EINPUT, n->at, "'%s' is %.*s, which is too large", name, SHOWN, t);
    *out = value;
    return LS_OK;
}

enum ls_code ls_yaml_choice(const struct ls_yaml_node *n, const char *name, const char *const *names, size_t *out,
                            struct ls_error *err)
{
    if (n->kind == LS_YAML_SCALAR) {
        const char *text = ls_yaml_is_null(n) ? "null" : n->text;
        for (size_t i = 0; names[i]; i++)
            if (strcmp(text, names[i]) == 0) {
                *out = i;
                return LS_OK;
            }
    }
    struct ls_str wanted = { 0 };
    ls_str_add(&wanted, "one of ");
    list_names(&wanted, names);
    enum ls_code rc = wrong(n, name, ls_str_text(&wanted), err);
    const char *near = n->kind == LS_YAML_SCALAR ? ls_nearest(n->text, names) : NULL;
    if (near)
        ls_hint(err, "did you mean '%s'?", near);
    ls_str_release(&wanted);
    return rc;
}
