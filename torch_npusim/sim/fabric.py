# SPDX-License-Identifier: BSD-3-Clause
"""The links between the devices of several ranks, and the duration of communication on them.

    >>> from torch_npusim.sim import fabric
    >>> fabric.names()
    ['ascend-910b', 'dgx-a100', 'dgx-h100', 'ethernet-cluster', 'pcie-box']
    >>> best = fabric.routes("dgx-h100", "all_reduce", ranks=8, size=1 << 30)[0]
    >>> best.algorithm, best.protocol
    ('nvls', 'Simple')

The model is that of backend/fabric.h; specs/fabrics/ and specs/collectives.toml have the numbers
with their sources. docs/reference/fabrics.md compares it with published times.
"""

import functools
import tomllib
from dataclasses import dataclass
from importlib import resources
from typing import Any, NamedTuple

from torch_npusim import _C

__all__ = [
    "OPERATIONS",
    "Interval",
    "Route",
    "Send",
    "describe",
    "interval",
    "names",
    "ring",
    "routes",
    "use",
    "values",
]

_FEW = 20  # fewer published times promise nothing

#: What routes() takes.
OPERATIONS = (
    "all_reduce",
    "broadcast",
    "reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "gather",
    "scatter",
    "transfer",
)


@dataclass(frozen=True)
class Route:
    """One way of doing an operation.

    Attributes:
        algorithm: "ring", "tree", "nvls" (in the switch) or "direct".
        protocol: "LL", "LL128" or "Simple".
        microseconds: From when the last rank is ready until all are done.
        bus_bandwidth: In GB/s, as nccl-tests counts it.
    """

    algorithm: str
    protocol: str
    microseconds: float
    bus_bandwidth: float


@dataclass(frozen=True)
class Send:
    """One message of a ring.

    Attributes:
        sender: Rank.
        receiver: The next one.
        chunk: Which part of the tensor it is; there are as many as ranks.
        adds: Whether the receiver adds it to its own; else it takes its place.
    """

    sender: int
    receiver: int
    chunk: int
    adds: bool


def ring(ranks: int) -> list[list[Send]]:
    """Returns what a ring sends in an all-reduce, step by step.

    In the first `ranks - 1` steps sums grow on their way round, until each rank has the whole sum
    of one chunk; in as many more these go round.

    Args:
        ranks: That take part.
    """
    return [
        [
            Send(rank, (rank + 1) % ranks, (rank - step + (0 if adds else 1)) % ranks, adds)
            for rank in range(ranks)
        ]
        for adds in (True, False)
        for step in range(ranks - 1)
    ]


@functools.cache
def _names() -> tuple[str, ...]:
    files = resources.files("torch_npusim") / "specs" / "fabrics"
    found = (file.name for file in files.iterdir())
    return tuple(sorted(n.removesuffix(".toml") for n in found if n.endswith(".toml")))


def names() -> list[str]:
    """Returns the names of the fabrics that are known."""
    return list(_names())


@functools.cache
def _read(name: str) -> dict[str, Any]:
    if name not in names():
        raise ValueError(f"there is no fabric {name!r}; known are {', '.join(names())}")
    specs = resources.files("torch_npusim") / "specs"
    return tomllib.loads((specs / "fabrics" / f"{name}.toml").read_text()) | tomllib.loads(
        (specs / "collectives.toml").read_text()
    )


def values(name: str) -> dict[str, Any]:
    """Returns the numbers of a fabric, as files of specs/ have them: GB/s, us and bytes.

    Raises:
        ValueError: If there is none of that name.
    """
    read = _read(name)
    return {"name": name, **read["collectives"], **read["fabric"]}


def describe(name: str) -> str:
    """Returns one line that says what a fabric is.

    Raises:
        ValueError: If there is none of that name.
    """
    return str(_read(name)["description"])


class Interval(NamedTuple):
    """Factors of a modelled time between which published times lie.

    Attributes:
        low: (1 without a published time)
        high: (1 without a published time)
        times: Number of published times.
        is_promised: Whether nine of ten are within; else the largest error is.
    """

    low: float
    high: float
    times: int
    is_promised: bool


def interval(name: str) -> Interval:
    """Returns the interval of the times on a fabric.

    The errors are of times that were left out of the fit with their machine, and of blind ones
    (docs/reference/fabrics.md): at least nine of ten of both, or of few the largest, which
    promises nothing.

    Raises:
        ValueError: If there is no fabric of that name.
    """
    errors = _read(name).get("errors", {"factor": 1.0, "rows": 0})
    factor, times = float(errors["factor"]), int(errors["rows"])
    return Interval(1 / factor, factor, times, times >= _FEW)


def use(name: str) -> None:
    """Makes the collectives of this process take what they take on a fabric; all ranks do so.

    Raises:
        ValueError: If there is none of that name.
    """
    _C.set_fabric(values(name))


def routes(
    name: str,
    operation: str,
    *,
    ranks: int,
    size: float,
    sharing: float = 1,
    per_node: int | None = None,
    changed: dict[str, Any] | None = None,
) -> list[Route]:
    """Returns the ways of doing an operation, the cheapest first.

    Args:
        name: Of the fabric.
        operation: One of OPERATIONS.
        ranks: That take part.
        size: In bytes, as nccl-tests counts: the larger of one rank's input and output.
        sharing: So many groups use the links at a time, or so much less bandwidth do links have.
        per_node: Ranks on each node; default: they fill one node after the other.
        changed: Numbers that take the place of those of values().

    A transfer is one of many: each rank sends to the next, and the slowest of these is told.

    Raises:
        ValueError: For an unknown name or operation, or more ranks on a node than it has.
    """
    numbers = values(name) | (changed or {})
    room = int(numbers["ranks_per_node"])
    there = room if per_node is None else per_node
    if not 1 <= there <= room:
        raise ValueError(f"a node of {name} has 1 to {room} ranks, got {there}")
    group = [rank // there * room + rank % there for rank in range(ranks)]
    taking = group
    if operation == "transfer" and ranks > 1:
        sender = there - 1 if ranks > there else 0
        taking = group[sender : sender + 2]
    factor = _C.bus_factor(operation, ranks)
    found = _C.fabric_routes(numbers, operation, taking, float(size), float(sharing), group)
    return [
        Route(algorithm, protocol, ns / 1e3, factor * size / ns if ns else 0.0)
        for algorithm, protocol, ns in found
    ]
