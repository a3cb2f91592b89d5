# SPDX-License-Identifier: BSD-3-Clause
"""Puzzles of the lesson on races."""

from collections.abc import Callable

import torch

from npusim_course.judge import Puzzle, Wrong, expect
from torch_npusim import npusim
from torch_npusim.sim import clock, races, synchronisation, timeline

_FLOATS = 1 << 20


def _ordered(answer: Callable[[torch.Tensor, torch.Stream], torch.Tensor]) -> None:
    side = npusim.Stream()
    npusim.synchronize()
    begun = clock.host_time_ns()
    with races.record() as recorded:
        made = answer(torch.zeros(_FLOATS, device="npusim"), side)
    host = clock.host_time_ns() - begun
    done = clock.stream_time_ns(side) - begun
    value = made.item()
    found = [race for race in recorded.races if race.missing == "wait_stream"]
    if found and "fill" in found[0].second.name:
        raise Wrong("side does not wait for the zeros, which another stream has written.")
    if found:
        raise Wrong(
            "The sum does not wait for fill_() on the side stream. `a.wait_stream(b)` makes a wait "
            "for what b has been given until now: name the sum's stream first, and call it after "
            "fill_()."
        )
    expect(value, float(_FLOATS), "the sum")
    if host >= done:
        raise Wrong(
            f"Nothing races, and the host has waited {host} ns: synchronize() stops the host. A "
            "stream can wait for a stream."
        )


def _freed(answer: Callable[[Callable[[], torch.Tensor], torch.Stream], torch.Tensor]) -> None:
    side = npusim.Stream()
    with races.record() as recorded:
        with timeline.record() as seen:
            made = answer(lambda: torch.ones(_FLOATS, device="npusim"), side)
        npusim.current_stream().wait_stream(side)
        expect(made.sum().item(), 2.0 * _FLOATS, "the sum of the result")
    if not any(row.stream == side.stream_id for row in seen.commands()):
        raise Wrong("side has run nothing: the doubling belongs on it.")
    if any(race.missing == "wait_stream" for race in recorded.races):
        raise Wrong("side does not wait for the stream that has made x.")
    if any(race.missing == "record_stream" for race in recorded.races):
        raise Wrong(
            "x was freed while the side stream may read it, and its memory was given away. "
            "x.record_stream(side) tells the allocator, before `del x`: x is the tensor that "
            "goes, and side the stream that the allocator does not know of."
        )


def _downloaded(answer: Callable[[torch.Tensor, torch.Tensor], float]) -> None:
    x = torch.ones(_FLOATS, device="npusim")
    host = torch.zeros(_FLOATS, pin_memory=True)
    with races.record() as recorded, synchronisation.record() as waits:
        given = answer(x, host)
    if host[0].item() != 1.0:
        raise Wrong("The pinned tensor was not filled: .cpu() makes another tensor, pageable.")
    if any("copy_" in wait.what for wait in waits.counts()):
        raise Wrong("The copy blocks the host until it is done: non_blocking=True lets it go on.")
    if recorded.races:
        raise Wrong(
            "The host reads before the copy is known to have come: an event covers what was "
            "launched before its record(), so it is recorded and awaited after the copy."
        )
    expect(given, float(_FLOATS), "the sum")


PUZZLES = [
    Puzzle(
        "Fill x with ones on the side stream, and return its sum, taken on the current stream. The "
        "host does not wait.",
        "def answer(x, side):\n    with torch.npusim.stream(side):\n        x.fill_(1.0)\n"
        "    return x.sum()\n",
        "Two waits: side for the zeros, the current stream for the ones.",
        _ordered,
    ),
    Puzzle(
        "make() returns a tensor. It is doubled on the side stream and dropped at once; mend the "
        "stub.",
        "def answer(make, side):\n    x = make()\n"
        "    side.wait_stream(torch.npusim.current_stream())\n"
        "    with torch.npusim.stream(side):\n        y = x * 2\n    del x\n"
        "    make()  # gets the place of x\n    return y\n",
        "The allocator knows the stream for which x was made, and no other.",
        _freed,
    ),
    Puzzle(
        "Copy x into the pinned tensor without blocking, and return the sum of it, taken by the "
        "host.",
        "def answer(x, host):\n    host.copy_(x, non_blocking=True)\n"
        "    return host.sum().item()\n",
        "torch.npusim.Event(): record() and synchronize().",
        _downloaded,
    ),
]
