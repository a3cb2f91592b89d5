# SPDX-License-Identifier: BSD-3-Clause
"""Settings that avoid a failure or lower a peak, each tried by a replay, and words for one."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from npusim_lab import _lab
from npusim_lab.causes import FRAGMENTATION, GROWTH
from npusim_lab.study import Choice, mib, notes_on_older_torch, parse_settings, replay
from npusim_lab.trace import Trace

WORTH = 0.98  # a peak so much lower is worth a setting
_NEAR = 1.01  # of the lowest peak: of settings so near, the better known one is named
# What the files of the stacks look like, and its sentence.
_NO_EXPANDABLE = {
    r"(?m)^[A-Za-z]:": "On Windows it needs a build with PyTorch's pull request 176884.",
    r"/vllm/": "vLLM's sleep mode cannot have it.",
    r"/multiprocessing/reductions\.py": "Tensors shared over CUDA IPC may refuse it.",
}
# Tried one by one on top of the settings of the run; the order is that of preference.
_REMEDIES: tuple[dict[str, str], ...] = (
    {"expandable_segments": "True"},
    *({"max_split_size_mb": str(mib)} for mib in (512, 256, 128, 64, 32, 20)),
    *({"roundup_power2_divisions": str(count)} for count in (8, 4, 2, 1)),
    *({"large_segment_size_mb": str(mib)} for mib in (64, 128)),
    {"expandable_segments": "True", "roundup_power2_divisions": "8"},
    {"max_split_size_mb": "128", "roundup_power2_divisions": "8"},
)


def tried(trace: Trace, run: Choice, capacity: int | None) -> list[dict[str, Any]]:
    """Return a row per setting of the list, that of the run first, each replayed from nothing."""
    from concurrent.futures import ThreadPoolExecutor

    def attempt(change: Mapping[str, str]) -> dict[str, Any] | None:
        candidate = run.with_settings(change) if change else run
        try:
            result = replay(trace, candidate, capacity, as_recorded=False, placements=False)
        except ValueError:
            return None  # the policy has no such setting
        if result.violation_count:
            return None
        return {
            "change": change,
            "settings": candidate.settings,
            "text": f"PYTORCH_ALLOC_CONF={candidate.settings}",
            "peak_reserved": int(result.peak_reserved),
            "failed": len(result.ooms),
            "fits": not result.ooms,
            "retries": int(result.retries),
        }

    assert trace.compiled is not None  # once, before the threads start
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        changes = _REMEDIES if run.policy in _lab.presets() else ()
        rows = [row for row in pool.map(attempt, ({}, *changes)) if row is not None]
    own = parse_settings(run.settings)
    known = {tuple(sorted(own.items()))}
    out = rows[:1]
    for row in rows[1:]:
        entries = tuple(sorted(parse_settings(row["settings"]).items()))
        if entries not in known:
            known.add(entries)
            out.append(row)
    return out


def helping(rows: list[dict[str, Any]], has_failed: bool, reserved: int) -> list[dict[str, Any]]:
    """Return the settings that avoid the failure, in the list's order; or lower the peak, best.

    Where the settings of the run avoid it, too, once older blocks are placed anew, those count that
    need less than they do.
    """
    now, others = rows[:1], rows[1:]
    if has_failed and not (now and now[0]["fits"]):
        return [row for row in others if row["fits"]]
    peaks = [row["peak_reserved"] for row in now] + ([] if has_failed else [reserved])
    worth = min(peaks, default=0) * WORTH
    better = [row for row in others if row["fits"] and row["peak_reserved"] <= worth]
    return sorted(better, key=lambda row: row["peak_reserved"])


def best(rows: list[dict[str, Any]], has_failed: bool) -> dict[str, Any]:
    """Return the first setting, in the list's order of preference; of a peak, near the lowest.

    Behind a failure more may come, which a setting made for the sizes so far does not serve.
    """
    least = min(row["peak_reserved"] for row in rows)
    order = [tuple(sorted(change)) for change in _REMEDIES]
    near = [row for row in rows if has_failed or row["peak_reserved"] <= _NEAR * least]
    return min(near, key=lambda row: order.index(tuple(sorted(row["change"]))))


def words_for(found: dict[str, Any], row: dict[str, Any]) -> str:
    """Return what a setting does, and how far that reaches."""
    peak, now = mib(row["peak_reserved"]), found["tried"][0]["peak_reserved"]
    notes = notes_on_older_torch(row["text"]) if found["is_of_torch"] else []
    notes += _conflicts(found, row["text"])
    if found["oom"] is None:
        anew = "" if now == found["peak_reserved"] else ", both with older blocks placed anew"
        text = f"{row['text']} lowers the peak, as replayed: {peak} instead of {mib(now)}{anew}."
    elif found["cause"] == FRAGMENTATION:
        text = (
            f"{row['text']} runs the trace up to the failure, as replayed, in {peak} of "
            f"{mib(found['capacity'])}; later events are not recorded."
        )
    else:
        text = (
            f"{row['text']} gets past this request, as replayed, but the cause stays{_end(found)}"
        )
    return " ".join([text, *notes])


def _end(found: dict[str, Any]) -> str:
    """Return when a run that gets past its failure fails at last, if its memory grows."""
    grown = [row["growth"] for row in found["holders"] if row["growth"]]
    if found["cause"] != GROWTH or not grown:
        return "."
    rate = max(1, grown[0]["rise"] * 4 // grown[0]["requests"])  # of a request
    left = max(0, found["oom"]["total_bytes"] - found["oom"]["allocated_bytes"]) // rate
    return f": at {mib(rate)} for each request it fails some {left} requests later."


def _conflicts(found: dict[str, Any], setting: str) -> list[str]:
    """Return where expandable segments do not work, if the stacks show such a program."""
    if "expandable_segments:True" not in setting:
        return []
    return [text for word, text in _NO_EXPANDABLE.items() if re.search(word, found["files"])]
