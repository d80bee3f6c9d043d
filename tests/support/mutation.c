#include "mutation.h"

#include "base/hash.h"
#include "mutation_base.h"
#include "random_scenario.h"
#include "replay/replay.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum family { RANK, ALL, LETTER, PLAN, SCENARIO };
enum { NO, YES };
#define MUTATION_ROW(id, family, follows, ddp, name) { family, FOLLOWS_##follows, ddp, name },
static const struct { enum family family; enum mutation_follows follows; bool ddp; const char *name; } kinds[] = { MUTATIONS(MUTATION_ROW) };
#undef MUTATION_ROW

enum ls_verdict mutation_follows(enum mutation_kind kind)
{
    switch (kinds[kind].follows) {
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

bool mutation_on_ddp(enum mutation_kind kind)
{
    return kinds[kind].ddp;
}

bool mutation_by_machine(enum ls_verdict v)
{
    return v == LS_HANG || v == LS_MISMATCH || v == LS_MISPAIRING || v == LS_ERROR;
}

bool mutation_fail(const struct base *b, enum mutation_kind kind, const char *what, const char *got)
{
    ls_str_printf(b->why, "%s: %s: %s%s%s\n", b->s.name, kinds[kind].name, what, got ? ", " : "", got ? got : "");
    return false;
}

bool mutation_expect(const struct base *b, enum mutation_kind kind, const struct ls_check_result *r, enum ls_verdict want)
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

void mutation_count(const struct base *b, enum mutation_kind kind, enum ls_verdict v)
{
    for (int p = 0; p < MUTATION_PARTS; p++)
        b->m->part_caught[p][kind] += v != LS_SAFE && is_part(b, (enum mutation_part)p);
    b->m->made[kind]++;
    b->m->verdict[kind][v]++;
    if (v == LS_SAFE)
        b->m->equal[kind]++;
    else
        b->m->caught[kind]++;
}

void mutation_naive(const struct ls_job *job, int level, struct ls_arena *arena, struct naive *n)
{
    struct ls_run_options *o = LS_NEW(arena, struct ls_run_options, 1);
    struct ls_job *stripped = LS_NEW(arena, struct ls_job, 1);
    o->level = (enum ls_level)level;
    mutate_strip(job, arena, stripped);
    naive_run(n, mutate_has_decide(job) ? job : stripped, o, arena); /* a decide counts the ops behind it */
}

bool mutation_check(const struct base *b, const struct ls_system *y, struct ls_arena *arena, struct ls_check_result *r)
{
    struct ls_error err = { 0 };
    if (ls_check_system(y, &b->check, arena, r, &err) == LS_OK)
        return true;
    ls_str_printf(b->why, "%s: not checked: %s\n", b->s.name, err.text);
    return false;
}

/* ------------------------------------------------------------------------------------------------- one changed run */

/* What has to follow, without the checker: a fixed verdict, or what words and the naive machine say. */
static bool expected_of_run(const struct base *b, const struct ls_job *job, enum mutation_kind kind, enum ls_verdict fixed, struct ls_arena *arena,
                            struct naive *n, enum ls_verdict *out)
{
    unsigned words = mutate_words(job);
    mutation_naive(job, b->fixed.system.level, arena, n);
    *out = kinds[kind].follows == FOLLOWS_WORDS ? n->verdict : fixed;
    if (mutation_by_machine(*out) ? n->verdict != *out : n->verdict != LS_SAFE)
        return mutation_fail(b, kind, "the naive machine says", ls_verdict_name(n->verdict));
    if (kinds[kind].follows != FOLLOWS_WORDS)
        return (mutation_by_machine(*out) ? words >> *out & 1 : words == 0) || mutation_fail(b, kind, "the words do not show what the kind says", NULL);
    bool ok = words >> n->verdict & 1 || (words == 0 && n->verdict == LS_SAFE) || (words && n->verdict == LS_HANG);
    b->m->unreached += n->verdict == LS_HANG && !(words >> LS_HANG & 1);
    return ok || mutation_fail(b, kind, "words and naive machine disagree, the machine says", ls_verdict_name(n->verdict));
}

bool mutation_run(struct base *b, const struct ls_job *job, enum mutation_kind kind, enum ls_verdict fixed)
{
    struct ls_arena arena;
    struct ls_system y;
    struct ls_check_result r;
    struct naive *n;
    enum ls_verdict want;
    ls_arena_init(&arena, 0);
    n = LS_NEW(&arena, struct naive, 1);
    bool ok = expected_of_run(b, job, kind, fixed, &arena, n, &want);
    mutate_system(&b->fixed.system, job, &arena, &y);
    ok = ok && mutation_check(b, &y, &arena, &r);
    ok = ok && mutation_expect(b, kind, &r, want);
    if (ok && (want == LS_MISMATCH || want == LS_MISPAIRING) &&
        (r.witness->outcome.comm != n->comm || r.witness->outcome.position != n->position))
        ok = mutation_fail(b, kind, "found at another place than the naive machine's", NULL);
    ls_arena_release(&arena);
    if (ok)
        mutation_count(b, kind, want);
    return ok;
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

static enum ls_verdict verdict_at(const struct base *b, enum mutation_kind kind, struct site site)
{
    const struct ls_op *op = &b->job.rank[site.at.rank].segment[site.at.segment]->op[site.at.op];
    if (kind == MUTATE_NO_WAIT && site.other == 0)
        return LS_SAFE; /* other waits imply it */
    if (kind == MUTATE_ALL_DROP && op->held)
        return mutate_kept_share(&b->job, site);
    return mutation_follows(kind);
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
        ok = mutation_run(b, &changed, kind, verdict_at(b, kind, sites.at[i]));
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
    ok = mutation_check(b, &y, &arena, &r);
    enum ls_verdict want = mutation_follows(kind);
    if (ok && mutation_by_machine(r.verdict)) { /* its witness, on the other machine */
        struct naive *n = LS_NEW(&arena, struct naive, 1);
        if (r.witness->job.ranks > NAIVE_RANKS)
            ok = mutation_fail(b, kind, "a witness with more ranks than one change needs", NULL);
        else
            mutation_naive(&r.witness->job, y.level, &arena, n);
        if (ok && n->verdict != r.verdict)
            ok = mutation_fail(b, kind, "the naive machine sees in the witness", ls_verdict_name(n->verdict));
        if (kinds[kind].follows == FOLLOWS_WORDS)
            want = r.verdict == LS_MISMATCH || r.verdict == LS_MISPAIRING || r.verdict == LS_HANG ? r.verdict : LS_UNDECIDED;
    }
    ok = ok && mutation_expect(b, kind, &r, want);
    if (ok)
        mutation_count(b, kind, want);
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
        ok = mutation_fail(b, kind, "no run", err.text);
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

bool mutations_of_seed(struct mutations *m, uint64_t seed, bool ddp, unsigned per_kind, size_t ops_max, struct ls_str *why)
{
    struct ls_str text = { 0 };
    if (ddp)
        random_scenario_ddp(seed, &text);
    else
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
            if (!m->part_caught[p][k] && !(p == MUTATION_DDP && !kinds[k].ddp))
                printf(" %s;", kinds[k].name);
        printf("\n");
    }
}
