# SPDX-License-Identifier: BSD-3-Clause
"""Graphs: there are none yet, and each name says so. What can be answered truly, is."""

from typing import Any, NoReturn

__all__ = ["graph", "graph_pool_handle", "is_current_stream_capturing", "make_graphed_callables"]

_REMEDY = "npusim does not record graphs; call the function directly, launches cost little here."


def is_current_stream_capturing() -> bool:
    """Returns False: nothing can be captured."""
    return False


class graph:
    """Not supported.

    Raises:
        NotImplementedError: Always.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise NotImplementedError(f"torch.npusim.graph: {_REMEDY}")


def graph_pool_handle() -> NoReturn:
    """Raises NotImplementedError."""
    raise NotImplementedError(f"torch.npusim.graph_pool_handle: {_REMEDY}")


def make_graphed_callables(*args: Any, **kwargs: Any) -> NoReturn:
    """Raises NotImplementedError."""
    raise NotImplementedError(f"torch.npusim.make_graphed_callables: {_REMEDY}")
