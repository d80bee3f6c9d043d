#include "mutation_base.h"

#include "base/hash.h"
#include "brute.h"

#include <string.h>

/* ------------------------------------------------------------------------------------------------- another plan */

/* The op in the tables of the base. False if it needs a communicator that the base does not have. */
static bool translate(const struct base *b, const struct ls_tables *from, struct ls_op *op)
{
    struct ls_tables *to = (struct ls_tables *)b->job.tables;
    if (ls_op_uses_comm(op)) {
        uint32_t c = 0;
        while (c < to->comm.count && to->comm.at[c].name != from->comm.at[op->comm].name)
            c++;
        if (c == to->comm.count)
            return false;
        op->comm = (uint16_t)c;
    }
    if (op->payload != LS_NO_ID) {
        const struct ls_payload *p = &from->payload.at[op->payload];
        op->payload = ls_tables_payload(to, ls_tables_name(from, p->name), p->items, p->count, p->elements);
    }
    if (op->event != LS_NO_ID)
        op->event = ls_tables_event(to, ls_tables_name(from, from->event.at[op->event]));
    op->ranges = op->kernels = 0; /* races and data of the odd rank are not looked at */
    op->cause = LS_NO_ID;
    return true;
}

static bool take_program(const struct base *b, const struct ls_job *from, uint32_t rank, struct ls_arena *arena, struct ls_job *out)
{
    *out = b->job;
    out->rank = ls_arena_copy(arena, b->job.rank, b->job.ranks * sizeof *out->rank);
    const struct ls_segment **all = LS_NEW(arena, const struct ls_segment *, from->rank[rank].count);
    for (size_t s = 0; s < from->rank[rank].count; s++) {
        const struct ls_segment *x = from->rank[rank].segment[s];
        struct ls_segment *made = LS_NEW(arena, struct ls_segment, 1);
        ls_op_vec v = { 0 };
        bool ok = true;
        for (size_t i = 0; i < x->count; i++) {
            struct ls_op op = x->op[i];
            if (op.kind == LS_OP_ALLOC || op.kind == LS_OP_FREE)
                continue; /* of buffers that other tables name */
            ok = ok && translate(b, from->tables, &op);
            ls_push(&v, op);
        }
        made->op = v.count ? ls_arena_copy(arena, v.at, v.count * sizeof *v.at) : NULL;
        made->count = v.count;
        made->hash = ls_segment_hash(made->op, made->count);
        ls_vec_release(&v);
        if (!ok)
            return false;
        all[s] = made;
    }
    out->rank[rank] = (struct ls_rank_program){ all, from->rank[rank].count };
    return true;
}

/* DDP has no units: one of the parameters that are trained. */
static void freeze_one(uint64_t choice, struct ls_arena *arena, struct ls_scenario *s)
{
    const struct ls_model *m = &s->model;
    s->final = ls_arena_copy(arena, s->final, m->params * sizeof *s->final);
    for (uint32_t i = 0; i < m->params; i++) {
        uint32_t q = m->param[(choice + i) % m->params].canonical;
        if (!s->final[q])
            continue;
        for (uint32_t p = 0; p < m->params; p++)
            s->final[p] = s->final[p] && m->param[p].canonical != q;
        return;
    }
}

/* One rank's own idea of the plan. False: the scenario has nothing of the kind. */
static bool other_plan(const struct base *b, enum mutation_kind kind, uint64_t choice, struct ls_arena *arena, struct ls_scenario *s,
                       struct ls_variant *v)
{
    const struct ls_plan *plan = &b->fixed.plan;
    struct ls_unit_input *unit = s->units ? ls_arena_copy(arena, s->unit, s->units * sizeof *unit) : NULL;
    size_t u = s->units ? choice % s->units : 0;
    s->unit = unit;
    switch ((int)kind) {
    case MUTATE_OTHER_DTYPE:
        if (s->kind == LS_PLAN_POLICY && choice & 1)
            s->policy.param_dtype = s->policy.param_dtype == LS_DTYPE_BF16 ? LS_DTYPE_F32 : LS_DTYPE_BF16;
        else if (s->kind == LS_PLAN_POLICY)
            s->policy.reduce_dtype = s->policy.reduce_dtype == LS_DTYPE_F32 ? LS_DTYPE_BF16 : LS_DTYPE_F32;
        else if (choice & 1)
            unit[u].param_dtype = unit[u].param_dtype == LS_DTYPE_BF16 ? LS_DTYPE_F32 : LS_DTYPE_BF16;
        else
            unit[u].reduce_dtype = unit[u].reduce_dtype == LS_DTYPE_BF16 ? LS_DTYPE_F32 : LS_DTYPE_BF16;
        return true;
    case MUTATE_OTHER_RESHARD:
        if (s->kind == LS_PLAN_POLICY)
            s->policy.reshard = s->policy.reshard == LS_RESHARD_FALSE ? LS_RESHARD_TRUE : LS_RESHARD_FALSE;
        else
            unit[u].reshard = unit[u].reshard == LS_RESHARD_FALSE ? LS_RESHARD_TRUE : LS_RESHARD_FALSE;
        return true;
    case MUTATE_OTHER_FROZEN:
        if (s->ddp.present) {
            freeze_one(choice, arena, s);
            return true;
        }
        if (!plan->units)
            return false;
        s->final = ls_arena_copy(arena, s->final, s->model.params * sizeof *s->final);
        for (uint32_t p = 0; p < s->model.params; p++)
            if (plan->owner[s->model.param[p].canonical] == choice % plan->units)
                s->final[p] = false;
        return true;
    case MUTATE_OTHER_UNITS:
        if (s->kind != LS_PLAN_UNITS || s->units < 2)
            return false;
        u = choice % (s->units - 1); /* the last one is the root */
        memmove(&unit[u], &unit[u + 1], (s->units - u - 1) * sizeof *unit);
        s->units--;
        for (size_t i = 0; i < s->units; i++)
            unit[i].forward_prefetches = unit[i].backward_prefetches = 0;
        return true;
    case MUTATE_OTHER_POLICY:
        if (s->kind != LS_PLAN_POLICY)
            return false;
        v->frozen_sharding = (int)((s->policy.frozen + 1 + choice % 2) % 3);
        return true;
    case MUTATE_OTHER_SYNC:
        if (s->batch.microbatches < 2)
            return false;
        s->batch.gradient_sync = (struct ls_switch){ LS_NEW(arena, bool, s->batch.microbatches), s->batch.microbatches, LS_NOWHERE };
        s->batch.gradient_sync.at[choice & 1 ? 0 : s->batch.microbatches - 1] = true;
        return true;
    case MUTATE_OTHER_UNUSED:
        s->ddp.find_unused = !s->ddp.find_unused;
        if (s->ddp.present)
            return true;
        v->unused_params = s->runtime.unused_params == LS_UNUSED_OFF ? LS_UNUSED_FALLBACK : LS_UNUSED_OFF;
        return true;
    default:
        return false;
    }
}

static bool follow_plan(struct base *b, enum mutation_kind kind, uint64_t choice)
{
    struct ls_arena arena;
    struct ls_scenario s = b->sized;
    struct ls_variant v = LS_AS_WRITTEN;
    struct ls_compiled c;
    struct ls_error err = { 0 };
    struct ls_job other, changed;
    bool ok = true, compiled = false;
    uint32_t rank = (uint32_t)(choice / 7 % b->job.ranks);
    ls_arena_init(&arena, 0);
    if (other_plan(b, kind, choice, &arena, &s, &v) && ls_scenario_compile(&s, &v, true, &c, &err) == LS_OK) {
        compiled = true;
        if (!c.refusal.rule && c.system.replica->letters == b->fixed.system.replica->letters &&
            ls_system_job(&c.system, &b->a, &arena, &other, &err) == LS_OK && take_program(b, &other, rank, &arena, &changed)) {
            struct ls_check_options keep = b->check;
            b->check.races = b->check.gradients = false; /* the odd rank has other ideas of its gradients, too */
            ok = mutation_run(b, &changed, kind, LS_UNDECIDED);
            b->check = keep;
        }
    }
    if (compiled)
        ls_compiled_release(&c);
    ls_arena_release(&arena);
    return ok;
}

/* Another letter for one replica in one round. */
static bool other_batch(struct base *b, enum mutation_kind kind)
{
    size_t replicas = b->a.size[0] * b->a.size[1], letters = b->fixed.system.replica->letters;
    struct ls_arena arena;
    struct ls_assignment a = b->a;
    struct ls_job changed;
    struct ls_error err = { 0 };
    if (letters < 2)
        return true;
    ls_arena_init(&arena, 0);
    size_t round = ls_random_below(&b->random, a.rounds), x = round * replicas + ls_random_below(&b->random, replicas);
    uint32_t *letter = ls_arena_copy(&arena, a.letter, a.rounds * replicas * sizeof *letter);
    letter[x] = (letter[x] + 1 + (uint32_t)ls_random_below(&b->random, letters - 1)) % (uint32_t)letters;
    a.letter = letter;
    const uint64_t *allowed = b->fixed.system.driver.node[a.node[round]].allowed;
    bool ok = true;
    if (!allowed || (allowed[letter[x] / 64] >> letter[x] % 64 & 1)) {
        ok = ls_system_job(&b->fixed.system, &a, &arena, &changed, &err) == LS_OK || mutation_fail(b, kind, "no run", err.text);
        struct ls_check_options keep = b->check;
        b->check.races = b->check.gradients = false;
        ok = ok && mutation_run(b, &changed, kind, LS_UNDECIDED);
        b->check = keep;
    }
    ls_arena_release(&arena);
    return ok;
}

bool mutate_plans(struct base *b, enum mutation_kind kind)
{
    bool ok = true;
    for (unsigned i = 0; i < b->per_kind && ok && b->s.kind != LS_PLAN_RAW; i++)
        ok = kind == MUTATE_OTHER_BATCH ? other_batch(b, kind) : follow_plan(b, kind, ls_random_below(&b->random, 1 << 20));
    return ok;
}

/* ------------------------------------------------------------------------------------------------- the scenario */

/* Some rank computes a share of the parameter (LS_NO_ID: of any) in the run, and is not alone. */
static bool has_share(const struct base *b, uint32_t param)
{
    const struct ls_tables *t = b->job.tables;
    for (uint32_t r = 0; r < b->job.ranks && b->job.ranks > 1; r++)
        for (size_t s = 0; s < b->job.rank[r].count; s++)
            for (size_t i = 0; i < b->job.rank[r].segment[s]->count; i++) {
                const struct ls_op *op = &b->job.rank[r].segment[s]->op[i];
                if (op->kind != LS_OP_COMPUTE || op->pass != LS_PASS_B || op->payload == LS_NO_ID)
                    continue;
                const struct ls_payload *p = &t->payload.at[op->payload];
                for (size_t k = 0; k < p->count; k++)
                    if (param == LS_NO_ID || p->items[k] == param)
                        return true;
            }
    return false;
}

/* A parameter that some unit has beside others, and whose loss would show; LS_NO_ID: none. */
static uint32_t owned_param(const struct base *b, const struct ls_plan *p, uint64_t choice)
{
    const struct ls_model *m = p->model;
    for (uint32_t i = 0; i < m->params; i++) {
        uint32_t q = (uint32_t)((choice + i) % m->params), u = p->owner[q];
        if (m->param[q].canonical == q && p->requires_grad[q] && u != LS_NO_ID && p->unit[u].params >= 2 && has_share(b, m->param[q].name))
            return q;
    }
    return LS_NO_ID;
}

/* Takes a parameter away from all units of a scenario that lists them: the way that works with a loop around the framework. */
static bool ignore(const struct base *b, uint64_t choice, struct ls_arena *arena, struct ls_scenario *s)
{
    uint32_t q = owned_param(b, &b->any.plan, choice);
    if (q == LS_NO_ID || s->kind != LS_PLAN_UNITS)
        return false;
    s->unit = ls_arena_copy(arena, s->unit, s->units * sizeof *s->unit);
    for (size_t i = 0; i < s->units; i++) {
        struct ls_unit_input *u = &s->unit[i];
        const char **ignored = LS_NEW(arena, const char *, u->ignoreds + 1);
        for (size_t k = 0; k < u->ignoreds; k++)
            ignored[k] = u->ignored[k];
        ignored[u->ignoreds++] = ls_name_text(b->names, s->model.param[q].name);
        u->ignored = ignored;
    }
    return true;
}

/* Takes a parameter away from its unit, and compiles again. False if there is none whose loss would show. */
static bool disown(const struct base *b, uint64_t choice, struct ls_compiled *c, const struct ls_scenario *s)
{
    struct ls_plan *p = &c->plan;
    const struct ls_model *m = p->model;
    uint32_t q = owned_param(b, p, choice);
    if (c->around || c->ddp || q == LS_NO_ID) /* transducers around the one that is made anew */
        return false;
    struct ls_unit *unit = &p->unit[p->owner[q]];
    size_t kept = 0;
    for (size_t k = 0; k < unit->params; k++)
        if (unit->param[k] != q)
            unit->param[kept++] = unit->param[k];
    unit->params = kept;
    for (uint32_t k = 0; k < m->params; k++)
        if (m->param[k].canonical == q)
            p->owner[k] = LS_NO_ID;
    struct ls_error err = { 0 };
    struct ls_compile_input in = { .plan = p, .mesh = &s->mesh, .letters = &c->letters, .rounds = &c->rounds, .batch = &c->batch,
                                   .specs = &s->specs, .step = s->step, .tables = &c->tables };
    ls_fsdp2_close(c->fsdp2);
    c->fsdp2 = c->system.replica = NULL;
    bool ok = ls_fsdp2_open(&in, c->arena, &c->fsdp2, &err) == LS_OK;
    c->system.replica = c->fsdp2;
    return ok;
}

static bool other_scenario(const struct base *b, enum mutation_kind kind, uint64_t choice, struct ls_arena *arena, struct ls_scenario *s,
                           struct ls_variant *v)
{
    struct ls_dummy_forward *d = s->batch.dummies ? ls_arena_copy(arena, s->batch.dummy, s->batch.dummies * sizeof *d) : NULL;
    size_t k = s->batch.dummies ? choice % s->batch.dummies : 0;
    s->batch.dummy = d;
    switch ((int)kind) {
    case MUTATE_NO_GUARANTEE:
        v->execution = LS_EXEC_ANY;
        return s->batch.execution != LS_EXEC_ANY && s->batch.execution != LS_EXEC_TABLE;
    case MUTATE_NO_DUMMY:
        if (s->ddp.present) /* no key of the plan is about them */
            s->batch.dummies = 0;
        else
            v->run_dummy_forward = 0;
        return d != NULL;
    case MUTATE_PART_DUMMY:
        if (!d || d[k].roles < 2)
            return false;
        d[k].role = ls_arena_copy(arena, d[k].role, d[k].roles * sizeof *d[k].role);
        d[k].role[choice / 3 % d[k].roles] = d[k].role[d[k].roles - 1];
        d[k].roles--;
        return true;
    case MUTATE_LOOSE_DUMMY:
        if (!d || !d[k].linked)
            return false;
        d[k].linked = false;
        return true;
    case MUTATE_NEVER:
        s->batch.gradient_sync = (struct ls_switch){ LS_NEW(arena, bool, 1), 1, LS_NOWHERE };
        return has_share(b, LS_NO_ID);
    case MUTATE_UNOWNED:
        return b->any.around ? ignore(b, choice, arena, s) : has_share(b, LS_NO_ID);
    case MUTATE_SUM:
        return has_share(b, LS_NO_ID);
    default:
        return false;
    }
}

/* What the other machine makes of a witness; UNDECIDED where the contract does not allow it. */
static enum ls_verdict naive_verdict(const struct ls_system *y, const struct ls_witness *w, struct ls_arena *arena)
{
    struct naive *n = LS_NEW(arena, struct naive, 1);
    if (w->job.ranks > NAIVE_RANKS || !ls_brute_allowed(y, &w->assignment))
        return LS_UNDECIDED;
    mutation_naive(&w->job, y->level, arena, n);
    return n->verdict;
}

static bool check_scenario(struct base *b, enum mutation_kind kind, uint64_t choice)
{
    struct ls_arena arena;
    struct ls_scenario s = b->s;
    struct ls_variant v = LS_AS_WRITTEN;
    struct ls_compiled c;
    struct ls_error err = { 0 };
    struct ls_check_result r;
    struct ls_brute_options bounds = { .replicas_max = 4, .rounds_max = 4, .runs_max = 30, .total_max = 300, .seed = choice };
    struct ls_brute brute = { 0 };
    enum ls_verdict want = mutation_follows(kind);
    bool ok = true;
    ls_arena_init(&arena, 0);
    if (!other_scenario(b, kind, choice, &arena, &s, &v))
        goto out;
    if (ls_scenario_compile(&s, &v, true, &c, &err) != LS_OK) {
        ok = mutation_fail(b, kind, "not compiled", err.text);
        goto out;
    }
    if (c.refusal.rule || (kind == MUTATE_UNOWNED && !c.around && !disown(b, choice, &c, &s)))
        goto compiled;
    struct ls_check_options keep = b->check;
    if (kind == MUTATE_SUM)
        b->check.mean = !b->check.mean;
    ok = mutation_check(b, &c.system, &arena, &r);
    b->check = keep;
    if (ok && mutation_follows(kind) == LS_UNDECIDED) {
        ls_brute_force(&c.system, &bounds, &arena, &brute);
        want = brute.failed ? brute.verdict : LS_SAFE;
        if (mutation_by_machine(r.verdict)) /* its run is allowed, and fails on the other machine, too: it need not be brute force's */
            want = naive_verdict(&c.system, r.witness, &arena);
    }
    ok = ok && mutation_expect(b, kind, &r, want);
    if (ok)
        mutation_count(b, kind, want);
compiled:
    ls_compiled_release(&c);
out:
    ls_arena_release(&arena);
    return ok;
}

bool mutate_scenarios(struct base *b, enum mutation_kind kind)
{
    bool ok = true, once = kind == MUTATE_NO_GUARANTEE || kind == MUTATE_NO_DUMMY || kind == MUTATE_SUM || kind == MUTATE_NEVER;
    if (b->s.kind == LS_PLAN_RAW || b->s.batch.execution == LS_EXEC_TABLE)
        return true;
    for (unsigned i = 0; i < (once ? 1 : b->per_kind) && ok; i++)
        ok = check_scenario(b, kind, ls_random_below(&b->random, 1 << 20));
    return ok;
}
