/* src/fsdp2/internal.h -- what the files of fsdp2/ share: one rank being compiled, unit by unit.
 *
 *   forward.c   walks the flow, calls the hooks, builds the autograd graph
 *   autograd.c  the graph and its ready queue
 *   hooks.c     what FSDP2 does before and after forward and backward of a unit
 *   gather.c    all-gathers and their buffers
 *   reduce.c    reductions of gradients and their buffers
 *   experts.c   what goes to the experts of other ranks and comes back
 *   emit.c      ops, events, buffers, payloads
 *   state.c     what a rank carries from round to round, canonical
 *   compile.c   the transducer */
#ifndef LS_FSDP2_INTERNAL_H
#define LS_FSDP2_INTERNAL_H

#include "fsdp2/compile.h"

enum training { IDLE, FORWARD, PRE_BACKWARD, POST_BACKWARD };
enum sharding { SHARDED, UNSHARDED, SHARDED_SMALL };
enum { GRAD_NONE, GRAD_FRESH };  /* of an unsharded parameter's .grad */
enum { SHARDED_GRAD_NONE, SHARDED_GRAD_OWN, SHARDED_GRAD_VIEW }; /* of a sharded parameter; VIEW + slot of a reduction output */
enum { PARTIAL_REPACKED = 0xffff }; /* as partial_slot: a tensor of its own */
enum { NOT_COVERED, COVERED, AROUND_COVERED }; /* a module with respect to what a dummy forward covers */

typedef LS_VEC(uint32_t) id_vec;

/* One FSDPState with its parameter group. Everything here is carried from round to round. */
struct unit_state {
    enum training state, group;
    enum sharding sharding;
    bool ever_unsharded;       /* the unsharded parameters exist (created by the first copy-out) */
    unsigned gather_pending;   /* an all-gather was issued and not yet copied out: 1 + slot of its output */
    unsigned post_reduce;      /* the event of this unit's last reduction is to be waited for: 1 on S, 2 on A */
    bool all_reduce_kept;      /* the all-reduce buffer and its event are kept */
    bool partial;              /* HSDP: reduce-scattered, not yet all-reduced */
    uint64_t partial_elements;
    uint32_t partial_slot, all_reduce_slot; /* which of the unit's live reduction outputs these refer to */
    bool small_event;          /* resharded to the small mesh: the next unshard waits */
    uint32_t context;          /* root context, LS_NO_ID before lazy init */
    uint64_t modules_left;     /* grouped units: modules that have not run yet in this pass */
    id_vec before;             /* stack of the unit that ran before each recorded forward, LS_NO_ID for none */
};
/* One root's FSDPStateContext and FSDPCommContext. */
struct reduce_entry { uint32_t unit, slot; };
struct context_state {
    uint32_t root;
    uint32_t forward_root;     /* unit that started this forward, LS_NO_ID outside forward */
    uint32_t kept_gather;      /* unit whose all-gather output is kept until the next copy-out, LS_NO_ID */
    uint32_t kept_slot;        /* which of its outputs: a unit called twice in a row has two */
    uint32_t last_forward;     /* last entry of post_forward_order, LS_NO_ID */
    bool callback_queued;
    uint32_t last_reduced[2];  /* unit whose reduction was the last on S and on A since the last backward, LS_NO_ID */
    bool all_reduce_first;     /* A was used before S */
    bool last_backward;        /* is_last_backward, which all its units share */
    LS_VEC(struct reduce_entry) reduces;   /* reduce_scatter_states */
};

struct carried {               /* the state of the transducer */
    bool stopped;              /* this rank has raised */
    struct unit_state *unit;   /* [units] */
    uint8_t *grad;             /* [params of the model] .grad of the unsharded parameter */
    uint8_t *accumulated;      /* [params] unsharded_accumulated_grad exists */
    uint8_t *sharded;          /* [params] the reduced gradient */
    uint8_t *partial;          /* [params] is in its unit's partial output */
    struct context_state *context; size_t contexts;
    uint64_t checks_left;      /* uniformity checks still to be made */
};

enum node_kind { NODE_LEAF, NODE_POST_BACKWARD, NODE_ACCUMULATE, NODE_LOSS };
struct edge { uint32_t node, out; };
struct node {
    enum node_kind kind;
    uint32_t unit;             /* POST_BACKWARD */
    uint32_t param;            /* ACCUMULATE */
    uint32_t module;           /* LEAF: whose compute it is */
    const struct ls_flow *flow;
    uint32_t instance;         /* LEAF: the execution whose gradient it computes */
    uint32_t region;           /* checkpoint region that it belongs to, LS_NO_ID */
    uint64_t order;            /* sequence number; ACCUMULATE has the highest */
    uint32_t needs;            /* gradients still to come */
    bool reached;
    bool tokens_grad, weights_grad; /* LEAF of experts: which of its inputs carry gradient */
    uint64_t defined;          /* bit set of outputs whose gradient has come; the others' is undefined */
    LS_VEC(struct edge) next;  /* producers of its inputs */
    LS_VEC(struct edge) hooks; /* pre-backward hooks on outputs: node is the unit */
};
struct value {
    uint32_t name;
    uint32_t node, out;        /* its gradient function, LS_NO_ID: none; which of its outputs */
    uint32_t instance, from;   /* the execution that made the data, and which of its outputs; an input: LS_NO_ID, name id */
    bool grad;
};
typedef LS_VEC(struct value) value_vec;

struct region { const struct ls_flow *call; value_vec in; uint32_t first; bool recomputed; }; /* a checkpointed call, to be run again;
                                                   first: its first instance, so that the second run gets the same numbers */

/* One in a pool of the unit's root context, added at first use. */
struct pool_buffer { uint32_t unit, slot, id; uint8_t pool; };
struct buffers {                                   /* indices into tables.buffer */
    uint32_t *full, *reduced;                      /* [units]; reduced: the gradients that the step finds, in whatever memory */
    LS_VEC(struct pool_buffer) pooled;
};

struct compiler;
struct run {                   /* one call of step() */
    struct compiler *c;
    const struct ls_letter *letter;
    const struct ls_round *round;
    struct carried now;
    ls_op_vec ops;
    enum ls_pass pass;
    bool gradient;             /* grad mode */
    bool backward;             /* a graph task is running */
    bool eval;
    bool stop_recompute;       /* early stop of a recomputation */
    const struct ls_flow *recompute_last;
    const struct ls_flow *saved_last; /* recomputation: the last call that saves something for backward */
    uint32_t region;           /* current checkpoint region in forward */
    LS_VEC(struct node) node;
    uint32_t *accumulate;      /* [params] node of its AccumulateGrad in this graph, LS_NO_ID */
    LS_VEC(struct region) regions;
    struct reduce_entry held;  /* up to 2.12: the reduction input that post_backward holds until it returns */
    bool holds;
    id_vec callbacks;          /* units that queued their root's final callback, in order */
    id_vec shares;             /* parameters whose gradient the open compute op yields */
    bool open_compute, open_experts; /* the compute op that still grows; it holds gradients of experts */
    uint32_t instances;        /* executions of flow statements so far */
    uint32_t dummy;            /* in a dummy forward: condition + 1; 0 outside */
    value_vec linked;          /* outputs of the dummy that still have to enter the loss */
    enum ls_code rc;
    struct ls_error *err;
};

struct memo { uint32_t state, round, letter; struct ls_step step; };
struct compiler {
    struct ls_transducer t;    /* first: what the checker holds */
    struct ls_compile_input in;
    struct ls_arena *arena;
    struct ls_names *names;
    struct buffers buffer;
    uint32_t comm_shard, comm_replicate, comm_reduce, comm_dp;
    uint32_t comm_experts, comm_dispatch; /* ep_shard; the dispatcher's. LS_NO_ID */
    uint32_t comm_ep;          /* of gradient norms over ep, LS_NO_ID */
    uint32_t *comm_small;      /* [units] */
    size_t shard, replicate;   /* sizes compiled for: any is 2 */
    uint32_t *unit_cause;      /* [units] */
    uint32_t *gather_payload;  /* [units] */
    uint32_t step_cause, expert_cause;
    uint32_t *own_unit;        /* [modules] unit whose hooks sit on the module, LS_NO_ID */
    bool *checkpointed;        /* [modules] calls are recomputed in backward because the plan says so */
    uint8_t *covered;          /* [conditions][modules] COVERED inside a covered module, AROUND_COVERED above one */
    uint32_t *preorder;        /* units in named_modules() order: all_states of a root holds those below it */
    struct ls_names *state_text;              /* canonical text -> state id + 1 (id 0 is the empty string) */
    LS_VEC(struct carried) state;             /* by state id */
    LS_VEC(struct memo) memo;                 /* what step() has answered */
    uint32_t *memo_slot; size_t memo_slots;   /* open addressing: index into memo + 1 */
};

/* emit.c */
struct ls_op *emit(struct run *r, enum ls_op_kind kind, unsigned stream, uint32_t unit);
void emit_range(struct run *r, uint32_t buffer, bool write);
uint32_t gather_buffer(const struct run *r, uint32_t unit, uint32_t slot); /* in the unit's CI pool */
uint32_t input_buffer(const struct run *r, uint32_t unit, uint32_t slot); /* in D's pool; several may be alive */
uint32_t output_buffer(const struct run *r, uint32_t unit, uint32_t slot); /* in its S pool; several may be alive */
void emit_mark(struct run *r, const char *what, uint32_t unit);
void emit_record(struct run *r, const char *event, uint32_t unit, uint32_t slot, unsigned stream);
void emit_wait(struct run *r, const char *event, uint32_t unit, uint32_t slot, unsigned stream);
void emit_wait_stream(struct run *r, unsigned stream, unsigned on);
void emit_compute(struct run *r, uint32_t module, struct ls_kernel kernel, const uint32_t *params, size_t count);
void emit_link(struct run *r, struct ls_kernel *kernel, uint32_t instance, uint32_t out); /* before emit_compute */
void emit_share(struct run *r, uint32_t param); /* an accumulated gradient */
void emit_close_compute(struct run *r);
void emit_stop(struct run *r, uint32_t unit, const char *format, ...) LS_PRINTF(3, 4);
void emit_memory(struct run *r, enum ls_op_kind kind, const char *what, uint32_t unit, unsigned pool, uint32_t buffer, uint64_t bytes);
void emit_open(struct compiler *c); /* buffers and causes of every unit */

/* hooks.c: true unless the rank has raised */
void unit_pre_forward(struct run *r, uint32_t unit, value_vec *in);
void unit_post_forward(struct run *r, uint32_t unit, const value_vec *out);
void unit_pre_backward(struct run *r, uint32_t unit);
void unit_post_backward(struct run *r, uint32_t unit);
void unit_final_callback(struct run *r, uint32_t queued_by); /* the unit whose pre-backward fired first */
void unit_drop_gradient(struct run *r, uint32_t param); /* zero_grad */
unsigned context_stream(const struct run *r, uint32_t unit, unsigned stream);

/* gather.c */
struct context_state *unit_context(struct run *r, uint32_t unit);
bool unit_alone(const struct run *r, uint32_t unit);
size_t unit_ranks(const struct run *r, uint32_t unit); /* that share it */
bool unit_hsdp(const struct run *r, uint32_t unit);
uint64_t padded_shard(const struct run *r, uint32_t param);
enum ls_dtype gather_dtype(const struct run *r, uint32_t unit, uint32_t param);
bool rewritten(const struct run *r);
void unit_unshard(struct run *r, uint32_t unit, enum training training);
void free_gathered(struct run *r, uint32_t unit, uint32_t slot);
void unit_wait_for_unshard(struct run *r, uint32_t unit, enum training training);
void unit_reshard(struct run *r, uint32_t unit);
void unit_reshard_after_forward(struct run *r, uint32_t unit);
void wait_gather_streams(struct run *r, uint32_t unit, const char *event, uint32_t of);

/* reduce.c */
bool clear_reduces(struct run *r, struct context_state *k, struct reduce_entry *last);
void free_reduce_in(struct run *r, struct reduce_entry e);
bool output_used(const struct run *r, uint32_t unit, uint32_t slot);
void free_output(struct run *r, uint32_t unit, uint32_t slot);
void wait_for_post_backward(struct run *r, uint32_t unit);
void emit_reduced(struct run *r, enum ls_unit_mesh mesh, bool write); /* the newest op uses the reduced gradients of these units */

/* autograd.c */
uint32_t node_add(struct run *r, enum node_kind kind);
void node_feed(struct run *r, uint32_t node, const struct value *in);
void backward_run(struct run *r, uint32_t loss);

/* forward.c */
uint32_t forward_run(struct run *r);             /* the loss node, or LS_NO_ID when nothing carries gradient */
void forward_recompute(struct run *r, uint32_t region);

/* compile.c */
uint32_t add_comm(struct compiler *c, const char *name, uint32_t free_dims, uint32_t small); /* a communicator over the mesh */

/* experts.c: around the experts of a layer, an index into model->moe. LS_NO_ID from experts_layer: no experts, or all are here */
void experts_open(struct compiler *c);
uint32_t experts_layer(const struct run *r, const struct ls_flow *f);
void experts_dispatch(struct run *r, uint32_t layer);
void experts_combine(struct run *r, uint32_t layer);
void experts_combine_backward(struct run *r, uint32_t layer);
void experts_dispatch_backward(struct run *r, uint32_t layer, bool tokens_grad, bool weights_grad);
void experts_step(struct run *r); /* before clipping: the factor of their gradients */
void experts_clip(struct run *r);
void experts_update_bias(struct run *r);

/* state.c */
struct carried carried_first(struct compiler *c);
struct carried carried_copy(struct compiler *c, const struct carried *from);
void carried_text(const struct compiler *c, const struct carried *s, struct ls_str *out);
void carried_release(const struct compiler *c, struct carried *s); /* frees the vectors of a working copy */
uint32_t carried_intern(struct compiler *c, const struct carried *s);

/* step.c */
struct ls_op *scalar_all_reduce(struct run *r, uint32_t comm, const char *payload, enum ls_reduce reduce, uint64_t count);
void step_begin(struct run *r);  /* before a microbatch: the uniformity check */
void step_before_call(struct run *r, uint32_t module); /* the same where it must not be: in the hook of a conditional module */
void step_in_call(struct run *r, uint32_t module); /* the first thing inside a forward: a vote */
void step_end(struct run *r);    /* clipping, metrics, optimizer */

static inline const struct ls_unit *unit_of(const struct run *r, uint32_t unit) { return &r->c->in.plan->unit[unit]; }

#endif
