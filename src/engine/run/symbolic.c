/* Mathematics that counts: known gradients in, expected sums out. */
#include "engine/run/internal.h"

#include "base/hash.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Every share that the programs make, by parameter and step; made when the first rank opens. */
struct param_shares { LS_VEC(struct ls_share) at; };
struct ls_symbolic_shares { size_t users, params; struct param_shares *param; size_t most; LS_VEC(bool) taken; /* by step: by some rank */ };

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
                if (kernel->what == LS_KERNEL_ACCUMULATE)
                    see(context, kernel->statement, (struct ls_share){ rank, (uint32_t)i, o->microbatch, step, 1 });
            }
            while (steps && (opt || out) && steps->taken.count <= step)
                ls_push(&steps->taken, false);
            if (steps && opt)
                steps->taken.at[step] = true;
            step += opt || out;
        }
}

static void collect(void *context, uint32_t param, struct ls_share share)
{
    struct ls_symbolic_shares *x = context;
    struct param_shares *p = &x->param[param];
    for (size_t i = p->at.count; i-- > 0 && p->at.at[i].rank == share.rank;)
        if (p->at.at[i].segment == share.segment && p->at.at[i].microbatch == share.microbatch && p->at.at[i].step == share.step) {
            p->at.at[i].times++;
            return;
        }
    ls_push(&p->at, share);
    x->most = p->at.count > x->most ? p->at.count : x->most;
}

static struct ls_symbolic_shares *shares_make(const struct ls_engine_setup *s)
{
    struct ls_symbolic_shares *x = calloc(1, sizeof *x);
    struct param_shares *p = calloc(s->params + 1, sizeof *p);
    if (!x || !p)
        ls_out_of_memory(sizeof *x);
    *x = (struct ls_symbolic_shares){ .params = s->params, .param = p };
    for (uint32_t r = 0; r < s->job->ranks; r++)
        each_share(s, r, collect, x, x);
    return x;
}

static void shares_free(struct ls_symbolic_shares *x)
{
    for (size_t i = 0; i < x->params; i++)
        ls_vec_release(&x->param[i].at);
    ls_vec_release(&x->taken);
    free(x->param);
    free(x);
}

size_t ls_job_shares(const struct ls_engine_setup *s, uint32_t param, uint32_t step, struct ls_arena *arena, struct ls_share **out)
{
    struct ls_symbolic_shares *x = shares_make(s);
    size_t n = 0;
    *out = LS_NEW(arena, struct ls_share, x->param[param].at.count + 1);
    for (size_t i = 0; i < x->param[param].at.count; i++)
        if (x->param[param].at.at[i].step == step)
            (*out)[n++] = x->param[param].at.at[i];
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
        return s->rank == x->c->share.rank && s->segment == x->c->share.segment && s->microbatch == x->c->share.microbatch &&
               s->step == x->c->share.step;
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

struct fill { struct ls_tensor to; const struct symbolic *x; uint32_t param; uint64_t first, count; struct ls_share share; };

static void fill_param(void *args, struct ls_stream *s)
{
    struct fill *f = args;
    (void)s;
    for (uint64_t i = 0; i < f->count; i++)
        ls_element_set((char *)f->to.of->at + f->to.offset_bytes, f->to.dtype, i, param_value(f->param, f->first + i));
}

static void add_share(void *args, struct ls_stream *s)
{
    struct fill *f = args;
    void *at = (char *)f->to.of->at + f->to.offset_bytes;
    (void)s;
    for (uint64_t i = 0; i < f->count; i++)
        ls_element_set(at, f->to.dtype, i, ls_element_get(at, f->to.dtype, i) + share_value(f->x, f->param, &f->share, i));
}

struct check { struct ls_tensor of; struct symbolic *x; uint32_t param; uint64_t count; };

static void check_full(void *args, struct ls_stream *s)
{
    struct check *c = args;
    const void *at = (const char *)c->of.of->at + c->of.offset_bytes;
    (void)s;
    for (uint64_t i = 0; i < c->of.elements; i++) {
        double want = i < c->count ? param_value(c->param, i) : 0.0;
        c->x->parameters++;
        c->x->corrupted += !(ls_element_get(at, c->of.dtype, i) == want);
    }
}

struct compare { struct ls_tensor reduced, partial; struct symbolic *x; uint32_t param, step; uint64_t first, count; bool nothing, own_scale; };

static double value_at(const struct ls_tensor *t, uint64_t i)
{
    return t->of && i < t->elements ? ls_element_get((const char *)t->of->at + t->offset_bytes, t->dtype, i) : 0.0;
}

static void compare_gradient(void *args, struct ls_stream *stream)
{
    struct compare *c = args;
    struct symbolic *x = c->x;
    const struct param_shares *shares = &x->c->shares->param[c->param];
    double tolerance = param_is_narrow(&x->setup->param[c->param]) ? 0x1.8p-7 : 0x1p-18; /* of two bytes: several roundings; one share of 24 is more */
    (void)stream;
    for (uint64_t i = 0; i < c->count; i++) {
        double want = 0.0, found = c->nothing ? 0.0 : value_at(&c->reduced, i) + value_at(&c->partial, i);
        found /= c->own_scale ? x->rank + 2.0 : 1.0; /* as check/gradient.h */
        for (size_t k = 0; k < shares->at.count; k++)
            if (shares->at.at[k].step == c->step)
                want += (double)shares->at.at[k].times * share_value(x, c->param, &shares->at.at[k], c->first + i);
        if (x->setup->mean)
            want /= (double)x->setup->job->ranks;
        if (x->c->alone && i == 0 && c->param == x->c->param && x->rank == x->c->rank && c->step == x->c->step) {
            x->noted = true;
            x->found = found;
        }
        x->gradients++;
        if (fabs(found - want) <= tolerance * want || x->problem.present)
            continue;
        x->problem = (struct ls_symbolic_problem){ true, c->param, x->rank, c->step, c->first + i, found, want };
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
    uint64_t row = x->setup->param[param].row;
    struct fill f = { shard, x, param, first_row * row, rows * row, { 0 } };
    (void)err;
    if (f.count && shard.of->at)
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
                struct check c = { full, x, p, x->setup->param[p].rows * x->setup->param[p].row };
                if (full.of && full.of->at)
                    d->ops->launch(d, call->stream, check_full, &c, sizeof c, &full.of, 1, LS_NO_TAG);
            }
        }
    }
}

static void check_step(struct symbolic *x, const struct ls_math_call *call)
{
    const struct ls_tables *t = x->setup->job->tables;
    struct ls_device *d = ls_rank_device(call->rank);
    const struct ls_payload *p = &t->payload.at[call->op->payload];
    bool left_out = call->kernel->what == LS_KERNEL_LEFT_OUT;
    for (size_t i = 0; i < p->count && (!left_out || x->c->shares->taken.at[x->step]); i++) {
        uint32_t q = 0;
        while (q < x->setup->params && (x->setup->param[q].name != p->items[i] || !x->setup->param[q].rows))
            q++;
        if (q == x->setup->params)
            continue;
        const struct ls_engine_param *e = &x->setup->param[q];
        uint64_t per = ls_param_padded(x->setup, q) / e->row, ranks = e->unit == LS_NO_ID ? 1 : x->setup->shard;
        uint64_t first = x->rank % ranks * per, rows = first >= e->rows ? 0 : e->rows - first < per ? e->rows - first : per;
        struct compare c = { ls_rank_shard_grad(call->rank, q), ls_rank_partial(call->rank, q), x, q, x->step, first * e->row, rows * e->row,
                             left_out || ls_op_gives_nothing(call->op),
                             call->op->symbol != LS_NO_ID };
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
        struct fill f = { .x = x, .param = call->kernel->statement, .share = { x->rank, x->segment, call->op->microbatch, x->step, 1 } };
        enum ls_code rc = ls_rank_grad(call->rank, f.param, &f.to, err);
        if (rc != LS_OK)
            return rc;
        f.count = x->setup->param[f.param].rows * x->setup->param[f.param].row;
        if (f.to.of->at)
            d->ops->launch(d, call->stream, add_share, &f, sizeof f, &f.to.of, 1, LS_NO_TAG);
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
    .issue = symbolic_issue, .scalar = symbolic_scalar, .give = symbolic_give, .get = symbolic_get,
};
