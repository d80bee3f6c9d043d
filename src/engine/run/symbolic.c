/* Mathematics that counts: known gradients in, expected sums out. */
#include "engine/run/internal.h"

#include "base/hash.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Every share that the programs make, by part of a parameter and step, and who has taken which step; made when the first rank opens. */
struct step_shares { LS_VEC(struct ls_share) at; };
struct part_shares { LS_VEC(struct step_shares) step; };
struct ls_symbolic_shares {
    size_t users, parts;
    size_t *first;               /* [params] of its parts */
    struct part_shares *part;
    size_t most;                 /* of one part in one step: what a gradient may sum */
    LS_VEC(bool) taken;          /* [steps][ranks] */
};

struct symbolic {
    struct ls_math m;            /* first */
    const struct ls_engine_setup *setup;
    struct ls_symbolic *c;
    struct ls_device *device;
    uint32_t rank, step, segment;
    size_t gradients, parameters, corrupted;
    struct ls_symbolic_problem problem;
    bool noted;
    double found;
};

/* Whose samples a gradient is of: those of the rank, or of its group (op.sources). */
struct sources { const uint32_t *rank; size_t count; };

static struct sources sources_of(const struct ls_job *job, const struct ls_op *o, const uint32_t *rank)
{
    if (o->sources == LS_NO_COMM)
        return (struct sources){ rank, 1 };
    const struct ls_groups *g = &job->comm[o->sources];
    uint32_t at = g->group[*rank];
    return (struct sources){ &g->rank[g->first[at]], g->first[at + 1] - g->first[at] };
}

static void each_share(const struct ls_engine_setup *s, uint32_t rank,
                       void (*see)(void *context, uint32_t param, struct ls_share share), void *context, struct ls_symbolic_shares *steps)
{
    const struct ls_tables *t = s->job->tables;
    uint32_t step = 0;
    for (size_t i = 0; i < s->job->rank[rank].count; i++)
        for (size_t k = 0; k < s->job->rank[rank].segment[i]->count; k++) {
            const struct ls_op *o = &s->job->rank[rank].segment[i]->op[k];
            if (o->kind != LS_OP_COMPUTE)
                continue;
            bool opt = false, out = false;
            for (uint32_t n = o->kernel; n < o->kernel + o->kernels && !ls_op_gives_nothing(o); n++) {
                const struct ls_kernel *kernel = &t->kernel.at[n];
                opt |= kernel->what == LS_KERNEL_OPTIMIZER;
                out |= kernel->what == LS_KERNEL_LEFT_OUT;
                struct sources of = sources_of(s->job, o, &rank);
                for (size_t m = 0; m < of.count && kernel->what == LS_KERNEL_ACCUMULATE; m++)
                    see(context, kernel->statement, (struct ls_share){ of.rank[m], (uint32_t)i, o->microbatch, step,
                                                                       rank % s->param[kernel->statement].parts, 1 });
            }
            while (steps && (opt || out) && steps->taken.count < (step + 1) * s->job->ranks)
                ls_push(&steps->taken, false);
            if (steps && opt)
                steps->taken.at[step * s->job->ranks + rank] = true;
            step += opt || out;
        }
}

static bool same_share(const struct ls_share *a, const struct ls_share *b)
{
    return a->rank == b->rank && a->segment == b->segment && a->microbatch == b->microbatch && a->step == b->step && a->part == b->part;
}

static void collect(void *context, uint32_t param, struct ls_share share)
{
    struct ls_symbolic_shares *x = context;
    struct part_shares *p = &x->part[x->first[param] + share.part];
    const bool grouped = x->first[param + 1] - x->first[param] > 1; /* else equal shares come in a row */
    while (p->step.count <= share.step)
        ls_push(&p->step, (struct step_shares){ 0 });
    struct step_shares *of = &p->step.at[share.step];
    for (size_t i = of->at.count; i-- > 0 && (grouped || of->at.at[i].rank == share.rank);)
        if (same_share(&of->at.at[i], &share)) {
            of->at.at[i].times++;
            return;
        }
    ls_push(&of->at, share);
    x->most = of->at.count > x->most ? of->at.count : x->most;
}

static struct ls_symbolic_shares *shares_make(const struct ls_engine_setup *s)
{
    struct ls_symbolic_shares *x = calloc(1, sizeof *x);
    size_t *first = calloc(s->params + 1, sizeof *first);
    for (size_t i = 0; first && i < s->params; i++)
        first[i + 1] = first[i] + s->param[i].parts;
    struct part_shares *p = first ? calloc(first[s->params] + 1, sizeof *p) : NULL;
    if (!x || !p)
        ls_out_of_memory(sizeof *x);
    *x = (struct ls_symbolic_shares){ .parts = first[s->params], .first = first, .part = p };
    for (uint32_t r = 0; r < s->job->ranks; r++)
        each_share(s, r, collect, x, x);
    return x;
}

static void shares_free(struct ls_symbolic_shares *x)
{
    for (size_t i = 0; i < x->parts; i++) {
        for (size_t k = 0; k < x->part[i].step.count; k++)
            ls_vec_release(&x->part[i].step.at[k].at);
        ls_vec_release(&x->part[i].step);
    }
    ls_vec_release(&x->taken);
    free(x->part);
    free(x->first);
    free(x);
}

static struct step_shares shares_of(const struct ls_symbolic_shares *x, const struct ls_engine_setup *s, uint32_t param, uint32_t rank, uint32_t step)
{
    const struct part_shares *p = &x->part[x->first[param] + rank % s->param[param].parts];
    return step < p->step.count ? p->step.at[step] : (struct step_shares){ 0 };
}

size_t ls_job_shares(const struct ls_engine_setup *s, uint32_t param, uint32_t rank, uint32_t step, struct ls_arena *arena, struct ls_share **out)
{
    struct ls_symbolic_shares *x = shares_make(s);
    struct step_shares p = shares_of(x, s, param, rank, step);
    size_t n = p.at.count;
    *out = LS_NEW(arena, struct ls_share, n + 1);
    for (size_t i = 0; i < n; i++)
        (*out)[i] = p.at.at[i];
    shares_free(x);
    return n;
}

static bool is_narrow(enum ls_dtype d) { return d == LS_DTYPE_BF16 || d == LS_DTYPE_F16; }

static bool param_is_narrow(const struct ls_engine_param *p)
{
    return is_narrow(p->grad) || is_narrow(p->dtype) || is_narrow(p->compute);
}

/* What a share adds to one element. Sums stay where the narrowest dtype tells a missing share from rounding. */
static double share_value(const struct symbolic *x, uint32_t param, const struct ls_share *s, uint64_t element)
{
    if (x->c->alone)
        return same_share(s, &x->c->share);
    uint64_t h = ls_hash_mix(ls_hash_mix(ls_hash_mix(s->rank, (uint64_t)s->segment << 32 | s->microbatch), ls_hash_mix(s->step, param)), element);
    h = ls_hash_mix(h, x->setup->seed) >> 7;
    if (!param_is_narrow(&x->setup->param[param]))
        return (double)(1 + h % 1023);
    size_t sparse = x->c->shares->most / 24;
    return sparse && (h >> 8) % (sparse + 1) ? 0.0 : (double)(1 + (h & 1));
}

static double param_value(uint32_t param, uint64_t element) /* exact in every floating dtype of two bytes */
{
    return (double)(ls_hash_mix(param + 1u, element) % 127) - 63.0;
}

/* Element i as the parameter counts; false: padding. */
static bool element_of(const struct ls_param_cut *c, uint64_t i, uint64_t *element)
{
    uint64_t block = i / c->run, at = i % c->run;
    *element = c->first + block * c->block + at;
    return at < c->valid;
}

struct fill { struct ls_tensor to; const struct symbolic *x; uint32_t param; struct ls_param_cut cut; struct ls_share share; };

static void fill_param(void *args, struct ls_stream *s)
{
    struct fill *f = args;
    uint64_t e;
    (void)s;
    for (uint64_t i = 0; i < f->to.elements; i++)
        if (element_of(&f->cut, i, &e))
            ls_element_set((char *)f->to.of->at + f->to.offset_bytes, f->to.dtype, i, param_value(f->param, e));
}

static void add_share(void *args, struct ls_stream *s)
{
    struct fill *f = args;
    void *at = (char *)f->to.of->at + f->to.offset_bytes;
    uint64_t e;
    (void)s;
    for (uint64_t i = 0; i < f->to.elements; i++)
        if (element_of(&f->cut, i, &e))
            ls_element_set(at, f->to.dtype, i, ls_element_get(at, f->to.dtype, i) + share_value(f->x, f->param, &f->share, e));
}

struct scaling { struct ls_tensor of; double factor; };

static void scale_gradient(void *args, struct ls_stream *s)
{
    struct scaling *f = args;
    void *at = (char *)f->of.of->at + f->of.offset_bytes;
    (void)s;
    for (uint64_t i = 0; i < f->of.elements; i++)
        ls_element_set(at, f->of.dtype, i, ls_element_get(at, f->of.dtype, i) * f->factor);
}

struct check { struct ls_tensor of; struct symbolic *x; uint32_t param; struct ls_param_cut cut; };

static void check_full(void *args, struct ls_stream *s)
{
    struct check *c = args;
    const void *at = (const char *)c->of.of->at + c->of.offset_bytes;
    (void)s;
    for (uint64_t i = 0; i < c->of.elements; i++) {
        uint64_t e;
        double want = element_of(&c->cut, i, &e) ? param_value(c->param, e) : 0.0;
        c->x->parameters++;
        c->x->corrupted += !(ls_element_get(at, c->of.dtype, i) == want);
    }
}

struct compare { struct ls_tensor reduced, partial; struct symbolic *x; uint32_t param, step; struct ls_param_cut cut; uint64_t elements;
                 bool nothing, own_scale; };

static double value_at(const struct ls_tensor *t, uint64_t i)
{
    return t->of && i < t->elements ? ls_element_get((const char *)t->of->at + t->offset_bytes, t->dtype, i) : 0.0;
}

static void compare_gradient(void *args, struct ls_stream *stream)
{
    struct compare *c = args;
    struct symbolic *x = c->x;
    const struct step_shares shares = shares_of(x->c->shares, x->setup, c->param, x->rank, c->step);
    double tolerance = param_is_narrow(&x->setup->param[c->param]) ? 0x1.8p-7 : 0x1p-18; /* of two bytes: several roundings; one share of 24 is more */
    (void)stream;
    for (uint64_t i = 0; i < c->elements; i++) {
        uint64_t e;
        if (!element_of(&c->cut, i, &e))
            continue;
        double want = 0.0, found = c->nothing ? 0.0 : value_at(&c->reduced, i) + value_at(&c->partial, i);
        found /= c->own_scale ? x->rank + 2.0 : 1.0; /* as check/gradient.h */
        for (size_t k = 0; k < shares.at.count; k++)
            want += (double)shares.at.at[k].times * share_value(x, c->param, &shares.at.at[k], e);
        if (x->setup->mean)
            want /= (double)x->setup->job->ranks;
        if (x->c->alone && i == 0 && c->param == x->c->param && x->rank == x->c->rank && c->step == x->c->step) {
            x->noted = true;
            x->found = found;
        }
        x->gradients++;
        if (fabs(found - want) <= tolerance * want || x->problem.present)
            continue;
        x->problem = (struct ls_symbolic_problem){ true, c->param, x->rank, c->step, e, found, want };
    }
}

static enum ls_code symbolic_open(struct ls_math **out, const struct ls_engine_setup *setup, uint32_t rank, struct ls_device *device,
                                  void *context, struct ls_error *err)
{
    struct symbolic *x;
    if (!device->ops->host_memory)
        return ls_fail(err, LS_EBACKEND, LS_NOWHERE, "symbolic mathematics needs memory that the host can read");
    x = calloc(1, sizeof *x);
    if (!x)
        ls_out_of_memory(sizeof *x);
    *x = (struct symbolic){ .m = { &ls_math_symbolic }, .setup = setup, .c = context, .device = device, .rank = rank };
    if (!x->c->shares)
        x->c->shares = shares_make(setup);
    x->c->shares->users++;
    *out = &x->m;
    return LS_OK;
}

static void symbolic_close(struct ls_math *m)
{
    struct symbolic *x = (struct symbolic *)m;
    struct ls_symbolic *c = x->c;
    c->gradients += x->gradients;
    c->parameters += x->parameters;
    c->corrupted += x->corrupted;
    if (x->problem.present && (!c->problem.present || x->rank < c->problem.rank))
        c->problem = x->problem;
    if (x->noted) {
        c->noted = true;
        c->found = x->found;
    }
    if (--c->shares->users == 0) {
        shares_free(c->shares);
        c->shares = NULL;
    }
    free(x);
}

static enum ls_code symbolic_init(struct ls_math *m, struct ls_stream *s, uint32_t param, struct ls_tensor shard, uint64_t first_row,
                                  uint64_t rows, struct ls_error *err)
{
    struct symbolic *x = (struct symbolic *)m;
    struct fill f = { shard, x, param, ls_param_cut(x->setup, param, x->rank, false), { 0 } };
    (void)first_row, (void)rows;
    (void)err;
    if (f.cut.valid && shard.of->at)
        x->device->ops->launch(x->device, s, fill_param, &f, sizeof f, &shard.of, 1, LS_NO_TAG);
    return LS_OK;
}

static enum ls_code symbolic_round(struct ls_math *m, struct ls_rank *rank, uint32_t segment, struct ls_error *err)
{
    (void)rank;
    (void)err;
    ((struct symbolic *)m)->segment = segment;
    return LS_OK;
}

/* Parameters that an op reads: those of the units whose unsharded buffers it lists. */
static void check_parameters(struct symbolic *x, const struct ls_math_call *call)
{
    const struct ls_tables *t = x->setup->job->tables;
    struct ls_device *d = ls_rank_device(call->rank);
    for (uint32_t k = call->op->range; k < call->op->range + call->op->ranges; k++) {
        const struct ls_buffer *b = &t->buffer.at[t->range.at[k].buffer];
        const char *name = strchr(ls_tables_name(t, b->name), ' '); /* "full UNIT" */
        for (size_t u = 0; u < x->setup->units && name && b->category == LS_CATEGORY_UNSHARDED; u++) {
            if (strcmp(name + 1, ls_tables_name(t, x->setup->unit[u].name)) != 0)
                continue;
            for (size_t i = 0; i < x->setup->unit[u].params; i++) {
                uint32_t p = x->setup->unit[u].param[i];
                struct ls_tensor full = ls_rank_full(call->rank, p);
                struct check c = { full, x, p, ls_param_cut(x->setup, p, x->rank, true) };
                if (full.of && full.of->at)
                    d->ops->launch(d, call->stream, check_full, &c, sizeof c, &full.of, 1, LS_NO_TAG);
            }
        }
    }
}

/* Has any rank with the same part of the parameter taken this step? */
static bool is_taken(const struct symbolic *x, uint32_t param, uint32_t step)
{
    const size_t ranks = x->setup->job->ranks, parts = x->setup->param[param].parts;
    for (size_t r = x->rank % parts; r < ranks; r += parts)
        if (x->c->shares->taken.at[step * ranks + r])
            return true;
    return false;
}

static void check_step(struct symbolic *x, const struct ls_math_call *call)
{
    const struct ls_tables *t = x->setup->job->tables;
    struct ls_device *d = ls_rank_device(call->rank);
    const struct ls_payload *p = &t->payload.at[call->op->payload];
    bool left_out = call->kernel->what == LS_KERNEL_LEFT_OUT;
    for (size_t i = 0; i < p->count; i++) {
        uint32_t q = 0;
        while (q < x->setup->params && (x->setup->param[q].name != p->items[i] || !x->setup->param[q].rows))
            q++;
        if (q == x->setup->params || (left_out && !is_taken(x, q, x->step)))
            continue;
        struct compare c = { ls_rank_shard_grad(call->rank, q), ls_rank_partial(call->rank, q), x, q, x->step,
                             ls_param_cut(x->setup, q, x->rank, false), ls_param_padded(x->setup, q),
                             left_out || ls_op_gives_nothing(call->op), call->op->symbol != LS_NO_ID };
        struct ls_storage *uses[2] = { c.reduced.of, c.partial.of };
        if (ls_rank_shard(call->rank, q).of->at)
            d->ops->launch(d, call->stream, compare_gradient, &c, sizeof c, uses, 2, LS_NO_TAG);
    }
    x->step += !ls_op_gives_nothing(call->op); /* it stands before the step of what the optimizer does hold */
}

static enum ls_code symbolic_issue(struct ls_math *m, const struct ls_math_call *call, struct ls_error *err)
{
    struct symbolic *x = (struct symbolic *)m;
    struct ls_device *d = ls_rank_device(call->rank);
    if (call->kernel == &x->setup->job->tables->kernel.at[call->op->kernel])
        check_parameters(x, call);
    switch ((enum ls_kernel_what)call->kernel->what) {
    case LS_KERNEL_ACCUMULATE: {
        struct fill f = { .x = x, .param = call->kernel->statement, .cut = ls_param_cut(x->setup, call->kernel->statement, x->rank, true) };
        struct sources of = sources_of(x->setup->job, call->op, &x->rank);
        enum ls_code rc = ls_rank_grad(call->rank, f.param, &f.to, err);
        if (rc != LS_OK)
            return rc;
        for (size_t k = 0; k < of.count && f.to.of->at; k++) {
            f.share = (struct ls_share){ of.rank[k], x->segment, call->op->microbatch, x->step, x->rank % x->setup->param[f.param].parts, 1 };
            d->ops->launch(d, call->stream, add_share, &f, sizeof f, &f.to.of, 1, LS_NO_TAG);
        }
        return LS_OK;
    }
    case LS_KERNEL_OPTIMIZER:
    case LS_KERNEL_LEFT_OUT:
        check_step(x, call);
        return LS_OK;
    case LS_KERNEL_FORWARD:
    case LS_KERNEL_BACKWARD:
    case LS_KERNEL_RECOMPUTE:
    case LS_KERNEL_LOSS:
    case LS_KERNEL_LOSS_BACKWARD:
        break;
    }
    return LS_OK;
}

static enum ls_code symbolic_scale(struct ls_math *m, struct ls_stream *s, struct ls_tensor gradient, struct ls_ratio factor, struct ls_error *err)
{
    struct ls_device *d = ((struct symbolic *)m)->device;
    struct scaling f = { gradient, (double)factor.num / (factor.den ? factor.den : 1) };
    (void)err;
    if (gradient.of->at)
        d->ops->launch(d, s, scale_gradient, &f, sizeof f, &gradient.of, 1, LS_NO_TAG);
    return LS_OK;
}

static enum ls_code symbolic_scalar(struct ls_math *m, struct ls_rank *rank, struct ls_stream *s, const struct ls_op *op, bool result,
                                    struct ls_tensor value, struct ls_error *err)
{
    struct ls_move zero = { .to = value };
    (void)m;
    (void)op;
    (void)err;
    if (!result)
        ls_rank_device(rank)->ops->move(ls_rank_device(rank), s, &zero, 1, LS_NO_TAG);
    return LS_OK;
}

/* What ranks add up to, over their processes. */
struct sums { size_t gradients, parameters, corrupted; struct ls_symbolic_problem problem; double found; bool noted; };

static void symbolic_give(const struct ls_engine_setup *setup, void *context, uint32_t first, uint32_t ranks, struct ls_str *out)
{
    const struct ls_symbolic *c = context;
    struct sums s;
    (void)setup, (void)first, (void)ranks;
    memset(&s, 0, sizeof s);
    s.gradients = c->gradients, s.parameters = c->parameters, s.corrupted = c->corrupted;
    s.problem = c->problem, s.noted = c->noted, s.found = c->found;
    ls_str_addn(out, (const char *)&s, sizeof s);
}

static void symbolic_get(const struct ls_engine_setup *setup, void *context, uint32_t first, uint32_t ranks, const void *bytes, size_t count)
{
    struct ls_symbolic *c = context;
    struct sums s;
    (void)setup, (void)first, (void)ranks;
    assert(count == sizeof s);
    memcpy(&s, bytes, sizeof s);
    c->gradients += s.gradients;
    c->parameters += s.parameters;
    c->corrupted += s.corrupted;
    if (s.problem.present && (!c->problem.present || s.problem.rank < c->problem.rank))
        c->problem = s.problem;
    if (s.noted) {
        c->noted = true;
        c->found = s.found;
    }
}

const struct ls_math_ops ls_math_symbolic = {
    .name = "symbolic", .open = symbolic_open, .close = symbolic_close, .init = symbolic_init, .round = symbolic_round,
    .issue = symbolic_issue, .scale = symbolic_scale, .scalar = symbolic_scalar, .give = symbolic_give, .get = symbolic_get,
};
