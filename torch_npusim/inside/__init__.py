# SPDX-License-Identifier: BSD-3-Clause
"""Instruments that show the inside of PyTorch: the path of a call, a graph, a storage, a leak.

    from torch_npusim import inside

    print(inside.dispatch(torch.add, x, 1))   # each call of the dispatcher, and its kernels
    print(inside.graph(loss))                 # the autograd graph, and what it keeps
    print(inside.memory(x, x.t()))            # a storage and the views on it

Each instrument takes tensors of any device, returns a report with fields, prints as text of at most
100 columns, and writes a page: `report.save("report.html")`. An instrument is imported when it is
first used.

Code enters if it shows a mechanism of PyTorch to a person, on any device.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch_npusim.inside._compile import compile
    from torch_npusim.inside._dispatch import dispatch
    from torch_npusim.inside._graph import graph, retained
    from torch_npusim.inside._leak import leak
    from torch_npusim.inside._memory import memory
    from torch_npusim.inside._registration import registration
    from torch_npusim.inside._timeline import timeline
    from torch_npusim.inside._why import why

_HOMES = {
    "compile": "_compile",
    "dispatch": "_dispatch",
    "graph": "_graph",
    "leak": "_leak",
    "memory": "_memory",
    "registration": "_registration",
    "retained": "_graph",
    "timeline": "_timeline",
    "why": "_why",
}
__all__ = [
    "compile", "dispatch", "graph", "leak", "memory", "registration", "retained",
    "timeline", "why",
]  # fmt: skip


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    """Imports an instrument when it is asked for."""
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
