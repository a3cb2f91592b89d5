# SPDX-License-Identifier: BSD-3-Clause
"""The smoke test: if this fails, look at nothing else first. Five seconds, most of them import."""

import gc

import pytest
import torch


def test_a_tensor_goes_there_and_back():
    values = torch.arange(6.0).reshape(2, 3)
    there = values.to("npusim")
    assert there.device == torch.device("npusim", 0)
    assert torch.equal(there.cpu(), values)


def test_numbers_are_added_on_the_device():
    total = torch.ones(3, device="npusim") + torch.arange(3, device="npusim")
    assert total.is_npusim
    assert total.tolist() == [1.0, 2.0, 3.0]


def test_devices_do_not_mix():
    with pytest.raises(RuntimeError, match=r"same device.*npusim:0.*cpu"):
        torch.ones(3, device="npusim") + torch.ones(3)


def test_gradients_flow():
    x = torch.tensor([1.0, 2.0, 3.0], device="npusim", requires_grad=True)
    (x * x).sum().backward()
    assert x.grad.tolist() == [2.0, 4.0, 6.0]


def test_one_optimizer_step_is_the_cpus():
    def step(device):
        torch.manual_seed(0)
        layer = torch.nn.Linear(4, 2).to(device)
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
        layer(torch.ones(3, 4, device=device)).square().mean().backward()
        optimizer.step()
        return layer.weight.cpu()

    assert torch.equal(step("npusim"), step("cpu"))


def test_memory_comes_back():
    gc.collect()
    torch.npusim.empty_cache()
    before = torch.npusim.memory_allocated(), torch.npusim.memory_reserved()
    x = torch.zeros(1000, device="npusim")
    assert torch.npusim.memory_allocated() == before[0] + 4000
    del x
    torch.npusim.empty_cache()
    assert (torch.npusim.memory_allocated(), torch.npusim.memory_reserved()) == before
