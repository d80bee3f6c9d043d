#include "sim/simulate.h"

#include "base/hash.h"
#include "sim/wide.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PLAIN_NAME(id, name) name,
static const char *const draw_name[] = { LS_DRAWS(PLAIN_NAME) };
static const char *const budget_name[] = { LS_BUDGET(PLAIN_NAME) };

const char *ls_draw_name(enum ls_draw d)
{
    assert((unsigned)d < LS_DRAW_COUNT);
    return draw_name[d];
}

const char *ls_budget_name(enum ls_budget b)
{
    assert((unsigned)b < LS_BUDGET_COUNT);
    return budget_name[b];
}

/* Everything about one run that the parts below share. */
struct priced { const struct ls_op *first; size_t count; struct ls_round_work work; uint64_t *ps; const struct ls_segment *segment; };
struct stretch { uint64_t ready, start, end; enum ls_budget kind; };
struct track {
    uint64_t budget[LS_BUDGET_COUNT], last; /* last: end of the compute stream's latest op */
    LS_VEC(struct stretch) busy[8];         /* collectives of streams not yet left behind */
    uint8_t *stream_of;                     /* [events] who recorded it last */
};
struct simulation {
    const struct ls_simulate_options *o;
    const struct ls_timing *setup;
    enum ls_activation_style style;
    const struct ls_compiled *c;
    const struct ls_assignment *assignment; /* NULL for raw programs */
    const struct ls_sample *const *sample;  /* [letters] */
    struct ls_arena *arena;
    struct ls_simulation *out;
    struct priced *priced; size_t priced_count;
    struct track **track;                   /* [ranks] */
    LS_VEC(struct ls_trace_span) span;
    unsigned item_bytes;
};

static const char *describe(const struct ls_names *names, const struct simulation *x, uint32_t rank)
{
    struct ls_str text = { 0 };
    const struct ls_system *y = &x->c->system;
    size_t replicas = x->assignment->size[0] * x->assignment->size[1], roles = y->replica->roles;
    for (size_t i = 0; i < x->assignment->rounds && text.length < 120; i++) {
        const struct ls_round *round = &x->c->rounds.round[y->driver.node[x->assignment->node[i]].round];
        if (round->kind != LS_ROUND_MICRO && round->kind != LS_ROUND_SKIPPED && round->kind != LS_ROUND_EVAL)
            continue;
        const struct ls_letter *l = &x->c->letters.letter[x->assignment->letter[i * replicas + rank / roles]];
        ls_str_printf(&text, "%s%s", text.length ? " | " : "", ls_name_text(names, l->name));
    }
    const char *out = ls_arena_str(x->arena, ls_str_text(&text));
    ls_str_release(&text);
    return out;
}

static int by_first(const void *a, const void *b)
{
    uintptr_t x = (uintptr_t)((const struct priced *)a)->first, y = (uintptr_t)((const struct priced *)b)->first;
    return x < y ? -1 : x > y;
}

static struct priced *find_priced(const struct simulation *x, const struct ls_op *op)
{
    size_t low = 0, high = x->priced_count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        struct priced *p = &x->priced[middle];
        if ((uintptr_t)op < (uintptr_t)p->first)
            high = middle;
        else if ((uintptr_t)op >= (uintptr_t)(p->first + p->count))
            low = middle + 1;
        else
            return p;
    }
    return NULL;
}

static bool profile(void *context, const struct ls_tables *t, const struct ls_op *op, uint64_t *ps)
{
    (void)t;
    const struct priced *p = op->kind == LS_OP_COMPUTE ? find_priced(context, op) : NULL;
    if (p)
        *ps = p->ps[op - p->first];
    return p != NULL;
}

/* Assumed: what a host thread of PyTorch takes to launch a kernel from Python, or from the autograd engine, and to run one hook of FSDP2;
 * foreach kernels of the optimizer take lists of about 100 tensors. */
enum { FORWARD_LAUNCH_US = 8, BACKWARD_LAUNCH_US = 5, HOOK_US = 60, OPTIMIZER_LAUNCHES = 15, OPTIMIZER_LIST = 100 };
#define PS_PER_US UINT64_C(1000000)

static bool issue(void *context, const struct ls_tables *t, const struct ls_op *op, uint64_t *ps)
{
    const struct simulation *x = context;
    if (op->kind == LS_OP_MARK) {
        *ps = HOOK_US * PS_PER_US;
        return x->assignment != NULL;
    }
    const struct priced *p = op->kind == LS_OP_COMPUTE ? find_priced(x, op) : NULL;
    if (!p)
        return false;
    size_t at = (size_t)(op - p->first);
    *ps = 0;
    if (op->pass == LS_PASS_OPT) {
        size_t tensors = op->payload == LS_NO_ID ? 0 : t->payload.at[op->payload].count;
        *ps = (tensors / OPTIMIZER_LIST + 1) * OPTIMIZER_LAUNCHES * FORWARD_LAUNCH_US * PS_PER_US;
        return true;
    }
    for (size_t k = p->work.first[at]; k < p->work.first[at + 1]; k++) {
        uint8_t what = t->kernel.at[op->kernel + (k - p->work.first[at])].what;
        bool engine = what == LS_KERNEL_BACKWARD || what == LS_KERNEL_LOSS_BACKWARD;
        *ps += p->work.of[k].launches * (engine ? BACKWARD_LAUNCH_US : FORWARD_LAUNCH_US) * PS_PER_US;
    }
    return true;
}

static uint64_t optimizer_ps(const struct simulation *x)
{
    const struct ls_platform *p = &x->out->platform;
    uint64_t measured;
    if (x->o->profile && ls_profile_step(x->o->profile, &measured))
        return measured;
    uint64_t bytes, elements = ls_memory_trained(&x->c->plan, x->assignment->size[1], &bytes);
    double each = elements ? (double)bytes / (double)elements : 0;
    double accesses = x->setup->optimizer == LS_OPT_NO_OPTIMIZER ? 0 : x->setup->optimizer == LS_OPT_ADAMW ? 17 : 7;
    double moved = x->setup->optimizer == LS_OPT_ADAMW_MASTER && each < 4 ? (double)elements * (6 * 4 + 2 * each) : accesses * (double)bytes;
    return (uint64_t)(moved / ((double)p->hbm_Bps * p->hbm_efficiency) * 1e12);
}

/* One price per distinct segment; a segment belongs to one letter. */
static void price(struct simulation *x)
{
    const struct ls_job *job = &x->out->job;
    size_t roles = x->c->system.replica->roles, replicas = x->assignment->size[0] * x->assignment->size[1];
    struct ls_names *seen = ls_names_open();
    LS_VEC(struct priced) all = { 0 };
    const struct ls_work_options wo = { .style = x->style, .selective = x->setup->selective, .item_bytes = x->item_bytes,
                                        .outputs_held = x->setup->logits_held };
    size_t known = 0;
    for (uint32_t r = 0; r < job->ranks; r++)
        for (size_t i = 0; i < job->rank[r].count; i++) {
            const struct ls_segment *s = job->rank[r].segment[i];
            char key[24];
            snprintf(key, sizeof key, "%zx", (size_t)(uintptr_t)s);
            ls_name_id(seen, key);
            if (ls_names_count(seen) == known)
                continue;
            known = ls_names_count(seen);
            uint32_t letter = x->assignment->letter[i * replicas + r / roles];
            struct priced p = { .first = s->op, .count = s->count, .segment = s };
            struct ls_tokens tokens = ls_tokens_of(x->c->plan.model, x->sample[letter], &x->c->letters.letter[letter]);
            ls_work_of_round(&x->c->plan, job->tables, s, &tokens, &wo, x->arena, &p.work);
            p.ps = LS_NEW(x->arena, uint64_t, s->count);
            double *kernel = calloc(p.work.kernels + 1, sizeof *kernel);
            if (!kernel)
                ls_out_of_memory(p.work.kernels * sizeof *kernel);
            ls_work_kernels_ps(&x->out->platform, &p.work, x->item_bytes, kernel);
            if (x->o->profile)
                ls_profile_apply(x->o->profile, x->c->plan.model, job->tables, s, &p.work, kernel);
            for (size_t k = 0; k < s->count; k++) {
                double ps = 0.5;
                for (size_t n = p.work.first[k]; n < p.work.first[k + 1]; n++)
                    ps += kernel[n];
                p.ps[k] = s->op[k].pass == LS_PASS_OPT ? optimizer_ps(x) : (uint64_t)ps;
            }
            free(kernel);
            ls_push(&all, p);
        }
    x->priced = ls_arena_copy(x->arena, all.at, (all.count ? all.count : 1) * sizeof *all.at);
    x->priced_count = all.count;
    if (all.count)
        qsort(x->priced, all.count, sizeof *x->priced, by_first);
    ls_vec_release(&all);
    ls_names_close(seen);
}

static const struct ls_round_work *work_of(const struct simulation *x, const struct ls_segment *s)
{
    const struct priced *p = s->count ? find_priced(x, s->op) : NULL;
    return p ? &p->work : NULL;
}

static enum ls_budget budget_of(enum ls_op_kind kind)
{
    return kind == LS_OP_ALL_GATHER ? LS_BUDGET_ALL_GATHER : kind == LS_OP_REDUCE_SCATTER ? LS_BUDGET_REDUCE_SCATTER
           : kind == LS_OP_ALL_REDUCE ? LS_BUDGET_ALL_REDUCE : LS_BUDGET_COMMUNICATION;
}

static uint64_t overlap(uint64_t a, uint64_t b, uint64_t from, uint64_t to)
{
    uint64_t low = a > from ? a : from, high = b < to ? b : to;
    return high > low ? high - low : 0;
}

enum { TRACKED = 8 };

/* The compute stream waited from `from` to `to` for an event: what was going on where it was recorded? */
static void split_wait(struct track *t, unsigned stream, uint64_t from, uint64_t to)
{
    uint64_t rest = to - from;
    if (stream < TRACKED) {
        size_t kept = 0;
        for (size_t i = 0; i < t->busy[stream].count; i++) {
            struct stretch s = t->busy[stream].at[i];
            uint64_t waiting = overlap(s.ready, s.start, from, to), moving = overlap(s.start, s.end, from, to);
            waiting = waiting < rest ? waiting : rest; /* ops of one fused group overlap */
            moving = moving < rest - waiting ? moving : rest - waiting;
            t->budget[LS_BUDGET_WAITING] += waiting;
            t->budget[s.kind] += moving;
            rest -= waiting + moving;
            if (s.end > to)
                t->busy[stream].at[kept++] = s;
        }
        t->busy[stream].count = kept;
    }
    t->budget[LS_BUDGET_IDLE] += rest;
}

static struct track *track_of(struct simulation *x, uint32_t rank)
{
    if (!x->track[rank]) {
        x->track[rank] = LS_NEW(x->arena, struct track, 1);
        x->track[rank]->stream_of = LS_NEW(x->arena, uint8_t, x->out->job.tables->event.count + 1);
    }
    return x->track[rank];
}

static void done(void *context, const struct ls_span *s)
{
    struct simulation *x = context;
    struct track *t = track_of(x, s->at.rank);
    const struct ls_op *op = s->op;
    bool collective = ls_op_uses_comm(op);
    if (collective && (!x->out->longest.op || s->start_ps - s->ready_ps > x->out->longest.start_ps - x->out->longest.ready_ps))
        x->out->longest = *s;
    if (x->o->trace && !ls_op_is_host(op))
        ls_push(&x->span, (struct ls_trace_span){ s->at, op, s->head_ps, s->ready_ps, s->start_ps, s->end_ps });
    if (op->kind == LS_OP_RECORD)
        t->stream_of[op->event] = op->stream;
    if (ls_op_is_host(op))
        return;
    if (op->stream != LS_STREAM_D) {
        if (collective && op->stream < TRACKED)
            ls_push(&t->busy[op->stream], (struct stretch){ s->ready_ps, s->start_ps, s->end_ps, budget_of((enum ls_op_kind)op->kind) });
        return;
    }
    if (s->head_ps > t->last)
        t->budget[LS_BUDGET_IDLE] += s->head_ps - t->last;
    t->budget[LS_BUDGET_LAUNCH] += s->ready_ps - s->head_ps;
    t->last = s->end_ps;
    if (op->kind == LS_OP_WAIT) {
        split_wait(t, t->stream_of[op->event], s->ready_ps, s->end_ps);
        return;
    }
    t->budget[LS_BUDGET_WAITING] += collective ? s->start_ps - s->ready_ps : 0;
    assert(collective || s->start_ps == s->ready_ps);
    enum ls_budget kind = collective ? budget_of((enum ls_op_kind)op->kind)
                          : op->kind == LS_OP_COMPUTE ? (op->pass == LS_PASS_OPT ? LS_BUDGET_OPTIMIZER : LS_BUDGET_COMPUTE)
                          : LS_BUDGET_COPIES;
    t->budget[kind] += s->end_ps - s->start_ps;
}

/* Ranks with equal segments share a program; each rank's class, by its first rank. */
static void classify(struct simulation *x)
{
    const struct ls_job *job = &x->out->job;
    struct ls_names *names = ls_names_open();
    uint32_t *class_of_name = LS_NEW(x->arena, uint32_t, job->ranks + 2);
    x->out->class_of = LS_NEW(x->arena, uint32_t, job->ranks);
    x->out->rank_class = LS_NEW(x->arena, struct ls_sim_class, job->ranks);
    size_t known = ls_names_count(names), base = known;
    for (uint32_t r = 0; r < job->ranks; r++) {
        struct ls_str key = { 0 };
        for (size_t i = 0; i < job->rank[r].count; i++)
            ls_str_printf(&key, "%zx ", (size_t)(uintptr_t)job->rank[r].segment[i]);
        uint32_t id = ls_name_id(names, key.length ? ls_str_text(&key) : "-");
        ls_str_release(&key);
        if (ls_names_count(names) > known) {
            known = ls_names_count(names);
            class_of_name[id - base] = (uint32_t)x->out->classes;
            x->out->rank_class[x->out->classes++] = (struct ls_sim_class){ .first = r };
        }
        uint32_t c = class_of_name[id - base];
        x->out->class_of[r] = c;
        x->out->rank_class[c].ranks++;
    }
    ls_names_close(names);
}

static void measure_memory(struct simulation *x)
{
    struct ls_simulation *out = x->out;
    out->memory_input = LS_NEW(x->arena, struct ls_memory_input, out->classes + 1);
    for (size_t c = 0; c < out->classes; c++) {
        struct ls_sim_class *k = &out->rank_class[c];
        const struct ls_rank_program *rank = &out->job.rank[k->first];
        const struct ls_round_work **work = LS_NEW(x->arena, const struct ls_round_work *, rank->count + 1);
        for (size_t i = 0; i < rank->count; i++)
            work[i] = work_of(x, rank->segment[i]);
        out->memory_input[c] = (struct ls_memory_input){ .plan = &x->c->plan, .tables = out->job.tables, .shard = x->assignment ? x->assignment->size[1] : 1,
                                      .optimizer = x->setup->optimizer, .work = work };
        ls_memory_of_rank(&out->memory_input[c], rank, &k->memory);
        if (k->memory.peak > out->rank_class[out->worst].memory.peak)
            out->worst = c;
        for (size_t i = 0; i < rank->count && x->assignment; i++) {
            uint32_t node = x->assignment->node[i];
            enum ls_round_kind kind = x->c->rounds.round[x->c->system.driver.node[node].round].kind;
            size_t replicas = x->assignment->size[0] * x->assignment->size[1];
            uint32_t letter = x->assignment->letter[i * replicas + k->first / x->c->system.replica->roles];
            struct ls_tokens tokens = ls_tokens_of(x->c->plan.model, x->sample[letter], &x->c->letters.letter[letter]);
            if (kind == LS_ROUND_MICRO)
                k->tokens += (double)tokens.text;
            if (work[i] && kind == LS_ROUND_MICRO)
                out->model_flops += work[i]->model_flops * k->ranks;
        }
        out->tokens += k->tokens * k->ranks;
        k->samples = x->assignment ? describe(x->c->tables.names, x, k->first) : "";
    }
    if (out->classes)
        out->oom = out->rank_class[out->worst].memory.peak + out->platform.reserved_bytes > out->platform.hbm_bytes;
}

static void sum_up(struct simulation *x)
{
    struct ls_simulation *out = x->out;
    size_t ranks = out->job.ranks;
    out->step_s = (double)out->run.end_ps * 1e-12;
    for (uint32_t r = 0; r < ranks; r++) {
        struct track *t = x->track[out->run.class_of[r]];
        struct ls_sim_class *k = &out->rank_class[out->class_of[r]];
        for (size_t b = 0; b < LS_BUDGET_COUNT; b++) {
            double part = t ? (double)t->budget[b] * 1e-12 : 0;
            if (b == LS_BUDGET_IDLE)
                part += (double)(out->run.end_ps - (t ? t->last : 0)) * 1e-12;
            k->budget_s[b] += part / k->ranks;
            out->budget_s[b] += part / (double)ranks;
        }
    }
    if (out->step_s > 0) {
        double peak = out->platform.flops[x->item_bytes == 2 ? LS_DTYPE_BF16 : LS_DTYPE_F32];
        out->tokens_s = out->tokens / out->step_s;
        out->mfu = out->model_flops / (out->step_s * (double)ranks * peak);
    }
}

static void host(void *context, const struct ls_span *s)
{
    struct simulation *x = context;
    struct ls_sim_class *k = &x->out->rank_class[x->out->class_of[s->at.rank]];
    if (x->o->trace)
        ls_push(&x->span, (struct ls_trace_span){ s->at, s->op, s->head_ps, s->ready_ps, s->start_ps, s->end_ps });
    /* The last thing that the host is known to have reached before the peak. */
    if (k->first == s->at.rank && (s->at.segment < k->memory.peak_segment ||
                                   (s->at.segment == k->memory.peak_segment && s->at.op <= k->memory.peak_op)))
        k->peak_ps = s->end_ps;
}

/* The standard normal's quantile. */
static double normal_quantile(double p)
{
    double low = -9, high = 9;
    for (int i = 0; i < 60; i++) {
        double middle = (low + high) / 2;
        if (0.5 * erfc(-middle / sqrt(2)) < p)
            low = middle;
        else
            high = middle;
    }
    return (low + high) / 2;
}

void ls_speeds_draw(uint32_t spread, uint64_t seed, size_t ranks, uint32_t *slowness)
{
    const double range_of_8 = 2.847; /* expected, of standard normals */
    uint64_t random = seed ^ UINT64_C(0x5eed);
    for (size_t r = 0; r < ranks; r++) { /* expected order statistics, by Blom's approximation */
        double z = normal_quantile(((double)r + 0.625) / ((double)ranks + 0.25)), slow = 1 + z * (double)spread / LS_SPEED_ONE / range_of_8;
        slowness[r] = (uint32_t)lround((slow > 0.1 ? slow : 0.1) * LS_SPEED_ONE);
    }
    for (size_t r = ranks; r > 1; r--) {
        size_t other = (size_t)ls_random_below(&random, r);
        uint32_t keep = slowness[r - 1];
        slowness[r - 1] = slowness[other];
        slowness[other] = keep;
    }
}

/* The scenario's time limits, by communicator. */
static enum ls_code read_patience(const struct simulation *x, struct ls_patience **out, struct ls_error *err)
{
    const struct ls_tables *t = x->out->job.tables;
    *out = x->setup->timeouts ? LS_NEW(x->arena, struct ls_patience, t->comm.count + 1) : NULL;
    for (size_t i = 0; i < x->setup->timeouts; i++) {
        const struct ls_timeout *limit = &x->setup->timeout[i];
        size_t c = 0;
        while (c < t->comm.count && strcmp(ls_tables_name(t, t->comm.at[c].name), limit->comm) != 0)
            c++;
        if (c == t->comm.count) {
            ls_fail(err, LS_EINPUT, limit->at, "the program has no communicator '%.60s'", limit->comm);
            struct ls_str names = { 0 };
            for (size_t k = 0; k < t->comm.count; k++)
                ls_str_printf(&names, "%s%s", k ? ", " : "", ls_tables_name(t, t->comm.at[k].name));
            ls_hint(err, "it has: %s", ls_str_text(&names));
            ls_str_release(&names);
            return LS_EINPUT;
        }
        (*out)[c] = (struct ls_patience){ limit->after_s * LS_PS_PER_S, limit->go_on ? LS_LOST_GO_ON : LS_LOST_RAISE };
    }
    return LS_OK;
}

static enum ls_code run(struct simulation *x, struct ls_error *err)
{
    struct ls_simulation *out = x->out;
    size_t ranks = out->job.ranks;
    uint32_t *slowness = NULL, spread = x->o->spread ? x->o->spread : x->setup->spread * (LS_SPEED_ONE / 100);
    struct ls_patience *patience = NULL;
    out->watchdog_s = x->o->watchdog_s > 0 ? x->o->watchdog_s : x->setup->watchdog_s ? (double)x->setup->watchdog_s : 600;
    out->platform.nodes = (ranks + out->platform.gpus - 1) / out->platform.gpus;
    if (out->platform.nodes > LS_NODES_MAX)
        return ls_fail(err, LS_EINPUT, LS_NOWHERE, "%zu ranks need %zu nodes of '%s', and there are at most %d", ranks, out->platform.nodes,
                       out->platform.name, LS_NODES_MAX);
    if (spread) {
        slowness = LS_NEW(x->arena, uint32_t, ranks);
        ls_speeds_draw(spread, x->o->seed, ranks, slowness);
    }
    classify(x);
    if (x->o->profile && !x->assignment)
        return ls_fail(err, LS_EINPUT, LS_NOWHERE, "a raw program has no modules: a profile says nothing about it");
    if (x->o->profile) {
        enum ls_code known = ls_profile_check(x->o->profile, x->c->plan.model, err);
        if (known != LS_OK)
            return known;
    }
    if (x->assignment)
        price(x);
    measure_memory(x);
    x->track = LS_NEW(x->arena, struct track *, ranks);
    struct ls_cost cost = { .measured = x->o->measured, .profile = profile, .issue = issue, .profile_context = x, .slowness = slowness, .jitter = x->o->jitter ? x->o->jitter : x->setup->jitter * (LS_SPEED_ONE / 100),
                            .seed = x->o->seed };
    const struct ls_system *y = &x->c->system;
    struct ls_sim_options so = { .run = { .level = (enum ls_level)y->level, .kernels = y->kernels, .start = (enum ls_start)y->start_rule },
                                 .network = x->o->network, .fold = x->o->fold, .hooks = { .context = x, .done = done, .host = host } };
    enum ls_code rc = read_patience(x, &patience, err);
    if (rc == LS_OK)
        rc = ls_sim_run(&out->job, &out->platform, &cost, &so, x->arena, &out->run, err);
    if (rc == LS_OK)
        sum_up(x);
    if (rc == LS_OK && !out->run.complete)
        rc = ls_fate_of(&out->job, &out->platform, &cost, &so, patience, (uint64_t)(out->watchdog_s * 1e12), &out->fate, err);
    for (size_t r = 0; r < ranks; r++)
        for (size_t s = 0; x->track[r] && s < TRACKED; s++)
            ls_vec_release(&x->track[r]->busy[s]);
    out->spans = x->span.count;
    out->span = x->span.count ? ls_arena_copy(x->arena, x->span.at, x->span.count * sizeof *x->span.at) : NULL;
    ls_vec_release(&x->span);
    return rc;
}

static unsigned item_bytes_of(const struct ls_plan *p)
{
    for (size_t i = p->units; i-- > 0;) /* the root comes last */
        if (p->unit[i].params) {
            enum ls_dtype d = p->unit[i].param_dtype;
            return (unsigned)ls_dtype_bytes(d != LS_DTYPE_NONE ? d : p->model->param[p->unit[i].param[0]].dtype);
        }
    return 2;
}

static enum ls_code load_platform(const struct ls_scenario *s, const struct ls_simulate_options *o, struct ls_arena *arena,
                                  struct ls_platform *out, struct ls_error *err)
{
    const char *found = o->platform ? ls_scenario_find(o->platform, "platforms", arena) : NULL;
    const char *path = found ? found : o->platform ? o->platform : s->platform; /* not found: the loader says so */
    if (path)
        return ls_platform_load(path, 1, arena, out, err);
    ls_fail(err, LS_EINPUT, (struct ls_loc){ s->path, 0, 0 }, "the scenario names no platform");
    ls_hint(err, "add 'platform: platforms/h100x8.yaml', or give --platform FILE");
    return LS_EINPUT;
}

/* ---- what every replica holds ---- */

/* In DRAW_STEPS steps at most: every distinct sample is compiled by itself. */
enum { DRAW_STEPS = 8 };

static uint64_t draw_range(uint64_t *random, struct ls_range_of r)
{
    uint64_t width = r.most - r.least, steps = width < DRAW_STEPS ? width : DRAW_STEPS;
    return steps ? r.least + width * ls_random_below(random, steps + 1) / steps : r.least;
}

static bool same_sample(const struct ls_sample *a, const struct ls_sample *b)
{
    return a->text == b->text && a->images == b->images && a->videos == b->videos && a->audios == b->audios && memcmp(a->condition, b->condition, sizeof a->condition) == 0 &&
           a->sequences == b->sequences && a->image_patches == b->image_patches && a->video_patches == b->video_patches &&
           a->audio_positions == b->audio_positions;
}

struct drawing {
    struct ls_scenario *s;
    const struct ls_distribution *d;
    LS_VEC(struct ls_sample) sample;
    uint64_t random;
};

static uint32_t draw_sample(struct drawing *w)
{
    const struct ls_distribution *d = w->d;
    if (!d->given)
        return (uint32_t)ls_random_below(&w->random, w->s->batch.samples);
    struct ls_sample x = { .text = draw_range(&w->random, d->text), .sequences = draw_range(&w->random, d->sequences), .at = w->s->batch.at };
    bool media = (double)(ls_random(&w->random) >> 11) * 0x1p-53 >= d->text_only;
    if (media) {
        x.images = draw_range(&w->random, d->images);
        x.videos = draw_range(&w->random, d->videos);
        x.audios = draw_range(&w->random, d->audios);
        x.image_patches = x.images ? draw_range(&w->random, d->image_patches) : 0;
        x.video_patches = x.videos ? draw_range(&w->random, d->video_patches) : 0;
        x.audio_positions = x.audios ? draw_range(&w->random, d->audio_positions) : 0;
    }
    for (size_t i = 0; i < w->sample.count; i++)
        if (same_sample(&w->sample.at[i], &x))
            return (uint32_t)i;
    ls_push(&w->sample, x);
    return (uint32_t)w->sample.count - 1;
}

static bool same_in(const struct ls_batch *b, const struct ls_sample *x, const struct ls_sample *y)
{
    for (size_t u = 0; u < b->uniforms; u++) {
        const char *name = ls_name_text(b->model->names, b->uniform[u]);
        if (strcmp(name, "vision") == 0 && (x->images != y->images || x->videos != y->videos))
            return false;
        if (strcmp(name, "audio") == 0 && x->audios != y->audios)
            return false;
    }
    return true;
}

static bool has_media(const struct ls_sample *s) { return s->images || s->videos || s->audios; }

/* One row: the sample of every replica. `row` counts the rounds that take a batch. */
static void draw_row(struct drawing *w, enum ls_draw draw, size_t row, size_t replicas, size_t shard, uint32_t *out)
{
    const struct ls_batch *b = &w->s->batch;
    enum ls_execution e = draw == LS_DRAW_UNIFORM ? LS_EXEC_RANK_UNIFORM : draw == LS_DRAW_MIXED ? LS_EXEC_ANY : b->execution;
    enum { TRIES = 1000 };
    bool media = false;
    for (size_t x = 0; x < replicas; x++) {
        switch (e) {
        case LS_EXEC_ANY:
        case LS_EXEC_AT_LEAST_ONE:
            out[x] = draw_sample(w);
            break;
        case LS_EXEC_MANIFEST:
            out[x] = x && b->sample_class ? out[0] : draw_sample(w);
            break;
        case LS_EXEC_RANK_UNIFORM:
            out[x] = x ? out[0] : draw_sample(w);
            break;
        case LS_EXEC_NODE_UNIFORM:
            out[x] = x % shard ? out[x - x % shard] : draw_sample(w);
            break;
        case LS_EXEC_MODALITY_UNIFORM:
            out[x] = draw_sample(w);
            for (int i = 0; x && i < TRIES && !same_in(b, &w->sample.at[out[0]], &w->sample.at[out[x]]); i++)
                out[x] = draw_sample(w);
            if (x && !same_in(b, &w->sample.at[out[0]], &w->sample.at[out[x]]))
                out[x] = out[0];
            break;
        case LS_EXEC_TABLE:
            out[x] = b->table[row % b->rows * b->columns + x];
            break;
        }
        media |= has_media(&w->sample.at[out[x]]);
    }
    for (uint32_t i = 0; e == LS_EXEC_AT_LEAST_ONE && !media && i < w->sample.count; i++)
        if (has_media(&w->sample.at[i])) {
            out[0] = i;
            media = true;
        }
}

/* A schedule of any number of microbatches holds `micro` once. */
static void two_microbatches(struct ls_batch *b, struct ls_arena *arena)
{
    b->microbatches = 2;
    if (!b->rounds)
        return;
    enum ls_round_kind *kind = LS_NEW(arena, enum ls_round_kind, b->rounds + 1);
    size_t n = 0;
    for (size_t i = 0; i < b->rounds; i++)
        for (int k = 0; k < (b->schedule[i] == LS_ROUND_MICRO ? 2 : 1); k++)
            kind[n++] = b->schedule[i];
    b->schedule = kind;
    b->rounds = n;
}

static void fix_sizes(struct ls_scenario *s, const struct ls_simulate_options *o, size_t gpus, struct ls_arena *arena)
{
    struct ls_mesh *m = &s->mesh;
    size_t replicas = o->replicas;
    if (m->replicate == LS_SIZE_ANY)
        m->replicate = 2;
    if (replicas && s->batch.execution != LS_EXEC_TABLE)
        m->shard = m->shard == 1 && m->replicate > 1 ? 1 : replicas % m->replicate == 0 ? replicas / m->replicate : replicas;
    if (replicas && m->shard == 1 && m->replicate > 1)
        m->replicate = replicas;
    if (m->shard == LS_SIZE_ANY)
        m->shard = m->replicate > 1 && gpus % m->replicate == 0 ? gpus / m->replicate : gpus;
    if (!s->batch.microbatches)
        two_microbatches(&s->batch, arena);
    s->batch.steps = o->steps ? o->steps : s->batch.execution == LS_EXEC_TABLE && s->batch.steps ? s->batch.steps : 1;
    s->batch.apart = true;
}

/* A table that also says what ranks do by themselves holds more than samples: its letters are the run. */
static bool run_is_listed(const struct simulation *x, const struct ls_scenario *s)
{
    return s->loop.present && s->batch.execution == LS_EXEC_TABLE && x->o->draw == LS_DRAW_CONTRACT;
}

static enum ls_code draw_all(struct simulation *x, struct drawing *w, struct ls_assignment *a, uint32_t *rows, struct ls_error *err)
{
    const struct ls_system *y = &x->c->system;
    size_t replicas = a->size[0] * a->size[1];
    uint32_t *letter = LS_NEW(x->arena, uint32_t, ls_mul_size(a->rounds, replicas));
    uint32_t *node = LS_NEW(x->arena, uint32_t, a->rounds);
    bool listed = y->contract.extra == LS_CONTRACT_TABLE; /* else a compiled batch stands apart */
    (void)err;
    for (size_t i = 0, row = 0; i < a->rounds; i++) {
        enum ls_round_kind kind = x->c->rounds.round[y->driver.node[i].round].kind;
        node[i] = (uint32_t)i;
        bool batch = kind == LS_ROUND_MICRO || kind == LS_ROUND_EVAL;
        for (size_t r = 0; r < replicas; r++)
            letter[i * replicas + r] = listed ? y->contract.table[i * replicas + r]
                                       : batch ? x->c->letters.of_sample[rows[row * replicas + r]]
                                               : ls_batch_still_letter(&x->c->letters);
        row += batch;
    }
    (void)w;
    a->letter = letter;
    a->node = node;
    return LS_OK;
}

/* Rows are drawn before compiling, since samples that are drawn become letters. */
static enum ls_code compile_drawn(struct simulation *x, struct ls_scenario *s, struct drawing *w, struct ls_assignment *a, struct ls_error *err)
{
    size_t replicas = s->mesh.replicate * s->mesh.shard, per_step = s->batch.rounds ? s->batch.rounds : (size_t)s->batch.microbatches + 1;
    size_t most = ls_mul_size(per_step, (size_t)s->batch.steps) + s->loop.afters;
    uint32_t *rows = LS_NEW(x->arena, uint32_t, ls_mul_size(most, replicas));
    if (s->batch.execution == LS_EXEC_TABLE && x->o->draw == LS_DRAW_CONTRACT && s->batch.columns != replicas)
        return ls_fail(err, LS_EINPUT, s->batch.execution_at, "the table has %zu columns, but there are %zu replicas", s->batch.columns, replicas);
    if (run_is_listed(x, s))
        s->batch.apart = false;
    for (size_t i = 0; i < s->batch.samples; i++)
        ls_push(&w->sample, s->batch.sample[i]);
    for (size_t row = 0; row < most; row++)
        draw_row(w, x->o->draw, row, replicas, s->mesh.shard, rows + row * replicas);
    s->batch.sample = ls_arena_copy(x->arena, w->sample.at, w->sample.count * sizeof *w->sample.at);
    s->batch.samples = w->sample.count;
    enum ls_code rc = ls_scenario_compile(s, &x->o->variant, x->o->force, x->out->compiled, err);
    if (rc != LS_OK)
        return rc;
    x->out->refusal = x->out->compiled->refusal;
    if (x->out->refusal.rule)
        return LS_OK;
    a->size[0] = s->mesh.replicate;
    a->size[1] = s->mesh.shard;
    a->rounds = x->c->system.driver.nodes;
    return draw_all(x, w, a, rows, err);
}

static const struct ls_sample *const *samples_by_letter(struct ls_arena *arena, const struct ls_batch *b, const struct ls_letters *l)
{
    const struct ls_sample **sample = LS_NEW(arena, const struct ls_sample *, l->count + 1);
    for (size_t i = b->samples; i-- > 0;)
        sample[l->of_sample[i]] = &b->sample[i];
    for (size_t i = 0; i < l->count; i++)
        sample[i] = sample[l->letter[i].base];
    return sample;
}

enum ls_code ls_simulate(const struct ls_scenario *from, const struct ls_simulate_options *o, struct ls_arena *arena,
                         struct ls_simulation *out, struct ls_error *err)
{
    struct ls_scenario *s = ls_arena_copy(arena, from, sizeof *from);
    struct ls_assignment *a = LS_NEW(arena, struct ls_assignment, 1);
    *out = (struct ls_simulation){ .compiled = LS_NEW(arena, struct ls_compiled, 1) };
    struct simulation x = { .o = o, .setup = &s->timing, .style = s->activations, .c = out->compiled, .arena = arena, .out = out };
    struct drawing w = { .s = s, .d = &s->timing.batches, .random = o->seed };
    s->batch.model = &s->model;
    enum ls_code rc = load_platform(from, o, arena, &out->platform, err);
    if (rc != LS_OK)
        return rc;
    if (from->kind == LS_PLAN_RAW) {
        rc = ls_scenario_compile(s, &o->variant, o->force, out->compiled, err);
        if (rc == LS_OK) { /* a letter is a choice of all branches by all ranks; without branches there is one */
            const struct ls_transducer *t = out->compiled->system.replica;
            a->size[0] = a->size[1] = 1;
            a->rounds = out->compiled->system.driver.nodes;
            uint32_t *letter = LS_NEW(arena, uint32_t, a->rounds + 1), *node = LS_NEW(arena, uint32_t, a->rounds + 1);
            for (uint32_t i = 0; i < a->rounds; i++) {
                node[i] = i;
                letter[i] = (uint32_t)ls_random_below(&w.random, t->letters);
            }
            a->letter = letter;
            a->node = node;
            out->branches = t->letters > 1 ? t->letter_name(t, letter[0]) : NULL;
            rc = ls_system_job(&out->compiled->system, a, arena, &out->job, err);
        }
        if (rc == LS_OK)
            rc = run(&x, err);
        if (rc != LS_OK)
            ls_simulation_release(out);
        return rc;
    }
    fix_sizes(s, o, out->platform.gpus, arena);
    rc = compile_drawn(&x, s, &w, a, err);
    ls_vec_release(&w.sample);
    if (rc == LS_OK && !out->refusal.rule) {
        x.assignment = a;
        x.sample = samples_by_letter(arena, &s->batch, &x.c->letters);
        x.item_bytes = item_bytes_of(&x.c->plan);
        rc = ls_system_job(&x.c->system, a, arena, &out->job, err);
        if (rc == LS_OK)
            rc = run(&x, err);
    }
    if (rc != LS_OK)
        ls_simulation_release(out);
    return rc;
}

enum ls_code ls_simulate_witness(const struct ls_scenario *s, const struct ls_assessment *a, const struct ls_simulate_options *o,
                                 struct ls_arena *arena, struct ls_simulation *out, struct ls_error *err)
{
    *out = (struct ls_simulation){ 0 };
    if (!a->check.witness)
        return ls_fail(err, LS_EINPUT, LS_NOWHERE, "'%s' has no witness: its verdict is %s", s->name, ls_verdict_name(a->verdict));
    struct simulation x = { .o = o, .setup = &s->timing, .style = s->activations, .c = &a->compiled, .arena = arena, .out = out };
    enum ls_code rc = load_platform(s, o, arena, &out->platform, err);
    if (rc != LS_OK)
        return rc;
    out->job = a->check.witness->job;
    if (s->kind != LS_PLAN_RAW) {
        x.assignment = &a->check.witness->assignment;
        x.sample = samples_by_letter(arena, &s->batch, &x.c->letters);
        x.item_bytes = item_bytes_of(&x.c->plan);
    }
    return run(&x, err);
}

void ls_simulation_release(struct ls_simulation *x)
{
    if (x->compiled)
        ls_compiled_release(x->compiled);
    x->compiled = NULL;
}
