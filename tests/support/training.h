/* tests/support/training.h -- training runs: made from a few settings, and compared with one process that does not shard. */
#ifndef LS_TESTS_TRAINING_H
#define LS_TESTS_TRAINING_H

#include "replay/train.h"

/* The table's samples: 0: 12 tokens of text; 1: 9 and a picture; 2: 7 and two pictures; 3: 5, and a recording where the model
 * hears. */
enum { TRAINING_SAMPLES = 4 };
struct training_setting {
    const char *model, *policy, *table;   /* "tiny_gemma3", "root" or "ddp", "[[0, 1]]" */
    const char *freeze, *peft, *dtypes;   /* freeze_config, model.peft, mp_policy; NULL: none, none, f32 */
    const char *distributed, *batch;      /* further lines of these */
    unsigned ranks, replicas, microbatches; /* 0: 1 */
    bool no_dummy, no_clip;
    struct ls_train_options o;
};
struct training {
    struct ls_arena arena;
    struct ls_names *names;
    struct ls_str text;                   /* of the scenario, where it was made from a setting */
    struct ls_scenario s;
    struct ls_train_case c;
    struct ls_train t;
};
/* Reads a scenario: of a setting, or scenarios/NAME.yaml. False, and *why. Afterwards training_drop, also after a failure. */
bool training_load(struct training *j, const struct training_setting *x, struct ls_str *why);
bool training_load_file(struct training *j, const char *name, struct ls_str *why);
/* Prepares and runs it; false if that failed or if it was refused. Any verdict will do. */
bool training_go(struct training *j, const struct ls_train_options *o, struct ls_str *why);
bool training_completed(const struct training *j, struct ls_str *why); /* safe, all steps ended, memory as the program says */
void training_drop(struct training *j);

/* Trains one process on the same sequences, all of a step in one batch. Tolerances are relative; weight, where the run kept weights:
 * root mean square of the differences after the last step, of that of the changes since the first. *worst: what was found. */
struct training_worst { double loss, norm, weight; };
bool training_like_solo(struct training *j, const struct training_worst *tolerance, struct training_worst *worst, struct ls_str *why);
/* Losses, norms, tokens; weights if both have them. */
bool training_same_bits(const struct training *a, const struct training *b, struct ls_str *why);

#endif
