# SPDX-License-Identifier: BSD-3-Clause
"""The table of torch.npusim.memory_summary(): statistics in, text out."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch_npusim._blame import to_blame
from torch_npusim._frames import FOREIGN
from torch_npusim._text import format_bytes

_SIZES = ["allocated_bytes", "active_bytes", "requested_bytes", "reserved_bytes"]
_SIZES += ["inactive_split_bytes"]
_COUNTS = ["allocation", "active", "segment", "inactive_split"]
_OVERSIZE = ["oversize_allocations", "oversize_segments"]
_TITLES = {
    "allocated_bytes": "Allocated memory",
    "active_bytes": "Active memory",
    "requested_bytes": "Requested memory",
    "reserved_bytes": "Reserved memory",
    "inactive_split_bytes": "Non-releasable memory",
    "allocation": "Allocations",
    "active": "Active blocks",
    "segment": "Segments",
    "inactive_split": "Non-releasable blocks",
    "oversize_allocations": "Oversize allocations",
    "oversize_segments": "Oversize segments",
}
_METRICS = ["current", "peak", "allocated", "freed"]
_WIDTH, _LINES = 81, 8


def fragmentation(stats: Mapping[str, int]) -> float:
    """Returns the share of reserved bytes that is free, but in segments with live blocks."""
    reserved = stats["reserved_bytes.all.current"]
    return stats["inactive_split_bytes.all.current"] / reserved if reserved else 0.0


def _row(title: str, cells: list[str]) -> str:
    return f"| {title:<21} |" + "|".join(f"{cell:>12} " for cell in cells) + "|"


def _rows(stats: Mapping[str, Any], metric: str, pools: list[str]) -> list[str]:
    in_bytes = metric in _SIZES
    rows = []
    for pool in pools:
        prefix = f"{metric}.{pool}." if pool else f"{metric}."
        values = [stats[prefix + column] for column in _METRICS]
        title = _TITLES[metric] if pool in ("", "all") else f"  {pool.replace('_', ' ')}"
        rows.append(_row(title, [format_bytes(v) if in_bytes else str(v) for v in values]))
    return rows


def held_by_line(
    blocks: Iterable[tuple[int, Sequence[Mapping[str, Any]]]],
) -> list[tuple[str, int, int]]:
    """Returns line, bytes and blocks of what is in use, the largest first.

    Args:
        blocks: Bytes and frames of each, as the history has them.
    """
    held: dict[str, list[int]] = {}
    for bytes, frames in blocks:
        rows = [(frame["filename"], frame["line"], frame["name"]) for frame in frames]
        own = to_blame(rows, FOREIGN)[:1]
        place = "".join(f"{'/'.join(file.split('/')[-2:])}:{n} in {name}" for file, n, name in own)
        held.setdefault(place or "no Python line (a backward pass)", []).append(bytes)
    lines = [(place, sum(sizes), len(sizes)) for place, sizes in held.items()]
    return sorted(lines, key=lambda line: -line[1])


def format_summary(
    name: str,
    device: int,
    stats: Mapping[str, Any],
    largest_free_block: int,
    abbreviated: bool,
    held: Sequence[tuple[str, int, int]] = (),
) -> str:
    """Returns the table; `stats` is that of memory_stats(), `held` that of held_by_line()."""
    double, single = f"|{'=' * (_WIDTH - 2)}|", f"|{'-' * (_WIDTH - 2)}|"
    facts = [
        f"Memory of npusim:{device} ({name})",
        f"OOMs: {stats['num_ooms']}    allocation retries: {stats['num_alloc_retries']}",
        f"fragmentation: {fragmentation(stats):.1%} of reserved    "
        f"largest free block: {format_bytes(largest_free_block)}",
    ]
    lines = [double, *(f"| {fact:<{_WIDTH - 4}} |" for fact in facts), double]
    lines.append(_row("Metric", ["Current", "Peak", "Total alloc", "Total freed"]))
    pools = ["all"] if abbreviated else ["all", "large_pool", "small_pool"]
    for metric in _SIZES + _COUNTS:
        lines += [single, *_rows(stats, metric, pools)]
    for metric in _OVERSIZE:
        lines += [single, *_rows(stats, metric, [""])]
    if held:
        facts = ["In use, by the line that asked for it (while the history was recorded)"]
        for place, bytes, count in held[:_LINES]:
            room = _WIDTH - 4 - len(told := f"  {format_bytes(bytes)} in {count}: ")
            facts.append(told + place[-room:])
        lines += [double, *(f"| {fact:<{_WIDTH - 4}} |" for fact in facts)]
    return "\n".join([*lines, double]) + "\n"
