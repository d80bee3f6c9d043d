#include "check/product.h"

#include "check/stateset.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static uint32_t find_fifo(const struct ls_automaton *a, uint32_t comm, uint8_t kind, int32_t peer)
{
    for (size_t i = 0; i < a->fifo.count; i++)
        if (a->fifo.at[i].comm == comm && a->fifo.at[i].kind == kind && a->fifo.at[i].peer == peer)
            return (uint32_t)i;
    return LS_NO_ID;
}

static enum ls_code check_members(const struct ls_product *p, struct ls_error *err)
{
    const struct ls_tables *t = p->family->tables;
    for (size_t r = 0; r < p->family->ranks; r++)
        for (size_t i = 0; i < p->of[r]->fifo.count; i++) {
            const struct ls_fifo *f = &p->of[r]->fifo.at[i];
            const struct ls_groups *g = &p->family->comm[f->comm];
            const char *name = ls_tables_name(t, t->comm.at[f->comm].name);
            if (g->group[r] == LS_NO_ID)
                return ls_fail(err, LS_EINPUT, LS_NOWHERE, "rank %zu is in no group of '%s', which it uses", r, name);
            uint32_t size = g->first[g->group[r] + 1] - g->first[g->group[r]];
            if (f->kind != LS_OP_BARRIER && (f->peer < 0 || (uint32_t)f->peer >= size || (uint32_t)f->peer == g->member[r]))
                return ls_fail(err, LS_EINPUT, LS_NOWHERE, "rank %zu has no peer %d in '%s'", r, f->peer, name);
        }
    return LS_OK;
}

/* A group that a member never calls cannot meet, but its other members may differ. False: nobody calls it. */
static bool group_members(const struct ls_product *p, uint32_t comm, uint32_t group, struct ls_member *member)
{
    const struct ls_groups *g = &p->family->comm[comm];
    bool called = false;
    for (uint32_t i = g->first[group]; i < g->first[group + 1]; i++) {
        uint32_t r = g->rank[i], fifo = find_fifo(p->of[r], comm, LS_OP_BARRIER, -1);
        called = called || fifo != LS_NO_ID;
        member[i - g->first[group]] = (struct ls_member){ r, fifo };
    }
    return called;
}

static void open_meetings(struct ls_product *p)
{
    const struct ls_family *f = p->family;
    LS_VEC(struct ls_product_meeting) all = { 0 };
    for (uint32_t c = 0; c < f->tables->comm.count; c++)
        for (uint32_t g = 0; g < f->comm[c].groups; g++) {
            size_t n = f->comm[c].first[g + 1] - f->comm[c].first[g];
            struct ls_member *m = LS_NEW(p->arena, struct ls_member, n);
            if (n > 0 && group_members(p, c, g, m))
                ls_push(&all, (struct ls_product_meeting){ c, g, m, n });
        }
    for (uint32_t r = 0; r < f->ranks; r++)
        for (size_t i = 0; i < p->of[r]->fifo.count; i++) {
            const struct ls_fifo *s = &p->of[r]->fifo.at[i];
            if (s->kind != LS_OP_SEND)
                continue;
            const struct ls_groups *g = &f->comm[s->comm];
            uint32_t to = g->rank[g->first[g->group[r]] + (uint32_t)s->peer];
            uint32_t fifo = find_fifo(p->of[to], s->comm, LS_OP_RECV, (int32_t)g->member[r]);
            if (fifo == LS_NO_ID)
                continue;
            struct ls_member *m = LS_NEW(p->arena, struct ls_member, 2);
            m[0] = (struct ls_member){ r, (uint32_t)i };
            m[1] = (struct ls_member){ to, fifo };
            ls_push(&all, (struct ls_product_meeting){ s->comm, LS_NO_ID, m, 2 });
        }
    p->meeting = ls_arena_copy(p->arena, all.at, ls_mul_size(all.count, sizeof *all.at));
    p->meetings = all.count;
    ls_vec_release(&all);
}

/* Exchanging r and s maps the family to itself: equal choices, and on every communicator that they use either both are in one
 * group or both are alone. Exchanges that do so generate all permutations within a class. Ranks that send or receive name
 * their peers, so they are kept apart. */
static bool interchangeable(const struct ls_product *p, uint32_t r, uint32_t s)
{
    if (p->of[r] != p->of[s])
        return false;
    for (size_t i = 0; i < p->of[r]->fifo.count; i++) {
        const struct ls_fifo *f = &p->of[r]->fifo.at[i];
        const struct ls_groups *g = &p->family->comm[f->comm];
        uint32_t a = g->group[r], b = g->group[s];
        bool alone = g->first[a + 1] - g->first[a] == 1 && g->first[b + 1] - g->first[b] == 1;
        if (f->kind != LS_OP_BARRIER || (a != b && !alone))
            return false;
    }
    return true;
}

enum ls_code ls_product_open(struct ls_product *p, const struct ls_family *f, const struct ls_run_options *run,
                             bool keep_history, struct ls_arena *arena, struct ls_error *err)
{
    *p = (struct ls_product){ .family = f, .arena = arena, .sigs = { .tables = f->tables } };
    p->automaton = LS_NEW(arena, struct ls_automaton, f->ranks);
    p->of = LS_NEW(arena, struct ls_automaton *, f->ranks);
    p->symmetric = LS_NEW(arena, uint32_t, f->ranks);
    enum ls_code rc = LS_OK;
    for (size_t r = 0; r < f->ranks && rc == LS_OK; r++) {
        size_t same = 0;
        while (same < r && f->rank[same].node != f->rank[r].node)
            same++;
        if (same < r) {
            p->of[r] = p->of[same];
            continue;
        }
        p->of[r] = &p->automaton[p->automata++];
        rc = ls_automaton_open(p->of[r], &f->rank[r], &p->sigs, run, keep_history, arena, err);
    }
    if (rc == LS_OK)
        rc = check_members(p, err);
    if (rc != LS_OK) {
        ls_product_release(p);
        return rc;
    }
    open_meetings(p);
    for (uint32_t r = 0; r < f->ranks; r++) {
        uint32_t s = 0;
        while (s < r && !(p->symmetric[s] == s && interchangeable(p, r, s)))
            s++;
        p->symmetric[r] = s;
        p->classes += s == r;
    }
    return LS_OK;
}

void ls_product_release(struct ls_product *p)
{
    for (size_t i = 0; i < p->automata; i++)
        ls_automaton_release(&p->automaton[i]);
    p->automata = 0;
    ls_vec_release(&p->sigs.op);
}

size_t ls_product_bytes(const struct ls_product *p)
{
    size_t n = 0;
    for (size_t i = 0; i < p->automata; i++) {
        const struct ls_automaton *a = &p->automaton[i];
        n += a->state.room * sizeof *a->state.at + a->move.room * sizeof *a->move.at + a->offer.room * sizeof *a->offer.at
             + a->settled.room * sizeof *a->settled.at + a->words.word.room * sizeof(uint32_t)
             + a->words.first.room * sizeof(size_t) + a->words.room * sizeof(uint32_t);
    }
    return n;
}

enum ls_meet ls_product_meet(struct ls_product *p, const uint32_t *state, size_t meeting, uint32_t *to)
{
    const struct ls_product_meeting *m = &p->meeting[meeting];
    const struct ls_op *op = NULL;
    uint32_t sig = 0;
    uint64_t sum = 0;
    bool all = true, differ = false, missing = false;
    for (size_t i = 0; i < m->members; i++) {
        struct ls_automaton *a = p->of[m->member[i].rank];
        const struct ls_local *l = ls_automaton_local(a, state[m->member[i].rank]);
        const struct ls_offer *o = l->offer_mask >> (m->member[i].fifo % 64) & 1 ? ls_automaton_offer(a, l, m->member[i].fifo) : NULL;
        if (!o) {
            missing = true;
            continue;
        }
        if (!op) {
            sig = o->sig;
            op = ls_automaton_op(a, o->pick, o->op);
        }
        differ = differ || o->sig != sig;
        sum += o->value;
        all = all && o->value != 0;
        to[i] = o->to;
    }
    if (differ || missing)
        return differ ? LS_MEET_DIFFER : LS_MEET_NO;
    if (op->kind != LS_OP_DECIDE)
        return LS_MEET_YES;
    /* What the members agree on: zero or not. */
    bool agreed = op->reduce == LS_REDUCE_MIN || op->reduce == LS_REDUCE_PROD ? all : sum != 0;
    for (size_t i = 0; i < m->members && !agreed; i++) {
        struct ls_automaton *a = p->of[m->member[i].rank];
        to[i] = ls_automaton_offer(a, &a->state.at[state[m->member[i].rank]], m->member[i].fifo)->to_zero;
    }
    return LS_MEET_YES;
}

/* ---- a schedule that leads to a given state ---- */

/* before[id]: some path of the rank's automaton leads from id to `target`. */
static bool *local_ancestors(const struct ls_automaton *a, uint32_t target)
{
    bool *before = calloc(a->state.count, 1);
    if (!before)
        ls_out_of_memory(a->state.count);
    before[target] = true;
    for (bool again = true; again;) { /* mostly one pass: most edges lead to higher numbers */
        again = false;
        for (uint32_t id = (uint32_t)a->state.count - 1; id > 0; id--) {
            const struct ls_local *l = &a->state.at[id];
            if (before[id] || !l->expanded)
                continue;
            bool leads = false;
            for (uint32_t i = 0; i < l->moves; i++)
                leads = leads || before[a->move.at[l->move + i].to];
            for (uint32_t i = 0; i < l->offers; i++)
                leads = leads || before[a->offer.at[l->offer + i].to] || before[a->offer.at[l->offer + i].to_zero];
            before[id] = leads;
            again = again || leads;
        }
    }
    return before;
}

struct hop { size_t parent; uint32_t rank, move, meeting; }; /* meeting: LS_NO_ID for a move */
struct search {
    struct ls_product *p;
    bool **before;
    LS_VEC(struct hop) hop;
    LS_VEC(uint32_t) state;   /* ranks per hop */
    struct ls_stateset seen;
    LS_VEC(size_t) open;
    uint64_t *key;
};

static void search_add(struct search *s, const uint32_t *state, struct hop hop)
{
    size_t ranks = s->p->family->ranks;
    memset(s->key, 0, s->seen.words * sizeof *s->key);
    for (size_t r = 0; r < ranks; r++) {
        if (!s->before[r][state[r]])
            return;
        s->key[r / 2] |= (uint64_t)state[r] << (r % 2 * 32);
    }
    if (!ls_stateset_add(&s->seen, s->key))
        return;
    for (size_t r = 0; r < ranks; r++)
        ls_push(&s->state, state[r]);
    ls_push(&s->hop, hop);
    ls_push(&s->open, s->hop.count - 1);
}

static void search_expand(struct search *s, size_t at, uint32_t *state, uint32_t *to)
{
    struct ls_product *p = s->p;
    size_t ranks = p->family->ranks;
    for (uint32_t r = 0; r < ranks; r++) {
        const struct ls_local *l = &p->of[r]->state.at[state[r]];
        uint32_t now = state[r];
        for (uint32_t i = 0; l->expanded && i < l->moves; i++) {
            state[r] = p->of[r]->move.at[l->move + i].to;
            search_add(s, state, (struct hop){ at, r, l->move + i, LS_NO_ID });
        }
        state[r] = now;
    }
    for (uint32_t g = 0; g < p->meetings; g++) {
        const struct ls_product_meeting *m = &p->meeting[g];
        if (ls_product_meet(p, state, g, to) != LS_MEET_YES)
            continue;
        for (size_t i = 0; i < m->members; i++) {
            uint32_t *at_member = &state[m->member[i].rank], old = *at_member;
            *at_member = to[i];
            to[i] = old;
        }
        search_add(s, state, (struct hop){ at, 0, 0, g });
        for (size_t i = 0; i < m->members; i++)
            state[m->member[i].rank] = to[i];
    }
}

struct ls_at ls_product_at(const struct ls_product *p, const struct ls_explored *out, uint32_t rank, uint32_t pick, uint32_t op)
{
    const struct ls_pick *k = &p->of[rank]->pick[pick];
    uint32_t node = 0, segment = 0; /* no node occurs twice on a way through a rank's choices */
    while (node != k->node && p->of[rank]->node[node].count > 0) {
        uint32_t c = segment < out->picks[rank] ? out->pick[rank][segment] : 0;
        node = p->of[rank]->node[node].choice[c].next;
        segment++;
    }
    return (struct ls_at){ rank, segment, op };
}

/* Writes down the choices of the found path, then the steps, which refer to them. */
static void write_path(const struct search *s, size_t last, struct ls_explored *out)
{
    struct ls_product *p = s->p;
    size_t ranks = p->family->ranks, n = 0;
    for (size_t at = last; at != 0; at = s->hop.at[at].parent)
        n++;
    size_t *way = LS_NEW(p->arena, size_t, n + 1);
    for (size_t at = last, i = n; at != 0; at = s->hop.at[at].parent)
        way[--i] = at;
    uint32_t **pick = LS_NEW(p->arena, uint32_t *, ranks);
    out->picks = LS_NEW(p->arena, size_t, ranks);
    out->pick = pick;
    for (uint32_t r = 0; r < ranks; r++) {
        const struct ls_choices *node = p->of[r]->node;
        pick[r] = LS_NEW(p->arena, uint32_t, p->of[r]->nodes);
        uint32_t at = 0;
        size_t i = 0;
        while (node[at].count > 0) {
            uint32_t c = 0;
            bool known = node[at].count == 1;
            for (; !known && i < n; i++) {
                const struct hop *h = &s->hop.at[way[i]];
                const struct ls_local_move *m = h->meeting == LS_NO_ID && h->rank == r ? &p->of[r]->move.at[h->move] : NULL;
                if (m && m->kind == LS_MOVE_CHOOSE) {
                    c = m->op;
                    known = true;
                }
            }
            pick[r][out->picks[r]++] = c;
            at = node[at].choice[c].next;
        }
    }
    out->step = LS_NEW(p->arena, struct ls_explored_step, n);
    out->steps = n;
    for (size_t i = 0; i < n; i++) {
        const struct hop *h = &s->hop.at[way[i]];
        struct ls_explored_step *e = &out->step[i];
        if (h->meeting == LS_NO_ID) {
            const struct ls_local_move *m = &p->of[h->rank]->move.at[h->move];
            *e = (struct ls_explored_step){ (enum ls_did)m->kind, ls_product_at(p, out, h->rank, m->pick, m->op),
                                            LS_NO_ID, LS_NO_ID };
            continue;
        }
        const struct ls_product_meeting *m = &p->meeting[h->meeting];
        uint32_t r = m->member[0].rank;
        uint32_t id = s->state.at[h->parent * ranks + r];
        const struct ls_offer *o = ls_automaton_offer(p->of[r], &p->of[r]->state.at[id], m->member[0].fifo);
        *e = (struct ls_explored_step){ LS_DID_MEET, ls_product_at(p, out, r, o->pick, o->op), m->comm, m->group };
    }
}

bool ls_product_path(struct ls_product *p, const uint32_t *target, size_t states_max, struct ls_explored *out)
{
    size_t ranks = p->family->ranks;
    struct search s = { .p = p };
    uint32_t *state = LS_NEW(p->arena, uint32_t, ranks), *to = LS_NEW(p->arena, uint32_t, ranks);
    s.before = LS_NEW(p->arena, bool *, ranks);
    s.key = LS_NEW(p->arena, uint64_t, ranks / 2 + 1);
    ls_stateset_init(&s.seen, ranks / 2 + 1);
    for (size_t r = 0; r < ranks; r++) {
        s.before[r] = local_ancestors(p->of[r], target[r]);
        state[r] = p->of[r]->start;
    }
    bool found = false;
    search_add(&s, state, (struct hop){ 0 });
    while (s.open.count > 0 && !found && s.hop.count < states_max) {
        size_t at = s.open.at[--s.open.count];
        memcpy(state, s.state.at + at * ranks, ranks * sizeof *state);
        found = memcmp(state, target, ranks * sizeof *state) == 0;
        if (found)
            write_path(&s, at, out);
        else
            search_expand(&s, at, state, to);
    }
    for (size_t r = 0; r < ranks; r++)
        free(s.before[r]);
    ls_vec_release(&s.hop);
    ls_vec_release(&s.state);
    ls_vec_release(&s.open);
    ls_stateset_release(&s.seen);
    return found;
}
