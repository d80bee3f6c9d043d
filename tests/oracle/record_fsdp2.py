#!/usr/bin/env python3
"""Record what FSDP2 issues, rank by rank, for scenarios with explicit units and an inline inventory.

    record_fsdp2.py [--out DIR] SCENARIO.yaml...

Each rank runs alone, in this process, under the fake process group: which collectives a rank takes part in depends only
on that rank, so configurations that would hang can be recorded too. flow_model.py is the model, fsdp2_trace.py the recorder.
See format.md, README.md.
"""
import argparse
import gc
import logging
import os
import sys
import warnings

import torch
import torch.distributed as dist
import yaml
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (FSDPModule, MixedPrecisionPolicy, fully_shard,
                                    register_fsdp_forward_method)
from torch.testing._internal.distributed.fake_pg import FakeStore

from flow_model import COUNT_KEYS, DTYPES, BadScenario, Model, check_keys, match_modules, match_params
from fsdp2_trace import REC, patch

warnings.filterwarnings("ignore")

VERSION = torch.__version__.split("+")[0]


class NotThisVersion(Exception):
    """The scenario uses something this PyTorch does not have."""


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
