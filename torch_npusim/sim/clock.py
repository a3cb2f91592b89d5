# SPDX-License-Identifier: BSD-3-Clause
"""Virtual time: nanoseconds that pass only because of modelled work.

The host has one clock and each stream another; waiting moves the host to the stream. The same
program always reads the same times, however loaded the machine is.

    >>> before = host_time_ns()
    >>> advance(1_000_000)
    >>> host_time_ns() - before
    1000000
"""

import torch

from torch_npusim import _C

__all__ = ["advance", "host_time_ns", "stream_time_ns"]


def host_time_ns() -> int:
    """Returns the host's virtual time since the process started, in ns."""
    return _C.host_time_ns()


def advance(ns: int) -> None:
    """Lets virtual time pass on the host, as if it had worked for `ns` nanoseconds.

    Tests use it where code for real hardware would sleep.

    Raises:
        RuntimeError: If `ns` is negative: time does not go back.
    """
    _C.advance_host_time(ns)


def stream_time_ns(stream: torch.Stream | None = None) -> int:
    """Returns when the last command of `stream` (default: current) finishes, in virtual ns.

    The stream is idle once host_time_ns() is not less.
    """
    stream = torch.accelerator.current_stream() if stream is None else stream
    return _C.stream_time_ns(stream.device_index, stream.stream_id)
