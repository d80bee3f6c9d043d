#include "cli/cli.h"

#include <stdarg.h>
#include <string.h>

void ls_progress_open(const struct ls_cli *cli, struct ls_progress *p)
{
    *p = (struct ls_progress){ .on = cli->progress };
}

void ls_progress_show(struct ls_progress *p, const char *format, ...)
{
    if (!p->on)
        return;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    long long since_ns = (now.tv_sec - p->last.tv_sec) * 1000000000LL + now.tv_nsec - p->last.tv_nsec;
    if (p->shown && since_ns < 100000000LL)
        return;
    char text[79]; /* one line of an 80 column terminal: a longer one would wrap, and stay */
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    fputs("\r\033[K", stderr);
    ls_print_clean(stderr, text, strlen(text));
    fflush(stderr);
    p->shown = true;
    p->last = now;
}

void ls_progress_close(struct ls_progress *p)
{
    if (p->shown) {
        fputs("\r\033[K", stderr);
        fflush(stderr);
    }
    p->shown = false;
}
