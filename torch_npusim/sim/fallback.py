# SPDX-License-Identifier: BSD-3-Clause
"""Which operators have no kernel of their own and ran a CPU kernel on the device's bytes.

Such operators are right, but cost more time per call and wait for the device.

    >>> reset()
    >>> x = torch.ones(3, device="npusim").logcumsumexp(0)
    >>> counts()["aten::_logcumsumexp"]
    1
"""

from collections.abc import Iterator
from contextlib import contextmanager

from torch_npusim import _C

__all__ = ["copied_results", "counts", "policy", "reset", "set_policy", "use_policy"]


def counts() -> dict[str, int]:
    """Returns the number of calls by operator, for example {"aten::cumsum": 3}."""
    return _C.fallback_counts()


def copied_results() -> dict[str, int]:
    """Returns the calls by operator whose results were made on the host and had to be copied."""
    return _C.copied_result_counts()


def reset() -> None:
    """Sets all counts to 0."""
    _C.reset_fallback_counts()


def policy() -> str:
    """Returns what a fallback does: "silent", "warn" (once per operator) or "error"."""
    return _C.get_fallback_mode()


def set_policy(policy: str) -> None:
    """Sets what a fallback does; at first NPUSIM_FALLBACK says.

    Raises:
        ValueError: Unless `policy` is "silent", "warn" or "error".
    """
    _C.set_fallback_mode(policy)


@contextmanager
def use_policy(policy: str) -> Iterator[None]:
    """Sets the policy for a `with` block."""
    before = _C.get_fallback_mode()
    set_policy(policy)
    try:
        yield
    finally:
        set_policy(before)
