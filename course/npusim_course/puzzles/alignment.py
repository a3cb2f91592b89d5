# SPDX-License-Identifier: BSD-3-Clause
"""Puzzles of the lesson on alignment."""

from collections.abc import Callable

import torch

from npusim_course.judge import Puzzle, Wrong, expect
from torch_npusim.inside import memory

_DTYPES = {1: torch.uint8, 2: torch.float16, 4: torch.float32, 8: torch.float64}


def _rounded(answer: Callable[[int, int], int]) -> None:
    for size, boundary in ((1, 32), (33, 32), (64, 32), (0, 32), (10, 24), (48, 24), (7, 1)):
        right = next(one for one in range(size, size + boundary) if one % boundary == 0)
        expect(
            answer(size, boundary),
            right,
            f"{size} bytes, a boundary of {boundary}",
            {
                "That is the boundary below: the last bytes have no place.": size
                // boundary
                * boundary,
                "A size that lies on the boundary already needs no padding.": size
                + boundary
                - size % boundary,
                "A mask rounds to powers of two, and the boundary is none.": (size + boundary - 1)
                & -boundary,
            },
        )


def _sectors(answer: Callable[[int, int, int], int]) -> None:
    for offset, elements, item in ((0, 8, 4), (0, 9, 4), (16, 8, 4), (1, 8, 4), (12, 2, 8),
                                   (3, 2, 2), (31, 2, 1), (6, 2, 4)):  # fmt: skip
        x = torch.zeros(offset + elements, dtype=_DTYPES[item], device="npusim")[offset:]
        right = memory(x).storages[0].views[0].row_sectors
        least = -(-elements * item // 32)
        mistakes = {
            "The read may begin in the middle of a sector.": least,
            "An offset counts elements, not bytes.": (offset + elements * item - 1) // 32
            - offset // 32
            + 1,
            "Sectors before the first element are not touched.": -(
                -(offset + elements) * item // 32
            ),
        }
        if offset == 0:
            mistakes = {
                "A read that begins and ends on boundaries touches no sector more.": least + 1
            }
        case = f"{elements} elements of {item} bytes from element {offset} on"
        expect(answer(offset, elements, item), right, case, mistakes)


def _padded(answer: Callable[[int, int], torch.Tensor]) -> None:
    for rows, columns in ((3, 6), (4, 8), (5, 9)):
        case = f"{rows} rows of {columns}"
        used = torch.ones(rows, -(-columns // 8) * 8, device="npusim")
        del used  # torch.empty() gets its block, which is full of ones
        made = answer(rows, columns)
        if tuple(made.shape) != (rows, columns) or made.dtype != torch.float32:
            raise Wrong(
                f"{case}: the result is {made.dtype} of shape {tuple(made.shape)}: padding lies in "
                "the storage, and the shape has none of it."
            )
        if made.device.type != "npusim" or made.any():
            raise Wrong(f"{case}: zeros on npusim are asked for.")
        for row in made:
            if row.data_ptr() % 32:
                raise Wrong(
                    f"{case}: a row begins {row.data_ptr() % 32} bytes behind a boundary: rows "
                    "that are packed, as contiguous() packs them, begin where the last one ended."
                )
        if made.stride(1) != 1:
            raise Wrong(f"{case}: the neighbours of a row lie {made.stride(1)} elements apart.")
        given, right = made.untyped_storage().nbytes(), rows * -(-columns // 8) * 32
        if given > right:
            raise Wrong(
                f"{case}: the storage has {given} bytes, and {right} are enough: eight floats fill "
                "a sector, and a row that fills its last sector needs no padding."
            )


PUZZLES = [
    Puzzle(
        "Round a size up to a multiple of the boundary, which may be any positive number.",
        "def answer(size, boundary):\n    return size\n",
        "How many whole pieces of that length hold the size? Mind a size that fits exactly.",
        _rounded,
    ),
    Puzzle(
        "How many sectors of 32 bytes does a read of that many neighbours touch, from that element "
        "of the storage on?",
        "def answer(offset, elements, item_bytes):\n    return 1\n",
        "Number the sectors. In which does the first byte lie, and in which the last?",
        _sectors,
    ),
    Puzzle(
        "Return zeros of float32 on npusim, of that shape, whose rows each begin on a boundary of "
        "32 bytes, in as little memory as that needs.",
        'def answer(rows, columns):\n    return torch.zeros(rows, columns, device="npusim")\n',
        "Make a wider matrix, and show the columns that are asked for.",
        _padded,
    ),
]
