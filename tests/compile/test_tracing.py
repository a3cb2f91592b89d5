# SPDX-License-Identifier: BSD-3-Clause
"""torch.npusim in compiled code: what is in the graph, and what is right at a break of it."""

import pytest
import torch

from torch_npusim import patches

npusim = torch.npusim


def in_a_stream(x):
    stream = npusim.Stream()
    stream.wait_stream(npusim.current_stream())
    with npusim.stream(stream):
        y = x + 1
    npusim.current_stream().wait_stream(stream)
    return y


def on_a_device(x):
    with npusim.device(1):
        return x + npusim.current_device()


def synchronized(x):
    y = x + 1
    npusim.synchronize()
    return y


def in_order(x):
    event = npusim.Event(enable_timing=True)
    event.record()
    y = x + 1
    npusim.current_stream().wait_event(event)
    return y


def cast(x):
    with npusim.amp.autocast(dtype=torch.bfloat16):
        y = x[:, None] @ x[None]
    with npusim.amp.autocast(False):
        return y.sum(0) + (x[:, None] @ x[None])[0]


IN_GRAPH = {
    "Event": in_order,
    "amp": cast,
    "current_stream": in_order,
    "Stream": in_a_stream,
    "get_race_detection": lambda x: x + len(npusim.get_race_detection()),
    "get_rules": lambda x: x + len(npusim.get_rules()),
    "is_available": lambda x: x + npusim.is_available(),
    "is_initialized": lambda x: x + npusim.is_initialized(),
    "device_count": lambda x: x + npusim.device_count(),
    "current_device": lambda x: x + npusim.current_device(),
    "get_device_name": lambda x: x + len(npusim.get_device_name()),
    "get_device_capability": lambda x: x + npusim.get_device_capability()[0],
    "is_bf16_supported": lambda x: x + npusim.is_bf16_supported(),
    "stream": in_a_stream,
    "device": on_a_device,
    "synchronize": synchronized,
}


def drawn_again(x):
    state = npusim.get_rng_state()
    y = x + torch.rand(4, device="npusim")
    npusim.set_rng_state(state)
    return y - torch.rand(4, device="npusim")


def forked(x):
    with torch.random.fork_rng(device_type="npusim"):
        npusim.manual_seed(7)
        y = torch.rand(4, device="npusim")
    return x + y + torch.rand(4, device="npusim")


BREAKS = {
    "states": drawn_again,
    "fork_rng": forked,
    "memory_allocated": lambda x: x + (npusim.memory_allocated() > 0),
    "mem_get_info": lambda x: x + npusim.mem_get_info()[1] % 7,
    "properties": lambda x: x + npusim.get_device_properties().total_memory % 7,
}


# What a graph cannot hold, and code that is compiled has no use for.
STATE = """
    can_device_access_peer device_of get_amp_supported_dtype get_device_properties
    get_sync_debug_mode set_device
    set_sync_debug_mode init set_race_detection set_rules graphs memory profiler random streams
    NPUSIMGraph graph graph_pool_handle is_current_stream_capturing make_graphed_callables MemPool
    NPUSIMPluggableAllocator caching_allocator_alloc caching_allocator_delete
    change_current_allocator empty_cache get_allocator_backend get_per_process_memory_fraction
    host_memory_stats host_memory_stats_as_nested_dict ipc_collect list_gpu_processes
    max_memory_allocated max_memory_reserved mem_get_info memory_allocated memory_reserved
    memory_snapshot memory_stats memory_stats_as_nested_dict memory_summary
    reset_accumulated_host_memory_stats reset_accumulated_memory_stats
    reset_peak_host_memory_stats reset_peak_memory_stats set_per_process_memory_fraction
    use_mem_pool default_generators get_rng_state get_rng_state_all initial_seed manual_seed
    manual_seed_all seed seed_all set_rng_state set_rng_state_all ExternalStream StreamContext
    default_stream set_stream DeviceProperties RaceError
""".split()


def test_every_public_name_is_in_the_graph_or_stays_out_of_it():
    """A name that is added says which; the types of older code (FloatTensor) make no graph."""
    names = {n for n in npusim.__all__ if not n.endswith(("Tensor", "Storage"))}
    assert names == IN_GRAPH.keys() | set(STATE)
    assert not IN_GRAPH.keys() & set(STATE)


@pytest.mark.parametrize(
    "function", [in_order, cast, in_a_stream, on_a_device, synchronized], ids=lambda f: f.__name__
)
def test_in_the_graph_under_the_alias(function, monkeypatch):
    from torch_npusim import cuda_alias

    with cuda_alias.scope():
        torch._dynamo.reset()
        monkeypatch.setitem(globals(), "npusim", torch.cuda)
        compare(function, fullgraph=True)
    torch._dynamo.reset()


@pytest.fixture(autouse=True)
def numbers_of_eager():
    torch._dynamo.reset()
    with torch._inductor.config.patch(fallback_random=True):
        yield


def compare(function, fullgraph):
    x = torch.arange(4.0, device="npusim")
    torch.manual_seed(0)
    expected = function(x)
    torch.manual_seed(0)
    assert torch.equal(torch.compile(function, fullgraph=fullgraph)(x), expected)


@pytest.mark.parametrize("name", IN_GRAPH)
def test_in_the_graph(name):
    compare(IN_GRAPH[name], fullgraph=True)


@pytest.mark.parametrize("name", BREAKS)
def test_at_a_graph_break(name):
    compare(BREAKS[name], fullgraph=False)


def test_the_rules_outlive_a_process_group():
    """Whose beginning has Dynamo make its table anew."""
    from torch._dynamo import trace_rules

    trace_rules.clear_lru_cache()
    compare(in_a_stream, fullgraph=True)


def test_the_current_device_is_guarded():
    compiled = torch.compile(IN_GRAPH["current_device"], fullgraph=True)
    x = torch.zeros(1, device="npusim")
    assert compiled(x).item() == 0
    with npusim.device(1):
        assert compiled(x).item() == 1


def guarded():
    compiled = torch.compile(IN_GRAPH["current_device"], fullgraph=True)
    x = torch.zeros(1, device="npusim")
    for device in (0, 1):
        with npusim.device(device):
            assert compiled(x).item() == device


# What goes wrong without a patch of Dynamo.
WITHOUT = {
    "torch:constant_fold_functions": lambda: compare(IN_GRAPH["is_bf16_supported"], True),
    "torch:constant_fold_functions_need_guards": guarded,
    "torch:TorchInGraphFunctionVariable._get_handlers()": lambda: compare(in_a_stream, True),
    "user_defined:UserDefinedClassVariable.call_function": lambda: compare(in_order, True),
}
WITHOUT = {f"torch._dynamo.variables.{target}": then for target, then in WITHOUT.items()}
if patches.is_version("<2.15"):
    WITHOUT["torch._dynamo.variables.user_defined:UserDefinedClassVariable._in_graph_classes()"] = (
        lambda: compare(in_a_stream, True)
    )
WITHOUT["torch._dynamo.trace_rules:get_torch_obj_rule_map"] = guarded


@pytest.mark.parametrize("target", WITHOUT)
def test_dynamo_still_needs_to_be_told(target):
    """When this fails, the patch of the target can go."""
    with patches.undone(target), pytest.raises(Exception):  # noqa: B017, PT011
        WITHOUT[target]()
    torch._dynamo.reset()
    WITHOUT[target]()


def test_events_are_recorded_where_they_stand():
    """When the part without the patch fails, the patch can go."""

    def function(x):
        begin, end = (torch.Event("npusim", enable_timing=True) for _ in range(2))
        begin.record()
        y = x + 1
        end.record()
        return y, begin, end

    x = torch.zeros(1 << 16, device="npusim")
    y, begin, end = torch.compile(function, fullgraph=True)(x)
    assert y[0].item() == 1
    assert begin.elapsed_time(end) > 0
    torch._dynamo.reset()
    with (
        patches.undone("torch._inductor.scheduler:Scheduler.codegen_extern_call"),
        pytest.raises(Exception, match="arg0_1"),
    ):
        torch.compile(synchronized, fullgraph=True)(x)


def test_states_are_kept_below_code_that_is_not_traced():
    """torch.testing's wrapper is not traced, but what it calls would be, inside of its modes."""
    from torch.testing._internal.common_methods_invocations import wrapper_set_seed

    def function(x):
        return wrapper_set_seed(torch.nn.functional.dropout, x)

    x = torch.ones(64, device="npusim")
    assert torch.equal(torch.compile(function)(x), function(x))
