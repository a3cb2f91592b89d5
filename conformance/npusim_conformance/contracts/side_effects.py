# SPDX-License-Identifier: BSD-3-Clause
"""Ordinary work leaves as they were: settings, generators, streams, the process's output."""

import gc
import io
import os
import random
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch

from npusim_conformance.backend.device import CPU
from npusim_conformance.contracts import contract, in_thread, other_device, same
from npusim_conformance.contracts.stream import NO_CPU
from npusim_conformance.properties.base import Run, require
from npusim_conformance.verdict import NotApplicable

Calls = dict[str, Callable[[], object]]
_ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD, signal.SIGPIPE, signal.SIGUSR2)


def _calls(device: torch.device) -> Calls:
    """One call of each part of a backend, with what it needs made before; some are refused."""
    one, whole = torch.ones(32, 32).to(device), torch.arange(2048).to(device)
    image, kernel = torch.ones(1, 2, 8, 8).to(device), torch.ones(3, 2, 3, 3).to(device)
    leaf = torch.ones(4).to(device).requires_grad_()
    optimizer = torch.optim.Adam([leaf])
    linear = torch.nn.utils.skip_init(  # type: ignore[no-untyped-call]
        torch.nn.Linear, 2, 2, device=device
    )

    def lowered() -> object:
        with torch.autocast(device.type, torch.bfloat16):
            return one @ one

    def stepped() -> object:
        torch.autograd.backward((leaf * 2).sum())
        return optimizer.step()

    def saved() -> object:
        file = io.BytesIO()
        torch.save(one, file)
        file.seek(0)
        return torch.load(file)

    return {
        "empty()": lambda: torch.empty(3000, device=device),
        "a copy there": lambda: torch.ones(3000).to(device),
        "a copy back": whole.cpu,
        "a copy that converts": lambda: whole.to(torch.float16),
        "a strided copy": one.t().contiguous,
        "item()": lambda: one[1, 1].item(),
        "repr()": lambda: repr(one),
        "add()": lambda: one + one,
        "add_()": lambda: one.add_(0),
        "mm()": lambda: one @ one,
        "addmm()": lambda: torch.addmm(one, one, one),
        "conv2d()": lambda: torch.nn.functional.conv2d(image, kernel),
        "sum()": lambda: one.sum(0),
        "sort()": lambda: whole.sort(descending=True),
        "softmax()": lambda: one.softmax(-1),
        "cumsum()": lambda: one.cumsum(0),
        "an index": lambda: whole[whole > 9],
        "nonzero()": whole.nonzero,
        "max_pool2d()": lambda: torch.nn.functional.max_pool2d(image, 2),
        "batch_norm()": lambda: torch.nn.functional.batch_norm(image, None, None, training=True),
        "linalg.inv()": lambda: torch.linalg.inv(torch.eye(3).to(device)),
        "a product in autocast": lowered,
        "a training step": stepped,
        "save() and load()": saved,
        "pin_memory()": lambda: torch.ones(3000).pin_memory(),
        "a stream": lambda: torch.Stream(device).synchronize(),
        "an event": lambda: torch.Event(device).record(torch.Stream(device)),
        "a generator": lambda: torch.Generator(device).manual_seed(3).get_state(),
        "synchronize()": lambda: torch.accelerator.synchronize(device),
        "empty_cache()": torch.accelerator.empty_cache,
        "memory_stats()": lambda: torch.accelerator.memory_stats(device),
        "a sum of shapes that do not fit": lambda: one + whole,
        "a product of shapes that do not fit": lambda: one @ one[:3],
        "item() of many": one.item,
        "an index out of range": lambda: one[99],
        "gather() out of range": lambda: one.gather(0, torch.full((1, 1), 99).to(device)),
        "a copy that does not fit": lambda: one.copy_(whole),
        "a view of another size": lambda: one.view(7),
        "an integer in place of a fraction": lambda: whole.add_(0.5),
        "an allocation of 1 PiB": lambda: torch.empty(1 << 48, device=device),
        "the inverse of a singular matrix": lambda: torch.linalg.inv(torch.zeros(2, 2).to(device)),
        "load_state_dict() of another shape": lambda: linear.load_state_dict({"weight": whole}),
    }


def _signals() -> list[str]:
    """The signals that this process ignores and catches, as Linux lists them; else nothing."""
    with suppress(OSError):
        lines = Path("/proc/self/status").read_text().splitlines()
        return [line for line in lines if line.startswith(("SigIgn", "SigCgt"))]
    return []


def _settings(devices: list[torch.device]) -> dict[str, Any]:
    """Settings of this thread and of the process that no call of _calls() is asked to change."""
    streams = {
        f"the current stream of {device}": torch.accelerator.current_stream(device).stream_id
        for device in devices
    }
    return streams | {
        "the current device": torch.accelerator.current_device_index(),
        "the CPU's generator": torch.default_generator.get_state().numpy().tobytes(),
        "Python's generator": random.getstate(),
        "the default dtype": torch.get_default_dtype(),
        "the default device": torch.get_default_device(),
        "the recording of gradients": torch.is_grad_enabled(),
        "inference mode": torch.is_inference_mode_enabled(),
        "autocast": torch.is_autocast_enabled(devices[0].type),
        "the determinism of algorithms": torch.are_deterministic_algorithms_enabled(),
        "the precision of products": torch.get_float32_matmul_precision(),
        "the number of threads": torch.get_num_threads(),
        "the handlers of signals": [signal.getsignal(end) for end in _ENDS] + _signals(),
        "the treatment of subnormal numbers": float(
            torch.tensor(1e-310, dtype=torch.float64) * 0.5
        ),
        "the directory": os.getcwd(),
        "sys.excepthook": sys.excepthook,
    }


def _changed(run: Run, device: torch.device) -> list[str]:
    """Which calls change which settings, one sentence each."""
    calls, said = {}, []
    devices = [one for one in (run.device, run.under_test.second) if one is not None]
    with suppress(Exception):  # what the calls need is missing; other contracts tell
        calls = _calls(device)
    if not calls:
        raise NotApplicable("tensors of the kind that the calls take cannot be made")
    for call in _calls(CPU).values():  # torch's own first use of its parts changes some
        with suppress(Exception):
            call()
    before = _settings(devices)
    for name, call in calls.items():
        with suppress(Exception):
            call()
        after = _settings(devices)
        found = [setting for setting, value in before.items() if after[setting] != value]
        if found:
            said.append(f"{name} on {device} changes {' and '.join(found)}")
            before = after
    return said


def _restored(check: Callable[[], None]) -> None:
    """Calls, and takes back what the calls may have changed."""
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    handlers = {end: signal.getsignal(end) for end in _ENDS}
    precision = torch.get_float32_matmul_precision()
    try:
        check()
    finally:
        torch.set_rng_state(state)
        torch.set_num_threads(threads)
        torch.set_float32_matmul_precision(precision)
        torch.set_grad_enabled(True)
        torch.use_deterministic_algorithms(False)
        torch.set_flush_denormal(False)
        for end, handler in handlers.items():
            if handler is not None and signal.getsignal(end) != handler:
                signal.signal(end, handler)


@contract(no_cpu="it is torch's own")
def work_changes_no_setting(run: Run) -> None:
    """Calls, also refused ones, leave generators, modes, current devices, streams and signals."""

    def check() -> None:
        said = _changed(run, run.device)
        if not said and run.under_test.second is not None:
            said = _changed(run, run.under_test.second)
        require(not said, "; ".join(said[:4]))

    _restored(check)


@contextmanager
def _kept(descriptor: int) -> Iterator[list[str]]:
    """Collects writes to a descriptor, also those of C++; the list is filled at the end."""
    said: list[str] = []
    sys.stdout.flush()
    with tempfile.TemporaryFile() as file:
        saved = os.dup(descriptor)
        os.dup2(file.fileno(), descriptor)
        try:
            yield said
        finally:
            sys.stdout.flush()
            os.dup2(saved, descriptor)
            os.close(saved)
            file.seek(0)
            said.append(file.read().decode(errors="replace"))


@contract(no_cpu="it is torch's own")
def work_writes_nothing_to_stdout(run: Run) -> None:
    """Calls, also refused ones, write nothing to the standard output, which is the program's."""

    def check() -> None:
        for name, call in _calls(run.device).items():
            with _kept(1) as said, suppress(Exception):
                call()
            require(not said[0], f"{name} writes {said[0][:80]!r} to the standard output")

    _restored(check)


@contract(no_cpu=NO_CPU)
def threads_begin_with_the_defaults(run: Run) -> None:
    """A new thread begins with the first device and the streams that the first thread began with.

    Another thread's choice of device or stream, made before, is not its own.
    """
    devices = [one for one in (run.device, run.under_test.second) if one is not None]

    def asked() -> tuple[int, list[int]]:
        streams = [torch.accelerator.current_stream(device).stream_id for device in devices]
        return torch.accelerator.current_device_index(), streams

    def chosen() -> None:
        torch.accelerator.set_device_index(devices[-1].index)
        for device in devices:
            torch.accelerator.set_stream(torch.Stream(device))

    fresh = in_thread(asked)
    same("the current device of a new thread", fresh[0], 0)
    in_thread(chosen)
    same("current device and streams of a thread after another's choice", in_thread(asked), fresh)
    before = torch.accelerator.current_device_index()
    streams = [torch.accelerator.current_stream(device) for device in devices]
    try:
        chosen()
        same("current device and streams of a thread after the first's", in_thread(asked), fresh)
    finally:
        for stream in streams:
            torch.accelerator.set_stream(stream)
        torch.accelerator.set_device_index(before)


def _counted() -> dict[str, int]:
    """Open descriptors and threads of this process, as Linux lists them."""
    own = Path("/proc/self")
    if not (own / "fd").is_dir():
        raise NotApplicable("the system does not list descriptors and threads")
    return {
        "descriptors": len(list((own / "fd").iterdir())),
        "threads": len(list((own / "task").iterdir())),
    }


_ROUNDS = 40  # of each call; pools of 32 streams are filled by then


@contract(no_cpu="it is torch's own")
def work_keeps_no_descriptor_and_no_thread(run: Run) -> None:
    """Calls that are repeated keep no file open and no thread alive."""

    def check() -> None:
        cheap = {n: c for n, c in _calls(run.device).items() if "step" not in n and "conv" not in n}
        for name, call in cheap.items():
            for _ in range(_ROUNDS if "stream" in name or "event" in name else 2):
                with suppress(Exception):
                    call()
            before = _counted()
            for _ in range(_ROUNDS // 2):
                with suppress(Exception):
                    call()
            for what, number in _counted().items():
                grown = number - before[what]
                require(
                    grown < _ROUNDS // 4, f"{_ROUNDS // 2} times {name} keep {grown} {what} open"
                )

    _restored(check)


@contract(no_cpu=NO_CPU, two_devices=True)
def dying_objects_leave_the_current_device(run: Run) -> None:
    """Tensors, events, streams and generators of one device die while another one is current."""
    second = other_device(run)
    accelerator = torch.accelerator

    def recorded(device: torch.device) -> torch.Event:
        event = torch.Event(device)
        event.record(torch.Stream(device))
        return event

    makers: dict[str, Callable[[torch.device], object]] = {
        "a tensor": lambda device: torch.ones(3).to(device),
        "a view": lambda device: torch.ones(3).to(device)[1:],
        "an event": recorded,
        "a stream": torch.Stream,
        "a generator": torch.Generator,
        "a pinned tensor": lambda device: torch.ones(3).pin_memory(),
    }
    for device, current in ((run.device, second), (second, run.device)):
        for name, make in makers.items():
            kept: list[object] = []
            with suppress(Exception):
                kept.append(make(device))
            for dies in (kept.clear, partial(in_thread, kept.clear)):
                accelerator.set_device_index(current.index)
                dies()
                gc.collect(0)
                now = accelerator.current_device_index()
                accelerator.set_device_index(run.device.index)
                what = f"current device after {name} of {device} died"
                same(what, now, current.index)
