# SPDX-License-Identifier: BSD-3-Clause
"""Initialisation: the memory of the devices is mapped on first use, never at import.

Core calls torch.npusim._lazy_init() before it creates a tensor, and torch.utils.checkpoint reads
torch.npusim._initialized. The truth is in C++, because operators initialise the simulator too.
"""

from collections.abc import Callable

from torch_npusim import _C

#: Actions that wait for the first use of a device.
_waiting: list[Callable[[], None]] = []


def at_first_use(action: Callable[[], None]) -> None:
    """Calls `action` once, when this process, or a child forked before, first uses a device."""
    _waiting.append(action)


def _lazy_init() -> None:
    """Initialises the simulator; raises in a child that was forked after that."""
    _C.initialize()
    while _waiting:
        _waiting.pop(0)()


def init() -> None:
    """Maps the memory of the devices now rather than on first use.

    Raises:
        RuntimeError: If the configuration (environment) is wrong, or in a child forked after the
            simulator was initialised: start such children with the 'spawn' method.
    """
    _lazy_init()


def is_initialized() -> bool:
    """Returns whether the simulator has been initialised in this process."""
    return _C.is_initialized() and not _is_in_bad_fork()


def _is_in_bad_fork() -> bool:
    """Returns whether this process was forked after the simulator had been initialised."""
    return _C.is_in_bad_fork()
