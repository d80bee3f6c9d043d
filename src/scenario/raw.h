/* src/scenario/raw.h -- raw programs: the `program:` section of a scenario, read strictly (schema.md, "Raw programs").
 *
 * A rank runs `body`, then its own list of `rank`. Branches are choices that a rank makes before the run: an op with `when` or `unless`
 * exists for one of them only. One assignment of all choices gives one job. */
#ifndef LS_SCENARIO_RAW_H
#define LS_SCENARIO_RAW_H

#include "ir/program.h"
#include "yaml/yaml.h"

struct ls_raw_branch { const char *name; bool agreed; struct ls_loc at; }; /* agreed: all ranks choose alike */
struct ls_raw_item;
struct ls_raw_list { const struct ls_raw_item *item; size_t count; };
struct ls_raw {
    struct ls_tables *tables;   /* the caller's; buffers, streams and so on are added to it */
    size_t ranks;
    struct ls_groups *comm;     /* [tables->comm.count] */
    struct ls_raw_branch *branch; size_t branches;
    struct ls_raw_list body, *rank; /* [ranks] */
    bool *matters;              /* [ranks * branches] does the choice change what the rank does? */
};

/* `tables` must be fresh: communicators are numbered as `groups` lists them. Memory comes from tables->arena.
 *   errors  LS_EINPUT with the position of what is wrong */
LS_MUST_USE enum ls_code ls_raw_load(const struct ls_yaml_node *program, struct ls_tables *tables, struct ls_raw *out,
                                     struct ls_error *err);

/* What rank `r` issues if it chooses choice[branches]. */
void ls_raw_segment(const struct ls_raw *raw, uint32_t rank, const bool *choice, struct ls_arena *arena, struct ls_segment *out);
/* The job of one assignment, choice[ranks * branches]. */
void ls_raw_job(const struct ls_raw *raw, const bool *choice, struct ls_arena *arena, struct ls_job *out);
/* The next assignment; from all false, until it returns false. Choices that do not matter stay false; agreed ones move together. */
bool ls_raw_next(const struct ls_raw *raw, bool *choice);
/* How many assignments there are; UINT64_MAX when that does not fit. */
uint64_t ls_raw_assignments(const struct ls_raw *raw);

#endif
