/* Arena, vectors, strings, interned names, globs, edit distance, JSON, errors. */
#include "base/arena.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/str.h"
#include "base/vec.h"

#include <criterion/criterion.h>
#include <jansson.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

Test(arena, pieces_are_aligned_zeroed_and_apart)
{
    struct ls_arena a;
    ls_arena_init(&a, 0);
    unsigned char *piece[300];
    for (size_t i = 0; i < 300; i++) {
        piece[i] = ls_arena_alloc(&a, i * 37);
        cr_assert_eq((uintptr_t)piece[i] % 16, 0, "piece %zu", i);
        for (size_t k = 0; k < i * 37; k++)
            cr_assert_eq(piece[i][k], 0, "piece %zu byte %zu", i, k);
        memset(piece[i], (int)(i & 255), i * 37);
    }
    for (size_t i = 0; i < 300; i++)
        for (size_t k = 0; k < i * 37; k++)
            cr_assert_eq(piece[i][k], i & 255, "piece %zu byte %zu", i, k);
    ls_arena_release(&a);
    cr_assert_eq(a.bytes, 0);
    cr_assert_str_eq(ls_arena_str(&a, "again"), "again");
    ls_arena_release(&a);
}

Test(arena, rewind_gives_back_exactly_what_came_after_the_mark)
{
    struct ls_arena a;
    ls_arena_init(&a, 0);
    for (size_t before = 0; before < 9000; before += 1500) {
        char *kept = ls_arena_alloc(&a, before + 1);
        memset(kept, 'k', before + 1);
        struct ls_arena_mark mark = ls_arena_mark(&a);
        size_t bytes = a.bytes;
        for (size_t i = 0; i < 50; i++)
            memset(ls_arena_alloc(&a, i * 200 + 1), 'x', i * 200 + 1);
        ls_arena_rewind(&a, mark);
        cr_assert_eq(a.bytes, bytes);
        char *next = ls_arena_alloc(&a, 64);
        for (size_t i = 0; i < 64; i++)
            cr_assert_eq(next[i], 0, "memory is not zeroed after a rewind");
        for (size_t i = 0; i <= before; i++)
            cr_assert_eq(kept[i], 'k');
    }
    ls_arena_release(&a);
}

Test(arena, text_copies)
{
    struct ls_arena a;
    ls_arena_init(&a, 0);
    cr_assert_str_eq(ls_arena_strn(&a, "abcdef", 3), "abc");
    cr_assert_str_eq(ls_arena_printf(&a, "%s-%d", "x", 42), "x-42");
    char big[5000];
    memset(big, 'y', sizeof big - 1);
    big[sizeof big - 1] = 0;
    cr_assert_str_eq(ls_arena_printf(&a, "%s", big), big);
    cr_assert_eq(memcmp(ls_arena_copy(&a, big, sizeof big), big, sizeof big), 0);
    ls_arena_release(&a);
}

Test(arena, limit_ends_the_process, .exit_code = LS_EBACKEND)
{
    struct ls_arena a;
    ls_arena_init(&a, 1000);
    for (size_t i = 0; i < 100; i++)
        ls_arena_alloc(&a, 16);
    exit(0);
}

Test(arena, product_overflow_ends_the_process, .exit_code = LS_EBACKEND)
{
    ls_mul_size(SIZE_MAX / 2, 3);
    exit(0);
}

Test(vec, grows_and_keeps_items)
{
    LS_VEC(size_t) v = { 0 };
    for (size_t i = 0; i < 10000; i++)
        ls_push(&v, i * i);
    cr_assert_eq(v.count, 10000);
    for (size_t i = 0; i < 10000; i++)
        cr_assert_eq(v.at[i], i * i);
    ls_reserve(&v, 100000);
    cr_assert_geq(v.room, 110000);
    ls_vec_release(&v);
    cr_assert(!v.at && !v.count && !v.room);
}

Test(str, add_and_print)
{
    struct ls_str s = { 0 };
    cr_assert_str_eq(ls_str_text(&s), "");
    for (int i = 0; i < 1000; i++)
        ls_str_printf(&s, "%03d", i);
    cr_assert_eq(s.length, 3000);
    cr_assert_eq(strncmp(s.text + 2997, "999", 3), 0);
    ls_str_clear(&s);
    cr_assert_str_eq(ls_str_text(&s), "");
    ls_str_addn(&s, "abc", 2);
    ls_str_addn(&s, NULL, 0);
    ls_str_add(&s, "");
    cr_assert_str_eq(ls_str_text(&s), "ab");
    ls_str_release(&s);
}

Test(str, utf8_characters)
{
    cr_assert_eq(ls_utf8_length("", 0), 0);
    cr_assert_eq(ls_utf8_length("a", 1), 1);
    /* Every character encodes to a form that is taken back whole, and to none that is cut short. */
    for (uint32_t c = 0x80; c <= 0x110000; c++) {
        char s[5] = { 0 };
        size_t n = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
        for (size_t i = n; i-- > 1;)
            s[i] = (char)(0x80 | ((c >> (6 * (n - 1 - i))) & 0x3f));
        s[0] = (char)((n == 2 ? 0xc0u : n == 3 ? 0xe0u : 0xf0u) | c >> (6 * (n - 1)));
        bool valid = (c < 0xd800 || c > 0xdfff) && c <= 0x10ffff;
        cr_assert_eq(ls_utf8_length(s, n), valid ? n : 0, "U+%04X", c);
        cr_assert_eq(ls_utf8_length(s, n - 1), 0, "U+%04X", c);
    }
    static const char *const bad[] = { "\x80", "\xc0\xaf", "\xc1\xbf", "\xe0\x9f\xbf", "\xf0\x8f\xbf\xbf", "\xff", "\xc3(" };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        cr_assert_eq(ls_utf8_length(bad[i], strlen(bad[i])), 0, "%zu", i);
}

Test(names, ids_are_dense_and_stable)
{
    struct ls_names *n = ls_names_open();
    uint32_t id;
    cr_assert_eq(ls_names_count(n), 1);
    cr_assert_str_eq(ls_name_text(n, 0), "");
    cr_assert_eq(ls_name_id(n, ""), 0);
    char text[32];
    for (uint32_t i = 0; i < 5000; i++) {
        snprintf(text, sizeof text, "layers.%u", i);
        cr_assert_not(ls_name_find(n, text, &id));
        cr_assert_eq(ls_name_id(n, text), i + 1);
    }
    for (uint32_t i = 0; i < 5000; i++) {
        snprintf(text, sizeof text, "layers.%u", i);
        cr_assert_eq(ls_name_id(n, text), i + 1);
        cr_assert(ls_name_find(n, text, &id) && id == i + 1);
        cr_assert_str_eq(ls_name_text(n, i + 1), text);
    }
    cr_assert_eq(ls_name_idn(n, "layers.7.weight", 8), ls_name_id(n, "layers.7"));
    cr_assert_eq(ls_names_count(n), 5001);
    ls_names_close(n);
    ls_names_close(NULL);
}

/* The definition, tried at every position. */
static bool naive_glob(const char *p, const char *s)
{
    if (!*p)
        return !*s;
    if (p[0] == '*' && p[1] == '*')
        return naive_glob(p + 2, s) || (*s && naive_glob(p, s + 1));
    if (p[0] == '*')
        return naive_glob(p + 1, s) || (*s && *s != '.' && naive_glob(p, s + 1));
    return *s && (*p == '?' ? *s != '.' : *p == *s) && naive_glob(p + 1, s + 1);
}

/* The n-th word over an alphabet: digits of n in that base, shortest words first. */
static void word(char *out, const char *alphabet, size_t length, size_t n)
{
    size_t base = strlen(alphabet);
    for (size_t i = 0; i < length; i++, n /= base)
        out[i] = alphabet[n % base];
    out[length] = 0;
}

static size_t power(size_t base, size_t exponent)
{
    return exponent ? base * power(base, exponent - 1) : 1;
}

Test(glob, agrees_with_its_definition)
{
    char p[12], s[12];
    for (size_t lp = 0; lp <= 5; lp++)
        for (size_t i = 0; i < power(5, lp); i++) {
            word(p, "ab.*?", lp, i);
            for (size_t ls = 0; ls <= 5; ls++)
                for (size_t k = 0; k < power(3, ls); k++) {
                    word(s, "ab.", ls, k);
                    cr_assert_eq(ls_glob(p, s), naive_glob(p, s), "pattern '%s' name '%s'", p, s);
                }
        }
    uint64_t seed = 1;
    for (size_t i = 0; i < 200000; i++) {
        word(p, "ab.**?", (size_t)ls_random_below(&seed, 11), (size_t)ls_random(&seed) >> 8);
        word(s, "aab.", (size_t)ls_random_below(&seed, 11), (size_t)ls_random(&seed) >> 8);
        cr_assert_eq(ls_glob(p, s), naive_glob(p, s), "pattern '%s' name '%s'", p, s);
    }
}

Test(glob, module_names)
{
    cr_assert(ls_glob("model.layers.*", "model.layers.12"));
    cr_assert_not(ls_glob("model.layers.*", "model.layers.12.mlp"));
    cr_assert(ls_glob("model.**", "model.layers.12.mlp"));
    cr_assert(ls_glob("**.lora_A", "model.layers.0.q_proj.lora_A"));
    cr_assert(ls_glob("", ""));
    cr_assert_not(ls_glob("", "model"));
}

/* Optimal string alignment by its recursive definition. */
static size_t naive_distance(const char *a, size_t la, const char *b, size_t lb)
{
    if (la == 0 || lb == 0)
        return la + lb;
    size_t best = naive_distance(a, la - 1, b, lb - 1) + (a[la - 1] != b[lb - 1]);
    size_t other = naive_distance(a, la - 1, b, lb) + 1;
    best = other < best ? other : best;
    other = naive_distance(a, la, b, lb - 1) + 1;
    best = other < best ? other : best;
    if (la > 1 && lb > 1 && a[la - 1] == b[lb - 2] && a[la - 2] == b[lb - 1]) {
        other = naive_distance(a, la - 2, b, lb - 2) + 1;
        best = other < best ? other : best;
    }
    return best;
}

Test(edit_distance, agrees_with_its_definition)
{
    char a[8], b[8];
    for (size_t la = 0; la <= 4; la++)
        for (size_t i = 0; i < power(3, la); i++)
            for (size_t lb = 0; lb <= 4; lb++)
                for (size_t k = 0; k < power(3, lb); k++) {
                    word(a, "abc", la, i);
                    word(b, "abc", lb, k);
                    size_t want = naive_distance(a, la, b, lb);
                    cr_assert_eq(ls_edit_distance(a, b, 9), want, "'%s' '%s'", a, b);
                    for (size_t most = 0; most < 4; most++)
                        cr_assert_eq(ls_edit_distance(a, b, most) <= most, want <= most, "'%s' '%s' most %zu", a, b,
                                     most);
                }
}

Test(edit_distance, long_names_are_far)
{
    char a[200];
    memset(a, 'a', sizeof a - 1);
    a[sizeof a - 1] = 0;
    cr_assert_gt(ls_edit_distance(a, a, 3), 3); /* not compared: only for suggestions */
    cr_assert_gt(ls_edit_distance(a, "b", 3), 3);
    a[63] = 0;
    cr_assert_eq(ls_edit_distance(a, a, 3), 0);
}

static json_t *parse(const struct ls_str *s)
{
    json_error_t e;
    json_t *out = json_loads(ls_str_text(s), JSON_DECODE_ANY | JSON_REJECT_DUPLICATES, &e);
    cr_assert(out, "%s in: %s", e.text, ls_str_text(s));
    return out;
}

Test(json, nesting_and_commas)
{
    for (int pretty = 0; pretty < 2; pretty++) {
        struct ls_str s = { 0 };
        struct ls_json j;
        ls_json_init(&j, &s, pretty);
        ls_json_object(&j);
        ls_json_key(&j, "a");
        ls_json_array(&j);
        ls_json_end_array(&j);
        ls_json_key(&j, "b");
        ls_json_array(&j);
        ls_json_uint(&j, UINT64_MAX >> 1);
        ls_json_int(&j, INT64_MIN);
        ls_json_bool(&j, true);
        ls_json_null(&j);
        ls_json_object(&j);
        ls_json_end_object(&j);
        ls_json_array(&j);
        ls_json_text(&j, NULL);
        ls_json_end_array(&j);
        ls_json_end_array(&j);
        ls_json_key(&j, "c");
        ls_json_real(&j, 0.1);
        ls_json_end_object(&j);
        json_t *v = parse(&s);
        cr_assert_eq(json_object_size(v), 3);
        json_t *b = json_object_get(v, "b");
        cr_assert_eq(json_array_size(b), 6);
        cr_assert_eq(json_integer_value(json_array_get(b, 0)), INT64_MAX);
        cr_assert_eq(json_integer_value(json_array_get(b, 1)), INT64_MIN);
        cr_assert(json_real_value(json_object_get(v, "c")) >= 0.1 && json_real_value(json_object_get(v, "c")) <= 0.1);
        if (!pretty)
            cr_assert_str_eq(
                ls_str_text(&s),
                "{\"a\":[],\"b\":[9223372036854775807,-9223372036854775808,true,null,{},[null]],\"c\":0.1}");
        json_decref(v);
        ls_str_release(&s);
    }
}

Test(json, any_text_survives_as_valid_json)
{
    uint64_t seed = 7;
    for (size_t round = 0; round < 20000; round++) {
        char text[24];
        size_t length = (size_t)ls_random_below(&seed, sizeof text);
        for (size_t i = 0; i < length; i++) {
            uint64_t x = ls_random(&seed);
            text[i] =
                (char)(round % 2
                           ? 1 + x % 255
                           : (uint64_t) "\"\\\n\t\x7f\x01 a\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\xed\xa0\x80"[x % 20]);
        }
        text[length] = 0;
        struct ls_str s = { 0 };
        struct ls_json j;
        ls_json_init(&j, &s, false);
        ls_json_text(&j, text);
        json_t *v = parse(&s);
        bool ascii = true;
        for (size_t i = 0; i < length; i++)
            ascii = ascii && (unsigned char)text[i] < 0x80;
        if (ascii)
            cr_assert_str_eq(json_string_value(v), text);
        json_decref(v);
        ls_str_release(&s);
    }
    struct ls_str s = { 0 };
    struct ls_json j;
    ls_json_init(&j, &s, false);
    ls_json_text(&j, "\xc3\xa9\xf0\x9f\x98\x80\xff");
    cr_assert_str_eq(ls_str_text(&s), "\"\xc3\xa9\xf0\x9f\x98\x80\\ufffd\"");
    ls_str_release(&s);
}

Test(json, reals_read_back_equal)
{
    static const double fixed[] = { 0, 1, -1, 0.1, 1e300, 1e-300, 3.141592653589793, 1.0 / 3, 123456789.125, 5e-324 };
    uint64_t seed = 3;
    for (size_t i = 0; i < 20000; i++) {
        double want;
        uint64_t bits = ls_random(&seed);
        memcpy(&want, &bits, sizeof want);
        if (i < sizeof fixed / sizeof *fixed)
            want = fixed[i];
        struct ls_str s = { 0 };
        struct ls_json j;
        ls_json_init(&j, &s, false);
        ls_json_real(&j, want);
        double got = strtod(ls_str_text(&s), NULL);
        if (isfinite(want))
            cr_assert_eq(memcmp(&got, &want, sizeof got), 0, "%a became %s", want, ls_str_text(&s));
        else
            cr_assert_str_eq(ls_str_text(&s), "null");
        ls_str_release(&s);
    }
}

Test(error, fills_once_and_cuts_long_text)
{
    struct ls_error e = { 0 };
    char big[1000];
    memset(big, 'z', sizeof big - 1);
    big[sizeof big - 1] = 0;
    cr_assert_eq(ls_fail(&e, LS_EINPUT, (struct ls_loc){ "a.yaml", 3, 4 }, "'%s' is wrong", big), LS_EINPUT);
    cr_assert_eq(strlen(e.text), sizeof e.text - 1);
    cr_assert(strcmp(e.input.file, "a.yaml") == 0 && e.input.line == 3 && e.input.column == 4);
    cr_assert_str_eq(e.source.file, "tests/unit/test_base.c");
    ls_hint(&e, "did you mean '%s'?", "x");
    cr_assert_str_eq(e.hint, "did you mean 'x'?");
    cr_assert_eq(ls_fail(&e, LS_EUSAGE, LS_NOWHERE, "short"), LS_EUSAGE);
    cr_assert_str_eq(e.hint, "");
    cr_assert_eq(ls_fail(NULL, LS_EBACKEND, LS_NOWHERE, "nobody asks"), LS_EBACKEND);
    ls_hint(NULL, "nobody asks");
    for (int code = LS_OK; code <= LS_EUNDECIDED; code++)
        cr_assert_str_neq(ls_code_text((enum ls_code)code), "unknown");
}

Test(hash, depends_on_seed_and_content)
{
    cr_assert_eq(ls_hash("abc", 3, 0), ls_hash("abcd", 3, 0));
    cr_assert_neq(ls_hash("abc", 3, 0), ls_hash("abc", 3, 1));
    cr_assert_neq(ls_hash("abc", 3, 0), ls_hash("abd", 3, 0));
    cr_assert_neq(ls_hash_mix(ls_hash_mix(0, 1), 2), ls_hash_mix(ls_hash_mix(0, 2), 1));
    uint64_t a = 5, b = 5;
    for (size_t i = 0; i < 1000; i++) {
        cr_assert_eq(ls_random(&a), ls_random(&b));
        cr_assert_lt(ls_random_below(&a, 7), 7);
        ls_random(&b);
    }
}
