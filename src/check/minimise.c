#include "check/minimise.h"

#include "check/proof.h"
#include "check/sweep.h"
#include "check/unfold.h"

#include <string.h>

enum { TUPLES_MAX = 4096, MACRO_STATES_MAX = 20000 };

static size_t step_of(const struct ls_system *s, uint32_t dim)
{
    size_t step = 1;
    for (size_t c = 0; c < s->replica->tables->comm.count; c++) {
        const struct ls_comm_info *info = &s->replica->tables->comm.at[c];
        if ((info->free_dims & dim) && info->small > step)
            step = info->small;
    }
    return step;
}

static bool size_fits(const struct ls_system *s, size_t d, size_t n)
{
    if (!(s->free_dims >> d & 1))
        return n == 1;
    return n >= 2 && (!s->size[d] || s->size[d] == n) && n % step_of(s, 1u << d) == 0;
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

enum ls_code ls_minimise(const struct ls_system *s, const struct ls_minimise_options *o, struct ls_arena *arena,
                         struct ls_assignment *best, bool *found, bool *minimal, size_t *explored, struct ls_error *err)
{
    size_t (*mesh)[LS_FREE_DIMS];
    size_t most = best->rounds ? best->size[0] * best->size[1] : o->replicas_max;
    size_t meshes = ls_meshes(s, most < o->replicas_max ? most : o->replicas_max, arena, &mesh);
    enum ls_code rc = LS_OK;
    *found = best->rounds > 0;
    *minimal = *found && most <= o->replicas_max;
    if (!best->rounds)
        *minimal = true;
    for (size_t i = 0; i < meshes && rc == LS_OK; i++) {
        size_t replicas = mesh[i][0] * mesh[i][1], have = *found ? best->size[0] * best->size[1] : SIZE_MAX;
        if (replicas > have)
            break;
        struct ls_prove_options p = { .macro_states_max = o->macro_states_max ? o->macro_states_max : MACRO_STATES_MAX, .fewest = true,
                                      .rounds_max = replicas == have ? best->rounds : o->rounds_max, .until = o->until };
        struct ls_unfolded u;
        struct ls_proof proof;
        if (!ls_unfold(s, mesh[i], TUPLES_MAX, arena, &u)) {
            *minimal = false;
            continue;
        }
        rc = ls_prove_with(&u.system, &p, arena, &proof, err);
        *explored += proof.folded_rounds;
        struct ls_assignment a;
        bool bad = false;
        if (rc == LS_OK && proof.end == LS_PROOF_VIOLATED) {
            ls_unfold_assignment(&u, mesh[i], &proof.candidate, arena, &a);
            rc = fails(s, &a, &bad, err);
        }
        if (bad && (replicas < have || a.rounds < best->rounds || (a.size[0] == best->size[0] && a.rounds == best->rounds)))
            *best = a;
        *found = *found || bad;
        if (rc == LS_OK && !bad && (proof.end != LS_PROOF_SAFE || (proof.cut && replicas < have)))
            *minimal = false; /* something was left out, or a violation at L1 that is none under this start rule */
        ls_unfold_close(&u);
    }
    return rc;
}
