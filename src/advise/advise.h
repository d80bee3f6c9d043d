/* src/advise/advise.h -- a scenario judged, explained and repaired: the one place above plan and check.
 *
 *   assess    compile, check, and what follows from a refusal at set-up
 *   repairs   changes of policy or contract, each of them compiled and checked
 *   text      the verdict as a person reads it; at most 25 lines for a witness
 *   witness   the failing run as a scenario of its own, for simulate and replay */
#ifndef LS_ADVISE_ADVISE_H
#define LS_ADVISE_ADVISE_H

#include "check/check.h"
#include "scenario/scenario.h"

struct ls_repair {
    struct ls_variant variant;
    const char *change;          /* "frozen_sharding: root" */
    const char *note;            /* what the user has to guarantee or to know, or NULL */
    enum ls_verdict verdict;
    bool proved;
};
/* What the data make of it: execution MANIFEST. */
struct ls_data_risk {
    struct ls_risk risk;
    uint64_t replicas, groups;
    size_t classes;
    bool proved;                         /* ranks that hold one class are safe, for every sequence: the classes decide alone */
};
struct ls_assessment {
    const struct ls_data_risk *data;     /* NULL without a manifest */
    enum ls_verdict verdict;
    struct ls_variant variant;           /* what was judged */
    struct ls_compiled compiled;         /* valid until ls_assessment_release */
    struct ls_check_result check;        /* not for SETUP_ERROR */
    const char *seen_as;                 /* MISMATCH, MISPAIRING, HANG, ERROR: "hang", "silent", "crash"; else NULL */
    struct ls_repair *repair; size_t repairs;   /* only the safe ones */
    double seconds;
};
struct ls_assess_options {
    struct ls_check_options check;
    struct ls_variant variant;
    bool force;                          /* go on where a contract refuses the plan */
    bool repairs;
};
LS_MUST_USE enum ls_code ls_assess(const struct ls_scenario *s, const struct ls_assess_options *o, struct ls_arena *arena,
                                   struct ls_assessment *out, struct ls_error *err);
void ls_assessment_release(struct ls_assessment *a);

/* Whether the assessment is what `expect:` says; without expect, whether it is safe. *why: the first difference. */
bool ls_as_expected(const struct ls_scenario *s, const struct ls_assessment *a, struct ls_str *why);

/* The verdict: "NAME: SAFE: proved for ...", or the witness with causes and repairs. bold and reset are terminal codes or "". */
void ls_assessment_print(const struct ls_scenario *s, const struct ls_assessment *a, const char *replay, const char *bold,
                         const char *reset, struct ls_str *out);
/* One line: verdict, where, how it is known. */
void ls_assessment_line(const struct ls_scenario *s, const struct ls_assessment *a, struct ls_str *out);

/* Why it is not safe, in one phrase: "all_gather model.language_model on rank 0 (text only), all_gather model.visual on rank 1 (1 image)".
 * Adds nothing to *out where the verdict is safe or undecided. */
void ls_assessment_cause(const struct ls_scenario *s, const struct ls_assessment *a, struct ls_str *out);

/* The witness as a scenario: sizes, table, microbatches, steps and the variant's policy fixed; expects the verdict found. LS_EINPUT without a witness. */
LS_MUST_USE enum ls_code ls_witness_scenario(const struct ls_scenario *s, const struct ls_assessment *a, struct ls_arena *arena,
                                             struct ls_str *out, struct ls_error *err);

#endif
