#include "mutation.h"

#include "base/hash.h"
#include "brute.h"
#include "check/check.h"
#include "check/gradient.h"
#include "mutate.h"
#include "naive.h"
#include "random_scenario.h"
#include "replay/replay.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum family { RANK, ALL, LETTER, PLAN, SCENARIO };
#define MUTATION_ROW(id, family, follows, name) { family, FOLLOWS_##follows, name },
static const struct { enum family family; enum mutation_follows follows; const char *name; } kinds[] = { MUTATIONS(MUTATION_ROW) };
#undef MUTATION_ROW

struct base {
    struct mutations *m;
    struct ls_arena arena;
    struct ls_names *names;
    struct ls_scenario s, sized;      /* as written; with every size given */
    struct ls_compiled any, fixed;    /* of the two */
    struct ls_assignment a;           /* one run of `fixed` */
    struct ls_job job;
    struct ls_check_options check;
    bool words;                       /* no decide, one host thread: words say everything */
    unsigned per_kind;
    uint64_t random;
    struct ls_str *why;
};

static enum ls_verdict fixed_verdict(enum mutation_follows f)
{
    switch (f) {
    case FOLLOWS_MISMATCH: return LS_MISMATCH;
    case FOLLOWS_MISPAIRING: return LS_MISPAIRING;
    case FOLLOWS_ERROR: return LS_ERROR;
    case FOLLOWS_LOST_GRADIENT: return LS_LOST_GRADIENT;
    case FOLLOWS_WRONG_SCALE: return LS_WRONG_SCALE;
    case FOLLOWS_RACE: return LS_RACE;
    case FOLLOWS_WORDS:
    case FOLLOWS_BRUTE: break;
    }
    return LS_UNDECIDED;
}

static bool by_machine(enum ls_verdict v)
{
    return v == LS_HANG || v == LS_MISMATCH || v == LS_MISPAIRING || v == LS_ERROR;
}

static bool fail(const struct base *b, enum mutation_kind kind, const char *what, const char *got)
{
    ls_str_printf(b->why, "%s: %s: %s%s%s\n", b->s.name, kinds[kind].name, what, got ? ", " : "", got ? got : "");
    return false;
}

static bool as_expected(const struct base *b, enum mutation_kind kind, const struct ls_check_result *r, enum ls_verdict want)
{
    if (r->verdict == want)
        return true;
    ls_str_printf(b->why, "%s: %s: expected %s, found %s%s%s\n", b->s.name, kinds[kind].name, ls_verdict_name(want),
                  ls_verdict_name(r->verdict), r->limit ? ": " : "", r->limit ? r->limit : "");
    return false;
}

static void site_text(const struct base *b, const struct ls_job *job, struct site s)
{
    ls_str_printf(b->why, "  rank %u, segment %u, op %u: ", s.at.rank, s.at.segment, s.at.op);
    ls_op_print(b->why, job->tables, &job->rank[s.at.rank].segment[s.at.segment]->op[s.at.op]);
    ls_str_add(b->why, "\n");
}

static bool is_part(const struct base *b, enum mutation_part part)
{
    switch (part) {
    case MUTATION_LOOP: return b->s.kind != LS_PLAN_RAW && (b->s.loop.present || b->s.step.metrics);
    case MUTATION_EXPERTS: return b->s.kind != LS_PLAN_RAW && b->s.mesh.ep > 1;
    case MUTATION_DDP: return b->s.ddp.present;
    case MUTATION_PARTS: break;
    }
    return false;
}

static bool count(const struct base *b, enum mutation_kind kind, enum ls_verdict v)
{
    for (int p = 0; p < MUTATION_PARTS; p++)
        b->m->part_caught[p][kind] += v != LS_SAFE && is_part(b, (enum mutation_part)p);
    b->m->made[kind]++;
    b->m->verdict[kind][v]++;
    if (v == LS_SAFE)
        b->m->equal[kind]++;
    else
        b->m->caught[kind]++;
    return true;
}

static void run_naive(const struct ls_job *job, int level, struct ls_arena *arena, struct naive *n)
{
    struct ls_run_options *o = LS_NEW(arena, struct ls_run_options, 1);
    struct ls_job *stripped = LS_NEW(arena, struct ls_job, 1);
    o->level = (enum ls_level)level;
    mutate_strip(job, arena, stripped);
    naive_run(n, mutate_has_decide(job) ? job : stripped, o, arena); /* a decide counts the ops behind it */
}

static bool check_system(const struct base *b, const struct ls_system *y, struct ls_arena *arena, struct ls_check_result *r)
{
    struct ls_error err = { 0 };
    if (ls_check_system(y, &b->check, arena, r, &err) == LS_OK)
        return true;
    ls_str_printf(b->why, "%s: not checked: %s\n", b->s.name, err.text);
    return false;
}

/* ------------------------------------------------------------------------------------------------- one changed run */

/* What has to follow, without the checker: a fixed verdict, or what words and the naive machine say. */
static bool expected_of_run(const struct base *b, const struct ls_job *job, enum mutation_kind kind, bool implied, struct ls_arena *arena,
                            struct naive *n, enum ls_verdict *out)
{
    unsigned words = mutate_words(job);
    run_naive(job, b->fixed.system.level, arena, n);
    *out = kinds[kind].follows == FOLLOWS_WORDS ? n->verdict : implied ? LS_SAFE : fixed_verdict(kinds[kind].follows);
    if (by_machine(*out) ? n->verdict != *out : n->verdict != LS_SAFE)
        return fail(b, kind, "the naive machine says", ls_verdict_name(n->verdict));
    if (kinds[kind].follows != FOLLOWS_WORDS)
        return (by_machine(*out) ? words >> *out & 1 : words == 0) || fail(b, kind, "the words do not show what the kind says", NULL);
    bool ok = words >> n->verdict & 1 || (words == 0 && n->verdict == LS_SAFE) || (words && n->verdict == LS_HANG);
    b->m->unreached += n->verdict == LS_HANG && !(words >> LS_HANG & 1);
    return ok || fail(b, kind, "words and naive machine disagree, the machine says", ls_verdict_name(n->verdict));
}

static bool check_run(struct base *b, const struct ls_job *job, enum mutation_kind kind, bool implied)
{
    struct ls_arena arena;
    struct ls_system y;
    struct ls_check_result r;
    struct naive *n;
    enum ls_verdict want;
    ls_arena_init(&arena, 0);
    n = LS_NEW(&arena, struct naive, 1);
    bool ok = expected_of_run(b, job, kind, implied, &arena, n, &want);
    mutate_system(&b->fixed.system, job, &arena, &y);
    ok = ok && check_system(b, &y, &arena, &r);
    ok = ok && as_expected(b, kind, &r, want);
    if (ok && (want == LS_MISMATCH || want == LS_MISPAIRING) &&
        (r.witness->outcome.comm != n->comm || r.witness->outcome.position != n->position))
        ok = fail(b, kind, "found at another place than the naive machine's", NULL);
    ls_arena_release(&arena);
    return ok && count(b, kind, want);
}

/* Chooses `per_kind` sites, without repetition. */
static size_t choose(struct base *b, site_vec *sites)
{
    size_t wanted = sites->count < b->per_kind ? sites->count : b->per_kind;
    for (size_t i = 0; i < wanted; i++) {
        size_t j = i + ls_random_below(&b->random, sites->count - i);
        struct site keep = sites->at[i];
        sites->at[i] = sites->at[j];
        sites->at[j] = keep;
    }
    return wanted;
}

static bool mutate_runs(struct base *b, enum mutation_kind kind)
{
    site_vec sites = { 0 };
    bool ok = true;
    mutate_sites(&b->job, kind, &sites);
    size_t wanted = choose(b, &sites);
    for (size_t i = 0; i < wanted && ok; i++) {
        struct ls_arena arena;
        struct ls_job changed;
        ls_arena_init(&arena, 0);
        mutate_job(&b->job, kind, sites.at[i], &arena, &changed);
        ok = check_run(b, &changed, kind, kind == MUTATE_NO_WAIT && sites.at[i].other == 0);
        if (!ok)
            site_text(b, &b->job, sites.at[i]);
        ls_arena_release(&arena);
    }
    ls_vec_release(&sites);
    return ok;
}

/* ------------------------------------------------------------------------------------------------- any size */

static bool check_letter(struct base *b, const struct ls_job *job, enum mutation_kind kind, struct site site)
{
    struct ls_arena arena;
    struct ls_system y;
    struct ls_check_result r;
    ls_arena_init(&arena, 0);
    bool ok = true;
    if (!mutate_letter(&b->any.system, &b->a, job, kind, site, &arena, &y))
        goto out;
    ok = check_system(b, &y, &arena, &r);
    enum ls_verdict want = fixed_verdict(kinds[kind].follows);
    if (ok && by_machine(r.verdict)) { /* its witness, on the other machine */
        struct naive *n = LS_NEW(&arena, struct naive, 1);
        if (r.witness->job.ranks > NAIVE_RANKS)
            ok = fail(b, kind, "a witness with more ranks than one change needs", NULL);
        else
            run_naive(&r.witness->job, y.level, &arena, n);
        if (ok && n->verdict != r.verdict)
            ok = fail(b, kind, "the naive machine sees in the witness", ls_verdict_name(n->verdict));
        if (kinds[kind].follows == FOLLOWS_WORDS)
            want = r.verdict == LS_MISMATCH || r.verdict == LS_MISPAIRING || r.verdict == LS_HANG ? r.verdict : LS_UNDECIDED;
    }
    ok = ok && as_expected(b, kind, &r, want);
    if (ok)
        count(b, kind, want);
out:
    ls_arena_release(&arena);
    return ok;
}

static bool mutate_letters(struct base *b, enum mutation_kind kind)
{
    struct ls_arena arena;
    struct ls_job job;
    struct ls_error err = { 0 };
    site_vec sites = { 0 };
    bool ok = true;
    if (b->s.kind == LS_PLAN_RAW)
        return true;
    ls_arena_init(&arena, 0);
    if (ls_system_job(&b->any.system, &b->a, &arena, &job, &err) != LS_OK)
        ok = fail(b, kind, "no run", err.text);
    else
        mutate_sites(&job, kind, &sites);
    size_t wanted = choose(b, &sites);
    for (size_t i = 0; i < wanted && ok; i++) {
        ok = check_letter(b, &job, kind, sites.at[i]);
        if (!ok)
            site_text(b, &job, sites.at[i]);
    }
    ls_vec_release(&sites);
    ls_arena_release(&arena);
    return ok;
}

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
            ok = check_run(b, &changed, kind, false);
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
        ok = ls_system_job(&b->fixed.system, &a, &arena, &changed, &err) == LS_OK || fail(b, kind, "no run", err.text);
        struct ls_check_options keep = b->check;
        b->check.races = b->check.gradients = false;
        ok = ok && check_run(b, &changed, kind, false);
        b->check = keep;
    }
    ls_arena_release(&arena);
    return ok;
}

static bool mutate_plans(struct base *b, enum mutation_kind kind)
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
        v->run_dummy_forward = 0;
        return d != NULL && !s->ddp.present; /* DDP runs what dummy there is */
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
    run_naive(&w->job, y->level, arena, n);
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
    enum ls_verdict want = fixed_verdict(kinds[kind].follows);
    bool ok = true;
    ls_arena_init(&arena, 0);
    if (!other_scenario(b, kind, choice, &arena, &s, &v))
        goto out;
    if (ls_scenario_compile(&s, &v, true, &c, &err) != LS_OK) {
        ok = fail(b, kind, "not compiled", err.text);
        goto out;
    }
    if (c.refusal.rule || (kind == MUTATE_UNOWNED && !c.around && !disown(b, choice, &c, &s)))
        goto compiled;
    struct ls_check_options keep = b->check;
    if (kind == MUTATE_SUM)
        b->check.mean = !b->check.mean;
    ok = check_system(b, &c.system, &arena, &r);
    b->check = keep;
    if (ok && kinds[kind].follows == FOLLOWS_BRUTE) {
        ls_brute_force(&c.system, &bounds, &arena, &brute);
        want = brute.failed ? brute.verdict : LS_SAFE;
        if (by_machine(r.verdict)) /* its run is allowed, and fails on the other machine, too: it need not be brute force's */
            want = naive_verdict(&c.system, r.witness, &arena);
    }
    ok = ok && as_expected(b, kind, &r, want);
    if (ok)
        count(b, kind, want);
compiled:
    ls_compiled_release(&c);
out:
    ls_arena_release(&arena);
    return ok;
}

static bool mutate_scenarios(struct base *b, enum mutation_kind kind)
{
    bool ok = true, once = kind == MUTATE_NO_GUARANTEE || kind == MUTATE_NO_DUMMY || kind == MUTATE_SUM || kind == MUTATE_NEVER;
    if (b->s.kind == LS_PLAN_RAW || b->s.batch.execution == LS_EXEC_TABLE)
        return true;
    for (unsigned i = 0; i < (once ? 1 : b->per_kind) && ok; i++)
        ok = check_scenario(b, kind, ls_random_below(&b->random, 1 << 20));
    return ok;
}

/* ------------------------------------------------------------------------------------------------- bases */

static bool mutate_base(struct base *b)
{
    bool ok = true;
    b->m->bases++;
    for (int p = 0; p < MUTATION_PARTS; p++)
        b->m->part_bases[p] += is_part(b, (enum mutation_part)p);
    for (int k = 0; k < MUTATION_KINDS && ok; k++) {
        enum mutation_kind kind = (enum mutation_kind)k;
        switch (kinds[k].family) {
        case RANK:
        case ALL:
            ok = !b->words || mutate_runs(b, kind);
            break;
        case LETTER:
            ok = !b->words || mutate_letters(b, kind);
            break;
        case PLAN:
            ok = !b->words || mutate_plans(b, kind);
            break;
        case SCENARIO:
            ok = mutate_scenarios(b, kind);
            break;
        }
    }
    return ok;
}

static bool with_sizes(struct base *b, size_t ops_max, struct ls_error *err)
{
    struct ls_variant as_written = LS_AS_WRITTEN;
    size_t shard = b->s.kind != LS_PLAN_RAW && b->s.mesh.ep > 1 ? 2 * b->s.mesh.ep : b->random % 3 ? 2 : 3; /* beside expert groups: two of them */
    if (b->s.kind != LS_PLAN_RAW && b->sized.mesh.shard == LS_SIZE_ANY)
        b->sized.mesh.shard = shard;
    if (b->s.kind != LS_PLAN_RAW && b->sized.mesh.replicate == LS_SIZE_ANY)
        b->sized.mesh.replicate = 2;
    if (ls_scenario_compile(&b->sized, &as_written, false, &b->fixed, err) != LS_OK)
        return false;
    bool ok = !b->fixed.refusal.rule && b->fixed.system.level != LS_L3 &&
              ls_replay_assignment(&b->fixed, 1, b->random, &b->arena, &b->a, err) == LS_OK &&
              ls_system_job(&b->fixed.system, &b->a, &b->arena, &b->job, err) == LS_OK && b->job.ranks <= NAIVE_RANKS &&
              mutate_longest(&b->job) <= ops_max;
    if (!ok)
        ls_compiled_release(&b->fixed);
    else
        b->words = !mutate_has_decide(&b->job);
    return ok;
}

static bool mutations_of(struct base *b, size_t ops_max)
{
    struct ls_variant as_written = LS_AS_WRITTEN;
    struct ls_check_result r;
    struct ls_error err = { 0 };
    bool ok = true;
    b->sized = b->s;
    b->check = (struct ls_check_options){ .replicas_max = 4, .gradients = b->s.kind != LS_PLAN_RAW, .races = true, .mean = b->s.mean };
    if (ls_scenario_compile(&b->s, &as_written, false, &b->any, &err) != LS_OK)
        return true;
    if (b->any.refusal.rule || !with_sizes(b, ops_max, &err))
        goto out;
    if (ls_check_system(&b->any.system, &b->check, &b->arena, &r, &err) == LS_OK && r.verdict == LS_SAFE)
        ok = mutate_base(b);
    ls_compiled_release(&b->fixed);
out:
    ls_compiled_release(&b->any);
    return ok;
}

static bool run_base(struct mutations *m, const char *path, const char *text, size_t length, uint64_t seed, unsigned per_kind, size_t ops_max,
                     struct ls_str *why)
{
    struct base b = { .m = m, .per_kind = per_kind, .random = ls_hash_mix(seed, 977), .why = why };
    struct ls_error err = { 0 };
    ls_arena_init(&b.arena, 0);
    b.names = ls_names_open();
    bool read = text ? ls_scenario_read(text, length, path, &b.arena, b.names, &b.s, &err) == LS_OK
                     : ls_scenario_load(path, &b.arena, b.names, &b.s, &err) == LS_OK;
    if (!read)
        ls_str_printf(why, "%s: not read: %s\n", path, err.text);
    bool ok = read && mutations_of(&b, ops_max);
    if (!ok)
        ls_str_printf(why, "  seed %" PRIu64 " of %s\n%s", seed, path, text ? text : "");
    ls_names_close(b.names);
    ls_arena_release(&b.arena);
    return ok;
}

bool mutations_of_file(struct mutations *m, const char *path, uint64_t seed, unsigned per_kind, size_t ops_max, struct ls_str *why)
{
    return run_base(m, path, NULL, 0, seed, per_kind, ops_max, why);
}

bool mutations_of_seed(struct mutations *m, uint64_t seed, unsigned per_kind, size_t ops_max, struct ls_str *why)
{
    struct ls_str text = { 0 };
    random_scenario(seed, &text);
    bool ok = run_base(m, "random.yaml", ls_str_text(&text), text.length, seed, per_kind, ops_max, why);
    ls_str_release(&text);
    return ok;
}

size_t mutations_caught(const struct mutations *m)
{
    size_t n = 0;
    for (int k = 0; k < MUTATION_KINDS; k++)
        n += m->caught[k];
    return n;
}

void mutations_print(const struct mutations *m)
{
    size_t made = 0, equal = 0;
    for (int k = 0; k < MUTATION_KINDS; k++) {
        made += m->made[k], equal += m->equal[k];
        printf("  %-44s %6zu made, %6zu caught, %5zu equivalent;", kinds[k].name, m->made[k], m->caught[k], m->equal[k]);
        for (int v = 0; v < LS_VERDICT_COUNT; v++)
            if (m->verdict[k][v] && v != LS_SAFE)
                printf(" %s %zu", ls_verdict_name((enum ls_verdict)v), m->verdict[k][v]);
        printf("\n");
    }
    printf("mutations: %zu safe plans changed in %zu ways: %zu caught with the right verdict, %zu equivalent, %zu of the hangs before the "
           "first difference\n", m->bases, made, mutations_caught(m), equal, m->unreached);
    static const char *const part[] = { "loops or metrics", "expert groups", "DDP" };
    for (int p = 0; p < MUTATION_PARTS; p++) {
        size_t caught = 0, of = 0;
        for (int k = 0; k < MUTATION_KINDS; k++)
            caught += m->part_caught[p][k], of += m->part_caught[p][k] > 0;
        printf("  with %s: %zu plans, %zu changes of %zu kinds caught; none of:", part[p], m->part_bases[p], caught, of);
        for (int k = 0; k < MUTATION_KINDS; k++)
            if (!m->part_caught[p][k])
                printf(" %s;", kinds[k].name);
        printf("\n");
    }
}
