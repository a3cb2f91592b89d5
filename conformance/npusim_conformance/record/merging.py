# SPDX-License-Identifier: BSD-3-Clause
"""Logs of the shards of one run as one record."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from npusim_conformance.record.log import DECIDING, LogError, RunRecord
from npusim_conformance.verdict import Outcome, Status


def merged(records: Mapping[Path, RunRecord]) -> tuple[RunRecord, list[int]]:
    """One record of all, and the numbers of the shards that are missing.

    Raises LogError where they are no shards of one run, or one is given twice.
    """
    paths = list(records)
    first = records[paths[0]].head
    there: dict[int, Path] = {}
    outcomes: dict[str, Outcome] = {}
    traps: dict[str, None] = {}
    for path, record in records.items():
        _require_same(first, record.head, paths[0], path)
        number, _ = _shard(record.head, path)
        if number in there:
            raise LogError(f"{there[number]} and {path} are both shard {number}")
        there[number] = path
        outcomes.update(record.outcomes)
        traps.update(dict.fromkeys(record.traps))
    _, count = _shard(first, paths[0])
    head = {key: value for key, value in first.items() if key != "schema"}
    head["started"] = min(record.head.get("started", "") for record in records.values())
    head["selection"] = {**first["selection"], "shard": [1, 1]}
    missing = [number for number in range(1, count + 1) if number not in there]
    return RunRecord(head, outcomes, tuple(traps)), missing


def cases_of_shards(
    selection: Mapping[str, Any], missing: list[int], records: Mapping[Path, RunRecord]
) -> Iterator[Outcome]:
    """The cases that shards would have had, as not run."""
    from npusim_conformance.cases import catalog
    from npusim_conformance.cases.selection import Selection

    _, count = next(iter(records.values())).head["selection"]["shard"]
    for number in missing:
        chosen = Selection(**{**selection, "shard": (number, count)})
        for case in catalog.cases(chosen):
            yield Outcome(str(case), Status.NOT_RUN, f"shard {number}/{count} is missing")


def _shard(head: Mapping[str, Any], path: Path) -> tuple[int, int]:
    shard = head.get("selection", {}).get("shard")
    if shard is None:
        raise LogError(f"{path} is no log of `run`; only its shards can be merged")
    number, count = shard
    return number, count


def _require_same(
    first: Mapping[str, Any], other: Mapping[str, Any], path: Path, other_path: Path
) -> None:
    def without_number(head: Mapping[str, Any], path: Path) -> dict[str, Any]:
        _, count = _shard(head, path)
        return {
            **{key: head.get(key) for key in DECIDING},
            "selection": {**head["selection"], "shard": f"?/{count}"},
        }

    one, two = without_number(first, path), without_number(other, other_path)
    for key, value in one.items():
        if two[key] != value:
            raise LogError(
                f"{path} and {other_path} are no shards of one run: "
                f"{key} is {value!r} in the first, {two[key]!r} in the other"
            )
