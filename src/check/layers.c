#include "check/layers.h"

#include "check/stateset.h"

#include <string.h>

enum { PIPE = 64, LOCAL_STATES_MAX = 1 << 20, LAZY_BITS = 32 };

/* A rank's tables as the inner loop reads them. The rank's local state is the bits of word `word` from `shift`. */
struct lane {
    const struct ls_local *state;
    const struct ls_local_move *move;
    uint64_t mask;
    uint32_t word, shift;
};

struct sweep {
    struct ls_product *p;
    const struct ls_explore_options *o;
    struct ls_explored *out;
    struct lane *lane;
    struct ls_automaton **of;
    size_t ranks, meetings;
    bool closed;            /* the automata are complete: tables stay where they are */
    uint32_t *state, *to;   /* [ranks] */
    struct ls_stateset now, next;
    uint64_t *pipe, *hash, *key;
    uint32_t *bad;
};

static void lanes_open(struct sweep *s)
{
    size_t words = 0;
    unsigned used = 64;
    s->closed = true;
    for (size_t i = 0; i < s->p->automata; i++)
        s->closed = ls_automaton_close(&s->p->automaton[i], LOCAL_STATES_MAX) && s->closed;
    s->lane = LS_NEW(s->p->arena, struct lane, s->ranks);
    for (size_t r = 0; r < s->ranks; r++) {
        unsigned bits = LAZY_BITS;
        if (s->closed) /* numbers start at 1, so that no key is 0 */
            for (bits = 1; (s->of[r]->state.count - 1) >> bits; bits++)
                ;
        if (used + bits > 64) {
            words++;
            used = 0;
        }
        s->lane[r] = (struct lane){ .mask = ((uint64_t)1 << bits) - 1, .word = (uint32_t)words - 1, .shift = used };
        used += bits;
        s->out->states_bits += bits;
    }
    ls_stateset_init(&s->now, words ? words : 1);
    ls_stateset_init(&s->next, words ? words : 1);
}

static inline void lanes_load(struct sweep *s)
{
    for (size_t r = 0; r < s->ranks; r++) {
        s->lane[r].state = s->of[r]->state.at;
        s->lane[r].move = s->of[r]->move.at;
    }
}

/* A lookup in a large table is a cache miss. Keys wait here until PIPE of them are there, so that the misses overlap. */
struct pipe { uint64_t *key, *hash; size_t count; };

static inline __attribute__((always_inline)) void pipe_flush(struct sweep *s, struct pipe *p, size_t words)
{
    if (ls_stateset_full(&s->next, PIPE))
        ls_stateset_grow(&s->next, s->next.count + PIPE);
    struct ls_stateset next = s->next; /* in registers: a store through a key could alias the fields */
    for (size_t i = 0; i < p->count; i++)
        ls_stateset_put(&next, p->key + i * words, p->hash[i], words);
    s->next.count = next.count;
    p->count = 0;
}

static inline __attribute__((always_inline)) void pipe_push(struct sweep *s, struct pipe *p, size_t words)
{
    uint64_t h = ls_stateset_hash(p->key + p->count * words, words);
    __builtin_prefetch(ls_stateset_home(&s->next, h, words), 1);
    p->hash[p->count++] = h;
    if (p->count == PIPE)
        pipe_flush(s, p, words);
}

static void violation(struct sweep *s)
{
    if (s->out->violations++ == 0)
        s->bad = ls_arena_copy(s->p->arena, s->state, s->ranks * sizeof *s->state);
}

/* Adds where the ranks go when a meeting's members all have something for it. */
static __attribute__((noinline)) enum ls_meet meet(struct sweep *s, struct pipe *p, const uint64_t *key, size_t meeting, size_t words)
{
    const struct ls_product_meeting *m = &s->p->meeting[meeting];
    enum ls_meet how = ls_product_meet(s->p, s->state, meeting, s->to);
    if (how != LS_MEET_YES)
        return how;
    uint64_t *to = p->key + p->count * words;
    memcpy(to, key, words * sizeof *key);
    for (size_t i = 0; i < m->members; i++) {
        uint32_t r = m->member[i].rank;
        to[s->lane[r].word] += ((uint64_t)s->to[i] - s->state[r]) << s->lane[r].shift;
    }
    pipe_push(s, p, words);
    return how;
}

static inline __attribute__((always_inline)) void visit(struct sweep *s, struct pipe *p, const uint64_t *key, size_t words)
{
    const struct lane *lane = s->lane;
    uint32_t *state = s->state;
    size_t ranks = s->ranks, steps = 0, meetings = s->meetings;
    bool differ = false;
    if (!s->closed) {
        for (size_t r = 0; r < ranks; r++)
            (void)ls_automaton_local(s->of[r], (uint32_t)(key[lane[r].word] >> lane[r].shift & lane[r].mask));
        lanes_load(s);
    }
    for (size_t r = 0; r < ranks; r++) {
        size_t word = words == 1 ? 0 : lane[r].word;
        unsigned shift = lane[r].shift;
        uint32_t id = (uint32_t)(key[word] >> shift & lane[r].mask);
        const struct ls_local *l = &lane[r].state[id];
        const struct ls_local_move *m = &lane[r].move[l->move], *end = m + l->moves;
        state[r] = id;
        steps += l->moves;
        for (; m < end; m++) {
            uint64_t *to = p->key + p->count * words;
            for (size_t i = 0; i < words; i++)
                to[i] = key[i];
            to[word] += ((uint64_t)m->to - id) << shift; /* replaces the field: what is borrowed is carried back */
            pipe_push(s, p, words);
        }
    }
    for (size_t g = 0; g < meetings; g++) {
        const struct ls_member *m = s->p->meeting[g].member, *end = m + s->p->meeting[g].members;
        while (m < end && (lane[m->rank].state[state[m->rank]].offer_mask >> (m->fifo % 64) & 1))
            m++;
        if (m < end)
            continue;
        enum ls_meet how = meet(s, p, key, g, words);
        steps += how == LS_MEET_YES;
        differ = differ || how == LS_MEET_DIFFER;
    }
    s->out->transitions += steps;
    if (steps == 0) /* stuck: a violation unless every rank is done */
        for (size_t r = 0; r < ranks && !differ; r++)
            differ = !lane[r].state[state[r]].final;
    if (differ)
        violation(s);
}

static inline __attribute__((always_inline)) void visit_layer(struct sweep *s, size_t words, size_t from, size_t to)
{
    struct pipe p = { s->pipe, s->hash, 0 };
    uint64_t key[2], *at = words <= 2 ? key : s->key;
    for (size_t i = from; i < to; i++) {
        uint64_t *slot = s->now.slot + i * words;
        if (slot[0] == 0)
            continue;
        memcpy(at, slot, words * sizeof *at);
        memset(slot, 0, words * sizeof *slot); /* leaves the table empty for the layer after the next */
        visit(s, &p, at, words);
    }
    pipe_flush(s, &p, words);
}

static bool over_limit(struct sweep *s, double start)
{
    const struct ls_explore_options *o = s->o;
    size_t bytes = ls_stateset_bytes(&s->now) + ls_stateset_bytes(&s->next);
    s->out->bytes = bytes > s->out->bytes ? bytes : s->out->bytes;
    if (s->out->states + s->next.count > o->states_max)
        s->out->limit = "states";
    else if (bytes + (s->closed ? 0 : ls_product_bytes(s->p)) > o->bytes_max)
        s->out->limit = "memory";
    else if (o->seconds_max > 0 && ls_explore_seconds() - start > o->seconds_max)
        s->out->limit = "time";
    return s->out->limit != NULL;
}

uint32_t *ls_explore_layers(struct ls_product *p, const struct ls_explore_options *o, struct ls_explored *out)
{
    enum { SLICE = 1 << 16 };
    struct sweep s = { .p = p, .o = o, .out = out, .of = p->of, .ranks = p->family->ranks, .meetings = p->meetings };
    double start = ls_explore_seconds();
    lanes_open(&s);
    size_t words = s.now.words;
    s.state = LS_NEW(p->arena, uint32_t, s.ranks);
    s.to = LS_NEW(p->arena, uint32_t, s.ranks + 1);
    s.pipe = LS_NEW(p->arena, uint64_t, (PIPE + 1) * words);
    s.hash = LS_NEW(p->arena, uint64_t, PIPE);
    s.key = LS_NEW(p->arena, uint64_t, words);
    lanes_load(&s);
    for (size_t r = 0; r < s.ranks; r++)
        s.pipe[s.lane[r].word] |= (uint64_t)p->of[r]->start << s.lane[r].shift;
    if (s.ranks == 0)
        s.pipe[0] = 1;
    ls_stateset_add(&s.now, s.pipe);
    for (size_t depth = 0; s.now.count > 0 && !out->limit; depth++) {
        out->depth = depth;
        out->states += s.now.count;
        for (size_t i = 0; i < s.now.room && (o->all || !s.bad) && !out->limit; i += SLICE) {
            size_t to = s.now.room - i < SLICE ? s.now.room : i + SLICE;
            if (words == 1)
                visit_layer(&s, 1, i, to);
            else if (words == 2)
                visit_layer(&s, 2, i, to);
            else
                visit_layer(&s, words, i, to);
            (void)over_limit(&s, start);
        }
        if (s.bad && !o->all)
            break;
        out->peak = s.now.count + s.next.count > out->peak ? s.now.count + s.next.count : out->peak;
        struct ls_stateset done = s.now;
        done.count = 0;
        s.now = s.next;
        s.next = done;
    }
    ls_stateset_release(&s.now);
    ls_stateset_release(&s.next);
    return s.bad;
}
