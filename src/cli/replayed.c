#include "cli/replayed.h"

#include "cli/training.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

const char *ls_replay_untrained(const struct ls_replay_result *r, const struct ls_replay_wish *o)
{
    if (o->math == LS_REPLAY_PATTERNS)
        return "patterns were asked for";
    return r->untrained.code ? r->untrained.text : "pairing by position corrupts what it meets";
}

static const struct ls_op *op_at(const struct ls_replay_result *r, struct ls_at at)
{
    return &r->job.rank[at.rank].segment[at.segment]->op[at.op];
}

static const char *blocked_text(enum ls_blocked why)
{
    switch (why) {
    case LS_BLOCKED_MEMBERS: return "waits for the other members";
    case LS_BLOCKED_PEER: return "waits for its peer";
    case LS_BLOCKED_EVENT: return "waits for an event";
    case LS_BLOCKED_FIFO: return "waits behind another op of its communicator";
    case LS_BLOCKED_SLOT: return "waits for a slot";
    case LS_BLOCKED_HOST: return "holds its host thread";
    case LS_BLOCKED_STREAM:
    case LS_BLOCKED_NONE: break;
    }
    return "waits behind another op of its stream";
}

static void print_at(const struct ls_replay_result *r, struct ls_at at, struct ls_str *out)
{
    if (at.rank == LS_NO_ID || at.segment == LS_NO_ID) {
        ls_str_printf(out, at.rank == LS_NO_ID ? "nothing" : "rank %u has nothing left", at.rank);
        return;
    }
    ls_str_printf(out, "rank %u  ", at.rank);
    ls_op_print(out, &r->compiled.tables, op_at(r, at));
}

/* What is carried: the names of the payloads may be equal. */
static void print_items(const struct ls_replay_result *r, struct ls_at at, struct ls_str *out)
{
    const struct ls_op *o = op_at(r, at);
    const struct ls_payload *p = o->payload == LS_NO_ID ? NULL : &r->compiled.tables.payload.at[o->payload];
    for (size_t i = 0; p && i < p->count && i < 4; i++)
        ls_str_printf(out, "%s%s", i ? ", " : ": ", ls_tables_name(&r->compiled.tables, p->items[i]));
    if (p && p->count > 4)
        ls_str_printf(out, " and %zu more", p->count - 4);
}

/* Waits for events follow from what those events wait for, unless a rank waits for nothing else. */
static void print_pending(const struct ls_replay_result *r, struct ls_str *out)
{
    enum { ROWS_MAX = 16 };
    const struct ls_outcome *x = &r->seen.observed.outcome;
    size_t rows = 0, left = 0;
    for (size_t i = 0; i < x->pending_count; i++) {
        const struct ls_pending *p = &x->pending[i];
        bool other = false;
        for (size_t k = 0; k < x->pending_count; k++)
            other |= x->pending[k].at.rank == p->at.rank && x->pending[k].why != LS_BLOCKED_EVENT && x->pending[k].why != LS_BLOCKED_STREAM;
        if (other && (p->why == LS_BLOCKED_EVENT || p->why == LS_BLOCKED_STREAM))
            continue;
        if (rows == ROWS_MAX) {
            left++;
            continue;
        }
        ls_str_add(out, rows++ ? "              " : "  pending     ");
        print_at(r, p->at, out);
        ls_str_printf(out, ": %s\n", blocked_text(p->why));
    }
    if (left)
        ls_str_printf(out, "              and %zu more\n", left);
}

static uint64_t peak_of(const struct ls_replay_result *r, size_t category)
{
    uint64_t most = 0;
    for (size_t i = 0; i < r->job.ranks; i++) {
        uint64_t p = category == LS_CATEGORY_COUNT ? r->seen.observed.memory[i].total_peak : r->seen.observed.memory[i].peak[category];
        most = p > most ? p : most;
    }
    return most;
}

static void print_verdict(const struct ls_cli *cli, const struct ls_replay_result *r, struct ls_str *out)
{
    const struct ls_outcome *x = &r->seen.observed.outcome;
    const struct ls_tables *t = &r->compiled.tables;
    enum ls_verdict v = r->seen.verdict;
    char name[32];
    snprintf(name, sizeof name, "%s", v == LS_SAFE ? "completed" : ls_verdict_name(v));
    ls_str_printf(out, "  seen        %s%s%s", ls_style(cli->colour_out, v == LS_SAFE ? LS_GREEN : LS_RED), name, ls_style(cli->colour_out, LS_PLAIN));
    if (v == LS_LOST_GRADIENT || v == LS_WRONG_SCALE) {
        const struct ls_share_problem *p = &r->seen.share;
        ls_str_printf(out, ": '%s': the share of rank %u, microbatch %u arrived with weight %u/%u, not %u/%u; %zu of %zu are missing",
                      ls_tables_name(t, p->param), p->rank, p->microbatch, p->found.num, p->found.den, p->expected.num, p->expected.den,
                      p->missing, p->shares);
    } else if (x->comm != LS_NO_ID)
        ls_str_printf(out, " at call %zu of group %u of %s", x->position + 1, x->group, ls_tables_name(t, t->comm.at[x->comm].name));
    ls_str_add(out, "\n");
    if (v != LS_SAFE && v != LS_LOST_GRADIENT && v != LS_WRONG_SCALE)
        for (int i = 0; i < 2; i++) {
            struct ls_at at = i ? x->b : x->a;
            if (at.rank == LS_NO_ID)
                continue;
            ls_str_add(out, "              ");
            print_at(r, at, out);
            if (v == LS_MISPAIRING && at.segment != LS_NO_ID)
                print_items(r, at, out);
            ls_str_add(out, "\n");
        }
    print_pending(r, out);
}

/* Of categories, each by itself; and what makes up the largest total. Categories peak at different times: their peaks do not sum to
 * it. */
static void print_memory(const struct ls_replay_result *r, struct ls_str *out)
{
    const struct ls_memory *most = r->seen.observed.memory;
    for (size_t i = 0; i < r->job.ranks; i++)
        most = r->seen.observed.memory[i].total_peak > most->total_peak ? &r->seen.observed.memory[i] : most;
    ls_str_printf(out, "  memory      %-24s%16s%20s\n", "bytes, most of any rank", "own peak", "in the total's peak");
    for (size_t c = 0; c < LS_CATEGORY_COUNT; c++) {
        char name[32];
        if (!peak_of(r, c))
            continue;
        snprintf(name, sizeof name, "%s", ls_category_name((enum ls_category)c));
        for (char *at = name; *at; at++)
            *at = *at == '_' ? ' ' : *at;
        ls_str_printf(out, "              %-24s%16" PRIu64 "%20" PRIu64 "\n", name, peak_of(r, c), most->at_peak[c]);
    }
    ls_str_printf(out, "              %-24s%16s%20" PRIu64 "\n              %s\n", "total", "", most->total_peak,
                  r->seen.memory_equal ? "buffers as the program says, to the byte" : "buffers DIFFER from what the program says");
}

bool ls_replay_as_expected(const struct ls_scenario *s, const struct ls_replay_wish *o, const struct ls_replay_result *r)
{
    bool is_expected = s->expect.present && s->expect.verdict == r->seen.verdict;
    /* A scenario that fails with some batches completes with others; a witness must fail as it says. */
    return is_expected || (r->seen.verdict == LS_SAFE && !(o->witness && s->expect.present));
}

static void print_expected(const struct ls_scenario *s, const struct ls_replay_wish *o, const struct ls_replay_result *r, struct ls_str *out)
{
    if (!s->expect.present)
        return;
    ls_str_add(out, "  expected    ");
    if (s->expect.verdict == r->seen.verdict)
        ls_str_add(out, "this, says the scenario\n");
    else
        ls_str_printf(out, "%s, says the scenario%s\n", ls_verdict_name(s->expect.verdict),
                      ls_replay_as_expected(s, o, r) ? ": not in every run that it allows" : "");
}

static void print_untrained(const struct ls_replay_result *r, const struct ls_replay_wish *o, struct ls_str *out)
{
    ls_str_printf(out, "  training    none%s: %s\n", r->accounting ? "" : ", patterns instead", ls_replay_untrained(r, o));
}

enum { COLUMNS = 80, TEXT_AT = 14, RANK_TEXT_AT = 22 };

/* Where a line of which `room` columns fit ends: before a word, and before a parenthesis rather than in it. */
static size_t cut_of(const char *line, size_t from, size_t room)
{
    size_t cut = room;
    while (cut > from && line[cut] != ' ')
        cut--;
    if (cut == from) /* a long word stays whole */
        return room + strcspn(line + room, " \n");
    size_t open = cut;
    while (open > from && line[open] != '(' && line[open] != ')')
        open--;
    return open > from + 1 && line[open] == '(' && line[open - 1] == ' ' ? open - 1 : cut;
}

/* Long lines go on below their text. */
static void print_wrapped(const char *text, FILE *out)
{
    while (*text) {
        size_t length = strcspn(text, "\n"), indent = 0, at = 0;
        if (length > TEXT_AT)
            indent = strncmp(text + TEXT_AT, "rank ", 5) == 0 ? RANK_TEXT_AT : TEXT_AT;
        while (length - at > COLUMNS - (at ? indent : 0)) {
            size_t cut = at + cut_of(text + at, at ? 0 : indent, COLUMNS - (at ? indent : 0));
            if (cut >= length)
                break;
            fprintf(out, "%.*s\n%*s", (int)(cut - at), text + at, (int)indent, "");
            at = cut + 1;
        }
        fprintf(out, "%.*s\n", (int)(length - at), text + at);
        text += length + (text[length] == '\n');
    }
}

void ls_replay_text(const struct ls_cli *cli, const struct ls_scenario *s, const struct ls_replay_wish *o, const struct ls_processes *p,
                    const struct ls_replay_result *r)
{
    char processes[48] = "";
    struct ls_str out = { 0 };
    const struct ls_observed *seen = &r->seen.observed;
    size_t calls = 0;
    for (size_t i = 0; i < r->job.ranks; i++)
        calls += seen->call[i].count;
    if (p->on)
        snprintf(processes, sizeof processes, " in %zu process%s", p->processes, p->processes == 1 ? "" : "es");
    ls_str_printf(&out, "%s: %zu ranks%s, %s, seed %" PRIu64 "\n", s->name, r->job.ranks, processes, o->free ? "a thread per queue" : "coroutines",
                  o->seed);
    print_verdict(cli, r, &out);
    print_expected(s, o, r, &out);
    ls_str_printf(&out, "  calls       %zu on communicators, %zu collective%s completed\n", calls, seen->outcome.collectives,
                  seen->outcome.collectives == 1 ? "" : "s");
    if (o->nccl_like)
        ls_str_printf(&out, "  differences %zu met, of which %zu went through unnoticed\n", seen->clashes, seen->silent);
    if (s->kind != LS_PLAN_RAW && r->accounting)
        ls_str_printf(&out, "  data        none: parameters and gradients of all ranks take about %.3g GB; order and bytes only\n", 1e-9 * r->bytes);
    else if (s->kind != LS_PLAN_RAW && (!r->trained || r->compared)) {
        ls_str_printf(&out, "  %s %zu elements of gathered parameters compared, %zu wrong; %zu of gradients%s", r->trained ? "patterns   " : "data       ",
                      r->seen.symbolic.parameters, r->seen.symbolic.corrupted, r->seen.symbolic.gradients,
                      r->seen.symbolic.problem.present ? ", some wrong" : "");
        if (r->trained && r->compared < r->train.ended)
            ls_str_printf(&out, "; first %zu step%s", r->compared, r->compared == 1 ? "" : "s");
        ls_str_add(&out, "\n");
    }
    if (s->kind != LS_PLAN_RAW && !r->trained)
        print_untrained(r, o, &out);
    if (r->trained)
        ls_training_text(&r->train, &r->how, &out);
    if (peak_of(r, LS_CATEGORY_COUNT))
        print_memory(r, &out);
    if (o->against)
        ls_str_printf(&out, "  check       %s\n", r->agrees ? "predicted this, and the calls made are the program's, op for op" : ls_str_text(&r->difference));
    print_wrapped(ls_str_text(&out), stdout);
    ls_str_release(&out);
}

static void json_at(struct ls_json *j, const char *key, const struct ls_replay_result *r, struct ls_at at)
{
    ls_json_key(j, key);
    if (at.rank == LS_NO_ID) {
        ls_json_null(j);
        return;
    }
    struct ls_str text = { 0 };
    ls_json_object(j);
    ls_json_add_uint(j, "rank", at.rank);
    if (at.segment != LS_NO_ID) {
        ls_json_add_uint(j, "segment", at.segment);
        ls_json_add_uint(j, "op", at.op);
        ls_json_key(j, "text");
        ls_op_print(&text, &r->compiled.tables, op_at(r, at));
        ls_json_text(j, ls_str_text(&text));
    }
    ls_json_end_object(j);
    ls_str_release(&text);
}

static void json_memory(struct ls_json *j, const struct ls_replay_result *r)
{
    ls_json_key(j, "memory_peak_bytes");
    ls_json_array(j);
    for (size_t i = 0; i < r->job.ranks; i++) {
        ls_json_object(j);
        for (size_t c = 0; c < LS_CATEGORY_COUNT; c++) {
            ls_json_add_uint(j, ls_category_name((enum ls_category)c), r->seen.observed.memory[i].peak[c]);
        }
        ls_json_add_uint(j, "total", r->seen.observed.memory[i].total_peak);
        ls_json_key(j, "at_total_peak"); /* sums to the total */
        ls_json_object(j);
        for (size_t c = 0; c < LS_CATEGORY_COUNT; c++)
            ls_json_add_uint(j, ls_category_name((enum ls_category)c), r->seen.observed.memory[i].at_peak[c]);
        ls_json_end_object(j);
        ls_json_end_object(j);
    }
    ls_json_end_array(j);
    ls_json_add_bool(j, "memory_as_program", r->seen.memory_equal);
}

void ls_replay_json(const struct ls_cli *cli, const struct ls_scenario *s, const struct ls_replay_wish *o, const struct ls_processes *p,
                    const struct ls_replay_result *r)
{
    struct ls_str text = { 0 };
    struct ls_json j;
    const struct ls_outcome *x = &r->seen.observed.outcome;
    const struct ls_tables *t = &r->compiled.tables;
    ls_cli_json_open(cli, &j, &text);
    ls_json_add_text(&j, "name", s->name);
    ls_json_add_text(&j, "file", s->path);
    ls_json_add_uint(&j, "ranks", r->job.ranks);
    ls_json_add_uint(&j, "processes", p->processes);
    ls_json_add_uint(&j, "seed", o->seed);
    ls_json_add_bool(&j, "free", o->free);
    ls_json_add_bool(&j, "nccl_like", o->nccl_like);
    ls_json_add_bool(&j, "data", s->kind != LS_PLAN_RAW && !r->accounting);
    ls_json_add_text(&j, "verdict", ls_verdict_name(r->seen.verdict));
    ls_json_add_text(&j, "expected", s->expect.present ? ls_verdict_name(s->expect.verdict) : NULL);
    ls_json_add_bool(&j, "as_expected", ls_replay_as_expected(s, o, r));
    ls_json_add_text(&j, "communicator", x->comm == LS_NO_ID ? NULL : ls_tables_name(t, t->comm.at[x->comm].name));
    ls_json_key(&j, "call");
    if (x->comm == LS_NO_ID)
        ls_json_null(&j);
    else
        ls_json_uint(&j, x->position);
    json_at(&j, "a", r, x->a);
    json_at(&j, "b", r, x->b);
    ls_json_key(&j, "pending");
    ls_json_array(&j);
    for (size_t i = 0; i < x->pending_count; i++) {
        ls_json_object(&j);
        json_at(&j, "at", r, x->pending[i].at);
        ls_json_add_text(&j, "why", blocked_text(x->pending[i].why));
        ls_json_end_object(&j);
    }
    ls_json_end_array(&j);
    ls_json_key(&j, "lost");
    if (r->seen.verdict == LS_LOST_GRADIENT || r->seen.verdict == LS_WRONG_SCALE) {
        ls_json_object(&j);
        ls_json_add_text(&j, "parameter", ls_tables_name(t, r->seen.share.param));
        ls_json_add_uint(&j, "rank", r->seen.share.rank);
        ls_json_add_uint(&j, "microbatch", r->seen.share.microbatch);
        ls_json_add_uint(&j, "missing", r->seen.share.missing);
        ls_json_add_uint(&j, "shares", r->seen.share.shares);
        ls_json_end_object(&j);
    } else
        ls_json_null(&j);
    ls_json_add_uint(&j, "collectives", x->collectives);
    ls_json_add_uint(&j, "differences", r->seen.observed.clashes);
    ls_json_add_uint(&j, "gathered_elements", r->seen.symbolic.parameters);
    ls_json_add_uint(&j, "gathered_elements_wrong", r->seen.symbolic.corrupted);
    ls_json_add_uint(&j, "gradient_elements", r->seen.symbolic.gradients);
    ls_json_key(&j, "training");
    if (r->trained)
        ls_training_json(&r->train, &r->how, &j);
    else
        ls_json_null(&j);
    ls_json_add_text(&j, "untrained", r->untrained.code ? r->untrained.text : NULL);
    json_memory(&j, r);
    ls_json_key(&j, "agrees_with_check");
    if (o->against)
        ls_json_bool(&j, r->agrees);
    else
        ls_json_null(&j);
    ls_json_add_text(&j, "difference", o->against && !r->agrees ? ls_str_text(&r->difference) : NULL);
    ls_json_add_real(&j, "seconds", r->seen.observed.seconds);
    ls_cli_json_close(&j);
    ls_str_release(&text);
}
