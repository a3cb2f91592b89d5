# SPDX-License-Identifier: BSD-3-Clause
"""Answers to Dynamo and Inductor about the device, while they trace, and where they run."""

from typing import Any

import torch
from torch._dynamo import device_interface as torchs

from torch_npusim import _C, npusim


class NpusimInterface(torchs.DeviceInterface):
    """torch.npusim in the words of torch._dynamo.device_interface.DeviceInterface."""

    Event = torch.Event
    Stream = npusim.Stream
    device = npusim.device

    class Worker:
        """The device in a process that compiles; there are no properties that differ there."""

        @staticmethod
        def set_device(device: int) -> None:
            """Notes the device of a worker."""
            torchs.caching_worker_current_devices["npusim"] = device

        @staticmethod
        def current_device() -> int:
            """Returns the device of a worker, or the current one."""
            noted = torchs.caching_worker_current_devices.get("npusim")
            return npusim.current_device() if noted is None else noted

        @staticmethod
        def get_device_properties(device: Any = None) -> npusim.DeviceProperties:
            """Returns the device's properties."""
            return npusim.get_device_properties(device)

    current_device = staticmethod(npusim.current_device)
    set_device = staticmethod(npusim.set_device)
    exchange_device = staticmethod(npusim._exchange_device)  # type: ignore[assignment]
    maybe_exchange_device = staticmethod(npusim._maybe_exchange_device)  # type: ignore[assignment]
    device_count = staticmethod(npusim.device_count)
    is_available = staticmethod(npusim.is_available)
    stream = staticmethod(npusim.stream)
    current_stream = staticmethod(npusim.current_stream)
    set_stream = staticmethod(npusim.set_stream)
    synchronize = staticmethod(npusim.synchronize)
    memory_allocated = staticmethod(npusim.memory_allocated)
    #: What a generated kernel needs of a device: its launcher. It finds the current stream itself.
    get_raw_stream = staticmethod(_C.device_launcher)  # type: ignore[assignment]

    @staticmethod
    def _set_stream_by_id(stream_id: int, device_index: int, device_type: int) -> None:
        npusim.set_stream(
            npusim.Stream(stream_id=stream_id, device_index=device_index, device_type=device_type)
        )

    @staticmethod
    def is_bf16_supported(including_emulation: bool = False) -> bool:
        """Returns True."""
        return True

    @staticmethod
    def get_compute_capability(device: Any = None) -> str:
        """Returns nothing: kernels are written for the host's processor."""
        return ""


def register(name: str) -> None:
    """Registers the interface for devices called `name`."""
    # Dynamo registers its own on the first question, which would replace one called "cuda".
    dict(torchs.get_registered_device_interfaces())
    torchs.register_interface_for_device(name, NpusimInterface)
    for index in range(npusim.device_count()):
        torchs.register_interface_for_device(f"{name}:{index}", NpusimInterface)


def serve_cuda(on: bool) -> None:
    """Registers the interface for "cuda" too, or gives Dynamo its own one back."""
    if on:
        register("cuda")
        return
    for name in [name for name in torchs.device_interfaces if name.startswith("cuda:")]:
        del torchs.device_interfaces[name]
    torchs.register_interface_for_device("cuda", torchs.CudaInterface)
