#!/usr/bin/env python3
"""Record the unit lists of the real AutoModel parallelizers (nemo-automodel: dense path, expert-parallel path) on meta-device models.

    record_automodel.py [CASE...]   writes automodel/CASE.nemo-VERSION.rec beside this file; without arguments, every case

Needs torch, transformers and nemo-automodel (0.6.0 or 0.7.0; its other dependencies are not used) in one environment; no GPU, no
weights, no second process: the process group is fake. Each case names an inventory of this repository. Real architectures are
built from `transformers` by inventory_models.py, so the module tree is theirs and not the inventory's; small ones are built
from the inventory itself. oracle_automodel.c compares each file with what `rules: automodel` makes of the inventory."""
import importlib
import importlib.metadata
import os
import sys

import torch
import torch.distributed as dist
import yaml
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.testing._internal.distributed.fake_pg import FakeStore

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
DTYPES = {"f64": torch.float64, "f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16,
          "i64": torch.int64, "i32": torch.int32, "u8": torch.uint8, "bool": torch.bool}
NAMES = {v: k for k, v in DTYPES.items()}
LISTED = 40     # parameters of a unit that are listed by name; more are given as a digest

# Real models and the module that builds each. Muse-Glimmer needs nemo-automodel 0.7, Gemma 3n needs timm.
REAL = {**dict.fromkeys(["qwen3_vl_4b", "gemma3_4b", "ministral3_3b", "gemma4_e4b", "gemma4_31b", "qwen2_5_omni_3b", "qwen2_5_vl_3b",
                         "internvl3_5_4b", "gemma3n_e4b"], "inventory_models"),
        **dict.fromkeys(["qwen3_5_4b", "llava_ov_1_5_4b", "muse_glimmer_30b"], "inventory_automodel")}
# With routed experts, for the expert-parallel path: all in inventory_automodel, under these names.
ROUTED = {**{n: n for n in ("gemma4_26b_a4b", "kimi_vl_a3b", "qwen3_omni_30b_a3b", "qwen3_vl_30b_a3b", "qwen3_5_35b_a3b", "kimi_k2_5",
                            "minimax_m3", "step_3_7_flash")},
          "mistral_small_4_119b": "mistral_small_4"}


def cases():
    out = {}

    def case(name, inventory, **options):
        out[name] = dict(inventory=inventory, **options)
    for model in REAL:
        both = {"freeze_vision_tower": True, "freeze_audio_tower": True}
        for frozen in ("root", "per_layer", "replicate"):
            case(f"{model}_{frozen}", f"scenarios/models/{model}.yaml", frozen=frozen, freeze_config=both)
        case(f"{model}_trainable", f"scenarios/models/{model}.yaml", freeze_config=None)
    q = "scenarios/models/qwen3_vl_4b.yaml"
    case("qwen3_vl_4b_language_frozen", q, freeze_config={"freeze_vision_tower": False, "freeze_language_model": True})
    case("qwen3_vl_4b_reshard_true", q, freeze_config={}, frozen="per_layer", reshard=True)
    case("qwen3_vl_4b_reshard_false", q, freeze_config={}, frozen="per_layer", reshard=False, prefetch=(1, 2))
    case("qwen3_vl_4b_prefetch", q, freeze_config={}, frozen="per_layer", prefetch=(1, 2))
    case("gemma3_4b_prefetch_deep", "scenarios/models/gemma3_4b.yaml", freeze_config={}, prefetch=(3, 3))
    for frozen in ("root", "per_layer", "replicate"):
        case(f"fixture_v_{frozen}", "tests/data/model/fixture_v.yaml", frozen=frozen, freeze=["model.visual"])
    case("fixture_v_partly_frozen", "tests/data/model/fixture_v.yaml", frozen="root", freeze=["model.visual.blocks"])
    case("containers", "tests/data/model/containers.yaml")
    case("dict_in_list", "tests/data/model/dict_in_list.yaml")
    for frozen in ("root", "per_layer", "replicate"):
        case(f"nested_names_{frozen}", "tests/data/model/nested_names.yaml", frozen=frozen, freeze=["vision_tower.vision_model", "audio_tower"],
             prefetch=(1, 2))
    case("qwen3_vl_4b_lora_language", q, freeze_config={}, peft=("*.language_model.*_proj", 16))
    case("qwen3_vl_4b_lora_tower", q, peft=("*.visual.*.qkv", 8))
    case("gemma3_4b_lora_frozen_tower", "scenarios/models/gemma3_4b.yaml", freeze_config={}, frozen="per_layer", peft=("*_proj", 4))
    for model in ROUTED:
        both, file = {"freeze_vision_tower": True, "freeze_audio_tower": True}, f"scenarios/models/{model}.yaml"
        for frozen in ("root", "per_layer", "replicate"):
            case(f"{model}_{frozen}", file, frozen=frozen, freeze_config=both, dp=4, ep=2)
        case(f"{model}_trainable", file, freeze_config=None, dp=4, ep=4)
        case(f"{model}_inner_root", file, freeze_config=both, dp=4, ep=2, moe=dict(wrap_outer_model=False))
        case(f"{model}_inner_trainable", file, freeze_config=None, dp=4, ep=2, reshard=True,
             moe=dict(wrap_outer_model=False, lm_head_precision="float32"))
    for name in ("two", "three", "island"):
        case(f"by_dtype_{name}", f"tests/data/model/by_dtype_{name}.yaml")
    return out


# ------------------------------------------------------------------------------------------------- models

def expand(children):
    for name, node in children.items():
        if ".." in name:
            first, last = name.split("..")
            for i in range(int(first), int(last) + 1):
                yield str(i), node
        else:
            yield name, node


def build(node, default):
    """A module tree from an inventory: classes are made up, containers are PyTorch's."""
    cls, kind = node.get("class", "Module"), node.get("kind")
    base = nn.ModuleList if cls == "ModuleList" or kind == "list" else nn.ModuleDict if cls == "ModuleDict" or kind == "dict" else nn.Module
    module = base() if cls in ("ModuleList", "ModuleDict") else type(cls, (base,), {})()

    def tensor(spec):
        shape, dtype = (spec, default) if isinstance(spec, list) else (spec["shape"], spec.get("dtype", default))
        return torch.empty(shape, dtype=DTYPES[dtype], device="meta")
    for name, spec in (node.get("params") or {}).items():
        t = tensor(spec)
        module.register_parameter(name, nn.Parameter(t, requires_grad=t.is_floating_point()))
    for name, spec in (node.get("buffers") or {}).items():
        module.register_buffer(name, tensor(spec))
    for name, child in expand(node.get("children") or {}):
        module.add_module(name, build(child, default))
    return module


def model_of(case):
    path = os.path.join(ROOT, case["inventory"])
    name = os.path.splitext(os.path.basename(path))[0]
    if name in ROUTED:
        return getattr(importlib.import_module("inventory_automodel"), ROUTED[name])().full()
    if name in REAL:
        return getattr(importlib.import_module(REAL[name]), name)().full()
    with open(path) as f:
        doc = yaml.safe_load(f)
    return build(doc["modules"], doc.get("dtype"))


# ------------------------------------------------------------------------------------------------- recording

def digest(names):
    """FNV-1a, 64 bits, of the names, each ended by a newline."""
    h = 0xcbf29ce484222325
    for b in "".join(n + "\n" for n in names).encode():
        h = (h ^ b) * 0x100000001b3 & (1 << 64) - 1
    return f"{h:016x}"


def listed(names, base):
    if len(names) > LISTED:
        return f"{len(names)}:{digest(names)}"
    return ",".join(n[len(base):] if base and n.startswith(base + ".") else n for n in names) or "-"


def record(case, version):
    if "ep" in case:
        import nemo_automodel.components.moe.parallelizer as parallelizer
    else:
        import nemo_automodel.components.distributed.parallelizer as parallelizer
    import nemo_automodel.components.distributed.parallelizer_utils as parallelizer_utils
    from nemo_automodel.components.utils.model_utils import apply_parameter_freezing

    model = model_of(case)
    # The parallelizer asks the outer configuration, whose class default says tied, even of models that are never tied.
    if getattr(getattr(model, "tie_word_embeddings_support", None), "name", "") == "UNTIED_ONLY":
        model.config.tie_word_embeddings = False
    if "peft" in case:      # as AutoModel does: adapters first, the base is frozen only after sharding
        from nemo_automodel.components._peft.lora import PeftConfig, apply_lora_to_linear_modules
        target, rank = case["peft"]
        with torch.device("meta"):
            apply_lora_to_linear_modules(model, PeftConfig(target_modules=[target], dim=rank, use_triton=False), skip_freeze=True)
    name_of = {id(m): n for n, m in model.named_modules()}
    param_name = {}
    for n, p in model.named_parameters(remove_duplicate=False):
        param_name.setdefault(id(p), n)     # the first name of a tied parameter
    if case.get("freeze_config") is not None:
        apply_parameter_freezing(model, case["freeze_config"])
    for prefix in case.get("freeze", []):
        for p in model.get_submodule(prefix).parameters():
            p.requires_grad_(False)
    calls = []
    real = parallelizer.fully_shard

    alive = list(model.parameters())    # ids must stay unique

    def spy(module, **kwargs):
        for n, p in module.named_parameters(remove_duplicate=False):    # experts: cut over ep since
            param_name.setdefault(id(p), f"{name_of[id(module)]}.{n}" if name_of[id(module)] else n)
        names = {id(p) for p in kwargs.get("ignored_params") or ()}
        kept = [p for p in module.parameters() if id(p) in names and id(p) not in spy.managed]    # a nested unit's are nothing to ignore
        calls.append((module, kwargs, [param_name[id(p)] for p in kept]))
        before = {id(p): p for p in module.parameters()}
        out = real(module, **kwargs)
        # fully_shard puts new Parameters in place: they keep their names
        for n, p in module.named_parameters(remove_duplicate=False):
            param_name.setdefault(id(p), f"{name_of[id(module)]}.{n}" if name_of[id(module)] else n)
        alive.append(before)
        managed = [p.sharded_param for g in module._get_fsdp_state()._fsdp_param_groups for p in g.fsdp_params]
        alive.extend(managed)
        spy.managed |= {id(p) for p in managed}
        return out
    spy.managed = set()
    parallelizer.fully_shard = parallelizer_utils.fully_shard = spy
    if "ep" in case:
        from nemo_automodel.components.distributed import mesh_utils
        from nemo_automodel.components.distributed.mesh import ParallelismSizes
        mesh, moe_mesh = mesh_utils._create_fsdp2_device_mesh(ParallelismSizes(dp_size=case["dp"], ep_size=case["ep"]), world_size=case["dp"])
    else:
        mesh = init_device_mesh("cpu", (1, 1, 2, 1, 1), mesh_dim_names=("pp", "dp_replicate", "dp_shard", "cp", "tp"))
    forward, backward = case.get("prefetch", (0, 0))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32, output_dtype=torch.bfloat16)
    options = dict(mp_policy=policy, enable_fsdp2_prefetch="prefetch" in case, fsdp2_forward_prefetch_depth=forward,
                   fsdp2_backward_prefetch_depth=backward, reshard_after_forward=case.get("reshard"),
                   frozen_multimodal_sharding=case.get("frozen", "root"))
    lines = [f"lockstep-automodel-recording 1", f"nemo-automodel {version}", f"torch {torch.__version__.split('+')[0]}",
             f"inventory {case['inventory']}"]
    lines += [f"peft {p} {r}" for p, r in [case["peft"]]] if "peft" in case else []
    config = case.get("freeze_config")
    lines.append("freeze_config " + ("none" if config is None else " ".join(f"{k}={str(v).lower()}" for k, v in config.items()) or "empty"))
    lines += [f"freeze {p}" for p in case.get("freeze", [])]
    if "ep" in case:
        moe = case.get("moe", {})
        lines.append(f"experts dp={case['dp']} ep={case['ep']} wrap={str(moe.get('wrap_outer_model', True)).lower()} "
                     f"lm_head={moe.get('lm_head_precision', 'none')}")
    lines.append(f"policy frozen={case.get('frozen', 'root')} reshard={str(case.get('reshard')).lower()} "
                 f"prefetch={f'{forward}/{backward}' if 'prefetch' in case else 'off'}")
    lines.append("frozen " + listed([n for n, p in model.named_parameters() if not p.requires_grad and p.is_floating_point()], ""))
    try:
        if "ep" in case:
            precision = dict(moe, lm_head_precision=torch.float32) if "lm_head_precision" in moe else moe
            parallelizer.parallelize_model(model, mesh, moe_mesh, dp_axis_names=("dp_replicate", "dp_shard_cp"), ep_axis_name="ep",
                                           ep_shard_axis_names=("ep_shard",), mp_policy=policy, reshard_after_forward=bool(case.get("reshard")),
                                           frozen_multimodal_sharding=case.get("frozen", "root"), **precision)
        elif hasattr(parallelizer, "get_parallelization_strategy"):
            parallelizer.get_parallelization_strategy(model).parallelize(model, mesh, **options)
        else:                                                               # 0.7
            parallelizer.ModelParallelizer()._apply(model, mesh, **options)
    except ValueError as e:
        word = "container_without_forward" if "do not implement forward" in str(e) else "dtype_islands" if "could not isolate" in str(e) \
            else "frozen_outside_inner_root" if "wrap_outer_model" in str(e) and "frozen" in str(e).lower() \
            else "tied_across_roots" if "is tied to" in str(e) else None
        if word is None:
            raise
        return lines + [f"refused {word}"]
    finally:
        parallelizer.fully_shard = parallelizer_utils.fully_shard = real
    index = {id(m): i for i, (m, _, _) in enumerate(calls)}
    owned = {}
    for module, _, _ in calls:
        state = module._get_fsdp_state()
        owned[id(module)] = [f"{name_of[id(p._module_info.module)]}.{p._module_info.param_name}".lstrip(".")
                             for g in state._fsdp_param_groups for p in g.fsdp_params]

    def targets(states):
        return ",".join(str(next(index[id(m)] for m, _, _ in calls if m._get_fsdp_state() is s)) for s in states) or "-"
    for module, kwargs, ignored in calls:
        name, state, mp = name_of[id(module)], module._get_fsdp_state(), kwargs["mp_policy"]
        dtypes = "/".join(NAMES.get(d, "none") for d in (mp.param_dtype, mp.reduce_dtype, mp.output_dtype))
        reshard = kwargs.get("reshard_after_forward")
        over = " over=ep_shard" if kwargs["mesh"].mesh_dim_names == ("ep_shard",) else ""
        lines.append(f"unit {name or 'root'}{over} reshard={'none' if reshard is None else str(reshard).lower()} dtypes={dtypes} "
                     f"cast={str(mp.cast_forward_inputs).lower()} forward={targets(state._states_to_forward_prefetch)} "
                     f"backward={targets(state._states_to_backward_prefetch)} ignored={listed(ignored, name)} "
                     f"params={listed(owned[id(module)], name)}")
    return lines


def main():
    version = importlib.metadata.version("nemo-automodel")
    wanted = sys.argv[1:]
    os.makedirs(os.path.join(HERE, "automodel"), exist_ok=True)
    sys.path.insert(0, HERE)
    for name, case in cases().items():
        if wanted and name not in wanted:
            continue
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=case.get("dp", 2))
        lines = record(case, version)
        dist.destroy_process_group()
        with open(os.path.join(HERE, "automodel", f"{name}.nemo-{version}.rec"), "w") as f:
            f.write("\n".join(lines) + "\n")
        print(name, sum(line.startswith("unit") for line in lines), flush=True)


if __name__ == "__main__":
    main()
