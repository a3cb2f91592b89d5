# SPDX-License-Identifier: BSD-3-Clause
"""torch.npusim in compiled code: what is in the graph, and what is right at a break of it."""

import pytest
import torch

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


IN_GRAPH = {
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


def test_events_are_recorded_where_they_stand(monkeypatch):
    """When the part without the patch fails, the patch can go."""
    from torch._inductor import scheduler

    from torch_npusim.inductor import torch_internals

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
    monkeypatch.setattr(
        scheduler.Scheduler, "codegen_extern_call", torch_internals.ORIGINAL_CODEGEN_EXTERN_CALL
    )
    torch._dynamo.reset()
    with pytest.raises(Exception, match="arg0_1"):
        torch.compile(synchronized, fullgraph=True)(x)


def test_states_are_kept_below_code_that_is_not_traced():
    """torch.testing's wrapper is not traced, but what it calls would be, inside of its modes."""
    from torch.testing._internal.common_methods_invocations import wrapper_set_seed

    def function(x):
        return wrapper_set_seed(torch.nn.functional.dropout, x)

    x = torch.ones(64, device="npusim")
    assert torch.equal(torch.compile(function)(x), function(x))
