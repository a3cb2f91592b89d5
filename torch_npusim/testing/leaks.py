# SPDX-License-Identifier: BSD-3-Clause
"""Leaks: which blocks of device memory are alive, who allocated them, and who keeps them.

    >>> with allocation_stacks():
    ...     since = mark()
    ...     kept = {"loss": torch.zeros(100, device="npusim")}
    ...     [block] = live_blocks(since)
    >>> block.bytes
    400
    >>> keepers(block)[0]
    "item 'loss' of a dict of 1"

keepers() says what the collector and autograd say: a way of references, up to a name.
"""

import gc
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch._C import DisableTorchFunction as _DisableTorchFunction

from torch_npusim import _C
from torch_npusim._blame import file_line, to_blame
from torch_npusim._frames import FOREIGN
from torch_npusim._text import format_bytes
from torch_npusim.testing._graph_owners import GraphOwners, addresses_of
from torch_npusim.testing._referrers import way_to_a_name
from torch_npusim.testing._words import in_words, thing

__all__ = [
    "Frame",
    "LiveBlock",
    "allocation_stacks",
    "keepers",
    "live_blocks",
    "mark",
    "report",
]

_HIDDEN = "C++, such as a hook of an autograd node: no Python object refers to that"
_UNSEEN = (
    "C++: no Python object, and no autograd graph that Python can reach, holds it (an extension "
    "does, or a graph that refers to itself, as after backward(create_graph=True))"
)
_NO_FRAME = "no Python frame: by a backward pass, or a thread of C++"


@dataclass(frozen=True)
class Frame:
    """One frame of the stack of an allocation."""

    file: str
    line: int
    function: str


@dataclass(frozen=True)
class LiveBlock:
    """A block of device memory that somebody holds.

    Attributes:
        device: Index of its device.
        address: Where it starts; the address of the storage on it.
        bytes: As requested.
        number: Of the allocation; they rise.
    """

    device: int
    address: int
    bytes: int
    number: int

    def stack(self) -> list[Frame]:
        """Returns the Python stack of its allocation, innermost first; empty if not recorded."""
        return [
            Frame(row["filename"], row["line"], row["name"])
            for row in _C.allocation_frames([self.number])[0]
        ]


@contextmanager
def allocation_stacks() -> Iterator[None]:
    """Records, within a `with` block, the Python stack of every allocation.

    Without it blocks have no stack and no number, and live_blocks() does not see them. It is the
    recording of torch.npusim.memory._record_memory_history(): a program that stops that, or sets
    it differently, within the block, has its way.
    """
    _C.record_memory_history("state", "state", "python", 1, False)
    try:
        yield
    finally:
        _C.record_memory_history(None, None, "python", 1, False)


def mark() -> int:
    """Returns the number of the newest allocation: live_blocks(mark()) lists what comes after."""
    return _C.newest_allocation()


def live_blocks(since: int = 0) -> list[LiveBlock]:
    """Returns the blocks, allocated after `since` with their stacks, that nobody has freed.

    Without those that CUDA's libraries would hold: workspaces, and numbers of captures.

    Args:
        since: An earlier mark().
    """
    _C.collect_sent()  # what other processes have let go of
    return [
        LiveBlock(device, address, requested, number)
        for device, address, _, requested, number in _C.live_blocks(since)
        if not _C.is_library_memory(address)
    ]


def keepers(held: torch.Tensor | LiveBlock) -> list[str]:
    """Returns who keeps device memory alive: one line per reference, up to a name.

    The way is the shortest one found; there may be others. A local variable of a running function
    is named if there is no other way.

    Args:
        held: A tensor on npusim, or a block.

    Raises:
        ValueError: If it is a tensor without memory on npusim.
    """
    addresses = [held.address] if isinstance(held, LiveBlock) else addresses_of(held)
    if not addresses:
        raise ValueError(f"keepers(): expected a tensor on npusim or a block, got {thing(held)}")
    return _Search().keepers(addresses[0])


def report(blocks: Sequence[LiveBlock], most: int = 8) -> str:
    """Returns a text for people: the blocks by place of allocation, and who keeps each alive.

    Args:
        blocks: The blocks, for example from live_blocks().
        most: Of how many places the keepers are looked up; the others are only counted.
    """
    groups: dict[tuple[int, tuple[Frame, ...]], list[LiveBlock]] = {}
    for block in blocks:
        groups.setdefault((block.device, tuple(block.stack())), []).append(block)
    by_size = sorted(groups.items(), key=lambda group: -sum(block.bytes for block in group[1]))
    search = _Search()
    lines = []
    for (device, stack), group in by_size[:most]:
        size = format_bytes(sum(block.bytes for block in group))
        number = f"{len(group)} block{'s' if len(group) > 1 else ''}"
        lines.append(f"{size} in {number} on npusim:{device}, allocated at")
        places = [
            f"{file_line(frame.file, frame.line)} in {frame.function}" for frame in _of_users(stack)
        ]
        lines += [f"    {place}" for place in places or [_NO_FRAME]]
        lines.append("  kept alive by")
        lines += [f"    {line}" for line in search.keepers(group[-1].address)]
    if len(by_size) > most:
        rest = sum(block.bytes for _, group in by_size[most:] for block in group)
        lines.append(f"and {format_bytes(rest)} from {len(by_size) - most} other places")
    return "\n".join(lines)


def _of_users(stack: Iterable[Frame]) -> list[Frame]:
    """Returns the innermost frames of the program itself, at most four."""
    rows = [(frame.file, frame.line, frame.function) for frame in stack]
    return [Frame(*row) for row in to_blame(rows, FOREIGN)[:4]]


class _Search:
    """All tensors and graphs of the process, looked at once for several questions."""

    def __init__(self) -> None:
        gc.unfreeze()  # who refers to what cannot be asked of frozen objects
        self._alive: list[Any] = []
        tensors = [found for found in gc.get_objects() if issubclass(type(found), torch.Tensor)]
        self._places: dict[int, list[int]] = {}  # in self._alive, by address of the storage
        with _DisableTorchFunction():  # a tensor of somebody else's class may answer nothing
            self._graphs = GraphOwners(tensors, self._alive)
            for place, found in enumerate(self._alive):
                if isinstance(found, torch.Tensor):
                    for address in addresses_of(found):
                        self._places.setdefault(address, []).append(place)

    def keepers(self, address: int) -> list[str]:
        with _DisableTorchFunction():
            return self._keepers(address)

    def _keepers(self, address: int) -> list[str]:
        candidates = [
            self._from(self._alive[place], []) for place in self._places.get(address, [])[:20]
        ]
        if (found := self._graphs.by_address.get(address)) is not None:
            place, how = found
            candidates.append(self._from(self._alive[place], [how]))
        candidates = [candidate for candidate in candidates if candidate[1]]
        return min(candidates, default=(0, [_UNSEEN]), key=lambda it: (it[0], len(it[1])))[1]

    def _from(self, start: torch.Tensor, first: list[str]) -> tuple[bool, list[str]]:
        """Returns (whether the way is incomplete, its lines)."""
        way, complete = way_to_a_name(start, self._foreign, [self._alive])
        words = first + in_words(start, way)
        return not complete, [*words, _HIDDEN] if words and not complete else words

    def _foreign(self, child: Any) -> tuple[Any, str] | None:
        found = self._graphs.by_node.get(id(child))
        return None if found is None else (self._alive[found[0]], found[1])
