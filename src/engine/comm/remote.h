/* src/engine/comm/remote.h -- a hub whose ranks are in several processes.
 *
 * Data. When a call starts (it heads its stream), its process tells the other processes of the group: which place in the member's
 * queue, kind, count, dtype, reduction, root, payload's fingerprint. Every process compares the heads it knows, as in one process:
 * a difference is found by all of them, before data moves. When all heads agree, each member sends every other process the part of
 * its input that this one needs, and each member does its own part of the result:
 *
 *   all_gather, gather, broadcast, scatter, all_to_all, send     the input goes to whoever has outputs for it
 *   reduce_scatter    each process gets its members' parts of every input, and sums them in member order
 *   all_reduce, reduce, decide   member j sums the j-th share of the elements in member order, then sends it to the outputs
 *   scan              every process gets every input
 *
 * A buffered send (level L3) waits for nobody: its announcement goes to the receiver's process, the input right behind it, and the
 * send has left. The receiver's process alone pairs it, and judges it; the sender's is not told of receives.
 *
 * The order of additions is the same as in one process, hence so are the bits.
 *
 * End. A hang is a state here, too: no actor can move in any process and no message is under way. Found by counting twice (Mattern
 * 1987, the four-counter method); no clock decides:
 *
 *   1. A process in which nothing can move tells process 0 how many messages of ops it has sent and received so far (IDLE), whenever
 *      these numbers changed since it told them last.
 *   2. Process 0 waits, idle itself, until the sums over all processes are equal; then it asks everybody (ASK).
 *   3. Whoever is asked answers with its numbers when it is idle (ANSWER), at once if it is.
 *   4. If every answer is what its sender had told before, process 0 tells everybody that the run is over (QUIET). If not, the answers
 *      are the new numbers of step 1.
 *
 * Why that is enough: a process whose numbers are the same in step 1 and 3 received nothing in between, and an idle process does
 * nothing until it receives; so all were idle at the moment when step 2 began, and as many messages had been received as sent:
 * none was under way. Nothing can happen after that. Messages of the protocol itself do not count.
 *
 * Failure. A run ends with an exchange of what every process has seen (ls_hub_end); one whose run failed gives its error there, early,
 * and the others stop when it arrives. A process that dies is the launcher's business: mpirun ends the others. */
#ifndef LS_ENGINE_COMM_REMOTE_H
#define LS_ENGINE_COMM_REMOTE_H

#include "engine/comm/comm.h"

/* ls_sched_options.outside: moves messages. */
bool ls_hub_outside(struct ls_hub *h, bool idle);
/* After the run. `mine` of every process, in all[processes]; it begins with an int32_t, an enum ls_code: how the run went there.
 *   errors  LS_EBACKEND: messages failed, now or in the run */
LS_MUST_USE enum ls_code ls_hub_end(struct ls_hub *h, const void *mine, size_t bytes, struct ls_message *all, struct ls_error *err);

#endif
