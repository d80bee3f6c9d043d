"""Models of scenarios/models/ whose classes are AutoModel's own (nemo-automodel), for record_inventory.py and check_inventory.py.

Each function gives the published configuration (on the meta device) and a narrow one of the same depth and pattern that
runs on a CPU; no weight is read. Back ends are the plain ones: a fused kernel has the parameters of what it replaces."""
import contextlib
import copy
import unittest.mock

import torch

from inventory_models import config_of, grid_case, grid_cases, ids, part
from record_inventory import Spec


CLASSES = "nemo-automodel 0.6.0 and transformers 5.12.1"
OME = "test data of sgl-project/ome, which repeats the checkpoint's configuration"
TOTAL = "Total: the hub's count, repeated in public repositories, which fixes these numbers"
BIAS = dict(gate_bias="e_score_correction_bias", bias_update=True)
MTP = ("The loss of the multi-token prediction layer also uses lm_head, outside of forward; this is not in the flow, and changes "
       "nothing that a collective depends on")


def deep(a, b):
    out = dict(a)
    for k, v in b.items():
        out[k] = deep(out.get(k, {}), v) if isinstance(v, dict) and isinstance(out.get(k), dict) else v
    return out


def backend():
    from nemo_automodel.components.models.common import BackendConfig
    torch._dynamo.config.disable = True                    # compiled functions hide what the recorder looks at
    return BackendConfig(attn="sdpa", linear="torch", rms_norm="torch", experts="torch", dispatcher="torch", rope_fusion=False,
                         enable_hf_state_dict_adapter=False)


def made(make, full, narrow):
    """make(config values) -> model; the full one on the meta device in bf16, the narrow one on the CPU in f32."""
    def of(values, device, dtype):
        before = torch.get_default_dtype()
        torch.set_default_dtype(dtype)
        try:
            with torch.device(device):
                model = make(copy.deepcopy(values))
        finally:
            torch.set_default_dtype(before)
        if device == "cpu":
            model.float()                                  # some layers are made in bf16 whatever the default
        with torch.no_grad():                              # some classes leave them as the allocator gave them
            for p in model.parameters():
                p.normal_(0, 0.02)
        return model

    return lambda: of(full, "meta", torch.bfloat16), lambda: of(deep(full, narrow), "cpu", torch.float32)


@contextlib.contextmanager
def without_device(cls):
    """Some classes initialise their weights on the current CUDA device while they are built."""
    with unittest.mock.patch.object(cls, "initialize_weights", lambda *a, **k: None):
        yield


def qwen3_5(name, text, vision, tie, **more):
    from nemo_automodel.components.models.qwen3_5.model import Qwen3_5ForConditionalGeneration
    from transformers import Qwen3_5Config
    text = dict(vocab_size=248320, num_key_value_heads=4, head_dim=256, linear_num_key_heads=16, linear_key_head_dim=128,
                linear_value_head_dim=128, mtp_num_hidden_layers=1, tie_word_embeddings=tie, **text)
    vision = dict(num_heads=16, patch_size=16, spatial_merge_size=2, temporal_patch_size=2, num_position_embeddings=2304,
                  out_hidden_size=text["hidden_size"], **vision)

    def make(values):
        config = Qwen3_5Config(**values)
        config._attn_implementation = config.text_config._attn_implementation = config.vision_config._attn_implementation = "sdpa"
        config.text_config.torch_dtype = torch.get_default_dtype()
        return Qwen3_5ForConditionalGeneration(config, backend=backend())

    full, run = made(make, dict(text_config=text, vision_config=vision, tie_word_embeddings=tie),
                     dict(text_config=dict(vocab_size=64, hidden_size=32, intermediate_size=32, num_attention_heads=4,
                                           num_key_value_heads=2, head_dim=16, linear_num_key_heads=2, linear_num_value_heads=4,
                                           linear_key_head_dim=8, linear_value_head_dim=8,
                                           rope_parameters={"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 0],
                                                            "mrope_interleaved": True, "partial_rotary_factor": 0.25}),
                          vision_config=dict(hidden_size=32, intermediate_size=32, num_heads=4, out_hidden_size=32,
                                             num_position_embeddings=16, patch_size=2),
                          image_token_id=60, video_token_id=61, vision_start_token_id=62))
    return Spec(name=name, full=full, run=run, cases=grid_cases(), conditions={"image": "vision", "video": "vision"},
                multimodal=[part("model.visual", "vision", "tower")], config=config_of(text, vision),
                loss=["logits", "mtp_per_depth_h"], **more)


def qwen3_5_4b():
    return qwen3_5(
        "qwen3_5_4b", dict(hidden_size=2560, intermediate_size=9216, num_hidden_layers=32, num_attention_heads=16,
                           linear_num_value_heads=32),
        dict(depth=24, hidden_size=1024, intermediate_size=4096), True, model_ids=["Qwen/Qwen3.5-4B"], published=4659865088,
        source="Text numbers and the tower as public repositories repeat the checkpoint's configuration; class defaults of "
               f"{CLASSES} elsewhere. Total, the multi-token prediction layer included: the hub's count for Qwen/Qwen3.5-4B, which "
               f"fixes these numbers. {MTP}")


def qwen3_5_9b():
    return qwen3_5(
        "qwen3_5_9b", dict(hidden_size=4096, intermediate_size=12288, num_hidden_layers=32, num_attention_heads=16,
                           linear_num_value_heads=32),
        dict(depth=27, hidden_size=1152, intermediate_size=4304), False, model_ids=["Qwen/Qwen3.5-9B"], published=9653104368,
        source="Text numbers and the tower as public repositories repeat the checkpoint's configuration; class defaults of "
               f"{CLASSES} elsewhere. Total, the multi-token prediction layer included: the hub's count for Qwen/Qwen3.5-9B, which "
               f"fixes these numbers. {MTP}")


def qwen3_5_27b():
    return qwen3_5(
        "qwen3_5_27b", dict(hidden_size=5120, intermediate_size=17408, num_hidden_layers=64, num_attention_heads=24,
                            linear_num_value_heads=48),
        dict(depth=27, hidden_size=1152, intermediate_size=4304), False,
        model_ids=["Qwen/Qwen3.5-27B", "Qwen/Qwen3.6-27B", "Qwen/Qwen3.8-27B"], published=27781427952,
        source="Text numbers: scripts/models/qwen3.5-27B.sh of THUDM/slime (64 layers of 5120, 24 heads, 4 groups of 256); the tower "
               f"as for the 9B model; class defaults of {CLASSES} elsewhere. Total, the multi-token prediction layer included: the "
               f"hub's count, the same for Qwen3.5-27B and Qwen3.8-27B; Qwen3.6-27B is taken to be equal. {MTP}")


# ------------------------------------------------------------------------------------------------- routed experts

def in_dtype(config):
    for c in (config, *(getattr(config, n) for n in ("text_config", "vision_config", "audio_config") if getattr(config, n, None))):
        c._attn_implementation = "sdpa"
        c.dtype = torch.get_default_dtype()
    return config


def qwen3_vl_moe(name, text, **more):
    from nemo_automodel.components.models.qwen3_vl_moe.model import Qwen3VLMoeForConditionalGeneration
    from transformers import Qwen3VLMoeConfig
    text = dict(vocab_size=151936, num_key_value_heads=4, head_dim=128, num_experts=128, num_experts_per_tok=8, norm_topk_prob=True,
                decoder_sparse_step=1, mlp_only_layers=[], tie_word_embeddings=False,
                rope_parameters={"rope_type": "default", "rope_theta": 5000000.0, "mrope_section": [24, 20, 20],
                                 "mrope_interleaved": True}, **text)
    vision = dict(depth=27, hidden_size=1152, intermediate_size=4304, num_heads=16, patch_size=16, spatial_merge_size=2,
                  temporal_patch_size=2, num_position_embeddings=2304, out_hidden_size=text["hidden_size"],
                  deepstack_visual_indexes=[8, 16, 24])

    def make(values):
        with without_device(Qwen3VLMoeForConditionalGeneration):
            return Qwen3VLMoeForConditionalGeneration(in_dtype(Qwen3VLMoeConfig(**values)), backend=backend())

    full, run = made(make, dict(text_config=text, vision_config=vision, tie_word_embeddings=False),
                     dict(text_config=dict(vocab_size=64, hidden_size=32, intermediate_size=32, moe_intermediate_size=16,
                                           num_attention_heads=4, num_key_value_heads=2, head_dim=16, num_experts=4,
                                           num_experts_per_tok=2,
                                           rope_parameters={"rope_type": "default", "rope_theta": 1e4, "mrope_section": [4, 2, 2],
                                                            "mrope_interleaved": True}),
                          vision_config=dict(hidden_size=32, intermediate_size=32, num_heads=4, out_hidden_size=32,
                                             num_position_embeddings=16, patch_size=2),
                          image_token_id=60, video_token_id=61, vision_start_token_id=62))
    return Spec(name=name, full=full, run=run, cases=grid_cases(), conditions={"image": "vision", "video": "vision"},
                multimodal=[part("model.visual", "vision", "tower")],
                moe=[dict(modules="model.language_model.layers.*.mlp", count=128, top_k=8)], config=config_of(text, vision), **more)


def qwen3_vl_30b_a3b():
    return qwen3_vl_moe(
        "qwen3_vl_30b_a3b", dict(hidden_size=2048, intermediate_size=6144, moe_intermediate_size=768, num_hidden_layers=48,
                                 num_attention_heads=32),
        model_ids=["Qwen/Qwen3-VL-30B-A3B-Instruct", "Qwen/Qwen3-VL-30B-A3B-Thinking"], published=31070754032,
        source=f"{OME}; class defaults of {CLASSES} elsewhere. {TOTAL}")


def qwen3_vl_235b_a22b():
    return qwen3_vl_moe(
        "qwen3_vl_235b_a22b", dict(hidden_size=4096, intermediate_size=12288, moe_intermediate_size=1536, num_hidden_layers=94,
                                   num_attention_heads=64),
        model_ids=["Qwen/Qwen3-VL-235B-A22B-Instruct", "Qwen/Qwen3-VL-235B-A22B-Thinking"], published=235670022896,
        source=f"{OME}; class defaults of {CLASSES} elsewhere. {TOTAL}")


def qwen3_5_moe(name, text, **more):
    from nemo_automodel.components.models.qwen3_5_moe.model import Qwen3_5MoeForConditionalGeneration
    from transformers import Qwen3_5MoeConfig
    text = dict(vocab_size=248320, num_key_value_heads=2, head_dim=256, linear_num_key_heads=16, linear_key_head_dim=128,
                linear_value_head_dim=128, mtp_num_hidden_layers=1, tie_word_embeddings=False, **text)
    vision = dict(depth=27, hidden_size=1152, intermediate_size=4304, num_heads=16, patch_size=16, spatial_merge_size=2,
                  temporal_patch_size=2, num_position_embeddings=2304, out_hidden_size=text["hidden_size"])

    def make(values):
        config = in_dtype(Qwen3_5MoeConfig(**values))
        config.text_config.torch_dtype = torch.get_default_dtype()
        with without_device(Qwen3_5MoeForConditionalGeneration):
            return Qwen3_5MoeForConditionalGeneration(config, backend=backend())

    full, run = made(make, dict(text_config=text, vision_config=vision, tie_word_embeddings=False),
                     dict(text_config=dict(vocab_size=64, hidden_size=32, moe_intermediate_size=16, shared_expert_intermediate_size=16,
                                           num_attention_heads=4, num_key_value_heads=2, head_dim=16, num_experts=4,
                                           num_experts_per_tok=2, linear_num_key_heads=2, linear_num_value_heads=4,
                                           linear_key_head_dim=8, linear_value_head_dim=8,
                                           rope_parameters={"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 0],
                                                            "mrope_interleaved": True, "partial_rotary_factor": 0.25}),
                          vision_config=dict(hidden_size=32, intermediate_size=32, num_heads=4, out_hidden_size=32,
                                             num_position_embeddings=16, patch_size=2),
                          image_token_id=60, video_token_id=61, vision_start_token_id=62))
    layers = dict(count=text["num_experts"], top_k=text["num_experts_per_tok"])
    return Spec(name=name, full=full, run=run, cases=grid_cases(), conditions={"image": "vision", "video": "vision"},
                multimodal=[part("model.visual", "vision", "tower")],
                moe=[dict(modules="model.language_model.layers.*.mlp", **layers), dict(modules="mtp.layers.*.mlp", **layers)],
                loss=["logits", "mtp_per_depth_h"], config=config_of(text, vision), **more)


def qwen3_5_35b_a3b():
    return qwen3_5_moe(
        "qwen3_5_35b_a3b", dict(hidden_size=2048, moe_intermediate_size=512, shared_expert_intermediate_size=512,
                                num_hidden_layers=40, num_attention_heads=16, num_experts=256, num_experts_per_tok=8,
                                linear_num_value_heads=32),
        model_ids=["Qwen/Qwen3.5-35B-A3B", "Qwen/Qwen3.6-35B-A3B"], published=35951822704,
        source="The numbers of configs/models/qwen3.5-35b-a3b.yml of AI-Hypercomputer/maxtext; class defaults of "
               f"{CLASSES} elsewhere. {TOTAL}; the same for both model ids; the multi-token prediction layer is part of it. {MTP}")


def qwen3_5_35b_a3b_cp():
    """With context parallelism its forward embeds the tokens and encodes the media before it calls the text model, whatever the batch."""
    spec = qwen3_5_35b_a3b()
    run = spec.run

    class TwoRanks:
        def size(self):
            return 2

    def run_cp():
        from nemo_automodel.components.models.qwen3_5_moe import model as module
        module.shard_sequence_for_cp_round_robin = lambda mesh, t, seq_dim=1, pad_value=0: (t, None, t.shape[seq_dim])
        model = run()
        model.cp_mesh = TwoRanks()  # read by the model's forward alone: attention stays that of one rank
        return model

    spec.name, spec.run, spec.context_parallel = "qwen3_5_35b_a3b_cp", run_cp, True
    spec.source += ". The flow with cp_size above 1: recorded on one rank, with the cut of the sequence left out"
    return spec


def qwen3_5_122b_a10b():
    return qwen3_5_moe(
        "qwen3_5_122b_a10b", dict(hidden_size=3072, moe_intermediate_size=1024, shared_expert_intermediate_size=1024,
                                  num_hidden_layers=48, num_attention_heads=32, num_experts=256, num_experts_per_tok=8,
                                  linear_num_value_heads=64),
        model_ids=["Qwen/Qwen3.5-122B-A10B"], published=125086497008,
        source=f"Numbers of the checkpoint's configuration; class defaults of {CLASSES} elsewhere. {TOTAL}; the multi-token "
               f"prediction layer is part of it. {MTP}")


def qwen3_5_397b_a17b():
    return qwen3_5_moe(
        "qwen3_5_397b_a17b", dict(hidden_size=4096, moe_intermediate_size=1024, shared_expert_intermediate_size=1024,
                                  num_hidden_layers=60, num_attention_heads=32, num_experts=512, num_experts_per_tok=10,
                                  linear_num_value_heads=64),
        model_ids=["Qwen/Qwen3.5-397B-A17B"], published=403397928944,
        source="The numbers of configs/models/qwen3.5-397b-a17b.yml of AI-Hypercomputer/maxtext; class defaults of "
               f"{CLASSES} elsewhere. {TOTAL}; the multi-token prediction layer is part of it. {MTP}")


def gemma4_26b_a4b():
    from nemo_automodel.components.models.gemma4_moe.model import Gemma4ForConditionalGeneration
    from transformers import Gemma4Config
    text = dict(vocab_size=262144, hidden_size=2816, intermediate_size=2112, num_hidden_layers=30, num_attention_heads=16,
                num_key_value_heads=8, head_dim=256, global_head_dim=512, num_global_key_value_heads=2,
                hidden_size_per_layer_input=0, num_kv_shared_layers=0, sliding_window=1024, final_logit_softcapping=30.0,
                attention_k_eq_v=True, use_bidirectional_attention="vision", enable_moe_block=True, num_experts=128,
                top_k_experts=8, moe_intermediate_size=704, layer_types=(["sliding_attention"] * 5 + ["full_attention"]) * 5)
    vision = dict(hidden_size=1152, intermediate_size=4304, num_hidden_layers=27, num_attention_heads=16, num_key_value_heads=16,
                  head_dim=72, patch_size=16, pooling_kernel_size=3, position_embedding_size=10240, standardize=True)

    def make(values):
        with without_device(Gemma4ForConditionalGeneration):
            return Gemma4ForConditionalGeneration(in_dtype(Gemma4Config(**values)), backend=backend())

    full, run = made(make, dict(text_config=text, vision_config=vision, audio_config=None),
                     dict(text_config=dict(vocab_size=64, hidden_size=32, intermediate_size=32, num_attention_heads=4,
                                           num_key_value_heads=2, head_dim=16, global_head_dim=16, num_global_key_value_heads=2,
                                           num_experts=4, top_k_experts=2, moe_intermediate_size=16),
                          vision_config=dict(hidden_size=64, intermediate_size=32, num_attention_heads=4, num_key_value_heads=4,
                                             head_dim=16, patch_size=2),
                          image_token_id=60, video_token_id=61, audio_token_id=62))
    from inventory_models import gemma4_cases
    return Spec(name="gemma4_26b_a4b", full=full, run=run, cases=gemma4_cases(False),
                conditions={"image": "vision", "video": "vision"},
                multimodal=[part("model.vision_tower", "vision", "tower"), part("model.embed_vision", "vision", "embedder")],
                moe=[dict(modules="model.language_model.layers.*.moe", count=128, top_k=8)], config=config_of(text, vision),
                model_ids=["google/gemma-4-26B-A4B-it", "google/gemma-4-26B-A4B"], published=25805936206, besides=30 + 2 * 1152 + 30 * 128,
                source="The numbers of configs/models/gemma4-26b.yml of AI-Hypercomputer/maxtext; class defaults of "
                       f"{CLASSES} elsewhere. The hub counts 25,805,936,206 stored elements for google/gemma-4-26B-A4B-it: these "
                       "parameters, 30 layer_scalar buffers, 2 x 1152 elements of std_bias and std_scale, and 30 x 128 of "
                       "per_expert_scale, which AutoModel multiplies into the experts")


def qwen3_omni_30b_a3b():
    from nemo_automodel.components.models.qwen3_omni_moe.model import Qwen3OmniMoeThinkerForConditionalGeneration
    from transformers.models.qwen3_omni_moe.configuration_qwen3_omni_moe import Qwen3OmniMoeThinkerConfig
    text = dict(vocab_size=152064, hidden_size=2048, intermediate_size=768, moe_intermediate_size=768, num_hidden_layers=48,
                num_attention_heads=32, num_key_value_heads=4, head_dim=128, num_experts=128, num_experts_per_tok=8,
                norm_topk_prob=True, decoder_sparse_step=1, mlp_only_layers=[], tie_word_embeddings=False,
                rope_parameters={"rope_type": "default", "rope_theta": 1000000.0, "mrope_section": [24, 20, 20],
                                 "mrope_interleaved": True})
    vision = dict(depth=27, hidden_size=1152, intermediate_size=4304, num_heads=16, patch_size=16, spatial_merge_size=2,
                  temporal_patch_size=2, num_position_embeddings=2304, out_hidden_size=2048, deepstack_visual_indexes=[8, 16, 24])
    audio = dict(num_mel_bins=128, encoder_layers=32, encoder_attention_heads=20, encoder_ffn_dim=5120, d_model=1280,
                 downsample_hidden_size=480, output_dim=2048, n_window=50, n_window_infer=400, conv_chunksize=500,
                 max_source_positions=1500)

    def make(values):
        config = in_dtype(Qwen3OmniMoeThinkerConfig(**values))
        config.pad_token_id = None
        with without_device(Qwen3OmniMoeThinkerForConditionalGeneration):
            return Qwen3OmniMoeThinkerForConditionalGeneration(config, backend=backend())

    full, run = made(make, dict(text_config=text, vision_config=vision, audio_config=audio),
                     dict(text_config=dict(vocab_size=64, hidden_size=32, intermediate_size=32, moe_intermediate_size=16,
                                           num_attention_heads=4, num_key_value_heads=2, head_dim=16, num_experts=4,
                                           num_experts_per_tok=2,
                                           rope_parameters={"rope_type": "default", "rope_theta": 1e4, "mrope_section": [4, 2, 2],
                                                            "mrope_interleaved": True}),
                          vision_config=dict(hidden_size=32, intermediate_size=32, num_heads=4, out_hidden_size=32,
                                             num_position_embeddings=16, patch_size=2),
                          audio_config=dict(num_mel_bins=16, encoder_attention_heads=4, encoder_ffn_dim=32, d_model=32,
                                            downsample_hidden_size=8, output_dim=32),
                          image_token_id=60, video_token_id=61, audio_token_id=62))

    def case(image=0, video=0, sound=0):
        held, kwargs = grid_case(image, video)
        if sound:
            kwargs["input_ids"] = torch.cat([kwargs["input_ids"], ids(*[(62, 13), 9] * sound)], 1)
            kwargs.pop("mm_token_type_ids", None)
            kwargs["input_features"] = torch.randn(sound, 16, 100)
            kwargs["feature_attention_mask"] = torch.ones(sound, 100, dtype=torch.long)
            held["audio"] = sound
        n = kwargs["input_ids"].shape[1]
        kwargs["position_ids"] = torch.arange(n).expand(3, 1, n)
        kwargs["attention_mask"] = torch.ones(1, n, dtype=torch.long)
        return held, kwargs

    return Spec(name="qwen3_omni_30b_a3b", full=full, run=run,
                cases=[case(), case(image=1), case(image=2), case(video=1), case(image=1, video=1), case(sound=1), case(sound=2),
                       case(image=1, sound=1), case(video=1, sound=1), case(image=1, video=1, sound=1)],
                conditions={"image": "vision", "video": "vision", "audio": "audio"},
                multimodal=[part("audio_tower", "audio", "tower"), part("visual", "vision", "tower")],
                moe=[dict(modules="model.layers.*.mlp", count=128, top_k=8)], config=config_of(text, vision, audio),
                model_ids=["Qwen/Qwen3-Omni-30B-A3B-Instruct"], published=31719205488,
                source="The Thinker, which is what recipes train; the numbers of configs/models/qwen3-omni-30b-a3b.yml of "
                       f"AI-Hypercomputer/maxtext; class defaults of {CLASSES} elsewhere. Total: the count that public evaluation "
                       "code gives for a model made of the Thinker alone, which fixes these numbers")


# Their classes forward these names to the text model that they hold; AutoModel's parallelizer asks for them.
FORWARDED = {f"model.language_model.{n}": f"model.language_model.model.{n}" for n in ("layers", "embed_tokens")}

# The decoder of DeepSeek-V3, which three families use.
DEEPSEEK_NARROW = dict(vocab_size=64, hidden_size=32, intermediate_size=32, moe_intermediate_size=16, num_attention_heads=4,
                       num_key_value_heads=4, n_routed_experts=4, num_experts_per_tok=2, kv_lora_rank=16, qk_rope_head_dim=8,
                       qk_nope_head_dim=8, v_head_dim=8, max_position_embeddings=128)


def kimi_vl_a3b():
    from nemo_automodel.components.models.kimivl.model import KimiVLConfig, KimiVLForConditionalGeneration
    text = dict(vocab_size=163840, hidden_size=2048, intermediate_size=11264, moe_intermediate_size=1408, num_hidden_layers=27,
                num_attention_heads=16, num_key_value_heads=16, n_shared_experts=2, n_routed_experts=64, num_experts_per_tok=6,
                routed_scaling_factor=2.446, kv_lora_rank=512, q_lora_rank=None, qk_rope_head_dim=64, v_head_dim=128,
                qk_nope_head_dim=128, n_group=1, topk_group=1, first_k_dense_replace=1, norm_topk_prob=True,
                max_position_embeddings=131072, tie_word_embeddings=False)
    vision = dict(patch_size=14, init_pos_emb_height=64, init_pos_emb_width=64, num_attention_heads=16, num_hidden_layers=27,
                  hidden_size=1152, intermediate_size=4304)

    def make(values):
        config = KimiVLConfig(**values)
        config.vision_config._attn_implementation = "sdpa"
        config.text_config.torch_dtype = torch.get_default_dtype()
        return KimiVLForConditionalGeneration(config, backend=backend())

    full, run = made(make, dict(text_config=text, vision_config=vision, tie_word_embeddings=False),
                     dict(text_config=DEEPSEEK_NARROW,
                          vision_config=dict(patch_size=2, init_pos_emb_height=4, init_pos_emb_width=4, num_attention_heads=4,
                                             hidden_size=32, intermediate_size=32), media_placeholder_token_id=60))

    def case(image=0):
        kwargs = {"input_ids": ids(1, 2, *[(60, 4), 5] * image, 7, 8)}
        if image:
            kwargs["pixel_values"] = torch.randn(16 * image, 3, 2, 2)
            kwargs["image_grid_hws"] = torch.tensor([[4, 4]] * image)
        return ({"image": image} if image else {}), kwargs

    return Spec(name="kimi_vl_a3b", full=full, run=run, cases=[case(), case(1), case(2)], conditions={"image": "vision"},
                multimodal=[part("model.vision_tower", "vision", "tower"),
                            part("model.multi_modal_projector", "vision", "projector")],
                attributes=FORWARDED,
                moe=[dict(modules="model.language_model.model.layers.*.mlp", count=64, top_k=6, **BIAS)],
                config=config_of({k: v for k, v in text.items() if v is not None}, vision),
                model_ids=["moonshotai/Kimi-VL-A3B-Instruct"], published=16407657776, besides=26 * 64 + 27 * 64,
                source="Text numbers of Moonlight-16B-A3B, tower of the class's defaults (MoonViT, 27 layers of 1152); class defaults "
                       f"of {CLASSES} elsewhere. The hub counts 16,407,657,776 stored elements: these parameters, 26 x 64 of "
                       "e_score_correction_bias, a buffer of the gates here, and 27 x 64 more that were not identified (one tensor "
                       "of 64 per layer of either stack would be as many)")


def mistral_small_4():
    from nemo_automodel.components.models.mistral4.configuration import Mistral4Config
    from nemo_automodel.components.models.mistral4.model import Mistral3ForConditionalGeneration
    from inventory_models import PIXTRAL
    from transformers import Mistral3Config
    text = dict(vocab_size=131072, hidden_size=4096, intermediate_size=12288, moe_intermediate_size=2048, num_hidden_layers=36,
                num_attention_heads=32, num_key_value_heads=32, n_shared_experts=1, n_routed_experts=128, num_experts_per_tok=4,
                kv_lora_rank=256, q_lora_rank=1024, qk_rope_head_dim=64, v_head_dim=128, qk_nope_head_dim=64,
                first_k_dense_replace=0)

    def make(values):
        config = Mistral3Config(text_config=Mistral4Config(**values["text_config"]), vision_config=values["vision_config"],
                                image_token_index=10, spatial_merge_size=2, vision_feature_layer=-1,
                                multimodal_projector_bias=False)
        config.torch_dtype = config.text_config.torch_dtype = torch.get_default_dtype()
        config.vision_config._attn_implementation = "sdpa"
        return Mistral3ForConditionalGeneration(config, backend=backend())

    full, run = made(make, dict(text_config=text, vision_config=PIXTRAL),
                     dict(text_config=dict(DEEPSEEK_NARROW, q_lora_rank=16, n_group=1),
                          vision_config=dict(hidden_size=64, intermediate_size=32, num_attention_heads=4, head_dim=16,
                                             image_size=16, patch_size=2)))

    def case(image=0):
        kwargs = {"input_ids": ids(1, 2, *[(10, 4), 5] * image, 7, 8)}
        if image:
            kwargs["pixel_values"] = torch.randn(image, 3, 8, 8)
            kwargs["image_sizes"] = torch.tensor([[8, 8]] * image)
        return ({"image": image} if image else {}), kwargs

    return Spec(name="mistral_small_4_119b", full=full, run=run, cases=[case(), case(1), case(2)], conditions={"image": "vision"},
                multimodal=[part("model.vision_tower", "vision", "tower"),
                            part("model.multi_modal_projector", "vision", "projector")],
                attributes=FORWARDED,
                moe=[dict(modules="model.language_model.model.layers.*.mlp", count=128, top_k=4, **BIAS)], config=config_of(text, PIXTRAL),
                model_ids=["mistralai/Mistral-Small-4-119B-2603"],
                source=f"Text: the defaults of Mistral4Config of {CLASSES}, made for this checkpoint; tower as in Mistral-Small-3.1 (24 "
                       "layers of 1024, patch 14, image 1540). An exact published count was not found: the total agrees with 119B")


def llava_ov_1_5(name, text, **more):
    from nemo_automodel.components.models.llava_onevision.model import (LLaVAOneVision1_5_ForConditionalGeneration,
                                                                        Llavaonevision1_5Config)
    text = dict(vocab_size=151936, num_hidden_layers=36, num_attention_heads=32, num_key_value_heads=8, head_dim=128,
                tie_word_embeddings=False, **text)
    vision = dict(depth=24, embed_dim=1024, hidden_size=1024, intermediate_size=4096, num_heads=16, patch_size=14,
                  spatial_merge_size=2, temporal_patch_size=1, text_hidden_size=text["hidden_size"])

    def make(values):
        return LLaVAOneVision1_5_ForConditionalGeneration(Llavaonevision1_5Config(**values), attn_implementation="sdpa")

    full, run = made(make, dict(text_config=text, vision_config=vision, tie_word_embeddings=False),
                     dict(text_config=dict(vocab_size=64, hidden_size=32, intermediate_size=32, num_attention_heads=4,
                                           num_key_value_heads=2, head_dim=16),
                          vision_config=dict(embed_dim=32, hidden_size=32, intermediate_size=32, num_heads=4, patch_size=2,
                                             text_hidden_size=32), image_token_id=60, video_token_id=61))
    # Two images read the class embedding once each; one stands for them.
    cases = [grid_case(n, types=False, width=3 * 2 * 2) for n in range(2)]
    return Spec(name=name, full=full, run=run, cases=cases, conditions={"image": "vision"},
                multimodal=[part("model.visual", "vision", "tower")], config=config_of(text, vision), **more)


def llava_ov_1_5_4b():
    return llava_ov_1_5("llava_ov_1_5_4b", dict(hidden_size=2560, intermediate_size=9728),
                        model_ids=["lmms-lab/LLaVA-OneVision-1.5-4B-Instruct"],
                        source=f"Text numbers of Qwen3-4B, embeddings untied as the class demands; tower: defaults of RiceConfig of {CLASSES}. "
                               "An exact published count was not found")


def llava_ov_1_5_8b():
    return llava_ov_1_5("llava_ov_1_5_8b", dict(hidden_size=4096, intermediate_size=12288),
                        model_ids=["lmms-lab/LLaVA-OneVision-1.5-8B-Instruct"],
                        source=f"Text numbers of Qwen3-8B, embeddings untied as the class demands; tower: defaults of RiceConfig of {CLASSES}. "
                               "An exact published count was not found: the total agrees with 8.5B")


def muse_glimmer_30b():
    from nemo_automodel.components.models.muse_glimmer.config import MuseGlimmerConfig
    from nemo_automodel.components.models.muse_glimmer.model import MuseGlimmerForConditionalGeneration

    def make(values):
        return MuseGlimmerForConditionalGeneration(MuseGlimmerConfig(**values), backend=backend())

    full, run = made(make, {}, dict(hidden_size=32, num_attention_heads=4, num_key_value_heads=2, head_dim=8, intermediate_size=32,
                                    vocab_size=64, max_position_embeddings=128, vision_latent_dim=16, vision_output_dim=64,
                                    vision_heads=2, vision_mlp_ratio=2.0, vision_patch_size=2, vision_pos_emb_grid_h=4,
                                    vision_pos_emb_grid_w=4, vision_adapter_dim=24, patch_token_id=60, video_token_id=61,
                                    bos_token_id=1, eos_token_id=2))
    c = MuseGlimmerConfig()
    cases = grid_cases(types=False)
    return Spec(name="muse_glimmer_30b", full=full, run=run, cases=cases, conditions={"image": "vision", "video": "vision"},
                multimodal=[part("model.vision_encoder", "vision", "tower"), part("model.vision_adapter", "vision", "projector"),
                            part("model.vision_projection", "vision", "projector")],
                config=config_of({k: getattr(c, k) for k in ("vocab_size", "hidden_size", "num_hidden_layers", "intermediate_size")}),
                model_ids=["meta-models/Muse-Glimmer-30B"], published=29776626688,
                source="Defaults of MuseGlimmerConfig of nemo-automodel 0.7.0, which has the class (0.6.0 has not), run with transformers "
                       "5.12.1. Total: the hub's count, repeated in public repositories")


def kimi_k2_5():
    from nemo_automodel.components.models.kimi_k25_vl.model import KimiK25VLConfig, KimiK25VLForConditionalGeneration
    text = dict(vocab_size=163840, hidden_size=7168, intermediate_size=18432, moe_intermediate_size=2048, num_hidden_layers=61,
                num_attention_heads=64, num_key_value_heads=64, n_shared_experts=1, n_routed_experts=384, num_experts_per_tok=8,
                routed_scaling_factor=2.827, kv_lora_rank=512, q_lora_rank=1536, qk_rope_head_dim=64, v_head_dim=128,
                qk_nope_head_dim=128, n_group=1, topk_group=1, first_k_dense_replace=1, norm_topk_prob=True,
                max_position_embeddings=262144, tie_word_embeddings=False)
    vision = dict(patch_size=14, init_pos_emb_height=64, init_pos_emb_width=64, init_pos_emb_time=4, num_attention_heads=16,
                  num_hidden_layers=27, hidden_size=1152, intermediate_size=4304)

    def make(values):
        config = KimiK25VLConfig(**values)
        config.vision_config._attn_implementation = "sdpa"
        config.text_config.torch_dtype = torch.get_default_dtype()
        return KimiK25VLForConditionalGeneration(config, backend=backend())

    full, run = made(make, dict(text_config=text, vision_config=vision),
                     dict(text_config=dict(DEEPSEEK_NARROW, q_lora_rank=16),
                          vision_config=dict(patch_size=2, init_pos_emb_height=4, init_pos_emb_width=4, num_attention_heads=4,
                                             hidden_size=32, intermediate_size=32), media_placeholder_token_id=60))

    def case(image=0):
        kwargs = {"input_ids": ids(1, 2, *[(60, 4), 5] * image, 7, 8)}
        if image:
            kwargs["pixel_values"] = torch.randn(16 * image, 3, 2, 2)
            kwargs["grid_thws"] = torch.tensor([[1, 4, 4]] * image)
            kwargs["attention_mask"] = torch.ones_like(kwargs["input_ids"])
        return ({"image": image} if image else {}), kwargs

    # The projector calls its layers once per image; one image stands for them.
    return Spec(name="kimi_k2_5", full=full, run=run, cases=[case(), case(1)], conditions={"image": "vision"},
                multimodal=[part("model.vision_tower", "vision", "tower"),
                            part("model.multi_modal_projector", "vision", "projector")],
                attributes=FORWARDED,
                moe=[dict(modules="model.language_model.model.layers.*.mlp", count=384, top_k=8, **BIAS)], config=config_of(text, vision),
                model_ids=["moonshotai/Kimi-K2.5"],
                source="Text numbers of Kimi-K2 (DeepSeek-V3's decoder, 61 layers of 7168, 384 experts); tower and projector: defaults of "
                       f"KimiK25VLConfig of {CLASSES}. The published count of this checkpoint is of packed 4-bit words; that of "
                       "Kimi-K2, 1,026,408,232,448, leaves 471,120,880 for tower and projector")


def minimax_m3():
    from nemo_automodel.components.models.minimax_m3_vl.config import MiniMaxM3VLConfig
    from nemo_automodel.components.models.minimax_m3_vl.model import MiniMaxM3SparseForConditionalGeneration
    sparse = dict(use_sparse_attention=True, sparse_num_index_heads=4, sparse_index_dim=128, sparse_block_size=128,
                  sparse_topk_blocks=16, sparse_attention_freq=[0] * 3 + [1] * 57)
    text = dict(vocab_size=200064, hidden_size=6144, intermediate_size=3072, dense_intermediate_size=12288,
                shared_intermediate_size=3072, num_hidden_layers=60, num_attention_heads=64, num_key_value_heads=4, head_dim=128,
                num_local_experts=128, num_experts_per_tok=4, moe_layer_freq=[0] * 3 + [1] * 57, num_mtp_modules=0,
                sparse_attention_config=sparse)
    vision = dict(hidden_size=1280, num_attention_heads=16, num_hidden_layers=32, intermediate_size=5120, patch_size=14)

    def make(values):
        config = MiniMaxM3VLConfig(**values)
        config.text_config.torch_dtype = torch.get_default_dtype()
        return MiniMaxM3SparseForConditionalGeneration(config, backend=backend())

    full, run = made(make, dict(text_config=text, vision_config=vision),
                     dict(text_config=dict(vocab_size=64, hidden_size=32, intermediate_size=16, dense_intermediate_size=32,
                                           shared_intermediate_size=16, num_attention_heads=4, num_key_value_heads=4, head_dim=16,
                                           rotary_dim=8, num_local_experts=4, num_experts_per_tok=2,
                                           sparse_attention_config=dict(sparse_index_dim=16, sparse_block_size=4,
                                                                        sparse_topk_blocks=2)),
                          vision_config=dict(hidden_size=48, num_attention_heads=4, intermediate_size=32, patch_size=2),
                          projector_hidden_size=32, image_token_index=60, video_token_index=61))
    return Spec(name="minimax_m3", full=full, run=run, cases=[grid_case(n, types=False) for n in range(3)],
                conditions={"image": "vision"}, multimodal=[part("vision_tower", "vision", "tower")],
                moe=[dict(modules="model.layers.*.mlp", count=128, top_k=4, **BIAS)], config=config_of(text, vision),
                model_ids=["MiniMaxAI/MiniMax-M3"], published=427040140160, besides=57 * 128,
                source=f"Defaults of MiniMaxM3VLConfig of {CLASSES}; 3 dense and 57 sparse layers, index heads of 128 and 16 blocks of 128 as the "
                       "model page and the bridge of Megatron-Bridge say; 4 index heads follow from the total. No layers for "
                       "multi-token prediction, which the checkpoint does not hold. The hub counts 427,040,140,160 stored elements: "
                       "these parameters and 57 x 128 of e_score_correction_bias, a buffer of the gates here")


def step_3_7_flash():
    from nemo_automodel.components.models.step3p7.configuration_step3p7 import Step3p7Config
    from nemo_automodel.components.models.step3p7.model import Step3p7ForConditionalGeneration
    kinds = ["sliding_attention" if i % 4 else "full_attention" for i in range(48)]
    text = dict(vocab_size=128896, hidden_size=4096, intermediate_size=11264, num_attention_heads=64, num_attention_groups=8,
                num_hidden_layers=45, num_nextn_predict_layers=3, head_dim=128, moe_intermediate_size=1280, moe_num_experts=288,
                moe_top_k=8, share_expert_dim=1280, use_head_wise_attn_gate=True, use_moe_router_bias=True,
                moe_router_activation="sigmoid", moe_router_scaling_factor=3.0, need_fp32_gate=True, sliding_window=512,
                layer_types=kinds, rope_theta=[10000.0 if i % 4 else 5000000.0 for i in range(48)],
                partial_rotary_factors=[1.0 if i % 4 else 0.5 for i in range(48)],
                attention_other_setting=dict(attention_type="sliding_attention", num_attention_heads=96, num_attention_groups=8,
                                             head_dim=128))
    vision = dict(width=1536, layers=47, heads=16, image_size=728, patch_size=14)

    def make(values):
        config = Step3p7Config(**values)
        config.torch_dtype = config.text_config.torch_dtype = torch.get_default_dtype()
        return Step3p7ForConditionalGeneration(config, backend=backend())

    full, run = made(make, dict(text_config=text, vision_config=vision),
                     dict(text_config=dict(vocab_size=64, hidden_size=32, intermediate_size=32, num_attention_heads=4,
                                           num_attention_groups=2, head_dim=16, moe_intermediate_size=16, moe_num_experts=4,
                                           moe_top_k=2, share_expert_dim=16, max_position_embeddings=128,
                                           attention_other_setting=dict(num_attention_heads=4, num_attention_groups=2, head_dim=16)),
                          vision_config=dict(width=32, heads=4, image_size=32, patch_size=2, mlp_ratio=2.0), image_token_id=60))

    def case(image=0):
        kwargs = {"input_ids": ids(1, 2, *[(60, 16), 5] * image, 7, 8)}
        if image:
            kwargs["pixel_values"] = torch.randn(image, 3, 32, 32)
        return ({"image": image} if image else {}), kwargs

    return Spec(name="step_3_7_flash", full=full, run=run, cases=[case(), case(1), case(2)], conditions={"image": "vision"},
                multimodal=[part("model.vision_model", "vision", "tower"), part("model.vit_large_projector", "vision", "projector")],
                moe=[dict(modules="model.language_model.layers.*.moe", count=288, top_k=8, gate_bias="e_score_correction_bias")],
                loss=["logits", "mtp_per_depth_logits"], config=config_of(text, vision),
                model_ids=["stepfun-ai/Step-3.7-Flash"],
                source=f"Defaults of Step3p7Config of {CLASSES} with the numbers that TensorRT-LLM's tests assert of the checkpoint (vocabulary "
                       "128896, 288 experts, 96 heads in sliding layers, 3 layers of multi-token prediction). An exact published "
                       "count was not found: the text agrees with 198B. The MTP layers' logits are outputs of forward")
