# SPDX-License-Identifier: BSD-3-Clause
"""The first facts about mychip; the conformance kit knows thousands more."""

import pytest
import torch
import torch_mychip


def test_import_torch_is_enough():
    assert torch.mychip.is_available()
    assert torch.ones(2, device="mychip").device == torch.device("mychip", 0)


def test_there_and_back():
    x = torch.arange(12.0).reshape(3, 4)
    assert torch.equal(x.to("mychip").cpu(), x)
    assert torch.equal(x.to("mychip").t().cpu(), x.t())
    assert torch.equal(x.to("mychip").to(torch.int64).cpu(), x.to(torch.int64))


def test_add_is_the_chips_own():
    x = torch.randn(3, 1)
    before = torch_mychip.fallback_counts()
    there = x.to("mychip") + torch.ones(1, 4, device="mychip") * 1
    assert torch_mychip.fallback_counts().keys() - before.keys() <= {"aten::mul.out"}
    assert torch.equal(there.cpu(), x + torch.ones(1, 4))


def test_what_has_no_kernel_falls_back_and_is_counted():
    before = torch_mychip.fallback_counts().get("aten::erfinv.out", 0)
    x = torch.tensor([0.5], device="mychip").erfinv()
    assert torch.equal(x.cpu(), torch.tensor([0.5]).erfinv())
    assert torch_mychip.fallback_counts()["aten::erfinv.out"] == before + 1


def test_equal_seeds_give_equal_numbers():
    def draw():
        torch.manual_seed(3)
        return [torch.rand(5, device="mychip").cpu(), torch.randn(5, device="mychip").cpu()]

    assert all(map(torch.equal, draw(), draw()))


def test_memory_is_counted_given_back_and_finite():
    before = torch.mychip.memory_allocated()
    x = torch.empty(1000, device="mychip")
    assert torch.mychip.memory_allocated() == before + x.nbytes
    del x
    assert torch.mychip.memory_allocated() == before
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(2**40, device="mychip")


def test_operands_on_two_devices_are_refused():
    with pytest.raises(RuntimeError, match="on the same device"):
        torch.ones(2, device="mychip:0") + torch.ones(2, device="mychip:1")


def test_backward():
    x = torch.tensor([1.0, 2.0], device="mychip", requires_grad=True)
    (x * x).sum().backward()
    assert torch.equal(x.grad.cpu(), torch.tensor([2.0, 4.0]))
