/* src/ir/op.h -- one operation that a rank's host thread issues. Pure data: no policy, no semantics.
 *
 * This is what the checker, the simulator and the engines share. If one of them would have to ask which policy made an
 * op, a field is missing here. The meaning of every kind is in src/machine/semantics.md. */
#ifndef LS_IR_OP_H
#define LS_IR_OP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* id, scenario name, class: C collective (all members take part), P point to point, S stream work, H host only */
#define LS_OP_KINDS(X)                          \
    X(ALL_GATHER,     "all_gather",     C)      \
    X(REDUCE_SCATTER, "reduce_scatter", C)      \
    X(ALL_REDUCE,     "all_reduce",     C)      \
    X(REDUCE,         "reduce",         C)      \
    X(BROADCAST,      "broadcast",      C)      \
    X(ALL_TO_ALL,     "all_to_all",     C)      \
    X(GATHER,         "gather",         C)      \
    X(SCATTER,        "scatter",        C)      \
    X(SCAN,           "scan",           C)      \
    X(BARRIER,        "barrier",        C)      \
    X(COMM_INIT,      "comm_init",      C)      \
    X(DECIDE,         "decide",         C)      \
    X(SEND,           "send",           P)      \
    X(RECV,           "recv",           P)      \
    X(COMPUTE,        "compute",        S)      \
    X(COPY_IN,        "copy_in",        S)      \
    X(COPY_OUT,       "copy_out",       S)      \
    X(RECORD,         "record",         S)      \
    X(WAIT,           "wait",           S)      \
    X(HOST_WAIT,      "host_wait",      H)      \
    X(ALLOC,          "alloc",          H)      \
    X(FREE,           "free",           H)      \
    X(MARK,           "mark",           H)      \
    X(STOP,           "stop",           H)
#define LS_OP_ENUM(id, name, class) LS_OP_##id,
enum ls_op_kind { LS_OP_KINDS(LS_OP_ENUM) LS_OP_COUNT };
#undef LS_OP_ENUM

#define LS_DTYPES(X) /* id, name, bytes */                                                                            \
    X(NONE, "none", 0) X(F64, "f64", 8) X(F32, "f32", 4) X(F16, "f16", 2) X(BF16, "bf16", 2) X(F8, "f8", 1)            \
    X(I64, "i64", 8) X(I32, "i32", 4) X(U8, "u8", 1) X(BOOL, "bool", 1)
#define LS_DTYPE_ENUM(id, name, bytes) LS_DTYPE_##id,
enum ls_dtype { LS_DTYPES(LS_DTYPE_ENUM) LS_DTYPE_COUNT };
#undef LS_DTYPE_ENUM

#define LS_REDUCES(X) /* id, name; PREMUL: sum of inputs times `factor` */ \
    X(NONE, "none") X(SUM, "sum") X(AVG, "avg") X(MAX, "max") X(MIN, "min") X(PROD, "prod") X(PREMUL, "premul_sum")
#define LS_REDUCE_ENUM(id, name) LS_REDUCE_##id,
enum ls_reduce { LS_REDUCES(LS_REDUCE_ENUM) LS_REDUCE_COUNT };
#undef LS_REDUCE_ENUM

#define LS_PASSES(X) /* id, name; W: weight gradients of a pipeline schedule */ \
    X(NONE, "") X(F, "forward") X(B, "backward") X(W, "weight") X(R, "recompute") X(OPT, "step") X(EVAL, "eval") X(SETUP, "setup")
#define LS_PASS_ENUM(id, name) LS_PASS_##id,
enum ls_pass { LS_PASSES(LS_PASS_ENUM) LS_PASS_COUNT };
#undef LS_PASS_ENUM

#define LS_LAYOUTS(X) /* of a sequence tensor over the members of a context-parallel group */ \
    X(NONE, "none") X(FULL, "full") X(HEAD_TAIL, "head_tail") X(CONTIGUOUS, "contiguous") X(PACKED, "packed")
#define LS_LAYOUT_ENUM(id, name) LS_LAYOUT_##id,
enum ls_layout { LS_LAYOUTS(LS_LAYOUT_ENUM) LS_LAYOUT_COUNT };
#undef LS_LAYOUT_ENUM

struct ls_ratio { uint32_t num, den; }; /* {0, 0}: none given, means 1 */

/* What an op reads or writes: `buffer` indexes ls_tables.buffer; a range of bytes, count 0 means the whole buffer. */
struct ls_range { uint32_t buffer; bool write; uint64_t offset, bytes; };

#define LS_NO_COMM 0xffffu /* "none" in `sources` */
#define LS_NO_ID 0xffffffffu /* "none" in every uint32_t field below */

/* One operation of the model inside a compute op. Within a round every execution of a flow statement has a number, its
 * `instance`; values are named by (instance, output), so an executor needs no scopes and no graph of its own. */
enum ls_kernel_what { LS_KERNEL_FORWARD, LS_KERNEL_BACKWARD, LS_KERNEL_RECOMPUTE, LS_KERNEL_ACCUMULATE, LS_KERNEL_LOSS,
                      LS_KERNEL_LOSS_BACKWARD, LS_KERNEL_OPTIMIZER,
                      LS_KERNEL_LEFT_OUT /* the optimizer's place where this rank leaves its step out: gradients are dropped */ };
struct ls_kernel {
    uint8_t what;       /* enum ls_kernel_what */
    bool zero_linked;   /* forward: the inputs after the statement's own are a dummy's results, which enter with weight 0 */
    uint32_t statement; /* ls_flow.id; accumulate: the index of the parameter in the model */
    uint32_t instance;  /* recompute, backward: that of the forward execution meant */
    uint32_t link, links; /* forward, loss: inputs, ls_tables.link, one per name of the statement's `in` */
};
/* instance LS_NO_ID: an input of the flow, whose name id is `out`; LS_ABSENT: the name was not bound on this path. */
#define LS_ABSENT 0xfffffffeu
struct ls_link { uint32_t instance, out; };

struct ls_op {
    uint8_t kind;       /* enum ls_op_kind */
    uint8_t dtype;      /* enum ls_dtype; of the elements that travel */
    uint8_t reduce;     /* enum ls_reduce */
    uint8_t pass;       /* enum ls_pass */
    uint8_t thread;     /* host thread of the rank, from 0 */
    uint8_t stream;     /* in-order queue of the rank, from 0; ignored by host-only kinds */
    uint8_t layout;     /* enum ls_layout */
    bool blocking;      /* the host thread waits until the op is done (always, at L1) */
    bool held;          /* all_reduce: what arrives stays where it was copied in, until a copy_out of the same payload, held too */
    uint16_t comm;      /* index into ls_tables.comm; collectives and point to point only */
    uint16_t slots;     /* kernel slots held while running, for L3; 0 means the kind's default (1 for collectives) */
    uint32_t fused;     /* ops of one NCCL group, coalesced call or batched p2p share a number > 0; 0: alone */
    int32_t peer;       /* root (member index) of rooted collectives; peer (member index) of send/recv; else -1 */
    uint64_t count;     /* elements: what each rank receives of an all_gather's and gives to a reduce_scatter's shard
                           (the per-rank shard), otherwise the elements each rank passes in */
    uint32_t counts;    /* per-peer vector: index into ls_tables.vector, or LS_NO_ID */
    uint32_t symbol;    /* count is bound at run time (expert routing): a name id, or LS_NO_ID. Of an optimizer's step: gradients are
                           first scaled by a factor of this rank's own */
    uint32_t payload;   /* what it carries: index into ls_tables.payload, or LS_NO_ID. NCCL does not see it */
    uint32_t event;     /* record, wait, host_wait: event id of this rank. A wait means the latest record issued before it */
    uint32_t range, ranges; /* buffers touched: ls_tables.range[range .. range + ranges) ; alloc and free: one range */
    struct ls_ratio factor; /* reduction factor (PREMUL, pre- or post-division) */
    uint32_t value;     /* decide: what this rank contributes */
    uint32_t then_count, else_count; /* decide: the ops that follow, if the agreed value is non-zero, and the ones after those if it is zero */
    uint16_t sources;   /* compute, pass B: the gradients in its payload are of the samples of every member of this rank's group of
                           that communicator (experts see the tokens of all of them); LS_NO_COMM: of this rank's own */
    uint64_t flops, bytes; /* compute: work for the simulator; alloc: bytes */
    uint16_t stage, chunk; /* pipeline */
    uint32_t microbatch;   /* from 0 within the step */
    uint32_t unit;      /* name id of the sharding unit, or LS_NO_ID */
    uint32_t module;    /* name id of the module that ran (COMPUTE, MARK), or LS_NO_ID */
    uint32_t cause;     /* index into ls_tables.cause, or LS_NO_ID */
    uint32_t kernel, kernels; /* compute: what runs, ls_tables.kernel[kernel .. kernel + kernels), in order */
};

const char *ls_op_kind_name(enum ls_op_kind kind);
const char *ls_dtype_name(enum ls_dtype dtype);
size_t ls_dtype_bytes(enum ls_dtype dtype);
const char *ls_reduce_name(enum ls_reduce reduce);
const char *ls_pass_name(enum ls_pass pass);
const char *ls_layout_name(enum ls_layout layout);
bool ls_op_kind_find(const char *name, enum ls_op_kind *out);
bool ls_dtype_find(const char *name, enum ls_dtype *out);
bool ls_reduce_find(const char *name, enum ls_reduce *out);

bool ls_op_is_collective(const struct ls_op *op); /* class C */
bool ls_op_is_p2p(const struct ls_op *op);        /* class P */
bool ls_op_is_host(const struct ls_op *op);       /* class H */
bool ls_op_uses_comm(const struct ls_op *op);     /* C or P */
/* A computation whose factor is 0: reduced gradients that are overwritten (backward), a step that reaches no parameter (optimizer). */
bool ls_op_gives_nothing(const struct ls_op *op);

struct ls_op ls_op_make(enum ls_op_kind kind); /* every id field LS_NO_ID, peer -1, the rest zero */

#endif
