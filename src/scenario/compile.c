/* A scenario and a variant of it -> plan, letters, system. */
#include "scenario/internal.h"

#include <stdlib.h>
#include <string.h>

static enum ls_code check_variant(const struct ls_scenario *s, const struct ls_variant *v, struct ls_error *err)
{
    struct ls_loc whole = { s->path, 0, 0 };
    if (s->kind == LS_PLAN_RAW && (v->frozen_sharding >= 0 || v->run_dummy_forward >= 0 || v->execution >= 0 || v->unused_params >= 0 ||
                                   v->sync_every))
        return ls_fail(err, LS_EINPUT, whole, "a raw program has no policy or batch that could be changed");
    if (s->ddp.present && (v->frozen_sharding >= 0 || v->run_dummy_forward >= 0))
        return ls_fail(err, LS_EINPUT, whole, "'%s' decides nothing here: DDP shards nothing", v->frozen_sharding >= 0 ? "frozen_sharding" : "run_dummy_forward");
    if (s->kind == LS_PLAN_UNITS && v->frozen_sharding >= 0)
        return ls_fail(err, LS_EINPUT, whole, "'frozen_sharding' decides nothing here: 'units' lists the units");
    if (v->execution == LS_EXEC_TABLE && s->batch.execution != LS_EXEC_TABLE)
        return ls_fail(err, LS_EINPUT, whole, "the scenario has no table");
    return LS_OK;
}

/* A dummy for every modality with conditional modules, that covers all of them. */
static void force_dummies(const struct ls_scenario *s, struct ls_batch *b, struct ls_arena *arena)
{
    struct ls_dummy_forward *dummy = LS_NEW(arena, struct ls_dummy_forward, s->specs.count + 1);
    size_t count = 0;
    for (size_t i = 0; i < s->specs.count; i++) {
        const struct ls_spec *spec = &s->specs.spec[i];
        size_t k = 0;
        while (k < count && dummy[k].modality != spec->modality)
            k++;
        if (k == count) {
            dummy[count++] = (struct ls_dummy_forward){ .modality = spec->modality, .role = LS_NEW(arena, uint32_t, s->specs.count),
                                                        .linked = true, .active = true, .at = spec->at };
            for (size_t d = 0; d < b->dummies; d++)
                if (b->dummy[d].modality == spec->modality)
                    dummy[k].at = b->dummy[d].at;
        }
        dummy[k].role[dummy[k].roles++] = spec->role;
    }
    b->dummy = dummy;
    b->dummies = count;
}

static void change_batch(const struct ls_scenario *s, const struct ls_variant *v, struct ls_batch *b, struct ls_arena *arena)
{
    *b = s->batch;
    b->dummy = b->dummies ? ls_arena_copy(arena, s->batch.dummy, b->dummies * sizeof *b->dummy) : NULL;
    if (v->run_dummy_forward == 1)
        force_dummies(s, b, arena);
    for (size_t i = 0; v->run_dummy_forward == 0 && i < b->dummies; i++)
        b->dummy[i].active = false;
    if (v->sample_class) {
        b->sample_class = v->sample_class;
        b->class_in_node = v->class_in_node;
    }
    if (v->sync_every)
        b->gradient_sync = (struct ls_switch){ .where = b->gradient_sync.where };
    if (v->execution < 0)
        return;
    b->execution = (enum ls_execution)v->execution;
    if (b->execution == LS_EXEC_MODALITY_UNIFORM && !b->uniforms) { /* every modality of the flow */
        b->uniform = LS_NEW(arena, uint32_t, s->model.conditions + 1);
        for (size_t i = 0; i < s->model.conditions; i++)
            b->uniform[b->uniforms++] = s->model.condition[i].modality;
    }
}

static void change_policy(const struct ls_scenario *s, const struct ls_variant *v, struct ls_policy *p, struct ls_arena *arena)
{
    *p = s->policy;
    if (v->frozen_sharding < 0 && v->run_dummy_forward < 0)
        return;
    struct ls_modality_policy *m = p->modalities ? ls_arena_copy(arena, p->modality, p->modalities * sizeof *m) : NULL;
    for (size_t i = 0; i < p->modalities; i++) {
        if (v->frozen_sharding >= 0)
            m[i].has_frozen = false;
        if (v->run_dummy_forward >= 0)
            m[i].dummy = v->run_dummy_forward ? LS_DUMMY_AUTO : LS_DUMMY_FALSE;
    }
    p->modality = m;
    if (v->frozen_sharding >= 0)
        p->frozen = (enum ls_frozen)v->frozen_sharding;
}

static enum ls_code make_plan(const struct ls_scenario *s, const struct ls_variant *v, const struct ls_policy *policy,
                              struct ls_compiled *c, struct ls_error *err)
{
    struct ls_runtime runtime = s->runtime;
    if (v->unused_params >= 0)
        runtime.unused_params = (enum ls_unused)v->unused_params;
    if (s->ddp.present)
        return ls_plan_from_units(&s->model, s->final, &s->mesh, &runtime, NULL, 0, &c->plan, &c->refusal, err);
    if (s->kind == LS_PLAN_POLICY)
        return ls_plan_from_policy(&s->model, &s->specs, s->at_sharding, s->final, &s->mesh, &runtime, policy, &c->plan, &c->refusal, err);
    struct ls_unit_input *unit = ls_arena_copy(c->arena, s->unit, s->units * sizeof *unit);
    for (size_t i = 0; v->unused_params >= 0 && i < s->units; i++)
        unit[i].unused_params = (enum ls_unused)v->unused_params;
    enum ls_code rc = ls_plan_from_units(&s->model, s->final, &s->mesh, &runtime, unit, s->units, &c->plan, &c->refusal, err);
    if (rc == LS_OK && !c->refusal.rule) {
        c->plan.entry = s->entry;
        c->plan.entries = s->entries;
    }
    return rc;
}

/* Every parameter of the model that is sharded, once, as a full state dict gathers them.
 *   source  torch/distributed/checkpoint/state_dict.py, _gather_state_dict: one redistribution per DTensor, over its mesh */
static const struct ls_saved *saved_state(const struct ls_scenario *s, struct ls_compiled *c, uint32_t shard, size_t *count)
{
    const struct ls_model *m = c->plan.model;
    size_t ranks = s->mesh.shard == LS_SIZE_ANY ? 2 : s->mesh.shard;
    struct ls_saved *out = LS_NEW(c->arena, struct ls_saved, m->params + 1);
    *count = 0;
    for (uint32_t i = 0; i < m->params; i++) {
        const struct ls_param *p = &m->param[i];
        if (p->canonical != i || c->plan.owner[i] == LS_NO_ID)
            continue;
        const char *text = ls_arena_printf(c->arena, "state %s", ls_name_text(s->names, p->name));
        uint64_t elements = ls_param_shard_elements(p, ranks);
        out[(*count)++] = (struct ls_saved){ ls_tables_payload(&c->tables, text, NULL, 0, elements), shard, elements, p->dtype };
    }
    return out;
}

/* The communicator over these dimensions, LS_NO_ID if there is one rank. */
static uint32_t communicator(struct ls_compiled *c, const char *name, uint32_t dims)
{
    if (!dims)
        return LS_NO_ID;
    uint32_t id = ls_tables_comm(&c->tables, name);
    c->tables.comm.at[id].free_dims = dims;
    return id;
}

/* DDP and everything else that all ranks reduce share the default process group. */
static enum ls_code put_ddp_around(const struct ls_scenario *s, const struct ls_variant *v, struct ls_compiled *c, struct ls_error *err)
{
    struct ls_ddp *ddp = ls_arena_copy(c->arena, &s->ddp, sizeof *ddp);
    if (v->unused_params >= 0)
        ddp->find_unused = v->unused_params != LS_UNUSED_OFF;
    struct ls_ddp_input in = { .ddp = ddp, .model = c->plan.model, .requires_grad = c->plan.requires_grad, .rounds = &c->rounds,
                               .inner = c->fsdp2, .tables = &c->tables };
    in.comm = communicator(c, "dp", c->system.free_dims);
    LS_TRY(ls_ddp_open(&in, c->arena, &c->ddp, err));
    c->system.replica = c->ddp;
    return LS_OK;
}

static enum ls_code put_loop_around(const struct ls_scenario *s, struct ls_compiled *c, struct ls_error *err)
{
    struct ls_system *y = &c->system;
    struct ls_around_input in = { .loop = &c->loop, .letters = &c->letters, .rounds = &c->loop_rounds, .inner = y->replica,
                                  .tables = &c->tables, .sharded_save_talks = true };
    in.comm = communicator(c, s->runtime.default_group ? "dp_shard" : "dp", y->free_dims);
    if (c->loop.save_full)
        in.saved = saved_state(s, c, communicator(c, "dp_shard", y->free_dims & LS_DIM_SHARD), &in.saves);
    LS_TRY(ls_around_open(&in, c->arena, &c->around, err));
    y->replica = c->around;
    return LS_OK;
}

static enum ls_code make_system(const struct ls_scenario *s, const struct ls_variant *v, struct ls_compiled *c, struct ls_error *err)
{
    struct ls_system *y = &c->system;
    y->free_dims = ls_scenario_free_dims(&s->mesh);
    y->size[0] = s->mesh.replicate;
    y->size[1] = s->mesh.shard;
    y->level = (int)s->level;
    y->kernels = s->kernels;
    y->start_rule = (int)s->start;
    size_t replicas = ls_scenario_replicas(&s->mesh);
    LS_TRY(ls_batch_letters(&c->batch, s->names, c->arena, &c->framework_letters, err));
    c->letters = c->framework_letters;
    c->batch_letters = c->letters.count;
    struct ls_batch batch = c->batch;
    if (batch.apart) /* one run of known letters is wanted, not a contract over more letters than a checker takes */
        batch.execution = LS_EXEC_ANY;
    if (c->loop.present) {
        LS_TRY(ls_loop_letters(&c->loop, &batch, &c->framework_letters, s->names, c->arena, &c->letters, err));
        LS_TRY(ls_loop_driver(&c->loop, &batch, &c->letters, c->arena, &c->loop_rounds, &y->driver, err));
        c->rounds = c->loop_rounds.rounds;
        LS_TRY(ls_loop_contract(&c->loop, &batch, &c->framework_letters, &c->letters, &c->rounds, &y->driver, y->free_dims, replicas, c->arena,
                             &y->contract, err));
    } else {
        LS_TRY(ls_batch_driver(&c->batch, c->arena, &c->rounds, &y->driver, err));
        ls_batch_restrict(&c->letters, &c->rounds, c->arena, &y->driver);
        LS_TRY(ls_batch_contract(&batch, &c->letters, y->free_dims, replicas, c->arena, &y->contract, err));
    }
    struct ls_compile_input in = { .plan = &c->plan, .mesh = &s->mesh, .letters = &c->framework_letters, .rounds = &c->rounds, .batch = &c->batch,
                                   .specs = &s->specs, .step = s->step, .tables = &c->tables };
    if (s->ddp.present) /* its gradients are whole: the norm needs no other rank; nothing is sharded */
        in.step.clip_grad_norm = false, in.step.validate_rank_uniform = 0;
    LS_TRY(ls_fsdp2_open(&in, c->arena, &c->fsdp2, err));
    y->replica = c->fsdp2;
    if (s->ddp.present)
        LS_TRY(put_ddp_around(s, v, c, err));
    if (c->loop.present)
        LS_TRY(put_loop_around(s, c, err));
    struct ls_comm_roles *comm = LS_NEW(c->arena, struct ls_comm_roles, c->tables.comm.count + 1);
    uint32_t *part = LS_NEW(c->arena, uint32_t, y->replica->roles); /* no role is left out, all are in one part */
    for (size_t i = 0; i < c->tables.comm.count; i++)
        comm[i].part = part;
    y->comm = comm;
    return LS_OK;
}

static enum ls_code compile(const struct ls_scenario *s, const struct ls_variant *v, bool force, struct ls_compiled *c, struct ls_error *err)
{
    LS_TRY(check_variant(s, v, err));
    if (s->kind == LS_PLAN_RAW)
        return ls_compile_raw(s, c, err);
    struct ls_policy policy;
    change_batch(s, v, &c->batch, c->arena);
    c->loop = s->loop;
    if (v->agree) {
        if (c->batch.execution == LS_EXEC_TABLE)
            return ls_fail(err, LS_EINPUT, (struct ls_loc){ s->path, 0, 0 }, "a table says what each rank does: nothing is left to agree on");
        c->loop = ls_loop_agreed(&s->loop, v->agree, c->arena);
        ls_loop_events(&c->loop, s->names, c->arena);
    }
    change_policy(s, v, &policy, c->arena);
    if (s->kind == LS_PLAN_POLICY && policy.rules == LS_RULES_PROPOSED && !s->ddp.present) {
        struct setup in = { s, &policy, &c->batch, v->run_dummy_forward == 1 };
        LS_TRY(ls_setup_contracts(&in, c->arena, &c->refusal, err));
        if (force)
            c->refusal = (struct ls_refusal){ 0 };
        if (c->refusal.rule)
            return LS_OK;
    }
    LS_TRY(make_plan(s, v, &policy, c, err));
    return c->refusal.rule ? LS_OK : make_system(s, v, c, err);
}

enum ls_code ls_scenario_compile(const struct ls_scenario *s, const struct ls_variant *variant, bool force, struct ls_compiled *out,
                                 struct ls_error *err)
{
    *out = (struct ls_compiled){ .arena = malloc(sizeof *out->arena) };
    if (!out->arena)
        ls_out_of_memory(sizeof *out->arena);
    ls_arena_init(out->arena, 0);
    ls_tables_init(&out->tables, out->arena);
    ls_names_close(out->tables.names); /* ids of the model's names are used in ops: one interner for both */
    out->tables.names = s->names;
    enum ls_code rc = compile(s, variant, force, out, err);
    if (rc != LS_OK)
        ls_compiled_release(out);
    return rc;
}

void ls_compiled_release(struct ls_compiled *c)
{
    if (!c->arena)
        return;
    if (c->batch.model) { /* a raw program's transducer is another */
        ls_around_close(c->around);
        ls_ddp_close(c->ddp);
        ls_fsdp2_close(c->fsdp2);
    }
    c->tables.names = NULL; /* the scenario's */
    ls_tables_release(&c->tables);
    ls_arena_release(c->arena);
    free(c->arena);
    *c = (struct ls_compiled){ 0 };
}

void ls_scenario_as_ddp(const struct ls_scenario *s, struct ls_scenario *out)
{
    *out = *s;
    out->mesh.shard = s->mesh.shard * s->mesh.replicate;
    out->mesh.replicate = 1;
    out->ddp = (struct ls_ddp){ .present = true, .find_unused = s->specs.count > 0, .broadcast_buffers = true, .at = { s->path, 0, 0 } };
    if (s->ddp.present)
        out->ddp = s->ddp;
}
