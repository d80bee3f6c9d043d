/* tests/support/mutation_base.h -- a safe plan that is being changed: what mutation.c and mutation_plan.c share. */
#ifndef LS_TESTS_MUTATION_BASE_H
#define LS_TESTS_MUTATION_BASE_H

#include "check/check.h"
#include "mutate.h"
#include "naive.h"
#include "scenario/scenario.h"

struct base {
    struct mutations *m;
    struct ls_arena arena;
    struct ls_names *names;
    struct ls_scenario s, sized;      /* as written; with every size given */
    struct ls_compiled any, fixed;    /* of the two */
    struct ls_assignment a;           /* one run of `fixed` */
    struct ls_job job;
    struct ls_check_options check;
    bool words;                       /* no decide, one host thread: words say everything */
    unsigned per_kind;
    uint64_t random;
    struct ls_str *why;
};

/* mutation.c: verdicts, what another machine says, reports, counts. The last two add to *why. */
enum ls_verdict mutation_follows(enum mutation_kind kind); /* a fixed verdict, or LS_UNDECIDED */
bool mutation_by_machine(enum ls_verdict v);               /* one that an execution shows */
void mutation_naive(const struct ls_job *job, int level, struct ls_arena *arena, struct naive *n);
bool mutation_fail(const struct base *b, enum mutation_kind kind, const char *what, const char *got);
bool mutation_expect(const struct base *b, enum mutation_kind kind, const struct ls_check_result *r, enum ls_verdict want);
bool mutation_check(const struct base *b, const struct ls_system *y, struct ls_arena *arena, struct ls_check_result *r);
void mutation_count(const struct base *b, enum mutation_kind kind, enum ls_verdict v);
/* One changed run; `fixed`: what the kind calls for, unless words tell. */
bool mutation_run(struct base *b, const struct ls_job *job, enum mutation_kind kind, enum ls_verdict fixed);

/* mutation_plan.c: changes of the families PLAN and SCENARIO. */
bool mutate_plans(struct base *b, enum mutation_kind kind);
bool mutate_scenarios(struct base *b, enum mutation_kind kind);

#endif
