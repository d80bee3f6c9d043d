/* src/advise/internal.h -- what the files of advise/ share. */
#ifndef LS_ADVISE_INTERNAL_H
#define LS_ADVISE_INTERNAL_H

#include "advise/advise.h"

static inline const struct ls_op *op_at(const struct ls_job *job, struct ls_at at)
{
    return &job->rank[at.rank].segment[at.segment]->op[at.op];
}

/* Rounds of the witness that are microbatches; 0 without a witness. */
static inline size_t witness_microbatches(const struct ls_assessment *a)
{
    const struct ls_witness *w = a->check.witness;
    size_t n = 0;
    for (size_t i = 0; w && i < w->assignment.rounds; i++) {
        uint32_t round = a->compiled.system.driver.node[w->assignment.node[i]].round;
        enum ls_round_kind kind = round < a->compiled.rounds.count ? a->compiled.rounds.round[round].kind : LS_ROUND_IDLE;
        n += kind == LS_ROUND_MICRO || kind == LS_ROUND_SKIPPED;
    }
    return n;
}

/* data.c: what a manifest makes of an assessment; another one where its order never lets ranks differ. */
LS_MUST_USE enum ls_code assess_data(const struct ls_scenario *s, const struct ls_assess_options *o, struct ls_arena *arena,
                                     struct ls_assessment *a, struct ls_error *err);
LS_MUST_USE enum ls_code assess_once(const struct ls_scenario *s, const struct ls_assess_options *o, const struct ls_variant *variant,
                                     struct ls_arena *arena, struct ls_assessment *out, struct ls_error *err);
void print_data(const struct ls_scenario *s, const struct ls_assessment *a, int label_columns, struct ls_str *out);

#endif
