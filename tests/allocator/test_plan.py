# SPDX-License-Identifier: BSD-3-Clause
"""Offline placement: judged on rectangles that are split and shuffled, so the optimum is known."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from allocator.instances import FAMILIES, HEIGHT, split
from hypothesis import given, settings
from hypothesis import strategies as st

from npusim_lab._lab import max_live, plan

SHARES = (1, 1.005, 1.01, 1.02, 1.05, 1.1, 1.15, 1.2, 1.3)
METHODS = ("birth", "size", "lifetime", "area", "skyline", "best")


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
    offsets, height, at_least, _ = plan(lower, upper, bytes, method)
    assert at_least == HEIGHT
    assert_valid(lower, upper, bytes, offsets, height)
    assert height >= HEIGHT
    if method == "best":
        most = {"split": 1, "pinwheels": 1, "windmills": 1.3, "trimmed": 1.2}
        assert height <= most[family] * HEIGHT


@pytest.mark.parametrize("family", ["split", "pinwheels"])
@pytest.mark.parametrize("seed", range(3))
def test_cuts_are_undone_by_gluing(family: str, seed: int) -> None:
    problem = FAMILIES[family](5000, seed)
    offsets, height, _, _ = plan(*problem)
    assert height == HEIGHT
    assert_valid(*problem, offsets, height)
    assert plan(*problem, "skyline")[1] > 1.1 * HEIGHT, "not for being easy"


def test_a_hundred_thousand_buffers_are_packed_too() -> None:
    lower, upper, bytes = split(100_000, seed=1)
    assert max_live(lower, upper, bytes) == HEIGHT
    offsets, height, _, steps = plan(lower, upper, bytes, steps=10**6)
    assert height == HEIGHT
    assert steps <= 2 * 10**6
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
    offsets, height, at_least, _ = plan(lower, upper, bytes, method, alignment, steps=10**5)
    assert (offsets % alignment == 0).all()
    padded = -(-bytes.astype(np.int64) // alignment) * alignment
    assert_valid(lower, upper, padded.astype(np.uint64), offsets, height)
    live = [bytes[(lower <= t) & (upper > t)].sum() for t in range(-20, 36)]
    assert max_live(lower, upper, bytes) == max(live) <= at_least <= height


@pytest.mark.parametrize("family", ["windmills", "trimmed"])
@pytest.mark.parametrize("seed", range(4))
def test_a_search_finds_the_optimum(family: str, seed: int) -> None:
    problem = FAMILIES[family](100, seed)
    heuristics, searched = plan(*problem), plan(*problem, steps=10**8)
    assert searched[1] == searched[2] == HEIGHT
    assert searched[1] < heuristics[1] or heuristics[1] == HEIGHT
    assert_valid(*problem, *searched[:2])
    again = plan(*problem, steps=10**8)
    assert (again[0] == searched[0]).all(), "the same effort gives the same plan"
    assert again[3] == searched[3]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_plan_for_less_is_a_plan_for_more(family: str) -> None:
    problem = FAMILIES[family](400, 1)
    heights = [plan(*problem, capacity=int(HEIGHT * share), steps=10**7)[1] for share in SHARES]
    fits = [height <= HEIGHT * share for height, share in zip(heights, SHARES, strict=True)]
    assert fits == sorted(fits), heights
    assert fits[-1], "the last is loose"
    assert all(fits) or family == "trimmed"
    assert plan(*problem, capacity=HEIGHT - 1, steps=10**6)[2] == HEIGHT, "proven: it does not fit"


@pytest.mark.parametrize("side", [64, 256, 4096])
@pytest.mark.parametrize("seed", range(8))
def test_tilings_of_few_pieces_that_are_alike_are_optimal(seed: int, side: int) -> None:
    problem = FAMILIES["windmills"](60, seed, side)
    offsets, height, _, _ = plan(*problem, steps=10**7)
    assert height == side
    assert_valid(*problem, offsets, height)


def test_pieces_that_make_no_smaller_rectangle_are_put_together_again() -> None:
    problem = FAMILIES["windmills"](1000, 0)
    offsets, height, _, _ = plan(*problem, steps=10**8)
    assert height == HEIGHT
    assert_valid(*problem, offsets, height)
    assert plan(*problem)[1] > 1.05 * HEIGHT, "so the search does"


Problem = list[tuple[int, int, int, list[tuple[int, int]], int]]  # lower, upper, bytes, gaps, align


def times(buffer) -> set[int]:
    """The moments in which a buffer has its bytes."""
    lower, upper, _, gaps, _ = buffer
    return set(range(lower, upper)) - {t for begin, end in gaps for t in range(begin, end)}


def least_height(problem: Problem) -> int:
    """Try every order, each buffer at the lowest place: one of them is an optimal placement."""
    meets = [[bool(times(a) & times(b)) for b in problem] for a in problem]
    best = sum(bytes + align for _, _, bytes, _, align in problem)
    for order in itertools.permutations(range(len(problem))):
        placed: dict[int, int] = {}
        for i in order:
            _, _, bytes, _, align = problem[i]
            at = 0
            for low, high in sorted(
                (offset, offset + problem[j][2]) for j, offset in placed.items() if meets[i][j]
            ):
                if low >= at + bytes:
                    break
                at = max(at, -(-high // align) * align)
            placed[i] = at
        best = min(best, max(offset + problem[i][2] for i, offset in placed.items()))
    return best


@st.composite
def small_problems(draw: st.DrawFn, gaps: bool, alignments: bool) -> Problem:
    problem = []
    for _ in range(draw(st.integers(1, 6))):
        lower = draw(st.integers(0, 8))
        upper = lower + draw(st.integers(1, 8))
        size = draw(st.integers(1, 9))
        own: list[tuple[int, int]] = []
        if gaps and upper - lower > 2 and draw(st.booleans()):
            begin = draw(st.integers(lower, upper - 2))
            own = [(begin, draw(st.integers(begin + 1, upper - 1)))]
        align = draw(st.sampled_from([1, 2, 4, 3])) if alignments else 1
        problem.append((lower, upper, size, own, align))
    return problem


def planned(problem: Problem, **options):
    lower, upper, bytes, gaps, align = zip(*problem, strict=True)
    rows = [(i, *gap) for i, own in enumerate(gaps) for gap in own]
    return plan(lower, upper, bytes, alignments=align, gaps=rows, **options)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(small_problems(gaps=True, alignments=False))
def test_small_problems_are_solved_and_proven(problem: Problem) -> None:
    offsets, height, at_least, _ = planned(problem, steps=10**7)
    best = least_height(problem)
    assert (height, at_least) == (best, best)
    assert planned(problem, steps=10**7, capacity=best)[1] <= best
    if best > 1:
        assert planned(problem, steps=10**7, capacity=best - 1)[2] > best - 1
    assert_apart(problem, offsets, height)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(small_problems(gaps=True, alignments=True))
def test_aligned_problems_are_bounded(problem: Problem) -> None:
    offsets, height, at_least, _ = planned(problem, steps=10**5)
    assert at_least <= least_height(problem) <= height
    assert_apart(problem, offsets, height)
    assert all(int(at) % buffer[4] == 0 for at, buffer in zip(offsets, problem, strict=True))


def assert_apart(problem: Problem, offsets, height: int) -> None:
    ends = [int(at) + buffer[2] for at, buffer in zip(offsets, problem, strict=True)]
    assert max(ends) <= height
    for i, j in itertools.combinations(range(len(problem)), 2):
        apart = ends[i] <= offsets[j] or ends[j] <= offsets[i]
        assert apart or not times(problem[i]) & times(problem[j])


def test_sizes_near_two_to_the_63_do_not_wrap() -> None:
    large = 2**63 - 1
    assert plan([0, 5, 10], [5, 10, 15], [large] * 3)[1] == large
    assert max_live([0, 5], [5, 10], [large] * 2) == large
    with pytest.raises(ValueError, match=r"live at one time have 2\^63 bytes or more together"):
        max_live([0, 0], [5, 5], [large] * 2)
    with pytest.raises(ValueError, match=r"live at one time have 2\^63 bytes or more together"):
        plan([0, 0, 0, 0], [5, 5, 5, 5], [2**62] * 4)
    with pytest.raises(ValueError, match=r"buffer 0 has 2\^63 bytes or more"):
        plan([0], [1], [large], alignment=4096)
    # A heuristic whose sums pass 2^63 loses against one whose sums do not, or says so.
    lower, upper = [0, 3, 2, 3, 0], [3, 5, 4, 4, 3]
    bytes = np.array([1, 1, 3, 3, 2], np.uint64) << np.uint64(60)
    assert max_live(lower, upper, bytes) == 7 << 60
    assert plan(lower, upper, bytes, steps=10**6)[1] == 7 << 60
    with pytest.raises(ValueError, match=r"found no placement below 2\^63 bytes"):
        plan(lower, upper, bytes, "birth")


def test_what_is_no_buffer_is_refused() -> None:
    with pytest.raises(ValueError, match="buffer 1 has no bytes or no lifetime"):
        plan([0, 5], [1, 5], [1, 1])
    with pytest.raises(ValueError, match="alignment is 0"):
        plan([0], [1], [1], alignment=0)
    with pytest.raises(ValueError, match="not of one length"):
        plan([0], [1, 2], [1])
    with pytest.raises(ValueError, match="expected 'birth', 'size'"):
        plan([0], [1], [1], "worst")
    with pytest.raises(ValueError, match="gaps that are not in order within its life"):
        plan([0], [9], [1], gaps=[(0, 4, 10)])
    with pytest.raises(ValueError, match="buffer 0 has gaps all its life"):
        plan([0], [9], [1], gaps=[(0, 0, 9)])
    with pytest.raises(ValueError, match="a buffer that is not there"):
        plan([0], [9], [1], gaps=[(1, 0, 9)])
    with pytest.raises(ValueError, match=r"an alignment above 2\^31"):
        plan([0], [9], [1], alignments=[2**40])
    with pytest.raises(ValueError, match="skyline places neither"):
        plan([0], [9], [1], "skyline", gaps=[(0, 4, 5)])
