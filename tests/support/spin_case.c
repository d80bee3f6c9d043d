#include "spin_case.h"

#include "base/hash.h"
#include "check/check.h"
#include "check/explore.h"
#include "check/promela.h"
#include "check/unroll.h"
#include "families.h"
#include "random_jobs.h"
#include "random_scenario.h"
#include "random_system.h"
#include "scenario/scenario.h"
#include "spin.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What became of one attempt: compared or not (then another one is drawn), or something is wrong. */
enum outcome { COMPARED, REFUSED, LARGE, NO_PLAN, WRONG };
struct attempt {
    enum spin_source source;
    uint64_t random;
    enum ls_level level;
    size_t states_max;
    bool part[SPIN_PARTS];
    struct spin_sum *sum;
    struct ls_str *why;
};

static void add(struct spin_count *c, bool unsafe, size_t states)
{
    c->models++;
    c->unsafe += unsafe;
    c->states += states;
}

static enum outcome wrong(const struct attempt *a, const char *what, const struct ls_error *err)
{
    ls_str_printf(a->why, "%s%s%s\n", what, err ? ": " : "", err ? err->text : "");
    return WRONG;
}

static bool decides(const struct ls_family *f)
{
    for (size_t r = 0; r < f->ranks; r++)
        for (size_t n = 0; n < f->rank[r].nodes; n++)
            for (size_t c = 0; c < f->rank[r].node[n].count; c++)
                for (size_t i = 0; i < f->rank[r].node[n].choice[c].segment->count; i++)
                    if (f->rank[r].node[n].choice[c].segment->op[i].kind == LS_OP_DECIDE)
                        return true;
    return false;
}

/* ---- a family without what never waits for another rank: smaller, with the same meetings ---- */

static bool kept(const struct ls_op *op)
{
    switch ((enum ls_op_kind)op->kind) {
    case LS_OP_COMPUTE: case LS_OP_COPY_IN: case LS_OP_COPY_OUT: return op->blocking;
    case LS_OP_ALLOC: case LS_OP_FREE: case LS_OP_MARK: return false;
    default: return true;
    }
}

static const struct ls_segment *strip_segment(const struct ls_segment *g, struct ls_arena *arena)
{
    struct ls_op *op = LS_NEW(arena, struct ls_op, g->count + 1);
    uint32_t *before = LS_NEW(arena, uint32_t, g->count + 1); /* kept ops before each op */
    size_t n = 0;
    for (size_t i = 0; i < g->count; i++) {
        before[i] = (uint32_t)n;
        if (kept(&g->op[i]))
            op[n++] = g->op[i];
    }
    before[g->count] = (uint32_t)n;
    for (size_t i = 0; i < g->count; i++)
        if (g->op[i].kind == LS_OP_DECIDE) {
            size_t middle = i + 1 + g->op[i].then_count, end = middle + g->op[i].else_count;
            op[before[i]].then_count = before[middle] - before[i + 1];
            op[before[i]].else_count = before[end] - before[middle];
        }
    struct ls_segment *out = LS_NEW(arena, struct ls_segment, 1);
    *out = (struct ls_segment){ op, n, ls_segment_hash(op, n) };
    return out;
}

static void strip(struct ls_family *f, struct ls_arena *arena)
{
    struct ls_family_rank *rank = LS_NEW(arena, struct ls_family_rank, f->ranks);
    for (size_t r = 0; r < f->ranks; r++) {
        size_t same = 0; /* ranks with the same choices stay alike */
        while (same < r && f->rank[same].node != f->rank[r].node)
            same++;
        rank[r] = same < r ? rank[same] : f->rank[r];
        if (same < r)
            continue;
        struct ls_choices *node = ls_arena_copy(arena, f->rank[r].node, f->rank[r].nodes * sizeof *node);
        for (size_t n = 0; n < f->rank[r].nodes; n++) {
            struct ls_choice *choice = LS_NEW(arena, struct ls_choice, node[n].count);
            for (size_t c = 0; c < node[n].count; c++) {
                choice[c] = node[n].choice[c];
                choice[c].segment = strip_segment(choice[c].segment, arena);
            }
            node[n].choice = choice;
        }
        rank[r].node = node;
    }
    f->rank = rank;
}

/* Ops along the longest sequence of choices of a rank: what states and the size of the model grow with. */
static size_t longest(const struct ls_family *f)
{
    size_t most = 0;
    for (size_t r = 0; r < f->ranks; r++) {
        size_t *ops = calloc(f->rank[r].nodes + 1, sizeof *ops);
        for (bool grew = ops != NULL; grew;) {
            grew = false;
            for (size_t n = f->rank[r].nodes; n-- > 0;)
                for (size_t c = 0; c < f->rank[r].node[n].count; c++) {
                    const struct ls_choice *x = &f->rank[r].node[n].choice[c];
                    if (ops[n] < x->segment->count + ops[x->next]) {
                        ops[n] = x->segment->count + ops[x->next];
                        grew = true;
                    }
                }
        }
        most = ops && ops[0] > most ? ops[0] : most;
        free(ops);
    }
    return most;
}

/* ---- one model ---- */

static bool refuses_levels(const struct attempt *a, const struct ls_family *f)
{
    const struct ls_run_options not[] = { { .level = LS_L3, .kernels = 2 }, { .level = a->level, .run_ahead = 2 } };
    for (size_t i = 0; i < sizeof not / sizeof *not; i++) {
        struct ls_str text = { 0 };
        struct ls_error err = { 0 };
        bool refused = ls_promela_write(f, &not[i], "not exported", &text, &err) == LS_EINPUT && text.length == 0;
        ls_str_release(&text);
        if (!refused)
            return false;
    }
    return true;
}

/* `proved`: the proof calls what the family is a part of safe. */
static enum outcome compare(struct attempt *a, const struct ls_family *f, bool proved, struct ls_arena *arena)
{
    struct ls_explore_options o = { .run.level = a->level, .all = true, .no_path = true, .states_max = a->states_max };
    struct ls_explored ours, reduced;
    struct spin_result theirs;
    struct ls_str model = { 0 };
    struct ls_error err = { 0 };
    char why[256];
    if (ls_explore(f, &o, arena, &ours, &err) != LS_OK)
        return strstr(err.text, "fused") ? REFUSED : wrong(a, "not explored", &err);
    if (ours.limit)
        return LARGE;
    o.reduce = true;
    if (ls_explore(f, &o, arena, &reduced, &err) != LS_OK)
        return wrong(a, "not explored with reductions", &err);
    if (!refuses_levels(a, f))
        return wrong(a, "exports a level that the model does not have", NULL);
    if (ls_promela_write(f, &o.run, "a random model", &model, &err) != LS_OK) {
        ls_str_release(&model);
        return strstr(err.text, "along all choices") ? LARGE : wrong(a, "not exported", &err);
    }
    bool ran = spin_run(ls_str_text(&model), "-O0 -DSAFETY -DNOREDUCE -DMEMLIM=4000", "-m1000000 -w20 -c0", &theirs, why, sizeof why);
    bool unsafe = ours.verdict != LS_SAFE;
    bool fine = ran && ours.states == theirs.states && unsafe == (theirs.errors > 0) && unsafe == (reduced.verdict != LS_SAFE);
    if (!ran)
        ls_str_printf(a->why, "%s\n", why);
    else if (!fine)
        ls_str_printf(a->why, "states %zu, SPIN %zu; %s, reduced %s, SPIN %zu errors\n", ours.states, theirs.states, ls_verdict_name(ours.verdict),
                      ls_verdict_name(reduced.verdict), theirs.errors);
    else if (proved && unsafe)
        ls_str_printf(a->why, "proved safe for every size, but SPIN finds a run that fails\n");
    if (!fine)
        ls_str_printf(a->why, "%s", ls_str_text(&model));
    ls_str_release(&model);
    if (!fine || (proved && unsafe))
        return WRONG;
    a->part[SPIN_DECIDE] = decides(f);
    add(&a->sum->of[a->source], unsafe, ours.states);
    add(&a->sum->level[a->level], unsafe, ours.states);
    for (int p = 0; p < SPIN_PARTS; p++)
        if (a->part[p])
            add(&a->sum->part[p], unsafe, ours.states);
    a->sum->proved += proved;
    return COMPARED;
}

static enum outcome try_family(struct attempt *a)
{
    static const struct random_family size = { .ranks_max = 4, .rounds_max = 2, .choices_max = 2, .ops_max = 3, .comms_max = 3, .streams_max = 3 };
    struct families x;
    families_random(&x, &size, a->random);
    enum outcome out = compare(a, &x.family, false, &x.arena);
    families_release(&x);
    return out;
}

static enum outcome try_job(struct attempt *a)
{
    struct random_wish wish = { .p2p = true, .decide = true, .stop = a->random % 5 == 0, .mutations = 2 + 6 * (unsigned)(a->random / 5 % 2), .steps = 6 };
    struct job_builder b;
    struct ls_family f;
    random_job(&b, &wish, a->random);
    struct ls_job job = build_job(&b);
    ls_family_of_job(&job, &b.arena, &f);
    enum outcome out = compare(a, &f, false, &b.arena);
    build_close(&b);
    return out;
}

/* Two replicas along each free dimension, or the fewest that the plan's groups fit into; now and then one block more. */
static void draw_sizes(struct attempt *a, const struct ls_system *s, size_t size[LS_FREE_DIMS])
{
    for (size_t d = 0; d < LS_FREE_DIMS; d++) {
        size_t step, least;
        ls_system_sizes(s, d, &step, &least);
        size[d] = !(s->free_dims >> d & 1) ? 1 : s->size[d] ? s->size[d] : least + step * (ls_random_below(&a->random, 4) == 0);
    }
}

/* The system with a table of letters that are drawn. */
static void tabulate(struct attempt *a, struct ls_system *s, const size_t size[LS_FREE_DIMS], struct ls_arena *arena)
{
    size_t rows = 1 + ls_random_below(&a->random, 4), columns = size[0] * size[1];
    uint32_t *table = LS_NEW(arena, uint32_t, rows * columns);
    for (size_t i = 0; i < rows * columns; i++)
        table[i] = (uint32_t)ls_random_below(&a->random, s->replica->letters);
    s->contract = (struct ls_contract){ .extra = LS_CONTRACT_TABLE, .table = table, .rows = rows, .columns = columns, .name = "table" };
    a->part[SPIN_TABLE] = true;
}

static enum outcome try_system(struct attempt *a)
{
    struct ls_random_system r;
    struct ls_unrolled u;
    struct ls_error err = { 0 };
    struct ls_check_result c = { .verdict = LS_UNDECIDED };
    struct ls_check_options check = { .seed = 1, .replicas_max = 4 };
    size_t size[LS_FREE_DIMS];
    enum outcome out = REFUSED;
    ls_random_system_open(&r, a->random);
    r.system.level = (int)a->level;
    draw_sizes(a, &r.system, size);
    bool free_choice = r.contract == LS_RANDOM_ANY && r.system.contract.extra == LS_CONTRACT_FREE && r.system.replica->roles == 1;
    if (ls_check_system(&r.system, &check, &r.arena, &c, &err) != LS_OK)
        out = wrong(a, "not checked", &err);
    size_t rounds = 1 + ls_random_below(&a->random, 4);
    enum ls_code rc = ls_family_of_system(&r.system, size, rounds, &r.arena, &u, &err);
    bool too_long = rc == LS_EINPUT && strstr(err.text, "no run of at least");
    if (rc == LS_OK ? !free_choice : free_choice && !too_long) {
        out = wrong(a, free_choice ? "free choices are refused" : "exported, though replicas do not choose freely", free_choice ? &err : NULL);
    } else if (rc != LS_OK && out != WRONG) { /* one run of it can be exported in any case */
        tabulate(a, &r.system, size, &r.arena);
        rc = ls_family_of_system(&r.system, size, 0, &r.arena, &u, &err);
        if (rc != LS_OK)
            out = wrong(a, "a table is refused", &err);
        c.verdict = LS_UNDECIDED; /* its letters need not be what the contract allows */
    }
    a->part[SPIN_LATE] = strstr(r.features, " late") != NULL;
    if (rc == LS_OK && out != WRONG)
        out = compare(a, &u.family, c.verdict == LS_SAFE, &r.arena);
    if (out == WRONG)
        ls_str_printf(a->why, "%s\n", r.features);
    ls_random_system_close(&r);
    return out;
}

static enum outcome try_compiled(struct attempt *a, const struct ls_scenario *s, struct ls_compiled *c, struct ls_arena *arena)
{
    struct ls_unrolled u;
    struct ls_error err = { 0 };
    struct ls_check_result r;
    struct ls_check_options check = { .seed = 1, .replicas_max = 4 };
    size_t size[LS_FREE_DIMS];
    if (c->refusal.rule)
        return NO_PLAN;
    bool any = s->batch.execution == LS_EXEC_ANY;
    c->system.level = (int)a->level;
    draw_sizes(a, &c->system, size);
    enum ls_code rc = ls_family_of_system(&c->system, size, 1 + ls_random_below(&a->random, 4), arena, &u, &err);
    if (rc != LS_OK)
        return any && !strstr(err.text, "no run of at least") ? wrong(a, "free choices are refused", &err) : REFUSED;
    if (!any && c->system.replica->letters > 1)
        return wrong(a, "exported, though replicas do not choose freely", NULL);
    a->part[SPIN_LOOP] = s->loop.present || s->step.metrics > 0;
    a->part[SPIN_EXPERTS] = s->mesh.ep > 1;
    a->part[SPIN_DDP] = s->ddp.present;
    a->part[SPIN_HYBRID] = c->system.free_dims == (LS_DIM_REPLICATE | LS_DIM_SHARD);
    const size_t ops_max = a->level == LS_L1 ? 200 : 70; /* beyond it, hardly any has few states */
    if (longest(&u.family) > ops_max)
        strip(&u.family, arena);
    if (longest(&u.family) > ops_max)
        return LARGE;
    if (ls_check_system(&c->system, &check, arena, &r, &err) != LS_OK)
        return wrong(a, "not checked", &err);
    return compare(a, &u.family, r.verdict == LS_SAFE, arena);
}

static enum outcome try_scenario(struct attempt *a)
{
    struct ls_str text = { 0 };
    struct ls_arena arena;
    struct ls_names *names = ls_names_open();
    struct ls_scenario s;
    struct ls_compiled c;
    struct ls_error err = { 0 };
    struct ls_variant as_written = LS_AS_WRITTEN;
    enum outcome out;
    ls_arena_init(&arena, 0);
    random_scenario(a->random, &text);
    if (ls_scenario_read(text.text, text.length, "random.yaml", &arena, names, &s, &err) != LS_OK) {
        out = wrong(a, "not read", &err);
    } else if (ls_scenario_compile(&s, &as_written, true, &c, &err) != LS_OK) {
        out = wrong(a, "not compiled", &err);
    } else {
        out = try_compiled(a, &s, &c, &arena);
        ls_compiled_release(&c);
    }
    if (out == WRONG)
        ls_str_add(a->why, ls_str_text(&text));
    ls_str_release(&text);
    ls_names_close(names);
    ls_arena_release(&arena);
    return out;
}

bool spin_case_run(enum spin_source source, uint64_t seed, size_t states_max, struct spin_sum *sum, struct ls_str *why)
{
    static enum outcome (*const try[SPIN_SOURCES])(struct attempt *a) = { try_family, try_job, try_system, try_scenario };
    for (uint64_t again = 0;; again++) {
        struct attempt a = { .source = source, .random = ls_hash_mix(seed, again), .states_max = states_max, .sum = sum, .why = why };
        a.level = a.random % 3 == 0 ? LS_L1 : LS_L2;
        enum outcome out = try[source](&a);
        sum->refused[source] += out == REFUSED;
        sum->large[source] += out == LARGE;
        sum->set_up += out == NO_PLAN;
        if (out == WRONG)
            ls_str_printf(why, "source %d, seed %" PRIu64 ", attempt %" PRIu64 "\n", (int)source, seed, again);
        if (out == WRONG || out == COMPARED)
            return out == COMPARED;
    }
}

size_t spin_models(const struct spin_sum *sum)
{
    size_t n = 0;
    for (int k = 0; k < SPIN_SOURCES; k++)
        n += sum->of[k].models;
    return n;
}

size_t spin_unsafe(const struct spin_sum *sum)
{
    size_t n = 0;
    for (int k = 0; k < SPIN_SOURCES; k++)
        n += sum->of[k].unsafe;
    return n;
}

static void print_count(const char *what, const struct spin_count *c)
{
    printf("  %-22s %5zu models, %5zu unsafe, %9zu states", what, c->models, c->unsafe, c->states);
}

void spin_print(const struct spin_sum *sum)
{
    static const char *const source[] = { "families", "jobs", "systems", "scenarios" };
    static const char *const part[] = { "loops, metrics", "expert groups", "DDP", "hybrid sharding", "decide", "late operations", "tables" };
    static const char *const level[] = { "", "L1", "L2" };
    for (int k = 0; k < SPIN_SOURCES; k++) {
        print_count(source[k], &sum->of[k]);
        printf("; passed over: %zu not exported, %zu too large\n", sum->refused[k], sum->large[k]);
    }
    for (int k = 0; k < SPIN_PARTS; k++) {
        print_count(part[k], &sum->part[k]);
        printf("\n");
    }
    for (int k = 1; k < 3; k++) {
        print_count(level[k], &sum->level[k]);
        printf("\n");
    }
    printf("  %zu of them proved safe for every size; %zu scenarios refused at set-up\n", sum->proved, sum->set_up);
    fflush(stdout);
}
