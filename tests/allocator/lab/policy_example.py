# SPDX-License-Identifier: BSD-3-Clause
"""A policy in Python (docs/use/lab.md): sizes in powers of two, a list of free blocks for each."""

from npusim_lab._lab import PolicyDevice


class PowersOfTwo:
    def attach(self, device: PolicyDevice) -> None:
        self.device = device
        self.free_blocks: dict[int, list[int]] = {}

    def malloc(self, bytes: int, stream: int) -> int | None:
        size = 1 << max(bytes - 1, 511).bit_length()
        free = self.free_blocks.setdefault(size, [])
        return free.pop() if free else self.device.acquire(size)

    def free(self, address: int, bytes: int, stream: int) -> None:
        self.free_blocks[1 << max(bytes - 1, 511).bit_length()].append(address)

    def empty_cache(self) -> None:
        for free in self.free_blocks.values():
            while free:
                self.device.release(free.pop())
