# SPDX-License-Identifier: BSD-3-Clause
"""Section allocation: programs that only allocate, with their full history."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator
from typing import Any, Callable

from .batches import Question, batch
from .device import device

SETTINGS = (
    "",
    "expandable_segments:True",
    "max_split_size_mb:32",
    "roundup_power2_divisions:4",
    "garbage_collection_threshold:0.6",
    "roundup_power2_divisions:[64:8,256:4,>:1]",
    "max_non_split_rounding_mb:64",
    "expandable_segments:True,max_split_size_mb:128",
)


class Blocks:
    """Blocks of device memory, by number, for programs that only allocate."""

    def __init__(self) -> None:
        self.live: dict[int, Any] = {}
        self.count = 0
        self.state = 12345
        self.limit: int | None = None  # bytes

    def random(self, below: int) -> int:
        """Returns a number that depends on the calls before alone."""
        self.state = (self.state * 1103515245 + 12345) & 0x7FFFFFFF
        return (self.state >> 8) % below

    def take(self, size: int) -> int:
        """Allocates `size` bytes; returns the block's number."""
        import torch

        self.count += 1
        self.live[self.count] = torch.empty(size, dtype=torch.uint8, device=device())
        return self.count

    def give(self, number: int) -> None:
        """Frees a block."""
        del self.live[number]

    def mix(self, steps: int, sizes: Callable[[], int], most: int) -> None:
        """Allocates and frees at random, at most `most` bytes at a time."""
        held: dict[int, int] = {}
        for _ in range(steps):
            size = sizes()
            while held and (sum(held.values()) + size > most or self.random(5) < 2):
                number = sorted(held)[self.random(len(held))]
                self.give(number)
                del held[number]
            held[self.take(size)] = size


def _small(blocks: Blocks) -> None:
    blocks.mix(300, lambda: 1 + blocks.random(1 << 20), 32 << 20)


def _mixed(blocks: Blocks) -> None:
    blocks.mix(300, lambda: 1 << 9 << blocks.random(17), 256 << 20)


def _odd(blocks: Blocks) -> None:
    blocks.mix(300, lambda: 1 + blocks.random(1 + (1 << blocks.random(26))), 256 << 20)


def _growing(blocks: Blocks) -> None:
    for step in range(40):
        number = blocks.take((1 << 20) + step * 700_000)
        kept = blocks.take(1000 + step * 300_000)
        blocks.give(number)
        if step % 3 == 0:
            blocks.give(kept)


def _streams(blocks: Blocks) -> None:
    import torch

    side = torch.cuda.Stream()
    for step in range(30):
        number = blocks.take(300_000 * (1 + step % 7))
        with torch.cuda.stream(side):
            other = blocks.take(500_000 * (1 + step % 5))
        blocks.live[number].record_stream(side)
        blocks.give(number)
        torch.cuda.synchronize()
        if step % 2:
            blocks.give(other)


def _pools(blocks: Blocks) -> None:
    import torch

    pool = torch.cuda.MemPool()
    for step in range(12):
        with torch.cuda.use_mem_pool(pool):
            number = blocks.take(700_000 * (1 + step % 4))
        other = blocks.take(900_000)
        if step % 3:
            blocks.give(number)
        if step % 2:
            blocks.give(other)
    torch.cuda.empty_cache()
    blocks.take(5 << 20)


def _graphs(blocks: Blocks) -> None:
    import torch

    x = torch.ones(1 << 18, device=device())
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x + 1
        z = y * 2
        del y
        w = z + x
    graph.replay()
    torch.cuda.synchronize()
    del z, w
    blocks.take(3 << 20)


def _emptied(blocks: Blocks) -> None:
    import torch

    for step in range(6):
        numbers = [blocks.take((3 + step) << 20) for _ in range(6)]
        small = [blocks.take(100_000) for _ in range(9)]
        for number in numbers[::2] + small[1:]:
            blocks.give(number)
        torch.cuda.empty_cache()


def _limit(blocks: Blocks, most: int) -> None:
    import torch

    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(most / total)
    blocks.limit = most


def _full(blocks: Blocks) -> None:
    import torch

    _limit(blocks, 512 << 20)
    blocks.mix(120, lambda: (1 + blocks.random(40)) << 20, 430 << 20)
    for size in (300 << 20, 500 << 20, 64 << 20, 1 << 30):
        with contextlib.suppress(torch.cuda.OutOfMemoryError):
            blocks.take(size)


def _fractioned(blocks: Blocks) -> None:

    _limit(blocks, 256 << 20)
    blocks.mix(200, lambda: (1 + blocks.random(20)) << 20, 150 << 20)


PROGRAMS = (_small, _mixed, _odd, _growing, _streams, _pools, _graphs, _emptied, _full, _fractioned)
ACTIONS = (
    "alloc free_requested free_completed segment_alloc segment_free segment_map segment_unmap "
    "snapshot oom"
).split()


def begin_history() -> None:
    """Begins to record what is allocated, without stacks."""
    import torch

    torch.cuda.memory._record_memory_history("all", context=None, stacks="python")


def history() -> dict[str, Any]:
    """Returns what was recorded: [action, address, bytes, stream, pool] each, and the segments."""
    import torch

    snapshot = torch.cuda.memory._snapshot()
    entries = [e for e in snapshot["device_traces"][0] if e["action"] in ACTIONS]
    segments = [s for s in snapshot["segments"] if s["device"] == 0]
    base = min([e["addr"] for e in entries if e["action"] not in ("oom", "snapshot")] or [0])
    base = base // (1 << 25) * (1 << 25)  # private in no way, but long
    streams: dict[int, int] = {0: 0}
    pools: dict[Any, int] = {(0, 0): 0}

    def number(of: dict[Any, int], key: Any) -> int:
        return of.setdefault(key, len(of))

    def place(entry: Any) -> Any:
        is_place = entry["action"] not in ("oom", "snapshot")
        return entry["addr"] - base if is_place else entry.get("device_free", entry.get("addr", 0))

    rows = [
        [ACTIONS.index(e["action"]), place(e), e["size"], number(streams, e["stream"]),
         number(pools, tuple(e.get("pool_id", e.get("segment_pool_id", (0, 0)))))]
        for e in entries
    ]  # fmt: skip
    kept = [
        [s["address"] - base, s["total_size"], number(streams, s["stream"]), s["segment_type"],
         number(pools, tuple(s.get("segment_pool_id", (0, 0)))), bool(s.get("is_expandable")),
         [[b["size"], b.get("requested_size", b["size"]), b["state"]] for b in s["blocks"]]]
        for s in segments
    ]  # fmt: skip
    return {"entries": rows, "segments": kept}


COUNTERS = (
    "allocation.all.peak segment.all.peak reserved_bytes.all.peak allocated_bytes.all.peak "
    "requested_bytes.all.peak inactive_split_bytes.all.peak active_bytes.all.peak "
    "reserved_bytes.all.current num_alloc_retries num_ooms num_device_alloc num_device_free "
    "oversize_segments.peak"
).split()


def _run_program(program: Callable[[Blocks], None]) -> Any:
    import torch

    torch.cuda.init()
    begin_history()
    blocks = Blocks()
    program(blocks)
    found = history()
    found["limit"] = blocks.limit
    found["capacity"] = torch.cuda.get_device_properties(0).total_memory
    found["settings"] = os.environ.get("PYTORCH_ALLOC_CONF", "")
    stats = torch.cuda.memory_stats()
    found["stats"] = {name: stats[name] for name in COUNTERS if name in stats}
    return found


def _allocation_batches() -> None:
    def questions(settings: str) -> Iterator[Question]:
        for program in PROGRAMS:
            key = "places|{}|{}".format(program.__name__.strip("_"), settings or "default")
            yield key, functools.partial(_run_program, program)

    for number, settings in enumerate(SETTINGS):
        names = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
        env = dict.fromkeys(names, settings)
        make = functools.partial(questions, settings)
        env = env if settings else {}
        batch("allocation", f"places-{number}", alone=True, env=env, fresh=bool(env))(make)


_allocation_batches()
