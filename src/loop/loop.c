/* Events of a loop, and the letters and contracts they extend. */
#include "loop/loop.h"

#include "base/str.h"

#include <assert.h>
#include <string.h>

#define BIT(kind) (UINT32_C(1) << (kind))

const char *ls_loop_repair(enum ls_loop_feature feature)
{
#define TEXT(id, text) text,
    static const char *const texts[] = { LS_LOOP_FEATURES(TEXT) };
#undef TEXT
    assert(feature < LS_LOOP_FEATURE_COUNT);
    return texts[feature];
}

static bool some(const struct ls_named *list, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (list[i].when != LS_WHEN_ALWAYS)
            return true;
    return false;
}

uint32_t ls_loop_own(const struct ls_loop *l)
{
    uint32_t own = 0;
    if (!l->present)
        return 0;
    own |= l->own_microbatches && !l->microbatches_agree ? BIT(LS_LOOP_MICROBATCHES) : 0;
    own |= l->own_data && !l->data_agree ? BIT(LS_LOOP_DATA) : 0;
    own |= l->own_eval_batches && !l->eval_agree ? BIT(LS_LOOP_EVAL_BATCHES) : 0;
    own |= l->eval_ranks != LS_WHO_ALL ? BIT(LS_LOOP_EVAL_RANKS) : 0;
    own |= l->early_stop && !l->stop_agree ? BIT(LS_LOOP_EARLY_STOP) : 0;
    own |= l->save_ranks != LS_WHO_ALL && !l->save_agree ? BIT(LS_LOOP_SAVE) : 0;
    own |= l->non_finite && !l->non_finite_agree ? BIT(LS_LOOP_NON_FINITE) : 0;
    own |= l->scaler == LS_SCALER_LOCAL ? BIT(LS_LOOP_SCALER) : 0;
    own |= some(l->metric, l->metrics) && !l->names_agreed ? BIT(LS_LOOP_METRICS) : 0;
    own |= some(l->forward, l->forwards) ? BIT(LS_LOOP_FORWARD) : 0;
    return own;
}

struct ls_loop ls_loop_agreed(const struct ls_loop *from, uint32_t features, struct ls_arena *arena)
{
    struct ls_loop l = *from;
    if (features & BIT(LS_LOOP_MICROBATCHES))
        l.microbatches_agree = LS_AGREE_ALL_REDUCE;
    if (features & BIT(LS_LOOP_DATA))
        l.data_agree = LS_AGREE_ALL_REDUCE;
    if (features & BIT(LS_LOOP_EVAL_BATCHES))
        l.eval_agree = LS_AGREE_ALL_REDUCE;
    if (features & BIT(LS_LOOP_EVAL_RANKS))
        l.eval_ranks = LS_WHO_ALL;
    if (features & BIT(LS_LOOP_EARLY_STOP))
        l.stop_agree = LS_AGREE_ALL_REDUCE;
    if (features & BIT(LS_LOOP_NON_FINITE))
        l.non_finite_agree = LS_AGREE_ALL_REDUCE;
    if (features & BIT(LS_LOOP_SCALER))
        l.scaler = LS_SCALER_SHARDED;
    if (features & BIT(LS_LOOP_METRICS))
        l.names_agreed = true;
    if (features & BIT(LS_LOOP_SAVE)) {
        if (l.save_ranks == LS_WHO_OWN) /* each compared its own value: now all compare one */
            l.save_agree = LS_AGREE_ALL_REDUCE;
        else
            l.save_ranks = LS_WHO_ALL;
    }
    if ((features & BIT(LS_LOOP_FORWARD)) && l.forwards) {
        l.forward = ls_arena_copy(arena, from->forward, l.forwards * sizeof *l.forward);
        for (size_t i = 0; i < l.forwards; i++)
            l.forward[i].when = LS_WHEN_ALWAYS;
    }
    return l;
}

static void add(struct ls_loop *l, struct ls_names *names, enum ls_loop_feature feature, const char *name, const char *says, uint32_t rounds,
                uint32_t item, struct ls_loc at)
{
    l->event[l->events++] = (struct ls_event){ feature, ls_name_id(names, name), ls_name_id(names, says), rounds, item, at };
}

/* One event per value that a rank may or may not have. */
static void add_each(struct ls_loop *l, struct ls_names *names, enum ls_loop_feature feature, const struct ls_named *list, size_t count,
                     const char *verb, uint32_t rounds)
{
    struct ls_str text = { 0 };
    for (size_t i = 0; i < count; i++) {
        if (list[i].when != LS_WHEN_ANY)
            continue;
        ls_str_clear(&text);
        ls_str_printf(&text, "%s %s", verb, ls_name_text(names, list[i].name));
        add(l, names, feature, ls_str_text(&text), ls_str_text(&text), rounds, (uint32_t)i, list[i].at);
    }
    ls_str_release(&text);
}

void ls_loop_events(struct ls_loop *l, struct ls_names *names, struct ls_arena *arena)
{
    l->event = LS_NEW(arena, struct ls_event, LS_LOOP_FEATURE_COUNT + l->metrics + l->forwards);
    l->events = 0;
    if (!l->present)
        return;
    uint32_t own = ls_loop_own(l), micro = BIT(LS_ROUND_MICRO), batch = micro | BIT(LS_ROUND_SKIPPED);
    if (own & BIT(LS_LOOP_MICROBATCHES))
        add(l, names, LS_LOOP_MICROBATCHES, "last_microbatch", "its last microbatch of the step", batch, 0, l->microbatches_at);
    if (l->own_data && l->data_agree != LS_AGREE_ALL_REDUCE) /* a rank that joins stops reading all the same */
        add(l, names, LS_LOOP_DATA, "out_of_data", "out of data", batch, 0, l->data_at);
    if (own & BIT(LS_LOOP_NON_FINITE))
        add(l, names, LS_LOOP_NON_FINITE, "non_finite", "loss not finite", micro, 0, l->non_finite_at);
    add_each(l, names, LS_LOOP_FORWARD, l->forward, l->forwards, "reduces", batch);
    if (own & BIT(LS_LOOP_SCALER))
        add(l, names, LS_LOOP_SCALER, "inf", "gradients not finite", BIT(LS_ROUND_STEP), 0, l->scaler_at);
    add_each(l, names, LS_LOOP_METRICS, l->metric, l->metrics, "logs", BIT(LS_ROUND_STEP));
    if (own & BIT(LS_LOOP_EARLY_STOP))
        add(l, names, LS_LOOP_EARLY_STOP, "stops", "stops early", BIT(LS_ROUND_STEP), 0, l->stop_at);
    if (own & BIT(LS_LOOP_EVAL_RANKS))
        add(l, names, LS_LOOP_EVAL_RANKS, "validates", "validates", BIT(LS_ROUND_EVAL), 0, l->eval_at);
    if (own & BIT(LS_LOOP_EVAL_BATCHES))
        add(l, names, LS_LOOP_EVAL_BATCHES, "last_batch", "its last validation batch", BIT(LS_ROUND_EVAL), 0, l->eval_at);
    if (own & BIT(LS_LOOP_SAVE))
        add(l, names, LS_LOOP_SAVE, "saves", "saves", BIT(LS_ROUND_SAVE), 0, l->save_at);
}

/* A rank without data does nothing else in that microbatch; the others combine. */
static bool combines(const struct ls_loop *l, uint32_t events, uint32_t round)
{
    for (size_t i = 0; i < l->events; i++) {
        if (!(events >> i & 1))
            continue;
        if (!(l->event[i].rounds >> round & 1))
            return false;
        if (l->event[i].feature == LS_LOOP_DATA && events != BIT(i))
            return false;
    }
    return true;
}

static uint32_t letter_name(const struct ls_loop *l, struct ls_names *names, const struct ls_letter *letter, bool batch)
{
    struct ls_str text = { 0 };
    if (batch)
        ls_str_add(&text, ls_name_text(names, letter->name));
    for (size_t i = 0; i < l->events; i++)
        if (letter->events >> i & 1)
            ls_str_printf(&text, "%s%s", text.length ? ", " : "", ls_name_text(names, l->event[i].says));
    uint32_t id = ls_name_id(names, ls_str_text(&text));
    ls_str_release(&text);
    return id;
}

uint32_t ls_loop_letter(const struct ls_letters *l, uint32_t base, uint32_t events)
{
    for (uint32_t i = 0; i < l->count; i++)
        if (l->letter[i].base == base && l->letter[i].events == events)
            return i;
    return LS_NO_ID;
}

static bool holds_batch(uint32_t kind)
{
    return kind == LS_ROUND_MICRO || kind == LS_ROUND_SKIPPED || kind == LS_ROUND_EVAL;
}

enum ls_code ls_loop_letters(const struct ls_loop *loop, const struct ls_batch *b, const struct ls_letters *in, struct ls_names *names,
                             struct ls_arena *arena, struct ls_letters *out, struct ls_error *err)
{
    *out = *in;
    if (b->apart || !loop->events)
        return LS_OK;
    assert(loop->events < 32);
    out->letter = LS_NEW(arena, struct ls_letter, LS_LETTERS_MAX);
    memcpy(out->letter, in->letter, in->count * sizeof *in->letter);
    uint32_t still = ls_batch_still_letter(in), most = BIT(loop->events);
    for (uint32_t e = 1; e < most; e++) {
        bool with_batch = false, without = false;
        for (uint32_t k = 0; k < LS_ROUND_KINDS; k++)
            if (combines(loop, e, k))
                *(holds_batch(k) ? &with_batch : &without) = true;
        for (uint32_t i = 0; i < in->count; i++) {
            if (!with_batch && !(without && i == still))
                continue;
            if (out->count == LS_LETTERS_MAX)
                return ls_fail(err, LS_EINPUT, loop->at,
                               "ranks may hold %zu kinds of batches and decide %zu things by themselves: more than %d combinations", in->count,
                               loop->events, LS_LETTERS_MAX);
            struct ls_letter letter = in->letter[i];
            letter.base = i;
            letter.events = e;
            letter.name = letter_name(loop, names, &letter, with_batch && in->count > 1);
            out->letter[out->count++] = letter;
        }
    }
    return LS_OK;
}

/* Agents above the replicas choose batches; a replica adds its events. */
static const uint32_t *extend(const uint32_t *class_of, const struct ls_letters *letters, struct ls_arena *arena)
{
    uint32_t *out = LS_NEW(arena, uint32_t, letters->count + 1);
    for (size_t i = 0; i < letters->count; i++)
        out[i] = class_of ? class_of[letters->letter[i].base] : letters->letter[i].base;
    return out;
}

static enum ls_code table(const struct ls_batch *b, const struct ls_letters *base, const struct ls_letters *letters, const struct ls_rounds *rounds,
                          const struct ls_driver *driver, size_t replicas, struct ls_arena *arena, struct ls_contract *c, struct ls_error *err)
{
    LS_TRY(ls_batch_check_table(b, replicas, err));
    size_t batches = 0, all = 0;
    for (size_t i = 0; i < driver->nodes; i++) {
        uint32_t kind = rounds->round[driver->node[i].round].kind;
        batches += holds_batch(kind);
        all += kind != LS_ROUND_IDLE;
    }
    bool every = b->rows == all && (b->events || all != batches);
    if (!every && b->rows != batches)
        return ls_fail(err, LS_EINPUT, b->execution_at, "'table' has %zu rows; with a loop there is one for each of %zu batches, or of %zu rounds",
                       b->rows, batches, all);
    uint32_t *cell = LS_NEW(arena, uint32_t, ls_mul_size(driver->nodes, replicas)), still = ls_batch_still_letter(base);
    uint32_t *sample = LS_NEW(arena, uint32_t, ls_mul_size(driver->nodes, replicas));
    for (size_t i = 0, row = 0; i < driver->nodes; i++) {
        uint32_t kind = rounds->round[driver->node[i].round].kind;
        bool given = kind != LS_ROUND_IDLE && (every || holds_batch(kind));
        for (size_t x = 0; x < replicas; x++) {
            size_t at = row * b->columns + x;
            uint32_t batch = given && holds_batch(kind) ? base->of_sample[b->table[at]] : still;
            uint32_t events = given && b->events ? b->events[at] : 0;
            uint32_t letter = ls_loop_letter(letters, batch, events);
            bool allowed = letter != LS_NO_ID &&
                           (!driver->node[i].allowed || (driver->node[i].allowed[letter / 64] >> letter % 64 & 1));
            if (!allowed)
                return ls_fail(err, LS_EINPUT, b->execution_at, "'table' row %zu, column %zu: these events do not go with the round '%s'", row, x,
                               driver->node[i].name);
            cell[i * replicas + x] = letter;
            sample[i * replicas + x] = given && holds_batch(kind) ? b->table[at] : 0;
        }
        row += given;
    }
    c->extra = LS_CONTRACT_TABLE;
    c->table = cell;
    c->sample = sample;
    c->rows = driver->nodes;
    c->columns = replicas;
    return LS_OK;
}

enum ls_code ls_loop_contract(const struct ls_loop *loop, const struct ls_batch *b, const struct ls_letters *base, const struct ls_letters *letters,
                              const struct ls_rounds *rounds, const struct ls_driver *driver, uint32_t mesh_dims, size_t replicas,
                              struct ls_arena *arena, struct ls_contract *out, struct ls_error *err)
{
    struct ls_batch free_batch = *b;
    (void)loop;
    if (b->execution == LS_EXEC_TABLE)
        free_batch.execution = LS_EXEC_ANY;
    enum ls_code rc = ls_batch_contract(&free_batch, base, mesh_dims, replicas, arena, out, err);
    if (rc != LS_OK)
        return rc;
    for (size_t i = 0; i + 1 < out->levels; i++)
        out->class_of[i] = extend(out->class_of[i], letters, arena);
    uint64_t media = out->media;
    out->media = 0;
    for (size_t i = 0; media && i < letters->count; i++)
        out->media |= media >> letters->letter[i].base & 1 ? UINT64_C(1) << i : 0;
    if (b->execution != LS_EXEC_TABLE)
        return LS_OK;
    out->name = ls_execution_name(b->execution);
    return table(b, base, letters, rounds, driver, replicas, arena, out, err);
}
