# SPDX-License-Identifier: BSD-3-Clause
"""A replay as a snapshot of torch, for its own viewer: plain values only, pickle protocol 4."""

from __future__ import annotations

import pickle
from os import PathLike
from typing import Any

import numpy as np

from npusim_lab import _lab
from npusim_lab.study import UNLIMITED, Choice, replay
from npusim_lab.trace import OP_NAMES, Op, Trace

_STATES = ("inactive", "active_allocated", "active_pending_free")


def write_snapshot(
    trace: Trace,
    path: str | PathLike[str],
    policy: Choice | None = None,
    capacity_bytes: int | None = None,
) -> None:
    """Replay a trace and write what a live device would have dumped; arguments of to_snapshot()."""
    snapshot = to_snapshot(trace, policy, capacity_bytes)
    with open(path, "wb") as file:
        pickle.dump(snapshot, file, protocol=4)


def to_snapshot(
    trace: Trace,
    policy: Choice | None = None,
    capacity_bytes: int | None = None,
    scatter_seed: int = 0,
) -> dict[str, Any]:
    """Return the dictionary of torch.cuda.memory._snapshot() after replaying a trace.

    Args:
        trace: the events.
        policy: a caching policy; "cuda-2.13" by default.
        capacity_bytes: of the device; as much as needed by default.
        scatter_seed: of addresses in a jumble, as a driver gives them; 0: ascending.

    Raises:
        ValueError: If the policy keeps no segments and blocks in torch's sense.
    """
    choice = policy or Choice("cuda-2.13")
    result = replay(trace, choice, capacity_bytes, picture_at_end=True, scatter_seed=scatter_seed)
    if not result.pictures:
        raise ValueError(f"policy {choice} has no blocks to show; use one of the caching presets")
    # As torch has it; another policy than torch's own is named before its settings.
    conf = choice.settings if choice.policy == "cuda-2.13" else str(choice)
    return _Exporter(trace, result, capacity_bytes or UNLIMITED).snapshot(conf)


class _Exporter:
    def __init__(self, trace: Trace, result: _lab.Replay, capacity_bytes: int) -> None:
        self.trace = trace
        self.result = result
        self.capacity = capacity_bytes
        self.frames = [
            [{"filename": file, "line": line, "name": name} for file, line, name in stack]
            for stack in trace.stacks
        ]
        self.entries: list[dict[str, Any]] = []
        self.pending: dict[int, tuple[int, int]] = {}  # malloc by id, and event of its free

    def snapshot(self, conf: str) -> dict[str, Any]:
        self._history()
        return {
            "segments": self._segments(),
            "device_traces": [self.entries],
            "allocator_settings": {"PYTORCH_ALLOC_CONF": conf},
            "external_annotations": [],
        }

    def _entry(
        self, event: int, action: str, address: int, bytes: int, stream: int, pool: int, stack: int
    ) -> None:
        time = self.trace.time_ns
        self.entries.append(
            {
                "action": action,
                "device_free" if action == "oom" else "addr": address,
                "size": bytes,
                "stream": stream,
                "time_us": event if time is None else int(time[event]) // 1000,
                "compile_context": "N/A",
                "user_metadata": "",
                "pool_id": (0, pool),
                "frames": self.frames[stack],
            }
        )

    def _history(self) -> None:
        trace, result = self.trace, self.result
        calls = 0
        malloc = -1
        live: dict[int, int] = {}  # malloc by id
        failures = {int(oom["event"]): oom for oom in result.ooms}
        device_event = result.device_event.tolist()
        for event, (op, id) in enumerate(zip(trace.op.tolist(), trace.id.tolist(), strict=True)):
            if op == Op.SYNCHRONIZE or (op == Op.EMPTY_CACHE and not trace.pool[event]):
                self._complete_all(event, event)
            while calls < len(device_event) and device_event[calls] <= event:
                self._device_call(event, calls)
                calls += 1
            if op == Op.MALLOC:
                malloc += 1
                if result.failed[malloc]:
                    oom = failures[event]
                    self._of(event, malloc, "oom", int(oom["free_bytes"]))
                    self._complete_all(event, event)  # behind it: a replay's request waits for them
                    continue
                live[id] = malloc
                self._reclaim(event, result.address[malloc], result.block_bytes[malloc])
                self._of(event, malloc, "alloc")
            elif op in (Op.FREE, Op.FREE_REQUESTED) and id in live:
                self._of(event, live[id], "free_requested")
                self.pending[id] = live.pop(id), event
                if op == Op.FREE:
                    self._complete(event, id)
            elif op == Op.FREE_COMPLETED:
                self._complete(event, id)

    def _device_call(self, event: int, call: int) -> None:
        result = self.result
        action = OP_NAMES[int(result.device_op[call])]
        if action in ("segment_free", "segment_unmap"):
            self._reclaim(event, result.device_address[call], result.device_bytes[call])
        self._entry(
            event,
            action,
            int(result.device_address[call]),
            int(result.device_bytes[call]),
            int(result.device_stream[call]),
            int(result.device_pool[call]),
            0,
        )

    def _reclaim(self, event: int, start: int, bytes: int) -> None:
        """Complete, where memory of a pending free is taken, all that the allocator waited for.

        Where a replay waits by itself, those that it waits for stay pending.
        """
        for other, freed in self.pending.values():
            address = int(self.result.address[other])
            own = int(self.result.block_bytes[other])
            if address < int(start) + int(bytes) and int(start) < address + own:
                waits = self.result.waits
                until = waits[
                    np.searchsorted(waits, freed) : np.searchsorted(waits, event, "right")
                ]
                self._complete_all(event, int(until[-1]) if len(until) else event)
                return

    def _complete_all(self, event: int, wait: int) -> None:
        """Complete the pending frees that were asked for before the event that waited for them."""
        for id, (_, freed) in list(self.pending.items()):
            if freed < wait:
                self._complete(event, id)

    def _complete(self, event: int, id: int) -> None:
        if id in self.pending:
            self._of(event, self.pending.pop(id)[0], "free_completed")

    def _of(self, event: int, malloc: int, action: str, address: int | None = None) -> None:
        source = int(self.trace.compiled.malloc_event[malloc])
        self._entry(
            event,
            action,
            int(self.result.address[malloc]) if address is None else address,
            int(self.trace.bytes[source]),
            int(self.trace.stream[source]),
            int(self.trace.pool[source]),
            int(self.trace.stack[source]),
        )

    def _segments(self) -> list[dict[str, Any]]:
        picture = self.result.pictures[-1]
        segments: list[dict[str, Any]] = []
        for i in range(len(picture.segment_address)):
            segments.append(
                {
                    "device": 0,
                    "address": int(picture.segment_address[i]),
                    "total_size": int(picture.segment_bytes[i]),
                    "allocated_size": 0,
                    "active_size": 0,
                    "requested_size": 0,
                    "stream": int(picture.segment_stream[i]),
                    "segment_type": "large" if picture.segment_is_large[i] else "small",
                    "segment_pool_id": (0, int(picture.segment_pool[i])),
                    "is_expandable": bool(picture.segment_is_expandable[i]),
                    "frames": [],
                    "blocks": [],
                }
            )
        stacks = self.trace.compiled.malloc_stack
        for i in range(len(picture.block_address)):
            segment = segments[int(picture.block_segment[i])]
            state, malloc = int(picture.block_state[i]), int(picture.block_malloc[i])
            bytes, requested = int(picture.block_bytes[i]), int(picture.block_requested[i])
            segment["allocated_size"] += bytes if state == 1 else 0
            segment["active_size"] += bytes if state else 0
            segment["requested_size"] += requested
            segment["blocks"].append(
                {
                    "address": int(picture.block_address[i]),
                    "size": bytes,
                    "requested_size": requested,
                    "state": _STATES[state],
                    "frames": self.frames[int(stacks[malloc])] if malloc >= 0 else [],
                }
            )
        return segments
