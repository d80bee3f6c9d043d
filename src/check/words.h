/* src/check/words.h -- what segments say on each communicator, as lists of numbers that are equal iff the ops may meet.
 *
 * `decide` ops are resolved with the value that the segment contributes, which is what is agreed when everybody contributes
 * the same; the value is part of the word, so words that are equal agree on it. Ops after a stop are left out. */
#ifndef LS_CHECK_WORDS_H
#define LS_CHECK_WORDS_H

#include "check/intern.h"
#include "ir/program.h"

struct ls_digest {
    const struct ls_segment *segment;
    uint32_t id;               /* equal for segments whose ops mean the same to the machine */
    const struct ls_op **op;   /* the resolved ops, in issue order */
    size_t count;
    uint32_t *word, *first;    /* collectives of communicator c: word[first[c] .. first[c + 1]) */
    bool stops, fused, p2p, decides;
    uint8_t threads;           /* highest host thread + 1 */
};
struct ls_digests;
struct ls_digests *ls_digests_open(const struct ls_tables *tables, struct ls_arena *arena);
void ls_digests_close(struct ls_digests *d); /* accepts NULL */
/* Segments are found again by address. Owned by the arena. */
const struct ls_digest *ls_digest_of(struct ls_digests *d, const struct ls_segment *segment);
/* The communicator in whose FIFO an op waits: the parent for a comm_init that has one. */
static inline uint32_t ls_word_comm(const struct ls_tables *t, const struct ls_op *op)
{
    uint32_t parent = op->kind == LS_OP_COMM_INIT ? t->comm.at[op->comm].parent : LS_NO_ID;
    return parent == LS_NO_ID ? op->comm : parent;
}
const struct ls_op *ls_digests_op(const struct ls_digests *d, uint32_t word); /* an op with this word */

#endif
