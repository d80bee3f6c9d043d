/* Several processes: what each of them has seen of its ranks, told to all. Without others, nothing is sent. */
#include "engine/run/internal.h"

#include "base/hash.h"
#include "engine/comm/remote.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

bool is_here(const struct engine *e, uint32_t rank)
{
    return !e->o->world || ls_world_of_rank(e->o->world, rank) == e->o->world->number;
}

static uint64_t hash_job(const struct engine *e)
{
    const struct ls_job *job = e->job;
    uint64_t h = ls_hash_mix(job->ranks, e->setup->seed);
    h = ls_hash_mix(h, (uint64_t)e->o->nccl_like << 3 | (uint64_t)e->o->blocking << 2 | (uint64_t)e->o->accounting << 1 | (uint64_t)e->setup->buckets << 4 | (e->o->math != NULL));
    h = ls_hash_mix(h, ls_hash_mix((uint64_t)e->o->resident << 33 | (uint64_t)e->o->start << 32 | e->o->kernels, e->o->races));
    h = ls_hash_mix(h, e->o->world->ranks_per_process);
    for (size_t r = 0; r < job->ranks; r++)
        for (size_t i = 0; i < job->rank[r].count; i++)
            h = ls_hash_mix(h, job->rank[r].segment[i]->hash);
    for (size_t c = 0; c < job->tables->comm.count; c++)
        h = ls_hash(job->comm[c].group, job->ranks * sizeof *job->comm[c].group, ls_hash_mix(h, job->comm[c].groups));
    return h;
}

enum ls_code share_job(const struct engine *e, struct ls_error *err)
{
    struct ls_world *w = e->o->world;
    if (!w)
        return LS_OK;
    if (!w->ranks_per_process || (e->job->ranks + w->ranks_per_process - 1) / w->ranks_per_process != w->processes)
        return ls_fail(err, LS_EBACKEND, LS_NOWHERE, "%zu ranks, %zu per process, do not make %zu processes", e->job->ranks, w->ranks_per_process,
                       w->processes);
    uint64_t mine = hash_job(e);
    struct ls_message *all = calloc(w->processes, sizeof *all);
    if (!all)
        ls_out_of_memory(w->processes * sizeof *all);
    enum ls_code rc = ls_world_exchange(w, &mine, sizeof mine, all, err);
    for (size_t i = 0; i < w->processes && rc == LS_OK; i++)
        if (all[i].bytes != sizeof mine || memcmp(all[i].at, &mine, sizeof mine) != 0)
            rc = ls_fail(err, LS_EBACKEND, LS_NOWHERE, "process %zu runs another job than process %zu: other files, options or version", i, w->number);
    ls_world_drop(w, all);
    free(all);
    return rc;
}

struct report { int32_t code; bool interrupted; struct ls_error err; size_t clashes, collectives, races; };
struct rank_report { size_t stop_at, calls; bool stopped; struct ls_memory memory; };
struct thread_report { size_t at, hold_first, hold_end; };

static void put(struct ls_str *s, const void *at, size_t bytes) { ls_str_addn(s, at, bytes); }

static void write_rank(struct ls_str *s, const struct ls_rank *r, const struct ls_memory *memory)
{
    struct rank_report report;
    memset(&report, 0, sizeof report);
    report.stop_at = r->stop_at, report.stopped = r->stopped, report.calls = r->calls.count, report.memory = *memory;
    put(s, &report, sizeof report);
    put(s, r->status, r->ops);
    put(s, r->decided, r->ops);
    for (size_t i = 0; i < r->threads; i++)
        put(s, &(struct thread_report){ r->thread[i].at, r->thread[i].hold_first, r->thread[i].hold_end }, sizeof(struct thread_report));
    if (r->calls.count)
        put(s, r->calls.at, r->calls.count * sizeof *r->calls.at);
}

struct reader { const char *at, *end; };

static const char *get(struct reader *in, void *to, size_t bytes)
{
    const char *from = in->at;
    assert((size_t)(in->end - in->at) >= bytes && "one program wrote and reads it");
    if (to && bytes)
        memcpy(to, from, bytes);
    in->at += bytes;
    return from;
}

static void read_rank(struct reader *in, struct ls_rank *r, struct ls_memory *memory)
{
    struct rank_report report;
    get(in, &report, sizeof report);
    r->stop_at = report.stop_at;
    r->stopped = report.stopped;
    *memory = report.memory;
    get(in, r->status, r->ops);
    get(in, r->decided, r->ops);
    for (size_t i = 0; i < r->threads; i++) {
        struct thread_report t;
        get(in, &t, sizeof t);
        r->thread[i].at = t.at;
        r->thread[i].hold_first = t.hold_first;
        r->thread[i].hold_end = t.hold_end;
    }
    ls_reserve(&r->calls, report.calls + 1);
    get(in, r->calls.at, report.calls * sizeof *r->calls.at);
    r->calls.count = report.calls;
}

static void ranks_of(const struct engine *e, size_t process, uint32_t *first, uint32_t *count)
{
    size_t per = e->o->world->ranks_per_process, from = process * per, left = e->job->ranks - from;
    *first = (uint32_t)from;
    *count = (uint32_t)(left < per ? left : per);
}

static void read_process(struct engine *e, size_t process, const struct ls_message *m, struct ls_observed *out)
{
    struct reader in = { m->at, (const char *)m->at + m->bytes };
    struct report report;
    uint32_t first, ranks;
    get(&in, &report, sizeof report);
    ranks_of(e, process, &first, &ranks);
    e->collectives += report.collectives;
    for (size_t i = 0; i < report.clashes; i++) {
        struct ls_comm_clash c;
        get(&in, &c, sizeof c);
        ls_push(&e->clash, c);
    }
    for (size_t i = 0; i < report.races; i++) { /* by rank: processes are told in that order */
        struct ls_race race;
        get(&in, &race, sizeof race);
        if (e->race.count < e->o->races)
            ls_push(&e->race, race);
    }
    if (process == e->o->world->number)
        return;
    for (uint32_t r = first; r < first + ranks; r++)
        read_rank(&in, &e->rank[r], &out->memory[r]);
    if (e->o->math && e->o->math->get)
        e->o->math->get(e->setup, e->o->math_context, first, ranks, in.at, (size_t)(in.end - in.at));
}

static void write_process(struct engine *e, const struct ls_observed *out, enum ls_code rc, const struct ls_error *err, struct ls_str *s)
{
    struct report report;
    size_t clashes;
    uint32_t first, ranks;
    const struct ls_comm_clash *clash = ls_hub_clashes(e->hub, &clashes);
    memset(&report, 0, sizeof report);
    report.code = (int32_t)rc;
    report.interrupted = out->interrupted;
    report.clashes = clashes;
    report.collectives = ls_hub_collectives(e->hub);
    report.races = e->race.count;
    if (rc != LS_OK && err) {
        report.err = *err;
        report.err.input.file = report.err.source.file = NULL; /* pointers do not travel */
    }
    put(s, &report, sizeof report);
    if (clashes)
        put(s, clash, clashes * sizeof *clash);
    if (e->race.count)
        put(s, e->race.at, e->race.count * sizeof *e->race.at);
    if (rc != LS_OK)
        return;
    ranks_of(e, e->o->world->number, &first, &ranks);
    for (uint32_t r = first; r < first + ranks; r++)
        write_rank(s, &e->rank[r], &out->memory[r]);
    if (e->o->math && e->o->math->give)
        e->o->math->give(e->setup, e->o->math_context, first, ranks, s);
}

enum ls_code share_state(struct engine *e, struct ls_observed *out, bool interrupted, enum ls_code rc, struct ls_error *err)
{
    struct ls_world *w = e->o->world;
    size_t n;
    if (!w) {
        const struct ls_comm_clash *clash = ls_hub_clashes(e->hub, &n);
        for (size_t i = 0; i < n; i++)
            ls_push(&e->clash, clash[i]);
        e->collectives = ls_hub_collectives(e->hub);
        return rc;
    }
    if (interrupted) /* the caller ends, and with it the others */
        return rc;
    struct ls_str mine = { 0 };
    struct ls_error failed = { 0 };
    struct ls_message *all = calloc(w->processes, sizeof *all);
    if (!all)
        ls_out_of_memory(w->processes * sizeof *all);
    write_process(e, out, rc, err, &mine);
    enum ls_code sent = ls_hub_end(e->hub, mine.text, mine.length, all, &failed);
    if (sent != LS_OK && rc == LS_OK) {
        rc = sent;
        if (err)
            *err = failed;
    }
    for (size_t i = 0; i < w->processes && sent == LS_OK; i++) {
        struct report report;
        memcpy(&report, all[i].at, sizeof report);
        if (report.code == LS_OK)
            continue;
        sent = (enum ls_code)report.code;
        if (rc == LS_OK && err) {
            *err = report.err;
            ls_hint(err, "in process %zu of %zu", i, w->processes);
        }
        rc = sent;
    }
    e->race.count = 0;
    for (size_t i = 0; i < w->processes && rc == LS_OK; i++)
        read_process(e, i, &all[i], out);
    ls_world_drop(w, all);
    free(all);
    ls_str_release(&mine);
    return rc;
}
