# SPDX-License-Identifier: BSD-3-Clause
"""Hooks of torch that say, during a run, whose memory is whose and where the program is."""

import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
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
from torch_npusim.fit.steps import (
    BEGIN,
    REST,
    STEP,
    Input,
    Part,
    not_counted,
)
from torch_npusim.profiling._recording import is_in_backward
from torch_npusim.sim.timeline import PRECISIONS

PARAMETERS, BUFFERS, GRADIENTS = "parameters", "buffers", "gradients"
STATES = "optimizer state"
WORKSPACES = "workspaces of cuBLAS"


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
        parts: Of the run, for the time of a step.
        hooks: Of the models that were met.
    """

    places: list[tuple[int, Place]] = field(default_factory=lambda: [(0, OUTSIDE)])
    owners: list[tuple[int, int, int, str]] = field(default_factory=list)
    parts: list[Part] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._stacks: dict[int, list[Place]] = {}  # by thread: a backward pass has its own
        self._names: weakref.WeakKeyDictionary[nn.Module, str] = weakref.WeakKeyDictionary()
        self._roots: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._timed: weakref.WeakKeyDictionary[nn.Module, int] = weakref.WeakKeyDictionary()
        self._numbers = count()
        self._inputs: list[Input] = []  # of the part that has begun
        self._lock = threading.Lock()
        self._optimizers: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self._calls = 0
        self.hooks: list[RemovableHandle] = []
        self.convolutions: dict[str, float] = {}  # precision -> bytes of the largest
        self.tally = _C.begin_command_tally()

    # --- hooks ------------------------------------------------------------------------------

    def _module_begins(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        if torch.compiler.is_compiling():
            return  # a hook that Dynamo traces would break its graph
        is_outermost = not self._stacks.get(threading.get_ident())
        is_new = False
        if is_outermost:
            self._calls += 1
            is_new = self._meet(module)
        name = self._names.get(module)
        if name is None:
            self._names[module] = name = type(module).__name__
        self._enter(Place("forward", name, type(module).__name__, self._calls))
        if is_outermost and module in self._timed and not is_in_backward():
            self._end_part(BEGIN)
            if is_new and inputs:  # its own hook is for later calls
                self._inputs_of(module, inputs, {})

    def _module_ends(self, module: nn.Module, inputs: Any, result: Any) -> None:
        if torch.compiler.is_compiling():
            return
        self._leave()
        is_outermost = not self._stacks.get(threading.get_ident())
        if is_outermost and module in self._timed and not is_in_backward():
            self._end_part(f"call of {type(getattr(module, '_orig_mod', module)).__name__}")

    def _step_begins(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self._optimizers.add(optimizer)
        self._calls += 1
        self._enter(Place("optimizer", "", type(optimizer).__name__, self._calls))

    def _step_ends(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self._leave()
        self._look_at(optimizer)
        self._end_part(STEP)

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

    def _meet(self, root: nn.Module) -> bool:
        """Notes a module that is called from outside; returns whether it is a new one."""
        if root in self._names:
            return False  # also a part of a model that was met: a backward pass runs it again
        if next(root.parameters(), None) is not None:
            self._timed[root] = next(self._numbers)
        self.hooks.append(root.register_forward_pre_hook(self._inputs_of, with_kwargs=True))
        self._roots.add(root)
        for name, module in root.named_modules():
            self._names[module] = name or type(root).__name__
        self._look_at_module(root)
        return True

    def _inputs_of(self, root: nn.Module, inputs: Any, named: dict[str, Any]) -> None:
        if torch.compiler.is_compiling() or is_in_backward() or root not in self._timed:
            return
        tensors = [each for each in (*inputs, *named.values()) if isinstance(each, torch.Tensor)]
        is_computed = [tensor.grad_fn is not None for tensor in tensors]
        if len(self._stacks[threading.get_ident()]) != 1 or is_computed[:1] == [True]:
            return  # a part of the model, or one that comes behind it
        self._inputs.append(
            Input(
                self._timed[root],
                tuple(tensors[0].shape) if tensors else (),
                bool(tensors) and not tensors[0].is_floating_point(),
                bool(tensors) and not any(is_computed),
                root.training and any(p.requires_grad for p in root.parameters()),
            )
        )

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
        self._end_part(REST)
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

    def _end_part(self, end: str) -> None:
        """Notes a part of the run, and begins another."""
        with self._lock:
            rows = _C.end_command_tally(self.tally)
            self.tally = _C.begin_command_tally()
            names = (*PRECISIONS, "again")
            flops = Counter({name: sum(row[name] for row in rows.values()) for name in names})
            busy_ns = sum(row["modelled_ns"] for row in rows.values())
            now, thread = _device_time_ns(), threading.get_ident()
            inputs, self._inputs = tuple(self._inputs), []
            self.parts.append(Part(end, now, thread, flops, busy_ns, not_counted(rows), inputs))
            for command, row in rows.items():
                largest = 0 if "backward" in command else row["largest"]
                for name in PRECISIONS if "convolution" in command else ():
                    if row[name]:
                        self.convolutions[name] = max(self.convolutions.get(name, 0), largest)


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
