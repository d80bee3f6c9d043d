#include "base/chrome.h"

#include "base/json.h"

#include <inttypes.h>

void ls_chrome_us(struct ls_str *out, uint64_t ps)
{
    if (ps % 1000)
        ls_str_printf(out, "%" PRIu64 ".%06" PRIu64, ps / 1000000, ps % 1000000);
    else
        ls_str_printf(out, "%" PRIu64 ".%03" PRIu64, ps / 1000000, ps % 1000000 / 1000);
}

void ls_chrome_text(struct ls_str *out, const char *text)
{
    struct ls_json j;
    ls_json_init(&j, out, false);
    ls_json_text(&j, text);
}

void ls_chrome_open(struct ls_str *out) { ls_str_add(out, "[\n"); }
void ls_chrome_close(struct ls_str *out) { ls_str_add(out, "\n]\n"); }
void ls_chrome_end(struct ls_str *out) { ls_str_add(out, "}"); }

static void begin(struct ls_str *out, const char *phase, const char *name)
{
    bool first = out->text[out->length - 2] == '['; /* events end with a brace */
    ls_str_printf(out, "%s{\"ph\":\"%s\",\"name\":", first ? "" : ",\n", phase);
    ls_chrome_text(out, name);
}

void ls_chrome_name(struct ls_str *out, const char *what, size_t pid, size_t tid, const char *key, const char *name)
{
    begin(out, "M", what);
    ls_str_printf(out, ",\"pid\":%zu,\"tid\":%zu,\"args\":{\"%s\":", pid, tid, key);
    ls_chrome_text(out, name);
    ls_str_add(out, "}}");
}

void ls_chrome_span(struct ls_str *out, const char *name, const char *category, size_t pid, size_t tid, uint64_t begin_ps, uint64_t end_ps)
{
    begin(out, "X", name);
    ls_str_printf(out, ",\"cat\":\"%s\",\"pid\":%zu,\"tid\":%zu,\"ts\":", category, pid, tid);
    ls_chrome_us(out, begin_ps);
    ls_str_add(out, ",\"dur\":");
    ls_chrome_us(out, end_ps - begin_ps);
}

void ls_chrome_counter(struct ls_str *out, const char *name, size_t pid, uint64_t at_ps)
{
    begin(out, "C", name);
    ls_str_printf(out, ",\"pid\":%zu,\"ts\":", pid);
    ls_chrome_us(out, at_ps);
}
