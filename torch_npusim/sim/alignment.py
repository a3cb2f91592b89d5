# SPDX-License-Identifier: BSD-3-Clause
"""Strict alignment: what happens to operands whose first element is not on a 32-byte boundary.

Storages always start on such a boundary; a view like x[1:] need not, and some chips refuse it.

    >>> x = torch.ones(9, device="npusim")
    >>> with use_mode("error"):
    ...     y = x[8:] + 1  # 32 bytes from the start
    ...     z = x[1:] + 1
    Traceback (most recent call last):
        ...
    RuntimeError: aten::add.Tensor: an operand of shape [8] and dtype float starts at ...
"""

from collections.abc import Iterator
from contextlib import contextmanager

from torch_npusim import _C

__all__ = ["BOUNDARY_BYTES", "mode", "realigned_operands", "set_mode", "use_mode"]

BOUNDARY_BYTES = 32


def mode() -> str:
    """Returns "off", "error" (refuse) or "copy" (make an aligned copy and count)."""
    return _C.get_strict_align()


def set_mode(mode: str) -> None:
    """Sets what happens; at first NPUSIM_STRICT_ALIGN says.

    Raises:
        ValueError: Unless `mode` is "off", "error" or "copy".
    """
    _C.set_strict_align(mode)


@contextmanager
def use_mode(mode: str) -> Iterator[None]:
    """Sets the mode for a `with` block."""
    before = _C.get_strict_align()
    set_mode(mode)
    try:
        yield
    finally:
        set_mode(before)


def realigned_operands() -> int:
    """Returns the number of operands copied since the process started."""
    return _C.realigned_count()
