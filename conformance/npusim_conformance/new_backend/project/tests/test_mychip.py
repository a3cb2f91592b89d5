# SPDX-License-Identifier: BSD-3-Clause
"""The first facts about mychip; the conformance kit knows thousands more."""

import os

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
    accelerator = torch.accelerator
    assert torch.mychip.memory_allocated is accelerator.memory_allocated
    accelerator.empty_cache()
    accelerator.reset_peak_memory_stats()
    allocated, reserved = accelerator.memory_allocated(), accelerator.memory_reserved()
    x = torch.empty(1000, device="mychip")
    counted = accelerator.memory_allocated() - allocated
    assert x.nbytes <= counted < x.nbytes + 512
    del x
    assert accelerator.memory_allocated() == allocated
    assert accelerator.max_memory_allocated() == allocated + counted
    assert accelerator.memory_reserved() == reserved + counted  # cached
    accelerator.empty_cache()
    assert accelerator.memory_reserved() == reserved
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(2**40, device="mychip")
    assert accelerator.memory_stats()["num_ooms"] >= 1


def test_streams_and_events():
    stream = torch.Stream("mychip")
    start, end = (torch.Event("mychip", enable_timing=True) for _ in range(2))
    before = torch.accelerator.current_stream()
    with stream:
        assert torch.accelerator.current_stream() == stream != before
        start.record()
        x = torch.ones(1000, device="mychip") + 1
        end.record()
    before.wait_event(end)
    end.synchronize()
    assert end.query()
    assert start.elapsed_time(end) > 0
    assert torch.equal(x.cpu(), torch.full((1000,), 2.0))


def test_data_may_come_from_another_device():
    x = torch.ones(2)
    x.data = torch.zeros(3, device="mychip")
    assert x.device.type == "mychip"
    assert x.tolist() == [0, 0, 0]


def test_a_forked_child_is_refused():
    torch.ones(2, device="mychip")
    child = os.fork()
    if child == 0:
        refused = torch.mychip._is_in_bad_fork()
        try:
            torch.ones(2, device="mychip")
            refused = False
        except RuntimeError as error:
            refused = refused and "spawn" in str(error)
        os._exit(0 if refused else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert not torch.mychip._is_in_bad_fork()


def test_operands_on_two_devices_are_refused():
    with pytest.raises(RuntimeError, match="on the same device"):
        torch.ones(2, device="mychip:0") + torch.ones(2, device="mychip:1")


def test_backward():
    x = torch.tensor([1.0, 2.0], device="mychip", requires_grad=True)
    (x * x).sum().backward()
    assert torch.equal(x.grad.cpu(), torch.tensor([2.0, 4.0]))
