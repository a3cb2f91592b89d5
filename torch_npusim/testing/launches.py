# SPDX-License-Identifier: BSD-3-Clause
"""Assertions about what a block of code asks of the devices."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch_npusim.sim import timeline
from torch_npusim.sim.races import site_of

__all__ = ["assert_launches", "assert_no_host_waits"]

_WAITS = ("stream_wait", "event_wait", "device_wait")


def _line(site: int) -> str:
    call = site_of(site).call()
    return f"{call[0]}:{call[1]}" if call else "an unknown line"


@contextmanager
def assert_launches(most: int, *, exactly: bool = False) -> Iterator[timeline.Timeline]:
    """Fails if a `with` block launches more than `most` commands.

    Args:
        most: How many it may launch; a replayed graph is one.
        exactly: Whether fewer are wrong too.

    Raises:
        AssertionError: With the names and lines that launch the most.
    """
    with timeline.record(sites=True) as made:
        yield made
    if problem := too_many_launches(made, most, exactly=exactly):
        raise AssertionError(problem)


def too_many_launches(made: timeline.Timeline, most: int, *, exactly: bool = False) -> str | None:
    """Returns what is wrong with the number of launches of a recording with sites, or None."""
    launched = [row for row in made.commands() if row.paid]
    if len(launched) == most or (len(launched) < most and not exactly):
        return None
    counts: dict[tuple[str, int], int] = {}
    for row in launched:
        counts[row.name, row.site] = counts.get((row.name, row.site), 0) + 1
    worst = sorted(counts.items(), key=lambda item: -item[1])[:5]
    told = "".join(f"\n  {count} x {name} at {_line(site)}" for (name, site), count in worst)
    return f"{len(launched)} launches, {'exactly' if exactly else 'at most'} {most} expected{told}"


@contextmanager
def assert_no_host_waits() -> Iterator[timeline.Timeline]:
    """Fails if the host waits for a device within a `with` block.

    Raises:
        AssertionError: With the lines that wait.
    """
    with timeline.record(sites=True) as made:
        yield made
    waits = [row for row in made.rows if row.kind in _WAITS]
    if waits:
        lines = list(dict.fromkeys(_line(row.site) for row in waits))[:5]
        told = "".join(f"\n  at {line}" for line in lines)
        raise AssertionError(f"the host waited for a device {len(waits)} times{told}")
