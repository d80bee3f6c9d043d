#include "sim/draw.h"

#include "base/hash.h"
#include "sim/simulate.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#define PLAIN_NAME(id, name) name,
static const char *const draw_name[] = { LS_DRAWS(PLAIN_NAME) };

const char *ls_draw_name(enum ls_draw d)
{
    assert((unsigned)d < LS_DRAW_COUNT);
    return draw_name[d];
}

/* In DRAW_STEPS steps at most: every distinct sample is compiled by itself. */
enum { DRAW_STEPS = 8 };

static uint64_t draw_range(uint64_t *random, struct ls_range_of r)
{
    uint64_t width = r.most - r.least, steps = width < DRAW_STEPS ? width : DRAW_STEPS;
    return steps ? r.least + width * ls_random_below(random, steps + 1) / steps : r.least;
}

static bool same_sample(const struct ls_sample *a, const struct ls_sample *b)
{
    return a->text == b->text && a->images == b->images && a->videos == b->videos && a->audios == b->audios && memcmp(a->condition, b->condition, sizeof a->condition) == 0 &&
           a->sequences == b->sequences && a->image_patches == b->image_patches && a->video_patches == b->video_patches &&
           a->audio_positions == b->audio_positions;
}

struct drawing {
    struct ls_scenario *s;
    const struct ls_distribution *d;
    LS_VEC(struct ls_sample) sample;
    uint64_t random;
};

static uint32_t draw_sample(struct drawing *w)
{
    const struct ls_distribution *d = w->d;
    if (!d->given)
        return (uint32_t)ls_random_below(&w->random, w->s->batch.samples);
    struct ls_sample x = { .text = draw_range(&w->random, d->text), .sequences = draw_range(&w->random, d->sequences), .at = w->s->batch.at };
    bool media = (double)(ls_random(&w->random) >> 11) * 0x1p-53 >= d->text_only;
    if (media) {
        x.images = draw_range(&w->random, d->images);
        x.videos = draw_range(&w->random, d->videos);
        x.audios = draw_range(&w->random, d->audios);
        x.image_patches = x.images ? draw_range(&w->random, d->image_patches) : 0;
        x.video_patches = x.videos ? draw_range(&w->random, d->video_patches) : 0;
        x.audio_positions = x.audios ? draw_range(&w->random, d->audio_positions) : 0;
    }
    for (size_t i = 0; i < w->sample.count; i++)
        if (same_sample(&w->sample.at[i], &x))
            return (uint32_t)i;
    ls_push(&w->sample, x);
    return (uint32_t)w->sample.count - 1;
}

static bool same_in(const struct ls_batch *b, const struct ls_sample *x, const struct ls_sample *y)
{
    for (size_t u = 0; u < b->uniforms; u++) {
        const char *name = ls_name_text(b->model->names, b->uniform[u]);
        if (strcmp(name, "vision") == 0 && (x->images != y->images || x->videos != y->videos))
            return false;
        if (strcmp(name, "audio") == 0 && x->audios != y->audios)
            return false;
    }
    return true;
}

static bool has_media(const struct ls_sample *s) { return s->images || s->videos || s->audios; }

/* One row: the sample of every replica. `row` counts the rounds that take a batch. */
static void draw_row(struct drawing *w, enum ls_draw draw, size_t row, size_t replicas, size_t shard, uint32_t *out)
{
    const struct ls_batch *b = &w->s->batch;
    enum ls_execution e = draw == LS_DRAW_UNIFORM ? LS_EXEC_RANK_UNIFORM : draw == LS_DRAW_MIXED ? LS_EXEC_ANY : b->execution;
    enum { TRIES = 1000 };
    bool media = false;
    for (size_t x = 0; x < replicas; x++) {
        switch (e) {
        case LS_EXEC_ANY:
        case LS_EXEC_AT_LEAST_ONE:
            out[x] = draw_sample(w);
            break;
        case LS_EXEC_MANIFEST:
            out[x] = x && b->sample_class ? out[0] : draw_sample(w);
            break;
        case LS_EXEC_RANK_UNIFORM:
            out[x] = x ? out[0] : draw_sample(w);
            break;
        case LS_EXEC_NODE_UNIFORM:
            out[x] = x % shard ? out[x - x % shard] : draw_sample(w);
            break;
        case LS_EXEC_MODALITY_UNIFORM:
            out[x] = draw_sample(w);
            for (int i = 0; x && i < TRIES && !same_in(b, &w->sample.at[out[0]], &w->sample.at[out[x]]); i++)
                out[x] = draw_sample(w);
            if (x && !same_in(b, &w->sample.at[out[0]], &w->sample.at[out[x]]))
                out[x] = out[0];
            break;
        case LS_EXEC_TABLE:
            out[x] = b->table[row % b->rows * b->columns + x];
            break;
        }
        media |= has_media(&w->sample.at[out[x]]);
    }
    for (uint32_t i = 0; e == LS_EXEC_AT_LEAST_ONE && !media && i < w->sample.count; i++)
        if (has_media(&w->sample.at[i])) {
            out[0] = i;
            media = true;
        }
}

/* A schedule of any number of microbatches holds `micro` once. */
static void two_microbatches(struct ls_batch *b, struct ls_arena *arena)
{
    b->microbatches = 2;
    if (!b->rounds)
        return;
    enum ls_round_kind *kind = LS_NEW(arena, enum ls_round_kind, b->rounds + 1);
    size_t n = 0;
    for (size_t i = 0; i < b->rounds; i++)
        for (int k = 0; k < (b->schedule[i] == LS_ROUND_MICRO ? 2 : 1); k++)
            kind[n++] = b->schedule[i];
    b->schedule = kind;
    b->rounds = n;
}

static enum ls_code fix_sizes(struct ls_scenario *s, const struct ls_simulate_options *o, size_t gpus, struct ls_arena *arena, struct ls_error *err)
{
    struct ls_mesh *m = &s->mesh;
    size_t replicas = o->replicas;
    if (m->replicate == LS_SIZE_ANY)
        m->replicate = 2;
    if (replicas && s->batch.execution != LS_EXEC_TABLE)
        m->shard = m->shard == 1 && m->replicate > 1 ? 1 : replicas % m->replicate == 0 ? replicas / m->replicate : replicas;
    if (replicas && m->shard == 1 && m->replicate > 1)
        m->replicate = replicas;
    if (m->shard == LS_SIZE_ANY)
        m->shard = m->replicate > 1 && gpus % m->replicate == 0 ? gpus / m->replicate : gpus;
    if (!s->batch.microbatches)
        two_microbatches(&s->batch, arena);
    s->batch.steps = o->steps ? o->steps : s->batch.execution == LS_EXEC_TABLE && s->batch.steps ? s->batch.steps : 1;
    s->batch.apart = true;
    return ls_mesh_regroup(m, (struct ls_loc){ s->path, 0, 0 }, err);
}

/* A table that also says what ranks do by themselves holds more than samples: its letters are the run. */
static bool run_is_listed(const struct ls_scenario *s, enum ls_draw how)
{
    return s->loop.present && s->batch.execution == LS_EXEC_TABLE && how == LS_DRAW_CONTRACT;
}

static void assign(const struct ls_compiled *c, const uint32_t *rows, struct ls_arena *arena, struct ls_assignment *a)
{
    const struct ls_system *y = &c->system;
    size_t replicas = a->size[0] * a->size[1];
    uint32_t *letter = LS_NEW(arena, uint32_t, ls_mul_size(a->rounds, replicas));
    uint32_t *node = LS_NEW(arena, uint32_t, a->rounds);
    bool listed = y->contract.extra == LS_CONTRACT_TABLE; /* else a compiled batch stands apart */
    for (size_t i = 0, row = 0; i < a->rounds; i++) {
        enum ls_round_kind kind = c->rounds.round[y->driver.node[i].round].kind;
        node[i] = (uint32_t)i;
        bool batch = kind == LS_ROUND_MICRO || kind == LS_ROUND_EVAL;
        for (size_t r = 0; r < replicas; r++)
            letter[i * replicas + r] = listed ? y->contract.table[i * replicas + r]
                                       : batch ? c->letters.of_sample[rows[row * replicas + r]]
                                               : ls_batch_still_letter(&c->letters);
        row += batch;
    }
    a->letter = letter;
    a->node = node;
}

static enum ls_code compile_drawn(struct drawing *w, const struct ls_simulate_options *o, struct ls_arena *arena, struct ls_compiled *out,
                                  struct ls_assignment *a, struct ls_error *err)
{
    struct ls_scenario *s = w->s;
    size_t replicas = s->mesh.replicate * s->mesh.shard, per_step = s->batch.rounds ? s->batch.rounds : (size_t)s->batch.microbatches + 1;
    size_t most = ls_mul_size(per_step, (size_t)s->batch.steps) + s->loop.afters;
    uint32_t *rows = LS_NEW(arena, uint32_t, ls_mul_size(most, replicas));
    if (s->batch.execution == LS_EXEC_TABLE && o->draw == LS_DRAW_CONTRACT && s->batch.columns != replicas)
        return ls_fail(err, LS_EINPUT, s->batch.execution_at, "the table has %zu columns, but there are %zu replicas", s->batch.columns, replicas);
    if (run_is_listed(s, o->draw))
        s->batch.apart = false;
    for (size_t i = 0; i < s->batch.samples; i++)
        ls_push(&w->sample, s->batch.sample[i]);
    for (size_t row = 0; row < most; row++)
        draw_row(w, o->draw, row, replicas, s->mesh.shard, rows + row * replicas);
    s->batch.sample = ls_arena_copy(arena, w->sample.at, w->sample.count * sizeof *w->sample.at);
    s->batch.samples = w->sample.count;
    LS_TRY(ls_scenario_compile(s, &o->variant, o->force, out, err));
    if (out->refusal.rule)
        return LS_OK;
    *a = (struct ls_assignment){ .size = { s->mesh.replicate, s->mesh.shard }, .rounds = out->system.driver.nodes };
    assign(out, rows, arena, a);
    return LS_OK;
}

enum ls_code ls_draw_batches(struct ls_scenario *s, const struct ls_simulate_options *o, size_t gpus, struct ls_arena *arena,
                             struct ls_compiled *out, struct ls_assignment *a, struct ls_error *err)
{
    struct drawing w = { .s = s, .d = &s->timing.batches, .random = o->seed };
    enum ls_code rc = fix_sizes(s, o, gpus, arena, err);
    if (rc == LS_OK)
        rc = compile_drawn(&w, o, arena, out, a, err);
    ls_vec_release(&w.sample);
    return rc;
}

/* The standard normal's quantile. */
static double normal_quantile(double p)
{
    double low = -9, high = 9;
    for (int i = 0; i < 60; i++) {
        double middle = (low + high) / 2;
        if (0.5 * erfc(-middle / sqrt(2)) < p)
            low = middle;
        else
            high = middle;
    }
    return (low + high) / 2;
}

void ls_speeds_draw(uint32_t spread, uint64_t seed, size_t ranks, uint32_t *slowness)
{
    const double range_of_8 = 2.847; /* expected, of standard normals */
    uint64_t random = seed ^ UINT64_C(0x5eed);
    for (size_t r = 0; r < ranks; r++) { /* expected order statistics, by Blom's approximation */
        double z = normal_quantile(((double)r + 0.625) / ((double)ranks + 0.25)), slow = 1 + z * (double)spread / LS_SPEED_ONE / range_of_8;
        slowness[r] = (uint32_t)lround((slow > 0.1 ? slow : 0.1) * LS_SPEED_ONE);
    }
    for (size_t r = ranks; r > 1; r--) {
        size_t other = (size_t)ls_random_below(&random, r);
        uint32_t keep = slowness[r - 1];
        slowness[r - 1] = slowness[other];
        slowness[other] = keep;
    }
}
