/* Memory of the host device: who gets a block that was given back, and when. */
#include "engine/device/device.h"

#include "base/hash.h"

#include <criterion/criterion.h>
#include <stdlib.h>

enum { STREAMS = 3, BYTES = 64 * 1024, WORDS = BYTES / 8 };
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
static const bool reuses = false; /* the sanitizers watch memory that was given back */
#else
static const bool reuses = true;
#endif

static struct ls_sched *sched;
static struct ls_device *device;
static size_t wrong, done;

static void open_device(uint64_t seed, bool free_running)
{
    sched = ls_sched_open(&(struct ls_sched_options){ .seed = seed, .free = free_running });
    cr_assert_eq(ls_device_host.open(&device, &(struct ls_device_options){ .sched = sched, .streams = STREAMS }, NULL), LS_OK);
    wrong = done = 0;
}

static void close_device(void)
{
    ls_device_host.close(device);
    ls_sched_close(sched);
}

static void run(void)
{
    enum ls_sched_end end;
    cr_assert_eq(ls_sched_run(sched, &end, NULL), LS_OK);
    cr_assert_eq(end, LS_SCHED_QUIET);
}

static struct ls_stream *stream(size_t i) { return ls_device_host.stream(device, (unsigned)i); }

static struct ls_storage *take(size_t pool)
{
    struct ls_storage *s;
    cr_assert_eq(ls_device_host.alloc(device, stream(pool), BYTES, LS_CATEGORY_TEMPORARY, &s, NULL), LS_OK);
    return s;
}

/* Looks for the word that the last writer left everywhere, then leaves another: 0 for none. */
struct touch { uint64_t *at, expected, written; };
static void touch_run(void *args, struct ls_stream *s)
{
    const struct touch *t = args;
    (void)s;
    bool same = true;
    for (size_t i = 0; t->expected && i < WORDS; i += 511)
        same = same && t->at[i] == t->expected;
    for (size_t i = 0; t->written && i < WORDS; i += 511)
        t->at[i] = t->written;
    __atomic_add_fetch(&wrong, !same, __ATOMIC_RELAXED);
    __atomic_add_fetch(&done, 1, __ATOMIC_RELAXED);
}

static void touch(size_t on, struct ls_storage *s, uint64_t expected, uint64_t written)
{
    struct touch t = { s->at, expected, written };
    ls_device_host.launch(device, stream(on), touch_run, &t, sizeof t, &s, 1, LS_NO_TAG);
}

static void wait_for(size_t waits, size_t on)
{
    ls_device_host.wait(device, stream(waits), ls_device_host.record(device, stream(on), LS_NO_TAG), LS_NO_TAG);
}

Test(device, a_block_is_there_again_for_its_pool_before_the_stream_has_come_so_far)
{
    open_device(1, false);
    struct ls_storage *a = take(0);
    void *at = a->at;
    touch(0, a, 0, 7);
    touch(0, a, 7, 0);
    ls_device_host.free(device, stream(0), a);
    struct ls_storage *b = take(0), *other = take(1);
    cr_expect_eq(b->at == at, reuses);
    cr_expect_neq(other->at, at, "pools do not share");
    touch(0, b, 0, 8);
    touch(0, b, 8, 0);
    run();
    cr_expect_eq(wrong, 0);
    cr_expect_eq(done, 4);
    close_device();
}

Test(device, a_block_that_another_stream_uses_waits_for_the_pool_to_wait)
{
    open_device(1, false);
    struct ls_storage *a = take(0);
    void *at = a->at;
    touch(0, a, 0, 7);
    wait_for(1, 0);
    touch(1, a, 7, 0);
    ls_device_host.free(device, stream(0), a);
    struct ls_storage *early = take(0);
    cr_expect_neq(early->at, at, "stream 1 may still read it");
    wait_for(2, 1);
    cr_expect_neq(take(0)->at, at, "another stream has waited, not the pool's");
    wait_for(0, 2); /* and through it for stream 1 */
    struct ls_storage *late = take(0);
    cr_expect_eq(late->at == at, reuses);
    touch(0, late, 0, 9);
    run();
    cr_expect_eq(wrong, 0);
    close_device();
}

/* Programs without races: a stream waits for the last one that used a block, not for more. Blocks are given back while work is pending
 * on any stream. No schedule may show a word that another owner left. */
static size_t random_program(uint64_t seed, bool free_running)
{
    enum { OPS = 400, LIVE = 6 };
    struct { struct ls_storage *s; size_t pool, last; uint64_t word; } live[LIVE] = { 0 };
    void *seen[OPS];
    size_t again = 0, seens = 0, launched = 0;
    uint64_t random = seed, word = 0;
    open_device(free_running ? 0 : seed, free_running);
    for (size_t i = 0; i < OPS; i++) {
        size_t k = (size_t)ls_random_below(&random, LIVE), on = (size_t)ls_random_below(&random, STREAMS);
        if (!live[k].s) {
            live[k].s = take(on), live[k].pool = live[k].last = on, live[k].word = 0;
            bool known = false;
            for (size_t j = 0; j < seens; j++)
                known = known || seen[j] == live[k].s->at;
            again += known;
            seen[seens++] = live[k].s->at;
        } else if (ls_random_below(&random, 4) == 0) {
            ls_device_host.free(device, stream(live[k].pool), live[k].s);
            live[k].s = NULL;
        } else {
            if (on != live[k].last)
                wait_for(on, live[k].last);
            touch(on, live[k].s, live[k].word, ++word);
            live[k].last = on, live[k].word = word;
            launched++;
        }
    }
    run();
    cr_expect_eq(wrong, 0, "seed %llu: %zu of %zu kernels saw another owner's data", (unsigned long long)seed, wrong, done);
    cr_expect_eq(done, launched);
    close_device();
    return again;
}

Test(device, random_programs_never_see_anothers_data)
{
    size_t again = 0;
    for (uint64_t seed = 1; seed <= 200; seed++)
        again += random_program(seed, false);
    for (uint64_t seed = 1; seed <= 20; seed++)
        random_program(seed, true);
    cr_expect(!reuses || again > 4000, "only %zu blocks were used again", again);
}
