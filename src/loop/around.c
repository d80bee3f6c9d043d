/* The transducer of a replica with its loop: the segments of the framework's own transducer, with the loop's collectives around and
 * inside them, or left out where a rank decided so.
 *
 * A rank that decides by itself goes on with what its program does next; the rounds of the others pass without it. So a difference
 * shows as words that differ on a communicator, which is what the proof looks for. */
#include "loop/loop.h"

#include "base/str.h"
#include "base/vec.h"

#include <assert.h>
#include <string.h>

/* What a rank carries besides the state of the framework. */
enum {
    STOPPED = 1,      /* has raised */
    LEFT = 2,         /* out of the loop over steps, until the end of the epoch */
    OPEN = 4,         /* the step has begun */
    DONE = 8,         /* no more microbatches in this step */
    VALIDATING = 16,  /* has seen the first validation batch */
    VALIDATED = 32,   /* no more validation batches */
    ABSENT = 64,      /* takes no part in this validation */
};
struct outer { uint32_t inner, flags, held; }; /* held: conditions that the step's batches held */

typedef LS_VEC(struct ls_op) op_vec;

struct memo { uint32_t state, round, letter; struct ls_step step; };
struct around {
    struct ls_transducer t;    /* first: what the checker holds */
    struct ls_around_input in;
    struct ls_arena *arena;
    LS_VEC(struct outer) state;
    LS_VEC(struct memo) memo;
    uint32_t *slot; size_t slots;           /* open addressing: index into memo + 1 */
    uint32_t cause[LS_LOOP_FEATURE_COUNT];
    uint32_t plain_cause;
};

/* One role's segment being made. */
struct making {
    struct around *a;
    const struct ls_round *round;
    const struct ls_letter *letter;
    struct outer now;
    op_vec ops;
    enum ls_pass pass;
};

static bool event(const struct making *m, enum ls_loop_feature feature, uint32_t item)
{
    const struct ls_loop *l = m->a->in.loop;
    for (size_t i = 0; i < l->events; i++)
        if (l->event[i].feature == feature && l->event[i].item == item)
            return m->letter->events >> i & 1;
    return false;
}

static struct ls_op *talk(struct making *m, enum ls_op_kind kind, enum ls_reduce reduce, enum ls_dtype dtype, const char *payload, uint32_t cause)
{
    struct around *a = m->a;
    struct ls_op op = ls_op_make(kind);
    op.pass = (uint8_t)m->pass;
    op.comm = (uint16_t)a->in.comm;
    op.dtype = (uint8_t)dtype;
    op.reduce = (uint8_t)reduce;
    op.count = 1;
    op.microbatch = m->round->microbatch;
    op.payload = ls_tables_payload(a->in.tables, payload, NULL, 0, 1);
    op.cause = cause;
    op.range = (uint32_t)a->in.tables->range.count;
    op.blocking = true; /* the host reads the value */
    ls_push(&m->ops, op);
    return &m->ops.at[m->ops.count - 1];
}

static void all_reduce(struct making *m, enum ls_reduce reduce, enum ls_dtype dtype, const char *payload, uint32_t cause)
{
    if (m->a->in.comm != LS_NO_ID)
        talk(m, LS_OP_ALL_REDUCE, reduce, dtype, payload, cause);
}

static bool takes_part(const struct making *m, const struct ls_named *n, enum ls_loop_feature feature, size_t item, uint32_t held)
{
    switch (n->when) {
    case LS_WHEN_ALWAYS: return true;
    case LS_WHEN_HELD: return (n->conditions & held) != 0;
    case LS_WHEN_ANY: return event(m, feature, (uint32_t)item);
    }
    return true;
}

static uint32_t held_by(const struct ls_letter *letter)
{
    uint32_t held = 0;
    for (unsigned i = 0; i < LS_CONDITIONS_MAX; i++)
        held |= letter->count[i] ? UINT32_C(1) << i : 0;
    return held;
}

static const char *name_of(const struct making *m, uint32_t name)
{
    return ls_tables_name(m->a->in.tables, name);
}

/* Before the first microbatch: what all ranks of the step agree on. */
static void begin_step(struct making *m)
{
    const struct around *a = m->a;
    const struct ls_loop *l = a->in.loop;
    m->pass = LS_PASS_F;
    if (l->own_data && l->data_agree == LS_AGREE_ALL_REDUCE)
        all_reduce(m, LS_REDUCE_MIN, LS_DTYPE_I32, "has data", a->cause[LS_LOOP_DATA]);
    if (l->own_microbatches && l->microbatches_agree == LS_AGREE_ALL_REDUCE)
        all_reduce(m, LS_REDUCE_MAX, LS_DTYPE_I32, "microbatch count", a->cause[LS_LOOP_MICROBATCHES]);
    for (size_t i = 0; i < l->tokens; i++)
        all_reduce(m, LS_REDUCE_SUM, LS_DTYPE_I64, name_of(m, l->token[i].name), a->plain_cause);
}

static void copy_ops(struct making *m, const struct ls_op *op, size_t count)
{
    for (size_t i = 0; i < count; i++)
        ls_push(&m->ops, op[i]);
}

static void stop(struct making *m, const char *text, uint32_t cause)
{
    struct ls_op op = ls_op_make(LS_OP_STOP);
    op.pass = (uint8_t)m->pass;
    op.microbatch = m->round->microbatch;
    op.module = ls_name_id(m->a->in.tables->names, text);
    op.cause = cause;
    op.range = (uint32_t)m->a->in.tables->range.count;
    ls_push(&m->ops, op);
    m->now.flags = STOPPED;
}

static bool raises(const struct ls_op *op, size_t count)
{
    return count && op[count - 1].kind == LS_OP_STOP;
}

/* Forward, what the loss needs of other ranks, the look at the loss, backward. */
static void microbatch(struct making *m, const struct ls_segment *s)
{
    const struct around *a = m->a;
    const struct ls_loop *l = a->in.loop;
    size_t forward = 0;
    while (forward < s->count && s->op[forward].pass != LS_PASS_B)
        forward++;
    copy_ops(m, s->op, forward);
    m->pass = LS_PASS_F;
    if (forward < s->count || !raises(s->op, s->count)) {
        for (size_t i = 0; i < l->forwards; i++)
            if (takes_part(m, &l->forward[i], LS_LOOP_FORWARD, i, held_by(m->letter)))
                all_reduce(m, LS_REDUCE_SUM, LS_DTYPE_F32, name_of(m, l->forward[i].name), a->cause[LS_LOOP_FORWARD]);
        if (l->non_finite && l->non_finite_agree)
            all_reduce(m, LS_REDUCE_MAX, LS_DTYPE_I32, "loss is finite", a->cause[LS_LOOP_NON_FINITE]);
        if (l->non_finite && l->raise && event(m, LS_LOOP_NON_FINITE, 0)) {
            stop(m, "non_finite: the loss of this rank is not finite", a->cause[LS_LOOP_NON_FINITE]);
            return;
        }
    }
    copy_ops(m, s->op + forward, s->count - forward);
}

static bool is_optimizer(const struct ls_op *op) /* not what scales gradients before it */
{
    return op->kind == LS_OP_COMPUTE && op->pass == LS_PASS_OPT && op->payload != LS_NO_ID && !op->factor.num;
}

static void step_end(struct making *m, const struct ls_segment *s)
{
    const struct around *a = m->a;
    const struct ls_loop *l = a->in.loop;
    m->pass = LS_PASS_OPT;
    if (l->scaler == LS_SCALER_SHARDED)
        all_reduce(m, LS_REDUCE_MAX, LS_DTYPE_F32, "found_inf", a->cause[LS_LOOP_SCALER]);
    size_t from = m->ops.count;
    copy_ops(m, s->op, s->count);
    if (event(m, LS_LOOP_SCALER, 0)) /* the step is left out, not what is around it */
        for (size_t i = from; i < m->ops.count; i++)
            if (is_optimizer(&m->ops.at[i])) {
                struct ls_op *op = &m->ops.at[i];
                op->module = ls_name_id(a->in.tables->names, "optimizer step left out");
                op->cause = a->cause[LS_LOOP_SCALER];
                op->kernel = (uint32_t)a->in.tables->kernel.count;
                op->kernels = 1;
                op->ranges = 0;
                ls_push(&a->in.tables->kernel, (struct ls_kernel){ .what = LS_KERNEL_LEFT_OUT, .instance = LS_NO_ID });
            }
    if (l->names_agreed && l->metrics && a->in.comm != LS_NO_ID)
        talk(m, LS_OP_ALL_GATHER, LS_REDUCE_NONE, LS_DTYPE_U8, "metric names", a->cause[LS_LOOP_METRICS]);
    for (size_t i = 0; i < l->metrics; i++)
        if (l->names_agreed || takes_part(m, &l->metric[i], LS_LOOP_METRICS, i, m->now.held))
            all_reduce(m, LS_REDUCE_SUM, LS_DTYPE_F32, name_of(m, l->metric[i].name),
                       l->metric[i].when == LS_WHEN_ALWAYS ? a->plain_cause : a->cause[LS_LOOP_METRICS]);
    if (l->early_stop && l->stop_agree)
        all_reduce(m, LS_REDUCE_MAX, LS_DTYPE_I32, "stop", a->cause[LS_LOOP_EARLY_STOP]);
    if (event(m, LS_LOOP_EARLY_STOP, 0))
        m->now.flags |= LEFT;
    m->now.flags &= ~(uint32_t)(OPEN | DONE);
    m->now.held = 0;
}

static void end_validation(struct making *m)
{
    const struct around *a = m->a;
    const struct ls_loop *l = a->in.loop;
    m->pass = LS_PASS_EVAL;
    if (!(m->now.flags & ABSENT))
        for (size_t i = 0; i < l->eval_metrics; i++)
            all_reduce(m, LS_REDUCE_SUM, LS_DTYPE_F32, name_of(m, l->eval_metric[i].name), a->cause[LS_LOOP_EVAL_BATCHES]);
    m->now.flags &= ~(uint32_t)(VALIDATING | VALIDATED | ABSENT);
}

static void save(struct making *m)
{
    const struct around *a = m->a;
    const struct ls_loop *l = a->in.loop;
    uint32_t cause = a->cause[LS_LOOP_SAVE];
    m->pass = LS_PASS_OPT;
    if (l->save_ranks == LS_WHO_OWN && l->save_agree)
        all_reduce(m, LS_REDUCE_MIN, LS_DTYPE_F32, "best value", cause);
    else if (l->save_ranks != LS_WHO_ALL && !event(m, LS_LOOP_SAVE, 0))
        return;
    if (m->round->kind == LS_ROUND_NO_SAVE)
        return;
    if (!l->save_full && a->in.sharded_save_talks && a->in.comm != LS_NO_ID) {
        /* torch.distributed.checkpoint: each rank's plan to the coordinator and back, then the results of writing.
         * source  torch/distributed/checkpoint/utils.py, _DistWrapper.reduce_scatter and all_reduce */
        static const struct { enum ls_op_kind kind; const char *what; } call[] = {
            { LS_OP_GATHER, "save plan" }, { LS_OP_SCATTER, "save plan" }, { LS_OP_GATHER, "write results" }, { LS_OP_BROADCAST, "metadata" } };
        for (size_t i = 0; i < sizeof call / sizeof *call; i++)
            talk(m, call[i].kind, LS_REDUCE_NONE, LS_DTYPE_U8, call[i].what, cause)->peer = 0;
    }
    for (size_t i = 0; l->save_full && i < a->in.saves; i++) {
        const struct ls_saved *s = &a->in.saved[i];
        if (s->comm == LS_NO_ID)
            continue;
        struct ls_op *op = talk(m, LS_OP_ALL_GATHER, LS_REDUCE_NONE, s->dtype, "", cause);
        op->payload = s->payload;
        op->comm = (uint16_t)s->comm;
        op->count = s->count;
    }
}

static uint32_t intern(struct around *a, struct outer s)
{
    if (s.flags & STOPPED) /* nothing follows, whatever it carries */
        s = (struct outer){ .inner = a->in.inner->start, .flags = STOPPED };
    if (s.flags & LEFT)
        s.flags &= ~(uint32_t)(OPEN | DONE), s.held = 0;
    for (uint32_t i = 0; i < a->state.count; i++)
        if (a->state.at[i].inner == s.inner && a->state.at[i].flags == s.flags && a->state.at[i].held == s.held)
            return i;
    ls_push(&a->state, s);
    return (uint32_t)a->state.count - 1;
}

/* Which round the framework's transducer is to play, LS_NO_ID for none; changes the flags. */
static uint32_t begin(struct making *m, uint32_t round)
{
    const struct around *a = m->a;
    uint32_t *flags = &m->now.flags;
    if (*flags & STOPPED)
        return LS_NO_ID;
    switch (m->round->kind) {
    case LS_ROUND_MICRO:
    case LS_ROUND_SKIPPED:
        if (*flags & LEFT)
            return LS_NO_ID;
        if (!(*flags & OPEN)) {
            if (event(m, LS_LOOP_DATA, 0)) {
                *flags |= LEFT;
                return LS_NO_ID;
            }
            *flags |= OPEN;
            begin_step(m);
        }
        if (*flags & DONE)
            return LS_NO_ID;
        if (event(m, LS_LOOP_MICROBATCHES, 0)) {
            *flags |= DONE;
            round = a->in.rounds->early[round];
        }
        m->now.held |= held_by(m->letter);
        /* Raising needs the forward, and nothing of the backward. */
        if (event(m, LS_LOOP_NON_FINITE, 0))
            round = a->in.rounds->skipped[round];
        return round;
    case LS_ROUND_STEP:
        return *flags & LEFT ? LS_NO_ID : round;
    case LS_ROUND_EVAL:
        if ((*flags & LEFT) && !m->round->after)
            return LS_NO_ID;
        if (!(*flags & VALIDATING)) {
            *flags |= VALIDATING;
            if (a->in.loop->eval_ranks != LS_WHO_ALL && !event(m, LS_LOOP_EVAL_RANKS, 0))
                *flags |= ABSENT | VALIDATED;
            m->pass = LS_PASS_EVAL;
            if (!(*flags & ABSENT) && a->in.loop->own_eval_batches && a->in.loop->eval_agree)
                all_reduce(m, LS_REDUCE_MAX, LS_DTYPE_I32, "validation batch count", a->cause[LS_LOOP_EVAL_BATCHES]);
        }
        if (*flags & VALIDATED)
            return LS_NO_ID;
        if (event(m, LS_LOOP_EVAL_BATCHES, 0))
            *flags |= VALIDATED;
        return round;
    case LS_ROUND_IDLE:
    case LS_ROUND_EVAL_END:
    case LS_ROUND_SAVE:
    case LS_ROUND_NO_SAVE:
    case LS_ROUND_KINDS:
        break;
    }
    return LS_NO_ID;
}

static void finish(struct making *m, const struct ls_segment *s)
{
    bool away = (m->now.flags & STOPPED) || ((m->now.flags & LEFT) && !m->round->after);
    switch (m->round->kind) {
    case LS_ROUND_MICRO:
    case LS_ROUND_SKIPPED:
        if (s)
            microbatch(m, s);
        break;
    case LS_ROUND_STEP:
        if (s)
            step_end(m, s);
        break;
    case LS_ROUND_EVAL:
        if (s)
            copy_ops(m, s->op, s->count);
        break;
    case LS_ROUND_EVAL_END:
        if (!away)
            end_validation(m);
        break;
    case LS_ROUND_SAVE:
    case LS_ROUND_NO_SAVE:
        if (!away)
            save(m);
        break;
    case LS_ROUND_IDLE:
        break;
    case LS_ROUND_KINDS:
        assert(0 && "no round");
    }
    if (m->round->ends_epoch)
        m->now.flags &= ~(uint32_t)LEFT;
}

static size_t probe(const struct around *a, uint32_t state, uint32_t round, uint32_t letter)
{
    size_t i = ((size_t)state * 2654435761u + (size_t)round * 40503u + letter) & (a->slots - 1);
    while (a->slot[i]) {
        const struct memo *m = &a->memo.at[a->slot[i] - 1];
        if (m->state == state && m->round == round && m->letter == letter)
            break;
        i = (i + 1) & (a->slots - 1);
    }
    return i;
}

static void grow(struct around *a)
{
    if ((a->memo.count + 1) * 2 <= a->slots)
        return;
    a->slots = a->slots ? a->slots * 2 : 64;
    a->slot = LS_NEW(a->arena, uint32_t, a->slots);
    for (size_t i = 0; i < a->memo.count; i++)
        a->slot[probe(a, a->memo.at[i].state, a->memo.at[i].round, a->memo.at[i].letter)] = (uint32_t)i + 1;
}

static enum ls_code step(struct ls_transducer *t, uint32_t state, uint32_t round, uint32_t letter, struct ls_step *out, struct ls_error *err)
{
    struct around *a = (struct around *)t;
    struct ls_transducer *inner = a->in.inner;
    assert(state < a->state.count && round < a->in.rounds->rounds.count && letter < a->in.letters->count);
    grow(a);
    size_t slot = probe(a, state, round, letter);
    if (a->slot[slot]) {
        *out = a->memo.at[a->slot[slot] - 1].step;
        return LS_OK;
    }
    const struct ls_segment **role = LS_NEW(a->arena, const struct ls_segment *, inner->roles);
    struct outer after = { 0 };
    for (size_t y = 0; y < inner->roles; y++) {
        struct making m = { .a = a, .round = &a->in.rounds->rounds.round[round], .letter = &a->in.letters->letter[letter],
                            .now = a->state.at[state] };
        struct ls_step got = { 0 };
        uint32_t play = begin(&m, round);
        if (play != LS_NO_ID) {
            enum ls_code rc = inner->step(inner, m.now.inner, play, m.letter->base, &got, err);
            if (rc != LS_OK) {
                ls_vec_release(&m.ops);
                return rc;
            }
            m.now.inner = got.next;
        }
        finish(&m, play == LS_NO_ID ? NULL : got.role[y]);
        struct ls_segment *s = LS_NEW(a->arena, struct ls_segment, 1);
        s->op = m.ops.count ? ls_arena_copy(a->arena, m.ops.at, m.ops.count * sizeof *m.ops.at) : NULL;
        s->count = m.ops.count;
        s->hash = ls_segment_hash(s->op, s->count);
        role[y] = s;
        after = m.now; /* the same for every role: flags depend on the letter */
        ls_vec_release(&m.ops);
    }
    struct ls_step made = { .role = role, .next = intern(a, after) };
    if (a->state.count > a->t.states_max)
        return ls_fail(err, LS_EUNDECIDED, LS_NOWHERE, "a rank has more than %zu states: the loop does not settle", a->t.states_max);
    *out = made;
    ls_push(&a->memo, (struct memo){ state, round, letter, made });
    a->slot[slot] = (uint32_t)a->memo.count;
    return LS_OK;
}

static const char *letter_name(const struct ls_transducer *t, uint32_t letter)
{
    const struct around *a = (const struct around *)t;
    return ls_tables_name(a->in.tables, a->in.letters->letter[letter].name);
}

static uint32_t cause_of(struct around *a, const char *text, struct ls_loc at)
{
    return ls_tables_cause(a->in.tables, text, at.line ? at : a->in.loop->at);
}

enum ls_code ls_around_open(const struct ls_around_input *in, struct ls_arena *arena, struct ls_transducer **out, struct ls_error *err)
{
    struct around *a = LS_NEW(arena, struct around, 1);
    const struct ls_loop *l = in->loop;
    (void)err;
    a->in = *in;
    a->arena = arena;
    a->plain_cause = cause_of(a, "step", l->at);
    a->cause[LS_LOOP_MICROBATCHES] = cause_of(a, "loop.microbatches", l->microbatches_at);
    a->cause[LS_LOOP_DATA] = cause_of(a, "loop.data", l->data_at);
    a->cause[LS_LOOP_EVAL_BATCHES] = a->cause[LS_LOOP_EVAL_RANKS] = cause_of(a, "loop.validation", l->eval_at);
    a->cause[LS_LOOP_EARLY_STOP] = cause_of(a, "loop.early_stop", l->stop_at);
    a->cause[LS_LOOP_SAVE] = cause_of(a, "loop.save", l->save_at);
    a->cause[LS_LOOP_NON_FINITE] = cause_of(a, "step.non_finite", l->non_finite_at);
    a->cause[LS_LOOP_SCALER] = cause_of(a, "step.grad_scaler", l->scaler_at);
    a->cause[LS_LOOP_METRICS] = cause_of(a, "step.metrics", l->metrics ? l->metric[0].at : l->at);
    a->cause[LS_LOOP_FORWARD] = cause_of(a, "step.forward_reduce", l->forwards ? l->forward[0].at : l->at);
    a->t = (struct ls_transducer){ .tables = in->tables, .roles = in->inner->roles, .letters = in->letters->count, .step = step,
                                   .letter_name = letter_name, .states_max = in->inner->states_max };
    a->t.start = intern(a, (struct outer){ .inner = in->inner->start });
    *out = &a->t;
    return LS_OK;
}

void ls_around_close(struct ls_transducer *t)
{
    if (!t)
        return;
    struct around *a = (struct around *)t;
    ls_vec_release(&a->state);
    ls_vec_release(&a->memo);
}
