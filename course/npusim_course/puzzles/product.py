# SPDX-License-Identifier: BSD-3-Clause
"""Puzzles of the lesson on exporting and serving a model."""

from collections.abc import Callable, Sequence
from itertools import count

from npusim_course.judge import Puzzle, Wrong, expect


def _sizes(arrivals: Sequence[float], most: float, wait: float, since: str) -> list[int]:
    """Returns the sizes of batches that close `wait` after the first, the last or a tick."""
    sizes: list[int] = []
    opened = 0.0
    for arrival in arrivals:
        begun = arrival // wait * wait if since == "tick" else arrival
        if sizes and sizes[-1] < most and arrival <= opened + wait and begun <= opened + wait:
            sizes[-1] += 1
            opened = arrival if since == "last" else opened
        else:
            sizes.append(1)
            opened = begun
    return sizes


def _batches(answer: Callable[[list[float], int, float], Sequence[int]]) -> None:
    for arrivals, most, wait in (
        ([0, 1, 2, 3, 4, 5], 3, 10),
        ([0, 4, 20, 24], 8, 5),
        ([0, 4, 8, 12], 8, 5),
        ([6, 9, 12, 30], 8, 8),
        ([0, 5, 6], 4, 5),
        ([0, 0, 0, 0, 5, 6], 4, 5),
        ([], 4, 5),
    ):
        right = _sizes(arrivals, most, wait, "first")
        strict, opened = list[int](), 0.0
        for arrival in arrivals:
            if strict and strict[-1] < most and arrival < opened + wait:
                strict[-1] += 1
            else:
                strict.append(1)
                opened = arrival
        given = list(answer(list(arrivals), most, wait))
        expect(
            given,
            right,
            f"arrivals {arrivals}, at most {most}, wait {wait}",
            {
                "The wait counts from the first request of a batch, not from the latest: that one "
                "could wait for ever.": _sizes(arrivals, most, wait, "last"),
                "A batch begins with its first request, and no clock ticks without one.": _sizes(
                    arrivals, most, wait, "tick"
                ),
                "A batch that is full closes at once.": _sizes(
                    arrivals, float("inf"), wait, "first"
                ),
                "A batch need not be full: the wait closes it.": _sizes(
                    arrivals, most, float("inf"), "first"
                ),
                "An arrival at the moment of closing is taken.": strict,
                "Each batch waits for others.": [1] * len(arrivals),
                "A batch has `most` requests, and not one more.": _sizes(
                    arrivals, most + 1, wait, "first"
                ),
                "No request is lost, and the last batch counts too.": right[:-1],
            },
        )


_HASHES = count()


class _User(str):
    """A name whose hash() is another one in each call, as that of a str is in each process."""

    __slots__ = ()

    def __hash__(self) -> int:
        return hash((next(_HASHES), 0.5))

    __eq__ = str.__eq__


def _versions(answer: Callable[[str, float], str]) -> None:
    names = [f"user-{number}" for number in range(2000)]
    before: set[str] = set()
    for share in (0.0, 0.1, 0.3, 0.5, 0.7, 1.0):
        try:
            made = {name: answer(_User(name), share) for name in names}
        except KeyError:
            raise Wrong("A dictionary of users is that of one process.") from None
        if set(made.values()) - {"A", "B"}:
            raise Wrong('A version is "A" or "B".')
        if made != {name: answer(_User(name), share) for name in names}:
            raise Wrong(
                f"share {share}: a user meets both versions. hash() of a str and a dictionary are "
                "those of one process, and a random draw is that of one call."
            )
        chosen = {name for name, version in made.items() if version == "B"}
        if before - chosen:
            raise Wrong(
                f'share {share}: {len(before - chosen)} users who had "B" at a smaller share lost '
                "it: the place of a user must not depend on the share."
            )
        part = len(chosen) / len(names)
        if abs(part - share) > 0.04:
            raise Wrong(
                f'share {share}: {part:.0%} of 2,000 users got "B". hashlib spreads '
                "names evenly; lengths, sums and checksums such as crc32() do not."
            )
        before = chosen


PUZZLES = [
    Puzzle(
        "Return the sizes of the batches. Arrivals are sorted times. A batch begins with its first "
        "request, takes at most `most`, and closes when `wait` has passed since then; an arrival "
        "at that very moment is taken.",
        "def answer(arrivals, most, wait):\n    return [len(arrivals)]\n",
        "Keep the time at which the open batch began. Three things may be true of an arrival: the "
        "batch is full, it has closed, or the request joins it.",
        _batches,
    ),
    Puzzle(
        'Give a user version "A" or "B"; `share` of the users get "B". A user always meets the '
        'same version, in every process, and a larger share takes "B" from nobody.',
        'def answer(user, share):\n    return "A"\n',
        "hashlib gives the same number everywhere. Make a place between 0 and 1 of it, "
        "and compare.",
        _versions,
    ),
]
