"""Flows of inventories: merging recorded cases into one flow, expanding a flow, writing the YAML.

`expand` is a second, independent reading of src/model/inventory.md: it turns a flow and the counts a batch holds into the
list of events (calls and operations in order, each with the events its inputs come from)."""
import dataclasses
import itertools
import json
import re


@dataclasses.dataclass
class Stmt:
    kind: str                       # call or op
    target: str                     # FQN or operation name
    id: str                         # identity of the event, equal in every case that runs it
    deps: list                      # values read: ids of the events that made them
    makes: list = dataclasses.field(default_factory=list)
    plain: list = dataclasses.field(default_factory=list)     # inputs of the flow that it is given, without gradient
    returns: list = dataclasses.field(default_factory=list)   # call with body: values it returns
    interior: list = dataclasses.field(default_factory=list)  # returned, but only read on inside: not listed
    params: list = None             # full names; None: all of the subtree (call), none (op)
    body: list = None
    no_grad: bool = False
    cases: list = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Case:
    held: dict
    body: list
    outputs: dict                   # name -> value


@dataclasses.dataclass
class Merged:
    body: list
    outputs: list
    loss: list


# ------------------------------------------------------------------------------------------------- merging

class Lives:
    """When each value is made and last read, per case, and whether classes of values may share a name."""

    def __init__(self, cases):
        self.live = {}              # value -> {case: [made, last read]}
        self.inside = {}            # (case, call id) -> values made inside
        for k, case in enumerate(cases):
            self.clock = 0
            self.walk(k, case.body, [])
            for v in case.outputs.values():
                self.read(k, v, 1 << 40)
        self.parent = {v: v for v in self.live}
        self.members = {v: [v] for v in self.live}

    def read(self, k, v, t):
        span = self.live[v][k]
        span[1] = max(span[1], t)

    def walk(self, k, body, calls):
        for s in body:
            self.clock += 2
            for v in s.deps:
                self.read(k, v, self.clock)
            if s.body is not None:
                self.inside[k, s.id] = set()
                self.walk(k, s.body, calls + [s.id])
                self.clock += 2
                for v in s.returns:
                    self.read(k, v, self.clock)
            for v in s.makes:
                self.live.setdefault(v, {})[k] = [self.clock, self.clock + 1]
                for c in calls:
                    self.inside[k, c].add(v)

    def find(self, v):
        while self.parent[v] != v:
            v = self.parent[v]
        return v

    def clash(self, a, b):
        for x in self.members[a]:
            for y in self.members[b]:
                for k, (made, last) in self.live[x].items():
                    if k in self.live[y]:
                        other, end = self.live[y][k]
                        if made < end and other < last:
                            return True
        return False

    def join(self, a, b):
        a, b = self.find(a), self.find(b)
        if a == b:
            return True
        if self.clash(a, b):
            return False
        self.parent[b] = a
        self.members[a] += self.members.pop(b)
        return True


def walk(body):
    for s in body:
        yield s
        if s.body is not None:
            yield from walk(s.body)


def escaping(lives, k, case):
    """Per call with a body: the values made inside and read outside."""
    out = {ident: set() for kk, ident in lives.inside if kk == k}

    def reads(values, chain):
        for v in values:
            for ident in out:
                if v in lives.inside[k, ident] and ident not in chain:
                    out[ident].add(v)

    def visit(body, chain):
        for s in body:
            reads(s.deps, chain)
            if s.body is not None:
                visit(s.body, chain + [s.id])
                reads(s.returns, chain + [s.id])
    visit(case.body, [])
    reads(case.outputs.values(), [])
    return out


MERGING = {"add", "sub", "masked_scatter", "index_put", "where", "copy_slices", "masked_fill"}


def name_values(cases):
    lives = Lives(cases)
    index = [{s.id: s for s in walk(c.body)} for c in cases]
    # What another case replaced must have the replaced one's name: the readers are the same statement.
    for (i, a), (j, b) in itertools.permutations(enumerate(index), 2):
        for ident, s in a.items():
            if ident in b and s.body is None:
                t = b[ident]
                old = [v for v in s.deps if v not in t.deps and j in lives.live[v]]
                new = [v for v in t.deps if v not in s.deps]
                for v, w in zip(old, new):
                    lives.join(v, w)
    for (i, a), (j, b) in itertools.permutations(enumerate(cases), 2):
        for name, v in a.outputs.items():
            if name in b.outputs and b.outputs[name] != v:
                lives.join(v, b.outputs[name])
    chained = set()
    for c in cases:
        for s in walk(c.body):
            item = s.kind == "call" and s.target.rsplit(".", 1)[-1].isdigit()
            if len(s.makes) == 1 and s.deps and ((s.kind == "op" and s.target in MERGING) or (item and len(s.deps) == 1)):
                lives.join(s.deps[0], s.makes[0])
            if item and s.body is not None and s.deps and len(s.returns) == 1:
                lives.join(s.deps[0], s.returns[0])
    makers, order, chain = {}, [], {}

    def visit(body, above):
        for s in body:
            for v in s.makes:
                if v not in makers:
                    makers[v], chain[v] = s, above
                    order.append(v)
            if s.body is not None:
                visit(s.body, above + [s])
    for c in cases:
        visit(c.body, [])
    outputs, escapes = {}, {}
    for k, c in enumerate(cases):
        for name, v in c.outputs.items():
            outputs.setdefault(lives.find(v), name)
        for ident, left in escaping(lives, k, c).items():
            escapes.setdefault(ident, set()).update(left)

    def last_name(target):
        parts = target.split(".")
        return "_".join(parts[-2:]) if parts[-1].isdigit() and len(parts) > 1 else parts[-1]

    def base(root):
        if root in outputs:
            return re.sub(r"\W", "_", outputs[root])
        if len(lives.members[root]) > 4:                  # a stream of hidden states
            common = [s for s in chain[root] if all(any(s.id == t.id for t in chain[v]) for v in lives.members[root])]
            return "h_" + last_name(common[-1].target) if common and "." in common[-1].target else "h"
        first = next(v for v in order if lives.find(v) == root)
        s = makers[first]
        # A value that leaves calls takes the name of the call it leaves: the outermost, or the one below it if it
        # leaves three or more, so that a tower's several results stay apart.
        # One that leaves beside the results (a shared key or value) keeps the name of its maker.
        if any(first not in c.returns for c in chain[first] if first in escapes.get(c.id, ())):
            return last_name(s.target)
        left = [s.target] + [c.target for c in reversed(chain[first]) if first in escapes.get(c.id, ())]
        return last_name(left[1] if len(left) == 2 else left[-2] if len(left) > 2 else left[0])

    names, taken = {}, {}
    for v in order:
        root = lives.find(v)
        if root in names:
            continue
        b = base(root)
        for n in itertools.count(1):
            name = b if n == 1 else f"{b}_{n}"
            if not any(lives.clash(root, o) for o in taken.get(name, [])):
                break
        names[root] = name
        taken.setdefault(name, []).append(root)
    return lives, {v: names[lives.find(v)] for v in lives.live}


def merge(cases, conditions, loss=None):
    lives, name = name_values(cases)

    def named(values):
        return list(dict.fromkeys(name[v] for v in values))

    def interface(k, s):
        inner = lives.inside[k, s.id]
        reads = list(s.deps)
        for x in walk(s.body):
            reads += x.deps + x.returns
        reads += s.returns
        outer = [v for v in dict.fromkeys(reads) if v not in inner]
        later = [v for v in inner if v in s.returns or v in escape[k][s.id]]
        later.sort(key=lambda v: lives.live[v][k][0])
        returned = [v for v in s.returns if v not in inner]
        return outer, later, returned

    escape = [escaping(lives, k, c) for k, c in enumerate(cases)]

    bound = [{name[v] for v in lives.live if k in lives.live[v]} for k in range(len(cases))]

    def unbound(names, ks):
        return not any(names & bound[k] for k in ks)

    def compatible(p, s):
        """Whether one statement that reads the inputs of both reads nothing more in the cases of either."""
        return unbound(set(s["in"]) - set(p["in"]), p["cases"]) and unbound(set(p["in"]) - set(s["in"]), s["cases"])

    def node(k, s):
        out = {"kind": s.kind, "target": s.target, "id": s.id, "cases": {k}, "params": s.params, "no_grad": s.no_grad}
        if s.body is None:
            out.update({"in": named(s.deps) or list(s.plain), "out": named(s.makes), "pass": [], "side": []})
        else:
            outer, later, returned = interface(k, s)
            inner = {p for x in walk(s.body) if x.body is None and not x.deps for p in x.plain}
            out.update({"in": list(dict.fromkeys([p for p in s.plain if p in inner] + named(outer))), "out": named(later), "pass": named(returned)})
            results = s.returns + s.interior
            out["side"] = named([v for v in outer if v not in s.deps and v not in returned] + [v for v in later if v not in results])
            out["body"] = [node(k, x) for x in s.body]
        return out

    def union(a, b):
        return list(dict.fromkeys(a + b))

    def combine(a, b):
        """The statements of b put into a, by identity."""
        at = 0
        for s in b:
            same = [i for i, t in enumerate(a) if t["id"] == s["id"]]
            place = next((i for i in same if s["kind"] == "call" or compatible(a[i], s)), None)
            if same and place is None:
                at = max(at, same[-1] + 1)
            if place is None:
                a.insert(at, s)
                at += 1
                continue
            if place < at:
                raise SystemExit(f"{s['id']} runs in another order when the batch holds other media")
            t = a[place]
            for key in ("in", "out", "pass", "side"):
                t[key] = union(t[key], s[key])
            if t["params"] != s["params"] or t["no_grad"] != s["no_grad"]:
                raise SystemExit(f"{s['id']} uses other parameters when the batch holds other media")
            t["cases"] |= s["cases"]
            if "body" in t:
                combine(t["body"], s["body"])
            at = place + 1

    order = sorted(range(len(cases)), key=lambda k: -sum(cases[k].held.values()))
    body = [node(order[0], s) for s in cases[order[0]].body]
    for k in order[1:]:
        combine(body, [node(k, s) for s in cases[k].body])

    def unify(body):
        """One operation with optional inputs instead of several that exclude each other."""
        out = []
        for s in body:
            p = out[-1] if out else None
            if p and s["kind"] == p["kind"] == "op" and s["target"] == p["target"] and s["out"] == p["out"] and \
                    s["params"] == p["params"] and not (s["cases"] & p["cases"]) and compatible(p, s):
                p["in"] = union(p["in"], s["in"])
                p["cases"] |= s["cases"]
            else:
                out.append(s)
            if "body" in s:
                s["body"] = unify(s["body"])
        return out

    body = unify(body)
    everywhere = set(range(len(cases)))

    def clauses():
        singles = []
        for n in range(1, len(conditions) + 1):
            for sub in itertools.combinations(conditions, n):
                singles += [("when", sub), ("unless", sub)]
        yield ()
        for a in singles:
            yield (a,)
        for a, b in itertools.combinations(singles, 2):
            yield (a, b)
        for a, b, c in itertools.combinations(singles, 3):
            yield (a, b, c)

    def holds(clause, held):
        word, names = clause
        return any(held.get(n, 0) for n in names) == (word == "when")

    options = list(clauses())
    options.sort(key=lambda o: (len(o), sum(len(names) for _, names in o), [w == "unless" for w, _ in o]))

    def condition(within, wanted, what):
        for o in options:
            if {k for k in within if all(holds(c, cases[k].held) for c in o)} == wanted:
                return o
        raise SystemExit(f"{what}: no condition over {conditions} says when it runs")

    def plain(body, within, owner):
        out, last = [], ()
        for s in body:
            cond = condition(within, s["cases"], s["id"])
            d = {s["kind"]: s["target"]}
            for key in ("in", "out", "pass", "side"):
                if s[key]:
                    d[key] = s[key]
            if s["params"] is not None and (s["params"] or s["kind"] == "call"):
                prefix = s["target"] if s["kind"] == "call" else owner
                d["params"] = [p[len(prefix) + 1:] if prefix else p for p in s["params"]]
            if s["no_grad"]:
                d["no_grad"] = True
            if "body" in s:
                d["body"] = plain(s["body"], s["cases"], s["target"])
            if cond and cond == last:
                inner.append(d)
            elif cond:
                inner = [d]
                block = inner
                for word, names in reversed(cond):
                    wrapper = {word: list(names), "body": block}
                    block = [wrapper]
                out += block
            else:
                out.append(d)
            last = cond
        return fold(out)

    outputs = []
    for c in cases:
        outputs = union(outputs, named(c.outputs.values()))
    found = cases[order[0]].outputs
    used = named([v for n, v in found.items() if n in loss] if loss else [next(iter(found.values()))])
    return Merged(plain(body, everywhere, ""), outputs, used)


# ------------------------------------------------------------------------------------------------- repeated items

def item_of(s):
    m = re.fullmatch(r"(.*)\.(\d+)", s.get("call", ""))
    return (m.group(1), int(m.group(2))) if m else None


def template(body, prefix):
    """The statements with `prefix` written as $."""
    def one(s):
        s = dict(s)
        for key in ("call", "each"):
            if key in s and (s[key] == prefix or s[key].startswith(prefix + ".")):
                s[key] = "$" + s[key][len(prefix):]
        if "body" in s:
            s["body"] = [one(x) for x in s["body"]]
        return s
    return [one(s) for s in body]


def fold(body):
    """Runs of statements that differ only in the item become `each`."""
    out, i = [], 0
    while i < len(body):
        item, best = item_of(body[i]), None
        if item:
            path, first = item
            for width in (1, 2, 3):
                unit = template(body[i:i + width], f"{path}.{first}")
                n = 1
                while template(body[i + n * width:i + (n + 1) * width], f"{path}.{first + n}") == unit:
                    n += 1
                if n > 1 and len(unit) == width:
                    best = (width, n, unit, path, first)
                    break
            if best is None and "body" in body[i]:
                best = (1, 1, template(body[i:i + 1], f"{path}.{first}"), path, first)
        if best:
            width, n, unit, path, first = best
            items = f"{first}..{first + n - 1}" if n > 1 else f"{first}"
            out.append({"each": path, "items": items, "body": unit})
            i += width * n
        else:
            out.append(body[i])
            i += 1
    return out


def read_names(body):
    names = set()
    for s in body:
        names |= set(s.get("in", [])) | read_names(s.get("body", []))
    return names


# ------------------------------------------------------------------------------------------------- expanding

def item_range(text):
    a, _, b = str(text).partition("..")
    return range(int(a), int(b or a) + 1)


def expand(flow, held, items=None):
    """-> (events, {output: event index}). An event is (kind, target, params, sorted indices of the events read); a call
    with a body is ("enter", FQN, None, ()) and has an index too. `items`: container FQN -> its item names."""
    events = []

    def run(body, env, dollar, owner, no_grad):
        for s in body:
            if "each" in s:
                path = s["each"].replace("$", dollar) if s["each"].startswith("$") else s["each"]
                names = item_range(s["items"]) if "items" in s else items[path]
                for n in names:
                    run(s["body"], env, f"{path}.{n}", owner, no_grad)
            elif "when" in s or "unless" in s:
                word = "when" if "when" in s else "unless"
                names = s[word] if isinstance(s[word], list) else None
                if names is None:
                    times = held.get(s["when"], 0)
                else:
                    times = int(any(held.get(n, 0) for n in names) == (word == "when"))
                for _ in range(times):
                    run(s["body"], env, dollar, owner, no_grad)
            else:
                kind = "call" if "call" in s else "op"
                target = s[kind]
                if kind == "call" and target.startswith("$"):
                    target = dollar + target[1:]
                quiet = no_grad or s.get("no_grad", False)
                if "body" in s:
                    events.append(("enter", target, None, ()))
                    local = {n: env[n] for n in s.get("in", []) if n in env}
                    run(s["body"], local, dollar, target, quiet)
                    for n in s.get("out", []):
                        if n in local:
                            env[n] = local[n]
                    continue
                reads = tuple(sorted({env[n] for n in s.get("in", []) if env.get(n) is not None}))
                prefix = target if kind == "call" else owner
                params = s.get("params")
                if params is not None:
                    params = tuple(f"{prefix}.{p}" if prefix else p for p in params)
                elif kind == "op":
                    params = ()
                events.append((kind, target, params, () if quiet else reads))
                for n in s.get("out", []):
                    env[n] = None if quiet or s.get("detach") else len(events) - 1

    env = {n: None for n in flow["inputs"]}
    run(flow["body"], env, "", "", False)
    return events, {n: env[n] for n in flow["outputs"] if env.get(n) is not None}


def recorded_events(case):
    events, at = [], {}

    def run(body):
        for s in body:
            if s.body is not None:
                events.append(("enter", s.target, None, ()))
                run(s.body)
                continue
            params = None if s.params is None else tuple(s.params)
            events.append((s.kind, s.target, params if s.kind == "call" else params or (), tuple(sorted({at[v] for v in s.deps}))))
            for v in s.makes:
                at[v] = len(events) - 1
    run(case.body)
    return events, {at[v] for v in case.outputs.values()}


def verify(flow, cases):
    flow = load(emit({"flow": flow}))["flow"]
    for c in cases:
        want, outs = recorded_events(c)
        have, results = expand(flow, c.held)
        for i, (w, h) in enumerate(itertools.zip_longest(want, have)):
            if w != h:
                raise SystemExit(f"the merged flow differs from the run that holds {c.held}, event {i}:\n"
                                 f"  recorded {w}\n  expanded {h}")
        if set(results.values()) != outs:
            raise SystemExit(f"the merged flow returns something else when the batch holds {c.held}")


# ------------------------------------------------------------------------------------------------- YAML

def load(text):
    import yaml
    return yaml.safe_load(text)


def scalar(v):
    if isinstance(v, bool):
        return "true" if v else "false"
    if isinstance(v, (int, float)):
        return str(v)
    if v is None:
        return "null"
    s = str(v)
    if s == "" or re.fullmatch(r"[\d.eE+-]+", s) or s in ("true", "false", "null", "yes", "no", "on", "off", "~") or \
            not re.fullmatch(r"[A-Za-z0-9_$][^:#{}\[\],&*!|>'\"%@`\n]*", s):
        return json.dumps(s)
    return s


def inline(v):
    if isinstance(v, dict):
        return "{" + ", ".join(f"{scalar(k)}: {inline(x)}" for k, x in v.items()) + "}"
    if isinstance(v, (list, tuple)):
        return "[" + ", ".join(inline(x) for x in v) + "]"
    return scalar(v)


def emit(doc):
    """YAML with one line per small node, and an anchor for every larger node that occurs again."""
    counts, anchors = {}, {}

    def key(v):
        return json.dumps(v)

    def count(v):
        if isinstance(v, (dict, list)):
            k = key(v)
            counts[k] = counts.get(k, 0) + 1
            if counts[k] == 1:
                for x in (v.values() if isinstance(v, dict) else v):
                    count(x)
    count(doc)
    used = {}

    def label(v):
        name = v.get("class") if isinstance(v, dict) else None
        if isinstance(v, dict) and "call" in v:
            name = "flow_" + v["call"].rsplit(".", 1)[-1]
        if name is None and isinstance(v, list) and v and isinstance(v[0], dict) and "call" in v[0]:
            name = "flow_" + re.sub(r"\W", "_", last_path[-1]) if last_path else "flow"
        name = name or "node"
        used[name] = used.get(name, 0) + 1
        return name if used[name] == 1 else f"{name}{used[name]}"
    last_path = []
    lines = []
    width = 132

    def put(prefix, v, indent):
        """prefix: text that leads the node ("key:" or "-")."""
        text = inline(v)
        deep = isinstance(v, dict) and ("children" in v or len(v.get("body", [])) > 1 or any("body" in x for x in v.get("body", [])))
        small = len(prefix) + 1 + len(text) <= width and not deep \
            and not (isinstance(v, list) and v and isinstance(v[0], dict) and ("call" in v[0] or "op" in v[0] or len(v) > 1))
        if not isinstance(v, (dict, list)) or small or not v:
            lines.append(f"{prefix} {text}")
            return
        if isinstance(v, list) and not isinstance(v[0], (dict, list)):
            lines.append(f"{prefix} {text}")
            return
        k = key(v)
        if counts[k] > 1 and len(k) > 160 and not (isinstance(v, dict) and "each" in v):
            if k in anchors:
                lines.append(f"{prefix} *{anchors[k]}")
                return
            anchors[k] = label(v)
            prefix = f"{prefix} &{anchors[k]}"
        block(prefix, v, indent)

    def block(prefix, v, indent):
        pad = "  " * indent
        if isinstance(v, dict):
            entries = list(v.items())
            if prefix.lstrip().startswith("-") and "&" not in prefix:
                head, entries = entries[0], entries[1:]
                put_key(f"{prefix} {scalar(head[0])}:", head, indent)
            else:
                lines.append(prefix)
            for e in entries:
                put_key(f"{pad}{scalar(e[0])}:", e, indent)
        else:
            lines.append(prefix)
            for x in v:
                put(f"{pad}-", x, indent + 1)

    def put_key(prefix, entry, indent):
        k, x = entry
        path = k in ("each", "call")
        if path:
            last_path.append(str(x).rsplit(".", 1)[-1])
        put(prefix, x, indent + 1)

    for k, v in doc.items():
        if k in ("source",):
            lines.append(f"source: >-")
            words, row = str(v).split(), " "
            for w in words:
                if len(row) + 1 + len(w) > 118:
                    lines.append(row)
                    row = " "
                row += " " + w
            lines.append(row)
            continue
        put(f"{k}:", v, 1)
    text = "\n".join(lines) + "\n"
    parsed = load(text)
    if json.loads(json.dumps(parsed)) != json.loads(json.dumps(doc)) and "source" not in doc:
        raise AssertionError("the YAML does not read back as written")
    return text
