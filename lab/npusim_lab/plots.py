# SPDX-License-Identifier: BSD-3-Clause
"""The same pictures as files, PNG or SVG by the name, drawn with matplotlib (the extra `plots`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from npusim_lab import _lab, pictures
from npusim_lab.execution import compare
from npusim_lab.study import Choice, bounds, measures, name_of, replay
from npusim_lab.trace import Trace

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MIB = 1 << 20
_COLOURS = {"reserved": "#c0504d", "active": "#4f81bd", "requested": "#6a9f3f"}
_SUFFIXES = (".png", ".svg")
_FREE, _LIVE = np.array([0.89, 0.89, 0.89]), np.array([0.25, 0.45, 0.70])  # of a map
KINDS = ("curves", "map", "comparison")


def plot(
    trace: Trace,
    choices: Sequence[Choice],
    path: str | PathLike[str],
    kind: str = "curves",
    capacity_bytes: int | None = None,
) -> list[dict[str, Any]]:
    """Draw a trace under policies into one file, and return the METRICS of each choice.

    Args:
        trace: the events.
        choices: policies; below each other, or beside each other in a "comparison".
        path: ends in .png or .svg.
        kind: "curves" (reserved, active and requested bytes with the lower bound), "map" (which
            addresses are reserved and in use, over events) or "comparison" (peak reserved bytes of
            each policy, with the bounds).
        capacity_bytes: of the device; without it as much as needed.

    Raises:
        ValueError: For another kind or suffix, for no or an unknown policy, or where matplotlib is
            not installed.
        OSError: If the file cannot be written.
    """
    if kind not in KINDS:
        raise ValueError(f"kind {kind!r}; expected one of {', '.join(KINDS)}")
    if Path(path).suffix not in _SUFFIXES:
        raise ValueError(f"{path}: expected a name in .png or .svg")
    if not choices:
        raise ValueError("no policy to draw; name at least one")
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError:
        raise ValueError(
            "pictures in files need matplotlib: `pip install matplotlib`; "
            "`npusim-lab report` draws without it"
        ) from None
    count = 1 if kind == "comparison" else len(choices)
    height = 1.2 + 0.35 * len(choices) if kind == "comparison" else 3.2 * count
    rows = []
    # SVG with texts as texts, and without what differs from run to run.
    with matplotlib.rc_context({"svg.hashsalt": "npusim-lab", "svg.fonttype": "none"}):
        figure = Figure(figsize=(10, height), layout="constrained")
        axes = figure.subplots(count, 1, squeeze=False)[:, 0]
        if kind == "comparison":
            rows = compare(trace, choices, capacity_bytes)
            draw_comparison(axes[0], rows, bounds(trace))
        for axis, choice in zip(axes, () if rows else choices, strict=False):
            points = int(figure.get_figwidth() * figure.dpi) if kind == "curves" else 0
            result = replay(
                trace, choice, capacity_bytes, placements=kind == "map", curve_points=points
            )
            if kind == "curves":
                draw_curves(axis, trace, result, capacity_bytes)
            else:
                draw_map(axis, trace, result)
            wrong = f": {result.violation_count} violations" if result.violation_count else ""
            axis.set_title(f"{choice}{wrong}", loc="left")
            rows.append({"policy": str(choice), **measures(trace, result)})
        is_svg = Path(path).suffix == ".svg"
        figure.savefig(path, dpi=figure.dpi, metadata={"Date": None} if is_svg else None)
    return rows


def draw_curves(
    axis: Axes, trace: Trace, result: _lab.Replay, capacity_bytes: int | None = None
) -> None:
    """Draw the curves of a replay with curve_points; a pale area reaches down to the minima."""
    for name, curve in pictures.curves(trace, result).items():
        colour = _COLOURS[name]
        axis.plot(curve.event, curve.high / _MIB, color=colour, label=name, linewidth=1)
        axis.fill_between(
            curve.event, curve.low / _MIB, curve.high / _MIB, color=colour, alpha=0.25, linewidth=0
        )
    bound = trace.compiled.max_live_bytes / _MIB
    axis.axhline(bound, color="#444444", linestyle="--", linewidth=1, label="max live")
    if capacity_bytes is not None and capacity_bytes <= 1.5 * result.peak_reserved:
        capacity = capacity_bytes / _MIB
        axis.axhline(capacity, color="#c0504d", linestyle=":", linewidth=1, label="capacity")
    axis.set(xlabel="event", ylabel="MiB", ylim=(0, None), xlim=(0, max(len(trace) - 1, 1)))
    axis.legend(loc="lower right", ncols=5, fontsize="small")


def draw_map(
    axis: Axes, trace: Trace, result: _lab.Replay, columns: int = 800, rows: int = 240
) -> None:
    """Draw which share of each cell of addresses and events is in use, reserved, or neither."""
    space = pictures.addresses(result)
    grid = (len(trace), space.height, columns, rows)
    live = np.minimum(pictures.coverage(pictures.blocks(trace, result, space), *grid), 1)
    lent = np.clip(pictures.coverage(pictures.segments(trace, result, space), *grid), live, 1)
    colours = 1 + (_FREE - 1) * (lent - live)[..., None] + (_LIVE - 1) * live[..., None]
    axis.imshow(
        np.clip(colours, 0, 1),
        origin="lower",
        aspect="auto",
        extent=(0, max(len(trace), 1), 0, space.height / _MIB),
        interpolation="nearest",
    )
    axis.set(xlabel="event", ylabel="address, MiB")


def draw_comparison(
    axis: Axes, rows: Sequence[Mapping[str, Any]], limits: Mapping[str, int]
) -> None:
    """Draw a bar per row of compare(), and the bounds; a bar says how many requests failed.

    A policy with violations gets none.
    """
    names = [name_of(row) for row in rows]
    peaks = [(row["peak_reserved"] or 0) / _MIB for row in rows]
    bars = axis.barh(range(len(rows)), peaks, color="#8fb0d6")
    texts = [
        f" {row['violations']} violations"
        if row["violations"]
        else f" {row['ooms']} failed"
        if row["ooms"]
        else f" {row['over_max_live']:.4f} x max live"
        for row in rows
    ]
    axis.bar_label(bars, texts, fontsize="small")
    for name, style in (("max_live", "--"), ("planned", ":")):
        axis.axvline(limits[name] / _MIB, color="#444444", linestyle=style, label=name)
    axis.set_yticks(range(len(rows)), names)
    axis.invert_yaxis()
    axis.set(xlabel="peak reserved, MiB", xlim=(0, 1.25 * max(*peaks, limits["max_live"] / _MIB)))
    axis.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, fontsize="small")
