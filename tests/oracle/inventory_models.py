"""The six models of scenarios/models/, for record_inventory.py and check_inventory.py.

Each function gives the published configuration (on the meta device) and a narrow one of the same depth and pattern that
runs on a CPU. `transformers` supplies the classes; no weight is read."""
import copy

import torch

from record_inventory import Spec


def build(cls, config, device, dtype):
    config = copy.deepcopy(config)
    for c in (config, *(getattr(config, n) for n in ("text_config", "vision_config", "audio_config") if getattr(config, n, None))):
        c._attn_implementation = "sdpa"
    with torch.device(device):
        model = cls._from_config(config, dtype=dtype)
    return model


def pair(cls, config_class, full, narrow):
    """full and narrow: nested dicts; narrow overrides full."""
    def merge(a, b):
        return {k: merge(a.get(k, {}), v) if isinstance(v, dict) else v for k, v in {**a, **b}.items()
                } if isinstance(b, dict) else b

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


def only_logits(result):
    return {k: t for k, t in result.items() if k in ("logits", "image_hidden_states") and isinstance(t, torch.Tensor)}


def qwen3_vl_4b():
    from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration
    text = dict(vocab_size=151936, hidden_size=2560, intermediate_size=9728, num_hidden_layers=36, num_attention_heads=32,
                num_key_value_heads=8, head_dim=128, max_position_embeddings=262144, tie_word_embeddings=True,
                rope_parameters={"rope_type": "default", "rope_theta": 5000000.0, "mrope_section": [24, 20, 20],
                                 "mrope_interleaved": True})
    vision = dict(depth=24, hidden_size=1024, intermediate_size=4096, num_heads=16, in_channels=3, patch_size=16,
                  spatial_merge_size=2, temporal_patch_size=2, out_hidden_size=2560, num_position_embeddings=2304,
                  deepstack_visual_indexes=[5, 11, 17])
    full, run = pair(Qwen3VLForConditionalGeneration, Qwen3VLConfig,
                     dict(text_config=text, vision_config=vision, tie_word_embeddings=True,
                          image_token_id=151655, video_token_id=151656),
                     dict(text_config=dict(vocab_size=64, hidden_size=32, intermediate_size=32, num_attention_heads=4,
                                           num_key_value_heads=2, head_dim=16,
                                           rope_parameters={"rope_type": "default", "rope_theta": 1e4,
                                                            "mrope_section": [4, 2, 2], "mrope_interleaved": True}),
                          vision_config=dict(hidden_size=32, intermediate_size=32, num_heads=4, out_hidden_size=32,
                                             num_position_embeddings=16, patch_size=2),
                          image_token_id=60, video_token_id=61))

    def case(image=0, video=0):
        parts = [1, 2]
        kwargs = {"use_cache": False}
        grid = torch.tensor([[1, 4, 4]])
        if image:
            parts += [(60, 4), 5] * image
            kwargs["pixel_values"] = torch.randn(16 * image, 3 * 2 * 2 * 2)
            kwargs["image_grid_thw"] = grid.repeat(image, 1)
        if video:
            parts += [(61, 4), 6] * video
            kwargs["pixel_values_videos"] = torch.randn(16 * video, 3 * 2 * 2 * 2)
            kwargs["video_grid_thw"] = grid.repeat(video, 1)
        t = ids(*parts, 7, 8)
        kwargs["input_ids"] = t
        if image or video:
            kwargs["mm_token_type_ids"] = (t == 60).int() + 2 * (t == 61).int()
        held = {k: v for k, v in (("image", image), ("video", video)) if v}
        return held, dict(sorted(kwargs.items()))

    return Spec(
        name="qwen3_vl_4b", full=full, run=run, parameters=4437815808, outputs=only_logits,
        cases=[case(), case(image=1), case(image=2), case(video=1), case(image=1, video=1)],
        model_ids=["Qwen/Qwen3-VL-4B-Instruct", "Qwen/Qwen3-VL-4B-Thinking"],
        conditions={"image": "vision", "video": "vision"},
        multimodal=[dict(path="model.visual", modality="vision", role="tower", conditionally_executed=True)],
        config=config_of(text, vision),
        source="")


def config_of(text, vision=None, audio=None):
    out = {}
    for prefix, part in (("text", text), ("vision", vision), ("audio", audio)):
        for k, v in (part or {}).items():
            if isinstance(v, (int, float, str)):
                out[f"{prefix}_{k}"] = v
    return out
