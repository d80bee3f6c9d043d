/* Training with a thread per host thread and stream has the bits of coroutines; a plain program, as threads_replay.c. */
#include "training.h"

#include <stdio.h>
#include <stdlib.h>

static bool alike(const char *name, struct ls_str *why)
{
    struct training a, b;
    struct ls_train_options o = { .steps = 3, .seed = 1, .weights = true, .timeline = true };
    bool good = training_load_file(&a, name, why) && training_go(&a, &o, why) && training_completed(&a, why);
    o.free = true;
    good = training_load_file(&b, name, why) && training_go(&b, &o, why) && good && training_completed(&b, why) && training_same_bits(&a, &b, why);
    training_drop(&a), training_drop(&b);
    return good;
}

int main(void)
{
    static const char *const name[] = { "training/qwen3-vl-root-mixed", "training/gemma3-per-layer-mixed-dummy", "training/ministral3-replicate-uniform" };
    struct ls_str why = { 0 };
    for (size_t i = 0; i < sizeof name / sizeof *name; i++)
        if (!alike(name[i], &why)) {
            printf("%s: %s\n", name[i], ls_str_text(&why));
            return EXIT_FAILURE;
        }
    printf("training in threads: %zu scenarios, the same bits\n", sizeof name / sizeof *name);
    return EXIT_SUCCESS;
}
