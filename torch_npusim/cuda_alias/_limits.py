# SPDX-License-Identifier: BSD-3-Clause
"""Limits of the alias: names that raise, and things that read otherwise than on CUDA."""

from collections.abc import Callable
from typing import Any, NoReturn

from torch_npusim.patches import is_version

_RUNTIME = "there is no CUDA runtime behind npusim; leave the call out, or guard it."
_ALLOCATOR = "the caching allocator of npusim cannot be switched off; NPUSIM_ALLOCATOR changes it."
_COMPILER = "npusim cannot run CUDA code; write the operation with tensors."
_NCCL = "npusim has no NCCL to call; use torch.distributed with the backend nccl."
_GRAPH = "a graph of npusim is no CUDA graph; torch.npusim.graphs captures and replays it."
_TUNABLE = "npusim has one implementation of each operator, so there is nothing to tune."

# Names below torch.cuda that raise NotImplementedError, and why.
REFUSED: dict[str, str] = {
    **dict.fromkeys(
        (
            "current_blas_handle",
            "current_solver_handle",
            "gds.GdsFile",
            "gds.gds_deregister_buffer",
            "gds.gds_register_buffer",
            "GreenContext",
            "green_contexts.GreenContext",
        ),
        _RUNTIME,
    ),
    **dict.fromkeys(
        (
            "caching_allocator_disabled",
            "caching_allocator_enable",
            "memory.caching_allocator_disabled",
            "memory.caching_allocator_enable",
        ),
        _ALLOCATOR,
    ),
    **dict.fromkeys(
        ("_compile_kernel",),
        _COMPILER,
    ),
    **dict.fromkeys(
        (
            "nccl.all_gather",
            "nccl.all_reduce",
            "nccl.broadcast",
            "nccl.init_rank",
            "nccl.reduce",
            "nccl.reduce_scatter",
            "nccl.unique_id",
        ),
        _NCCL,
    ),
    **{
        f"tunable.{name}": _TUNABLE
        for name in (
            "enable",
            "get_filename",
            "get_max_tuning_duration",
            "get_max_tuning_iterations",
            "get_results",
            "get_rotating_buffer_size",
            "get_validators",
            "mgpu_tune_gemm_in_file",
            "read_file",
            "record_untuned_enable",
            "set_filename",
            "set_max_tuning_duration",
            "set_max_tuning_iterations",
            "set_numerical_check_tolerances",
            "set_rotating_buffer_size",
            "tune_gemm_in_file",
            "tuning_enable",
        )
    },
}

#: Names that came later, and the version of torch that has them first.
_LATER: dict[str, dict[str, str]] = {
    ">=2.14": {
        **dict.fromkeys(
            (
                "export_dot",
                "export_graph_data",
                "graphs.export_dot",
                "graphs.export_graph_data",
                *(
                    f"graphs.register_graph_{moment}_hook"
                    for moment in (
                        "capture_start",
                        "capture_end",
                        "instantiate",
                        "replay_start",
                        "replay_end",
                        "destroy",
                    )
                ),
            ),
            _GRAPH,
        ),
        "tunable.get_cublaslt_requested_algo_count": _TUNABLE,
        "tunable.set_cublaslt_requested_algo_count": _TUNABLE,
    },
    ">=2.15": {
        **dict.fromkeys(
            (
                "green_contexts.SMPartition",
                "green_contexts.get_num_locality_domains",
                "green_contexts.is_localization_supported",
            ),
            _RUNTIME,
        ),
        **dict.fromkeys(
            (
                "tunable.dynamic_dims_mask",
                "tunable.wildcard_fallback_enable",
                "tunable.wildcard_fallback_is_enabled",
            ),
            _TUNABLE,
        ),
    },
}
for _versions, _names in _LATER.items():
    if is_version(_versions):
        REFUSED.update(_names)

# What answers, but not as on CUDA.
DIFFERENT: dict[str, str] = {
    "tensor.is_cuda in TorchScript and C++": "is False: compiled code asks the device itself",
    "autocast in TorchScript": "casts nothing: its compiler knows the devices cpu and cuda only",
    "names imported before the alias": "keep their meaning: after `from torch.cuda import "
    "Stream`, that Stream is CUDA's; enable the alias first",
    "torch.version.cuda": "names a version although no CUDA library is there; a package that loads "
    "CUDA libraries because of it ends in its own ImportError",
    "torch.backends.cudnn": "is there with the version of torch's build for CUDA, and refuses what "
    "cuDNN refuses; of its flags, which can be set and read, `enabled` changes RNNs and "
    "`allow_tf32` modelled times, the others nothing; weights of RNNs are not made one chunk of "
    "memory",
    "torch.cuda.temperature(), power_draw()": "never move: there are no sensors; utilization() is "
    "100 while the current stream has unfinished work, and clock_rate() follows from the "
    "specification's peak rate",
    "torch.cuda.get_device_properties()": "has the sizes of the largest chip of its capability; "
    "clocks follow from the specification's peaks, and read 0 where it has no width of the bus",
    "Stream.cuda_stream, Event.cuda_event": "are handles that no other library can use; "
    "ExternalStream takes those of npusim's streams only",
    "torch.cuda._gpu_trace": "is called as on CUDA, but for streams and events within npusim",
    "torch.cuda.Event(interprocess=True)": "records and has a handle, which no process can open: "
    "each has a virtual clock of its own",
    "Tensor.__dlpack_device__()": "is kDLCUDA, and the capsule says kDLExtDev, which other "
    "libraries refuse: they cannot read the memory of npusim",
    "Tensor.__cuda_array_interface__": "raises AttributeError, as for a tensor on CPU",
    "torch.backends.cuda.cufft_plan_cache, preferred_linalg_library('magma')": "raise RuntimeError "
    "of torch: those libraries are not there",
    "torch.profiler with ProfilerActivity.CUDA": "shows the devices in virtual time; "
    "torch.autograd.profiler.emit_nvtx() raises",
    "files": "torch.save writes 'cuda:0' as the location, so without the alias they load as files "
    "from CUDA do: with map_location",
    "the backend name nccl": "is simccl, whose bytes go through gloo; so is gloo for the devices",
    "libraries for CUDAPluggableAllocator": "take memory from npusim_malloc(), where those for "
    "CUDA call cudaMalloc()",
    "CUDA extensions": "cannot be compiled for or called with tensors of npusim",
    "Triton": "kernels cannot run on npusim; torch.compile makes C++ kernels instead",
}


def _message(name: str) -> str:
    return f"torch.cuda.{name} on npusim: {REFUSED[name]}"


def refuse_function(name: str) -> Callable[..., NoReturn]:
    """Returns a function that raises NotImplementedError with what REFUSED says of `name`."""

    def refuse(*args: Any, **kwargs: Any) -> NoReturn:
        raise NotImplementedError(_message(name))

    refuse.__name__ = refuse.__qualname__ = name.rpartition(".")[2]
    refuse.__doc__ = f"Raises NotImplementedError: {REFUSED[name]}"
    return refuse


def refuse_class(name: str) -> type:
    """Returns a class for isinstance() and as a base, of which no object can be made."""

    def __new__(cls: type, *args: Any, **kwargs: Any) -> NoReturn:
        raise NotImplementedError(_message(name))

    doc = f"Raises NotImplementedError: {REFUSED[name]}"
    return type(name.rpartition(".")[2], (), {"__new__": __new__, "__doc__": doc})
