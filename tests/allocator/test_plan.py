# SPDX-License-Identifier: BSD-3-Clause
"""Offline placement: judged on rectangles that are split and shuffled, so the optimum is known."""

from __future__ import annotations

import heapq

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npusim_lab._lab import max_live, plan

METHODS = ("size", "lifetime", "area", "skyline", "best")
HEIGHT = 1 << 30


def split_rectangle(pieces: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return lower, upper, bytes of a rectangle of HEIGHT bytes, cut again and again at random."""
    generator = np.random.default_rng(seed)
    heap = [(-float(1 << 20) * HEIGHT, 0, 1 << 20, 0, HEIGHT)]
    while len(heap) < pieces:
        _, left, right, low, high = heapq.heappop(heap)
        if generator.random() < 0.5:
            at = int(generator.integers(left + 1, right))
            parts = [(left, at, low, high), (at, right, low, high)]
        else:
            at = int(generator.integers(low + 1, high))
            parts = [(left, right, low, at), (left, right, at, high)]
        for part in parts:
            heapq.heappush(heap, (-float(part[1] - part[0]) * (part[3] - part[2]), *part))
    found = np.array([entry[1:] for entry in heap], np.int64)
    generator.shuffle(found)
    return found[:, 0], found[:, 1], (found[:, 3] - found[:, 2]).astype(np.uint64)


def assert_valid(lower, upper, bytes, offsets, height) -> None:
    """No two buffers share an address while both live, seen at every birth."""
    ends = offsets + bytes
    assert (ends <= height).all()
    assert ends.max() == height
    for i in range(len(lower)):
        others = (lower <= lower[i]) & (upper > lower[i])
        others[i] = False
        apart = (ends[others] <= offsets[i]) | (offsets[others] >= ends[i])
        assert apart.all()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("pieces", [30, 1000])
def test_a_split_rectangle_is_packed_near_its_height(method: str, pieces: int) -> None:
    lower, upper, bytes = split_rectangle(pieces, seed=pieces)
    assert max_live(lower, upper, bytes) == HEIGHT
    offsets, height = plan(lower, upper, bytes, method)
    assert_valid(lower, upper, bytes, offsets, height)
    assert height >= HEIGHT
    if method == "best":
        assert height <= 1.35 * HEIGHT


def test_a_hundred_thousand_buffers_are_packed_too() -> None:
    lower, upper, bytes = split_rectangle(100_000, seed=1)
    assert max_live(lower, upper, bytes) == HEIGHT
    offsets, height = plan(lower, upper, bytes)
    assert HEIGHT <= height <= 1.3 * HEIGHT
    assert (offsets + bytes <= height).all()


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    st.lists(
        st.tuples(st.integers(-20, 20), st.integers(1, 15), st.integers(1, 50)),
        min_size=1,
        max_size=40,
    ),
    st.sampled_from(METHODS),
    st.sampled_from([1, 8, 32]),
)
def test_plans_hold(buffers: list[tuple[int, int, int]], method: str, alignment: int) -> None:
    lower = np.array([b[0] for b in buffers])
    upper = lower + np.array([b[1] for b in buffers])
    bytes = np.array([b[2] for b in buffers], np.uint64)
    offsets, height = plan(lower, upper, bytes, method, alignment)
    assert (offsets % alignment == 0).all()
    padded = -(-bytes.astype(np.int64) // alignment) * alignment
    assert_valid(lower, upper, padded.astype(np.uint64), offsets, height)
    live = [bytes[(lower <= t) & (upper > t)].sum() for t in range(-20, 36)]
    assert max_live(lower, upper, bytes) == max(live) <= height


def test_what_is_no_buffer_is_refused() -> None:
    with pytest.raises(ValueError, match="buffer 1 has no bytes or no lifetime"):
        plan([0, 5], [1, 5], [1, 1])
    with pytest.raises(ValueError, match="alignment is 0"):
        plan([0], [1], [1], alignment=0)
    with pytest.raises(ValueError, match="not of one length"):
        plan([0], [1, 2], [1])
    with pytest.raises(ValueError, match="expected 'size', 'lifetime'"):
        plan([0], [1], [1], "worst")
