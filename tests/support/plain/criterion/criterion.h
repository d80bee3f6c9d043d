/* tests/support/plain/criterion/criterion.h -- stands in for Criterion where that does not start: under ThreadSanitizer.
 *
 * The same test files, with a main of their own (plain.c) that runs each test in a child process, one after the other. What is not
 * here, the tests of the engine do not use. Options of a test are ignored. */
#ifndef LS_TESTS_PLAIN_CRITERION_H
#define LS_TESTS_PLAIN_CRITERION_H

#include <stdbool.h>
#include <string.h>

struct plain_test { const char *suite, *name; void (*run)(void); struct plain_test *next; };
void plain_add(struct plain_test *t);
/* A failed assertion ends the test, a failed expectation only fails it. */
void plain_check(bool holds, bool must, const char *file, int line, const char *what, const char *format, ...)
    __attribute__((__format__(__printf__, 6, 7)));
_Noreturn void plain_skip(const char *why);

#define Test(suite, name, ...)                                                                                  \
    static void suite##_##name##_body(void);                                                                    \
    static struct plain_test suite##_##name##_test = { #suite, #name, suite##_##name##_body, NULL };            \
    __attribute__((constructor)) static void suite##_##name##_add(void) { plain_add(&suite##_##name##_test); } \
    static void suite##_##name##_body(void)

#define PLAIN(must, holds, what, ...) plain_check((holds), must, __FILE__, __LINE__, what, " " __VA_ARGS__)
#define cr_assert(x, ...) PLAIN(true, (x), #x, __VA_ARGS__)
#define cr_assert_eq(a, b, ...) PLAIN(true, (a) == (b), #a " == " #b, __VA_ARGS__)
#define cr_assert_neq(a, b, ...) PLAIN(true, (a) != (b), #a " != " #b, __VA_ARGS__)
#define cr_assert_lt(a, b, ...) PLAIN(true, (a) < (b), #a " < " #b, __VA_ARGS__)
#define cr_assert_leq(a, b, ...) PLAIN(true, (a) <= (b), #a " <= " #b, __VA_ARGS__)
#define cr_assert_gt(a, b, ...) PLAIN(true, (a) > (b), #a " > " #b, __VA_ARGS__)
#define cr_assert_geq(a, b, ...) PLAIN(true, (a) >= (b), #a " >= " #b, __VA_ARGS__)
#define cr_assert_str_eq(a, b, ...) PLAIN(true, strcmp((a), (b)) == 0, #a " is " #b, __VA_ARGS__)
#define cr_assert_arr_eq(a, b, bytes, ...) PLAIN(true, memcmp((a), (b), (bytes)) == 0, #a " holds " #b, __VA_ARGS__)
#define cr_assert_float_eq(a, b, within, ...) PLAIN(true, (a) - (b) <= (within) && (b) - (a) <= (within), #a " is about " #b, __VA_ARGS__)
#define cr_expect(x, ...) PLAIN(false, (x), #x, __VA_ARGS__)
#define cr_expect_eq(a, b, ...) PLAIN(false, (a) == (b), #a " == " #b, __VA_ARGS__)
#define cr_expect_neq(a, b, ...) PLAIN(false, (a) != (b), #a " != " #b, __VA_ARGS__)
#define cr_expect_lt(a, b, ...) PLAIN(false, (a) < (b), #a " < " #b, __VA_ARGS__)
#define cr_expect_gt(a, b, ...) PLAIN(false, (a) > (b), #a " > " #b, __VA_ARGS__)
#define cr_expect_str_eq(a, b, ...) PLAIN(false, strcmp((a), (b)) == 0, #a " is " #b, __VA_ARGS__)
#define cr_expect_float_eq(a, b, within, ...) PLAIN(false, (a) - (b) <= (within) && (b) - (a) <= (within), #a " is about " #b, __VA_ARGS__)
#define cr_skip_test(...) plain_skip("" __VA_ARGS__)

#endif
