#include "engine/run/internal.h"

#include "engine/comm/remote.h"

#include <assert.h>
#include <string.h>
#include <time.h>

static double now_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static const struct ls_device_ops *device_of(const struct engine *e) { return e->o->device ? e->o->device : &ls_device_host; }

static void on_progress(void *context, uint32_t rank, int64_t tag, enum ls_comm_progress p)
{
    struct engine *e = context;
    static const uint8_t status[] = { [LS_COMM_QUEUED] = OP_ISSUED, [LS_COMM_STARTED] = OP_STARTED, [LS_COMM_PAIRED] = OP_PAIRED,
                                      [LS_COMM_DONE] = OP_DONE };
    struct ls_rank *r = &e->rank[rank];
    r->status[tag] = status[p];
    if (p == LS_COMM_DONE && e->o->span)
        ls_push(&r->ended, (size_t)tag);
    if (p == LS_COMM_DONE)
        ls_sched_wake_all(&r->progress);
}

static void on_span(void *context, unsigned stream, int64_t tag, const struct ls_span *span)
{
    struct ls_rank *r = context;
    (void)stream;
    if (tag >= 0)
        ls_push(&r->ended, (size_t)tag);
    for (size_t i = 0; i < r->ended.count; i++) {
        const struct rank_op *o = &r->op[r->ended.at[i]];
        r->e->o->span(r->e->o->span_context, (struct ls_at){ r->number, o->segment, o->index }, span);
    }
    r->ended.count = 0;
}

static void name_params(struct engine *e)
{
    e->names = ls_names_count(e->job->tables->names);
    e->param_of_name = LS_NEW(&e->arena, uint32_t, e->names + 1);
    e->unit_of_name = LS_NEW(&e->arena, uint32_t, e->names + 1);
    memset(e->param_of_name, 0xff, (e->names + 1) * sizeof *e->param_of_name);
    memset(e->unit_of_name, 0xff, (e->names + 1) * sizeof *e->unit_of_name);
    for (uint32_t i = 0; i < e->setup->params; i++)
        e->param_of_name[e->setup->param[i].name] = i;
    for (uint32_t i = 0; i < e->setup->units; i++)
        e->unit_of_name[e->setup->unit[i].name] = i;
}

static enum ls_code open_comms(struct ls_rank *r, struct ls_error *err)
{
    struct engine *e = r->e;
    size_t comms = e->job->tables->comm.count;
    r->comm = LS_NEW(&e->arena, struct ls_comm *, comms + 1);
    for (uint32_t c = 0; c < comms; c++) {
        const struct ls_groups *g = &e->job->comm[c];
        if (g->group[r->number] == LS_NO_ID)
            continue;
        uint32_t at = g->group[r->number];
        struct ls_comm_group group = { .comm = c, .group = at, .member = g->member[r->number], .rank = &g->rank[g->first[at]],
                                       .members = g->first[at + 1] - g->first[at], .device = r->device, .hub = e->hub };
        enum ls_code rc = (e->o->world ? &ls_comm_mpi : &ls_comm_threads)->open(&r->comm[c], &group, err);
        if (rc != LS_OK)
            return rc;
    }
    return LS_OK;
}

static enum ls_code open_rank(struct engine *e, struct ls_rank *r, struct ls_error *err)
{
    struct ls_device_options d = { .sched = e->sched, .streams = e->streams, .ordinal = (int)r->number, .poison = e->o->poison, .accounting = e->o->accounting,
                                   .done = op_done, .done_context = r, .span = e->o->span ? on_span : NULL };
    /* Before the device's streams: in the canonical order hosts run ahead. */
    for (size_t t = 0; t < r->threads; t++)
        ls_sched_add(e->sched, &r->thread[t].actor, thread_step);
    enum ls_code rc = device_of(e)->open(&r->device, &d, err);
    r->event = LS_NEW(&e->arena, struct ls_event *, e->job->tables->event.count + 1);
    clocks_open(r);
    if (rc == LS_OK)
        rc = open_comms(r, err);
    if (rc == LS_OK && e->o->math)
        rc = e->o->math->open(&r->math, e->setup, r->number, r->device, e->o->math_context, err);
    if (rc == LS_OK)
        rc = data_open(r, err);
    return rc;
}

/* What they count is complete then. */
static void close_math(struct ls_rank *r)
{
    if (r->math)
        r->math->ops->close(r->math);
    r->math = NULL;
}

static void close_rank(struct engine *e, struct ls_rank *r)
{
    close_math(r);
    for (size_t c = 0; r->comm && c < e->job->tables->comm.count; c++)
        if (r->comm[c])
            r->comm[c]->ops->close(r->comm[c]);
    device_of(e)->close(r->device);
    ls_vec_release(&r->progress);
    ls_vec_release(&r->parked);
    ls_vec_release(&r->live);
    ls_vec_release(&r->bucket);
    ls_vec_release(&r->moves);
    ls_vec_release(&r->calls);
    ls_vec_release(&r->ended);
    clocks_close(r);
}

/* What the machine refuses, the engine refuses too: the same well-formed jobs. */
static enum ls_code check_job(const struct engine *e, struct ls_error *err)
{
    for (uint32_t rank = 0; rank < e->job->ranks; rank++) {
        const struct ls_rank *r = &e->rank[rank];
        for (size_t i = 0; i < r->ops; i++) {
            const struct ls_op *o = r->op[i].op;
            if (ls_op_uses_comm(o) && o->counts != LS_NO_ID) {
                const struct ls_groups *g = &e->job->comm[queue_comm(e, o)];
                uint32_t at = g->group[rank];
                if (e->job->tables->vector.at[o->counts] != g->first[at + 1] - g->first[at])
                    return ls_fail(err, LS_EINPUT, LS_NOWHERE, "rank %u gives counts to %llu members of a group of %u", rank,
                                   (unsigned long long)e->job->tables->vector.at[o->counts], (unsigned)(g->first[at + 1] - g->first[at]));
            }
            if (ls_op_is_p2p(o)) {
                const struct ls_groups *g = &e->job->comm[o->comm];
                uint32_t at = g->group[rank];
                if (o->peer < 0 || (size_t)o->peer >= g->first[at + 1] - g->first[at])
                    return ls_fail(err, LS_EINPUT, LS_NOWHERE, "rank %u sends to or receives from member %d, which does not exist", rank, o->peer);
            }
            if (o->kind == LS_OP_DECIDE && r->op[i].index + o->then_count + o->else_count >= e->job->rank[rank].segment[r->op[i].segment]->count + 0u &&
                o->then_count + o->else_count > e->job->rank[rank].segment[r->op[i].segment]->count - r->op[i].index - 1)
                return ls_fail(err, LS_EINPUT, LS_NOWHERE, "the sides of a decide reach beyond its segment");
        }
    }
    return LS_OK;
}

static bool look_outside(void *context, bool idle)
{
    return ls_hub_outside(((struct engine *)context)->hub, idle);
}

static void read_ranks(struct engine *e, struct ls_arena *arena, struct ls_observed *out)
{
    size_t n = e->job->ranks;
    out->memory = LS_NEW(arena, struct ls_memory, n + 1);
    out->issued = LS_NEW(arena, bool *, n + 1);
    out->call = LS_NEW(arena, struct ls_calls, n + 1);
    for (uint32_t r = 0; r < n; r++)
        if (e->rank[r].device)
            out->memory[r] = *e->rank[r].device->ops->memory(e->rank[r].device);
}

static void read_ops(struct engine *e, struct ls_arena *arena, struct ls_observed *out)
{
    for (uint32_t r = 0; r < e->job->ranks; r++) {
        out->issued[r] = LS_NEW(arena, bool, e->rank[r].ops + 1);
        for (size_t i = 0; i < e->rank[r].ops; i++)
            out->issued[r][i] = e->rank[r].status[i] >= OP_ISSUED;
        out->call[r] = (struct ls_calls){ ls_arena_copy(arena, e->rank[r].calls.at, e->rank[r].calls.count * sizeof(struct ls_at)),
                                          e->rank[r].calls.count };
    }
    for (size_t i = 0; e->o->nccl_like && i < e->clash.count; i++)
        out->silent += e->clash.at[i].passed;
    out->clashes = e->clash.count;
    out->race = ls_arena_copy(arena, e->race.at, e->race.count * sizeof *e->race.at);
    out->races = e->race.count;
}

enum ls_code ls_engine_run(const struct ls_engine_setup *setup, const struct ls_engine_options *o, struct ls_arena *arena,
                           struct ls_observed *out, struct ls_error *err)
{
    struct engine e = { .setup = setup, .o = o, .job = setup->job, .streams = 1 };
    struct ls_sched_options s = { .free = o->free, .seed = o->seed, .interrupted = o->interrupted };
    struct ls_hub_options h = { .nccl_like = o->nccl_like, .progress = on_progress, .progress_context = &e, .world = o->world };
    enum ls_sched_end end = LS_SCHED_QUIET;
    double start = now_seconds();
    *out = (struct ls_observed){ 0 };
    e.resident = (struct ls_slot_options){ .kernels = o->kernels, .next = o->start == LS_START_ISSUE_ORDER ? next_kernel : NULL };
    if (o->resident)
        h.resident = &e.resident;
    if (o->world)
        s.outside = look_outside, s.outside_context = &e;
    ls_arena_init(&e.arena, 0);
    e.sched = ls_sched_open(&s);
    e.rank = LS_NEW(&e.arena, struct ls_rank, e.job->ranks + 1);
    name_params(&e);
    enum ls_code rc = share_job(&e, err);
    for (uint32_t r = 0; r < e.job->ranks && rc == LS_OK; r++) {
        e.rank[r] = (struct ls_rank){ .e = &e, .number = r };
        rc = rank_layout(&e, &e.rank[r], err) ? LS_OK : LS_EINPUT;
    }
    if (rc == LS_OK)
        rc = check_job(&e, err);
    if (rc == LS_OK) {
        e.hub = ls_hub_open(e.job, e.sched, &h);
        for (uint32_t r = 0; r < e.job->ranks && rc == LS_OK; r++)
            if (is_here(&e, r))
                rc = open_rank(&e, &e.rank[r], err);
        if (rc == LS_OK)
            rc = ls_sched_run(e.sched, &end, err);
        if (rc == LS_OK && e.rc != LS_OK) {
            rc = e.rc;
            if (err)
                *err = e.err;
        }
        out->interrupted = end == LS_SCHED_INTERRUPTED;
        read_ranks(&e, arena, out);
        for (uint32_t r = 0; r < e.job->ranks; r++) {
            close_math(&e.rank[r]);
            clocks_races(&e.rank[r]);
        }
        rc = share_state(&e, out, out->interrupted, rc, err);
    }
    if (rc == LS_OK) {
        read_ops(&e, arena, out);
        if (!out->interrupted)
            observe(&e, arena, out);
    }
    for (size_t r = 0; r < e.job->ranks; r++)
        if (e.rank[r].e)
            close_rank(&e, &e.rank[r]);
    ls_vec_release(&e.clash);
    ls_vec_release(&e.race);
    ls_hub_close(e.hub);
    ls_sched_close(e.sched);
    ls_arena_release(&e.arena);
    out->seconds = now_seconds() - start;
    return rc;
}

void ls_program_memory(const struct ls_job *job, uint32_t rank, const bool *taken, struct ls_memory *out)
{
    struct live { uint32_t buffer, module; uint64_t bytes; };
    LS_VEC(struct live) live = { 0 };
    const struct ls_tables *t = job->tables;
    size_t n = 0;
    *out = (struct ls_memory){ 0 };
    for (size_t s = 0; s < job->rank[rank].count; s++)
        for (size_t i = 0; i < job->rank[rank].segment[s]->count; i++, n++) {
            const struct ls_op *o = &job->rank[rank].segment[s]->op[i];
            if ((o->kind != LS_OP_ALLOC && o->kind != LS_OP_FREE) || !o->ranges || (taken && !taken[n]))
                continue;
            uint32_t buffer = t->range.at[o->range].buffer;
            enum ls_category c = (enum ls_category)t->buffer.at[buffer].category;
            if (o->kind == LS_OP_ALLOC) {
                ls_push(&live, (struct live){ buffer, o->module, o->bytes });
                ls_memory_take(out, c, o->bytes);
                continue;
            }
            for (size_t k = 0; k < live.count; k++)
                if (live.at[k].buffer == buffer && live.at[k].module == o->module) {
                    ls_memory_give(out, c, live.at[k].bytes);
                    memmove(&live.at[k], &live.at[k + 1], (live.count - k - 1) * sizeof *live.at);
                    live.count--;
                    break;
                }
        }
    ls_vec_release(&live);
}
