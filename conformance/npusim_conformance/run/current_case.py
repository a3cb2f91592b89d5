# SPDX-License-Identifier: BSD-3-Clause
"""The case and sample in flight, in memory shared with the runner: it survives a crash."""

import json
import mmap
import struct
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

_HEAD = struct.Struct("<dqH")  # when the case was started (0: none), sample, length of its name
_BYTES = 1024


class Flight:
    """The marker of one worker; the worker writes, the runner reads."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if not path.exists():
            path.write_bytes(bytes(_BYTES))
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), _BYTES)

    def begin(self, case: str, ahead_seconds: float = 0.0) -> None:
        """A case starts now, and its time so much later."""
        name = case.encode()[: _BYTES - _HEAD.size]
        self._memory[_HEAD.size : _HEAD.size + len(name)] = name
        _HEAD.pack_into(self._memory, 0, time.monotonic() + ahead_seconds, -1, len(name))

    def at_sample(self, index: int) -> None:
        """The case has come to this sample."""
        struct.pack_into("<q", self._memory, 8, index)

    def end(self) -> None:
        """No case is in flight."""
        _HEAD.pack_into(self._memory, 0, 0.0, -1, 0)

    def read(self) -> tuple[str, int, float] | None:
        """(case, sample or -1, seconds since its time began), or None."""
        started, sample, length = _HEAD.unpack_from(self._memory, 0)
        if not started:
            return None
        name = self._memory[_HEAD.size : _HEAD.size + length].decode(errors="replace")
        return name, sample, time.monotonic() - started


@dataclass(frozen=True)
class CallInFlight:
    """The call of an overload that a watched worker makes. `script` may be empty."""

    overload: str
    of_what: str  # " of a conj view", or nothing
    text: str  # the overload, its arguments, and the route there
    script: str

    def write(self, flight: Path) -> None:
        """Leaves it beside the flight of its worker."""
        flight.with_suffix(".call").write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, flight: Path) -> Self | None:
        """The last record of the worker of a flight; None if it was not watched."""
        try:
            return cls(**json.loads(flight.with_suffix(".call").read_text()))
        except (OSError, ValueError):  # none, or only a part of one
            return None
