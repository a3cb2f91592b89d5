# SPDX-License-Identifier: BSD-3-Clause
"""The device under test: how it is loaded, and what the kit asks of its module.

Nothing but the names of torch.<device> modules that every backend has is assumed; what is missing
makes properties n/a, with the missing name as reason.
"""

import importlib
import locale
import os
import random
import signal
import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy
import torch

from npusim_conformance.backend.expectations import Expectations

CPU = torch.device("cpu")


class DeviceUnusable(RuntimeError):
    """The device cannot be tested at all; the message says what was tried."""


def load(import_name: str) -> None:
    """Imports a backend, where one is named. Raises DeviceUnusable."""
    if not import_name:
        return
    try:
        importlib.import_module(import_name)
    except (Exception, SystemExit) as error:
        raise DeviceUnusable(
            f"importing {import_name!r} failed: {type(error).__name__}: {error}"
        ) from error


def _settings() -> dict[str, Any]:
    """Settings of a process that are none of a backend's business."""
    ends = (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD, signal.SIGABRT, signal.SIGPIPE)
    return {
        "the CPU's generator": torch.default_generator.get_state().numpy().tobytes(),
        "Python's generator": random.getstate(),
        "NumPy's generator": [str(part) for part in numpy.random.get_state()],
        "the default dtype": torch.get_default_dtype(),
        "the default device": torch.get_default_device(),
        "whether gradients are recorded": torch.is_grad_enabled(),
        "whether algorithms are deterministic": torch.are_deterministic_algorithms_enabled(),
        "the precision of products": torch.get_float32_matmul_precision(),
        "the number of threads": torch.get_num_threads(),
        "the handlers of signals": [signal.getsignal(end) for end in ends],
        "sys.excepthook": sys.excepthook,
        "the directory": os.getcwd(),
        "the filters of warnings": list(warnings.filters),
        "whether subnormal numbers are zero": (torch.full((), 1e-39) * 1).item() == 0,
        "the locale": locale.setlocale(locale.LC_ALL),
    }


class DeviceUnderTest:
    """A loaded backend. `device` is its first device, `second` another one or None."""

    def __init__(self, name: str, import_name: str, expectations: Expectations) -> None:
        self.name = name
        self.import_name = import_name
        self.expectations = expectations
        before = _settings()
        load(import_name)
        now = _settings()
        self.changed_by_import = [name for name, value in before.items() if now[name] != value]
        try:
            kind = torch.device(name).type
        except RuntimeError as error:
            raise DeviceUnusable(
                f"torch knows no device {name!r}. If a package registers it, name that package "
                f"with --import. ({str(error).splitlines()[0]})"
            ) from error
        self.is_cpu = kind == "cpu"
        self.module: Any = torch.cpu if self.is_cpu else getattr(torch, kind, None)
        count = 1 if self.is_cpu else self._count(kind)
        first = torch.device(name).index or 0
        self.device = CPU if self.is_cpu else torch.device(kind, first)
        others = [index for index in range(count) if index != first]
        self.second = torch.device(kind, others[0]) if others else None
        self._probe()
        self._fallback_hook = _resolve(expectations.fallback_hook)
        self._allocated_hook = _resolve(expectations.allocated_hook)

    def _count(self, kind: str) -> int:
        if self.module is None:
            raise DeviceUnusable(
                f"there is no module torch.{kind}; the backend must register one with "
                "torch._register_device_module()"
            )
        try:
            counting = getattr(self.module, "device_count", None)
            count = counting() if counting is not None else torch.accelerator.device_count()
        except Exception as error:
            raise DeviceUnusable(
                f"torch.{kind}.device_count() failed: {type(error).__name__}: {error}"
            ) from error
        if count < 1:
            raise DeviceUnusable(f"torch.{kind}.device_count() is {count}; no device to test")
        return int(count)

    def _probe(self) -> None:
        try:
            there = torch.zeros(2).to(self.device)
            if there.cpu().tolist() != [0.0, 0.0]:
                raise RuntimeError(f"zeros came back as {there.cpu().tolist()}")
        except Exception as error:
            raise DeviceUnusable(
                f"two zeros could not be copied to {self.device} and back: "
                f"{type(error).__name__}: {str(error).splitlines()[0]}"
            ) from error

    def synchronize(self) -> None:
        """Waits for the device, where it has anything to wait for."""
        if self.is_accelerator:
            torch.accelerator.synchronize()
            return
        synchronize = getattr(self.module, "synchronize", None)
        if synchronize is not None:
            synchronize()

    @property
    def is_accelerator(self) -> bool:
        """Whether torch.accelerator speaks of this device."""
        current = None if self.is_cpu else torch.accelerator.current_accelerator()
        return current is not None and current.type == self.device.type

    @property
    def statistics(self) -> list[Any]:
        """The modules that answer memory_allocated() and so on: torch.accelerator first.

        torch.accelerator counts if the backend's allocator is a c10::DeviceAllocator.
        """
        if self.is_cpu:
            return []
        found = []
        if self.is_accelerator:
            try:
                if torch.accelerator.memory_stats(self.device):
                    found.append(torch.accelerator)
            except RuntimeError:  # another allocator
                pass
        return [*found, self.module]

    def make_current(self, device: torch.device) -> None:
        """Makes one of its devices the current one, by its index: the form that all backends take.

        Does nothing where the module has no set_device(), and on the CPU.
        """
        set_device = getattr(self.module, "set_device", None)
        if set_device is not None and not self.is_cpu:
            set_device(device.index)

    def seed(self, seed: int) -> None:
        """Seeds the generators of all its devices."""
        if self.is_cpu:
            torch.default_generator.manual_seed(seed)
            return
        seeding = getattr(self.module, "manual_seed_all", None)
        if seeding is not None:
            seeding(seed)

    def has(self, name: str) -> bool:
        """Whether the device's module has this attribute."""
        return self.module is not None and hasattr(self.module, name)

    @property
    def knows_fallbacks(self) -> bool:
        """Whether the backend tells which operators the CPU computed."""
        return self._fallback_hook is not None

    def fallbacks(self) -> Mapping[str, int]:
        """Overload -> calls so far that were computed by the CPU; empty if it is unknown."""
        return dict(self._fallback_hook()) if self._fallback_hook is not None else {}

    def allocated_bytes(self) -> int | None:
        """Bytes of live tensors on the first device, or None where the backend does not say."""
        index = self.device.index
        if self._allocated_hook is not None:
            return int(self._allocated_hook(index))
        asked = [one for one in self.statistics if hasattr(one, "memory_allocated")]
        return int(asked[0].memory_allocated(index)) if asked else None

    def describe(self) -> dict[str, Any]:
        """The facts about the device that a report has."""
        described: dict[str, Any] = {"name": self.name, "type": self.device.type}
        described["count"] = 1 + (self.second is not None)
        for key, name in (("product", "get_device_name"), ("version", "__version__")):
            value = getattr(self.module, name, None)
            if callable(value):
                try:
                    value = value(self.device.index)
                except Exception:
                    value = None
            if isinstance(value, str):
                described[key] = value
        return described


def _resolve(hook: str) -> Callable[..., Any] | None:
    if not hook:
        return None
    module_name, colon, path = hook.partition(":")
    try:
        found: Any = importlib.import_module(module_name)
        for part in path.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise DeviceUnusable(f"hook {hook!r} does not exist: {error}") from error
    if not colon or not callable(found):
        raise DeviceUnusable(f"hook {hook!r}: expected module:function")
    return found  # type: ignore[no-any-return]
