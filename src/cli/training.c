#include "cli/training.h"

#include <inttypes.h>
#include <math.h>

enum { ROWS_MAX = 24 };

/* Of a long run, evenly spread steps and the last one. */
static void print_steps(const struct ls_train *t, struct ls_str *out)
{
    size_t every = (t->ended + ROWS_MAX - 1) / ROWS_MAX;
    bool heard = false;
    for (size_t i = 0; i < t->ended; i++)
        heard |= t->step[i].audio_tokens > 0;
    ls_str_printf(out, "  %7s %13s %13s %11s %9s%s %10s\n", "step", "loss", "gradient norm", "text tokens", "of images", heard ? "  of audio" : "", "ms");
    for (size_t i = 0; i < t->ended; i++) {
        const struct ls_train_step *s = &t->step[i];
        char norm[32] = "-", audio[32] = "";
        if (i % every && i + 1 < t->ended && i + 1 != t->warmup)
            continue;
        if (!isnan(s->norm))
            snprintf(norm, sizeof norm, "%.9g", s->norm);
        if (heard)
            snprintf(audio, sizeof audio, " %9" PRIu64, s->audio_tokens);
        ls_str_printf(out, "  %c%6zu %13.9g %13s %11" PRIu64 " %9" PRIu64 "%s %10.3f\n", i < t->warmup ? 'w' : ' ', i + 1, s->loss, norm, s->text_tokens,
                      s->image_tokens, audio, 1e3 * s->seconds);
        if (!isnan(s->eval_loss))
            ls_str_printf(out, "          evaluated %.9g\n", s->eval_loss);
    }
    if (every > 1)
        ls_str_printf(out, "          every %zu steps; --json has all\n", every);
}

void ls_training_text(const struct ls_train *t, const struct ls_train_options *o, struct ls_str *out)
{
    size_t all = t->warmup + t->steps;
    ls_str_printf(out, "  training    %zu of %zu steps ended on every rank", t->ended, all);
    if (t->warmup)
        ls_str_printf(out, ", %zu of them warm-up (w)", t->warmup < t->ended ? t->warmup : t->ended);
    ls_str_add(out, "\n");
    if (t->ended)
        print_steps(t, out);
    struct ls_spread s = ls_train_seconds(t);
    struct ls_train_rate rate = ls_train_tokens_per_second(t);
    if (!s.count)
        return;
    ls_str_printf(out, "  step time   median %.3f ms of %zu, quartiles %.3f and %.3f, extremes %.3f and %.3f\n", 1e3 * s.median, s.count, 1e3 * s.low,
                  1e3 * s.high, 1e3 * s.min, 1e3 * s.max);
    ls_str_printf(out, "  tokens      %.0f of text%s %.0f of images", rate.text, rate.audio > 0 ? "," : " and", rate.image);
    if (rate.audio > 0)
        ls_str_printf(out, " and %.0f of audio", rate.audio);
    ls_str_printf(out, " a second; %s, %u BLAS thread%s each\n", o->free ? "every rank and stream has a thread" : o->world ? "ranks take turns on one thread of their process" : "ranks take turns on one thread",
                  o->blas_threads ? o->blas_threads : 1,
                  o->blas_threads > 1 ? "s" : "");
}

static void json_reals(struct ls_json *j, const char *key, const double *at, size_t n)
{
    ls_json_key(j, key);
    ls_json_array(j);
    for (size_t i = 0; i < n; i++)
        ls_json_real(j, at[i]);
    ls_json_end_array(j);
}

void ls_training_json(const struct ls_train *t, const struct ls_train_options *o, struct ls_json *j)
{
    struct ls_spread s = ls_train_seconds(t);
    struct ls_train_rate rate = ls_train_tokens_per_second(t);
    ls_json_object(j);
    ls_json_add_uint(j, "warmup", t->warmup);
    ls_json_add_uint(j, "steps", t->steps);
    ls_json_add_uint(j, "ended", t->ended);
    ls_json_add_uint(j, "schedule", o->schedule);
    ls_json_add_uint(j, "blas_threads", o->blas_threads ? o->blas_threads : 1);
    ls_json_key(j, "step");
    ls_json_array(j);
    for (size_t i = 0; i < t->ended; i++) {
        const struct ls_train_step *x = &t->step[i];
        ls_json_object(j);
        ls_json_add_real(j, "loss", x->loss);
        ls_json_add_real(j, "eval_loss", x->eval_loss);
        ls_json_add_real(j, "norm", x->norm);
        ls_json_add_uint(j, "text_tokens", x->text_tokens);
        ls_json_add_uint(j, "image_tokens", x->image_tokens);
        ls_json_add_uint(j, "audio_tokens", x->audio_tokens);
        ls_json_add_real(j, "seconds", x->seconds);
        json_reals(j, "rank_seconds", &t->rank_seconds[i * t->ranks], t->ranks);
        json_reals(j, "rank_busy_seconds", &t->rank_busy[i * t->ranks], t->ranks);
        ls_json_end_object(j);
    }
    ls_json_end_array(j);
    ls_json_key(j, "step_seconds");
    ls_json_object(j);
    ls_json_add_uint(j, "count", s.count);
    ls_json_add_real(j, "median", s.median);
    ls_json_add_real(j, "quartile_low", s.low);
    ls_json_add_real(j, "quartile_high", s.high);
    ls_json_add_real(j, "mean", s.mean);
    ls_json_add_real(j, "min", s.min);
    ls_json_add_real(j, "max", s.max);
    ls_json_end_object(j);
    ls_json_key(j, "tokens_per_second");
    ls_json_object(j);
    ls_json_add_real(j, "text", rate.text);
    ls_json_add_real(j, "image", rate.image);
    ls_json_add_real(j, "audio", rate.audio);
    ls_json_end_object(j);
    ls_json_end_object(j);
}
