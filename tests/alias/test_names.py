# SPDX-License-Identifier: BSD-3-Clause
"""Every public name of torch.cuda and its submodules works on npusim or raises by its name."""

import os
import types
from importlib import import_module

import pytest
import torch

from torch_npusim import cuda_alias
from torch_npusim.patches import is_version

MODULES = (
    "",
    "amp.",
    "comm.",
    "gds.",
    "graphs.",
    "green_contexts.",
    "memory.",
    "nccl.",
    "nvtx.",
    "profiler.",
    "random.",
    "tunable.",
)
# torch.cuda.comm lists nothing itself.
COMM = (
    "broadcast",
    "broadcast_coalesced",
    "gather",
    "reduce_add",
    "reduce_add_coalesced",
    "scatter",
)


def names_of(module):
    """Returns the public names of a submodule of torch.cuda, as they read below torch.cuda."""
    target = import_module(f"torch.cuda.{module}".rstrip("."))
    return [f"{module}{name}" for name in getattr(target, "__all__", COMM)]


def on(index, *values):
    return torch.tensor(values, device=f"cuda:{index}")


def both(function, *arguments):
    """Calls something with a tensor on each device."""
    return function([on(0, 1.0, 2.0), on(1, 3.0, 4.0)], *arguments)


def lived_through(function, *arguments):
    """Calls what returns nothing, and says that it returned."""
    return function(*arguments) is None


def entered(context):
    with context:
        return True


def add_one(x):
    return x + 1


def replayed(capture):
    x, graph = on(0, 1.0), torch.cuda.CUDAGraph()
    with capture(cuda_graph=graph):
        y = x + 1
    graph.replay()
    return y.item() == 2


def graphed(make):
    return make(add_one, (on(0, 1.0),))(on(0, 4.0)).item() == 5


def seeded(function):
    torch.cuda.manual_seed(1)
    before = torch.cuda.initial_seed()
    function()
    return torch.cuda.initial_seed() != before


def mixed():
    with torch.cuda.amp.autocast():
        return torch.mm(on(0, [1.0]), on(0, [1.0])).dtype is torch.float16


def custom(name):
    class Twice(torch.autograd.Function):
        @staticmethod
        @torch.cuda.amp.custom_fwd(cast_inputs=torch.float16)
        def forward(ctx, x):
            return x * 2

        @staticmethod
        @torch.cuda.amp.custom_bwd
        def backward(ctx, g):
            return g * 2

    x = on(0, 1.0).requires_grad_()
    with torch.cuda.amp.autocast():
        y = Twice.apply(x)
    y.sum().backward()
    return y.dtype is torch.float16 and x.grad.item() == 2


cuda = torch.cuda
LEGACY = ("BFloat16", "Bool", "Byte", "Char", "Double", "Float", "Half", "Int", "Long", "Short")

# What each name does; a true result is expected.
WORKS = {
    **{
        f"{name}Tensor": lambda name=name: isinstance(
            getattr(cuda, f"{name}Tensor")(2), getattr(cuda, f"{name}Tensor")
        )
        for name in LEGACY
    },
    **{
        f"{name}Storage": lambda name=name: isinstance(
            getattr(cuda, f"{name}Storage")(2), getattr(cuda, f"{name}Storage")
        )
        for name in (*LEGACY, "ComplexDouble", "ComplexFloat")
    },
    "CUDAPluggableAllocator": lambda: (
        cuda.memory.CUDAPluggableAllocator is torch.npusim.NPUSIMPluggableAllocator
    ),
    "ExternalStream": lambda: cuda.ExternalStream(0) == cuda.default_stream(),
    "check_error": lambda: lived_through(cuda.check_error, cuda.cudart().cudaProfilerStart()),
    "cudaStatus": lambda: cuda.cudaStatus.SUCCESS == 0,
    "cudart": lambda: cuda.cudart().cudaMemGetInfo(0) == cuda.mem_get_info(0),
    "get_stream_from_external": lambda: cuda.get_stream_from_external(0) == cuda.default_stream(),
    "CudaError": lambda: issubclass(cuda.CudaError, RuntimeError),
    "DeferredCudaCallError": lambda: issubclass(cuda.DeferredCudaCallError, Exception),
    "Event": lambda: isinstance(cuda.Event(enable_timing=True), cuda.Event),
    "MemPool": lambda: cuda.MemPool().use_count() == 1,
    "Stream": lambda: isinstance(cuda.Stream("cuda:1", priority=-1), torch.Stream),
    "StreamContext": lambda: entered(cuda.StreamContext(cuda.Stream())),
    "caching_allocator_alloc": lambda: lived_through(
        cuda.caching_allocator_delete, cuda.caching_allocator_alloc(512)
    ),
    "caching_allocator_delete": lambda: lived_through(
        cuda.caching_allocator_delete, cuda.caching_allocator_alloc(512, "cuda:1")
    ),
    "can_device_access_peer": lambda: cuda.can_device_access_peer("cuda:0", "cuda:1"),
    "change_current_allocator": lambda: (
        cuda.change_current_allocator is torch.npusim.change_current_allocator
    ),
    "current_device": lambda: cuda.current_device() == 0,
    "current_stream": lambda: isinstance(cuda.current_stream("cuda:1"), cuda.Stream),
    "default_generators": lambda: cuda.default_generators[1].device == torch.device("cuda:1"),
    "default_stream": lambda: cuda.default_stream() == cuda.current_stream(),
    "device": lambda: entered(cuda.device("cuda:1")),
    "device_count": lambda: cuda.device_count() == 2,
    "device_memory_used": lambda: cuda.device_memory_used() >= cuda.memory_allocated(),
    "device_of": lambda: entered(cuda.device_of(on(1, 1.0))),
    "empty_cache": lambda: lived_through(cuda.empty_cache),
    "get_allocator_backend": lambda: isinstance(cuda.get_allocator_backend(), str),
    "get_arch_list": lambda: "sm_80" in cuda.get_arch_list(),
    "get_device_capability": lambda: len(cuda.get_device_capability("cuda:0")) == 2,
    "get_device_name": lambda: cuda.get_device_name(0) == torch.npusim.get_device_name(0),
    "get_device_properties": lambda: cuda.get_device_properties("cuda").total_memory > 0,
    "get_gencode_flags": lambda: "code=sm_80" in cuda.get_gencode_flags(),
    "get_per_process_memory_fraction": lambda: cuda.get_per_process_memory_fraction() == 1,
    "get_rng_state": lambda: cuda.get_rng_state("cuda").dtype is torch.uint8,
    "get_rng_state_all": lambda: len(cuda.get_rng_state_all()) == 2,
    "get_sync_debug_mode": lambda: cuda.get_sync_debug_mode() == 0,
    "has_half": lambda: cuda.has_half is True,
    "has_magma": lambda: cuda.has_magma is True,
    "host_memory_stats": lambda: "active_bytes.current" in cuda.host_memory_stats(),
    "host_memory_stats_as_nested_dict": lambda: (
        "active_bytes" in cuda.host_memory_stats_as_nested_dict()
    ),
    "init": lambda: lived_through(cuda.init),
    "initial_seed": lambda: isinstance(cuda.initial_seed(), int),
    "ipc_collect": lambda: lived_through(cuda.ipc_collect),
    "is_available": lambda: cuda.is_available(),
    "is_bf16_supported": lambda: cuda.is_bf16_supported(),
    "is_current_stream_capturing": lambda: not cuda.is_current_stream_capturing(),
    "is_initialized": lambda: on(0, 1.0).is_cuda and cuda.is_initialized(),
    "is_tf32_supported": lambda: cuda.is_tf32_supported() is True,
    "manual_seed": lambda: lived_through(cuda.manual_seed, 7) and cuda.initial_seed() == 7,
    "manual_seed_all": lambda: lived_through(cuda.manual_seed_all, 8) and cuda.initial_seed() == 8,
    "max_memory_allocated": lambda: cuda.max_memory_allocated() >= cuda.memory_allocated(),
    "max_memory_cached": lambda: cuda.max_memory_cached() == cuda.max_memory_reserved(),
    "max_memory_reserved": lambda: cuda.max_memory_reserved() >= cuda.memory_reserved(),
    "mem_get_info": lambda: (
        cuda.mem_get_info("cuda:1")[1] == cuda.get_device_properties(1).total_memory
    ),
    "memory_allocated": lambda: on(0, 1.0).is_cuda and cuda.memory_allocated("cuda") >= 0,
    "memory_cached": lambda: cuda.memory_cached() == cuda.memory_reserved(),
    "memory_reserved": lambda: cuda.memory_reserved() >= cuda.memory_allocated(),
    "memory_snapshot": lambda: isinstance(cuda.memory_snapshot(), list),
    "memory_stats": lambda: "allocated_bytes.all.peak" in cuda.memory_stats("cuda:0"),
    "memory_stats_as_nested_dict": lambda: "allocated_bytes" in cuda.memory_stats_as_nested_dict(),
    "memory_summary": lambda: "npusim:0" in cuda.memory_summary(abbreviated=True),
    "reset_accumulated_host_memory_stats": lambda: lived_through(
        cuda.reset_accumulated_host_memory_stats
    ),
    "reset_accumulated_memory_stats": lambda: lived_through(cuda.reset_accumulated_memory_stats),
    "reset_max_memory_allocated": lambda: lived_through(cuda.reset_max_memory_allocated),
    "reset_max_memory_cached": lambda: lived_through(cuda.reset_max_memory_cached),
    "reset_peak_host_memory_stats": lambda: lived_through(cuda.reset_peak_host_memory_stats),
    "reset_peak_memory_stats": lambda: lived_through(cuda.reset_peak_memory_stats),
    "seed": lambda: seeded(cuda.seed),
    "seed_all": lambda: seeded(cuda.seed_all),
    "set_device": lambda: lived_through(cuda.set_device, "cuda:0"),
    "set_per_process_memory_fraction": lambda: lived_through(
        cuda.set_per_process_memory_fraction, 1.0, "cuda:0"
    ),
    "set_rng_state": lambda: lived_through(cuda.set_rng_state, cuda.get_rng_state(), "cuda"),
    "set_rng_state_all": lambda: lived_through(cuda.set_rng_state_all, cuda.get_rng_state_all()),
    "set_stream": lambda: lived_through(cuda.set_stream, cuda.current_stream()),
    "set_sync_debug_mode": lambda: lived_through(cuda.set_sync_debug_mode, "default"),
    "stream": lambda: entered(cuda.stream(cuda.Stream())),
    "synchronize": lambda: lived_through(cuda.synchronize, "cuda:1"),
    "use_mem_pool": lambda: entered(cuda.use_mem_pool(cuda.MemPool(), "cuda:1")),
    "amp.GradScaler": lambda: cuda.amp.GradScaler().scale(on(0, 1.0)).item() == 65536,
    "amp.amp_definitely_not_available": lambda: not cuda.amp.common.amp_definitely_not_available(),
    "amp.autocast": mixed,
    "amp.custom_bwd": lambda: custom("backward"),
    "amp.custom_fwd": lambda: custom("forward"),
    "comm.broadcast": lambda: (
        [t.device.index for t in cuda.comm.broadcast(on(0, 1.0), ["cuda:0", "cuda:1"])] == [0, 1]
    ),
    "comm.broadcast_coalesced": lambda: (
        len(cuda.comm.broadcast_coalesced([on(0, 1.0)], [0, 1])) == 2
    ),
    "comm.gather": lambda: both(cuda.comm.gather, 0, 1).tolist() == [1, 2, 3, 4],
    "comm.reduce_add": lambda: both(cuda.comm.reduce_add, 1).tolist() == [4, 6],
    "comm.reduce_add_coalesced": lambda: (
        cuda.comm.reduce_add_coalesced([[on(0, 1.0)], [on(1, 2.0)]])[0].tolist() == [3]
    ),
    "comm.scatter": lambda: (
        [t.tolist() for t in cuda.comm.scatter(torch.arange(5), [0, 1], [3, 2])]
        == [[0, 1, 2], [3, 4]]
    ),
    "CUDAGraph": lambda: replayed(cuda.graph),
    "graph": lambda: replayed(cuda.graph),
    "graph_pool_handle": lambda: len(cuda.graph_pool_handle()) == 2,
    "graphs.CUDAGraph": lambda: cuda.graphs.CUDAGraph is cuda.CUDAGraph,
    "graphs.graph": lambda: replayed(cuda.graphs.graph),
    "graphs.graph_pool_handle": lambda: len(cuda.graphs.graph_pool_handle()) == 2,
    "graphs.make_graphed_callables": lambda: graphed(cuda.graphs.make_graphed_callables),
    "make_graphed_callables": lambda: graphed(cuda.make_graphed_callables),
    "graphs.is_current_stream_capturing": lambda: not cuda.graphs.is_current_stream_capturing(),
    "nvtx.mark": lambda: lived_through(cuda.nvtx.mark, "here"),
    "nvtx.range": lambda: entered(cuda.nvtx.range("step {}", 1)),
    "nvtx.range_end": lambda: lived_through(cuda.nvtx.range_end, cuda.nvtx.range_start("a")),
    "nvtx.range_pop": lambda: cuda.nvtx.range_push("a") == cuda.nvtx.range_pop(),
    "nvtx.range_push": lambda: (
        (cuda.nvtx.range_push("a"), cuda.nvtx.range_push("b"))[1]
        == 1 + (cuda.nvtx.range_pop(), cuda.nvtx.range_pop())[1]
    ),
    "nvtx.range_start": lambda: cuda.nvtx.range_start("a") != cuda.nvtx.range_start("a"),
    "profiler.profile": lambda: entered(cuda.profiler.profile()),
    "profiler.start": lambda: lived_through(cuda.profiler.start),
    "profiler.stop": lambda: lived_through(cuda.profiler.stop),
    "gds.is_available": lambda: cuda.gds.is_available() is False,
    "list_gpu_processes": lambda: str(os.getpid()) in cuda.list_gpu_processes(),
    "clock_rate": lambda: 100 < cuda.clock_rate() < 10_000,
    "memory_usage": lambda: cuda.memory_usage() in (0, 100),
    "power_draw": lambda: cuda.power_draw() > 0,
    "temperature": lambda: 0 < cuda.temperature() < 100,
    "utilization": lambda: cuda.utilization() in (0, 100),
    "tunable.is_enabled": lambda: cuda.tunable.is_enabled() is False,
    "tunable.record_untuned_is_enabled": lambda: not cuda.tunable.record_untuned_is_enabled(),
    "tunable.tuning_is_enabled": lambda: not cuda.tunable.tuning_is_enabled(),
}


def all_names():
    with cuda_alias.scope():
        return [name for module in MODULES for name in names_of(module)]


#: Names that older versions of torch do not have.
LATER = {"gds.is_available"} if is_version("<2.14") else set()


def value_of(name):
    module, _, attribute = f"torch.cuda.{name}".rpartition(".")
    return getattr(import_module(module), attribute)


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("name", all_names())
def test_every_public_name_works_or_raises_by_its_name(name):
    value, short = value_of(name), name.rpartition(".")[2]
    if isinstance(value, types.ModuleType):
        assert value is import_module(f"torch.cuda.{name}")
    elif f"torch.cuda.{name}" in cuda_alias.LIMITS:
        with pytest.raises(NotImplementedError, match=rf"torch\.cuda\.{name}\b"):
            value()
    else:
        # memory.x and random.x are the x of torch.cuda, if they are not named themselves.
        works = WORKS.get(name) or WORKS[short]
        if name not in WORKS:
            assert value is value_of(short)
        assert works()


def test_the_tables_name_nothing_else():
    names = set(all_names())
    assert set(WORKS) - LATER <= names


@pytest.mark.parametrize("name", ["_compile_kernel", "nccl.all_reduce"])
def test_private_names_that_libraries_call_raise_too(name):
    with pytest.raises(NotImplementedError, match=rf"torch\.cuda\.{name}\b"):
        value_of(name)()


def test_a_sleep_takes_virtual_time_of_its_stream():
    begin, middle, end = (torch.cuda.Event(enable_timing=True) for _ in range(3))
    side = torch.cuda.Stream()
    begin.record()
    torch.cuda._sleep(3_000_000)  # a cycle is a nanosecond
    with torch.cuda.stream(side):
        middle.record()
    assert middle.query()
    end.record()
    assert not end.query()
    end.synchronize()
    assert begin.elapsed_time(end) == pytest.approx(3.0, rel=0.01)
    torch.cuda._sleep(0)


@pytest.mark.parametrize("name", ["_record_memory_history", "_snapshot", "_dump_snapshot"])
def test_private_names_of_memory_are_npusims(name):
    assert value_of(f"memory.{name}") is getattr(torch.npusim.memory, name)


def test_refused_classes_are_still_classes():
    assert not isinstance(on(0, 1.0), torch.cuda.GreenContext)

    class Recorder(torch.cuda.GreenContext):
        pass

    with pytest.raises(NotImplementedError, match=r"torch\.cuda\.GreenContext"):
        Recorder()
