# SPDX-License-Identifier: BSD-3-Clause
"""Puzzles of the lesson on the caching allocator."""

from collections.abc import Callable, Sequence

import torch

from npusim_course.judge import Puzzle, expect
from torch_npusim import npusim

_MIB = 1 << 20


def _allocated(answer: Callable[[Sequence[int]], int]) -> None:
    for requests in ([100], [32, 33], [1, 1, 1], [4004, 7, 64], [0, 5]):
        before = npusim.memory_allocated()
        held = [torch.empty(size, dtype=torch.uint8, device="npusim") for size in requests]
        right = npusim.memory_allocated() - before
        del held
        expect(
            answer(requests),
            right,
            f"requests of {requests} bytes",
            {
                "A block is a multiple of 32 bytes: the requests alone are too few.": sum(requests),
                "CUDA rounds to 512 bytes; npusim's quantum is 32.": sum(
                    -(-size // 512) * 512 for size in requests
                ),
                "Each request is rounded up, not their sum.": -(-sum(requests) // 32) * 32,
                "A request of 0 bytes gets no block.": sum(
                    max(32, -(-size // 32) * 32) for size in requests
                ),
                "A multiple of 32 is not rounded.": sum(size // 32 * 32 + 32 for size in requests),
            },
        )


def _best(answer: Callable[[Sequence[int], int], int | None]) -> None:
    for blocks, size in (
        ([512, 96, 128], 96), ([512, 64, 160, 128], 100), ([64, 64], 96), ([512, 128, 64, 128], 96),
        ([96, 512], 96),
    ):  # fmt: skip
        fitting = [(length, place) for place, length in enumerate(blocks) if length >= size]
        right = min(fitting)[1] if fitting else None
        first = next((place for _, place in sorted(fitting, key=lambda it: it[1])), None)
        mistakes: dict[str, int | None] = {}
        if right == 0:
            mistakes["Place 0 is a place: in Python 0 is false, as None is."] = None
        if fitting:
            mistakes["A place is asked for, not a size."] = min(fitting)[0]
            mistakes["Of equal blocks the first is taken."] = max(
                place for length, place in fitting if length == min(fitting)[0]
            )
            mistakes["That is the first block that fits, not the smallest."] = first
            mistakes["That is the smallest block of all, and it is too small."] = min(
                range(len(blocks)), key=lambda place: blocks[place]
            )
            mistakes["A larger block can be split: it need not fit exactly."] = None
            larger = [one for one in fitting if one[0] > size]
            if larger:
                mistakes["A block of exactly that size fits."] = min(larger)[1]
        else:
            mistakes["Blocks that are not neighbours cannot be joined."] = 0
            mistakes["Where nothing fits, the answer is None."] = -1
        expect(answer(blocks, size), right, f"free blocks {blocks}, a request of {size}", mistakes)


def _segment(answer: Callable[[int], int]) -> None:
    for size in (100, _MIB, 3 * _MIB, _MIB + 32, 9 * _MIB, 10 * _MIB, 11 * _MIB + 32):
        pool = npusim.MemPool()
        with npusim.use_mem_pool(pool):
            before = npusim.memory_reserved()
            held = torch.empty(size, dtype=torch.uint8, device="npusim")
            right = npusim.memory_reserved() - before
        del held
        bounds = {
            "A request of 1 MiB is still a small one.": 20 * _MIB if size == _MIB else None,
            "From 10 MiB on, the request itself is bought, rounded up to a multiple of 2 MiB.": 20
            * _MIB
            if size >= 10 * _MIB
            else None,
        }
        expect(
            answer(size),
            right,
            f"a first request of {size} bytes",
            bounds
            | {
                "A segment is bought for more than one request.": size,
                "Not every segment has 2 MiB: requests above 1 MiB have a pool of their own.": 2
                * _MIB,
                "Requests between 1 and 10 MiB share segments of 20 MiB.": -(-size // (2 * _MIB))
                * 2
                * _MIB,
            },
        )


PUZZLES = [
    Puzzle(
        "How much does memory_allocated() rise when a program asks for blocks of these sizes?",
        "def answer(requests):\n    return 0\n",
        "Print torch.npusim.memory_allocated() before and after a tensor of 33 bytes.",
        _allocated,
    ),
    Puzzle(
        "Return the place of the free block that a best-fit allocator takes, or None.",
        "def answer(free_blocks, size):\n    return 0\n",
        "Of the blocks that are large enough, the smallest one; of equal ones the first.",
        _best,
    ),
    Puzzle(
        "How many bytes does the allocator buy of the device for the first request of a pool?",
        "def answer(size):\n    return 0\n",
        "memory_reserved() before and after one tensor, in a new process: three rules.",
        _segment,
    ),
]
