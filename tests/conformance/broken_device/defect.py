# SPDX-License-Identifier: BSD-3-Clause
"""How a defect is described, and how it takes a kernel's place."""

import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

Kernel = Callable[..., Any]

# Overloads that a defective kernel computed on the CPU.
fallbacks: Counter[str] = Counter()

_library = torch.library.Library("aten", "IMPL")


@dataclass(frozen=True)
class Defect:
    """`catches`: globs on the kit's cases. These fail, and no other case does."""

    name: str
    catches: tuple[str, ...]
    plant: Callable[[], None]


DEFECTS: dict[str, Defect] = {}


def call(*catches: str) -> Callable[[Callable[[], None]], None]:
    """Registers a function that breaks the device's Python interface."""

    def register(plant: Callable[[], None]) -> None:
        DEFECTS[plant.__name__] = Defect(plant.__name__, catches, plant)

    return register


def kernel(overload: str, *catches: str) -> Callable[[Kernel], None]:
    """Registers a function that stands in for the device's kernel of an overload.

    It gets the device's own kernel as first argument, then the operator's arguments.
    """

    def register(defective: Kernel) -> None:
        def plant() -> None:
            original = torch.library.get_kernel(f"aten::{overload}", "PrivateUse1")

            def stand_in(keys: torch.DispatchKeySet, *args: Any, **kwargs: Any) -> Any:
                def own(*args: Any, **kwargs: Any) -> Any:
                    return original.call_boxed(keys, *args, **kwargs)

                return defective(own, *args, **kwargs)

            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # that there was a kernel before
                _library.impl(overload, stand_in, "PrivateUse1", with_keyset=True)

        DEFECTS[defective.__name__] = Defect(defective.__name__, catches, plant)

    return register
