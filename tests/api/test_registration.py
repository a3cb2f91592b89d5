# SPDX-License-Identifier: BSD-3-Clause
"""What `import torch_npusim` adds to torch, and how it says that it cannot."""

import importlib
import sys
from importlib import metadata

import pytest
import torch
from torch import nn

import torch_npusim
from torch_npusim import _preconditions


def test_version_is_that_of_the_distribution():
    assert torch_npusim.__version__ == metadata.version("torch-npusim")


def test_importing_again_changes_nothing():
    module = torch.npusim
    importlib.reload(torch_npusim)
    assert torch.npusim is module


def test_the_device_is_known_by_name():
    assert torch.device("npusim:1").index == 1
    assert torch._C._get_privateuse1_backend_name() == "npusim"
    assert torch.accelerator.current_accelerator() == torch.device("npusim")
    assert torch.get_device_module("npusim") is torch.npusim


@pytest.mark.parametrize(
    "name", ["amp", "amp.grad_scaler", "graphs", "memory", "random", "streams"]
)
def test_submodules_are_one_module_under_both_names(name):
    torch_name = importlib.import_module(f"torch.npusim.{name}")
    assert torch_name is importlib.import_module(f"torch_npusim.npusim.{name}")


def test_tensor_methods():
    x = torch.arange(3.0)
    assert x.npusim().device == torch.device("npusim:0")
    assert x.npusim(1).device == torch.device("npusim:1")
    assert x.npusim("npusim:1").is_npusim
    assert not x.is_npusim
    with torch.npusim.device(1):
        assert x.npusim().device == torch.device("npusim:1")
    with pytest.raises(RuntimeError, match="must be npusim device"):
        x.npusim("cpu")


def test_module_methods_keep_the_parameters():
    module = nn.Linear(2, 2)
    weight = module.weight
    assert module.npusim() is module
    assert module.weight is weight
    assert weight.device == torch.device("npusim:0")
    assert module.npusim(1).weight.device == torch.device("npusim:1")


def test_packed_sequence_methods():
    packed = nn.utils.rnn.pack_sequence([torch.ones(3), torch.ones(2)])
    moved = packed.npusim()
    assert moved.is_npusim
    assert moved.data.device.type == "npusim"
    assert not packed.is_npusim


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
def test_storage_methods():
    storage = torch.arange(3.0).untyped_storage()
    moved = storage.npusim()
    assert moved.is_npusim
    assert moved.device == torch.device("npusim:0")
    assert moved.nbytes() == 12
    assert torch.arange(3.0)._typed_storage().npusim().is_npusim


def test_default_device():
    with torch.device("npusim:1"):
        assert torch.ones(1).device == torch.device("npusim:1")
    torch.set_default_device("npusim")
    try:
        assert nn.Linear(1, 1).weight.device.type == "npusim"
    finally:
        torch.set_default_device(None)


def test_another_torch_is_named_with_the_remedy(monkeypatch):
    monkeypatch.setattr(torch, "__version__", "2.12.1+cpu")
    with pytest.raises(ImportError) as caught:
        _preconditions.check()
    assert str(caught.value) == (
        "torch_npusim was compiled for torch 2.13.x, but torch 2.12.1+cpu is running; "
        "install torch 2.13, or build torch_npusim again against this torch."
    )


def test_an_explicit_import_says_who_has_taken_the_slot(run_python):
    done = run_python(
        """
        import torch
        torch.utils.rename_privateuse1_backend("other")
        import torch_npusim
        """,
        environment={"NPUSIM_AUTOLOAD": "0"},
        check=False,
    )
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode == 1
    assert last.startswith("ImportError: torch_npusim cannot add its device: PrivateUse1")
    assert "taken by 'other'" in last


def test_a_wrong_configuration_is_named_at_import(run_python):
    done = run_python(
        "import torch_npusim", environment={"NPUSIM_DEVICE_COUNT": "many"}, check=False
    )
    assert done.returncode == 1
    assert "NPUSIM_DEVICE_COUNT" in done.stderr
    assert "many" in done.stderr


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="pins the process to one core")
def test_a_script_that_ends_in_backward_ends_well(run_python):
    script = """
        import os, torch, torch_npusim
        os.sched_setaffinity(0, {next(iter(os.sched_getaffinity(0)))})
        x = torch.ones(3, device="npusim", requires_grad=True)
        (x * 2).sum().backward()
        """
    assert run_python(script) == ""
