#!/usr/bin/env python3
"""Train small_qwen3_vl with PyTorch FSDP2 over gloo and print seconds per step: what bench_train compares the engine with.

    torch_fsdp2.py --ranks R [--steps N] [--warmup N] [--text T] [--images I] [--recompute]

Prints one line per step, `step,seconds,cpu_seconds`: wall time of the slowest rank, and the CPU time of all ranks together.
The model is the class of transformers with the sizes of scenarios/models/small_qwen3_vl.yaml; every layer is a unit, the tower
belongs to the root, parameters and reductions are f32, one thread per rank, AdamW, clipping to 1: as bench_train's scenario.
"""
import argparse
import os
import resource
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

IMAGE, START, END = 15990, 15991, 15992


def build():
    text = dict(vocab_size=16000, hidden_size=512, intermediate_size=1536, num_hidden_layers=10, num_attention_heads=8, num_key_value_heads=4,
                head_dim=64, rms_norm_eps=1e-6, tie_word_embeddings=True, max_position_embeddings=4096,
                rope_parameters={"rope_type": "default", "rope_theta": 5000000, "mrope_section": [12, 10, 10], "mrope_interleaved": True})
    vision = dict(depth=4, hidden_size=256, intermediate_size=1024, num_heads=8, patch_size=16, spatial_merge_size=2, temporal_patch_size=2,
                  out_hidden_size=512, num_position_embeddings=576, deepstack_visual_indexes=[0, 1, 2])
    config = Qwen3VLConfig(text_config=text, vision_config=vision, image_token_id=IMAGE, vision_start_token_id=START, vision_end_token_id=END,
                           tie_word_embeddings=True)
    config._attn_implementation = "sdpa"
    return Qwen3VLForConditionalGeneration(config).float()


def batch(text, images, seed):
    g = torch.Generator().manual_seed(seed)
    words = torch.randint(0, IMAGE, (1, text), generator=g)
    labels = words.clone()
    labels[:, : text // 4] = -100
    block = torch.full((1, 64 * images), IMAGE)
    ids = torch.cat([words[:, :1], block, words[:, 1:]], dim=1)
    labels = torch.cat([labels[:, :1], torch.full_like(block, -100), labels[:, 1:]], dim=1)
    kinds = torch.zeros_like(ids)
    kinds[:, 1 : 1 + 64 * images] = 1
    out = dict(input_ids=ids, labels=labels, attention_mask=torch.ones_like(ids), use_cache=False)
    if images:
        out.update(pixel_values=torch.rand(256 * images, 1536, generator=g), image_grid_thw=torch.tensor([[1, 16, 16]] * images), mm_token_type_ids=kinds)
    return out


def train(rank, args, port):
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(args.ranks))
    dist.init_process_group("gloo", rank=rank, world_size=args.ranks)
    torch.manual_seed(0)
    model = build()
    assert sum(p.numel() for p in model.parameters()) == 49665536
    mesh = init_device_mesh("cpu", (args.ranks,))
    if args.ranks > 1:
        for layer in model.model.language_model.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        for module in model.modules():
            if hasattr(module, "set_force_sum_reduction_for_comms"):
                module.set_force_sum_reduction_for_comms(True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-2)
    for step in range(args.warmup + args.steps):
        data = batch(args.text, args.images, 100 * step + rank)
        dist.barrier()
        cpu, start = resource.getrusage(resource.RUSAGE_SELF), time.monotonic()
        loss = model(**data).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        seconds = time.monotonic() - start
        used = resource.getrusage(resource.RUSAGE_SELF)
        spent = torch.tensor([used.ru_utime + used.ru_stime - cpu.ru_utime - cpu.ru_stime], dtype=torch.float64)
        longest = torch.tensor([seconds], dtype=torch.float64)
        dist.all_reduce(spent)
        dist.all_reduce(longest, op=dist.ReduceOp.MAX)
        if rank == 0 and step >= args.warmup:
            print(f"{step - args.warmup},{longest.item():.6f},{spent.item():.6f}", flush=True)
    dist.destroy_process_group()
    os._exit(0)  # threads of gloo that outlive the interpreter would abort it, after all is measured


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--ranks", type=int, required=True)
    p.add_argument("--steps", type=int, default=5)
    p.add_argument("--warmup", type=int, default=1)
    p.add_argument("--text", type=int, default=448)
    p.add_argument("--images", type=int, default=1)
    args = p.parse_args()
    port = 20000 + os.getpid() % 20000
    mp.spawn(train, (args, port), nprocs=args.ranks)


if __name__ == "__main__":
    main()
