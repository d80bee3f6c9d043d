/* step and loop: what a training loop does around forward and backward, and what its ranks decide by themselves. */
#include "scenario/internal.h"

#include <string.h>

/* `any` (for reasons of the rank's own), a condition of the flow, or a list of conditions. */
static enum ls_code load_when(struct loader *l, const struct ls_yaml_node *n, struct ls_named *out)
{
    const struct ls_model *m = &l->s->model;
    const struct ls_yaml_node *const *item = n->kind == LS_YAML_LIST ? n->item : &n;
    size_t count = n->kind == LS_YAML_LIST ? n->count : 1;
    if (ls_yaml_is_text(n, "any") || ls_yaml_is_text(n, "always")) {
        out->when = ls_yaml_is_text(n, "any") ? LS_WHEN_ANY : LS_WHEN_ALWAYS;
        return LS_OK;
    }
    if (!count)
        return ls_fail(l->err, LS_EINPUT, n->at, "'when' is an empty list");
    out->when = LS_WHEN_HELD;
    for (size_t i = 0; i < count; i++) {
        const char *names[LS_CONDITIONS_MAX + 3] = { 0 };
        size_t which = 0;
        for (size_t c = 0; c < m->conditions; c++)
            names[c] = ls_name_text(l->s->names, m->condition[c].name);
        if (n->kind != LS_YAML_LIST)
            names[m->conditions] = "any", names[m->conditions + 1] = "always";
        LS_TRY(ls_yaml_choice(item[i], "when", names, &which, l->err));
        out->conditions |= UINT32_C(1) << which;
    }
    return LS_OK;
}

/* Names, or {name: acc, when: image}. `always_only`: no `when`. */
static enum ls_code load_named(struct loader *l, const struct ls_yaml_node *n, const char *name, bool always_only, struct ls_named **out,
                               size_t *count)
{
    static const char *const keys[] = { "name", "when", NULL };
    *count = 0;
    if (!n)
        return LS_OK;
    LS_TRY(ls_yaml_list(n, name, l->err));
    *out = LS_NEW(l->s->arena, struct ls_named, n->count + 1);
    for (size_t i = 0; i < n->count; i++) {
        const struct ls_yaml_node *item = n->item[i], *label = item, *when = NULL;
        const char *text;
        if (item->kind == LS_YAML_MAP && !always_only) {
            LS_TRY(ls_yaml_check_keys(item, name, keys, l->err));
            if (!(label = ls_yaml_get(item, "name")))
                return ls_fail(l->err, LS_EINPUT, item->at, "'name' is missing in '%s'", name);
            when = ls_yaml_get(item, "when");
        }
        LS_TRY(ls_yaml_text(label, name, &text, l->err));
        struct ls_named *to = &(*out)[i];
        *to = (struct ls_named){ .name = ls_name_id(l->s->names, text), .at = item->at };
        if (when)
            LS_TRY(load_when(l, when, to));
        for (size_t k = 0; k < i; k++)
            if ((*out)[k].name == to->name)
                return ls_fail(l->err, LS_EINPUT, label->at, "'%s' names '%.60s' twice", name, text);
        *count = i + 1;
    }
    return LS_OK;
}

static enum ls_code load_agree(struct loader *l, const struct ls_yaml_node *map, bool join, enum ls_agree *out)
{
    static const char *const names[] = { "none", "all_reduce", NULL }, *const with_join[] = { "none", "all_reduce", "join", NULL };
    const struct ls_yaml_node *v = ls_yaml_get(map, "agree");
    size_t which = 0;
    if (v)
        LS_TRY(ls_yaml_choice(v, "agree", join ? with_join : names, &which, l->err));
    *out = (enum ls_agree)which;
    return LS_OK;
}

/* One of two words; *out: the second. */
static enum ls_code load_word(struct loader *l, const struct ls_yaml_node *map, const char *key, const char *no, const char *yes, bool *out)
{
    const char *const names[] = { no, yes, NULL };
    const struct ls_yaml_node *v = ls_yaml_get(map, key);
    size_t which = 0;
    if (!v)
        return LS_OK;
    LS_TRY(ls_yaml_choice(v, key, names, &which, l->err));
    *out = which == 1;
    return LS_OK;
}

static enum ls_code load_non_finite(struct loader *l, const struct ls_yaml_node *n)
{
    static const char *const keys[] = { "action", "agree", NULL };
    struct ls_loop *p = &l->s->loop;
    LS_TRY(ls_yaml_check_keys(n, "non_finite", keys, l->err));
    if (!ls_yaml_get(n, "action"))
        return ls_fail(l->err, LS_EINPUT, n->at, "'action' is missing in 'non_finite'");
    p->present = p->non_finite = true;
    p->non_finite_at = n->at;
    LS_TRY(load_word(l, n, "action", "skip_microbatch", "raise", &p->raise));
    return load_agree(l, n, false, &p->non_finite_agree);
}

static enum ls_code load_metrics(struct loader *l, const struct ls_yaml_node *n)
{
    struct ls_step_policy *step = &l->s->step;
    struct ls_loop *p = &l->s->loop;
    LS_TRY(load_named(l, ls_yaml_get(n, "metrics"), "metrics", false, &p->metric, &p->metrics));
    LS_TRY(load_word(l, n, "metric_names", "own", "agreed", &p->names_agreed));
    bool plain = !p->names_agreed;
    for (size_t i = 0; i < p->metrics; i++)
        plain = plain && p->metric[i].when == LS_WHEN_ALWAYS;
    if (!plain) {
        p->present = true;
        return LS_OK;
    }
    step->metric = LS_NEW(l->s->arena, uint32_t, p->metrics ? p->metrics : 1);
    for (size_t i = 0; i < p->metrics; i++)
        step->metric[i] = p->metric[i].name;
    step->metrics = p->metrics;
    p->metrics = 0;
    return LS_OK;
}

/* {name: window, modules: [globs]}: the modules whose forward begins with a vote. */
static enum ls_code load_vote(struct loader *l, const struct ls_yaml_node *n)
{
    static const char *const keys[] = { "name", "modules", NULL };
    const struct ls_model *m = &l->s->model;
    const struct ls_yaml_node *v;
    const char *const *glob, *name;
    size_t globs;
    LS_TRY(ls_yaml_check_keys(n, "forward_vote", keys, l->err));
    for (size_t i = 0; i < 2; i++)
        if (!ls_yaml_get(n, keys[i]))
            return ls_fail(l->err, LS_EINPUT, n->at, "'%s' is missing in 'forward_vote'", keys[i]);
    if (l->s->ddp.present)
        return ls_fail(l->err, LS_EINPUT, n->at, "'forward_vote' votes over dp_shard, which DDP lacks");
    LS_TRY(ls_yaml_text(ls_yaml_get(n, "name"), "name", &name, l->err));
    v = ls_yaml_get(n, "modules");
    LS_TRY(ls_load_texts(l, v, "modules", &glob, &globs));
    bool *votes = LS_NEW(l->s->arena, bool, m->modules + 1);
    for (size_t g = 0; g < globs; g++) {
        bool any = false;
        for (size_t i = 0; i < m->modules; i++)
            if (ls_glob(glob[g], ls_name_text(m->names, m->module[i].name)))
                votes[i] = any = true;
        if (!any)
            return ls_fail(l->err, LS_EINPUT, v->at, "'forward_vote': no module matches '%.200s'", glob[g]);
    }
    l->s->step.votes = votes;
    l->s->step.vote = ls_name_id(l->s->names, name);
    return LS_OK;
}

static enum ls_code load_step(struct loader *l, const struct ls_yaml_node *n)
{
    static const char *const keys[] = { "clip_grad_norm", "metrics", "metric_names", "token_counts", "forward_reduce", "grad_scaler",
                                        "non_finite", "optimizer_made", "forward_vote", NULL };
    static const char *const scalers[] = { "none", "sharded", "local", NULL };
    struct ls_step_policy *p = &l->s->step;
    struct ls_loop *o = &l->s->loop;
    const struct ls_yaml_node *v;
    LS_TRY(ls_yaml_check_keys(n, "step", keys, l->err));
    if (!p->at.line)
        p->at = n->at;
    if ((v = ls_yaml_get(n, "clip_grad_norm")) && ls_yaml_is_text(v, "local") && !v->quoted) {
        p->clip_local = true;
        p->at = v->at;
    } else if (v && ls_yaml_is_text(v, "global") && !v->quoted) {
        p->clip_grad_norm = true;
    } else if (v) {
        enum ls_code rc = ls_yaml_bool(v, "clip_grad_norm", &p->clip_grad_norm, l->err);
        if (rc != LS_OK)
            ls_hint(l->err, "true (or global), false, or local: each rank by the norm of its own shards");
        LS_TRY(rc);
    }
    if ((v = ls_yaml_get(n, "forward_vote")))
        LS_TRY(load_vote(l, v));
    LS_TRY(load_word(l, n, "optimizer_made", "after_sharding", "before_sharding", &p->stale_optimizer));
    LS_TRY(load_metrics(l, n));
    LS_TRY(load_named(l, ls_yaml_get(n, "token_counts"), "token_counts", true, &o->token, &o->tokens));
    LS_TRY(load_named(l, ls_yaml_get(n, "forward_reduce"), "forward_reduce", false, &o->forward, &o->forwards));
    o->present = o->present || o->tokens || o->forwards;
    if ((v = ls_yaml_get(n, "grad_scaler"))) {
        size_t which = 0;
        LS_TRY(ls_yaml_choice(v, "grad_scaler", scalers, &which, l->err));
        o->scaler = (enum ls_scaler)which;
        o->scaler_at = v->at;
        o->present = o->present || which;
    }
    return (v = ls_yaml_get(n, "non_finite")) ? load_non_finite(l, v) : LS_OK;
}

static enum ls_code load_microbatches(struct loader *l, const struct ls_yaml_node *n)
{
    static const char *const keys[] = { "counts", "agree", NULL };
    struct ls_loop *p = &l->s->loop;
    LS_TRY(ls_yaml_check_keys(n, "microbatches", keys, l->err));
    p->microbatches_at = n->at;
    LS_TRY(load_word(l, n, "counts", "equal", "own", &p->own_microbatches));
    if (p->own_microbatches && l->s->batch.microbatches == 1)
        return ls_fail(l->err, LS_EINPUT, n->at, "'counts' is own, but 'batch.microbatches' allows one");
    return load_agree(l, n, false, &p->microbatches_agree);
}

static enum ls_code load_data(struct loader *l, const struct ls_yaml_node *n)
{
    static const char *const keys[] = { "ends", "agree", NULL };
    struct ls_loop *p = &l->s->loop;
    LS_TRY(ls_yaml_check_keys(n, "data", keys, l->err));
    p->data_at = n->at;
    LS_TRY(load_word(l, n, "ends", "together", "own", &p->own_data));
    LS_TRY(load_agree(l, n, true, &p->data_agree));
    if (p->data_agree == LS_AGREE_JOIN)
        return ls_fail(l->err, LS_EINPUT, ls_yaml_get(n, "agree")->at, "'join' is DDP's; FSDP2 has no join");
    return LS_OK;
}

static enum ls_code load_validation(struct loader *l, const struct ls_yaml_node *n)
{
    static const char *const keys[] = { "batches", "ranks", "metrics", "agree", NULL };
    struct ls_loop *p = &l->s->loop;
    bool main_only = false;
    LS_TRY(ls_yaml_check_keys(n, "validation", keys, l->err));
    p->eval_at = n->at;
    LS_TRY(load_word(l, n, "batches", "equal", "own", &p->own_eval_batches));
    LS_TRY(load_word(l, n, "ranks", "all", "main", &main_only));
    p->eval_ranks = main_only ? LS_WHO_MAIN : LS_WHO_ALL;
    LS_TRY(load_named(l, ls_yaml_get(n, "metrics"), "metrics", true, &p->eval_metric, &p->eval_metrics));
    return load_agree(l, n, false, &p->eval_agree);
}

static enum ls_code load_save(struct loader *l, const struct ls_yaml_node *n)
{
    static const char *const keys[] = { "state", "ranks", "agree", NULL }, *const who[] = { "all", "main", "own", NULL };
    struct ls_loop *p = &l->s->loop;
    const struct ls_yaml_node *v;
    size_t which = 0;
    LS_TRY(ls_yaml_check_keys(n, "save", keys, l->err));
    p->save_at = n->at;
    if (!ls_yaml_get(n, "state"))
        return ls_fail(l->err, LS_EINPUT, n->at, "'state' is missing in 'save'");
    LS_TRY(load_word(l, n, "state", "sharded", "full", &p->save_full));
    if ((v = ls_yaml_get(n, "ranks")))
        LS_TRY(ls_yaml_choice(v, "ranks", who, &which, l->err));
    p->save_ranks = (enum ls_who)which;
    LS_TRY(load_agree(l, n, false, &p->save_agree));
    if (p->save_agree && p->save_ranks != LS_WHO_OWN)
        return ls_fail(l->err, LS_EINPUT, ls_yaml_get(n, "agree")->at, "'agree' goes with 'ranks: own': otherwise nothing is left to decide");
    return LS_OK;
}

static bool listed(const struct ls_scenario *s, enum ls_round_kind kind)
{
    for (size_t i = 0; i < s->batch.rounds; i++)
        if (s->batch.schedule[i] == kind)
            return true;
    for (size_t i = 0; i < s->loop.afters; i++)
        if (s->loop.after[i] == kind)
            return true;
    return false;
}

static enum ls_code load_loop(struct loader *l, const struct ls_yaml_node *n)
{
    static const char *const keys[] = { "microbatches", "data", "validation", "early_stop", "save", "after", NULL };
    static const char *const stop_keys[] = { "agree", NULL };
    struct ls_loop *p = &l->s->loop;
    const struct ls_yaml_node *v;
    LS_TRY(ls_yaml_check_keys(n, "loop", keys, l->err));
    p->present = true;
    p->at = n->at;
    if ((v = ls_yaml_get(n, "microbatches")))
        LS_TRY(load_microbatches(l, v));
    if ((v = ls_yaml_get(n, "data")))
        LS_TRY(load_data(l, v));
    if ((v = ls_yaml_get(n, "early_stop"))) {
        LS_TRY(ls_yaml_check_keys(v, "early_stop", stop_keys, l->err));
        p->early_stop = true;
        p->stop_at = v->at;
        LS_TRY(load_agree(l, v, false, &p->stop_agree));
    }
    if ((v = ls_yaml_get(n, "after")))
        LS_TRY(ls_load_rounds(l, v, "after", true, &p->after, &p->afters));
    if ((v = ls_yaml_get(n, "validation"))) {
        if (!listed(l->s, LS_ROUND_EVAL))
            return ls_fail(l->err, LS_EINPUT, v->at, "'validation' never happens: neither 'batch.schedule' nor 'loop.after' lists eval");
        LS_TRY(load_validation(l, v));
    }
    if ((v = ls_yaml_get(n, "save"))) {
        if (!listed(l->s, LS_ROUND_SAVE) && !listed(l->s, LS_ROUND_NO_SAVE))
            return ls_fail(l->err, LS_EINPUT, v->at, "'save' never happens: neither 'batch.schedule' nor 'loop.after' lists save");
        LS_TRY(load_save(l, v));
    }
    return LS_OK;
}

enum ls_code ls_load_step(struct loader *l)
{
    const struct ls_yaml_node *step = section(l, "step"), *loop = section(l, "loop");
    struct ls_scenario *s = l->s;
    s->loop.at = step ? step->at : s->batch.at;
    if (step)
        LS_TRY(load_step(l, step));
    if (loop)
        LS_TRY(load_loop(l, loop));
    if ((listed(s, LS_ROUND_SAVE) || listed(s, LS_ROUND_NO_SAVE)) && !s->loop.save_at.line)
        return ls_fail(l->err, LS_EINPUT, s->batch.at, "a round 'save' needs 'loop.save', which says what is saved and by whom");
    if (listed(s, LS_ROUND_SKIPPED) && !s->loop.non_finite)
        return ls_fail(l->err, LS_EINPUT, s->batch.at, "a round 'skipped' needs 'step.non_finite', which skips it");
    if (listed(s, LS_ROUND_EVAL_END) && !loop)
        return ls_fail(l->err, LS_EINPUT, s->batch.at, "a round 'eval_end' needs 'loop.validation'");
    ls_loop_events(&s->loop, s->names, s->arena);
    return LS_OK;
}

static enum ls_code load_cell(struct loader *l, const struct ls_yaml_node *n, uint32_t *out)
{
    const struct ls_loop *p = &l->s->loop;
    const char *names[34];
    for (size_t i = 0; i < p->events; i++)
        names[i] = ls_name_text(l->s->names, p->event[i].name);
    names[p->events] = NULL;
    LS_TRY(ls_yaml_list(n, "events", l->err));
    for (size_t i = 0; i < n->count; i++) {
        size_t which = 0;
        if (!p->events)
            return ls_fail(l->err, LS_EINPUT, n->item[i]->at, "'events' is not empty, but ranks decide nothing by themselves in this loop");
        LS_TRY(ls_yaml_choice(n->item[i], "events", names, &which, l->err));
        *out |= UINT32_C(1) << which;
    }
    return LS_OK;
}

enum ls_code ls_load_events(struct loader *l)
{
    struct ls_batch *b = &l->s->batch;
    if (l->s->loop.events > 31)
        return ls_fail(l->err, LS_EINPUT, l->s->loop.at, "ranks decide %zu things by themselves; 31 are possible", l->s->loop.events);
    if (b->execution != LS_EXEC_TABLE)
        return LS_OK;
    const struct ls_yaml_node *table = ls_yaml_get(ls_yaml_get(section(l, "batch"), "execution"), "table");
    for (size_t r = 0; r < b->rows; r++)
        for (size_t c = 0; c < b->columns; c++) {
            const struct ls_yaml_node *cell = table->item[r]->item[c], *events = cell->kind == LS_YAML_MAP ? ls_yaml_get(cell, "events") : NULL;
            if (!events)
                continue;
            if (!b->events)
                b->events = LS_NEW(l->s->arena, uint32_t, ls_mul_size(b->rows, b->columns));
            LS_TRY(load_cell(l, events, &b->events[r * b->columns + c]));
        }
    return LS_OK;
}
