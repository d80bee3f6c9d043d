/* src/check/product.h -- the ranks' automata side by side: who can meet whom, and what a meeting does.
 *
 * A *meeting* is what completes together: the members of one group, or a sender and its receiver. */
#ifndef LS_CHECK_PRODUCT_H
#define LS_CHECK_PRODUCT_H

#include "check/explore.h"
#include "check/local.h"

struct ls_member { uint32_t rank, fifo; }; /* fifo: LS_NO_ID if the rank never calls */
struct ls_product_meeting { uint32_t comm, group; const struct ls_member *member; size_t members; };

struct ls_product {
    const struct ls_family *family;
    struct ls_arena *arena;
    struct ls_sigs sigs;
    struct ls_automaton *automaton; size_t automata;
    struct ls_automaton **of;        /* [ranks] */
    struct ls_product_meeting *meeting; size_t meetings;
    uint32_t *symmetric;             /* [ranks]: the first rank that this one may change places with */
    size_t classes;
};
LS_MUST_USE enum ls_code ls_product_open(struct ls_product *p, const struct ls_family *f, const struct ls_run_options *run,
                                         bool keep_history, struct ls_arena *arena, struct ls_error *err);
void ls_product_release(struct ls_product *p);
size_t ls_product_bytes(const struct ls_product *p);

enum ls_meet { LS_MEET_NO, LS_MEET_YES, LS_MEET_DIFFER };
/* YES: all members offer the same, and to[i] is where member i goes. DIFFER: two members offer different ops, whatever others do. */
enum ls_meet ls_product_meet(struct ls_product *p, const uint32_t *state, size_t meeting, uint32_t *to);
/* A schedule from the start to `target`, and the choices it makes. False: more than states_max states were searched. */
bool ls_product_path(struct ls_product *p, const uint32_t *target, size_t states_max, struct ls_explored *out);
/* Where a picked op of a rank lies, once out->pick is known. */
struct ls_at ls_product_at(const struct ls_product *p, const struct ls_explored *out, uint32_t rank, uint32_t pick, uint32_t op);

#endif
