#include "agreement.h"

#include "brute.h"
#include "check/check.h"
#include "check/gradient.h"
#include "random_scenario.h"
#include "scenario/scenario.h"

#include <stdio.h>

enum { REPLICAS = 6, ROUNDS = 5, RUNS = 40, TOTAL = 1200 };

static bool disagree(struct ls_str *why, const char *text, const struct ls_error *err, const char *what)
{
    ls_str_printf(why, "%s %s\n%s", what, err->text, text);
    return false;
}

static void count(struct agreement_part *part, bool on, bool proved)
{
    part->scenarios += on;
    part->proved += on && proved;
}

static void count_parts(struct agreement *a, const struct ls_scenario *s, const struct ls_compiled *c, bool proved)
{
    bool around = s->loop.present || s->step.metrics > 0, experts = s->mesh.ep > 1;
    count(&a->around, around, proved);
    count(&a->experts, experts, proved);
    count(&a->experts_around, experts && around, proved);
    count(&a->ddp, s->ddp.present, proved);
    count(&a->hybrid, (c->system.free_dims & LS_DIM_REPLICATE) && (c->system.free_dims & LS_DIM_SHARD), proved);
}

bool agreement_add(struct agreement *a, uint64_t seed, struct ls_str *why)
{
    struct ls_str text = { 0 };
    random_scenario(seed, &text);
    struct ls_arena arena;
    ls_arena_init(&arena, 0);
    struct ls_names *names = ls_names_open();
    struct ls_scenario s;
    struct ls_compiled c;
    struct ls_error err = { 0 };
    struct ls_variant as_written = LS_AS_WRITTEN;
    struct ls_check_result r;
    struct ls_brute b;
    bool ok = true, proved = false;
    if (ls_scenario_read(text.text, text.length, "random.yaml", &arena, names, &s, &err) != LS_OK) {
        ok = disagree(why, text.text, &err, "not read:");
        goto out;
    }
    if (ls_scenario_compile(&s, &as_written, true, &c, &err) != LS_OK) {
        ok = disagree(why, text.text, &err, "not compiled:");
        goto out;
    }
    if (c.refusal.rule) {
        a->refused++;
        goto compiled;
    }
    struct ls_check_options options = { .replicas_max = 4 };
    if (ls_check_system(&c.system, &options, &arena, &r, &err) != LS_OK) {
        ok = disagree(why, text.text, &err, "not checked:");
        goto compiled;
    }
    struct ls_brute_options bounds = { .replicas_max = REPLICAS, .rounds_max = ROUNDS, .runs_max = RUNS, .total_max = TOTAL, .seed = seed };
    switch (r.verdict) {
    case LS_UNDECIDED:
        a->undecided++;
        ok = disagree(why, text.text, &err, r.limit ? r.limit : "undecided");
        break;
    case LS_SAFE:
        proved = true;
        a->proved++;
        ls_brute_force(&c.system, &bounds, &arena, &b);
        a->runs += b.runs;
        a->exhausted += b.complete;
        if (b.failed) {
            a->proved_but_fails++;
            ok = disagree(why, text.text, &err, "proved, but a run fails:");
        }
        break;
    default:
        a->refuted++;
        if (!r.witness || ls_brute_run(&c.system, &r.witness->assignment) == LS_SAFE || !ls_brute_allowed(&c.system, &r.witness->assignment)) {
            a->refuted_without_run++;
            ok = disagree(why, text.text, &err, "refuted, but the witness does not fail or is not allowed:");
        } else if (r.witness->minimal) {
            a->minimal++;
            bounds.below_replicas = r.witness->assignment.size[0] * r.witness->assignment.size[1];
            bounds.below_rounds = r.witness->assignment.rounds;
            ls_brute_force(&c.system, &bounds, &arena, &b);
            a->runs += b.runs;
            if (b.failed) {
                a->not_minimal++;
                ok = disagree(why, text.text, &err, "not minimal:");
            }
        }
        break;
    }
    if (ok && r.verdict == LS_SAFE) { /* the same with gradients: they never turn a safe order into an unsafe one */
        options.gradients = options.races = true;
        options.mean = s.mean;
        if (ls_check_system(&c.system, &options, &arena, &r, &err) != LS_OK)
            ok = disagree(why, text.text, &err, "not checked with gradients:");
        else if (r.verdict != LS_SAFE && r.verdict != LS_LOST_GRADIENT && r.verdict != LS_WRONG_SCALE)
            ok = disagree(why, text.text, &err, "gradients change the order's verdict:");
        else
            a->gradients_checked++;
    }
    if (ok)
        count_parts(a, &s, &c, proved);
compiled:
    ls_compiled_release(&c);
out:
    ls_str_release(&text);
    ls_names_close(names);
    ls_arena_release(&arena);
    return ok;
}

static void print_part(const char *what, const struct agreement_part *part)
{
    printf("  %s: %zu scenarios, %zu proved, %zu refuted\n", what, part->scenarios, part->proved, part->scenarios - part->proved);
}

void agreement_print(const struct agreement *a)
{
    printf("proved but brute force fails %zu, refuted without an executable witness %zu, undecided %zu "
           "(proved %zu, of which brute force ran all within its bounds in %zu; refuted %zu, %zu of them by the smallest run; refused by set-up %zu; runs %zu)\n",
           a->proved_but_fails, a->refuted_without_run, a->undecided, a->proved, a->exhausted, a->refuted, a->minimal, a->refused, a->runs);
    print_part("loops, metrics or reductions of the step", &a->around);
    print_part("expert groups", &a->experts);
    print_part("both", &a->experts_around);
    print_part("DDP", &a->ddp);
    print_part("hybrid sharding", &a->hybrid);
}
