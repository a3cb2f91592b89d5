# SPDX-License-Identifier: BSD-3-Clause
"""What of torch this rests on without a promise: names that have moved, patches that can go."""

import functools
import inspect
from importlib import import_module
from types import SimpleNamespace

import pytest
import torch
import torch._inductor.compile_fx
from torch._inductor import lowering, scheduler

from torch_npusim.inductor import torch_internals


@pytest.mark.parametrize("module", torch_internals.NAMES)
def test_the_names_are_where_they_were(module):
    found = import_module(module)
    missing = []
    for name in torch_internals.NAMES[module]:
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
    assert torch_internals.ORIGINAL_GET_DEVICE_TYPE(torch.device("npusim", 0)) == "npusim"
    for function in (
        torch_internals.ORIGINAL_USE_TWO_STEP_VARIANCE,
        lowering.div_prim,  # asks get_constant_value() unless the device is the CPU
    ):
        assert 'type == "cpu"' in inspect.getsource(function) or (
            'type != "cpu"' in inspect.getsource(function)
        )


def test_is_gpu_patch_is_still_needed(monkeypatch):
    """When this fails, the patch can go; and without it the compiler refuses, nothing crashes."""

    def fmax(x):
        return torch.fmax(x + 1, torch.tensor(0.0))

    x = torch.tensor([1.0, -3.0], device="npusim")
    assert torch.compile(fmax)(x).tolist() == [2.0, 0.0]
    monkeypatch.setattr(lowering, "is_gpu", torch_internals.ORIGINAL_IS_GPU)
    torch._dynamo.reset()
    with (
        torch._inductor.config.patch(fx_graph_cache=False),
        pytest.raises(Exception, match=r"for the host, and arg\w*, which it touches, is on"),
    ):
        torch.compile(fmax)(x)


def test_is_cpu_patch_is_still_needed():
    """When this fails, the patch can go: a scheduler asks the backend, not the device's name."""
    node = SimpleNamespace(get_device=lambda: torch.device("npusim", 0))
    assert not torch_internals.ORIGINAL_IS_CPU(node)
    assert scheduler.BaseSchedulerNode.is_cpu(node)


def test_create_backend_patch_is_still_needed(monkeypatch):
    """When this fails, the patch can go: the backend says what its devices must be."""
    from torch._inductor.exc import GPUTooOldForTriton

    monkeypatch.setattr(scheduler, "V", SimpleNamespace(graph=SimpleNamespace(add_device_info=id)))
    monkeypatch.setattr(scheduler, "get_scheduling_for_device", lambda name: lambda made: made)
    monkeypatch.setattr(scheduler, "has_triton", lambda: False)
    old = SimpleNamespace(name="old", major=1, minor=0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device=None: old)
    with pytest.raises(GPUTooOldForTriton):
        torch_internals.ORIGINAL_CREATE_BACKEND(object(), torch.device("cuda", 0))
