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

/* A shell, which becomes the last command of the line; what it says on stderr goes to a file without a name. */
static pid_t start(const char *line, FILE *said)
{
    pid_t pid = fork();
    cr_assert(pid >= 0);
    if (pid == 0) {
        int null = open("/dev/null", O_RDWR);
        dup2(null, 0);
        dup2(null, 1);
        dup2(fileno(said), 2);
        setenv("ASAN_OPTIONS", "detect_leaks=0", 1); /* Open MPI leaves memory behind */
        execl("/bin/sh", "sh", "-c", line, (char *)NULL);
        _exit(126);
    }
    return pid;
}

static void expect_said(FILE *said, const char *want, const char *what)
{
    char text[8192] = "";
    ssize_t n = pread(fileno(said), text, sizeof text - 1, 0);
    cr_expect(n >= 0 && strstr(text, want), "%s: '%s' is not in '%s'", what, want, text);
    fclose(said);
}

static const char plan[] = LS_SOURCE_DIR "/scenarios/conditional-tower/b03-dummy-linked.yaml";

/* The same at level L3, one slot on each rank, in order: FSDP2's program runs through. */
static void write_l3(char *path)
{
    char text[8192] = "", *inventory;
    FILE *f = fopen(plan, "r");
    size_t n = f ? fread(text, 1, sizeof text - 1, f) : 0;
    cr_assert(n > 0 && n < sizeof text - 1);
    fclose(f);
    inventory = strstr(text, "models/");
    int fd = mkstemps(path, 5);
    cr_assert(inventory && fd >= 0 && (f = fdopen(fd, "w")) != NULL);
    fprintf(f, "%.*s" LS_SOURCE_DIR "/scenarios/%sruntime: {level: L3, l3: {kernels: 1, start: issue_order}}\n", (int)(inventory - text), text, inventory);
    cr_assert_eq(fclose(f), 0);
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

static void expect_gone(const char *mark, const char *what)
{
    struct seen p[PROCESSES_MAX];
    size_t left = 1;
    for (int i = 0; i < 1500 && left; i++) {
        left = processes(mark, p);
        if (left)
            nap(20);
    }
    for (size_t i = 0; i < left; i++)
        kill(p[i].pid, SIGKILL);
    cr_expect_eq(left, 0, "%zu processes stayed, such as %s: %s", left, p[0].name, what);
}

static const char *make_mark(char mark[32])
{
    static unsigned runs;
    snprintf(mark, 32, "%u", 100000u * (unsigned)getpid() + ++runs);
    return mark;
}

/* Starts a run of `workers` processes beside the command (0: none), sends the signal when all are in the run, and wants them all gone, the
 * command with a status and a word on what happened. */
static void file_ends(const char *file, const char *options, size_t workers, enum who who, int signal_number, int want, const char *says)
{
    char mark[32], line[2048];
    struct seen p[PROCESSES_MAX];
    FILE *said = tmpfile();
    cr_assert(said);
    snprintf(line, sizeof line, "exec '%s/lockstep' replay --math patterns --steps 1000 %s --seed %s '%s'", LS_BINARY_DIR, options, make_mark(mark), file);
    pid_t command = start(line, said), victim = 0;
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
    expect_gone(mark, options);
    cr_expect_eq(status, want, "ended with %d, not %d: %s, signal %d", status, want, options, signal_number);
    expect_said(said, says, options);
}

static void ends(const char *options, size_t workers, enum who who, int signal_number, int want, const char *says)
{
    file_ends(plan, options, workers, who, signal_number, want, says);
}

Test(processes, one_process_dies_of_the_signal)
{
    ends("", 0, THE_COMMAND, SIGINT, 128 + SIGINT, "interrupted; every rank has ended");
    ends("--free", 0, THE_COMMAND, SIGTERM, 128 + SIGTERM, "interrupted; every rank has ended");
}

Test(processes, a_killed_process_ends_the_others)
{
    if (!ls_mpi_built_in())
        cr_skip_test("this build leaves out MPI");
    ends("--comm mpi --replicas 2", 2, A_WORKER, SIGKILL, 4, "a process was ended by signal 9 (Killed), and mpirun ended the others");
    ends("--ranks-per-process 2 --replicas 4 --free", 2, A_WORKER, SIGTERM, 4, "a process was ended by signal 15 (Terminated), and mpirun ended the others");
}

/* Ranks that hold slots and wait for one that is gone end, too. */
Test(processes, a_killed_process_ends_the_others_at_level_3)
{
    char path[] = "/tmp/lockstep-processes-XXXXXX.yaml";
    if (!ls_mpi_built_in())
        cr_skip_test("this build leaves out MPI");
    write_l3(path);
    file_ends(path, "--ranks-per-process 1 --replicas 3", 3, A_WORKER, SIGKILL, 4, "a process was ended by signal 9 (Killed), and mpirun ended the others");
    file_ends(path, "--comm mpi --replicas 2", 2, MPIRUN, SIGTERM, 4, "mpirun ended with status");
    cr_assert_eq(unlink(path), 0);
}

Test(processes, the_command_takes_the_others_with_it)
{
    if (!ls_mpi_built_in())
        cr_skip_test("this build leaves out MPI");
    ends("--comm mpi --replicas 2", 2, THE_COMMAND, SIGINT, 128 + SIGINT, "interrupted; every rank has ended");
    ends("--comm mpi --replicas 2", 2, THE_COMMAND, SIGKILL, 128 + SIGKILL, "");
}

Test(processes, so_does_mpirun)
{
    if (!ls_mpi_built_in())
        cr_skip_test("this build leaves out MPI");
    ends("--comm mpi --replicas 2", 2, MPIRUN, SIGKILL, 4, "mpirun was ended by signal 9 (Killed), and the processes of the run with it");
    ends("--comm mpi --replicas 2", 2, MPIRUN, SIGTERM, 4, "mpirun ended with status");
}

#if defined(__SANITIZE_ADDRESS__)
#define LITTLE_MEMORY "export ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1:max_allocation_size_mb=30; "
#else
#define LITTLE_MEMORY "ulimit -d 400000; "
#endif

/* One of two processes is given too little memory: its error is told once, with its number, and the other does not wait for it. */
Test(processes, a_rank_without_memory_ends_the_run)
{
    static const char mpirun[] = "mpirun --oversubscribe --bind-to none --mca plm isolated --mca pml ob1 --mca btl self,vader,tcp "
                                 "--mca btl_vader_single_copy_mechanism none --mca btl_tcp_if_include lo";
    char path[] = "/tmp/lockstep-processes-XXXXXX.yaml", mark[32], run[1024], line[4096];
    if (!ls_mpi_built_in())
        cr_skip_test("this build leaves out MPI");
    int fd = mkstemps(path, 5);
    FILE *f = fd >= 0 ? fdopen(fd, "w") : NULL, *said = tmpfile();
    cr_assert(f && said);
    fputs("lockstep: 1\nname: small\nmodel: {inventory: " LS_SOURCE_DIR "/scenarios/models/small_qwen3_vl.yaml}\nfreeze_config: {freeze_vision_tower: true}\n"
          "distributed: {strategy: fsdp2, rules: automodel, dp_size: 2, multimodal: {frozen_sharding: root}}\n"
          "batch: {microbatches: 1, samples: [{text: 12}], execution: any}\nstep: {clip_grad_norm: true, metrics: [loss]}\n", f);
    cr_assert_eq(fclose(f), 0);
    snprintf(run, sizeof run, "'%s/lockstep' replay --comm mpi --math patterns --steps 1000 --seed %s %s", LS_BINARY_DIR, make_mark(mark), path);
    snprintf(line, sizeof line, "exec %s %s -n 1 %s : -n 1 sh -c \"" LITTLE_MEMORY "exec %s\"", mpirun, geteuid() == 0 ? "--allow-run-as-root" : "", run, run);
    int status = end_of(start(line, said));
    expect_gone(mark, "one process has little memory");
    cr_expect_eq(status, LS_EBACKEND, "ended with %d", status);
    FILE *again = fdopen(dup(fileno(said)), "r");
    cr_assert(again);
    expect_said(again, "out of memory: ", "one process has little memory");
    expect_said(said, "in process 1 of 2", "one process has little memory");
    cr_assert_eq(unlink(path), 0);
}
