# SPDX-License-Identifier: BSD-3-Clause
"""torch.cuda.cudart(): calls of CUDA's runtime that torch binds; all work."""

import ctypes

from torch_npusim import _C, npusim

_TEXTS = {
    0: "no error",
    1: "invalid argument",
    2: "out of memory",
    100: "no CUDA-capable device is detected",
    101: "invalid device ordinal",
    600: "device not ready",
    700: "an illegal memory access was encountered",
    710: "device-side assert triggered",
    712: "part or all of the requested memory range is already mapped",
    713: "pointer does not correspond to a registered memory region",
}


class CudaErrorCode(int):
    """The result of a call; 0 is success."""

    success = 0


def _text(code: int) -> str:
    """Returns CUDA's words for a code."""
    return _TEXTS.get(code, "unrecognized error code")


def _profiler_start() -> int:
    """Starts the recording of virtual time."""
    npusim.profiler.start()
    return 0


def _profiler_stop() -> int:
    """Ends the recording."""
    npusim.profiler.stop()
    return 0


def _register(address: int, size: int, flags: int) -> int:
    """Makes memory of the program's own pinned."""
    if not address or size <= 0:
        return 1
    return 0 if _C.register_pinned(address, size) else 712


def _unregister(address: int) -> int:
    """Takes that back."""
    return 0 if _C.unregister_pinned(address) else 713


def _create_stream(address: int) -> int:
    """Writes the handle of a stream to the address."""
    ctypes.c_uint64.from_address(address).value = npusim.Stream().cuda_stream  # type: ignore[attr-defined]
    return 0


def _destroy_stream(handle: int) -> int:
    """Does nothing: streams are a pool."""
    return 0


class Runtime:
    """The object of torch.cuda.cudart()."""

    cudaError = CudaErrorCode
    cudaGetErrorString = staticmethod(_text)
    cudaMemGetInfo = staticmethod(npusim.memory.mem_get_info)
    cudaProfilerStart = staticmethod(_profiler_start)
    cudaProfilerStop = staticmethod(_profiler_stop)
    cudaHostRegister = staticmethod(_register)
    cudaHostUnregister = staticmethod(_unregister)
    cudaStreamCreate = staticmethod(_create_stream)
    cudaStreamDestroy = staticmethod(_destroy_stream)
