#include "sim/simulate.h"

#include "base/hash.h"
#include "sim/wide.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Everything about one run that the parts below share. */
struct priced { const struct ls_op *first; size_t count; struct ls_round_work work; uint64_t *ps; const struct ls_segment *segment; };
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
    struct ls_track **track;                   /* [ranks] */
    LS_VEC(struct ls_sim_span) span;
    unsigned item_bytes;
    uint64_t tokens; double expert_tokens;     /* with expert groups: per rank, in a message; of which a rank computes its share */
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

/* Tokens per rank and microbatch of the step, mean and most; the same assumption for every layer and microbatch. */
static void routed_tokens(const struct simulation *x, double *mean, uint64_t *most)
{
    const size_t replicas = x->assignment->size[0] * x->assignment->size[1];
    double sum = 0, count = 0;
    *most = 0;
    for (size_t i = 0; i < x->assignment->rounds; i++) {
        const uint32_t round = x->c->system.driver.node[x->assignment->node[i]].round;
        for (size_t r = 0; r < replicas && x->c->rounds.round[round].kind == LS_ROUND_MICRO; r++) {
            const uint32_t letter = x->assignment->letter[i * replicas + r];
            const uint64_t text = ls_tokens_of(x->c->plan.model, x->sample[letter], &x->c->letters.letter[letter]).text;
            *most = text > *most ? text : *most;
            sum += (double)text, count++;
        }
    }
    *mean = count > 0 ? sum / count : 0;
}

/* Routing is taken to be balanced: every rank sends and receives its tokens times top_k, the busiest routing_skew as much. The torch
 * dispatcher gathers as many rows from every rank as the one with the most has. */
static void expect_tokens(struct simulation *x)
{
    const struct ls_expert_plan *experts = &x->c->plan.experts;
    double mean;
    uint64_t most;
    if (experts->ep <= 1)
        return;
    routed_tokens(x, &mean, &most);
    x->expert_tokens = mean * x->setup->routing_skew;
    x->tokens = experts->dispatcher == LS_DISPATCH_TORCH || experts->agrees_tokens ? most : (uint64_t)(x->expert_tokens + 0.5);
}

/* One price per distinct segment; a segment belongs to one letter. */
static void price(struct simulation *x)
{
    const struct ls_job *job = &x->out->job;
    size_t roles = x->c->system.replica->roles, replicas = x->assignment->size[0] * x->assignment->size[1];
    struct ls_names *seen = ls_names_open();
    LS_VEC(struct priced) all = { 0 };
    const struct ls_work_options wo = { .style = x->style, .selective = x->setup->selective, .item_bytes = x->item_bytes,
                                        .expert_tokens = x->expert_tokens, .outputs_held = x->setup->logits_held };
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

static struct ls_track *track_of(struct simulation *x, uint32_t rank)
{
    if (!x->track[rank])
        x->track[rank] = ls_track_open(x->out->job.tables->event.count, x->arena);
    return x->track[rank];
}

static void done(void *context, const struct ls_sim_span *s)
{
    struct simulation *x = context;
    bool collective = ls_op_uses_comm(s->op);
    if (collective && (!x->out->longest.op || s->start_ps - s->ready_ps > x->out->longest.start_ps - x->out->longest.ready_ps))
        x->out->longest = *s;
    if (x->o->trace && !ls_op_is_host(s->op))
        ls_push(&x->span, *s);
    ls_track_note(track_of(x, s->at.rank), s);
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
        struct ls_track *t = x->track[out->run.class_of[r]];
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

static void host(void *context, const struct ls_sim_span *s)
{
    struct simulation *x = context;
    struct ls_sim_class *k = &x->out->rank_class[x->out->class_of[s->at.rank]];
    if (x->o->trace)
        ls_push(&x->span, *s);
    /* The last thing that the host is known to have reached before the peak. */
    if (k->first == s->at.rank && (s->at.segment < k->memory.peak_segment ||
                                   (s->at.segment == k->memory.peak_segment && s->at.op <= k->memory.peak_op)))
        k->peak_ps = s->end_ps;
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
    if (x->assignment) {
        expect_tokens(x);
        price(x);
    }
    measure_memory(x);
    x->track = LS_NEW(x->arena, struct ls_track *, ranks);
    struct ls_cost cost = { .measured = x->o->measured, .tokens = x->tokens, .profile = profile, .issue = issue, .profile_context = x, .slowness = slowness, .jitter = x->o->jitter ? x->o->jitter : x->setup->jitter * (LS_SPEED_ONE / 100),
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
        if (x->track[r])
            ls_track_release(x->track[r]);
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
            uint64_t random = o->seed;
            uint32_t *letter = LS_NEW(arena, uint32_t, a->rounds + 1), *node = LS_NEW(arena, uint32_t, a->rounds + 1);
            for (uint32_t i = 0; i < a->rounds; i++) {
                node[i] = i;
                letter[i] = (uint32_t)ls_random_below(&random, t->letters);
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
    rc = ls_draw_batches(s, o, out->platform.gpus, arena, out->compiled, a, err);
    out->refusal = out->compiled->refusal;
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
