/* What a rank carries from round to round. Canonical: two histories with the same future have the same text.
 *
 * The executed forward order is a list that grows while the last backward is put off. It is read only through "the unit before my
 * latest recorded forward", so during a round each unit keeps a stack of those neighbours. A round's backward reads no more entries
 * of a unit than its forward wrote, the latest first: what is left at the end of a round is never read, and the order itself shrinks to
 * its last entry. */
#include "fsdp2/internal.h"

#include <stdlib.h>
#include <string.h>

static void *array(size_t count, size_t bytes)
{
    void *out = calloc(count ? count : 1, bytes);
    if (!out)
        ls_out_of_memory(count * bytes);
    return out;
}

struct carried carried_first(struct compiler *c)
{
    const struct ls_plan *plan = c->in.plan;
    struct carried s = { .unit = array(plan->units, sizeof *s.unit), .grad = array(plan->model->params, 1),
                         .accumulated = array(plan->model->params, 1),
                         .sharded = array(plan->model->params, 1), .partial = array(plan->model->params, 1), .context = array(plan->units, sizeof *s.context),
                         .checks_left = c->in.step.validate_rank_uniform };
    for (size_t i = 0; i < plan->units; i++)
        s.unit[i].context = LS_NO_ID;
    return s;
}

#define COPY_VEC(to, from)                                        \
    do {                                                          \
        (to).at = NULL, (to).count = (to).room = 0;               \
        for (size_t n_ = 0; n_ < (from).count; n_++)              \
            ls_push(&(to), (from).at[n_]);                        \
    } while (0)

struct carried carried_copy(struct compiler *c, const struct carried *from)
{
    const struct ls_plan *plan = c->in.plan;
    struct carried s = carried_first(c);
    s.stopped = from->stopped;
    s.contexts = from->contexts;
    s.checks_left = from->checks_left;
    memcpy(s.grad, from->grad, plan->model->params);
    memcpy(s.accumulated, from->accumulated, plan->model->params);
    memcpy(s.sharded, from->sharded, plan->model->params);
    memcpy(s.partial, from->partial, plan->model->params);
    for (size_t i = 0; i < plan->units; i++) {
        s.unit[i] = from->unit[i];
        COPY_VEC(s.unit[i].before, from->unit[i].before);
    }
    for (size_t i = 0; i < from->contexts; i++) {
        s.context[i] = from->context[i];
        COPY_VEC(s.context[i].reduces, from->context[i].reduces);
    }
    return s;
}

void carried_release(const struct compiler *c, struct carried *s)
{
    for (size_t i = 0; i < c->in.plan->units; i++)
        ls_vec_release(&s->unit[i].before);
    for (size_t i = 0; i < c->in.plan->units; i++)
        ls_vec_release(&s->context[i].reduces);
    free(s->unit);
    free(s->grad);
    free(s->accumulated);
    free(s->sharded);
    free(s->partial);
    free(s->context);
    *s = (struct carried){ 0 };
}

static void add_id(struct ls_str *out, uint32_t id)
{
    if (id == LS_NO_ID)
        ls_str_add(out, "-");
    else
        ls_str_printf(out, "%u", id);
}

void carried_text(const struct compiler *c, const struct carried *s, struct ls_str *out)
{
    const struct ls_plan *plan = c->in.plan;
    if (s->stopped) { /* nothing follows, whatever it carries */
        ls_str_add(out, "stopped");
        return;
    }
    ls_str_printf(out, "checks %llx;", (unsigned long long)s->checks_left);
    for (size_t i = 0; i < plan->units; i++) {
        const struct unit_state *u = &s->unit[i];
        /* Training states end a round IDLE or as backward left them; they decide what the next hook does. */
        ls_str_printf(out, "%d%d%d%d%d%d%d%d%d", (int)u->state, (int)u->group, (int)u->sharding, u->ever_unsharded,
                      (int)u->gather_pending, (int)u->post_reduce, u->all_reduce_kept, u->partial, u->small_event);
        ls_str_add(out, " ");
        add_id(out, u->context);
        if (u->partial || u->all_reduce_kept)
            ls_str_printf(out, " slots %llu %u %u", (unsigned long long)(u->partial ? u->partial_elements : 0), u->partial ? u->partial_slot : 0, u->all_reduce_kept ? u->all_reduce_slot : 0);
        if (u->modules_left)
            ls_str_printf(out, " left %llx", (unsigned long long)u->modules_left);
        bool any = false;
        for (size_t p = 0; p < plan->unit[i].params; p++)
            any |= (u->partial && s->partial[plan->unit[i].param[p]]) || s->grad[plan->unit[i].param[p]] || s->accumulated[plan->unit[i].param[p]] || s->sharded[plan->unit[i].param[p]];
        if (any) {
            ls_str_add(out, " grad ");
            for (size_t p = 0; p < plan->unit[i].params; p++) {
                uint32_t at = plan->unit[i].param[p];
                ls_str_printf(out, "%d", s->grad[at] + 2 * s->accumulated[at]);
                if (s->sharded[at])
                    ls_str_printf(out, "s%d ", s->sharded[at]);
                if (u->partial && s->partial[at])
                    ls_str_add(out, "p");
            }
        }
        ls_str_add(out, ";");
    }
    for (size_t i = 0; i < plan->model->params; i++)
        if (plan->owner[i] == LS_NO_ID && s->sharded[i])
            ls_str_printf(out, "free %zu;", i);
    for (size_t i = 0; i < s->contexts; i++) {
        const struct context_state *k = &s->context[i];
        ls_str_printf(out, "root %u %d ", k->root, k->callback_queued);
        add_id(out, k->forward_root);
        ls_str_add(out, " ");
        add_id(out, k->kept_gather);
        if (k->kept_gather != LS_NO_ID)
            ls_str_printf(out, "/%u", k->kept_slot);
        ls_str_add(out, " ");
        add_id(out, k->last_forward);
        ls_str_add(out, k->all_reduce_first ? " A" : " ");
        if (plan->unit[k->root].always_reduces) /* else every microbatch sets it anew */
            ls_str_add(out, k->last_backward ? "l" : "n");
        add_id(out, k->last_reduced[0]);
        ls_str_add(out, " ");
        add_id(out, k->last_reduced[1]);
        for (size_t n = 0; n < k->reduces.count; n++)
            ls_str_printf(out, " %u/%u", k->reduces.at[n].unit, k->reduces.at[n].slot);
        ls_str_add(out, ";");
    }
}

uint32_t carried_intern(struct compiler *c, const struct carried *s)
{
    struct ls_str text = { 0 };
    carried_text(c, s, &text);
    uint32_t id = ls_name_id(c->state_text, ls_str_text(&text)) - 1; /* 0 is the empty text */
    ls_str_release(&text);
    if (id == c->state.count)
        ls_push(&c->state, carried_copy(c, s));
    return id;
}
