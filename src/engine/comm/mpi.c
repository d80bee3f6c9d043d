#include "engine/comm/mpi.h"

#include "base/arena.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

bool ls_mpi_is_launched(void)
{
    static const char *const set[] = { "OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK" };
    for (size_t i = 0; i < sizeof set / sizeof *set; i++)
        if (getenv(set[i]))
            return true;
    return false;
}

#ifndef LS_MPI
bool ls_mpi_built_in(void) { return false; }

enum ls_code ls_mpi_open(struct ls_world **out, const volatile sig_atomic_t *interrupted, struct ls_error *err)
{
    (void)interrupted;
    *out = NULL;
    ls_fail(err, LS_EBACKEND, LS_NOWHERE, "this build leaves out MPI, which was not there, or switched off, when it was configured");
    ls_hint(err, "Debian: libopenmpi-dev");
    return LS_EBACKEND;
}
#else
#include <mpi.h>

/* Counts of MPI are ints: longer messages travel in pieces, in order. */
enum { PIECE_MAX = 1 << 30, TAG_LAST = 1, TAG_MORE = 2 };

struct flight { MPI_Request request; void *at; bool frees; };
struct world {
    struct ls_world w;            /* first */
    MPI_Comm comm;
    LS_VEC(struct flight) flight; /* sends under way */
    struct ls_message *partial;   /* [processes] */
    pid_t parent;
    unsigned calls;
};

bool ls_mpi_built_in(void) { return true; }

static enum ls_code check(struct world *x, int rc, const char *what, struct ls_error *err)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    if (rc == MPI_SUCCESS)
        return LS_OK;
    x->w.broken = true;
    MPI_Error_string(rc, text, &length);
    return ls_fail(err, LS_EBACKEND, LS_NOWHERE, "%s: %s", what, text);
}

static enum ls_code progress(struct world *x, struct ls_error *err)
{
    enum { LOOK_EVERY = 256 };
    enum ls_code rc = LS_OK;
    for (size_t i = 0; i < x->flight.count && rc == LS_OK;) {
        int done = 0;
        rc = check(x, MPI_Test(&x->flight.at[i].request, &done, MPI_STATUS_IGNORE), "MPI_Test", err);
        if (rc != LS_OK || !done) {
            i++;
            continue;
        }
        if (x->flight.at[i].frees)
            free(x->flight.at[i].at);
        x->flight.at[i] = x->flight.at[--x->flight.count];
    }
    /* mpirun killed the hard way cannot end us. */
    if (rc == LS_OK && ++x->calls % LOOK_EVERY == 0 && getppid() != x->parent)
        rc = ls_fail(err, LS_EBACKEND, LS_NOWHERE, "mpirun has died");
    x->w.broken |= rc != LS_OK;
    return rc;
}

static enum ls_code mpi_send(struct ls_world *w, size_t to, void *at, size_t bytes, struct ls_error *err)
{
    struct world *x = (struct world *)w;
    enum ls_code rc = LS_OK;
    for (size_t sent = 0; rc == LS_OK; ) {
        size_t left = bytes - sent, n = left > PIECE_MAX ? PIECE_MAX : left;
        struct flight f = { MPI_REQUEST_NULL, at, n == left };
        rc = check(x, MPI_Isend((char *)at + sent, (int)n, MPI_BYTE, (int)to, n == left ? TAG_LAST : TAG_MORE, x->comm, &f.request), "MPI_Isend", err);
        if (rc == LS_OK)
            ls_push(&x->flight, f);
        sent += n;
        if (n == left)
            break;
    }
    return rc == LS_OK ? progress(x, err) : rc;
}

static enum ls_code mpi_receive(struct ls_world *w, struct ls_message *out, struct ls_error *err)
{
    struct world *x = (struct world *)w;
    MPI_Message message;
    MPI_Status status;
    int any = 0, bytes = 0;
    *out = (struct ls_message){ 0 };
    enum ls_code rc = progress(x, err);
    if (rc == LS_OK)
        rc = check(x, MPI_Improbe(MPI_ANY_SOURCE, MPI_ANY_TAG, x->comm, &any, &message, &status), "MPI_Improbe", err);
    if (rc != LS_OK || !any)
        return rc;
    MPI_Get_count(&status, MPI_BYTE, &bytes);
    struct ls_message *m = &x->partial[status.MPI_SOURCE];
    char *at = realloc(m->at, m->bytes + (size_t)bytes + 1);
    if (!at)
        ls_out_of_memory(m->bytes + (size_t)bytes);
    m->at = at;
    rc = check(x, MPI_Mrecv(at + m->bytes, bytes, MPI_BYTE, &message, MPI_STATUS_IGNORE), "MPI_Mrecv", err);
    m->bytes += (size_t)bytes;
    if (rc != LS_OK || status.MPI_TAG != TAG_LAST)
        return rc;
    *out = (struct ls_message){ (size_t)status.MPI_SOURCE, m->at, m->bytes };
    *m = (struct ls_message){ 0 };
    return LS_OK;
}

static bool is_over(const struct ls_world *w) { return w->broken || (w->interrupted && *w->interrupted); }

/* What was sent is received, and everybody is here. */
static void leave_together(struct world *x)
{
    MPI_Request request;
    int done = 0;
    for (unsigned rounds = 0; x->flight.count && !is_over(&x->w) && progress(x, NULL) == LS_OK; rounds++)
        ls_world_nap(rounds);
    if (is_over(&x->w) || check(x, MPI_Ibarrier(x->comm, &request), "MPI_Ibarrier", NULL) != LS_OK)
        return;
    for (unsigned rounds = 0; !done && !is_over(&x->w) && progress(x, NULL) == LS_OK; rounds++)
        if (check(x, MPI_Test(&request, &done, MPI_STATUS_IGNORE), "MPI_Test", NULL) == LS_OK && !done)
            ls_world_nap(rounds);
}

static void mpi_close(struct ls_world *w)
{
    struct world *x = (struct world *)w;
    if (!w)
        return;
    leave_together(x);
    /* Otherwise the end of this process, without a word to MPI, makes mpirun end the others. */
    if (!is_over(w)) {
        MPI_Comm_free(&x->comm);
        MPI_Finalize();
    }
    for (size_t i = 0; i < w->processes; i++)
        free(x->partial[i].at);
    ls_vec_release(&x->flight); /* not what MPI may still read */
    ls_world_release(w);
    free(x->partial);
    free(x);
}

static const struct ls_world_ops ops = { "mpi", mpi_send, mpi_receive, mpi_close };

enum ls_code ls_mpi_open(struct ls_world **out, const volatile sig_atomic_t *interrupted, struct ls_error *err)
{
    int provided = MPI_THREAD_SINGLE, size = 1, number = 0, before = 0;
    *out = NULL;
    MPI_Initialized(&before);
    if (before)
        return ls_fail(err, LS_EBACKEND, LS_NOWHERE, "MPI can be started only once in a process");
    struct world *x = calloc(1, sizeof *x);
    if (!x)
        ls_out_of_memory(sizeof *x);
    enum ls_code rc = check(x, MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &provided), "MPI_Init_thread", err);
    if (rc == LS_OK)
        rc = check(x, MPI_Comm_dup(MPI_COMM_WORLD, &x->comm), "MPI_Comm_dup", err);
    if (rc == LS_OK && provided < MPI_THREAD_FUNNELED)
        rc = ls_fail(err, LS_EBACKEND, LS_NOWHERE, "this MPI does not work in a process with threads");
    if (rc != LS_OK) {
        free(x);
        return rc;
    }
    MPI_Comm_set_errhandler(x->comm, MPI_ERRORS_RETURN);
    MPI_Comm_size(x->comm, &size);
    MPI_Comm_rank(x->comm, &number);
    x->w = (struct ls_world){ .ops = &ops, .processes = (size_t)size, .number = (size_t)number, .ranks_per_process = 1, .interrupted = interrupted };
    x->partial = calloc((size_t)size, sizeof *x->partial);
    if (!x->partial)
        ls_out_of_memory((size_t)size * sizeof *x->partial);
    x->parent = getppid();
    *out = &x->w;
    return LS_OK;
}
#endif
