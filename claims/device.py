# SPDX-License-Identifier: BSD-3-Clause
"""Runs one variant of a claim on one subject and says whether it was stopped, and by what.

A subject catches a wrong variant if the variant raises there, or if a check reports: a host
synchronisation in a step, bytes of the device that stay alive from use to use, or a peak. On npusim
a race raises.
Only npusim has something to check; on the others the program just runs.
"""

import gc
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from claims.claim import Claim, load
from torch_npusim import npusim
from torch_npusim.sim import alignment, poison, synchronisation

SUBJECTS = ("cpu", "meta", "fake", "npusim")

Step = Callable[[], object]


def device_name(claim: Claim, subject: str) -> str:
    """Returns the device that a variant is given.

    Under FakeTensorMode it is npusim as well: a CPU build of torch cannot move modules to a fake
    "cuda" device, so this is the mode at its best.
    """
    if subject in ("cpu", "meta"):
        return subject
    return "npusim" if claim.device_index is None else f"npusim:{claim.device_index}"


def _apply_to_fake(
    self: torch.nn.Module, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True
) -> torch.nn.Module:
    """Module._apply for fake parameters: torch 2.13 fails to swap those with a new device.

    tests/tools/test_claims.py says when torch can do it and this goes.
    """
    for module in self.modules() if recurse else [self]:
        for name, parameter in module._parameters.items():
            if parameter is not None:
                with torch.no_grad():
                    moved = fn(parameter)
                module._parameters[name] = torch.nn.Parameter(moved, parameter.requires_grad)
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = fn(buffer)
    return self


@contextmanager
def _fake() -> Iterator[None]:
    original = torch.nn.Module._apply
    torch.nn.Module._apply = _apply_to_fake  # type: ignore[method-assign]
    try:
        with FakeTensorMode():
            yield
    finally:
        torch.nn.Module._apply = original  # type: ignore[method-assign]


@contextmanager
def _device(claim: Claim) -> Iterator[None]:
    """npusim as the claim wants it, and as it was afterwards."""
    index = claim.device_index or 0
    with ExitStack() as stack:
        stack.enter_context(poison.use_mode(claim.poison))
        stack.enter_context(alignment.use_mode(claim.strict_alignment))
        stack.callback(npusim.set_race_detection, npusim.get_race_detection())
        npusim.set_race_detection("error")
        if claim.device_memory is not None:
            npusim.empty_cache()
            share = claim.device_memory / npusim.mem_get_info(index)[1]
            stack.callback(npusim.set_per_process_memory_fraction, 1.0, index)
            npusim.set_per_process_memory_fraction(share, index)
        yield


def _watch_sync(claim: Claim, step: Step) -> str:
    step()
    level = synchronisation.set_level("strict")  # a pageable copy is a wait, too
    npusim.set_sync_debug_mode("error")
    try:
        step()
    except RuntimeError as error:
        if "synchronizing" not in str(error):
            raise
        operation = str(error).rpartition("(")[2].rstrip(")")
        return f"synchronisation in {operation.removeprefix('aten::').split()[0]}"
    finally:
        npusim.set_sync_debug_mode("default")
        synchronisation.set_level(level)
    return ""


def _bytes_alive(claim: Claim) -> int:
    """Returns the device's bytes, once autograd's thread has let go of what it worked on.

    It still may when backward() returns, and takes up new work only afterwards: here some without
    a byte.
    """
    x = torch.empty(0, device=device_name(claim, "npusim"), requires_grad=True)
    torch.autograd.grad(x * 1, x, torch.empty_like(x))
    return npusim.memory_allocated(claim.device_index)


def _watch_leak(claim: Claim, step: Step) -> str:
    """Python's cyclic collector is off: it runs by the number of objects, not by device bytes."""
    step()
    step()
    before = _bytes_alive(claim)
    for _ in range(4):
        step()
    grown = _bytes_alive(claim) - before
    return f"leak of {grown // 4} bytes per use" if grown > 0 else ""


def _watch_peak(claim: Claim, step: Step) -> str:
    before = _bytes_alive(claim)
    npusim.reset_peak_memory_stats(claim.device_index)
    step()
    peak = npusim.max_memory_allocated(claim.device_index) - before
    return f"peak of {peak / 2**20:.0f} MiB" if peak > claim.peak_bytes else ""


_WATCH = {"sync": _watch_sync, "leak": _watch_leak, "peak": _watch_peak}


def _run(claim: Claim, variant: str, subject: str) -> str:
    step = claim.variants[variant](device_name(claim, subject))
    if claim.check == "raises":
        return ""
    assert step is not None
    if subject == "npusim":
        return _WATCH[claim.check](claim, step)
    step()
    step()
    return ""


def examine(name: str, variant: str, subject: str) -> str:
    """Returns what stopped a variant of a claim on a subject; "" if nothing did."""
    claim = load(name)
    contexts: dict[str, Callable[[], Any]] = {"fake": _fake, "npusim": lambda: _device(claim)}
    torch.manual_seed(0)
    gc.disable()
    try:
        with ExitStack() as stack, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if subject in contexts:
                stack.enter_context(contexts[subject]())
            return _run(claim, variant, subject)
    except Exception as error:
        traceback.clear_frames(error.__traceback__)  # loaders in them end their workers now
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    finally:
        gc.enable()
        if npusim.is_initialized():
            npusim.set_device(0)
