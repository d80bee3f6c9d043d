#include "mutate.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------------------------------------- programs */

struct flat { const struct ls_op *op; struct ls_at at; };
struct program { struct flat *op; size_t count; };

static struct program program_of(const struct ls_job *job, uint32_t rank, struct ls_arena *arena)
{
    struct program p = { 0 };
    for (size_t s = 0; s < job->rank[rank].count; s++)
        p.count += job->rank[rank].segment[s]->count;
    p.op = LS_NEW(arena, struct flat, p.count + 1);
    size_t n = 0;
    for (uint32_t s = 0; s < job->rank[rank].count; s++)
        for (uint32_t i = 0; i < job->rank[rank].segment[s]->count; i++)
            p.op[n++] = (struct flat){ &job->rank[rank].segment[s]->op[i], { rank, s, i } };
    return p;
}

size_t mutate_longest(const struct ls_job *job)
{
    size_t most = 0;
    for (uint32_t r = 0; r < job->ranks; r++) {
        size_t n = 0;
        for (size_t s = 0; s < job->rank[r].count; s++)
            n += job->rank[r].segment[s]->count;
        most = n > most ? n : most;
    }
    return most;
}

bool mutate_has_decide(const struct ls_job *job)
{
    for (uint32_t r = 0; r < job->ranks; r++)
        for (size_t s = 0; s < job->rank[r].count; s++)
            for (size_t i = 0; i < job->rank[r].segment[s]->count; i++)
                if (job->rank[r].segment[s]->op[i].kind == LS_OP_DECIDE)
                    return true;
    return false;
}

static size_t members(const struct ls_job *job, uint32_t rank, uint32_t comm)
{
    const struct ls_groups *g = &job->comm[comm];
    uint32_t group = g->group[rank];
    return group == LS_NO_ID ? 0 : g->first[group + 1] - g->first[group];
}

/* A collective that somebody else takes part in, alone in its call. */
static bool is_shared(const struct ls_job *job, uint32_t rank, const struct ls_op *op)
{
    return ls_op_is_collective(op) && op->kind != LS_OP_DECIDE && op->kind != LS_OP_COMM_INIT && op->fused == 0 &&
           members(job, rank, op->comm) > 1;
}

/* ------------------------------------------------------------------------------------------------- words */

/* Written anew rather than taken from the machine: what an op's partners have to agree on. */
static bool same_call(const struct ls_op *a, const struct ls_op *b)
{
    uint64_t fa = a->factor.num ? (uint64_t)a->factor.num << 32 | a->factor.den : UINT64_C(1) << 32 | 1;
    uint64_t fb = b->factor.num ? (uint64_t)b->factor.num << 32 | b->factor.den : UINT64_C(1) << 32 | 1;
    return a->kind == b->kind && a->count == b->count && a->dtype == b->dtype && a->reduce == b->reduce && fa == fb && a->peer == b->peer;
}

static bool stops(const struct program *p)
{
    for (size_t i = 0; i < p->count; i++)
        if (p->op[i].op->kind == LS_OP_STOP)
            return true;
    return false;
}

/* Up to where the rank leaves. */
static size_t word_of(const struct program *p, uint32_t comm, const struct ls_op **out)
{
    size_t n = 0;
    for (size_t i = 0; i < p->count && p->op[i].op->kind != LS_OP_STOP; i++)
        if (ls_op_is_collective(p->op[i].op) && p->op[i].op->comm == comm)
            out[n++] = p->op[i].op;
    return n;
}

static unsigned compare_words(const struct program *a, const struct program *b, uint32_t comm, struct ls_arena *arena)
{
    const struct ls_op **x = LS_NEW(arena, const struct ls_op *, a->count + 1), **y = LS_NEW(arena, const struct ls_op *, b->count + 1);
    size_t nx = word_of(a, comm, x), ny = word_of(b, comm, y);
    for (size_t k = 0; k < nx || k < ny; k++) {
        if (k == nx || k == ny)
            return 1u << (stops(k == nx ? a : b) ? LS_ERROR : LS_HANG);
        if (!same_call(x[k], y[k]))
            return 1u << LS_MISMATCH;
        if (x[k]->payload != y[k]->payload)
            return 1u << LS_MISPAIRING;
    }
    return 0;
}

unsigned mutate_words(const struct ls_job *job)
{
    struct ls_arena scratch;
    ls_arena_init(&scratch, 0);
    struct program *p = LS_NEW(&scratch, struct program, job->ranks);
    unsigned found = 0;
    for (uint32_t r = 0; r < job->ranks; r++)
        p[r] = program_of(job, r, &scratch);
    for (uint32_t r = 0; r < job->ranks; r++)
        found |= stops(&p[r]) ? 1u << LS_ERROR : 0;
    for (uint32_t c = 0; c < job->tables->comm.count; c++) {
        const struct ls_groups *g = &job->comm[c];
        for (uint32_t group = 0; group < g->groups; group++)
            for (uint32_t i = g->first[group] + 1; i < g->first[group + 1]; i++)
                found |= compare_words(&p[g->rank[g->first[group]]], &p[g->rank[i]], c, &scratch);
    }
    ls_arena_release(&scratch);
    return found;
}

/* The op at the same place of the word of another member. */
static bool same_place(const struct ls_job *job, struct ls_at at, uint32_t rank, struct ls_at *out)
{
    const struct ls_op *op = &job->rank[at.rank].segment[at.segment]->op[at.op];
    size_t k = 0;
    for (uint32_t s = 0; s <= at.segment; s++)
        for (uint32_t i = 0; i < job->rank[at.rank].segment[s]->count && (s < at.segment || i < at.op); i++) {
            const struct ls_op *b = &job->rank[at.rank].segment[s]->op[i];
            k += ls_op_is_collective(b) && b->comm == op->comm;
        }
    for (uint32_t s = 0; s < job->rank[rank].count; s++)
        for (uint32_t i = 0; i < job->rank[rank].segment[s]->count; i++) {
            const struct ls_op *b = &job->rank[rank].segment[s]->op[i];
            if (!ls_op_is_collective(b) || b->comm != op->comm || k-- > 0)
                continue;
            *out = (struct ls_at){ rank, s, i };
            return true;
        }
    return false;
}

/* ------------------------------------------------------------------------------------------------- gradients */

static bool is_share(const struct ls_op *op) { return op->kind == LS_OP_COMPUTE && op->pass == LS_PASS_B && op->payload != LS_NO_ID; }
static bool is_step(const struct ls_op *op) { return op->kind == LS_OP_COMPUTE && op->pass == LS_PASS_OPT && op->payload != LS_NO_ID; }
static bool is_copy(const struct ls_op *op) { return op->kind == LS_OP_COPY_IN && op->pass == LS_PASS_B && op->payload != LS_NO_ID; }
static bool is_reduction(const struct ls_op *op)
{
    return (op->kind == LS_OP_REDUCE_SCATTER || op->kind == LS_OP_ALL_REDUCE) && op->pass == LS_PASS_B && op->payload != LS_NO_ID;
}

static bool holds(const struct ls_tables *t, const struct ls_op *op, uint32_t item)
{
    const struct ls_payload *p = &t->payload.at[op->payload];
    for (size_t i = 0; i < p->count; i++)
        if (p->items[i] == item)
            return true;
    return false;
}

/* Is op `i` the last of its kind that takes up a share of some parameter before the step that needs it? */
static bool carries_last(const struct ls_tables *t, const struct program *p, size_t i, bool (*like)(const struct ls_op *))
{
    const struct ls_op *op = p->op[i].op;
    const struct ls_payload *payload = &t->payload.at[op->payload];
    for (size_t k = 0; k < payload->count; k++) {
        uint32_t q = payload->items[k];
        bool fresh = false, needed = false, again = false;
        for (size_t j = i; j-- > 0 && !fresh;) {
            const struct ls_op *b = p->op[j].op;
            if ((like(b) && b->comm == op->comm && holds(t, b, q)) || (is_step(b) && holds(t, b, q)))
                break;
            fresh = is_share(b) && holds(t, b, q);
        }
        for (size_t j = i + 1; j < p->count && !needed && !again; j++) {
            const struct ls_op *b = p->op[j].op;
            needed = is_step(b) && holds(t, b, q);
            again = like(b) && (is_copy(b) || b->comm == op->comm) && holds(t, b, q);
        }
        if (fresh && needed && !again)
            return true;
    }
    return false;
}

/* Does this rank have a share of the item that only the op at `at` would carry away? */
static bool has_fresh_share(const struct ls_job *job, const struct program *p, struct ls_at at, uint32_t item)
{
    const struct ls_tables *t = job->tables;
    size_t i = 0;
    while (p->op[i].at.segment != at.segment || p->op[i].at.op != at.op)
        i++;
    for (size_t j = i; j-- > 0;) {
        const struct ls_op *b = p->op[j].op;
        if (is_share(b) && holds(t, b, item))
            return true;
        if ((is_step(b) || (is_reduction(b) && b->comm == p->op[i].op->comm)) && holds(t, b, item))
            return false;
    }
    return false;
}

enum ls_verdict mutate_kept_share(const struct ls_job *job, struct site site)
{
    const struct ls_op *op = &job->rank[site.at.rank].segment[site.at.segment]->op[site.at.op];
    const struct ls_payload *dropped = &job->tables->payload.at[op->payload];
    const struct ls_groups *g = &job->comm[op->comm];
    uint32_t group = g->group[site.at.rank];
    struct ls_arena scratch;
    ls_arena_init(&scratch, 0);
    enum ls_verdict found = LS_SAFE;
    struct program *p = LS_NEW(&scratch, struct program, job->ranks);
    struct ls_at *at = LS_NEW(&scratch, struct ls_at, job->ranks);
    for (uint32_t i = g->first[group]; i < g->first[group + 1]; i++) {
        p[g->rank[i]] = program_of(job, g->rank[i], &scratch);
        (void)same_place(job, site.at, g->rank[i], &at[g->rank[i]]);
    }
    for (uint32_t i = g->first[group]; i < g->first[group + 1] && found == LS_SAFE; i++) {
        const struct program *mine = &p[g->rank[i]];
        for (size_t k = 0; k < mine->count && found == LS_SAFE; k++) {
            const struct ls_op *step = mine->op[k].op;
            bool behind = mine->op[k].at.segment > at[g->rank[i]].segment ||
                          (mine->op[k].at.segment == at[g->rank[i]].segment && mine->op[k].at.op > at[g->rank[i]].op);
            for (size_t q = 0; behind && is_step(step) && q < job->tables->payload.at[step->payload].count && found == LS_SAFE; q++) {
                uint32_t item = job->tables->payload.at[step->payload].items[q];
                bool carried = false, own = has_fresh_share(job, mine, at[g->rank[i]], item), others = false;
                for (size_t c = 0; c < dropped->count; c++)
                    carried = carried || dropped->items[c] == item;
                for (uint32_t m = g->first[group]; m < g->first[group + 1]; m++)
                    others = others || (m != i && has_fresh_share(job, &p[g->rank[m]], at[g->rank[m]], item));
                if (carried && others)
                    found = LS_LOST_GRADIENT;
                else if (carried && own && op->reduce == LS_REDUCE_AVG)
                    found = LS_WRONG_SCALE;
            }
        }
    }
    ls_arena_release(&scratch);
    return found;
}

/* ------------------------------------------------------------------------------------------------- waits */

/* Which ops of one rank come after op `from`, by streams, queues, events and what the host has waited for; without op `gone`. Edges
 * lead forward in the list, so one pass is enough. One host thread. */
static void mark_after(const struct program *p, size_t from, size_t gone, bool *after)
{
    size_t stream[256], fifo[256], record_of_event = 0;
    bool host = false;
    memset(stream, 0xff, sizeof stream);
    memset(fifo, 0xff, sizeof fifo);
    for (size_t i = 0; i < p->count; i++) {
        const struct ls_op *op = p->op[i].op;
        after[i] = i == from;
        if (i == gone)
            continue;
        bool queue = ls_op_is_collective(op);
        if (i > from) {
            after[i] = after[i] || host;
            if (!ls_op_is_host(op) && stream[op->stream] != SIZE_MAX)
                after[i] = after[i] || after[stream[op->stream]];
            if (queue && fifo[op->comm & 255] != SIZE_MAX)
                after[i] = after[i] || after[fifo[op->comm & 255]];
            if (op->kind == LS_OP_WAIT || op->kind == LS_OP_HOST_WAIT) {
                for (record_of_event = i; record_of_event-- > 0;)
                    if (p->op[record_of_event].op->kind == LS_OP_RECORD && p->op[record_of_event].op->event == op->event)
                        break;
                if (record_of_event != SIZE_MAX)
                    after[i] = after[i] || after[record_of_event];
            }
            host = host || (after[i] && (op->blocking || op->kind == LS_OP_HOST_WAIT));
        }
        if (!ls_op_is_host(op))
            stream[op->stream] = i;
        if (queue)
            fifo[op->comm & 255] = i;
    }
}

static bool conflict(const struct ls_tables *t, const struct ls_op *a, const struct ls_op *b, uint32_t *buffer)
{
    for (uint32_t i = 0; i < a->ranges; i++)
        for (uint32_t k = 0; k < b->ranges; k++) {
            const struct ls_range *x = &t->range.at[a->range + i], *y = &t->range.at[b->range + k];
            bool apart = x->bytes && y->bytes && (x->offset + x->bytes <= y->offset || y->offset + y->bytes <= x->offset);
            if (x->buffer == y->buffer && (x->write || y->write) && !apart) {
                *buffer = x->buffer;
                return true;
            }
        }
    return false;
}

static bool touches(const struct ls_tables *t, const struct ls_op *op, uint32_t buffer)
{
    return op->ranges && t->range.at[op->range].buffer == buffer;
}

enum wait_use { WAIT_UNKNOWN, WAIT_NEEDED, WAIT_IMPLIED };

/* Without this wait, is there an access that nothing orders after a conflicting one? Or does everything stay in order? */
static enum wait_use use_of_wait(const struct ls_job *job, const struct program *p, size_t w, struct ls_arena *scratch)
{
    enum { LOOK_BACK = 4 };
    const struct ls_tables *t = job->tables;
    size_t record = w, next = w + 1, looked = 0;
    while (record-- > 0)
        if (p->op[record].op->kind == LS_OP_RECORD && p->op[record].op->event == p->op[w].op->event)
            break;
    if (record == SIZE_MAX)
        return WAIT_UNKNOWN;
    while (next < p->count && (ls_op_is_host(p->op[next].op) || p->op[next].op->stream != p->op[w].op->stream))
        next++;
    bool *after = LS_NEW(scratch, bool, p->count + 1);
    mark_after(p, record, w, after);
    if (next == p->count || after[next])
        return WAIT_IMPLIED;
    for (size_t x = record; x-- > 0 && looked < LOOK_BACK;) {
        const struct ls_op *a = p->op[x].op;
        if (ls_op_is_host(a) || a->stream != p->op[record].op->stream || !a->ranges)
            continue;
        looked++;
        mark_after(p, x, w, after);
        for (size_t y = w + 1; y < p->count; y++) {
            uint32_t buffer;
            const struct ls_op *b = p->op[y].op;
            if (ls_op_is_host(b) || after[y] || !conflict(t, a, b, &buffer))
                continue;
            bool same = true; /* the buffer is still that one */
            for (size_t z = x + 1; z < y && same; z++)
                same = !((p->op[z].op->kind == LS_OP_ALLOC || p->op[z].op->kind == LS_OP_FREE) && touches(t, p->op[z].op, buffer));
            if (same)
                return WAIT_NEEDED;
        }
    }
    return WAIT_UNKNOWN;
}

/* ------------------------------------------------------------------------------------------------- sites */

static enum mutation_kind plain(enum mutation_kind k)
{
    switch ((int)k) {
    case MUTATE_ANY_COUNT: return MUTATE_COUNT;
    case MUTATE_ANY_PAYLOAD: return MUTATE_PAYLOAD;
    case MUTATE_ANY_DROP: return MUTATE_DROP;
    case MUTATE_ANY_LEAVE: return MUTATE_LEAVE;
    case MUTATE_ANY_NO_COPY: return MUTATE_NO_COPY;
    default: return k;
    }
}

static void sites_of_op(const struct ls_job *job, const struct program *p, size_t i, enum mutation_kind kind, struct ls_arena *scratch,
                        site_vec *out)
{
    const struct ls_tables *t = job->tables;
    const struct ls_op *op = p->op[i].op;
    const struct ls_at at = p->op[i].at;
    const struct ls_segment *segment = job->rank[at.rank].segment[at.segment];
    bool shared = is_shared(job, at.rank, op), unit_before = false;
    switch ((int)kind) {
    case MUTATE_COUNT: case MUTATE_DTYPE: case MUTATE_KIND: case MUTATE_LEAVE: case MUTATE_DROP: case MUTATE_REPEAT:
        if (shared && !(kind == MUTATE_COUNT && op->counts != LS_NO_ID))
            ls_push(out, ((struct site){ at, LS_NO_ID }));
        return;
    case MUTATE_REDUCE: case MUTATE_FACTOR:
        if (shared && op->reduce != LS_REDUCE_NONE)
            ls_push(out, ((struct site){ at, LS_NO_ID }));
        return;
    case MUTATE_PAYLOAD:
        for (size_t j = 0; shared && j < segment->count; j++)
            if (segment->op[j].payload != op->payload && segment->op[j].payload != LS_NO_ID && op->payload != LS_NO_ID &&
                is_shared(job, at.rank, &segment->op[j])) {
                ls_push(out, ((struct site){ at, segment->op[j].payload }));
                return;
            }
        return;
    case MUTATE_GROUP:
        for (uint32_t c = 0; shared && c < t->comm.count; c++)
            if (c != op->comm && members(job, at.rank, c) > 1)
                ls_push(out, ((struct site){ at, c }));
        return;
    case MUTATE_SWAP:
        for (uint32_t j = at.op + 1; shared && j < segment->count; j++)
            if (is_shared(job, at.rank, &segment->op[j]) && segment->op[j].comm == op->comm &&
                !(same_call(op, &segment->op[j]) && op->payload == segment->op[j].payload)) {
                ls_push(out, ((struct site){ at, j }));
                return; /* the next one that differs */
            }
        return;
    case MUTATE_POSTPONE:
        /* Something else follows on the communicator in this round; else the words stay equal. */
        for (uint32_t j = at.op + 1; shared && at.segment + 1 < job->rank[at.rank].count && j < segment->count; j++)
            if (is_shared(job, at.rank, &segment->op[j]) && segment->op[j].comm == op->comm &&
                !(same_call(op, &segment->op[j]) && op->payload == segment->op[j].payload)) {
                ls_push(out, ((struct site){ at, LS_NO_ID }));
                return;
            }
        return;
    case MUTATE_SKIP:
        for (uint32_t j = 0; j < at.op; j++)
            unit_before = unit_before || (segment->op[j].unit == op->unit && is_shared(job, at.rank, &segment->op[j]));
        if (shared && op->unit != LS_NO_ID && !unit_before)
            ls_push(out, ((struct site){ at, LS_NO_ID }));
        return;
    case MUTATE_NO_COPY:
        if (is_copy(op) && carries_last(t, p, i, is_copy))
            ls_push(out, ((struct site){ at, LS_NO_ID }));
        return;
    case MUTATE_NO_WAIT:
        if (op->kind == LS_OP_WAIT) {
            enum wait_use use = use_of_wait(job, p, i, scratch);
            if (use != WAIT_UNKNOWN)
                ls_push(out, ((struct site){ at, use == WAIT_IMPLIED ? 0 : LS_NO_ID }));
        }
        return;
    case MUTATE_ALL_DROP: case MUTATE_ALL_DIVISOR:
        if (shared && is_reduction(op) && carries_last(t, p, i, is_reduction))
            ls_push(out, ((struct site){ at, LS_NO_ID }));
        return;
    default:
        return;
    }
}

void mutate_sites(const struct ls_job *job, enum mutation_kind kind, site_vec *out)
{
    for (uint32_t r = 0; r < job->ranks; r++) {
        struct ls_arena scratch;
        ls_arena_init(&scratch, 0);
        struct program p = program_of(job, r, &scratch);
        for (size_t i = 0; i < p.count; i++)
            sites_of_op(job, &p, i, plain(kind), &scratch, out);
        ls_arena_release(&scratch);
    }
}

/* ------------------------------------------------------------------------------------------------- edits */

static void change_fields(struct ls_op *op, enum mutation_kind kind, uint32_t other)
{
    switch ((int)kind) {
    case MUTATE_COUNT: op->count += 1; return;
    case MUTATE_DTYPE: op->dtype = op->dtype == LS_DTYPE_F32 ? LS_DTYPE_BF16 : LS_DTYPE_F32; return;
    case MUTATE_REDUCE: op->reduce = op->reduce == LS_REDUCE_SUM ? LS_REDUCE_MAX : LS_REDUCE_SUM; return;
    case MUTATE_KIND: op->kind = op->kind == LS_OP_ALL_GATHER ? LS_OP_REDUCE_SCATTER : LS_OP_ALL_GATHER; return;
    case MUTATE_PAYLOAD: op->payload = other; return;
    case MUTATE_GROUP: op->comm = (uint16_t)other; return;
    case MUTATE_FACTOR: case MUTATE_ALL_DIVISOR:
        op->factor = (struct ls_ratio){ op->factor.num ? op->factor.num : 1, 2 * (op->factor.den ? op->factor.den : 1) };
        return;
    default: return;
    }
}

static void edit(const struct ls_job *job, ls_op_vec *v, enum mutation_kind kind, struct site s)
{
    size_t i = s.at.op;
    struct ls_op op = v->at[i];
    size_t kept = 0;
    switch ((int)kind) {
    case MUTATE_DROP: case MUTATE_NO_COPY: case MUTATE_NO_WAIT: case MUTATE_ALL_DROP: case MUTATE_POSTPONE:
        memmove(&v->at[i], &v->at[i + 1], (v->count - i - 1) * sizeof *v->at);
        v->count--;
        return;
    case MUTATE_REPEAT: case MUTATE_LEAVE:
        ls_push(v, op);
        memmove(&v->at[i + 1], &v->at[i], (v->count - i - 1) * sizeof *v->at);
        if (kind == MUTATE_LEAVE)
            v->at[i] = ls_op_make(LS_OP_STOP);
        return;
    case MUTATE_SWAP:
        v->at[i] = v->at[s.other];
        v->at[s.other] = op;
        return;
    case MUTATE_SKIP:
        for (size_t j = 0; j < v->count; j++)
            if (!(v->at[j].unit == op.unit && is_shared(job, s.at.rank, &v->at[j])))
                v->at[kept++] = v->at[j];
        v->count = kept;
        return;
    default:
        change_fields(&v->at[i], kind, s.other);
        return;
    }
}

static void set_segment(struct ls_job *job, uint32_t rank, uint32_t segment, const ls_op_vec *v, struct ls_arena *arena)
{
    struct ls_rank_program *r = &job->rank[rank];
    const struct ls_segment **all = ls_arena_copy(arena, r->segment, r->count * sizeof *all);
    struct ls_segment *made = LS_NEW(arena, struct ls_segment, 1);
    made->op = v->count ? ls_arena_copy(arena, v->at, v->count * sizeof *v->at) : NULL;
    made->count = v->count;
    made->hash = ls_segment_hash(made->op, made->count);
    all[segment] = made;
    r->segment = all;
}

static void edit_rank(struct ls_job *job, enum mutation_kind kind, struct site s, struct ls_arena *arena)
{
    const struct ls_segment *from = job->rank[s.at.rank].segment[s.at.segment];
    struct ls_op moved = from->op[s.at.op];
    ls_op_vec v = { 0 };
    for (size_t i = 0; i < from->count; i++)
        ls_push(&v, from->op[i]);
    edit(job, &v, kind, s);
    set_segment(job, s.at.rank, s.at.segment, &v, arena);
    if (kind == MUTATE_POSTPONE) {
        const struct ls_segment *to = job->rank[s.at.rank].segment[s.at.segment + 1];
        v.count = 0;
        ls_push(&v, moved);
        for (size_t i = 0; i < to->count; i++)
            ls_push(&v, to->op[i]);
        set_segment(job, s.at.rank, s.at.segment + 1, &v, arena);
    }
    ls_vec_release(&v);
}

void mutate_job(const struct ls_job *job, enum mutation_kind kind, struct site site, struct ls_arena *arena, struct ls_job *out)
{
    *out = *job;
    out->rank = ls_arena_copy(arena, job->rank, job->ranks * sizeof *job->rank);
    kind = plain(kind);
    if (kind != MUTATE_ALL_DROP && kind != MUTATE_ALL_DIVISOR) {
        edit_rank(out, kind, site, arena);
        return;
    }
    const struct ls_op *op = &job->rank[site.at.rank].segment[site.at.segment]->op[site.at.op];
    const struct ls_groups *g = &job->comm[op->comm];
    uint32_t group = g->group[site.at.rank];
    for (uint32_t i = g->first[group]; i < g->first[group + 1]; i++) {
        struct site other = site;
        bool found = same_place(job, site.at, g->rank[i], &other.at);
        assert(found && "the words of a safe plan are equal");
        (void)found;
        edit_rank(out, kind, other, arena);
    }
}

void mutate_strip(const struct ls_job *job, struct ls_arena *arena, struct ls_job *out)
{
    *out = *job;
    out->rank = ls_arena_copy(arena, job->rank, job->ranks * sizeof *job->rank);
    for (uint32_t r = 0; r < job->ranks; r++)
        for (uint32_t s = 0; s < job->rank[r].count; s++) {
            const struct ls_segment *from = job->rank[r].segment[s];
            ls_op_vec v = { 0 };
            for (size_t i = 0; i < from->count; i++)
                switch ((enum ls_op_kind)from->op[i].kind) {
                case LS_OP_COMPUTE: case LS_OP_COPY_IN: case LS_OP_COPY_OUT:
                    if (from->op[i].blocking)
                        ls_push(&v, from->op[i]);
                    break;
                case LS_OP_ALLOC: case LS_OP_FREE: case LS_OP_MARK:
                    break;
                default:
                    ls_push(&v, from->op[i]);
                }
            set_segment(out, r, s, &v, arena);
            ls_vec_release(&v);
        }
}

/* ------------------------------------------------------------------------------------------------- systems */

struct one_run { struct ls_transducer t; const struct ls_segment *const **role; };

static enum ls_code step_of_run(struct ls_transducer *t, uint32_t state, uint32_t round, uint32_t letter, struct ls_step *out, struct ls_error *err)
{
    (void)letter, (void)err;
    *out = (struct ls_step){ ((struct one_run *)t)->role[round], state };
    return LS_OK;
}

static const char *name_of_run(const struct ls_transducer *t, uint32_t letter)
{
    (void)t, (void)letter;
    return "the run";
}

void mutate_system(const struct ls_system *base, const struct ls_job *job, struct ls_arena *arena, struct ls_system *out)
{
    struct one_run *x = LS_NEW(arena, struct one_run, 1);
    size_t rounds = job->rank[0].count, comms = job->tables->comm.count;
    x->t = (struct ls_transducer){ .tables = job->tables, .roles = job->ranks, .letters = 1, .step = step_of_run, .letter_name = name_of_run,
                                   .states_max = 1 };
    x->role = LS_NEW(arena, const struct ls_segment *const *, rounds);
    struct ls_driver_node *node = LS_NEW(arena, struct ls_driver_node, rounds);
    for (uint32_t i = 0; i < rounds; i++) {
        const struct ls_segment **role = LS_NEW(arena, const struct ls_segment *, job->ranks);
        for (uint32_t r = 0; r < job->ranks; r++)
            role[r] = job->rank[r].segment[i];
        x->role[i] = role;
        node[i] = (struct ls_driver_node){ .round = i, .name = "round", .nexts = i + 1 < rounds };
        if (node[i].nexts) {
            node[i].next = LS_NEW(arena, uint32_t, 1);
            node[i].next[0] = i + 1;
        }
    }
    struct ls_comm_roles *comm = LS_NEW(arena, struct ls_comm_roles, comms + 1);
    for (size_t c = 0; c < comms; c++)
        comm[c] = (struct ls_comm_roles){ .part = job->comm[c].group, .order = job->comm[c].member };
    *out = (struct ls_system){ .replica = &x->t, .driver = { node, rounds }, .comm = comm, .size = { 1, 1 }, .level = base->level,
                               .kernels = base->kernels, .start_rule = base->start_rule };
    out->contract = (struct ls_contract){ .levels = 1, .name = "the run" };
}

struct extra_letter {
    struct ls_transducer t;
    struct ls_transducer *base;
    uint32_t like;
    const struct ls_segment *from, *to;
};

static enum ls_code step_of_letter(struct ls_transducer *t, uint32_t state, uint32_t round, uint32_t letter, struct ls_step *out,
                                   struct ls_error *err)
{
    struct extra_letter *x = (struct extra_letter *)t;
    bool extra = letter + 1 == x->t.letters;
    enum ls_code rc = x->base->step(x->base, state, round, extra ? x->like : letter, out, err);
    if (rc == LS_OK && extra && out->role[0] == x->from)
        out->role = &x->to;
    return rc;
}

static const char *name_of_letter(const struct ls_transducer *t, uint32_t letter)
{
    const struct extra_letter *x = (const struct extra_letter *)t;
    return letter + 1 == x->t.letters ? "changed" : x->base->letter_name(x->base, letter);
}

static void add_to_contract(struct ls_contract *c, size_t letters, uint32_t like, uint32_t dims, struct ls_arena *arena)
{
    for (size_t i = 0; i < c->levels; i++) {
        uint32_t *class_of = LS_NEW(arena, uint32_t, letters + 1);
        for (uint32_t z = 0; z < letters; z++)
            class_of[z] = c->class_of[i] ? c->class_of[i][z] : z;
        class_of[letters] = class_of[like];
        c->class_of[i] = class_of;
    }
    if (c->dims[c->levels - 1] != dims)
        c->dims[c->levels++] = dims;
    c->class_of[c->levels - 1] = NULL;
    if (c->media >> like & 1)
        c->media |= UINT64_C(1) << letters;
}

bool mutate_letter(const struct ls_system *base, const struct ls_assignment *a, const struct ls_job *job, enum mutation_kind kind,
                   struct site site, struct ls_arena *arena, struct ls_system *out)
{
    size_t letters = base->replica->letters, replicas = a->size[0] * a->size[1];
    if (letters >= 63 || base->replica->roles != 1 || base->contract.extra == LS_CONTRACT_TABLE || !base->free_dims)
        return false;
    struct extra_letter *x = LS_NEW(arena, struct extra_letter, 1);
    struct ls_job changed;
    mutate_job(job, kind, site, arena, &changed);
    *x = (struct extra_letter){ .t = *base->replica, .base = base->replica, .like = a->letter[site.at.segment * replicas + site.at.rank],
                                .from = job->rank[site.at.rank].segment[site.at.segment],
                                .to = changed.rank[site.at.rank].segment[site.at.segment] };
    x->t.letters = letters + 1;
    x->t.step = step_of_letter;
    x->t.letter_name = name_of_letter;
    *out = *base;
    out->replica = &x->t;
    out->driver.node = ls_arena_copy(arena, base->driver.node, base->driver.nodes * sizeof *base->driver.node);
    for (size_t i = 0; i < base->driver.nodes; i++)
        if (base->driver.node[i].allowed) {
            uint64_t *allowed = LS_NEW(arena, uint64_t, 1);
            *allowed = base->driver.node[i].allowed[0];
            *allowed |= (*allowed >> x->like & 1) << letters;
            out->driver.node[i].allowed = allowed;
        }
    add_to_contract(&out->contract, letters, x->like, base->free_dims, arena);
    return true;
}
