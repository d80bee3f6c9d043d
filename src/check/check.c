/* One system, one verdict: execute a table, else prove; confirm and shrink a violation; explore what the proof leaves open.
 *
 * Gradients and buffers of plans whose collectives are proved. What a gradient buffer holds is linear in the shares, and which
 * ops move a rank's own share is decided by that rank alone: its program from the backward compute to the step. Its words
 * agree with everybody's, so a collective adds up what its members put in whatever else they do. A replica's state says what
 * is still pending (it is canonical), so runs that take every transition of a replica, alone among replicas with the same
 * letters and next to replicas with each other letter, show every way in which a rank's own share is lost or scaled, and every
 * way in which one rank's share misses another rank's step. What they do not show is a loss that needs three replicas that
 * all differ: that needs a collective whose effect depends on more than the sum, which no op has. Buffers of a rank depend on
 * its own program only. `known` tells how the collectives are known; runs_checked and runs_complete tell this part. */
#include "check/check.h"

#include "check/gradient.h"
#include "check/intern.h"
#include "check/minimise.h"
#include "check/proof.h"
#include "check/reach.h"
#include "check/resident.h"
#include "check/sweep.h"
#include "check/unfold.h"

#include <assert.h>
#include <string.h>

enum { REPLICAS_DEFAULT = 6, TUPLES_MAX = 4096, REACH_MAX = 20000, SWEEP_RUNS = 4000, SWEEP_ROUNDS = 6 };
static const size_t ops_budget = 200000000; /* executed when gradients and buffers are checked */
enum { UNFOLDED_WORK = 200000000 };

struct checker {
    const struct ls_system *s;
    const struct ls_check_options *o;
    struct ls_arena *arena;
    struct ls_check_result *out;
    struct ls_error *err;
    double until;
};

static void progress(const struct checker *k, const char *stage, size_t done, size_t total)
{
    if (k->o->progress)
        k->o->progress(k->o->progress_self, stage, done, total);
}

static bool out_of_time(const struct checker *k)
{
    return k->until > 0 && ls_clock() > k->until;
}

static enum ls_code run_machine(const struct checker *k, const struct ls_assignment *a, struct ls_arena *arena, struct ls_witness *w)
{
    *w = (struct ls_witness){ .assignment = *a };
    enum ls_code rc = ls_system_job(k->s, a, arena, &w->job, k->err);
    return rc == LS_OK ? ls_system_run(k->s, &w->job, arena, &w->outcome, NULL, k->err) : rc;
}

/* Runs the assignment: the machine first, then what a completed run did to gradients and buffers. */
static enum ls_code execute(const struct checker *k, const struct ls_assignment *a, struct ls_arena *arena, struct ls_witness *w,
                            enum ls_verdict *verdict)
{
    enum ls_code rc = run_machine(k, a, arena, w);
    *verdict = rc == LS_OK ? w->outcome.verdict : LS_UNDECIDED;
    if (rc != LS_OK || *verdict != LS_SAFE)
        return rc;
    if (k->o->races) {
        struct ls_race *race;
        size_t races;
        rc = ls_machine_races(&w->job, 1, arena, &race, &races, k->err);
        if (rc == LS_OK && races) {
            *verdict = w->outcome.verdict = LS_RACE;
            w->outcome.a = race->a;
            w->outcome.b = race->b;
            w->race = *race;
        }
        if (rc != LS_OK || races)
            return rc;
    }
    if (k->o->gradients)
        rc = ls_check_gradients(&w->job, k->o->mean, verdict, &w->share, k->err);
    if (rc == LS_OK)
        w->outcome.verdict = *verdict;
    return rc;
}

static enum ls_code set_witness(const struct checker *k, const struct ls_assignment *a, bool minimal)
{
    struct ls_witness *w = LS_NEW(k->arena, struct ls_witness, 1);
    enum ls_code rc = execute(k, a, k->arena, w, &k->out->verdict);
    w->minimal = minimal;
    k->out->witness = w;
    k->out->limit = NULL;
    return rc;
}

static size_t replicas_max(const struct checker *k)
{
    return k->o->replicas_max ? k->o->replicas_max : REPLICAS_DEFAULT;
}

/* The smallest failing run; `a->rounds` 0: none is known. */
static enum ls_code shrink(const struct checker *k, struct ls_assignment *a, bool *found, bool *minimal)
{
    struct ls_minimise_options o = { .replicas_max = replicas_max(k), .until = k->until, .rounds_max = k->o->rounds_max };
    progress(k, "witness", 0, 0);
    return ls_minimise(k->s, &o, k->arena, a, found, minimal, &k->out->explored, k->err);
}

/* `ran`: this run was executed and failed. Large given meshes are not executed twice. */
static enum ls_code confirmed(const struct checker *k, struct ls_witness *ran)
{
    bool found, minimal;
    struct ls_assignment a = ran->assignment;
    enum ls_code rc = shrink(k, &a, &found, &minimal);
    if (rc == LS_OK && a.letter != ran->assignment.letter)
        return set_witness(k, &a, minimal);
    ran->minimal = minimal;
    k->out->witness = ran;
    k->out->verdict = ran->outcome.verdict;
    k->out->limit = NULL;
    return rc;
}

static enum ls_code undecided(const struct checker *k, const char *limit)
{
    k->out->verdict = LS_UNDECIDED;
    k->out->known = LS_KNOWN_EXPLORED;
    k->out->limit = limit;
    return LS_OK;
}

static enum ls_code proved(const struct checker *k, bool fold)
{
    k->out->verdict = LS_SAFE;
    k->out->known = LS_KNOWN_PROVED;
    k->out->every_length = true;
    k->out->every_size = fold && k->s->free_dims != 0;
    for (size_t d = 0; d < LS_FREE_DIMS; d++)
        if ((k->s->free_dims >> d & 1) && k->s->size[d])
            k->out->every_size = false;
    return LS_OK;
}

/* A violation of an unfolded system, as a run of this one. *decided: it fails when executed. */
static enum ls_code confirm_unfolded(const struct checker *k, const struct ls_unfolded *u, const struct ls_assignment *candidate, bool *decided)
{
    struct ls_assignment a;
    struct ls_witness *w = LS_NEW(k->arena, struct ls_witness, 1);
    ls_unfold_assignment(u, k->s->size, candidate, k->arena, &a);
    enum ls_code rc = run_machine(k, &a, k->arena, w);
    if (rc != LS_OK || w->outcome.verdict == LS_SAFE)
        return rc;
    *decided = true;
    return confirmed(k, w);
}

/* All sizes are given: the mesh itself, all of its choices and any number of rounds, without folding. */
static enum ls_code prove_given_sizes(const struct checker *k, bool *decided)
{
    struct ls_unfolded u;
    for (size_t d = 0; d < LS_FREE_DIMS; d++)
        if ((k->s->free_dims >> d & 1) && !k->s->size[d])
            return LS_OK;
    if (!k->s->free_dims && k->s->contract.extra == LS_CONTRACT_FREE)
        return LS_OK; /* folding one replica was exact already */
    if (k->s->size[0] * k->s->size[1] > 64 || !ls_unfold(k->s, k->s->size, TUPLES_MAX, k->arena, &u))
        return LS_OK;
    struct ls_prove_options o = { .macro_states_max = k->o->explore_states_max, .work_max = UNFOLDED_WORK, .until = k->until };
    struct ls_proof proof;
    progress(k, "given sizes", 0, 0);
    enum ls_code rc = ls_prove_with(&u.system, &o, k->arena, &proof, k->err);
    if (rc == LS_OK)
        k->out->explored += proof.folded_rounds;
    if (rc == LS_OK && proof.end == LS_PROOF_SAFE) {
        *decided = true;
        k->out->macro_states = proof.macro_states;
        k->out->folded_rounds = proof.folded_rounds;
        rc = proved(k, false);
    } else if (rc == LS_OK && proof.end == LS_PROOF_VIOLATED) {
        rc = confirm_unfolded(k, &u, &proof.candidate, decided);
    }
    ls_unfold_close(&u);
    return rc;
}

/* Groups of a fixed number of neighbours: folding forgets that they are few. Fold blocks of that many replicas instead; where
 * the number of blocks is free, one block and several are two plans. */
static enum ls_code prove_blocks(const struct checker *k, bool *decided)
{
    size_t small = 0, along = 0;
    bool across = false;
    for (size_t c = 0; c < k->s->replica->tables->comm.count; c++) {
        const struct ls_comm_info *info = &k->s->replica->tables->comm.at[c];
        if (info->small > 1 && (info->free_dims & k->s->free_dims)) {
            small = info->small;
            along = (info->free_dims & k->s->free_dims) & LS_DIM_SHARD ? 1 : 0;
        }
        across = across || info->across;
    }
    if (!small || (k->s->size[along] && k->s->size[along] % small))
        return LS_OK;
    bool safe = true;
    enum ls_code rc = LS_OK;
    for (int one = 1; one >= 0 && rc == LS_OK && safe; one--) {
        if (k->s->size[along] ? (k->s->size[along] == small) != one : one && across)
            continue; /* where there are groups across blocks, a single block is another plan */
        struct ls_unfolded u;
        struct ls_proof proof;
        struct ls_prove_options o = { .macro_states_max = k->o->macro_states_max, .work_max = UNFOLDED_WORK, .until = k->until };
        if (!ls_unfold_blocks(k->s, along, small, one, TUPLES_MAX, k->arena, &u))
            return LS_OK;
        progress(k, "blocks", 0, 0);
        rc = ls_prove_with(&u.system, &o, k->arena, &proof, k->err);
        if (rc == LS_OK) {
            safe = proof.end == LS_PROOF_SAFE;
            k->out->macro_states = proof.macro_states;
            k->out->folded_rounds += proof.folded_rounds;
        }
        if (rc == LS_OK && proof.end == LS_PROOF_VIOLATED)
            rc = confirm_unfolded(k, &u, &proof.candidate, decided);
        ls_unfold_close(&u);
    }
    if (rc != LS_OK || !safe)
        return rc;
    *decided = true;
    return proved(k, true);
}

/* Rounds of the longest run, or SIZE_MAX. */
static size_t longest_run(const struct ls_driver *d, struct ls_arena *arena)
{
    uint32_t *length = LS_NEW(arena, uint32_t, d->nodes);
    length[0] = 1;
    for (size_t round = 0; round <= d->nodes; round++) {
        bool grew = false;
        for (size_t n = 0; n < d->nodes; n++)
            for (size_t i = 0; i < d->node[n].nexts && length[n]; i++)
                if (length[d->node[n].next[i]] < length[n] + 1) {
                    length[d->node[n].next[i]] = length[n] + 1;
                    grew = true;
                }
        if (!grew) {
            size_t most = 0;
            for (size_t n = 0; n < d->nodes; n++)
                most = length[n] > most ? length[n] : most;
            return most;
        }
    }
    return SIZE_MAX;
}

/* Small meshes: first all their runs at once, then run by run where that is not possible. */
static enum ls_code explore(const struct checker *k, const char *limit)
{
    struct ls_assignment a = { 0 };
    bool found = false, minimal = false, by_run = k->s->level == LS_L3;
    enum ls_code rc = LS_OK;
    if (!by_run)
        rc = shrink(k, &a, &found, &minimal);
    if (rc != LS_OK || found)
        return rc != LS_OK ? rc : set_witness(k, &a, minimal);
    if (minimal && !by_run) /* every mesh was decided for all lengths: runs would show nothing more */
        return undecided(k, limit);
    size_t (*mesh)[LS_FREE_DIMS];
    size_t meshes = ls_meshes(k->s, replicas_max(k), k->arena, &mesh);
    if (!meshes && k->s->size[0] && k->s->size[1] && k->s->size[0] * k->s->size[1] <= 4096) {
        meshes = 1;
        mesh = ls_arena_copy(k->arena, &k->s->size, sizeof k->s->size);
    }
    size_t longest = longest_run(&k->s->driver, k->arena), rounds = k->o->rounds_max ? k->o->rounds_max : SWEEP_ROUNDS;
    bool complete = longest <= rounds && meshes == 1;
    for (size_t d = 0; d < LS_FREE_DIMS; d++)
        complete = complete && (!(k->s->free_dims >> d & 1) || k->s->size[d]);
    for (size_t i = 0; i < meshes && rc == LS_OK && !out_of_time(k); i++) {
        struct ls_sweep_options o = { .rounds_max = rounds, .runs_max = SWEEP_RUNS, .seed = k->o->seed, .until = k->until };
        struct ls_sweep sweep;
        progress(k, "meshes", i, meshes);
        rc = ls_sweep(k->s, mesh[i], &o, k->arena, &sweep, k->err);
        k->out->explored += sweep.runs;
        if (rc == LS_OK && sweep.failed)
            return set_witness(k, &sweep.assignment, false);
        complete = complete && sweep.complete;
    }
    if (rc != LS_OK || !complete || out_of_time(k))
        return rc == LS_OK ? undecided(k, limit) : rc;
    k->out->verdict = LS_SAFE; /* every run that there is was executed */
    k->out->known = LS_KNOWN_EXPLORED;
    k->out->every_length = true;
    return LS_OK;
}

/* Slots that suffice in every state of every rank (Theorem 5). */
static unsigned slots_needed(const struct checker *k, const struct ls_reach *r)
{
    unsigned most = 0;
    for (size_t y = 0; y < k->s->replica->roles; y++) {
        struct ls_choice *choice = LS_NEW(k->arena, struct ls_choice, r->segments);
        struct ls_choices node = { choice, 0 };
        for (size_t i = 0; i < r->segments; i++)
            if (r->role_of[i] == y)
                choice[node.count++].segment = r->segment[i];
        struct ls_family_rank rank = { &node, 1 };
        unsigned n = ls_resident_bound(&rank, k->s->replica->tables, k->arena);
        most = n > most ? n : most;
    }
    return most;
}

/* Letters and rounds that yield the same segments give the same job: once is enough. */
static enum ls_code seen_before(const struct checker *k, const struct ls_assignment *a, struct ls_arena *scratch, struct ls_intern *jobs,
                                bool *seen)
{
    struct ls_job job;
    ls_word_vec key = { 0 };
    enum ls_code rc = ls_system_job(k->s, a, scratch, &job, k->err);
    for (size_t r = 0; rc == LS_OK && r < job.ranks; r++)
        for (size_t i = 0; i < job.rank[r].count; i++) {
            uint64_t p = (uint64_t)(uintptr_t)job.rank[r].segment[i];
            ls_push(&key, (uint32_t)p);
            ls_push(&key, (uint32_t)(p >> 32));
        }
    size_t count = ls_intern_count(jobs);
    *seen = rc == LS_OK && ls_intern_put(jobs, key.at, key.count) < count;
    ls_vec_release(&key);
    return rc;
}

/* Runs that take every transition, small enough to execute, for gradients and buffers. */
static enum ls_code check_runs(const struct checker *k, const struct ls_reach *r)
{
    /* All runs complete in every order of starts; what they leave behind is the same in each: one is enough. */
    struct ls_system one_order = *k->s;
    struct checker once = *k;
    once.s = &one_order;
    if (one_order.start_rule == LS_START_ANY)
        one_order.kernels = 0;
    size_t size[LS_FREE_DIMS], used = 0;
    for (size_t d = 0; d < LS_FREE_DIMS; d++) {
        size_t step, least;
        ls_system_sizes(k->s, d, &step, &least);
        size[d] = !(k->s->free_dims >> d & 1) ? 1 : k->s->size[d] && (r->factors || k->s->size[d] < least) ? k->s->size[d] : least;
    }
    if (k->s->contract.extra != LS_CONTRACT_FREE) /* room for the replica that the contract asks for */
        for (size_t d = LS_FREE_DIMS; d-- > 0;)
            if (k->s->free_dims >> d & 1) {
                size_t step, least;
                ls_system_sizes(k->s, d, &step, &least);
                least = least > 3 ? least : 3;
                size[d] = k->s->size[d] ? k->s->size[d] : (least + step - 1) / step * step;
                break;
            }
    bool more = true, complete = r->complete;
    struct ls_intern jobs = { 0 };
    struct ls_arena scratch;
    ls_arena_init(&scratch, 0);
    enum ls_code rc = LS_OK;
    for (size_t i = 0; more && rc == LS_OK && k->out->verdict == LS_SAFE; i++) {
        struct ls_assignment a;
        struct ls_witness w;
        enum ls_verdict v = LS_SAFE;
        bool fits;
        ls_arena_release(&scratch);
        more = ls_reach_run(k->s, r, i, size, &scratch, &a, &fits);
        if (!more || !fits)
            continue;
        bool seen;
        rc = seen_before(k, &a, &scratch, &jobs, &seen);
        if (rc != LS_OK || seen)
            continue;
        if (used > ops_budget || out_of_time(k)) {
            complete = false;
            break;
        }
        rc = execute(&once, &a, &scratch, &w, &v);
        used += w.outcome.issued + 1000;
        k->out->runs_checked++;
        if (k->out->runs_checked % 64 == 0)
            progress(k, "gradients", i, r->at.count * k->s->replica->letters * k->s->replica->letters);
        if (rc == LS_OK && v != LS_SAFE) {
            a.node = ls_arena_copy(k->arena, a.node, a.rounds * sizeof *a.node);
            a.letter = ls_arena_copy(k->arena, a.letter, a.rounds * size[0] * size[1] * sizeof *a.letter);
            rc = set_witness(k, &a, false);
        }
    }
    ls_arena_release(&scratch);
    ls_intern_release(&jobs);
    k->out->runs_complete = complete;
    return rc;
}

static enum ls_code after_proof(const struct checker *k)
{
    struct ls_reach r;
    enum ls_code rc = ls_reach_all(k->s, REACH_MAX, k->arena, &r, k->err);
    if (rc == LS_OK) {
        k->out->kernels_needed = slots_needed(k, &r);
        bool slots = k->s->level == LS_L3 && k->s->kernels && k->s->start_rule == LS_START_ANY;
        if (slots && k->s->kernels < k->out->kernels_needed) {
            k->out->every_size = k->out->every_length = false;
            rc = explore(k, "fewer kernel slots than streams and communicators may need at a time");
            if (rc == LS_OK && k->out->verdict == LS_SAFE)
                k->out->kernels_needed = k->s->kernels;
        }
        if (rc == LS_OK && k->out->verdict == LS_SAFE && (k->o->gradients || k->o->races))
            rc = check_runs(k, &r);
    }
    ls_vec_release(&r.at);
    return rc;
}

static enum ls_code run_table(const struct checker *k)
{
    const struct ls_contract *c = &k->s->contract;
    uint32_t *node = LS_NEW(k->arena, uint32_t, c->rows), at = 0;
    size_t rounds = 0;
    if (c->columns != k->s->size[0] * k->s->size[1])
        return ls_fail(k->err, LS_EINPUT, c->at, "'table' has %zu columns, but there are %zu replicas", c->columns,
                       k->s->size[0] * k->s->size[1]);
    while (rounds < c->rows) {
        node[rounds++] = at;
        if (!k->s->driver.node[at].nexts)
            break;
        at = k->s->driver.node[at].next[0];
    }
    struct ls_assignment a = { { k->s->size[0], k->s->size[1] }, rounds, node, c->table };
    k->out->known = LS_KNOWN_EXECUTED;
    k->out->explored = 1;
    enum ls_code rc = set_witness(k, &a, false);
    if (rc == LS_OK && k->out->verdict == LS_SAFE)
        k->out->witness = NULL;
    if (k->o->gradients || k->o->races) {
        k->out->runs_checked = 1;
        k->out->runs_complete = true;
    }
    return rc;
}

static enum ls_code decide(const struct checker *k)
{
    struct ls_prove_options o = { .macro_states_max = k->o->macro_states_max, .until = k->until };
    struct ls_proof proof;
    bool decided = false;
    progress(k, "proof", 0, 0);
    enum ls_code rc = ls_prove_with(k->s, &o, k->arena, &proof, k->err);
    if (rc != LS_OK)
        return rc;
    k->out->states = proof.states;
    k->out->macro_states = proof.macro_states;
    k->out->folded_rounds = proof.folded_rounds;
    const char *limit = proof.limit;
    if (proof.end == LS_PROOF_SAFE) {
        rc = proved(k, true);
        return rc == LS_OK ? after_proof(k) : rc;
    }
    if (proof.end == LS_PROOF_VIOLATED) {
        struct ls_witness *w = LS_NEW(k->arena, struct ls_witness, 1);
        rc = run_machine(k, &proof.candidate, k->arena, w);
        if (rc != LS_OK)
            return rc;
        if (w->outcome.verdict != LS_SAFE)
            return confirmed(k, w);
        limit = k->s->level == LS_L3 ? "safe with blocking calls is not shown, and kernels may start in issue order only"
                                     : "a violation of the folded plan whose run completes";
    }
    rc = prove_blocks(k, &decided);
    if (rc == LS_OK && !decided)
        rc = prove_given_sizes(k, &decided);
    if (rc == LS_OK && decided)
        return k->out->verdict == LS_SAFE ? after_proof(k) : LS_OK;
    return rc == LS_OK ? explore(k, limit) : rc;
}

enum ls_code ls_check_system(const struct ls_system *s, const struct ls_check_options *o, struct ls_arena *arena,
                             struct ls_check_result *out, struct ls_error *err)
{
    struct checker k = { .s = s, .o = o, .arena = arena, .out = out, .err = err };
    double start = ls_clock();
    k.until = o->seconds_max > 0 ? start + o->seconds_max : 0;
    *out = (struct ls_check_result){ .verdict = LS_UNDECIDED };
    enum ls_code rc = s->contract.extra == LS_CONTRACT_TABLE ? run_table(&k) : decide(&k);
    out->seconds = ls_clock() - start;
    return rc;
}
