/* The set-up contracts against the checker: what they let pass is safe, and what they refuse fails when it is forced. Freezing, policies,
 * overrides, contracts of the batch, dummies and run_dummy_forward, all combined; every few of them here, all with
 * LS_CONTRACTS=all. */
#include "advise/advise.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(a) (sizeof(a) / sizeof *(a))

static const char *const freezing[] = { "vision: {tower: true, projector: true}", "vision: {tower: true, projector: false}",
                                        "vision: {tower: false, projector: true}", "vision: {tower: false, projector: false}" };
static const char *const policy[] = { "frozen_sharding: root", "frozen_sharding: per_layer", "frozen_sharding: replicate" };
static const char *const of_vision[] = { "", "frozen_sharding: per_layer, ", "frozen_sharding: replicate, " };
static const char *const run_dummy[] = { "run_dummy_forward: auto", "run_dummy_forward: true", "run_dummy_forward: false" };
static const char *const execution[] = { "any", "rank_uniform", "{uniform: [vision]}", "at_least_one" };
static const char *const samples[] = { "[{text: 8}, {text: 8, images: 1}]", "[{text: 8, images: 1}, {text: 8, images: 2}]",
                                       "[{text: 8, images: 1}, {text: 9, images: 1}]" };
static const char *const dummy[] = { "", ", dummy_forward: {vision: [tower, projector]}", ", dummy_forward: {vision: [tower]}",
                                     ", dummy_forward: {vision: [projector]}", ", dummy_forward: {vision: {covers: [tower, projector], linked: false}}" };
static const char *const check[] = { "", ", validate_rank_uniform_execution: {microbatches: always, where: tower}" };

struct tally { size_t plans, refused, dummy_missing; };

static void judge(const char *text, struct tally *t)
{
    struct ls_arena arena;
    struct ls_names *names = ls_names_open();
    struct ls_error err = { 0 };
    struct ls_scenario s;
    struct ls_assessment a, forced;
    struct ls_assess_options o = { .variant = LS_AS_WRITTEN };
    ls_arena_init(&arena, 0);
    cr_assert_eq(ls_scenario_read(text, strlen(text), LS_SOURCE_DIR "/scenarios/dummies/x.yaml", &arena, names, &s, &err), LS_OK, "%s\n%s", text, err.text);
    o.check.gradients = o.check.races = true;
    cr_assert_eq(ls_assess(&s, &o, &arena, &a, &err), LS_OK, "%s\n%s", text, err.text);
    t->plans++;
    if (a.verdict == LS_SETUP_ERROR) {
        t->refused++;
        o.force = true;
        cr_assert_eq(ls_assess(&s, &o, &arena, &forced, &err), LS_OK, "%s\n%s", text, err.text);
        bool missing = strcmp(a.compiled.refusal.rule, "dummy_missing") == 0; /* asks for what the model does not have, needed or not */
        t->dummy_missing += missing;
        cr_expect(missing || (forced.verdict != LS_SAFE && forced.verdict != LS_UNDECIDED), "refused (%s), but forced it is %s:\n%s",
                  a.compiled.refusal.rule, ls_verdict_name(forced.verdict), text);
        ls_assessment_release(&forced);
    } else {
        bool raises = a.verdict == LS_ERROR && s.step.validate_rank_uniform; /* together: what the check is for */
        cr_expect(a.verdict == LS_SAFE || raises, "not refused, but it is %s:\n%s", ls_verdict_name(a.verdict), text);
    }
    ls_assessment_release(&a);
    ls_names_close(names);
    ls_arena_release(&arena);
}

Test(contracts, what_passes_is_safe_and_what_is_refused_fails)
{
    enum { STRIDE = 23 };
    struct tally t = { 0 };
    const char *wish = getenv("LS_CONTRACTS");
    size_t all = COUNT(freezing) * COUNT(policy) * COUNT(of_vision) * COUNT(run_dummy) * COUNT(execution) * COUNT(samples) * COUNT(dummy) * COUNT(check);
    for (size_t i = 0; i < all; i += wish && strcmp(wish, "all") == 0 ? 1 : STRIDE) {
        size_t k = i;
        struct ls_str s = { 0 };
        const char *f = freezing[k % COUNT(freezing)], *p, *v, *r, *e, *b, *d, *c;
        p = policy[(k /= COUNT(freezing)) % COUNT(policy)];
        v = of_vision[(k /= COUNT(policy)) % COUNT(of_vision)];
        r = run_dummy[(k /= COUNT(of_vision)) % COUNT(run_dummy)];
        e = execution[(k /= COUNT(run_dummy)) % COUNT(execution)];
        b = samples[(k /= COUNT(execution)) % COUNT(samples)];
        d = dummy[(k /= COUNT(samples)) % COUNT(dummy)];
        c = check[(k /= COUNT(dummy)) % COUNT(check)];
        ls_str_printf(&s, "lockstep: 1\nname: contracts\nmodel: {inventory: models/toy_vlm.yaml}\nfreeze_config: {%s}\n"
                      "distributed: {dp_size: any, multimodal: {%s, vision: {%s%s}%s}}\n"
                      "batch: {microbatches: any, samples: %s, execution: %s%s}\n", f, p, v, r, c, b, e, d);
        judge(ls_str_text(&s), &t);
        ls_str_release(&s);
    }
    printf("contracts: %zu of %zu plans, %zu refused (%zu for a dummy that is not there)\n", t.plans, all, t.refused, t.dummy_missing);
    cr_expect(t.refused > t.plans / 8 && t.refused < t.plans * 3 / 4, "%zu of %zu refused", t.refused, t.plans);
}
