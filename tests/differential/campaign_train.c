/* Random training runs, seed after seed: the verdict is the one predicted, at the same place; a safe run has the losses and norms
 * of one process that does not shard, and the same bits under another schedule, with a thread per queue, and at level L3 where it completes there; accumulation, replicas,
 * adapters, frozen parts and dummies included. Relative tolerances: 1e-5 for losses, 1e-3 for norms, 3e-2 for weights (of what training
 * changed, root mean square), over at most 30 steps in f32.
 * In bf16 only runs of one scenario are compared: one process rounds elsewhere. */
#include "campaign.h"
#include "training.h"

#include "base/hash.h"

#include <stdio.h>
#include <string.h>

static const struct training_worst tolerance = { .loss = 1e-5, .norm = 1e-3, .weight = 3e-2 };
struct counts { size_t runs, safe, steps, bounded, bounded_hangs, verdict[LS_VERDICT_COUNT]; struct training_worst worst; };

#define PICK(list) list[ls_random_below(random, sizeof list / sizeof *list)]

static void draw(uint64_t *random, struct ls_str *table, struct training_setting *x)
{
    static const char *const models[] = { "tiny_qwen3_vl", "tiny_gemma3", "tiny_ministral3", "tiny_qwen2_5_omni" }, *const policies[] = { "root", "per_layer", "replicate" };
    static const char *const freezes[] = { NULL, "{freeze_vision_tower: true}", "{freeze_vision_tower: true, freeze_language_model: true}" };
    static const char *const pefts[] = { NULL, NULL, NULL, "{kind: lora, targets: [q_proj, down_proj], rank: 2}" };
    static const unsigned shards[] = { 1, 2, 2, 3, 4, 8 };
    *x = (struct training_setting){ .model = PICK(models), .policy = PICK(policies), .freeze = PICK(freezes), .peft = PICK(pefts),
                                    .no_dummy = ls_random_below(random, 4) == 0, .no_clip = ls_random_below(random, 4) == 0 };
    if (ls_random_below(random, 5) == 0)
        x->dtypes = "{param: bf16, reduce: f32, output: bf16}";
    unsigned shard = PICK(shards);
    x->replicas = shard > 1 && shard <= 4 && ls_random_below(random, 3) == 0 ? 2 : 1;
    x->ranks = shard * x->replicas;
    x->microbatches = 1 + (unsigned)ls_random_below(random, 3);
    if (x->microbatches > 1 && ls_random_below(random, 2))
        x->distributed = "  defer_fsdp_grad_sync: true\n";
    bool equal = ls_random_below(random, 2);
    ls_str_add(table, "[");
    for (unsigned m = 0; m < x->microbatches; m++) {
        unsigned all = (unsigned)ls_random_below(random, TRAINING_SAMPLES);
        ls_str_printf(table, "%s[", m ? ", " : "");
        for (unsigned r = 0; r < x->ranks; r++)
            ls_str_printf(table, "%s%u", r ? ", " : "", equal ? all : (unsigned)ls_random_below(random, TRAINING_SAMPLES));
        ls_str_add(table, "]");
    }
    ls_str_add(table, "]");
    x->table = ls_str_text(table);
    x->o = (struct ls_train_options){ .steps = ls_random_below(random, 8) ? 4 : 30, .seed = ls_random(random), .schedule = ls_random(random), .weights = true };
}

static bool again(const struct training_setting *x, const struct training *first, uint64_t schedule, bool threads, struct ls_str *why)
{
    struct training j;
    struct ls_train_options o = x->o;
    o.schedule = schedule;
    o.free = threads;
    bool same = training_load(&j, x, why) && training_go(&j, &o, why) && j.t.verdict == first->t.verdict;
    if (same && j.t.verdict == LS_SAFE)
        same = training_same_bits(first, &j, why);
    if (!same)
        ls_str_printf(why, "\nagain, schedule %llu%s: %s\n%s", (unsigned long long)schedule, threads ? ", threads" : "", ls_verdict_name(j.t.verdict),
                      ls_str_text(&j.text));
    training_drop(&j);
    return same;
}

/* Few slots for collectives. In issue order one end is possible, and predicted; otherwise a safe plan may hang, or has the same bits. */
static bool at_level_3(struct counts *n, const struct training_setting *x, const struct training *first, uint64_t *random, struct ls_str *why)
{
    struct training j;
    struct ls_train_options o = x->o;
    struct ls_engine_options e = { 0 };
    struct ls_error err = { 0 };
    struct ls_prediction p;
    o.schedule = ls_random(random);
    bool good = training_load(&j, x, why);
    j.s.level = LS_L3;
    j.s.kernels = 1 + (unsigned)ls_random_below(random, 3);
    j.s.start = ls_random_below(random, 2) ? LS_START_ISSUE_ORDER : LS_START_ANY;
    good = good && training_go(&j, &o, why);
    ls_replay_level(&j.s, &e);
    if (good && j.s.start == LS_START_ISSUE_ORDER) {
        struct ls_replay seen = { .verdict = j.t.verdict, .observed = j.t.observed };
        good = ls_replay_predict(j.c.setup, &e, false, &j.arena, &p, &err) == LS_OK && ls_replay_agrees(j.c.setup, &p, &seen, why);
    }
    if (good && j.t.verdict == LS_SAFE)
        good = first->t.verdict == LS_SAFE && training_completed(&j, why) && training_same_bits(first, &j, why);
    else if (good && first->t.verdict == LS_SAFE)
        good = j.t.verdict == LS_HANG;
    n->bounded++;
    n->bounded_hangs += j.t.verdict == LS_HANG;
    if (!good)
        ls_str_printf(why, "\nat level L3, %u slots, start %d: %s, at L2 %s %s\n%s", j.s.kernels, (int)j.s.start, ls_verdict_name(j.t.verdict),
                      ls_verdict_name(first->t.verdict), err.text, ls_str_text(&j.text));
    training_drop(&j);
    return good;
}

static bool one(struct counts *n, uint64_t seed, struct ls_str *why)
{
    uint64_t random = seed;
    struct ls_str table = { 0 };
    struct training_setting x;
    struct training j;
    struct ls_error err = { 0 };
    struct ls_prediction p;
    draw(&random, &table, &x);
    bool good = training_load(&j, &x, why) && training_go(&j, &x.o, why);
    if (good && ls_replay_predict(j.c.setup, &(struct ls_engine_options){ 0 }, true, &j.arena, &p, &err) != LS_OK) {
        ls_str_add(why, err.text);
        good = false;
    }
    if (good) {
        struct ls_replay seen = { .verdict = j.t.verdict, .observed = j.t.observed };
        bool lost = p.verdict == LS_LOST_GRADIENT || p.verdict == LS_WRONG_SCALE; /* completes; numbers do not show it */
        n->runs++;
        n->verdict[p.verdict]++;
        good = lost ? j.t.verdict == LS_SAFE : ls_replay_agrees(j.c.setup, &p, &seen, why) && ls_replay_calls(j.c.setup, &seen, why);
        if (good && p.verdict == LS_SAFE) {
            n->safe++;
            n->steps += j.t.ended;
            good = training_completed(&j, why) && (x.dtypes || training_like_solo(&j, &tolerance, &n->worst, why));
        }
        good = good && again(&x, &j, ls_random(&random), false, why) && again(&x, &j, 0, true, why) && at_level_3(n, &x, &j, &random, why);
    }
    if (!good)
        ls_str_printf(why, "\n%s", ls_str_text(&j.text));
    training_drop(&j);
    ls_str_release(&table);
    return good;
}

int main(void)
{
    struct campaign c = campaign_open();
    struct counts n = { 0 };
    struct ls_str why = { 0 };
    int rc = 0;
    for (uint64_t seed; rc == 0 && campaign_next(&c, &seed);)
        if (!one(&n, seed, &why)) {
            printf("seed %llu: %s\n", (unsigned long long)seed, ls_str_text(&why));
            rc = 1;
        }
    printf("training: %zu runs, three times each, and %zu at level L3, of which %zu hang; %zu safe with %zu steps, losses within %.2g, norms within %.2g and weights "
           "within %.2g of one process\n", n.runs, n.bounded, n.bounded_hangs, n.safe, n.steps, n.worst.loss, n.worst.norm, n.worst.weight);
    for (size_t v = 0; v < LS_VERDICT_COUNT; v++)
        if (n.verdict[v])
            printf("  %s %zu\n", ls_verdict_name((enum ls_verdict)v), n.verdict[v]);
    ls_str_release(&why);
    campaign_close(&c, "training");
    return rc;
}
