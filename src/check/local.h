/* src/check/local.h -- what one rank can do by itself: the machine's state restricted to a rank, as an automaton.
 *
 * A rank's state is its place in its choices, its next op, and the ops issued but not done, in order. Steps of the rank alone (issue, choose, run, start) are *moves*; what needs other ranks is an *offer*: an op that
 * heads its stream and its FIFO and whose waits are done. A global state is one local state per rank, and nothing else: a
 * group's members have done equally many ops of its FIFO, so positions need not be kept.
 *
 * States are numbered from 1 in order of discovery and expanded on demand; ranks with the same choices share an automaton.
 * At L1 every stream op blocks its host thread; otherwise L1 is L2. */
#ifndef LS_CHECK_LOCAL_H
#define LS_CHECK_LOCAL_H

#include "check/family.h"
#include "machine/machine.h"

enum ls_move_kind { LS_MOVE_ISSUE, LS_MOVE_CHOOSE, LS_MOVE_RUN, LS_MOVE_START };
struct ls_local_move { uint32_t to; uint32_t pick, op; uint8_t kind; }; /* pick: index into ls_automaton.pick; op: in its segment */
struct ls_offer {
    uint32_t fifo;          /* index into ls_automaton.fifo */
    uint32_t sig;           /* equal iff the ops may meet */
    uint32_t to, to_zero;   /* to_zero: a decide whose agreed value is zero, else equal to `to` */
    uint32_t value;         /* decide: what this rank contributes */
    uint32_t pick, op;
};
struct ls_local {
    uint64_t offer_mask;    /* bit fifo % 64 of each offer */
    uint32_t move, offer;   /* first index */
    uint16_t moves, offers;
    bool expanded, final, stopped; /* stopped: at a stop op */
};
/* A FIFO of the rank: all collectives of a communicator, or the sends to (receives from) one peer. */
struct ls_fifo { uint32_t comm; uint8_t kind; int32_t peer; }; /* kind: LS_OP_BARRIER for collectives, else SEND or RECV */

struct ls_words { LS_VEC(uint32_t) word; LS_VEC(size_t) first; uint32_t *index; size_t room; }; /* interned word lists, ids from 0 */
struct ls_pick { const struct ls_segment *segment; const uint32_t *next; uint32_t node, choice; uint32_t successor; };

struct ls_sigs { const struct ls_tables *tables; LS_VEC(const struct ls_op *) op; }; /* shared by the ranks of a family */

struct ls_automaton {
    const struct ls_choices *node;
    size_t nodes;
    struct ls_run_options options;
    bool enough_slots;               /* slots never run out on this rank (resident.h) */
    bool keep_history;               /* states with different pasts stay different: SPIN's states exactly */
    struct ls_sigs *sigs;
    uint32_t *sig_first, *sig;       /* sig[sig_first[pick] + op] */
    struct ls_pick *pick; size_t picks; uint32_t *pick_first; /* [nodes] */
    struct ls_arena *arena;
    LS_VEC(struct ls_fifo) fifo;
    LS_VEC(struct ls_local) state;   /* state[0] is unused */
    LS_VEC(struct ls_local_move) move;
    LS_VEC(struct ls_offer) offer;
    LS_VEC(uint32_t) settled;        /* memo of ls_automaton_settle; 0: unknown */
    struct ls_words words, past;
    uint32_t start;
};

/*   errors  LS_EINPUT: an op that names no communicator, a decide that reaches past its segment, fused ops, several host
 *           threads, and at L3 buffered sends */
LS_MUST_USE enum ls_code ls_automaton_open(struct ls_automaton *a, const struct ls_family_rank *rank, struct ls_sigs *sigs,
                                           const struct ls_run_options *options, bool keep_history, struct ls_arena *arena,
                                           struct ls_error *err);
void ls_automaton_release(struct ls_automaton *a);
void ls_automaton_expand(struct ls_automaton *a, uint32_t id);  /* fills moves and offers; pointers into the vectors move */
/* Discovers every state the rank could reach if its partners always came. False when there are more than `states_max`. */
bool ls_automaton_close(struct ls_automaton *a, size_t states_max);
/* The state after all moves that commute with everything else (explore.c says which); choices and contended starts remain. */
uint32_t ls_automaton_settle(struct ls_automaton *a, uint32_t id);
bool ls_automaton_eager(const struct ls_automaton *a, const struct ls_local_move *m);

static inline const struct ls_local *ls_automaton_local(struct ls_automaton *a, uint32_t id)
{
    if (!a->state.at[id].expanded)
        ls_automaton_expand(a, id);
    return &a->state.at[id];
}
/* The offer on `fifo` of an expanded state, or NULL. */
const struct ls_offer *ls_automaton_offer(const struct ls_automaton *a, const struct ls_local *l, uint32_t fifo);
const struct ls_op *ls_automaton_op(const struct ls_automaton *a, uint32_t pick, uint32_t op);
/* For reports: some ready or unready collective would not find a slot. */
bool ls_automaton_slots_full(struct ls_automaton *a, uint32_t id);

#endif
