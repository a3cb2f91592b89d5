# SPDX-License-Identifier: BSD-3-Clause
"""Saving, loading, copying and pickling what lies on the device."""

import copy
import io
import pickle
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from npusim_conformance.contracts import contract, on, other_device, refuses, same
from npusim_conformance.contracts.apart.script import ends_well, run_script
from npusim_conformance.inputs.torch_testing import DTYPE_ORDER, dtype_name
from npusim_conformance.properties.base import Run, require

_ONE_DEVICE = "all is on the CPU"
# No elements in one dimension and in several, no dimension, and one element of many.
_SCANTY = ((0,), (0, 3), (2, 0, 3), (), (1, 1, 1))


def _saved(value: Any, **options: Any) -> io.BytesIO:
    file = io.BytesIO()
    torch.save(value, file, **options)
    file.seek(0)
    return file


def _reloaded(value: Any, **options: Any) -> Any:
    return torch.load(_saved(value), **options)


@contract()
def load_restores_the_device(run: Run) -> None:
    """torch.load() gives a tensor back on its device, in both file formats."""
    tensor = on(run.device, 1, 2, 3)
    for is_zip in (True, False):
        loaded = torch.load(_saved(tensor, _use_new_zipfile_serialization=is_zip))
        same("device", loaded.device, run.device)
        same(f"values after torch.load() of {'a zip file' if is_zip else 'the old format'}",
             loaded, tensor)  # fmt: skip
    same("values loaded with weights_only=False", _reloaded(tensor, weights_only=False), tensor)


@contract()
def parameters_survive(run: Run) -> None:
    """A loaded parameter requires a gradient if the one that was saved did."""
    for learns in (True, False):
        saved = torch.nn.Parameter(on(run.device, 1, 2), requires_grad=learns)
        loaded = _reloaded(saved, weights_only=False)
        same("type", type(loaded), torch.nn.Parameter)
        same(f"requires_grad of one with {learns}", loaded.requires_grad, learns)


@contract(two_devices=True, no_cpu=_ONE_DEVICE)
def load_restores_the_index(run: Run) -> None:
    """A tensor of the second device is loaded there."""
    second = other_device(run)
    same("device", _reloaded(on(second, 1, 2)).device, second)


@contract(two_devices=True, no_cpu=_ONE_DEVICE)
def copies_stay_on_their_device(run: Run) -> None:
    """Pickle and deepcopy of a tensor, a parameter and a module keep the device, if not current."""
    second = other_device(run)
    module = torch.nn.Linear(2, 2).to(second)
    ways: dict[str, Callable[[Any], Any]] = {
        "pickle": lambda value: pickle.loads(pickle.dumps(value)),
        "deepcopy": copy.deepcopy,
    }
    for name, copied in ways.items():
        for kind, value in {"tensor": on(second, 1, 2), "parameter": module.weight}.items():
            same(f"device of a {kind} after {name}", copied(value).device, second)
            same(f"a {kind} after {name}", copied(value).detach(), value.detach())
        same(f"device of a module after {name}", copied(module).weight.device, second)
        same(f"current device after {name}", torch.empty(0, device=run.device.type).device,
             run.device)  # fmt: skip


@contract()
def files_can_be_mapped(run: Run) -> None:
    """torch.load(mmap=True) of a file gives the values back, on the device and on the CPU."""
    tensors = {"x": torch.arange(3000.0).to(run.device), "part": on(run.device, 1, 2, 3)[1:]}
    with tempfile.TemporaryDirectory() as directory:
        file = str(Path(directory, "saved.pt"))
        torch.save(tensors, file)
        for location in (str(run.device), "cpu"):
            loaded = torch.load(file, mmap=True, map_location=location)
            for name, tensor in tensors.items():
                what = f"{name} with mmap=True and map_location={location!r}"
                same(f"device of {what}", loaded[name].device, torch.device(location))
                same(what, loaded[name], tensor)


@contract(no_cpu=_ONE_DEVICE)
def map_location_to_the_cpu(run: Run) -> None:
    """map_location="cpu", as string, device, dictionary or function, loads on the CPU."""
    tensor = on(run.device, 1, 2, 3)
    for name, location in {
        "string": "cpu",
        "device": torch.device("cpu"),
        "dictionary": {str(run.device): "cpu"},
        "function": lambda storage, location: storage,
    }.items():
        loaded = _reloaded(tensor, map_location=location)
        same(f"device by {name}", loaded.device.type, "cpu")
        same(f"values by {name}", loaded, tensor)


@contract()
def map_location_to_the_device(run: Run) -> None:
    """A file saved on the CPU can be loaded on the device, by each form of map_location."""
    tensor = torch.tensor([1.0, 2.0, 3.0])
    for name, location in {
        "string": str(run.device),
        "type": run.device.type,
        "device": run.device,
        "dictionary": {"cpu": str(run.device)},
    }.items():
        loaded = _reloaded(tensor, map_location=location)
        same(f"device by {name}", loaded.device, run.device)
        same(f"values by {name}", loaded, tensor)


@contract(two_devices=True, no_cpu=_ONE_DEVICE)
def map_location_to_another_index(run: Run) -> None:
    """map_location moves from one device to another."""
    second = other_device(run)
    tensor = on(run.device, 1, 2)
    for location in (str(second), {str(run.device): str(second)}):
        loaded = _reloaded(tensor, map_location=location)
        same(f"device by {location}", loaded.device, second)
        same(f"values by {location}", loaded, tensor)


@contract(no_cpu=_ONE_DEVICE)
def map_location_without_such_a_device(run: Run) -> None:
    """Loading to an index that no device has raises."""
    missing = f"{run.device.type}:{run.under_test.module.device_count()}"
    file = _saved(torch.ones(2))
    refuses(
        f"map_location={missing!r}",
        lambda: torch.load(file, map_location=missing),
        (RuntimeError, ValueError, AssertionError),
    )


@contract(quick=False, no_cpu=_ONE_DEVICE)
def files_can_be_read_without_the_backend(run: Run) -> None:
    """A saved state_dict can be loaded on the CPU by a Python without the backend."""
    with tempfile.TemporaryDirectory() as directory:
        file = str(Path(directory, "saved.pt"))
        torch.save(torch.nn.Linear(2, 2).to(run.device).state_dict(), file)
        script = """
            found = torch.load(sys.argv[1], map_location="cpu")
            assert found["weight"].device.type == "cpu", found["weight"].device
            assert found["weight"].shape == (2, 2)
            """
        ends_well(run_script(run.under_test, script, (file,), load=False))


def _bytes_in(dtype: torch.dtype) -> torch.Tensor:
    return torch.tensor([0, 1, 1, 0] * 8, dtype=torch.uint8).view(dtype)


def _dtypes(run: Run) -> list[torch.dtype]:
    left_out = run.under_test.expectations.unsupported_dtypes
    return [dtype for dtype in DTYPE_ORDER if dtype_name(dtype) not in left_out]


def _unchanged(run: Run, dtype: torch.dtype, way: str, restored: torch.Tensor) -> None:
    name = f"{dtype_name(dtype)} after {way}"
    same(f"dtype of {name}", restored.dtype, dtype)
    same(f"device of {name}", restored.device, run.device)
    same(name, restored.cpu().view(torch.uint8), _bytes_in(dtype).view(torch.uint8))


@contract()
def every_dtype_survives(run: Run) -> None:
    """Load and deepcopy keep bytes, dtype and device for every dtype."""
    for dtype in _dtypes(run):
        tensor = _bytes_in(dtype).to(run.device)
        _unchanged(run, dtype, "torch.load", _reloaded(tensor))
        _unchanged(run, dtype, "deepcopy", copy.deepcopy(tensor))


@contract()
def every_dtype_pickles(run: Run) -> None:
    """Pickle keeps bytes, dtype and device for every dtype that it keeps on the CPU."""
    for dtype in _dtypes(run):
        raw = _bytes_in(dtype)
        try:
            pickle.loads(pickle.dumps(raw))
        except AttributeError:  # uint16, uint32, uint64: untyped storages do not pickle
            continue
        _unchanged(run, dtype, "pickle", pickle.loads(pickle.dumps(raw.to(run.device))))


@contract()
def sharing_survives(run: Run) -> None:
    """Tensors that share a storage share one after load and deepcopy, and not the originals'."""
    base = on(run.device, 1, 2, 3, 4)
    pair = {"base": base, "view": base[1:3]}
    for name, restored in {
        "torch.load": _reloaded(pair),
        "deepcopy": copy.deepcopy(pair),
    }.items():
        restored["base"][1] = 9
        same(f"the view after {name}", restored["view"], torch.tensor([9.0, 3.0]))
        same(f"the original after {name}", base, torch.tensor([1.0, 2.0, 3.0, 4.0]))


@contract()
def layout_survives(run: Run) -> None:
    """Strides, offsets and requires_grad survive save and load."""
    base = torch.arange(24.0).view(4, 6).to(run.device)
    part = base.t()[1:5:2]
    loaded = _reloaded(part)
    same("stride()", loaded.stride(), part.stride())
    same("values", loaded, part)
    same("requires_grad", _reloaded(on(run.device, 1).requires_grad_()).requires_grad, True)


@contract()
def what_has_no_elements_survives(run: Run) -> None:
    """Tensors without elements or dimensions are saved, pickled and copied with their shapes."""
    tensors = {str(shape): torch.ones(shape).to(run.device) for shape in _SCANTY}
    tensors["an empty part"] = on(run.device, 1, 2, 3)[3:]
    for name, tensor in tensors.items():
        ways = {
            "torch.load()": _reloaded({name: tensor, "more": on(run.device, 1)})[name],
            "torch.load() of the old format": torch.load(
                _saved(tensor, _use_new_zipfile_serialization=False)
            ),
            "torch.load() to the CPU": _reloaded(tensor, map_location="cpu").to(run.device),
            "pickle": pickle.loads(pickle.dumps(tensor)),
            "deepcopy": copy.deepcopy(tensor),
        }
        for way, restored in ways.items():
            same(f"device of {name} by {way}", restored.device, run.device)
            same(f"{name} by {way}", restored, tensor)


@contract()
def conj_survives(run: Run) -> None:
    """Conj bits survive save and load."""
    conjugate = torch.tensor([1 + 2j]).to(run.device).conj()
    same("is_conj()", _reloaded(conjugate).is_conj(), True)
    same("values of a conj view", _reloaded(conjugate).resolve_conj(), torch.tensor([1 - 2j]))


@contract()
def state_dict_goes_round(run: Run) -> None:
    """Parameters, buffers and the state of an optimizer survive save and load."""

    def made() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        module = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3)).to(run.device)
        return module, torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)

    module, optimizer = made()
    for parameter in module.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    other, resumed = made()
    other.load_state_dict(_reloaded(module.state_dict()))
    resumed.load_state_dict(_reloaded(optimizer.state_dict()))
    for name, expected in module.state_dict().items():
        same(name, other.state_dict()[name], expected)
        same(f"device of {name}", other.state_dict()[name].device, run.device)
    for one, two in zip(optimizer.state.values(), resumed.state.values(), strict=True):
        same("momentum", two["momentum_buffer"], one["momentum_buffer"])
        same("device of momentum", two["momentum_buffer"].device, run.device)


@contract(no_cpu=_ONE_DEVICE)
def state_dict_of_the_cpu_loads(run: Run) -> None:
    """A module on the device takes a state_dict of the CPU, and the other way round."""
    here, there = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2).to(run.device)
    there.load_state_dict(here.state_dict())
    same("weight there", there.weight.detach(), here.weight.detach())
    same("device there", there.weight.device, run.device)
    torch.nn.init.constant_(there.weight, 4.0)
    here.load_state_dict(there.state_dict())
    same("weight here", here.weight.detach(), torch.full((2, 3), 4.0))
    same("device here", here.weight.device.type, "cpu")


@contract()
def deepcopy_keeps_the_layout(run: Run) -> None:
    """A deep copy has the strides, the offset and the values of its original."""
    part = torch.arange(24.0).view(4, 6).to(run.device).t()[1:5:2]
    other = copy.deepcopy(part)
    same("stride()", other.stride(), part.stride())
    same("storage_offset()", other.storage_offset(), part.storage_offset())
    same("values", other, part)


@contract(two_devices=True, no_cpu=_ONE_DEVICE)
def load_ignores_the_current_device(run: Run) -> None:
    """A tensor is loaded on the device that it was saved from, whichever is current."""
    second = other_device(run)
    for device, current in ((run.device, second), (second, run.device)):
        file = _saved(on(device, 1, 2))
        try:
            run.under_test.make_current(current)
            loaded = torch.load(file)
        finally:
            run.under_test.make_current(run.device)
        same(f"device of what lay on {device} while {current} is current", loaded.device, device)


@contract()
def deepcopy_shares_nothing(run: Run) -> None:
    """A deep copy has memory of its own, on the same device, and keeps grad."""
    tensor = on(run.device, 1, 2).requires_grad_()
    tensor.grad = on(run.device, 3, 4)
    other = copy.deepcopy(tensor)
    same("device", other.device, run.device)
    require(other.data_ptr() != tensor.data_ptr(), "both have one address")
    with torch.no_grad():
        other.fill_(0)
    same("the original", tensor.detach(), torch.tensor([1.0, 2.0]))
    same("grad", other.grad, torch.tensor([3.0, 4.0]))
    same("shallow copy", copy.copy(tensor).data_ptr(), tensor.data_ptr())


@contract()
def modules_pickle(run: Run) -> None:
    """A module on the device can be pickled and deep-copied; devices can be pickled."""
    module = torch.nn.Linear(2, 2).to(run.device)
    for restored in (pickle.loads(pickle.dumps(module)), copy.deepcopy(module)):
        same("device", restored.weight.device, run.device)
        same("weight", restored.weight.detach(), module.weight.detach())
    same("a device", pickle.loads(pickle.dumps(run.device)), run.device)


@contract()
def sparse_survives(run: Run) -> None:
    """Sparse tensors survive save and load."""
    dense = torch.tensor([[0.0, 1.0], [2.0, 0.0]])
    loaded = _reloaded(dense.to_sparse().to(run.device))
    same("device", loaded.device, run.device)
    same("values", loaded.to_dense(), dense)


@contract()
def bytes_of_every_number_survive(run: Run) -> None:
    """torch.load() gives 1 to 17 bytes back, each of them."""
    for count in range(1, 18):
        there = torch.arange(1, count + 1, dtype=torch.uint8).to(run.device)
        same(f"{count} bytes after torch.load()", _reloaded(there), there)
