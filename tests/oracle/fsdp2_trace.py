"""Writes down what FSDP2 asks of streams, events, storages and process groups: REC.lines, in the words of format.md.

The CPU device handle that FSDP2 asks for streams and events is replaced by one that records; everything else is PyTorch as
installed, with wrappers around FSDP2's internals.
"""
import contextlib
import weakref

import torch
import torch.distributed as dist
from torch.distributed.fsdp._fully_shard import (_fsdp_collectives, _fsdp_param, _fsdp_param_group,
                                                 _fsdp_state)

from flow_model import DTYPE_NAMES


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
