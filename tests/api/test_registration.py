# SPDX-License-Identifier: BSD-3-Clause
"""Additions of `import torch_npusim` to torch, and how it says that it cannot."""

import ast
import importlib
import re
import sysconfig
from importlib import metadata

import pytest
import torch
from repo.sources import ROOT
from torch import nn

import torch_npusim
from torch_npusim import _preconditions

MINOR = ".".join(torch.__version__.split(".")[:2])


def test_version_is_that_of_the_distribution_which_names_its_torch():
    assert f"{torch_npusim.__version__}+torch{MINOR}" == metadata.version("torch-npusim")


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


def test_another_torch_is_named_with_the_remedy(monkeypatch):
    for version, order in (("2.12.1+cpu", "older"), ("9.1.0", "newer")):
        monkeypatch.setattr(torch, "__version__", version)
        with pytest.raises(ImportError) as caught:
            _preconditions.check()
        assert str(caught.value) == (
            f"torch_npusim was compiled for torch {MINOR}, but torch {version}, which is {order}, "
            f"is running; install that torch: `pip install 'torch=={MINOR}.*'`; this torch_npusim "
            f"can be compiled for torch 2.13, 2.14, 2.15."
        )


def test_another_torch_that_is_supported_is_compiled_for(monkeypatch):
    monkeypatch.setattr(_preconditions, "torch_built_for", lambda: "2.12")
    with pytest.raises(ImportError, match=rf"newer, .*\+torch{MINOR}-cp\d+-.*compile it"):
        _preconditions.check()


def test_the_package_and_its_build_support_the_same_versions():
    source = (ROOT / "tools" / "check_env.py").read_text()
    (listed,) = re.findall(r"^TORCH_SUPPORTED = (\(.*?\))", source, re.M)
    assert ast.literal_eval(listed) == _preconditions.TORCH_SUPPORTED


def test_a_free_threaded_python_is_refused(monkeypatch):
    monkeypatch.setattr(sysconfig, "get_config_var", lambda name: 1)
    with pytest.raises(ImportError, match=r"free-threaded build; use python3\.\d+ without"):
        _preconditions.check()


def test_another_python_is_named_with_the_remedy(monkeypatch):
    suffix = ".cpython-399-x86_64-linux-gnu.so"
    known = sysconfig.get_config_var
    monkeypatch.setattr(
        sysconfig, "get_config_var", lambda name: suffix if name == "EXT_SUFFIX" else known(name)
    )
    with pytest.raises(ImportError, match=r"does not fit Python .* \(only _C\..* is there\)"):
        _preconditions.check()


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
