# SPDX-License-Identifier: BSD-3-Clause
"""The slow model of the allocator, driven by the columns of a trace."""

from __future__ import annotations

from allocator.reference import OutOfMemory, RefBlock, Reference, Rules

from npusim_lab._lab import Op


class Model:
    """The slow model: where each malloc is placed, and the reserved bytes after each event."""

    def __init__(self, rules: Rules, capacity: int) -> None:
        self.slow = Reference(capacity, rules)
        self.blocks: dict[int, RefBlock] = {}
        self.holds: dict[int, int] = {}
        self.placements: list[tuple[int, int, int] | None] = []
        self.reserved: list[int] = []

    def apply(self, op: int, id: int, bytes: int, stream: int, pool: int) -> None:
        match op:
            case Op.MALLOC:
                try:
                    block = self.slow.malloc(bytes, stream, pool)
                except OutOfMemory:
                    self.placements.append(None)
                else:
                    self.blocks[id] = block
                    self.placements.append((*block.placement, block.size))
            case Op.FREE if id in self.blocks:
                self.slow.free(self.blocks.pop(id))
            case Op.FREE_REQUESTED if id in self.blocks:
                self.holds[id] = self.slow.free_held(self.blocks.pop(id))
            case Op.FREE_COMPLETED if id in self.holds:
                self.slow.complete(self.holds.pop(id))
            case Op.EMPTY_CACHE:
                self.slow.empty_cache(pool)
            case Op.CREATE_POOL:
                self.slow.create_pool(pool, bool(bytes & 1), bool(bytes & 2))
            case Op.RELEASE_POOL:
                self.slow.release_pool(pool)
            case Op.SYNCHRONIZE:
                for hold in sorted(self.slow.held):
                    self.slow.complete(hold)
        self.reserved.append(self.slow.reserved)
