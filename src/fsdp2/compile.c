#include "fsdp2/compile.h"

#include "base/hash.h"
#include "fsdp2/internal.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void run_release(struct run *r)
{
    for (size_t i = 0; i < r->node.count; i++) {
        ls_vec_release(&r->node.at[i].next);
        ls_vec_release(&r->node.at[i].hooks);
    }
    for (size_t i = 0; i < r->regions.count; i++)
        ls_vec_release(&r->regions.at[i].in);
    ls_vec_release(&r->node);
    ls_vec_release(&r->regions);
    ls_vec_release(&r->callbacks);
    ls_vec_release(&r->shares);
    ls_vec_release(&r->linked);
    ls_vec_release(&r->ops);
    free(r->accumulate);
    carried_release(r->c, &r->now);
}

/* is_last_backward is one flag of all units of a root; setting it on any of them sets it for all. Where the root itself is not
 * reached, AutoModel's two calls are what sets it: before the first and before the last microbatch. */
static void set_last_backward(struct run *r)
{
    const struct ls_plan *plan = r->c->in.plan;
    for (uint32_t k = 0; k < r->now.contexts; k++) {
        bool root = !plan->unit[r->now.context[k].root].always_reduces, any = false;
        for (uint32_t u = 0; u < plan->units; u++)
            any |= r->now.unit[u].context == k && !plan->unit[u].always_reduces;
        if (root || (any && (r->round->microbatch == 0 || r->round->last)))
            r->now.context[k].last_backward = r->round->is_last_backward;
    }
}

static void microbatch(struct run *r)
{
    const struct ls_model *m = r->c->in.plan->model;
    if (!r->eval)
        set_last_backward(r);
    r->accumulate = malloc((m->params + 1) * sizeof *r->accumulate);
    if (!r->accumulate)
        ls_out_of_memory(m->params * sizeof *r->accumulate);
    for (size_t i = 0; i < m->params; i++)
        r->accumulate[i] = LS_NO_ID;
    step_begin(r);
    uint32_t loss = forward_run(r);
    bool skipped = r->round->kind == LS_ROUND_SKIPPED; /* the graph is dropped without a backward */
    if (!r->now.stopped && loss != LS_NO_ID && !skipped)
        backward_run(r, loss);
    else if (!r->now.stopped && !r->eval && !skipped)
        emit_stop(r, LS_NO_ID, "loss_without_gradient: nothing that the loss depends on requires gradient");
    for (size_t i = 0; i < r->c->in.plan->units; i++)
        r->now.unit[i].before.count = 0; /* never read again, see state.c */
    /* Gradients of parameters in no unit stay where they are and decide nothing else. */
    for (size_t i = 0; i < m->params; i++)
        if (r->c->in.plan->owner[i] == LS_NO_ID) {
            if (r->now.grad[i] && r->c->in.plan->experts.ep > 1) /* that there is one decides what is clipped */
                r->now.sharded[i] = SHARDED_GRAD_OWN;
            r->now.grad[i] = GRAD_NONE;
        }
}

static const struct ls_segment *keep_segment(struct compiler *c, const ls_op_vec *ops)
{
    struct ls_segment *s = LS_NEW(c->arena, struct ls_segment, 1);
    s->op = ls_arena_copy(c->arena, ops->at, ops->count * sizeof *ops->at);
    s->count = ops->count;
    s->hash = ls_segment_hash(s->op, s->count);
    return s;
}

static size_t memo_probe(const struct compiler *c, uint32_t state, uint32_t round, uint32_t letter)
{
    uint64_t h = ls_hash_mix(ls_hash_mix(state, round), letter);
    size_t i = (size_t)h & (c->memo_slots - 1);
    while (c->memo_slot[i]) {
        const struct memo *m = &c->memo.at[c->memo_slot[i] - 1];
        if (m->state == state && m->round == round && m->letter == letter)
            break;
        i = (i + 1) & (c->memo_slots - 1);
    }
    return i;
}

static void memo_grow(struct compiler *c)
{
    if ((c->memo.count + 1) * 2 <= c->memo_slots)
        return;
    c->memo_slots = c->memo_slots ? c->memo_slots * 2 : 64;
    free(c->memo_slot);
    c->memo_slot = calloc(c->memo_slots, sizeof *c->memo_slot);
    if (!c->memo_slot)
        ls_out_of_memory(c->memo_slots * sizeof *c->memo_slot);
    for (size_t i = 0; i < c->memo.count; i++)
        c->memo_slot[memo_probe(c, c->memo.at[i].state, c->memo.at[i].round, c->memo.at[i].letter)] = (uint32_t)i + 1;
}

static enum ls_code step(struct ls_transducer *t, uint32_t state, uint32_t round, uint32_t letter, struct ls_step *out,
                         struct ls_error *err)
{
    struct compiler *c = (struct compiler *)t;
    assert(state < c->state.count && round < c->in.rounds->count && letter < c->in.letters->count);
    memo_grow(c);
    size_t slot = memo_probe(c, state, round, letter);
    if (c->memo_slot[slot]) {
        *out = c->memo.at[c->memo_slot[slot] - 1].step;
        return LS_OK;
    }
    struct run r = { .c = c, .letter = &c->in.letters->letter[letter], .round = &c->in.rounds->round[round], .region = LS_NO_ID,
                     .now = carried_copy(c, &c->state.at[state]), .rc = LS_OK, .err = err };
    if (!r.now.stopped)
        switch (r.round->kind) {
        case LS_ROUND_MICRO:
        case LS_ROUND_SKIPPED:
            microbatch(&r);
            break;
        case LS_ROUND_EVAL:
            r.eval = true;
            microbatch(&r);
            break;
        case LS_ROUND_STEP:
            step_end(&r);
            break;
        case LS_ROUND_IDLE:
        case LS_ROUND_EVAL_END: /* the loop's own affair */
        case LS_ROUND_SAVE:
        case LS_ROUND_NO_SAVE:
        case LS_ROUND_KINDS:
            break;
        }
    emit_close_compute(&r);
    enum ls_code rc = r.rc;
    if (rc == LS_OK) {
        const struct ls_segment **role = LS_NEW(c->arena, const struct ls_segment *, 1);
        role[0] = keep_segment(c, &r.ops);
        struct memo m = { state, round, letter, { .role = role, .next = carried_intern(c, &r.now) } };
        if (c->state.count > c->t.states_max)
            rc = ls_fail(err, LS_EUNDECIDED, LS_NOWHERE, "a rank has more than %zu states: the plan does not settle", c->t.states_max);
        *out = m.step;
        ls_push(&c->memo, m);
        c->memo_slot[slot] = (uint32_t)c->memo.count;
    }
    run_release(&r);
    return rc;
}

static const char *letter_name(const struct ls_transducer *t, uint32_t letter)
{
    const struct compiler *c = (const struct compiler *)t;
    return ls_name_text(c->names, c->in.letters->letter[letter].name);
}

uint32_t add_comm(struct compiler *c, const char *name, uint32_t free_dims, uint32_t small)
{
    uint32_t id = ls_tables_comm(c->in.tables, name);
    c->in.tables->comm.at[id].free_dims = free_dims;
    c->in.tables->comm.at[id].small = small;
    return id;
}

static void open_comms(struct compiler *c)
{
    const struct ls_plan *plan = c->in.plan;
    uint32_t shard = c->shard > 1 ? LS_DIM_SHARD : 0, replicate = c->replicate > 1 ? LS_DIM_REPLICATE : 0;
    c->comm_shard = c->comm_reduce = c->comm_replicate = c->comm_dp = LS_NO_ID;
    if (shard)
        c->comm_shard = c->comm_reduce = add_comm(c, "dp_shard", shard, 0);
    if (shard && plan->runtime.separate_reduce_scatter_group)
        c->comm_reduce = add_comm(c, "dp_shard_rs", shard, 0);
    if (replicate)
        c->comm_replicate = add_comm(c, "dp_replicate", replicate, 0);
    bool biases = false;
    for (size_t i = 0; i < plan->model->moes; i++)
        biases = biases || (plan->experts.ep > 1 && replicate && plan->model->moe[i].bias_update);
    if (c->in.step.metrics || c->in.step.validate_rank_uniform || biases)
        c->comm_dp = plan->runtime.default_group ? c->comm_shard : add_comm(c, "dp", shard | replicate, 0);
    experts_open(c);
    c->comm_small = LS_NEW(c->arena, uint32_t, plan->units);
    for (size_t i = 0; i < plan->units; i++) {
        const struct ls_unit *u = &plan->unit[i];
        c->comm_small[i] = LS_NO_ID;
        if (u->reshard != LS_RESHARD_SMALL || u->mesh != LS_UNIT_DP || u->reshard_size <= 1 || u->reshard_size >= c->shard || !u->params)
            continue;
        /* Every fully_shard call makes a mesh, and so a communicator, of its own. */
        char name[256];
        snprintf(name, sizeof name, "reshard_%llu %s", (unsigned long long)u->reshard_size, ls_name_text(c->names, u->name));
        c->comm_small[i] = add_comm(c, name, shard, (uint32_t)u->reshard_size);
    }
}

/* Units in the order in which named_modules() meets their first module. */
static void open_preorder(struct compiler *c)
{
    const struct ls_plan *plan = c->in.plan;
    c->own_unit = LS_NEW(c->arena, uint32_t, plan->model->modules);
    for (size_t i = 0; i < plan->model->modules; i++)
        c->own_unit[i] = LS_NO_ID;
    for (uint32_t i = 0; i < plan->units; i++)
        for (size_t m = 0; m < plan->unit[i].modules; m++)
            c->own_unit[plan->unit[i].module[m]] = i;
    c->preorder = LS_NEW(c->arena, uint32_t, plan->units);
    bool *seen = LS_NEW(c->arena, bool, plan->units);
    size_t n = 0;
    for (size_t i = 0; i < plan->model->modules; i++) {
        uint32_t unit = c->own_unit[i];
        if (unit != LS_NO_ID && !seen[unit]) {
            seen[unit] = true;
            c->preorder[n++] = unit;
        }
    }
    assert(n == plan->units);
}

/* activation_checkpointing wraps the items of module lists that have something to train; frozen layers are left out, as AutoModel
 * does. The wrapper lies inside the unit's hooks. */
static void open_checkpointed(struct compiler *c)
{
    const struct ls_plan *plan = c->in.plan;
    const struct ls_model *m = plan->model;
    c->checkpointed = LS_NEW(c->arena, bool, m->modules);
    if (plan->checkpointed) {
        memcpy(c->checkpointed, plan->checkpointed, m->modules * sizeof *c->checkpointed);
        return;
    }
    for (size_t i = 1; plan->checkpoint_activations && i < m->modules; i++) {
        if (m->module[m->module[i].parent].container == LS_NOT_CONTAINER || m->module[i].container != LS_NOT_CONTAINER)
            continue;
        for (size_t k = i; k < i + m->module[i].subtree && !c->checkpointed[i]; k++)
            for (size_t p = 0; p < m->module[k].params; p++)
                c->checkpointed[i] |= plan->requires_grad[m->module[k].first_param + p];
    }
}

static void open_covered(struct compiler *c)
{
    const struct ls_model *m = c->in.plan->model;
    c->covered = LS_NEW(c->arena, uint8_t, m->modules * LS_CONDITIONS_MAX);
    for (size_t k = 0; k < m->conditions; k++) {
        uint8_t *covered = c->covered + k * m->modules;
        for (size_t d = 0; d < c->in.batch->dummies; d++) {
            const struct ls_dummy_forward *dummy = &c->in.batch->dummy[d];
            if (dummy->modality != m->condition[k].modality)
                continue;
            for (size_t i = 0; c->in.specs && i < c->in.specs->count; i++) {
                const struct ls_spec *spec = &c->in.specs->spec[i];
                bool role = false;
                for (size_t n = 0; n < dummy->roles; n++)
                    role |= spec->role == dummy->role[n];
                if (spec->modality != dummy->modality || !role)
                    continue;
                for (uint32_t at = 0; at < m->modules; at++)
                    if (ls_module_contains(m, spec->module, at))
                        covered[at] = COVERED;
            }
        }
        for (uint32_t at = 0; at < m->modules; at++)
            for (uint32_t up = m->module[at].parent; covered[at] == COVERED && up != LS_NO_ID; up = m->module[up].parent)
                if (covered[up] == NOT_COVERED)
                    covered[up] = AROUND_COVERED;
    }
}

/* Experts are cut evenly: no rank is without. */
static void open_rows(struct compiler *c)
{
    const struct ls_model *m = c->in.plan->model;
    for (uint32_t i = 0; i < m->params; i++) {
        const uint32_t u = c->in.plan->owner[i];
        if (m->param[i].canonical == i && u != LS_NO_ID && c->in.plan->unit[u].mesh == LS_UNIT_DP && m->param[i].dims)
            ls_tables_set_rows(c->in.tables, m->param[i].name, m->param[i].dim[0]);
    }
}

enum ls_code ls_fsdp2_open(const struct ls_compile_input *in, struct ls_arena *arena, struct ls_transducer **out,
                           struct ls_error *err)
{
    if (!in->plan->model->has_flow)
        return ls_fail(err, LS_EINPUT, LS_NOWHERE, "the model has no 'flow': what runs in forward is unknown");
    struct compiler *c = LS_NEW(arena, struct compiler, 1);
    c->in = *in;
    c->arena = arena;
    c->names = in->tables->names;
    c->shard = in->mesh->shard == LS_SIZE_ANY ? 2 : in->mesh->shard;
    c->replicate = in->mesh->replicate == LS_SIZE_ANY ? 2 : in->mesh->replicate;
    if (in->plan->experts.ep > 1 && in->mesh->shard == LS_SIZE_ANY)
        c->shard = 2 * in->plan->experts.ep; /* sizes any means multiples */
    for (uint32_t i = 0; i < in->plan->units; i++)
        if (in->plan->unit[i].reshard == LS_RESHARD_SMALL && in->mesh->shard == LS_SIZE_ANY)
            /* k must divide the size: sizes any means multiples of k, of which the smallest above k is compiled. */
            c->shard = (size_t)in->plan->unit[i].reshard_size * 2;
    static const char *const stream[] = { "D", "CI", "G", "S", "A" };
    for (size_t i = 0; i < sizeof stream / sizeof stream[0]; i++) {
        uint32_t id = ls_tables_stream(in->tables, stream[i]);
        assert(id == i && "the compiler's streams come first");
        (void)id;
    }
    open_comms(c);
    open_rows(c);
    open_preorder(c);
    open_checkpointed(c);
    open_covered(c);
    emit_open(c);
    c->step_cause = ls_tables_cause(in->tables, "step", in->step.at);
    char dispatcher[64];
    snprintf(dispatcher, sizeof dispatcher, "dispatcher: %s", ls_dispatcher_name(in->plan->experts.dispatcher));
    c->expert_cause = in->plan->experts.ep > 1 ? ls_tables_cause(in->tables, dispatcher, in->plan->experts.at) : LS_NO_ID;
    c->state_text = ls_names_open();
    struct carried first = carried_first(c);
    c->t = (struct ls_transducer){ .tables = in->tables, .roles = 1, .letters = in->letters->count, .step = step,
                                   .letter_name = letter_name, .states_max = 4096 };
    c->t.start = carried_intern(c, &first);
    carried_release(c, &first);
    *out = &c->t;
    return LS_OK;
}

void ls_fsdp2_close(struct ls_transducer *t)
{
    if (!t)
        return;
    struct compiler *c = (struct compiler *)t;
    for (size_t i = 0; i < c->state.count; i++)
        carried_release(c, &c->state.at[i]);
    ls_vec_release(&c->state);
    ls_vec_release(&c->buffer.pooled);
    ls_vec_release(&c->memo);
    free(c->memo_slot);
    ls_names_close(c->state_text);
}
