#include "scenario/timing.h"

#include <string.h>

static enum ls_code read_range(const struct ls_yaml_node *map, const char *key, uint64_t max, struct ls_range_of *out, struct ls_error *err)
{
    const struct ls_yaml_node *n = ls_yaml_get(map, key);
    if (!n)
        return LS_OK;
    if (n->kind != LS_YAML_LIST) {
        LS_TRY(ls_yaml_uint(n, key, 0, max, &out->least, err));
        out->most = out->least;
        return LS_OK;
    }
    if (n->count != 2)
        return ls_fail(err, LS_EINPUT, n->at, "'%s' is a number, or [least, most]", key);
    LS_TRY(ls_yaml_uint(n->item[0], key, 0, max, &out->least, err));
    LS_TRY(ls_yaml_uint(n->item[1], key, 0, max, &out->most, err));
    if (out->least > out->most)
        return ls_fail(err, LS_EINPUT, n->at, "'%s' is [least, most], but the first is larger", key);
    return LS_OK;
}

static enum ls_code read_batches(const struct ls_yaml_node *n, struct ls_distribution *d, struct ls_error *err)
{
    static const char *const keys[] = { "text_only", "text", "images", "image_patches", "videos", "video_patches", "audios",
                                        "audio_positions", "sequences", NULL };
    enum { TOKENS_MAX = 1 << 30, CALLS_MAX = 2 };
    LS_TRY(ls_yaml_check_keys(n, "batches", keys, err));
    *d = (struct ls_distribution){ .given = true, .text = { 512, 512 }, .sequences = { 1, 1 } };
    const struct ls_yaml_node *v = ls_yaml_get(n, "text_only");
    if (v)
        LS_TRY(ls_yaml_real(v, "text_only", &d->text_only, err));
    if (v && !(d->text_only >= 0 && d->text_only <= 1))
        return ls_fail(err, LS_EINPUT, v->at, "'text_only' is a share, from 0 to 1");
    struct ls_range_of *const to[] = { &d->text, &d->images, &d->image_patches, &d->videos, &d->video_patches, &d->audios,
                                       &d->audio_positions, &d->sequences };
    for (size_t i = 0; i < sizeof to / sizeof *to; i++)
        LS_TRY(read_range(n, keys[i + 1], to[i] == &d->images || to[i] == &d->videos || to[i] == &d->audios ? CALLS_MAX : TOKENS_MAX, to[i], err));
    return LS_OK;
}

static enum ls_code read_timeouts(const struct ls_yaml_node *n, struct ls_arena *arena, struct ls_timing *out, struct ls_error *err)
{
    static const char *const keys[] = { "after", "then", NULL }, *const reactions[] = { "raise", "go_on", NULL };
    enum { SECONDS_MAX = 1000000 };
    LS_TRY(ls_yaml_map(n, "timeouts", err));
    out->timeout = LS_NEW(arena, struct ls_timeout, n->count);
    for (size_t i = 0; i < n->count; i++) {
        const struct ls_yaml_node *v = n->pair[i].value, *k;
        struct ls_timeout *t = &out->timeout[out->timeouts++];
        size_t which = 0;
        *t = (struct ls_timeout){ .comm = n->pair[i].key->text, .at = n->pair[i].key->at };
        LS_TRY(ls_yaml_check_keys(v, t->comm, keys, err));
        if (!(k = ls_yaml_get(v, "after")))
            return ls_fail(err, LS_EINPUT, v->at, "'after' is missing in '%.60s'", t->comm);
        LS_TRY(ls_yaml_uint(k, "after", 1, SECONDS_MAX, &t->after_s, err));
        if ((k = ls_yaml_get(v, "then")))
            LS_TRY(ls_yaml_choice(k, "then", reactions, &which, err));
        t->go_on = which == 1;
    }
    return LS_OK;
}

static enum ls_code read_percent(const struct ls_yaml_node *map, const char *key, uint64_t most, unsigned *out, struct ls_error *err)
{
    const struct ls_yaml_node *n = ls_yaml_get(map, key);
    uint64_t value = 0;
    if (n)
        LS_TRY(ls_yaml_uint(n, key, 0, most, &value, err));
    *out = (unsigned)value;
    return LS_OK;
}

enum ls_code ls_timing_read(const struct ls_yaml_node *n, struct ls_arena *arena, struct ls_timing *out, struct ls_error *err)
{
    static const char *const keys[] = { "optimizer", "recompute", "logits_held", "batches", "spread", "jitter", "watchdog", "timeouts",
                                        "routing_skew", NULL };
#define PLAIN_NAME(id, name) name,
    static const char *const optimizers[] = { LS_OPTIMIZERS(PLAIN_NAME) NULL }, *const recompute[] = { "none", "selective", NULL };
    const struct ls_yaml_node *v;
    size_t which = 0;
    *out = (struct ls_timing){ .logits_held = true, .routing_skew = 1 };
    if (!n)
        return LS_OK;
    LS_TRY(ls_yaml_check_keys(n, "simulate", keys, err));
    if ((v = ls_yaml_get(n, "optimizer"))) {
        LS_TRY(ls_yaml_choice(v, "optimizer", optimizers, &which, err));
        out->optimizer = (enum ls_optimizer)which;
    }
    if ((v = ls_yaml_get(n, "recompute"))) {
        LS_TRY(ls_yaml_choice(v, "recompute", recompute, &which, err));
        out->selective = which == 1;
    }
    if ((v = ls_yaml_get(n, "logits_held")))
        LS_TRY(ls_yaml_bool(v, "logits_held", &out->logits_held, err));
    LS_TRY(read_percent(n, "spread", 100, &out->spread, err));
    LS_TRY(read_percent(n, "jitter", 50, &out->jitter, err));
    if ((v = ls_yaml_get(n, "watchdog")))
        LS_TRY(ls_yaml_uint(v, "watchdog", 1, 1000000, &out->watchdog_s, err));
    if ((v = ls_yaml_get(n, "routing_skew")))
        LS_TRY(ls_yaml_real(v, "routing_skew", &out->routing_skew, err));
    if (v && !(out->routing_skew >= 1 && out->routing_skew <= 1024))
        return ls_fail(err, LS_EINPUT, v->at, "'routing_skew' is how many times the mean the busiest rank gets, from 1 to 1024");
    if ((v = ls_yaml_get(n, "timeouts")))
        LS_TRY(read_timeouts(v, arena, out, err));
    return (v = ls_yaml_get(n, "batches")) ? read_batches(v, &out->batches, err) : LS_OK;
}
