# SPDX-License-Identifier: BSD-3-Clause
"""A slow, obvious model of the caching allocator, to judge the fast one by.

Written from the description of upstream's behaviour, sharing nothing with allocator/*.cpp: a
segment is a list of blocks, every search looks at every block, every statistic is a sum. Only
totals that cannot be recomputed from the state (retries, device calls) are counted.
"""

from __future__ import annotations

from dataclasses import dataclass, field

KIB = 1024
MIB = 1024 * KIB
EXABYTE = 1 << 60
UNLIMITED = 1 << 64


@dataclass(frozen=True)
class Rules:
    """The rules that differ between the configurations under test; sizes in bytes."""

    quantum: int = 32
    pad: int = 0
    divisions: int = 0  # the same for every size
    max_split: int = UNLIMITED
    max_rounding: int = 20 * MIB
    by_address: bool = False
    first_fit: bool = False
    search_after_sync: bool = True
    fraction: float = 1.0
    gc_threshold: float = 0.0

    def round(self, requested: int) -> int:
        size = requested + self.pad
        if self.divisions > 1 and size > self.quantum * self.divisions:
            power = 1 << (size.bit_length() - 1)
            step = power // self.divisions
            return -(-size // step) * step
        return -(-size // self.quantum) * self.quantum

    @staticmethod
    def segment_size(rounded: int) -> int:
        if rounded <= MIB:
            return 2 * MIB
        if rounded < 10 * MIB:
            return 20 * MIB
        return -(-rounded // (2 * MIB)) * 2 * MIB


@dataclass(eq=False)
class RefBlock:
    segment: RefSegment
    offset: int
    size: int
    state: str = "free"  # or "live", "pending"
    requested: int = 0
    uses: list[int] = field(default_factory=list)  # streams; once freed they are in the queues
    marks: int = 0
    idle_since: int = 0

    @property
    def placement(self) -> tuple[int, int]:
        return self.segment.number, self.offset


@dataclass(eq=False)
class RefSegment:
    number: int
    address: int
    size: int
    stream: int
    small: bool
    blocks: list[RefBlock] = field(default_factory=list)

    @property
    def whole_and_free(self) -> bool:
        return len(self.blocks) == 1 and self.blocks[0].state == "free"


class OutOfMemory(Exception):
    pass


class Reference:
    """The model: one device with its clock, and one allocator."""

    def __init__(self, capacity: int, rules: Rules, scatter: int = 0) -> None:
        self.capacity, self.rules, self.scatter = capacity, rules, scatter
        self.allowed = round(rules.fraction * capacity) if rules.fraction < 1 else UNLIMITED
        self.segments: list[RefSegment] = []
        self.bought = 0
        self.next_address = 1 << 40
        self.now = 0
        self.stream_end: dict[int, int] = {}
        self.queues: dict[int, list[tuple[int, RefBlock]]] = {}
        self.searches = {True: 0, False: 0}
        self.counts = dict.fromkeys(
            (
                "num_alloc_retries",
                "num_ooms",
                "num_sync_all_streams",
                "num_device_alloc",
                "num_device_free",
            ),
            0,
        )
        self.total: dict[str, int] = {"allocation": 0, "allocated_bytes": 0, "requested_bytes": 0}

    # --- the device

    def run(self, stream: int, duration: int) -> None:
        self.stream_end[stream] = max(self.stream_end.get(stream, 0), self.now) + duration

    def advance(self, duration: int) -> None:
        self.now += duration

    @property
    def reserved(self) -> int:
        return sum(segment.size for segment in self.segments)

    # --- what a user calls

    def malloc(self, requested: int, stream: int) -> RefBlock:
        if requested >= EXABYTE:
            raise OutOfMemory
        self.process_events()
        size = self.rules.round(requested)
        small = size <= MIB
        block = self._search(size, stream, small) or self._obtain(size, stream, small)
        rest = block.size - size
        may_split = rest >= self.rules.quantum if small else rest > MIB
        if may_split and (small or size < self.rules.max_split):
            blocks = block.segment.blocks
            tail = RefBlock(block.segment, block.offset + size, rest)
            tail.idle_since = self.searches[small]
            blocks.insert(blocks.index(block) + 1, tail)
            block.size = size
        block.state, block.requested = "live", requested
        self.total["allocation"] += 1
        self.total["allocated_bytes"] += block.size
        self.total["requested_bytes"] += requested
        return block

    def record_stream(self, block: RefBlock, stream: int) -> None:
        if stream != block.segment.stream and stream not in block.uses:
            block.uses.append(stream)

    def free(self, block: RefBlock) -> None:
        for stream in block.uses:
            end = max(self.stream_end.get(stream, 0), self.now)
            self.queues.setdefault(stream, []).append((end, block))
        block.marks = len(block.uses)
        block.uses = []
        block.state = "pending"
        if block.marks == 0:
            self._give_back(block)

    def process_events(self) -> None:
        for stream in sorted(self.queues):
            queue = self.queues[stream]
            while queue and queue[0][0] <= self.now:
                self._complete(queue.pop(0)[1])

    def empty_cache(self) -> None:
        self._wait_for_pending()
        self._release([s for s in self.segments if s.whole_and_free])

    # --- inner steps

    def _complete(self, block: RefBlock) -> None:
        block.marks -= 1
        if block.marks == 0:
            self._give_back(block)

    def _give_back(self, block: RefBlock) -> None:
        block.state, block.requested = "free", 0
        block.idle_since = self.searches[block.segment.small]
        merged: list[RefBlock] = []
        for other in block.segment.blocks:
            if merged and merged[-1].state == other.state == "free":
                merged[-1].size += other.size
                merged[-1].idle_since = block.idle_since
            else:
                merged.append(other)
        block.segment.blocks = merged

    def _free_blocks(self, stream: int, small: bool) -> list[RefBlock]:
        return [
            block
            for segment in self.segments
            if segment.stream == stream and segment.small == small
            for block in segment.blocks
            if block.state == "free"
        ]

    def _order(self, block: RefBlock) -> tuple[int, int]:
        segment = block.segment
        return 0 if self.rules.by_address else segment.number, segment.address + block.offset

    def _search(self, size: int, stream: int, small: bool) -> RefBlock | None:
        rules = self.rules
        if self.allowed != UNLIMITED and rules.gc_threshold > 0:
            self.searches[small] += 1
        fitting = [b for b in self._free_blocks(stream, small) if b.size >= size]
        if not fitting:
            return None
        if rules.first_fit:
            best = min(fitting, key=self._order)
        else:
            best = min(fitting, key=lambda block: (block.size, *self._order(block)))
        if size < rules.max_split:
            return best if best.size < rules.max_split else None
        return best if best.size < size + rules.max_rounding else None

    def _obtain(self, size: int, stream: int, small: bool) -> RefBlock:
        if self.allowed != UNLIMITED and self.rules.gc_threshold > 0:
            self._collect_garbage()
        block = self._buy(size, stream, small)
        if block is None and self._release_oversize(size, stream, small):
            block = self._buy(size, stream, small)
        if block is None:
            self._wait_for_pending()
            if self.rules.search_after_sync:
                block = self._search(size, stream, small)
        if block is None:
            self._release([s for s in self.segments if s.whole_and_free])
            self.counts["num_alloc_retries"] += 1
            block = self._buy(size, stream, small)
        if block is None:
            self.counts["num_ooms"] += 1
            raise OutOfMemory
        return block

    def _buy(self, size: int, stream: int, small: bool) -> RefBlock | None:
        size = self.rules.segment_size(size)
        if self.reserved + size > min(self.allowed, self.capacity):
            return None
        segment = RefSegment(self.bought, self._place(size), size, stream, small)
        segment.blocks = [RefBlock(segment, 0, size)]
        self.bought += 1
        self.segments.append(segment)
        self.counts["num_device_alloc"] += 1
        return segment.blocks[0]

    def _place(self, size: int) -> int:
        if self.scatter:
            return ((self.bought + 1) * (2 * self.scatter + 1) % (1 << 20) + 1) << 40
        self.next_address += size
        return self.next_address - size

    def _release(self, segments: list[RefSegment]) -> None:
        if segments:
            self.now = max([self.now, *self.stream_end.values()])
        for segment in segments:
            self.segments.remove(segment)
            self.counts["num_device_free"] += 1

    def _release_oversize(self, size: int, stream: int, small: bool) -> bool:
        limit = self.rules.max_split
        if limit == UNLIMITED:
            return False
        wanted = max(size, limit)
        blocks = sorted(
            self._free_blocks(stream, small), key=lambda block: (block.size, *self._order(block))
        )
        for block in blocks:
            if block.size >= wanted:
                self._release([block.segment])
                return True
        total = 0
        chosen = []
        for block in reversed(blocks):
            if block.size < limit or total >= wanted:
                break
            chosen.append(block.segment)
            total += block.size
        self._release(chosen)
        return total >= wanted

    def _collect_garbage(self) -> None:
        threshold = int(self.rules.gc_threshold * self.allowed)
        target = self.reserved - threshold
        reclaimed = 0
        while reclaimed < target:
            whole = [s for s in self.segments if s.whole_and_free and not s.small]
            if not whole:
                return
            ages = {s.number: self.searches[False] - s.blocks[0].idle_since for s in whole}
            average = sum(ages.values()) / len(ages)
            old = [s for s in whole if ages[s.number] >= average]
            reclaimed += sum(s.size for s in old)
            self._release(old)

    def _wait_for_pending(self) -> None:
        self.counts["num_sync_all_streams"] += 1
        for stream in sorted(self.queues):
            for end, block in self.queues[stream]:
                self.now = max(self.now, end)
                self._complete(block)
        self.queues.clear()

    # --- statistics

    def stats(self) -> dict[str, int]:
        """Return the current values, by the keys of the allocator under test."""
        out = dict(self.counts)
        for pool, small in (("all", None), ("small_pool", True), ("large_pool", False)):
            segments = [s for s in self.segments if small is None or s.small == small]
            blocks = [b for s in segments for b in s.blocks]
            live = [b for b in blocks if b.state == "live"]
            active = [b for b in blocks if b.state != "free"]
            split = [b for b in blocks if b.state == "free" and len(b.segment.blocks) > 1]
            out |= {
                f"segment.{pool}.current": len(segments),
                f"reserved_bytes.{pool}.current": sum(s.size for s in segments),
                f"allocation.{pool}.current": len(live),
                f"allocated_bytes.{pool}.current": sum(b.size for b in live),
                f"active.{pool}.current": len(active),
                f"active_bytes.{pool}.current": sum(b.size for b in active),
                f"requested_bytes.{pool}.current": sum(b.requested for b in active),
                f"inactive_split.{pool}.current": len(split),
                f"inactive_split_bytes.{pool}.current": sum(b.size for b in split),
            }
        for name, value in self.total.items():
            out[f"{name}.all.allocated"] = value
        return out
