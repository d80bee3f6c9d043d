#include "check/minimise.h"

#include "check/proof.h"
#include "check/sweep.h"
#include "check/unfold.h"

#include <string.h>

enum { TUPLES_MAX = 4096, MACRO_STATES_MAX = 20000, WORK_MAX = 20000000 };

static bool size_fits(const struct ls_system *s, size_t d, size_t n)
{
    if (!(s->free_dims >> d & 1))
        return n == 1;
    size_t step, least;
    ls_system_sizes(s, d, &step, &least);
    return s->size[d] ? n == s->size[d] && n >= 2 : n >= least && n % step == 0;
}

size_t ls_meshes(const struct ls_system *s, size_t most, struct ls_arena *arena, size_t (**out)[LS_FREE_DIMS])
{
    LS_VEC(size_t) list = { 0 };
    for (size_t n = 1; n <= most; n++)
        for (size_t r = 1; r <= n; r++)
            if (n % r == 0 && size_fits(s, 0, r) && size_fits(s, 1, n / r)) {
                ls_push(&list, r);
                ls_push(&list, n / r);
            }
    size_t count = list.count / 2;
    *out = ls_arena_copy(arena, list.at, list.count * sizeof *list.at);
    ls_vec_release(&list);
    return count;
}

static enum ls_code fails(const struct ls_system *s, const struct ls_assignment *a, bool *out, struct ls_error *err)
{
    struct ls_arena scratch;
    struct ls_job job;
    struct ls_outcome outcome = { 0 };
    ls_arena_init(&scratch, 0);
    enum ls_code rc = ls_system_job(s, a, &scratch, &job, err);
    if (rc == LS_OK)
        rc = ls_system_run(s, &job, &scratch, &outcome, NULL, err);
    *out = rc == LS_OK && outcome.verdict != LS_SAFE;
    ls_arena_release(&scratch);
    return rc;
}

struct shrinker {
    const struct ls_system *s;
    const struct ls_minimise_options *o;
    struct ls_arena *arena;
    struct ls_assignment *best;
    bool found;
    size_t *explored;
    struct ls_error *err;
};

/* Looks at all runs of a mesh, or those of at most `rounds_max` rounds. *decided: nothing within that was left out. */
static enum ls_code look(struct shrinker *k, const size_t size[LS_FREE_DIMS], size_t rounds_max, bool *decided, bool *cut)
{
    struct ls_prove_options p = { .macro_states_max = k->o->macro_states_max ? k->o->macro_states_max : MACRO_STATES_MAX,
                                  .fewest = true, .rounds_max = rounds_max, .until = k->o->until,
                                  .work_max = k->o->work_max ? k->o->work_max : WORK_MAX };
    struct ls_unfolded u;
    struct ls_proof proof;
    *decided = *cut = false;
    if (!ls_unfold(k->s, size, TUPLES_MAX, k->arena, &u))
        return LS_OK;
    enum ls_code rc = ls_prove_with(&u.system, &p, k->arena, &proof, k->err);
    if (rc == LS_OK) {
        *k->explored += proof.folded_rounds;
        *decided = proof.end == LS_PROOF_SAFE;
        *cut = proof.cut;
    }
    if (rc == LS_OK && proof.end == LS_PROOF_VIOLATED) {
        struct ls_assignment a;
        bool bad = false;
        ls_unfold_assignment(&u, size, &proof.candidate, k->arena, &a);
        rc = fails(k->s, &a, &bad, k->err); /* at L3 with start in issue order a violation at L1 may be none */
        if (bad) {
            size_t replicas = size[0] * size[1], have = k->found ? k->best->size[0] * k->best->size[1] : SIZE_MAX;
            if (replicas < have || a.rounds < k->best->rounds || (a.size[0] == k->best->size[0] && a.rounds == k->best->rounds))
                *k->best = a;
            k->found = true;
            *decided = !proof.stopped;
        }
    }
    ls_unfold_close(&u);
    return rc;
}

enum ls_code ls_minimise(const struct ls_system *s, const struct ls_minimise_options *o, struct ls_arena *arena,
                         struct ls_assignment *best, bool *found, bool *minimal, size_t *explored, struct ls_error *err)
{
    enum { FIRST_ROUNDS = 4 }; /* when no failing run is known, short ones are tried on every mesh before long ones on any */
    struct shrinker k = { s, o, arena, best, best->rounds > 0, explored, err };
    size_t (*mesh)[LS_FREE_DIMS];
    size_t given = k.found ? best->size[0] * best->size[1] : 0; /* larger than asked for when larger sizes are given */
    size_t meshes = ls_meshes(s, given > o->replicas_max && given <= 16 ? given : o->replicas_max, arena, &mesh);
    bool *done = LS_NEW(arena, bool, meshes);
    enum ls_code rc = LS_OK;
    *minimal = true;
    for (int pass = 0; pass < 2; pass++)
        for (size_t i = 0; i < meshes && rc == LS_OK; i++) {
            size_t replicas = mesh[i][0] * mesh[i][1], have = k.found ? best->size[0] * best->size[1] : SIZE_MAX;
            if (replicas > have || (pass && (replicas == have || done[i])))
                continue;
            size_t rounds = pass ? o->rounds_max : k.found ? best->rounds : FIRST_ROUNDS;
            bool decided, cut;
            rc = look(&k, mesh[i], rounds, &decided, &cut);
            done[i] = decided && !cut;
            bool here = k.found && best->size[0] * best->size[1] == replicas; /* meshes with as many replicas are not looked at again */
            if (!decided && (pass || here || replicas == have))
                *minimal = false;
        }
    *found = k.found;
    if (k.found && best->size[0] * best->size[1] > o->replicas_max && best->size[0] * best->size[1] > 16)
        *minimal = false;
    return rc;
}
