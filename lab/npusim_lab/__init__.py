# SPDX-License-Identifier: BSD-3-Clause
"""The caching allocator of npusim on a simulated device, and its laboratory, without torch.

The allocator is the one that runs behind the npusim device: same code, same placement. A simulated
device is arithmetic only, so its size and its clock are whatever you say::

    device = SimulatedDevice(capacity_bytes=1 << 30)
    allocator = Allocator(device, preset="cuda-2.13", settings="max_split_size_mb:128")
    block = allocator.malloc(5 << 20)
    print(block.placement)  # (which segment, offset in bytes)

The laboratory asks what an allocator would have done with a recorded run (docs/use/lab.md)::

    trace = load("snapshot.pickle")
    print(explain(trace, capacity_bytes=16 << 30)["verdict"])
    rows = compare(trace, parse_choices("cuda-2.13,cuda-2.13,expandable_segments:True"))
"""

import importlib
from typing import TYPE_CHECKING, Any

from npusim_lab._lab import Allocator, Block, OutOfMemoryError, SimulatedDevice, policies

if TYPE_CHECKING:
    from npusim_lab.corpus import generate
    from npusim_lab.execution import compare, search
    from npusim_lab.explanation import explain
    from npusim_lab.files import load, save
    from npusim_lab.html_report import report
    from npusim_lab.planning import Buffers, Placement, plan
    from npusim_lab.plots import plot
    from npusim_lab.recording import record_script
    from npusim_lab.study import Choice, bounds, parse_choices, replay
    from npusim_lab.trace import Op, Trace, TraceBuilder, TraceError

__all__ = [
    "Allocator",
    "Block",
    "Buffers",
    "Choice",
    "Op",
    "OutOfMemoryError",
    "Placement",
    "SimulatedDevice",
    "Trace",
    "TraceBuilder",
    "TraceError",
    "bounds",
    "compare",
    "explain",
    "generate",
    "load",
    "parse_choices",
    "plan",
    "plot",
    "policies",
    "record_script",
    "replay",
    "report",
    "save",
    "search",
]

# Imported when first asked for, so that `npusim-lab --help` need not wait for numpy.
_HOMES = {
    "corpus": ("generate",),
    "execution": ("compare", "search"),
    "explanation": ("explain",),
    "files": ("load", "save"),
    "planning": ("Buffers", "Placement", "plan"),
    "plots": ("plot",),
    "recording": ("record_script",),
    "html_report": ("report",),
    "study": ("Choice", "bounds", "parse_choices", "replay"),
    "trace": ("Op", "Trace", "TraceBuilder", "TraceError"),
}


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            value = getattr(importlib.import_module(f"npusim_lab.{home}"), name)
            globals()[name] = value
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
