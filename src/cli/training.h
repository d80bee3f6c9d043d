/* src/cli/training.h -- a training run in words and in JSON: losses, norms, tokens, times. */
#ifndef LS_CLI_TRAINING_H
#define LS_CLI_TRAINING_H

#include "cli/cli.h"
#include "replay/train.h"

void ls_training_text(const struct ls_train *t, const struct ls_train_options *o, struct ls_str *out);
void ls_training_json(const struct ls_train *t, const struct ls_train_options *o, struct ls_json *j); /* one value */

#endif
