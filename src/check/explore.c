#include "check/explore.h"

#include "check/layers.h"
#include "check/product.h"
#include "check/stateset.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- the reductions, and why they keep the verdict ----
 *
 * A family is unsafe iff a state is reachable in which nothing can move although not everything is done: ops that meet and
 * differ stay at the heads of their FIFOs for ever, and a rank at a stop op never ends. So it is enough to reach every stuck
 * state up to renaming of ranks. Every step makes progress, so there are no cycles, and a *persistent* set of steps in every
 * state is enough (Godefroid 1996): steps such that nothing done outside the set can ever depend on one of them.
 *
 * Past      What a rank did in rounds that are over is dropped from its state: no future step reads it (a wait names a record
 *           that is pending, or it is satisfied).
 * Settling  A step that no other step can disable or change, once enabled, is a persistent set of its own, so it is taken at
 *           once: running a stream's head (it stays the head), a meeting (all members stay ready), issuing (bounded
 *           run-ahead and host waits only ever become easier), and starting a kernel where starts follow the issue order (one
 *           candidate, which stays first) or slots cannot run out.
 * Choices   A rank's choices exclude each other and depend on nothing else: one rank's choices are a persistent set.
 *           At L1 and L2 nothing else is left: one schedule per assignment, as the confluence
 *           of the machine says.
 * Starts    In any order, with k slots, kernels of one rank compete, also with kernels that are not ready yet. A rank without
 *           offers can only be changed by its own moves, so these moves are a persistent set. If every rank that can move
 *           has offers, all moves of all ranks are taken.
 * Symmetry  Ranks whose exchange maps the family to itself are interchangeable: the states of such a class are sorted.
 *           Reachability commutes with the exchange, so a stuck state is reachable iff its sorted form is. */

double ls_explore_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Which violation a state shows: a meeting whose ops differ, or (when stuck) a rank that cannot end. */
static void classify(struct ls_product *p, const uint32_t *state, struct ls_explored *out)
{
    const struct ls_family *f = p->family;
    uint32_t *to = LS_NEW(p->arena, uint32_t, f->ranks + 1);
    for (size_t g = 0; g < p->meetings; g++) {
        if (ls_product_meet(p, state, g, to) != LS_MEET_DIFFER)
            continue;
        const struct ls_product_meeting *m = &p->meeting[g];
        const struct ls_offer *first = NULL;
        for (size_t i = 0; i < m->members; i++) {
            uint32_t r = m->member[i].rank;
            const struct ls_offer *o = ls_automaton_offer(p->of[r], &p->of[r]->state.at[state[r]], m->member[i].fifo);
            if (!o)
                continue;
            if (!first) {
                first = o;
                out->a = ls_product_at(p, out, r, o->pick, o->op);
            } else if (o->sig != first->sig) {
                out->b = ls_product_at(p, out, r, o->pick, o->op);
                out->diff = ls_op_diff(f->tables, p->sigs.op.at[first->sig], p->sigs.op.at[o->sig]);
                break;
            }
        }
        out->verdict = out->diff == LS_DIFF_PAYLOAD ? LS_MISPAIRING : LS_MISMATCH;
        return;
    }
    out->verdict = LS_HANG;
    bool found = false;
    for (uint32_t r = 0; r < f->ranks; r++) {
        const struct ls_local *l = ls_automaton_local(p->of[r], state[r]);
        if (l->stopped)
            out->verdict = LS_ERROR;
        out->slots = out->slots || ls_automaton_slots_full(p->of[r], state[r]);
        if (l->offers > 0 && !found) {
            const struct ls_offer *o = &p->of[r]->offer.at[l->offer];
            out->a = ls_product_at(p, out, r, o->pick, o->op);
            found = true;
        }
    }
}

static void report(struct ls_product *p, const uint32_t *state, const struct ls_explore_options *o, struct ls_explored *out)
{
    uint32_t *kept = ls_arena_copy(p->arena, state, p->family->ranks * sizeof *state);
    if (!o->no_path && !ls_product_path(p, kept, o->states_max, out))
        out->pick = NULL;
    if (!out->pick) { /* places are then told with first choices */
        out->picks = LS_NEW(p->arena, size_t, p->family->ranks);
        out->pick = LS_NEW(p->arena, uint32_t *, p->family->ranks);
    }
    classify(p, kept, out);
    if (!out->steps && !o->no_path) {
        out->pick = NULL;
        out->picks = NULL;
    }
}

/* ---- with reductions ---- */

struct reduced {
    struct ls_product *p;
    const struct ls_explore_options *o;
    struct ls_explored *out;
    struct ls_stateset seen;
    LS_VEC(uint32_t) open;     /* a stack of states */
    uint32_t *now, *to, *next; /* [ranks], [ranks], [ranks] */
    uint64_t *key;
};

static int by_id(const void *a, const void *b)
{
    uint32_t x, y;
    memcpy(&x, a, sizeof x);
    memcpy(&y, b, sizeof y);
    return (x > y) - (x < y);
}

static void sort_class(struct reduced *x, uint32_t first, uint32_t *state)
{
    size_t n = 0, ranks = x->p->family->ranks;
    for (uint32_t r = first; r < ranks; r++)
        if (x->p->symmetric[r] == first)
            x->to[n++] = state[r];
    if (n < 2)
        return;
    qsort(x->to, n, sizeof *x->to, by_id);
    n = 0;
    for (uint32_t r = first; r < ranks; r++)
        if (x->p->symmetric[r] == first)
            state[r] = x->to[n++];
}

/* Takes every step that is a persistent set of its own, until none is left. False: some meeting's ops differ. */
static bool settle(struct reduced *x, uint32_t *state)
{
    struct ls_product *p = x->p;
    bool agree = true;
    for (size_t r = 0; r < p->family->ranks; r++)
        state[r] = ls_automaton_settle(p->of[r], state[r]);
    for (bool again = true; again;) {
        again = false;
        for (size_t g = 0; g < p->meetings; g++) {
            enum ls_meet meet = ls_product_meet(p, state, g, x->to);
            agree = agree && meet != LS_MEET_DIFFER;
            if (meet != LS_MEET_YES)
                continue;
            again = true;
            x->out->transitions++;
            for (size_t i = 0; i < p->meeting[g].members; i++) {
                uint32_t r = p->meeting[g].member[i].rank;
                state[r] = ls_automaton_settle(p->of[r], x->to[i]);
            }
        }
    }
    return agree;
}

static void reduced_add(struct reduced *x, uint32_t *state)
{
    size_t ranks = x->p->family->ranks;
    bool agree = settle(x, state);
    if (!x->o->no_symmetry)
        for (uint32_t r = 0; r < ranks; r++)
            if (x->p->symmetric[r] == r)
                sort_class(x, r, state);
    memset(x->key, 0, x->seen.words * sizeof *x->key);
    for (size_t r = 0; r < ranks; r++)
        x->key[r / 2] |= (uint64_t)state[r] << (r % 2 * 32);
    if (!ls_stateset_add(&x->seen, x->key))
        return;
    x->out->states++;
    if (!agree) {
        if (x->out->violations++ == 0)
            report(x->p, state, x->o, x->out);
        return; /* a violation absorbs what follows */
    }
    for (size_t r = 0; r < ranks; r++)
        ls_push(&x->open, state[r]);
}

static void take_moves(struct reduced *x, uint32_t rank, bool choices_only)
{
    const struct ls_local l = x->p->of[rank]->state.at[x->now[rank]];
    for (uint32_t i = 0; i < l.moves; i++) {
        struct ls_local_move m = x->p->of[rank]->move.at[l.move + i];
        if (choices_only && m.kind != LS_MOVE_CHOOSE)
            continue;
        memcpy(x->next, x->now, x->p->family->ranks * sizeof *x->now);
        x->next[rank] = m.to;
        x->out->transitions++;
        reduced_add(x, x->next);
    }
}

static bool may_choose(const struct ls_automaton *a, const struct ls_local *l)
{
    for (uint32_t i = 0; i < l->moves; i++)
        if (a->move.at[l->move + i].kind == LS_MOVE_CHOOSE)
            return true;
    return false;
}

static void reduced_expand(struct reduced *x)
{
    struct ls_product *p = x->p;
    uint32_t ranks = (uint32_t)p->family->ranks, chooser = LS_NO_ID, alone = LS_NO_ID;
    bool final = true, moves = false;
    for (uint32_t r = 0; r < ranks; r++) {
        const struct ls_local *l = ls_automaton_local(p->of[r], x->now[r]);
        final = final && l->final;
        moves = moves || l->moves > 0;
        if (chooser == LS_NO_ID && may_choose(p->of[r], l))
            chooser = r;
        if (alone == LS_NO_ID && l->moves > 0 && l->offers == 0)
            alone = r;
    }
    if (chooser != LS_NO_ID)
        take_moves(x, chooser, true);
    else if (alone != LS_NO_ID)
        take_moves(x, alone, false);
    else
        for (uint32_t r = 0; r < ranks; r++)
            take_moves(x, r, false);
    if (!moves && !final && x->out->violations++ == 0)
        report(p, x->now, x->o, x->out);
}

static void explore_reduced(struct ls_product *p, const struct ls_explore_options *o, struct ls_explored *out)
{
    size_t ranks = p->family->ranks;
    struct reduced x = { .p = p, .o = o, .out = out };
    x.now = LS_NEW(p->arena, uint32_t, ranks);
    x.next = LS_NEW(p->arena, uint32_t, ranks);
    x.to = LS_NEW(p->arena, uint32_t, ranks + 1);
    x.key = LS_NEW(p->arena, uint64_t, ranks / 2 + 1);
    ls_stateset_init(&x.seen, ranks / 2 + 1);
    for (size_t r = 0; r < ranks; r++)
        x.next[r] = p->of[r]->start;
    double start = ls_explore_seconds();
    reduced_add(&x, x.next);
    for (size_t n = 1; x.open.count > 0 && (o->all || out->violations == 0) && !out->limit; n++) {
        x.open.count -= ranks;
        memcpy(x.now, x.open.at + x.open.count, ranks * sizeof *x.now);
        reduced_expand(&x);
        out->bytes = ls_stateset_bytes(&x.seen) + x.open.room * sizeof *x.open.at;
        if (out->states > o->states_max)
            out->limit = "states";
        else if (n % 256 == 0 && out->bytes + ls_product_bytes(p) > o->bytes_max)
            out->limit = "memory";
        else if (n % 256 == 0 && o->seconds_max > 0 && ls_explore_seconds() - start > o->seconds_max)
            out->limit = "time";
    }
    out->peak = x.seen.count;
    out->states_bits = ranks * 32;
    ls_vec_release(&x.open);
    ls_stateset_release(&x.seen);
}

enum ls_code ls_explore(const struct ls_family *f, const struct ls_explore_options *options, struct ls_arena *arena,
                        struct ls_explored *out, struct ls_error *err)
{
    struct ls_explore_options o = *options;
    struct ls_product p;
    size_t nodes_max;
    double start = ls_explore_seconds();
    *out = (struct ls_explored){ .verdict = LS_SAFE };
    o.states_max = o.states_max ? o.states_max : 200u * 1000 * 1000;
    o.bytes_max = o.bytes_max ? o.bytes_max : (size_t)8 << 30;
    enum ls_code rc = ls_family_check(f, &nodes_max, err);
    if (rc == LS_OK)
        rc = ls_product_open(&p, f, &o.run, !o.reduce, arena, err);
    if (rc != LS_OK)
        return rc;
    if (o.reduce) {
        explore_reduced(&p, &o, out);
    } else {
        uint32_t *bad = ls_explore_layers(&p, &o, out);
        if (bad)
            report(&p, bad, &o, out);
    }
    if (out->verdict == LS_SAFE && out->limit)
        out->verdict = LS_UNDECIDED;
    out->bytes += ls_product_bytes(&p);
    out->classes = p.classes;
    for (size_t i = 0; i < p.automata; i++)
        out->local_states += p.automaton[i].state.count - 1;
    ls_product_release(&p);
    out->seconds = ls_explore_seconds() - start;
    return LS_OK;
}
