/* tests/support/naive_rules.h -- semantics.md rule by rule, each a question to the whole state of the naive machine.
 *
 * `i` is an op's index in its rank's program; what comes back is NULL where there is none. */
#ifndef LS_TESTS_NAIVE_RULES_H
#define LS_TESTS_NAIVE_RULES_H

#include "naive.h"

static inline bool naive_is_stream(const struct naive_op *a) { return !ls_op_is_host(a->op); }
static inline bool naive_is_coll(const struct naive_op *a) { return ls_op_is_collective(a->op); }
static inline bool naive_is_comm(const struct naive_op *a) { return ls_op_uses_comm(a->op); }

/* Branches: is the op on a side that is taken? The innermost decide around it, and its side (1, 2). */
enum naive_path { NAIVE_TAKEN, NAIVE_SKIPPED, NAIVE_OPEN };
enum naive_path naive_path_of(const struct naive_rank *r, size_t i);
const struct naive_op *naive_inside(const struct naive_rank *r, size_t i, int *side);

/* In one bundle: of one fused group, on one stream, with only ops of the group between them on the stream. */
bool naive_same_bundle(const struct naive_rank *r, size_t i, size_t j);

/* The record that a wait means: the latest one before it that is not skipped; and is it done (or is there none)? */
const struct naive_op *naive_record_of(const struct naive_rank *r, size_t i);
bool naive_event_done(const struct naive_rank *r, size_t i);

/* Host threads: the op at which a thread is held before it may issue op `to`; is it the bound on run-ahead that holds op i back? */
const struct naive_op *naive_holds(const struct naive *n, const struct naive_rank *r, size_t to);
bool naive_is_bounded(const struct naive *n, const struct naive_rank *r, size_t i);
bool naive_may_issue(const struct naive *n, const struct naive_rank *r, size_t i);

/* The first unfinished op of a stream; that of the FIFO or p2p queue that an op is on, and the communicator that the queue belongs to. */
const struct naive_op *naive_stream_head(const struct naive_rank *r, uint8_t stream);
const struct naive_op *naive_queue_head(const struct naive *n, const struct naive_rank *r, const struct naive_op *like);
uint32_t naive_queue_comm(const struct naive *n, const struct naive_op *a);
bool naive_is_ready(const struct naive *n, const struct naive_rank *r, size_t i);

/* Starts at L3: slots that a bundle takes, the next kernel in issue order, and whether the bundle of which op i is the first may start. */
bool naive_bounded_slots(const struct naive *n);
uint32_t naive_slots_of(const struct naive *n, const struct naive_rank *r, size_t i);
const struct naive_op *naive_next_kernel(const struct naive *n, const struct naive_rank *r);
bool naive_may_start(const struct naive *n, const struct naive_rank *r, size_t i);

/* Meetings: who has arrived, how two ops differ, the member's next op of a group or queue, and an op's number on its queue. */
bool naive_arrived(const struct naive *n, const struct naive_rank *r, const struct naive_op *a);
enum ls_diff naive_compare(const struct naive *n, const struct ls_op *a, const struct ls_op *b);
struct naive_op *naive_next_of(struct naive *n, uint32_t rank, uint32_t comm);
struct naive_op *naive_next_p2p(struct naive *n, uint32_t rank, enum ls_op_kind kind, uint32_t comm, uint32_t peer);
size_t naive_ordinal(const struct naive *n, const struct naive_rank *r, const struct naive_op *a);

/* Sends complete when they start; the send that a receive gets (the one with its ordinal on the queue), and the same if it is there. */
bool naive_buffered(const struct naive *n);
struct naive_op *naive_send_for(struct naive *n, uint32_t receiver, const struct naive_op *recv);
struct naive_op *naive_partner_send(struct naive *n, uint32_t rank, const struct naive_op *recv);

#endif
