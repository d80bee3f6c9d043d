/* sim/simgrid.c -- the network on SimGrid 3.32, from C: the oracle of maxmin.c.
 *
 * SimGrid is the clock and the sharing; nothing else of the simulation is inside it. Each kind of flow gets two hosts and a route
 * through all the links that it uses, so a collective that is coupled around a ring is one flow. Links have no latency, since CM02
 * would share them in inverse proportion to it. A weight is the link that many times on the route; a cap is a link of the kind's own.
 *
 * One-sided flows block in C, so a pool of actors carries them, one live flow each. The caller's loop is an actor too. An engine cannot
 * be opened twice in one process: nor can this. */
#include "sim/network.h"

#include "base/str.h"
#include "base/vec.h"
#include "sim/wide.h"

#include <simgrid/actor.h>
#include <simgrid/engine.h>
#include <simgrid/host.h>
#include <simgrid/semaphore.h>

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Raw contexts switch stacks behind the back of the sanitizers. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define FACTORY "thread"
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define FACTORY "thread"
#endif
#endif
#ifndef FACTORY
#define FACTORY "raw"
#endif

struct worker { sg_sem_t go; uint32_t kind; uint64_t bytes, nth, tag; };
struct done { uint64_t nth, tag; };
struct ls_network {
    const struct ls_net_plan *plan;
    sg_host_t *from, *to;       /* [kinds] */
    LS_VEC(struct worker *) idle, worker;
    LS_VEC(struct done) ended;  /* from `handed` on: not handed out yet */
    size_t handed, running;
    sg_sem_t wake;
    bool asleep;
    uint64_t now;
    struct ls_net_counts counts;
    void (*body)(void *, struct ls_network *);
    void *context;
    bool finished;
};
static struct ls_network *only; /* an actor's function gets strings, no pointer */

static uint64_t clock_ps(void)
{
    return (uint64_t)llrint(simgrid_get_clock() * 1e12);
}

static void work(int argc, char **argv)
{
    struct ls_network *n = only;
    if (argc < 1)
        return;
    struct worker *w = n->worker.at[strtoul(argv[argc - 1], NULL, 10)];
    for (;;) {
        sg_sem_acquire(w->go);
        sg_host_sendto(n->from[w->kind], n->to[w->kind], (double)w->bytes);
        ls_push(&n->ended, (struct done){ w->nth, w->tag });
        n->running--;
        ls_push(&n->idle, w);
        if (n->asleep) {
            n->asleep = false;
            sg_sem_release(n->wake);
        }
    }
}

static void start(struct ls_network *n, uint32_t kind, uint64_t bytes, uint64_t tag)
{
    if (!n->idle.count) {
        struct worker *w = calloc(1, sizeof *w);
        if (!w)
            ls_out_of_memory(sizeof *w);
        char name[32];
        snprintf(name, sizeof name, "%zu", n->worker.count);
        const char *argv[] = { name, NULL };
        w->go = sg_sem_init(0);
        ls_push(&n->worker, w);
        ls_push(&n->idle, w);
        sg_actor_create_("flow", sg_host_self(), work, 1, argv);
    }
    struct worker *w = n->idle.at[--n->idle.count];
    w->kind = kind;
    w->bytes = bytes;
    w->nth = n->counts.flows++;
    w->tag = tag;
    n->running++;
    sg_sem_release(w->go);
}

static int by_start(const void *a, const void *b)
{
    const struct done *x = a, *y = b;
    return x->nth < y->nth ? -1 : x->nth > y->nth;
}

static bool advance(struct ls_network *n, uint64_t until, uint64_t *now, uint64_t *tag)
{
    for (;;) {
        if (n->handed < n->ended.count) {
            *now = n->now;
            *tag = n->ended.at[n->handed++].tag;
            return true;
        }
        n->handed = n->ended.count = 0;
        double left_s = until == UINT64_MAX ? 0 : (double)(until - n->now) * 1e-12;
        /* Rounded clocks: what is left may be less than SimGrid can tell from nothing. */
        if (until != UINT64_MAX ? until <= n->now : !n->running) {
            *now = n->now;
            return false;
        }
        n->asleep = true;
        if (until == UINT64_MAX)
            sg_sem_acquire(n->wake);
        else if (sg_sem_acquire_timeout(n->wake, left_s) != 0) {
            n->asleep = false;
            if (n->ended.count == 0) {
                n->now = until;
                *now = until;
                return false;
            }
        }
        n->asleep = false;
        /* Others may end at this instant too: let their actors run. */
        sg_actor_yield();
        uint64_t at = clock_ps();
        n->now = at > n->now ? at : n->now;
        if (until != UINT64_MAX && n->now > until)
            n->now = until;
        qsort(n->ended.at, n->ended.count, sizeof *n->ended.at, by_start);
    }
}

static struct ls_net_counts counts(const struct ls_network *n)
{
    return n->counts;
}

static void scheduler(int argc, char **argv)
{
    (void)argc, (void)argv;
    only->body(only->context, only);
    only->finished = true;
    sg_actor_kill_all();
}

static void platform_text(const struct ls_net_plan *p, struct ls_str *out)
{
    ls_str_add(out, "<?xml version='1.0'?>\n<!DOCTYPE platform SYSTEM \"https://simgrid.org/simgrid.dtd\">\n"
                    "<platform version=\"4.1\">\n<zone id=\"w\" routing=\"Full\">\n<host id=\"home\" speed=\"1Gf\"/>\n");
    for (size_t k = 0; k < p->kinds; k++)
        ls_str_printf(out, "<host id=\"a%zu\" speed=\"1Gf\"/><host id=\"b%zu\" speed=\"1Gf\"/>\n", k, k);
    for (size_t l = 0; l < p->links; l++)
        ls_str_printf(out, "<link id=\"l%zu\" bandwidth=\"%" PRIu64 "Bps\" latency=\"0\"/>\n", l, p->link_Bps[l]);
    for (size_t k = 0; k < p->kinds; k++)
        if (p->kind[k].cap_Bps)
            ls_str_printf(out, "<link id=\"c%zu\" bandwidth=\"%" PRIu64 "Bps\" latency=\"0\"/>\n", k, p->kind[k].cap_Bps);
    for (size_t k = 0; k < p->kinds; k++) {
        ls_str_printf(out, "<route src=\"a%zu\" dst=\"b%zu\" symmetrical=\"NO\">", k, k);
        for (uint32_t i = 0; i < p->kind[k].uses; i++)
            for (uint32_t w = 0; w < p->kind[k].use[i].weight; w++)
                ls_str_printf(out, "<link_ctn id=\"l%" PRIu32 "\"/>", p->kind[k].use[i].link);
        if (p->kind[k].cap_Bps)
            ls_str_printf(out, "<link_ctn id=\"c%zu\"/>", k);
        ls_str_add(out, "</route>\n");
    }
    ls_str_add(out, "</zone>\n</platform>\n");
}

static enum ls_code write_platform(const struct ls_net_plan *p, char *path, size_t room, struct ls_error *err)
{
    const char *folder = getenv("TMPDIR");
    int n = snprintf(path, room, "%s/lockstep-XXXXXX.xml", folder && *folder ? folder : "/tmp");
    int fd = n > 0 && (size_t)n < room ? mkstemps(path, 4) : -1;
    if (fd < 0)
        return ls_fail(err, LS_EBACKEND, LS_NOWHERE, "cannot make a temporary file: %s", strerror(errno));
    struct ls_str text = { 0 };
    platform_text(p, &text);
    FILE *f = fdopen(fd, "w");
    bool good = f && fwrite(ls_str_text(&text), 1, text.length, f) == text.length;
    good &= f && fclose(f) == 0;
    ls_str_release(&text);
    return good ? LS_OK : ls_fail(err, LS_EBACKEND, LS_NOWHERE, "cannot write the platform to '%s'", path);
}

static enum ls_code run(const struct ls_net_plan *plan, void (*body)(void *, struct ls_network *), void *context, struct ls_error *err)
{
    static bool opened;
    char path[512], factory[64];
    const char *setup = plan->setup && *plan->setup ? plan->setup : FACTORY;
    if (opened)
        return ls_fail(err, LS_EBACKEND, LS_NOWHERE, "SimGrid runs once per process");
    if (strcmp(setup, "raw") != 0 && strcmp(setup, "thread") != 0)
        return ls_fail(err, LS_EUSAGE, LS_NOWHERE, "'%s' is no context factory of SimGrid that we use: raw, thread", setup);
    enum ls_code rc = write_platform(plan, path, sizeof path, err);
    if (rc != LS_OK)
        return rc;
    opened = true;
    snprintf(factory, sizeof factory, "--cfg=contexts/factory:%s", setup);
    /* surf/precision: by default dates within a nanosecond are one, and what that moves adds up. */
    char program[] = "lockstep", model[] = "--cfg=network/model:CM02", cross[] = "--cfg=network/crosstraffic:0",
         gamma[] = "--cfg=network/TCP-gamma:0", stack[] = "--cfg=contexts/stack-size:256", precision[] = "--cfg=maxmin/precision:1e-12",
         dates[] = "--cfg=surf/precision:1e-12", quiet[] = "--log=root.thresh:critical", quieter[] = "--log=no_loc";
    char *argv[] = { program, model, cross, gamma, stack, precision, dates, quiet, quieter, factory, NULL };
    int argc = (int)(sizeof argv / sizeof *argv) - 1;
    struct ls_network n = { .plan = plan, .body = body, .context = context };
    only = &n;
    simgrid_init(&argc, argv);
    simgrid_load_platform(path);
    unlink(path);
    n.from = calloc(plan->kinds + 1, sizeof *n.from);
    n.to = calloc(plan->kinds + 1, sizeof *n.to);
    if (!n.from || !n.to)
        ls_out_of_memory(plan->kinds * sizeof *n.from);
    for (size_t k = 0; k < plan->kinds; k++) {
        char name[32];
        snprintf(name, sizeof name, "a%zu", k);
        n.from[k] = sg_host_by_name(name);
        name[0] = 'b';
        n.to[k] = sg_host_by_name(name);
    }
    n.wake = sg_sem_init(0);
    sg_actor_create("scheduler", sg_host_by_name("home"), scheduler, 0, NULL);
    simgrid_run();
    for (size_t i = 0; i < n.worker.count; i++) {
        sg_sem_destroy(n.worker.at[i]->go);
        free(n.worker.at[i]);
    }
    sg_sem_destroy(n.wake);
    ls_vec_release(&n.worker);
    ls_vec_release(&n.idle);
    ls_vec_release(&n.ended);
    free(n.from);
    free(n.to);
    only = NULL;
    return n.finished ? LS_OK : ls_fail(err, LS_EBACKEND, LS_NOWHERE, "SimGrid ended before the simulation did");
}

extern const struct ls_network_ops ls_network_simgrid;
const struct ls_network_ops ls_network_simgrid = {
    .name = "simgrid", .run = run, .start = start, .advance = advance, .counts = counts,
};
