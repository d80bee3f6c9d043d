#include "check/proof.h"

#include "check/fold_job.h"
#include "check/late.h"
#include "check/merged.h"
#include "check/unfold.h"
#include "check/witness.h"

#include <assert.h>
#include <string.h>
#include <time.h>

double ls_clock(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

enum {
    MACRO_STATES_DEFAULT = 200000,
    AGENTS_MAX = 1 << 20,
    FEWER_OPS_MAX = 100000 /* folded rounds that may only show a violation with fewer ops, as late as the best one */
};

struct prover {
    struct ls_fold fold;
    const struct ls_prove_options *o;
    struct ls_search search;
    struct ls_intern ids;       /* (driver node, macro-state) -> index into search.node */
    struct ls_intern keys;      /* folded rounds by what decides their outcome */
    LS_VEC(uint8_t) checked;    /* by key: the machine completed it */
    struct ls_run_options run;
    struct ls_arena *arena;
    struct ls_proof *out;
    size_t best_rounds, best_depth, best_ops; /* of the candidate: all rounds, those before the one that shows it, ops */
    size_t work, for_fewer_ops;
    struct ls_error *err;
};

static bool blocking(const struct ls_system *s)
{
    return s->level == LS_L1 || (s->level == LS_L3 && s->start_rule == LS_START_ISSUE_ORDER);
}

static enum ls_code limit(struct prover *p, const char *what)
{
    if (p->out->end != LS_PROOF_VIOLATED) {
        p->out->end = LS_PROOF_LIMIT;
        if (!p->out->limit)
            p->out->limit = what;
    }
    return LS_OK;
}

/* A bound is reached. What was found stands, but it need not be the smallest. */
static void give_up(struct prover *p, const char *what)
{
    if (p->out->end == LS_PROOF_VIOLATED)
        p->out->stopped = true;
    else
        (void)limit(p, what);
}

/* Is there a candidate already that a violation after `depth` rounds, in a run of `rounds`, would not replace? */
static bool worse(const struct prover *p, size_t rounds, size_t depth, size_t ops)
{
    if (p->out->end != LS_PROOF_VIOLATED)
        return false;
    return rounds != p->best_rounds ? rounds > p->best_rounds : depth != p->best_depth ? depth > p->best_depth : ops >= p->best_ops;
}

/* A violation in the round after `depth` others: kept if it is the best so far. */
static void found(struct prover *p, const struct ls_assignment *a, size_t depth, size_t ops)
{
    if (worse(p, a->rounds, depth, ops))
        return;
    p->out->end = LS_PROOF_VIOLATED;
    p->out->limit = NULL;
    p->out->candidate = *a;
    p->best_rounds = a->rounds;
    p->best_depth = depth;
    p->best_ops = ops;
}

static enum ls_code problem_on_path(struct prover *p, uint32_t at, uint32_t klass, const struct ls_tree *t, struct ls_arena *arena)
{
    struct ls_path path;
    struct ls_assignment a;
    enum ls_code rc = ls_search_path(&p->fold, &p->search, at, klass, arena, &path, p->err);
    if (rc != LS_OK)
        return rc;
    size_t ops = p->search.node.at[at].ops + t->ops;
    if (t->problem) {
        if (ls_witness_of_problem(&p->fold, &path, arena, &a))
            found(p, &a, p->search.node.at[at].depth, ops);
        else
            return limit(p, "a violation of the folded plan that does not fit the given sizes and contract");
        return LS_OK;
    }
    struct ls_order order;
    const struct ls_tree *last = path.tree[path.rounds - 1];
    ls_order_check(&p->fold, &last, 1, p->run.level == LS_L1, arena, &order);
    if (order.cyclic && ls_witness_of_cycle(&p->fold, &path, path.rounds - 1, &order.cycle, arena, &a)) {
        found(p, &a, p->search.node.at[at].depth, ops);
        return LS_OK;
    }
    return limit(p, "a wait cycle of the folded plan that does not fit the given sizes and contract");
}

/* Thousands of classes may fail in one round, and only the best candidate is kept: the way to each is made in memory of its own,
 * and only if it may become that. */
static enum ls_code problem_in_round(struct prover *p, uint32_t at, uint32_t klass, const struct ls_tree *t)
{
    const struct ls_search_node *n = &p->search.node.at[at];
    if (worse(p, n->depth + (size_t)p->fold.driver_distance[n->driver], n->depth, n->ops + t->ops))
        return LS_OK;
    struct ls_arena own;
    struct ls_assignment *c = &p->out->candidate;
    const uint32_t *before = c->letter;
    ls_arena_init(&own, 0);
    enum ls_code rc = problem_on_path(p, at, klass, t, &own);
    if (rc == LS_OK && p->out->end == LS_PROOF_VIOLATED && c->letter != before) {
        c->node = ls_arena_copy(p->arena, c->node, c->rounds * sizeof *c->node);
        c->letter = ls_arena_copy(p->arena, c->letter, ls_mul_size(c->rounds, c->size[0] * c->size[1]) * sizeof *c->letter);
    }
    ls_arena_release(&own);
    return rc;
}

/* The machine stopped inside a replica for a reason that neither words nor order show (point to point). */
static enum ls_code problem_in_replica(struct prover *p, uint32_t at, uint32_t klass, const struct ls_tree *t, uint32_t leaf)
{
    struct ls_path path;
    struct ls_assignment a;
    enum ls_code rc = ls_search_path(&p->fold, &p->search, at, klass, p->arena, &path, p->err);
    if (rc == LS_OK && ls_witness_of_leaf(&p->fold, &path, leaf, p->arena, &a))
        found(p, &a, p->search.node.at[at].depth, p->search.node.at[at].ops + t->ops);
    else if (rc == LS_OK)
        return limit(p, "a violation inside a replica that does not fit the contract");
    return rc;
}

/* A contract may bound how many replicas hold media in a round. Words need no more than one of them next to others, so words that agree at
 * all agree here; a wait cycle may need more. A run maps into the fold with the leaf agents that its replicas stand for, of which at most
 * `bound` hold media: where every choice of so many completes, the run does. *done: all of them were tried, and complete. */
static enum ls_code run_few(struct prover *p, const struct ls_tree *t, struct ls_arena *scratch, bool *done)
{
    enum { CHOICES_MAX = 2000 };
    const struct ls_contract *c = &p->fold.system->contract;
    const size_t leaves = t->agents[p->fold.levels - 1];
    size_t media = 0, choices = 0;
    bool *absent = LS_NEW(scratch, bool, leaves);
    uint32_t *holds = LS_NEW(scratch, uint32_t, leaves), *chosen = LS_NEW(scratch, uint32_t, c->bound + 1);
    *done = false;
    if (c->extra != LS_CONTRACT_AT_MOST)
        return LS_OK;
    for (uint32_t a = 0; a < leaves; a++) {
        uint32_t letter = t->agent[p->fold.levels - 1][a].klass; /* the last level's classes are the letters */
        if (letter < 64 && (c->media >> letter & 1))
            holds[media++] = a;
    }
    if (media <= c->bound || media == leaves)
        return LS_OK;
    for (uint32_t i = 0; i < c->bound; i++)
        chosen[i] = i;
    for (bool more = true; more;) {
        struct ls_arena_mark mark = ls_arena_mark(scratch);
        struct ls_job job;
        const uint32_t *leaf;
        struct ls_outcome outcome = { 0 };
        for (size_t i = 0; i < media; i++)
            absent[holds[i]] = true;
        for (size_t i = 0; i < c->bound; i++)
            absent[holds[chosen[i]]] = false;
        ls_fold_job(&p->fold, t, absent, scratch, &job, &leaf);
        enum ls_code rc = ls_machine_run(&job, &p->run, scratch, &outcome, p->err);
        ls_arena_rewind(scratch, mark);
        p->out->machine_runs++;
        p->work += t->ops;
        if (rc != LS_OK || outcome.verdict != LS_SAFE || ++choices > CHOICES_MAX)
            return rc;
        size_t i = c->bound; /* the next choice in order */
        while (i > 0 && chosen[i - 1] == media - c->bound + i - 1)
            i--;
        more = i > 0;
        for (size_t k = i; more && k <= c->bound; k++)
            chosen[k - 1] = k == i ? chosen[k - 1] + 1 : chosen[k - 2] + 1;
    }
    *done = true;
    return LS_OK;
}

/* Words agree, nothing is late: one run of the machine decides the round. */
static enum ls_code run_round(struct prover *p, uint32_t at, uint32_t klass, const struct ls_tree *t, struct ls_arena *scratch)
{
    uint32_t key = ls_fold_key(&p->fold, t, &p->keys);
    while (p->checked.count <= key)
        ls_push(&p->checked, 0);
    if (p->checked.at[key])
        return LS_OK;
    struct ls_job job;
    const uint32_t *leaf;
    struct ls_outcome outcome;
    ls_fold_job(&p->fold, t, NULL, scratch, &job, &leaf);
    enum ls_code rc = ls_machine_run(&job, &p->run, scratch, &outcome, p->err);
    if (rc != LS_OK)
        return rc;
    p->out->machine_runs++;
    if (outcome.verdict == LS_SAFE) {
        p->checked.at[key] = 1;
        return LS_OK;
    }
    bool few = false;
    if (!t->concrete && !t->p2p)
        rc = run_few(p, t, scratch, &few);
    if (rc != LS_OK || few)
        return rc;
    if (t->concrete || (t->p2p && outcome.a.rank != LS_NO_ID && outcome.cycle_count == 0))
        return problem_in_replica(p, at, klass, t, t->concrete ? 0 : leaf[outcome.a.rank / p->fold.roles]);
    return problem_in_round(p, at, klass, t);
}

static void push_next(struct prover *p, uint32_t at, uint32_t klass, const struct ls_tree *t)
{
    const struct ls_search_node from = p->search.node.at[at];
    const struct ls_driver_node *d = &p->fold.system->driver.node[from.driver];
    for (size_t i = 0; i < d->nexts; i++) {
        uint32_t pair[2] = { d->next[i], t->agent[0][0].next };
        size_t depth = (size_t)from.depth + 1, ops = from.ops + t->ops;
        if (p->o->rounds_max && depth + p->fold.driver_distance[d->next[i]] > p->o->rounds_max) {
            p->out->cut = true;
            continue;
        }
        uint32_t id = ls_intern_put(&p->ids, pair, 2);
        if (id == p->search.node.count) {
            ls_push(&p->search.node, (struct ls_search_node){ d->next[i], pair[1], at, klass, (uint32_t)depth, ops });
        } else if (p->search.node.at[id].depth == depth && ops < p->search.node.at[id].ops) {
            /* Same depth: not expanded yet, so the cheaper way there may replace the other. */
            p->search.node.at[id].from = at;
            p->search.node.at[id].klass = klass;
            p->search.node.at[id].ops = ops;
        }
    }
}

static enum ls_code expand(struct prover *p, uint32_t at, uint32_t klass, struct ls_arena *scratch)
{
    struct ls_tree t;
    const struct ls_search_node n = p->search.node.at[at];
    enum ls_code rc = ls_fold_round(&p->fold, n.driver, n.macro, klass, scratch, &t, p->err);
    if (rc == LS_EUNDECIDED)
        return limit(p, "more replica states than the limit");
    if (rc != LS_OK)
        return rc;
    p->out->folded_rounds++;
    p->work += t.ops + 16 * t.agents[p->fold.levels - 1];
    if (t.agents[p->fold.levels - 1] > AGENTS_MAX)
        return limit(p, "a folded round with more than a million replicas");
    if (t.limit)
        return limit(p, t.limit);
    if (t.problem)
        return problem_in_round(p, at, klass, &t);
    p->search.late = p->search.late || t.late_before || t.late_after;
    p->search.fused = p->search.fused || t.fused;
    p->search.p2p = p->search.p2p || t.p2p;
    if (!t.late_before && !t.late_after) {
        size_t before = p->best_rounds;
        enum ls_proof_end end = p->out->end;
        rc = run_round(p, at, klass, &t, scratch);
        if (rc != LS_OK || p->out->end != end || p->best_rounds != before)
            return rc; /* nothing that follows a violation counts */
    }
    push_next(p, at, klass, &t);
    return LS_OK;
}

/* May a violation at this node be better than the candidate by its ops alone? */
static bool only_ops(const struct prover *p, const struct ls_search_node *n)
{
    return p->out->end == LS_PROOF_VIOLATED && n->depth == p->best_depth && n->depth + (size_t)p->fold.driver_distance[n->driver] == p->best_rounds;
}

/* Is anything at this node still of interest once a violation is known? */
static bool beaten(const struct prover *p, const struct ls_search_node *n)
{
    if (p->out->end == LS_PROOF_LIMIT || p->out->stopped || (only_ops(p, n) && p->for_fewer_ops > FEWER_OPS_MAX))
        return true;
    if (p->out->end != LS_PROOF_VIOLATED || !p->o->fewest)
        return p->out->end == LS_PROOF_VIOLATED;
    return worse(p, n->depth + (size_t)p->fold.driver_distance[n->driver], n->depth, n->ops);
}

static enum ls_code search(struct prover *p)
{
    size_t most = p->o->macro_states_max ? p->o->macro_states_max : MACRO_STATES_DEFAULT;
    uint32_t start[2] = { 0, ls_fold_start(&p->fold) };
    (void)ls_intern_put(&p->ids, start, 2);
    ls_push(&p->search.node, (struct ls_search_node){ 0, start[1], LS_NO_ID, 0, 0, 0 });
    struct ls_arena scratch;
    ls_arena_init(&scratch, 0);
    enum ls_code rc = LS_OK;
    if (p->o->rounds_max && p->fold.driver_distance[0] > p->o->rounds_max) {
        p->out->cut = true;
        p->search.node.count = 0;
    }
    for (uint32_t at = 0; at < p->search.node.count && rc == LS_OK; at++) {
        struct ls_search_node n = p->search.node.at[at];
        if (beaten(p, &n))
            continue;
        for (uint32_t k = 0; k < p->fold.classes[0] && rc == LS_OK && !beaten(p, &n); k++)
            if (ls_fold_class_allowed(&p->fold, n.driver, k)) {
                struct ls_arena_mark mark = ls_arena_mark(&scratch);
                size_t work = p->work;
                bool fewer_ops = only_ops(p, &n);
                rc = expand(p, at, k, &scratch);
                ls_arena_rewind(&scratch, mark);
                if (fewer_ops) {
                    p->work = work;
                    p->for_fewer_ops++;
                } else if (p->o->work_max && p->work > p->o->work_max) {
                    give_up(p, "the bound on work");
                }
            }
        if (p->search.node.count > most)
            give_up(p, "more joint sets of replica states than the limit");
        if (p->o->until > 0 && at % 16 == 0 && ls_clock() > p->o->until)
            give_up(p, "the time limit");
    }
    ls_arena_release(&scratch);
    return rc;
}

/* With one communicator that spans replicas, a cycle stays in one replica: look at that replica alone, at any length. */
static enum ls_code order_of_one(struct prover *p)
{
    const struct ls_system *s = p->fold.system;
    size_t one[LS_FREE_DIMS] = { 1, 1 };
    struct ls_unfolded u;
    struct ls_proof alone = { 0 };
    struct ls_system plain = *s;
    plain.contract.extra = LS_CONTRACT_FREE;
    if (!ls_unfold(&plain, one, s->replica->letters, p->arena, &u))
        return limit(p, "too many letters");
    enum ls_code rc = ls_prove_with(&u.system, p->o, p->arena, &alone, p->err);
    if (rc == LS_OK && alone.end == LS_PROOF_LIMIT)
        (void)limit(p, alone.limit);
    if (rc == LS_OK && alone.end == LS_PROOF_VIOLATED) {
        struct ls_assignment a = alone.candidate;
        size_t size[LS_FREE_DIMS];
        bool fits = true;
        for (size_t d = 0; d < LS_FREE_DIMS; d++) {
            size_t step, least;
            ls_system_sizes(s, d, &step, &least);
            size[d] = !(s->free_dims >> d & 1) ? 1 : s->size[d] ? s->size[d] : least;
        }
        size_t replicas = size[0] * size[1];
        uint32_t *letter = LS_NEW(p->arena, uint32_t, a.rounds * replicas);
        for (size_t i = 0; i < a.rounds * replicas; i++)
            letter[i] = u.letter[a.letter[i / replicas]];
        a = (struct ls_assignment){ { size[0], size[1] }, a.rounds, a.node, letter };
        fits = ls_contract_allows(s, &a);
        if (fits)
            found(p, &a, a.rounds - 1, SIZE_MAX);
        else
            (void)limit(p, "a wait cycle of one replica that does not fit the contract");
    }
    ls_unfold_close(&u);
    return rc;
}

/* With more of them, a common order of all that spans replicas will do, however late a replica is. */
static enum ls_code common_order(struct prover *p, const char *otherwise)
{
    struct ls_merged m;
    struct ls_proof all = { 0 };
    ls_merge(p->fold.system, p->arena, &m);
    enum ls_code rc = ls_prove_with(&m.system, p->o, p->arena, &all, p->err);
    ls_merged_close(&m);
    return rc == LS_OK && all.end != LS_PROOF_SAFE ? limit(p, otherwise) : rc;
}

static enum ls_code look_at_windows(struct prover *p, const struct ls_late_options *o)
{
    struct ls_late_found hit;
    struct ls_assignment a;
    enum ls_code rc = ls_late_check(&p->fold, &p->search, o, p->arena, &hit, p->err);
    if (rc != LS_OK)
        return rc;
    if (hit.limit)
        give_up(p, hit.limit);
    else if (hit.cyclic && ls_witness_of_cycle(&p->fold, &hit.path, hit.first, &hit.cycle, p->arena, &a))
        found(p, &a, hit.path.rounds - 1, SIZE_MAX);
    else if (hit.cyclic)
        give_up(p, "a wait cycle of the folded plan that does not fit the given sizes and contract");
    return LS_OK;
}

/* Order where one replica may be rounds behind another. Rounds without residues were run already. */
static enum ls_code late_ops(struct prover *p)
{
    enum { WINDOW_MAX = 16 };
    struct ls_late late;
    struct ls_late_options o = { .rounds_max = p->o->rounds_max, .blocking = p->run.level == LS_L1, .fewest = p->o->fewest,
                                 .until = p->o->until };
    if (p->o->work_max)
        o.nodes_max = p->o->work_max > p->work ? p->o->work_max - p->work : 1;
    if (p->out->end == LS_PROOF_VIOLATED && p->best_rounds <= 1)
        return LS_OK;
    if (p->search.fused || p->search.p2p) {
        give_up(p, p->search.fused ? "fused operations in a plan with late operations" : "point-to-point operations in a plan with late operations");
        return LS_OK;
    }
    if (p->out->end == LS_PROOF_VIOLATED) { /* a shorter run may have a cycle */
        o.rounds_max = p->best_rounds - 1;
        o.window = p->best_rounds;
        return look_at_windows(p, &o);
    }
    if (p->out->cut) {
        o.window = p->o->rounds_max;
        return look_at_windows(p, &o);
    }
    enum ls_code rc = ls_late_window(&p->fold, &p->search, p->arena, &late, p->err);
    if (rc != LS_OK)
        return rc;
    if (!late.bounded || late.window > WINDOW_MAX) {
        if (late.spanning <= 1 && p->fold.system->free_dims)
            return order_of_one(p);
        const char *what = late.bounded ? "operations that stay late for too many rounds" : "an operation that may stay late for ever";
        return p->fold.system->free_dims ? common_order(p, what) : limit(p, what);
    }
    p->out->window = o.window = late.window;
    return look_at_windows(p, &o);
}

enum ls_code ls_prove_with(const struct ls_system *s, const struct ls_prove_options *o, struct ls_arena *arena, struct ls_proof *out,
                           struct ls_error *err)
{
    struct prover p = { .o = o, .arena = arena, .out = out, .err = err };
    *out = (struct ls_proof){ .window = 1 };
    p.run.level = blocking(s) ? LS_L1 : LS_L2;
    enum ls_code rc = ls_fold_open(&p.fold, s, arena, err);
    if (rc != LS_OK)
        return rc;
    rc = search(&p);
    if (rc == LS_OK && p.search.late && (out->end == LS_PROOF_SAFE || (out->end == LS_PROOF_VIOLATED && o->fewest)))
        rc = late_ops(&p);
    out->states = p.fold.states;
    out->macro_states = p.search.node.count;
    ls_vec_release(&p.search.node);
    ls_vec_release(&p.checked);
    ls_intern_release(&p.ids);
    ls_intern_release(&p.keys);
    ls_fold_close(&p.fold);
    return rc;
}

enum ls_code ls_prove(const struct ls_system *s, size_t macro_states_max, struct ls_arena *arena, struct ls_proof *out,
                      struct ls_error *err)
{
    struct ls_prove_options o = { .macro_states_max = macro_states_max };
    return ls_prove_with(s, &o, arena, out, err);
}
