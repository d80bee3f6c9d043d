#!/usr/bin/env python3
"""Record what FSDP2 issues, rank by rank, for scenarios with explicit units and an inline inventory.

    record_fsdp2.py [--out DIR] SCENARIO.yaml...

Each rank runs alone, in this process, under the fake process group: which collectives a rank takes part in depends only
on that rank, so configurations that would hang can be recorded too. The CPU device handle that FSDP2 asks for streams
and events is replaced by one that writes them down; everything else is PyTorch as installed. See format.md, README.md.
"""
import argparse
import contextlib
import gc
import logging
import os
import re
import sys
import warnings
import weakref

import torch
import torch.distributed as dist
import torch.nn as nn
import yaml
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (FSDPModule, MixedPrecisionPolicy, fully_shard,
                                    register_fsdp_forward_method)
from torch.distributed.fsdp._fully_shard import (_fsdp_collectives, _fsdp_param, _fsdp_param_group,
                                                 _fsdp_state)
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils.checkpoint import checkpoint

warnings.filterwarnings("ignore")

DTYPES = {"f64": torch.float64, "f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16,
          "i64": torch.int64, "i32": torch.int32, "u8": torch.uint8}
DTYPE_NAMES = {v: k for k, v in DTYPES.items()}
COUNT_KEYS = {"images": "image", "videos": "video", "audios": "audio"}
VERSION = torch.__version__.split("+")[0]
VERSION_PAIR = tuple(int(x) for x in VERSION.split(".")[:2])
WIDTH = 4   # elements of every activation


class BadScenario(Exception):
    pass


class NotThisVersion(Exception):
    """The scenario uses something this PyTorch does not have."""


# ---------------------------------------------------------------------------------------------------------------------
# The recorder and the stand-ins of streams and events
# ---------------------------------------------------------------------------------------------------------------------

class Recorder:
    def __init__(self):
        self.reset()

    def reset(self):
        self.lines = []
        self.on = False
        self.events = 0
        self.current = Stream("D")
        self.contexts = 0
        self.units = []          # stack of units whose group code runs
        self.unit_of_state = {}
        self.unit_of_group = {}
        self.param_name = {}     # id(FSDPParam) -> (unit, FQN)
        self.gathered = {}       # id(all-gather output of one parameter) -> (unit, FQN)
        self.group_name = {}
        self.alloc_kind = []
        self.rs_params = None

    def emit(self, line):
        if self.on:
            self.lines.append(line)

    def stream(self):
        return self.current.name

    def unit(self):
        return self.units[-1] if self.units else "?"


class Stream:
    def __init__(self, name=None, priority=0):
        self.name = name

    def wait_stream(self, other):
        REC.emit(f"wait_stream {self.name} on={other.name}")

    def wait_event(self, event):
        event.waited_on(self)

    def record_event(self, event=None):
        event = event or Event()
        event.record(self)
        return event

    def synchronize(self):
        REC.emit(f"host_wait_stream {self.name}")


class Event:
    def __init__(self, *args, **kwargs):
        self.id = None

    def record(self, stream=None):
        REC.events += 1
        self.id = REC.events
        REC.emit(f"record e{self.id} stream={(stream or REC.current).name}")
        return None   # as torch.cuda.Event.record

    def waited_on(self, stream):
        if self.id is not None:   # an event never recorded is complete
            REC.emit(f"wait e{self.id} stream={stream.name}")

    def wait(self, stream=None):
        self.waited_on(stream or REC.current)

    def synchronize(self):
        REC.emit(f"host_wait e{self.id}")

    def query(self):
        return True


class Handle:
    """The device module FSDP2 sees."""
    Event = Event

    @staticmethod
    def Stream(priority=0):
        return Stream(None, priority)

    @staticmethod
    def current_stream(device=None):
        return REC.current

    @staticmethod
    @contextlib.contextmanager
    def stream(stream):
        previous, REC.current = REC.current, stream
        try:
            yield
        finally:
            REC.current = previous

    @staticmethod
    def current_device():
        return 0


REC = Recorder()


def dtype_name(dtype):
    return DTYPE_NAMES.get(dtype, str(dtype).replace("torch.", ""))


def op_name(op):
    text = str(op)
    if "AVG" in text:
        return "avg"
    if "PREMUL" in text:
        return "premul_sum"
    return "sum"


def track(buf, tensor):
    nbytes = tensor.numel() * tensor.itemsize
    unit = REC.unit()
    REC.emit(f"alloc buf={buf} unit={unit} stream={REC.stream()} bytes={nbytes}")
    storage = tensor.untyped_storage()
    weakref.finalize(storage, REC.emit, f"free buf={buf} unit={unit}").atexit = False


def patch():
    """Wrap FSDP2's internals once; all wrappers write to REC."""
    for module in (_fsdp_collectives, _fsdp_param_group, _fsdp_state):
        module._get_device_handle = lambda device_type: Handle
    # Used by some versions in finalize_backward; without an accelerator it has no meaning on CPU.
    torch.accelerator.current_stream = lambda *a: REC.current

    group_cls, state_cls, param_cls = (_fsdp_param_group.FSDPParamGroup, _fsdp_state.FSDPState,
                                       _fsdp_param.FSDPParam)
    context_cls = _fsdp_param_group.FSDPCommContext

    lazy_init = context_cls.lazy_init

    def context_lazy_init(self, device):
        lazy_init(self, device)
        REC.contexts += 1
        suffix = "" if REC.contexts == 1 else str(REC.contexts)
        for attr, name in (("all_gather_copy_in_stream", "CI"), ("all_gather_stream", "G"),
                           ("reduce_scatter_stream", "S"), ("all_reduce_stream", "A")):
            getattr(self, attr).name = name + suffix
    context_cls.lazy_init = context_lazy_init

    def in_unit(name):
        inner = getattr(group_cls, name)

        def wrapper(self, *args, **kwargs):
            REC.units.append(REC.unit_of_group.get(id(self), "?"))
            try:
                return inner(self, *args, **kwargs)
            finally:
                REC.units.pop()
        return wrapper

    for name in ("unshard", "wait_for_unshard", "reshard", "finalize_backward"):
        setattr(group_cls, name, in_unit(name))
    post_backward = in_unit("post_backward")

    def traced_post_backward(self, *args):
        REC.emit(f"post_backward unit={REC.unit_of_group[id(self)]}")
        return post_backward(self, *args)
    group_cls.post_backward = traced_post_backward

    for name, label in (("_pre_forward", "pre_forward"), ("_post_forward", "post_forward"),
                        ("_pre_backward", "pre_backward"),
                        ("_root_post_backward_final_callback", "final_backward")):
        def make(inner, label):
            def wrapper(self, *args, **kwargs):
                REC.emit(f"{label} unit={REC.unit_of_state[id(self)]}")
                return inner(self, *args, **kwargs)
            return wrapper
        setattr(state_cls, name, make(getattr(state_cls, name), label))

    # Buffers: the allocate method of the communication classes, in the order in which FSDP2 calls it.
    for cls, kinds in ((_fsdp_collectives.DefaultAllGather, ("ag_out",)),
                       (_fsdp_collectives.DefaultReduceScatter, ("rs_in", "rs_out"))):
        def make_alloc(inner, kinds):
            def allocate(self, *args, **kwargs):
                tensor = inner(self, *args, **kwargs)
                if kinds == ("ag_out",):
                    buf = "ag_out"
                else:
                    buf = REC.alloc_kind.pop(0)
                track(buf, tensor)
                return tensor
            return allocate
        cls.allocate = make_alloc(cls.allocate, kinds)

    ag_call = _fsdp_collectives.DefaultAllGather.__call__

    def all_gather(self, output_tensor, input_tensor, group, async_op=False):
        unit = REC.unit()
        names = ",".join(n for u, n in REC.param_name.values() if u == unit)
        REC.emit(f"ag unit={unit} group={REC.group_name[group.group_name]} in={input_tensor.numel()} "
                 f"out={output_tensor.numel()} dtype={dtype_name(output_tensor.dtype)} "
                 f"stream={'W' if async_op else REC.stream()} params={names}")
        return ag_call(self, output_tensor, input_tensor, group, async_op)
    _fsdp_collectives.DefaultAllGather.__call__ = all_gather

    rs_call = _fsdp_collectives.DefaultReduceScatter.__call__

    def reduce_scatter(self, output_tensor, input_tensor, group, op, async_op=False):
        names = ",".join(REC.param_name[id(p)][1] for p in REC.rs_params)
        REC.emit(f"rs unit={REC.unit()} group={REC.group_name[group.group_name]} in={input_tensor.numel()} "
                 f"out={output_tensor.numel()} dtype={dtype_name(output_tensor.dtype)} op={op_name(op)} "
                 f"stream={'W' if async_op else REC.stream()} params={names}")
        return rs_call(self, output_tensor, input_tensor, group, op, async_op)
    _fsdp_collectives.DefaultReduceScatter.__call__ = reduce_scatter

    all_reduce = dist.all_reduce

    def traced_all_reduce(tensor, op=dist.ReduceOp.SUM, group=None, async_op=False):
        REC.emit(f"ar unit={REC.unit()} group={REC.group_name[group.group_name]} n={tensor.numel()} "
                 f"dtype={dtype_name(tensor.dtype)} op={op_name(op)} stream={'W' if async_op else REC.stream()}")
        return all_reduce(tensor, op=op, group=group, async_op=async_op)
    dist.all_reduce = traced_all_reduce

    foreach_reduce = _fsdp_param_group.foreach_reduce

    def traced_foreach_reduce(fsdp_params, *args, **kwargs):
        REC.alloc_kind = ["rs_in", "rs_out"]
        REC.rs_params = list(fsdp_params)
        try:
            return foreach_reduce(fsdp_params, *args, **kwargs)
        finally:
            REC.rs_params = None
    _fsdp_param_group.foreach_reduce = traced_foreach_reduce

    rs_copy_in = _fsdp_collectives.foreach_reduce_scatter_copy_in

    def traced_rs_copy_in(*args):
        REC.emit(f"rs_copy_in unit={REC.unit()} stream={REC.stream()}")
        return rs_copy_in(*args)
    _fsdp_collectives.foreach_reduce_scatter_copy_in = traced_rs_copy_in

    for name, label in (("all_gather_copy_in", "copy_in"), ("split_with_sizes_copy", "copy_out")):
        def make_op(inner, label):
            def op(*args, **kwargs):
                REC.emit(f"{label} unit={REC.unit()} stream={REC.stream()}")
                return inner(*args, **kwargs)
            return op
        setattr(torch.ops.fsdp, name, make_op(getattr(torch.ops.fsdp, name), label))

    # Storages of unsharded parameters
    def resize_line(tensor, nbytes):
        unit, name = REC.gathered.get(id(tensor), ("?", "?"))
        REC.emit(f"resize unit={unit} param={name} bytes={nbytes}")

    init_outputs = param_cls.init_all_gather_outputs

    def traced_init_outputs(self, *args, **kwargs):
        fresh = len(self.all_gather_outputs) == 0
        init_outputs(self, *args, **kwargs)
        if fresh:
            for tensor in self.all_gather_outputs:
                REC.gathered[id(tensor)] = REC.param_name[id(self)]
                resize_line(tensor, tensor.numel() * tensor.itemsize)
    param_cls.init_all_gather_outputs = traced_init_outputs

    alloc_storage, free_storage = _fsdp_param.alloc_storage, _fsdp_param.free_storage

    def traced_alloc(tensor):
        nbytes = tensor.numel() * tensor.itemsize
        if tensor.untyped_storage().size() != nbytes:
            resize_line(tensor, nbytes)
        alloc_storage(tensor)

    def traced_free(tensor):
        if tensor.untyped_storage().size() != 0:
            resize_line(tensor, 0)
        free_storage(tensor)
    for module in (_fsdp_param, _fsdp_param_group):
        module.alloc_storage = traced_alloc
    _fsdp_param.free_storage = traced_free


# ---------------------------------------------------------------------------------------------------------------------
# Inventory -> nn.Module, flow -> forward
# ---------------------------------------------------------------------------------------------------------------------

def check_keys(where, mapping, allowed):
    unknown = set(mapping) - set(allowed)
    if unknown:
        raise BadScenario(f"{where}: unknown keys {sorted(unknown)}")


class Node(nn.Module):
    """A module whose forward interprets the statement its caller left on it."""

    def forward(self, *values):
        return self.__dict__["_run"](*values)


def make_entry(name):
    def method(self, *values):
        return self.__dict__["_run"](*values)
    method.__name__ = name
    return method


STATEMENT_KEYS = {"call", "op", "each", "when", "unless", "body", "items", "in", "out", "params", "entry", "no_grad",
                  "detach", "checkpoint", "pass"}


def entries_of(body):
    for st in body or []:
        if "entry" in st:
            yield st["entry"]
        yield from entries_of(st.get("body"))


def as_list(value):
    return value if isinstance(value, list) else [value]


def substitute(value, item):
    if isinstance(value, str):
        return item + value[1:] if value == "$" or value.startswith("$.") else value
    if isinstance(value, list):
        return [substitute(v, item) for v in value]
    if isinstance(value, dict):
        return {k: substitute(v, item) for k, v in value.items()}
    return value


class Model:
    def __init__(self, inventory):
        check_keys("inventory", inventory, {"lockstep_inventory", "name", "architecture", "model_ids", "source",
                                            "parameters", "dtype", "config", "modules", "aliases", "ties",
                                            "multimodal", "conditions", "flow"})
        self.dtype = inventory.get("dtype", "f32")
        self.flow = inventory["flow"]
        check_keys("flow", self.flow, {"inputs", "grad_inputs", "body", "outputs", "loss"})
        self.entries = set(entries_of(self.flow["body"])) - {"forward"}
        self.root = self.build(inventory["modules"])
        self.canonical = {}
        for alias, target in (inventory.get("aliases") or {}).items():
            parent, _, name = alias.rpartition(".")
            self.root.get_submodule(parent).add_module(name, self.root.get_submodule(target))
        for tie in inventory.get("ties") or []:
            first = self.root.get_parameter(tie[0])
            for other in tie[1:]:
                module, _, name = other.rpartition(".")
                self.root.get_submodule(module)._parameters[name] = first
                self.canonical[other] = tie[0]
        self.module_fqn = {}
        for fqn, module in self.root.named_modules():
            self.module_fqn.setdefault(id(module), fqn)
        self.counts = {}

    def build(self, spec):
        check_keys("module", spec, {"class", "kind", "children", "params", "buffers"})
        kind = spec.get("kind") or {"ModuleList": "list", "ModuleDict": "dict"}.get(spec["class"])
        children = {}
        for name, child in (spec.get("children") or {}).items():
            found = re.fullmatch(r"(\d+)\.\.(\d+)", str(name))
            names = [str(i) for i in range(int(found[1]), int(found[2]) + 1)] if found else [str(name)]
            for one in names:
                children[one] = self.build(child)
        if kind == "list":
            return nn.ModuleList(children.values())
        if kind == "dict":
            return nn.ModuleDict(children)
        cls = type(spec["class"], (Node,), {name: make_entry(name) for name in self.entries})
        module = cls()
        for name, param in (spec.get("params") or {}).items():
            shape, dtype = (param, self.dtype) if isinstance(param, list) else (param["shape"],
                                                                                param.get("dtype", self.dtype))
            module.register_parameter(name, nn.Parameter(torch.full(shape, 0.5, dtype=DTYPES[dtype])))
        for name, child in children.items():
            module.add_module(name, child)
        return module

    # One leaf or op. Several small nodes that act as one: they are created together, and run together in backward. They
    # save tensors, so that recomputation starts, but no parameter, whose storage may be gone by then.
    def compute(self, inputs, params, out_count):
        total = torch.zeros(WIDTH)   # not a scalar, which a sharded parameter would accept
        for x in inputs:
            total = total + x.sin().mean()
        for p in params:
            total = total + p.sum()
        total = total.tanh()
        ones = torch.ones(WIDTH)
        return tuple(total * ones for _ in range(out_count))

    def execute(self, body, env, module):
        for st in body:
            check_keys(f"statement {st}", st, STATEMENT_KEYS)
            if "when" in st or "unless" in st:
                names = as_list(st.get("when", st.get("unless")))
                held = [self.counts.get(n, 0) for n in names]
                if "unless" in st:
                    times = 0 if any(held) else 1
                elif isinstance(st["when"], list):
                    times = 1 if any(held) else 0
                else:
                    times = held[0]
                for _ in range(times):
                    self.execute(st["body"], env, module)
            elif "each" in st:
                container = self.root.get_submodule(st["each"])
                names = [n for n, _ in container.named_children()]
                if "items" in st:
                    low, high = st["items"].split("..")
                    names = [n for n in names if int(low) <= int(n) <= int(high)]
                for name in names:
                    self.execute(substitute(st["body"], f"{st['each']}.{name}"), env, module)
            elif "op" in st:
                self.bind(st, env, self.run_op(st, env, module))
            else:
                self.bind(st, env, self.run_call(st, env))

    def bind(self, st, env, values):
        if st.get("detach"):
            values = {name: value.detach() for name, value in values.items()}
        env.update(values)

    def grad_mode(self, st):
        return torch.no_grad() if st.get("no_grad") else contextlib.nullcontext()

    def run_op(self, st, env, module):
        inputs = [env[n] for n in st.get("in") or [] if n in env]
        params = [module.get_parameter(n) for n in st.get("params") or []]
        outs = st.get("out") or []
        with self.grad_mode(st):
            return dict(zip(outs, self.compute(inputs, params, len(outs))))

    def run_call(self, st, env):
        module = self.root.get_submodule(st["call"])
        names = [n for n in st.get("in") or [] if n in env]
        returned = []    # names of the values returned, set by the forward that ran last

        def forward(*values):
            if "body" not in st:
                if "params" in st:
                    params = [module.get_parameter(n) for n in st["params"]]
                else:
                    params = list(module.parameters())
                outs = st.get("out") or []
                returned[:] = outs
                result = self.compute(values, params, len(outs))
            else:
                def body(*inner):
                    local = dict(zip(names, inner))
                    self.execute(st["body"], local, module)
                    returned[:] = [n for n in st.get("out") or [] if n in local]
                    return tuple(local[n] for n in returned)
                if st.get("checkpoint"):
                    result = checkpoint(body, *values, use_reentrant=False, preserve_rng_state=False)
                else:
                    result = body(*values)
            return result

        entry = st.get("entry", "forward")
        with self.grad_mode(st):
            module.__dict__["_run"] = forward
            values = [env[n] for n in names]
            result = module(*values) if entry == "forward" else getattr(module, entry)(*values)
        return dict(zip(returned, result))

    def forward(self, counts):
        self.counts = counts
        env = {}
        for name in self.flow.get("inputs") or []:
            env[name] = torch.ones(WIDTH, requires_grad=name in (self.flow.get("grad_inputs") or []))
        st = {"call": "", "in": list(env), "out": self.flow.get("outputs") or [], "body": self.flow["body"]}
        return self.run_call(st, env)


# ---------------------------------------------------------------------------------------------------------------------
# The scenario
# ---------------------------------------------------------------------------------------------------------------------

def glob(pattern, name):
    """`*` matches within one name of a dotted path, `**` across names, `?` one character but a dot."""
    parts = {"**": ".*", "*": "[^.]*", "?": "[^.]"}
    return re.fullmatch("".join(parts.get(p) or re.escape(p) for p in re.split(r"(\*\*|\*|\?)", pattern)), name)


def match_modules(root, pattern):
    found = [fqn for fqn, _ in root.named_modules() if pattern == fqn or (fqn and glob(pattern, fqn))]
    if not found:
        raise BadScenario(f"no module matches {pattern!r}")
    return found


def match_params(model, patterns):
    found = {}
    for pattern in patterns:
        hits = {id(param): param for fqn, param in model.root.named_parameters(remove_duplicate=False)
                if glob(pattern, fqn)}
        if not hits:
            raise BadScenario(f"no parameter matches {pattern!r}")
        found |= hits
    return list(found.values())


def unit_name(fqn):
    return fqn or "root"


def policy(spec):
    spec = spec or {}
    check_keys("dtypes", spec, {"param", "reduce", "output", "cast_inputs"})
    pick = lambda key: DTYPES[spec[key]] if spec.get(key) else None
    return MixedPrecisionPolicy(param_dtype=pick("param"), reduce_dtype=pick("reduce"), output_dtype=pick("output"),
                                cast_forward_inputs=spec.get("cast_inputs", True))


SCENARIO_KEYS = {"lockstep", "name", "question", "model", "freeze", "train", "distributed", "units",
                 "registered_forward_methods", "runtime", "batch", "loss"}
UNIT_KEYS = {"modules", "grouped", "reshard", "ignored", "dtypes", "forward_prefetch", "backward_prefetch",
             "unshard_in_backward", "unused_params"}


class Scenario:
    def __init__(self, path):
        with open(path, encoding="utf-8") as file:
            self.doc = yaml.safe_load(file)
        doc = self.doc
        check_keys(path, doc, SCENARIO_KEYS)
        self.name = doc["name"]
        if self.name != os.path.splitext(os.path.basename(path))[0]:
            raise BadScenario(f"{path}: name differs from the file's")
        if not doc.get("question"):
            raise BadScenario(f"{path}: no question")
        distributed = doc["distributed"]
        check_keys("distributed", distributed, {"strategy", "dp_size", "dp_replicate_size"})
        self.world = distributed["dp_size"]
        self.replicate = distributed.get("dp_replicate_size", 1)
        self.shard = self.world // self.replicate
        fsdp2 = (doc.get("runtime") or {}).get("fsdp2") or {}
        check_keys("fsdp2", fsdp2, {"version", "unused_params", "lazy_state_guard", "uniform_reduce_dtype",
                                    "separate_reduce_scatter_group", "reduce_scatter_max_input_buffers"})
        self.fsdp2 = fsdp2
        for unit in doc["units"]:
            check_keys("unit", unit, UNIT_KEYS)
        batch = doc["batch"]
        check_keys("batch", batch, {"microbatches", "samples", "execution", "accumulation", "schedule", "steps"})
        self.microbatches = batch["microbatches"]
        self.schedule = batch.get("schedule") or ["micro"] * self.microbatches + ["step"]
        self.steps = batch["steps"]
        self.samples = batch["samples"]
        self.table = batch["execution"]["table"]
        self.accumulation = batch.get("accumulation") or {}
        check_keys("accumulation", self.accumulation, {"gradient_sync", "all_reduce", "reshard_after_backward",
                                                       "is_last_backward"})
        rounds = self.schedule.count("micro") + self.schedule.count("eval")
        self.eval_rows = rounds > self.microbatches and len(self.table) == rounds * self.steps
        if self.schedule.count("micro") != self.microbatches or (not self.eval_rows and len(self.table) not in (
                self.microbatches, self.microbatches * self.steps)) or any(len(row) != self.world for row in self.table):
            raise BadScenario(f"{path}: table, schedule and microbatches disagree")
        if fsdp2.get("lazy_state_guard", True) or fsdp2.get("uniform_reduce_dtype", True):
            raise BadScenario(f"{path}: PyTorch has neither lazy_state_guard nor uniform_reduce_dtype")

    def switch(self, key, micro):
        value = self.accumulation[key]
        if value == "last":
            return micro == self.microbatches - 1
        return value[micro] if isinstance(value, list) else value

    # The batch of a round: the table has a row per microbatch, per microbatch of all steps, or per microbatch and
    # evaluation of all steps. Without a row of its own an evaluation has the batch of the microbatch that it precedes.
    def counts(self, step, micro, seen, rank):
        if self.eval_rows:
            row = step * (len(self.table) // self.steps) + seen
        else:
            row = min(micro, self.microbatches - 1)
            if len(self.table) > self.microbatches:
                row += step * self.microbatches
        sample = self.samples[self.table[row][rank]]
        check_keys("sample", sample, {"text", *COUNT_KEYS})
        return {COUNT_KEYS[k]: v for k, v in sample.items() if k in COUNT_KEYS}


def apply_units(scenario, model):
    doc, root = scenario.doc, model.root
    for param in match_params(model, doc.get("freeze") or []):
        param.requires_grad_(False)
    for param in match_params(model, doc.get("train") or []):
        param.requires_grad_(True)
    if scenario.replicate > 1:
        mesh = init_device_mesh("cpu", (scenario.replicate, scenario.shard),
                                mesh_dim_names=("dp_replicate", "dp_shard"))
        REC.group_name[mesh.get_group("dp_replicate").group_name] = "dp_replicate"
        REC.group_name[mesh.get_group("dp_shard").group_name] = "dp_shard"
    else:
        mesh = init_device_mesh("cpu", (scenario.shard,), mesh_dim_names=("dp_shard",))
        REC.group_name[mesh.get_group("dp_shard").group_name] = "dp_shard"

    applied = []
    for unit in doc["units"]:
        fqns = []
        for pattern in unit["modules"]:
            fqns += [f for f in match_modules(root, pattern) if f not in fqns]
        kwargs = {"mesh": mesh, "mp_policy": policy(unit.get("dtypes"))}
        if unit.get("reshard") is not None:
            kwargs["reshard_after_forward"] = unit["reshard"]
        if unit.get("ignored"):
            kwargs["ignored_params"] = set(match_params(model, unit["ignored"]))
        for target in ([fqns] if unit.get("grouped") else [[f] for f in fqns]):
            modules = [root.get_submodule(f) for f in target]
            fully_shard(modules if unit.get("grouped") else modules[0], **kwargs)
            applied.append((unit, target))

    for unit, target in applied:
        state = root.get_submodule(target[0])._get_fsdp_state()
        name = unit_name(target[0])
        REC.unit_of_state[id(state)] = name
        for group in state._fsdp_param_groups:
            REC.unit_of_group[id(group)] = name
            if group.post_forward_mesh_info is not None and group.post_forward_mesh_info is not group.mesh_info:
                info = group.post_forward_mesh_info
                REC.group_name.setdefault(info.shard_process_group.group_name, f"reshard_{info.shard_mesh_size}")
            for param in group.fsdp_params:
                module = model.module_fqn[id(param._module_info.module)]
                fqn = f"{module}.{param._module_info.param_name}" if module else param._module_info.param_name
                REC.param_name[id(param)] = (name, model.canonical.get(fqn, fqn))

    default = scenario.fsdp2.get("unused_params", "off")
    for unit, target in applied:
        module = root.get_submodule(target[0])
        for key, setter in (("forward_prefetch", "set_modules_to_forward_prefetch"),
                            ("backward_prefetch", "set_modules_to_backward_prefetch")):
            if unit.get(key):
                getattr(module, setter)([root.get_submodule(f) for f in unit[key]])
        if "unshard_in_backward" in unit:
            module.set_unshard_in_backward(unit["unshard_in_backward"])
        mode = unit.get("unused_params", default)
        if mode == "native":
            if not hasattr(module, "set_reduce_scatter_unused_params"):
                raise NotThisVersion("unused_params: native")
            module.set_reduce_scatter_unused_params(True, recurse=False)
        elif mode != "off":
            raise BadScenario(f"unused_params {mode} is not PyTorch's")
    top = next(root.get_submodule(t[0]) for _, t in reversed(applied))
    buffers = scenario.fsdp2.get("reduce_scatter_max_input_buffers", 1)
    if buffers != 1:
        if not hasattr(top, "set_reduce_scatter_max_input_buffers"):
            raise NotThisVersion("reduce_scatter_max_input_buffers")
        top.set_reduce_scatter_max_input_buffers(buffers)
    if scenario.fsdp2.get("separate_reduce_scatter_group"):
        if not hasattr(top, "set_separate_reduce_scatter_group"):
            raise NotThisVersion("separate_reduce_scatter_group")
        top.set_separate_reduce_scatter_group(True)
        info = top._get_fsdp_state()._fsdp_param_groups[0].mesh_info
        REC.group_name[info.reduce_scatter_process_group.group_name] = "dp_shard_rs"
    for entry in doc.get("registered_forward_methods") or []:
        register_fsdp_forward_method(root.get_submodule(entry["module"]), entry["method"])
    return top


ERRORS = [("uniform gradient dtype", "mixed_gradient_dtypes"), ("uniform reduce dtype", "mixed_reduce_dtypes"),
          ("uniform original parameter dtype", "mixed_original_dtypes"),
          ("_unsharded_param", "never_unsharded"), ("mixed torch.Tensor and DTensor", "sharded_parameter_used"),
          ("has already been lazily initialized", "child_ran_before_root"),
          ("requires a single root module", "grouped_root"),
          ("shared with a parameter already managed", "shared_parameter_two_units"),
          ("must match the size of tensor", "partial_reduce_shape"),
          ("A different number of tensors was saved", "recompute_differs")]


def error_word(error):
    text = str(error)
    for needle, word in ERRORS:
        if needle in text:
            return word
    raise error


def run_rounds(scenario, model, rank, optimized, top):
    counters = {"micro": 0, "eval": 0, "step": 0}
    root = model.root
    setters = [("gradient_sync", "set_requires_gradient_sync"), ("all_reduce", "set_requires_all_reduce"),
               ("reshard_after_backward", "set_reshard_after_backward"), ("is_last_backward", "set_is_last_backward")]
    loss_names = model.flow.get("loss") or []
    for step in range(scenario.steps):
        micro = seen = 0
        for kind in scenario.schedule:
            REC.emit(f"round {kind} {counters[kind]}")
            counters[kind] += 1
            if kind == "micro":
                for key, setter in setters:
                    if key in scenario.accumulation:
                        for module in ([root] if isinstance(root, FSDPModule) else [
                                m for m in root.modules() if isinstance(m, FSDPModule)]):
                            getattr(module, setter)(scenario.switch(key, micro))
                outputs = model.forward(scenario.counts(step, micro, seen, rank))
                loss = sum((outputs[n].float().sum() for n in loss_names if n in outputs), torch.zeros(()))
                del outputs
                if not loss.requires_grad:
                    REC.emit("error loss_without_gradient")
                    return
                loss.backward()
                del loss
                micro += 1
                seen += 1
            elif kind == "eval":
                with torch.no_grad():
                    model.forward(scenario.counts(step, micro, seen, rank))
                seen += 1
            else:
                for param in optimized:
                    param.grad = None


def record_rank(scenario, rank):
    REC.reset()
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=scenario.world)
    gc.collect()
    gc.disable()
    try:
        model = Model(scenario.doc["model"]["inventory"])
        top = apply_units(scenario, model)
        optimized = list(model.root.parameters())   # what an optimizer made now would hold
        REC.on = True
        stdout, sys.stdout = sys.stdout, open(os.devnull, "w")
        stderr, sys.stderr = sys.stderr, sys.stdout
        try:
            run_rounds(scenario, model, rank, optimized, top)
        except Exception as error:   # pylint: disable=broad-except
            sys.stderr = stderr
            while REC.lines and REC.lines[-1].startswith("free "):
                REC.lines.pop()   # dropped while the exception left FSDP2
            REC.emit(f"error {error_word(error)}")
            REC.on = False   # the traceback still holds buffers
        finally:
            sys.stdout.close()
            sys.stdout, sys.stderr = stdout, stderr
        REC.on = False
        return REC.lines
    finally:
        REC.on = False
        gc.enable()
        dist.destroy_process_group()
        sys.excepthook = sys.__excepthook__   # each process group adds a prefix to it


def record(path, out_dir):
    scenario = Scenario(path)
    lines = ["lockstep-recording 1", f"torch {VERSION}", f"scenario {scenario.name}"]
    try:
        for rank in range(scenario.world):
            lines.append(f"rank {rank}")
            lines += record_rank(scenario, rank)
    except NotThisVersion as reason:
        print(f"{scenario.name}: not recorded with torch {VERSION}: {reason}")
        return
    bad = [line for line in lines if "=?" in line or "None" in line]
    if bad:
        raise BadScenario(f"{path}: unattributed event {bad[0]!r}")
    target = os.path.join(out_dir or os.path.dirname(path), f"{scenario.name}.torch-{VERSION}.rec")
    with open(target + ".tmp", "w", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")
    os.replace(target + ".tmp", target)
    errors = sum(line.startswith("error") for line in lines)
    print(f"{scenario.name}: {len(lines)} lines" + (f", {errors} ranks raise" if errors else ""))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", help="folder of the recordings; default: next to the scenario")
    parser.add_argument("--existing", action="store_true", help="only scenarios that have a recording of this version")
    parser.add_argument("scenarios", nargs="+")
    args = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    patch()
    failed = 0
    for path in args.scenarios:
        if args.existing and not os.path.exists(f"{os.path.splitext(path)[0]}.torch-{VERSION}.rec"):
            continue
        try:
            record(path, args.out)
        except BadScenario as error:
            print(f"{path}: {error}", file=sys.stderr)
            failed += 1
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
