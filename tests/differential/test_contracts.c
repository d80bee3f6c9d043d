/* The set-up contracts against the checker: what they let pass is safe, and what they refuse fails when it is forced. Freezing, policies,
 * overrides, contracts of the batch, dummies and run_dummy_forward, all combined, on the dense and on the expert-parallel path;
 * every few of them here, all with LS_CONTRACTS=all. */
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

/* Paths through the parallelizer: dense; expert groups whose units stay gathered, or do not, or have no outer root. The text model
 * of the last takes in whatever the projector gave last: a second image's features replace the first's, and a dummy's are linked in any
 * case. Contracts expect neither; `merges_last` leaves such batches out. */
static const struct { const char *model, *mesh; bool merges_last; } path[] = {
    { "toy_vlm", "dp_size: any", false },
    { "toy_moe_vlm", "dp_size: any, ep_size: 2", false },
    { "toy_moe_vlm", "dp_size: 4, ep_size: 4, moe: {reshard_after_forward: true}", false },
    { "toy_moe_inner", "dp_size: 4, ep_size: 2, moe: {wrap_outer_model: false}", true } };

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
        /* One asks for what the model does not have, needed or not; the other is AutoModel's own, of a tower that ends up in no unit. */
        bool missing = strcmp(a.compiled.refusal.rule, "dummy_missing") == 0 || strcmp(a.compiled.refusal.rule, "frozen_outside_inner_root") == 0;
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
    enum { STRIDE = 61 };
    struct tally t = { 0 };
    const char *wish = getenv("LS_CONTRACTS");
    size_t all = COUNT(path) * COUNT(freezing) * COUNT(policy) * COUNT(of_vision) * COUNT(run_dummy) * COUNT(execution) * COUNT(samples) * COUNT(dummy) * COUNT(check);
    for (size_t i = 0; i < all; i += wish && strcmp(wish, "all") == 0 ? 1 : STRIDE) {
        size_t k = i;
        const size_t at = i / (all / COUNT(path));
        struct ls_str s = { 0 };
        const char *f = freezing[k % COUNT(freezing)], *p, *v, *r, *e, *b, *d, *c;
        p = policy[(k /= COUNT(freezing)) % COUNT(policy)];
        v = of_vision[(k /= COUNT(policy)) % COUNT(of_vision)];
        r = run_dummy[(k /= COUNT(of_vision)) % COUNT(run_dummy)];
        e = execution[(k /= COUNT(run_dummy)) % COUNT(execution)];
        b = samples[(k /= COUNT(execution)) % COUNT(samples)];
        d = dummy[(k /= COUNT(samples)) % COUNT(dummy)];
        if (path[at].merges_last && (strstr(b, "images: 2") || strstr(d, "linked: false")))
            continue;
        c = check[(k /= COUNT(dummy)) % COUNT(check)];
        ls_str_printf(&s, "lockstep: 1\nname: contracts\nmodel: {inventory: models/%s.yaml}\nfreeze_config: {%s}\n"
                      "distributed: {%s, multimodal: {%s, vision: {%s%s}%s}}\n"
                      "batch: {microbatches: any, samples: %s, execution: %s%s}\n", path[at].model, f, path[at].mesh, p, v, r, c, b, e, d);
        judge(ls_str_text(&s), &t);
        ls_str_release(&s);
    }
    printf("contracts: %zu of %zu plans, %zu refused (%zu for what the model or its root lacks)\n", t.plans, all, t.refused, t.dummy_missing);
    cr_expect(t.refused > t.plans / 8 && t.refused < t.plans * 3 / 4, "%zu of %zu refused", t.refused, t.plans);
}
