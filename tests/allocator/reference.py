# SPDX-License-Identifier: BSD-3-Clause
"""A slow, obvious model of the caching allocator, to judge the fast one by.

Written from the description of upstream's behaviour, sharing nothing with allocator/*.cpp: a
segment is a list of blocks, every search looks at every block, every statistic is a sum. Only
totals that cannot be recomputed from the state (retries, device calls) are counted. An expandable
segment is a list of blocks too, some of them unmapped.
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
    by_creation: bool = False
    defers_in_scopes: bool = False
    first_fit: bool = False
    search_after_sync: bool = True
    expandable: bool = False
    oversize_on_expandable: bool = False
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
    state: str = "free"  # or "live", "pending", "unmapped"
    requested: int = 0
    uses: list[int] = field(default_factory=list)  # streams; once freed they are in the queues
    marks: int = 0
    idle_since: int = 0
    created: int = 0
    scope_uses: list[int] = field(default_factory=list)

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
    pool: int = 0
    expandable: bool = False
    blocks: list[RefBlock] = field(default_factory=list)

    @property
    def whole_and_free(self) -> bool:
        return len(self.blocks) == 1 and self.blocks[0].state == "free"

    @property
    def page(self) -> int:
        return 2 * MIB if self.small else 20 * MIB

    @property
    def mapped(self) -> int:
        return sum(block.size for block in self.blocks if block.state != "unmapped")

    def merge(self) -> None:
        """Make one block of neighbours that are both free, or both unmapped."""
        merged: list[RefBlock] = []
        for block in self.blocks:
            if merged and merged[-1].state == block.state in ("free", "unmapped"):
                merged[-1].size += block.size
            else:
                merged.append(block)
        self.blocks = merged

    def merge_into(self, block: RefBlock) -> RefBlock:
        """Merge; what holds the block now goes on with its record. Returns it."""
        self.merge()
        (found,) = [b for b in self.blocks if b.offset <= block.offset < b.offset + b.size]
        found.created, found.scope_uses = block.created, block.scope_uses
        return found

    def reach(self, block: RefBlock) -> int:
        """How large a free block is with the unmapped addresses behind it."""
        after = self.blocks[self.blocks.index(block) + 1 :]
        return block.size + (after[0].size if after and after[0].state == "unmapped" else 0)


@dataclass
class RefPool:
    users: int = 1
    use_on_oom: bool = False
    no_split: bool = False
    searches: dict[bool, int] = field(default_factory=lambda: {True: 0, False: 0})


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
        self.pools = {0: RefPool()}
        self.held: dict[int, RefBlock] = {}
        self.holds = 0
        self.scopes = 0
        self.created = 0
        self.deferred: list[RefBlock] = []
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
        return sum(segment.mapped for segment in self.segments)

    # --- what a user calls

    def malloc(self, requested: int, stream: int, pool: int = 0) -> RefBlock:
        if requested >= EXABYTE:
            raise OutOfMemory
        self.process_events()
        size = self.rules.round(requested)
        small = size <= MIB
        block = self._search(size, stream, small, pool) or self._obtain(size, stream, small, pool)
        rest = block.size - size
        fine = small or block.segment.expandable
        may_split = rest >= self.rules.quantum if fine else rest > MIB
        if self.pools[block.segment.pool].no_split:
            may_split = False
        if may_split and (fine or size < self.rules.max_split):
            blocks = block.segment.blocks
            tail = RefBlock(block.segment, block.offset + size, rest)
            tail.idle_since = self.pools[block.segment.pool].searches[small]
            blocks.insert(blocks.index(block) + 1, tail)
            block.size = size
            # The rest goes on with the record, and the block gets a new one.
            tail.created, tail.scope_uses = block.created, block.scope_uses
            block.created, block.scope_uses = self._new_record(), []
        block.state, block.requested = "live", requested
        self.total["allocation"] += 1
        self.total["allocated_bytes"] += block.size
        self.total["requested_bytes"] += requested
        return block

    def record_stream(self, block: RefBlock, stream: int) -> None:
        if stream == block.segment.stream:
            return
        if stream not in block.uses:
            block.uses.append(stream)
        if self._defers:
            block.scope_uses.append(stream)

    def free(self, block: RefBlock) -> None:
        block.state = "pending"
        if block.uses and self._defers:
            self.deferred.append(block)
        else:
            self._mark(block)

    def _mark(self, block: RefBlock) -> None:
        for stream in block.uses:
            end = max(self.stream_end.get(stream, 0), self.now)
            self.queues.setdefault(stream, []).append((end, block))
        block.marks = len(block.uses)
        block.uses = []
        if block.marks == 0:
            self._give_back(block)

    def _mark_deferred(self) -> None:
        for block in self.deferred:
            block.uses = [stream for stream in block.uses if stream not in block.scope_uses]
            block.scope_uses = []
            self._mark(block)
        self.deferred = []

    @property
    def _defers(self) -> bool:
        return self.rules.defers_in_scopes and self.scopes > 0

    def _new_record(self) -> int:
        self.created += 1
        return self.created

    def free_held(self, block: RefBlock) -> int:
        block.uses = []
        block.state = "pending"
        self.holds += 1
        self.held[self.holds] = block
        return self.holds

    def complete(self, hold: int) -> bool:
        if hold not in self.held:
            return False
        self._give_back(self.held.pop(hold))
        return True

    def process_events(self) -> None:
        if self._defers:
            return
        self._mark_deferred()
        for stream in sorted(self.queues):
            queue = self.queues[stream]
            while queue and queue[0][0] <= self.now:
                self._complete(queue.pop(0)[1])

    def empty_cache(self, pool: int = 0) -> None:
        if pool == 0:
            self._wait_for_pending()
            self._release_cached(unused_only=self._defers)
        elif pool in self.pools and self.pools[pool].users == 0:
            self._wait_for_pending(pool)
            self._release_pool_memory(pool)

    def create_pool(self, pool: int, use_on_oom: bool = False, no_split: bool = False) -> None:
        self.pools[pool] = RefPool(1, use_on_oom, no_split)

    def retain_pool(self, pool: int) -> None:
        self.pools[pool].users += 1

    def release_pool(self, pool: int) -> None:
        self.pools[pool].users -= 1
        self._forget_pool(pool)

    # --- inner steps

    def _complete(self, block: RefBlock) -> None:
        block.marks -= 1
        if block.marks == 0:
            self._give_back(block)

    def _give_back(self, block: RefBlock) -> None:
        segment = block.segment
        block.state, block.requested = "free", 0
        segment.merge_into(block).idle_since = self.pools[segment.pool].searches[segment.small]

    def _free_blocks(self, stream: int, small: bool, pool: int) -> list[RefBlock]:
        return [
            block
            for segment in self.segments
            if (segment.stream, segment.small, segment.pool) == (stream, small, pool)
            for block in segment.blocks
            if block.state == "free"
        ]

    def _order(self, block: RefBlock) -> tuple[int, int]:
        segment = block.segment
        first = block.created if self.rules.by_creation else segment.number
        return 0 if self.rules.by_address else first, segment.address + block.offset

    def _search(self, size: int, stream: int, small: bool, pool: int) -> RefBlock | None:
        rules = self.rules
        if self.allowed != UNLIMITED and rules.gc_threshold > 0:
            self.pools[pool].searches[small] += 1
        fitting = [b for b in self._free_blocks(stream, small, pool) if b.size >= size]
        if not fitting:
            return None
        fitting.sort(
            key=self._order if rules.first_fit else lambda block: (block.size, *self._order(block))
        )
        best = fitting[0]
        if best.segment.expandable:
            if not rules.first_fit:
                for following in fitting[1:]:
                    if following.segment.reach(following) >= best.segment.reach(best):
                        break
                    best = following
            if not rules.oversize_on_expandable:
                return best
        if size < rules.max_split:
            return best if best.size < rules.max_split else None
        return best if best.size < size + rules.max_rounding else None

    def _obtain(self, size: int, stream: int, small: bool, pool: int) -> RefBlock:
        if self.allowed != UNLIMITED and self.rules.gc_threshold > 0:
            self._collect_garbage()
        block = self._buy(size, stream, small, pool)
        if block is None:
            block = self._borrow(size, stream, small, pool)
        if block is None and self._release_oversize(size, stream, small, pool):
            block = self._buy(size, stream, small, pool)
        if block is None and not self._defers:
            self._wait_for_pending()
            if self.rules.search_after_sync:
                block = self._search(size, stream, small, pool)
        if block is None and not self._defers:
            self._release_cached()
            self.counts["num_alloc_retries"] += 1
            block = self._buy(size, stream, small, pool)
        if block is None:
            self.counts["num_ooms"] += 1
            raise OutOfMemory
        return block

    def _borrow(self, size: int, stream: int, small: bool, pool: int) -> RefBlock | None:
        if pool == 0 and not self.rules.expandable:
            for number in sorted(self.pools):
                if self.pools[number].use_on_oom and self.pools[number].users > 0:
                    block = self._search(size, stream, small, number)
                    if block is not None:
                        return block
        return None

    def _buy(self, size: int, stream: int, small: bool, pool: int) -> RefBlock | None:
        bought = self.rules.segment_size(size)
        if self.reserved + bought > self.allowed:
            return None
        if self.rules.expandable:
            return self._grow(size, stream, small, pool)
        if self.reserved + bought > self.capacity:
            return None
        segment = RefSegment(self.bought, self._place(bought), bought, stream, small, pool)
        segment.blocks = [RefBlock(segment, 0, bought, created=self._new_record())]
        self.bought += 1
        self.segments.append(segment)
        self.counts["num_device_alloc"] += 1
        return segment.blocks[0]

    # --- expandable segments

    def _grow(self, size: int, stream: int, small: bool, pool: int) -> RefBlock | None:
        run = self._room(size, stream, small, pool)
        if run is None:
            return None
        segment, start = run[0].segment, run[0].offset
        missing = size
        last = run[0]
        for block in run:
            if missing > 0 and block.state == "unmapped":
                mapped = -(-min(missing, block.size) // segment.page) * segment.page
                if self.reserved + mapped > self.capacity:
                    segment.merge_into(last)
                    return None
                self.counts["num_device_alloc"] += 1
                block.state, last = "free", block
                if mapped < block.size:
                    rest = RefBlock(segment, block.offset + mapped, block.size - mapped, "unmapped")
                    rest.created = self._new_record()
                    segment.blocks.insert(segment.blocks.index(block) + 1, rest)
                    block.size = mapped
            missing -= block.size
        found = segment.merge_into(last)
        assert found.offset <= start
        return found

    def _room(self, size: int, stream: int, small: bool, pool: int) -> list[RefBlock] | None:
        """Neighbouring free or unmapped blocks of enough addresses together, the lowest such."""
        found: list[list[RefBlock]] = []
        for segment in self.segments:
            if (segment.stream, segment.small, segment.pool) != (stream, small, pool):
                continue
            for i, block in enumerate(segment.blocks):
                if block.state != "unmapped":
                    continue
                begin = i - 1 if i > 0 and segment.blocks[i - 1].state == "free" else i
                run = []
                for other in segment.blocks[begin:]:
                    if other.state not in ("free", "unmapped"):
                        break
                    run.append(other)
                if sum(b.size for b in run) >= size:
                    found.append(run)
        if found:
            return min(found, key=lambda run: run[0].segment.address + run[0].offset)
        page = 2 * MIB if small else 20 * MIB
        addresses = -(-(self.capacity + self.capacity // 8) // page) * page
        if size > addresses:
            return None
        address = self._place(addresses + 2 * MIB)
        segment = RefSegment(self.bought, address, addresses, stream, small, pool, expandable=True)
        segment.blocks = [RefBlock(segment, 0, addresses, "unmapped", created=self._new_record())]
        self.bought += 1
        self.segments.append(segment)
        return segment.blocks

    def _unmap(self, segments: list[RefSegment]) -> None:
        free = [b for segment in segments for b in segment.blocks if b.state == "free"]
        free.sort(
            key=lambda b: (
                b.segment.small == (b.segment.pool == 0),
                b.segment.stream,
                b.size,
                self._order(b),
            )
        )
        for block in free:
            segment = block.segment
            begin = -(-block.offset // segment.page) * segment.page
            end = (block.offset + block.size) // segment.page * segment.page
            if begin >= end:
                continue
            self.now = max(self.now, self.stream_end.get(segment.stream, 0))
            self.counts["num_device_free"] += 1
            before = RefBlock(segment, block.offset, begin - block.offset)
            behind = RefBlock(segment, end, block.offset + block.size - end)
            for part in (before, behind):
                part.created = self._new_record()
            block.offset, block.size, block.state = begin, end - begin, "unmapped"
            at = segment.blocks.index(block)
            parts = [part for part in (before, block, behind) if part.size > 0]
            segment.blocks[at : at + 1] = parts
            segment.merge_into(block)
            if segment.mapped == 0:
                self.segments.remove(segment)

    def _place(self, size: int) -> int:
        if self.scatter:
            return ((self.bought + 1) * (2 * self.scatter + 1) % (1 << 20) + 1) << 40
        self.next_address += size
        return self.next_address - size

    def _wait_for_device(self) -> None:
        self.now = max([self.now, *self.stream_end.values()])

    def _release(self, segments: list[RefSegment]) -> None:
        if segments:
            self._wait_for_device()
        for segment in segments:
            self.segments.remove(segment)
            self.counts["num_device_free"] += 1

    def _release_cached(self, unused_only: bool = False) -> None:
        for pool in sorted(self.pools):
            if self.pools[pool].users == 0 or (pool == 0 and not unused_only):
                self._release_pool_memory(pool)

    def _release_pool_memory(self, pool: int) -> None:
        own = [s for s in self.segments if s.pool == pool]
        self._unmap([s for s in own if s.expandable])
        self._release([s for s in own if s.whole_and_free and not s.expandable])
        self._forget_pool(pool)

    def _forget_pool(self, pool: int) -> None:
        """A private pool without users ends when nothing of it has memory."""
        if pool == 0 or self.pools[pool].users > 0:
            return
        if all(s.mapped == 0 for s in self.segments if s.pool == pool):
            self.segments = [s for s in self.segments if s.pool != pool]
            del self.pools[pool]

    def _release_oversize(self, size: int, stream: int, small: bool, pool: int) -> bool:
        limit = self.rules.max_split
        if limit == UNLIMITED or self.rules.expandable:
            return False
        wanted = max(size, limit)
        blocks = sorted(
            self._free_blocks(stream, small, pool),
            key=lambda block: (block.size, *self._order(block)),
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
            whole = [
                s
                for s in self.segments
                if s.whole_and_free and not s.small and s.pool == 0 and not s.expandable
            ]
            if not whole:
                return
            ages = {s.number: self.pools[0].searches[False] - s.blocks[0].idle_since for s in whole}
            average = sum(ages.values()) / len(ages)
            old = [s for s in whole if ages[s.number] >= average]
            reclaimed += sum(s.size for s in old)
            self._release(old)

    def _wait_for_pending(self, pool: int | None = None) -> None:
        if self._defers:
            return
        self._mark_deferred()
        self.counts["num_sync_all_streams"] += 1
        for stream in sorted(self.queues):
            rest = []
            for end, block in self.queues[stream]:
                if pool is not None and block.segment.pool != pool:
                    rest.append((end, block))
                    continue
                self.now = max(self.now, end)
                self._complete(block)
            self.queues[stream] = rest
        for hold, block in list(self.held.items()):
            if pool is None or block.segment.pool == pool:
                self.complete(hold)

    # --- statistics

    def stats(self) -> dict[str, int]:
        """Return the current values, by the keys of the allocator under test."""
        out = dict(self.counts)
        for pool, small in (("all", None), ("small_pool", True), ("large_pool", False)):
            segments = [s for s in self.segments if small is None or s.small == small]
            blocks = [b for s in segments for b in s.blocks]
            live = [b for b in blocks if b.state == "live"]
            active = [b for b in blocks if b.state in ("live", "pending")]
            split = [
                b
                for b in blocks
                if b.state == "free" and len(b.segment.blocks) > 1 and not b.segment.expandable
            ]
            out |= {
                f"segment.{pool}.current": len([s for s in segments if not s.expandable]),
                f"reserved_bytes.{pool}.current": sum(s.mapped for s in segments),
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
