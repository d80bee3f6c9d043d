#include "machine/prepare.h"

#include "base/hash.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* Gives equal keys equal dense ids. */
enum { KEY_WORDS = 6 };
struct key { uint64_t w[KEY_WORDS]; };
struct intern { LS_VEC(struct key) key; uint32_t *slot; size_t room; };

static uint64_t key_hash(const struct key *k)
{
    return ls_hash(k->w, sizeof k->w, 0);
}

static bool intern_find(const struct intern *x, const struct key *k, size_t *slot)
{
    for (size_t i = key_hash(k);; i++) {
        *slot = i & (x->room - 1);
        if (!x->slot[*slot])
            return false;
        if (memcmp(&x->key.at[x->slot[*slot] - 1], k, sizeof *k) == 0)
            return true;
    }
}

static uint32_t intern(struct intern *x, const struct key *k)
{
    size_t slot;
    if (2 * (x->key.count + 1) > x->room) {
        free(x->slot);
        x->room = x->room ? 2 * x->room : 256;
        x->slot = calloc(x->room, sizeof *x->slot);
        if (!x->slot)
            ls_out_of_memory(x->room * sizeof *x->slot);
        for (size_t i = 0; i < x->key.count; i++) {
            intern_find(x, &x->key.at[i], &slot);
            x->slot[slot] = (uint32_t)i + 1;
        }
    }
    if (!intern_find(x, k, &slot)) {
        ls_push(&x->key, *k);
        x->slot[slot] = (uint32_t)x->key.count;
    }
    return x->slot[slot] - 1;
}

static void intern_release(struct intern *x)
{
    ls_vec_release(&x->key);
    free(x->slot);
}

struct build {
    struct ls_prepared *p;
    const struct ls_job *job;
    enum ls_level level;
    struct ls_arena *arena;
    struct intern sig, port;
    struct ls_error *err;
};

uint32_t ls_fifo_comm(const struct ls_tables *t, const struct ls_op *op)
{
    uint32_t parent = op->kind == LS_OP_COMM_INIT ? t->comm.at[op->comm].parent : LS_NO_ID;
    return parent == LS_NO_ID ? op->comm : parent;
}

/* The first vector with the same content, so that content equality is index equality. */
static uint32_t first_equal_vector(const struct ls_tables *t, uint32_t v)
{
    size_t bytes = (size_t)(t->vector.at[v] + 1) * sizeof *t->vector.at;
    for (uint32_t i = 0; i < v; i += (uint32_t)t->vector.at[i] + 1)
        if (memcmp(&t->vector.at[i], &t->vector.at[v], bytes) == 0)
            return i;
    return v;
}

static uint32_t signature(struct build *b, const struct ls_op *op)
{
    const struct ls_tables *t = b->job->tables;
    uint32_t kind = op->kind, comm = 0, counts = op->counts, num = op->factor.num, den = op->factor.den;
    int32_t peer = op->peer;
    if (kind == LS_OP_RECV)
        kind = LS_OP_SEND;
    if (ls_op_is_p2p(op))
        peer = -1;
    if (kind == LS_OP_COMM_INIT)
        comm = op->comm;
    if (counts != LS_NO_ID)
        counts = kind == LS_OP_ALL_TO_ALL ? (uint32_t)t->vector.at[counts] : first_equal_vector(t, counts);
    if (num == 0 && den == 0)
        num = den = 1;
    for (uint32_t x = num, y = den;;) { /* reduce the fraction */
        if (y == 0) {
            num = x ? num / x : num, den = x ? den / x : den;
            break;
        }
        uint32_t rest = x % y;
        x = y, y = rest;
    }
    struct key k = { { kind | (uint64_t)op->dtype << 8 | (uint64_t)op->reduce << 16 | (uint64_t)comm << 32, op->count,
                       (uint32_t)peer | (uint64_t)op->payload << 32, op->symbol | (uint64_t)counts << 32,
                       num | (uint64_t)den << 32, 0 } };
    if (kind == LS_OP_ALL_TO_ALL && op->counts != LS_NO_ID)
        k.w[1] = 0; /* each member has counts of its own; see semantics.md */
    return intern(&b->sig, &k);
}

static enum ls_code bad(struct build *b, const struct ls_op *op, size_t i, const char *what)
{
    struct ls_loc at = LS_NOWHERE;
    const struct ls_tables *t = b->job->tables;
    if (op->cause != LS_NO_ID && op->cause < t->cause.count)
        at = t->cause.at[op->cause].at;
    return ls_fail(b->err, LS_EINPUT, at, "op %zu (%s): %s", i, op->kind < LS_OP_COUNT ? ls_op_kind_name(op->kind) : "?", what);
}

static enum ls_code check_op(struct build *b, const struct ls_segment *s, size_t i)
{
    const struct ls_op *op = &s->op[i];
    const struct ls_tables *t = b->job->tables;
    if (op->kind >= LS_OP_COUNT || op->dtype >= LS_DTYPE_COUNT || op->reduce >= LS_REDUCE_COUNT)
        return bad(b, op, i, "unknown kind, dtype or reduction");
    if (ls_op_uses_comm(op) && op->comm >= t->comm.count)
        return bad(b, op, i, "no such communicator");
    if (op->kind == LS_OP_COMM_INIT && t->comm.at[op->comm].parent != LS_NO_ID && t->comm.at[op->comm].parent >= t->comm.count)
        return bad(b, op, i, "no such parent communicator");
    if (op->counts != LS_NO_ID &&
        (op->counts >= t->vector.count || t->vector.at[op->counts] >= t->vector.count - op->counts))
        return bad(b, op, i, "no such vector of counts");
    if (ls_op_is_p2p(op) && op->peer < 0)
        return bad(b, op, i, "no peer");
    if (op->fused && !ls_op_uses_comm(op))
        return bad(b, op, i, "only communication can be part of a fused group");
    if (op->fused && op->kind == LS_OP_DECIDE)
        return bad(b, op, i, "a decide cannot be part of a fused group");
    if ((op->kind == LS_OP_RECORD || op->kind == LS_OP_WAIT || op->kind == LS_OP_HOST_WAIT) && op->event == LS_NO_ID)
        return bad(b, op, i, "no event");
    if (op->kind == LS_OP_DECIDE && (uint64_t)op->then_count + op->else_count > s->count - i - 1)
        return bad(b, op, i, "its branches reach beyond the segment");
    return LS_OK;
}

static uint8_t class_of(const struct ls_op *op)
{
    return ls_op_is_collective(op) ? LS_TASK_MEET : ls_op_is_p2p(op) ? LS_TASK_PASS :
           op->kind == LS_OP_WAIT  ? LS_TASK_WAIT : LS_TASK_RUN;
}

static bool is_blocking(const struct build *b, const struct ls_op *op)
{
    return b->level == LS_L1 || op->blocking || op->kind == LS_OP_DECIDE || op->kind == LS_OP_COMM_INIT;
}

/* Which decide, and which side of it, each op hangs on. */
static enum ls_code set_guards(struct build *b, struct ls_table *x)
{
    const struct ls_op *op = x->from->op;
    size_t n = x->from->count;
    struct { uint32_t decide; size_t then_end, end; } stack[64];
    size_t depth = 0;
    uint32_t decides = 0;
    for (size_t i = 0; i < n; i++)
        decides += op[i].kind == LS_OP_DECIDE;
    x->decide = LS_NEW(b->arena, struct ls_decide, decides);
    for (size_t i = 0; i < n; i++) {
        while (depth && i >= stack[depth - 1].end)
            depth--;
        uint32_t guard = depth ? 2 * stack[depth - 1].decide + (i >= stack[depth - 1].then_end) : LS_NO_ID;
        x->guard_of_op[i] = guard;
        if (op[i].kind != LS_OP_DECIDE)
            continue;
        size_t then_end = i + 1 + op[i].then_count, end = then_end + op[i].else_count;
        if (depth) { /* stay inside the side of the outer branch that holds this decide */
            size_t outer = i < stack[depth - 1].then_end ? stack[depth - 1].then_end : stack[depth - 1].end;
            if (end > outer)
                return bad(b, &op[i], i, "its branches reach beyond the branch that it is in");
        }
        if (depth == sizeof stack / sizeof *stack)
            return bad(b, &op[i], i, "branches are nested too deeply");
        x->decide[x->decides] = (struct ls_decide){ (uint32_t)i, guard };
        stack[depth].decide = x->decides++;
        stack[depth].then_end = then_end;
        stack[depth++].end = end;
    }
    return LS_OK;
}

/* run[i]: a number shared by the ops of one fused group, 0 for others; last[i]: list index of its last op. */
static void find_runs(struct build *b, struct ls_table *x, uint32_t *run, uint32_t *last)
{
    const struct ls_op *op = x->from->op;
    struct { uint32_t fused, run, guard; uint32_t latest; } *open = calloc(b->p->threads, sizeof *open);
    if (!open)
        ls_out_of_memory(b->p->threads * sizeof *open);
    uint32_t runs = 0;
    for (uint32_t i = 0; i < x->from->count; i++) {
        uint8_t t = op[i].thread;
        if (op[i].kind == LS_OP_ALLOC || op[i].kind == LS_OP_FREE || op[i].kind == LS_OP_MARK)
            continue;
        if (!op[i].fused)
            open[t].fused = 0;
        else if (open[t].fused != op[i].fused || open[t].guard != x->guard_of_op[i]) {
            open[t].fused = op[i].fused;
            open[t].guard = x->guard_of_op[i];
            open[t].run = ++runs;
        }
        run[i] = op[i].fused ? open[t].run : 0;
    }
    uint32_t *end = calloc((size_t)runs + 1, sizeof *end);
    if (!end)
        ls_out_of_memory(((size_t)runs + 1) * sizeof *end);
    for (uint32_t i = 0; i < x->from->count; i++)
        end[run[i]] = i;
    for (uint32_t i = 0; i < x->from->count; i++)
        last[i] = run[i] ? end[run[i]] : i;
    free(end);
    free(open);
}

static void add_steps(struct build *b, struct ls_table *x, const uint32_t *run)
{
    const struct ls_op *op = x->from->op;
    size_t n = x->from->count, streams = b->p->streams;
    x->stream_first = LS_NEW(b->arena, uint32_t, streams + 1);
    for (size_t i = 0; i < n; i++)
        if (!ls_op_is_host(&op[i]))
            x->stream_first[op[i].stream + 1]++;
    for (size_t s = 0; s < streams; s++)
        x->stream_first[s + 1] += x->stream_first[s];
    uint32_t *next = calloc(streams, sizeof *next), *seen = calloc(n + 1, sizeof *seen);
    if (!next || !seen)
        ls_out_of_memory((streams + n + 1) * sizeof *next);
    memcpy(next, x->stream_first, streams * sizeof *next);
    x->step = LS_NEW(b->arena, struct ls_task, x->stream_first[streams]);
    for (uint32_t i = 0; i < n; i++) {
        x->step_of_op[i] = LS_NO_ID;
        if (ls_op_is_host(&op[i]))
            continue;
        uint32_t at = next[op[i].stream]++;
        x->step_of_op[i] = at;
        x->step[at] = (struct ls_task){
            .op = i, .class = class_of(&op[i]), .thread = op[i].thread, .stream = op[i].stream, .record = LS_NO_ID,
            .event = op[i].event, .guard = x->guard_of_op[i], .bundle = 1, .send = op[i].kind == LS_OP_SEND,
            .joined = run[i] && seen[run[i]],
        };
        seen[run[i]] = run[i] != 0;
        if (ls_op_uses_comm(&op[i]))
            x->step[at].sig = signature(b, &op[i]);
    }
    free(next);
    free(seen);
    for (size_t s = 0; s < streams; s++)
        for (uint32_t i = x->stream_first[s], n2; i < x->stream_first[s + 1]; i += n2) {
            uint32_t group = run[x->step[i].op];
            for (n2 = 1; group && i + n2 < x->stream_first[s + 1] && run[x->step[i + n2].op] == group; n2++)
                x->step[i + n2].bundle = 0;
            x->step[i].bundle = n2;
        }
}

/* A bundle takes, for each communicator in it, the most slots that one of its ops asks for. */
static void count_slots(struct ls_table *x, const struct ls_tables *t, struct ls_task *head)
{
    const struct ls_op *op = x->from->op;
    for (uint32_t i = 0; i < head->bundle; i++) {
        uint32_t comm = ls_fifo_comm(t, &op[head[i].op]), most = 0;
        bool counted = false;
        for (uint32_t j = 0; j < i && !counted; j++)
            counted = ls_fifo_comm(t, &op[head[j].op]) == comm;
        for (uint32_t j = i; j < head->bundle && !counted; j++) {
            const struct ls_op *o = &op[head[j].op];
            uint32_t want = o->slots ? o->slots : o->kind != LS_OP_COMM_INIT;
            if (ls_fifo_comm(t, o) == comm && want > most)
                most = want;
        }
        head->slots += most;
    }
}

static void add_kernels(struct build *b, struct ls_table *x)
{
    uint32_t n = x->stream_first[b->p->streams];
    x->kernel = LS_NEW(b->arena, uint32_t, n);
    for (uint32_t i = 0; i < x->from->count; i++) {
        struct ls_task *s = x->step_of_op[i] == LS_NO_ID ? NULL : &x->step[x->step_of_op[i]];
        if (!s || s->bundle == 0 || (s->class != LS_TASK_MEET && s->class != LS_TASK_PASS))
            continue;
        count_slots(x, b->job->tables, s);
        if (s->slots)
            x->kernel[x->kernels++] = x->step_of_op[i];
    }
}

static int by_port(const void *a, const void *b)
{
    const uint64_t *x = a, *y = b;
    return *x < *y ? -1 : *x > *y;
}

static void add_fifos(struct build *b, struct ls_table *x)
{
    const struct ls_tables *t = b->job->tables;
    const struct ls_op *op = x->from->op;
    size_t n = x->from->count, comms = b->p->comms;
    x->comm_first = LS_NEW(b->arena, uint32_t, comms + 1);
    LS_VEC(uint64_t) pass = { 0 }; /* port id, then list index: sorting keeps list order within a port */
    bool *used = calloc(comms + 1, sizeof *used);
    uint32_t *next = calloc(comms + 1, sizeof *next);
    if (!used || !next)
        ls_out_of_memory(comms);
    uint32_t total = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (!ls_op_uses_comm(&op[i]))
            continue;
        total++;
        uint32_t comm = ls_fifo_comm(t, &op[i]);
        x->comms += !used[comm];
        used[comm] = true;
        if (ls_op_is_collective(&op[i]))
            x->comm_first[comm + 1]++;
        else {
            struct key k = { { op[i].comm, (uint32_t)op[i].peer, op[i].kind == LS_OP_SEND, 0, 0, 0 } };
            ls_push(&pass, (uint64_t)intern(&b->port, &k) << 32 | i);
        }
    }
    x->comm = LS_NEW(b->arena, uint32_t, x->comms);
    for (uint32_t c = 0, k = 0; c < comms; c++) {
        x->comm_first[c + 1] += x->comm_first[c];
        if (used[c])
            x->comm[k++] = c;
    }
    memcpy(next, x->comm_first, comms * sizeof *next);
    x->fifo_step = LS_NEW(b->arena, uint32_t, total);
    for (uint32_t i = 0; i < n; i++)
        if (ls_op_is_collective(&op[i])) {
            struct ls_task *s = &x->step[x->step_of_op[i]];
            s->fifo = ls_fifo_comm(t, &op[i]);
            s->place = next[s->fifo]++;
            x->fifo_step[s->place] = x->step_of_op[i];
        }
    if (pass.count)
        qsort(pass.at, pass.count, sizeof *pass.at, by_port);
    x->port = LS_NEW(b->arena, uint32_t, pass.count);
    x->port_first = LS_NEW(b->arena, uint32_t, pass.count + 1);
    for (size_t i = 0; i < pass.count; i++) {
        uint32_t id = (uint32_t)(pass.at[i] >> 32), place = x->comm_first[comms] + (uint32_t)i;
        if (x->ports == 0 || x->port[x->ports - 1] != id) {
            x->port[x->ports] = id;
            x->port_first[x->ports++] = place;
        }
        struct ls_task *s = &x->step[x->step_of_op[(uint32_t)pass.at[i]]];
        s->fifo = id;
        s->place = place;
        x->fifo_step[place] = x->step_of_op[(uint32_t)pass.at[i]];
    }
    x->port_first[x->ports] = total;
    ls_vec_release(&pass);
    free(used);
    free(next);
}

static int by_event(const void *a, const void *b)
{
    const struct ls_record *x = a, *y = b;
    return x->event < y->event ? -1 : x->event > y->event;
}

/* Links waits and records to the record before them, and host waits likewise; `of_wait` is [ops]. */
static void link_records(struct build *b, struct ls_table *x, uint32_t *of_wait)
{
    const struct ls_op *op = x->from->op;
    LS_VEC(struct ls_record) latest = { 0 };
    struct intern seen = { 0 };
    for (uint32_t i = 0; i < x->from->count; i++) {
        if (op[i].kind != LS_OP_RECORD && op[i].kind != LS_OP_WAIT && op[i].kind != LS_OP_HOST_WAIT)
            continue;
        struct key k = { { op[i].event, 0, 0, 0, 0, 0 } };
        uint32_t id = intern(&seen, &k);
        if (id == latest.count)
            ls_push(&latest, (struct ls_record){ op[i].event, LS_NO_ID });
        of_wait[i] = latest.at[id].step;
        if (x->step_of_op[i] != LS_NO_ID)
            x->step[x->step_of_op[i]].record = latest.at[id].step;
        if (op[i].kind == LS_OP_RECORD)
            latest.at[id].step = x->step_of_op[i];
    }
    x->record = LS_NEW(b->arena, struct ls_record, latest.count);
    for (size_t i = 0; i < latest.count; i++)
        if (latest.at[i].step != LS_NO_ID)
            x->record[x->records++] = latest.at[i];
    if (x->records)
        qsort(x->record, x->records, sizeof *x->record, by_event);
    ls_vec_release(&latest);
    intern_release(&seen);
}

/* Is the op in a branch that another host thread decides? */
static bool hangs_on_other(const struct ls_table *x, uint32_t op)
{
    for (uint32_t g = x->guard_of_op[op]; g != LS_NO_ID; g = x->decide[g / 2].guard)
        if (x->from->op[x->decide[g / 2].op].thread != x->from->op[op].thread)
            return true;
    return false;
}

static void add_points(struct build *b, struct ls_table *x, const uint32_t *run, const uint32_t *last,
                       const uint32_t *of_wait)
{
    const struct ls_op *op = x->from->op;
    uint32_t n = (uint32_t)x->from->count;
    size_t threads = b->p->threads;
    LS_VEC(struct ls_point) point = { 0 };
    x->point_first = LS_NEW(b->arena, uint32_t, threads + 1);
    x->thread_first = LS_NEW(b->arena, uint32_t, threads + 1);
    x->thread_step = LS_NEW(b->arena, uint32_t, x->stream_first[b->p->streams]);
    uint32_t steps = 0;
    for (size_t t = 0; t < threads; t++) {
        x->point_first[t] = (uint32_t)point.count;
        x->thread_first[t] = steps;
        uint32_t guard = LS_NO_ID;
        for (uint32_t i = 0; i < n; i++) {
            struct ls_point p = { .op = last[i], .step = x->step_of_op[i], .record = of_wait[i], .event = op[i].event,
                                  .guard = x->guard_of_op[i], .thread = op[i].thread };
            if (op[i].kind == LS_OP_STOP) {
                p.kind = LS_POINT_STOP;
                ls_push(&point, p);
            }
            if (op[i].thread != t)
                continue;
            if (hangs_on_other(x, i) && x->guard_of_op[i] != guard) {
                p.kind = LS_POINT_PATH;
                p.op = i;
                ls_push(&point, p);
                p.op = last[i];
            }
            guard = x->guard_of_op[i];
            if (x->step_of_op[i] != LS_NO_ID)
                x->thread_step[steps++] = x->step_of_op[i];
            if (op[i].kind == LS_OP_HOST_WAIT) {
                p.kind = LS_POINT_EVENT;
                ls_push(&point, p);
            }
            if (x->step_of_op[i] == LS_NO_ID || last[i] != i)
                continue;
            uint32_t first = i; /* a fused group blocks at its end */
            while (run[i] && (run[first] != run[i] || x->step[x->step_of_op[first]].joined))
                first--;
            for (uint32_t j = first; j <= i; j++)
                if ((j == i || (run[i] && run[j] == run[i])) && is_blocking(b, &op[j])) {
                    p.kind = LS_POINT_STEP;
                    p.step = x->step_of_op[j];
                    ls_push(&point, p);
                }
        }
    }
    x->point_first[threads] = (uint32_t)point.count;
    x->thread_first[threads] = steps;
    x->point = LS_NEW(b->arena, struct ls_point, point.count);
    if (point.count)
        memcpy(x->point, point.at, point.count * sizeof *point.at);
    ls_vec_release(&point);
}

static enum ls_code build_table(struct build *b, struct ls_table *x)
{
    size_t n = x->from->count;
    if (n >= UINT32_MAX)
        return ls_fail(b->err, LS_EINPUT, LS_NOWHERE, "a segment has too many ops");
    x->step_of_op = LS_NEW(b->arena, uint32_t, n);
    x->guard_of_op = LS_NEW(b->arena, uint32_t, n);
    enum ls_code rc = set_guards(b, x);
    if (rc != LS_OK)
        return rc;
    uint32_t *scratch = calloc(3 * n + 1, sizeof *scratch);
    if (!scratch)
        ls_out_of_memory(3 * n * sizeof *scratch);
    find_runs(b, x, scratch, scratch + n);
    add_steps(b, x, scratch);
    add_fifos(b, x);
    add_kernels(b, x);
    link_records(b, x, scratch + 2 * n);
    add_points(b, x, scratch, scratch + n, scratch + 2 * n);
    free(scratch);
    return LS_OK;
}

/* One table per distinct segment pointer. */
static void find_tables(struct build *b, size_t *tables)
{
    struct ls_prepared *p = b->p;
    const struct ls_job *job = b->job;
    struct intern seen = { 0 };
    size_t total = 0;
    p->rank_first = LS_NEW(b->arena, size_t, job->ranks + 1);
    for (size_t r = 0; r < job->ranks; r++) {
        p->rank_first[r] = total;
        total += job->rank[r].count;
    }
    p->rank_first[job->ranks] = total;
    p->table_of = LS_NEW(b->arena, uint32_t, total);
    for (size_t r = 0; r < job->ranks; r++)
        for (size_t j = 0; j < job->rank[r].count; j++) {
            struct key k = { { (uintptr_t)job->rank[r].segment[j], 0, 0, 0, 0, 0 } };
            p->table_of[p->rank_first[r] + j] = intern(&seen, &k);
        }
    *tables = seen.key.count;
    p->table = LS_NEW(b->arena, struct ls_table, *tables);
    for (size_t i = 0; i < *tables; i++)
        p->table[i].from = (const struct ls_segment *)(uintptr_t)seen.key.at[i].w[0];
    intern_release(&seen);
}

static enum ls_code check_members(struct build *b)
{
    const struct ls_job *job = b->job;
    const struct ls_tables *t = job->tables;
    for (size_t r = 0; r < job->ranks; r++)
        for (size_t j = b->p->rank_first[r]; j < b->p->rank_first[r + 1]; j++) {
            const struct ls_table *x = &b->p->table[b->p->table_of[j]];
            for (uint32_t c = 0; c < x->comms; c++)
                if (job->comm[x->comm[c]].groups == 0 || job->comm[x->comm[c]].group[r] == LS_NO_ID)
                    return ls_fail(b->err, LS_EINPUT, t->comm.at[x->comm[c]].at,
                                   "rank %zu uses communicator '%s', but is in no group of it", r,
                                   ls_tables_name(t, t->comm.at[x->comm[c]].name));
        }
    return LS_OK;
}

uint32_t ls_port_find(const struct ls_prepared *p, uint32_t rank, uint32_t port_id)
{
    size_t low = p->port_first[rank], high = p->port_first[rank + 1];
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        if (p->port[mid].id < port_id)
            low = mid + 1;
        else
            high = mid;
    }
    return low < p->port_first[rank + 1] && p->port[low].id == port_id ? (uint32_t)low : LS_NO_ID;
}

static int by_id(const void *a, const void *b)
{
    const struct ls_port_ref *x = a, *y = b;
    return x->id < y->id ? -1 : x->id > y->id;
}

static enum ls_code add_ports(struct build *b)
{
    struct ls_prepared *p = b->p;
    const struct ls_job *job = b->job;
    size_t ids = b->port.key.count;
    LS_VEC(struct ls_port_ref) port = { 0 };
    p->port_first = LS_NEW(b->arena, size_t, job->ranks + 1);
    p->port_key = LS_NEW(b->arena, struct ls_port_key, ids);
    for (size_t i = 0; i < ids; i++)
        p->port_key[i] = (struct ls_port_key){ (uint32_t)b->port.key.at[i].w[0], (uint32_t)b->port.key.at[i].w[1],
                                               b->port.key.at[i].w[2] != 0 };
    uint32_t *seen = calloc(ids + 1, sizeof *seen); /* the last rank, plus 1, that was given this port */
    if (!seen)
        ls_out_of_memory(ids * sizeof *seen);
    for (uint32_t r = 0; r < job->ranks; r++) {
        p->port_first[r] = port.count;
        for (size_t j = p->rank_first[r]; ids && j < p->rank_first[r + 1]; j++) {
            const struct ls_table *x = &p->table[p->table_of[j]];
            for (uint32_t i = 0; i < x->ports; i++)
                if (seen[x->port[i]] != r + 1) {
                    seen[x->port[i]] = r + 1;
                    ls_push(&port, (struct ls_port_ref){ x->port[i], r, LS_NO_ID });
                }
        }
        if (port.count > p->port_first[r] + 1)
            qsort(port.at + p->port_first[r], port.count - p->port_first[r], sizeof *port.at, by_id);
    }
    free(seen);
    p->port_first[job->ranks] = port.count;
    p->port = LS_NEW(b->arena, struct ls_port_ref, port.count);
    if (port.count)
        memcpy(p->port, port.at, port.count * sizeof *port.at);
    ls_vec_release(&port);
    for (size_t i = 0; i < p->port_first[job->ranks]; i++) {
        struct ls_port_ref *mine = &p->port[i];
        const struct ls_port_key *k = &p->port_key[mine->id];
        const struct ls_groups *g = &job->comm[k->comm];
        uint32_t group = g->group[mine->rank], size = g->first[group + 1] - g->first[group];
        if (k->peer >= size)
            return ls_fail(b->err, LS_EINPUT, job->tables->comm.at[k->comm].at,
                           "rank %" PRIu32 " %s member %" PRIu32 " of communicator '%s', which has %" PRIu32 " members there",
                           mine->rank, k->send ? "sends to" : "receives from", k->peer,
                           ls_tables_name(job->tables, job->tables->comm.at[k->comm].name), size);
        struct key want = { { k->comm, g->member[mine->rank], !k->send, 0, 0, 0 } };
        size_t slot;
        if (intern_find(&b->port, &want, &slot))
            mine->partner = ls_port_find(p, g->rank[g->first[group] + k->peer], b->port.slot[slot] - 1);
    }
    return LS_OK;
}

static void add_decides(struct build *b)
{
    struct ls_prepared *p = b->p;
    size_t total = p->rank_first[b->job->ranks];
    for (size_t j = 0; j < total; j++)
        p->decides += p->table[p->table_of[j]].decides;
    if (p->decides == 0)
        return;
    p->decide_first = LS_NEW(b->arena, size_t, total);
    for (size_t j = 0, next = 0; j < total; j++) {
        p->decide_first[j] = next;
        next += p->table[p->table_of[j]].decides;
    }
}

enum ls_code ls_prepare(const struct ls_job *job, enum ls_level level, struct ls_arena *arena, struct ls_prepared *out,
                        struct ls_error *err)
{
    *out = (struct ls_prepared){ .job = job, .streams = 1, .threads = 1, .comms = job->tables->comm.count };
    struct build b = { .p = out, .job = job, .level = level, .arena = arena, .err = err };
    size_t tables;
    if (job->ranks >= LS_NO_ID)
        return ls_fail(err, LS_EINPUT, LS_NOWHERE, "too many ranks");
    find_tables(&b, &tables);
    enum ls_code rc = LS_OK;
    for (size_t i = 0; i < tables; i++)
        for (size_t k = 0; k < out->table[i].from->count && rc == LS_OK; k++) {
            const struct ls_op *op = &out->table[i].from->op[k];
            rc = check_op(&b, out->table[i].from, k);
            out->streams = op->stream >= out->streams ? (size_t)op->stream + 1 : out->streams;
            out->threads = op->thread >= out->threads ? (size_t)op->thread + 1 : out->threads;
        }
    for (size_t i = 0; i < tables && rc == LS_OK; i++)
        rc = build_table(&b, &out->table[i]);
    out->group_base = LS_NEW(arena, uint32_t, out->comms + 1);
    for (size_t c = 0; c < out->comms; c++)
        out->group_base[c + 1] = out->group_base[c] + (uint32_t)job->comm[c].groups;
    if (rc == LS_OK)
        rc = check_members(&b);
    if (rc == LS_OK)
        rc = add_ports(&b);
    if (rc == LS_OK)
        add_decides(&b);
    intern_release(&b.sig);
    intern_release(&b.port);
    return rc;
}
