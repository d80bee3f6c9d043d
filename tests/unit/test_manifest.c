/* Manifests: what a line may be, one order dealt out by hand, and probabilities against closed forms, all orders, and random ones. */
#include "batch/manifest.h"

#include "base/hash.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static struct ls_arena arena;

static void setup(void) { ls_arena_init(&arena, 0); }
static void teardown(void) { ls_arena_release(&arena); }
TestSuite(manifest, .init = setup, .fini = teardown);

static struct ls_manifest of_kinds(uint64_t text, uint64_t images, uint64_t audios, uint64_t batch_size)
{
    struct ls_manifest m = { .batch_size = batch_size, .shuffle = true, .samples = text + images + audios };
    m.of_kind[0] = text;
    m.of_kind[1] = images;
    m.of_kind[4] = audios;
    return m;
}

static struct ls_risk_input input(const struct ls_manifest *m, uint64_t groups, uint64_t members, uint64_t microbatches)
{
    struct ls_risk_input in = { .manifest = m, .groups = groups, .members = members, .microbatches = microbatches };
    for (uint8_t k = 0; k < LS_KINDS; k++)
        in.class_of[k] = k;
    return in;
}

static double choose(double n, double k)
{
    double r = 1;
    for (double i = 0; i < k; i++)
        r *= (n - i) / (i + 1);
    return r;
}

Test(manifest, one_sample_each_is_a_quotient_of_binomials)
{
    for (uint64_t ranks = 2; ranks <= 6; ranks++)
        for (uint64_t images = 0; images <= 20; images += 5) {
            struct ls_manifest m = of_kinds(30, images, 0, 1);
            struct ls_risk_input in = input(&m, 1, ranks, 1);
            struct ls_risk r;
            cr_assert_eq(ls_manifest_risk(&in, &arena, &r, NULL), LS_OK);
            double alike = (choose(30, (double)ranks) + choose((double)images, (double)ranks)) / choose(30.0 + (double)images, (double)ranks);
            cr_assert(r.exact);
            cr_expect_float_eq(r.step, 1 - alike, 1e-12, "%llu ranks, %llu images: %.15g, not %.15g", (unsigned long long)ranks,
                               (unsigned long long)images, r.step, 1 - alike);
        }
}

/* Every order of a few samples, as a permutation of kinds: which step hangs first, in each of them. */
struct all_orders { const struct ls_risk_input *in; uint8_t kind[12]; size_t n; uint64_t left[LS_KINDS]; double orders, first_hangs, hangs, first; };

static void judge(struct all_orders *a)
{
    const struct ls_risk_input *in = a->in;
    uint64_t block = in->groups * in->members * in->manifest->batch_size, steps = a->n / (block * in->microbatches), hang = 0;
    for (uint64_t s = 0; s < steps && !hang; s++)
        for (uint64_t b = s * in->microbatches; b < (s + 1) * in->microbatches; b++)
            for (uint64_t g = 0; g < in->groups; g++) {
                uint8_t first = 0;
                for (uint64_t r = 0; r < in->members; r++) {
                    uint8_t mask = 0; /* samples of one replica stand together: which are hers does not matter in a random order */
                    for (uint64_t i = 0; i < in->manifest->batch_size; i++)
                        mask |= a->kind[b * block + (g * in->members + r) * in->manifest->batch_size + i];
                    if (r == 0)
                        first = in->class_of[mask];
                    else if (in->class_of[mask] != first)
                        hang = s + 1;
                }
            }
    a->orders++;
    a->first_hangs += hang == 1;
    a->hangs += hang > 0;
    a->first += hang ? (double)hang : (double)steps;
}

static void every_order(struct all_orders *a, size_t at)
{
    if (at == a->n) {
        judge(a);
        return;
    }
    for (uint8_t k = 0; k < LS_KINDS; k++)
        if (a->left[k]) { /* orders of kinds, each as often as the others */
            a->left[k]--;
            a->kind[at] = k;
            every_order(a, at + 1);
            a->left[k]++;
        }
}

Test(manifest, agrees_with_every_order_of_few_samples)
{
    static const struct { uint64_t text, images, audios, batch, groups, members, microbatches; } c[] = {
        { 5, 4, 0, 1, 1, 2, 1 }, { 5, 4, 0, 1, 1, 3, 1 }, { 6, 3, 3, 1, 1, 2, 2 }, { 4, 4, 2, 1, 2, 2, 1 }, { 7, 3, 0, 2, 1, 2, 1 },
        { 6, 2, 2, 2, 1, 2, 1 }, { 5, 3, 2, 1, 1, 2, 1 }, { 4, 4, 0, 2, 1, 2, 2 }, { 8, 0, 0, 1, 1, 2, 1 }, { 3, 3, 3, 3, 1, 3, 1 } };
    for (size_t i = 0; i < sizeof c / sizeof *c; i++)
        for (int merge = 0; merge < 2; merge++) { /* with and without a class of their own for audios */
            struct ls_manifest m = of_kinds(c[i].text, c[i].images, c[i].audios, c[i].batch);
            struct ls_risk_input in = input(&m, c[i].groups, c[i].members, c[i].microbatches);
            for (uint8_t k = 0; merge && k < LS_KINDS; k++)
                in.class_of[k] = k & 1;
            struct ls_risk r;
            struct all_orders a = { .in = &in, .n = (size_t)m.samples };
            memcpy(a.left, m.of_kind, sizeof a.left);
            every_order(&a, 0);
            cr_assert_eq(ls_manifest_risk(&in, &arena, &r, NULL), LS_OK);
            cr_assert(r.exact && !r.approximate_tail, "case %zu", i);
            cr_expect_float_eq(r.step, a.first_hangs / a.orders, 1e-12, "case %zu.%d: step %.15g, not %.15g", i, merge, r.step, a.first_hangs / a.orders);
            cr_expect_float_eq(r.epoch, a.hangs / a.orders, 1e-12, "case %zu.%d: epoch %.15g, not %.15g", i, merge, r.epoch, a.hangs / a.orders);
            /* Over reshuffled epochs: E = steps until the hang or the epoch's end, divided by the chance of a hang. */
            double first = a.hangs > 0 ? a.first / a.hangs : 0;
            cr_expect_float_eq(r.first, first, 1e-9, "case %zu.%d: first %.15g, not %.15g", i, merge, r.first, first);
        }
}

Test(manifest, random_steps_agree)
{
    uint64_t random = 11;
    for (int i = 0; i < 12; i++) {
        struct ls_manifest m = of_kinds(200 + ls_random_below(&random, 800), ls_random_below(&random, 300), ls_random_below(&random, 60),
                                        1 + ls_random_below(&random, 4));
        struct ls_risk_input in = input(&m, 1 + ls_random_below(&random, 2), 2 + ls_random_below(&random, 3), 1 + ls_random_below(&random, 2));
        in.trials = 20000;
        in.seed = (uint64_t)i;
        struct ls_risk r;
        cr_assert_eq(ls_manifest_risk(&in, &arena, &r, NULL), LS_OK);
        cr_expect(r.exact && fabs(r.step - r.sampled) < 5 * r.sampled_error, "case %d: %.6f counted, %.6f +- %.6f drawn (seed %d)", i, r.step,
                  r.sampled, r.sampled_error, i);
    }
}

static const char *write_file(const char *text)
{
    static char path[] = "/tmp/lockstep-manifest-XXXXXX";
    snprintf(path, sizeof path, "/tmp/lockstep-manifest-XXXXXX");
    int fd = mkstemp(path);
    FILE *f = fd >= 0 ? fdopen(fd, "w") : NULL;
    cr_assert(f && fputs(text, f) >= 0 && fclose(f) == 0);
    return path;
}

static struct ls_manifest in_file(const char *text)
{
    return (struct ls_manifest){ .path = write_file(text), .key = { "text", "images", "videos", "audios" }, .batch_size = 1 };
}

Test(manifest, one_order_is_dealt_out_as_the_sampler_does)
{
    /* ranks 0 and 1 get samples 0 2 4 6 and 1 3 5 7: microbatches (0,1) (2,3) (4,5) (6,7) */
    struct ls_manifest m = in_file("{\"text\":1}\n{\"text\":1}\n{\"images\":1}\n{\"images\":2}\n\n{\"text\":1}\n{\"images\":[\"a\"]}\n{\"text\":1}\n{\"text\":1}\n");
    struct ls_risk_input in = input(&m, 1, 2, 1);
    struct ls_risk r;
    cr_assert_eq(ls_manifest_scan(&m, &arena, NULL, NULL, NULL), LS_OK);
    cr_assert(m.samples == 8 && m.of_kind[0] == 5 && m.of_kind[1] == 3 && m.text == 5);
    cr_assert_eq(ls_manifest_risk(&in, &arena, &r, NULL), LS_OK);
    cr_expect(r.ordered && r.exact && r.first_step == 3 && r.first_sample == 4 && r.steps == 4, "step %llu", (unsigned long long)r.first_step);
    in.microbatches = 3;
    cr_assert_eq(ls_manifest_risk(&in, &arena, &r, NULL), LS_OK);
    cr_expect(r.first_step == 1 && r.first_microbatch == 2 && r.steps == 2);
    m.batch_size = 2; /* (0,2 | 1,3) (4,6 | 5,7): the second differs, since 5 holds an image */
    in.microbatches = 1;
    cr_assert_eq(ls_manifest_risk(&in, &arena, &r, NULL), LS_OK);
    cr_expect(r.first_step == 2 && r.steps == 2);
    m.batch_size = 1;
    in.members = 3; /* the end is padded with the first sample, or dropped */
    cr_assert_eq(ls_manifest_risk(&in, &arena, &r, NULL), LS_OK);
    cr_expect(r.first_step == 1 && r.steps == 3);
    m.drop_last = true;
    cr_assert_eq(ls_manifest_risk(&in, &arena, &r, NULL), LS_OK);
    cr_expect(r.steps == 2);
    remove(m.path);
}

Test(manifest, bad_lines_have_a_place)
{
    static const struct { const char *text, *want; size_t line, column; } c[] = {
        { "{\"text\": 1}\n{\"text\": }\n", "not JSON", 2, 0 }, { "{\"text\": 1, \"images\": -1}\n", "'images' is neither", 1, 13 },
        { "{\"text\": 1, \"images\": 1.5}\n", "'images' is neither", 1, 13 }, { "\n[]\n", "a sample is an object", 2, 1 },
        { "{\"words\": 1}\n", "none of the keys", 1, 1 }, { "{\"text\": 1, \"text\": 2}\n", "duplicate", 1, 0 }, { "\n\n", "holds no sample", 0, 0 } };
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        struct ls_manifest m = in_file(c[i].text);
        struct ls_error err = { 0 };
        cr_assert_eq(ls_manifest_scan(&m, &arena, NULL, NULL, &err), LS_EINPUT, "%s", c[i].text);
        cr_expect(strstr(err.text, c[i].want), "%s", err.text);
        cr_expect(err.input.line == c[i].line && (!c[i].column || err.input.column == c[i].column), "%zu:%zu", err.input.line, err.input.column);
        remove(m.path);
    }
}
