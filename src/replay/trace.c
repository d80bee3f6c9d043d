#include "replay/trace.h"

#include "base/chrome.h"

enum { PS_PER_NS = 1000 };

static void add_span(struct ls_str *out, const struct ls_tables *t, const struct ls_op *op, const struct ls_train *x, const struct ls_train_span *s,
                     struct ls_str *text)
{
    bool wait = op->kind == LS_OP_WAIT;
    if (op->kind == LS_OP_RECORD)
        return;
    ls_str_clear(text);
    if (wait)
        ls_str_add(text, "wait");
    else
        ls_str_printf(text, "%s %s", op->kind == LS_OP_COMPUTE ? ls_pass_name(s->pass) : ls_op_kind_name(s->kind), s->label);
    ls_chrome_span(out, ls_str_text(text), wait ? "wait" : ls_op_uses_comm(op) ? "communication" : ls_op_kind_name(s->kind), s->rank, s->stream,
                   s->begin_ns * PS_PER_NS, s->end_ns * PS_PER_NS);
    ls_str_add(out, ",\"args\":{\"busy\":");
    ls_chrome_us(out, s->busy_ns * PS_PER_NS);
    ls_str_printf(out, ",\"step\":%u,\"segment\":%u,\"index\":%u", s->step + 1, s->at.segment, s->at.op);
    if (s->step < x->warmup)
        ls_str_add(out, ",\"warmup\":true");
    if (wait || ls_op_uses_comm(op)) {
        ls_str_clear(text);
        if (wait)
            ls_str_add(text, ls_tables_name(t, t->event.at[op->event]));
        else
            ls_op_print(text, t, op);
        ls_str_printf(out, ",\"%s\":", wait ? "event" : "op");
        ls_chrome_text(out, ls_str_text(text));
    }
    ls_str_add(out, "}");
    ls_chrome_end(out);
}

void ls_train_trace(const struct ls_train_case *c, const struct ls_train *t, struct ls_str *out)
{
    const struct ls_job *job = c->setup->job;
    struct ls_str text = { 0 };
    ls_chrome_open(out);
    for (size_t r = 0; r < t->ranks; r++) {
        ls_str_clear(&text);
        ls_str_printf(&text, "rank %zu", r);
        ls_chrome_name(out, "process_name", r, 0, "name", ls_str_text(&text));
        ls_chrome_name(out, "process_labels", r, 0, "labels", c->scenario->name);
        for (size_t s = 0; s < job->tables->stream.count; s++)
            ls_chrome_name(out, "thread_name", r, s, "name", ls_tables_name(job->tables, job->tables->stream.at[s]));
    }
    for (size_t i = 0; i < t->spans; i++) {
        const struct ls_train_span *s = &t->span[i];
        add_span(out, job->tables, &job->rank[s->rank].segment[s->at.segment]->op[s->at.op], t, s, &text);
    }
    ls_chrome_close(out);
    ls_str_release(&text);
}
