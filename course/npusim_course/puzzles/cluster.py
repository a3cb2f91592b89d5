# SPDX-License-Identifier: BSD-3-Clause
"""Puzzles of the lesson on clusters."""

from collections.abc import Callable

from npusim_course.judge import Puzzle, Wrong, expect


def _sent(answer: Callable[[int, int, int], int]) -> None:
    for ranks in (4, 5, 2):
        held = [[{rank} for _ in range(ranks)] for rank in range(ranks)]
        for step in range(2 * (ranks - 1)):
            case = f"{ranks} ranks, step {step}"
            adds = step < ranks - 1
            chunks = [answer(rank, step, ranks) for rank in range(ranks)]
            for rank, chunk in enumerate(chunks):
                if chunk not in range(ranks):
                    raise Wrong(
                        f"{case}: rank {rank} sends chunk {chunk!r}, and chunks have the numbers 0 "
                        f"to {ranks - 1}: after the last comes the first, and before it the last."
                    )
            if ranks > 2 and len(set(chunks)) == 1:
                raise Wrong(
                    f"{case}: all ranks send chunk {chunks[0]}. A ring keeps every chunk moving: "
                    "each rank sends another one."
                )
            carried = [set(held[rank][chunk]) for rank, chunk in enumerate(chunks)]
            for rank, chunk in enumerate(chunks):
                count = len(carried[rank])
                if adds and count != step + 1:
                    raise Wrong(
                        f"{case}: rank {rank} sends the sum of {count} ranks, and there is one of "
                        f"{step + 1}: the chunk to send on is the one that came from the rank "
                        "before."
                    )
                if not adds and count < ranks:
                    raise Wrong(
                        f"{case}: rank {rank} sends the sum of {count} ranks. The second half "
                        "begins with the chunk that a rank has whole, and that one came to it last."
                    )
                place = held[(rank + 1) % ranks]
                place[chunk] = place[chunk] | carried[rank]
        whole = all(len(chunk) == ranks for chunks in held for chunk in chunks)
        if not whole:
            raise Wrong(f"{ranks} ranks: at the end a rank has a chunk that is not whole.")


def _time(answer: Callable[[int, float, float, float], float]) -> None:
    for ranks, size, latency, bandwidth in (
        (8, 8_000_000, 4, 100_000),
        (4, 400, 5, 1000),
        (1024, 1024, 2, 1024),
    ):
        sends, chunk = 2 * (ranks - 1), size / ranks / bandwidth
        expect(
            round(float(answer(ranks, size, latency, bandwidth)), 6),
            round(sends * (latency + chunk), 6),
            f"{ranks} ranks, {size} bytes, {latency} us and {bandwidth} bytes per us",
            {
                "Each step has its latency: the next one needs what has come.": round(
                    latency + sends * chunk, 6
                ),
                "A step sends one chunk, not all of the tensor.": round(
                    sends * (latency + ranks * chunk), 6
                ),
                "The sums are whole after half of the way; then they go round.": round(
                    sends / 2 * (latency + chunk), 6
                ),
                "A ring of n has n - 1 steps to its last member.": round(
                    2 * ranks * (latency + chunk), 6
                ),
            },
        )


def _waited(answer: Callable[[list[list[float]]], float]) -> None:
    for durations in ([[1, 9], [8, 1]], [[3, 4, 5], [5, 4, 3], [4, 6, 4]], [[2, 2], [3, 3]]):
        expect(
            answer([list(one) for one in durations]),
            sum(max(step) for step in zip(*durations, strict=True)),
            f"durations {durations}",
            {
                "In each step another rank may be the slowest.": max(map(sum, durations)),
                "All wait for the slowest in each step: a mean is for ranks that do not.": (
                    sum(map(sum, durations)) / len(durations)
                ),
                "Steps do not overlap: each begins when the one before has ended.": max(
                    map(max, durations)
                ),
            },
        )


PUZZLES = [
    Puzzle(
        "In a ring all-reduce each rank sends one chunk to the next rank in each step. There are "
        "2 (ranks - 1) steps, and the first half adds. Which chunk does a rank send?",
        "def answer(rank, step, ranks):\n    return 0\n",
        "Begin with the chunk of your own number. From then on send what you received in the step "
        "before.",
        _sent,
    ),
    Puzzle(
        "How long does a ring all-reduce take? Each step costs latency, and its bytes go at "
        "bandwidth.",
        "def answer(ranks, size, latency, bandwidth):\n    return 0\n",
        "How many steps are there, and how many bytes does a rank send in each?",
        _time,
    ),
    Puzzle(
        "durations[rank][step] is the time that a rank computes in a step. Each step ends with an "
        "all-reduce that itself takes no time. How long do all steps take?",
        "def answer(durations):\n    return 0\n",
        "When does the second step begin?",
        _waited,
    ),
]
