/* Runs that are ended from outside: whoever is told to end or is killed, nobody stays behind; and how that ends the command. */
#include "engine/comm/mpi.h"

#include <criterion/criterion.h>
#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { TICKS = 15, PROCESSES_MAX = 64 }; /* of processor time until a process is in its run, past its start */

static void nap(long ms) { nanosleep(&(struct timespec){ .tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000 * 1000 }, NULL); }

struct seen { pid_t pid; char name[32]; unsigned long ticks; };

/* All processes, zombies apart, that have `mark` among their arguments. */
static size_t processes(const char *mark, struct seen *out)
{
    DIR *d = opendir("/proc");
    size_t n = 0;
    cr_assert(d);
    for (struct dirent *e; (e = readdir(d)) && n < PROCESSES_MAX;) {
        char path[300], text[8192] = "", state = '?';
        struct seen p = { 0 };
        if (!isdigit((unsigned char)e->d_name[0]))
            continue;
        snprintf(path, sizeof path, "/proc/%s/cmdline", e->d_name);
        int fd = open(path, O_RDONLY);
        ssize_t length = fd < 0 ? 0 : read(fd, text, sizeof text - 1);
        if (fd >= 0)
            close(fd);
        bool marked = false;
        for (ssize_t i = 0; i < length; i += (ssize_t)strlen(text + i) + 1)
            marked = marked || strcmp(text + i, mark) == 0;
        snprintf(path, sizeof path, "/proc/%s/stat", e->d_name);
        FILE *f = marked ? fopen(path, "r") : NULL;
        unsigned long user = 0, system = 0;
        if (f && fscanf(f, "%d (%31[^)]) %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &p.pid, p.name, &state, &user, &system) == 5 && state != 'Z') {
            p.ticks = user + system;
            out[n++] = p;
        }
        if (f)
            fclose(f);
    }
    closedir(d);
    return n;
}

static pid_t start(const char *options, const char *mark)
{
    char line[2048];
    snprintf(line, sizeof line, "exec '%s/lockstep' replay --math patterns --steps 1000 %s --seed %s '%s/scenarios/conditional-tower/b03-dummy-linked.yaml'",
             LS_BINARY_DIR, options, mark, LS_SOURCE_DIR);
    pid_t pid = fork();
    cr_assert(pid >= 0);
    if (pid == 0) {
        int null = open("/dev/null", O_RDWR);
        dup2(null, 0);
        dup2(null, 1);
        dup2(null, 2);
        setenv("ASAN_OPTIONS", "detect_leaks=0", 1); /* Open MPI leaves memory behind */
        execl("/bin/sh", "sh", "-c", line, (char *)NULL);
        _exit(126);
    }
    return pid;
}

/* How it ended, as a shell tells it. */
static int end_of(pid_t pid)
{
    int status = 0;
    for (int i = 0; i < 3000; i++) {
        if (waitpid(pid, &status, WNOHANG) == pid)
            return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
        nap(20);
    }
    return -1;
}

enum who { THE_COMMAND, A_WORKER, MPIRUN };

/* Starts a run of `workers` processes beside the command (0: none), sends the signal when all are in the run, and wants them all gone. */
static void ends(const char *options, size_t workers, enum who who, int signal_number, int want)
{
    static unsigned runs;
    char mark[32];
    struct seen p[PROCESSES_MAX];
    snprintf(mark, sizeof mark, "%u", 100000u * (unsigned)getpid() + ++runs);
    pid_t command = start(options, mark), victim = 0;
    for (int i = 0; i < 3000 && !victim; i++) {
        size_t n = processes(mark, p), running = 0;
        pid_t worker = 0, mpirun = 0;
        for (size_t k = 0; k < n; k++) {
            bool counts = workers ? p[k].pid != command : p[k].pid == command;
            if (strcmp(p[k].name, "mpirun") == 0 || strcmp(p[k].name, "orterun") == 0)
                mpirun = p[k].pid;
            else if (counts && p[k].ticks >= TICKS) {
                worker = p[k].pid;
                running++;
            }
        }
        cr_assert(waitpid(command, NULL, WNOHANG) == 0, "it ended by itself: %s", options);
        if (running == (workers ? workers : 1))
            victim = who == THE_COMMAND ? command : who == A_WORKER ? worker : mpirun;
        nap(20);
    }
    cr_assert(victim, "the run did not start: %s", options);
    kill(victim, signal_number);
    int status = end_of(command);
    size_t left = 1;
    for (int i = 0; i < 1500 && left; i++) {
        left = processes(mark, p);
        if (left)
            nap(20);
    }
    for (size_t i = 0; i < left; i++)
        kill(p[i].pid, SIGKILL);
    cr_expect_eq(left, 0, "%zu processes stayed, such as %s: %s, signal %d", left, p[0].name, options, signal_number);
    cr_expect_eq(status, want, "ended with %d, not %d: %s, signal %d", status, want, options, signal_number);
}

Test(processes, one_process_dies_of_the_signal)
{
    ends("", 0, THE_COMMAND, SIGINT, 128 + SIGINT);
    ends("--free", 0, THE_COMMAND, SIGTERM, 128 + SIGTERM);
}

Test(processes, a_killed_process_ends_the_others)
{
    if (!ls_mpi_built_in())
        cr_skip_test("this build leaves out MPI");
    ends("--comm mpi --replicas 2", 2, A_WORKER, SIGKILL, 4);
    ends("--ranks-per-process 2 --replicas 4 --free", 2, A_WORKER, SIGTERM, 4);
}

Test(processes, the_command_takes_the_others_with_it)
{
    if (!ls_mpi_built_in())
        cr_skip_test("this build leaves out MPI");
    ends("--comm mpi --replicas 2", 2, THE_COMMAND, SIGINT, 128 + SIGINT);
    ends("--comm mpi --replicas 2", 2, THE_COMMAND, SIGKILL, 128 + SIGKILL);
}

Test(processes, so_does_mpirun)
{
    if (!ls_mpi_built_in())
        cr_skip_test("this build leaves out MPI");
    ends("--comm mpi --replicas 2", 2, MPIRUN, SIGKILL, 4);
}
