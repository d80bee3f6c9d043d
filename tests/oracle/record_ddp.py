#!/usr/bin/env python3
"""Record what PyTorch's DistributedDataParallel issues, rank by rank, for scenarios with `strategy: ddp` and an inline inventory.

    record_ddp.py [--out DIR] SCENARIO.yaml...

Each rank runs alone: a process group written in Python notes every call and returns at once. What a rank issues depends on the
other ranks only where rank 0 broadcasts the rebuilt buckets; those tensors are kept from rank 0's run and given to the others.
Lines: `round KIND N`, `ag`, `bc` and `ar` with the number of elements and the dtype, `error WORD`.
"""
import argparse
import os
import sys
import warnings

import torch
import torch.distributed as dist
import torch.nn as nn
import yaml
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed.fake_pg import FakeStore

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from flow_model import COUNT_KEYS, DTYPES, DTYPE_NAMES, Model, match_params  # noqa: E402

warnings.filterwarnings("ignore")
VERSION = torch.__version__.split("+")[0]
LINES = []


class Done(dist._Work):
    def __init__(self, result):
        super().__init__()
        self.future = Future()
        self.future.set_result(result)

    def wait(self, timeout=None):
        return True

    def get_future(self):
        return self.future


class Group(dist.ProcessGroup):
    def __init__(self, rank, size, kept):
        super().__init__(rank, size)
        self.me, self.n, self.kept, self.next = rank, size, kept, 0

    def getBackendName(self):
        return "recorder"

    def rank(self):
        return self.me

    def size(self):
        return self.n

    def note(self, what, tensors):
        assert len(tensors) == 1
        LINES.append(f"{what} n={tensors[0].numel()} dtype={DTYPE_NAMES[tensors[0].dtype]}")

    def allreduce(self, tensors, options=None):
        self.note("ar", tensors)
        return Done(tensors)

    def broadcast(self, tensors, options=None):
        self.note("bc", tensors)
        if tensors[0].dtype == torch.int32:
            if self.me == 0:
                self.kept.append(tensors[0].clone())
            else:
                tensors[0].copy_(self.kept[self.next])
                self.next += 1
        return Done(tensors)

    def allgather(self, out, tensors, options=None):
        self.note("ag", tensors)
        for parts, tensor in zip(out, tensors):
            for part in parts:
                part.copy_(tensor)
        return Done(out)


class Whole(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.root = model.root
        self.__dict__["model"] = model

    def forward(self, counts):
        return self.__dict__["model"].forward(counts)


def add_buffers(module, spec, dtype):
    for name, b in (spec.get("buffers") or {}).items():
        shape, kind = (b, dtype) if isinstance(b, list) else (b["shape"], b.get("dtype", dtype))
        module.register_buffer(name, torch.zeros(shape, dtype=DTYPES[kind]))
    for name, child in (spec.get("children") or {}).items():
        if ".." not in str(name):
            add_buffers(getattr(module, str(name)), child, dtype)


def error_word(error):
    text = str(error)
    if "Expected to have finished reduction" in text:
        return "unfinished_reduction"
    if "training graph has changed" in text:
        return "training_graph_changed"
    raise error


def record_rank(doc, rank, world, kept):
    LINES.clear()
    model = Model(doc["model"]["inventory"])
    add_buffers(model.root, doc["model"]["inventory"]["modules"], model.dtype)
    for param in match_params(model, doc.get("freeze") or []):
        param.requires_grad_(False)
    batch, options = doc["batch"], doc["distributed"].get("ddp") or {}
    table, samples, steps = batch["execution"]["table"], batch["samples"], batch["steps"]
    schedule = batch.get("schedule") or ["micro"] * batch["microbatches"] + ["step"]
    sync = (batch.get("accumulation") or {}).get("gradient_sync", True)
    counters = {"micro": 0, "eval": 0, "step": 0}
    LINES.append("round setup 0")
    ddp = DistributedDataParallel(Whole(model), process_group=Group(rank, world, kept), **options)
    row = 0
    try:
        for _ in range(steps):
            micro = 0
            for kind in schedule:
                LINES.append(f"round {kind} {counters[kind]}")
                counters[kind] += 1
                if kind == "step":
                    for param in model.root.parameters():
                        param.grad = None
                    continue
                sample = samples[table[row][rank]]
                row += 1
                counts = {COUNT_KEYS[k]: v for k, v in sample.items() if k in COUNT_KEYS}
                if kind == "eval":
                    with torch.no_grad():
                        ddp(counts)
                    continue
                micro += 1
                last = sync is True or (sync == "last" and micro == batch["microbatches"])
                ddp.require_backward_grad_sync = last
                outputs = ddp(counts)
                sum(outputs[n].float().sum() for n in doc["model"]["inventory"]["flow"]["loss"]).backward()
    except RuntimeError as error:
        LINES.append(f"error {error_word(error)}")
    return list(LINES)


def record(path, out):
    with open(path, encoding="utf-8") as file:
        doc = yaml.safe_load(file)
    world, kept = doc["distributed"]["dp_size"], []
    lines = ["lockstep-recording 1", f"torch {VERSION}", f"scenario {doc['name']}"]
    for rank in range(world):
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world)
        try:
            lines += [f"rank {rank}"] + record_rank(doc, rank, world, kept)
        finally:
            dist.destroy_process_group()
    target = os.path.join(out or os.path.dirname(path), f"{doc['name']}.torch-{VERSION}.rec")
    with open(target, "w", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")
    print(f"{doc['name']}: {len(lines)} lines")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", help="folder of the recordings; default: next to the scenario")
    parser.add_argument("scenarios", nargs="+")
    args = parser.parse_args()
    torch.set_num_threads(1)
    for scenario in args.scenarios:
        record(scenario, args.out)
