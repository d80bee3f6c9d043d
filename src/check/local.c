#include "check/local.h"

#include "base/hash.h"
#include "check/resident.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { RESIDENT = 1, LATEST = 2, STATE_WORDS = 4, PENDING_WORDS = 4 };

/* ---- interned word lists ---- */

static uint32_t intern(struct ls_words *w, const uint32_t *word, size_t count, bool *fresh)
{
    if (w->first.count == 0)
        ls_push(&w->first, 0);
    size_t held = w->first.count - 1;
    if (w->room == 0 || held * 2 >= w->room) {
        size_t room = w->room ? w->room * 2 : 256;
        uint32_t *index = calloc(room, sizeof *index);
        if (!index)
            ls_out_of_memory(room * sizeof *index);
        for (size_t id = 0; id < held; id++) {
            size_t from = w->first.at[id], n = w->first.at[id + 1] - from;
            size_t at = (size_t)ls_hash(w->word.at + from, n * sizeof *word, 0) & (room - 1);
            while (index[at])
                at = (at + 1) & (room - 1);
            index[at] = (uint32_t)id + 1;
        }
        free(w->index);
        w->index = index;
        w->room = room;
    }
    size_t at = (size_t)ls_hash(word, count * sizeof *word, 0) & (w->room - 1);
    for (; w->index[at]; at = (at + 1) & (w->room - 1)) {
        uint32_t id = w->index[at] - 1;
        size_t from = w->first.at[id];
        if (w->first.at[id + 1] - from == count && memcmp(w->word.at + from, word, count * sizeof *word) == 0) {
            *fresh = false;
            return id;
        }
    }
    for (size_t i = 0; i < count; i++)
        ls_push(&w->word, word[i]);
    ls_push(&w->first, w->word.count);
    w->index[at] = (uint32_t)held + 1;
    *fresh = true;
    return (uint32_t)held;
}

static void words_release(struct ls_words *w)
{
    ls_vec_release(&w->word);
    ls_vec_release(&w->first);
    free(w->index);
    *w = (struct ls_words){ 0 };
}

/* ---- a local state, unpacked ---- */

struct pending { uint32_t pick, op, waits, flags; }; /* waits: 1 + index of the pending record it waits for, or 0 */
struct state {
    uint32_t past, node;
    uint32_t pick, pc;   /* the next op; pick is LS_NO_ID between rounds */
    LS_VEC(struct pending) pending;
};

static void state_release(struct state *s)
{
    ls_vec_release(&s->pending);
}

static void state_copy(struct state *to, const struct state *from)
{
    to->past = from->past;
    to->node = from->node;
    to->pick = from->pick;
    to->pc = from->pc;
    to->pending.count = 0;
    for (size_t i = 0; i < from->pending.count; i++)
        ls_push(&to->pending, from->pending.at[i]);
}

static void state_unpack(const struct ls_automaton *a, uint32_t id, struct state *s)
{
    const uint32_t *w = a->words.word.at + a->words.first.at[id - 1];
    const uint32_t *end = a->words.word.at + a->words.first.at[id];
    s->past = w[0];
    s->node = w[1];
    s->pick = w[2];
    s->pc = w[3];
    s->pending.count = 0;
    for (w += STATE_WORDS; w < end; w += PENDING_WORDS)
        ls_push(&s->pending, (struct pending){ w[0], w[1], w[2], w[3] });
}

static uint32_t state_pack(struct ls_automaton *a, const struct state *s)
{
    LS_VEC(uint32_t) w = { 0 };
    ls_push(&w, s->past);
    ls_push(&w, s->node);
    ls_push(&w, s->pick);
    ls_push(&w, s->pc);
    for (size_t i = 0; i < s->pending.count; i++) {
        const struct pending *p = &s->pending.at[i];
        ls_push(&w, p->pick);
        ls_push(&w, p->op);
        ls_push(&w, p->waits);
        ls_push(&w, p->flags);
    }
    bool fresh;
    uint32_t id = intern(&a->words, w.at, w.count, &fresh) + 1;
    ls_vec_release(&w);
    if (fresh) {
        assert(id == a->state.count);
        ls_push(&a->state, (struct ls_local){ 0 });
        ls_push(&a->settled, 0);
    }
    return id;
}

static const struct ls_op *op_at(const struct ls_automaton *a, uint32_t pick, uint32_t op)
{
    return &a->pick[pick].segment->op[op];
}

static void take(struct ls_automaton *a, struct state *s, uint32_t pick, bool real)
{
    s->pick = pick;
    s->pc = 0;
    s->node = a->pick[pick].successor;
    if (real && a->keep_history) {
        bool fresh;
        s->past = intern(&a->past, (uint32_t[]){ s->past, pick, 0 }, 3, &fresh) + 1;
    }
}

/* Leaves a round that is over, and takes rounds that leave no choice. */
static void normalise(struct ls_automaton *a, struct state *s)
{
    for (;;) {
        if (s->pick != LS_NO_ID && s->pc < a->pick[s->pick].segment->count)
            return;
        s->pick = LS_NO_ID;
        s->pc = 0;
        if (a->node[s->node].count != 1)
            return;
        take(a, s, a->pick_first[s->node], false);
    }
}

static void pending_remove(struct state *s, size_t i)
{
    memmove(s->pending.at + i, s->pending.at + i + 1, (s->pending.count - i - 1) * sizeof *s->pending.at);
    s->pending.count--;
    for (size_t j = 0; j < s->pending.count; j++) {
        uint32_t *w = &s->pending.at[j].waits;
        if (*w == i + 1)
            *w = 0;
        else if (*w > i + 1)
            --*w;
    }
}

/* 1 + index of the latest issued record of an event if it is still pending, or 0. */
static uint32_t pending_record(const struct ls_automaton *a, const struct state *s, uint32_t event)
{
    for (size_t i = 0; i < s->pending.count; i++) {
        const struct pending *p = &s->pending.at[i];
        if ((p->flags & LATEST) && op_at(a, p->pick, p->op)->event == event)
            return (uint32_t)i + 1;
    }
    return 0;
}

static void issue(const struct ls_automaton *a, struct state *s, uint32_t pick, uint32_t op)
{
    const struct ls_op *o = op_at(a, pick, op);
    struct pending p = { pick, op, 0, 0 };
    if (o->kind == LS_OP_WAIT)
        p.waits = pending_record(a, s, o->event);
    if (o->kind == LS_OP_RECORD) {
        uint32_t old = pending_record(a, s, o->event);
        if (old)
            s->pending.at[old - 1].flags &= ~(uint32_t)LATEST;
        p.flags = LATEST;
    }
    ls_push(&s->pending, p);
}

/* A communicator that a parent creates: its comm_init waits in the parent's FIFO. */
static uint32_t fifo_comm(const struct ls_automaton *a, const struct ls_op *o)
{
    uint32_t parent = o->kind == LS_OP_COMM_INIT ? a->sigs->tables->comm.at[o->comm].parent : LS_NO_ID;
    return parent == LS_NO_ID ? o->comm : parent;
}

static struct ls_fifo fifo_key(const struct ls_automaton *a, const struct ls_op *o)
{
    return ls_op_is_p2p(o) ? (struct ls_fifo){ o->comm, o->kind, o->peer } : (struct ls_fifo){ fifo_comm(a, o), LS_OP_BARRIER, -1 };
}

static uint32_t fifo_of(const struct ls_automaton *a, const struct ls_op *o)
{
    struct ls_fifo key = fifo_key(a, o);
    for (size_t i = 0; i < a->fifo.count; i++) {
        const struct ls_fifo *f = &a->fifo.at[i];
        if (f->comm == key.comm && f->kind == key.kind && f->peer == key.peer)
            return (uint32_t)i;
    }
    return LS_NO_ID;
}

/* An op takes at most all the slots there are. */
static unsigned slots_of(const struct ls_automaton *a, const struct ls_op *o)
{
    unsigned want = !ls_op_uses_comm(o) ? 0 : o->slots ? o->slots : o->kind != LS_OP_COMM_INIT;
    return a->options.kernels && want > a->options.kernels ? a->options.kernels : want;
}

static unsigned slots_held(const struct ls_automaton *a, const struct state *s)
{
    unsigned held = 0;
    for (size_t i = 0; i < s->pending.count; i++)
        if (s->pending.at[i].flags & RESIDENT)
            held += slots_of(a, op_at(a, s->pending.at[i].pick, s->pending.at[i].op));
    return held;
}

static bool bounded_kernels(const struct ls_automaton *a)
{
    return a->options.level == LS_L3 && (a->options.kernels > 0 || a->options.start == LS_START_ISSUE_ORDER);
}

static bool blocks(const struct ls_automaton *a, const struct ls_op *o)
{
    return a->options.level == LS_L1 || o->blocking || o->kind == LS_OP_DECIDE || o->kind == LS_OP_COMM_INIT;
}

/* ---- expansion ---- */

struct expansion { struct state now, then; LS_VEC(struct ls_local_move) move; LS_VEC(struct ls_offer) offer; };

static void add_move(struct ls_automaton *a, struct expansion *x, enum ls_move_kind kind, uint32_t pick, uint32_t op)
{
    normalise(a, &x->then);
    uint32_t to = state_pack(a, &x->then);
    ls_push(&x->move, (struct ls_local_move){ to, pick, op, (uint8_t)kind });
}

static void expand_host(struct ls_automaton *a, struct expansion *x, struct ls_local *l)
{
    const struct state *s = &x->now;
    for (size_t i = 0; i < s->pending.count; i++)
        if (blocks(a, op_at(a, s->pending.at[i].pick, s->pending.at[i].op)))
            return;
    if (s->pick == LS_NO_ID) {
        uint32_t first = a->pick_first[s->node];
        for (uint32_t c = 0; c < a->node[s->node].count; c++) {
            state_copy(&x->then, s);
            take(a, &x->then, first + c, true);
            add_move(a, x, LS_MOVE_CHOOSE, first + c, c);
        }
        return;
    }
    const struct ls_op *o = op_at(a, s->pick, s->pc);
    if (o->kind == LS_OP_STOP) {
        l->stopped = true;
        return;
    }
    if (o->kind == LS_OP_HOST_WAIT && pending_record(a, s, o->event))
        return;
    if (!ls_op_is_host(o) && a->options.run_ahead && s->pending.count >= a->options.run_ahead)
        return;
    state_copy(&x->then, s);
    if (!ls_op_is_host(o))
        issue(a, &x->then, s->pick, s->pc);
    /* The ops after a decide are known when it is done. Until then the thread is blocked, and stays where it is so that it
       does not leave the round. */
    if (o->kind != LS_OP_DECIDE)
        x->then.pc = a->pick[s->pick].next[s->pc];
    add_move(a, x, LS_MOVE_ISSUE, s->pick, s->pc);
}

/* Where the thread of a decide goes on: next[] knows the way round both branches. */
static uint32_t after_decide(const struct ls_automaton *a, uint32_t pick, uint32_t op, bool zero)
{
    const struct ls_op *o = op_at(a, pick, op);
    uint32_t after = a->pick[pick].next[op];
    if (!zero)
        return o->then_count ? op + 1 : after;
    return o->else_count ? op + 1 + o->then_count : after;
}

static uint32_t completed(struct ls_automaton *a, struct expansion *x, size_t i, bool zero)
{
    struct pending p = x->now.pending.at[i];
    state_copy(&x->then, &x->now);
    pending_remove(&x->then, i);
    if (op_at(a, p.pick, p.op)->kind == LS_OP_DECIDE) {
        x->then.pc = after_decide(a, p.pick, p.op, zero);
        if (a->keep_history) {
            bool fresh;
            x->then.past = intern(&a->past, (uint32_t[]){ x->then.past, p.pick, zero ? 2 : 1 }, 3, &fresh) + 1;
        }
    }
    normalise(a, &x->then);
    return state_pack(a, &x->then);
}

static void expand_pending(struct ls_automaton *a, struct expansion *x, size_t i)
{
    const struct state *s = &x->now;
    struct pending p = s->pending.at[i];
    const struct ls_op *o = op_at(a, p.pick, p.op);
    bool comm = ls_op_uses_comm(o), earlier_waits_for_slot = false;
    uint32_t fifo = comm ? fifo_of(a, o) : LS_NO_ID;
    if (p.waits)
        return;
    for (size_t j = 0; j < i; j++) {
        const struct ls_op *e = op_at(a, s->pending.at[j].pick, s->pending.at[j].op);
        if (e->stream == o->stream || (comm && ls_op_uses_comm(e) && fifo_of(a, e) == fifo))
            return;
        earlier_waits_for_slot = earlier_waits_for_slot || (slots_of(a, e) > 0 && !(s->pending.at[j].flags & RESIDENT));
    }
    if (!comm) {
        uint32_t to = completed(a, x, i, false);
        ls_push(&x->move, (struct ls_local_move){ to, p.pick, p.op, LS_MOVE_RUN });
    } else if (bounded_kernels(a) && slots_of(a, o) > 0 && !(p.flags & RESIDENT)) {
        if (a->options.kernels && slots_held(a, s) + slots_of(a, o) > a->options.kernels)
            return;
        if (a->options.start == LS_START_ISSUE_ORDER && earlier_waits_for_slot)
            return;
        state_copy(&x->then, s);
        x->then.pending.at[i].flags |= RESIDENT;
        uint32_t to = state_pack(a, &x->then);
        ls_push(&x->move, (struct ls_local_move){ to, p.pick, p.op, LS_MOVE_START });
    } else {
        uint32_t to = completed(a, x, i, false);
        uint32_t zero = o->kind == LS_OP_DECIDE ? completed(a, x, i, true) : to;
        ls_push(&x->offer, (struct ls_offer){ fifo, a->sig[a->sig_first[p.pick] + p.op], to, zero, o->value, p.pick, p.op });
    }
}

void ls_automaton_expand(struct ls_automaton *a, uint32_t id)
{
    struct expansion x = { 0 };
    struct ls_local l = { .expanded = true };
    state_unpack(a, id, &x.now);
    l.final = x.now.pending.count == 0 && x.now.pick == LS_NO_ID && a->node[x.now.node].count == 0;
    expand_host(a, &x, &l);
    for (size_t i = 0; i < x.now.pending.count; i++)
        expand_pending(a, &x, i);
    l.move = (uint32_t)a->move.count;
    l.moves = (uint16_t)x.move.count;
    l.offer = (uint32_t)a->offer.count;
    l.offers = (uint16_t)x.offer.count;
    assert(x.move.count <= UINT16_MAX && x.offer.count <= UINT16_MAX);
    for (size_t i = 0; i < x.move.count; i++)
        ls_push(&a->move, x.move.at[i]);
    for (size_t i = 0; i < x.offer.count; i++) {
        ls_push(&a->offer, x.offer.at[i]);
        l.offer_mask |= 1ull << (x.offer.at[i].fifo % 64);
    }
    a->state.at[id] = l;
    state_release(&x.now);
    state_release(&x.then);
    ls_vec_release(&x.move);
    ls_vec_release(&x.offer);
}

bool ls_automaton_close(struct ls_automaton *a, size_t states_max)
{
    for (uint32_t id = 1; id < a->state.count; id++) {
        if (a->state.count > states_max + 1)
            return false;
        (void)ls_automaton_local(a, id);
    }
    return true;
}

bool ls_automaton_eager(const struct ls_automaton *a, const struct ls_local_move *m)
{
    switch ((enum ls_move_kind)m->kind) {
    case LS_MOVE_RUN: return true;
    case LS_MOVE_ISSUE: return true;
    case LS_MOVE_START: return a->options.start == LS_START_ISSUE_ORDER || a->enough_slots;
    case LS_MOVE_CHOOSE: return false;
    }
    return false;
}

uint32_t ls_automaton_settle(struct ls_automaton *a, uint32_t id)
{
    uint32_t at = id;
    for (bool moved = true; moved && !a->settled.at[at];) {
        const struct ls_local *l = ls_automaton_local(a, at);
        moved = false;
        for (uint32_t i = 0; i < l->moves && !moved; i++) {
            const struct ls_local_move *m = &a->move.at[l->move + i];
            if (ls_automaton_eager(a, m)) {
                at = m->to;
                moved = true;
            }
        }
    }
    uint32_t end = a->settled.at[at] ? a->settled.at[at] : at;
    a->settled.at[id] = a->settled.at[at] = end;
    return end;
}

const struct ls_offer *ls_automaton_offer(const struct ls_automaton *a, const struct ls_local *l, uint32_t fifo)
{
    for (uint32_t i = 0; i < l->offers; i++)
        if (a->offer.at[l->offer + i].fifo == fifo)
            return &a->offer.at[l->offer + i];
    return NULL;
}

const struct ls_op *ls_automaton_op(const struct ls_automaton *a, uint32_t pick, uint32_t op)
{
    return op_at(a, pick, op);
}

bool ls_automaton_slots_full(struct ls_automaton *a, uint32_t id)
{
    struct state s = { 0 };
    bool full = false;
    state_unpack(a, id, &s);
    unsigned held = slots_held(a, &s);
    for (size_t i = 0; i < s.pending.count && bounded_kernels(a) && a->options.kernels; i++)
        full = full || (!(s.pending.at[i].flags & RESIDENT)
                        && held + slots_of(a, op_at(a, s.pending.at[i].pick, s.pending.at[i].op)) > a->options.kernels);
    state_release(&s);
    return full;
}

/* ---- opening ---- */

/* next[i]: the op after op i, and for a decide the op after both branches. exit: where a block's last op leads. */
static bool link_block(const struct ls_op *op, uint32_t begin, uint32_t end, uint32_t exit, uint32_t *next)
{
    for (uint32_t i = begin; i < end;) {
        if (op[i].kind != LS_OP_DECIDE) {
            next[i] = i + 1 == end ? exit : i + 1;
            i++;
            continue;
        }
        uint64_t middle = (uint64_t)i + 1 + op[i].then_count, last = middle + op[i].else_count;
        if (last > end)
            return false;
        next[i] = last == end ? exit : (uint32_t)last;
        if (!link_block(op, i + 1, (uint32_t)middle, next[i], next)
            || !link_block(op, (uint32_t)middle, (uint32_t)last, next[i], next))
            return false;
        i = (uint32_t)last;
    }
    return true;
}

static uint32_t sig_of(const struct ls_automaton *a, const struct ls_op *o)
{
    struct ls_sigs *sigs = a->sigs;
    for (size_t i = 0; i < sigs->op.count; i++)
        if (fifo_comm(a, sigs->op.at[i]) == fifo_comm(a, o) && ls_op_is_p2p(sigs->op.at[i]) == ls_op_is_p2p(o)
            && ls_op_diff(sigs->tables, sigs->op.at[i], o) == LS_DIFF_NONE)
            return (uint32_t)i;
    ls_push(&sigs->op, o);
    return (uint32_t)sigs->op.count - 1;
}

static enum ls_code open_ops(struct ls_automaton *a, const struct ls_segment *g, uint32_t *sig, struct ls_error *err)
{
    for (size_t i = 0; i < g->count; i++) {
        const struct ls_op *o = &g->op[i];
        if (o->fused)
            return ls_fail(err, LS_EINPUT, LS_NOWHERE, "exploration does not cover fused ops");
        if (o->thread > 0)
            return ls_fail(err, LS_EINPUT, LS_NOWHERE, "exploration does not cover several host threads on a rank");
        if (ls_op_is_p2p(o) && a->options.level == LS_L3 && !a->options.unbuffered_send)
            return ls_fail(err, LS_EINPUT, LS_NOWHERE, "exploration does not cover buffered sends");
        if (!ls_op_uses_comm(o))
            continue;
        if (o->comm >= a->sigs->tables->comm.count)
            return ls_fail(err, LS_EINPUT, LS_NOWHERE, "an op names a communicator that does not exist");
        sig[i] = sig_of(a, o);
        if (fifo_of(a, o) == LS_NO_ID)
            ls_push(&a->fifo, fifo_key(a, o));
    }
    return LS_OK;
}

static enum ls_code open_picks(struct ls_automaton *a, struct ls_error *err)
{
    enum ls_code rc = LS_OK;
    size_t ops = 0, n = 0;
    for (size_t v = 0; v < a->nodes; v++)
        for (size_t c = 0; c < a->node[v].count; c++, n++)
            ops += a->node[v].choice[c].segment->count;
    a->pick = LS_NEW(a->arena, struct ls_pick, n);
    a->pick_first = LS_NEW(a->arena, uint32_t, a->nodes);
    a->sig_first = LS_NEW(a->arena, uint32_t, n);
    a->sig = LS_NEW(a->arena, uint32_t, ops);
    ops = 0;
    for (size_t v = 0; v < a->nodes; v++) {
        a->pick_first[v] = (uint32_t)a->picks;
        for (size_t c = 0; c < a->node[v].count && rc == LS_OK; c++) {
            const struct ls_segment *g = a->node[v].choice[c].segment;
            uint32_t *next = LS_NEW(a->arena, uint32_t, g->count);
            a->sig_first[a->picks] = (uint32_t)ops;
            if (!link_block(g->op, 0, (uint32_t)g->count, (uint32_t)g->count, next))
                return ls_fail(err, LS_EINPUT, LS_NOWHERE, "the branches of a decide reach past the end of its segment");
            rc = open_ops(a, g, a->sig + ops, err);
            ops += g->count;
            a->pick[a->picks++] = (struct ls_pick){ g, next, (uint32_t)v, (uint32_t)c, a->node[v].choice[c].next };
        }
    }
    return rc;
}

enum ls_code ls_automaton_open(struct ls_automaton *a, const struct ls_family_rank *rank, struct ls_sigs *sigs,
                               const struct ls_run_options *options, bool keep_history, struct ls_arena *arena,
                               struct ls_error *err)
{
    *a = (struct ls_automaton){ .node = rank->node, .nodes = rank->nodes, .options = *options, .keep_history = keep_history,
                                .sigs = sigs, .arena = arena };
    enum ls_code rc = open_picks(a, err);
    if (rc != LS_OK)
        return rc;
    a->enough_slots = options->kernels == 0 || ls_resident_bound(rank, sigs->tables, arena) <= options->kernels;
    ls_push(&a->state, (struct ls_local){ 0 });
    ls_push(&a->settled, 0);
    struct state s = { .pick = LS_NO_ID };
    normalise(a, &s);
    a->start = state_pack(a, &s);
    state_release(&s);
    return LS_OK;
}

void ls_automaton_release(struct ls_automaton *a)
{
    ls_vec_release(&a->fifo);
    ls_vec_release(&a->state);
    ls_vec_release(&a->move);
    ls_vec_release(&a->offer);
    ls_vec_release(&a->settled);
    words_release(&a->words);
    words_release(&a->past);
}
