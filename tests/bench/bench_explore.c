/* SPIN against our explorer on the same transition relation, and reductions on cases that SPIN cannot finish.
 *
 * Every case checks its result: equal state counts and verdicts for the relation, the known verdict for the reductions. SPIN
 * runs as pan, compiled with -O2 -DSAFETY -DNOREDUCE, with and without -DCOLLAPSE; the faster one of the first round is run
 * again. Its time is that of pan alone. Ours and SPIN's runs alternate; both use one core. Times are medians.
 *   LS_BENCH_RUNS  runs of each (default 3); LS_BENCH_LARGE=0 leaves out the cases of more than a million states */
#include "campaign.h"
#include "families.h"
#include "spin.h"

#include "check/explore.h"
#include "check/promela.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RUNS_MAX = 15 };

struct bench { const char *name; struct fsdp_like shape; bool safe, large; };

static const struct bench relation[] = {
    { "r3-per_layer", { 3, 1, 2, 1, true, false }, false, false },
    { "r3-root-2streams", { 3, 1, 1, 1, false, true }, true, false },
    { "r4-root", { 4, 1, 2, 1, false, false }, true, true },
    { "r5-per_layer", { 5, 1, 4, 1, true, false }, false, true },
};
static const struct bench reduced[] = {
    { "r6-per_layer", { 6, 1, 2, 1, true, true }, false, false },
    { "r6-root", { 6, 1, 2, 1, false, true }, true, false },
    { "r8-per_layer-2mb", { 8, 1, 2, 2, true, true }, false, false },
    { "r8-root-2mb", { 8, 1, 2, 2, false, true }, true, false },
    { "r16-root-4mb", { 16, 4, 8, 4, false, true }, true, false },
};

static int by_value(const void *a, const void *b)
{
    double x, y;
    memcpy(&x, a, sizeof x);
    memcpy(&y, b, sizeof y);
    return (x > y) - (x < y);
}

static double median(double *v, size_t n)
{
    qsort(v, n, sizeof *v, by_value);
    return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

static size_t env_number(const char *name, size_t fallback)
{
    const char *text = getenv(name);
    return text && *text ? (size_t)strtoull(text, NULL, 10) : fallback;
}

static void read_line(const char *command, char *out, size_t room)
{
    FILE *p = popen(command, "r");
    out[0] = '\0';
    if (p) {
        if (!fgets(out, (int)room, p))
            out[0] = '\0';
        (void)pclose(p);
    }
    out[strcspn(out, "\n")] = '\0';
    if (!out[0])
        snprintf(out, room, "unknown");
}

static char commit[80], cpu[128];

static bool run_ours(struct families *x, bool reduce, struct ls_explored *e)
{
    struct ls_explore_options o = { .run.level = LS_L2, .reduce = reduce, .all = !reduce, .no_path = true };
    struct ls_error err = { 0 };
    bool fine = ls_explore(&x->family, &o, &x->arena, e, &err) == LS_OK;
    if (!fine)
        fprintf(stderr, "%s\n", err.text);
    return fine;
}

static bool bench_relation(const struct bench *b, size_t runs)
{
    static const char *const cflags[] = { "-O2 -DSAFETY -DNOREDUCE -DMEMLIM=16000", "-O2 -DSAFETY -DNOREDUCE -DCOLLAPSE -DMEMLIM=16000" };
    struct families x;
    struct ls_str model = { 0 };
    struct ls_error err = { 0 };
    struct ls_explored ours = { 0 };
    struct spin_result spin = { 0 };
    double us[RUNS_MAX], them[RUNS_MAX];
    char why[256] = "";
    struct ls_run_options run = { .level = LS_L2 };
    families_fsdp(&x, &b->shape);
    bool fine = ls_promela_write(&x.family, &run, b->name, &model, &err) == LS_OK;
    const char *pan = b->large ? "-m1000000 -c0 -w26" : "-m1000000 -c0 -w20";
    size_t best = 0;
    double megabytes = 0;
    for (size_t i = 0; i < runs && fine; i++) {
        fine = run_ours(&x, false, &ours);
        us[i] = ours.seconds;
        for (size_t k = i == 0 ? 0 : best; k < (i == 0 ? 2 : best + 1) && fine; k++) {
            fine = spin_run(ls_str_text(&model), cflags[k], pan, &spin, why, sizeof why);
            if (i > 0 || k == 0 || spin.seconds < them[0]) {
                them[i] = spin.seconds;
                megabytes = spin.megabytes;
                best = k;
            }
            if (fine && (spin.states != ours.states || (spin.errors == 0) != b->safe || (ours.verdict == LS_SAFE) != b->safe)) {
                snprintf(why, sizeof why, "states %zu, SPIN %zu; %s, SPIN %zu errors", ours.states, spin.states,
                         ls_verdict_name(ours.verdict), spin.errors);
                fine = false;
            }
        }
    }
    if (fine) {
        double t = median(us, runs), s = median(them, runs);
        printf("%s,%s,%s,relation,%s,%s,%zu,%zu,%zu,%zu,%.4f,%.3f,%.1f,%.1f,%.1f,%s\n", commit, cpu, spin_version(), b->name,
               b->safe ? "safe" : "unsafe", ours.states, spin.states, ours.transitions, runs, t, s, s / t, (double)ours.bytes / 1e6,
               megabytes, best ? "collapse" : "plain");
    } else {
        fprintf(stderr, "%s: %s%s\n", b->name, why, err.text);
    }
    fflush(stdout);
    ls_str_release(&model);
    families_release(&x);
    return fine;
}

static bool bench_reduced(const struct bench *b, size_t runs)
{
    struct families x;
    struct ls_explored e = { 0 };
    double us[RUNS_MAX];
    bool fine = true;
    families_fsdp(&x, &b->shape);
    for (size_t i = 0; i < runs && fine; i++) {
        fine = run_ours(&x, true, &e);
        us[i] = e.seconds;
        if (fine && (e.verdict == LS_SAFE) != b->safe) {
            fprintf(stderr, "%s: %s\n", b->name, ls_verdict_name(e.verdict));
            fine = false;
        }
    }
    if (fine)
        printf("%s,%s,,reduced,%s,%s,%zu,,%zu,%zu,%.6f,,,%.3f,,\n", commit, cpu, b->name, b->safe ? "safe" : "unsafe", e.states, e.transitions,
               runs, median(us, runs), (double)e.bytes / 1e6);
    fflush(stdout);
    families_release(&x);
    return fine;
}

int main(void)
{
    size_t runs = env_number("LS_BENCH_RUNS", 3);
    bool fine = true, large = env_number("LS_BENCH_LARGE", 1) != 0;
    runs = runs < 1 ? 1 : runs > RUNS_MAX ? RUNS_MAX : runs;
    read_line("git -C " LS_SOURCE_DIR " rev-parse --short=12 HEAD 2>/dev/null", commit, sizeof commit);
    read_line("sed -n 's/^model name[^:]*: //p' /proc/cpuinfo 2>/dev/null", cpu, sizeof cpu);
    printf("commit,cpu,spin,what,case,verdict,states,spin_states,transitions,runs,seconds,spin_seconds,ratio,mb,spin_mb,spin_build\n");
    for (size_t i = 0; i < sizeof reduced / sizeof *reduced; i++)
        fine = bench_reduced(&reduced[i], runs) && fine;
    if (!spin_installed()) {
        fprintf(stderr, "the relation is not compared: spin is not installed (Debian package spin)\n");
        return fine ? 0 : 1;
    }
    for (size_t i = 0; i < sizeof relation / sizeof *relation; i++)
        if (large || !relation[i].large)
            fine = bench_relation(&relation[i], runs) && fine;
    return fine ? 0 : 1;
}
