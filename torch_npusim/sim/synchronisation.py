# SPDX-License-Identifier: BSD-3-Clause
"""Host synchronisations: which lines of a program make the host wait for the device, how often.

On hardware each of them stalls the host until the queue of the device is empty. Beside what
torch.npusim.set_sync_debug_mode() reports this also counts the explicit waits.

    >>> x = torch.ones(3, device="npusim")
    >>> with record() as recorded:
    ...     for _ in range(5):
    ...         total = x.sum().item()
    ...     torch.npusim.synchronize()
    >>> [(sync.what, count) for sync, count in recorded.counts().items()]
    [('aten::_local_scalar_dense', 5), ('synchronize', 1)]

One wait in a program that must have no other:

    >>> torch.npusim.set_sync_debug_mode("error")
    >>> with allow():
    ...     x.sum().item()
    3.0
    >>> torch.npusim.set_sync_debug_mode("default")
"""

import linecache
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch_npusim import _host_syncs
from torch_npusim._host_syncs import Allowance, HostSync, set_level
from torch_npusim._text import format_table

__all__ = ["HostSync", "Recording", "allow", "record", "set_level"]


class Recording:
    """What record() has counted; str() of it is a table, most frequent first."""

    def __init__(self) -> None:
        self._counts: dict[HostSync, int] = {}

    def counts(self) -> dict[HostSync, int]:
        """Returns how often each place waited, in the order in which they first did."""
        return dict(self._counts)

    def total(self) -> int:
        """Returns how many waits there were that set_sync_debug_mode() reports."""
        return sum(count for sync, count in self.counts().items() if sync.reported)

    def __str__(self) -> str:
        most = sorted(self.counts().items(), key=lambda entry: -entry[1])
        rows = [
            [
                str(count),
                sync.what if sync.reported else f"({sync.what})",
                f"{sync.file}:{sync.line}",
                linecache.getline(sync.file, sync.line).strip(),
            ]
            for sync, count in most
        ]
        if not rows:
            return "no host synchronisation"
        return "\n".join(format_table(["count", "what", "where", ""], rows))


@contextmanager
def record() -> Iterator[Recording]:
    """Counts the host synchronisations of all threads within a `with` block.

    Printing a tensor counts once. A wait in a backward pass is attributed to the line that started
    the pass, unless several threads run backward passes at once.
    """
    recording = Recording()
    _host_syncs.start_recording(recording._counts)
    try:
        yield recording
    finally:
        _host_syncs.stop_recording(recording._counts)


@contextmanager
def allow(*what: str, files: Sequence[str] = ()) -> Iterator[None]:
    """Lets the host wait within a `with` block, on this thread and in its backward passes.

    Args:
        what: Patterns (as in fnmatch) of the waits, such as "aten::_local_scalar_dense" or
            "printing"; none means every wait.
        files: Patterns of the call site's file, such as "*/site-packages/*"; none means any file.
    """
    before = _host_syncs.allowances()
    _host_syncs.set_allowances((*before, Allowance(what, tuple(files))))
    try:
        yield
    finally:
        _host_syncs.set_allowances(before)
