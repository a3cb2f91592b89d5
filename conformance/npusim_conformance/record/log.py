# SPDX-License-Identifier: BSD-3-Clause
"""The log of a run: JSON lines, a head, one per outcome as they come, and one of traps.

`log_line` in report/schema.json describes them.

If the kit is killed, every line but the last is whole; an incomplete last line is cut off when
the log is opened again.
"""

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from npusim_conformance.verdict import Outcome

SCHEMA = 2
# The entries that decide the results of a run, beside the machine.
DECIDING = ("device", "import", "selection", "seed", "expectations", "torch")


class LogError(RuntimeError):
    """A log that cannot be used; the message says why and what to do."""


@dataclass
class RunRecord:
    """The content of a log. A repeated outcome of a case replaces the first."""

    head: dict[str, Any]
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    traps: tuple[str, ...] = ()  # registrations of the backend that are known to break much


class LogWriter:
    """Appends to a log; created with `head`, or continued where it has the same one."""

    def __init__(self, path: Path, head: dict[str, Any], resume: bool) -> None:
        self.record = RunRecord({"schema": SCHEMA, **head})
        if resume and path.exists():
            _cut_incomplete_line(path)
            self.record = read(path)
            _require_same(self.record.head, {"schema": SCHEMA, **head}, path)
            self._file = path.open("a")
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("w")
            try:
                self._line(self.record.head)
            except OSError:
                with suppress(OSError):  # the rest that it would write, once more
                    self._file.close()
                raise

    def add(self, outcome: Outcome) -> None:
        """Writes one outcome through to the file system."""
        self.record.outcomes[outcome.case] = outcome
        self._line(outcome.to_json())

    def add_traps(self, traps: tuple[str, ...]) -> None:
        """Writes down what is known to be wrong with the backend's registrations."""
        self.record.traps = traps
        self._line({"traps": traps})

    def _line(self, record: dict[str, Any]) -> None:
        self._file.write(json.dumps(record) + "\n")
        self._file.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self._file.close()
        except OSError:  # a full disk: close() tries once more to write the rest, and still closes
            if error is None:
                raise


def read(path: Path) -> RunRecord:
    """Reads a log, or the newest of a directory's. Raises LogError or OSError."""
    if path.is_dir():
        path = path / "run.jsonl"
    lines = _records(path)
    try:
        head = next(lines)
    except StopIteration:
        raise LogError(f"{path} is empty; it is no log of a run") from None
    if head.get("schema") != SCHEMA:
        raise LogError(f"{path}: schema {head.get('schema')}; this version reads {SCHEMA}")
    record = RunRecord(head)
    for line in lines:
        if "traps" in line:
            record.traps = tuple(line["traps"])
            continue
        outcome = Outcome.from_json(line)
        record.outcomes[outcome.case] = outcome
    return record


def _records(path: Path) -> Iterator[dict[str, Any]]:
    with path.open() as lines:
        for number, line in enumerate(lines, 1):
            try:
                record = json.loads(line)
            except json.JSONDecodeError as error:
                if line.endswith("\n"):
                    raise LogError(f"{path}, line {number}: not JSON: {error}") from error
                return  # the last line of a run that was killed
            yield record


def _cut_incomplete_line(path: Path) -> None:
    data = path.read_bytes()
    whole = data.rfind(b"\n") + 1
    if whole < len(data):
        with path.open("r+b") as log:
            log.truncate(whole)


def _require_same(old: dict[str, Any], new: dict[str, Any], path: Path) -> None:
    for key in DECIDING:
        if old.get(key) != new.get(key):
            raise LogError(
                f"{path} was written with {key} = {old.get(key)!r}, now it is {new.get(key)!r}; "
                "continue with the same command, or start afresh without --resume"
            )
