# SPDX-License-Identifier: BSD-3-Clause
"""NumPy, DLPack and Python numbers."""

import numpy as np
import pytest
import torch
from torch.utils import dlpack

NO_NUMPY = "can't convert npusim:0 device type tensor to numpy. Use Tensor.cpu()"


@pytest.mark.parametrize("convert", [lambda x: x.numpy(), np.asarray, np.sin])
def test_numpy_needs_a_copy_to_the_host(convert):
    with pytest.raises(TypeError, match=NO_NUMPY):
        convert(torch.ones(2, device="npusim"))


def test_numpy_by_force_and_from_the_host():
    x = torch.arange(3.0, device="npusim")
    assert x.numpy(force=True).tolist() == [0, 1, 2]
    assert x.cpu().numpy().tolist() == [0, 1, 2]
    assert torch.as_tensor(np.arange(3), device="npusim").tolist() == [0, 1, 2]
    assert torch.tensor(np.float32(2), device="npusim").item() == 2


def test_dlpack_within_torch_shares_memory():
    x = torch.arange(4.0, device="npusim:1")
    y = torch.from_dlpack(x)
    assert y.device == x.device
    y[0] = 7
    assert x[0].item() == 7
    assert y.data_ptr() == x.data_ptr()


def test_dlpack_capsules():
    x = torch.arange(6, device="npusim").reshape(2, 3).T
    y = dlpack.from_dlpack(dlpack.to_dlpack(x))
    assert y.tolist() == x.tolist()
    assert y.stride() == x.stride()


def test_a_dlpack_import_keeps_the_memory_alive():
    x = torch.arange(1000.0, device="npusim")
    y = torch.from_dlpack(x)
    expected = x.cpu()
    del x
    torch.zeros(1000, device="npusim")
    assert torch.equal(y.cpu(), expected)


def test_numpy_cannot_take_device_memory_by_dlpack():
    with pytest.raises((BufferError, RuntimeError)):
        np.from_dlpack(torch.ones(2, device="npusim"))


def test_python_numbers():
    assert torch.tensor(3, device="npusim").item() == 3
    assert int(torch.tensor(3, device="npusim")) == 3
    assert float(torch.tensor(1.5, device="npusim")) == 1.5
    assert bool(torch.tensor(1, device="npusim"))
    assert torch.tensor([[1, 2]], device="npusim").tolist() == [[1, 2]]
    assert [10, 20][torch.tensor(1, device="npusim")] == 20


def test_iteration_and_membership():
    x = torch.tensor([1, 2], device="npusim")
    assert [element.item() for element in x] == [1, 2]
    assert 2 in x
    assert len(x) == 2
