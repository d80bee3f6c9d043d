/* A run as a Chrome trace, and what a watchdog would say of one that hangs. */
#include "sim/simulate.h"

#include "base/chrome.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

static void event(struct ls_str *out, const char *name, const char *category, const struct ls_sim_span *s, uint64_t from, uint64_t to)
{
    ls_chrome_span(out, name, category, s->at.rank, s->op->stream, from, to);
}

static void write_span(struct ls_str *out, const struct ls_tables *t, const struct ls_sim_span *s, struct ls_str *text)
{
    const struct ls_op *op = s->op;
    bool collective = ls_op_uses_comm(op);
    if (op->kind == LS_OP_ALLOC || op->kind == LS_OP_FREE || op->kind == LS_OP_MARK || op->kind == LS_OP_RECORD)
        return;
    if (op->kind == LS_OP_WAIT) {
        if (s->end_ps > s->ready_ps) {
            event(out, "wait", "wait", s, s->ready_ps, s->end_ps);
            ls_str_add(out, ",\"args\":{\"event\":");
            ls_chrome_text(out, ls_tables_name(t, t->event.at[op->event]));
            ls_str_add(out, "}");
            ls_chrome_end(out);
        }
        return;
    }
    if (s->start_ps > s->ready_ps) {
        event(out, "waiting for ranks", "wait", s, s->ready_ps, s->start_ps);
        ls_chrome_end(out);
    }
    ls_str_clear(text);
    const char *kind = ls_op_kind_name((enum ls_op_kind)op->kind);
    if (op->kind == LS_OP_COMPUTE)
        ls_str_printf(text, "%s %s", ls_pass_name((enum ls_pass)op->pass), ls_tables_name(t, op->module));
    else
        ls_str_printf(text, "%s %s", kind, op->unit != LS_NO_ID ? ls_tables_name(t, op->unit)
                                           : op->payload != LS_NO_ID ? ls_tables_name(t, t->payload.at[op->payload].name) : "");
    event(out, ls_str_text(text), collective ? "communication" : kind, s, s->start_ps, s->end_ps);
    if (collective) {
        ls_str_clear(text);
        ls_op_print(text, t, op);
        ls_str_add(out, ",\"args\":{\"op\":");
        ls_chrome_text(out, ls_str_text(text));
        ls_str_printf(out, ",\"segment\":%u,\"index\":%u}", s->at.segment, s->at.op);
    }
    ls_chrome_end(out);
}

enum { GRAINS = 200 }; /* of the peak: the least change of memory that is written */

static int by_place(const void *a, const void *b)
{
    const struct ls_sim_span *x = a, *y = b;
    if (x->at.rank != y->at.rank)
        return x->at.rank < y->at.rank ? -1 : 1;
    if (x->at.segment != y->at.segment)
        return x->at.segment < y->at.segment ? -1 : 1;
    return x->at.op < y->at.op ? -1 : x->at.op > y->at.op;
}

/* Memory changes when the host gets there, which host-only ops tell; those of compute ops come with the one before. */
struct counter { struct ls_str *out; const struct ls_sim_span *span; size_t spans, at; uint32_t rank; uint64_t time; bool any;
                 uint64_t last[LS_MEMORY_COUNT], total, written, grain; };

static void flush_counter(struct counter *c)
{
    uint64_t change = c->total > c->written ? c->total - c->written : c->written - c->total;
    if (!c->any || change <= c->grain) /* what nobody would see makes traces of many ranks too long to open */
        return;
    c->written = c->total;
    ls_chrome_counter(c->out, "allocated bytes", c->rank, c->time);
    ls_str_add(c->out, ",\"args\":{");
    for (int k = 0, first = 1; k < LS_MEMORY_COUNT; k++)
        if (c->last[k]) {
            ls_str_printf(c->out, "%s\"%s\":%" PRIu64, first ? "" : ",", ls_memory_name((enum ls_memory_kind)k), c->last[k]);
            first = 0;
        }
    ls_str_add(c->out, "}");
    ls_chrome_end(c->out);
}

static void sample(void *context, uint32_t segment, uint32_t op, const uint64_t now[LS_MEMORY_COUNT])
{
    struct counter *c = context;
    uint64_t time = c->time;
    for (; c->at < c->spans; c->at++) {
        const struct ls_sim_span *s = &c->span[c->at];
        if (s->at.rank != c->rank || s->at.segment > segment || (s->at.segment == segment && s->at.op > op))
            break;
        if (s->op->kind == LS_OP_ALLOC || s->op->kind == LS_OP_FREE || s->op->kind == LS_OP_MARK)
            time = s->end_ps;
    }
    if (time != c->time)
        flush_counter(c);
    c->time = time;
    c->any = true;
    c->total = 0;
    for (int k = 0; k < LS_MEMORY_COUNT; k++)
        c->total += c->last[k] = now[k];
}

void ls_trace_write(const struct ls_scenario *s, const struct ls_simulation *x, struct ls_str *out)
{
    const struct ls_tables *t = x->job.tables;
    struct ls_str text = { 0 };
    ls_chrome_open(out);
    for (uint32_t r = 0; r < x->job.ranks; r++) {
        if (x->run.class_of[r] != r)
            continue;
        ls_str_clear(&text);
        ls_str_printf(&text, "rank %u: %s", r, x->rank_class[x->class_of[r]].samples);
        ls_chrome_name(out, "process_name", r, 0, "name", ls_str_text(&text));
        ls_chrome_name(out, "process_labels", r, 0, "labels", s->name);
        for (uint32_t i = 0; i < t->stream.count; i++)
            ls_chrome_name(out, "thread_name", r, i, "name", ls_tables_name(t, t->stream.at[i]));
    }
    for (size_t i = 0; i < x->spans; i++)
        write_span(out, t, &x->span[i], &text);
    struct ls_sim_span *sorted = malloc((x->spans + 1) * sizeof *sorted);
    if (!sorted)
        ls_out_of_memory(x->spans * sizeof *sorted);
    for (size_t i = 0; i < x->spans; i++)
        sorted[i] = x->span[i];
    qsort(sorted, x->spans, sizeof *sorted, by_place);
    for (size_t i = 0; i < x->spans;) {
        size_t end = i;
        while (end < x->spans && sorted[end].at.rank == sorted[i].at.rank)
            end++;
        struct counter c = { .out = out, .span = sorted, .spans = end, .at = i, .rank = sorted[i].at.rank,
                             .grain = x->rank_class[x->class_of[sorted[i].at.rank]].memory.peak / GRAINS };
        struct ls_sim_memory memory;
        struct ls_memory_input in = x->memory_input[x->class_of[c.rank]];
        in.sample = sample;
        in.sample_context = &c;
        ls_memory_of_rank(&in, &x->job.rank[c.rank], &memory);
        flush_counter(&c);
        i = end;
    }
    ls_chrome_close(out);
    free(sorted);
    ls_str_release(&text);
}

bool ls_watchdog_first(const struct ls_simulation *x, struct ls_watchdog *out)
{
    if (!x->fate.killed)
        return false;
    struct ls_at at = x->fate.killed_at;
    const struct ls_rank_program *rank = &x->job.rank[at.rank];
    const struct ls_op *op = &rank->segment[at.segment]->op[at.op];
    *out = (struct ls_watchdog){ at, 1, x->fate.killed_ps };
    for (uint32_t s = 0; s <= at.segment; s++)
        for (uint32_t k = 0; k < rank->segment[s]->count && (s < at.segment || k < at.op); k++)
            out->sequence += ls_op_is_collective(&rank->segment[s]->op[k]) && rank->segment[s]->op[k].comm == op->comm;
    return true;
}
