# SPDX-License-Identifier: BSD-3-Clause
"""Changes that might make a script fit, each tried; untried ones are named as such."""

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch_npusim._text import format_bytes
from torch_npusim.fit.changes import CHANGES
from torch_npusim.fit.outside import chips_with
from torch_npusim.fit.result import Fit, Remedy
from torch_npusim.fit.trials import Job, TrialError, peak_of, side_by_side

WITHOUT_LIMIT = "16TiB"
_TOGETHER = (("checkpoint", "fused"), ("checkpoint", "bf16"), ("checkpoint", "fused", "bf16"))
_UNTRIED = (
    Remedy("optimizer states of 8 bits", "bitsandbytes.optim.AdamW8bit", "", "unknown"),
    Remedy("parameters sharded over ranks", "torch.distributed.fsdp.fully_shard(model)", "",
           "unknown"),
    Remedy("a loss in chunks of the sequence", "", "", "unknown"),
    Remedy("parameters or optimizer states in host memory", "", "", "unknown"),
)  # fmt: skip
_ORDER = ("fits", "does not fit", "not applicable", "unknown")


def find_remedies(fit: Fit, job: Job, jobs: int, tell: Callable[[str], None]) -> None:
    """Fills `remedies` and `need` of an answer.

    Args:
        fit: The answer.
        job: Its script, arguments and settings.
        jobs: Runs at a time.
        tell: Hears of each run.
    """
    capacity = min(
        (device.capacity - device.outside_between()[1] for device in fit.devices.values()),
        default=0,
    )
    with tempfile.TemporaryDirectory() as folder:
        snapshot = str(Path(folder) / "snapshot.pickle")
        tell("without a limit of memory")
        try:
            settings = {**job.settings, "memory": WITHOUT_LIMIT}
            whole = replace(job, settings=settings).run(snapshot)
        except TrialError as problem:
            tell(str(problem))
            fit.remedies = list(_UNTRIED)
            return
        fit.need = None if fit.fits else peak_of(whole)
        replayed = list(by_replay(snapshot, whole, capacity, tell))
    tried = [*replayed, *_changes(job, jobs, tell)]
    if not any(remedy.outcome == "fits" for remedy in tried):
        tried += _combinations(job, jobs, tell)
    tried += _devices(peak_of(whole), capacity)
    tried.sort(key=lambda remedy: (_ORDER.index(remedy.outcome), remedy.peak_reserved or 0))
    fit.remedies = [*tried, *_UNTRIED]


def by_replay(
    snapshot: str, whole: dict[str, Any], capacity: int, tell: Callable[[str], None]
) -> Iterator[Remedy]:
    """Yields the cause with its advice and the best settings of the allocator, by replay.

    Args:
        snapshot: File of a whole run.
        whole: Its answer.
        capacity: Of the device on which it shall fit, in bytes, less what is outside.
        tell: Hears of it.
    """
    what = "settings of the allocator"
    try:
        from npusim_lab.explanation import explain
        from npusim_lab.files import load
        from npusim_lab.study import parse_choices
    except ModuleNotFoundError:
        note = "the package npusim-lab, which replays allocations, is not installed"
        yield Remedy(what, "", "", "unknown", note=note)
        return
    fullest = max(whole["devices"], key=lambda key: whole["devices"][key]["peak_reserved"])
    tell(f"{what}, by replay")
    trace = load(snapshot, device=int(fullest), capacity_bytes=capacity)
    found = explain(trace, parse_choices(whole["allocator"])[0], capacity, quick=True)
    if found["cause"] is not None:
        yield Remedy(found["advice"], "", "", "unknown", note=found["sentences"][0])
    own, *others = found["tried"] or [None]
    helping = found["remedies"]
    for row in sorted(helping, key=lambda row: row["peak_reserved"])[:2]:
        yield Remedy(what, row["text"], "replay", "fits", row["peak_reserved"])
    if not helping and own is not None:
        best = min(others, key=lambda row: row["failed"], default=own)
        yield Remedy(
            f"{len(others)} {what}", best["text"] if best["fits"] else "", "replay",
            "fits" if best["fits"] else "does not fit",
            best["peak_reserved"] if best["fits"] else None,
            note="none lowers the peak by 2 %" if best["fits"] else "",
        )  # fmt: skip


def _changes(job: Job, jobs: int, tell: Callable[[str], None]) -> list[Remedy]:
    names = [(name,) for name in CHANGES if name not in job.changes]
    with side_by_side(jobs) as pool:
        return list(pool.map(lambda change: _changed(job, change, tell), names))


def _combinations(job: Job, jobs: int, tell: Callable[[str], None]) -> list[Remedy]:
    expandable = replace(job, settings={**job.settings, "conf": "expandable_segments:True"})
    with side_by_side(jobs) as pool:
        return list(pool.map(lambda names: _changed(expandable, names, tell), _TOGETHER))


def _changed(job: Job, names: tuple[str, ...], tell: Callable[[str], None]) -> Remedy:
    what = "; ".join(CHANGES[name].what for name in names)
    paste = [CHANGES[name].paste for name in names]
    if "conf" in job.settings:
        paste.append(f"PYTORCH_ALLOC_CONF={job.settings['conf']}")
    tell(" and ".join(names))
    try:
        found = replace(job, changes=(*job.changes, *names)).run()
    except TrialError as problem:
        return Remedy(what, "; ".join(paste), "dry run", "not applicable", note=str(problem))
    missing = [name for name in names if not found["changes"][name]]
    if found["fits"] and missing:
        note = f"found nothing to change for {', '.join(missing)}"
        return Remedy(what, "; ".join(paste), "dry run", "not applicable", note=note)
    made = [place for name in names for place in found["changes"][name]]
    step = found["step"]["ns"] if found["step"] else None
    note = f"changed: {', '.join(made)}" if made else "memory runs out before it takes effect"
    outcome = "fits" if found["fits"] else "does not fit"
    peak = peak_of(found) if found["fits"] else None
    return Remedy(what, "; ".join(paste), "dry run", outcome, peak, step, note)


def _devices(need: int, capacity: int) -> Iterator[Remedy]:
    """Yields the smallest device that holds the run as it is."""
    larger = [(size, name) for size, name in chips_with(need) if size > capacity]
    if not larger:
        what = f"a larger device: no known one has {format_bytes(need)}"
        yield Remedy(what, "", "dry run", "does not fit")
        return
    size, _ = larger[0]
    names = [name for other, name in larger if other == size]
    yield Remedy(
        f"a device of {format_bytes(size)}: {', '.join(names)}", f"--spec {names[0]}", "dry run",
        "fits", need,
    )  # fmt: skip
