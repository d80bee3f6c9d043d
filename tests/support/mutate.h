/* tests/support/mutate.h -- where a program can be changed, and the change. Shared by mutation.c and mutate.c only. */
#ifndef LS_TESTS_MUTATE_H
#define LS_TESTS_MUTATE_H

#include "ir/system.h"
#include "mutation.h"

enum mutation_follows { FOLLOWS_MISMATCH, FOLLOWS_MISPAIRING, FOLLOWS_ERROR, FOLLOWS_LOST_GRADIENT, FOLLOWS_WRONG_SCALE, FOLLOWS_RACE,
                        FOLLOWS_WORDS, FOLLOWS_BRUTE };

struct site { struct ls_at at; uint32_t other; }; /* other: a second op of the segment, a communicator, a payload, ... by kind */
typedef LS_VEC(struct site) site_vec;

/* All places of the job where a change of this kind has the premise that its verdict rests on. */
void mutate_sites(const struct ls_job *job, enum mutation_kind kind, site_vec *out);
/* The job with one rank's (or, of family ALL, every rank's) program changed; what is not changed is shared. */
void mutate_job(const struct ls_job *job, enum mutation_kind kind, struct site site, struct ls_arena *arena, struct ls_job *out);

/* What follows where an all-reduce that leaves its result in place (`held`) is left out on every rank: each keeps its own shares, with
 * the weight 1. The first rank to step tells: shares of others are lost to it, or its own, that should have been averaged, are too heavy. */
enum ls_verdict mutate_kept_share(const struct ls_job *job, struct site site);

/* Compares the words of the members of all groups, without the library's judgement of ops: a bit per verdict that the first
 * difference of some group stands for, and that of an error if a rank leaves; 0: all are equal. Jobs without decide. */
unsigned mutate_words(const struct ls_job *job);
bool mutate_has_decide(const struct ls_job *job);
size_t mutate_longest(const struct ls_job *job); /* ops of the longest program */

/* The job without what never waits for another rank: compute, copies, memory, marks. In-order streams keep the rest in order, so a machine
 * ends it in the same way, at the same place of the same communicator. For the naive machine, whose time is cubic. */
void mutate_strip(const struct ls_job *job, struct ls_arena *arena, struct ls_job *out);

/* One run as a system: the ranks are the roles of a single replica that has one letter. */
void mutate_system(const struct ls_system *base, const struct ls_job *job, struct ls_arena *arena, struct ls_system *out);
/* The base system with one more letter: a replica that takes it acts as with the letter that the site's replica had in the run,
 * but for the changed segment. False if there is no room for it. */
bool mutate_letter(const struct ls_system *base, const struct ls_assignment *a, const struct ls_job *job, enum mutation_kind kind,
                   struct site site, struct ls_arena *arena, struct ls_system *out);

#endif
