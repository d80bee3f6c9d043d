#include "together.h"

#include "cli/processes.h"
#include "engine/comm/mpi.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct ls_world *together_open(void)
{
    const char *wanted = getenv("LS_PROCESSES");
    struct ls_world *w = NULL;
    struct ls_error err = { 0 };
    if (!ls_mpi_built_in()) {
        puts("skipped: this build leaves out MPI");
        exit(EXIT_SUCCESS);
    }
    int status = LS_OK;
    enum ls_code rc;
    if (!ls_mpi_is_launched()) {
        rc = ls_processes_start(wanted && *wanted ? strtoul(wanted, NULL, 10) : 2, NULL, NULL, &status, &err);
        if (rc != LS_OK)
            fprintf(stderr, "%s\n", err.text);
        exit(rc != LS_OK ? (int)rc : status);
    }
    rc = ls_mpi_open(&w, NULL, &err);
    if (rc != LS_OK) {
        fprintf(stderr, "%s\n", err.text);
        exit((int)rc);
    }
    if (w->number && !freopen("/dev/null", "w", stdout))
        exit(LS_EBACKEND);
    return w;
}

static struct ls_message *exchange(struct ls_world *w, const void *mine, size_t bytes)
{
    struct ls_message *all = calloc(w->processes, sizeof *all);
    struct ls_error err = { 0 };
    if (!all || ls_world_exchange(w, mine, bytes, all, &err) != LS_OK) {
        fprintf(stderr, "%s\n", err.text);
        exit(LS_EBACKEND);
    }
    return all;
}

void together_agree(struct ls_world *w, bool ok, const struct ls_str *why)
{
    struct ls_message *all = exchange(w, ls_str_text(why), ok ? 0 : why->length + 1);
    for (size_t i = 0; i < w->processes; i++) {
        if (!all[i].bytes)
            continue;
        if (i == w->number)
            fprintf(stderr, "process %zu of %zu: %s\n", i, w->processes, ls_str_text(why));
        fflush(stderr);
        _Exit(EXIT_FAILURE); /* mpirun ends the rest */
    }
    ls_world_drop(w, all);
    free(all);
}

int together_end(struct ls_world *w)
{
    struct ls_processes p = { .on = true, .silent = w->number > 0 };
    w->ops->close(w);
    return ls_processes_status(&p, EXIT_SUCCESS);
}

uint64_t together_number(struct ls_world *w, uint64_t number)
{
    struct ls_message *all = exchange(w, &number, sizeof number);
    memcpy(&number, all[0].at, sizeof number);
    ls_world_drop(w, all);
    free(all);
    return number;
}
