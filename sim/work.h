/* sim/work.h -- what the kernels of one round cost: operations, bytes moved, and the tensors that forward keeps for backward.
 *
 * A round's compute ops name flow statements and the values between them (ls_kernel, ls_link). Sizes of values follow from the
 * sample and the shapes of parameters; what has no statement of its own (a packed attention, an activation function) is added
 * where the shapes show it. T: tokens of a value; e: bytes of the compute dtype.
 *
 *   tokens     text: sample.text + the soft tokens of all media in it. A tower sees `patches` per call: the sample's override, or
 *              (vision_image_size, at most 896, else 448 px, over vision_patch_size)^2, times frames for videos; audio 10 s. Soft
 *              tokens: config mm_tokens_per_image; else patches / spatial_merge_size^2, / pooling_kernel_size^2; audio: halved
 *              by an AvgPool1d in the tower. A Linear whose input width is a multiple of the value's width merges tokens
 *   Linear     [out, in]: 2 T in out; backward 2 T in out for the input's gradient, as much for the weight's, each only where needed.
 *              Keeps its input if the weight trains. LoRA factors likewise
 *   Conv       2 T times the elements of the weight; T: output positions
 *   experts    a layer's routed experts, stacked [count, in, out]: 2 T top_k / count of their elements, weights of the rank's own ones
 *              read once; T: tokens of which a rank computes its share, the mean of its group times simulate.routing_skew. Keeps, per
 *              row, the inputs of both products and what the first gives. launches (assumed: permute, two grouped products, activation,
 *              weights, unpermute): 12, backward 16
 *   attention  4 T S W forward, 10 T S W backward (flash: the scores are computed again), W: heads x head size, S: length of a
 *              sequence, halved where the mask is causal (text), at most 3/2 of sliding windows is not modelled. Keeps queries,
 *              keys and values (repeated to all heads, as PyTorch's SDPA is called), the output, 4 bytes per head and token.
 *              source: Dao, FlashAttention-2, section 4 (backward 2.5 x forward)
 *   RMSNorm    in eager mode in f32: reads and writes 8 tensors' worth; keeps 4 T W, and e T W if the weight trains.
 *              LayerNorm is one kernel: keeps its input
 *   activation between Linears of one module (fc1, fc2): keeps input and output. op `mul` of two Linears (gated): keeps both inputs
 *              and the activated gate; its product is kept by the Linear that reads it
 *   others     read their inputs, write their output
 *   loss       logits [T, V]: a copy in f32 and a log-softmax in f32, which is kept; backward two more in f32, then the gradient in e.
 *              source: torch.nn.functional.cross_entropy
 *   AdamW      per element of a shard 7 accesses of the parameter's dtype, 3 temporaries of foreach kernels one after the other
 *   recompute  selective: PyTorch's per-operation checkpointing with torchtitan's list: of the matrix products of a layer every
 *              second one is kept, and every attention; the rest is computed again in backward
 *   gradients  of values live from the first backward that makes them to the end of the backward of their producer
 *   launches   device kernels of the host's program: Linear 1, RMSNorm 6 (backward 10), attention with rotary embedding and repeated keys
 *              13 (14), gated activation 2 (3), loss 4 (4), the rest 1; compiled: 1 each. Counted in transformers' and torchtitan's code
 *   torch_compile  compiles each item of a ModuleList by itself, as torchtitan does: elementwise operations there read their inputs and
 *              write their output once, and RMSNorm keeps its input alone. What lies outside, the loss too, runs as in torch_eager
 *   lockstep   what our own engine keeps (src/engine/nn): a value until the last kernel that reads it, which is a backward where that reads
 *              its inputs (Linear with a trainable weight, norms, attention, activations, gates); a float per row of a norm (two of a
 *              LayerNorm), per head and row of attention, per row of the loss; LoRA's inner values in f32; gradients of values in f32.
 *              Times are those of torch_eager: the engine's kernels run on hosts
 *   not modelled: rotary embeddings, masks, dropout, bias terms (all small)
 *
 *   units      flops: operations that run; bytes: moved to and from HBM */
#ifndef LS_SIM_WORK_H
#define LS_SIM_WORK_H

#include "batch/batch.h"
#include "plan/plan.h"
#include "scenario/timing.h"
#include "sim/platform.h"

#define LS_KEPT(X) X(ACTIVATIONS, "activations") X(GRADIENTS, "activation gradients") X(LOGITS, "logits and loss")
#define LS_KEPT_ENUM(id, name) LS_KEPT_##id,
enum ls_kept { LS_KEPT(LS_KEPT_ENUM) LS_KEPTS };
#undef LS_KEPT_ENUM

struct ls_work_options {
    enum ls_activation_style style;
    bool selective;                /* recompute as described above, where the flow has no checkpoint regions of its own */
    unsigned item_bytes;           /* of the compute dtype */
    double expert_tokens;          /* tokens whose share of experts a rank computes; 0: its own */
    bool outputs_held;             /* the caller's variable holds the logits until backward ends */
};
/* Tokens of one sample. text: with those that media become there; patches, soft: of one call of a tower, and what they become. */
struct ls_tokens { uint64_t text, sequences, patches[LS_CONDITIONS_MAX], soft[LS_CONDITIONS_MAX]; };
struct ls_tokens ls_tokens_of(const struct ls_model *m, const struct ls_sample *s, const struct ls_letter *letter);

/* One kernel: work, and what is allocated when it starts and freed when it is done. temporary: lives only inside it. */
struct ls_kernel_work {
    double flops, bytes, flash;           /* flash: operations of attention, which are included in flops */
    uint64_t alloc[LS_KEPTS], free[LS_KEPTS], temporary;
    unsigned launches;                    /* device kernels that the host launches for it */
};
/* of: [the kernels of the segment's ops, in order]; first: [ops + 1] index of the op's first kernel. Everything lives in `arena`. */
struct ls_round_work {
    struct ls_kernel_work *of;
    size_t *first, kernels;
    double model_flops;                   /* forward and backward as the model is defined: nothing recomputed (for MFU) */
};
void ls_work_of_round(const struct ls_plan *p, const struct ls_tables *t, const struct ls_segment *s, const struct ls_tokens *tokens,
                      const struct ls_work_options *o, struct ls_arena *arena, struct ls_round_work *out);
/* Times of all kernels at nominal speed, each bound by its operations or its bytes. ps: [w->kernels] */
void ls_work_kernels_ps(const struct ls_platform *p, const struct ls_round_work *w, unsigned item_bytes, double *ps);

#endif
