/* src/engine/run/math.h -- what computes: the table that a model implements, and what it may ask of a rank.
 *
 * Everything is called by the rank's host thread, in program order, and only appends work to streams (device->ops->launch):
 * memory is taken and given back here, so that peaks are the same in every schedule, and pointers bound here stay right although
 * the stream runs later. The interpreter owns parameters and their gradients; a model owns what lies between (values by
 * (instance, output), saved tensors), and takes it from the device under ACTIVATION and TEMPORARY.
 *
 *   kernel        meaning                                         what the model does
 *   FORWARD       statement id, inputs = links                    makes the values (instance, 0 ..), keeps what backward needs
 *   RECOMPUTE     the same again with the same instance number    may have dropped what it kept in the first run
 *   LOSS          links = the values the loss uses                the loss, and what its backward needs
 *   LOSS_BACKWARD                                                 seeds the gradients of the loss' inputs
 *   BACKWARD      instance of the forward execution               gradients of its inputs and of its parameters
 *   ACCUMULATE    statement = parameter                           adds the parameter's gradient to ls_rank_grad()
 *   OPTIMIZER     payload = the parameters that train             updates ls_rank_shard() from ls_rank_shard_grad()
 *   LEFT_OUT      payload = the parameters that train             nothing: this rank leaves its step out
 *
 * A round is one segment of the rank's program: a microbatch, a step end, an evaluation. Values do not outlive their round. */
#ifndef LS_ENGINE_RUN_MATH_H
#define LS_ENGINE_RUN_MATH_H

#include "base/str.h"
#include "engine/device/device.h"
#include "ir/program.h"

struct ls_rank;
struct ls_math;

/* A parameter as the engine holds it: `parts` equal parts, of which a rank has one (rank % parts says which: experts), each of
 * `blocks` blocks of rows x row elements. Every block is cut among the ranks of the unit into ceil(rows / ranks) rows each, the last
 * ones zero-padded; several blocks (dim 1 is cut) evenly. Most parameters are one part of one block, cut along dim 0. */
struct ls_engine_param {
    uint32_t name;               /* name id */
    uint32_t unit;               /* index into units, or LS_NO_ID: in no unit, the part whole on every rank that has it */
    uint32_t parts;
    uint64_t blocks, rows, row;  /* rows 0: an alias of another entry */
    enum ls_dtype dtype;         /* sharded */
    enum ls_dtype compute;       /* gathered and computed in */
    enum ls_dtype grad;          /* of .grad of the unsharded parameter: the reduce dtype where there is one */
    bool trains;
    bool local;                  /* no reduction carries its gradient: the step finds what has accumulated on this rank */
};
struct ls_engine_unit {
    uint32_t name;
    const uint32_t *param; size_t params; /* in buffer order */
    size_t shard, apart;         /* so many ranks share it, each `apart` from the next: rank / apart % shard is a rank's place */
    bool hybrid;                 /* reductions are completed over replicas (all_reduce) */
};

struct ls_engine_setup {
    const struct ls_job *job;
    const struct ls_engine_param *param; size_t params; /* index = that of the model; tied aliases: as their canonical entry */
    const struct ls_engine_unit *unit; size_t units;
    size_t shard;                /* ranks of dp_shard; units say by how many they are shared themselves */
    bool buckets;                /* gradients of parameters in no unit are all-reduced together (DDP); nothing is sharded */
    bool mean;                   /* the gradient wanted is the mean over ranks, else the sum */
    const uint32_t *sample;      /* [segment][rank], or NULL: which description of a batch a round holds */
    const void *model;           /* for the math: what it was made from */
    uint64_t seed;
};

struct ls_math_call {
    struct ls_rank *rank;
    const struct ls_op *op;
    const struct ls_kernel *kernel;
    struct ls_stream *stream;
    uint32_t segment;
};

struct ls_math_ops {
    const char *name;            /* as in --math NAME */
    /* One per rank. `context` is the caller's (ls_engine_options.math_context). */
    enum ls_code (*open)(struct ls_math **out, const struct ls_engine_setup *setup, uint32_t rank, struct ls_device *device,
                         void *context, struct ls_error *err);
    void (*close)(struct ls_math *m);
    /* The initial value of a parameter's shard (all of the part where no unit owns it), appended to the stream: rows
     * [first_row, first_row + rows) of every block. */
    enum ls_code (*init)(struct ls_math *m, struct ls_stream *s, uint32_t param, struct ls_tensor shard, uint64_t first_row,
                         uint64_t rows, struct ls_error *err);
    enum ls_code (*round)(struct ls_math *m, struct ls_rank *rank, uint32_t segment, struct ls_error *err); /* a round begins */
    enum ls_code (*issue)(struct ls_math *m, const struct ls_math_call *call, struct ls_error *err);
    /* Multiplies what is in a gradient, where a program's step does so by a factor of its own. NULL: no such programs. */
    enum ls_code (*scale)(struct ls_math *m, struct ls_stream *s, struct ls_tensor gradient, struct ls_ratio factor, struct ls_error *err);
    /* A collective of scalars, told by its payload's name: "grad norm", a metric ("loss"), "uniform execution". Appends what this
     * rank contributes (f32), and what is done with the result. */
    enum ls_code (*scalar)(struct ls_math *m, struct ls_rank *rank, struct ls_stream *s, const struct ls_op *op, bool result,
                           struct ls_tensor value, struct ls_error *err);
    /* Several processes, after the run and after close: what the ranks [first, first + ranks) have left in `context`, as bytes added
     * to *out; and such bytes of other ranks, put into this context. NULL: nothing is left there. */
    void (*give)(const struct ls_engine_setup *setup, void *context, uint32_t first, uint32_t ranks, struct ls_str *out);
    void (*get)(const struct ls_engine_setup *setup, void *context, uint32_t first, uint32_t ranks, const void *bytes, size_t count);
};
struct ls_math { const struct ls_math_ops *ops; };

/* Counts with the interpreter: every gradient is a known pattern of small integers, every parameter keeps its value. What the
 * collectives and copies did to them is then compared, element by element, with what they should have done. */
extern const struct ls_math_ops ls_math_symbolic;

/* What a rank holds, at this point of its program. `of` is NULL where there is nothing. The tensors stay valid for work appended
 * to any stream in this call. */
struct ls_tensor ls_rank_full(const struct ls_rank *r, uint32_t param);        /* unsharded, blocks padded to a multiple of the ranks */
struct ls_tensor ls_rank_shard(const struct ls_rank *r, uint32_t param);
LS_MUST_USE enum ls_code ls_rank_grad(struct ls_rank *r, uint32_t param, struct ls_tensor *out, struct ls_error *err); /* made of zeros if there is none */
/* Floats summed up on the stream 0, taken over as ls_rank_grad's. False: there is one, or it has another size or dtype. */
bool ls_rank_take_grad(struct ls_rank *r, uint32_t param, struct ls_storage *sum);
struct ls_tensor ls_rank_shard_grad(const struct ls_rank *r, uint32_t param);  /* reduced; of a local parameter, accumulated */
/* buckets: what the step finds in .grad, reduced and not; s: the stream of the step. And how many ranks had a gradient for it, one
 * i32, where ranks tell each other: 0, and torch passes the parameter over. */
struct ls_tensor ls_rank_step_grad(struct ls_rank *r, uint32_t param, struct ls_stream *s);
struct ls_tensor ls_rank_used(struct ls_rank *r, uint32_t param, struct ls_stream *s);
struct ls_tensor ls_rank_partial(const struct ls_rank *r, uint32_t param);     /* hybrid: reduced among its shards, not yet over replicas */
struct ls_device *ls_rank_device(const struct ls_rank *r);
uint64_t ls_param_padded(const struct ls_engine_setup *s, uint32_t param); /* elements per rank */
size_t ls_param_ranks(const struct ls_engine_setup *s, uint32_t param);    /* that share the rank's part; 1 in no unit */
size_t ls_param_place(const struct ls_engine_setup *s, uint32_t param, uint32_t rank); /* among them */
/* Which elements of a parameter lie where: element i of a rank's shard, or of what it gathers, is element first + i / run * block +
 * i % run of the parameter, if i % run < valid, else padding. */
struct ls_param_cut { uint64_t first, run, block, valid; };
struct ls_param_cut ls_param_cut(const struct ls_engine_setup *s, uint32_t param, uint32_t rank, bool whole);

#endif
