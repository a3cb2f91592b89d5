# SPDX-License-Identifier: BSD-3-Clause
"""Devices: how many, which is current, what they are. The current device is per thread.

Called by users as torch.npusim.*, and by core (autograd profiler, FakeTensor, serialization).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal

import torch

from torch_npusim import _C
from torch_npusim._first_use import _lazy_init
from torch_npusim._names import is_npusim
from torch_npusim.npusim._utils import DeviceLike, _get_device_index
from torch_npusim.sim import synchronisation


@dataclass(frozen=True)
class DeviceProperties:
    """Properties of a simulated device; the numbers are those of its spec (NPUSIM_SPEC).

    Attributes:
        name: Name of the spec.
        total_memory: Capacity, in bytes.
        major: First number of the capability.
        minor: Second number of the capability.
        multi_processor_count: Number of processors that the spec pretends to have.
        peak_flops: Peak rate by dtype class ("float32", "float64", "float16", "int8"), per second.
        memory_bandwidth: Of the device's memory, reads plus writes, in bytes per second.
        host_bandwidth: Of the link to the host, each direction, in bytes per second.
        peer_bandwidth: Of the link to another npusim device, in bytes per second.
        launch_latency_ns: Virtual time that the host pays for one command.
    """

    name: str
    total_memory: int
    major: int
    minor: int
    multi_processor_count: int
    peak_flops: Mapping[str, float]
    memory_bandwidth: float
    host_bandwidth: float
    peer_bandwidth: float
    launch_latency_ns: int


def is_available() -> bool:
    """Returns whether there is at least one device. Works in a forked child."""
    return _C.device_count() > 0


def device_count() -> int:
    """Returns the number of visible devices; 0 if the configuration is unusable."""
    return _C.device_count()


def current_device() -> int:
    """Returns the index of this thread's current device."""
    _lazy_init()
    return _C.current_device()


def set_device(device: DeviceLike) -> None:
    """Makes `device` current on this thread; a negative index changes nothing.

    Raises:
        RuntimeError: If the device does not exist.
    """
    index = _get_device_index(device)
    if index >= 0:
        _lazy_init()
        _C.set_device(index)


def _exchange_device(index: int) -> int:
    """Makes `index` current and returns the one before; negative: changes nothing, returns -1."""
    if index < 0:
        return -1
    _lazy_init()
    return _C.exchange_device(index)


def _maybe_exchange_device(index: int) -> int:
    """The same on the way back."""
    if index < 0:
        return -1
    return _C.maybe_exchange_device(index)


class device:
    """Context manager that changes the current device.

        >>> with torch.npusim.device(1):
        ...     torch.ones(1, device="npusim").device
        device(type='npusim', index=1)

    Args:
        device: Device to select; None or a negative index changes nothing.
    """

    def __init__(self, device: DeviceLike) -> None:
        self.idx = -1 if device is None else _get_device_index(device, optional=True)
        self.prev_idx = -1

    def __enter__(self) -> None:
        self.prev_idx = _exchange_device(self.idx)

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> Literal[False]:
        self.idx = _maybe_exchange_device(self.prev_idx)
        return False


class device_of(device):
    """Context manager that changes the current device to that of a tensor or storage.

    Args:
        obj: Tensor or storage; one that is not on npusim changes nothing.
    """

    def __init__(self, obj: Any) -> None:
        super().__init__(obj.get_device() if is_npusim(obj.device) else -1)


def _checked_index(device: DeviceLike) -> int:
    _lazy_init()
    index = _get_device_index(device, optional=True)
    if not 0 <= index < device_count():
        raise AssertionError(
            f"Invalid device id\nThere is no device {index}: there are {device_count()} npusim "
            "devices, set NPUSIM_DEVICE_COUNT for more"
        )
    return index


def get_device_properties(device: DeviceLike = None) -> DeviceProperties:
    """Returns what `device` (default: the current one) is.

    Raises:
        AssertionError: If the device does not exist, as torch.cuda does.
    """
    return DeviceProperties(**_C.device_properties(_checked_index(device)))


def get_device_name(device: DeviceLike = None) -> str:
    """Returns the name of `device` (default: the current one)."""
    return get_device_properties(device).name


def get_device_capability(device: DeviceLike = None) -> tuple[int, int]:
    """Returns the capability (major, minor) of `device` (default: the current one)."""
    properties = get_device_properties(device)
    return properties.major, properties.minor


def can_device_access_peer(device: DeviceLike, peer_device: DeviceLike) -> bool:
    """Returns whether one device reaches the other's memory: any two different devices do."""
    return _checked_index(device) != _checked_index(peer_device)


def synchronize(device: DeviceLike = None) -> None:
    """Waits, in virtual time, until all streams of `device` (default: current) have finished."""
    _lazy_init()
    _C.synchronize(_get_device_index(device, optional=True))


_SYNC_DEBUG_MODES = {"default": 0, "warn": 1, "error": 2}


def set_sync_debug_mode(debug_mode: int | str) -> None:
    """Says what happens when an operation makes the host wait for the device.

    Such operations are, for example, `.item()`, `nonzero()`, copies that block and
    `Stream.synchronize()`. As in torch.cuda, `synchronize()` and `Event.synchronize()` are not
    reported. A warning names the first line outside torch. torch_npusim.sim.synchronisation counts
    all of them by line, allows some, and has a stricter level and one for hidden waits alone.

    Args:
        debug_mode: "default" or 0: nothing; "warn" or 1: a warning; "error" or 2: an error.

    Example:
        >>> x = torch.ones(1, device="npusim")
        >>> torch.npusim.set_sync_debug_mode("error")
        >>> x.item()
        Traceback (most recent call last):
            ...
        RuntimeError: called a synchronizing npusim operation: .item(), or bool(), int(), ...
        >>> torch.npusim.set_sync_debug_mode("default")
    """
    _lazy_init()
    if isinstance(debug_mode, str):
        if debug_mode not in _SYNC_DEBUG_MODES:
            raise RuntimeError(
                f"invalid value of debug_mode, expected one of `default`, `warn`, `error`\n"
                f"but got `{debug_mode}`"
            )
        debug_mode = _SYNC_DEBUG_MODES[debug_mode]
    if debug_mode not in (0, 1, 2):
        raise RuntimeError(f"invalid value of debug_mode, expected 0, 1 or 2, but got {debug_mode}")
    synchronisation.set_mode(debug_mode)


def get_sync_debug_mode() -> int:
    """Returns 0, 1 or 2, as set by set_sync_debug_mode()."""
    _lazy_init()
    return synchronisation.mode()


def get_amp_supported_dtype() -> list[torch.dtype]:
    """Returns the dtypes that torch.autocast("npusim") accepts."""
    return [torch.float16, torch.bfloat16]


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """Returns True: every kernel computes bfloat16 as the CPU kernels do."""
    return True
