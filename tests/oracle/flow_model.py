"""Builds the nn.Module that an inline inventory describes, and runs its flow as the forward."""
import contextlib
import re

import torch
import torch.nn as nn
from torch.utils.checkpoint import checkpoint

DTYPES = {"f64": torch.float64, "f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16,
          "i64": torch.int64, "i32": torch.int32, "u8": torch.uint8}
DTYPE_NAMES = {v: k for k, v in DTYPES.items()}
COUNT_KEYS = {"images": "image", "videos": "video", "audios": "audio"}
WIDTH = 4   # elements of every activation


class BadScenario(Exception):
    pass


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
