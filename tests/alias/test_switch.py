# SPDX-License-Identifier: BSD-3-Clause
"""Switching the alias on and off: by call, by import, by the environment; and its refusal."""

import sys
from importlib import import_module

import pytest
import torch

from torch_npusim import cuda_alias

TOUCHED = ("torch", "torch.amp", "torch.amp.autocast_mode", "torch.backends.cuda", "torch._C")
TOUCHED += ("torch.distributed", "torch.distributed.distributed_c10d", "torch.nn.parallel.comm")
TOUCHED += ("torch.nn.parallel.parallel_apply",)
CLASSES = (
    torch.Tensor,
    torch.UntypedStorage,
    torch.TypedStorage,
    torch.amp.GradScaler,
    torch.amp.autocast,
    torch.autograd.profiler.profile,
)


def everything():
    """Returns the attributes of all that the alias may touch."""
    modules = [name for name in sys.modules if name.startswith("torch.cuda")]
    owners = [import_module(name) for name in (*modules, *TOUCHED)]
    return {owner: dict(vars(owner)) for owner in (*owners, *CLASSES)}


def test_off_again_nothing_is_left():
    cuda_alias.disable()
    before = everything()
    cuda_alias.enable()
    assert everything() != before
    cuda_alias.disable()
    assert everything() == before
    assert torch.device("cuda").type == "cuda"
    # A build of torch for CUDA asks its driver.
    with pytest.raises((AssertionError, RuntimeError), match=r"not compiled with CUDA|NVIDIA"):
        torch.ones(1, device="cuda")


def test_modules_of_devices_follow_the_name():
    npusim, device = torch.npusim, torch.device("npusim")
    for _ in range(2):
        cuda_alias.enable()
        assert torch.get_device_module(device) is torch.get_device_module() is torch.cuda
        cuda_alias.disable()
        assert torch.get_device_module(device) is torch.get_device_module() is npusim


def test_on_twice_is_on_once():
    assert cuda_alias.is_enabled()
    before = everything()
    cuda_alias.enable()
    assert everything() == before
    cuda_alias.disable()
    cuda_alias.disable()
    assert not cuda_alias.is_enabled()


def test_scopes_nest():
    with cuda_alias.scope():
        with cuda_alias.scope():
            pass
        assert cuda_alias.is_enabled()
    assert cuda_alias.is_enabled()  # the fixture's own
    cuda_alias.disable()
    with pytest.raises(KeyError), cuda_alias.scope():
        raise KeyError
    assert not cuda_alias.is_enabled()


def test_an_error_on_the_way_leaves_nothing(monkeypatch):
    cuda_alias.disable()
    before = everything()

    def fail(patcher):
        patcher.set(torch.cuda, "is_available", None)
        raise LookupError

    monkeypatch.setattr(cuda_alias._outside_torch_cuda, "patch", fail)
    with pytest.raises(LookupError):
        cuda_alias.enable()
    assert not cuda_alias.is_enabled()
    assert everything() == before
    assert torch.device("cuda").type == "cuda"


def test_a_real_device_is_not_hidden(monkeypatch):
    cuda_alias.disable()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    with pytest.raises(RuntimeError, match=r"would hide a real device: torch.cuda has 3"):
        cuda_alias.enable()
    assert torch.device("cuda").type == "cuda"


def test_limits_are_sentences_by_name():
    assert "torch.cuda.temperature(), power_draw()" in cuda_alias.LIMITS
    assert all(reason for reason in cuda_alias.LIMITS.values())


def test_importing_the_switch_enables(run_script):
    script = """
        import torch
        import torch_npusim.as_cuda
        print(torch.ones(2, device="cuda:1").cuda(0).device)
        torch_npusim.as_cuda.disable()
        print(torch.device("cuda"), torch.cuda.is_available())
    """
    assert run_script(script).stdout == "cuda:0\ncuda False\n"


def test_importing_the_functions_does_not(run_script):
    script = """
        import torch
        from torch_npusim import cuda_alias
        print(torch.device("cuda"), torch.cuda.is_available(), cuda_alias.is_enabled())
    """
    assert run_script(script).stdout == "cuda False False\n"


@pytest.mark.parametrize("imported", ["torch", "torch, torch_npusim"])
def test_the_environment_enables(run_script, imported):
    script = f"""
        import {imported}
        print(torch.ones(2).cuda().device, torch.cuda.device_count())
    """
    environment = {"NPUSIM_AS_CUDA": "1", "NPUSIM_DEVICE_COUNT": "3", "NPUSIM_AUTOLOAD": "1"}
    assert run_script(script, environment=environment).stdout == "cuda:0 3\n"


def test_the_environment_is_checked(run_script):
    finished = run_script("import torch_npusim", environment={"NPUSIM_AS_CUDA": "yes"})
    assert "NPUSIM_AS_CUDA is `yes`; accepted: 0, 1" in finished.stderr


REAL = """
    import os
    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    import torch
    torch.cuda.is_available = lambda: True
    torch.cuda.device_count = lambda: 1
"""


def test_the_environment_does_not_hide_a_real_device(run_script):
    script = (
        REAL
        + """
    try:
        import torch_npusim
    except ImportError as problem:
        print(problem)
    print(hasattr(torch, "npusim"))
    """
    )
    said = run_script(script, environment={"NPUSIM_AS_CUDA": "1"}).stdout
    assert "would hide a real device" in said
    assert said.endswith("False\n")


def test_autoload_warns_rather_than_use_a_real_device_silently(run_script):
    script = (
        REAL
        + """
    import warnings
    from torch_npusim_entry_points import autoload
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        autoload()
    print(said[0].message)
    """
    )
    said = run_script(script, environment={"NPUSIM_AS_CUDA": "1"}).stdout
    assert said.startswith("torch_npusim was not loaded: the CUDA alias")


def test_forked_workers_inherit_it_and_new_interpreters_follow_the_environment(run_script):
    script = """
        import multiprocessing, subprocess, sys, torch, torch_npusim.as_cuda

        def name(queue):
            queue.put(str(torch.device("npusim")))

        context = multiprocessing.get_context("fork")
        queue = context.SimpleQueue()
        process = context.Process(target=name, args=(queue,))
        process.start()
        print(queue.get())
        process.join()
        alone = "import torch, torch_npusim; print(torch.device('npusim'))"
        finished = subprocess.run([sys.executable, "-c", alone], capture_output=True, text=True)
        print(finished.stdout.strip())
    """
    assert run_script(script).stdout == "cuda\nnpusim\n"
    assert run_script(script, environment={"NPUSIM_AS_CUDA": "1"}).stdout == "cuda\ncuda\n"
