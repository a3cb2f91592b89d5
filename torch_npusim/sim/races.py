# SPDX-License-Identifier: BSD-3-Clause
"""Races between streams, and between streams and the host: found at the first run, without luck.

    >>> side = torch.Stream("npusim")
    >>> with record() as recorded:
    ...     x = torch.zeros(64, device="npusim")
    ...     with side:
    ...         y = x + 1
    >>> [(race.missing, race.first.name, race.second.shape) for race in recorded.races]
    [('wait_stream', 'aten::zero_', (64,))]

torch.npusim.set_race_detection() warns or raises instead; docs/races.md explains.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from torch_npusim import _races
from torch_npusim._races import Access, Race, RaceError, RaceWarning, Site

__all__ = ["Access", "Race", "RaceError", "RaceWarning", "Recording", "Site", "record"]


class Recording:
    """What record() has found.

    Attributes:
        races: The races, in the order in which they were found.
    """

    def __init__(self) -> None:
        self.races: list[Race] = []

    def __str__(self) -> str:
        return "\n\n".join(map(str, self.races)) or "no race"


@contextmanager
def record() -> Iterator[Recording]:
    """Collects the races of all threads within a `with` block, instead of warning or raising.

    The watch begins with the block: what came before it is not part of any race. After the block
    set_race_detection() begins anew, if it was on.
    """
    recording = Recording()
    _races.start_recording(recording.races)
    try:
        yield recording
    finally:
        _races.stop_recording(recording.races)
