#!/usr/bin/env python3
"""Compare an inventory with the live model it describes.

    check_inventory.py inventory_models:qwen3_vl_4b ../../scenarios/models/qwen3_vl_4b.yaml

  tree   every parameter and buffer of the full model (meta device): name, shape, dtype, order; classes; ties; aliases; total
  order  for every case (text only, image, ...): the calls that expanding the flow visits = the calls a live run makes
  grads  for every case, everything trainable: the parameters the expanded flow reaches from the loss = the parameters
         for which autograd finds a gradient
  edges  the same with each declared multimodal module, and each child of the root's children, trainable on its own:
         which calls have an output that carries gradient

The live run is observed here by plain forward hooks, not by the recorder.
"""
import importlib
import operator
import os
import re
import sys
import warnings

import torch

import inventory_flow as flow
from record_inventory import DTYPES, default_outputs, ties_of


def expand_tree(node, fqn=""):
    """-> [(fqn, class, {param: (shape, dtype)}, {buffer: ...})] in registration order, and container -> item names."""
    out, items = [], {}

    def tensors(group):
        return {n: (tuple(t["shape"]), t.get("dtype")) if isinstance(t, dict) else (tuple(t), None) for n, t in group.items()}

    def visit(node, fqn):
        out.append((fqn, node["class"], tensors(node.get("params", {})), tensors(node.get("buffers", {}))))
        names = []
        for key, child in node.get("children", {}).items():
            keys = [str(i) for i in flow.item_range(key)] if re.fullmatch(r"\d+\.\.\d+", str(key)) else [str(key)]
            names += keys
            for k in keys:
                visit(child, f"{fqn}.{k}" if fqn else k)
        items[fqn] = names
    visit(node, fqn)
    return out, items


def check_tree(inv, model, attributes=()):
    dtype = inv["dtype"]
    have, items = expand_tree(inv["modules"])
    want = []
    for n, m in model.named_modules():
        want.append((n, type(m).__name__,
                     {k: (tuple(p.shape), DTYPES[p.dtype]) for k, p in m._parameters.items() if p is not None},
                     {k: (tuple(b.shape), DTYPES[b.dtype]) for k, b in m._buffers.items() if b is not None}))
    have = [(n, c, {k: (s, d or dtype) for k, (s, d) in p.items()}, {k: (s, d or dtype) for k, (s, d) in b.items()})
            for n, c, p, b in have]
    for h, w in zip(have, want):
        assert h == w, f"{h}\n{w}"
    assert len(have) == len(want)
    for h, w in zip(have, want):
        assert list(h[2]) == list(w[2])                  # parameters in registration order
    assert inv.get("ties", []) == ties_of(model)
    first = {}
    aliases = {}
    for n, m in model.named_modules(remove_duplicate=False):
        if id(m) not in first:
            first[id(m)] = n
        elif not any(n.startswith(a + ".") for a in aliases):
            aliases[n] = first[id(m)]
    for alias, fqn in dict(attributes).items():
        assert operator.attrgetter(alias)(model) is model.get_submodule(fqn), alias
    assert inv.get("aliases", {}) == {**aliases, **dict(attributes)}
    total = sum(p.numel() for p in model.parameters())
    assert inv["parameters"] == total
    return len(want), sum(len(w[2]) for w in want), total, items


def check_moe(inv, model):
    """What an entry says of its layers, against the gates and experts of AutoModel's classes."""
    found = 0
    for d in inv.get("moe", []):
        for n, m in model.named_modules():
            if not re.fullmatch(d["modules"].replace(".", r"\.").replace("*", r"[^.]*"), n) or not hasattr(m, "experts"):
                continue
            gate, experts = m.get_submodule(d.get("gate", "gate")), m.get_submodule(d.get("experts", "experts"))
            assert all(p.shape[0] == d["count"] for p in experts.parameters()), n
            bias = [b for b, v in gate._buffers.items() if v is not None and v.shape == (d["count"],)]
            assert bias == ([d["gate_bias"]] if "gate_bias" in d else []), (n, bias)
            assert d.get("bias_update", False) == (getattr(gate, "bias_update_factor", 0) > 0), n
            assert d["top_k"] == getattr(gate, "topk", d["top_k"]), (n, gate.topk)
            found += 1
    experts = [n for n, m in model.named_modules() if type(m).__name__.startswith("GroupedExperts")]
    assert len(experts) == found, f"{len(experts)} expert modules, {found} under moe"
    return found


def live(model, kwargs, outputs):
    """One forward: leaf calls in order, whether their outputs carry gradient; and the outputs."""
    names = {id(m): n for n, m in model.named_modules()}
    calls, depth = [], []

    def pre(m, a):
        calls.append([names[id(m)], None])
        depth.append(len(calls) - 1)

    def post(m, a, r):
        calls[depth.pop()][1] = any(t.requires_grad for t in torch.utils._pytree.tree_flatten(r)[0] if isinstance(t, torch.Tensor))
    handles = []
    for n, m in model.named_modules():
        if any(True for _ in m.parameters()):
            handles += [m.register_forward_pre_hook(pre), m.register_forward_hook(post)]
    try:
        result = model(**kwargs)
    finally:
        for h in handles:
            h.remove()
    return calls, outputs(result)


def simulate(inv, expanded, trainable, subtree):
    """Events of the flow with, per event, whether its output carries gradient; and the parameters the loss reaches."""
    events, outs = expanded
    canonical = {n: names[0] for names in inv.get("ties", []) for n in names}
    carries, used = [], []
    for kind, target, params, reads in events:
        if kind == "enter":
            carries.append(False)
            used.append([])
            continue
        ps = subtree(target) if params is None else params
        ps = [canonical.get(p, p) for p in ps]
        ps = [p for p in ps if p in trainable]
        used.append(ps)
        carries.append(bool(ps) or any(carries[r] for r in reads))
    reach, todo = set(), [i for n, i in outs.items() if n in inv["flow"]["loss"]]
    seen = set(todo)
    while todo:
        i = todo.pop()
        if not carries[i]:
            continue
        reach |= set(used[i])
        for r in events[i][3]:
            if r not in seen:
                seen.add(r)
                todo.append(r)
    return events, carries, reach


def check(spec, inv):
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)                            # the tensors are tiny
    full = spec.full()
    modules, tensors, total, items = check_tree(inv, full, spec.attributes)
    routed = check_moe(inv, full)
    print(f"{spec.name}: tree equal: {modules} modules, {tensors} parameter tensors, {total} parameters, {routed} routed layers")
    model = (spec.run or spec.full)()
    model.train()
    params = dict(model.named_parameters())
    owned = {n: [f"{n}.{p}" if n else p for p, _ in m.named_parameters(remove_duplicate=False)] for n, m in model.named_modules()}
    canonical = {n: names[0] for names in inv.get("ties", []) for n in names}
    groups = {"everything": set(params)}
    for d in inv.get("multimodal", []):
        groups[d["path"] + " only"] = {p for p in params if p.startswith(d["path"] + ".")}
        groups["all but " + d["path"]] = {p for p in params if not p.startswith(d["path"] + ".")}
    for n in params:
        part = ".".join(n.split(".")[:2])
        groups.setdefault(part + " only", set()).add(n)
    for held, kwargs in spec.cases:
        events_and_outputs = flow.expand(inv["flow"], held, items)
        label = ", ".join(f"{v} {k}" for k, v in held.items()) or "text only"
        for what, trainable in groups.items():
            for n, p in params.items():
                p.requires_grad_(n in trainable)
            torch.manual_seed(0)
            calls, outs = live(model, kwargs, spec.outputs or default_outputs)
            events, carries, reach = simulate(inv, events_and_outputs, trainable, lambda t: owned[t])
            expanded = [t for k, t, _, _ in events if k in ("call", "enter")]
            # the root's own call is the flow itself
            assert expanded == [c for c, _ in calls if c != ""], f"{spec.name}, {label}: another order of calls"
            leaves = [(t, g) for (k, t, _, _), g in zip(events, carries) if k == "call"]
            entered = {t for k, t, _, _ in events if k == "enter"}
            lived = [(c, g) for c, g in calls if c not in entered and c != ""]
            assert leaves == lived, f"{spec.name}, {label}, {what}: " + str([x for x in zip(leaves, lived) if x[0] != x[1]][:3])
            used = [t for n, t in outs.items() if n in spec.loss] if spec.loss else list(outs.values())[:1]
            loss = sum(t.float().sum() for t in used if t.requires_grad)
            found = set()
            if used and any(t.requires_grad for t in used):
                names = [n for n in params if n in trainable]
                grads = torch.autograd.grad(loss, [params[n] for n in names], allow_unused=True)
                found = {canonical.get(n, n) for n, g in zip(names, grads) if g is not None}
            assert found == reach, f"{spec.name}, {label}, {what}: flow {sorted(reach - found)[:5]}, autograd {sorted(found - reach)[:5]}"
            if what == "everything":
                print(f"  {label}: {len(calls)} calls in the recorded order; gradient reaches {len(found)} of {len(params)} parameters")
        print(f"  {label}: gradient flow equal for {len(groups)} sets of trainable parameters")


def main():
    sys.path.insert(0, os.getcwd())
    module, _, name = sys.argv[1].partition(":")
    spec = getattr(importlib.import_module(module), name)()
    with open(sys.argv[2]) as f:
        check(spec, flow.load(f.read()))


if __name__ == "__main__":
    main()
