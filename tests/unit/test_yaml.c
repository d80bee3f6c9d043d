/* The strict YAML reader: positions, refusals, bounds, typed reads, suggestions. */
#include "yaml/yaml.h"

#include "base/str.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static struct ls_arena arena;
static struct ls_error err;

static void setup(void)
{
    ls_arena_init(&arena, 0);
}

static void teardown(void)
{
    ls_arena_release(&arena);
}

TestSuite(yaml, .init = setup, .fini = teardown);

static const struct ls_yaml_node *good(const char *text)
{
    const struct ls_yaml_node *out = NULL;
    enum ls_code rc = ls_yaml_load_text(text, strlen(text), "a.yaml", &arena, &out, &err);
    cr_assert_eq(rc, LS_OK, "%s: %s", text, err.text);
    return out;
}

/* Loading fails at this position with this text; the hint too, unless NULL. */
static void bad_n(const char *text, size_t length, size_t line, size_t column, const char *message, const char *hint)
{
    const struct ls_yaml_node *out = NULL;
    struct ls_arena_mark mark;
    err = (struct ls_error){ 0 };
    ls_arena_str(&arena, "a.yaml"); /* what a failed load may leave: its path */
    mark = ls_arena_mark(&arena);
    cr_assert_eq(ls_yaml_load_text(text, length, "a.yaml", &arena, &out, &err), LS_EINPUT, "accepted: %.60s", text);
    cr_assert_eq(arena.bytes, mark.bytes + 16, "a failed load left %zu bytes", arena.bytes - mark.bytes);
    cr_assert(!out);
    cr_assert(strstr(err.text, message), "'%s' is not in '%s'", message, err.text);
    cr_assert_str_eq(err.input.file, "a.yaml");
    cr_assert(err.input.line == line && err.input.column == column, "at %zu:%zu, not %zu:%zu: %.60s", err.input.line,
              err.input.column, line, column, text);
    if (hint)
        cr_assert_str_eq(err.hint, hint);
}

static void bad(const char *text, size_t line, size_t column, const char *message)
{
    bad_n(text, strlen(text), line, column, message, NULL);
}

static const struct ls_yaml_node *value(const char *text)
{
    struct ls_str s = { 0 };
    ls_str_printf(&s, "k: %s\n", text);
    const struct ls_yaml_node *out = ls_yaml_get(good(ls_str_text(&s)), "k");
    ls_str_release(&s);
    cr_assert(out);
    return out;
}

Test(yaml, tree_and_positions)
{
    const struct ls_yaml_node *root = good("# note\na: 1\nb:\n  - x\n  - {y: 'z', \"\": []}\nc: |\n  two\n  lines\n");
    cr_assert(root->kind == LS_YAML_MAP && root->count == 3);
    cr_assert(root->at.line == 2 && root->at.column == 1);
    cr_assert_str_eq(root->at.file, "a.yaml");
    const struct ls_yaml_node *b = ls_yaml_get(root, "b");
    cr_assert(b->kind == LS_YAML_LIST && b->count == 2);
    cr_assert(b->item[0]->at.line == 4 && b->item[0]->at.column == 5);
    cr_assert(ls_yaml_is_text(b->item[0], "x") && !b->item[0]->quoted);
    const struct ls_yaml_node *z = ls_yaml_get(b->item[1], "y");
    cr_assert(z->quoted && z->at.line == 5 && z->at.column == 9);
    cr_assert_eq(ls_yaml_get(b->item[1], "")->count, 0);
    cr_assert_str_eq(ls_yaml_get(root, "c")->text, "two\nlines\n");
    cr_assert(!ls_yaml_get(root, "d"));
    cr_assert_eq(root->pair[2].key->at.line, 6);
}

Test(yaml, columns_count_characters_not_bytes)
{
    const struct ls_yaml_node *root = good("{\xc3\xa9\xe2\x82\xac: 1, b: 2}");
    cr_assert_eq(ls_yaml_get(root, "b")->at.column, 12);
    bad("a\xc3\xa9\n\xc3\xa9\xff", 2, 2, "UTF-8");
}

Test(yaml, refusals)
{
    bad("", 0, 0, "no YAML document");
    bad("# only a comment\n", 0, 0, "no YAML document");
    bad("---\n", 0, 0, "no YAML document");
    bad("a: 1\n---\nb: 2\n", 2, 1, "second YAML document");
    bad("a: 1\nb: 2\na: 3\n", 3, 1, "key 'a' appears twice");
    bad("a: 1\n'a': 3\n", 2, 1, "key 'a' appears twice");
    bad("'': 1\n\"\": 3\n", 2, 1, "key '' appears twice");
    bad("a: &x {b: 1}\nc:\n  <<: *x\n", 3, 3, "merge keys");
    bad("? [a, b]\n: 1\n", 1, 3, "a key must be a text, not a list");
    bad("? {a: b}\n: 1\n", 1, 3, "a key must be a text, not a mapping");
    bad("?\n: 1\n", 1, 2, "a key is missing");
    bad("a: !!str 5\n", 1, 4, "tags");
    bad("a: !x {b: 1}\n", 1, 4, "tags ('!x')");
    bad("- !y [1]\n", 1, 3, "tags ('!y')");
    bad("a: *b\n", 1, 4, "alias '*b' has no anchor before it");
    bad("a: &b [1, *b]\n", 1, 11, "alias '*b' stands inside its own anchor");
    bad("a: \"x\\0y\"\n", 1, 4, "NUL");
    bad("a: [1, 2\nb: 3\n", 2, 2, "not YAML");
    bad("a: 'x\n", 2, 1, "not YAML");
    bad("a: b: c\n", 1, 5, "not YAML");
    bad("a: @x\n", 1, 4, "not YAML");
    bad_n("a: 1\0b: 2\n", 10, 1, 5, "not YAML", NULL);
    bad_n("a:\n\tb: 1\n", 8, 2, 1, "not YAML", "the line is indented with a tab; YAML takes spaces only");
    bad("a: \x01\n", 1, 4, "not YAML");
}

Test(yaml, many_keys_and_one_twice)
{
    for (size_t n = 2; n < 200; n = n * 3 / 2 + 1) {
        struct ls_str s = { 0 };
        for (size_t i = 0; i < n; i++)
            ls_str_printf(&s, "k%zu: {}\n", i);
        cr_assert_eq(good(ls_str_text(&s))->count, n);
        ls_str_add(&s, "k0: 1\n");
        bad(ls_str_text(&s), n + 1, 1, "key 'k0' appears twice");
        ls_str_release(&s);
    }
    struct ls_str s = { 0 };
    for (size_t i = 0; i < 40; i++)
        ls_str_printf(&s, "k%zu: {}\n", i);
    ls_str_add(&s, "'': 1\n");
    cr_assert_eq(good(ls_str_text(&s))->count, 41);
    ls_str_add(&s, "\"\": 1\n");
    bad(ls_str_text(&s), 42, 1, "key '' appears twice");
    ls_str_release(&s);
}

Test(yaml, aliases_repeat_their_anchor)
{
    const struct ls_yaml_node *root = good("a: &x {p: [1, 2]}\nb: *x\nc: &x 3\nd: *x\n");
    cr_assert_eq(ls_yaml_get(root, "b"), ls_yaml_get(root, "a"));
    cr_assert(ls_yaml_is_text(ls_yaml_get(root, "d"), "3"));
}

Test(yaml, deep_nesting_is_refused)
{
    static const char *const opening[] = { "[", "{a: ", "- ", "? " };
    for (size_t kind = 0; kind < 4; kind++)
        for (size_t depth = 60; depth <= 100000; depth = depth < 70 ? depth + 1 : depth * 8) {
            struct ls_str s = { 0 };
            for (size_t i = 0; i < depth; i++)
                ls_str_add(&s, opening[kind]);
            ls_str_add(&s, "x");
            for (size_t i = 0; i < depth; i++)
                ls_str_add(&s, kind == 0 ? "]" : kind == 1 ? "}" : "");
            const struct ls_yaml_node *out = NULL;
            enum ls_code rc = ls_yaml_load_text(ls_str_text(&s), s.length, "a.yaml", &arena, &out, &err);
            if (kind == 3)
                cr_assert_eq(rc, LS_EINPUT);
            else
                cr_assert_eq(rc, depth < 64 ? LS_OK : LS_EINPUT, "kind %zu depth %zu", kind, depth);
            if (depth == 64 && kind < 2)
                cr_assert(strstr(err.text, "64 levels"), "%s", err.text);
            ls_str_release(&s);
        }
}

Test(yaml, depth_through_aliases_is_counted)
{
    /* Each anchor wraps the one before: level by level, 100 levels in 100 short lines. */
    struct ls_str s = { 0 };
    ls_str_add(&s, "a0: &a0 [1]\n");
    for (int i = 1; i < 100; i++)
        ls_str_printf(&s, "a%d: &a%d [*a%d]\n", i, i, i - 1);
    bad(ls_str_text(&s), 63, 12, "64 levels");
    ls_str_clear(&s);
    /* A shallow anchor after a deep one inherits nothing. */
    ls_str_add(&s, "a: ");
    for (int i = 0; i < 50; i++)
        ls_str_add(&s, "[");
    for (int i = 0; i < 50; i++)
        ls_str_add(&s, "]");
    ls_str_add(&s, "\nb: &b [1]\nc: ");
    for (int i = 0; i < 50; i++)
        ls_str_add(&s, "[");
    ls_str_add(&s, "*b");
    for (int i = 0; i < 50; i++)
        ls_str_add(&s, "]");
    good(ls_str_text(&s));
    ls_str_release(&s);
}

Test(yaml, alias_bombs_are_refused)
{
    struct ls_str s = { 0 };
    ls_str_add(&s, "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
    for (int i = 1; i < 30; i++) {
        ls_str_printf(&s, "a%d: &a%d [", i, i);
        for (int k = 0; k < 10; k++)
            ls_str_printf(&s, "%s*a%d", k ? ", " : "", i - 1);
        ls_str_add(&s, "]\n");
    }
    /* 10 + 100 + ... + 10^6 values fit in 4 M; the second alias of a6 is beyond. */
    const struct ls_yaml_node *out = NULL;
    cr_assert_eq(ls_yaml_load_text(ls_str_text(&s), s.length, "a.yaml", &arena, &out, &err), LS_EINPUT);
    cr_assert(strstr(err.text, "aliases counted in full"), "%s", err.text);
    cr_assert_eq(err.input.line, 7);
    cr_assert_lt(arena.bytes, 100000);
    ls_str_release(&s);
}

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Twice the text takes about twice the time: nothing is quadratic. The bound leaves room for a busy machine. */
Test(yaml, time_is_linear)
{
    static const char *const piece[] = { "k%zu: 1\n",
                                         "k%zu: &a%zu x\n",
                                         "? k%zu\n",
                                         "'k%zu': [[], {}, \"a\\tb\"]\n",
                                         "k%zu: >\n  folded\n\n  text\n",
                                         "#%zu\n",
                                         "k%zu: {a: {b: [c, d, {e: f}]}}\n" };
    for (size_t p = 0; p < sizeof piece / sizeof *piece; p++) {
        double took[2] = { 0, 0 };
        for (size_t round = 0; round < 2; round++) {
            struct ls_str s = { 0 };
            ls_str_add(&s, "first: 1\n");
            for (size_t i = 0; i < (round ? 40000u : 5000u); i++) {
                char line[100];
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
                snprintf(line, sizeof line, piece[p], i, i);
#pragma GCC diagnostic pop
                ls_str_add(&s, line);
            }
            double from = seconds();
            good(ls_str_text(&s));
            took[round] = seconds() - from;
            ls_str_release(&s);
        }
        cr_assert_lt(took[1], 32 * took[0] + 0.5, "'%s': %.3f s, then %.3f s for 8 times the text", piece[p], took[0],
                     took[1]);
    }
}

Test(yaml, files_over_the_limit_are_refused)
{
    size_t length = (64u << 20) + 1;
    char *text = malloc(length);
    cr_assert(text);
    memset(text, ' ', length);
    const struct ls_yaml_node *out = NULL;
    cr_assert_eq(ls_yaml_load_text(text, length, "a.yaml", &arena, &out, &err), LS_EINPUT);
    cr_assert(strstr(err.text, "larger than 64 MiB"), "%s", err.text);
    free(text);
    cr_assert_eq(ls_yaml_load_file("/dev/zero", &arena, &out, &err), LS_EINPUT);
    cr_assert(strstr(err.text, "larger than 64 MiB"), "%s", err.text);
}

Test(yaml, unreadable_files)
{
    const struct ls_yaml_node *out = NULL;
    cr_assert_eq(ls_yaml_load_file("no/such/file.yaml", &arena, &out, &err), LS_EINPUT);
    cr_assert(strstr(err.text, "No such file"), "%s", err.text);
    cr_assert_str_eq(err.input.file, "no/such/file.yaml");
    cr_assert_eq(ls_yaml_load_file("/", &arena, &out, &err), LS_EINPUT);
    cr_assert(strstr(err.text, "directory"), "%s", err.text);
}

static void uint_is(const char *text, uint64_t want)
{
    uint64_t got = 0;
    cr_assert_eq(ls_yaml_uint(value(text), "k", 0, UINT64_MAX, &got, &err), LS_OK, "%s: %s", text, err.text);
    cr_assert_eq(got, want, "%s", text);
}

static void uint_bad(const char *text, const char *message, const char *hint)
{
    uint64_t got = 77;
    const struct ls_yaml_node *n = value(text);
    cr_assert_eq(ls_yaml_uint(n, "k", 1, 100, &got, &err), LS_EINPUT, "accepted: %s", text);
    cr_assert_eq(got, 77);
    cr_assert_str_eq(err.text, message);
    cr_assert_str_eq(err.hint, hint, "%s: hint '%s'", text, err.hint);
    cr_assert(err.input.line == 1 && err.input.column == n->at.column);
}

Test(yaml, integers)
{
    uint_is("0", 0);
    uint_is("7", 7);
    uint_is("18446744073709551615", UINT64_MAX);
    uint_bad("0", "'k' is 0, which is not between 1 and 100", "");
    uint_bad("101", "'k' is 101, which is not between 1 and 100", "");
    uint_bad("-3", "'k' is -3, which is not between 1 and 100", "");
    uint_bad("18446744073709551616", "'k' is 18446744073709551616, which is not between 1 and 100", "");
    uint_bad("-x", "'k' is '-x', not an integer", "");
    uint_bad("-0", "'k' is '-0', not an integer", "");
    uint_bad("+5", "'k' is '+5', not an integer", "");
    uint_bad("1e2", "'k' is '1e2', not an integer", "write out all digits");
    uint_bad("2.0", "'k' is '2.0', not an integer", "write out all digits");
    uint_bad("2.5", "'k' is '2.5', not an integer", "write a whole number");
    uint_bad("2.5e1", "'k' is '2.5e1', not an integer", "write out all digits");
    uint_bad("1_0", "'k' is '1_0', not an integer", "write it without underscores");
    uint_bad("010", "'k' is '010', not an integer", "write it in decimal, without leading zeros");
    uint_bad("0x10", "'k' is '0x10', not an integer", "write it in decimal, without leading zeros");
    uint_bad("0o17", "'k' is '0o17', not an integer", "write it in decimal, without leading zeros");
    uint_bad("'5'", "'k' is '5', not an integer", "remove the quotes");
    uint_bad("1:30", "'k' is '1:30', not an integer", "");
    uint_bad("two", "'k' is 'two', not an integer", "");
    uint_bad("", "'k' is empty, not an integer", "");
    uint_bad("null", "'k' is empty, not an integer", "");
    uint_bad("[1]", "'k' is a list, not an integer", "");
    uint_bad("{a: 1}", "'k' is a mapping, not an integer", "");
    uint64_t got;
    cr_assert_eq(ls_yaml_uint(value("1"), "k", 2, UINT64_MAX, &got, &err), LS_EINPUT);
    cr_assert_str_eq(err.text, "'k' is 1, which is less than 2");
    cr_assert_eq(ls_yaml_uint(value("99999999999999999999"), "k", 0, UINT64_MAX, &got, &err), LS_EINPUT);
    cr_assert_eq(ls_yaml_uint(value("1"), "k", 2, 3, &got, NULL), LS_EINPUT);
}

Test(yaml, reals)
{
    static const struct {
        const char *text;
        double want;
    } good_ones[] = {
        { "0", 0 },   { "1", 1 },  { "-1.5", -1.5 }, { "+2", 2 },
        { ".5", .5 }, { "1.", 1 }, { "1e9", 1e9 },   { "2.5E-3", 2.5e-3 },
    };
    static const char *const bad_ones[] = { "",    "x",    ".",    "e5",  "1e",  "1e+", "1_0", "010", "0x1p3",
                                            "nan", ".nan", ".inf", "inf", "'1'", "1 2", "--1", "[1]", "1e999" };
    for (size_t i = 0; i < sizeof good_ones / sizeof *good_ones; i++) {
        double got = -99;
        cr_assert_eq(ls_yaml_real(value(good_ones[i].text), "k", &got, &err), LS_OK, "%s: %s", good_ones[i].text,
                     err.text);
        cr_assert(got >= good_ones[i].want && got <= good_ones[i].want, "%s", good_ones[i].text);
    }
    for (size_t i = 0; i < sizeof bad_ones / sizeof *bad_ones; i++) {
        double got = -99;
        cr_assert_eq(ls_yaml_real(value(bad_ones[i]), "k", &got, &err), LS_EINPUT, "accepted: %s", bad_ones[i]);
    }
}

Test(yaml, booleans_texts_and_null)
{
    bool b = false;
    cr_assert(ls_yaml_bool(value("true"), "k", &b, &err) == LS_OK && b);
    cr_assert(ls_yaml_bool(value("False"), "k", &b, &err) == LS_OK && !b);
    static const struct {
        const char *text, *hint;
    } wrong[] = { { "yes", "write true" },
                  { "Off", "write false" },
                  { "0", "write false" },
                  { "'true'", "write true" },
                  { "2", "" },
                  { "", "" },
                  { "[true]", "" },
                  { "tru", "" } };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        cr_assert_eq(ls_yaml_bool(value(wrong[i].text), "k", &b, &err), LS_EINPUT, "accepted: %s", wrong[i].text);
        cr_assert_str_eq(err.hint, wrong[i].hint, "%s", wrong[i].text);
    }
    const char *text = NULL;
    cr_assert(ls_yaml_text(value("2.10"), "k", &text, &err) == LS_OK && strcmp(text, "2.10") == 0);
    cr_assert(ls_yaml_text(value("''"), "k", &text, &err) == LS_OK && !text[0]);
    cr_assert_eq(ls_yaml_text(value(""), "k", &text, &err), LS_EINPUT);
    cr_assert_eq(ls_yaml_text(value("{}"), "k", &text, &err), LS_EINPUT);
    cr_assert_str_eq(err.text, "'k' is a mapping, not a text");
    cr_assert(ls_yaml_is_null(value("")) && ls_yaml_is_null(value("~")) && ls_yaml_is_null(value("null")));
    cr_assert(!ls_yaml_is_null(value("''")) && !ls_yaml_is_null(value("'null'")) && !ls_yaml_is_null(value("[]")));
    cr_assert(!ls_yaml_is_text(value("[]"), ""));
    cr_assert_eq(ls_yaml_map(value("[]"), "k", &err), LS_EINPUT);
    cr_assert_eq(ls_yaml_list(value("x"), "k", &err), LS_EINPUT);
    cr_assert_str_eq(err.text, "'k' is 'x', not a list");
    cr_assert_eq(ls_yaml_map(value("{}"), "k", &err), LS_OK);
    cr_assert_eq(ls_yaml_list(value("[]"), "k", &err), LS_OK);
}

Test(yaml, unknown_keys_and_choices)
{
    static const char *const known[] = { "modules", "reshard", "dp_size", NULL }, *const none[] = { NULL };
    cr_assert_eq(ls_yaml_check_keys(good("{reshard: 1, modules: 2}"), "units", known, &err), LS_OK);
    cr_assert_eq(ls_yaml_check_keys(good("reshard: 1\nmodles: 2\n"), "units", known, &err), LS_EINPUT);
    cr_assert_str_eq(err.text, "unknown key 'modles' in 'units'");
    cr_assert_str_eq(err.hint, "did you mean 'modules'?");
    cr_assert(err.input.line == 2 && err.input.column == 1);
    cr_assert_eq(ls_yaml_check_keys(good("{zzz: 1}"), "units", known, &err), LS_EINPUT);
    cr_assert_str_eq(err.hint, "known: modules, reshard, dp_size");
    cr_assert_eq(ls_yaml_check_keys(good("{zzz: 1}"), "units", none, &err), LS_EINPUT);
    cr_assert_str_eq(err.hint, "");
    cr_assert_eq(ls_yaml_check_keys(good("[1]"), "units", known, &err), LS_EINPUT);
    cr_assert_str_eq(err.text, "'units' is a list, not a mapping");

    static const char *const choice[] = { "root", "per_layer", "replicate", "null", NULL };
    size_t at = 9;
    cr_assert(ls_yaml_choice(value("per_layer"), "k", choice, &at, &err) == LS_OK && at == 1);
    cr_assert(ls_yaml_choice(value("~"), "k", choice, &at, &err) == LS_OK && at == 3);
    cr_assert_eq(ls_yaml_choice(value("per-layer"), "k", choice, &at, &err), LS_EINPUT);
    cr_assert_str_eq(err.text, "'k' is 'per-layer', not one of root, per_layer, replicate, null");
    cr_assert_str_eq(err.hint, "did you mean 'per_layer'?");
    cr_assert_eq(ls_yaml_choice(value("[root]"), "k", choice, &at, &err), LS_EINPUT);
    cr_assert_eq(at, 3);
}

Test(yaml, nearest_name)
{
    static const char *const names[] = { "cp_size", "dp_size", "dp_replicate_size", "freeze", NULL }, *const none[] = {
        NULL
    };
    cr_assert_str_eq(ls_nearest("dpsize", names), "dp_size");
    cr_assert_str_eq(ls_nearest("DP-SIZE", names), "dp_size");
    cr_assert_str_eq(ls_nearest("feeze", names), "freeze");
    cr_assert_str_eq(ls_nearest("freeez", names), "freeze");
    cr_assert(!ls_nearest("x", names) && !ls_nearest("", names) && !ls_nearest("dp_size", none));
    cr_assert(!ls_nearest("completely_different", names));
    char big[500];
    memset(big, 'd', sizeof big - 1);
    big[sizeof big - 1] = 0;
    cr_assert(!ls_nearest(big, names));
}
