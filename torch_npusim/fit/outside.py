# SPDX-License-Identifier: BSD-3-Clause
"""Memory of a device that the allocator of a dry run does not see, from specs/outside.toml."""

import functools
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

from torch_npusim.fit.result import NOT_IN_RUN, Outside
from torch_npusim.sim import specs
from torch_npusim_common.byte_sizes import parse_bytes

_ROUNDED = 15 << 20  # three numbers, each to 0.01 GiB
CONTEXT, COMMUNICATORS, GIVEN = "context of the driver", "communicators of NCCL", "as given"
WORKSPACES = "workspaces of convolutions"


@functools.cache
def table() -> dict[str, Any]:
    """Returns specs/outside.toml."""
    with (specs.FOLDER.parent / "outside.toml").open("rb") as file:
        return tomllib.load(file)


def context(spec: str | None) -> Outside | None:
    """Returns the context of a process; None where none was seen for its compute capability.

    Args:
        spec: Name of a specification; None: that of this process.
    """
    chip = specs.chosen if spec is None else None if spec in specs.BUILT_IN else specs.load(spec)
    for row in table()["context"] if chip is not None else ():
        if chip is not None and list(chip.capability) in row["capability"]:
            sizes = [int((used - own - kept) * (1 << 30)) for used, own, kept, _ in row["seen"]]
            return Outside(CONTEXT, min(sizes) - _ROUNDED, max(sizes) + _ROUNDED)
    return None


def chips_with(need: int) -> list[tuple[int, str]]:
    """Returns capacity and name of the chips that hold so many bytes beside a context, in order."""
    known = [specs.load(name) for name in specs.names() if name not in specs.BUILT_IN]
    sizes = [(int(spec.numbers["memory.capacity_gib"] * (1 << 30)), spec.name) for spec in known]
    return sorted(
        (size, name) for size, name in sizes if size >= need + getattr(context(name), "high", 0)
    )


def communicators(ranks: Sequence[int]) -> Outside | None:
    """Returns the buffers of communicators, from the number of ranks of each; None of none."""
    count = sum(1 for size in ranks if size > 1)
    sizes = [mib << 20 for mib, _ in table()["communicator"]["seen"]]
    if not count:
        return None
    return Outside(f"{COMMUNICATORS} ({count})", count * min(sizes), count * max(sizes))


def convolutions(peak: int, largest: Mapping[str, float]) -> Outside | None:
    """Returns the workspaces of cuDNN that a run may lack; None without convolutions.

    Args:
        peak: Bytes that the run reserved.
        largest: Precision of convolutions, a name of timeline.PRECISIONS -> bytes that the largest
            moves.
    """
    seen = [
        (measured / predicted - 1, (measured - predicted) / moved)
        for row in table()["convolution"]
        if largest.keys() & set(row["precision"])
        for measured, predicted, moved, _ in row["seen"]
    ]
    if not seen:
        return None
    share, multiple = map(max, zip(*seen, strict=True))
    high = min(share * peak, multiple * max(largest.values()))
    return Outside(WORKSPACES, 0, int(high), NOT_IN_RUN)


def asked(text: str, spec: str | None) -> tuple[int, Outside | None]:
    """Returns the bytes that a run leaves to others, and what is known of them before it.

    Args:
        text: "low" or "high" end of the context, or a number of bytes.
        spec: As for context().

    Raises:
        ValueError: If it is none of these.
    """
    if text not in ("low", "high"):
        size = parse_bytes(text)
        return size, Outside(GIVEN, size, size)
    known = context(spec)
    return getattr(known, text, 0), known
