#include "replay/trace.h"

#include "base/json.h"

#include <inttypes.h>

static void add_us(struct ls_str *out, uint64_t ns) { ls_str_printf(out, "%" PRIu64 ".%03" PRIu64, ns / 1000, ns % 1000); }

static void add_text(struct ls_str *out, const char *text)
{
    struct ls_json j;
    ls_json_init(&j, out, false);
    ls_json_text(&j, text);
}

/* Only names that the format knows: others are errors to some readers. */
static void metadata(struct ls_str *out, const char *what, size_t pid, size_t tid, const char *key, const char *name)
{
    const char *before = out->text[out->length - 1] == '[' ? "" : ",\n";
    ls_str_printf(out, "%s{\"ph\":\"M\",\"name\":\"%s\",\"pid\":%zu,\"tid\":%zu,\"args\":{\"%s\":", before, what, pid, tid, key);
    add_text(out, name);
    ls_str_add(out, "}}");
}

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
    ls_str_add(out, ",\n{\"ph\":\"X\",\"name\":");
    add_text(out, ls_str_text(text));
    ls_str_printf(out, ",\"cat\":\"%s\",\"pid\":%u,\"tid\":%u,\"ts\":", wait ? "wait" : ls_op_uses_comm(op) ? "communication" : ls_op_kind_name(s->kind),
                  s->rank, s->stream);
    add_us(out, s->begin_ns);
    ls_str_add(out, ",\"dur\":");
    add_us(out, s->end_ns - s->begin_ns);
    ls_str_add(out, ",\"args\":{\"busy\":");
    add_us(out, s->busy_ns);
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
        add_text(out, ls_str_text(text));
    }
    ls_str_add(out, "}}");
}

void ls_train_trace(const struct ls_train_case *c, const struct ls_train *t, struct ls_str *out)
{
    const struct ls_job *job = c->setup->job;
    struct ls_str text = { 0 };
    ls_str_add(out, "[");
    for (size_t r = 0; r < t->ranks; r++) {
        ls_str_clear(&text);
        ls_str_printf(&text, "rank %zu", r);
        metadata(out, "process_name", r, 0, "name", ls_str_text(&text));
        metadata(out, "process_labels", r, 0, "labels", c->scenario->name);
        for (size_t s = 0; s < job->tables->stream.count; s++)
            metadata(out, "thread_name", r, s, "name", ls_tables_name(job->tables, job->tables->stream.at[s]));
    }
    for (size_t i = 0; i < t->spans; i++) {
        const struct ls_train_span *s = &t->span[i];
        add_span(out, job->tables, &job->rank[s->rank].segment[s->at.segment]->op[s->at.op], t, s, &text);
    }
    ls_str_add(out, "]\n");
    ls_str_release(&text);
}
