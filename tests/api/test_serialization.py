# SPDX-License-Identifier: BSD-3-Clause
"""torch.save, torch.load, pickle and deepcopy of device tensors."""

import io
import pickle

import pytest
import torch


def saved(value):
    buffer = io.BytesIO()
    torch.save(value, buffer)
    buffer.seek(0)
    return buffer


def make(device="npusim"):
    return torch.arange(12, dtype=torch.float32).reshape(3, 4).to(device)


def test_the_current_device_is_where_npusim_means():
    with torch.npusim.device(1):
        loaded = torch.load(saved(make("cpu")), map_location="npusim")
    assert loaded.device == torch.device("npusim:1")


def test_a_device_that_does_not_exist_here_is_named():
    content = saved(make("npusim:1")).getvalue().replace(b"npusim:1", b"npusim:6")
    with pytest.raises(RuntimeError, match="6"):
        torch.load(io.BytesIO(content), weights_only=True)


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_pickle(protocol):
    tensor = make("npusim:1")[1:]
    loaded = pickle.loads(pickle.dumps(tensor, protocol))
    assert loaded.device == tensor.device
    assert torch.equal(loaded, tensor)


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
def test_untyped_storages():
    storage = make().untyped_storage()
    loaded = torch.load(saved(storage), weights_only=False)
    assert loaded.device == torch.device("npusim:0")
    assert loaded.cpu().tolist() == storage.cpu().tolist()
