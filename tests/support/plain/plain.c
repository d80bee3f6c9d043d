/* Runs the tests of one program; see criterion/criterion.h beside this file. Arguments: parts of the names to run. */
#include <criterion/criterion.h>

#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { SKIPPED = 77 };

static struct plain_test *first, **last = &first;
static bool failed;

void plain_add(struct plain_test *t)
{
    *last = t;
    last = &t->next;
}

void plain_check(bool holds, bool must, const char *file, int line, const char *what, const char *format, ...)
{
    va_list args;
    if (holds)
        return;
    fprintf(stderr, "%s:%d: does not hold: %s:", file, line, what);
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
    failed = true;
    if (must)
        exit(EXIT_FAILURE);
}

void plain_skip(const char *why)
{
    printf("%s; ", why);
    fflush(stdout);
    _exit(SKIPPED);
}

static bool is_wanted(const struct plain_test *t, int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        if (strstr(t->name, argv[i]) || strstr(t->suite, argv[i]))
            return true;
    return argc < 2;
}

/* In a child: what a test leaves behind is not the next one's, and a crash is one test's. */
static int run(const struct plain_test *t)
{
    int status = 0;
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        t->run();
        exit(failed ? EXIT_FAILURE : EXIT_SUCCESS); /* the sanitizer may have another status to add */
    }
    if (pid < 0 || waitpid(pid, &status, 0) != pid)
        return EXIT_FAILURE;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int main(int argc, char **argv)
{
    size_t passed = 0, skipped = 0, wrong = 0;
    for (struct plain_test *t = first; t; t = t->next) {
        struct timespec a, b;
        if (!is_wanted(t, argc, argv))
            continue;
        clock_gettime(CLOCK_MONOTONIC, &a);
        int status = run(t);
        clock_gettime(CLOCK_MONOTONIC, &b);
        printf("%s::%s: %s (status %d), %.2f s\n", t->suite, t->name, !status ? "passed" : status == SKIPPED ? "skipped" : "FAILED", status,
               (double)(b.tv_sec - a.tv_sec) + 1e-9 * (double)(b.tv_nsec - a.tv_nsec));
        passed += status == 0;
        skipped += status == SKIPPED;
        wrong += status != 0 && status != SKIPPED;
    }
    printf("%zu passed, %zu skipped, %zu failed\n", passed, skipped, wrong);
    return wrong || !(passed + skipped) ? EXIT_FAILURE : EXIT_SUCCESS;
}
