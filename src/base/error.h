/* src/base/error.h -- result codes, positions in what the user wrote, and the one error record.
 *
 * A function that can fail returns enum ls_code and fills *err (when err is not NULL) exactly once, through ls_fail().
 * What the user got wrong is an error; what we got wrong is an assert. */
#ifndef LS_BASE_ERROR_H
#define LS_BASE_ERROR_H

#include <stddef.h>

#define LS_MUST_USE __attribute__((warn_unused_result))
#define LS_PRINTF(nth, args) __attribute__((__format__(__printf__, nth, args)))

#define LS_CODES(X) /* makes enum ls_code; the value is also the exit status, so it never changes */ \
    X(LS_OK,         0, "success")                                                                   \
    X(LS_EVIOLATED,  1, "a checked property does not hold")                                          \
    X(LS_EUSAGE,     2, "bad command line")                                                          \
    X(LS_EINPUT,     3, "bad scenario")                                                              \
    X(LS_EBACKEND,   4, "backend, device or system failure")                                         \
    X(LS_EUNDECIDED, 5, "limits reached without a verdict")

#define LS_CODE_ENUM(id, value, text) id = value,
enum ls_code { LS_CODES(LS_CODE_ENUM) };
#undef LS_CODE_ENUM

struct ls_loc { const char *file; size_t line, column; }; /* 1-based; 0 means unknown; file NULL means none */
#define LS_NOWHERE ((struct ls_loc){ 0 })

struct ls_error {
    enum ls_code code;
    struct ls_loc input, source; /* scenarios/ring.yaml:12:9 and src/scenario/load.c:88 */
    char text[400];              /* subject in quotes; lower case, no full stop */
    char hint[160];              /* a suggestion ("did you mean 'cp_size'?"), or empty */
};

const char *ls_code_text(enum ls_code code);

/* ls_fail(err, code, input, format, ...): fills *err unless err is NULL; evaluates to code. The input's file name is not
 * copied: it must outlive the error. `input` is among the variable arguments so that it may be a compound literal. */
#define ls_fail(err, code, ...) ls_fail_at((err), (code), (struct ls_loc){ __FILE__, __LINE__, 0 }, __VA_ARGS__)
enum ls_code ls_fail_at(struct ls_error *err, enum ls_code code, struct ls_loc source, struct ls_loc input,
                        const char *format, ...) LS_PRINTF(5, 6);
/* For functions that own nothing yet: the first failure is the result. */
#define LS_TRY(...)                               \
    do {                                          \
        enum ls_code ls_try_code = (__VA_ARGS__); \
        if (ls_try_code != LS_OK)                 \
            return ls_try_code;                   \
    } while (0)
/* Adds a hint to an error already filled. Does nothing when err is NULL. */
void ls_hint(struct ls_error *err, const char *format, ...) LS_PRINTF(2, 3);

#endif
