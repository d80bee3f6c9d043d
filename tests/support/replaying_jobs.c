#include "replaying.h"

#include "base/hash.h"
#include "random_jobs.h"

#include <string.h>

static size_t group_of(const struct job_builder *b, uint32_t comm, uint32_t rank)
{
    const struct ls_groups *g = &b->groups.at[comm];
    uint32_t at = g->group[rank];
    return at == LS_NO_ID ? 0 : g->first[at + 1] - g->first[at];
}

/* Marks become allocs and frees of a few buffers, and two of three ops on a stream touch one or two: most of it is a race. */
static void add_buffers(struct job_builder *b, uint64_t *random)
{
    uint32_t buffers = 1 + (uint32_t)ls_random_below(random, 4);
    for (uint32_t i = 0; i < buffers; i++)
        ls_push(&b->tables.buffer, (struct ls_buffer){ .pool = (uint8_t)ls_random_below(random, 2), .bytes = 64 });
    for (size_t r = 0; r < b->ranks; r++)
        for (size_t i = 0; i < b->op[r].count; i++) {
            struct ls_op *o = &b->op[r].at[i];
            bool memory = o->kind == LS_OP_MARK;
            if (ls_op_uses_comm(o) && (o->kind == LS_OP_COMM_INIT || group_of(b, o->comm, (uint32_t)r) != 2)) /* the vectors have two entries */
                o->counts = LS_NO_ID;
            if (!memory && (ls_op_is_host(o) || ls_random_below(random, 3) == 0))
                continue;
            o->range = (uint32_t)b->tables.range.count;
            o->ranges = memory ? 1 : 1 + (uint32_t)ls_random_below(random, 2);
            for (uint32_t k = 0; k < o->ranges; k++) {
                uint32_t buffer = (uint32_t)ls_random_below(random, buffers);
                bool part = !memory && ls_random_below(random, 2);
                ls_push(&b->tables.range, (struct ls_range){ .buffer = buffer, .write = memory || ls_random_below(random, 2),
                                                             .offset = part ? 16 * ls_random_below(random, 3) : 0, .bytes = part ? 16 : 0 });
                if (!memory)
                    continue;
                o->kind = ls_random_below(random, 3) ? LS_OP_ALLOC : LS_OP_FREE;
                o->stream = b->tables.buffer.at[buffer].pool;
                o->bytes = 64;
            }
        }
}

static bool same_races(const struct ls_engine_setup *setup, const struct ls_engine_options *o, const struct ls_replay *r, struct ls_arena *arena,
                       size_t *compared, struct ls_str *why)
{
    struct ls_race *race;
    size_t races;
    struct ls_error err = { 0 };
    if (ls_machine_races(setup->job, o->races, arena, &race, &races, &err) != LS_OK) {
        ls_str_add(why, err.text);
        return false;
    }
    bool same = races == r->observed.races;
    for (size_t i = 0; i < races && same; i++)
        same = memcmp(&race[i], &r->observed.race[i], sizeof race[i]) == 0;
    *compared += races;
    if (!same)
        ls_str_printf(why, "%zu races predicted, %zu seen, not the same\n", races, r->observed.races);
    for (size_t k = 0; !same && k < 2; k++)
        for (size_t i = 0; i < (k ? r->observed.races : races); i++) {
            const struct ls_race *x = k ? &r->observed.race[i] : &race[i];
            ls_str_printf(why, "%s %s buffer %u: rank %u, segment %u op %u and segment %u op %u\n", k ? "seen" : "predicted", ls_race_kind_name(x->kind), x->buffer,
                          x->a.rank, x->a.segment, x->a.op, x->b.segment, x->b.op);
        }
    return same;
}

bool replaying_job(struct replaying *t, uint64_t seed, struct ls_str *why)
{
    uint64_t random = ls_hash_mix(seed, 815);
    uint64_t level = ls_random_below(&random, 4);
    struct random_wish wish = { .p2p = ls_random_below(&random, 2), .fused = ls_random_below(&random, 2), .decide = ls_random_below(&random, 3) == 0,
                                .stop = ls_random_below(&random, 5) == 0, .threads = ls_random_below(&random, 3) == 0,
                                .slots = ls_random_below(&random, 2), .order = ls_random_below(&random, 3) == 0, .mutations = (unsigned)ls_random_below(&random, 6), .steps = level == 2 ? 8 : 14 };
    struct job_builder b;
    struct ls_arena arena;
    struct ls_error err = { 0 };
    struct ls_prediction p;
    random_job(&b, &wish, seed);
    ls_arena_init(&arena, 0);
    add_buffers(&b, &random);
    struct ls_job job = build_job(&b);
    struct ls_engine_setup setup = { .job = &job, .shard = 1, .seed = seed };
    /* Races are those of a run at L2. */
    struct ls_engine_options o = { .races = level == 1 ? 64 : 0, .blocking = level == 0, .resident = level > 1, .kernels = (unsigned)ls_random_below(&random, 4),
                                   .start = level == 3 ? LS_START_ISSUE_ORDER : LS_START_ANY };
    bool ok = ls_replay_predict(&setup, &o, false, &arena, &p, &err) == LS_OK;
    for (unsigned i = 0; i < 4 && ok; i++) {
        struct ls_replay r;
        o.seed = i ? ls_hash_mix(seed, i) : 0;
        o.free = i == 3 && seed % 8 == 0;
        ok = ls_replay_run(&setup, &o, false, &arena, &r, &err) == LS_OK;
        if (!ok)
            break;
        t->seen[r.verdict]++;
        t->schedules++;
        t->bounded += o.resident;
        t->orders += p.others > 0;
        ok = ls_replay_agrees(&setup, &p, &r, why) && (wish.threads || ls_replay_calls(&setup, &r, why)) && /* threads have no common order */
             (level != 1 || same_races(&setup, &o, &r, &arena, &t->races, why)) && replaying_again(t, &setup, &o, false, &arena, &r, &p, why);
        for (size_t k = 0; k < r.observed.outcome.pending_count && !ok; k++)
            ls_str_printf(why, "\nseen pending: rank %u segment %u op %u, reason %d", r.observed.outcome.pending[k].at.rank, r.observed.outcome.pending[k].at.segment,
                          r.observed.outcome.pending[k].at.op, (int)r.observed.outcome.pending[k].why);
    }
    static const char unsupported[] = "not supported by the engine"; /* fused ops behind another thread's, in some schedules */
    if (!ok && (strstr(err.text, unsupported) || strstr(ls_str_text(why), unsupported))) {
        ls_str_clear(why);
        t->unsupported++;
        ok = true;
    }
    if (!ok)
        ls_str_printf(why, "%s\nlevel %u, %u kernels, start %d\n%s", err.text, (unsigned)level, o.kernels, (int)o.start, build_text(&b));
    ls_arena_release(&arena);
    build_close(&b);
    return ok;
}
