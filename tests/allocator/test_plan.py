# SPDX-License-Identifier: BSD-3-Clause
"""Offline placement: judged on rectangles that are split and shuffled, so the optimum is known."""

from __future__ import annotations

import numpy as np
import pytest
from allocator.instances import FAMILIES, HEIGHT, split
from hypothesis import given, settings
from hypothesis import strategies as st

from npusim_lab._lab import max_live, plan

METHODS = ("size", "lifetime", "area", "skyline", "best")


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
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("pieces", [30, 1000])
def test_problems_of_known_optimum_are_packed_near_it(
    method: str, family: str, pieces: int
) -> None:
    lower, upper, bytes = FAMILIES[family](pieces, seed=pieces)
    assert max_live(lower, upper, bytes) == HEIGHT
    offsets, height = plan(lower, upper, bytes, method)
    assert_valid(lower, upper, bytes, offsets, height)
    assert height >= HEIGHT
    if method == "best":
        assert height <= {"split": 1, "pinwheels": 1.3, "trimmed": 1.2}[family] * HEIGHT


@pytest.mark.parametrize("seed", range(5))
def test_splits_are_undone_by_gluing(seed: int) -> None:
    lower, upper, bytes = split(5000, seed)
    assert plan(lower, upper, bytes)[1] == HEIGHT
    assert plan(lower, upper, bytes, "skyline")[1] > 1.1 * HEIGHT, "not for being easy"


def test_a_hundred_thousand_buffers_are_packed_too() -> None:
    lower, upper, bytes = split(100_000, seed=1)
    assert max_live(lower, upper, bytes) == HEIGHT
    offsets, height = plan(lower, upper, bytes)
    assert height == HEIGHT
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
