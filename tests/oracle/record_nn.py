#!/usr/bin/env python3
"""Record losses, gradients and training steps of the executable small models, computed by PyTorch in double precision.

    record_nn.py [--out DIR] INVENTORY.yaml...

Weights and batches come from the same generator as src/engine/nn/data.c, written here a second time; the models are written
from the modelling code of transformers 5.12.1 (qwen3_vl, gemma3, mistral3 with pixtral and ministral3), not from ours: patch
convolutions, interpolated positions, rotary embeddings and masks are torch operations. nn/README.md says what is compared.
"""
import argparse
import math
import os

import numpy as np
import torch
import torch.nn.functional as F
import yaml

U64 = np.uint64
MASK = (1 << 64) - 1


def draw(seed, stream, count):
    """`count` words of the generator: splitmix64 of a state made of seed, stream and index."""
    with np.errstate(over="ignore"):
        i = np.arange(count, dtype=U64)
        start = (seed * 0x9E3779B97F4A7C15 + stream * 0xBF58476D1CE4E5B9) & MASK
        z = U64(start) + i * U64(0x94D049BB133111EB) + U64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> U64(30))) * U64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> U64(27))) * U64(0x94D049BB133111EB)
        return z ^ (z >> U64(31))


def uniform(seed, stream, count):
    return (draw(seed, stream, count) >> U64(40)).astype(np.float64) / 8388608.0 - 1


def fnv1a(text):
    h = 0xCBF29CE484222325
    for c in text.encode():
        h = ((h ^ c) * 0x100000001B3) & MASK
    return h


class Inventory:
    def __init__(self, path):
        with open(path) as f:
            self.doc = yaml.safe_load(f)
        self.config = self.doc["config"]
        self.shape, self.cls, self.alias = {}, {}, {}
        self.walk("", self.doc["modules"])
        for tie in self.doc.get("ties", []):
            for other in tie[1:]:
                self.alias[other] = tie[0]

    def walk(self, name, node):
        self.cls[name] = node["class"]
        for leaf, shape in node.get("params", {}).items():
            self.shape[f"{name}.{leaf}" if name else leaf] = list(shape)
        for key, child in node.get("children", {}).items():
            if ".." in str(key):
                lo, hi = map(int, str(key).split(".."))
                keys = range(lo, hi + 1)
            else:
                keys = [key]
            for k in keys:
                self.walk(f"{name}.{k}" if name else str(k), child)

    def count(self, container):
        n = 0
        while f"{container}.{n}" in self.cls:
            n += 1
        return n


def weights(inv, seed, adapters):
    """Parameters by name; adapters: {module: rank}."""
    shapes = {n: s for n, s in inv.shape.items() if n not in inv.alias}
    for module, rank in adapters.items():
        out, inner = inv.shape[module + ".weight"]
        shapes[module + ".lora_A.weight"] = [rank, inner]
        shapes[module + ".lora_B.weight"] = [out, rank]
    made = {}
    for name, shape in shapes.items():
        n = int(np.prod(shape))
        base, scale = 0.0, 0.1
        module, leaf = name.rpartition(".")[::2]
        if len(shape) >= 2:
            scale = math.sqrt(3.0 * shape[0] / n)
        elif leaf == "weight" and inv.cls[module] != "Gemma3RMSNorm":
            base = 1.0
        if module.endswith("lora_B"):
            scale = 0.0
        values = (base + scale * uniform(seed, fnv1a(name), n)).astype(np.float32)
        made[name] = torch.tensor(values.astype(np.float64)).reshape(shape)
    return made


class Batch:
    """Sequences of (text, images, seed, audios): one text token, the pictures, the recordings, the rest of the text."""
    def __init__(self, inv, sequences):
        c = inv.config
        self.grid = (c["vision_grid_rows"], c["vision_grid_columns"])
        self.patch, self.merge = c["vision_patch_size"], c.get("vision_spatial_merge_size", 1)
        self.token = c["image_token_id"]
        per = self.grid[0] * self.grid[1] // self.merge ** 2
        self.audio_token, self.bins, self.frames = c.get("audio_token_id"), c.get("audio_num_mel_bins", 0), c.get("audio_frames", 0)
        heard = self.frames // (c.get("audio_conv2_stride", 1) * c.get("audio_avg_pooler_stride", 1))
        media = sorted([self.token] + [self.audio_token] * (self.audio_token is not None))
        self.items = []
        for text, images, seed, audios in sequences:
            words = (draw(seed, 1, text) % U64(c["text_vocab_size"] - len(media))).astype(np.int64)
            for token in media:
                words = words + (words >= token)
            labels = np.where(np.arange(text) >= text // 4, words, -100)
            lead = min(text, 1)
            block = np.concatenate([np.full(images * per, self.token), np.full(audios * heard, self.audio_token or 0)])
            ids = np.concatenate([words[:lead], block, words[lead:]])
            label = np.concatenate([labels[:lead], np.full(len(block), -100), labels[lead:]])
            which = np.concatenate([np.zeros(lead), np.repeat(np.arange(images) + 1, per), np.zeros(audios * heard + text - lead)])
            side = (self.grid[0] * self.patch, self.grid[1] * self.patch)
            n = 3 * side[0] * side[1]
            pixels = torch.tensor(uniform(seed, 2, images * n).astype(np.float32).astype(np.float64)).reshape(images, 3, *side)
            features = uniform(seed, 3, audios * self.frames * self.bins).astype(np.float32).astype(np.float64)
            features = torch.tensor(features).reshape(audios, self.frames, self.bins).transpose(1, 2)
            self.items.append((torch.tensor(ids), torch.tensor(label), torch.tensor(which), pixels, features))


def rotate_half(x):
    a, b = x.chunk(2, dim=-1)
    return torch.cat([-b, a], dim=-1)


def rotary(x, angles):
    """x [heads, n, dim]; angles [n, dim / 2]."""
    emb = torch.cat([angles, angles], dim=-1)
    return x * emb.cos() + rotate_half(x) * emb.sin()


def heads(x, dim):
    return x.reshape(x.shape[0], -1, dim).transpose(0, 1)


def attend(q, k, v, scale, mask=None):
    """q [h, n, d], k and v [h', n, d]; mask [n, n] true where it may look."""
    k = k.repeat_interleave(q.shape[0] // k.shape[0], dim=0)
    v = v.repeat_interleave(q.shape[0] // v.shape[0], dim=0)
    y = F.scaled_dot_product_attention(q[None], k[None], v[None], attn_mask=mask, scale=scale)[0]
    return y.transpose(0, 1).reshape(y.shape[1], -1)


class Model:
    TEXT = "model.language_model"

    def __init__(self, inv, params, lora_alpha=32.0):
        self.inv, self.p, self.c, self.alpha = inv, params, inv.config, lora_alpha

    def w(self, name):
        return self.p[self.inv.alias.get(name, name)]

    def linear(self, name, x):
        y = F.linear(x, self.w(name + ".weight"), self.p.get(name + ".bias"))
        a = self.p.get(name + ".lora_A.weight")
        if a is not None:
            y = y + F.linear(F.linear(x, a), self.p[name + ".lora_B.weight"]) * (self.alpha / a.shape[0])
        return y

    def rms(self, name, x, eps, plus=0.0):
        x = x.reshape(*x.shape[:-1], -1, self.w(name + ".weight").shape[0])
        y = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * (plus + self.w(name + ".weight"))
        return y.reshape(*y.shape[:-2], -1)

    def layer_norm(self, name, x, eps):
        w = self.w(name + ".weight")
        return F.layer_norm(x, w.shape, w, self.w(name + ".bias"), eps)

    def inverse(self, theta, dim):
        return 1.0 / theta ** (torch.arange(0, dim, 2, dtype=torch.float64) / dim)

    def loss_sum(self, batch):
        total = 0
        for ids, label, which, pixels, features in batch.items:
            h = F.embedding(ids, self.w(self.TEXT + ".embed_tokens.weight")) * self.embed_scale()
            extra = None
            if len(features):
                h = h.masked_scatter((ids == batch.audio_token)[:, None], self.recordings(features))
            if len(pixels):
                features, extra = self.pictures(pixels)
                h = h.masked_scatter((ids == batch.token)[:, None], features.to(h.dtype))
            h = self.decoder(h, ids, which, extra, batch)
            logits = F.linear(h, self.w("lm_head.weight"))
            total = total + F.cross_entropy(logits[:-1], label[1:], ignore_index=-100, reduction="sum")
        return total

    def embed_scale(self):
        return 1.0


class Qwen3VL(Model):
    def patches(self, picture):
        """[n, channels * frames * patch * patch] in merge order, as the image processor prepares them."""
        c, patch, merge = self.c, self.c["vision_patch_size"], self.c["vision_spatial_merge_size"]
        gh, gw = c["vision_grid_rows"], c["vision_grid_columns"]
        x = picture[None].repeat(c["vision_temporal_patch_size"], 1, 1, 1)
        x = x.reshape(1, c["vision_temporal_patch_size"], 3, gh // merge, merge, patch, gw // merge, merge, patch)
        x = x.permute(0, 3, 6, 4, 7, 2, 1, 5, 8)
        return x.reshape(gh * gw, -1)

    def table(self):
        c, merge = self.c, self.c["vision_spatial_merge_size"]
        t = self.w("model.visual.pos_embed.weight")
        side, gh, gw = int(math.sqrt(len(t))), c["vision_grid_rows"], c["vision_grid_columns"]
        y = F.interpolate(t.reshape(1, side, side, -1).permute(0, 3, 1, 2), size=(gh, gw), mode="bilinear", align_corners=True)
        y = y[0].permute(1, 2, 0).reshape(gh // merge, merge, gw // merge, merge, -1)
        return y.permute(0, 2, 1, 3, 4).reshape(gh * gw, -1)

    def grid_angles(self):
        c, merge, dim = self.c, self.c["vision_spatial_merge_size"], self.c["vision_head_dim"]
        gh, gw = c["vision_grid_rows"], c["vision_grid_columns"]
        order = lambda t: t.reshape(gh // merge, merge, gw // merge, merge).permute(0, 2, 1, 3).reshape(-1)
        rows = order(torch.arange(gh)[:, None].expand(gh, gw))
        columns = order(torch.arange(gw)[None].expand(gh, gw))
        inv = self.inverse(c["vision_rope_theta"], dim // 2)
        return torch.cat([rows[:, None] * inv, columns[:, None] * inv], dim=-1)

    def merger(self, name, x, wide_norm):
        width = self.w(name + ".linear_fc1.weight").shape[1]
        eps = 1e-6
        x = self.layer_norm(name + ".norm", x.reshape(-1, width), eps) if wide_norm else \
            self.layer_norm(name + ".norm", x, eps).reshape(-1, width)
        return self.linear(name + ".linear_fc2", F.gelu(self.linear(name + ".linear_fc1", x)))

    def pictures(self, pixels):
        dim = self.c["vision_head_dim"]
        outs, deep = [], []
        for picture in pixels:
            w = self.w("model.visual.patch_embed.proj.weight")
            flat = self.patches(picture).reshape(-1, *w.shape[1:])
            x = F.conv3d(flat, w, self.w("model.visual.patch_embed.proj.bias"), stride=w.shape[2:]).reshape(-1, w.shape[0])
            x = x + self.table()
            angles, levels = self.grid_angles(), []
            for i in range(self.inv.count("model.visual.blocks")):
                b = f"model.visual.blocks.{i}"
                q, k, v = self.linear(b + ".attn.qkv", self.layer_norm(b + ".norm1", x, 1e-6)).chunk(3, dim=-1)
                y = attend(rotary(heads(q, dim), angles), rotary(heads(k, dim), angles), heads(v, dim), dim ** -0.5)
                x = x + self.linear(b + ".attn.proj", y)
                y = F.gelu(self.linear(b + ".mlp.linear_fc1", self.layer_norm(b + ".norm2", x, 1e-6)), approximate="tanh")
                x = x + self.linear(b + ".mlp.linear_fc2", y)
                if i < self.inv.count("model.visual.deepstack_merger_list"):
                    levels.append(self.merger(f"model.visual.deepstack_merger_list.{i}", x, True))
            outs.append(self.merger("model.visual.merger", x, False))
            deep.append(levels)
        return torch.cat(outs), [torch.cat(level) for level in zip(*deep)]

    def positions(self, which, batch):
        gh, gw = batch.grid[0] // batch.merge, batch.grid[1] // batch.merge
        out, start, i = [], 0, 0
        while i < len(which):
            if which[i] == 0:
                out.append(torch.full((3, 1), start))
                start, i = start + 1, i + 1
                continue
            rows = torch.arange(gh)[:, None].expand(gh, gw).reshape(-1)
            columns = torch.arange(gw)[None].expand(gh, gw).reshape(-1)
            out.append(torch.stack([torch.zeros_like(rows), rows, columns]) + start)
            start, i = start + max(gh, gw), i + gh * gw
        return torch.cat(out, dim=1)

    def decoder(self, h, ids, which, extra, batch):
        c, dim, eps = self.c, self.c["text_head_dim"], self.c["text_norm_eps"]
        sections = [c["text_mrope_section_time"], c["text_mrope_section_row"], c["text_mrope_section_column"]]
        freqs = self.positions(which, batch)[:, :, None] * self.inverse(c["text_rope_theta"], dim)
        angles = freqs[0].clone()
        for axis in (1, 2):
            at = slice(axis, 3 * sections[axis], 3)
            angles[:, at] = freqs[axis][:, at]
        n = len(h)
        mask = torch.ones(n, n, dtype=torch.bool).tril()
        for i in range(self.inv.count("model.language_model.layers")):
            b = f"model.language_model.layers.{i}"
            x = self.rms(b + ".input_layernorm", h, eps)
            q = self.rms(b + ".self_attn.q_norm", self.linear(b + ".self_attn.q_proj", x), eps)
            k = self.rms(b + ".self_attn.k_norm", self.linear(b + ".self_attn.k_proj", x), eps)
            v = self.linear(b + ".self_attn.v_proj", x)
            y = attend(rotary(heads(q, dim), angles), rotary(heads(k, dim), angles), heads(v, dim), dim ** -0.5, mask)
            h = h + self.linear(b + ".self_attn.o_proj", y)
            x = self.rms(b + ".post_attention_layernorm", h, eps)
            h = h + self.linear(b + ".mlp.down_proj", F.silu(self.linear(b + ".mlp.gate_proj", x)) * self.linear(b + ".mlp.up_proj", x))
            if extra is not None and i < len(extra):
                h = h.index_add(0, (ids == batch.token).nonzero()[:, 0], extra[i])
        return self.rms("model.language_model.norm", h, eps)


class Gemma3(Model):
    def embed_scale(self):
        return float(self.c["text_hidden_size"]) ** 0.5

    def pictures(self, pixels):
        t, dim, c = "model.vision_tower", self.c["vision_head_dim"], self.c
        w = self.w(t + ".embeddings.patch_embedding.weight")
        x = F.conv2d(pixels, w, self.w(t + ".embeddings.patch_embedding.bias"), stride=w.shape[2:]).flatten(2).transpose(1, 2)
        x = x + self.w(t + ".embeddings.position_embedding.weight")
        outs = []
        for one in x:
            for i in range(self.inv.count(t + ".encoder.layers")):
                b = f"{t}.encoder.layers.{i}"
                y = self.layer_norm(b + ".layer_norm1", one, 1e-6)
                q, k, v = (heads(self.linear(f"{b}.self_attn.{n}_proj", y), dim) for n in "qkv")
                one = one + self.linear(b + ".self_attn.out_proj", attend(q, k, v, dim ** -0.5))
                y = F.gelu(self.linear(b + ".mlp.fc1", self.layer_norm(b + ".layer_norm2", one, 1e-6)), approximate="tanh")
                one = one + self.linear(b + ".mlp.fc2", y)
            one = self.layer_norm(t + ".post_layernorm", one, 1e-6)
            gh, gw, k = c["vision_grid_rows"], c["vision_grid_columns"], c["vision_spatial_merge_size"]
            pooled = F.avg_pool2d(one.T.reshape(1, -1, gh, gw), k)[0].flatten(1).T
            y = self.rms("model.multi_modal_projector.mm_soft_emb_norm", pooled, 1e-6, 1.0)
            outs.append(y @ self.w("model.multi_modal_projector.mm_input_projection_weight"))
        return torch.cat(outs), None

    def decoder(self, h, ids, which, extra, batch):
        c, dim, eps, n = self.c, self.c["text_head_dim"], self.c["text_norm_eps"], len(h)
        at = torch.arange(n, dtype=torch.float64)[:, None]
        full = at / c["text_rope_factor"] * self.inverse(c["text_rope_theta"], dim)
        local = at * self.inverse(c["text_rope_local_theta"], dim)
        causal = torch.ones(n, n, dtype=torch.bool).tril()
        near = causal & ~torch.ones(n, n, dtype=torch.bool).tril(-c["text_sliding_window"])
        same = (which[:, None] == which[None]) & (which[:, None] > 0)
        scale = float(c["text_query_pre_attn_scalar"]) ** -0.5
        norm = lambda name, x: self.rms(name, x, eps, 1.0)
        for i in range(self.inv.count("model.language_model.layers")):
            b = f"model.language_model.layers.{i}"
            sliding = (i + 1) % c["text_sliding_window_pattern"] != 0
            angles, mask = (local, near | same) if sliding else (full, causal | same)
            x = norm(b + ".input_layernorm", h)
            q = norm(b + ".self_attn.q_norm", self.linear(b + ".self_attn.q_proj", x))
            k = norm(b + ".self_attn.k_norm", self.linear(b + ".self_attn.k_proj", x))
            v = self.linear(b + ".self_attn.v_proj", x)
            y = attend(rotary(heads(q, dim), angles), rotary(heads(k, dim), angles), heads(v, dim), scale, mask)
            h = h + norm(b + ".post_attention_layernorm", self.linear(b + ".self_attn.o_proj", y))
            x = norm(b + ".pre_feedforward_layernorm", h)
            y = F.gelu(self.linear(b + ".mlp.gate_proj", x), approximate="tanh") * self.linear(b + ".mlp.up_proj", x)
            h = h + norm(b + ".post_feedforward_layernorm", self.linear(b + ".mlp.down_proj", y))
        return norm("model.language_model.norm", h)


class Ministral3(Model):
    def pictures(self, pixels):
        t, dim, c, eps = "model.vision_tower", self.c["vision_head_dim"], self.c, self.c["vision_norm_eps"]
        gh, gw, k = c["vision_grid_rows"], c["vision_grid_columns"], c["vision_spatial_merge_size"]
        w = self.w(t + ".patch_conv.weight")
        inv = self.inverse(c["vision_rope_theta"], dim)
        rows = torch.arange(gh)[:, None].expand(gh, gw).reshape(-1, 1)
        columns = torch.arange(gw)[None].expand(gh, gw).reshape(-1, 1)
        angles = torch.cat([rows * inv[::2], columns * inv[1::2]], dim=-1)
        outs = []
        for picture in pixels:
            x = F.conv2d(picture[None], w, stride=w.shape[2:])[0].flatten(1).T
            x = self.rms(t + ".ln_pre", x, eps)
            for i in range(self.inv.count(t + ".transformer.layers")):
                b = f"{t}.transformer.layers.{i}"
                y = self.rms(b + ".attention_norm", x, eps)
                q, kk, v = (heads(self.linear(f"{b}.attention.{n}_proj", y), dim) for n in "qkv")
                x = x + self.linear(b + ".attention.o_proj", attend(rotary(q, angles), rotary(kk, angles), v, dim ** -0.5))
                y = self.rms(b + ".ffn_norm", x, eps)
                y = F.gelu(self.linear(b + ".feed_forward.gate_proj", y)) * self.linear(b + ".feed_forward.up_proj", y)
                x = x + self.linear(b + ".feed_forward.down_proj", y)
            p = "model.multi_modal_projector"
            x = self.rms(p + ".norm", x, eps)
            x = F.unfold(x.T.reshape(1, -1, gh, gw), kernel_size=k, stride=k)[0].T
            x = self.linear(p + ".patch_merger.merging_layer", x)
            outs.append(self.linear(p + ".linear_2", F.gelu(self.linear(p + ".linear_1", x))))
        return torch.cat(outs), None

    def decoder(self, h, ids, which, extra, batch):
        c, dim, eps, n = self.c, self.c["text_head_dim"], self.c["text_norm_eps"], len(h)
        angles = torch.arange(n, dtype=torch.float64)[:, None] * self.inverse(c["text_rope_theta"], dim)
        mask = torch.ones(n, n, dtype=torch.bool).tril()
        for i in range(self.inv.count("model.language_model.layers")):
            b = f"model.language_model.layers.{i}"
            x = self.rms(b + ".input_layernorm", h, eps)
            q, k, v = (heads(self.linear(f"{b}.self_attn.{name}_proj", x), dim) for name in "qkv")
            h = h + self.linear(b + ".self_attn.o_proj", attend(rotary(q, angles), rotary(k, angles), v, dim ** -0.5, mask))
            x = self.rms(b + ".post_attention_layernorm", h, eps)
            h = h + self.linear(b + ".mlp.down_proj", F.silu(self.linear(b + ".mlp.gate_proj", x)) * self.linear(b + ".mlp.up_proj", x))
        return self.rms("model.language_model.norm", h, eps)


class Qwen25Omni(Qwen3VL):
    """The thinker: Whisper's audio encoder, Qwen2.5-VL's vision encoder, Qwen2.5's decoder."""
    TEXT = "model"

    def recordings(self, features):
        t, dim = "audio_tower", self.c["audio_head_dim"]
        x = F.gelu(F.conv1d(features, self.w(t + ".conv1.weight"), self.w(t + ".conv1.bias"), padding=1))
        x = F.gelu(F.conv1d(x, self.w(t + ".conv2.weight"), self.w(t + ".conv2.bias"), stride=2, padding=1)).transpose(1, 2)
        half = x.shape[2] // 2
        times = torch.exp(-math.log(10000) / (half - 1) * torch.arange(half, dtype=torch.float64))
        angles = torch.arange(x.shape[1], dtype=torch.float64)[:, None] * times
        outs = []
        for one in x + torch.cat([angles.sin(), angles.cos()], dim=1):
            for i in range(self.inv.count(t + ".layers")):
                b = f"{t}.layers.{i}"
                y = self.layer_norm(b + ".self_attn_layer_norm", one, 1e-5)
                q, k, v = (heads(self.linear(f"{b}.self_attn.{n}_proj", y), dim) for n in "qkv")
                one = one + self.linear(b + ".self_attn.out_proj", attend(q, k, v, dim ** -0.5))
                y = self.layer_norm(b + ".final_layer_norm", one, 1e-5)
                one = one + self.linear(b + ".fc2", F.gelu(self.linear(b + ".fc1", y)))
            one = F.avg_pool1d(one.T[None], 2, stride=2)[0].T
            outs.append(self.linear(t + ".proj", self.layer_norm(t + ".ln_post", one, 1e-5)))
        return torch.cat(outs)

    def pictures(self, pixels):
        dim, eps = self.c["vision_head_dim"], 1e-6
        outs = []
        for picture in pixels:
            w = self.w("visual.patch_embed.proj.weight")
            x = F.conv3d(self.patches(picture).reshape(-1, *w.shape[1:]), w, stride=w.shape[2:]).reshape(-1, w.shape[0])
            angles = self.grid_angles()
            for i in range(self.inv.count("visual.blocks")):
                b = f"visual.blocks.{i}"
                y = self.rms(b + ".norm1", x, eps)
                q, k, v = (heads(self.linear(f"{b}.attn.{n}", y), dim) for n in "qkv")
                x = x + self.linear(b + ".attn.proj", attend(rotary(q, angles), rotary(k, angles), v, dim ** -0.5))
                y = self.rms(b + ".norm2", x, eps)
                x = x + self.linear(b + ".mlp.down_proj", F.silu(self.linear(b + ".mlp.gate_proj", y)) * self.linear(b + ".mlp.up_proj", y))
            y = self.rms("visual.merger.ln_q", x, eps).reshape(-1, self.w("visual.merger.mlp.0.weight").shape[1])
            outs.append(self.linear("visual.merger.mlp.2", F.gelu(self.linear("visual.merger.mlp.0", y))))
        return torch.cat(outs), None

    def decoder(self, h, ids, which, extra, batch):
        c, dim, eps, n = self.c, self.c["text_head_dim"], self.c["text_norm_eps"], len(h)
        sections = [c["text_mrope_section_time"], c["text_mrope_section_row"], c["text_mrope_section_column"]]
        freqs = self.positions(which, batch)[:, :, None] * self.inverse(c["text_rope_theta"], dim)
        angles = torch.cat([part[axis] for axis, part in enumerate(freqs.split(sections, dim=-1))], dim=-1)
        mask = torch.ones(n, n, dtype=torch.bool).tril()
        for i in range(self.inv.count("model.layers")):
            b = f"model.layers.{i}"
            x = self.rms(b + ".input_layernorm", h, eps)
            q, k, v = (heads(self.linear(f"{b}.self_attn.{name}_proj", x), dim) for name in "qkv")
            h = h + self.linear(b + ".self_attn.o_proj", attend(rotary(q, angles), rotary(k, angles), v, dim ** -0.5, mask))
            x = self.rms(b + ".post_attention_layernorm", h, eps)
            h = h + self.linear(b + ".mlp.down_proj", F.silu(self.linear(b + ".mlp.gate_proj", x)) * self.linear(b + ".mlp.up_proj", x))
        return self.rms("model.norm", h, eps)


FAMILIES = {"Qwen3VLForConditionalGeneration": Qwen3VL, "Gemma3ForConditionalGeneration": Gemma3,
            "Mistral3ForConditionalGeneration": Ministral3, "Qwen2_5OmniThinkerForConditionalGeneration": Qwen25Omni}
WEIGHT_SEED = 1
BATCHES = {"text": [(10, 0, 3, 0)], "picture": [(12, 1, 7, 0)], "mixed": [(12, 1, 7, 0), (7, 0, 9, 0), (9, 2, 8, 0)],
           "short": [(1, 1, 4, 0), (2, 0, 5, 0)], "long": [(90, 1, 6, 0)]}
AUDIO_BATCHES = {"recording": [(11, 0, 3, 1)], "all": [(12, 1, 7, 2), (7, 0, 9, 1), (9, 2, 8, 0)]}
STEPS = 30


def labels(sequences):
    return sum(sum(1 for t in range(1, text) if t >= text // 4) for text, _, _, _ in sequences)


def step_batch(step, audio):
    """Three sequences that change from step to step; two of them hold pictures, one a recording where the model hears."""
    return [(12 + step % 3, 1, 100 + step, 0), (9, 0, 200 + step, int(audio)), (6 + step % 5, 2, 300 + step, 0)]


def record(path, out):
    inv = Inventory(path)
    family = FAMILIES[inv.doc["architecture"]]
    lines = [f"lockstep_nn 1 {inv.doc['name']} torch {torch.__version__.split('+')[0]} float64"]

    def run(name, sequences, adapters, trains):
        p = weights(inv, WEIGHT_SEED, adapters)
        for key, value in p.items():
            value.requires_grad_(trains(key))
        if adapters:  # second matrices begin at zero: give them values, so that the first have a gradient
            with torch.no_grad():
                for key, value in p.items():
                    if key.endswith("lora_B.weight"):
                        value.copy_(torch.tensor((0.1 * uniform(2, fnv1a(key), value.numel())).astype(np.float32)
                                                 .astype(np.float64)).reshape(value.shape))
        loss = family(inv, p).loss_sum(Batch(inv, sequences)) / max(labels(sequences), 1)
        lines.append(f"case {name} {' '.join(f'{t},{i},{s},{a}' for t, i, s, a in sequences)}")
        lines.append(f"loss {float(loss.detach()):.17g}")
        loss.backward()
        for key in sorted(p):
            g = p[key].grad
            if g is None:
                continue
            probe = torch.tensor(uniform(77, fnv1a(key), g.numel()))
            flat = g.reshape(-1)
            lines.append(f"grad {key} {float(flat.norm()):.12g} {float(flat @ probe):.12g} " + " ".join(f"{float(v):.9g}" for v in flat[:2]))

    hears = "audio_token_id" in inv.config
    for name, sequences in list(BATCHES.items()) + list(AUDIO_BATCHES.items()) * hears:
        run(name, sequences, {}, lambda key: True)
    towers = tuple(m["path"] + "." for m in inv.doc["multimodal"] if m["role"] == "tower")
    run("frozen_tower", BATCHES["mixed"], {}, lambda key: not key.startswith(towers))
    text = family.TEXT
    q = {m: 2 for m in inv.cls if m in (text + ".layers.0.self_attn.q_proj", text + ".layers.1.mlp.down_proj")}
    run("lora", BATCHES["mixed"], q, lambda key: ".lora_" in key)

    p = weights(inv, WEIGHT_SEED, {})
    for value in p.values():
        value.requires_grad_(True)
    optimizer = torch.optim.AdamW(p.values(), lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=1e-2, foreach=False)
    for step in range(STEPS):
        sequences = step_batch(step, hears)
        optimizer.zero_grad()
        loss = family(inv, p).loss_sum(Batch(inv, sequences)) / labels(sequences)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(p.values(), 1.0)
        optimizer.step()
        lines.append(f"step {step} {float(loss.detach()):.17g} {float(norm):.17g}")
    for key in sorted(p):
        lines.append(f"weight {key} {float(p[key].detach().norm()):.12g}")
    with open(os.path.join(out, inv.doc["name"] + ".txt"), "w") as f:
        f.write("\n".join(lines) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default=os.path.join(os.path.dirname(os.path.abspath(__file__)), "nn"))
    parser.add_argument("inventory", nargs="+")
    args = parser.parse_args()
    torch.set_num_threads(1)
    os.makedirs(args.out, exist_ok=True)
    for path in args.inventory:
        record(path, args.out)


if __name__ == "__main__":
    main()
