# SPDX-License-Identifier: BSD-3-Clause
"""The order of accesses, slowly and obviously: from the records of a program to its races.

Every record is a point of the host's course; commands, marks and waits are points of their stream's
course too. Arrows join the points that the rules V4 to V6 order, each point keeps the set of all
points before it, and bytes are sets of numbers.
"""

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch_npusim import _C

Stream = tuple[int, int]
HOST: Stream = (-1, 0)


class Found(NamedTuple):
    """A race: what is missing, and the names of the two accesses."""

    missing: str
    first: str
    second: str


@dataclass(frozen=True)
class Access:
    point: int
    party: Stream
    name: str
    written: bool
    bytes: frozenset[int]


@dataclass
class Block:
    owner: Stream | None  # None: pinned memory
    pool: int
    bytes: int
    accesses: list[Access] = field(default_factory=list)
    users: set[Stream] = field(default_factory=set)
    left_behind: list[Access] = field(default_factory=list)  # of blocks that were freed too early


@contextmanager
def record() -> Iterator[list[dict[str, Any]]]:
    """Fills a list with the records of a `with` block; begin it before races.record()."""
    log: list[dict[str, Any]] = []
    _C.start_event_log()
    try:
        yield log
    finally:
        log.extend(_C.take_event_log())


def agree(races: Any, true: list[Found]) -> None:
    """Raises where what is reported and the reference's races do not begin with one second access.

    The detector tells a pair of places once, of several first accesses the last one, and takes a
    missing order for granted when it has told of it.
    """
    told = [Found(race.missing, race.first.name, race.second.name) for race in races]
    if not told or not true:
        assert told == true, "a race is made up" if told else "a race is not told"
        return
    assert told[0].second == true[0].second, f"told {told[0]}, by the reference {true[0]}"
    assert set(told) <= set(true), "a race is made up"


def touched(operand: tuple[int, bool, int, list[int], list[int]]) -> frozenset[int]:
    """Returns the addresses of all bytes of an operand."""
    first, _, element_bytes, sizes, strides = operand
    return frozenset(
        first + sum(i * stride for i, stride in zip(index, strides, strict=True)) + byte
        for index in itertools.product(*map(range, sizes))
        for byte in range(element_bytes)
    )


class Reference:
    """Reads records one by one; `races` are the races in the order of their second accesses."""

    def __init__(self) -> None:
        self.races: list[Found] = []
        self._before: list[set[int]] = []  # of each point, itself included
        self._host: int | None = None
        self._tails: dict[Stream, int] = {}
        self._marks: dict[int, int] = {}
        self._blocks: dict[int, Block] = {}
        self._left_behind: dict[tuple[Stream, int], list[Access]] = defaultdict(list)

    def read(self, log: list[dict[str, Any]]) -> "Reference":
        for entry in log:
            self._kinds()[entry["kind"]](entry)
        return self

    def _kinds(self) -> dict[str, Callable[[dict[str, Any]], None]]:
        return {
            "command": self._command,
            "host_access": self._host_access,
            "event_record": self._event_record,
            "event_block": lambda e: self._stream_point(e["stream"], self._marks.get(e["event"])),
            "event_wait": lambda e: self._host_point(self._marks.get(e["event"])),
            "event_end": lambda e: self._marks.pop(e["event"], None) and None,
            "stream_wait": lambda e: self._host_point(self._tails.get(e["stream"])),
            "device_wait": lambda e: self._host_point(
                *(tail for stream, tail in self._tails.items() if stream[0] == e["device"])
            ),
            "allocator_wait": self._allocator_wait,
            "allocate": self._allocate,
            "pinned_allocate": self._allocate,
            "free": self._free,
            "pinned_free": lambda e: self._blocks.pop(e["address"], None) and None,
            "record_stream": self._record_stream,
            "other": lambda e: None,
        }

    # --- Points and arrows

    def _point(self, *before: int | None) -> int:
        point = len(self._before)
        known = {point}
        for other in before:
            if other is not None:
                known |= self._before[other]
        self._before.append(known)
        return point

    def _host_point(self, *waited_for: int | None) -> int:
        self._host = self._point(self._host, *waited_for)
        return self._host

    def _stream_point(self, stream: Stream, *waited_for: int | None) -> int:
        """The commands of a stream come after all that the host has done and waited for."""
        launched = self._host_point()
        self._tails[stream] = self._point(launched, self._tails.get(stream), *waited_for)
        return self._tails[stream]

    def _event_record(self, entry: dict[str, Any]) -> None:
        self._marks[entry["event"]] = self._stream_point(entry["stream"])

    # --- Accesses

    def _command(self, entry: dict[str, Any]) -> None:
        self._accesses(entry, self._stream_point(entry["stream"]), entry["stream"])

    def _host_access(self, entry: dict[str, Any]) -> None:
        self._accesses(entry, self._host_point(), HOST)

    def _accesses(self, entry: dict[str, Any], point: int, party: Stream) -> None:
        for operand in entry["operands"]:
            block = self._block_of(operand[0])
            if block is None:
                continue
            access = Access(point, party, entry["name"], operand[1], touched(operand))
            if access.bytes:
                self._meet(block, access)

    def _block_of(self, address: int) -> Block | None:
        for start, block in self._blocks.items():
            if start <= address < start + block.bytes:
                return block
        return None

    def _meet(self, block: Block, access: Access) -> None:
        before = self._before[access.point]
        for left in [left for left in block.left_behind if left.party != access.party]:
            block.left_behind.remove(left)
            if left.point not in before:
                self.races.append(Found("record_stream", left.name, access.name))
        for other in block.accesses:
            unordered = other.point not in before and other.party != access.party
            if unordered and (other.written or access.written) and other.bytes & access.bytes:
                missing = "wait_stream"
                if access.party == HOST:
                    missing = "synchronize" if other.written else "event"
                self.races.append(Found(missing, other.name, access.name))
        block.accesses.append(access)

    # --- Memory

    def _allocate(self, entry: dict[str, Any]) -> None:
        block = Block(entry["stream"], entry["pool"], entry["bytes"])
        if block.owner is not None:
            now = self._before[self._stream_point(block.owner)]
            left = self._left_behind[block.owner, block.pool]
            left[:] = [access for access in left if access.point not in now]
            block.left_behind = list(left)
        self._blocks[entry["address"]] = block

    def _free(self, entry: dict[str, Any]) -> None:
        block = self._blocks.pop(entry["address"], None)
        if block is None or block.owner is None:
            return
        ordered = set(self._before[self._stream_point(block.owner)])
        for user in block.users:  # the allocator waits for what it was given until now
            ordered |= self._before[self._tails[user]] if user in self._tails else set()
        self._left_behind[block.owner, block.pool] += [
            access
            for access in block.accesses
            if access.party not in block.users and access.point not in ordered
        ]

    def _record_stream(self, entry: dict[str, Any]) -> None:
        if block := self._blocks.get(entry["address"]):
            block.users.add(entry["stream"])

    def _allocator_wait(self, entry: dict[str, Any]) -> None:
        for left in self._left_behind.values():
            left[:] = [access for access in left if access.party[0] != entry["device"]]
