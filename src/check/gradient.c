/* Values are linear in the shares, so they need not be written out. First every parameter at once: a share weighs a random
 * element of a prime field, and a buffer's value is its weighted sum, kept twice with independent weights; a difference from
 * what is expected is missed with a chance of about 2^-120. Then the first wrong parameter alone, a few dozen shares at a time,
 * each with a coefficient of its own: those are exact. */
#include "check/gradient.h"

#include "base/hash.h"

#include <assert.h>
#include <string.h>

#define PRIME UINT64_C(0x1fffffffffffffff) /* 2^61 - 1 */
__extension__ typedef unsigned __int128 wide;

static uint64_t reduce61(uint64_t x)
{
    x = (x & PRIME) + (x >> 61);
    return x >= PRIME ? x - PRIME : x;
}

static uint64_t add61(uint64_t a, uint64_t b)
{
    return reduce61(a + b);
}

static uint64_t mul61(uint64_t a, uint64_t b)
{
    wide p = (wide)a * b;
    return reduce61((uint64_t)(p & PRIME) + (uint64_t)(p >> 61));
}

static uint64_t inverse61(uint64_t a)
{
    uint64_t result = 1, power = a;
    for (uint64_t e = PRIME - 2; e; e >>= 1) {
        if (e & 1)
            result = mul61(result, power);
        power = mul61(power, power);
    }
    return result;
}

static uint64_t ratio61(uint64_t num, uint64_t den)
{
    return mul61(reduce61(num), inverse61(reduce61(den)));
}

/* The ratio with the smallest terms that is `x` (half of the extended Euclid algorithm); {0, 0} if none has 30 bits. */
static struct ls_ratio ratio_of(uint64_t x)
{
    uint64_t r0 = PRIME, r1 = x, t0 = 0, t1 = 1; /* t with alternating signs; only positive ratios are wanted */
    bool positive = true;
    const uint64_t bound = UINT64_C(1) << 30;
    while (r1 > bound) {
        uint64_t q = r0 / r1, r = r0 - q * r1, t = t0 + q * t1;
        r0 = r1;
        r1 = r;
        t0 = t1;
        t1 = t;
        positive = !positive;
    }
    if (!positive || t1 > bound)
        return (struct ls_ratio){ 0, 0 };
    return (struct ls_ratio){ (uint32_t)r1, (uint32_t)t1 };
}

enum { CHUNK = 32 }; /* shares looked at together in the second pass */

/* Segment and microbatch: where any number of microbatches is allowed, segments share a label. Place: which experts it is for, else 0. */
struct share { uint32_t rank, segment, microbatch, step, place; uint64_t times; };

/* The k-th reduction of a group. */
struct meeting { size_t arrived; uint64_t *sum; uint32_t *rank; };
struct group { LS_VEC(struct meeting) at; };

struct skipped_step { struct ls_at at; uint32_t param, step, place; };

struct walk {
    const struct ls_job *job;
    LS_VEC(struct skipped_step) skipped;
    bool mean;
    size_t width;              /* field elements per value */
    uint32_t *dense;           /* [names]: parameter, or LS_NO_ID */
    size_t names, params;
    uint16_t *sources;         /* [names]: communicator whose members' samples experts see, or LS_NO_COMM */
    bool *reduced;             /* [names]: some reduction carries it */
    uint16_t *shards;          /* [names]: communicator whose members share it, or LS_NO_COMM */
    size_t places_max;         /* of the largest group of sources */
    uint32_t only;             /* second pass: the one parameter, else LS_NO_ID */
    const struct share *look; size_t looks;
    /* [ranks][params][width] */
    uint64_t *local, *input, *partial, *done;
    uint32_t *waiting;         /* [ranks][params]: reductions deposited and not finished */
    uint32_t *steps;           /* [ranks][params]: optimizer steps seen */
    uint32_t *taken;           /* [places_max][steps_max][params]: by how many ranks */
    uint64_t *expected;        /* [places_max][steps_max][params][width] */
    size_t steps_max;
    size_t *segment, *op;      /* [ranks]: where each rank is */
    uint32_t *next;            /* [ranks][comms]: position on each communicator */
    struct group **group;      /* [comms][groups] */
    struct ls_arena *arena;
    bool wrong;                /* the first wrong value: by rank, then program order */
    struct ls_at at; uint32_t wrong_param, wrong_step, wrong_place;
    uint64_t *found;           /* [width] of the wrong value; second pass: at `at` */
};

static uint64_t *value(const struct walk *w, uint64_t *table, size_t row, uint32_t param)
{
    return table + (row * w->params + param) * w->width;
}

static uint32_t place_of(const struct walk *w, uint32_t rank, uint32_t name)
{
    return w->sources[name] == LS_NO_COMM ? 0 : w->job->comm[w->sources[name]].member[rank];
}

/* Rows are shared out from the front: of few rows, the last ranks have none, and lose nothing. */
static bool holds(const struct walk *w, uint32_t rank, uint32_t name)
{
    const uint64_t rows = ls_tables_rows(w->job->tables, name);
    const struct ls_groups *g = w->shards[name] == LS_NO_COMM ? NULL : &w->job->comm[w->shards[name]];
    if (!rows || !g || g->group[rank] == LS_NO_ID)
        return true;
    const uint64_t ranks = g->first[g->group[rank] + 1] - g->first[g->group[rank]], each = (rows + ranks - 1) / ranks;
    return g->member[rank] * each < rows;
}

static void weigh(const struct walk *w, struct share s, uint64_t *out)
{
    if (w->only == LS_NO_ID) {
        uint64_t key = ls_hash_mix(ls_hash_mix(ls_hash_mix(s.rank, (uint64_t)s.segment << 32 | s.microbatch), s.step), s.place);
        for (size_t i = 0; i < w->width; i++)
            out[i] = reduce61(ls_hash(&key, sizeof key, 77 + i));
        return;
    }
    for (size_t i = 0; i < w->width; i++)
        out[i] = i < w->looks && w->look[i].rank == s.rank && w->look[i].segment == s.segment &&
                 w->look[i].microbatch == s.microbatch && w->look[i].step == s.step && w->look[i].place == s.place;
}

static void add_scaled(const struct walk *w, uint64_t *to, const uint64_t *from, uint64_t factor)
{
    for (size_t i = 0; i < w->width; i++)
        to[i] = add61(to[i], factor == 1 ? from[i] : mul61(from[i], factor));
}

static uint32_t param_of(const struct walk *w, uint32_t name)
{
    return name < w->names ? w->dense[name] : LS_NO_ID;
}

static bool is_backward(const struct ls_op *op) { return op->kind == LS_OP_COMPUTE && op->pass == LS_PASS_B && op->payload != LS_NO_ID; }
static bool is_share(const struct ls_op *op) { return is_backward(op) && !ls_op_gives_nothing(op); }
static bool is_discard(const struct ls_op *op) { return is_backward(op) && ls_op_gives_nothing(op); }
static bool is_optimizer(const struct ls_op *op) { return op->kind == LS_OP_COMPUTE && op->pass == LS_PASS_OPT && op->payload != LS_NO_ID; }
static bool is_step(const struct ls_op *op) { return is_optimizer(op) && !op->factor.num; }
static bool is_scale(const struct ls_op *op) { return is_optimizer(op) && op->factor.num; }
static bool is_copy(const struct ls_op *op) { return op->kind == LS_OP_COPY_IN && op->pass == LS_PASS_B && op->payload != LS_NO_ID; }
static bool is_alone(const struct ls_op *op) { return op->kind == LS_OP_COPY_OUT && op->pass == LS_PASS_B && op->payload != LS_NO_ID; }
static bool is_reduction(const struct ls_op *op)
{
    return (op->kind == LS_OP_REDUCE_SCATTER || op->kind == LS_OP_ALL_REDUCE) && op->pass == LS_PASS_B && op->payload != LS_NO_ID;
}

/* A step, or the place of one that this rank leaves out. */
static bool left_out(const struct walk *w, const struct ls_op *op)
{
    return op->kernels && w->job->tables->kernel.at[op->kernel].what == LS_KERNEL_LEFT_OUT;
}

static const struct ls_payload *payload_of(const struct walk *w, const struct ls_op *op)
{
    return &w->job->tables->payload.at[op->payload];
}

static void finish(struct walk *w, const struct ls_op *op, const struct meeting *m, size_t members)
{
    const struct ls_payload *p = payload_of(w, op);
    uint64_t factor = op->reduce == LS_REDUCE_AVG ? ratio61(1, members) : 1;
    if (op->factor.num)
        factor = mul61(factor, ratio61(op->factor.num, op->factor.den ? op->factor.den : 1));
    for (size_t j = 0; j < members; j++)
        for (size_t i = 0; i < p->count; i++) {
            uint32_t q = param_of(w, p->items[i]);
            if (q == LS_NO_ID)
                continue;
            uint64_t *table = op->kind != LS_OP_ALL_REDUCE ? w->partial : op->held ? w->input : w->done;
            uint64_t *to = value(w, table, m->rank[j], q); /* held: of a bucket, which is copied out */
            add_scaled(w, to, m->sum + i * w->width, factor);
            w->waiting[m->rank[j] * w->params + q]--;
        }
}

/* A rank hands in what it has; the last one finishes the reduction. */
static void deposit(struct walk *w, uint32_t rank, const struct ls_op *op)
{
    const struct ls_payload *p = payload_of(w, op);
    const struct ls_groups *g = &w->job->comm[op->comm];
    uint32_t at = g->group[rank], k = w->next[rank * w->job->tables->comm.count + op->comm]++;
    size_t members = g->first[at + 1] - g->first[at];
    struct group *x = &w->group[op->comm][at];
    while (x->at.count <= k)
        ls_push(&x->at, (struct meeting){ 0 });
    struct meeting *m = &x->at.at[k];
    if (!m->sum) {
        m->sum = LS_NEW(w->arena, uint64_t, p->count * w->width);
        m->rank = LS_NEW(w->arena, uint32_t, members);
    }
    for (size_t i = 0; i < p->count; i++) {
        uint32_t q = param_of(w, p->items[i]);
        if (q == LS_NO_ID)
            continue;
        uint64_t *in = value(w, w->input, rank, q), *part = value(w, w->partial, rank, q);
        add_scaled(w, m->sum + i * w->width, in, 1);
        memset(in, 0, w->width * sizeof *in);
        if (op->kind == LS_OP_ALL_REDUCE && !op->held) { /* what the shards' reductions left, also of earlier microbatches */
            add_scaled(w, m->sum + i * w->width, part, 1);
            memset(part, 0, w->width * sizeof *part);
        }
        w->waiting[rank * w->params + q]++;
    }
    m->rank[m->arrived++] = rank;
    if (m->arrived == members)
        finish(w, op, m, members);
}

static bool must_wait(const struct walk *w, uint32_t rank, const struct ls_op *op)
{
    const struct ls_payload *p = payload_of(w, op);
    for (size_t i = 0; i < p->count; i++) {
        uint32_t q = param_of(w, p->items[i]);
        if (q != LS_NO_ID && w->waiting[rank * w->params + q])
            return true;
    }
    return false;
}

static void note_wrong(struct walk *w, struct ls_at at, uint32_t param, uint32_t step, uint32_t place)
{
    bool before = !w->wrong || at.rank < w->at.rank ||
                  (at.rank == w->at.rank && (at.segment < w->at.segment || (at.segment == w->at.segment && at.op < w->at.op)));
    if (!before)
        return;
    w->wrong = true;
    w->at = at;
    w->wrong_param = param;
    w->wrong_step = step;
    w->wrong_place = place;
}

/* Experts in no unit: what has accumulated is what the step finds. */
static bool stays_local(const struct walk *w, uint32_t name)
{
    return w->sources[name] != LS_NO_COMM && !w->reduced[name];
}

static void scale(struct walk *w, uint32_t rank, const struct ls_op *op)
{
    const struct ls_payload *p = payload_of(w, op);
    const uint64_t factor = op->factor.num ? ratio61(op->factor.num, op->factor.den ? op->factor.den : 1) : 0;
    for (size_t i = 0; i < p->count; i++) {
        uint32_t q = param_of(w, p->items[i]);
        if (q == LS_NO_ID)
            continue;
        uint64_t *at[] = { value(w, w->done, rank, q), value(w, w->partial, rank, q),
                           stays_local(w, p->items[i]) ? value(w, w->local, rank, q) : NULL };
        for (size_t k = 0; k < sizeof at / sizeof *at; k++)
            for (size_t e = 0; at[k] && e < w->width; e++)
                at[k][e] = mul61(at[k][e], factor);
    }
}

/* The optimizer's step, or its absence: the gradients are gone afterwards. */
static void step(struct walk *w, struct ls_at at, const struct ls_op *op)
{
    const struct ls_payload *p = payload_of(w, op);
    for (size_t i = 0; i < p->count; i++) {
        uint32_t q = param_of(w, p->items[i]);
        if (q == LS_NO_ID)
            continue;
        uint64_t *done = value(w, w->done, at.rank, q), *part = value(w, w->partial, at.rank, q), sum[CHUNK];
        uint32_t k = w->steps[at.rank * w->params + q]++;
        uint64_t *local = value(w, w->local, at.rank, q);
        const bool own = stays_local(w, p->items[i]);
        for (size_t e = 0; e < w->width; e++)
            sum[e] = add61(add61(done[e], part[e]), own ? local[e] : 0);
        if (own)
            memset(local, 0, w->width * sizeof *local);
        for (size_t e = 0; op->symbol != LS_NO_ID && e < w->width; e++)
            sum[e] = mul61(sum[e], ratio61(1, at.rank + 2)); /* of its own: any factor that differs by rank shows it */
        if (ls_op_gives_nothing(op))
            memset(sum, 0, w->width * sizeof *sum);
        memset(done, 0, w->width * sizeof *done);
        memset(part, 0, w->width * sizeof *part);
        const uint32_t place = place_of(w, at.rank, p->items[i]);
        if (left_out(w, op)) { /* nothing of it arrived in the parameter */
            if (w->only == LS_NO_ID && holds(w, at.rank, p->items[i]))
                ls_push(&w->skipped, (struct skipped_step){ at, q, k, place });
            continue;
        }
        w->taken[(place * w->steps_max + k) * w->params + q]++;
        if (w->only != LS_NO_ID) {
            if (at.rank == w->at.rank && at.segment == w->at.segment && at.op == w->at.op)
                memcpy(w->found, sum, w->width * sizeof *sum);
            continue;
        }
        if (memcmp(sum, value(w, w->expected, place * w->steps_max + k, q), w->width * sizeof *sum) == 0)
            continue;
        note_wrong(w, at, q, k, place);
    }
}

/* Takes a rank as far as it goes. True if it moved. */
static bool advance(struct walk *w, uint32_t rank)
{
    const struct ls_rank_program *r = &w->job->rank[rank];
    bool moved = false;
    for (; w->segment[rank] < r->count; w->segment[rank]++, w->op[rank] = 0, moved = true)
        for (const struct ls_segment *s = r->segment[w->segment[rank]]; w->op[rank] < s->count; w->op[rank]++, moved = true) {
            const struct ls_op *op = &s->op[w->op[rank]];
            if (is_alone(op) && op->held && must_wait(w, rank, op))
                return moved;
            if (is_share(op) || is_copy(op) || is_alone(op)) {
                const struct ls_payload *p = payload_of(w, op);
                for (size_t i = 0; i < p->count; i++) {
                    uint32_t q = param_of(w, p->items[i]);
                    if (q == LS_NO_ID)
                        continue;
                    uint64_t weight[CHUNK], *from = is_copy(op) ? value(w, w->local, rank, q) : value(w, w->input, rank, q);
                    if (is_share(op)) {
                        struct share one = { rank, (uint32_t)w->segment[rank], op->microbatch, w->steps[rank * w->params + q],
                                             place_of(w, rank, p->items[i]), 1 };
                        const struct ls_groups *g = op->sources == LS_NO_COMM ? NULL : &w->job->comm[op->sources];
                        const uint32_t first = g ? g->first[g->group[rank]] : 0, last = g ? g->first[g->group[rank] + 1] : 1;
                        for (uint32_t m = first; m < last; m++) {
                            one.rank = g ? g->rank[m] : rank;
                            weigh(w, one, weight);
                            add_scaled(w, value(w, w->local, rank, q), weight, 1);
                        }
                        continue;
                    }
                    add_scaled(w, is_copy(op) ? value(w, w->input, rank, q) : value(w, w->partial, rank, q), from, 1);
                    memset(from, 0, w->width * sizeof *from);
                }
            } else if (is_reduction(op)) {
                if (op->kind == LS_OP_ALL_REDUCE && must_wait(w, rank, op))
                    return moved;
                deposit(w, rank, op);
            } else if (is_optimizer(op) || is_discard(op)) {
                if (must_wait(w, rank, op))
                    return moved;
                if (is_scale(op) || is_discard(op)) {
                    scale(w, rank, op);
                    continue;
                }
                step(w, (struct ls_at){ rank, (uint32_t)w->segment[rank], (uint32_t)w->op[rank] }, op);
            }
        }
    return moved;
}

/* Runs the job once. False when the data flow gets stuck, which no completed job without races does. */
static bool flow(struct walk *w)
{
    size_t ranks = w->job->ranks, cells = ranks * w->params, comms = w->job->tables->comm.count;
    w->local = LS_NEW(w->arena, uint64_t, cells * w->width);
    w->input = LS_NEW(w->arena, uint64_t, cells * w->width);
    w->partial = LS_NEW(w->arena, uint64_t, cells * w->width);
    w->done = LS_NEW(w->arena, uint64_t, cells * w->width);
    w->waiting = LS_NEW(w->arena, uint32_t, cells);
    w->steps = LS_NEW(w->arena, uint32_t, cells);
    w->taken = LS_NEW(w->arena, uint32_t, w->places_max * w->steps_max * w->params);
    w->segment = LS_NEW(w->arena, size_t, ranks);
    w->op = LS_NEW(w->arena, size_t, ranks);
    w->next = LS_NEW(w->arena, uint32_t, ranks * comms);
    w->group = LS_NEW(w->arena, struct group *, comms);
    for (size_t c = 0; c < comms; c++)
        w->group[c] = LS_NEW(w->arena, struct group, w->job->comm[c].groups);
    bool finished = false;
    for (bool moved = true; moved;) {
        moved = false;
        finished = true;
        for (uint32_t r = 0; r < ranks; r++) {
            moved |= advance(w, r);
            finished = finished && w->segment[r] == w->job->rank[r].count;
        }
    }
    for (size_t c = 0; c < comms; c++)
        for (size_t g = 0; g < w->job->comm[c].groups; g++)
            ls_vec_release(&w->group[c][g].at);
    return finished;
}

/* Gives parameters numbers and counts steps. */
static void number_params(struct walk *w)
{
    for (uint32_t r = 0; r < w->job->ranks; r++) {
        size_t steps = 0;
        for (size_t s = 0; s < w->job->rank[r].count; s++)
            for (size_t o = 0; o < w->job->rank[r].segment[s]->count; o++) {
                const struct ls_op *op = &w->job->rank[r].segment[s]->op[o];
                const bool shares_out = is_reduction(op) && op->kind == LS_OP_REDUCE_SCATTER;
                if (!is_share(op) && !is_step(op) && !is_copy(op) && !shares_out)
                    continue;
                steps += is_step(op);
                const struct ls_payload *p = payload_of(w, op);
                for (size_t i = 0; i < p->count; i++) {
                    assert(p->items[i] < w->names);
                    if (shares_out) {
                        w->shards[p->items[i]] = op->comm;
                        continue;
                    }
                    if (is_copy(op)) {
                        w->reduced[p->items[i]] = true;
                        continue;
                    }
                    if (is_share(op) && op->sources != LS_NO_COMM) {
                        const struct ls_groups *g = &w->job->comm[op->sources];
                        w->sources[p->items[i]] = op->sources;
                        for (uint32_t k = 0; k < g->groups; k++)
                            w->places_max = g->first[k + 1] - g->first[k] > w->places_max ? g->first[k + 1] - g->first[k] : w->places_max;
                    }
                    if (w->dense[p->items[i]] == LS_NO_ID)
                        w->dense[p->items[i]] = (uint32_t)w->params++;
                }
            }
        w->steps_max = steps + 1 > w->steps_max ? steps + 1 : w->steps_max;
    }
}

/* Calls `see` for every share, with the number of steps of its parameter that the rank has taken before. */
static void each_share(struct walk *w, void (*see)(struct walk *w, void *context, uint32_t param, struct share share), void *context)
{
    uint32_t *steps = LS_NEW(w->arena, uint32_t, w->params);
    for (uint32_t r = 0; r < w->job->ranks; r++) {
        memset(steps, 0, w->params * sizeof *steps);
        for (size_t s = 0; s < w->job->rank[r].count; s++)
            for (size_t o = 0; o < w->job->rank[r].segment[s]->count; o++) {
                const struct ls_op *op = &w->job->rank[r].segment[s]->op[o];
                if (!is_share(op) && !is_step(op))
                    continue;
                const struct ls_payload *p = payload_of(w, op);
                for (size_t i = 0; i < p->count; i++) {
                    uint32_t q = w->dense[p->items[i]];
                    if (is_step(op)) {
                        steps[q]++;
                        continue;
                    }
                    struct share share = { r, (uint32_t)s, op->microbatch, steps[q], place_of(w, r, p->items[i]), 1 };
                    const struct ls_groups *g = op->sources == LS_NO_COMM ? NULL : &w->job->comm[op->sources];
                    const uint32_t first = g ? g->first[g->group[r]] : 0, last = g ? g->first[g->group[r] + 1] : 1;
                    for (uint32_t m = first; m < last; m++) {
                        share.rank = g ? g->rank[m] : r;
                        see(w, context, q, share);
                    }
                }
            }
    }
}

static void expect(struct walk *w, void *context, uint32_t param, struct share share)
{
    uint64_t weight[CHUNK];
    weigh(w, share, weight);
    add_scaled(w, value(w, w->expected, share.place * w->steps_max + share.step, param), weight, *(const uint64_t *)context);
}

struct list { uint32_t param, step, place; LS_VEC(struct share) all; };

static void collect(struct walk *w, void *context, uint32_t param, struct share share)
{
    struct list *list = context;
    const bool grouped = w->places_max > 1; /* else equal shares come in a row */
    if (param != list->param || share.step != list->step || share.place != list->place)
        return;
    for (size_t k = list->all.count; k-- > 0 && (grouped || list->all.at[k].rank == share.rank);)
        if (list->all.at[k].rank == share.rank && list->all.at[k].segment == share.segment &&
            list->all.at[k].microbatch == share.microbatch) {
            list->all.at[k].times++;
            return;
        }
    ls_push(&list->all, share);
}

/* Exact coefficients of the shares of the wrong parameter at the wrong step. */
static enum ls_verdict explain(struct walk *first, struct ls_share_problem *out)
{
    struct list list = { .param = first->wrong_param, .step = first->wrong_step, .place = first->wrong_place };
    each_share(first, collect, &list);
    const struct share *shares = list.all.at;
    size_t count = list.all.count;
    uint32_t name = 0;
    while (first->dense[name] != first->wrong_param)
        name++;
    *out = (struct ls_share_problem){ .param = name, .shares = count, .rank = first->at.rank, .microbatch = 0 };
    out->expected = first->mean ? (struct ls_ratio){ 1, (uint32_t)first->job->ranks } : (struct ls_ratio){ 1, 1 };
    uint64_t expected = first->mean ? ratio61(1, first->job->ranks) : 1;
    bool any = false;
    enum { CHUNKS_MAX = 256 };
    for (size_t from = 0; from < count && from < (size_t)CHUNKS_MAX * CHUNK; from += CHUNK) {
        struct walk w = *first;
        struct ls_arena scratch;
        uint64_t found[CHUNK] = { 0 };
        ls_arena_init(&scratch, 0);
        w.arena = &scratch;
        w.width = CHUNK;
        w.params = 1;
        w.only = first->wrong_param;
        w.look = shares + from;
        w.looks = count - from < CHUNK ? count - from : CHUNK;
        w.found = found;
        w.dense = LS_NEW(&scratch, uint32_t, w.names);
        memset(w.dense, 0xff, w.names * sizeof *w.dense);
        w.dense[name] = 0;
        (void)flow(&w);
        for (size_t i = 0; i < w.looks; i++) {
            uint64_t want = mul61(expected, reduce61(shares[from + i].times));
            out->missing += found[i] == 0;
            if (found[i] == want || (any && !(out->found.num && found[i] == 0)))
                continue;
            any = true; /* a missing share is told rather than one with a wrong factor */
            out->found = found[i] ? ratio_of(found[i]) : (struct ls_ratio){ 0, 1 };
            out->rank = shares[from + i].rank;
            out->microbatch = shares[from + i].microbatch;
        }
        ls_arena_release(&scratch);
    }
    ls_vec_release(&list.all);
    if (!any) /* shares of another step arrive in this one */
        out->found = (struct ls_ratio){ 0, 0 };
    return out->missing ? LS_LOST_GRADIENT : LS_WRONG_SCALE;
}

enum ls_code ls_check_gradients(const struct ls_job *job, bool mean, enum ls_verdict *out, struct ls_share_problem *problem,
                                struct ls_error *err)
{
    struct ls_arena scratch;
    ls_arena_init(&scratch, 0);
    struct walk w = { .job = job, .mean = mean, .width = 2, .only = LS_NO_ID, .arena = &scratch,
                      .names = ls_names_count(job->tables->names) };
    *out = LS_SAFE;
    w.dense = LS_NEW(&scratch, uint32_t, w.names);
    memset(w.dense, 0xff, w.names * sizeof *w.dense);
    w.sources = LS_NEW(&scratch, uint16_t, w.names);
    memset(w.sources, 0xff, w.names * sizeof *w.sources);
    w.reduced = LS_NEW(&scratch, bool, w.names);
    w.shards = LS_NEW(&scratch, uint16_t, w.names);
    memset(w.shards, 0xff, w.names * sizeof *w.shards);
    w.places_max = 1;
    number_params(&w);
    uint64_t factor = mean ? ratio61(1, job->ranks) : 1;
    w.expected = LS_NEW(&scratch, uint64_t, ls_mul_size(ls_mul_size(w.places_max, w.steps_max), w.params * w.width));
    each_share(&w, expect, &factor);
    enum ls_code rc = LS_OK;
    if (w.params && !flow(&w))
        rc = ls_fail(err, LS_EUNDECIDED, LS_NOWHERE, "gradients depend on each other in a cycle that no stream or event orders");
    for (size_t i = 0; rc == LS_OK && i < w.skipped.count; i++) {
        const struct skipped_step *x = &w.skipped.at[i];
        const size_t row = x->place * w.steps_max + x->step;
        const uint64_t *expected = value(&w, w.expected, row, x->param);
        if (w.taken[row * w.params + x->param] && (expected[0] || expected[1])) /* somebody had a gradient for it */
            note_wrong(&w, x->at, x->param, x->step, x->place);
    }
    ls_vec_release(&w.skipped);
    if (rc == LS_OK && w.wrong)
        *out = explain(&w, problem);
    ls_arena_release(&scratch);
    return rc;
}
