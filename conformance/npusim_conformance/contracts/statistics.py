# SPDX-License-Identifier: BSD-3-Clause
"""Statistics of memory: which question or call may change which of them, device by device."""

import gc
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch

from npusim_conformance.contracts import contract, in_thread
from npusim_conformance.properties.base import Run, require
from npusim_conformance.verdict import NotApplicable

_NO_CPU = "the CPU counts no memory"
_MIB = 1 << 20
_ACCUMULATED = (".allocated", ".freed", "num_")
# Calls by name, and the parts of names of statistics that they may change on their device.
_MAY_CHANGE: dict[str, tuple[str, ...]] = {
    "reset_peak_memory_stats": (".peak", "max_"),
    "reset_accumulated_memory_stats": _ACCUMULATED,
    "memory_allocated": (),
    "memory_reserved": (),
    "max_memory_allocated": (),
    "max_memory_reserved": (),
    "memory_stats": (),
    "get_memory_info": (),
    "synchronize": (),
}
_BY_EMPTYING = ("reserved", "segment", "inactive", "num_", "active", "oversize")


def _module(run: Run) -> Any:
    for module in run.under_test.statistics:
        if hasattr(module, "memory_stats") and hasattr(module, "memory_allocated"):
            if module.memory_stats(run.device.index):
                return module
    raise NotApplicable("the backend does not say how many bytes are allocated")


def _changes(before: dict[str, Any], after: dict[str, Any], allowed: tuple[str, ...]) -> list[str]:
    return [
        f"{name} {before[name]} to {after.get(name)}"
        for name in before
        if after.get(name) != before[name] and not any(part in name for part in allowed)
    ]


@contract(no_cpu=_NO_CPU)
def calls_leave_the_other_statistics(run: Run) -> None:
    """A reset of peaks changes peaks only, a reset of totals totals only, and questions nothing.

    Nothing of it changes another device's statistics.
    """
    module = _module(run)
    devices = [one for one in (run.device, run.under_test.second) if one is not None]
    kept = [torch.empty(2 * _MIB, dtype=torch.uint8, device=device) for device in devices]
    calls: dict[str, tuple[Callable[[Any], object], tuple[str, ...]]] = {
        name: (getattr(module, name), allowed)
        for name, allowed in _MAY_CHANGE.items()
        if hasattr(module, name)
    }
    if hasattr(module, "empty_cache"):
        calls["empty_cache"] = (lambda index: module.empty_cache(), _BY_EMPTYING)
    for device in devices:
        for name, (call, allowed) in calls.items():
            for one in devices:  # peaks and totals that differ from what lives
                torch.empty(3 * _MIB, dtype=torch.uint8, device=one)
            gc.collect(0)
            run.under_test.make_current(device)
            before = [dict(module.memory_stats(one.index)) for one in devices]
            with suppress(RuntimeError, NotImplementedError):  # an optional part
                call(device.index)
            after = [dict(module.memory_stats(one.index)) for one in devices]
            run.under_test.make_current(run.device)
            for one, was, now in zip(devices, before, after, strict=True):
                everywhere = one == device or name == "empty_cache"
                changed = _changes(was, now, allowed if everywhere else ())
                what = f"{name}() of {device} changes statistics of {one}"
                require(not changed, f"{what}: {', '.join(changed[:4])}")
    require(len(kept) == len(devices), "a live tensor was lost")


@contract(no_cpu=_NO_CPU)
def tensors_of_threads_are_counted(run: Run) -> None:
    """Tensors that threads allocate and free in turn are counted to the byte, once they end."""
    module = _module(run)
    index = run.device.index
    gc.collect(0)
    torch.empty(_MIB, dtype=torch.uint8, device=run.device)
    before = module.memory_allocated(index)
    made: list[torch.Tensor] = []

    def make() -> torch.Tensor:
        return torch.empty(_MIB, dtype=torch.uint8, device=run.device)

    for round_ in range(6):
        made.append(in_thread(make) if round_ % 2 else make())
        grown = module.memory_allocated(index) - before
        what = f"{round_ + 1} tensors of 1 MiB of two threads count as {grown} bytes"
        require(grown >= (round_ + 1) * _MIB and grown < (round_ + 2) * _MIB, what)
    while made:
        in_thread(made.pop) if len(made) % 2 else made.pop()
    left = module.memory_allocated(index) - before
    require(left == 0, f"{left} bytes are counted after the tensors of two threads died")
