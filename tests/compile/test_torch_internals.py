# SPDX-License-Identifier: BSD-3-Clause
"""The private parts of torch that this rests on: names that have moved, patches that can go."""

import functools
import inspect
from importlib import import_module
from types import SimpleNamespace

import pytest
import torch

from torch_npusim import patches
from torch_npusim.patches.names import NAMES


@pytest.mark.parametrize("module", NAMES)
def test_the_names_are_where_they_were(module):
    found = import_module(module)
    missing = []
    for name in NAMES[module]:
        try:
            functools.reduce(getattr, name.split("."), found)
        except AttributeError:
            missing.append(name)
    assert missing == []


def test_nothing_of_the_compiler_is_imported_with_the_device(run_script):
    script = """
        import sys
        import torch, torch_npusim
        torch.ones(2, device="npusim").add(1).sum().item()
        print([m for m in sys.modules if m.startswith(("torch._dynamo", "torch._inductor"))])
        print([m for m in sys.modules if m.startswith("torch_npusim.inductor.")])
    """
    assert run_script(script).stdout == "[]\n[]\n"


def test_lowering_patches_are_still_needed():
    """When this fails, a lowering asks the backend, not the device's name, and its patch can go."""
    from torch._inductor import lowering

    get_device_type = patches.original("torch._inductor.ir:get_device_type")
    assert get_device_type(torch.device("npusim", 0)) == "npusim"
    for function in (
        patches.original("torch._inductor.lowering:use_two_step_variance"),
        lowering.div_prim,  # asks get_constant_value() unless the device is the CPU
    ):
        assert 'type == "cpu"' in inspect.getsource(function) or (
            'type != "cpu"' in inspect.getsource(function)
        )


def test_is_gpu_patch_is_still_needed():
    """When this fails, the patch can go; and without it the compiler refuses, nothing crashes."""

    def fmax(x):
        return torch.fmax(x + 1, torch.tensor(0.0))

    x = torch.tensor([1.0, -3.0], device="npusim")
    assert torch.compile(fmax)(x).tolist() == [2.0, 0.0]
    torch._dynamo.reset()
    with (
        patches.undone("torch._inductor.lowering:is_gpu"),
        torch._inductor.config.patch(fx_graph_cache=False),
        pytest.raises(Exception, match=r"for the host, and arg\w*, which it touches, is on"),
    ):
        torch.compile(fmax)(x)


def test_is_cpu_patch_is_still_needed():
    """When this fails, the patch can go: a scheduler asks the backend, not the device's name."""
    from torch._inductor import scheduler

    node = SimpleNamespace(get_device=lambda: torch.device("npusim", 0))
    assert not patches.original("torch._inductor.scheduler:BaseSchedulerNode.is_cpu")(node)
    assert scheduler.BaseSchedulerNode.is_cpu(node)


def test_streams_are_still_declared_in_a_guard():
    """When this fails, the patch can go: a graph with streams declares them on any device."""

    def function(x):
        stream = torch.npusim.Stream()
        with torch.npusim.stream(stream):
            y = x + 1
        torch.npusim.current_stream().wait_stream(stream)
        return y

    torch._dynamo.reset()
    with (
        patches.undone("torch._inductor.scheduler:device_need_guard"),
        torch._inductor.config.patch(fx_graph_cache=False),
        pytest.raises(Exception, match="stream"),
    ):
        torch.compile(function, fullgraph=True)(torch.zeros(1, device="npusim"))


@pytest.mark.skipif(
    not patches.is_version("<2.15"), reason="DeviceOpOverrides.aten_device_type() says it"
)
def test_names_in_aten_are_still_a_table():
    from torch._inductor.codegen.common import DeviceOpOverrides

    assert not hasattr(DeviceOpOverrides, "aten_device_type")


def test_create_backend_patch_is_still_needed(monkeypatch):
    """When this fails, the patch can go: the backend says what its devices must be."""
    from torch._inductor import scheduler
    from torch._inductor.exc import GPUTooOldForTriton

    monkeypatch.setattr(scheduler, "V", SimpleNamespace(graph=SimpleNamespace(add_device_info=id)))
    monkeypatch.setattr(scheduler, "get_scheduling_for_device", lambda name: lambda made: made)
    monkeypatch.setattr(scheduler, "has_triton", lambda: False)
    old = SimpleNamespace(name="old", major=1, minor=0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device=None: old)
    with pytest.raises(GPUTooOldForTriton):
        patches.original("torch._inductor.scheduler:Scheduler.create_backend")(
            object(), torch.device("cuda", 0)
        )
