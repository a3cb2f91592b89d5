# SPDX-License-Identifier: BSD-3-Clause
"""Section identity: the chip, its machine and its software."""

from __future__ import annotations

import functools
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from .batches import Question, batch
from .device import is_simulated


@batch("identity", "device")
def _identity() -> Iterator[Question]:
    import torch

    def of_device(name: str) -> Any:
        return getattr(torch.cuda.get_device_properties(0), name)

    def sensor(name: str) -> Any:
        if not shutil.which("nvidia-smi"):
            return None
        words = ["nvidia-smi", "--query-gpu=" + name, "--format=csv,noheader", "-i", "0"]
        return subprocess.run(words, capture_output=True, text=True, timeout=20).stdout.strip()

    def processor() -> str:
        with open("/proc/cpuinfo") as file:
            names = [line.split(":")[1] for line in file if line.startswith("model name")]
        return names[0].strip() if names else platform.machine()

    yield "chip", lambda: torch.cuda.get_device_name(0)
    yield "capability", lambda: list(torch.cuda.get_device_capability(0))
    for name in "total_memory multi_processor_count".split():
        yield name, functools.partial(of_device, name)
    for name in "L2_cache_size warp_size max_threads_per_multi_processor gcnArchName".split():
        if not is_simulated():
            yield name, functools.partial(of_device, name)
    yield "devices", torch.cuda.device_count
    yield "torch", lambda: torch.__version__
    yield "cuda", lambda: torch.version.cuda
    yield "hip", lambda: torch.version.hip
    yield "cudnn", lambda: torch.backends.cudnn.version()
    yield "nccl", lambda: list(torch.cuda.nccl.version())
    yield "python", lambda: ".".join(map(str, sys.version_info[:3]))
    yield "system", lambda: [platform.system(), platform.machine()]
    yield "host processor", processor
    yield "simulated", is_simulated
    if not is_simulated():
        for (
            name
        ) in "driver_version clocks.max.sm clocks.max.mem power.limit pcie.link.gen.max".split():
            yield name, functools.partial(sensor, name)
