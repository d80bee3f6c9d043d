/* Speed of training on the host. CSV on stdout; every ratio is of medians of runs that alternated, in both orders.
 *
 *   kernels   one process, no programs, no streams: the same operators called one after the other (engine/nn/solo)
 *   abreast   as many such processes at once as there are ranks, which share nothing but the machine: what its caches and memory
 *             leave of the kernels' rate before anything is communicated
 *   engine    ranks as threads, one for each stream, one BLAS thread each; fsdp2 with every layer a unit
 *   torch     PyTorch FSDP2 over gloo, one process and one thread per rank, the same sizes (torch_fsdp2.py); where $LS_TORCH names a
 *             Python that has torch and transformers
 *   overhead  ranks as coroutines on one thread: the part of the time in which no kernel ran and nothing was copied
 *
 * A step is forward, backward, reductions, clipping and AdamW on one sequence per rank. rate: tokens per second of all ranks, text
 * and image tokens together. cpu: CPU seconds per step of all ranks. The ratios compare tokens per second and rank, and per CPU second,
 * with those of the side in `against`. $LS_BENCH_STEPS: steps of a run (default 3). */
#include "engine/nn/solo.h"
#include "replay/train.h"

#include <assert.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { TEXT = 448, IMAGES = 1, IMAGE_TOKENS = 64, PAIRS = 3, RUNS_MAX = 2 * PAIRS, RANKS_MAX = 4, STEPS_MAX = 64 };
static size_t steps = 3;

struct sample { double seconds, cpu; };               /* of a step: medians over a run */
struct side { const char *name; size_t ranks; struct sample run[RUNS_MAX]; size_t runs; };

static void expect(bool good, const char *what, const struct ls_error *err)
{
    if (good)
        return;
    fprintf(stderr, "bench_train: %s: %s\n", what, err ? err->text : "");
    exit(1);
}

static double clock_s(clockid_t which)
{
    struct timespec t;
    clock_gettime(which, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *value, size_t n)
{
    assert(n);
    qsort(value, n, sizeof *value, by_value);
    return n % 2 ? value[n / 2] : (value[n / 2 - 1] + value[n / 2]) / 2;
}

static void read_scenario(size_t ranks, struct ls_arena *arena, struct ls_names *names, struct ls_scenario *out)
{
    struct ls_str text = { 0 };
    struct ls_error err = { 0 };
    ls_str_printf(&text, "lockstep: 1\nname: bench-train\nquestion: How fast is a step?\nmodel: {inventory: %s/scenarios/models/small_qwen3_vl.yaml}\n"
                         "distributed:\n  dp_size: %zu\n  mp_policy: {param: f32, reduce: f32, output: f32}\n  multimodal: {frozen_sharding: root}\n"
                         "batch: {microbatches: 1, samples: [{text: %d, images: %d}], execution: any, dummy_forward: {vision: [tower]}}\n"
                         "step: {clip_grad_norm: true}\n", LS_SOURCE_DIR, ranks, TEXT, IMAGES);
    enum ls_code rc = ls_scenario_read(text.text, text.length, "bench_train.yaml", arena, names, out, &err);
    expect(rc == LS_OK, "scenario", &err);
    ls_str_release(&text);
}

/* One process' steps: [steps] seconds, [steps] CPU seconds. */
static void time_kernels(double *wall, double *cpu)
{
    struct ls_arena arena;
    struct ls_error err = { 0 };
    struct ls_scenario s;
    struct ls_nn_vlm vlm;
    struct ls_nn_solo *solo;
    double loss;
    ls_arena_init(&arena, 0);
    struct ls_names *names = ls_names_open();
    read_scenario(1, &arena, names, &s);
    expect(ls_nn_vlm_build(&s.model, &arena, &vlm, &err) == LS_OK, "model", &err);
    struct ls_nn_solo_options o = { &vlm, NULL, LS_DTYPE_F32, 1, ls_nn_adamw_default };
    expect(ls_nn_solo_open(&solo, &o, &err) == LS_OK, "kernels", &err);
    for (size_t i = 0; i <= steps; i++) {
        struct ls_nn_sequence q = { TEXT, IMAGES, i, 0 };
        double from = clock_s(CLOCK_MONOTONIC), from_cpu = clock_s(CLOCK_PROCESS_CPUTIME_ID);
        expect(ls_nn_solo_microbatch(solo, &q, 1, 1 / (double)ls_nn_labels(&vlm, &q, 1), &loss, &err) == LS_OK, "kernels", &err);
        ls_nn_solo_update(solo);
        if (i) /* the first warms up */
            wall[i - 1] = clock_s(CLOCK_MONOTONIC) - from, cpu[i - 1] = clock_s(CLOCK_PROCESS_CPUTIME_ID) - from_cpu;
    }
    ls_nn_solo_close(solo);
    ls_names_close(names);
    ls_arena_release(&arena);
}

/* A process for each rank. */
static struct sample run_kernels(size_t ranks)
{
    double wall[RANKS_MAX * STEPS_MAX], cpu[RANKS_MAX * STEPS_MAX];
    int end[2];
    size_t each = steps * sizeof(double);
    assert(ranks <= RANKS_MAX);
    expect(pipe(end) == 0, "pipe", NULL);
    for (size_t r = 0; r < ranks; r++) {
        pid_t pid = fork();
        expect(pid >= 0, "fork", NULL);
        if (pid)
            continue;
        double mine[2 * STEPS_MAX]; /* one write, which a pipe keeps whole */
        mallopt(M_MMAP_THRESHOLD, 1 << 30); /* the C library keeps pages, as the engine's device does: none is cleared anew */
        mallopt(M_TRIM_THRESHOLD, -1);
        time_kernels(mine, mine + steps);
        _exit(write(end[1], mine, 2 * each) == (ssize_t)(2 * each) ? 0 : 1);
    }
    close(end[1]);
    for (size_t r = 0; r < ranks; r++) {
        double one[2 * STEPS_MAX];
        int status;
        expect(wait(&status) > 0 && status == 0 && read(end[0], one, 2 * each) == (ssize_t)(2 * each), "kernels", NULL);
        memcpy(wall + r * steps, one, each);
        memcpy(cpu + r * steps, one + steps, each);
    }
    close(end[0]);
    return (struct sample){ median(wall, ranks * steps), (double)ranks * median(cpu, ranks * steps) };
}

/* One run of warm-up and `count` steps; CPU seconds of it all. overhead: coroutines on one thread instead of threads; the part of
 * the steps' time in which no stream was busy. */
static double train(size_t ranks, size_t count, double *seconds, double *overhead)
{
    struct ls_arena arena;
    struct ls_error err = { 0 };
    struct ls_scenario s;
    struct ls_train_case c;
    struct ls_train t;
    struct ls_variant as_written = LS_AS_WRITTEN;
    struct ls_train_options o = { .steps = count, .warmup = 1, .seed = 1, .free = !overhead, .timeline = overhead != NULL };
    ls_arena_init(&arena, 0);
    struct ls_names *names = ls_names_open();
    read_scenario(ranks, &arena, names, &s);
    expect(ls_train_prepare(&s, &as_written, &o, &arena, &c, &err) == LS_OK, "prepare", &err);
    double from = clock_s(CLOCK_PROCESS_CPUTIME_ID);
    expect(ls_train_run(&c, &o, &arena, &t, &err) == LS_OK && t.verdict == LS_SAFE, "run", &err);
    double cpu = clock_s(CLOCK_PROCESS_CPUTIME_ID) - from;
    *seconds = ls_train_seconds(&t).median;
    if (overhead) {
        double busy = 0, all = 0;
        for (size_t i = t.warmup; i < t.warmup + count; i++) {
            for (size_t r = 0; r < ranks; r++)
                busy += t.rank_busy[i * ranks + r];
            all += t.step[i].seconds;
        }
        *overhead = 1 - busy / all;
    }
    ls_train_release(&c);
    ls_names_close(names);
    ls_arena_release(&arena);
    return cpu;
}

/* CPU time is known for whole runs only: what each step more takes. */
static struct sample run_engine(size_t ranks)
{
    struct sample out;
    double first = train(ranks, 1, &out.seconds, NULL);
    out.cpu = (train(ranks, steps, &out.seconds, NULL) - first) / (double)(steps - 1);
    return out;
}

static struct sample run_torch(size_t ranks)
{
    char command[1024], line[256];
    double wall[STEPS_MAX], cpu[STEPS_MAX];
    size_t n = 0;
    snprintf(command, sizeof command, "'%s' '%s/tests/bench/torch_fsdp2.py' --ranks %zu --steps %zu --warmup 1 --text %d --images %d", getenv("LS_TORCH"),
             LS_SOURCE_DIR, ranks, steps, TEXT, IMAGES);
    FILE *p = popen(command, "r");
    expect(p != NULL, "popen", NULL);
    while (fgets(line, sizeof line, p))
        if (n < STEPS_MAX && sscanf(line, "%*u,%lf,%lf", &wall[n], &cpu[n]) == 2)
            n++;
    expect(pclose(p) == 0 && n == steps, command, NULL);
    return (struct sample){ median(wall, n), median(cpu, n) };
}

typedef struct sample run_fn(size_t ranks);

/* Alternating runs: a b, b a, a b. */
static void pair(struct side *a, run_fn *run_a, struct side *b, run_fn *run_b)
{
    for (size_t i = 0; i < PAIRS; i++)
        for (size_t k = 0; k < 2; k++) {
            bool first = (i + k) % 2 == 0;
            struct side *s = first ? a : b;
            s->run[s->runs++] = (first ? run_a : run_b)(s->ranks);
        }
}

static struct sample typical(const struct side *s)
{
    double wall[RUNS_MAX], cpu[RUNS_MAX];
    for (size_t i = 0; i < s->runs; i++)
        wall[i] = s->run[i].seconds, cpu[i] = s->run[i].cpu;
    return (struct sample){ median(wall, s->runs), median(cpu, s->runs) };
}

static void print(const struct side *s, const struct side *of)
{
    struct sample t = typical(s), u = of ? typical(of) : t;
    double low = s->run[0].seconds, high = low, tokens = (double)(s->ranks * (TEXT + IMAGES * IMAGE_TOKENS));
    for (size_t i = 1; i < s->runs; i++)
        low = s->run[i].seconds < low ? s->run[i].seconds : low, high = s->run[i].seconds > high ? s->run[i].seconds : high;
    double mine = (double)s->ranks / t.cpu, theirs = of ? (double)of->ranks / u.cpu : mine;
    printf("%s,%zu,%.4f,%.4f,%.4f,%.1f,%.4f,%s,%.3f,%.3f\n", s->name, s->ranks, t.seconds, low, high, tokens / t.seconds, t.cpu, of ? of->name : "",
           u.seconds / t.seconds, mine / theirs); /* every rank takes as many tokens in a step */
    fflush(stdout);
}

int main(void)
{
    static const size_t RANKS[] = { 2, 4 };
    const char *text = getenv("LS_BENCH_STEPS");
    if (text)
        steps = strtoul(text, NULL, 10);
    expect(steps >= 2 && steps <= STEPS_MAX, "LS_BENCH_STEPS is 2 to 64", NULL);
    puts("side,ranks,seconds_per_step,low,high,tokens_per_second,cpu_seconds_per_step,against,rate_ratio,cpu_ratio");
    struct side kernels = { .name = "kernels", .ranks = 1 }, one = { .name = "engine", .ranks = 1 };
    pair(&kernels, run_kernels, &one, run_engine);
    print(&kernels, NULL);
    print(&one, &kernels);
    for (size_t i = 0; i < sizeof RANKS / sizeof *RANKS; i++) {
        struct side engine = { .name = "engine", .ranks = RANKS[i] }, again = { .name = "kernels", .ranks = 1 };
        pair(&engine, run_engine, &again, run_kernels);
        print(&engine, &again);
        struct side beside = { .name = "engine", .ranks = RANKS[i] }, abreast = { .name = "abreast", .ranks = RANKS[i] };
        pair(&beside, run_engine, &abreast, run_kernels);
        print(&abreast, &again);
        print(&beside, &abreast);
        if (!getenv("LS_TORCH"))
            continue;
        struct side mine = { .name = "engine", .ranks = RANKS[i] }, torch = { .name = "torch", .ranks = RANKS[i] };
        pair(&mine, run_engine, &torch, run_torch);
        print(&torch, NULL);
        print(&mine, &torch);
    }
    if (!getenv("LS_TORCH"))
        fputs("bench_train: $LS_TORCH is not set: no rows of PyTorch\n", stderr);
    for (size_t ranks = 1; ranks <= 4; ranks *= 2) {
        double overhead[PAIRS], seconds;
        for (size_t i = 0; i < PAIRS; i++)
            train(ranks, steps, &seconds, &overhead[i]);
        printf("overhead,%zu,,,,,,step,%.4f,\n", ranks, median(overhead, PAIRS));
        fflush(stdout);
    }
    return 0;
}
