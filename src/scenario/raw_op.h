/* src/scenario/raw_op.h -- reads one list of ops of a raw program, with what hangs on them: waits, records, both sides of a decide.
 * Private to raw.c. */
#ifndef LS_SCENARIO_RAW_OP_H
#define LS_SCENARIO_RAW_OP_H

#include "scenario/raw.h"

/* Programs of this size are for people to read; the bounds keep reading and checking fast on any input. */
enum { LS_RAW_RANKS_MAX = 4096, LS_RAW_BRANCHES_MAX = 64, LS_RAW_GROUPS_MAX = 1024 };

struct ls_raw_item {
    struct ls_op op;
    uint32_t when, unless, choice; /* branches, or LS_NO_ID */
    struct ls_raw_list then_list, else_list;
};
struct ls_raw_reader {
    struct ls_raw *raw; /* its ranks, groups and branches are known */
    struct ls_tables *t;
    struct ls_arena *arena;
    struct ls_error *err;
    unsigned depth;
    bool *pooled;       /* [pooled_room] by buffer: an alloc has named its pool */
    size_t pooled_room;
};

/* `name` is the key that holds the list.
 *   errors  LS_EINPUT with the position of what is wrong */
LS_MUST_USE enum ls_code ls_raw_read_list(struct ls_raw_reader *l, const struct ls_yaml_node *n, const char *name, struct ls_raw_list *out);

#endif
