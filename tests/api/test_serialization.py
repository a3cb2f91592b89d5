# SPDX-License-Identifier: BSD-3-Clause
"""torch.save, torch.load, pickle and deepcopy of device tensors."""

import copy
import io
import pickle

import pytest
import torch
from torch import nn


def saved(value):
    buffer = io.BytesIO()
    torch.save(value, buffer)
    buffer.seek(0)
    return buffer


def make(device="npusim"):
    return torch.arange(12, dtype=torch.float32).reshape(3, 4).to(device)


@pytest.mark.parametrize("weights_only", [True, False])
def test_saved_tensors_come_back_to_their_device(weights_only):
    loaded = torch.load(saved(make("npusim:1")), weights_only=weights_only)
    assert loaded.device == torch.device("npusim:1")
    assert torch.equal(loaded.cpu(), make("cpu"))


@pytest.mark.parametrize("target", ["cpu", "npusim", "npusim:1", "meta"])
@pytest.mark.parametrize("source", ["cpu", "npusim", "npusim:1"])
def test_map_location(source, target):
    loaded = torch.load(saved(make(source)), map_location=target)
    assert loaded.device == (
        torch.device("npusim:0") if target == "npusim" else torch.device(target)
    )
    if target != "meta":
        assert torch.equal(loaded.cpu(), make("cpu"))


def test_map_location_as_dictionary_and_as_function():
    loaded = torch.load(saved(make("npusim:0")), map_location={"npusim:0": "npusim:1"})
    assert loaded.device == torch.device("npusim:1")
    loaded = torch.load(saved(make()), map_location=lambda storage, location: storage)
    assert loaded.device.type == "cpu"


def test_the_current_device_is_where_npusim_means():
    with torch.npusim.device(1):
        loaded = torch.load(saved(make("cpu")), map_location="npusim")
    assert loaded.device == torch.device("npusim:1")


def test_a_device_that_does_not_exist_here_is_named():
    content = saved(make("npusim:1")).getvalue().replace(b"npusim:1", b"npusim:6")
    with pytest.raises(RuntimeError, match="6"):
        torch.load(io.BytesIO(content), weights_only=True)


def test_views_keep_sharing_their_storage():
    base = make()
    loaded_base, loaded_row = torch.load(saved([base, base[1]]))
    loaded_row.fill_(7)
    assert loaded_base[1].tolist() == [7, 7, 7, 7]
    assert loaded_row.untyped_storage().data_ptr() == loaded_base.untyped_storage().data_ptr()


def test_a_model_and_its_optimizer_go_both_ways():
    model = nn.Linear(3, 2).to("npusim")
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 3, device="npusim")).sum().backward()
    optimizer.step()
    state = torch.load(saved([model.state_dict(), optimizer.state_dict()]), map_location="cpu")
    on_cpu = nn.Linear(3, 2)
    on_cpu.load_state_dict(state[0])
    torch.optim.Adam(on_cpu.parameters()).load_state_dict(state[1])
    assert torch.equal(on_cpu.weight, model.weight.cpu())
    model.load_state_dict(on_cpu.state_dict())
    assert model.weight.device.type == "npusim"


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_pickle(protocol):
    tensor = make("npusim:1")[1:]
    loaded = pickle.loads(pickle.dumps(tensor, protocol))
    assert loaded.device == tensor.device
    assert torch.equal(loaded, tensor)


def test_parameters_keep_what_they_are():
    parameter = nn.Parameter(make(), requires_grad=False)
    loaded = pickle.loads(pickle.dumps(parameter))
    assert isinstance(loaded, nn.Parameter)
    assert not loaded.requires_grad
    assert loaded.device.type == "npusim"


def test_deepcopy_is_a_copy_on_the_same_device():
    model = nn.Linear(2, 2).to("npusim:1")
    other = copy.deepcopy(model)
    assert other.weight.device == torch.device("npusim:1")
    assert other.weight.data_ptr() != model.weight.data_ptr()
    assert torch.equal(other.weight, model.weight)


def test_deepcopy_keeps_shared_storage_shared():
    base = make()
    one, other = copy.deepcopy([base, base[0]])
    other.zero_()
    assert one[0].tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.bfloat16, torch.complex64])
def test_every_kind_of_dtype(dtype):
    tensor = torch.ones(3, device="npusim").to(dtype)
    assert torch.equal(torch.load(saved(tensor)), tensor)


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
def test_untyped_storages():
    storage = make().untyped_storage()
    loaded = torch.load(saved(storage), weights_only=False)
    assert loaded.device == torch.device("npusim:0")
    assert loaded.cpu().tolist() == storage.cpu().tolist()


def test_sparse_tensors():
    loaded = torch.load(saved(torch.eye(3).to_sparse().to("npusim")))
    assert loaded.layout == torch.sparse_coo
    assert loaded.device.type == "npusim"
    assert torch.equal(loaded.to_dense().cpu(), torch.eye(3))
