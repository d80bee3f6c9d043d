#include "report/summary.h"

#include "base/vec.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

static const char *three_digits(double value, const char *unit, struct ls_arena *arena)
{
    double size = fabs(value);
    return ls_arena_printf(arena, "%.*f %s", size < 9.995 ? 2 : size < 99.95 ? 1 : 0, value, unit);
}

const char *ls_bytes_text(double bytes, struct ls_arena *arena)
{
    static const char *const unit[] = { "KiB", "MiB", "GiB", "TiB" };
    size_t i = 0;
    if (fabs(bytes) < 1000)
        return ls_arena_printf(arena, "%.0f B", bytes);
    for (bytes /= 1024; fabs(bytes) >= 1000 && i < 3; bytes /= 1024)
        i++;
    return three_digits(bytes, unit[i], arena);
}

const char *ls_seconds_text(double seconds, struct ls_arena *arena)
{
    double size = fabs(seconds);
    return size >= 0.9995 ? three_digits(seconds, "s", arena) : size >= 0.9995e-3 ? three_digits(seconds * 1e3, "ms", arena)
                                                                                 : three_digits(seconds * 1e6, "us", arena);
}

/* Also NaNs have their bits. */
static bool same_bits(const struct ls_result_run *a, const struct ls_result_run *b)
{
    return a->steps == b->steps && memcmp(a->loss, b->loss, a->steps * sizeof *a->loss) == 0 &&
           memcmp(a->norm, b->norm, a->steps * sizeof *a->norm) == 0;
}

static void measure(const struct ls_result *r, const struct ls_result_cell *c, struct ls_cell_summary *s, struct ls_arena *arena)
{
    size_t n = 0, warmup = (size_t)r->warmup;
    double *seconds = LS_NEW(arena, double, ls_mul_size(c->runs, (size_t)r->steps) + 1), *rate = LS_NEW(arena, double, ls_mul_size(c->runs, (size_t)r->steps) + 1);
    s->repeats = true;
    for (size_t i = 0; i < c->runs; i++) {
        const struct ls_result_run *x = &c->run[i];
        s->repeats &= same_bits(x, &c->run[0]);
        for (size_t k = warmup; k < x->steps; k++, n++) {
            seconds[n] = x->seconds[k];
            rate[n] = (double)(x->text_tokens[k] + x->media_tokens[k]) / x->seconds[k];
            s->text_tokens += (double)x->text_tokens[k];
            s->media_tokens += (double)x->media_tokens[k];
        }
    }
    s->wrong = !s->repeats;
    s->text_tokens /= (double)n;
    s->media_tokens /= (double)n;
    s->step = ls_spread_of(seconds, n);
    s->rate = ls_spread_of(rate, n);
    for (size_t i = 0; i < c->ranks; i++)
        if (c->memory[i].total > s->peak) {
            s->peak = c->memory[i].total;
            s->worst = i;
        }
    s->loss_first = c->run[0].loss[0];
    s->loss_last = c->run[0].loss[c->run[0].steps - 1];
}

static double median_step(const struct ls_result *r, const struct ls_result_run *x)
{
    return ls_spread_of(x->seconds + r->warmup, (size_t)r->steps).median;
}

static void pair(const struct ls_result *r, const struct ls_result_cell *c, const struct ls_result_cell *base, struct ls_cell_summary *s,
                 struct ls_arena *arena)
{
    double *mine = LS_NEW(arena, double, c->runs + 1), *theirs = LS_NEW(arena, double, c->runs + 1);
    size_t n = 0;
    for (size_t i = 0; i < c->runs; i++) {
        const struct ls_result_run *b = ls_result_run_of(base, c->run[i].round);
        if (!b)
            continue;
        mine[n] = median_step(r, &c->run[i]);
        theirs[n++] = median_step(r, b);
    }
    s->against = ls_paired_of(theirs, mine, n); /* throughputs: the times the other way round */
    s->paired = n > 0 && c != base;
    s->like_baseline = same_bits(&c->run[0], &base->run[0]);
    s->wrong |= !s->like_baseline && !c->other_dtype;
}

static void add_name(struct ls_result_names *n, const char *name)
{
    for (size_t i = 0; i < n->count; i++)
        if (strcmp(n->at[i], name) == 0)
            return;
    n->at[n->count++] = name;
}

bool ls_result_is_busy(const struct ls_result *r) { return r->load > 0.5 * (double)r->cores; }

/* ---- the sentence ---- */

static void add_list(struct ls_str *out, const struct ls_result_names *n)
{
    for (size_t i = 0; i < n->count; i++)
        ls_str_printf(out, "%s%s", !i ? "" : i + 1 < n->count ? ", " : " and ", n->at[i]);
}

struct answer { const struct ls_result *r; const struct ls_summary *s; struct ls_arena *arena; struct ls_result_names safe; };

static size_t index_of(const struct ls_result *r, const struct ls_result_cell *c) { return (size_t)(c - r->cell); }

static void say_verdicts(struct answer *a, struct ls_str *out)
{
    const struct ls_result *r = a->r;
    struct ls_str failing = { 0 };
    a->safe.at = LS_NEW(a->arena, const char *, a->s->policies.count + 1);
    for (size_t p = 0; p < a->s->policies.count; p++) {
        size_t bad = 0;
        for (size_t b = 0; b < a->s->batches.count; b++) {
            const struct ls_result_cell *c = ls_result_cell_of(r, a->s->policies.at[p], a->s->batches.at[b]);
            if (!c || c->check == LS_SAFE)
                continue;
            if (bad++ == 0)
                ls_str_printf(&failing, "%s%s is not safe with ", failing.length ? "; " : "", c->policy);
            else
                ls_str_add(&failing, " and ");
            ls_str_printf(&failing, "%s batches (%s)", c->batches, ls_verdict_name(c->check));
        }
        if (!bad)
            a->safe.at[a->safe.count++] = a->s->policies.at[p];
    }
    if (a->safe.count) {
        add_list(out, &a->safe);
        ls_str_add(out, a->safe.count > 1 ? " are safe with " : " is safe with ");
        add_list(out, &a->s->batches);
        ls_str_add(out, " batches");
    }
    ls_str_printf(out, "%s%s", out->length && failing.length ? "; " : "", ls_str_text(&failing));
    ls_str_release(&failing);
}

static void say_losses(const struct answer *a, struct ls_str *out)
{
    size_t same = 0, other = 0, wrong = 0;
    for (size_t i = 0; i < a->r->cells; i++) {
        const struct ls_cell_summary *s = &a->s->cell[i];
        wrong += s->wrong;
        same += s->paired && s->like_baseline && s->repeats;
        other += s->paired && !s->like_baseline && !s->wrong;
    }
    if (wrong)
        ls_str_add(out, "; losses that should be the same are DIFFERENT");
    else if (other)
        ls_str_add(out, "; losses differ where a policy computes in another dtype");
    else if (same)
        ls_str_printf(out, "; where %s, policies give the same losses bit for bit", a->s->batches.count > 1 ? "safe with the same batches" : "safe");
}

struct cost { const char *batches; const struct ls_cell_summary *s; double more; }; /* more: bytes than the baseline */

static const char *memory_of(const struct answer *a, double more)
{
    return more == 0 ? "as much memory" : ls_arena_printf(a->arena, "%s %s memory", ls_bytes_text(fabs(more), a->arena), more > 0 ? "more" : "less");
}

static const char *speed_of(const struct answer *a, const struct ls_paired *x)
{
    if (x->ratio.count >= LS_PAIRS_LEAST && (x->above == x->ratio.count || x->below == x->ratio.count))
        return ls_arena_printf(a->arena, "%.1f %% %s", 100 * fabs(x->ratio.median - 1), x->ratio.median > 1 ? "faster" : "slower");
    return "not clearly faster or slower";
}

static void say_cost(const struct answer *a, const char *policy, const struct cost *cost, size_t costs, struct ls_str *out)
{
    bool same = true;
    for (size_t i = 1; i < costs; i++)
        same &= cost[i].more == cost[0].more;
    ls_str_printf(out, "; against %s, %s takes ", a->r->baseline, policy);
    for (size_t i = 0; i < (same ? 1 : costs); i++) {
        ls_str_printf(out, "%s%s", i ? " and " : "", memory_of(a, cost[i].more));
        if (!same)
            ls_str_printf(out, " (%s)", cost[i].batches);
    }
    bool alike = true;
    for (size_t i = 1; i < costs; i++)
        alike &= strcmp(speed_of(a, &cost[i].s->against), speed_of(a, &cost[0].s->against)) == 0;
    ls_str_add(out, " and is ");
    for (size_t i = 0; i < (alike ? 1 : costs); i++) {
        ls_str_printf(out, "%s%s", i ? " and " : "", speed_of(a, &cost[i].s->against));
        if (!alike)
            ls_str_printf(out, " (%s)", cost[i].batches);
    }
}

static void say_costs(const struct answer *a, struct ls_str *out)
{
    struct cost *cost = LS_NEW(a->arena, struct cost, a->s->batches.count + 1);
    for (size_t p = 0; p < a->safe.count; p++) {
        size_t costs = 0;
        for (size_t b = 0; b < a->s->batches.count; b++) {
            const struct ls_result_cell *c = ls_result_cell_of(a->r, a->safe.at[p], a->s->batches.at[b]);
            const struct ls_result_cell *base = ls_result_cell_of(a->r, a->r->baseline, a->s->batches.at[b]);
            const struct ls_cell_summary *s = c ? &a->s->cell[index_of(a->r, c)] : NULL;
            if (s && s->paired && base)
                cost[costs++] = (struct cost){ c->batches, s, (double)s->peak - (double)a->s->cell[index_of(a->r, base)].peak };
        }
        if (costs)
            say_cost(a, a->safe.at[p], cost, costs, out);
    }
}

static const char *answer(const struct ls_result *r, const struct ls_summary *s, struct ls_arena *arena)
{
    struct answer a = { .r = r, .s = s, .arena = arena };
    struct ls_str out = { 0 };
    size_t wrong = 0;
    say_verdicts(&a, &out);
    for (size_t i = 0; i < r->cells; i++)
        wrong += !s->cell[i].agrees;
    if (wrong)
        ls_str_printf(&out, "; in %zu of %zu cells the replay DISAGREES with check", wrong, r->cells);
    say_losses(&a, &out);
    say_costs(&a, &out);
    if (ls_result_is_busy(r) && strstr(ls_str_text(&out), " and is "))
        ls_str_printf(&out, "; times are from a busy machine (load %.1f on %" PRIu64 " cores)", r->load, r->cores);
    ls_str_add(&out, ".");
    char *text = ls_arena_str(arena, ls_str_text(&out));
    ls_str_release(&out);
    return text;
}

void ls_summary_of(const struct ls_result *r, struct ls_arena *arena, struct ls_summary *out)
{
    *out = (struct ls_summary){ .cell = LS_NEW(arena, struct ls_cell_summary, r->cells + 1) };
    out->policies.at = LS_NEW(arena, const char *, r->cells + 1);
    out->batches.at = LS_NEW(arena, const char *, r->cells + 1);
    for (size_t i = 0; i < r->cells; i++) {
        const struct ls_result_cell *c = &r->cell[i];
        struct ls_cell_summary *s = &out->cell[i];
        add_name(&out->policies, c->policy);
        add_name(&out->batches, c->batches);
        s->agrees = c->replayed == LS_REPLAYED_NONE || c->replay == c->check;
        s->measured = c->runs > 0;
        if (s->measured)
            measure(r, c, s, arena);
    }
    for (size_t i = 0; i < r->cells; i++) {
        const struct ls_result_cell *c = &r->cell[i], *base = ls_result_cell_of(r, r->baseline, c->batches);
        struct ls_cell_summary *s = &out->cell[i];
        if (s->measured && base && base->runs)
            pair(r, c, base, s, arena);
        s->sim_tokens = c->simulated ? c->sim_tokens_s * c->sim_step_s : 0;
        s->sim_paired = c->simulated && base && base != c && base->simulated && base->sim_tokens_s > 0;
        if (s->sim_paired) {
            s->sim_against = c->sim_tokens_s / base->sim_tokens_s;
            s->sim_peak_more = (double)c->sim_peak_bytes - (double)base->sim_peak_bytes;
        }
    }
    out->answer = answer(r, out, arena);
}
