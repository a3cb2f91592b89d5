# SPDX-License-Identifier: BSD-3-Clause
"""How a defect is described, and how it takes the place of what is right. README.md has the format.

A defect is a function under one of three decorators: `function` stands in for an operator in all
its forms, `kernel` for one overload, `interface` changes Python objects.
"""

import ctypes
import gc
import threading
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from math import nan
from typing import Any

import torch

Stand = Callable[..., Any]

PYTORCH = "https://github.com/pytorch/pytorch/issues/"
XPU = "https://github.com/intel/torch-xpu-ops/issues/"

# Overloads that a defective kernel computed on the CPU.
fallbacks: Counter[str] = Counter()

_library = torch.library.Library("aten", "IMPL")
_inside = threading.local()  # a stand-in calls its own; what that calls in turn is left alone


@dataclass(frozen=True)
class Defect:
    """One defect. `touches`: globs of what may show it, as for the kit's `--ops`."""

    name: str
    group: str  # "linked", "own" or "blind"
    says: str  # what is wrong, in one sentence
    link: str  # to the report of the same bug in a real backend, or empty
    touches: tuple[str, ...]
    shows: Callable[[str], Any]  # gives another outcome on the broken device than on the whole one
    plant: Callable[[], None]
    catches: tuple[str, ...] = ()  # globs on cases: these find it, and no other does


DEFECTS: dict[str, Defect] = {}


def function(operator: str, overload: str = "", **told: Any) -> Callable[[Stand], None]:
    """Stands in for `operator`, its in-place form and its out= form.

    The decorated function gets `own`, the right operator, then the operator's arguments, and
    returns the result; where it lands is seen to here.
    """

    def register(defective: Stand) -> None:
        def plant() -> None:
            dot = f".{overload}" if overload else ""
            stand_in(operator + dot, defective)
            forms = (f"{operator}_{dot}", f"{operator}.{overload}_out", f"{operator}.out")
            for form in dict.fromkeys(forms):
                if torch._C._dispatch_has_kernel(f"aten::{form}"):
                    stand_in(form, _landing(defective, operator + dot))

        _register(defective, plant, told, operator)

    return register


def kernel(overload: str, **told: Any) -> Callable[[Stand], None]:
    """Stands in for one overload, as "add_.Tensor"; see function()."""

    def register(defective: Stand) -> None:
        def plant() -> None:
            stand_in(overload, defective)

        _register(defective, plant, told, overload.split(".")[0].rstrip("_"))

    return register


def interface(**told: Any) -> Callable[[Callable[[], None]], None]:
    """The decorated function takes nothing and changes Python objects; `touches` must be given."""

    def register(plant: Callable[[], None]) -> None:
        _register(plant, plant, told, "")

    return register


def replace(kind: type, name: str, value: Any) -> None:
    """Sets an attribute of a class that is written in C, and so does not let itself be changed."""
    (members,) = (found for found in gc.get_referents(kind.__dict__) if isinstance(found, dict))
    members[name] = value
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(kind))


def vector(device: str, *values: float) -> torch.Tensor:
    """A float32 tensor on a device."""
    return torch.tensor(values or (1.0, 2.0, nan, -3.0), dtype=torch.float32).to(device)


def grid(device: str, rows: int = 2, columns: int = 3) -> torch.Tensor:
    """0, 1, 2 ... as float32, in rows."""
    return torch.arange(float(rows * columns)).view(rows, columns).to(device)


def as_it_lies(tensor: torch.Tensor) -> torch.Tensor:
    """The memory of a tensor read in its order, as if it were contiguous."""
    strides = torch.empty(tensor.shape, device="meta").stride()
    room = tensor.untyped_storage().nbytes() // tensor.itemsize - tensor.storage_offset()
    if tensor.is_contiguous() or room < tensor.numel():
        return tensor
    return tensor.as_strided(tensor.shape, strides, tensor.storage_offset())


def at_start(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor without its storage offset."""
    return tensor.as_strided(tensor.shape, tensor.stride(), 0)


def _register(defective: Stand, plant: Callable[[], None], told: dict[str, Any], own: str) -> None:
    name = defective.__name__
    if name in DEFECTS:
        raise ValueError(f"two defects are called {name}")
    touches = told.get("touches", own)
    DEFECTS[name] = Defect(
        name,
        defective.__module__.rpartition(".")[2].partition("_")[0],
        " ".join((defective.__doc__ or "").split()),
        told.get("link", ""),
        (touches,) if isinstance(touches, str) else tuple(touches),
        told["shows"],
        plant,
        tuple(told.get("catches", ())),
    )


def stand_in(overload: str, defective: Stand) -> None:
    """Puts a function of `own` and the arguments in the place of the device's kernel."""
    original = torch.library.get_kernel(f"aten::{overload}", "PrivateUse1")

    def called(keys: torch.DispatchKeySet, *args: Any, **kwargs: Any) -> Any:
        def own(*args: Any, **kwargs: Any) -> Any:
            return original.call_boxed(keys, *args, **kwargs)

        if getattr(_inside, "it", False):
            return own(*args, **kwargs)
        _inside.it = True
        try:
            return defective(own, *args, **kwargs)
        finally:
            _inside.it = False

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there was a kernel before
        _library.impl(overload, called, "PrivateUse1", with_keyset=True)


def _landing(defective: Stand, functional: str) -> Stand:
    """The in-place or out= form of a defect: its result, cast and copied to where it belongs."""
    name, _, overload = functional.partition(".")

    def right(*args: Any, **kwargs: Any) -> Any:
        return getattr(getattr(torch.ops.aten, name), overload or "default")(*args, **kwargs)

    def lands(own: Stand, *args: Any, **kwargs: Any) -> Any:
        target = kwargs.pop("out", None)
        if target is None:
            result = defective(right, *args, **kwargs)
            return args[0].copy_(result)
        own(*args, **kwargs, out=target)  # refuses, resizes and warns as the device does
        return target.copy_(defective(right, *args, **kwargs))

    return lands
