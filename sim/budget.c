#include "sim/budget.h"

#include "fsdp2/compile.h"

#include <assert.h>

#define PLAIN_NAME(id, name) name,
static const char *const budget_name[] = { LS_BUDGET(PLAIN_NAME) };

const char *ls_budget_name(enum ls_budget b)
{
    assert((unsigned)b < LS_BUDGET_COUNT);
    return budget_name[b];
}
static enum ls_budget budget_of(enum ls_op_kind kind)
{
    return kind == LS_OP_ALL_GATHER ? LS_BUDGET_ALL_GATHER : kind == LS_OP_REDUCE_SCATTER ? LS_BUDGET_REDUCE_SCATTER
           : kind == LS_OP_ALL_REDUCE ? LS_BUDGET_ALL_REDUCE : LS_BUDGET_COMMUNICATION;
}

static uint64_t overlap(uint64_t a, uint64_t b, uint64_t from, uint64_t to)
{
    uint64_t low = a > from ? a : from, high = b < to ? b : to;
    return high > low ? high - low : 0;
}

/* The compute stream waited from `from` to `to` for an event: what was going on where it was recorded? */
static void split_wait(struct ls_track *t, unsigned stream, uint64_t from, uint64_t to)
{
    uint64_t rest = to - from;
    if (stream < LS_TRACKED) {
        size_t kept = 0;
        for (size_t i = 0; i < t->busy[stream].count; i++) {
            struct ls_busy_span s = t->busy[stream].at[i];
            uint64_t waiting = overlap(s.ready, s.start, from, to), moving = overlap(s.start, s.end, from, to);
            waiting = waiting < rest ? waiting : rest; /* ops of one fused group overlap */
            moving = moving < rest - waiting ? moving : rest - waiting;
            t->budget[LS_BUDGET_WAITING] += waiting;
            t->budget[s.kind] += moving;
            rest -= waiting + moving;
            if (s.end > to)
                t->busy[stream].at[kept++] = s;
        }
        t->busy[stream].count = kept;
    }
    t->budget[LS_BUDGET_IDLE] += rest;
}
struct ls_track *ls_track_open(size_t events, struct ls_arena *arena)
{
    struct ls_track *t = LS_NEW(arena, struct ls_track, 1);
    t->stream_of = LS_NEW(arena, uint8_t, events + 1);
    return t;
}

void ls_track_release(struct ls_track *t)
{
    for (size_t s = 0; s < LS_TRACKED; s++)
        ls_vec_release(&t->busy[s]);
}

void ls_track_note(struct ls_track *t, const struct ls_sim_span *s)
{
    const struct ls_op *op = s->op;
    bool collective = ls_op_uses_comm(op);
    if (op->kind == LS_OP_RECORD)
        t->stream_of[op->event] = op->stream;
    if (ls_op_is_host(op))
        return;
    if (op->stream != LS_STREAM_D) {
        if (collective && op->stream < LS_TRACKED)
            ls_push(&t->busy[op->stream], (struct ls_busy_span){ s->ready_ps, s->start_ps, s->end_ps, budget_of((enum ls_op_kind)op->kind) });
        return;
    }
    if (s->head_ps > t->last)
        t->budget[LS_BUDGET_IDLE] += s->head_ps - t->last;
    t->budget[LS_BUDGET_LAUNCH] += s->ready_ps - s->head_ps;
    t->last = s->end_ps;
    if (op->kind == LS_OP_WAIT) {
        split_wait(t, t->stream_of[op->event], s->ready_ps, s->end_ps);
        return;
    }
    t->budget[LS_BUDGET_WAITING] += collective ? s->start_ps - s->ready_ps : 0;
    assert(collective || s->start_ps == s->ready_ps);
    enum ls_budget kind = collective ? budget_of((enum ls_op_kind)op->kind)
                          : op->kind == LS_OP_COMPUTE ? (op->pass == LS_PASS_OPT ? LS_BUDGET_OPTIMIZER : LS_BUDGET_COMPUTE)
                          : LS_BUDGET_COPIES;
    t->budget[kind] += s->end_ps - s->start_ps;
}
