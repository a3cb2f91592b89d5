# SPDX-License-Identifier: BSD-3-Clause
"""The compute capability that a run is judged as, and what follows from it.

sim.specs.capability() decides it.
"""

import functools
import uuid
from dataclasses import dataclass

from torch_npusim import _C, npusim
from torch_npusim.sim import specs
from torch_npusim.sim.specs import capability

#: The answer of get_arch_list(): the architectures of a torch build for CUDA_VERSION.
ARCHITECTURES = ("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120", "compute_120")


@dataclass(frozen=True)
class _Chip:
    """Limits of a capability.

    Threads and shared memory are those of "Technical Specifications per Compute Capability" in
    CUDA's programming guide; the cache is that of NVIDIA's architecture papers (V100, RTX 8000,
    A100, A6000, RTX 6000 Ada, H100, B200).
    """

    threads: int  # resident on a multiprocessor
    shared: int  # KiB of shared memory of a multiprocessor
    shared_optin: int  # KiB of it that a block may have
    l2: int  # MiB of level 2 cache of the largest product


_CHIPS = {
    (7, 0): _Chip(2048, 96, 96, 6),
    (7, 5): _Chip(1024, 64, 64, 6),
    (8, 0): _Chip(2048, 164, 163, 40),
    (8, 6): _Chip(1536, 100, 99, 6),
    (8, 9): _Chip(1536, 100, 99, 96),
    (9, 0): _Chip(2048, 228, 227, 50),
    (10, 0): _Chip(2048, 228, 227, 126),
}


def gencode_flags() -> str:
    """Returns the flags of nvcc for ARCHITECTURES."""
    pairs = [name.split("_") for name in ARCHITECTURES]
    return " ".join(f"-gencode compute=compute_{arch},code={kind}_{arch}" for kind, arch in pairs)


def peak_clock(own: npusim.DeviceProperties) -> int:
    """Returns the clock, in MHz, that gives the specification's peak of float32."""
    chip = own.major, own.minor  # below 6.0: the device says none of CUDA's
    lanes = specs.lanes(chip if chip >= (6, 0) else capability())
    per_cycle = 2 * lanes * max(own.multi_processor_count, 1)
    return round(own.peak_flops["float32"] / per_cycle / 1e6)


def device_uuid(name: str, number: int) -> uuid.UUID:
    """Returns that of a device, by its number among all devices of the machine."""
    return uuid.uuid5(uuid.NAMESPACE_OID, f"{name}:{number}")


@functools.cache
def _bus_bits(spec: str) -> int:
    return 0 if spec in specs.BUILT_IN else int(specs.load(spec).numbers["memory.bus_bits"])


@dataclass(frozen=True)
class CudaDeviceProperties(npusim.DeviceProperties):
    """Properties of a device, in the names of torch.cuda; sizes in bytes, rates in kHz.

    The clock is the one that gives the peak of float32, the memory's the one that gives its
    bandwidth, twice a cycle over the width of its bus: 0 where the specification has no width.
    """

    index: int = 0
    warp_size: int = 32
    max_threads_per_block: int = 1024
    regs_per_multiprocessor: int = 65536
    shared_memory_per_block: int = 48 << 10
    pci_bus_id: int = 0
    pci_device_id: int = 0
    pci_domain_id: int = 0
    clock_rate: int = 0
    memory_clock_rate: int = 0
    memory_bus_width: int = 0
    is_integrated: int = 0
    is_multi_gpu_board: int = 0

    @classmethod
    def of(cls, own: npusim.DeviceProperties, index: int) -> "CudaDeviceProperties":
        """Returns the properties of a device of npusim."""
        major, minor = capability()
        bits = _bus_bits(own.name)
        clocks = {
            "clock_rate": 1000 * peak_clock(own),
            "memory_bus_width": bits,
            "memory_clock_rate": round(own.memory_bandwidth * 8 / (2 * bits * 1e3)) if bits else 0,
        }
        return cls(**vars(own) | {"major": major, "minor": minor, "index": index} | clocks)

    @property
    def _chip(self) -> _Chip:
        known = [each for each in _CHIPS if each <= (self.major, self.minor)]
        return _CHIPS[max(known, default=(7, 0))]

    @property
    def gcnArchName(self) -> str:
        """The name of the device, as CUDA builds have it."""
        return self.name

    @property
    def uuid(self) -> uuid.UUID:
        """The same in every run, and different for each device."""
        return device_uuid(self.name, _C.visible_devices()[self.index])

    @property
    def L2_cache_size(self) -> int:
        """That of the largest chip of the capability."""
        return self._chip.l2 << 20

    @property
    def max_threads_per_multi_processor(self) -> int:
        """Threads that are resident on a multiprocessor at most."""
        return self._chip.threads

    @property
    def shared_memory_per_multiprocessor(self) -> int:
        """Shared memory of a multiprocessor."""
        return self._chip.shared << 10

    @property
    def shared_memory_per_block_optin(self) -> int:
        """Shared memory that a block may have on request."""
        return self._chip.shared_optin << 10
