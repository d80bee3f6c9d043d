/* The driver and the contract of a batch description. */
#include "batch/batch.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>

const char *ls_execution_name(enum ls_execution e)
{
    switch (e) {
    case LS_EXEC_ANY: return "any";
    case LS_EXEC_RANK_UNIFORM: return "rank_uniform";
    case LS_EXEC_NODE_UNIFORM: return "node_uniform";
    case LS_EXEC_MODALITY_UNIFORM: return "uniform";
    case LS_EXEC_TABLE: return "table";
    case LS_EXEC_AT_LEAST_ONE: return "at_least_one";
    case LS_EXEC_MANIFEST: return "manifest";
    }
    assert(0 && "unknown execution");
    return "";
}

static bool switch_at(const struct ls_switch *s, size_t microbatch)
{
    return s->count == 0 ? true : s->count == 1 ? s->at[0] : s->at[microbatch];
}

static enum ls_code check_switch(const struct ls_batch *b, const struct ls_switch *s, const char *name, struct ls_error *err)
{
    size_t want = b->microbatches ? (size_t)b->microbatches : 2;
    if (s->count <= 1 || s->count == want)
        return LS_OK;
    return ls_fail(err, LS_EINPUT, s->where.line ? s->where : b->at, "'%s' lists %zu values, but 'microbatches' is %zu", name, s->count, want);
}

struct ls_round ls_batch_micro(const struct ls_batch *b, size_t which, size_t microbatch, bool last)
{
    return (struct ls_round){
        .kind = LS_ROUND_MICRO,
        .gradient_sync = switch_at(&b->gradient_sync, which),
        .all_reduce = switch_at(&b->all_reduce, which),
        .reshard_after_backward = switch_at(&b->reshard_after_backward, which),
        .is_last_backward = switch_at(&b->is_last_backward, which),
        .last = last,
        .microbatch = (uint32_t)microbatch,
    };
}

bool ls_batch_same_switches(const struct ls_round *a, const struct ls_round *b)
{
    return a->gradient_sync == b->gradient_sync && a->all_reduce == b->all_reduce &&
           a->reshard_after_backward == b->reshard_after_backward && a->is_last_backward == b->is_last_backward;
}

static enum ls_code check_numbers(const struct ls_batch *b, struct ls_error *err)
{
    static const char *const switch_name[] = { "gradient_sync", "all_reduce", "reshard_after_backward", "is_last_backward" };
    const struct ls_switch *given[] = { &b->gradient_sync, &b->all_reduce, &b->reshard_after_backward, &b->is_last_backward };
    if (b->steps > LS_STEPS_MAX || b->microbatches > LS_MICROBATCHES_MAX)
        return ls_fail(err, LS_EINPUT, b->at, "more than %d steps, or %d microbatches", LS_STEPS_MAX, LS_MICROBATCHES_MAX);
    for (size_t i = 0; i < sizeof given / sizeof *given; i++)
        if (check_switch(b, given[i], switch_name[i], err) != LS_OK)
            return LS_EINPUT;
    return LS_OK;
}

enum ls_code ls_batch_schedule(const struct ls_batch *b, struct ls_arena *arena, enum ls_round_kind **kind, size_t *count,
                               struct ls_error *err)
{
    if (check_numbers(b, err) != LS_OK)
        return LS_EINPUT;
    size_t micros = 0, want = b->microbatches ? (size_t)b->microbatches : 1;
    if (!b->rounds) {
        *kind = LS_NEW(arena, enum ls_round_kind, want + 1);
        (*kind)[want] = LS_ROUND_STEP;
        *count = want + 1;
        return LS_OK;
    }
    for (size_t i = 0; i < b->rounds; i++)
        micros += b->schedule[i] == LS_ROUND_MICRO || b->schedule[i] == LS_ROUND_SKIPPED;
    if (micros != want) {
        if (!b->microbatches)
            return ls_fail(err, LS_EINPUT, b->at, "'schedule' holds 'micro' %zu times; with microbatches any it stands there once", micros);
        return ls_fail(err, LS_EINPUT, b->at, "'schedule' holds 'micro' %zu times, but 'microbatches' is %" PRIu64, micros,
                       b->microbatches);
    }
    *kind = b->schedule;
    *count = b->rounds;
    return LS_OK;
}

struct builder {
    struct ls_arena *arena;
    struct ls_round *round; size_t rounds;
    struct ls_driver_node *node; size_t nodes;
    bool number_steps;
};

static uint32_t add_node(struct builder *d, uint32_t round, size_t step, const char *name)
{
    struct ls_driver_node *n = &d->node[d->nodes];
    *n = (struct ls_driver_node){ .round = round, .microbatch = d->round[round].microbatch };
    n->name = d->number_steps ? ls_arena_printf(d->arena, "step %zu, %s", step, name) : ls_arena_str(d->arena, name);
    return (uint32_t)d->nodes++;
}

static void add_next(struct builder *d, uint32_t from, uint32_t to)
{
    struct ls_driver_node *n = &d->node[from];
    uint32_t *next = LS_NEW(d->arena, uint32_t, n->nexts + 1);
    for (size_t i = 0; i < n->nexts; i++)
        next[i] = n->next[i];
    next[n->nexts++] = to;
    n->next = next;
}

/* A fixed number of microbatches: a line of nodes per step. */
static void build_line(struct builder *d, const struct ls_batch *b, const enum ls_round_kind *kind, size_t count, size_t steps)
{
    size_t micro = 0;
    for (size_t i = 0; i < count; i++) {
        struct ls_round r = { .kind = kind[i], .microbatch = (uint32_t)(micro < b->microbatches ? micro : micro - 1) };
        if (kind[i] == LS_ROUND_MICRO) {
            r = ls_batch_micro(b, micro, micro, micro + 1 == b->microbatches);
            micro++;
        }
        d->round[d->rounds++] = r;
    }
    for (size_t s = 0; s < steps; s++)
        for (size_t i = 0; i < count; i++) {
            char name[48] = "step end";
            if (kind[i] == LS_ROUND_MICRO)
                snprintf(name, sizeof name, "microbatch %" PRIu32, d->round[i].microbatch);
            else if (kind[i] == LS_ROUND_EVAL)
                snprintf(name, sizeof name, "evaluation");
            uint32_t at = add_node(d, (uint32_t)i, s, name);
            d->node[at].may_stop = i == 0;
            if (at > 0)
                add_next(d, at - 1, at);
        }
    if (!b->steps)
        add_next(d, (uint32_t)(d->nodes - 1), 0);
}

/* The nodes of one place in the schedule: a run enters through `in` and leaves from `out`. */
struct place { uint32_t in[2], out[2]; size_t ins, outs; };

/* Any number of microbatches, at least one. When the last one differs from the others, so do their nodes. */
static struct place add_microbatches(struct builder *d, size_t step, uint32_t other, uint32_t last)
{
    if (other == last) {
        uint32_t first = add_node(d, other, step, "first microbatch"), more = add_node(d, other, step, "later microbatch");
        add_next(d, first, more);
        add_next(d, more, more);
        return (struct place){ { first }, { first, more }, 1, 2 };
    }
    uint32_t only = add_node(d, last, step, "only microbatch"), first = add_node(d, other, step, "first microbatch");
    uint32_t more = add_node(d, other, step, "later microbatch"), end = add_node(d, last, step, "last microbatch");
    add_next(d, first, end);
    add_next(d, first, more);
    add_next(d, more, end);
    add_next(d, more, more);
    return (struct place){ { only, first }, { only, end }, 2, 2 };
}

static void connect(struct builder *d, const struct place *from, const struct place *to)
{
    for (size_t o = 0; o < from->outs; o++)
        for (size_t i = 0; i < to->ins; i++)
            add_next(d, from->out[o], to->in[i]);
}

/* Any number of microbatches in the place of the schedule's `micro`. */
static void build_loop(struct builder *d, const struct ls_batch *b, const enum ls_round_kind *kind, size_t count, size_t steps)
{
    struct ls_round other = ls_batch_micro(b, 0, 0, false), last = ls_batch_micro(b, 1, 1, true);
    bool split = !ls_batch_same_switches(&other, &last);
    uint32_t round_of[LS_ROUND_IDLE + 1];
    d->round[d->rounds++] = other;
    if (split)
        d->round[d->rounds++] = last;
    uint32_t last_round = split ? 1 : 0;
    for (size_t k = LS_ROUND_STEP; k <= LS_ROUND_IDLE; k++) {
        round_of[k] = (uint32_t)d->rounds;
        d->round[d->rounds++] = (struct ls_round){ .kind = (enum ls_round_kind)k };
    }
    struct place before = { 0 }, start = { 0 };
    if (split && kind[0] == LS_ROUND_MICRO) { /* two nodes may come first, and only node 0 starts a run */
        uint32_t idle = add_node(d, round_of[LS_ROUND_IDLE], 0, "start");
        d->node[idle].may_stop = true;
        before = (struct place){ { idle }, { idle }, 1, 1 };
    }
    for (size_t s = 0; s < steps; s++)
        for (size_t i = 0; i < count; i++) {
            struct place here;
            if (kind[i] == LS_ROUND_MICRO) {
                here = add_microbatches(d, s, 0, last_round);
            } else {
                uint32_t at = add_node(d, round_of[kind[i]], s, kind[i] == LS_ROUND_STEP ? "step end" : "evaluation");
                here = (struct place){ { at }, { at }, 1, 1 };
            }
            for (size_t n = 0; i == 0 && n < here.ins; n++)
                d->node[here.in[n]].may_stop = true;
            if (i == 0 && s == 0)
                start = here;
            connect(d, &before, &here);
            before = here;
        }
    if (!b->steps)
        connect(d, &before, &start);
}

enum ls_code ls_batch_driver(const struct ls_batch *b, struct ls_arena *arena, struct ls_rounds *rounds, struct ls_driver *out,
                             struct ls_error *err)
{
    enum ls_round_kind *kind = NULL;
    size_t count = 0, steps = b->steps ? (size_t)b->steps : 1;
    enum ls_code rc = ls_batch_schedule(b, arena, &kind, &count, err);
    if (rc != LS_OK)
        return rc;
    size_t nodes_max = steps * (count + 3) + 1; /* `micro` may take four nodes, one more may start */
    if (nodes_max > LS_NODES_MAX)
        return ls_fail(err, LS_EINPUT, b->at, "%zu steps of %zu rounds are more than %d rounds", steps, count, LS_NODES_MAX);
    struct builder d = { .arena = arena, .number_steps = steps > 1 };
    d.round = LS_NEW(arena, struct ls_round, count + 5);
    d.node = LS_NEW(arena, struct ls_driver_node, nodes_max);
    if (b->microbatches)
        build_line(&d, b, kind, count, steps);
    else
        build_loop(&d, b, kind, count, steps);
    assert(d.nodes <= nodes_max && d.rounds <= count + 5);
    *rounds = (struct ls_rounds){ d.round, d.rounds };
    *out = (struct ls_driver){ d.node, d.nodes };
    return LS_OK;
}

/* Classes of letters with equal counts of the conditions in `mask`. */
static const uint32_t *classes_of(const struct ls_letters *l, uint32_t mask, struct ls_arena *arena)
{
    uint32_t *class_of = LS_NEW(arena, uint32_t, l->count), classes = 0;
    for (size_t i = 0; i < l->count; i++) {
        class_of[i] = LS_NO_ID;
        for (size_t j = 0; j < i && class_of[i] == LS_NO_ID; j++) {
            bool same = true;
            for (size_t c = 0; c < LS_CONDITIONS_MAX; c++)
                same = same && (!(mask >> c & 1) || l->letter[i].count[c] == l->letter[j].count[c]);
            if (same)
                class_of[i] = class_of[j];
        }
        if (class_of[i] == LS_NO_ID)
            class_of[i] = classes++;
    }
    return class_of;
}

enum ls_code ls_batch_check_table(const struct ls_batch *b, size_t replicas, struct ls_error *err)
{
    if (!replicas)
        return ls_fail(err, LS_EINPUT, b->execution_at, "'table' needs a fixed number of replicas, but 'dp_size' is any");
    if (!b->microbatches)
        return ls_fail(err, LS_EINPUT, b->execution_at, "'table' needs a fixed number of microbatches, but 'microbatches' is any");
    if (b->columns != replicas)
        return ls_fail(err, LS_EINPUT, b->execution_at, "'table' has %zu columns, but 'dp_size' is %zu", b->columns, replicas);
    return LS_OK;
}

static enum ls_code table_contract(const struct ls_batch *b, const struct ls_letters *l, size_t replicas, struct ls_arena *arena,
                                   struct ls_contract *c, struct ls_error *err)
{
    LS_TRY(ls_batch_check_table(b, replicas, err));
    enum ls_round_kind *kind = NULL;
    size_t count = 0, evals = 0, micros = (size_t)b->microbatches, steps = b->steps ? (size_t)b->steps : 1;
    enum ls_code rc = ls_batch_schedule(b, arena, &kind, &count, err);
    if (rc != LS_OK)
        return rc;
    for (size_t i = 0; i < count; i++)
        evals += kind[i] == LS_ROUND_EVAL;
    bool each_eval = evals > 0 && b->rows == (micros + evals) * steps;
    if (!each_eval && b->rows != micros && b->rows != micros * steps) {
        rc = ls_fail(err, LS_EINPUT, b->execution_at, "'table' has %zu rows, but 'microbatches' is %zu", b->rows, micros);
        if (steps > 1)
            ls_hint(err, "one row per microbatch of a step, or of all %zu steps", steps);
        return rc;
    }
    size_t per_step = each_eval ? micros + evals : b->rows == micros ? 0 : micros;
    uint32_t *table = LS_NEW(arena, uint32_t, ls_mul_size(count * steps, replicas)), still = ls_batch_still_letter(l);
    uint32_t *sample = LS_NEW(arena, uint32_t, ls_mul_size(count * steps, replicas));
    for (size_t s = 0, r = 0; s < steps; s++)
        for (size_t i = 0, micro = 0, seen = 0; i < count; i++, r++) {
            size_t row = s * per_step + (each_eval ? seen : micro < micros ? micro : micros - 1);
            for (size_t x = 0; x < replicas; x++) {
                sample[r * replicas + x] = b->table[row * b->columns + x];
                table[r * replicas + x] = kind[i] == LS_ROUND_STEP ? still : l->of_sample[sample[r * replicas + x]];
            }
            micro += kind[i] == LS_ROUND_MICRO;
            seen += kind[i] != LS_ROUND_STEP;
        }
    c->extra = LS_CONTRACT_TABLE;
    c->table = table;
    c->sample = sample;
    c->rows = count * steps;
    c->columns = replicas;
    return LS_OK;
}

enum ls_code ls_batch_contract(const struct ls_batch *b, const struct ls_letters *letters, uint32_t mesh_dims, size_t replicas,
                               struct ls_arena *arena, struct ls_contract *out, struct ls_error *err)
{
    struct ls_contract c = { .levels = 2, .dims = { 0, mesh_dims }, .name = ls_execution_name(b->execution), .at = b->execution_at };
    enum ls_code rc = LS_OK;
    uint32_t mask = 0;
    if (!mesh_dims) /* one replica: whatever it takes, everybody takes */
        c.levels = 1;
    else
        c.class_of[0] = LS_NEW(arena, uint32_t, letters->count);
    switch (b->execution) {
    case LS_EXEC_ANY:
        break;
    case LS_EXEC_RANK_UNIFORM:
        c.class_of[0] = NULL;
        break;
    case LS_EXEC_NODE_UNIFORM:
        if (!(mesh_dims & LS_DIM_REPLICATE))
            return ls_fail(err, LS_EINPUT, b->execution_at,
                           "'node_uniform' needs 'dp_replicate_size' above 1: a node is one of its coordinates");
        c.dims[1] = LS_DIM_REPLICATE;
        if (mesh_dims != LS_DIM_REPLICATE)
            c.dims[c.levels++] = mesh_dims;
        break;
    case LS_EXEC_MODALITY_UNIFORM:
        for (size_t u = 0; u < b->uniforms; u++)
            for (size_t k = 0; k < b->model->conditions; k++)
                if (b->model->condition[k].modality == b->uniform[u])
                    mask |= UINT32_C(1) << k;
        if (mesh_dims)
            c.class_of[0] = classes_of(letters, mask, arena);
        if (b->uniforms) {
            struct ls_str text = { 0 };
            for (size_t u = 0; u < b->uniforms; u++)
                ls_str_printf(&text, "%s%s", u ? ", " : "uniform: ", ls_name_text(b->model->names, b->uniform[u]));
            c.name = ls_arena_str(arena, ls_str_text(&text));
            ls_str_release(&text);
        }
        break;
    case LS_EXEC_AT_LEAST_ONE:
        c.extra = LS_CONTRACT_AT_LEAST_ONE;
        for (size_t i = 0; i < letters->count; i++)
            if (ls_letter_has_media(&letters->letter[i]))
                c.media |= UINT64_C(1) << i;
        if (!c.media)
            return ls_fail(err, LS_EINPUT, b->execution_at, "'at_least_one' needs a sample with images, videos or audios");
        break;
    case LS_EXEC_MANIFEST: {
        if (!b->sample_class || !mesh_dims)
            break;
        uint32_t *class_of = LS_NEW(arena, uint32_t, letters->count + 1);
        for (size_t i = 0; i < b->samples; i++)
            class_of[letters->of_sample[i]] = b->sample_class[i];
        if (b->class_in_node && mesh_dims == (LS_DIM_REPLICATE | LS_DIM_SHARD)) {
            c.dims[1] = LS_DIM_REPLICATE;
            c.class_of[1] = class_of;
            c.dims[c.levels++] = mesh_dims;
        } else {
            c.class_of[0] = class_of;
        }
        break;
    }
    case LS_EXEC_TABLE:
        rc = table_contract(b, letters, replicas, arena, &c, err);
        break;
    }
    if (rc == LS_OK)
        *out = c;
    return rc;
}
