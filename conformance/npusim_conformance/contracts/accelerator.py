# SPDX-License-Identifier: BSD-3-Clause
"""torch.accelerator: the interface that is the same for every device."""

import gc
import itertools
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import ModuleType

import torch

from npusim_conformance.contracts import contract, other_device, refuses, same
from npusim_conformance.properties.base import Run, require
from npusim_conformance.verdict import NotApplicable

_NO_CPU = "the CPU is no accelerator"
_MIB = 1 << 20


def _accelerator(run: Run) -> ModuleType:
    """torch.accelerator, if it speaks of the device under test."""
    current = torch.accelerator.current_accelerator()
    if current is not None and current.type != run.device.type:
        raise NotApplicable(f"torch's accelerator is {current}")
    return torch.accelerator


@contract(no_cpu=_NO_CPU)
def is_the_current_accelerator(run: Run) -> None:
    """torch.accelerator.is_available() is True, and current_accelerator() is this device."""
    same("is_available()", torch.accelerator.is_available(), True)
    same("current_accelerator()", torch.accelerator.current_accelerator(), _kind(run))
    same(
        "current_accelerator(check_available=True)",
        torch.accelerator.current_accelerator(check_available=True),
        _kind(run),
    )


def _kind(run: Run) -> torch.device:
    return torch.device(run.device.type)


@contract(no_cpu=_NO_CPU, two_devices=True, needs=("current_device",))
def index_follows_the_module(run: Run) -> None:
    """set_device_index() and the module's current_device() speak of the same device."""
    accelerator, second = _accelerator(run), other_device(run)
    before = accelerator.current_device_index()
    try:
        for given in (second, second.index, str(second)):
            accelerator.set_device_index(given)
            same("current_device_index()", accelerator.current_device_index(), second.index)
            same("current_device()", run.under_test.module.current_device(), second.index)
            accelerator.set_device_index(before)
    finally:
        accelerator.set_device_index(before)


@contract(no_cpu=_NO_CPU, two_devices=True)
def device_index_restores(run: Run) -> None:
    """`with device_index(n)` makes n current and restores, also after exceptions."""
    accelerator, second = _accelerator(run), other_device(run)
    before = accelerator.current_device_index()

    def body() -> None:
        with accelerator.device_index(second.index):
            same("inside", accelerator.current_device_index(), second.index)
            raise KeyError("from the body")

    refuses("the body", body, KeyError)
    same("after", accelerator.current_device_index(), before)
    with accelerator.device_index(None):
        same("with None", accelerator.current_device_index(), before)


@contract(no_cpu=_NO_CPU)
def no_such_accelerator_index(run: Run) -> None:
    """An index that no device has, and another device's name, are refused."""
    accelerator = _accelerator(run)
    before = accelerator.current_device_index()
    count = accelerator.device_count()
    refused = (RuntimeError, ValueError, IndexError, AssertionError)
    refuses(f"set_device_index({count})", lambda: accelerator.set_device_index(count), refused)
    refuses("set_device_index('meta')", lambda: accelerator.set_device_index("meta"), refused)
    same("current_device_index() after it", accelerator.current_device_index(), before)


@contract(no_cpu=_NO_CPU)
def synchronize_by_index(run: Run) -> None:
    """synchronize() takes nothing, an index, a torch.device and a string."""
    accelerator = _accelerator(run)
    for given in ((), (run.device.index,), (run.device,), (str(run.device),)):
        same(f"synchronize{given}", accelerator.synchronize(*given), None)


Questions = dict[str, Callable[[], object]]
# Functions of a module that take a device, and those that take none.
_ABOUT_A_DEVICE = (
    "synchronize memory_allocated memory_reserved max_memory_allocated max_memory_reserved "
    "memory_stats reset_peak_memory_stats reset_accumulated_memory_stats mem_get_info "
    "get_memory_info get_rng_state get_device_name get_device_properties get_device_capability"
).split()
_ABOUT_ALL = ("empty_cache", "get_rng_state_all", "synchronize", "is_available", "device_count")


def _questions(device: torch.device, other: torch.device, modules: list[ModuleType]) -> Questions:
    """Calls that concern one device, whichever is current."""
    stream, there, here = torch.Stream(device), torch.ones(3).to(device), torch.ones(3)
    recorded = torch.Event(device, enable_timing=True)
    recorded.record(stream)
    asked: Questions = {
        "current_stream()": lambda: torch.accelerator.current_stream(device),
        "Stream.synchronize()": stream.synchronize,
        "Stream.query()": stream.query,
        "Stream.record_event()": stream.record_event,
        "Stream.wait_event()": lambda: stream.wait_event(recorded),
        "Stream.wait_stream()": lambda: stream.wait_stream(
            torch.accelerator.current_stream(device)
        ),
        "Event.record()": lambda: torch.Event(device).record(stream),
        "Event.synchronize()": recorded.synchronize,
        "Event.query()": recorded.query,
        "Event.wait()": lambda: recorded.wait(stream),
        "Event.elapsed_time()": lambda: recorded.elapsed_time(recorded),
        "Stream()": lambda: torch.Stream(device),
        "empty()": lambda: torch.empty(3, device=device),
        "a copy there": lambda: here.to(device),
        "a copy back": there.cpu,
        "a copy to another device": lambda: there.to(other),
        "copy_()": lambda: there.copy_(here),
        "clone()": there.clone,
        "fill_()": lambda: there.fill_(1),
        "item()": lambda: there[0].item(),
        "resize_()": lambda: torch.empty(0, device=device).resize_(8),
        "record_stream()": lambda: there.record_stream(stream),
        "Generator()": lambda: torch.Generator(device).manual_seed(3).get_state(),
    }
    for module, names in itertools.product(modules, (_ABOUT_A_DEVICE, _ABOUT_ALL)):
        given = (device.index,) if names is _ABOUT_A_DEVICE else ()
        for name in filter(partial(hasattr, module), names):
            asked[f"{module.__name__}.{name}{given}"] = partial(getattr(module, name), *given)
    return asked


@contract(no_cpu=_NO_CPU, two_devices=True)
def questions_leave_the_current_device(run: Run) -> None:
    """Waiting for one device, asking it and working there leaves another one current."""
    accelerator, changed = _accelerator(run), []
    modules = [accelerator, run.under_test.module]
    for current, device in itertools.permutations((run.device, other_device(run))):
        for name, ask in _questions(device, current, modules).items():
            accelerator.set_device_index(current.index)
            with suppress(Exception):  # what is missing or refused, other contracts tell
                ask()
            if accelerator.current_device_index() != current.index:
                changed.append(f"{name} where {current} was")
    require(not changed, f"another device is current after {', '.join(changed)}")


@contract(no_cpu=_NO_CPU)
def current_stream_is_of_the_device(run: Run) -> None:
    """current_stream() is a torch.Stream of the current device, and of the one that is named."""
    accelerator = _accelerator(run)
    stream = accelerator.current_stream()
    require(isinstance(stream, torch.Stream), f"{type(stream).__name__} is no torch.Stream")
    same("its device", stream.device, run.device)
    if run.under_test.second is not None:
        named = accelerator.current_stream(run.under_test.second)
        same("device of the second's", named.device, run.under_test.second)


@contract(no_cpu=_NO_CPU, needs=("torch.accelerator.memory_stats",))
def memory_statistics_agree(run: Run) -> None:
    """memory_allocated(), memory_reserved() and memory_stats() agree with each other."""
    accelerator = _accelerator(run)
    gc.collect()
    before = accelerator.memory_allocated(run.device)
    tensor = torch.empty(4 * _MIB, dtype=torch.uint8, device=run.device)
    allocated = accelerator.memory_allocated(run.device)
    require(allocated - before >= 4 * _MIB, f"4 MiB more count as {allocated - before} bytes")
    require(accelerator.memory_reserved(run.device) >= allocated, "less reserved than allocated")
    stats = accelerator.memory_stats(run.device)
    same("allocated_bytes.all.current", stats.get("allocated_bytes.all.current"), allocated)
    del tensor
    same("memory_allocated() after it died", accelerator.memory_allocated(run.device), before)


@contract(no_cpu=_NO_CPU, needs=("torch.accelerator.memory_allocated", "memory_allocated"))
def memory_agrees_with_the_module(run: Run) -> None:
    """torch.accelerator and the device's module count the same bytes."""
    accelerator, module = _accelerator(run), run.under_test.module
    kept = torch.empty(_MIB, dtype=torch.uint8, device=run.device)
    same("bytes", accelerator.memory_allocated(run.device), module.memory_allocated(run.device))
    require(kept.numel() <= module.memory_allocated(run.device), "a live tensor is not counted")


@contract(no_cpu=_NO_CPU, needs=("torch.accelerator.reset_peak_memory_stats",))
def peaks_can_be_reset(run: Run) -> None:
    """max_memory_allocated() is the most since reset_peak_memory_stats()."""
    accelerator = _accelerator(run)
    gc.collect()
    accelerator.reset_peak_memory_stats(run.device)
    before = accelerator.max_memory_allocated(run.device)
    torch.empty(4 * _MIB, dtype=torch.uint8, device=run.device)
    grown = accelerator.max_memory_allocated(run.device) - before
    require(grown >= 4 * _MIB, f"the peak grew by {grown} bytes with a tensor of 4 MiB")
    require(
        accelerator.max_memory_reserved(run.device) >= accelerator.max_memory_allocated(run.device),
        "the peak of reserved bytes is below that of allocated ones",
    )
    accelerator.reset_peak_memory_stats(run.device)
    same("the peak after a reset", accelerator.max_memory_allocated(run.device), before)
    accelerator.reset_accumulated_memory_stats(run.device)


@contract(no_cpu=_NO_CPU, needs=("torch.accelerator.empty_cache",))
def empty_cache_keeps_live_tensors(run: Run) -> None:
    """empty_cache() leaves live tensors as they are, and views whose base died."""
    accelerator = _accelerator(run)
    live = torch.arange(1000).to(run.device)
    view = torch.arange(1000).to(run.device)[500:]
    torch.empty(64 * _MIB, dtype=torch.uint8, device=run.device)
    accelerator.empty_cache()
    same("a live tensor", live, torch.arange(1000))
    same("a view", view, torch.arange(500, 1000))
    reserved, allocated = accelerator.memory_reserved(), accelerator.memory_allocated()
    require(reserved >= allocated, f"{reserved} bytes reserved, {allocated} allocated")


@contract(no_cpu=_NO_CPU, needs=("torch.accelerator.get_memory_info",))
def memory_info_is_plausible(run: Run) -> None:
    """get_memory_info() is (free, total) in bytes."""
    free, total = _accelerator(run).get_memory_info(run.device)
    require(0 <= free <= total and total > 0, f"get_memory_info() is {(free, total)}")


@contract(no_cpu=_NO_CPU, needs=("torch.accelerator.get_device_capability",))
def capability_names_dtypes(run: Run) -> None:
    """get_device_capability() names the dtypes that the device supports, float32 among them."""
    require(torch.float32 in _capable(run), "float32 is not among them")


def _capable(run: Run) -> list[torch.dtype]:
    found = _accelerator(run).get_device_capability(run.device)
    dtypes = found.get("supported_dtypes")
    require(isinstance(dtypes, (set, frozenset, list)) and bool(dtypes), f"it is {found!r}")
    return sorted((one for one in dtypes if "torch.q" not in str(one)), key=str)


@contract(no_cpu=_NO_CPU, needs=("torch.accelerator.get_device_capability",))
def dtypes_that_it_names_can_be_made(run: Run) -> None:
    """Of each dtype that get_device_capability() names, a tensor can be made."""
    refused = []
    for dtype in _capable(run):
        try:
            made = torch.empty(2, dtype=dtype, device=run.device).dtype
        except RuntimeError:
            refused.append(dtype)
        else:
            same(f"dtype of a tensor of {dtype}", made, dtype)
    require(not refused, f"no tensor can be made of {', '.join(map(str, refused))}")


@contract(no_cpu=_NO_CPU, two_devices=True)
def synchronize_waits_for_the_device_named(run: Run) -> None:
    """After synchronize(device), what was recorded there is complete, whichever is current."""
    accelerator = _accelerator(run)
    for device in (run.device, other_device(run)):
        stream = torch.Stream(device)
        for round_ in range(30):
            event = stream.record_event()
            accelerator.synchronize(device)
            same(f"query() of an event of {device}, round {round_}", event.query(), True)


@contract(no_cpu=_NO_CPU)
def synchronize_completes_every_stream(run: Run) -> None:
    """After synchronize(), events in all streams of the current device are complete."""
    accelerator = _accelerator(run)
    streams = [torch.Stream(run.device) for _ in range(4)]
    for round_ in range(10):
        events = [stream.record_event() for stream in streams]
        accelerator.synchronize()
        answers = [event.query() for event in events]
        same(f"query() in round {round_}", answers, [True] * len(streams))


@contract(no_cpu=_NO_CPU, two_devices=True, needs=("torch._C._accelerator_hooks_exchange_device",))
def hooks_speak_of_the_current_device(run: Run) -> None:
    """Torch's own hooks set and exchange the current device, and return the one before."""
    accelerator, second = _accelerator(run), other_device(run)
    ways = {
        name: getattr(torch._C, name)
        for name in (
            "_accelerator_hooks_exchange_device",
            "_accelerator_hooks_maybe_exchange_device",
            "_accelerator_exchangeDevice",
        )
        if hasattr(torch._C, name)
    }
    before = accelerator.current_device_index()
    try:
        for name, exchange in ways.items():
            for index in (second.index, before):
                was = accelerator.current_device_index()
                same(f"what {name}({index}) returns", exchange(index), was)
                same(f"current device after {name}({index})", _hooks_current(), index)
                same("current_device_index()", accelerator.current_device_index(), index)
        torch._C._accelerator_hooks_set_current_device(second.index)
        same("current_device_index()", accelerator.current_device_index(), second.index)
    finally:
        accelerator.set_device_index(before)


def _hooks_current() -> int:
    return int(torch._C._accelerator_hooks_get_current_device())
