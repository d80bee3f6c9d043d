#include "report/template.h"

#include <assert.h>
#include <string.h>

void ls_template_fill(const char *template, const struct ls_slot *slot, size_t slots, struct ls_str *out)
{
    size_t used = 0;
    for (const char *at = template;;) {
        const char *open = strstr(at, "{{"), *close = open ? strstr(open, "}}") : NULL;
        if (!close) {
            ls_str_add(out, at);
            break;
        }
        size_t i = 0, length = (size_t)(close - open) - 2;
        while (i < slots && !(strlen(slot[i].name) == length && memcmp(slot[i].name, open + 2, length) == 0))
            i++;
        assert(i < slots && "a slot without text");
        used |= (size_t)1 << i;
        ls_str_addn(out, at, (size_t)(open - at));
        ls_str_add(out, slot[i].text);
        at = close + 2;
    }
    assert(used + 1 == (size_t)1 << slots && "a text without its slot");
    (void)used;
}
