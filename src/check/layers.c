#include "check/layers.h"

#include "check/stateset.h"

#include <string.h>

enum { PIPE = 32, LOCAL_STATES_MAX = 1 << 20, LAZY_BITS = 32 };

/* A rank's tables as the inner loop reads them. The rank's local state is the bits of word `word` from `shift`. */
struct lane {
    const struct ls_local *state;
    const struct ls_move *move;
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
    uint64_t *pipe, *hash;  /* keys on their way into `next`: their cache lines are being fetched */
    size_t piped;
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

static inline void pipe_flush(struct sweep *s, size_t words)
{
    if (ls_stateset_full(&s->next, PIPE))
        ls_stateset_grow(&s->next, s->next.count + PIPE);
    for (size_t i = 0; i < s->piped; i++)
        ls_stateset_put(&s->next, s->pipe + i * words, s->hash[i], words);
    s->piped = 0;
}

/* A lookup in a large table is a cache miss. Keys wait here until PIPE of them are there, so that the misses overlap. */
static inline void pipe_push(struct sweep *s, size_t words)
{
    uint64_t h = ls_stateset_hash(s->pipe + s->piped * words, words);
    __builtin_prefetch(ls_stateset_home(&s->next, h, words), 1);
    s->hash[s->piped++] = h;
    if (s->piped == PIPE)
        pipe_flush(s, words);
}

static void violation(struct sweep *s)
{
    if (s->out->violations++ == 0)
        s->bad = ls_arena_copy(s->p->arena, s->state, s->ranks * sizeof *s->state);
}

static inline __attribute__((always_inline)) void key_add(const struct sweep *s, uint64_t *key, size_t rank, uint32_t to)
{
    const struct lane *l = &s->lane[rank];
    key[l->word] += ((uint64_t)to - s->state[rank]) << l->shift; /* replaces the field: what is borrowed is carried back */
}

static inline __attribute__((always_inline)) void visit(struct sweep *s, const uint64_t *key, size_t words)
{
    size_t ranks = s->ranks, steps = 0;
    bool differ = false, stopped = false;
    uint64_t any = 0;
    for (size_t r = 0; r < ranks; r++)
        s->state[r] = (uint32_t)(key[s->lane[r].word] >> s->lane[r].shift & s->lane[r].mask);
    if (!s->closed) {
        for (size_t r = 0; r < ranks; r++)
            (void)ls_automaton_local(s->of[r], s->state[r]);
        lanes_load(s);
    }
    for (size_t r = 0; r < ranks; r++) {
        const struct lane *lane = &s->lane[r];
        const struct ls_local *l = &lane->state[s->state[r]];
        any |= l->offer_mask;
        stopped = stopped || l->stopped;
        const struct ls_move *m = &lane->move[l->move], *end = m + l->moves;
        for (; m < end; m++) {
            uint64_t *to = s->pipe + s->piped * words;
            memcpy(to, key, words * sizeof *key);
            key_add(s, to, r, m->to);
            pipe_push(s, words);
            steps++;
        }
    }
    for (size_t g = 0; g < s->meetings && any; g++) {
        const struct ls_meeting *meeting = &s->p->meeting[g];
        const struct ls_member *m = meeting->member, *end = m + meeting->members;
        while (m < end && (s->lane[m->rank].state[s->state[m->rank]].offer_mask >> (m->fifo % 64) & 1))
            m++;
        if (m < end)
            continue;
        enum ls_meet meet = ls_product_meet(s->p, s->state, g, s->to);
        differ = differ || meet == LS_MEET_DIFFER;
        if (meet != LS_MEET_YES)
            continue;
        uint64_t *to = s->pipe + s->piped * words;
        memcpy(to, key, words * sizeof *key);
        for (size_t i = 0; i < meeting->members; i++)
            key_add(s, to, meeting->member[i].rank, s->to[i]);
        pipe_push(s, words);
        steps++;
    }
    s->out->transitions += steps;
    bool final = steps == 0 && !stopped;
    for (size_t r = 0; r < ranks && final; r++)
        final = s->lane[r].state[s->state[r]].final;
    if (differ || (steps == 0 && !final))
        violation(s);
}

static inline __attribute__((always_inline)) void visit_layer(struct sweep *s, size_t words, size_t from, size_t to)
{
    for (size_t i = from; i < to; i++) {
        uint64_t *key = s->now.slot + i * words;
        if (key[0] == 0)
            continue;
        visit(s, key, words);
        memset(key, 0, words * sizeof *key); /* leaves the table empty for the layer after the next */
    }
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
        pipe_flush(&s, words);
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
