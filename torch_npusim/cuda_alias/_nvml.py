# SPDX-License-Identifier: BSD-3-Clause
"""NVML for torch.cuda: memory and clocks of the specification, and sensors that never move.

It stands for the package pynvml within torch.cuda alone; a program that imports pynvml itself gets
that package, if it is installed, and no device from it.
"""

import os
from types import SimpleNamespace

from torch_npusim import npusim
from torch_npusim.cuda_alias._patcher import Patcher
from torch_npusim.npusim._utils import DeviceLike
from torch_npusim.sim.specs import capability

#: There are no sensors: these are of the order that idle cards show.
TEMPERATURE = 40  # degrees Celsius
POWER = 60_000  # mW

#: Cores for float32 of a multiprocessor by capability ("Arithmetic Instructions" in CUDA's
#: programming guide); others have 128.
_CORES = {(6, 0): 64, (7, 0): 64, (7, 5): 64, (8, 0): 64}


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
    properties = npusim.get_device_properties(handle)
    own = properties.major, properties.minor  # below 6.0: the device says none of CUDA's
    cores = _CORES.get(own if own >= (6, 0) else capability(), 128)
    per_cycle = 2 * cores * max(properties.multi_processor_count, 1)
    return round(properties.peak_flops["float32"] / per_cycle / 1e6)


def _list_processes(device: DeviceLike = None) -> str:
    """Returns the text of torch.cuda.list_gpu_processes(): a device belongs to this process."""
    index = _handle(device)
    used = nvmlDeviceGetMemoryInfo(index).used / (1 << 20)
    if not used:
        return f"GPU:{index}\nno processes are running"
    return f"GPU:{index}\nprocess {os.getpid():>10d} uses {used:>12.3f} MB GPU memory"


def patch(patcher: Patcher) -> None:
    """Lets torch.cuda ask this module."""
    import torch

    functions = {name: value for name, value in globals().items() if name.startswith("nvml")}
    library = SimpleNamespace(**functions, nvmlDeviceGetHandleByIndex=lambda index: index)
    patcher.set(torch.cuda, "pynvml", library)
    patcher.set(torch.cuda, "_HAS_PYNVML", True)
    patcher.set(torch.cuda, "_get_pynvml_handler", _handle)
    patcher.set(torch.cuda, "_get_nvml_device_index", _handle)
    for module in (torch.cuda, torch.cuda.memory):
        patcher.set(module, "list_gpu_processes", _list_processes)
