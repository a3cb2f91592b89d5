# SPDX-License-Identifier: BSD-3-Clause
"""NVML for torch.cuda: memory and clocks of the specification, and sensors that never move.

It stands for the package pynvml within torch.cuda alone; a program that imports pynvml itself gets
that package, if it is installed, and no device from it.
"""

import os
from collections.abc import Callable
from types import SimpleNamespace

from torch_npusim import _C, npusim
from torch_npusim.cuda_alias._capability import device_uuid, peak_clock
from torch_npusim.cuda_alias._patcher import Patcher
from torch_npusim.npusim._utils import DeviceLike

#: There are no sensors: these are of the order that idle cards show.
TEMPERATURE = 40  # degrees Celsius
POWER = 60_000  # mW


def _handle(device: DeviceLike = None) -> int:
    return npusim._utils._get_device_index(device, optional=True)


def nvmlDeviceGetMemoryInfo(handle: int) -> SimpleNamespace:
    """Returns what is free and used of the device, in bytes."""
    free, total = npusim.memory.mem_get_info(handle)
    return SimpleNamespace(free=free, used=total - free, total=total)


def nvmlDeviceGetUtilizationRates(handle: int) -> SimpleNamespace:
    """Returns 100 % while the current stream has unfinished work in virtual time, else 0."""
    busy = 0 if npusim.current_stream(handle).query() else 100
    return SimpleNamespace(gpu=busy, memory=busy)


def nvmlDeviceGetTemperature(handle: int, sensor: int) -> int:
    """Returns TEMPERATURE."""
    return TEMPERATURE


def nvmlDeviceGetPowerUsage(handle: int) -> int:
    """Returns POWER."""
    return POWER


def nvmlDeviceGetClockInfo(handle: int, kind: int) -> int:
    """Returns the clock, in MHz, that gives the specification's peak rate."""
    return peak_clock(npusim.get_device_properties(handle))


def _raw_count() -> int:
    """Returns how many devices there are, seen by this process or not."""
    count = next(k["value"] for k in _C.knobs() if k["name"] == "NPUSIM_DEVICE_COUNT")
    return int(count)


def _raw_uuids() -> list[str]:
    """Returns the identifiers of all devices, as nvidia-smi -L shows them."""
    name = npusim.get_device_properties(0).name
    return [f"GPU-{device_uuid(name, index)}" for index in range(_raw_count())]


def _list_processes(device: DeviceLike = None) -> str:
    """Returns the text of torch.cuda.list_gpu_processes(): a device belongs to this process."""
    index = _handle(device)
    used = nvmlDeviceGetMemoryInfo(index).used / (1 << 20)
    if not used:
        return f"GPU:{index}\nno processes are running"
    return f"GPU:{index}\nprocess {os.getpid():>10d} uses {used:>12.3f} MB GPU memory"


def _counting(by_list: Callable[[], int]) -> Callable[[], int]:
    """Returns the count of devices that CUDA_VISIBLE_DEVICES shows; "" and "-1" hide none here."""

    def count() -> int:
        listed = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        return npusim.device_count() if listed in ("", "-1") else by_list()

    return count


def patch(patcher: Patcher) -> None:
    """Lets torch.cuda ask this module."""
    import torch

    functions = {name: value for name, value in globals().items() if name.startswith("nvml")}
    library = SimpleNamespace(**functions, nvmlDeviceGetHandleByIndex=lambda index: index)
    patcher.set(torch.cuda, "pynvml", library)
    patcher.set(torch.cuda, "_HAS_PYNVML", True)
    patcher.set(torch.cuda, "_get_pynvml_handler", _handle)
    patcher.set(torch.cuda, "_get_nvml_device_index", _handle)
    patcher.set(torch.cuda, "_raw_device_count_nvml", _raw_count)
    patcher.set(torch.cuda, "_raw_device_uuid_nvml", _raw_uuids)
    patcher.set(torch.cuda, "_device_count_nvml", _counting(torch.cuda._device_count_nvml))
    for module in (torch.cuda, torch.cuda.memory):
        patcher.set(module, "list_gpu_processes", _list_processes)
