#include "naive.h"

#include "base/hash.h"
#include "base/vec.h"
#include "naive_judge.h"
#include "naive_rules.h"

#include <assert.h>

static uint64_t agree(const struct ls_op *op, uint64_t so_far, uint64_t value, bool first)
{
    if (first)
        return value;
    if (op->reduce == LS_REDUCE_MAX)
        return so_far > value ? so_far : value;
    if (op->reduce == LS_REDUCE_MIN)
        return so_far < value ? so_far : value;
    if (op->reduce == LS_REDUCE_PROD)
        return so_far != 0 && value != 0;
    return so_far + value;
}

static void pair(struct naive *n, uint32_t rank, struct naive_op *a)
{
    struct naive_rank *r = &n->rank[rank];
    bool all = true;
    a->paired = true;
    for (size_t j = 0; j < r->count; j++)
        all &= !naive_same_bundle(r, a->index, j) || r->op[j].paired;
    for (size_t j = 0; j < r->count && all; j++)
        if (naive_same_bundle(r, a->index, j))
            r->op[j].done = true;
}

static bool group_can(struct naive *n, uint32_t comm, uint32_t group)
{
    const struct ls_groups *g = &n->job->comm[comm];
    const struct naive_op *first = NULL;
    for (uint32_t i = g->first[group]; i < g->first[group + 1]; i++) {
        const struct naive_op *a = naive_next_of(n, g->rank[i], comm);
        if (!naive_arrived(n, &n->rank[g->rank[i]], a))
            return false;
        if (!first)
            first = a;
        if (naive_compare(n, first->op, a->op) != LS_DIFF_NONE)
            return false;
    }
    return true;
}

static void group_do(struct naive *n, uint32_t comm, uint32_t group)
{
    const struct ls_groups *g = &n->job->comm[comm];
    uint64_t value = 0;
    struct naive_op *op[NAIVE_RANKS];
    uint32_t first = g->first[group], end = g->first[group + 1];
    for (uint32_t i = first; i < end; i++) {
        op[i - first] = naive_next_of(n, g->rank[i], comm);
        value = agree(op[i - first]->op, value, op[i - first]->op->value, i == first);
    }
    for (uint32_t i = first; i < end; i++) {
        if (op[i - first]->op->kind == LS_OP_DECIDE)
            op[i - first]->agreed = value ? 1 : 2;
        pair(n, g->rank[i], op[i - first]);
    }
    n->collectives++;
}

enum act { ISSUE, RUN, START, MEET, RECEIVE, SEND };
struct action { enum act act; uint32_t rank, index; };
typedef LS_VEC(struct action) action_vec;

static void find_actions(struct naive *n, action_vec *v)
{
    v->count = 0;
    for (uint32_t i = 0; i < n->job->ranks; i++) {
        struct naive_rank *r = &n->rank[i];
        for (uint32_t j = 0; j < r->count; j++) {
            const struct naive_op *a = &r->op[j];
            if (a->done && a->issued) /* nothing more happens to it; of a fused group some may be done before their thread gets to them */
                continue;
            if (naive_may_issue(n, r, j))
                ls_push(v, (struct action){ ISSUE, i, j });
            if (a->op->kind == LS_OP_HOST_WAIT && a->issued && !a->done && naive_event_done(r, j))
                ls_push(v, (struct action){ RUN, i, j });
            if (naive_is_stream(a) && !naive_is_comm(a) && naive_is_ready(n, r, j) && (a->op->kind != LS_OP_WAIT || naive_event_done(r, j)))
                ls_push(v, (struct action){ RUN, i, j });
            if (naive_may_start(n, r, j))
                ls_push(v, (struct action){ START, i, j });
            if (a->op->kind == LS_OP_RECV && naive_arrived(n, r, a)) {
                const struct naive_op *s = naive_partner_send(n, i, a);
                if (s && naive_compare(n, s->op, a->op) == LS_DIFF_NONE)
                    ls_push(v, (struct action){ RECEIVE, i, j });
            }
            if (a->op->kind == LS_OP_SEND && naive_buffered(n) && naive_arrived(n, r, a))
                ls_push(v, (struct action){ SEND, i, j });
        }
    }
    for (uint32_t c = 0; c < n->job->tables->comm.count; c++)
        for (uint32_t g = 0; g < n->job->comm[c].groups; g++)
            if (group_can(n, c, g))
                ls_push(v, (struct action){ MEET, c, g });
}

static void act(struct naive *n, struct action a)
{
    struct naive_rank *r = &n->rank[a.act == MEET ? 0 : a.rank];
    struct naive_op *op = a.act == MEET ? NULL : &r->op[a.index];
    switch (a.act) {
    case ISSUE:
        op->issued = true;
        if (ls_op_is_host(op->op) && op->op->kind != LS_OP_HOST_WAIT)
            op->done = true;
        r->stopped |= op->op->kind == LS_OP_STOP;
        break;
    case RUN:
        op->done = true;
        break;
    case START:
        for (size_t j = 0; j < r->count; j++)
            if (naive_same_bundle(r, a.index, j))
                r->op[j].started = true;
        break;
    case MEET:
        group_do(n, a.rank, a.index);
        break;
    case RECEIVE:
        if (!naive_buffered(n)) {
            const struct ls_groups *g = &n->job->comm[op->op->comm];
            struct naive_op *s = naive_send_for(n, a.rank, op);
            pair(n, g->rank[g->first[g->group[a.rank]] + (uint32_t)op->op->peer], s);
        }
        pair(n, a.rank, op);
        break;
    case SEND:
        pair(n, a.rank, op);
        break;
    }
}

void naive_run(struct naive *n, const struct ls_job *job, const struct ls_run_options *options, struct ls_arena *arena)
{
    *n = (struct naive){ .job = job, .o = options, .comm = LS_NO_ID, .group = LS_NO_ID, .missing_rank = LS_NO_ID };
    assert(job->ranks <= NAIVE_RANKS);
    for (uint32_t r = 0; r < job->ranks; r++) {
        size_t total = 0;
        for (size_t s = 0; s < job->rank[r].count; s++)
            total += job->rank[r].segment[s]->count;
        n->rank[r].op = LS_NEW(arena, struct naive_op, total);
        for (uint32_t s = 0; s < job->rank[r].count; s++) {
            const struct ls_segment *seg = job->rank[r].segment[s];
            size_t first = n->rank[r].count;
            for (uint32_t i = 0; i < seg->count; i++, n->rank[r].count++) {
                n->rank[r].decides |= seg->op[i].kind == LS_OP_DECIDE;
                n->rank[r].op[n->rank[r].count] = (struct naive_op){ .op = &seg->op[i], .at = { r, s, i }, .index = (uint32_t)n->rank[r].count,
                    .segment_first = first, .segment_end = first + seg->count };
            }
        }
    }
    uint64_t random = options->seed ^ 0x5bd1e995;
    action_vec v = { 0 };
    for (;;) {
        find_actions(n, &v);
        if (v.count == 0)
            break;
        act(n, v.at[ls_random_below(&random, v.count)]);
    }
    ls_vec_release(&v);
    bool all = true, stopped = false;
    for (uint32_t r = 0; r < job->ranks; r++) {
        for (size_t i = 0; i < n->rank[r].count; i++) {
            all &= n->rank[r].op[i].done || naive_path_of(&n->rank[r], i) == NAIVE_SKIPPED;
            n->completed += n->rank[r].op[i].done;
            n->issued += n->rank[r].op[i].issued;
        }
        if (n->rank[r].stopped && !stopped)
            n->missing_rank = r;
        stopped |= n->rank[r].stopped;
    }
    uint32_t first_stopped = n->missing_rank;
    n->missing_rank = LS_NO_ID;
    if (naive_judge_mismatch(n) || (all && !stopped))
        return;
    n->verdict = stopped ? LS_ERROR : LS_HANG;
    n->missing_rank = first_stopped;
    naive_judge_hang(n);
}
