/* Which sequences of rounds a loop plays. Agreed decisions are edges here; nodes may have several successors.
 *
 *   start -> step ... step -> the rounds after an epoch -> start
 *
 * A place of the schedule is entered at one of `in` and left from one of `out`. */
#include "loop/loop.h"

#include "base/vec.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

typedef LS_VEC(uint32_t) id_vec;
struct place { id_vec in, out; };

struct builder {
    const struct ls_loop *loop;
    const struct ls_batch *b;
    const struct ls_letters *letters;
    struct ls_arena *arena;
    bool line;                            /* no alternatives */
    LS_VEC(struct ls_round) round;
    LS_VEC(uint32_t) early, skipped;      /* parallel to round */
    LS_VEC(struct ls_driver_node) node;
    LS_VEC(uint32_t) first;               /* parallel to node: a step's first microbatch, or a validation's first batch */
    size_t step; bool number_steps;
};

static uint32_t add_round(struct builder *d, struct ls_round r)
{
    for (uint32_t i = 0; i < d->round.count; i++) { /* steps share their rounds */
        const struct ls_round *o = &d->round.at[i];
        if (o->kind == r.kind && o->after == r.after && o->ends_epoch == r.ends_epoch && o->microbatch == r.microbatch && o->last == r.last &&
            ls_batch_same_switches(o, &r))
            return i;
    }
    ls_push(&d->round, r);
    ls_push(&d->early, LS_NO_ID);
    ls_push(&d->skipped, LS_NO_ID);
    return (uint32_t)d->round.count - 1;
}

static uint32_t add_node(struct builder *d, uint32_t round, bool first, const char *name)
{
    struct ls_driver_node n = { .round = round, .microbatch = d->round.at[round].microbatch };
    n.name = d->number_steps && !d->round.at[round].after ? ls_arena_printf(d->arena, "step %zu, %s", d->step, name) : ls_arena_str(d->arena, name);
    ls_push(&d->node, n);
    ls_push(&d->first, first);
    return (uint32_t)d->node.count - 1;
}

static void edge(struct builder *d, uint32_t from, uint32_t to)
{
    struct ls_driver_node *n = &d->node.at[from];
    uint32_t *next = LS_NEW(d->arena, uint32_t, n->nexts + 1);
    for (size_t i = 0; i < n->nexts; i++) {
        if (n->next[i] == to)
            return;
        next[i] = n->next[i];
    }
    next[n->nexts++] = to;
    n->next = next;
}

static void connect(struct builder *d, const id_vec *from, const id_vec *to)
{
    for (size_t o = 0; o < from->count; o++)
        for (size_t i = 0; i < to->count; i++)
            edge(d, from->at[o], to->at[i]);
}

static void place_release(struct place *p)
{
    ls_vec_release(&p->in);
    ls_vec_release(&p->out);
}

/* A microbatch's round with its two relatives: as a rank's last one, and forward only. */
static uint32_t micro_round(struct builder *d, size_t which, size_t last_which, size_t microbatch, bool last)
{
    uint32_t id = add_round(d, ls_batch_micro(d->b, which, microbatch, last));
    struct ls_round early = ls_batch_micro(d->b, last_which, microbatch, true), skipped = ls_batch_micro(d->b, which, microbatch, last);
    skipped.kind = LS_ROUND_SKIPPED;
    uint32_t e = add_round(d, early), s = add_round(d, skipped);
    d->early.at[id] = e;
    d->early.at[e] = e;
    d->skipped.at[id] = s;
    early.kind = LS_ROUND_SKIPPED;
    uint32_t es = add_round(d, early);
    d->skipped.at[e] = es;
    d->skipped.at[s] = s;
    d->skipped.at[es] = es;
    d->early.at[s] = d->early.at[es] = es;
    return id;
}

/* A node, and beside it the same microbatch skipped by all. */
static void add_micro(struct builder *d, uint32_t round, bool first, const char *name, id_vec *ids)
{
    char text[64];
    ids->count = 0;
    uint32_t at = add_node(d, round, first, name);
    ls_push(ids, at);
    if (d->line || !d->loop->non_finite || !d->loop->non_finite_agree)
        return;
    snprintf(text, sizeof text, "%s, skipped", name);
    at = add_node(d, d->skipped.at[round], first, text);
    ls_push(ids, at);
}

static void add_all(id_vec *to, const id_vec *from)
{
    for (size_t i = 0; i < from->count; i++)
        ls_push(to, from->at[i]);
}

/* What all ranks raise about ends the job. */
static void add_survivors(struct builder *d, id_vec *to, const id_vec *from)
{
    for (size_t i = 0; i < from->count; i++)
        if (!d->loop->raise || d->round.at[d->node.at[from->at[i]].round].kind != LS_ROUND_SKIPPED)
            ls_push(to, from->at[i]);
}

static struct place any_microbatches(struct builder *d)
{
    uint32_t other = micro_round(d, 0, 1, 0, false), last = micro_round(d, 1, 1, 1, true);
    struct place p = { 0 };
    id_vec only = { 0 }, first = { 0 }, more = { 0 }, end = { 0 }, go = { 0 };
    bool split = !ls_batch_same_switches(&d->round.at[other], &d->round.at[last]);
    add_micro(d, other, true, "first microbatch", &first);
    add_micro(d, other, false, "later microbatch", &more);
    if (split) {
        add_micro(d, last, true, "only microbatch", &only);
        add_micro(d, last, false, "last microbatch", &end);
    }
    add_all(&p.in, &only);
    add_all(&p.in, &first);
    add_survivors(d, &go, &first);
    add_survivors(d, &go, &more);
    connect(d, &go, &more);
    connect(d, &go, &end);
    if (split) {
        add_survivors(d, &p.out, &only);
        add_survivors(d, &p.out, &end);
    } else {
        add_all(&p.out, &go);
    }
    id_vec *const all[] = { &only, &first, &more, &end, &go };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        ls_vec_release(all[i]);
    return p;
}

static struct place one(struct builder *d, struct ls_round r, const char *name)
{
    struct place p = { 0 };
    uint32_t at = add_node(d, add_round(d, r), r.kind == LS_ROUND_EVAL, name);
    ls_push(&p.in, at);
    ls_push(&p.out, at);
    return p;
}

static void then(struct builder *d, struct place *p, struct place next)
{
    if (!p->in.count) {
        *p = next;
        return;
    }
    connect(d, &p->out, &next.in);
    ls_vec_release(&p->out);
    p->out = next.out;
    ls_vec_release(&next.in);
}

static bool ends_validation(const struct ls_loop *l)
{
    return l->eval_metrics || l->own_eval_batches || l->eval_ranks != LS_WHO_ALL;
}

/* `count` batches in a row, and what follows the last one. */
static struct place validation(struct builder *d, bool after, size_t count, bool end_listed)
{
    struct ls_round r = { .kind = LS_ROUND_EVAL, .after = after }, end = { .kind = LS_ROUND_EVAL_END, .after = after };
    struct place p = one(d, r, "validation batch");
    bool loops = count == 1 && d->loop->own_eval_batches && !d->line;
    for (size_t i = 1; i < count + loops; i++) {
        uint32_t more = add_node(d, add_round(d, r), false, "later validation batch");
        for (size_t o = 0; o < p.out.count; o++)
            edge(d, p.out.at[o], more);
        if (loops)
            edge(d, more, more);
        else
            p.out.count = 0;
        ls_push(&p.out, more);
    }
    if (ends_validation(d->loop) && !end_listed)
        then(d, &p, one(d, end, "end of validation"));
    return p;
}

/* How many `kind` stand in a row at `i`. */
static size_t run_of(const enum ls_round_kind *kind, size_t count, size_t i)
{
    size_t n = 0;
    while (i + n < count && kind[i + n] == kind[i])
        n++;
    return n;
}

static bool lists(const enum ls_round_kind *kind, size_t count, enum ls_round_kind which)
{
    for (size_t i = 0; i < count; i++)
        if (kind[i] == which)
            return true;
    return false;
}

static struct place save(struct builder *d, bool after)
{
    struct place p = one(d, (struct ls_round){ .kind = LS_ROUND_SAVE, .after = after }, "save");
    if (d->loop->save_ranks != LS_WHO_OWN || !d->loop->save_agree || d->line)
        return p;
    struct place no = one(d, (struct ls_round){ .kind = LS_ROUND_NO_SAVE, .after = after }, "no save");
    add_all(&p.in, &no.in);
    add_all(&p.out, &no.out);
    place_release(&no);
    return p;
}

static struct place step_rounds(struct builder *d, const enum ls_round_kind *kind, size_t count)
{
    struct place p = { 0 };
    size_t micro = 0, most = (size_t)d->b->microbatches;
    bool end_listed = lists(kind, count, LS_ROUND_EVAL_END), first = true;
    id_vec ids = { 0 };
    for (size_t i = 0; i < count; i++)
        switch (kind[i]) {
        case LS_ROUND_MICRO:
        case LS_ROUND_SKIPPED: {
            struct place next = { 0 };
            if (most) {
                char name[48];
                size_t next_kind = i + 1; /* a table may hold several steps: a step's last microbatch is the one before its end */
                while (next_kind < count && kind[next_kind] != LS_ROUND_MICRO && kind[next_kind] != LS_ROUND_SKIPPED && kind[next_kind] != LS_ROUND_STEP)
                    next_kind++;
                uint32_t round = micro_round(d, micro, most - 1, micro, next_kind == count || kind[next_kind] == LS_ROUND_STEP);
                snprintf(name, sizeof name, "microbatch %zu", micro);
                if (kind[i] == LS_ROUND_SKIPPED)
                    round = d->skipped.at[round];
                add_micro(d, round, first, name, &ids);
                add_all(&next.in, &ids);
                add_survivors(d, &next.out, &ids);
                micro++;
                first = false;
            } else {
                next = any_microbatches(d);
            }
            then(d, &p, next);
            break;
        }
        case LS_ROUND_STEP:
            then(d, &p, one(d, (struct ls_round){ .kind = LS_ROUND_STEP, .microbatch = (uint32_t)(most ? most - 1 : 0) }, "step end"));
            first = true;
            break;
        case LS_ROUND_EVAL: {
            size_t n = run_of(kind, count, i);
            then(d, &p, validation(d, false, n, end_listed));
            i += n - 1;
            break;
        }
        case LS_ROUND_EVAL_END:
            then(d, &p, one(d, (struct ls_round){ .kind = LS_ROUND_EVAL_END }, "end of validation"));
            break;
        case LS_ROUND_SAVE:
            then(d, &p, save(d, false));
            break;
        case LS_ROUND_NO_SAVE:
            then(d, &p, one(d, (struct ls_round){ .kind = LS_ROUND_NO_SAVE }, "no save"));
            break;
        case LS_ROUND_IDLE:
        case LS_ROUND_KINDS:
            assert(0 && "no place of a schedule");
        }
    ls_vec_release(&ids);
    return p;
}

static struct place after_rounds(struct builder *d)
{
    struct place p = { 0 };
    const enum ls_round_kind *kind = d->loop->after;
    size_t count = d->loop->afters;
    bool end_listed = lists(kind, count, LS_ROUND_EVAL_END);
    for (size_t i = 0; i < count; i++)
        switch (kind[i]) {
        case LS_ROUND_EVAL: {
            size_t n = run_of(kind, count, i);
            then(d, &p, validation(d, true, n, end_listed));
            i += n - 1;
            break;
        }
        case LS_ROUND_SAVE:
            then(d, &p, save(d, true));
            break;
        case LS_ROUND_EVAL_END:
        case LS_ROUND_NO_SAVE:
            then(d, &p, one(d, (struct ls_round){ .kind = kind[i], .after = true },
                            kind[i] == LS_ROUND_NO_SAVE ? "no save" : "end of validation"));
            break;
        case LS_ROUND_MICRO:
        case LS_ROUND_SKIPPED:
        case LS_ROUND_STEP:
        case LS_ROUND_IDLE:
        case LS_ROUND_KINDS:
            assert(0 && "no round of an epoch's end");
        }
    if (p.in.count && !d->line) /* a place of its own, since the last round may be shared with another place */
        then(d, &p, one(d, (struct ls_round){ .kind = LS_ROUND_IDLE, .after = true, .ends_epoch = true }, "end of epoch"));
    return p;
}

/* Which events a node's round may have: those of its kind, of a first microbatch, and not the ones that the round implies. */
static uint32_t events_of(const struct builder *d, uint32_t node)
{
    const struct ls_round *r = &d->round.at[d->node.at[node].round];
    uint32_t out = 0;
    for (size_t i = 0; i < d->loop->events; i++) {
        const struct ls_event *e = &d->loop->event[i];
        bool here = e->rounds >> r->kind & 1;
        if (e->feature == LS_LOOP_DATA || e->feature == LS_LOOP_EVAL_RANKS)
            here = here && d->first.at[node];
        if (e->feature == LS_LOOP_MICROBATCHES)
            here = here && !r->last;
        out |= here ? UINT32_C(1) << i : 0;
    }
    return out;
}

static void restrict_letters(struct builder *d)
{
    size_t words = (d->letters->count + 63) / 64;
    uint32_t still = ls_batch_still_letter(d->letters);
    for (uint32_t n = 0; n < d->node.count; n++) {
        uint32_t kind = d->round.at[d->node.at[n].round].kind, events = events_of(d, n);
        bool batch = kind == LS_ROUND_MICRO || kind == LS_ROUND_SKIPPED || kind == LS_ROUND_EVAL;
        uint64_t *allowed = LS_NEW(d->arena, uint64_t, words ? words : 1);
        for (size_t l = 0; l < d->letters->count; l++) {
            const struct ls_letter *letter = &d->letters->letter[l];
            if ((letter->events & ~events) || (!batch && letter->base != still))
                continue;
            allowed[l / 64] |= UINT64_C(1) << l % 64;
        }
        d->node.at[n].allowed = allowed;
    }
}

enum ls_code ls_loop_driver(const struct ls_loop *loop, const struct ls_batch *b, const struct ls_letters *letters, struct ls_arena *arena,
                            struct ls_loop_rounds *rounds, struct ls_driver *out, struct ls_error *err)
{
    struct builder d = { .loop = loop, .b = b, .letters = letters, .arena = arena, .line = b->apart || b->execution == LS_EXEC_TABLE };
    enum ls_round_kind *kind = NULL;
    size_t count = 0, steps = b->steps ? (size_t)b->steps : 1;
    enum ls_code rc = ls_batch_schedule(b, arena, &kind, &count, err);
    if (rc != LS_OK)
        return rc;
    if (ls_mul_size(steps, count + 8) * 4 > LS_NODES_MAX)
        return ls_fail(err, LS_EINPUT, b->at, "%zu steps of %zu rounds are more than %d rounds", steps, count, LS_NODES_MAX / 4);
    d.number_steps = steps > 1;
    struct place all = { 0 }, first = { 0 };
    /* Only node 0 starts a run, and only there a run of several epochs may stop. */
    if (!d.line)
        all = one(&d, (struct ls_round){ .kind = LS_ROUND_IDLE }, "start");
    if (!d.line)
        d.node.at[0].may_stop = true;
    bool may_end = (loop->own_data || loop->early_stop) && !d.line; /* an epoch may have fewer steps than the schedule says */
    id_vec leave = { 0 };
    for (size_t s = 0; s < steps; s++) {
        d.step = s;
        struct place p = step_rounds(&d, kind, count);
        if (s == 0)
            add_all(&first.in, &p.in);
        if (!loop->afters)
            for (size_t i = 0; i < p.in.count; i++)
                d.node.at[p.in.at[i]].may_stop = true;
        if (may_end || s + 1 == steps)
            add_all(&leave, &p.out);
        then(&d, &all, p);
    }
    if (!b->steps && !(d.line && loop->afters))
        connect(&d, &all.out, &first.in);
    if (loop->afters) {
        struct place after = after_rounds(&d);
        connect(&d, &leave, &after.in);
        if (!b->steps && !d.line) {
            for (size_t i = 0; i < after.out.count; i++)
                edge(&d, after.out.at[i], 0);
        }
        place_release(&after);
    }
    restrict_letters(&d);
    rounds->rounds = (struct ls_rounds){ ls_arena_copy(arena, d.round.at, d.round.count * sizeof *d.round.at), d.round.count };
    rounds->early = ls_arena_copy(arena, d.early.at, d.early.count * sizeof *d.early.at);
    rounds->skipped = ls_arena_copy(arena, d.skipped.at, d.skipped.count * sizeof *d.skipped.at);
    *out = (struct ls_driver){ ls_arena_copy(arena, d.node.at, d.node.count * sizeof *d.node.at), d.node.count };
    place_release(&all);
    place_release(&first);
    ls_vec_release(&leave);
    ls_vec_release(&d.round);
    ls_vec_release(&d.early);
    ls_vec_release(&d.skipped);
    ls_vec_release(&d.node);
    ls_vec_release(&d.first);
    return LS_OK;
}
