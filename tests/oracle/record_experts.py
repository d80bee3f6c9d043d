#!/usr/bin/env python3
"""Record what AutoModel's expert-parallel path issues, rank by rank, for scenarios with a policy and small models.

    record_experts.py [--out DIR] SCENARIO.yaml...        writes SCENARIO.nemo-VERSION.torch-VERSION.rec

Real: the parallelizer (parallelize_model), the MoE layers' experts with the `torch` dispatcher, FSDP2, autograd, MoEFSDPSyncMixin, the
training step's scaling and clipping, the gates' bias update. Made up: the rest of the model, whose leaves add up what they get (as in
record_fsdp2.py, whose recorder this uses), gates' choices (all experts of this rank, or `experts: idle`: none), and data. Each rank runs alone under the fake
process group; every mesh axis has a group of its own, as with NCCL and a timeout. See format.md, README.md."""
import argparse
import gc
import importlib.metadata
import logging
import os
import sys
import traceback
import types

import torch
import torch.distributed as dist
import torch.nn as nn
import yaml
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy
from torch.testing._internal.distributed.fake_pg import FakeStore

import flow_model
import fsdp2_trace
import record_fsdp2 as base
from flow_model import BadScenario, check_keys
from fsdp2_trace import REC, dtype_name

import nemo_automodel.components.moe.experts as experts_module
from nemo_automodel.components.distributed import mesh_utils, utils as distributed_utils
from nemo_automodel.components.distributed.mesh import ParallelismSizes
from nemo_automodel.components.moe import fsdp_mixin, parallelizer
from nemo_automodel.components.moe.config import MoEConfig
from nemo_automodel.components.moe.experts import GroupedExperts
from nemo_automodel.components._peft.lora_experts import GroupedExpertsLoRA
from nemo_automodel.components.moe.layers import FakeBalancedGate, Gate, MoE
from nemo_automodel.components.training import utils as training_utils

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
NEMO = importlib.metadata.version("nemo-automodel")
TOKENS = 3      # per rank
RANKS = 2       # recorded: the first expert group's first two; the others do the same with other batches
INNER = "_checkpoint_wrapped_module"


# ------------------------------------------------------------------------------------------- collectives beside FSDP2's

def patch():
    for install in ("_patch_fsdp_accumulated_grad_guard", "_patch_fsdp_uniform_reduce_dtype"):
        getattr(parallelizer, install)()    # AutoModel's, once per process; the recorder goes around them
    overloads = {name: getattr(torch.ops.fsdp, name) for name in ("all_gather_copy_in", "split_with_sizes_copy")}
    fsdp2_trace.patch()
    for name, packet in overloads.items():  # selective checkpointing asks for them
        getattr(torch.ops.fsdp, name).default = packet.default
    all_gather, all_reduce = dist.all_gather, dist.all_reduce

    def traced_all_gather(outputs, tensor, group=None, async_op=False):
        REC.emit(f"gather group={REC.group_name[group.group_name]} n={tensor.numel()} dtype={dtype_name(tensor.dtype)} "
                 f"stream={REC.stream()}")
        work = all_gather(outputs, tensor, group=group, async_op=async_op)
        for out in outputs:     # all ranks alike, so that sizes make sense
            out.copy_(tensor)
        return work
    dist.all_gather = traced_all_gather

    def traced_all_reduce(tensor, op=dist.ReduceOp.SUM, group=None, async_op=False):
        if REC.units:           # FSDP2's own
            return all_reduce(tensor, op=op, group=group, async_op=async_op)
        name = "max" if "MAX" in str(op) else fsdp2_trace.op_name(op)
        REC.emit(f"reduce group={REC.group_name[group.group_name]} n={tensor.numel()} dtype={dtype_name(tensor.dtype)} op={name} "
                 f"stream={REC.stream()}")
        on, REC.on = REC.on, False
        try:
            return all_reduce(tensor, op=op, group=group, async_op=async_op)
        finally:
            REC.on = on
    dist.all_reduce = traced_all_reduce

    import torch.distributed._functional_collectives as functional
    inner = functional.all_reduce

    def functional_all_reduce(tensor, reduceOp, group, tag=""):
        mesh, dim = group
        REC.emit(f"reduce group={REC.group_name[mesh.get_group(dim).group_name]} n={tensor.numel()} dtype={dtype_name(tensor.dtype)} "
                 f"op={reduceOp} stream={REC.stream()}")
        return inner(tensor, reduceOp, group, tag)
    functional.all_reduce = functional_all_reduce
    if hasattr(training_utils, "_use_fused_grad_norm"):     # as on CUDA
        training_utils._use_fused_grad_norm = lambda *a: True
        training_utils.multi_tensor_sumsq = lambda grads: torch.zeros((), dtype=torch.float64)
    # With NCCL and a timeout every axis gets options, and so a group of its own.
    mesh_utils._nccl_backend_override = lambda axes, **kwargs: {axis: ("fake", None) for axis in axes}


# -------------------------------------------------------------------------------------------------------------- the model

class Experts(GroupedExperts):
    def forward(self, *values):
        return self.__dict__["_run"](*values)


class AdaptedExperts(GroupedExpertsLoRA):
    forward = Experts.forward


class Layer(MoE):
    def forward(self, *values):
        return self.__dict__["_run"](*values)


class Router(Gate):
    def forward(self, *values):
        return self.__dict__["_run"](*values)


class FakeRouter(FakeBalancedGate):
    forward = Router.forward


class Model(flow_model.Model):
    """As record_fsdp2's, with the real classes where there are experts, and modules that checkpointing may have wrapped."""
    idle = False    # whether the batch routes no token to this rank's experts

    def __init__(self, inventory, backend, peft):
        self.moe = inventory.pop("moe")
        self.fake_gates, self.rank = backend.get("fake_balanced_gate", False), (peft or {}).get("rank")
        if peft and peft.get("targets") != ["*.mlp.experts"]:
            raise BadScenario("only experts are adapted here")
        optimizations = backend.get("enable_fsdp_optimizations", False)
        super().__init__(inventory)
        self.gates = []
        for entry in self.moe:
            for fqn in [n for n, _ in self.root.named_modules() if n and flow_model.glob(entry["modules"], n)]:
                layer = self.root.get_submodule(fqn)
                if not hasattr(layer, entry.get("experts", "experts")):
                    continue
                self.make_moe(layer, entry)
        self.root.__class__ = type(inventory["modules"]["class"], (fsdp_mixin.MoEFSDPSyncMixin, type(self.root)), {})
        self.root.backend = types.SimpleNamespace(enable_fsdp_optimizations=optimizations)

    def make_moe(self, layer, entry):
        old, gate = layer.experts, layer.gate
        count, dim, up = old.gate_and_up_projs.shape
        config = MoEConfig(n_routed_experts=count, n_shared_experts=0, n_activated_experts=entry.get("top_k", 1), n_expert_groups=1,
                           n_limited_groups=1, train_gate=True, gate_bias_update_factor=1e-3, aux_loss_coeff=0, score_func="softmax",
                           route_scale=1.0, dim=dim, inter_dim=up // 2, moe_inter_dim=up // 2, norm_topk_prob=False,
                           dtype=old.gate_and_up_projs.dtype)
        new = GroupedExperts(config)
        for name, param in list(old.named_parameters()):
            setattr(new, name, param)
        new.__class__ = Experts
        if self.rank:
            new = GroupedExpertsLoRA(new, lora_dim=self.rank)
            new.__class__ = AdaptedExperts
        self.module_fqn[id(new)] = self.module_fqn[id(old)]
        layer.experts = new
        layer.__class__ = Layer
        if self.fake_gates:
            layer.gate = FakeBalancedGate(config)
            layer.gate.__class__ = FakeRouter
            self.module_fqn[id(layer.gate)] = self.module_fqn[id(gate)]
            self.count = count
            return
        gate.__class__ = Router
        bias = entry.get("gate_bias")
        if not bias:
            gate.e_score_correction_bias = None
        else:
            gate.register_buffer("e_score_correction_bias", torch.zeros(count, dtype=torch.float32))
            if bias != "e_score_correction_bias":
                raise BadScenario("the gate's bias has another name")
        gate.train_gate, gate.bias_update_factor, gate.e_score_correction_bias_master = True, 1e-3, None
        gate._cumulative_expert_load = None
        if entry.get("bias_update"):
            self.gates.append((gate, count))
        self.count = count

    def build(self, spec):
        spec = dict(spec)
        spec.pop("buffers", None)
        return super().build(spec)

    def run_call(self, st, env):
        module = self.root.get_submodule(st["call"]) if st["call"] else self.root
        if hasattr(module, INNER):     # the body is the wrapped module's; it must not be looked up through the wrapper's name
            return self.call(module, getattr(module, INNER), st, env)
        return self.call(module, module, st, env)

    def call(self, outer, module, st, env):
        names = [n for n in st.get("in") or [] if n in env]
        returned = []

        def forward(*values):
            if isinstance(module, (Experts, AdaptedExperts)):
                returned[:] = st["out"]
                return self.run_experts(module, *values)
            if isinstance(module, FakeRouter):
                returned[:] = st["out"]
                return tuple(t.detach() for t in self.compute(values, [], len(returned)))
            if "body" not in st:
                outs = st.get("out") or []
                returned[:] = outs
                return self.compute(values, list(module.parameters()), len(outs))
            local = dict(zip(names, values))
            self.execute(st["body"], local, module)
            returned[:] = [n for n in st.get("out") or [] if n in local]
            return tuple(local[n] for n in returned)
        module.__dict__["_run"] = forward
        result = outer(*[env[n] for n in names])
        return dict(zip(returned, result))

    def compute(self, inputs, params, out_count):
        # In the dtype of the gathered parameters, as layers compute: a unit that casts its output moves its hook behind the cast.
        dtype = params[0].dtype if params else inputs[0].dtype
        return tuple(t.to(dtype) for t in super().compute(inputs, params, out_count))

    def run_op(self, st, env, module):
        """Additions, which save nothing for backward: recomputation does not get to them."""
        inputs = [env[n] for n in st.get("in") or [] if n in env]
        total = inputs[0] if len(inputs) > 1 else inputs[0] + 0
        for x in inputs[1:]:
            total = total + x
        return {n: total for n in st.get("out") or []}

    def run_experts(self, module, tokens, weights):
        k, dim = module.config.n_activated_experts, module.config.dim
        dtype = module.down_projs.dtype
        x = tokens.mean().to(dtype) * torch.ones(TOKENS, dim, dtype=dtype)
        w = weights.mean() * torch.ones(TOKENS, k, dtype=dtype)
        # This rank's experts get every token, or none: the others' tokens are routed as its own.
        local = self.count // self.experts_ranks
        first = dist.get_rank() % self.experts_ranks * local + (local if self.idle else 0)
        indices = (first + torch.arange(k) % local).repeat(TOKENS, 1) % self.count
        y = (GroupedExpertsLoRA if self.rank else GroupedExperts).forward(module, x, torch.ones(TOKENS, dtype=torch.bool), w, indices)
        return (y.mean().expand(flow_model.WIDTH),)   # saves nothing, as a view


# ----------------------------------------------------------------------------------------------------------- the scenario

class Scenario:
    def __init__(self, path):
        with open(path, encoding="utf-8") as file:
            self.doc = doc = yaml.safe_load(file)
        check_keys(path, doc, {"lockstep", "name", "question", "model", "freeze", "train", "distributed", "runtime", "batch", "step"})
        self.name = doc["name"]
        if self.name != os.path.splitext(os.path.basename(path))[0]:
            raise BadScenario(f"{path}: name differs from the file's")
        beside = os.path.join(os.path.dirname(path), doc["model"]["inventory"])
        with open(beside if os.path.exists(beside) else os.path.join(ROOT, "scenarios", doc["model"]["inventory"]), encoding="utf-8") as file:
            self.inventory = file.read()
        self.backend = doc["model"].get("backend") or {}
        check_keys("backend", self.backend, {"dispatcher", "enable_fsdp_optimizations", "fake_balanced_gate"})
        if self.backend.get("dispatcher", "torch") != "torch":
            raise BadScenario("only the torch dispatcher can be recorded without a GPU")
        self.distributed = d = doc["distributed"]
        check_keys("distributed", d, {"strategy", "rules", "dp_size", "dp_replicate_size", "ep_size", "moe", "multimodal", "reshard_after_forward",
                                      "activation_checkpointing", "defer_fsdp_grad_sync", "mp_policy"})
        self.world = d["dp_size"]
        batch = doc["batch"]
        check_keys("batch", batch, {"microbatches", "samples", "execution", "steps"})
        self.microbatches, self.steps, self.samples, self.table = (batch["microbatches"], batch["steps"], batch["samples"],
                                                                   batch["execution"]["table"])
        if len(self.table) != self.microbatches * self.steps or any(len(row) != self.world for row in self.table):
            raise BadScenario(f"{path}: table and microbatches disagree")
        self.clip = (doc.get("step") or {}).get("clip_grad_norm", False)

    def counts(self, step, micro, rank):
        sample = self.samples[self.table[step * self.microbatches + micro][rank]]
        check_keys("sample", sample, {"text", "experts", *flow_model.COUNT_KEYS})
        Model.idle = sample.get("experts") == "idle"
        return {flow_model.COUNT_KEYS[k]: v for k, v in sample.items() if k in flow_model.COUNT_KEYS}


def mp_policy(spec):
    if spec is None:        # FSDP2Config's default
        return MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32, output_dtype=torch.bfloat16)
    return base.policy(spec)


def parallelize(scenario, model):
    d, root = scenario.distributed, model.root
    for param in flow_model.match_params(model, scenario.doc.get("freeze") or []):
        param.requires_grad_(False)
    for param in flow_model.match_params(model, scenario.doc.get("train") or []):
        param.requires_grad_(True)
    world, moe = mesh_utils._create_fsdp2_device_mesh(
        ParallelismSizes(dp_size=d["dp_size"], dp_replicate_size=d.get("dp_replicate_size", 1), ep_size=d["ep_size"]),
        world_size=scenario.world)
    mesh = mesh_utils.get_fsdp_dp_mesh(world, "dp_replicate", "dp_shard_cp")
    REC.group_name[dist.group.WORLD.group_name] = "dp"
    for i, name in enumerate(("dp_replicate", "dp_shard")[-mesh.ndim:]):
        REC.group_name[mesh.get_group(i).group_name] = name
    for name in ("ep", "ep_shard"):
        REC.group_name.setdefault(moe[name].get_group().group_name, name)   # over all ranks it is the default group
    options = dict(d.get("moe") or {})
    check_keys("moe", options, {"wrap_outer_model", "reshard_after_forward", "ignore_router_for_ac", "lm_head_precision", "mp_policy"})
    precision = mp_policy(options.pop("mp_policy", None) or d.get("mp_policy"))
    if d.get("reshard_after_forward") is not None:
        options["reshard_after_forward"] = d["reshard_after_forward"]
    inner = getattr(root, "model", root)
    inner.moe_config = types.SimpleNamespace(n_routed_experts=model.count)
    root.config = types.SimpleNamespace(hidden_size=32, num_experts=model.count)
    parallelizer.parallelize_model(
        root, world, moe, dp_axis_names=("dp_replicate", "dp_shard_cp"), ep_axis_name="ep", ep_shard_axis_names=("ep_shard",),
        activation_checkpointing=d.get("activation_checkpointing", False), mp_policy=precision,
        frozen_multimodal_sharding=(d.get("multimodal") or {}).get("frozen_sharding", "root"), **options)
    for module in root.modules():
        if not isinstance(module, FSDPModule):
            continue
        state = module._get_fsdp_state()
        fqn = model.module_fqn[id(getattr(module, INNER, module))]
        REC.unit_of_state[id(state)] = base.unit_name(fqn)
        for group in state._fsdp_param_groups:
            REC.unit_of_group[id(group)] = base.unit_name(fqn)
            for param in group.fsdp_params:
                where = model.module_fqn[id(param._module_info.module)]
                name = f"{where}.{param._module_info.param_name}" if where else param._module_info.param_name
                REC.param_name[id(param)] = (base.unit_name(fqn), model.canonical.get(name, name))
    return world, moe


def run(scenario, model, rank, moe):
    root = model.root
    defer = scenario.distributed.get("defer_fsdp_grad_sync", scenario.backend.get("enable_fsdp_optimizations", False))
    seen = 0
    for step in range(scenario.steps):
        training_utils.prepare_for_grad_accumulation([root])
        for micro in range(scenario.microbatches):
            last = micro + 1 == scenario.microbatches
            if last:
                training_utils.prepare_for_final_backward([root])
            REC.emit(f"round micro {seen}")
            seen += 1
            with distributed_utils.get_sync_ctx(root, last, defer):
                outputs = model.forward(scenario.counts(step, micro, rank))
                loss = sum((outputs[n].float().sum() for n in model.flow["loss"] if n in outputs), torch.zeros(()))
                del outputs
                loss.backward()
                del loss
        REC.emit(f"round step {step}")
        training_utils.scale_grads_and_clip_grad_norm(
            1.0 if scenario.clip else None, [root], moe_mesh=moe, ep_axis_name="ep", dp_group_size=scenario.world, foreach=False)
        for gate, count in model.gates:
            gate._cumulative_expert_load = torch.ones(count, dtype=torch.int64)
            gate.update_bias()
        for param in root.parameters():
            param.grad = None


def record_rank(scenario, rank):
    REC.reset()
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=scenario.world)
    gc.collect()
    gc.disable()
    try:
        model = Model(yaml.safe_load(scenario.inventory), scenario.backend, scenario.doc["model"].get("peft"))
        model.experts_ranks = scenario.distributed["ep_size"]
        _, moe = parallelize(scenario, model)
        if model.rank:      # as AutoModel does, after sharding
            for name, param in model.root.named_parameters():
                param.requires_grad_("lora_" in name)
        REC.on = True
        stderr, sys.stderr = sys.stderr, open(os.devnull, "w")
        try:
            run(scenario, model, rank, moe)
        except Exception as error:   # pylint: disable=broad-except
            sys.stderr.close()
            sys.stderr = stderr
            while REC.lines and REC.lines[-1].startswith("free "):
                REC.lines.pop()
            REC.emit(f"error {base.error_word(error)}")
            REC.on = False
        finally:
            sys.stderr = stderr
        REC.on = False
        return REC.lines
    finally:
        REC.on = False
        gc.enable()
        dist.destroy_process_group()
        sys.excepthook = sys.__excepthook__


def in_child(scenario, rank):
    """In a process of its own: DTensor caches meshes, and with them the groups of the rank before."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(read)
            with os.fdopen(write, "w", encoding="utf-8") as pipe:
                pipe.write("\n".join(record_rank(scenario, rank)))
            os._exit(0)
        except BaseException:   # pylint: disable=broad-except
            traceback.print_exc()
            os._exit(1)
    os.close(write)
    with os.fdopen(read, encoding="utf-8") as pipe:
        lines = pipe.read().split("\n")
    if os.waitpid(child, 0)[1]:
        raise BadScenario(f"{scenario.name}: rank {rank} failed")
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out")
    parser.add_argument("scenarios", nargs="+")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch._dynamo.config.disable = True     # activations of experts are compiled, which takes a minute and changes no call
    logging.disable(logging.WARNING)
    patch()
    gc.collect()
    gc.freeze()     # every rank's process collects garbage
    failed = 0
    for path in args.scenarios:
        scenario = Scenario(path)
        lines = ["lockstep-recording 1", f"torch {base.VERSION}", f"scenario {scenario.name}"]
        try:
            for rank in range(RANKS):
                lines += [f"rank {rank}"] + in_child(scenario, rank)
        except BadScenario as error:
            print(error, file=sys.stderr)
            failed += 1
            continue
        bad = [line for line in lines if "=?" in line or "None" in line]
        if bad:
            raise BadScenario(f"{path}: unattributed event {bad[0]!r}")
        target = os.path.join(args.out or os.path.dirname(path), f"{scenario.name}.nemo-{NEMO}.torch-{base.VERSION}.rec")
        with open(target, "w", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")
        print(f"{scenario.name}: {len(lines)} lines", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
