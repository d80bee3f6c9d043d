#include "scenario/keys.h"

#include <assert.h>
#include <string.h>

#define H LS_KEY_HONOURED
#define N LS_KEY_NO_EFFECT
#define R LS_KEY_REFUSED
#define TP "acts on tensor parallelism only"
#define FRAME "acts only while frames are sharded"
#define COMPUTE "changes compute, not collectives"
#define SPEED "changes how fast a dispatch is, not when it is issued"
#define NOT_TODAY "AutoModel has no such key today; use rules: proposed"

/* AutoModel's are the fields of FSDP2Config, MoEParallelizerConfig, BackendConfig, ParallelismSizes and of the freeze_config section. */
static const struct ls_key_row rows[] = {
    { "distributed", "strategy", H, H, 0, "fsdp2 or ddp" },
    { "distributed", "_target_", H, H, 0, "names the strategy" },
    { "distributed", "dp_size", H, H, 0, "" },
    { "distributed", "dp_replicate_size", H, H, 0, "" },
    { "distributed", "cp_size", H, H, 0, "1; context parallelism is not modelled yet" },
    { "distributed", "tp_size", H, H, 0, "1; tensor parallelism is not modelled yet" },
    { "distributed", "pp_size", H, H, 0, "1; pipeline parallelism is not modelled yet" },
    { "distributed", "ep_size", H, H, 0, "" },
    { "distributed", "reshard_after_forward", H, H, 0, "" },
    { "distributed", "mp_policy", H, H, 0, "" },
    { "distributed", "activation_checkpointing", H, H, 0, "true or full" },
    { "distributed", "activation_checkpointing_scope", H, H, 0, "all; other scopes are not modelled yet" },
    { "distributed", "defer_fsdp_grad_sync", H, H, 0, "becomes batch.accumulation.gradient_sync" },
    { "distributed", "enable_fsdp2_prefetch", H, H, 0, "" },
    { "distributed", "fsdp2_forward_prefetch_depth", H, H, 0, "" },
    { "distributed", "fsdp2_backward_prefetch_depth", H, H, 0, "" },
    { "distributed", "multimodal", H, H, 0, "" },
    { "distributed", "sequence_parallel", N, N, 0, TP },
    { "distributed", "tp_plan", N, N, 0, TP },
    { "distributed", "enable_async_tensor_parallel", N, N, 0, TP },
    { "distributed", "patch_is_packed_sequence", N, N, 0, "changes attention, not collectives" },
    { "distributed", "autocast_dtype", N, N, 0, "changes compute, not what FSDP gathers or reduces" },
    { "distributed", "enable_compile", N, N, 0, "compiles inside the layers; FSDP's hooks stay around them" },
    { "distributed", "backend", N, N, 0, "names the process groups' backend" },
    { "distributed", "moe", H, H, 0, "acts with ep_size above 1 only" },
    { "distributed", "pipeline", N, N, 0, "acts on pipeline parallelism only" },
    { "distributed", "offload_policy", R, R, 0, "offloading to the host is not modelled; leave it out to see what is left" },
    { "distributed", "frozen_multimodal_sharding", R, R, 0, "AutoModel has no such key any more; write multimodal: {frozen_sharding: ...}" },
    { "distributed", "cp_vision_frame_sharding", R, R, 0, "AutoModel has no such key any more; write multimodal: {vision: {frame_sharding: ...}}" },
    { "distributed", "rules", H, H, 1, "" },
    { "distributed", "prefetch", H, H, 1, "" },

    { "distributed", "ddp", H, H, 1, "" },

    { "distributed.ddp", "bucket_cap_mb", H, H, 1, "" },
    { "distributed.ddp", "find_unused_parameters", H, H, 1, "" },
    { "distributed.ddp", "static_graph", H, H, 1, "" },
    { "distributed.ddp", "broadcast_buffers", H, H, 1, "" },
    { "distributed.ddp", "gradient_as_bucket_view", N, N, 0, "changes memory, not calls" },

    { "distributed.moe", "wrap_outer_model", H, H, 0, "" },
    { "distributed.moe", "reshard_after_forward", H, H, 0, "where distributed.reshard_after_forward is not given" },
    { "distributed.moe", "ignore_router_for_ac", H, H, 0, "recomputation takes the routing of forward" },
    { "distributed.moe", "lm_head_precision", H, H, 0, "" },
    { "distributed.moe", "mp_policy", H, H, 0, "" },
    { "distributed.moe", "_target_", N, N, 0, "there is one class of options" },

    { "model.backend", "dispatcher", H, H, 0, "" },
    { "model.backend", "experts", H, H, 0, "" },
    { "model.backend", "enable_fsdp_optimizations", H, H, 0, "" },
    { "model.backend", "fake_balanced_gate", H, H, 0, "" },
    { "model.backend", "dummy_expert_pass", H, H, 1, "" },
    { "model.backend", "_target_", N, N, 0, "there is one class of back ends" },
    { "model.backend", "attn", N, N, 0, COMPUTE },
    { "model.backend", "sparse_attn", N, N, 0, COMPUTE },
    { "model.backend", "linear", N, N, 0, COMPUTE },
    { "model.backend", "rms_norm", N, N, 0, COMPUTE },
    { "model.backend", "rope", N, N, 0, COMPUTE },
    { "model.backend", "rope_fusion", N, N, 0, COMPUTE },
    { "model.backend", "gate_precision", N, N, 0, COMPUTE },
    { "model.backend", "te_fp8", N, N, 0, COMPUTE },
    { "model.backend", "te_grouped_tensor", N, N, 0, COMPUTE },
    { "model.backend", "compile_attn", N, N, 0, COMPUTE },
    { "model.backend", "compile_situ", N, N, 0, COMPUTE },
    { "model.backend", "compile_norm", N, N, 0, COMPUTE },
    { "model.backend", "compile_router_weight", N, N, 0, COMPUTE },
    { "model.backend", "shared_expert_overlap", N, N, 0, COMPUTE },
    { "model.backend", "cuda_graph", N, N, 0, COMPUTE },
    { "model.backend", "dispatcher_num_sms", N, N, 0, SPEED },
    { "model.backend", "dispatcher_share_token_dispatcher", N, N, 0, SPEED },
    { "model.backend", "dispatcher_async_dispatch", N, N, 0, SPEED },
    { "model.backend", "dispatcher_hybridep_permute_fusion", N, N, 0, SPEED },
    { "model.backend", "dispatcher_hybridep_compact_routing", N, N, 0, SPEED },
    { "model.backend", "dispatcher_hybridep_num_sms_preprocessing", N, N, 0, SPEED },
    { "model.backend", "dispatcher_hybridep_num_blocks_permute", N, N, 0, SPEED },
    { "model.backend", "dispatcher_hybridep_num_blocks_unpermute", N, N, 0, SPEED },
    { "model.backend", "enable_deepep", N, N, 0, "AutoModel ignores it" },
    { "model.backend", "enable_hf_state_dict_adapter", N, N, 0, "acts on checkpoints" },
    { "model.backend", "fake_gate_noise", N, N, 0, "acts with a fake gate only" },
    { "model.backend", "benchmark_static_routing", H, H, 0, "saves waits of the host; refused where it saves collectives" },
    { "model.backend", "mok", N, N, 0, "acts with dispatcher: mok only" },

    { "distributed.mp_policy", "param_dtype", H, H, 0, "" },
    { "distributed.mp_policy", "reduce_dtype", H, H, 0, "" },
    { "distributed.mp_policy", "output_dtype", H, H, 0, "" },
    { "distributed.mp_policy", "cast_forward_inputs", H, H, 0, "" },
    { "distributed.mp_policy", "_target_", N, N, 0, "there is one class of policies" },
    { "distributed.mp_policy", "param", H, H, 1, "" },
    { "distributed.mp_policy", "reduce", H, H, 1, "" },
    { "distributed.mp_policy", "output", H, H, 1, "" },
    { "distributed.mp_policy", "cast_inputs", H, H, 1, "" },

    { "distributed.multimodal", "frozen_sharding", H, H, 0, "" },
    { "distributed.multimodal", "validate_rank_uniform_execution", H, R, 0, NOT_TODAY },
    { "distributed.multimodal.MODALITY", "frame_sharding", H, H, 0, "enabled: false; needs context parallelism otherwise" },
    { "distributed.multimodal.MODALITY", "frozen_sharding", H, R, 0, NOT_TODAY },
    { "distributed.multimodal.MODALITY", "run_dummy_forward", H, R, 0, NOT_TODAY },
    { "distributed.multimodal.MODALITY.frame_sharding", "enabled", H, H, 0, "false" },
    { "distributed.multimodal.MODALITY.frame_sharding", "mesh_dims", N, N, 0, FRAME },
    { "distributed.multimodal.MODALITY.frame_sharding", "min_tokens", N, N, 0, FRAME },
    { "distributed.multimodal.MODALITY.frame_sharding", "cost_alpha", N, N, 0, FRAME },
    { "distributed.multimodal.MODALITY.frame_sharding", "min_frames", N, N, 0, FRAME },
    { "distributed.multimodal.MODALITY.frame_sharding", "min_local_patch_rows", N, N, 0, FRAME },

    { "freeze_config", "freeze_vision_tower", H, H, 0, "" },
    { "freeze_config", "freeze_audio_tower", H, H, 0, "" },
    { "freeze_config", "freeze_language_model", H, H, 0, "" },
    { "freeze_config", "freeze_video_embedder", H, H, 0, "" },
    { "freeze_config", "freeze_embeddings", R, N, 0, "AutoModel never reads it for multimodal models; leave it out, or freeze: [\"**.embed_tokens.**\"]" },
    { "freeze_config", "language_model", H, R, 0, NOT_TODAY },
    { "freeze_config", "modules", H, R, 0, NOT_TODAY },
};
enum { ROWS = sizeof rows / sizeof *rows };

const struct ls_key_row *ls_key_rows(size_t *count)
{
    *count = ROWS;
    return rows;
}

const struct ls_key_row *ls_key_find(const char *section, const char *key)
{
    for (size_t i = 0; i < ROWS; i++)
        if (strcmp(rows[i].section, section) == 0 && strcmp(rows[i].key, key) == 0)
            return &rows[i];
    return NULL;
}

size_t ls_key_names(const char *section, const char **names, size_t room)
{
    size_t count = 0;
    for (size_t i = 0; i < ROWS; i++)
        if (strcmp(rows[i].section, section) == 0) {
            assert(count + 1 < room);
            names[count++] = rows[i].key;
        }
    names[count] = NULL;
    return count;
}
