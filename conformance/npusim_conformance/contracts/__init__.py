# SPDX-License-Identifier: BSD-3-Clause
"""Contracts: duties of a device that concern no operator.

A file of this folder is a group, and its decorated functions are the group's contracts:
`wait_orders_work` of stream.py is the case `contract:stream/wait_orders_work`. A contract takes the
Run, states its fact in the first line of its docstring and raises where the fact does not hold.
"""

import importlib
import pkgutil
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from npusim_conformance.backend.device import DeviceUnderTest
from npusim_conformance.inputs.variation import is_half_complex
from npusim_conformance.properties.base import Run
from npusim_conformance.verdict import Mismatch, NotApplicable

Check = Callable[[Run], None]

# How torch's base classes say that a backend leaves a part out. That part is optional.
LEFT_OUT = re.compile(
    r"Backend doesn't support|is not a DeviceAllocator|implement `\w+` at the same time"
    r"|not implemented for this allocator yet"
)


@dataclass(frozen=True)
class Contract:
    """One contract, and what must be there before it means anything."""

    group: str
    name: str
    check: Check
    quick: bool  # part of the smoke profile
    no_cpu: str  # why it says nothing about the CPU, or empty
    two_devices: bool
    needs: tuple[str, ...]

    @property
    def fact(self) -> str:
        """The assertion, in one line."""
        return (self.check.__doc__ or "").strip().splitlines()[0]

    def why_not(self, under_test: DeviceUnderTest) -> str:
        """Why it does not concern this device, or nothing."""
        if under_test.is_cpu and self.no_cpu:
            return self.no_cpu
        if self.two_devices and under_test.second is None:
            return "there is one device only"
        # For the CPU, torch itself has the parts that a backend's module has for its device.
        needs = [name for name in self.needs if "." in name or not under_test.is_cpu]
        missing = [name for name in needs if not _is_there(under_test, name)]
        return f"there is no {full_name(under_test, missing[0])}" if missing else ""


_contracts: dict[str, Contract] = {}


def contract(
    *,
    quick: bool = True,
    no_cpu: str = "",
    two_devices: bool = False,
    needs: tuple[str, ...] = (),
) -> Callable[[Check], Check]:
    """Registers a function as a contract of the group that its file is named after.

    `needs` are optional parts of a backend: attributes of the device's module, or full names that
    start with "torch.". Where one is missing the contract is n/a. Raises ValueError for a name that
    another group uses, since `--props` chooses by name.
    """

    def register(check: Check) -> Check:
        name = check.__name__
        group = check.__module__.rpartition(".")[2]
        if name in _contracts:
            raise ValueError(
                f"{group}/{name}: {_contracts[name].group} has a contract of this name"
            )
        _contracts[name] = Contract(group, name, check, quick, no_cpu, two_devices, needs)
        return check

    return register


@cache
def contracts() -> dict[str, Contract]:
    """All contracts by name, group after group."""
    for module in sorted(pkgutil.iter_modules(__path__), key=lambda module: module.name):
        importlib.import_module(f"{__name__}.{module.name}")
    return dict(_contracts)


def full_name(under_test: DeviceUnderTest, name: str) -> str:
    """An attribute of the device's module as a user would write it."""
    return name if name.startswith("torch.") else f"torch.{under_test.device.type}.{name}"


def _is_there(under_test: DeviceUnderTest, name: str) -> bool:
    found: Any = torch
    for part in full_name(under_test, name).split(".")[1:]:
        found = getattr(found, part, None)
        if found is None:
            return False
    return True


def same(what: str, got: Any, expected: Any) -> None:
    """Raises Mismatch unless two values, or tensors wherever they lie, are equal."""
    if isinstance(expected, torch.Tensor) and isinstance(got, torch.Tensor):
        if got.dtype != expected.dtype or got.shape != expected.shape:
            raise Mismatch(
                f"{what}: {got.dtype} {tuple(got.shape)}, "
                f"expected {expected.dtype} {tuple(expected.shape)}"
            )
        one, other = got.detach().cpu(), expected.detach().cpu()
        if is_half_complex(one.dtype):  # which torch.equal() does not know
            one, other = one.to(torch.complex64), other.to(torch.complex64)
        if not torch.equal(one, other):
            raise Mismatch(_from_the_first_difference(what, one.flatten(), other.flatten()))
    elif type(got) is not type(expected) or got != expected:
        raise Mismatch(f"{what}: {got!r}, expected {expected!r}")


def _from_the_first_difference(what: str, got: torch.Tensor, expected: torch.Tensor) -> str:
    first = int((got != expected).nonzero()[0])
    start = first if first >= 8 else 0
    more = " ..." if got.numel() > start + 8 else ""
    one, other = (f"{values[start : start + 8].tolist()}{more}" for values in (got, expected))
    return f"{what}{f' from element {start}' if start else ''}: {one}, expected {other}"


def refuses(
    what: str,
    call: Callable[[], object],
    errors: type[BaseException] | tuple[type[BaseException], ...] = RuntimeError,
    words: tuple[str, ...] = (),
) -> None:
    """Raises Mismatch unless `call` raises one of `errors`, with one of `words` in its text."""
    expected = errors if isinstance(errors, tuple) else (errors,)
    names = " or ".join(kind.__name__ for kind in expected)
    try:
        call()
    except expected as error:
        if words and not any(word in str(error).lower() for word in words):
            raise Mismatch(
                f"{what} raised {type(error).__name__}({str(error)[:120]!r}), "
                f"which speaks of none of {', '.join(words)}"
            ) from error
        return
    except Exception as error:
        raise Mismatch(
            f"{what} raised {type(error).__name__}({str(error)[:120]!r}), expected {names}"
        ) from error
    raise Mismatch(f"{what} raised nothing, expected {names}")


def on(device: torch.device, *values: float) -> torch.Tensor:
    """A float32 tensor of these values, made on the CPU and copied."""
    return torch.tensor(values, dtype=torch.float32).to(device)


def in_thread(work: Callable[[], Any]) -> Any:
    """The result of a call in a thread of its own. Raises what the call raises."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result()


def other_device(run: Run) -> torch.device:
    """The second device; NotApplicable where there is none."""
    if run.under_test.second is None:
        raise NotApplicable("there is one device only")
    return run.under_test.second
