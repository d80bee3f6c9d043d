#include "report/gnuplot.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static enum ls_code no_files(struct ls_error *err)
{
    return ls_fail(err, LS_EBACKEND, LS_NOWHERE, "cannot make a temporary file: %s", strerror(errno));
}

static void read_all(FILE *f, struct ls_str *out)
{
    char block[1 << 14];
    size_t got;
    rewind(f);
    while ((got = fread(block, 1, sizeof block, f)) > 0)
        ls_str_addn(out, block, got);
}

/* Files, not pipes: nothing can wait for the other side. *status: as waitpid says, 127 << 8 if the program does not start. */
static enum ls_code spawn(char *const argv[], const char *input, struct ls_str *out, struct ls_str *complaint, int *status, struct ls_error *err)
{
    FILE *in = tmpfile(), *to = tmpfile(), *bad = tmpfile();
    enum ls_code rc = LS_OK;
    pid_t child = -1;
    if (!in || !to || !bad || fwrite(input, 1, strlen(input), in) != strlen(input) || fflush(in) != 0) {
        rc = no_files(err);
        goto end;
    }
    rewind(in);
    child = fork();
    if (child < 0) {
        rc = ls_fail(err, LS_EBACKEND, LS_NOWHERE, "cannot start '%s': %s", argv[0], strerror(errno));
        goto end;
    }
    if (child == 0) {
        if (dup2(fileno(in), 0) < 0 || dup2(fileno(to), 1) < 0 || dup2(fileno(bad), 2) < 0)
            _exit(126);
        setenv("LC_ALL", "C", 1); /* decimal points */
        execvp(argv[0], argv);
        _exit(127);
    }
    while (waitpid(child, status, 0) < 0)
        if (errno != EINTR) {
            rc = ls_fail(err, LS_EBACKEND, LS_NOWHERE, "cannot wait for '%s': %s", argv[0], strerror(errno));
            goto end;
        }
    read_all(to, out);
    read_all(bad, complaint);
end:
    if (in)
        fclose(in);
    if (to)
        fclose(to);
    if (bad)
        fclose(bad);
    return rc;
}

static enum ls_code run(char *const argv[], const char *input, struct ls_str *out, struct ls_error *err)
{
    struct ls_str complaint = { 0 };
    int status = 0;
    enum ls_code rc = spawn(argv, input, out, &complaint, &status, err);
    if (rc == LS_OK && WIFEXITED(status) && WEXITSTATUS(status) == 127) {
        rc = ls_fail(err, LS_EBACKEND, LS_NOWHERE, "'gnuplot' draws the figures, and is not installed");
        ls_hint(err, "install the Debian package gnuplot-nox; './lockstep setup' does");
    } else if (rc == LS_OK && (!WIFEXITED(status) || WEXITSTATUS(status) != 0)) {
        const char *text = ls_str_text(&complaint), *line = text + strspn(text, " \n\t^");
        if (WIFEXITED(status))
            rc = ls_fail(err, LS_EBACKEND, LS_NOWHERE, "'gnuplot' failed with status %d: %.*s", WEXITSTATUS(status), (int)strcspn(line, "\n"), line);
        else
            rc = ls_fail(err, LS_EBACKEND, LS_NOWHERE, "'gnuplot' was ended by signal %d", WTERMSIG(status));
    }
    ls_str_release(&complaint);
    return rc;
}

enum ls_code ls_gnuplot_find(struct ls_error *err)
{
    struct ls_str out = { 0 };
    enum ls_code rc = run((char *[]){ "gnuplot", "--version", NULL }, "", &out, err);
    ls_str_release(&out);
    return rc;
}

enum ls_code ls_gnuplot_run(const char *script, const char *name, struct ls_str *svg, struct ls_error *err)
{
    struct ls_str out = { 0 };
    enum ls_code rc = run((char *[]){ "gnuplot", "-d", NULL }, script, &out, err);
    if (rc == LS_OK && !strstr(ls_str_text(&out), "</svg>"))
        rc = ls_fail(err, LS_EBACKEND, LS_NOWHERE, "'gnuplot' made no figure; it needs the terminal 'svg'");
    if (rc == LS_OK)
        ls_svg_clean(ls_str_text(&out), out.length, name, svg);
    ls_str_release(&out);
    return rc;
}

static size_t starts(const char *s, const char *end, const char *with)
{
    size_t n = strlen(with);
    return (size_t)(end - s) >= n && memcmp(s, with, n) == 0 ? n : 0;
}

void ls_svg_clean(const char *svg, size_t length, const char *name, struct ls_str *out)
{
    const char *end = svg + length, *s = svg;
    while (s < end && !starts(s, end, "<svg"))
        s++;
    while (s < end) {
        size_t n;
        if ((n = starts(s, end, "<desc>"))) { /* names the version of gnuplot */
            while (s < end && !starts(s, end, "</desc>"))
                s++;
            s += starts(s, end, "</desc>");
            s += s < end && *s == '\n';
        } else if ((n = starts(s, end, "<svg"))) {
            ls_str_add(out, "<svg role=\"img\" width=\"100%\"");
            s += n;
        } else if ((n = starts(s, end, " id='")) || (n = starts(s, end, " id=\"")) || (n = starts(s, end, "href='#")) ||
                   (n = starts(s, end, "href=\"#")) || (n = starts(s, end, "url(#"))) {
            ls_str_addn(out, s, n);
            ls_str_printf(out, "%s-", name);
            s += n;
        } else if (*s == '\n' && s + 1 < end && (s[1] == '\t' || s[1] == '\n')) {
            s++; /* lines that indent or are empty: a tenth of the size */
            while (s < end && (*s == '\t' || *s == '\n'))
                s++;
            ls_str_add(out, "\n");
        } else {
            ls_str_addn(out, s++, 1);
        }
    }
}
