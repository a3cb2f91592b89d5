# SPDX-License-Identifier: BSD-3-Clause
"""Puzzles of the lesson on tensor and storage."""

from collections.abc import Callable
from math import prod

import torch

from npusim_course.judge import Puzzle, Wrong, expect
from torch_npusim.inside import memory


def _strides(answer: Callable[[tuple[int, ...]], tuple[int, ...]]) -> None:
    for shape in ((5,), (2, 3), (2, 3, 4), (4, 1, 2, 5)):
        right = torch.empty(shape).stride()
        columns = [1]
        for size in shape[:-1]:
            columns.append(columns[-1] * size)
        expect(
            tuple(answer(shape)),
            right,
            f"shape {shape}",
            {
                "Those strides make the first dimension the fastest, as column-major does; torch's "
                "last dimension is.": tuple(columns),
                "Strides count elements, not bytes.": tuple(4 * one for one in right),
                "A stride is the product of all sizes behind it, not the next size alone.": (
                    *shape[1:],
                    1,
                ),
            },
        )


def _windows(answer: Callable[[torch.Tensor], torch.Tensor]) -> None:
    starts = {"cpu": torch.arange(10.0), "npusim": torch.arange(10.0, device="npusim")}
    strided = torch.arange(18.0)[2::2]
    for x in (starts["cpu"][2:], starts["npusim"][2:], strided):
        made = answer(x)
        right = torch.stack([x[i : i + 3] for i in range(6)])
        if tuple(made.shape) == (3, 6):
            raise Wrong("shape (3, 6) is not (6, 3): each row is a window.")
        if tuple(made.shape) != (6, 3):
            raise Wrong(
                f"shape {tuple(made.shape)} is not (6, 3): windows overlap, so eight elements have "
                "six windows of three."
            )
        if made.untyped_storage().data_ptr() != x.untyped_storage().data_ptr():
            raise Wrong("The result has a storage of its own: it is a copy, and no view.")
        if not torch.equal(made, right):
            if made.storage_offset() != x.storage_offset():
                raise Wrong(
                    f"The view begins at element {made.storage_offset()} of the storage; x at "
                    f"{x.storage_offset()}: as_strided() takes an offset from the storage."
                )
            raise Wrong(
                f"Strides {made.stride()} do not move by one element of x per window and per "
                f"place: its elements lie {x.stride(0)} apart."
            )


def _column(answer: Callable[[int, int, int], int]) -> None:
    for rows, columns, item in ((4, 16, 4), (8, 8, 4), (16, 2, 4), (6, 4, 2), (5, 3, 8), (7, 6, 4)):
        x = torch.zeros(rows, columns, dtype={2: torch.float16, 4: torch.float32,
                                             8: torch.float64}[item], device="npusim")  # fmt: skip
        right = memory(x).storages[0].views[0].column_sectors
        expect(
            answer(rows, columns, item),
            right,
            f"a column of {rows} x {columns}, {item} bytes each",
            {
                "Rows that are shorter than a sector share sectors.": rows,
                "The elements of a column are not neighbours.": -(-rows * item // 32),
                "The other columns' sectors need not be touched.": -(
                    -prod((rows, columns, item)) // 32
                ),
            },
        )


PUZZLES = [
    Puzzle(
        "Compute the strides of a contiguous tensor from its shape.",
        "def answer(shape):\n    return tuple(1 for _ in shape)\n",
        "Begin with the last dimension. Its neighbour must jump over one whole row of it.",
        _strides,
    ),
    Puzzle(
        "Return all windows of three neighbours of a one-dimensional tensor, without a copy.",
        "def answer(x):\n    return x\n",
        "Two strides may be equal: as_strided() then visits elements more than once. x may begin "
        "in the middle of its storage, and its elements need not be neighbours there.",
        _windows,
    ),
    Puzzle(
        "How many sectors of 32 bytes does a read of the first column touch? The matrix is "
        "row-major and begins on a boundary of 32 bytes.",
        "def answer(rows, columns, item_bytes):\n    return 0\n",
        "List the byte at which each element of the column begins, and divide by 32.",
        _column,
    ),
]
