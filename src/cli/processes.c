#include "cli/processes.h"

#include "base/arena.h"
#include "base/vec.h"
#include "engine/comm/mpi.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RANKS_MAX = 4096 };

enum ls_code ls_processes_open(const struct ls_cli *cli, struct ls_processes *p, const volatile sig_atomic_t *interrupted, struct ls_error *err)
{
    const char *comm = ls_cli_value(cli, "comm");
    *p = (struct ls_processes){ .on = ls_cli_value(cli, "ranks-per-process") != NULL, .processes = 1, .interrupted = interrupted };
    if (comm && strcmp(comm, "mpi") != 0 && strcmp(comm, "threads") != 0)
        return ls_fail(err, LS_EUSAGE, LS_NOWHERE, "'--comm' is '%s'; there are 'threads' and 'mpi'", comm);
    if (comm && strcmp(comm, "threads") == 0 && p->on)
        return ls_fail(err, LS_EUSAGE, LS_NOWHERE, "'--ranks-per-process' is for '--comm mpi'; 'threads' has one process");
    enum ls_code rc = ls_cli_uint(cli, "ranks-per-process", 1, RANKS_MAX, &p->per, err);
    p->on |= comm && strcmp(comm, "mpi") == 0;
    if (rc == LS_OK && p->on && (ls_mpi_is_launched() || !ls_mpi_built_in()))
        rc = ls_mpi_open(&p->world, interrupted, err);
    if (p->world) {
        p->silent = p->world->number > 0;
        p->processes = p->world->processes;
    }
    return rc;
}

/* --- becoming mpirun ------------------------------------------------------------------------------------------------- */

struct words { LS_VEC(char *) at; };

static void say(struct words *w, const char *word)
{
    char *copy = strdup(word);
    if (!copy)
        ls_out_of_memory(strlen(word));
    ls_push(&w->at, copy);
}

/* One machine, whatever it is: a container with little shared memory, no network but its own, no ssh, fewer cores than processes. */
static void say_mpirun(struct words *w, size_t processes)
{
    static const char *const fixed[] = { "--oversubscribe", "--bind-to", "none" };
    static const char *const mca[][2] = {
        { "plm", "isolated" },                         /* no other machine, hence no ssh */
        { "pml", "ob1" }, { "btl", "self,vader,tcp" }, /* shared memory; the loopback where there is none */
        { "btl_vader_single_copy_mechanism", "none" }, /* copying between processes is forbidden in most containers */
        { "btl_tcp_if_include", "lo" },
        { "mpi_yield_when_idle", "1" },
    };
    char n[32];
    say(w, "mpirun");
    for (size_t i = 0; i < sizeof fixed / sizeof *fixed; i++)
        say(w, fixed[i]);
    if (geteuid() == 0)
        say(w, "--allow-run-as-root");
    for (size_t i = 0; i < sizeof mca / sizeof *mca; i++) {
        say(w, "--mca");
        say(w, mca[i][0]);
        say(w, mca[i][1]);
    }
    say(w, "-n");
    snprintf(n, sizeof n, "%zu", processes);
    say(w, n);
}

/* The words that started this process, `more` in front of its arguments. */
static enum ls_code say_self(const char *more, struct words *w, struct ls_error *err)
{
    char self[4096];
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    FILE *f = fopen("/proc/self/cmdline", "r");
    char *word = NULL;
    size_t room = 0;
    if (length < 0 || !f) {
        if (f)
            fclose(f);
        return ls_fail(err, LS_EBACKEND, LS_NOWHERE, "cannot read /proc/self: %s", strerror(errno));
    }
    self[length] = '\0';
    say(w, self);
    if (more)
        say(w, more);
    for (bool first = true; getdelim(&word, &room, '\0', f) >= 0; first = false)
        if (!first)
            say(w, word);
    free(word);
    fclose(f);
    return LS_OK;
}

/* Where process 0 leaves the status of the run: mpirun's own tells nothing apart, and has words for every status but 0. */
#define STATUS_FILE "LOCKSTEP_STATUS_FILE"

static _Noreturn void be_mpirun(struct words *w, pid_t parent)
{
    int nothing = open("/dev/null", O_RDONLY);
    /* A terminal's Ctrl-C is for the parent, which passes it on once. */
    setpgid(0, 0);
    if (nothing >= 0)
        dup2(nothing, STDIN_FILENO);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() == parent)
        execvp(w->at.at[0], w->at.at);
    _exit(127);
}

/* Until it has ended; its wait status. */
static int wait_for(pid_t child, const volatile sig_atomic_t *interrupted)
{
    int status = 0;
    bool told = false;
    while (waitpid(child, &status, WNOHANG) == 0) {
        if (interrupted && *interrupted && !told) {
            kill(child, SIGTERM);
            told = true;
        }
        nanosleep(&(struct timespec){ .tv_nsec = 10 * 1000 * 1000 }, NULL);
    }
    return status;
}

static bool read_status(int fd, int *status)
{
    char text[16] = "";
    return pread(fd, text, sizeof text - 1, 0) > 0 && sscanf(text, "%d", status) == 1;
}

static enum ls_code no_status(int wait_status, struct ls_error *err)
{
    int code = WIFEXITED(wait_status) ? WEXITSTATUS(wait_status) : 128 + WTERMSIG(wait_status);
    if (code == 127) {
        ls_fail(err, LS_EBACKEND, LS_NOWHERE, "mpirun cannot be started");
        ls_hint(err, "Debian: openmpi-bin");
        return LS_EBACKEND;
    }
    if (WIFSIGNALED(wait_status))
        return ls_fail(err, LS_EBACKEND, LS_NOWHERE, "mpirun was ended by signal %d (%s), and the processes of the run with it", code - 128,
                       strsignal(code - 128));
    if (code > 128)
        return ls_fail(err, LS_EBACKEND, LS_NOWHERE, "a process was ended by signal %d (%s), and mpirun ended the others", code - 128,
                       strsignal(code - 128));
    ls_fail(err, LS_EBACKEND, LS_NOWHERE, "mpirun ended with status %d before the run did", code);
    ls_hint(err, "it was told to end, or could not start the processes");
    return LS_EBACKEND;
}

enum ls_code ls_processes_start(size_t processes, const char *more, const volatile sig_atomic_t *interrupted, int *status, struct ls_error *err)
{
    struct words w = { 0 };
    char path[4096];
    const char *folder = getenv("TMPDIR");
    snprintf(path, sizeof path, "%s/lockstep-XXXXXX", folder && *folder ? folder : "/tmp");
    int fd = mkstemp(path);
    if (fd < 0)
        return ls_fail(err, LS_EBACKEND, LS_NOWHERE, "cannot make a file in '%s': %s", folder && *folder ? folder : "/tmp", strerror(errno));
    /* Without a name it is gone when this process is, however that ends. */
    unlink(path);
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    snprintf(path, sizeof path, "/proc/%ld/fd/%d", (long)getpid(), fd);
    setenv(STATUS_FILE, path, 1);
    say_mpirun(&w, processes);
    enum ls_code rc = say_self(more, &w, err);
    ls_push(&w.at, NULL);
    fflush(NULL);
    pid_t parent = getpid(), child = rc == LS_OK ? fork() : -1;
    if (child == 0)
        be_mpirun(&w, parent);
    if (child < 0 && rc == LS_OK)
        rc = ls_fail(err, LS_EBACKEND, LS_NOWHERE, "cannot start a process: %s", strerror(errno));
    if (rc == LS_OK) {
        int ended = wait_for(child, interrupted);
        if (interrupted && *interrupted)
            rc = ls_fail(err, LS_EBACKEND, LS_NOWHERE, "interrupted");
        else if (!read_status(fd, status))
            rc = no_status(ended, err);
    }
    unsetenv(STATUS_FILE);
    close(fd);
    for (size_t i = 0; i < w.at.count; i++)
        free(w.at.at[i]);
    ls_vec_release(&w.at);
    return rc;
}

int ls_processes_status(const struct ls_processes *p, int status)
{
    const char *path = getenv(STATUS_FILE);
    FILE *f;
    if (p->delegated)
        return p->status;
    if (p->silent) /* mpirun ends all when one ends badly, perhaps before process 0 has spoken */
        return LS_OK;
    if (!p->on || !path || !ls_mpi_is_launched() || !(f = fopen(path, "w")))
        return status;
    bool written = fprintf(f, "%d\n", status) > 0;
    return fclose(f) == 0 && written ? LS_OK : status;
}

/* --- together -------------------------------------------------------------------------------------------------------- */

/* Everybody's code and error; the first that is not LS_OK is returned. Without a position where it is another process'. */
static enum ls_code agree(struct ls_processes *p, enum ls_code rc, struct ls_error *err)
{
    struct ls_world *w = p->world;
    struct ls_error mine = *err, failed = { 0 };
    struct ls_message *all = calloc(w->processes, sizeof *all);
    if (!all)
        ls_out_of_memory(w->processes * sizeof *all);
    mine.code = rc;
    mine.input.file = mine.source.file = NULL; /* pointers do not travel */
    enum ls_code sent = ls_world_exchange(w, &mine, sizeof mine, all, &failed);
    if (sent != LS_OK && rc == LS_OK) {
        *err = failed;
        rc = sent;
    }
    for (size_t i = 0; i < w->processes && sent == LS_OK && rc == LS_OK; i++) {
        struct ls_error other;
        memcpy(&other, all[i].at, sizeof other);
        if (other.code == LS_OK)
            continue;
        *err = other;
        rc = other.code;
        ls_hint(err, "in process %zu of %zu", i, w->processes);
    }
    ls_world_drop(w, all);
    free(all);
    p->entered = true;
    return rc;
}

enum ls_code ls_processes_enter(const struct ls_cli *cli, struct ls_processes *p, size_t ranks, struct ls_error *err)
{
    if (!p->on)
        return LS_OK;
    size_t given = p->world ? p->world->processes : 0, per = p->per ? (size_t)p->per : given ? (ranks + given - 1) / given : 1;
    size_t need = (ranks + per - 1) / per;
    if (!p->world) { /* output comes from mpirun: whether it goes to a terminal is known here only */
        enum ls_code rc = ls_processes_start(need, cli->colour_out ? "--color=always" : "--color=never", p->interrupted, &p->status, err);
        p->delegated = rc == LS_OK;
        return rc;
    }
    enum ls_code rc = LS_OK;
    if (need != given) {
        rc = ls_fail(err, LS_EUSAGE, LS_NOWHERE, "%zu ranks, %zu in each process, need %zu processes; there are %zu", ranks, per, need, given);
        ls_hint(err, "mpirun -n %zu", need);
    }
    p->world->ranks_per_process = per;
    return agree(p, rc, err);
}

enum ls_code ls_processes_close(struct ls_processes *p, enum ls_code rc, struct ls_error *err)
{
    if (!p->world)
        return rc;
    bool interrupted = p->world->interrupted && *p->world->interrupted;
    if (!p->entered && !interrupted)
        rc = agree(p, rc, err);
    if (p->world->broken) /* process 0 may never know */
        p->silent = false;
    p->world->ops->close(p->world);
    p->world = NULL;
    return rc;
}
