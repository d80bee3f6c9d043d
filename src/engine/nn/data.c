#include "engine/nn/data.h"

#include "base/hash.h"

#include <math.h>
#include <string.h>

enum { STREAM_ID = 1, STREAM_PIXEL = 2, STREAM_FEATURE = 3 };

static uint64_t draw(uint64_t seed, uint64_t stream, uint64_t i)
{
    uint64_t state = seed * 0x9e3779b97f4a7c15u + stream * 0xbf58476d1ce4e5b9u + i * 0x94d049bb133111ebu;
    return ls_random(&state);
}

static double uniform(uint64_t seed, uint64_t stream, uint64_t i) /* [-1, 1), 24 bits: exact in a float */
{
    return (double)(draw(seed, stream, i) >> 40) / 8388608.0 - 1;
}

static size_t image_tokens(const struct ls_nn_vlm *v)
{
    return v->pictures ? v->picture.rows / v->picture.merge * (v->picture.columns / v->picture.merge) : 0;
}

static void *take(char *base, size_t *used, size_t count, size_t bytes)
{
    void *here = base ? base + *used : NULL;
    *used += (count * bytes + 63) / 64 * 64;
    return here;
}

/* The arrays one after the other, each aligned to 64; the bytes of them all. */
static size_t lay_out(struct ls_nn_batch *b, char *at)
{
    const struct ls_nn_vlm *v = b->vlm;
    size_t used = 0, half = v->text.head_dim / 2, grid_half = v->vision.head_dim / 2, local = v->text.window ? b->tokens * half : 0;
    b->sequence = take(at, &used, b->sequences, sizeof *b->sequence);
    b->first = take(at, &used, b->sequences + 1, sizeof *b->first);
    b->picture_first = take(at, &used, b->pictures + 1, sizeof *b->picture_first);
    b->at = take(at, &used, b->marked, sizeof *b->at);
    b->id = take(at, &used, b->tokens, sizeof *b->id);
    b->target = take(at, &used, b->tokens, sizeof *b->target);
    b->group = take(at, &used, b->tokens, sizeof *b->group);
    b->cosine = take(at, &used, b->tokens * half, sizeof(float));
    b->sine = take(at, &used, b->tokens * half, sizeof(float));
    b->window_cosine = take(at, &used, local, sizeof(float));
    b->window_sine = take(at, &used, local, sizeof(float));
    b->grid_cosine = take(at, &used, b->patches * grid_half, sizeof(float));
    b->grid_sine = take(at, &used, b->patches * grid_half, sizeof(float));
    b->corner = take(at, &used, b->patches * b->corners, sizeof *b->corner);
    b->corner_weight = take(at, &used, b->patches * b->corners, sizeof(float));
    b->pixel = take(at, &used, b->patches * v->picture.channels * v->picture.patch * v->picture.patch, sizeof(float));
    b->recording_first = take(at, &used, b->recordings ? b->recordings + 1 : 0, sizeof *b->recording_first);
    b->audio_at = take(at, &used, b->heard, sizeof *b->audio_at);
    b->feature = take(at, &used, b->recordings * b->frames * v->recording.bins, sizeof(float));
    b->sinusoid = take(at, &used, b->audio_rows * v->recording.width, sizeof(float));
    return used;
}

size_t ls_nn_batch_measure(struct ls_nn_batch *out, const struct ls_nn_vlm *vlm, const struct ls_nn_sequence *sequence, size_t count)
{
    *out = (struct ls_nn_batch){ .vlm = vlm, .sequences = count };
    size_t per = image_tokens(vlm);
    for (size_t i = 0; i < count; i++) {
        out->images += sequence[i].images;
        out->tokens += sequence[i].text;
        out->audios += sequence[i].audios;
        size_t length = sequence[i].text + sequence[i].images * per + sequence[i].audios * (size_t)vlm->recording.tokens;
        out->longest = length > out->longest ? length : out->longest;
    }
    out->marked = out->images * per;
    out->heard = out->audios * (size_t)vlm->recording.tokens;
    out->tokens += out->marked + out->heard;
    if (vlm->pictures) {
        out->pictures = out->images ? out->images : 1;
        out->rows = out->images ? vlm->picture.rows : vlm->picture.merge;
        out->columns = out->images ? vlm->picture.columns : vlm->picture.merge;
        out->patches = out->pictures * out->rows * out->columns;
        out->corners = vlm->picture.interpolate ? 4 : 1;
    }
    if (vlm->recordings) {
        const struct ls_nn_recording *r = &vlm->recording;
        /* The shortest recording that gives one token. */
        size_t pool = (size_t)(r->rows / r->tokens), stride = (size_t)(r->frames / r->rows);
        out->recordings = out->audios ? out->audios : 1;
        out->frames = out->audios ? (size_t)r->frames : pool * stride;
        out->audio_rows = out->audios ? (size_t)r->rows : pool;
    }
    struct ls_nn_batch sized = *out;
    return lay_out(&sized, NULL);
}

void ls_nn_batch_place(struct ls_nn_batch *b, void *at)
{
    lay_out(b, at);
}

static void angle(double a, float *cosine, float *sine)
{
    *cosine = (float)cos(a);
    *sine = (float)sin(a);
}

/* Positions of time, row, column: equal for text. Which of them turns pair j: every third pair is the row's, every third the
 * column's, as long as their sections last; the rest is the time's. */
static void rotary(const struct ls_nn_tower *t, const double position[3], size_t j, double theta, double factor, float *cosine, float *sine)
{
    size_t which = 0;
    if (t->position == LS_NN_POSITION_MROTARY && t->in_turn && j % 3 && j < 3 * t->section[j % 3])
        which = j % 3;
    if (t->position == LS_NN_POSITION_MROTARY && !t->in_turn)
        which = j < t->section[0] ? 0 : j < t->section[0] + t->section[1] ? 1 : 2;
    angle(position[which] / factor * pow(theta, -2.0 * (double)j / (double)t->head_dim), cosine, sine);
}

/* Row and column of the i-th patch of a picture. */
static void patch_at(const struct ls_nn_batch *b, size_t i, size_t *row, size_t *column)
{
    size_t k = b->vlm->picture.blocks ? b->vlm->picture.merge : 1, in = i % (k * k), block = i / (k * k);
    *row = block / (b->columns / k) * k + in / k;
    *column = block % (b->columns / k) * k + in % k;
}

static void fill_pictures(const struct ls_nn_batch *b)
{
    const struct ls_nn_vlm *v = b->vlm;
    const struct ls_nn_tower *t = &v->vision;
    size_t per = b->rows * b->columns, half = t->head_dim / 2;
    for (size_t i = 0; i <= b->pictures; i++)
        b->picture_first[i] = i * per;
    for (size_t i = 0; i < b->patches; i++) {
        size_t row, column;
        patch_at(b, i % per, &row, &column);
        for (size_t j = 0; j < half; j++) {
            size_t quarter = half / 2, pair = j % quarter;
            double power = 4.0 * (double)pair;
            if (t->position == LS_NN_POSITION_GRID_INTERLEAVED && j >= quarter)
                power += 2;
            double position = t->position == LS_NN_POSITION_NONE ? 0 : (double)(j < quarter ? row : column);
            angle(position * pow(t->theta, -power / (double)t->head_dim), &b->grid_cosine[i * half + j], &b->grid_sine[i * half + j]);
        }
    }
    size_t side = 0; /* of the square table of positions */
    for (size_t s = 0; s < v->statements; s++)
        if (v->statement[s].flow && v->statement[s].op == LS_NN_OP_POSITIONS)
            side = (size_t)(sqrt((double)v->model->param[v->statement[s].param[0]].dim[0]) + 0.5);
    for (size_t i = 0; i < b->patches; i++) {
        size_t row, column;
        patch_at(b, i % per, &row, &column);
        if (!v->picture.interpolate) {
            b->corner[i] = (int32_t)(row * v->picture.columns + column);
            b->corner_weight[i] = 1;
            continue;
        }
        double y = b->rows > 1 ? (double)(side - 1) * (double)row / (double)(b->rows - 1) : 0;
        double x = b->columns > 1 ? (double)(side - 1) * (double)column / (double)(b->columns - 1) : 0;
        size_t y0 = (size_t)y, x0 = (size_t)x, y1 = y0 + 1 < side ? y0 + 1 : side - 1, x1 = x0 + 1 < side ? x0 + 1 : side - 1;
        double dy = y - (double)y0, dx = x - (double)x0;
        size_t corner[4] = { y0 * side + x0, y0 * side + x1, y1 * side + x0, y1 * side + x1 };
        double weight[4] = { (1 - dy) * (1 - dx), (1 - dy) * dx, dy * (1 - dx), dy * dx };
        for (size_t k = 0; k < 4; k++) {
            b->corner[4 * i + k] = (int32_t)corner[k];
            b->corner_weight[4 * i + k] = (float)weight[k];
        }
    }
}

static void fill_recordings(const struct ls_nn_batch *b)
{
    size_t width = (size_t)b->vlm->recording.width, half = width / 2;
    for (size_t i = 0; i <= b->recordings; i++)
        b->recording_first[i] = i * b->audio_rows;
    if (!b->audios)
        memset(b->feature, 0, b->recordings * b->frames * (size_t)b->vlm->recording.bins * sizeof(float));
    for (size_t i = 0; i < b->audio_rows; i++)
        for (size_t j = 0; j < half; j++)
            angle((double)i * exp(-log(10000) / (half > 1 ? (double)half - 1 : 1) * (double)j), &b->sinusoid[i * width + half + j],
                  &b->sinusoid[i * width + j]);
}

static bool counts(const struct ls_nn_sequence *s, size_t text_index) /* the text token carries a label */
{
    return text_index >= s->text / 4;
}

/* An id of text: none that stands for media. */
static int32_t word(const struct ls_nn_vlm *v, uint64_t seed, size_t text)
{
    uint64_t skip[2], skips = 0;
    if (v->pictures)
        skip[skips++] = v->picture.token;
    if (v->recordings)
        skip[skips++] = v->recording.token;
    if (skips == 2 && skip[0] > skip[1]) {
        uint64_t swap = skip[0];
        skip[0] = skip[1], skip[1] = swap;
    }
    uint64_t r = draw(seed, STREAM_ID, text) % (v->vocab - skips);
    for (size_t i = 0; i < skips; i++)
        r += r >= skip[i];
    return (int32_t)r;
}

struct filled { size_t row, marked, heard, picture, recording; };

static void fill_sequence(const struct ls_nn_batch *b, size_t index, struct filled *f)
{
    const struct ls_nn_vlm *v = b->vlm;
    const struct ls_nn_tower *t = &v->text;
    const struct ls_nn_sequence *s = &b->sequence[index];
    size_t half = t->head_dim / 2, per = image_tokens(v), width = per ? v->picture.columns / v->picture.merge : 1;
    size_t media = s->images * per + s->audios * (size_t)v->recording.tokens, lead = s->text > 0, heard_from = lead + s->images * per;
    size_t begin = f->row, length = s->text + media, features = b->frames * (size_t)v->recording.bins;
    size_t pixels = b->rows * b->columns * v->picture.channels * v->picture.patch * v->picture.patch;
    double next = 0; /* first position not yet used */
    for (size_t i = 0; i < length; i++, f->row++) {
        size_t row = f->row;
        double position[3] = { next, next, next };
        bool image = i >= lead && i < heard_from, audio = i >= heard_from && i < lead + media;
        if (image) {
            size_t in = (i - lead) % per;
            b->id[row] = (int32_t)v->picture.token;
            b->group[row] = (int32_t)(f->picture + (i - lead) / per + 1);
            b->at[f->marked++] = row;
            if (t->position == LS_NN_POSITION_MROTARY) {
                position[1] = next + (double)(in / width);
                position[2] = next + (double)(in % width);
                size_t rows = per / width;
                if (in + 1 == per)
                    next += (double)(rows > width ? rows : width);
            } else {
                next++;
            }
        } else if (audio) {
            b->id[row] = (int32_t)v->recording.token;
            b->group[row] = 0;
            b->audio_at[f->heard++] = row;
            next++;
        } else {
            b->id[row] = word(v, s->seed, i < lead ? i : i - media);
            b->group[row] = 0;
            next++;
        }
        b->target[row] = LS_NN_IGNORE;
        if (i > 0 && !image && !audio && counts(s, i - media * (i >= lead)))
            b->target[row - 1] = b->id[row];
        for (size_t j = 0; j < half; j++) {
            rotary(t, position, j, t->theta, t->factor, &b->cosine[row * half + j], &b->sine[row * half + j]);
            if (t->window)
                rotary(t, position, j, t->window_theta, 1, &b->window_cosine[row * half + j], &b->window_sine[row * half + j]);
        }
    }
    for (size_t i = 0; i < s->images * pixels; i++)
        b->pixel[f->picture * pixels + i] = (float)uniform(s->seed, STREAM_PIXEL, i);
    for (size_t i = 0; i < s->audios * features; i++)
        b->feature[f->recording * features + i] = (float)uniform(s->seed, STREAM_FEATURE, i);
    f->picture += s->images;
    f->recording += s->audios;
    b->first[index] = begin;
    b->first[index + 1] = f->row;
}

void ls_nn_batch_fill(const struct ls_nn_batch *b, const struct ls_nn_sequence *sequence)
{
    memcpy(b->sequence, sequence, b->sequences * sizeof *sequence);
    struct filled f = { 0 };
    b->first[0] = 0;
    if (b->recordings)
        fill_recordings(b);
    if (b->patches)
        fill_pictures(b);
    if (b->patches && !b->images)
        memset(b->pixel, 0, b->patches * b->vlm->picture.channels * b->vlm->picture.patch * b->vlm->picture.patch * sizeof(float));
    for (size_t i = 0; i < b->sequences; i++)
        fill_sequence(b, i, &f);
}

size_t ls_nn_labels(const struct ls_nn_vlm *vlm, const struct ls_nn_sequence *sequence, size_t count)
{
    size_t labels = 0;
    (void)vlm;
    for (size_t i = 0; i < count; i++)
        for (size_t t = 0; t < sequence[i].text; t++)
            labels += t > 0 && counts(&sequence[i], t);
    return labels;
}

static bool near_zero(const struct ls_nn_vlm *v, uint32_t param) /* a norm's weight that is relative to 1 */
{
    for (size_t i = 0; i < v->statements; i++)
        if (v->statement[i].flow && v->statement[i].op == LS_NN_OP_RMS_NORM && v->statement[i].param[0] == param)
            return v->statement[i].offset > 0;
    return false;
}

void ls_nn_init_param(const struct ls_nn_vlm *vlm, uint32_t param, uint64_t seed, uint64_t from, uint64_t count, float *to)
{
    const struct ls_param *p = &vlm->model->param[param];
    const char *name = ls_name_text(vlm->model->names, p->name);
    uint64_t stream = 0xcbf29ce484222325u; /* FNV-1a */
    for (const char *c = name; *c; c++)
        stream = (stream ^ (unsigned char)*c) * 0x100000001b3u;
    double base = 0, scale = 0.1;
    if (p->dims >= 2)
        scale = sqrt(3.0 * (double)p->dim[0] / (double)p->elements);
    else if (strcmp(ls_name_text(vlm->model->names, p->leaf), "weight") == 0 && !near_zero(vlm, param))
        base = 1;
    if (p->adapter && strcmp(ls_name_text(vlm->model->names, vlm->model->module[p->module].leaf), "lora_B") == 0)
        scale = 0;
    for (uint64_t i = 0; i < count; i++)
        to[i] = (float)(base + scale * uniform(seed, stream, from + i));
}
