#!/usr/bin/env python3
"""Write a Lockstep inventory (src/model/inventory.md) of a real PyTorch model.

    record_inventory.py inventory_models:qwen3_vl_4b -o qwen3_vl_4b.yaml
    record_inventory.py my_package.my_module:my_function -o my_model.yaml
    record_inventory.py --class transformers.LlamaForCausalLM --config config.json -o llama.yaml

The function returns a Spec (below). The module tree comes from `full`, built on the meta device, so no weight is ever
allocated. The flow comes from running `run` once per case (text only, with an image, ...), with everything trainable:

  * module hooks give the calls, their order, their arguments and results;
  * the autograd graph gives the edges. Every node has a sequence number, so it belongs to the innermost call that was
    running when it was made; AccumulateGrad nodes show which parameters an operation used.

Data-dependent code (`.item()`, masks that must match counts) does not run on the meta device, so `run` may be a narrow
model that does run on a CPU: the same classes, depths and layer patterns with small widths. Names, classes, ties and
the sharing of modules must be equal to those of `full`; this is checked, not assumed.

The cases are then merged: a statement gets the weakest `when:`/`unless:` that is true in exactly the cases that ran it.
The result is expanded again for every case and compared with what was recorded, statement by statement and edge by edge.
"""
import argparse
import dataclasses
import importlib
import itertools
import json
import os
import re
import sys
import warnings

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten

import inventory_flow as flow


@dataclasses.dataclass
class Spec:
    name: str
    full: callable                      # () -> model on the meta device
    cases: list                         # [(held, kwargs)]: held counts per condition, e.g. {} or {"image": 1}
    source: str = ""
    run: callable = None                # () -> narrow model on the CPU; None: run `full` itself, on the meta device
    model_ids: list = dataclasses.field(default_factory=list)
    conditions: dict = dataclasses.field(default_factory=dict)   # condition -> modality
    multimodal: list = dataclasses.field(default_factory=list)
    attributes: dict = dataclasses.field(default_factory=dict)   # properties of a class that give a module: name -> its FQN
    moe: list = dataclasses.field(default_factory=list)          # as in the file: what the framework takes for routed layers
    context_parallel: bool = False      # the flow is that of a context-parallel rank
    config: dict = dataclasses.field(default_factory=dict)
    published: int = None               # the published total ...
    besides: int = 0                    # ... and how many of its elements are no parameters of this class (buffers, ...)
    loss: list = None                   # names of the outputs that the loss uses; default: the first
    outputs: callable = None            # result of forward -> {name: tensor}; default: its grad-carrying tensors


DTYPES = {torch.float64: "f64", torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16",
          torch.int64: "i64", torch.int32: "i32", torch.uint8: "u8", torch.bool: "bool"}


# ---------------------------------------------------------------------------------------------- the module tree

def tree_of(model, dtype):
    """The module tree as nested dicts; a module object that was seen before is left out and becomes an alias."""
    seen, aliases = {}, {}

    def tensor(t):
        d = DTYPES[t.dtype]
        return list(t.shape) if d == dtype else {"shape": list(t.shape), "dtype": d}

    def visit(module, fqn):
        seen[id(module)] = fqn
        node = {"class": type(module).__name__}
        params = {n: tensor(p) for n, p in module._parameters.items() if p is not None}
        # By name: some classes register them while they iterate over a set.
        buffers = {n: {"shape": list(b.shape), "dtype": DTYPES[b.dtype]} for n, b in sorted(module._buffers.items()) if b is not None}
        if params:
            node["params"] = params
        if buffers:
            node["buffers"] = buffers
        children = {}
        for name, child in module._modules.items():
            if child is None:
                continue
            path = f"{fqn}.{name}" if fqn else name
            if id(child) in seen:
                aliases[path] = seen[id(child)]
            else:
                children[name] = visit(child, path)
        if children:
            node["children"] = children
        # ModuleList and ModuleDict imply their kind; subclasses and Sequential (whose items are no FSDP list) do not.
        if isinstance(module, nn.ModuleList) and type(module) is not nn.ModuleList:
            node["kind"] = "list"
        if isinstance(module, nn.ModuleDict) and type(module) is not nn.ModuleDict:
            node["kind"] = "dict"
        return node

    return visit(model, ""), aliases


def ties_of(model):
    owners = {}
    for name, p in model.named_parameters(remove_duplicate=False):
        owners.setdefault(id(p), []).append(name)
    return [names for names in owners.values() if len(names) > 1]


def compress(node):
    """Folds equal neighbours with consecutive integer names into one "first..last" entry."""
    children = node.get("children")
    if not children:
        return node
    items = [(n, compress(c)) for n, c in children.items()]
    out, i = {}, 0
    while i < len(items):
        j = i
        if items[i][0].isdigit():
            while j + 1 < len(items) and items[j + 1][0] == str(int(items[j][0]) + 1) and items[j + 1][1] == items[i][1]:
                j += 1
        out[items[i][0] if i == j else f"{items[i][0]}..{items[j][0]}"] = items[i][1]
        i = j + 1
    return {**node, "children": out}


def skeleton(model):
    """What a narrow model must share with the full one: names, classes, parameter and buffer names, ties, aliases."""
    return ([(n, type(m).__name__, [p for p, v in m._parameters.items() if v is not None], sorted(m._buffers))
             for n, m in model.named_modules(remove_duplicate=False)], ties_of(model))


# ---------------------------------------------------------------------------------------------- one recorded run

class Call:
    def __init__(self, fqn, module, parent, grad):
        self.fqn, self.module, self.parent, self.grad = fqn, module, parent, grad
        self.children, self.tags, self.seq0, self.seq1 = [], (), 0, 0
        self.inputs, self.outputs, self.plain = [], [], []


def tensors(tree):
    return [t for t in tree_flatten(tree)[0] if isinstance(t, torch.Tensor)]


class Origin(TorchFunctionMode):
    """Which inputs of the model a tensor without gradient was computed from; only for people who read the flow."""

    def __init__(self, inputs):
        super().__init__()
        self.known = {id(t): (t, frozenset([n])) for n, t in inputs.items() if isinstance(t, torch.Tensor)}

    def of(self, t):
        return self.known.get(id(t), (None, frozenset()))[1]

    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        names = frozenset().union(*(self.of(t) for t in tensors((args, kwargs))))
        if names:
            for t in tensors(result):
                if not t.requires_grad:
                    self.known[id(t)] = (t, self.of(t) | names)
        return result


class Recorder:
    """Runs a model once and turns hooks and autograd graph into a statement tree (flow.Stmt)."""

    def __init__(self, model, kwargs, moe=()):
        self.model, self.kwargs = model, kwargs
        self.routed = {n for n, _ in model.named_modules() for d in moe
                       if re.fullmatch(f"{d['modules']}.{d.get('experts', 'experts')}".replace(".", r"\.").replace("*", r"[^.]*"), n)}
        self.names = {id(m): n for n, m in model.named_modules()}
        self.param_names = {id(p): n for n, p in model.named_parameters()}
        # Modules that own no parameter have no collectives and no hooks that matter: their operations are the caller's.
        self.owning = {n for n, m in model.named_modules() if any(True for _ in m.parameters())}
        self.origin = Origin(kwargs)

    def run(self):
        handles, wrapped = [], []
        top = Call(None, None, None, True)
        stack, tags = [top], []

        def pre(module, args, kwargs):
            c = Call(self.names[id(module)], module, stack[-1], torch.is_grad_enabled())
            ts = tensors((args, kwargs))
            c.inputs = [t.grad_fn for t in ts if t.requires_grad]
            c.plain = sorted(set().union(*(self.origin.of(t) for t in ts if not t.requires_grad)))
            c.tags, c.seq0 = tuple(tags), torch.autograd._get_sequence_nr()
            stack[-1].children.append(c)
            stack.append(c)

        def post(module, args, kwargs, result):
            c = stack.pop()
            assert c.module is module
            c.result = result
            c.outputs = [t.grad_fn for t in tensors(result) if t.requires_grad]
            c.seq1 = torch.autograd._get_sequence_nr()

        # Feature getters tell an image's pass through a tower from a video's.
        def tag(owner, name, method):
            def inner(*a, **k):
                tags.append(name)
                try:
                    return method(*a, **k)
                finally:
                    tags.pop()
            owner.__dict__[name] = inner
            wrapped.append((owner, name))

        for m in self.model.modules():
            if self.names[id(m)] in self.owning:
                handles.append(m.register_forward_pre_hook(pre, with_kwargs=True, prepend=True))
                handles.append(m.register_forward_hook(post, with_kwargs=True))
            for name in dir(type(m)):
                if re.fullmatch(r"get_\w+_features", name):
                    tag(m, name, getattr(m, name))
        try:
            with self.origin:
                self.result = self.model(**self.kwargs)
        finally:
            for h in handles:
                h.remove()
            for owner, name in wrapped:
                del owner.__dict__[name]
        assert len(top.children) == 1
        self.root = top.children[0]
        return self.root

    def build(self, outputs):
        """-> (statements of the root's body, {output name: value}). A value is the id of the event that made it.

        A call's results leave out the values that the call itself goes on reading and nobody else reads (intermediate
        hidden states): their gradient comes from the results that are kept, so their hooks never fire first."""
        calls = []

        def collect(c):
            calls.append(c)
            for x in c.children:
                collect(x)
        collect(self.root)
        # Every node of the graph, found from every tensor that crossed a call boundary.
        nodes, todo = {}, [e for c in calls for e in c.inputs + c.outputs if e is not None]
        while todo:
            n = todo.pop()
            if n is None or n in nodes:
                continue
            nodes[n] = None
            todo.extend(x for x, _ in n.next_functions)
        accumulate = {n: self.param_names.get(id(n.variable)) for n in nodes if hasattr(n, "variable")}
        ordered = sorted((n for n in nodes if n not in accumulate), key=lambda n: n._sequence_nr())

        def home(seq):
            c = self.root
            while True:
                for x in c.children:
                    if x.seq0 <= seq < x.seq1:
                        c = x
                        break
                else:
                    return c
        owner = {n: home(n._sequence_nr()) for n in ordered}

        # Identity of events. A leaf call is one event; so is a functional node with two or more sources.
        used = {}

        def unique(key):
            used[key] = used.get(key, 0) + 1
            return key if used[key] == 1 else f"{key}#{used[key]}"

        def name_call(c, prefix, after):
            """after: the last feature getter before it; a call that repeats belongs to what it follows, not to a count."""
            tag = f"[{'/'.join(c.tags)}]" if c.tags else ""
            key = f"{prefix}/{c.fqn}{tag}"
            c.id = unique(f"{key}@{after}" if key in used and after else key)
            c.leaf = not c.children
            last = None
            for x in c.children:
                last = "/".join(x.tags) or last
                name_call(x, c.id, last)
        name_call(self.root, "", None)
        value, params, deps, ops, position = {}, {}, {}, {}, {}
        for c in calls:
            if c.leaf:
                params[c.id], deps[c.id] = set(), []
        for n in ordered:
            c, sources, ps = owner[n], [], []
            for x, _ in n.next_functions:
                if x is None:
                    continue
                if x in accumulate:
                    if accumulate[x] is None:
                        continue                                  # an input that requires grad
                    ps.append(accumulate[x])
                elif x in value and value[x] is not None and value[x] not in sources:
                    sources.append(value[x])
            if c.leaf:
                params[c.id].update(ps)
                deps[c.id] += [s for s in sources if s != c.id and s not in deps[c.id]]
                value[n] = c.id
                position[c.id] = c.seq0
            elif not ps and len(sources) <= 1:
                value[n] = sources[0] if sources else None        # a view, a cast, a scale: the same value
            else:
                sources.sort(key=lambda s: position[s])
                kind = op_name(n.name())
                last = sources[-1] if sources else ",".join(ps)
                ident = unique(f"{c.id}/{kind}({last})")
                ops[ident] = (c, n._sequence_nr(), kind)
                params[ident], deps[ident] = set(ps), sources
                value[n] = ident
                position[ident] = n._sequence_nr()
        self.calls, self.value = calls, value

        def values(edges):
            return list(dict.fromkeys(value[e] for e in edges if e is not None and value.get(e) is not None))

        def build(c):
            items = [((x.seq0, 0, i), x) for i, x in enumerate(c.children)]
            items += [((seq, 1, 0), ident) for ident, (o, seq, _) in ops.items() if o is c]
            body = []
            for _, x in sorted(items, key=lambda p: p[0]):
                if isinstance(x, str):
                    body.append(flow.Stmt("op", ops[x][2], x, deps=deps[x], makes=[x], params=sorted(params[x])))
                    continue
                s = flow.Stmt("call", x.fqn, x.id, deps=values(x.inputs), plain=x.plain, returns=values(x.outputs))
                s.no_grad = c.grad and not x.grad
                if x.leaf:
                    # Arguments first, as given: the tokens and the weights of routed experts are told apart by their place.
                    given = values(x.inputs)
                    s.deps = [d for d in given if d in deps[x.id]] + [d for d in deps[x.id] if d not in given] if x.fqn in self.routed else deps[x.id]
                    s.makes = [x.id] if x.outputs or params[x.id] else []
                    own = sorted(self.param_names[id(p)] for p in x.module.parameters())
                    s.params = None if sorted(params[x.id]) == own else sorted(params[x.id])
                    if not x.grad:
                        s.params = None
                else:
                    s.body = build(x)
                body.append(s)
            return fuse(body)

        def fuse(body):
            """Operations whose value only a later operation of the same run of operations reads are part of that one."""
            uses = {}
            for c in calls:
                for v in values(c.inputs) + values(c.outputs):
                    uses[v] = uses.get(v, 0) + 2
            for v in deps.values():
                for d in v:
                    uses[d] = uses.get(d, 0) + 1
            out = []
            for s in body:
                at = len(out)
                while s.kind == "op" and at and out[at - 1].kind == "op":
                    at -= 1
                    p = out[at]
                    if p.id in s.deps and uses[p.id] == 1:
                        s.deps = sorted({d for d in s.deps if d != p.id} | set(p.deps), key=lambda v: position[v])
                        s.params = sorted(set(s.params) | set(p.params))
                        s.target = p.target                       # of several, the first gives the name
                        renamed[s.id] = p.id
                        del out[at]
                out.append(s)
            return out

        renamed = {}
        body = build(self.root)
        drop_interior(body)

        def final(v):
            while v in renamed:
                v = renamed[v]
            return v
        for s in flow.walk(body):
            s.id, s.deps, s.makes, s.returns, s.interior = (
                final(s.id), *([final(v) for v in group] for group in (s.deps, s.makes, s.returns, s.interior)))
        named = {k: final(value[t.grad_fn]) for k, t in outputs(self.result).items() if t.grad_fn is not None and value.get(t.grad_fn)}
        return body, named


def drop_interior(body):
    readers = {}

    def find(body, chain):
        for s in body:
            for v in s.deps:
                readers.setdefault(v, []).append(chain)
            if s.body is not None:
                find(s.body, chain | {s.id})
    find(body, frozenset())

    def drop(body):
        for s in body:
            if s.body is not None:
                kept = [v for v in s.returns
                        if all(s.id not in c for c in readers.get(v, [])) or any(s.id not in c for c in readers[v])]
                s.interior = [v for v in s.returns if v not in kept]
                s.returns = kept
                drop(s.body)
    drop(body)


def op_name(node):
    name = re.sub(r"(Backward)?\d*$", "", node)
    if name.startswith("ScaledDotProduct"):
        return "attention"
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def default_outputs(result):
    if isinstance(result, torch.Tensor):
        return {"output": result}
    found = {}
    for k, v in (result.items() if hasattr(result, "items") else enumerate(result)):
        for i, t in enumerate(t for t in tensors(v) if t.requires_grad):
            found[f"{k}" if i == 0 else f"{k}_{i}"] = t
    return found


# ---------------------------------------------------------------------------------------------- everything together

def record(spec):
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)                            # the tensors are tiny
    full = spec.full()
    total = sum(p.numel() for p in full.parameters())
    if spec.published is not None and total + spec.besides != spec.published:
        raise SystemExit(f"{spec.name}: {total} parameters and {spec.besides} other elements, {spec.published} published")
    counts = {}
    for p in full.parameters():
        counts[DTYPES[p.dtype]] = counts.get(DTYPES[p.dtype], 0) + 1
    dtype = max(counts, key=counts.get)
    tree, aliases = tree_of(full, dtype)
    aliases.update(spec.attributes)
    runner = spec.run() if spec.run else full
    if spec.run:
        a, b = skeleton(full), skeleton(runner)
        for x, y in zip(a[0], b[0]):
            if x != y:
                raise SystemExit(f"{spec.name}: the narrow model differs: {x} against {y}")
        if a != b:
            raise SystemExit(f"{spec.name}: the narrow model has another number of modules or other ties")
    runner.train()
    runner.requires_grad_(True)
    recorded = []
    inputs = []
    for held, kwargs in spec.cases:
        torch.manual_seed(0)
        r = Recorder(runner, kwargs, spec.moe)
        r.run()
        body, outs = r.build(spec.outputs or default_outputs)
        recorded.append(flow.Case(held, body, outs))
        inputs += [k for k, v in kwargs.items() if isinstance(v, torch.Tensor) and k not in inputs]
    conditions = {k: {"modality": v} for k, v in spec.conditions.items()}
    merged = flow.merge(recorded, list(conditions), spec.loss)
    inventory = {"lockstep_inventory": 1, "name": spec.name, "architecture": type(full).__name__}
    if spec.model_ids:
        inventory["model_ids"] = spec.model_ids
    if spec.source:
        inventory["source"] = spec.source
    if spec.context_parallel:
        inventory["context_parallel"] = True
    inventory.update(parameters=total, dtype=dtype)
    if spec.config:
        inventory["config"] = spec.config
    inventory["modules"] = compress(tree)
    if aliases:
        inventory["aliases"] = aliases
    ties = ties_of(full)
    if ties:
        inventory["ties"] = ties
    if spec.multimodal:
        inventory["multimodal"] = spec.multimodal
    if spec.moe:
        inventory["moe"] = spec.moe
    if conditions:
        inventory["conditions"] = conditions
    read = flow.read_names(merged.body)
    inventory["flow"] = {"inputs": [i for i in inputs if i in read], "grad_inputs": [], "body": merged.body,
                         "outputs": merged.outputs, "loss": merged.loss}
    flow.verify(inventory["flow"], recorded)
    return inventory


def from_config(class_path, config_path, overrides):
    module, _, name = class_path.rpartition(".")
    cls = getattr(importlib.import_module(module), name)
    with open(config_path) as f:
        data = json.load(f)
    def build(data, device):
        config = cls.config_class.from_dict(json.loads(json.dumps(data)))
        config._attn_implementation = "sdpa"
        with torch.device(device):
            return cls._from_config(config, dtype=torch.bfloat16 if device == "meta" else torch.float32)
    narrow = json.loads(json.dumps(data))
    for o in overrides:
        key, _, text = o.partition("=")
        where = narrow
        *path, last = key.split(".")
        for p in path:
            where = where[p]
        where[last] = json.loads(text)
    device = "cpu" if overrides else "meta"
    # With a mask of its own shape the model does not look at the tokens to make one.
    inputs = {"input_ids": torch.zeros(1, 8, dtype=torch.long, device=device),
              "attention_mask": torch.ones(8, 8, dtype=torch.bool, device=device).tril()[None, None], "use_cache": False}
    return Spec(name=os.path.splitext(os.path.basename(config_path))[0], full=lambda: build(data, "meta"),
                run=(lambda: build(narrow, "cpu")) if overrides else None, cases=[({}, inputs)],
                source=f"the configuration file {os.path.basename(config_path)}")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("function", nargs="?", help="module:function that returns a Spec")
    p.add_argument("--class", dest="cls", help="a transformers model class; text-only flow")
    p.add_argument("--config", help="its config.json")
    p.add_argument("--set", action="append", default=[], metavar="KEY=JSON",
                   help="narrow a width for the run on the CPU, e.g. hidden_size=64; without it the run is on meta")
    p.add_argument("-o", "--output", help="file to write; default: stdout")
    a = p.parse_args()
    sys.path.insert(0, os.getcwd())
    if a.function:
        module, _, name = a.function.partition(":")
        spec = getattr(importlib.import_module(module), name)()
    elif a.cls and a.config:
        spec = from_config(a.cls, a.config, a.set)
    else:
        p.error("give module:function, or --class and --config")
    text = flow.emit(record(spec))
    if a.output:
        with open(a.output + ".part", "w") as f:
            f.write(text)
        os.replace(a.output + ".part", a.output)
    else:
        sys.stdout.write(text)


if __name__ == "__main__":
    main()
