#include "report/template.h"

#include <assert.h>
#include <stdbool.h>
#include <string.h>

void ls_template_fill(const char *template, const struct ls_slot *slot, size_t slots, struct ls_str *out)
{
    size_t used = 0;
    bool leaves = false; /* something out, perhaps with slots in it */
    for (const char *at = template;;) {
        const char *open = strstr(at, "{{"), *close = open ? strstr(open, "}}") : NULL;
        if (!close) {
            ls_str_add(out, at);
            break;
        }
        bool end = open[2] == '/';
        const char *name = open + 2 + end;
        size_t i = 0, length = (size_t)(close - name);
        while (i < slots && !(strlen(slot[i].name) == length && memcmp(slot[i].name, name, length) == 0))
            i++;
        assert(i < slots && "a slot without text");
        used |= (size_t)1 << i;
        ls_str_addn(out, at, (size_t)(open - at));
        at = close + 2;
        if (end)
            continue;
        if (slot[i].text) {
            ls_str_add(out, slot[i].text);
            continue;
        }
        const char *behind = NULL;
        leaves = true;
        for (const char *next = at; !behind && (next = strstr(next, "{{/")); next += 3)
            if (strncmp(next + 3, slot[i].name, length) == 0 && strncmp(next + 3 + length, "}}", 2) == 0)
                behind = next + 3 + length + 2;
        assert(behind && "nothing says how much goes with a slot that has no text");
        at = behind;
    }
    for (size_t i = 0; i < slots; i++)
        assert((!slot[i].text || used >> i & 1 || leaves) && "a text without its slot");
    (void)used, (void)leaves;
}
