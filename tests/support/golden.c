#include "golden.h"

#include "base/arena.h"

#include <assert.h>
#include <ctype.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ARGS_MAX = 32, RUN_SECONDS_MAX = 60 };

static size_t split(char *text, char **argv)
{
    size_t count = 0;
    for (char *s = text; *s;) {
        while (*s == ' ')
            s++;
        if (!*s)
            break;
        assert(count + 1 < ARGS_MAX);
        char *to = s;
        argv[count++] = to;
        bool quoted = false;
        for (; *s && (quoted || *s != ' '); s++) {
            if (*s == '\'')
                quoted = !quoted;
            else
                *to++ = *s;
        }
        bool end = !*s;
        *to = 0;
        s += !end;
    }
    argv[count] = NULL;
    return count;
}

static void read_all(FILE *f, struct ls_str *out)
{
    char block[4096];
    size_t got;
    rewind(f);
    while ((got = fread(block, 1, sizeof block, f)) > 0)
        ls_str_addn(out, block, got);
    fclose(f);
}

void golden_run(const char *binary, const char *root, const char *args, struct golden_run *run)
{
    *run = (struct golden_run){ 0 };
    FILE *out = tmpfile(), *err = tmpfile();
    assert(out && err);
    struct ls_arena arena;
    ls_arena_init(&arena, 0);
    char *argv[ARGS_MAX + 1];
    argv[0] = ls_arena_str(&arena, "lockstep");
    split(ls_arena_str(&arena, args), argv + 1);
    pid_t child = fork();
    assert(child >= 0);
    if (child == 0) {
        int in = open("/dev/null", O_RDONLY);
        if (in < 0 || dup2(in, 0) < 0 || dup2(fileno(out), 1) < 0 || dup2(fileno(err), 2) < 0 || chdir(root) != 0)
            _exit(126);
        setenv("NO_COLOR", "1", 1);
        alarm(RUN_SECONDS_MAX);
        execv(binary, argv);
        _exit(127);
    }
    int status = 0;
    pid_t got = waitpid(child, &status, 0);
    assert(got == child);
    (void)got;
    run->status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    read_all(out, &run->out);
    read_all(err, &run->err);
    ls_arena_release(&arena);
}

void golden_release(struct golden_run *run)
{
    ls_str_release(&run->out);
    ls_str_release(&run->err);
}

static bool starts(const char *text, const char *with)
{
    return strncmp(text, with, strlen(with)) == 0;
}

/* Length of a number and its unit of time at `s`, or 0. */
static size_t time_length(const char *s)
{
    static const char *const units[] = { " ns", " us", " ms", " s" };
    size_t n = strspn(s, "0123456789");
    if (!n)
        return 0;
    if (s[n] == '.')
        n += 1 + strspn(s + n + 1, "0123456789");
    for (size_t i = 0; i < sizeof units / sizeof *units; i++)
        if (starts(s + n, units[i]) && !isalnum((unsigned char)s[n + strlen(units[i])]))
            return n + strlen(units[i]);
    return 0;
}

/* Length of a `src/....c:NUMBER` name at `s` up to the number, or 0. */
static size_t source_length(const char *s)
{
    if (!starts(s, "src/"))
        return 0;
    size_t n = strspn(s, "abcdefghijklmnopqrstuvwxyz0123456789_/");
    return starts(s + n, ".c:") && isdigit((unsigned char)s[n + 3]) ? n + 3 : 0;
}

void golden_normalise(struct ls_str *text, const char *root)
{
    static const char seconds[] = "\"seconds\": ", packed[] = "\"seconds\":";
    struct ls_str out = { 0 };
    bool in_number = false;
    for (const char *s = ls_str_text(text); *s;) {
        size_t n;
        if (!in_number && (n = time_length(s)) > 0) {
            ls_str_add(&out, "<time>");
            s += n;
        } else if (starts(s, packed)) {
            n = starts(s, seconds) ? strlen(seconds) : strlen(packed);
            ls_str_addn(&out, s, n);
            s += n;
            n = strspn(s, "0123456789.eE+-");
            ls_str_add(&out, n ? "<time>" : "");
            s += n;
        } else if ((n = source_length(s)) > 0) {
            ls_str_addn(&out, s, n);
            ls_str_add(&out, "<line>");
            s += n + strspn(s + n, "0123456789");
        } else if (starts(s, root)) {
            ls_str_add(&out, "<root>");
            s += strlen(root);
        } else {
            in_number = isalnum((unsigned char)*s) || *s == '.' || *s == '_';
            ls_str_addn(&out, s++, 1);
            continue;
        }
        in_number = false;
    }
    ls_str_release(text);
    *text = out;
}

static bool read_file(const char *path, struct ls_str *out)
{
    FILE *f = fopen(path, "rb");
    if (!f)
        return false;
    read_all(f, out);
    return true;
}

static bool write_file(const char *path, const struct ls_str *text)
{
    FILE *f = fopen(path, "wb");
    if (!f)
        return false;
    bool ok = fwrite(ls_str_text(text), 1, text->length, f) == text->length;
    return fclose(f) == 0 && ok;
}

bool golden_check(const char *binary, const char *root, const char *name, const char *args, struct ls_str *why)
{
    struct golden_run run;
    golden_run(binary, root, args, &run);
    golden_normalise(&run.out, root);
    golden_normalise(&run.err, root);
    struct ls_str have = { 0 }, want = { 0 }, path = { 0 };
    ls_str_printf(&have, "lockstep %s\nexit status %d\n--- stdout\n%s--- stderr\n%s--- end\n", args, run.status,
                  ls_str_text(&run.out), ls_str_text(&run.err));
    ls_str_printf(&path, "%s/tests/golden/cases/%s.txt", root, name);
    const char *mode = getenv("LS_GOLDEN");
    bool ok;
    if (mode && strcmp(mode, "write") == 0) {
        ok = write_file(ls_str_text(&path), &have);
        if (!ok)
            ls_str_printf(why, "%s: cannot be written", ls_str_text(&path));
    } else if (!read_file(ls_str_text(&path), &want)) {
        ok = false;
        ls_str_printf(why, "%s is missing; LS_GOLDEN=write makes it", ls_str_text(&path));
    } else {
        ok = strcmp(ls_str_text(&want), ls_str_text(&have)) == 0;
        if (!ok)
            ls_str_printf(why, "%s: expected\n%s\nbut this run gave\n%s", name, ls_str_text(&want), ls_str_text(&have));
    }
    ls_str_release(&have);
    ls_str_release(&want);
    ls_str_release(&path);
    golden_release(&run);
    return ok;
}
