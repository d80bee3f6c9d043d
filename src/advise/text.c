/* The verdict as a person reads it. */
#include "advise/internal.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

enum { LABEL_COLUMNS = 12, SIDE_COLUMNS = 44 };

struct printer {
    const struct ls_scenario *s;
    const struct ls_assessment *a;
    const struct ls_tables *t;
    struct ls_str *out;
};

static void add_place(struct printer *p, struct ls_loc at)
{
    if (!at.file)
        return;
    const char *base = strrchr(at.file, '/');
    ls_str_printf(p->out, " (%s:%zu)", base ? base + 1 : at.file, at.line);
}

static void add_bytes(struct ls_str *out, uint64_t bytes)
{
    static const char *const unit[] = { "B", "KiB", "MiB", "GiB", "TiB" };
    double v = (double)bytes;
    size_t u = 0;
    while (v >= 1024 && u + 1 < sizeof unit / sizeof *unit)
        v /= 1024, u++;
    ls_str_printf(out, u && v < 10 ? "%.1f %s" : "%.0f %s", v, unit[u]);
}

static void add_seconds(struct ls_str *out, double s)
{
    if (s < 1e-3)
        ls_str_printf(out, "%.0f us", s * 1e6);
    else if (s < 1)
        ls_str_printf(out, "%.1f ms", s * 1e3);
    else
        ls_str_printf(out, "%.1f s", s);
}

static void add_upper(struct ls_str *out, const char *text)
{
    for (; *text; text++) {
        char c = (char)(*text == '_' ? ' ' : toupper((unsigned char)*text));
        ls_str_addn(out, &c, 1);
    }
}

static size_t group_ranks(const struct printer *p, struct ls_at at, const struct ls_op *op)
{
    const struct ls_groups *g = &p->a->check.witness->job.comm[op->comm];
    uint32_t group = g->group[at.rank];
    return group == LS_NO_ID ? 1 : g->first[group + 1] - g->first[group];
}

static void add_payload(struct printer *p, struct ls_at at, const struct ls_op *op, bool counts, struct ls_str *out)
{
    if (op->payload == LS_NO_ID) {
        ls_str_add(out, "-");
        return;
    }
    ls_str_add(out, ls_tables_name(p->t, p->t->payload.at[op->payload].name));
    uint64_t bytes = op->count * ls_dtype_bytes((enum ls_dtype)op->dtype);
    if (op->kind == LS_OP_ALL_GATHER || op->kind == LS_OP_REDUCE_SCATTER)
        bytes *= group_ranks(p, at, op);
    ls_str_add(out, " (");
    add_bytes(out, bytes);
    if (counts)
        ls_str_printf(out, ", count %llu", (unsigned long long)op->count);
    ls_str_add(out, ")");
}

static void add_when(const struct ls_op *op, struct ls_str *out)
{
    const char *pass = ls_pass_name((enum ls_pass)op->pass);
    if (!*pass)
        ls_str_add(out, "-");
    else if (op->pass == LS_PASS_OPT)
        ls_str_add(out, "step end");
    else
        ls_str_printf(out, "%s, microbatch %u", pass, op->microbatch);
}

static enum ls_round_kind kind_of_round(const struct printer *p, size_t round)
{
    const struct ls_compiled *c = &p->a->compiled;
    uint32_t number = c->system.driver.node[p->a->check.witness->assignment.node[round]].round;
    return number < c->rounds.count ? c->rounds.round[number].kind : LS_ROUND_MICRO;
}

static bool holds_batch(enum ls_round_kind kind) { return kind != LS_ROUND_STEP && kind != LS_ROUND_IDLE; }

/* What the rank holds or does there. The end of a step has no batch, whatever letter stands for that: it has those of its
 * microbatches, if they are all alike. LS_NO_ID: nothing can be said in a word. */
static uint32_t telling_letter(const struct printer *p, struct ls_at at)
{
    const struct ls_witness *w = p->a->check.witness;
    const struct ls_letters *l = &p->a->compiled.letters;
    size_t roles = p->a->compiled.system.replica->roles, replicas = w->job.ranks / roles, replica = at.rank / roles;
    uint32_t letter = w->assignment.letter[at.segment * replicas + replica], held = LS_NO_ID;
    if (!l->letter || l->letter[letter].events || holds_batch(kind_of_round(p, at.segment)))
        return letter;
    for (size_t r = at.segment; r-- > 0 && kind_of_round(p, r) != LS_ROUND_STEP;) {
        uint32_t before = l->letter[w->assignment.letter[r * replicas + replica]].base;
        if (!holds_batch(kind_of_round(p, r)))
            continue;
        if (held != LS_NO_ID && held != before)
            return LS_NO_ID;
        held = before;
    }
    return held;
}

static void add_rank(struct printer *p, struct ls_at at, struct ls_str *out)
{
    const struct ls_witness *w = p->a->check.witness;
    const struct ls_transducer *t = p->a->compiled.system.replica;
    ls_str_printf(out, "rank %u", at.rank);
    if (p->s->kind == LS_PLAN_RAW || !t->letter_name || at.segment >= w->assignment.rounds)
        return;
    uint32_t letter = telling_letter(p, at);
    if (letter != LS_NO_ID)
        ls_str_printf(out, " (%s)", t->letter_name(t, letter));
}

/* A label and one or two columns. */
static void row(struct printer *p, const char *label, struct ls_str *left, struct ls_str *right)
{
    ls_str_printf(p->out, "  %-*s%-*s", LABEL_COLUMNS, label, right ? SIDE_COLUMNS : 0, ls_str_text(left));
    if (right)
        ls_str_printf(p->out, " %s", ls_str_text(right));
    ls_str_add(p->out, "\n");
    ls_str_clear(left);
    if (right)
        ls_str_clear(right);
}

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static void add_cause(struct printer *p, const struct ls_op *op)
{
    if (op->cause == LS_NO_ID)
        return;
    const struct ls_cause *c = &p->t->cause.at[op->cause];
    ls_str_printf(p->out, "%s", ls_tables_name(p->t, c->text));
    add_place(p, c->at);
    if (op->unit != LS_NO_ID)
        ls_str_printf(p->out, " makes %s a unit", ls_tables_name(p->t, op->unit));
}

static const struct ls_letter *letter_at(const struct printer *p, size_t round, size_t replica)
{
    const struct ls_witness *w = p->a->check.witness;
    size_t replicas = w->job.ranks / p->a->compiled.system.replica->roles;
    return &p->a->compiled.letters.letter[w->assignment.letter[round * replicas + replica]];
}

static bool batches_differ(const struct printer *p)
{
    const struct ls_witness *w = p->a->check.witness;
    size_t replicas = w->job.ranks / p->a->compiled.system.replica->roles;
    for (size_t r = 0; r < w->assignment.rounds; r++)
        for (size_t x = 1; x < replicas; x++)
            if (letter_at(p, r, x)->base != letter_at(p, r, 0)->base)
                return true;
    return false;
}

/* What single ranks decided by themselves in the witness, bit set of the loop's events. */
static uint32_t own_decisions(const struct printer *p)
{
    const struct ls_witness *w = p->a->check.witness;
    size_t replicas = w->job.ranks / p->a->compiled.system.replica->roles;
    uint32_t out = 0;
    for (size_t r = 0; r < w->assignment.rounds; r++)
        for (size_t x = 1; x < replicas; x++)
            out |= letter_at(p, r, x)->events ^ letter_at(p, r, 0)->events;
    return out;
}

/* How many conditional modules the rank of an op runs in that round. */
static unsigned media_of(struct printer *p, struct ls_at at)
{
    const struct ls_witness *w = p->a->check.witness;
    const struct ls_letters *l = &p->a->compiled.letters;
    uint32_t letter = l->letter && at.segment < w->assignment.rounds ? telling_letter(p, at) : LS_NO_ID;
    unsigned n = 0;
    for (size_t i = 0; i < LS_CONDITIONS_MAX && letter != LS_NO_ID; i++)
        n += l->letter[letter].count[i];
    return n;
}

static void print_because(struct printer *p, const struct ls_op *a, const struct ls_op *b)
{
    const struct ls_outcome *o = &p->a->check.witness->outcome;
    /* The op of the rank that runs more is the one that the other lacks. */
    const struct ls_op *first = b && media_of(p, o->b) > media_of(p, o->a) ? b : a;
    ls_str_printf(p->out, "  %-*s", LABEL_COLUMNS, "because");
    size_t before = p->out->length;
    if (first->kind == LS_OP_STOP)
        ls_str_add(p->out, ls_tables_name(p->t, first->module));
    else
        add_cause(p, first);
    uint32_t own = p->s->kind == LS_PLAN_RAW ? 0 : own_decisions(p);
    for (size_t i = 0; i < p->a->compiled.loop.events; i++) {
        const struct ls_event *e = &p->a->compiled.loop.event[i];
        if (!(own >> i & 1))
            continue;
        if (p->out->length > before)
            ls_str_printf(p->out, ";\n  %-*s", LABEL_COLUMNS, "");
        ls_str_printf(p->out, "each rank decides by itself: '%s'", ls_name_text(p->s->names, e->says));
        add_place(p, e->at);
    }
    if (p->s->kind != LS_PLAN_RAW && batches_differ(p)) {
        if (p->out->length > before)
            ls_str_printf(p->out, ";\n  %-*s", LABEL_COLUMNS, "");
        ls_str_printf(p->out, "execution: %s", p->a->compiled.system.contract.name);
        add_place(p, p->a->compiled.system.contract.at);
        ls_str_add(p->out, " lets ranks hold different batches");
    }
    if (p->out->length == before)
        ls_str_add(p->out, "the program says so");
    ls_str_add(p->out, "\n");
}

static const char *blocked_text(enum ls_blocked why)
{
    switch (why) {
    case LS_BLOCKED_NONE: return "runs";
    case LS_BLOCKED_MEMBERS: return "waits for the other members of its group";
    case LS_BLOCKED_STREAM: return "waits for the op before it on its stream";
    case LS_BLOCKED_EVENT: return "waits for an event";
    case LS_BLOCKED_FIFO: return "waits for the op before it on its communicator";
    case LS_BLOCKED_PEER: return "waits for its peer";
    case LS_BLOCKED_SLOT: return "waits for a kernel slot";
    case LS_BLOCKED_HOST: return "blocks its host thread";
    }
    return "";
}

enum { CYCLE_LINES = 6 };

static void print_cycle(struct printer *p)
{
    const struct ls_outcome *o = &p->a->check.witness->outcome;
    struct ls_str line = { 0 };
    for (size_t i = 0; i < o->cycle_count && i < CYCLE_LINES; i++) {
        ls_str_printf(p->out, "  %-*s%s", LABEL_COLUMNS, i ? "" : "cycle", i ? "waits for " : "");
        add_rank(p, o->cycle[i], p->out);
        ls_op_print(&line, p->t, op_at(&p->a->check.witness->job, o->cycle[i]));
        ls_str_printf(p->out, ": %s\n", ls_str_text(&line));
        ls_str_clear(&line);
    }
    if (o->cycle_count > CYCLE_LINES)
        ls_str_printf(p->out, "  %-*s... %zu more ops, back to the first\n", LABEL_COLUMNS, "", o->cycle_count - CYCLE_LINES);
    ls_str_release(&line);
}

enum { PENDING_LINES = 4 };

static void print_pending(struct printer *p)
{
    const struct ls_outcome *o = &p->a->check.witness->outcome;
    struct ls_str line = { 0 };
    uint32_t last = LS_NO_ID;
    size_t shown = 0;
    for (size_t i = 0; i < o->pending_count && shown < PENDING_LINES; i++) {
        const struct ls_pending *q = &o->pending[i];
        if (q->at.rank == last || q->why == LS_BLOCKED_NONE)
            continue;
        last = q->at.rank;
        ls_op_print(&line, p->t, op_at(&p->a->check.witness->job, q->at));
        ls_str_printf(p->out, "  %-*srank %u: %s: %s\n", LABEL_COLUMNS, shown ? "" : "then", q->at.rank, ls_str_text(&line),
                      blocked_text(q->why));
        ls_str_clear(&line);
        shown++;
    }
    ls_str_release(&line);
}

static bool has_item(const struct ls_payload *p, uint32_t item)
{
    for (size_t i = 0; i < p->count; i++)
        if (p->items[i] == item)
            return true;
    return false;
}

enum { EXTRA_NAMES = 3 };

/* Parameters that only one of two reductions carries: the reason for their sizes. */
static void print_extra(struct printer *p, struct ls_at at, const struct ls_op *op, const struct ls_op *other)
{
    const struct ls_payload *mine = &p->t->payload.at[op->payload], *theirs = &p->t->payload.at[other->payload];
    size_t n = 0;
    for (size_t i = 0; i < mine->count; i++) {
        if (has_item(theirs, mine->items[i]))
            continue;
        if (n == 0)
            ls_str_printf(p->out, "  %-*sonly rank %u carries ", LABEL_COLUMNS, "differs", at.rank);
        if (n < EXTRA_NAMES)
            ls_str_printf(p->out, "%s%s", n ? ", " : "", ls_tables_name(p->t, mine->items[i]));
        n++;
    }
    if (n > EXTRA_NAMES)
        ls_str_printf(p->out, " and %zu more", n - EXTRA_NAMES);
    if (n)
        ls_str_add(p->out, "\n");
}

/* What NCCL makes of two calls that do not fit. */
static void print_stuck_group(struct printer *p)
{
    const struct ls_outcome *o = &p->a->check.witness->outcome;
    ls_str_printf(p->out, "  %-*s", LABEL_COLUMNS, "then");
    if (strcmp(p->a->seen_as, "hang") == 0)
        ls_str_printf(p->out, "no rank of the group leaves call %zu; their hosts run on until they need its result\n", o->position + 1);
    else if (strcmp(p->a->seen_as, "silent") == 0)
        ls_str_printf(p->out, "call %zu completes with wrong data on every rank of the group; nothing is reported\n", o->position + 1);
    else
        ls_str_printf(p->out, "call %zu fails on some rank of the group; the others wait for it\n", o->position + 1);
}

static void print_ops(struct printer *p)
{
    const struct ls_witness *w = p->a->check.witness;
    const struct ls_outcome *o = &w->outcome;
    bool two = o->b.segment != LS_NO_ID; /* a missing partner has a rank, but no op */
    const struct ls_op *a = op_at(&w->job, o->a), *b = two ? op_at(&w->job, o->b) : NULL;
    struct ls_str left = { 0 }, right = { 0 };
    if (o->comm != LS_NO_ID)
        ls_str_printf(p->out, "  group %s, call %zu\n", ls_tables_name(p->t, p->t->comm.at[o->comm].name), o->position + 1);
    add_rank(p, o->a, &left);
    if (two)
        add_rank(p, o->b, &right);
    row(p, "on", &left, two ? &right : NULL);
    ls_str_add(&left, ls_op_kind_name((enum ls_op_kind)a->kind));
    if (two)
        ls_str_add(&right, ls_op_kind_name((enum ls_op_kind)b->kind));
    row(p, "op", &left, two ? &right : NULL);
    if (ls_op_uses_comm(a)) {
        /* Of one name, the counts tell them apart. */
        bool counts = two && a->unit == b->unit && a->count != b->count;
        add_payload(p, o->a, a, counts, &left);
        if (two)
            add_payload(p, o->b, b, counts, &right);
        row(p, "payload", &left, two ? &right : NULL);
        if (two && a->kind == b->kind && a->unit == b->unit && a->payload != LS_NO_ID && b->payload != LS_NO_ID) {
            print_extra(p, o->a, a, b);
            print_extra(p, o->b, b, a);
        }
    }
    add_when(a, &left);
    if (two)
        add_when(b, &right);
    row(p, "when", &left, two ? &right : NULL);
    if (p->a->verdict == LS_HANG && o->missing_rank != LS_NO_ID)
        ls_str_printf(p->out, "  %-*srank %u never issues it\n", LABEL_COLUMNS, "missing", o->missing_rank);
    print_because(p, a, b);
    if (o->cycle_count)
        print_cycle(p);
    else if (p->a->verdict == LS_MISMATCH && o->comm != LS_NO_ID)
        print_stuck_group(p);
    else if (p->a->verdict != LS_MISPAIRING)
        print_pending(p);
    ls_str_release(&left);
    ls_str_release(&right);
}

static void add_ratio(struct ls_str *out, struct ls_ratio r)
{
    if (r.den <= 1)
        ls_str_printf(out, "%u", r.num);
    else
        ls_str_printf(out, "%u/%u", r.num, r.den);
}

static void print_share(struct printer *p)
{
    const struct ls_share_problem *q = &p->a->check.witness->share;
    const struct ls_plan *plan = &p->a->compiled.plan;
    ls_str_printf(p->out, "  %-*s%s\n", LABEL_COLUMNS, "parameter", ls_tables_name(p->t, q->param));
    for (size_t i = 0; plan->owner && i < plan->model->params; i++)
        if (plan->model->param[i].name == q->param && plan->owner[i] == LS_NO_ID &&
            (plan->experts.ep <= 1 || plan->experts.layer[plan->model->param[i].canonical] == LS_NO_ID))
            ls_str_printf(p->out, "  %-*sno unit owns it: its gradient stays on each rank, and nothing reduces it\n", LABEL_COLUMNS, "because");
    for (size_t i = 0; plan->owner && i < plan->model->params; i++) {
        if (plan->model->param[i].name != q->param)
            continue;
        if (p->s->step.stale_optimizer && plan->owner[i] != LS_NO_ID)
            ls_str_printf(p->out, "  %-*soptimizer_made: before_sharding: the optimizer holds the parameter that sharding replaced\n", LABEL_COLUMNS,
                          "because");
        for (size_t k = 0; k < p->s->step.overwrittens; k++)
            if (p->s->step.overwritten[k] == plan->model->param[i].canonical)
                ls_str_printf(p->out, "  %-*saccumulation.overwrites: each reduction replaces what earlier microbatches left\n", LABEL_COLUMNS, "because");
    }
    if (p->a->verdict == LS_LOST_GRADIENT) {
        ls_str_printf(p->out, "  %-*s%zu of %zu shares; the first: rank %u, microbatch %u\n", LABEL_COLUMNS, "missing", q->missing,
                      q->shares, q->rank, q->microbatch);
        return;
    }
    ls_str_printf(p->out, "  %-*s", LABEL_COLUMNS, "factor");
    add_ratio(p->out, q->found);
    ls_str_add(p->out, ", expected ");
    add_ratio(p->out, q->expected);
    ls_str_printf(p->out, " (rank %u, microbatch %u)\n", q->rank, q->microbatch);
    if (p->s->step.clip_local)
        ls_str_printf(p->out, "  %-*sclip_grad_norm: local scales on each rank by the norm of its own shards; the factor stands for any\n",
                      LABEL_COLUMNS, "because");
}

static void add_sizes(struct printer *p)
{
    const struct ls_system *sys = &p->a->compiled.system;
    static const char *const dim[] = { "dp_replicate", "dp_shard" };
    bool any = false;
    for (size_t d = 0; d < LS_FREE_DIMS; d++) {
        if (!(sys->free_dims >> d & 1))
            continue;
        ls_str_add(p->out, any ? ", " : "");
        any = true;
        size_t step, least;
        ls_system_sizes(sys, d, &step, &least);
        if ((sys->size[d] == 0 || p->a->check.every_size) && step > 1)
            ls_str_printf(p->out, "every multiple of %zu from %zu on for %s", step, least, dim[d]);
        else if (sys->size[d] == 0 || p->a->check.every_size)
            ls_str_printf(p->out, "every %s >= 2", dim[d]);
        else
            ls_str_printf(p->out, "%s = %zu", dim[d], sys->size[d]);
    }
    if (!any)
        ls_str_add(p->out, "one replica");
    if (p->a->check.every_length)
        ls_str_add(p->out, " and every number of microbatches and steps that the schedule allows");
}

static void print_safe(struct printer *p, const char *bold, const char *reset)
{
    const struct ls_check_result *c = &p->a->check;
    const struct ls_system *sys = &p->a->compiled.system;
    ls_str_printf(p->out, "%s: %sSAFE%s: ", p->s->name, bold, reset);
    switch (c->known) {
    case LS_KNOWN_PROVED:
        ls_str_add(p->out, "proved for ");
        add_sizes(p);
        break;
    case LS_KNOWN_EXPLORED:
        ls_str_printf(p->out, "explored, %zu cases", c->explored);
        break;
    case LS_KNOWN_EXECUTED:
        ls_str_add(p->out, "executed as given; nothing beyond this run is claimed");
        break;
    }
    ls_str_add(p->out, " (");
    add_seconds(p->out, p->a->seconds);
    ls_str_add(p->out, ")\n");
    ls_str_printf(p->out, "  %-*sL%d", LABEL_COLUMNS, "level", sys->level);
    if (sys->level == 2 && c->kernels_needed)
        ls_str_printf(p->out, " streams and host waits; L3 if at least %u collective kernel%s fit%s on a device", c->kernels_needed,
                      c->kernels_needed == 1 ? "" : "s", c->kernels_needed == 1 ? "s" : "");
    ls_str_add(p->out, "\n");
    if (p->s->kind == LS_PLAN_RAW)
        return;
    if (c->known == LS_KNOWN_PROVED) {
        ls_str_printf(p->out, "  %-*sreplicas choose batches freely within: execution: %s", LABEL_COLUMNS, "assumes", sys->contract.name);
        add_place(p, sys->contract.at);
        bool own = ls_loop_own(&p->a->compiled.loop) != 0;
        ls_str_printf(p->out, "\n  %-*sall replicas %s, from the same state; no rank %s\n", LABEL_COLUMNS, "",
                      own ? "take part in the same rounds, each with its own decisions in them" : "run the same rounds",
                      own ? "leaves but by the loop" : "leaves");
        ls_str_printf(p->out, "  %-*s%zu states, %zu macro-states, %zu folded rounds\n", LABEL_COLUMNS, "proof", c->states,
                      c->macro_states, c->folded_rounds);
    }
}

static void print_repairs(struct printer *p)
{
    enum { CHANGE_COLUMNS = 28, CHANGE_COLUMNS_MAX = 48 };
    int width = CHANGE_COLUMNS;
    for (size_t i = 0; i < p->a->repairs; i++) {
        size_t length = strlen(p->a->repair[i].change) + 1;
        width = length > (size_t)width && length <= CHANGE_COLUMNS_MAX ? (int)length : width;
    }
    for (size_t i = 0; i < p->a->repairs; i++) {
        const struct ls_repair *r = &p->a->repair[i];
        if (i == 0)
            ls_str_add(p->out, "  repairs, each checked\n");
        ls_str_printf(p->out, "    %-*s safe%s%s%s\n", width, r->change, r->proved ? ", proved" : "", r->note ? "; " : "",
                      r->note ? r->note : "");
    }
    if (!p->a->repairs && p->a->repair) /* some were tried */
        ls_str_printf(p->out, "  %-*snone of those tried makes it safe\n", LABEL_COLUMNS, "repairs");
}

static void add_headline(struct printer *p, const char *bold, const char *reset)
{
    ls_str_printf(p->out, "%s: %s", p->s->name, bold);
    add_upper(p->out, ls_verdict_name(p->a->verdict));
    ls_str_add(p->out, reset);
}

void ls_assessment_print(const struct ls_scenario *s, const struct ls_assessment *a, const char *replay, const char *bold,
                         const char *reset, struct ls_str *out)
{
    struct printer p = { s, a, &a->compiled.tables, out };
    if (a->verdict == LS_SAFE) {
        print_safe(&p, bold, reset);
        print_data(s, a, LABEL_COLUMNS, out);
        return;
    }
    add_headline(&p, bold, reset);
    if (a->verdict == LS_SETUP_ERROR) {
        const struct ls_refusal *r = &a->compiled.refusal;
        ls_str_printf(out, ": refused before running, rule %s\n", r->rule);
        ls_str_printf(out, "  %-*s%s", LABEL_COLUMNS, "because", r->text);
        if (r->at.file)
            ls_str_printf(out, " (%s:%zu:%zu)", base_name(r->at.file), r->at.line, r->at.column);
        ls_str_add(out, "\n");
        print_repairs(&p);
        ls_str_printf(out, "  --force checks the plan anyway and shows how it fails\n");
        return;
    }
    if (a->verdict == LS_UNDECIDED) {
        ls_str_printf(out, ": %s; %zu cases were explored and are safe (", a->check.limit ? a->check.limit : "limits reached",
                      a->check.explored);
        add_seconds(out, a->seconds);
        ls_str_add(out, ")\n");
        return;
    }
    const struct ls_witness *w = a->check.witness;
    ls_str_printf(out, " with %zu rank%s", w->job.ranks, w->job.ranks == 1 ? "" : "s");
    if (s->kind != LS_PLAN_RAW) {
        size_t n = witness_microbatches(a);
        ls_str_printf(out, ", %zu microbatch%s", n, n == 1 ? "" : "es");
    }
    ls_str_add(out, " (");
    if (w->minimal)
        ls_str_add(out, "smallest possible; ");
    add_seconds(out, a->seconds);
    ls_str_add(out, ")");
    if (a->seen_as)
        ls_str_printf(out, "; seen as %s", strcmp(a->seen_as, "silent") == 0 ? "nothing: silent corruption"
                                           : strcmp(a->seen_as, "hang") == 0 ? "a hang" : "a crash");
    ls_str_add(out, "\n");
    if (a->verdict == LS_LOST_GRADIENT || a->verdict == LS_WRONG_SCALE)
        print_share(&p);
    else
        print_ops(&p);
    print_data(s, a, LABEL_COLUMNS, out);
    print_repairs(&p);
    if (replay)
        ls_str_printf(out, "  %-*s%s\n", LABEL_COLUMNS, "witness", replay);
}

void ls_assessment_line(const struct ls_scenario *s, const struct ls_assessment *a, struct ls_str *out)
{
    struct printer p = { s, a, &a->compiled.tables, out };
    add_upper(out, ls_verdict_name(a->verdict));
    switch (a->verdict) {
    case LS_SAFE:
        ls_str_add(out, a->check.known == LS_KNOWN_PROVED ? ", proved" : a->check.known == LS_KNOWN_EXPLORED ? ", explored" : ", executed");
        break;
    case LS_SETUP_ERROR:
        ls_str_printf(out, ", %s", a->compiled.refusal.rule);
        break;
    case LS_UNDECIDED:
        ls_str_printf(out, ", %s", a->check.limit ? a->check.limit : "limits reached");
        break;
    case LS_LOST_GRADIENT:
    case LS_WRONG_SCALE:
        ls_str_printf(out, ", %s", ls_tables_name(p.t, a->check.witness->share.param));
        break;
    case LS_HANG: case LS_MISMATCH: case LS_MISPAIRING: case LS_LAYOUT: case LS_RACE: case LS_ERROR: case LS_OOM: {
        const struct ls_witness *w = a->check.witness;
        const struct ls_op *op = op_at(&w->job, w->outcome.a);
        ls_str_printf(out, " with %zu ranks at %s", w->job.ranks, ls_op_kind_name((enum ls_op_kind)op->kind));
        if (op->payload != LS_NO_ID)
            ls_str_printf(out, " %s", ls_tables_name(p.t, p.t->payload.at[op->payload].name));
        break;
    }
    case LS_VERDICT_COUNT:
        break;
    }
}

static void add_side(struct printer *p, struct ls_at at)
{
    const struct ls_op *op = op_at(&p->a->check.witness->job, at);
    ls_str_add(p->out, op->kind == LS_OP_STOP ? ls_tables_name(p->t, op->module) : ls_op_kind_name((enum ls_op_kind)op->kind));
    if (op->payload != LS_NO_ID)
        ls_str_printf(p->out, " %s", ls_tables_name(p->t, p->t->payload.at[op->payload].name));
    ls_str_add(p->out, " on ");
    add_rank(p, at, p->out);
}

void ls_assessment_cause(const struct ls_scenario *s, const struct ls_assessment *a, struct ls_str *out)
{
    struct printer p = { s, a, &a->compiled.tables, out };
    switch (a->verdict) {
    case LS_SAFE: case LS_UNDECIDED: case LS_VERDICT_COUNT:
        break;
    case LS_SETUP_ERROR:
        ls_str_printf(out, "%s: %s", a->compiled.refusal.rule, a->compiled.refusal.text);
        break;
    case LS_LOST_GRADIENT:
    case LS_WRONG_SCALE:
        ls_str_printf(out, "gradient of %s", ls_tables_name(p.t, a->check.witness->share.param));
        break;
    case LS_HANG: case LS_MISMATCH: case LS_MISPAIRING: case LS_LAYOUT: case LS_RACE: case LS_ERROR: case LS_OOM: {
        const struct ls_outcome *o = &a->check.witness->outcome;
        add_side(&p, o->a);
        if (o->b.segment != LS_NO_ID) { /* a missing partner has a rank, but no op */
            ls_str_add(out, ", ");
            add_side(&p, o->b);
        }
        const struct ls_op *first = op_at(&a->check.witness->job, o->a);
        const char *pass = ls_pass_name((enum ls_pass)first->pass);
        if (*pass) {
            ls_str_add(out, ", in ");
            add_when(first, out);
        }
        break;
    }
    }
}
