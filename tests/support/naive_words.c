#include "naive_words.h"

#include "naive_rules.h"

#include <assert.h>
#include <stdlib.h>

static size_t flatten(const struct ls_job *job, uint32_t rank, const struct ls_op **out)
{
    size_t n = 0;
    for (size_t s = 0; s < job->rank[rank].count; s++)
        for (size_t i = 0; i < job->rank[rank].segment[s]->count; i++)
            out[n++] = &job->rank[rank].segment[s]->op[i];
    return n;
}

enum { FLAT = 512 };

/* A word is what a member issues on one queue. */
static size_t word(const struct ls_job *job, uint32_t rank, uint32_t comm, const struct ls_op **out)
{
    const struct ls_op *all[FLAT];
    size_t n = flatten(job, rank, all), k = 0;
    for (size_t i = 0; i < n; i++)
        if (ls_op_is_collective(all[i]) && all[i]->comm == comm)
            out[k++] = all[i];
    return k;
}

static size_t p2p_word(const struct ls_job *job, uint32_t rank, uint32_t comm, enum ls_op_kind kind, uint32_t peer, const struct ls_op **out)
{
    const struct ls_op *all[FLAT];
    size_t n = flatten(job, rank, all), k = 0;
    for (size_t i = 0; i < n; i++)
        if (all[i]->kind == kind && all[i]->comm == comm && (uint32_t)all[i]->peer == peer)
            out[k++] = all[i];
    return k;
}

static bool words_match(const struct naive *n, const struct ls_op **x, size_t nx, const struct ls_op **y, size_t ny)
{
    if (nx != ny)
        return false;
    for (size_t i = 0; i < nx; i++)
        if (naive_compare(n, x[i], y[i]) != LS_DIFF_NONE)
            return false;
    return true;
}

bool naive_words_equal(const struct ls_job *job)
{
    struct naive n = { .job = job };
    const struct ls_op *x[FLAT], *y[FLAT];
    for (uint32_t c = 0; c < job->tables->comm.count; c++) {
        const struct ls_groups *g = &job->comm[c];
        for (uint32_t group = 0; group < g->groups; group++)
            for (uint32_t i = g->first[group]; i < g->first[group + 1]; i++) {
                size_t nx = word(job, g->rank[g->first[group]], c, x), ny = word(job, g->rank[i], c, y);
                if (!words_match(&n, x, nx, y, ny))
                    return false;
                for (uint32_t j = g->first[group]; j < g->first[group + 1]; j++) {
                    nx = p2p_word(job, g->rank[i], c, LS_OP_SEND, j - g->first[group], x);
                    ny = p2p_word(job, g->rank[j], c, LS_OP_RECV, i - g->first[group], y);
                    if (!words_match(&n, x, nx, y, ny))
                        return false;
                }
            }
    }
    return true;
}

/* Kahn's algorithm over ops, where the ops that pair are one node (found by union). Words must be equal. */
bool naive_graph_acyclic(const struct ls_job *job, enum ls_level level)
{
    const struct ls_op *op[NAIVE_RANKS][FLAT];
    size_t count[NAIVE_RANKS], base[NAIVE_RANKS + 1] = { 0 };
    for (uint32_t r = 0; r < job->ranks; r++) {
        count[r] = flatten(job, r, op[r]);
        base[r + 1] = base[r] + count[r];
    }
    size_t total = base[job->ranks];
    size_t *same = malloc((total + 1) * sizeof *same);
    unsigned char *edge = calloc(total * total + 1, 1);
    assert(same && edge);
    for (size_t i = 0; i < total; i++)
        same[i] = i;
    for (uint32_t r = 0; r < job->ranks; r++)
        for (size_t i = 0; i < count[r]; i++) {
            const struct ls_op *a = op[r][i];
            if (!ls_op_uses_comm(a))
                continue;
            const struct ls_groups *g = &job->comm[a->comm];
            size_t k = 0;
            for (size_t j = 0; j < i; j++)
                k += op[r][j]->comm == a->comm && (ls_op_is_p2p(a) ? op[r][j]->kind == a->kind && op[r][j]->peer == a->peer
                                                                  : ls_op_is_collective(op[r][j]));
            uint32_t o = g->rank[g->first[g->group[r]] + (ls_op_is_p2p(a) ? (uint32_t)a->peer : 0)];
            enum ls_op_kind kind = a->kind == LS_OP_SEND ? LS_OP_RECV : LS_OP_SEND;
            for (size_t j = 0; j < count[o]; j++) {
                const struct ls_op *b = op[o][j];
                bool like = ls_op_is_p2p(a) ? b->kind == kind && b->comm == a->comm && (uint32_t)b->peer == g->member[r]
                                            : ls_op_is_collective(b) && b->comm == a->comm;
                if (like && k-- == 0) {
                    size_t x = base[r] + i, y = base[o] + j;
                    while (same[x] != x)
                        x = same[x];
                    while (same[y] != y)
                        y = same[y];
                    same[x > y ? x : y] = x > y ? y : x;
                    break;
                }
            }
        }
    for (uint32_t r = 0; r < job->ranks; r++)
        for (size_t i = 0; i < count[r]; i++)
            for (size_t j = 0; j < i; j++) {
                const struct ls_op *a = op[r][i], *b = op[r][j];
                bool streams = !ls_op_is_host(a) && !ls_op_is_host(b) && a->stream == b->stream;
                bool queue = ls_op_is_collective(a) ? ls_op_is_collective(b) && a->comm == b->comm
                                                    : ls_op_is_p2p(a) && b->kind == a->kind && b->comm == a->comm && b->peer == a->peer;
                bool host = level == LS_L1 || b->blocking || b->kind == LS_OP_HOST_WAIT || b->kind == LS_OP_COMM_INIT;
                bool event = (a->kind == LS_OP_WAIT || a->kind == LS_OP_HOST_WAIT) && b->kind == LS_OP_RECORD && b->event == a->event;
                for (size_t k = j + 1; k < i; k++)
                    event &= !(op[r][k]->kind == LS_OP_RECORD && op[r][k]->event == a->event);
                if (!streams && !queue && !host && !event)
                    continue;
                size_t x = base[r] + j, y = base[r] + i;
                while (same[x] != x)
                    x = same[x];
                while (same[y] != y)
                    y = same[y];
                edge[x * total + y] = 1;
            }
    bool *gone = calloc(total + 1, sizeof *gone), moved = true;
    assert(gone);
    size_t left = 0;
    for (size_t i = 0; i < total; i++)
        gone[i] = same[i] != i;
    while (moved) {
        moved = false;
        for (size_t y = 0; y < total; y++) {
            bool can = !gone[y];
            for (size_t x = 0; x < total && can; x++)
                can = gone[x] || !edge[x * total + y];
            if (can)
                gone[y] = moved = true;
        }
    }
    for (size_t i = 0; i < total; i++)
        left += !gone[i];
    free(same);
    free(edge);
    free(gone);
    return left == 0;
}
