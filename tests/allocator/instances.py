# SPDX-License-Identifier: BSD-3-Clause
"""Placement problems whose optimum is known, because they were made from a solution.

Each is a square of `side` bytes and moments, cut into pieces, which are shuffled. The square is
full at all times, or at least once, so no plan is lower than `side`. On a small side many are
alike.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

HEIGHT = 1 << 40
Buffers = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.uint64]]  # lower, upper, bytes
_Box = tuple[int, int, int, int]  # left, right, low, high


def _halves(random: np.random.Generator, box: _Box) -> list[_Box]:
    left, right, low, high = box
    if random.random() < 0.5:
        at = int(random.integers(left + 1, right))
        return [(left, at, low, high), (at, right, low, high)]
    at = int(random.integers(low + 1, high))
    return [(left, right, low, at), (left, right, at, high)]


def _pinwheel(random: np.random.Generator, box: _Box) -> list[_Box]:
    """Four pieces around a fifth: no cut goes all the way through."""
    left, right, low, high = box
    a = int(random.integers(left + 1, right - 1))
    b = int(random.integers(a + 1, right))
    c = int(random.integers(low + 1, high - 1))
    d = int(random.integers(c + 1, high))
    return [
        (left, b, low, c),
        (b, right, low, d),
        (a, right, d, high),
        (left, a, c, high),
        (a, b, c, d),
    ]


def _cut(
    pieces: int,
    seed: int,
    share_of_pinwheels: float,
    boxes: Sequence[_Box],
) -> Buffers:
    random = np.random.default_rng(seed)
    heap = [(-float(box[1] - box[0]) * (box[3] - box[2]), *box) for box in boxes]
    heapq.heapify(heap)
    while len(heap) < pieces:
        _, *box = heapq.heappop(heap)
        is_wide = min(box[1] - box[0], box[3] - box[2]) >= 4
        is_pinwheel = is_wide and random.random() < share_of_pinwheels
        for part in (_pinwheel if is_pinwheel else _halves)(random, tuple(box)):
            heapq.heappush(heap, (-float(part[1] - part[0]) * (part[3] - part[2]), *part))
    found = np.array([entry[1:] for entry in heap], np.int64)
    random.shuffle(found)
    return found[:, 0], found[:, 1], (found[:, 3] - found[:, 2]).astype(np.uint64)


def split(pieces: int, seed: int, side: int = HEIGHT) -> Buffers:
    """Cut in two, again and again."""
    return _cut(pieces, seed, 0.0, [(0, side, 0, side)])


def pinwheels(pieces: int, seed: int, side: int = HEIGHT) -> Buffers:
    """Cut in pinwheels of five, again and again."""
    return _cut(pieces, seed, 1.0, [(0, side, 0, side)])


def windmills(pieces: int, seed: int, side: int = HEIGHT) -> Buffers:
    """A grid whose every crossing is a pinwheel: its pieces make no smaller rectangle.

    Where that has too few pieces, some are cut in two.
    """
    cells = 2
    while (cells + 1) ** 2 + cells**2 <= pieces:
        cells += 1
    random = np.random.default_rng(seed)
    sign = np.where(np.add.outer(np.arange(cells + 1), np.arange(cells + 1)) % 2, 1, -1)
    walls = np.broadcast_to(np.arange(cells + 1)[:, None], (cells + 1, cells + 1))
    moved = random.uniform(0.05, 0.4, (2, cells + 1, cells + 1)) * sign
    moved[:, [0, -1], :] = 0
    x = ((walls + moved[0]) * (side / cells)).astype(np.int64).tolist()  # [wall][row]
    moved[1] *= -1
    y = ((walls + moved[1]) * (side / cells)).astype(np.int64).tolist()  # [wall][column]
    boxes = [
        (x[i][j], x[i + 1][j], y[j][i], y[j + 1][i]) for i in range(cells) for j in range(cells)
    ]
    for i in range(1, cells):
        for j in range(1, cells):
            left, right = sorted((x[i][j - 1], x[i][j]))
            low, high = sorted((y[j][i - 1], y[j][i]))
            boxes.append((left, right, low, high))
    return _cut(pieces, seed, 0.0, boxes)


def trimmed(pieces: int, seed: int, side: int = HEIGHT) -> Buffers:
    """Cut in two; then most pieces live shorter and are smaller, by up to a fifth.

    The blocks that live in the middle are left as they are, so that the rectangle is full then.
    """
    lower, upper, bytes = split(pieces, seed, side)
    random = np.random.default_rng(seed + 1)
    whole = (lower <= side // 2) & (upper > side // 2)
    life = upper - lower
    begin = lower + (life * random.uniform(0, 0.1, pieces)).astype(np.int64)
    end = upper - (life * random.uniform(0, 0.1, pieces)).astype(np.int64)
    size = np.maximum(bytes * random.uniform(0.8, 1, pieces), 1).astype(np.uint64)
    return (
        np.where(whole, lower, begin),
        np.where(whole, upper, np.maximum(end, begin + 1)),
        np.where(whole, bytes, size),
    )


FAMILIES = {"split": split, "pinwheels": pinwheels, "windmills": windmills, "trimmed": trimmed}
