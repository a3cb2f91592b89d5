# SPDX-License-Identifier: BSD-3-Clause
"""Hooks of torch that say, during a run, whose memory is whose and where the program is."""

import statistics
import sys
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils.hooks import RemovableHandle

from torch_npusim import _C, npusim
from torch_npusim._names import is_npusim
from torch_npusim.profiling.fitting.result import StepTime, Work
from torch_npusim.sim import specs
from torch_npusim.sim.timeline import PRECISIONS

PARAMETERS, BUFFERS, GRADIENTS = "parameters", "buffers", "gradients"
STATES = "optimizer state"
WORKSPACES = "workspaces of cuBLAS"

# Operators whose operations are the model's. Inductor mostly calls their kernels; where it takes
# them apart (mv, dot), they become part of a fused kernel.
_PRODUCTS = frozenset(
    ("mm", "addmm", "bmm", "baddbmm", "addbmm", "mv", "addmv", "dot", "vdot", "addr", "einsum",
     "convolution", "convolution_backward")
)  # fmt: skip


@dataclass(frozen=True)
class Place:
    """Where a program is.

    Attributes:
        phase: "forward", "optimizer" or "".
        module: Qualified name of the innermost module that runs; empty outside.
        kind: Its class.
        call: Number of the outermost call of a module or optimizer; 0 outside.
    """

    phase: str = ""
    module: str = ""
    kind: str = ""
    call: int = 0


OUTSIDE = Place()


@dataclass
class Watch:
    """The notes of a run. A moment is the number of the newest allocation.

    Attributes:
        places: Moment and place, whenever the place changes.
        owners: Moment, device, address and kind of blocks that parameters and their like hold.
        ends_ns: Virtual time at the end of each step of an optimizer.
        flops: Of each step: precision -> operations of products, and "again": those of them that
            checkpoints compute again.
        busy_ns: Of each step, the sum of its commands' times.
        not_counted: Of each step, kernels whose products, if any, are no part of `flops`.
        inputs: Sizes of the model's inputs in each step but the first, and whether they are
            integers. The model is the outermost module that trains on inputs nobody computed:
            a loss has no parameters, and a later part takes results of an earlier one.
        is_doubtful: Whether it is not certain which inputs are the model's.
        hooks: Of the models that were met.
        threads: That ran steps of optimizers.
    """

    places: list[tuple[int, Place]] = field(default_factory=lambda: [(0, OUTSIDE)])
    owners: list[tuple[int, int, int, str]] = field(default_factory=list)
    ends_ns: list[int] = field(default_factory=list)
    flops: list[Counter[str]] = field(default_factory=list)
    busy_ns: list[float] = field(default_factory=list)
    not_counted: list[list[str]] = field(default_factory=list)
    inputs: list[list[tuple[tuple[int, ...], bool]]] = field(default_factory=lambda: [[]])
    is_doubtful: bool = False

    def __post_init__(self) -> None:
        self._stacks: dict[int, list[Place]] = {}  # by thread: a backward pass has its own
        self._names: weakref.WeakKeyDictionary[nn.Module, str] = weakref.WeakKeyDictionary()
        self._roots: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._models: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._optimizers: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self._calls = 0
        self.hooks: list[RemovableHandle] = []
        self.threads: set[int] = set()
        self.convolutions: set[str] = set()  # precisions of those that ran
        self.tally = _C.begin_command_tally()

    # --- hooks ------------------------------------------------------------------------------

    def _module_begins(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        if torch.compiler.is_compiling():
            return  # a hook that Dynamo traces would break its graph
        if not self._stacks.get(threading.get_ident()):
            self._calls += 1
            self._meet(module)
        name = self._names.get(module)
        if name is None:
            self._names[module] = name = type(module).__name__
        self._enter(Place("forward", name, type(module).__name__, self._calls))

    def _module_ends(self, module: nn.Module, inputs: Any, result: Any) -> None:
        if torch.compiler.is_compiling():
            return
        self._leave()

    def _step_begins(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self._optimizers.add(optimizer)
        self._calls += 1
        self._enter(Place("optimizer", "", type(optimizer).__name__, self._calls))

    def _step_ends(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self._leave()
        self._look_at(optimizer)
        self.threads.add(threading.get_ident())
        self.ends_ns.append(_device_time_ns())
        self._end_tally()
        self.inputs.append([])

    def _enter(self, place: Place) -> None:
        self._stacks.setdefault(threading.get_ident(), []).append(place)
        self.places.append((_C.newest_allocation(), place))

    def _leave(self) -> None:
        stack = self._stacks.get(threading.get_ident(), [])
        if stack:  # an error may have passed a hook by
            stack.pop()
        place = stack[-1] if stack else OUTSIDE
        self.places.append((_C.newest_allocation(), place))

    # --- owners -----------------------------------------------------------------------------

    def _meet(self, root: nn.Module) -> None:
        if root in self._names:
            return  # also a part of a model that was met: a backward pass runs it again
        self.hooks.append(root.register_forward_pre_hook(self._inputs_of, with_kwargs=True))
        self._roots.add(root)
        for name, module in root.named_modules():
            self._names[module] = name or type(root).__name__
        self._look_at_module(root)

    def _inputs_of(self, root: nn.Module, inputs: Any, named: dict[str, Any]) -> None:
        if torch.compiler.is_compiling():
            return
        is_outermost = len(self._stacks[threading.get_ident()]) == 1
        learns = root.training and any(p.requires_grad for p in root.parameters())
        values = [*inputs, *named.values()]
        tensors = [value for value in values if isinstance(value, torch.Tensor)]
        if not is_outermost or not learns or (tensors and tensors[0].grad_fn is not None):
            return
        self._models.add(root)
        computed = any(tensor.grad_fn is not None for tensor in tensors)
        self.is_doubtful |= not tensors or computed or len(self._models) > 1
        for first in tensors[:1]:
            self.inputs[-1].append((tuple(first.shape), not first.is_floating_point()))

    def _look_at_module(self, root: nn.Module) -> None:
        for parameter in root.parameters():
            self._note(PARAMETERS, parameter)
            self._note(GRADIENTS, parameter.grad)
        for buffer in root.buffers():
            self._note(BUFFERS, buffer)

    def _look_at(self, optimizer: torch.optim.Optimizer) -> None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                self._note(PARAMETERS, parameter)
                self._note(GRADIENTS, parameter.grad)
                state = optimizer.state.get(parameter, {})
                for value in state.values() if isinstance(state, dict) else ():
                    self._note(STATES, value)

    def look(self) -> None:
        """Notes what modules and optimizers hold now."""
        for root in list(self._roots):
            self._look_at_module(root)
        for optimizer in list(self._optimizers):
            self._look_at(optimizer)

    def end(self) -> None:
        """Notes what the run leaves: workspaces of cuBLAS, commands behind the last step."""
        self._end_tally()
        for device, address in _C.cublas_workspaces():
            self.owners.append((_C.newest_allocation(), device, address, WORKSPACES))

    def _note(self, kind: str, tensor: Any) -> None:
        tensor = getattr(tensor, "_local_tensor", tensor)  # of a DTensor
        if not isinstance(tensor, torch.Tensor) or not is_npusim(tensor.device):
            return
        try:
            address = tensor.untyped_storage().data_ptr()
        except (RuntimeError, NotImplementedError):
            return  # a tensor subclass without storage
        self.owners.append((_C.newest_allocation(), tensor.device.index, address, kind))

    def _end_tally(self) -> None:
        """Notes the operations of products since the last call, and begins anew."""
        rows = _C.end_command_tally(self.tally)
        self.tally = _C.begin_command_tally()
        self.flops.append(
            Counter(
                {name: sum(row[name] for row in rows.values()) for name in (*PRECISIONS, "again")}
            )
        )
        self.busy_ns.append(sum(row["modelled_ns"] for row in rows.values()))
        self.not_counted.append(not_counted(rows))
        for command, row in rows.items():
            if "convolution" in command:
                self.convolutions.update(name for name in PRECISIONS if row[name])

    # --- time -------------------------------------------------------------------------------

    def step_time(self, spec: str | None, peaks: Sequence[float], devices: int) -> StepTime | None:
        """Returns the time of a step, with the interval of its errors.

        None of fewer than two steps, and of steps on several threads: these share one clock of the
        host, so that the time between two steps depends on the order in which threads run.

        Args:
            spec: The specification whose interval is given.
            peaks: Operations a second of a device, in the order of PRECISIONS.
            devices: That the script uses.
        """
        spans = [after - before for before, after in pairwise(self.ends_ns)]
        if not spans or len(self.threads) > 1:
            return None
        ns = int(statistics.median_low(spans))
        step = 1 + spans.index(ns)
        works = self.busy_ns[step] / devices / max(ns, 1)
        found = StepTime(
            ns,
            specs.interval(spec, works),
            len(self.ends_ns),
            device_idles=specs.device_idles(works),
        )
        if ns <= 0:
            return found
        found = replace(
            found,
            work=_work(self.flops[step], found, peaks, devices),
            not_counted=self.not_counted[step],
        )
        # The steps behind the first; what follows the last is no step.
        calls = self.inputs[1 : len(self.ends_ns)]
        if self.is_doubtful or not calls[0] or any(call != calls[0] for call in calls):
            return found
        sizes, is_tokens = calls[0][0]
        samples = sum(shape[0] for shape, _ in calls[0] if shape)
        tokens = sum(_product(shape) for shape, _ in calls[0])
        return replace(
            found,
            inputs=list(sizes),
            per_second=samples * 1e9 / ns if samples else None,
            tokens_per_second=tokens * 1e9 / ns if is_tokens else None,
        )


def not_counted(commands: Iterable[str]) -> list[str]:
    """Returns the commands whose products are not seen: Triton's, and fused products."""
    inductor = sys.modules.get("torch_npusim.inductor.runtime")
    fused: dict[str, Any] = getattr(inductor, "kernels", {})
    interpreter = sys.modules.get("torch_npusim.triton_interpreter")
    triton: set[str] = getattr(interpreter, "launched", set())
    found = set(commands) & triton
    for name in set(commands) & fused.keys():
        if any(operator.split(".")[1] in _PRODUCTS for operator in fused[name].operators):
            found.add(name)
    return sorted(found)


def on_chip(precision: str, peaks: Sequence[float]) -> str:
    """Returns the precision in which a chip computes: float32 for TF32 that it lacks."""
    return precision if peaks[PRECISIONS.index(precision)] else "f32"


def _work(flops: Counter[str], step: StepTime, peaks: Sequence[float], devices: int) -> Work | None:
    by_precision = {name: flops[name] for name in PRECISIONS}
    most = max(by_precision, key=lambda name: by_precision[name])
    if not by_precision[most]:
        return None
    most = on_chip(most, peaks)
    peak = devices * peaks[PRECISIONS.index(most)]
    model = sum(by_precision.values()) - flops["again"]
    mfu = model / (peak * step.ns / 1e9)
    low, high = step.interval
    return Work(model, flops["again"], most, peak, mfu, (mfu / high, mfu / low))


def _product(sizes: tuple[int, ...]) -> int:
    product = 1
    for size in sizes:
        product *= size
    return product


def _device_time_ns() -> int:
    streams = [npusim.current_stream(device) for device in range(npusim.device_count())]
    ends = [_C.stream_time_ns(stream.device_index, stream.stream_id) for stream in streams]
    return max(_C.host_time_ns(), *ends)


@contextmanager
def watching() -> Iterator[Watch]:
    """Notes what happens in a `with` block."""
    watch = Watch()
    hooks = [
        register_module_forward_pre_hook(watch._module_begins),
        register_module_forward_hook(watch._module_ends, always_call=True),
        register_optimizer_step_pre_hook(watch._step_begins),
        register_optimizer_step_post_hook(watch._step_ends),
    ]
    try:
        yield watch
    finally:
        for hook in [*hooks, *watch.hooks]:
            hook.remove()
        _C.end_command_tally(watch.tally)


@contextmanager
def reporting(tell: Callable[[str], None], every_s: float) -> Iterator[None]:
    """Tells, every so many seconds, how far a run is."""
    done = threading.Event()
    begin = time.monotonic()

    def run() -> None:
        while not done.wait(every_s):
            peaks = [
                _C.memory_stats(device)["reserved_bytes.all.peak"]
                for device in range(npusim.device_count())
            ]
            tell(f"{time.monotonic() - begin:.0f} s, {max(peaks) / 2**30:.2f} GiB reserved so far")

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
