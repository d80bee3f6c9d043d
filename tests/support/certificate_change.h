/* tests/support/certificate_change.h -- makes one change of a given kind, at a place of chance, to a certificate. */
#ifndef LS_TESTS_CERTIFICATE_CHANGE_H
#define LS_TESTS_CERTIFICATE_CHANGE_H

#include "check/certificate.h"

#define CHANGES(X)                                                                                                        \
    X(OP_DROP, "an op dropped") X(OP_SWAP, "two ops swapped") X(OP_TWICE, "an op repeated") X(OP_SIG, "a payload")          \
    X(OP_COMM, "a communicator or event") X(OP_STREAM, "a stream") X(OP_KIND, "a wait or record gone") X(OP_FUSED, "a fused group") \
    X(OP_BLOCKING, "blocking") X(NUMBER_LOWER, "a number lowered") X(NUMBER_ANY, "a number") X(ORDER_PROGRAM, "an order's program")  \
    X(STEP_NEXT, "a transition") X(STEP_PROGRAM, "a program of a transition") X(STEP_DROP, "a transition dropped")          \
    X(REACH_DROP, "a joint set dropped") X(REACH_MACRO, "a joint set") X(SET_DROP, "a member dropped") X(SET_ADD, "a member")  \
    X(ROUND_DROP, "a round dropped") X(ROUND_ORDER, "an order of a round") X(ALLOW_DROP, "a letter dropped")                 \
    X(ALLOW_ADD, "a letter allowed") X(NEXT, "the driver") X(COMM_DIMS, "a communicator's dimensions") X(COMM_PART, "a part") \
    X(CLASS, "a class") X(TIER_DIMS, "a level's dimensions") X(DIMS, "the free dimensions") X(LEVEL, "L1 or L2") X(START, "the start")
#define CHANGE_ENUM(id, text) CHANGE_##id,
enum change { CHANGES(CHANGE_ENUM) CHANGE_COUNT };
#undef CHANGE_ENUM
const char *certificate_change_text(enum change what);

/* What is changed is copied first. False: there is nothing of this kind to change. */
bool certificate_change(struct ls_certificate *c, enum change what, uint64_t *random, struct ls_arena *arena);

#endif
