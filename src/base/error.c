#include "base/error.h"

#include <stdarg.h>
#include <stdio.h>

const char *ls_code_text(enum ls_code code)
{
    switch (code) {
#define CODE_CASE(id, value, text) case id: return text;
        LS_CODES(CODE_CASE)
#undef CODE_CASE
    }
    return "unknown";
}

enum ls_code ls_fail_at(struct ls_error *err, enum ls_code code, struct ls_loc source, struct ls_loc input,
                        const char *format, ...)
{
    if (err) {
        *err = (struct ls_error){ .code = code, .input = input, .source = source };
        va_list args;
        va_start(args, format);
        vsnprintf(err->text, sizeof err->text, format, args);
        va_end(args);
    }
    return code;
}

void ls_hint(struct ls_error *err, const char *format, ...)
{
    if (!err)
        return;
    va_list args;
    va_start(args, format);
    vsnprintf(err->hint, sizeof err->hint, format, args);
    va_end(args);
}
