# SPDX-License-Identifier: BSD-3-Clause
"""Poisoning: fills freed or fresh device memory, so that reading it is noticed.

>>> with use_mode("fresh"):
...     torch.empty(2, dtype=torch.uint8, device="npusim")
tensor([208, 208], device='npusim:0', dtype=torch.uint8)
"""

from collections.abc import Iterator
from contextlib import contextmanager

from torch_npusim import _C

__all__ = ["mode", "set_mode", "use_mode"]


def mode() -> str:
    """Returns which memory is filled: "off", "freed", "fresh" or "all"."""
    return _C.get_poison()


def set_mode(mode: str) -> None:
    """Sets which memory is filled; at first NPUSIM_POISON says.

    Raises:
        ValueError: Unless `mode` is "off", "freed", "fresh" or "all".
    """
    _C.set_poison(mode)


@contextmanager
def use_mode(mode: str) -> Iterator[None]:
    """Sets the mode for a `with` block."""
    before = _C.get_poison()
    set_mode(mode)
    try:
        yield
    finally:
        set_mode(before)
