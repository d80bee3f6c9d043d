/* src/machine/waits.h -- the wait graph of a run that can go no further: what is unfinished, and what each of it waits for.
 *
 * A node waits for each of its successors. The graph holds what the arrived ops of meetings and ports lead to, and its size is bounded by
 * twice the ops that are unfinished. Private to src/machine. */
#ifndef LS_MACHINE_WAITS_H
#define LS_MACHINE_WAITS_H

#include "machine/run.h"

/*   MEETING  the next op of a group, where some member has arrived: waits for the members that have not
 *   PORT     the same for a send or receive that has arrived
 *   PAIRED   an op: waits for what keeps it from being paired
 *   DONE     an op whose stream must leave it behind: waits for every op of its bundle */
enum ls_wait { LS_WAIT_MEETING, LS_WAIT_PORT, LS_WAIT_PAIRED, LS_WAIT_DONE };
struct ls_wait_node {
    uint8_t what;            /* enum ls_wait */
    bool lacks;              /* MEETING, PORT: a member never comes: it has issued all of its ops */
    uint32_t id;             /* MEETING: group id; PORT: port; else the rank */
    uint32_t segment, op;    /* PAIRED, DONE */
    uint32_t missing;        /* with `lacks`: the first such rank; else LS_NO_ID */
    size_t first, count;     /* its successors, in `edge` */
    uint32_t scc;            /* ls_waits_components */
};
struct ls_waits {
    const struct ls_run *x;
    LS_VEC(struct ls_wait_node) node;
    LS_VEC(uint32_t) edge;   /* nodes */
    uint32_t *slot;          /* hash table of `room` places: node + 1, or 0 */
    size_t room;
};

void ls_waits_build(struct ls_waits *g, const struct ls_run *x);
/* Strongly connected components: nodes of one get one number; `size`, [nodes] and zero before, counts the nodes of each. */
void ls_waits_components(struct ls_waits *g, uint32_t *size);
void ls_waits_release(struct ls_waits *g);

#endif
