# SPDX-License-Identifier: BSD-3-Clause
"""From torch's memory snapshots (_dump_snapshot() of torch.cuda or any device) to traces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any

from npusim_lab import safe_pickle
from npusim_lab.trace import Frame, Op, Trace, TraceBuilder, TraceError

_ALIVE = ("active_allocated", "active_pending_free", "active_awaiting_free")
_SEGMENT_OPS = {
    "segment_alloc": Op.SEGMENT_ALLOC,
    "segment_free": Op.SEGMENT_FREE,
    "segment_map": Op.SEGMENT_MAP,
    "segment_unmap": Op.SEGMENT_UNMAP,
}
_GIVEN_BACK = ("segment_free", "segment_unmap")
_WITHOUT_EFFECT = ("annotate",)


def read_snapshot(
    path: str | PathLike[str], device: int | None = None, capacity_bytes: int | None = None
) -> Trace:
    """Read a snapshot pickle without running anything in it; arguments as for from_snapshot().

    Raises:
        TraceError: If it is none, asks for code, or holds events that cannot be.
        OSError: If it cannot be read.
    """
    snapshot = safe_pickle.load(path)
    try:
        return from_snapshot(snapshot, device, capacity_bytes)
    except TraceError as problem:
        raise TraceError(f"{path}: {problem}") from None


def from_snapshot(
    snapshot: Any, device: int | None = None, capacity_bytes: int | None = None
) -> Trace:
    """Return the history of one device in a snapshot as a trace.

    Args:
        snapshot: the dictionary of torch.cuda.memory._snapshot().
        device: which one; may be left out if the snapshot is about one device only.
        capacity_bytes: of that device, where known. With it a release of cached memory is told
            apart from one that a full device forced.

    Raises:
        TraceError: Naming the entry that cannot be, and why.
    """
    if not isinstance(snapshot, Mapping) or "segments" not in snapshot:
        raise TraceError(
            "not a snapshot: expected a dictionary with 'segments' and 'device_traces'"
        )
    try:
        number = _choose_device(snapshot, device)
        histories = snapshot.get("device_traces") or []
        entries = histories[number] if 0 <= number < len(histories) else []
        segments = [s for s in snapshot["segments"] if s.get("device", 0) == number]
        return _Importer(segments, entries, number, capacity_bytes).run()
    except TraceError:
        raise
    except (LookupError, TypeError, AttributeError, OverflowError, ValueError) as problem:
        raise TraceError(
            f"not a snapshot: an entry lacks, or has a wrong, value: {problem!r}"
        ) from None


def _choose_device(snapshot: Mapping[str, Any], device: int | None) -> int:
    busy = {int(s.get("device", 0)) for s in snapshot["segments"]}
    for i, entries in enumerate(snapshot.get("device_traces") or []):
        if any(entry["action"] != "snapshot" for entry in entries):
            busy.add(i)
    if device is not None:
        if device not in busy:
            raise TraceError(f"nothing is recorded for device {device}; there are {sorted(busy)}")
        return device
    if not busy:
        raise TraceError("the snapshot is empty: was _record_memory_history() called before?")
    if len(busy) > 1:
        raise TraceError(f"the snapshot is about devices {sorted(busy)}; choose one (device=...)")
    return busy.pop()


class _Importer:
    def __init__(
        self,
        segments: Sequence[Mapping[str, Any]],
        entries: Sequence[Mapping[str, Any]],
        device: int,
        capacity_bytes: int | None,
    ) -> None:
        self.segments = segments
        self.entries = entries
        self.device = device
        self.capacity = capacity_bytes
        self.out = TraceBuilder()
        self.streams: dict[int, int] = {0: 0}
        self.pools: dict[tuple[int, int], int] = {(0, 0): 0}
        self.stacks: dict[int, int] = {}  # by identity: a pickle shares equal lists of frames
        self.live: dict[int, int] = {}  # id by address
        self.since: dict[int, int] = {}  # entry by address
        self.ambiguous: list[str] = []

    def run(self) -> Trace:
        initial = self._initial()
        reserved = self._initial_reserved()
        for position, entry in enumerate(self.entries):
            action = str(entry["action"])
            if action in _GIVEN_BACK and self._is_first_of_row(position):
                if self._was_asked_for(position, reserved):
                    self.out.add(Op.EMPTY_CACHE, time_ns=self._time(entry))
            if action in ("segment_alloc", "segment_map"):
                reserved += int(entry["size"])
            elif action in _GIVEN_BACK:
                reserved -= int(entry["size"])
            self._add(position, action, entry)
        info = {
            "source": "torch snapshot",
            "device": self.device,
            "initial_mallocs": initial,
            "ambiguous": self.ambiguous,
            "streams": list(self.streams),
            "pools": [list(pool) for pool in self.pools],
        }
        if self.capacity is not None:
            info["capacity_bytes"] = self.capacity
        return self.out.build(info)

    # --- What was there before the first entry.

    def _initial(self) -> int:
        """Add the blocks older than the trace, as mallocs at its beginning."""
        older: dict[int, tuple[int, Mapping[str, Any], int, bool]] = {}
        seen: set[int] = set()  # addresses whose first entry was met
        last: dict[int, str] = {}
        for entry in self.entries:
            action = entry["action"]
            if action not in ("alloc", "free_requested", "free_completed"):
                continue
            address = int(entry["addr"])
            if address not in seen:
                seen.add(address)
                if action != "alloc":
                    older[address] = (int(entry["size"]), entry, 0, action == "free_completed")
            last[address] = action
        for segment in self.segments:
            address = int(segment["address"])
            for block in segment["blocks"]:
                start = int(block.get("address", address))
                address = start + int(block["size"])
                if block["state"] not in _ALIVE or start in seen:
                    continue
                size = int(block.get("requested_size", block["size"]))
                stack = self._stack(block.get("frames"))
                pending = block["state"] != "active_allocated"
                older[start] = (size, segment, stack, pending)
        for address in sorted(older):
            size, source, stack, pending = older[address]
            if size <= 0:
                raise TraceError(f"the block at {address:#x} has {size} bytes")
            pool = source.get("segment_pool_id", source.get("pool_id", (0, 0)))
            id = self.out.malloc(
                size, self._stream(source["stream"]), self._pool(pool), stack, address=address
            )
            self.live[address] = id
            if pending:
                self.out.add(Op.FREE_REQUESTED, id)
        if older:
            self.out.add(Op.RESET_PEAKS)
            self.ambiguous.append(
                f"{len(older)} blocks are older than the first entry (recording began late, or its "
                f"buffer was full and lost the beginning): the order in which they were allocated "
                f"is unknown. They stand at the beginning, by address"
            )
        return len(older)

    def _initial_reserved(self) -> int:
        reserved = sum(int(segment["total_size"]) for segment in self.segments)
        for entry in self.entries:
            if entry["action"] in ("segment_alloc", "segment_map"):
                reserved -= int(entry["size"])
            elif entry["action"] in _GIVEN_BACK:
                reserved += int(entry["size"])
        return max(reserved, 0)

    # --- Entries.

    def _add(self, position: int, action: str, entry: Mapping[str, Any]) -> None:
        time = self._time(entry)
        if action in _WITHOUT_EFFECT:
            return
        size, stream = int(entry["size"]), self._stream(entry["stream"])
        pool = self._pool(entry.get("pool_id", (0, 0)))
        address = int(entry["device_free"] if "device_free" in entry else entry.get("addr", 0))
        stack = self._stack(entry.get("frames"))
        if action == "alloc":
            if address in self.live:
                since = self.since.get(address)
                began = "the beginning" if since is None else f"entry {since}"
                raise TraceError(
                    f"entry {position} of device {self.device}: alloc of {size} bytes at "
                    f"{address:#x}, where a block has been since {began}; its free is missing "
                    f"(was skip_actions used?)"
                )
            self.since[address] = position
            self.live[address] = self.out.malloc(
                size, stream, pool, stack, time_ns=time, address=address
            )
        elif action == "free_requested":
            self.out.add(Op.FREE_REQUESTED, self._known(position, action, address), time_ns=time)
        elif action == "free_completed":
            id = self._known(position, action, address)
            self.out.add(Op.FREE_COMPLETED, id, time_ns=time)
            del self.live[address]
        elif action in _SEGMENT_OPS:
            self.out.add(_SEGMENT_OPS[action], address, size, stream, pool, stack, time)
        elif action == "oom":
            self.out.add(Op.OOM, address, size, stream, pool, stack, time)
        elif action == "snapshot":
            self.out.add(Op.SNAPSHOT, time_ns=time)
        else:
            raise TraceError(
                f"entry {position} of device {self.device}: action {action!r} is unknown; expected "
                f"one of torch's trace entries"
            )

    def _known(self, position: int, action: str, address: int) -> int:
        if address not in self.live:
            raise TraceError(
                f"entry {position} of device {self.device}: {action} at {address:#x}, where no "
                f"block is: its alloc is missing, or it is freed twice"
            )
        return self.live[address]

    # --- Was a release of cached memory asked for, or forced by a full device?

    def _is_first_of_row(self, position: int) -> bool:
        return position == 0 or self.entries[position - 1]["action"] not in _GIVEN_BACK

    def _was_asked_for(self, position: int, reserved: int) -> bool:
        end = position
        while end < len(self.entries) and self.entries[end]["action"] in _GIVEN_BACK:
            end += 1
        following = self.entries[end] if end < len(self.entries) else None
        if following is None:
            return True
        if following["action"] == "oom":
            return False
        if following["action"] in ("segment_alloc", "segment_map"):
            if self.capacity is not None:
                return reserved + int(following["size"]) <= self.capacity
            doubt = (
                f"entry {position}: cached memory is given back before more is taken; without the "
                f"capacity of the device it is unknown whether empty_cache() was called: it is "
                f"taken for a full device"
            )
            if not any("without the capacity" in known for known in self.ambiguous):
                self.ambiguous.append(doubt)
            return False
        return True

    # --- Small numbers for large ones.

    def _stream(self, raw: Any) -> int:
        return self.streams.setdefault(int(raw), len(self.streams))

    def _pool(self, raw: Any) -> int:
        first, second = raw
        return self.pools.setdefault((int(first), int(second)), len(self.pools))

    def _stack(self, frames: Any) -> int:
        if not frames:
            return 0
        number = self.stacks.get(id(frames))
        if number is None:
            stack: list[Frame] = [
                (str(f["filename"]), int(f["line"]), str(f["name"])) for f in frames
            ]
            number = self.stacks[id(frames)] = self.out.stack(stack)
        return number

    @staticmethod
    def _time(entry: Mapping[str, Any]) -> int:
        return max(int(entry.get("time_us", 0)), 0) * 1000
