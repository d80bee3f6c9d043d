"""Models of scenarios/models/ whose classes are those of transformers, for record_inventory.py and check_inventory.py.

Each function gives the published configuration (on the meta device) and a narrow one of the same depth and pattern that
runs on a CPU. `transformers` supplies the classes; no weight is read."""
import copy

import torch

from record_inventory import Spec


def build(cls, config, device, dtype):
    config = copy.deepcopy(config)
    for c in (config, *(getattr(config, n) for n in ("text_config", "vision_config", "audio_config") if getattr(config, n, None))):
        c._attn_implementation = "eager" if c.model_type == "gemma3n_vision" else "sdpa"   # timm's has no choice
    with torch.device(device):
        model = cls._from_config(config, dtype=dtype)
    return model


def pair(cls, config_class, full, narrow):
    """full and narrow: nested dicts; narrow overrides full."""
    def deep(a, b):
        out = dict(a)
        for k, v in b.items():
            out[k] = deep(out.get(k, {}), v) if isinstance(v, dict) and isinstance(out.get(k), dict) else v
        return out
    return (lambda: build(cls, config_class(**copy.deepcopy(full)), "meta", torch.bfloat16),
            lambda: build(cls, config_class(**deep(full, narrow)), "cpu", torch.float32))


def ids(*parts):
    """Token ids: numbers, or (id, count)."""
    out = []
    for p in parts:
        out += [p[0]] * p[1] if isinstance(p, tuple) else [p]
    return torch.tensor([out])


def qwen3_vl(name, text, vision, tie, **more):
    from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration
    text = dict(vocab_size=151936, num_hidden_layers=36, num_attention_heads=32, num_key_value_heads=8, head_dim=128,
                max_position_embeddings=262144, tie_word_embeddings=tie,
                rope_parameters={"rope_type": "default", "rope_theta": 5000000.0, "mrope_section": [24, 20, 20],
                                 "mrope_interleaved": True}, **text)
    vision = dict(num_heads=16, in_channels=3, patch_size=16, spatial_merge_size=2, temporal_patch_size=2,
                  num_position_embeddings=2304, out_hidden_size=text["hidden_size"], **vision)
    full, run = pair(Qwen3VLForConditionalGeneration, Qwen3VLConfig,
                     dict(text_config=text, vision_config=vision, tie_word_embeddings=tie,
                          image_token_id=151655, video_token_id=151656),
                     dict(text_config=dict(vocab_size=64, hidden_size=32, intermediate_size=32, num_attention_heads=4,
                                           num_key_value_heads=2, head_dim=16,
                                           rope_parameters={"rope_type": "default", "rope_theta": 1e4,
                                                            "mrope_section": [4, 2, 2], "mrope_interleaved": True}),
                          vision_config=dict(hidden_size=32, intermediate_size=32, num_heads=4, out_hidden_size=32,
                                             num_position_embeddings=16, patch_size=2),
                          image_token_id=60, video_token_id=61))
    return Spec(name=name, full=full, run=run, cases=grid_cases(), conditions={"image": "vision", "video": "vision"},
                multimodal=[part("model.visual", "vision", "tower")], config=config_of(text, vision), **more)


def grid_case(image=0, video=0, types=True, pixels=16, width=3 * 2 * 2 * 2):
    """Input ids and patches of the Qwen-VL family: 4 x 4 patches of 2 x 2 pixels, merged by 2 x 2."""
    parts = [1, 2] + [(60, 4), 5] * image + [(61, 4), 6] * video + [7, 8]
    kwargs = {"use_cache": False, "input_ids": ids(*parts)}
    for count, name, grid in ((image, "pixel_values", "image_grid_thw"), (video, "pixel_values_videos", "video_grid_thw")):
        if count:
            kwargs[name] = torch.randn(pixels * count, width)
            kwargs[grid] = torch.tensor([[1, 4, 4]] * count)
    if types and (image or video):
        kwargs["mm_token_type_ids"] = (kwargs["input_ids"] == 60).int() + 2 * (kwargs["input_ids"] == 61).int()
    return {k: v for k, v in (("image", image), ("video", video)) if v}, dict(sorted(kwargs.items()))


def grid_cases(**more):
    return [grid_case(image, video, **more) for image, video in ((0, 0), (1, 0), (2, 0), (0, 1), (1, 1))]


def part(path, modality, role):
    return dict(path=path, modality=modality, role=role, conditionally_executed=True)


def qwen3_vl_4b():
    return qwen3_vl(
        "qwen3_vl_4b", dict(hidden_size=2560, intermediate_size=9728),
        dict(depth=24, hidden_size=1024, intermediate_size=4096, deepstack_visual_indexes=[5, 11, 17]), True,
        published=4437815808, model_ids=["Qwen/Qwen3-VL-4B-Instruct", "Qwen/Qwen3-VL-4B-Thinking"],
        source="The checkpoint's numbers as public repositories repeat them in an explicit Qwen3VLConfig (class WanMLLMEncoder, "
               "written for DiffSynth-Studio); class defaults of transformers 5.12.1 elsewhere. "
               "Total: the hub's count for Qwen/Qwen3-VL-4B-Instruct, repeated in public evaluation logs.")


def qwen3_vl_8b():
    return qwen3_vl(
        "qwen3_vl_8b", dict(hidden_size=4096, intermediate_size=12288),
        dict(depth=27, hidden_size=1152, intermediate_size=4304, deepstack_visual_indexes=[8, 16, 24]), False,
        published=8767123696, model_ids=["Qwen/Qwen3-VL-8B-Instruct", "Qwen/Qwen3-VL-8B-Thinking"],
        source="Text numbers of Qwen3-8B; the tower as in the published configurations of Qwen3-VL-30B and -235B (test data of "
               "sgl-project/ome), with the output width of the text; class defaults of transformers 5.12.1 elsewhere. Total: "
               "the hub's count for Qwen/Qwen3-VL-8B-Instruct, repeated in public repositories, which fixes these numbers")


def gemma3_4b():
    from transformers import Gemma3Config, Gemma3ForConditionalGeneration
    text = dict(vocab_size=262208, hidden_size=2560, intermediate_size=10240, num_hidden_layers=34, num_attention_heads=8,
                num_key_value_heads=4, head_dim=256, sliding_window=1024)
    vision = dict(hidden_size=1152, intermediate_size=4304, num_hidden_layers=27, num_attention_heads=16, image_size=896,
                  patch_size=14, vision_use_head=False)
    full, run = pair(Gemma3ForConditionalGeneration, Gemma3Config,
                     dict(text_config=text, vision_config=vision, mm_tokens_per_image=256, image_token_index=262144),
                     dict(text_config=dict(vocab_size=64, hidden_size=32, intermediate_size=32, num_attention_heads=4,
                                           num_key_value_heads=2, head_dim=16),
                          vision_config=dict(hidden_size=32, intermediate_size=32, num_attention_heads=4, image_size=8,
                                             patch_size=2),
                          mm_tokens_per_image=4, image_token_index=60))

    def case(image=0):
        kwargs = {"input_ids": ids(1, 2, *[(60, 4), 5] * image, 7, 8), "use_cache": False}
        kwargs["token_type_ids"] = (kwargs["input_ids"] == 60).long()
        if image:
            kwargs["pixel_values"] = torch.randn(image, 3, 8, 8)
        return ({"image": image} if image else {}), kwargs

    return Spec(
        name="gemma3_4b", full=full, run=run, published=4300079472, cases=[case(), case(1), case(2)],
        model_ids=["google/gemma-3-4b-it", "google/gemma-3-4b-pt"], conditions={"image": "vision"},
        multimodal=[dict(path="model.vision_tower", modality="vision", role="tower", conditionally_executed=True),
                    dict(path="model.multi_modal_projector", modality="vision", role="projector", conditionally_executed=True)],
        config=config_of(text, vision),
        source="Variant 4b of the conversion script src/transformers/models/gemma3/convert_gemma3_weights.py of "
               "huggingface/transformers (SigLIP so400m tower, 896 pixels, patch 14); class defaults of transformers 5.12.1 "
               "elsewhere. Total: the hub's count for google/gemma-3-4b-it, also given by the keras-hub presets for MedGemma 4B.")


def mistral3(name, text, vision, tie, **more):
    from transformers import Mistral3Config, Mistral3ForConditionalGeneration
    text = dict(model_type="ministral3", vocab_size=131072, head_dim=128, num_key_value_heads=8, tie_word_embeddings=tie, **text)
    full, run = pair(Mistral3ForConditionalGeneration, Mistral3Config,
                     dict(text_config=text, vision_config=vision, image_token_index=10, spatial_merge_size=2,
                          vision_feature_layer=-1, multimodal_projector_bias=False, tie_word_embeddings=tie),
                     dict(text_config=dict(vocab_size=64, hidden_size=32, intermediate_size=32, num_attention_heads=4,
                                           num_key_value_heads=2, head_dim=16),
                          vision_config=dict(hidden_size=64, intermediate_size=32, num_attention_heads=4, head_dim=16,
                                             image_size=16, patch_size=2)))

    def case(image=0):
        kwargs = {"input_ids": ids(1, 2, *[(10, 4), 5] * image, 7, 8), "use_cache": False}
        if image:
            kwargs["pixel_values"] = torch.randn(image, 3, 8, 8)
            kwargs["image_sizes"] = torch.tensor([[8, 8]] * image)
        return ({"image": image} if image else {}), kwargs

    return Spec(name=name, full=full, run=run, cases=[case(), case(1), case(2)], conditions={"image": "vision"},
                multimodal=[part("model.vision_tower", "vision", "tower"),
                            part("model.multi_modal_projector", "vision", "projector")],
                config=config_of(text, vision), **more)


PIXTRAL = dict(model_type="pixtral", hidden_size=1024, intermediate_size=4096, num_hidden_layers=24, num_attention_heads=16,
               head_dim=64, image_size=1540, patch_size=14)


def ministral3_ids(size):
    return [f"mistralai/Ministral-3-{size}-{kind}-2512" for kind in ("Instruct", "Base", "Reasoning")]


def ministral3_3b():
    return mistral3(
        "ministral3_3b", dict(hidden_size=3072, intermediate_size=9216, num_hidden_layers=26, num_attention_heads=32), PIXTRAL,
        True, published=3849090048, model_ids=ministral3_ids("3B"),
        source="Ministral 3 report and the Megatron-Bridge model page (26 layers, hidden 3072, 32 heads, 8 groups, tied "
               "embeddings, 410M Pixtral-type encoder); intermediate 9216 and vocabulary 131072 from public catalogues of the "
               "checkpoint; encoder as in Mistral-Small-3.1 (24 layers of 1024, patch 14, image 1540). Class defaults of "
               "transformers 5.12.1 elsewhere. Total: the hub's count for Ministral-3-3B-Instruct-2512, with 420,083,712 of it "
               "for the encoder and the projector, repeated in public evaluation code")


def ministral3_8b():
    return mistral3(
        "ministral3_8b", dict(hidden_size=4096, intermediate_size=14336, num_hidden_layers=34, num_attention_heads=32), PIXTRAL,
        False, model_ids=ministral3_ids("8B"),
        source="The Megatron-Bridge model page (34 layers, hidden 4096, 32 heads, 8 groups, 8.9B parameters); intermediate 14336 "
               "and untied embeddings from the Ministral 3 report; encoder as for the 3B model. Class defaults of transformers "
               "5.12.1 elsewhere. An exact published count was not found: the total agrees with 8.9B")


def ministral3_14b():
    return mistral3(
        "ministral3_14b", dict(hidden_size=5120, intermediate_size=16384, num_hidden_layers=40, num_attention_heads=32), PIXTRAL,
        False, model_ids=ministral3_ids("14B"),
        source="The Megatron-Bridge model page (40 layers, hidden 5120, 32 heads, 8 groups, 13.9B parameters); intermediate 16384 "
               "and untied embeddings from the Ministral 3 report; encoder as for the 3B model. Class defaults of transformers "
               "5.12.1 elsewhere. An exact published count was not found: the total agrees with 13.9B")


def gemma4_cases(audio):
    grid = torch.tensor([[x, y] for y in range(3) for x in range(3)])       # nine patches, pooled to one token

    def case(image=0, video=0, sound=0):
        parts = [1, 2] + [60, 5] * image + [61, 6] * 2 * video + [(62, 4), 9] * sound + [7, 8]
        kwargs = {"input_ids": ids(*parts), "use_cache": False}
        kwargs["mm_token_type_ids"] = (kwargs["input_ids"] == 60).long() + 2 * (kwargs["input_ids"] == 61).long()
        if image:
            kwargs["pixel_values"] = torch.rand(image, 9, 12)
            kwargs["image_position_ids"] = grid.expand(image, 9, 2)
        if video:
            kwargs["pixel_values_videos"] = torch.rand(video, 2, 9, 12)
            kwargs["video_position_ids"] = grid.expand(video, 2, 9, 2)
        if sound:
            kwargs["input_features"] = torch.rand(sound, 16, 128)
            kwargs["input_features_mask"] = torch.ones(sound, 16, dtype=torch.bool)
        return {k: v for k, v in (("image", image), ("video", video), ("audio", sound)) if v}, kwargs

    cases = [case(), case(image=1), case(image=2), case(video=1), case(image=1, video=1)]
    if audio:
        cases += [case(sound=1), case(image=1, sound=1), case(video=1, sound=1), case(image=1, video=1, sound=1)]
    return cases


def gemma4(name, text, vision, audio, narrow_text, narrow_vision, narrow_audio, **more):
    from transformers import Gemma4Config, Gemma4ForConditionalGeneration
    full_parts = dict(text_config=text, vision_config=vision, audio_config=audio)
    narrow_parts = dict(text_config=narrow_text, vision_config=narrow_vision, image_token_id=60, video_token_id=61,
                        audio_token_id=62)
    if audio:
        narrow_parts["audio_config"] = narrow_audio
    full, run = pair(Gemma4ForConditionalGeneration, Gemma4Config, full_parts, narrow_parts)
    conditions = {"image": "vision", "video": "vision"}
    multimodal = [dict(path="model.vision_tower", modality="vision", role="tower", conditionally_executed=True),
                  dict(path="model.embed_vision", modality="vision", role="embedder", conditionally_executed=True)]
    if audio:
        conditions["audio"] = "audio"
        multimodal += [dict(path="model.audio_tower", modality="audio", role="tower", conditionally_executed=True),
                       dict(path="model.embed_audio", modality="audio", role="embedder", conditionally_executed=True)]
    return Spec(name=name, full=full, run=run, cases=gemma4_cases(audio), conditions=conditions, multimodal=multimodal,
                config=config_of(text, vision, audio), **more)


def gemma4_e4b():
    text = dict(vocab_size=262144, hidden_size=2560, intermediate_size=10240, num_hidden_layers=42, num_attention_heads=8,
                num_key_value_heads=2, head_dim=256, global_head_dim=512, num_global_key_value_heads=None,
                vocab_size_per_layer_input=262144, hidden_size_per_layer_input=256, num_kv_shared_layers=18,
                sliding_window=512, final_logit_softcapping=30.0, attention_k_eq_v=False, use_double_wide_mlp=False,
                layer_types=(["sliding_attention"] * 5 + ["full_attention"]) * 7)
    vision = dict(hidden_size=768, intermediate_size=3072, num_hidden_layers=16, num_attention_heads=12, num_key_value_heads=12,
                  head_dim=64, patch_size=16, pooling_kernel_size=3, position_embedding_size=10240, use_clipped_linears=True)
    audio = dict(hidden_size=1024, num_hidden_layers=12, num_attention_heads=8, output_proj_dims=1536,
                 use_clipped_linears=True)
    return gemma4(
        "gemma4_e4b", text, vision, audio,
        dict(vocab_size=64, hidden_size=32, intermediate_size=32, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
             global_head_dim=16, vocab_size_per_layer_input=64, hidden_size_per_layer_input=8),
        dict(hidden_size=64, intermediate_size=32, num_attention_heads=4, num_key_value_heads=4, head_dim=16, patch_size=2),
        dict(hidden_size=32, num_attention_heads=4, output_proj_dims=24),
        model_ids=["google/gemma-4-E4B-it", "google/gemma-4-E4B"], published=7996156490,
        besides=42 + 15 * (2 * 512 * 2560 + 256) + 3 * (2 * 1024 * 2560 + 512), source="Variant gemma-4-e4b of src/transformers/models/gemma4/convert_gemma4_weights.py of huggingface/transformers; class "
               "defaults of transformers 5.12.1 elsewhere. The hub counts 7,996,156,490 stored elements for google/gemma-4-E4B-it: "
               "these parameters, 42 layer_scalar buffers, and 55,055,616 elements of k_proj, v_proj and k_norm of the 18 layers "
               "that share keys and values, which the checkpoint holds and the class no longer builds")


def gemma4_e2b():
    text = dict(vocab_size=262144, hidden_size=1536, intermediate_size=6144, num_hidden_layers=35, num_attention_heads=8,
                num_key_value_heads=1, head_dim=256, global_head_dim=512, num_global_key_value_heads=None,
                vocab_size_per_layer_input=262144, hidden_size_per_layer_input=256, num_kv_shared_layers=20,
                sliding_window=512, final_logit_softcapping=30.0, attention_k_eq_v=False, use_double_wide_mlp=True,
                layer_types=(["sliding_attention"] * 4 + ["full_attention"]) * 7)
    vision = dict(hidden_size=768, intermediate_size=3072, num_hidden_layers=16, num_attention_heads=12, num_key_value_heads=12,
                  head_dim=64, patch_size=16, pooling_kernel_size=3, position_embedding_size=10240, use_clipped_linears=True)
    audio = dict(hidden_size=1024, num_hidden_layers=12, num_attention_heads=8, output_proj_dims=1536,
                 use_clipped_linears=True)
    return gemma4(
        "gemma4_e2b", text, vision, audio,
        dict(vocab_size=64, hidden_size=32, intermediate_size=32, num_attention_heads=4, num_key_value_heads=1, head_dim=16,
             global_head_dim=16, vocab_size_per_layer_input=64, hidden_size_per_layer_input=8),
        dict(hidden_size=64, intermediate_size=32, num_attention_heads=4, num_key_value_heads=4, head_dim=16, patch_size=2),
        dict(hidden_size=32, num_attention_heads=4, output_proj_dims=24),
        model_ids=["google/gemma-4-E2B-it", "google/gemma-4-E2B"], published=5123178051,
        besides=35 + 16 * (2 * 256 * 1536 + 256) + 4 * (2 * 512 * 1536 + 512),
        source="The numbers of configs/models/gemma4-e2b.yml of AI-Hypercomputer/maxtext, audio tower and class defaults as for E4B; "
               "transformers 5.12.1. The hub counts 5,123,178,051 stored elements for google/gemma-4-E2B-it: these parameters, 35 "
               "layer_scalar buffers, and 18,880,512 elements of k_proj, v_proj and k_norm of the 20 layers that share keys and "
               "values, which the checkpoint holds and the class no longer builds")


def gemma4_31b():
    text = dict(vocab_size=262144, hidden_size=5376, intermediate_size=21504, num_hidden_layers=60, num_attention_heads=32,
                num_key_value_heads=16, head_dim=256, global_head_dim=512, num_global_key_value_heads=4,
                hidden_size_per_layer_input=0, num_kv_shared_layers=0, sliding_window=1024, final_logit_softcapping=30.0,
                attention_k_eq_v=True, use_bidirectional_attention="vision",
                layer_types=(["sliding_attention"] * 5 + ["full_attention"]) * 10)
    vision = dict(hidden_size=1152, intermediate_size=4304, num_hidden_layers=27, num_attention_heads=16, num_key_value_heads=16,
                  head_dim=72, patch_size=16, pooling_kernel_size=3, position_embedding_size=10240, standardize=True)
    return gemma4(
        "gemma4_31b", text, vision, None,
        dict(vocab_size=64, hidden_size=32, intermediate_size=32, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
             global_head_dim=16, num_global_key_value_heads=2),
        dict(hidden_size=64, intermediate_size=32, num_attention_heads=4, num_key_value_heads=4, head_dim=16, patch_size=2),
        None, model_ids=["google/gemma-4-31B-it", "google/gemma-4-31B"], published=31273088876, besides=60 + 2 * 1152, source="Variant gemma-4-31b of src/transformers/models/gemma4/convert_gemma4_weights.py of huggingface/transformers; class "
               "defaults of transformers 5.12.1 elsewhere. The hub counts 31,273,088,876 stored elements for google/gemma-4-31B-it: "
               "these parameters, 60 layer_scalar buffers and 2 x 1152 elements of std_bias and std_scale")


def qwen2_5_omni(name, text, **more):
    from transformers import Qwen2_5OmniThinkerConfig, Qwen2_5OmniThinkerForConditionalGeneration
    text = dict(tie_word_embeddings=False,
                rope_parameters={"rope_type": "default", "rope_theta": 1000000.0, "mrope_section": [16, 24, 24]}, **text)
    vision = dict(depth=32, hidden_size=1280, intermediate_size=3420, num_heads=16, patch_size=14, spatial_merge_size=2,
                  temporal_patch_size=2, window_size=112, out_hidden_size=text["hidden_size"])
    audio = dict(num_mel_bins=128, encoder_layers=32, encoder_attention_heads=20, encoder_ffn_dim=5120, d_model=1280,
                 output_dim=text["hidden_size"])
    full, run = pair(Qwen2_5OmniThinkerForConditionalGeneration, Qwen2_5OmniThinkerConfig,
                     dict(text_config=text, vision_config=vision, audio_config=audio, tie_word_embeddings=False),
                     dict(text_config=dict(vocab_size=64, hidden_size=32, intermediate_size=32, num_attention_heads=2,
                                           num_key_value_heads=1,
                                           rope_parameters={"rope_type": "default", "rope_theta": 1e4,
                                                            "mrope_section": [4, 2, 2]}),
                          vision_config=dict(hidden_size=32, intermediate_size=32, num_heads=4, patch_size=2, window_size=8,
                                             out_hidden_size=32),
                          audio_config=dict(num_mel_bins=8, encoder_attention_heads=4, encoder_ffn_dim=32, d_model=32,
                                            output_dim=32),
                          image_token_index=60, video_token_index=61, audio_token_index=62))

    def case(image=0, video=0, sound=0):
        parts = [1, 2] + [(60, 4), 5] * image + [(61, 4), 6] * video + [(62, 5), 9] * sound + [7, 8]
        kwargs = {"input_ids": ids(*parts), "use_cache": False}
        n = kwargs["input_ids"].shape[1]
        kwargs["position_ids"] = torch.arange(n).expand(3, 1, n)
        for count, pixels, grid in ((image, "pixel_values", "image_grid_thw"), (video, "pixel_values_videos", "video_grid_thw")):
            if count:
                kwargs[pixels] = torch.randn(16 * count, 3 * 2 * 2 * 2)
                kwargs[grid] = torch.tensor([[1, 4, 4]] * count)
        if sound:
            kwargs["input_features"] = torch.randn(sound, 8, 20)
            kwargs["feature_attention_mask"] = torch.ones(sound, 20, dtype=torch.long)
        return {k: v for k, v in (("image", image), ("video", video), ("audio", sound)) if v}, kwargs

    return Spec(
        name=name, full=full, run=run,
        cases=[case(), case(image=1), case(image=2), case(video=1), case(image=1, video=1), case(sound=1), case(sound=2),
               case(image=1, sound=1), case(video=1, sound=1), case(image=1, video=1, sound=1)],
        conditions={"image": "vision", "video": "vision", "audio": "audio"},
        multimodal=[part("audio_tower", "audio", "tower"), part("visual", "vision", "tower")],
        config=config_of(text, vision, audio), **more)


def qwen2_5_omni_3b():
    return qwen2_5_omni(
        "qwen2_5_omni_3b", dict(vocab_size=151936, hidden_size=2048, intermediate_size=11008, num_hidden_layers=36,
                                num_attention_heads=16, num_key_value_heads=2),
        model_ids=["Qwen/Qwen2.5-Omni-3B"], published=4703464448,
        source="Thinker text numbers from a public port of the checkpoint's configuration (Tyr/Model/Qwen25Omni/Config.lean); towers: "
               "the Qwen2.5-Omni report (Qwen2.5-VL vision encoder of 32 layers of 1280, Whisper-large-v3 audio encoder), with "
               "output widths equal to the text width; class defaults of transformers 5.12.1 elsewhere. Total: the parameter "
               "count that public evaluation code asserts for the 3B Thinker checkpoint")


def qwen2_5_omni_7b():
    return qwen2_5_omni(
        "qwen2_5_omni_7b", dict(vocab_size=152064, hidden_size=3584, intermediate_size=18944, num_hidden_layers=28,
                                num_attention_heads=28, num_key_value_heads=4),
        model_ids=["Qwen/Qwen2.5-Omni-7B"], published=8931813888,
        source="Defaults of Qwen2_5OmniTextConfig of transformers 5.12.1 with the text numbers of Qwen2.5-7B; towers as for the 3B "
               "model. Total: total_parameters in the index of a public Thinker-only checkpoint of the 7B model")


def qwen2_5_vl_3b():
    from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration
    text = dict(vocab_size=151936, hidden_size=2048, intermediate_size=11008, num_hidden_layers=36, num_attention_heads=16,
                num_key_value_heads=2, tie_word_embeddings=True,
                rope_parameters={"rope_type": "default", "rope_theta": 1000000.0, "mrope_section": [16, 24, 24]})
    vision = dict(depth=32, hidden_size=1280, intermediate_size=3420, num_heads=16, patch_size=14, spatial_merge_size=2,
                  temporal_patch_size=2, window_size=112, out_hidden_size=2048)
    full, run = pair(Qwen2_5_VLForConditionalGeneration, Qwen2_5_VLConfig,
                     dict(text_config=text, vision_config=vision, tie_word_embeddings=True),
                     dict(text_config=dict(vocab_size=64, hidden_size=32, intermediate_size=32, num_attention_heads=2,
                                           num_key_value_heads=1,
                                           rope_parameters={"rope_type": "default", "rope_theta": 1e4,
                                                            "mrope_section": [4, 2, 2]}),
                          vision_config=dict(hidden_size=32, intermediate_size=32, num_heads=4, patch_size=2, window_size=8,
                                             out_hidden_size=32),
                          image_token_id=60, video_token_id=61))
    return Spec(
        name="qwen2_5_vl_3b", full=full, run=run, cases=grid_cases(), published=3754622976,
        model_ids=["Qwen/Qwen2.5-VL-3B-Instruct"], conditions={"image": "vision", "video": "vision"},
        multimodal=[part("model.visual", "vision", "tower")], config=config_of(text, vision),
        source="Text numbers of Qwen2.5-3B and the tower of the Qwen2.5-VL report (32 layers of 1280), with the output width of the "
               "text; class defaults of transformers 5.12.1 elsewhere. Total: the hub's count for Qwen/Qwen2.5-VL-3B-Instruct, "
               "which fixes these numbers")


def internvl3_5_4b():
    from transformers import InternVLConfig, InternVLForConditionalGeneration
    text = dict(model_type="qwen3", vocab_size=151936, hidden_size=2560, intermediate_size=9728, num_hidden_layers=36,
                num_attention_heads=32, num_key_value_heads=8, head_dim=128, tie_word_embeddings=False)
    vision = dict(hidden_size=1024, intermediate_size=4096, num_hidden_layers=24, num_attention_heads=16, image_size=[448, 448],
                  patch_size=[14, 14])
    full, run = pair(InternVLForConditionalGeneration, InternVLConfig,
                     dict(text_config=text, vision_config=vision, tie_word_embeddings=False),
                     dict(text_config=dict(vocab_size=64, hidden_size=32, intermediate_size=32, num_attention_heads=4,
                                           num_key_value_heads=2, head_dim=16),
                          vision_config=dict(hidden_size=32, intermediate_size=32, num_attention_heads=4, image_size=[8, 8],
                                             patch_size=[2, 2]), image_token_id=60, image_seq_length=4))

    def case(image=0):
        kwargs = {"input_ids": ids(1, 2, *[(60, 4), 5] * image, 7, 8), "use_cache": False}
        if image:
            kwargs["pixel_values"] = torch.randn(image, 3, 8, 8)
        return ({"image": image} if image else {}), kwargs

    return Spec(
        name="internvl3_5_4b", full=full, run=run, cases=[case(), case(1), case(2)],
        model_ids=["OpenGVLab/InternVL3_5-4B-HF", "OpenGVLab/InternVL3_5-4B-hf"], conditions={"image": "vision"},
        multimodal=[part("model.vision_tower", "vision", "tower"), part("model.multi_modal_projector", "vision", "projector")],
        config=config_of(text, vision),
        source="Text numbers of Qwen3-4B with untied embeddings, InternViT-300M (24 layers of 1024, patch 14, image 448); class "
               "defaults of transformers 5.12.1 elsewhere. An exact published count was not found: the model page gives 0.3B for the "
               "tower and 4.4B for the text, which is the untied size")


def gemma3n_e4b():
    from transformers import Gemma3nConfig, Gemma3nForConditionalGeneration
    # The tower is timm's and has no narrower variant: the run uses it as it is.
    full, run = pair(Gemma3nForConditionalGeneration, Gemma3nConfig, {},
                     dict(text_config=dict(vocab_size=72, vocab_size_per_layer_input=64, hidden_size=32, intermediate_size=32,
                                           num_attention_heads=4, num_key_value_heads=2, head_dim=16,
                                           hidden_size_per_layer_input=8, laurel_rank=4),
                          vision_config=dict(vocab_offset=64, vocab_size=4),
                          audio_config=dict(hidden_size=32, vocab_offset=68, vocab_size=4, conf_num_attention_heads=4,
                                            sscp_conv_channel_size=[8, 4]),
                          image_token_id=65, audio_token_id=69, audio_soft_tokens_per_image=4))

    def case(image=0, sound=0):
        kwargs = {"input_ids": ids(1, 2, *[(65, 256), 5] * image, *[(69, 4), 9] * sound, 7, 8), "use_cache": False}
        if image:
            kwargs["pixel_values"] = torch.randn(image, 3, 64, 64)
        if sound:
            kwargs["input_features"] = torch.randn(sound, 32, 128)
            kwargs["input_features_mask"] = torch.ones(sound, 32, dtype=torch.bool)
        return {k: v for k, v in (("image", image), ("audio", sound)) if v}, kwargs

    c = Gemma3nConfig()
    return Spec(
        name="gemma3n_e4b", full=full, run=run,
        cases=[case(), case(image=1), case(image=2), case(sound=1), case(image=1, sound=1)],
        model_ids=["google/gemma-3n-E4B-it", "google/gemma-3n-e4b-it", "google/gemma-3n-E4B"], published=7849978192,
        besides=15 * (2 * 512 * 2048 + 256),
        conditions={"image": "vision", "audio": "audio"},
        multimodal=[part("model.vision_tower", "vision", "tower"), part("model.audio_tower", "audio", "tower"),
                    # These two also look up every token of every batch.
                    dict(part("model.embed_vision", "vision", "embedder"), conditionally_executed=False),
                    dict(part("model.embed_audio", "audio", "embedder"), conditionally_executed=False)],
        config=config_of({k: getattr(c.text_config, k) for k in ("vocab_size", "hidden_size", "num_hidden_layers")}),
        source="Defaults of Gemma3nConfig of transformers 5.12.1, which are those of E4B, and timm's mobilenetv5_300m_enc. The "
               "embedders of images and sound look up every token of every batch, so they are not conditional. Layers that share keys "
               "and values have no projections for them: the hub's count, 7,849,978,192, holds 31,461,120 elements of k_proj, v_proj and "
               "k_norm of 15 such layers besides these parameters")


def config_of(text, vision=None, audio=None):
    out = {}
    for prefix, part in (("text", text), ("vision", vision), ("audio", audio)):
        for k, v in (part or {}).items():
            if isinstance(v, (int, float, str)):
                out[f"{prefix}_{k}"] = v
    return out
