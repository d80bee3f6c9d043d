/* src/engine/comm/mpi.h -- processes under mpirun as a world. Where MPI was not found at configure time, open says so. */
#ifndef LS_ENGINE_COMM_MPI_H
#define LS_ENGINE_COMM_MPI_H

#include "engine/comm/world.h"

bool ls_mpi_built_in(void);
/* Was this process started by mpirun (or srun)? By the environment; nothing is initialised. */
bool ls_mpi_is_launched(void);

/* Once in a process' life; by the thread that will send and receive. `interrupted` may be NULL. close waits for the other processes to
 * close; not if the flag is set or messages fail: the caller then ends its process with a status other than 0, and mpirun the others.
 *   errors  LS_EBACKEND: MPI was left out, or does not start */
LS_MUST_USE enum ls_code ls_mpi_open(struct ls_world **out, const volatile sig_atomic_t *interrupted, struct ls_error *err);

#endif
