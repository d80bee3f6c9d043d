#!/usr/bin/env python3
"""Record what AutoModel's freeze_config freezes, model by model, with the real apply_parameter_freezing.

    record_frozen.py [INVENTORY...]     writes frozen/INVENTORY.nemo-VERSION.rec beside this file; without arguments, every inventory of a real model
    record_frozen.py --recipes FOLDER   writes frozen/recipes.tsv: recipe, model id and freeze_config of every recipe below FOLDER

Needs torch, transformers and nemo-automodel in one environment; models are on the meta device. The module tree is that of the
`transformers` class where inventory_models.py has one, else it is built from the inventory. Of every model are recorded: the configs of
the recipes that name one of its ids, and a few more that tell the keys apart. A config's line lists the keys as the recipe has them;
`frozen` counts the frozen floating-point parameters by their first names, with the digest of record_automodel.py; `subtree` lines name
the largest subtrees in which everything is frozen; 0.7.0 raises for keys that 0.6.0 ignores: `refused` then lists them, and the rest
is recorded without. `kv_sharing` is how many parameters freeze_unused_kv_sharing_params freezes beyond
that, and what is frozen then (`kv_subtree` lines like the others).
oracle_frozen.c compares each config with `rules: automodel`."""
import importlib.metadata
import os
import sys

import torch
import yaml

from record_automodel import HERE, ROOT, build, digest

MODELS = os.path.join(ROOT, "scenarios", "models")
KEYS = ["freeze_vision_tower", "freeze_audio_tower", "freeze_language_model", "freeze_video_embedder", "freeze_embeddings"]
MORE = [{}, {"freeze_vision_tower": False}, {"freeze_audio_tower": True}, {"freeze_vision_tower": False, "freeze_audio_tower": True},
        {"freeze_vision_tower": False, "freeze_language_model": True}, {"freeze_vision_tower": False, "freeze_video_embedder": True}]


def shown(config):
    return " ".join(f"{k}={str(v).lower()}" for k, v in config.items()) or "empty"


def parsed(text):
    return {} if text == "empty" else {k: v == "true" for k, v in (p.split("=") for p in text.split())}


def recipes(folder):
    lines = []
    for base, _, files in sorted(os.walk(folder)):
        for name in sorted(files):
            if not name.endswith((".yaml", ".yml")):
                continue
            with open(os.path.join(base, name)) as f:
                doc = yaml.safe_load(f)
            model = doc.get("model") or {}
            model_id = model.get("pretrained_model_name_or_path") or "-"
            if isinstance(model.get("config"), dict):
                model_id = model["config"].get("pretrained_model_name_or_path") or model_id
            config = doc.get("freeze_config")
            unknown = [k for k in config or {} if k not in KEYS]
            assert not unknown, (name, unknown)
            path = os.path.relpath(os.path.join(base, name), folder)
            lines.append(f"{path}\t{model_id}\t{'none' if config is None else shown(config)}")
    return lines


def subtrees(model, frozen):
    """The largest modules whose floating-point parameters are all frozen, and parameters frozen alone, with counts; in tree order."""
    out = []

    def inside(name):
        return [n for n in every if n.startswith(name + ".") or not name]

    def walk(name, module):
        mine = inside(name)
        if mine and all(n in frozen for n in mine):
            out.append((f"{name}.**" if name else "**", len(mine)))
            return
        for n, _ in module.named_parameters(recurse=False):
            full = f"{name}.{n}" if name else n
            if full in frozen:
                out.append((full, 1))
        for n, child in module.named_children():
            if any(x in frozen for x in inside(f"{name}.{n}" if name else n)):
                walk(f"{name}.{n}" if name else n, child)
    every = [n for n, p in model.named_parameters() if p.is_floating_point()]
    walk("", model)
    return out


def model_of(name, doc):
    try:
        import inventory_models
        return getattr(inventory_models, name)().full(), "transformers " + importlib.metadata.version("transformers")
    except AttributeError:
        return build(doc["modules"], doc.get("dtype")), "inventory"


def record(name, table):
    from nemo_automodel.components.utils.model_utils import apply_parameter_freezing, freeze_unused_kv_sharing_params
    with open(os.path.join(MODELS, name + ".yaml")) as f:
        doc = yaml.safe_load(f)
    model, tree = model_of(name, doc)
    wanted = []
    for config in [parsed(c) for _, m, c in table if m in (doc.get("model_ids") or []) and c != "none"] + MORE:
        if config not in wanted:
            wanted.append(config)
    version = importlib.metadata.version("nemo-automodel")
    lines = ["lockstep-frozen-recording 1", f"nemo-automodel {version}",
             f"torch {torch.__version__.split('+')[0]}", f"tree {tree}", f"inventory scenarios/models/{name}.yaml"]
    for config in wanted:
        for p in model.parameters():
            p.requires_grad_(p.is_floating_point())
        refused = []
        try:
            apply_parameter_freezing(model, config)
        except ValueError as e:
            refused = [k for k in config if f"'{k}'" in str(e).split(";")[0]]
            assert refused, e
            apply_parameter_freezing(model, {k: v for k, v in config.items() if k not in refused})
        frozen = [n for n, p in model.named_parameters() if p.is_floating_point() and not p.requires_grad]
        lines += [f"config {shown(config)}"] + [f"refused {' '.join(refused)}"] * bool(refused) + [f"frozen {len(frozen)}:{digest(frozen)}"]
        lines += [f"subtree {n} {k}" for n, k in subtrees(model, set(frozen))]
        freeze_unused_kv_sharing_params(model)
        more = sum(p.is_floating_point() and not p.requires_grad for p in model.parameters()) - len(frozen)
        if more:
            frozen = [n for n, p in model.named_parameters() if p.is_floating_point() and not p.requires_grad]
            lines.append(f"kv_sharing {more} {len(frozen)}:{digest(frozen)}")
            lines += [f"kv_subtree {n} {k}" for n, k in subtrees(model, set(frozen))]
    with open(os.path.join(HERE, "frozen", f"{name}.nemo-{version}.rec"), "w") as f:
        f.write("\n".join(lines) + "\n")
    print(name, tree, len(wanted), flush=True)


def main():
    path = os.path.join(HERE, "frozen", "recipes.tsv")
    os.makedirs(os.path.dirname(path), exist_ok=True)
    sys.path.insert(0, HERE)
    if sys.argv[1:2] == ["--recipes"]:
        with open(path, "w") as f:
            f.write("\n".join(recipes(sys.argv[2])) + "\n")
        return
    with open(path) as f:
        table = [line.rstrip("\n").split("\t") for line in f]
    made_up = ("toy_", "tiny_", "small_", "vlm_")
    every = sorted(n[:-5] for n in os.listdir(MODELS) if n.endswith(".yaml") and not n.startswith(made_up) and not n.endswith("_run.yaml"))
    for name in sys.argv[1:] or every:
        record(name, table)


if __name__ == "__main__":
    main()
