# SPDX-License-Identifier: BSD-3-Clause
"""In-place operators that give a compressed sparse tensor other members."""

import pytest
import torch


def members(tensor):
    return [tensor.shape, *(one.tolist() for one in (tensor.crow_indices(), tensor.col_indices()))]


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("shape", [(2, 2), (2, 2, 2)])
@pytest.mark.parametrize("call", [torch.Tensor.zero_, lambda x: x.resize_(3, 5)])
def test_members_are_the_cpus(call, shape):
    host = torch.arange(1.0, 1 + 2 ** len(shape)).reshape(shape).to_sparse_csr()
    device = host.to("npusim")
    call(host)
    call(device)
    assert members(device) == members(host)
    assert device.values().tolist() == host.values().tolist()
