/* Samples to letters: which descriptions of batches yield the same ops. */
#include "batch/batch.h"
#include "base/str.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>

/* Sample keys and the conditions of the flow that they count. */
static const struct { const char *key, *condition, *plural; } count_keys[] = {
    { "images", "image", "images" }, { "videos", "video", "videos" }, { "audios", "audio", "audios" },
};
enum { COUNT_KEYS = sizeof count_keys / sizeof *count_keys, COUNT_MAX = 2 };

static uint64_t sample_count(const struct ls_sample *s, size_t key)
{
    return key == 0 ? s->images : key == 1 ? s->videos : s->audios;
}

static size_t find_condition(const struct ls_model *m, const char *name)
{
    for (size_t i = 0; i < m->conditions; i++)
        if (strcmp(ls_name_text(m->names, m->condition[i].name), name) == 0)
            return i;
    return m->conditions;
}

/* A dummy runs the encoder once: as the modality's first condition that any sample holds, else its first. */
static size_t dummy_condition(const struct ls_batch *b, uint32_t modality)
{
    const struct ls_model *m = b->model;
    size_t first = m->conditions;
    for (size_t c = 0; c < m->conditions; c++) {
        if (m->condition[c].modality != modality)
            continue;
        for (size_t i = 0; i < b->samples; i++)
            for (size_t k = 0; k < COUNT_KEYS; k++)
                if (sample_count(&b->sample[i], k) && find_condition(m, count_keys[k].condition) == c)
                    return c;
        if (first == m->conditions)
            first = c;
    }
    return first;
}

static enum ls_code make_letter(const struct ls_batch *b, const struct ls_sample *sample, struct ls_letter *out, struct ls_error *err)
{
    const struct ls_model *m = b->model;
    *out = (struct ls_letter){ 0 };
    for (size_t k = 0; k < COUNT_KEYS; k++) {
        uint64_t count = sample_count(sample, k);
        if (count == 0)
            continue;
        size_t c = find_condition(m, count_keys[k].condition);
        if (c == m->conditions)
            return ls_fail(err, LS_EINPUT, sample->at, "'%s' is %" PRIu64 ", but the model's flow has no condition '%s'",
                           count_keys[k].key, count, count_keys[k].condition);
        if (count > COUNT_MAX)
            return ls_fail(err, LS_EINPUT, sample->at, "'%s' is %" PRIu64 ", which is not between 0 and %d", count_keys[k].key, count,
                           COUNT_MAX);
        out->count[c] = (uint8_t)count;
    }
    for (size_t c = 0; c < m->conditions; c++)
        out->count[c] = (uint8_t)(out->count[c] + sample->condition[c]);
    out->tokens = b->by_tokens ? sample->text : 0;
    out->idle_experts = b->by_idle_experts && sample->idle_experts;
    for (size_t d = 0; d < b->dummies; d++) {
        size_t stands_for = dummy_condition(b, b->dummy[d].modality);
        bool held = false;
        for (size_t c = 0; c < m->conditions; c++)
            held = held || (m->condition[c].modality == b->dummy[d].modality && out->count[c]);
        if (b->dummy[d].active && !held && stands_for < m->conditions)
            out->dummy |= UINT32_C(1) << stands_for;
    }
    return LS_OK;
}

static uint32_t letter_name(const struct ls_batch *b, const struct ls_letter *l, struct ls_names *names)
{
    const struct ls_model *m = b->model;
    struct ls_str text = { 0 };
    for (size_t c = 0; c < m->conditions; c++) {
        if (!l->count[c])
            continue;
        const char *name = ls_name_text(m->names, m->condition[c].name), *plural = NULL;
        for (size_t k = 0; k < COUNT_KEYS; k++)
            if (strcmp(count_keys[k].condition, name) == 0)
                plural = count_keys[k].plural;
        ls_str_printf(&text, "%s%u %s", text.length ? " + " : "", (unsigned)l->count[c], l->count[c] > 1 && plural ? plural : name);
    }
    if (!text.length)
        ls_str_add(&text, "text only");
    for (size_t d = 0; d < b->dummies; d++)
        for (size_t c = 0; c < m->conditions; c++)
            if (m->condition[c].modality == b->dummy[d].modality && (l->dummy >> c & 1)) {
                ls_str_printf(&text, " + %s dummy", ls_name_text(m->names, b->dummy[d].modality));
                break;
            }
    if (l->tokens)
        ls_str_printf(&text, ", %" PRIu64 " tokens", l->tokens);
    if (l->idle_experts)
        ls_str_add(&text, ", experts idle");
    uint32_t id = ls_name_id(names, ls_str_text(&text));
    ls_str_release(&text);
    return id;
}

static bool same_letter(const struct ls_letter *a, const struct ls_letter *b)
{
    return a->dummy == b->dummy && a->tokens == b->tokens && a->idle_experts == b->idle_experts &&
           memcmp(a->count, b->count, sizeof a->count) == 0;
}

enum ls_code ls_batch_letters(const struct ls_batch *b, struct ls_names *names, struct ls_arena *arena, struct ls_letters *out,
                              struct ls_error *err)
{
    struct ls_letters l = { .letter = LS_NEW(arena, struct ls_letter, b->samples), .of_sample = LS_NEW(arena, uint32_t, b->samples) };
    for (size_t i = 0; i < b->samples; i++) {
        struct ls_letter letter;
        enum ls_code rc = make_letter(b, &b->sample[i], &letter, err);
        if (rc != LS_OK)
            return rc;
        size_t at = 0;
        while (!b->apart && at < l.count && !same_letter(&l.letter[at], &letter))
            at++;
        if (b->apart)
            at = l.count;
        if (!b->apart && at == LS_LETTERS_MAX) /* numbers of tokens alone can make so many */
            return ls_fail(err, LS_EINPUT, b->sample[i].at, "the samples make more than %d different letters", LS_LETTERS_MAX);
        if (at == l.count) {
            letter.name = letter_name(b, &letter, names);
            letter.base = (uint32_t)l.count;
            l.letter[l.count++] = letter;
        }
        l.of_sample[i] = (uint32_t)at;
    }
    *out = l;
    return LS_OK;
}

bool ls_letter_has_media(const struct ls_letter *letter)
{
    for (size_t c = 0; c < LS_CONDITIONS_MAX; c++)
        if (letter->count[c])
            return true;
    return false;
}

uint32_t ls_batch_still_letter(const struct ls_letters *letters)
{
    for (size_t i = 0; i < letters->count; i++)
        if (ls_letter_has_media(&letters->letter[i]))
            return (uint32_t)i;
    return 0;
}

void ls_batch_restrict(const struct ls_letters *letters, const struct ls_rounds *rounds, struct ls_arena *arena, struct ls_driver *driver)
{
    size_t words = (letters->count + 63) / 64;
    uint32_t still = ls_batch_still_letter(letters);
    uint64_t *one = LS_NEW(arena, uint64_t, words ? words : 1);
    one[still / 64] |= UINT64_C(1) << still % 64;
    for (size_t i = 0; i < driver->nodes; i++) {
        enum ls_round_kind kind = rounds->round[driver->node[i].round].kind;
        if (kind == LS_ROUND_STEP || kind == LS_ROUND_IDLE)
            driver->node[i].allowed = one;
    }
}
