/* The bars of `check`: proof of a 4B VLM for 16,384 ranks, and one random table executed on HSDP 8 x 2,048.
 * CSV on stdout: what, ranks, letters, ops, median seconds of RUNS, bound. LS_SEED sets the table. */
#include "check/check.h"
#include "base/hash.h"
#include "scenario/scenario.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

enum { RUNS = 3, MICROBATCHES = 4 };

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *v)
{
    qsort(v, RUNS, sizeof *v, by_value);
    return v[RUNS / 2];
}

static void must(enum ls_code rc, const struct ls_error *err)
{
    if (rc == LS_OK)
        return;
    fprintf(stderr, "bench_check: %s:%zu: %s\n", err->input.file ? err->input.file : "", err->input.line, err->text);
    exit(1);
}

static const char qwen[] =
    "lockstep: 1\nname: bench-prove\nmodel: {inventory: models/qwen3_vl_4b.yaml}\n"
    "freeze_config: {freeze_vision_tower: true}\n"
    "distributed: {strategy: fsdp2, rules: automodel, dp_size: 16384, dp_replicate_size: 8, multimodal: {frozen_sharding: root}}\n"
    "batch: {microbatches: any, samples: [{text: 512}, {text: 512, images: 1}, {text: 512, images: 2}], execution: any}\n";

/* Sixteen letters: images, videos and audio clips 0, 1 or 2 times. Everything conditional is frozen and in the root: safe. */
static const char omni[] =
    "lockstep: 1\nname: bench-execute\nmodel: {inventory: models/qwen2_5_omni_3b.yaml}\n"
    "freeze_config: {freeze_vision_tower: true, freeze_audio_tower: true}\n"
    "distributed: {strategy: fsdp2, rules: automodel, dp_size: 16384, dp_replicate_size: 8, multimodal: {frozen_sharding: root}}\n"
    "batch:\n  microbatches: 4\n  execution: any\n  samples:\n"
    "    - {text: 1}\n    - {text: 1, images: 1}\n    - {text: 1, images: 2}\n    - {text: 1, videos: 1}\n"
    "    - {text: 1, videos: 2}\n    - {text: 1, audios: 1}\n    - {text: 1, audios: 2}\n    - {text: 1, images: 1, videos: 1}\n"
    "    - {text: 1, images: 1, audios: 1}\n    - {text: 1, videos: 1, audios: 1}\n    - {text: 1, images: 2, videos: 1}\n"
    "    - {text: 1, images: 1, videos: 2}\n    - {text: 1, images: 2, audios: 1}\n    - {text: 1, images: 1, audios: 2}\n"
    "    - {text: 1, images: 1, videos: 1, audios: 1}\n    - {text: 1, images: 2, videos: 2, audios: 2}\n";

struct loaded { struct ls_arena arena; struct ls_names *names; struct ls_scenario s; struct ls_compiled c; };

static void open_loaded(struct loaded *l, const char *text)
{
    struct ls_error err = { 0 };
    struct ls_variant as_written = LS_AS_WRITTEN;
    ls_arena_init(&l->arena, 0);
    l->names = ls_names_open();
    must(ls_scenario_read(text, strlen(text), LS_SOURCE_DIR "/scenarios/bench.yaml", &l->arena, l->names, &l->s, &err), &err);
    must(ls_scenario_compile(&l->s, &as_written, false, &l->c, &err), &err);
}

static void close_loaded(struct loaded *l)
{
    ls_compiled_release(&l->c);
    ls_names_close(l->names);
    ls_arena_release(&l->arena);
}

static void bench_prove(void)
{
    double t[RUNS];
    size_t macro = 0;
    for (size_t i = 0; i < RUNS; i++) {
        double start = seconds();
        struct loaded l;
        struct ls_error err = { 0 };
        struct ls_check_result r;
        struct ls_check_options o = { .gradients = true, .mean = true };
        open_loaded(&l, qwen);
        must(ls_check_system(&l.c.system, &o, &l.arena, &r, &err), &err);
        assert(r.verdict == LS_SAFE && r.known == LS_KNOWN_PROVED);
        macro = r.macro_states;
        close_loaded(&l);
        t[i] = seconds() - start;
    }
    printf("prove qwen3_vl_4b root HSDP 8x2048 (load; compile; prove; %zu macro-states),16384,3,,%.3f,1.0\n", macro, median(t));
}

static void bench_execute(uint64_t seed)
{
    struct loaded l;
    struct ls_error err = { 0 };
    open_loaded(&l, omni);
    const struct ls_system *s = &l.c.system;
    size_t replicas = s->size[0] * s->size[1];
    assert(replicas == 16384 && l.c.letters.count == 16);
    uint32_t node[MICROBATCHES + 1], *letter = malloc((MICROBATCHES + 1) * replicas * sizeof *letter);
    assert(letter);
    size_t rounds = 0;
    for (uint32_t at = 0; rounds < MICROBATCHES + 1;) {
        node[rounds++] = at;
        if (!s->driver.node[at].nexts)
            break;
        at = s->driver.node[at].next[0];
    }
    for (size_t r = 0; r < rounds; r++)
        for (size_t x = 0; x < replicas; x++) {
            const uint64_t *allowed = s->driver.node[node[r]].allowed;
            do
                letter[r * replicas + x] = (uint32_t)ls_random_below(&seed, l.c.letters.count);
            while (allowed && !(allowed[0] >> letter[r * replicas + x] & 1));
        }
    double t[RUNS];
    size_t ops = 0;
    for (size_t i = 0; i < RUNS; i++) {
        struct ls_arena arena;
        ls_arena_init(&arena, 0);
        double start = seconds();
        struct ls_assignment a = { .size = { s->size[0], s->size[1] }, .rounds = rounds, .node = node, .letter = letter };
        struct ls_job job;
        struct ls_outcome out;
        struct ls_run_options o = { .level = LS_L2 };
        must(ls_system_job(s, &a, &arena, &job, &err), &err);
        must(ls_machine_run(&job, &o, &arena, &out, &err), &err);
        t[i] = seconds() - start;
        assert(out.verdict == LS_SAFE);
        ops = out.completed;
        ls_arena_release(&arena);
    }
    printf("execute qwen2_5_omni_3b root HSDP 8x2048 4 microbatches,16384,16,%zu,%.3f,10.0\n", ops, median(t));
    free(letter);
    close_loaded(&l);
}

int main(void)
{
    const char *seed = getenv("LS_SEED");
    uint64_t first = seed ? strtoull(seed, NULL, 10) : 1;
    printf("# seed %llu, median of %d\nwhat,ranks,letters,ops,seconds,bound_seconds\n", (unsigned long long)first, RUNS);
    bench_prove();
    bench_execute(first);
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    printf("# peak memory %ld MiB\n", u.ru_maxrss / 1024);
    return 0;
}
