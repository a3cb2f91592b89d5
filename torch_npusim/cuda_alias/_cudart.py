# SPDX-License-Identifier: BSD-3-Clause
"""torch.cuda.cudart(): calls of CUDA's runtime that torch binds; each works or raises by name."""

from collections.abc import Callable
from typing import Any, NoReturn

from torch_npusim import npusim

_TEXTS = {
    0: "no error",
    1: "invalid argument",
    2: "out of memory",
    100: "no CUDA-capable device is detected",
    101: "invalid device ordinal",
    600: "device not ready",
    700: "an illegal memory access was encountered",
    710: "device-side assert triggered",
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


REFUSED = {
    "cudaHostRegister": "use Tensor.pin_memory().",
    "cudaHostUnregister": "use Tensor.pin_memory().",
    "cudaStreamCreate": "use torch.cuda.Stream().",
    "cudaStreamDestroy": "use torch.cuda.Stream().",
}


def _refuse(name: str) -> Callable[..., NoReturn]:
    def refuse(*args: Any, **kwargs: Any) -> NoReturn:
        raise NotImplementedError(f"torch.cuda.cudart().{name} on npusim: {REFUSED[name]}")

    return refuse


class Runtime:
    """The object of torch.cuda.cudart()."""

    cudaError = CudaErrorCode
    cudaGetErrorString = staticmethod(_text)
    cudaMemGetInfo = staticmethod(npusim.memory.mem_get_info)
    cudaProfilerStart = staticmethod(_profiler_start)
    cudaProfilerStop = staticmethod(_profiler_stop)
    cudaHostRegister = staticmethod(_refuse("cudaHostRegister"))
    cudaHostUnregister = staticmethod(_refuse("cudaHostUnregister"))
    cudaStreamCreate = staticmethod(_refuse("cudaStreamCreate"))
    cudaStreamDestroy = staticmethod(_refuse("cudaStreamDestroy"))
