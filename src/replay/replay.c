#include "replay/replay.h"

#include "base/hash.h"
#include "check/gradient.h"
#include "check/witness.h"

#include <assert.h>
#include <math.h>
#include <string.h>

enum { TRIES_MAX = 1000, ROUNDS_MAX = 100000 };

/* A letter of this round: every level's agent picks a class inside of what its parent picked. */
static uint32_t draw(const struct ls_system *s, const struct ls_driver_node *node, size_t replica, const size_t size[LS_FREE_DIMS],
                     uint64_t seed)
{
    const struct ls_contract *c = &s->contract;
    uint32_t letter = LS_NO_ID, before = LS_NO_ID;
    for (size_t level = 0; level < c->levels; level++) {
        uint64_t agent = ls_hash_mix(seed, level);
        if (c->dims[level] & LS_DIM_REPLICATE)
            agent = ls_hash_mix(agent, replica / size[1] + 1);
        if (c->dims[level] & LS_DIM_SHARD)
            agent = ls_hash_mix(ls_hash_mix(agent, 77), replica % size[1] + 1);
        const uint32_t *parent = level ? c->class_of[level - 1] : NULL;
        uint32_t choice[64], n = 0;
        for (uint32_t l = 0; l < s->replica->letters && n < 64; l++) {
            bool allowed = !node->allowed || (node->allowed[l / 64] >> (l % 64) & 1);
            if (allowed && (!level || (parent ? parent[l] == parent[before] : l == before)))
                choice[n++] = l;
        }
        if (!n)
            return LS_NO_ID;
        letter = before = choice[ls_random_below(&agent, n)];
    }
    return letter;
}

static bool fill_letters(const struct ls_compiled *c, struct ls_assignment *a, uint32_t *letter, uint64_t seed)
{
    const struct ls_system *s = &c->system;
    size_t replicas = a->size[0] * a->size[1];
    for (size_t i = 0; i < a->rounds; i++)
        for (size_t x = 0; x < replicas; x++) {
            if (s->contract.extra == LS_CONTRACT_TABLE)
                letter[i * replicas + x] = s->contract.table[i % s->contract.rows * s->contract.columns + x];
            else
                letter[i * replicas + x] = draw(s, &s->driver.node[a->node[i]], x, a->size, ls_hash_mix(seed, i));
            if (letter[i * replicas + x] == LS_NO_ID)
                return false;
        }
    a->letter = letter;
    return s->contract.extra == LS_CONTRACT_TABLE || ls_contract_allows(s, a);
}

static bool is_step(const struct ls_compiled *c, uint32_t node)
{
    uint32_t round = c->system.driver.node[node].round;
    return round < c->rounds.count && c->rounds.round[round].kind == LS_ROUND_STEP;
}

enum ls_code ls_replay_assignment(const struct ls_compiled *c, size_t steps, uint64_t seed, struct ls_arena *arena,
                                  struct ls_assignment *out, struct ls_error *err)
{
    const struct ls_system *s = &c->system;
    LS_VEC(uint32_t) node = { 0 };
    *out = (struct ls_assignment){ .size = { s->size[0], s->size[1] } };
    if (!s->size[0] || !s->size[1])
        return ls_fail(err, LS_EINPUT, s->contract.at, "a run needs sizes: some size of the scenario is 'any'");
    for (size_t try = 0; try < TRIES_MAX; try++) {
        uint64_t random = ls_hash_mix(seed, try);
        uint32_t at = 0;
        size_t done = 0;
        node.count = 0;
        for (;;) {
            const struct ls_driver_node *n = &s->driver.node[at];
            if (n->may_stop && node.count && (done >= steps || !n->nexts))
                break;
            ls_push(&node, at);
            done += is_step(c, at);
            if (!n->nexts || node.count >= ROUNDS_MAX)
                break;
            at = n->next[ls_random_below(&random, n->nexts)];
        }
        out->rounds = node.count;
        out->node = ls_arena_copy(arena, node.at, node.count * sizeof *node.at);
        uint32_t *letter = LS_NEW(arena, uint32_t, ls_mul_size(node.count, out->size[0] * out->size[1]) + 1);
        if (fill_letters(c, out, letter, ls_random(&random))) {
            ls_vec_release(&node);
            return LS_OK;
        }
    }
    ls_vec_release(&node);
    return ls_fail(err, LS_EINPUT, s->contract.at, "no run of '%s' was found in %d draws", s->contract.name ? s->contract.name : "the contract", TRIES_MAX);
}

void ls_replay_level(const struct ls_scenario *s, struct ls_engine_options *o)
{
    o->blocking = s->level == LS_L1;
    o->resident = s->level == LS_L3;
    o->kernels = s->kernels;
    o->start = s->start;
}

static bool is_floating(enum ls_dtype d)
{
    return d == LS_DTYPE_F64 || d == LS_DTYPE_F32 || d == LS_DTYPE_F16 || d == LS_DTYPE_BF16;
}

/* The sample that the table names; else one of those that the letter stands for. */
static uint32_t sample_of(const struct ls_compiled *c, const struct ls_assignment *a, size_t round, size_t replica, uint64_t seed)
{
    const struct ls_contract *t = &c->system.contract;
    uint32_t letter = a->letter[round * a->size[0] * a->size[1] + replica], found = 0;
    if (t->extra == LS_CONTRACT_TABLE && t->table[round % t->rows * t->columns + replica] == letter)
        return t->sample[round % t->rows * t->columns + replica];
    uint64_t random = ls_hash_mix(ls_hash_mix(ls_hash_mix(seed, 5), round), replica), matching = 0;
    for (uint32_t i = 0; i < c->batch.samples; i++)
        if (c->letters.of_sample[i] == c->letters.letter[letter].base && ls_random_below(&random, ++matching) == 0)
            found = i;
    return found;
}

/* Dim 0 is cut; of experts, each rank has equal parts of dim 0 and shares dim 1 of them. */
static void set_shape(const struct ls_plan *plan, uint32_t i, size_t shard, struct ls_engine_param *out)
{
    const struct ls_param *p = &plan->model->param[i];
    const bool experts = plan->experts.ep > 1 && plan->experts.layer[i] != LS_NO_ID;
    out->rows = p->dims ? p->dim[0] : 1;
    out->row = p->dims && p->dim[0] ? p->elements / p->dim[0] : 1;
    if (!experts)
        return;
    out->parts = (uint32_t)plan->experts.ep;
    out->local = out->unit == LS_NO_ID;
    out->rows /= plan->experts.ep;
    if (out->local || !p->elements)
        return;
    assert(plan->unit[out->unit].mesh == LS_UNIT_EXPERTS && p->dim[1] % ls_plan_unit_ranks(plan, out->unit, shard) == 0 && "refused at set-up");
    out->blocks = out->rows;
    out->rows = p->dim[1];
    out->row /= p->dim[1];
}

void ls_replay_setup(const struct ls_scenario *s, const struct ls_compiled *c, const struct ls_assignment *a, const struct ls_job *job,
                     uint64_t seed, struct ls_arena *arena, struct ls_engine_setup *out)
{
    *out = (struct ls_engine_setup){ .job = job, .shard = 1, .mean = s->mean, .seed = seed };
    if (s->kind == LS_PLAN_RAW) /* its gradients are names without shapes: order and bytes only */
        return;
    const struct ls_plan *plan = &c->plan;
    const struct ls_model *m = plan->model;
    struct ls_engine_param *param = LS_NEW(arena, struct ls_engine_param, m->params + 1);
    struct ls_engine_unit *unit = LS_NEW(arena, struct ls_engine_unit, plan->units + 1);
    for (uint32_t i = 0; i < m->params; i++) {
        const struct ls_param *p = &m->param[i];
        const struct ls_unit *u = plan->owner[i] == LS_NO_ID ? NULL : &plan->unit[plan->owner[i]];
        param[i] = (struct ls_engine_param){ .name = p->name, .unit = LS_NO_ID, .parts = 1, .blocks = 1, .dtype = p->dtype, .compute = p->dtype, .grad = p->dtype };
        if (p->canonical != i)
            continue;
        param[i].unit = plan->owner[i];
        set_shape(plan, i, a->size[1], &param[i]);
        param[i].trains = plan->requires_grad[i];
        if (u && u->param_dtype != LS_DTYPE_NONE && is_floating(p->dtype))
            param[i].compute = u->param_dtype;
        param[i].grad = u && u->reduce_dtype != LS_DTYPE_NONE ? u->reduce_dtype : param[i].compute;
    }
    for (uint32_t i = 0; i < plan->units; i++) {
        const bool experts = plan->unit[i].mesh == LS_UNIT_EXPERTS;
        unit[i] = (struct ls_engine_unit){ .name = plan->unit[i].name, .param = plan->unit[i].param, .params = plan->unit[i].params,
                                           .shard = ls_plan_unit_ranks(plan, i, a->size[1]), .apart = experts ? plan->experts.ep : 1,
                                           .hybrid = !experts && a->size[0] > 1 };
    }
    size_t replicas = a->size[0] * a->size[1];
    uint32_t *sample = LS_NEW(arena, uint32_t, a->rounds * replicas + 1);
    for (size_t i = 0; i < a->rounds; i++)
        for (size_t x = 0; x < replicas; x++)
            sample[i * replicas + x] = sample_of(c, a, i, x, seed);
    out->param = param;
    out->params = m->params;
    out->unit = unit;
    out->units = plan->units;
    out->buckets = c->ddp != NULL;
    out->shard = out->buckets ? 1 : a->size[1];
    out->sample = sample;
    out->model = m;
}

/* Weights are products of 1/size, and of 1/(rank + 2) for a factor of a rank's own: the least terms that this dtype can mean. */
static struct ls_ratio ratio_of(double x, const struct ls_engine_param *p, size_t ranks)
{
    struct ls_ratio best = { (uint32_t)lround(x), 1 };
    double tolerance = ls_dtype_bytes(p->dtype) < 4 || ls_dtype_bytes(p->compute) < 4 || ls_dtype_bytes(p->grad) < 4 ? 0x1p-8 : 0x1p-18;
    for (uint32_t den = 1; den <= ranks * ranks * (ranks + 1) && fabs((double)best.num / best.den - x) > tolerance * x; den++)
        best = (struct ls_ratio){ (uint32_t)lround(x * den), den };
    return best;
}

/* One share at a time: the first that is missing, or else the first whose weight is wrong. */
static enum ls_code explain(const struct ls_engine_setup *setup, const struct ls_engine_options *o, struct ls_arena *arena,
                            struct ls_replay *out, struct ls_error *err)
{
    const struct ls_symbolic_problem *p = &out->symbolic.problem;
    struct ls_share *share;
    size_t n = ls_job_shares(setup, p->param, p->rank, p->step, arena, &share);
    uint32_t ranks = setup->mean ? (uint32_t)setup->job->ranks : 1;
    bool any = false;
    out->share = (struct ls_share_problem){ .param = setup->param[p->param].name, .shares = n, .rank = p->rank,
                                            .expected = { 1, ranks } };
    for (size_t i = 0; i < n; i++) {
        struct ls_symbolic one = { .alone = true, .share = share[i], .param = p->param, .rank = p->rank, .step = p->step };
        struct ls_engine_options again = *o;
        struct ls_observed seen;
        again.math_context = &one;
        enum ls_code rc = ls_engine_run(setup, &again, arena, &seen, err);
        if (rc != LS_OK)
            return rc;
        if (seen.interrupted)
            break;
        double want = (double)share[i].times / ranks;
        bool missing = !one.noted || one.found == 0.0;
        out->share.missing += missing;
        if (fabs(one.found - want) < 0.02 * want || (any && !(out->share.found.num && missing)))
            continue;
        any = true;
        out->share.found = ratio_of(one.found, &setup->param[p->param], setup->job->ranks);
        out->share.rank = share[i].rank;
        out->share.microbatch = share[i].microbatch;
    }
    out->verdict = out->share.missing ? LS_LOST_GRADIENT : LS_WRONG_SCALE;
    return LS_OK;
}

struct ls_memory *ls_replay_memory(const struct ls_engine_setup *setup, const struct ls_observed *seen, struct ls_arena *arena, bool *equal)
{
    static const enum ls_category decided[] = { LS_CATEGORY_OTHER, LS_CATEGORY_UNSHARDED, LS_CATEGORY_GATHER, LS_CATEGORY_REDUCE };
    struct ls_memory *program = LS_NEW(arena, struct ls_memory, setup->job->ranks + 1);
    *equal = true;
    for (uint32_t r = 0; r < setup->job->ranks; r++) {
        ls_program_memory(setup->job, r, seen->issued[r], &program[r]);
        for (size_t i = 0; i < sizeof decided / sizeof decided[0]; i++)
            *equal &= program[r].peak[decided[i]] == seen->memory[r].peak[decided[i]];
    }
    return program;
}

enum ls_code ls_replay_run(const struct ls_engine_setup *setup, const struct ls_engine_options *o, bool gradients,
                           struct ls_arena *arena, struct ls_replay *out, struct ls_error *err)
{
    struct ls_engine_options with = *o;
    *out = (struct ls_replay){ 0 };
    with.math = setup->params ? &ls_math_symbolic : NULL;
    with.math_context = &out->symbolic;
    enum ls_code rc = ls_engine_run(setup, &with, arena, &out->observed, err);
    if (rc != LS_OK || out->observed.interrupted)
        return rc;
    out->verdict = out->observed.outcome.verdict;
    out->program = ls_replay_memory(setup, &out->observed, arena, &out->memory_equal);
    if (out->verdict == LS_SAFE && out->observed.races) {
        out->verdict = out->observed.outcome.verdict = LS_RACE;
        out->observed.outcome.a = out->observed.race->a;
        out->observed.outcome.b = out->observed.race->b;
    }
    if (out->verdict == LS_SAFE && gradients && out->symbolic.problem.present)
        rc = explain(setup, &with, arena, out, err);
    return rc;
}

static bool same_at(struct ls_at a, struct ls_at b)
{
    return a.rank == b.rank && a.segment == b.segment && a.op == b.op;
}

/* Places alone: what waits beside them is not compared. */
static bool same_end(const struct ls_outcome *x, const struct ls_outcome *y)
{
    bool cycle = x->verdict == LS_HANG && x->cycle_count; /* of several shortest cycles through one place, any may be told */
    return x->verdict == y->verdict && x->collectives == y->collectives && x->comm == y->comm && x->group == y->group && x->position == y->position &&
           x->missing_rank == y->missing_rank && x->diff == y->diff && (cycle || (same_at(x->a, y->a) && same_at(x->b, y->b))) &&
           (x->cycle_count == 0) == (y->cycle_count == 0);
}

struct ends { LS_VEC(struct ls_outcome) at; };

static bool collect_end(void *context, const struct ls_outcome *outcome)
{
    struct ends *e = context;
    for (size_t i = 0; i < e->at.count; i++)
        if (same_end(&e->at.at[i], outcome))
            return true;
    ls_push(&e->at, *outcome);
    struct ls_outcome *kept = &e->at.at[e->at.count - 1];
    kept->pending = NULL, kept->cycle = NULL; /* the next run's */
    kept->pending_count = 0;
    return true;
}

/* Every order of starts, for small jobs. */
static enum ls_code predict_starts(const struct ls_engine_setup *setup, const struct ls_run_options *o, struct ls_arena *arena,
                                   struct ls_prediction *out, struct ls_error *err)
{
    enum { RUNS_MAX = 2000 }; /* as check/sweep.c */
    struct ends ends = { 0 };
    size_t runs, told = 0;
    enum ls_code rc = ls_machine_each_start(setup->job, o, RUNS_MAX, arena, collect_end, &ends, &runs, &out->complete, err);
    while (told + 1 < ends.at.count && ends.at.at[told].verdict == LS_SAFE)
        told++;
    if (rc == LS_OK) {
        out->outcome = ends.at.at[told];
        out->other = LS_NEW(arena, struct ls_outcome, ends.at.count + 1);
        for (size_t i = 0; i < ends.at.count; i++)
            if (i != told)
                out->other[out->others++] = ends.at.at[i];
    }
    ls_vec_release(&ends.at);
    return rc;
}

enum ls_code ls_replay_predict(const struct ls_engine_setup *setup, const struct ls_engine_options *e, bool gradients, struct ls_arena *arena,
                               struct ls_prediction *out, struct ls_error *err)
{
    struct ls_run_options o = { .level = e->blocking ? LS_L1 : e->resident ? LS_L3 : LS_L2, .kernels = e->kernels, .start = e->start };
    struct ls_race *race;
    size_t races = 0;
    *out = (struct ls_prediction){ .complete = true };
    enum ls_code rc = e->resident && e->kernels && e->start == LS_START_ANY ? predict_starts(setup, &o, arena, out, err)
                                                                            : ls_machine_run(setup->job, &o, arena, &out->outcome, err);
    out->verdict = out->outcome.verdict;
    if (rc == LS_OK && out->verdict == LS_SAFE && e->races)
        rc = ls_machine_races(setup->job, 1, arena, &race, &races, err);
    if (rc == LS_OK && races) {
        out->race = *race;
        out->verdict = out->outcome.verdict = LS_RACE;
        out->outcome.a = race->a;
        out->outcome.b = race->b;
    } else if (rc == LS_OK && out->verdict == LS_SAFE && gradients && setup->params)
        rc = ls_check_gradients(setup->job, setup->mean, &out->verdict, &out->share, err);
    return rc;
}

static void print_at(const struct ls_engine_setup *s, struct ls_at at, struct ls_str *out)
{
    if (at.rank == LS_NO_ID || at.segment == LS_NO_ID) {
        ls_str_printf(out, at.rank == LS_NO_ID ? "nothing" : "rank %u", at.rank);
        return;
    }
    ls_str_printf(out, "rank %u, segment %u, op %u: ", at.rank, at.segment, at.op);
    ls_op_print(out, s->job->tables, &s->job->rank[at.rank].segment[at.segment]->op[at.op]);
}

bool ls_replay_agrees(const struct ls_engine_setup *setup, const struct ls_prediction *p, const struct ls_replay *r, struct ls_str *why)
{
    const struct ls_outcome *x = &p->outcome, *y = &r->observed.outcome;
    for (size_t i = 0; i < p->others; i++)
        if (r->verdict == y->verdict && same_end(&p->other[i], y))
            return true;
    if (!p->complete)
        return true;
    const bool share[] = { p->verdict == LS_LOST_GRADIENT || p->verdict == LS_WRONG_SCALE, r->verdict == LS_LOST_GRADIENT || r->verdict == LS_WRONG_SCALE };
    if (p->verdict != r->verdict)
        ls_str_printf(why, "predicted %s, seen %s; ", ls_verdict_name(p->verdict), ls_verdict_name(r->verdict));
    if (share[0] || share[1]) {
        bool same = p->verdict == r->verdict && p->share.param == r->share.param && p->share.rank == r->share.rank && p->share.microbatch == r->share.microbatch &&
                    p->share.shares == r->share.shares && p->share.missing == r->share.missing &&
                    (uint64_t)p->share.found.num * r->share.found.den == (uint64_t)r->share.found.num * p->share.found.den;
        const struct ls_share_problem *told[] = { &p->share, &r->share };
        for (size_t i = 0; i < 2 && !same; i++)
            if (share[i])
                ls_str_printf(why, "%s '%s' of rank %u, microbatch %u: %u/%u, %zu of %zu shares missing; ", i ? "seen" : "predicted",
                              ls_tables_name(setup->job->tables, told[i]->param), told[i]->rank, told[i]->microbatch, told[i]->found.num, told[i]->found.den,
                              told[i]->missing, told[i]->shares);
        return same;
    }
    if (p->verdict != r->verdict)
        return false;
    if (p->verdict == LS_RACE) {
        const struct ls_race *f = &p->race, *g = r->observed.race;
        bool same = f->kind == g->kind && f->buffer == g->buffer && same_at(f->a, g->a) && same_at(f->b, g->b);
        if (!same) {
            ls_str_printf(why, "predicted a race (%s): ", ls_race_kind_name(f->kind));
            print_at(setup, f->a, why);
            ls_str_add(why, " and ");
            print_at(setup, f->b, why);
            ls_str_printf(why, "; seen one (%s): ", ls_race_kind_name(g->kind));
            print_at(setup, g->a, why);
            ls_str_add(why, " and ");
            print_at(setup, g->b, why);
        }
        return same;
    }
    if (x->collectives != y->collectives || x->comm != y->comm || x->group != y->group || x->position != y->position) {
        ls_str_printf(why, "predicted group %u/%u call %zu after %zu collectives, seen %u/%u call %zu after %zu", x->comm, x->group,
                      x->position + 1, x->collectives, y->comm, y->group, y->position + 1, y->collectives);
        return false;
    }
    /* Of several shortest cycles through one place, any may be told. */
    bool cycle = x->verdict == LS_HANG && x->cycle_count;
    if (x->missing_rank != y->missing_rank || x->diff != y->diff || (!cycle && (!same_at(x->a, y->a) || !same_at(x->b, y->b))) ||
        (x->cycle_count == 0) != (y->cycle_count == 0)) {
        ls_str_add(why, "predicted ");
        print_at(setup, x->a, why);
        ls_str_add(why, " and ");
        print_at(setup, x->b, why);
        ls_str_add(why, "; seen ");
        print_at(setup, y->a, why);
        ls_str_add(why, " and ");
        print_at(setup, y->b, why);
        return false;
    }
    return true;
}

bool ls_replay_calls(const struct ls_engine_setup *setup, const struct ls_replay *r, struct ls_str *why)
{
    const struct ls_job *job = setup->job;
    for (uint32_t rank = 0; rank < job->ranks; rank++) {
        size_t next = 0, n = 0;
        const struct ls_calls *made = &r->observed.call[rank];
        for (uint32_t s = 0; s < job->rank[rank].count; s++)
            for (uint32_t i = 0; i < job->rank[rank].segment[s]->count; i++, n++) {
                const struct ls_op *o = &job->rank[rank].segment[s]->op[i];
                if (!ls_op_uses_comm(o) || !r->observed.issued[rank][n])
                    continue;
                struct ls_at at = { rank, s, i };
                if (next >= made->count || !same_at(made->at[next], at)) {
                    ls_str_printf(why, "call %zu of rank %u: the program has ", next, rank);
                    print_at(setup, at, why);
                    ls_str_add(why, ", made was ");
                    print_at(setup, next < made->count ? made->at[next] : (struct ls_at){ LS_NO_ID, 0, 0 }, why);
                    return false;
                }
                next++;
            }
        if (next != made->count) {
            ls_str_printf(why, "rank %u made %zu calls, its program has %zu", rank, made->count, next);
            return false;
        }
    }
    return true;
}
