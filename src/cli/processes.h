/* src/cli/processes.h -- a run in several processes: who starts them, and how they begin and end together.
 *
 *     mpirun -n 4 lockstep replay --comm mpi FILE     somebody else has: this process joins
 *     lockstep replay --comm mpi FILE                 nobody has: this process starts mpirun with itself, and waits
 *
 * Every process reads the same file and comes to the same job. Only process 0 prints. An error that one has before the run (its file is
 * missing, say) becomes everybody's, so that none waits for one that will not come.
 *
 * Whoever dies, nobody stays: mpirun ends the processes of a run when one of them dies, they end when mpirun does, and mpirun gets
 * SIGTERM when the process that started it is interrupted or killed. */
#ifndef LS_CLI_PROCESSES_H
#define LS_CLI_PROCESSES_H

#include "cli/cli.h"
#include "engine/comm/world.h"

#include <signal.h>

struct ls_processes {
    bool on;                      /* --comm mpi, or --ranks-per-process */
    uint64_t per;                 /* ranks per process as asked; 0: one, or under a launcher, as many as it takes */
    size_t processes;             /* 1: this one alone */
    struct ls_world *world;       /* NULL: this process alone, or not yet started */
    const volatile sig_atomic_t *interrupted;
    bool entered, silent;         /* silent: another process prints */
    bool delegated;               /* mpirun was started, and has ended: `status` is the run's */
    int status;
};
/* The options --comm and --ranks-per-process; under a launcher, starts MPI.
 *   errors  LS_EUSAGE; LS_EBACKEND */
LS_MUST_USE enum ls_code ls_processes_open(const struct ls_cli *cli, struct ls_processes *p, const volatile sig_atomic_t *interrupted,
                                           struct ls_error *err);
/* Before the run, when its ranks are known. Where nobody has started the processes, starts them and waits (p->delegated).
 *   errors  of the first process that has one; LS_EUSAGE: the processes do not fit the ranks; LS_EBACKEND: no mpirun, or it ended before
 *           the run had: killed, say */
LS_MUST_USE enum ls_code ls_processes_enter(const struct ls_cli *cli, struct ls_processes *p, size_t ranks, struct ls_error *err);
/* After the run, however it went: waits for the others; returns the code of all. */
enum ls_code ls_processes_close(struct ls_processes *p, enum ls_code rc, struct ls_error *err);
/* With what to end this process, where `status` is the run's. */
int ls_processes_status(const struct ls_processes *p, int status);

/* mpirun with this program and its arguments, `more` in front of them unless it is NULL; *status: what process 0 gave to
 * ls_processes_status. With the flag set, ends them and returns LS_EBACKEND. */
LS_MUST_USE enum ls_code ls_processes_start(size_t processes, const char *more, const volatile sig_atomic_t *interrupted, int *status,
                                            struct ls_error *err);

#define LS_PROCESSES_OPTIONS                                                                                                  \
    { "comm", "NAME", "threads (default): one process; mpi: several, started by mpirun, or by this command itself" },         \
    { "ranks-per-process", "N", "with mpi, which it implies: ranks in each process (default 1; under mpirun, as it takes)" }

#endif
