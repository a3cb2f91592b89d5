# SPDX-License-Identifier: BSD-3-Clause
"""The parts of a device's memory over a run, from the allocator's history and the notes of hooks.

A block is a parameter, buffer, gradient or optimizer state if one has held it at a moment of its
life. Another one is an activation if a forward pass made it and it outlives the call of the model,
or a backward pass frees it; else it is a temporary of its phase.
"""

from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass
from typing import Any

from torch_npusim._blame import file_line, to_blame
from torch_npusim.fit.result import DeviceFit, ModuleShare, Outside, Timeline
from torch_npusim.fit.watch import OUTSIDE, Place, Watch

COLUMNS = 300  # of a timeline
LINES = 8  # that are listed

ACTIVATIONS = "activations"
FORWARD, BACKWARD = "temporaries of the forward pass", "gradients of activations, temporaries"
OPTIMIZER = "temporaries of the optimizer"
OTHERS = "inputs, losses and other tensors"
ROUNDED = "rounding up to the allocator's sizes"

_GROWS = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}
_OF_BACKWARD = ("torch/autograd/function.py", "torch/autograd/graph.py")

Entry = dict[str, Any]


@dataclass
class Block:
    """One allocation of a device.

    Attributes:
        begin: Index of its entry in the history.
        end: That of the entry that frees it; past the end if none does.
        made: The entry.
        freed: The entry that frees it; None if none does.
        place: Where the program was.
        kind: Its kind, of the names above or of watch.py.
    """

    begin: int
    end: int
    made: Entry
    place: Place
    freed: Entry | None = None
    kind: str = ""


class History:
    """The blocks of a device, named."""

    def __init__(self, watch: Watch, device: int, trace: list[Entry], failed: bool) -> None:
        """Reads the whole history of a device.

        Args:
            watch: The notes of the run.
            device: Its index.
            trace: The history.
            failed: Whether the run ended with a request that could not be served; the history then
                ends at the last such request, if this device has one.
        """
        fatal = [i for i, entry in enumerate(trace) if failed and entry["action"] == "oom"]
        self.trace = trace[: fatal[-1] + 1] if fatal else trace
        self.asked = int(trace[fatal[-1]]["size"]) if fatal else 0
        self.caught = sum(entry["action"] == "oom" for entry in self.trace) - bool(fatal)
        self._watch = watch
        self._moments = [moment for moment, _ in watch.places]
        self._are_backward: dict[int, bool] = {}  # by identity of a frame, which the trace keeps
        self.blocks = self._read()
        self._name(device)
        self.peak_at = len(self.trace) - 1 if fatal else self._highest()

    def place_of(self, entry: Entry) -> Place:
        """Returns where the program was at an entry."""
        at = bisect_right(self._moments, entry["number"] - 1) - 1
        return self._watch.places[at][1] if at >= 0 else OUTSIDE

    def in_backward(self, entry: Entry) -> bool:
        """Returns whether a backward pass made an entry: a thread without Python, or its nodes."""
        frames = entry["frames"]
        if not frames:
            return True
        for frame in frames:
            found = self._are_backward.get(id(frame))
            if found is None:
                found = frame["filename"].endswith(_OF_BACKWARD)
                self._are_backward[id(frame)] = found
            if found:
                return True
        return False

    def live(self) -> list[Block]:
        """Returns the blocks that are in use at the peak."""
        return [block for block in self.blocks if block.begin <= self.peak_at < block.end]

    def last_of_backward(self) -> Block | None:
        """Returns the activation that a backward pass lets go of first after the peak.

        A node of the graph lets go of what it saved when it has run.
        """
        later = [
            block
            for block in self.blocks
            if block.kind == ACTIVATIONS and self.peak_at < block.end < len(self.trace)
        ]
        return min(later, key=lambda block: block.end, default=None)

    def _read(self) -> list[Block]:
        blocks: list[Block] = []
        in_use: dict[int, Block] = {}
        for i, entry in enumerate(self.trace):
            if entry["action"] == "alloc":
                block = Block(i, len(self.trace), entry, self.place_of(entry))
                in_use[entry["addr"]] = block
                blocks.append(block)
            elif entry["action"] == "free_completed":
                freed = in_use.pop(entry["addr"], None)
                if freed is not None:
                    freed.end, freed.freed = i, entry
        return blocks

    def _name(self, device: int) -> None:
        by_address: dict[int, list[Block]] = {}
        for block in self.blocks:
            by_address.setdefault(block.made["addr"], []).append(block)
        numbers = {
            address: [block.made["number"] for block in blocks]
            for address, blocks in by_address.items()
        }
        for moment, index, address, kind in self._watch.owners:
            if index != device or address not in numbers:
                continue
            at = bisect_right(numbers[address], moment) - 1
            if at >= 0 and not by_address[address][at].kind:
                by_address[address][at].kind = kind
        for block in self.blocks:
            block.kind = block.kind or self._kind(block)

    def _kind(self, block: Block) -> str:
        if block.place.phase == "optimizer":
            return OPTIMIZER
        if block.place.phase != "forward" and self.in_backward(block.made):
            return BACKWARD
        if block.freed is not None and self.in_backward(block.freed):
            return ACTIVATIONS
        if block.place.phase != "forward":
            return OTHERS
        if block.freed is not None and self.place_of(block.freed).call == block.place.call:
            return FORWARD
        return ACTIVATIONS

    def _highest(self) -> int:
        now = most = at = 0
        for i, entry in enumerate(self.trace):
            now += _change(entry)
            if now > most:
                most, at = now, i
        return at

    def timeline(self) -> Timeline:
        """Returns the memory over the history."""
        width = max(1, -(-len(self.trace) // COLUMNS))
        now = 0
        columns: dict[int, tuple[int, int]] = {}  # most in use in each, and its event
        for i, entry in enumerate(self.trace):
            now += _change(entry)
            if i // width not in columns or now > columns[i // width][0]:
                columns[i // width] = (now, i)
        wanted = {i for _, i in columns.values()}
        kinds = dict.fromkeys(block.kind for block in self.blocks)
        found = Timeline([], [], [], {kind: [] for kind in kinds})
        begins = {block.begin: block.kind for block in self.blocks}
        ends = {block.end: block.kind for block in self.blocks}
        held = Counter[str]()
        reserved = 0
        for i, entry in enumerate(self.trace):
            reserved += _GROWS.get(entry["action"], 0) * entry["size"]
            kind = begins.get(i) or ends.get(i)
            if kind is not None:
                held[kind] += _change(entry)
            if i in wanted:
                found.event.append(i)
                found.time_us.append(entry["time_us"])
                found.reserved.append(reserved)
                for name, column in found.kinds.items():
                    column.append(held[name])
        return found

    def reserved_at_peak(self) -> int:
        """Returns the bytes of the allocator at the peak."""
        return sum(
            _GROWS.get(entry["action"], 0) * int(entry["size"])
            for entry in self.trace[: self.peak_at + 1]
        )


def device_fit(
    history: History,
    capacity: int,
    stats: dict[str, int],
    outside: list[Outside],
    left_outside: int,
) -> DeviceFit:
    """Returns the answer for one device.

    Args:
        history: Of the device.
        capacity: Of the device.
        stats: The allocator's statistics at the end.
        outside: Memory that the allocator does not see.
        left_outside: How much of that the run left to others.
    """
    at_peak, lines = Counter[str](), Counter[str]()
    modules: dict[tuple[str, str], tuple[int, int]] = {}
    for block in history.live():
        size = block.made["size"]
        at_peak[block.kind] += size
        lines[_line(block.made)] += size
        if block.kind == ACTIVATIONS:
            key = _starred(block.place.module), block.place.kind
            held, count = modules.get(key, (0, 0))
            modules[key] = held + size, count + 1
    peak_allocated = stats["allocated_bytes.all.peak"]
    rounded = peak_allocated - sum(at_peak.values())
    if rounded > 0 and not history.asked:
        at_peak[ROUNDED] = rounded
    line, module, phase = _where(history)
    return DeviceFit(
        caught=history.caught,
        capacity=capacity,
        outside=outside,
        left_outside=left_outside,
        peak_allocated=peak_allocated,
        peak_reserved=stats["reserved_bytes.all.peak"],
        at_peak=dict(at_peak.most_common()),
        unused_at_peak=max(0, history.reserved_at_peak() - sum(at_peak.values())),
        modules=[
            ModuleShare(name, kind, held, count)
            for (name, kind), (held, count) in sorted(
                modules.items(), key=lambda row: row[1], reverse=True
            )
        ],
        lines=dict(lines.most_common(LINES)),
        peak_line=line,
        peak_module=module,
        peak_phase=phase,
        asked=history.asked,
        timeline=history.timeline(),
    )


def _where(history: History) -> tuple[str, str, str]:
    """Returns line, module and phase of the peak."""
    entry = history.trace[history.peak_at]
    place = history.place_of(entry)
    if place.phase or not history.in_backward(entry):
        return _line(entry), _starred(place.module), place.phase
    node = history.last_of_backward()
    if node is None:
        return _line(entry), "", "backward"
    return _line(node.made), _starred(node.place.module), "backward"


def _change(entry: Entry) -> int:
    if entry["action"] == "alloc":
        return int(entry["size"])
    return -int(entry["size"]) if entry["action"] == "free_completed" else 0


def _line(entry: Entry) -> str:
    """Returns the line to blame for an entry, "file:line"; "a backward pass" without frames."""
    frames = ((row["filename"], row["line"], row["name"]) for row in entry["frames"])
    for file, line, _ in to_blame(frames):
        return file_line(file, line)
    return "a backward pass"


def _starred(name: str) -> str:
    return ".".join("*" if part.isdigit() else part for part in name.split("."))
