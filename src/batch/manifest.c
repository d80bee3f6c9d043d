#include "batch/manifest.h"

#include "base/hash.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LINE_MAX_BYTES = 1 << 24 };

static size_t column_of(const char *line, const char *key)
{
    char quoted[128];
    snprintf(quoted, sizeof quoted, "\"%.120s\"", key);
    const char *at = strstr(line, quoted);
    return at ? (size_t)(at - line) + 1 : 1;
}

/* A count, or a list of media. */
static enum ls_code count_of(const struct ls_manifest *m, const json_t *object, const char *key, const char *line, struct ls_loc at, bool *any,
                             uint64_t *out, struct ls_error *err)
{
    const json_t *v = json_object_get(object, key);
    (void)m;
    *out = 0;
    if (!v)
        return LS_OK;
    *any = true;
    if (json_is_array(v)) {
        *out = json_array_size(v);
        return LS_OK;
    }
    if (json_is_integer(v) && json_integer_value(v) >= 0) {
        *out = (uint64_t)json_integer_value(v);
        return LS_OK;
    }
    at.column = column_of(line, key);
    return ls_fail(err, LS_EINPUT, at, "'%.60s' is neither a list nor an integer from 0", key);
}

static enum ls_code read_line(struct ls_manifest *m, const char *line, size_t length, struct ls_loc at, uint8_t *kind, struct ls_error *err)
{
    json_error_t bad;
    json_t *object = json_loadb(line, length, JSON_REJECT_DUPLICATES, &bad);
    bool any = false;
    enum ls_code rc = LS_OK;
    uint64_t count[1 + LS_MEDIA];
    if (!object) {
        at.column = bad.column > 0 ? (size_t)bad.column : 1;
        return ls_fail(err, LS_EINPUT, at, "not JSON: %.200s", bad.text);
    }
    *kind = 0;
    if (!json_is_object(object))
        rc = ls_fail(err, LS_EINPUT, at, "a sample is an object such as {\"%s\": 512, \"%s\": 1}", m->key[0], m->key[1]);
    for (size_t i = 0; i < 1 + LS_MEDIA && rc == LS_OK; i++)
        rc = count_of(m, object, m->key[i], line, at, &any, &count[i], err);
    if (rc == LS_OK && !any) {
        rc = ls_fail(err, LS_EINPUT, at, "the sample has none of the keys '%s', '%s', '%s', '%s'", m->key[0], m->key[1], m->key[2], m->key[3]);
        ls_hint(err, "'keys' says what they are called here");
    }
    if (rc == LS_OK) {
        m->text += count[0];
        for (size_t i = 0; i < LS_MEDIA; i++)
            *kind = (uint8_t)(*kind | (count[1 + i] ? 1u << i : 0u));
    }
    json_decref(object);
    return rc;
}

enum ls_code ls_manifest_scan(struct ls_manifest *m, struct ls_arena *arena, void (*see)(void *context, uint8_t kind), void *context,
                              struct ls_error *err)
{
    FILE *f = fopen(m->path, "rb");
    char *line = NULL;
    size_t room = 0;
    struct ls_loc at = { ls_arena_str(arena, m->path), 0, 1 };
    enum ls_code rc = LS_OK;
    m->samples = m->text = 0;
    memset(m->of_kind, 0, sizeof m->of_kind);
    if (!f)
        return ls_fail(err, LS_EINPUT, m->at, "'%.200s' cannot be read: %s", m->path, strerror(errno));
    for (ssize_t n; rc == LS_OK && (n = getline(&line, &room, f)) >= 0;) {
        size_t length = (size_t)n;
        at.line++;
        while (length && (line[length - 1] == '\n' || line[length - 1] == '\r'))
            line[--length] = 0;
        if (strspn(line, " \t") == length) /* an empty line is none */
            continue;
        uint8_t kind = 0;
        if (length > LINE_MAX_BYTES)
            rc = ls_fail(err, LS_EINPUT, at, "the line is longer than %d bytes", LINE_MAX_BYTES);
        if (rc == LS_OK)
            rc = read_line(m, line, length, at, &kind, err);
        if (rc != LS_OK)
            break;
        m->samples++;
        m->of_kind[kind]++;
        if (see)
            see(context, kind);
    }
    if (rc == LS_OK && ferror(f))
        rc = ls_fail(err, LS_EINPUT, m->at, "'%.200s' cannot be read: %s", m->path, strerror(errno));
    free(line);
    fclose(f);
    if (rc == LS_OK && !m->samples)
        rc = ls_fail(err, LS_EINPUT, m->at, "'%.200s' holds no sample", m->path);
    return rc;
}

/* ---- one order ---- */

struct dealing {
    const struct ls_risk_input *in;
    uint64_t replicas, block;      /* samples of a microbatch of all ranks */
    uint64_t seen, microbatch;     /* microbatches completed */
    uint8_t *kind;                 /* [replicas] of the microbatch being dealt */
    uint8_t *head;                 /* [replicas] the first samples, which pad the end */
    struct ls_risk *out;
};

static void end_microbatch(struct dealing *d)
{
    const struct ls_risk_input *in = d->in;
    bool differ = false;
    for (uint64_t g = 0; g < in->groups; g++)
        for (uint64_t r = 1; r < in->members; r++)
            differ |= in->class_of[d->kind[g * in->members + r]] != in->class_of[d->kind[g * in->members]];
    if (differ && !d->out->first_step) {
        d->out->first_step = d->microbatch / in->microbatches + 1;
        d->out->first_microbatch = d->microbatch % in->microbatches;
        d->out->first_sample = d->microbatch * d->block;
    }
    d->microbatch++;
    memset(d->kind, 0, d->replicas);
}

static void deal(void *context, uint8_t kind)
{
    struct dealing *d = context;
    uint64_t place = d->seen % d->block;
    if (d->seen < d->replicas)
        d->head[d->seen] = kind;
    d->kind[place % d->replicas] |= kind;
    d->seen++;
    if (d->seen % d->block == 0)
        end_microbatch(d);
}

/* The sampler pads to a multiple of the ranks with the first samples; the loader's last batch may be short. */
static void end_epoch(struct dealing *d)
{
    if (!d->in->manifest->drop_last) {
        uint64_t real = d->seen;
        for (uint64_t i = 0; d->seen % d->replicas; i++)
            deal(d, d->head[i % (real < d->replicas ? real : d->replicas)]);
        if (d->seen % d->block)
            end_microbatch(d);
    }
    d->out->steps = (d->microbatch + (d->in->manifest->drop_last ? 0 : d->in->microbatches - 1)) / d->in->microbatches;
    if (d->out->first_step > d->out->steps)
        d->out->first_step = 0;
}

/* ---- a random order ---- */

/* Kinds that no microbatch tells apart count as one. */
struct merged { uint64_t count[LS_KINDS]; uint8_t kind[LS_KINDS]; size_t kinds; };

static struct merged merge(const struct ls_risk_input *in)
{
    struct merged m = { 0 };
    for (uint8_t k = 0; k < LS_KINDS; k++) {
        if (!in->manifest->of_kind[k])
            continue;
        size_t at = 0;
        for (; at < m.kinds; at++) {
            bool same = in->class_of[m.kind[at]] == in->class_of[k];
            for (uint8_t x = 0; x < LS_KINDS && in->manifest->batch_size > 1; x++)
                same = same && in->class_of[x | m.kind[at]] == in->class_of[x | k];
            if (same)
                break;
        }
        if (at == m.kinds)
            m.kind[m.kinds++] = k;
        m.count[at] += in->manifest->of_kind[k];
    }
    return m;
}

enum { STATES_MAX = 1 << 17 };
static const double WORK_MAX = 2e9, NOTHING = 1e-15;

/* Distribution over how many samples of each merged kind but the last are used up, dense over the possible box. */
struct counting {
    const struct ls_risk_input *in;
    struct merged m;
    size_t dims, side[LS_KINDS], states;
    double *now, *next, *sum;
    uint64_t used;
    double work;
};

/* One replica draws a batch; only those of class `c` stay. */
struct draw { struct counting *c; size_t from; uint8_t class_; size_t at[LS_KINDS]; };

static void draw_rest(struct draw *d, size_t kind, uint64_t left, uint64_t drawn, uint8_t mask, double p, size_t to)
{
    struct counting *c = d->c;
    const struct merged *m = &c->m;
    if (left == 0) {
        if (c->in->class_of[mask] == d->class_)
            c->next[to] += p;
        c->work++;
        return;
    }
    if (kind == m->kinds)
        return;
    /* k of the `left` remaining draws are of this kind: hypergeometric among the kinds from here on. */
    uint64_t have = m->count[kind] - d->at[kind], others = 0;
    for (size_t k = kind + 1; k < m->kinds; k++)
        others += m->count[k] - d->at[k];
    double q = p; /* probability of k = 0, then the next */
    size_t stride = 1;
    for (size_t k = 0; k < kind && kind < c->dims; k++)
        stride *= c->side[k];
    if (kind == m->kinds - 1) {
        if (left <= have)
            draw_rest(d, kind + 1, 0, drawn + left, (uint8_t)(mask | m->kind[kind]), p, to);
        return;
    }
    for (uint64_t i = 0; i < left; i++)
        q *= others > i ? (double)(others - i) / (double)(have + others - i) : 0.0;
    if (q > 0)
        draw_rest(d, kind + 1, left, drawn, mask, q, to);
    for (uint64_t k = 1; k <= left && k <= have; k++) {
        /* P(k) directly, since P(0) may be 0: choose(left, k) * falling products */
        double r = p;
        for (uint64_t i = 0; i < k; i++)
            r *= (double)(left - i) / (double)(i + 1) * (double)(have - i) / (double)(have + others - i);
        for (uint64_t i = 0; i < left - k; i++)
            r *= others > i ? (double)(others - i) / (double)(have + others - k - i) : 0.0;
        if (r > 0)
            draw_rest(d, kind + 1, left - k, drawn + k, (uint8_t)(mask | m->kind[kind]), r, to + k * stride);
    }
}

static void one_replica(struct counting *c, uint8_t class_)
{
    memset(c->next, 0, c->states * sizeof *c->next);
    c->work += (double)c->states / 4;
    for (size_t s = 0; s < c->states; s++) {
        if (c->now[s] <= 0)
            continue;
        struct draw d = { .c = c, .from = s, .class_ = class_ };
        uint64_t total = 0;
        size_t rest = s;
        for (size_t k = 0; k < c->dims; k++) {
            d.at[k] = rest % c->side[k];
            rest /= c->side[k];
            total += d.at[k];
        }
        if (total > c->used)
            continue;
        d.at[c->m.kinds - 1] = c->used - total;
        draw_rest(&d, 0, c->in->manifest->batch_size, 0, 0, c->now[s], s);
    }
    double *t = c->now;
    c->now = c->next;
    c->next = t;
}

/* One group agrees on a class, whichever. */
static void one_group(struct counting *c, double *start)
{
    bool seen[256] = { 0 };
    uint64_t used = c->used;
    memcpy(start, c->now, c->states * sizeof *start);
    memset(c->sum, 0, c->states * sizeof *c->sum);
    for (uint8_t x = 0; x < LS_KINDS; x++) {
        uint8_t class_ = c->in->class_of[x];
        if (seen[class_])
            continue;
        seen[class_] = true;
        memcpy(c->now, start, c->states * sizeof *start);
        c->used = used;
        for (uint64_t r = 0; r < c->in->members && c->work < WORK_MAX; r++) {
            one_replica(c, class_);
            c->used += c->in->manifest->batch_size;
        }
        for (size_t s = 0; s < c->states; s++)
            c->sum[s] += c->now[s];
    }
    memcpy(c->now, c->sum, c->states * sizeof *start);
    c->used = used + c->in->members * c->in->manifest->batch_size;
}

static double total(const struct counting *c)
{
    double sum = 0;
    for (size_t s = 0; s < c->states; s++)
        sum += c->now[s];
    return sum;
}

/* Q[s], the probability that none of the first s steps hangs, step by step. False: too much work for even one step. */
static bool count_steps(struct counting *c, struct ls_arena *arena, struct ls_risk *out)
{
    const struct ls_risk_input *in = c->in;
    uint64_t per_step = in->groups * in->members * in->microbatches * in->manifest->batch_size;
    size_t steps = 64; /* as many as the states allow */
    c->dims = c->m.kinds - 1;
    for (;; steps /= 2) {
        c->states = 1;
        for (size_t k = 0; k < c->dims; k++) {
            uint64_t side = c->m.count[k] < per_step * steps ? c->m.count[k] + 1 : per_step * steps + 1;
            c->side[k] = (size_t)side;
            c->states = c->states > STATES_MAX / side ? STATES_MAX + 1 : c->states * (size_t)side;
        }
        if (c->states <= STATES_MAX || steps == 1)
            break;
    }
    if (c->states > STATES_MAX)
        return false;
    c->now = LS_NEW(arena, double, c->states);
    c->next = LS_NEW(arena, double, c->states);
    c->sum = LS_NEW(arena, double, c->states);
    double *start = LS_NEW(arena, double, c->states), survive = 1, sum = 1, before = 1;
    c->now[0] = 1;
    uint64_t s = 0;
    while (s < steps && s < out->steps && survive > NOTHING && c->work < WORK_MAX) {
        for (uint64_t g = 0; g < in->groups * in->microbatches && survive > NOTHING && c->work < WORK_MAX; g++) {
            one_group(c, start);
            survive = total(c);
        }
        if (c->work >= WORK_MAX)
            break;
        s++;
        if (s == 1)
            out->step = 1 - survive;
        if (s < out->steps)
            sum += survive;
        before = survive;
    }
    if (s == 0)
        return false;
    double end = before; /* no hang in the whole epoch */
    if (s < out->steps && before > NOTHING) {
        /* Later steps as independent ones of equal probability. */
        double stay = 1 - out->step, tail = 0;
        out->approximate_tail = true;
        tail = out->step > 0 ? before * (stay - pow(stay, (double)(out->steps - s))) / out->step : before * (double)(out->steps - s - 1);
        sum += tail;
        end = before * pow(stay, (double)(out->steps - s));
    }
    out->epoch = 1 - end;
    out->first = out->epoch > NOTHING ? sum / out->epoch : 0;
    out->exact = true;
    return true;
}

static void sample_steps(const struct ls_risk_input *in, struct ls_risk *out)
{
    const struct ls_manifest *m = in->manifest;
    uint64_t random = in->seed * 2 + 1, hangs = 0;
    for (uint64_t t = 0; t < in->trials; t++) {
        uint64_t left[LS_KINDS], all = m->samples;
        bool differ = false;
        memcpy(left, m->of_kind, sizeof left);
        for (uint64_t g = 0; g < in->groups * in->microbatches && !differ; g++)
            for (uint64_t r = 0, class_ = 0; r < in->members && !differ; r++) {
                uint8_t mask = 0;
                for (uint64_t b = 0; b < m->batch_size && all; b++, all--) {
                    uint64_t pick = ls_random_below(&random, all);
                    uint8_t k = 0;
                    while (pick >= left[k])
                        pick -= left[k++];
                    left[k]--;
                    mask |= k;
                }
                differ = r && in->class_of[mask] != class_;
                class_ = in->class_of[mask];
            }
        hangs += differ;
    }
    out->trials = in->trials;
    out->seed = in->seed;
    out->sampled = (double)hangs / (double)in->trials;
    out->sampled_error = sqrt((out->sampled * (1 - out->sampled) + 1.0 / (double)in->trials) / (double)in->trials);
}

/* Batches of one kind each; what is left over of all kinds comes last. */
static void by_kind(const struct ls_risk_input *in, struct dealing *d)
{
    const struct ls_manifest *m = in->manifest;
    for (uint8_t k = 0; k < LS_KINDS; k++) {
        uint64_t whole = m->of_kind[k] / d->block * d->block;
        for (uint64_t i = 0; i < whole; i++)
            deal(d, k);
    }
    for (uint8_t k = 0; k < LS_KINDS && !m->drop_last; k++)
        for (uint64_t i = m->of_kind[k] / d->block * d->block; i < m->of_kind[k]; i++)
            deal(d, k);
    end_epoch(d);
}

enum ls_code ls_manifest_risk(const struct ls_risk_input *in, struct ls_arena *arena, struct ls_risk *out, struct ls_error *err)
{
    const struct ls_manifest *m = in->manifest;
    *out = (struct ls_risk){ .ordered = !m->shuffle || m->by_kind };
    struct dealing d = { .in = in, .replicas = in->groups * in->members, .out = out };
    d.block = d.replicas * m->batch_size;
    if (out->ordered) {
        struct ls_manifest again = *m;
        d.kind = LS_NEW(arena, uint8_t, d.replicas);
        d.head = LS_NEW(arena, uint8_t, d.replicas);
        if (m->by_kind) {
            by_kind(in, &d);
        } else {
            enum ls_code rc = ls_manifest_scan(&again, arena, deal, &d, err);
            if (rc != LS_OK)
                return rc;
            end_epoch(&d);
        }
        out->exact = true;
        out->epoch = out->first_step ? 1 : 0;
        out->first = (double)out->first_step;
        return LS_OK;
    }
    out->steps = m->samples / (d.block * in->microbatches);
    if (!out->steps)
        return ls_fail(err, LS_EINPUT, m->at, "the manifest holds %llu samples; a step takes %llu", (unsigned long long)m->samples,
                       (unsigned long long)(d.block * in->microbatches));
    struct counting c = { .in = in, .m = merge(in) };
    bool counted = count_steps(&c, arena, out);
    if (in->trials)
        sample_steps(in, out);
    if (!counted) {
        double p = out->sampled, stay = 1 - p;
        out->step = p;
        out->epoch = 1 - pow(stay, (double)out->steps);
        out->first = p > 0 ? 1 / p : 0;
        out->approximate_tail = true;
    }
    return LS_OK;
}
